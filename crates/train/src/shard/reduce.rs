//! Gradients summed over ranks while the backward pass goes on.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use mt_model::ops::elementwise;
use mt_model::profile::{Kind, span};
use mt_model::scan::{GradSink, HeadGradients};
use mt_model::{LayerParams, Part, Shard};

use super::shard_of;
use crate::collective::{Collective, CollectiveError, Group, Operation, Pending};
use crate::optim::Sink;

/// Takes the gradients of this rank's rows, hands on those of all ranks' rows: of the shard that this rank holds.
///
/// What a layer hands over is reduced while the layer below is computed. Shards are sums over [`Group::Fsdp`] of one micro batch
/// and are added up; only in the last micro batch of a step the sums of the copies ([`Group::Data`]) come together. Where gradients
/// are collected in main memory that happens in every micro batch, since the device isn't to hold sums of all layers.
pub struct ReducingSink<'a> {
    collective: &'a dyn Collective,
    shard: Shard,
    /// Micro batches that are still to come, the present one included.
    passes: usize,
    /// Sums over the micro batches so far, until those of the other copies are added.
    sums: BTreeMap<Part, Vec<Tensor<2>>>,
    /// On the way to being summed over [`Group::Fsdp`].
    scattering: Option<InFlight>,
    /// On the way to being summed over [`Group::Data`].
    summing: Option<InFlight>,
    collected: Sink,
    /// After an error nothing that is collected is worth anything.
    error: Option<CollectiveError>,
}

/// Gradients of one part of the model that are being reduced.
struct InFlight {
    place: Place,
    /// Shapes of the results.
    dims: Vec<[usize; 2]>,
    pending: Pending,
}

/// Which gradients a list of tensors is.
enum Place {
    Head,
    Layer(usize, LayerParams<()>),
    Embedding,
}

impl<'a> ReducingSink<'a> {
    /// A sink for the `micro_batches` of a step, which hands on to `collected`.
    pub fn new(collective: &'a dyn Collective, collected: Sink, micro_batches: usize) -> Self {
        Self {
            collective,
            shard: shard_of(collective.mesh()),
            passes: micro_batches,
            sums: BTreeMap::new(),
            scattering: None,
            summing: None,
            collected,
            error: None,
        }
    }

    /// What holds the sums of all ranks and micro batches; none before all micro batches have passed.
    ///
    /// # Errors
    /// The first [`CollectiveError`] that there was.
    pub fn finish(self) -> Result<Option<Sink>, CollectiveError> {
        match self.error {
            Some(error) => Err(error),
            None if self.passes > 0 => Ok(None),
            None => Ok(Some(self.collected)),
        }
    }

    fn take(&mut self, place: Place, gradients: Vec<Tensor<2>>) {
        if self.error.is_none() {
            self.error = self.scatter(place, gradients).err();
        }
    }

    /// Reduces gradients to this rank's shard of them.
    fn scatter(&mut self, place: Place, gradients: Vec<Tensor<2>>) -> Result<(), CollectiveError> {
        if self.shard == Shard::WHOLE {
            return self.scattered(place, gradients);
        }
        self.finish_scattering()?;
        let dims = gradients.iter().map(|gradient| self.shard.dims(gradient.dims())).collect();
        let flat = gradients.into_iter().map(|gradient| self.shard.padded(gradient)).collect();
        let pending = self.collective.start(Group::Fsdp, Operation::ReduceScatter, flat)?;
        self.scattering = Some(InFlight { place, dims, pending });
        Ok(())
    }

    fn finish_scattering(&mut self) -> Result<(), CollectiveError> {
        let Some(flight) = self.scattering.take() else { return Ok(()) };
        let (place, shards) = flight.land("reduce_scatter.wait")?;
        self.scattered(place, shards)
    }

    /// Adds what the other copies have, once it's complete here.
    fn scattered(&mut self, place: Place, shards: Vec<Tensor<2>>) -> Result<(), CollectiveError> {
        if self.collective.mesh().size(Group::Data) == 1 {
            place.hand_over(shards, &mut self.collected);
            return Ok(());
        }
        let sums = match self.sums.remove(&place.part()) {
            None => shards,
            Some(sums) => sums.into_iter().zip(shards).map(|(sum, new)| elementwise::add(sum, new)).collect(),
        };
        if self.passes > 1 && matches!(self.collected, Sink::Device(_)) {
            self.sums.insert(place.part(), sums);
            return Ok(());
        }
        self.finish_summing()?;
        let dims = sums.iter().map(|sum| sum.dims()).collect();
        let flat = sums.into_iter().map(|sum| Shard::WHOLE.padded(sum)).collect();
        let pending = self.collective.start(Group::Data, Operation::AllReduce, flat)?;
        self.summing = Some(InFlight { place, dims, pending });
        Ok(())
    }

    fn finish_summing(&mut self) -> Result<(), CollectiveError> {
        let Some(flight) = self.summing.take() else { return Ok(()) };
        let (place, sums) = flight.land("all_reduce.wait")?;
        place.hand_over(sums, &mut self.collected);
        Ok(())
    }

    /// The embedding's gradient ends a micro batch.
    fn finish_pass(&mut self) -> Result<(), CollectiveError> {
        self.finish_scattering()?;
        self.finish_summing()?;
        self.passes -= 1;
        Ok(())
    }
}

impl GradSink for ReducingSink<'_> {
    fn head(&mut self, gradients: HeadGradients) {
        let tensors = [gradients.decoder_norm].into_iter().chain(gradients.logits_dense).collect();
        self.take(Place::Head, tensors);
    }

    fn layer(&mut self, i: usize, gradients: LayerParams<Tensor<2>>) {
        let place = Place::Layer(i, gradients.as_ref().map(|_| ()));
        self.take(place, gradients.into_vec());
    }

    fn embedding(&mut self, gradient: Tensor<2>) {
        self.take(Place::Embedding, vec![gradient]);
        if self.error.is_none() {
            self.error = self.finish_pass().err();
        }
    }
}

impl InFlight {
    /// Waits for the results.
    fn land(self, what: &'static str) -> Result<(Place, Vec<Tensor<2>>), CollectiveError> {
        let _span = span(Kind::Collective, what);
        let flat = self.pending.wait()?;
        Ok((self.place, flat.into_iter().zip(self.dims).map(|(flat, dims)| flat.reshape(dims)).collect()))
    }
}

impl Place {
    fn part(&self) -> Part {
        match self {
            Self::Head => Part::Head,
            Self::Layer(i, _) => Part::Layer(*i),
            Self::Embedding => Part::Embedding,
        }
    }

    fn hand_over(self, tensors: Vec<Tensor<2>>, sink: &mut dyn GradSink) {
        let mut tensors = tensors.into_iter();
        let mut next = || tensors.next().expect("as many tensors come back as went");
        match self {
            Self::Head => sink.head(HeadGradients { decoder_norm: next(), logits_dense: tensors.next() }),
            Self::Layer(i, layer) => sink.layer(i, layer.map(|()| next())),
            Self::Embedding => sink.embedding(next()),
        }
    }
}
