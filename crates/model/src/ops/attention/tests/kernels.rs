//! The CPU kernels against the float64 reference.

use half::bf16;

use super::super::{Layout, Spec};
use super::{Data, data, difference, flash, packed, reference, spec, to_f64};

fn check(layout: &Layout, spec: &Spec, seed: u64) {
    let data = data(seed, layout.num_tokens(), spec);
    let expected = reference(&to_f64(&data), layout, spec);
    let whole = flash(&data, layout, spec, 1);
    let context = format!("{spec:?}, {:?}", layout.segment_ids());
    for (name, ours, expected, bound) in [
        ("out", &whole.out, &expected.out, 2e-6),
        ("lse", &whole.lse, &expected.lse, 2e-6),
        ("dq", &whole.dq, &expected.dq, 5e-6),
        ("dk", &whole.dk, &expected.dk, 5e-6),
        ("dv", &whole.dv, &expected.dv, 5e-6),
    ] {
        let difference = difference(ours, expected);
        assert!(difference <= bound, "{name} differs by {difference:e}: {context}");
    }
    // Cut for many threads, the backward pass gives the same bits.
    assert_eq!(flash(&data, layout, spec, 1000), whole, "{context}");
}

#[test]
fn head_dims_and_lengths() {
    for head_dim in [16, 18, 30, 64, 66, 80, 96, 128, 256] {
        for len in [1, 2, 7, 33] {
            check(&packed(&[len]), &spec(2, 2, head_dim), 7);
        }
    }
    for head_dim in [64, 128] {
        check(&packed(&[301]), &spec(2, 1, head_dim), 8);
    }
}

#[test]
fn grouped_queries_of_any_ratio() {
    for (num_query_heads, num_kv_heads) in [(1, 1), (4, 2), (3, 1), (6, 2), (5, 1), (8, 4), (16, 1)] {
        check(&packed(&[37, 140]), &spec(num_query_heads, num_kv_heads, 16), 9);
    }
}

#[test]
fn documents_padding_and_rows() {
    let ids: Vec<i32> = [1; 50]
        .into_iter()
        .chain([2; 1])
        .chain([3; 99])
        .chain([0; 10])
        .chain([5; 150])
        .chain([0; 10])
        .collect();
    check(&Layout::new(&ids, &[0; 320], 2, 160), &spec(4, 2, 32), 10);
    // Ids in any order, and ids that come back.
    let ids: Vec<i32> = (0..300).map(|i| [4, 4, 1, 0, 4, 2, 1, 7][(i / 3) % 8]).collect();
    for window in [None, Some(40)] {
        check(&Layout::new(&ids, &[0; 300], 1, 300), &Spec { window, ..spec(2, 1, 16) }, 11);
    }
}

#[test]
fn windows() {
    for window in [1, 2, 13, 127, 128, 129, 200, 1000] {
        check(&packed(&[290, 60]), &Spec { window: Some(window), ..spec(2, 1, 16) }, 12);
    }
}

#[test]
fn soft_cap() {
    for cap in [0.7, 5.0, 50.0] {
        let spec = Spec { soft_cap: Some(cap), ..spec(2, 1, 32) };
        check(&packed(&[150, 20]), &spec, 13);
        check(&packed(&[150, 20]), &Spec { window: Some(70), ..spec }, 13);
    }
}

#[test]
fn long_row_of_large_scores() {
    let spec = spec(2, 1, 64);
    let layout = packed(&[700]);
    let mut data = data(14, 700, &spec);
    data.q.iter_mut().for_each(|x| *x *= 20.0);
    let expected = reference(&to_f64(&data), &layout, &spec);
    let ours = flash(&data, &layout, &spec, 2);
    assert!(difference(&ours.out, &expected.out) < 2e-5);
    assert!(difference(&ours.dq, &expected.dq) < 1e-4);
}

#[test]
fn bf16_is_float32_inside() {
    let (layout, spec) = (packed(&[200, 57]), spec(4, 2, 64));
    let wide = data(15, 257, &spec);
    let narrow = |x: &[f32]| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
    let data = Data { q: narrow(&wide.q), k: narrow(&wide.k), v: narrow(&wide.v), dout: narrow(&wide.dout) };
    let expected = reference(&to_f64(&data), &layout, &spec);
    let ours = flash(&data, &layout, &spec, 2);
    // Half a unit in the last place of bf16 for what is rounded once; delta also sees the rounded output.
    assert!(difference(&ours.out, &expected.out) < 2.0f64.powi(-8) * 1.01);
    assert!(difference(&ours.dv, &expected.dv) < 2.0f64.powi(-8) * 1.01);
    assert!(difference(&ours.dq, &expected.dq) < 2.0f64.powi(-7));
    assert!(difference(&ours.dk, &expected.dk) < 2.0f64.powi(-7));
}
