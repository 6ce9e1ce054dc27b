//! Token embedding: row `ids[t]` of the table becomes row t.
//!
//! ```text
//! forward   y[t, e]      = table[ids[t], e]
//! backward  dtable[v, e] = sum over t with ids[t] = v of dy[t, e]
//! ```
//!
//! MaxText's `use_iota_embed` writes the lookup as a product with a one-hot matrix. Every sum of that product has one term
//! which isn't zero, so both ways give the same numbers and the lookup serves both. The backward pass adds the rows of one
//! id in the order of tokens, in float32: deterministic, without atomics.

mod cpu;
#[cfg(feature = "gpu")]
mod cube;
mod plain;

use burn::tensor::{Int, Tensor};

#[cfg(feature = "gpu")]
use super::cube::tensor;
use super::engine::{Placed, integers, placed};
use crate::profile::{Kind, span};

/// `ids: [T]`, `table: [V, E]` -> `[T, E]` of the table's type. An id outside 0..V gives a row of NaN, as `jnp.take` does.
pub fn forward(ids: &Tensor<1, Int>, table: &Tensor<2>) -> Tensor<2> {
    let _span = span(Kind::Operation, "embedding.forward");
    match placed([table.clone()]) {
        Placed::Host([table]) => cpu::forward(&integers(ids), &table).into_tensor(),
        #[cfg(feature = "gpu")]
        Placed::Cube([table]) => tensor(cube::forward(&super::cube::integers(ids), &table)),
        Placed::Other([table]) => plain::forward(ids, table),
    }
}

/// Gradient of the table. `ids: [T]`, `dy: [T, E]` -> `[vocab, E]` float32. Ids outside 0..vocab are left out.
pub fn backward(ids: &Tensor<1, Int>, dy: Tensor<2>, vocab: usize) -> Tensor<2> {
    let _span = span(Kind::Operation, "embedding.backward");
    match placed([dy]) {
        Placed::Host([dy]) => cpu::backward(&integers(ids), &dy, vocab).into_tensor(),
        #[cfg(feature = "gpu")]
        Placed::Cube([dy]) => tensor(cube::backward(ids, &dy, vocab)),
        Placed::Other([dy]) => plain::backward(ids, dy, vocab),
    }
}
