//! Float32 functions that loops over slices turn into vector instructions, and the switch between instruction sets.
//!
//! Binaries are built for any x86-64 CPU. [`vectorized!`] compiles a function three times and picks at run time. What it
//! calls has to be `#[inline(always)]`, or it would be compiled for the oldest CPU; the same goes for closures that are more
//! than an expression, so loops are written out.

/// Declares a function that is compiled for AVX-512, for AVX2 with FMA and for the target's baseline; the best that the
/// CPU runs is taken at each call.
macro_rules! vectorized {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$($G:ident: $B:path),+>)? (
        $($arg:ident: $T:ty),* $(,)?
    ) $(-> $R:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name $(<$($G: $B),+>)? ($($arg: $T),*) $(-> $R)? {
            #[inline(always)]
            fn baseline $(<$($G: $B),+>)? ($($arg: $T),*) $(-> $R)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                fn avx512 $(<$($G: $B),+>)? ($($arg: $T),*) $(-> $R)? {
                    baseline $(::<$($G),+>)? ($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2 $(<$($G: $B),+>)? ($($arg: $T),*) $(-> $R)? {
                    baseline $(::<$($G),+>)? ($($arg),*)
                }
                use $crate::ops::vector::{Level, level};
                match level() {
                    // SAFETY: the CPU has the features.
                    Level::Avx512 => return unsafe { avx512 $(::<$($G),+>)? ($($arg),*) },
                    // SAFETY: the CPU has the features.
                    Level::Avx2 => return unsafe { avx2 $(::<$($G),+>)? ($($arg),*) },
                    Level::Baseline => {}
                }
            }
            baseline $(::<$($G),+>)? ($($arg),*)
        }
    };
}
pub(crate) use vectorized;

/// Instruction sets that code is compiled for.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Avx512,
    Avx2,
    Baseline,
}

/// The best that this CPU runs. (The standard library remembers what it detects.)
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn level() -> Level {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => Level::Avx512,
        (true, false) => Level::Avx2,
        (false, _) => Level::Baseline,
    }
}

/// Independent partial sums of a reduction: enough for the latency of additions with vectors of 16.
pub(crate) const LANES: usize = 32;

/// e^x, without branches, within two units in the last place; 0 below -104, infinity above 89, NaN of NaN.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial; 2^n in two factors, so that subnormal results come out right.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    /// 1.5 * 2^23: adding it rounds to an integer, which then lies in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let p = 1.987_569_1e-4_f32
        .mul_add(r, 1.398_199_9e-3)
        .mul_add(r, 8.333_452e-3)
        .mul_add(r, 4.166_579_6e-2)
        .mul_add(r, 1.666_666_5e-1)
        .mul_add(r, 0.5);
    let p = p.mul_add(r * r, r) + 1.0;
    let n = shifted.to_bits() as i32 - ROUND.to_bits() as i32;
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n - half)
}

/// 2^n for -126 <= n <= 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n + 127).cast_unsigned() << 23)
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Hyperbolic tangent, within three units in the last place: a polynomial near 0, where the exponential would cancel.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let p = (-5.704_988_7e-3_f32)
        .mul_add(z, 2.063_909e-2)
        .mul_add(z, -5.373_971_6e-2)
        .mul_add(z, 1.333_144_2e-1)
        .mul_add(z, -3.333_328e-1);
    let near = p.mul_add(z * x, x);
    let far = (1.0 - 2.0 / (exp(2.0 * a) + 1.0)).copysign(x);
    if a < 0.625 { near } else { far }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units in the last place of the exact result.
    fn ulps(got: f32, want: f64) -> f64 {
        let exponent = want.abs().max(f32::MIN_POSITIVE as f64).log2().floor();
        (got as f64 - want).abs() / (exponent - 23.0).exp2()
    }

    fn worst(f: fn(f32) -> f32, exact: fn(f64) -> f64, range: std::ops::Range<f32>) -> f64 {
        let steps = 400_000;
        let at = |i| range.start + (range.end - range.start) * (i as f32 / steps as f32);
        (0..steps).map(|i| ulps(f(at(i)), exact(at(i) as f64))).fold(0.0, f64::max)
    }

    #[test]
    fn exp_is_within_two_ulps_everywhere() {
        assert!(worst(exp, f64::exp, -87.0..88.0) < 2.0, "{}", worst(exp, f64::exp, -87.0..88.0));
        assert!(worst(exp, f64::exp, -1.0..1.0) < 2.0);
        assert!(worst(exp, f64::exp, -104.0..-87.0) < 2.0, "subnormal results");
    }

    #[test]
    fn exp_of_extremes() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::MIN), 0.0);
        assert_eq!(exp(-0.7 * f32::MAX), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::MAX), f32::INFINITY);
        assert!(exp(88.7).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn sigmoid_and_tanh_are_accurate_and_saturate() {
        assert!(worst(sigmoid, |x| 1.0 / (1.0 + (-x).exp()), -80.0..80.0) < 4.0);
        assert!(worst(tanh, f64::tanh, -10.0..10.0) < 3.0, "{}", worst(tanh, f64::tanh, -10.0..10.0));
        assert!(worst(tanh, f64::tanh, -0.7..0.7) < 3.0);
        assert_eq!((sigmoid(f32::INFINITY), sigmoid(f32::NEG_INFINITY)), (1.0, 0.0));
        assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY), tanh(0.0)), (1.0, -1.0, 0.0));
        assert!(tanh(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
    }
}
