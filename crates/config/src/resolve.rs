//! Values that MaxText fills in when they aren't given.

use std::collections::BTreeMap;
use std::path::Path;

use crate::keys::Config;
use crate::layers::Resolved;
use crate::node::Place;
use crate::presets;

/// Fills in names, the tokenizer and what the model's name implies.
pub(crate) fn fill_in(resolved: &mut Resolved, env: &BTreeMap<String, String>) {
    output_folder(resolved, env);
    kernel_tuning_folder(resolved, env);
    tokenizer(resolved);
    if resolved.text("model_name").starts_with("llama3.1") {
        // As in MaxText, where the name alone selects it, whatever rope_type says.
        resolved.derive("rope_type", "llama3.1", "model_name");
    }
    if !resolved.text("hf_eval_files").is_empty() {
        // Files are a split of their own, which `datasets` calls train.
        resolved.derive("hf_eval_split", "train", "hf_eval_files");
    }
}

fn output_folder(resolved: &mut Resolved, env: &BTreeMap<String, String>) {
    if resolved.text("base_output_directory").is_empty() {
        resolved.derive("base_output_directory", "maxtext_output", "the default folder");
    }
    if resolved.text("run_name").is_empty() {
        match env.get("JOBSET_NAME").filter(|name| !name.is_empty()) {
            Some(name) => resolved.derive("run_name", name, "JOBSET_NAME"),
            None => {
                let time = chrono::Local::now().format("%Y-%m-%d-%H-%M");
                let name = format!("{}_{time}", resolved.text("model_name"));
                resolved.derive("run_name", &name, "model_name and the time");
            }
        }
    }
}

/// The user's cache folder, as the XDG base directory specification has it; none where the environment names none.
fn kernel_tuning_folder(resolved: &mut Resolved, env: &BTreeMap<String, String>) {
    let folder = |variable: &'static str, below: &str| {
        let path = env.get(variable).map(Path::new).filter(|path| path.is_absolute())?;
        Some((path.join(below).join("mt-train"), variable))
    };
    let found = folder("XDG_CACHE_HOME", "").or_else(|| folder("HOME", ".cache"));
    if resolved.text("kernel_tuning_dir").is_empty()
        && let Some((path, variable)) = found
    {
        resolved.derive("kernel_tuning_dir", &path.display().to_string(), variable);
    }
}

fn tokenizer(resolved: &mut Resolved) {
    let untouched = resolved.place("tokenizer_type") == &Place::Default;
    if resolved.text("tokenizer_path").contains("tokenizer_llama3.tiktoken") {
        resolved.derive("tokenizer_type", "tiktoken", "tokenizer_path");
    } else if resolved.text("tokenizer_path").is_empty()
        && untouched
        && let Some(repository) = presets::tokenizer(resolved.text("model_name"))
    {
        resolved.derive("tokenizer_path", &repository, "model_name");
        resolved.derive("tokenizer_type", "huggingface", "model_name");
    }
}

/// `steps: -1` takes the schedule's length, and the schedule's -1 takes `steps`.
pub(crate) fn lengths(config: &mut Config) {
    if config.steps == -1 && config.learning_rate_schedule_steps >= 0 {
        config.steps = config.learning_rate_schedule_steps;
        config.resolved.derive("steps", &config.steps.to_string(), "learning_rate_schedule_steps");
    }
    if config.learning_rate_schedule_steps == -1 && config.steps >= 0 {
        config.learning_rate_schedule_steps = config.steps;
        config.resolved.derive("learning_rate_schedule_steps", &config.steps.to_string(), "steps");
    }
}
