//! The lab's checks catch what they are there for: each of these implementations is broken in one way.

use std::sync::atomic::{AtomicU32, Ordering};

use benches::lab::attention::Attention;
use benches::lab::check::check;
use benches::lab::rms_norm::RmsNorm;
use burn::tensor::{DType, Device, Tensor};
use mt_model::ops::attention::Layout;
use mt_model::ops::lab::attention::Attention as AttentionFunctions;
use mt_model::ops::lab::rms_norm::RmsNorm as Functions;
use mt_model::ops::lab::{self, Implementation, on_cpu};
use mt_model::ops::rms_norm;

const RIGHT: Functions = Functions { forward: rms_norm::forward, backward: rms_norm::backward };

fn verdict(functions: Functions) -> Result<usize, String> {
    check::<RmsNorm>(&Implementation { name: "broken", runs_on: on_cpu, functions }, &Device::flex())
}

fn complaint(functions: Functions) -> String {
    verdict(functions).expect_err("it is broken")
}

#[test]
fn a_right_one_passes_in_both_types() {
    let cases = verdict(RIGHT).expect("it is right");
    assert!(cases > 5, "{cases}");
}

#[test]
fn a_shape() {
    let forward = |x: Tensor<2>, scale, eps| rms_norm::forward(x, scale, eps).transpose();
    assert!(complaint(Functions { forward, ..RIGHT }).contains("is [7, 3], expected [3, 7]"));
}

#[test]
fn a_type() {
    let backward = |x: Tensor<2>, scale, eps, dy| {
        let (dx, dscale) = rms_norm::backward(x, scale, eps, dy);
        (dx.cast(DType::BF16), dscale)
    };
    assert!(complaint(Functions { backward, ..RIGHT }).contains("dx (backward) is BF16, expected F32"));
}

#[test]
fn a_value() {
    let forward = |x: Tensor<2>, scale, eps: f64| rms_norm::forward(x, scale, eps + 1e-4);
    let complaint = complaint(Functions { forward, ..RIGHT });
    assert!(complaint.contains("y (forward)") && complaint.contains("off by"), "{complaint}");
}

#[test]
fn a_gradient() {
    let backward = |x: Tensor<2>, scale, eps, dy| {
        let (dx, dscale) = rms_norm::backward(x, scale, eps, dy);
        (dx * 1.0001, dscale)
    };
    assert!(complaint(Functions { backward, ..RIGHT }).contains("dx (backward)"));
}

#[test]
fn not_a_number() {
    let forward = |x: Tensor<2>, scale, eps| rms_norm::forward(x, scale, eps) * f32::NAN;
    assert!(complaint(Functions { forward, ..RIGHT }).contains("NaN"));
}

#[test]
fn other_bits_in_another_run() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let forward = |x: Tensor<2>, scale, eps| {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        rms_norm::forward(x, scale, eps) * (1.0 + call as f32 * f32::EPSILON)
    };
    assert!(complaint(Functions { forward, ..RIGHT }).contains("a second run (forward) gives other bits"));
}

#[test]
fn other_bits_under_other_threads() {
    let forward = |x: Tensor<2>, scale, eps| {
        let factor = if rayon::current_num_threads() == 3 { 1.0 + f32::EPSILON } else { 1.0 };
        rms_norm::forward(x, scale, eps) * factor
    };
    assert!(complaint(Functions { forward, ..RIGHT }).contains("3 threads (forward) give other bits"));
}

/// Attention that forgets about documents.
#[test]
fn a_mask() {
    let flash = lab::attention::implementations().into_iter().find(|one| one.name == "flash");
    let broken = AttentionFunctions {
        forward: |q, k, v, layout, spec| {
            let whole = Layout::unpacked(layout.batch(), layout.seq());
            let flash = lab::attention::implementations().remove(0);
            (flash.functions.forward)(q, k, v, &whole, spec)
        },
        backward: flash.expect("it is listed").functions.backward,
    };
    let broken = Implementation { name: "broken", runs_on: on_cpu, functions: broken };
    let complaint = check::<Attention>(&broken, &Device::flex()).expect_err("it is broken");
    assert!(complaint.contains("out (forward)"), "{complaint}");
}
