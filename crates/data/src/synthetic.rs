//! `dataset_type: synthetic`: one fixed random batch, again and again.

use serde_json::{Value, json};

use crate::rng::NumpyRng;
use crate::{Batch, Batches, DataError, Stats};

/// MaxText's synthetic data: the same batch for ever, for measuring speed.
///
/// Tokens are uniform over the vocabulary. MaxText draws them with JAX's generator and we with NumPy's, so the
/// numbers differ.
pub(crate) struct Synthetic {
    batch: Batch,
    batches: u64,
}

impl Synthetic {
    /// `max_segments` of 2 or more cuts each row into 2 to that many segments, as MaxText does with packing on.
    pub(crate) fn new(
        batch_size: usize,
        seq_len: usize,
        vocab_size: usize,
        max_segments: Option<usize>,
    ) -> Self {
        let mut rng = NumpyRng::new(&[0, 0]);
        let mut batch = Batch { batch_size, seq_len, ..Batch::default() };
        for _ in 0..batch_size {
            let tokens: Vec<i32> = (0..=seq_len).map(|_| rng.up_to(vocab_size as u64 - 1) as i32).collect();
            batch.inputs.extend(&tokens[..seq_len]);
            batch.targets.extend(&tokens[1..]);
            let segments = segments(seq_len, max_segments.unwrap_or(1), &mut rng);
            batch.inputs_segmentation.extend(&segments);
            batch.targets_segmentation.extend(&segments);
            batch.inputs_position.extend(0..seq_len as i32);
            batch.targets_position.extend(1..=seq_len as i32);
        }
        Self { batch, batches: 0 }
    }
}

/// Segment ids of a row cut at random places.
fn segments(seq_len: usize, max_segments: usize, rng: &mut NumpyRng) -> Vec<i32> {
    let most = max_segments.min(seq_len);
    if most < 2 {
        return vec![1; seq_len];
    }
    let count = 2 + rng.up_to(most as u64 - 2) as usize;
    let mut starts = vec![false; seq_len];
    for place in rng.permutation(seq_len - 1).into_iter().take(count - 1) {
        starts[place + 1] = true;
    }
    let mut segment = 1;
    starts
        .into_iter()
        .map(|starts| {
            segment += i32::from(starts);
            segment
        })
        .collect()
}

impl Batches for Synthetic {
    fn next_batch(&mut self) -> Result<Option<Batch>, DataError> {
        self.batches += 1;
        Ok(Some(self.batch.clone()))
    }

    fn state(&self) -> Value {
        json!({ "batches": self.batches })
    }

    fn restore(&mut self, state: &Value) -> Result<(), DataError> {
        self.batches = state["batches"]
            .as_u64()
            .ok_or_else(|| DataError::State("not a place in synthetic data: no number of batches".into()))?;
        Ok(())
    }

    fn stats(&self) -> Stats {
        let tokens = self.batches * (self.batch.batch_size * self.batch.seq_len) as u64;
        Stats { batches: self.batches, tokens, ..Stats::default() }
    }
}
