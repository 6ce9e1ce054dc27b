//! Batches made ahead of their use.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::spawn;
use crate::{Batch, Batches, DataError, Stats};

/// Batches that wait ready.
const QUEUE: usize = 3;

/// A batch, and the place and the counts right after it.
type Prepared = Result<Option<(Batch, Value, Stats)>, DataError>;

/// Prepares batches on a thread of its own, a few ahead. Its place is that of the last batch that it handed
/// out, not of those that wait.
pub struct Loader {
    source: Source,
    state: Value,
    stats: Stats,
    waited: Duration,
}

/// Who holds the stream.
enum Source {
    /// Nobody has asked for a batch yet.
    Idle(Box<dyn Batches>),
    /// The thread that prepares batches.
    Running { batches: Receiver<Prepared>, thread: JoinHandle<Box<dyn Batches>> },
    /// The thread panicked.
    Lost,
}

impl Loader {
    /// A loader of `batches`; its thread starts with the first batch asked for.
    pub fn new(batches: Box<dyn Batches>) -> Self {
        let (state, stats) = (batches.state(), batches.stats());
        Self { source: Source::Idle(batches), state, stats, waited: Duration::ZERO }
    }

    /// Time spent in [`Batches::next_batch`] so far: what the trainer waited for data.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    fn start(&mut self) -> Result<&Receiver<Prepared>, DataError> {
        if let Source::Idle(_) = &self.source {
            let Source::Idle(batches) = std::mem::replace(&mut self.source, Source::Lost) else {
                return lost();
            };
            self.source = start(batches)?;
        }
        match &self.source {
            Source::Running { batches, .. } => Ok(batches),
            _ => lost(),
        }
    }

    /// Takes the stream back from the thread.
    fn stop(&mut self) -> Result<Box<dyn Batches>, DataError> {
        match std::mem::replace(&mut self.source, Source::Lost) {
            Source::Idle(batches) => Ok(batches),
            Source::Running { batches, thread } => {
                drop(batches); // the thread stops at its next send
                thread.join().or_else(|_| lost())
            }
            Source::Lost => lost(),
        }
    }
}

fn lost<T>() -> Result<T, DataError> {
    Err(DataError::Thread("it has ended after an error".into()))
}

fn start(mut batches: Box<dyn Batches>) -> Result<Source, DataError> {
    let (sender, receiver) = sync_channel(QUEUE);
    let prepare = move || {
        loop {
            let next = batches
                .next_batch()
                .map(|batch| batch.map(|batch| (batch, batches.state(), batches.stats())));
            let last = !matches!(next, Ok(Some(_)));
            if sender.send(next).is_err() || last {
                return batches;
            }
        }
    };
    let thread = spawn("mt-data-load", prepare)?;
    Ok(Source::Running { batches: receiver, thread })
}

impl Batches for Loader {
    fn next_batch(&mut self) -> Result<Option<Batch>, DataError> {
        let start = Instant::now();
        let received = self.start()?.recv();
        self.waited += start.elapsed();
        match received {
            Ok(Ok(Some((batch, state, stats)))) => {
                self.state = state;
                self.stats = stats;
                Ok(Some(batch))
            }
            Ok(Ok(None)) => {
                // Asked again, the stream says again that it has ended.
                let batches = self.stop()?;
                self.source = Source::Idle(batches);
                Ok(None)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => lost(),
        }
    }

    fn state(&self) -> Value {
        self.state.clone()
    }

    fn restore(&mut self, state: &Value) -> Result<(), DataError> {
        let mut batches = self.stop()?;
        let restored = batches.restore(state);
        self.state = batches.state();
        self.stats = batches.stats();
        self.source = Source::Idle(batches);
        restored
    }

    fn stats(&self) -> Stats {
        self.stats
    }
}
