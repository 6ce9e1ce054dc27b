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

#[cfg(all(test, feature = "rocm"))]
mod hip {
    use crate::ops::cube::hip_text::{BF16, F32, I32, Kernel};

    use super::*;

    #[test]
    fn hip_text() {
        let sizes =
            [("tokens", 50), ("heads", 8), ("head_dim", 128), ("max_position", 2048), ("head_dim/2", 64)];
        for (e, interleaved) in [(BF16, false), (BF16, true), (F32, false), (F32, true)] {
            let name = if interleaved { "rope_interleaved" } else { "rope_halves" };
            Kernel::new(name, &[e], sizes)
                .buffer("x", e, "tokens, heads*head_dim")
                .buffer("positions", I32, "tokens")
                .buffer("cos", F32, "max_position, head_dim/2")
                .buffer("sin", F32, "max_position, head_dim/2")
                .scalar("sign", 1.0f32)
                .size("heads*head_dim/2")
                .size("max_position")
                .size("head_dim/2")
                .scalar("nan", f32::NAN)
                .units("tokens*heads*head_dim/2")
                .write(|k, p, t, b| {
                    let types = [e, I32];
                    rotate_kernel::RotateKernel::new(
                        k,
                        p,
                        t,
                        b(),
                        b(),
                        b(),
                        b(),
                        (),
                        (),
                        (),
                        (),
                        (),
                        interleaved,
                        types,
                    )
                });
        }
    }
}
