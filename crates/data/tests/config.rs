//! From a configuration to batches, as the trainer does it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mt_config::{Config, LoadArgs, Ranks};
use mt_data::{Batch, Batches, RankRows, eval_batches, inspect, train_batches};

fn config(overrides: &[(&str, &str)]) -> Config {
    let base = [
        ("run_name", "test"),
        ("dataset_type", "hf"),
        ("hf_path", "json"),
        ("tokenizer_type", "byte"),
        ("vocab_size", "259"),
        ("per_device_batch_size", "2"),
        ("max_target_length", "64"),
    ];
    let overrides =
        base.iter().chain(overrides).map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    mt_config::load(&LoadArgs { config_path: None, overrides, env: BTreeMap::new() }).unwrap()
}

fn write(folder: &Path, name: &str, content: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, content).unwrap();
    path
}

/// A Parquet file with a column `text`.
fn write_parquet(path: &Path, texts: impl Iterator<Item = String>) {
    use parquet::data_type::{ByteArray, ByteArrayType};
    let schema = parquet::schema::parser::parse_message_type("message m { required binary text (UTF8); }");
    let file = std::fs::File::create(path).unwrap();
    let mut writer =
        parquet::file::writer::SerializedFileWriter::new(file, schema.unwrap().into(), Default::default())
            .unwrap();
    let mut rows = writer.next_row_group().unwrap();
    let mut column = rows.next_column().unwrap().unwrap();
    let texts: Vec<ByteArray> = texts.map(|text| text.as_str().into()).collect();
    column.typed::<ByteArrayType>().write_batch(&texts, None, None).unwrap();
    column.close().unwrap();
    rows.close().unwrap();
    writer.close().unwrap();
}

fn fail(overrides: &[(&str, &str)]) -> String {
    match train_batches(&config(overrides)) {
        Ok(_) => panic!("{overrides:?} should be refused"),
        Err(error) => error.to_string(),
    }
}

fn count(mut batches: impl Batches) -> usize {
    let mut tokens = 0;
    while let Some(batch) = batches.next_batch().unwrap() {
        assert_eq!((batch.batch_size, batch.seq_len), (2, 64));
        tokens += batch.inputs_segmentation.iter().filter(|&&segment| segment != 0).count();
    }
    tokens
}

#[test]
fn files_by_glob_list_and_folder() {
    let folder = tempfile::tempdir().unwrap();
    let a = write(folder.path(), "a.jsonl", "{\"text\":\"hello\"}\n");
    let b = write(folder.path(), "b.jsonl", "{\"text\":\"worlds!\"}\n");
    let glob = folder.path().join("*.jsonl").display().to_string();
    let list = format!("{},{}", a.display(), b.display());
    let folder_name = folder.path().display().to_string();
    for files in [glob.as_str(), &list, &folder_name] {
        assert_eq!(count(train_batches(&config(&[("hf_train_files", files)])).unwrap()), 7 + 9);
    }
    let by_dir = config(&[("hf_data_dir", &folder_name), ("hf_train_files", "a*")]);
    assert_eq!(count(train_batches(&by_dir).unwrap()), 7);
    let plain = config(&[("hf_train_files", &glob), ("add_bos", "false"), ("add_eos", "false")]);
    assert_eq!(count(train_batches(&plain).unwrap()), 5 + 7);
    let local_copy = config(&[("hf_path", &folder_name)]);
    assert_eq!(count(train_batches(&local_copy).unwrap()), 7 + 9);
}

#[test]
fn sources_as_documents_of_text() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "src/main.rs", "fn main() {}\n\n");
    write(folder.path(), "docs/a.md", "# A\n");
    let files = format!("{0}/src/**/*.rs,{0}/docs/*.md", folder.path().display());
    let text = [("hf_path", "text"), ("hf_train_files", files.as_str())];
    let by_file = config(&[text[0], text[1], ("text_unit", "file")]);
    assert_eq!(count(train_batches(&by_file).unwrap()), 14 + 2 + 4 + 2);
    assert_eq!(count(train_batches(&config(&text)).unwrap()), 12 + 2 + 2 + 3 + 2);
}

#[test]
fn token_ids_need_no_tokenizing() {
    let folder = tempfile::tempdir().unwrap();
    let ids = write(folder.path(), "ids.jsonl", "{\"tokens\":[256,1,2,257]}\n{\"tokens\":[256,3]}\n");
    let files = ids.display().to_string();
    let keys = [
        ("hf_train_files", files.as_str()),
        ("train_data_columns", "tokens"),
        ("tokenize_train_data", "false"),
    ];
    assert_eq!(count(train_batches(&config(&keys)).unwrap()), 6);
    write(folder.path(), "ids.jsonl", "{\"tokens\":[259]}\n");
    let error = train_batches(&config(&keys)).unwrap().next_batch().unwrap_err().to_string();
    assert_eq!(error, format!("{files}, row 1: token id 259 is out of range: vocab_size is 259"));
}

#[test]
fn evaluation_reads_its_own_files_once() {
    let folder = tempfile::tempdir().unwrap();
    let files = write(folder.path(), "eval.jsonl", "{\"text\":\"hello\"}\n").display().to_string();
    let config = config(&[("hf_eval_files", &files), ("num_epoch", "5"), ("hf_train_files", "nothing.json")]);
    assert_eq!(count(eval_batches(&config).unwrap()), 7);
}

#[test]
fn synthetic_data_repeats_one_batch() {
    let config = config(&[("dataset_type", "synthetic"), ("max_segments_per_seq", "4")]);
    let mut batches = train_batches(&config).unwrap();
    let first = batches.next_batch().unwrap().unwrap();
    assert_eq!(batches.next_batch().unwrap().unwrap(), first);
    assert_eq!(first.inputs[1..64], first.targets[..63], "targets follow their inputs");
    assert_eq!((first.inputs_position[63], first.targets_position[63]), (63, 64));
    let last = first.inputs_segmentation[63];
    assert!((2..=4).contains(&last), "{last} segments");
    assert!(first.inputs.iter().all(|id| (0..259).contains(id)));
}

/// Fields of some rows of a batch.
fn fields(batch: &Batch, rows: std::ops::Range<usize>) -> [Vec<i32>; 6] {
    let places = rows.start * batch.seq_len..rows.end * batch.seq_len;
    [
        &batch.inputs,
        &batch.inputs_segmentation,
        &batch.inputs_position,
        &batch.targets,
        &batch.targets_segmentation,
        &batch.targets_position,
    ]
    .map(|field| field[places.clone()].to_vec())
}

/// The rows of all ranks, put together, are the rows of one process with the same global batch: for every packing, on 1 to 4
/// ranks, in every micro batch.
#[test]
fn ranks_share_the_rows_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let text = |i: usize| "many words ".repeat(8).chars().take(i * i * 7 % 83).collect::<String>();
    let lines: String = (0..300).map(|i| format!("{{\"text\":\"<{i}>{}\"}}\n", text(i))).collect();
    let json = write(folder.path(), "a.jsonl", &lines).display().to_string();
    let parquet = folder.path().join("a.parquet");
    write_parquet(&parquet, (0..300).map(|i| format!("<{i}>{}", text(i))));
    let parquet = parquet.display().to_string();
    let hf = [("hf_train_files", json.as_str())];
    let grain =
        [("dataset_type", "grain"), ("grain_file_type", "parquet"), ("grain_train_files", parquet.as_str())];
    let packings: [Vec<(&str, &str)>; 7] = [
        hf.to_vec(),
        [&hf[..], &[("packing", "false")]].concat(),
        [&hf[..], &[("max_segments_per_seq", "2"), ("expansion_factor_real_data", "1.5")]].concat(),
        [&grain[..], &[("grain_packing_type", "first_fit")]].concat(),
        [&grain[..], &[("grain_packing_type", "best_fit"), ("use_truncation", "false")]].concat(),
        [&grain[..], &[("grain_packing_type", "concat_then_split")]].concat(),
        vec![("dataset_type", "synthetic"), ("max_segments_per_seq", "4")],
    ];
    for packing in packings {
        for (ranks, rows, micro_batches) in [(1, 2, 2), (2, 1, 1), (2, 3, 2), (3, 2, 1), (4, 1, 3)] {
            let on = |ranks: usize, rows: usize| {
                let (rows, micro_batches) = (rows.to_string(), micro_batches.to_string());
                let sizes = [
                    ("per_device_batch_size", rows.as_str()),
                    ("gradient_accumulation_steps", &micro_batches),
                ];
                let config = config(&[&packing[..], &sizes].concat());
                config.for_ranks(Ranks { count: ranks, per_node: ranks }).unwrap()
            };
            let alone = on(1, ranks * rows);
            let mut one_process = train_batches(&alone).unwrap();
            let mut every_rank: Vec<_> =
                (0..ranks).map(|_| train_batches(&on(ranks, rows)).unwrap()).collect();
            for step in 0..4 {
                let what = format!("{packing:?}, {ranks} ranks of {rows} rows, step {step}");
                let whole = one_process.next_batch().unwrap().unwrap();
                let batches: Vec<Batch> =
                    every_rank.iter_mut().map(|data| data.next_batch().unwrap().unwrap()).collect();
                let mut taken = Vec::new();
                for micro_batch in 0..micro_batches {
                    let alone =
                        RankRows { rank: 0, ranks: 1, rows: ranks * rows }.of_micro_batch(micro_batch);
                    let expected = fields(&whole, alone.clone());
                    let mut found: [Vec<i32>; 6] = Default::default();
                    for (rank, batch) in batches.iter().enumerate() {
                        let mine = RankRows { rank, ranks, rows }.of_micro_batch(micro_batch);
                        taken.extend(mine.clone());
                        for (found, own) in found.iter_mut().zip(fields(batch, mine)) {
                            found.extend(own);
                        }
                    }
                    assert_eq!(found, expected, "{what}, micro batch {micro_batch}");
                    assert!(found[0].iter().any(|&id| id != 0), "{what}: there is something to compare");
                }
                taken.sort_unstable();
                let trained = alone.global_batch_size_to_train_on();
                assert_eq!(taken, (0..trained).collect::<Vec<_>>(), "{what}: every row once");
                // A place saved on any number of ranks is the place of all.
                assert!(every_rank.iter().all(|data| data.state() == one_process.state()), "{what}");
            }
        }
    }
}

#[test]
fn the_first_batch_can_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    let lines: String = (0..50).map(|i| format!("{{\"text\":\"document {i} of many\"}}\n")).collect();
    let files = write(folder.path(), "a.jsonl", &lines).display().to_string();
    let config = config(&[("hf_train_files", &files), ("reuse_example_batch", "1")]);
    let mut batches = train_batches(&config).unwrap();
    let first = batches.next_batch().unwrap().unwrap();
    for _ in 0..20 {
        assert_eq!(batches.next_batch().unwrap().as_ref(), Some(&first));
    }
    let mut resumed = train_batches(&config).unwrap();
    resumed.restore(&batches.state()).unwrap();
    assert_eq!(resumed.next_batch().unwrap(), Some(first));
}

#[test]
fn refusals_name_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let files = write(folder.path(), "a.jsonl", "{\"text\":\"a\"}\n").display().to_string();
    let ok = ("hf_train_files", files.as_str());
    let nothing = LoadArgs {
        config_path: None,
        overrides: [("dataset_type", "hf"), ("hf_path", "json")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
        env: BTreeMap::new(),
    };
    assert!(mt_config::load(&nothing).unwrap_err().to_string().contains("hf_train_files"));
    assert!(fail(&[("hf_train_files", "no/such/*.json")]).starts_with("hf_train_files: no file matches"));
    assert!(fail(&[("hf_train_files", "https://example.org/a.json")]).contains("is an address"));
    assert!(fail(&[ok, ("hf_path", "")]).starts_with("hf_path: is empty"));
    assert!(fail(&[ok, ("hf_path", "csv")]).starts_with("hf_path: `csv` files aren't read here"));
    assert!(fail(&[ok, ("vocab_size", "100")]).starts_with("vocab_size: 100 is smaller than the vocabulary"));
    let error = match eval_batches(&config(&[ok])) {
        Ok(_) => panic!("there is no evaluation data"),
        Err(error) => error.to_string(),
    };
    assert!(error.starts_with("hf_eval_files: names no file"), "{error}");
}

#[test]
fn rows_can_be_inspected() {
    let folder = tempfile::tempdir().unwrap();
    let lines = "{\"text\":\"hello\"}\n{\"text\":\"two\\nlines\"}\n";
    let files = write(folder.path(), "a.jsonl", lines).display().to_string();
    let config = config(&[("hf_train_files", &files), ("enable_data_shuffling", "false")]);
    let expected = "\
== row 1: 2 documents, 18 of 64 tokens (28.1 %), 16 targets
-- segment 1: 7 tokens at 0
<bos>hello<eos>
-- segment 2: 11 tokens at 7
<bos>two
lines<eos>
-- padding: 46 tokens
== 1 batches packed: 2 documents, 18 tokens; 85.94 % padding, 0 tokens cut off (0.00 %), 0 bad rows skipped
";
    assert_eq!(inspect(&config, 1).unwrap(), expected);
    assert!(inspect(&config, 9).unwrap().contains("The data ends here."));
}

fn shared(path: &str) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(path);
    if path.exists() {
        return Some(path.display().to_string());
    }
    eprintln!("skipped: no {}", path.display());
    None
}

/// Real C4 with the real Llama 3 vocabulary, as json.gz through hf and as Parquet through grain.
#[test]
fn c4_with_the_llama3_vocabulary() {
    let (Some(tokenizer), Some(data)) = (shared("tokenizers/tokenizer_llama3.tiktoken"), shared("data/c4"))
    else {
        return;
    };
    let json = format!("{data}/en/c4-train.*.json.gz");
    let parquet = format!("{data}/parquet/c4-train*.parquet");
    let common =
        [("tokenizer_path", tokenizer.as_str()), ("vocab_size", "128256"), ("max_target_length", "256")];
    let hf = [&common[..], &[("hf_train_files", json.as_str()), ("tokenizer_type", "tiktoken")]].concat();
    let grain = [
        &common[..],
        &[
            ("dataset_type", "grain"),
            ("grain_file_type", "parquet"),
            ("grain_train_files", parquet.as_str()),
            ("grain_packing_type", "concat_then_split"),
        ],
    ]
    .concat();
    for keys in [hf, grain] {
        let mut batches = train_batches(&config(&keys)).unwrap();
        while batches.next_batch().unwrap().is_some() {}
        let stats = batches.stats();
        eprintln!("{stats:?}");
        assert!(stats.documents >= 200 && stats.tokens > 0, "{stats:?}");
    }
}
