use super::*;
use mt_config::LoadArgs;
use mt_model::LayerParams;
use mt_model::scan::{GradSink, HeadGradients};
use serde_json::Value;

/// Three updates and more by optax; tests/reference/optimizers.py writes them.
const GOLDEN: &str = include_str!("../../golden/optimizers.json");
const RATES: [f32; 4] = [0.0, 0.01, 0.005, 0.02];

/// Parameters (`step` none) or gradients by the formula of the reference, times `factor`.
fn values(leaf: usize, dims: [usize; 2], step: Option<usize>, factor: f32) -> Tensor<2> {
    let value = |i: usize| {
        let (i, k) = (i as f64, leaf as f64);
        match step.map(|step| step as f64) {
            None => (0.5 * (0.7 * i + k).sin()) as f32,
            Some(step) => ((0.3 + step) * (0.3 * i + k + 1.7 * step).cos()) as f32 * factor,
        }
    };
    let values: Vec<f32> = (0..dims[0] * dims[1]).map(value).collect();
    Tensor::<1>::from_floats(values.as_slice(), &Default::default()).reshape(dims)
}

fn tree(step: Option<usize>, factor: f32) -> Params {
    let (e, heads, kv, m, v) = (4, 4, 2, 6, 6);
    let mut leaf = 0;
    let mut next = |dims| {
        leaf += 1;
        values(leaf - 1, dims, step, factor)
    };
    Params {
        embedding: next([v, e]),
        layers: vec![LayerParams {
            pre_self_attention_layer_norm: next([1, e]),
            query: next([e, heads]),
            key: next([e, kv]),
            value: next([e, kv]),
            query_bias: None,
            key_bias: None,
            value_bias: None,
            query_norm: None,
            key_norm: None,
            out: next([heads, e]),
            post_self_attention_layer_norm: next([1, e]),
            wi_0: next([e, m]),
            wi_1: next([e, m]),
            wo: next([m, e]),
        }],
        decoder_norm: next([1, e]),
        logits_dense: Some(next([e, v])),
    }
}

fn config(keys: &[(&str, String)]) -> Config {
    let overrides = keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    mt_config::load(&LoadArgs { overrides, ..Default::default() }).unwrap()
}

/// The configuration of a golden case. Its layer has a path of its own there.
fn config_of(case: &Value) -> Config {
    let mut keys = vec![("scan_layers", "false".to_owned())];
    for (key, value) in case.as_object().unwrap() {
        let key = key.as_str();
        if !["losses", "gradient_factors", "steps"].contains(&key) {
            keys.push((key, value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
        }
        if key == "skip_step_interval" {
            keys.push(("skip_step_on_spikes", "true".to_owned()));
        }
    }
    config(&keys)
}

fn floats(tensor: &Tensor<2>) -> Vec<f32> {
    elementwise::cast(tensor.clone(), DType::F32).into_data().try_to_vec().unwrap()
}

/// An update by the reference's first gradients times `factor`.
fn update(optimizer: &mut Optimizer, params: &mut Params, factor: f32) -> Norms {
    let gradients = optimizer.rounded(tree(Some(0), factor));
    optimizer.update(params, gradients, 0.1, 0.0).unwrap()
}

#[test]
fn updates_are_optaxs() {
    updates_are_golden(None);
}

#[test]
fn updates_through_main_memory_are_optaxs_too() {
    updates_are_golden(Some(Device::flex()));
}

fn updates_are_golden(host: Option<Device>) {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    assert_eq!(golden.as_object().unwrap().len(), 11);
    for (name, case) in golden.as_object().unwrap() {
        let case_config = &case["config"];
        let number = |list: &str, step: usize, or: f64| case_config[list][step].as_f64().unwrap_or(or);
        let mut params = tree(None, 1.0);
        let mut optimizer =
            Optimizer::with_host(&config_of(case_config), &params, Shard::WHOLE, host.clone()).unwrap();
        for (step, expected) in case["log"].as_array().unwrap().iter().enumerate() {
            let gradients = tree(Some(step), number("gradient_factors", step, 1.0) as f32);
            let rate = RATES[(optimizer.count() as usize).min(3)];
            let gradients = optimizer.rounded(gradients);
            let norms = optimizer.update(&mut params, gradients, rate, number("losses", step, 0.0)).unwrap();
            let close = |ours: f64, key: &str| {
                let theirs = expected[key].as_f64().unwrap();
                assert!(
                    (ours - theirs).abs() <= 2e-6 * theirs,
                    "{name}, step {step}, {key}: {ours} {theirs}"
                );
            };
            close(norms.raw_grad_norm, "raw_grad_norm");
            close(norms.grad_norm, "grad_norm");
            close(norms.param_squares.sqrt(), "param_norm");
            assert_eq!(norms.skipped, expected["skipped"], "{name}, step {step}");
        }
        // Newton-Schulz iterations amplify rounding.
        let bound = if name.starts_with("muon") { 2e-6 } else { 3e-7 };
        for (path, param) in params.leaves() {
            let expected = case["params"][&path].as_array().unwrap();
            for (ours, theirs) in floats(param).iter().zip(expected) {
                let theirs = theirs.as_f64().unwrap() as f32;
                assert!((ours - theirs).abs() <= bound, "{name}, {path}: {ours} {theirs}");
            }
        }
    }
}

/// Hands gradients over in the order of a backward pass.
fn feed(sink: &mut dyn GradSink, gradients: Params) {
    let (decoder_norm, logits_dense) = (gradients.decoder_norm, gradients.logits_dense);
    sink.head(HeadGradients { decoder_norm, logits_dense });
    for (i, layer) in gradients.layers.into_iter().enumerate().rev() {
        sink.layer(i, layer);
    }
    sink.embedding(gradients.embedding);
}

#[test]
fn gradients_collected_in_main_memory_are_the_same_sums() {
    let collected = |mut sink: Sink| {
        (0..3).for_each(|step| feed(&mut sink, tree(Some(step), 1.0)));
        sink.into_params().unwrap().unwrap()
    };
    let copier = Copier::new(Device::flex());
    let (here, there) = (collected(Sink::new(None)), collected(Sink::new(Some(&copier))));
    for ((path, here), (_, there)) in here.leaves().into_iter().zip(there.leaves()) {
        assert_eq!(floats(here), floats(there), "{path}");
    }
    assert!(
        Sink::new(Some(&copier)).into_params().unwrap().is_none(),
        "what was collected is handed over once"
    );
}

#[test]
fn frozen_parameters_have_no_moments_and_stay_bitwise() {
    let mut params = tree(None, 1.0);
    let before = params.clone();
    let config = config(&[("trainable_parameters_mask", "[mlp]".to_owned())]);
    let mut optimizer = Optimizer::new(&config, &params, Shard::WHOLE).unwrap();
    update(&mut optimizer, &mut params, 1.0);
    for ((path, after), (_, before)) in params.leaves().into_iter().zip(before.leaves()) {
        let trains = path.contains("mlp");
        assert_eq!(floats(after) != floats(before), trains, "{path}");
        assert_eq!(optimizer.moment(Moment::Mu, &path).is_some(), trains, "{path}");
        assert_eq!(optimizer.moment(Moment::Nu, &path).is_some(), trains, "{path}");
    }
}

/// Frozen parameters aren't copied, and those that are find their moments.
#[test]
fn frozen_parameters_stay_where_they_are_when_the_others_move() {
    let config = config(&[("trainable_parameters_mask", r#"["mlp", "logits"]"#.to_owned())]);
    let run = |host: Option<Device>| {
        let mut params = tree(None, 1.0);
        let mut optimizer = Optimizer::with_host(&config, &params, Shard::WHOLE, host).unwrap();
        let norms: Vec<Norms> = (0..3)
            .map(|step| {
                let gradients = optimizer.rounded(tree(Some(step), 1.0));
                optimizer.update(&mut params, gradients, 0.1, 0.0).unwrap()
            })
            .collect();
        (norms, params.leaves().into_iter().map(|(_, param)| floats(param)).collect::<Vec<_>>())
    };
    assert_eq!(run(None), run(Some(Device::flex())));
}

#[test]
fn a_copying_thread_that_fails_ends_a_step_with_its_reason() {
    let copier = Copier::running(|orders| {
        drop(orders);
        panic!("the device has no memory left");
    });
    let mut sink = Sink::new(Some(&copier));
    feed(&mut sink, tree(Some(0), 1.0));
    let error = sink.into_params().unwrap_err().to_string();
    assert!(error.contains("optimizer_memory_host_offload") && error.contains("no memory left"), "{error}");

    let mut params = tree(None, 1.0);
    let mut optimizer =
        Optimizer::with_host(&config(&[]), &params, Shard::WHOLE, Some(Device::flex())).unwrap();
    optimizer.copier = Some(copier);
    let gradients = optimizer.rounded(tree(Some(0), 1.0));
    let error = optimizer.update(&mut params, gradients, 0.1, 0.0).unwrap_err().to_string();
    assert!(error.contains("reported before"), "{error}");
}

#[test]
fn masks_see_the_path_of_the_tree_that_scan_layers_shapes() {
    let mask = ("adamw_mask", r#"["layers_0/", "^decoder/layers/mlp"]"#.to_owned());
    let decays = |scan: &str, path: &str| {
        let config = config(&[mask.clone(), ("scan_layers", scan.to_owned())]);
        Masks::new(&config).unwrap().decays(path)
    };
    let (mlp, query) = ("decoder/layers_0/mlp/wo/kernel", "decoder/layers_0/self_attention/query/kernel");
    assert_eq!((decays("true", mlp), decays("true", query)), (false, true));
    assert_eq!((decays("false", mlp), decays("false", query)), (false, false));
    assert!(decays("false", "decoder/layers_1/mlp/wo/kernel"));
}

#[test]
fn a_bad_pattern_is_named_with_its_key() {
    let error = masks::compile("adamw_mask", &["(?=x)".to_owned()]).unwrap_err().to_string();
    assert!(error.starts_with("adamw_mask: `(?=x)`"), "{error}");
}

#[test]
fn gradients_are_rounded_to_grad_dtype() {
    let updated = |dtype: &str| {
        let config =
            config(&[("grad_dtype", dtype.to_owned()), ("gradient_clipping_threshold", "0".to_owned())]);
        let mut params = tree(None, 1.0);
        let mut optimizer = Optimizer::new(&config, &params, Shard::WHOLE).unwrap();
        update(&mut optimizer, &mut params, 1.0);
        floats(optimizer.moment(Moment::Mu, "token_embedder/embedding").unwrap())
    };
    let (rounded, exact) = (updated("bfloat16"), updated("float32"));
    assert_ne!(rounded, exact);
    for (rounded, exact) in rounded.iter().zip(exact) {
        let expected = half::bf16::from_f32(exact / 0.1).to_f32() * 0.1;
        assert!((rounded - expected).abs() <= 1e-6, "{rounded} {expected}");
    }
}

#[test]
fn a_gradient_that_is_not_finite_makes_norms_that_tell() {
    let mut params = tree(None, 1.0);
    let mut optimizer = Optimizer::new(&config(&[]), &params, Shard::WHOLE).unwrap();
    let norms = update(&mut optimizer, &mut params, f32::NAN);
    assert!(norms.raw_grad_norm.is_nan() && norms.param_squares.is_nan());
}
