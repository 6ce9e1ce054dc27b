//! The gated linear unit on slices, one pass.

use mt_config::Activation;
use rayon::prelude::*;

use crate::ops::engine::{BLOCK, Host, by_dtype};
use crate::ops::memory::Buffer;
use crate::ops::real::Real;
use crate::ops::vector::{sigmoid, tanh, vectorized};

/// Runs `$body` with the type alias `$A` standing for the activation.
macro_rules! by_activation {
    ($act:expr, $A:ident => $body:expr) => {
        match $act {
            Activation::Silu => {
                type $A = Silu;
                $body
            }
            Activation::Gelu => {
                type $A = Gelu;
                $body
            }
            Activation::Relu => {
                type $A = Relu;
                $body
            }
            Activation::Linear => {
                type $A = Linear;
                $body
            }
        }
    };
}

pub(super) fn forward(gate: &Host, up: &Host, act: Activation) -> Host {
    by_dtype!(gate.dtype(), E => by_activation!(act, A => {
        let (gate_values, up) = (gate.values::<E>(), up.values::<E>());
        let mut h = Buffer::<E>::new(gate_values.len());
        h.par_chunks_mut(BLOCK)
            .zip(gate_values.par_chunks(BLOCK).zip(up.par_chunks(BLOCK)))
            .for_each(|(h, (gate, up))| forward_block::<E, A>(h, gate, up));
        Host::new(h, gate.dims())
    }))
}

pub(super) fn backward(gate: &Host, up: &Host, act: Activation, dh: &Host) -> (Host, Host) {
    by_dtype!(gate.dtype(), E => by_activation!(act, A => {
        let (gate_values, up, dh) = (gate.values::<E>(), up.values::<E>(), dh.values::<E>());
        let (mut dgate, mut dup) = (Buffer::<E>::new(dh.len()), Buffer::<E>::new(dh.len()));
        dgate.par_chunks_mut(BLOCK)
            .zip(dup.par_chunks_mut(BLOCK))
            .zip(gate_values.par_chunks(BLOCK).zip(up.par_chunks(BLOCK)).zip(dh.par_chunks(BLOCK)))
            .for_each(|((dgate, dup), ((gate, up), dh))| backward_block::<E, A>(dgate, dup, gate, up, dh));
        (Host::new(dgate, gate.dims()), Host::new(dup, gate.dims()))
    }))
}

vectorized! {
    fn forward_block<E: Real, A: Activate>(h: &mut [E], gate: &[E], up: &[E]) {
        for ((h, gate), up) in h.iter_mut().zip(gate).zip(up) {
            *h = E::from_f32(A::activate(gate.to_f32()).0 * up.to_f32());
        }
    }
}

vectorized! {
    fn backward_block<E: Real, A: Activate>(dgate: &mut [E], dup: &mut [E], gate: &[E], up: &[E], dh: &[E]) {
        for ((((dgate, dup), gate), up), dh) in dgate.iter_mut().zip(dup).zip(gate).zip(up).zip(dh) {
            let (value, slope) = A::activate(gate.to_f32());
            *dgate = E::from_f32(dh.to_f32() * up.to_f32() * slope);
            *dup = E::from_f32(dh.to_f32() * value);
        }
    }
}

trait Activate {
    /// The activation and its derivative.
    fn activate(x: f32) -> (f32, f32);
}

struct Silu;
struct Gelu;
struct Relu;
struct Linear;

impl Activate for Silu {
    #[inline(always)]
    fn activate(x: f32) -> (f32, f32) {
        let s = sigmoid(x);
        (x * s, s * (1.0 + x * (1.0 - s)))
    }
}

impl Activate for Gelu {
    #[inline(always)]
    fn activate(x: f32) -> (f32, f32) {
        const C: f32 = 0.797_884_6; // sqrt(2/pi)
        const CUBIC: f32 = 0.044_715;
        let t = tanh(C * (x + CUBIC * x * x * x));
        let slope = C * (1.0 + 3.0 * CUBIC * x * x);
        (0.5 * x * (1.0 + t), 0.5 * (1.0 + t + x * (1.0 - t * t) * slope))
    }
}

impl Activate for Relu {
    #[inline(always)]
    fn activate(x: f32) -> (f32, f32) {
        // Written so that NaN stays NaN.
        if x <= 0.0 { (0.0, 0.0) } else { (x, 1.0) }
    }
}

impl Activate for Linear {
    #[inline(always)]
    fn activate(x: f32) -> (f32, f32) {
        (x, 1.0)
    }
}
