//! Reads a TOML text field by field and collects every problem, with file, line, field, what is
//! wrong and what would be right.

mod field;

use std::cell::RefCell;
use std::fmt;

use toml::de::DeTable;

pub use self::field::{Field, Table, duration};

/// The largest text that is read, in bytes.
pub const TEXT_MAX: usize = 1 << 20;

/// The most problems that are reported of one text.
const PROBLEMS_MAX: usize = 100;

/// One thing that is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// The file, as its reader names it.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The field, such as `policy[2].per`; empty for the text as a whole.
    pub field: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// Everything that is wrong with a text, by line: never nothing, and at most a hundred things.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problems(Vec<Problem>);

/// Collects what is wrong while a text is read.
#[derive(Debug)]
struct Notes<'t> {
    file: &'t str,
    text: &'t str,
    /// The lines that are not TOML. What stood there is not known, and so not what is missing.
    broken: Vec<usize>,
    problems: RefCell<Vec<Problem>>,
}

/// Reads `text`, which problems call `file`, with `read`: that returns `None` after a problem.
///
/// # Errors
/// Every problem, of syntax and of what `read` expects.
pub fn read<T>(
    text: &str,
    file: &str,
    read: impl FnOnce(&Table<'_>) -> Option<T>,
) -> Result<T, Problems> {
    let mut notes = Notes {
        file,
        text,
        broken: Vec::new(),
        problems: RefCell::default(),
    };
    if text.len() > TEXT_MAX {
        let message = format!(
            "{} bytes are too many; at most {TEXT_MAX} are read",
            text.len()
        );
        notes.problem("", 0, message);
        return Err(notes.into_problems());
    }
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in errors.iter().take(PROBLEMS_MAX) {
        notes.syntax(error.span().map_or(0, |span| span.start), error.message());
    }
    let result = Table::root(&notes, root.get_ref()).read(read);
    match result {
        Some(result) if notes.problems.borrow().is_empty() => Ok(result),
        _ => Err(notes.into_problems()),
    }
}

impl Notes<'_> {
    fn problem(&self, field: &str, at: usize, message: String) {
        if self.problems.borrow().len() >= PROBLEMS_MAX {
            return;
        }
        let line = self.line(at);
        if !self.broken.contains(&line) {
            self.problems.borrow_mut().push(Problem {
                file: self.file.to_owned(),
                line,
                field: field.to_owned(),
                message,
            });
        }
    }

    /// Reports a line that is not TOML, once.
    fn syntax(&mut self, at: usize, message: &str) {
        let message: Vec<&str> = message.lines().collect();
        let message = format!("is not TOML: {}", message.join(", "));
        self.problem(&self.assigned(at), at, message);
        self.broken.push(self.line(at));
    }

    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().iter().take(at);
        1 + before.filter(|byte| **byte == b'\n').count()
    }

    /// The name that the line at `at` assigns to: what a fault of syntax is about.
    fn assigned(&self, at: usize) -> String {
        let start = self.text.get(..at).and_then(|before| before.rfind('\n'));
        let line = self.text.get(start.map_or(0, |start| start + 1)..);
        let line = line.and_then(|rest| rest.lines().next()).unwrap_or("");
        let name = line
            .split_once(['=', ':'])
            .map_or("", |(name, _)| name.trim());
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let named = name.chars().all(plain) && name.len() <= 64;
        if named {
            name.to_owned()
        } else {
            String::new()
        }
    }

    fn into_problems(self) -> Problems {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| problem.line);
        Problems(problems)
    }
}

impl Problems {
    /// The problems by line.
    #[must_use]
    pub fn all(&self) -> &[Problem] {
        &self.0
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file, self.line)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn problems(text: &str) -> String {
        let result = read(text, "node.toml", |root| {
            let server = root.required("server", "{ port = 1 }");
            let port = server.and_then(|field| {
                field.table(|server| {
                    let name = server.or("name", "here", Field::name);
                    let port = server.required("port", "8080");
                    let port = port.and_then(|port| port.whole(1..=65_535));
                    let grace = server.or("grace", Duration::ZERO, Field::duration_or_zero);
                    name.and(grace).and(port)
                })
            });
            root.or("verbose", false, Field::flag).and(port)
        });
        result.map_or_else(
            |problems| problems.to_string(),
            |port| format!("port {port}"),
        )
    }

    #[test]
    fn read_returns_what_was_read_when_nothing_is_wrong() {
        assert_eq!(problems("[server]\nport = 0x1F_90 # eighty\n"), "port 8080");
    }

    #[test]
    fn read_reports_every_problem_by_line() {
        let text = "verbos = true\n[server]\nport = 70_000\nname = \"A b\"\ngrace = 5\nx = 1\n";
        let expected = "\
node.toml:1: verbos: is not known here; did you mean `verbose`?
node.toml:3: server.port: `70000` is out of range; write a whole number from 1 to 65535
node.toml:4: server.name: `A b` is not a name; write 1 to 64 characters of a-z, 0-9, `_`, \
`.` and `-`
node.toml:5: server.grace: `5` has no unit; write for example \"5s\"
node.toml:6: server.x: is not known here; the fields are `grace`, `name`, `port`";
        assert_eq!(problems(text), expected);
    }

    #[test]
    fn read_reports_faults_of_syntax_beside_the_others_and_nothing_as_missing() {
        let text = "verbose = yes\n[server]\nprt = 1\n";
        let problems = problems(text);
        assert!(
            problems.starts_with("node.toml:1: verbose: is not TOML: "),
            "{problems}"
        );
        assert!(
            problems.contains("node.toml:3: server.prt: is not known"),
            "{problems}"
        );
        assert_eq!(problems.lines().count(), 2, "{problems}");
    }

    #[test]
    fn read_is_bounded_whatever_the_text() {
        let deep = format!("a = {}", "[".repeat(500_000));
        let wrong = "a = \n".repeat(170_000);
        let dotted = "a.".repeat(500_000) + "b = 1";
        let unknown: String = (0..50_000).map(|n| format!("field{n} = 1\n")).collect();
        for text in [deep, wrong, dotted, unknown, "a".repeat(TEXT_MAX + 1)] {
            let lines = problems(&text).lines().count();
            assert!((1..=PROBLEMS_MAX).contains(&lines));
        }
    }
}
