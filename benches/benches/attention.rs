//! Flash attention on the CPU against PyTorch's, in one run.
//!
//! `cargo bench -p benches --bench attention [-- ROUNDS]`. The peer is `peers/attention_torch.py`, run by `$PYTHON`
//! (default `python3`) and skipped when that has no PyTorch. Rounds of ours and the peer alternate, so that a machine that slows down
//! slows both; medians are printed. GPUs, other shapes and other implementations: `--bench kernels`.
//! That memory is linear in the length is a test, `attention_memory` of `mt-model`.
//!
//! FLOP count, causal halved: 4 D per visible (query, key, head) forward, 10 D backward (`lab::attention`).

use std::time::Instant;

use benches::lab::attention::Attention;
use benches::lab::{Operation, Pass};
use benches::machine::matmul_peak;
use benches::peer::Peer;
use benches::{median, rounds};
use burn::tensor::{DType, Device, Tensor};

/// Speed against PyTorch's flash attention that 1k, 4k and 8k tokens are to have, forward and both, on two cores.
const TARGET: f64 = 1.2;

fn main() {
    let Some(rounds) = rounds(7) else { return };
    let mut peer = Peer::start();
    let peaks = [DType::F32, DType::BF16].map(|dtype| matmul_peak(&Device::flex(), dtype));
    println!(
        "matmul 1024^3: float32 {:.0} GFLOP/s, bfloat16 {:.0}, {} threads",
        peaks[0] / 1e9,
        peaks[1] / 1e9,
        rayon::current_num_threads()
    );
    println!("{:36} {:>9} {:>9} {:>8} {:>9} {:>7}", "", "ms", "GFLOP/s", "of peak", "torch ms", "speed");
    let case = |head_dim, lengths: &[usize]| Attention::new([8, 4, head_dim], 1, lengths);
    let mut slowest = f64::INFINITY;
    for length in [1024, 4096, 8192] {
        let single = measure(&case(64, &[length]), DType::F32, rounds, peaks[0], peer.as_mut());
        let packed = measure(&case(64, &[length / 8; 8]), DType::F32, rounds, peaks[0], peer.as_mut());
        let [forward, both] = [packed[0].ours / single[0].ours, packed[1].ours / single[1].ours];
        println!("  8 documents over one: forward {forward:.3}, forward and backward {both:.3}");
        slowest = single.iter().map(Times::ratio).fold(slowest, f64::min);
    }
    if slowest.is_finite() {
        println!(
            "  one document of 1k, 4k and 8k: at least {slowest:.2} times PyTorch's speed (target {TARGET})"
        );
    }
    for head_dim in [80, 96, 128, 256] {
        measure(&case(head_dim, &[2048]), DType::F32, rounds, peaks[0], peer.as_mut());
    }
    measure(&case(64, &[2048]), DType::BF16, rounds, peaks[1], peer.as_mut());
}

/// Medians in seconds.
struct Times {
    ours: f64,
    peer: f64,
}

impl Times {
    fn ratio(&self) -> f64 {
        self.peer / self.ours
    }
}

/// Prints and returns the medians of forward, and forward and backward.
fn measure(
    case: &Attention,
    dtype: DType,
    rounds: usize,
    peak: f64,
    mut peer: Option<&mut Peer>,
) -> [Times; 2] {
    let flash = Attention::implementations().remove(0);
    let operands: Vec<Tensor<2>> = (1..)
        .zip(case.operands())
        .map(|(seed, operand)| operand.draw(seed).on(&Device::flex(), dtype))
        .collect();
    [Pass::Forward, Pass::Both].map(|pass| {
        let mut run = case.clone().prepare(pass, flash.functions, operands.clone());
        let mut ours = || {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        };
        // The first call touches fresh memory.
        ours();
        let (mut our_times, mut peer_times) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            our_times.push(ours());
            peer_times.extend(peer.as_mut().map(|peer| peer.run(case, dtype, pass == Pass::Both)));
        }
        let times = Times { ours: median(our_times), peer: median(peer_times) };
        let flops = case.work(pass, dtype).flops / times.ours;
        let name = format!("{} {dtype:?} {}", case.label(), pass.name());
        let share = 100.0 * flops / peak;
        print!("{name:36} {:9.2} {:9.1} {share:6.0} %", times.ours * 1e3, flops / 1e9);
        match times.peer.is_nan() {
            true => println!(),
            false => println!(" {:9.2} {:6.2}x", times.peer * 1e3, times.ratio()),
        }
        times
    })
}
