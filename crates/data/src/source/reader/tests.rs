//! Every format, every way in which a file can be broken.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use ::parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

fn text() -> Column {
    Column { name: "text".into(), ids: false }
}

fn ids() -> Column {
    Column { name: "ids".into(), ids: true }
}

fn file(name: &str, content: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    (folder, path)
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// Number and content of every row, and the error that ends the file early.
fn read(content: &[u8], format: Format, column: &Column) -> (Vec<(u64, String)>, Option<String>) {
    let (_folder, path) = file("data", content);
    read_path(&path, format, column)
}

fn read_path(path: &Path, format: Format, column: &Column) -> (Vec<(u64, String)>, Option<String>) {
    let mut rows = Vec::new();
    let mut reader = match open(path, "data", format, column) {
        Ok(reader) => reader,
        Err(error) => return (rows, Some(error.to_string())),
    };
    loop {
        match reader.next_row() {
            Ok(Some((number, row))) => rows.push((number, show(row))),
            Ok(None) => return (rows, None),
            Err(error) => return (rows, Some(error.to_string())),
        }
    }
}

fn show(row: RawRow) -> String {
    match row {
        RawRow::Json(bytes) | RawRow::Text(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        RawRow::Ids(ids) => format!("{ids:?}"),
        RawRow::Bad(error) => format!("BAD {error}"),
    }
}

fn contents(rows: &[(u64, String)]) -> Vec<&str> {
    rows.iter().map(|(_, row)| row.as_str()).collect()
}

const LINES: &[u8] = b"{\"text\":\"a\"}\n\n  \r\n{\"text\":\"b\"}\r\n{\"text\":\"c\"}";

#[test]
fn json_lines_plain_gzip_and_zstd() {
    for content in [LINES.to_vec(), gzip(LINES), zstd::encode_all(LINES, 1).unwrap()] {
        let (rows, error) = read(&content, Format::Json, &text());
        assert_eq!(error, None);
        let numbers: Vec<u64> = rows.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [1, 4, 5], "rows are numbered as lines");
        assert_eq!(contents(&rows), ["{\"text\":\"a\"}", "{\"text\":\"b\"}\r", "{\"text\":\"c\"}"]);
    }
    let two_members = [gzip(b"{}\n"), gzip(b"[]\n")].concat();
    assert_eq!(contents(&read(&two_members, Format::Json, &text()).0), ["{}", "[]"]);
    assert_eq!(contents(&read(b"\xef\xbb\xbf{}\n", Format::Json, &text()).0), ["{}"]);
}

#[test]
fn json_arrays() {
    let (rows, error) = read(b" [ {\"a\": [1, 2], \"b\": \"],}\\\"[\"},\n 3 ,{}\n]\n", Format::Json, &text());
    assert_eq!(error, None);
    assert_eq!(contents(&rows), ["{\"a\": [1, 2], \"b\": \"],}\\\"[\"}", "3 ", "{}\n"]);
    assert_eq!(read(b"[]", Format::Json, &text()), (vec![], None));
    let (rows, error) = read(b"[{\"text\": \"a\"}, {\"te", Format::Json, &text());
    assert_eq!(
        (rows.len(), error.as_deref()),
        (1, Some("data, row 2: the JSON array isn't closed, the file is truncated"))
    );
    let (rows, error) = read(b"[1] 2", Format::Json, &text());
    assert_eq!(
        (rows.len(), error.as_deref()),
        (1, Some("data, row 2: there is more after the end of the JSON array"))
    );
}

#[test]
fn text_by_line_and_by_file() {
    let content = b"one\r\n\ntwo";
    assert_eq!(contents(&read(content, Format::Text(TextUnit::Line), &text()).0), ["one", "", "two"]);
    assert_eq!(contents(&read(content, Format::Text(TextUnit::File), &text()).0), ["one\r\n\ntwo"]);
}

#[test]
fn empty_and_missing_files() {
    for format in [Format::Json, Format::Text(TextUnit::Line), Format::Text(TextUnit::File), Format::Parquet]
    {
        assert_eq!(read(b"", format, &text()).1.as_deref(), Some("data: the file is empty"));
        let (_, error) = read_path(Path::new("no/such/file"), format, &text());
        assert!(error.unwrap().starts_with("no/such/file: No such file"));
    }
    assert_eq!(read(&gzip(b""), Format::Json, &text()).1.as_deref(), Some("data: the file is empty"));
}

#[test]
fn truncated_and_corrupt_compression() {
    let lines: String = (0..5000).map(|i| format!("{{\"text\":\"{}\"}}\n", i * 7919)).collect();
    let mut checked = zstd::Encoder::new(Vec::new(), 1).unwrap();
    checked.include_checksum(true).unwrap();
    checked.write_all(lines.as_bytes()).unwrap();
    for whole in [gzip(lines.as_bytes()), checked.finish().unwrap()] {
        let (rows, error) = read(&whole[..whole.len() / 2], Format::Json, &text());
        let expected =
            format!("data, row {}: compressed data ends early, the file is truncated", rows.len() + 1);
        assert!(error.unwrap().starts_with(&expected));
        let mut corrupt = whole.clone();
        let middle = corrupt.len() / 2;
        corrupt[middle..middle + 64].fill(0xff);
        let (_, error) = read(&corrupt, Format::Json, &text());
        assert!(error.unwrap().contains("compressed data is corrupt"));
    }
}

#[test]
fn rows_that_are_too_long_are_bad_and_passed_over() {
    let long = "x".repeat(MAX_ROW_BYTES + 1);
    let lines = format!("{{}}\n{long}\n{{}}\n");
    let bad = "BAD data, row 2: the row is longer than 32 MiB; split it";
    assert_eq!(contents(&read(lines.as_bytes(), Format::Json, &text()).0), ["{}", bad, "{}"]);
    let array = format!("[1,\"{long}\",2]");
    assert_eq!(contents(&read(array.as_bytes(), Format::Json, &text()).0), ["1", bad, "2"]);
    let whole = read(lines.as_bytes(), Format::Text(TextUnit::File), &text()).0;
    assert_eq!(contents(&whole), ["BAD data, row 1: the row is longer than 32 MiB; split it"]);
}

/// Row groups of `text`, some of them null, with ids `[row, row + 1, ..]` of `row % 3` tokens.
fn parquet(groups: &[Vec<Option<&str>>]) -> (TempDir, PathBuf) {
    let schema = "message schema {
        optional binary text (UTF8);
        required int64 number;
        optional group ids (LIST) { repeated group list { optional int32 element; } }
    }";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.parquet");
    let properties = Arc::new(WriterProperties::builder().build());
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer =
        SerializedFileWriter::new(std::fs::File::create(&path).unwrap(), schema, properties).unwrap();
    for group in groups {
        let mut columns = writer.next_row_group().unwrap();
        let levels: Vec<i16> = group.iter().map(|text| i16::from(text.is_some())).collect();
        let texts: Vec<ByteArray> = group.iter().flatten().map(|&text| text.into()).collect();
        let mut column = columns.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&texts, Some(&levels), None).unwrap();
        column.close().unwrap();
        let numbers: Vec<i64> = (0..group.len() as i64).collect();
        let mut column = columns.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&numbers, None, None).unwrap();
        column.close().unwrap();
        let (mut values, mut definition, mut repetition) = (vec![], vec![], vec![]);
        for row in 0..group.len() as i32 {
            match row % 3 {
                0 => {
                    definition.push(1); // an empty list
                    repetition.push(0);
                }
                n => {
                    values.extend(row..row + n);
                    definition.extend(vec![3; n as usize]);
                    repetition.extend((0..n).map(|i| i16::from(i > 0)));
                }
            }
        }
        let mut column = columns.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&values, Some(&definition), Some(&repetition)).unwrap();
        column.close().unwrap();
        columns.close().unwrap();
    }
    writer.close().unwrap();
    (folder, path)
}

#[test]
fn parquet_text_and_ids() {
    let (_folder, path) = parquet(&[vec![Some("a"), None, Some("")], vec![], vec![Some("héllo")]]);
    let (rows, error) = read_path(&path, Format::Parquet, &text());
    assert_eq!(error, None);
    assert_eq!(contents(&rows), ["a", "BAD data, row 2: column \"text\" is null", "", "héllo"]);
    let (rows, _) = read_path(&path, Format::Parquet, &ids());
    assert_eq!(contents(&rows), ["[]", "[1]", "[2, 3]", "[]"]);
}

#[test]
fn parquet_columns_that_are_not_what_was_asked_for() {
    let (_folder, path) = parquet(&[vec![Some("a")]]);
    let error = |name: &str, ids: bool| {
        let column = Column { name: name.into(), ids };
        open(&path, "data", Format::Parquet, &column).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(error("body", false), "data: no column \"body\"; the columns are: text, number, ids");
    assert_eq!(error("number", false), "data: column \"number\" is INT64, expected a string");
    assert_eq!(error("ids", false), "data: column \"ids\" is a list of INT32, expected a string");
    assert_eq!(
        error("text", true),
        "data: column \"text\" is BYTE_ARRAY, expected a list of integers (token ids)"
    );
    assert!(read(b"not parquet at all", Format::Parquet, &text()).1.unwrap().contains("not a Parquet file"));
}

/// All rows, and all rows after each possible place, agree.
fn check_skip(path: &Path, format: Format, column: &Column) {
    let (rows, _) = read_path(path, format, column);
    let last = rows.last().map_or(0, |(number, _)| *number);
    for place in 0..=last + 1 {
        let mut reader = open(path, "data", format, column).unwrap();
        reader.skip_to(place).unwrap();
        let mut rest = Vec::new();
        while let Some((number, row)) = reader.next_row().unwrap() {
            rest.push((number, show(row)));
        }
        let expected: Vec<_> = rows.iter().filter(|(number, _)| *number > place).cloned().collect();
        assert_eq!(rest, expected, "after row {place}");
    }
}

#[test]
fn skipping_equals_reading() {
    for (content, format) in [
        (LINES, Format::Json),
        (b"[1, {}, [2], \"x\"]", Format::Json),
        (b"a\n\nb\n", Format::Text(TextUnit::Line)),
        (b"a\n\nb\n", Format::Text(TextUnit::File)),
    ] {
        let (_folder, path) = file("data", content);
        check_skip(&path, format, &text());
    }
    let texts: Vec<String> = (0..150).map(|i| format!("row {i}")).collect();
    let group: Vec<Option<&str>> = texts.iter().map(|text| Some(text.as_str())).collect();
    let (_folder, path) = parquet(&[group.clone(), vec![None, Some("x")], group]);
    check_skip(&path, Format::Parquet, &text());
    check_skip(&path, Format::Parquet, &ids());
}

proptest! {
    /// No bytes make a reader panic or run for ever.
    #[test]
    fn any_bytes(content in prop::collection::vec(any::<u8>(), 0..400)) {
        for format in [Format::Json, Format::Text(TextUnit::Line), Format::Parquet] {
            read(&content, format, &text());
        }
    }

    /// Nor do bytes that look like JSON.
    #[test]
    fn nearly_json(content in "[\\[\\]{}\",:\\\\a-c0-9 \n]{0,200}") {
        read(content.as_bytes(), Format::Json, &text());
    }

    /// A Parquet file with some bytes changed is read or refused.
    #[test]
    fn damaged_parquet(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let (_folder, path) = parquet(&[vec![Some("a"), None, Some("b")], vec![Some("c")]]);
        let mut bytes = std::fs::read(&path).unwrap();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        read(&bytes, Format::Parquet, &text());
        read(&bytes, Format::Parquet, &ids());
    }
}
