//! What ends decoding with exit code 1.

use std::io;
use std::path::PathBuf;

use mt_data::DataError;
use mt_model::batch::BatchError;
use mt_model::device::DeviceError;

use crate::checkpoint::CheckpointError;
use crate::convert::ConvertError;

/// Why text can't be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The prefill takes the whole length.
    #[error(
        "max_prefill_predict_length is {prefill} and max_target_length {target}: no token is left to decode; \
         max_prefill_predict_length must be above 0 and below max_target_length"
    )]
    NoRoom {
        /// `max_prefill_predict_length`.
        prefill: usize,
        /// `max_target_length`.
        target: usize,
    },
    /// A prompt has more tokens than the prefill takes.
    #[error(
        "prompt {index} has {tokens} tokens, max_prefill_predict_length is {limit}: shorten it or raise the key \
         (max_target_length minus max_prefill_predict_length tokens are decoded)"
    )]
    PromptTooLong {
        /// Which of the prompts, from 0.
        index: usize,
        /// Its length.
        tokens: usize,
        /// `max_prefill_predict_length`.
        limit: usize,
    },
    /// A prompt without a token.
    #[error("prompt {index} has no token: give some text, or add_bos with a tokenizer that has a BOS token")]
    EmptyPrompt {
        /// Which of the prompts, from 0.
        index: usize,
    },
    /// The file of prompts can't be used.
    #[error("can't take prompts from `{}`: {reason}", path.display())]
    Prompts {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// There is nothing to decode with.
    #[error(
        "there is no checkpoint in `{}`, and neither load_parameters_path nor load_full_state_path is set: train first, \
         or name a checkpoint with load_parameters_path",
        folder.display()
    )]
    NoWeights {
        /// Where the run's own checkpoints would be.
        folder: PathBuf,
    },
    /// The tokenizer can't be loaded or can't read the prompt.
    #[error(transparent)]
    Tokenizer(#[from] DataError),
    /// The checkpoint can't be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The quantized weights can't be written.
    #[error("save_quantized_params_path: {0}")]
    Save(#[from] ConvertError),
    /// There is no such device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A prompt that the model can't read.
    #[error("the prompt doesn't fit the model: {0}")]
    Batch(#[from] BatchError),
    /// The text can't be written.
    #[error("can't write the text: {0}")]
    Output(io::Error),
}

impl DecodeError {
    /// Whether nobody reads the text any more, as after `mt-decode | head`.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
