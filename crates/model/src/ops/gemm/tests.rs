//! Every kernel that this CPU runs, not only the one that it would take, against sums in float64.

use super::*;
use crate::ops::real::Real;

/// Kernels of this CPU, with whether they take bfloat16 operands only.
fn kernels() -> Vec<(&'static str, &'static Kernel, bool)> {
    let mut kernels = vec![("portable", &kernel::PORTABLE, false)];
    #[cfg(target_arch = "x86_64")]
    {
        use crate::ops::vector::{Level, level};
        if level() != Level::Baseline {
            kernels.push(("AVX2", &x86::AVX2, false));
        }
        if level() == Level::Avx512 {
            kernels.push(("AVX-512", &x86::AVX512, false));
            if is_x86_feature_detected!("avx512bf16") {
                kernels.push(("AVX512-BF16", &x86::AVX512_BF16, true));
            }
        }
    }
    kernels
}

/// Numbers without a pattern in -1..1.
fn numbers(seed: u32, len: usize) -> Vec<f32> {
    let mix = |i: u32| (i ^ seed).wrapping_mul(2_654_435_761).rotate_left(15).wrapping_mul(2_246_822_519);
    (0..len as u32).map(|i| (mix(i) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn rounded(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|&value| <bf16 as Real>::from_f32(value)).collect()
}

/// How an operand lies in memory.
#[derive(Debug, Clone, Copy)]
enum Layout {
    ByRows,
    ByColumns,
}

fn view(elements: Elements<'_>, [rows, cols]: [usize; 2], layout: Layout) -> View<'_> {
    match layout {
        Layout::ByRows => View::new(elements, [rows, cols]),
        Layout::ByColumns => View::new(elements, [cols, rows]).transpose(),
    }
}

/// `c[i, j]` in float64, and the largest sum of magnitudes.
fn exact(a: &View, b: &View) -> (Vec<f64>, f64) {
    let at = |view: &View, i: usize, j: usize| {
        let place = i * view.row_stride + j * view.col_stride;
        f64::from(match view.elements {
            Elements::F32(values) => values[place],
            Elements::Bf16(values) => values[place].to_f32(),
            Elements::Rounded(values) => <bf16 as Real>::from_f32(values[place]).to_f32(),
        })
    };
    let sum = |i: usize, j: usize, f: fn(f64) -> f64| {
        (0..a.cols).map(|p| f(at(a, i, p) * at(b, p, j))).sum::<f64>()
    };
    let places = (0..a.rows).flat_map(|i| (0..b.cols).map(move |j| (i, j)));
    let magnitude = places.clone().map(|(i, j)| sum(i, j, f64::abs)).fold(0.0, f64::max);
    (places.map(|(i, j)| sum(i, j, |x| x)).collect(), magnitude)
}

#[test]
fn every_kernel_multiplies_every_layout_and_odd_size() {
    for [m, k, n] in [[1, 1, 1], [13, 7, 35], [12, 64, 32], [5, 1025, 3], [97, 33, 65], [7, 2049, 33]] {
        let (a, b) = (numbers(1, m * k), numbers(2, k * n));
        let (a_bf16, b_bf16) = (rounded(&a), rounded(&b));
        let of_f32 = (Elements::F32(&a), Elements::F32(&b));
        let of_bf16 = [
            (Elements::Bf16(&a_bf16), Elements::Bf16(&b_bf16)),
            (Elements::Rounded(&a), Elements::Bf16(&b_bf16)),
            (Elements::Bf16(&a_bf16), Elements::Rounded(&b)),
        ];
        for (name, kernel, bf16_only) in kernels() {
            for (a, b) in of_bf16.into_iter().chain((!bf16_only).then_some(of_f32)) {
                for [a_layout, b_layout] in [
                    [Layout::ByRows, Layout::ByRows],
                    [Layout::ByColumns, Layout::ByRows],
                    [Layout::ByRows, Layout::ByColumns],
                    [Layout::ByColumns, Layout::ByColumns],
                ] {
                    let (a, b) = (view(a, [m, k], a_layout), view(b, [k, n], b_layout));
                    let (expected, magnitude) = exact(&a, &b);
                    let mut c = vec![1.0f32; m * n];
                    product_by(kernel, a, b, ViewMut::new(&mut c, [m, n]), Output::Add);
                    let worst = c
                        .iter()
                        .zip(&expected)
                        .map(|(c, e)| (f64::from(*c) - 1.0 - e).abs())
                        .fold(0.0, f64::max);
                    let bound = 4e-7 * (magnitude + 1.0) * (k as f64).sqrt();
                    assert!(
                        worst <= bound,
                        "{name}, {m} x {k} x {n}, {a_layout:?} {b_layout:?}: off by {worst:e}"
                    );
                }
            }
        }
    }
}
