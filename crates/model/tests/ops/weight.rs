use burn::tensor::DType;
use mt_model::ops::linear;
use mt_model::ops::weight::{Bits, Weight};

use crate::common::*;

fn product(a: &Matrix, b: &Matrix) -> Matrix {
    Matrix::new(a.rows, b.cols, |i, j| (0..a.cols).map(|p| a.at(i, p) * b.at(p, j)).sum())
}

/// Rows, inputs, outputs: around the blocks of the kernel and both of its limits of rows.
const SHAPES: [[usize; 3]; 8] = [
    [1, 1, 1],
    [1, 3, 5],
    [1, 1030, 1025],
    [2, 66, 2050],
    [3, 2049, 7],
    [8, 64, 1024],
    [9, 70, 130],
    [0, 5, 6],
];

#[test]
fn floats_match_float64() {
    let mut random = Random::new(21);
    for [t, i, o] in SHAPES {
        let (x, w) = (random.matrix_bf16(t, i), random.matrix_bf16(i, o));
        for (x_type, w_type) in
            [(DType::F32, DType::F32), (DType::BF16, DType::BF16), (DType::F32, DType::BF16)]
        {
            let device = burn::tensor::Device::flex();
            let y = Weight::Float(w.on(w_type, &device)).product(x.on(x_type, &device));
            assert_eq!(y.dtype(), x_type);
            let bound = if x_type == DType::BF16 { BF16 + 1e-5 } else { 1e-5 };
            assert_close(&format!("{t} x {i} x {o}"), &Matrix::of(y), &product(&x, &w), bound);
        }
    }
}

/// A row's result depends on its own row only, and neither kernel depends on threads.
#[test]
fn rows_and_threads_do_not_change_results() {
    let mut random = Random::new(22);
    let (x, w) = (random.matrix(7, 1500), random.matrix(1500, 1300));
    let weight = Weight::Float(w.f32());
    let all = weight.product(x.f32()).to_data();
    for row in 0..7 {
        let one = weight.product(x.f32().narrow(0, row, 1)).to_data();
        let of_all: Vec<f32> = all.iter::<f32>().skip(row * 1300).take(1300).collect();
        assert_eq!(one.iter::<f32>().collect::<Vec<_>>(), of_all);
    }
    assert_thread_independent("weight", || vec![weight.product(x.f32())]);
    assert_close(
        "as linear",
        &Matrix::of(weight.product(x.f32())),
        &Matrix::of(linear::forward(x.f32(), w.f32())),
        1e-5,
    );
}

/// A column's largest magnitude, and what is rounded to which of the integers.
fn rounded(w: &Matrix, bits: Bits) -> Matrix {
    let (bound, most) = if bits == Bits::Eight { (127.5f32, 127.0f32) } else { (7.5, 7.0) };
    let max: Vec<f32> =
        (0..w.cols).map(|c| (0..w.rows).fold(0.0, |m: f32, r| m.max(w.at(r, c).abs() as f32))).collect();
    Matrix::new(w.rows, w.cols, |r, c| {
        let q = (w.at(r, c) as f32 * (bound / max[c])).round_ties_even().clamp(-most, most);
        f64::from(q) * f64::from(max[c] / bound)
    })
}

#[test]
fn integers_match_float64() {
    let mut random = Random::new(23);
    for [t, i, o] in SHAPES {
        let (x, w) = (random.matrix(t, i), random.matrix(i, o));
        for bits in [Bits::Eight, Bits::Four] {
            let weight = Weight::quantized(w.f32(), bits);
            let expected = product(&x, &rounded(&w, bits));
            let name = format!("{bits:?} {t} x {i} x {o}");
            assert_close(&name, &Matrix::of(weight.product(x.f32())), &expected, 1e-5);
            let (y, x) = (weight.product(x.bf16()), Matrix::of(x.bf16()));
            assert_eq!(y.dtype(), DType::BF16);
            assert_close(&name, &Matrix::of(y), &product(&x, &rounded(&w, bits)), BF16 + 1e-5);
        }
    }
}

/// A quarter and about an eighth of float32, and the scales. On other devices the numbers are the same.
#[test]
fn integers_are_small_everywhere_the_same_and_zeros_stay() {
    let mut random = Random::new(24);
    let (x, w) = (random.matrix(2, 96), random.matrix(96, 256));
    let bytes = |bits| Weight::quantized(w.f32(), bits).bytes();
    assert_eq!((bytes(Bits::Eight), bytes(Bits::Four)), (96 * 256 + 4 * 256, 96 * 128 + 4 * 256));
    let device = burn::tensor::Device::flex().autodiff();
    for bits in [Bits::Eight, Bits::Four] {
        let there = Weight::quantized(w.on(DType::F32, &device), bits).product(x.on(DType::F32, &device));
        assert_close(
            "device",
            &Matrix::of(there),
            &Matrix::of(Weight::quantized(w.f32(), bits).product(x.f32())),
            1e-5,
        );
        let zeros = Weight::quantized(Matrix::new(96, 3, |_, _| 0.0).f32(), bits);
        assert_eq!(Matrix::of(zeros.product(x.f32())), Matrix::new(2, 3, |_, _| 0.0));
        assert_thread_independent("weight", || vec![Weight::quantized(w.f32(), bits).product(x.f32())]);
    }
}
