//! Decoding with a cache against the full forward on the CPU.

use burn::tensor::{DType as BurnDType, Tensor};
use mt_config::{DType, KvQuantAxis, ModelConfig, Quantization};
use mt_model::decode::{Decoder, Session, Storage};

use crate::device::{device, is_wanted};
use crate::support::cases::{configurations, model};
use crate::support::{Packed, relative_l2, small, values};

/// Sequences of these lengths, and how much of each is its prompt.
const SEQUENCES: [(usize, usize); 3] = [(11, 4), (7, 1), (9, 8)];

/// Room for each: on the CPU a multiple of 32 wastes nothing.
const CAPACITY: usize = 32;

/// Pseudo-random tokens.
pub fn sequences(config: &ModelConfig) -> Vec<Vec<i32>> {
    let token = |s: usize, i: usize| ((s * 31 + i * 17 + i * i * 5) % config.vocab_size) as i32;
    SEQUENCES.iter().enumerate().map(|(s, &(len, _))| (0..len).map(|i| token(s, i)).collect()).collect()
}

/// The model's weights, where the tests decode.
pub fn decoder(config: &ModelConfig) -> Decoder {
    let params = model(config).params.map(|param| param.clone().to_device(&device()));
    Decoder::new(config.clone(), params)
}

/// Logits of all positions of every sequence, by the training's forward: one row per sequence.
fn full(config: &ModelConfig, sequences: &[Vec<i32>]) -> Vec<Vec<Vec<f32>>> {
    let model = model(config);
    let rows = sequences.iter().map(|tokens| {
        let mut packed = Packed::documents(&[&[tokens.len()]], tokens.len(), config.vocab_size);
        packed.inputs.clone_from(tokens);
        rows(&model.logits(&packed.on_cpu(config)))
    });
    rows.collect()
}

pub fn rows(logits: &Tensor<2>) -> Vec<Vec<f32>> {
    values(logits).chunks(logits.dims()[1]).map(<[f32]>::to_vec).collect()
}

/// Feeds the sequences: prompts at once, the rest token by token; hands every position's logits to `see`.
pub fn feed(
    decoder: &Decoder,
    storage: Storage,
    sequences: &[Vec<i32>],
    mut see: impl FnMut(usize, usize, Vec<f32>),
) -> usize {
    let prompts: Vec<Vec<i32>> =
        sequences.iter().zip(SEQUENCES).map(|(tokens, (_, prompt))| tokens[..prompt].to_vec()).collect();
    let (mut session, logits) = decoder.prefill(&prompts, CAPACITY, storage).unwrap();
    for (s, logits) in rows(&logits).into_iter().enumerate() {
        see(s, SEQUENCES[s].1 - 1, logits);
    }
    while let Some(tokens) = next(&session, sequences) {
        let logits = session.step(&tokens).unwrap();
        for ((s, _), logits) in tokens.into_iter().zip(rows(&logits)) {
            see(s, session.lengths()[s] - 1, logits);
        }
    }
    session.cache_bytes()
}

/// The next token of each sequence that has one.
fn next(session: &Session<'_>, sequences: &[Vec<i32>]) -> Option<Vec<(usize, i32)>> {
    let lengths = session.lengths().iter().enumerate();
    let tokens: Vec<_> = lengths.filter_map(|(s, &len)| Some((s, *sequences[s].get(len)?))).collect();
    (!tokens.is_empty()).then_some(tokens)
}

#[test]
fn every_position_is_the_full_forwards() {
    for (name, config) in configurations().into_iter().filter(|(name, _)| is_wanted(name)) {
        let sequences = sequences(&config);
        let expected = full(&config, &sequences);
        let decoder = decoder(&config);
        let mut seen = 0;
        feed(&decoder, decoder.float_storage(), &sequences, |s, t, logits| {
            for (v, (found, expected)) in logits.iter().zip(&expected[s][t]).enumerate() {
                let bound = 1e-4 * expected.abs().max(1.0);
                assert!(
                    (found - expected).abs() < bound,
                    "{name}: sequence {s}, position {t}, token {v}: {found}, expected {expected}"
                );
            }
            seen += 1;
        });
        // The last token of each prompt, and all after it.
        assert_eq!(seen, SEQUENCES.iter().map(|(len, prompt)| len - prompt + 1).sum::<usize>(), "{name}");
    }
}

#[test]
fn bfloat16_stays_near_the_full_forward() {
    if !device().supports_dtype(BurnDType::BF16) {
        return;
    }
    let config = ModelConfig { dtype: DType::BFloat16, ..small() };
    let sequences = sequences(&config);
    let expected = full(&config, &sequences);
    let decoder = decoder(&config);
    feed(&decoder, decoder.float_storage(), &sequences, |s, t, logits| {
        let error = relative_l2(&logits, &expected[s][t]);
        assert!(error < 2e-2, "sequence {s}, position {t}: off by {error}");
    });
}

/// Both axes keep the logits within a bound, `dkv` within the tighter one, at half of bfloat16's memory and the scales.
#[test]
fn int8_caches_are_small_and_close() {
    for (name, config) in configurations().into_iter().filter(|(name, _)| is_wanted(name)) {
        let sequences = sequences(&config);
        let decoder = decoder(&config);
        let mut exact = Vec::new();
        let float_bytes =
            feed(&decoder, decoder.float_storage(), &sequences, |_, _, logits| exact.push(logits));
        for (axis, bound) in [(KvQuantAxis::Dkv, 0.012), (KvQuantAxis::HeadsAndDkv, 0.02)] {
            let mut found = Vec::new();
            let bytes = feed(&decoder, Storage::int8(axis), &sequences, |_, _, logits| found.push(logits));
            let error = relative_l2(&found.concat(), &exact.concat());
            assert!(error < bound, "{name}, {axis:?}: logits are off by {error}");

            let positions = config.num_decoder_layers * SEQUENCES.len() * CAPACITY;
            let elements = 2 * positions * config.num_kv_heads * config.head_dim;
            let scales = 2 * positions * if axis == KvQuantAxis::Dkv { config.num_kv_heads } else { 1 };
            assert_eq!((float_bytes, bytes), (4 * elements, elements + 2 * scales), "{name}, {axis:?}");
        }
    }
}

/// Decoding a model that trains quantized computes the same quantized products; int8 scales belong to a token, so a cache changes
/// nothing.
#[test]
fn int8_recipe_decodes_as_it_trains() {
    let config = ModelConfig { quantization: Quantization::Int8, ..small() };
    let sequences = sequences(&config);
    let expected = full(&config, &sequences);
    let decoder = decoder(&config);
    feed(&decoder, decoder.float_storage(), &sequences, |s, t, logits| {
        let error = relative_l2(&logits, &expected[s][t]);
        assert!(error < 1e-2, "sequence {s}, position {t}: off by {error}");
    });
}
