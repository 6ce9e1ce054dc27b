//! Finding out what a `tokenizer_path` is, with small files of every kind; and texts that tokenizers trip over.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;

use super::*;

/// A tiktoken file of the 256 bytes.
fn tiktoken() -> String {
    let engine = base64::engine::general_purpose::STANDARD;
    (0..=u8::MAX).map(|byte| format!("{} {byte}\n", engine.encode([byte]))).collect()
}

/// The characters that stand for bytes in a byte-level vocabulary: printable ones for themselves, the others from 256 on.
fn alphabet() -> Vec<char> {
    let stands_for_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..);
    let mut others = 256..;
    let code = |byte: u8| if stands_for_itself(byte) { u32::from(byte) } else { others.next().unwrap() };
    (0..=u8::MAX).map(code).map(|code| char::from_u32(code).unwrap()).collect()
}

/// A byte-level BPE with one merge: a byte's id is the byte, then "aa", a BOS and an EOS.
fn tokenizer_json() -> String {
    let alphabet = alphabet();
    let mut vocab: serde_json::Map<String, serde_json::Value> =
        alphabet.iter().zip(0..).map(|(char, id)| (char.to_string(), id.into())).collect();
    vocab.insert("aa".into(), 256.into());
    let special = |id: u32, content: &str| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                           "normalized": false, "special": true})
    };
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [special(257, "<s>"), special(258, "</s>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "a"]], "ignore_merges": false},
    })
    .to_string()
}

fn no_hub(repo: &str) -> Result<std::path::PathBuf, DataError> {
    panic!("the Hub was asked for {repo}")
}

fn open(path: &Path, kind: TokenizerType) -> Result<Arc<dyn Tokenizer>, DataError> {
    load(path.to_str().unwrap(), kind, &no_hub)
}

fn ids(tokenizer: &dyn Tokenizer, text: &str) -> Vec<u32> {
    let mut out = Vec::new();
    tokenizer.encode(text, &mut out).unwrap();
    out
}

#[test]
fn the_content_of_a_file_says_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let [model, json] = ["tokenizer.model", "tokenizer.json"].map(|name| folder.path().join(name));
    std::fs::write(&model, tiktoken()).unwrap();
    std::fs::write(&json, tokenizer_json()).unwrap();
    for kind in [TokenizerType::SentencePiece, TokenizerType::Tiktoken, TokenizerType::HuggingFace] {
        assert_eq!(open(&model, kind).unwrap().vocab_size(), 256 + 256);
        let json = open(&json, kind).unwrap();
        assert_eq!((json.vocab_size(), json.bos_id(), json.eos_id()), (259, Some(257), Some(258)));
    }
    // In a folder the kind chooses, and a kind that isn't there takes what is.
    let of_folder = |kind| open(folder.path(), kind).unwrap().vocab_size();
    assert_eq!(of_folder(TokenizerType::Tiktoken), 512);
    assert_eq!(of_folder(TokenizerType::HuggingFace), 259);
    assert_eq!(of_folder(TokenizerType::SentencePiece), 259);
    assert_eq!(open(Path::new("anywhere"), TokenizerType::Byte).unwrap().vocab_size(), 259);
}

#[test]
fn what_is_no_tokenizer_is_an_error_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    for content in ["", "hello world\n", "{\"version\": \"1.0\"}", "{"] {
        std::fs::write(&path, content).unwrap();
        let error = open(&path, TokenizerType::HuggingFace).err().unwrap().to_string();
        assert!(error.contains("notes.txt"), "{error}");
    }
    let error = |path: &str| load(path, TokenizerType::Tiktoken, &no_hub).err().unwrap().to_string();
    assert!(error("").contains("tokenizer_path: empty"));
    assert!(error("no/such/file.model").contains("nothing at `no/such/file.model`"));
    let empty = tempfile::tempdir().unwrap();
    assert!(error(empty.path().to_str().unwrap()).contains("no tokenizer.json or tokenizer.model"));
}

#[test]
fn a_name_that_is_no_path_is_asked_from_the_hub() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer_json()).unwrap();
    let fetch = |repo: &str| {
        assert_eq!(repo, "owner/model");
        Ok(folder.path().to_owned())
    };
    assert_eq!(load("owner/model", TokenizerType::HuggingFace, &fetch).unwrap().vocab_size(), 259);
}

#[test]
fn nasty_texts_come_back_from_every_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let [model, json] = ["tokenizer.model", "tokenizer.json"].map(|name| folder.path().join(name));
    std::fs::write(&model, tiktoken()).unwrap();
    std::fs::write(&json, tokenizer_json()).unwrap();
    let long = "a".repeat(1 << 20);
    let texts = [
        "",
        "\0",
        "\u{feff}bom",
        "\u{fffd}",
        "👩‍👩‍👧‍👦🏳️‍🌈",
        "שלום عربى",
        "e\u{301}\u{323}",
        "\r\n\r\n\t ",
        "<s></s><|begin_of_text|>",
        &long,
    ];
    for tokenizer in [
        open(&model, TokenizerType::Tiktoken),
        open(&json, TokenizerType::HuggingFace),
        Ok(Arc::new(ByteTokenizer) as _),
    ] {
        let tokenizer = tokenizer.unwrap();
        for text in texts {
            let ids = ids(tokenizer.as_ref(), text);
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
            let shown: String = text.chars().take(20).collect();
            assert!(tokenizer.decode(&ids) == text, "{}: {shown:?}", tokenizer.name());
        }
    }
}
