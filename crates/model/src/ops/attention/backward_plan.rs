//! How the backward pass is cut into tasks; flash_backward.rs says why there are two ways.

use std::ops::Range;

use super::flash_forward::KEY_BLOCK;
use super::layout::Layout;
use super::pack::Sizes;

/// Where the gradients of a document are cut: steps of the loop over columns per task of dq, keys per task of dk and dv.
const STEPS_PER_TASK: usize = 8;
const KEYS_PER_TASK: usize = 4 * KEY_BLOCK;

/// Part of the gradients of one kv head in one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) document: usize,
    pub(super) kv_head: usize,
    /// Columns of the document whose dq is computed.
    pub(super) dq: Range<usize>,
    /// Keys of the document whose dk and dv are computed.
    pub(super) dkv: Range<usize>,
    pub(super) cost: u64,
}

/// All tasks, dearest first.
pub(super) fn plan(layout: &Layout, sizes: Sizes, columns_per_step: usize, threads: usize) -> Vec<Task> {
    let area = |len: usize| (len * len) as u64 / 2 + 1;
    let documents = 0..layout.num_documents();
    let total: u64 = documents.clone().map(|document| area(layout.document(document).len())).sum();
    // Five products in one task against seven that spread evenly.
    let fair = total * sizes.num_kv_heads as u64 / threads.max(1) as u64;
    let mut tasks = Vec::new();
    for document in documents {
        let len = layout.document(document).len();
        let columns = len * sizes.group;
        for kv_head in 0..sizes.num_kv_heads {
            if 5 * area(len) <= 7 * fair {
                tasks.push(Task { document, kv_head, dq: 0..columns, dkv: 0..len, cost: 5 * area(len) });
                continue;
            }
            for start in (0..columns).step_by(STEPS_PER_TASK * columns_per_step) {
                let dq = start..columns.min(start + STEPS_PER_TASK * columns_per_step);
                let cost = 3 * (area(dq.end / sizes.group) - area(dq.start / sizes.group));
                tasks.push(Task { document, kv_head, dq, dkv: 0..0, cost });
            }
            for start in (0..len).step_by(KEYS_PER_TASK) {
                let dkv = start..len.min(start + KEYS_PER_TASK);
                let cost = 4 * (area(len - dkv.start) - area(len - dkv.end));
                tasks.push(Task { document, kv_head, dq: 0..0, dkv, cost });
            }
        }
    }
    tasks.sort_by_key(|task| std::cmp::Reverse(task.cost));
    tasks
}
