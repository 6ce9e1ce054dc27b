//! `tokenizer_type: tiktoken`: Llama 3's byte-level BPE.
//!
//! The file lists ordinary tokens by rank; 256 special tokens follow them. Ids are those of the Python package
//! `tiktoken` (`encode_ordinary`) with Llama 3's pattern: text that looks like a special token is ordinary text here,
//! so a document can't end itself.

mod file;
mod split;
mod unicode;
mod vocab;

use std::path::Path;

use super::Tokenizer;
use super::bpe::{Merges, Scratch};
use crate::DataError;
use split::Split;
use vocab::Vocab;

/// Special tokens after the ordinary ones.
const SPECIAL_TOKENS: u32 = 256;

/// A tokenizer read from a `.tiktoken` file (Llama 3's `tokenizer.model` is one too).
#[derive(Debug)]
pub struct TiktokenTokenizer {
    name: String,
    vocab: Vocab,
    merges: Merges,
}

impl TiktokenTokenizer {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`DataError::Io`], or [`DataError::Row`] and [`DataError::File`] where it is not a whole `.tiktoken` file.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let content = std::fs::read(path).map_err(|error| DataError::io(path, error))?;
        Self::parse(&path.display().to_string(), &content)
    }

    /// Reads `content`; messages call it `name`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn parse(name: &str, content: &[u8]) -> Result<Self, DataError> {
        let vocab = Vocab::new(&file::parse(name, content)?)
            .map_err(|reason| DataError::File { file: name.to_owned(), reason })?;
        let mut merges = Merges::default();
        for (token, id) in vocab.tokens().zip(0..) {
            for cut in 1..token.len() {
                let (left, right) = token.split_at(cut);
                if let (Some(left), Some(right)) = (vocab.get(left), vocab.get(right)) {
                    merges.insert(left, right, id, id);
                }
            }
        }
        Ok(Self { name: name.to_owned(), vocab, merges })
    }

    /// The name of the special token with this id, as in Llama 3.1 (3.0 differs only among the reserved ones).
    fn special_token(&self, id: u32) -> Option<String> {
        let index = id.checked_sub(self.vocab.len()).filter(|&index| index < SPECIAL_TOKENS)?;
        Some(match index {
            0 => "<|begin_of_text|>".to_owned(),
            1 => "<|end_of_text|>".to_owned(),
            4 => "<|finetune_right_pad_id|>".to_owned(),
            6 => "<|start_header_id|>".to_owned(),
            7 => "<|end_header_id|>".to_owned(),
            8 => "<|eom_id|>".to_owned(),
            9 => "<|eot_id|>".to_owned(),
            10 => "<|python_tag|>".to_owned(),
            2 | 3 => format!("<|reserved_special_token_{}|>", index - 2),
            5 => "<|reserved_special_token_2|>".to_owned(),
            _ => format!("<|reserved_special_token_{}|>", index - 8),
        })
    }
}

impl Tokenizer for TiktokenTokenizer {
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), DataError> {
        let mut scratch = Scratch::default();
        for piece in Split::new(text) {
            // A piece that is a token is that token, whatever the merges would make of it.
            match self.vocab.get(piece.as_bytes()) {
                Some(id) => out.push(id),
                None => {
                    scratch.symbols.clear();
                    scratch.symbols.extend(piece.bytes().map(|byte| self.vocab.byte(byte)));
                    self.merges.apply(&mut scratch);
                    out.extend_from_slice(&scratch.symbols);
                }
            }
        }
        Ok(())
    }

    fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            match self.vocab.token(id) {
                Some(token) => bytes.extend_from_slice(token),
                None => bytes.extend(self.special_token(id).unwrap_or_else(|| format!("<{id}>")).bytes()),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn vocab_size(&self) -> usize {
        (self.vocab.len() + SPECIAL_TOKENS) as usize
    }

    fn bos_id(&self) -> Option<u32> {
        Some(self.vocab.len())
    }

    fn eos_id(&self) -> Option<u32> {
        Some(self.vocab.len() + 1)
    }

    fn pad_id(&self) -> Option<u32> {
        Some(self.vocab.len() + 4)
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests;
