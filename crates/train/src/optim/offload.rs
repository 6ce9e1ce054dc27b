//! Moments in main memory, updates on the CPU (`optimizer_memory_host_offload`).
//!
//! Gradients leave the device while the backward pass goes on: a thread copies each layer's to main memory, and adds up those of
//! micro batches, as the next layer's are computed. The update can't begin before all are there, since clipping needs
//! their global norm. Then each parameter comes from the device, is updated beside its moments and goes back; while one is
//! updated the next one is on its way down.
//!
//! The device holds no moments, and gradients of a few layers only. One thread copies for the whole run: each thread that
//! touches a GPU gets a queue and a memory pool of its own there.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use burn::tensor::{Device, Tensor};
use mt_model::scan::{GradSink, Gradients, HeadGradients};
use mt_model::{LayerParams, Params};

/// What waits for the copying thread, beside what it copies: gradients of one layer, or one parameter.
const IN_FLIGHT: usize = 1;
const GONE: &str = "the copying thread ends with the optimizer, or by a panic that was reported";

/// The thread that copies from the device to main memory.
pub(super) struct Copier {
    orders: SyncSender<Order>,
}

enum Order {
    /// Add gradients to those collected so far.
    Collect(Box<Part>),
    /// Hand over what was collected, and start anew.
    Finish(SyncSender<Gradients>),
    /// Hand over tensors one by one.
    Fetch(Vec<Tensor<2>>, SyncSender<Tensor<2>>),
}

/// What a backward pass hands over at a time.
#[expect(clippy::large_enum_variant, reason = "orders hold it in a box")]
enum Part {
    Head(HeadGradients),
    Layer(usize, LayerParams<Tensor<2>>),
    Embedding(Tensor<2>),
}

impl Copier {
    /// A thread that copies to `host`.
    pub(super) fn new(host: Device) -> Self {
        let (orders, arriving) = sync_channel(IN_FLIGHT);
        thread::spawn(move || copy(arriving, &host));
        Self { orders }
    }

    /// Calls `update` on each of `params` in turn, brought to main memory, and puts what it returns where the parameter came
    /// from.
    pub(super) fn convey(
        &self,
        params: Vec<Tensor<2>>,
        mut update: impl FnMut(Tensor<2>) -> Tensor<2>,
    ) -> Vec<Tensor<2>> {
        let devices: Vec<Device> = params.iter().map(|param| param.device()).collect();
        let (sender, arriving) = sync_channel(IN_FLIGHT);
        self.orders.send(Order::Fetch(params, sender)).expect(GONE);
        devices.iter().map(|device| update(arriving.recv().expect(GONE)).to_device(device)).collect()
    }
}

fn copy(orders: Receiver<Order>, host: &Device) {
    let mut gradients = Gradients::default();
    for order in orders {
        match order {
            Order::Collect(part) => part.add_to(&mut gradients, host),
            // An answer that nobody waits for any more belongs to a run that is being given up.
            Order::Finish(answer) => drop(answer.send(std::mem::take(&mut gradients))),
            Order::Fetch(tensors, answers) => {
                for tensor in tensors {
                    if answers.send(tensor.to_device(host)).is_err() {
                        break;
                    }
                }
            }
        }
    }
}

impl Part {
    fn add_to(self, gradients: &mut Gradients, host: &Device) {
        match self {
            Self::Head(HeadGradients { decoder_norm, logits_dense }) => gradients.head(HeadGradients {
                decoder_norm: decoder_norm.to_device(host),
                logits_dense: logits_dense.map(|gradient| gradient.to_device(host)),
            }),
            Self::Layer(i, layer) => gradients.layer(i, layer.map(|gradient| gradient.to_device(host))),
            Self::Embedding(gradient) => gradients.embedding(gradient.to_device(host)),
        }
    }
}

/// Where gradients are collected: beside the parameters, or in main memory.
pub enum Sink {
    /// On the device.
    Device(Box<Gradients>),
    /// In main memory.
    Host(HostSink),
}

/// Sends gradients to the copying thread; waits while others are in flight.
pub struct HostSink {
    orders: SyncSender<Order>,
}

impl Sink {
    /// A sink that hands what it's given to the copying thread, or one that leaves it where it is.
    pub(super) fn new(copier: Option<&Copier>) -> Self {
        match copier {
            None => Self::Device(Box::default()),
            Some(copier) => Self::Host(HostSink { orders: copier.orders.clone() }),
        }
    }

    /// The sums of all that came; none before a whole backward pass.
    pub fn into_params(self) -> Option<Params> {
        match self {
            Self::Device(gradients) => gradients.into_params(),
            Self::Host(HostSink { orders }) => {
                let (sender, answer) = sync_channel(1);
                orders.send(Order::Finish(sender)).expect(GONE);
                answer.recv().expect(GONE).into_params()
            }
        }
    }

    fn take(&mut self, part: Part) {
        match (self, part) {
            (Self::Host(sink), part) => sink.orders.send(Order::Collect(Box::new(part))).expect(GONE),
            (Self::Device(gradients), Part::Head(head)) => gradients.head(head),
            (Self::Device(gradients), Part::Layer(i, layer)) => gradients.layer(i, layer),
            (Self::Device(gradients), Part::Embedding(embedding)) => gradients.embedding(embedding),
        }
    }
}

impl GradSink for Sink {
    fn head(&mut self, gradients: HeadGradients) {
        self.take(Part::Head(gradients));
    }

    fn layer(&mut self, i: usize, gradients: LayerParams<Tensor<2>>) {
        self.take(Part::Layer(i, gradients));
    }

    fn embedding(&mut self, gradient: Tensor<2>) {
        self.take(Part::Embedding(gradient));
    }
}
