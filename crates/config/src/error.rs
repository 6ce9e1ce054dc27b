//! Everything that is wrong with a configuration, in one report.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::node::Place;

/// One thing that is wrong (or, in a note, worth knowing), and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it stands.
    pub place: Place,
    /// What is wrong, what was expected, the nearest valid choice.
    pub message: String,
}

impl Problem {
    /// A problem at `place`.
    pub fn new(place: Place, message: impl Into<String>) -> Self {
        Self { place, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Default | Place::Derived(_) => f.write_str(&self.message),
            place => write!(f, "{place}: {}", self.message),
        }
    }
}

/// All problems of a configuration; its `Display` is the report for the user. The process exits with code 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(Vec<Problem>);

impl ConfigErrors {
    pub(crate) fn new(mut problems: Vec<Problem>) -> Self {
        let mut seen = Vec::with_capacity(problems.len());
        problems.retain(|problem| {
            let new = !seen.contains(problem);
            seen.push(problem.clone());
            new
        });
        problems.sort_by_key(|problem| reading_order(&problem.place));
        Self(problems)
    }

    /// The problems, files first, from top to bottom.
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }
}

/// Files first, from top to bottom; then arguments and variables, as they were found.
fn reading_order(place: &Place) -> (bool, Option<Arc<PathBuf>>, usize) {
    match place {
        Place::File { path, line, .. } => (false, Some(path.clone()), *line),
        _ => (true, None, 0),
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => write!(f, "the configuration has a problem:")?,
            n => write!(f, "the configuration has {n} problems:")?,
        }
        for problem in &self.0 {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

impl From<Problem> for ConfigErrors {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}
