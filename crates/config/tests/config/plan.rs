//! Parameters, FLOPs and memory of a run from its configuration.

use mt_config::{Config, RematPolicyName};

use crate::support::Setup;

/// The tiny model of which MaxText's own figures are known.
fn tiny() -> Setup {
    Setup::yaml(
        "base_emb_dim: 256\nbase_num_query_heads: 4\nbase_num_kv_heads: 2\nhead_dim: 64\nbase_mlp_dim: 512\n\
         base_num_decoder_layers: 4\nvocab_size: 4096\nmax_target_length: 256\nper_device_batch_size: 4\ndtype: float32\n",
    )
}

#[test]
fn flops_are_maxtexts() {
    let plan = tiny().loaded().plan();
    assert_eq!(plan.flops.total() / 1e12, 0.022548578304);
    assert_eq!(format!("{:.2}%", 100.0 * plan.flops.weights / plan.flops.total()), "92.86%");
    assert_eq!(plan.tokens_per_step, 1024);
    assert_eq!(format!("{:.2e}", plan.parameters.total() as f64), "4.46e6");
}

#[test]
fn accumulation_multiplies_work_and_holds_the_sum_of_the_gradients() {
    let plan = |count: usize| tiny().arg(&format!("gradient_accumulation_steps={count}")).loaded().plan();
    let (one, two, four) = (plan(1), plan(2), plan(4));
    assert_eq!(four.flops.total(), 4.0 * one.flops.total());
    assert_eq!(four.tokens_per_step, 4096);
    let [one, two, four] = [one, two, four].map(|plan| plan.memory);
    let peak =
        |plan: &mt_config::plan::MemoryPlan| plan.peak(RematPolicyName::MinimalWithContext).expect("planned");
    assert_eq!(peak(&two) - peak(&one), one.states.gradients);
    assert_eq!(peak(&four), peak(&two));
}

#[test]
fn states_follow_the_dtypes_and_the_optimizer() {
    let states = |arguments: &[&str]| {
        let config = arguments.iter().fold(tiny(), |setup, argument| setup.arg(argument)).loaded();
        let plan = config.plan();
        let n = plan.parameters.total();
        let s = plan.memory.states;
        (s.weights / n, s.gradients / n, s.moments / n)
    };
    assert_eq!(states(&[]), (4, 4, 8));
    assert_eq!(states(&["weight_dtype=bfloat16"]), (2, 4, 4));
    assert_eq!(states(&["weight_dtype=bfloat16", "mu_dtype=float32"]), (2, 4, 6));
    assert_eq!(states(&["grad_dtype=bfloat16"]), (4, 2, 8));
    assert_eq!(states(&["opt_type=sgd"]), (4, 4, 0));
}

#[test]
fn policies_trade_memory_for_work() {
    let config: Config = tiny().loaded();
    let memory = config.plan().memory;
    let of = |name| memory.policies.iter().find(|policy| policy.policy == name).expect("a policy").activity;
    use RematPolicyName::*;
    let lean_to_fast = [Full, SaveQkvProj, SaveDotExceptMlp, SaveDotWithContextExceptMlp, MinimalWithContext];
    for pair in lean_to_fast.windows(2) {
        let (lean, fast) = (of(pair[0]), of(pair[1]));
        assert!(lean.kept < fast.kept && lean.recomputed_flops > fast.recomputed_flops, "{pair:?}");
    }
    // One input per layer is all that `full` keeps: tokens * emb_dim * float32.
    assert_eq!(of(Full).kept, 1024 * 256 * 4 * 4);
    assert_eq!(of(None).recomputed_flops, 0.0);
    // Offloading takes the place of keeping, byte for byte.
    assert_eq!(of(MinimalOffloaded).kept, of(Full).kept);
    assert_eq!(of(MinimalOffloaded).offloaded, of(Minimal).kept - of(Full).kept);
    assert!(memory.policies.iter().all(|policy| policy.policy != Custom));
}

#[test]
fn memory_is_linear_in_tokens() {
    let kept = |rows: &str| tiny().arg(rows).loaded().plan().memory.policies[0].activity.kept;
    assert_eq!(kept("per_device_batch_size=8"), 2 * kept("per_device_batch_size=4"));
}
