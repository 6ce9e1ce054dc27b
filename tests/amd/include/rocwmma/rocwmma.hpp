// rocWMMA as CubeCL's kernels use it, on clang's builtins for AMD's matrix instructions: fragments of 16 by 16 by 16, operands of
// bfloat16, sums of float32. It shows that kernels compile, and about what they need; it isn't AMD's library, whose loads and
// registers may differ.
//
//                    a lane of 64, 4 elements                   a lane of 32, 16 elements of a and b, 8 of c
//   a[row][k]        row = lane % 16, k = 4 (lane / 16) + i     row = lane % 16, k = i
//   b[k][column]     column = lane % 16, k as a's               column = lane % 16, k = i
//   c[row][column]   row = 4 (lane / 16) + i, column as b's     row = 2 i + lane / 16, column as b's
#pragma once
#include <hip/hip_bf16.h>

namespace rocwmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major };

#if defined(__gfx1100__)
constexpr int OPERANDS = 16, SUMS = 8;
MT_DEVICE int depth(int) { return 0; }
MT_DEVICE int row(int lane, int i) { return 2 * i + lane / 16; }
#else
constexpr int OPERANDS = 4, SUMS = 4;
MT_DEVICE int depth(int lane) { return 4 * (lane / 16); }
MT_DEVICE int row(int lane, int i) { return 4 * (lane / 16) + i; }
#endif
typedef short Operands __attribute__((ext_vector_type(OPERANDS)));
typedef float Sums __attribute__((ext_vector_type(SUMS)));

template <class Use, int M, int N, int K, class T, class Layout = row_major>
struct fragment {
    static_assert(M == 16 && N == 16 && K == 16 && sizeof(T) == 2, "the shape that the kernels use");
    Operands x;
};
template <>
struct fragment<accumulator, 16, 16, 16, float> {
    Sums x;
};

template <class A, class B>
struct same {
    static constexpr bool value = false;
};
template <class A>
struct same<A, A> {
    static constexpr bool value = true;
};

MT_DEVICE void fill_fragment(fragment<accumulator, 16, 16, 16, float>& to, float value) { to.x = value; }

template <class Use, class T, class Layout>
MT_DEVICE void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& to, const T* from, uint stride) {
    // Whether a lane's elements follow each other in memory: those of a row of a, of a column of b.
    constexpr bool along = same<Use, matrix_a>::value == same<Layout, row_major>::value;
    int lane = mt_lane(), line = lane % 16, k = depth(lane);
    for (int i = 0; i < OPERANDS; ++i) {
        const T& element = along ? from[line * stride + k + i] : from[(k + i) * stride + line];
        to.x[i] = __builtin_bit_cast(short, element);
    }
}

MT_DEVICE void store_matrix_sync(float* to, const fragment<accumulator, 16, 16, 16, float>& from, uint stride, layout_t) {
    int lane = mt_lane();
    for (int i = 0; i < SUMS; ++i) to[row(lane, i) * stride + lane % 16] = from.x[i];
}

template <class LayoutA, class LayoutB>
MT_DEVICE void mma_sync(fragment<accumulator, 16, 16, 16, float>& d, const fragment<matrix_a, 16, 16, 16, __hip_bfloat16, LayoutA>& a,
                        const fragment<matrix_b, 16, 16, 16, __hip_bfloat16, LayoutB>& b,
                        const fragment<accumulator, 16, 16, 16, float>& c) {
#if defined(__gfx1100__)
    d.x = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a.x, b.x, c.x);
#else
    d.x = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a.x, b.x, c.x, 0, 0, 0);
#endif
}

}  // namespace rocwmma
