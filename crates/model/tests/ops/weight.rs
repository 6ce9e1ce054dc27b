use burn::tensor::DType;
use mt_model::ops::linear;
use mt_model::ops::weight::Weight;

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
