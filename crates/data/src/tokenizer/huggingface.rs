//! `tokenizer_type: huggingface`: any `tokenizer.json`, through the `tokenizers` crate.
//!
//! Ids are those of Hugging Face's fast tokenizers without the special tokens that a post-processor would add: BOS and
//! EOS are `add_bos`'s and `add_eos`'s business, so that there is exactly one of each.

use std::path::Path;

use serde_json::Value;
use tokenizers::Tokenizer as Inner;

use super::Tokenizer;
use crate::DataError;

/// Where no file beside the tokenizer names its BOS and EOS: the names in use.
const BOS_NAMES: [&str; 4] = ["<|begin_of_text|>", "<s>", "<bos>", "[BOS]"];
const EOS_NAMES: [&str; 5] = ["<|end_of_text|>", "</s>", "<eos>", "<|endoftext|>", "[EOS]"];

/// A tokenizer read from a `tokenizer.json` and the files beside it.
pub struct HuggingFaceTokenizer {
    name: String,
    inner: Inner,
    vocab_size: usize,
    bos_id: Option<u32>,
    eos_id: Option<u32>,
    pad_id: Option<u32>,
}

impl HuggingFaceTokenizer {
    /// Reads the `tokenizer.json` at `path`. BOS, EOS and padding are those that `tokenizer_config.json` or
    /// `special_tokens_map.json` beside it name.
    ///
    /// # Errors
    /// [`DataError::Io`] and [`DataError::File`], naming the file and what is wrong with it.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let content = std::fs::read(path).map_err(|error| DataError::io(path, error))?;
        let name = path.display().to_string();
        let mut inner = Inner::from_bytes(content)
            .map_err(|error| DataError::File { file: name.clone(), reason: error.to_string() })?;
        // What a tokenizer.json asks for here is for inference; documents are cut by max_target_length.
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|error| DataError::File { file: name.clone(), reason: error.to_string() })?;

        let folder = path.parent().unwrap_or(Path::new("."));
        let mut beside = Vec::new();
        for file in ["tokenizer_config.json", "special_tokens_map.json"] {
            beside.extend(read_json(&folder.join(file))?);
        }
        let named = |key: &str| beside.iter().find_map(|json| token_text(&json[key])).map(str::to_owned);
        let id = |key: &str, usual: &[&str]| match named(key) {
            Some(token) => inner.token_to_id(&token),
            None => usual.iter().find_map(|token| inner.token_to_id(token)),
        };
        let (bos_id, eos_id) = (id("bos_token", &BOS_NAMES), id("eos_token", &EOS_NAMES));
        // MaxText's rule.
        let pad_id = id("pad_token", &[]).or_else(|| id("unk_token", &[]));
        let vocab = inner.get_vocab(true);
        let vocab_size = vocab.values().max().map_or(0, |&id| id as usize + 1);
        Ok(Self { name, inner, vocab_size, bos_id, eos_id, pad_id })
    }
}

/// The JSON file at `path`, if it is there.
fn read_json(path: &Path) -> Result<Option<Value>, DataError> {
    let content = match std::fs::read(path) {
        Ok(content) => content,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DataError::io(path, error)),
    };
    serde_json::from_slice(&content)
        .map(Some)
        .map_err(|error| DataError::File { file: path.display().to_string(), reason: error.to_string() })
}

/// A token is written as its text or as an object with its `content`.
fn token_text(json: &Value) -> Option<&str> {
    json.as_str().or_else(|| json["content"].as_str())
}

impl Tokenizer for HuggingFaceTokenizer {
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), DataError> {
        let encoding = self.inner.encode_fast(text, false).map_err(|error| DataError::Tokenizer {
            tokenizer: self.name.clone(),
            reason: error.to_string(),
        })?;
        out.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.inner.decode(ids, false).unwrap_or_else(|error| format!("<{error}>"))
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn bos_id(&self) -> Option<u32> {
        self.bos_id
    }

    fn eos_id(&self) -> Option<u32> {
        self.eos_id
    }

    fn pad_id(&self) -> Option<u32> {
        self.pad_id
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
