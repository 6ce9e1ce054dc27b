//! A remat policy changes memory and time, never a number.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use mt_config::Activations::{DecoderLayerInput, Mlpwi1, Mlpwo, QueryProj};
use mt_config::RematPolicyName::*;
use mt_config::{DecoderBlock, ModelConfig, Placement, RematPolicy};
use mt_model::remat::Accounting;
use mt_model::{Model, Params};
use support::{Packed, mean_gradients, small, values};

/// MaxText's policies, and one of `custom`.
fn policies() -> Vec<(&'static str, RematPolicy)> {
    let custom = RematPolicy::new(|name| match name {
        DecoderLayerInput | Mlpwi1 => Placement::Offload,
        QueryProj | Mlpwo => Placement::Device,
        _ => Placement::Remat,
    });
    vec![
        ("full", Full.policy()),
        ("save_out_proj", SaveOutProj.policy()),
        ("save_qkv_proj", SaveQkvProj.policy()),
        ("save_dot_except_mlp", SaveDotExceptMlp.policy()),
        ("save_dot_with_context_except_mlp", SaveDotWithContextExceptMlp.policy()),
        ("save_dot_except_mlpwi", SaveDotExceptMlpwi.policy()),
        ("minimal", Minimal.policy()),
        ("minimal_with_context", MinimalWithContext.policy()),
        ("everything", RematPolicy::new(|_| Placement::Device)),
        ("qkv_proj_offloaded", QkvProjOffloaded.policy()),
        ("minimal_offloaded", MinimalOffloaded.policy()),
        ("custom", custom),
    ]
}

fn run(config: &ModelConfig, policy: RematPolicy) -> (f64, Params, Accounting) {
    let config = ModelConfig { remat_policy: policy, ..config.clone() };
    let model = Model::new(config.clone(), &burn::tensor::Device::flex());
    let packed = Packed::documents(&[&[20, 12], &[9, 9, 7]], 32, config.vocab_size);
    let batch = packed.on_cpu(&config).with_dropout(config.dropout_rate, 3);
    let (loss, gradients) = mean_gradients(&model, &batch);
    (loss.total_loss, gradients, loss.accounting)
}

#[test]
fn gradients_are_bitwise_equal_under_every_policy() {
    let qwen3 = ModelConfig { decoder_block: DecoderBlock::Qwen3, use_qk_norm: true, ..small() };
    let dropout = ModelConfig { dropout_rate: 0.2, ..small() };
    let bfloat16 = ModelConfig { dtype: mt_config::DType::BFloat16, ..small() };
    for config in [small(), qwen3, dropout, bfloat16] {
        let (loss, gradients, _) = run(&config, Full.policy());
        for (name, policy) in policies() {
            let (other_loss, other, _) = run(&config, policy);
            assert_eq!(loss, other_loss, "{name}");
            for ((path, a), (_, b)) in gradients.leaves().into_iter().zip(other.leaves()) {
                assert!(values(a) == values(b), "{name}: {path}");
            }
        }
    }
}

#[test]
fn policies_trade_memory_for_recomputation() {
    let config = ModelConfig { num_decoder_layers: 6, ..small() };
    let accounting = |policy| run(&config, policy).2;
    let read: Vec<_> = policies().into_iter().map(|(name, policy)| (name, accounting(policy))).collect();
    let of = |name: &str| read.iter().find(|(other, _)| *other == name).unwrap().1;

    // Each keeps all that the one before it keeps, and more.
    for chain in [
        vec!["full", "save_out_proj", "save_dot_except_mlp"],
        vec![
            "full",
            "save_qkv_proj",
            "save_dot_except_mlp",
            "save_dot_with_context_except_mlp",
            "minimal_with_context",
        ],
        vec!["save_dot_except_mlp", "save_dot_except_mlpwi", "minimal", "minimal_with_context"],
    ] {
        for pair in chain.windows(2) {
            let (less, more) = (of(pair[0]), of(pair[1]));
            assert!(less.kept_bytes < more.kept_bytes, "{pair:?}: {less:?} {more:?}");
            assert!(less.peak_bytes < more.peak_bytes, "{pair:?}: {less:?} {more:?}");
            assert!(less.recomputed_flops >= more.recomputed_flops, "{pair:?}: {less:?} {more:?}");
        }
    }
    assert_eq!(
        of("minimal_with_context").recomputed_flops,
        0,
        "no matmul and no attention is left to do again"
    );
    assert_eq!(of("minimal_with_context"), of("everything"));
}

/// `full` holds the input of every layer, and besides at most what one layer computes.
#[test]
fn full_needs_one_layer_and_an_input_per_layer() {
    let tokens = 2 * 32;
    for layers in [1, 2, 7] {
        let config = ModelConfig { num_decoder_layers: layers, ..small() };
        let (e, m) = (config.emb_dim, config.mlp_dim);
        let (q, kv) = (config.num_query_heads * config.head_dim, config.num_kv_heads * config.head_dim);
        // Both norms, the residual and both outputs; projections before and after RoPE; context and its log-sum-exp; the MLP.
        let layer = 5 * e + e + 2 * q + 3 * kv + (q + config.num_query_heads) + 3 * m;
        let accounting = run(&config, Full.policy()).2;
        assert_eq!(accounting.kept_bytes, (layers * tokens * e * 4) as u64);
        assert!(
            accounting.peak_bytes <= accounting.kept_bytes + (tokens * layer * 4) as u64,
            "{accounting:?}"
        );
    }
}

/// All that `full` does again is the forward pass without the down projection, whose output no backward reads.
#[test]
fn full_recomputes_all_but_the_last_matmul() {
    let config = small();
    let (e, m, tokens) = (config.emb_dim, config.mlp_dim, 64);
    let (q, kv) = (config.num_query_heads * config.head_dim, config.num_kv_heads * config.head_dim);
    let matmuls = 2 * tokens * (e * (q + 2 * kv) + q * e + 2 * e * m);
    let pairs = |lengths: &[usize]| lengths.iter().map(|n| n * (n + 1) / 2).sum::<usize>();
    let attention = 4 * q * pairs(&[20, 12, 9, 9, 7, 7]); // padding attends to itself
    let accounting = run(&config, Full.policy()).2;
    assert_eq!(accounting.recomputed_flops, (config.num_decoder_layers * (matmuls + attention)) as u64);
}

#[test]
fn offloading_keeps_in_place_on_the_cpu() {
    let config = small();
    let (_, _, kept) = run(&config, SaveQkvProj.policy());
    let (_, _, offloaded) = run(&config, QkvProjOffloaded.policy());
    assert_eq!(kept, offloaded);
}
