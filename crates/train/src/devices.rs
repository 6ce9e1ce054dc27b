//! `--devices`: what this binary can compute on, here.

use std::thread::available_parallelism;

use mt_model::device;

use crate::memory::{self, Memory};

/// A line per device; the first is the one that an unset `hardware` key takes.
pub fn list() -> String {
    let lines: Vec<String> = device::available().into_iter().map(|device| describe(&device.name)).collect();
    lines.join("\n")
}

fn describe(name: &str) -> String {
    if name != "CPU" {
        return name.to_owned();
    }
    let threads = available_parallelism().map_or(1, usize::from);
    let memory = Memory::now().map(|now| format!(", {} of memory", memory::human(now.total)));
    format!("CPU: {threads} threads{}", memory.unwrap_or_default())
}
