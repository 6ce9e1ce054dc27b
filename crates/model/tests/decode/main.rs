//! Decoding with a cache against the full forward, for all that a configuration can ask for; the quantized cache against MaxText.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod sessions;

mod device {
    use burn::tensor::Device;

    /// Where the tests decode.
    pub fn device() -> Device {
        Device::flex()
    }

    /// Configurations that the tests go through: all.
    pub fn is_wanted(_name: &str) -> bool {
        true
    }
}

use burn::tensor::DType as BurnDType;
use mt_config::{ModelConfig, Quantization};
use mt_model::ops::decode_attention::quantize;
use mt_model::ops::quantized;

use sessions::{decoder, feed, rows, sequences};
use support::npz::{Npz, golden};
use support::{relative_l2, small, values};

const F32: BurnDType = BurnDType::F32;

/// A sequence doesn't know its neighbours: alone it gives the same numbers, bit for bit (as long as both prefills have more rows
/// than the products that stream the weights take).
#[test]
fn sequences_do_not_see_each_other() {
    let config = small();
    let decoder = decoder(&config);
    let prompts = [vec![3; 9], vec![9], vec![7; 12]];
    let (mut session, together) = decoder.prefill(&prompts, 16, decoder.float_storage()).unwrap();
    let stepped = session.step(&[(0, 1), (2, 5)]).unwrap();
    for (s, row) in [(0, 0), (2, 1)] {
        let (mut session, alone) = decoder.prefill(&prompts[s..s + 1], 16, decoder.float_storage()).unwrap();
        assert_eq!(rows(&alone)[0], rows(&together)[s]);
        assert_eq!(rows(&session.step(&[(0, [1, 5][row])]).unwrap())[0], rows(&stepped)[row]);
    }
}

/// Weights of the layers in int8 and int4: the logits' distance from those of float weights, and the bytes.
#[test]
fn quantized_weights_are_small_and_close() {
    let base = small();
    let sequences = sequences(&base);
    let logits = |quantization: Quantization| {
        let config = ModelConfig { quantization, ..base.clone() };
        let decoder = decoder(&config);
        let mut logits = Vec::new();
        feed(&decoder, decoder.float_storage(), &sequences, |_, _, row| logits.extend(row));
        (logits, decoder.weight_bytes())
    };
    let (exact, bytes) = logits(Quantization::Off);
    // Two layers of 64 x 64 twice, 64 x 32 twice and 64 x 128 three times, and a float32 scale for each output.
    let (kernels, outputs) =
        (2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128), 2 * (64 + 32 + 32 + 64 + 128 + 128 + 64));
    // Rows of 4 bits are padded to 128 columns, here to twice their length but for the two of 128.
    let int4 = 2 * (2 * 64 * 64 + 2 * 64 * 64 + 2 * 64 * 64 + 128 * 64);
    for (quantization, bound, integers) in
        [(Quantization::Int8w, 0.02, kernels), (Quantization::Int4w, 0.3, int4)]
    {
        let (found, smaller) = logits(quantization);
        let error = relative_l2(&found, &exact);
        assert!(error < bound, "{quantization:?}: logits are off by {error}");
        assert_eq!(smaller, bytes - 4 * kernels + integers + 4 * outputs, "{quantization:?}");
    }
}

/// AQT's int8 product, computed by MaxText.
#[test]
fn int8_products_are_maxtexts() {
    let Some(path) = golden("aqt_int8_dot.npz") else { return };
    let npz = Npz::open(&path);
    let (x, w) = (npz.get("x"), npz.get("w"));
    let [batch, seq, inputs] = x.shape[..] else { panic!("{:?}", x.shape) };
    let x = support::tensor(x.values.clone(), [batch * seq, inputs]);
    let w = support::tensor(w.values.clone(), [inputs, w.shape[1]]);
    let y = quantized::forward(x, w, quantized::Recipe::Int8);
    let error = relative_l2(&values(&y), &npz.get("y").values);
    assert!(error < 1e-6, "off by {error}");
}

#[test]
fn bad_tokens_and_positions_are_errors() {
    let config = small();
    let decoder = decoder(&config);
    let storage = decoder.float_storage();
    assert!(decoder.prefill(&[vec![1, 256]], 4, storage).unwrap_err().to_string().contains("token 256"));
    assert!(decoder.prefill(&[vec![1; 33]], 40, storage).unwrap_err().to_string().contains("position 32"));
    let (mut session, _) = decoder.prefill(&[vec![1; 3]], 40, storage).unwrap();
    assert!(session.step(&[(0, -1)]).unwrap_err().to_string().contains("token -1"));
    assert_eq!(session.lengths(), [3]);
}

/// Figures that MaxText's rules give by hand: the largest magnitude is mapped to 127.5, whose two ends saturate differently.
#[test]
fn quantization_by_hand() {
    let q = quantize(&[1.0, -1.0, 0.5, -0.25, 0.0, 2.0, -2.0, 0.004], 4, F32);
    // 63.75 and -31.875 are rounded; 2 * 127.5 / 2 = 127.5 saturates at 127, its negative at -128; 0.255 is 0.
    assert_eq!(q.values, [127, -128, 64, -32, 0, 127, -128, 0]);
    assert_eq!(q.scales.iter().map(|scale| scale.to_f32()).collect::<Vec<_>>(), [1.0, 2.0]);
    let zeros = quantize(&[0.0; 3], 3, F32);
    assert_eq!((zeros.values, zeros.scales[0].to_f32()), (vec![0; 3], 0.0));
    // Half-way cases go to even; with a scale of 127.5 the values are themselves.
    assert_eq!(quantize(&[127.5, 0.5, 1.5, 2.5, -0.5, -1.5], 6, F32).values, [127, 0, 2, 2, 0, -2]);
    // The scale is kept in bfloat16: 1.003 becomes 1, but the values were made with 1.003.
    let q = quantize(&[1.003, 0.5015], 2, F32);
    assert_eq!((q.scales[0].to_f32(), q.values), (1.0, vec![127, 64]));
}

#[test]
fn quantization_is_maxtexts() {
    let Some(path) = golden("kv_quant.npz") else { return };
    let npz = Npz::open(&path);
    let kv = npz.get("kv_bsnd");
    let [_, _, heads, d] = kv.shape[..] else { panic!("{:?}", kv.shape) };
    let rounded: Vec<f32> = kv.values.iter().map(|&x| half_to_even(x)).collect();
    for (axis, width) in [("dkv", d), ("heads_and_dkv", heads * d)] {
        for (dtype, name, kv) in [(F32, "float32", &kv.values), (BurnDType::BF16, "bfloat16", &rounded)] {
            let array = |array: &str| &npz.get(&format!("{axis}/int8/{name}/{array}")).values;
            let found = quantize(kv, width, dtype);
            let values: Vec<f32> = found.values.iter().map(|&value| f32::from(value)).collect();
            assert!(values == *array("q"), "{axis}, {name}: values");
            // MaxText keeps the scale in a cache of bfloat16; the vectors have it as it comes.
            let scales: Vec<f32> = found.scales.iter().map(|scale| scale.to_f32()).collect();
            let expected: Vec<f32> = array("scale").iter().map(|&scale| half_to_even(scale)).collect();
            assert!(scales == expected, "{axis}, {name}: scales");
        }
    }
}

/// Rounded to bfloat16.
fn half_to_even(x: f32) -> f32 {
    values(&support::tensor(vec![x], [1, 1]).cast(BurnDType::BF16))[0]
}
