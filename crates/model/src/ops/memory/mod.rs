//! Memory of large CPU tensors and scratch: taken from the system once, then reused.
//!
//! A training step allocates and frees the same few sizes over and over. Fresh memory costs a page fault per page and its
//! zeroing, which is as much as computing an element-wise operation; so what is freed is kept and handed out again, in part or
//! merged with its neighbours. What is kept is bounded: before fresh memory is taken, as much of what lies idle goes back to
//! the system. Large blocks ask for huge pages.

mod pool;

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::{AllocationProperty, Bytes};
use burn_std::{AccessError, AccessPolicy, AllocationController};
use rayon::prelude::*;

use self::pool::{Pool, Range};
use super::real::Real;

/// Smaller buffers come from the global allocator, which reuses such sizes well.
const POOLED_BYTES: usize = 256 << 10;
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static POOL: Mutex<Pool> = Mutex::new(Pool::new());

/// Bytes of pooled memory in use by tensors and scratch of the CPU operations.
pub fn live_bytes() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// Most bytes in use at one time since the start or the last [`reset_peak`].
pub fn peak_bytes() -> usize {
    PEAK.load(Ordering::Relaxed)
}

/// Starts measuring the peak anew, from what is in use now.
pub fn reset_peak() {
    PEAK.store(live_bytes(), Ordering::Relaxed);
}

/// Gives memory that nothing uses back to the system.
pub fn release() {
    pool().release();
}

fn pool() -> MutexGuard<'static, Pool> {
    // The pool panics only where its own bookkeeping is broken.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pooled memory that goes back to the pool when dropped. Always initialised: with zeros, or with old values.
struct Block(Range);

// SAFETY: a block is the only holder of its range, as a box is of its value.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// A block of at least `bytes`.
    fn take(bytes: usize) -> Self {
        let range = pool().take(bytes);
        let live = LIVE.fetch_add(range.len, Ordering::Relaxed) + range.len;
        PEAK.fetch_max(live, Ordering::Relaxed);
        Self(range)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the range is initialised and this block's alone until it is dropped.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr(), self.0.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the block is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        LIVE.fetch_sub(self.0.len, Ordering::Relaxed);
        pool().put(self.0);
    }
}

impl AllocationController for Block {
    fn alloc_align(&self) -> usize {
        align_of::<u128>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(&mut self, _: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let bytes = self.bytes_mut();
        // SAFETY: the same memory under a type with fewer guarantees; the caller promises to write initialised bytes only.
        Ok(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let bytes = self.bytes();
        // SAFETY: the same memory under a type with fewer guarantees.
        Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) })
    }
}

/// A new slice of numbers that becomes a tensor or serves as scratch.
pub(crate) struct Buffer<E> {
    storage: Storage<E>,
}

enum Storage<E> {
    Small(Vec<E>),
    Pooled { block: Block, len: usize },
}

impl<E: Real> Buffer<E> {
    /// Values are arbitrary (but initialised): for outputs that are overwritten in full.
    pub(crate) fn new(len: usize) -> Self {
        Self::take(len).0
    }

    /// All zero.
    pub(crate) fn zeroed(len: usize) -> Self {
        let (mut buffer, fresh) = Self::take(len);
        if !fresh {
            buffer.par_chunks_mut(1 << 16).for_each(|chunk| chunk.fill(E::zeroed()));
        }
        buffer
    }

    fn take(len: usize) -> (Self, bool) {
        let bytes = len * size_of::<E>();
        if bytes < POOLED_BYTES {
            return (Self { storage: Storage::Small(vec![E::zeroed(); len]) }, true);
        }
        let block = Block::take(bytes);
        let fresh = block.0.fresh;
        (Self { storage: Storage::Pooled { block, len } }, fresh)
    }

    /// The memory as a tensor's.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self.storage {
            Storage::Small(values) => Bytes::from_elems(values),
            // SAFETY: the block holds at least `len` elements, all initialised.
            Storage::Pooled { block, len } => unsafe {
                Bytes::from_controller(Box::new(block), len * size_of::<E>())
            },
        }
    }
}

impl<E: Real> Deref for Buffer<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        match &self.storage {
            Storage::Small(values) => values,
            Storage::Pooled { block, len } => bytemuck::cast_slice(&block.bytes()[..len * size_of::<E>()]),
        }
    }
}

impl<E: Real> DerefMut for Buffer<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        match &mut self.storage {
            Storage::Small(values) => values,
            Storage::Pooled { block, len } => {
                bytemuck::cast_slice_mut(&mut block.bytes_mut()[..*len * size_of::<E>()])
            }
        }
    }
}

impl<E: Real> From<Vec<E>> for Buffer<E> {
    fn from(values: Vec<E>) -> Self {
        Self { storage: Storage::Small(values) }
    }
}
