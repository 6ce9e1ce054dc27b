//! The rotation on slices, in place.

use rayon::prelude::*;

use super::Direction;
use crate::ops::engine::{Host, by_dtype};
use crate::ops::real::Real;
use crate::ops::vector::vectorized;

/// Rows that one task takes.
const ROWS: usize = 64;

/// How to rotate.
pub(super) struct Rotation {
    pub(super) cos: Host, // [max_position, head_dim / 2]
    pub(super) sin: Host,
    pub(super) interleaved: bool,
    pub(super) head_dim: usize,
    pub(super) direction: Direction,
}

pub(super) fn apply(mut x: Host, positions: &[i64], rotation: &Rotation) -> Host {
    let [_, features] = x.dims();
    let half = rotation.head_dim / 2;
    let (cos, sin) = (rotation.cos.values::<f32>(), rotation.sin.values::<f32>());
    let sign = if rotation.direction == Direction::Forward { 1.0 } else { -1.0 };
    by_dtype!(x.dtype(), E => {
        let blocks = x.values_mut::<E>().par_chunks_mut((ROWS * features).max(1));
        blocks.zip(positions.par_chunks(ROWS)).for_each(|(rows, positions)| {
            for (row, &position) in rows.chunks_exact_mut(features).zip(positions) {
                let start = usize::try_from(position).unwrap_or(usize::MAX).saturating_mul(half);
                let angles = start..start.saturating_add(half);
                match (cos.get(angles.clone()), sin.get(angles)) {
                    (Some(cos), Some(sin)) if rotation.interleaved => rotate_neighbours(row, cos, sin, sign),
                    (Some(cos), Some(sin)) => rotate_halves(row, cos, sin, sign),
                    _ => row.fill(E::from_f32(f32::NAN)),
                }
            }
        });
    });
    x
}

vectorized! {
    fn rotate_halves<E: Real>(row: &mut [E], cos: &[f32], sin: &[f32], sign: f32) {
        for head in row.chunks_exact_mut(2 * cos.len()) {
            let (a, b) = head.split_at_mut(cos.len());
            for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                (*a, *b) = rotate(*a, *b, *cos, sign * *sin);
            }
        }
    }
}

vectorized! {
    fn rotate_neighbours<E: Real>(row: &mut [E], cos: &[f32], sin: &[f32], sign: f32) {
        for head in row.chunks_exact_mut(2 * cos.len()) {
            for (([a, b], cos), sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                (*a, *b) = rotate(*a, *b, *cos, sign * *sin);
            }
        }
    }
}

#[inline(always)]
fn rotate<E: Real>(a: E, b: E, cos: f32, sin: f32) -> (E, E) {
    let (a, b) = (a.to_f32(), b.to_f32());
    (E::from_f32(a * cos - b * sin), E::from_f32(b * cos + a * sin))
}
