//! In which order rows are read: epochs and the seeded window.
//!
//! The order depends on the settings and the files alone. A place in it is a [`Cursor`]; a row that has been
//! shuffled is named by its window's cursor and its number in the window, so that a place never holds data.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::DataError;
use crate::rng::NumpyRng;
use crate::source::{Files, RawRow, RowReader};

/// A window closes at this many bytes even when it has room for more rows: bounds memory on long documents.
const WINDOW_BYTES: usize = 16 << 20;

/// Files that are fetched while one is read.
const UPCOMING: usize = 2;

/// How rows are ordered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Order {
    /// Shuffle the files of each epoch and the rows of each window (`enable_data_shuffling`).
    pub(crate) shuffle: bool,
    /// `data_shuffle_seed`.
    pub(crate) seed: u64,
    /// Rows in a window.
    pub(crate) window: usize,
    /// Passes over the data (`num_epoch`).
    pub(crate) epochs: u64,
}

impl Order {
    /// The files of `epoch`, in the order in which they're read.
    fn files(&self, epoch: u64, files: usize) -> Vec<usize> {
        if self.shuffle {
            NumpyRng::new(&[self.seed.wrapping_add(epoch)]).permutation(files)
        } else {
            (0..files).collect()
        }
    }
}

/// A place between two rows of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// Pass over the data, from 0.
    pub(crate) epoch: u64,
    /// Place in this epoch's order of the files.
    pub(crate) file: usize,
    /// Rows of that file before this place.
    pub(crate) row: u64,
}

/// A row and where it lies.
#[derive(Debug)]
pub(crate) struct Row {
    /// Index into [`Files`].
    pub(crate) file: usize,
    /// Number of the row in its file, from 1.
    pub(crate) number: u64,
    pub(crate) raw: RawRow,
}

/// Rows that are read, shuffled and tokenized together.
#[derive(Debug)]
pub(crate) struct Window {
    /// Place before the first row that was read for it.
    pub(crate) start: Cursor,
    /// Rows in the order in which they are used.
    pub(crate) rows: Vec<Row>,
}

/// Reads windows of rows from a place on.
pub(crate) struct Windows {
    files: Arc<Files>,
    order: Order,
    cursor: Cursor,
    /// The files of the epoch, in order.
    order_of_files: Vec<usize>,
    reader: Option<Box<dyn RowReader>>,
    /// Rows found since the start of the epoch; `None` when this reader didn't start there.
    found: Option<u64>,
}

impl Windows {
    pub(crate) fn new(files: Arc<Files>, order: Order, cursor: Cursor) -> Self {
        let order_of_files = order.files(cursor.epoch, files.len());
        let found = (cursor.file == 0 && cursor.row == 0).then_some(0);
        Self { files, order, cursor, order_of_files, reader: None, found }
    }

    /// The next window; `None` after the last epoch. A window never spans two epochs.
    ///
    /// # Errors
    /// A file can't be had at all, or an epoch has no rows.
    pub(crate) fn next_window(&mut self) -> Result<Option<Window>, DataError> {
        while self.cursor.epoch < self.order.epochs {
            let start = self.cursor;
            let mut rows = Vec::new();
            let mut bytes = 0;
            while rows.len() < self.order.window && bytes < WINDOW_BYTES {
                let Some(row) = self.next_row()? else { break };
                bytes += row.raw.size();
                rows.push(row);
            }
            if rows.is_empty() {
                self.next_epoch()?;
                continue;
            }
            if self.order.shuffle {
                let seeds = [self.order.seed, start.epoch, start.file as u64, start.row];
                NumpyRng::new(&seeds).shuffle(&mut rows);
            }
            return Ok(Some(Window { start, rows }));
        }
        Ok(None)
    }

    /// The next row of this epoch.
    fn next_row(&mut self) -> Result<Option<Row>, DataError> {
        while let Some(&file) = self.order_of_files.get(self.cursor.file) {
            let Some((number, raw)) = self.read(file)? else {
                self.reader = None;
                self.cursor = Cursor { file: self.cursor.file + 1, row: 0, ..self.cursor };
                continue;
            };
            self.cursor.row = number;
            self.found = self.found.map(|found| found + 1);
            return Ok(Some(Row { file, number, raw }));
        }
        Ok(None)
    }

    /// The next row of the open file. A file that breaks ends there, with a bad row that says why.
    fn read(&mut self, file: usize) -> Result<Option<(u64, RawRow)>, DataError> {
        const BROKEN: u64 = u64::MAX;
        if self.cursor.row == BROKEN {
            return Ok(None);
        }
        let outcome = match &mut self.reader {
            Some(reader) => reader.next_row(),
            None => {
                let after = self.order_of_files.iter().skip(self.cursor.file + 1).take(UPCOMING);
                let upcoming: Vec<usize> = after.copied().collect();
                let path = self.files.fetch(file, &upcoming)?;
                self.files.open(file, &path).and_then(|mut reader| {
                    reader.skip_to(self.cursor.row)?;
                    self.reader.insert(reader).next_row()
                })
            }
        };
        outcome.or_else(|error| Ok(Some((BROKEN, RawRow::Bad(error)))))
    }

    fn next_epoch(&mut self) -> Result<(), DataError> {
        if self.found == Some(0) {
            return Err(DataError::File {
                file: self.files.name(0),
                reason: format!("there is no row in this file and the {} after it", self.files.len() - 1),
            });
        }
        self.cursor = Cursor { epoch: self.cursor.epoch + 1, file: 0, row: 0 };
        self.order_of_files = self.order.files(self.cursor.epoch, self.files.len());
        self.found = Some(0);
        Ok(())
    }
}
