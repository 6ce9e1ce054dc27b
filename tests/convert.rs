//! mt-convert and mt-eval: models of Hugging Face's shape in and out, bit for bit, through the real binaries.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Bench, Run};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};

const VOCAB: usize = 300;

fn convert(arguments: &[&str]) -> Run {
    Run::of(Command::new(env!("CARGO_BIN_EXE_mt-convert")).args(arguments).output().unwrap())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// config.json of a tiny model.
fn config(kind: &str, head_dim: usize, tied: bool) -> Value {
    let (architecture, model_type) = match kind {
        "mistral" => ("MistralForCausalLM", "mistral"),
        "qwen2" => ("Qwen2ForCausalLM", "qwen2"),
        "qwen3" => ("Qwen3ForCausalLM", "qwen3"),
        _ => ("LlamaForCausalLM", "llama"),
    };
    let mut config = json!({
        "architectures": [architecture], "model_type": model_type, "hidden_act": "silu",
        "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": head_dim, "num_hidden_layers": 3, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": tied, "max_position_embeddings": 512, "bos_token_id": 7,
    });
    if kind == "llama3.1" {
        config["rope_scaling"] = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        });
    }
    if kind == "mistral" {
        config["sliding_window"] = json!(5);
    }
    config
}

/// Names and shapes of the tensors of such a model.
fn tensors(config: &Value) -> Vec<(String, Vec<usize>)> {
    let size = |key: &str| config[key].as_u64().unwrap() as usize;
    let (e, m, d) = (size("hidden_size"), size("intermediate_size"), size("head_dim"));
    let (q, kv) = (size("num_attention_heads") * d, size("num_key_value_heads") * d);
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![VOCAB, e])];
    for i in 0..size("num_hidden_layers") {
        let mut layer = vec![
            ("input_layernorm.weight", vec![e]),
            ("self_attn.q_proj.weight", vec![q, e]),
            ("self_attn.k_proj.weight", vec![kv, e]),
            ("self_attn.v_proj.weight", vec![kv, e]),
            ("self_attn.o_proj.weight", vec![e, q]),
            ("post_attention_layernorm.weight", vec![e]),
            ("mlp.gate_proj.weight", vec![m, e]),
            ("mlp.up_proj.weight", vec![m, e]),
            ("mlp.down_proj.weight", vec![e, m]),
        ];
        match config["model_type"].as_str().unwrap() {
            "qwen2" => layer.extend([
                ("self_attn.q_proj.bias", vec![q]),
                ("self_attn.k_proj.bias", vec![kv]),
                ("self_attn.v_proj.bias", vec![kv]),
            ]),
            "qwen3" => {
                layer.extend([("self_attn.q_norm.weight", vec![d]), ("self_attn.k_norm.weight", vec![d])]);
            }
            _ => {}
        }
        tensors.extend(layer.into_iter().map(|(name, shape)| (format!("model.layers.{i}.{name}"), shape)));
    }
    tensors.push(("model.norm.weight".to_owned(), vec![e]));
    if config["tie_word_embeddings"] == json!(false) {
        tensors.push(("lm_head.weight".to_owned(), vec![VOCAB, e]));
    }
    tensors
}

/// Numbers without a pattern, most of them with all bits of their mantissa.
fn bytes(seed: usize, len: usize, dtype: Dtype) -> Vec<u8> {
    let number = |i: usize| {
        let mixed = (i as u32 ^ (seed as u32) << 20)
            .wrapping_mul(2_654_435_761)
            .rotate_left(15)
            .wrapping_mul(2_246_822_519);
        0.3 * ((mixed >> 8) as f32 / (1 << 23) as f32 - 1.0)
    };
    let encode = |x: f32| match dtype {
        Dtype::BF16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
        Dtype::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    };
    (0..len).flat_map(|i| encode(number(i))).collect()
}

/// Writes a model as Hugging Face would, over two files.
fn write_model(folder: &Path, config: &Value, dtype: Dtype) -> BTreeMap<String, Vec<u8>> {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let width = dtype.bitsize() / 8;
    let all: Vec<(String, Vec<usize>, Vec<u8>)> = tensors(config)
        .into_iter()
        .enumerate()
        .map(|(i, (name, shape))| {
            let bytes = bytes(i, shape.iter().product(), dtype);
            assert_eq!(bytes.len(), width * shape.iter().product::<usize>());
            (name, shape, bytes)
        })
        .collect();
    let mut map = serde_json::Map::new();
    for (i, shard) in all.chunks(all.len() / 2 + 1).enumerate() {
        let file = format!("model-0000{}-of-00002.safetensors", i + 1);
        let views = shard.iter().map(|(name, shape, bytes)| {
            map.insert(name.clone(), json!(file));
            (name.as_str(), TensorView::new(dtype, shape.clone(), bytes).unwrap())
        });
        let views: Vec<_> = views.collect();
        serialize_to_file(views, None, &folder.join(&file)).unwrap();
    }
    std::fs::write(folder.join("model.safetensors.index.json"), json!({ "weight_map": map }).to_string())
        .unwrap();
    all.into_iter().map(|(name, _, bytes)| (name, bytes)).collect()
}

fn read_model(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = std::fs::read(folder.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    tensors.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

#[test]
fn every_family_comes_back_bit_for_bit() {
    let cases = [
        ("llama", 8, false, Dtype::F32, "scan_layers=true"),
        ("llama", 16, true, Dtype::BF16, "scan_layers=false"),
        ("llama3.1", 8, false, Dtype::BF16, "param_scan_axis=0"),
        ("llama3.1", 12, false, Dtype::F16, "scan_layers=true"),
        ("mistral", 16, false, Dtype::F32, "run_name=a #b: 'c'"),
        ("mistral", 64, false, Dtype::F16, "scan_layers=false"),
        ("qwen2", 8, true, Dtype::BF16, "scan_layers=true"),
        ("qwen3", 32, true, Dtype::F32, "param_scan_axis=0"),
    ];
    for (kind, head_dim, tied, dtype, layout) in cases {
        let folder = Folder::new();
        let [theirs, ours, back] = ["theirs", "ours", "back"].map(|name| folder.at(name));
        let config = config(kind, head_dim, tied);
        let expected = write_model(&theirs, &config, dtype);
        std::fs::write(theirs.join("tokenizer.json"), "{}").unwrap();
        convert(&["from-hf", text(&theirs), text(&ours), layout]).expect(0);
        convert(&["to-hf", text(&ours), text(&back), "--like", text(&theirs)]).expect(0);
        assert!(read_model(&back) == expected, "{kind} {head_dim} {dtype:?} {layout}");
        assert!(back.join("tokenizer.json").is_file());

        let written: Value =
            serde_json::from_slice(&std::fs::read(back.join("config.json")).unwrap()).unwrap();
        for (key, value) in config.as_object().unwrap() {
            assert_eq!(written[key], *value, "{kind}: {key}");
        }
    }
}

#[test]
fn logits_are_those_of_transformers() {
    let reference: Value = serde_json::from_str(include_str!("reference/huggingface_logits.json")).unwrap();
    let columns: Vec<usize> = serde_json::from_value(reference["columns"].clone()).unwrap();
    for (kind, head_dim, tied) in [
        ("llama", 8, false),
        ("llama3.1", 16, false),
        ("mistral", 16, false),
        ("qwen2", 8, true),
        ("qwen3", 32, true),
    ] {
        let folder = Folder::new();
        let [theirs, ours, tokens, logits] =
            ["theirs", "ours", "tokens", "logits"].map(|name| folder.at(name));
        write_model(&theirs, &config(kind, head_dim, tied), Dtype::F32);
        std::fs::write(&tokens, reference["tokens"].to_string()).unwrap();
        convert(&["from-hf", text(&theirs), text(&ours), "dtype=float32", "max_target_length=16"]).expect(0);
        let eval = Command::new(env!("CARGO_BIN_EXE_mt-eval"))
            .args([
                "--config",
                text(&ours.join("config.yml")),
                "--tokens",
                text(&tokens),
                "--logits",
                text(&logits),
            ])
            .args([
                "hardware=cpu",
                "run_name=logits",
                &format!("base_output_directory={}", folder.at("out").display()),
            ])
            .output()
            .unwrap();
        Run::of(eval).expect(0);
        let file = std::fs::read(&logits).unwrap();
        let file = SafeTensors::deserialize(&file).unwrap();
        let found: Vec<f32> = file
            .tensor("logits")
            .unwrap()
            .data()
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        let found =
            found.chunks_exact(VOCAB).flat_map(|row| columns.iter().map(|&column| f64::from(row[column])));
        let expected: Vec<f64> = serde_json::from_value(reference[kind].clone()).unwrap();
        let found: Vec<f64> = found.collect();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-4, "{kind}: {found}, transformers has {expected}");
        }
    }
}

#[test]
fn a_converted_model_trains_on_and_is_published() {
    let (folder, bench) =
        (Folder::new(), Bench::new().on_text().with("steps", "2").with("learning_rate", "1e-4"));
    let [theirs, ours, published] = ["theirs", "ours", "published"].map(|name| folder.at(name));
    write_model(&theirs, &config("llama3.1", 16, false), Dtype::BF16);
    convert(&["from-hf", text(&theirs), text(&ours)]).expect(0);

    // Its configuration, with the data and the lengths of the bench.
    let own = std::fs::read_to_string(ours.join("config.yml")).unwrap();
    let keys: Vec<String> = own
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.replacen(": ", "=", 1).replace('\'', ""))
        .collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let run = bench.run(&keys).expect(0);
    assert!(run.stderr.contains(text(&ours)), "{}", run.stderr);
    let losses = run.losses();
    assert_eq!(losses.len(), 2);

    convert(&["to-hf", text(&bench.output("")), text(&published), "--dtype", "bfloat16"]).expect(0);
    assert_eq!(read_model(&published).len(), tensors(&config("llama3.1", 16, false)).len());

    // What was published is evaluated as what was trained.
    let again = folder.at("again");
    convert(&["from-hf", text(&published), text(&again)]).expect(0);
    let files =
        ["hf_train_files", "hf_eval_files"].map(|key| format!("{key}={}", bench.path("*.txt").display()));
    let eval = Command::new(env!("CARGO_BIN_EXE_mt-eval"))
        .args([
            "--json",
            "--config",
            text(&again.join("config.yml")),
            "hardware=cpu",
            "dataset_type=hf",
            "hf_path=text",
        ])
        .args([
            &files[0],
            &files[1],
            "tokenizer_type=byte",
            "max_target_length=32",
            "per_device_batch_size=2",
            "eval_steps=20",
        ])
        .args(["run_name=again", &format!("base_output_directory={}", folder.at("out").display())])
        .output()
        .unwrap();
    let eval = Run::of(eval).expect(0);
    let figures: Value = serde_json::from_str(eval.stdout.trim()).unwrap();
    let loss = figures["loss"].as_f64().unwrap();
    assert!((loss - losses[1].1).abs() < 0.5, "{figures} after {losses:?}");
    assert!((figures["perplexity"].as_f64().unwrap() - loss.exp()).abs() < 1e-6 * loss.exp());
    assert_eq!(figures["batches"], json!(20));
}

#[test]
fn what_cannot_be_converted_is_named_and_nothing_is_written() {
    let folder = Folder::new();
    let refused = |name: &str, expected: &[&str], spoil: &dyn Fn(&Path)| {
        let (theirs, ours) = (folder.at(name), folder.at("ours"));
        write_model(&theirs, &config("llama", 8, false), Dtype::BF16);
        spoil(&theirs);
        let run = convert(&["from-hf", text(&theirs), text(&ours)]).expect(1);
        for part in expected {
            assert!(run.stderr.contains(part), "{name}: `{part}` isn't in {}", run.stderr);
        }
        let left: Vec<_> =
            std::fs::read_dir(folder.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|file| !file.to_str().unwrap().starts_with("ours")), "{name}: {left:?}");
    };
    let set = |key: &'static str, value: Value| {
        move |folder: &Path| {
            let mut config = config("llama", 8, false);
            config[key] = value.clone();
            std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        }
    };
    let first = "model-00001-of-00002.safetensors";
    refused(
        "architecture",
        &["GPT2LMHeadModel", "LlamaForCausalLM"],
        &set("architectures", json!(["GPT2LMHeadModel"])),
    );
    refused("activation", &["hidden_act", "gelu", "silu"], &set("hidden_act", json!("gelu")));
    refused("size", &["hidden_size", "-3"], &set("hidden_size", json!(-3)));
    refused("shape", &["self_attn", "shape is", "config.json"], &set("num_attention_heads", json!(8)));
    refused("rope", &["rope_type", "yarn", "llama3"], &set("rope_scaling", json!({ "rope_type": "yarn" })));
    refused("layers", &["model.layers.3", "isn't there"], &set("num_hidden_layers", json!(4)));
    refused("fewer", &["model.layers.2", "no such parameter"], &set("num_hidden_layers", json!(2)));
    refused("json", &["config.json", "line 1"], &|folder| {
        std::fs::write(folder.join("config.json"), "{").unwrap()
    });
    refused("shard", &[first], &|folder| std::fs::remove_file(folder.join(first)).unwrap());
    refused("cut", &[first, "damaged"], &|folder| {
        let bytes = std::fs::read(folder.join(first)).unwrap();
        std::fs::write(folder.join(first), &bytes[..bytes.len() - 1]).unwrap();
    });
    refused("header", &[first, "damaged"], &|folder| {
        let mut bytes = std::fs::read(folder.join(first)).unwrap();
        bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        std::fs::write(folder.join(first), bytes).unwrap();
    });

    // Too large for the type that is asked for.
    let (large, ours, half) = (folder.at("large"), folder.at("large-ours"), folder.at("half"));
    let mut model = config("llama", 8, true);
    model["num_hidden_layers"] = json!(1);
    write_model(&large, &model, Dtype::F32);
    let shard = large.join("model-00001-of-00002.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&1e6_f32.to_le_bytes());
    std::fs::write(&shard, bytes).unwrap();
    convert(&["from-hf", text(&large), text(&ours)]).expect(0);
    let run = convert(&["to-hf", text(&ours), text(&half), "--dtype", "float16"]).expect(1);
    assert!(run.stderr.contains("beyond float16") && !half.exists(), "{}", run.stderr);

    // A target that exists is left alone.
    let (theirs, ours) = (folder.at("shape"), folder.at("there"));
    std::fs::create_dir(&ours).unwrap();
    write_model(&theirs, &config("llama", 8, false), Dtype::BF16);
    assert!(convert(&["from-hf", text(&theirs), text(&ours)]).expect(1).stderr.contains("is there already"));
    assert_eq!(std::fs::read_dir(&ours).unwrap().count(), 0);
}
