//! One batch on the device, checked: the shape in which the model reads tokens.

use burn::tensor::{Device, Int, Tensor, TensorData};
use mt_config::ModelConfig;
use thiserror::Error;

use crate::ops::attention;
use crate::random::Stream;

/// Added to the number of loss positions before dividing by it, as MaxText does: a batch without any has loss 0.
pub const EPSILON: f64 = 1e-8;

/// Packed rows on the host, every slice row-major `[batch_size, seq_len]`.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the names are MaxText's batch keys")]
pub struct Rows<'a> {
    pub batch_size: usize,
    pub seq_len: usize,
    pub inputs: &'a [i32],
    pub inputs_segmentation: &'a [i32],
    pub inputs_position: &'a [i32],
    pub targets: &'a [i32],
    pub targets_segmentation: &'a [i32],
}

/// A batch that the model can't read.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum BatchError {
    /// A slice isn't `batch_size * seq_len` long.
    #[error("`{field}` has {found} elements, expected {batch_size} rows of {seq_len}")]
    Length {
        /// Name of the slice.
        field: &'static str,
        /// Its length.
        found: usize,
        /// Rows in the batch.
        batch_size: usize,
        /// Tokens in a row.
        seq_len: usize,
    },
    /// A token that counts isn't in the vocabulary.
    #[error("`{field}` holds token {token} in row {row} at column {column}; vocab_size is {vocab_size}")]
    Token {
        /// Name of the slice.
        field: &'static str,
        /// The token id.
        token: i32,
        /// Row of the batch.
        row: usize,
        /// Column in the row.
        column: usize,
        /// Tokens that there are.
        vocab_size: usize,
    },
    /// A position beyond the longest row that the model was configured for.
    #[error("position {position} in row {row} at column {column} is outside 0..{limit} (max_target_length)")]
    Position {
        /// The position.
        position: i32,
        /// Row of the batch.
        row: usize,
        /// Column in the row.
        column: usize,
        /// `max_target_length`.
        limit: usize,
    },
}

impl Rows<'_> {
    /// Whether the model can read them.
    ///
    /// # Errors
    /// [`BatchError`]: what it can't.
    pub fn check(&self, config: &ModelConfig) -> Result<(), BatchError> {
        self.checked_ids(config).map(drop)
    }

    /// Token ids to read and to predict, of rows that the model can read.
    fn checked_ids(&self, config: &ModelConfig) -> Result<(Vec<i32>, Vec<i32>), BatchError> {
        let tokens = self.batch_size * self.seq_len;
        for (field, slice) in [
            ("inputs", self.inputs),
            ("inputs_segmentation", self.inputs_segmentation),
            ("inputs_position", self.inputs_position),
            ("targets", self.targets),
            ("targets_segmentation", self.targets_segmentation),
        ] {
            if slice.len() != tokens {
                let (batch_size, seq_len) = (self.batch_size, self.seq_len);
                return Err(BatchError::Length { field, found: slice.len(), batch_size, seq_len });
            }
        }
        let limit = config.max_target_length;
        if let Some((i, &position)) =
            find(self.inputs_position, |&position| !(0..limit as i64).contains(&i64::from(position)))
        {
            return Err(BatchError::Position {
                position,
                row: i / self.seq_len,
                column: i % self.seq_len,
                limit,
            });
        }
        let vocab_size = config.vocab_size;
        let inputs = checked_ids("inputs", self.inputs, self.inputs_segmentation, self.seq_len, vocab_size)?;
        let targets =
            checked_ids("targets", self.targets, self.targets_segmentation, self.seq_len, vocab_size)?;
        Ok((inputs, targets))
    }
}

/// A batch on the device. `tokens` below is `batch_size * seq_len`.
#[derive(Debug, Clone)]
pub struct BatchTensors {
    /// Rows.
    pub batch_size: usize,
    /// Tokens in a row.
    pub seq_len: usize,
    /// Token ids to read, `[tokens]`.
    pub inputs: Tensor<1, Int>,
    /// Token ids to predict, `[tokens]`.
    pub targets: Tensor<1, Int>,
    /// 1 where the target counts, else 0, `[tokens]` float32.
    pub weights: Tensor<1>,
    /// Position of every input in its document, `[tokens]`.
    pub positions: Tensor<1, Int>,
    /// Which token sees which.
    pub layout: attention::Layout,
    /// Number of targets that count.
    pub total_weights: f64,
    /// Dropout of this step, none outside of training.
    pub dropout: Option<Dropout>,
}

impl BatchTensors {
    /// Checks `rows` against the model and copies them to `device`. Token ids that nothing depends on (padding, and targets
    /// without weight) may be anything, as tokenizers without a padding token write -1.
    pub fn new(rows: &Rows<'_>, config: &ModelConfig, device: &Device) -> Result<Self, BatchError> {
        let (inputs, targets) = rows.checked_ids(config)?;
        let tokens = rows.batch_size * rows.seq_len;
        let weights: Vec<f32> =
            rows.targets_segmentation.iter().map(|&segment| f32::from(segment != 0)).collect();

        Ok(Self {
            batch_size: rows.batch_size,
            seq_len: rows.seq_len,
            inputs: Tensor::from_data(TensorData::new(inputs, [tokens]), device),
            targets: Tensor::from_data(TensorData::new(targets, [tokens]), device),
            total_weights: weights.iter().map(|&weight| f64::from(weight)).sum(),
            weights: Tensor::from_data(TensorData::new(weights, [tokens]), device),
            positions: Tensor::from_data(TensorData::new(rows.inputs_position.to_vec(), [tokens]), device),
            layout: attention::Layout::new(
                rows.inputs_segmentation,
                rows.inputs_position,
                rows.batch_size,
                rows.seq_len,
            ),
            dropout: None,
        })
    }

    /// The same batch with dropout at `rate`, its masks drawn from `seed`; give every step a seed of its own.
    pub fn with_dropout(self, rate: f64, seed: u64) -> Self {
        self.with_dropout_from_row(0, rate, seed)
    }

    /// As [`with_dropout`](Self::with_dropout), for a batch that is part of a larger one, from its row `first_row` on: the masks
    /// are those that these rows have there.
    pub fn with_dropout_from_row(mut self, first_row: usize, rate: f64, seed: u64) -> Self {
        self.dropout = (rate > 0.0).then_some(Dropout { rate, seed, first_row, batch_size: self.batch_size });
        self
    }

    /// What sums over this batch are multiplied with to become means.
    pub fn mean_factor(&self) -> f64 {
        1.0 / (self.total_weights + EPSILON)
    }
}

/// `ids` with 0 in place of what lies outside of the vocabulary where `segments` is 0.
fn checked_ids(
    field: &'static str,
    ids: &[i32],
    segments: &[i32],
    seq_len: usize,
    vocab_size: usize,
) -> Result<Vec<i32>, BatchError> {
    let known = |id: i32| usize::try_from(id).is_ok_and(|id| id < vocab_size);
    let checked = |(i, (&token, &segment)): (usize, (&i32, &i32))| match (known(token), segment) {
        (true, _) => Ok(token),
        (false, 0) => Ok(0),
        (false, _) => {
            Err(BatchError::Token { field, token, row: i / seq_len, column: i % seq_len, vocab_size })
        }
    };
    ids.iter().zip(segments).enumerate().map(checked).collect()
}

fn find<T>(slice: &[T], is_wanted: impl Fn(&T) -> bool) -> Option<(usize, &T)> {
    slice.iter().enumerate().find(|(_, item)| is_wanted(item))
}

/// Dropout of one step. As in MaxText a mask is drawn per row and feature and shared by all positions of the row.
#[derive(Debug, Clone, PartialEq)]
pub struct Dropout {
    /// Share of features set to 0.
    rate: f64,
    seed: u64,
    /// Number of the batch's first row, by which masks are drawn.
    first_row: usize,
    batch_size: usize,
}

impl Dropout {
    /// Sets features to 0 and scales the others up. The mask is a function of the step's seed and `site` alone, so it's the
    /// same in the backward pass, where this is its own transpose. `x` is `[tokens, features]`.
    pub(crate) fn apply(&self, x: Tensor<2>, site: &str) -> Tensor<2> {
        let [tokens, features] = x.dims();
        let stream = Stream::new(self.seed, site);
        let scale = (1.0 / (1.0 - self.rate)) as f32;
        let mask = |i: usize| if stream.uniform_pair(i as u64, 0)[0] <= self.rate { 0.0 } else { scale };
        let first = self.first_row * features;
        let mask: Vec<f32> = (first..first + self.batch_size * features).map(mask).collect();

        let mask = TensorData::new(mask, [self.batch_size, 1, features]);
        let mask = Tensor::<3>::from_data(mask, (&x.device(), x.dtype()));
        let rows = x.reshape([self.batch_size, tokens / self.batch_size, features]);
        (rows * mask).reshape([tokens, features])
    }
}
