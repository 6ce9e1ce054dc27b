use burn::tensor::{DType, Device};
use mt_config::AttentionKernel;
use mt_model::ops::attention::Spec;
use mt_model::ops::decode_attention::{Cache, Shape, Slot, Storage, quantize};

use crate::common::*;

const FLOAT: Storage = Storage::Float(DType::F32);
const PER_HEAD: Storage = Storage::Int8 { per_head: true };
const PER_POSITION: Storage = Storage::Int8 { per_head: false };

fn spec(heads: usize, kv_heads: usize, head_dim: usize) -> Spec {
    Spec {
        num_query_heads: heads,
        num_kv_heads: kv_heads,
        head_dim,
        soft_cap: None,
        window: None,
        kernel: AttentionKernel::Flash,
        float32_logits: true,
        float32_qk_product: true,
    }
}

/// Two sequences of keys and values, and a query at the last position of each.
struct Case {
    spec: Spec,
    lengths: [usize; 2],
    keys: Vec<Matrix>,
    values: Vec<Matrix>,
    queries: Matrix,
}

impl Case {
    fn new(spec: Spec, lengths: [usize; 2]) -> Self {
        let mut random = Random::new(11);
        let width = spec.num_kv_heads * spec.head_dim;
        let mut of_lengths = || lengths.map(|len| random.matrix_bf16(len, width)).to_vec();
        let (keys, values) = (of_lengths(), of_lengths());
        let mut queries = random.matrix_bf16(2, spec.num_query_heads * spec.head_dim);
        queries.data.iter_mut().for_each(|q| *q *= 0.25);
        Self { spec, lengths, keys, values, queries }
    }

    fn cache(&self, storage: Storage, dtype: DType, device: &Device) -> Cache {
        let Spec { num_kv_heads, head_dim, .. } = self.spec;
        let capacity = self.lengths[0].max(self.lengths[1]) + 3;
        let shape = Shape { sequences: 2, capacity, num_kv_heads, head_dim };
        let mut cache = Cache::new(shape, storage, device);
        for (sequence, (k, v)) in self.keys.iter().zip(&self.values).enumerate() {
            let slots: Vec<Slot> = (0..k.rows).map(|position| Slot { sequence, position }).collect();
            cache.write(k.on(dtype, device), v.on(dtype, device), &slots);
        }
        cache
    }

    fn attend(&self, storage: Storage, dtype: DType, device: &Device) -> Matrix {
        let slots = [0, 1].map(|sequence| Slot { sequence, position: self.lengths[sequence] - 1 });
        let out =
            self.cache(storage, dtype, device).attend(self.queries.on(dtype, device), &slots, &self.spec);
        assert_eq!(out.dtype(), dtype);
        Matrix::of(out)
    }

    /// By the definition, in float64.
    fn reference(&self, storage: Storage) -> Matrix {
        let Spec { num_query_heads, num_kv_heads, head_dim: d, soft_cap, window, .. } = self.spec;
        let stored = |x: &Vec<Matrix>| x.iter().map(|x| self.stored(x, storage)).collect::<Vec<_>>();
        let (keys, values) = (stored(&self.keys), stored(&self.values));
        Matrix::new(2, num_query_heads * d, |sequence, feature| {
            let (head, feature) = (feature / d, feature % d);
            let kv_head = head / (num_query_heads / num_kv_heads);
            let (keys, values) = (&keys[sequence], &values[sequence]);
            let first = window.map_or(0, |window| keys.rows.saturating_sub(window));
            let query = &self.queries.row(sequence)[head * d..][..d];
            let score = |k: usize| {
                let s: f64 = keys.row(k)[kv_head * d..][..d].iter().zip(query).map(|(k, q)| k * q).sum();
                soft_cap.map_or(s, |cap| cap * (s / cap).tanh()).exp()
            };
            let total: f64 = (first..keys.rows).map(score).sum();
            (first..keys.rows).map(|k| score(k) * values.at(k, kv_head * d + feature)).sum::<f64>() / total
        })
    }

    /// What the cache holds in the place of `x`.
    fn stored(&self, x: &Matrix, storage: Storage) -> Matrix {
        let width = match storage {
            Storage::Float(_) => return x.clone(),
            PER_HEAD => self.spec.head_dim,
            Storage::Int8 { .. } => x.cols,
        };
        let floats: Vec<f32> = x.data.iter().map(|&x| x as f32).collect();
        let q = quantize(&floats, width, DType::F32);
        Matrix::new(x.rows, x.cols, |r, c| {
            let i = r * x.cols + c;
            f64::from(q.values[i]) * f64::from(q.scales[i / width].to_f32()) / 127.5
        })
    }
}

/// Shapes around vectors and chunks of positions; groups of one, some and all heads.
fn cases() -> Vec<Case> {
    let with = |window, soft_cap| Spec { window, soft_cap, ..spec(4, 2, 16) };
    vec![
        Case::new(spec(1, 1, 2), [1, 2]),
        Case::new(spec(4, 2, 16), [5, 40]),
        Case::new(spec(6, 6, 40), [17, 3]),
        Case::new(spec(8, 1, 64), [33, 70]),
        Case::new(spec(2, 1, 8), [1024, 1025]),
        Case::new(with(None, None), [3000, 1]),
        Case::new(with(Some(1), None), [9, 1030]),
        Case::new(with(Some(1100), None), [2100, 50]),
        Case::new(with(Some(7), Some(0.8)), [40, 20]),
    ]
}

#[test]
fn matches_float64() {
    for case in cases() {
        for storage in [FLOAT, PER_HEAD, PER_POSITION] {
            let found = case.attend(storage, DType::F32, &device());
            let name = format!("{storage:?}, {:?}, {:?}", case.spec, case.lengths);
            assert_close(&name, &found, &case.reference(storage), 2e-5);
        }
    }
}

#[test]
fn bfloat16_is_rounded_once() {
    if !bfloat16() {
        return;
    }
    for case in cases() {
        let found = case.attend(Storage::Float(DType::BF16), DType::BF16, &device());
        assert_close("bfloat16", &found, &case.reference(FLOAT), BF16 + 2e-5);
    }
}

/// The composition of tensor operations, which runs on devices without a kernel. Its division may be off by a bit, and the largest
/// magnitude times its factor is 127.5, next to a tie: int8 values may differ by one.
#[test]
fn plain_matches_float64() {
    let device = device().autodiff();
    for case in cases().into_iter().filter(|case| case.lengths[0] + case.lengths[1] < 200) {
        for storage in [FLOAT, PER_HEAD, PER_POSITION] {
            // WebGPU has no tensors of int8.
            if storage != FLOAT && !device.supports_dtype(DType::I8) {
                continue;
            }
            let bound = if storage == FLOAT { 2e-5 } else { 2e-2 };
            let found = case.attend(storage, DType::F32, &device);
            assert_close(&format!("{storage:?} {:?}", case.spec), &found, &case.reference(storage), bound);
        }
    }
}

#[test]
fn threads_do_not_change_results() {
    let case = Case::new(spec(4, 2, 16), [3000, 1500]);
    let slots = [0, 1].map(|sequence| Slot { sequence, position: case.lengths[sequence] - 1 });
    for storage in [FLOAT, PER_HEAD] {
        let cache = case.cache(storage, DType::F32, &device());
        assert_thread_independent("decode_attention", || {
            vec![cache.attend(case.queries.f32(), &slots, &case.spec)]
        });
    }
}

/// int8 takes half of bfloat16's memory and the scales, wherever the cache lives.
#[test]
fn bytes() {
    let case = Case::new(spec(4, 2, 16), [5, 29]);
    let (positions, width) = (2 * 32, 2 * 16);
    let bytes = |storage| case.cache(storage, DType::F32, &device()).bytes();
    let bf16 = 2 * 2 * positions * width;
    assert_eq!(bytes(FLOAT), 2 * bf16);
    if bfloat16() {
        assert_eq!(bytes(Storage::Float(DType::BF16)), bf16);
    }
    assert_eq!(bytes(PER_HEAD), bf16 / 2 + 2 * 2 * positions * 2);
    assert_eq!(bytes(PER_POSITION), bf16 / 2 + 2 * 2 * positions);
}

/// Every stored value is the definition's, bit for bit, also where the largest magnitude stands next to a tie: with one position its
/// value is the output.
#[test]
fn values_are_stored_bit_for_bit() {
    let (rows, heads, d) = (300, 2, 6);
    let mut random = Random::new(12);
    let spec = spec(heads, heads, d);
    let shape = Shape { sequences: rows, capacity: 1, num_kv_heads: heads, head_dim: d };
    let slots: Vec<Slot> = (0..rows).map(|sequence| Slot { sequence, position: 0 }).collect();
    // All magnitudes of scales, signs of the largest element both.
    let mut values = random.matrix(rows, heads * d);
    for (i, value) in values.data.iter_mut().enumerate() {
        let exponent = (i / (heads * d)) as i32 % 60 - 30;
        *value = f64::from((*value * 2f64.powi(exponent)) as f32);
    }
    values.data[..heads * d].fill(0.0);
    let floats: Vec<f32> = values.data.iter().map(|&x| x as f32).collect();
    for (storage, width) in [(PER_HEAD, d), (PER_POSITION, heads * d)] {
        let mut cache = Cache::new(shape, storage, &device());
        cache.write(values.f32(), values.f32(), &slots);
        let found = Matrix::of(cache.attend(values.f32(), &slots, &spec));
        let q = quantize(&floats, width, DType::F32);
        for (i, found) in found.data.iter().enumerate() {
            let expected = f64::from(q.values[i]) * f64::from(q.scales[i / width].to_f32()) / 127.5;
            assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{storage:?} {i}: {found} {expected}");
        }
    }
}
