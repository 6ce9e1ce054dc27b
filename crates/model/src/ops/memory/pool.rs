//! Free memory as ranges of anonymous mappings: the tightest that fits is handed out and split, neighbours merge when freed.
//!
//! Free ranges are warm (their pages are the process's) or cold (given back to the system, their addresses kept). Before pages are
//! asked for, as many warm ones are given back, so that the process holds what is in use at its peak and no more, however
//! scattered the free ranges are.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use memmap2::MmapMut;

/// Ranges are whole pages.
const PAGE: usize = 4096;
/// Smallest mapping for which huge pages are asked for.
const HUGE_BYTES: usize = 4 << 20;

/// Mappings by address, and their free ranges.
pub(super) struct Pool {
    mappings: BTreeMap<usize, Mapping>,
    warm: Ranges,
    cold: Ranges,
}

struct Mapping {
    memory: MmapMut,
    /// Bytes that were handed out.
    used: usize,
}

/// Memory that is exclusively the holder's until it is put back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    pub(super) start: NonNull<u8>,
    pub(super) len: usize,
    /// All zero, since nobody has written to it.
    pub(super) fresh: bool,
}

impl Pool {
    pub(super) const fn new() -> Self {
        Self { mappings: BTreeMap::new(), warm: Ranges::new(), cold: Ranges::new() }
    }

    /// A range of at least `bytes`, initialised, with arbitrary values unless fresh.
    pub(super) fn take(&mut self, bytes: usize) -> Range {
        let len = bytes.next_multiple_of(PAGE);
        if let Some(start) = self.warm.take(len) {
            return self.used(start, len, false);
        }
        self.cool(len);
        let start = self.cold.take(len).unwrap_or_else(|| {
            let mut memory = map(len);
            let start = memory.as_mut_ptr().addr();
            self.mappings.insert(start, Mapping { memory, used: 0 });
            start
        });
        self.used(start, len, true)
    }

    /// Takes a range back.
    pub(super) fn put(&mut self, range: Range) {
        let start = range.start.addr().get();
        let (base, mapping) = self.mapping(start);
        mapping.used -= range.len;
        let bounds = (base, base + mapping.memory.len());
        self.warm.put(start, range.len, bounds);
    }

    /// Gives all that is free back to the system.
    pub(super) fn release(&mut self) {
        self.cool(usize::MAX);
    }

    /// Gives warm ranges back to the system until `bytes` are made up for, the largest first.
    fn cool(&mut self, mut bytes: usize) {
        while bytes > 0
            && let Some((start, len)) = self.warm.take_largest()
        {
            bytes = bytes.saturating_sub(len);
            let (base, mapping) = self.mapping(start);
            let end = base + mapping.memory.len();
            if mapping.used == 0 {
                self.mappings.remove(&base);
                bytes = bytes.saturating_sub(self.warm.remove_within(base, end));
                self.cold.remove_within(base, end);
            } else if forget(&mapping.memory, start - base, len) {
                self.cold.put(start, len, (base, end));
            } else {
                self.warm.put(start, len, (base, end));
                return;
            }
        }
    }

    /// Marks a range as handed out.
    fn used(&mut self, start: usize, len: usize, fresh: bool) -> Range {
        let (base, mapping) = self.mapping(start);
        mapping.used += len;
        // No reference to the mapping's bytes is made: parts of them are others' alone.
        let address = NonNull::new(mapping.memory.as_mut_ptr()).expect("a mapping has an address");
        // SAFETY: the offset is that of a range in this mapping.
        Range { start: unsafe { address.add(start - base) }, len, fresh }
    }

    /// The mapping of an address, and where it starts.
    fn mapping(&mut self, address: usize) -> (usize, &mut Mapping) {
        let (base, mapping) =
            self.mappings.range_mut(..=address).next_back().expect("every range lies in a mapping");
        (*base, mapping)
    }
}

/// Disjoint ranges by address, start to length; neighbours of one mapping are merged.
struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Takes `len` bytes from the tightest range that has them.
    fn take(&mut self, len: usize) -> Option<usize> {
        let fitting = self.0.iter().filter(|(_, range)| **range >= len);
        let (&start, &range) = fitting.min_by_key(|(_, range)| **range)?;
        self.0.remove(&start);
        if range > len {
            self.0.insert(start + len, range - len);
        }
        Some(start)
    }

    fn take_largest(&mut self) -> Option<(usize, usize)> {
        let start = *self.0.iter().max_by_key(|(_, len)| **len)?.0;
        self.0.remove_entry(&start)
    }

    /// Adds a range of the mapping with these bounds.
    fn put(&mut self, mut start: usize, mut len: usize, (from, to): (usize, usize)) {
        if start + len < to
            && let Some(next) = self.0.remove(&(start + len))
        {
            len += next;
        }
        if let Some((&previous, &its_len)) = self.0.range(from..start).next_back()
            && previous + its_len == start
        {
            (start, len) = (previous, its_len + len);
        }
        self.0.insert(start, len);
    }

    /// Drops the ranges between two addresses and returns their bytes.
    fn remove_within(&mut self, from: usize, to: usize) -> usize {
        self.0.extract_if(from..to, |_, _| true).map(|(_, len)| len).sum()
    }
}

fn map(bytes: usize) -> MmapMut {
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

/// Gives pages back to the system, to be zeros when next touched; false where it can't be done.
fn forget(memory: &MmapMut, offset: usize, len: usize) -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: the range is free, so that nobody expects its values.
    return unsafe { memory.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, len) }.is_ok();
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (memory, offset, len);
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Pool {
        /// Bytes that are mapped, warm and cold.
        fn bytes(&self) -> [usize; 3] {
            let mapped = self.mappings.values().map(|mapping| mapping.memory.len()).sum();
            [mapped, self.warm.0.values().sum(), self.cold.0.values().sum()]
        }
    }

    fn overlap(a: &Range, b: &Range) -> bool {
        let (a_start, b_start) = (a.start.addr().get(), b.start.addr().get());
        a_start < b_start + b.len && b_start < a_start + a.len
    }

    fn contents<'a>(range: Range) -> &'a mut [u8] {
        // SAFETY: the test holds every range once.
        unsafe { std::slice::from_raw_parts_mut(range.start.as_ptr(), range.len) }
    }

    proptest! {
        /// Taking and freeing in any order: ranges in use never overlap, none is lost, fresh ones are zero, what the process
        /// holds is never more than the peak of what was in use, and in the end all goes back.
        #[test]
        fn ranges_are_disjoint_bounded_and_merge(
            steps in prop::collection::vec((1usize..60_000, any::<prop::sample::Index>(), 0..5), 1..120),
        ) {
            let mut pool = Pool::new();
            let mut used: Vec<Range> = Vec::new();
            let mut peak = 0;
            for (bytes, which, action) in steps {
                if action < 2 && !used.is_empty() {
                    pool.put(used.swap_remove(which.index(used.len())));
                } else {
                    let range = pool.take(bytes);
                    prop_assert!(range.len >= bytes && used.iter().all(|other| !overlap(&range, other)));
                    prop_assert!(!range.fresh || contents(range).iter().all(|byte| *byte == 0));
                    contents(range).fill(1);
                    used.push(range);
                }
                let in_use = used.iter().map(|range| range.len).sum::<usize>();
                peak = peak.max(in_use);
                let [mapped, warm, cold] = pool.bytes();
                prop_assert_eq!(mapped, in_use + warm + cold);
                #[cfg(target_os = "linux")]
                prop_assert!(in_use + warm <= peak, "{} + {} bytes held, peak {}", in_use, warm, peak);
            }
            used.into_iter().for_each(|range| pool.put(range));
            pool.release();
            prop_assert_eq!(pool.bytes(), [0; 3]);
        }
    }

    #[test]
    fn a_freed_range_serves_smaller_ones_and_is_whole_again() {
        let mut pool = Pool::new();
        let large = pool.take(3 * PAGE);
        assert!(large.fresh);
        pool.put(large);
        let parts = [pool.take(2 * PAGE), pool.take(1)];
        assert!(parts.iter().all(|part| !part.fresh));
        assert_eq!(pool.bytes(), [3 * PAGE, 0, 0]);
        parts.into_iter().for_each(|part| pool.put(part));
        assert_eq!(pool.take(3 * PAGE).start, large.start);
    }
}
