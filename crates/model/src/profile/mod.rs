//! What a profile is made of: spans of time on the host, with the work that was done in them.
//!
//! Code that takes time opens a [`span`] and drops it at the end. While nobody records, which is nearly always, a span costs
//! one load of a flag. Operations on the CPU run to their end before they return, so their spans are the time they took; on
//! other devices they are the time to enqueue them, unless the recording waits for the device. Spans can also be handed to a
//! vendor's profiler as they open and close ([`emit_ranges`]).

mod ranges;

pub use ranges::{RangesError, Vendor, emit_ranges};

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What kind of work a span is, for the breakdown of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A whole step; encloses all others.
    Step,
    /// Waiting for the next batch.
    Data,
    /// A part of the model, such as a layer's forward pass; encloses operations.
    Model,
    /// A matrix product.
    Matmul,
    /// Attention scores, softmax and the weighted sum, forward or backward.
    Attention,
    /// Any other operation.
    Operation,
    /// The update of parameters.
    Optimizer,
    /// Saving a checkpoint, or taking a snapshot for it.
    Checkpoint,
    /// Exchange with other processes.
    Collective,
    /// Evaluation.
    Evaluation,
}

/// A recorded span.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// What was done, such as `linear.forward`.
    pub name: &'static str,
    /// What kind of work it was.
    pub kind: Kind,
    /// Number of the step or layer, where there is one.
    pub index: Option<u64>,
    /// Thread on which it ran, numbered in the order of their first spans.
    pub thread: u32,
    /// From the start of the recording to the start of the span.
    pub start: Duration,
    /// How long it took.
    pub duration: Duration,
    /// Floating-point operations done, 0 when unknown.
    pub flops: u64,
    /// Bytes that had to be read and written at least, 0 when unknown.
    pub bytes: u64,
}

/// A span that is open; its end is its drop.
#[must_use = "a span ends when it is dropped"]
pub struct Span(Option<Open>);

struct Open {
    name: &'static str,
    kind: Kind,
    index: Option<u64>,
    start: Instant,
    flops: u64,
    bytes: u64,
    is_range: bool,
}

/// Who listens: [`RECORDING`], [`RANGES`], both or nobody.
static ACTIVE: AtomicU8 = AtomicU8::new(0);
const RECORDING: u8 = 1;
const RANGES: u8 = 2;
static RECORD: Mutex<Record> = Mutex::new(Record { start: None, events: Vec::new() });

struct Record {
    start: Option<Instant>,
    events: Vec<Event>,
}

/// Opens a span.
#[inline]
pub fn span(kind: Kind, name: &'static str) -> Span {
    match ACTIVE.load(Ordering::Relaxed) {
        0 => Span(None),
        active => Span(Some(open(active, kind, name))),
    }
}

#[cold]
fn open(active: u8, kind: Kind, name: &'static str) -> Open {
    let is_range = active & RANGES != 0;
    if is_range {
        ranges::push(name);
    }
    Open { name, kind, index: None, start: Instant::now(), flops: 0, bytes: 0, is_range }
}

impl Span {
    /// Notes the number of the step or layer.
    #[inline]
    pub fn index(mut self, index: usize) -> Self {
        if let Some(open) = &mut self.0 {
            open.index = Some(index as u64);
        }
        self
    }

    /// Notes the work done.
    #[inline]
    pub fn work(self, flops: usize, bytes: usize) -> Self {
        self.work_by(|| (flops as u64, bytes as u64))
    }

    /// Notes the work done, FLOPs and bytes, which is only computed when somebody records.
    #[inline]
    pub fn work_by(mut self, work: impl FnOnce() -> (u64, u64)) -> Self {
        if let Some(open) = &mut self.0 {
            (open.flops, open.bytes) = work();
        }
        self
    }
}

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            if open.is_range {
                ranges::pop();
            }
            record(open);
        }
    }
}

#[cold]
fn record(open: Open) {
    let duration = open.start.elapsed();
    let mut record = RECORD.lock().unwrap_or_else(PoisonError::into_inner);
    // A span that was open when the recording started or that ends after it isn't part of it.
    if let Some(start) = record.start.and_then(|start| open.start.checked_duration_since(start)) {
        let Open { name, kind, index, flops, bytes, .. } = open;
        record.events.push(Event { name, kind, index, thread: thread(), start, duration, flops, bytes });
    }
}

/// Number of this thread.
fn thread() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static NUMBER: u32 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// Starts to record spans; what was recorded before and not taken is gone.
pub fn start() {
    let mut record = RECORD.lock().unwrap_or_else(PoisonError::into_inner);
    *record = Record { start: Some(Instant::now()), events: Vec::new() };
    ACTIVE.fetch_or(RECORDING, Ordering::Relaxed);
}

/// Stops recording; returns the spans that started and ended in it, in the order of their ends.
pub fn stop() -> Vec<Event> {
    ACTIVE.fetch_and(!RECORDING, Ordering::Relaxed);
    let mut record = RECORD.lock().unwrap_or_else(PoisonError::into_inner);
    record.start = None;
    std::mem::take(&mut record.events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_recorded_between_start_and_stop_only() {
        drop(span(Kind::Operation, "before"));
        let across = span(Kind::Operation, "across");
        start();
        drop(across);
        {
            let _outer = span(Kind::Model, "layer.forward").index(3);
            drop(span(Kind::Matmul, "linear.forward").work(10, 20));
            std::thread::spawn(|| drop(span(Kind::Data, "other thread"))).join().unwrap();
        }
        let open = span(Kind::Operation, "open at the end");
        let events = stop();
        drop(open);

        let find = |name: &str| events.iter().find(|event| event.name == name);
        let (outer, inner) = (find("layer.forward").unwrap(), find("linear.forward").unwrap());
        assert_eq!((outer.index, outer.kind), (Some(3), Kind::Model));
        assert_eq!((inner.flops, inner.bytes, inner.index), (10, 20, None));
        assert!(outer.start <= inner.start && inner.start + inner.duration <= outer.start + outer.duration);
        assert_ne!(find("other thread").unwrap().thread, outer.thread);
        assert!(find("before").is_none() && find("across").is_none() && find("open at the end").is_none());
        assert_eq!(stop(), []);
    }
}
