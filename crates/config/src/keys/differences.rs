//! Where this build deliberately differs from MaxText.

/// A default that isn't MaxText's.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// The key.
    pub key: &'static str,
    /// MaxText's default, as YAML.
    pub maxtext: &'static str,
    /// Why ours is another one.
    pub why: &'static str,
}

/// All defaults that differ.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        key: "hardware",
        maxtext: "tpu",
        why: "There is no TPU here; unset takes a GPU if there is one, else the CPU.",
    },
    Difference {
        key: "logical_axis_rules",
        maxtext: "a list of 80 rules",
        why: "XLA's partitioner isn't used, so nothing reads them.",
    },
];

/// Rules that differ.
pub const RULES: &[&str] = &[
    "A key that both the model preset and your own file set, with different values, is an error unless \
     `override_model_config: true`; in MaxText the preset silently wins over the file.",
    "`remat_policy: none` keeps every activation; MaxText 0.2.5 treats it as `full`.",
    "`remat_policy` and `attention` are checked when the file is read, not when the model is built.",
    "Shapes are checked: heads that don't divide, an odd `head_dim`, a width of 0 are errors.",
    "`per_device_batch_size` below 1 trains on one row per device; a fraction above 1 is rounded down. On several ranks a \
     fraction is an error.",
    "The `dcn_*` degrees are checked on one node too, where they multiply to 1; MaxText ignores them there.",
    "`model_name: llama3.3-70b` uses the rotary embedding of the released model (`rope_type: llama3.1`).",
    "A text key takes a number or a word such as `yes` as it is written; MaxText refuses it.",
    "`hf_train_files`, `hf_eval_files` and their grain namesakes also take a list, or several patterns with commas.",
    "A derived key such as `emb_dim` in a file is ignored with a note, and a key given twice in a file keeps its last value with \
     a note; MaxText does both silently.",
    "`base_config` files rank below the model preset, and `base.yml` is built in: a file of that name is read only from beside \
     the file that names it, or from `configs/`.",
];
