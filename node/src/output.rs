//! The only place that writes to standard output what was asked for, and to standard error why a
//! command cannot begin. Logs are written elsewhere.

use std::fmt::Display;
use std::io::{self, Write};

/// Writes one line and flushes it, so that a reader at a pipe sees it at once.
///
/// # Errors
/// If standard output is closed.
pub fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Writes text as it is and flushes it.
///
/// # Errors
/// If standard output is closed.
pub fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes what is wrong to standard error.
///
/// # Errors
/// If standard error is closed.
pub fn complain(wrong: &impl Display) -> io::Result<()> {
    writeln!(io::stderr().lock(), "{wrong}")
}
