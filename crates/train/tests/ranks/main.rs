//! Several ranks train as one process does: the same losses, norms and parameters within float32 rounding, the same bits twice.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod runs;
mod threads;

use std::path::Path;

use burn::tensor::Device;
use mt_config::Config;
use mt_model::{BatchTensors, Model};
use mt_train::collective::{Collective, Solo, World};
use mt_train::run::folder::RunFolder;
use mt_train::run::gradients::{LossSums, MicroBatches, StepError, loss_and_gradients, rows};
use mt_train::run::signals::StopRequest;
use mt_train::run::{End, RunError, Summary, run, run_on, totals};
use mt_train::shard::Gathered;
use runs::{PLAN, Plan, Run, batch, config, start, train};
use serde_json::Value;
use threads::on_ranks;

/// Data, then fsdp. Three shards don't divide every parameter.
const GRIDS: [[usize; 2]; 7] = [[2, 1], [4, 1], [1, 2], [1, 4], [2, 2], [1, 3], [3, 1]];

fn runs(config: &Config, plan: Plan, grid: [usize; 2]) -> Vec<Run> {
    on_ranks(grid, None, |threads| train(config, plan, &threads).unwrap())
}

/// All ranks of all grids know what one process knows, within rounding.
fn assert_as_one(name: &str, keys: &[(&str, &str)], plan: Plan, grids: &[[usize; 2]]) {
    let config = config(keys);
    let one = train(&config, plan, &Solo).unwrap();
    let moved = one.losses[0] - one.losses.last().unwrap();
    assert!(moved.abs() > 1e-3, "{name}: nothing is learned, {:?}", one.losses);
    for grid in grids {
        for (rank, run) in runs(&config, plan, *grid).iter().enumerate() {
            let place = format!("{name}, data and fsdp {grid:?}, rank {rank}");
            for (found, expected) in run.losses.iter().zip(&one.losses) {
                assert!((found - expected).abs() <= 1e-6 * expected, "{place}: loss {found} {expected}");
            }
            for (found, expected) in run.norms.iter().flatten().zip(one.norms.iter().flatten()) {
                assert!((found - expected).abs() <= 1e-5 * expected, "{place}: norm {found} {expected}");
            }
            assert_eq!(run.params.len(), one.params.len());
            for ((path, found), (expected_path, expected)) in run.params.iter().zip(&one.params) {
                assert_eq!((path, found.len()), (expected_path, expected.len()));
                for (found, expected) in found.iter().zip(expected) {
                    assert!((found - expected).abs() <= 2e-6, "{place}: {path} {found} {expected}");
                }
            }
        }
    }
}

#[test]
fn ranks_train_as_one_process() {
    assert_as_one("adamw", &[], PLAN, &GRIDS);
}

#[test]
fn gradient_accumulation_gives_the_same_step() {
    let plan = Plan { micro_batches: 3, ..PLAN };
    assert_as_one("accumulation", &[], plan, &[[2, 1], [1, 2], [2, 2]]);
}

#[test]
fn tied_embeddings_biases_and_norms_of_heads_are_sharded_too() {
    let qwen2 = [
        ("decoder_block", "qwen2"),
        ("attention_bias", "true"),
        ("logits_via_embedding", "true"),
        // Else each rank's part of the head's gradient is rounded to bfloat16 before they're summed up.
        ("tied_head_in_bf16", "false"),
    ];
    assert_as_one("qwen2", &qwen2, PLAN, &[[1, 3], [2, 2]]);
    assert_as_one("qwen3", &[("decoder_block", "qwen3"), ("use_qk_norm", "true")], PLAN, &[[1, 3], [2, 2]]);
}

#[test]
fn optimizers_masks_and_spikes_see_the_whole() {
    assert_as_one("sgd", &[("opt_type", "sgd")], PLAN, &[[1, 4], [2, 2]]);
    assert_as_one("frozen", &[("trainable_parameters_mask", "[mlp]")], PLAN, &[[2, 2]]);
    let spikes = [("skip_step_on_spikes", "true"), ("skip_step_interval", "2")];
    assert_as_one("spikes", &spikes, Plan { steps: 5, ..PLAN }, &[[2, 2]]);
}

#[test]
fn dropout_has_the_masks_of_one_process() {
    assert_as_one(
        "dropout",
        &[("dropout_rate", "0.2")],
        Plan { micro_batches: 2, ..PLAN },
        &[[2, 1], [2, 2]],
    );
}

#[test]
fn moments_may_be_in_main_memory() {
    let plan = Plan { host: true, micro_batches: 2, ..PLAN };
    assert_as_one("host offload", &[], plan, &[[1, 2], [2, 1], [2, 2]]);
}

#[test]
fn the_same_ranks_give_the_same_bits() {
    let config = config(&[]);
    for grid in [[4, 1], [1, 4], [2, 2]] {
        let [first, second] = [(), ()].map(|()| runs(&config, Plan { micro_batches: 2, ..PLAN }, grid));
        for (first, second) in first.iter().zip(&second) {
            assert_eq!((&first.losses, &first.norms), (&second.losses, &second.norms));
            assert!(first.params == second.params);
        }
    }
}

#[test]
fn no_remat_policy_changes_a_bit() {
    let policies = [
        "full",
        "save_out_proj",
        "save_qkv_proj",
        "save_dot_except_mlp",
        "save_dot_with_context_except_mlp",
        "save_dot_except_mlpwi",
        "minimal",
        "minimal_with_context",
        "qkv_proj_offloaded",
        "minimal_offloaded",
        "custom",
    ];
    let run = |policy| runs(&config(&[("remat_policy", policy)]), Plan { steps: 2, ..PLAN }, [2, 2]);
    let full = run("full");
    for policy in policies {
        for (found, expected) in run(policy).iter().zip(&full) {
            assert!(found.losses == expected.losses && found.params == expected.params, "{policy}");
        }
    }
}

/// Noise depends on an element's number in the whole parameter; sums in another order may move a few across a boundary.
#[test]
fn stochastic_rounding_has_the_noise_of_one_process() {
    let keys = [("weight_dtype", "bfloat16"), ("stochastic_rounding", "true")];
    let plan = Plan { steps: 1, ..PLAN };
    let one = train(&config(&keys), plan, &Solo).unwrap();
    let share = |run: &Run| {
        let pairs: Vec<(f32, f32)> = run
            .params
            .iter()
            .zip(&one.params)
            .flat_map(|((_, a), (_, b))| a.iter().copied().zip(b.iter().copied()))
            .collect();
        pairs.iter().filter(|(a, b)| a != b).count() as f64 / pairs.len() as f64
    };
    for run in runs(&config(&keys), plan, [1, 4]) {
        assert!(share(&run) < 0.01, "{} of the elements differ", share(&run));
    }
    let nearest = config(&[("weight_dtype", "bfloat16")]);
    let nearest = train(&nearest, plan, &Solo).unwrap();
    assert!(share(&nearest) > 0.05, "the noise matters: {}", share(&nearest));
}

/// Every micro batch gathers the embedding and the head once and each layer twice, and scatters each gradient once; the copies
/// come together once a step.
#[test]
fn bytes_are_those_of_the_schedule() {
    let config = config(&[]);
    let model = Model::new(config.model(), &Device::flex());
    let in_layers = model.params.layers.iter().flat_map(|layer| layer.as_ref().into_vec());
    let layers: u64 = in_layers.map(|tensor| tensor.dims().iter().product::<usize>() as u64).sum();
    let all = model.params.num_parameters() as u64;
    let plan = Plan { steps: 2, micro_batches: 3, ..PLAN };
    for [data, fsdp] in [[1, 4], [2, 2], [4, 1]] {
        let (d, f) = (data as u64, fsdp as u64);
        let gathered = 4 * (all + layers) * (f - 1) / f;
        let scattered = 4 * all * (f - 1) / f;
        let summed = 2 * (4 * all / f) * (d - 1) / d;
        let expected = 2 * (3 * (gathered + scattered) + summed);
        for run in runs(&config, plan, [data, fsdp]) {
            assert_eq!(run.bytes_moved, expected, "data {data}, fsdp {fsdp}");
        }
    }
}

/// Whatever fails, in the forward, the head, the backward or the sums, ends the step of all ranks with an error.
#[test]
fn a_failed_collective_is_an_error_on_all_ranks() {
    let config = config(&[]);
    let plan = Plan { steps: 1, ..PLAN };
    // Embedding, head and three layers twice are gathered; five parts are summed over the shards and then over the copies.
    for failing in 0..8 + 5 + 5 {
        let errors = on_ranks([2, 2], Some((1, failing)), |threads| train(&config, plan, &threads).err());
        for (rank, error) in errors.into_iter().enumerate() {
            let Some(StepError::Collective(error)) = error else {
                panic!("start {failing}, rank {rank}: {error:?}")
            };
            assert_eq!((error.rank, error.reason.as_str()), (rank, "the link is down"));
        }
    }
}

#[test]
fn a_bad_row_of_one_rank_ends_all_alike() {
    let config = config(&[]);
    let mut batch = batch(4, 16, 96, 0);
    batch.inputs[3 * 16] = 96;
    let errors = on_ranks([2, 2], None, |threads| {
        let (model, optimizer) = start(&config, false, &threads);
        let micro = MicroBatches { count: 1, rows: 1 };
        let result = loss_and_gradients(&model, &batch, micro, 0, optimizer.sink(), &threads);
        result.map(drop).unwrap_err().to_string()
    });
    for error in errors {
        assert_eq!(error, "`inputs` holds token 96 in row 3 at column 0; vocab_size is 96");
    }
}

#[test]
fn what_one_rank_knows_all_know() {
    let nan_on_one = on_ranks([2, 2], None, |threads| {
        let rank = threads.mesh().rank;
        let loss = LossSums { xent: if rank == 2 { f64::NAN } else { 1.0 }, z_loss: 0.5, total_weights: 3.0 };
        let (loss, squares) = totals::of_gradients(&threads, loss, 2.0 + (rank % 2) as f64).unwrap();
        let stop = [rank == 3, false].map(|asked| totals::any(&threads, asked).unwrap());
        let (param_squares, slowest) = totals::of_update(&threads, 1.0, 0.5 + rank as f64).unwrap();
        (loss.xent.is_nan(), loss.z_loss, loss.total_weights, squares, stop, param_squares, slowest)
    });
    for (is_nan, z_loss, weights, squares, stop, param_squares, slowest) in nan_on_one {
        // Squares are those of the two shards of one copy.
        assert_eq!((is_nan, z_loss, weights, squares, param_squares), (true, 2.0, 12.0, 5.0, 2.0));
        assert_eq!(stop, [true, false]);
        assert_eq!(slowest, Some(totals::Slowest { rank: 3, seconds: 3.5 }));
    }
    assert_eq!(totals::of_update(&Solo, 1.0, 0.5).unwrap(), (1.0, None));
}

#[test]
fn evaluation_gathers_the_same_weights() {
    let config = config(&[]);
    let batch = batch(4, 16, 96, 1);
    let loss = |collective: &dyn Collective| {
        let (model, _) = start(&config, false, collective);
        let tensors = BatchTensors::new(&rows(&batch, 0, 4), model.config(), &model.device()).unwrap();
        model.eval_loss_of(&Gathered::new(&model, collective), &tensors).unwrap()
    };
    let one = loss(&Solo);
    for found in on_ranks([1, 3], None, |threads| loss(&threads)) {
        assert_eq!((found.xent_sum, found.total_weights), (one.xent_sum, one.total_weights));
    }
}

/// The figures of a run by line of its metrics.
fn metrics(config: &Config) -> Vec<Value> {
    let text = std::fs::read_to_string(config.metrics_dir().join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn loop_config(folder: &Path, keys: &[(&str, &str)]) -> Config {
    let folder = folder.display().to_string();
    let all = [
        ("base_output_directory", folder.as_str()),
        ("hardware", "cpu"),
        ("steps", "4"),
        ("learning_rate", "1e-2"),
        ("enable_checkpointing", "false"),
        ("gradient_accumulation_steps", "2"),
        ("eval_interval", "2"),
        ("eval_steps", "2"),
        ("eval_per_device_batch_size", "4"),
    ];
    config(&[&all, keys].concat())
}

/// The loop on a grid of ranks; what each of them ends with.
fn runs_of_loop(config: &Config, grid: [usize; 2]) -> Vec<Result<Summary, RunError>> {
    let folder = RunFolder::open(&config.run_dir()).unwrap();
    let stop = StopRequest::default();
    on_ranks(grid, None, |threads| run_on(config, &folder, &stop, &Device::flex(), Box::new(threads)))
}

/// The loop itself: all ranks end alike, the first one writes for all, and what it writes is of all.
#[test]
fn the_loop_runs_on_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let alone = loop_config(folder.path(), &[("run_name", "alone"), ("per_device_batch_size", "4")]);
    run(&alone, &World::solo()).unwrap();
    let expected = metrics(&alone);
    // Rows are loaded for two ranks.
    let rows = [("per_device_batch_size", "2"), ("expansion_factor_real_data", "2")];
    for (name, grid) in [("data", [2, 1]), ("fsdp", [1, 2])] {
        let config = loop_config(folder.path(), &[&rows[..], &[("run_name", name)]].concat());
        for summary in runs_of_loop(&config, grid) {
            let summary = summary.unwrap();
            assert_eq!((summary.end, summary.totals.steps), (End::Completed, 4));
        }
        assert!(config.run_dir().join("report.html").is_file());
        let found = metrics(&config);
        assert_eq!(found.len(), expected.len(), "{name}");
        for (found, expected) in found.iter().zip(&expected) {
            let number = |line: &Value, key: &str| line[key].as_f64();
            for key in [
                "learning/loss",
                "learning/grad_norm",
                "learning/param_norm",
                "learning/total_weights",
                "eval/avg_loss",
                "eval/total_weights",
            ] {
                let (found, expected) = (number(found, key), number(expected, key));
                let difference = found.unwrap_or(0.0) - expected.unwrap_or(0.0);
                assert!(
                    found.is_some() == expected.is_some()
                        && difference.abs() <= 1e-5 * expected.unwrap_or(1.0),
                    "{name}: {key} {found:?} {expected:?}"
                );
            }
            let tokens = |line| number(line, "perf/per_device_tokens");
            assert_eq!(tokens(found).map(|tokens| 2.0 * tokens), tokens(expected));
            assert!(
                tokens(found).is_none() || number(found, "perf/slowest_rank_step_time_seconds").is_some()
            );
        }
    }
    assert!(expected.iter().any(|line| line["eval/avg_loss"].is_f64()), "there was an evaluation");
}
