//! The innermost kernels: a panel of rows times a panel of columns, kept in registers.

use burn::tensor::DType;
use half::bf16;

use super::pack::{Pack, Portable, pack};
use crate::ops::real::Real;

/// A kernel and the panel sizes that it wants.
pub(super) struct Kernel {
    /// Rows of a panel of a.
    pub(super) rows: usize,
    /// Columns of a panel of b.
    pub(super) cols: usize,
    /// Longest stretch of the inner dimension, in cells. Each stretch reads and writes all of the output once.
    pub(super) depth: usize,
    /// Neighbours of the inner dimension in one packed cell: 1, or 2 where bfloat16 is multiplied in pairs.
    pub(super) per_cell: usize,
    /// Multiplies packed panels `a: [cells, rows]` and `b: [cells, cols]` into a tile.
    ///
    /// # Safety
    /// The CPU must have the kernel's instructions; the tile must be valid for writes and exclusively the caller's.
    pub(super) run: unsafe fn(a: &[f32], b: &[f32], tile: Tile),
    /// Packs panels of `rows`.
    pub(super) pack_rows: Pack,
    /// Packs panels of `cols`.
    pub(super) pack_cols: Pack,
}

/// A part of the output.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) start: Place,
    pub(super) row_stride: usize,
    /// At most the kernel's.
    pub(super) rows: usize,
    /// At most the kernel's.
    pub(super) cols: usize,
    /// Add to what the tile holds, else overwrite it. Never set for a rounded output.
    pub(super) add: bool,
}

/// An element of the output: float32, or bfloat16 to which a sum is rounded.
#[derive(Clone, Copy)]
pub(super) enum Place {
    F32(*mut f32),
    Bf16(*mut bf16),
}

impl Place {
    pub(super) fn of<E: Real>(elements: &mut [E]) -> Self {
        match E::DTYPE {
            DType::BF16 => Self::Bf16(elements.as_mut_ptr().cast()),
            _ => Self::F32(elements.as_mut_ptr().cast()),
        }
    }

    /// # Safety
    /// The element must exist.
    #[inline(always)]
    pub(super) unsafe fn skip(self, count: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32(place) => Self::F32(place.add(count)),
                Self::Bf16(place) => Self::Bf16(place.add(count)),
            }
        }
    }
}

impl Kernel {
    /// The fastest kernel that this CPU runs; `of_bf16` when both operands are bfloat16 or are to be rounded to it.
    pub(super) fn best(of_bf16: bool) -> &'static Self {
        let _ = of_bf16; // not of interest on every architecture
        #[cfg(target_arch = "x86_64")]
        {
            use crate::ops::vector::{Level, level};
            match level() {
                Level::Avx512 if of_bf16 && is_x86_feature_detected!("avx512bf16") => {
                    return &super::x86::AVX512_BF16;
                }
                Level::Avx512 => return &super::x86::AVX512,
                Level::Avx2 => return &super::x86::AVX2,
                Level::Baseline => {}
            }
        }
        &PORTABLE
    }
}

pub(super) static PORTABLE: Kernel = Kernel {
    rows: 4,
    cols: 8,
    depth: 512,
    per_cell: 1,
    run: portable,
    pack_rows: pack::<4, Portable>,
    pack_cols: pack::<8, Portable>,
};

/// Plain Rust, which compilers turn into 128-bit vector code.
unsafe fn portable(a: &[f32], b: &[f32], tile: Tile) {
    let mut sums = [[0.0f32; 8]; 4];
    for (a, b) in a.as_chunks::<4>().0.iter().zip(b.as_chunks::<8>().0) {
        for (sums, a) in sums.iter_mut().zip(a) {
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    // SAFETY: the caller's promise about the tile.
    unsafe { tile.write(&sums) };
}

impl Tile {
    /// Writes the part of `sums` that lies in the tile.
    ///
    /// # Safety
    /// As for [`Kernel::run`].
    #[inline(always)]
    pub(super) unsafe fn write<const R: usize, const C: usize>(self, sums: &[[f32; C]; R]) {
        for (i, sums) in sums.iter().enumerate().take(self.rows) {
            // SAFETY: row i of the tile exists, and the tile is exclusively the caller's.
            unsafe {
                match self.start.skip(i * self.row_stride) {
                    Place::F32(row) => {
                        for (c, sum) in std::slice::from_raw_parts_mut(row, self.cols).iter_mut().zip(sums) {
                            *c = if self.add { *c + sum } else { *sum };
                        }
                    }
                    Place::Bf16(row) => {
                        for (c, sum) in std::slice::from_raw_parts_mut(row, self.cols).iter_mut().zip(sums) {
                            *c = Real::from_f32(*sum);
                        }
                    }
                }
            }
        }
    }
}
