//! Runs the real `mt-train` on tiny configurations in a temporary folder.
#![allow(dead_code, reason = "every test binary uses some of it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use regex::Regex;
use serde_json::Value;
use tempfile::TempDir;

/// A run folder of its own, and the keys of a model that trains in milliseconds.
pub struct Bench {
    folder: TempDir,
    keys: BTreeMap<String, String>,
}

impl Bench {
    /// A tiny Llama on the synthetic batch.
    pub fn new() -> Self {
        let keys = [
            ("run_name", "tiny"),
            ("hardware", "cpu"),
            ("base_emb_dim", "32"),
            ("base_num_query_heads", "2"),
            ("base_num_kv_heads", "1"),
            ("head_dim", "16"),
            ("base_mlp_dim", "64"),
            ("base_num_decoder_layers", "2"),
            ("vocab_size", "300"),
            ("dtype", "float32"),
            ("max_target_length", "32"),
            ("per_device_batch_size", "2"),
            ("dataset_type", "synthetic"),
            ("steps", "6"),
            ("learning_rate", "1e-2"),
            ("checkpoint_period", "100"),
        ];
        let keys = keys.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Self { folder: tempfile::tempdir().unwrap(), keys }
    }

    /// The same with another key.
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.keys.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The same on packed lines of text, in two files of made-up words.
    pub fn on_text(self) -> Self {
        let mut word = 1_u64;
        for file in ["a.txt", "b.txt"] {
            let mut text = String::new();
            for _ in 0..200 {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push_str(&format!("line {} of {file}\n", word >> 40));
            }
            std::fs::write(self.path(file), text).unwrap();
        }
        let pattern = self.path("*.txt").display().to_string();
        self.with("dataset_type", "hf")
            .with("hf_path", "text")
            .with("hf_train_files", &pattern)
            .with("tokenizer_type", "byte")
            .with("num_epoch", "1000")
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A path in the run's folder.
    pub fn output(&self, name: &str) -> PathBuf {
        self.path("out/tiny").join(name)
    }

    /// The command, with `arguments` after the configuration file.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut yaml = String::new();
        for (key, value) in &self.keys {
            yaml.push_str(&format!("{key}: {value}\n"));
        }
        yaml.push_str(&format!("base_output_directory: {}\n", self.path("out").display()));
        std::fs::write(self.path("run.yml"), yaml).unwrap();
        let mut command = mt_train();
        command.arg("--config").arg(self.path("run.yml")).args(arguments);
        command
    }

    /// Runs to the end.
    pub fn run(&self, arguments: &[&str]) -> Run {
        Run::of(self.command(arguments).output().unwrap())
    }

    /// The command under `mpirun`, as `ranks` processes on this machine.
    pub fn ranks(&self, ranks: usize, arguments: &[&str]) -> Command {
        let one = self.command(arguments);
        let mut command = Command::new("mpirun");
        command
            .args(["-n", &ranks.to_string(), "--oversubscribe", "--allow-run-as-root", "--bind-to", "none"])
            .arg(one.get_program())
            .args(one.get_args());
        for (name, value) in one.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Starts, with stderr into a file that [`wait_for`] can watch.
    pub fn start(&self, arguments: &[&str]) -> Child {
        self.spawn(self.command(arguments))
    }

    /// As [`Bench::start`], of a command of this bench.
    pub fn spawn(&self, mut command: Command) -> Child {
        let log = std::fs::File::create(self.path("stderr")).unwrap();
        command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    /// Waits until the started process has written `text`.
    pub fn wait_for(&self, text: &str) {
        let patience = Instant::now() + Duration::from_secs(60);
        while !self.stderr().contains(text) {
            assert!(Instant::now() < patience, "`{text}` didn't come:\n{}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What the started process has written so far.
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(self.path("stderr")).unwrap_or_default()
    }

    /// The lines of `metrics/metrics.jsonl` that are training steps, by step.
    pub fn metrics(&self) -> BTreeMap<u64, Value> {
        read_metrics(&self.output("metrics/metrics.jsonl"))
    }
}

/// The binary, without `M_*` variables of whoever runs the tests.
pub fn mt_train() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mt-train"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("M_")) {
        command.env_remove(name);
    }
    command
}

/// What a finished process left behind.
pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The run, which must have ended with this code.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Step and loss of every step line, as Primus's daily report reads them.
    pub fn losses(&self) -> Vec<(u64, f64)> {
        let report = Regex::new(
            r"completed\s+step:\s*(\d+).*?seconds:\s*([\d.]+).*?TFLOP/s/device:\s*([\d.]+).*?Tokens/s/device:\s*([\d,]+(?:\.\d+)?).*?loss:\s*([\d.]+)",
        )
        .unwrap();
        let lines = self.stderr.lines().filter_map(|line| report.captures(line));
        lines.map(|fields| (fields[1].parse().unwrap(), fields[5].parse().unwrap())).collect()
    }
}

/// Training steps of a metrics file, by step; a step that is there twice fails.
pub fn read_metrics(path: &Path) -> BTreeMap<u64, Value> {
    let mut steps = BTreeMap::new();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        if object.get("learning/loss").is_some() {
            let step = object["step"].as_f64().unwrap() as u64;
            assert!(steps.insert(step, object).is_none(), "step {step} twice in {}", path.display());
        }
    }
    steps
}
