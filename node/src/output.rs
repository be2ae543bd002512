//! The only place that writes to standard output: what was asked for, never logs.

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
