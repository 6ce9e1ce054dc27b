//! Where a run speaks: the stderr sink, the file sink, and the progress bar that shares the terminal with them.
//!
//! `sink_level`, `stderr_sink_level` and `file_sink_level` are Primus's keys: the first, when set, overrides the
//! other two. Lines have the shape that MaxText's absl logging gives them, so that tools which cut the prefix
//! off at `] ` keep working.

mod format;
mod late;
pub mod lines;
mod progress;
mod table;

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use mt_config::{Config, LogLevel};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;

pub use progress::Progress;
pub use table::table;

use crate::collective::rank_among_others;
use format::{Glog, glog_with_date};
use late::LateFile;
use progress::Terminal;

/// Name of the log file in the run folder.
pub const LOG_FILE: &str = "train.log";

/// A log file that can't be opened.
#[derive(Debug, thiserror::Error)]
#[error("can't open the log file {path}: {source}")]
pub struct LogFileError {
    path: PathBuf,
    source: io::Error,
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Trace => LevelFilter::TRACE,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warning => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
    }
}

/// Installs both sinks for this process; the file is appended to, since a resumed run goes on in the same folder.
///
/// Rank 0 speaks for all. Of the others only errors reach stderr, with the rank named, and only warnings and errors a file,
/// `train-rank3.log`, which isn't there until there is one.
///
/// # Errors
/// [`LogFileError`] when the file can't be opened for appending.
pub fn init(config: &Config, folder: &Path) -> Result<(), LogFileError> {
    if let Some(rank) = rank_among_others().filter(|&rank| rank > 0) {
        init_silent(folder, rank);
        return Ok(());
    }
    let path = folder.join(LOG_FILE);
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(|source| LogFileError { path, source })?;

    let stderr = fmt::layer()
        .event_format(Glog::default())
        .with_writer(|| Terminal)
        .with_ansi(false)
        .with_filter(filter(config.stderr_log_level()));
    let file = fmt::layer()
        .event_format(glog_with_date())
        .with_writer(Mutex::new(file))
        .with_ansi(false)
        .with_filter(filter(config.file_log_level()));

    // A second call in one process (only tests do that) keeps the first subscriber.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(stderr).with(file));
    Ok(())
}

/// The sinks of a rank that others speak for.
fn init_silent(folder: &Path, rank: usize) {
    let stderr = fmt::layer()
        .event_format(Glog::of_rank(rank))
        .with_writer(|| Terminal)
        .with_ansi(false)
        .with_filter(LevelFilter::ERROR);
    let file = fmt::layer()
        .event_format(glog_with_date())
        .with_writer(Mutex::new(LateFile::new(folder.join(format!("train-rank{rank}.log")))))
        .with_ansi(false)
        .with_filter(LevelFilter::WARN);
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(stderr).with(file));
}
