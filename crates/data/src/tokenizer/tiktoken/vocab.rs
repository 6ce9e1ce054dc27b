//! From bytes to token ids and back.

use crate::tokenizer::byte_map::ByteMap;

/// The ordinary tokens; the id of a token is its rank.
#[derive(Debug)]
pub(super) struct Vocab {
    ids: ByteMap,
    bytes: [u32; 256],
    /// All tokens end to end, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Vocab {
    /// Numbers `tokens` in their order.
    ///
    /// # Errors
    /// What is wrong: a token that is there twice, or a byte that is no token, so that some texts have no ids.
    pub(super) fn new(tokens: &[Vec<u8>]) -> Result<Self, String> {
        if u32::try_from(tokens.len()).is_err() {
            return Err(format!("{} tokens; expected less than 2^32", tokens.len()));
        }
        let mut vocab = Self { ids: ByteMap::default(), bytes: [0; 256], text: Vec::new(), ends: Vec::new() };
        for (token, id) in tokens.iter().zip(0..) {
            if let Some(known) = vocab.ids.insert(token, id) {
                return Err(format!("ranks {known} and {id} are the same token"));
            }
            vocab.text.extend_from_slice(token);
            vocab.ends.push(vocab.text.len());
        }
        for byte in 0..=u8::MAX {
            vocab.bytes[usize::from(byte)] =
                vocab.get(&[byte]).ok_or_else(|| format!("no token for byte {byte}; all 256 are needed"))?;
        }
        Ok(vocab)
    }

    /// Number of tokens.
    #[expect(clippy::cast_possible_truncation, reason = "checked when built")]
    pub(super) fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    /// Id of the token with these bytes.
    pub(super) fn get(&self, bytes: &[u8]) -> Option<u32> {
        self.ids.get(bytes)
    }

    /// Id of a single byte.
    pub(super) fn byte(&self, byte: u8) -> u32 {
        self.bytes[usize::from(byte)]
    }

    /// Bytes of a token.
    pub(super) fn token(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        Some(&self.text[start..end])
    }

    /// All tokens by id.
    pub(super) fn tokens(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|id| self.token(id))
    }
}
