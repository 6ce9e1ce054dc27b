//! Attention forward: a cube per block of queries and head, an online softmax over blocks of keys.
//!
//! ```text
//! s = q . k, capped, masked       m' = max(m, max_k s)      p = exp(s - m')
//! l = l exp(m - m') + sum_k p     o = o exp(m - m') + sum_k p v_k
//! out = o / l                     lse = m + ln l
//! ```
//! Keys before the window of the block's first query, after its last query, and of other documents are not read at all.

use cubecl::prelude::*;

use super::mask::{LOWEST, Options, block, soft_cap, visible};
use super::tile::{SIDE, Span, Tile, scores, weighted_sum, write};

/// `out: [T, Hq * D]`, `lse: [T, Hq]`. Cube `i` takes head `i % heads` of block `i / heads`; `other` of a block's entry is the
/// first key that its first query sees.
#[cube(launch)]
#[expect(clippy::too_many_arguments, reason = "a kernel's operands")]
pub(crate) fn forward_kernel<E: Float>(
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
    #[comptime] options: Options<Tile>,
    #[define(E)] _type: ElemType,
) {
    let tile = comptime!(options.tile);
    let mut stage = Shared::<[f32]>::new_slice(comptime!(tile.staging()));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(tile.weights()));
    let (r, c) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    let (rows, columns, width) = comptime!((tile.unit_rows(), tile.unit_columns(), tile.unit_features()));
    let mut s = Array::<f32>::new(comptime!(rows * columns));
    let mut o = Array::<f32>::new(comptime!(rows * width));
    let mut m = Array::<f32>::new(rows);
    let mut l = Array::<f32>::new(rows);
    #[unroll]
    for i in 0..comptime!(rows * width) {
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
        let end = block.first + queries.len;
        let mut first = block.other;
        while first < end {
            let keys =
                Span { start: block.document + first, len: end - first, head: kv_head, heads: kv_heads };
            scores::<E>(q, &queries, k, &keys, tokens, &mut stage, &mut s, tile);
            sync_cube();
            #[unroll]
            for i in 0..rows {
                let query = block.first + r + i * SIDE;
                let mut most = f32::new(LOWEST);
                #[unroll]
                for j in 0..columns {
                    let key = first + c + j * SIDE;
                    let at = comptime!(i * columns + j);
                    if comptime!(options.capped) {
                        s[at] = soft_cap(s[at], cap);
                    }
                    if !visible(&block, query, key, tokens, window, options.windowed) {
                        s[at] = f32::new(LOWEST);
                    }
                    most = max(most, s[at]);
                }
                stage[(r + i * SIDE) * comptime!(SIDE + 1) + c] = most;
            }
            sync_cube();
            #[unroll]
            for i in 0..rows {
                let row = r + i * SIDE;
                let mut most = m[i];
                for unit in 0..SIDE {
                    most = max(most, stage[row * comptime!(SIDE + 1) + unit]);
                }
                let fade = (m[i] - most).exp();
                m[i] = most;
                let mut sum = f32::new(0.0);
                #[unroll]
                for j in 0..columns {
                    let at = comptime!(i * columns + j);
                    let seen = visible(
                        &block,
                        block.first + row,
                        first + c + j * SIDE,
                        tokens,
                        window,
                        options.windowed,
                    );
                    let p = select(seen, (s[at] - most).exp(), f32::new(0.0));
                    sum += p;
                    weights[row * comptime!(tile.column_stride()) + c + j * SIDE] = p;
                }
                l[i] = fma(l[i], fade, sum);
                #[unroll]
                for w in 0..width {
                    o[i * width + w] *= fade;
                }
            }
            weighted_sum::<E>(&weights, v, &keys, tokens, &mut stage, &mut o, tile);
            first += comptime!(tile.columns);
        }
        sync_cube();
        #[unroll]
        for i in 0..rows {
            stage[(r + i * SIDE) * comptime!(SIDE + 1) + c] = l[i];
        }
        sync_cube();
        #[unroll]
        for i in 0..rows {
            let row = r + i * SIDE;
            let mut sum = f32::new(0.0);
            for unit in 0..SIDE {
                sum += stage[row * comptime!(SIDE + 1) + unit];
            }
            #[unroll]
            for w in 0..width {
                o[i * width + w] /= sum;
            }
            if c == 0 && row < queries.len {
                lse[tokens[queries.start + row] as usize * heads + head] = m[i] + sum.ln();
            }
        }
        write::<E>(&o, out, &queries, tokens, tile);
    }
}
