//! Where a pass over the layers takes its weights from, part by part.
//!
//! [`Params`] has them all. A source that holds less, such as shards, fetches a part when it's asked for, or a little earlier,
//! since the scan tells what comes next while it computes. What a source hands out is freed when the scan's step is over.

use std::convert::Infallible;

use burn::tensor::Tensor;

use crate::params::{LayerParams, Params};

/// What of a model is computed with at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The embedding.
    Embedding,
    /// A decoder layer, from 0.
    Layer(usize),
    /// What follows the layers: the final norm and the output head.
    Head,
}

/// The weights of what follows the layers.
#[derive(Debug, Clone)]
pub struct Head {
    /// `[1, E]`.
    pub decoder_norm: Tensor<2>,
    /// The output head.
    pub output: OutputHead,
}

/// An output head's matrix.
#[derive(Debug, Clone)]
pub enum OutputHead {
    /// `logits_dense`, `[E, V]`.
    Dense(Tensor<2>),
    /// The embedding, `[V, E]` (`logits_via_embedding`).
    Tied(Tensor<2>),
}

/// A source of weights, of whole ones in the shapes of [`Params`].
pub trait Weights {
    /// Why a part can't be had.
    type Error;

    /// The embedding, `[V, E]`.
    ///
    /// # Errors
    /// The source's own.
    fn embedding(&self) -> Result<Tensor<2>, Self::Error>;

    /// The parameters of layer `i`.
    ///
    /// # Errors
    /// The source's own.
    fn layer(&self, i: usize) -> Result<LayerParams<Tensor<2>>, Self::Error>;

    /// What follows the layers.
    ///
    /// # Errors
    /// The source's own.
    fn head(&self) -> Result<Head, Self::Error>;

    /// Tells that `next` will be asked for next: a source that fetches may begin now. Computing goes on meanwhile.
    ///
    /// # Errors
    /// The source's own.
    fn prefetch(&self, _next: Part) -> Result<(), Self::Error> {
        Ok(())
    }
}

impl Weights for Params {
    type Error = Infallible;

    fn embedding(&self) -> Result<Tensor<2>, Infallible> {
        Ok(self.embedding.clone())
    }

    fn layer(&self, i: usize) -> Result<LayerParams<Tensor<2>>, Infallible> {
        Ok(self.layers[i].clone())
    }

    fn head(&self) -> Result<Head, Infallible> {
        Ok(self.head_weights())
    }
}

impl Params {
    /// The weights of what follows the layers.
    pub fn head_weights(&self) -> Head {
        let output = match &self.logits_dense {
            Some(kernel) => OutputHead::Dense(kernel.clone()),
            None => OutputHead::Tied(self.embedding.clone()),
        };
        Head { decoder_norm: self.decoder_norm.clone(), output }
    }
}
