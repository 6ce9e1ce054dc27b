//! The line format: absl's (glog's), as MaxText's logs have it.

use std::fmt;
use std::path::Path;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// `I0823 10:12:13.123456 4711 loop.rs:88] message`: level, month and day, local time, process, source line.
#[derive(Default)]
pub(super) struct Glog {
    /// Lead with the year: a log file lives longer than a terminal.
    year: bool,
    /// Name this rank before the message.
    rank: Option<usize>,
}

impl Glog {
    /// The variant of a rank that speaks beside others, `E0823 10:12:13.123456 4711 loop.rs:88] rank 3: message`.
    pub(super) fn of_rank(rank: usize) -> Self {
        Self { rank: Some(rank), ..Self::default() }
    }
}

/// The file sink's variant, `I20260823 10:12:13.123456 ...`.
pub(super) fn glog_with_date() -> Glog {
    Glog { year: true, ..Glog::default() }
}

impl<S, N> FormatEvent<S, N> for Glog
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let time = chrono::Local::now();
        let stamp = time.format(if self.year { "%Y%m%d %H:%M:%S%.6f" } else { "%m%d %H:%M:%S%.6f" });
        let source = short_source(metadata.file().unwrap_or("?"));
        let line = metadata.line().unwrap_or(0);
        write!(out, "{}{stamp} {} {source}:{line}] ", letter(*metadata.level()), std::process::id())?;
        if let Some(rank) = self.rank {
            write!(out, "rank {rank}: ")?;
        }
        ctx.field_format().format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}

fn letter(level: Level) -> char {
    match level {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        Level::INFO => 'I',
        Level::DEBUG => 'D',
        Level::TRACE => 'T',
    }
}

/// File name of a source, with its folder where the name alone (`mod.rs`) says nothing.
fn short_source(file: &str) -> String {
    let path = Path::new(file);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match path.parent().and_then(Path::file_name) {
        Some(folder) if name == "mod.rs" => format!("{}/{name}", folder.to_string_lossy()),
        _ => name.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_short_and_telling() {
        assert_eq!(short_source("crates/train/src/run/steps.rs"), "steps.rs");
        assert_eq!(short_source("crates/train/src/run/mod.rs"), "run/mod.rs");
        assert_eq!(short_source("main.rs"), "main.rs");
    }
}
