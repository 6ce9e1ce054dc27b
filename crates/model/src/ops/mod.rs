//! The seam under which CPU and GPU implementations lie: every operation that the model and the optimizer run on tensors.
//!
//! One folder per operation. Its `mod.rs` states the maths, layouts and precision, and picks the implementation by where the
//! tensors live ([`engine`]): `cpu.rs` holds fused Rust on slices, `cube.rs` CubeCL kernels for GPUs (in builds that drive one),
//! `plain.rs` the same maths composed of burn's tensor operations, which runs everywhere and is the reference in tests.
//!
//! Conventions. Activations are `[tokens, features]` with tokens = batch * seq; parameters are `[in, out]`. Tensors carry
//! float32 or bfloat16; arithmetic is float32, and a bfloat16 result is rounded once, to nearest even. Gradients of
//! parameters are float32. No result depends on the number of threads: work is split over outputs, and sums run in an order
//! that only shapes decide.

pub mod adamw;
pub mod attention;
pub mod create;
pub mod cross_entropy;
pub mod decode_attention;
pub mod elementwise;
pub mod embedding;
pub mod engine;
pub mod glu;
pub mod lab;
pub mod linear;
pub mod memory;
pub mod quantized;
pub mod rms_norm;
pub mod rope;
pub mod tuning;
pub mod weight;

#[cfg(feature = "gpu")]
pub(crate) mod cube;
pub(crate) mod gemm;
pub(crate) mod real;
pub(crate) mod reduce;
pub(crate) mod vector;
