//! Memory per rank, bytes moved, and what the model of scaling must satisfy.

use mt_config::plan::{Machine, Plan, StepTime};
use mt_config::{Config, Ranks, RematPolicyName};

use crate::support::{Setup, assert_contains};

/// A model whose matrices don't divide by three, on `count` ranks.
fn on(count: usize, arguments: &[&str]) -> Config {
    let tiny = Setup::yaml(
        "base_emb_dim: 256\nbase_num_query_heads: 4\nbase_num_kv_heads: 2\nhead_dim: 64\nbase_mlp_dim: 512\n\
         base_num_decoder_layers: 4\nvocab_size: 4096\nmax_target_length: 256\nper_device_batch_size: 4\ndtype: float32\n\
         hardware: gpu\n",
    );
    let config = arguments.iter().fold(tiny, |setup, argument| setup.arg(argument)).loaded();
    config.for_ranks(Ranks { count, per_node: count.min(8) }).unwrap_or_else(|errors| panic!("{errors}"))
}

const COPIES: [&str; 2] = ["ici_data_parallelism=-1", "ici_fsdp_parallelism=1"];

#[test]
fn states_are_divided_by_the_shards() {
    let states = |count: usize| on(count, &[]).plan().memory.states;
    let (one, four, three) = (states(1), states(4), states(3));
    assert_eq!((one.weights, one.moments), (4 * four.weights, 4 * four.moments));
    // Zeros fill up the last shard of a tensor of which three don't make the whole: at most two scalars.
    let (whole, padded) = (one.weights, 3 * three.weights);
    assert!(whole < padded && padded <= whole + 4 * 2 * (4 * 9 + 3), "{whole} {padded}");
    let copies = on(4, &COPIES).plan().memory;
    assert_eq!(copies, on(1, &[]).plan().memory, "a copy takes what one process takes");
}

/// `1/N of the states plus two layers`: with a model of many thin layers nearly nothing else is left.
#[test]
fn the_peak_is_a_share_of_the_states_and_two_layers() {
    let keys =
        ["base_num_decoder_layers=64", "per_device_batch_size=1", "max_target_length=16", "vocab_size=64"];
    let peak = |count| {
        let plan = on(count, &keys).plan();
        let layer =
            plan.parameters.0.iter().filter(|kind| kind.in_layers).map(|kind| kind.count / 64).sum::<u64>();
        (plan.memory.peak(RematPolicyName::Full).expect("planned") as f64, layer as f64)
    };
    let ((one, _), (eight, layer)) = (peak(1), peak(8));
    // Whole at once: weights of two layers and float32 gradients of two.
    let bound = one / 8.0 + 2.0 * 4.0 * layer + 2.0 * 4.0 * layer;
    assert!((eight / bound - 1.0).abs() < 0.05, "{eight} and {bound}");
}

#[test]
fn every_policy_and_offloading_have_a_peak_that_shards_lower() {
    for extra in [
        "gradient_accumulation_steps=1",
        "gradient_accumulation_steps=2",
        "optimizer_memory_host_offload=true",
        "logits_via_embedding=true",
    ] {
        let (one, eight) = (on(1, &[extra]).plan().memory, on(8, &[extra]).plan().memory);
        for policy in &one.policies {
            let peak = |plan: &mt_config::plan::MemoryPlan| plan.peak(policy.policy).expect("planned");
            assert!(
                peak(&eight) < peak(&one),
                "{extra} {:?}: {} {}",
                policy.policy,
                peak(&eight),
                peak(&one)
            );
        }
        // Accumulation keeps shards of gradients and nothing else.
        let activity = |plan: &Plan| plan.memory.policies[0].activity;
        assert_eq!(activity(&on(1, &[extra]).plan()).kept, activity(&on(8, &[extra]).plan()).kept);
    }
    let peak =
        |arguments: &[&str]| on(8, arguments).plan().memory.peak(RematPolicyName::Full).expect("planned");
    let shards = on(8, &[]).plan().memory.states.gradients;
    let more = peak(&["gradient_accumulation_steps=4"]) - peak(&[]);
    assert!(more <= 2 * shards && more > 0, "{more} of {shards}");
}

/// By hand, for a model of one matrix kind per part: N ranks send (N - 1) / N of each whole tensor.
#[test]
fn traffic_is_the_schedules() {
    let plan = |count, arguments: &[&str]| on(count, arguments).plan();
    assert_eq!(plan(1, &[]).traffic.total(), 0);
    let total = plan(1, &[]).parameters.total();
    let of =
        |name: &str| plan(1, &[]).parameters.0.iter().find(|kind| kind.name == name).expect("a kind").count;
    let (embedding, head) =
        (of("token_embedder/embedding"), of("logits_dense/kernel") + of("decoder_norm/scale"));
    let layers = total - embedding - head;

    let four = plan(4, &["gradient_accumulation_steps=3"]).traffic;
    assert_eq!(four.gather_forward, 3 * total * 4 * 3 / 4);
    assert_eq!(four.gather_backward, 3 * layers * 4 * 3 / 4);
    assert_eq!(four.reduce_scatter, 3 * total * 4 * 3 / 4);
    assert_eq!(four.all_reduce, 0);
    let bfloat16 = plan(4, &["weight_dtype=bfloat16"]).traffic;
    assert_eq!(bfloat16.gather_forward, total * 2 * 3 / 4);
    assert_eq!(bfloat16.reduce_scatter, total * 4 * 3 / 4, "gradients are float32");

    let copies = plan(4, &[COPIES[0], COPIES[1], "gradient_accumulation_steps=3"]).traffic;
    assert_eq!((copies.gather_forward, copies.reduce_scatter), (0, 0));
    assert_eq!(copies.all_reduce, 2 * total * 4 * 3 / 4, "once a step, whatever the micro batches");
    let both = plan(16, &[]).traffic;
    assert_eq!(both.all_reduce, 2 * (total / 8) * 4 / 2);
    let on_host = plan(16, &["gradient_accumulation_steps=3", "optimizer_memory_host_offload=true"]).traffic;
    assert_eq!(on_host.all_reduce, 3 * both.all_reduce);

    let tied = plan(4, &["logits_via_embedding=true"]).traffic;
    let norm = of("decoder_norm/scale");
    assert_eq!(tied.gather_forward, (2 * embedding + layers + norm) * 4 * 3 / 4);
    assert_eq!(tied.reduce_scatter, (embedding + layers + norm) * 4 * 3 / 4);
}

#[test]
fn a_step_is_between_its_longer_half_and_their_sum() {
    let machine = Machine::MI300X;
    for count in [1, 2, 8, 64] {
        for arguments in [
            &[][..],
            &["gradient_accumulation_steps=3"],
            &["base_num_decoder_layers=1"],
            &["remat_policy=minimal"],
        ] {
            let time = StepTime::of(&on(count, arguments), &machine);
            let StepTime { compute, communication, step } = time;
            assert!(step >= compute.max(communication) * (1.0 - 1e-12), "{count} {arguments:?} {time:?}");
            assert!(step <= (compute + communication) * (1.0 + 1e-12), "{count} {arguments:?} {time:?}");
            let free = Machine {
                node_bandwidth: f64::INFINITY,
                nic_bandwidth: f64::INFINITY,
                latency: 0.0,
                ..machine
            };
            let ideal = StepTime::of(&on(count, arguments), &free);
            assert!((ideal.step / ideal.compute - 1.0).abs() < 1e-12);
        }
    }
    let alone = StepTime::of(&on(1, &[]), &machine);
    let plan = on(1, &[]).plan();
    let recomputed =
        plan.memory.policies.iter().find(|policy| policy.policy == RematPolicyName::Full).expect("planned");
    let work = (plan.flops.total() + recomputed.activity.recomputed_flops) / machine.flops;
    assert!((alone.step / work - 1.0).abs() < 1e-12, "one device computes and that is all");
}

/// What the model of scaling moves is what the byte counters count.
#[test]
fn moving_takes_the_bytes_of_the_traffic() {
    let machine = Machine { flops: 1.0, node_bandwidth: 1e9, nic_bandwidth: 1e9, latency: 0.0 };
    for arguments in [
        &[][..],
        &["gradient_accumulation_steps=3"],
        &["logits_via_embedding=true"],
        &["optimizer_memory_host_offload=true", "gradient_accumulation_steps=2"],
    ] {
        for count in [2, 8, 64] {
            let config = on(count, arguments);
            let seconds = config.plan().traffic.total() as f64 / 1e9;
            let moving = StepTime::of(&config, &machine).communication;
            assert!((moving / seconds - 1.0).abs() < 1e-12, "{count} {arguments:?}: {moving} {seconds}");
        }
    }
}

#[test]
fn the_network_is_shared_as_the_mesh_lies() {
    let slow_cards = Machine { nic_bandwidth: 1e9, node_bandwidth: 100e9, latency: 0.0, flops: 1e18 };
    let moving = |config: &Config| StepTime::of(config, &slow_cards).communication;
    let bytes = |config: &Config| config.plan().traffic.total() as f64;
    let within = on(8, &[]);
    assert!((moving(&within) - bytes(&within) / 100e9).abs() < 1e-9);
    // Shards over two nodes: one ring through all eight cards of a node.
    let over = on(16, &["dcn_fsdp_parallelism=-1", "dcn_data_parallelism=1"]);
    assert!((moving(&over) - bytes(&over) / 8e9).abs() < 1e-9);
    // Copies over nodes: every rank has a ring, and a card, of its own.
    let copies = on(16, &[]);
    let all_reduce = copies.plan().traffic.all_reduce as f64;
    let expected = (bytes(&copies) - all_reduce) / 100e9 + all_reduce / 1e9;
    assert!((moving(&copies) - expected).abs() < 1e-9);
}

#[test]
fn the_dry_run_plans_for_ranks() {
    let report = on(16, &["run_name=r"]).dry_run_report(false);
    assert_contains(
        &report,
        &[
            "16 ranks, 8 per node: data 2 x fsdp 8, which are copies of the model and shards of each",
            "64 rows of 256 = 16,384 tokens",
            "Total TFLOPs of each device:",
            "all-gather, forward",
            "gradients over fsdp, float32",
            "all-reduce",
        ],
    );
    assert!(!on(1, &[]).dry_run_report(false).contains("all-gather"));
}
