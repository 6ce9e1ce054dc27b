//! A build without MPI under a launcher of many processes.
#![cfg(not(feature = "mpi"))]

use std::process::Command;

#[test]
fn processes_that_would_each_train_alone_are_refused() {
    for (variables, started) in [
        (vec![("OMPI_COMM_WORLD_SIZE", "4")], "Open MPI's mpirun started 4 processes"),
        (vec![("SLURM_STEP_NUM_TASKS", "16")], "srun started 16 processes"),
        (vec![("WORLD_SIZE", "8"), ("RANK", "2")], "torchrun started 8 processes"),
    ] {
        let run = Command::new(env!("CARGO_BIN_EXE_mt-train")).envs(variables).output().unwrap();
        let error = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(1), "{error}");
        assert!(error.contains(started) && error.contains("rebuild with `--features mpi`"), "{error}");
    }
}

#[test]
fn one_process_of_a_launcher_is_a_process_like_any() {
    let run = Command::new(env!("CARGO_BIN_EXE_mt-train"))
        .args(["--help-keys", "no_such_key_at_all"])
        .env("OMPI_COMM_WORLD_SIZE", "1")
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
}
