//! Attention composed of burn's operations, until the blocked kernels are in place.
#![expect(missing_docs, reason = "the kernels document these names")]

use burn::tensor::{DType, Tensor, TensorData, activation};
use mt_config::AttentionKernel;

#[derive(Debug, Clone)]
pub struct Layout {
    visible: Vec<bool>,
    batch: usize,
    seq: usize,
}
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    pub num_query_heads: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    pub soft_cap: Option<f64>,
    pub window: Option<usize>,
    pub kernel: AttentionKernel,
    pub float32_logits: bool,
    pub float32_qk_product: bool,
}
impl Layout {
    pub fn new(segments: &[i32], _positions: &[i32], batch: usize, seq: usize) -> Self {
        let visible = (0..batch * seq * seq)
            .map(|i| {
                let (b, q, k) = (i / seq / seq, i / seq % seq, i % seq);
                k <= q && segments[b * seq + q] == segments[b * seq + k]
            })
            .collect();
        Self { visible, batch, seq }
    }
    pub fn visible_pairs(&self, _window: Option<usize>) -> u64 {
        self.visible.iter().filter(|&&v| v).count() as u64
    }
    fn mask(&self, like: &Tensor<2>, window: Option<usize>) -> Tensor<4> {
        let window = window.unwrap_or(usize::MAX);
        let near = |i: usize| (i / self.seq % self.seq).saturating_sub(i % self.seq) < window;
        let mask: Vec<f32> = self
            .visible
            .iter()
            .enumerate()
            .map(|(i, &v)| if v && near(i) { 0.0 } else { -1e30 })
            .collect();
        let shape = [self.batch, 1, self.seq, self.seq];
        Tensor::from_data(TensorData::new(mask, shape), (&like.device(), DType::F32))
    }
    fn heads(&self, x: Tensor<2>, d: usize, repeat: usize) -> Tensor<4> {
        let h = x.dims()[1] / d;
        let x = x.cast(DType::F32).reshape([self.batch, self.seq, h, d]).swap_dims(1, 2);
        let x: Tensor<5> = x.unsqueeze_dim(2);
        x.repeat_dim(2, repeat).reshape([self.batch, h * repeat, self.seq, d])
    }
    fn tokens(&self, x: Tensor<4>, repeat: usize, dtype: DType) -> Tensor<2> {
        let [b, h, s, d] = x.dims();
        let x = x.reshape([b, h / repeat, repeat, s, d]).sum_dim(2).reshape([b, h / repeat, s, d]);
        x.swap_dims(1, 2).reshape([b * s, h / repeat * d]).cast(dtype)
    }
}
fn probabilities(q: &Tensor<4>, k: &Tensor<4>, mask: Tensor<4>) -> Tensor<4> {
    activation::softmax(q.clone().matmul(k.clone().transpose()) + mask, 3)
}
pub fn forward(
    q: Tensor<2>,
    k: Tensor<2>,
    v: Tensor<2>,
    layout: &Layout,
    spec: &Spec,
) -> (Tensor<2>, Tensor<2>) {
    let (dtype, g, d) = (q.dtype(), spec.num_query_heads / spec.num_kv_heads, spec.head_dim);
    let mask = layout.mask(&q, spec.window);
    let lse = Tensor::zeros([layout.batch * layout.seq, spec.num_query_heads], &q.device());
    let (q, k, v) = (layout.heads(q, d, 1), layout.heads(k, d, g), layout.heads(v, d, g));
    (layout.tokens(probabilities(&q, &k, mask).matmul(v), 1, dtype), lse)
}
#[expect(clippy::too_many_arguments, reason = "those of attention's backward")]
pub fn backward(
    q: Tensor<2>,
    k: Tensor<2>,
    v: Tensor<2>,
    _out: Tensor<2>,
    _lse: Tensor<2>,
    dout: Tensor<2>,
    layout: &Layout,
    spec: &Spec,
) -> (Tensor<2>, Tensor<2>, Tensor<2>) {
    let (dtype, g, d) = (q.dtype(), spec.num_query_heads / spec.num_kv_heads, spec.head_dim);
    let mask = layout.mask(&q, spec.window);
    let (q, k, v) = (layout.heads(q, d, 1), layout.heads(k, d, g), layout.heads(v, d, g));
    let dout = layout.heads(dout, d, 1);
    let p = probabilities(&q, &k, mask);
    let dv = p.clone().transpose().matmul(dout.clone());
    let dp = dout.matmul(v.transpose());
    let ds = p.clone() * (dp.clone() - (dp * p).sum_dim(3));
    let dq = ds.clone().matmul(k);
    let dk = ds.transpose().matmul(q);
    (layout.tokens(dq, 1, dtype), layout.tokens(dk, g, dtype), layout.tokens(dv, g, dtype))
}
