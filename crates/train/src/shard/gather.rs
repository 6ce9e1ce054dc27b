//! Whole weights out of shards, one part of the model at a time.

use std::cell::RefCell;

use burn::tensor::Tensor;
use mt_config::ModelConfig;
use mt_model::profile::{Kind, span};
use mt_model::tree::layer_matrices;
use mt_model::weights::{Head, OutputHead};
use mt_model::{LayerParams, Model, Part, Shard, Weights};

use super::shard_of;
use crate::collective::{Collective, CollectiveError, Group, Operation, Pending};

/// The weights of a model whose parameters are shards on the ranks of [`Group::Fsdp`]. All of them ask for the same parts in the
/// same order.
pub struct Gathered<'a> {
    model: &'a Model,
    collective: &'a dyn Collective,
    /// The part that was announced, on its way.
    ahead: RefCell<Option<(Part, Pending)>>,
}

/// The whole parameter of `dims` of which each rank of [`Group::Fsdp`] has `shard`.
///
/// # Errors
/// [`CollectiveError`]: another rank is gone, or a library failed.
pub fn whole(
    collective: &dyn Collective,
    shard: &Tensor<2>,
    dims: [usize; 2],
) -> Result<Tensor<2>, CollectiveError> {
    if shard_of(collective.mesh()) == Shard::WHOLE {
        return Ok(shard.clone());
    }
    let mut wholes = gather(collective, [shard])?.wait()?.into_iter();
    Ok(Shard::whole(wholes.next().expect("as many tensors come back as went"), dims))
}

/// Starts to gather the whole parameters of some shards.
fn gather<'t>(
    collective: &dyn Collective,
    shards: impl IntoIterator<Item = &'t Tensor<2>>,
) -> Result<Pending, CollectiveError> {
    let flat = |shard: &Tensor<2>| {
        let [_, len] = shard.dims();
        shard.clone().reshape([len])
    };
    collective.start(Group::Fsdp, Operation::AllGather, shards.into_iter().map(flat).collect())
}

impl<'a> Gathered<'a> {
    /// The weights of which `model` has this rank's shards.
    pub fn new(model: &'a Model, collective: &'a dyn Collective) -> Self {
        Self { model, collective, ahead: RefCell::new(None) }
    }

    fn is_whole(&self) -> bool {
        shard_of(self.collective.mesh()) == Shard::WHOLE
    }

    fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn start(&self, part: Part) -> Result<Pending, CollectiveError> {
        let params = &self.model.params;
        match part {
            Part::Embedding => gather(self.collective, [&params.embedding]),
            Part::Layer(i) => gather(self.collective, params.layers[i].as_ref().into_vec()),
            Part::Head => {
                let matrix = params.logits_dense.as_ref().unwrap_or(&params.embedding);
                gather(self.collective, [&params.decoder_norm, matrix])
            }
        }
    }

    /// The elements of a part's parameters, in order, by rows; zeros may follow.
    fn gathered(&self, part: Part) -> Result<impl FnMut() -> Tensor<1>, CollectiveError> {
        let _span = span(Kind::Collective, "all_gather.wait");
        let pending = match self.ahead.take() {
            Some((ahead, pending)) if ahead == part => pending,
            _ => self.start(part)?,
        };
        let mut tensors = pending.wait()?.into_iter();
        Ok(move || tensors.next().expect("as many tensors come back as went"))
    }
}

impl Weights for Gathered<'_> {
    type Error = CollectiveError;

    fn embedding(&self) -> Result<Tensor<2>, CollectiveError> {
        if self.is_whole() {
            return Ok(self.model.params.embedding.clone());
        }
        let mut next = self.gathered(Part::Embedding)?;
        Ok(Shard::whole(next(), [self.config().vocab_size, self.config().emb_dim]))
    }

    fn layer(&self, i: usize) -> Result<LayerParams<Tensor<2>>, CollectiveError> {
        if self.is_whole() {
            return Ok(self.model.params.layers[i].clone());
        }
        let mut next = self.gathered(Part::Layer(i))?;
        Ok(layer_matrices(self.config()).map(|dims| Shard::whole(next(), dims)))
    }

    fn head(&self) -> Result<Head, CollectiveError> {
        if self.is_whole() {
            return Ok(self.model.params.head_weights());
        }
        let [vocab_size, emb_dim] = [self.config().vocab_size, self.config().emb_dim];
        let mut next = self.gathered(Part::Head)?;
        let decoder_norm = Shard::whole(next(), [1, emb_dim]);
        let output = match self.model.params.logits_dense {
            Some(_) => OutputHead::Dense(Shard::whole(next(), [emb_dim, vocab_size])),
            None => OutputHead::Tied(Shard::whole(next(), [vocab_size, emb_dim])),
        };
        Ok(Head { decoder_norm, output })
    }

    fn prefetch(&self, next: Part) -> Result<(), CollectiveError> {
        if !self.is_whole() {
            *self.ahead.borrow_mut() = Some((next, self.start(next)?));
        }
        Ok(())
    }
}
