// Packed causal attention, forward. For query head h of token t, kv head g = h / (query_heads / kv_heads):
//   s_k = q_t . k_k                  over k in t's document with k <= t, t - k < window
//   out = sum_k exp(s_k - m) v_k / sum_k exp(s_k - m)
//   lse = m + ln sum_k exp(s_k - m)
// in tiles of 64 keys, with the running maximum m; what was summed under an older maximum is scaled by exp(m_old - m).
//
// A workgroup has 128 queries of one head, a wave 32. Scores are computed transposed, S = K Q^T: a lane holds one query's, so
// that the softmax runs over registers and one exchange between halves, and exp(S) is fragment B of out^T += V^T exp(S) as it is.
//
// grid: (ceil(seq / 128), query_heads, batch), 256 threads.

extern "C" __global__ void __launch_bounds__(THREADS)
attention_forward(const bf16* __restrict__ q,             // [batch, seq, query_heads, HEAD_DIM]
                  const bf16* __restrict__ k,             // [batch, seq, kv_heads, HEAD_DIM]
                  const bf16* __restrict__ v,             // like k
                  const int* __restrict__ segments,       // [batch, seq]
                  const Range* __restrict__ ranges,       // [batch, 4 ceil(seq / 128)] keys that 32 queries see
                  bf16* __restrict__ out,                 // like q
                  float* __restrict__ lse,                // [batch, seq, query_heads]
                  const Shape* __restrict__ shape_of_call) {
    constexpr int KEYS = 64;
    __shared__ Rows<KEYS> key_tile;
    __shared__ Columns<KEYS> value_tile;

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
    const int segment = exists ? segments[query] : 0;
    Chunk own[STEPS];
    load_row(own, q, row_start + (exists ? query : 0), head, shape.query_heads, half);

    float16v sums[COLUMN_TILES] = {};
    float largest = -1e30f, total = 0.0f;  // of scores log2(e); a finite start, so that nothing is -inf - -inf

    using KeyPatch = Patch<KEYS>;
    const bool fetches = thread < KeyPatch::COUNT;
    KeyPatch key_patch, value_patch;
    const int start = first / KEYS * KEYS;
    if (fetches) {
        key_patch.load(thread, k, row_start, start, shape.seq, kv_head, shape.kv_heads);
        value_patch.load(thread, v, row_start, start, shape.seq, kv_head, shape.kv_heads);
    }
    for (int tile = start; tile < end; tile += KEYS) {
        __syncthreads();
        if (fetches) {
            key_patch.store(thread, key_tile);
            value_patch.store(thread, value_tile);
        }
        __syncthreads();
        if (fetches && tile + KEYS < end) {
            key_patch.load(thread, k, row_start, tile + KEYS, shape.seq, kv_head, shape.kv_heads);
            value_patch.load(thread, v, row_start, tile + KEYS, shape.seq, kv_head, shape.kv_heads);
        }
        if (tile + KEYS <= range.first || tile >= range.end) continue;

        float16v scores[2];
#pragma unroll
        for (int part = 0; part < 2; ++part) scores[part] = rows_product(key_tile, 32 * part + column, own, half);
        if (tile < range.plain_first || tile + KEYS > range.plain_end) {
#pragma unroll
            for (int part = 0; part < 2; ++part)
#pragma unroll
                for (int i = 0; i < 16; ++i) {
                    int key = tile + 32 * part + row_of(i, half);
                    bool visible = exists && key <= query && query - key < shape.window && segments[key] == segment;
                    scores[part][i] = visible ? scores[part][i] : -__builtin_inff();
                }
        }

        float tile_largest = scores[0][0];
#pragma unroll
        for (int part = 0; part < 2; ++part)
#pragma unroll
            for (int i = 0; i < 16; ++i) tile_largest = __builtin_fmaxf(tile_largest, scores[part][i]);
        tile_largest = __builtin_fmaxf(tile_largest, __shfl_xor(tile_largest, 32)) * LOG2_E;
        float older = largest;
        largest = __builtin_fmaxf(largest, tile_largest);
        float rescale = __builtin_amdgcn_exp2f(older - largest);
        total *= rescale;
#pragma unroll
        for (int i = 0; i < COLUMN_TILES; ++i) sums[i] *= rescale;

#pragma unroll
        for (int part = 0; part < 2; ++part) {
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                float weight = __builtin_amdgcn_exp2f(__builtin_fmaf(scores[part][i], LOG2_E, -largest));
                scores[part][i] = weight;
                total += weight;
            }
            columns_product(sums, value_tile, 4 * part, scores[part], column, half);
        }
    }

    total += __shfl_xor(total, 32);
    if (!exists) return;
    store_row(out, row_start + query, head, shape.query_heads, sums, 1.0f / total, half);
    if (half == 0)
        lse[(row_start + query) * shape.query_heads + head] = (largest + __builtin_amdgcn_logf(total)) * LN_2;
}
