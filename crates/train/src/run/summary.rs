//! What a run comes to, and the table that says it.

use std::path::PathBuf;

use super::report::Totals;
use crate::log::table;
use crate::memory::{self, Memory};

/// Why the loop ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// All steps are done.
    Completed,
    /// The data ended first.
    OutOfData,
    /// The evaluation loss reached `target_eval_loss`.
    TargetReached {
        /// That loss.
        eval_loss: f64,
    },
    /// SIGTERM or SIGINT asked for it.
    Stopped,
}

/// Figures of a run, or of the part of it that this process did.
#[derive(Debug, Clone)]
pub struct Summary {
    /// `run_name`.
    pub run_name: String,
    /// Why it ended.
    pub end: End,
    /// The first step of this process; above 0 after a resume.
    pub first_step: u64,
    /// `steps` of the configuration.
    pub all_steps: u64,
    /// TFLOP of one step.
    pub tflops_per_step: f64,
    /// Sums over the steps of this process.
    pub totals: Totals,
    /// What was written, by name.
    pub outputs: Vec<(&'static str, PathBuf)>,
}

impl Summary {
    /// The table.
    pub fn table(&self) -> String {
        table(&format!("run {}", self.run_name), &self.rows())
    }

    /// Its rows: what, and how much.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let Totals { steps, tokens, training, losses, eval_loss } = self.totals;
        let seconds = training.as_secs_f64();
        let per_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let done = match self.first_step {
            0 => format!("{steps} of {}", self.all_steps),
            first => format!("{steps} ({first} were done before, {} in all)", self.all_steps),
        };
        let mut rows = vec![
            ("ended", self.ended()),
            ("steps", done),
            ("tokens", grouped(tokens)),
            ("training time", format!("{seconds:.1} s")),
            ("tokens/s", grouped(per_second(tokens as f64) as u64)),
            ("TFLOP/s", format!("{:.4}", per_second(self.tflops_per_step * steps as f64))),
        ];
        if let Some(memory) = Memory::now() {
            rows.push(("peak memory", memory::human(memory.peak)));
        }
        if let Some((first, last)) = losses {
            rows.push(("first loss", format!("{first:.3}")));
            rows.push(("final loss", format!("{last:.3}")));
        }
        if let Some(loss) = eval_loss {
            rows.push(("eval loss", format!("{loss:.3}")));
        }
        rows.extend(self.outputs.iter().map(|(name, path)| (*name, path.display().to_string())));
        rows
    }

    fn ended(&self) -> String {
        match &self.end {
            End::Completed => "all steps done".to_owned(),
            End::OutOfData => "the data ended before the steps did".to_owned(),
            End::TargetReached { eval_loss } => format!("target_eval_loss reached ({eval_loss:.3})"),
            End::Stopped => "asked to stop; the same command goes on from here".to_owned(),
        }
    }
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn digits_are_grouped() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(8_030_261_248), "8,030,261,248");
    }

    #[test]
    fn a_resumed_run_says_what_it_did_itself() {
        let summary = Summary {
            run_name: "tiny".into(),
            end: End::Completed,
            first_step: 11,
            all_steps: 20,
            tflops_per_step: 0.5,
            totals: Totals {
                steps: 9,
                tokens: 9216,
                training: Duration::from_secs(3),
                losses: Some((8.4, 8.2)),
                eval_loss: None,
            },
            outputs: vec![("folder", "out/tiny".into())],
        };
        let table = summary.table();
        for row in [
            "steps          9 (11 were done before, 20 in all)",
            "tokens/s       3,072",
            "TFLOP/s        1.5000",
            "folder         out/tiny",
        ] {
            assert!(table.contains(row), "{row} not in\n{table}");
        }
    }
}
