//! Initial weights: MaxText's distributions, and independence of everything but the seed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use burn::tensor::Device;
use mt_config::{DecoderBlock, ModelConfig};
use mt_model::{Params, Shard, init};
use support::{small, values};

fn weights(config: &ModelConfig) -> Params {
    init::init(config, &Device::flex())
}

struct Moments {
    mean: f64,
    std: f64,
    largest: f64,
    /// Mean of the fourth power over the square of the variance: 3 for a normal, 2.36 for one truncated at 2.
    kurtosis: f64,
}

fn moments(values: &[f32]) -> Moments {
    let average =
        |f: &dyn Fn(f64) -> f64| values.iter().map(|&x| f(f64::from(x))).sum::<f64>() / values.len() as f64;
    let mean = average(&|x| x);
    let variance = average(&|x| (x - mean).powi(2));
    Moments {
        mean,
        std: variance.sqrt(),
        largest: values.iter().fold(0.0, |largest, &x| f64::from(x).abs().max(largest)),
        kurtosis: average(&|x| (x - mean).powi(4)) / variance.powi(2),
    }
}

/// Bounds are 5 standard errors of each statistic.
fn assert_distribution(name: &str, values: &[f32], std: f64, is_truncated: bool) {
    let n = values.len() as f64;
    let found = moments(values);
    let kurtosis = if is_truncated { 2.365 } else { 3.0 };
    assert!(found.mean.abs() < 5.0 * std / n.sqrt(), "{name}: mean {}", found.mean);
    assert!(
        (found.std / std - 1.0).abs() < 5.0 * ((kurtosis - 1.0) / (4.0 * n)).sqrt(),
        "{name}: std {} not {std}",
        found.std
    );
    assert!(
        (found.kurtosis - kurtosis).abs() < 5.0 * (24.0 / n).sqrt(),
        "{name}: kurtosis {}",
        found.kurtosis
    );
    // The bound of the truncated normal, in standard deviations after truncation.
    let bound = 2.0 / 0.879_625_661_034_239_8 * std;
    assert_eq!(found.largest <= bound * (1.0 + 1e-6), is_truncated, "{name}: largest {}", found.largest);
}

#[test]
fn distributions_are_maxtexts() {
    let config = ModelConfig { num_decoder_layers: 2, vocab_size: 1024, ..small() };
    let params = weights(&config);
    let layer = &params.layers[1];
    let fan_in = |n: f64| 1.0 / n.sqrt();
    assert_distribution("embedding", &values(&params.embedding), 1.0, false);
    assert_distribution("query", &values(&layer.query), fan_in(64.0) / 4.0, true);
    assert_distribution("key", &values(&layer.key), fan_in(64.0), true);
    assert_distribution("value", &values(&layer.value), fan_in(64.0), true);
    assert_distribution("out", &values(&layer.out), fan_in(4.0 * 16.0), true);
    assert_distribution("wi_0", &values(&layer.wi_0), fan_in(64.0), true);
    assert_distribution("wi_1", &values(&layer.wi_1), fan_in(64.0), true);
    assert_distribution("wo", &values(&layer.wo), fan_in(128.0), true);
    assert_distribution(
        "logits_dense",
        values(params.logits_dense.as_ref().unwrap()).as_slice(),
        fan_in(64.0),
        true,
    );
    for norm in
        [&layer.pre_self_attention_layer_norm, &layer.post_self_attention_layer_norm, &params.decoder_norm]
    {
        assert!(values(norm).iter().all(|&scale| scale == 1.0));
    }
}

/// The factor 1/sqrt(head_dim) is in the kernel or in the layer, not in both.
#[test]
fn qwen_scales_queries_at_run_time_instead() {
    let qwen = ModelConfig { decoder_block: DecoderBlock::Qwen2, attention_bias: true, ..small() };
    let layer = &weights(&qwen).layers[0];
    assert_distribution("query", &values(&layer.query), 1.0 / 8.0, true);
    assert!(values(layer.query_bias.as_ref().unwrap()).iter().all(|&bias| bias == 0.0));
}

#[test]
fn dense_init_scale_is_a_variance() {
    let config = ModelConfig { dense_init_scale: 4.0, ..small() };
    assert_distribution("wo", &values(&weights(&config).layers[0].wo), 2.0 / 128.0_f64.sqrt(), true);
}

#[test]
fn only_seed_and_path_decide() {
    let base = weights(&small());
    let same = |a: &Params, b: &Params| {
        a.leaves().into_iter().zip(b.leaves()).all(|((_, a), (_, b))| values(a) == values(b))
    };
    assert!(same(&base, &weights(&ModelConfig { scan_layers: false, ..small() })));
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    assert!(same(&base, &one_thread.install(|| weights(&small()))));

    let deeper = weights(&ModelConfig { num_decoder_layers: 3, ..small() });
    assert!(values(&base.layers[1].wo) == values(&deeper.layers[1].wo));
    let other = weights(&ModelConfig { init_weights_seed: 1, ..small() });
    assert!(values(&base.layers[1].wo) != values(&other.layers[1].wo));
    assert!(values(&base.layers[0].wi_0) != values(&base.layers[0].wi_1));
    assert!(values(&base.layers[0].wo) != values(&base.layers[1].wo));
}

/// Shards drawn alone are the whole's, and put together they are the whole, bit by bit; what fills up the last is 0.
#[test]
fn shards_are_parts_of_the_whole() {
    let config = ModelConfig { decoder_block: DecoderBlock::Qwen2, attention_bias: true, ..small() };
    let whole = weights(&config);
    for count in [1, 2, 3, 7] {
        let shard = |index| Shard { index, count };
        let drawn: Vec<Params> =
            (0..count).map(|index| init::init_shard(&config, shard(index), &Device::flex())).collect();
        for (i, (path, parameter)) in whole.leaves().into_iter().enumerate() {
            let dims = parameter.dims();
            let mut all = Vec::new();
            for (index, drawn) in drawn.iter().enumerate() {
                let part = drawn.leaves()[i].1;
                assert_eq!(part.dims(), shard(index).dims(dims), "{path}");
                assert_eq!(values(part), values(&shard(index).cut(parameter.clone())), "{path}");
                all.extend(values(part));
            }
            let len = dims[0] * dims[1];
            assert!(all[len..].iter().all(|value| *value == 0.0), "{path}");
            assert_eq!(all[..len], values(parameter), "{path}");
            let padded = shard(0).padded(parameter.clone());
            assert_eq!(values(&Shard::whole(padded, dims)), values(parameter), "{path}");
        }
        let zeros = init::zeros_shard(&config, shard(0), &Device::flex());
        for ((path, zeros), (_, drawn)) in zeros.leaves().into_iter().zip(drawn[0].leaves()) {
            assert_eq!((zeros.dims(), zeros.dtype()), (drawn.dims(), drawn.dtype()), "{path}");
        }
    }
}
