//! Every operation against float64 maths, its backward pass against finite differences of that maths and against burn's
//! autodiff of the plain composition; bfloat16 within stated bounds; bitwise equal results under any number of threads.

mod common;

mod adamw;
mod cross_entropy;
mod decode_attention;
mod elementwise;
mod embedding;
mod glu;
mod linear;
mod quantized;
mod rms_norm;
mod rope;
mod weight;
