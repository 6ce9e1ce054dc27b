//! The kernels listed for [`crate::ops::cube::hip_text`].

use cubecl::ir::ElemType;

use super::attend::{self, Options};
use super::{MAX_TOGETHER, write};
use crate::ops::cube::hip_text::{BF16, F32, Kernel, U32};

const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 128;

/// Two rows that see 300 and 100 positions of two sequences: three parts.
fn kernel(name: &str, types: &[ElemType]) -> Kernel {
    Kernel::new(
        name,
        types,
        [
            ("rows", 2),
            ("sequences", 2),
            ("tasks", 3),
            ("heads", HEADS),
            ("kv_heads", KV_HEADS),
            ("head_dim", HEAD_DIM),
            ("words", HEAD_DIM / 4),
            ("capacity", 512),
            ("together", MAX_TOGETHER),
            ("tasks*4 + rows*2", 16),
            ("tasks*heads/together", 3 * HEADS / MAX_TOGETHER),
        ],
    )
}

#[test]
fn hip_text() {
    for e in [BF16, F32] {
        kernel("decode_store", &[e])
            .buffer("k", e, "rows, kv_heads*head_dim")
            .buffer("v", e, "rows, kv_heads*head_dim")
            .buffer("places", U32, "rows, 2")
            .buffer("keys", e, "sequences, kv_heads, head_dim, capacity")
            .buffer("values", e, "sequences, kv_heads, capacity, head_dim")
            .size("kv_heads")
            .size("head_dim")
            .size("capacity")
            .units("rows*kv_heads*head_dim")
            .write(|k, p, t, b| {
                write::store_kernel::StoreKernel::new(k, p, t, b(), b(), b(), b(), b(), (), (), (), [e; 3])
            });
        kernel("decode_quantize", &[e])
            .buffer("k", e, "rows, kv_heads*head_dim")
            .buffer("v", e, "rows, kv_heads*head_dim")
            .buffer("places", U32, "rows, 2")
            .buffer("keys", U32, "sequences, kv_heads, words, capacity")
            .buffer("values", U32, "sequences, kv_heads, capacity, words")
            .buffer("scales", U32, "sequences, kv_heads, capacity")
            .size("rows")
            .named_size("runs", KV_HEADS)
            .size("kv_heads")
            .size("head_dim")
            .size("capacity")
            .cubes("rows*kv_heads")
            .write(|k, p, t, b| {
                write::quantize_kernel::QuantizeKernel::new(
                    k,
                    p,
                    t,
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
                    [e; 2],
                )
            });
        for (name, int8) in [("decode_attend", false), ("decode_attend_int8", true)] {
            let (stored, words) = if int8 { (U32, "words") } else { (e, "head_dim") };
            let options = Options {
                int8,
                scale_per_head: int8,
                capped: false,
                head_dim: HEAD_DIM,
                together: MAX_TOGETHER,
            };
            let scales = if int8 { "sequences, kv_heads, capacity" } else { "tasks*4 + rows*2" };
            kernel(name, &[e])
                .buffer("q", e, "rows, heads*head_dim")
                .buffer("keys", stored, &format!("sequences, kv_heads, {words}, capacity"))
                .buffer("values", stored, &format!("sequences, kv_heads, capacity, {words}"))
                .buffer("scales", U32, scales)
                .buffer("plan", U32, "tasks*4 + rows*2")
                .buffer("sums", F32, "tasks, heads, head_dim")
                .buffer("softmax", F32, "tasks, heads, 2")
                .size("tasks")
                .size("heads")
                .size("kv_heads")
                .size("capacity")
                .scalar("cap", 1.0f32)
                .cubes("tasks*heads/together")
                .write(|k, p, t, b| {
                    attend::attend_kernel::AttendKernel::new(
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
                        [e, stored],
                    )
                });
        }
        kernel("decode_merge", &[e])
            .buffer("sums", F32, "tasks, heads, head_dim")
            .buffer("softmax", F32, "tasks, heads, 2")
            .buffer("plan", U32, "tasks*4 + rows*2")
            .buffer("out", e, "rows, heads*head_dim")
            .size("tasks")
            .size("rows")
            .size("heads")
            .size("head_dim")
            .cubes("rows*heads")
            .write(|k, p, t, b| {
                attend::merge_kernel::MergeKernel::new(k, p, t, b(), b(), b(), b(), (), (), (), (), e)
            });
    }
}
