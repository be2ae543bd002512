//! The only place that writes to standard output what was asked for, and to standard error why a
//! command cannot begin. Logs are written elsewhere.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// How many characters a full progress bar has.
const BAR: u64 = 40;

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

/// Shows on a terminal how far a long command has come. Elsewhere nothing is written.
///
/// # Errors
/// If standard error is closed.
pub fn progress(what: &str, done: u64, all: u64) -> io::Result<()> {
    let mut out = io::stderr().lock();
    if !out.is_terminal() {
        return Ok(());
    }
    let parts = usize::try_from(done.saturating_mul(BAR) / all.max(1)).unwrap_or(0);
    let rest = usize::try_from(BAR).unwrap_or(0).saturating_sub(parts);
    let (bar, rest) = ("#".repeat(parts), "-".repeat(rest));
    write!(out, "\r\x1b[2K{what} [{bar}{rest}] {done}/{all}")?;
    out.flush()
}

/// Takes away what [`progress`] has shown.
///
/// # Errors
/// If standard error is closed.
pub fn progress_ends() -> io::Result<()> {
    let mut out = io::stderr().lock();
    if out.is_terminal() {
        write!(out, "\r\x1b[2K")?;
        out.flush()?;
    }
    Ok(())
}
