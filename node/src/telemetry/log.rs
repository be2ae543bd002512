//! Structured logs on standard error. They tell transitions, never single requests.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Whether a text is a filter for [`start`].
#[must_use]
pub fn is_filter(text: &str) -> bool {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    // A bare word that is no level would name a module, and silence all others.
    let mut parts = text.split(',').map(str::trim);
    let sound = parts.all(|part| {
        part.contains(['=', '[', ':']) || LEVELS.contains(&part.to_ascii_lowercase().as_str())
    });
    sound && EnvFilter::builder().parse(text).is_ok()
}

/// Starts logging for the whole process. A second call changes nothing, which suits tests that
/// run several nodes in one process.
///
/// # Errors
/// If the filter cannot be read.
pub fn start(format: Format, filter: &str) -> Result<(), ParseError> {
    let filter = EnvFilter::builder().parse(filter)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = match format {
        Format::Text => builder.with_ansi(false).try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
    if started.is_err() {
        tracing::debug!("logging had been started already");
    }
    Ok(())
}
