//! The operations of [`ops`](crate::ops) as a tape wants them: which values a backward reads, and what recomputing costs.

use burn::tensor::Tensor;
use mt_config::Activation;

use super::Step;
use crate::batch;
use crate::ops::rms_norm::in_groups;
use crate::ops::{attention, elementwise, glu, linear, quantized, rms_norm, rope};
use crate::vjp::{Op, Reads, Value};

/// The inputs of an operation of `N`.
fn operands<const N: usize>(inputs: Vec<Tensor<2>>) -> [Tensor<2>; N] {
    inputs
        .try_into()
        .unwrap_or_else(|inputs: Vec<_>| panic!("an operation of {N} inputs was given {}", inputs.len()))
}

/// Inputs `x`, `kernel`.
pub(super) struct Linear {
    /// How operands are rounded, if they are.
    pub(super) recipe: Option<quantized::Recipe>,
}

impl Op for Linear {
    fn forward(&self, inputs: Vec<Tensor<2>>) -> Value {
        let [x, kernel] = operands(inputs);
        match self.recipe {
            None => linear::forward(x, kernel).into(),
            Some(recipe) => quantized::forward(x, kernel, recipe).into(),
        }
    }

    fn reads(&self) -> Reads {
        Reads::Inputs
    }

    fn backward(&self, inputs: Vec<Tensor<2>>, _: Option<Value>, dy: Tensor<2>) -> Vec<Tensor<2>> {
        let [x, kernel] = operands(inputs);
        match self.recipe {
            None => vec![linear::backward_input(dy.clone(), kernel), linear::backward_weight(x, dy)],
            Some(recipe) => vec![
                quantized::backward_input(dy.clone(), kernel, recipe),
                quantized::backward_weight(x, dy, recipe),
            ],
        }
    }

    fn flops(&self, inputs: &[Tensor<2>]) -> u64 {
        let [tokens, fan_in] = inputs[0].dims();
        2 * (tokens * fan_in * inputs[1].dims()[1]) as u64
    }
}

/// Inputs `y`, `bias`.
pub(super) struct AddBias;

impl Op for AddBias {
    fn forward(&self, inputs: Vec<Tensor<2>>) -> Value {
        let [y, bias] = operands(inputs);
        linear::add_bias(y, bias).into()
    }

    fn reads(&self) -> Reads {
        Reads::Nothing
    }

    fn backward(&self, _: Vec<Tensor<2>>, _: Option<Value>, dy: Tensor<2>) -> Vec<Tensor<2>> {
        vec![dy.clone(), linear::backward_bias(dy)]
    }
}

/// Inputs `x`, `scale`; normalises groups of as many features as `scale` has.
pub(super) struct RmsNorm {
    pub(super) epsilon: f64,
}

impl Op for RmsNorm {
    fn forward(&self, inputs: Vec<Tensor<2>>) -> Value {
        let [x, scale] = operands(inputs);
        rms_norm::by_groups(x, scale, self.epsilon).into()
    }

    fn reads(&self) -> Reads {
        Reads::Inputs
    }

    fn backward(&self, inputs: Vec<Tensor<2>>, _: Option<Value>, dy: Tensor<2>) -> Vec<Tensor<2>> {
        let [x, scale] = operands(inputs);
        let shape = x.dims();
        let width = scale.dims()[1];
        let (dx, dscale) = rms_norm::backward(in_groups(x, width), scale, self.epsilon, in_groups(dy, width));
        vec![dx.reshape(shape), dscale]
    }
}

/// Input `x`, `[tokens, heads * D]`.
pub(super) struct Rope<'a> {
    pub(super) step: &'a Step<'a>,
}

impl Rope<'_> {
    fn rotate(&self, x: Tensor<2>, direction: rope::Direction) -> Tensor<2> {
        rope::apply(x, &self.step.batch.positions, self.step.rope, self.step.config.head_dim, direction)
    }
}

impl Op for Rope<'_> {
    fn forward(&self, inputs: Vec<Tensor<2>>) -> Value {
        let [x] = operands(inputs);
        self.rotate(x, rope::Direction::Forward).into()
    }

    fn reads(&self) -> Reads {
        Reads::Nothing
    }

    fn backward(&self, _: Vec<Tensor<2>>, _: Option<Value>, dy: Tensor<2>) -> Vec<Tensor<2>> {
        vec![self.rotate(dy, rope::Direction::Inverse)]
    }
}

/// Input `x`.
pub(super) struct Scale {
    pub(super) factor: f64,
}

impl Op for Scale {
    fn forward(&self, inputs: Vec<Tensor<2>>) -> Value {
        let [x] = operands(inputs);
        x.mul_scalar(self.factor).into()
    }

    fn reads(&self) -> Reads {
        Reads::Nothing
    }

    fn backward(&self, _: Vec<Tensor<2>>, _: Option<Value>, dy: Tensor<2>) -> Vec<Tensor<2>> {
        vec![dy.mul_scalar(self.factor)]
    }
}

/// Inputs `query`, `key`, `value`; the residual is the log-sum-exp of every row's scores, `[tokens, Hq]` float32.
pub(super) struct Attention<'a> {
    pub(super) step: &'a Step<'a>,
}

impl Op for Attention<'_> {
    fn forward(&self, inputs: Vec<Tensor<2>>) -> Value {
        let [query, key, value] = operands(inputs);
        let (out, lse) = attention::forward(query, key, value, &self.step.batch.layout, self.step.attention);
        Value { out, residual: Some(lse) }
    }

    fn reads(&self) -> Reads {
        Reads::InputsAndOutput
    }

    fn backward(&self, inputs: Vec<Tensor<2>>, output: Option<Value>, dy: Tensor<2>) -> Vec<Tensor<2>> {
        let [query, key, value] = operands(inputs);
        let Some(Value { out, residual: Some(lse) }) = output else {
            panic!("attention's backward reads its output")
        };
        let (layout, spec) = (&self.step.batch.layout, self.step.attention);
        let (dquery, dkey, dvalue) = attention::backward(query, key, value, out, lse, dy, layout, spec);
        vec![dquery, dkey, dvalue]
    }

    fn flops(&self, _: &[Tensor<2>]) -> u64 {
        // Scores and their product with the values, 2 D each, over the pairs of a query and a key that it sees.
        let spec = self.step.attention;
        4 * self.step.batch.layout.visible_pairs(spec.window) * (spec.num_query_heads * spec.head_dim) as u64
    }
}

/// Inputs `gate`, `up`.
pub(super) struct Glu {
    pub(super) activation: Activation,
}

impl Op for Glu {
    fn forward(&self, inputs: Vec<Tensor<2>>) -> Value {
        let [gate, up] = operands(inputs);
        glu::forward(gate, up, self.activation).into()
    }

    fn reads(&self) -> Reads {
        Reads::Inputs
    }

    fn backward(&self, inputs: Vec<Tensor<2>>, _: Option<Value>, dy: Tensor<2>) -> Vec<Tensor<2>> {
        let [gate, up] = operands(inputs);
        let (dgate, dup) = glu::backward(gate, up, self.activation, dy);
        vec![dgate, dup]
    }
}

/// Inputs `x`, `y`.
pub(super) struct Add;

impl Op for Add {
    fn forward(&self, inputs: Vec<Tensor<2>>) -> Value {
        let [x, y] = operands(inputs);
        elementwise::add(x, y).into()
    }

    fn reads(&self) -> Reads {
        Reads::Nothing
    }

    fn backward(&self, _: Vec<Tensor<2>>, _: Option<Value>, dy: Tensor<2>) -> Vec<Tensor<2>> {
        vec![dy.clone(), dy]
    }
}

/// Input `x`.
pub(super) struct Dropout<'a> {
    pub(super) dropout: &'a batch::Dropout,
    pub(super) site: String,
}

impl Op for Dropout<'_> {
    fn forward(&self, inputs: Vec<Tensor<2>>) -> Value {
        let [x] = operands(inputs);
        self.dropout.apply(x, &self.site).into()
    }

    fn reads(&self) -> Reads {
        Reads::Nothing
    }

    fn backward(&self, _: Vec<Tensor<2>>, _: Option<Value>, dy: Tensor<2>) -> Vec<Tensor<2>> {
        vec![self.dropout.apply(dy, &self.site)]
    }
}
