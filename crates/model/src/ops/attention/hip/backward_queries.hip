// Packed causal attention, backward, first pass: the gradient of the queries. With p_k = exp(s_k - lse) and the gradient g of out:
//   delta = g . out
//   ds_k  = p_k (g . v_k - delta)
//   dq    = sum_k ds_k k_k
// Probabilities are recomputed from lse; delta is kept for the second pass.
//
// Work is laid out as in the forward, in tiles of 32 keys: S = K Q^T, dP = V G^T, dq^T += K^T dS, so that a lane holds one query.
//
// grid: (ceil(seq / 128), query_heads, batch), 256 threads.

extern "C" __global__ void __launch_bounds__(THREADS)
attention_backward_queries(const bf16* __restrict__ q,         // [batch, seq, query_heads, HEAD_DIM]
                           const bf16* __restrict__ k,         // [batch, seq, kv_heads, HEAD_DIM]
                           const bf16* __restrict__ v,         // like k
                           const bf16* __restrict__ out,       // like q
                           const bf16* __restrict__ dout,      // like q
                           const float* __restrict__ lse,      // [batch, seq, query_heads]
                           const int* __restrict__ segments,   // [batch, seq]
                           const Range* __restrict__ ranges,   // [batch, 4 ceil(seq / 128)] keys that 32 queries see
                           bf16* __restrict__ dq,              // like q
                           float* __restrict__ delta,          // like lse
                           const Shape* __restrict__ shape_of_call) {
    constexpr int KEYS = 32;
    __shared__ Rows<KEYS> key_rows;
    __shared__ Columns<KEYS> key_columns;
    __shared__ Rows<KEYS> value_rows;

    const Shape shape = *shape_of_call;
    const int thread = threadIdx.x, wave = thread / 64, column = thread % 32, half = thread % 64 / 32;
    const int blocks = (shape.seq + BLOCK - 1) / BLOCK;
    const int block = blocks - 1 - blockIdx.x;  // the longest first
    const int head = blockIdx.y, kv_head = head / (shape.query_heads / shape.kv_heads);
    const long row_start = (long)blockIdx.z * shape.seq;
    segments += row_start;
    ranges += ((long)blockIdx.z * blocks + block) * WAVES;

    const Range range = ranges[wave];
    int first = ranges[0].first, end = ranges[0].end;
    for (int i = 1; i < WAVES; ++i) {
        first = ranges[i].first < first ? ranges[i].first : first;
        end = ranges[i].end > end ? ranges[i].end : end;
    }

    const int query = block * BLOCK + wave * 32 + column;
    const bool exists = query < shape.seq;
    const long token = row_start + (exists ? query : 0), at = token * shape.query_heads + head;
    const int segment = exists ? segments[query] : 0;
    Chunk own_query[STEPS], own_gradient[STEPS];
    load_row(own_query, q, token, head, shape.query_heads, half);
    load_row(own_gradient, dout, token, head, shape.query_heads, half);
    float own_delta = 0.0f;
    const Chunk* own_out = row_chunks(out, token, head, shape.query_heads);
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        Chunk chunk = own_out[2 * step + half];
#pragma unroll
        for (int i = 0; i < 8; ++i)
            own_delta += widen(chunk[i]) * widen(own_gradient[step][i]);
    }
    own_delta += __shfl_xor(own_delta, 32);
    const float own_lse = lse[at] * LOG2_E;

    float16v sums[COLUMN_TILES] = {};

    // The first threads fetch keys, the next values.
    using KeyPatch = Patch<KEYS>;
    const int index = thread % KeyPatch::COUNT, fetched = thread / KeyPatch::COUNT;
    const bf16* source = fetched == 0 ? k : v;
    KeyPatch patch;
    const int start = first / KEYS * KEYS;
    if (fetched < 2) patch.load(index, source, row_start, start, shape.seq, kv_head, shape.kv_heads);
    for (int tile = start; tile < end; tile += KEYS) {
        __syncthreads();
        if (fetched == 0) {
            patch.store(index, key_rows);
            patch.store(index, key_columns);
        } else if (fetched == 1) {
            patch.store(index, value_rows);
        }
        __syncthreads();
        if (fetched < 2 && tile + KEYS < end)
            patch.load(index, source, row_start, tile + KEYS, shape.seq, kv_head, shape.kv_heads);
        if (tile + KEYS <= range.first || tile >= range.end) continue;

        float16v scores = rows_product(key_rows, column, own_query, half);
        float16v gradients = rows_product(value_rows, column, own_gradient, half);
        if (tile < range.plain_first || tile + KEYS > range.plain_end) {
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                int key = tile + row_of(i, half);
                bool visible = exists && key <= query && query - key < shape.window && segments[key] == segment;
                scores[i] = visible ? scores[i] : -__builtin_inff();
            }
        }
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            float probability = __builtin_amdgcn_exp2f(__builtin_fmaf(scores[i], LOG2_E, -own_lse));
            gradients[i] = probability * (gradients[i] - own_delta);
        }
        columns_product(sums, key_columns, 0, gradients, column, half);
    }

    if (!exists) return;
    store_row(dq, token, head, shape.query_heads, sums, 1.0f, half);
    if (half == 0) delta[at] = own_delta;
}
