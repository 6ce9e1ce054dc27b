//! From a batch on the host to the loss and its gradients, over as many micro batches and ranks as the configuration asks for.

use mt_data::Batch;
use mt_model::batch::{BatchError, EPSILON, Rows};
use mt_model::{BatchTensors, LossOutput, Model, Params};

use crate::collective::{Collective, CollectiveError, Group};
use crate::optim::{OffloadError, Sink};
use crate::shard::{Gathered, ReducingSink};

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
    pub fn add(&mut self, other: &Self) {
        self.xent += other.xent;
        self.z_loss += other.z_loss;
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

impl From<LossOutput> for LossSums {
    fn from(output: LossOutput) -> Self {
        let LossOutput { xent_sum, z_loss_sum, total_weights, .. } = output;
        Self { xent: xent_sum, z_loss: z_loss_sum, total_weights }
    }
}

/// How a global batch is cut: `count` micro batches, in each of them `rows` rows of every rank, in the order of the ranks. Rows
/// beyond are loaded and not trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroBatches {
    /// `gradient_accumulation_steps`.
    pub count: usize,
    /// Rows of one forward and backward pass of one rank.
    pub rows: usize,
}

/// Why there is no loss.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The batch holds tokens or positions that the model doesn't know.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// Ranks can't go on together.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// Gradients didn't reach main memory.
    #[error(transparent)]
    Offload(#[from] OffloadError),
}

/// The sums of the loss over this rank's rows of `batch`, the global batch, and the gradients of the mean over all ranks' rows, in
/// float32: of what this rank holds of the parameters.
///
/// Gradients of sums are added over the micro batches and ranks, divided by the weights of the global batch, so that they are
/// those of one big batch, however its targets are spread. `sink` collects them. Dropout is that of the same micro batches on one
/// rank.
///
/// # Errors
/// [`StepError`]; what is wrong with the batch is found on all ranks alike.
pub fn loss_and_gradients(
    model: &Model,
    batch: &Batch,
    micro: MicroBatches,
    dropout_seed: u64,
    sink: Sink,
    collective: &dyn Collective,
) -> Result<(LossSums, Params), StepError> {
    let mesh = collective.mesh();
    let micro_rows = micro.rows * mesh.size(Group::World);
    if mesh.size(Group::World) > 1 {
        rows(batch, 0, micro.count * micro_rows).check(model.config())?;
    }
    let factor = 1.0 / (total_weights(batch, micro.count * micro_rows) + EPSILON);
    let first_row = mesh.rank * micro.rows;
    let weights = Gathered::new(model, collective);
    let mut sink = ReducingSink::new(collective, sink, micro.count);
    let mut sums = LossSums::default();
    for i in 0..micro.count {
        let rows = rows(batch, i * micro_rows + first_row, micro.rows);
        let seed = dropout_seed.wrapping_add(i as u64);
        let tensors = BatchTensors::new(&rows, model.config(), &model.device())?.with_dropout_from_row(
            first_row,
            model.config().dropout_rate,
            seed,
        );
        sums.add(&model.loss_and_gradients_of(&weights, &tensors, factor, &mut sink)?.into());
    }
    let gradients = sink.finish()?.map(Sink::into_params).transpose()?.flatten();
    Ok((sums, gradients.expect("there is at least one micro batch, and each gives every gradient")))
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
