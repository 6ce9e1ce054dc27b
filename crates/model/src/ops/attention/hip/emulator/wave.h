// Waves of 64 lanes on a CPU, enough to run the kernels' own text: each lane is a fiber, and where lanes exchange values (matrix
// products, shuffles, barriers) all of a wave or workgroup must arrive, at the same operation, before any goes on. What isn't in
// the kernels isn't here.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __restrict__ __restrict
#define __launch_bounds__(threads)

struct Index {
    int x, y, z;
};
static Index threadIdx, blockIdx;

namespace emulator {

constexpr int LANES = 64, THREADS_AT_MOST = 256, STACK = 256 * 1024;

[[noreturn]] inline void fail(const char* why) {
    std::fprintf(stderr, "emulated workgroup: %s\n", why);
    std::exit(1);
}

// Threads that wait for each other: `size` arrivals are one meeting.
struct Group {
    int size = 0, arrived = 0;
    long meetings = 0;
    const char* operation = nullptr;
};

struct Lane {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK]};
    Group* waits_for = nullptr;
    long meeting = 0;
    bool done = false;
};

static Lane lanes[THREADS_AT_MOST];
static Group waves[THREADS_AT_MOST / LANES], workgroup;
static ucontext_t scheduler;
static int current;
// What lanes show each other; two, since a lane may be one meeting ahead of one that still reads.
static unsigned char shown[2][THREADS_AT_MOST][32];

inline void meet(Group& group, const char* operation) {
    if (group.arrived == 0) group.operation = operation;
    if (std::strcmp(group.operation, operation) != 0) fail("lanes of a wave disagree about the operation");
    Lane& lane = lanes[current];
    lane.meeting = group.meetings + 1;
    if (++group.arrived == group.size) {
        group.arrived = 0;
        ++group.meetings;
        return;
    }
    lane.waits_for = &group;
    swapcontext(&lane.context, &scheduler);
}

// Shows `value` to the wave; what lane l showed is at the result, plus l.
template <class T>
const unsigned char (*show(const T& value, const char* operation))[32] {
    static_assert(sizeof(T) <= 32);
    Group& wave = waves[current / LANES];
    auto* slots = shown[wave.meetings % 2];
    std::memcpy(slots[current], &value, sizeof value);
    int first = current / LANES * LANES;
    meet(wave, operation);
    return slots + first;
}

static void (*body)();
inline void enter() {
    body();
    lanes[current].done = true;
    swapcontext(&lanes[current].context, &scheduler);
}

// Runs one workgroup, its lanes taking turns in the given order.
inline void run_workgroup(int threads, const std::vector<int>& order) {
    for (int i = 0; i < threads; ++i) {
        Lane& lane = lanes[i];
        lane.done = false;
        lane.waits_for = nullptr;
        getcontext(&lane.context);
        lane.context.uc_stack.ss_sp = lane.stack.get();
        lane.context.uc_stack.ss_size = STACK;
        lane.context.uc_link = nullptr;
        makecontext(&lane.context, enter, 0);
    }
    for (int i = 0; i < threads / LANES; ++i) waves[i] = {LANES};
    workgroup = {threads};
    for (int left = threads; left > 0;) {
        bool progress = false;
        for (int i : order) {
            Lane& lane = lanes[i];
            if (lane.done || (lane.waits_for && lane.waits_for->meetings < lane.meeting)) continue;
            lane.waits_for = nullptr;
            current = i;
            threadIdx = {i, 0, 0};
            swapcontext(&scheduler, &lane.context);
            progress = true;
            left -= lane.done;
        }
        if (!progress) fail("lanes wait for others that have left");
    }
}

}  // namespace emulator

inline void __syncthreads() { emulator::meet(emulator::workgroup, "barrier"); }

inline float __shfl_xor(float value, int mask) {
    int lane = emulator::current % emulator::LANES;
    auto* shown = emulator::show(value, "shuffle");
    std::memcpy(&value, shown[lane ^ mask], sizeof value);
    return value;
}

inline float __builtin_amdgcn_exp2f(float x) { return std::exp2(x); }
inline float __builtin_amdgcn_logf(float x) { return std::log2(x); }

typedef short emulated_short4 __attribute__((vector_size(8)));
typedef float emulated_float16 __attribute__((vector_size(64)));

// D += A B with the layouts that the instruction set's manual gives for V_MFMA_F32_32X32X8_BF16_1K: row (A) or column (B) l % 32
// and k = 4 (l / 32) + i in lane l, D in lane l at column l % 32 and row 8 (i / 4) + 4 (l / 32) + i % 4.
inline emulated_float16 __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(emulated_short4 a, emulated_short4 b, emulated_float16 d, int, int,
                                                                 int) {
    struct Operands {
        emulated_short4 a, b;
    };
    int lane = emulator::current % emulator::LANES;
    auto* shown = emulator::show(Operands{a, b}, "product");
    auto value = [](const unsigned char* at) {
        std::uint16_t bits;
        std::memcpy(&bits, at, sizeof bits);
        std::uint32_t word = std::uint32_t(bits) << 16;
        float wide;
        std::memcpy(&wide, &word, sizeof wide);
        return wide;
    };
    for (int i = 0; i < 16; ++i) {
        int row = 8 * (i / 4) + 4 * (lane / 32) + i % 4;
        for (int k = 0; k < 8; ++k) {
            float left = value(shown[row + 32 * (k / 4)] + 2 * (k % 4));
            float right = value(shown[lane % 32 + 32 * (k / 4)] + 8 + 2 * (k % 4));
            d[i] += left * right;
        }
    }
    return d;
}

namespace emulator {

// Runs `kernel` over its grid on buffers from a file and writes them back. The file: grid (3), number of buffers, then for each its
// size in bytes, all 64-bit, and the bytes. Workgroups and lanes take turns in an order that follows from `seed`.
template <class... Arguments, std::size_t... I>
int run(void (*kernel)(Arguments...), std::index_sequence<I...>, const char* path, unsigned seed) {
    std::FILE* file = std::fopen(path, "r+b");
    if (!file) fail("no file of buffers");
    auto read = [&](void* to, std::size_t size) {
        if (std::fread(to, 1, size, file) != size) fail("the file of buffers is cut off");
    };
    std::int64_t grid[3], count;
    read(grid, sizeof grid);
    read(&count, sizeof count);
    if (count != sizeof...(Arguments)) fail("the kernel has another number of arguments");
    static std::vector<std::unique_ptr<char, decltype(&std::free)>> buffers;
    std::vector<long> offsets, sizes;
    for (std::int64_t i = 0; i < count; ++i) {
        std::int64_t size;
        read(&size, sizeof size);
        char* data = static_cast<char*>(std::aligned_alloc(64, (size + 127) / 64 * 64));
        offsets.push_back(std::ftell(file));
        sizes.push_back(size);
        read(data, size);
        buffers.emplace_back(data, &std::free);
    }
    static void (*held)(Arguments...);
    held = kernel;
    body = [] { held(reinterpret_cast<Arguments>(buffers[I].get())...); };

    std::mt19937 random(seed);
    std::vector<int> order(THREADS_AT_MOST);
    std::iota(order.begin(), order.end(), 0);
    std::vector<Index> workgroups;
    for (int z = 0; z < grid[2]; ++z)
        for (int y = 0; y < grid[1]; ++y)
            for (int x = 0; x < grid[0]; ++x) workgroups.push_back({x, y, z});
    std::shuffle(workgroups.begin(), workgroups.end(), random);
    for (Index index : workgroups) {
        std::shuffle(order.begin(), order.end(), random);
        blockIdx = index;
        run_workgroup(THREADS_AT_MOST, order);
    }
    for (std::int64_t i = 0; i < count; ++i) {
        std::fseek(file, offsets[i], SEEK_SET);
        if (std::fwrite(buffers[i].get(), 1, sizes[i], file) != std::size_t(sizes[i])) fail("can't write the buffers");
    }
    return std::fclose(file);
}

template <class... Arguments>
int run(void (*kernel)(Arguments...), const char* path, unsigned seed) {
    return run(kernel, std::index_sequence_for<Arguments...>{}, path, seed);
}

}  // namespace emulator
