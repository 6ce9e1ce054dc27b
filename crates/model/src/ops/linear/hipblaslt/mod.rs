//! Matrix products by AMD's hipBLASLt, which is loaded at run time where it's there.
//!
//! The library counts matrices by columns. A matrix of ours, `[rows, cols]` by rows, is its `cols x rows` with leading dimension
//! `cols`, so that `c = op(a) op(b)` is asked for as `c^T = op(b)^T op(a)^T`: operands change places, flags stay with them.

#[cfg(feature = "rocm")]
pub(super) mod launch;
mod library;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

use self::library::{Algorithm, Functions, Heuristic, check};

/// Names under which the library is looked up, in this order, in the loader's path.
pub(super) const LIBRARIES: [&str; 3] = ["libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"];

/// Why a product can't be had from the library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// It isn't there, or isn't what its name says.
    #[error("none of {} can be loaded ({reason})", LIBRARIES.join(", "))]
    Absent {
        /// What the loader said of the last one.
        reason: String,
    },
    /// A call failed.
    #[error("{call} returned status {status}")]
    Call {
        /// Name of the function.
        call: &'static str,
        /// A `hipblasStatus_t`.
        status: c_int,
    },
    /// No kernel of the library computes this.
    #[error("it has no kernel for {0:?}")]
    NoKernel(Product),
    /// A product isn't what the portable one is.
    #[cfg_attr(not(feature = "rocm"), expect(dead_code, reason = "found where there is a GPU"))]
    #[error("{product:?} is off by {error} of its norm")]
    Wrong {
        /// Which.
        product: Product,
        /// Norm of the difference over the norm.
        error: String,
    },
}

/// Element types, by the library's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub(super) enum Element {
    /// float32.
    F32 = 0,
    /// bfloat16.
    Bf16 = 14,
}

/// `c: [m, n] = op(a) op(b)` with sums over `k` in float32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Product {
    /// Rows of c.
    pub m: usize,
    /// Columns of c.
    pub n: usize,
    /// Terms of a sum.
    pub k: usize,
    /// `a` is `[k, m]` rather than `[m, k]`.
    pub a_transposed: bool,
    /// `b` is `[n, k]` rather than `[k, n]`.
    pub b_transposed: bool,
    /// Elements of a and b.
    pub inputs: Element,
    /// Elements of c.
    pub output: Element,
}

/// Where operands lie, as the device sees it; contiguous by rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operands {
    /// First factor.
    pub a: *const c_void,
    /// Second factor.
    pub b: *const c_void,
    /// Result.
    pub c: *mut c_void,
    /// Memory that a kernel may use meanwhile.
    pub workspace: *mut c_void,
    /// Its size in bytes.
    pub workspace_bytes: usize,
}

/// The library, ready for one device.
pub(super) struct HipBlasLt {
    functions: Functions,
    handle: *mut c_void,
    /// What the library chose for a product, asked once for each.
    algorithms: Mutex<HashMap<Product, Algorithm>>,
}

// SAFETY: the library's handle may be used from any thread; what isn't safe for several at once is behind the lock, which
// `multiply` holds while it calls.
unsafe impl Send for HipBlasLt {}
// SAFETY: as above.
unsafe impl Sync for HipBlasLt {}

impl HipBlasLt {
    /// Loads the library for the thread's current device.
    pub(super) fn load(names: &[&str]) -> Result<Self, Error> {
        let functions = Functions::load(names)?;
        let mut handle = null_mut();
        // SAFETY: writes a handle to where it's told to.
        check("hipblasLtCreate", unsafe { (functions.create)(&mut handle) })?;
        Ok(Self { functions, handle, algorithms: Mutex::default() })
    }

    /// Enqueues a product on `stream`.
    ///
    /// # Safety
    /// Operands are as `product` says, on the device that the library was loaded for, until the stream is done.
    pub(super) unsafe fn multiply(
        &self,
        product: Product,
        operands: Operands,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        let mut algorithms = self.algorithms.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let call = Call::new(&self.functions, product)?;
        let algorithm = match algorithms.get(&product) {
            Some(algorithm) => *algorithm,
            None => {
                *algorithms.entry(product).or_insert(self.best(&call, product, operands.workspace_bytes)?)
            }
        };
        let (one, zero) = (1.0f32, 0.0f32);
        // SAFETY: scalars are read before the call returns, since pointer mode is the host's; operands are the caller's word, the
        // rest lives until the end of this function.
        let status = unsafe {
            (self.functions.matmul)(
                self.handle,
                call.operation,
                (&raw const one).cast(),
                operands.b,
                call.b,
                operands.a,
                call.a,
                (&raw const zero).cast(),
                operands.c,
                call.c,
                operands.c,
                call.c,
                &algorithm,
                operands.workspace,
                operands.workspace_bytes,
                stream,
            )
        };
        check("hipblasLtMatmul", status)
    }

    /// What the library thinks fastest within `workspace` bytes.
    fn best(&self, call: &Call, product: Product, workspace: usize) -> Result<Algorithm, Error> {
        let functions = &self.functions;
        let mut preference = null_mut();
        // SAFETY: writes a handle to where it's told to.
        check("hipblasLtMatmulPreferenceCreate", unsafe { (functions.preference_create)(&mut preference) })?;
        let workspace = workspace as u64;
        let (mut found, mut count) = (Heuristic::default(), 0);
        // SAFETY: the attribute is a 64-bit number, read before the call returns; one result is asked for and there's room for it.
        let status = unsafe {
            let status = (functions.preference_set)(
                preference,
                library::PREFERENCE_WORKSPACE,
                (&raw const workspace).cast(),
                size_of::<u64>(),
            );
            if status == library::SUCCESS {
                (functions.heuristic)(
                    self.handle,
                    call.operation,
                    call.b,
                    call.a,
                    call.c,
                    call.c,
                    preference,
                    1,
                    &mut found,
                    &mut count,
                )
            } else {
                status
            }
        };
        // SAFETY: created above, not used after.
        unsafe { (functions.preference_destroy)(preference) };
        check("hipblasLtMatmulAlgoGetHeuristic", status)?;
        match count {
            1.. if found.state == library::SUCCESS => Ok(found.algorithm),
            _ => Err(Error::NoKernel(product)),
        }
    }
}

impl Drop for HipBlasLt {
    fn drop(&mut self) {
        // SAFETY: created in `load`, not used after.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}

/// Descriptions of a product and its matrices, in the library's words.
struct Call<'a> {
    functions: &'a Functions,
    operation: *mut c_void,
    a: *mut c_void,
    b: *mut c_void,
    c: *mut c_void,
}

impl<'a> Call<'a> {
    fn new(functions: &'a Functions, product: Product) -> Result<Self, Error> {
        let Product { m, n, k, a_transposed, b_transposed, inputs, output } = product;
        // Whatever is made before an error is destroyed on the way out.
        let mut call = Self { functions, operation: null_mut(), a: null_mut(), b: null_mut(), c: null_mut() };
        // SAFETY: writes a handle to where it's told to.
        check("hipblasLtMatmulDescCreate", unsafe {
            (functions.operation_create)(&mut call.operation, library::COMPUTE_F32, Element::F32 as c_int)
        })?;
        // The first matrix of the library is our second.
        call.transpose(library::TRANSPOSE_FIRST, b_transposed)?;
        call.transpose(library::TRANSPOSE_SECOND, a_transposed)?;
        let dims = |rows, cols, transposed| if transposed { (cols, rows) } else { (rows, cols) };
        call.a = layout(functions, inputs, dims(m, k, a_transposed))?;
        call.b = layout(functions, inputs, dims(k, n, b_transposed))?;
        call.c = layout(functions, output, (m, n))?;
        Ok(call)
    }

    fn transpose(&self, attribute: c_int, transposed: bool) -> Result<(), Error> {
        let operation = if transposed { library::TRANSPOSED } else { library::AS_IT_IS };
        // SAFETY: the attribute is a 32-bit number, read before the call returns.
        let status = unsafe {
            (self.functions.operation_set)(
                self.operation,
                attribute,
                (&raw const operation).cast(),
                size_of::<i32>(),
            )
        };
        check("hipblasLtMatmulDescSetAttribute", status)
    }
}

/// Description of a matrix of ours.
fn layout(
    functions: &Functions,
    element: Element,
    (rows, cols): (usize, usize),
) -> Result<*mut c_void, Error> {
    let mut layout = null_mut();
    // SAFETY: writes a handle to where it's told to.
    let status = unsafe {
        (functions.layout_create)(&mut layout, element as c_int, cols as u64, rows as u64, cols as i64)
    };
    check("hipblasLtMatrixLayoutCreate", status).map(|()| layout)
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        // SAFETY: each was created by the function's counterpart and isn't used after.
        unsafe {
            for layout in [self.a, self.b, self.c] {
                if !layout.is_null() {
                    (self.functions.layout_destroy)(layout);
                }
            }
            if !self.operation.is_null() {
                (self.functions.operation_destroy)(self.operation);
            }
        }
    }
}

#[cfg(test)]
mod tests;
