use burn::tensor::{Device, Int, Tensor};
use mt_model::ops::embedding;

use crate::common::*;

fn ids(ids: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_ints(ids, device)
}

#[test]
fn lookup_is_the_one_hot_product_bit_for_bit() {
    let mut random = Random::new(1);
    let (vocab, cols) = (37, 19);
    let table = random.matrix(vocab, cols);
    let tokens: Vec<i32> = (0..50).map(|_| random.below(vocab) as i32).collect();
    let y = Matrix::of(embedding::forward(&ids(&tokens, &device()), &table.f32()));
    let one_hot = Matrix::new(50, vocab, |t, v| if tokens[t] as usize == v { 1.0 } else { 0.0 });
    let product = mt_model::ops::linear::forward(one_hot.f32(), table.f32());
    assert_eq!(y, Matrix::of(product));
    if !bfloat16() {
        return;
    }
    let y = embedding::forward(&ids(&tokens, &device()), &table.bf16());
    assert_eq!(Matrix::of(y), Matrix::of(mt_model::ops::linear::forward(one_hot.bf16(), table.bf16())));
}

#[test]
fn backward_matches_autodiff_and_adds_in_order() {
    let mut random = Random::new(2);
    let (vocab, cols) = (23, 11);
    let (table, dy) = (random.matrix(vocab, cols), random.matrix(60, cols));
    let tokens: Vec<i32> = (0..60).map(|_| random.below(vocab / 2) as i32).collect();
    let dtable = Matrix::of(embedding::backward(&ids(&tokens, &device()), dy.f32(), vocab));
    let mut want = Matrix::new(vocab, cols, |_, _| 0.0);
    for (t, &id) in tokens.iter().enumerate() {
        for c in 0..cols {
            let sum = &mut want.data[id as usize * cols + c];
            *sum = (*sum as f32 + dy.at(t, c) as f32) as f64;
        }
    }
    assert_eq!(dtable, want);

    let device = device().autodiff();
    let tracked = table.tracked();
    let y = embedding::forward(&ids(&tokens, &device), &tracked);
    let grads = (y * dy.tracked()).sum().backward();
    assert_close("dtable", &dtable, &Matrix::of(tracked.grad(&grads).unwrap()), 1e-6);
    let plain = embedding::backward(&ids(&tokens, &device), dy.tracked(), vocab);
    assert_close("plain dtable", &Matrix::of(plain.inner()), &dtable, 1e-6);

    if !bfloat16() {
        return;
    }
    let exact = random.matrix_bf16(60, cols);
    let device = crate::common::device();
    let of_bf16 = embedding::backward(&ids(&tokens, &device), exact.bf16(), vocab);
    assert_eq!(of_bf16.to_data(), embedding::backward(&ids(&tokens, &device), exact.f32(), vocab).to_data());
}

#[test]
fn threads_do_not_change_results() {
    let mut random = Random::new(3);
    let (table, dy) = (random.matrix(300, 65), random.matrix(700, 65));
    let tokens: Vec<i32> = (0..700).map(|_| random.below(300) as i32).collect();
    assert_thread_independent("embedding", || {
        let ids = ids(&tokens, &device());
        vec![embedding::forward(&ids, &table.f32()), embedding::backward(&ids, dy.f32(), 300)]
    });
}

#[test]
fn ids_outside_of_the_table_are_loud_forward_and_ignored_backward() {
    let table = Matrix::new(4, 3, |i, j| (i * 3 + j) as f64);
    let tokens = ids(&[2, 4, -1], &device());
    let y = Matrix::of(embedding::forward(&tokens, &table.f32()));
    assert_eq!(y.row(0), [6.0, 7.0, 8.0]);
    assert!(y.data[3..].iter().all(|v| v.is_nan()));
    let dy = Matrix::new(3, 3, |_, _| 1.0);
    let dtable = Matrix::of(embedding::backward(&tokens, dy.f32(), 4));
    assert_eq!(dtable.data.iter().sum::<f64>(), 3.0);
}
