//! Attention of single new tokens over a cache of keys and values.
//!
//! For query head h of a token at position t of its sequence and kv head g = h / (num_query_heads / num_kv_heads):
//! ```text
//! s_k = q_h . k_{k,g}                 over k with k <= t and t - k < window
//! s_k = cap tanh(s_k / cap)
//! out = sum_k softmax(s)_k v_{k,g}
//! ```
//! as [`attention`](super::attention) computes it for whole rows, softmax in float32. A [`Cache`] holds the keys and values of
//! one layer, rotated and normalised as attention reads them, in the compute type or in int8. An int8 vector x is stored as
//! MaxText stores it (`quantize_kvcache`):
//! ```text
//! scale = max |x|                     over a head (`dkv`) or over all heads of the position (`heads_and_dkv`)
//! q     = round(x 127.5 / scale)      half to even, saturated to -128 ..= 127
//! x'    = q scale / 127.5             with the scale rounded to bfloat16
//! ```
//! in x's type: of bfloat16 vectors the quotient and the product are bfloat16, too.
//! The kernels read the stored values as they are: a score is `(q . q_k) scale_k / 127.5`, and the value's scale goes into
//! its weight, so no float copy of the cache is ever made.

mod cpu;
#[cfg(feature = "gpu")]
pub(crate) mod cube;
mod kernels;
mod plain;
mod quantize;
mod store;

use burn::tensor::{DType, Device, Tensor};
use mt_config::KvQuantAxis;

use super::attention::Spec;
use super::engine::{Placed, hosts, placed};
use crate::profile::{Kind, span};

pub use quantize::{Quantized, quantize};

/// What a cache stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// Elements of the compute type, float32 or bfloat16.
    Float(DType),
    /// int8 values with bfloat16 scales.
    Int8 {
        /// A scale per position and head (`dkv`), else one per position (`heads_and_dkv`).
        per_head: bool,
    },
}

impl Storage {
    /// int8 with the scales of `kv_quant_axis`.
    pub fn int8(axis: KvQuantAxis) -> Self {
        Self::Int8 { per_head: axis == KvQuantAxis::Dkv }
    }
}

/// Sizes of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Sequences B.
    pub sequences: usize,
    /// Positions per sequence C.
    pub capacity: usize,
    /// Key and value heads Hkv.
    pub num_kv_heads: usize,
    /// Width D of a head.
    pub head_dim: usize,
}

/// Where a token stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Index of its sequence.
    pub sequence: usize,
    /// Its position in the sequence.
    pub position: usize,
}

/// Keys and values of one layer.
#[derive(Debug)]
pub struct Cache {
    shape: Shape,
    stored: Stored,
}

/// Where the cache lives.
#[derive(Debug)]
enum Stored {
    Host(cpu::Cache),
    #[cfg(feature = "gpu")]
    Cube(Box<cube::Cache>),
    Device(Box<plain::Cache>),
}

impl Cache {
    /// A cache without tokens.
    pub fn new(shape: Shape, storage: Storage, device: &Device) -> Self {
        // Devices compare equal with and without autodiff, tensors tell.
        let stored = match placed([Tensor::zeros([1, 1], (device, DType::F32))]) {
            Placed::Host(_) => Stored::Host(cpu::Cache::new(shape, storage)),
            #[cfg(feature = "gpu")]
            Placed::Cube([like]) => Stored::Cube(Box::new(cube::Cache::new(shape, storage, &like))),
            Placed::Other(_) => Stored::Device(Box::new(plain::Cache::new(shape, storage, device))),
        };
        Self { shape, stored }
    }

    /// Bytes of keys, values and scales.
    pub fn bytes(&self) -> usize {
        match &self.stored {
            Stored::Host(cache) => cache.bytes(),
            #[cfg(feature = "gpu")]
            Stored::Cube(cache) => cache.bytes(),
            Stored::Device(cache) => cache.bytes(),
        }
    }

    /// Writes keys and values, `[slots, Hkv * D]`, each row to its slot.
    ///
    /// # Panics
    /// When a slot lies outside the cache or the rows don't have its shape.
    pub fn write(&mut self, k: Tensor<2>, v: Tensor<2>, slots: &[Slot]) {
        let _span = span(Kind::Operation, "decode_attention.write");
        self.check(slots);
        let expected = [slots.len(), self.shape.num_kv_heads * self.shape.head_dim];
        assert_eq!(
            (k.dims(), v.dims()),
            (expected, expected),
            "keys and values are [slots, kv heads * head_dim]"
        );
        match &mut self.stored {
            Stored::Host(cache) => match hosts([k, v]) {
                Ok([k, v]) => cache.write(&k, &v, slots),
                Err(_) => panic!("keys and values live where the cache does"),
            },
            #[cfg(feature = "gpu")]
            Stored::Cube(_) if slots.is_empty() => {}
            #[cfg(feature = "gpu")]
            Stored::Cube(cache) => match super::cube::cubes([k, v]) {
                Ok([k, v]) => cache.write(&k, &v, slots),
                Err(_) => panic!("keys and values live where the cache does"),
            },
            Stored::Device(cache) => cache.write(k, v, slots),
        }
    }

    /// Attention of `q: [slots, Hq * D]`, whose own keys and values were written before -> `[slots, Hq * D]` of q's type.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    pub fn attend(&self, q: Tensor<2>, slots: &[Slot], spec: &Spec) -> Tensor<2> {
        let _span = span(Kind::Attention, "decode_attention").work_by(|| self.work(slots, spec));
        self.check(slots);
        assert_eq!((spec.num_kv_heads, spec.head_dim), (self.shape.num_kv_heads, self.shape.head_dim));
        assert_eq!(
            q.dims(),
            [slots.len(), spec.num_query_heads * spec.head_dim],
            "queries are [slots, heads * head_dim]"
        );
        match &self.stored {
            Stored::Host(cache) => match hosts([q]) {
                Ok([q]) => cache.attend(&q, slots, spec).into_tensor(),
                Err(_) => panic!("queries live where the cache does"),
            },
            #[cfg(feature = "gpu")]
            Stored::Cube(_) if slots.is_empty() => q,
            #[cfg(feature = "gpu")]
            Stored::Cube(cache) => match super::cube::cubes([q]) {
                Ok([q]) => super::cube::tensor(cache.attend(&q, slots, spec)),
                Err(_) => panic!("queries live where the cache does"),
            },
            Stored::Device(cache) => cache.attend(q, slots, spec),
        }
    }

    fn check(&self, slots: &[Slot]) {
        let Shape { sequences, capacity, .. } = self.shape;
        for slot in slots {
            assert!(
                slot.sequence < sequences && slot.position < capacity,
                "{slot:?} is outside a cache of {sequences} sequences of {capacity} positions"
            );
        }
    }

    /// FLOPs of an attention, and the bytes of the cache that it reads.
    fn work(&self, slots: &[Slot], spec: &Spec) -> (u64, u64) {
        let keys: usize = slots.iter().map(|slot| visible(slot, spec).len()).sum();
        let Shape { sequences, capacity, .. } = self.shape;
        let bytes = keys * self.bytes() / (sequences * capacity).max(1);
        ((4 * keys * spec.num_query_heads * spec.head_dim) as u64, bytes as u64)
    }
}

/// The positions that a token sees.
fn visible(slot: &Slot, spec: &Spec) -> std::ops::Range<usize> {
    let end = slot.position + 1;
    spec.window.map_or(0, |window| end.saturating_sub(window))..end
}
