//! Hugging Face's config.json and our keys, which mean the same model.

use std::path::{Path, PathBuf};

use mt_config::{DecoderBlock, ModelConfig};
use serde_json::{Map, Value, json};

use super::error::ConvertError;

/// A family of models that both sides know.
struct Family {
    block: DecoderBlock,
    /// Value of our `decoder_block`.
    name: &'static str,
    architecture: &'static str,
    model_type: &'static str,
}

const FAMILIES: [Family; 4] = [
    Family {
        block: DecoderBlock::Llama2,
        name: "llama2",
        architecture: "LlamaForCausalLM",
        model_type: "llama",
    },
    Family {
        block: DecoderBlock::Mistral,
        name: "mistral",
        architecture: "MistralForCausalLM",
        model_type: "mistral",
    },
    Family {
        block: DecoderBlock::Qwen2,
        name: "qwen2",
        architecture: "Qwen2ForCausalLM",
        model_type: "qwen2",
    },
    Family {
        block: DecoderBlock::Qwen3,
        name: "qwen3",
        architecture: "Qwen3ForCausalLM",
        model_type: "qwen3",
    },
];

/// What a config.json says beside the model, where our configuration has no say.
const NOT_OF_THE_MODEL: [&str; 4] =
    ["max_position_embeddings", "attention_dropout", "initializer_range", "use_cache"];

/// A config.json, read.
pub(super) struct HfConfig {
    path: PathBuf,
    values: Map<String, Value>,
}

impl HfConfig {
    pub fn read(path: &Path) -> Result<Self, ConvertError> {
        let failed = |reason: String| ConvertError::Read { path: path.to_path_buf(), reason };
        let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
        let values = serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
        Ok(Self { path: path.to_path_buf(), values })
    }

    /// Our keys for this model.
    pub fn keys(&self) -> Result<Vec<(&'static str, String)>, ConvertError> {
        let family = self.family()?;
        self.refuse_variants()?;
        let (heads, width) = (self.size("num_attention_heads")?, self.size("hidden_size")?);
        let head_dim = match self.values.get("head_dim") {
            None | Some(Value::Null) => width / heads.max(1),
            Some(_) => self.size("head_dim")?,
        };
        let kv_heads = match self.values.get("num_key_value_heads") {
            None | Some(Value::Null) => heads,
            Some(_) => self.size("num_key_value_heads")?,
        };
        let mut keys = vec![
            ("decoder_block", family.name.to_owned()),
            ("base_emb_dim", width.to_string()),
            ("base_mlp_dim", self.size("intermediate_size")?.to_string()),
            ("base_num_query_heads", heads.to_string()),
            ("base_num_kv_heads", kv_heads.to_string()),
            ("head_dim", head_dim.to_string()),
            ("base_num_decoder_layers", self.size("num_hidden_layers")?.to_string()),
            ("vocab_size", self.size("vocab_size")?.to_string()),
            ("mlp_activations", "[silu, linear]".to_owned()),
            ("normalization_layer_epsilon", self.number("rms_norm_eps", 1e-6)?.to_string()),
            ("logits_via_embedding", self.flag("tie_word_embeddings").to_string()),
            ("normalize_embedding_logits", "false".to_owned()),
            // Hugging Face's tied heads are what the embedding is.
            ("tied_head_in_bf16", "false".to_owned()),
            ("attention_bias", (family.block == DecoderBlock::Qwen2).to_string()),
            ("use_qk_norm", (family.block == DecoderBlock::Qwen3).to_string()),
            ("enable_dropout", "false".to_owned()),
        ];
        keys.extend(self.rope()?);
        if let Some(window) = self.window()? {
            keys.push(("attention_type", "local_sliding".to_owned()));
            keys.push(("sliding_window_size", window.to_string()));
        }
        Ok(keys)
    }

    fn family(&self) -> Result<&'static Family, ConvertError> {
        let named = |key: &str| match self.values.get(key) {
            Some(Value::Array(names)) => names.first().and_then(Value::as_str),
            value => value.and_then(Value::as_str),
        };
        let by_architecture =
            named("architectures").map(|name| FAMILIES.iter().find(|family| family.architecture == name));
        let by_type =
            || named("model_type").and_then(|name| FAMILIES.iter().find(|family| family.model_type == name));
        by_architecture.unwrap_or_else(by_type).ok_or_else(|| {
            let known: Vec<&str> = FAMILIES.iter().map(|family| family.architecture).collect();
            self.wrong("architectures", format!("one of {}", known.join(", ")))
        })
    }

    /// What these families may have and our blocks don't.
    fn refuse_variants(&self) -> Result<(), ConvertError> {
        let is =
            |key: &str, values: &[Value]| self.values.get(key).is_none_or(|value| values.contains(value));
        if !is("hidden_act", &[json!("silu")]) {
            return Err(self.wrong("hidden_act", "silu"));
        }
        if !is("mlp_bias", &[json!(false), Value::Null]) {
            return Err(self.wrong("mlp_bias", "false"));
        }
        if !is("attention_bias", &[json!(false), Value::Null]) {
            return Err(self.wrong("attention_bias", "false (Qwen2 has its own biases)"));
        }
        Ok(())
    }

    /// Older files have `rope_theta` and `rope_scaling`, newer ones both in `rope_parameters`.
    fn rope(&self) -> Result<Vec<(&'static str, String)>, ConvertError> {
        let object = |key: &'static str| Some((key, self.values.get(key)?.as_object()?));
        let scaling = object("rope_parameters").or_else(|| object("rope_scaling"));
        let inner = |key: &str| scaling.and_then(|(_, values)| values.get(key));
        let theta = match inner("rope_theta").or_else(|| self.values.get("rope_theta")) {
            None | Some(Value::Null) => 10_000.0,
            Some(value) => value.as_f64().ok_or_else(|| self.wrong("rope_theta", "a number"))?,
        };
        if theta.fract() != 0.0 || theta < 1.0 {
            return Err(self.wrong("rope_theta", "a whole number"));
        }
        let mut keys = vec![("rope_max_timescale", format!("{theta:.0}"))];
        let name = scaling.map_or("rope_scaling", |(name, _)| name);
        let kind = inner("rope_type").or_else(|| inner("type")).and_then(Value::as_str).unwrap_or("default");
        match kind {
            "default" => keys.push(("rope_type", "default".to_owned())),
            "linear" => {
                let factor = inner("factor").and_then(Value::as_f64);
                let factor = factor.ok_or_else(|| self.wrong(&format!("{name}.factor"), "a number"))?;
                keys.push(("rope_type", "default".to_owned()));
                keys.push(("rope_linear_scaling_factor", factor.to_string()));
            }
            "llama3" => {
                // MaxText's llama3.1 embedding has these numbers built in.
                for (key, expected) in [
                    ("factor", 8.0),
                    ("low_freq_factor", 1.0),
                    ("high_freq_factor", 4.0),
                    ("original_max_position_embeddings", 8192.0),
                ] {
                    if inner(key).and_then(Value::as_f64) != Some(expected) {
                        let expected = format!("{expected}, as rope_type: llama3.1 has it built in");
                        return Err(self.wrong(&format!("{name}.{key}"), expected));
                    }
                }
                keys.push(("rope_type", "llama3.1".to_owned()));
                keys.push(("rope_use_scale", "true".to_owned()));
            }
            _ => return Err(self.wrong(&format!("{name}.rope_type"), "default, linear or llama3")),
        }
        Ok(keys)
    }

    /// The window that every layer has, if any.
    fn window(&self) -> Result<Option<usize>, ConvertError> {
        if matches!(self.values.get("sliding_window"), None | Some(Value::Null)) {
            return Ok(None);
        }
        if self.values.get("use_sliding_window") == Some(&json!(false)) {
            return Ok(None);
        }
        // Qwen lets the first layers see everything: all of them, or none.
        let layers = self.size("num_hidden_layers")?;
        match self.values.get("max_window_layers").and_then(Value::as_u64) {
            Some(full) if full >= layers as u64 => Ok(None),
            Some(full) if full > 0 => Err(self.wrong("max_window_layers", "0: one window for all layers")),
            _ => Ok(Some(self.size("sliding_window")?)),
        }
    }

    fn size(&self, key: &str) -> Result<usize, ConvertError> {
        let size = self.values.get(key).and_then(Value::as_u64).filter(|size| (1..1 << 32).contains(size));
        Ok(size.ok_or_else(|| self.wrong(key, "a whole number above 0"))? as usize)
    }

    fn number(&self, key: &str, default: f64) -> Result<f64, ConvertError> {
        match self.values.get(key) {
            None => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| self.wrong(key, "a number")),
        }
    }

    fn flag(&self, key: &str) -> bool {
        self.values.get(key) == Some(&json!(true))
    }

    fn wrong(&self, key: &str, expected: impl Into<String>) -> ConvertError {
        let found = key
            .split('.')
            .try_fold(&Value::Object(self.values.clone()), |value, part| value.get(part))
            .cloned();
        ConvertError::Key {
            path: self.path.clone(),
            key: key.to_owned(),
            found: found.map_or("missing".to_owned(), |value| value.to_string()),
            expected: expected.into(),
        }
    }

    /// This model's config.json with `like`'s values for what isn't the model's: token ids, longest text and so on.
    pub fn merged_into(self, like: Map<String, Value>) -> Map<String, Value> {
        let mut merged = like;
        for key in ["rope_scaling", "rope_parameters", "dtype", "quantization_config"] {
            merged.remove(key);
        }
        for (key, value) in self.values {
            if !NOT_OF_THE_MODEL.contains(&key.as_str()) || !merged.contains_key(&key) {
                merged.insert(key, value);
            }
        }
        merged
    }

    /// All values.
    pub fn into_values(self) -> Map<String, Value> {
        self.values
    }

    /// The config.json of a model of ours, whose tensors have the element type `dtype`.
    pub fn of_model(config: &ModelConfig, longest: usize, dtype: &str) -> Result<Self, ConvertError> {
        let family = FAMILIES
            .iter()
            .find(|family| family.block == config.decoder_block)
            .expect("there is a family for every block");
        representable(config, family)?;
        let mut values = json!({
            "architectures": [family.architecture],
            "model_type": family.model_type,
            "hidden_size": config.emb_dim,
            "intermediate_size": config.mlp_dim,
            "num_attention_heads": config.num_query_heads,
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "num_hidden_layers": config.num_decoder_layers,
            "vocab_size": config.vocab_size,
            "hidden_act": "silu",
            "rms_norm_eps": config.normalization_layer_epsilon,
            "rope_theta": config.rope.max_timescale,
            "tie_word_embeddings": config.logits_via_embedding,
            "max_position_embeddings": longest,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "use_cache": true,
            "torch_dtype": dtype,
            "sliding_window": config.sliding_window_size,
        });
        if let Some(factor) = Some(config.rope.linear_scaling_factor).filter(|factor| *factor != 1.0) {
            values["rope_scaling"] = json!({ "rope_type": "linear", "factor": factor });
        }
        if config.rope.llama31_scaling {
            values["rope_scaling"] = json!({
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            });
        }
        if matches!(family.block, DecoderBlock::Qwen2 | DecoderBlock::Qwen3) {
            values["use_sliding_window"] = json!(config.sliding_window_size.is_some());
            values["max_window_layers"] =
                json!(if config.sliding_window_size.is_some() { 0 } else { config.num_decoder_layers });
        }
        if family.block == DecoderBlock::Llama2 {
            values.as_object_mut().map(|values| values.remove("sliding_window"));
            values["mlp_bias"] = json!(false);
        }
        if matches!(family.block, DecoderBlock::Llama2 | DecoderBlock::Qwen3) {
            values["attention_bias"] = json!(false);
        }
        let Value::Object(values) = values else { unreachable!("built as an object") };
        Ok(Self { path: PathBuf::from("config.json"), values })
    }
}

/// Refuses what the family can't say.
fn representable(config: &ModelConfig, family: &Family) -> Result<(), ConvertError> {
    let qwen2 = family.block == DecoderBlock::Qwen2;
    let reasons = [
        (config.mlp_activation != mt_config::Activation::Silu, "its MLP isn't gated by silu"),
        (config.attn_logits_soft_cap.is_some(), "attn_logits_soft_cap"),
        (config.final_logits_soft_cap.is_some(), "final_logits_soft_cap"),
        (
            config.logits_via_embedding && config.normalize_embedding_logits,
            "normalize_embedding_logits scales its logits",
        ),
        (config.attention_bias != qwen2, "attention_bias is Qwen2's, and only Qwen2's"),
        (
            config.use_qk_norm != (family.block == DecoderBlock::Qwen3),
            "use_qk_norm is Qwen3's, and only Qwen3's",
        ),
        (config.sliding_window_size.is_some() && family.block == DecoderBlock::Llama2, "a sliding window"),
        (config.rope.min_timescale != 1.0, "rope_min_timescale isn't 1"),
    ];
    match reasons.into_iter().find(|(applies, _)| *applies) {
        None => Ok(()),
        Some((_, reason)) => {
            Err(ConvertError::NotOfFamily { family: family.architecture, reason: reason.to_owned() })
        }
    }
}
