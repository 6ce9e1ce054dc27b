//! How many kernels an operation launches: ours, and those of the plain composition, which runs under burn's autodiff.

use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use burn::tensor::{DType, Device, Int, Tensor};
use cubecl::logging::{LaunchObservation, LaunchObserver};
use mt_config::{Activation, AttentionKernel};
use mt_model::ops::adamw::{self, Hyper};
use mt_model::ops::cross_entropy::{self, Head, Spec};
use mt_model::ops::decode_attention::{Cache, Shape, Slot, Storage};
use mt_model::ops::quantized::{self, Recipe};
use mt_model::ops::rope::{self, Direction};
use mt_model::ops::{attention, embedding, glu, rms_norm};

use crate::common::*;
use crate::support::small;

/// Names of the kernels that one thread launches.
struct Launches {
    thread: ThreadId,
    kernels: Mutex<Vec<&'static str>>,
}

impl LaunchObserver for Launches {
    fn launched(&self, kernel: &'static str) {
        if thread::current().id() == self.thread {
            self.kernels.lock().unwrap().push(kernel);
        }
    }
}

fn count(run: impl FnOnce()) -> usize {
    let launches = Arc::new(Launches { thread: thread::current().id(), kernels: Mutex::default() });
    let watching = LaunchObservation::new(launches.clone());
    run();
    drop(watching);
    let kernels = launches.kernels.lock().unwrap();
    kernels.len()
}

/// Launches of `run` on the device and under autodiff on the device, once tuning is over.
fn compare(name: &str, at_most: usize, run: impl Fn(&Device)) {
    let [found, plain] = [device(), device().autodiff()].map(|device| {
        run(&device);
        count(|| run(&device))
    });
    eprintln!("{name}: {found} launches, the plain composition {plain}");
    assert!(found <= at_most && found <= plain, "{name}: {found} launches");
}

#[test]
fn an_operation_is_a_launch_or_a_few() {
    if device() == Device::flex() {
        return;
    }
    let mut random = Random::new(1);
    let [x, dy, z] = [0; 3].map(|_| random.matrix(48, 64));
    let scale = random.matrix(1, 64);
    let on = |x: &Matrix, device: &Device| x.on(DType::F32, device);
    // Copies to the device are not launches, so operands may be made inside.
    compare("rms_norm forward", 1, |at| drop(rms_norm::forward(on(&x, at), on(&scale, at), 1e-5)));
    compare("rms_norm backward", 2, |at| {
        drop(rms_norm::backward(on(&x, at), on(&scale, at), 1e-5, on(&dy, at)));
    });
    compare("glu forward", 1, |at| drop(glu::forward(on(&x, at), on(&z, at), Activation::Silu)));
    compare("glu backward", 1, |at| {
        drop(glu::backward(on(&x, at), on(&z, at), Activation::Silu, on(&dy, at)));
    });
    let ids: Vec<i32> = (0..48).map(|t| t % 7).collect();
    let ids_on = |device: &Device| Tensor::<1, Int>::from_ints(ids.as_slice(), device);
    let rope = small().rope;
    compare("rope", 1, |at| {
        let table = rope::Table::new(&rope, 16, 48, at);
        drop(rope::apply(on(&x, at), &ids_on(at), &table, 16, Direction::Forward));
    });
    compare("embedding backward", 2, |at| drop(embedding::backward(&ids_on(at), on(&dy, at), 100)));
    let hyper = Hyper {
        learning_rate: 1e-3,
        b1: 0.9,
        b2: 0.95,
        bias_correction1: 0.1,
        bias_correction2: 0.05,
        look_ahead: None,
        eps: 1e-8,
        eps_root: 0.0,
        weight_decay: 0.1,
        grad_scale: 1.0,
        stochastic_rounding: None,
    };
    compare("adamw", 1, |at| drop(adamw::update(on(&x, at), on(&dy, at), on(&z, at), on(&x, at), &hyper)));
    let spec = Spec {
        z_loss_multiplier: 1e-3,
        soft_cap: None,
        logits_scale: 1.0,
        dot_in_fp32: false,
        cast_fp32: true,
        tiling: 1,
    };
    let w = random.matrix(64, 100);
    compare("cross_entropy forward and backward", 10, |at| {
        let weights = Tensor::<1>::ones([48], at);
        let head = Head::Dense(on(&w, at));
        drop(cross_entropy::forward_backward(on(&x, at), head, &ids_on(at), &weights, 1.0, &spec));
    });
    // Both operands' rounding in three, the product, the scales.
    compare("int8 product", 6, |at| drop(quantized::forward(on(&x, at), on(&w, at), Recipe::Int8)));
    let spec = attention::Spec {
        num_query_heads: 4,
        num_kv_heads: 4,
        head_dim: 16,
        soft_cap: None,
        window: None,
        kernel: AttentionKernel::Flash,
        float32_logits: true,
        float32_qk_product: true,
    };
    let shape = Shape { sequences: 48, capacity: 2, num_kv_heads: 4, head_dim: 16 };
    let slots: Vec<Slot> = (0..48).map(|sequence| Slot { sequence, position: 0 }).collect();
    // A tensor that tells where the cache goes, zeros of keys, values and scales, one to write, two to attend.
    compare("int8 cache", 7, |at| {
        let mut cache = Cache::new(shape, Storage::Int8 { per_head: true }, at);
        cache.write(on(&x, at), on(&dy, at), &slots);
        drop(cache.attend(on(&z, at), &slots, &spec));
    });
}
