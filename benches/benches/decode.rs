//! Decoding: attention over a long cache, and a token through a model, by what cache and weights are stored as.
//!
//! `cargo bench -p benches --bench decode [-- ROUNDS]`. Rounds of all variants alternate; medians are printed. GB/s are those of
//! the bytes that have to be read at least: the visible keys, values and scales, or all weights of the layers and the head.

use std::time::Instant;

use benches::machine::read_bandwidth;
use benches::{STEP_MODEL, config, median, rounds};
use burn::tensor::{DType, Device, Distribution, Tensor};
use mt_config::{AttentionKernel, ModelConfig, Quantization};
use mt_model::decode::{Decoder, Storage};
use mt_model::init;
use mt_model::ops::attention::Spec;
use mt_model::ops::decode_attention::{Cache, Shape, Slot};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(rounds) = rounds(15) else { return Ok(()) };
    println!("{} threads, memory reads {:.1} GB/s", rayon::current_num_threads(), read_bandwidth() / 1e9);
    attention(rounds);
    model(rounds)?;
    Ok(())
}

/// One layer of Llama 3 8B's attention: 32 query and 8 kv heads of 128.
fn attention(rounds: usize) {
    let spec = Spec {
        num_query_heads: 32,
        num_kv_heads: 8,
        head_dim: 128,
        soft_cap: None,
        window: None,
        kernel: AttentionKernel::Flash,
        float32_logits: true,
        float32_qk_product: true,
    };
    println!("{:34} {:>9} {:>9} {:>9} {:>8}", "attention, one layer", "MB", "ms", "GB/s", "speed");
    for length in [2048, 16384] {
        let shape = Shape { sequences: 1, capacity: length, num_kv_heads: 8, head_dim: 128 };
        let slots: Vec<Slot> = (0..length).map(|position| Slot { sequence: 0, position }).collect();
        let normal =
            |rows, width| Tensor::<2>::random([rows, width], Distribution::Normal(0.0, 0.3), &Device::flex());
        let (k, v, q) = (normal(length, 1024), normal(length, 1024), normal(1, 4096));
        let variants = [
            ("float32", Storage::Float(DType::F32)),
            ("bfloat16", Storage::Float(DType::BF16)),
            ("int8 dkv", Storage::Int8 { per_head: true }),
            ("int8 heads_and_dkv", Storage::Int8 { per_head: false }),
        ];
        let caches = variants.map(|(name, storage)| {
            let mut cache = Cache::new(shape, storage, &Device::flex());
            cache.write(k.clone(), v.clone(), &slots);
            (name, cache)
        });
        let runs = caches.iter().map(|(name, cache)| {
            let run = || drop(cache.attend(q.clone(), &slots[length - 1..], &spec));
            (format!("{name}, {length} positions"), cache.bytes(), Box::new(run) as Box<dyn FnMut()>)
        });
        compare(runs.collect(), rounds);
    }
}

/// The model of the benches after a prompt of 512 tokens, a token at a time.
fn model(rounds: usize) -> Result<(), Box<dyn std::error::Error>> {
    println!("{:34} {:>9} {:>9} {:>9} {:>8}", "token, 4 layers of 512", "MB", "ms", "GB/s", "speed");
    let base = config(&[&STEP_MODEL, &[("max_target_length", "4096")]])?.model();
    let variants = [
        ("float32", "float32", Quantization::Off),
        ("bfloat16", "bfloat16", Quantization::Off),
        ("int8w", "bfloat16", Quantization::Int8w),
        ("int4w", "bfloat16", Quantization::Int4w),
    ];
    let decoders = variants.map(|(name, dtype, quantization)| {
        let dtype = if dtype == "float32" { mt_config::DType::Float32 } else { mt_config::DType::BFloat16 };
        let config = ModelConfig { dtype, quantization, ..base.clone() };
        let params = init::init(&config, &Device::flex());
        (name, Decoder::new(config, params))
    });
    let prompt: Vec<i32> = (0..512).map(|i| i * 7919 % 32000).collect();
    let mut runs = Vec::new();
    for (name, decoder) in &decoders {
        let start = Instant::now();
        let (mut session, _) =
            decoder.prefill(std::slice::from_ref(&prompt), 4096, decoder.float_storage())?;
        println!("  {name}: prefill of 512 tokens {:.0} tokens/s", 512.0 / start.elapsed().as_secs_f64());
        // The embedding isn't read but for a row of it.
        let embedding = base.vocab_size * base.emb_dim * if *name == "float32" { 4 } else { 2 };
        let run = move || drop(session.step(&[(0, 17)]));
        runs.push((
            format!("{name} weights"),
            decoder.weight_bytes() - embedding,
            Box::new(run) as Box<dyn FnMut()>,
        ));
    }
    compare(runs, rounds);
    Ok(())
}

/// What is measured: its name, the bytes that it reads and how to do it once.
type Run<'a> = (String, usize, Box<dyn FnMut() + 'a>);

/// Prints the median times of all, and their speed against the first.
fn compare(mut runs: Vec<Run<'_>>, rounds: usize) {
    let mut times = vec![Vec::new(); runs.len()];
    for round in 0..rounds + 1 {
        for ((_, _, run), times) in runs.iter_mut().zip(&mut times) {
            let start = Instant::now();
            run();
            if round > 0 {
                times.push(start.elapsed().as_secs_f64());
            }
        }
    }
    let medians: Vec<f64> = times.into_iter().map(median).collect();
    for ((name, bytes, _), time) in runs.iter().zip(&medians) {
        let (megabytes, speed) = (*bytes as f64 / 1e6, medians[0] / time);
        println!("{name:34} {megabytes:9.2} {:9.3} {:9.1} {speed:7.2}x", time * 1e3, megabytes / 1e3 / time);
    }
}
