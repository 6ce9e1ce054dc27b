//! The trace as an `XSpace`, from which XProf derives all its tools.
//!
//! One plane, `/host:CPU`, with a line for each thread. XProf finds the steps by events called `train` with the stats `step_num` and
//! `group_id`, counts `IteratorGetNext` as waiting for input, and takes events called `name:Type` for operations.

use mt_model::profile::{Event, Kind};
use prost::Message;
use std::collections::BTreeMap;
use std::time::Duration;

/// All events, as bytes of an `XSpace`. `start` is that of the recording, since 1970.
pub(super) fn encode(events: &[Event], start: Duration, host: &str) -> Vec<u8> {
    let mut plane = PlaneBuilder::new("/host:CPU");
    let steps: Vec<&Event> = events.iter().filter(|event| event.kind == Kind::Step).collect();
    let mut lines: BTreeMap<u32, Vec<&Event>> = BTreeMap::new();
    for event in events {
        lines.entry(event.thread).or_default().push(event);
    }
    for (thread, mut events) in lines {
        // XProf wants a span before those in it.
        events.sort_by_key(|event| (event.start, std::cmp::Reverse(event.duration)));
        let events = events.into_iter().map(|event| plane.event(event, step_of(event, &steps))).collect();
        plane.plane.lines.push(XLine {
            id: i64::from(thread) + 1,
            name: thread_name(thread),
            timestamp_ns: start.as_nanos() as i64,
            events,
        });
    }
    XSpace { planes: vec![plane.plane], hostnames: vec![host.to_owned()] }.encode_to_vec()
}

/// What a thread is called: the first to be heard of runs the loop.
pub(super) fn thread_name(thread: u32) -> String {
    match thread {
        0 => "train".to_owned(),
        other => format!("thread {other}"),
    }
}

/// The step during which an event started.
fn step_of(event: &Event, steps: &[&Event]) -> Option<u64> {
    let step =
        steps.iter().find(|step| step.start <= event.start && event.start < step.start + step.duration);
    step.and_then(|step| step.index)
}

/// The name by which XProf knows what an event is, and that by which people do.
fn names(event: &Event) -> (String, String) {
    let index = event.index.map(|index| format!(" {index}")).unwrap_or_default();
    let display = format!("{}{index}", event.name);
    let name = match event.kind {
        Kind::Step => "train".to_owned(),
        Kind::Data => "IteratorGetNext:Data".to_owned(),
        Kind::Matmul => format!("{}:MatMul", event.name),
        Kind::Attention => format!("{}:Attention", event.name),
        Kind::Operation => format!("{}:Operation", event.name),
        Kind::Optimizer => format!("{}:Optimizer", event.name),
        Kind::Collective => format!("{}:Collective", event.name),
        Kind::Model | Kind::Checkpoint | Kind::Evaluation => display.clone(),
    };
    (name, display)
}

/// A plane whose names are numbered as they come.
struct PlaneBuilder {
    plane: XPlane,
    events: BTreeMap<(String, String), i64>,
    stats: BTreeMap<&'static str, i64>,
}

impl PlaneBuilder {
    fn new(name: &str) -> Self {
        let plane = XPlane { id: 1, name: name.to_owned(), ..Default::default() };
        Self { plane, events: BTreeMap::new(), stats: BTreeMap::new() }
    }

    fn event(&mut self, event: &Event, step: Option<u64>) -> XEvent {
        let mut stats = Vec::new();
        let mut note = |name: &'static str, value: u64| {
            let next = self.stats.len() as i64 + 1;
            let id = *self.stats.entry(name).or_insert(next);
            let metadata = XStatMetadata { id, name: name.to_owned() };
            self.plane.stat_metadata.entry(id).or_insert(metadata);
            stats.push(XStat { metadata_id: id, int64_value: Some(value as i64) });
        };
        if let Some(step) = step {
            note("group_id", step);
        }
        match (event.kind, event.index) {
            (Kind::Step, Some(step)) => {
                note("step_num", step);
                note("_r", 1);
            }
            (_, Some(layer)) => note("layer", layer),
            _ => {}
        }
        if event.flops != 0 {
            note("flops", event.flops);
        }
        if event.bytes != 0 {
            note("bytes_accessed", event.bytes);
        }
        let picoseconds = |time: Duration| time.as_nanos() as i64 * 1000;
        XEvent {
            metadata_id: self.event_id(event),
            offset_ps: Some(picoseconds(event.start)),
            duration_ps: picoseconds(event.duration),
            stats,
        }
    }

    fn event_id(&mut self, event: &Event) -> i64 {
        let next = self.events.len() as i64 + 1;
        let (name, display_name) = names(event);
        let id = *self.events.entry((name.clone(), display_name.clone())).or_insert(next);
        self.plane.event_metadata.entry(id).or_insert(XEventMetadata { id, name, display_name });
        id
    }
}

// The part of tsl's xplane.proto that is written here. Maps are ordered, so that equal traces are equal bytes.

#[derive(Clone, PartialEq, Message)]
pub(super) struct XSpace {
    #[prost(message, repeated, tag = "1")]
    pub planes: Vec<XPlane>,
    #[prost(string, repeated, tag = "4")]
    pub hostnames: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct XPlane {
    #[prost(int64, tag = "1")]
    pub id: i64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "3")]
    pub lines: Vec<XLine>,
    #[prost(btree_map = "int64, message", tag = "4")]
    pub event_metadata: BTreeMap<i64, XEventMetadata>,
    #[prost(btree_map = "int64, message", tag = "5")]
    pub stat_metadata: BTreeMap<i64, XStatMetadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct XLine {
    #[prost(int64, tag = "1")]
    pub id: i64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(int64, tag = "3")]
    pub timestamp_ns: i64,
    #[prost(message, repeated, tag = "4")]
    pub events: Vec<XEvent>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct XEvent {
    #[prost(int64, tag = "1")]
    pub metadata_id: i64,
    /// One of two in the schema, so it is written even when it is 0.
    #[prost(int64, optional, tag = "2")]
    pub offset_ps: Option<i64>,
    #[prost(int64, tag = "3")]
    pub duration_ps: i64,
    #[prost(message, repeated, tag = "4")]
    pub stats: Vec<XStat>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct XStat {
    #[prost(int64, tag = "1")]
    pub metadata_id: i64,
    /// One of several types in the schema, so it is written even when it is 0.
    #[prost(int64, optional, tag = "4")]
    pub int64_value: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct XEventMetadata {
    #[prost(int64, tag = "1")]
    pub id: i64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub display_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct XStatMetadata {
    #[prost(int64, tag = "1")]
    pub id: i64,
    #[prost(string, tag = "2")]
    pub name: String,
}
