//! Data that is token ids already (`tokenize_train_data: false`) needs no tokenizer.

use super::Tokenizer;
use crate::DataError;

/// Knows how many ids there are and that 0 fills rows; nothing else.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IdsOnly {
    pub(crate) vocab_size: usize,
}

impl Tokenizer for IdsOnly {
    fn encode(&self, _: &str, _: &mut Vec<u32>) -> Result<(), DataError> {
        let reason =
            "empty, so this run reads token ids; to read text it needs a file, a folder or a Hub repository";
        Err(DataError::Setting { key: "tokenizer_path", reason: reason.into() })
    }

    fn decode(&self, ids: &[u32]) -> String {
        ids.iter().map(|id| format!("<{id}>")).collect()
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn bos_id(&self) -> Option<u32> {
        None
    }

    fn eos_id(&self) -> Option<u32> {
        None
    }

    fn pad_id(&self) -> Option<u32> {
        Some(0)
    }

    fn name(&self) -> String {
        "none (token ids)".into()
    }
}
