//! The calls, to a library with the same interface that multiplies on the CPU. A machine without a C++ compiler skips it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;

use half::bf16;

use super::*;

fn fake(folder: &Path) -> Option<PathBuf> {
    if Command::new("c++").arg("--version").output().is_err() {
        eprintln!("skipped: there is no c++ to build a stand-in for hipBLASLt with");
        return None;
    }
    let [source, library] = ["fake.cpp", "libhipblaslt.so"].map(|name| folder.join(name));
    std::fs::write(&source, include_str!("fake.cpp")).unwrap();
    let built = Command::new("c++")
        .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    assert!(built.unwrap().success());
    Some(library)
}

fn values(len: usize, step: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * step) % 17) as f32 / 8.0 - 1.0).collect()
}

/// The product by definition, and by the library.
fn both(library: &HipBlasLt, product: Product) -> Result<[Vec<f32>; 2], Error> {
    let Product { m, n, k, a_transposed, b_transposed, inputs, output } = product;
    let (a, b) = (values(m * k, 5), values(k * n, 7));
    let a_at = |i: usize, j: usize| if a_transposed { a[j * m + i] } else { a[i * k + j] };
    let b_at = |i: usize, j: usize| if b_transposed { b[j * k + i] } else { b[i * n + j] };
    let expected = (0..m * n).map(|at| (0..k).map(|j| a_at(at / n, j) * b_at(j, at % n)).sum()).collect();

    // The values are exact in bfloat16, and so are their sums in float32.
    let narrow = |x: &[f32]| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
    let (narrow_a, narrow_b) = (narrow(&a), narrow(&b));
    let [pointer_a, pointer_b] = match inputs {
        Element::F32 => [a.as_ptr().cast(), b.as_ptr().cast()],
        Element::Bf16 => [narrow_a.as_ptr().cast(), narrow_b.as_ptr().cast()],
    };
    let (mut wide_c, mut narrow_c) = (vec![f32::NAN; m * n], vec![bf16::NAN; m * n]);
    let c = match output {
        Element::F32 => wide_c.as_mut_ptr().cast(),
        Element::Bf16 => narrow_c.as_mut_ptr().cast(),
    };
    let operands = Operands { a: pointer_a, b: pointer_b, c, workspace: null_mut(), workspace_bytes: 64 };
    // SAFETY: the stand-in works on the host, synchronously, on vectors of these sizes.
    unsafe { library.multiply(product, operands, null_mut()) }?;
    if output == Element::Bf16 {
        wide_c = narrow_c.into_iter().map(bf16::to_f32).collect();
    }
    Ok([expected, wide_c])
}

#[test]
fn products_of_every_layout_and_type() {
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = fake(folder.path()) else { return };
    let names = ["libno-such-library.so", path.to_str().unwrap()];
    // SAFETY: the stand-in does nothing when it's loaded. Held, so that its count survives until it's read.
    let held = unsafe { libloading::Library::new(&path) }.unwrap();
    let library = HipBlasLt::load(&names).unwrap();
    let (wide, narrow) = (Element::F32, Element::Bf16);
    // Those of `y = x w`, `dx = dy w^T`, `dw = x^T dy`, in both compute types; twice, since the second finds its algorithm known.
    for (inputs, output) in [(wide, wide), (narrow, narrow), (narrow, wide)] {
        for (a_transposed, b_transposed) in [(false, false), (false, true), (true, false)] {
            let product = Product { m: 3, n: 5, k: 4, a_transposed, b_transposed, inputs, output };
            for _ in 0..2 {
                let [mut expected, found] = both(&library, product).unwrap();
                if output == narrow {
                    expected.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
                }
                assert_eq!(found, expected, "{product:?}");
            }
        }
    }
    let impossible =
        Product { m: 2, n: 2, k: 13, a_transposed: false, b_transposed: false, inputs: wide, output: wide };
    assert_eq!(both(&library, impossible).unwrap_err(), Error::NoKernel(impossible));
    drop(library);

    // SAFETY: the stand-in exports this function without arguments.
    let alive = unsafe { held.get::<unsafe extern "C" fn() -> c_int>(b"handles_alive\0").unwrap()() };
    assert_eq!(alive, 0, "everything that was created is destroyed");
}

#[test]
fn a_library_that_is_not_there() {
    let error = HipBlasLt::load(&["libno-such-library.so"]).err().map(|error| error.to_string());
    assert!(error.as_ref().is_some_and(|error| error.contains("libhipblaslt.so.1")), "{error:?}");
}
