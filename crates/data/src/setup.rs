//! From a [`Config`] to a loader.

use std::path::Path;
use std::sync::Arc;

use mt_config::{Config, DatasetType, GrainFileType, GrainPackingType};

use crate::document::Tokenize;
use crate::iterator::{End, PackedBatches, Recipe};
use crate::order::Order;
use crate::pack::{Choose, ConcatThenSplit, FirstFit, OnePerRow, Packer, Shift};
use crate::reuse::Reuse;
use crate::source::hub::{self, HubFiles, Request};
use crate::source::{Column, Files, Format, TextUnit, resolve, resolve_folder};
use crate::synthetic::Synthetic;
use crate::tokenizer::{self, IdsOnly, TOKENIZER_FILES, TokenizerType};
use crate::{Batches, DataError, Loader, Tokenizer};

/// What else `hf_path` may name for `datasets.load_dataset`.
const OTHER_BUILDERS: [&str; 8] =
    ["csv", "arrow", "pandas", "xml", "sql", "webdataset", "imagefolder", "audiofolder"];
/// Rows in a shuffle window of `dataset_type: hf` (the buffer of `datasets`' shuffle).
const HF_WINDOW: usize = 1000;
/// Rows in a shuffle window of `dataset_type: grain` (MaxText's `grain_shuffle_buffer_size`).
const GRAIN_WINDOW: usize = 100;

/// Training batches as the configuration asks for them, of `config.global_batch_size_to_load()` rows: those of all ranks,
/// on every rank, which takes its own ([`RankRows`](crate::RankRows)).
///
/// # Errors
/// Settings that ask for data that can't be had: no such file, an unknown data set type, a vocabulary that is
/// smaller than the tokenizer's.
pub fn train_batches(config: &Config) -> Result<Loader, DataError> {
    let batches = batches(config, &Split::train(config))?;
    Ok(Loader::new(if config.reuse_example_batch > 0 { Box::new(Reuse::new(batches)) } else { batches }))
}

/// Evaluation batches: one pass over the evaluation files in their order, never shuffled.
///
/// # Errors
/// As for [`train_batches`]; also when the configuration names no evaluation data.
pub fn eval_batches(config: &Config) -> Result<Loader, DataError> {
    Ok(Loader::new(batches(config, &Split::eval(config))?))
}

/// The keys that differ between training and evaluation.
struct Split<'a> {
    /// Name of the split on the Hub (`train_split`, `hf_eval_split`).
    name: &'a str,
    name_key: &'static str,
    /// Name of the key of the hf files.
    hf_files_key: &'static str,
    hf_files: &'a [String],
    grain_files_key: &'static str,
    grain_files: &'a [String],
    columns_key: &'static str,
    columns: &'a [String],
    tokenize: bool,
    batch_size: usize,
    shuffle: bool,
    epochs: u64,
    end: End,
}

impl<'a> Split<'a> {
    fn train(config: &'a Config) -> Self {
        Self {
            name: &config.train_split,
            name_key: "train_split",
            hf_files_key: "hf_train_files",
            hf_files: &config.hf_train_files,
            grain_files_key: "grain_train_files",
            grain_files: &config.grain_train_files,
            columns_key: "train_data_columns",
            columns: &config.train_data_columns,
            tokenize: config.tokenize_train_data,
            batch_size: config.global_batch_size_to_load(),
            shuffle: config.enable_data_shuffling,
            epochs: config.num_epoch.max(1) as u64,
            end: if config.generate_padding_batch_train { End::Padding } else { End::Stop },
        }
    }

    fn eval(config: &'a Config) -> Self {
        Self {
            name: &config.hf_eval_split,
            name_key: "hf_eval_split",
            hf_files_key: "hf_eval_files",
            hf_files: &config.hf_eval_files,
            grain_files_key: "grain_eval_files",
            grain_files: &config.grain_eval_files,
            columns_key: "eval_data_columns",
            columns: &config.eval_data_columns,
            tokenize: config.tokenize_eval_data,
            batch_size: config.global_batch_size_to_eval_on(),
            shuffle: false,
            epochs: 1,
            end: if config.generate_padding_batch_eval { End::Padding } else { End::Stop },
        }
    }
}

impl Split<'_> {
    /// The split's name, where it has to have one.
    fn name(&self) -> Result<&str, DataError> {
        if self.name.is_empty() {
            let reason = format!("is empty; name a split such as validation, or give {}", self.hf_files_key);
            return Err(setting(self.name_key, &reason));
        }
        Ok(self.name)
    }
}

fn batches(config: &Config, split: &Split) -> Result<Box<dyn Batches>, DataError> {
    let seq_len = config.max_target_length;
    let max_segments = usize::try_from(config.max_segments_per_seq).ok().filter(|&cap| cap > 0);
    if config.dataset_type == DatasetType::Synthetic {
        let max_segments = max_segments.filter(|_| config.packing);
        let (rows, vocab) = (split.batch_size, config.vocab_size);
        return Ok(Box::new(Synthetic::new(rows, seq_len, vocab, max_segments)));
    }

    let recipe = recipe(config, split)?;
    Ok(Box::new(PackedBatches::new(recipe, packer(config, split, max_segments))?))
}

/// Everything but the packer.
fn recipe(config: &Config, split: &Split) -> Result<Recipe, DataError> {
    let grain = config.dataset_type == DatasetType::Grain;
    let files = Arc::new(if grain { grain_files(config, split)? } else { hf_files(config, split)? });
    let tokenizer = load_tokenizer(config)?;
    check_vocabulary(config, tokenizer.as_ref())?;

    let concat = grain && config.packing && config.grain_packing_type == GrainPackingType::ConcatThenSplit;
    let chunks = grain && !config.use_truncation;
    let pad_id = tokenizer.pad_id();
    // MaxText's grain pipeline leaves BOS out of the ignored targets.
    let bos_id = tokenizer.bos_id().filter(|_| !grain);
    let seq_len = config.max_target_length;
    Ok(Recipe {
        files,
        order: Order {
            shuffle: split.shuffle,
            seed: config.data_shuffle_seed,
            window: if grain { GRAIN_WINDOW } else { HF_WINDOW },
            epochs: split.epochs,
        },
        tokenize: Tokenize {
            tokenizer,
            add_bos: config.add_bos,
            add_eos: config.add_eos,
            max_length: (!concat && !chunks).then_some(seq_len),
            vocab_size: config.vocab_size,
        },
        shift: Shift { pad_id, ignored: pad_id.into_iter().chain(bos_id).collect() },
        batch_size: split.batch_size,
        seq_len,
        whole_documents: !concat,
        end: split.end,
        skip_bad_rows: config.skip_bad_rows,
        threads: None,
    })
}

fn packer(config: &Config, split: &Split, max_segments: Option<usize>) -> Box<dyn Packer> {
    let (rows, seq_len) = (split.batch_size, config.max_target_length);
    match (config.packing, config.dataset_type, config.grain_packing_type) {
        (false, _, _) => Box::new(OnePerRow::new(rows, seq_len)),
        (_, DatasetType::Grain, GrainPackingType::FirstFit) => {
            Box::new(FirstFit::grain(rows, seq_len, max_segments, Choose::First))
        }
        (_, DatasetType::Grain, GrainPackingType::BestFit) => {
            Box::new(FirstFit::grain(rows, seq_len, max_segments, Choose::Best))
        }
        (_, DatasetType::Grain, GrainPackingType::ConcatThenSplit) => {
            Box::new(ConcatThenSplit::new(rows, seq_len, max_segments))
        }
        _ => Box::new(FirstFit::new(rows, seq_len, max_segments)),
    }
}

/// The training files and how their rows become ids, for measuring.
pub(crate) fn train_source(config: &Config) -> Result<(Arc<Files>, Tokenize), DataError> {
    let recipe = recipe(config, &Split::train(config))?;
    Ok((recipe.files, recipe.tokenize))
}

fn column(split: &Split) -> Result<Column, DataError> {
    match split.columns {
        [name] => Ok(Column { name: name.clone(), ids: !split.tokenize }),
        columns => Err(DataError::Setting {
            key: split.columns_key,
            reason: format!(
                "{} columns, expected exactly one for pre-training, such as [text]",
                columns.len()
            ),
        }),
    }
}

/// `dataset_type: hf`: local files by format, a local folder, or a data set on the Hub.
fn hf_files(config: &Config, split: &Split) -> Result<Files, DataError> {
    let column = column(split)?;
    let text = Format::Text(match config.text_unit {
        mt_config::TextUnit::Line => TextUnit::Line,
        mt_config::TextUnit::File => TextUnit::File,
    });
    let with_unit = |format| if matches!(format, Format::Text(_)) { text } else { format };
    let format = match config.hf_path.as_str() {
        "json" => Format::Json,
        "parquet" => Format::Parquet,
        "text" => text,
        "" => {
            let reason = "is empty; give json, parquet, text, a folder, or a Hub data set such as allenai/c4";
            return Err(setting("hf_path", reason));
        }
        other if OTHER_BUILDERS.contains(&other) => {
            let reason = format!("`{other}` files aren't read here; give json, parquet or text");
            return Err(setting("hf_path", &reason));
        }
        folder if Path::new(folder).is_dir() && split.hf_files.is_empty() => {
            let folder = Path::new(folder).join(&config.hf_data_dir);
            let (paths, format) = resolve_folder(&folder, split.name()?, split.name_key)?;
            return Ok(Files::local(paths, with_unit(format), column));
        }
        repo => {
            let files = HubFiles::open(
                &hub_settings(config),
                repo,
                &Request {
                    name: &config.hf_name,
                    data_dir: &config.hf_data_dir,
                    patterns: split.hf_files,
                    patterns_key: split.hf_files_key,
                    split: if split.hf_files.is_empty() { split.name()? } else { split.name },
                    split_key: split.name_key,
                },
            )?;
            let format = with_unit(files.format());
            return Ok(Files::hub(files, format, column));
        }
    };
    let mut patterns = split.hf_files.to_vec();
    if patterns.is_empty() && !config.hf_data_dir.is_empty() {
        patterns.push(config.hf_data_dir.clone());
    } else if !config.hf_data_dir.is_empty() {
        // As in `datasets`: files are looked up in the data folder.
        for pattern in &mut patterns {
            *pattern = Path::new(&config.hf_data_dir).join(&*pattern).display().to_string();
        }
    }
    Ok(Files::local(resolve(split.hf_files_key, &patterns, format)?, format, column))
}

fn hub_settings(config: &Config) -> hub::Settings {
    // Ranks of a node share its cache, and each deletes what it has downloaded itself.
    let keep_bytes = (config.hub_cache_gb * 1e9 / config.ranks().per_node as f64) as u64;
    hub::Settings::from_env(|name| std::env::var(name).ok(), config.hf_access_token.expose(), keep_bytes)
}

/// `dataset_type: grain`.
fn grain_files(config: &Config, split: &Split) -> Result<Files, DataError> {
    let column = column(split)?;
    if config.grain_file_type != GrainFileType::Parquet {
        let reason = "arrayrecord files can't be read here; use Parquet files and grain_file_type: parquet";
        return Err(setting("grain_file_type", reason));
    }
    if split.grain_files.iter().any(|pattern| pattern.contains(';')) {
        let reason = "weighted mixtures (`;`) aren't read here; mix the files beforehand or give one pattern";
        return Err(setting(split.grain_files_key, reason));
    }
    let paths = resolve(split.grain_files_key, split.grain_files, Format::Parquet)?;
    Ok(Files::local(paths, Format::Parquet, column))
}

fn setting(key: &'static str, reason: &str) -> DataError {
    DataError::Setting { key, reason: reason.into() }
}

/// The tokenizer of the configuration, for text that isn't training data.
///
/// # Errors
/// As for [`train_batches`]. Where the data is token ids, the tokenizer is one that refuses text.
pub fn tokenizer_of(config: &Config) -> Result<Arc<dyn Tokenizer>, DataError> {
    let tokenizer = load_tokenizer(config)?;
    check_vocabulary(config, tokenizer.as_ref())?;
    Ok(tokenizer)
}

/// The tokenizer that the configuration names; none is needed where the data is token ids.
pub(crate) fn load_tokenizer(config: &Config) -> Result<Arc<dyn Tokenizer>, DataError> {
    let is_named =
        !config.tokenizer_path.is_empty() || config.tokenizer_type == mt_config::TokenizerType::Byte;
    if !config.tokenize_train_data && !is_named {
        return Ok(Arc::new(IdsOnly { vocab_size: config.vocab_size }));
    }
    let kind = match config.tokenizer_type {
        mt_config::TokenizerType::Sentencepiece => TokenizerType::SentencePiece,
        mt_config::TokenizerType::Tiktoken => TokenizerType::Tiktoken,
        mt_config::TokenizerType::Huggingface => TokenizerType::HuggingFace,
        mt_config::TokenizerType::Byte => TokenizerType::Byte,
    };
    tokenizer::load(&config.tokenizer_path, kind, &|repo| {
        hub::Repo::open(&hub_settings(config), hub::Kind::Model, repo)?.fetch_some(&TOKENIZER_FILES)
    })
}

/// `vocab_size` must hold every id of the tokenizer.
fn check_vocabulary(config: &Config, tokenizer: &dyn Tokenizer) -> Result<(), DataError> {
    let (rows, ids) = (config.vocab_size, tokenizer.vocab_size());
    if rows < ids {
        let reason =
            format!("{rows} is smaller than the vocabulary of the tokenizer {}, {ids}", tokenizer.name());
        return Err(DataError::Setting { key: "vocab_size", reason });
    }
    if rows > ids {
        let name = tokenizer.name();
        tracing::info!("vocab_size {rows} is larger than the vocabulary of the tokenizer {name}, {ids}");
    }
    Ok(())
}
