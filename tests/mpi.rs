//! Ranks under `mpirun`: this test starts itself as two and four processes. Needs the feature `mpi` and Open MPI's `mpirun`.
//!
//! The processes run [`worker`], which does what `$MT_MPI_CASE` says; a panic in one of them ends all, and `mpirun` fails.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, Tensor, TensorData};
use mt_train::collective::{
    self, Collective, Group, Mesh, Operation, Pieces, Reduce, World, at_step, launch, rank_among_others,
};

const CASE: &str = "MT_MPI_CASE";
const GRID: &str = "MT_MPI_GRID";
/// Within which a dead or stopped rank must have ended all others.
const LIMIT: Duration = Duration::from_secs(30);

/// Processes under mpirun.
struct Run {
    mpirun: Child,
    /// What they print, line by line.
    lines: Receiver<String>,
    output: String,
}

fn mpirun(ranks: usize) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["-n", &ranks.to_string(), "--oversubscribe", "--allow-run-as-root"]);
    command.stdin(Stdio::null());
    command
}

/// The worker, `data` x `fsdp` times.
fn start(case: &str, [data, fsdp]: [usize; 2]) -> Run {
    let mut command = mpirun(data * fsdp);
    command
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "worker", "--ignored", "--nocapture"])
        .env(CASE, case)
        .env(GRID, format!("{data}x{fsdp}"))
        .env_remove("RUST_BACKTRACE");
    Run::of(command)
}

impl Run {
    fn of(mut command: Command) -> Self {
        let mut mpirun = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("mpirun, of Open MPI (Debian: openmpi-bin)");
        let (sender, lines) = channel();
        let streams: [Box<dyn std::io::Read + Send>; 2] =
            [Box::new(mpirun.stdout.take().unwrap()), Box::new(mpirun.stderr.take().unwrap())];
        for stream in streams {
            let sender = sender.clone();
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
        }
        Self { mpirun, lines, output: String::new() }
    }

    /// The next line that contains `what`.
    fn line(&mut self, what: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(60));
            let line = line.unwrap_or_else(|_| panic!("no line with `{what}` in\n{}", self.output));
            self.output += &format!("{line}\n");
            if line.contains(what) {
                return line;
            }
        }
    }

    /// How it ends, within `limit`, and what was printed.
    fn end(mut self, limit: Duration) -> (ExitStatus, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.mpirun.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > limit {
                let _ = self.mpirun.kill();
                self.output.extend(self.lines.try_iter().map(|line| line + "\n"));
                panic!("it goes on after {limit:?}:\n{}", self.output);
            }
            thread::sleep(Duration::from_millis(20));
        };
        self.output.extend(self.lines.iter().map(|line| line + "\n"));
        (status, self.output)
    }
}

/// Runs a case that must go well; what it prints.
fn passes(case: &str, grid: [usize; 2]) -> String {
    let (status, output) = start(case, grid).end(Duration::from_secs(120));
    assert!(status.success(), "{case} on {grid:?}: {status}\n{output}");
    output
}

fn signal(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
}

const GRIDS: [[usize; 2]; 5] = [[2, 1], [1, 2], [4, 1], [1, 4], [2, 2]];

#[test]
fn operations_are_what_they_say_on_every_grid() {
    for grid in GRIDS {
        passes("operations", grid);
    }
}

#[test]
fn long_tensors_are_moved_in_pieces() {
    passes("pieces", [2, 2]);
}

#[test]
fn the_same_bits_come_out_of_every_run() {
    let bits = |case| {
        let output = passes(case, [2, 2]);
        let mut lines: Vec<String> =
            output.lines().filter(|line| line.contains("bits of rank")).map(str::to_owned).collect();
        lines.sort();
        assert_eq!(lines.len(), 4, "{output}");
        lines
    };
    let first = bits("bits");
    assert_eq!(first, bits("bits"));
    assert_eq!(first, bits("bits in pieces"), "sums don't depend on how they are cut");
}

#[test]
fn several_operations_go_on_at_once() {
    passes("overlap", [2, 2]);
}

#[test]
fn what_cannot_be_done_is_an_error() {
    passes("mistakes", [1, 2]);
}

/// The lines of two and four ranks that take steps, up to one that says that rank `rank` is at step 5, and its process id.
fn stepping(grid: [usize; 2], rank: usize) -> (Run, String) {
    let mut run = start("steps", grid);
    let line = run.line(&format!("rank {rank} is at step 5 in process "));
    let pid = line.rsplit(' ').next().unwrap().to_owned();
    (run, pid)
}

#[test]
fn a_killed_rank_ends_all_and_is_named() {
    let (run, pid) = stepping([2, 1], 1);
    signal("-KILL", &pid);
    let (status, output) = run.end(LIMIT);
    assert!(!status.success());
    // mpirun's words.
    assert!(output.contains("rank 1 with PID") && output.contains("signal 9"), "{output}");
}

#[test]
fn a_stopped_rank_ends_all_and_is_named() {
    // Rank 0 watches all others, and they watch it.
    for rank in [1, 0] {
        let (run, pid) = stepping([2, 2], rank);
        signal("-STOP", &pid);
        let (status, output) = run.end(LIMIT);
        assert_eq!(status.code(), Some(1), "{output}");
        let named = output.lines().find(|line| line.contains("is dead or stopped")).expect(&output);
        assert!(named.contains(&format!("rank {rank} (host ")), "{named}");
        assert!(
            named.contains(&format!("process {pid})")) && named.contains("it last told of step"),
            "{named}"
        );
    }
}

#[test]
fn the_failure_of_one_rank_ends_all_with_its_words() {
    for (case, code, words) in [
        ("failure", 3, "): the disk is full; all ranks end"),
        ("panic", 101, "): it panicked; the reason is above; all ranks end"),
    ] {
        let (status, output) = start(case, [2, 1]).end(LIMIT);
        assert_eq!(status.code(), Some(code), "{output}");
        let named = output.lines().find(|line| line.contains(words)).expect(&output);
        assert!(named.contains("rank 1 (host "), "{named}");
    }
}

#[test]
fn a_mistake_in_the_configuration_is_told_once() {
    let mut command = mpirun(3);
    command.args([env!("CARGO_BIN_EXE_mt-train"), "no_such_key=1"]);
    let (status, output) = Run::of(command).end(LIMIT);
    assert_eq!(status.code(), Some(2), "{output}");
    assert_eq!(output.matches("no_such_key").count(), 1, "{output}");
}

#[test]
fn processes_that_mpi_does_not_know_of_are_refused() {
    // As torchrun starts them.
    let mut command = Command::new(env!("CARGO_BIN_EXE_mt-train"));
    command.envs([("WORLD_SIZE", "4"), ("RANK", "1"), ("LOCAL_RANK", "1")]);
    let (status, output) = Run::of(command).end(LIMIT);
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(output.contains("torchrun started 4 processes ($WORLD_SIZE), but MPI ("), "{output}");
}

// What the processes do.

#[test]
#[ignore = "the other tests run it under mpirun"]
fn worker() {
    let Ok(case) = std::env::var(CASE) else { return };
    let grid = std::env::var(GRID).unwrap();
    let (data, fsdp) = grid.split_once('x').unwrap();
    let grid: [usize; 2] = [data, fsdp].map(|degree| degree.parse().unwrap());
    let world = launch().unwrap();
    let place = world.place();
    assert_eq!(
        (place.size, place.per_node, place.local_rank),
        (grid[0] * grid[1], grid[0] * grid[1], place.rank)
    );
    assert_eq!((collective::rank(), rank_among_others()), (place.rank, Some(place.rank)));
    world.meet().unwrap();
    match case.as_str() {
        "operations" => operations(&*connect(&world, grid), 5, 70_001),
        "pieces" => operations(&*world.collective_in_pieces(grid[0], grid[1], PIECES).unwrap(), 1000, 5003),
        "bits" => bits(&*connect(&world, grid)),
        "bits in pieces" => bits(&*world.collective_in_pieces(grid[0], grid[1], PIECES).unwrap()),
        "overlap" => overlap(&*connect(&world, grid)),
        "mistakes" => mistakes(&world),
        "steps" => steps(&*connect(&world, grid)),
        "failure" | "panic" => {
            let ranks = connect(&world, grid);
            if place.rank == 1 {
                assert_ne!(case, "panic", "a reason");
                return world.fail("the disk is full", 3);
            }
            steps(&*ranks);
        }
        other => panic!("no case {other}"),
    }
    world.finish();
}

const PIECES: Pieces = Pieces { sum: 1001, copy: 999 };

fn connect(world: &World, [data, fsdp]: [usize; 2]) -> Box<dyn Collective> {
    world.collective(data, fsdp, &Device::flex()).unwrap()
}

/// A tensor of world rank `rank`: values that float32 rounds when it adds them.
fn values(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + rank * 104_729 + 1) % 1_000_003) as f32 * 1e-3 - 333.3).collect()
}

fn tensor(values: Vec<f32>, dtype: DType) -> Tensor<1> {
    let len = values.len();
    let device = Device::flex();
    Tensor::from_data(TensorData::new(values, [len]).convert_dtype(dtype), (&device, dtype))
}

/// World ranks of `mesh.rank`'s group, in its order.
fn members(mesh: Mesh, group: Group) -> Vec<usize> {
    let at = |data: usize, fsdp: usize| data * mesh.fsdp + fsdp;
    match group {
        Group::World => (0..mesh.data * mesh.fsdp).collect(),
        Group::Fsdp => (0..mesh.fsdp).map(|fsdp| at(mesh.rank / mesh.fsdp, fsdp)).collect(),
        Group::Data => (0..mesh.data).map(|data| at(data, mesh.rank % mesh.fsdp)).collect(),
    }
}

/// The sum in float32, in the order of ranks.
fn sums(ranks: &[usize], len: usize) -> Vec<f32> {
    let mut sums = values(ranks[0], len);
    for &rank in &ranks[1..] {
        sums.iter_mut().zip(values(rank, len)).for_each(|(sum, x)| *sum += x);
    }
    sums
}

fn run(ranks: &dyn Collective, group: Group, operation: Operation, tensor: Tensor<1>) -> TensorData {
    let mut results = ranks.start(group, operation, vec![tensor]).unwrap().wait().unwrap();
    results.pop().unwrap().into_data()
}

/// Every operation, group, element type; lengths of one element, of `short` and `long`.
fn operations(ranks: &dyn Collective, short: usize, long: usize) {
    let mesh = ranks.mesh();
    let mut moved = 0;
    for group in [Group::World, Group::Fsdp, Group::Data] {
        let members = members(mesh, group);
        let (n, index) = (members.len(), mesh.index(group));
        assert_eq!(members[index], mesh.rank);
        for len in [1, short, long] {
            let f32s = |rank, len| tensor(values(rank, len), DType::F32);
            let all = run(ranks, group, Operation::AllReduce, f32s(mesh.rank, len));
            assert_eq!(all, TensorData::from(&sums(&members, len)[..]), "{group:?} {len}");
            let part = run(ranks, group, Operation::ReduceScatter, f32s(mesh.rank, n * len));
            let expected = &sums(&members, n * len)[index * len..(index + 1) * len];
            assert_eq!(part, TensorData::from(expected), "{group:?} {len}");
            moved += Operation::AllReduce.bytes_moved(4 * len as u64, n);
            moved += Operation::ReduceScatter.bytes_moved((4 * n * len) as u64, n);

            for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
                let of = |rank| tensor(values(rank, len), dtype);
                let gathered = run(ranks, group, Operation::AllGather, of(mesh.rank));
                let parts = members.iter().flat_map(|&rank| of(rank).into_data().as_bytes().to_vec());
                assert_eq!(gathered.as_bytes(), parts.collect::<Vec<u8>>(), "{group:?} {len} {dtype:?}");
                assert_eq!((gathered.dtype(), gathered.shape()[0]), (dtype, n * len));
                let root = n - 1;
                let same = run(ranks, group, Operation::Broadcast { root }, of(mesh.rank));
                assert_eq!(same, of(members[root]).into_data(), "{group:?} {len} {dtype:?}");
                let bytes = (len * dtype.size()) as u64;
                moved += Operation::AllGather.bytes_moved(n as u64 * bytes, n);
                moved += Operation::Broadcast { root }.bytes_moved(bytes, n);
            }
        }
    }
    assert_eq!(ranks.bytes_moved(), moved);
    let empty = run(ranks, Group::World, Operation::AllReduce, tensor(Vec::new(), DType::F32));
    assert_eq!(empty.num_elements(), 0);

    let n = mesh.size(Group::World);
    let mut figures = [mesh.rank as f64 + 0.5, -1.0];
    ranks.reduce(Reduce::Sum, &mut figures).unwrap();
    assert_eq!(figures, [(n * n) as f64 / 2.0, -(n as f64)]);
    let mut figures = [mesh.rank as f64, if mesh.rank == 1 { f64::NAN } else { 3.0 }];
    ranks.reduce(Reduce::Max, &mut figures).unwrap();
    assert!(figures[0] == (n - 1) as f64 && figures[1].is_nan(), "{figures:?}");
    let words = |rank: usize| format!("words of rank {rank}").repeat(500 * (rank + 1)).into_bytes();
    assert_eq!(ranks.from_first(words(mesh.rank)).unwrap(), words(0));
}

/// Values whose sum depends on the order, as a fingerprint.
fn bits(ranks: &dyn Collective) {
    let mesh = ranks.mesh();
    let wild = |i: usize| ((i * 31 + mesh.rank * 17) % 13) as f32 * 10f32.powi((i % 9) as i32 - 4) - 0.1;
    let mut fingerprint = 0u64;
    for operation in [Operation::AllReduce, Operation::ReduceScatter] {
        let wild = tensor((0..40_004).map(wild).collect(), DType::F32);
        let sums = run(ranks, Group::World, operation, wild);
        for word in sums.as_bytes().chunks(4) {
            let word = u32::from_le_bytes(word.try_into().unwrap());
            fingerprint = (fingerprint ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3).rotate_left(5);
        }
    }
    println!("\nbits of rank {}: {fingerprint:016x}", mesh.rank);
}

/// Operations of different groups that are waited for in another order than they were started in.
fn overlap(ranks: &dyn Collective) {
    let mesh = ranks.mesh();
    let groups = [Group::Fsdp, Group::Data, Group::World];
    let started: Vec<_> = (0..30)
        .map(|i| {
            let (group, len) = (groups[i % 3], 1000 * (i + 1));
            let tensors =
                vec![tensor(values(mesh.rank, len), DType::F32), tensor(values(mesh.rank, 3), DType::F32)];
            (group, len, ranks.start(group, Operation::AllReduce, tensors).unwrap())
        })
        .collect();
    let mut figures = [1.0];
    ranks.reduce(Reduce::Sum, &mut figures).unwrap();
    assert_eq!(figures, [4.0]);
    for (group, len, pending) in started.into_iter().rev() {
        let results = pending.wait().unwrap();
        let members = members(mesh, group);
        for (result, len) in results.into_iter().zip([len, 3]) {
            assert_eq!(result.into_data(), TensorData::from(&sums(&members, len)[..]));
        }
    }
}

fn mistakes(world: &World) {
    let error = world.collective(3, 1, &Device::flex()).err().unwrap().to_string();
    assert!(error.contains("3 x 1 ranks are wanted, and 2 were started"), "{error}");
    let ranks = connect(world, [1, 2]);
    let wrong =
        |operation, tensor| ranks.start(Group::World, operation, vec![tensor]).err().unwrap().to_string();
    let error = wrong(Operation::AllReduce, tensor(vec![1.0], DType::BF16));
    assert!(error.contains("all_reduce: sums are of float32, the tensor is of BF16"), "{error}");
    let error = wrong(Operation::ReduceScatter, tensor(vec![1.0; 3], DType::F32));
    assert!(error.contains("3 elements can't be divided among 2 ranks"), "{error}");
    let error = wrong(Operation::Broadcast { root: 2 }, tensor(vec![1.0], DType::F32));
    assert!(error.contains("the group has 2 ranks, and no rank 2"), "{error}");
}

/// Steps without end, a sum in each.
fn steps(ranks: &dyn Collective) {
    for step in 0.. {
        at_step(step);
        println!("\nrank {} is at step {step} in process {}", ranks.mesh().rank, std::process::id());
        let sum = tensor(values(ranks.mesh().rank, 1000), DType::F32);
        let _ = run(ranks, Group::World, Operation::AllReduce, sum);
        thread::sleep(Duration::from_millis(100));
    }
}
