//! A layer on a tape, to be differentiated.

use mt_config::{Activation, Activations, ModelConfig};

use super::operations::{Add, AddBias, Attention, Dropout, Glu, Linear, RmsNorm, Rope, Scale};
use super::{Ops, Step, decoder_layer};
use crate::ops::quantized::Recipe;
use crate::params::LayerParams;
use crate::vjp::{Tape, Var};

/// Pushes layer number `layer` on `tape`: the block that `decoder_block` names, on input `x` with parameters `params`.
pub(crate) fn record_layer<'a>(
    tape: &mut Tape<'a>,
    step: &'a Step<'a>,
    layer: usize,
    x: Var,
    params: &LayerParams<Var>,
) -> Var {
    decoder_layer(&mut Recorder { tape, step, layer }, x, params)
}

/// Writes one layer down on a tape.
struct Recorder<'t, 'a> {
    tape: &'t mut Tape<'a>,
    step: &'a Step<'a>,
    layer: usize,
}

impl Ops for Recorder<'_, '_> {
    type Value = Var;
    type Param = Var;

    fn config(&self) -> &ModelConfig {
        self.step.config
    }

    fn keep(&mut self, name: Activations, value: Var) -> Var {
        self.tape.name(name, value)
    }

    fn linear(&mut self, x: Var, kernel: &Var, bias: Option<&Var>) -> Var {
        let y = self.tape.push(Linear { recipe: Recipe::of(self.step.config.quantization) }, &[x, *kernel]);
        match bias {
            Some(bias) => self.tape.push(AddBias, &[y, *bias]),
            None => y,
        }
    }

    fn rms_norm(&mut self, x: Var, scale: &Var) -> Var {
        self.tape.push(RmsNorm { epsilon: self.step.config.normalization_layer_epsilon }, &[x, *scale])
    }

    fn rope(&mut self, x: Var) -> Var {
        self.tape.push(Rope { step: self.step }, &[x])
    }

    fn scale(&mut self, x: Var, factor: f64) -> Var {
        self.tape.push(Scale { factor }, &[x])
    }

    fn attention(&mut self, query: Var, key: Var, value: Var) -> Var {
        self.tape.push(Attention { step: self.step }, &[query, key, value])
    }

    fn glu(&mut self, gate: Var, up: Var, activation: Activation) -> Var {
        self.tape.push(Glu { activation }, &[gate, up])
    }

    fn add(&mut self, x: Var, y: Var) -> Var {
        self.tape.push(Add, &[x, y])
    }

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
