//! A grid of ranks with a GPU each: tensors go from GPU to GPU by the library, host values over MPI.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::{DType, Device, Tensor};
use mt_model::device::raw::{self, RawTensor, Vendor};
use mt_model::profile::{Kind, span};
use tracing::{info, warn};

use super::super::{Collective, CollectiveError, Group, Mesh, Operation, Pending, Reduce};
use super::{Buffers, Communicator, Element, Rccl, RcclError, Runtime, Stream, Streams, UniqueId};

/// The groups that this rank is in, and a stream for what they do.
struct Groups {
    /// None where the group is this rank alone.
    communicators: [Option<Communicator>; 3],
    stream: Stream,
    rank: usize,
}

/// Ranks whose tensors lie on GPUs.
pub(in super::super) struct GpuRanks<H> {
    host: H,
    groups: Rc<Groups>,
    moved: AtomicU64,
}

impl<H: Collective> GpuRanks<H> {
    /// Ranks on `device`, over `host` for what isn't a tensor. `Err(host)` when the device isn't one of HIP's or CUDA's, or when one
    /// of the ranks has no library: then tensors go through main memory.
    pub(in super::super) fn over(host: H, device: &Device) -> Result<Result<Self, H>, CollectiveError> {
        let Some((vendor, number)) = raw::vendor(device) else { return Ok(Err(host)) };
        let runtime = match vendor {
            Vendor::Hip => Runtime::Hip,
            Vendor::Cuda => Runtime::Cuda,
        };
        let loaded = Rccl::load(&Rccl::names(runtime))
            .and_then(|library| Ok((library, Streams::load(runtime, &runtime.names())?)));
        // All ranks or none.
        let mut missing = [f64::from(loaded.is_err())];
        host.reduce(Reduce::Max, &mut missing)?;
        let (library, streams) = match loaded {
            Ok(loaded) if missing == [0.0] => loaded,
            loaded => {
                let why =
                    loaded.err().map_or("it's missing on another rank".to_owned(), |error| error.to_string());
                warn!("tensors go from GPU to GPU through main memory, which is slow: {why}");
                return Ok(Err(host));
            }
        };
        let mesh = host.mesh();
        let failed = |error: RcclError| of_rank(mesh.rank, "communicators of GPUs", &error.to_string());
        info!("collectives by {}", library.version().map_err(failed)?);
        let groups = Groups::join(&host, library, &streams, number).map_err(|error| match error {
            JoinError::Host(error) => error,
            JoinError::Library(error) => failed(error),
        })?;
        Ok(Ok(Self { host, groups: Rc::new(groups), moved: AtomicU64::new(0) }))
    }
}

enum JoinError {
    Host(CollectiveError),
    Library(RcclError),
}

impl From<RcclError> for JoinError {
    fn from(error: RcclError) -> Self {
        Self::Library(error)
    }
}

impl Groups {
    fn join(
        host: &dyn Collective,
        library: Rccl,
        streams: &Arc<Streams>,
        device: usize,
    ) -> Result<Self, JoinError> {
        let mesh = host.mesh();
        let library = Arc::new(library);
        streams.use_device(device)?;
        // The world, each copy of the model, each shard. Rank 0 makes them.
        let mut ids = Vec::new();
        for _ in 0..if mesh.is_first() { 1 + mesh.data + mesh.fsdp } else { 0 } {
            ids.extend(library.unique_id()?.to_bytes());
        }
        let ids = host.from_first(ids).map_err(JoinError::Host)?;
        let join = |group: Group, id: usize| {
            let bytes = ids.chunks_exact(size_of::<UniqueId>()).nth(id).unwrap_or_default();
            match (mesh.size(group), UniqueId::from_bytes(bytes)) {
                (ranks @ 2.., Some(id)) => {
                    Communicator::join(Arc::clone(&library), id, ranks, mesh.index(group)).map(Some)
                }
                _ => Ok(None),
            }
        };
        let communicators = [
            join(Group::World, 0)?,
            join(Group::Fsdp, 1 + mesh.index(Group::Data))?,
            join(Group::Data, 1 + mesh.data + mesh.index(Group::Fsdp))?,
        ];
        Ok(Self { communicators, stream: streams.stream()?, rank: mesh.rank })
    }

    fn of(&self, group: Group) -> Option<&Communicator> {
        let [world, fsdp, data] = &self.communicators;
        match group {
            Group::World => world.as_ref(),
            Group::Fsdp => fsdp.as_ref(),
            Group::Data => data.as_ref(),
        }
    }
}

/// What the library reads and writes; it waits when it's dropped, so that nobody else is given the memory before.
struct UnderWay {
    groups: Rc<Groups>,
    group: Group,
    inputs: Vec<RawTensor>,
    /// None where results are written over inputs.
    outputs: Option<Vec<RawTensor>>,
}

impl UnderWay {
    fn wait(&self) -> Result<(), RcclError> {
        self.groups.of(self.group).map_or(Ok(()), |communicator| communicator.wait(&self.groups.stream))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.inputs.is_empty() {
            // The error is that of the next operation too.
            let _ = self.wait();
        }
    }
}

impl<H: Collective> Collective for GpuRanks<H> {
    fn mesh(&self) -> Mesh {
        self.host.mesh()
    }

    fn start(
        &self,
        group: Group,
        operation: Operation,
        tensors: Vec<Tensor<1>>,
    ) -> Result<Pending, CollectiveError> {
        let groups = Rc::clone(&self.groups);
        let (rank, ranks) = (groups.rank, self.mesh().size(group));
        let Some(communicator) = groups.of(group) else { return Ok(Pending::new(move || Ok(tensors))) };
        let Some(dtype) = tensors.first().map(|tensor| tensor.dtype()) else {
            return Ok(Pending::new(move || Ok(tensors)));
        };
        let failed = |reason: String| of_rank(rank, operation.name(), &reason);
        let element = element(dtype).ok_or_else(|| failed(format!("tensors of {dtype:?} aren't moved")))?;
        let is_sum = matches!(operation, Operation::AllReduce | Operation::ReduceScatter);
        if is_sum && dtype != DType::F32 || tensors.iter().any(|tensor| tensor.dtype() != dtype) {
            return Err(failed(format!("sums are of float32, and tensors of one type; not of {dtype:?}")));
        }

        let mut inputs = Vec::new();
        for tensor in tensors {
            inputs.push(RawTensor::of(tensor).map_err(failed)?);
        }
        let length = |elements: usize| match operation {
            Operation::ReduceScatter if elements.is_multiple_of(ranks) => Ok(elements / ranks),
            Operation::ReduceScatter => {
                Err(failed(format!("{elements} elements can't be divided among {ranks} ranks")))
            }
            Operation::AllGather => Ok(elements * ranks),
            Operation::AllReduce | Operation::Broadcast { .. } => Ok(elements),
        };
        let outputs = match operation {
            Operation::AllReduce | Operation::Broadcast { .. } => None,
            Operation::ReduceScatter | Operation::AllGather => {
                let beside = |input: &RawTensor| input.beside(length(input.elements())?).map_err(failed);
                Some(inputs.iter().map(beside).collect::<Result<Vec<_>, _>>()?)
            }
        };
        let results = outputs.as_ref().unwrap_or(&inputs);
        let buffers: Vec<Buffers> = inputs
            .iter()
            .zip(results)
            .map(|(input, result)| Buffers {
                send: input.pointer(),
                receive: result.pointer(),
                elements: input.elements(),
            })
            .collect();
        raw::finish(&inputs[0]).map_err(failed)?;
        // SAFETY: the buffers are on this rank's device, of these types and lengths; what wrote them is done, and they live until
        // the stream is, which `UnderWay` waits for.
        unsafe { communicator.enqueue(operation, element, &buffers, &groups.stream) }
            .map_err(|error| failed(error.to_string()))?;
        for input in &inputs {
            let bytes = operation.whole(input.elements() * dtype.size(), ranks) as u64;
            self.moved.fetch_add(operation.bytes_moved(bytes, ranks), Ordering::Relaxed);
        }

        let mut under_way = UnderWay { groups: Rc::clone(&groups), group, inputs, outputs };
        Ok(Pending::new(move || {
            let _span = span(Kind::Collective, operation.name());
            under_way.wait().map_err(|error| of_rank(rank, operation.name(), &error.to_string()))?;
            let inputs = std::mem::take(&mut under_way.inputs);
            let results = under_way.outputs.take().unwrap_or(inputs);
            Ok(results.into_iter().map(RawTensor::into_tensor).collect())
        }))
    }

    fn reduce(&self, how: Reduce, values: &mut [f64]) -> Result<(), CollectiveError> {
        self.host.reduce(how, values)
    }

    fn from_first(&self, bytes: Vec<u8>) -> Result<Vec<u8>, CollectiveError> {
        self.host.from_first(bytes)
    }

    fn bytes_moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }
}

fn of_rank(rank: usize, operation: &str, reason: &str) -> CollectiveError {
    CollectiveError { rank, operation: operation.to_owned(), reason: reason.to_owned() }
}

/// What a GPU's tensors are of.
fn element(dtype: DType) -> Option<Element> {
    match dtype {
        DType::F32 => Some(Element::F32),
        DType::F16 => Some(Element::F16),
        DType::BF16 => Some(Element::Bf16),
        _ => None,
    }
}
