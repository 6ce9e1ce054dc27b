//! Moments in main memory, updates on the CPU (`optimizer_memory_host_offload`).
//!
//! Gradients leave the device while the backward pass goes on: a thread copies each layer's to main memory, and adds up those of
//! micro batches, as the next layer's are computed. The update can't begin before all are there, since clipping needs
//! their global norm. Then each parameter comes from the device, is updated beside its moments and goes back; while one is
//! updated the next one is on its way down. Frozen parameters stay where they are.
//!
//! The device holds no moments, and gradients of a few layers only. One thread copies for the whole run: each thread that
//! touches a GPU gets a queue and a memory pool of its own there.

use std::any::Any;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use burn::tensor::{Device, Tensor};
use mt_model::scan::{GradSink, Gradients, HeadGradients};
use mt_model::{LayerParams, Params};

/// What waits for the copying thread, beside what it copies: gradients of one layer, or one parameter.
const IN_FLIGHT: usize = 1;

/// The copying thread ended while it was needed.
#[derive(Debug, thiserror::Error)]
#[error(
    "optimizer_memory_host_offload: the thread that copies gradients and parameters to main memory ended: {reason}"
)]
pub struct OffloadError {
    /// What the device said to it.
    pub reason: String,
}

/// The thread that copies from the device to main memory.
pub(super) struct Copier(Line);

/// The way to the thread.
#[derive(Clone)]
struct Line {
    orders: SyncSender<Order>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Line {
    fn send(&self, order: Order) -> Result<(), OffloadError> {
        self.orders.send(order).map_err(|_| self.failure())
    }

    fn receive<T>(&self, answers: &Receiver<T>) -> Result<T, OffloadError> {
        answers.recv().map_err(|_| self.failure())
    }

    /// Why nobody is there any more: the thread lives as long as a line to it, unless it panics.
    fn failure(&self) -> OffloadError {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let reason = match thread.map(JoinHandle::join) {
            Some(Err(panic)) => message(&*panic),
            _ => "as was reported before".to_owned(),
        };
        OffloadError { reason }
    }
}

/// What a panic says.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it didn't say why").to_owned()
}

/// Tensors that come to main memory one by one.
pub(super) struct Arriving {
    line: Line,
    tensors: Receiver<Tensor<2>>,
}

impl Arriving {
    /// The next of those that were asked for.
    pub(super) fn next(&self) -> Result<Tensor<2>, OffloadError> {
        self.line.receive(&self.tensors)
    }
}

pub(super) enum Order {
    /// Add gradients to those collected so far.
    Collect(Box<Part>),
    /// Hand over what was collected, and start anew.
    Finish(SyncSender<Gradients>),
    /// Hand over tensors one by one.
    Fetch(Vec<Tensor<2>>, SyncSender<Tensor<2>>),
}

/// What a backward pass hands over at a time.
#[expect(clippy::large_enum_variant, reason = "orders hold it in a box")]
pub(super) enum Part {
    Head(HeadGradients),
    Layer(usize, LayerParams<Tensor<2>>),
    Embedding(Tensor<2>),
}

impl Copier {
    /// A thread that copies to `host`.
    pub(super) fn new(host: Device) -> Self {
        Self::running(move |orders| copy(orders, &host))
    }

    /// A thread that carries out orders.
    pub(super) fn running(work: impl FnOnce(Receiver<Order>) + Send + 'static) -> Self {
        let (orders, arriving) = sync_channel(IN_FLIGHT);
        let thread = thread::spawn(move || work(arriving));
        Self(Line { orders, thread: Arc::new(Mutex::new(Some(thread))) })
    }

    /// Has `tensors` brought to main memory, each while what came before it is worked on.
    pub(super) fn fetch(&self, tensors: Vec<Tensor<2>>) -> Result<Arriving, OffloadError> {
        let (sender, arriving) = sync_channel(IN_FLIGHT);
        self.0.send(Order::Fetch(tensors, sender))?;
        Ok(Arriving { line: self.0.clone(), tensors: arriving })
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
    line: Line,
    /// Why gradients are missing: a backward pass doesn't ask.
    failed: Option<OffloadError>,
}

impl Sink {
    /// A sink that hands what it's given to the copying thread, or one that leaves it where it is.
    pub(super) fn new(copier: Option<&Copier>) -> Self {
        match copier {
            None => Self::Device(Box::default()),
            Some(copier) => Self::Host(HostSink { line: copier.0.clone(), failed: None }),
        }
    }

    /// The sums of all that came; none before a whole backward pass.
    ///
    /// # Errors
    /// [`OffloadError`]: some of them didn't reach main memory.
    pub fn into_params(self) -> Result<Option<Params>, OffloadError> {
        match self {
            Self::Device(gradients) => Ok(gradients.into_params()),
            Self::Host(HostSink { failed: Some(error), .. }) => Err(error),
            Self::Host(HostSink { line, failed: None }) => {
                let (sender, answer) = sync_channel(1);
                line.send(Order::Finish(sender))?;
                Ok(line.receive(&answer)?.into_params())
            }
        }
    }

    fn take(&mut self, part: Part) {
        match (self, part) {
            (Self::Host(HostSink { failed: Some(_), .. }), _) => {}
            (Self::Host(sink), part) => sink.failed = sink.line.send(Order::Collect(Box::new(part))).err(),
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
