//! Every kernel's HIP text, for AMD architectures that aren't here: `tests/amd/compile.py` compiles what the tests named `hip_text`
//! leave in `target/amd/generated/<arch>/`, a text and a description of how it's launched.
//!
//! A kernel lists itself beside its launch: names, layouts and one launch as an example. Which buffers it reads and writes, its
//! shared memory and the layout of the info buffer come from CubeCL, as in a launch on a GPU.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use cubecl::ir::amd::GfxArch;
use cubecl::ir::features::{Features, Plane};
use cubecl::ir::metadata::Info;
use cubecl::ir::{
    DeviceIdentity, DeviceProperties, ElemType, FloatKind, HardwareProperties, IntKind,
    MemoryDeviceProperties, TargetProperties, UIntKind, VectorSize,
};
use cubecl::prelude::*;
use cubecl::{Compiler, InfoBuilder, ScalarArgType, define_kernel};
use cubecl_cpp::hip::mma::HipCmmaCompiler;
use cubecl_cpp::register_supported_types;
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, CppSupportedFeatures, register_wmma_features};
use cubecl_cpp::target::Hip;
use serde_json::{Map, Value, json};

use super::{UNITS, cube_dim, grid};

pub(crate) const BF16: ElemType = ElemType::Float(FloatKind::BF16);
pub(crate) const F32: ElemType = ElemType::Float(FloatKind::F32);
pub(crate) const I32: ElemType = ElemType::Int(IntKind::I32);
pub(crate) const U32: ElemType = ElemType::UInt(UIntKind::U32);

/// Waves of 64 lanes, with and without the newer matrix units, and waves of 32.
const ARCHITECTURES: [&str; 3] = ["gfx90a", "gfx942", "gfx1100"];

/// A kernel, and one launch of it as an example.
pub(crate) struct Kernel {
    name: String,
    sizes: Vec<(&'static str, usize)>,
    buffers: Vec<Value>,
    /// In their order, which is that of the info buffer within a type.
    scalars: Vec<(&'static str, ElemType, Value)>,
    elements: Map<String, Value>,
    info: InfoBuilder,
    cubes: (String, [u32; 3]),
    matrix_units: bool,
}

impl Kernel {
    /// For elements of `types`, with `sizes` in the example. A size may be called by what it is, such as `ceil(rows/64)`.
    pub(crate) fn new<const N: usize>(
        name: &str,
        types: &[ElemType],
        sizes: [(&'static str, usize); N],
    ) -> Self {
        let types: String = types.iter().map(|&element| format!("_{element}")).collect();
        Self {
            name: format!("{name}{types}"),
            sizes: sizes.to_vec(),
            buffers: Vec::new(),
            scalars: Vec::new(),
            elements: Map::new(),
            info: InfoBuilder::default(),
            cubes: (String::new(), [1; 3]),
            matrix_units: false,
        }
    }

    /// Its purpose are matrix units: compiled, it must have their instructions.
    pub(crate) fn on_matrix_units(mut self) -> Self {
        self.matrix_units = true;
        self
    }

    /// The next buffer; its layout are axes such as `"tokens, heads*64"`, of sizes and numbers.
    pub(crate) fn buffer(mut self, name: &'static str, element: ElemType, layout: &str) -> Self {
        let elements: usize = layout.split(", ").map(|axis| self.product(axis)).product();
        self.info.metadata.register_buffer(elements as u64, AddressType::U32);
        self.elements.insert(name.to_owned(), elements.into());
        self.buffers.push(json!({
            "name": name,
            "dtype": dtype(element),
            "layout": format!("[{}]", layout.replace('*', " * ")),
        }));
        self
    }

    /// The next scalar, a number of type `T`.
    pub(crate) fn scalar<T: ScalarArgType + Into<Value>>(mut self, name: &'static str, value: T) -> Self {
        self.info.scalars.push(value);
        self.scalars.push((name, T::cube_type(), value.into()));
        self
    }

    /// The next scalar, a `usize` called like the product of sizes that it is.
    pub(crate) fn size(self, name: &'static str) -> Self {
        let value = self.product(name);
        self.named_size(name, value)
    }

    /// The next scalar, a `usize`.
    pub(crate) fn named_size(mut self, name: &'static str, value: usize) -> Self {
        let value = value as u32; // as wide as addresses
        self.info.scalars.push_raw(&value.to_ne_bytes(), ElemType::Index);
        self.scalars.push((name, ElemType::Index, value.into()));
        self
    }

    /// Launched on [`grid`] of a product of sizes.
    pub(crate) fn cubes(mut self, cubes: &str) -> Self {
        self.cubes = (format!("{cubes} cubes"), count(self.product(cubes)));
        self
    }

    /// Launched with a unit for each of a product of sizes.
    pub(crate) fn units(mut self, units: &str) -> Self {
        self.cubes = (format!("ceil({units} / {UNITS}) cubes"), count(self.product(units).div_ceil(UNITS)));
        self
    }

    fn product(&self, axis: &str) -> usize {
        let factor = |name: &str| {
            let size = self.sizes.iter().find(|(size, _)| *size == name).map(|(_, value)| *value);
            size.or_else(|| name.parse().ok()).unwrap_or_else(|| panic!("{}: {name} is no size", self.name))
        };
        // A name may have a product in it.
        if self.sizes.iter().any(|(size, _)| *size == axis) {
            factor(axis)
        } else {
            axis.split('*').map(factor).product()
        }
    }

    /// Writes text and description for each architecture. `kernel` is given what a kernel's `new` begins with, and a function
    /// that makes a buffer's argument.
    pub(crate) fn write<K: CubeKernel>(
        mut self,
        kernel: impl Fn(
            KernelSettings,
            Arc<DeviceProperties>,
            Arc<TargetProperties>,
            fn() -> BufferCompilationArg,
        ) -> K,
    ) {
        let words = self.info.finish(AddressType::U32).data;
        for name in ARCHITECTURES {
            let architecture = GfxArch::parse(name);
            let settings = KernelSettings::new(cube_dim().into(), ExecutionMode::Checked, AddressType::U32);
            let buffer: fn() -> BufferCompilationArg = || BufferCompilationArg { inplace: None };
            let kernel = kernel(settings, Arc::new(properties(name)), Arc::default(), buffer);
            let definition = define_kernel(&kernel).expect("the kernel expands");
            let (entry, info) = (definition.settings.kernel_name.clone(), definition.info.clone());
            let compiled = CppCompiler::<Hip>::default()
                .compile(definition, &options(&architecture))
                .unwrap_or_else(|error| panic!("{} for {name}: {error:?}", self.name));
            assert_eq!(compiled.io.len(), self.buffers.len(), "{}: every buffer is listed", self.name);
            assert_eq!(8 * words.len(), info.dynamic_meta_offset, "{}: every scalar is listed", self.name);

            let directions = compiled.io.iter().map(|io| match (io.is_readable(), io.is_writable()) {
                (true, true) => "inout",
                (false, true) => "out",
                (true, false) => "in",
                (false, false) => "unused",
            });
            let mut arguments = self.buffers.clone();
            for (argument, direction) in arguments.iter_mut().zip(directions) {
                argument["direction"] = direction.into();
            }
            if !words.is_empty() {
                arguments.push(
                    json!({"name": "info", "direction": "in", "dtype": "struct", "layout": "see info"}),
                );
            }
            let cube = cube_dim();
            let description = json!({
                "entry": entry,
                "grid": format!("{} or more, which do nothing, over x up to 65535, then y, then z", self.cubes.0),
                "block": [cube.x, cube.y, cube.z],
                "wave": architecture.plane_dim(),
                "dynamic_lds_bytes": compiled.shared_memory_size,
                "matrix_units": self.matrix_units,
                "arguments": arguments,
                "passing": "one 64-bit pointer to device memory for each argument, tensors contiguous, the info buffer last",
                "info": {"bytes": 8 * words.len(), "fields": self.fields(&info)},
                "example": {
                    "sizes": self.sizes.iter().map(|(name, size)| ((*name).to_owned(), (*size).into())).collect::<Map<_, _>>(),
                    "grid": self.cubes.1,
                    "elements": self.elements,
                    "scalars": self.scalars.iter().map(|(name, _, value)| ((*name).to_owned(), value.clone())).collect::<Map<_, _>>(),
                    "info_words": words.iter().map(|word| format!("{word:#018x}")).collect::<Vec<_>>(),
                },
            });
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/amd/generated").join(name);
            fs::create_dir_all(&folder).expect("target is writable");
            let description =
                serde_json::to_string_pretty(&description).expect("JSON of strings and numbers");
            fs::write(folder.join(format!("{}.hip", self.name)), &compiled.source)
                .expect("target is writable");
            fs::write(folder.join(format!("{}.json", self.name)), description).expect("target is writable");
        }
    }

    /// What lies where in the info buffer: scalars, type by type, then the length of each buffer.
    fn fields(&self, info: &Info) -> Vec<Value> {
        let field = |offset: usize, name: String, element: ElemType| json!({"offset": offset, "name": name, "dtype": dtype(element)});
        let mut fields = Vec::new();
        for of_type in &info.scalars {
            let names = self.scalars.iter().filter(|(_, element, _)| *element == of_type.ty);
            let size = of_type.ty.expand_size(AddressType::U32);
            fields.extend(
                names
                    .enumerate()
                    .map(|(i, (name, ..))| field(of_type.offset + i * size, (*name).to_owned(), of_type.ty)),
            );
        }
        if let Some(lengths) = &info.sized_meta {
            let names = self.buffers.iter().map(|buffer| buffer["name"].as_str().unwrap_or_default());
            fields.extend(
                names
                    .enumerate()
                    .map(|(i, name)| field(lengths.offset + 4 * i, format!("elements of {name}"), U32)),
            );
        }
        fields
    }
}

fn count(cubes: usize) -> [u32; 3] {
    match grid(cubes) {
        CubeCount::Static(x, y, z) => [x, y, z],
        CubeCount::Dynamic(_) => unreachable!("sizes are known"),
    }
}

fn dtype(element: ElemType) -> &'static str {
    match element {
        BF16 => "bfloat16",
        F32 => "float32",
        I32 => "int32",
        U32 | ElemType::Index => "uint32",
        other => panic!("{other:?} needs a name"),
    }
}

/// What CubeCL's HIP runtime compiles with.
fn options(architecture: &GfxArch) -> CompilationOptions {
    CompilationOptions {
        warp_size: architecture.plane_dim().expect("an architecture that CubeCL knows") as usize,
        supports_features: CppSupportedFeatures { fast_math: true, ..Default::default() },
        amd_wmma: architecture.wmma(),
    }
}

/// What CubeCL's HIP runtime says of a device, as far as kernels ask.
pub(crate) fn properties(architecture: &str) -> DeviceProperties {
    let architecture = GfxArch::parse(architecture);
    let plane = architecture.plane_dim().expect("an architecture that CubeCL knows");
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: plane,
        plane_size_max: plane,
        max_bindings: 32,
        max_shared_memory_size: 65_536,
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
    let identity =
        DeviceIdentity { name: "offline".to_owned(), fingerprint: "offline".to_owned(), physical: None };
    let mut properties = DeviceProperties::new(
        Features::default(),
        MemoryDeviceProperties::new(u64::MAX, 256),
        hardware,
        cubecl::profile::TimingMethod::Device,
        identity,
    );
    register_supported_types(&mut properties);
    properties.features.plane.insert(Plane::Ops);
    properties.features.plane.insert(Plane::NonUniformControlFlow);
    properties.features.memory_reinterpret = true;
    properties.features.alignment = true;
    let products = HipCmmaCompiler::RocWmma.supported_cmma_combinations(&architecture.family());
    register_wmma_features(products, &mut properties);
    properties
}
