//! Cuts text into the pieces that are then encoded one by one, as Llama 3's pattern does:
//!
//! ```text
//! (?i:'s|'t|'re|'ve|'m|'ll|'d)      contraction
//! |[^\r\n\p{L}\p{N}]?\p{L}+         word, with at most one character before it
//! |\p{N}{1,3}                       up to three digits
//! | ?[^\s\p{L}\p{N}]+[\r\n]*        symbols, with at most one space before and line ends behind
//! |\s*[\r\n]+                       white space up to its last line end
//! |\s+(?!\S)                        white space but its last character
//! |\s+                              white space
//! ```
//!
//! Written out by hand because each alternative is decided by the class of one or two characters, so nothing ever
//! needs to be undone; a test holds it against a regex engine.

use super::unicode::{CLASSES, Class, Classes};

/// The pieces of a text, in order; together they are the text.
pub(super) struct Split<'a> {
    text: &'a str,
    classes: &'static Classes,
    at: usize,
}

impl<'a> Split<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, classes: &CLASSES, at: 0 }
    }

    /// Class and width in bytes of the character at `at`; `None` at the end.
    #[inline]
    fn look(&self, at: usize) -> Option<(Class, usize)> {
        let byte = *self.text.as_bytes().get(at)?;
        if byte < 128 {
            return Some((self.classes.ascii(byte), 1));
        }
        let char = self.text[at..].chars().next()?;
        Some((self.classes.of(u32::from(char)), char.len_utf8()))
    }

    /// End of the run of `class` that starts at `at`.
    #[inline]
    fn run(&self, mut at: usize, class: Class) -> usize {
        while let Some((found, width)) = self.look(at)
            && found == class
        {
            at += width;
        }
        at
    }

    /// End of the contraction at `at`, where an apostrophe stands.
    fn contraction(&self, at: usize) -> Option<usize> {
        let rest = &self.text.as_bytes()[at + 1..];
        match rest.first()?.to_ascii_lowercase() {
            b's' | b't' | b'm' | b'd' => return Some(at + 2),
            // U+017F, the long s, is an s when case is ignored.
            0xC5 if rest.get(1) == Some(&0xBF) => return Some(at + 3),
            _ => {}
        }
        let pair = [rest[0].to_ascii_lowercase(), rest.get(1)?.to_ascii_lowercase()];
        matches!(&pair, b"re" | b"ve" | b"ll").then_some(at + 3)
    }

    /// End of the symbols that start at `at`, with the line ends behind them.
    fn symbols(&self, at: usize) -> usize {
        self.run(self.run(at, Class::Other), Class::Newline)
    }

    /// End of the white space piece at `start`.
    fn white_space(&self, start: usize) -> usize {
        let (mut end, mut last, mut after_newline) = (start, start, None);
        while let Some((class @ (Class::Space | Class::Newline), width)) = self.look(end) {
            last = end;
            end += width;
            if class == Class::Newline {
                after_newline = Some(end);
            }
        }
        match after_newline {
            Some(newline) => newline,
            // One character of white space stays with what follows it, unless it is the only one.
            None if end < self.text.len() && last > start => last,
            None => end,
        }
    }

    /// End of the piece that starts at `start`, before the end of the text.
    fn end_of_piece(&self, start: usize, class: Class, width: usize) -> usize {
        let next = start + width;
        match class {
            Class::Letter => self.run(next, Class::Letter),
            Class::Number => {
                let mut end = next;
                for _ in 1..3 {
                    match self.look(end) {
                        Some((Class::Number, width)) => end += width,
                        _ => break,
                    }
                }
                end
            }
            Class::Newline => self.white_space(start),
            Class::Other => {
                if self.text.as_bytes()[start] == b'\''
                    && let Some(end) = self.contraction(start)
                {
                    return end;
                }
                match self.look(next) {
                    Some((Class::Letter, _)) => self.run(next, Class::Letter),
                    _ => self.symbols(next),
                }
            }
            Class::Space => match self.look(next) {
                Some((Class::Letter, _)) => self.run(next, Class::Letter),
                Some((Class::Other, _)) if self.text.as_bytes()[start] == b' ' => self.symbols(next),
                _ => self.white_space(start),
            },
        }
    }
}

impl<'a> Iterator for Split<'a> {
    type Item = &'a str;

    #[inline]
    fn next(&mut self) -> Option<&'a str> {
        let start = self.at;
        let (class, width) = self.look(start)?;
        self.at = self.end_of_piece(start, class, width);
        Some(&self.text[start..self.at])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use fancy_regex::Regex;
    use proptest::prelude::*;

    use super::*;

    static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ))
        .unwrap()
    });

    fn check(text: &str) {
        let expected: Vec<&str> = PATTERN.find_iter(text).map(|found| found.unwrap().as_str()).collect();
        assert_eq!(Split::new(text).collect::<Vec<_>>(), expected, "of {text:?}");
    }

    #[test]
    fn characters_are_classed_as_the_regex_engine_does() {
        // All of the planes with many scripts, a sample of the rest.
        let rest = ('\u{20000}'..=char::MAX).step_by(97);
        for char in ('\0'..'\u{20000}').chain(rest) {
            // After a line end, before and after a letter, a digit, and a space: shows its class.
            let text = format!("\n{char}a1{char}{char} {char}");
            let expected = PATTERN.find_iter(&text).map(|found| found.unwrap().as_str());
            assert!(Split::new(&text).eq(expected), "U+{:04X}", u32::from(char));
        }
    }

    #[test]
    fn hand_picked_texts_split_as_the_regex_engine_does() {
        for text in [
            "",
            " ",
            "   ",
            "  a",
            "a  b",
            "a \n b",
            "a\r\n\r\n  \n  b",
            "\n\n  ",
            " \u{a0}x\u{3000}\u{3000}y",
            "it's IT'S we'RE I'Ve 'LL 'l 'm'd 'ſ 'K don't'",
            "'",
            "''s",
            "!'s",
            "1234567 12 ½²٣",
            "  !!\r\n\r\n!  \t!x",
            "\tx \tx",
            "日本語。テスト",
            "e\u{301}\u{302} a\u{200d}b 👩‍👩‍👧",
            "\u{85}\u{2028}\u{2029}a",
            "a\0b\0\0",
        ] {
            check(text);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn texts_of_critical_characters_split_as_the_regex_engine_does(
            text in r"['sStTrReEvVlLmMdDſK aéñßжش1٣½² \t\r\n\u{a0}\u{3000}\u{85}\u{2028}!\-.\u{301}\u{200d}👩日\u{0}]{0,40}",
        ) {
            check(&text);
        }

        #[test]
        fn any_text_splits_as_the_regex_engine_does(text in any::<String>()) {
            check(&text);
        }
    }
}
