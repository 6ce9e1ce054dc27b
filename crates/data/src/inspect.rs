//! Packed rows as text, for people (`--inspect-data N`).

use std::fmt::Write;
use std::sync::Arc;

use mt_config::{Config, DatasetType};

use crate::setup::load_tokenizer;
use crate::{Batch, Batches, DataError, Stats, Tokenizer, train_batches};

/// The first `rows` training rows as text: where documents begin, their token counts, how many targets
/// carry loss, and how well the rows are filled.
///
/// # Errors
/// As for [`train_batches`], and those of the data itself.
pub fn inspect(config: &Config, rows: usize) -> Result<String, DataError> {
    let tokenizer = match config.dataset_type {
        DatasetType::Synthetic => None, // random ids mean nothing
        _ => Some(load_tokenizer(config)?),
    };
    let mut batches = train_batches(config)?;
    let mut text = String::new();
    let mut shown = 0;
    while shown < rows {
        let Some(batch) = batches.next_batch()? else {
            let _ = writeln!(text, "The data ends here.");
            break;
        };
        for row in 0..batch.batch_size.min(rows - shown) {
            shown += 1;
            write_row(&mut text, shown, &batch, row, tokenizer.as_ref());
        }
    }
    write_summary(&mut text, &batches.stats());
    Ok(text)
}

/// A run of one document in a row.
struct Segment<'a> {
    start: usize,
    ids: &'a [i32],
}

/// The documents of a row, without its padding.
fn segments<'a>(segmentation: &[i32], ids: &'a [i32]) -> Vec<(i32, Segment<'a>)> {
    let mut found = Vec::new();
    let mut start = 0;
    for run in segmentation.chunk_by(|a, b| a == b) {
        if run[0] != 0 {
            found.push((run[0], Segment { start, ids: &ids[start..start + run.len()] }));
        }
        start += run.len();
    }
    found
}

// Writing to a String can't fail, so the results of `write!` are dropped.
fn write_row(
    text: &mut String,
    number: usize,
    batch: &Batch,
    row: usize,
    tokenizer: Option<&Arc<dyn Tokenizer>>,
) {
    let range = row * batch.seq_len..(row + 1) * batch.seq_len;
    let segments = segments(&batch.inputs_segmentation[range.clone()], &batch.inputs[range.clone()]);
    let tokens: usize = segments.iter().map(|(_, segment)| segment.ids.len()).sum();
    let targets = batch.targets_segmentation[range].iter().filter(|&&segment| segment != 0).count();
    let filled = 100.0 * tokens as f64 / batch.seq_len as f64;
    let _ = writeln!(
        text,
        "== row {number}: {} documents, {tokens} of {} tokens ({filled:.1} %), {targets} targets",
        segments.len(),
        batch.seq_len
    );
    for (segment, Segment { start, ids }) in segments {
        let _ = writeln!(text, "-- segment {segment}: {} tokens at {start}", ids.len());
        match tokenizer {
            Some(tokenizer) => {
                let ids: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
                let _ = writeln!(text, "{}", tokenizer.decode(&ids));
            }
            None => {
                let _ = writeln!(text, "{ids:?}");
            }
        }
    }
    if tokens < batch.seq_len {
        let _ = writeln!(text, "-- padding: {} tokens", batch.seq_len - tokens);
    }
}

fn write_summary(text: &mut String, stats: &Stats) {
    let _ = writeln!(
        text,
        "== {} batches packed: {} documents, {} tokens; {:.2} % padding, {} tokens cut off ({:.2} %), {} bad rows skipped",
        stats.batches,
        stats.documents,
        stats.tokens,
        100.0 * stats.padding_share(),
        stats.dropped_tokens,
        100.0 * stats.dropped_share(),
        stats.skipped_rows
    );
}
