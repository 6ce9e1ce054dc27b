//! Flash attention's memory grows linearly with the length: every byte that it allocates is counted.

use std::alloc::{GlobalAlloc, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

use burn::tensor::{Device, Distribution, Tensor};
use mt_config::AttentionKernel;
use mt_model::ops::attention::{Layout, Spec, backward, forward};

static LIVE: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

/// The system's allocator, counting.
struct Counting;

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        let size = layout.size() as isize;
        PEAK.fetch_max(LIVE.fetch_add(size, Relaxed) + size, Relaxed);
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: std::alloc::Layout) {
        LIVE.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HEADS: usize = 2;
const HEAD_DIM: usize = 16;

/// Peak bytes that forward and backward of one document allocate, results included.
fn peak_bytes(len: usize) -> isize {
    let layout = Layout::unpacked(1, len);
    let spec = Spec {
        num_query_heads: HEADS,
        num_kv_heads: 1,
        head_dim: HEAD_DIM,
        soft_cap: None,
        window: None,
        kernel: AttentionKernel::Flash,
        float32_logits: true,
        float32_qk_product: true,
    };
    let random = |heads: usize| {
        Tensor::<2>::random([len, heads * HEAD_DIM], Distribution::Normal(0.0, 0.5), &Device::flex())
    };
    let (q, k, v, dout) = (random(HEADS), random(1), random(1), random(HEADS));
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let (out, lse) = forward(q.clone(), k.clone(), v.clone(), &layout, &spec);
    black_box(backward(q, k, v, out, lse, dout, &layout, &spec));
    PEAK.load(Relaxed) - before
}

#[test]
fn memory_is_linear_in_the_length() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a small pool starts");
    pool.install(|| {
        peak_bytes(64);
        let [short, middle, long] = [2048, 4096, 8192].map(peak_bytes);
        let (first, second) = ((middle - short) as f64 / 2048.0, (long - middle) as f64 / 4096.0);
        assert!((first - second).abs() < 1.0, "{first} and {second} bytes per token");
        // Results out, lse, dq, dk, dv; K, V, dK, dV once more in float32.
        let expected = 4 * (HEADS * HEAD_DIM * 2 + HEADS + HEAD_DIM * 2 + HEAD_DIM * 4);
        assert!(second <= 1.05 * expected as f64, "{second} bytes per token, expected {expected}");
    });
}
