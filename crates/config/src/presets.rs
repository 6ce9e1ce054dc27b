//! Model shapes and Primus presets inside the binary, so that an installed one works anywhere. The files under
//! `configs/` of this repository are their source.

use std::path::Path;

use crate::error::Problem;
use crate::files::{Reader, Source};
use crate::keys;
use crate::layers::{Layer, Rank};
use crate::node::Node;

macro_rules! embed {
    ($($path:literal),* $(,)?) => {
        &[ $( (concat!("configs/", $path), include_str!(concat!("../../../configs/", $path))), )* ]
    };
}

static FILES: &[(&str, &str)] = embed![
    "models/llama2-13b.yml",
    "models/llama2-70b.yml",
    "models/llama2-7b.yml",
    "models/llama3-405b.yml",
    "models/llama3-70b.yml",
    "models/llama3-8b.yml",
    "models/llama3.1-405b.yml",
    "models/llama3.1-70b.yml",
    "models/llama3.1-8b.yml",
    "models/llama3.3-70b.yml",
    "models/mistral-7b.yml",
    "models/qwen2.5-0.5b.yml",
    "models/qwen2.5-1.5b.yml",
    "models/qwen2.5-14b.yml",
    "models/qwen2.5-32b.yml",
    "models/qwen2.5-3b.yml",
    "models/qwen2.5-72b.yml",
    "models/qwen2.5-7b.yml",
    "models/qwen3-0.6b.yml",
    "models/qwen3-1.7b.yml",
    "models/qwen3-14b.yml",
    "models/qwen3-32b.yml",
    "models/qwen3-4b.yml",
    "models/qwen3-8b.yml",
    "primus/models/maxtext/llama2_70B.yaml",
    "primus/models/maxtext/llama2_7B.yaml",
    "primus/models/maxtext/llama3.1_405B.yaml",
    "primus/models/maxtext/llama3.1_70B.yaml",
    "primus/models/maxtext/llama3.1_8B.yaml",
    "primus/models/maxtext/llama3.2_1B.yaml",
    "primus/models/maxtext/llama3.3_70B.yaml",
    "primus/models/maxtext/llama3_70B.yaml",
    "primus/models/maxtext/llama3_8B.yaml",
    "primus/models/maxtext/model_base.yaml",
    "primus/models/maxtext/qwen3_14B.yaml",
    "primus/modules/maxtext/pre_trainer.yaml",
    "primus/modules/maxtext/trainer_base.yaml",
    "primus/modules/module_base.yaml",
];

/// The text of a built-in file.
pub(crate) fn built_in(path: &str) -> Option<&'static str> {
    FILES.iter().find(|(name, _)| *name == path).map(|(_, text)| *text)
}

/// The paths of all built-in files.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// The names of the model presets.
pub fn model_names() -> impl Iterator<Item = &'static str> {
    names().filter_map(|path| path.strip_prefix("configs/models/")?.strip_suffix(".yml"))
}

/// The layer of the model preset that `model_name` selects, if it selects one.
pub(crate) fn model_layer(
    reader: &mut Reader<'_>,
    config: Option<&Path>,
    model_name: &Node,
) -> Option<Layer> {
    let name = model_name.scalar_text().filter(|_| !model_name.is_none())?;
    let name = name.strip_suffix("-Instruct").unwrap_or(name);
    if name == "default" || name.is_empty() {
        return None;
    }
    let file = format!("{name}.yml");
    let beside = config.and_then(Path::parent).map(|folder| Source::Disk(folder.join("models").join(&file)));
    let candidates = [
        beside,
        Some(Source::Disk(Path::new("configs/models").join(&file))),
        Some(Source::BuiltIn(format!("configs/models/{file}"))),
    ];
    let plain = !name.contains(['/', '\\']);
    match candidates.into_iter().flatten().find(|candidate| plain && candidate.exists()) {
        Some(source) => Some(Layer { rank: Rank::Preset, entries: reader.read(&source) }),
        None => {
            let hint = match keys::nearest(name, model_names()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known are default, {}", model_names().collect::<Vec<_>>().join(", ")),
            };
            let message = format!("`model_name: {name}` has no preset (configs/models/{file}); {hint}");
            reader.problems.push(Problem::new(model_name.place.clone(), message));
            None
        }
    }
}

/// The Hub repository with the tokenizer of a model.
pub(crate) fn tokenizer(model_name: &str) -> Option<String> {
    let name = model_name.strip_suffix("-Instruct").unwrap_or(model_name);
    let qwen = |prefix, family| {
        let size = name.strip_prefix(prefix).filter(|_| model_names().any(|known| known == name))?;
        Some(format!("Qwen/{family}-{}", size.to_uppercase()))
    };
    let known = match name {
        "llama2-7b" => "meta-llama/Llama-2-7b-hf",
        "llama2-13b" => "meta-llama/Llama-2-13b-hf",
        "llama2-70b" => "meta-llama/Llama-2-70b-hf",
        "llama3-8b" => "meta-llama/Meta-Llama-3-8B",
        "llama3-70b" => "meta-llama/Meta-Llama-3-70B",
        "llama3.1-8b" => "meta-llama/Llama-3.1-8B",
        "llama3.1-70b" => "meta-llama/Llama-3.1-70B",
        "llama3.1-405b" => "meta-llama/Llama-3.1-405B",
        "llama3.3-70b" => "meta-llama/Llama-3.3-70B-Instruct",
        "mistral-7b" => "mistralai/Mistral-7B-Instruct-v0.2",
        _ => return qwen("qwen2.5-", "Qwen2.5").or_else(|| qwen("qwen3-", "Qwen3")),
    };
    Some(known.to_owned())
}
