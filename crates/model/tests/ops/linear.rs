use mt_model::ops::linear;

use crate::common::*;

fn product(a: &Matrix, b: &Matrix) -> Matrix {
    Matrix::new(a.rows, b.cols, |i, j| (0..a.cols).map(|p| a.at(i, p) * b.at(p, j)).sum())
}

fn transpose(a: &Matrix) -> Matrix {
    Matrix::new(a.cols, a.rows, |i, j| a.at(j, i))
}

/// Tokens, inputs, outputs: single elements, sizes around the kernels' panels and stretches, and a few whole ones.
const SHAPES: [[usize; 3]; 9] = [
    [1, 1, 1],
    [2, 3, 5],
    [7, 17, 33],
    [6, 16, 16],
    [13, 255, 31],
    [97, 257, 49],
    [64, 513, 96],
    [200, 64, 530],
    [1, 300, 4100],
];

#[test]
fn matches_float64() {
    let mut random = Random::new(1);
    for [t, i, o] in SHAPES {
        let (x, w, dy) = (random.matrix(t, i), random.matrix(i, o), random.matrix(t, o));
        let y = Matrix::of(linear::forward(x.f32(), w.f32()));
        let dx = Matrix::of(linear::backward_input(dy.f32(), w.f32()));
        let dw = Matrix::of(linear::backward_weight(x.f32(), dy.f32()));
        assert_close("y", &y, &product(&x, &w), 1e-5);
        assert_close("dx", &dx, &product(&dy, &transpose(&w)), 1e-5);
        assert_close("dw", &dw, &product(&transpose(&x), &dy), 1e-5);
    }
}

#[test]
fn backward_matches_finite_differences_and_autodiff() {
    let mut random = Random::new(2);
    let (t, i, o) = (11, 19, 23);
    let (x, w, b, dy) = (random.matrix(t, i), random.matrix(i, o), random.matrix(1, o), random.matrix(t, o));
    let dx = Matrix::of(linear::backward_input(dy.f32(), w.f32()));
    let dw = Matrix::of(linear::backward_weight(x.f32(), dy.f32()));
    let db = Matrix::of(linear::backward_bias(dy.f32()));
    let loss = |x: &Matrix, w: &Matrix, b: &Matrix| {
        let y = product(x, w);
        Matrix::new(t, o, |r, c| y.at(r, c) + b.at(0, c)).dot(&dy)
    };
    assert_gradient("dx", &x, &dx, 1e-5, |x| loss(x, &w, &b));
    assert_gradient("dw", &w, &dw, 1e-5, |w| loss(&x, w, &b));
    assert_gradient("db", &b, &db, 1e-5, |b| loss(&x, &w, b));

    let (tx, tw, tb) = (x.tracked(), w.tracked(), b.tracked());
    let y = linear::add_bias(linear::forward(tx.clone(), tw.clone()), tb.clone());
    let ours = linear::add_bias(linear::forward(x.f32(), w.f32()), b.f32());
    assert_close("y", &Matrix::of(ours), &Matrix::of(y.clone().inner()), 1e-5);
    let grads = (y * dy.tracked()).sum().backward();
    assert_close("dx", &dx, &Matrix::of(tx.grad(&grads).unwrap()), 1e-5);
    assert_close("dw", &dw, &Matrix::of(tw.grad(&grads).unwrap()), 1e-5);
    assert_close("db", &db, &Matrix::of(tb.grad(&grads).unwrap()), 1e-5);
}

/// One rounding of the result; sums are float32. Operands are bfloat16 exactly.
#[test]
fn bfloat16_rounds_results_once() {
    let mut random = Random::new(3);
    let (x, w, dy) = (random.matrix_bf16(70, 300), random.matrix_bf16(300, 45), random.matrix_bf16(70, 45));
    let bound = BF16 + 1e-5;
    assert_close("y", &Matrix::of(linear::forward(x.bf16(), w.bf16())), &product(&x, &w), bound);
    assert_close(
        "dx",
        &Matrix::of(linear::backward_input(dy.bf16(), w.bf16())),
        &product(&dy, &transpose(&w)),
        bound,
    );
    let dw = linear::backward_weight(x.bf16(), dy.bf16());
    assert_eq!(dw.dtype(), burn::tensor::DType::F32);
    assert_close("dw", &Matrix::of(dw), &product(&transpose(&x), &dy), 1e-5);
}

/// A float32 kernel under a bfloat16 activation is the kernel rounded to bfloat16.
#[test]
fn kernels_are_rounded_to_the_compute_type() {
    let mut random = Random::new(4);
    let (x, w) = (random.matrix(9, 40), random.matrix(40, 21));
    let mixed = linear::forward(x.bf16(), w.f32());
    let rounded = linear::forward(x.bf16(), w.bf16());
    assert_eq!(mixed.to_data(), rounded.to_data());
    let mixed = linear::backward_input(mixed, w.f32());
    assert_eq!(mixed.to_data(), linear::backward_input(rounded, w.bf16()).to_data());
}

/// A token's output depends on its own row only, bit for bit: what leak tests between documents rest on.
#[test]
fn rows_do_not_depend_on_each_other() {
    let mut random = Random::new(5);
    let (x, w) = (random.matrix(301, 260), random.matrix(260, 70));
    let all = linear::forward(x.f32(), w.f32()).to_data();
    for (start, count) in [(0, 1), (13, 50), (250, 51)] {
        let part = linear::forward(x.f32().narrow(0, start, count), w.f32()).to_data();
        let of_all: Vec<f32> = all.iter::<f32>().skip(start * 70).take(count * 70).collect();
        assert_eq!(part.iter::<f32>().collect::<Vec<_>>(), of_all);
    }
}

#[test]
fn threads_do_not_change_results() {
    let mut random = Random::new(6);
    let (x, w, dy) = (random.matrix(515, 530), random.matrix(530, 1100), random.matrix(515, 1100));
    assert_thread_independent("linear", || {
        vec![
            linear::forward(x.f32(), w.f32()),
            linear::backward_input(dy.f32(), w.f32()),
            linear::backward_weight(x.f32(), dy.f32()),
            linear::backward_bias(dy.f32()),
            linear::add_bias(dy.f32(), random_bias(1100)),
        ]
    });
}

fn random_bias(n: usize) -> burn::tensor::Tensor<2> {
    Random::new(7).matrix(1, n).f32()
}

/// Views that aren't contiguous, and tensors without elements.
#[test]
fn strange_layouts() {
    let mut random = Random::new(8);
    let (x, w) = (random.matrix(12, 8), random.matrix(12, 10));
    let y = linear::forward(x.f32().transpose(), w.f32());
    assert_close("transposed", &Matrix::of(y), &product(&transpose(&x), &w), 1e-5);
    let empty = Matrix::new(0, 8, |_, _| 0.0);
    assert_eq!(linear::forward(empty.f32(), random.matrix(8, 3).f32()).dims(), [0, 3]);
    let dw = linear::backward_weight(empty.f32(), Matrix::new(0, 3, |_, _| 0.0).f32());
    assert_eq!(Matrix::of(dw), Matrix::new(8, 3, |_, _| 0.0));
}

/// In-place addition must not write into tensors that others hold.
#[test]
fn shared_tensors_stay_as_they_are() {
    let mut random = Random::new(9);
    let (y, b) = (random.matrix(5, 6), random.matrix(1, 6));
    let (ours, other) = (y.f32(), y.f32());
    let kept = ours.clone();
    let _ = linear::add_bias(ours, b.f32());
    assert_eq!(kept.to_data(), other.to_data());
}
