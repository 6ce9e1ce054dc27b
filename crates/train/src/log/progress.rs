//! A progress bar on a terminal, nothing on a pipe; log lines appear above the bar.

use std::io::{self, Write};
use std::sync::Mutex;

use crate::collective::rank;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The bar that is on the terminal now, if any: log lines must lift it before they print.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Stderr, shared with the bar.
pub(super) struct Terminal;

impl Write for Terminal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let print = || io::stderr().write_all(bytes);
        match &*BAR.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            Some(bar) => bar.suspend(print)?,
            None => print()?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Progress over the steps of a run; the bar leaves the terminal when this is dropped.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar from `start` (the first step of this process, later than 0 after a resume) to `steps`.
    ///
    /// It draws only when stderr is a terminal, and for rank 0 only.
    pub fn new(start: u64, steps: u64) -> Self {
        let target = match rank() {
            0 => ProgressDrawTarget::stderr_with_hz(5),
            _ => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(steps), target).with_style(style()).with_position(start);
        // The speed is that of this process, not of the steps done before it.
        bar.reset_eta();
        *BAR.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(bar.clone());
        Self { bar }
    }

    /// A bar that is never drawn.
    pub fn hidden(steps: u64) -> Self {
        Self { bar: ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden()) }
    }

    /// Moves to `done` completed steps and shows the loss and the speed beside the bar.
    pub fn update(&self, done: u64, loss: f64, tokens_per_second: f64) {
        self.bar.set_position(done);
        self.bar.set_message(format!("loss {loss:.3}  {tokens_per_second:.0} tok/s"));
    }

    /// Says what takes the time between two steps.
    pub fn note(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        *BAR.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
        self.bar.finish_and_clear();
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:30} {pos}/{len} steps  {elapsed} elapsed, {eta} left  {msg}")
        .expect("the template is a constant and valid")
        .progress_chars("=> ")
}
