//! Byte-pair merging: the step that tiktoken and SentencePiece share.
//!
//! A piece is a list of symbols. As long as two neighbours have an entry in the table of merges, the pair with the
//! lowest rank is replaced by its merged symbol; of equal ranks the leftmost goes first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

/// From this many symbols on, the heap beats scanning for the lowest rank.
const LONG: usize = 128;

/// No neighbours to merge here.
const NONE: u64 = u64::MAX;

/// Which neighbouring symbols merge, in what order, and into what.
#[derive(Debug, Default)]
pub(super) struct Merges {
    /// (left, right) to (rank, merged symbol), both packed with the first in the upper half.
    pairs: FxHashMap<u64, u64>,
}

/// Buffers that are reused from piece to piece.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// In: the symbols of a piece. Out: the symbols after all merges.
    pub(super) symbols: Vec<u32>,
    /// The merge of each symbol with its right neighbour.
    pairs: Vec<u64>,
    next: Vec<u32>,
    previous: Vec<u32>,
    heap: BinaryHeap<Reverse<(u32, u32, u32)>>,
}

const fn pack(upper: u32, lower: u32) -> u64 {
    ((upper as u64) << 32) | lower as u64
}

const fn rank(pair: u64) -> u32 {
    (pair >> 32) as u32
}

/// The lower half of a packed pair.
#[expect(clippy::cast_possible_truncation, reason = "keeps the lower half")]
const fn merged(pair: u64) -> u32 {
    pair as u32
}

impl Merges {
    /// Adds a merge; a pair that is there already keeps its first entry. `rank` is below `u32::MAX`.
    pub(super) fn insert(&mut self, left: u32, right: u32, rank: u32, merged: u32) {
        self.pairs.entry(pack(left, right)).or_insert(pack(rank, merged));
    }

    fn get(&self, left: u32, right: u32) -> u64 {
        self.pairs.get(&pack(left, right)).copied().unwrap_or(NONE)
    }

    /// Merges `scratch.symbols` in place until no neighbours have an entry.
    ///
    /// Time is linear in the number of symbols up to a logarithm, whatever the text.
    pub(super) fn apply(&self, scratch: &mut Scratch) {
        scratch.pairs.clear();
        scratch.pairs.extend(scratch.symbols.windows(2).map(|pair| self.get(pair[0], pair[1])));
        scratch.pairs.push(NONE);
        if scratch.symbols.len() < LONG {
            self.apply_by_scan(&mut scratch.symbols, &mut scratch.pairs);
        } else {
            self.apply_by_heap(scratch);
        }
    }

    fn apply_by_scan(&self, symbols: &mut Vec<u32>, pairs: &mut Vec<u64>) {
        while let Some(at) = lowest(pairs) {
            symbols[at] = merged(pairs[at]);
            symbols.remove(at + 1);
            pairs.remove(at);
            if let Some(&right) = symbols.get(at + 1) {
                pairs[at] = self.get(symbols[at], right);
            }
            if at > 0 {
                pairs[at - 1] = self.get(symbols[at - 1], symbols[at]);
            }
        }
    }

    fn apply_by_heap(&self, scratch: &mut Scratch) {
        const END: u32 = u32::MAX;
        let Scratch { symbols, pairs, next, previous, heap } = scratch;
        let count = u32::try_from(symbols.len()).expect("a document has fewer than 2^32 symbols");
        next.clear();
        next.extend((1..count).chain([END]));
        previous.clear();
        previous.extend([END].into_iter().chain(0..count - 1));
        heap.clear();
        heap.extend(
            (0..count)
                .zip(pairs.iter())
                .filter(|&(_, &pair)| pair != NONE)
                .map(|(at, &pair)| Reverse((rank(pair), at, merged(pair)))),
        );
        while let Some(Reverse((rank, at, symbol))) = heap.pop() {
            let left = at as usize;
            // An entry whose pair has changed since, or is gone, is stale.
            if pairs[left] != pack(rank, symbol) {
                continue;
            }
            let right = next[left] as usize;
            symbols[left] = symbol;
            pairs[right] = NONE;
            next[left] = next[right];
            pairs[left] = match next[right] {
                END => NONE,
                after => {
                    previous[after as usize] = at;
                    self.get(symbol, symbols[after as usize])
                }
            };
            let before = previous[left];
            if before != END {
                pairs[before as usize] = self.get(symbols[before as usize], symbol);
            }
            for place in [before, at] {
                if place != END && pairs[place as usize] != NONE {
                    let pair = pairs[place as usize];
                    heap.push(Reverse((self::rank(pair), place, merged(pair))));
                }
            }
        }
        let (mut from, mut to) = (0, 0);
        loop {
            symbols[to] = symbols[from];
            to += 1;
            match next[from] {
                END => break,
                after => from = after as usize,
            }
        }
        symbols.truncate(to);
    }
}

/// Leftmost place with the lowest rank.
fn lowest(pairs: &[u64]) -> Option<usize> {
    let mut best = (u32::MAX, 0);
    for (at, &pair) in pairs.iter().enumerate() {
        if rank(pair) < best.0 {
            best = (rank(pair), at);
        }
    }
    (best.0 != u32::MAX).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, word for word.
    fn by_definition(merges: &Merges, mut symbols: Vec<u32>) -> Vec<u32> {
        loop {
            let pairs: Vec<u64> = symbols.windows(2).map(|pair| merges.get(pair[0], pair[1])).collect();
            let Some(at) =
                (0..pairs.len()).filter(|&at| pairs[at] != NONE).min_by_key(|&at| (rank(pairs[at]), at))
            else {
                return symbols;
            };
            symbols[at] = merged(pairs[at]);
            symbols.remove(at + 1);
        }
    }

    proptest! {
        #[test]
        fn both_ways_of_merging_follow_the_definition(
            table in prop::collection::vec((0u32..8, 0u32..8, 0u32..6, 0u32..8), 0..40),
            symbols in prop::collection::vec(0u32..6, 1..60),
        ) {
            let mut merges = Merges::default();
            for (left, right, rank, merged) in table {
                merges.insert(left, right, rank, merged);
            }
            let expected = by_definition(&merges, symbols.clone());
            let mut scratch = Scratch { symbols: symbols.clone(), ..Scratch::default() };
            merges.apply(&mut scratch);
            prop_assert_eq!(&scratch.symbols, &expected);
            scratch.pairs.clear();
            scratch.pairs.extend(symbols.windows(2).map(|pair| merges.get(pair[0], pair[1])));
            scratch.pairs.push(NONE);
            scratch.symbols = symbols;
            merges.apply_by_heap(&mut scratch);
            prop_assert_eq!(&scratch.symbols, &expected);
        }
    }

    #[test]
    fn a_million_equal_symbols_take_no_quadratic_time() {
        let mut merges = Merges::default();
        for doubling in 0..20 {
            merges.insert(doubling, doubling, doubling, doubling + 1);
        }
        let mut scratch = Scratch { symbols: vec![0; 1 << 20], ..Scratch::default() };
        merges.apply(&mut scratch);
        assert_eq!(scratch.symbols, [20]);
    }
}
