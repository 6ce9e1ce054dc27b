//! What kernels that make int8 numbers share, bit for bit as on the CPU.

use cubecl::prelude::*;

/// The largest magnitude is mapped to this: AQT's and MaxText's bound of 8 bits.
pub(crate) const BOUND: f32 = 127.5;

/// Whether `x` is NaN, from its bits: shading languages let a compiler assume that there is none.
#[cube]
pub(crate) fn is_nan(x: f32) -> bool {
    (u32::reinterpret(x) & 0x7fff_ffff) > 0x7f80_0000
}

/// [`BOUND`]` / x` for `x >= 0`, to nearest even. WebGPU's own division may be off by 2.5 units in the last place, and the largest
/// magnitude times its factor lies next to a tie; so the quotient of the mantissas is made here, a bit at a time.
#[cube]
pub(crate) fn factor(x: f32) -> f32 {
    let bits = u32::reinterpret(x);
    let exponent = bits >> 23;
    let mut quotient = f32::new(BOUND) / x;
    // Outside there are results that are not normal numbers.
    if exponent >= 8 && exponent < 255 {
        let divisor = (bits & 0x7f_ffff) | 0x80_0000;
        // 127.5 is 255 2^-1, and 255 2^16 has the 24 bits of a mantissa.
        let is_less = divisor > 0xff_0000u32;
        let mut rest = select(is_less, 2u32 * 0xff_0000u32, 0xff_0000u32) - divisor;
        let biased = select(is_less, 259u32, 260u32) - exponent;
        let mut result = 1u32;
        for _ in 0..24 {
            rest *= 2u32;
            result *= 2u32;
            if rest >= divisor {
                rest -= divisor;
                result += 1u32;
            }
        }
        // 24 bits and the one that decides; a tie is one with nothing left.
        let mut mantissa = result >> 1u32;
        if (result & 1u32) == 1u32 && (rest > 0u32 || (mantissa & 1u32) == 1u32) {
            mantissa += 1u32;
        }
        quotient = f32::reinterpret((biased << 23u32) + (mantissa - 0x80_0000u32));
    }
    quotient
}

/// The bits of `x`, not NaN, as bfloat16: to nearest, half to even.
#[cube]
pub(crate) fn bfloat16_bits(x: f32) -> u32 {
    let bits = u32::reinterpret(x);
    (bits + 0x7fff + ((bits >> 16) & 1)) >> 16
}
