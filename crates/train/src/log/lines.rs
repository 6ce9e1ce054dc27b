//! The lines that other people's tools parse: MaxText's, byte for byte, then our own fields.
//!
//! Source: MaxText 0.2.5 `common/metric_logger.py`. Primus's daily report reads
//! `completed step: N ... seconds: ... TFLOP/s/device: ... Tokens/s/device: ... loss: ...`, so no field of ours
//! may stand before `loss:` or contain that text.

use std::fmt::{self, Display, Formatter};

use crate::metrics::{Evaluation, TrainStep};
use crate::run::report::StepExtras;
use crate::run::totals::Slowest;

/// One training step.
#[derive(Debug, Clone, Copy)]
pub struct StepLine<'a> {
    /// Number of the step, from 0.
    pub step: u64,
    /// MaxText's figures.
    pub figures: &'a TrainStep,
    /// Ours.
    pub extras: &'a StepExtras,
}

impl Display for StepLine<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let TrainStep { step_time_seconds: seconds, loss, lm_loss, total_weights, .. } = *self.figures;
        let per_second = |amount: f64| Fixed(amount / seconds);
        write!(f, "completed step: {}, seconds: {}", self.step, Fixed(seconds))?;
        write!(f, ", TFLOP/s/device: {}", per_second(self.figures.per_device_tflops))?;
        write!(f, ", Tokens/s/device: {}", per_second(self.figures.per_device_tokens))?;
        write!(f, ", total_weights: {total_weights:.0}, loss: {}", Fixed(loss))?;
        write!(f, ", lm_loss: {}, perplexity: {}", Fixed(lm_loss), Fixed(lm_loss.exp()))?;

        let StepExtras { data_wait, padding, slowest, .. } = *self.extras;
        write!(f, ", grad_norm: {}", Fixed(self.figures.raw_grad_norm))?;
        write!(f, ", learning_rate: {:.3e}", self.figures.current_learning_rate)?;
        write!(f, ", data_wait: {}, padding: {:.1}%", Fixed(data_wait.as_secs_f64()), 100.0 * padding)?;
        if let Some(Slowest { rank, seconds }) = slowest {
            write!(f, ", slowest_rank: {rank} ({})", Fixed(seconds))?;
        }
        Ok(())
    }
}

/// One batch of an evaluation, with the averages so far.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalStepLine {
    /// Number of the batch in this evaluation, from 0.
    pub step: u64,
    /// Wall seconds of the batch.
    pub seconds: f64,
    /// Loss per weight over the batches so far.
    pub running_loss: f64,
    /// Weights so far.
    pub running_total_weights: f64,
}

impl Display for EvalStepLine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Completed eval step: {}, seconds: {}", self.step, Fixed(self.seconds))?;
        write!(f, ", running loss={}", Fixed(self.running_loss))?;
        write!(f, ", running perplexity={}", Fixed(self.running_loss.exp()))?;
        write!(f, ", running total_weights={:.1}", self.running_total_weights)
    }
}

/// A whole evaluation.
#[derive(Debug, Clone, Copy)]
pub struct EvalLine<'a> {
    /// The train step after which it ran.
    pub step: u64,
    /// Its figures.
    pub evaluation: &'a Evaluation,
}

impl Display for EvalLine<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let loss = self.evaluation.avg_loss();
        write!(f, "Completed eval after train step {}", self.step)?;
        write!(f, ", loss={}, perplexity={}", Fixed(loss), Fixed(loss.exp()))?;
        write!(f, ", total_weights={:.1}", self.evaluation.total_weights)?;
        write!(f, ", avg_z_loss={}", Fixed(self.evaluation.avg_z_loss()))
    }
}

/// Python's `{:.3f}`: it writes `nan` where Rust writes `NaN`.
struct Fixed(f64);

impl Display for Fixed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.is_nan() { f.write_str("nan") } else { write!(f, "{:.3}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use regex::Regex;

    use super::*;

    fn step_line(loss: f64) -> String {
        let figures = TrainStep {
            loss,
            lm_loss: loss,
            total_weights: 1024.0,
            raw_grad_norm: 1.25,
            current_learning_rate: 3e-5,
            step_time_seconds: 0.8369,
            per_device_tflops: 0.022_548_578,
            per_device_tokens: 1024.0,
            ..TrainStep::default()
        };
        let extras =
            StepExtras { data_wait: Duration::from_micros(400), padding: 0.0123, ..Default::default() };
        StepLine { step: 1, figures: &figures, extras: &extras }.to_string()
    }

    #[test]
    fn starts_as_maxtext_writes_it() {
        let line = step_line(8.860_957);
        let maxtext = "completed step: 1, seconds: 0.837, TFLOP/s/device: 0.027, Tokens/s/device: 1223.563, \
                       total_weights: 1024, loss: 8.861, lm_loss: 8.861, perplexity: 7051.2";
        assert!(line.starts_with(maxtext), "{line}");
        let ours = ", grad_norm: 1.250, learning_rate: 3.000e-5, data_wait: 0.000, padding: 1.2%";
        assert!(line.ends_with(ours), "{line}");
    }

    #[test]
    fn the_slowest_of_several_ranks_comes_last() {
        let slowest = Some(Slowest { rank: 3, seconds: 0.91 });
        let extras = StepExtras { slowest, ..Default::default() };
        let line = StepLine { step: 1, figures: &TrainStep::default(), extras: &extras }.to_string();
        assert!(line.ends_with(", padding: 0.0%, slowest_rank: 3 (0.910)"), "{line}");
    }

    #[test]
    fn primus_daily_report_reads_it() {
        let report = Regex::new(
            r"completed\s+step:\s*(\d+).*?seconds:\s*([\d.]+).*?TFLOP/s/device:\s*([\d.]+).*?Tokens/s/device:\s*([\d,]+(?:\.\d+)?).*?loss:\s*([\d.]+)",
        )
        .unwrap();
        let line = step_line(8.860_957);
        let fields = report.captures(&line).unwrap();
        let fields: Vec<&str> = fields.iter().skip(1).flatten().map(|field| field.as_str()).collect();
        assert_eq!(fields, ["1", "0.837", "0.027", "1223.563", "8.861"]);
    }

    #[test]
    fn nan_is_written_as_python_writes_it() {
        let line = step_line(f64::NAN);
        assert!(line.contains(", loss: nan, lm_loss: nan, perplexity: nan, "), "{line}");
    }

    #[test]
    fn eval_lines_are_maxtexts() {
        let evaluation =
            Evaluation { steps: 2, total_loss: 6.1042 * 1744.0, total_weights: 1744.0, z_loss: 0.0 };
        let line = EvalLine { step: 10, evaluation: &evaluation }.to_string();
        let start = "Completed eval after train step 10, loss=6.104, perplexity=447.7";
        assert!(
            line.starts_with(start) && line.ends_with(", total_weights=1744.0, avg_z_loss=0.000"),
            "{line}"
        );
        let line = EvalStepLine { step: 0, seconds: 0.5, running_loss: 7.4, running_total_weights: 9.0 };
        assert_eq!(
            line.to_string(),
            "Completed eval step: 0, seconds: 0.500, running loss=7.400, running perplexity=1635.984, running total_weights=9.0"
        );
    }
}
