//! The one matrix product of the CPU kernels: C = A B or C += A B for blocks that fit the caches.
//!
//! ```text
//! C[i, j] = start[i, j] + sum_k A[i, k] B[k, j]
//! ```
//! Lanes run along j; A is read one value at a time and broadcast, with any strides, so that K, V and their
//! transposes, and the transposes of the score block, are all read where they lie. Every element of C is one chain of
//! multiply-adds in order of k: how the work is cut into blocks doesn't change a bit of the result.

use macerator::{Simd, WithSimd, vload_unaligned, vstore_unaligned};

use super::vector::{V, splat};

/// Vectors in a row of a tile, and of a score panel: with 6 rows they make the 12 sums that keep the multiply-add units
/// of a machine with 16 registers busy.
pub(crate) const VECTORS: usize = 2;

/// Columns of a score panel.
pub(crate) fn panel_width<S: Simd>() -> usize {
    VECTORS * S::lanes32()
}

/// Instruction sets with 32 vector registers (AVX-512, NEON) keep twice the sums.
const fn many_registers<S: Simd>() -> bool {
    size_of::<S::Register>() >= 64 || cfg!(target_arch = "aarch64")
}

/// A matrix read with strides: element (i, k) is `data[i * row + k * depth]`.
#[derive(Clone, Copy)]
pub(crate) struct Strided<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row: usize,
    pub(crate) depth: usize,
}

/// What C holds before the sum.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a> {
    /// Nothing: it is overwritten.
    Zero,
    /// A partial sum.
    Sum,
    /// A partial sum whose columns are first multiplied by these factors.
    Scaled(&'a [f32]),
}

/// Operands of a product. `b` and `c` are row-major with the strides given; `columns` is a multiple of the lanes.
pub(crate) struct Product<'a> {
    pub(crate) rows: usize,
    pub(crate) depth: usize,
    pub(crate) columns: usize,
    pub(crate) a: Strided<'a>,
    pub(crate) b: &'a [f32],
    pub(crate) b_stride: usize,
    pub(crate) c: &'a mut [f32],
    pub(crate) c_stride: usize,
    pub(crate) start: Start<'a>,
}

impl Product<'_> {
    /// Computes C.
    #[inline(always)]
    pub(crate) fn run<S: Simd>(self) {
        self.check::<S>();
        // SAFETY: the caller runs in code generated for `S`, so the CPU has its features.
        unsafe {
            if const { many_registers::<S>() } {
                S::vectorize(Blocks::<12> { product: self });
            } else {
                S::vectorize(Blocks::<6> { product: self });
            }
        }
    }

    /// Panics unless every element that the product touches lies in its slice.
    fn check<S: Simd>(&self) {
        assert!(self.rows > 0 && self.columns.is_multiple_of(S::lanes32()));
        assert!((self.rows - 1) * self.c_stride + self.columns <= self.c.len());
        if let Start::Scaled(factors) = self.start {
            assert!(self.columns <= factors.len());
        }
        if self.depth > 0 {
            assert!((self.rows - 1) * self.a.row + (self.depth - 1) * self.a.depth < self.a.data.len());
            assert!((self.depth - 1) * self.b_stride + self.columns <= self.b.len());
        }
    }
}

/// A product cut into tiles of M rows by `VECTORS` vectors.
struct Blocks<'a, const M: usize> {
    product: Product<'a>,
}

impl<const M: usize> WithSimd for Blocks<'_, M> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self) {
        let product = self.product;
        let c = product.c.as_mut_ptr();
        let (lanes, columns) = (S::lanes32(), product.columns);
        let whole = columns / (VECTORS * lanes) * (VECTORS * lanes);
        // A row of tiles; the last one is narrower when the number of vectors is odd.
        macro_rules! tiles {
            ($row:expr, $rows:expr) => {{
                for column in (0..whole).step_by(VECTORS * lanes) {
                    // SAFETY: `Product::check` has passed and the tile lies inside C.
                    unsafe { tile::<S, { $rows }, VECTORS>(&product, c, $row, column) };
                }
                for column in (whole..columns).step_by(lanes) {
                    // SAFETY: as above.
                    unsafe { tile::<S, { $rows }, 1>(&product, c, $row, column) };
                }
                $row += $rows;
            }};
        }
        let mut row = 0;
        while row < product.rows {
            match product.rows - row {
                left if left >= M => tiles!(row, M),
                left if left >= 4 => tiles!(row, 4),
                left if left >= 2 => tiles!(row, 2),
                _ => tiles!(row, 1),
            }
        }
    }
}

/// M rows by N vectors of C, held in registers over the whole depth.
///
/// # Safety
/// `Product::check` must have passed, with `row + M <= rows` and `column + N * lanes <= columns`; `c` points to `product.c`.
#[inline(always)]
unsafe fn tile<S: Simd, const M: usize, const N: usize>(
    product: &Product<'_>,
    c: *mut f32,
    row: usize,
    column: usize,
) {
    let lanes = S::lanes32();
    let mut sums = [[splat::<S>(0.0); N]; M];
    let (a_row, a_depth, b_stride, c_stride) =
        (product.a.row, product.a.depth, product.b_stride, product.c_stride);
    // SAFETY: all offsets lie inside the slices by `check`.
    unsafe {
        let c = c.add(row * c_stride + column);
        if !matches!(product.start, Start::Zero) {
            for (i, sums) in sums.iter_mut().enumerate() {
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = vload_unaligned(c.add(i * c_stride + j * lanes));
                }
            }
        }
        if let Start::Scaled(factors) = product.start {
            for j in 0..N {
                let factor: V<S> = vload_unaligned(factors.as_ptr().add(column + j * lanes));
                for sums in &mut sums {
                    sums[j] *= factor;
                }
            }
        }
        let mut a = product.a.data.as_ptr().wrapping_add(row * a_row);
        let mut b = product.b.as_ptr().wrapping_add(column);
        for _ in 0..product.depth {
            let mut row_of_b = [splat::<S>(0.0); N];
            for (j, vector) in row_of_b.iter_mut().enumerate() {
                *vector = vload_unaligned(b.add(j * lanes));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let factor = splat::<S>(*a.add(i * a_row));
                for (sum, vector) in sums.iter_mut().zip(row_of_b) {
                    *sum = factor.mul_add(vector, *sum);
                }
            }
            a = a.wrapping_add(a_depth);
            b = b.wrapping_add(b_stride);
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, &sum) in sums.iter().enumerate() {
                vstore_unaligned(c.add(i * c_stride + j * lanes), sum);
            }
        }
    }
}
