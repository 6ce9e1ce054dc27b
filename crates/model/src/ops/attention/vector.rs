//! Vector arithmetic of the CPU kernels: loads, stores, exp and tanh for any instruction set.
//!
//! `exp` writes x = n ln 2 + r with |r| <= ln 2 / 2 and sums a polynomial of degree 6 in r (error 0.1 ulp before
//! rounding; coefficients interpolate (e^r - 1) / r at Chebyshev nodes), then adds n to the exponent bits.

use macerator::{Scalar, Simd, Vector, vload_unaligned, vstore_unaligned};

/// A vector of float32 of the instruction set `S`.
pub(super) type V<S> = Vector<S, f32>;

/// All lanes `x`.
#[inline(always)]
pub(super) fn splat<S: Simd>(x: f32) -> V<S> {
    x.splat()
}

/// The vector at `x[at..]`.
#[inline(always)]
pub(super) fn load<S: Simd>(x: &[f32], at: usize) -> V<S> {
    let lanes = &x[at..at + S::lanes32()];
    // SAFETY: the slice holds one whole vector; the load needs no alignment.
    unsafe { vload_unaligned(lanes.as_ptr()) }
}

/// The vector of integers at `x[at..]`.
#[inline(always)]
pub(super) fn load_i32<S: Simd>(x: &[i32], at: usize) -> Vector<S, i32> {
    let lanes = &x[at..at + S::lanes32()];
    // SAFETY: as in `load`.
    unsafe { vload_unaligned(lanes.as_ptr()) }
}

/// Writes a vector to `x[at..]`.
#[inline(always)]
pub(super) fn store<S: Simd>(x: &mut [f32], at: usize, value: V<S>) {
    let lanes = &mut x[at..at + S::lanes32()];
    // SAFETY: the slice holds one whole vector; the store needs no alignment.
    unsafe { vstore_unaligned(lanes.as_mut_ptr(), value) }
}

/// e^x for x <= 88, within 1 ulp. Below the smallest normal number the result is exactly 0, so that masked scores
/// (-inf) weigh nothing. NaN stays NaN.
#[inline(always)]
pub(super) fn exp<S: Simd>(x: V<S>) -> V<S> {
    // Adding this rounds to an integer and leaves it in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    const LN2_HIGH: f32 = 0.693_359_4; // 9 significant bits: n * LN2_HIGH is exact
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const SMALLEST: f32 = -87.336_54; // ln 2^-126
    const C: [f32; 6] = [1.0, 0.5, 0.166_665_05, 0.041_666_465, 0.008_369_156, 0.001_393_365];

    let rounded = x.mul_add(splat(std::f32::consts::LOG2_E), splat(ROUND));
    let n = rounded - splat(ROUND);
    let r = n.mul_add(splat(-LN2_HIGH), x);
    let r = n.mul_add(splat(-LN2_LOW), r);
    let mut p: V<S> = splat(C[5]);
    for c in [C[4], C[3], C[2], C[1], C[0], 1.0] {
        p = p.mul_add(r, splat(c));
    }
    let scaled = (p.reinterpret::<i32>() + (rounded.reinterpret::<i32>() << 23)).reinterpret::<f32>();
    x.lt(splat(SMALLEST)).select(splat(0.0), scaled)
}

/// tanh x within 3 ulp.
#[inline(always)]
pub(super) fn tanh<S: Simd>(x: V<S>) -> V<S> {
    // (tanh y / y - 1) / y^2 in powers of y^2, |y| <= 0.65.
    const C: [f32; 5] = [-0.333_333_28, 0.133_325_84, -0.053_823_76, 0.020_873_46, -0.005_923_726];
    let square = x * x;
    let mut p: V<S> = splat(C[4]);
    for c in [C[3], C[2], C[1], C[0]] {
        p = p.mul_add(square, splat(c));
    }
    let small = (p * square).mul_add(x, x);

    let magnitude = x.max(splat::<S>(0.0) - x);
    let e = exp(magnitude * splat(-2.0));
    let large = (splat::<S>(1.0) - e) / (splat::<S>(1.0) + e);
    let large = x.lt(splat(0.0)).select(splat::<S>(0.0) - large, large);
    magnitude.gt(splat(0.625)).select(large, small)
}

#[cfg(test)]
mod tests {
    use super::*;
    use macerator::{Arch, AutoArch, WithSimd};

    /// Applies a vector function to every value of a slice whose length is a multiple of 16.
    struct Map<'a> {
        values: &'a mut [f32],
        tanh: bool,
    }

    impl WithSimd for Map<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self) {
            for at in (0..self.values.len()).step_by(S::lanes32()) {
                let x = load::<S>(self.values, at);
                store::<S>(self.values, at, if self.tanh { tanh(x) } else { exp(x) });
            }
        }
    }

    fn check(tanh: bool, low: f32, high: f32, reference: fn(f64) -> f64, max_ulp: f64) {
        let n = 1 << 18;
        let inputs: Vec<f32> = (0..n).map(|i| low + (high - low) * i as f32 / n as f32).collect();
        let mut fast = inputs.clone();
        AutoArch::new().dispatch(Map { values: &mut fast, tanh });
        let mut portable = inputs.clone();
        // SAFETY: the scalar code path needs no CPU feature.
        unsafe { Arch::Scalar.dispatch(Map { values: &mut portable, tanh }) };
        for results in [fast, portable] {
            for (&x, y) in inputs.iter().zip(results) {
                let expected = reference(f64::from(x));
                let ulp = f64::from((expected as f32).abs().max(f32::MIN_POSITIVE)) * f64::from(f32::EPSILON);
                let error = (f64::from(y) - expected).abs() / ulp;
                assert!(error <= max_ulp, "f({x}) = {y}, expected {expected}: {error} ulp");
            }
        }
    }

    #[test]
    fn exp_is_within_one_ulp() {
        check(false, -87.3, 88.0, f64::exp, 1.0);
        check(false, -1.0, 1.0, f64::exp, 1.0);
    }

    #[test]
    fn tanh_is_within_three_ulp() {
        check(true, -12.0, 12.0, f64::tanh, 3.0);
        check(true, -0.7, 0.7, f64::tanh, 3.0);
    }

    #[test]
    fn exp_of_masked_zero_and_nan() {
        let mut values = vec![0.0; 16];
        values[..5].copy_from_slice(&[f32::NEG_INFINITY, -1e30, -88.0, 0.0, f32::NAN]);
        AutoArch::new().dispatch(Map { values: &mut values, tanh: false });
        assert_eq!(values[..4], [0.0, 0.0, 0.0, 1.0]);
        assert!(values[4].is_nan());
    }
}
