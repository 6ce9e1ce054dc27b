//! From a prompt's text to its tokens.

use mt_config::Config;
use mt_data::Tokenizer;

use super::{DecodeError, TextStream};

/// A prompt in tokens.
pub(super) struct Prompt {
    pub(super) ids: Vec<i32>,
}

impl Prompt {
    /// Tokens of prompt number `index`, after BOS when `add_bos` says so and the tokenizer has one.
    pub(super) fn new(
        config: &Config,
        tokenizer: &dyn Tokenizer,
        index: usize,
        text: &str,
    ) -> Result<Self, DecodeError> {
        let mut ids: Vec<u32> = tokenizer.bos_id().filter(|_| config.add_bos).into_iter().collect();
        tokenizer.encode(text, &mut ids)?;
        let limit = config.max_prefill_predict_length;
        match ids.len() {
            0 => Err(DecodeError::EmptyPrompt { index }),
            tokens if tokens > limit => Err(DecodeError::PromptTooLong { index, tokens, limit }),
            // An id beyond i32 is beyond every vocabulary, which the model says.
            _ => Ok(Self { ids: ids.into_iter().map(|id| i32::try_from(id).unwrap_or(i32::MAX)).collect() }),
        }
    }

    /// Text that goes on where the prompt ends: how the next token reads may depend on the one before it.
    pub(super) fn stream(&self) -> TextStream {
        TextStream::after(self.ids.iter().map(|&id| id.cast_unsigned()))
    }
}
