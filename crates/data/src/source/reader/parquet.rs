//! One column of a Parquet file, read without Arrow.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::Once;

use parquet::basic::{Repetition, Type as Physical};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::{ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;

use super::lines::too_long;
use super::{Column, MAX_ROW_BYTES, RawRow, RowReader};
use crate::DataError;

/// Rows decoded at once.
const BATCH: usize = 64;

/// Rows of one column, row group after row group.
pub(super) struct ParquetRows {
    file: SerializedFileReader<File>,
    name: String,
    column: String,
    leaf: usize,
    levels: Levels,
    /// Next row group to open.
    group: usize,
    values: Option<Values>,
    decoded: VecDeque<RawRow>,
    /// Rows handed out so far.
    row: u64,
}

/// A column chunk of one of the types that we read.
enum Values {
    Text(ColumnReaderImpl<ByteArrayType>),
    Int32(ColumnReaderImpl<Int32Type>),
    Int64(ColumnReaderImpl<Int64Type>),
}

/// How definition levels of the column read.
#[derive(Debug, Clone, Copy)]
struct Levels {
    /// Level of a value that is there.
    max: i16,
    /// The row itself may be null (level 0).
    nullable: bool,
    /// Ids only: an element of the list may be null (level `max - 1`).
    nullable_element: bool,
}

thread_local! {
    /// A panic of this thread is about to be caught and reported as an error.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `read`; the parquet crate panics on some damaged files, which is an error like any other here, so nothing is printed.
fn guarded<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    static QUIETED: Once = Once::new();
    QUIETED.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_GUARDED.get() {
                print(panic);
            }
        }));
    });
    IS_GUARDED.set(true);
    let result = catch_unwind(AssertUnwindSafe(read));
    IS_GUARDED.set(false);
    result.unwrap_or_else(|_| Err(ParquetError::General("the reader gave up on it".into())))
}

impl ParquetRows {
    pub(super) fn open(path: &Path, name: &str, column: &Column) -> Result<Self, DataError> {
        let file = File::open(path).map_err(|source| DataError::io(path, source))?;
        let bad = |reason: String| DataError::File { file: name.into(), reason };
        if file.metadata().map_err(|source| DataError::io(path, source))?.len() == 0 {
            return Err(bad("the file is empty".into()));
        }
        let file = guarded(|| SerializedFileReader::new(file))
            .map_err(|error| bad(format!("not a Parquet file ({error})")))?;
        let schema = file.metadata().file_metadata().schema_descr();
        let leaf = (0..schema.num_columns())
            .find(|&i| schema.column(i).path().parts().first() == Some(&column.name))
            .ok_or_else(|| {
                let names: Vec<&str> =
                    schema.root_schema().get_fields().iter().map(|field| field.name()).collect();
                bad(format!("no column {:?}; the columns are: {}", column.name, names.join(", ")))
            })?;
        let levels = levels(&schema.column(leaf), column).map_err(bad)?;
        Ok(Self {
            file,
            name: name.into(),
            column: column.name.clone(),
            leaf,
            levels,
            group: 0,
            values: None,
            decoded: VecDeque::new(),
            row: 0,
        })
    }

    fn error(&self, error: &ParquetError) -> DataError {
        DataError::Row {
            file: self.name.clone(),
            row: self.row + 1,
            reason: format!("corrupt Parquet data ({error})"),
        }
    }

    /// Opens the next row group, if there is one.
    fn next_group(&mut self) -> Result<bool, DataError> {
        if self.group == self.file.num_row_groups() {
            return Ok(false);
        }
        let open =
            || self.file.get_row_group(self.group).and_then(|group| group.get_column_reader(self.leaf));
        let chunk = guarded(open).map_err(|error| self.error(&error))?;
        self.values = Some(match chunk {
            ColumnReader::ByteArrayColumnReader(_) => Values::Text(get_typed_column_reader(chunk)),
            ColumnReader::Int32ColumnReader(_) => Values::Int32(get_typed_column_reader(chunk)),
            _ => Values::Int64(get_typed_column_reader(chunk)), // `levels` let no other type through
        });
        self.group += 1;
        Ok(true)
    }

    /// Decodes some rows of the open row group.
    fn decode(&mut self) -> Result<(), DataError> {
        let levels = self.levels;
        let rows = match &mut self.values {
            None => return Ok(()),
            Some(Values::Text(chunk)) => guarded(|| read_text(chunk, levels)),
            Some(Values::Int32(chunk)) => guarded(|| read_ids(chunk, levels, i64::from)),
            Some(Values::Int64(chunk)) => guarded(|| read_ids(chunk, levels, |id| id)),
        };
        let rows = rows.map_err(|error| self.error(&error))?;
        if rows.is_empty() {
            self.values = None;
        }
        for (row, content) in (self.row + 1..).zip(rows) {
            self.decoded.push_back(match content {
                Ok(content) if content.size() > MAX_ROW_BYTES => RawRow::Bad(too_long(&self.name, row)),
                Ok(content) => content,
                Err(reason) => RawRow::Bad(DataError::Row {
                    file: self.name.clone(),
                    row,
                    reason: format!("column {:?} {reason}", self.column),
                }),
            });
        }
        Ok(())
    }
}

impl RowReader for ParquetRows {
    fn next_row(&mut self) -> Result<Option<(u64, RawRow)>, DataError> {
        loop {
            if let Some(row) = self.decoded.pop_front() {
                self.row += 1;
                return Ok(Some((self.row, row)));
            }
            if self.values.is_none() && !self.next_group()? {
                return Ok(None);
            }
            self.decode()?;
        }
    }

    fn skip_to(&mut self, row: u64) -> Result<(), DataError> {
        while self.row < row && self.decoded.pop_front().is_some() {
            self.row += 1;
        }
        // Whole row groups are passed over without being read.
        while self.values.is_none() && self.row < row && self.group < self.file.num_row_groups() {
            let rows = self.file.metadata().row_group(self.group).num_rows().max(0) as u64;
            if self.row + rows > row {
                self.next_group()?;
            } else {
                self.group += 1;
                self.row += rows;
            }
        }
        while self.row < row && self.next_row()?.is_some() {}
        Ok(())
    }
}

/// Checks that the column is what we read and says how its levels read.
fn levels(leaf: &ColumnDescriptor, column: &Column) -> Result<Levels, String> {
    let list = leaf.max_rep_level() == 1;
    let physical = leaf.physical_type();
    let wanted = match column.ids {
        false => {
            physical == Physical::BYTE_ARRAY && leaf.max_rep_level() == 0 && leaf.path().parts().len() == 1
        }
        true => matches!(physical, Physical::INT32 | Physical::INT64) && list,
    };
    if !wanted {
        let expected = if column.ids { "a list of integers (token ids)" } else { "a string" };
        let found = format!("{}{physical}", if leaf.max_rep_level() > 0 { "a list of " } else { "" });
        return Err(format!("column {:?} is {found}, expected {expected}", column.name));
    }
    let nullable_element = leaf.self_type().get_basic_info().has_repetition()
        && leaf.self_type().get_basic_info().repetition() == Repetition::OPTIONAL;
    let nullable = if list {
        // A required list has levels: empty 0, element 1 (and null element). An optional one starts at null 0.
        leaf.max_def_level() - i16::from(nullable_element) > 1
    } else {
        leaf.max_def_level() > 0
    };
    Ok(Levels { max: leaf.max_def_level(), nullable, nullable_element: list && nullable_element })
}

/// A row's content, or why it has none.
type Content = Result<RawRow, &'static str>;

fn read_text(
    chunk: &mut ColumnReaderImpl<ByteArrayType>,
    levels: Levels,
) -> Result<Vec<Content>, ParquetError> {
    let (mut definition, mut values) = (Vec::new(), Vec::new());
    let (rows, _, _) = chunk.read_records(BATCH, Some(&mut definition), None, &mut values)?;
    let mut values = values.into_iter();
    let mut text = || values.next().map(|value| RawRow::Text(value.data().to_vec())).ok_or("is null");
    Ok(if levels.max == 0 {
        (0..rows).map(|_| text()).collect()
    } else {
        definition.iter().map(|&level| if level == levels.max { text() } else { Err("is null") }).collect()
    })
}

fn read_ids<T: DataType>(
    chunk: &mut ColumnReaderImpl<T>,
    levels: Levels,
    widen: impl Fn(T::T) -> i64,
) -> Result<Vec<Content>, ParquetError> {
    let (mut definition, mut repetition, mut values) = (Vec::new(), Vec::new(), Vec::new());
    chunk.read_records(BATCH, Some(&mut definition), Some(&mut repetition), &mut values)?;
    let mut values = values.into_iter().map(widen);
    let mut rows: Vec<Result<Vec<i64>, &'static str>> = Vec::new();
    for (&definition, &repetition) in definition.iter().zip(&repetition) {
        if repetition == 0 {
            rows.push(Ok(Vec::new()));
        }
        let Some(row) = rows.last_mut() else { continue };
        if definition == levels.max {
            if let (Some(id), Ok(ids)) = (values.next(), row.as_mut()) {
                ids.push(id);
            }
        } else if levels.nullable && definition == 0 {
            *row = Err("is null");
        } else if levels.nullable_element && definition == levels.max - 1 {
            *row = Err("has a null among its ids");
        }
    }
    Ok(rows.into_iter().map(|row| row.map(RawRow::Ids)).collect())
}
