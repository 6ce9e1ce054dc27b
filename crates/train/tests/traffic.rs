//! The bytes that a plan says a rank sends are those that the collectives count for the tensors of the model.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mt_config::{Config, LoadArgs, Ranks};
use mt_model::tree::layer_matrices;
use mt_train::collective::Operation;

fn on(count: usize, arguments: &[(&str, &str)]) -> Config {
    let model = [
        ("base_emb_dim", "48"),
        ("base_num_query_heads", "6"),
        ("base_num_kv_heads", "2"),
        ("head_dim", "10"),
        ("base_mlp_dim", "77"),
        ("base_num_decoder_layers", "3"),
        ("vocab_size", "301"),
        ("per_device_batch_size", "1"),
        ("hardware", "gpu"),
    ];
    let overrides = model.iter().chain(arguments).map(|&(key, value)| (key.into(), value.into())).collect();
    let config = mt_config::load(&LoadArgs { overrides, ..LoadArgs::default() }).unwrap();
    config.for_ranks(Ranks { count, per_node: count }).unwrap()
}

/// Elements of the tensors that are moved together.
struct Parts {
    embedding: Vec<usize>,
    layer: Vec<usize>,
    head: Vec<usize>,
}

fn parts(config: &Config) -> Parts {
    let model = config.model();
    let embedding = model.vocab_size * model.emb_dim;
    let layer = layer_matrices(&model).into_vec().into_iter().map(|[rows, cols]| rows * cols).collect();
    let output = (!model.logits_via_embedding).then_some(embedding);
    Parts { embedding: vec![embedding], layer, head: [model.emb_dim].into_iter().chain(output).collect() }
}

/// `[forward gathers, backward gathers, reduce-scatters, all-reduces]` of a step, tensor by tensor and call by call.
fn counted(config: &Config) -> [u64; 4] {
    let (data, fsdp) = (config.mesh().data, config.mesh().fsdp);
    let model = config.model();
    let weight = if config.weight_dtype == mt_config::DType::Float32 { 4 } else { 2 };
    let shard = |elements: usize| elements.div_ceil(fsdp);
    let all =
        |tensors: &[usize], bytes: &dyn Fn(usize) -> u64| tensors.iter().map(|&n| bytes(n)).sum::<u64>();
    let gather = |n: usize| Operation::AllGather.bytes_moved((shard(n) * fsdp * weight) as u64, fsdp);
    let scatter = |n: usize| Operation::ReduceScatter.bytes_moved((shard(n) * fsdp * 4) as u64, fsdp);
    let reduce = |n: usize| Operation::AllReduce.bytes_moved((shard(n) * 4) as u64, data);

    let Parts { embedding, layer, head } = parts(config);
    let [mut forward, mut backward, mut scatters, mut reduces] = [0; 4];
    for micro_batch in 0..config.gradient_accumulation_steps {
        forward += all(&embedding, &gather);
        for _ in 0..model.num_decoder_layers {
            forward += all(&layer, &gather);
        }
        forward += all(&head, &gather);
        if model.logits_via_embedding {
            forward += all(&embedding, &gather);
        }
        scatters += all(&head, &scatter);
        for _ in 0..model.num_decoder_layers {
            backward += all(&layer, &gather);
            scatters += all(&layer, &scatter);
        }
        scatters += all(&embedding, &scatter);
        if micro_batch + 1 == config.gradient_accumulation_steps || config.optimizer_memory_host_offload {
            reduces += all(&head, &reduce) + all(&embedding, &reduce);
            reduces += model.num_decoder_layers as u64 * all(&layer, &reduce);
        }
    }
    [forward, backward, scatters, reduces]
}

#[test]
fn a_plan_counts_what_collectives_count() {
    let variants: [&[(&str, &str)]; 6] = [
        &[],
        &[("weight_dtype", "bfloat16")],
        &[("logits_via_embedding", "true")],
        &[("attention_bias", "true"), ("use_qk_norm", "true")],
        &[("gradient_accumulation_steps", "3")],
        &[("gradient_accumulation_steps", "2"), ("optimizer_memory_host_offload", "true")],
    ];
    for variant in variants {
        for (count, data) in [(1, "1"), (2, "1"), (3, "1"), (4, "1"), (4, "2"), (6, "3"), (4, "4"), (7, "7")]
        {
            let keys = [variant, &[("ici_data_parallelism", data)]].concat();
            let config = on(count, &keys);
            let traffic = config.plan().traffic;
            let planned =
                [traffic.gather_forward, traffic.gather_backward, traffic.reduce_scatter, traffic.all_reduce];
            assert_eq!(planned, counted(&config), "{count} ranks, {keys:?}");
            assert_eq!(traffic.total() == 0, count == 1);
        }
    }
}
