//! A training step on the CPU against PyTorch's, in one run: forward, backward, clipping and AdamW of a Llama with 4 layers,
//! emb 512, mlp 1408, 8/4 heads, vocabulary 32,000, on 4 rows of 512 tokens.
//!
//! `cargo bench -p benches --bench train_step [-- ROUNDS]`. The peer is `peers/train_step_torch.py`, run by `$PYTHON` (default
//! `python3`) and left out when that has no PyTorch. Ours is the whole trainer, log lines and metric files included, in a
//! process of its own. Rounds of ours and the peer alternate; the first two steps of a process (compilation, cold memory) don't
//! count; medians over all other steps are printed, and the largest resident set of a process.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};

use benches::{STEP_MODEL, config, median, peak_rss_mb, python, rounds};
use serde_json::Value;

const STEPS: usize = 6;
const WARM_UP: usize = 2;
const TOKENS: f64 = 4.0 * 512.0;

/// What a process measured.
#[derive(Default)]
struct Measured {
    tokens_per_s: Vec<f64>,
    peak_rss_mb: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.as_slice() {
        [word, dtype, folder] if word == "child" => child(dtype, Path::new(folder)),
        _ => rounds(3).map_or(Ok(()), compare),
    }
}

fn compare(rounds: usize) -> Result<(), Box<dyn Error>> {
    println!("{:32} {:>10} {:>12} {:>10}", "", "tokens/s", "peak RSS MB", "steps");
    for dtype in ["float32", "bfloat16"] {
        let mut ours = Measured::default();
        let mut peers = [("eager", Measured::default()), ("compile", Measured::default())];
        for _ in 0..rounds {
            ours.add(ours_once(dtype)?);
            for (mode, peer) in &mut peers {
                peer.add(torch_once(mode, dtype).unwrap_or_default());
            }
        }
        let speed = ours.print(&format!("mt-train {dtype}"));
        for (mode, peer) in peers.iter().filter(|(_, peer)| !peer.tokens_per_s.is_empty()) {
            let peer_speed = peer.print(&format!("PyTorch {mode} {dtype}"));
            println!(
                "  ours over PyTorch {mode}: {:.2}x the speed, {:.2}x the memory",
                speed / peer_speed,
                ours.peak_rss_mb / peer.peak_rss_mb
            );
        }
    }
    Ok(())
}

impl Measured {
    fn add(&mut self, other: Self) {
        self.tokens_per_s.extend(other.tokens_per_s);
        self.peak_rss_mb = self.peak_rss_mb.max(other.peak_rss_mb);
    }

    /// Prints a line and returns the median speed.
    fn print(&self, name: &str) -> f64 {
        let speed = median(self.tokens_per_s.clone());
        println!("{name:32} {speed:10.0} {:12.0} {:10}", self.peak_rss_mb, self.tokens_per_s.len());
        speed
    }
}

/// A run of this program as `child`.
fn ours_once(dtype: &str) -> Result<Measured, Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("mt-train-bench-{}", std::process::id()));
    let output = Command::new(std::env::current_exe()?)
        .args(["child", dtype])
        .arg(&folder)
        .stderr(Stdio::null())
        .output()?;
    let metrics = std::fs::read_to_string(folder.join("metrics.jsonl"))?;
    std::fs::remove_dir_all(&folder)?;
    let seconds = metrics.lines().filter_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        line["perf/step_time_seconds"].as_f64()
    });
    let printed = String::from_utf8(output.stdout)?;
    let peak =
        printed.lines().find_map(|line| line.strip_prefix("peak_rss_mb ")).ok_or("the child failed")?;
    Ok(Measured {
        tokens_per_s: seconds.skip(WARM_UP).map(|seconds| TOKENS / seconds).collect(),
        peak_rss_mb: peak.parse()?,
    })
}

/// Trains in this process.
fn child(dtype: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    let steps = STEPS.to_string();
    let folder_text = folder.display().to_string();
    let metrics = folder.join("metrics.jsonl").display().to_string();
    let keys = [
        ("base_output_directory", folder_text.as_str()),
        ("metrics_file", &metrics),
        ("hardware", "cpu"),
        ("max_target_length", "512"),
        ("per_device_batch_size", "4"),
        ("remat_policy", "minimal_with_context"),
        ("dtype", dtype),
        ("weight_dtype", dtype),
        ("enable_checkpointing", "false"),
        ("steps", &steps),
    ];
    let config = config(&[&STEP_MODEL, &keys])?;
    mt_train::run::run(&config, &mt_train::collective::World::solo())?;
    println!("\npeak_rss_mb {}", peak_rss_mb());
    Ok(())
}

/// None when `$PYTHON` has no PyTorch, or the mode doesn't work there (`torch.compile` needs a C++ compiler).
fn torch_once(mode: &str, dtype: &str) -> Option<Measured> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/train_step_torch.py");
    let threads = rayon::current_num_threads().to_string();
    let output = Command::new(python())
        .args([
            script,
            "--mode",
            mode,
            "--dtype",
            dtype,
            "--threads",
            &threads,
            "--steps",
            &STEPS.to_string(),
        ])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
    let speeds = answer["tokens_per_s"].as_array()?.iter().filter_map(Value::as_f64);
    Some(Measured {
        tokens_per_s: speeds.skip(WARM_UP).collect(),
        peak_rss_mb: answer["peak_rss_mb"].as_f64()?,
    })
}
