use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;

/// The 256 bytes and then `tokens`.
fn file_with(tokens: &[&str]) -> Vec<u8> {
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
    let tokens = bytes.chain(tokens.iter().map(|token| token.as_bytes().to_vec()));
    let lines = tokens.zip(0..).map(|(token, rank)| format!("{} {rank}\n", STANDARD.encode(token)));
    lines.collect::<String>().into_bytes()
}

fn ids(tokenizer: &TiktokenTokenizer, text: &str) -> Vec<u32> {
    let mut out = Vec::new();
    tokenizer.encode(text, &mut out).unwrap();
    out
}

#[test]
fn merges_go_by_rank_and_whole_pieces_win() {
    // 256 "lo", 257 "ow", 258 "low", 259 " low", 260 "er", 261 "xyz" (which no merge reaches)
    let tokenizer =
        TiktokenTokenizer::parse("small", &file_with(&["lo", "ow", "low", " low", "er", "xyz"])).unwrap();
    assert_eq!(ids(&tokenizer, "low low lower"), [258, 259, 259, 260]);
    assert_eq!(ids(&tokenizer, "xyz"), [261]);
    assert_eq!(ids(&tokenizer, "xyzz"), [120, 121, 122, 122]);
    assert_eq!(tokenizer.vocab_size(), 262 + 256);
    assert_eq!(tokenizer.decode(&[258, 259, 260]), "low lower");
}

#[test]
fn what_is_no_tiktoken_file_is_an_error_with_its_line() {
    let error = |content: &[u8]| TiktokenTokenizer::parse("v.tiktoken", content).unwrap_err().to_string();
    let mut missing = file_with(&["lo"]);
    missing.extend(b"bG93 300\n");
    for (content, expected) in [
        (&b""[..], "no tokens"),
        (b"IQ== 0\nIQ=\n", "expected `base64 rank`"),
        (b"IQ== 0\n!!! 1\n", "is not base64"),
        (b"IQ== 0\nIg== x\n", "is not a number"),
        (b"IQ== 0\nIg== 0\n", "rank 0 is there twice"),
        (&missing, "rank 300 follows rank 256"),
    ] {
        let found = error(content);
        assert!(found.contains("v.tiktoken") && found.contains(expected), "{expected}: {found}");
    }
}

#[test]
fn a_megabyte_of_one_character_takes_no_quadratic_time() {
    let tokenizer = TiktokenTokenizer::parse("small", &file_with(&["aa", "aaaa"])).unwrap();
    assert_eq!(ids(&tokenizer, &"a".repeat(1 << 20)), vec![257; 1 << 18]);
    assert_eq!(ids(&tokenizer, &"\0".repeat(1 << 20)).len(), 1 << 20);
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_a_file_or_an_error(content in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
        let _ = TiktokenTokenizer::parse("random", &content);
    }

    #[test]
    fn a_damaged_file_is_a_file_or_an_error(
        changes in proptest::collection::vec((proptest::prelude::any::<proptest::sample::Index>(), proptest::num::u8::ANY), 1..6),
        text in "\\PC{0,40}",
    ) {
        let mut content = file_with(&["lo", "ow", "low"]);
        for (at, byte) in changes {
            let at = at.index(content.len());
            content[at] = byte;
        }
        if let Ok(tokenizer) = TiktokenTokenizer::parse("damaged", &content) {
            let _ = tokenizer.decode(&ids(&tokenizer, &text));
        }
    }

    #[test]
    fn any_text_comes_back(text in "\\PC{0,60}") {
        let tokenizer = TiktokenTokenizer::parse("small", &file_with(&["lo", "ow", "low", " low"])).unwrap();
        proptest::prop_assert_eq!(tokenizer.decode(&ids(&tokenizer, &text)), text);
    }
}
