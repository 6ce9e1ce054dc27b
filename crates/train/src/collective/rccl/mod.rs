//! AMD's RCCL, or NVIDIA's NCCL, which has the same interface: what moves tensors between GPUs.
//!
//! Either is loaded at run time. This layer knows raw pointers and streams only, so that it's tested on any machine against a
//! stand-in, and computes nothing itself. Operations are enqueued on a stream of the library's own and waited
//! for by looking: a peer that is gone shows up as an error of the communicator while the stream never gets done.

mod library;
#[cfg(all(feature = "mpi", any(feature = "rocm", feature = "cuda")))]
pub(super) mod ranks;
mod stream;

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

pub use library::{Rccl, UniqueId};
pub use stream::{Runtime, Stream, Streams};

use super::Operation;

/// For how long a stream is looked at without a pause.
const LOOK: Duration = Duration::from_millis(1);
/// The pauses after that.
const PAUSE: Duration = Duration::from_micros(50);

/// Why tensors can't be moved by the library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RcclError {
    /// It isn't there, or isn't what its name says.
    #[error("none of {} can be loaded ({reason})", names.join(", "))]
    Absent {
        /// What was looked for.
        names: Vec<String>,
        /// What the loader said of the last one.
        reason: String,
    },
    /// A call failed.
    #[error("{call}: {words} ({code})")]
    Call {
        /// Name of the function.
        call: &'static str,
        /// A `ncclResult_t`.
        code: c_int,
        /// The library's words for it.
        words: String,
    },
    /// An operation failed after it was enqueued: a peer is gone, or the network is.
    #[error("an operation under way failed: {words} ({code})")]
    UnderWay {
        /// A `ncclResult_t`.
        code: c_int,
        /// The library's words for it.
        words: String,
    },
    /// The communicator was given up after an earlier error.
    #[error("the communicator was given up after an error")]
    GivenUp,
    /// The GPU's runtime failed.
    #[error("{call} returned status {status}")]
    Stream {
        /// Name of the function.
        call: String,
        /// A `hipError_t` or `cudaError_t`.
        status: c_int,
    },
}

/// Element types, by the library's numbers (`ncclDataType_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Element {
    I8 = 0,
    U8 = 1,
    I32 = 2,
    U32 = 3,
    I64 = 4,
    U64 = 5,
    F16 = 6,
    F32 = 7,
    F64 = 8,
    Bf16 = 9,
}

/// Where a tensor lies on the device, and where its result goes.
#[derive(Debug, Clone, Copy)]
pub struct Buffers {
    /// What this rank hands in.
    pub send: *const c_void,
    /// What it gets; may be `send` where both are as long.
    pub receive: *mut c_void,
    /// Elements of `send`.
    pub elements: usize,
}

/// This rank among those of a group.
pub struct Communicator {
    library: Arc<Rccl>,
    /// Null once it was given up.
    handle: Cell<*mut c_void>,
    ranks: usize,
}

impl Communicator {
    /// Meets the other ranks of a group: all of them call it, with the same id. Waits for them.
    ///
    /// The GPU that the calling thread is set to ([`Streams::use_device`]) is this rank's.
    ///
    /// # Errors
    /// [`RcclError::Call`].
    pub fn join(library: Arc<Rccl>, id: UniqueId, ranks: usize, rank: usize) -> Result<Self, RcclError> {
        let mut handle = null_mut();
        let (count, number) = (ranks as c_int, rank as c_int);
        // SAFETY: writes a handle to where it's told to.
        let code = unsafe { (library.functions().comm_init_rank)(&mut handle, count, id, number) };
        library.check("ncclCommInitRank", code)?;
        Ok(Self { library, handle: Cell::new(handle), ranks })
    }

    /// Enqueues `operation` on each of `buffers`, as one group.
    ///
    /// # Safety
    /// Buffers are on this rank's device, of `elements` of type `element` and the result's length, and live until the stream is done;
    /// what wrote them is done.
    ///
    /// # Errors
    /// [`RcclError::Call`]: nothing can be enqueued any more.
    pub unsafe fn enqueue(
        &self,
        operation: Operation,
        element: Element,
        buffers: &[Buffers],
        stream: &Stream,
    ) -> Result<(), RcclError> {
        let handle = self.handle()?;
        let functions = self.library.functions();
        // SAFETY: takes nothing.
        self.library.check("ncclGroupStart", unsafe { (functions.group_start)() })?;
        let mut enqueued = Ok(());
        for buffers in buffers {
            // SAFETY: the caller's word.
            enqueued = enqueued
                .and_then(|()| unsafe { self.call(handle, operation, element, *buffers, stream.raw()) });
        }
        // SAFETY: takes nothing. It ends the group even when a call in it failed.
        let ended = self.library.check("ncclGroupEnd", unsafe { (functions.group_end)() });
        enqueued.and(ended)
    }

    /// # Safety
    /// As [`Communicator::enqueue`].
    unsafe fn call(
        &self,
        handle: *mut c_void,
        operation: Operation,
        element: Element,
        Buffers { send, receive, elements }: Buffers,
        stream: *mut c_void,
    ) -> Result<(), RcclError> {
        let (functions, element) = (self.library.functions(), element as c_int);
        // SAFETY: the caller's word on buffers; the handle is alive, since it isn't null.
        let (call, code) = unsafe {
            match operation {
                Operation::AllReduce => (
                    "ncclAllReduce",
                    (functions.all_reduce)(send, receive, elements, element, library::SUM, handle, stream),
                ),
                Operation::ReduceScatter => (
                    "ncclReduceScatter",
                    (functions.reduce_scatter)(
                        send,
                        receive,
                        elements / self.ranks,
                        element,
                        library::SUM,
                        handle,
                        stream,
                    ),
                ),
                Operation::AllGather => (
                    "ncclAllGather",
                    (functions.all_gather)(send, receive, elements, element, handle, stream),
                ),
                Operation::Broadcast { root } => (
                    "ncclBroadcast",
                    (functions.broadcast)(send, receive, elements, element, root as c_int, handle, stream),
                ),
            }
        };
        self.library.check(call, code)
    }

    /// Waits until the stream has done what was enqueued on it.
    ///
    /// # Errors
    /// [`RcclError::UnderWay`]: a peer or the network is gone; the communicator is given up then. [`RcclError::Stream`].
    pub fn wait(&self, stream: &Stream) -> Result<(), RcclError> {
        let start = Instant::now();
        loop {
            let done = stream.is_done()?;
            self.look()?;
            match done {
                true => return Ok(()),
                false if start.elapsed() < LOOK => thread::yield_now(),
                false => thread::sleep(PAUSE),
            }
        }
    }

    /// Finds out whether an operation under way failed, and gives the communicator up if so.
    fn look(&self) -> Result<(), RcclError> {
        let handle = self.handle()?;
        let functions = self.library.functions();
        let mut code = library::SUCCESS;
        // SAFETY: the handle is alive; writes a number to where it's told to.
        let status = unsafe { (functions.comm_get_async_error)(handle, &mut code) };
        self.library.check("ncclCommGetAsyncError", status)?;
        if code == library::SUCCESS || code == library::IN_PROGRESS {
            return Ok(());
        }
        self.handle.set(null_mut());
        // SAFETY: the handle is alive, and nobody has it any more.
        unsafe { (functions.comm_abort)(handle) };
        Err(RcclError::UnderWay { code, words: self.library.words(code) })
    }

    fn handle(&self) -> Result<*mut c_void, RcclError> {
        let handle = self.handle.get();
        if handle.is_null() { Err(RcclError::GivenUp) } else { Ok(handle) }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if let Ok(handle) = self.handle() {
            // SAFETY: the handle is alive, and not used after.
            unsafe { (self.library.functions().comm_destroy)(handle) };
        }
    }
}

#[cfg(test)]
mod tests;
