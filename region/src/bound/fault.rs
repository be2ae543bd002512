//! What can go wrong, how often and for how long: what a total is asked for.

use std::str::FromStr;
use std::time::Duration;

use crate::reader::duration;

/// One thing that goes wrong, in one region. What goes wrong in two regions is named twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Partitions, delay, loss, repetition, reordering; nodes that crash.
    Network,
    /// A shard that has lost its memory so often, and shows it by its run id or its marker.
    StoreLoss(u32),
    /// A shard that has forgotten keys so often, or gone back to an older state of them, and does
    /// not show it.
    UndetectedStoreLoss(u32),
    /// A shard with two primaries for so long, both used by nodes of the region.
    TwoPrimaries(Duration),
    /// A shard that does not answer, from the first call that fails to the last.
    Outage(Duration),
    /// Clocks that go at different rates for so long.
    ClockRate(Duration),
    /// A shard's clock that steps so far, ahead or back, or stands still for so long.
    ClockStep(Duration),
    /// Regions that have different limits or weights in force for so long.
    LimitChange(Duration),
    /// `--first-start`, said so often of a shard that had lost its memory.
    FirstStart(u32),
}

/// Why a text is no fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// There is no fault of this name; [`Fault::FORMS`] lists them.
    #[error("`{0}` is not a fault")]
    Unknown(String),
    /// It takes nothing after its name.
    #[error("`{0}` takes no value; write `network`")]
    Takes(String),
    /// It needs the time that it lasts.
    #[error("`{0}` lacks a time; write for example `{0}=5s`")]
    Lacks(String),
    /// What stands after the name is no number of times.
    #[error("`{0}`: `{1}` is not a whole number from 1 to 1000000; write for example `{0}=2`")]
    Count(String, String),
    /// What stands after the name is no time.
    #[error("`{0}`: {1}")]
    Span(String, String),
}

/// The most times that a fault can be said to happen.
const TIMES_MAX: u32 = 1_000_000;

impl Fault {
    /// Every fault as it is written.
    pub const FORMS: [&'static str; 9] = [
        "network",
        "store-loss[=TIMES]",
        "undetected-store-loss[=TIMES]",
        "two-primaries=TIME",
        "outage=TIME",
        "clock-rate=TIME",
        "clock-step=TIME",
        "limit-change=TIME",
        "first-start[=TIMES]",
    ];
}

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let times = || times(name, value);
        let span = || span(name, value);
        match name {
            "network" if value.is_some() => Err(FaultError::Takes(name.to_owned())),
            "network" => Ok(Self::Network),
            "store-loss" => times().map(Self::StoreLoss),
            "undetected-store-loss" => times().map(Self::UndetectedStoreLoss),
            "two-primaries" => span().map(Self::TwoPrimaries),
            "outage" => span().map(Self::Outage),
            "clock-rate" => span().map(Self::ClockRate),
            "clock-step" => span().map(Self::ClockStep),
            "limit-change" => span().map(Self::LimitChange),
            "first-start" => times().map(Self::FirstStart),
            _ => Err(FaultError::Unknown(name.to_owned())),
        }
    }
}

/// How often; once where nothing is said.
fn times(name: &str, value: Option<&str>) -> Result<u32, FaultError> {
    let Some(value) = value else { return Ok(1) };
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let times = value.parse().ok().filter(|times| digits && *times > 0);
    times
        .filter(|times| *times <= TIMES_MAX)
        .ok_or_else(|| FaultError::Count(name.to_owned(), value.to_owned()))
}

/// For how long.
fn span(name: &str, value: Option<&str>) -> Result<Duration, FaultError> {
    let value = value.ok_or_else(|| FaultError::Lacks(name.to_owned()))?;
    duration(value).map_err(|message| FaultError::Span(name.to_owned(), message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_is_read_with_its_count_or_its_time() {
        let read = |text: &str| text.parse::<Fault>();
        let second = Duration::from_secs(1);
        assert_eq!(read("network"), Ok(Fault::Network));
        assert_eq!(read("store-loss"), Ok(Fault::StoreLoss(1)));
        assert_eq!(read("first-start=3"), Ok(Fault::FirstStart(3)));
        assert_eq!(
            read("two-primaries=5s"),
            Ok(Fault::TwoPrimaries(second * 5))
        );
        assert_eq!(read("outage=0s"), Ok(Fault::Outage(Duration::ZERO)));
    }

    #[test]
    fn fault_that_is_malformed_is_refused_with_what_would_be_right() {
        let refused = |text: &str| match text.parse::<Fault>() {
            Ok(fault) => format!("{fault:?}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(refused("fire"), "`fire` is not a fault");
        assert_eq!(
            refused("network=2"),
            "`network` takes no value; write `network`"
        );
        assert_eq!(
            refused("outage"),
            "`outage` lacks a time; write for example `outage=5s`"
        );
        for value in ["", "0", "+2", "-1", "2s", "1000001", "99999999999"] {
            assert_eq!(
                refused(&format!("store-loss={value}")),
                format!(
                    "`store-loss`: `{value}` is not a whole number from 1 to 1000000; write for \
                     example `store-loss=2`"
                )
            );
        }
        assert_eq!(
            refused("clock-step=5"),
            "`clock-step`: `5` has no unit; write for example \"5s\""
        );
        assert_eq!(
            refused("clock-step=5 s"),
            "`clock-step`: ` s` is not a unit of time; the units are us, ms, s, m, h and d"
        );
    }
}
