//! `metrics_file`: one JSON object a step, as MaxText writes it.

use super::{MetricsError, Scalar, Sink};
use serde_json::{Map, Value};
use std::fs::{File, OpenOptions, create_dir_all};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A JSON-lines file, open for appending.
///
/// Every object has the scalars by name, `step` (a float, as MaxText writes it) and `run_name`. NaN and
/// infinities, which JSON has no words for, are `null`.
pub struct MetricsFile {
    file: File,
    path: PathBuf,
    run_name: String,
}

impl MetricsFile {
    /// Opens `path` for steps from `first_step`, creating it and its folder where missing.
    ///
    /// Lines of `first_step` and later are cut off, and so is a line torn by a crash: a run from step 0 starts an
    /// empty file, and a run that resumes goes on where its checkpoint was, so no step is there twice.
    pub fn open(path: &Path, run_name: &str, first_step: u64) -> Result<Self, MetricsError> {
        let error = || MetricsError::at(path);
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            create_dir_all(folder).map_err(error())?;
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(error())?;
        let kept = bytes_before(&file, first_step).map_err(error())?;
        file.set_len(kept).and_then(|()| file.seek(SeekFrom::Start(kept))).map_err(error())?;
        Ok(Self { file, path: path.to_path_buf(), run_name: run_name.to_owned() })
    }
}

impl Sink for MetricsFile {
    fn scalars(&mut self, step: u64, scalars: &[Scalar<'_>]) -> Result<(), MetricsError> {
        let mut object: Map<String, Value> =
            scalars.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value))).collect();
        object.insert("step".to_owned(), Value::from(step as f64));
        object.insert("run_name".to_owned(), Value::from(self.run_name.as_str()));
        let line = Value::Object(object).to_string() + "\n";
        self.file.write_all(line.as_bytes()).map_err(MetricsError::at(&self.path))
    }
}

/// Length of the leading part of `file` that holds whole lines of steps before `first_step`.
fn bytes_before(file: &File, first_step: u64) -> std::io::Result<u64> {
    let mut lines = BufReader::new(file);
    let (mut kept, mut line) = (0, Vec::new());
    loop {
        line.clear();
        let length = lines.read_until(b'\n', &mut line)?;
        let step = serde_json::from_slice::<Value>(&line).ok().and_then(|object| object["step"].as_f64());
        if !line.ends_with(b"\n") || step.is_none_or(|step| first_step as f64 <= step) {
            return Ok(kept);
        }
        kept += length as u64;
    }
}
