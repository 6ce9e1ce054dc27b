//! From logits to the next token, by MaxText's `decode_sampling_*` keys.
//!
//! As there, `topk` and `nucleus` choose candidates by the logits as they are, and the temperature acts on the candidates that
//! are left:
//! ```text
//! greedy      argmax
//! weighted    from softmax(l / temperature)
//! topk        weighted, over the k largest logits
//! nucleus     weighted, over l >= c, c the logit at which the sum of softmax(l), from the largest on, reaches p
//! composite   topk, then nucleus among those
//! ```
//! Equal logits go by their ids: the smaller one first. A draw is a function of the seed, the sequence and the position alone.

use crate::random::Stream;

/// How the next token is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Strategy {
    /// The most likely one.
    Greedy,
    /// In proportion to its probability.
    Weighted,
    /// From the smallest set with total probability `p`.
    Nucleus {
        /// In (0, 1].
        p: f64,
    },
    /// From the `k` most likely.
    TopK {
        /// Above 0.
        k: usize,
    },
    /// [`TopK`](Self::TopK), then [`Nucleus`](Self::Nucleus) by the probabilities among those.
    Composite {
        /// Above 0.
        k: usize,
        /// In (0, 1].
        p: f64,
    },
}

/// Draws tokens.
#[derive(Debug, Clone)]
pub struct Sampler {
    strategy: Strategy,
    temperature: f64,
    stream: Stream,
}

impl Sampler {
    /// `temperature` above 0 divides the logits of the candidates.
    pub fn new(strategy: Strategy, temperature: f64, seed: u64) -> Self {
        Self { strategy, temperature, stream: Stream::new(seed, "decode") }
    }

    /// The token that follows on `logits: [V]`, as number `position` of a sequence. NaN is never drawn; when all are NaN,
    /// token 0 is.
    pub fn sample(&self, logits: &[f32], sequence: usize, position: usize) -> usize {
        if self.strategy == Strategy::Greedy {
            return best(logits);
        }
        let candidates = candidates(logits, self.strategy);
        let index = (sequence as u64) << 32 | position as u64;
        let [uniform, _] = self.stream.uniform_pair(index, 0);
        draw(&candidates, self.temperature, uniform)
    }
}

fn best(logits: &[f32]) -> usize {
    let better = |best: usize, i: usize| {
        if logits[i] > logits[best] || logits[best].is_nan() { i } else { best }
    };
    (0..logits.len()).reduce(better).unwrap_or(0)
}

/// Tokens that may be drawn and their logits, the most likely first.
fn candidates(logits: &[f32], strategy: Strategy) -> Vec<(usize, f64)> {
    let numbers = logits.iter().enumerate().filter(|(_, logit)| !logit.is_nan());
    let mut candidates: Vec<(usize, f64)> = numbers.map(|(i, &logit)| (i, f64::from(logit))).collect();
    candidates.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if let Strategy::TopK { k } | Strategy::Composite { k, .. } = strategy {
        candidates.truncate(k);
    }
    if let Strategy::Nucleus { p } | Strategy::Composite { p, .. } = strategy {
        let cutoff = nucleus_cutoff(&candidates, p);
        candidates.retain(|(_, logit)| *logit >= cutoff);
    }
    candidates
}

/// The logit of the candidate at which the cumulative probability reaches `p`.
fn nucleus_cutoff(candidates: &[(usize, f64)], p: f64) -> f64 {
    let probabilities = softmax(candidates, 1.0);
    let mut cumulative = 0.0;
    for ((_, logit), probability) in candidates.iter().zip(probabilities) {
        cumulative += probability;
        if cumulative >= p {
            return *logit;
        }
    }
    candidates.last().map_or(f64::NEG_INFINITY, |(_, logit)| *logit)
}

fn softmax(candidates: &[(usize, f64)], temperature: f64) -> Vec<f64> {
    let max = candidates.first().map_or(0.0, |(_, logit)| *logit);
    let weights: Vec<f64> = candidates.iter().map(|(_, logit)| ((logit - max) / temperature).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// The candidate at which the cumulative probability reaches `uniform`, in (0, 1].
fn draw(candidates: &[(usize, f64)], temperature: f64, uniform: f64) -> usize {
    let mut cumulative = 0.0;
    for ((token, _), probability) in candidates.iter().zip(softmax(candidates, temperature)) {
        cumulative += probability;
        if cumulative >= uniform {
            return *token;
        }
    }
    // Rounding may leave the sum below a uniform number of almost 1.
    candidates.last().map_or(0, |(token, _)| *token)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ln of 0.5, 0.05, 0.25, 0.15, 0.05: the ids are not in the order of the probabilities.
    fn logits() -> Vec<f32> {
        [0.5f32, 0.05, 0.25, 0.15, 0.05].map(f32::ln).to_vec()
    }

    fn allowed(strategy: Strategy) -> Vec<usize> {
        candidates(&logits(), strategy).into_iter().map(|(token, _)| token).collect()
    }

    #[test]
    fn candidates_are_those_of_the_strategy() {
        assert_eq!(allowed(Strategy::Weighted), [0, 2, 3, 1, 4]);
        assert_eq!(allowed(Strategy::TopK { k: 2 }), [0, 2]);
        assert_eq!(allowed(Strategy::TopK { k: 9 }).len(), 5);
        // The first set with at least p: 0.5, then 0.75, then 0.9, then all; ties with the last one stay.
        assert_eq!(allowed(Strategy::Nucleus { p: 0.3 }), [0]);
        assert_eq!(allowed(Strategy::Nucleus { p: 0.7 }), [0, 2]);
        assert_eq!(allowed(Strategy::Nucleus { p: 0.8 }), [0, 2, 3]);
        assert_eq!(allowed(Strategy::Nucleus { p: 0.93 }), [0, 2, 3, 1, 4]);
        assert_eq!(allowed(Strategy::Nucleus { p: 1.0 }).len(), 5);
        // Among the first three, 0.5 is 0.556 of the mass and 0.75 is 0.833.
        assert_eq!(allowed(Strategy::Composite { k: 3, p: 0.54 }), [0]);
        assert_eq!(allowed(Strategy::Composite { k: 3, p: 0.8 }), [0, 2]);
        assert_eq!(allowed(Strategy::Composite { k: 3, p: 0.85 }), [0, 2, 3]);
    }

    #[test]
    fn frequencies_follow_the_tempered_probabilities_of_the_candidates() {
        for (strategy, temperature) in [
            (Strategy::Weighted, 1.0),
            (Strategy::Weighted, 2.0),
            (Strategy::TopK { k: 3 }, 0.5),
            (Strategy::Nucleus { p: 0.8 }, 1.5),
        ] {
            let sampler = Sampler::new(strategy, temperature, 7);
            let draws = 20_000;
            let mut counts = [0usize; 5];
            (0..draws).for_each(|i| counts[sampler.sample(&logits(), i % 3, i)] += 1);
            let tempered = |token: &usize| f64::from(logits()[*token]).exp().powf(1.0 / temperature);
            let candidates = allowed(strategy);
            let total: f64 = candidates.iter().map(tempered).sum();
            for (token, count) in counts.iter().enumerate() {
                let expected = if candidates.contains(&token) { tempered(&token) / total } else { 0.0 };
                let found = *count as f64 / draws as f64;
                assert!(
                    (found - expected).abs() < 0.015,
                    "{strategy:?}: token {token}: {found}, expected {expected}"
                );
            }
        }
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        let greedy = Sampler::new(Strategy::Greedy, 1.0, 0);
        assert_eq!(greedy.sample(&[1.0, 3.0, 3.0], 0, 0), 1);
        assert_eq!(greedy.sample(&[f32::NAN, -1.0, f32::NAN], 0, 0), 1);
        assert_eq!(greedy.sample(&[f32::NAN], 0, 0), 0);
        assert_eq!(Sampler::new(Strategy::Weighted, 1.0, 0).sample(&[f32::NAN], 0, 0), 0);
    }

    #[test]
    fn draws_depend_on_seed_sequence_and_position() {
        let draws = |seed, sequence| {
            let sampler = Sampler::new(Strategy::Weighted, 1.0, seed);
            (0..50).map(|position| sampler.sample(&logits(), sequence, position)).collect::<Vec<_>>()
        };
        assert_eq!(draws(1, 0), draws(1, 0));
        assert_ne!(draws(1, 0), draws(2, 0));
        assert_ne!(draws(1, 0), draws(1, 1));
    }
}
