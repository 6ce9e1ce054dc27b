//! A window of steps under the profiler (`profiler: xplane`): traces for XProf and Perfetto, and where the time went.
//!
//! Spans are recorded by [`mt_model::profile`]; this module decides when, and writes what was recorded to
//! `tensorboard/plugins/profile/<session>/`: `<host>.xplane.pb` for XProf and TensorBoard's profile plugin,
//! `<host>.trace.json.gz` for ui.perfetto.dev. Of several ranks each writes its own, `<host>-rank3.xplane.pb`, into one session.

mod breakdown;
mod perfetto;
mod xplane;

pub use breakdown::{Breakdown, Share};

use crate::collective::{launched_at, rank, rank_among_others};
use mt_config::{Config, Profiler as Mode};
use mt_model::profile::{self, Vendor};
use std::fs::{create_dir_all, write};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tracing::{info, warn};

/// A profile that can't be made or written.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The window starts after the last step.
    #[error(
        "profiler: the profile would start at step {first}, but the last step is {last}; \
         lower skip_first_n_steps_for_profiler or set profiler: ''"
    )]
    AfterTheEnd {
        /// First step of the profile.
        first: u64,
        /// Last step of the run.
        last: u64,
    },
    /// The files can't be written.
    #[error("can't write the profile to `{}`: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Which steps are profiled, and the profile being recorded.
pub struct Profiler {
    folder: PathBuf,
    first: u64,
    last: u64,
    /// Steps between the starts of profiles, when there is more than one.
    period: Option<u64>,
    /// Step and time at which the recording began, while one is going on.
    recording: Option<(u64, SystemTime)>,
}

/// A profile on the disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Folder of its files.
    pub folder: PathBuf,
    /// Where the time of its steps went.
    pub breakdown: Breakdown,
}

/// Hands spans to the vendor's profiler that `profiler: nsys` or `rocprof` names, or says what is missing for it.
pub fn announce_ranges(config: &Config) {
    let (vendor, command) = match config.profiler {
        Mode::Nsys => (Vendor::Nvtx, "nsys profile"),
        Mode::Rocprof => (Vendor::Roctx, "rocprofv3 --marker-trace"),
        Mode::Off | Mode::Xplane => return,
    };
    match profile::emit_ranges(vendor) {
        Ok(()) => info!(
            "profiler: steps, layers and operations are ranges; run this command under `{command}` to see them"
        ),
        Err(error) => {
            warn!("profiler: no ranges for `{command}`: {error}; `profiler: xplane` needs no library")
        }
    }
}

impl Profiler {
    /// The profiler of a run whose steps are `first_step..steps`; none unless `profiler: xplane`, and none when a resumed run
    /// ends before its window.
    ///
    /// # Errors
    /// [`ProfileError::AfterTheEnd`].
    pub fn new(config: &Config, first_step: u64, steps: u64) -> Result<Option<Self>, ProfileError> {
        let length = config.profiler_steps as u64;
        if config.profiler != Mode::Xplane || length == 0 {
            return Ok(None);
        }
        let first = first_step + config.skip_first_n_steps_for_profiler as u64;
        if steps <= first && 0 < first_step {
            return Ok(None); // a resumed run with too little left to do
        }
        if steps <= first {
            return Err(ProfileError::AfterTheEnd { first, last: steps.saturating_sub(1) });
        }
        Ok(Some(Self {
            folder: config.tensorboard_dir(),
            first,
            last: (first + length).min(steps) - 1,
            period: u64::try_from(config.profile_periodically_period).ok().filter(|&period| 0 < period),
            recording: None,
        }))
    }

    /// Whether `step` is one of `edge` (the first or last of the profile), or a period's multiple after it.
    fn is_at(&self, edge: u64, step: u64) -> bool {
        step.checked_sub(edge).is_some_and(|since| match self.period {
            None => since == 0,
            Some(period) => since.is_multiple_of(period),
        })
    }

    /// To be called before every step: starts a profile that begins with it.
    pub fn before_step(&mut self, step: u64) {
        if self.recording.is_none() && self.is_at(self.first, step) {
            info!("profiling from step {step}");
            self.recording = Some((step, SystemTime::now()));
            profile::start();
        }
    }

    /// To be called after every step: ends and writes a profile that ends with it.
    ///
    /// # Errors
    /// [`ProfileError::Io`].
    pub fn after_step(&mut self, step: u64) -> Result<Option<Profile>, ProfileError> {
        if !self.is_at(self.last, step) {
            return Ok(None);
        }
        self.finish()
    }

    /// Ends and writes the profile that is being recorded, if one is.
    ///
    /// # Errors
    /// [`ProfileError::Io`].
    pub fn finish(&mut self) -> Result<Option<Profile>, ProfileError> {
        let Some((first, start)) = self.recording.take() else { return Ok(None) };
        let events = profile::stop();
        let sub_folder = self.period.map(|_| format!("step_{first}"));
        let run = sub_folder.map_or_else(|| self.folder.clone(), |name| self.folder.join(name));
        // Ranks share a session, which they can only if it's named by a time that all of them know.
        let named = launched_at().unwrap_or(start);
        let session = chrono::DateTime::<chrono::Local>::from(named).format("%Y_%m_%d_%H_%M_%S").to_string();
        let folder = run.join("plugins/profile").join(session);
        let host = host_of_rank(&gethostname::gethostname().to_string_lossy(), rank_among_others());
        let start = start.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);

        create_dir_all(&folder).map_err(io_error(&folder))?;
        put(&folder.join(format!("{host}.xplane.pb")), &xplane::encode(&events, start, &host))?;
        put(&folder.join(format!("{host}.trace.json.gz")), &perfetto::encode(&events, &host, rank()))?;
        info!("profile from step {first} in `{}`; look at it with:", folder.display());
        info!("  pip install xprof && xprof --logdir {}", run.display());
        Ok(Some(Profile { folder, breakdown: Breakdown::of(&events) }))
    }
}

impl Drop for Profiler {
    /// A run that ends in the middle of a profile stops recording.
    fn drop(&mut self) {
        if self.recording.is_some() {
            profile::stop();
        }
    }
}

/// What XProf and Perfetto are told that a trace is of: ranks of one machine are told apart.
fn host_of_rank(host: &str, rank: Option<usize>) -> String {
    rank.map_or_else(|| host.to_owned(), |rank| format!("{host}-rank{rank}"))
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), ProfileError> {
    // XProf lists every file of this name: it gets it when it is whole.
    let unfinished = path.with_extension("tmp");
    write(&unfinished, bytes).and_then(|()| std::fs::rename(&unfinished, path)).map_err(io_error(path))
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> ProfileError + '_ {
    |source| ProfileError::Io { path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests;
