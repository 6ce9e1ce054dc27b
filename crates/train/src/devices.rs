//! `--devices`: what this binary can compute on, here.

use std::thread::available_parallelism;

use mt_model::device::{self, Available};

use crate::memory::{self, Memory};

/// A line per device; the first is the one that an unset `hardware` key takes.
pub fn list() -> String {
    let lines: Vec<String> = device::available().iter().map(describe).collect();
    lines.join("\n")
}

fn describe(device: &Available) -> String {
    if device.name != "CPU" {
        return match &device.details {
            Some(details) => format!("{}: {details}", device.name),
            None => device.name.clone(),
        };
    }
    let threads = available_parallelism().map_or(1, usize::from);
    let memory = Memory::now().map(|now| format!(", {} of memory", memory::human(now.total)));
    format!("CPU: {threads} threads{}", memory.unwrap_or_default())
}
