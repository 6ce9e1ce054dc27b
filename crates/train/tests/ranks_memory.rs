//! What a rank of several holds, counted byte by byte: its shards, and two layers while they're computed with.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "ranks/runs.rs"]
#[allow(dead_code, reason = "the other test uses all of it")]
mod runs;
#[path = "ranks/threads.rs"]
mod threads;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use burn::tensor::Device;
use mt_model::ops::memory;
use mt_model::{BatchTensors, Model, init};
use mt_train::collective::Collective;
use mt_train::run::gradients::rows;
use mt_train::shard::{Gathered, shard_of};
use runs::{Plan, batch, config, train};
use threads::on_ranks;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counting; large tensors are in the pool, which counts itself.
struct Counting;

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live + memory::live_bytes(), Relaxed);
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn live() -> usize {
    LIVE.load(Relaxed) + memory::live_bytes()
}

/// Most bytes that `work` had alive at once beyond what was alive before.
fn peak_of(work: impl FnOnce()) -> f64 {
    let before = live();
    PEAK.store(before, Relaxed);
    work();
    (PEAK.load(Relaxed) - before) as f64
}

const LAYERS: usize = 16;

/// All ranks are threads of this process, so that peaks are sums over them. Layers are large, tokens few.
#[test]
fn a_rank_holds_its_shards_and_two_layers() {
    // Products and attention have scratch for each thread that takes part: it must not depend on the machine or on luck.
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().unwrap();
    let layers = LAYERS.to_string();
    let config = config(&[
        ("base_emb_dim", "128"),
        ("base_num_query_heads", "4"),
        ("base_num_kv_heads", "4"),
        ("head_dim", "32"),
        ("base_mlp_dim", "512"),
        ("base_num_decoder_layers", &layers),
    ]);
    let layer = 4.0 * (4 * 128 * 128 + 3 * 128 * 512 + 2 * 128) as f64;
    let ends = 4.0 * (2 * 96 * 128 + 128) as f64;
    let all = LAYERS as f64 * layer + ends;
    let plan = Plan { steps: 2, micro_batches: 1, rows: 4, host: false };
    let batch = batch(1, 16, 96, 0);

    // Once before counting, for what is made once in a process.
    on_ranks([1, 2], None, |threads| train(&config, plan, &threads).map(drop).unwrap());
    for fsdp in [1, 2, 4] {
        let ranks = fsdp as f64;
        let evaluate = |collective: &dyn Collective| {
            let params = init::init_shard(&config.model(), shard_of(collective.mesh()), &Device::flex());
            let model = Model::with_params(config.model(), params);
            let tensors = BatchTensors::new(&rows(&batch, 0, 1), model.config(), &model.device()).unwrap();
            model.eval_loss_of(&Gathered::new(&model, collective), &tensors).unwrap();
        };
        let eval = peak_of(|| drop(on_ranks([1, fsdp], None, |threads| evaluate(&threads)))) / ranks;
        let training =
            |collective: &dyn Collective| runs::steps(&config, plan, collective).map(drop).unwrap();
        let steps = peak_of(|| drop(on_ranks([1, fsdp], None, |threads| training(&threads)))) / ranks;
        let in_layers = |bytes: f64| bytes / layer;
        println!(
            "{fsdp} ranks, in layers of weights: states {:.1}; most at once {:.1} evaluating, {:.1} training",
            in_layers(3.0 * all / ranks),
            in_layers(eval),
            in_layers(steps),
        );
        // Weights in shards; two layers of whole ones, and shards of them underway between threads.
        let gathered = if fsdp == 1 { 0.0 } else { 2.0 * layer + 2.0 * layer / ranks };
        let slack = 0.75 * layer + ends;
        assert!(eval <= all / ranks + gathered + slack, "{fsdp}: {eval}");
        // And two moments and all gradients in shards; whole ones of the layer that is computed, and of the one that is being summed.
        let gradients = if fsdp == 1 { 1.0 * layer } else { 2.0 * layer + 2.0 * layer / ranks };
        assert!(steps <= 4.0 * all / ranks + gathered + gradients + 2.0 * slack, "{fsdp}: {steps}");
    }
}
