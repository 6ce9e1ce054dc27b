use mt_config::Activation;
use mt_model::ops::glu;

use crate::common::*;

const ACTIVATIONS: [Activation; 4] =
    [Activation::Silu, Activation::Gelu, Activation::Relu, Activation::Linear];

fn value(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::Linear => x,
    }
}

fn reference(gate: &Matrix, up: &Matrix, activation: Activation) -> Matrix {
    Matrix::new(gate.rows, gate.cols, |i, j| value(gate.at(i, j), activation) * up.at(i, j))
}

#[test]
fn matches_float64_finite_differences_and_autodiff() {
    let mut random = Random::new(1);
    for activation in ACTIVATIONS {
        for (rows, cols) in [(1, 1), (5, 37), (130, 129)] {
            let (gate, up, dh) =
                (random.matrix(rows, cols), random.matrix(rows, cols), random.matrix(rows, cols));
            let h = Matrix::of(glu::forward(gate.f32(), up.f32(), activation));
            assert_close("h", &h, &reference(&gate, &up, activation), 2e-6);

            let (dgate, dup) = glu::backward(gate.f32(), up.f32(), activation, dh.f32());
            let (dgate, dup) = (Matrix::of(dgate), Matrix::of(dup));
            assert_gradient("dgate", &gate, &dgate, 2e-5, |gate| reference(gate, &up, activation).dot(&dh));
            assert_gradient("dup", &up, &dup, 2e-5, |up| reference(&gate, up, activation).dot(&dh));

            let (tgate, tup) = (gate.tracked(), up.tracked());
            let h = glu::forward(tgate.clone(), tup.clone(), activation);
            let grads = (h * dh.tracked()).sum().backward();
            assert_close("dgate", &dgate, &Matrix::of(tgate.grad(&grads).unwrap()), 1e-5);
            assert_close("dup", &dup, &Matrix::of(tup.grad(&grads).unwrap()), 1e-5);

            let (pgate, pup) = glu::backward(gate.tracked(), up.tracked(), activation, dh.tracked());
            assert_close("plain dgate", &Matrix::of(pgate.inner()), &dgate, 1e-5);
            assert_close("plain dup", &Matrix::of(pup.inner()), &dup, 1e-5);
        }
    }
}

#[test]
fn bfloat16_rounds_once() {
    if !bfloat16() {
        return;
    }
    let mut random = Random::new(2);
    for activation in ACTIVATIONS {
        let (gate, up, dh) =
            (random.matrix_bf16(30, 50), random.matrix_bf16(30, 50), random.matrix_bf16(30, 50));
        let h = glu::forward(gate.bf16(), up.bf16(), activation);
        assert_close("h", &Matrix::of(h), &reference(&gate, &up, activation), BF16 + 1e-5);
        let (dgate, dup) = glu::backward(gate.bf16(), up.bf16(), activation, dh.bf16());
        let exact = glu::backward(gate.f32(), up.f32(), activation, dh.f32());
        assert_close("dgate", &Matrix::of(dgate), &Matrix::of(exact.0), BF16 + 1e-5);
        assert_close("dup", &Matrix::of(dup), &Matrix::of(exact.1), BF16 + 1e-5);
    }
}

/// Large inputs of either sign saturate: no overflow, no NaN.
#[test]
fn saturates_without_nan() {
    let gate = Matrix::new(1, 6, |_, j| [-1e30, -200.0, -90.0, 90.0, 200.0, 1e10][j]);
    let ones = Matrix::new(1, 6, |_, _| 1.0);
    for activation in [Activation::Silu, Activation::Gelu] {
        let h = Matrix::of(glu::forward(gate.f32(), ones.f32(), activation));
        assert!(h.data[..3].iter().all(|v| v.abs() < 1e-30), "{activation:?}: {:?}", h.data);
        assert!(h.data[3..].iter().zip(&gate.data[3..]).all(|(h, g)| (h / g - 1.0).abs() < 1e-6));
        let (dgate, _) = glu::backward(gate.f32(), ones.f32(), activation, ones.f32());
        let dgate = Matrix::of(dgate);
        assert!(dgate.data[1..3].iter().all(|v| v.abs() < 1e-30), "{activation:?}: {:?}", dgate.data);
        assert!(dgate.data[3..5].iter().all(|v| (v - 1.0).abs() < 1e-6), "{activation:?}: {:?}", dgate.data);
    }
}

#[test]
fn threads_do_not_change_results() {
    let mut random = Random::new(3);
    let (gate, up, dh) = (random.matrix(300, 333), random.matrix(300, 333), random.matrix(300, 333));
    assert_thread_independent("glu", || {
        let (dgate, dup) = glu::backward(gate.f32(), up.f32(), Activation::Silu, dh.f32());
        vec![glu::forward(gate.f32(), up.f32(), Activation::Gelu), dgate, dup]
    });
}
