//! The kernels' own text, run lane by lane on the CPU against the float64 reference. A machine without a C++ compiler skips it.
//!
//! `emulator/wave.h` gives matrix products their layout from the instruction set's manual, makes lanes wait for each other where
//! they must, and runs lanes and workgroups in an order that a seed shuffles: a missing barrier gives other numbers, a barrier that
//! some lanes skip fails.

use std::path::{Path, PathBuf};
use std::process::Command;

use half::bf16;

use super::super::tests::{Data, data, packed, reference, spec};
use super::super::{Layout, Spec};
use super::ranges::Ranges;
use super::{BLOCK, Kernel, covers, window};
use burn::tensor::DType;

/// A kernel compiled for the CPU.
struct Program {
    path: PathBuf,
    folder: tempfile::TempDir,
}

impl Program {
    fn compile(kernel: Kernel, head_dim: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let (text, path) = (folder.path().join("kernel.cpp"), folder.path().join("kernel"));
        let main = format!(
            "\nint main(int, char** arguments) {{ return emulator::run({}, arguments[1], std::atoi(arguments[2])); }}\n",
            kernel.entry()
        );
        let source = [include_str!("emulator/wave.h"), &kernel.source(head_dim), &main].join("\n");
        std::fs::write(&text, source).expect("the text");
        let output = Command::new("c++")
            .args(["-std=c++20", "-O2", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-o"])
            .args([&path, &text])
            .output()
            .expect("c++ was there a moment ago");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { path, folder }
    }

    /// Runs over `grid` on buffers, and returns what they hold then.
    fn run(&self, grid: [usize; 3], buffers: &[&[u8]], seed: u32) -> Vec<Vec<u8>> {
        let file = self.folder.path().join("buffers");
        let words = |values: &[usize]| -> Vec<u8> {
            values.iter().flat_map(|&value| (value as u64).to_le_bytes()).collect()
        };
        let mut bytes = words(&grid);
        bytes.extend(words(&[buffers.len()]));
        for buffer in buffers {
            bytes.extend(words(&[buffer.len()]));
            bytes.extend_from_slice(buffer);
        }
        std::fs::write(&file, &bytes).expect("the buffers");
        let output =
            Command::new(&self.path).arg(&file).arg(seed.to_string()).output().expect("the program runs");
        assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        read(&file, buffers)
    }
}

fn read(file: &Path, buffers: &[&[u8]]) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).expect("the buffers");
    let mut at = 4 * 8;
    buffers
        .iter()
        .map(|buffer| {
            let start = at + 8;
            at = start + buffer.len();
            bytes[start..at].to_vec()
        })
        .collect()
}

struct Programs {
    head_dim: usize,
    forward: Program,
    backward_queries: Program,
    backward_keys: Program,
}

/// The three kernels, none without a compiler.
fn programs(head_dim: usize) -> Option<Programs> {
    if Command::new("c++").arg("--version").output().is_err() {
        eprintln!("skipped: there is no c++ to compile the kernels with");
        return None;
    }
    let [forward, backward_queries, backward_keys] =
        [Kernel::Forward, Kernel::BackwardQueries, Kernel::BackwardKeys]
            .map(|kernel| Program::compile(kernel, head_dim));
    Some(Programs { head_dim, forward, backward_queries, backward_keys })
}

/// Results as bytes: out, lse, dq, dk, dv.
fn run(programs: &Programs, data: &Data<bf16>, layout: &Layout, spec: &Spec, seed: u32) -> [Vec<u8>; 5] {
    let ranges = Ranges::new(layout, window(spec));
    let shape = [layout.seq() as i32, spec.num_query_heads as i32, spec.num_kv_heads as i32, window(spec)];
    let grid = |heads: usize| [layout.seq().div_ceil(BLOCK), heads, layout.batch()];
    let [q, k, v, dout] = [&data.q, &data.k, &data.v, &data.dout].map(|x| bytemuck::cast_slice::<_, u8>(x));
    let segments: &[u8] = bytemuck::cast_slice(layout.segment_ids());
    let [of_queries, of_keys]: [&[u8]; 2] =
        [bytemuck::cast_slice(&ranges.keys), bytemuck::cast_slice(&ranges.queries)];
    let shape: &[u8] = bytemuck::cast_slice(&shape);
    // What isn't written shows: not-a-number in every buffer.
    let nan = |bytes: usize| vec![0xff; bytes];
    let lse_bytes = 4 * layout.num_tokens() * spec.num_query_heads;
    let (like_q, like_k, like_lse) = (nan(q.len()), nan(k.len()), nan(lse_bytes));

    let forward = [q, k, v, segments, of_queries, &like_q, &like_lse, shape];
    let forward = programs.forward.run(grid(spec.num_query_heads), &forward, seed);
    let (out, lse) = (&forward[5], &forward[6]);
    let queries = [q, k, v, out, dout, lse, segments, of_queries, &like_q, &like_lse, shape];
    let queries = programs.backward_queries.run(grid(spec.num_query_heads), &queries, seed);
    let delta = &queries[9];
    let keys = [q, k, v, dout, lse, delta, segments, of_keys, &like_k, &like_k, shape];
    let keys = programs.backward_keys.run(grid(spec.num_kv_heads), &keys, seed);
    [out.clone(), lse.clone(), queries[8].clone(), keys[8].clone(), keys[9].clone()]
}

fn check(programs: &Programs, layout: &Layout, heads: [usize; 2], window: Option<usize>) {
    let spec = Spec { window, ..spec(heads[0], heads[1], programs.head_dim) };
    assert!(covers(&spec, DType::BF16));
    let data = data(7, layout.num_tokens(), &spec);
    let round = |x: &[f32]| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
    let data = Data { q: round(&data.q), k: round(&data.k), v: round(&data.v), dout: round(&data.dout) };
    let wide = |x: &[bf16]| x.iter().map(|x| x.to_f64()).collect::<Vec<_>>();
    let exact = Data { q: wide(&data.q), k: wide(&data.k), v: wide(&data.v), dout: wide(&data.dout) };
    let expected = reference(&exact, layout, &spec);

    let results = run(programs, &data, layout, &spec, 1);
    let values = |bytes: &[u8]| wide(&bytemuck::pod_collect_to_vec::<u8, bf16>(bytes));
    let lse: Vec<f64> =
        bytemuck::pod_collect_to_vec::<u8, f32>(&results[1]).into_iter().map(f64::from).collect();
    let [out, _, dq, dk, dv] = results.each_ref().map(|bytes| bytes.as_slice());
    // Operands and results are rounded to 8 bits of mantissa; scores, softmax and sums aren't.
    let what = format!("{heads:?} x {} {window:?}", programs.head_dim);
    close(&format!("lse {what}"), &lse, &expected.lse, 1e-5);
    for (name, found, expected) in [
        ("out", out, &expected.out),
        ("dv", dv, &expected.dv),
        ("dq", dq, &expected.dq),
        ("dk", dk, &expected.dk),
    ] {
        close(&format!("{name} {what}"), &values(found), expected, 5e-3);
    }
    assert!(
        results == run(programs, &data, layout, &spec, 2),
        "{what}: results depend on the order in which lanes run"
    );
}

/// The error's norm is at most `tolerance` of the norm of what is expected, and no element is far out.
fn close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let scale = norm(&mut expected.iter().copied());
    let error = norm(&mut found.iter().zip(expected).map(|(x, y)| x - y));
    assert!(error <= tolerance * scale, "{what}: error {error:e} of {scale:e}");
    let typical = scale / (expected.len() as f64).sqrt();
    for (i, (x, y)) in found.iter().zip(expected).enumerate() {
        assert!((x - y).abs() <= 6.0 * tolerance * (y.abs() + typical), "{what}[{i}]: {x}, expected {y}");
    }
}

fn check_layouts(head_dim: usize) {
    let Some(programs) = programs(head_dim) else { return };
    // More than one workgroup, and a last one that isn't full.
    check(&programs, &Layout::unpacked(1, 200), [2, 1], None);
    check(&programs, &Layout::unpacked(2, 33), [2, 2], None);
    check(&programs, &packed(&[40, 1, 97, 64, 5]), [4, 2], None);
    check(&programs, &packed(&[150, 30]), [3, 1], Some(50));
    // Padding, and ids that come back.
    let ids: Vec<i32> = (0..160).map(|token| if token < 140 { token / 30 % 3 + 1 } else { 0 }).collect();
    check(&programs, &Layout::new(&ids, &[0; 160], 1, 160), [2, 1], None);
}

#[test]
fn heads_of_64() {
    check_layouts(64);
}

#[test]
fn heads_of_128() {
    check_layouts(128);
}

/// What lies in another document doesn't change a bit.
#[test]
fn documents_are_apart_to_the_last_bit() {
    let Some(programs) = programs(64) else { return };
    let (layout, spec) = (packed(&[50, 45, 65]), spec(2, 1, 64));
    let round = |x: Vec<f32>| x.into_iter().map(bf16::from_f32).collect::<Vec<_>>();
    let of = |seed| {
        let data = data(seed, layout.num_tokens(), &spec);
        Data { q: round(data.q), k: round(data.k), v: round(data.v), dout: round(data.dout) }
    };
    let (mut changed, plain) = (of(1), of(2));
    for (tensor, like) in [
        (&mut changed.q, &plain.q),
        (&mut changed.k, &plain.k),
        (&mut changed.v, &plain.v),
        (&mut changed.dout, &plain.dout),
    ] {
        let token = like.len() / layout.num_tokens();
        tensor[50 * token..95 * token].copy_from_slice(&like[50 * token..95 * token]);
    }
    let results = [&changed, &plain].map(|data| run(&programs, data, &layout, &spec, 1));
    for (changed, plain) in results[0].iter().zip(&results[1]) {
        let token = plain.len() / layout.num_tokens();
        assert!(changed[50 * token..95 * token] == plain[50 * token..95 * token]);
        assert!(changed[..50 * token] != plain[..50 * token]);
    }
}
