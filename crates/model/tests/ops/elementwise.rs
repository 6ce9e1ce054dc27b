use burn::tensor::DType;
use mt_model::ops::{elementwise, memory};

use crate::common::*;

#[test]
fn add_matches_and_leaves_shared_tensors_alone() {
    let mut random = Random::new(1);
    let (x, y) = (random.matrix(123, 77), random.matrix(123, 77));
    let sum = Matrix::new(123, 77, |i, j| (x.at(i, j) as f32 + y.at(i, j) as f32) as f64);
    assert_eq!(Matrix::of(elementwise::add(x.f32(), y.f32())), sum);
    let (held, other) = (x.f32(), y.f32());
    let _ = elementwise::add(held.clone(), other.clone());
    assert_eq!((Matrix::of(held), Matrix::of(other)), (x.clone(), y.clone()));
    let plain = elementwise::add(x.tracked(), y.tracked());
    assert_eq!(Matrix::of(plain.inner()), sum);
}

#[test]
fn casts_round_to_nearest_even() {
    // Halfway cases around bfloat16's 8 bits of precision, extremes and subnormals.
    let values = [
        (1.0 + 1.0 / 256.0, 1.0),
        (1.0 + 3.0 / 256.0, 1.0 + 4.0 / 256.0),
        (1.0 + 1.0 / 256.0 + 1e-6, 1.0 + 2.0 / 256.0),
        (-1.0 - 3.0 / 256.0, -1.0 - 4.0 / 256.0),
        (f32::MAX as f64, f64::INFINITY),
        (f64::NEG_INFINITY, f64::NEG_INFINITY),
        (0.0, 0.0),
        (1e-40f32 as f64, half::bf16::from_f32(1e-40).to_f64()),
    ];
    let x = Matrix::new(1, values.len(), |_, j| values[j].0);
    let y = Matrix::of(elementwise::cast(x.f32(), DType::BF16));
    assert_eq!(y.data, values.map(|v| v.1));
    let nan = elementwise::cast(Matrix::new(1, 1, |_, _| f64::NAN).f32(), DType::BF16);
    assert!(Matrix::of(nan).data[0].is_nan());

    let mut random = Random::new(2);
    let x = random.matrix(211, 97);
    let y = elementwise::cast(x.f32(), DType::BF16);
    assert_eq!(y.dtype(), DType::BF16);
    assert_eq!(y.to_data(), x.f32().cast(DType::BF16).to_data());
    assert_eq!(elementwise::cast(y.clone(), DType::F32).to_data(), y.cast(DType::F32).to_data());
}

#[test]
fn sum_of_squares_is_exact_to_float64() {
    let mut random = Random::new(3);
    for (rows, cols) in [(1, 1), (3, 5), (200, 333)] {
        let x = random.matrix(rows, cols);
        let want = x.dot(&x);
        assert!((elementwise::sum_of_squares(x.f32()).read() / want - 1.0).abs() < 1e-12);
        assert!((elementwise::sum_of_squares(x.tracked()).read() / want - 1.0).abs() < 1e-5);
    }
    let x = random.matrix(300, 301);
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| elementwise::sum_of_squares(x.f32()).read())
    };
    assert_eq!(run(1).to_bits(), run(5).to_bits());
}

/// Freed memory is used again, and its old values never show.
#[test]
fn memory_is_reused_and_outputs_are_whole() {
    let mut random = Random::new(4);
    let (x, w) = (random.matrix(300, 400), random.matrix(400, 500));
    let first = mt_model::ops::linear::forward(x.f32(), w.f32()).to_data();
    for _ in 0..20 {
        let again = mt_model::ops::linear::forward(x.f32(), w.f32());
        assert_eq!(again.to_data(), first);
    }
    assert!(memory::peak_bytes() >= 300 * 500 * 4);
    memory::release();
    let again = mt_model::ops::linear::forward(x.f32(), w.f32());
    assert_eq!(again.to_data(), first);
}
