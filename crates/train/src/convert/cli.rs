//! The command line of `mt-convert`, as typed.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use safetensors::Dtype;

/// Convert models between Hugging Face's files and mt-train's checkpoints.
#[derive(Debug, Parser)]
#[command(name = "mt-convert", version, about)]
#[command(
    after_help = "Exit codes: 0 success, 1 the conversion failed and wrote nothing, 2 the command line is wrong.

Continue the training of a published model, then publish it:
  mt-convert from-hf Llama-3.1-8B llama
  mt-train --config llama/config.yml run_name=more hf_path=... steps=1000
  mt-convert to-hf maxtext_output/more published --like Llama-3.1-8B --dtype bfloat16"
)]
pub struct ConvertCli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// A direction.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// A Llama, Mistral, Qwen2 or Qwen3 folder of Hugging Face's becomes parameters and a config.yml for mt-train
    FromHf {
        /// Folder with config.json and model.safetensors, or its shards and their index
        source: PathBuf,
        /// Folder to make
        target: PathBuf,
        /// Keys for config.yml, as in `scan_layers=false weight_dtype=bfloat16`
        #[arg(value_name = "KEY=VALUE")]
        overrides: Vec<String>,
    },
    /// A run's newest checkpoint, or any other, becomes a folder that transformers opens
    ToHf {
        /// A run's folder, a folder of checkpoints, a checkpoint, or what from-hf made
        source: PathBuf,
        /// Folder to make
        target: PathBuf,
        /// Element type of all tensors; without it, that of the embedding table
        #[arg(long)]
        dtype: Option<ElementType>,
        /// The run's configuration, where no config.yml lies beside the tensors
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Folder of Hugging Face's that lends the tokenizer, token ids and longest text
        #[arg(long, value_name = "FOLDER")]
        like: Option<PathBuf>,
    },
}

/// An element type of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ElementType {
    /// IEEE single precision
    Float32,
    /// The upper half of float32
    Bfloat16,
    /// IEEE half precision
    Float16,
}

impl From<ElementType> for Dtype {
    fn from(value: ElementType) -> Self {
        match value {
            ElementType::Float32 => Self::F32,
            ElementType::Bfloat16 => Self::BF16,
            ElementType::Float16 => Self::F16,
        }
    }
}
