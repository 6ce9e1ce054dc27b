use super::*;
use mt_model::profile::{Event, Kind};
use prost::Message;

/// An event of thread 0, in milliseconds.
fn event(kind: Kind, name: &'static str, start: u64, duration: u64) -> Event {
    let [start, duration] = [start, duration].map(Duration::from_millis);
    Event { name, kind, index: None, thread: 0, start, duration, flops: 0, bytes: 0 }
}

/// Two steps of 100 ms: data, a layer with two operations, the optimizer with an operation in it; and another thread.
fn two_steps() -> Vec<Event> {
    let mut events = Vec::new();
    for step in [0, 1] {
        let at = 200 * step;
        events.push(event(Kind::Data, "data", at, 10));
        events.push(Event {
            flops: 4_000_000_000,
            bytes: 64,
            ..event(Kind::Matmul, "linear.forward", at + 12, 40)
        });
        events.push(event(Kind::Attention, "attention.forward", at + 55, 20));
        events.push(Event { index: Some(3), ..event(Kind::Model, "layer.forward", at + 11, 66) });
        events.push(event(Kind::Operation, "adamw", at + 82, 8));
        events.push(event(Kind::Optimizer, "optimizer", at + 81, 10));
        events.push(Event { index: Some(step + 7), ..event(Kind::Step, "step", at, 100) });
        events.push(Event { thread: 1, ..event(Kind::Checkpoint, "checkpoint.write", at + 30, 500) });
    }
    // Between the steps: no part of them.
    events.push(event(Kind::Evaluation, "evaluation", 110, 50));
    events
}

#[test]
fn breakdown_adds_up_to_the_steps() {
    let breakdown = Breakdown::of(&two_steps());
    let milliseconds: Vec<_> =
        breakdown.shares.iter().map(|share| (share.name, share.time.as_millis() as u64)).collect();
    let expected = [
        ("matmul", 80),
        ("attention", 40),
        ("idle and unmeasured", 2 * (100 - 10 - 40 - 20 - 10)),
        ("data wait", 20),
        ("optimizer", 20),
    ];
    let mut sorted = (milliseconds.clone(), expected.to_vec());
    sorted.0.sort_unstable();
    sorted.1.sort_unstable();
    assert_eq!(sorted.0, sorted.1);
    assert_eq!(milliseconds[0].0, "matmul");
    assert_eq!((breakdown.steps, breakdown.total), (2, Duration::from_millis(200)));
    assert_eq!(breakdown.shares.iter().map(|share| share.time).sum::<Duration>(), breakdown.total);
    let text = breakdown.to_string();
    assert!(text.contains("time of 2 profiled steps, 0.100 s each"), "{text}");
    assert!(text.contains("matmul                40.0 %      40.000 ms     100.0 GFLOP/s"), "{text}");
    assert_eq!(Breakdown::of(&[]), Breakdown::default());
}

#[test]
fn xplane_has_steps_groups_and_operations() {
    let bytes = xplane::encode(&two_steps(), Duration::from_secs(1_700_000_000), "host-1");
    assert_eq!(bytes, xplane::encode(&two_steps(), Duration::from_secs(1_700_000_000), "host-1"));
    let space = xplane::XSpace::decode(bytes.as_slice()).unwrap();
    let [plane] = space.planes.as_slice() else { panic!("{} planes", space.planes.len()) };
    assert_eq!((plane.name.as_str(), plane.lines.len()), ("/host:CPU", 2));
    assert_eq!(plane.lines[0].timestamp_ns, 1_700_000_000_000_000_000);

    let stat = |event: &xplane::XEvent, name: &str| {
        let find = |stat: &&xplane::XStat| plane.stat_metadata[&stat.metadata_id].name == name;
        event.stats.iter().find(find).and_then(|stat| stat.int64_value)
    };
    let named = |name: &str| {
        let find = |event: &&xplane::XEvent| plane.event_metadata[&event.metadata_id].name == name;
        plane.lines[0].events.iter().filter(find).collect::<Vec<_>>()
    };
    let steps = named("train");
    assert_eq!(steps.iter().map(|step| stat(step, "step_num")).collect::<Vec<_>>(), [Some(7), Some(8)]);
    assert_eq!(stat(steps[0], "group_id"), Some(7));
    let matmuls = named("linear.forward:MatMul");
    assert_eq!(stat(matmuls[1], "group_id"), Some(8));
    assert_eq!(stat(matmuls[1], "flops"), Some(4_000_000_000));
    assert_eq!((matmuls[1].offset_ps, matmuls[1].duration_ps), (Some(212_000_000_000), 40_000_000_000));
    assert_eq!(stat(named("layer.forward 3")[0], "layer"), Some(3));
    assert_eq!(stat(named("evaluation")[0], "group_id"), None);
    // A span comes before those in it.
    let starts: Vec<_> = plane.lines[0].events.iter().map(|event| event.offset_ps).collect();
    assert!(starts.is_sorted());
    assert_eq!(plane.event_metadata[&plane.lines[0].events[0].metadata_id].display_name, "step 7");
}

#[test]
fn ranks_of_one_machine_have_files_of_their_own() {
    assert_eq!(host_of_rank("n1", None), "n1");
    assert_eq!(host_of_rank("n1", Some(3)), "n1-rank3");
}

#[test]
fn perfetto_is_chromes_json() {
    let bytes = perfetto::encode(&two_steps(), "host-1", 3);
    let json: serde_json::Value =
        serde_json::from_reader(flate2::read::GzDecoder::new(bytes.as_slice())).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let matmul = events.iter().find(|event| event["name"] == "linear.forward").unwrap();
    assert_eq!(
        (matmul["ph"].as_str(), matmul["ts"].as_f64(), matmul["dur"].as_f64()),
        (Some("X"), Some(12e3), Some(40e3))
    );
    assert_eq!(matmul["args"]["flops"], 4_000_000_000u64);
    assert!(events.iter().all(|event| event["pid"] == 3), "the rank is a process of its own");
    assert_eq!(events.iter().filter(|event| event["ph"] == "M").count(), 3);
}

/// A profiler of the steps `first..=last`.
fn profiler(folder: &Path, first: u64, last: u64, period: Option<u64>) -> Profiler {
    Profiler { folder: folder.to_path_buf(), first, last, period, recording: None }
}

/// Runs steps under the profiler; returns the steps after which a profile was written, and their folders.
fn run(mut profiler: Profiler, steps: u64) -> Vec<(u64, PathBuf)> {
    let mut written = Vec::new();
    for step in 0..steps {
        profiler.before_step(step);
        drop(profile::span(Kind::Step, "step").index(step as usize));
        if let Some(profile) = profiler.after_step(step).unwrap() {
            written.push((step, profile.folder));
        }
    }
    written
}

// One test: recordings of tests at the same time would be one recording.
#[test]
fn windows() {
    let temp = tempfile::tempdir().unwrap();
    let once = run(profiler(temp.path(), 2, 4, None), 20);
    let [(4, folder)] = once.as_slice() else { panic!("{once:?}") };
    let session = folder.strip_prefix(temp.path().join("plugins/profile")).unwrap().to_str().unwrap();
    assert_eq!(session.len(), "2026_12_01_02_54_42".len(), "{session}");
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 2);
    assert!(files[0].to_str().unwrap().ends_with(".trace.json.gz"));
    let space = xplane::XSpace::decode(std::fs::read(&files[1]).unwrap().as_slice()).unwrap();
    assert_eq!(space.planes[0].lines[0].events.len(), 3);

    let again = run(profiler(temp.path(), 2, 4, Some(8)), 20);
    assert_eq!(again.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [4, 12]);
    assert!(again[0].1.starts_with(temp.path().join("step_2")));
    assert!(again[1].1.starts_with(temp.path().join("step_10")));

    // A run that ends in the middle of a window writes what there is.
    let mut cut = profiler(temp.path(), 0, 9, None);
    cut.before_step(0);
    assert!(cut.after_step(0).unwrap().is_none());
    assert!(cut.finish().unwrap().is_some());
    assert!(cut.finish().unwrap().is_none());
}

#[test]
fn a_window_past_the_end_is_an_error() {
    let load = |keys: &[(&str, &str)]| {
        let overrides = keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        mt_config::load(&mt_config::LoadArgs { overrides, ..Default::default() }).unwrap()
    };
    let xplane = [("profiler", "xplane"), ("skip_first_n_steps_for_profiler", "10")];
    let error = Profiler::new(&load(&xplane), 0, 10).err().unwrap().to_string();
    assert!(error.contains("would start at step 10, but the last step is 9"), "{error}");
    // The last steps of a resumed run are no reason to stop it.
    assert!(Profiler::new(&load(&xplane), 5, 15).unwrap().is_none());
    let profiler = Profiler::new(&load(&xplane), 0, 12).unwrap().unwrap();
    assert_eq!((profiler.first, profiler.last), (10, 11));
    assert!(Profiler::new(&load(&[]), 0, 12).unwrap().is_none());
}
