//! The scripts, and how one is called.

use std::borrow::Cow;

use redis::{Cmd, Script as Source};

use super::wire::MARKER;
use crate::mutant::{Mutant, planted};

/// A script; the store knows each by the hash of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    Take,
    GiveBack,
    Load,
    Swap,
    Marker,
}

impl Script {
    pub(super) const ALL: [Self; 5] = [
        Self::Take,
        Self::GiveBack,
        Self::Load,
        Self::Swap,
        Self::Marker,
    ];

    pub(super) fn text(self) -> Cow<'static, str> {
        let text = match self {
            Self::Take => concat!(include_str!("record.lua"), include_str!("take.lua")),
            Self::GiveBack => concat!(include_str!("record.lua"), include_str!("give_back.lua")),
            Self::Load => concat!(include_str!("record.lua"), include_str!("load.lua")),
            Self::Swap => concat!(include_str!("record.lua"), include_str!("swap.lua")),
            Self::Marker => include_str!("marker.lua"),
        };
        if self == Self::Marker && planted(Mutant::RunIdIgnored) {
            return Cow::Owned(text.replace("at_run == run and", ""));
        }
        Cow::Borrowed(text)
    }
}

/// The hashes of the scripts.
#[derive(Clone, Debug)]
pub(super) struct Scripts(Vec<String>);

impl Scripts {
    pub(super) fn new() -> Self {
        let hash = |script: Script| Source::new(&script.text()).get_hash().to_owned();
        Self(Script::ALL.into_iter().map(hash).collect())
    }

    /// Calls a script on the marker and these keys.
    pub(super) fn call(&self, script: Script, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Cmd {
        let index = Script::ALL.iter().position(|known| *known == script);
        let hash = index.and_then(|index| self.0.get(index));
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(hash.expect("every script has a hash"))
            .arg(keys.len() + 1)
            .arg(MARKER);
        for part in keys.iter().chain(args) {
            cmd.arg(part.as_slice());
        }
        cmd
    }
}
