//! The model presets: parameter counts are those of the released models.

use mt_config::{Activations, DecoderBlock, Placement, RematPolicyName, model_names};

use crate::support::Setup;

#[test]
fn parameter_counts() {
    let counts = [
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("llama3.1-8b", 8_030_261_248),
        ("llama3.1-70b", 70_553_706_496),
        ("llama3.1-405b", 405_853_388_800),
        ("llama3.3-70b", 70_553_706_496),
        ("mistral-7b", 7_241_732_096),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
    ];
    for (name, count) in counts {
        let config = Setup::new().arg(&format!("model_name={name}")).loaded();
        assert_eq!(config.plan().parameters.total(), count, "{name}");
    }
    let mut listed: Vec<&str> = counts.iter().map(|(name, _)| *name).collect();
    let mut known: Vec<&str> = model_names().collect();
    listed.sort_unstable();
    known.sort_unstable();
    assert_eq!(listed, known);
}

#[test]
fn families_differ_where_they_should() {
    let model = |name: &str| Setup::new().arg(&format!("model_name={name}")).loaded().model();
    let llama3 = model("llama3-8b");
    assert_eq!(
        (llama3.decoder_block, llama3.rope.interleaved, llama3.rope.max_timescale),
        (DecoderBlock::Llama2, false, 500_000.0)
    );
    let llama31 = model("llama3.1-8b");
    assert!(llama31.rope.interleaved && llama31.rope.llama31_scaling);
    assert!(model("llama3.3-70b").rope.llama31_scaling);
    assert_eq!(model("llama2-7b").rope.max_timescale, 10_000.0);
    let qwen2 = model("qwen2.5-0.5b");
    assert!(
        qwen2.attention_bias
            && qwen2.logits_via_embedding
            && !qwen2.normalize_embedding_logits
            && !qwen2.use_qk_norm
    );
    let qwen3 = model("qwen3-8b");
    assert!(qwen3.use_qk_norm && !qwen3.attention_bias && !qwen3.logits_via_embedding);
    assert_eq!(qwen3.normalization_layer_epsilon, 1e-6);
    assert_eq!(model("mistral-7b").decoder_block, DecoderBlock::Mistral);
}

#[test]
fn global_parameter_scale_grows_layers_then_width_then_heads() {
    // Scale 2^(3q + r): layers 2^q, heads and MLP one more for r > 0, width one more for r > 1.
    for (scale, layers, heads, mlp, width) in [
        (1, 16, 16, 7168, 2048),
        (2, 16, 32, 14336, 2048),
        (4, 16, 32, 14336, 4096),
        (8, 32, 32, 14336, 4096),
        (16, 32, 64, 28672, 4096),
    ] {
        let m = Setup::new().arg(&format!("global_parameter_scale={scale}")).loaded().model();
        assert_eq!(
            (m.num_decoder_layers, m.num_query_heads, m.num_kv_heads, m.mlp_dim, m.emb_dim),
            (layers, heads, heads, mlp, width)
        );
        assert_eq!(m.head_dim, 128);
    }
}

#[test]
fn remat_policies_keep_what_maxtext_keeps() {
    use Activations::*;
    let kept = |policy: RematPolicyName, placement| {
        let policy = policy.policy();
        Activations::ALL
            .into_iter()
            .skip(1)
            .filter(|name| policy.placement(*name) == placement)
            .collect::<Vec<_>>()
    };
    let device = |policy| kept(policy, Placement::Device);
    let minimal = vec![QueryProj, KeyProj, ValueProj, OutProj, Mlpwi0, Mlpwi1, Mlpwo];
    assert_eq!(device(RematPolicyName::Full), vec![]);
    assert_eq!(device(RematPolicyName::None).len(), 8);
    assert_eq!(device(RematPolicyName::Minimal), minimal);
    assert_eq!(
        device(RematPolicyName::MinimalWithContext),
        [QueryProj, KeyProj, ValueProj, Context, OutProj, Mlpwi0, Mlpwi1, Mlpwo]
    );
    assert_eq!(
        device(RematPolicyName::SaveDotWithContextExceptMlp),
        [QueryProj, KeyProj, ValueProj, Context, OutProj]
    );
    assert_eq!(device(RematPolicyName::SaveDotExceptMlpwi), [QueryProj, KeyProj, ValueProj, OutProj, Mlpwo]);
    assert_eq!(device(RematPolicyName::SaveDotExceptMlp), [QueryProj, KeyProj, ValueProj, OutProj]);
    assert_eq!(device(RematPolicyName::SaveQkvProj), [QueryProj, KeyProj, ValueProj]);
    assert_eq!(device(RematPolicyName::SaveOutProj), [OutProj]);
    assert_eq!(kept(RematPolicyName::QkvProjOffloaded, Placement::Offload), [QueryProj, KeyProj, ValueProj]);
    assert_eq!(kept(RematPolicyName::MinimalOffloaded, Placement::Offload), minimal);
    for (_, policy) in <RematPolicyName as mt_config::keys::choices::Choice>::VALUES {
        assert_eq!(policy.policy().placement(DecoderLayerInput), Placement::Device);
    }
}

#[test]
fn a_custom_policy_follows_its_keys() {
    use Activations::*;
    let yaml = "remat_policy: custom\ndecoder_layer_input: offload\nqkv_proj: device\nkey_proj: offload\nmlpwi: offload\nmlpwi_1: device\n";
    let policy = Setup::yaml(yaml).loaded().model().remat_policy;
    let expected = [
        (DecoderLayerInput, Placement::Offload),
        (QueryProj, Placement::Device),
        (KeyProj, Placement::Offload),
        (ValueProj, Placement::Device),
        (Context, Placement::Remat),
        (OutProj, Placement::Remat),
        (Mlpwi0, Placement::Offload),
        (Mlpwi1, Placement::Device),
        (Mlpwo, Placement::Remat),
    ];
    for (name, placement) in expected {
        assert_eq!(policy.placement(name), placement, "{name:?}");
    }
}
