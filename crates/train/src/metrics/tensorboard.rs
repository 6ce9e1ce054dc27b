//! TensorBoard event files: records of `Event` messages, framed as TFRecords.
//!
//! Frame: length (u64), masked CRC of the length, bytes, masked CRC of the bytes; everything little-endian.

use super::{MetricsError, Scalar, Sink};
use prost::Message;
use std::fs::{File, OpenOptions, create_dir_all};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// One event file, `events.out.tfevents.<unix seconds>.<host>`, open for appending.
pub struct EventFile {
    file: File,
    path: PathBuf,
}

impl EventFile {
    /// Creates a new event file in `folder` (which is created too) for steps from `first_step`.
    ///
    /// A run that resumes writes a file of its own; TensorBoard then drops what earlier files say about
    /// `first_step` and later, so steps lost in a crash don't show twice.
    pub fn create(folder: &Path, first_step: u64) -> Result<Self, MetricsError> {
        create_dir_all(folder).map_err(MetricsError::at(folder))?;
        let now = since_epoch();
        let host = gethostname::gethostname();
        let stem = format!("events.out.tfevents.{}.{}", now.as_secs(), host.to_string_lossy());
        let (file, path) = create_unique(folder, &stem)?;
        let mut events = Self { file, path };
        // The version must be the first record of a file.
        let version = What::FileVersion("brain.Event:2".into());
        let start = What::SessionLog(SessionLog { status: SessionLog::START });
        events.append(&[Event::new(0, version), Event::new(first_step, start)])?;
        Ok(events)
    }

    /// Where the events go.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends events in one write, so that a reader never sees half a step for long.
    fn append(&mut self, events: &[Event]) -> Result<(), MetricsError> {
        let mut bytes = Vec::new();
        for event in events {
            frame(&event.encode_to_vec(), &mut bytes);
        }
        self.file.write_all(&bytes).map_err(MetricsError::at(&self.path))
    }
}

impl Sink for EventFile {
    fn scalars(&mut self, step: u64, scalars: &[Scalar<'_>]) -> Result<(), MetricsError> {
        let value = scalars.iter().map(|(tag, value)| Value::scalar(tag, *value as f32)).collect();
        self.append(&[Event::new(step, What::Summary(Summary { value }))])
    }

    /// Appends a text under `<tag>/text_summary`, the name under which MaxText's writer keeps texts.
    fn text(&mut self, tag: &str, text: &str) -> Result<(), MetricsError> {
        let value = vec![Value::text(tag, text)];
        self.append(&[Event::new(0, What::Summary(Summary { value }))])
    }
}

/// Opens a file that didn't exist: two starts in one second don't share a file.
fn create_unique(folder: &Path, stem: &str) -> Result<(File, PathBuf), MetricsError> {
    let mut attempt = 0;
    loop {
        let name = if attempt == 0 { stem.to_owned() } else { format!("{stem}.{attempt}") };
        let path = folder.join(name);
        match OpenOptions::new().append(true).create_new(true).open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => attempt += 1,
            Err(source) => return Err(MetricsError { path, source }),
        }
    }
}

fn since_epoch() -> Duration {
    // A clock before 1970 gives wrong times in the plots and nothing worse.
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Appends `data` to `out` as a TFRecord.
fn frame(data: &[u8], out: &mut Vec<u8>) {
    let length = (data.len() as u64).to_le_bytes();
    out.extend(length);
    out.extend(masked_crc(&length).to_le_bytes());
    out.extend(data);
    out.extend(masked_crc(data).to_le_bytes());
}

/// CRC-32C, rotated and shifted so that a CRC stored beside its data isn't its own check.
pub(super) fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

// The part of TensorFlow's event.proto and summary.proto that scalars and texts need.

#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    #[prost(int64, tag = "2")]
    pub step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    pub what: Option<What>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

impl Event {
    fn new(step: u64, what: What) -> Self {
        Self { wall_time: since_epoch().as_secs_f64(), step: step as i64, what: Some(what) }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionLog {
    #[prost(int32, tag = "1")]
    pub status: i32,
}

impl SessionLog {
    const START: i32 = 1;
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    #[prost(string, tag = "1")]
    pub tag: String,
    #[prost(float, optional, tag = "2")]
    pub simple_value: Option<f32>,
    #[prost(message, optional, tag = "8")]
    pub tensor: Option<TextTensor>,
    #[prost(message, optional, tag = "9")]
    pub metadata: Option<Metadata>,
}

impl Value {
    fn scalar(tag: &str, value: f32) -> Self {
        Self { tag: tag.to_owned(), simple_value: Some(value), tensor: None, metadata: None }
    }

    fn text(tag: &str, text: &str) -> Self {
        let plugin_data = Some(PluginData { plugin_name: "text".to_owned() });
        Self {
            tag: format!("{tag}/text_summary"),
            simple_value: None,
            tensor: Some(TextTensor {
                dtype: TextTensor::DT_STRING,
                tensor_shape: Some(Shape { dim: vec![Dim { size: 1 }] }),
                string_val: vec![text.into()],
            }),
            metadata: Some(Metadata { plugin_data }),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TextTensor {
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub tensor_shape: Option<Shape>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub string_val: Vec<Vec<u8>>,
}

impl TextTensor {
    const DT_STRING: i32 = 7;
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Shape {
    #[prost(message, repeated, tag = "2")]
    pub dim: Vec<Dim>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Dim {
    #[prost(int64, tag = "1")]
    pub size: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metadata {
    #[prost(message, optional, tag = "1")]
    pub plugin_data: Option<PluginData>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PluginData {
    #[prost(string, tag = "1")]
    pub plugin_name: String,
}
