//! Ranks over MPI: Open MPI or MPICH, as the system has it.
//!
//! All of MPI lives on one thread ([`thread`]): it initialises the library, does what it's ordered to, and finalises it. Tensors
//! lie in main memory meanwhile; those of a GPU are copied there and back. Operations are MPI's non-blocking ones, so that between
//! two looks at how far one is, the thread can tell the others that this process lives and hear that they do ([`watch`]).
//!
//! The library's own errors (a connection that breaks, lengths that differ between ranks) end all ranks with its message, as
//! MPI does unless it's told otherwise.

mod tensors;
mod thread;
mod watch;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use burn::tensor::{DType, Device, Tensor, TensorData};
use mt_model::profile::{Kind, span};

pub use tensors::Pieces;

use super::launch::{LaunchError, Place};
use super::launcher::Launcher;
use super::{Collective, CollectiveError, Group, Mesh, Operation, Pending, Reduce};
use thread::Order;

/// How long a failed rank waits for MPI to end it before it ends itself.
const LAST_WORDS: Duration = Duration::from_secs(15);

/// This process among those that MPI knows of.
pub(super) struct Mpi {
    place: Place,
    orders: Sender<Order>,
    shared: Arc<Shared>,
}

/// What the thread looks at between two looks at an operation.
#[derive(Default)]
struct Shared {
    /// Why this process can't go on.
    failure: Mutex<Option<Failure>>,
    /// Operations ordered so far.
    started: AtomicU64,
}

/// Why a process can't go on, and what it ends with.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure {
    why: String,
    exit_code: u8,
}

impl Shared {
    fn failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Mpi {
    /// Initialises MPI and meets the others.
    pub(super) fn start(launcher: &Launcher) -> Result<Self, LaunchError> {
        let (orders, arriving) = channel();
        let (answer, launched) = sync_channel(1);
        let shared = Arc::new(Shared::default());
        let (launcher, theirs) = (launcher.clone(), Arc::clone(&shared));
        std::thread::Builder::new()
            .name("mpi".to_owned())
            .spawn(move || thread::run(&launcher, &arriving, &theirs, &answer))
            .map_err(|error| LaunchError::Thread(error.to_string()))?;
        let place = launched.recv().map_err(|_| LaunchError::Thread("it ended".to_owned()))??;
        Ok(Self { place, orders, shared })
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Waits until all ranks are here.
    pub(super) fn meet(&self) -> Result<(), CollectiveError> {
        let gone = || CollectiveError {
            rank: self.place.rank,
            operation: "meet".to_owned(),
            reason: thread::GONE.to_owned(),
        };
        let (answer, answered) = sync_channel(1);
        self.shared.started.fetch_add(1, Ordering::Relaxed);
        self.orders.send(Order::FromFirst { bytes: Vec::new(), answer }).map_err(|_| gone())?;
        answered.recv().map(drop).map_err(|_| gone())
    }

    /// Communicators for a grid. All ranks call it.
    pub(super) fn collective(&self, mesh: Mesh, pieces: Pieces) -> Result<Ranks, CollectiveError> {
        let ranks = Ranks {
            mesh,
            orders: self.orders.clone(),
            shared: Arc::clone(&self.shared),
            moved: AtomicU64::new(0),
        };
        ranks.answer("grid of ranks", |answer| Order::Connect { mesh, pieces, answer })?;
        Ok(ranks)
    }

    /// Waits until all ranks are done, and finalises MPI.
    pub(super) fn finish(&self) {
        let (answer, done) = sync_channel(1);
        if self.orders.send(Order::Finish { answer }).is_ok() {
            // It ends without an answer only with the process.
            let _ = done.recv();
        }
    }

    /// Tells the others why this rank can't go on, and ends all of them.
    pub(super) fn fail(&self, why: &str, exit_code: u8) -> ! {
        let failure = Failure { why: why.to_owned(), exit_code };
        *self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        std::thread::sleep(LAST_WORDS);
        eprintln!("error: rank {}: {why}", self.place.rank);
        std::process::exit(exit_code.into())
    }
}

/// A grid of ranks over MPI.
pub(super) struct Ranks {
    mesh: Mesh,
    orders: Sender<Order>,
    shared: Arc<Shared>,
    moved: AtomicU64,
}

impl Ranks {
    fn error(&self, operation: &str, reason: &str) -> CollectiveError {
        let (operation, reason) = (operation.to_owned(), reason.to_owned());
        CollectiveError { rank: self.mesh.rank, operation, reason }
    }

    /// Gives an order and waits for what comes of it.
    fn answer<T>(
        &self,
        operation: &str,
        order: impl FnOnce(SyncSender<T>) -> Order,
    ) -> Result<T, CollectiveError> {
        let (answer, answered) = sync_channel(1);
        let gone = || self.error(operation, thread::GONE);
        self.shared.started.fetch_add(1, Ordering::Relaxed);
        self.orders.send(order(answer)).map_err(|_| gone())?;
        answered.recv().map_err(|_| gone())
    }

    /// Says what's wrong with an operation on this tensor, if anything is.
    fn check(&self, group: Group, operation: Operation, tensor: &TensorData) -> Result<(), CollectiveError> {
        let ranks = self.mesh.size(group);
        let wrong = |reason: String| Err(self.error(operation.name(), &reason));
        let is_sum = matches!(operation, Operation::AllReduce | Operation::ReduceScatter);
        match operation {
            _ if is_sum && tensor.dtype() != DType::F32 => {
                wrong(format!("sums are of float32, the tensor is of {:?}", tensor.dtype()))
            }
            Operation::ReduceScatter if !tensor.num_elements().is_multiple_of(ranks) => {
                wrong(format!("{} elements can't be divided among {ranks} ranks", tensor.num_elements()))
            }
            Operation::Broadcast { root } if root >= ranks => {
                wrong(format!("the group has {ranks} ranks, and no rank {root}"))
            }
            _ => Ok(()),
        }
    }
}

impl Collective for Ranks {
    fn mesh(&self) -> Mesh {
        self.mesh
    }

    fn start(
        &self,
        group: Group,
        operation: Operation,
        tensors: Vec<Tensor<1>>,
    ) -> Result<Pending, CollectiveError> {
        let devices: Vec<Device> = tensors.iter().map(|tensor| tensor.device()).collect();
        // No copy on the CPU, unless somebody else holds the tensor too.
        let tensors: Vec<TensorData> = tensors.into_iter().map(Tensor::into_data).collect();
        let ranks = self.mesh.size(group);
        for tensor in &tensors {
            self.check(group, operation, tensor)?;
            let bytes = operation.whole(tensor.as_bytes().len(), ranks);
            self.moved.fetch_add(operation.bytes_moved(bytes as u64, ranks), Ordering::Relaxed);
        }
        let gone = self.error(operation.name(), thread::GONE);
        let (answer, answered) = sync_channel(1);
        self.shared.started.fetch_add(1, Ordering::Relaxed);
        self.orders.send(Order::Tensors { group, operation, tensors, answer }).map_err(|_| gone.clone())?;
        Ok(Pending::new(move || {
            let _span = span(Kind::Collective, "collective.wait");
            let results: Vec<TensorData> = answered.recv().map_err(|_| gone)?;
            let back = |(data, device): (TensorData, &Device)| {
                let dtype = data.dtype();
                Tensor::from_data(data, (device, dtype))
            };
            Ok(results.into_iter().zip(&devices).map(back).collect())
        }))
    }

    fn reduce(&self, how: Reduce, values: &mut [f64]) -> Result<(), CollectiveError> {
        let mine = values.to_vec();
        let all = self.answer("reduce", |answer| Order::Reduce { how, values: mine, answer })?;
        values.copy_from_slice(&all);
        Ok(())
    }

    fn from_first(&self, bytes: Vec<u8>) -> Result<Vec<u8>, CollectiveError> {
        self.answer("from_first", |answer| Order::FromFirst { bytes, answer })
    }

    fn bytes_moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }
}
