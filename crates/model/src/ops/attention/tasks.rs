//! Running tasks of unequal cost on all threads, and letting them write disjoint parts of one slice.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

/// Runs `work` on every task, each worker taking the next one from the front: put the dearest first.
/// A worker makes its scratch memory once. What a task computes must not depend on which worker takes it.
pub(super) fn run<Task: Sync, Scratch>(
    tasks: &[Task],
    scratch: impl Fn() -> Scratch + Sync,
    work: impl Fn(&mut Scratch, &Task) + Sync,
) {
    let next = AtomicUsize::new(0);
    let workers = rayon::current_num_threads().min(tasks.len());
    (0..workers).into_par_iter().with_max_len(1).for_each(|_| {
        let mut memory = None;
        while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(memory.get_or_insert_with(&scratch), task);
        }
    });
}

/// A slice of which tasks write disjoint ranges at the same time.
pub(super) struct Shared<'a, T> {
    data: *mut T,
    len: usize,
    marker: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` whose parts are handed out to threads; `range` makes its callers keep them apart.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(super) fn new(data: &'a mut [T]) -> Self {
        Self { data: data.as_mut_ptr(), len: data.len(), marker: PhantomData }
    }

    /// The part `start..start + len`.
    ///
    /// # Safety
    /// No other live slice from this method may overlap it.
    ///
    /// # Panics
    /// When it isn't inside the slice.
    #[expect(clippy::mut_from_ref, reason = "that is its purpose; disjointness is the caller's promise")]
    pub(super) unsafe fn range(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: inside the slice by the assertion, unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), len) }
    }
}
