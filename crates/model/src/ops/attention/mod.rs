//! Attention over packed rows.
//!
//! For query head h of token t and kv head g = h / (num_query_heads / num_kv_heads), both by token index in the row:
//! ```text
//! s_k   = q_{t,h} . k_{k,g}                     (no 1/sqrt(head_dim): it is folded into the query kernel, as in MaxText)
//! s_k   = cap tanh(s_k / cap)                   (attn_logits_soft_cap)
//! out   = sum_k softmax(s)_k v_{k,g}            over k in t's document with k <= t and t - k < sliding_window_size
//! lse   = ln sum_k exp(s_k)
//! ```
//! A document is the tokens of a row with one segment id ([`Layout`]); padding (id 0) is one of them.
//!
//! [`AttentionKernel::Flash`] runs in blocks and never holds a `[seq, seq]` matrix: beside its results it needs keys and
//! values (and, backward, their gradients) once more in float32, and a constant per thread. What lies outside a document, above
//! the diagonal or outside the window costs nothing. It runs on the CPU and, in builds that drive one, on GPUs (`cube`).
//! [`AttentionKernel::DotProduct`] is the reference and what runs on devices without a kernel. Both keep documents apart to the last bit: nothing in one document changes a bit of another.

mod backward_plan;
#[cfg(feature = "gpu")]
mod cube;
mod dot_product;
mod flash_backward;
mod flash_forward;
#[cfg(any(test, feature = "rocm"))]
mod hip;
mod layout;
mod pack;
pub(crate) mod product;
mod tasks;
mod vector;

use crate::profile::{Kind, span};
use burn::tensor::Tensor;
#[cfg(feature = "gpu")]
use burn_cubecl::tensor::CubeTensor;
use mt_config::AttentionKernel;

use self::flash_backward::{Gradients, Inputs};
use super::engine::{Host, Placed, by_dtype, placed};
use super::real::Real;

pub use self::layout::Layout;

/// Shape and options of an attention call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spec {
    /// Query heads Hq.
    pub num_query_heads: usize,
    /// Key and value heads Hkv; divides `num_query_heads`.
    pub num_kv_heads: usize,
    /// Width D of a head.
    pub head_dim: usize,
    /// Cap on scores, `cap * tanh(score / cap)`.
    pub soft_cap: Option<f64>,
    /// Keys that lie this many places or more before the query are not seen.
    pub window: Option<usize>,
    /// Implementation.
    pub kernel: AttentionKernel,
    /// Softmax in float32 when the tensors are narrower (flash always does).
    pub float32_logits: bool,
    /// Query-key products in float32 when the tensors are narrower (flash always does).
    pub float32_qk_product: bool,
}

/// `q: [T, Hq * D]`, `k, v: [T, Hkv * D]` -> (`out: [T, Hq * D]` of q's type, `lse: [T, Hq]` float32), T = batch * seq.
///
/// # Panics
/// When a tensor's shape doesn't follow from `layout` and `spec`.
pub fn forward(
    q: Tensor<2>,
    k: Tensor<2>,
    v: Tensor<2>,
    layout: &Layout,
    spec: &Spec,
) -> (Tensor<2>, Tensor<2>) {
    let _span = span(Kind::Attention, "attention.forward").work_by(|| work(2, &q, layout, spec));
    check(&q, [&k, &v], layout, spec);
    if spec.kernel == AttentionKernel::DotProduct {
        return dot_product::forward(q, k, v, layout, spec);
    }
    match placed([q, k, v]) {
        Placed::Host([q, k, v]) => by_dtype!(q.dtype(), E => flash_forward::<E>(&q, &k, &v, layout, spec)),
        #[cfg(feature = "gpu")]
        Placed::Cube(operands) => cube_forward(operands, layout, spec),
        Placed::Other([q, k, v]) => dot_product::forward(q, k, v, layout, spec),
    }
}

/// FLOPs of `products` products with a score for every visible pair, and the bytes of as many operands.
fn work(products: u64, q: &Tensor<2>, layout: &Layout, spec: &Spec) -> (u64, u64) {
    let features = (spec.num_query_heads * spec.head_dim) as u64;
    let bytes = q.dims()[0] as u64 * features * q.dtype().size() as u64;
    (2 * products * features * layout.visible_pairs(spec.window), products * bytes)
}

/// Gradients (`dq`, `dk`, `dv`) of `q`, `k` and `v`, shaped and typed as they are, from `dout: [T, Hq * D]` and what
/// [`forward`] returned.
///
/// # Panics
/// When a tensor's shape doesn't follow from `layout` and `spec`.
#[expect(clippy::too_many_arguments, reason = "they are the operation's operands")]
pub fn backward(
    q: Tensor<2>,
    k: Tensor<2>,
    v: Tensor<2>,
    out: Tensor<2>,
    lse: Tensor<2>,
    dout: Tensor<2>,
    layout: &Layout,
    spec: &Spec,
) -> (Tensor<2>, Tensor<2>, Tensor<2>) {
    let _span = span(Kind::Attention, "attention.backward").work_by(|| work(5, &q, layout, spec));
    check(&q, [&k, &v], layout, spec);
    assert_eq!(
        (out.dims(), dout.dims()),
        (q.dims(), q.dims()),
        "output and its gradient have the shape of the queries"
    );
    if spec.kernel == AttentionKernel::DotProduct {
        return dot_product::backward(q, k, v, dout, layout, spec);
    }
    match placed([q, k, v, out, lse, dout]) {
        Placed::Host(tensors) => {
            by_dtype!(tensors[0].dtype(), E => flash_backward::<E>(&tensors, layout, spec))
        }
        #[cfg(feature = "gpu")]
        Placed::Cube(operands) => cube_backward(operands, layout, spec),
        Placed::Other([q, k, v, _, _, dout]) => dot_product::backward(q, k, v, dout, layout, spec),
    }
}

/// On a GPU: the hand-written kernel where the device has one, the portable one where it applies, else the reference.
#[cfg(feature = "gpu")]
fn cube_forward(operands: [CubeTensor; 3], layout: &Layout, spec: &Spec) -> (Tensor<2>, Tensor<2>) {
    #[cfg(feature = "rocm")]
    if hip::launch::runs_on(&operands[0], spec) {
        let (out, lse) = hip::launch::forward(&operands, layout, spec);
        return (super::cube::tensor(out), super::cube::tensor(lse));
    }
    if let Some(results) = cube::forward(&operands, layout, spec) {
        return results;
    }
    let [q, k, v] = operands.map(super::cube::tensor);
    dot_product::forward(q, k, v, layout, spec)
}

/// As [`cube_forward`].
#[cfg(feature = "gpu")]
fn cube_backward(
    operands: [CubeTensor; 6],
    layout: &Layout,
    spec: &Spec,
) -> (Tensor<2>, Tensor<2>, Tensor<2>) {
    #[cfg(feature = "rocm")]
    if hip::launch::runs_on(&operands[0], spec) {
        let [dq, dk, dv] = hip::launch::backward(&operands, layout, spec).map(super::cube::tensor);
        return (dq, dk, dv);
    }
    if let Some(gradients) = cube::backward(&operands, layout, spec) {
        return gradients;
    }
    let [q, k, v, _, _, dout] = operands.map(super::cube::tensor);
    dot_product::backward(q, k, v, dout, layout, spec)
}

fn check(q: &Tensor<2>, keys_and_values: [&Tensor<2>; 2], layout: &Layout, spec: &Spec) {
    let Spec { num_query_heads, num_kv_heads, head_dim, window, .. } = *spec;
    assert!(
        num_kv_heads > 0 && num_query_heads.is_multiple_of(num_kv_heads),
        "num_kv_heads {num_kv_heads} must divide num_query_heads {num_query_heads}"
    );
    assert_ne!(window, Some(0), "a sliding window holds the query itself at least");
    assert_eq!(
        q.dims(),
        [layout.num_tokens(), num_query_heads * head_dim],
        "queries are [tokens, heads * head_dim]"
    );
    for tensor in keys_and_values {
        let expected = [layout.num_tokens(), num_kv_heads * head_dim];
        assert_eq!(tensor.dims(), expected, "keys and values are [tokens, kv heads * head_dim]");
    }
}

fn flash_forward<E: Real>(
    q: &Host,
    k: &Host,
    v: &Host,
    layout: &Layout,
    spec: &Spec,
) -> (Tensor<2>, Tensor<2>) {
    let lse_dims = [layout.num_tokens(), spec.num_query_heads];
    let mut out = vec![E::from_f32(0.0); layout.num_tokens() * spec.num_query_heads * spec.head_dim];
    let mut lse = vec![0.0; lse_dims[0] * lse_dims[1]];
    let (queries, keys, values) = (q.values::<E>(), k.values::<E>(), v.values::<E>());
    flash_forward::forward(&queries, &keys, &values, layout, spec, &mut out, &mut lse);
    (Host::new(out, q.dims()).into_tensor(), Host::new(lse, lse_dims).into_tensor())
}

fn flash_backward<E: Real>(
    [q, k, v, out, lse, dout]: &[Host; 6],
    layout: &Layout,
    spec: &Spec,
) -> (Tensor<2>, Tensor<2>, Tensor<2>) {
    let zeros = |host: &Host| vec![E::from_f32(0.0); host.dims()[0] * host.dims()[1]];
    let (mut dq, mut dk, mut dv) = (zeros(q), zeros(k), zeros(v));
    let inputs = Inputs {
        q: &q.values::<E>(),
        k: &k.values::<E>(),
        v: &v.values::<E>(),
        out: &out.values::<E>(),
        lse: &lse.values::<f32>(),
        dout: &dout.values::<E>(),
    };
    let gradients = Gradients { dq: &mut dq, dk: &mut dk, dv: &mut dv };
    flash_backward::backward(&inputs, layout, spec, gradients, rayon::current_num_threads());
    let tensor = |values, like: &Host| Host::new(values, like.dims()).into_tensor();
    (tensor(dq, q), tensor(dk, k), tensor(dv, v))
}

#[cfg(test)]
mod tests;
