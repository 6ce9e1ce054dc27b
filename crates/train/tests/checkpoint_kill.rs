//! A process that does nothing but save checkpoints is killed again and again, and nothing that it had saved is lost.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mt_train::checkpoint::{
    Checkpoint, CheckpointError, CheckpointFolder, Identity, Manifest, Saver, TensorSpec, TrainState,
    write_tensors,
};
use safetensors::Dtype;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const FOLDER: &str = "MT_TEST_CHECKPOINT_FOLDER";
const KILLS: u64 = 60;

/// 40 tensors of 16 KiB, each filled with the step.
fn write(step: u64, folder: &Path, manifest: &mut Manifest) -> Result<(), CheckpointError> {
    let specs: Vec<TensorSpec> = (0..40)
        .map(|i| TensorSpec { name: format!("w{i}"), dtype: Dtype::F32, shape: vec![64, 64] })
        .collect();
    let content: Vec<u8> = std::iter::repeat_n(step.to_le_bytes(), 64 * 64 / 2).flatten().collect();
    write_tensors(folder, "model", manifest, &BTreeMap::new(), &specs, 100_000, |_, body| {
        body.write(&content)
    })?;
    let null = serde_json::Value::Null;
    let state = TrainState {
        step,
        identity: Identity::default(),
        optimizer: null.clone(),
        data: null.clone(),
        rng: null,
        config_hash: String::new(),
    };
    manifest.write_file(folder, "state.json", &serde_json::to_vec(&state).unwrap())
}

/// The content of a checkpoint is that of its step; returns the step.
fn step_of(checkpoint: &Checkpoint) -> u64 {
    let files = checkpoint.params().unwrap();
    assert_eq!(files.names().count(), 40);
    for name in files.names() {
        let bytes = files.read(name).unwrap();
        let step = checkpoint.state.step.to_le_bytes();
        assert!(
            bytes.chunks(8).all(|chunk| chunk == step),
            "`{name}` isn't of step {}",
            checkpoint.state.step
        );
    }
    checkpoint.state.step
}

/// The process that is killed; a test like others when nobody asks it to be more.
#[test]
fn saves_until_it_is_killed() {
    let Some(path) = std::env::var_os(FOLDER) else { return };
    let folder = CheckpointFolder::open(Path::new(&path)).unwrap();
    let next = folder.newest_whole().unwrap().map_or(0, |checkpoint| checkpoint.state.step + 1);
    let mut saver = Saver::new(folder, Some(3), true);
    for step in next.. {
        saver.save(step, Box::new(move |folder, manifest| write(step, folder, manifest))).unwrap();
        // The line comes after the save of the step before is done, as in the loop's log.
        if let Some(saved) = saver.last_saved() {
            println!("saved {}", saved.step);
            std::io::stdout().flush().unwrap();
        }
    }
}

#[test]
fn nothing_saved_is_lost_when_the_process_is_killed_at_any_moment() {
    let temp = tempfile::tempdir().unwrap();
    let mut committed = None;
    for round in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["saves_until_it_is_killed", "--exact", "--nocapture"])
            .env(FOLDER, temp.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut saves = lines.filter_map(|line| line.strip_prefix("saved ")?.parse::<u64>().ok());
        // Every other process gets to save, however slow the machine is; the rest are killed whatever they're at.
        if round % 2 == 0 {
            committed = committed.max(Some(saves.next().expect("the process saves")));
        }
        std::thread::sleep(Duration::from_micros(round * round * 7_919 % 60_000));
        child.kill().unwrap();
        child.wait().unwrap();
        committed = committed.max(saves.max());
        let folder = CheckpointFolder::open(temp.path()).unwrap();
        let steps = folder.steps().unwrap();
        for step in &steps {
            assert_eq!(step_of(&Checkpoint::open(&temp.path().join(step.to_string())).unwrap()), *step);
        }
        assert!(committed <= steps.last().copied(), "{committed:?} is lost, there are {steps:?}");
        assert!(steps.len() <= 4, "{steps:?}");
    }
    assert!(committed > Some(KILLS / 4), "only {committed:?} saves in {KILLS} rounds");
}
