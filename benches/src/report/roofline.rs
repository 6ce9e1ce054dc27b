//! The roofline plot: arithmetic intensity against speed, both logarithmic, under what the device can do.

use std::fmt::Write;

use super::{Figure, escape};
use crate::machine::Roofs;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 420.0;
/// Room for the labels of the axes.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 36.0;

const COLORS: [&str; 8] =
    ["#1f6fb2", "#c4601d", "#2c8a3d", "#a8328c", "#7a5a12", "#0f8a8a", "#b3261e", "#555555"];

/// A logarithmic axis over whole powers of ten.
struct Axis {
    low: i32,
    high: i32,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let values = values.filter(|value| value.is_finite() && *value > 0.0).map(f64::log10);
        let (low, high) = values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        let low = low.floor() as i32;
        Self { low, high: (high.ceil() as i32).max(low + 1), from, to }
    }

    fn place(&self, value: f64) -> f64 {
        let along = (value.log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        self.from + along * (self.to - self.from)
    }

    fn marks(&self) -> impl Iterator<Item = (f64, String)> {
        (self.low..=self.high).map(|power| {
            let value = 10f64.powi(power);
            (self.place(value), if power.abs() < 4 { format!("{value}") } else { format!("1e{power}") })
        })
    }
}

/// Draws figures (with their numbers in the table) under a device's roofs.
pub(super) fn plot(figures: &[(usize, &Figure)], roofs: &Roofs) -> String {
    let intensity = |figure: &Figure| figure.work.flops / figure.work.bytes;
    let speed = |figure: &Figure| figure.work.flops / figure.seconds / 1e9;
    let peaks = || roofs.matmul.iter().map(|(_, peak)| peak / 1e9);
    let ridges = roofs.matmul.iter().map(|(_, peak)| peak / roofs.copy);
    let x = Axis::over(figures.iter().map(|(_, f)| intensity(f)).chain(ridges), LEFT, WIDTH - RIGHT);
    let y = Axis::over(figures.iter().map(|(_, f)| speed(f)).chain(peaks()), HEIGHT - BOTTOM, TOP);

    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"roofline\">");
    // Writing to a string doesn't fail.
    for (at, label) in x.marks() {
        _ = write!(svg, "<path class=\"grid\" d=\"M{at:.1} {TOP}V{:.1}\"/>", HEIGHT - BOTTOM);
        _ = write!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            HEIGHT - BOTTOM + 14.0
        );
    }
    for (at, label) in y.marks() {
        _ = write!(svg, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{:.1}\"/>", WIDTH - RIGHT);
        _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">FLOP per byte</text><text x=\"4\" y=\"12\">GFLOP/s</text>",
        WIDTH - RIGHT,
        HEIGHT - 4.0
    );
    for (i, (dtype, peak)) in roofs.matmul.iter().enumerate() {
        // Names side by side, since roofs may be close.
        let right = WIDTH - RIGHT - 90.0 * i as f64;
        svg.push_str(&roof(&x, &y, roofs.copy, *peak, right, &format!("{dtype:?} matmul")));
    }
    let mut operations: Vec<&str> = figures.iter().map(|(_, figure)| figure.operation).collect();
    operations.dedup();
    for (i, operation) in operations.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        let row = TOP + 14.0 + 15.0 * i as f64;
        _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{row:.1}\" style=\"fill:{color}\">{}</text>",
            LEFT + 8.0,
            escape(operation)
        );
        for (number, figure) in figures.iter().filter(|(_, figure)| figure.operation == *operation) {
            let (cx, cy) = (x.place(intensity(figure)), y.place(speed(figure)));
            _ = write!(
                svg,
                "<g><title>{} {} {}: {:.1} GFLOP/s</title><circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\" style=\"fill:{color}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" style=\"fill:{color}\">{}</text></g>",
                escape(figure.operation),
                escape(&figure.implementation),
                escape(&figure.case),
                speed(figure),
                cx + 6.0,
                cy + 4.0,
                number + 1
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

/// `min(peak, copy * intensity)`.
fn roof(x: &Axis, y: &Axis, copy: f64, peak: f64, right: f64, name: &str) -> String {
    let bottom = 10f64.powi(y.low); // GFLOP/s
    let start = (bottom * 1e9 / copy).max(10f64.powi(x.low));
    let ridge = peak / copy;
    let top = y.place(peak / 1e9);
    format!(
        "<path class=\"roof\" d=\"M{:.1} {:.1}L{:.1} {top:.1}H{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        x.place(start),
        y.place(start * copy / 1e9),
        x.place(ridge),
        WIDTH - RIGHT,
        right,
        top - 4.0,
        escape(name)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_whole_powers_and_survive_nothing() {
        let axis = Axis::over([3.0, 250.0].into_iter(), 0.0, 300.0);
        assert_eq!((axis.low, axis.high), (0, 3));
        assert!((axis.place(10.0) - 100.0).abs() < 1e-9);
        let empty = Axis::over(std::iter::empty(), 0.0, 1.0);
        assert_eq!((empty.low, empty.high), (0, 1));
    }

    #[test]
    fn a_roof_bends_at_the_ridge() {
        let (x, y) = (
            Axis::over([0.1, 100.0].into_iter(), 0.0, 300.0),
            Axis::over([1.0, 100.0].into_iter(), 200.0, 0.0),
        );
        // 10 GB/s and 100 GFLOP/s meet at 10 FLOP per byte, two thirds along and at the top.
        assert!(roof(&x, &y, 1e10, 1e11, 300.0, "f32").contains("M0.0 200.0L200.0 0.0H"));
    }
}
