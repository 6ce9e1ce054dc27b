//! The kernels' HIP text, as CubeCL writes it, run lane by lane on the CPU against float64: there is no other proof of them on a machine
//! without matrix units. rocWMMA's part is played by `rocwmma.h`. A machine without a C++ compiler skips them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use cubecl::prelude::*;
use cubecl::{Compiler, define_kernel};
use cubecl_cpp::shared::{CompilationOptions, CppCompiler};
use cubecl_cpp::target::Hip;
use half::bf16;

use super::super::super::tests::{Data, data, packed, reference, spec};
use super::super::super::{Layout, Spec};
use super::super::mask::Options;
use super::super::tables::{key_blocks, query_blocks};
use super::super::tile::UNITS;
use super::Fragments;
use super::backward::{matrix_dkv_kernel, matrix_dq_kernel};
use super::forward::matrix_forward_kernel;
use crate::ops::cube::hip_text::{BF16, properties};

/// Shared memory of a cube, in bytes: that of AMD's.
const SHARED: usize = 65_536;

#[derive(Debug, Clone, Copy)]
enum Kernel {
    Forward,
    Queries,
    Keys,
}

/// CubeCL's HIP text of a kernel.
fn text(kernel: Kernel, options: Options<Fragments>) -> String {
    let lanes = UNITS / options.tile.planes;
    let settings =
        KernelSettings::new(*CubeDim::new_1d(UNITS as u32), ExecutionMode::Checked, AddressType::U32);
    let device = Arc::new(properties(if lanes == 64 { "gfx942" } else { "gfx1100" }));
    let target = Arc::new(TargetProperties::default());
    let buffer = || BufferCompilationArg { inplace: None };
    macro_rules! define {
        ($kernel:path, $($buffer:tt)*) => {{
            use $kernel as Kernel;
            define_kernel(&Kernel::new(settings, device, target, $(buffer $buffer,)* (), (), (), (), (), options, BF16))
        }};
    }
    let definition = match kernel {
        Kernel::Forward => define!(matrix_forward_kernel::MatrixForwardKernel, ()()()()()()()),
        Kernel::Queries => define!(matrix_dq_kernel::MatrixDqKernel, ()()()()()()()()()),
        Kernel::Keys => define!(matrix_dkv_kernel::MatrixDkvKernel, ()()()()()()()()()()),
    };
    let options = CompilationOptions { warp_size: lanes, ..Default::default() };
    let compiled = CppCompiler::<Hip>::default().compile(definition.expect("it expands"), &options);
    compiled.expect("it compiles").to_string()
}

/// The text between two others, the first time.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let rest = &text[text.find(before).expect(before) + before.len()..];
    &rest[..rest.find(after).expect(after)]
}

/// The kernel's text as a program for the CPU, without what C++ has of its own.
fn program(text: &str, lanes: usize) -> String {
    let host = |line: &&str| !line.starts_with("typedef") && !line.starts_with("#include");
    let kernel: Vec<&str> = text.lines().filter(host).collect();
    let name = between(text, "__launch_bounds__(256) ", "(");
    // CubeCL's one piece of shared memory; the linker finds it, here full of NaN to begin with.
    let shared = between(text, "extern __shared__ __align__(32) char ", "[");
    assert!(
        text.contains("uint32_t scalars_usize[4];\nfloat scalars_f32[2];"),
        "the scalars are where we write them"
    );
    let wave = include_str!("../../hip/emulator/wave.h");
    let waves = wave.replace("LANES = 64", &format!("LANES = {lanes}"));
    assert!(lanes == 64 || waves != wave);
    format!(
        "{waves}\n{}\n{}\nalignas(32) char {shared}[{SHARED}];\nint main(int, char** arguments) {{\n\
         std::memset({shared}, 0xff, sizeof {shared});\n\
         return emulator::run({name}, arguments[1], std::atoi(arguments[2]));\n}}\n",
        include_str!("rocwmma.h"),
        kernel.join("\n"),
    )
}

struct Programs {
    folder: tempfile::TempDir,
    tile: Fragments,
    programs: Vec<PathBuf>,
}

impl Programs {
    fn new(tile: Fragments, capped: bool, windowed: bool) -> Self {
        assert!(tile.fit() && tile.shared_bytes(2) <= SHARED);
        let folder = tempfile::tempdir().expect("a folder for the test");
        let options = Options { tile, capped, windowed };
        let programs = [Kernel::Forward, Kernel::Queries, Kernel::Keys].map(|kernel| {
            let path = folder.path().join(format!("{kernel:?}"));
            let source = path.with_extension("cpp");
            std::fs::write(&source, program(&text(kernel, options), UNITS / tile.planes)).expect("the text");
            let output = Command::new("c++")
                .args(["-std=c++20", "-O1", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-o"])
                .args([&path, &source])
                .output()
                .expect("c++ was there a moment ago");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            path
        });
        Self { folder, tile, programs: programs.to_vec() }
    }

    /// Runs a kernel over `cubes` on buffers, and returns what they hold then.
    fn run(&self, kernel: Kernel, cubes: usize, buffers: &[&[u8]], seed: u32) -> Vec<Vec<u8>> {
        let file = self.folder.path().join("buffers");
        let mut bytes: Vec<u8> = Vec::new();
        let word = |bytes: &mut Vec<u8>, value: usize| bytes.extend((value as u64).to_le_bytes());
        for value in [cubes, 1, 1, buffers.len()] {
            word(&mut bytes, value);
        }
        for buffer in buffers {
            word(&mut bytes, buffer.len());
            bytes.extend_from_slice(buffer);
        }
        std::fs::write(&file, &bytes).expect("the buffers");
        let output = Command::new(&self.programs[kernel as usize])
            .arg(&file)
            .arg(seed.to_string())
            .output()
            .expect("the program runs");
        assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        let bytes = std::fs::read(file).expect("the buffers");
        let mut at = 4 * 8;
        let mut next = |buffer: &&[u8]| {
            let start = at + 8;
            at = start + buffer.len();
            bytes[start..at].to_vec()
        };
        buffers.iter().map(&mut next).collect()
    }
}

/// `out, lse, dq, dk, dv` as bytes, by the kernels.
fn run(programs: &Programs, data: &Data<bf16>, layout: &Layout, spec: &Spec, seed: u32) -> [Vec<u8>; 5] {
    let Spec { num_query_heads: heads, num_kv_heads: kv_heads, head_dim, window, soft_cap, .. } = *spec;
    let rows = programs.tile.rows;
    let [of_queries, of_keys] = [query_blocks(layout, rows, window), key_blocks(layout, rows, window)];
    // `info_st`: four integers, the cap and what fills it up to 8 bytes, lengths that nothing reads.
    let info = |blocks: usize| -> Vec<u8> {
        let integers = [blocks, heads, kv_heads, window.unwrap_or(0)].map(|x| (x as u32).to_le_bytes());
        let floats = [soft_cap.unwrap_or(0.0) as f32, 0.0].map(f32::to_le_bytes);
        [integers.as_flattened(), floats.as_flattened(), &[0; 64]].concat()
    };
    let tokens: &[u8] = bytemuck::cast_slice(layout.grouped_tokens());
    let [of_queries_bytes, of_keys_bytes] =
        [&of_queries, &of_keys].map(|x| bytemuck::cast_slice(x.as_flattened()));
    let [q, k, v, dout] = [&data.q, &data.k, &data.v, &data.dout].map(|x| bytemuck::cast_slice::<_, u8>(x));
    // What isn't written shows: not-a-number in every buffer.
    let nan = |bytes: usize| vec![0xff; bytes];
    let (like_q, like_k) = (nan(q.len()), nan(k.len()));
    let like_lse = nan(4 * layout.num_tokens() * heads);
    let info_of_queries = info(of_queries.len());

    let buffers = [q, k, v, tokens, of_queries_bytes, &like_q, &like_lse, &info_of_queries];
    let forward = programs.run(Kernel::Forward, of_queries.len() * heads, &buffers, seed);
    let (out, lse) = (&forward[5], &forward[6]);
    // The delta kernel needs no matrix units.
    let values = |bytes: &[u8]| bytemuck::pod_collect_to_vec::<u8, bf16>(bytes);
    let products: Vec<f32> =
        values(out).iter().zip(&data.dout).map(|(out, dout)| out.to_f32() * dout.to_f32()).collect();
    let delta: Vec<f32> = products.chunks(head_dim).map(|row| row.iter().sum()).collect();
    let delta: &[u8] = bytemuck::cast_slice(&delta);

    let buffers = [q, k, v, dout, lse, delta, tokens, of_queries_bytes, &like_q, &info_of_queries];
    let dq = programs.run(Kernel::Queries, of_queries.len() * heads, &buffers, seed)[8].clone();
    let info_of_keys = info(of_keys.len());
    let buffers = [q, k, v, dout, lse, delta, tokens, of_keys_bytes, &like_k, &like_k, &info_of_keys];
    let keys = programs.run(Kernel::Keys, of_keys.len() * kv_heads, &buffers, seed);
    [out.clone(), lse.clone(), dq, keys[8].clone(), keys[9].clone()]
}

fn check(
    tile: Fragments,
    lengths: &[usize],
    heads: [usize; 2],
    soft_cap: Option<f64>,
    window: Option<usize>,
) {
    let programs = Programs::new(tile, soft_cap.is_some(), window.is_some());
    let layout = packed(lengths);
    let spec = Spec { soft_cap, window, ..spec(heads[0], heads[1], tile.head_dim) };
    let data = data(7, layout.num_tokens(), &spec);
    let round = |x: &[f32]| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
    let data = Data { q: round(&data.q), k: round(&data.k), v: round(&data.v), dout: round(&data.dout) };
    let wide = |x: &[bf16]| x.iter().map(|x| x.to_f64()).collect::<Vec<_>>();
    let exact = Data { q: wide(&data.q), k: wide(&data.k), v: wide(&data.v), dout: wide(&data.dout) };
    let expected = reference(&exact, &layout, &spec);

    let results = run(&programs, &data, &layout, &spec, 1);
    let values = |bytes: &[u8]| wide(&bytemuck::pod_collect_to_vec::<u8, bf16>(bytes));
    let lse: Vec<f64> =
        bytemuck::pod_collect_to_vec::<u8, f32>(&results[1]).into_iter().map(f64::from).collect();
    // Weights and results are rounded to 8 bits of mantissa; scores, softmax and sums aren't.
    let found: HashMap<&str, (Vec<f64>, &[f64], f64)> = HashMap::from([
        ("out", (values(&results[0]), &*expected.out, 5e-3)),
        ("lse", (lse, &*expected.lse, 1e-5)),
        ("dq", (values(&results[2]), &*expected.dq, 5e-3)),
        ("dk", (values(&results[3]), &*expected.dk, 5e-3)),
        ("dv", (values(&results[4]), &*expected.dv, 5e-3)),
    ]);
    for (name, (found, expected, bound)) in found {
        let scale = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        let differences = found.iter().zip(expected).map(|(x, y)| (x - y).abs() / scale);
        let worst = differences.fold(0.0, |most: f64, x| if x <= most { most } else { x });
        eprintln!("{tile:?} {name} {worst:e}");
        assert!(worst <= bound, "{name} differs by {worst:e}: {tile:?} {spec:?}");
    }
    assert!(
        run(&programs, &data, &layout, &spec, 2) == results,
        "the order of lanes and cubes decides nothing"
    );
}

fn tile(head_dim: usize, rows: usize, columns: usize, lanes: usize) -> Fragments {
    Fragments { head_dim, rows, columns, planes: UNITS / lanes }
}

fn compiler() -> bool {
    let there = Command::new("c++").arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: there is no c++ to compile the kernels with");
    }
    there
}

#[test]
fn waves_of_64() {
    if compiler() {
        check(tile(64, 64, 64, 64), &[70, 1, 20], [4, 2], None, None);
        check(tile(80, 64, 32, 64), &[90, 40], [2, 2], Some(5.0), None);
        check(tile(128, 32, 64, 64), &[75, 16], [2, 1], None, Some(20));
        check(tile(256, 32, 32, 64), &[50], [1, 1], Some(9.0), Some(33));
    }
}

#[test]
fn waves_of_32() {
    if compiler() {
        check(tile(64, 64, 64, 32), &[70, 1, 20], [4, 2], Some(7.0), Some(50));
        check(tile(96, 32, 32, 32), &[90, 40], [2, 2], None, None);
        check(tile(128, 64, 32, 32), &[75], [2, 1], None, None);
    }
}
