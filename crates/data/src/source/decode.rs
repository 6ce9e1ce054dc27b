//! A raw row to text or token ids.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::reader::{Column, RawRow};

/// The wanted column of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content<'a> {
    /// Text to tokenize.
    Text(Cow<'a, str>),
    /// Token ids.
    Ids(Vec<i64>),
}

/// Takes `column` out of `row`.
///
/// # Errors
/// What is wrong with the row, for people to read.
pub(crate) fn decode<'a>(row: &'a RawRow, column: &Column) -> Result<Content<'a>, String> {
    match row {
        RawRow::Json(bytes) => decode_json(utf8(bytes)?, column),
        RawRow::Text(bytes) if !column.ids => Ok(Content::Text(utf8(bytes)?.into())),
        RawRow::Text(_) => Err("text holds no token ids; set tokenize_train_data: true".into()),
        RawRow::Ids(ids) => Ok(Content::Ids(ids.clone())),
        RawRow::Bad(error) => Err(error.to_string()),
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let line = 1 + memchr::memchr_iter(b'\n', &bytes[..at]).count();
        let place = if line > 1 { format!(" in line {line}") } else { String::new() };
        format!("invalid UTF-8{place} (byte {at} of the row is 0x{:02x})", bytes[at])
    })
}

fn decode_json<'a>(json: &'a str, column: &Column) -> Result<Content<'a>, String> {
    match parse::<StrictText>(json, column) {
        // Half of a surrogate pair in an escape: read again with a reader that lets it through.
        Err(error) if error.contains("surrogate") || error.contains("hex escape") => {
            parse::<LossyText>(json, column)
        }
        outcome => outcome,
    }
}

fn parse<'a, T: Text>(json: &'a str, column: &Column) -> Result<Content<'a>, String> {
    let mut json = serde_json::Deserializer::from_str(json);
    let seed = Row::<T> { column, text: std::marker::PhantomData };
    let content = seed.deserialize(&mut json).and_then(|content| json.end().map(|()| content));
    content.map_err(|error| {
        // serde_json counts lines inside the row, which is always one: only the column helps.
        let message = error.to_string();
        match message.split_once(" at line ") {
            Some((message, _)) if error.is_data() => message.to_owned(),
            Some((message, _)) => format!("bad JSON: {message} at byte {}", error.column()),
            None => message,
        }
    })
}

/// How a JSON string becomes text.
trait Text {
    fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
        visitor: TextVisitor,
    ) -> Result<Cow<'de, str>, D::Error>;
}

/// Escapes must be valid.
struct StrictText;

impl Text for StrictText {
    fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
        visitor: TextVisitor,
    ) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(visitor)
    }
}

/// A half of a surrogate pair becomes U+FFFD, as in tiktoken.
struct LossyText;

impl Text for LossyText {
    fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
        visitor: TextVisitor,
    ) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_bytes(visitor)
    }
}

/// Takes a string; the column's name is for messages.
struct TextVisitor<'c>(&'c str);

impl<'de> Visitor<'de> for TextVisitor<'_> {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "a string in {}", self.0)
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text))
    }

    fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
        Ok(std::str::from_utf8(bytes).map_or_else(|_| Cow::Owned(replace_surrogates(bytes)), Cow::Borrowed))
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        Ok(Cow::Owned(replace_surrogates(bytes)))
    }
}

/// UTF-8 but for surrogates (three bytes each, from ED A0 80), which become U+FFFD.
fn replace_surrogates(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                return text;
            }
            Err(error) => {
                let (valid, broken) = rest.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                text.push(char::REPLACEMENT_CHARACTER);
                rest = &broken[broken.len().min(3)..];
            }
        }
    }
}

/// An object of which one column is kept.
struct Row<'c, T> {
    column: &'c Column,
    text: std::marker::PhantomData<T>,
}

impl<'de, T: Text> DeserializeSeed<'de> for Row<'_, T> {
    type Value = Content<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: Text> Visitor<'de> for Row<'_, T> {
    type Value = Content<'de>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        let mut others = Vec::new();
        while let Some(key) = map.next_key_seed(Key)? {
            if key == self.column.name {
                // Of a repeated key the last one counts, as in Python.
                found = Some(map.next_value_seed(Value::<T> { row: &self })?);
            } else {
                map.next_value::<IgnoredAny>()?;
                if others.len() < 16 {
                    others.push(key);
                }
            }
        }
        found.ok_or_else(|| {
            let has = if others.is_empty() { "nothing".to_owned() } else { others.join(", ") };
            serde::de::Error::custom(format!("no column {:?}; the row has {has}", self.column.name))
        })
    }
}

/// A key, borrowed where it can be.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_bytes(TextVisitor("a key"))
    }
}

/// The value of the wanted column.
struct Value<'r, 'c, T> {
    row: &'r Row<'c, T>,
}

impl<'de, T: Text> DeserializeSeed<'de> for Value<'_, '_, T> {
    type Value = Content<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let Column { name, ids } = self.row.column;
        if *ids {
            deserializer.deserialize_seq(Ids(name)).map(Content::Ids)
        } else {
            T::deserialize(deserializer, TextVisitor(&format!("column {name:?}"))).map(Content::Text)
        }
    }
}

/// Takes an array of integers; the column's name is for messages.
struct Ids<'c>(&'c str);

impl<'de> Visitor<'de> for Ids<'_> {
    type Value = Vec<i64>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "an array of token ids in column {:?}", self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<i64>, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = seq.next_element()? {
            ids.push(id);
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn json(row: &str) -> Result<String, String> {
        json_bytes(row.as_bytes())
    }

    fn json_bytes(row: &[u8]) -> Result<String, String> {
        let column = Column { name: "text".into(), ids: false };
        decode(&RawRow::Json(row.to_vec()), &column).map(|content| match content {
            Content::Text(text) => text.into_owned(),
            Content::Ids(ids) => format!("{ids:?}"),
        })
    }

    #[test]
    fn takes_one_column() {
        assert_eq!(json(r#"{"url":"u","text":"a","n":{"text":[1]}}"#).unwrap(), "a");
        assert_eq!(json(r#" {"text":"\u00e9\n\ud83c\udf0d\u0000"} "#).unwrap(), "é\n🌍\0");
        assert_eq!(json(r#"{"text":"a","text":"b"}"#).unwrap(), "b");
        assert_eq!(json(r#"{"t\u0065xt":"a"}"#).unwrap(), "a");
    }

    #[test]
    fn half_a_surrogate_pair_becomes_the_replacement_character() {
        for (row, text) in [
            (r#"{"text":"a\ud83cb"}"#, "a\u{fffd}b"),
            (r#"{"text":"\udf0d"}"#, "\u{fffd}"),
            (r#"{"text":"\ud83c\ud83c\udf0d"}"#, "\u{fffd}🌍"),
            (r#"{"url":"\ud800","text":"ok"}"#, "ok"),
        ] {
            assert_eq!(json(row).unwrap(), text, "{row}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        for (row, expected) in [
            (r#"{"url":"u"}"#, "no column \"text\"; the row has url"),
            (r#"{"text":3}"#, "invalid type: integer `3`, expected a string in column \"text\""),
            (r#"{"text":null}"#, "invalid type: null, expected a string in column \"text\""),
            (r#"["text"]"#, "invalid type: sequence, expected an object"),
            (r#"{"text":"a""#, "bad JSON: EOF while parsing an object at byte 11"),
            (r#"{"text":"a"} x"#, "bad JSON: trailing characters at byte 14"),
            (r#"{"url" "u"}"#, "bad JSON: expected `:` at byte 8"),
        ] {
            assert_eq!(json(row).unwrap_err(), expected, "{row}");
        }
        let error = json_bytes(b"{\"text\":\"a\xffb\"}").unwrap_err();
        assert_eq!(error, "invalid UTF-8 (byte 10 of the row is 0xff)");
        let column = Column { name: "text".into(), ids: false };
        let error = decode(&RawRow::Text(b"one\ntwo\n\xc3(".to_vec()), &column).unwrap_err();
        assert_eq!(error, "invalid UTF-8 in line 3 (byte 8 of the row is 0xc3)");
        let deep = format!("{{\"x\":{}", "[".repeat(100_000));
        assert!(json(&deep).unwrap_err().starts_with("bad JSON: "), "an error, not a stack overflow");
    }

    #[test]
    fn token_ids() {
        let column = Column { name: "ids".into(), ids: true };
        let ids = |row: &str| {
            decode(&RawRow::Json(row.as_bytes().to_vec()), &column).map(|content| format!("{content:?}"))
        };
        assert_eq!(ids(r#"{"text":"x","ids":[1,2,3]}"#).unwrap(), "Ids([1, 2, 3])");
        assert!(ids(r#"{"ids":[1,"2"]}"#).unwrap_err().contains("invalid type: string"));
        assert!(
            ids(r#"{"ids":"x"}"#).unwrap_err().contains("expected an array of token ids in column \"ids\"")
        );
    }

    proptest! {
        /// Any text survives JSON, and any bytes are decoded or refused.
        #[test]
        fn round_trip(text in any::<String>()) {
            let row = serde_json::json!({ "n": 1, "text": text }).to_string();
            prop_assert_eq!(json(&row).unwrap(), text);
        }

        #[test]
        fn any_bytes(row in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = json_bytes(&row);
        }

        #[test]
        fn any_value(text in "\"([^\"\\\\]|\\\\[ubnrdf0-9\"\\\\]){0,40}\"?") {
            let _ = json(&format!("{{\"text\":{text}}}"));
        }
    }
}
