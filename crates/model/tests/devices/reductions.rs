//! Sums over more rows and elements than one pass, or one cube, takes.

use mt_model::ops::{elementwise, linear};

use crate::common::*;

#[test]
fn sums_of_columns_take_several_passes() {
    let mut random = Random::new(1);
    for (rows, cols) in [(1, 1), (65, 300), (4200, 3)] {
        let x = random.matrix(rows, cols);
        let want = Matrix::new(1, cols, |_, j| (0..rows).map(|i| x.at(i, j)).sum());
        assert_close("sums", &Matrix::of(linear::backward_bias(x.f32())), &want, 2e-6);
    }
}

#[test]
fn sums_of_squares_take_several_cubes() {
    let mut random = Random::new(2);
    for (rows, cols) in [(1, 1), (7, 13), (123, 457)] {
        let x = random.matrix(rows, cols);
        let found = elementwise::sum_of_squares(x.f32()).read();
        assert!((found / x.dot(&x) - 1.0).abs() < SUM_OF_SQUARES, "{found}");
        assert_eq!(found.to_bits(), elementwise::sum_of_squares(x.f32()).read().to_bits());
    }
}

/// More cubes than a side of the grid has.
#[test]
fn a_grid_may_have_several_rows() {
    let mut random = Random::new(3);
    let x = random.matrix(70_000, 1);
    let ones = Matrix::new(1, 1, |_, _| 1.0);
    let y = Matrix::of(mt_model::ops::rms_norm::forward(x.f32(), ones.f32(), 1e-5));
    let want = Matrix::new(70_000, 1, |i, _| x.at(i, 0) / (x.at(i, 0).powi(2) + 1e-5).sqrt());
    assert_close("y", &y, &want, 2e-6);
}
