//! `report.html`: the figures of a run as plots in one file that opens anywhere, without a network.

mod plot;
mod series;

use crate::profile::Breakdown;
use plot::{Plot, Scale, bar, line_plot};
use series::History;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A report that can't be made.
#[derive(Debug, thiserror::Error)]
#[error("can't {action} `{}`: {source}", path.display())]
pub struct ReportError {
    /// `read` or `write`.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    pub source: std::io::Error,
}

const STYLE: &str = include_str!("style.css");

/// Writes the report of a run to `path`.
///
/// The plots are made of `metrics`, the run's JSON lines, so they show it from its first step however often it was resumed.
/// `rows` is the table at the top; `breakdown` is that of the last profile, if there was one.
///
/// # Errors
/// [`ReportError`] when a file can't be read or written. A damaged line of `metrics` is left out.
pub fn write(
    path: &Path,
    title: &str,
    metrics: &Path,
    rows: &[(&str, String)],
    breakdown: Option<&Breakdown>,
) -> Result<(), ReportError> {
    let history = History::read(metrics).map_err(|source| ReportError {
        action: "read",
        path: metrics.into(),
        source,
    })?;
    let page = page(title, &history, rows, breakdown);
    std::fs::write(path, page).map_err(|source| ReportError { action: "write", path: path.into(), source })
}

/// A plot: title, unit, scale, and the lines with their names.
type PlotSpec = (&'static str, &'static str, Scale, &'static [(&'static str, &'static str)]);

/// What is plotted.
const PLOTS: &[PlotSpec] = &[
    ("Loss", "nats", Scale::Linear, &[("learning/loss", "training"), ("eval/avg_loss", "evaluation")]),
    ("Learning rate", "", Scale::Linear, &[("learning/current_learning_rate", "learning rate")]),
    (
        "Gradient norm",
        "",
        Scale::Log,
        &[("learning/raw_grad_norm", "before clipping"), ("learning/grad_norm", "after")],
    ),
    ("Parameter norm", "", Scale::Linear, &[("learning/param_norm", "parameters")]),
    ("Speed", "tokens/s/device", Scale::Linear, &[("perf/per_device_tokens_per_sec", "tokens/s")]),
    (
        "Step time",
        "s",
        Scale::Log,
        &[("perf/step_time_seconds", "step"), ("perf/data_wait_seconds", "waiting for data")],
    ),
    (
        "Memory",
        "bytes",
        Scale::Linear,
        &[
            ("perf/host_memory_bytes", "resident"),
            ("perf/host_memory_peak_bytes", "peak"),
            ("perf/device_memory_bytes", "tensors on the GPU"),
        ],
    ),
    ("Padding", "share of a batch", Scale::Linear, &[("data/padding_share", "padding")]),
];

fn page(title: &str, history: &History, rows: &[(&str, String)], breakdown: Option<&Breakdown>) -> String {
    let mut body = format!("<h1>{}</h1>\n<table>\n", escape(title));
    for (label, value) in rows {
        // Writing to a string doesn't fail.
        _ = writeln!(body, "<tr><th>{}</th><td>{}</td></tr>", escape(label), escape(value));
    }
    body.push_str("</table>\n");
    if let Some(breakdown) = breakdown.filter(|breakdown| !breakdown.shares.is_empty()) {
        let shares: Vec<(&str, f64)> =
            breakdown.shares.iter().map(|share| (share.name, share.time.as_secs_f64())).collect();
        _ = writeln!(
            body,
            "<figure><figcaption>Where a profiled step's time goes</figcaption>{}</figure>",
            bar(&shares)
        );
    }
    for (title, unit, scale, lines) in PLOTS {
        let lines: Vec<_> =
            lines.iter().filter_map(|(tag, name)| Some((*name, history.points(tag)?))).collect();
        if !lines.is_empty() {
            let plot = line_plot(&Plot { unit, scale: *scale, lines: &lines });
            _ = writeln!(body, "<figure><figcaption>{title}</figcaption>{plot}</figure>");
        }
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n{body}</body>\n</html>\n",
        escape(title)
    )
}

/// Text as HTML: it may hold anything, names of runs are the user's.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests;
