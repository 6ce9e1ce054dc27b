use burn::tensor::DType;
use mt_config::Quantization;
use mt_model::ops::quantized::{Format, Recipe, backward_input, backward_weight, forward};

use crate::common::*;

/// What a format is, written down from its specification: bits, bias, and which codes are not numbers.
struct Specification {
    format: Format,
    mantissa_bits: u32,
    bias: i32,
    fnuz: bool,
    infinities: bool,
}

/// OCP 8-bit Floating Point Specification (e4m3fn, e5m2), and Noune et al., "8-bit Numerical Formats for Deep Neural Networks"
/// (the fnuz forms: one more in the bias, 0x80 is the only NaN).
const SPECIFICATIONS: [Specification; 4] = [
    Specification { format: Format::E4M3FN, mantissa_bits: 3, bias: 7, fnuz: false, infinities: false },
    Specification { format: Format::E5M2, mantissa_bits: 2, bias: 15, fnuz: false, infinities: true },
    Specification { format: Format::E4M3FNUZ, mantissa_bits: 3, bias: 8, fnuz: true, infinities: false },
    Specification { format: Format::E5M2FNUZ, mantissa_bits: 2, bias: 16, fnuz: true, infinities: false },
];

impl Specification {
    /// The number of a code; None for NaN and infinities.
    fn number(&self, code: u8) -> Option<f64> {
        let m = self.mantissa_bits;
        let exponent_bits = 7 - m;
        let (exponent, mantissa) =
            (i32::from(code >> m & ((1 << exponent_bits) - 1)), u32::from(code) & ((1 << m) - 1));
        let all_ones = exponent == (1 << exponent_bits) - 1;
        let is_number = match (self.fnuz, self.infinities) {
            (true, _) => code != 0x80,
            (_, true) => !all_ones,
            (_, false) => !(all_ones && mantissa == (1 << m) - 1),
        };
        let fraction = f64::from(mantissa) / f64::from(1 << m);
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(1 - self.bias),
            _ => (1.0 + fraction) * 2f64.powi(exponent - self.bias),
        };
        is_number.then_some(if code >= 0x80 { -magnitude } else { magnitude })
    }

    /// All numbers of 0 or more with their codes, rising.
    fn numbers(&self) -> Vec<(u8, f64)> {
        (0..0x80).filter_map(|code| Some((code, self.number(code)?))).collect()
    }
}

/// Every code of every format is its own rounding, and the formats are as large as their specifications say.
#[test]
fn all_codes_are_themselves() {
    for (specification, (count, max, smallest)) in SPECIFICATIONS.iter().zip([
        (254, 448.0, 2f64.powi(-9)),
        (248, 57344.0, 2f64.powi(-16)),
        (255, 240.0, 2f64.powi(-10)),
        (255, 57344.0, 2f64.powi(-17)),
    ]) {
        let format = specification.format;
        let codes: Vec<f64> = (0..=255).filter_map(|code| specification.number(code)).collect();
        assert_eq!(codes.len(), count, "{format:?}");
        for number in codes {
            assert_eq!(f64::from(format.round(number as f32)), number, "{format:?}");
        }
        let numbers = specification.numbers();
        assert_eq!((numbers[1].1, numbers.last().unwrap().1), (smallest, max), "{format:?}");
        assert_eq!(f64::from(format.max()), max);
    }
}

/// Between two neighbours: the nearer one, and from the middle the one with an even code.
#[test]
fn everything_between_goes_to_the_nearest_ties_to_even() {
    for specification in &SPECIFICATIONS {
        let format = specification.format;
        for pair in specification.numbers().windows(2) {
            let [(low_code, low), (_, high)] = [pair[0], pair[1]];
            let even = if low_code % 2 == 0 { low } else { high };
            let middle = (low + high) / 2.0;
            let below = f64::from((middle as f32).next_down());
            let above = f64::from((middle as f32).next_up());
            assert_eq!(f64::from(middle as f32), middle, "float32 holds the middle");
            for (x, expected) in
                [(middle, even), (below, low), (above, high), (low * 0.75 + high * 0.25, low)]
            {
                assert_eq!(f64::from(format.round(x as f32)), expected, "{format:?}: {x}");
                assert_eq!(f64::from(format.round(-x as f32)), -expected, "{format:?}: -{x}");
            }
        }
    }
}

#[test]
fn beyond_the_largest_saturates_and_nan_stays() {
    for specification in &SPECIFICATIONS {
        let (format, max) = (specification.format, specification.format.max());
        for x in [max * 1.01, max * 2.0, f32::MAX, f32::INFINITY] {
            assert_eq!((format.round(x), format.round(-x)), (max, -max), "{format:?}: {x}");
        }
        assert!(format.round(f32::NAN).is_nan());
        for x in [0.0, -0.0, 1e-30, -1e-30, f32::MIN_POSITIVE, -1e-45] {
            assert_eq!(format.round(x), 0.0, "{format:?}: {x}");
            // There is no negative zero in the fnuz formats.
            assert!(!specification.fnuz || format.round(x).is_sign_positive(), "{format:?}: {x}");
        }
    }
}

fn recipes() -> Vec<(Quantization, Recipe)> {
    let all = [Quantization::Int8, Quantization::Fp8, Quantization::NanooFp8];
    all.into_iter().filter_map(|quantization| Some((quantization, Recipe::of(quantization)?))).collect()
}

/// The recipes by their definition, in float64 but for scales, which are float32.
fn quantized(x: &Matrix, over_rows: bool, cotangent: bool, recipe: Recipe) -> Matrix {
    let largest =
        |values: &mut dyn Iterator<Item = f64>| values.fold(0.0f64, |max, x| max.max(x.abs())) as f32;
    Matrix::new(x.rows, x.cols, |r, c| match recipe {
        Recipe::Int8 => {
            let max = match over_rows {
                true => largest(&mut (0..x.rows).map(|r| x.at(r, c))),
                false => largest(&mut x.row(r).iter().copied()),
            };
            let q = (x.at(r, c) as f32 * (127.5 / max)).round_ties_even().clamp(-127.0, 127.0);
            f64::from(q) * f64::from(max / 127.5)
        }
        Recipe::Float8 { forward, backward } => {
            let format = if cotangent { backward } else { forward };
            let scale = largest(&mut x.data.iter().copied()) / format.max();
            f64::from(format.round(x.at(r, c) as f32 / scale)) * f64::from(scale)
        }
    })
}

fn product(a: &Matrix, b: &Matrix) -> Matrix {
    Matrix::new(a.rows, b.cols, |i, j| (0..a.cols).map(|p| a.at(i, p) * b.at(p, j)).sum())
}

fn transpose(a: &Matrix) -> Matrix {
    Matrix::new(a.cols, a.rows, |i, j| a.at(j, i))
}

const SHAPES: [[usize; 3]; 5] = [[1, 1, 1], [3, 70, 5], [65, 33, 70], [130, 40, 9], [2, 1500, 3]];

#[test]
fn forward_is_the_definition() {
    let mut random = Random::new(31);
    for &[t, i, o] in &SHAPES[SKIP_SHAPES..] {
        let (x, w) = (random.matrix(t, i), random.matrix(i, o));
        for (name, recipe) in recipes() {
            let expected = product(&quantized(&x, false, false, recipe), &quantized(&w, true, false, recipe));
            let y = forward(x.f32(), w.f32(), recipe);
            assert_close(
                &format!("{name:?} {t} {i} {o}"),
                &Matrix::of(y),
                &expected,
                2e-6 * (i as f64).sqrt().max(2.0),
            );
            if !bfloat16() {
                continue;
            }
            // bfloat16: operands are rounded first, the result once.
            let (x, w) = (Matrix::of(x.bf16()), Matrix::of(w.bf16()));
            let expected = product(&quantized(&x, false, false, recipe), &quantized(&w, true, false, recipe));
            let y = forward(x.bf16(), w.f32(), recipe);
            assert_eq!(y.dtype(), DType::BF16);
            assert_close(&format!("{name:?} {t} {i} {o}"), &Matrix::of(y), &expected, BF16 + 1e-5);
        }
    }
}

#[test]
fn backward_is_the_definition() {
    let mut random = Random::new(32);
    for &[t, i, o] in &SHAPES[SKIP_SHAPES..] {
        let (x, w, dy) = (random.matrix(t, i), random.matrix(i, o), random.matrix(t, o));
        for (name, recipe) in recipes().into_iter().filter(|(_, recipe)| *recipe != Recipe::Int8) {
            let (x_q, w_q) = (quantized(&x, true, false, recipe), quantized(&w, false, false, recipe));
            let (dy_rows, dy_cols) =
                (quantized(&dy, false, true, recipe), quantized(&dy, true, true, recipe));
            let dx = backward_input(dy.f32(), w.f32(), recipe);
            assert_close(
                &format!("{name:?} dx"),
                &Matrix::of(dx),
                &product(&dy_rows, &transpose(&w_q)),
                1e-5,
            );
            let dw = backward_weight(x.f32(), dy.f32(), recipe);
            assert_close(
                &format!("{name:?} dw"),
                &Matrix::of(dw),
                &product(&transpose(&x_q), &dy_cols),
                1e-5,
            );
        }
    }
}

/// int8 cotangents are rounded at random but without bias: the mean over many places is the number itself, and every number is
/// one of its two neighbours.
#[test]
fn int8_cotangents_are_dithered() {
    let recipe = Recipe::Int8;
    let n = 4096;
    // Rows of 127.5 and 10.3 with an identity kernel, whose own rounding 127 / 127.5 is divided out.
    let dy = Matrix::new(n, 2, |_, c| [127.5, 10.3][c]);
    let identity = Matrix::new(2, 2, |r, c| f64::from(u8::from(r == c)));
    let dx = Matrix::of(backward_input(dy.f32(), identity.f32(), recipe));
    let quantum = 127.0 / 127.5;
    // The noise is a function of place and value: other places give other draws.
    let values: Vec<f64> = (0..n).map(|r| dx.at(r, 1) / quantum).collect();
    assert!(values.iter().all(|v| (v - 10.0).abs() < 1e-4 || (v - 11.0).abs() < 1e-4));
    let mean = values.iter().sum::<f64>() / n as f64;
    assert!((mean - 10.3).abs() < 0.03, "{mean}");
    assert_eq!(
        dx,
        Matrix::of(backward_input(dy.f32(), identity.f32(), recipe)),
        "a step can be computed again"
    );
}

/// Straight through: the gradients are near those of the product without rounding.
#[test]
fn gradients_are_near_the_unrounded_ones() {
    let mut random = Random::new(33);
    let (x, w, dy) = (random.matrix(64, 96), random.matrix(96, 80), random.matrix(64, 80));
    let off = |found: burn::tensor::Tensor<2>, expected: &Matrix| {
        let found = Matrix::of(found);
        let difference = Matrix::new(found.rows, found.cols, |r, c| found.at(r, c) - expected.at(r, c));
        difference.norm() / expected.norm()
    };
    for (name, recipe) in recipes() {
        let bound = if recipe == Recipe::Int8 { 0.02 } else { 0.1 };
        for (what, error) in [
            ("y", off(forward(x.f32(), w.f32(), recipe), &product(&x, &w))),
            ("dx", off(backward_input(dy.f32(), w.f32(), recipe), &product(&dy, &transpose(&w)))),
            ("dw", off(backward_weight(x.f32(), dy.f32(), recipe), &product(&transpose(&x), &dy))),
        ] {
            assert!(error < bound, "{name:?} {what}: {error}");
        }
    }
}

/// The composition of tensor operations: as the kernels, but for ties and, in int8, the noise of cotangents.
#[test]
fn plain_is_near_the_kernels() {
    let mut random = Random::new(34);
    let (x, w, dy) = (random.matrix(20, 30), random.matrix(30, 40), random.matrix(20, 40));
    let plain = |x: &Matrix| x.on(DType::F32, &device().autodiff());
    for (name, recipe) in recipes() {
        let close = |what: &str, plain, kernel, bound| {
            assert_close(&format!("{name:?} {what}"), &Matrix::of(plain), &Matrix::of(kernel), bound);
        };
        let bound = if recipe == Recipe::Int8 { 0.05 } else { 0.02 };
        close("y", forward(plain(&x), plain(&w), recipe), forward(x.f32(), w.f32(), recipe), 0.02);
        close(
            "dx",
            backward_input(plain(&dy), plain(&w), recipe),
            backward_input(dy.f32(), w.f32(), recipe),
            bound,
        );
        close(
            "dw",
            backward_weight(plain(&x), plain(&dy), recipe),
            backward_weight(x.f32(), dy.f32(), recipe),
            bound,
        );
    }
}

#[test]
fn zeros_nothing_nan_and_threads() {
    let zeros = Matrix::new(3, 4, |_, _| 0.0);
    for (name, recipe) in recipes() {
        let y = Matrix::of(forward(zeros.f32(), transpose(&zeros).f32(), recipe));
        assert_eq!(y, Matrix::new(3, 3, |_, _| 0.0), "{name:?}");
        let empty = Matrix::new(0, 4, |_, _| 0.0);
        assert_eq!(forward(empty.f32(), transpose(&zeros).f32(), recipe).dims(), [0, 3]);
        assert_eq!(backward_weight(empty.f32(), Matrix::new(0, 3, |_, _| 0.0).f32(), recipe).dims(), [4, 3]);
        let mut bad = Matrix::new(3, 4, |_, c| c as f64);
        bad.data[5] = f64::NAN;
        let y = Matrix::of(forward(bad.f32(), Matrix::new(4, 2, |_, _| 1.0).f32(), recipe));
        assert!(y.row(1).iter().all(|y| y.is_nan()), "{name:?}: {y:?}");

        let mut random = Random::new(35);
        let (x, w, dy) = (random.matrix(150, 300), random.matrix(300, 210), random.matrix(150, 210));
        assert_thread_independent("quantized", || {
            vec![
                forward(x.f32(), w.f32(), recipe),
                backward_input(dy.f32(), w.f32(), recipe),
                backward_weight(x.f32(), dy.f32(), recipe),
            ]
        });
    }
}
