use std::collections::HashSet;

use cubecl::ir::features::Features;
use cubecl::ir::{DeviceIdentity, HardwareProperties, MemoryDeviceProperties, VectorSize};
use cubecl::profile::TimingMethod;

use super::*;

const F32: ElemType = ElemType::Float(FloatKind::F32);
const BF16: ElemType = ElemType::Float(FloatKind::BF16);
const PASSES: [Pass; 3] = [Pass::Forward, Pass::Queries, Pass::Keys];
const HEAD_DIMS: [usize; 7] = [16, 18, 64, 80, 96, 128, 256];

/// A device with this much shared memory, planes of `lanes` units and matrix units for bfloat16 or none.
fn device(shared: usize, lanes: u32, matrix_units: bool) -> DeviceProperties {
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: lanes,
        plane_size_max: lanes,
        max_bindings: 32,
        max_shared_memory_size: shared,
        max_cube_count: (u32::MAX, 65_535, 65_535),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 1024),
        num_streaming_multiprocessors: None,
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: VectorSize::MAX,
        cube_mma_reserved_shared_memory: 0,
    };
    let mut features = Features { memory_reinterpret: true, alignment: true, ..Features::default() };
    features.plane.insert(Plane::Ops);
    if matrix_units {
        let product = MmaConfig { a_type: BF16, b_type: BF16, cd_type: F32, m: 16, n: 16, k: 16 };
        features.matmul.cmma.insert(product);
    }
    let identity = DeviceIdentity { name: "test".into(), fingerprint: "test".into(), physical: None };
    let memory = MemoryDeviceProperties::new(u64::MAX, 256);
    DeviceProperties::new(features, memory, hardware, TimingMethod::Device, identity)
}

#[test]
fn every_variant_fits_its_device() {
    for shared in [16, 32, 48, 64].map(|kib| kib * 1024) {
        for lanes in [32, 64] {
            let device = device(shared, lanes, true);
            for (pass, head_dim) in
                PASSES.into_iter().flat_map(|pass| HEAD_DIMS.map(|head_dim| (pass, head_dim)))
            {
                let found = variants(pass, head_dim, BF16, &device);
                assert!(matches!(found.first(), Some(Variant::Plain(_))), "the table has no matrix units");
                assert!(found.len() <= 2 * MEASURED);
                let names: HashSet<String> = found.iter().map(ToString::to_string).collect();
                assert_eq!(names.len(), found.len(), "a name is one variant's");
                for variant in found {
                    let (bytes, words) = match variant {
                        Variant::Plain(tile) => (tile.shared_bytes(), registers(pass, tile)),
                        Variant::Matrix(tile) => {
                            assert!(tile.fit() && tile.head_dim == head_dim, "{tile:?}");
                            (tile.shared_bytes(pass.operands()), 0)
                        }
                    };
                    assert!(
                        bytes <= shared && words <= REGISTERS,
                        "{pass} {head_dim}: {variant} {bytes} {words}"
                    );
                }
            }
        }
    }
}

#[test]
fn matrix_units_are_offered_where_they_are() {
    let matrix = |device: &DeviceProperties, dtype, pass, head_dim| {
        variants(pass, head_dim, dtype, device).iter().any(|variant| matches!(variant, Variant::Matrix(_)))
    };
    for pass in PASSES {
        for lanes in [32, 64] {
            let able = device(65_536, lanes, true);
            for head_dim in [64, 80, 96, 128, 256] {
                assert!(matrix(&able, BF16, pass, head_dim), "{pass} {head_dim} {lanes}");
            }
            assert!(!matrix(&able, F32, pass, 64), "float32 is no operand of theirs");
            assert!(!matrix(&able, BF16, pass, 72), "no whole fragments");
            assert!(!matrix(&device(65_536, lanes, false), BF16, pass, 64));
        }
        assert!(matrix(&device(49_152, 32, true), BF16, pass, 128), "{pass} in 48 KiB");
        assert!(!matrix(&device(65_536, 8, true), BF16, pass, 64), "a row's units must share a plane");
    }
}

#[test]
fn heads_that_are_too_wide_and_devices_that_are_too_small_have_none() {
    for pass in PASSES {
        assert!(variants(pass, 257, F32, &device(65_536, 32, false)).is_empty());
        assert!(variants(pass, 0, F32, &device(65_536, 32, false)).is_empty());
        assert!(variants(pass, 64, F32, &device(4096, 32, false)).is_empty());
    }
}
