//! The scalars of a run over its steps, thinned to what a plot can show.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// A series never holds more points than this.
const MAX_POINTS: usize = 4096;

/// All scalars of a run by tag.
#[derive(Debug, Default)]
pub(super) struct History {
    series: BTreeMap<String, Series>,
}

/// Points (step, mean value), each of `per_point` values but for the last, which is being filled.
#[derive(Debug, Default)]
struct Series {
    points: Vec<(f64, f64)>,
    per_point: usize,
    filled: usize,
}

impl History {
    /// Reads a file of JSON lines. What isn't finite isn't plotted.
    pub fn read(path: &Path) -> std::io::Result<Self> {
        let mut history = Self::default();
        for line in BufReader::new(File::open(path)?).split(b'\n') {
            let Ok(Value::Object(object)) = serde_json::from_slice(&line?) else { continue };
            let Some(step) = object.get("step").and_then(Value::as_f64) else { continue };
            for (tag, value) in object.iter().filter(|(tag, _)| *tag != "step") {
                if let Some(value) = value.as_f64() {
                    history.series.entry(tag.clone()).or_default().push(step, value);
                }
            }
        }
        Ok(history)
    }

    /// The points of a tag; none when there are none.
    pub fn points(&self, tag: &str) -> Option<&[(f64, f64)]> {
        self.series.get(tag).map(|series| series.points.as_slice())
    }
}

impl Series {
    fn push(&mut self, step: f64, value: f64) {
        self.per_point = self.per_point.max(1);
        match self.points.last_mut().filter(|_| self.filled < self.per_point) {
            Some((last_step, mean)) => {
                self.filled += 1;
                *mean += (value - *mean) / self.filled as f64;
                *last_step = step;
            }
            None => {
                if self.points.len() == MAX_POINTS {
                    self.halve();
                }
                self.points.push((step, value));
                self.filled = 1;
            }
        }
    }

    /// Makes one point of two.
    fn halve(&mut self) {
        let pairs = self.points.chunks_exact(2);
        self.points = pairs.map(|pair| (pair[1].0, 0.5 * (pair[0].1 + pair[1].1))).collect();
        self.per_point *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_series_is_thinned_to_means() {
        let mut series = Series::default();
        for step in 0..100_000 {
            series.push(f64::from(step), f64::from(step));
        }
        assert!(series.points.len() <= MAX_POINTS && MAX_POINTS / 2 <= series.points.len());
        assert_eq!(series.per_point, 32);
        for (i, (step, mean)) in series.points[..series.points.len() - 1].iter().enumerate() {
            assert_eq!((*step, *mean), (32.0 * i as f64 + 31.0, 32.0 * i as f64 + 15.5));
        }
        assert_eq!(series.points.last().unwrap().0, 99_999.0);
    }
}
