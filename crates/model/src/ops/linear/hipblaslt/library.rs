//! The functions of hipBLASLt that a product needs, as its C header (hipblaslt/hipblaslt.h, ROCm 6.2 and newer) declares them.

use std::ffi::{c_int, c_void};

use libloading::Library;

use super::Error;

pub(super) const SUCCESS: c_int = 0;
pub(super) const COMPUTE_F32: c_int = 2; // HIPBLAS_COMPUTE_32F
pub(super) const AS_IT_IS: i32 = 111; // HIPBLAS_OP_N
pub(super) const TRANSPOSED: i32 = 112; // HIPBLAS_OP_T
pub(super) const TRANSPOSE_FIRST: c_int = 0; // HIPBLASLT_MATMUL_DESC_TRANSA
pub(super) const TRANSPOSE_SECOND: c_int = 1; // HIPBLASLT_MATMUL_DESC_TRANSB
pub(super) const PREFERENCE_WORKSPACE: c_int = 1; // HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES

/// `hipblasLtMatmulAlgo_t`: which kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Algorithm {
    data: [u8; 16],
    max_workspace_bytes: usize,
}

/// `hipblasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Heuristic {
    pub algorithm: Algorithm,
    workspace_size: usize,
    pub state: c_int,
    waves_count: f32,
    reserved: [c_int; 4],
}

/// What the library exports, under shorter names. Handles are opaque pointers, results are `hipblasStatus_t`.
pub(super) struct Functions {
    pub create: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    pub destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub operation_create: unsafe extern "C" fn(*mut *mut c_void, c_int, c_int) -> c_int,
    pub operation_destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub operation_set: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize) -> c_int,
    pub layout_create: unsafe extern "C" fn(*mut *mut c_void, c_int, u64, u64, i64) -> c_int,
    pub layout_destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub preference_create: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    pub preference_destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub preference_set: unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize) -> c_int,
    pub heuristic: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        c_int,
        *mut Heuristic,
        *mut c_int,
    ) -> c_int,
    pub matmul: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        *const c_void,
        *const c_void,
        *mut c_void,
        *const c_void,
        *mut c_void,
        *const c_void,
        *const c_void,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        *const Algorithm,
        *mut c_void,
        usize,
        *mut c_void,
    ) -> c_int,
    /// Never unloaded before them: the functions are its code.
    _library: Library,
}

impl Functions {
    /// From the first of `names` that can be loaded and exports them all.
    pub(super) fn load(names: &[&str]) -> Result<Self, Error> {
        let mut reason = String::new();
        for name in names {
            // SAFETY: the vendor's library runs no code of consequence when it's loaded.
            match unsafe { Library::new(*name) }.and_then(Self::of) {
                Ok(functions) => return Ok(functions),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(Error::Absent { reason })
    }

    fn of(library: Library) -> Result<Self, libloading::Error> {
        // SAFETY: the types are the header's.
        unsafe {
            Ok(Self {
                create: *library.get(b"hipblasLtCreate\0")?,
                destroy: *library.get(b"hipblasLtDestroy\0")?,
                operation_create: *library.get(b"hipblasLtMatmulDescCreate\0")?,
                operation_destroy: *library.get(b"hipblasLtMatmulDescDestroy\0")?,
                operation_set: *library.get(b"hipblasLtMatmulDescSetAttribute\0")?,
                layout_create: *library.get(b"hipblasLtMatrixLayoutCreate\0")?,
                layout_destroy: *library.get(b"hipblasLtMatrixLayoutDestroy\0")?,
                preference_create: *library.get(b"hipblasLtMatmulPreferenceCreate\0")?,
                preference_destroy: *library.get(b"hipblasLtMatmulPreferenceDestroy\0")?,
                preference_set: *library.get(b"hipblasLtMatmulPreferenceSetAttribute\0")?,
                heuristic: *library.get(b"hipblasLtMatmulAlgoGetHeuristic\0")?,
                matmul: *library.get(b"hipblasLtMatmul\0")?,
                _library: library,
            })
        }
    }
}

/// An error for a status that isn't success.
pub(super) fn check(call: &'static str, status: c_int) -> Result<(), Error> {
    if status == SUCCESS { Ok(()) } else { Err(Error::Call { call, status }) }
}
