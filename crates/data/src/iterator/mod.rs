//! Batches with a place that can be saved: rows are read on one thread, tokenized on many, packed in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::document::{Document, Tokenize};
use crate::error::spawn;
use crate::order::{Cursor, Order, Window, Windows};
use crate::pack::{Packer, Rows, Shift};
use crate::source::Files;
use crate::{Batch, DataError, Stats};

/// A stream of batches whose place can be saved and restored.
pub trait Batches: Send {
    /// The next batch; `None` when the data has ended.
    ///
    /// # Errors
    /// A row, a file or a shard that can't be read; the stream can't go on then.
    fn next_batch(&mut self) -> Result<Option<Batch>, DataError>;

    /// The place right after the last batch: small, and enough to go on in another process.
    fn state(&self) -> Value;

    /// Goes on from a saved place.
    ///
    /// # Errors
    /// [`DataError::State`] when the place belongs to other data.
    fn restore(&mut self, state: &Value) -> Result<(), DataError>;

    /// Counts up to the last batch.
    fn stats(&self) -> Stats;
}

/// What the data ends with (`generate_padding_batch_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// No more batches.
    Stop,
    /// Batches of padding for ever.
    Padding,
}

/// Everything that a stream of packed documents is made of.
pub(crate) struct Recipe {
    pub(crate) files: Arc<Files>,
    pub(crate) order: Order,
    pub(crate) tokenize: Tokenize,
    pub(crate) shift: Shift,
    pub(crate) batch_size: usize,
    pub(crate) seq_len: usize,
    /// `false` where the packer splits documents itself.
    pub(crate) whole_documents: bool,
    pub(crate) end: End,
    /// Count bad rows and go on (`skip_bad_rows`).
    pub(crate) skip_bad_rows: bool,
    /// Threads that tokenize; `None` is one per core.
    pub(crate) threads: Option<usize>,
}

/// A place between two documents, or inside one. It names rows and holds no data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Position {
    /// Place before the window.
    window: Cursor,
    /// Documents of the window used up.
    documents: usize,
    /// Tokens of the next document used up.
    tokens: usize,
}

/// What is saved: the place, the counts, and what they belong to. Older places also name a part of the data, which was all of it.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    position: Position,
    stats: Stats,
    files: String,
    shuffle: bool,
    seed: u64,
    window: usize,
}

/// What the reading thread says: a window, the end, or why it can't go on.
type Read = Result<Option<Window>, DataError>;

/// Batches of packed documents.
pub(crate) struct PackedBatches {
    recipe: Recipe,
    packer: Box<dyn Packer>,
    /// Tells the files apart from others.
    fingerprint: String,
    pool: rayon::ThreadPool,
    /// Windows from the reader thread, which starts with the first batch.
    windows: Option<Receiver<Read>>,
    /// Documents of the open window that are still to be packed.
    documents: VecDeque<Result<Document, DataError>>,
    /// Place of the first of them, or of what comes next.
    position: Position,
    stats: Stats,
    ended: bool,
}

impl PackedBatches {
    pub(crate) fn new(recipe: Recipe, packer: Box<dyn Packer>) -> Result<Self, DataError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(recipe.threads.unwrap_or(0))
            .thread_name(|i| format!("mt-data-{i}"))
            .build()
            .map_err(|error| DataError::Thread(format!("can't start the tokenizing threads ({error})")))?;
        Ok(Self {
            fingerprint: recipe.files.fingerprint(),
            recipe,
            packer,
            pool,
            windows: None,
            documents: VecDeque::new(),
            position: Position::default(),
            stats: Stats::default(),
            ended: false,
        })
    }

    /// Makes the next window's documents ready; `false` at the end of the data.
    fn open_window(&mut self) -> Result<bool, DataError> {
        if self.ended {
            return Ok(false);
        }
        let windows = match &self.windows {
            Some(windows) => windows,
            None => self.windows.insert(read_ahead(&self.recipe, self.position.window)?),
        };
        let Ok(window) = windows.recv() else {
            return Err(DataError::Thread("reading has ended after an error".into()));
        };
        let Some(Window { start, rows }) = window? else { return Ok(false) };
        let (tokenize, files) = (&self.recipe.tokenize, &self.recipe.files);
        self.documents = self.pool.install(|| tokenize.documents(files, rows)).into();
        if self.position.window == start {
            // Restored: what has been used before is passed over.
            self.documents.drain(..self.position.documents.min(self.documents.len()));
        } else {
            self.log_epoch(start.epoch);
            self.position = Position { window: start, documents: 0, tokens: 0 };
        }
        Ok(true)
    }

    fn log_epoch(&mut self, epoch: u64) {
        if epoch > self.position.window.epoch {
            tracing::info!(epoch, epochs = self.recipe.order.epochs, "the data starts over");
        }
        self.stats.epoch = epoch;
    }

    /// Packs documents until a batch is complete; `None` when the data ends first.
    fn pack(&mut self) -> Result<Option<Rows>, DataError> {
        loop {
            let Some(document) = self.documents.front_mut() else {
                if self.open_window()? {
                    continue;
                }
                return Ok(None);
            };
            let document = match document {
                Ok(document) => &*document,
                Err(error) if self.recipe.skip_bad_rows => {
                    tracing::warn!("skipped a bad row: {error}");
                    self.stats.skipped_rows += 1;
                    self.next_document();
                    continue;
                }
                // The stream can't go on: what is left of it is the error.
                Err(_) => match self.documents.pop_front() {
                    Some(Err(error)) => return Err(error),
                    _ => continue,
                },
            };
            let rest = &document.ids[self.position.tokens.min(document.ids.len())..];
            let longest = if self.recipe.whole_documents { self.recipe.seq_len } else { rest.len() };
            let piece = &rest[..rest.len().min(longest)];
            let taken = if piece.is_empty() { 0 } else { self.packer.push(piece) };
            if taken < piece.len() {
                self.position.tokens += taken;
                return Ok(Some(self.packer.take(self.stats.batches)));
            }
            self.position.tokens += taken;
            if taken == rest.len() {
                self.stats.documents += 1;
                self.stats.dropped_tokens += document.dropped as u64;
                self.next_document();
            }
        }
    }

    fn next_document(&mut self) {
        self.documents.pop_front();
        self.position = Position { documents: self.position.documents + 1, tokens: 0, ..self.position };
    }

    fn finish(&mut self) -> Option<Rows> {
        if !self.ended {
            self.ended = true;
            let Stats { batches, documents, .. } = self.stats;
            let then = match self.recipe.end {
                End::Stop => "no more batches come",
                End::Padding => "batches of padding follow",
            };
            tracing::info!(
                epochs = self.recipe.order.epochs,
                batches,
                documents,
                "the data has ended: {then}"
            );
        }
        (!self.packer.is_empty()).then(|| self.packer.take(self.stats.batches))
    }
}

impl Batches for PackedBatches {
    fn next_batch(&mut self) -> Result<Option<Batch>, DataError> {
        let rows = match self.pack()? {
            Some(rows) => rows,
            None => match (self.finish(), self.recipe.end) {
                (Some(rows), _) => rows,
                (None, End::Stop) => return Ok(None),
                (None, End::Padding) => Rows::new(self.recipe.batch_size, self.recipe.seq_len),
            },
        };
        let places = self.recipe.batch_size * self.recipe.seq_len;
        self.stats.batches += 1;
        self.stats.tokens += rows.token_count() as u64;
        self.stats.padding += (places - rows.token_count()) as u64;
        let padding = rows.is_empty();
        let mut batch = rows.into_batch(&self.recipe.shift);
        if padding {
            batch.targets.fill(0); // MaxText's padding batch is 0 everywhere
        }
        Ok(Some(batch))
    }

    fn state(&self) -> Value {
        let Order { shuffle, seed, window, .. } = self.recipe.order;
        let files = self.fingerprint.clone();
        let saved = Saved { position: self.position, stats: self.stats, files, shuffle, seed, window };
        serde_json::to_value(saved).expect("numbers always serialize")
    }

    fn restore(&mut self, state: &Value) -> Result<(), DataError> {
        let saved: Saved = serde_json::from_value(state.clone())
            .map_err(|error| DataError::State(format!("not a place in packed data: {error}")))?;
        let Order { shuffle, seed, window, .. } = self.recipe.order;
        check("files", &saved.files, &self.fingerprint)?;
        check("enable_data_shuffling", saved.shuffle, shuffle)?;
        check("rows in a shuffle window", saved.window, window)?;
        if shuffle {
            check("data_shuffle_seed", saved.seed, seed)?;
        }
        self.windows = None;
        self.documents.clear();
        self.packer.take(0);
        self.position = saved.position;
        self.stats = saved.stats;
        self.ended = false;
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.stats
    }
}

/// Refuses a saved place that belongs to other data.
fn check<T: PartialEq + std::fmt::Display>(what: &str, saved: T, now: T) -> Result<(), DataError> {
    if saved == now {
        return Ok(());
    }
    Err(DataError::State(format!("{what} was {saved} when it was saved and is {now} now")))
}

/// Starts a thread that reads windows from `start` on, one ahead of its use.
fn read_ahead(recipe: &Recipe, start: Cursor) -> Result<Receiver<Read>, DataError> {
    let mut windows = Windows::new(Arc::clone(&recipe.files), recipe.order.clone(), start);
    let (sender, receiver) = sync_channel(1);
    let read = move || {
        // Ends with the data, with an error, or when nobody listens any more.
        loop {
            let window = windows.next_window();
            let last = !matches!(window, Ok(Some(_)));
            if sender.send(window).is_err() || last {
                return;
            }
        }
    };
    spawn("mt-data-read", read)?;
    Ok(receiver)
}

#[cfg(test)]
mod tests;
