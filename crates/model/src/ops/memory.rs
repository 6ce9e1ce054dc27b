//! Memory of large CPU tensors and scratch: taken from the system once, then reused.
//!
//! A training step allocates and frees the same few sizes over and over. Fresh memory costs a page fault per page and its
//! zeroing, which is as much as computing an element-wise operation; so freed blocks are kept and handed out again. What is
//! kept is bounded: before fresh memory is taken, as many bytes of free blocks go back to the system, those freed longest
//! ago first. The process thus holds at most the peak of what was in use plus one block. Large blocks ask for huge pages.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::{AllocationProperty, Bytes};
use burn_std::{AccessError, AccessPolicy, AllocationController};
use memmap2::MmapMut;
use rayon::prelude::*;

use super::real::Real;

/// Smaller buffers come from the global allocator, which reuses such sizes well.
pub(crate) const POOLED_BYTES: usize = 256 << 10;
/// Smallest block for which huge pages are asked for.
const HUGE_BYTES: usize = 4 << 20;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static FREE: Mutex<Vec<MmapMut>> = Mutex::new(Vec::new());

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

/// Gives all free blocks back to the system.
pub fn release() {
    free_blocks().clear();
}

fn free_blocks() -> std::sync::MutexGuard<'static, Vec<MmapMut>> {
    // A panic elsewhere can't leave a vector of blocks half changed.
    FREE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A block of pooled memory; goes back to the pool when dropped. Always initialised: with zeros, or with old values.
struct Block {
    /// None only while being dropped.
    map: Option<MmapMut>,
}

impl Block {
    /// A block of at least `bytes`, and whether it is fresh, that is, zero.
    fn take(bytes: usize) -> (Self, bool) {
        let reused = Self::reuse(bytes);
        let fresh = reused.is_none();
        let map = reused.unwrap_or_else(|| Self::map(bytes));
        let live = LIVE.fetch_add(map.len(), Ordering::Relaxed) + map.len();
        PEAK.fetch_max(live, Ordering::Relaxed);
        (Self { map: Some(map) }, fresh)
    }

    /// The tightest free block, unless it would waste more than a quarter.
    fn reuse(bytes: usize) -> Option<MmapMut> {
        let mut free = free_blocks();
        let fits = |map: &&MmapMut| (bytes..=bytes + bytes / 4).contains(&map.len());
        let best = free.iter().filter(fits).map(|map| map.len()).min()?;
        // The one freed last among equals: most of it may still be in the cache.
        let position = free.iter().rposition(|map| map.len() == best)?;
        Some(free.remove(position))
    }

    fn map(bytes: usize) -> MmapMut {
        let mut released = 0;
        while released < bytes {
            let mut free = free_blocks();
            if free.is_empty() {
                break;
            }
            released += free.remove(0).len();
        }
        let map = MmapMut::map_anon(bytes).unwrap_or_else(|_| {
            let layout = std::alloc::Layout::array::<u8>(bytes).unwrap_or(std::alloc::Layout::new::<u8>());
            std::alloc::handle_alloc_error(layout)
        });
        #[cfg(target_os = "linux")]
        if bytes >= HUGE_BYTES {
            // Advice only: without it everything works, slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        map
    }

    fn bytes(&self) -> &[u8] {
        self.map.as_deref().expect("only dropping takes the map")
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.map.as_deref_mut().expect("only dropping takes the map")
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(map) = self.map.take() {
            LIVE.fetch_sub(map.len(), Ordering::Relaxed);
            free_blocks().push(map);
        }
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
        let (block, fresh) = Block::take(bytes);
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
