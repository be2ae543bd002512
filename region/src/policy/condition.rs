//! What must hold of a request's attributes for a policy to be for it.

use std::fmt;

use super::Attributes;

/// A test of one attribute. A request that lacks the attribute fails it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// The attribute's name.
    pub attribute: String,
    /// What its value must be like.
    pub test: Test,
}

/// What a value must be like.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Test {
    /// The value is this text.
    Equals(String),
    /// The value begins with this text.
    Prefix(String),
    /// The value matches this pattern as a whole: `*` stands for any text, `?` for any one
    /// character, everything else for itself.
    Glob(String),
}

impl Condition {
    pub(super) fn holds(&self, attributes: Attributes<'_>) -> bool {
        let Some(value) = attributes.value(&self.attribute) else {
            return false;
        };
        match &self.test {
            Test::Equals(text) => value == text,
            Test::Prefix(text) => value.starts_with(text.as_str()),
            Test::Glob(pattern) => glob(pattern, value),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, text) = match &self.test {
            Test::Equals(text) => ("is", text),
            Test::Prefix(text) => ("begins with", text),
            Test::Glob(text) => ("matches", text),
        };
        write!(f, "{} {word} {text:?}", self.attribute)
    }
}

/// Whether a pattern matches a whole text. Only the latest `*` is ever tried again, so the time is
/// bounded by the product of both lengths.
fn glob(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    let mut retry = None;
    loop {
        let (before, rest) = (pattern.clone(), text.clone());
        match (pattern.next(), text.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                text = rest.clone();
                retry = Some((before, rest));
            }
            (Some('?'), Some(_)) => {}
            (Some(wanted), Some(found)) if wanted == found => {}
            _ => {
                // The latest star takes one character more.
                let Some((star, mut from)) = retry.take() else {
                    return false;
                };
                if from.next().is_none() {
                    return false;
                }
                pattern = star.clone();
                pattern.next();
                text = from.clone();
                retry = Some((star, from));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glob_matches_the_whole_text() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("*.example.com", "api.example.com", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", "a.example.com.evil", false),
            ("/v?/*", "/v1/users", true),
            ("/v?/*", "/v/users", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b-d", false),
            ("*é?", "caféx", true),
            ("**", "anything", true),
            ("a", "a*", false),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn glob_stays_fast_on_a_hostile_text() {
        let pattern = "*a".repeat(60) + "b";
        assert!(!glob(&pattern, &"a".repeat(10_000)));
    }

    #[test]
    fn condition_fails_when_its_attribute_is_missing_or_spelled_otherwise() {
        let condition = Condition {
            attribute: "plan".into(),
            test: Test::Prefix(String::new()),
        };
        assert!(condition.holds(Attributes::new(&[("plan", "free")])));
        assert!(!condition.holds(Attributes::new(&[("Plan", "free")])));
        assert!(!condition.holds(Attributes::new(&[])));
    }
}
