//! Implementations of [`rope`].

use burn::tensor::{Int, Tensor};

use super::{Implementation, everywhere, experiments, plain};
use crate::ops::rope::{self, Direction, Table};

/// As [`rope::apply`]: `x, positions, table, head_dim, direction` -> `x` rotated.
pub type Rope = fn(Tensor<2>, &Tensor<1, Int>, &Table, usize, Direction) -> Tensor<2>;

/// All of them, experiments last.
pub fn implementations() -> Vec<Implementation<Rope>> {
    let mut all: Vec<Implementation<Rope>> = vec![
        Implementation { name: "fused", runs_on: everywhere, functions: rope::apply },
        Implementation {
            name: "plain",
            runs_on: everywhere,
            functions: |x, positions, table, head_dim, direction| {
                rope::apply(plain(x), positions, table, head_dim, direction).inner()
            },
        },
    ];
    all.extend(experiments());
    all
}

// A name a line: `mine` is the file `mine.rs` of this folder, which has
// `pub(super) const IMPLEMENTATION: Implementation<Rope>`.
experiments! { Rope:
}
