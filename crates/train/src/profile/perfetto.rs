//! The trace as Chrome's JSON, which ui.perfetto.dev and chrome://tracing open.

use flate2::Compression;
use flate2::write::GzEncoder;
use mt_model::profile::Event;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

/// All events, gzipped. Ranks are processes to Perfetto, so that their traces can be looked at together.
pub(super) fn encode(events: &[Event], host: &str, rank: usize) -> Vec<u8> {
    let threads: BTreeSet<u32> = events.iter().map(|event| event.thread).collect();
    let names = threads.iter().map(|thread| {
        json!({ "ph": "M", "name": "thread_name", "pid": rank, "tid": thread, "args": { "name": super::xplane::thread_name(*thread) } })
    });
    let process = json!({ "ph": "M", "name": "process_name", "pid": rank, "args": { "name": host } });
    let trace: Vec<Value> = std::iter::once(process)
        .chain(names)
        .chain(events.iter().map(|event| complete(event, rank)))
        .collect();
    let trace = json!({ "displayTimeUnit": "ms", "traceEvents": trace });

    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    let written = gzip.write_all(trace.to_string().as_bytes()).and_then(|()| gzip.finish());
    written.expect("writing to memory doesn't fail")
}

fn complete(event: &Event, rank: usize) -> Value {
    let microseconds = |time: Duration| time.as_nanos() as f64 / 1e3;
    let mut args = Map::new();
    let mut note = |name: &str, value: u64| args.insert(name.to_owned(), value.into());
    if let Some(index) = event.index {
        note("index", index);
    }
    if event.flops != 0 {
        note("flops", event.flops);
    }
    if event.bytes != 0 {
        note("bytes", event.bytes);
    }
    json!({
        "ph": "X", "name": event.name, "cat": format!("{:?}", event.kind), "pid": rank, "tid": event.thread,
        "ts": microseconds(event.start), "dur": microseconds(event.duration), "args": args,
    })
}
