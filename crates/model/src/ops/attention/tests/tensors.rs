//! On tensors: the reference operation, dispatch, and burn's autodiff of the plain composition.

use burn::tensor::{DType, Device, Tensor, TensorData};
use mt_config::AttentionKernel;

use super::super::{Layout, Spec, backward, forward};
use super::{Data, data, difference, packed, reference, spec, to_f64};

fn tensors(data: &Data<f32>, tokens: usize, device: &Device) -> [Tensor<2>; 4] {
    [&data.q, &data.k, &data.v, &data.dout]
        .map(|x| Tensor::from_data(TensorData::new(x.clone(), [tokens, x.len() / tokens.max(1)]), device))
}

fn values(x: &Tensor<2>) -> Vec<f32> {
    x.clone().cast(DType::F32).into_data().try_to_vec().expect("float32 values")
}

fn cases() -> Vec<(Layout, Spec)> {
    let mixed: Vec<i32> = (0..120).map(|i| [3, 1, 1, 0, 2, 3][(i / 5) % 6]).collect();
    vec![
        (packed(&[33]), spec(2, 2, 16)),
        (packed(&[60, 1, 29]), spec(6, 2, 18)),
        (packed(&[60, 29]), Spec { window: Some(9), ..spec(4, 1, 16) }),
        (packed(&[60, 29]), Spec { soft_cap: Some(2.0), ..spec(4, 2, 16) }),
        (
            Layout::new(&mixed, &[0; 120], 2, 60),
            Spec { soft_cap: Some(5.0), window: Some(30), ..spec(3, 1, 20) },
        ),
    ]
}

#[test]
fn both_kernels_follow_the_reference() {
    for (layout, flash) in cases() {
        for kernel in [AttentionKernel::Flash, AttentionKernel::DotProduct] {
            let spec = Spec { kernel, ..flash };
            let tokens = layout.num_tokens();
            let data = data(31, tokens, &spec);
            let expected = reference(&to_f64(&data), &layout, &spec);
            let [q, k, v, dout] = tensors(&data, tokens, &Device::flex());
            let (out, lse) = forward(q.clone(), k.clone(), v.clone(), &layout, &spec);
            assert_eq!(lse.dims(), [tokens, spec.num_query_heads]);
            let (dq, dk, dv) = backward(q, k, v, out.clone(), lse.clone(), dout, &layout, &spec);
            for (name, ours, expected) in [
                ("out", out, expected.out),
                ("lse", lse, expected.lse),
                ("dq", dq, expected.dq),
                ("dk", dk, expected.dk),
                ("dv", dv, expected.dv),
            ] {
                let difference = difference(&values(&ours), &expected);
                assert!(difference < 5e-6, "{name} differs by {difference:e}: {spec:?}");
            }
        }
    }
}

#[test]
fn backward_is_burns_autodiff_of_the_plain_composition() {
    let device = Device::flex().autodiff();
    for (layout, spec) in cases() {
        let tokens = layout.num_tokens();
        let data = data(32, tokens, &spec);
        let [q, k, v, dout] = tensors(&data, tokens, &device);
        let [q, k, v] = [q, k, v].map(Tensor::require_grad);
        let (out, _) = forward(q.clone(), k.clone(), v.clone(), &layout, &spec);
        let gradients = (out * dout).sum().backward();
        let [q, k, v] = [q, k, v].map(|x| values(&x.grad(&gradients).expect("every input has a gradient")));

        let [q_, k_, v_, dout] = tensors(&data, tokens, &Device::flex());
        let (out, lse) = forward(q_.clone(), k_.clone(), v_.clone(), &layout, &spec);
        let (dq, dk, dv) = backward(q_, k_, v_, out, lse, dout, &layout, &spec);
        for (name, ours, theirs) in [("dq", dq, q), ("dk", dk, k), ("dv", dv, v)] {
            let theirs: Vec<f64> = theirs.into_iter().map(f64::from).collect();
            let difference = difference(&values(&ours), &theirs);
            assert!(difference < 1e-5, "{name} differs by {difference:e}: {spec:?}");
        }
    }
}

#[test]
fn bf16_keeps_its_type_and_follows_float32() {
    let layout = packed(&[90, 30]);
    for kernel in [AttentionKernel::Flash, AttentionKernel::DotProduct] {
        for float32 in [true, false] {
            let spec =
                Spec { kernel, float32_logits: float32, float32_qk_product: float32, ..spec(4, 2, 32) };
            let wide = tensors(&data(33, 120, &spec), 120, &Device::flex());
            let narrow = wide.map(|x| x.cast(DType::BF16));
            let [q, k, v, dout] = narrow.clone();
            let (out, lse) = forward(q.clone(), k.clone(), v.clone(), &layout, &spec);
            let (dq, dk, dv) = backward(q, k, v, out.clone(), lse, dout, &layout, &spec);
            assert!([&out, &dq, &dk, &dv].iter().all(|x| x.dtype() == DType::BF16));

            let [q, k, v, dout] = narrow.map(|x| values(&x));
            let expected = reference(&to_f64(&Data { q, k, v, dout }), &layout, &spec);
            // Scores of 4 rounded to bf16 are off by 2^-7, probabilities by as much.
            let bound =
                if float32 || kernel == AttentionKernel::Flash { 2.0f64.powi(-7) } else { 2.0f64.powi(-4) };
            for (ours, expected) in
                [(out, expected.out), (dq, expected.dq), (dk, expected.dk), (dv, expected.dv)]
            {
                assert!(difference(&values(&ours), &expected) < bound, "{spec:?}");
            }
        }
    }
}

#[test]
fn no_tokens() {
    let layout = Layout::new(&[], &[], 0, 16);
    for kernel in [AttentionKernel::Flash, AttentionKernel::DotProduct] {
        let spec = Spec { kernel, ..spec(2, 1, 16) };
        let [q, k, v, dout] =
            [32, 16, 16, 32].map(|features| Tensor::<2>::zeros([0, features], &Device::flex()));
        let (out, lse) = forward(q.clone(), k.clone(), v.clone(), &layout, &spec);
        let (dq, dk, dv) = backward(q, k, v, out, lse, dout, &layout, &spec);
        assert_eq!([dq, dk, dv].map(|x| x.dims()), [[0, 32], [0, 16], [0, 16]]);
    }
}
