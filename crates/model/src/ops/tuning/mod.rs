//! Which of a kernel's variants runs: the built-in table's, or the fastest, measured at the first call of its kind on a device.
//!
//! Variants of a kernel differ in their tiles, and so in the order of their sums: the choice may change results by rounding. It's made
//! once: a process keeps it, and with a folder so do later runs and other processes, which then give the same bits again.
//! Without [`set`] nothing is measured.
#![cfg_attr(not(feature = "gpu"), allow(dead_code, reason = "only GPUs have variants to choose from"))]

mod store;

use std::collections::HashMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::store::Store;

/// Where choices come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Tuning {
    /// The built-in table.
    #[default]
    Table,
    /// Measurements.
    Measured {
        /// Where they are kept, a file per device; nowhere but in this process without one.
        folder: Option<PathBuf>,
    },
}

impl Tuning {
    /// As the key `kernel_tuning_dir` says: a folder, none, or `off`.
    pub fn from_key(value: &str) -> Self {
        match value {
            "off" => Self::Table,
            "" => Self::Measured { folder: None },
            folder => Self::Measured { folder: Some(folder.into()) },
        }
    }
}

/// Timed runs of a variant, after one that isn't.
const SAMPLES: usize = 3;
/// A variant whose first timed run takes this many times the best one's isn't run again.
const HOPELESS: u32 = 2;

#[derive(Default)]
struct State {
    tuning: Tuning,
    report: Option<fn(&str)>,
    devices: HashMap<String, Store>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn state() -> MutexGuard<'static, Option<State>> {
    // What a panicking holder leaves is whole: choices are added when they are made.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says, for the whole process, where choices come from, and what takes the lines about them.
pub fn set(tuning: Tuning, report: fn(&str)) {
    *state() = Some(State { tuning, report: Some(report), devices: HashMap::new() });
}

/// The index of the variant to run, the first (the table's) unless measurements say otherwise.
///
/// `kind` names what the choice holds for, in words without tabs or line breaks. `run` runs a variant to its end and says how long
/// that took, or that it can't; it must not ask for a choice itself.
pub(crate) fn choose<V: Display>(
    device: &str,
    kind: impl FnOnce() -> String,
    variants: &[V],
    run: impl FnMut(usize) -> Option<Duration>,
) -> usize {
    let mut state = state();
    match state.as_mut() {
        Some(state) if variants.len() > 1 => state.choose(device, &kind(), variants, run),
        _ => 0,
    }
}

impl State {
    fn choose<V: Display>(
        &mut self,
        device: &str,
        kind: &str,
        variants: &[V],
        run: impl FnMut(usize) -> Option<Duration>,
    ) -> usize {
        let Tuning::Measured { folder } = &self.tuning else { return 0 };
        let report = |line: &str| self.report.iter().for_each(|report| report(line));
        let store = self
            .devices
            .entry(device.to_owned())
            .or_insert_with(|| Store::open(folder.as_deref(), device, &report));
        let index = |name: &str| variants.iter().position(|variant| variant.to_string() == name);
        if let Some(known) = store.get(kind).and_then(index) {
            return known;
        }
        let times = measure(variants.len(), run);
        let best = (0..variants.len()).filter(|&i| times[i].is_some()).min_by_key(|&i| times[i]).unwrap_or(0);
        let kept = store.put(kind, &variants[best].to_string(), |name| index(name).is_some(), &report);
        let chosen = index(&kept).unwrap_or(best);
        report(&summary(kind, variants, &times, chosen));
        chosen
    }
}

/// The least time of each variant, none for those that can't run.
fn measure(count: usize, mut run: impl FnMut(usize) -> Option<Duration>) -> Vec<Option<Duration>> {
    let mut best: Option<Duration> = None;
    let mut times = Vec::new();
    for variant in 0..count {
        // The first run compiles.
        let mut least = run(variant).and_then(|_| run(variant));
        for _ in 1..SAMPLES {
            let Some(known) = least else { break };
            if best.is_some_and(|best| known > best * HOPELESS) {
                break;
            }
            least = run(variant).map(|time| time.min(known));
        }
        best = [best, least].into_iter().flatten().min();
        times.push(least);
    }
    times
}

fn summary<V: Display>(kind: &str, variants: &[V], times: &[Option<Duration>], chosen: usize) -> String {
    let times: Vec<String> = variants
        .iter()
        .zip(times)
        .map(|(variant, time)| match time {
            Some(time) => format!("{variant} {:.3} ms", time.as_secs_f64() * 1e3),
            None => format!("{variant} can't run"),
        })
        .collect();
    format!("measured {kind}: {} ({})", variants[chosen], times.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VARIANTS: [&str; 3] = ["64x64", "64x32", "32x32"];

    fn measured(folder: Option<PathBuf>) -> State {
        State { tuning: Tuning::Measured { folder }, ..State::default() }
    }

    /// Runs that take these times, over and over; counted.
    fn timed(times: [Option<u64>; 3], runs: &mut [usize; 3]) -> impl FnMut(usize) -> Option<Duration> {
        move |variant| {
            runs[variant] += 1;
            times[variant].map(Duration::from_micros)
        }
    }

    #[test]
    fn the_table_counts_without_measurements() {
        let mut state = State::default();
        assert_eq!(state.choose("gpu", "kind", &VARIANTS, |_| panic!("nothing is measured")), 0);
    }

    #[test]
    fn the_fastest_runs_and_is_measured_once() {
        let mut state = measured(None);
        let mut runs = [0; 3];
        assert_eq!(
            state.choose("gpu", "kind", &VARIANTS, timed([Some(30), Some(20), Some(50)], &mut runs)),
            1
        );
        assert_eq!(runs, [4, 4, 2], "one run to compile, then three, one where it's hopeless");
        assert_eq!(state.choose("gpu", "kind", &VARIANTS, |_| panic!("it's known")), 1);
        assert_eq!(state.choose("gpu", "other", &VARIANTS, timed([Some(1); 3], &mut runs)), 0);
        assert_eq!(
            state.choose("other", "kind", &VARIANTS, timed([Some(9), Some(9), Some(2)], &mut runs)),
            2
        );
    }

    #[test]
    fn what_cannot_run_is_not_chosen() {
        let mut runs = [0; 3];
        assert_eq!(
            measured(None).choose("gpu", "kind", &VARIANTS, timed([Some(9), None, None], &mut runs)),
            0
        );
        assert_eq!(runs, [4, 1, 1]);
        assert_eq!(
            measured(None).choose("gpu", "kind", &VARIANTS, timed([None, Some(9), None], &mut runs)),
            1
        );
        assert_eq!(measured(None).choose("gpu", "kind", &VARIANTS, timed([None; 3], &mut runs)), 0);
    }

    #[test]
    fn another_run_takes_the_choice_from_the_folder() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = Some(folder.path().join("deep/er"));
        let mut runs = [0; 3];
        let mut first = measured(path.clone());
        assert_eq!(first.choose("gpu", "a", &VARIANTS, timed([Some(9), Some(8), Some(7)], &mut runs)), 2);
        assert_eq!(first.choose("gpu", "b", &VARIANTS, timed([Some(9), Some(7), Some(8)], &mut runs)), 1);
        let mut second = measured(path.clone());
        assert_eq!(second.choose("gpu", "a", &VARIANTS, |_| panic!("it's known")), 2);
        assert_eq!(second.choose("gpu", "b", &VARIANTS, |_| panic!("it's known")), 1);
        assert_eq!(second.choose("another gpu", "a", &VARIANTS, timed([Some(1); 3], &mut runs)), 0);
        // A variant that is no more is measured anew.
        assert_eq!(
            measured(path).choose("gpu", "a", &VARIANTS[..2], timed([Some(9), Some(7), None], &mut runs)),
            1
        );
    }

    /// Two processes that start at once agree on whatever was written first.
    #[test]
    fn the_first_written_choice_counts() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = Some(folder.path().to_owned());
        let (mut first, mut second) = (measured(path.clone()), measured(path));
        let mut runs = [0; 3];
        assert_eq!(first.choose("gpu", "x", &VARIANTS, timed([Some(1); 3], &mut runs)), 0);
        assert_eq!(second.choose("gpu", "y", &VARIANTS, timed([Some(1); 3], &mut runs)), 0);
        assert_eq!(first.choose("gpu", "a", &VARIANTS, timed([Some(9), Some(8), Some(7)], &mut runs)), 2);
        assert_eq!(second.choose("gpu", "a", &VARIANTS, timed([Some(7), Some(8), Some(9)], &mut runs)), 2);
        assert_eq!(first.choose("gpu", "y", &VARIANTS, timed([Some(7), Some(8), Some(1)], &mut runs)), 0);
    }
}
