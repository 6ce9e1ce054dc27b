//! The model: one layer's code over the stack of layers, forwards and backwards.

use std::rc::Rc;

use burn::tensor::{Device, Tensor};
use mt_config::ModelConfig;

use crate::batch::BatchTensors;
use crate::block::{Step, record_layer};
use crate::init::init;
use crate::loss::{self, LossOutput};
use crate::ops::{attention, elementwise, rope};
use crate::params::{LayerParams, Params};
use crate::profile::{Kind, span};
use crate::remat::{Checkpoint, Meter};
use crate::vjp::Tape;
use crate::weights::{Part, Weights};

/// Receives gradients while the backward pass goes on, each as soon as it's complete. Together they're one `Params`.
///
/// This is where gradients are accumulated, reduced across ranks, moved to the host, or applied at once. The order is: head,
/// layers from last to first, embedding.
pub trait GradSink {
    /// The gradients of the final norm and the output head.
    fn head(&mut self, gradients: HeadGradients);
    /// The gradients of layer `i`.
    fn layer(&mut self, i: usize, gradients: LayerParams<Tensor<2>>);
    /// The gradient of the embedding, `[V, E]`; with tied embeddings that of its use as output head included.
    fn embedding(&mut self, gradient: Tensor<2>);
}

/// Gradients of what follows the layers.
#[derive(Debug, Clone)]
pub struct HeadGradients {
    /// `[1, E]`.
    pub decoder_norm: Tensor<2>,
    /// `[E, V]`, none with tied embeddings.
    pub logits_dense: Option<Tensor<2>>,
}

/// A decoder: its configuration and parameters on a device.
#[derive(Debug, Clone)]
pub struct Model {
    config: ModelConfig,
    /// The weights; shards of them when a pass gets whole ones from elsewhere.
    pub params: Params,
    rope: rope::Table,
    attention: attention::Spec,
}

impl Model {
    /// A model with initial weights ([`init`](crate::init)).
    pub fn new(config: ModelConfig, device: &Device) -> Self {
        let params = init(&config, device);
        Self::with_params(config, params)
    }

    /// A model with given weights, which lie where it's going to compute.
    pub fn with_params(config: ModelConfig, params: Params) -> Self {
        let device = params.embedding.device();
        let rope = rope::Table::new(&config.rope, config.head_dim, config.max_target_length, &device);
        let attention = attention_spec(&config);
        Self { config, params, rope, attention }
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The device that the weights lie on.
    pub fn device(&self) -> Device {
        self.params.embedding.device()
    }

    /// The loss of `batch`, and the gradients of `factor` times its sum of cross-entropies, handed to `sink` in float32 layer
    /// by layer. A `factor` of [`BatchTensors::mean_factor`] gives those of the mean; of 1, sums that can be added over
    /// batches and divided later.
    pub fn loss_and_gradients(
        &self,
        batch: &BatchTensors,
        factor: f64,
        sink: &mut dyn GradSink,
    ) -> LossOutput {
        let Ok(loss) = self.loss_and_gradients_of(&self.params, batch, factor, sink);
        loss
    }

    /// [`Model::loss_and_gradients`] of weights from elsewhere. They're asked for in the order embedding, layers from first to
    /// last, head, layers from last to first.
    ///
    /// # Errors
    /// Those of `weights`. The gradients that `sink` has by then are worth nothing.
    pub fn loss_and_gradients_of<W: Weights>(
        &self,
        weights: &W,
        batch: &BatchTensors,
        factor: f64,
        sink: &mut dyn GradSink,
    ) -> Result<LossOutput, W::Error> {
        let step = self.step(batch);
        let policy = &self.config.remat_policy;
        let meter = Rc::new(Meter::default());

        let mut x = self.embed(weights, batch)?; // [tokens, E]
        let mut checkpoints = Vec::with_capacity(self.params.layers.len());
        for i in 0..self.params.layers.len() {
            let _span = span(Kind::Model, "layer.forward").index(i);
            let mut checkpoint = Checkpoint::new(x.clone(), policy, &meter);
            let layer = weights.layer(i)?;
            weights.prefetch(self.part_at(i + 1))?;
            let tape = self.layer(&step, i, layer, x, &meter);
            x = tape.forward(|name, value| checkpoint.keep(name, value, policy, &meter));
            checkpoints.push(checkpoint);
        }

        let head = {
            let _span = span(Kind::Model, "head");
            let head = weights.head()?;
            self.prefetch_below(weights, checkpoints.len())?;
            loss::head_and_backward(&self.config, head, batch, x, factor)
        };
        sink.head(head.gradients);

        let mut dx = head.dx;
        for (i, mut checkpoint) in checkpoints.into_iter().enumerate().rev() {
            let _span = span(Kind::Model, "layer.backward").index(i);
            let layer = weights.layer(i)?;
            self.prefetch_below(weights, i)?;
            let (input, _lease) = checkpoint.input(&meter).into_parts();
            let mut tape = self.layer(&step, i, layer, input.out, &meter);
            tape.fill(|name| checkpoint.take(name, &meter));

            let mut cotangents =
                tape.backward(dx).into_iter().map(|cotangent| cotangent.expect("a layer uses all it has"));
            dx = cotangents.next().expect("the input is the first leaf");
            let gradients =
                self.params.layers[i].as_ref().map(|_| cotangents.next().expect("a leaf per parameter"));
            sink.layer(i, gradients);
        }

        let embedding = loss::embed_backward(&self.config, batch, dx);
        sink.embedding(match head.embedding {
            Some(tied) => elementwise::add(embedding, tied),
            None => embedding,
        });
        Ok(LossOutput { accounting: meter.accounting(), ..head.loss })
    }

    /// The loss of `batch` alone: no gradients, no dropout unless the batch has it.
    pub fn eval_loss(&self, batch: &BatchTensors) -> LossOutput {
        let Ok(loss) = self.eval_loss_of(&self.params, batch);
        loss
    }

    /// [`Model::eval_loss`] of weights from elsewhere, asked for in the order embedding, layers, head.
    ///
    /// # Errors
    /// Those of `weights`.
    pub fn eval_loss_of<W: Weights>(
        &self,
        weights: &W,
        batch: &BatchTensors,
    ) -> Result<LossOutput, W::Error> {
        let x = self.decoder(weights, batch)?;
        Ok(loss::head(&self.config, weights.head()?, batch, x))
    }

    /// Logits `[tokens, V]` float32. For inference and tests: training never holds them all.
    pub fn logits(&self, batch: &BatchTensors) -> Tensor<2> {
        let Ok(x) = self.decoder(&self.params, batch);
        loss::logits(&self.config, self.params.head_weights(), batch, x)
    }

    /// The last layer's output, `[tokens, E]`.
    fn decoder<W: Weights>(&self, weights: &W, batch: &BatchTensors) -> Result<Tensor<2>, W::Error> {
        let step = self.step(batch);
        let meter = Rc::new(Meter::default());
        let mut x = self.embed(weights, batch)?;
        for i in 0..self.params.layers.len() {
            let layer = weights.layer(i)?;
            weights.prefetch(self.part_at(i + 1))?;
            x = self.layer(&step, i, layer, x, &meter).forward(|_, _| {});
        }
        Ok(x)
    }

    /// The first layer's input, `[tokens, E]`.
    fn embed<W: Weights>(&self, weights: &W, batch: &BatchTensors) -> Result<Tensor<2>, W::Error> {
        let table = weights.embedding()?;
        weights.prefetch(self.part_at(0))?;
        Ok(loss::embed(&self.config, &table, batch))
    }

    /// Layer `i`, or what follows the layers.
    fn part_at(&self, i: usize) -> Part {
        if i < self.params.layers.len() { Part::Layer(i) } else { Part::Head }
    }

    /// Tells `weights` what the backward wants after layer `i`.
    fn prefetch_below<W: Weights>(&self, weights: &W, i: usize) -> Result<(), W::Error> {
        i.checked_sub(1).map_or(Ok(()), |below| weights.prefetch(Part::Layer(below)))
    }

    /// Layer `i` on a tape. Its leaves are the input `x` and the layer's parameters, in order.
    fn layer<'a>(
        &self,
        step: &'a Step<'a>,
        i: usize,
        params: LayerParams<Tensor<2>>,
        x: Tensor<2>,
        meter: &Rc<Meter>,
    ) -> Tape<'a> {
        let mut tape = Tape::new(Rc::clone(meter));
        let x = tape.leaf(x);
        let params = params.map(|parameter| tape.leaf(parameter));
        record_layer(&mut tape, step, i, x, &params);
        tape
    }

    fn step<'a>(&'a self, batch: &'a BatchTensors) -> Step<'a> {
        Step { config: &self.config, batch, rope: &self.rope, attention: &self.attention }
    }
}

/// Heads and numerics of attention.
pub(crate) fn attention_spec(config: &ModelConfig) -> attention::Spec {
    attention::Spec {
        num_query_heads: config.num_query_heads,
        num_kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
        soft_cap: config.attn_logits_soft_cap,
        window: config.sliding_window_size,
        kernel: config.attention,
        float32_logits: config.float32_logits,
        float32_qk_product: config.float32_qk_product,
    }
}

/// Collects a full set of gradients, adding up those of several batches.
#[derive(Debug, Default)]
pub struct Gradients {
    embedding: Option<Tensor<2>>,
    layers: Vec<Option<LayerParams<Tensor<2>>>>,
    head: Option<HeadGradients>,
}

impl Gradients {
    /// What was collected, as a tree of parameters. None before a whole backward pass.
    pub fn into_params(self) -> Option<Params> {
        let head = self.head?;
        Some(Params {
            embedding: self.embedding?,
            layers: self.layers.into_iter().collect::<Option<_>>()?,
            decoder_norm: head.decoder_norm,
            logits_dense: head.logits_dense,
        })
    }
}

impl GradSink for Gradients {
    fn head(&mut self, new: HeadGradients) {
        self.head = Some(match self.head.take() {
            None => new,
            Some(sum) => HeadGradients {
                decoder_norm: elementwise::add(sum.decoder_norm, new.decoder_norm),
                logits_dense: sum
                    .logits_dense
                    .zip(new.logits_dense)
                    .map(|(sum, new)| elementwise::add(sum, new)),
            },
        });
    }

    fn layer(&mut self, i: usize, new: LayerParams<Tensor<2>>) {
        if self.layers.len() <= i {
            self.layers.resize_with(i + 1, || None);
        }
        self.layers[i] = Some(match self.layers[i].take() {
            None => new,
            Some(sum) => sum.zip(new).map(|(sum, new)| elementwise::add(sum, new)),
        });
    }

    fn embedding(&mut self, new: Tensor<2>) {
        self.embedding = Some(match self.embedding.take() {
            None => new,
            Some(sum) => elementwise::add(sum, new),
        });
    }
}
