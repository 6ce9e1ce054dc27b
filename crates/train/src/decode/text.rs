//! Text out of tokens, as they come: never half a character.

use mt_data::Tokenizer;

/// Longest run of tokens that can be one unfinished character: UTF-8 has at most 4 bytes, and a token at least one.
const LONGEST: usize = 4;

/// Turns a growing sequence of tokens into text.
///
/// Tokens may hold parts of a character, and the text of a token may depend on the one before it (SentencePiece drops a leading
/// space). So a window of tokens is decoded: what was written before, which gives the context, and what is new; the difference
/// is written unless it ends in the middle of a character.
#[derive(Debug, Clone, Default)]
pub struct TextStream {
    /// Context, then tokens that aren't written yet.
    window: Vec<u32>,
    /// Tokens of the window that are context.
    context: usize,
}

impl TextStream {
    /// The text after these tokens.
    pub fn after(tokens: impl Iterator<Item = u32>) -> Self {
        let window: Vec<u32> = tokens.collect();
        let start = window.len().saturating_sub(2 * LONGEST);
        let window = window[start..].to_vec();
        Self { context: window.len(), window }
    }

    /// Adds a token; the text that is certain now.
    pub fn push(&mut self, tokenizer: &dyn Tokenizer, token: u32) -> String {
        self.window.push(token);
        let unwritten = self.window.len() - self.context;
        let (text, whole) = self.text(tokenizer, self.window.len());
        if whole {
            self.advance(self.window.len());
            return text;
        }
        if unwritten < LONGEST {
            return String::new();
        }
        // Four tokens that end in no character: the first can't belong to one that is still to come.
        let end = self.window.len() - (LONGEST - 1);
        let (text, _) = self.text(tokenizer, end);
        self.advance(end);
        text
    }

    /// What is left, whole or not.
    pub fn finish(&mut self, tokenizer: &dyn Tokenizer) -> String {
        let (text, _) = self.text(tokenizer, self.window.len());
        self.advance(self.window.len());
        text
    }

    /// Text of the unwritten tokens before `end`, and whether it ends with a whole character.
    fn text(&self, tokenizer: &dyn Tokenizer, end: usize) -> (String, bool) {
        let before = tokenizer.decode(&self.window[..self.context]);
        let all = tokenizer.decode(&self.window[..end]);
        let whole = !all.ends_with(char::REPLACEMENT_CHARACTER);
        (all.strip_prefix(&before).unwrap_or_default().to_owned(), whole)
    }

    /// The tokens before `end` are written: the last of them are context from now on.
    fn advance(&mut self, end: usize) {
        let written = end - self.context;
        // The new context starts where the one before ended: at a whole character, or after bytes that never become one.
        let keep = if written == 0 { 0 } else { self.context };
        self.window.drain(..keep);
        self.context = end - keep;
    }
}

#[cfg(test)]
mod tests {
    use mt_data::tokenizer::ByteTokenizer;

    use super::*;

    /// Pushes bytes one by one; every piece of text that comes, and the rest.
    fn stream(bytes: &[u8]) -> Vec<String> {
        let mut stream = TextStream::default();
        let mut pieces: Vec<String> =
            bytes.iter().map(|&byte| stream.push(&ByteTokenizer, u32::from(byte))).collect();
        pieces.push(stream.finish(&ByteTokenizer));
        pieces
    }

    #[test]
    fn characters_come_whole() {
        assert_eq!(stream("aé🌍b".as_bytes()), ["a", "", "é", "", "", "", "🌍", "b", ""]);
        assert_eq!(stream("日本".as_bytes()), ["", "", "日", "", "", "本", ""]);
    }

    #[test]
    fn bytes_that_are_no_characters_pass_through_and_hold_nothing_back_for_long() {
        let text = |bytes: &[u8]| stream(bytes).concat();
        assert_eq!(text(b"a\xffb"), "a\u{fffd}b");
        assert_eq!(text(&[0xf0, 0x9f]), "\u{fffd}");
        let mut noise = vec![0xff; 9];
        noise.extend("🌍!".as_bytes());
        assert_eq!(text(&noise), format!("{}🌍!", "\u{fffd}".repeat(9)));
        assert!(stream(&[0xff; 9])[3] == "\u{fffd}", "the first of four is written");
    }

    #[test]
    fn special_tokens_are_shown_and_context_is_not() {
        let mut stream = TextStream::after([104, 105].into_iter());
        assert_eq!(stream.push(&ByteTokenizer, 33), "!");
        assert_eq!(stream.push(&ByteTokenizer, ByteTokenizer::BOS), "<bos>");
    }

    #[test]
    fn any_bytes_in_any_order_give_what_decoding_at_once_gives() {
        let mut state = 1u64;
        for _ in 0..2000 {
            let mut bytes = Vec::new();
            for _ in 0..12 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let pieces: [&[u8]; 6] = [b"a", "é".as_bytes(), "🌍".as_bytes(), b"\xff", b"\x80", b"\xf0"];
                bytes.extend_from_slice(pieces[(state >> 33) as usize % 6]);
            }
            let streamed = stream(&bytes).concat();
            // How many replacement characters stand for a run of bytes that are none depends on where it is cut.
            let squeeze = |text: &str| {
                let mut text = text.to_owned();
                while text.contains("\u{fffd}\u{fffd}") {
                    text = text.replace("\u{fffd}\u{fffd}", "\u{fffd}");
                }
                text
            };
            assert_eq!(squeeze(&streamed), squeeze(&String::from_utf8_lossy(&bytes)), "{bytes:?}");
        }
    }
}
