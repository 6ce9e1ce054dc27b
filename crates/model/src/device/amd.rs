//! What can be known of AMD GPUs before a device is opened. Opening one whose architecture CubeCL doesn't know ends in a failed
//! assertion inside of it, so it's looked up first, where the kernel driver lists it.

use std::ffi::{c_char, c_int};
use std::path::Path;

use burn::tensor::{Device, DeviceType};

/// Architectures, by prefix, that CubeCL 0.11 compiles for.
const KNOWN: [&str; 7] = ["gfx908", "gfx90a", "gfx94", "gfx101", "gfx103", "gfx11", "gfx12"];

/// Where the kernel driver lists what it drives.
const TOPOLOGY: &str = "/sys/class/kfd/kfd/topology/nodes";

/// The GPUs that HIP lists, none if one of them can't be compiled for.
pub(super) fn devices() -> Vec<Device> {
    if unknown(Path::new(TOPOLOGY)).is_empty() { super::list(DeviceType::Rocm) } else { Vec::new() }
}

/// What ROCm needs, and what of that is missing here.
pub(super) fn needs() -> String {
    let unknown = unknown(Path::new(TOPOLOGY));
    if !cubecl_hip_sys::is_available() {
        return "ROCm: libamdhip64.so and libhiprtc.so, which aren't in $ROCM_PATH/lib, $HIP_PATH/lib or the loader's path; \
                set ROCM_PATH if ROCm is elsewhere"
            .to_owned();
    }
    if !unknown.is_empty() {
        return format!(
            "ROCm: it's there, but this build's kernel compiler doesn't know {} (it knows {}*)",
            unknown.join(", "),
            KNOWN.join("*, ")
        );
    }
    "ROCm: libamdhip64.so and libhiprtc.so are there, but list no device; may this user read /dev/kfd?"
        .to_owned()
}

/// Product, architecture, memory and matrix units of HIP's device number `index`; opens nothing.
pub(super) fn details(index: usize) -> Option<String> {
    let index = c_int::try_from(index).ok()?;
    // SAFETY: a C struct of numbers and arrays of them, for which zeros are values; HIP fills it where it returns success. The
    // function is loaded: HIP has listed this device.
    let properties = unsafe {
        let mut properties: cubecl_hip_sys::hipDeviceProp_tR0600 = std::mem::zeroed();
        let status = cubecl_hip_sys::hipGetDevicePropertiesR0600(&mut properties, index);
        (status == cubecl_hip_sys::HIP_SUCCESS).then_some(properties)?
    };
    let architecture = text(&properties.gcnArchName);
    let architecture = architecture.split(':').next().unwrap_or_default();
    let gibibytes = properties.totalGlobalMem as f64 / (1u64 << 30) as f64;
    let units = matrix_units(architecture);
    Some(format!("{}, {architecture}, {gibibytes:.1} GiB of memory, {units}", text(&properties.name)))
}

/// A C string in an array that it needn't fill.
fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> =
        characters.iter().map(|&character| character as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What multiplies matrices there.
fn matrix_units(architecture: &str) -> &'static str {
    let is = |prefixes: &[&str]| prefixes.iter().any(|prefix| architecture.starts_with(prefix));
    match architecture {
        _ if is(&["gfx908", "gfx90a", "gfx94", "gfx95"]) => "matrix units: MFMA",
        _ if is(&["gfx11", "gfx12"]) => "matrix units: WMMA",
        _ => "no matrix units",
    }
}

/// Architectures of this machine's GPUs that aren't [`KNOWN`].
fn unknown(topology: &Path) -> Vec<String> {
    let nodes = std::fs::read_dir(topology).into_iter().flatten().flatten();
    let mut unknown: Vec<String> = nodes
        .filter_map(|node| std::fs::read_to_string(node.path().join("properties")).ok())
        .filter_map(|properties| architecture(&properties))
        .filter(|architecture| !KNOWN.iter().any(|known| architecture.starts_with(known)))
        .collect();
    unknown.sort();
    unknown.dedup();
    unknown
}

/// The architecture in a node's properties: `gfx_target_version 90402` is gfx942, 0 a CPU.
fn architecture(properties: &str) -> Option<String> {
    let version = properties.lines().find_map(|line| line.strip_prefix("gfx_target_version "))?;
    let version: u32 = version.trim().parse().ok()?;
    (version != 0).then(|| format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_read_as_the_compiler_writes_them() {
        for (version, expected) in
            [(90_402, "gfx942"), (90_010, "gfx90a"), (90_500, "gfx950"), (110_000, "gfx1100")]
        {
            let properties = format!("cpu_cores_count 0\ngfx_target_version {version}\nvendor_id 4098\n");
            assert_eq!(architecture(&properties).as_deref(), Some(expected));
        }
        assert_eq!(architecture("gfx_target_version 0\n"), None);
        assert_eq!(architecture("vendor_id 4098\n"), None);
    }

    #[test]
    fn matrix_units_by_architecture() {
        assert_eq!(matrix_units("gfx942"), "matrix units: MFMA");
        assert_eq!(matrix_units("gfx1100"), "matrix units: WMMA");
        assert_eq!(matrix_units("gfx1030"), "no matrix units");
        assert_eq!(text(&[b'g' as c_char, b'f' as c_char, 0, 1]), "gf");
    }

    #[test]
    fn an_unknown_architecture_is_found_among_the_nodes() {
        let topology = tempfile::tempdir().expect("a folder for the test");
        for (node, version) in [("0", 0), ("1", 90_402), ("2", 90_500)] {
            std::fs::create_dir(topology.path().join(node)).expect("a node");
            let properties = format!("gfx_target_version {version}\n");
            std::fs::write(topology.path().join(node).join("properties"), properties)
                .expect("its properties");
        }
        assert_eq!(unknown(topology.path()), ["gfx950"]);
        assert!(unknown(&topology.path().join("nowhere")).is_empty());
    }
}
