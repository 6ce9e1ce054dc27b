// rocWMMA and what else CubeCL's HIP text names, for the waves of ../../hip/emulator/wave.h. A fragment's elements lie with the lanes
// in an order that is right for no device, so that whoever relies on one fails; all lanes of a wave must arrive at each operation.
#pragma once
#undef __shared__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))

static const Index gridDim = {1, 1, 1};  // cubes in a row

struct __hip_bfloat16 {
    std::uint16_t bits;
    __hip_bfloat16() = default;
    // To nearest, ties to even; NaN stays NaN.
    __hip_bfloat16(float value) {
        std::uint32_t word;
        std::memcpy(&word, &value, sizeof word);
        bits = value != value ? 0x7fc0 : std::uint16_t((word + 0x7fff + (word >> 16 & 1)) >> 16);
    }
    __hip_bfloat16(int value) : __hip_bfloat16(float(value)) {}
    operator float() const {
        std::uint32_t word = std::uint32_t(bits) << 16;
        float value;
        std::memcpy(&value, &word, sizeof value);
        return value;
    }
};

inline std::uint32_t min(std::uint32_t a, std::uint32_t b) { return a < b ? a : b; }
inline float max(float a, float b) { return std::fmax(a, b); }
inline float exp(float x) { return std::exp(x); }
inline float log(float x) { return std::log(x); }
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
inline float fabs(float x) { return std::fabs(x); }

namespace rocwmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major };

constexpr int SIDE = 16, ELEMENTS = SIDE * SIDE, OWN = ELEMENTS / emulator::LANES;

template <class Use, int M, int N, int K, class T, class Layout = row_major>
struct fragment {
    static_assert(M == SIDE && N == SIDE && K == SIDE);
    T x[OWN];
};

// The element that slot `slot` of the current lane has, and where an element is.
inline int element(int slot) { return ((slot * emulator::LANES + emulator::current % emulator::LANES) * 37 + 11) % ELEMENTS; }
inline int place(int element) { return (element + ELEMENTS - 11) * 173 % ELEMENTS; }
static_assert(37 * 173 % ELEMENTS == 1);

inline void arrive(const char* operation) { emulator::meet(emulator::waves[emulator::current / emulator::LANES], operation); }

// What the strictest of the libraries asks of addresses.
inline void aligned(const void* address, std::size_t stride_bytes) {
    if (reinterpret_cast<std::uintptr_t>(address) % 32 != 0 || stride_bytes % 16 != 0) emulator::fail("a fragment isn't aligned");
}

template <class Use, class T, class Layout>
void fill_fragment(fragment<Use, 16, 16, 16, T, Layout>& to, T value) {
    for (T& x : to.x) x = value;
}

template <class Use, class T, class Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& to, const T* from, unsigned stride) {
    static_assert(!std::is_same_v<Use, accumulator>);
    aligned(from, stride * sizeof(T));
    arrive("load");
    for (int slot = 0; slot < OWN; ++slot) {
        int row = element(slot) / SIDE, column = element(slot) % SIDE;
        to.x[slot] = std::is_same_v<Layout, row_major> ? from[row * stride + column] : from[column * stride + row];
    }
}

inline void store_matrix_sync(float* to, const fragment<accumulator, 16, 16, 16, float>& from, unsigned stride, layout_t) {
    aligned(to, stride * sizeof(float));
    arrive("store");
    for (int slot = 0; slot < OWN; ++slot) to[element(slot) / SIDE * stride + element(slot) % SIDE] = from.x[slot];
}

template <class T, class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& d, const fragment<matrix_a, 16, 16, 16, T, LayoutA>& a,
              const fragment<matrix_b, 16, 16, 16, T, LayoutB>& b, const fragment<accumulator, 16, 16, 16, float>& c) {
    struct Operands {
        fragment<matrix_a, 16, 16, 16, T, LayoutA> a;
        fragment<matrix_b, 16, 16, 16, T, LayoutB> b;
    };
    auto* shown = emulator::show(Operands{a, b}, "product");
    auto of = [&](int element) {
        Operands operands;
        std::memcpy(&operands, shown[place(element) % emulator::LANES], sizeof operands);
        return operands;
    };
    for (int slot = 0; slot < OWN; ++slot) {
        int row = element(slot) / SIDE, column = element(slot) % SIDE;
        float sum = c.x[slot];
        for (int k = 0; k < SIDE; ++k) {
            int left = row * SIDE + k, right = k * SIDE + column;
            sum += float(of(left).a.x[place(left) / emulator::LANES]) * float(of(right).b.x[place(right) / emulator::LANES]);
        }
        d.x[slot] = sum;
    }
}

}  // namespace rocwmma
