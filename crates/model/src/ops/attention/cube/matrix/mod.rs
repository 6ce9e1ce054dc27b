//! The same kernels with matrix units: operands of 16 bits, products in fragments of 16 by 16 by 16 that accumulate in float32.
//!
//! What a fragment's elements are to the units of a plane is the device's secret, so scores pass through shared memory on their way
//! from one product to the next, and all that isn't a product is done there, in float32, by the units of [`super::tile`]: unit (r, c)
//! of 16 by 16 has rows r, r + 16, ... and columns c, c + 16, ... Weights (and gradients of scores) are rounded to 16 bits, once, to
//! be operands again; nothing else differs from the kernels without matrix units.
//! ```text
//! [rows, columns] += [rows, head_dim] [columns, head_dim]^T      scores, gradients of weights
//! [rows, head_dim] += [rows, columns] [columns, head_dim]        results
//! ```
//! A block of rows is cut into strips of 16, each of which a group of planes shares, column by column of fragments.

pub(crate) mod backward;
pub(crate) mod forward;

use cubecl::cmma;
use cubecl::cmma::{Matrix, MatrixIdent, MatrixLayout};
use cubecl::prelude::*;

use super::tile::{SIDE, Span, UNITS, features};

/// Rows, columns and depth of a fragment.
pub(crate) const FRAGMENT: usize = 16;
/// Elements that are moved at a time: 16 bytes.
const VECTOR: usize = 8;
/// Bytes that the start of an operand is a multiple of.
const ALIGNMENT: usize = 32;

/// Sizes that a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Fragments {
    /// Width of a head; a multiple of [`FRAGMENT`].
    pub(crate) head_dim: usize,
    /// Tokens whose results a cube computes; a multiple of [`FRAGMENT`], whose strips divide `planes`.
    pub(crate) rows: usize,
    /// Tokens that it looks at per step; a multiple of [`FRAGMENT`].
    pub(crate) columns: usize,
    /// Planes of a cube.
    pub(crate) planes: usize,
}

impl Fragments {
    /// Whether the kernels are right for these sizes.
    pub(crate) const fn fit(self) -> bool {
        self.head_dim > 0
            && self.head_dim.is_multiple_of(FRAGMENT)
            && self.rows > 0
            && self.rows.is_multiple_of(FRAGMENT)
            && self.columns > 0
            && self.columns.is_multiple_of(FRAGMENT)
            && UNITS.is_multiple_of(self.planes)
            // Rows of a unit's lanes lie in one plane.
            && self.lanes() >= SIDE
            && self.planes.is_multiple_of(self.rows / FRAGMENT)
    }

    /// Units of a plane.
    const fn lanes(self) -> usize {
        UNITS / self.planes
    }

    /// Planes that share a strip of rows.
    const fn group(self) -> usize {
        self.planes / (self.rows / FRAGMENT)
    }

    /// Fragments along the columns of the scores, and along the features.
    const fn across(self) -> [usize; 2] {
        [self.columns / FRAGMENT, self.head_dim / FRAGMENT]
    }

    /// Of `across` fragments in a strip those of a plane, at most.
    const fn of_plane(self, across: usize) -> usize {
        across.div_ceil(self.group())
    }

    /// Distance of two rows of an operand: what spreads them over the banks, and what loads of fragments ask for.
    const fn operand_stride(self) -> usize {
        self.head_dim + VECTOR
    }

    /// Distance of two rows of scores.
    const fn score_stride(self) -> usize {
        self.columns + 4
    }

    /// Distance of two rows of weights.
    const fn weight_stride(self) -> usize {
        self.columns + VECTOR
    }

    /// Passes in which results go through the memory of the scores.
    const fn passes(self) -> usize {
        self.head_dim.div_ceil(self.columns)
    }

    /// Bytes of shared memory of a cube that holds `operands` blocks of rows and one of columns.
    pub(crate) const fn shared_bytes(self, operands: usize) -> usize {
        let halves =
            (operands * self.rows + self.columns) * self.operand_stride() + self.rows * self.weight_stride();
        2 * halves + size_of::<f32>() * self.rows * self.score_stride()
    }
}

/// The plane, counted in the cube.
#[cube]
fn plane(#[comptime] tile: Fragments) -> usize {
    UNIT_POS as usize / comptime!(tile.lanes())
}

/// Shared memory for `count` rows of `stride` elements.
#[cube]
fn operand<E: Float>(#[comptime] count: usize, #[comptime] stride: usize) -> Shared<[E]> {
    Shared::<[E]>::new_aligned_slice(comptime!(count * stride), comptime!(ALIGNMENT))
}

/// Shared memory for the scores.
#[cube]
fn scores(#[comptime] tile: Fragments) -> Shared<[f32]> {
    Shared::<[f32]>::new_aligned_slice(comptime!(tile.rows * tile.score_stride()), comptime!(ALIGNMENT))
}

/// The span's first `count` tokens, zero behind its end.
#[cube]
fn stage<E: Float>(
    x: &[E],
    tokens: &[u32],
    span: &Span,
    to: &mut Shared<[E]>,
    #[comptime] count: usize,
    #[comptime] tile: Fragments,
) {
    let width = comptime!(tile.head_dim / VECTOR);
    let stride = comptime!(tile.operand_stride() / VECTOR);
    let from = x.as_vectorized().with_vector_size::<Const<VECTOR>>();
    let to = to.as_vectorized_mut().with_vector_size_mut::<Const<VECTOR>>();
    let mut at = UNIT_POS as usize;
    while at < comptime!(count * width) {
        let i = at / width;
        let d = at % width;
        let mut value = Vector::new(E::Scalar::from_int(0));
        if i < span.len {
            value = from[features(span, tokens, i, tile.head_dim) / comptime!(VECTOR) + d];
        }
        to[i * stride + d] = value;
        at += UNITS;
    }
}

/// A plane's fragments of a block of `across` fragments per strip, zero.
#[cube]
fn zeros(#[comptime] across: usize, #[comptime] tile: Fragments) -> Sequence<Matrix<f32>> {
    let mut sums = Sequence::<Matrix<f32>>::new();
    #[unroll]
    for _ in 0..comptime!(tile.of_plane(across)) {
        sums.push(Matrix::<f32>::from_value(
            MatrixIdent::Accumulator,
            FRAGMENT,
            FRAGMENT,
            FRAGMENT,
            MatrixLayout::Undefined,
            0.0f32,
        ));
    }
    sums
}

/// `sums += a b`, or `a b^T` where b's rows are the result's columns, over `depth` fragments; the plane's part of it. The result's
/// fragments are `first..first + across` of b's columns.
#[cube]
#[expect(clippy::too_many_arguments, reason = "two operands and where they lie")]
fn multiply<E: Float>(
    a: &Shared<[E]>,
    b: &Shared<[E]>,
    sums: &mut Sequence<Matrix<f32>>,
    #[comptime] strides: (usize, usize),
    #[comptime] depth: usize,
    #[comptime] first: usize,
    #[comptime] across: usize,
    #[comptime] transposed: bool,
    #[comptime] tile: Fragments,
) {
    let group = comptime!(tile.group());
    let strip = plane(tile) / group;
    let member = plane(tile) % group;
    let (a_stride, b_stride) = strides;
    let layout = comptime!(if transposed { MatrixLayout::ColMajor } else { MatrixLayout::RowMajor });
    for step in 0..depth {
        let a_at = strip * comptime!(FRAGMENT * a_stride) + step * FRAGMENT;
        let left = Matrix::<E>::from_slice(
            MatrixIdent::A,
            FRAGMENT,
            FRAGMENT,
            FRAGMENT,
            MatrixLayout::RowMajor,
            &a[a_at..a.len()],
            comptime!(a_stride as u32),
        );
        #[unroll]
        for t in 0..comptime!(tile.of_plane(across)) {
            let column = member + comptime!(t * group);
            if column < across {
                let along = column + first;
                let b_at = if comptime!(transposed) {
                    along * comptime!(FRAGMENT * b_stride) + step * FRAGMENT
                } else {
                    step * comptime!(FRAGMENT * b_stride) + along * FRAGMENT
                };
                let right = Matrix::<E>::from_slice(
                    MatrixIdent::B,
                    FRAGMENT,
                    FRAGMENT,
                    FRAGMENT,
                    layout,
                    &b[b_at..b.len()],
                    comptime!(b_stride as u32),
                );
                cmma::execute(&left, &right, &sums[t], &sums[t]);
            }
        }
    }
}

/// Writes those of the plane's fragments, of `across` per strip, that are in `first..first + columns / 16`, to the scores.
#[cube]
fn store(
    sums: &Sequence<Matrix<f32>>,
    to: &mut Shared<[f32]>,
    #[comptime] first: usize,
    #[comptime] across: usize,
    #[comptime] tile: Fragments,
) {
    let group = comptime!(tile.group());
    let strip = plane(tile) / group;
    let member = plane(tile) % group;
    let end = comptime!(if first + tile.across()[0] < across { first + tile.across()[0] } else { across });
    let len = to.len();
    #[unroll]
    for t in 0..comptime!(tile.of_plane(across)) {
        let column = member + comptime!(t * group);
        if column >= first && column < end {
            let at = strip * comptime!(FRAGMENT * tile.score_stride()) + (column - first) * FRAGMENT;
            cmma::store(
                &mut to[at..len],
                &sums[t],
                comptime!(tile.score_stride() as u32),
                MatrixLayout::RowMajor,
            );
        }
    }
}

/// Writes a result that planes hold as fragments, rounded once. All units of the cube must call.
#[cube]
fn write<E: Float>(
    sums: &Sequence<Matrix<f32>>,
    staged: &mut Shared<[f32]>,
    to: &mut [E],
    span: &Span,
    tokens: &[u32],
    #[comptime] tile: Fragments,
) {
    let (r, c) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let [columns, width] = comptime!(tile.across());
    #[unroll]
    for pass in 0..comptime!(tile.passes()) {
        let first = comptime!(pass * columns);
        let count = comptime!(if width - first < columns { width - first } else { columns });
        sync_cube();
        store(sums, staged, first, width, tile);
        sync_cube();
        #[unroll]
        for i in 0..comptime!(tile.rows / SIDE) {
            let row = r + comptime!(i * SIDE);
            if row < span.len {
                let start = features(span, tokens, row, tile.head_dim) + comptime!(first * FRAGMENT);
                #[unroll]
                for w in 0..count {
                    let column = c + comptime!(w * SIDE);
                    to[start + column] = E::cast_from(staged[row * comptime!(tile.score_stride()) + column]);
                }
            }
        }
    }
}

/// The largest value of the 16 units of a row; all of them get it.
#[cube]
fn row_max(value: f32) -> f32 {
    let mut most = value;
    #[unroll]
    for step in 0..4u32 {
        most = max(most, plane_shuffle_xor(most, comptime!(1u32 << step)));
    }
    most
}

/// The sum of the values of the 16 units of a row; all of them get the same.
#[cube]
fn row_sum(value: f32) -> f32 {
    let mut sum = value;
    #[unroll]
    for step in 0..4u32 {
        sum += plane_shuffle_xor(sum, comptime!(1u32 << step));
    }
    sum
}

#[cfg(all(test, feature = "rocm"))]
mod emulated;
