//! The thread that MPI lives on.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, SystemTime};

use burn::tensor::TensorData;
use mpi::Threading;
use mpi::environment::Universe;
use mpi::topology::{Color, SimpleCommunicator};
use mpi::traits::{Communicator, CommunicatorCollectives};
use mt_model::profile::{Kind, span};

use super::super::launch::{LaunchError, Place};
use super::super::launcher::Launcher;
use super::super::{Group, Mesh, Operation, Reduce, process};
use super::Shared;
use super::tensors::{Channel, Pieces};
use super::watch::{Peer, Watch};

/// What a rank says when the thread is gone.
pub(super) const GONE: &str = "the thread that talks to MPI has ended";
/// How long the thread waits for an order before it looks after the others.
const IDLE: Duration = Duration::from_millis(50);
/// Bytes of a machine's name that others are told.
const HOST: usize = 64;

/// What the thread is asked for. Answers that nobody waits for belong to a run that is being given up.
pub(super) enum Order {
    Connect {
        mesh: Mesh,
        pieces: Pieces,
        answer: SyncSender<()>,
    },
    Tensors {
        group: Group,
        operation: Operation,
        tensors: Vec<TensorData>,
        answer: SyncSender<Vec<TensorData>>,
    },
    Reduce {
        how: Reduce,
        values: Vec<f64>,
        answer: SyncSender<Vec<f64>>,
    },
    FromFirst {
        bytes: Vec<u8>,
        answer: SyncSender<Vec<u8>>,
    },
    Finish {
        answer: SyncSender<()>,
    },
}

/// The whole life of MPI in this process.
pub(super) fn run(
    launcher: &Launcher,
    orders: &Receiver<Order>,
    shared: &Arc<Shared>,
    launched: &SyncSender<Result<Place, LaunchError>>,
) {
    let Some((mut universe, threading)) = mpi::initialize_with_threading(Threading::Funneled) else {
        let _ = launched.send(Err(LaunchError::Thread("MPI was initialised before".to_owned())));
        return;
    };
    match Thread::meet(launcher, &mut universe, threading, shared) {
        Ok((mut thread, place)) => {
            let _ = launched.send(Ok(place));
            let finished = thread.serve(orders);
            drop(thread);
            drop(universe);
            if let Some(answer) = finished {
                let _ = answer.send(());
            }
        }
        Err(error) => {
            drop(universe);
            let _ = launched.send(Err(error));
        }
    }
}

/// The thread's communicators, and its ear to the others.
struct Thread {
    world: SimpleCommunicator,
    fsdp: SimpleCommunicator,
    data: SimpleCommunicator,
    pieces: Pieces,
    watch: Watch,
}

/// What ranks tell each other when they meet.
#[derive(Debug, PartialEq)]
struct Greeting {
    host: String,
    pid: u64,
    per_node: u64,
    /// Milliseconds since 1970.
    now: u64,
}

impl Greeting {
    const LEN: usize = HOST + 3 * 8;

    fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let host = &self.host.as_bytes()[..self.host.len().min(HOST)];
        bytes[..host.len()].copy_from_slice(host);
        for (i, number) in [self.pid, self.per_node, self.now].into_iter().enumerate() {
            bytes[HOST + 8 * i..HOST + 8 * (i + 1)].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let (host, numbers) = bytes.split_at(HOST);
        let end = host.iter().position(|&byte| byte == 0).unwrap_or(HOST);
        let number = |i: usize| {
            numbers[8 * i..8 * (i + 1)].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
        };
        let host = String::from_utf8_lossy(&host[..end]).into_owned();
        Self { host, pid: number(0), per_node: number(1), now: number(2) }
    }
}

impl Thread {
    /// Finds out who else there is.
    fn meet(
        launcher: &Launcher,
        universe: &mut Universe,
        threading: Threading,
        shared: &Arc<Shared>,
    ) -> Result<(Self, Place), LaunchError> {
        let library = || {
            let version = mpi::environment::library_version().unwrap_or_default();
            version.split([',', '\n']).next().unwrap_or_default().trim().to_owned()
        };
        if threading == Threading::Single {
            return Err(LaunchError::NoThreads { library: library() });
        }
        let world = universe.world();
        let (rank, size) = (world.rank() as usize, world.size() as usize);
        if size != launcher.processes {
            let Launcher { name: launcher, variable, processes } = launcher.clone();
            return Err(LaunchError::OtherLauncher {
                launcher,
                variable,
                processes,
                found: size,
                library: library(),
            });
        }

        let node = world.split_shared(world.rank());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let me = Greeting {
            host: gethostname::gethostname().to_string_lossy().into_owned(),
            pid: std::process::id().into(),
            per_node: node.size() as u64,
            now: now.as_millis() as u64,
        };
        let mut greetings = vec![0; Greeting::LEN * size];
        world.all_gather_into(&me.encode()[..], &mut greetings[..]);
        let greetings: Vec<Greeting> = greetings.chunks_exact(Greeting::LEN).map(Greeting::decode).collect();

        let first = &greetings[0];
        if let Some((rank, other)) =
            greetings.iter().enumerate().find(|(_, other)| other.per_node != first.per_node)
        {
            return Err(LaunchError::Uneven {
                rank,
                host: other.host.clone(),
                ranks: other.per_node as usize,
                expected: first.per_node as usize,
            });
        }
        process::launched(rank, size, Duration::from_millis(first.now));
        universe.set_buffer_size(Watch::buffer_size(size));
        let place = Place { rank, size, per_node: first.per_node as usize, local_rank: node.rank() as usize };
        let peers = greetings.into_iter().map(|greeting| Peer::new(greeting.host, greeting.pid)).collect();
        let watch = Watch::new(world.duplicate(), peers, Arc::clone(shared));
        let [fsdp, data] = [(); 2].map(|()| world.duplicate());
        Ok((Self { world: world.duplicate(), fsdp, data, pieces: Pieces::default(), watch }, place))
    }

    /// Does what comes, until all is done; returns who waits for that.
    fn serve(&mut self, orders: &Receiver<Order>) -> Option<SyncSender<()>> {
        loop {
            match orders.recv_timeout(IDLE) {
                Err(RecvTimeoutError::Timeout) => self.watch.turn(),
                Err(RecvTimeoutError::Disconnected) => {
                    self.channel(Group::World).barrier();
                    return None;
                }
                Ok(Order::Finish { answer }) => {
                    self.channel(Group::World).barrier();
                    return Some(answer);
                }
                Ok(order) => self.obey(order),
            }
        }
    }

    fn obey(&mut self, order: Order) {
        self.watch.begin();
        match order {
            Order::Connect { mesh, pieces, answer } => {
                self.pieces = pieces;
                self.connect(mesh);
                let _ = answer.send(());
            }
            Order::Tensors { group, operation, tensors, answer } => {
                let bytes = tensors.iter().map(|tensor| tensor.as_bytes().len()).sum();
                let _span = span(Kind::Collective, operation.name()).work(0, bytes);
                let mut channel = self.channel(group);
                let results = tensors.into_iter().map(|tensor| channel.run(operation, tensor)).collect();
                let _ = answer.send(results);
            }
            Order::Reduce { how, mut values, answer } => {
                self.channel(Group::World).reduce(how, &mut values);
                let _ = answer.send(values);
            }
            Order::FromFirst { bytes, answer } => {
                let _ = answer.send(self.channel(Group::World).first_bytes(bytes));
            }
            Order::Finish { answer } => drop(answer), // `serve` takes it
        }
        self.watch.end();
    }

    /// The groups of a grid, ranks in their order.
    fn connect(&mut self, mesh: Mesh) {
        // Splitting blocks, and this rank must not seem dead while it waits for a late one.
        self.channel(Group::World).barrier();
        let split = |group: Group, color: usize| {
            let color = Color::with_value(color as i32);
            let key = mesh.index(group) as i32;
            self.world.split_by_color_with_key(color, key).expect("every rank has a colour")
        };
        (self.fsdp, self.data) =
            (split(Group::Fsdp, mesh.index(Group::Data)), split(Group::Data, mesh.index(Group::Fsdp)));
    }

    fn channel(&mut self, group: Group) -> Channel<'_> {
        let ranks = match group {
            Group::World => &self.world,
            Group::Fsdp => &self.fsdp,
            Group::Data => &self.data,
        };
        Channel { ranks, pieces: self.pieces, watch: &mut self.watch }
    }
}
