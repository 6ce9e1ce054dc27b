//! Flash attention on the first GPU (software devices included) against the definition in float64. A build without GPU support,
//! or a machine without a GPU, skips itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use burn::tensor::{DType, Device, Tensor, TensorData};
use mt_config::AttentionKernel;
use mt_model::device;
use mt_model::ops::attention::{Layout, Spec, backward, forward};

fn gpu() -> Option<Device> {
    let found = device::available().into_iter().next().filter(|first| first.device != Device::flex());
    if found.is_none() {
        eprintln!("skipped: this build drives no GPU of this machine");
    }
    found.map(|gpu| gpu.device)
}

fn spec(num_query_heads: usize, num_kv_heads: usize, head_dim: usize) -> Spec {
    Spec {
        num_query_heads,
        num_kv_heads,
        head_dim,
        soft_cap: None,
        window: None,
        kernel: AttentionKernel::Flash,
        float32_logits: true,
        float32_qk_product: true,
    }
}

fn packed(lengths: &[usize]) -> Layout {
    let ids: Vec<i32> = (1..).zip(lengths).flat_map(|(id, &len)| vec![id; len]).collect();
    Layout::new(&ids, &vec![0; ids.len()], 1, ids.len())
}

/// Values in [-1, 1), the same for the same seed.
fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// `q, k, v, dout`, scores of a few units.
fn inputs(seed: u64, tokens: usize, spec: &Spec) -> [Vec<f32>; 4] {
    let len = |heads: usize| tokens * heads * spec.head_dim;
    let scale = 4.0 / (spec.head_dim as f32).sqrt();
    let q = random(seed, len(spec.num_query_heads)).into_iter().map(|x| x * scale).collect();
    let [k, v] = [1, 2].map(|i| random(seed + i, len(spec.num_kv_heads)));
    [q, k, v, random(seed + 3, len(spec.num_query_heads))]
}

const NAMES: [&str; 5] = ["out", "lse", "dq", "dk", "dv"];

/// `out, lse, dq, dk, dv` by the kernels, inputs rounded to `dtype`.
fn run(inputs: &[Vec<f32>; 4], layout: &Layout, spec: &Spec, dtype: DType, device: &Device) -> [Vec<f32>; 5] {
    let tokens = layout.num_tokens();
    let [q, k, v, dout] = inputs.each_ref().map(|x| {
        let data = TensorData::new(x.clone(), [tokens, x.len() / tokens]);
        Tensor::<2>::from_data(data, device).cast(dtype)
    });
    let (out, lse) = forward(q.clone(), k.clone(), v.clone(), layout, spec);
    assert_eq!((lse.dims(), lse.dtype()), ([tokens, spec.num_query_heads], DType::F32));
    let (dq, dk, dv) = backward(q, k, v, out.clone(), lse.clone(), dout, layout, spec);
    assert!([&out, &dq, &dk, &dv].iter().all(|x| x.dtype() == dtype));
    [out, lse, dq, dk, dv].map(|x| x.cast(DType::F32).into_data().try_to_vec().unwrap())
}

/// The same in float64, straight from the definition.
fn reference(inputs: &[Vec<f32>; 4], layout: &Layout, spec: &Spec) -> [Vec<f64>; 5] {
    let (hq, hkv, d, seq) = (spec.num_query_heads, spec.num_kv_heads, spec.head_dim, layout.seq());
    let [q, k, v, dout] = inputs.each_ref().map(|x| x.iter().copied().map(f64::from).collect::<Vec<f64>>());
    let mut lse = vec![0.0; layout.num_tokens() * hq];
    let (mut out, mut dq, mut dk, mut dv) =
        (vec![0.0; q.len()], vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    let ids = layout.segment_ids();
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    for t in 0..layout.num_tokens() {
        let visible: Vec<usize> = (t / seq * seq..=t)
            .filter(|&k| ids[k] == ids[t] && spec.window.is_none_or(|window| t - k < window))
            .collect();
        for h in 0..hq {
            let (qi, g) = ((t * hq + h) * d, h / (hq / hkv));
            let key = |k: usize| (k * hkv + g) * d..(k * hkv + g) * d + d;
            let score = |&j: &usize| {
                let s = dot(&q[qi..qi + d], &k[key(j)]);
                spec.soft_cap.map_or(s, |cap| cap * (s / cap).tanh())
            };
            let s: Vec<f64> = visible.iter().map(score).collect();
            let max = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum = max + s.iter().map(|s| (s - max).exp()).sum::<f64>().ln();
            lse[t * hq + h] = sum;
            let p: Vec<f64> = s.iter().map(|s| (s - sum).exp()).collect();
            for (&j, p) in visible.iter().zip(&p) {
                for i in 0..d {
                    out[qi + i] += p * v[key(j)][i];
                }
            }
            let delta = dot(&out[qi..qi + d], &dout[qi..qi + d]);
            for ((&j, p), s) in visible.iter().zip(&p).zip(&s) {
                let slope = spec.soft_cap.map_or(1.0, |cap| 1.0 - (s / cap).powi(2));
                let ds = p * (dot(&dout[qi..qi + d], &v[key(j)]) - delta) * slope;
                for i in 0..d {
                    dv[key(j)][i] += p * dout[qi + i];
                    dk[key(j)][i] += ds * q[qi + i];
                    dq[qi + i] += ds * k[key(j)][i];
                }
            }
        }
    }
    [out, lse, dq, dk, dv]
}

/// Largest difference, relative to the largest reference value (or to 1: some gradients are exactly 0).
fn difference(ours: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(ours.len(), expected.len());
    assert!(ours.iter().all(|x| x.is_finite()));
    let scale = expected.iter().fold(1.0, |max: f64, x| max.max(x.abs()));
    ours.iter().zip(expected).map(|(x, y)| (f64::from(*x) - y).abs() / scale).fold(0.0, f64::max)
}

fn check(layout: &Layout, spec: &Spec, gpu: &Device) {
    let inputs = inputs(7, layout.num_tokens(), spec);
    let expected = reference(&inputs, layout, spec);
    let found = run(&inputs, layout, spec, DType::F32, gpu);
    let differences: Vec<f64> = found.iter().zip(&expected).map(|(x, y)| difference(x, y)).collect();
    eprintln!("{:?} {:?} tokens: {differences:?}", spec, layout.num_tokens());
    for (name, difference) in NAMES.iter().zip(differences) {
        assert!(difference <= 1e-5, "{name} differs by {difference:e}: {spec:?}");
    }
    let again = run(&inputs, layout, spec, DType::F32, gpu);
    assert_eq!(again, found, "two runs give the same bits");
}

#[test]
fn head_dims_and_lengths() {
    let Some(gpu) = gpu() else { return };
    for head_dim in [18, 64, 80, 96, 128, 256] {
        check(&packed(&[77]), &spec(2, 2, head_dim), &gpu);
    }
    for len in [1, 64, 65, 200] {
        check(&packed(&[len]), &spec(2, 1, 32), &gpu);
    }
}

#[test]
fn grouped_queries() {
    let Some(gpu) = gpu() else { return };
    for (num_query_heads, num_kv_heads) in [(1, 1), (4, 2), (4, 1), (3, 1)] {
        check(&packed(&[37, 100]), &spec(num_query_heads, num_kv_heads, 16), &gpu);
    }
}

#[test]
fn documents_padding_and_rows() {
    let Some(gpu) = gpu() else { return };
    let ids: Vec<i32> =
        [vec![1; 50], vec![2; 1], vec![3; 99], vec![0; 10], vec![5; 150], vec![0; 10]].concat();
    check(&Layout::new(&ids, &[0; 320], 2, 160), &spec(4, 2, 32), &gpu);
    // Ids in any order, and ids that come back.
    let ids: Vec<i32> = (0..300).map(|i| [4, 4, 1, 0, 4, 2, 1, 7][(i / 3) % 8]).collect();
    for window in [None, Some(40)] {
        check(&Layout::new(&ids, &[0; 300], 1, 300), &Spec { window, ..spec(2, 1, 16) }, &gpu);
    }
}

#[test]
fn windows() {
    let Some(gpu) = gpu() else { return };
    for window in [1, 13, 64, 65, 1000] {
        check(&packed(&[190, 60]), &Spec { window: Some(window), ..spec(2, 1, 16) }, &gpu);
    }
}

#[test]
fn soft_caps() {
    let Some(gpu) = gpu() else { return };
    for cap in [0.7, 5.0, 50.0] {
        for window in [None, Some(40)] {
            check(&packed(&[100, 20]), &Spec { soft_cap: Some(cap), window, ..spec(2, 1, 32) }, &gpu);
        }
    }
}

/// Half precision where the device has it: inputs and results are rounded, what lies between is float32.
#[test]
fn half_is_float32_inside() {
    let Some(gpu) = gpu() else { return };
    let (layout, spec) = (packed(&[80, 17]), spec(4, 2, 64));
    for (dtype, unit) in [(DType::F16, 2.0f64.powi(-11)), (DType::BF16, 2.0f64.powi(-8))] {
        if !gpu.supports_dtype(dtype) {
            eprintln!("skipped: the device has no {dtype:?}");
            continue;
        }
        let rounded = inputs(15, 97, &spec).map(|x| match dtype {
            DType::F16 => x.into_iter().map(|x| half::f16::from_f32(x).to_f32()).collect::<Vec<f32>>(),
            _ => x.into_iter().map(|x| half::bf16::from_f32(x).to_f32()).collect(),
        });
        let expected = reference(&rounded, &layout, &spec);
        let found = run(&rounded, &layout, &spec, dtype, &gpu);
        for ((name, ours), expected) in NAMES.iter().zip(&found).zip(&expected) {
            // delta sees the rounded output.
            let difference = difference(ours, expected);
            assert!(difference <= 2.0 * unit, "{name} differs by {difference:e} in {dtype:?}");
        }
    }
}

/// Everything about one document is replaced, even by NaN; the others keep every bit: foreign tokens are not read. Then the
/// same document stands alone: it keeps every bit too.
#[test]
fn documents_do_not_leak() {
    let Some(gpu) = gpu() else { return };
    let spec = Spec { window: Some(60), soft_cap: Some(20.0), ..spec(4, 2, 24) };
    let lengths = [40, 1, 83, 31];
    let layout = packed(&lengths);
    let tokens = layout.num_tokens();
    let before = inputs(21, tokens, &spec);
    let features = [4 * 24, 4, 4 * 24, 2 * 24, 2 * 24];
    let rows = |results: &[Vec<f32>; 5], keep: &dyn Fn(usize) -> bool| -> Vec<Vec<u32>> {
        let of = |(x, &features): (&Vec<f32>, &usize)| {
            let kept = (0..x.len() / features).filter(|&token| keep(token));
            kept.flat_map(|token| x[token * features..(token + 1) * features].iter().map(|x| x.to_bits()))
                .collect()
        };
        results.iter().zip(&features).map(of).collect()
    };
    let expected = run(&before, &layout, &spec, DType::F32, &gpu);
    let replacement = inputs(22, tokens, &spec);
    for (changed, start) in [(0, 0), (1, 40), (2, 41), (3, 124)] {
        let document = start..start + lengths[changed];
        for poison in [None, Some(f32::NAN)] {
            let mut after = before.clone();
            for ((x, new), heads) in after.iter_mut().zip(&replacement).zip([4, 2, 2, 4]) {
                for i in document.start * heads * 24..document.end * heads * 24 {
                    x[i] = poison.unwrap_or(new[i]);
                }
            }
            let found = run(&after, &layout, &spec, DType::F32, &gpu);
            let others = |token: usize| !document.contains(&token);
            assert_eq!(rows(&found, &others), rows(&expected, &others), "document {changed}");
        }
    }
    let third = 41..124;
    let alone = [0, 1, 2, 3].map(|i| {
        let features = [4, 2, 2, 4][i] * 24;
        before[i][third.start * features..third.end * features].to_vec()
    });
    let moved = run(&alone, &packed(&[83]), &spec, DType::F32, &gpu);
    assert_eq!(rows(&moved, &|_| true), rows(&expected, &|token| third.contains(&token)));
}

/// A broken input is seen.
#[test]
fn nan_is_not_hidden() {
    let Some(gpu) = gpu() else { return };
    let (layout, spec) = (packed(&[40]), spec(1, 1, 16));
    for poisoned in 0..3 {
        let mut inputs = inputs(25, 40, &spec);
        inputs[poisoned][10 * 16 + 3] = f32::NAN;
        let [out, _, dq, _, dv] = run(&inputs, &layout, &spec, DType::F32, &gpu);
        assert!(out[10 * 16..11 * 16].iter().any(|x| x.is_nan()), "tensor {poisoned}");
        // The gradient of v doesn't depend on v.
        let gradient = if poisoned == 2 { &dq } else { &dv };
        assert!(gradient.iter().any(|x| x.is_nan()), "tensor {poisoned}");
    }
}
