//! The lab's report: a table of all figures of a run and a roofline per device, in one page without scripts.

mod roofline;

use std::fmt::Write;

use burn::tensor::DType;

use crate::lab::Work;
use crate::machine::Roofs;

/// A measured case.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Such as `attention`.
    pub operation: &'static str,
    /// Such as `flash`.
    pub implementation: String,
    /// Such as `CPU`.
    pub device: String,
    /// Shape, type and pass.
    pub case: String,
    /// Type of the operands.
    pub dtype: DType,
    /// What the definition needs.
    pub work: Work,
    /// Median time.
    pub seconds: f64,
    /// Median time of the baseline.
    pub before: Option<f64>,
}

/// A device and its roofs.
pub type Measured = (String, Roofs);

impl Figure {
    /// TFLOP/s by [`Work::flops`].
    pub fn teraflops(&self) -> f64 {
        self.work.flops / self.seconds / 1e12
    }

    /// GB/s by [`Work::bytes`].
    pub fn gigabytes(&self) -> f64 {
        self.work.bytes / self.seconds / 1e9
    }

    /// Of the device's matrix product and of its copy.
    pub fn shares(&self, roofs: &Roofs) -> [f64; 2] {
        [self.work.flops / self.seconds / roofs.peak(self.dtype), self.work.bytes / self.seconds / roofs.copy]
    }

    /// Time of the peer (`torch`) for the same case over this one's.
    fn over_peer(&self, all: &[Self]) -> Option<f64> {
        let same = |other: &&Self| {
            other.implementation == "torch" && other.operation == self.operation && other.case == self.case
        };
        let peer = all.iter().find(same).filter(|_| self.device == "CPU" && self.implementation != "torch");
        peer.map(|peer| peer.seconds / self.seconds)
    }
}

const HEADINGS: [&str; 8] =
    ["implementation", "case", "time", "TFLOP/s", "of matmul", "GB/s", "of copy", "over torch"];

fn row(figure: &Figure, all: &[Figure], devices: &[Measured]) -> [String; 9] {
    let roofs = devices.iter().find(|(name, _)| *name == figure.device).map(|(_, roofs)| roofs);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let [flops, bytes] = roofs.map_or_else(Default::default, |roofs| figure.shares(roofs).map(percent));
    let change = |before: f64| format!("{:+.1} %", 100.0 * (figure.seconds / before - 1.0));
    [
        figure.implementation.clone(),
        figure.case.clone(),
        time(figure.seconds),
        digits(figure.teraflops()),
        flops,
        digits(figure.gigabytes()),
        bytes,
        figure.over_peer(all).map_or_else(String::new, |ratio| format!("{ratio:.2}x")),
        figure.before.map_or_else(String::new, change),
    ]
}

/// Three digits that count.
fn digits(value: f64) -> String {
    let places = (2.0 - value.abs().log10().floor()).clamp(0.0, 9.0);
    format!("{value:.*}", if value == 0.0 { 0 } else { places as usize })
}

fn time(seconds: f64) -> String {
    match seconds {
        1.0.. => format!("{seconds:.3} s"),
        1e-3.. => format!("{:.3} ms", seconds * 1e3),
        _ => format!("{:.2} us", seconds * 1e6),
    }
}

/// The table as text, for the terminal.
pub fn text(figures: &[Figure], devices: &[Measured], baseline: &str) -> String {
    let mut text = String::new();
    // Writing to a string doesn't fail.
    for (name, roofs) in devices {
        _ = write!(text, "\n{name}: copy {:.1} GB/s", roofs.copy / 1e9);
        for (dtype, peak) in &roofs.matmul {
            _ = write!(text, ", {dtype:?} matmul {:.3} TFLOP/s", peak / 1e12);
        }
        _ = write!(text, "\n{:28}{:44}", "", "");
        for heading in &HEADINGS[2..] {
            _ = write!(text, "{heading:>12}");
        }
        _ = writeln!(text, "{:>20}", format!("against `{baseline}`"));
        for figure in figures.iter().filter(|figure| figure.device == *name) {
            let cells = row(figure, figures, devices);
            _ = write!(text, "{:28}{:44}", format!("{} {}", figure.operation, cells[0]), cells[1]);
            for cell in &cells[2..8] {
                _ = write!(text, "{cell:>12}");
            }
            _ = writeln!(text, "{:>20}", cells[8]);
        }
    }
    text
}

const STYLE: &str = "body{font:14px/1.4 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#222;background:#fff}\
table{border-collapse:collapse;width:100%}td,th{padding:2px 8px;text-align:right;border-bottom:1px solid #ddd}\
td:nth-child(-n+3),th:nth-child(-n+3){text-align:left}svg{width:100%;font:11px system-ui,sans-serif}\
.grid{stroke:#e4e4e4}.roof{stroke:#222;fill:none;stroke-width:1.5}.slower{color:#b3261e}.faster{color:#1b7f3b}";

/// The page.
pub fn page(title: &str, figures: &[Figure], devices: &[Measured], baseline: &str) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title><style>{STYLE}</style></head><body><h1>{0}</h1>\n",
        escape(title)
    );
    html.push_str(
        "<p>Times are criterion's medians. A point of a plot has the number of its row below it. FLOPs and bytes are the least that a definition needs (docs/kernels.md), not what an \
         implementation does; attention counts visible pairs only. Roofs: the fastest matrix product and a copy, measured in this run.</p>\n",
    );
    // Writing to a string doesn't fail.
    for (name, roofs) in devices {
        let of_device: Vec<(usize, &Figure)> =
            figures.iter().enumerate().filter(|(_, figure)| figure.device == *name).collect();
        _ = write!(html, "<h2>{}</h2>\n<p>copy {:.1} GB/s", escape(name), roofs.copy / 1e9);
        for (dtype, peak) in &roofs.matmul {
            _ = write!(html, ", {dtype:?} matmul {:.3} TFLOP/s", peak / 1e12);
        }
        _ = writeln!(html, "</p>\n{}", roofline::plot(&of_device, roofs));
        html.push_str("<table><thead><tr><th>#</th>");
        for heading in &HEADINGS {
            _ = write!(html, "<th>{heading}</th>");
        }
        _ = writeln!(html, "<th>against `{}`</th></tr></thead><tbody>", escape(baseline));
        for (i, figure) in of_device {
            let cells = row(figure, figures, devices);
            _ = write!(html, "<tr><td>{}</td><td>{} ", i + 1, figure.operation);
            for cell in &cells[..8] {
                _ = write!(html, "{}</td><td>", escape(cell));
            }
            let class = match figure.before.map(|before| figure.seconds / before) {
                Some(ratio) if ratio > 1.05 => "slower",
                Some(ratio) if ratio < 0.95 => "faster",
                _ => "same",
            };
            _ = writeln!(html, "<span class=\"{class}\">{}</span></td></tr>", escape(&cells[8]));
        }
        html.push_str("</tbody></table>\n");
    }
    html.push_str("</body></html>\n");
    html
}

/// Text inside of HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(implementation: &str, seconds: f64, before: Option<f64>) -> Figure {
        Figure {
            operation: "attention",
            implementation: implementation.into(),
            device: "CPU".into(),
            case: "b1 <small>".into(),
            dtype: DType::F32,
            work: Work { flops: 2e9, bytes: 1e8 },
            seconds,
            before,
        }
    }

    fn devices() -> Vec<Measured> {
        vec![("CPU".into(), Roofs { matmul: vec![(DType::F32, 4e11)], copy: 2e10 })]
    }

    #[test]
    fn speeds_shares_and_ratios() {
        let all = [figure("flash", 0.01, Some(0.02)), figure("torch", 0.03, None)];
        let cells = row(&all[0], &all, &devices());
        assert_eq!(
            cells[2..],
            ["10.000 ms", "0.200", "50.0 %", "10.0", "50.0 %", "3.00x", "-50.0 %"].map(str::to_owned)
        );
        assert_eq!(row(&all[1], &all, &devices())[7..], [String::new(), String::new()]);
    }

    #[test]
    fn three_digits() {
        assert_eq!(
            [0.000_123_4, 0.5, 12.34, 1234.5, 0.0].map(digits),
            ["0.000123", "0.500", "12.3", "1234", "0"]
        );
    }

    #[test]
    fn the_page_is_closed_and_escaped() {
        let all = [figure("flash", 0.01, Some(0.02)), figure("torch", 0.03, None)];
        let page = page("A & B", &all, &devices(), "base");
        assert!(page.contains("A &amp; B") && page.contains("b1 &lt;small&gt;") && !page.contains("<small>"));
        for tag in
            ["svg", "table", "tr", "td", "th", "text", "g", "title", "span", "p", "h2", "thead", "tbody"]
        {
            let opened =
                page.matches(&format!("<{tag} ")).count() + page.matches(&format!("<{tag}>")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    }
}
