use proptest::prelude::*;

use super::*;

/// A field of a protobuf message that has a length.
fn bytes_field(number: u8, content: &[u8]) -> Vec<u8> {
    assert!(content.len() < 128, "one byte of length");
    [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
}

fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
    let score = [&[2 << 3 | 5][..], &score.to_le_bytes()].concat();
    let message = [bytes_field(1, text.as_bytes()), score, vec![3 << 3, kind]].concat();
    bytes_field(1, &message)
}

/// A BPE model with byte fallback: unknown, BOS, EOS, 256 bytes, then `pieces` with falling scores.
fn model(pieces: &[&str]) -> Vec<u8> {
    const NORMAL: u8 = 1;
    const UNKNOWN: u8 = 2;
    const CONTROL: u8 = 3;
    const BYTE: u8 = 6;
    let mut file =
        [piece("<unk>", 0.0, UNKNOWN), piece("<s>", 0.0, CONTROL), piece("</s>", 0.0, CONTROL)].concat();
    for byte in 0..=u8::MAX {
        file.extend(piece(&format!("<0x{byte:02X}>"), 0.0, BYTE));
    }
    for (text, rank) in pieces.iter().zip(0u16..) {
        file.extend(piece(text, -f32::from(rank), NORMAL));
    }
    // model_type: BPE (field 3), byte_fallback (field 35).
    file.extend(bytes_field(2, &[3 << 3, 2, 0x98, 0x02, 1]));
    // remove_extra_whitespaces (field 4): no, as Llama 2 has it.
    file.extend(bytes_field(3, &[4 << 3, 0]));
    file
}

/// 259 "▁low", 260 "lo", 261 "low", 262 "er", 263 "▁", 264 "l", 265 "o", 266 "w", 267 "e", 268 "r"
const PIECES: [&str; 10] = ["▁low", "lo", "low", "er", "▁", "l", "o", "w", "e", "r"];

fn small() -> SentencePieceTokenizer {
    SentencePieceTokenizer::parse("small", &model(&PIECES)).unwrap()
}

fn ids(text: &str) -> Vec<u32> {
    let mut out = Vec::new();
    small().encode(text, &mut out).unwrap();
    out
}

#[test]
fn merges_go_by_score_and_a_space_comes_first() {
    assert_eq!(ids("low"), [259]);
    assert_eq!(ids("low lower"), [259, 259, 262]);
    assert_eq!(ids(" low"), [263, 259]);
    assert!(ids("").is_empty());
    let tokenizer = small();
    assert_eq!((tokenizer.vocab_size(), tokenizer.bos_id(), tokenizer.eos_id()), (269, Some(1), Some(2)));
}

#[test]
fn characters_without_a_piece_fall_back_to_their_bytes() {
    // "é" is C3 A9; byte b has id 3 + b.
    assert_eq!(ids("é"), [263, 3 + 0xC3, 3 + 0xA9]);
    assert_eq!(ids("\0"), [263, 3]);
    assert_eq!(small().decode(&ids("low é lower")), "low é lower");
}

#[test]
fn a_megabyte_of_one_character_takes_no_quadratic_time() {
    assert_eq!(ids(&"l".repeat(1 << 20)).len(), 1 + (1 << 20));
}

#[test]
fn what_is_no_model_is_an_error_with_the_name() {
    let whole = model(&PIECES);
    for content in [&b""[..], b"\x0a", b"not a model", &whole[..whole.len() / 2 - 1]] {
        let error = SentencePieceTokenizer::parse("the name", content).unwrap_err().to_string();
        assert!(error.contains("the name"), "{error}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_model_or_an_error(content in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = SentencePieceTokenizer::parse("random", &content);
    }

    #[test]
    fn a_damaged_model_is_a_model_or_an_error(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
        text in any::<String>(),
    ) {
        let mut content = model(&PIECES);
        for (at, byte) in changes {
            let at = at.index(content.len());
            content[at] = byte;
        }
        if cuts {
            content.truncate(cut.index(content.len()));
        }
        if let Ok(tokenizer) = SentencePieceTokenizer::parse("damaged", &content) {
            let mut ids = Vec::new();
            let _ = tokenizer.encode(&text, &mut ids);
            let _ = tokenizer.decode(&ids);
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        }
    }

    #[test]
    fn any_text_comes_back(text in "[^▁]{0,60}") {
        prop_assert_eq!(small().decode(&ids(&text)), text);
    }
}
