// bfloat16 as CubeCL's kernels use ROCm's header of this name: made of a float, rounded to nearest even, and turned into one.
#pragma once

struct alignas(2) __hip_bfloat16 {
    unsigned short bits;

    __hip_bfloat16() = default;
    __device__ __hip_bfloat16(float value) {
        unsigned word = __builtin_bit_cast(unsigned, value);
        // A NaN stays one: its payload could carry into the exponent.
        bits = value == value ? (word + 0x7fff + (word >> 16 & 1)) >> 16 : word >> 16 | 0x40;
    }
    __device__ operator float() const { return __builtin_bit_cast(float, (unsigned)bits << 16); }
};
