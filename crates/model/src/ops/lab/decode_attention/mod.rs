//! Implementations of [`decode_attention`](crate::ops::decode_attention).

use burn::tensor::Tensor;

use super::{Implementation, experiments, on_cpu, on_gpu};
use crate::ops::attention::Spec;
use crate::ops::decode_attention::{Cache, Shape, Slot, Storage};

/// Attention over a filled cache, as [`Cache::attend`]: `q, slots, spec` -> `out`.
pub type Attend = Box<dyn Fn(Tensor<2>, &[Slot], &Spec) -> Tensor<2>>;

/// Fills a cache with `k` and `v`, `[slots, Hkv * D]`, and gives the attention over it.
pub type DecodeAttention = fn(Shape, Storage, [Tensor<2>; 2], &[Slot]) -> Attend;

/// All of them, experiments last.
pub fn implementations() -> Vec<Implementation<DecodeAttention>> {
    let mut all: Vec<Implementation<DecodeAttention>> = vec![Implementation {
        name: "fused",
        // The CPU's cache takes no float16.
        runs_on: |device, dtype| on_cpu(device, dtype) || on_gpu(device, dtype),
        functions: |shape, storage, [k, v], slots| {
            let mut cache = Cache::new(shape, storage, &k.device());
            cache.write(k, v, slots);
            Box::new(move |q, slots, spec| cache.attend(q, slots, spec))
        },
    }];
    all.extend(experiments());
    all
}

// A name a line: `mine` is the file `mine.rs` of this folder, which has
// `pub(super) const IMPLEMENTATION: Implementation<DecodeAttention>`.
experiments! { DecodeAttention:
}
