//! The saved tree: MaxText's names and shapes, and that every layout holds the same numbers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use burn::tensor::{Device, TensorData};
use mt_config::{DType, DecoderBlock, ModelConfig};
use mt_model::tree::{Layout, Tree, TreeError};
use mt_model::{Model, init};
use support::{Packed, mean_gradients, small, tiny, values};

fn shapes(tree: &Tree) -> Vec<(String, Vec<usize>)> {
    tree.specs().map(|spec| (spec.name.clone(), spec.shape.clone())).collect()
}

#[test]
fn scanned_names_and_shapes_are_maxtexts() {
    let expected = |axis_0: bool| {
        let stacked = |name: &str, axis_1: &[usize]| {
            let mut shape = axis_1.to_vec();
            if axis_0 {
                shape.swap(0, 1);
            }
            (format!("decoder/layers/{name}"), shape)
        };
        vec![
            ("token_embedder/embedding".to_owned(), vec![256, 64]),
            stacked("pre_self_attention_layer_norm/scale", &[64, 2]),
            stacked("self_attention/query/kernel", &[64, 2, 4, 16]),
            stacked("self_attention/key/kernel", &[64, 2, 2, 16]),
            stacked("self_attention/value/kernel", &[64, 2, 2, 16]),
            stacked("self_attention/out/kernel", &[4, 2, 16, 64]),
            stacked("post_self_attention_layer_norm/scale", &[64, 2]),
            stacked("mlp/wi_0/kernel", &[64, 2, 128]),
            stacked("mlp/wi_1/kernel", &[64, 2, 128]),
            stacked("mlp/wo/kernel", &[128, 2, 64]),
            ("decoder/decoder_norm/scale".to_owned(), vec![64]),
            ("decoder/logits_dense/kernel".to_owned(), vec![64, 256]),
        ]
    };
    assert_eq!(shapes(&Tree::new(&small())), expected(false));
    assert_eq!(shapes(&Tree::new(&ModelConfig { param_scan_axis: 0, ..small() })), expected(true));
}

#[test]
fn unscanned_names_carry_the_layer_and_optional_parameters_follow_the_config() {
    let config = ModelConfig {
        scan_layers: false,
        attention_bias: true,
        use_qk_norm: true,
        logits_via_embedding: true,
        ..small()
    };
    let shapes = shapes(&Tree::new(&config));
    for expected in [
        ("decoder/layers_1/self_attention/query/bias".to_owned(), vec![4, 16]),
        ("decoder/layers_0/self_attention/value/bias".to_owned(), vec![2, 16]),
        ("decoder/layers_1/self_attention/key_norm/scale".to_owned(), vec![16]),
        ("decoder/layers_0/mlp/wo/kernel".to_owned(), vec![128, 64]),
    ] {
        assert!(shapes.contains(&expected), "{expected:?}");
    }
    assert!(!shapes.iter().any(|(name, _)| name.contains("logits_dense")));
}

/// Through every layout and back, in every element type.
#[test]
fn any_layout_reads_back_into_any_other() {
    for weight_dtype in [DType::Float32, DType::BFloat16] {
        let qwen = ModelConfig { attention_bias: true, use_qk_norm: true, weight_dtype, ..tiny() };
        let original = init::init(&qwen, &Device::flex());
        let layouts = [(true, 0), (true, 1), (false, 0)]
            .map(|(scan_layers, param_scan_axis)| Layout { scan_layers, param_scan_axis });
        for layout in layouts {
            let tree = Tree::with_layout(&qwen, layout);
            let mut copy = init::init(&ModelConfig { init_weights_seed: 1, ..qwen.clone() }, &Device::flex());
            for spec in tree.specs() {
                let data = tree.read_leaf(&original, &spec.name).unwrap();
                assert_eq!(data.shape().to_vec(), spec.shape);
                assert_eq!(data.dtype(), mt_model::burn_dtype(spec.dtype));
                tree.write_leaf(&mut copy, &spec.name, data).unwrap();
            }
            for ((path, a), (_, b)) in original.leaves().into_iter().zip(copy.leaves()) {
                assert!(values(a) == values(b), "{layout:?} {path}");
            }
            let elements: usize = tree.specs().map(|spec| spec.num_elements()).sum();
            assert_eq!(elements, original.num_parameters());
        }
    }
}

/// The element at `[e, l, h, d]` of the stacked query kernel is that of layer l at row e, column h D + d.
#[test]
fn stacking_puts_elements_where_maxtext_looks_for_them() {
    let config = tiny();
    let params = init::init(&config, &Device::flex());
    let tree = Tree::new(&config);
    let stacked = tree.read_leaf(&params, "decoder/layers/self_attention/query/kernel").unwrap();
    let stacked: Vec<f32> = stacked.try_into_vec().unwrap();
    let (layers, heads, width) = (config.num_decoder_layers, config.num_query_heads, config.head_dim);
    for (e, l, h, d) in [(0, 0, 0, 0), (3, 1, 2, 1), (11, 0, 3, 3)] {
        let found = stacked[((e * layers + l) * heads + h) * width + d];
        assert_eq!(found, values(&params.layers[l].query)[e * heads * width + h * width + d]);
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let config = tiny();
    let tree = Tree::new(&config);
    let mut params = init::init(&config, &Device::flex());
    let data = TensorData::new(vec![0.0_f32; 6], [2, 3]);

    let unknown = tree.write_leaf(&mut params, "decoder/layers/mlp/wi_2/kernel", data.clone()).unwrap_err();
    assert!(unknown.to_string().contains("did you mean `decoder/layers/mlp/wi_"), "{unknown}");
    let shape = tree.write_leaf(&mut params, "decoder/decoder_norm/scale", data).unwrap_err();
    assert_eq!(shape.to_string(), "`decoder/decoder_norm/scale` has shape [2, 3], the model expects [12]");
    let integers = TensorData::new(vec![0_i32; 12], [12]);
    let dtype = tree.write_leaf(&mut params, "decoder/decoder_norm/scale", integers).unwrap_err();
    assert!(matches!(dtype, TreeError::DType { .. }), "{dtype}");
}

/// `scan_layers` and `param_scan_axis` are about files: the numbers are the same, bit by bit.
#[test]
fn scan_changes_no_bit() {
    let loss = |config: ModelConfig| {
        let model = Model::new(config.clone(), &Device::flex());
        let packed = Packed::documents(&[&[11, 3]], 32, config.vocab_size);
        let (loss, gradients) = mean_gradients(&model, &packed.on_cpu(&config));
        (loss, gradients.leaves().iter().map(|(_, tensor)| values(tensor)).collect::<Vec<_>>())
    };
    let qwen3 = ModelConfig { decoder_block: DecoderBlock::Qwen3, use_qk_norm: true, ..small() };
    for config in [small(), qwen3] {
        let scanned = loss(config.clone());
        assert!(scanned == loss(ModelConfig { scan_layers: false, ..config.clone() }));
        assert!(scanned == loss(ModelConfig { param_scan_axis: 0, ..config }));
    }
}
