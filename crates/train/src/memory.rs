//! Host memory of this process, as Linux accounts for it.

use std::fs;

/// Bytes in a GiB; MaxText's "GB" are these.
const GIB: f64 = (1u64 << 30) as f64;

/// Resident memory of this process now and at its peak, and the machine's total, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident set (`VmRSS`).
    pub resident: u64,
    /// Largest resident set so far (`VmHWM`).
    pub peak: u64,
    /// Memory of the machine (`MemTotal`).
    pub total: u64,
}

impl Memory {
    /// Reads the figures; `None` where there is no `/proc`.
    pub fn now() -> Option<Self> {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let machine = fs::read_to_string("/proc/meminfo").ok()?;
        Some(Self {
            resident: field(&status, "VmRSS:")?,
            peak: field(&status, "VmHWM:")?,
            total: field(&machine, "MemTotal:")?,
        })
    }

    /// MaxText's `Memstats` lines, with `device` for the device's name.
    pub fn memstats(&self, label: &str, device: &str) -> String {
        let (used, total) = (self.resident as f64 / GIB, self.total as f64 / GIB);
        let share = 100.0 * used / total;
        format!("\nMemstats: {label}:\n\tUsing (GB) {used:.2} / {total:.2} ({share:.6}%) on {device}")
    }
}

/// Value of a `Name:   123 kB` line, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// `1.23 GiB`, `45.6 MiB`: a size for people.
pub fn human(bytes: u64) -> String {
    let mib = bytes as f64 / (1u64 << 20) as f64;
    if mib < 1024.0 { format!("{mib:.1} MiB") } else { format!("{:.2} GiB", bytes as f64 / GIB) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_lines_are_read() {
        let status = "Name:\tmt-train\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(field(status, "VmHWM:"), Some(2 << 20));
        assert_eq!(field(status, "VmSwap:"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_some_memory() {
        let memory = Memory::now().unwrap();
        assert!(0 < memory.resident && memory.resident <= memory.total, "{memory:?}");
    }

    #[test]
    fn sizes_are_for_people() {
        assert_eq!(human(45_600_000), "43.5 MiB");
        assert_eq!(human(3 << 29), "1.50 GiB");
    }
}
