//! Who is alive in which region, and which node acts for a key there. A hint, never a promise.

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::hash::Hasher;

use region::policy::PolicySet;
use region::units::{Key, RegionId};
use siphasher::sip::SipHasher13;

use crate::identity::Member;

/// The nodes that one node knows.
#[derive(Debug)]
pub struct Members {
    own: Member,
    regions: Vec<String>,
    /// By region and name, without this node.
    others: BTreeMap<(RegionId, String), Member>,
}

impl Members {
    /// Nobody but this node.
    #[must_use]
    pub fn new(own: Member, policies: &PolicySet) -> Self {
        let regions = policies
            .regions()
            .iter()
            .map(|region| region.name.clone())
            .collect();
        Self {
            own,
            regions,
            others: BTreeMap::new(),
        }
    }

    /// A node is alive.
    pub fn up(&mut self, member: Member) {
        if let Some(region) = self.region(member.region()) {
            self.others
                .insert((region, member.name().to_owned()), member);
        }
    }

    /// A node is no longer alive.
    pub fn down(&mut self, member: &Member) {
        if let Some(region) = self.region(member.region()) {
            self.others.remove(&(region, member.name().to_owned()));
        }
    }

    /// This node goes on under a new incarnation.
    pub fn rename_own(&mut self, own: Member) {
        self.own = own;
    }

    /// All members, this node first.
    #[must_use]
    pub fn all(&self) -> Vec<Member> {
        std::iter::once(&self.own)
            .chain(self.others.values())
            .cloned()
            .collect()
    }

    /// The addresses of all other nodes.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.others.values().map(Member::address)
    }

    /// The node that acts for a key in a region, by rendezvous hashing over its live nodes; `None`
    /// if that is this node, or if no node of the region is known.
    #[must_use]
    pub fn acting(&self, region: RegionId, key: Key) -> Option<SocketAddr> {
        let mut best = None;
        if Some(region) == self.region(self.own.region()) {
            best = Some((weight(self.own.name(), key), None));
        }
        for member in self.of(region) {
            let candidate = Some((weight(member.name(), key), Some(member.address())));
            best = best.max(candidate);
        }
        best.and_then(|(_, address)| address)
    }

    /// Deals items to the nodes that act for their keys in a region; those of a region without a
    /// known node are dropped, since rows are said again when one comes up.
    #[must_use]
    pub fn deal<T>(
        &self,
        region: RegionId,
        items: Vec<T>,
        key: impl Fn(&T) -> Key,
    ) -> BTreeMap<SocketAddr, Vec<T>> {
        let mut dealt: BTreeMap<SocketAddr, Vec<T>> = BTreeMap::new();
        for item in items {
            if let Some(to) = self.acting(region, key(&item)) {
                dealt.entry(to).or_default().push(item);
            }
        }
        dealt
    }

    fn of(&self, region: RegionId) -> impl Iterator<Item = &Member> {
        let from = (region, String::new());
        let members = self.others.range(from..);
        members
            .take_while(move |((other, _), _)| *other == region)
            .map(|(_, member)| member)
    }

    fn region(&self, name: &str) -> Option<RegionId> {
        let index = self.regions.iter().position(|region| region == name)?;
        u16::try_from(index).ok().map(RegionId)
    }
}

fn weight(name: &str, key: Key) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write_u128(key.client.0);
    hasher.write_u64(key.policy.0);
    hasher.write(name.as_bytes());
    hasher.finish()
}
