//! Attention backward without atomics: every gradient is written by one cube, the blocks that it sums in their order.
//!
//! ```text
//! delta = dout . out      p = exp(s - lse)      dp = dout . v      ds = p (dp - delta)     (soft cap: ds *= 1 - tanh^2)
//! dq_q = sum_k ds k_k     (a cube per block of queries and query head)
//! dk_k = sum_q ds q_q     dv_k = sum_q p dout_q     (a cube per block of keys and kv head, over its query heads)
//! ```
//! Scores and dp are computed in both kernels: seven products in place of five, and no gradient that two cubes share.

use cubecl::prelude::*;

use super::mask::{Options, block, slope, soft_cap, visible};
use super::tile::{SIDE, Span, Tile, UNITS, scores, weighted_sum, write};

/// `delta: [T, Hq]`, the dot products of `out` and `dout: [T, Hq * D]`, both read as `[T * Hq, D]`: 16 units per row.
#[cube(launch)]
pub(crate) fn delta_kernel<E: Float>(
    out: &[E],
    dout: &[E],
    delta: &mut [f32],
    rows: usize,
    #[comptime] head_dim: usize,
    #[define(E)] _type: ElemType,
) {
    let mut partial = Shared::<[f32]>::new_slice(UNITS);
    let unit = UNIT_POS as usize;
    let (r, c) = (unit / SIDE, unit % SIDE);
    let row = CUBE_POS * SIDE + r;
    let mut sum = f32::new(0.0);
    if row < rows {
        let mut d = c;
        while d < head_dim {
            sum = fma(f32::cast_from(out[row * head_dim + d]), f32::cast_from(dout[row * head_dim + d]), sum);
            d += SIDE;
        }
    }
    partial[unit] = sum;
    sync_cube();
    if c == 0 && row < rows {
        let mut total = f32::new(0.0);
        for i in 0..SIDE {
            total += partial[unit + i];
        }
        delta[row] = total;
    }
}

/// `dq: [T, Hq * D]`. Cubes and blocks are those of the forward kernel.
#[cube(launch)]
#[expect(clippy::too_many_arguments, reason = "a kernel's operands")]
pub(crate) fn dq_kernel<E: Float>(
    q: &[E],
    k: &[E],
    v: &[E],
    dout: &[E],
    lse: &[f32],
    delta: &[f32],
    tokens: &[u32],
    blocks: &[u32],
    dq: &mut [E],
    num_blocks: usize,
    heads: usize,
    kv_heads: usize,
    cap: f32,
    window: usize,
    #[comptime] options: Options<Tile>,
    #[define(E)] _type: ElemType,
) {
    let tile = comptime!(options.tile);
    let mut stage = Shared::<[f32]>::new_slice(comptime!(tile.staging()));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(tile.weights()));
    let (r, c) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let (rows, columns, width) = comptime!((tile.unit_rows(), tile.unit_columns(), tile.unit_features()));
    let mut s = Array::<f32>::new(comptime!(rows * columns));
    let mut dp = Array::<f32>::new(comptime!(rows * columns));
    let mut result = Array::<f32>::new(comptime!(rows * width));
    #[unroll]
    for i in 0..comptime!(rows * width) {
        result[i] = f32::new(0.0);
    }
    if CUBE_POS < num_blocks * heads {
        let block = block(blocks, CUBE_POS / heads);
        let head = CUBE_POS % heads;
        let kv_head = head / (heads / kv_heads);
        let queries = Span {
            start: block.document + block.first,
            len: min(block.len - block.first, comptime!(tile.rows)),
            head,
            heads,
        };
        let mut row_lse = Array::<f32>::new(rows);
        let mut row_delta = Array::<f32>::new(rows);
        #[unroll]
        for i in 0..rows {
            row_lse[i] = f32::new(0.0);
            row_delta[i] = f32::new(0.0);
            if r + i * SIDE < queries.len {
                let at = tokens[queries.start + r + i * SIDE] as usize * heads + head;
                row_lse[i] = lse[at];
                row_delta[i] = delta[at];
            }
        }
        let end = block.first + queries.len;
        let mut first = block.other;
        while first < end {
            let keys =
                Span { start: block.document + first, len: end - first, head: kv_head, heads: kv_heads };
            scores::<E>(q, &queries, k, &keys, tokens, &mut stage, &mut s, tile);
            scores::<E>(dout, &queries, v, &keys, tokens, &mut stage, &mut dp, tile);
            #[unroll]
            for i in 0..rows {
                let row = r + i * SIDE;
                #[unroll]
                for j in 0..columns {
                    let at = comptime!(i * columns + j);
                    let mut factor = dp[at] - row_delta[i];
                    if comptime!(options.capped) {
                        s[at] = soft_cap(s[at], cap);
                        factor *= slope(s[at], cap);
                    }
                    let seen = visible(
                        &block,
                        block.first + row,
                        first + c + j * SIDE,
                        tokens,
                        window,
                        options.windowed,
                    );
                    let ds = select(seen, (s[at] - row_lse[i]).exp() * factor, f32::new(0.0));
                    weights[row * comptime!(tile.column_stride()) + c + j * SIDE] = ds;
                }
            }
            weighted_sum::<E>(&weights, k, &keys, tokens, &mut stage, &mut result, tile);
            first += comptime!(tile.columns);
        }
        write::<E>(&result, dq, &queries, tokens, tile);
    }
}

/// `dk, dv: [T, Hkv * D]`. Cube `i` takes kv head `i % kv_heads` of block `i / kv_heads`; `other` of a block's entry is the end of
/// the queries that see its last key.
#[cube(launch)]
#[expect(clippy::too_many_arguments, reason = "a kernel's operands")]
pub(crate) fn dkv_kernel<E: Float>(
    q: &[E],
    k: &[E],
    v: &[E],
    dout: &[E],
    lse: &[f32],
    delta: &[f32],
    tokens: &[u32],
    blocks: &[u32],
    dk: &mut [E],
    dv: &mut [E],
    num_blocks: usize,
    heads: usize,
    kv_heads: usize,
    cap: f32,
    window: usize,
    #[comptime] options: Options<Tile>,
    #[define(E)] _type: ElemType,
) {
    let tile = comptime!(options.tile);
    let mut stage = Shared::<[f32]>::new_slice(comptime!(tile.staging()));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(tile.weights()));
    let (r, c) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let (rows, columns, width) = comptime!((tile.unit_rows(), tile.unit_columns(), tile.unit_features()));
    // Rows are keys, columns are queries: the scores are transposed.
    let mut s = Array::<f32>::new(comptime!(rows * columns));
    let mut dp = Array::<f32>::new(comptime!(rows * columns));
    let mut key_sums = Array::<f32>::new(comptime!(rows * width));
    let mut value_sums = Array::<f32>::new(comptime!(rows * width));
    #[unroll]
    for i in 0..comptime!(rows * width) {
        key_sums[i] = f32::new(0.0);
        value_sums[i] = f32::new(0.0);
    }
    if CUBE_POS < num_blocks * kv_heads {
        let block = block(blocks, CUBE_POS / kv_heads);
        let kv_head = CUBE_POS % kv_heads;
        let group = heads / kv_heads;
        let keys = Span {
            start: block.document + block.first,
            len: min(block.len - block.first, comptime!(tile.rows)),
            head: kv_head,
            heads: kv_heads,
        };
        for member in 0..group {
            let head = kv_head * group + member;
            let mut first = block.first;
            while first < block.other {
                let queries = Span { start: block.document + first, len: block.other - first, head, heads };
                scores::<E>(k, &keys, q, &queries, tokens, &mut stage, &mut s, tile);
                scores::<E>(v, &keys, dout, &queries, tokens, &mut stage, &mut dp, tile);
                #[unroll]
                for j in 0..columns {
                    let column = c + j * SIDE;
                    let mut column_lse = f32::new(0.0);
                    let mut column_delta = f32::new(0.0);
                    if column < queries.len {
                        let at = tokens[queries.start + column] as usize * heads + head;
                        column_lse = lse[at];
                        column_delta = delta[at];
                    }
                    #[unroll]
                    for i in 0..rows {
                        let at = comptime!(i * columns + j);
                        let mut factor = dp[at] - column_delta;
                        if comptime!(options.capped) {
                            s[at] = soft_cap(s[at], cap);
                            factor *= slope(s[at], cap);
                        }
                        let row = r + i * SIDE;
                        let seen = column < queries.len
                            && visible(
                                &block,
                                first + column,
                                block.first + row,
                                tokens,
                                window,
                                options.windowed,
                            );
                        let p = select(seen, (s[at] - column_lse).exp(), f32::new(0.0));
                        weights[row * comptime!(tile.column_stride()) + column] = p;
                        dp[at] = select(seen, p * factor, f32::new(0.0));
                    }
                }
                weighted_sum::<E>(&weights, dout, &queries, tokens, &mut stage, &mut value_sums, tile);
                sync_cube();
                #[unroll]
                for i in 0..rows {
                    #[unroll]
                    for j in 0..columns {
                        let at = comptime!(i * columns + j);
                        weights[(r + i * SIDE) * comptime!(tile.column_stride()) + c + j * SIDE] = dp[at];
                    }
                }
                weighted_sum::<E>(&weights, q, &queries, tokens, &mut stage, &mut key_sums, tile);
                first += comptime!(tile.columns);
            }
        }
        write::<E>(&key_sums, dk, &keys, tokens, tile);
        write::<E>(&value_sums, dv, &keys, tokens, tile);
    }
}
