//! Copies of operands in the order in which the kernel reads them: `packed[panel][p][i] = a[panel * H + i, p]`, widened to
//! float32, the last panel padded with zeros. Columns are packed as the rows of the transpose.

use half::bf16;

use super::{Elements, View};
use crate::ops::real::Real;

/// Packs panels of one height, compiled for one instruction set.
///
/// # Safety
/// The CPU must have the instructions.
pub(super) type Pack = unsafe fn(a: View, packed: &mut [f32]);

/// Columns that are packed for one panel before the next panel's turn: the panels' elements are neighbours in memory.
pub(super) const BLOCK: usize = 8;

/// Where elements come from, and how they become float32.
pub(super) trait Source {
    type Stored: Copy;

    fn widen(value: Self::Stored) -> f32;
}

pub(super) struct Float32;
pub(super) struct Bfloat16;
/// float32 that is rounded to bfloat16 on the way.
pub(super) struct RoundedToBfloat16;

impl Source for Float32 {
    type Stored = f32;

    #[inline(always)]
    fn widen(value: f32) -> f32 {
        value
    }
}

impl Source for Bfloat16 {
    type Stored = bf16;

    #[inline(always)]
    fn widen(value: bf16) -> f32 {
        Real::to_f32(value)
    }
}

impl Source for RoundedToBfloat16 {
    type Stored = f32;

    #[inline(always)]
    fn widen(value: f32) -> f32 {
        <bf16 as Real>::from_f32(value).to_f32()
    }
}

/// Turns `H` rows of elements that lie side by side into a panel, `packed[p][i] = rows[i][p]`.
pub(super) trait Transpose {
    fn transpose<const H: usize, S: Source>(rows: [&[S::Stored]; H], panel: &mut [[f32; H]]);
}

/// Element by element.
pub(super) struct Portable;

impl Transpose for Portable {
    #[inline(always)]
    fn transpose<const H: usize, S: Source>(rows: [&[S::Stored]; H], panel: &mut [[f32; H]]) {
        for (p, out) in panel.iter_mut().enumerate() {
            *out = std::array::from_fn(|i| S::widen(rows[i][p]));
        }
    }
}

/// Packs panels of `H` rows.
#[inline(always)]
pub(super) fn pack<const H: usize, T: Transpose>(a: View, packed: &mut [f32]) {
    match a.elements {
        Elements::F32(elements) => panels::<H, T, Float32>(a, elements, packed),
        Elements::Bf16(elements) => panels::<H, T, Bfloat16>(a, elements, packed),
        Elements::Rounded(elements) => panels::<H, T, RoundedToBfloat16>(a, elements, packed),
    }
}

#[inline(always)]
fn panels<const H: usize, T: Transpose, S: Source>(a: View, elements: &[S::Stored], packed: &mut [f32]) {
    let whole = a.rows / H * H;
    let (full, last) = packed.split_at_mut(whole * a.cols);
    match (a.row_stride, a.col_stride) {
        (1, stride) => interleaved::<H, S>(full, a.cols, elements, stride),
        (stride, 1) => {
            for (i, panel) in full.chunks_exact_mut(a.cols * H).enumerate() {
                let row = |j| &elements[(i * H + j) * stride..(i * H + j) * stride + a.cols];
                T::transpose::<H, S>(std::array::from_fn(row), panel.as_chunks_mut().0);
            }
        }
        (row_stride, col_stride) => {
            for (i, panel) in full.chunks_exact_mut(a.cols * H).enumerate() {
                for (p, out) in panel.as_chunks_mut::<H>().0.iter_mut().enumerate() {
                    *out = std::array::from_fn(|j| {
                        S::widen(elements[(i * H + j) * row_stride + p * col_stride])
                    });
                }
            }
        }
    }
    for (p, out) in last.as_chunks_mut::<H>().0.iter_mut().enumerate() {
        let value = |i| S::widen(elements[(whole + i) * a.row_stride + p * a.col_stride]);
        *out = std::array::from_fn(|i| if whole + i < a.rows { value(i) } else { 0.0 });
    }
}

/// Packs panels whose H elements of one p lie side by side.
#[inline(always)]
fn interleaved<const H: usize, S: Source>(
    packed: &mut [f32],
    depth: usize,
    elements: &[S::Stored],
    stride: usize,
) {
    for start in (0..depth).step_by(BLOCK) {
        let end = depth.min(start + BLOCK);
        for (i, panel) in packed.chunks_exact_mut(depth * H).enumerate() {
            for (p, out) in (start..end).zip(&mut panel.as_chunks_mut::<H>().0[start..end]) {
                let from = &elements[p * stride + i * H..][..H].as_chunks::<H>().0[0];
                *out = from.map(S::widen);
            }
        }
    }
}
