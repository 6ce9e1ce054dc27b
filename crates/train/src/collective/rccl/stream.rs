//! Streams of HIP, or of CUDA's runtime, which has the same functions under another prefix.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use libloading::Library;

use super::RcclError;

const SUCCESS: c_int = 0;
/// `hipErrorNotReady`, `cudaErrorNotReady`.
const NOT_READY: c_int = 600;
/// `hipStreamNonBlocking`, `cudaStreamNonBlocking`: doesn't wait for the default stream.
const NON_BLOCKING: c_uint = 1;

/// Whose GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// AMD's.
    Hip,
    /// NVIDIA's.
    Cuda,
}

impl Runtime {
    fn prefix(self) -> &'static str {
        match self {
            Self::Hip => "hip",
            Self::Cuda => "cuda",
        }
    }

    /// Names and paths under which the runtime's library is looked up.
    pub fn names(self) -> Vec<String> {
        match self {
            Self::Hip => [
                super::library::rocm_paths("libamdhip64.so.7", "libamdhip64.so.6"),
                super::library::rocm_paths("libamdhip64.so", "libamdhip64.so.5"),
            ]
            .concat(),
            Self::Cuda => ["libcudart.so.13", "libcudart.so.12", "libcudart.so"].map(str::to_owned).to_vec(),
        }
    }
}

/// The runtime's functions for streams.
pub struct Streams {
    prefix: &'static str,
    set_device: unsafe extern "C" fn(c_int) -> c_int,
    create: unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int,
    query: unsafe extern "C" fn(*mut c_void) -> c_int,
    destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
    /// Never unloaded before them: the functions are its code.
    _library: Library,
}

impl Streams {
    /// From the first of `names` that can be loaded and exports `runtime`'s functions.
    ///
    /// # Errors
    /// [`RcclError::Absent`].
    pub fn load(runtime: Runtime, names: &[String]) -> Result<Arc<Self>, RcclError> {
        let mut reason = String::new();
        for name in names {
            // SAFETY: the vendor's library runs no code of consequence when it's loaded.
            match unsafe { Library::new(name) }.and_then(|library| Self::of(runtime, library)) {
                Ok(streams) => return Ok(Arc::new(streams)),
                Err(error) => reason = super::library::words(&error),
            }
        }
        Err(RcclError::Absent { names: names.to_vec(), reason })
    }

    fn of(runtime: Runtime, library: Library) -> Result<Self, libloading::Error> {
        let prefix = runtime.prefix();
        let symbol = |name: &str| format!("{prefix}{name}");
        // SAFETY: the types are those of the runtime's header.
        unsafe {
            Ok(Self {
                prefix,
                set_device: *library.get(symbol("SetDevice"))?,
                create: *library.get(symbol("StreamCreateWithFlags"))?,
                query: *library.get(symbol("StreamQuery"))?,
                destroy: *library.get(symbol("StreamDestroy"))?,
                _library: library,
            })
        }
    }

    fn check(&self, call: &str, status: c_int) -> Result<(), RcclError> {
        match status {
            SUCCESS => Ok(()),
            _ => Err(RcclError::Stream { call: format!("{}{call}", self.prefix), status }),
        }
    }

    /// Sets the calling thread to a GPU.
    ///
    /// # Errors
    /// [`RcclError::Stream`].
    pub fn use_device(&self, device: usize) -> Result<(), RcclError> {
        // SAFETY: takes any number.
        self.check("SetDevice", unsafe { (self.set_device)(device as c_int) })
    }

    /// A new stream on the thread's GPU.
    ///
    /// # Errors
    /// [`RcclError::Stream`].
    pub fn stream(self: &Arc<Self>) -> Result<Stream, RcclError> {
        let mut raw = null_mut();
        // SAFETY: writes a stream to where it's told to.
        self.check("StreamCreateWithFlags", unsafe { (self.create)(&mut raw, NON_BLOCKING) })?;
        Ok(Stream { streams: Arc::clone(self), raw })
    }
}

/// A queue of a GPU.
pub struct Stream {
    streams: Arc<Streams>,
    raw: *mut c_void,
}

impl Stream {
    pub(super) fn raw(&self) -> *mut c_void {
        self.raw
    }

    /// Whether all that was enqueued is done.
    ///
    /// # Errors
    /// [`RcclError::Stream`].
    pub fn is_done(&self) -> Result<bool, RcclError> {
        // SAFETY: the stream lives as long as this value.
        match unsafe { (self.streams.query)(self.raw) } {
            NOT_READY => Ok(false),
            status => self.streams.check("StreamQuery", status).map(|()| true),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created by the runtime and not used after.
        unsafe { (self.streams.destroy)(self.raw) };
    }
}
