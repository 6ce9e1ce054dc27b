//! The table of expected scaling in docs/distributed.md.

use std::fmt::Write;

use super::dry_run::size;
use crate::keys::Config;
use crate::load::{LoadArgs, load};
use crate::plan::{Machine, StepTime};
use crate::ranks::Ranks;

/// A model as AMD's Primus recipes for MI300X train it.
const RECIPES: [(&str, [(&str, &str); 6]); 2] = [
    ("Llama-3 8B", recipe("llama3-8b", "4", "minimal_flash")),
    ("Llama-3 70B", recipe("llama3-70b", "7", "full")),
];

const fn recipe(
    model: &'static str,
    rows: &'static str,
    remat: &'static str,
) -> [(&'static str, &'static str); 6] {
    [
        ("model_name", model),
        ("per_device_batch_size", rows),
        ("remat_policy", remat),
        ("max_target_length", "8192"),
        ("weight_dtype", "bfloat16"),
        ("hardware", "gpu"),
    ]
}

/// Shards within a node and copies over nodes, as the recipes have it, or shards over all ranks.
const LAYOUTS: [&[(&str, &str)]; 2] =
    [&[("ici_fsdp_parallelism", "8")], &[("dcn_fsdp_parallelism", "-1"), ("dcn_data_parallelism", "1")]];

/// What is assumed, and expected step times of two models on 8, 64 and 512 devices.
pub fn scaling_markdown() -> String {
    let machine = Machine::MI300X;
    let mut text = format!(
        "Assumed, not measured: {:.0} TFLOP/s of a device while it computes (recomputed work included), {:.0} GB/s of a device \
         in a ring within its node, {:.0} GB/s of each device's network card, {:.0} µs per collective.\n\n",
        machine.flops / 1e12,
        machine.node_bandwidth / 1e9,
        machine.nic_bandwidth / 1e9,
        machine.latency * 1e6
    );
    text.push_str(
        "| model | devices | data x fsdp | memory | sent per step | computing | moving | step | computing share | the same at 2048 tokens | tokens/s/device |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (name, keys) in RECIPES {
        for layout in LAYOUTS {
            for count in [8, 64, 512] {
                // One node has one layout: shards over all of it.
                if count > 8 || layout.len() == 1 {
                    let keys: Vec<_> = keys.iter().chain(layout).copied().collect();
                    // Little work to hide what is moved behind.
                    let small = [("per_device_batch_size", "1"), ("max_target_length", "2048")];
                    let small = of(&[&keys[..], &small].concat(), count);
                    row(&mut text, name, &of(&keys, count), &small, &machine);
                }
            }
        }
    }
    text
}

fn of(keys: &[(&str, &str)], count: usize) -> Config {
    let overrides = keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    load(&LoadArgs { overrides, ..LoadArgs::default() })
        .and_then(|config| config.for_ranks(Ranks { count, per_node: 8 }))
        .expect("the keys are constants, and a test loads all of them")
}

fn row(text: &mut String, name: &str, config: &Config, small: &Config, machine: &Machine) {
    let small = StepTime::of(small, machine);
    let (plan, time, mesh) = (config.plan(), StepTime::of(config, machine), config.mesh());
    let tokens = plan.tokens_per_step as f64 / config.num_ranks() as f64;
    let _ = writeln!(
        text,
        "| {name} | {} | {} x {} | {} | {} | {:.2} s | {:.2} s | {:.2} s | {:.0} % | {:.0} % | {:.0} |",
        config.num_ranks(),
        mesh.data,
        mesh.fsdp,
        size(plan.memory.peak(config.remat_policy).unwrap_or(0)),
        size(plan.traffic.total()),
        time.compute,
        time.communication,
        time.step,
        100.0 * time.efficiency(),
        100.0 * small.efficiency(),
        tokens / time.step
    );
}
