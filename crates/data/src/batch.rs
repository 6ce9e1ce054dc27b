/// One batch of packed rows as MaxText's pipeline builds it.
///
/// Every field is row-major `[batch_size, seq_len]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// Rows in the batch.
    pub batch_size: usize,
    /// Tokens in a row (`max_target_length`).
    pub seq_len: usize,
    /// Token ids that the model reads.
    pub inputs: Vec<i32>,
    /// Document number inside the row, from 1; 0 marks padding.
    pub inputs_segmentation: Vec<i32>,
    /// Position inside the document, from 0.
    pub inputs_position: Vec<i32>,
    /// Token ids to predict.
    pub targets: Vec<i32>,
    /// 0 where a target carries no loss, else the document number.
    pub targets_segmentation: Vec<i32>,
    /// Position of the target inside its document.
    pub targets_position: Vec<i32>,
}
