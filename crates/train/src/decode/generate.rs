//! The loop: prefill, then a token at a time, until every sequence ends.

use std::fmt;
use std::time::{Duration, Instant};

use burn::tensor::{DType, Tensor};
use mt_model::decode::{Decoder, Sampler, Storage};

use super::DecodeError;
use crate::memory::human;

/// What to continue, and how far.
#[derive(Debug, Clone)]
pub struct Request {
    /// Token ids, at least one each.
    pub prompts: Vec<Vec<i32>>,
    /// Most tokens to add to each, at least one.
    pub new_tokens: usize,
    /// Ends a sequence; isn't handed out.
    pub eos: Option<u32>,
}

/// How long it took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timing {
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// Time for them, the first new token of each sequence included.
    pub prefill: Duration,
    /// Tokens that were fed one at a time.
    pub decoded_tokens: usize,
    /// Time for these.
    pub decode: Duration,
    /// Memory of the cache.
    pub cache_bytes: usize,
}

/// Continues the prompts; hands out the index of a prompt and its next token as they come.
///
/// # Errors
/// A prompt that the model can't read, and what `on_token` returns.
pub fn generate(
    decoder: &Decoder,
    storage: Storage,
    sampler: &Sampler,
    request: &Request,
    mut on_token: impl FnMut(usize, u32) -> Result<(), DecodeError>,
) -> Result<Timing, DecodeError> {
    let mut timing =
        Timing { prompt_tokens: request.prompts.iter().map(Vec::len).sum(), ..Timing::default() };
    let longest = request.prompts.iter().map(Vec::len).max().unwrap_or_default();
    let clock = Instant::now();
    let (mut session, logits) = decoder.prefill(&request.prompts, longest + request.new_tokens, storage)?;
    let mut growing: Vec<usize> = (0..request.prompts.len()).collect();
    let mut next = sample(sampler, &logits, &growing, session.lengths());
    timing.prefill = clock.elapsed();
    timing.cache_bytes = session.cache_bytes();

    let clock = Instant::now();
    for left in (0..request.new_tokens).rev() {
        let mut fed = Vec::with_capacity(next.len());
        for (&sequence, token) in growing.iter().zip(next) {
            if request.eos != Some(token) {
                on_token(sequence, token)?;
                fed.push((sequence, token.cast_signed()));
            }
        }
        if fed.is_empty() || left == 0 {
            break;
        }
        let logits = session.step(&fed)?;
        timing.decoded_tokens += fed.len();
        growing = fed.into_iter().map(|(sequence, _)| sequence).collect();
        next = sample(sampler, &logits, &growing, session.lengths());
    }
    timing.decode = clock.elapsed();
    Ok(timing)
}

/// The next token of each sequence, by the rows of `logits`.
fn sample(sampler: &Sampler, logits: &Tensor<2>, sequences: &[usize], lengths: &[usize]) -> Vec<u32> {
    let vocab = logits.dims()[1];
    let logits: Vec<f32> = logits.clone().cast(DType::F32).to_data().iter::<f32>().collect();
    let draw =
        |(&sequence, logits): (&usize, &[f32])| sampler.sample(logits, sequence, lengths[sequence]) as u32;
    sequences.iter().zip(logits.chunks_exact(vocab)).map(draw).collect()
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let speed = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
        write!(
            f,
            "prefill: {} tokens in {:.3} s, {:.1} tokens/s; decode: {} tokens in {:.3} s, {:.1} tokens/s; cache: {}",
            self.prompt_tokens,
            self.prefill.as_secs_f64(),
            speed(self.prompt_tokens, self.prefill),
            self.decoded_tokens,
            self.decode.as_secs_f64(),
            speed(self.decoded_tokens, self.decode),
            human(self.cache_bytes as u64)
        )
    }
}
