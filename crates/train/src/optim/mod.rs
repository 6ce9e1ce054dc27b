//! From gradients to new parameters: clipping by the global norm, then AdamW, Adam as in Pax, SGD or Muon.
//!
//! The numbers are optax's as MaxText calls it. Every parameter has a rule and, where the rule needs them, moments; the
//! update of a parameter is one pass over its memory ([`mt_model::ops::adamw`]) and in place.

mod adam;
mod masks;
mod muon;
mod offload;
mod spikes;
mod state;

pub use masks::PatternError;
pub use offload::{OffloadError, Sink};
pub use state::Moment;

use adam::Adam;
use burn::tensor::{DType, Device, Tensor};
use masks::Masks;
use mt_config::{Config, OptType};
use mt_model::ops::elementwise::SumOfSquares;
use mt_model::ops::{adamw, create, elementwise};
use mt_model::{Params, Shard, burn_dtype};
use muon::Muon;
use offload::{Arriving, Copier};
use spikes::Spikes;
use tracing::info;

/// What an update leaves behind for the log.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norms {
    /// Global norm of the gradient.
    pub raw_grad_norm: f64,
    /// The same after clipping.
    pub grad_norm: f64,
    /// Sum of the squares of the parameters after the update: with shards, of this one alone.
    pub param_squares: f64,
    /// The update was left out: `skip_step_on_spikes` saw one.
    pub skipped: bool,
}

/// Gradients as an update takes them.
pub struct Rounded {
    tensors: Vec<Tensor<2>>,
    /// The sum of their squares. With shards it's that of this shard, and must become that of all.
    pub squares: f64,
}

/// The optimizer and its state.
pub struct Optimizer {
    leaves: Vec<Leaf>,
    /// Updates made.
    count: u64,
    gradient_clipping_threshold: f64,
    grad_dtype: DType,
    adam: Adam,
    muon: Muon,
    spikes: Option<Spikes>,
    /// Brings gradients and parameters to the moments, if these are in main memory and the parameters aren't
    /// (`optimizer_memory_host_offload`).
    copier: Option<Copier>,
}

/// How one parameter is updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Frozen,
    Adam,
    Sgd,
    Muon,
}

/// A parameter's part of the optimizer, in the order of [`Params::leaves`].
struct Leaf {
    path: String,
    /// Place in the order.
    number: u64,
    /// The number of the first element here in the whole parameter, modulo 2^32.
    first: u32,
    rule: Rule,
    decays: bool,
    /// First moment or momentum, in `mu_dtype`.
    mu: Option<Tensor<2>>,
    /// Second moment, in the type of the parameter.
    nu: Option<Tensor<2>>,
}

impl Optimizer {
    /// The optimizer that the configuration asks for, at its first step. `params` are `shard` of the model's.
    ///
    /// # Errors
    /// [`PatternError`]: `adamw_mask` or `trainable_parameters_mask` holds something that isn't a regular expression.
    pub fn new(config: &Config, params: &Params, shard: Shard) -> Result<Self, PatternError> {
        let host = Device::flex();
        let is_apart = params.embedding.device() != host;
        if config.optimizer_memory_host_offload && !is_apart {
            info!(
                "optimizer_memory_host_offload has no effect: the model is in main memory, and so are the moments"
            );
        }
        let host = (config.optimizer_memory_host_offload && is_apart).then_some(host);
        Self::with_host(config, params, shard, host)
    }

    /// As [`Optimizer::new`], with moments and updates on `host` where one is given.
    ///
    /// # Errors
    /// As [`Optimizer::new`].
    pub fn with_host(
        config: &Config,
        params: &Params,
        shard: Shard,
        host: Option<Device>,
    ) -> Result<Self, PatternError> {
        let masks = Masks::new(config)?;
        let adam = Adam::new(config);
        let mu_dtype = match config.opt_type {
            OptType::AdamPax => burn_dtype(config.weight_dtype),
            _ => burn_dtype(config.moment_dtype()),
        };
        let leaf = |(number, (path, param)): (u64, (String, &Tensor<2>))| {
            let rule = match config.opt_type {
                _ if !masks.trains(&path) => Rule::Frozen,
                OptType::Adamw | OptType::AdamPax => Rule::Adam,
                OptType::Sgd => Rule::Sgd,
                OptType::Muon if muon::takes(&path) => Rule::Muon,
                OptType::Muon => Rule::Adam,
            };
            let device = host.clone().unwrap_or_else(|| param.device());
            let zeros = |dtype| create::zeros(param.dims(), dtype, &device);
            Leaf {
                number,
                first: shard.first(param.dims().iter().product()) as u32,
                rule,
                decays: masks.decays(&path),
                mu: matches!(rule, Rule::Adam | Rule::Muon).then(|| zeros(mu_dtype)),
                nu: matches!(rule, Rule::Adam).then(|| zeros(param.dtype())),
                path,
            }
        };
        Ok(Self {
            leaves: (0..).zip(params.leaves()).map(leaf).collect(),
            count: 0,
            gradient_clipping_threshold: config.gradient_clipping_threshold,
            grad_dtype: burn_dtype(config.grad_dtype),
            adam,
            muon: Muon::new(config),
            spikes: config
                .skip_step_on_spikes
                .then(|| Spikes::new(config.skip_step_interval, config.skip_step_scaling_factor)),
            copier: host.map(Copier::new),
        })
    }

    /// Updates made so far. MaxText's learning rate is the schedule's at this count, which falls behind the step when updates
    /// are skipped.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Where the gradients of a step are to be collected.
    pub fn sink(&self) -> Sink {
        Sink::new(self.copier.as_ref())
    }

    /// Gradients of the mean loss in `grad_dtype`, and their size.
    pub fn rounded(&self, gradients: Params) -> Rounded {
        let tensors: Vec<Tensor<2>> =
            into_tensors(gradients).into_iter().map(|g| elementwise::cast(g, self.grad_dtype)).collect();
        Rounded { squares: squares(&tensors), tensors }
    }

    /// Updates `params` in place by the gradients of the mean loss. `loss` is only looked at by `skip_step_on_spikes`.
    ///
    /// # Errors
    /// [`OffloadError`]: a parameter didn't come to main memory; `params` and moments are incomplete then.
    pub fn update(
        &mut self,
        params: &mut Params,
        gradients: Rounded,
        learning_rate: f32,
        loss: f64,
    ) -> Result<Norms, OffloadError> {
        let Rounded { tensors: gradients, squares: grad_squares } = gradients;
        let raw_grad_norm = grad_squares.sqrt();
        // As optax: a norm that isn't a number isn't below the threshold, so it spreads to all gradients.
        let within = raw_grad_norm < self.gradient_clipping_threshold;
        let clips = 0.0 < self.gradient_clipping_threshold && !within;
        let grad_scale = if clips { self.gradient_clipping_threshold / raw_grad_norm } else { 1.0 };
        let grad_norm = raw_grad_norm * grad_scale;

        let skipped =
            self.spikes.as_mut().is_some_and(|spikes| spikes.is_spike(loss as f32, grad_norm as f32));
        if skipped {
            let params: Vec<Tensor<2>> =
                params.leaves().into_iter().map(|(_, param)| param.clone()).collect();
            return Ok(Norms { raw_grad_norm, grad_norm, param_squares: squares(&params), skipped });
        }
        let step = Step { count: self.count, learning_rate: f64::from(learning_rate), grad_scale };
        let mut squares = Vec::with_capacity(self.leaves.len());
        let arriving = self.fetch(params)?;
        let leaves = self.leaves.iter_mut().zip(gradients).zip(params.leaves_mut());
        for ((leaf, gradient), (_, param)) in leaves {
            let device = param.device();
            let arriving = arriving.as_ref().filter(|_| leaf.rule != Rule::Frozen);
            if let Some(arriving) = arriving {
                *param = arriving.next()?;
            }
            squares.push(leaf.update(param, gradient, &step, &self.adam, &self.muon));
            if arriving.is_some() {
                *param = take(param).to_device(&device);
            }
        }
        self.count += 1;
        Ok(Norms { raw_grad_norm, grad_norm, param_squares: sum(squares), skipped })
    }

    /// Sends the parameters that are trained on their way to main memory, if that is where they are updated.
    fn fetch(&self, params: &mut Params) -> Result<Option<Arriving>, OffloadError> {
        let Some(copier) = &self.copier else { return Ok(None) };
        let leaves = self.leaves.iter().zip(params.leaves_mut());
        let trained = leaves.filter(|(leaf, _)| leaf.rule != Rule::Frozen).map(|(_, (_, param))| take(param));
        copier.fetch(trained.collect()).map(Some)
    }
}

/// What all parameters of one update share.
struct Step {
    /// Updates made before this one.
    count: u64,
    learning_rate: f64,
    /// Factor on the gradients.
    grad_scale: f64,
}

impl Leaf {
    /// Updates one parameter; returns the sum of its new squares.
    fn update(
        &mut self,
        param: &mut Tensor<2>,
        gradient: Tensor<2>,
        step: &Step,
        adam: &Adam,
        muon: &Muon,
    ) -> SumOfSquares {
        match (self.rule, &mut self.mu, &mut self.nu) {
            (Rule::Adam, Some(mu), Some(nu)) => {
                let hyper = adam.hyper(step, self.decays, self.number, self.first);
                let updated = adamw::update(take(param), gradient, take(mu), take(nu), &hyper);
                (*param, *mu, *nu) = (updated.param, updated.mu, updated.nu);
                updated.param_squares
            }
            (Rule::Muon, Some(mu), _) => {
                (*param, *mu) = muon.update(take(param), gradient, take(mu), step);
                elementwise::sum_of_squares(param.clone())
            }
            (Rule::Sgd, ..) => {
                *param = descend(take(param), gradient, step.learning_rate * step.grad_scale);
                elementwise::sum_of_squares(param.clone())
            }
            _ => elementwise::sum_of_squares(param.clone()),
        }
    }
}

/// `param - rate * direction`, computed in float32, in the type of `param`.
fn descend(param: Tensor<2>, direction: Tensor<2>, rate: f64) -> Tensor<2> {
    let dtype = param.dtype();
    let [param, direction] = [param, direction].map(|x| elementwise::cast(x, DType::F32));
    elementwise::cast(param - direction.mul_scalar(rate), dtype)
}

/// Takes a tensor out, so that what is made of it can be made in its memory; a new value must follow.
fn take(tensor: &mut Tensor<2>) -> Tensor<2> {
    let placeholder = Tensor::empty([1, 1], &tensor.device());
    std::mem::replace(tensor, placeholder)
}

/// Sum of the squares of several tensors. Waits for a GPU once.
fn squares(tensors: &[Tensor<2>]) -> f64 {
    sum(tensors.iter().map(|tensor| elementwise::sum_of_squares(tensor.clone())).collect())
}

fn sum(squares: Vec<SumOfSquares>) -> f64 {
    SumOfSquares::read_all(squares).into_iter().sum()
}

/// All tensors in the order of [`Params::leaves`], owned.
fn into_tensors(params: Params) -> Vec<Tensor<2>> {
    let mut tensors = vec![params.embedding];
    tensors.extend(params.layers.into_iter().flat_map(|layer| layer.into_vec()));
    tensors.push(params.decoder_norm);
    tensors.extend(params.logits_dense);
    tensors
}

#[cfg(test)]
mod tests;
