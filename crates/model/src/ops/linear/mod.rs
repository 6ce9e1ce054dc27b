//! Dense layers: `y = x w (+ b)` and their gradients.
//!
//! ```text
//! forward          y[t, o]  = sum_i x[t, i] w[i, o]
//! backward_input   dx[t, i] = sum_o dy[t, o] w[i, o]
//! backward_weight  dw[i, o] = sum_t x[t, i] dy[t, o]
//! add_bias         y[t, o] + b[o]
//! backward_bias    db[o]    = sum_t dy[t, o]
//! ```
//!
//! The element type of the activation (`x` or `dy`) is the compute type: a kernel stored in another type is rounded to it
//! first, as MaxText casts `weight_dtype` to `dtype`. Sums run in float32. `y` and `dx` have the compute type, gradients of
//! parameters are float32.

mod cpu;
#[cfg(any(test, feature = "rocm"))]
mod hipblaslt;
mod plain;

use burn::tensor::{Device, Tensor};
use mt_config::Gemm;

use super::engine::{Host, Placed, hosts, placed};
use crate::profile::{Kind, Span, span};

/// Chooses who computes the products on `device`, once, before training: burn, or hipBLASLt where there is an AMD GPU and the
/// library, after its products were compared with burn's. Returns a line for the log where there was something to choose; what
/// fails falls back to burn.
pub fn choose_gemm(wanted: Gemm, device: &Device) -> Option<String> {
    match wanted {
        Gemm::Burn => None,
        Gemm::HipBlasLt => hipblaslt_line(device),
    }
}

#[cfg(feature = "rocm")]
fn hipblaslt_line(device: &Device) -> Option<String> {
    Some(match hipblaslt::launch::choose(device)? {
        Ok(()) => "matrix products by hipBLASLt, checked against burn's".to_owned(),
        Err(why) => format!("matrix products by burn: hipBLASLt isn't used, {why}"),
    })
}

#[cfg(not(feature = "rocm"))]
fn hipblaslt_line(_device: &Device) -> Option<String> {
    None
}

/// `x: [T, I]`, `w: [I, O]` -> `[T, O]` of x's type.
pub fn forward(x: Tensor<2>, w: Tensor<2>) -> Tensor<2> {
    let _span = product_span("linear.forward", &x, w.dims());
    match hosts([x, w]) {
        Ok([x, w]) => cpu::forward(&x, &w).into_tensor(),
        Err([x, w]) => {
            #[cfg(feature = "rocm")]
            if let Some(y) =
                hipblaslt::launch::product(&x, &w.clone().cast(x.dtype()), [false, false], x.dtype())
            {
                return y;
            }
            plain::forward(x, w)
        }
    }
}

/// Gradient of the input. `dy: [T, O]`, `w: [I, O]` -> `[T, I]` of dy's type.
pub fn backward_input(dy: Tensor<2>, w: Tensor<2>) -> Tensor<2> {
    let _span = product_span("linear.backward_input", &dy, w.dims());
    match hosts([dy, w]) {
        Ok([dy, w]) => cpu::backward_input(&dy, &w).into_tensor(),
        Err([dy, w]) => {
            #[cfg(feature = "rocm")]
            if let Some(dx) =
                hipblaslt::launch::product(&dy, &w.clone().cast(dy.dtype()), [false, true], dy.dtype())
            {
                return dx;
            }
            plain::backward_input(dy, w)
        }
    }
}

/// Gradient of the kernel. `x: [T, I]`, `dy: [T, O]` -> `[I, O]` float32.
pub fn backward_weight(x: Tensor<2>, dy: Tensor<2>) -> Tensor<2> {
    let _span = product_span("linear.backward_weight", &x, [x.dims()[1], dy.dims()[1]]);
    match hosts([x, dy]) {
        Ok([x, dy]) => cpu::backward_weight(&x, &dy).into_tensor(),
        Err([x, dy]) => {
            #[cfg(feature = "rocm")]
            if let Some(dw) = hipblaslt::launch::product(&x, &dy, [true, false], burn::tensor::DType::F32) {
                return dw;
            }
            plain::backward_weight(x, dy)
        }
    }
}

/// `y: [T, O]` plus `bias: [1, O]` on every row, in place when nobody else holds `y`.
pub fn add_bias(y: Tensor<2>, bias: Tensor<2>) -> Tensor<2> {
    let _span = span(Kind::Operation, "linear.add_bias");
    match hosts([y, bias]) {
        Ok([y, bias]) => cpu::add_bias(y, &bias).into_tensor(),
        Err([y, bias]) => plain::add_bias(y, bias),
    }
}

/// Gradient of the bias. `dy: [T, O]` -> `[1, O]` float32.
pub fn backward_bias(dy: Tensor<2>) -> Tensor<2> {
    let _span = span(Kind::Operation, "linear.backward_bias");
    match placed([dy]) {
        Placed::Host([dy]) => Host::new(super::reduce::column_sums(&dy), [1, dy.dims()[1]]).into_tensor(),
        #[cfg(feature = "gpu")]
        Placed::Cube([dy]) => super::cube::tensor(super::cube::reduce::column_sums(dy)),
        Placed::Other([dy]) => plain::backward_bias(dy),
    }
}

/// A span around a product of `activation: [T, _]` with a kernel or its gradient, `[I, O]`: all three products do the same work.
fn product_span(name: &'static str, activation: &Tensor<2>, [i, o]: [usize; 2]) -> Span {
    let [t, size] = [activation.dims()[0], activation.dtype().size()];
    span(Kind::Matmul, name).work(2 * t * i * o, (t * i + t * o + i * o) * size)
}
