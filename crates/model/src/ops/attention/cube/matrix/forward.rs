//! Attention forward on matrix units; the maths of [`super::super::forward`].

use cubecl::prelude::*;

use super::super::mask::{LOWEST, Options, block, soft_cap, visible};
use super::super::tile::{SIDE, Span};
use super::{Fragments, multiply, operand, row_max, row_sum, scores, stage, store, zeros};

/// As [`super::super::forward::forward_kernel`].
#[cube(launch)]
#[expect(clippy::too_many_arguments, reason = "a kernel's operands")]
pub(crate) fn matrix_forward_kernel<E: Float>(
    q: &[E],
    k: &[E],
    v: &[E],
    tokens: &[u32],
    blocks: &[u32],
    out: &mut [E],
    lse: &mut [f32],
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
    let mut other = operand::<E>(comptime!(tile.columns), comptime!(tile.operand_stride()));
    let mut weights = operand::<E>(comptime!(tile.rows), comptime!(tile.weight_stride()));
    let mut s = scores(tile);
    let (r, c) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let rows = comptime!(tile.rows / SIDE);
    let mut o = Array::<f32>::new(comptime!(rows * across_features));
    let mut m = Array::<f32>::new(rows);
    let mut l = Array::<f32>::new(rows);
    let mut row_scores = Array::<f32>::new(across);
    #[unroll]
    for i in 0..comptime!(rows * across_features) {
        o[i] = f32::new(0.0);
    }
    #[unroll]
    for i in 0..rows {
        m[i] = f32::new(LOWEST);
        l[i] = f32::new(0.0);
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
        stage::<E>(q, tokens, &queries, &mut own, tile.rows, tile);
        let end = block.first + queries.len;
        let mut first = block.other;
        while first < end {
            let keys =
                Span { start: block.document + first, len: end - first, head: kv_head, heads: kv_heads };
            sync_cube();
            stage::<E>(k, tokens, &keys, &mut other, tile.columns, tile);
            sync_cube();
            let mut sums = zeros(across, tile);
            multiply::<E>(&own, &other, &mut sums, strides, across_features, 0usize, across, true, tile);
            store(&sums, &mut s, 0usize, across, tile);
            sync_cube();
            stage::<E>(v, tokens, &keys, &mut other, tile.columns, tile);
            #[unroll]
            for i in 0..rows {
                let row = r + comptime!(i * SIDE);
                let query = block.first + row;
                let mut most = m[i];
                #[unroll]
                for j in 0..across {
                    let column = c + comptime!(j * SIDE);
                    let mut score = s[row * comptime!(tile.score_stride()) + column];
                    if comptime!(options.capped) {
                        score = soft_cap(score, cap);
                    }
                    if !visible(&block, query, first + column, tokens, window, options.windowed) {
                        score = f32::new(LOWEST);
                    }
                    row_scores[j] = score;
                    most = max(most, score);
                }
                most = row_max(most);
                let fade = (m[i] - most).exp();
                m[i] = most;
                let mut sum = f32::new(0.0);
                #[unroll]
                for j in 0..across {
                    let column = c + comptime!(j * SIDE);
                    let seen = visible(&block, query, first + column, tokens, window, options.windowed);
                    let p = select(seen, (row_scores[j] - most).exp(), f32::new(0.0));
                    sum += p;
                    weights[row * comptime!(tile.weight_stride()) + column] = E::cast_from(p);
                }
                l[i] = fma(l[i], fade, sum);
                #[unroll]
                for w in 0..across_features {
                    o[i * across_features + w] *= fade;
                }
            }
            #[unroll]
            for pass in 0..comptime!(tile.passes()) {
                let from = comptime!(pass * across);
                let count =
                    comptime!(if across_features - from < across { across_features - from } else { across });
                sync_cube();
                let mut sums = zeros(count, tile);
                multiply::<E>(&weights, &other, &mut sums, weighted, across, from, count, false, tile);
                store(&sums, &mut s, 0usize, count, tile);
                sync_cube();
                #[unroll]
                for i in 0..rows {
                    let row = r + comptime!(i * SIDE);
                    #[unroll]
                    for w in 0..count {
                        let at = comptime!(i * across_features + from + w);
                        o[at] += s[row * comptime!(tile.score_stride()) + c + comptime!(w * SIDE)];
                    }
                }
            }
            first += comptime!(tile.columns);
        }
        #[unroll]
        for i in 0..rows {
            let row = r + comptime!(i * SIDE);
            let sum = row_sum(l[i]);
            if row < queries.len {
                let token = tokens[queries.start + row] as usize * heads + head;
                #[unroll]
                for w in 0..across_features {
                    let at = token * comptime!(tile.head_dim) + c + comptime!(w * SIDE);
                    out[at] = E::cast_from(o[i * across_features + w] / sum);
                }
                if c == 0 {
                    lse[token] = m[i] + sum.ln();
                }
            }
        }
    }
}
