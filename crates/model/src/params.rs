//! The parameters of the model as they lie in memory, and the one place where their names live.
//!
//! In memory every parameter is a matrix (kernels `[in, out]`, norm scales `[1, features]`, biases `[1, out]`) and every
//! layer has its own: a layer is then one thing to differentiate, to update or to move. How the same numbers are named,
//! shaped and stacked in a saved tree is the business of [`tree`](crate::tree).

use burn::tensor::Tensor;

/// One thing per parameter of a decoder layer, in the order in which a layer uses them.
///
/// `LayerParams<Tensor<2>>` are the weights, or their gradients; `LayerParams<Var>` their handles on a tape;
/// [`LAYER_NAMES`] their MaxText names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerParams<T> {
    /// RMSNorm before attention, `[1, E]`.
    pub pre_self_attention_layer_norm: T,
    /// `[E, Hq*D]`.
    pub query: T,
    /// `[E, Hkv*D]`.
    pub key: T,
    /// `[E, Hkv*D]`.
    pub value: T,
    /// `[1, Hq*D]`, with `attention_bias`.
    pub query_bias: Option<T>,
    /// `[1, Hkv*D]`, with `attention_bias`.
    pub key_bias: Option<T>,
    /// `[1, Hkv*D]`, with `attention_bias`.
    pub value_bias: Option<T>,
    /// RMSNorm of every query head, `[1, D]`, with `use_qk_norm`.
    pub query_norm: Option<T>,
    /// RMSNorm of every key head, `[1, D]`, with `use_qk_norm`.
    pub key_norm: Option<T>,
    /// `[Hq*D, E]`.
    pub out: T,
    /// RMSNorm before the MLP, `[1, E]`.
    pub post_self_attention_layer_norm: T,
    /// Gate projection, `[E, M]`.
    pub wi_0: T,
    /// Up projection, `[E, M]`.
    pub wi_1: T,
    /// Down projection, `[M, E]`.
    pub wo: T,
}

/// MaxText's path of every layer parameter, relative to `decoder/layers` or `decoder/layers_N`.
pub const LAYER_NAMES: LayerParams<&str> = LayerParams {
    pre_self_attention_layer_norm: "pre_self_attention_layer_norm/scale",
    query: "self_attention/query/kernel",
    key: "self_attention/key/kernel",
    value: "self_attention/value/kernel",
    query_bias: Some("self_attention/query/bias"),
    key_bias: Some("self_attention/key/bias"),
    value_bias: Some("self_attention/value/bias"),
    query_norm: Some("self_attention/query_norm/scale"),
    key_norm: Some("self_attention/key_norm/scale"),
    out: "self_attention/out/kernel",
    post_self_attention_layer_norm: "post_self_attention_layer_norm/scale",
    wi_0: "mlp/wi_0/kernel",
    wi_1: "mlp/wi_1/kernel",
    wo: "mlp/wo/kernel",
};

/// MaxText's path of the embedding table.
pub const EMBEDDING: &str = "token_embedder/embedding";
/// MaxText's path of the final norm's scale.
pub const DECODER_NORM: &str = "decoder/decoder_norm/scale";
/// MaxText's path of the output head.
pub const LOGITS_DENSE: &str = "decoder/logits_dense/kernel";

impl<T, E> LayerParams<Result<T, E>> {
    /// All parameters, or the first error.
    pub fn transposed(self) -> Result<LayerParams<T>, E> {
        let optional = |parameter: Option<Result<T, E>>| parameter.transpose();
        Ok(LayerParams {
            pre_self_attention_layer_norm: self.pre_self_attention_layer_norm?,
            query: self.query?,
            key: self.key?,
            value: self.value?,
            query_bias: optional(self.query_bias)?,
            key_bias: optional(self.key_bias)?,
            value_bias: optional(self.value_bias)?,
            query_norm: optional(self.query_norm)?,
            key_norm: optional(self.key_norm)?,
            out: self.out?,
            post_self_attention_layer_norm: self.post_self_attention_layer_norm?,
            wi_0: self.wi_0?,
            wi_1: self.wi_1?,
            wo: self.wo?,
        })
    }
}

impl<T> LayerParams<T> {
    /// Applies `f` to every parameter, in order.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> LayerParams<U> {
        LayerParams {
            pre_self_attention_layer_norm: f(self.pre_self_attention_layer_norm),
            query: f(self.query),
            key: f(self.key),
            value: f(self.value),
            query_bias: self.query_bias.map(&mut f),
            key_bias: self.key_bias.map(&mut f),
            value_bias: self.value_bias.map(&mut f),
            query_norm: self.query_norm.map(&mut f),
            key_norm: self.key_norm.map(&mut f),
            out: f(self.out),
            post_self_attention_layer_norm: f(self.post_self_attention_layer_norm),
            wi_0: f(self.wi_0),
            wi_1: f(self.wi_1),
            wo: f(self.wo),
        }
    }

    /// Pairs the parameters of two layers; an optional one is there when both have it.
    pub fn zip<U>(self, other: LayerParams<U>) -> LayerParams<(T, U)> {
        LayerParams {
            pre_self_attention_layer_norm: (
                self.pre_self_attention_layer_norm,
                other.pre_self_attention_layer_norm,
            ),
            query: (self.query, other.query),
            key: (self.key, other.key),
            value: (self.value, other.value),
            query_bias: self.query_bias.zip(other.query_bias),
            key_bias: self.key_bias.zip(other.key_bias),
            value_bias: self.value_bias.zip(other.value_bias),
            query_norm: self.query_norm.zip(other.query_norm),
            key_norm: self.key_norm.zip(other.key_norm),
            out: (self.out, other.out),
            post_self_attention_layer_norm: (
                self.post_self_attention_layer_norm,
                other.post_self_attention_layer_norm,
            ),
            wi_0: (self.wi_0, other.wi_0),
            wi_1: (self.wi_1, other.wi_1),
            wo: (self.wo, other.wo),
        }
    }

    /// The same parameters, borrowed.
    pub fn as_ref(&self) -> LayerParams<&T> {
        LayerParams {
            pre_self_attention_layer_norm: &self.pre_self_attention_layer_norm,
            query: &self.query,
            key: &self.key,
            value: &self.value,
            query_bias: self.query_bias.as_ref(),
            key_bias: self.key_bias.as_ref(),
            value_bias: self.value_bias.as_ref(),
            query_norm: self.query_norm.as_ref(),
            key_norm: self.key_norm.as_ref(),
            out: &self.out,
            post_self_attention_layer_norm: &self.post_self_attention_layer_norm,
            wi_0: &self.wi_0,
            wi_1: &self.wi_1,
            wo: &self.wo,
        }
    }

    /// The same parameters, borrowed to be changed.
    pub fn as_mut(&mut self) -> LayerParams<&mut T> {
        LayerParams {
            pre_self_attention_layer_norm: &mut self.pre_self_attention_layer_norm,
            query: &mut self.query,
            key: &mut self.key,
            value: &mut self.value,
            query_bias: self.query_bias.as_mut(),
            key_bias: self.key_bias.as_mut(),
            value_bias: self.value_bias.as_mut(),
            query_norm: self.query_norm.as_mut(),
            key_norm: self.key_norm.as_mut(),
            out: &mut self.out,
            post_self_attention_layer_norm: &mut self.post_self_attention_layer_norm,
            wi_0: &mut self.wi_0,
            wi_1: &mut self.wi_1,
            wo: &mut self.wo,
        }
    }

    /// The parameters that are there, in order.
    pub fn into_vec(self) -> Vec<T> {
        let mut all = Vec::with_capacity(14);
        self.map(|parameter| all.push(parameter));
        all
    }

    /// The parameters that are there with their MaxText names (see [`LAYER_NAMES`]), in order.
    pub fn named(self) -> Vec<(&'static str, T)> {
        LAYER_NAMES.zip(self).into_vec()
    }
}

/// Everything that is trained; also the shape of a full set of gradients or moments.
#[derive(Debug, Clone)]
pub struct Params {
    /// `[V, E]`; also the output head when `logits_via_embedding`.
    pub embedding: Tensor<2>,
    /// The decoder layers, first to last.
    pub layers: Vec<LayerParams<Tensor<2>>>,
    /// RMSNorm before the output head, `[1, E]`.
    pub decoder_norm: Tensor<2>,
    /// `[E, V]`, absent with tied embeddings.
    pub logits_dense: Option<Tensor<2>>,
}

impl Params {
    /// Every tensor with its unscanned MaxText path, such as `decoder/layers_3/self_attention/query/kernel`; in the order
    /// embedding, layers, final norm, head.
    pub fn leaves(&self) -> Vec<(String, &Tensor<2>)> {
        let mut leaves = vec![(EMBEDDING.to_owned(), &self.embedding)];
        for (i, layer) in self.layers.iter().enumerate() {
            leaves.extend(
                layer.as_ref().named().into_iter().map(|(name, tensor)| (layer_path(i, name), tensor)),
            );
        }
        leaves.push((DECODER_NORM.to_owned(), &self.decoder_norm));
        leaves.extend(self.logits_dense.as_ref().map(|head| (LOGITS_DENSE.to_owned(), head)));
        leaves
    }

    /// As [`leaves`](Self::leaves), to be changed.
    pub fn leaves_mut(&mut self) -> Vec<(String, &mut Tensor<2>)> {
        let mut leaves = vec![(EMBEDDING.to_owned(), &mut self.embedding)];
        for (i, layer) in self.layers.iter_mut().enumerate() {
            leaves.extend(
                layer.as_mut().named().into_iter().map(|(name, tensor)| (layer_path(i, name), tensor)),
            );
        }
        leaves.push((DECODER_NORM.to_owned(), &mut self.decoder_norm));
        leaves.extend(self.logits_dense.as_mut().map(|head| (LOGITS_DENSE.to_owned(), head)));
        leaves
    }

    /// Applies `f` to every tensor, in the order of [`leaves`](Self::leaves).
    pub fn map(&self, mut f: impl FnMut(&Tensor<2>) -> Tensor<2>) -> Self {
        Self {
            embedding: f(&self.embedding),
            layers: self.layers.iter().map(|layer| layer.as_ref().map(&mut f)).collect(),
            decoder_norm: f(&self.decoder_norm),
            logits_dense: self.logits_dense.as_ref().map(f),
        }
    }

    /// Number of scalars.
    pub fn num_parameters(&self) -> usize {
        self.leaves().iter().map(|(_, tensor)| tensor.dims().iter().product::<usize>()).sum()
    }
}

/// Path of parameter `name` of layer `i` in an unscanned tree.
pub fn layer_path(i: usize, name: &str) -> String {
    format!("decoder/layers_{i}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_parameters_keep_the_order_and_skip_what_is_absent() {
        let mut layer = LAYER_NAMES.map(str::len);
        layer.query_bias = None;
        let named = layer.named();
        assert_eq!(named.len(), 13);
        assert!(named.iter().all(|(name, len)| name.len() == *len));
        assert_eq!(named[0].0, "pre_self_attention_layer_norm/scale");
        assert_eq!(named[12].0, "mlp/wo/kernel");
    }
}
