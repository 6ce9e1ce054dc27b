//! Ids of the real vocabularies, against those that `tests/reference/tokenizer_ids.py` wrote with the public Python
//! packages. Skips itself where the vocabularies or the C4 sample are not there.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use mt_data::tokenizer::{SentencePieceTokenizer, TiktokenTokenizer, Tokenizer};
use serde_json::Value;

/// The folder of vocabularies and data beside the repository.
fn shared() -> Option<PathBuf> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    if shared.join("tokenizers").is_dir() {
        return Some(shared);
    }
    eprintln!("skipped: no {}", shared.display());
    None
}

fn golden(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)).unwrap()
}

fn llama3(shared: &Path) -> TiktokenTokenizer {
    TiktokenTokenizer::open(&shared.join("tokenizers/tokenizer_llama3.tiktoken")).unwrap()
}

fn llama2(shared: &Path) -> SentencePieceTokenizer {
    SentencePieceTokenizer::open(&shared.join("tokenizers/tokenizer.llama2")).unwrap()
}

fn encode(tokenizer: &dyn Tokenizer, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode(text, &mut ids).unwrap();
    ids
}

/// As in the reference script.
fn hash(ids: &[u32]) -> String {
    let hash = ids.iter().fold(14_695_981_039_346_656_037, |hash: u64, &id| {
        (hash ^ u64::from(id)).wrapping_mul(1_099_511_628_211)
    });
    format!("{:08x}", hash >> 32)
}

#[test]
fn all_c4_rows_have_the_reference_ids() {
    let Some(shared) = shared() else { return };
    let (llama3, llama2) = (llama3(&shared), llama2(&shared));
    let mut files: Vec<PathBuf> =
        shared.join("data/c4/en").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut found = String::from("# file row llama3 llama2\n");
    for path in files {
        let lines = BufReader::new(MultiGzDecoder::new(File::open(&path).unwrap())).lines();
        for (row, line) in (1..).zip(lines) {
            let json: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let text = json["text"].as_str().unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            let (three, two) = (hash(&encode(&llama3, text)), hash(&encode(&llama2, text)));
            writeln!(found, "{name} {row} {three} {two}").unwrap();
        }
    }
    let expected = golden("c4_ids.txt");
    assert_eq!(expected.lines().count(), 1201);
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}

#[test]
fn tricky_texts_have_the_reference_ids() {
    let Some(shared) = shared() else { return };
    let tokenizers: [(&str, &dyn Tokenizer); 2] =
        [("llama3", &llama3(&shared)), ("llama2", &llama2(&shared))];
    let cases: Vec<Value> = serde_json::from_str(&golden("tricky_ids.json")).unwrap();
    for case in &cases {
        let (text, times) = (case["text"].as_str().unwrap(), case["times"].as_u64().unwrap() as usize);
        let text = text.repeat(times);
        for (name, tokenizer) in tokenizers {
            let ids = encode(tokenizer, &text);
            match &case[name] {
                Value::Array(expected) => {
                    assert_eq!(&serde_json::json!(ids), &Value::Array(expected.clone()), "{name}: {case}")
                }
                expected => {
                    assert_eq!(ids.len() as u64, expected["count"].as_u64().unwrap(), "{name}: {case}");
                    assert_eq!(hash(&ids), expected["hash"].as_str().unwrap(), "{name}: {case}");
                }
            }
            // SentencePiece writes spaces as U+2581, so it can't tell the two apart.
            let text = if name == "llama2" { text.replace('\u{2581}', " ") } else { text.clone() };
            assert_eq!(tokenizer.decode(&ids), text, "{name}: {case}");
        }
    }
}
