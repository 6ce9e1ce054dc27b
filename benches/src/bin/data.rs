//! json.gz to packed batches: ours and MaxText's own way, in one run.
//!
//! `cargo run --release -p benches --bin data -- FOLDER_OF_C4 TIKTOKEN_FILE [COPIES] [PYTHON]`
//!
//! The files `c4-train.*.json.gz` of the folder are read COPIES times over (links in a temporary folder). PYTHON has the
//! packages that `benches/peers/data_maxtext.py` names; without it only ours runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use mt_config::LoadArgs;
use mt_data::{Batches, profile, train_batches};

const BATCH: &str = "8";
const LENGTH: &str = "2048";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, tokenizer, ..] = arguments.as_slice() else {
        return Err("usage: data FOLDER_OF_C4 TIKTOKEN_FILE [COPIES] [PYTHON]".into());
    };
    let copies: usize = arguments.get(2).map_or(Ok(20), |copies| copies.parse())?;
    let links = link_copies(Path::new(folder), copies)?;
    let files = links.join("*.json.gz").display().to_string();
    let config = mt_config::load(&LoadArgs {
        overrides: [
            ("run_name", "bench"),
            ("dataset_type", "hf"),
            ("hf_path", "json"),
            ("hf_train_files", &files),
            ("tokenizer_path", tokenizer),
            ("tokenizer_type", "tiktoken"),
            ("vocab_size", "128256"),
            ("per_device_batch_size", BATCH),
            ("max_target_length", LENGTH),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .to_vec(),
        env: BTreeMap::new(),
        config_path: None,
    })?;

    let mut batches = train_batches(&config)?;
    let before = memory();
    let start = Instant::now();
    while batches.next_batch()?.is_some() {}
    let seconds = start.elapsed().as_secs_f64();
    let stats = batches.stats();
    let ours = stats.tokens as f64 / seconds;
    println!(
        "ours:    {:>9} tokens in {seconds:6.2} s, {ours:>9.0} tokens/s, {} batches, {:.1} % padding, {} MB above the vocabulary",
        stats.tokens,
        stats.batches,
        100.0 * stats.padding_share(),
        memory().saturating_sub(before) / 1000,
    );

    let stages = profile(&config)?;
    let rate = |seconds: f64| stages.bytes as f64 / 1e6 / seconds;
    println!("stages, one thread, {:.0} MB of JSON:", stages.bytes as f64 / 1e6);
    for (name, time) in [
        ("inflate", stages.inflate),
        ("find rows", stages.split),
        ("take the column", stages.parse),
        ("tokenize", stages.tokenize),
    ] {
        println!("  {name:<16} {:7.3} s {:8.0} MB/s", time.as_secs_f64(), rate(time.as_secs_f64()));
    }

    if let Some(python) = arguments.get(3) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/data_maxtext.py");
        let output = Command::new(python).arg(script).args([&files, tokenizer, BATCH, LENGTH]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().last().ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        let number = |key: &str| -> Result<f64, Box<dyn std::error::Error>> {
            let (_, rest) =
                line.split_once(&format!("\"{key}\": ")).ok_or("the peer printed something else")?;
            Ok(rest.trim_end_matches('}').split(',').next().unwrap_or("").parse()?)
        };
        let (tokens, seconds) = (number("tokens")?, number("seconds")?);
        println!("MaxText: {tokens:>9} tokens in {seconds:6.2} s, {:>9.0} tokens/s", tokens / seconds);
        println!("ratio:   {:.1}", ours / (tokens / seconds));
    }
    std::fs::remove_dir_all(links)?;
    Ok(())
}

/// A folder with every training shard `copies` times under different names.
fn link_copies(folder: &Path, copies: usize) -> std::io::Result<PathBuf> {
    let links = std::env::temp_dir().join(format!("mt-bench-data-{}", std::process::id()));
    std::fs::create_dir_all(&links)?;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("c4-train") && name.ends_with(".json.gz") {
            let whole = path.canonicalize()?;
            for copy in 0..copies {
                std::os::unix::fs::symlink(&whole, links.join(format!("{copy:04}-{name}")))?;
            }
        }
    }
    Ok(links)
}

/// Most memory that this process has used, in kB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
