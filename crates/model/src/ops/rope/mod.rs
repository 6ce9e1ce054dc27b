//! Rotary position embedding: every head's features rotate in pairs, by an angle that grows with the position.
//!
//! ```text
//! timescale[i] = min (max / min)^(2i / D) linear_scaling_factor         i = 0 .. D/2
//! angle        = position / timescale[i]
//! y[a] = x[a] cos(angle) - x[b] sin(angle)
//! y[b] = x[b] cos(angle) + x[a] sin(angle)
//! ```
//!
//! The pair (a, b) is (i, i + D/2) in the half-split layout (`rope_type: default`) and (2i, 2i + 1) in the interleaved one
//! (`rope_type: llama3.1`). Llama 3.1's scaling divides slow frequencies by 8, keeps fast ones and blends between: with
//! wavelength w = 2 pi timescale and s = (8192 / w - 1) / (4 - 1),
//!
//! ```text
//! w < 8192/4: 1 / timescale      w > 8192/1: 1 / (8 timescale)      else: ((1 - s) / 8 + s) / timescale
//! ```
//!
//! The rotation is orthogonal, so its backward pass is the inverse rotation ([`Direction::Inverse`]). Angles are computed
//! in float64, their sines and cosines kept in float32; the rotation is float32 for every element type.

mod cpu;
#[cfg(feature = "gpu")]
mod cube;
mod plain;

use burn::tensor::{Device, Int, Tensor, TensorData};
use mt_config::Rope;

#[cfg(feature = "gpu")]
use super::cube::tensor;
use super::engine::{Placed, integers, placed};
use crate::profile::{Kind, span};

/// Sines and cosines of all positions below a limit.
#[derive(Debug, Clone)]
pub struct Table {
    cos: Tensor<2>, // [max_position, D/2] float32
    sin: Tensor<2>,
    interleaved: bool,
}

/// Which way to rotate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The forward pass.
    Forward,
    /// The backward pass: rotates a gradient back.
    Inverse,
}

impl Table {
    /// Tabulates positions 0..max_position for heads of `head_dim` features.
    pub fn new(rope: &Rope, head_dim: usize, max_position: usize, device: &Device) -> Self {
        let half = head_dim / 2;
        let frequencies: Vec<f64> = (0..half).map(|i| frequency(rope, i, head_dim)).collect();
        let tabulate = |f: fn(f64) -> f64| {
            let angles = (0..max_position).flat_map(|p| frequencies.iter().map(move |w| p as f64 * w));
            let values: Vec<f32> = angles.map(|angle| f(angle) as f32).collect();
            Tensor::from_data(TensorData::new(values, [max_position, half]), device)
        };
        Self { cos: tabulate(f64::cos), sin: tabulate(f64::sin), interleaved: rope.interleaved }
    }
}

/// Radians per position of pair `i`.
fn frequency(rope: &Rope, i: usize, head_dim: usize) -> f64 {
    const FACTOR: f64 = 8.0;
    const LOW: f64 = 1.0;
    const HIGH: f64 = 4.0;
    const ORIGINAL_LENGTH: f64 = 8192.0;
    let fraction = 2.0 * i as f64 / head_dim as f64;
    let ratio = rope.max_timescale / rope.min_timescale;
    let frequency = 1.0 / (rope.min_timescale * ratio.powf(fraction) * rope.linear_scaling_factor);
    if !rope.llama31_scaling {
        return frequency;
    }
    let turns = ORIGINAL_LENGTH * frequency / (2.0 * std::f64::consts::PI);
    let smooth = ((turns - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
    frequency * ((1.0 - smooth) / FACTOR + smooth)
}

/// Rotates every head of `x: [T, heads * head_dim]` by its token's position -> same shape and type; in place when nobody else
/// holds `x`. `positions: [T]`; one at or beyond the table's limit gives NaN.
pub fn apply(
    x: Tensor<2>,
    positions: &Tensor<1, Int>,
    table: &Table,
    head_dim: usize,
    direction: Direction,
) -> Tensor<2> {
    let _span = span(Kind::Operation, "rope");
    match placed([x, table.cos.clone(), table.sin.clone()]) {
        Placed::Host([x, cos, sin]) => {
            let rotation = cpu::Rotation { cos, sin, interleaved: table.interleaved, head_dim, direction };
            cpu::apply(x, &integers(positions), &rotation).into_tensor()
        }
        #[cfg(feature = "gpu")]
        Placed::Cube([x, cos, sin]) => {
            let rotation = cube::Rotation { cos, sin, interleaved: table.interleaved, head_dim, direction };
            tensor(cube::apply(x, &super::cube::integers(positions), &rotation))
        }
        Placed::Other([x, ..]) => plain::apply(x, positions, table, head_dim, direction),
    }
}
