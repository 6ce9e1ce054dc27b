//! Where the time goes between a file and a document, measured stage by stage on one thread.

use std::time::{Duration, Instant};

use mt_config::Config;

use crate::DataError;
use crate::setup::train_source;
use crate::source::decode;

/// Time of each stage over all training files, each stage measured by itself on one thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Profile {
    /// Reading and inflating, nothing else.
    pub inflate: Duration,
    /// Finding rows in the inflated bytes (the inflating taken off).
    pub split: Duration,
    /// Taking the column out of each row.
    pub parse: Duration,
    /// Text to ids.
    pub tokenize: Duration,
    /// Bytes after inflating.
    pub bytes: u64,
    /// Rows.
    pub rows: u64,
    /// Token ids, BOS and EOS included.
    pub tokens: u64,
}

/// Measures the stages of the configuration's training data. Parquet has no inflating and splitting apart: both are
/// under `split`.
///
/// # Errors
/// As for [`train_batches`](crate::train_batches), and those of the data itself.
pub fn profile(config: &Config) -> Result<Profile, DataError> {
    let (files, tokenize) = train_source(config)?;
    let mut profile = Profile::default();
    for file in 0..files.len() {
        let path = files.fetch(file, &[])?;
        let start = Instant::now();
        profile.bytes += files.inflate(file, &path)?;
        let inflate = start.elapsed();
        profile.inflate += inflate;

        let start = Instant::now();
        let mut reader = files.open(file, &path)?;
        let mut rows = Vec::new();
        while let Some((_, row)) = reader.next_row()? {
            rows.push(row);
        }
        profile.split += start.elapsed().saturating_sub(inflate);
        profile.rows += rows.len() as u64;

        let start = Instant::now();
        for row in &rows {
            std::hint::black_box(decode(row, files.column()).is_ok());
        }
        let parse = start.elapsed();
        profile.parse += parse;

        let start = Instant::now();
        for row in &rows {
            profile.tokens += tokenize.ids(row, files.column()).map_or(0, |ids| ids.len() as u64);
        }
        profile.tokenize += start.elapsed().saturating_sub(parse);
    }
    Ok(profile)
}
