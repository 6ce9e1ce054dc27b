//! Which values of a layer live between its forward and its backward, and what that costs.
//!
//! A [`RematPolicy`] says of every named activation whether it's kept on the device, moved to the host or computed again.
//! [`Checkpoint`] applies it to one layer. The [`Meter`] counts what is alive.

use std::cell::Cell;
use std::rc::Rc;

use burn::tensor::{Device, Tensor};
use mt_config::{Activations, Placement, RematPolicy};

use crate::vjp::Value;

/// Bytes of activations alive, and floating-point operations spent twice.
///
/// Counted are the layers' inputs and all values that a [`Tape`](crate::vjp::Tape) holds; not parameters, cotangents and
/// gradients, which no remat policy changes.
#[derive(Debug, Default)]
pub struct Meter {
    live: Cell<u64>,
    peak: Cell<u64>,
    host: Cell<u64>,
    kept: Cell<u64>,
    recomputed: Cell<u64>,
}

/// What a [`Meter`] read over one forward and backward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Accounting {
    /// Most bytes of activations that were alive on the device at once.
    pub peak_bytes: u64,
    /// Bytes held on the device from the forward to the backward, over all layers; their inputs included.
    pub kept_bytes: u64,
    /// Bytes moved to the host, over all layers.
    pub offloaded_bytes: u64,
    /// Floating-point operations of the forward that were done again in the backward.
    pub recomputed_flops: u64,
}

impl Meter {
    /// What was read so far.
    pub fn accounting(&self) -> Accounting {
        Accounting {
            peak_bytes: self.peak.get(),
            kept_bytes: self.kept.get(),
            offloaded_bytes: self.host.get(),
            recomputed_flops: self.recomputed.get(),
        }
    }

    /// Counts `flops` of recomputation.
    pub(crate) fn recomputed(&self, flops: u64) {
        self.recomputed.set(self.recomputed.get() + flops);
    }

    fn lease(self: &Rc<Self>, bytes: u64) -> Lease {
        self.live.set(self.live.get() + bytes);
        self.peak.set(self.peak.get().max(self.live.get()));
        Lease(Rc::new(Leased { meter: Rc::clone(self), bytes }))
    }
}

/// Counts bytes on a [`Meter`] until its last clone is dropped.
#[derive(Debug, Clone)]
pub struct Lease(#[expect(dead_code, reason = "it counts by being alive")] Rc<Leased>);

#[derive(Debug)]
struct Leased {
    meter: Rc<Meter>,
    bytes: u64,
}

impl Drop for Leased {
    fn drop(&mut self) {
        self.meter.live.set(self.meter.live.get() - self.bytes);
    }
}

/// A value whose memory is counted while it lives. Clones share the memory and the count.
#[derive(Debug, Clone)]
pub struct Tracked {
    value: Value,
    lease: Option<Lease>,
}

impl Tracked {
    /// Counts `value` on `meter`.
    pub fn new(value: Value, meter: &Rc<Meter>) -> Self {
        let lease = Some(meter.lease(bytes(&value)));
        Self { value, lease }
    }

    /// A value that somebody else accounts for.
    pub fn borrowed(value: Value) -> Self {
        Self { value, lease: None }
    }

    /// The value, and what keeps it on the meter.
    pub fn into_parts(self) -> (Value, Option<Lease>) {
        (self.value, self.lease)
    }
}

/// What one layer holds between its forward and its backward.
pub struct Checkpoint {
    input: Kept,
    named: [Option<Kept>; Activations::ALL.len()],
}

/// A value that waits for the backward.
enum Kept {
    Device(Tracked),
    /// A copy in host memory, and the device it came from.
    Host(Value, Device),
}

impl Checkpoint {
    /// Of a layer with this `input`. The input is always kept: on the device, or on the host if the policy offloads it.
    pub fn new(input: Tensor<2>, policy: &RematPolicy, meter: &Rc<Meter>) -> Self {
        let placement = match policy.placement(Activations::DecoderLayerInput) {
            Placement::Offload => Placement::Offload,
            Placement::Remat | Placement::Device => Placement::Device,
        };
        let input = Kept::new(&Tracked::new(input.into(), meter), placement, meter)
            .expect("it isn't to be recomputed");
        Self { input, named: Default::default() }
    }

    /// Keeps `value` as `policy` wants.
    pub fn keep(&mut self, name: Activations, value: &Tracked, policy: &RematPolicy, meter: &Rc<Meter>) {
        self.named[name as usize] = Kept::new(value, policy.placement(name), meter);
    }

    /// Hands out the layer's input.
    pub fn input(&self, meter: &Rc<Meter>) -> Tracked {
        self.input.on_device(meter)
    }

    /// Hands out the value kept under `name`, if any.
    pub fn take(&mut self, name: Activations, meter: &Rc<Meter>) -> Option<Tracked> {
        self.named[name as usize].take().map(|kept| kept.on_device(meter))
    }
}

impl Kept {
    fn new(value: &Tracked, placement: Placement, meter: &Meter) -> Option<Self> {
        let device = value.value.out.device();
        let size = bytes(&value.value);
        match placement {
            Placement::Remat => None,
            // The host is where a CPU keeps everything: moving nothing is the whole of offloading.
            Placement::Offload if device != Device::flex() => {
                meter.host.set(meter.host.get() + size);
                Some(Self::Host(on(&value.value, &Device::flex()), device))
            }
            Placement::Device | Placement::Offload => {
                meter.kept.set(meter.kept.get() + size);
                Some(Self::Device(value.clone()))
            }
        }
    }

    fn on_device(&self, meter: &Rc<Meter>) -> Tracked {
        match self {
            Self::Device(value) => value.clone(),
            Self::Host(value, device) => Tracked::new(on(value, device), meter),
        }
    }
}

/// A copy of `value` on `device`.
fn on(value: &Value, device: &Device) -> Value {
    Value {
        out: value.out.clone().to_device(device),
        residual: value.residual.clone().map(|residual| residual.to_device(device)),
    }
}

fn bytes(value: &Value) -> u64 {
    let size = |tensor: &Tensor<2>| (tensor.dims().iter().product::<usize>() * tensor.dtype().size()) as u64;
    size(&value.out) + value.residual.as_ref().map_or(0, size)
}
