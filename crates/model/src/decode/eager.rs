//! A layer that is computed as it is written down, with a cache under attention.

use burn::tensor::Tensor;
use mt_config::{Activation, ModelConfig};

use crate::block::{Ops, Step};
use crate::ops::decode_attention::{Cache, Slot};
use crate::ops::quantized::Recipe;
use crate::ops::weight::Weight;
use crate::ops::{attention, elementwise, glu, linear, quantized, rms_norm, rope};

/// What is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// Whole prompts, which see nothing but themselves: the training's kernel attends, the cache is filled for later.
    Prompts,
    /// One token of each sequence, which sees what the cache holds.
    Tokens,
}

/// Computes one layer of one step.
pub(super) struct Eager<'a> {
    pub(super) step: &'a Step<'a>,
    /// Sequence and position of every row.
    pub(super) slots: &'a [Slot],
    pub(super) reader: Reader,
    /// This layer's.
    pub(super) cache: &'a mut Cache,
}

impl Ops for Eager<'_> {
    type Value = Tensor<2>;
    type Param = Weight;

    fn config(&self) -> &ModelConfig {
        self.step.config
    }

    fn linear(&mut self, x: Tensor<2>, kernel: &Weight, bias: Option<&Weight>) -> Tensor<2> {
        let y = match Recipe::of(self.step.config.quantization) {
            None => kernel.product(x),
            Some(recipe) => quantized::forward(x, kernel.float(), recipe),
        };
        match bias {
            Some(bias) => linear::add_bias(y, bias.float()),
            None => y,
        }
    }

    fn rms_norm(&mut self, x: Tensor<2>, scale: &Weight) -> Tensor<2> {
        rms_norm::by_groups(x, scale.float(), self.step.config.normalization_layer_epsilon)
    }

    fn rope(&mut self, x: Tensor<2>) -> Tensor<2> {
        let Step { config, batch, rope, .. } = self.step;
        rope::apply(x, &batch.positions, rope, config.head_dim, rope::Direction::Forward)
    }

    fn scale(&mut self, x: Tensor<2>, factor: f64) -> Tensor<2> {
        x.mul_scalar(factor)
    }

    fn attention(&mut self, query: Tensor<2>, key: Tensor<2>, value: Tensor<2>) -> Tensor<2> {
        let spec = self.step.attention;
        self.cache.write(key.clone(), value.clone(), self.slots);
        match self.reader {
            Reader::Prompts => attention::forward(query, key, value, &self.step.batch.layout, spec).0,
            Reader::Tokens => self.cache.attend(query, self.slots, spec),
        }
    }

    fn glu(&mut self, gate: Tensor<2>, up: Tensor<2>, activation: Activation) -> Tensor<2> {
        glu::forward(gate, up, activation)
    }

    fn add(&mut self, x: Tensor<2>, y: Tensor<2>) -> Tensor<2> {
        elementwise::add(x, y)
    }
}
