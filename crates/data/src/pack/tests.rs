//! Against MaxText's golden vectors, and properties on random documents.

use std::path::Path;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::Batch;

const BOS: u32 = 1;
const EOS: u32 = 2;

fn shift() -> Shift {
    Shift { pad_id: Some(0), ignored: vec![0, BOS] }
}

/// Drives a packer as the iterator does.
fn pack_all(packer: &mut dyn Packer, documents: &[Vec<u32>]) -> Vec<Rows> {
    let mut batches = Vec::new();
    for document in documents {
        let mut offset = 0;
        while offset < document.len() {
            let taken = packer.push(&document[offset..]);
            offset += taken;
            if offset < document.len() {
                batches.push(packer.take(batches.len() as u64));
            }
        }
    }
    if !packer.is_empty() {
        batches.push(packer.take(batches.len() as u64));
    }
    batches
}

fn golden() -> Option<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/packing.json");
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("skipped: no {}", path.display());
        return None;
    };
    Some(serde_json::from_str(&text).unwrap())
}

fn documents(case: &Value) -> Vec<Vec<u32>> {
    let length = case["max_target_length"].as_u64().unwrap() as usize;
    let mut documents: Vec<Vec<u32>> = serde_json::from_value(case["docs"].clone()).unwrap();
    documents.iter_mut().for_each(|document| document.truncate(length));
    documents
}

fn flat(rows: &Value) -> Vec<i32> {
    serde_json::from_value::<Vec<Vec<i32>>>(rows.clone()).unwrap().concat()
}

#[test]
fn hf_chain_equals_maxtext() {
    let Some(golden) = golden() else { return };
    for name in ["hf_packandbatch_a", "hf_packandbatch_b", "hf_packandbatch_c"] {
        let case = &golden[name];
        let size = |key: &str| case[key].as_u64().map(|n| n as usize);
        let (batch_size, seq_len) = (size("batch_size").unwrap(), size("max_target_length").unwrap());
        let mut packer = FirstFit::new(batch_size, seq_len, size("max_segments_per_seq"));
        let batches: Vec<Batch> = pack_all(&mut packer, &documents(case))
            .into_iter()
            .map(|rows| rows.into_batch(&shift()))
            .collect();
        let expected: Vec<Batch> = case["batches"]
            .as_array()
            .unwrap()
            .iter()
            .map(|batch| Batch {
                batch_size,
                seq_len,
                inputs: flat(&batch["inputs"]),
                inputs_segmentation: flat(&batch["inputs_segmentation"]),
                inputs_position: flat(&batch["inputs_position"]),
                targets: flat(&batch["targets"]),
                targets_segmentation: flat(&batch["targets_segmentation"]),
                targets_position: flat(&batch["targets_position"]),
            })
            .collect();
        assert_eq!(batches, expected, "{name}");
    }
}

#[test]
fn grain_packers_equal_maxtext() {
    let Some(golden) = golden() else { return };
    let packers: [(&str, Box<dyn Packer>); 3] = [
        ("grain_first_fit", Box::new(FirstFit::grain(2, 16, None, Choose::First))),
        ("grain_best_fit", Box::new(FirstFit::grain(2, 16, None, Choose::Best))),
        ("grain_concat_then_split", Box::new(ConcatThenSplit::new(2, 16, None))),
    ];
    for (name, mut packer) in packers {
        let case = &golden[name];
        let batches = pack_all(packer.as_mut(), &documents(case));
        let field =
            |pick: fn(&Rows) -> &Vec<i32>| batches.iter().flat_map(pick).copied().collect::<Vec<i32>>();
        let expected = |key: &str| {
            case["rows"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|row| serde_json::from_value::<Vec<i32>>(row[key].clone()).unwrap())
                .collect::<Vec<i32>>()
        };
        assert_eq!(field(|rows| &rows.tokens), expected("inputs"), "{name}");
        assert_eq!(field(|rows| &rows.segmentation), expected("inputs_segment_ids"), "{name}");
        assert_eq!(field(|rows| &rows.position), expected("inputs_positions"), "{name}");
    }
}

#[test]
fn one_document_a_row() {
    let documents = vec![vec![1, 5, 2], vec![1, 2], vec![1, 6, 7, 2]];
    let batches = pack_all(&mut OnePerRow::new(2, 4), &documents);
    let tokens: Vec<_> = batches.iter().map(|rows| rows.tokens.clone()).collect();
    assert_eq!(tokens, [vec![1, 5, 2, 0, 1, 2, 0, 0], vec![1, 6, 7, 2, 0, 0, 0, 0]]);
    assert_eq!(batches[0].segmentation, [1, 1, 1, 0, 1, 1, 0, 0]);
}

#[test]
fn without_bos_the_next_document_is_masked() {
    let mut packer = FirstFit::new(1, 8, None);
    let rows = pack_all(&mut packer, &[vec![5, 6, 2], vec![7, 8, 2]]).remove(0);
    let batch = rows.into_batch(&Shift { pad_id: None, ignored: vec![] });
    assert_eq!(batch.targets, [6, 2, 7, 8, 2, 0, 0, 0]);
    assert_eq!(batch.targets_segmentation, [1, 1, 0, 2, 2, 0, 0, 0]);
}

/// A packer by number, so that proptest can choose one.
fn packer(kind: usize, batch_size: usize, seq_len: usize, cap: Option<usize>) -> Box<dyn Packer> {
    match kind {
        0 => Box::new(FirstFit::new(batch_size, seq_len, cap)),
        1 => Box::new(FirstFit::grain(batch_size, seq_len, cap, Choose::First)),
        2 => Box::new(FirstFit::grain(batch_size, seq_len, cap, Choose::Best)),
        3 => Box::new(ConcatThenSplit::new(batch_size, seq_len, cap)),
        _ => Box::new(OnePerRow::new(batch_size, seq_len)),
    }
}

proptest! {
    /// Every token lies in exactly one row, documents keep their order of tokens, and no target comes from
    /// another document. Tokens are unique numbers, so that a token says where it came from.
    #[test]
    fn tokens_are_kept_and_documents_apart(
        lengths in prop::collection::vec(1..40_usize, 0..40),
        kind in 0..5_usize,
        batch_size in 1..5_usize,
        seq_len in 2..24_usize,
        cap in prop::option::of(1..4_usize),
        bos in any::<bool>(),
    ) {
        let mut next = 10;
        let documents: Vec<Vec<u32>> = lengths.iter().map(|&length| {
            let length = if kind == 3 { length } else { length.min(seq_len) };
            let start = next;
            next += length as u32;
            let mut document: Vec<u32> = (start..next).collect();
            if bos { document[0] = BOS; }
            document
        }).collect();
        let batches = pack_all(packer(kind, batch_size, seq_len, cap).as_mut(), &documents);

        let document_of = |id: i32| documents.iter().position(|document| document.contains(&(id as u32)));
        let mut seen = Vec::new();
        for rows in batches {
            prop_assert!(!rows.is_empty());
            let batch = rows.into_batch(&shift());
            for i in 0..batch.inputs.len() {
                if batch.inputs_segmentation[i] == 0 {
                    prop_assert_eq!(batch.inputs[i], 0);
                } else {
                    seen.push(batch.inputs[i] as u32);
                }
                if batch.targets_segmentation[i] != 0 {
                    prop_assert_eq!(batch.targets_segmentation[i], batch.inputs_segmentation[i]);
                    let (input, target) = (batch.inputs[i], batch.targets[i]);
                    prop_assert_ne!(target as u32, BOS);
                    if input as u32 == BOS {
                        let document = document_of(target).expect("a target is a token");
                        prop_assert_eq!(documents[document][1], target as u32);
                    } else {
                        prop_assert_eq!(input + 1, target);
                        prop_assert_eq!(document_of(input), document_of(target));
                    }
                }
            }
            if let Some(cap) = cap {
                prop_assert!(batch.inputs_segmentation.iter().all(|&segment| segment as usize <= cap));
            }
        }
        let mut expected: Vec<u32> = documents.concat();
        expected.sort_unstable();
        seen.sort_unstable();
        prop_assert_eq!(seen, expected);
    }

    /// Positions count from 0 in every segment, segments from 1 in every row, padding comes last.
    #[test]
    fn rows_are_well_formed(
        lengths in prop::collection::vec(1..20_usize, 1..40),
        kind in 0..5_usize,
        batch_size in 1..4_usize,
    ) {
        let seq_len = 20;
        let documents: Vec<Vec<u32>> = lengths.iter().map(|&length| vec![EOS; length]).collect();
        for rows in pack_all(packer(kind, batch_size, seq_len, None).as_mut(), &documents) {
            for row in 0..batch_size {
                let segments = &rows.segmentation[row * seq_len..][..seq_len];
                let positions = &rows.position[row * seq_len..][..seq_len];
                let (mut segment, mut position) = (0, 0);
                for i in 0..seq_len {
                    if segments[i] == 0 {
                        prop_assert!(segments[i..].iter().all(|&s| s == 0));
                        prop_assert!(positions[i..].iter().all(|&p| p == 0));
                        break;
                    }
                    if segments[i] != segment {
                        segment += 1;
                        position = 0;
                    }
                    prop_assert_eq!((segments[i], positions[i]), (segment, position));
                    position += 1;
                }
            }
        }
    }
}
