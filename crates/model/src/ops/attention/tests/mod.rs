//! Inputs and a float64 reference that follows the definition in `super` word by word, for the tests.

mod kernels;
mod properties;
mod tensors;

use super::super::real::Real;
use super::flash_backward::{Gradients, Inputs, backward};
use super::flash_forward::forward;
use super::{Layout, Spec};
use mt_config::AttentionKernel;

/// Queries, keys, values and the gradient of the output.
#[derive(Clone)]
pub(super) struct Data<E> {
    pub(super) q: Vec<E>,
    pub(super) k: Vec<E>,
    pub(super) v: Vec<E>,
    pub(super) dout: Vec<E>,
}

/// What attention computes.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Results<E> {
    pub(super) out: Vec<E>,
    pub(super) lse: Vec<f32>,
    pub(super) dq: Vec<E>,
    pub(super) dk: Vec<E>,
    pub(super) dv: Vec<E>,
}

/// Values in [-1, 1), the same for the same seed.
pub(super) fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

pub(super) fn spec(num_query_heads: usize, num_kv_heads: usize, head_dim: usize) -> Spec {
    Spec {
        num_query_heads,
        num_kv_heads,
        head_dim,
        soft_cap: None,
        window: None,
        kernel: AttentionKernel::Flash,
        float32_logits: true,
        float32_qk_product: true,
    }
}

/// Scores of a few units, as in training.
pub(super) fn data(seed: u64, tokens: usize, spec: &Spec) -> Data<f32> {
    let (queries, keys) =
        (tokens * spec.num_query_heads * spec.head_dim, tokens * spec.num_kv_heads * spec.head_dim);
    let scale = 4.0 / (spec.head_dim as f32).sqrt();
    Data {
        q: random(seed, queries).into_iter().map(|x| x * scale).collect(),
        k: random(seed + 1, keys),
        v: random(seed + 2, keys),
        dout: random(seed + 3, queries),
    }
}

/// Ids and layout for documents of these lengths, one row.
pub(super) fn packed(lengths: &[usize]) -> Layout {
    let ids: Vec<i32> = lengths.iter().enumerate().flat_map(|(i, &len)| vec![i as i32 + 1; len]).collect();
    Layout::new(&ids, &vec![0; ids.len()], 1, ids.len())
}

pub(super) fn flash<E: Real>(data: &Data<E>, layout: &Layout, spec: &Spec, threads: usize) -> Results<E> {
    let mut results = Results {
        out: vec![E::from_f32(0.0); data.q.len()],
        lse: vec![0.0; layout.num_tokens() * spec.num_query_heads],
        dq: vec![E::from_f32(0.0); data.q.len()],
        dk: vec![E::from_f32(0.0); data.k.len()],
        dv: vec![E::from_f32(0.0); data.v.len()],
    };
    forward(&data.q, &data.k, &data.v, layout, spec, &mut results.out, &mut results.lse);
    let Results { out, lse, dq, dk, dv } = &mut results;
    let inputs = Inputs { q: &data.q, k: &data.k, v: &data.v, out, lse, dout: &data.dout };
    backward(&inputs, layout, spec, Gradients { dq, dk, dv }, threads);
    results
}

/// Float64 results, straight from the definition.
pub(super) struct Reference {
    pub(super) out: Vec<f64>,
    pub(super) lse: Vec<f64>,
    pub(super) dq: Vec<f64>,
    pub(super) dk: Vec<f64>,
    pub(super) dv: Vec<f64>,
}

pub(super) fn reference(data: &Data<f64>, layout: &Layout, spec: &Spec) -> Reference {
    let (hq, hkv, d, seq) = (spec.num_query_heads, spec.num_kv_heads, spec.head_dim, layout.seq());
    let mut r = Reference {
        out: vec![0.0; data.q.len()],
        lse: vec![0.0; layout.num_tokens() * hq],
        dq: vec![0.0; data.q.len()],
        dk: vec![0.0; data.k.len()],
        dv: vec![0.0; data.v.len()],
    };
    let ids = layout.segment_ids();
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    for t in 0..layout.num_tokens() {
        let visible: Vec<usize> = (t / seq * seq..=t)
            .filter(|&k| ids[k] == ids[t] && spec.window.is_none_or(|window| t - k < window))
            .collect();
        for h in 0..hq {
            let (qi, g) = ((t * hq + h) * d, h / (hq / hkv));
            let key = |k: usize| (k * hkv + g) * d..(k * hkv + g) * d + d;
            let raw: Vec<f64> = visible.iter().map(|&k| dot(&data.q[qi..qi + d], &data.k[key(k)])).collect();
            let s: Vec<f64> =
                raw.iter().map(|&s| spec.soft_cap.map_or(s, |cap| cap * (s / cap).tanh())).collect();
            let max = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let lse = max + s.iter().map(|s| (s - max).exp()).sum::<f64>().ln();
            r.lse[t * hq + h] = lse;
            let p: Vec<f64> = s.iter().map(|s| (s - lse).exp()).collect();
            for (&k, p) in visible.iter().zip(&p) {
                for i in 0..d {
                    r.out[qi + i] += p * data.v[key(k)][i];
                }
            }
            let delta = dot(&r.out[qi..qi + d], &data.dout[qi..qi + d]);
            for ((&k, p), s) in visible.iter().zip(&p).zip(&s) {
                let slope = spec.soft_cap.map_or(1.0, |cap| 1.0 - (s / cap).powi(2));
                let ds = p * (dot(&data.dout[qi..qi + d], &data.v[key(k)]) - delta) * slope;
                for i in 0..d {
                    r.dv[key(k)][i] += p * data.dout[qi + i];
                    r.dk[key(k)][i] += ds * data.q[qi + i];
                    r.dq[qi + i] += ds * data.k[key(k)][i];
                }
            }
        }
    }
    r
}

pub(super) fn to_f64<E: Real>(data: &Data<E>) -> Data<f64> {
    let wide = |x: &[E]| x.iter().map(|x| f64::from(x.to_f32())).collect();
    Data { q: wide(&data.q), k: wide(&data.k), v: wide(&data.v), dout: wide(&data.dout) }
}

/// Largest difference, relative to the largest reference value (or to 1: some gradients are exactly 0).
pub(super) fn difference<E: Real>(ours: &[E], expected: &[f64]) -> f64 {
    assert_eq!(ours.len(), expected.len());
    let scale = expected.iter().fold(1.0, |max: f64, x| max.max(x.abs()));
    ours.iter().zip(expected).map(|(x, y)| (f64::from(x.to_f32()) - y).abs() / scale).fold(0.0, f64::max)
}
