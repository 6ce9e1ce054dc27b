//! From the bytes of a token to its id.

use rustc_hash::FxHashMap;

/// Tokens up to this length are looked up by their bytes held in one integer.
const SHORT: usize = 15;

/// A map from bytes to ids that is fast for the short tokens that texts are made of.
#[derive(Debug, Default)]
pub(super) struct ByteMap {
    /// Tokens of up to [`SHORT`] bytes, by [`short_key`].
    short: FxHashMap<u128, u32>,
    long: FxHashMap<Box<[u8]>, u32>,
}

impl ByteMap {
    /// Maps `bytes` to `id`; returns the id that was there before.
    pub(super) fn insert(&mut self, bytes: &[u8], id: u32) -> Option<u32> {
        match short_key(bytes) {
            Some(key) => self.short.insert(key, id),
            None => self.long.insert(bytes.into(), id),
        }
    }

    /// Id of these bytes.
    pub(super) fn get(&self, bytes: &[u8]) -> Option<u32> {
        match short_key(bytes) {
            Some(key) => self.short.get(&key).copied(),
            None => self.long.get(bytes).copied(),
        }
    }
}

/// The bytes of a short token and their number in one integer.
#[expect(clippy::cast_possible_truncation, reason = "at most 15")]
fn short_key(bytes: &[u8]) -> Option<u128> {
    if bytes.len() > SHORT {
        return None;
    }
    let mut key = [0; 16];
    key[..bytes.len()].copy_from_slice(bytes);
    key[SHORT] = bytes.len() as u8;
    Some(u128::from_le_bytes(key))
}
