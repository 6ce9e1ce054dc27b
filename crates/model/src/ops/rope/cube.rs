//! The rotation on a GPU, in place: a unit per pair of features.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::Direction;
use crate::ops::cube::{arg, cube_dim, dims, element, owned, units};

/// How to rotate.
pub(super) struct Rotation {
    pub(super) cos: CubeTensor, // [max_position, head_dim / 2] float32
    pub(super) sin: CubeTensor,
    pub(super) interleaved: bool,
    pub(super) head_dim: usize,
    pub(super) direction: Direction,
}

pub(super) fn apply(x: CubeTensor, positions: &CubeTensor, rotation: &Rotation) -> CubeTensor {
    let x = owned(x);
    let [tokens, features] = dims(&x);
    let sign = if rotation.direction == Direction::Forward { 1.0f32 } else { -1.0 };
    rotate_kernel::launch(
        &x.client,
        units(tokens * features / 2),
        cube_dim(),
        arg(&x),
        arg(positions),
        arg(&rotation.cos),
        arg(&rotation.sin),
        sign,
        features / 2,
        dims(&rotation.cos)[0],
        rotation.head_dim / 2,
        f32::NAN,
        rotation.interleaved,
        [element(&x), element(positions)],
    );
    x
}

/// `(a, b) -> (a cos - b sin, b cos + a sin)`; NaN for a position without an angle.
#[cube(launch)]
pub(crate) fn rotate_kernel<E: Float, I: Int>(
    x: &mut [E],
    positions: &[I],
    cos: &[f32],
    sin: &[f32],
    sign: f32,
    pairs: usize, // of a token
    max_position: usize,
    half: usize,
    nan: f32,
    #[comptime] interleaved: bool,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let token = ABSOLUTE_POS / pairs;
    if token < positions.len() {
        let pair = ABSOLUTE_POS % pairs;
        let i = pair % half;
        let head = 2 * (ABSOLUTE_POS - i);
        let a = if interleaved { head + 2 * i } else { head + i };
        let b = if interleaved { a + 1 } else { a + half };
        let position = u32::cast_from(positions[token]) as usize; // a negative one wraps beyond the table
        if position < max_position {
            let (c, s) = (cos[position * half + i], sign * sin[position * half + i]);
            let (va, vb) = (f32::cast_from(x[a]), f32::cast_from(x[b]));
            x[a] = E::cast_from(va * c - vb * s);
            x[b] = E::cast_from(vb * c + va * s);
        } else {
            x[a] = E::cast_from(nan);
            x[b] = E::cast_from(nan);
        }
    }
}
