//! Reads the parts that matter of a SentencePiece model: a protobuf message `ModelProto`.
//!
//! Only what encoding needs is kept (field numbers are those of `sentencepiece_model.proto`); other fields are skipped.

/// What a piece is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// An entry of the vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: PieceType,
}

/// How the model cuts text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelType {
    Unigram,
    Bpe,
    Word,
    Char,
}

/// A model file, with the defaults of the format where it says nothing.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Model {
    pub(super) pieces: Vec<Piece>,
    pub(super) model_type: ModelType,
    pub(super) byte_fallback: bool,
    pub(super) whitespace_is_suffix: bool,
    pub(super) unk_piece: String,
    pub(super) bos_piece: String,
    pub(super) eos_piece: String,
    pub(super) pad_piece: String,
    /// Size of the table of character replacements.
    pub(super) charsmap_bytes: usize,
    pub(super) add_dummy_prefix: bool,
    pub(super) remove_extra_whitespaces: bool,
    pub(super) escape_whitespaces: bool,
}

/// The model in `bytes`.
///
/// # Errors
/// What is wrong, and at which byte.
pub(super) fn parse(bytes: &[u8]) -> Result<Model, String> {
    let mut model = Model {
        pieces: Vec::new(),
        model_type: ModelType::Unigram,
        byte_fallback: false,
        whitespace_is_suffix: false,
        unk_piece: "<unk>".to_owned(),
        bos_piece: "<s>".to_owned(),
        eos_piece: "</s>".to_owned(),
        pad_piece: "<pad>".to_owned(),
        charsmap_bytes: 0,
        add_dummy_prefix: true,
        remove_extra_whitespaces: true,
        escape_whitespaces: true,
    };
    let mut fields = Fields { bytes, offset: 0 };
    while let Some(field) = fields.next()? {
        match field.number {
            1 => model.pieces.push(parse_piece(field.message()?)?),
            2 => parse_trainer(field.message()?, &mut model)?,
            3 => parse_normalizer(field.message()?, &mut model)?,
            _ => {}
        }
    }
    Ok(model)
}

fn parse_piece(mut fields: Fields) -> Result<Piece, String> {
    let mut piece = Piece { text: String::new(), score: 0.0, kind: PieceType::Normal };
    while let Some(field) = fields.next()? {
        match field.number {
            1 => piece.text = field.text()?,
            2 => piece.score = field.float()?,
            3 => {
                piece.kind = match field.integer()? {
                    1 => PieceType::Normal,
                    2 => PieceType::Unknown,
                    3 => PieceType::Control,
                    4 => PieceType::UserDefined,
                    5 => PieceType::Unused,
                    6 => PieceType::Byte,
                    other => return Err(field.wrong(&format!("piece type {other}; expected 1 to 6"))),
                }
            }
            _ => {}
        }
    }
    Ok(piece)
}

fn parse_trainer(mut fields: Fields, model: &mut Model) -> Result<(), String> {
    while let Some(field) = fields.next()? {
        match field.number {
            3 => {
                model.model_type = match field.integer()? {
                    1 => ModelType::Unigram,
                    2 => ModelType::Bpe,
                    3 => ModelType::Word,
                    4 => ModelType::Char,
                    other => return Err(field.wrong(&format!("model type {other}; expected 1 to 4"))),
                }
            }
            24 => model.whitespace_is_suffix = field.integer()? != 0,
            35 => model.byte_fallback = field.integer()? != 0,
            45 => model.unk_piece = field.text()?,
            46 => model.bos_piece = field.text()?,
            47 => model.eos_piece = field.text()?,
            48 => model.pad_piece = field.text()?,
            _ => {}
        }
    }
    Ok(())
}

fn parse_normalizer(mut fields: Fields, model: &mut Model) -> Result<(), String> {
    while let Some(field) = fields.next()? {
        match field.number {
            2 => model.charsmap_bytes = field.bytes()?.len(),
            3 => model.add_dummy_prefix = field.integer()? != 0,
            4 => model.remove_extra_whitespaces = field.integer()? != 0,
            5 => model.escape_whitespaces = field.integer()? != 0,
            _ => {}
        }
    }
    Ok(())
}

/// The fields of one message, in order.
struct Fields<'a> {
    bytes: &'a [u8],
    /// Where `bytes` starts in the file.
    offset: usize,
}

struct Field<'a> {
    number: u64,
    value: Value<'a>,
    /// Where the value starts in the file.
    offset: usize,
}

enum Value<'a> {
    Integer(u64),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
    Fixed64,
}

impl<'a> Fields<'a> {
    fn next(&mut self) -> Result<Option<Field<'a>>, String> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let start = self.offset;
        let tag = self.integer()?;
        let offset = self.offset;
        let value = match tag & 7 {
            0 => Value::Integer(self.integer()?),
            1 => {
                self.take(8)?;
                Value::Fixed64
            }
            2 => {
                let length = self.integer()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed32(self.take(4)?.try_into().expect("four bytes were taken")),
            other => return Err(format!("byte {start}: wire type {other}; expected 0, 1, 2 or 5")),
        };
        let offset = if matches!(value, Value::Bytes(_)) { self.offset - value.len() } else { offset };
        Ok(Some(Field { number: tag >> 3, value, offset }))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], String> {
        let taken = usize::try_from(length).ok().and_then(|length| self.bytes.split_at_checked(length));
        let (taken, rest) = taken.ok_or_else(|| {
            format!("byte {}: {length} bytes announced, {} are left", self.offset, self.bytes.len())
        })?;
        self.bytes = rest;
        self.offset += taken.len();
        Ok(taken)
    }

    /// A number of seven bits a byte, the lowest first.
    fn integer(&mut self) -> Result<u64, String> {
        let start = self.offset;
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Ok(value);
            }
        }
        Err(format!("byte {start}: a number of more than ten bytes"))
    }
}

impl Value<'_> {
    fn len(&self) -> usize {
        if let Value::Bytes(bytes) = self { bytes.len() } else { 0 }
    }
}

impl<'a> Field<'a> {
    fn wrong(&self, what: &str) -> String {
        format!("byte {}: {what} (field {})", self.offset, self.number)
    }

    fn integer(&self) -> Result<u64, String> {
        if let Value::Integer(value) = self.value { Ok(value) } else { Err(self.wrong("not an integer")) }
    }

    fn float(&self) -> Result<f32, String> {
        if let Value::Fixed32(bytes) = self.value {
            Ok(f32::from_le_bytes(bytes))
        } else {
            Err(self.wrong("not a 32-bit float"))
        }
    }

    fn bytes(&self) -> Result<&'a [u8], String> {
        if let Value::Bytes(bytes) = self.value {
            Ok(bytes)
        } else {
            Err(self.wrong("not a string or message"))
        }
    }

    fn text(&self) -> Result<String, String> {
        str::from_utf8(self.bytes()?).map(str::to_owned).map_err(|_| self.wrong("not UTF-8"))
    }

    fn message(&self) -> Result<Fields<'a>, String> {
        Ok(Fields { bytes: self.bytes()?, offset: self.offset })
    }
}
