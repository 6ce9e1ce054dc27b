//! The checks of the lab: every implementation of `mt_model::ops::lab`, on every device that this build drives.
//!
//! `cargo test --release --workspace --test kernels [-- --exact rms_norm]`; with `--features mt-train/wgpu` (or `rocm`, `cuda`) on GPUs, too.

use benches::lab::check::{check, gradients_of_reference};
use benches::lab::{Operation, adamw, attention, cross_entropy, decode_attention, glu, rms_norm, rope};

fn everywhere<O: Operation>() {
    gradients_of_reference::<O>().unwrap_or_else(|error| panic!("the reference: {error}"));
    for implementation in O::implementations() {
        let mut checked = 0;
        for found in mt_model::device::available() {
            let cases = check::<O>(&implementation, &found.device)
                .unwrap_or_else(|error| panic!("{}: {error}", found.name));
            eprintln!("{} `{}` on {}: {cases} cases", O::NAME, implementation.name, found.name);
            checked += cases;
        }
        if checked == 0 {
            eprintln!("{} `{}`: skipped, it runs on no device here", O::NAME, implementation.name);
        }
    }
}

#[test]
fn adamw() {
    everywhere::<adamw::AdamW>();
}

#[test]
fn attention() {
    everywhere::<attention::Attention>();
}

#[test]
fn cross_entropy() {
    everywhere::<cross_entropy::CrossEntropy>();
}

#[test]
fn decode_attention() {
    everywhere::<decode_attention::DecodeAttention>();
}

#[test]
fn glu() {
    everywhere::<glu::Glu>();
}

#[test]
fn rms_norm() {
    everywhere::<rms_norm::RmsNorm>();
}

#[test]
fn rope() {
    everywhere::<rope::Rope>();
}
