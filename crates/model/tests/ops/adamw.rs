use burn::tensor::{DType, Tensor};
use mt_model::ops::adamw::{self, Dither, Hyper};

use crate::common::*;

fn hyper(step: i32) -> Hyper {
    Hyper {
        learning_rate: 3e-3,
        b1: 0.9,
        b2: 0.95,
        bias_correction1: 1.0 - 0.9f64.powi(step),
        bias_correction2: 1.0 - 0.95f64.powi(step),
        look_ahead: None,
        eps: 1e-8,
        eps_root: 1e-10,
        weight_decay: 0.1,
        grad_scale: 0.37,
        stochastic_rounding: None,
    }
}

/// optax.adamw in float64.
fn reference(param: &mut Matrix, grad: &Matrix, mu: &mut Matrix, nu: &mut Matrix, h: &Hyper) {
    for i in 0..param.data.len() {
        let g = grad.data[i] * h.grad_scale;
        mu.data[i] = h.b1 * mu.data[i] + (1.0 - h.b1) * g;
        nu.data[i] = h.b2 * nu.data[i] + (1.0 - h.b2) * g * g;
        let root = (nu.data[i] / h.bias_correction2 + h.eps_root).sqrt();
        let direction = match h.look_ahead {
            None => mu.data[i] / h.bias_correction1,
            Some(next) => h.b1 * mu.data[i] / next + (1.0 - h.b1) * g / h.bias_correction1,
        };
        let update = direction / (root + h.eps) + h.weight_decay * param.data[i];
        param.data[i] -= h.learning_rate * update;
    }
}

#[test]
fn five_steps_match_float64_and_the_plain_composition() {
    let mut random = Random::new(1);
    for (rows, cols, nesterov) in [(1, 3, false), (130, 257, false), (7, 130, true)] {
        let hyper =
            |step: i32| Hyper { look_ahead: nesterov.then(|| 1.0 - 0.9f64.powi(step + 1)), ..hyper(step) };
        let mut param = random.matrix(rows, cols);
        let (mut mu, mut nu) = (Matrix::new(rows, cols, |_, _| 0.0), Matrix::new(rows, cols, |_, _| 0.0));
        let (mut p, mut m, mut n) = (param.f32(), mu.f32(), nu.f32());
        let (mut pp, mut pm, mut pn) =
            (param.tracked().detach(), mu.tracked().detach(), nu.tracked().detach());
        for step in 1..=5 {
            let grad = random.matrix(rows, cols);
            reference(&mut param, &grad, &mut mu, &mut nu, &hyper(step));
            let updated = adamw::update(p, grad.f32(), m, n, &hyper(step));
            let squares = Matrix::of(updated.param.clone()).norm().powi(2);
            assert!((updated.param_squares.read() / squares - 1.0).abs() < SUM_OF_SQUARES);
            (p, m, n) = (updated.param, updated.mu, updated.nu);
            let grad = grad.on(DType::F32, &device().autodiff());
            let plain = adamw::update(pp, grad, pm, pn, &hyper(step));
            (pp, pm, pn) = (plain.param, plain.mu, plain.nu);
        }
        for (name, got, want) in [("param", p, &param), ("mu", m, &mu), ("nu", n, &nu)] {
            assert_close(name, &Matrix::of(got), want, 3e-6);
        }
        for (name, got, want) in [("param", pp, &param), ("mu", pm, &mu), ("nu", pn, &nu)] {
            assert_close(name, &Matrix::of(got.inner()), want, 3e-6);
        }
    }
}

/// Types mix freely; each is rounded once, when stored, so one step is off by half a unit in its last place.
#[test]
fn types_mix() {
    let mut random = Random::new(2);
    if !bfloat16() {
        return;
    }
    let types = [DType::F32, DType::BF16];
    for (p, g, m, n) in (0..16).map(|i| (types[i & 1], types[i >> 1 & 1], types[i >> 2 & 1], types[i >> 3])) {
        let (mut param, grad) = (random.matrix_bf16(9, 41), random.matrix_bf16(9, 41));
        let (mut mu, mut nu) = (random.matrix_bf16(9, 41), random.matrix_bf16(9, 41));
        nu.data.iter_mut().for_each(|v| *v = v.abs());
        let on = |x: &Matrix, t| x.on(t, &device());
        let updated = adamw::update(on(&param, p), on(&grad, g), on(&mu, m), on(&nu, n), &hyper(3));
        reference(&mut param, &grad, &mut mu, &mut nu, &hyper(3));
        let bound = |t| if t == DType::BF16 { BF16 + 1e-5 } else { 1e-5 };
        assert_eq!((updated.param.dtype(), updated.mu.dtype(), updated.nu.dtype()), (p, m, n));
        assert_close("param", &Matrix::of(updated.param), &param, bound(p));
        assert_close("mu", &Matrix::of(updated.mu), &mu, bound(m));
        assert_close("nu", &Matrix::of(updated.nu), &nu, bound(n));
    }
}

/// An update of a tenth of the spacing of bfloat16 vanishes when rounded to nearest and counts on average when dithered.
#[test]
fn stochastic_rounding_is_unbiased_and_seeded() {
    if !bfloat16() {
        return;
    }
    let (rows, cols) = (100, 1000);
    let constant = |v: f64| Matrix::new(rows, cols, |_, _| v).f32();
    let spacing = 1.0 / 128.0; // of bfloat16 in [1, 2)
    let step = |seed: Option<u64>| {
        let h = Hyper {
            learning_rate: spacing / 10.0,
            weight_decay: 0.0,
            bias_correction1: 0.1,
            bias_correction2: 0.05,
            eps_root: 0.0,
            grad_scale: 1.0,
            stochastic_rounding: seed.map(|seed| Dither { seed, first: 0 }),
            ..hyper(1)
        };
        let param = Matrix::new(rows, cols, |_, _| 1.5).bf16();
        adamw::update(param, constant(-1.0), constant(0.0), constant(0.0), &h).param
    };
    let mean = |x: Tensor<2>| Matrix::of(x).data.iter().sum::<f64>() / (rows * cols) as f64;
    assert_eq!(mean(step(None)), 1.5);
    let moved = (mean(step(Some(7))) - 1.5) / spacing;
    // Standard error sqrt(0.1 * 0.9 / 1e5) = 0.00095.
    assert!((moved - 0.1).abs() < 0.005, "{moved}");
    assert_eq!(step(Some(7)).to_data(), step(Some(7)).to_data());
    assert!(step(Some(7)).to_data() != step(Some(8)).to_data());
    // Neighbours and seeds are independent: the share of pairs that move together is 0.01.
    let (a, b) = (Matrix::of(step(Some(7))), Matrix::of(step(Some(8))));
    let up = |v: &f64| *v > 1.5;
    let both = a.data.iter().zip(&b.data).filter(|(a, b)| up(a) && up(b)).count() as f64 / 1e5;
    let next = a.data.windows(2).filter(|w| up(&w[0]) && up(&w[1])).count() as f64 / 1e5;
    assert!((both - 0.01).abs() < 0.002 && (next - 0.01).abs() < 0.002, "{both} {next}");
}

/// Parts of a parameter that know their place are rounded as they are in the whole.
#[test]
fn shards_are_rounded_as_the_whole() {
    if !bfloat16() {
        return;
    }
    let (len, cut) = (40_000, 13_000);
    let step = |range: std::ops::Range<usize>| {
        let wave = |f: &dyn Fn(f64) -> f64| {
            let range = range.clone();
            Matrix::new(1, range.len(), |_, i| f((range.start + i) as f64))
        };
        let dither = Dither { seed: 11 << 32 | 3, first: range.start as u32 };
        let h = Hyper { stochastic_rounding: Some(dither), ..hyper(2) };
        let param = wave(&|i| (0.01 * i).sin()).bf16();
        let updated = adamw::update(
            param,
            wave(&|i| (0.7 * i).cos()).f32(),
            wave(&|_| 0.1).f32(),
            wave(&|_| 0.01).f32(),
            &h,
        );
        Matrix::of(updated.param).data
    };
    assert_eq!(step(0..len), [step(0..cut), step(cut..len)].concat());
}

#[test]
fn threads_do_not_change_results() {
    let mut random = Random::new(3);
    let (p, g, m, n) =
        (random.matrix(300, 200), random.matrix(300, 200), random.matrix(300, 200), random.matrix(300, 200));
    let n = Matrix { data: n.data.iter().map(|v| v.abs()).collect(), ..n };
    assert_thread_independent("adamw", || {
        let h = Hyper { stochastic_rounding: Some(Dither { seed: 5, first: 0 }), ..hyper(2) };
        let f32 = adamw::update(p.f32(), g.f32(), m.f32(), n.f32(), &h);
        if !bfloat16() {
            return vec![f32.param, f32.mu, f32.nu];
        }
        let bf16 = adamw::update(p.bf16(), g.f32(), m.bf16(), n.bf16(), &h);
        vec![f32.param, f32.mu, f32.nu, bf16.param, bf16.mu, bf16.nu]
    });
}
