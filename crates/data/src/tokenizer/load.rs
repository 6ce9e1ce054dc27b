//! Finds out what a `tokenizer_path` is, and reads it.

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use super::{ByteTokenizer, HuggingFaceTokenizer, SentencePieceTokenizer, TiktokenTokenizer, Tokenizer};
use crate::DataError;

/// The values of `tokenizer_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenizerType {
    /// Llama 2's `tokenizer.model`.
    SentencePiece,
    /// Llama 3's `tokenizer.model` or `.tiktoken`.
    Tiktoken,
    /// `tokenizer.json`.
    HuggingFace,
    /// One id per byte; needs no file (not in MaxText).
    Byte,
}

impl TokenizerType {
    const ALL: [Self; 4] = [Self::SentencePiece, Self::Tiktoken, Self::HuggingFace, Self::Byte];

    /// The value as it is written in a config.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SentencePiece => "sentencepiece",
            Self::Tiktoken => "tiktoken",
            Self::HuggingFace => "huggingface",
            Self::Byte => "byte",
        }
    }
}

impl fmt::Display for TokenizerType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for TokenizerType {
    type Err = DataError;

    fn from_str(value: &str) -> Result<Self, DataError> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == value).ok_or_else(|| DataError::Setting {
            key: "tokenizer_type",
            reason: format!("`{value}`; expected sentencepiece, tiktoken, huggingface or byte"),
        })
    }
}

/// The files of a Hub repository (or a folder) that [`load`] can use: a folder holding those of them that exist will do.
pub const TOKENIZER_FILES: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "original/tokenizer.model",
    "tokenizer.tiktoken",
];

/// Loads the tokenizer at `path`: a file, a folder, or else the name of a Hub repository, whose tokenizer files `fetch`
/// brings to a local folder.
///
/// As in MaxText, a path with `tokenizer_llama3.tiktoken` in it is tiktoken whatever `kind` says. The format of any other
/// file is seen from its content; where it contradicts `kind`, the content wins and a warning says so. In a folder the
/// file of the format that `kind` asks for is taken, else the first of [`TOKENIZER_FILES`] there.
///
/// # Errors
/// [`DataError::Setting`] where nothing is at `path`, and the errors of reading the file.
pub fn load(
    path: &str,
    kind: TokenizerType,
    fetch: &dyn Fn(&str) -> Result<PathBuf, DataError>,
) -> Result<Arc<dyn Tokenizer>, DataError> {
    if kind == TokenizerType::Byte {
        return Ok(Arc::new(ByteTokenizer));
    }
    if path.is_empty() {
        return Err(missing(format!(
            "empty; tokenizer_type {kind} needs a file, a folder or a Hub repository"
        )));
    }
    let kind = if path.contains("tokenizer_llama3.tiktoken") { TokenizerType::Tiktoken } else { kind };
    let local = Path::new(path);
    if local.is_file() {
        return load_file(local, kind);
    }
    if local.is_dir() {
        return load_folder(local, kind);
    }
    if !is_hub_name(path) {
        return Err(missing(format!(
            "nothing at `{path}`; expected a file, a folder or a Hub repository (`owner/name`)"
        )));
    }
    load_folder(&fetch(path)?, kind)
}

fn missing(reason: String) -> DataError {
    DataError::Setting { key: "tokenizer_path", reason }
}

/// Whether `path`, where nothing is, can be meant as `owner/name` (or the `name` of an old model) on the Hub.
fn is_hub_name(path: &str) -> bool {
    let known_ending =
        [".model", ".json", ".tiktoken", ".llama2"].iter().any(|ending| path.ends_with(ending));
    let is_part = |part: &str| {
        let allowed = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
    };
    !known_ending && path.split('/').count() <= 2 && path.split('/').all(is_part)
}

fn load_folder(folder: &Path, kind: TokenizerType) -> Result<Arc<dyn Tokenizer>, DataError> {
    let config_only = ["tokenizer_config.json", "special_tokens_map.json"];
    let candidates: Vec<PathBuf> = TOKENIZER_FILES
        .into_iter()
        .filter(|name| !config_only.contains(name))
        .map(|name| folder.join(name))
        .filter(|path| path.is_file())
        .collect();
    let wanted = candidates.iter().find(|path| detect(path).is_ok_and(|found| found == kind));
    match wanted.or(candidates.first()) {
        Some(path) => load_file(path, kind),
        None => Err(missing(format!("no tokenizer.json or tokenizer.model in `{}`", folder.display()))),
    }
}

fn load_file(path: &Path, kind: TokenizerType) -> Result<Arc<dyn Tokenizer>, DataError> {
    let found = detect(path)?;
    if found != kind {
        tracing::warn!(
            "tokenizer_type is {kind}, but {} is a {found} file: it is read as {found}; set tokenizer_type: {found}",
            path.display()
        );
    }
    Ok(match found {
        TokenizerType::Tiktoken => Arc::new(TiktokenTokenizer::open(path)?),
        TokenizerType::SentencePiece => Arc::new(SentencePieceTokenizer::open(path)?),
        TokenizerType::HuggingFace => Arc::new(HuggingFaceTokenizer::open(path)?),
        TokenizerType::Byte => Arc::new(ByteTokenizer),
    })
}

/// The format of a file by its first bytes.
fn detect(path: &Path) -> Result<TokenizerType, DataError> {
    let mut head = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(4096).read_to_end(&mut head))
        .map_err(|error| DataError::io(path, error))?;
    detect_content(&head).ok_or_else(|| DataError::File {
        file: path.display().to_string(),
        reason:
            "no tokenizer in it; expected a tokenizer.json, a `.tiktoken` file of `base64 rank` lines, or a \
                 SentencePiece model"
                .to_owned(),
    })
}

fn detect_content(head: &[u8]) -> Option<TokenizerType> {
    // A model starts with its first piece: field 1, then the length of a message that starts with field 1, too.
    const PIECE: u8 = 0x0A;
    if let [PIECE, _, PIECE, ..] = head {
        return Some(TokenizerType::SentencePiece);
    }
    let head = head.trim_ascii_start();
    if head.first() == Some(&b'{') {
        return Some(TokenizerType::HuggingFace);
    }
    let line = head.split(|&byte| byte == b'\n').next()?.trim_ascii();
    let mut fields = line.split(|&byte| byte == b' ');
    let (token, rank) = (fields.next()?, fields.next()?);
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
    let is_tiktoken = !token.is_empty()
        && token.iter().all(is_base64)
        && !rank.is_empty()
        && rank.iter().all(u8::is_ascii_digit)
        && fields.next().is_none();
    is_tiktoken.then_some(TokenizerType::Tiktoken)
}
