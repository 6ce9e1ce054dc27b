//! Text to ids and back. One file per kind of tokenizer.

mod bpe;
mod byte;
mod byte_map;
mod huggingface;
mod ids;
mod load;
mod sentencepiece;
mod tiktoken;

pub use byte::ByteTokenizer;
pub use huggingface::HuggingFaceTokenizer;
pub(crate) use ids::IdsOnly;
pub use load::{TOKENIZER_FILES, TokenizerType, load};
pub use sentencepiece::SentencePieceTokenizer;
pub use tiktoken::TiktokenTokenizer;

use crate::DataError;

/// Turns text into token ids.
///
/// Shared by all threads of the loader, so encoding takes `&self`.
pub trait Tokenizer: Send + Sync {
    /// Appends the ids of `text` to `out`, without BOS and EOS.
    ///
    /// # Errors
    /// [`DataError::Tokenizer`] when the tokenizer refuses the text.
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), DataError>;

    /// Text of `ids`, for people to read: ids without text of their own are shown by name, bytes that are
    /// not UTF-8 by the replacement character.
    fn decode(&self, ids: &[u32]) -> String;

    /// Number of ids, special tokens included: every id is below it.
    fn vocab_size(&self) -> usize;

    /// Id that starts a document.
    fn bos_id(&self) -> Option<u32>;

    /// Id that ends a document.
    fn eos_id(&self) -> Option<u32>;

    /// Id that fills a row.
    fn pad_id(&self) -> Option<u32>;

    /// Name or path, for messages.
    fn name(&self) -> String;
}

#[cfg(test)]
mod tests;
