//! From a batch on the host to the loss and its gradients, over as many micro batches as the configuration asks for.

use mt_data::Batch;
use mt_model::batch::{BatchError, EPSILON, Rows};
use mt_model::{BatchTensors, LossOutput, Model, Params};

use crate::optim::{OffloadError, Sink};

/// Why a batch gave no gradients.
#[derive(Debug, thiserror::Error)]
pub enum GradientsError {
    /// It holds tokens or positions that the model doesn't know.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// They didn't reach main memory.
    #[error(transparent)]
    Offload(#[from] OffloadError),
}

/// Sums of the loss over a global batch (or over all batches of an evaluation).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LossSums {
    /// Cross-entropies, z-loss included, in nats.
    pub xent: f64,
    /// The z-loss part.
    pub z_loss: f64,
    /// Targets that carry loss.
    pub total_weights: f64,
}

impl LossSums {
    /// Adds the sums of another batch.
    pub fn add(&mut self, other: &LossOutput) {
        self.xent += other.xent_sum;
        self.z_loss += other.z_loss_sum;
        self.total_weights += other.total_weights;
    }

    /// Loss per weight: what MaxText prints and minimises.
    pub fn loss(&self) -> f64 {
        self.xent / (self.total_weights + EPSILON)
    }

    /// z-loss per weight.
    pub fn mean_z_loss(&self) -> f64 {
        self.z_loss / (self.total_weights + EPSILON)
    }
}

/// How a global batch is cut: `count` micro batches of `rows` rows. Rows beyond are loaded and not trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroBatches {
    /// `gradient_accumulation_steps`.
    pub count: usize,
    /// Rows of one forward and backward pass.
    pub rows: usize,
}

/// The loss of `batch`, and the gradients of its mean in float32.
///
/// Gradients of sums are added over the micro batches and divided by the weights of the global batch, so that they are those
/// of one big batch, however its targets are spread. `sink` collects them.
///
/// # Errors
/// [`GradientsError`]: what is wrong with the batch, or where gradients got lost.
pub fn loss_and_gradients(
    model: &Model,
    batch: &Batch,
    micro: MicroBatches,
    dropout_seed: u64,
    mut sink: Sink,
) -> Result<(LossSums, Params), GradientsError> {
    let factor = 1.0 / (total_weights(batch, micro.count * micro.rows) + EPSILON);
    let mut sums = LossSums::default();
    for i in 0..micro.count {
        let rows = rows(batch, i * micro.rows, micro.rows);
        let tensors = BatchTensors::new(&rows, model.config(), &model.device())?
            .with_dropout(model.config().dropout_rate, dropout_seed.wrapping_add(i as u64));
        sums.add(&model.loss_and_gradients(&tensors, factor, &mut sink));
    }
    Ok((sums, sink.into_params()?.expect("there is at least one micro batch, and each gives every gradient")))
}

/// Targets that carry loss in the first `rows` rows.
fn total_weights(batch: &Batch, rows: usize) -> f64 {
    batch.targets_segmentation[..rows * batch.seq_len].iter().filter(|&&segment| segment != 0).count() as f64
}

/// `count` rows from `first` on, as the model reads them.
pub fn rows(batch: &Batch, first: usize, count: usize) -> Rows<'_> {
    let range = first * batch.seq_len..(first + count) * batch.seq_len;
    Rows {
        batch_size: count,
        seq_len: batch.seq_len,
        inputs: &batch.inputs[range.clone()],
        inputs_segmentation: &batch.inputs_segmentation[range.clone()],
        inputs_position: &batch.inputs_position[range.clone()],
        targets: &batch.targets[range.clone()],
        targets_segmentation: &batch.targets_segmentation[range],
    }
}
