// What the attention kernels share: bfloat16 fragments for the matrix units of gfx90a and gfx942, and tiles in LDS.
//
// A wave has 64 lanes; lane l is column l % 32 of half l / 32. v_mfma_f32_32x32x8_bf16 computes D += A B, 32 x 32 over k = 0..8:
//   A: the lane holds row    column, k = 4 half + 0..3
//   B: the lane holds column column, k = 4 half + 0..3
//   D: the lane holds column column, rows 8 (i / 4) + 4 half + i % 4 in register i = 0..15
// So four registers of D, rounded, are the fragment B of a following product whose k are D's rows: scores become probabilities
// and enter the next product without leaving their lane. All kernels are laid out for that.
//
// The text is compiled by hiprtc on a GPU, by clang offline, and by a C++ compiler against an emulated wave in the tests.
// HEAD_DIM (64 or 128) is defined in front of it.

typedef unsigned short bf16;  // its bits
typedef short short4v __attribute__((vector_size(8)));
typedef float float16v __attribute__((vector_size(64)));

typedef short Chunk __attribute__((vector_size(16)));  // what one lane reads at once, enough for two products

constexpr int CHUNKS = HEAD_DIM / 8;          // of a row
constexpr int STEPS = HEAD_DIM / 16;          // pairs of products to contract a row
constexpr int COLUMN_TILES = HEAD_DIM / 32;   // products to cover a row
constexpr int THREADS = 256;                  // of a workgroup: four waves, each with 32 queries or keys
constexpr int WAVES = THREADS / 64;
constexpr int BLOCK = 32 * WAVES;
constexpr float LOG2_E = 1.44269504088896340736f;
constexpr float LN_2 = 0.69314718055994530942f;

// What 32 queries see of the keys, or 32 keys of the queries: [first, end) holds all that any of them sees, and all of them see
// all of [plain_first, plain_end), where no mask is needed. Worked out on the host.
struct alignas(16) Range {
    int first, plain_first, plain_end, end;
};

// Shape of the call: the words that the launch passes as its last argument.
struct Shape {
    int seq, query_heads, kv_heads, window;
};

static __device__ inline float16v product(short4v a, short4v b, float16v d) {
    return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, d, 0, 0, 0);
}

static __device__ inline short4v low(Chunk chunk) {
    return __builtin_shufflevector(chunk, chunk, 0, 1, 2, 3);
}

static __device__ inline short4v high(Chunk chunk) {
    return __builtin_shufflevector(chunk, chunk, 4, 5, 6, 7);
}

static __device__ inline unsigned bits(float value) {
    return __builtin_bit_cast(unsigned, value);
}

static __device__ inline float widen(short value) {
    return __builtin_bit_cast(float, (unsigned)(unsigned short)value << 16);
}

// To nearest, ties to even: for what is stored.
static __device__ inline short narrow(float value) {
    unsigned word = bits(value);
    return (short)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

static __device__ inline short4v narrow4(float a, float b, float c, float d) {
    return short4v{narrow(a), narrow(b), narrow(c), narrow(d)};
}

// To nearest, ties away from zero: two additions and a byte permutation for two values, for operands inside the kernels.
static __device__ inline short4v operand(const float16v& d, int group) {
    unsigned words[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        unsigned even = bits(d[4 * group + 2 * i]) + 0x8000, odd = bits(d[4 * group + 2 * i + 1]) + 0x8000;
        words[i] = (even >> 16) | (odd & 0xffff0000u);
    }
    short4v fragment;
    __builtin_memcpy(&fragment, words, sizeof fragment);
    return fragment;
}

// Row of D, of those this lane holds in register i.
static __device__ inline int row_of(int i, int half) {
    return 8 * (i / 4) + 4 * half + i % 4;
}

static __device__ inline const Chunk* row_chunks(const bf16* tensor, long token, int head, int heads) {
    return (const Chunk*)(tensor + (token * heads + head) * HEAD_DIM);
}

// A row of a tensor as fragments A or B: the lane's halves of its STEPS pairs.
static __device__ inline void load_row(Chunk* fragments, const bf16* tensor, long token, int head, int heads, int half) {
    const Chunk* row = row_chunks(tensor, token, head, heads);
#pragma unroll
    for (int step = 0; step < STEPS; ++step) fragments[step] = row[2 * step + half];
}

// Rows in LDS, [ROWS, HEAD_DIM]. Chunks of a row are permuted so that 8 lanes that access chunk c of 8 consecutive rows, or of
// every fourth row, touch all banks once.
template <int ROWS>
struct Rows {
    Chunk chunks[ROWS * CHUNKS];

    __device__ Chunk& at(int row, int chunk) { return chunks[row * CHUNKS + (chunk ^ (row & 7) ^ (row >> 3 & 3))]; }
};

// The same transposed, [HEAD_DIM, ROWS], as fragments A over rows: a chunk holds the rows 16 s + 4 half + 0..3 and, in its high
// part, 16 s + 8 + 4 half + 0..3, the rows of D that a lane of that half holds.
template <int ROWS>
struct Columns {
    static constexpr int WIDTH = ROWS / 8;
    Chunk chunks[HEAD_DIM * WIDTH];

    __device__ Chunk& at(int column, int chunk) {
        int swizzle = WIDTH == 4 ? column >> 1 & 3 : column & 7;
        return chunks[column * WIDTH + (chunk ^ swizzle)];
    }
};

// A patch of a tile on its way from memory to LDS: chunk `chunk` of the rows 4 group + 0..3.
template <int ROWS>
struct Patch {
    static constexpr int GROUPS = ROWS / 4;
    static constexpr int COUNT = GROUPS * CHUNKS;  // of a tile
    Chunk rows[4];

    // Rows at and past `end` read as zero: a product with what lies there must not be NaN.
    __device__ void load(int index, const bf16* tensor, long row_start, int tile, int end, int head, int heads) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int token = tile + 4 * (index % GROUPS) + i;
            rows[i] = token < end ? row_chunks(tensor, row_start + token, head, heads)[index / GROUPS] : Chunk{};
        }
    }

    __device__ void store(int index, Rows<ROWS>& tile) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) tile.at(4 * (index % GROUPS) + i, index / GROUPS) = rows[i];
    }

    __device__ void store(int index, Columns<ROWS>& tile) const {
        int group = index % GROUPS;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            short4v column = {rows[0][i], rows[1][i], rows[2][i], rows[3][i]};
            short4v* parts = (short4v*)&tile.at(8 * (index / GROUPS) + i, group / 4 * 2 + group % 2);
            parts[group / 2 % 2] = column;
        }
    }
};

// D = A B contracted over HEAD_DIM: 32 rows of a tile, from `row`, times the lane's own row.
template <int ROWS>
static __device__ inline float16v rows_product(Rows<ROWS>& tile, int row, const Chunk* own, int half) {
    float16v d = {};
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        Chunk a = tile.at(row, 2 * step + half);
        d = product(low(a), low(own[step]), d);
        d = product(high(a), high(own[step]), d);
    }
    return d;
}

// D += A B contracted over 32 rows of a tile, from chunk `first_chunk`: its columns times `weights`, whose rows those are.
template <int ROWS>
static __device__ inline void columns_product(float16v* d, Columns<ROWS>& tile, int first_chunk, const float16v& weights, int column,
                                              int half) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        short4v first = operand(weights, 2 * step), second = operand(weights, 2 * step + 1);
#pragma unroll
        for (int i = 0; i < COLUMN_TILES; ++i) {
            Chunk a = tile.at(32 * i + column, first_chunk + 2 * step + half);
            d[i] = product(low(a), first, d[i]);
            d[i] = product(high(a), second, d[i]);
        }
    }
}

// Writes D's columns, scaled, each as one row of a tensor.
static __device__ inline void store_row(bf16* tensor, long token, int head, int heads, const float16v* d, float scale, int half) {
    bf16* row = tensor + (token * heads + head) * HEAD_DIM;
#pragma unroll
    for (int i = 0; i < COLUMN_TILES; ++i)
#pragma unroll
        for (int group = 0; group < 4; ++group) {
            const float16v& tile = d[i];
            int at = 4 * group;
            *(short4v*)(row + 32 * i + 8 * group + 4 * half) =
                narrow4(tile[at] * scale, tile[at + 1] * scale, tile[at + 2] * scale, tile[at + 3] * scale);
        }
}
