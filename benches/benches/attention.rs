//! Flash attention on the CPU against PyTorch's, in one run; and on the first GPU, when the build drives one.
//!
//! `cargo bench -p benches --bench attention [-- ROUNDS]`. The peer is `peers/attention_torch.py`, run by `$PYTHON`
//! (default `python3`) and skipped when that has no PyTorch. Rounds of ours and the peer alternate; medians are printed.
//!
//! On a GPU a round ends when the device is done. `--features mt-train/wgpu` (or `rocm`, `cuda`) with `--workspace` in place of
//! `-p benches` builds for one.
//!
//! FLOP count, causal halved: 4 D per visible (query, key, head) forward, 10 D backward.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use benches::{median, python};
use burn::tensor::{DType, Device, Distribution, Tensor};
use mt_config::AttentionKernel;
use mt_model::device;
use mt_model::ops::attention::{Layout, Spec, backward, forward};
use serde_json::{Value, json};

/// One shape: documents of one row.
struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    lengths: Vec<usize>,
    dtype: DType,
}

impl Case {
    fn flops(&self, layout: &Layout, with_backward: bool) -> f64 {
        let per_pair = if with_backward { 14 } else { 4 } * self.heads * self.head_dim;
        per_pair as f64 * layout.visible_pairs(None) as f64
    }

    fn name(&self, with_backward: bool) -> String {
        format!(
            "{}/{} x {}, {} x {} {:?} {}",
            self.heads,
            self.kv_heads,
            self.head_dim,
            self.lengths.len(),
            self.lengths[0],
            self.dtype,
            if with_backward { "both" } else { "forward" }
        )
    }
}

fn main() {
    let rounds = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(7);
    let mut peer = Peer::start();
    let peak = matmul_peak();
    println!("float32 matmul 1024^3: {peak:.0} GFLOP/s, {} threads", rayon::current_num_threads());
    println!(
        "{:38} {:>9} {:>9} {:>7} {:>9} {:>7}",
        "heads, head_dim, documents", "ms", "GFLOP/s", "of peak", "torch ms", "ratio"
    );
    let case = |head_dim, lengths| Case { heads: 8, kv_heads: 4, head_dim, lengths, dtype: DType::F32 };
    for length in [1024, 4096, 8192] {
        let single = measure(&case(64, vec![length]), rounds, peak, peer.as_mut());
        if length == 4096 {
            let packed = measure(&case(64, vec![512; 8]), rounds, peak, peer.as_mut());
            let [forward, both] = [packed[0] / single[0], packed[1] / single[1]];
            println!(
                "  8 x 512 over 1 x 4096: forward {forward:.3}, forward and backward {both:.3} (target below 0.3)"
            );
        }
    }
    for head_dim in [80, 96, 128, 256] {
        measure(&case(head_dim, vec![2048]), rounds, peak, peer.as_mut());
    }
    measure(&Case { dtype: DType::BF16, ..case(64, vec![2048]) }, rounds, peak, peer.as_mut());
    if let Some(gpu) = device::available().into_iter().find(|found| found.device != Device::flex()) {
        println!("{}", gpu.name);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            if !gpu.device.supports_dtype(dtype) {
                continue;
            }
            for (head_dim, lengths) in
                [(64, vec![4096]), (64, vec![512; 8]), (128, vec![4096]), (256, vec![4096])]
            {
                measure_gpu(&Case { dtype, ..case(head_dim, lengths) }, rounds, &gpu.device);
            }
        }
    }
}

/// Prints the medians of forward, and forward and backward, on a GPU.
fn measure_gpu(case: &Case, rounds: usize, gpu: &Device) {
    let ours = Ours::new(case, gpu);
    for with_backward in [false, true] {
        // The first call compiles the kernels.
        ours.run(with_backward);
        let time = median((0..rounds).map(|_| ours.run(with_backward)).collect());
        let teraflops = case.flops(&ours.layout, with_backward) / time / 1e12;
        println!("{:38} {:9.2} ms {teraflops:9.3} TFLOP/s", case.name(with_backward), time * 1e3);
    }
}

/// Prints and returns the medians of forward, and forward and backward, in seconds.
fn measure(case: &Case, rounds: usize, peak: f64, mut peer: Option<&mut Peer>) -> [f64; 2] {
    let ours = Ours::new(case, &Device::flex());
    [false, true].map(|with_backward| {
        let (mut our_times, mut peer_times) = (Vec::new(), Vec::new());
        ours.run(with_backward);
        for _ in 0..rounds {
            our_times.push(ours.run(with_backward));
            peer_times.extend(peer.as_mut().map(|peer| peer.run(case, with_backward)));
        }
        let (time, peer_time) = (median(our_times), median(peer_times));
        let flops = case.flops(&ours.layout, with_backward) / time / 1e9;
        let name = case.name(with_backward);
        let share = 100.0 * flops / peak;
        print!("{name:38} {:9.2} {flops:9.1} {share:6.0} %", time * 1e3);
        match peer_time.is_nan() {
            true => println!(),
            false => println!(" {:9.2} {:6.2}x", peer_time * 1e3, peer_time / time),
        }
        time
    })
}

/// Inputs of our operation.
struct Ours {
    layout: Layout,
    spec: Spec,
    q: Tensor<2>,
    k: Tensor<2>,
    v: Tensor<2>,
    dout: Tensor<2>,
}

impl Ours {
    fn new(case: &Case, device: &Device) -> Self {
        let Case { heads, kv_heads, head_dim, .. } = *case;
        let tokens: usize = case.lengths.iter().sum();
        let ids: Vec<i32> = (1..).zip(&case.lengths).flat_map(|(id, &len)| vec![id; len]).collect();
        let positions: Vec<i32> = case.lengths.iter().flat_map(|&len| 0..len as i32).collect();
        let random = |heads: usize, scale: f64| {
            let shape = [tokens, heads * head_dim];
            Tensor::<2>::random(shape, Distribution::Normal(0.0, scale), device).cast(case.dtype)
        };
        let spec = Spec {
            num_query_heads: heads,
            num_kv_heads: kv_heads,
            head_dim,
            soft_cap: None,
            window: None,
            kernel: AttentionKernel::Flash,
            float32_logits: true,
            float32_qk_product: true,
        };
        Self {
            layout: Layout::new(&ids, &positions, 1, tokens),
            spec,
            q: random(heads, 1.0 / (head_dim as f64).sqrt()),
            k: random(kv_heads, 1.0),
            v: random(kv_heads, 1.0),
            dout: random(heads, 1.0),
        }
    }

    /// Seconds of one call.
    fn run(&self, with_backward: bool) -> f64 {
        let [q, k, v, dout] = [&self.q, &self.k, &self.v, &self.dout].map(Tensor::clone);
        let start = Instant::now();
        let (out, lse) = forward(q.clone(), k.clone(), v.clone(), &self.layout, &self.spec);
        if with_backward {
            std::hint::black_box(backward(q, k, v, out, lse, dout, &self.layout, &self.spec));
        }
        self.q.device().sync().expect("the device finishes what it was given");
        start.elapsed().as_secs_f64()
    }
}

/// GFLOP/s of burn's matrix product, the best of a few.
fn matmul_peak() -> f64 {
    let x = Tensor::<2>::random([1024, 1024], Distribution::Default, &Device::flex());
    let seconds = |_| {
        let start = Instant::now();
        std::hint::black_box(x.clone().matmul(x.clone()));
        start.elapsed().as_secs_f64()
    };
    2.0 * 1024f64.powi(3) / (0..10).map(seconds).fold(f64::INFINITY, f64::min) / 1e9
}

/// A running `attention_torch.py`.
struct Peer {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start() -> Option<Self> {
        let python = python();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/attention_torch.py");
        let child = Command::new(&python)
            .args([script, &rayon::current_num_threads().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut process = child.ok()?;
        let (requests, answers) = (process.stdin.take()?, process.stdout.take()?);
        let mut peer = Self { process, requests, answers: BufReader::new(answers) };
        let Some(version) = peer.answer() else {
            println!("no peer: {python} has no PyTorch (set PYTHON to one that has)");
            return None;
        };
        println!("peer: PyTorch {} on {} threads", version["torch"], version["threads"]);
        Some(peer)
    }

    /// Seconds of one call.
    fn run(&mut self, case: &Case, with_backward: bool) -> f64 {
        let dtype = if case.dtype == DType::BF16 { "bfloat16" } else { "float32" };
        let Case { heads, kv_heads, head_dim, lengths, .. } = case;
        let request = json!({
            "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "lengths": lengths,
            "backward": with_backward, "dtype": dtype,
        });
        let sent = writeln!(self.requests, "{request}");
        let answer = sent.ok().and_then(|()| self.answer());
        answer.and_then(|answer| answer["seconds"].as_f64()).unwrap_or(f64::NAN)
    }

    fn answer(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process is only a peer: whether it could be stopped changes nothing here.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
