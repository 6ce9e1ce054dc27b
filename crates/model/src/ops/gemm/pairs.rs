//! bfloat16 in pairs, for kernels that multiply two neighbours of the inner dimension at once:
//! `packed[panel][p][i] = (a[panel * H + i, 2 p], a[panel * H + i, 2 p + 1])`, the first in the low half of 32 bits that pass
//! for a float32. Missing elements and rows are zeros.

use std::marker::PhantomData;

use half::bf16;

use super::pack::{BLOCK, Source, Transpose};
use super::{Elements, View};
use crate::ops::real::Real;

/// Elements that are bfloat16 or become it.
trait Element: Copy {
    fn bits(self) -> u16;
}

impl Element for bf16 {
    #[inline(always)]
    fn bits(self) -> u16 {
        self.to_bits()
    }
}

impl Element for f32 {
    #[inline(always)]
    fn bits(self) -> u16 {
        <bf16 as Real>::from_f32(self).to_bits()
    }
}

/// Two neighbours that become one cell.
struct Pair<E>(PhantomData<E>);

impl<E: Element> Source for Pair<E> {
    type Stored = [E; 2];

    #[inline(always)]
    fn widen([first, second]: [E; 2]) -> f32 {
        f32::from_bits(u32::from(first.bits()) | u32::from(second.bits()) << 16)
    }
}

/// Packs panels of `H` rows of bfloat16 elements, or of float32 elements that are to be rounded.
#[inline(always)]
pub(super) fn pack_pairs<const H: usize, T: Transpose>(a: View, packed: &mut [f32]) {
    match a.elements {
        Elements::Bf16(elements) => panels::<H, T, bf16>(a, elements, bf16::ZERO, packed),
        Elements::Rounded(elements) | Elements::F32(elements) => {
            panels::<H, T, f32>(a, elements, 0.0, packed)
        }
    }
}

#[inline(always)]
fn panels<const H: usize, T: Transpose, E: Element>(a: View, elements: &[E], zero: E, packed: &mut [f32]) {
    let cells = a.cols.div_ceil(2);
    let whole = a.rows / H * H;
    let (full, last) = packed.split_at_mut(whole * cells);
    match (a.row_stride, a.col_stride) {
        (1, stride) => interleaved::<H, E>(full, a.cols, elements, stride, zero),
        (stride, 1) => {
            for (i, panel) in full.chunks_exact_mut(cells * H).enumerate() {
                let row = |j| &elements[(i * H + j) * stride..][..a.cols];
                let panel = panel.as_chunks_mut().0;
                T::transpose::<H, Pair<E>>(
                    std::array::from_fn(|j| row(j).as_chunks().0),
                    &mut panel[..a.cols / 2],
                );
                if a.cols % 2 == 1 {
                    panel[cells - 1] = std::array::from_fn(|j| Pair::widen([row(j)[a.cols - 1], zero]));
                }
            }
        }
        _ => unreachable!("a view is contiguous by rows or by columns"),
    }
    for (p, out) in last.as_chunks_mut::<H>().0.iter_mut().enumerate() {
        let at = |i: usize, p: usize| match i < a.rows && p < a.cols {
            true => elements[i * a.row_stride + p * a.col_stride],
            false => zero,
        };
        *out = std::array::from_fn(|i| Pair::widen([at(whole + i, 2 * p), at(whole + i, 2 * p + 1)]));
    }
}

/// Packs panels whose H elements of one p lie side by side.
#[inline(always)]
fn interleaved<const H: usize, E: Element>(
    packed: &mut [f32],
    depth: usize,
    elements: &[E],
    stride: usize,
    zero: E,
) {
    let cells = depth.div_ceil(2);
    for start in (0..cells).step_by(BLOCK) {
        let end = cells.min(start + BLOCK);
        for (i, panel) in packed.chunks_exact_mut(cells * H).enumerate() {
            for (p, out) in (start..end).zip(&mut panel.as_chunks_mut::<H>().0[start..end]) {
                let run = |p: usize| elements[p * stride + i * H..][..H].as_chunks::<H>().0[0];
                let first = run(2 * p);
                let second = if 2 * p + 1 < depth { run(2 * p + 1) } else { [zero; H] };
                for (out, (first, second)) in out.iter_mut().zip(first.into_iter().zip(second)) {
                    *out = Pair::widen([first, second]);
                }
            }
        }
    }
}
