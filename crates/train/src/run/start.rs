//! What a run says before its first step, in MaxText's words where it has them.

use mt_config::Config;
use mt_config::plan::Flops;
use tracing::{debug, info};

use crate::collective::rank;
use crate::memory::Memory;

/// Logs the configuration (`log_config`) and, once each, what in it means something else here or nothing at all.
///
/// Keys that differ from their default are news; the other 900 go to the debug level, which the log file takes.
pub fn log_config(config: &Config) {
    for setting in config.settings().filter(|_| config.log_config) {
        let (key, value) = (setting.spec().name, setting.value());
        if setting.is_changed() {
            info!("Config param {key}: {value}");
        } else {
            debug!("Config param {key}: {value}");
        }
    }
    for note in config.notes() {
        info!("{note}");
    }
}

/// `number parameters: 8.030 billion`.
pub fn log_parameters(count: usize) {
    info!("number parameters: {:.3} billion", count as f64 / 1e9);
}

/// MaxText's `Memstats`, for the memory of this process.
pub fn log_memory(label: &str) {
    if let Some(memory) = Memory::now() {
        info!("{}", memory.memstats(label, "CPU_0"));
    }
}

/// MaxText's FLOPs of a step and device, on stdout as there; by rank 0.
pub fn print_flops(flops: &Flops) {
    if rank() == 0 {
        println!("{}", describe(flops));
    }
}

fn describe(flops: &Flops) -> String {
    let total = flops.total();
    let share = |part: f64| 100.0 * part / total;
    format!(
        "Per train step:\n Total TFLOPs: {:.2} \n split as {:.2}% learnable weight flops and {:.2}% attention flops",
        total / 1e12,
        share(flops.weights),
        share(flops.attention)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flops_are_maxtexts_sentence() {
        let text = describe(&Flops { weights: 0.020_938e12, attention: 0.001_611e12 });
        assert_eq!(
            text,
            "Per train step:\n Total TFLOPs: 0.02 \n split as 92.86% learnable weight flops and 7.14% attention flops"
        );
    }
}
