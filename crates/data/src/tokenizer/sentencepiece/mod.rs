//! `tokenizer_type: sentencepiece`: BPE models with byte fallback, as Llama 2's `tokenizer.model`.
//!
//! Ids are those of the Python package `sentencepiece`, which MaxText's `SentencePieceTokenizer` calls. For plain text
//! they are also those of Hugging Face's Llama tokenizer with `legacy=False`; the two differ only where a document holds
//! the text of a special token such as `</s>`, which is ordinary text here.

mod proto;

use std::path::Path;

use rustc_hash::FxHashMap;

use super::Tokenizer;
use super::bpe::{Merges, Scratch};
use super::byte_map::ByteMap;
use crate::DataError;
use proto::{Model, ModelType, Piece, PieceType};

/// Stands for a space inside pieces.
const SPACE: char = '\u{2581}';

/// More than any tokenizer in use has; keeps the work of a bad file bounded.
const LONGEST_PIECE: usize = 1024;

/// Symbols of characters that are no piece: this bit and the code point.
const CHARACTER: u32 = 1 << 31;

/// A tokenizer read from a SentencePiece model.
#[derive(Debug)]
pub struct SentencePieceTokenizer {
    name: String,
    pieces: Vec<Piece>,
    merges: Merges,
    /// Pieces of one character.
    characters: FxHashMap<char, u32>,
    /// Pieces that are taken out of the text before anything merges, the longest first, by first character.
    user_defined: FxHashMap<char, Vec<u32>>,
    /// Words that end up as one piece.
    whole_words: ByteMap,
    /// No piece goes on after a word's end, so that words can be encoded one by one.
    words_are_separate: bool,
    unk_id: u32,
    /// Id of each byte, where characters that are no piece are spelled by their bytes.
    bytes: Option<[u32; 256]>,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    bos_id: Option<u32>,
    eos_id: Option<u32>,
    pad_id: Option<u32>,
}

impl SentencePieceTokenizer {
    /// Reads the model at `path`.
    ///
    /// # Errors
    /// [`DataError::Io`], or [`DataError::File`] where it is no whole model, or one of a kind that is not supported.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let content = std::fs::read(path).map_err(|error| DataError::io(path, error))?;
        Self::parse(&path.display().to_string(), &content)
    }

    /// Reads the model in `content`; messages call it `name`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn parse(name: &str, content: &[u8]) -> Result<Self, DataError> {
        proto::parse(content)
            .and_then(|model| Self::new(name, model))
            .map_err(|reason| DataError::File { file: name.to_owned(), reason })
    }

    fn new(name: &str, model: Model) -> Result<Self, String> {
        check_supported(&model)?;
        let id_of_kind =
            |text: &str, kind| position(&model.pieces, |piece| piece.kind == kind && piece.text == text);
        let unk_id = position(&model.pieces, |piece| piece.kind == PieceType::Unknown)
            .ok_or("no piece of type UNKNOWN in it")?;
        let mut tokenizer = Self {
            name: name.to_owned(),
            merges: Merges::default(),
            characters: FxHashMap::default(),
            user_defined: FxHashMap::default(),
            whole_words: ByteMap::default(),
            words_are_separate: model.pieces.iter().all(|piece| !leaves_its_word(&piece.text)),
            unk_id,
            bytes: if model.byte_fallback { Some(byte_pieces(&model.pieces)?) } else { None },
            add_dummy_prefix: model.add_dummy_prefix,
            remove_extra_whitespaces: model.remove_extra_whitespaces,
            bos_id: id_of_kind(&model.bos_piece, PieceType::Control),
            eos_id: id_of_kind(&model.eos_piece, PieceType::Control),
            // MaxText's rule for a tokenizer without padding.
            pad_id: id_of_kind(&model.pad_piece, PieceType::Control).or(Some(unk_id)),
            pieces: model.pieces,
        };
        tokenizer.index_pieces()?;
        Ok(tokenizer)
    }

    /// Fills the tables that encoding looks pieces up in.
    fn index_pieces(&mut self) -> Result<(), String> {
        let mut normal = FxHashMap::default();
        for (piece, id) in self.pieces.iter().zip(0..) {
            let text = piece.text.as_str();
            let known = match piece.kind {
                PieceType::Normal => normal.insert(text, id),
                PieceType::UserDefined => {
                    self.user_defined.entry(first_char(text)).or_default().push(id);
                    None
                }
                _ => continue,
            };
            if let Some(known) = known {
                return Err(format!("pieces {known} and {id} are both `{text}`"));
            }
            if is_one_char(text) {
                self.characters.insert(first_char(text), id);
            }
        }
        for ids in self.user_defined.values_mut() {
            ids.sort_by_key(|&id| std::cmp::Reverse(self.pieces[id as usize].text.len()));
        }

        let symbol = |text: &str| match normal.get(text) {
            Some(&id) => Some(id),
            None if is_one_char(text) && !self.characters.contains_key(&first_char(text)) => {
                Some(CHARACTER | u32::from(first_char(text)))
            }
            None => None,
        };
        let ranks = ranks_by_score(&self.pieces);
        for (piece, id) in self.pieces.iter().zip(0..).filter(|(piece, _)| piece.kind == PieceType::Normal) {
            for (cut, _) in piece.text.char_indices().skip(1) {
                let (left, right) = piece.text.split_at(cut);
                if let (Some(left), Some(right)) = (symbol(left), symbol(right)) {
                    self.merges.insert(left, right, ranks[id as usize], id);
                }
            }
        }

        let mut scratch = Scratch::default();
        let mut whole_words = ByteMap::default();
        for (piece, id) in self.pieces.iter().zip(0..).filter(|(piece, _)| piece.kind == PieceType::Normal) {
            self.merge(&piece.text, &mut scratch);
            if scratch.symbols == [id] {
                whole_words.insert(piece.text.as_bytes(), id);
            }
        }
        self.whole_words = whole_words;
        Ok(())
    }

    /// The text as pieces spell it.
    fn normalize(&self, text: &str) -> String {
        let mut text = text;
        if self.remove_extra_whitespaces {
            text = text.trim_matches(' ');
        }
        let mut normalized = String::with_capacity(text.len() + text.len() / 2 + SPACE.len_utf8());
        if text.is_empty() {
            return normalized;
        }
        if self.add_dummy_prefix {
            normalized.push(SPACE);
        }
        let mut words = text.split(' ');
        normalized.push_str(words.next().unwrap_or_default());
        for word in words {
            if !(word.is_empty() && self.remove_extra_whitespaces) {
                normalized.push(SPACE);
                normalized.push_str(word);
            }
        }
        if self.remove_extra_whitespaces {
            normalized.truncate(normalized.trim_end_matches(SPACE).len());
        }
        normalized
    }

    /// Leaves the merged symbols of a word, or of all of a text, in `scratch`.
    fn merge(&self, word: &str, scratch: &mut Scratch) {
        scratch.symbols.clear();
        let mut rest = word;
        while let Some(char) = rest.chars().next() {
            let user_defined = self.user_defined.get(&char).into_iter().flatten().copied();
            let mut found = user_defined.map(|id| (id, self.pieces[id as usize].text.len()));
            let (symbol, width) = found
                .find(|&(id, _)| rest.starts_with(&self.pieces[id as usize].text))
                .unwrap_or_else(|| {
                    let symbol = self.characters.get(&char).copied().unwrap_or(CHARACTER | u32::from(char));
                    (symbol, char.len_utf8())
                });
            scratch.symbols.push(symbol);
            rest = &rest[width..];
        }
        self.merges.apply(scratch);
    }

    /// Appends the ids of `symbols`, spelling or naming the characters that are no piece.
    fn push_ids(&self, symbols: &[u32], out: &mut Vec<u32>) {
        let mut after_unknown = false;
        for &symbol in symbols {
            let unknown = symbol & CHARACTER != 0;
            match &self.bytes {
                _ if !unknown => out.push(symbol),
                Some(ids) => {
                    let char = char::from_u32(symbol & !CHARACTER).unwrap_or(char::REPLACEMENT_CHARACTER);
                    out.extend(char.encode_utf8(&mut [0; 4]).bytes().map(|byte| ids[usize::from(byte)]));
                }
                // A run of unknown characters is one unknown piece.
                None if !after_unknown => out.push(self.unk_id),
                None => {}
            }
            after_unknown = unknown;
        }
    }
}

impl Tokenizer for SentencePieceTokenizer {
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), DataError> {
        let normalized = self.normalize(text);
        let mut scratch = Scratch::default();
        if !self.words_are_separate {
            self.merge(&normalized, &mut scratch);
            self.push_ids(&scratch.symbols, out);
            return Ok(());
        }
        for word in words(&normalized) {
            match self.whole_words.get(word.as_bytes()) {
                Some(id) => out.push(id),
                None => {
                    self.merge(word, &mut scratch);
                    self.push_ids(&scratch.symbols, out);
                }
            }
        }
        Ok(())
    }

    fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        let mut at_start = self.add_dummy_prefix;
        for &id in ids {
            match self.pieces.get(id as usize) {
                Some(Piece { kind: PieceType::Normal | PieceType::UserDefined, text, .. }) => {
                    let text = if at_start { text.strip_prefix(SPACE).unwrap_or(text) } else { text };
                    bytes.extend_from_slice(text.replace(SPACE, " ").as_bytes());
                    at_start = false;
                }
                Some(Piece { kind: PieceType::Byte, text, .. }) => {
                    bytes.extend(byte_value(text));
                    at_start = false;
                }
                Some(Piece { text, .. }) => {
                    bytes.extend_from_slice(text.as_bytes());
                    at_start = self.add_dummy_prefix;
                }
                None => bytes.extend_from_slice(format!("<{id}>").as_bytes()),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn vocab_size(&self) -> usize {
        self.pieces.len()
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

/// Refuses what the encoder here would get wrong.
fn check_supported(model: &Model) -> Result<(), String> {
    const INSTEAD: &str = "use the model's tokenizer.json with tokenizer_type: huggingface";
    let unsupported = match model {
        Model { pieces, .. } if pieces.is_empty() => return Err("no pieces in it".to_owned()),
        Model { pieces, .. } if pieces.len() >= CHARACTER as usize => {
            return Err(format!("{} pieces; expected less than {CHARACTER}", pieces.len()));
        }
        Model { model_type: ModelType::Unigram, .. } => "a unigram model",
        Model { model_type: ModelType::Word, .. } => "a word model",
        Model { model_type: ModelType::Char, .. } => "a character model",
        Model { charsmap_bytes: 1.., .. } => "a table of character replacements (such as NFKC)",
        Model { whitespace_is_suffix: true, .. } => "treat_whitespace_as_suffix",
        Model { escape_whitespaces: false, .. } => "escape_whitespaces: false",
        Model { pieces, .. } if pieces.iter().any(|piece| piece.kind == PieceType::Unused) => {
            "pieces of type UNUSED"
        }
        _ => "",
    };
    if !unsupported.is_empty() {
        return Err(format!("{unsupported}; only BPE models as Llama 2's are read here: {INSTEAD}"));
    }
    for (piece, id) in model.pieces.iter().zip(0..) {
        if piece.text.is_empty() || piece.text.len() > LONGEST_PIECE {
            return Err(format!("piece {id} has {} bytes; expected 1 to {LONGEST_PIECE}", piece.text.len()));
        }
        if piece.score.is_nan() {
            return Err(format!("the score of piece {id} is not a number"));
        }
    }
    Ok(())
}

fn position(pieces: &[Piece], is_it: impl Fn(&Piece) -> bool) -> Option<u32> {
    pieces.iter().zip(0..).find(|(piece, _)| is_it(piece)).map(|(_, id)| id)
}

/// The ids of `<0x00>` to `<0xFF>`.
fn byte_pieces(pieces: &[Piece]) -> Result<[u32; 256], String> {
    let mut ids = [None; 256];
    for (piece, id) in pieces.iter().zip(0..).filter(|(piece, _)| piece.kind == PieceType::Byte) {
        let byte = byte_value(&piece.text)
            .ok_or_else(|| format!("byte piece {id} is `{}`; expected <0x00> to <0xFF>", piece.text))?;
        ids[usize::from(byte)] = Some(id);
    }
    let mut all = [0; 256];
    for byte in 0..256 {
        all[byte] =
            ids[byte].ok_or_else(|| format!("byte_fallback is on, but there is no piece <0x{byte:02X}>"))?;
    }
    Ok(all)
}

fn byte_value(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The order in which pieces merge: 0 for the highest score; equal scores have equal ranks.
fn ranks_by_score(pieces: &[Piece]) -> Vec<u32> {
    let mut scores: Vec<f32> = pieces.iter().map(|piece| piece.score).collect();
    scores.sort_by(|a, b| b.total_cmp(a));
    scores.dedup();
    let rank = |piece: &Piece| scores.partition_point(|&score| score > piece.score);
    pieces.iter().map(|piece| u32::try_from(rank(piece)).expect("fewer ranks than pieces")).collect()
}

/// Whether a piece goes on with a space after something else.
fn leaves_its_word(text: &str) -> bool {
    text.trim_start_matches(SPACE).contains(SPACE)
}

/// The words of a normalized text, each with the spaces before it.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let body = rest.len() - rest.trim_start_matches(SPACE).len();
        let end = rest[body..].find(SPACE).map_or(rest.len(), |length| body + length);
        let (word, after) = rest.split_at(end);
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}

fn is_one_char(text: &str) -> bool {
    text.chars().nth(1).is_none()
}

/// First character of a piece, none of which is empty.
fn first_char(text: &str) -> char {
    text.chars().next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
