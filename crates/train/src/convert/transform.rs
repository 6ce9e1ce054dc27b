//! One tensor from Hugging Face's order into ours, and back.
//!
//! Hugging Face stores a kernel as `[out, in]`, ours is `[in, out]`. Where our rotary embedding turns neighbours (`rope_type: llama3.1`),
//! the features of every query and key head change places: Hugging Face turns feature j with j + D/2, so feature j goes to
//! 2j and feature j + D/2 to 2j + 1. In the Llama and Mistral blocks the query kernel carries the factor 1/sqrt(D) of attention.
//!
//! That factor is a power of two for D = 16, 64 and 256. For other D its product has no exact inverse in the same element type; so
//! such a query kernel is stored in the next wider one (bfloat16 in float32, float32 in float64), from which the way back rounds to the
//! very bits it came from; float16, which a division may leave, is stored in float32 for any D.

use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;

/// Columns that are moved together, so that reads and writes both stay in the cache.
const TILE: usize = 64;

/// How a tensor of Hugging Face's becomes one of ours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Transform {
    /// Output features (for a vector its length).
    pub out: usize,
    /// Input features; 1 for a vector, or for a matrix that isn't transposed.
    pub input: usize,
    /// Width of the heads whose features change places.
    pub interleaved_heads: Option<usize>,
    /// What our values are divided by: sqrt(D) in a Llama query kernel.
    pub divisor: Option<f64>,
}

impl Transform {
    /// The element type of our tensor for one of `dtype`.
    pub fn our_dtype(&self, dtype: Dtype) -> Dtype {
        match (self.divisor, dtype) {
            (Some(divisor), Dtype::F32) if !is_power_of_two(divisor) => Dtype::F64,
            // float16 has so few exponents that even a power of two would push small values out of its range.
            (Some(_), Dtype::F16) => Dtype::F32,
            (Some(divisor), Dtype::BF16) if !is_power_of_two(divisor) => Dtype::F32,
            _ => dtype,
        }
    }

    /// From Hugging Face's bytes of element type `from` to ours of type `to`.
    pub fn import(&self, bytes: Vec<u8>, from: Dtype, to: Dtype) -> Vec<u8> {
        let moved = self.moved(bytes, from, Direction::ToOurs);
        converted(moved, from, to, self.divisor.map(|divisor| divisor.recip()))
    }

    /// From our bytes of element type `from` to Hugging Face's of type `to`.
    pub fn export(&self, bytes: Vec<u8>, from: Dtype, to: Dtype) -> Vec<u8> {
        let moved = self.moved(bytes, from, Direction::ToTheirs);
        converted(moved, from, to, self.divisor)
    }

    fn moved(&self, bytes: Vec<u8>, dtype: Dtype, direction: Direction) -> Vec<u8> {
        if self.input == 1 && self.interleaved_heads.is_none() {
            return bytes;
        }
        match dtype.bitsize() {
            16 => self.moved_elements::<2>(&bytes, direction),
            32 => self.moved_elements::<4>(&bytes, direction),
            _ => self.moved_elements::<8>(&bytes, direction),
        }
    }

    fn moved_elements<const W: usize>(&self, bytes: &[u8], direction: Direction) -> Vec<u8> {
        let from = bytes.as_chunks::<W>().0;
        let mut to = vec![[0; W]; from.len()];
        let (out, input) = (self.out, self.input);
        match direction {
            Direction::ToOurs => {
                to.par_chunks_mut(TILE * out).enumerate().for_each(|(tile, to)| {
                    let rows = to.len() / out;
                    for o in 0..out {
                        let from = &from[o * input + tile * TILE..][..rows];
                        let place = self.place(o);
                        from.iter().enumerate().for_each(|(row, element)| to[row * out + place] = *element);
                    }
                });
            }
            Direction::ToTheirs => {
                to.par_chunks_mut(TILE * input).enumerate().for_each(|(tile, to)| {
                    for i in 0..input {
                        for (o, to) in to.chunks_exact_mut(input).enumerate() {
                            to[i] = from[i * out + self.place(tile * TILE + o)];
                        }
                    }
                });
            }
        }
        to.into_flattened()
    }

    /// Where output feature `o` of Hugging Face's lies in ours.
    fn place(&self, o: usize) -> usize {
        let Some(width) = self.interleaved_heads else { return o };
        let (head, j, half) = (o / width, o % width, width / 2);
        head * width + if j < half { 2 * j } else { 2 * (j - half) + 1 }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    ToOurs,
    ToTheirs,
}

fn is_power_of_two(x: f64) -> bool {
    x.log2().fract() == 0.0
}

/// The values in another element type, times a factor, rounded once.
fn converted(bytes: Vec<u8>, from: Dtype, to: Dtype, factor: Option<f64>) -> Vec<u8> {
    if from == to && factor.is_none() {
        return bytes;
    }
    let factor = factor.unwrap_or(1.0);
    let (width, wanted) = (from.bitsize() / 8, to.bitsize() / 8);
    let mut result = vec![0; bytes.len() / width * wanted];
    result.par_chunks_mut(wanted << 14).zip(bytes.par_chunks(width << 14)).for_each(|(result, bytes)| {
        for (result, bytes) in result.chunks_exact_mut(wanted).zip(bytes.chunks_exact(width)) {
            write(to, factor * read(from, bytes), result);
        }
    });
    result
}

/// Whether a value is infinite.
pub(super) fn has_infinity(bytes: &[u8], dtype: Dtype) -> bool {
    bytes.par_chunks(dtype.bitsize() / 8).any(|bytes| read(dtype, bytes).is_infinite())
}

fn read(dtype: Dtype, bytes: &[u8]) -> f64 {
    match (dtype, bytes) {
        (Dtype::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).into(),
        (Dtype::F16, &[a, b]) => f16::from_le_bytes([a, b]).into(),
        (Dtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
        (_, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => unreachable!("the widths of {dtype:?}"),
    }
}

fn write(dtype: Dtype, value: f64, bytes: &mut [u8]) {
    match dtype {
        Dtype::BF16 => bytes.copy_from_slice(&bf16::from_f64(value).to_le_bytes()),
        Dtype::F16 => bytes.copy_from_slice(&f16::from_f64(value).to_le_bytes()),
        Dtype::F32 => bytes.copy_from_slice(&(value as f32).to_le_bytes()),
        _ => bytes.copy_from_slice(&value.to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(values: &[f32], dtype: Dtype) -> Vec<u8> {
        let size = dtype.bitsize() / 8;
        let mut bytes = vec![0; values.len() * size];
        for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(size)) {
            write(dtype, f64::from(*value), bytes);
        }
        bytes
    }

    #[test]
    fn a_kernel_is_transposed_and_its_heads_interleaved() {
        let transform = Transform { out: 4, input: 2, interleaved_heads: Some(4), divisor: Some(2.0) };
        // Row o of Hugging Face's holds [10 o, 10 o + 1].
        let theirs = [0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 30.0, 31.0];
        let ours = [0.0, 10.0, 5.0, 15.0, 0.5, 10.5, 5.5, 15.5];
        let imported = transform.import(bytes(&theirs, Dtype::F32), Dtype::F32, Dtype::F32);
        assert_eq!(imported, bytes(&ours, Dtype::F32));
        assert_eq!(transform.export(imported, Dtype::F32, Dtype::F32), bytes(&theirs, Dtype::F32));
    }

    proptest! {
        /// There and back again, every bit of every element type, whatever the head's width; NaN and infinity included.
        #[test]
        fn round_trips_are_bitwise(
            bits in prop::collection::vec(any::<u32>(), 0..400),
            half in 1usize..40,
            dtype in prop::sample::select(vec![Dtype::F32, Dtype::BF16, Dtype::F16]),
            interleaves in any::<bool>(),
        ) {
            let width = 2 * half;
            let input = (bits.len() / width).max(1);
            let out = width;
            let values: Vec<f32> = (0..out * input)
                .map(|i| f32::from_bits(*bits.get(i).unwrap_or(&0x3f80_0001)))
                // The way through a wider type makes signalling NaN quiet and flushes nothing: leave NaN out.
                .map(|x| if x.is_nan() { 1.5 } else { x })
                .collect();
            let theirs = bytes(&values, dtype);
            let transform = Transform {
                out,
                input,
                interleaved_heads: interleaves.then_some(width),
                divisor: Some((width as f64).sqrt()),
            };
            let ours = transform.our_dtype(dtype);
            let imported = transform.import(theirs.clone(), dtype, ours);
            let back = transform.export(imported, ours, dtype);
            let size = dtype.bitsize() / 8;
            for (a, b) in theirs.chunks_exact(size).zip(back.chunks_exact(size)) {
                let (was, is) = (read(dtype, a), read(dtype, b));
                // Where the type stays, as for a power of two, what nears the smallest normal number may lose bits.
                let vanishing = ours == dtype && was.abs() < 1e-36;
                prop_assert!(a == b || vanishing, "{was} came back as {is}");
            }
        }
    }
}
