//! What happened, in lines that a person can read.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use super::scenario::Detail;

/// How many of the last lines are kept of a run of which not everything is written down.
const LINES_MAX: usize = 60;

#[derive(Clone, Debug)]
pub(super) struct Trace {
    lines: VecDeque<String>,
    detail: Detail,
}

impl Trace {
    pub(super) const fn new(detail: Detail) -> Self {
        Self {
            lines: VecDeque::new(),
            detail,
        }
    }

    /// Notes something that says why the run went as it did.
    pub(super) fn note(&mut self, at: Duration, what: fmt::Arguments<'_>) {
        if self.detail == Detail::Notable && self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines
            .push_back(format!("{:>11.6}s  {what}", at.as_secs_f64()));
    }

    /// Notes something that happens all the time.
    pub(super) fn event(&mut self, at: Duration, what: fmt::Arguments<'_>) {
        if self.detail == Detail::Everything {
            self.note(at, what);
        }
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }
}
