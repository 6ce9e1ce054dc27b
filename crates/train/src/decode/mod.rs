//! `mt-decode`: text from a checkpoint.
//!
//! Prompts are read at once and continued token by token; the text streams as it comes. What is continued how comes from
//! the configuration that trained the model: `prompt`, `decode_sampling_*`, `max_prefill_predict_length`, `max_target_length`,
//! `quantize_kvcache`, `quantization`.

mod cli;
mod error;
mod generate;
mod load;
mod prompts;
mod quantized;
mod text;

use std::io::Write;

use mt_config::{Config, SamplingStrategy};
use mt_model::decode::{Decoder, Sampler, Storage, Strategy};
use mt_model::device;

pub use cli::DecodeCli;
pub use error::DecodeError;
pub use generate::{Request, Timing, generate};
pub(crate) use load::params;
pub use text::TextStream;

use crate::memory::human;
use prompts::Prompt;

/// Decodes as `config` says and writes the text to `out`, the rest to stderr. `prompts` replace the `prompt` key when there
/// are any: one streams, several are written one after the other when all are done.
///
/// # Errors
/// [`DecodeError`]: the process is expected to exit with code 1.
pub fn run(config: &Config, prompts: &[String], out: &mut dyn Write) -> Result<(), DecodeError> {
    let new_tokens = config
        .max_target_length
        .checked_sub(config.max_prefill_predict_length)
        .filter(|&room| room > 0 && config.max_prefill_predict_length > 0)
        .ok_or(DecodeError::NoRoom {
            prefill: config.max_prefill_predict_length,
            target: config.max_target_length,
        })?;
    let tokenizer = mt_data::tokenizer_of(config)?;
    let own = std::slice::from_ref(&config.prompt);
    let texts = if prompts.is_empty() { own } else { prompts };
    let prompts = texts.iter().enumerate().map(|(i, text)| Prompt::new(config, tokenizer.as_ref(), i, text));
    let prompts = prompts.collect::<Result<Vec<_>, _>>()?;

    for note in config.notes() {
        eprintln!("{note}");
    }
    let device = device::choose(config.hardware, 0)?;
    eprintln!("{}", device.reason);
    let decoder = match config.checkpoint_is_quantized {
        true => quantized::load(config, &device.device)?,
        false => Decoder::new(config.model(), params(config, &device.device)?),
    };
    if !config.save_quantized_params_path.is_empty() {
        quantized::save(config, &decoder)?;
        eprintln!("quantized weights are in {}", config.save_quantized_params_path);
    }
    eprintln!("weights: {}", human(decoder.weight_bytes() as u64));

    let mut streams: Vec<TextStream> = prompts.iter().map(|prompt| prompt.stream()).collect();
    let mut written = vec![String::new(); prompts.len()];
    let streams_now = prompts.len() == 1;
    if streams_now {
        write(out, texts[0].as_str())?;
    }
    let request = Request {
        prompts: prompts.iter().map(|prompt| prompt.ids.clone()).collect(),
        new_tokens,
        eos: tokenizer.eos_id(),
    };
    let timing = generate(&decoder, storage(config, &decoder), &sampler(config), &request, |i, token| {
        let text = streams[i].push(tokenizer.as_ref(), token);
        if streams_now {
            return write(out, &text);
        }
        written[i].push_str(&text);
        Ok(())
    })?;
    for (i, stream) in streams.iter_mut().enumerate() {
        let rest = stream.finish(tokenizer.as_ref());
        match streams_now {
            true => write(out, &(rest + "\n"))?,
            false => write(out, &format!("[{i}] {}{}{rest}\n", texts[i], written[i]))?,
        }
    }
    eprintln!("{timing}");
    Ok(())
}

fn write(out: &mut dyn Write, text: &str) -> Result<(), DecodeError> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(DecodeError::Output)
}

/// What the cache holds (`quantize_kvcache`, `kv_quant_axis`).
fn storage(config: &Config, decoder: &Decoder) -> Storage {
    match config.quantize_kvcache {
        true => Storage::int8(config.kv_quant_axis),
        false => decoder.float_storage(),
    }
}

fn sampler(config: &Config) -> Sampler {
    let (k, p) = (config.decode_sampling_top_k, config.decode_sampling_nucleus_p);
    let strategy = match config.decode_sampling_strategy {
        SamplingStrategy::Greedy => Strategy::Greedy,
        SamplingStrategy::Weighted => Strategy::Weighted,
        SamplingStrategy::Nucleus => Strategy::Nucleus { p },
        SamplingStrategy::Topk => Strategy::TopK { k },
        SamplingStrategy::Composite => Strategy::Composite { k, p },
    };
    Sampler::new(strategy, config.decode_sampling_temperature, config.decode_sampling_seed)
}
