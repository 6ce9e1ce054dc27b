//! `mt-eval`: the loss of a checkpoint on held-out data, or its logits for given tokens.

mod cli;
mod error;
mod logits;

use std::io::Write;

use mt_config::Config;
use mt_model::{Model, device};
use serde_json::json;

pub use cli::EvalCli;
pub use error::EvalError;
pub use logits::write_logits;

use crate::collective::Solo;
use crate::decode;
use crate::metrics::Evaluation;
use crate::run::evaluate::Evaluator;

/// The model that `config` describes, with the parameters that decoding would take: of the run's newest checkpoint, else of
/// `load_full_state_path` or `load_parameters_path`.
///
/// # Errors
/// [`EvalError`]: there is no such device, or there are no such parameters.
pub fn model(config: &Config) -> Result<Model, EvalError> {
    let device = device::choose(config.hardware, 0)?;
    eprintln!("{}", device.reason);
    Ok(Model::with_params(config.model(), decode::params(config, &device.device)?))
}

/// The loss of `model` over the evaluation data, `eval_steps` batches or all.
///
/// # Errors
/// [`EvalError`]: the data can't be read, or there is none.
pub fn evaluate(config: &Config, model: &Model) -> Result<Evaluation, EvalError> {
    let evaluation = Evaluator::always(config).map_err(EvalError::Data)?.run(model, &Solo)?;
    if evaluation.total_weights == 0.0 {
        return Err(EvalError::NoData);
    }
    Ok(evaluation)
}

/// Writes an evaluation for people, or as one JSON object.
///
/// # Errors
/// `out` can't be written to.
pub fn report(evaluation: &Evaluation, as_json: bool, out: &mut dyn Write) -> Result<(), EvalError> {
    let (loss, tokens) = (evaluation.avg_loss(), evaluation.total_weights);
    let text = if as_json {
        json!({
            "loss": loss,
            "perplexity": loss.exp(),
            "tokens": tokens,
            "batches": evaluation.steps,
            "z_loss": evaluation.avg_z_loss(),
        })
        .to_string()
    } else {
        format!(
            "loss {loss:.6}, perplexity {:.4}, over {tokens} tokens in {} batches",
            loss.exp(),
            evaluation.steps
        )
    };
    writeln!(out, "{text}").map_err(EvalError::Output)
}
