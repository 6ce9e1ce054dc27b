//! Preemption: the first SIGTERM or SIGINT asks the loop to stop after its step, the second ends the process now.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether somebody asked this process to stop.
#[derive(Debug, Clone, Default)]
pub struct StopRequest(Arc<AtomicBool>);

impl StopRequest {
    /// Listens for both signals.
    ///
    /// # Errors
    /// The system refuses the handler.
    pub fn listen() -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            // The order matters: on the first signal the flag is still down and the process goes on, on the second it
            // is up. 128 + n is what a shell reports for a process that signal n ended.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked))?;
            flag::register(signal, Arc::clone(&asked))?;
        }
        Ok(Self(asked))
    }

    /// True once a signal came.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
