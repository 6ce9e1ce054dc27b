// A library with hipBLASLt's interface that multiplies on the CPU and is strict about what it's told: for the test of the calls.
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {
struct Operation { int compute, scale, first = 111, second = 111; };
struct Layout { int type; std::uint64_t rows, cols; std::int64_t ld; };
struct Preference { std::uint64_t workspace = 0; };
struct Algorithm { unsigned char data[16]; std::size_t workspace; };
struct Heuristic { Algorithm algorithm; std::size_t workspace; int state; float waves; int reserved[4]; };
constexpr int F32 = 0, BF16 = 14, INVALID = 3, UNSUPPORTED = 7;
int alive = 0;  // handles that weren't destroyed

float load(const void* data, int type, std::size_t i) {
    if (type == F32) return static_cast<const float*>(data)[i];
    std::uint32_t word = std::uint32_t(static_cast<const std::uint16_t*>(data)[i]) << 16;
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
}
void store(void* data, int type, std::size_t i, float value) {
    if (type == F32) {
        static_cast<float*>(data)[i] = value;
        return;
    }
    std::uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    static_cast<std::uint16_t*>(data)[i] = std::uint16_t((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
template <class T>
int made(void** to, T* made) {
    ++alive;
    *to = made;
    return 0;
}
template <class T>
int gone(void* what) {
    --alive;
    delete static_cast<T*>(what);
    return 0;
}
}  // namespace

extern "C" {
int handles_alive() { return alive; }
int hipblasLtCreate(void** handle) { return made(handle, new int(42)); }
int hipblasLtDestroy(void* handle) { return gone<int>(handle); }
int hipblasLtMatmulDescCreate(void** to, int compute, int scale) {
    return compute == 2 && scale == F32 ? made(to, new Operation{compute, scale}) : INVALID;
}
int hipblasLtMatmulDescDestroy(void* operation) { return gone<Operation>(operation); }
int hipblasLtMatmulDescSetAttribute(void* operation, int attribute, const void* value, std::size_t size) {
    if (size != 4 || (attribute != 0 && attribute != 1)) return INVALID;
    auto* of = static_cast<Operation*>(operation);
    std::memcpy(attribute == 0 ? &of->first : &of->second, value, 4);
    return 0;
}
int hipblasLtMatrixLayoutCreate(void** to, int type, std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
    bool valid = (type == F32 || type == BF16) && ld >= std::int64_t(rows);
    return valid ? made(to, new Layout{type, rows, cols, ld}) : INVALID;
}
int hipblasLtMatrixLayoutDestroy(void* layout) { return gone<Layout>(layout); }
int hipblasLtMatmulPreferenceCreate(void** to) { return made(to, new Preference); }
int hipblasLtMatmulPreferenceDestroy(void* preference) { return gone<Preference>(preference); }
int hipblasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, std::size_t size) {
    if (attribute != 1 || size != 8) return INVALID;
    std::memcpy(&static_cast<Preference*>(preference)->workspace, value, 8);
    return 0;
}
int hipblasLtMatmulAlgoGetHeuristic(void*, void* operation, void* a, void* b, void* c, void* d, void* preference, int asked,
                                    Heuristic* results, int* found) {
    auto *of = static_cast<Operation*>(operation);
    auto *la = static_cast<Layout*>(a), *lb = static_cast<Layout*>(b), *ld = static_cast<Layout*>(d);
    if (asked != 1 || c != d) return INVALID;
    std::uint64_t m = of->first == 111 ? la->rows : la->cols, k = of->first == 111 ? la->cols : la->rows;
    std::uint64_t k2 = of->second == 111 ? lb->rows : lb->cols, n = of->second == 111 ? lb->cols : lb->rows;
    if (k != k2 || m != ld->rows || n != ld->cols || la->type != lb->type) return INVALID;
    *found = k != 13;  // a size for which there's no kernel
    results[0] = {};
    results[0].algorithm = {{7, 7, 7}, static_cast<Preference*>(preference)->workspace};
    return 0;
}
int hipblasLtMatmul(void* handle, void* operation, const void* alpha, const void* a, void* la, const void* b, void* lb,
                    const void* beta, const void*, void*, void* d, void* ld, const Algorithm* algorithm, void*,
                    std::size_t workspace, void*) {
    if (*static_cast<int*>(handle) != 42 || algorithm->data[2] != 7 || algorithm->workspace > workspace) return INVALID;
    if (load(alpha, F32, 0) != 1.0f || load(beta, F32, 0) != 0.0f) return UNSUPPORTED;
    auto* of = static_cast<Operation*>(operation);
    auto *first = static_cast<Layout*>(la), *second = static_cast<Layout*>(lb), *to = static_cast<Layout*>(ld);
    std::uint64_t terms = of->first == 111 ? first->cols : first->rows;
    auto at = [](const Layout* layout, int operation, std::uint64_t row, std::uint64_t col) {
        return operation == 111 ? row + col * layout->ld : col + row * layout->ld;
    };
    for (std::uint64_t row = 0; row < to->rows; ++row)
        for (std::uint64_t col = 0; col < to->cols; ++col) {
            float sum = 0;
            for (std::uint64_t k = 0; k < terms; ++k)
                sum += load(a, first->type, at(first, of->first, row, k)) * load(b, second->type, at(second, of->second, k, col));
            store(d, to->type, row + col * to->ld, sum);
        }
    return 0;
}
}
