//! `policies.toml`: from the text to a checked set.
use super::*;
pub(super) fn parse(text: &str, file: &str) -> Result<PolicySet, Problems> {
    crate::reader::read(text, file, |_| Some(PolicySet::new(vec![], vec![])))
}
