//! Attention over a part of a sequence, and the merger of parts.
//!
//! ```text
//! of a part c    m_c = max_k s_k      l_c = sum_k exp(s_k - m_c)       o_c = sum_k exp(s_k - m_c) v_k
//! of a row       m = max_c m_c        l = sum_c exp(m_c - m) l_c       out = sum_c exp(m_c - m) o_c / l
//! ```

use cubecl::prelude::*;

use super::PER_WORD;
use crate::ops::cube::int8::BOUND;
use crate::ops::cube::{UNITS, tanh};

/// What stands for minus infinity: finite, since WGSL knows no infinite constants.
const LOWEST: f32 = -3.0e38;

/// What a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Options {
    /// Words of int8, else floats.
    pub(crate) int8: bool,
    /// A scale per position and head, else one per position.
    pub(crate) scale_per_head: bool,
    /// There is a soft cap.
    pub(crate) capped: bool,
    pub(crate) head_dim: usize,
    /// Query heads that a cube takes.
    pub(crate) together: usize,
}

impl Options {
    /// Features to a word.
    fn per_word(self) -> usize {
        if self.int8 { PER_WORD } else { 1 }
    }

    /// Words of a vector.
    fn words(self) -> usize {
        self.head_dim.div_ceil(self.per_word())
    }

    /// Features of a vector's words.
    fn width(self) -> usize {
        self.words() * self.per_word()
    }

    /// Words that a row of units takes at a time.
    fn columns(self) -> usize {
        self.words().min(UNITS)
    }
}

/// Softmax and sums of a part for `together` query heads: a cube each, a unit per position. Leaves `sums: [tasks, Hq, D]` and
/// `softmax: [tasks, Hq, 2]`, a maximum and a sum.
#[cube(launch)]
#[expect(clippy::too_many_arguments, reason = "a kernel's operands")]
pub(crate) fn attend_kernel<Q: Float, S: Numeric>(
    q: &[Q],
    keys: &[S],
    values: &[S],
    scales: &[u32],
    plan: &[u32],
    sums: &mut [f32],
    softmax: &mut [f32],
    tasks: usize,
    heads: usize,
    kv_heads: usize,
    capacity: usize,
    cap: f32,
    #[comptime] options: Options,
    #[define(Q, S)] _types: [ElemType; 2],
) {
    let (together, head_dim) = comptime!((options.together, options.head_dim));
    let (words, per_word, width) = comptime!((options.words(), options.per_word(), options.width()));
    let columns = comptime!(options.columns());
    let mut queries = Shared::<[f32]>::new_slice(comptime!(together * width));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(together * UNITS));
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(together.max(per_word) * UNITS));
    let unit = UNIT_POS as usize;
    let cubes = heads / together; // for a part
    if CUBE_POS < tasks * cubes {
        let (task, first_head) = (CUBE_POS / cubes, CUBE_POS % cubes * together);
        let kv_head = first_head / (heads / kv_heads);
        let (row, sequence) = (plan[task * 4] as usize, plan[task * 4 + 1] as usize);
        let (first, count) = (plan[task * 4 + 2] as usize, plan[task * 4 + 3] as usize);
        let mut i = unit;
        while i < together * width {
            let (head, feature) = (i / width, i % width);
            queries[i] = f32::new(0.0);
            if feature < head_dim {
                queries[i] = f32::cast_from(q[(row * heads + first_head + head) * head_dim + feature]);
            }
            i += UNITS;
        }
        sync_cube();

        // Scores.
        let is_seen = unit < count;
        let vectors = sequence * kv_heads + kv_head;
        let mut scores = Array::<f32>::new(together);
        let mut value_scale = f32::new(1.0);
        #[unroll]
        for head in 0..together {
            scores[head] = f32::new(0.0);
        }
        if is_seen {
            let position = first + unit;
            for word in 0..words {
                let stored = keys[(vectors * words + word) * capacity + position];
                #[unroll]
                for i in 0..per_word {
                    let key = feature::<S>(stored, i, options);
                    #[unroll]
                    for head in 0..together {
                        scores[head] += queries[head * width + word * per_word + i] * key;
                    }
                }
            }
            if comptime!(options.int8) {
                let run = if comptime!(options.scale_per_head) { vectors } else { sequence };
                let scale = scales[run * capacity + position];
                let key_scale = f32::reinterpret(scale << 16) * f32::new(comptime!(1.0 / BOUND));
                value_scale = f32::reinterpret(scale & 0xffff_0000) * f32::new(comptime!(1.0 / BOUND));
                #[unroll]
                for head in 0..together {
                    scores[head] *= key_scale;
                }
            }
            if comptime!(options.capped) {
                #[unroll]
                for head in 0..together {
                    scores[head] = cap * tanh(scores[head] / cap);
                }
            }
        }

        // Softmax.
        #[unroll]
        for head in 0..together {
            scratch[head * UNITS + unit] = select(is_seen, scores[head], f32::new(LOWEST));
        }
        sync_cube();
        #[unroll]
        for step in 1..comptime!(UNITS.ilog2() as usize + 1) {
            let half = comptime!(UNITS >> step);
            if unit < half {
                #[unroll]
                for head in 0..together {
                    let at = head * UNITS + unit;
                    scratch[at] = max(scratch[at], scratch[at + half]);
                }
            }
            sync_cube();
        }
        let mut most = Array::<f32>::new(together);
        #[unroll]
        for head in 0..together {
            most[head] = scratch[head * UNITS];
        }
        sync_cube();
        #[unroll]
        for head in 0..together {
            let weight = select(is_seen, (scores[head] - most[head]).exp(), f32::new(0.0));
            weights[head * UNITS + unit] = weight * value_scale;
            scratch[head * UNITS + unit] = weight;
        }
        sync_cube();
        #[unroll]
        for step in 1..comptime!(UNITS.ilog2() as usize + 1) {
            let half = comptime!(UNITS >> step);
            if unit < half {
                #[unroll]
                for head in 0..together {
                    let at = head * UNITS + unit;
                    let other = scratch[at + half];
                    scratch[at] += other;
                }
            }
            sync_cube();
        }
        let result = task * heads + first_head;
        if unit == 0 {
            #[unroll]
            for head in 0..together {
                softmax[(result + head) * 2] = most[head];
                softmax[(result + head) * 2 + 1] = scratch[head * UNITS];
            }
        }

        // Sums of values: a unit per word and share of the positions.
        let shares = comptime!(UNITS / columns);
        let share = unit / columns;
        for tile in 0..comptime!(words.div_ceil(columns)) {
            let word = tile * columns + unit % columns;
            let mut part = Array::<f32>::new(comptime!(together * per_word));
            #[unroll]
            for i in 0..comptime!(together * per_word) {
                part[i] = f32::new(0.0);
            }
            if share < shares && word < words {
                let mut position = share;
                while position < count {
                    let stored = values[(vectors * capacity + first + position) * words + word];
                    #[unroll]
                    for i in 0..per_word {
                        let value = feature::<S>(stored, i, options);
                        #[unroll]
                        for head in 0..together {
                            part[head * per_word + i] += weights[head * UNITS + position] * value;
                        }
                    }
                    position += shares;
                }
            }
            #[unroll]
            for head in 0..together {
                sync_cube();
                #[unroll]
                for i in 0..per_word {
                    scratch[unit * per_word + i] = part[head * per_word + i];
                }
                sync_cube();
                let mut i = unit;
                while i < comptime!(columns * per_word) {
                    let feature = tile * columns * per_word + i;
                    if feature < head_dim {
                        let mut sum = f32::new(0.0);
                        for share in 0..shares {
                            sum += scratch[share * columns * per_word + i];
                        }
                        sums[(result + head) * head_dim + feature] = sum;
                    }
                    i += UNITS;
                }
            }
        }
    }
}

/// A feature of what is stored.
#[cube]
fn feature<S: Numeric>(stored: S, #[comptime] i: usize, #[comptime] options: Options) -> f32 {
    if comptime!(options.int8) {
        let byte = ((u32::cast_from(stored) ^ 0x8080_8080) >> comptime!(8 * i as u32)) & 0xff;
        f32::cast_from(byte) - f32::new(128.0)
    } else {
        f32::cast_from(stored)
    }
}

/// `out: [slots, Hq * D]` from the parts of every row: a cube per row and head.
#[cube(launch)]
pub(crate) fn merge_kernel<Q: Float>(
    sums: &[f32],
    softmax: &[f32],
    plan: &[u32],
    out: &mut [Q],
    tasks: usize,
    rows: usize,
    heads: usize,
    head_dim: usize,
    #[define(Q)] _type: ElemType,
) {
    if CUBE_POS < rows * heads {
        let (row, head) = (CUBE_POS / heads, CUBE_POS % heads);
        let first = plan[tasks * 4 + row * 2] as usize;
        let end = first + plan[tasks * 4 + row * 2 + 1] as usize;
        let mut most = f32::new(LOWEST);
        for part in first..end {
            most = max(most, softmax[(part * heads + head) * 2]);
        }
        let mut feature = UNIT_POS as usize;
        while feature < head_dim {
            let mut sum = f32::new(0.0);
            let mut total = f32::new(0.0);
            for part in first..end {
                let at = part * heads + head;
                let fade = (softmax[at * 2] - most).exp();
                total += fade * softmax[at * 2 + 1];
                sum += fade * sums[at * head_dim + feature];
            }
            out[CUBE_POS * head_dim + feature] = Q::cast_from(sum / total);
            feature += UNITS;
        }
    }
}
