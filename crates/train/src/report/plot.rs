//! Plots as SVG.

use super::escape;
use std::fmt::Write;

/// How values are laid out along the vertical axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    /// Powers of ten, if all values are positive.
    Log,
}

/// Lines over steps.
pub(super) struct Plot<'a> {
    /// Unit of the values.
    pub unit: &'a str,
    pub scale: Scale,
    /// Names and points (step, value), each line with at least one point.
    pub lines: &'a [(&'a str, &'a [(f64, f64)])],
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 240.0;
/// Room for the labels of the axes.
const LEFT: f64 = 56.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 18.0;
const BOTTOM: f64 = 22.0;

/// The range of an axis and its marks.
struct Axis {
    low: f64,
    high: f64,
    marks: Vec<f64>,
}

impl Axis {
    /// Marks at round numbers, about `count` of them, over the range of `values`.
    fn over(values: impl Iterator<Item = f64> + Clone, count: f64) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        // A flat line lies in the middle.
        let margin = if low < high { 0.0 } else { low.abs().max(1e-3) * 0.5 };
        let (low, high) = (low - margin, high + margin);
        let rough = (high - low) / count;
        let power = 10_f64.powf(rough.log10().floor());
        let step = power * [1.0, 2.0, 5.0, 10.0].into_iter().find(|n| rough <= n * power).unwrap_or(10.0);
        let first = (low / step).ceil();
        let marks =
            (0..).map(|i| (first + f64::from(i)) * step).take_while(|mark| *mark <= high + 1e-9 * step);
        Self { low, high, marks: marks.take(100).collect() }
    }

    /// Where a value lies, 0 to 1.
    fn place(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }
}

/// Draws lines over steps.
pub(super) fn line_plot(plot: &Plot<'_>) -> String {
    let points = || plot.lines.iter().flat_map(|(_, points)| points.iter());
    let log = plot.scale == Scale::Log && points().all(|(_, value)| 0.0 < *value);
    let project = |value: f64| if log { value.log10() } else { value };
    let across = Axis::over(points().map(|(step, _)| *step), 8.0);
    let up = Axis::over(points().map(|(_, value)| project(*value)), 5.0);
    let x = |step: f64| LEFT + across.place(step) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - up.place(value) * (HEIGHT - TOP - BOTTOM);

    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    // Writing to a string doesn't fail.
    for &mark in &up.marks {
        let (at, label) = (y(mark), number(if log { 10_f64.powf(mark) } else { mark }));
        _ = write!(svg, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{:.1}\"/>", WIDTH - RIGHT);
        _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    for &mark in across.marks.iter().filter(|mark| mark.fract() == 0.0) {
        let label = number(mark);
        _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            x(mark),
            HEIGHT - 6.0
        );
    }
    for (i, (_, points)) in plot.lines.iter().enumerate() {
        _ = write!(svg, "<polyline stroke=\"var(--line-{})\" points=\"", i % 8);
        for (step, value) in *points {
            _ = write!(svg, "{:.1},{:.1} ", x(*step), y(project(*value)));
        }
        svg.push_str("\"/>");
    }
    // Line names with their last values stand above the plot, from the right.
    let mut right = WIDTH - RIGHT;
    for (i, (name, points)) in plot.lines.iter().enumerate().rev() {
        let last = points.last().map_or(String::new(), |(_, value)| number(*value));
        let label = format!("{} {last}", escape(name));
        _ = write!(
            svg,
            "<text x=\"{right:.1}\" y=\"11\" text-anchor=\"end\" style=\"fill:var(--line-{})\">{label}</text>",
            i % 8
        );
        right -= 6.5 * label.chars().count() as f64 + 16.0;
    }
    _ = write!(svg, "<text x=\"{LEFT}\" y=\"11\">{}</text></svg>", escape(plot.unit));
    svg
}

/// Draws parts of a whole, side by side, with their shares.
pub(super) fn bar(parts: &[(&str, f64)]) -> String {
    let total: f64 = parts.iter().map(|(_, size)| size).sum();
    let height = 40.0 + 16.0 * parts.len() as f64;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">");
    let mut left = 0.0;
    for (i, (name, size)) in parts.iter().enumerate() {
        let (share, color) = (size / total, i % 8);
        let width = share * WIDTH;
        let row = 46.0 + 16.0 * i as f64;
        _ = write!(
            svg,
            "<rect x=\"{left:.1}\" y=\"0\" width=\"{width:.1}\" height=\"26\" style=\"fill:var(--line-{color})\"/>"
        );
        _ = write!(
            svg,
            "<rect x=\"0\" y=\"{:.1}\" width=\"10\" height=\"10\" style=\"fill:var(--line-{color})\"/>",
            row - 9.0
        );
        _ = write!(svg, "<text x=\"16\" y=\"{row:.1}\">{} {:.1} %</text>", escape(name), 100.0 * share);
        left += width;
    }
    svg.push_str("</svg>");
    svg
}

/// A short form of a number: three to four digits, thousands as k, M, G.
fn number(value: f64) -> String {
    let magnitude = value.abs();
    let (scaled, suffix) = match magnitude {
        1e9.. => (value / 1e9, "G"),
        1e6.. => (value / 1e6, "M"),
        1e4.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    if value != 0.0 && magnitude < 1e-3 {
        return format!("{value:.2e}");
    }
    let digits = format!("{scaled:.3}");
    format!("{}{suffix}", digits.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_marks_inside_the_range() {
        let axis = Axis::over([0.0, 99.0].into_iter(), 5.0);
        assert_eq!(axis.marks, [0.0, 20.0, 40.0, 60.0, 80.0]);
        let axis = Axis::over([2.31, 2.38].into_iter(), 5.0);
        assert!(axis.marks.len() == 4 && (axis.marks[0] - 2.32).abs() < 1e-9, "{:?}", axis.marks);
        for flat in [0.0, 5.0, -3e9, 1e-30] {
            let axis = Axis::over([flat, flat].into_iter(), 5.0);
            assert!(axis.low < flat && flat < axis.high && axis.marks.len() < 20);
        }
        assert!(Axis::over([1e-300, 1e300].into_iter(), 5.0).marks.len() < 20);
    }

    #[test]
    fn numbers_are_short() {
        let short = [
            (0.0, "0"),
            (8.8612, "8.861"),
            (3e-5, "3.00e-5"),
            (12_500.0, "12.5k"),
            (-2e6, "-2M"),
            (1e9, "1G"),
        ];
        for (value, text) in short {
            assert_eq!(number(value), text);
        }
        assert_eq!(number(150.0), "150");
    }

    #[test]
    fn a_single_point_and_a_log_scale_with_zero_are_drawn() {
        for (scale, points) in [(Scale::Linear, [(0.0, 1.0)]), (Scale::Log, [(0.0, 0.0)])] {
            let svg = line_plot(&Plot { unit: "", scale, lines: &[("line", &points)] });
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
