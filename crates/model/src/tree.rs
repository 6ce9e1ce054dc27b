//! The tree of parameters as it is saved: MaxText's names, shapes and stacking.
//!
//! With `scan_layers` a parameter of all layers is one array `decoder/layers/NAME`, stacked along `param_scan_axis`; without,
//! every layer has its own `decoder/layers_N/NAME`. Kernels have their heads apart (`[E, H, D]`). A [`Tree`] lists these
//! arrays and copies one at a time from or to [`Params`], so that a checkpoint passes through host memory array by array and
//! any layout can be read back into any other. Moments are kept in [`Params`] too, so a tree serves them as well.

use burn::tensor::{DType as BurnDType, Shape, Tensor, TensorData};
use mt_config::{DType, ModelConfig};
use thiserror::Error;

use crate::params::{DECODER_NORM, EMBEDDING, LAYER_NAMES, LOGITS_DENSE, LayerParams, Params, layer_path};

/// One array of the saved tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// MaxText path such as `decoder/layers/mlp/wo/kernel`.
    pub name: String,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Element type of the weights (`weight_dtype`).
    pub dtype: DType,
}

impl TensorSpec {
    /// Number of scalars.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// How the layers' parameters are stacked in a saved tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// All layers in one array.
    pub scan_layers: bool,
    /// Axis of the layers in that array, 0 or 1.
    pub param_scan_axis: usize,
}

/// An array that doesn't belong to the tree, or doesn't fit.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TreeError {
    /// No parameter has this name in this layout.
    #[error("no parameter is called `{name}`{}", nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    UnknownName {
        /// The name asked for.
        name: String,
        /// The most similar name of the tree.
        nearest: Option<String>,
    },
    /// The array has another shape than the model.
    #[error("`{name}` has shape {found:?}, the model expects {expected:?}")]
    Shape {
        /// Path of the parameter.
        name: String,
        /// Shape of the array given.
        found: Vec<usize>,
        /// Shape by the model's configuration.
        expected: Vec<usize>,
    },
    /// The array isn't made of floating-point numbers.
    #[error("`{name}` has element type {found}, expected float32, bfloat16 or float16")]
    DType {
        /// Path of the parameter.
        name: String,
        /// Element type of the array given.
        found: String,
    },
    /// The bytes on the device could not be read.
    #[error("can't read `{name}` from the device: {reason}")]
    Device {
        /// Path of the parameter.
        name: String,
        /// What the device said.
        reason: String,
    },
}

/// An array of the saved tree, and where it lives in [`Params`].
#[derive(Debug, Clone)]
pub struct Entry {
    /// Name, shape and type.
    pub spec: TensorSpec,
    /// Unscanned paths of the leaves that it holds: one, or one per layer.
    pub leaves: Vec<String>,
    /// The array is `[outer, leaf, inner]`: each leaf is cut into `outer` pieces that take turns.
    pub outer: usize,
}

/// All arrays of a model's saved tree, in one layout.
#[derive(Debug, Clone)]
pub struct Tree {
    entries: Vec<Entry>,
}

/// MaxText's shape of every parameter of one layer, without the axis of the layers. In memory the last `n` dimensions, the
/// output features, are one, and so are the others: `[in, out]`.
pub fn layer_shapes(config: &ModelConfig) -> LayerParams<Vec<usize>> {
    let (e, m, d) = (config.emb_dim, config.mlp_dim, config.head_dim);
    let (query_heads, kv_heads) = (config.num_query_heads, config.num_kv_heads);
    let bias = |heads| config.attention_bias.then(|| vec![heads, d]);
    let qk_norm = || config.use_qk_norm.then(|| vec![d]);
    LayerParams {
        pre_self_attention_layer_norm: vec![e],
        query: vec![e, query_heads, d],
        key: vec![e, kv_heads, d],
        value: vec![e, kv_heads, d],
        query_bias: bias(query_heads),
        key_bias: bias(kv_heads),
        value_bias: bias(kv_heads),
        query_norm: qk_norm(),
        key_norm: qk_norm(),
        out: vec![query_heads, d, e],
        post_self_attention_layer_norm: vec![e],
        wi_0: vec![e, m],
        wi_1: vec![e, m],
        wo: vec![m, e],
    }
}

/// Shape `[in, out]` in memory of every parameter of one layer.
pub fn layer_matrices(config: &ModelConfig) -> LayerParams<[usize; 2]> {
    let (e, m, d) = (config.emb_dim, config.mlp_dim, config.head_dim);
    let (q, kv) = (config.num_query_heads * d, config.num_kv_heads * d);
    layer_shapes(config)
        .zip(LayerParams {
            pre_self_attention_layer_norm: [1, e],
            query: [e, q],
            key: [e, kv],
            value: [e, kv],
            query_bias: Some([1, q]),
            key_bias: Some([1, kv]),
            value_bias: Some([1, kv]),
            query_norm: Some([1, d]),
            key_norm: Some([1, d]),
            out: [q, e],
            post_self_attention_layer_norm: [1, e],
            wi_0: [e, m],
            wi_1: [e, m],
            wo: [m, e],
        })
        .map(|(_, matrix)| matrix)
}

impl Tree {
    /// The tree that this configuration saves.
    pub fn new(config: &ModelConfig) -> Self {
        Self::with_layout(
            config,
            Layout { scan_layers: config.scan_layers, param_scan_axis: config.param_scan_axis },
        )
    }

    /// The tree of the same model in another layout.
    pub fn with_layout(config: &ModelConfig, layout: Layout) -> Self {
        let single = |name: &str, shape: Vec<usize>| Entry {
            spec: TensorSpec { name: name.to_owned(), shape, dtype: config.weight_dtype },
            leaves: vec![name.to_owned()],
            outer: 1,
        };
        let layers = config.num_decoder_layers;
        let parameters = LAYER_NAMES.zip(layer_shapes(config)).into_vec();

        let mut entries = vec![single(EMBEDDING, vec![config.vocab_size, config.emb_dim])];
        if layout.scan_layers {
            entries.extend(parameters.into_iter().map(|(name, mut shape)| {
                let axis = layout.param_scan_axis.min(shape.len());
                let outer = shape[..axis].iter().product();
                shape.insert(axis, layers);
                Entry {
                    spec: TensorSpec {
                        name: format!("decoder/layers/{name}"),
                        shape,
                        dtype: config.weight_dtype,
                    },
                    leaves: (0..layers).map(|i| layer_path(i, name)).collect(),
                    outer,
                }
            }));
        } else {
            let layer = |i: usize| {
                parameters
                    .iter()
                    .map(move |(name, shape)| single(&layer_path(i, name), shape.clone()))
                    .collect::<Vec<_>>()
            };
            entries.extend((0..layers).flat_map(layer));
        }
        entries.push(single(DECODER_NORM, vec![config.emb_dim]));
        if !config.logits_via_embedding {
            entries.push(single(LOGITS_DENSE, vec![config.emb_dim, config.vocab_size]));
        }
        Self { entries }
    }

    /// The arrays of the tree, in order.
    pub fn specs(&self) -> impl ExactSizeIterator<Item = &TensorSpec> {
        self.entries.iter().map(|entry| &entry.spec)
    }

    /// The arrays of the tree and the leaves that they are made of, in order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter()
    }

    /// Copies the array `name` out of `params`, in the shape of the tree and the element type it has in memory.
    pub fn read_leaf(&self, params: &Params, name: &str) -> Result<TensorData, TreeError> {
        let entry = self.entry(name)?;
        let parts = entry.leaves.iter().map(|path| {
            let tensor = leaf(params, path).expect("the tree and the parameters are of one model");
            tensor
                .clone()
                .try_into_data()
                .map_err(|reason| TreeError::Device { name: name.to_owned(), reason: reason.to_string() })
        });
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let dtype = parts[0].dtype();
        let bytes = if let [part] = parts.as_slice() {
            part.bytes().to_vec()
        } else {
            let parts: Vec<&[u8]> = parts.iter().map(|part| &part.bytes()[..]).collect();
            interleave(&parts, entry.outer)
        };
        Ok(TensorData::from_bytes_vec(bytes, Shape::from(entry.spec.shape.clone()), dtype))
    }

    /// Copies an array of the tree into `params`; each leaf keeps its element type and device.
    pub fn write_leaf(&self, params: &mut Params, name: &str, data: TensorData) -> Result<(), TreeError> {
        let entry = self.entry(name)?;
        if data.shape().to_vec() != entry.spec.shape {
            return Err(TreeError::Shape {
                name: name.to_owned(),
                found: data.shape().to_vec(),
                expected: entry.spec.shape.clone(),
            });
        }
        if !data.dtype().is_float() {
            return Err(TreeError::DType { name: name.to_owned(), found: format!("{:?}", data.dtype()) });
        }
        let dtype = data.dtype();
        let parts = split(data.bytes(), entry.leaves.len(), entry.outer);
        for (path, bytes) in entry.leaves.iter().zip(parts) {
            let target = leaf_mut(params, path).expect("the tree and the parameters are of one model");
            *target = from_bytes(bytes, dtype, target);
        }
        Ok(())
    }

    fn entry(&self, name: &str) -> Result<&Entry, TreeError> {
        self.entries.iter().find(|entry| entry.spec.name == name).ok_or_else(|| {
            let nearest =
                self.specs().map(|spec| &spec.name).max_by_key(|candidate| common_ends(candidate, name));
            TreeError::UnknownName { name: name.to_owned(), nearest: nearest.cloned() }
        })
    }
}

/// Bytes that two names share at their beginning and end: paths differ in the middle, where the layer is.
fn common_ends(a: &str, b: &str) -> usize {
    let head = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let tail = a.bytes().rev().zip(b.bytes().rev()).take_while(|(a, b)| a == b).count();
    head + tail
}

fn leaf<'a>(params: &'a Params, path: &str) -> Option<&'a Tensor<2>> {
    params.leaves().into_iter().find(|(name, _)| name == path).map(|(_, tensor)| tensor)
}

fn leaf_mut<'a>(params: &'a mut Params, path: &str) -> Option<&'a mut Tensor<2>> {
    params.leaves_mut().into_iter().find(|(name, _)| name == path).map(|(_, tensor)| tensor)
}

/// Puts `bytes` on the device, in the shape and element type of `like`.
fn from_bytes(bytes: Vec<u8>, dtype: BurnDType, like: &Tensor<2>) -> Tensor<2> {
    let data = TensorData::from_bytes_vec(bytes, Shape::from(like.dims()), dtype);
    Tensor::from_data(data, (&like.device(), like.dtype()))
}

/// Stacks `[outer, inner]` parts to `[outer, part, inner]`.
fn interleave(parts: &[&[u8]], outer: usize) -> Vec<u8> {
    let inner = parts[0].len() / outer;
    let mut stacked = Vec::with_capacity(parts.len() * parts[0].len());
    for o in 0..outer {
        parts.iter().for_each(|part| stacked.extend_from_slice(&part[o * inner..(o + 1) * inner]));
    }
    stacked
}

/// Undoes [`interleave`].
fn split(stacked: &[u8], parts: usize, outer: usize) -> Vec<Vec<u8>> {
    let inner = stacked.len() / (parts * outer);
    let part = |p: usize| {
        (0..outer).flat_map(move |o| &stacked[(o * parts + p) * inner..][..inner]).copied().collect()
    };
    (0..parts).map(part).collect()
}
