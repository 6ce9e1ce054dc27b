//! Parallelism keys over ranks: MaxText's rules for -1, products that must fit, batch sizes, what can't be shared.

use mt_config::{Config, Degrees, Ranks};

use crate::support::{Setup, assert_contains};

fn on(count: usize, per_node: usize, arguments: &[&str]) -> Result<Config, String> {
    let config = arguments.iter().fold(Setup::new(), |setup, argument| setup.arg(argument)).loaded();
    config.for_ranks(Ranks { count, per_node }).map_err(|errors| errors.to_string())
}

#[track_caller]
fn mesh(count: usize, per_node: usize, arguments: &[&str]) -> (usize, usize) {
    let Degrees { data, fsdp } =
        on(count, per_node, arguments).unwrap_or_else(|error| panic!("{error}")).mesh();
    (data, fsdp)
}

#[track_caller]
fn refused(count: usize, per_node: usize, arguments: &[&str], parts: &[&str]) {
    let error = on(count, per_node, arguments).expect_err("refused");
    assert_contains(&error, parts);
}

#[test]
fn minus_one_takes_the_rest() {
    // The defaults: shards within a node, copies over nodes.
    assert_eq!(mesh(1, 1, &[]), (1, 1));
    assert_eq!(mesh(4, 4, &[]), (1, 4));
    assert_eq!(mesh(16, 8, &[]), (2, 8));
    assert_eq!(mesh(8, 8, &["ici_data_parallelism=2"]), (2, 4));
    assert_eq!(mesh(8, 8, &["ici_data_parallelism=-1", "ici_fsdp_parallelism=1"]), (8, 1));
    assert_eq!(mesh(8, 8, &["ici_data_parallelism=-1", "ici_fsdp_parallelism=4"]), (2, 4));
    assert_eq!(mesh(64, 8, &["dcn_fsdp_parallelism=2"]), (4, 16));
    assert_eq!(mesh(64, 8, &["dcn_fsdp_parallelism=-1", "dcn_data_parallelism=1"]), (1, 64));
    assert_eq!(mesh(4, 1, &["ici_fsdp_parallelism=1"]), (4, 1));
    assert_eq!(mesh(16, 8, &["dcn_data_parallelism=2", "ici_fsdp_parallelism=8"]), (2, 8));
}

#[test]
fn products_must_be_the_ranks() {
    refused(
        4,
        4,
        &["ici_fsdp_parallelism=8"],
        &["is 8, but this run has 4 ranks per node (4 ranks in all)", "mpirun -n 8"],
    );
    refused(
        16,
        8,
        &["ici_fsdp_parallelism=4"],
        &[
            "`ici_fsdp_parallelism: 4` is 4, but this run has 8 ranks per node (16 ranks in all)",
            "mpirun -n 8",
        ],
    );
    refused(
        8,
        8,
        &["dcn_data_parallelism=2"],
        &["is 2, but this run has 1 node (8 ranks in all)", "mpirun -n 16"],
    );
    refused(
        1,
        1,
        &["ici_fsdp_parallelism=4", "ici_data_parallelism=2"],
        &["set `ici_data_parallelism: 1` and `ici_fsdp_parallelism: -1`", "mpirun -n 8"],
    );
    refused(
        8,
        8,
        &["ici_data_parallelism=3"],
        &[
            "command line: `ici_data_parallelism: 3` doesn't divide the 8 ranks per node that `ici_fsdp_parallelism: -1`",
        ],
    );
    refused(
        1,
        1,
        &["ici_data_parallelism=2"],
        &["`ici_data_parallelism: 2` doesn't divide the 1 rank per node"],
    );
    refused(12, 8, &[], &["12 ranks can't be 8 on each node"]);
    refused(1 << 30, 8, &[], &["too many"]);
    // Both networks are wrong: both are said.
    refused(
        8,
        8,
        &["ici_fsdp_parallelism=4", "dcn_data_parallelism=4"],
        &["2 problems", "per node", "1 node"],
    );
}

#[test]
fn one_of_a_network_may_be_minus_one() {
    let error = |argument: &str| Setup::new().arg(argument).refused();
    assert_contains(
        &error("ici_data_parallelism=-1"),
        &[
            "command line: `ici_data_parallelism: -1`: `ici_fsdp_parallelism` is -1 as well",
            "set `ici_fsdp_parallelism: 1`",
        ],
    );
    assert_contains(&error("dcn_fsdp_parallelism=-1"), &["set `dcn_data_parallelism: 1`"]);
    assert_contains(&error("ici_fsdp_parallelism=0"), &["must be above 0, or -1 for the rest"]);
    assert_contains(&error("dcn_data_parallelism=-2"), &["must be above 0, or -1 for the rest"]);
}

#[test]
fn batch_sizes_are_those_of_all_ranks_and_work_is_a_devices() {
    let keys = ["per_device_batch_size=2", "gradient_accumulation_steps=3", "eval_per_device_batch_size=5"];
    let (one, four) = (on(1, 1, &keys).expect("1 rank"), on(4, 2, &keys).expect("4 ranks"));
    let sizes = |c: &Config| {
        [
            c.rows_per_rank(),
            c.micro_batch_size_to_train_on(),
            c.global_batch_size_to_train_on(),
            c.global_batch_size_to_load(),
            c.global_batch_size_to_eval_on(),
        ]
    };
    assert_eq!(sizes(&one), [2, 2, 6, 6, 5]);
    assert_eq!(sizes(&four), [2, 8, 24, 24, 20]);
    assert_eq!(one.plan().flops, four.plan().flops);
    assert_eq!(4 * one.plan().tokens_per_step, four.plan().tokens_per_step);
    let expanded = on(4, 4, &["per_device_batch_size=2", "expansion_factor_real_data=1.5"]).expect("4 ranks");
    assert_eq!(expanded.global_batch_size_to_load(), 12);
    // A file is loaded for one process until ranks are known, and what is saved doesn't change with them.
    assert_eq!(Setup::new().arg("ici_fsdp_parallelism=8").loaded().num_ranks(), 1);
    assert_eq!(one.to_yaml().replace(&one.run_name, ""), four.to_yaml().replace(&four.run_name, ""));
}

#[test]
fn what_ranks_cannot_share() {
    refused(
        4,
        4,
        &["per_device_batch_size=0.5"],
        &["`per_device_batch_size: 0.5` on 4 ranks makes 2 rows", "give a whole number"],
    );
    refused(
        2,
        2,
        &["eval_per_device_batch_size=1.5"],
        &["`eval_per_device_batch_size: 1.5` on 2 ranks makes 3 rows"],
    );
    assert!(on(1, 1, &["per_device_batch_size=1.5"]).is_ok());

    refused(
        4,
        4,
        &["opt_type=muon"],
        &["command line: `opt_type: muon` needs whole matrices", "`ici_data_parallelism: -1`"],
    );
    let copies = ["opt_type=muon", "ici_data_parallelism=-1", "ici_fsdp_parallelism=1"];
    assert_eq!(mesh(4, 4, &copies), (4, 1));
}

#[test]
fn one_process_per_gpu_is_what_ranks_are() {
    let notes = Setup::new().arg("hardware=gpu_multiprocess").loaded().notes();
    assert_contains(&notes[0].to_string(), &["`hardware: gpu_multiprocess` means gpu"]);
}

mod degrees {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the keys say, the mesh has the ranks, or the error names a product and the ranks.
        #[test]
        fn multiply_to_the_ranks(
            nodes in 1usize..5,
            per_node in 1usize..9,
            ici in (prop_oneof![Just(-1i64), 1..9i64], prop_oneof![Just(-1i64), 1..9i64]),
            dcn in (prop_oneof![Just(-1i64), 1..5i64], prop_oneof![Just(-1i64), 1..5i64]),
        ) {
            let setup = [
                ("ici_data_parallelism", ici.0),
                ("ici_fsdp_parallelism", ici.1),
                ("dcn_data_parallelism", dcn.0),
                ("dcn_fsdp_parallelism", dcn.1),
            ]
            .iter()
            .fold(Setup::new(), |setup, (key, degree)| setup.arg(&format!("{key}={degree}")));
            let unclear = ici == (-1, -1) || dcn == (-1, -1);
            match setup.load() {
                Err(_) => prop_assert!(unclear),
                Ok(config) => {
                    prop_assert!(!unclear);
                    let count = nodes * per_node;
                    let fits = |(a, b): (i64, i64), size: usize| match (a, b) {
                        (-1, n) | (n, -1) => size as i64 % n == 0,
                        (a, b) => a * b == size as i64,
                    };
                    match config.for_ranks(Ranks { count, per_node }) {
                        Ok(config) => {
                            let Degrees { data, fsdp } = config.mesh();
                            prop_assert_eq!(data * fsdp, count);
                            prop_assert!(fits(ici, per_node) && fits(dcn, nodes));
                        }
                        Err(error) => {
                            prop_assert!(!(fits(ici, per_node) && fits(dcn, nodes)));
                            prop_assert!(error.to_string().contains("_parallelism: "));
                        }
                    }
                }
            }
        }
    }
}
