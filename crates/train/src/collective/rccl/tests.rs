//! The calls, to a library with the same interface that works on main memory. A machine without a C compiler skips it.

use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use half::bf16;
use libloading::Library;

use super::*;

/// The stand-in's failures and counts are those of the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// What a test's second process is told by.
const CHILD: &str = "FAKE_RCCL_CHILD";

/// The stand-in, in a folder of its own.
struct Fake {
    path: PathBuf,
    /// Held, so that its counts survive until they're read.
    held: Library,
    _folder: Option<tempfile::TempDir>,
    _turn: MutexGuard<'static, ()>,
}

fn build(folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let [source, library] = ["fake.c", name].map(|name| folder.join(name));
    std::fs::write(&source, include_str!("fake.c")).unwrap();
    let built = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread"])
        .args(flags)
        .arg("-o")
        .args([&library, &source])
        .status();
    assert!(built.unwrap().success());
    library
}

impl Fake {
    fn new() -> Option<Self> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        if Command::new("cc").arg("--version").output().is_err() {
            eprintln!("skipped: there is no cc to build a stand-in for RCCL with");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        Some(Self::at(build(folder.path(), "librccl.so", &[]), Some(folder), turn))
    }

    fn at(path: PathBuf, folder: Option<tempfile::TempDir>, turn: MutexGuard<'static, ()>) -> Self {
        // SAFETY: the stand-in does nothing when it's loaded.
        let held = unsafe { Library::new(&path) }.unwrap();
        Self { path, held, _folder: folder, _turn: turn }
    }

    fn names(&self) -> Vec<String> {
        vec!["libno-such-library.so".to_owned(), self.path.to_str().unwrap().to_owned()]
    }

    fn library(&self) -> Arc<Rccl> {
        Arc::new(Rccl::load(&self.names()).unwrap())
    }

    fn streams(&self) -> Arc<Streams> {
        Streams::load(Runtime::Hip, &self.names()).unwrap()
    }

    fn alive(&self) -> c_int {
        // SAFETY: the stand-in exports this function without arguments.
        unsafe { self.held.get::<unsafe extern "C" fn() -> c_int>(b"handles_alive\0").unwrap()() }
    }

    fn fail(&self, what: &[u8], code: c_int) {
        // SAFETY: the stand-in exports these functions of a number.
        unsafe { self.held.get::<unsafe extern "C" fn(c_int)>(what).unwrap()(code) }
    }

    /// Calls of this thread so far.
    fn calls(&self) -> String {
        // SAFETY: the stand-in exports this function without arguments; the text ends.
        unsafe {
            let calls = self.held.get::<unsafe extern "C" fn() -> *const c_char>(b"calls_of_thread\0");
            CStr::from_ptr(calls.unwrap()()).to_string_lossy().into_owned()
        }
    }
}

/// Runs `rank` on each of `ranks` threads, with a communicator and a stream; gives what they return, in order.
fn on_ranks<T: Send>(
    fake: &Fake,
    ranks: usize,
    rank: impl Fn(usize, &Communicator, &Stream) -> T + Sync,
) -> Vec<T> {
    let (library, streams) = (fake.library(), fake.streams());
    let id = UniqueId::from_bytes(&library.unique_id().unwrap().to_bytes()).unwrap();
    thread::scope(|scope| {
        let run = |number| {
            let (library, streams, rank) = (&library, &streams, &rank);
            move || {
                streams.use_device(0).unwrap();
                let stream = streams.stream().unwrap();
                let communicator = Communicator::join(Arc::clone(library), id, ranks, number).unwrap();
                rank(number, &communicator, &stream)
            }
        };
        let threads: Vec<_> = (0..ranks).map(|number| scope.spawn(run(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Enqueues one operation and waits for it.
fn run<T: Copy>(
    communicator: &Communicator,
    stream: &Stream,
    operation: Operation,
    element: Element,
    send: &[T],
    receive: &mut [T],
) -> Result<(), RcclError> {
    let buffers =
        Buffers { send: send.as_ptr().cast(), receive: receive.as_mut_ptr().cast(), elements: send.len() };
    // SAFETY: the slices live until the stream is done, or has been given up.
    unsafe { communicator.enqueue(operation, element, &[buffers], stream) }?;
    communicator.wait(stream)
}

fn values(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7 + rank * 5) % 17) as f32 / 8.0 - 1.0).collect()
}

#[test]
fn every_operation_among_threads() {
    let Some(fake) = Fake::new() else { return };
    assert_eq!(fake.library().version().unwrap(), "2.22.3");
    let (ranks, len) = (3, 5);
    let sums = |len: usize| -> Vec<f32> {
        (0..len).map(|i| (0..ranks).map(|rank| values(rank, len)[i]).sum()).collect()
    };
    let results = on_ranks(&fake, ranks, |rank, communicator, stream| {
        let mut all = vec![f32::NAN; len];
        run(communicator, stream, Operation::AllReduce, Element::F32, &values(rank, len), &mut all).unwrap();
        assert_eq!(all, sums(len));

        let mut part = vec![f32::NAN; len];
        let whole = values(rank, ranks * len);
        run(communicator, stream, Operation::ReduceScatter, Element::F32, &whole, &mut part).unwrap();
        assert_eq!(part, sums(ranks * len)[rank * len..(rank + 1) * len]);

        let narrow: Vec<bf16> = values(rank, len).into_iter().map(bf16::from_f32).collect();
        let mut gathered = vec![bf16::NAN; ranks * len];
        run(communicator, stream, Operation::AllGather, Element::Bf16, &narrow, &mut gathered).unwrap();
        let parts = (0..ranks).flat_map(|rank| values(rank, len)).map(bf16::from_f32);
        assert_eq!(gathered, parts.collect::<Vec<_>>());

        let mut words = vec![rank as u64; 2];
        let send = words.clone();
        run(communicator, stream, Operation::Broadcast { root: 2 }, Element::U64, &send, &mut words).unwrap();
        assert_eq!(words, [2, 2]);
        fake.calls()
    });
    // Counts are those of the header: of the result for a reduce-scatter, of what's handed in for a gather.
    let expected = "GroupStart AllReduce:7:5 GroupEnd GroupStart ReduceScatter:7:5 GroupEnd \
                    GroupStart AllGather:9:5 GroupEnd GroupStart Broadcast:5:2 GroupEnd ";
    assert_eq!(results, [expected; 3]);
    assert_eq!(fake.alive(), 0, "everything that was created is destroyed");
}

#[test]
fn tensors_of_a_layer_are_one_group() {
    let Some(fake) = Fake::new() else { return };
    let sequences = on_ranks(&fake, 2, |rank, communicator, stream| {
        let mut tensors = [values(rank, 4), values(rank + 1, 6)];
        let buffers = tensors.each_mut().map(|tensor| {
            // In place.
            let at: *mut c_void = tensor.as_mut_ptr().cast();
            Buffers { send: at, receive: at, elements: tensor.len() }
        });
        // SAFETY: the vectors live until the stream is done.
        unsafe { communicator.enqueue(Operation::AllReduce, Element::F32, &buffers, stream) }.unwrap();
        let early = stream.is_done().unwrap();
        communicator.wait(stream).unwrap();
        let sum = |a: Vec<f32>, b: Vec<f32>| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<_>>();
        assert_eq!(tensors, [sum(values(0, 4), values(1, 4)), sum(values(1, 6), values(2, 6))]);
        (early, fake.calls())
    });
    for (early, calls) in sequences {
        assert!(!early, "operations go on after they were enqueued");
        assert_eq!(calls, "GroupStart AllReduce:7:4 AllReduce:7:6 GroupEnd ");
    }
}

#[test]
fn what_is_missing_is_named() {
    let Some(fake) = Fake::new() else { return };
    let partial = build(fake.path.parent().unwrap(), "libpartial.so", &["-DWITHOUT_BROADCAST"]);
    let error = Rccl::load(&[partial.to_str().unwrap().to_owned()]).err().unwrap().to_string();
    assert!(error.contains("libpartial.so") && error.contains("ncclBroadcast"), "{error}");

    let error = Rccl::load(&["libno-such-library.so".to_owned()]).err().unwrap().to_string();
    assert!(error.starts_with("none of libno-such-library.so can be loaded"), "{error}");
    let error = Streams::load(Runtime::Cuda, &fake.names()).err().unwrap().to_string();
    assert!(error.contains("cudaSetDevice"), "{error}");
    let error = fake.streams().use_device(3).unwrap_err();
    assert_eq!(error, RcclError::Stream { call: "hipSetDevice".to_owned(), status: 101 });
}

#[test]
fn failures_are_in_the_librarys_words() {
    let Some(fake) = Fake::new() else { return };
    let library = fake.library();
    fake.fail(b"fail_next_init\0", 2);
    let error = Communicator::join(Arc::clone(&library), library.unique_id().unwrap(), 1, 0).err().unwrap();
    assert_eq!(error.to_string(), "ncclCommInitRank: unhandled system error (2)");

    on_ranks(&fake, 1, |_, communicator, stream| {
        // Sums of float64 aren't ours: the stand-in refuses them, and the group is ended all the same.
        let mut sums = [0.0f64; 2];
        let error = run(communicator, stream, Operation::AllReduce, Element::F64, &[1.0; 2], &mut sums);
        assert_eq!(error.unwrap_err().to_string(), "ncclAllReduce: invalid argument (4)");
        assert!(fake.calls().ends_with("AllReduce:8:2 GroupEnd "));
        let mut sums = [0.0f32; 2];
        run(communicator, stream, Operation::AllReduce, Element::F32, &[1.0; 2], &mut sums).unwrap();

        fake.fail(b"fail_next_operation\0", 2);
        let error = run(communicator, stream, Operation::AllReduce, Element::F32, &[1.0; 2], &mut sums);
        let words = "unhandled system error".to_owned();
        assert_eq!(error.unwrap_err(), RcclError::UnderWay { code: 2, words });
        let error = run(communicator, stream, Operation::AllReduce, Element::F32, &[1.0; 2], &mut sums);
        assert_eq!(error.unwrap_err(), RcclError::GivenUp);
    });
    assert_eq!(fake.alive(), 0, "what was given up is gone too");
}

#[test]
fn a_process_that_dies_is_an_error_of_the_others() {
    // The second process is this test again.
    if let Ok(told) = std::env::var(CHILD) {
        let (path, id) = told.split_once('|').unwrap();
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let fake = Fake::at(path.into(), None, turn);
        let id: Vec<u8> = id.split(',').map(|byte| byte.parse().unwrap()).collect();
        let communicator =
            Communicator::join(fake.library(), UniqueId::from_bytes(&id).unwrap(), 2, 1).unwrap();
        let stream = fake.streams().stream().unwrap();
        let mut sums = [f32::NAN; 3];
        run(&communicator, &stream, Operation::AllReduce, Element::F32, &values(1, 3), &mut sums).unwrap();
        std::process::abort();
    }
    let Some(fake) = Fake::new() else { return };
    let library = fake.library();
    let id = library.unique_id().unwrap();
    let bytes: Vec<String> = id.to_bytes().iter().map(u8::to_string).collect();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "collective::rccl::tests::a_process_that_dies_is_an_error_of_the_others"])
        .env(CHILD, format!("{}|{}", fake.path.display(), bytes.join(",")))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let communicator = Communicator::join(library, id, 2, 0).unwrap();
    let stream = fake.streams().stream().unwrap();
    let mut sums = [f32::NAN; 3];
    let mine = values(0, 3);
    run(&communicator, &stream, Operation::AllReduce, Element::F32, &mine, &mut sums).unwrap();
    let expected: Vec<f32> = mine.iter().zip(values(1, 3)).map(|(a, b)| a + b).collect();
    assert_eq!(sums[..], expected);

    // Reaped, so that its process id is free.
    let reaper = thread::spawn(move || child.wait().unwrap());
    let error = run(&communicator, &stream, Operation::AllReduce, Element::F32, &mine, &mut sums);
    let words = "remote process exited or there was a network error".to_owned();
    assert_eq!(error.unwrap_err(), RcclError::UnderWay { code: 6, words });
    assert!(!reaper.join().unwrap().success());
}
