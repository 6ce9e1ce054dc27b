//! Decoding: a prompt through the model at once, then one token at a time with a cache of keys and values.
//!
//! A [`Decoder`] is a model prepared for reading: its weights in the type in which they are multiplied. A [`Session`] is a batch of
//! sequences that grow. Prompts are laid end to end and go through the layers as one packed row of documents, with the
//! training's attention kernel and no padding; their keys and values fill the cache. After that each step takes one token of
//! each sequence that still grows. Layers are those of training ([`block`](crate::block)), computed at once instead of
//! being recorded.

mod eager;
mod sampling;

use burn::tensor::{Device, Tensor};
use mt_config::{DType, ModelConfig, Quantization};

use self::eager::{Eager, Reader};
use crate::batch::{BatchError, BatchTensors, Rows};
use crate::block::{Step, decoder_layer};
use crate::loss;
use crate::ops::decode_attention::{Cache, Shape, Slot};
use crate::ops::weight::Weight;
use crate::ops::{attention, elementwise, rms_norm, rope};
use crate::params::{DECODER_NORM, EMBEDDING, LAYER_NAMES, LOGITS_DENSE, LayerParams, Params, layer_path};
use crate::profile::{Kind, span};
use crate::tree::layer_matrices;
use crate::{burn_dtype, scan};

pub use crate::ops::decode_attention::Storage;
pub use crate::ops::weight::{Bits, Integers, Weight as StoredWeight};
pub use sampling::{Sampler, Strategy};

/// A model that reads and continues sequences.
#[derive(Debug)]
pub struct Decoder {
    config: ModelConfig,
    embedding: Tensor<2>, // [V, E]
    layers: Vec<LayerParams<Weight>>,
    decoder_norm: Tensor<2>, // [1, E]
    head: Weight,            // [E, V]
    rope: rope::Table,
    attention: attention::Spec,
}

/// Width of the integers that the layers' kernels become, if they do.
fn kernel_bits(config: &ModelConfig) -> Option<Bits> {
    match config.quantization {
        Quantization::Int8w => Some(Bits::Eight),
        Quantization::Int4w => Some(Bits::Four),
        _ => None,
    }
}

impl Decoder {
    /// Takes the weights of a model and casts them, once, to the types in which they are multiplied; the kernels of the layers
    /// become integers with `quantization` int8w or int4w.
    pub fn new(config: ModelConfig, params: Params) -> Self {
        let device = params.embedding.device();
        let dtype = burn_dtype(config.dtype);
        let output = params.head_weights().output;
        let head_dtype = loss::head_dtype(&config, &output);
        let head = elementwise::cast(loss::head_matrix(&config, output), head_dtype);
        let bits = kernel_bits(&config);
        let weight = |(name, parameter): (&str, Tensor<2>)| {
            let parameter = elementwise::cast(parameter, dtype);
            match bits {
                Some(bits) if name.ends_with("kernel") => Weight::quantized(parameter, bits),
                _ => Weight::Float(parameter),
            }
        };
        let layers = params.layers.into_iter().map(|layer| LAYER_NAMES.zip(layer).map(weight));
        Self {
            layers: layers.collect(),
            embedding: elementwise::cast(params.embedding, dtype),
            decoder_norm: params.decoder_norm,
            head: Weight::Float(head),
            rope: rope::Table::new(&config.rope, config.head_dim, config.max_target_length, &device),
            attention: scan::attention_spec(&config),
            config,
        }
    }

    /// A decoder of weights that were prepared before: `weight` is asked for each by its path, shape `[in, out]` and, where it is to
    /// be integers, their width. It must answer with what was asked for.
    ///
    /// # Errors
    /// Those of `weight`.
    ///
    /// # Panics
    /// When the embedding or the final norm comes as integers.
    pub fn from_weights<E>(
        config: ModelConfig,
        mut weight: impl FnMut(&str, [usize; 2], Option<Bits>) -> Result<Weight, E>,
    ) -> Result<Self, E> {
        let (v, e) = (config.vocab_size, config.emb_dim);
        let embedding = weight(EMBEDDING, [v, e], None)?.float();
        let bits = kernel_bits(&config);
        let mut layers = Vec::with_capacity(config.num_decoder_layers);
        for i in 0..config.num_decoder_layers {
            let asked = LAYER_NAMES.zip(layer_matrices(&config)).map(|(name, dims)| {
                weight(&layer_path(i, name), dims, bits.filter(|_| name.ends_with("kernel")))
            });
            layers.push(asked.transposed()?);
        }
        Ok(Self {
            layers,
            decoder_norm: weight(DECODER_NORM, [1, e], None)?.float(),
            head: weight(LOGITS_DENSE, [e, v], None)?,
            rope: rope::Table::new(
                &config.rope,
                config.head_dim,
                config.max_target_length,
                &embedding.device(),
            ),
            attention: scan::attention_spec(&config),
            embedding,
            config,
        })
    }

    /// All weights by their path, as [`Decoder::from_weights`] asks for them; the head is one of its own also where it is tied.
    pub fn weights(&self) -> Vec<(String, Weight)> {
        let mut weights = vec![(EMBEDDING.to_owned(), Weight::Float(self.embedding.clone()))];
        for (i, layer) in self.layers.iter().enumerate() {
            let named =
                LAYER_NAMES.zip(layer.as_ref()).map(|(name, weight)| (layer_path(i, name), weight.clone()));
            weights.extend(named.into_vec());
        }
        weights.push((DECODER_NORM.to_owned(), Weight::Float(self.decoder_norm.clone())));
        weights.push((LOGITS_DENSE.to_owned(), self.head.clone()));
        weights
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The device that the weights lie on.
    pub fn device(&self) -> Device {
        self.embedding.device()
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(|layer| layer.as_ref().into_vec());
        let rest = [&self.embedding, &self.decoder_norm]
            .map(|tensor| tensor.dims().iter().product::<usize>() * tensor.dtype().size());
        layers.map(Weight::bytes).sum::<usize>() + self.head.bytes() + rest.iter().sum::<usize>()
    }

    /// What a cache stores unless it is quantized: the compute type.
    pub fn float_storage(&self) -> Storage {
        Storage::Float(burn_dtype(self.config.dtype))
    }

    /// Reads the prompts, each of one token at least, into the cache of a new session in which every sequence has room for
    /// `capacity` tokens. Returns it with the logits after each prompt, `[prompts, V]` float32.
    ///
    /// # Errors
    /// [`BatchError`]: a token isn't in the vocabulary, or a prompt is longer than `max_target_length`.
    ///
    /// # Panics
    /// When there is no prompt, one is empty, or one is longer than `capacity`.
    pub fn prefill(
        &self,
        prompts: &[Vec<i32>],
        capacity: usize,
        storage: Storage,
    ) -> Result<(Session<'_>, Tensor<2>), BatchError> {
        let _span = span(Kind::Model, "prefill");
        assert!(!prompts.is_empty(), "there is a prompt");
        assert!(
            prompts.iter().all(|prompt| (1..=capacity).contains(&prompt.len())),
            "prompts fit in the cache"
        );
        let ModelConfig { num_kv_heads, head_dim, .. } = self.config;
        let shape = Shape { sequences: prompts.len(), capacity, num_kv_heads, head_dim };
        let cache = || Cache::new(shape, storage, &self.device());
        let mut session = Session {
            decoder: self,
            caches: self.layers.iter().map(|_| cache()).collect(),
            lengths: vec![0; prompts.len()],
        };
        let tokens = prompts
            .iter()
            .enumerate()
            .flat_map(|(sequence, prompt)| prompt.iter().map(move |&token| (sequence, token)));
        let x = session.read(&tokens.collect::<Vec<_>>(), Reader::Prompts)?;
        let ends = prompts.iter().scan(0, |end, prompt| {
            *end += prompt.len();
            Some(*end)
        });
        let last = ends.map(|end| x.clone().slice_dim(0, end - 1..end)).collect();
        let logits = self.logits(Tensor::cat(last, 0));
        Ok((session, logits))
    }

    /// Logits `[rows, V]` float32 of the last layer's output.
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        let y = rms_norm::forward(x, self.decoder_norm.clone(), self.config.normalization_layer_epsilon);
        let y =
            if self.config.logits_dot_in_fp32 { elementwise::cast(y, burn_dtype(DType::Float32)) } else { y };
        loss::logits_of_products(&self.config, self.head.product(y))
    }
}

/// A batch of sequences and the keys and values of their tokens.
#[derive(Debug)]
pub struct Session<'a> {
    decoder: &'a Decoder,
    caches: Vec<Cache>,
    lengths: Vec<usize>,
}

impl Session<'_> {
    /// Appends one token to each of some sequences, given by index, and returns the logits after them, `[tokens, V]` float32.
    ///
    /// # Errors
    /// [`BatchError`]: a token isn't in the vocabulary, or its position is beyond `max_target_length`.
    ///
    /// # Panics
    /// When a sequence is named twice, doesn't exist or is full.
    pub fn step(&mut self, tokens: &[(usize, i32)]) -> Result<Tensor<2>, BatchError> {
        let _span = span(Kind::Model, "decode");
        let x = self.read(tokens, Reader::Tokens)?;
        Ok(self.decoder.logits(x))
    }

    /// Tokens of every sequence.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Bytes of keys, values and scales.
    pub fn cache_bytes(&self) -> usize {
        self.caches.iter().map(Cache::bytes).sum()
    }

    /// Appends tokens to their sequences; the last layer's output, `[tokens, E]`.
    fn read(&mut self, tokens: &[(usize, i32)], reader: Reader) -> Result<Tensor<2>, BatchError> {
        let decoder = self.decoder;
        let mut lengths = self.lengths.clone();
        let slots = tokens.iter().map(|&(sequence, _)| {
            let position = lengths[sequence];
            lengths[sequence] += 1;
            Slot { sequence, position }
        });
        let slots: Vec<Slot> = slots.collect();
        let batch = packed_row(tokens, &slots, &decoder.config, &decoder.device())?;
        let step = Step {
            config: &decoder.config,
            batch: &batch,
            rope: &decoder.rope,
            attention: &decoder.attention,
        };
        let mut x = loss::embed(&decoder.config, &decoder.embedding, &batch); // [tokens, E]
        for (i, (layer, cache)) in decoder.layers.iter().zip(&mut self.caches).enumerate() {
            let _span = span(Kind::Model, "layer.decode").index(i);
            x = decoder_layer(&mut Eager { step: &step, slots: &slots, reader, cache }, x, layer);
        }
        self.lengths = lengths;
        Ok(x)
    }
}

/// One row in which each sequence is a document.
fn packed_row(
    tokens: &[(usize, i32)],
    slots: &[Slot],
    config: &ModelConfig,
    device: &Device,
) -> Result<BatchTensors, BatchError> {
    let inputs: Vec<i32> = tokens.iter().map(|&(_, token)| token).collect();
    let segments: Vec<i32> = tokens.iter().map(|&(sequence, _)| sequence as i32 + 1).collect();
    let positions: Vec<i32> = slots.iter().map(|slot| slot.position as i32).collect();
    let nothing = vec![0; tokens.len()];
    let rows = Rows {
        batch_size: 1,
        seq_len: tokens.len(),
        inputs: &inputs,
        inputs_segmentation: &segments,
        inputs_position: &positions,
        targets: &nothing,
        targets_segmentation: &nothing,
    };
    BatchTensors::new(&rows, config, device)
}
