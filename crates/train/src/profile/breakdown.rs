//! Where the time of the profiled steps went.

use mt_model::profile::{Event, Kind};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The time of the profiled steps by kind of work.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Breakdown {
    /// Steps profiled.
    pub steps: u32,
    /// Their time.
    pub total: Duration,
    /// Kinds of work, largest first. The times add up to the total.
    pub shares: Vec<Share>,
}

/// One kind of work.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// What it is called in the table.
    pub name: &'static str,
    /// Its time in all steps.
    pub time: Duration,
    /// Floating-point operations known to have been done in it.
    pub flops: u64,
}

impl Breakdown {
    /// Sorts the time of the thread that runs the steps by what the innermost span was about. Time in a step that no span
    /// accounts for is idle, or work that nobody measures.
    pub fn of(events: &[Event]) -> Self {
        let mut steps = events.iter().filter(|event| event.kind == Kind::Step).peekable();
        let Some(thread) = steps.peek().map(|step| step.thread) else { return Self::default() };
        let mut events: Vec<&Event> = events.iter().filter(|event| event.thread == thread).collect();
        // A span comes before those in it.
        events.sort_by_key(|event| (event.start, std::cmp::Reverse(event.duration)));

        let mut shares: BTreeMap<&'static str, Share> = BTreeMap::new();
        let mut open: Vec<Open> = Vec::new();
        for event in events {
            while open.last().is_some_and(|span| span.end <= event.start) {
                close(&mut open, &mut shares);
            }
            let in_step = event.kind == Kind::Step || !open.is_empty();
            if in_step {
                let inherited = open.last().and_then(|span| span.passed_on);
                open.push(Open::new(event, inherited));
            }
        }
        while !open.is_empty() {
            close(&mut open, &mut shares);
        }
        let mut shares: Vec<Share> = shares.into_values().collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.time));
        let (steps, total) = steps.fold((0, Duration::ZERO), |(n, sum), step| (n + 1, sum + step.duration));
        Self { steps, total, shares }
    }
}

/// A span whose end hasn't been reached.
struct Open {
    name: &'static str,
    /// The name for everything inside, where the whole counts as one.
    passed_on: Option<&'static str>,
    end: Duration,
    /// Its time without that of the spans in it.
    own: Duration,
    duration: Duration,
    flops: u64,
}

impl Open {
    fn new(event: &Event, inherited: Option<&'static str>) -> Self {
        let (name, whole) = match event.kind {
            Kind::Step | Kind::Model => ("idle and unmeasured", false),
            Kind::Matmul => ("matmul", false),
            Kind::Attention => ("attention", true),
            Kind::Operation => ("other operations", false),
            Kind::Optimizer => ("optimizer", true),
            Kind::Data => ("data wait", true),
            Kind::Checkpoint => ("checkpoint", true),
            Kind::Collective => ("collectives", true),
            Kind::Evaluation => ("evaluation", true),
        };
        let name = inherited.unwrap_or(name);
        Self {
            name,
            passed_on: inherited.or(whole.then_some(name)),
            end: event.start + event.duration,
            own: event.duration,
            duration: event.duration,
            flops: event.flops,
        }
    }
}

/// Books the innermost span, and takes its time from the one around it.
fn close(open: &mut Vec<Open>, shares: &mut BTreeMap<&'static str, Share>) {
    let Some(span) = open.pop() else { return };
    if let Some(outer) = open.last_mut() {
        outer.own = outer.own.saturating_sub(span.duration);
    }
    let share = shares.entry(span.name).or_insert(Share { name: span.name, time: Duration::ZERO, flops: 0 });
    share.time += span.own;
    share.flops += span.flops;
}

impl fmt::Display for Breakdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = f64::from(self.steps.max(1));
        write!(f, "time of {} profiled steps, {:.3} s each:", self.steps, self.total.as_secs_f64() / steps)?;
        for share in &self.shares {
            let seconds = share.time.as_secs_f64();
            let percent = 100.0 * seconds / self.total.as_secs_f64();
            write!(f, "\n  {:<20} {percent:5.1} %  {:>10.3} ms", share.name, 1e3 * seconds / steps)?;
            if share.flops != 0 {
                write!(f, "  {:>8.1} GFLOP/s", share.flops as f64 / seconds / 1e9)?;
            }
        }
        Ok(())
    }
}
