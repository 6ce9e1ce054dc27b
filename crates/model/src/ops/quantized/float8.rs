//! Rounding to 8-bit floats.

/// An 8-bit floating-point format: E exponent bits, M mantissa bits.
///
/// The `fn` forms are OCP's (H100, MI350), the `fnuz` ones those of MI300X: no infinities, no negative zero, and an exponent
/// bias larger by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Up to 448, no infinities.
    E4M3FN,
    /// Up to 57344, the only one with infinities.
    E5M2,
    /// Up to 240.
    E4M3FNUZ,
    /// Up to 57344.
    E5M2FNUZ,
}

/// What rounding needs to know.
#[derive(Clone, Copy)]
pub(super) struct Rounding {
    /// Mantissa bits without the leading one.
    mantissa: u32,
    /// The smallest normal number.
    min_normal: f32,
    /// Adding and subtracting it rounds subnormal numbers: its last bit is worth their spacing.
    shift: f32,
    max: f32,
}

impl Format {
    /// The largest number.
    pub fn max(self) -> f32 {
        self.rounding().max
    }

    /// `x` rounded to the nearest number of the format, ties to even; beyond the largest it saturates, infinities too, as JAX
    /// clips before it converts. NaN stays NaN.
    pub fn round(self, x: f32) -> f32 {
        self.rounding().round(x)
    }

    /// Mantissa bits, exponent of the smallest normal number and the largest number.
    pub(super) fn parameters(self) -> (u32, i32, f32) {
        match self {
            Self::E4M3FN => (3, -6, 448.0),
            Self::E5M2 => (2, -14, 57344.0),
            Self::E4M3FNUZ => (3, -7, 240.0),
            Self::E5M2FNUZ => (2, -15, 57344.0),
        }
    }

    pub(super) fn rounding(self) -> Rounding {
        let (mantissa, min_exponent, max) = self.parameters();
        let spacing = (min_exponent as f32 - mantissa as f32).exp2();
        Rounding {
            mantissa,
            min_normal: (min_exponent as f32).exp2(),
            shift: spacing * 1.5 * 8_388_608.0,
            max,
        }
    }
}

impl Rounding {
    #[inline(always)]
    pub(super) fn round(self, x: f32) -> f32 {
        let x = if x > self.max { self.max } else { x };
        let x = if x < -self.max { -self.max } else { x };
        // Normal numbers: the bits that go carry into those that stay, as in rounding to bfloat16.
        let dropped = 23 - self.mantissa;
        let bits = x.to_bits();
        let half = (1 << (dropped - 1)) - 1 + ((bits >> dropped) & 1);
        let normal = f32::from_bits(bits.wrapping_add(half) & (u32::MAX << dropped));
        // A sum with a positive number is never -0, which the fnuz formats don't have.
        let subnormal = (x + self.shift) - self.shift;
        let rounded = if x.abs() < self.min_normal { subnormal } else { normal };
        if x.is_nan() { x } else { rounded }
    }
}
