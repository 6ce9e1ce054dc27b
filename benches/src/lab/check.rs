//! What every implementation has to pass, on every device and type that it runs on: shapes and types, values and gradients against the
//! float64 reference, the same bits from run to run and under any number of threads, and the operation's own invariants.
//!
//! The reference's gradients are checked themselves, against finite differences of its results ([`gradients_of_reference`]).

use burn::tensor::{DType, Device, Tensor};
use mt_model::ops::lab::Implementation;

use super::matrix::Matrix;
use super::{Operation, Results};

/// Checks all shapes of `O` by one implementation on one device, in every type that both have. Returns how many there were.
///
/// # Errors
/// The first failure, for people.
pub fn check<O: Operation>(
    implementation: &Implementation<O::Functions>,
    device: &Device,
) -> Result<usize, String> {
    let mut checked = 0;
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        if !device.supports_dtype(dtype) || !(implementation.runs_on)(device, dtype) {
            continue;
        }
        // 16 bits change only what is read and written: a few shapes do.
        let cases = if dtype == DType::F32 { usize::MAX } else { 4 };
        for case in O::checked().into_iter().take(cases) {
            let at = format!("{} `{}`, {} in {dtype:?}", O::NAME, implementation.name, case.label());
            check_case(&case, implementation, device, dtype).map_err(|error| format!("{at}: {error}"))?;
            checked += 1;
        }
    }
    Ok(checked)
}

fn check_case<O: Operation>(
    case: &O,
    implementation: &Implementation<O::Functions>,
    device: &Device,
    dtype: DType,
) -> Result<(), String> {
    let functions = &implementation.functions;
    let tensors = |operands: &[Matrix]| operands.iter().map(|x| x.on(device, dtype)).collect::<Vec<_>>();
    let passes = O::passes(functions);
    // The reference sees what the implementation sees: rounded operands.
    let operands: Vec<Matrix> = tensors(&draw(case)).iter().map(Matrix::of).collect();
    let expected = case.reference(&operands);
    for &pass in &passes {
        let results = case.run(pass, functions, tensors(&operands));
        for (name, found) in &results {
            let expected = expected.iter().find(|(other, _)| other == name);
            let (_, expected) = expected.ok_or(format!("`{name}` is no result of the reference"))?;
            agree(found, expected, O::FLOAT32.contains(name), dtype, case.tolerance(dtype))
                .map_err(|error| format!("{name} ({}) {error}", pass.name()))?;
        }
        let first = bits(&results);
        let again = || bits(&case.run(pass, functions, tensors(&operands)));
        if again() != first {
            return Err(format!("a second run ({}) gives other bits", pass.name()));
        }
        for threads in [1, 2, 3].into_iter().filter(|_| *device == Device::flex()) {
            if in_pool(threads, || bits(&case.run(pass, functions, tensors(&operands))))? != first {
                return Err(format!("{threads} threads ({}) give other bits", pass.name()));
            }
        }
    }
    let last = *passes.last().ok_or("it has no pass")?;
    case.invariants(&operands, &|operands| {
        let results = case.run(last, functions, tensors(operands));
        results.iter().map(|(name, tensor)| (*name, Matrix::of(tensor))).collect()
    })
}

/// One result against its reference.
fn agree(
    found: &Tensor<2>,
    expected: &Matrix,
    float32: bool,
    dtype: DType,
    tolerance: f64,
) -> Result<(), String> {
    if found.dims() != expected.dims {
        return Err(format!("is {:?}, expected {:?}", found.dims(), expected.dims));
    }
    let wanted = if float32 { DType::F32 } else { dtype };
    if found.dtype() != wanted {
        return Err(format!("is {:?}, expected {wanted:?}", found.dtype()));
    }
    let bound = tolerance * expected.largest().max(1.0);
    let found = Matrix::of(found);
    for (i, (found, expected)) in found.data.iter().zip(&expected.data).enumerate() {
        let off = (found - expected).abs();
        if off > bound || off.is_nan() {
            return Err(format!("[{i}] is {found}, expected {expected}, off by {off:.1e} > {bound:.1e}"));
        }
    }
    Ok(())
}

fn draw<O: Operation>(case: &O) -> Vec<Matrix> {
    (11..).zip(case.operands()).map(|(seed, operand)| operand.draw(seed)).collect()
}

fn bits(results: &Results<Tensor<2>>) -> Vec<Vec<u64>> {
    let of = |tensor: &Tensor<2>| Matrix::of(tensor).data.iter().map(|value| value.to_bits()).collect();
    results.iter().map(|(_, tensor)| of(tensor)).collect()
}

fn in_pool<T: Send>(threads: usize, f: impl FnOnce() -> T + Send) -> Result<T, String> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    Ok(pool.map_err(|error| format!("{threads} threads can't start: {error}"))?.install(f))
}

/// The reference's gradients against central differences of its loss, for the first of the shapes: up to 40 elements of every operand.
///
/// # Errors
/// The first that differs.
pub fn gradients_of_reference<O: Operation>() -> Result<(), String> {
    let (Some((result, upstream)), Some(case)) = (O::LOSS, O::checked().into_iter().next()) else {
        return Ok(());
    };
    let (names, operands) = (case.operands(), draw(&case));
    let of = |results: Results<Matrix>, name: &str| {
        results.into_iter().find(|(other, _)| *other == name).map(|(_, matrix)| matrix)
    };
    let index = |name: &str| names.iter().position(|operand| operand.name == name);
    let upstream = upstream.and_then(index).map(|index| operands[index].clone());
    let loss = |operands: &[Matrix]| -> Result<f64, String> {
        let y = of(case.reference(operands), result).ok_or(format!("there is no result `{result}`"))?;
        Ok(upstream.as_ref().map_or_else(|| y.data[0], |dy| y.dot(dy)))
    };
    let mut found = 0;
    for (operand, name) in names.iter().enumerate().map(|(i, operand)| (i, format!("d{}", operand.name))) {
        let Some(gradient) = of(case.reference(&operands), &name) else { continue };
        found += 1;
        let count = gradient.data.len();
        for i in (0..count).step_by(count.div_ceil(40)) {
            let moved = |by: f64| {
                let mut operands = operands.clone();
                operands[operand].data[i] += by;
                loss(&operands)
            };
            let slope = (moved(1e-5)? - moved(-1e-5)?) / 2e-5;
            if (slope - gradient.data[i]).abs() > 1e-7 * gradient.largest().max(1.0) {
                return Err(format!("{} {name}[{i}] is {}, not {slope}", O::NAME, gradient.data[i]));
            }
        }
    }
    if found == 0 { Err(format!("{} has a loss and no gradient", O::NAME)) } else { Ok(()) }
}
