//! The report of `--dry-run`.

use std::fmt::Write;

use crate::keys::Config;
use crate::keys::kinds::KeyType;
use crate::plan::{MemoryPlan, Plan, Traffic};
use crate::ranks::{Degrees, counted};

impl Config {
    /// The resolved configuration (`all`: every key, else what differs from the defaults), what is worth knowing, and what
    /// the run will cost. No device is touched.
    pub fn dry_run_report(&self, all: bool) -> String {
        let plan = self.plan();
        let mut text = String::new();
        let settings = if all { self.render_all() } else { self.render_diff() };
        let title = if all { "Configuration" } else { "Configuration, where it differs from the defaults" };
        section(&mut text, title, &settings);
        let notes: Vec<String> = self.notes().iter().map(ToString::to_string).collect();
        if !notes.is_empty() {
            section(&mut text, "Worth knowing", &(notes.join("\n") + "\n"));
        }
        section(&mut text, "Model", &self.model_lines(&plan));
        section(&mut text, "Step", &self.step_lines(&plan));
        if self.num_ranks() > 1 {
            section(&mut text, "Ranks", &self.rank_lines(&plan.traffic));
        }
        section(&mut text, "Memory per device", &self.memory_lines(&plan.memory));
        text
    }

    fn model_lines(&self, plan: &Plan) -> String {
        let m = self.model();
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{} block: {} layers, width {}, MLP {}, {} query and {} key/value heads of {}, vocabulary {}",
            self.decoder_block.to_value(),
            m.num_decoder_layers,
            m.emb_dim,
            m.mlp_dim,
            m.num_query_heads,
            m.num_kv_heads,
            m.head_dim,
            m.vocab_size
        );
        let total = plan.parameters.total();
        let _ = writeln!(text, "number parameters: {:.3} billion ({})", total as f64 / 1e9, grouped(total));
        for kind in &plan.parameters.0 {
            let place = if kind.in_layers { "decoder/layers/" } else { "" };
            let _ = writeln!(text, "  {:<52} {:>18}", format!("{place}{}", kind.name), grouped(kind.count));
        }
        text
    }

    fn step_lines(&self, plan: &Plan) -> String {
        let rows = self.global_batch_size_to_train_on();
        let (flops, total) = (&plan.flops, plan.flops.total());
        let share = |part: f64| 100.0 * part / total;
        let mut text =
            format!("{rows} rows of {} = {} tokens", self.max_target_length, grouped(plan.tokens_per_step));
        if self.gradient_accumulation_steps > 1 {
            let _ = write!(text, ", in {} micro batches", self.gradient_accumulation_steps);
        }
        let _ = writeln!(
            text,
            "; {} steps = {} tokens",
            self.steps,
            grouped(plan.tokens_per_step.saturating_mul(self.steps.max(0) as u64))
        );
        let of = if self.num_ranks() > 1 { " of each device" } else { "" };
        let _ = writeln!(text, "Total TFLOPs{of}: {:.2}", total / 1e12);
        let _ = writeln!(
            text,
            "split as {:.2}% learnable weight flops and {:.2}% attention flops",
            share(flops.weights),
            share(flops.attention)
        );
        text
    }

    fn rank_lines(&self, traffic: &Traffic) -> String {
        let (ranks, Degrees { data, fsdp }) = (self.ranks(), self.mesh());
        let mut text = counted(ranks.count, ranks.per_node);
        let _ =
            writeln!(text, ": data {data} x fsdp {fsdp}, which are copies of the model and shards of each");
        let _ = writeln!(text, "{} rows of each per micro batch", self.rows_per_rank());
        let _ = writeln!(text, "\nsent by each per step");
        let weights = format!("weights over fsdp, {}", self.weight_dtype.to_value());
        for (name, bytes, what) in [
            ("all-gather, forward", traffic.gather_forward, weights.as_str()),
            ("all-gather, backward", traffic.gather_backward, weights.as_str()),
            ("reduce-scatter", traffic.reduce_scatter, "gradients over fsdp, float32"),
            ("all-reduce", traffic.all_reduce, "gradients over data, float32"),
        ] {
            let _ = writeln!(text, "{name:<22} {:>12}  {what}", size(bytes));
        }
        text
    }

    fn memory_lines(&self, memory: &MemoryPlan) -> String {
        let states = &memory.states;
        let mut text = String::new();
        let mut line = |name: &str, bytes: u64, what: String| {
            let _ = writeln!(text, "{name:<12} {:>12}  {what}", size(bytes));
        };
        line("weights", states.weights, self.weight_dtype.to_value().to_string());
        let place = if memory.offloads { ", in host memory" } else { "" };
        line("gradients", states.gradients, format!("{}{place}", self.grad_dtype.to_value()));
        line("moments", states.moments, format!("{}{place}", self.opt_type.to_value()));
        let on_host = memory.host_peak(self.remat_policy).unwrap_or(0);
        if on_host > 0 {
            let what =
                if memory.offloads { "gradients, moments, parameters under way" } else { "activations" };
            line("host memory", on_host, format!("{what}, at the peak"));
        }
        let _ = writeln!(
            text,
            "\n{:<34} {:>12} {:>12} {:>12} {:>12} {:>10}",
            "remat_policy", "kept", "on host", "working", "peak", "recomputed"
        );
        let step = self.plan().flops.total();
        for policy in &memory.policies {
            let a = &policy.activity;
            let chosen = if policy.policy == self.remat_policy { "*" } else { " " };
            let _ = writeln!(
                text,
                "{chosen} {:<32} {:>12} {:>12} {:>12} {:>12} {:>9.1}%",
                policy.policy.to_value().to_string(),
                size(a.kept),
                size(a.offloaded),
                size(a.working),
                size(memory.peak(policy.policy).unwrap_or(0)),
                100.0 * a.recomputed_flops / step
            );
        }
        text
    }
}

fn section(text: &mut String, title: &str, body: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    let _ = writeln!(text, "{title}\n{}", "-".repeat(title.chars().count()));
    text.push_str(body);
}

/// `8,030,261,248`
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the unit that suits them.
pub(super) fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b >= f64::from(1 << 30) => format!("{:.2} GiB", b / f64::from(1 << 30)),
        b if b >= f64::from(1 << 20) => format!("{:.2} MiB", b / f64::from(1 << 20)),
        b => format!("{:.2} KiB", b / 1024.0),
    }
}
