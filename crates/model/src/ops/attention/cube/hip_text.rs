//! The kernels listed for [`crate::ops::cube::hip_text`].

use super::mask::Options;
use super::variants::{self, Pass};
use super::*;
use crate::ops::cube::hip_text::{BF16, F32, Kernel, U32};

/// Bytes of an AMD compute unit's local memory.
const LDS: usize = 65_536;

/// What a kernel is compiled for, by name.
fn cases_of(head_dim: usize) -> Vec<(String, bool, bool)> {
    let mut variants = vec![(head_dim.to_string(), false, false)];
    if head_dim == 128 {
        variants.push(("128_capped".to_owned(), true, false));
        variants.push(("128_windowed".to_owned(), false, true));
    }
    variants
}

/// A batch of documents of 150 and 50 tokens.
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

/// The scalars that end all but delta's: the cap and the window are 0 where there is none.
fn scalars(kernel: Kernel, capped: bool, windowed: bool) -> Kernel {
    let cap = if capped { 30.0f32 } else { 0.0 };
    let kernel = kernel.size("blocks").size("heads").size("kv_heads").scalar("cap", cap);
    kernel.named_size("window", if windowed { 40 } else { 0 })
}

#[test]
fn hip_text() {
    let cases = [64, 80, 96, 128, 256].map(|head_dim| (BF16, head_dim)).into_iter();
    for (e, head_dim) in cases.chain([(F32, 64), (F32, 128)]) {
        let tile = |pass| variants::table(pass, head_dim, LDS).expect("the kernels take this width");
        let (forward, queries, keys) = (tile(Pass::Forward), tile(Pass::Queries), tile(Pass::Keys));
        kernel(&format!("attention_delta_{head_dim}"), e, head_dim, forward.rows)
            .buffer("out", e, "tokens, heads*head_dim")
            .buffer("dout", e, "tokens, heads*head_dim")
            .buffer("delta", F32, "tokens, heads")
            .size("tokens*heads")
            .cubes("ceil(tokens*heads/16)")
            .write(|k, p, t, b| {
                backward::delta_kernel::DeltaKernel::new(k, p, t, b(), b(), b(), (), head_dim, e)
            });
        for (name, capped, windowed) in cases_of(head_dim) {
            let options = |tile| Options { tile, capped, windowed };
            let listed = kernel(&format!("attention_forward_{name}"), e, head_dim, forward.rows)
                .buffer("q", e, "tokens, heads*head_dim")
                .buffer("k", e, "tokens, kv_heads*head_dim")
                .buffer("v", e, "tokens, kv_heads*head_dim")
                .buffer("tokens", U32, "tokens")
                .buffer("blocks", U32, "blocks, 4")
                .buffer("out", e, "tokens, heads*head_dim")
                .buffer("lse", F32, "tokens, heads");
            scalars(listed, capped, windowed).cubes("blocks*heads").write(|k, p, t, b| {
                let options = options(forward);
                forward::forward_kernel::ForwardKernel::new(
                    k,
                    p,
                    t,
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    (),
                    (),
                    (),
                    (),
                    (),
                    options,
                    e,
                )
            });
            let dq = kernel(&format!("attention_dq_{name}"), e, head_dim, queries.rows)
                .buffer("q", e, "tokens, heads*head_dim")
                .buffer("k", e, "tokens, kv_heads*head_dim")
                .buffer("v", e, "tokens, kv_heads*head_dim")
                .buffer("dout", e, "tokens, heads*head_dim")
                .buffer("lse", F32, "tokens, heads")
                .buffer("delta", F32, "tokens, heads")
                .buffer("tokens", U32, "tokens")
                .buffer("blocks", U32, "blocks, 4")
                .buffer("dq", e, "tokens, heads*head_dim");
            scalars(dq, capped, windowed).cubes("blocks*heads").write(|k, p, t, b| {
                let options = options(queries);
                backward::dq_kernel::DqKernel::new(
                    k,
                    p,
                    t,
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    (),
                    (),
                    (),
                    (),
                    (),
                    options,
                    e,
                )
            });
            let dkv = kernel(&format!("attention_dkv_{name}"), e, head_dim, keys.rows)
                .buffer("q", e, "tokens, heads*head_dim")
                .buffer("k", e, "tokens, kv_heads*head_dim")
                .buffer("v", e, "tokens, kv_heads*head_dim")
                .buffer("dout", e, "tokens, heads*head_dim")
                .buffer("lse", F32, "tokens, heads")
                .buffer("delta", F32, "tokens, heads")
                .buffer("tokens", U32, "tokens")
                .buffer("blocks", U32, "blocks, 4")
                .buffer("dk", e, "tokens, kv_heads*head_dim")
                .buffer("dv", e, "tokens, kv_heads*head_dim");
            scalars(dkv, capped, windowed).cubes("blocks*kv_heads").write(|k, p, t, b| {
                let options = options(keys);
                backward::dkv_kernel::DkvKernel::new(
                    k,
                    p,
                    t,
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    b(),
                    (),
                    (),
                    (),
                    (),
                    (),
                    options,
                    e,
                )
            });
        }
    }
}
