//! Tables and their fields: each is read as what it should be, or a problem is noted.

use std::cell::RefCell;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Notes;

/// A table: it gives out its fields by name and knows which names were asked for.
#[derive(Debug)]
pub struct Table<'t> {
    notes: &'t Notes<'t>,
    entries: &'t DeTable<'t>,
    place: Place,
    known: RefCell<Vec<&'static str>>,
}

/// The value of one field. Reading it as something that it is not is a problem.
#[derive(Debug)]
pub struct Field<'t> {
    notes: &'t Notes<'t>,
    value: &'t DeValue<'t>,
    place: Place,
}

/// Where a value stands.
#[derive(Clone, Debug)]
struct Place {
    field: String,
    span: Range<usize>,
}

/// A span of time such as `10s`, `250ms`, `1m` or `7d`.
///
/// # Errors
/// What is wrong with it and what would be right, to go after the name of the field.
pub fn duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, u64); 6] = [
        ("us", 1),
        ("ms", 1_000),
        ("s", 1_000_000),
        ("m", 60_000_000),
        ("h", 3_600_000_000),
        ("d", 86_400_000_000),
    ];
    let number = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = &text[number.len()..];
    if number.starts_with('-') {
        return Err(format!(
            "`{text}` is negative; write for example \"{}\"",
            text.trim_start_matches('-')
        ));
    }
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "`{text}` is not a whole number with a unit; write for example \"10s\" or \"250ms\""
        ));
    }
    if unit.is_empty() {
        return Err(format!(
            "`{text}` has no unit; write for example \"{text}s\""
        ));
    }
    let Some((_, micros)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(format!(
            "`{unit}` is not a unit of time; the units are us, ms, s, m, h and d"
        ));
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(*micros))
        .map(Duration::from_micros)
        .ok_or_else(|| format!("`{text}` is too long"))
}

impl<'t> Table<'t> {
    /// The table that the whole text is.
    pub(super) fn root(notes: &'t Notes<'t>, entries: &'t DeTable<'t>) -> Self {
        let place = Place {
            field: String::new(),
            span: 0..0,
        };
        Self::new(notes, entries, place)
    }

    fn new(notes: &'t Notes<'t>, entries: &'t DeTable<'t>, place: Place) -> Self {
        Self {
            notes,
            entries,
            place,
            known: RefCell::default(),
        }
    }

    /// Reads the table; a field that `read` has not asked for is a problem.
    pub(super) fn read<T>(self, read: impl FnOnce(&Self) -> Option<T>) -> Option<T> {
        let result = read(&self);
        self.refuse_unknown();
        result
    }

    /// The field of this name, if it is there.
    #[must_use]
    pub fn optional(&self, name: &'static str) -> Option<Field<'t>> {
        self.known.borrow_mut().push(name);
        let value = self.entries.get(name)?;
        Some(self.field(name, value))
    }

    /// The field of this name. It is a problem if it is missing; `example` is what one looks like.
    #[must_use]
    pub fn required(&self, name: &'static str, example: &str) -> Option<Field<'t>> {
        let field = self.optional(name);
        if field.is_none() {
            self.missing(name, &format!("write for example `{name} = {example}`"));
        }
        field
    }

    /// Reports that a field is missing, and what is to be done.
    pub fn missing(&self, name: &'static str, advice: &str) {
        if self.notes.broken.is_empty() {
            let message = format!("is missing; {advice}");
            let place = self.place.child(name);
            self.notes.problem(&place, self.place.span.start, message);
        }
    }

    /// The field of this name as `read` reads it, or `default` if it is not there; `None` after a
    /// problem.
    #[must_use]
    pub fn or<T>(
        &self,
        name: &'static str,
        default: T,
        read: impl FnOnce(&Field<'t>) -> Option<T>,
    ) -> Option<T> {
        match self.optional(name) {
            Some(field) => read(&field),
            None => Some(default),
        }
    }

    /// A field that is known but must not be there yet: not offered to who misspells another one.
    #[must_use]
    pub fn later(&self, name: &'static str) -> Option<Field<'t>> {
        let field = self.optional(name);
        if field.is_none() {
            self.known.borrow_mut().pop();
        }
        field
    }

    /// All fields in alphabetical order, whatever they are called.
    pub fn fields(&self) -> impl Iterator<Item = (&'t str, Field<'t>)> {
        self.known.borrow_mut().push("*");
        self.entries.iter().map(|(name, value)| {
            let name = name.get_ref().as_ref();
            (name, self.field(name, value))
        })
    }

    /// Reports a problem with the table itself.
    pub fn problem(&self, message: impl Into<String>) {
        let Place { field, span } = &self.place;
        self.notes.problem(field, span.start, message.into());
    }

    fn field(&self, name: &str, value: &'t Spanned<DeValue<'t>>) -> Field<'t> {
        Field {
            notes: self.notes,
            value: value.get_ref(),
            place: Place {
                field: self.place.child(name),
                span: value.span(),
            },
        }
    }

    /// Reports the fields that nobody has asked for. Tables in fields do it by themselves.
    fn refuse_unknown(&self) {
        let mut known = self.known.borrow_mut();
        known.sort_unstable();
        known.dedup();
        if known.contains(&"*") {
            return;
        }
        for name in self.entries.keys() {
            let (name, at) = (name.get_ref().as_ref(), name.span().start);
            if known.contains(&name) {
                continue;
            }
            let message = match nearest(name, &known) {
                Some(near) => format!("is not known here; did you mean `{near}`?"),
                None => format!("is not known here; the fields are {}", listed(&known)),
            };
            self.notes.problem(&self.place.child(name), at, message);
        }
    }
}

impl<'t> Field<'t> {
    /// A text.
    #[must_use]
    pub fn text(&self) -> Option<&'t str> {
        self.value.as_str().or_else(|| {
            self.expected("a text in quotes");
            None
        })
    }

    /// A text in which a name is written: at most 64 characters of a-z, 0-9, `_`, `.` and `-`.
    #[must_use]
    pub fn name(&self) -> Option<&'t str> {
        let name = self.text()?;
        self.named(name).then_some(name)
    }

    /// Whether `name` can be the name of something; a problem if not.
    pub fn named(&self, name: &str) -> bool {
        let fits =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte);
        let good = (1..=64).contains(&name.len()) && name.bytes().all(fits);
        if !good {
            self.problem(format!(
                "`{name}` is not a name; write 1 to 64 characters of a-z, 0-9, `_`, `.` and `-`"
            ));
        }
        good
    }

    /// Yes or no.
    #[must_use]
    pub fn flag(&self) -> Option<bool> {
        self.value.as_bool().or_else(|| {
            self.expected("true or false");
            None
        })
    }

    /// A whole number within a range.
    #[must_use]
    pub fn whole(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let (low, high) = (range.start(), range.end());
        let Some(integer) = self.value.as_integer() else {
            self.expected("a whole number without quotes, for example 1000");
            return None;
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            self.problem(format!(
                "`{integer}` is out of range; write a whole number from {low} to {high}"
            ));
        }
        number
    }

    /// A span of time longer than zero, with its unit.
    #[must_use]
    pub fn duration(&self) -> Option<Duration> {
        let span = self.duration_or_zero()?;
        if span.is_zero() {
            self.problem("must be longer than zero; write for example \"10s\"");
            return None;
        }
        Some(span)
    }

    /// A span of time with its unit.
    #[must_use]
    pub fn duration_or_zero(&self) -> Option<Duration> {
        let read = match self.value {
            DeValue::String(text) => duration(text),
            // `10` lacks its unit, and is told so in the same words as "10".
            DeValue::Integer(number) => duration(&number.to_string()),
            _ => {
                self.expected("a time with its unit in quotes, for example \"10s\"");
                return None;
            }
        };
        read.map_err(|message| self.problem(message)).ok()
    }

    /// One of several words.
    #[must_use]
    pub fn choice<T: Copy>(&self, choices: &[(&'static str, T)]) -> Option<T> {
        let text = self.text()?;
        let found = choices.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            self.problem(format!("`{text}` is not one of {}", listed(&words)));
        }
        found.map(|(_, choice)| *choice)
    }

    /// The elements of a list.
    #[must_use]
    pub fn list(&self) -> Option<Vec<Self>> {
        let Some(values) = self.value.as_array() else {
            self.expected("a list in brackets");
            return None;
        };
        let elements = values.iter().enumerate().map(|(index, value)| Self {
            notes: self.notes,
            value: value.get_ref(),
            place: Place {
                field: format!("{}[{index}]", self.place.field),
                span: value.span(),
            },
        });
        Some(elements.collect())
    }

    /// A table, read with `read`, which returns `None` after a problem.
    pub fn table<T>(&self, read: impl FnOnce(&Table<'t>) -> Option<T>) -> Option<T> {
        let Some(entries) = self.value.as_table() else {
            self.expected("a table");
            return None;
        };
        Table::new(self.notes, entries, self.place.clone()).read(read)
    }

    /// Reports a problem with this field.
    pub fn problem(&self, message: impl Into<String>) {
        let Place { field, span } = &self.place;
        self.notes.problem(field, span.start, message.into());
    }

    fn expected(&self, what: &str) {
        let found = match self.value {
            DeValue::String(text) => format!("`\"{text}\"` is a text"),
            DeValue::Integer(number) => format!("`{number}` is a whole number"),
            DeValue::Float(number) => format!("`{number}` is a decimal number"),
            DeValue::Boolean(flag) => format!("`{flag}` is a truth value"),
            DeValue::Datetime(date) => format!("`{date}` is a date"),
            DeValue::Array(_) => "this is a list".into(),
            DeValue::Table(_) => "this is a table".into(),
        };
        self.problem(format!("{found}; write {what}"));
    }
}

impl Place {
    fn child(&self, name: &str) -> String {
        if self.field.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.field)
        }
    }
}

fn listed(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// The known name that is most like `name`, if one is alike enough to have been meant.
fn nearest<'n>(name: &str, known: &[&'n str]) -> Option<&'n str> {
    let near = known
        .iter()
        .map(|candidate| (distance(name, candidate), *candidate))
        .min()?;
    let enough = near.0 <= 1 + name.len().max(near.1.len()) / 4;
    enough.then_some(near.1)
}

/// The least number of characters inserted, removed or replaced that turns one name into another.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().take(64).enumerate() {
        let mut corner = i;
        let mut left = i + 1;
        row[0] = left;
        for (cell, to) in row.iter_mut().skip(1).zip(&b) {
            let replaced = corner + usize::from(from != *to);
            corner = *cell;
            left = replaced.min(left + 1).min(corner + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_needs_a_whole_number_and_a_unit() {
        for (text, micros) in [
            ("0s", 0),
            ("7us", 7),
            ("250ms", 250_000),
            ("10s", 10_000_000),
            ("1m", 60_000_000),
            ("2h", 7_200_000_000),
            ("7d", 604_800_000_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        for (text, expected) in [
            ("10", "has no unit"),
            ("-10s", "is negative; write for example \"10s\""),
            ("s", "not a whole number"),
            ("", "not a whole number"),
            ("1.5s", "not a whole number"),
            ("1h30m", "not a whole number"),
            ("1 s", "not a unit"),
            ("10sec", "`sec` is not a unit"),
            ("10é", "not a unit"),
            ("99999999999999999999s", "too long"),
            ("999999999999999999d", "too long"),
        ] {
            let message = duration(text).expect_err(text);
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn nearest_suggests_only_what_may_have_been_meant() {
        let known = ["per", "rate", "burst", "on_store_failure"];
        for (name, expected) in [
            ("perod", Some("per")),
            ("rates", Some("rate")),
            ("brust", Some("burst")),
            ("on_store_fail", Some("on_store_failure")),
            ("colour", None),
        ] {
            assert_eq!(nearest(name, &known), expected, "{name}");
        }
    }
}
