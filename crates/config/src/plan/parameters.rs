//! How many scalars a model has, kind by kind.

use crate::model::ModelConfig;

/// One kind of parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    /// Name in MaxText's tree, without `decoder/layers`.
    pub name: &'static str,
    /// Scalars over all layers.
    pub count: u64,
    /// Tensors that they are in: one, or one in every layer.
    pub tensors: u64,
    /// Whether every layer has one.
    pub in_layers: bool,
    /// A matrix of a layer, which Muon treats as one.
    pub is_matrix: bool,
}

impl Parameter {
    /// Scalars of one rank's shard of one tensor, where `fsdp` ranks share it. The last shard is filled up with zeros.
    pub fn shard_len(&self, fsdp: u64) -> u64 {
        (self.count / self.tensors.max(1)).div_ceil(fsdp)
    }

    /// Scalars of one rank's shards of all tensors.
    pub fn shards(&self, fsdp: u64) -> u64 {
        self.tensors * self.shard_len(fsdp)
    }

    pub(super) fn is_embedding(&self) -> bool {
        self.name == "token_embedder/embedding"
    }
}

/// All kinds of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters(pub Vec<Parameter>);

impl Parameters {
    /// Those of `model`.
    pub fn of(model: &ModelConfig) -> Self {
        let [e, m, v, d] = [model.emb_dim, model.mlp_dim, model.vocab_size, model.head_dim].map(|n| n as u64);
        let [hq, hkv, layers] =
            [model.num_query_heads, model.num_kv_heads, model.num_decoder_layers].map(|n| n as u64);
        let outside = |name, count| Parameter { name, count, tensors: 1, in_layers: false, is_matrix: false };
        let of_layers = |name, count: u64, is_matrix| {
            let count = count * layers;
            Parameter { name, count, tensors: layers, in_layers: true, is_matrix }
        };
        let vector = |name, count| of_layers(name, count, false);
        let matrix = |name, count| of_layers(name, count, true);

        let mut kinds = vec![
            outside("token_embedder/embedding", v * e),
            vector("pre_self_attention_layer_norm/scale", e),
            matrix("self_attention/query/kernel", e * hq * d),
            matrix("self_attention/key/kernel", e * hkv * d),
            matrix("self_attention/value/kernel", e * hkv * d),
            matrix("self_attention/out/kernel", hq * d * e),
            vector("post_self_attention_layer_norm/scale", e),
            matrix("mlp/wi_0/kernel", e * m),
            matrix("mlp/wi_1/kernel", e * m),
            matrix("mlp/wo/kernel", m * e),
            outside("decoder_norm/scale", e),
        ];
        if model.attention_bias {
            kinds.push(vector("self_attention/query/bias", hq * d));
            kinds.push(vector("self_attention/key/bias", hkv * d));
            kinds.push(vector("self_attention/value/bias", hkv * d));
        }
        if model.use_qk_norm {
            kinds.push(vector("self_attention/query_norm/scale", d));
            kinds.push(vector("self_attention/key_norm/scale", d));
        }
        if !model.logits_via_embedding {
            kinds.push(outside("logits_dense/kernel", e * v));
        }
        Self(kinds)
    }

    /// Scalars of the whole model.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|kind| kind.count).sum()
    }

    /// Scalars of the layers' matrices.
    pub fn matrices(&self) -> u64 {
        self.0.iter().filter(|kind| kind.is_matrix).map(|kind| kind.count).sum()
    }
}
