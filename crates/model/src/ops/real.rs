//! Element types of CPU tensors: what is stored, against float32 in which everything is computed.

use burn::tensor::{DType, Element};
use bytemuck::Pod;
use half::bf16;

/// An element type that the CPU operations store: float32 or bfloat16.
pub(crate) trait Real: Pod + Element + Send + Sync {
    /// Burn's name of the type.
    const DTYPE: DType;
    /// Widens, exactly.
    fn to_f32(self) -> f32;
    /// Rounds to nearest, ties to even.
    fn from_f32(value: f32) -> Self;
    /// Rounds up with the probability of the distance from the value below, given 16 random bits; exact for float32.
    fn from_f32_dithered(value: f32, noise: u32) -> Self;
}

impl Real for f32 {
    const DTYPE: DType = DType::F32;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn from_f32_dithered(value: f32, _: u32) -> Self {
        value
    }
}

impl Real for bf16 {
    const DTYPE: DType = DType::BF16;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits((self.to_bits() as u32) << 16)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        // Branch-free, so that loops over it vectorise: adding 0x7fff plus the lowest kept bit carries into the kept half
        // exactly when rounding to nearest even goes up. A NaN keeps its upper half, made quiet.
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let nan = (bits >> 16) | 0x40;
        Self::from_bits(if value.is_nan() { nan } else { rounded } as u16)
    }
    #[inline(always)]
    fn from_f32_dithered(value: f32, noise: u32) -> Self {
        let dithered = Self::from_bits((value.to_bits().wrapping_add(noise) >> 16) as u16);
        if value.is_finite() { dithered } else { Self::from_f32(value) }
    }
}

/// What kernels of decoding read: widened on the way into registers.
pub(crate) trait Stored: Pod + Send + Sync {
    /// Widens, exactly.
    fn widen(self) -> f32;

    /// The values when they are float32 already.
    fn as_floats(_values: &[Self]) -> Option<&[f32]> {
        None
    }
}

impl Stored for f32 {
    #[inline(always)]
    fn as_floats(values: &[Self]) -> Option<&[f32]> {
        Some(values)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Stored for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        Real::to_f32(self)
    }
}

impl Stored for i8 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from(self)
    }
}
