//! Reverse-mode differentiation of one decoder layer, with rematerialisation.
//!
//! A block describes a layer once, as operations pushed on a [`Tape`]; nothing is computed yet. The tape then runs in one of
//! two ways:
//!
//! * [`Tape::forward`] computes the operations in order, drops every value after its last reader and hands the values that
//!   the block [named](Tape::name) to the caller, who keeps those that the remat policy wants.
//! * [`Tape::backward`] starts from the cotangent of the output and pops operations off the end. Values are thunks: one is
//!   computed when a popped operation's backward reads it, unless the policy [kept](Tape::fill) it. So what no backward
//!   reads is never recomputed (the last matmul of a layer, say), and a policy needs no code of its own.
//!
//! An operation only reads values that lie below it on the tape, thus when it has been popped, its own output can never be
//! asked for again: popping frees it. Memory needs no other bookkeeping, and its peak is one layer's values. No graph ever
//! spans two layers.

use std::rc::Rc;

use burn::tensor::Tensor;
use mt_config::Activations;

use crate::ops::elementwise;
use crate::remat::{Lease, Meter, Tracked};

/// A value of the layer: a place on its tape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Var(usize);

/// What an operation computes.
#[derive(Debug, Clone)]
pub struct Value {
    /// The output, `[tokens, features]` or a parameter.
    pub out: Tensor<2>,
    /// What the operation's own backward wants beside its output (attention: log-sum-exp, `[tokens, heads]` float32).
    pub residual: Option<Tensor<2>>,
}

impl From<Tensor<2>> for Value {
    fn from(out: Tensor<2>) -> Self {
        Self { out, residual: None }
    }
}

/// Which values the backward of an operation reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// None: it is linear with a matrix of its own.
    Nothing,
    /// Its inputs.
    Inputs,
    /// Its inputs and what it computed.
    InputsAndOutput,
}

/// An operation with a hand-written backward.
pub trait Op {
    /// Computes the output from the inputs. Inputs without another reader come uniquely owned and may be overwritten.
    fn forward(&self, inputs: Vec<Tensor<2>>) -> Value;

    /// What [`backward`](Self::backward) is given.
    fn reads(&self) -> Reads;

    /// The cotangent of every input, from the output's. `inputs` and `output` are filled as [`reads`](Self::reads) says.
    fn backward(&self, inputs: Vec<Tensor<2>>, output: Option<Value>, dy: Tensor<2>) -> Vec<Tensor<2>>;

    /// Floating-point operations of the forward: what recomputing it costs. 0 for what isn't bound by arithmetic.
    fn flops(&self, _inputs: &[Tensor<2>]) -> u64 {
        0
    }
}

/// An operation or a leaf on the tape.
struct Node<'a> {
    /// None for a leaf, whose value is always there.
    op: Option<Box<dyn Op + 'a>>,
    inputs: Vec<Var>,
    name: Option<Activations>,
    value: Option<Tracked>,
    cotangent: Option<Tensor<2>>,
    /// Some backward reads the value, so that it's worth holding once computed.
    is_read: bool,
}

/// The operations of one layer.
pub struct Tape<'a> {
    nodes: Vec<Node<'a>>,
    meter: Rc<Meter>,
}

impl<'a> Tape<'a> {
    /// An empty tape that accounts for its memory on `meter`.
    pub fn new(meter: Rc<Meter>) -> Self {
        Self { nodes: Vec::new(), meter }
    }

    /// A value that comes from outside: the layer's input or a parameter. Leaves are pushed before all operations; they
    /// aren't counted on the meter, since their owner keeps them.
    pub fn leaf(&mut self, value: Tensor<2>) -> Var {
        let value = Some(Tracked::borrowed(value.into()));
        self.push_node(Node {
            op: None,
            inputs: Vec::new(),
            name: None,
            value,
            cotangent: None,
            is_read: true,
        })
    }

    /// The result of `op` on `inputs`.
    pub fn push(&mut self, op: impl Op + 'a, inputs: &[Var]) -> Var {
        let reads = op.reads();
        if reads != Reads::Nothing {
            inputs.iter().for_each(|input| self.nodes[input.0].is_read = true);
        }
        self.push_node(Node {
            op: Some(Box::new(op)),
            inputs: inputs.to_vec(),
            name: None,
            value: None,
            cotangent: None,
            is_read: reads == Reads::InputsAndOutput,
        })
    }

    fn push_node(&mut self, node: Node<'a>) -> Var {
        self.nodes.push(node);
        Var(self.nodes.len() - 1)
    }

    /// Gives `value` the name under which a remat policy can keep it.
    pub fn name(&mut self, name: Activations, value: Var) -> Var {
        self.nodes[value.0].name = Some(name);
        value
    }

    /// Runs the layer and returns its output, the value pushed last. `keep` sees every named value as it is computed.
    pub fn forward(mut self, mut keep: impl FnMut(Activations, &Tracked)) -> Tensor<2> {
        let mut readers = vec![0_usize; self.nodes.len()];
        self.nodes.iter().flat_map(|node| &node.inputs).for_each(|input| readers[input.0] += 1);

        for i in 0..self.nodes.len() {
            if self.nodes[i].op.is_none() {
                continue;
            }
            let inputs = std::mem::take(&mut self.nodes[i].inputs);
            let inputs = inputs.iter().map(|input| {
                readers[input.0] -= 1;
                let value = &mut self.nodes[input.0].value;
                let held = if readers[input.0] == 0 { value.take() } else { value.clone() };
                held.expect("inputs lie below on the tape and live until their last reader").into_parts()
            });
            let (inputs, _leases): (Vec<_>, Vec<_>) = inputs.map(|(value, lease)| (value.out, lease)).unzip();

            let node = &mut self.nodes[i];
            let op = node.op.as_ref().expect("leaves were skipped");
            let value = Tracked::new(op.forward(inputs), &self.meter);
            if let Some(name) = node.name {
                keep(name, &value);
            }
            node.value = Some(value);
        }
        let output = self.nodes.pop().and_then(|node| node.value);
        output.expect("a layer computes something").into_parts().0.out
    }

    /// Puts the kept values in place; asks `kept` for every name that the block gave.
    pub fn fill(&mut self, mut kept: impl FnMut(Activations) -> Option<Tracked>) {
        for node in &mut self.nodes {
            if let Some(name) = node.name {
                node.value = kept(name);
            }
        }
    }

    /// Pulls `dy`, the cotangent of the value pushed last, back to the leaves: their cotangents in the order in which they
    /// were pushed, None for a leaf without influence.
    pub fn backward(mut self, dy: Tensor<2>) -> Vec<Option<Tensor<2>>> {
        self.nodes.last_mut().expect("a layer computes something").cotangent = Some(dy);

        while let Some(i) = self.nodes.len().checked_sub(1).filter(|&i| self.nodes[i].op.is_some()) {
            let reads = self.nodes[i].op.as_ref().map_or(Reads::Nothing, |op| op.reads());
            let output = (reads == Reads::InputsAndOutput).then(|| self.force(Var(i)));

            let node = self.nodes.pop().expect("the loop's condition");
            let (Some(op), Some(dy)) = (node.op, node.cotangent) else { continue };
            drop(node.value);
            let reads = if reads == Reads::Nothing { &[] } else { node.inputs.as_slice() };
            let (inputs, _leases) = self.force_all(reads);
            let (output, _lease) = output.map(Tracked::into_parts).unzip();

            let cotangents = op.backward(inputs, output, dy);
            for (input, cotangent) in node.inputs.iter().zip(cotangents) {
                let sum = &mut self.nodes[input.0].cotangent;
                *sum = Some(match sum.take() {
                    Some(other) => elementwise::add(other, cotangent),
                    None => cotangent,
                });
            }
        }
        self.nodes.into_iter().map(|leaf| leaf.cotangent).collect()
    }

    /// The value of `var`, computed now if it isn't there.
    fn force(&mut self, var: Var) -> Tracked {
        if let Some(value) = &self.nodes[var.0].value {
            return value.clone();
        }
        let inputs = self.nodes[var.0].inputs.clone();
        let (inputs, _leases) = self.force_all(&inputs);

        let node = &mut self.nodes[var.0];
        let op = node.op.as_ref().expect("a leaf has its value");
        self.meter.recomputed(op.flops(&inputs));
        let value = Tracked::new(op.forward(inputs), &self.meter);
        // What no backward reads was only wanted by the operation above: it's handed over, to be overwritten in place.
        node.value = node.is_read.then(|| value.clone());
        value
    }

    /// The outputs of `vars`, with the leases that keep them on the meter.
    fn force_all(&mut self, vars: &[Var]) -> (Vec<Tensor<2>>, Vec<Option<Lease>>) {
        vars.iter().map(|&var| self.force(var).into_parts()).map(|(value, lease)| (value.out, lease)).unzip()
    }
}
