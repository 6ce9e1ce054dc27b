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
