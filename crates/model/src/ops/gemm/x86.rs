//! Kernels and packing for x86-64 with AVX2 and FMA, and with AVX-512.

use std::arch::x86_64::*;

use super::View;
use super::kernel::{Kernel, Place, Tile};
use super::pack::{Source, Transpose, pack};
use super::pairs::pack_pairs;

/// 12 of 16 registers hold sums, two a row of b, one a broadcast element of a.
pub(super) static AVX2: Kernel = Kernel {
    rows: 6,
    cols: 16,
    depth: 512,
    per_cell: 1,
    run: avx2,
    pack_rows: avx2_pack::<6>,
    pack_cols: avx2_pack::<16>,
};
/// 24 of 32 registers hold sums.
pub(super) static AVX512: Kernel = Kernel {
    rows: 12,
    cols: 32,
    depth: 512,
    per_cell: 1,
    run: avx512,
    pack_rows: avx512_pack::<12>,
    pack_cols: avx512_pack::<32>,
};
/// bfloat16 in pairs, sums in float32 as above.
pub(super) static AVX512_BF16: Kernel = Kernel {
    rows: 12,
    cols: 32,
    depth: 768,
    per_cell: 2,
    run: avx512_bf16,
    pack_rows: avx512_pack_pairs::<12>,
    pack_cols: avx512_pack_pairs::<32>,
};

#[target_feature(enable = "avx2,fma")]
unsafe fn avx2_pack<const H: usize>(a: View, packed: &mut [f32]) {
    pack::<H, Squares>(a, packed);
}

#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn avx512_pack<const H: usize>(a: View, packed: &mut [f32]) {
    pack::<H, Squares>(a, packed);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
unsafe fn avx512_pack_pairs<const H: usize>(a: View, packed: &mut [f32]) {
    pack_pairs::<H, Squares>(a, packed);
}

/// Transposes squares of 8 by 8 in registers.
struct Squares;

impl Transpose for Squares {
    #[inline(always)]
    fn transpose<const H: usize, S: Source>(rows: [&[S::Stored]; H], panel: &mut [[f32; H]]) {
        let depth = panel.len();
        // A store may reach 7 elements into the next p, which is written afterwards; the last block is left to plain code.
        let blocks = depth.saturating_sub(1) / 8;
        for start in (0..blocks * 8).step_by(8) {
            let mut square = [[[0.0f32; 8]; 8]; 4];
            for (i, row) in rows.iter().enumerate() {
                let from = &row[start..start + 8];
                for (out, from) in square[i / 8][i % 8].iter_mut().zip(from) {
                    *out = S::widen(*from);
                }
            }
            for group in &mut square[..H.div_ceil(8)] {
                // SAFETY: only called from functions compiled for AVX2.
                unsafe { transpose_square(group) };
            }
            let out = panel[start..].as_flattened_mut();
            for p in 0..8 {
                for (g, group) in square[..H.div_ceil(8)].iter().enumerate() {
                    out[p * H + g * 8..p * H + g * 8 + 8].copy_from_slice(&group[p]);
                }
            }
        }
        for (p, out) in panel.iter_mut().enumerate().skip(blocks * 8) {
            *out = std::array::from_fn(|i| S::widen(rows[i][p]));
        }
    }
}

/// # Safety
/// The CPU must have AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn transpose_square(square: &mut [[f32; 8]; 8]) {
    // SAFETY: each row has eight elements.
    let r: [__m256; 8] = std::array::from_fn(|i| unsafe { _mm256_loadu_ps(square[i].as_ptr()) });
    // Pairs of rows, then quadruples within 128-bit halves, then halves.
    let pair = |i: usize| (_mm256_unpacklo_ps(r[i], r[i + 1]), _mm256_unpackhi_ps(r[i], r[i + 1]));
    let quad = |i: usize| {
        let ((a0, a1), (b0, b1)) = (pair(i), pair(i + 2));
        [
            _mm256_shuffle_ps::<0x44>(a0, b0),
            _mm256_shuffle_ps::<0xee>(a0, b0),
            _mm256_shuffle_ps::<0x44>(a1, b1),
            _mm256_shuffle_ps::<0xee>(a1, b1),
        ]
    };
    let (low, high) = (quad(0), quad(4));
    for i in 0..4 {
        // SAFETY: each row has eight elements.
        unsafe {
            _mm256_storeu_ps(square[i].as_mut_ptr(), _mm256_permute2f128_ps::<0x20>(low[i], high[i]));
            _mm256_storeu_ps(square[i + 4].as_mut_ptr(), _mm256_permute2f128_ps::<0x31>(low[i], high[i]));
        }
    }
}

/// Fetches a row of a tile, which is needed in some hundred cycles, into the first cache.
///
/// # Safety
/// The row must have `cols` elements.
#[inline(always)]
unsafe fn prefetch(row: Place, cols: usize) {
    // SAFETY: the caller's promise; every x86-64 CPU has the instruction.
    unsafe {
        let (first, last): (*const i8, *const i8) = match row {
            Place::F32(row) => (row.cast(), row.add(cols - 1).cast()),
            Place::Bf16(row) => (row.cast(), row.add(cols - 1).cast()),
        };
        _mm_prefetch::<_MM_HINT_ET0>(first);
        _mm_prefetch::<_MM_HINT_ET0>(last);
    }
}

macro_rules! kernel {
    ($name:ident, $features:literal, $rows:literal, $lanes:literal, $Vector:ty,
     $zero:ident, $load:ident, $store:ident, $set:ident, $fma:ident, $plus:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $name(a: &[f32], b: &[f32], tile: Tile) {
            const COLS: usize = 2 * $lanes;
            for i in 0..tile.rows {
                // SAFETY: the row lies in the tile; and a prefetch has no effect but on caches, whatever the address.
                unsafe { prefetch(tile.start.skip(i * tile.row_stride), tile.cols) };
            }
            let mut sums: [[$Vector; 2]; $rows] = [[$zero(); 2]; $rows];
            for (a, b) in a.as_chunks::<$rows>().0.iter().zip(b.as_chunks::<COLS>().0) {
                // SAFETY: b has two vectors of elements.
                let (b0, b1) = unsafe { ($load(b.as_ptr()), $load(b.as_ptr().add($lanes))) };
                for (sums, &a) in sums.iter_mut().zip(a) {
                    let a = $set(a);
                    sums[0] = $fma(a, b0, sums[0]);
                    sums[1] = $fma(a, b1, sums[1]);
                }
            }
            if let Place::F32(start) = tile.start
                && (tile.rows, tile.cols) == ($rows, COLS)
            {
                for (i, sums) in sums.iter().enumerate() {
                    // SAFETY: the tile is whole, so that row i has two vectors of elements.
                    unsafe {
                        let c = start.add(i * tile.row_stride);
                        for (j, &sum) in sums.iter().enumerate() {
                            let c = c.add(j * $lanes);
                            $store(c, if tile.add { $plus($load(c), sum) } else { sum });
                        }
                    }
                }
            } else {
                let mut spilled = [[0.0f32; COLS]; $rows];
                for (row, sums) in spilled.iter_mut().zip(&sums) {
                    // SAFETY: a row has two vectors of elements.
                    unsafe {
                        $store(row.as_mut_ptr(), sums[0]);
                        $store(row.as_mut_ptr().add($lanes), sums[1]);
                    }
                }
                // SAFETY: the caller's promise about the tile.
                unsafe { tile.write(&spilled) };
            }
        }
    };
}

#[rustfmt::skip]
kernel!(
    avx2, "avx2,fma", 6, 8, __m256,
    _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps
);
#[rustfmt::skip]
kernel!(
    avx512, "avx512f", 12, 16, __m512,
    _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps
);
#[rustfmt::skip]
kernel!(
    avx512_bf16, "avx512f,avx512bf16", 12, 16, __m512,
    _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, add_products_of_pairs, _mm512_add_ps
);

/// `sum + a.first * b.first + a.second * b.second` in each lane of 32 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn add_products_of_pairs(a: __m512, b: __m512, sum: __m512) -> __m512 {
    // SAFETY: any bits are bfloat16 numbers.
    let (a, b) =
        unsafe { (std::mem::transmute::<__m512, __m512bh>(a), std::mem::transmute::<__m512, __m512bh>(b)) };
    _mm512_dpbf16_ps(sum, a, b)
}
