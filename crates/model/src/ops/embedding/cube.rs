//! The lookup on a GPU. The backward finds the places of an id by comparing ids, so that neither a sort nor atomics are
//! needed: the cube of an id's first place adds up the rows of all its places, in their order.

use burn::tensor::{DType, Tensor};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::ops::cube::{
    UNITS, arg, cube_dim, dims, element, empty, float, grid, integers, largest, len, units,
};

pub(super) fn forward(ids: &CubeTensor, table: &CubeTensor) -> CubeTensor {
    let [vocab, cols] = dims(table);
    let y = empty([len(ids), cols], table.dtype, table);
    lookup_kernel::launch(
        &table.client,
        units(len(&y)),
        cube_dim(),
        arg(ids),
        arg(table),
        arg(&y),
        vocab,
        cols,
        f32::NAN,
        [element(table), element(ids)],
    );
    y
}

pub(super) fn backward(ids: &Tensor<1, burn::tensor::Int>, dy: &CubeTensor, vocab: usize) -> CubeTensor {
    let cols = dims(dy)[1];
    let table = float(Tensor::<2>::zeros([vocab, cols], (&ids.device(), DType::F32)));
    let ids = integers(ids);
    add_rows_kernel::launch(
        &dy.client,
        grid(len(&ids)),
        cube_dim(),
        arg(&ids),
        arg(dy),
        arg(&table),
        vocab,
        cols,
        [element(dy), element(&ids)],
    );
    table
}

/// `y[t] = table[ids[t]]`, NaN for an id outside the table.
#[cube(launch)]
pub(crate) fn lookup_kernel<E: Float, I: Int>(
    ids: &[I],
    table: &[E],
    y: &mut [E],
    vocab: usize,
    cols: usize,
    nan: f32,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let i = ABSOLUTE_POS;
    if i < y.len() {
        let id = u32::cast_from(ids[i / cols]) as usize; // a negative one wraps beyond the table
        if id < vocab {
            y[i] = table[id * cols + i % cols];
        } else {
            y[i] = E::cast_from(nan);
        }
    }
}

/// `table[v] = sum over t with ids[t] = v of dy[t]`: a cube per place, which has nothing to do unless its id is new there.
#[cube(launch)]
pub(crate) fn add_rows_kernel<E: Float, I: Int>(
    ids: &[I],
    dy: &[E],
    table: &mut [f32],
    vocab: usize,
    cols: usize,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let tokens = ids.len();
    if CUBE_POS < tokens {
        let id = u32::cast_from(ids[CUBE_POS]);
        let mut seen = f32::new(0.0);
        let mut t = UNIT_POS as usize;
        while t < CUBE_POS {
            if u32::cast_from(ids[t]) == id {
                seen = f32::new(1.0);
            }
            t += UNITS;
        }
        let row = id as usize;
        if largest(seen) == 0.0 && row < vocab {
            let mut col = UNIT_POS as usize;
            while col < cols {
                let mut total = f32::new(0.0);
                for t in CUBE_POS..tokens {
                    if u32::cast_from(ids[t]) == id {
                        total += f32::cast_from(dy[t * cols + col]);
                    }
                }
                table[row * cols + col] = total;
                col += UNITS;
            }
        }
    }
}

#[cfg(all(test, feature = "rocm"))]
mod hip {
    use crate::ops::cube::hip_text::{BF16, F32, I32, Kernel};

    use super::*;

    #[test]
    fn hip_text() {
        let sizes = [("tokens", 50), ("vocab", 1000), ("cols", 512)];
        for e in [BF16, F32] {
            Kernel::new("embedding_forward", &[e], sizes)
                .buffer("ids", I32, "tokens")
                .buffer("table", e, "vocab, cols")
                .buffer("y", e, "tokens, cols")
                .size("vocab")
                .size("cols")
                .scalar("nan", f32::NAN)
                .units("tokens*cols")
                .write(|k, p, t, b| {
                    lookup_kernel::LookupKernel::new(k, p, t, b(), b(), b(), (), (), (), [e, I32])
                });
            Kernel::new("embedding_backward", &[e], sizes)
                .buffer("ids", I32, "tokens")
                .buffer("dy", e, "tokens, cols")
                .buffer("table", F32, "vocab, cols")
                .size("vocab")
                .size("cols")
                .cubes("tokens")
                .write(|k, p, t, b| {
                    add_rows_kernel::AddRowsKernel::new(k, p, t, b(), b(), b(), (), (), [e, I32])
                });
        }
    }
}
