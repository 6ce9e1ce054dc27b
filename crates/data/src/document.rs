//! Rows to documents: decoded, tokenized, framed by BOS and EOS, cut to length.

use std::sync::Arc;

use rayon::prelude::*;

use crate::order::Row;
use crate::source::{Column, Content, Files, RawRow, decode};
use crate::{DataError, Tokenizer};

/// How text becomes token ids.
pub(crate) struct Tokenize {
    pub(crate) tokenizer: Arc<dyn Tokenizer>,
    /// Put BOS first (`add_bos`).
    pub(crate) add_bos: bool,
    /// Put EOS last (`add_eos`).
    pub(crate) add_eos: bool,
    /// Documents are cut to this many tokens, BOS and EOS included; `None` keeps them whole.
    pub(crate) max_length: Option<usize>,
    /// Ids must be below this (`vocab_size`).
    pub(crate) vocab_size: usize,
}

/// Token ids of one row.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Document {
    pub(crate) ids: Vec<u32>,
    /// Tokens cut off.
    pub(crate) dropped: usize,
}

impl Tokenize {
    /// Documents of `rows`, in their order, made on the current rayon pool.
    pub(crate) fn documents(&self, files: &Files, rows: Vec<Row>) -> Vec<Result<Document, DataError>> {
        rows.into_par_iter().map(|row| self.document(files, row)).collect()
    }

    fn document(&self, files: &Files, row: Row) -> Result<Document, DataError> {
        if let RawRow::Bad(error) = row.raw {
            return Err(error);
        }
        let reason = |reason| DataError::Row { file: files.name(row.file), row: row.number, reason };
        let mut ids = self.ids(&row.raw, files.column()).map_err(reason)?;
        let length = self.max_length.unwrap_or(usize::MAX);
        let dropped = ids.len().saturating_sub(length);
        ids.truncate(length);
        Ok(Document { ids, dropped })
    }

    /// Token ids of a row at full length, or what is wrong with it.
    pub(crate) fn ids(&self, row: &RawRow, column: &Column) -> Result<Vec<u32>, String> {
        match decode(row, column)? {
            Content::Text(text) => {
                let mut ids = Vec::new();
                ids.extend(self.tokenizer.bos_id().filter(|_| self.add_bos));
                self.tokenizer.encode(&text, &mut ids).map_err(|error| error.to_string())?;
                ids.extend(self.tokenizer.eos_id().filter(|_| self.add_eos));
                Ok(ids)
            }
            Content::Ids(numbers) => numbers.into_iter().map(|number| self.check(number)).collect(),
        }
    }

    fn check(&self, number: i64) -> Result<u32, String> {
        u32::try_from(number)
            .ok()
            .filter(|&id| (id as usize) < self.vocab_size)
            .ok_or_else(|| format!("token id {number} is out of range: vocab_size is {}", self.vocab_size))
    }
}
