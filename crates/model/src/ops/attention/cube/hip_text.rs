//! The kernels listed for [`crate::ops::cube::hip_text`].

use super::mask::Options;
use super::matrix::{self, Fragments};
use super::tile::UNITS;
use super::variants::{self, Pass};
use super::*;
use crate::ops::cube::hip_text::{BF16, F32, Kernel, U32, properties};

/// Bytes of an AMD compute unit's local memory.
const LDS: usize = 65_536;

/// Names and options of what a head's width is compiled for.
fn cases<T: Copy>(tile: T, head_dim: usize) -> Vec<(String, Options<T>)> {
    let case =
        |name: &str, capped, windowed| (format!("{head_dim}{name}"), Options { tile, capped, windowed });
    let mut cases = vec![case("", false, false)];
    if head_dim == 128 {
        cases.extend([case("_capped", true, false), case("_windowed", false, true)]);
    }
    cases
}

/// A batch of documents of 150 and 50 tokens, in blocks of `rows`.
fn kernel(name: &str, element: cubecl::ir::ElemType, head_dim: usize, rows: usize) -> Kernel {
    let blocks = 150usize.div_ceil(rows) + 50usize.div_ceil(rows);
    let sizes = [
        ("tokens", 200),
        ("heads", 8),
        ("kv_heads", 2),
        ("head_dim", head_dim),
        ("blocks", blocks),
        ("ceil(tokens*heads/16)", 100),
    ];
    Kernel::new(name, &[element], sizes)
}

/// `kernel` with the buffers and scalars of a pass. The cap and the window are 0 where there is none.
fn listed<T>(kernel: Kernel, pass: Pass, e: cubecl::ir::ElemType, options: &Options<T>) -> Kernel {
    let (of_queries, of_keys) = ("tokens, heads*head_dim", "tokens, kv_heads*head_dim");
    let kernel = kernel.buffer("q", e, of_queries).buffer("k", e, of_keys).buffer("v", e, of_keys);
    let kernel = match pass {
        Pass::Forward => kernel,
        Pass::Queries | Pass::Keys => kernel
            .buffer("dout", e, of_queries)
            .buffer("lse", F32, "tokens, heads")
            .buffer("delta", F32, "tokens, heads"),
    };
    let kernel = kernel.buffer("tokens", U32, "tokens").buffer("blocks", U32, "blocks, 4");
    let kernel = match pass {
        Pass::Forward => kernel.buffer("out", e, of_queries).buffer("lse", F32, "tokens, heads"),
        Pass::Queries => kernel.buffer("dq", e, of_queries),
        Pass::Keys => kernel.buffer("dk", e, of_keys).buffer("dv", e, of_keys),
    };
    kernel
        .size("blocks")
        .size("heads")
        .size("kv_heads")
        .scalar("cap", if options.capped { 30.0f32 } else { 0.0 })
        .named_size("window", if options.windowed { 40 } else { 0 })
        .cubes(if matches!(pass, Pass::Keys) { "blocks*kv_heads" } else { "blocks*heads" })
}

/// Writes a kernel for options that may depend on the device; one `()` for each buffer.
macro_rules! write {
    ($listed:expr, $e:expr, $options:expr, $kernel:path, $($buffer:tt)*) => {
        $listed.write(|k, p, t, b| {
            use $kernel as Kernel;
            let options = $options(&p);
            Kernel::new(k, p, t, $(b $buffer,)* (), (), (), (), (), options, $e)
        })
    };
}

#[test]
fn hip_text() {
    let cases_of_types = [64, 80, 96, 128, 256].map(|head_dim| (BF16, head_dim)).into_iter();
    for (e, head_dim) in cases_of_types.chain([(F32, 64), (F32, 128)]) {
        let tile = |pass| variants::table(pass, head_dim, LDS).expect("the kernels take this width");
        kernel(&format!("attention_delta_{head_dim}"), e, head_dim, 64)
            .buffer("out", e, "tokens, heads*head_dim")
            .buffer("dout", e, "tokens, heads*head_dim")
            .buffer("delta", F32, "tokens, heads")
            .size("tokens*heads")
            .cubes("ceil(tokens*heads/16)")
            .write(|k, p, t, b| {
                backward::delta_kernel::DeltaKernel::new(k, p, t, b(), b(), b(), (), head_dim, e)
            });
        let list = |kind: &str, pass, name: &str, options: &Options<tile::Tile>| {
            let kernel = kernel(&format!("attention_{kind}_{name}"), e, head_dim, options.tile.rows);
            listed(kernel, pass, e, options)
        };
        for (name, options) in cases(tile(Pass::Forward), head_dim) {
            let listed = list("forward", Pass::Forward, &name, &options);
            write!(listed, e, |_: &_| options, forward::forward_kernel::ForwardKernel, ()()()()()()());
        }
        for (name, options) in cases(tile(Pass::Queries), head_dim) {
            let listed = list("dq", Pass::Queries, &name, &options);
            write!(listed, e, |_: &_| options, backward::dq_kernel::DqKernel, ()()()()()()()()());
        }
        for (name, options) in cases(tile(Pass::Keys), head_dim) {
            let listed = list("dkv", Pass::Keys, &name, &options);
            write!(listed, e, |_: &_| options, backward::dkv_kernel::DkvKernel, ()()()()()()()()()());
        }
    }
}

/// Every tile that is offered to measuring on an MI300X.
#[test]
fn hip_text_on_matrix_units() {
    use matrix::{backward, forward};
    let mi300x = properties("gfx942");
    for head_dim in [64, 128, 256] {
        for pass in [Pass::Forward, Pass::Queries, Pass::Keys] {
            let offered = variants(pass, head_dim, BF16, &mi300x);
            let tiles = offered.into_iter().filter_map(|variant| match variant {
                Variant::Matrix(tile) => Some(tile),
                Variant::Plain(_) => None,
            });
            let mut count = 0;
            for tile in tiles {
                count += 1;
                let kind = match pass {
                    Pass::Forward => "forward",
                    Pass::Queries => "dq",
                    Pass::Keys => "dkv",
                };
                let name = format!("attention_matrix_{kind}_{head_dim}_{}x{}", tile.rows, tile.columns);
                let options = Options { tile, capped: false, windowed: false };
                let kernel = kernel(&name, BF16, head_dim, tile.rows).on_matrix_units();
                let listed = listed(kernel, pass, BF16, &options);
                // The wave's width decides how a cube is shared.
                let of = |device: &cubecl::ir::DeviceProperties| {
                    let planes = UNITS / device.hardware.plane_size_max as usize;
                    Options { tile: Fragments { planes, ..tile }, ..options }
                };
                match pass {
                    Pass::Forward => {
                        use forward::matrix_forward_kernel;
                        write!(listed, BF16, of, matrix_forward_kernel::MatrixForwardKernel, ()()()()()()());
                    }
                    Pass::Queries => {
                        use backward::matrix_dq_kernel;
                        write!(listed, BF16, of, matrix_dq_kernel::MatrixDqKernel, ()()()()()()()()());
                    }
                    Pass::Keys => {
                        use backward::matrix_dkv_kernel;
                        write!(listed, BF16, of, matrix_dkv_kernel::MatrixDkvKernel, ()()()()()()()()()());
                    }
                }
            }
            assert!(count > 0, "{pass} has tiles for heads of {head_dim}");
        }
    }
}
