//! Attention backward on matrix units; the maths of [`super::super::backward`]. Results stay in fragments over all blocks.

use cubecl::prelude::*;

use super::super::mask::{Options, block, slope, soft_cap, visible};
use super::super::tile::{SIDE, Span};
use super::{Fragments, multiply, operand, scores, stage, store, write, zeros};

/// As [`super::super::backward::dq_kernel`].
#[cube(launch)]
#[expect(clippy::too_many_arguments, reason = "a kernel's operands")]
pub(crate) fn matrix_dq_kernel<E: Float>(
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
    #[comptime] options: Options<Fragments>,
    #[define(E)] _type: ElemType,
) {
    let tile = comptime!(options.tile);
    let strides = comptime!((tile.operand_stride(), tile.operand_stride()));
    let weighted = comptime!((tile.weight_stride(), tile.operand_stride()));
    let [across, across_features] = comptime!(tile.across());
    let mut own = operand::<E>(comptime!(tile.rows), comptime!(tile.operand_stride()));
    let mut own_dout = operand::<E>(comptime!(tile.rows), comptime!(tile.operand_stride()));
    let mut other = operand::<E>(comptime!(tile.columns), comptime!(tile.operand_stride()));
    let mut weights = operand::<E>(comptime!(tile.rows), comptime!(tile.weight_stride()));
    let mut s = scores(tile);
    let (r, c) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let rows = comptime!(tile.rows / SIDE);
    let mut dp = Array::<f32>::new(comptime!(rows * across));
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
            let row = r + comptime!(i * SIDE);
            if row < queries.len {
                let at = tokens[queries.start + row] as usize * heads + head;
                row_lse[i] = lse[at];
                row_delta[i] = delta[at];
            }
        }
        stage::<E>(q, tokens, &queries, &mut own, tile.rows, tile);
        stage::<E>(dout, tokens, &queries, &mut own_dout, tile.rows, tile);
        let mut result = zeros(across_features, tile);
        let end = block.first + queries.len;
        let mut first = block.other;
        while first < end {
            let keys =
                Span { start: block.document + first, len: end - first, head: kv_head, heads: kv_heads };
            sync_cube();
            stage::<E>(v, tokens, &keys, &mut other, tile.columns, tile);
            sync_cube();
            let mut sums = zeros(across, tile);
            multiply::<E>(&own_dout, &other, &mut sums, strides, across_features, 0usize, across, true, tile);
            store(&sums, &mut s, 0usize, across, tile);
            sync_cube();
            read(&s, &mut dp, tile);
            stage::<E>(k, tokens, &keys, &mut other, tile.columns, tile);
            sync_cube();
            let mut sums = zeros(across, tile);
            multiply::<E>(&own, &other, &mut sums, strides, across_features, 0usize, across, true, tile);
            store(&sums, &mut s, 0usize, across, tile);
            sync_cube();
            #[unroll]
            for i in 0..rows {
                let row = r + comptime!(i * SIDE);
                #[unroll]
                for j in 0..across {
                    let column = c + comptime!(j * SIDE);
                    let mut score = s[row * comptime!(tile.score_stride()) + column];
                    let mut factor = dp[i * across + j] - row_delta[i];
                    if comptime!(options.capped) {
                        score = soft_cap(score, cap);
                        factor *= slope(score, cap);
                    }
                    let seen =
                        visible(&block, block.first + row, first + column, tokens, window, options.windowed);
                    let ds = select(seen, (score - row_lse[i]).exp() * factor, f32::new(0.0));
                    weights[row * comptime!(tile.weight_stride()) + column] = E::cast_from(ds);
                }
            }
            sync_cube();
            multiply::<E>(
                &weights,
                &other,
                &mut result,
                weighted,
                across,
                0usize,
                across_features,
                false,
                tile,
            );
            first += comptime!(tile.columns);
        }
        write::<E>(&result, &mut s, dq, &queries, tokens, tile);
    }
}

/// The unit's part of a block of scores.
#[cube]
fn read(scores: &Shared<[f32]>, to: &mut Array<f32>, #[comptime] tile: Fragments) {
    let (r, c) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let (rows, columns) = comptime!((tile.rows / SIDE, tile.columns / SIDE));
    #[unroll]
    for i in 0..rows {
        #[unroll]
        for j in 0..columns {
            let at = (r + comptime!(i * SIDE)) * comptime!(tile.score_stride()) + c + comptime!(j * SIDE);
            to[i * columns + j] = scores[at];
        }
    }
}

/// Rounds the unit's part of a block to where products read it.
#[cube]
fn put<E: Float>(from: &Array<f32>, weights: &mut Shared<[E]>, #[comptime] tile: Fragments) {
    let (r, c) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let (rows, columns) = comptime!((tile.rows / SIDE, tile.columns / SIDE));
    #[unroll]
    for i in 0..rows {
        #[unroll]
        for j in 0..columns {
            let at = (r + comptime!(i * SIDE)) * comptime!(tile.weight_stride()) + c + comptime!(j * SIDE);
            weights[at] = E::cast_from(from[i * columns + j]);
        }
    }
}

/// As [`super::super::backward::dkv_kernel`].
#[cube(launch)]
#[expect(clippy::too_many_arguments, reason = "a kernel's operands")]
pub(crate) fn matrix_dkv_kernel<E: Float>(
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
    #[comptime] options: Options<Fragments>,
    #[define(E)] _type: ElemType,
) {
    let tile = comptime!(options.tile);
    let strides = comptime!((tile.operand_stride(), tile.operand_stride()));
    let weighted = comptime!((tile.weight_stride(), tile.operand_stride()));
    let [across, across_features] = comptime!(tile.across());
    let mut own = operand::<E>(comptime!(tile.rows), comptime!(tile.operand_stride()));
    let mut own_values = operand::<E>(comptime!(tile.rows), comptime!(tile.operand_stride()));
    let mut other = operand::<E>(comptime!(tile.columns), comptime!(tile.operand_stride()));
    let mut weights = operand::<E>(comptime!(tile.rows), comptime!(tile.weight_stride()));
    let mut s = scores(tile);
    let (r, c) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let rows = comptime!(tile.rows / SIDE);
    // Rows are keys, columns are queries: the scores are transposed.
    let mut p = Array::<f32>::new(comptime!(rows * across));
    let mut ds = Array::<f32>::new(comptime!(rows * across));
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
        stage::<E>(k, tokens, &keys, &mut own, tile.rows, tile);
        stage::<E>(v, tokens, &keys, &mut own_values, tile.rows, tile);
        let mut key_sums = zeros(across_features, tile);
        let mut value_sums = zeros(across_features, tile);
        for member in 0..group {
            let head = kv_head * group + member;
            let mut first = block.first;
            while first < block.other {
                let queries = Span { start: block.document + first, len: block.other - first, head, heads };
                sync_cube();
                stage::<E>(q, tokens, &queries, &mut other, tile.columns, tile);
                sync_cube();
                let mut sums = zeros(across, tile);
                multiply::<E>(&own, &other, &mut sums, strides, across_features, 0usize, across, true, tile);
                store(&sums, &mut s, 0usize, across, tile);
                sync_cube();
                read(&s, &mut p, tile);
                stage::<E>(dout, tokens, &queries, &mut other, tile.columns, tile);
                sync_cube();
                let mut sums = zeros(across, tile);
                multiply::<E>(
                    &own_values,
                    &other,
                    &mut sums,
                    strides,
                    across_features,
                    0usize,
                    across,
                    true,
                    tile,
                );
                store(&sums, &mut s, 0usize, across, tile);
                sync_cube();
                read(&s, &mut ds, tile);
                #[unroll]
                for j in 0..across {
                    let column = c + comptime!(j * SIDE);
                    let mut column_lse = f32::new(0.0);
                    let mut column_delta = f32::new(0.0);
                    if column < queries.len {
                        let at = tokens[queries.start + column] as usize * heads + head;
                        column_lse = lse[at];
                        column_delta = delta[at];
                    }
                    #[unroll]
                    for i in 0..rows {
                        let at = comptime!(i * across + j);
                        let mut score = p[at];
                        let mut factor = ds[at] - column_delta;
                        if comptime!(options.capped) {
                            score = soft_cap(score, cap);
                            factor *= slope(score, cap);
                        }
                        let row = r + comptime!(i * SIDE);
                        let seen = column < queries.len
                            && visible(
                                &block,
                                first + column,
                                block.first + row,
                                tokens,
                                window,
                                options.windowed,
                            );
                        let weight = select(seen, (score - column_lse).exp(), f32::new(0.0));
                        p[at] = weight;
                        ds[at] = select(seen, weight * factor, f32::new(0.0));
                    }
                }
                put::<E>(&p, &mut weights, tile);
                sync_cube();
                multiply::<E>(
                    &weights,
                    &other,
                    &mut value_sums,
                    weighted,
                    across,
                    0usize,
                    across_features,
                    false,
                    tile,
                );
                sync_cube();
                put::<E>(&ds, &mut weights, tile);
                stage::<E>(q, tokens, &queries, &mut other, tile.columns, tile);
                sync_cube();
                multiply::<E>(
                    &weights,
                    &other,
                    &mut key_sums,
                    weighted,
                    across,
                    0usize,
                    across_features,
                    false,
                    tile,
                );
                first += comptime!(tile.columns);
            }
        }
        write::<E>(&key_sums, &mut s, dk, &keys, tokens, tile);
        write::<E>(&value_sums, &mut s, dv, &keys, tokens, tile);
    }
}
