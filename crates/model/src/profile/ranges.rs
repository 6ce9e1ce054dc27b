//! Spans as ranges of a vendor's profiler: NVTX for `nsys profile`, roctx for `rocprofv3 --marker-trace`.
//!
//! Both libraries have the same two functions under their own names: one opens a named range on the calling thread, the other
//! closes the innermost. They are loaded at run time; a machine without them runs all the same.

use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

use libloading::Library;

/// Whose ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// NVIDIA's NVTX.
    Nvtx,
    /// AMD's roctx.
    Roctx,
}

impl Vendor {
    /// Names under which the library is looked up, in this order, in the loader's path.
    pub fn libraries(self) -> &'static [&'static str] {
        match self {
            Self::Nvtx => &["libnvToolsExt.so.1", "libnvToolsExt.so", "libnvtx3interop.so"],
            Self::Roctx => &["librocprofiler-sdk-roctx.so.1", "libroctx64.so.4", "libroctx64.so"],
        }
    }

    fn functions(self) -> [&'static [u8]; 2] {
        match self {
            Self::Nvtx => [b"nvtxRangePushA\0", b"nvtxRangePop\0"],
            Self::Roctx => [b"roctxRangePushA\0", b"roctxRangePop\0"],
        }
    }
}

/// The library isn't there, or isn't what its name says.
#[derive(Debug, thiserror::Error)]
#[error("none of {} can be loaded ({reason})", vendor.libraries().join(", "))]
pub struct RangesError {
    /// Whose library.
    pub vendor: Vendor,
    /// What the loader said of the last one.
    pub reason: String,
}

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

struct Ranges {
    push: Push,
    pop: Pop,
    /// Never unloaded: the functions are its code.
    _library: Library,
}

static RANGES: OnceLock<Ranges> = OnceLock::new();

/// Loads the library of `vendor`; spans are ranges from then on, until the process ends.
///
/// # Errors
/// [`RangesError`]; nothing changes then.
pub fn emit_ranges(vendor: Vendor) -> Result<(), RangesError> {
    load(vendor, vendor.libraries())
}

fn load(vendor: Vendor, names: &[&str]) -> Result<(), RangesError> {
    let mut reason = String::new();
    for name in names {
        // SAFETY: the vendors' libraries run no code of consequence when they are loaded.
        match unsafe { Library::new(*name) }.and_then(|library| ranges(vendor, library)) {
            Ok(ranges) => {
                let _ = RANGES.set(ranges); // of two calls the first one counts
                super::ACTIVE.fetch_or(super::RANGES, std::sync::atomic::Ordering::Relaxed);
                return Ok(());
            }
            Err(error) => reason = error.to_string(),
        }
    }
    Err(RangesError { vendor, reason })
}

fn ranges(vendor: Vendor, library: Library) -> Result<Ranges, libloading::Error> {
    let [push, pop] = vendor.functions();
    // SAFETY: both libraries declare `int RangePushA(const char *)` and `int RangePop(void)`.
    unsafe {
        let (push, pop) = (*library.get::<Push>(push)?, *library.get::<Pop>(pop)?);
        Ok(Ranges { push, pop, _library: library })
    }
}

/// Opens a range on this thread.
pub(super) fn push(name: &str) {
    if let (Some(ranges), Ok(name)) = (RANGES.get(), CString::new(name)) {
        // SAFETY: the function copies the text before it returns.
        unsafe { (ranges.push)(name.as_ptr()) };
    }
}

/// Closes the innermost range of this thread.
pub(super) fn pop() {
    if let Some(ranges) = RANGES.get() {
        // SAFETY: it takes nothing; without an open range it returns an error code.
        unsafe { (ranges.pop)() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Kind, span};

    /// A library that writes who tells it what to a file.
    const RECORDER: &str = r#"
        #include <pthread.h>
        #include <stdio.h>
        static int note(const char *sign, const char *name) {
            FILE *file = fopen(NOTES, "a");
            fprintf(file, "%lu %s%s\n", (unsigned long)pthread_self(), sign, name);
            return fclose(file);
        }
        int roctxRangePushA(const char *name) { return note("+", name); }
        int roctxRangePop(void) { return note("-", ""); }
    "#;

    #[test]
    fn spans_are_ranges_of_the_library_that_is_there() {
        let error = load(Vendor::Nvtx, &["libno-such-thing.so"]).unwrap_err().to_string();
        assert!(error.contains("libnvToolsExt.so.1"), "{error}");

        let folder = tempfile::tempdir().unwrap();
        let [source, library, notes] =
            ["roctx.c", "libroctx64.so", "notes"].map(|name| folder.path().join(name));
        std::fs::write(&source, RECORDER).unwrap();
        let place = format!("-DNOTES=\"{}\"", notes.display());
        let built = std::process::Command::new("cc")
            .arg(&place)
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .status();
        assert!(built.unwrap().success());
        load(Vendor::Roctx, &[library.to_str().unwrap()]).unwrap();
        {
            let _layer = span(Kind::Model, "ranges.layer").index(3);
            drop(span(Kind::Matmul, "ranges.linear"));
        }
        super::super::ACTIVE.fetch_and(!super::super::RANGES, std::sync::atomic::Ordering::Relaxed);
        // Other tests may have opened spans of their own, on their threads.
        let notes = std::fs::read_to_string(notes).unwrap();
        let of_layer = notes.lines().find(|line| line.ends_with("+ranges.layer")).unwrap();
        let thread = of_layer.split(' ').next().unwrap();
        let ours: Vec<&str> = notes.lines().filter_map(|line| line.strip_prefix(thread)).collect();
        assert_eq!(ours, [" +ranges.layer", " +ranges.linear", " -", " -"]);
    }
}
