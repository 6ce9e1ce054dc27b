//! Which characters the splitter's pattern calls letters, numbers and white space.

use std::sync::LazyLock;

use regex_syntax::hir::{Class as HirClass, HirKind};

/// The classes that the pattern of [`super::split`] tells apart; they don't overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Everything else.
    Other,
    /// `\p{L}`
    Letter,
    /// `\p{N}`
    Number,
    /// `\s` without CR and LF
    Space,
    /// CR or LF
    Newline,
}

const BLOCK: usize = 256;

/// Class of every character, as blocks of 256 of which equal ones are stored once.
pub(super) struct Classes {
    ascii: [Class; 128],
    block_of: Vec<u16>,
    blocks: Vec<[Class; BLOCK]>,
}

/// Built at first use from the Unicode tables of the regex crates.
pub(super) static CLASSES: LazyLock<Classes> = LazyLock::new(Classes::build);

impl Classes {
    /// Class of an ASCII byte (below 128).
    pub(super) fn ascii(&self, byte: u8) -> Class {
        self.ascii[usize::from(byte & 127)]
    }

    /// Class of a code point.
    pub(super) fn of(&self, code_point: u32) -> Class {
        let at = code_point as usize;
        self.blocks[usize::from(self.block_of[at / BLOCK])][at % BLOCK]
    }

    fn build() -> Self {
        let mut all = vec![Class::Other; char::MAX as usize + 1];
        for (pattern, class) in [
            (r"\p{L}", Class::Letter),
            (r"\p{N}", Class::Number),
            (r"\s", Class::Space),
            (r"[\r\n]", Class::Newline),
        ] {
            let hir = regex_syntax::parse(pattern).expect("a constant pattern of known classes");
            let HirKind::Class(HirClass::Unicode(ranges)) = hir.kind() else {
                unreachable!("a Unicode class parses to a Unicode class");
            };
            for range in ranges.ranges() {
                all[range.start() as usize..=range.end() as usize].fill(class);
            }
        }
        let mut ascii = [Class::Other; 128];
        ascii.copy_from_slice(&all[..128]);
        let mut blocks: Vec<[Class; BLOCK]> = Vec::new();
        let mut block_of = Vec::with_capacity(all.len() / BLOCK);
        for chunk in all.chunks_exact(BLOCK) {
            let known = blocks.iter().position(|block| block == chunk);
            let at = known.unwrap_or_else(|| {
                blocks.push(chunk.try_into().expect("chunks of exactly one block"));
                blocks.len() - 1
            });
            block_of.push(u16::try_from(at).expect("there are only 4352 blocks"));
        }
        Self { ascii, block_of, blocks }
    }
}
