//! Resume to the token for every source, packing and number of threads; epochs; ends of the data.

use std::path::PathBuf;

use super::*;
use crate::Loader;
use crate::pack::{Choose, ConcatThenSplit, FirstFit, OnePerRow};
use crate::source::{Column, Format, TextUnit};
use crate::tokenizer::ByteTokenizer;

/// Files with documents of many lengths, empty ones too.
struct Corpus {
    _folder: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

/// Text of document `i`: says which it is, and has any length up to 60.
fn text(i: usize) -> String {
    let length = i * i * 7 % 61;
    format!("<{i}>{}", "abcdefghij".repeat(6)).chars().take(length).collect()
}

impl Corpus {
    fn json(files: usize, rows: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let paths = (0..files)
            .map(|file| {
                let path = folder.path().join(format!("{file}.jsonl"));
                let lines: String = (0..rows)
                    .map(|row| {
                        serde_json::json!({ "url": "u", "text": text(file * rows + row) }).to_string() + "\n"
                    })
                    .collect();
                std::fs::write(&path, lines).unwrap();
                path
            })
            .collect();
        Self { _folder: folder, paths }
    }

    fn lines(files: usize, rows: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let paths = (0..files)
            .map(|file| {
                let path = folder.path().join(format!("{file}.txt"));
                let lines: Vec<String> = (0..rows).map(|row| text(file * rows + row)).collect();
                std::fs::write(&path, lines.join("\n") + "\n").unwrap();
                path
            })
            .collect();
        Self { _folder: folder, paths }
    }
}

/// What a test varies.
#[derive(Debug, Clone, Copy)]
struct Case {
    format: Format,
    packing: &'static str,
    shuffle: bool,
    threads: usize,
    epochs: u64,
    skip_bad_rows: bool,
    end: End,
}

const CASE: Case = Case {
    format: Format::Json,
    packing: "hf",
    shuffle: true,
    threads: 1,
    epochs: 1,
    skip_bad_rows: false,
    end: End::Stop,
};

fn batches(paths: &[PathBuf], case: Case) -> PackedBatches {
    let (batch_size, seq_len) = (2, 40);
    let packer: Box<dyn Packer> = match case.packing {
        "hf" => Box::new(FirstFit::new(batch_size, seq_len, Some(3))),
        "grain_first_fit" | "chunks" => Box::new(FirstFit::grain(batch_size, seq_len, None, Choose::First)),
        "grain_best_fit" => Box::new(FirstFit::grain(batch_size, seq_len, None, Choose::Best)),
        "concat_then_split" => Box::new(ConcatThenSplit::new(batch_size, seq_len, None)),
        _ => Box::new(OnePerRow::new(batch_size, seq_len)),
    };
    let whole = matches!(case.packing, "concat_then_split" | "chunks");
    let column = Column { name: "text".into(), ids: false };
    let recipe = Recipe {
        files: Arc::new(Files::local(paths.to_vec(), case.format, column)),
        order: Order { shuffle: case.shuffle, seed: 5, window: 7, epochs: case.epochs },
        tokenize: Tokenize {
            tokenizer: Arc::new(ByteTokenizer),
            add_bos: true,
            add_eos: true,
            max_length: (!whole).then_some(seq_len),
            vocab_size: 259,
        },
        shift: Shift { pad_id: Some(258), ignored: vec![258, 256] },
        batch_size,
        seq_len,
        whole_documents: case.packing != "concat_then_split",
        end: case.end,
        skip_bad_rows: case.skip_bad_rows,
        threads: Some(case.threads),
    };
    PackedBatches::new(recipe, packer).unwrap()
}

fn drain(batches: &mut dyn Batches) -> Vec<Batch> {
    std::iter::from_fn(|| batches.next_batch().unwrap()).collect()
}

/// Texts of all documents in a batch.
fn documents(batch: &Batch) -> Vec<String> {
    let mut documents: Vec<Vec<u32>> = Vec::new();
    for i in 0..batch.inputs.len() {
        if batch.inputs_segmentation[i] == 0 {
            continue;
        }
        if batch.inputs[i] as u32 == ByteTokenizer::BOS {
            documents.push(Vec::new());
        }
        documents.last_mut().unwrap().push(batch.inputs[i] as u32);
    }
    use crate::Tokenizer;
    documents.iter().map(|ids| ByteTokenizer.decode(ids).replace("<bos>", "").replace("<eos>", "")).collect()
}

/// `next k, save, next n` equals `next k, restore in a new loader, next n`, bit for bit, and the counts go on.
#[test]
fn resumes_to_the_token() {
    let json = Corpus::json(3, 13);
    let lines = Corpus::lines(3, 13);
    for (corpus, format) in
        [(&json, Format::Json), (&lines, Format::Text(TextUnit::Line)), (&json, Format::Text(TextUnit::File))]
    {
        for packing in
            ["hf", "grain_first_fit", "grain_best_fit", "concat_then_split", "chunks", "one per row"]
        {
            for shuffle in [false, true] {
                let case = Case { format, packing, shuffle, epochs: 2, ..CASE };
                let mut whole = batches(&corpus.paths, case);
                let mut places = vec![(whole.state(), whole.stats())];
                let mut expected = Vec::new();
                while let Some(batch) = whole.next_batch().unwrap() {
                    expected.push(batch);
                    places.push((whole.state(), whole.stats()));
                }
                assert!(expected.len() >= 3, "{case:?}");
                for (k, (state, stats)) in places.iter().enumerate() {
                    // Through text, as a checkpoint keeps it; with another number of threads.
                    let state = serde_json::from_str(&state.to_string()).unwrap();
                    let mut resumed =
                        Loader::new(Box::new(batches(&corpus.paths, Case { threads: 1 + k % 3, ..case })));
                    resumed.restore(&state).unwrap();
                    assert_eq!(resumed.stats(), *stats, "{case:?} after {k}");
                    assert_eq!(resumed.state(), state, "{case:?} after {k}");
                    assert_eq!(drain(&mut resumed), expected[k..], "{case:?} after {k}");
                    assert_eq!(resumed.stats(), places.last().unwrap().1, "{case:?} after {k}");
                }
            }
        }
    }
}

#[test]
fn the_loader_is_never_ahead_of_itself() {
    let corpus = Corpus::json(2, 40);
    let mut plain = batches(&corpus.paths, CASE);
    let mut loader = Loader::new(Box::new(batches(&corpus.paths, CASE)));
    assert_eq!(loader.state(), plain.state());
    while let Some(batch) = plain.next_batch().unwrap() {
        assert_eq!(loader.next_batch().unwrap(), Some(batch));
        assert_eq!(loader.state(), plain.state());
        assert_eq!(loader.stats(), plain.stats());
    }
    assert_eq!(loader.next_batch().unwrap(), None);
    assert_eq!(loader.next_batch().unwrap(), None, "asked again, it still says that the data has ended");
    assert!(plain.state().to_string().len() < 500, "the place is small: {}", plain.state());
}

#[test]
fn a_running_loader_can_be_sent_back() {
    let corpus = Corpus::json(2, 40);
    let mut loader = Loader::new(Box::new(batches(&corpus.paths, CASE)));
    let start = loader.state();
    let first = drain(&mut loader);
    loader.restore(&start).unwrap();
    loader.next_batch().unwrap();
    let second = loader.state();
    loader.next_batch().unwrap();
    loader.restore(&second).unwrap();
    assert_eq!(drain(&mut loader), first[1..]);
}

#[test]
fn places_of_other_data_are_refused() {
    let corpus = Corpus::json(3, 5);
    let state = batches(&corpus.paths, CASE).state();
    let refuse = |paths: &[PathBuf], case| batches(paths, case).restore(&state).unwrap_err().to_string();
    assert!(refuse(&corpus.paths[..2], CASE).starts_with("saved data position: files was 3 ("));
    let other = Corpus::lines(3, 5);
    assert!(refuse(&other.paths, CASE).contains("files was 3 ("), "other names");
    assert!(refuse(&corpus.paths, Case { shuffle: false, ..CASE }).contains("enable_data_shuffling"));
    let error = batches(&corpus.paths, CASE).restore(&serde_json::json!({ "batches": 3 })).unwrap_err();
    assert!(error.to_string().contains("not a place in packed data"));
}

/// Places that were saved when data could be cut into parts name the part, which always was all of it.
#[test]
fn older_places_still_load() {
    let corpus = Corpus::json(3, 13);
    let mut whole = batches(&corpus.paths, CASE);
    whole.next_batch().unwrap();
    let mut state = whole.state();
    state["shard"] = serde_json::json!({ "index": 0, "count": 1 });
    let mut resumed = batches(&corpus.paths, CASE);
    resumed.restore(&state).unwrap();
    assert_eq!(drain(&mut resumed), drain(&mut whole));
}

#[test]
fn every_epoch_has_every_document_in_its_own_order() {
    let corpus = Corpus::json(3, 20);
    let order = |epochs, shuffle| {
        let mut batches = batches(&corpus.paths, Case { packing: "one per row", epochs, shuffle, ..CASE });
        drain(&mut batches).iter().flat_map(documents).collect::<Vec<_>>()
    };
    let plain = order(1, false);
    assert_eq!(plain.len(), 60);
    assert_eq!(order(2, false), [plain.clone(), plain.clone()].concat());
    let (first, second) = {
        let both = order(2, true);
        (both[..60].to_vec(), both[60..].to_vec())
    };
    assert!(first != plain && second != first);
    for mut epoch in [first, second] {
        let mut expected = plain.clone();
        epoch.sort();
        expected.sort();
        assert_eq!(epoch, expected);
    }
}

#[test]
fn ends_with_padding_when_asked_to() {
    let corpus = Corpus::json(1, 10);
    let stop = drain(&mut batches(&corpus.paths, CASE));
    let mut padded = batches(&corpus.paths, Case { end: End::Padding, ..CASE });
    for batch in &stop {
        assert_eq!(padded.next_batch().unwrap().as_ref(), Some(batch));
    }
    for _ in 0..3 {
        let batch = padded.next_batch().unwrap().unwrap();
        let fields = [
            batch.inputs,
            batch.inputs_segmentation,
            batch.inputs_position,
            batch.targets,
            batch.targets_segmentation,
            batch.targets_position,
        ];
        assert!(fields.iter().all(|field| field.len() == 80 && field.iter().all(|&n| n == 0)));
    }
}

#[test]
fn bad_rows_stop_or_are_counted() {
    let corpus = Corpus::json(2, 4);
    let bad = corpus.paths[0].with_file_name("bad.jsonl");
    std::fs::write(&bad, "{\"text\":\"one\"}\n{\"text\":\n{\"body\":\"x\"}\n{\"text\":\"two\"}\n").unwrap();
    let missing = bad.with_file_name("missing.jsonl");
    let paths = [corpus.paths[0].clone(), bad.clone(), missing, corpus.paths[1].clone()];
    let case = Case { shuffle: false, packing: "one per row", ..CASE };
    let mut strict = Loader::new(Box::new(batches(&paths, case)));
    let mut before = 0;
    let error = loop {
        match strict.next_batch() {
            Ok(batch) => before += documents(&batch.unwrap()).len(),
            Err(error) => break error.to_string(),
        }
    };
    assert_eq!(before, 4);
    assert_eq!(error, format!("{}, row 2: bad JSON: EOF while parsing a value at byte 8", bad.display()));
    assert!(strict.next_batch().is_err(), "an error doesn't turn into an end");

    let mut lenient = batches(&paths, Case { skip_bad_rows: true, ..case });
    let texts: Vec<String> = drain(&mut lenient).iter().flat_map(documents).collect();
    let expected: Vec<String> = (0..4)
        .map(text)
        .chain(["one".into(), "two".into()])
        .chain((4..8).map(text))
        .map(|text| text.chars().take(38).collect())
        .collect();
    assert_eq!(
        texts.iter().map(|text| text.chars().take(38).collect::<String>()).collect::<Vec<_>>(),
        expected
    );
    assert_eq!((lenient.stats().skipped_rows, lenient.stats().documents), (3, 10));
}

#[test]
fn data_without_rows_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blank.jsonl");
    std::fs::write(&path, "\n\n").unwrap();
    let error = batches(&[path], Case { epochs: 1000, ..CASE }).next_batch().unwrap_err().to_string();
    assert!(error.contains("there is no row in this file"), "{error}");
}
