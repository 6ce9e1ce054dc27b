//! What the kernels promise beside their values: no leaks, no dependence on threads, no hidden NaN. And the reference's
//! gradients against finite differences.

use super::super::{Layout, Spec};
use super::{Data, Reference, Results, data, flash, packed, random, reference, spec, to_f64};

/// The reference's gradients are those of its output: central differences in float64.
#[test]
fn reference_gradients_are_finite_differences() {
    let layout = Layout::new(&[1, 1, 2, 1, 2, 2, 0, 0, 1], &[0; 9], 1, 9);
    for (soft_cap, window) in [(None, None), (Some(1.5), None), (None, Some(2)), (Some(3.0), Some(4))] {
        let spec = Spec { soft_cap, window, ..spec(4, 2, 6) };
        let data = to_f64(&data(3, 9, &spec));
        let loss = |data: &Data<f64>| -> f64 {
            let out = reference(data, &layout, &spec).out;
            out.iter().zip(&data.dout).map(|(x, y)| x * y).sum()
        };
        let gradients = reference(&data, &layout, &spec);
        type Field = (fn(&mut Data<f64>) -> &mut Vec<f64>, fn(&Reference) -> &Vec<f64>);
        let fields: [Field; 3] =
            [(|d| &mut d.q, |r| &r.dq), (|d| &mut d.k, |r| &r.dk), (|d| &mut d.v, |r| &r.dv)];
        for (field, gradient) in fields {
            for (i, &expected) in gradient(&gradients).iter().enumerate() {
                let shifted = |step: f64| {
                    let mut data = data.clone();
                    field(&mut data)[i] += step;
                    loss(&data)
                };
                let slope = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
                assert!((slope - expected).abs() < 1e-8, "{spec:?} at {i}: {slope} against {expected}");
            }
        }
    }
}

/// Rows of a tensor with `features` per token that belong to some tokens.
fn rows<T: Copy>(x: &[T], tokens: &[usize], features: usize) -> Vec<T> {
    tokens.iter().flat_map(|&token| x[token * features..(token + 1) * features].to_vec()).collect()
}

fn results_of(results: &Results<f32>, tokens: &[usize], spec: &Spec) -> [Vec<f32>; 5] {
    let (queries, keys) = (spec.num_query_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim);
    [
        rows(&results.out, tokens, queries),
        rows(&results.lse, tokens, spec.num_query_heads),
        rows(&results.dq, tokens, queries),
        rows(&results.dk, tokens, keys),
        rows(&results.dv, tokens, keys),
    ]
}

/// Everything about one document is replaced, even by NaN; the others keep every bit. Then the same document stands
/// elsewhere in other company: it keeps every bit too.
#[test]
fn documents_do_not_leak() {
    let spec = Spec { window: Some(100), soft_cap: Some(20.0), ..spec(4, 2, 18) };
    let lengths = [70, 1, 153, 41];
    let layout = packed(&lengths);
    let before = data(21, layout.num_tokens(), &spec);
    for (changed, start) in [(0, 0), (1, 70), (2, 71), (3, 224)] {
        let tokens = start..start + lengths[changed];
        let others: Vec<usize> = (0..layout.num_tokens()).filter(|token| !tokens.contains(token)).collect();
        let expected = results_of(&flash(&before, &layout, &spec, 1), &others, &spec);
        let replacement = data(22, layout.num_tokens(), &spec);
        for poison in [None, Some(f32::NAN), Some(f32::INFINITY)] {
            let mut after = before.clone();
            let tensors = [
                (&mut after.q, &replacement.q, spec.num_query_heads),
                (&mut after.k, &replacement.k, spec.num_kv_heads),
                (&mut after.v, &replacement.v, spec.num_kv_heads),
                (&mut after.dout, &replacement.dout, spec.num_query_heads),
            ];
            for (x, new, heads) in tensors {
                for i in tokens.start * heads * spec.head_dim..tokens.end * heads * spec.head_dim {
                    x[i] = poison.unwrap_or(new[i]);
                }
            }
            assert_eq!(
                results_of(&flash(&after, &layout, &spec, 1), &others, &spec),
                expected,
                "document {changed}"
            );
        }
    }
    // The third document alone in its row.
    let tokens: Vec<usize> = (71..224).collect();
    let alone = Data {
        q: rows(&before.q, &tokens, 4 * 18),
        k: rows(&before.k, &tokens, 2 * 18),
        v: rows(&before.v, &tokens, 2 * 18),
        dout: rows(&before.dout, &tokens, 4 * 18),
    };
    let moved = flash(&alone, &packed(&[153]), &spec, 1);
    let packed = flash(&before, &layout, &spec, 1);
    assert_eq!(results_of(&moved, &(0..153).collect::<Vec<_>>(), &spec), results_of(&packed, &tokens, &spec));
}

/// A query's results do not depend on what follows it.
#[test]
fn the_future_does_not_leak() {
    let (layout, spec) = (packed(&[200]), spec(2, 1, 16));
    let before = data(23, 200, &spec);
    let mut after = before.clone();
    for x in [&mut after.k, &mut after.v] {
        x[120 * 16..].copy_from_slice(&random(5, 80 * 16));
    }
    let past: Vec<usize> = (0..120).collect();
    let outputs = |data| results_of(&flash(data, &layout, &spec, 1), &past, &spec)[..3].to_vec();
    assert_eq!(outputs(&after), outputs(&before));
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let (layout, spec) = (packed(&[700, 1, 99, 300]), spec(6, 2, 24));
    let data = data(24, layout.num_tokens(), &spec);
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a small pool starts");
        pool.install(|| flash(&data, &layout, &spec, threads))
    };
    let one = on(1);
    for threads in [2, 3, 7] {
        assert_eq!(on(threads), one, "{threads} threads");
    }
}

#[test]
fn nan_is_not_hidden() {
    let (layout, spec) = (packed(&[40]), spec(1, 1, 16));
    for poisoned in 0..3 {
        let mut data = data(25, 40, &spec);
        [&mut data.q, &mut data.k, &mut data.v][poisoned][10 * 16 + 3] = f32::NAN;
        let results = flash(&data, &layout, &spec, 1);
        assert!(results.out[10 * 16..11 * 16].iter().any(|x| x.is_nan()), "tensor {poisoned}");
        // The gradient of v doesn't depend on v.
        let gradient = if poisoned == 2 { &results.dq } else { &results.dv };
        assert!(gradient.iter().any(|x| x.is_nan()), "tensor {poisoned}");
    }
}
