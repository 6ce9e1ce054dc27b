//! Which block a cube works on and which tokens it looks at, worked out once per batch on the host.
//!
//! Blocks count from a document's first token and never cross its end, so the arithmetic of a document can't depend on its
//! neighbours, and what lies outside the document, above the diagonal or outside the window is in no cube's range. The
//! costliest blocks come first, so that short ones fill the gaps at the end.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex};

use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;

use super::super::layout::{Layout, first_visible};
use super::mask::ENTRY;
use crate::ops::cube::upload;

/// Which table, beside the layout.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Key {
    pub(super) device: CubeDevice,
    /// Blocks are of keys, not of queries.
    pub(super) of_keys: bool,
    /// Tokens per block.
    pub(super) rows: usize,
    pub(super) window: Option<usize>,
}

/// A table on a device.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Token indices, document by document.
    pub(super) tokens: CubeTensor,
    /// Entries of [`super::mask::block`].
    pub(super) entries: CubeTensor,
    pub(super) count: usize,
}

/// The tables of a layout that were asked for so far. Clones of the layout share them, and it says nothing about equality.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Cache(Arc<Mutex<Known>>);

type Known = Vec<(Key, Arc<Blocks>)>;

impl PartialEq for Cache {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Cache {}

/// The table of `layout` for `key`, on the device of `like`.
pub(super) fn blocks(layout: &Layout, key: &Key, like: &CubeTensor) -> Arc<Blocks> {
    // A poisoned lock holds whole entries: they are pushed last.
    let mut cache = layout.cube.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some((_, blocks)) = cache.iter().find(|(known, _)| known == key) {
        return blocks.clone();
    }
    let entries = match key.of_keys {
        true => key_blocks(layout, key.rows, key.window),
        false => query_blocks(layout, key.rows, key.window),
    };
    // All tables of a device share its tokens.
    let tokens =
        cache.iter().find(|(known, _)| known.device == key.device).map(|(_, known)| known.tokens.clone());
    let blocks = Arc::new(Blocks {
        tokens: tokens.unwrap_or_else(|| upload(layout.grouped_tokens(), like)),
        entries: upload(entries.as_flattened(), like),
        count: entries.len(),
    });
    cache.push((key.clone(), blocks.clone()));
    blocks
}

/// `[document, its length, first query, first key that this query sees]` per block of `rows` queries.
pub(super) fn query_blocks(layout: &Layout, rows: usize, window: Option<usize>) -> Vec<[u32; ENTRY]> {
    entries(layout, rows, |document, first| {
        let begin = first_visible(document, first, window);
        (begin, document.len().min(first + rows) - begin)
    })
}

/// `[document, its length, first key, end of the queries that see the block's last key]` per block of `rows` keys.
pub(super) fn key_blocks(layout: &Layout, rows: usize, window: Option<usize>) -> Vec<[u32; ENTRY]> {
    entries(layout, rows, |document, first| {
        let last = document[document.len().min(first + rows) - 1] as usize;
        let end = match window {
            Some(window) => document.partition_point(|&query| (query as usize) < last + window),
            None => document.len(),
        };
        (end, end - first)
    })
}

/// Entries of all blocks, by falling cost; `other` gives an entry's last word and its cost from a document and its first row.
fn entries(
    layout: &Layout,
    rows: usize,
    other: impl Fn(&[u32], usize) -> (usize, usize),
) -> Vec<[u32; ENTRY]> {
    let mut costly = Vec::new();
    for index in 0..layout.num_documents() {
        let document = layout.document(index);
        let start = layout.document_range(index).start;
        for first in (0..document.len()).step_by(rows) {
            let (other, cost) = other(document, first);
            costly.push((cost, [start, document.len(), first, other].map(|word| word as u32)));
        }
    }
    costly.sort_by_key(|&(cost, _)| Reverse(cost));
    costly.into_iter().map(|(_, entry)| entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(lengths: &[usize]) -> Layout {
        let ids: Vec<i32> = (1..).zip(lengths).flat_map(|(id, &len)| vec![id; len]).collect();
        Layout::new(&ids, &vec![0; ids.len()], 1, ids.len())
    }

    /// Pairs of a query and a key that the cubes of one head compute, in tiles of `rows` by `columns`.
    fn computed(layout: &Layout, rows: usize, columns: usize, window: Option<usize>) -> [u64; 2] {
        let area = |steps: usize| (steps.div_ceil(columns) * columns * rows) as u64;
        let queries = query_blocks(layout, rows, window)
            .into_iter()
            .map(|[_, len, first, begin]| area((len as usize).min(first as usize + rows) - begin as usize));
        let keys = key_blocks(layout, rows, window)
            .into_iter()
            .map(|[_, _, first, end]| area((end - first) as usize));
        [queries.sum(), keys.sum()]
    }

    #[test]
    fn every_visible_pair_is_in_a_block_and_no_foreign_one() {
        let mixed: Vec<i32> = (0..200).map(|i| [3, 1, 1, 0, 2, 3][(i / 5) % 6]).collect();
        for layout in [packed(&[1, 70, 33, 64, 32]), Layout::new(&mixed, &[0; 200], 2, 100)] {
            for window in [None, Some(1), Some(9), Some(40), Some(1000)] {
                for (document, query) in (0..layout.num_documents())
                    .flat_map(|i| (0..layout.document(i).len()).map(move |query| (i, query)))
                {
                    let start = layout.document_range(document).start as u32;
                    let tokens = layout.document(document);
                    let visible = first_visible(tokens, query, window)..=query;
                    let block_of = |blocks: Vec<[u32; ENTRY]>, row: usize| {
                        let mut of = blocks.into_iter().filter(|[s, _, first, _]| {
                            *s == start && (*first as usize..*first as usize + 32).contains(&row)
                        });
                        let found = of.next().expect("every row has a block");
                        assert!(of.next().is_none(), "and only one");
                        assert_eq!(found[1] as usize, tokens.len());
                        found
                    };
                    let [.., begin] = block_of(query_blocks(&layout, 32, window), query);
                    assert!(begin as usize <= *visible.start());
                    for key in visible {
                        let [_, len, _, end] = block_of(key_blocks(&layout, 32, window), key);
                        assert!(query < end as usize && end <= len);
                    }
                }
            }
        }
    }

    /// Packing and windows cost what they should: the area of the mask, plus what tiles of 64 add at its edges.
    #[test]
    fn hidden_blocks_are_skipped() {
        let whole = computed(&packed(&[4096]), 64, 64, None);
        let visible = packed(&[4096]).visible_pairs(None);
        assert!(whole.iter().all(|&pairs| pairs >= visible && pairs <= visible + 4096 * 64));
        let documents = computed(&packed(&[512; 8]), 64, 64, None);
        assert!(documents.iter().zip(whole).all(|(&pairs, whole)| pairs * 7 < whole));
        let window = computed(&packed(&[4096]), 64, 64, Some(256));
        assert!(window.iter().all(|&pairs| pairs <= 4096 * (256 + 128)));
    }

    #[test]
    fn costly_blocks_come_first() {
        let firsts: Vec<[u32; ENTRY]> = query_blocks(&packed(&[10, 100]), 64, None);
        assert_eq!(firsts, [[10, 100, 64, 0], [10, 100, 0, 0], [0, 10, 0, 0]]);
        assert_eq!(key_blocks(&packed(&[10, 100]), 64, Some(5))[0], [10, 100, 0, 68]);
    }
}
