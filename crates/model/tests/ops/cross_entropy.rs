use burn::tensor::{Device, Int, Tensor};
use mt_model::ops::cross_entropy::{self, Backward, Head, Spec};

use crate::common::*;

const PLAIN: Spec = Spec {
    z_loss_multiplier: 0.0,
    soft_cap: None,
    logits_scale: 1.0,
    dot_in_fp32: false,
    cast_fp32: true,
    tiling: 1,
};

/// Hidden states, kernel [E, V], targets and weights.
struct Problem {
    h: Matrix,
    w: Matrix,
    targets: Vec<usize>,
    weights: Vec<f64>,
}

impl Problem {
    fn new(seed: u64, [tokens, e, v]: [usize; 3]) -> Self {
        let mut random = Random::new(seed);
        Self {
            h: random.matrix_bf16(tokens, e),
            w: random.matrix_bf16(e, v),
            targets: (0..tokens).map(|_| random.below(v)).collect(),
            weights: (0..tokens).map(|_| random.below(4).min(1) as f64).collect(),
        }
    }

    fn targets(&self, device: &Device) -> Tensor<1, Int> {
        let targets: Vec<i32> = self.targets.iter().map(|&t| t as i32).collect();
        Tensor::from_ints(targets.as_slice(), device)
    }

    fn weights(&self, device: &Device) -> Tensor<1> {
        let weights: Vec<f32> = self.weights.iter().map(|&w| w as f32).collect();
        Tensor::from_floats(weights.as_slice(), device)
    }

    fn factor(&self) -> f64 {
        1.0 / self.weights.iter().sum::<f64>().max(1.0)
    }

    fn table(&self) -> Matrix {
        Matrix::new(self.w.cols, self.w.rows, |v, e| self.w.at(e, v))
    }

    fn run(&self, tied: bool, spec: &Spec) -> Backward {
        let device = device();
        let head = if tied { Head::Embedding(self.table().f32()) } else { Head::Dense(self.w.f32()) };
        let (targets, weights) = (self.targets(&device), self.weights(&device));
        cross_entropy::forward_backward(self.h.f32(), head, &targets, &weights, self.factor(), spec)
    }
}

/// Sums of cross-entropy (with z-loss) and of z-loss.
fn reference(h: &Matrix, w: &Matrix, problem: &Problem, spec: &Spec) -> (f64, f64) {
    let (mut xent, mut z_loss) = (0.0, 0.0);
    for t in 0..h.rows {
        let logit = |v: usize| {
            let a = spec.logits_scale * (0..h.cols).map(|e| h.at(t, e) * w.at(e, v)).sum::<f64>();
            spec.soft_cap.map_or(a, |cap| cap * (a / cap).tanh())
        };
        let logits: Vec<f64> = (0..w.cols).map(logit).collect();
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_z = max + logits.iter().map(|l| (l - max).exp()).sum::<f64>().ln();
        let z = spec.z_loss_multiplier * log_z * log_z;
        xent += problem.weights[t] * (log_z - logits[problem.targets[t]] + z);
        z_loss += problem.weights[t] * z;
    }
    (xent, z_loss)
}

fn specs() -> [Spec; 4] {
    [
        PLAIN,
        Spec { z_loss_multiplier: 1e-2, ..PLAIN },
        Spec { soft_cap: Some(3.0), z_loss_multiplier: 1e-3, ..PLAIN },
        Spec { logits_scale: 0.25, tiling: 3, soft_cap: Some(30.0), ..PLAIN },
    ]
}

#[test]
fn matches_float64_and_finite_differences() {
    for (i, shape) in [[1, 1, 2], [5, 3, 7], [67, 12, 41]].into_iter().enumerate().skip(SKIP_SHAPES) {
        for spec in specs() {
            for tied in [false, true] {
                let problem = Problem::new(i as u64 + 1, shape);
                let got = problem.run(tied, &spec);
                let (xent, z_loss) = reference(&problem.h, &problem.w, &problem, &spec);
                assert!((got.xent_sum - xent).abs() <= 3e-6 * xent.abs().max(1.0), "{} {xent}", got.xent_sum);
                assert!(
                    (got.z_loss_sum - z_loss).abs() <= 3e-6 * z_loss.abs().max(1e-3),
                    "{} {z_loss}",
                    got.z_loss_sum
                );
                let loss = |h: &Matrix, w: &Matrix| problem.factor() * reference(h, w, &problem, &spec).0;
                let dh = Matrix::of(got.dh);
                assert_gradient("dh", &problem.h, &dh, 3e-5, |h| loss(h, &problem.w));
                let dw = Matrix::of(got.dw);
                let dw = if tied { Matrix::new(dw.cols, dw.rows, |e, v| dw.at(v, e)) } else { dw };
                assert_gradient("dw", &problem.w, &dw, 3e-5, |w| loss(&problem.h, w));
            }
        }
    }
}

/// A vocabulary of several chunks and several tiles, against burn's autodiff and the plain composition.
#[test]
fn matches_autodiff_over_chunks_and_tiles() {
    let problem = Problem::new(9, [150, 24, 4500]);
    let ad = device().autodiff();
    for spec in [Spec { tiling: 4, z_loss_multiplier: 1e-3, ..PLAIN }, Spec { soft_cap: Some(20.0), ..PLAIN }]
    {
        for tied in [false, true] {
            let got = problem.run(tied, &spec);
            let (h, w) =
                (problem.h.tracked(), if tied { problem.table() } else { problem.w.clone() }.tracked());
            let head = if tied { Head::Embedding(w.clone()) } else { Head::Dense(w.clone()) };
            let (targets, weights) = (problem.targets(&ad), problem.weights(&ad));
            let logits = cross_entropy::logits(h.clone(), head.clone(), &spec);
            let log_z = logits.clone().exp().sum_dim(1).log();
            let picked = logits.gather(1, targets.clone().reshape([150, 1]));
            let z_loss = (log_z.clone() * log_z.clone()).mul_scalar(spec.z_loss_multiplier);
            let loss = (log_z - picked + z_loss) * weights.clone().reshape([150, 1]);
            let grads = loss.sum().mul_scalar(problem.factor()).backward();
            assert_close("dh", &Matrix::of(got.dh.clone()), &Matrix::of(h.grad(&grads).unwrap()), 2e-5);
            assert_close("dw", &Matrix::of(got.dw.clone()), &Matrix::of(w.grad(&grads).unwrap()), 2e-5);

            let plain = cross_entropy::forward_backward(h, head, &targets, &weights, problem.factor(), &spec);
            assert!((plain.xent_sum / got.xent_sum - 1.0).abs() < 1e-6);
            assert_close("plain dh", &Matrix::of(plain.dh.inner()), &Matrix::of(got.dh), 2e-5);
            assert_close("plain dw", &Matrix::of(plain.dw.inner()), &Matrix::of(got.dw), 2e-5);
        }
    }
}

#[test]
fn forward_alone_and_logits_agree() {
    let problem = Problem::new(11, [40, 16, 3000]);
    let device = device();
    for spec in specs() {
        let head = || Head::Dense(problem.w.f32());
        let (targets, weights) = (problem.targets(&device), problem.weights(&device));
        let sums = cross_entropy::forward(problem.h.f32(), head(), &targets, &weights, &spec);
        let both = problem.run(false, &spec);
        assert_eq!((sums.xent_sum, sums.z_loss_sum), (both.xent_sum, both.z_loss_sum));
        let logits = Matrix::of(cross_entropy::logits(problem.h.f32(), head(), &spec));
        let want = Matrix::new(40, 3000, |t, v| {
            let a = spec.logits_scale * (0..16).map(|e| problem.h.at(t, e) * problem.w.at(e, v)).sum::<f64>();
            spec.soft_cap.map_or(a, |cap| cap * (a / cap).tanh())
        });
        assert_close("logits", &logits, &want, 3e-6);
    }
}

/// Logits are rounded to bfloat16 (unless the product is float32), so a loss of a few nats is off by up to half a unit in the
/// last place of a logit; gradients are off by as much relatively, plus the rounding of dh.
#[test]
fn bfloat16_rounds_logits_as_maxtext_does() {
    if !bfloat16() {
        return;
    }
    let problem = Problem::new(12, [64, 32, 700]);
    let device = device();
    let (targets, weights) = (problem.targets(&device), problem.weights(&device));
    let exact = problem.run(false, &PLAIN);
    let largest = Matrix::of(cross_entropy::logits(problem.h.f32(), Head::Dense(problem.w.f32()), &PLAIN));
    let largest = largest.data.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    for (spec, off) in [(PLAIN, largest * BF16), (Spec { dot_in_fp32: true, ..PLAIN }, 0.0)] {
        let head = Head::Dense(problem.w.f32());
        let got = cross_entropy::forward_backward(
            problem.h.bf16(),
            head,
            &targets,
            &weights,
            problem.factor(),
            &spec,
        );
        let per_token = (got.xent_sum - exact.xent_sum).abs() * problem.factor();
        assert!(per_token <= off + 1e-6, "{per_token} {off}");
        assert_close("dh", &Matrix::of(got.dh), &Matrix::of(exact.dh.clone()), off.exp_m1() * 4.0 + BF16);
        assert_close("dw", &Matrix::of(got.dw), &Matrix::of(exact.dw.clone()), off.exp_m1() * 4.0 + 1e-5);
    }
    let rounded = Matrix::of(cross_entropy::logits(problem.h.bf16(), Head::Dense(problem.w.f32()), &PLAIN));
    assert_eq!(rounded, Matrix::of(rounded.bf16()));
}

/// Rows of weight 0 have no influence whatever they hold; a bad target on a row that counts is loud.
#[test]
fn masked_rows_do_not_count() {
    let mut problem = Problem::new(13, [30, 8, 50]);
    problem.weights[3] = 0.0;
    problem.weights[4] = 1.0;
    let clean = problem.run(false, &PLAIN);
    problem.targets[3] = 1_000_000;
    for e in 0..8 {
        problem.h.data[3 * 8 + e] = 1e30;
    }
    let masked = problem.run(false, &PLAIN);
    assert_eq!((masked.xent_sum, masked.dh.to_data()), (clean.xent_sum, clean.dh.to_data()));
    assert_eq!(masked.dw.to_data(), clean.dw.to_data());
    assert!(Matrix::of(clean.dh).row(3).iter().all(|&v| v == 0.0));
    problem.targets[4] = 50;
    assert!(problem.run(false, &PLAIN).xent_sum.is_nan());
}

/// Logits of hundreds, where a naive exponential overflows.
#[test]
fn large_logits_are_stable() {
    let mut problem = Problem::new(14, [20, 8, 60]);
    problem.w.data.iter_mut().for_each(|v| *v *= 128.0);
    let got = problem.run(false, &PLAIN);
    let (xent, _) = reference(&problem.h, &problem.w, &problem, &PLAIN);
    assert!((got.xent_sum / xent - 1.0).abs() < 1e-6);
    assert!(Matrix::of(got.dw).data.iter().all(|v| v.is_finite()));
}

#[test]
fn threads_and_tiles_do_not_change_results() {
    let problem = Problem::new(15, [333, 40, 5000]);
    assert_thread_independent("cross_entropy", || {
        let got = problem.run(true, &PLAIN);
        vec![got.dh, got.dw, Tensor::from_floats([[got.xent_sum as f32]], &device())]
    });
    let (one, three) = (problem.run(false, &PLAIN), problem.run(false, &Spec { tiling: 3, ..PLAIN }));
    assert_eq!((one.xent_sum, one.dh.to_data()), (three.xent_sum, three.dh.to_data()));
}
