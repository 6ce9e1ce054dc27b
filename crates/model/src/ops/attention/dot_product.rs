//! Attention with materialised scores, composed of burn's operations: the reference on every device.
//!
//! Written row by row of the batch for all heads, with the query heads of a kv head stacked: Q `[Hkv, G * S, D]`, K and V
//! `[Hkv, S, D]`, scores `[Hkv, G * S, S]`.
//! ```text
//! S = Q K^T, capped; masked scores = -0.7 float32max      P = softmax S      O = P V
//! dV = P^T dO     dP = dO V^T     dS = P (dP - rowsum(P dP)) (1 - tanh^2)     dQ = dS K     dK = dS^T Q
//! ```
//! Precision as in MaxText: products in the tensors' type unless `float32_qk_product`, softmax in it unless
//! `float32_logits`. Gradients are computed in float32 from the same scores.

use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};

use super::{Layout, Spec};

/// What MaxText puts in place of a masked score.
const MASKED: f64 = -0.7 * f32::MAX as f64;

/// Returns output and log-sum-exp, as [`super::forward`].
pub(super) fn forward(
    q: Tensor<2>,
    k: Tensor<2>,
    v: Tensor<2>,
    layout: &Layout,
    spec: &Spec,
) -> (Tensor<2>, Tensor<2>) {
    let dtype = q.dtype();
    let (mut outs, mut lses) = (Vec::new(), Vec::new());
    for row in 0..layout.batch() {
        let row = Row::new(layout, spec, row);
        let scores = row.scores(row.queries(&q), row.keys(&k));
        let scores = scores.clone().mask_fill(row.hidden(&q.device()), MASKED);
        let max = scores.clone().max_dim(2);
        let weights = (scores - max.clone()).exp();
        let sum = weights.clone().sum_dim(2); // [Hkv, G * S, 1]
        let values = row.keys(&v).cast(weights.dtype());
        outs.push(row.tokens((weights.matmul(values) / sum.clone()).cast(dtype)));
        lses.push(row.tokens((max + sum.log()).cast(DType::F32)));
    }
    if outs.is_empty() {
        let lse = Tensor::<2>::zeros([0, spec.num_query_heads], &q.device()).cast(DType::F32);
        return (q, lse);
    }
    (Tensor::cat(outs, 0), Tensor::cat(lses, 0))
}

/// Returns the gradients of queries, keys and values, as [`super::backward`].
pub(super) fn backward(
    q: Tensor<2>,
    k: Tensor<2>,
    v: Tensor<2>,
    dout: Tensor<2>,
    layout: &Layout,
    spec: &Spec,
) -> (Tensor<2>, Tensor<2>, Tensor<2>) {
    let dtype = q.dtype();
    let (mut dqs, mut dks, mut dvs) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..layout.batch() {
        let row = Row::new(layout, spec, row);
        let (queries, keys) = (row.queries(&q), row.keys(&k));
        let scores = row.scores(queries.clone(), keys.clone()).cast(DType::F32);
        let hidden = row.hidden(&q.device());
        let masked = scores.clone().mask_fill(hidden, MASKED);
        let weights = (masked.clone() - masked.max_dim(2)).exp();
        let p = weights.clone() / weights.sum_dim(2);

        let (queries, keys) = (queries.cast(DType::F32), keys.cast(DType::F32));
        let (values, dout) = (row.keys(&v).cast(DType::F32), row.queries(&dout).cast(DType::F32));
        let dp = dout.clone().matmul(values.transpose());
        let mean = (p.clone() * dp.clone()).sum_dim(2);
        let mut ds = p.clone() * (dp - mean);
        if let Some(cap) = spec.soft_cap {
            let tanh = scores / cap;
            ds = ds * (tanh.clone() * tanh).neg().add_scalar(1.0);
        }
        dqs.push(row.tokens(ds.clone().matmul(keys).cast(dtype)));
        dks.push(row.key_tokens(ds.transpose().matmul(queries).cast(dtype)));
        dvs.push(row.key_tokens(p.transpose().matmul(dout).cast(dtype)));
    }
    if dqs.is_empty() {
        return (q, k, v);
    }
    (Tensor::cat(dqs, 0), Tensor::cat(dks, 0), Tensor::cat(dvs, 0))
}

/// One row of the batch and the ways between its `[tokens, features]` and the heads.
struct Row<'a> {
    layout: &'a Layout,
    spec: &'a Spec,
    row: usize,
    group: usize,
}

impl<'a> Row<'a> {
    fn new(layout: &'a Layout, spec: &'a Spec, row: usize) -> Self {
        Self { layout, spec, row, group: spec.num_query_heads / spec.num_kv_heads }
    }

    fn slice(&self, x: &Tensor<2>) -> Tensor<2> {
        let seq = self.layout.seq();
        x.clone().slice_dim(0, self.row * seq..(self.row + 1) * seq)
    }

    /// `[T, Hq * D]` -> `[Hkv, G * S, D]`
    fn queries(&self, x: &Tensor<2>) -> Tensor<3> {
        let Spec { num_kv_heads, head_dim, .. } = *self.spec;
        let seq = self.layout.seq();
        let heads: Tensor<4> = self.slice(x).reshape([seq, num_kv_heads, self.group, head_dim]);
        heads.permute([1, 2, 0, 3]).reshape([num_kv_heads, self.group * seq, head_dim])
    }

    /// `[T, Hkv * D]` -> `[Hkv, S, D]`
    fn keys(&self, x: &Tensor<2>) -> Tensor<3> {
        let Spec { num_kv_heads, head_dim, .. } = *self.spec;
        self.slice(x).reshape([self.layout.seq(), num_kv_heads, head_dim]).swap_dims(0, 1)
    }

    /// `[Hkv, G * S, N]` -> `[S, Hq * N]`
    fn tokens(&self, x: Tensor<3>) -> Tensor<2> {
        let ([num_kv_heads, _, features], seq) = (x.dims(), self.layout.seq());
        let heads: Tensor<4> = x.reshape([num_kv_heads, self.group, seq, features]);
        heads.permute([2, 0, 1, 3]).reshape([seq, num_kv_heads * self.group * features])
    }

    /// `[Hkv, S, D]` -> `[S, Hkv * D]`
    fn key_tokens(&self, x: Tensor<3>) -> Tensor<2> {
        let [num_kv_heads, seq, head_dim] = x.dims();
        x.swap_dims(0, 1).reshape([seq, num_kv_heads * head_dim])
    }

    /// Capped scores, `[Hkv, G * S, S]`, in the softmax's type.
    fn scores(&self, queries: Tensor<3>, keys: Tensor<3>) -> Tensor<3> {
        let (queries, keys) = match self.spec.float32_qk_product {
            true => (queries.cast(DType::F32), keys.cast(DType::F32)),
            false => (queries, keys),
        };
        let mut scores = queries.matmul(keys.transpose());
        if let Some(cap) = self.spec.soft_cap {
            scores = (scores / cap).tanh() * cap;
        }
        match self.spec.float32_logits {
            true => scores.cast(DType::F32),
            false => scores,
        }
    }

    /// True where a query must not see a key, `[Hkv, G * S, S]`.
    fn hidden(&self, device: &Device) -> Tensor<3, Bool> {
        let seq = self.layout.seq();
        let ids = &self.layout.segment_ids()[self.row * seq..(self.row + 1) * seq];
        let ids = Tensor::<1, Int>::from_data(TensorData::from(ids), device);
        let places = Tensor::<1, Int>::arange(0..seq as i64, device);
        let as_query = |x: &Tensor<1, Int>| x.clone().reshape([seq, 1]).repeat_dim(1, seq);
        let as_key = |x: &Tensor<1, Int>| x.clone().reshape([1, seq]).repeat_dim(0, seq);
        let distance: Tensor<2, Int> = as_query(&places) - as_key(&places);
        let mut hidden = as_query(&ids).not_equal(as_key(&ids)).bool_or(distance.clone().lower_elem(0));
        if let Some(window) = self.spec.window {
            hidden = hidden.bool_or(distance.greater_equal_elem(window as i64));
        }
        let hidden: Tensor<3, Bool> = hidden.reshape([1, seq, seq]);
        hidden.repeat_dim(1, self.group).repeat_dim(0, self.spec.num_kv_heads)
    }
}
