use mt_model::ops::rms_norm;

use crate::common::*;

const EPS: f64 = 1e-5;
const SHAPES: [(usize, usize); 5] = [(1, 1), (3, 7), (65, 33), (200, 64), (130, 100)];

fn reference(x: &Matrix, scale: &Matrix) -> Matrix {
    Matrix::new(x.rows, x.cols, |i, j| {
        let mean = x.row(i).iter().map(|v| v * v).sum::<f64>() / x.cols as f64;
        x.at(i, j) / (mean + EPS).sqrt() * scale.at(0, j)
    })
}

#[test]
fn forward_matches_float64() {
    let mut random = Random::new(1);
    for (rows, cols) in SHAPES {
        let (x, scale) = (random.matrix(rows, cols), random.matrix(1, cols));
        let y = Matrix::of(rms_norm::forward(x.f32(), scale.f32(), EPS));
        assert_close("y", &y, &reference(&x, &scale), 2e-6);
    }
}

#[test]
fn backward_matches_finite_differences_and_autodiff() {
    let mut random = Random::new(2);
    for (rows, cols) in SHAPES.into_iter().skip(1) {
        let (x, scale, dy) = (random.matrix(rows, cols), random.matrix(1, cols), random.matrix(rows, cols));
        let (dx, dscale) = rms_norm::backward(x.f32(), scale.f32(), EPS, dy.f32());
        let (dx, dscale) = (Matrix::of(dx), Matrix::of(dscale));
        assert_gradient("dx", &x, &dx, 1e-5, |x| reference(x, &scale).dot(&dy));
        assert_gradient("dscale", &scale, &dscale, 1e-5, |scale| reference(&x, scale).dot(&dy));

        let (tx, tscale) = (x.tracked(), scale.tracked());
        let y = rms_norm::forward(tx.clone(), tscale.clone(), EPS);
        let grads = (y * dy.tracked()).sum().backward();
        assert_close("dx", &dx, &Matrix::of(tx.grad(&grads).unwrap()), 1e-5);
        assert_close("dscale", &dscale, &Matrix::of(tscale.grad(&grads).unwrap()), 1e-5);

        let plain = rms_norm::backward(x.tracked(), scale.tracked(), EPS, dy.tracked());
        assert_close("plain dx", &Matrix::of(plain.0.inner()), &dx, 1e-5);
        assert_close("plain dscale", &Matrix::of(plain.1.inner()), &dscale, 1e-5);
    }
}

/// Forward rounds twice (the normalised value, then the product), backward's dx once.
#[test]
fn bfloat16_rounds_where_stated() {
    if !bfloat16() {
        return;
    }
    let mut random = Random::new(3);
    let (x, scale, dy) = (random.matrix_bf16(40, 96), random.matrix_bf16(1, 96), random.matrix_bf16(40, 96));
    let y = rms_norm::forward(x.bf16(), scale.bf16(), EPS);
    assert_close("y", &Matrix::of(y), &reference(&x, &scale), 2.0 * BF16 + 1e-5);
    let (dx, dscale) = rms_norm::backward(x.bf16(), scale.f32(), EPS, dy.bf16());
    let (exact_dx, exact_dscale) = rms_norm::backward(x.f32(), scale.f32(), EPS, dy.f32());
    assert_close("dx", &Matrix::of(dx), &Matrix::of(exact_dx), BF16 + 1e-5);
    assert_close("dscale", &Matrix::of(dscale), &Matrix::of(exact_dscale), 1e-5);
}

#[test]
fn bfloat16_normalises_before_scaling() {
    if !bfloat16() {
        return;
    }
    let mut random = Random::new(4);
    let (x, scale) = (random.matrix_bf16(6, 31), random.matrix_bf16(1, 31));
    let ours = rms_norm::forward(x.bf16(), scale.bf16(), EPS);
    let unscaled = rms_norm::forward(x.bf16(), Matrix::new(1, 31, |_, _| 1.0).bf16(), EPS);
    let n = Matrix::of(unscaled);
    let want = Matrix::of(Matrix::new(6, 31, |i, j| n.at(i, j) * scale.at(0, j)).bf16());
    assert_eq!(Matrix::of(ours), want);
}

#[test]
fn threads_do_not_change_results() {
    let mut random = Random::new(5);
    let (x, scale, dy) = (random.matrix(515, 77), random.matrix(1, 77), random.matrix(515, 77));
    assert_thread_independent("rms_norm", || {
        let (dx, dscale) = rms_norm::backward(x.f32(), scale.f32(), EPS, dy.f32());
        vec![rms_norm::forward(x.f32(), scale.f32(), EPS), dx, dscale]
    });
}

#[test]
fn rows_of_zeros_give_zeros() {
    let zeros = Matrix::new(2, 5, |_, _| 0.0);
    let ones = Matrix::new(1, 5, |_, _| 1.0);
    assert_eq!(Matrix::of(rms_norm::forward(zeros.f32(), ones.f32(), EPS)), zeros);
    let (dx, _) = rms_norm::backward(zeros.f32(), ones.f32(), EPS, Matrix::new(2, 5, |_, _| 1.0).f32());
    let want = 1.0 / EPS.sqrt();
    assert!(Matrix::of(dx).data.iter().all(|v| (v / want - 1.0).abs() < 1e-5));
}
