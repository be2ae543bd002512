//! The body of a check: `{"domain": "api", "attributes": {"user": "7"}, "cost": 1}`.

use std::borrow::Cow;
use std::fmt;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use region::units::{EXACT_MAX, Tokens};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// The most attributes of a request.
const ATTRIBUTES_MAX: usize = 64;

/// The longest domain or name of an attribute, in bytes.
const NAME_MAX: usize = 128;

/// The longest value of an attribute, in bytes.
const VALUE_MAX: usize = 4096;

/// What a gateway asks.
#[derive(Debug)]
pub(super) struct CheckRequest<'a> {
    pub(super) domain: Cow<'a, str>,
    pub(super) attributes: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub(super) cost: Tokens,
}

/// Why a request was not decided on. It has consumed nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed {
    status: StatusCode,
    error: &'static str,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw<'a> {
    #[serde(borrow)]
    domain: Cow<'a, str>,
    #[serde(borrow, default)]
    attributes: Pairs<'a>,
    #[serde(default = "one")]
    cost: u64,
}

#[derive(Default)]
struct Pairs<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Reads a body. What is wrong is looked for only after reading has failed.
pub(super) fn parse(body: &[u8]) -> Result<CheckRequest<'_>, Malformed> {
    let raw: Raw<'_> = serde_json::from_slice(body).map_err(|error| explain(body, &error))?;
    if raw.domain.is_empty() || raw.domain.len() > NAME_MAX {
        return Err(Malformed::new(
            "invalid_domain",
            format!("`domain` must have 1 to {NAME_MAX} bytes"),
        ));
    }
    let Pairs(attributes) = raw.attributes;
    if attributes.len() > ATTRIBUTES_MAX {
        return Err(Malformed::new(
            "invalid_attributes",
            format!("`attributes` must have at most {ATTRIBUTES_MAX} entries"),
        ));
    }
    for (name, value) in &attributes {
        let wrong = if name.is_empty() || name.len() > NAME_MAX {
            format!("an attribute's name must have 1 to {NAME_MAX} bytes")
        } else if value.len() > VALUE_MAX {
            format!("`attributes.{name}` must have at most {VALUE_MAX} bytes")
        } else {
            continue;
        };
        return Err(Malformed::new("invalid_attributes", wrong));
    }
    if raw.cost > EXACT_MAX {
        return Err(Malformed::cost());
    }
    Ok(CheckRequest {
        domain: raw.domain,
        attributes,
        cost: Tokens(raw.cost),
    })
}

/// Which field is wrong in a body that could not be read.
fn explain(body: &[u8], error: &serde_json::Error) -> Malformed {
    let value: Value = match serde_json::from_slice(body) {
        Ok(value) => value,
        Err(error) => return Malformed::new("invalid_json", error.to_string()),
    };
    let Value::Object(fields) = value else {
        return Malformed::new("invalid_json", "the body must be an object".to_owned());
    };
    let known = |name: &&String| !["domain", "attributes", "cost"].contains(&name.as_str());
    if let Some(name) = fields.keys().find(known) {
        let name: String = name.chars().take(NAME_MAX).collect();
        let reason = format!("`{name}` is not one of `domain`, `attributes` and `cost`");
        return Malformed::new("unknown_field", reason);
    }
    match fields.get("domain") {
        Some(Value::String(_)) => {}
        Some(_) => return Malformed::new("invalid_domain", "`domain` must be a string".to_owned()),
        None => return Malformed::new("invalid_domain", "`domain` is missing".to_owned()),
    }
    match fields.get("attributes") {
        None => {}
        Some(Value::Object(attributes)) => {
            if let Some((name, _)) = attributes.iter().find(|(_, value)| !value.is_string()) {
                let name: String = name.chars().take(NAME_MAX).collect();
                let reason = format!("`attributes.{name}` must be a string");
                return Malformed::new("invalid_attributes", reason);
            }
        }
        Some(_) => {
            let reason = "`attributes` must be an object of strings".to_owned();
            return Malformed::new("invalid_attributes", reason);
        }
    }
    if fields.get("cost").is_some_and(|cost| !cost.is_u64()) {
        return Malformed::cost();
    }
    Malformed::new("invalid_json", error.to_string())
}

const fn one() -> u64 {
    1
}

impl Malformed {
    const fn new(error: &'static str, reason: String) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            error,
            reason,
        }
    }

    fn cost() -> Self {
        let reason = format!("`cost` must be a whole number from 0 to {EXACT_MAX}");
        Self::new("invalid_cost", reason)
    }

    pub(super) fn too_large(bytes_max: usize) -> Self {
        Self {
            status: StatusCode::PAYLOAD_TOO_LARGE,
            error: "too_large",
            reason: format!("the body must have at most {bytes_max} bytes"),
        }
    }

    pub(super) fn broken_off() -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            error: "broken_body",
            reason: "the body broke off, or is not framed as its headers say".to_owned(),
        }
    }

    pub(super) fn timeout() -> Self {
        Self {
            status: StatusCode::REQUEST_TIMEOUT,
            error: "timeout",
            reason: "the body did not arrive in time".to_owned(),
        }
    }

    pub(super) fn method() -> Self {
        Self {
            status: StatusCode::METHOD_NOT_ALLOWED,
            error: "method_not_allowed",
            reason: "a check is a POST".to_owned(),
        }
    }

    pub(super) fn path() -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            error: "not_found",
            reason: "a check is sent to `/v1/check`".to_owned(),
        }
    }
}

impl IntoResponse for Malformed {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.error, "reason": self.reason });
        (self.status, axum::Json(body)).into_response()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;

        impl<'de> Visitor<'de> for Map {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs: Vec<(Cow<'de, str>, Cow<'de, str>)> = Vec::new();
                while let Some((Text(name), Text(value))) = map.next_entry()? {
                    if pairs.iter().any(|(known, _)| *known == name) {
                        return Err(A::Error::custom("an attribute is there twice"));
                    }
                    // One more than allowed is kept, so that the excess is found and named.
                    if pairs.len() <= ATTRIBUTES_MAX {
                        pairs.push((name, value));
                    }
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(Map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_is_read_with_its_defaults() {
        let request = parse(br#"{"domain":"d","attributes":{"a":"x\n","b":""}}"#).expect("good");
        assert_eq!(request.domain, "d");
        assert_eq!(request.cost, Tokens(1));
        let attributes = [("a".into(), "x\n".into()), ("b".into(), "".into())];
        assert_eq!(request.attributes, attributes);
        assert!(parse(br#"{"domain":"d"}"#).is_ok());
    }

    #[test]
    fn body_without_a_sound_shape_is_refused() {
        for (body, error, reason) in [
            ("", "invalid_json", "EOF"),
            ("[]", "invalid_json", "object"),
            (r#"{"domain":"d""#, "invalid_json", "EOF"),
            (
                r#"{"domain":"d","domain":"e"}"#,
                "invalid_json",
                "duplicate",
            ),
            ("{}", "invalid_domain", "`domain` is missing"),
            (r#"{"domain":7}"#, "invalid_domain", "`domain`"),
            (r#"{"domain":""}"#, "invalid_domain", "`domain`"),
        ] {
            refused(body, error, reason);
        }
    }

    #[test]
    fn field_that_makes_no_sense_is_refused_by_name() {
        let long = format!(r#""attributes":{{"n":"{}"}}"#, "x".repeat(VALUE_MAX + 1));
        let names = (0..=ATTRIBUTES_MAX).map(|n| format!(r#""{n}":"""#));
        let names: Vec<String> = names.collect();
        let many = format!(r#""attributes":{{{}}}"#, names.join(","));
        for (field, error, reason) in [
            (r#""costs":1"#, "unknown_field", "`costs`"),
            (r#""cost":-1"#, "invalid_cost", "`cost`"),
            (r#""cost":0.5"#, "invalid_cost", "`cost`"),
            (r#""cost":1.0"#, "invalid_cost", "`cost`"),
            (r#""cost":"1""#, "invalid_cost", "`cost`"),
            (r#""cost":9007199254740992"#, "invalid_cost", "`cost`"),
            (r#""cost":99999999999999999999"#, "invalid_cost", "`cost`"),
            (r#""attributes":[]"#, "invalid_attributes", "`attributes`"),
            (
                r#""attributes":{"n":1}"#,
                "invalid_attributes",
                "`attributes.n`",
            ),
            (r#""attributes":{"":""}"#, "invalid_attributes", "name"),
            (r#""attributes":{"n":"","n":""}"#, "invalid_json", "twice"),
            (&long, "invalid_attributes", "`attributes.n`"),
            (&many, "invalid_attributes", "at most 64"),
        ] {
            refused(&format!(r#"{{"domain":"d",{field}}}"#), error, reason);
        }
    }

    fn refused(body: &str, error: &str, reason: &str) {
        let refused = parse(body.as_bytes()).expect_err(body);
        assert_eq!(refused.error, error, "{body}");
        let told = refused.reason;
        assert!(told.contains(reason), "{body}: {told}");
    }
}
