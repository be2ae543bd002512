//! Who a node is: its name, its region and the address at which others reach it.

use core::net::SocketAddr;
use std::fmt;

/// The longest name of a node or a region, in bytes.
pub const NAME_LEN_MAX: usize = 64;

/// One run of a node. A restart under the same name is a new incarnation of the same node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    name: String,
    region: String,
    address: SocketAddr,
    incarnation: u64,
}

/// A name that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a name has 1 to {NAME_LEN_MAX} letters, digits, dots, hyphens and underscores, \
     beginning with a letter or a digit"
)]
pub struct NameError;

impl Member {
    /// A member that others reach at `address`.
    ///
    /// `incarnation` is the time at which the node started, in microseconds: the newest one of a
    /// name replaces the older ones.
    ///
    /// # Errors
    /// If the name or the region is not one that can be printed and compared safely.
    pub fn try_new(
        name: &str,
        region: &str,
        address: SocketAddr,
        incarnation: u64,
    ) -> Result<Self, NameError> {
        if !is_name(name) || !is_name(region) {
            return Err(NameError);
        }
        Ok(Self {
            name: name.to_owned(),
            region: region.to_owned(),
            address,
            incarnation,
        })
    }

    /// The node's name, which no other node of the deployment has.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of its region.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Where other nodes reach it.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Which run of the node it is.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The same run of the node under a newer incarnation, at least `incarnation`.
    #[must_use]
    pub(crate) fn renewed(&self, incarnation: u64) -> Self {
        Self {
            incarnation: incarnation.max(self.incarnation.saturating_add(1)),
            ..self.clone()
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} ({})", self.name, self.address, self.region)
    }
}

fn is_name(text: &str) -> bool {
    text.len() <= NAME_LEN_MAX
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_refuses_names_that_cannot_be_printed() {
        let at = "127.0.0.1:1".parse().unwrap();
        for bad in ["", "-a", "a b", "a\n", "ü", &"x".repeat(NAME_LEN_MAX + 1)] {
            assert_eq!(Member::try_new(bad, "eu", at, 1), Err(NameError), "{bad:?}");
            assert_eq!(
                Member::try_new("eu-1", bad, at, 1),
                Err(NameError),
                "{bad:?}"
            );
        }
        assert!(Member::try_new("eu-1.node_2", "eu", at, 1).is_ok());
    }
}
