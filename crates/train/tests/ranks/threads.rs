//! Ranks that are threads of one process, and a collective over their shared memory.
//!
//! An operation begins by laying its numbers down where the group meets, and is waited for until all have; sums are made in the
//! order of the ranks. Nothing is exchanged that wasn't asked for, so that what is counted is what happens.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use burn::tensor::{DType, Device, Tensor, TensorData};
use mt_train::collective::{Collective, CollectiveError, Group, Mesh, Operation, Pending, Reduce};

/// Longest wait for another rank: a test that got out of step fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(120);

/// One rank's hold on the others.
pub struct Threads {
    mesh: Mesh,
    world: Arc<World>,
    /// Meetings so far, by group.
    met: RefCell<HashMap<Group, u64>>,
    bytes: Cell<u64>,
    /// Operations on tensors that this rank starts before one fails.
    starts_left: Cell<Option<u64>>,
}

#[derive(Default)]
struct World {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    meetings: HashMap<Key, Meeting>,
    /// Why nobody can go on.
    broken: Option<String>,
}

/// A group, which of its kind, and the number of its meeting.
type Key = (Group, usize, u64);

struct Meeting {
    /// What each member brought.
    parts: Vec<Option<Arc<Vec<TensorData>>>>,
    left: usize,
}

/// Runs `work` on every rank of `data` times `fsdp`, each a thread; the results by rank.
pub fn on_ranks<T: Send>(
    [data, fsdp]: [usize; 2],
    fails: Option<(usize, u64)>,
    work: impl Fn(Threads) -> T + Sync,
) -> Vec<T> {
    let world = Arc::new(World::default());
    thread::scope(|scope| {
        let threads: Vec<_> = (0..data * fsdp)
            .map(|rank| {
                let (world, work) = (Arc::clone(&world), &work);
                scope.spawn(move || {
                    let starts_left = fails.filter(|(failing, _)| *failing == rank).map(|(_, starts)| starts);
                    work(Threads {
                        mesh: Mesh { rank, data, fsdp },
                        world,
                        met: RefCell::default(),
                        bytes: Cell::new(0),
                        starts_left: Cell::new(starts_left),
                    })
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

impl Threads {
    fn error(&self, reason: &str) -> CollectiveError {
        CollectiveError { rank: self.mesh.rank, operation: "meet".to_owned(), reason: reason.to_owned() }
    }

    /// Lays `mine` down; the key under which all of it will be found.
    fn bring(&self, group: Group, mine: Vec<TensorData>) -> Key {
        let mut met = self.met.borrow_mut();
        let number = met.entry(group).or_default();
        *number += 1;
        let which = match group {
            Group::World => 0,
            Group::Fsdp => self.mesh.index(Group::Data),
            Group::Data => self.mesh.index(Group::Fsdp),
        };
        let key = (group, which, *number);
        let size = self.mesh.size(group);
        let mut state = self.world.state.lock().unwrap();
        let meeting =
            state.meetings.entry(key).or_insert_with(|| Meeting { parts: vec![None; size], left: size });
        meeting.parts[self.mesh.index(group)] = Some(Arc::new(mine));
        self.world.changed.notify_all();
        key
    }

    /// Counts a start, and fails when its turn has come.
    fn may_start(&self) -> Result<(), CollectiveError> {
        match self.starts_left.get() {
            Some(0) => {
                self.world.state.lock().unwrap().broken = Some("the link is down".to_owned());
                self.world.changed.notify_all();
                Err(self.error("the link is down"))
            }
            Some(left) => {
                self.starts_left.set(Some(left - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl World {
    /// What all members brought, by rank.
    fn collect(&self, key: Key) -> Result<Vec<Arc<Vec<TensorData>>>, String> {
        let is_open = |state: &mut State| {
            let complete =
                state.meetings.get(&key).is_some_and(|meeting| meeting.parts.iter().all(Option::is_some));
            state.broken.is_none() && !complete
        };
        let state = self.state.lock().unwrap();
        let (mut state, waited): (MutexGuard<'_, State>, _) =
            self.changed.wait_timeout_while(state, PATIENCE, is_open).unwrap();
        assert!(!waited.timed_out(), "ranks are out of step at {key:?}");
        if let Some(reason) = &state.broken {
            return Err(reason.clone());
        }
        let meeting = state.meetings.get_mut(&key).unwrap();
        let parts = meeting.parts.iter().flatten().cloned().collect();
        meeting.left -= 1;
        if meeting.left == 0 {
            state.meetings.remove(&key);
        }
        Ok(parts)
    }
}

impl Collective for Threads {
    fn mesh(&self) -> Mesh {
        self.mesh
    }

    fn start(
        &self,
        group: Group,
        operation: Operation,
        tensors: Vec<Tensor<1>>,
    ) -> Result<Pending, CollectiveError> {
        self.may_start()?;
        let (size, index) = (self.mesh.size(group), self.mesh.index(group));
        for tensor in &tensors {
            let parts = if operation == Operation::AllGather { size } else { 1 };
            let bytes = tensor.dims()[0] * tensor.dtype().size() * parts;
            self.bytes.set(self.bytes.get() + operation.bytes_moved(bytes as u64, size));
        }
        let mine = tensors.into_iter().map(Tensor::into_data).collect();
        let key = self.bring(group, mine);
        let (world, mesh) = (Arc::clone(&self.world), self.mesh);
        Ok(Pending::new(move || {
            let parts = world.collect(key).map_err(|reason| CollectiveError {
                rank: mesh.rank,
                operation: format!("{operation:?}"),
                reason,
            })?;
            let result = |i: usize| {
                let of_ranks: Vec<&TensorData> = parts.iter().map(|part| &part[i]).collect();
                combine(operation, &of_ranks, index)
            };
            Ok((0..parts[0].len()).map(result).collect())
        }))
    }

    fn reduce(&self, how: Reduce, values: &mut [f64]) -> Result<(), CollectiveError> {
        let key = self.bring(Group::World, vec![TensorData::new(values.to_vec(), [values.len()])]);
        let parts = self.world.collect(key).map_err(|reason| self.error(&reason))?;
        for (i, value) in values.iter_mut().enumerate() {
            let of_ranks = parts.iter().map(|part| part[0].as_slice::<f64>().unwrap()[i]);
            *value = match how {
                Reduce::Sum => of_ranks.sum(),
                Reduce::Max => of_ranks.fold(f64::NEG_INFINITY, f64::max),
            };
        }
        Ok(())
    }

    fn from_first(&self, bytes: Vec<u8>) -> Result<Vec<u8>, CollectiveError> {
        let len = bytes.len();
        let key = self.bring(Group::World, vec![TensorData::new(bytes, [len])]);
        let parts = self.world.collect(key).map_err(|reason| self.error(&reason))?;
        Ok(parts[0][0].as_slice::<u8>().unwrap().to_vec())
    }

    fn bytes_moved(&self) -> u64 {
        self.bytes.get()
    }
}

fn combine(operation: Operation, parts: &[&TensorData], index: usize) -> Tensor<1> {
    let dtype = parts[0].dtype();
    let tensor = |data: TensorData| Tensor::from_data(data, (&Device::flex(), dtype));
    match operation {
        Operation::Broadcast { root } => tensor(parts[root].clone()),
        Operation::AllGather => {
            let bytes: Vec<u8> = parts.iter().flat_map(|part| part.bytes().iter().copied()).collect();
            let len = bytes.len() / dtype.size();
            tensor(TensorData::from_bytes_vec(bytes, [len], dtype))
        }
        Operation::AllReduce | Operation::ReduceScatter => {
            assert_eq!(dtype, DType::F32, "sums are float32");
            let slices: Vec<&[f32]> = parts.iter().map(|part| part.as_slice::<f32>().unwrap()).collect();
            let all = slices[0].len();
            let range = match operation {
                Operation::ReduceScatter => {
                    assert!(all.is_multiple_of(parts.len()), "{all} elements for {} ranks", parts.len());
                    let len = all / parts.len();
                    index * len..(index + 1) * len
                }
                _ => 0..all,
            };
            let sums: Vec<f32> = range.map(|i| slices.iter().map(|slice| slice[i]).sum()).collect();
            let len = sums.len();
            tensor(TensorData::new(sums, [len]))
        }
    }
}
