//! The lookup on slices.

use rayon::prelude::*;

use crate::ops::engine::{Host, by_dtype};
use crate::ops::memory::Buffer;
use crate::ops::real::Real;

pub(super) fn forward(ids: &[i64], table: &Host) -> Host {
    let [_, cols] = table.dims();
    by_dtype!(table.dtype(), E => {
        let table = table.values::<E>();
        let mut y = Buffer::<E>::new(ids.len() * cols);
        y.par_chunks_mut(cols.max(1)).with_min_len(64).zip(ids).for_each(|(row, &id)| {
            let start = usize::try_from(id).unwrap_or(usize::MAX).saturating_mul(cols);
            match table.get(start..start.saturating_add(cols)) {
                Some(values) => row.copy_from_slice(values),
                None => row.fill(E::from_f32(f32::NAN)),
            }
        });
        Host::new(y, [ids.len(), cols])
    })
}

pub(super) fn backward(ids: &[i64], dy: &Host, vocab: usize) -> Host {
    let [_, cols] = dy.dims();
    let mut order: Vec<(usize, usize)> = ids
        .iter()
        .enumerate()
        .filter_map(|(token, &id)| Some((usize::try_from(id).ok().filter(|&id| id < vocab)?, token)))
        .collect();
    order.sort_unstable();
    let mut table = Buffer::<f32>::zeroed(vocab * cols);
    by_dtype!(dy.dtype(), E => {
        let dy = dy.values::<E>();
        rows_of_groups(&mut table, cols, &order).into_par_iter().for_each(|(row, group)| {
            for &(_, token) in group {
                for (sum, v) in row.iter_mut().zip(&dy[token * cols..(token + 1) * cols]) {
                    *sum += v.to_f32();
                }
            }
        });
    });
    Host::new(table, [vocab, cols])
}

/// A row of the table and the places, as `(id, token)`, that look it up.
type RowOfGroup<'a> = (&'a mut [f32], &'a [(usize, usize)]);

/// Pairs each run of one id in `order` with that id's row of the table.
fn rows_of_groups<'a>(
    mut table: &'a mut [f32],
    cols: usize,
    order: &'a [(usize, usize)],
) -> Vec<RowOfGroup<'a>> {
    let mut first = 0; // the id of the first row that `table` still holds
    order
        .chunk_by(|a, b| a.0 == b.0)
        .map(|group| {
            let id = group[0].0;
            let rest = std::mem::take(&mut table).split_at_mut((id - first) * cols).1;
            let (row, rest) = rest.split_at_mut(cols);
            (first, table) = (id + 1, rest);
            (row, group)
        })
        .collect()
}
