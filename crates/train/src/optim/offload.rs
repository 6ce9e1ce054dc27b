//! Moments in main memory, updates on the CPU (`optimizer_memory_host_offload`).
//!
//! Gradients leave the device while the backward pass goes on: each layer's are copied by a thread of their own as the next
//! layer's are computed, and are added up and measured in main memory. The update can't begin before all are there, since
//! clipping needs their global norm. Then each parameter comes from the device, is updated beside its moments and goes back,
//! as on a conveyor: while one is updated the next one is on its way down and the one before on its way up.
//!
//! The device holds no moments, and gradients of a few layers only.

use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use burn::tensor::{Device, Tensor};
use mt_model::scan::{GradSink, Gradients, HeadGradients};
use mt_model::{LayerParams, Params};

/// Finished gradients that wait for the copying thread: a layer's, beside one that is being copied and one that is being made.
const IN_FLIGHT: usize = 1;

/// Where gradients are collected: beside the parameters, or in main memory.
pub enum Sink {
    /// On the device.
    Device(Box<Gradients>),
    /// In main memory.
    Host(HostSink),
}

impl Sink {
    /// A sink that moves what it's given to `host`, or one that leaves it where it is.
    pub(super) fn new(host: Option<&Device>) -> Self {
        match host {
            None => Self::Device(Box::default()),
            Some(host) => Self::Host(HostSink::new(host.clone())),
        }
    }

    /// The sums of all that came; none before a whole backward pass.
    pub fn into_params(self) -> Option<Params> {
        match self {
            Self::Device(gradients) => gradients.into_params(),
            Self::Host(sink) => sink.finish().into_params(),
        }
    }

    fn inner(&mut self) -> &mut dyn GradSink {
        match self {
            Self::Device(gradients) => gradients.as_mut(),
            Self::Host(sink) => sink,
        }
    }
}

impl GradSink for Sink {
    fn head(&mut self, gradients: HeadGradients) {
        self.inner().head(gradients);
    }

    fn layer(&mut self, i: usize, gradients: LayerParams<Tensor<2>>) {
        self.inner().layer(i, gradients);
    }

    fn embedding(&mut self, gradient: Tensor<2>) {
        self.inner().embedding(gradient);
    }
}

/// What a backward pass hands over at a time.
enum Part {
    Head(HeadGradients),
    Layer(usize, LayerParams<Tensor<2>>),
    Embedding(Tensor<2>),
}

/// Sends gradients to a thread that copies them to main memory and adds them up.
pub struct HostSink {
    parts: SyncSender<Part>,
    copying: JoinHandle<Gradients>,
}

impl HostSink {
    fn new(host: Device) -> Self {
        let (parts, arriving) = sync_channel(IN_FLIGHT);
        Self { parts, copying: thread::spawn(move || collect(arriving, &host)) }
    }

    /// Hands a part over; waits while others are in flight.
    fn send(&mut self, part: Part) {
        // The thread goes only when it panics; `finish` hands that on.
        let _ = self.parts.send(part);
    }

    fn finish(self) -> Gradients {
        drop(self.parts);
        self.copying.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

fn collect(parts: Receiver<Part>, host: &Device) -> Gradients {
    let mut gradients = Gradients::default();
    for part in parts {
        match part {
            Part::Head(HeadGradients { decoder_norm, logits_dense }) => gradients.head(HeadGradients {
                decoder_norm: decoder_norm.to_device(host),
                logits_dense: logits_dense.map(|gradient| gradient.to_device(host)),
            }),
            Part::Layer(i, layer) => gradients.layer(i, layer.map(|gradient| gradient.to_device(host))),
            Part::Embedding(gradient) => gradients.embedding(gradient.to_device(host)),
        }
    }
    gradients
}

impl GradSink for HostSink {
    fn head(&mut self, gradients: HeadGradients) {
        self.send(Part::Head(gradients));
    }

    fn layer(&mut self, i: usize, gradients: LayerParams<Tensor<2>>) {
        self.send(Part::Layer(i, gradients));
    }

    fn embedding(&mut self, gradient: Tensor<2>) {
        self.send(Part::Embedding(gradient));
    }
}

/// Calls `update` on each of `params` in turn, brought to `host`, and puts what it returns on the device that the parameter
/// came from.
pub(super) fn convey(
    params: Vec<Tensor<2>>,
    host: &Device,
    mut update: impl FnMut(Tensor<2>) -> Tensor<2>,
) -> Vec<Tensor<2>> {
    let devices: Vec<Device> = params.iter().map(|param| param.device()).collect();
    thread::scope(|scope| {
        let (down, arrived) = sync_channel(IN_FLIGHT);
        let (up, updated) = sync_channel::<Tensor<2>>(IN_FLIGHT);
        // A stage ends when the next one is gone; its panic is handed on below.
        scope.spawn(move || params.into_iter().try_for_each(|param| down.send(param.to_device(host))));
        let back = scope.spawn(move || -> Vec<Tensor<2>> {
            updated.into_iter().zip(&devices).map(|(param, device)| param.to_device(device)).collect()
        });
        for param in arrived {
            if up.send(update(param)).is_err() {
                break;
            }
        }
        drop(up);
        back.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}
