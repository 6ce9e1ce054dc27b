//! The functions of RCCL that are needed, as its C header (rccl/rccl.h; nccl.h is the same) declares them.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};

use libloading::Library;

use super::{RcclError, Runtime};

pub(super) const SUCCESS: c_int = 0;
pub(super) const IN_PROGRESS: c_int = 7;
/// `ncclSum`.
pub(super) const SUM: c_int = 0;

/// `ncclUniqueId`: by what ranks of a group find each other. Made by one of them and carried to the others.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UniqueId([u8; 128]);

impl UniqueId {
    /// As bytes, to be carried.
    pub fn to_bytes(self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// From what [`UniqueId::to_bytes`] gave elsewhere; none unless it's as long.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
type AllGather =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, *mut c_void, *mut c_void) -> c_int;
/// With the root for a broadcast.
type Broadcast = AllReduce;

/// What the library exports, under shorter names. Communicators and streams are opaque pointers, results are `ncclResult_t`.
pub(super) struct Functions {
    get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    pub comm_init_rank: unsafe extern "C" fn(*mut *mut c_void, c_int, UniqueId, c_int) -> c_int,
    pub comm_destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub comm_abort: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub comm_get_async_error: unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int,
    pub group_start: unsafe extern "C" fn() -> c_int,
    pub group_end: unsafe extern "C" fn() -> c_int,
    pub all_reduce: AllReduce,
    pub reduce_scatter: AllReduce,
    pub all_gather: AllGather,
    pub broadcast: Broadcast,
    /// Never unloaded before them: the functions are its code.
    _library: Library,
}

/// The library.
pub struct Rccl(Functions);

impl Rccl {
    /// Names and paths under which the library for `runtime` is looked up, in this order.
    pub fn names(runtime: Runtime) -> Vec<String> {
        match runtime {
            Runtime::Hip => rocm_paths("librccl.so.1", "librccl.so"),
            Runtime::Cuda => vec!["libnccl.so.2".to_owned(), "libnccl.so".to_owned()],
        }
    }

    /// From the first of `names` that can be loaded and exports what is needed.
    ///
    /// # Errors
    /// [`RcclError::Absent`].
    pub fn load(names: &[String]) -> Result<Self, RcclError> {
        let mut reason = String::new();
        for name in names {
            // SAFETY: the vendor's library runs no code of consequence when it's loaded.
            match unsafe { Library::new(name) }.and_then(Functions::of) {
                Ok(functions) => return Ok(Self(functions)),
                Err(error) => reason = words(&error),
            }
        }
        Err(RcclError::Absent { names: names.to_vec(), reason })
    }

    /// `2.22.3`, for the log.
    ///
    /// # Errors
    /// [`RcclError::Call`].
    pub fn version(&self) -> Result<String, RcclError> {
        let mut version = 0;
        // SAFETY: writes a number to where it's told to.
        self.check("ncclGetVersion", unsafe { (self.0.get_version)(&mut version) })?;
        Ok(format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100))
    }

    /// An id for a new group.
    ///
    /// # Errors
    /// [`RcclError::Call`].
    pub fn unique_id(&self) -> Result<UniqueId, RcclError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: writes 128 bytes to where it's told to.
        self.check("ncclGetUniqueId", unsafe { (self.0.get_unique_id)(&mut id) })?;
        Ok(id)
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.0
    }

    /// An error for a result that isn't success.
    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<(), RcclError> {
        match code {
            SUCCESS => Ok(()),
            _ => Err(RcclError::Call { call, code, words: self.words(code) }),
        }
    }

    /// The library's words for a result.
    pub(super) fn words(&self, code: c_int) -> String {
        // SAFETY: takes any number, and returns a constant of the library or null.
        let words = unsafe { (self.0.get_error_string)(code) };
        if words.is_null() {
            return "no words for it".to_owned();
        }
        // SAFETY: not null, and the library's constants end.
        unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
    }
}

impl Functions {
    fn of(library: Library) -> Result<Self, libloading::Error> {
        // SAFETY: the types are the header's.
        unsafe {
            Ok(Self {
                get_version: *library.get(b"ncclGetVersion\0")?,
                get_unique_id: *library.get(b"ncclGetUniqueId\0")?,
                get_error_string: *library.get(b"ncclGetErrorString\0")?,
                comm_init_rank: *library.get(b"ncclCommInitRank\0")?,
                comm_destroy: *library.get(b"ncclCommDestroy\0")?,
                comm_abort: *library.get(b"ncclCommAbort\0")?,
                comm_get_async_error: *library.get(b"ncclCommGetAsyncError\0")?,
                group_start: *library.get(b"ncclGroupStart\0")?,
                group_end: *library.get(b"ncclGroupEnd\0")?,
                all_reduce: *library.get(b"ncclAllReduce\0")?,
                reduce_scatter: *library.get(b"ncclReduceScatter\0")?,
                all_gather: *library.get(b"ncclAllGather\0")?,
                broadcast: *library.get(b"ncclBroadcast\0")?,
                _library: library,
            })
        }
    }
}

/// What the loader says, with the file or symbol that it's about.
pub(super) fn words(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// Where ROCm's libraries are: below `$ROCM_PATH` and `$HIP_PATH`, then wherever the loader looks, versioned names first.
pub(super) fn rocm_paths(versioned: &str, plain: &str) -> Vec<String> {
    let folders = ["ROCM_PATH", "HIP_PATH"].into_iter().filter_map(|name| std::env::var(name).ok());
    let paths = folders.flat_map(|folder| [versioned, plain].map(|name| format!("{folder}/lib/{name}")));
    paths.chain([versioned.to_owned(), plain.to_owned()]).collect()
}
