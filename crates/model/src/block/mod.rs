//! Decoder layers. A block is a file with a function from the layer's input to its output, in terms of [`Ctx`]; it says
//! nothing about gradients, memory or devices.

mod llama;
mod operations;
mod parts;
mod qwen;

use mt_config::{Activation, Activations, DecoderBlock, ModelConfig};

use self::operations::{Add, AddBias, Attention, Dropout, Glu, Linear, RmsNorm, Rope, Scale};
use crate::batch::BatchTensors;
use crate::ops::{attention, rope};
use crate::params::LayerParams;
use crate::vjp::{Tape, Var};

/// What all layers of one step share beside their parameters.
pub struct Step<'a> {
    /// The model's configuration.
    pub config: &'a ModelConfig,
    /// Tokens, positions and document bounds.
    pub batch: &'a BatchTensors,
    /// Cosines and sines by position.
    pub rope: &'a rope::Table,
    /// Heads and numerics of attention.
    pub attention: &'a attention::Spec,
}

/// Writes one layer down on a tape.
pub struct Ctx<'t, 'a> {
    tape: &'t mut Tape<'a>,
    step: &'a Step<'a>,
    layer: usize,
}

/// Pushes layer number `layer` on `tape`: the block that `decoder_block` names, on input `x` with parameters `params`.
pub fn decoder_layer<'a>(
    tape: &mut Tape<'a>,
    step: &'a Step<'a>,
    layer: usize,
    x: Var,
    params: &LayerParams<Var>,
) -> Var {
    let mut ctx = Ctx { tape, step, layer };
    match step.config.decoder_block {
        DecoderBlock::Llama2 | DecoderBlock::Mistral => llama::decoder_layer(&mut ctx, x, params),
        DecoderBlock::Qwen2 | DecoderBlock::Qwen3 => qwen::decoder_layer(&mut ctx, x, params),
    }
}

impl<'a> Ctx<'_, 'a> {
    /// The model's configuration.
    fn config(&self) -> &'a ModelConfig {
        self.step.config
    }

    /// Names a value for the remat policy.
    fn keep(&mut self, name: Activations, value: Var) -> Var {
        self.tape.name(name, value)
    }

    /// `x w (+ bias)`: `[tokens, in]` by `[in, out]` gives `[tokens, out]`.
    fn linear(&mut self, x: Var, kernel: Var, bias: Option<Var>) -> Var {
        let y = self.tape.push(Linear, &[x, kernel]);
        match bias {
            Some(bias) => self.tape.push(AddBias, &[y, bias]),
            None => y,
        }
    }

    /// RMSNorm over groups of as many features as `scale` has: all of a token's, or each head's.
    fn rms_norm(&mut self, x: Var, scale: Var) -> Var {
        self.tape.push(RmsNorm { epsilon: self.step.config.normalization_layer_epsilon }, &[x, scale])
    }

    /// Rotates every head by its token's position in the document.
    fn rope(&mut self, x: Var) -> Var {
        self.tape.push(Rope { step: self.step }, &[x])
    }

    /// `x * factor`.
    fn scale(&mut self, x: Var, factor: f64) -> Var {
        self.tape.push(Scale { factor }, &[x])
    }

    /// Causal attention inside documents: `[tokens, Hq*D]`, and `[tokens, Hkv*D]` twice, give `[tokens, Hq*D]`.
    fn attention(&mut self, query: Var, key: Var, value: Var) -> Var {
        self.tape.push(Attention { step: self.step }, &[query, key, value])
    }

    /// `activation(gate) * up`.
    fn glu(&mut self, gate: Var, up: Var, activation: Activation) -> Var {
        self.tape.push(Glu { activation }, &[gate, up])
    }

    /// `x + y`.
    fn add(&mut self, x: Var, y: Var) -> Var {
        self.tape.push(Add, &[x, y])
    }

    /// Dropout with a mask that the positions of a row share, when the step has dropout. `site` names the place in the layer.
    fn dropout(&mut self, x: Var, site: &str) -> Var {
        match &self.step.batch.dropout {
            Some(dropout) => {
                let site = format!("layers_{}/{site}", self.layer);
                self.tape.push(Dropout { dropout, site }, &[x])
            }
            None => x,
        }
    }
}
