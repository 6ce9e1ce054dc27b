//! `tokenizer_type: byte`: needs no file.

use super::Tokenizer;
use crate::DataError;

/// Every UTF-8 byte is its own id (0 to 255), then BOS 256, EOS 257 and padding 258: 259 ids.
#[derive(Debug, Clone, Copy, Default)]
pub struct ByteTokenizer;

impl ByteTokenizer {
    /// Starts a document.
    pub const BOS: u32 = 256;
    /// Ends a document.
    pub const EOS: u32 = 257;
    /// Fills a row.
    pub const PAD: u32 = 258;
}

impl Tokenizer for ByteTokenizer {
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), DataError> {
        out.extend(text.bytes().map(u32::from));
        Ok(())
    }

    fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::with_capacity(ids.len());
        for &id in ids {
            match id {
                Self::BOS => bytes.extend_from_slice(b"<bos>"),
                Self::EOS => bytes.extend_from_slice(b"<eos>"),
                Self::PAD => bytes.extend_from_slice(b"<pad>"),
                id => match u8::try_from(id) {
                    Ok(byte) => bytes.push(byte),
                    Err(_) => bytes.extend_from_slice(format!("<{id}>").as_bytes()),
                },
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn vocab_size(&self) -> usize {
        259
    }

    fn bos_id(&self) -> Option<u32> {
        Some(Self::BOS)
    }

    fn eos_id(&self) -> Option<u32> {
        Some(Self::EOS)
    }

    fn pad_id(&self) -> Option<u32> {
        Some(Self::PAD)
    }

    fn name(&self) -> String {
        "byte".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_byte_by_byte() {
        for text in ["", "\0", "hello", "héllo 🌍", "a\nb"] {
            let mut ids = vec![7];
            ByteTokenizer.encode(text, &mut ids).unwrap();
            assert_eq!(ids.len(), 1 + text.len());
            assert_eq!(ByteTokenizer.decode(&ids[1..]), text);
        }
    }

    #[test]
    fn decode_shows_special_ids_and_never_fails() {
        assert_eq!(ByteTokenizer.decode(&[256, 104, 257, 258, 300, 255]), "<bos>h<eos><pad><300>\u{fffd}");
    }
}
