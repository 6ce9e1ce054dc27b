//! What a user should hear about once: keys without effect, and choices that mean something else here.

use crate::error::Problem;
use crate::keys::choices::*;
use crate::keys::{Config, State};
use crate::layers::{Resolved, Setting};
use crate::model::Placement;

/// Accepted keys whose value isn't the default: one note for all that share a reason.
pub(crate) fn settings_without_effect(resolved: &mut Resolved) {
    let mut by_reason: Vec<(&str, Vec<&Setting>)> = Vec::new();
    for setting in resolved.iter().filter(|setting| setting.place.is_given() && setting.is_changed()) {
        let State::Accepted(reason) = setting.spec.state else { continue };
        match by_reason.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, settings)) => settings.push(setting),
            None => by_reason.push((reason, vec![setting])),
        }
    }
    let note = |(reason, settings): (&str, Vec<&Setting>)| {
        let names: Vec<String> = settings.iter().map(|setting| format!("`{}`", setting.spec.name)).collect();
        let verb = if names.len() == 1 { "has" } else { "have" };
        Problem::new(settings[0].place.clone(), format!("{} {verb} no effect: {reason}", names.join(", ")))
    };
    let notes: Vec<Problem> = by_reason.into_iter().map(note).collect();
    resolved.notes.extend(notes);
}

/// Values that are accepted with another meaning than in MaxText.
pub(crate) fn choices(config: &mut Config) {
    let mut notes = Notes { config, found: Vec::new() };
    notes.attention();
    notes.parallelism();
    notes.offload();
    notes.remat();
    notes.data();
    let found = notes.found;
    config.resolved.notes.extend(found);
}

struct Notes<'a> {
    config: &'a Config,
    found: Vec<Problem>,
}

impl Notes<'_> {
    fn add(&mut self, key: &str, message: impl Into<String>) {
        self.found.push(Problem::new(self.config.resolved.place(key).clone(), message));
    }

    fn attention(&mut self) {
        let c = self.config;
        let cudnn = [
            (AttentionChoice::CudnnFlashTe, "cudnn_flash_te"),
            (AttentionChoice::CudnnFlashJax, "cudnn_flash_jax"),
        ];
        if let Some((_, name)) = cudnn.iter().find(|(choice, _)| *choice == c.attention) {
            self.add("attention", format!("`attention: {name}` means this build's own flash kernel"));
        }
        if c.sliding_window_size > 0 && c.attention_type == AttentionType::Global {
            self.add(
                "sliding_window_size",
                "`sliding_window_size` acts only with `attention_type: local_sliding`",
            );
        }
    }

    fn parallelism(&mut self) {
        let c = self.config;
        if c.hardware == Hardware::GpuMultiprocess {
            self.add(
                "hardware",
                "`hardware: gpu_multiprocess` means gpu: ranks are processes with a GPU each, whatever it says",
            );
        }
    }

    fn offload(&mut self) {
        let c = self.config;
        if c.optimizer_memory_host_offload && c.hardware == Hardware::Cpu {
            self.add(
                "optimizer_memory_host_offload",
                "`optimizer_memory_host_offload` has no effect: on the CPU the moments are in host memory anyway",
            );
        }
    }

    fn remat(&mut self) {
        let c = self.config;
        if c.remat_policy == RematPolicyName::None {
            self.add(
                "remat_policy",
                "`remat_policy: none` keeps every activation; MaxText 0.2.5 treats it as `full`",
            );
        }
        let kept = [
            ("query_proj", c.query_proj),
            ("key_proj", c.key_proj),
            ("value_proj", c.value_proj),
            ("kv_proj", c.kv_proj),
            ("qkv_proj", c.qkv_proj),
            ("context", c.context),
            ("out_proj", c.out_proj),
            ("mlpwi", c.mlpwi),
            ("mlpwi_0", c.mlpwi_0),
            ("mlpwi_1", c.mlpwi_1),
            ("mlpwo", c.mlpwo),
        ];
        if c.remat_policy != RematPolicyName::Custom {
            for (key, _) in kept.iter().filter(|(_, placement)| *placement != Placement::Remat) {
                self.add(key, format!("`{key}` acts only with `remat_policy: custom`"));
            }
        }
    }

    fn data(&mut self) {
        let c = self.config;
        if c.per_device_batch_size.fract() != 0.0 {
            let rows = c.rows_per_rank();
            self.add(
                "per_device_batch_size",
                format!("a fraction of a row can't be trained on: {rows} per micro batch and rank"),
            );
        }
        if c.dataset_type == DatasetType::Hf && !c.use_truncation {
            self.add("use_truncation", "`use_truncation: false` acts only with `dataset_type: grain`");
        }
    }
}
