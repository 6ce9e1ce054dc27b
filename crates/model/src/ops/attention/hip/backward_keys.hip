// Packed causal attention, backward, second pass: the gradients of keys and values. With p, ds and delta as in the first pass,
//   dv_k = sum_t p_{t,k} g_t
//   dk_k = sum_t ds_{t,k} q_t
// over the queries t of all query heads of a kv head, in their order: no atomics, the same bits every time.
//
// A workgroup has 128 keys of one kv head, a wave 32, in tiles of 32 queries: S = Q K^T, dP = G V^T, dv^T += G^T P, dk^T += Q^T dS,
// so that a lane holds one key.
//
// grid: (ceil(seq / 128), kv_heads, batch), 256 threads.

extern "C" __global__ void __launch_bounds__(THREADS)
attention_backward_keys(const bf16* __restrict__ q,         // [batch, seq, query_heads, HEAD_DIM]
                        const bf16* __restrict__ k,         // [batch, seq, kv_heads, HEAD_DIM]
                        const bf16* __restrict__ v,         // like k
                        const bf16* __restrict__ dout,      // like q
                        const float* __restrict__ lse,      // [batch, seq, query_heads]
                        const float* __restrict__ delta,    // like lse
                        const int* __restrict__ segments,   // [batch, seq]
                        const Range* __restrict__ ranges,   // [batch, 4 ceil(seq / 128)] queries that see 32 keys
                        bf16* __restrict__ dk,              // like k
                        bf16* __restrict__ dv,              // like k
                        const Shape* __restrict__ shape_of_call) {
    constexpr int QUERIES = 32;
    __shared__ Rows<QUERIES> query_rows, gradient_rows;
    __shared__ Columns<QUERIES> query_columns, gradient_columns;
    __shared__ float row_lse[QUERIES], row_delta[QUERIES];
    __shared__ int row_segment[QUERIES];

    const Shape shape = *shape_of_call;
    const int thread = threadIdx.x, wave = thread / 64, column = thread % 32, half = thread % 64 / 32;
    const int blocks = (shape.seq + BLOCK - 1) / BLOCK, block = blockIdx.x;
    const int kv_head = blockIdx.y, group = shape.query_heads / shape.kv_heads;
    const long row_start = (long)blockIdx.z * shape.seq;
    segments += row_start;
    ranges += ((long)blockIdx.z * blocks + block) * WAVES;

    const Range range = ranges[wave];
    int first = ranges[0].first, end = ranges[0].end;
    for (int i = 1; i < WAVES; ++i) {
        first = ranges[i].first < first ? ranges[i].first : first;
        end = ranges[i].end > end ? ranges[i].end : end;
    }

    const int key = block * BLOCK + wave * 32 + column;
    const bool exists = key < shape.seq;
    const long token = row_start + (exists ? key : 0);
    const int segment = exists ? segments[key] : 0;
    Chunk own_key[STEPS], own_value[STEPS];
    load_row(own_key, k, token, kv_head, shape.kv_heads, half);
    load_row(own_value, v, token, kv_head, shape.kv_heads, half);

    float16v key_sums[COLUMN_TILES] = {}, value_sums[COLUMN_TILES] = {};

    // The first threads fetch queries, the next gradients; each of the first 32 also a query's numbers.
    using QueryPatch = Patch<QUERIES>;
    const int index = thread % QueryPatch::COUNT, fetched = thread / QueryPatch::COUNT;
    const bf16* source = fetched == 0 ? q : dout;
    QueryPatch patch;
    float next_lse = 0.0f, next_delta = 0.0f;
    int next_segment = 0;
    auto fetch = [&](int head, int tile) {
        if (fetched < 2) patch.load(index, source, row_start, tile, shape.seq, head, shape.query_heads);
        int query = tile + thread;
        if (thread < QUERIES && query < shape.seq) {
            long at = (row_start + query) * shape.query_heads + head;
            next_lse = lse[at] * LOG2_E;
            next_delta = delta[at];
            next_segment = segments[query];
        }
    };

    const int start = first / QUERIES * QUERIES, last_head = (kv_head + 1) * group - 1;
    int head = kv_head * group, tile = start;
    fetch(head, tile);
    while (head <= last_head) {
        __syncthreads();
        if (fetched == 0) {
            patch.store(index, query_rows);
            patch.store(index, query_columns);
        } else if (fetched == 1) {
            patch.store(index, gradient_rows);
            patch.store(index, gradient_columns);
        }
        if (thread < QUERIES) {
            row_lse[thread] = next_lse;
            row_delta[thread] = next_delta;
            row_segment[thread] = next_segment;
        }
        __syncthreads();
        const int current = tile;
        tile += QUERIES;
        if (tile >= end) {
            tile = start;
            ++head;
        }
        if (head <= last_head) fetch(head, tile);
        if (current + QUERIES <= range.first || current >= range.end) continue;

        float16v scores = rows_product(query_rows, column, own_key, half);
        float16v gradients = rows_product(gradient_rows, column, own_value, half);
        if (current < range.plain_first || current + QUERIES > range.plain_end) {
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                int row = row_of(i, half), query = current + row;
                bool visible = exists && query < shape.seq && key <= query && query - key < shape.window &&
                               row_segment[row] == segment;
                scores[i] = visible ? scores[i] : -__builtin_inff();
            }
        }
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            int row = row_of(i, half);
            float probability = __builtin_amdgcn_exp2f(__builtin_fmaf(scores[i], LOG2_E, -row_lse[row]));
            scores[i] = probability;
            gradients[i] = probability * (gradients[i] - row_delta[row]);
        }
        columns_product(value_sums, gradient_columns, 0, scores, column, half);
        columns_product(key_sums, query_columns, 0, gradients, column, half);
    }

    if (!exists) return;
    store_row(dk, token, kv_head, shape.kv_heads, key_sums, 1.0f, half);
    store_row(dv, token, kv_head, shape.kv_heads, value_sums, 1.0f, half);
}
