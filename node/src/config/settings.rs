//! One setting at a time: from the environment if it is there, else from the file.

use std::cell::RefCell;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use region::reader::{Field, Problem, Table, read};

use super::PREFIX;

/// How the value of an environment variable is written in TOML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Literal {
    /// A text without its quotes.
    Text,
    /// A number, a truth value, or a list as TOML has it.
    Bare,
    /// Texts separated by commas.
    Texts,
}

/// Where settings come from, and what is found to be wrong with them.
#[derive(Debug)]
pub(super) struct Settings<'e> {
    environment: Vec<(&'e str, &'e str)>,
    file: &'e str,
    asked: RefCell<Vec<String>>,
    problems: RefCell<Vec<Problem>>,
}

/// What was found of a setting. What is wrong has been reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lookup<T> {
    Absent,
    Wrong,
    Right(T),
}

/// One table of settings, whether or not the file has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section<'s, 't> {
    settings: &'s Settings<'s>,
    table: Option<&'s Table<'t>>,
    path: &'static str,
}

impl<'e> Settings<'e> {
    /// The settings of a file under these environment variables. Empty ones count as not set.
    pub(super) fn new(file: &'e str, environment: &'e [(String, String)]) -> Self {
        let environment = environment
            .iter()
            .filter(|(name, value)| name.starts_with(PREFIX) && !value.is_empty())
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        Self {
            environment,
            file,
            asked: RefCell::default(),
            problems: RefCell::default(),
        }
    }

    /// The settings outside any table.
    pub(super) const fn root<'s, 't>(&'s self, table: &'s Table<'t>) -> Section<'s, 't> {
        self.within(Some(table), "")
    }

    const fn within<'s, 't>(
        &'s self,
        table: Option<&'s Table<'t>>,
        path: &'static str,
    ) -> Section<'s, 't> {
        Section {
            settings: self,
            table,
            path,
        }
    }

    /// What was found wrong outside the file's own problems.
    pub(super) fn problems(&self) -> Vec<Problem> {
        self.problems.borrow().clone()
    }

    /// Reports a setting that should be there.
    fn missing(&self, field: String, example: &str) {
        let name = field.rsplit('.').next().unwrap_or_default();
        let message = format!("is missing; {}", example_of(name, example));
        self.note(field, message);
    }

    /// Reports what is wrong with a setting that has no line.
    fn note(&self, field: String, message: String) {
        self.problems.borrow_mut().push(Problem {
            file: self.file.to_owned(),
            line: 1,
            field,
            message,
        });
    }

    /// A warning for each variable with the prefix that no setting has asked for.
    pub(super) fn unknown_variables(&self) -> Vec<String> {
        let asked = self.asked.borrow();
        self.environment
            .iter()
            .filter(|(name, _)| !asked.iter().any(|asked| asked == name))
            .map(|(name, _)| format!("environment variable {name} names no setting; ignored"))
            .collect()
    }

    /// What the environment says of a setting; `None` if nothing.
    fn overridden<T>(
        &self,
        field: &str,
        literal: Literal,
        take: impl Fn(&Field<'_>) -> Option<T>,
    ) -> Option<Lookup<T>> {
        let variable = variable(field);
        let found = self.environment.iter().find(|(name, _)| *name == variable);
        let value = found.map(|(_, value)| *value);
        let file = format!("environment variable {variable}");
        self.asked.borrow_mut().push(variable);
        let text = format!("value = {}", literal.write(value?));
        let read = read(&text, &file, |table| {
            table.optional("value").and_then(|field| take(&field))
        });
        Some(match read {
            Ok(value) => Lookup::Right(value),
            Err(found) => {
                let named = found.all().iter().map(|problem| Problem {
                    field: field.to_owned(),
                    ..problem.clone()
                });
                self.problems.borrow_mut().extend(named);
                Lookup::Wrong
            }
        })
    }
}

impl Section<'_, '_> {
    /// A setting, if it is there and right.
    pub(super) fn setting<T>(
        &self,
        name: &'static str,
        literal: Literal,
        take: impl Fn(&Field<'_>) -> Option<T>,
    ) -> Option<T> {
        match self.look_up(name, literal, take) {
            Lookup::Right(value) => Some(value),
            Lookup::Wrong | Lookup::Absent => None,
        }
    }

    /// A setting that must be there; `example` is what one looks like.
    pub(super) fn required<T>(
        &self,
        name: &'static str,
        (literal, example): (Literal, &str),
        take: impl Fn(&Field<'_>) -> Option<T>,
    ) -> Option<T> {
        match self.look_up(name, literal, take) {
            Lookup::Right(value) => Some(value),
            Lookup::Wrong => None,
            Lookup::Absent => {
                match self.table {
                    Some(table) => table.missing(name, &example_of(name, example)),
                    None => self.settings.missing(self.field(name), example),
                }
                None
            }
        }
    }

    /// A table within. `take` learns whether the file or the environment has any of it.
    pub(super) fn section<T>(
        &self,
        name: &'static str,
        take: impl Fn(Section<'_, '_>, bool) -> Option<T>,
    ) -> Option<T> {
        let settings = self.settings;
        let prefix = format!("{}__", variable(name));
        let mut variables = settings.environment.iter().map(|(name, _)| *name);
        let overridden = variables.any(|variable| variable.starts_with(&prefix));
        match self.table.and_then(|table| table.optional(name)) {
            Some(field) => field.table(|table| take(settings.within(Some(table), name), true)),
            None => take(settings.within(None, name), overridden),
        }
    }

    /// Reports a problem with the table itself, or the place where it should be.
    pub(super) fn problem(&self, message: &str) {
        match self.table {
            Some(table) => table.problem(message),
            None => self.settings.note(self.path.to_owned(), message.to_owned()),
        }
    }

    fn look_up<T>(
        &self,
        name: &'static str,
        literal: Literal,
        take: impl Fn(&Field<'_>) -> Option<T>,
    ) -> Lookup<T> {
        let field = self.table.and_then(|table| table.optional(name));
        let overridden = self.settings.overridden(&self.field(name), literal, &take);
        overridden.unwrap_or_else(|| {
            field.map_or(Lookup::Absent, |field| match take(&field) {
                Some(value) => Lookup::Right(value),
                None => Lookup::Wrong,
            })
        })
    }

    fn field(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }
}

impl Literal {
    fn write(self, value: &str) -> String {
        match self {
            Self::Text => quoted(value),
            Self::Bare => value.to_owned(),
            Self::Texts => {
                let texts: Vec<String> = value.split(',').map(|text| quoted(text.trim())).collect();
                format!("[{}]", texts.join(", "))
            }
        }
    }
}

/// Reads a small file whole.
///
/// # Errors
/// What is wrong with it, to go after the name of the file or field.
pub(super) fn read_file(path: &Path, bytes_max: usize) -> Result<String, String> {
    let mut text = String::new();
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX);
    let read = File::open(path)
        .and_then(|file| file.take(limit.saturating_add(1)).read_to_string(&mut text));
    match read {
        Ok(bytes) if bytes > bytes_max => Err(format!("is longer than {bytes_max} bytes")),
        Ok(_) => Ok(text),
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}

fn example_of(name: &str, example: &str) -> String {
    format!("write for example `{name} = {example}`")
}

/// The environment variable of a setting.
fn variable(field: &str) -> String {
    format!("{PREFIX}{}", field.replace('.', "__").to_uppercase())
}

/// A text as TOML writes it.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                quoted.push_str(&format!("\\u{:04X}", u32::from(control)));
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}
