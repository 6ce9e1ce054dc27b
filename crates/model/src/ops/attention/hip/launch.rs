//! The kernels on CubeCL's stream and buffers: a kernel of CubeCL that brings its own text is compiled by hiprtc, kept in its cache
//! and launched like those that it generates.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::metadata::Info;
use cubecl::ir::settings::Dim3;
use cubecl::ir::{ElemType, UIntKind};
use cubecl::prelude::*;
use cubecl::server::{Handle, KernelArguments, MetadataBindingInfo};
use cubecl::{CubeKernel, PrecompiledSource};

use super::super::super::cube::empty;
use super::super::{Layout, Spec};
use super::ranges::{Range, Ranges};
use super::{BLOCK, Kernel, covers, window};

/// The only architecture that the kernels were laid out for.
const ARCHITECTURE: &str = "gfx942";
/// Threads of a workgroup: four waves.
const THREADS: u32 = 256;

/// A kernel for one width of heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Text {
    kernel: Kernel,
    head_dim: usize,
}

impl Text {
    fn new(kernel: Kernel, spec: &Spec) -> Self {
        Self { kernel, head_dim: spec.head_dim }
    }

    fn cube_dim() -> Dim3 {
        Dim3 { x: THREADS, y: 1, z: 1 }
    }
}

impl KernelMetadata for Text {
    fn name(&self) -> &'static str {
        self.kernel.entry()
    }

    fn id(&self) -> KernelId {
        // Caches, on disk too, are keyed by this and never see the text.
        KernelId::new::<Self>().info((*self, self.kernel.source(self.head_dim))).cube_dim(Self::cube_dim())
    }

    fn address_type(&self) -> ElemType {
        ElemType::UInt(UIntKind::U64)
    }
}

impl CubeKernel for Text {
    fn define(&self) -> KernelDefinition {
        let settings = KernelSettings::new(Self::cube_dim(), ExecutionMode::Unchecked, AddressType::U64)
            .kernel_name(self.kernel.entry());
        KernelDefinition { body: Scope::root(settings.clone()), settings, info: Info::default() }
    }

    fn source(&self) -> Option<PrecompiledSource> {
        Some(PrecompiledSource {
            source: self.kernel.source(self.head_dim),
            entrypoint_name: self.kernel.entry().to_owned(),
            lang: "hip",
        })
    }
}

/// Whether the kernels compute `spec` where `q` lives.
pub(in super::super) fn runs_on(q: &CubeTensor, spec: &Spec) -> bool {
    let identity = &q.client.properties().identity;
    let architecture = identity.fingerprint.trim_start_matches("hip-kernel_");
    q.client.name() == "hip" && architecture.starts_with(ARCHITECTURE) && covers(spec, q.dtype)
}

/// [`super::super::forward`] on contiguous buffers where [`runs_on`] holds.
pub(in super::super) fn forward(
    [q, k, v]: &[CubeTensor; 3],
    layout: &Layout,
    spec: &Spec,
) -> (CubeTensor, CubeTensor) {
    let call = Call::new(q, layout, spec);
    let out = empty([layout.num_tokens(), spec.num_query_heads * spec.head_dim], DType::BF16, q);
    let lse = empty([layout.num_tokens(), spec.num_query_heads], DType::F32, q);
    let ranges = call.upload(&call.ranges.keys);
    let [q, k, v, out_buffer, lse_buffer] = [q, k, v, &out, &lse].map(|buffer| buffer.handle.clone());
    let buffers = [q, k, v, call.segments.clone(), ranges, out_buffer, lse_buffer];
    call.launch(Kernel::Forward, spec.num_query_heads, buffers);
    (out, lse)
}

/// [`super::super::backward`] on contiguous buffers where [`runs_on`] holds: of q, k, v, out, lse and dout.
pub(in super::super) fn backward(
    [q, k, v, out, lse, dout]: &[CubeTensor; 6],
    layout: &Layout,
    spec: &Spec,
) -> [CubeTensor; 3] {
    let call = Call::new(q, layout, spec);
    let like = |heads: usize| empty([layout.num_tokens(), heads * spec.head_dim], DType::BF16, q);
    let (dq, dk, dv) = (like(spec.num_query_heads), like(spec.num_kv_heads), like(spec.num_kv_heads));
    let delta = empty([layout.num_tokens(), spec.num_query_heads], DType::F32, q);
    let handle = |buffer: &CubeTensor| buffer.handle.clone();

    let inputs = [q, k, v, out, dout, lse].map(handle);
    let tables = [call.segments.clone(), call.upload(&call.ranges.keys)];
    let results = [&dq, &delta].map(handle);
    let buffers = inputs.into_iter().chain(tables).chain(results);
    call.launch(Kernel::BackwardQueries, spec.num_query_heads, buffers);

    let inputs = [q, k, v, dout, lse, &delta].map(handle);
    let tables = [call.segments.clone(), call.upload(&call.ranges.queries)];
    let results = [&dk, &dv].map(handle);
    let buffers = inputs.into_iter().chain(tables).chain(results);
    call.launch(Kernel::BackwardKeys, spec.num_kv_heads, buffers);
    [dq, dk, dv]
}

/// What the launches of a call share.
struct Call<'a> {
    client: Client,
    layout: &'a Layout,
    spec: &'a Spec,
    segments: Handle,
    ranges: Ranges,
}

impl<'a> Call<'a> {
    fn new(q: &CubeTensor, layout: &'a Layout, spec: &'a Spec) -> Self {
        let client = q.client.clone();
        let segments = client.create_from_slice(bytemuck::cast_slice(layout.segment_ids()));
        Self { client, layout, spec, segments, ranges: Ranges::new(layout, window(spec)) }
    }

    fn upload(&self, ranges: &[Range]) -> Handle {
        self.client.create_from_slice(bytemuck::cast_slice(ranges))
    }

    fn launch(&self, kernel: Kernel, heads: usize, buffers: impl IntoIterator<Item = Handle>) {
        let arguments = buffers
            .into_iter()
            .fold(KernelArguments::new(), |arguments, buffer| arguments.with_buffer(buffer.binding()))
            .with_info(MetadataBindingInfo::custom(self.shape()));
        let blocks = self.layout.seq().div_ceil(BLOCK);
        let grid = CubeCount::Static(blocks as u32, heads as u32, self.layout.batch() as u32);
        self.client.launch(Box::new(Text::new(kernel, self.spec)), grid, arguments);
    }

    /// `struct Shape` of tile.h. CubeCL passes it behind the other arguments, in words of 64 bits.
    fn shape(&self) -> Vec<u64> {
        let pair = |low: usize, high: usize| low as u64 | (high as u64) << 32;
        let Spec { num_query_heads, num_kv_heads, .. } = *self.spec;
        vec![pair(self.layout.seq(), num_query_heads), pair(num_kv_heads, window(self.spec) as usize)]
    }
}
