//! How much to grant (PROTOCOL 4): `plan(own ledger, demand of all regions, base shares)`.
//!
//! Only safety is a rule; the amounts here are a policy that can be read and replaced. The target
//! is weighted max-min fairness: shares are poured like water into regions whose width is their
//! base share, up to their demand; what nobody wants goes to whoever is active. Every region works
//! out the same targets from the same rows, so nobody has to agree with anybody.

mod demand;

use std::time::Duration;

pub use demand::Demand;

use crate::ledger::transition::Transition;
use crate::ledger::{GRANT_TTL, Peer, Terms};
use crate::units::{RegionId, Share, Timestamp, mul_div};

/// Changes of a share below one part in so many of the limit wait, unless somebody starves.
const HYSTERESIS_PARTS: u64 = 50;

/// A grant below one part in so many of the limit is not worth a message.
const GRANT_PARTS: u64 = 100;

/// A rate below one part in so many of the limit counts as no demand at all.
const ACTIVE_PARTS: u64 = 1_000;

/// A grant is renewed with a stamp that is at least this much newer than its basis.
const RENEW_AFTER: Duration = GRANT_TTL.checked_div(6).expect("six is not zero");

/// A region that has said nothing for so long, or never, is taken to use its base share, no more
/// and no less. Were it taken to be idle, two regions with room might each leave lending to the
/// other.
const SILENT_AFTER: Duration = GRANT_TTL;

/// What this region brings to a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// What it is offered.
    pub demand: Share,
    /// Whether it is denying, or about to, for want of share.
    pub starving: bool,
}

/// Changes a ledger towards the target: lends, renews, recalls, gives back.
pub fn plan(transition: &mut Transition<'_>, terms: &Terms<'_>, own: Own) {
    let clock = transition.stamp().clock;
    let regions = outlook(transition, terms, own, clock);
    let targets = targets(&regions, terms);
    let own_index = usize::from(terms.own.0);
    let lends = surplus_to(&regions, &targets, terms, own_index);
    let needs = targets[own_index] > regions[own_index].base;
    for other in terms.others() {
        let Some(peer) = transition.ledger().peers.get(&other).cloned() else {
            continue;
        };
        if !needs && borrows_for_nothing(&peer, clock, terms, own) {
            transition.give_back(other);
        }
        let wanted = worth_lending(lends[usize::from(other.0)], terms);
        adjust(transition, (other, &peer), wanted, (terms, own));
    }
}

/// What is known of one region when the plan is made.
#[derive(Clone, Copy, Debug)]
struct Outlook {
    base: Share,
    demand: Share,
}

fn outlook(
    transition: &Transition<'_>,
    terms: &Terms<'_>,
    own: Own,
    clock: Timestamp,
) -> Vec<Outlook> {
    let least = Share(terms.split.limit().total().0 / ACTIVE_PARTS);
    (0..terms.split.regions())
        .filter_map(|index| u16::try_from(index).ok().map(RegionId))
        .map(|region| {
            let base = terms.split.base(region, terms.client);
            let peer = transition.ledger().peers.get(&region);
            let demand = match peer {
                _ if region == terms.own => own.demand,
                Some(peer) if clock.since(peer.heard) <= SILENT_AFTER => peer.demand,
                Some(_) | None => base,
            };
            let demand = if demand < least { Share::ZERO } else { demand };
            Outlook { base, demand }
        })
        .collect()
}

/// The share that each region should have; together exactly the limit.
///
/// Where every demand fits its base share, the bases are the target: then nothing is lent at all.
fn targets(regions: &[Outlook], terms: &Terms<'_>) -> Vec<Share> {
    let unit = terms.split.limit().unit().0;
    let bases: Vec<Share> = regions.iter().map(|region| region.base).collect();
    let units = terms.split.limit().total().0 / unit;
    let wanted: Vec<u64> = regions
        .iter()
        .map(|region| region.demand.0.div_ceil(unit).min(units))
        .collect();
    let weights: Vec<u64> = bases.iter().map(|base| base.0 / unit).collect();
    if wanted
        .iter()
        .zip(&weights)
        .all(|(wanted, weight)| wanted <= weight)
    {
        return bases;
    }
    let mut poured = pour(units, &wanted, &weights);
    let mut left = units - poured.iter().sum::<u64>();
    let active: Vec<u64> = weights
        .iter()
        .zip(&wanted)
        .map(|(weight, wanted)| if *wanted > 0 { (*weight).max(1) } else { 0 })
        .collect();
    let all = active.iter().sum::<u64>().max(1);
    let spare = left;
    for (share, weight) in poured.iter_mut().zip(&active) {
        let part = mul_div(spare, *weight, all);
        *share += part;
        left -= part;
    }
    // What rounding leaves goes, a unit each, to whoever still wants more, then to the active.
    let mut order: Vec<usize> = (0..poured.len()).collect();
    order.sort_by_key(|i| (active[*i] == 0, poured[*i] >= wanted[*i], *i));
    for index in order
        .into_iter()
        .cycle()
        .take(usize::try_from(left).unwrap_or(0))
    {
        poured[index] += 1;
    }
    poured
        .into_iter()
        .map(|share| Share(share * unit))
        .collect()
}

/// Weighted max-min fairness: each gets what it wants, or its weighted part of what is left once
/// those who want less than theirs are served. A region without weight gets only what is left over.
fn pour(units: u64, wanted: &[u64], weights: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..wanted.len()).filter(|i| weights[*i] > 0).collect();
    order.sort_by(|a, b| {
        let left = u128::from(wanted[*a]) * u128::from(weights[*b]);
        let right = u128::from(wanted[*b]) * u128::from(weights[*a]);
        left.cmp(&right).then(a.cmp(b))
    });
    let mut shares = vec![0; wanted.len()];
    let (mut left, mut weight) = (units, weights.iter().sum::<u64>());
    for index in order {
        let fair = mul_div(left, weights[index], weight.max(1));
        shares[index] = wanted[index].min(fair);
        left -= shares[index];
        weight -= weights[index];
    }
    for (index, share) in shares
        .iter_mut()
        .enumerate()
        .filter(|(i, _)| weights[*i] == 0)
    {
        *share = wanted[index].min(left);
        left -= *share;
    }
    shares
}

/// What the lender `from` gives to each region: its surplus over its target, dealt in proportion to
/// need, or for a small limit in whole units along a line on which all surplus lies beside all
/// need.
fn surplus_to(
    regions: &[Outlook],
    targets: &[Share],
    terms: &Terms<'_>,
    from: usize,
) -> Vec<Share> {
    let unit = terms.split.limit().unit().0;
    let surplus = |i: usize| regions[i].base.minus(targets[i]).0;
    let need = |i: usize| targets[i].minus(regions[i].base).0;
    let all: u64 = (0..regions.len()).map(need).sum();
    let before: u64 = (0..from).map(surplus).sum();
    let mut reached = 0;
    (0..regions.len())
        .map(|to| {
            let begun = reached;
            reached += need(to);
            if all == 0 {
                Share::ZERO
            } else if unit == 1 {
                Share(mul_div(surplus(from), need(to), all))
            } else {
                let end = reached.min(before + surplus(from));
                Share(end.saturating_sub(begun.max(before)))
            }
        })
        .collect()
}

/// Nothing, if a grant would be too small to be worth a message.
fn worth_lending(share: Share, terms: &Terms<'_>) -> Share {
    let limit = terms.split.limit();
    let small = limit.unit() == Share(1) && share.0 < limit.total().0 / GRANT_PARTS;
    if small { Share::ZERO } else { share }
}

/// Whether something is borrowed that is no longer needed, with room to spare.
fn borrows_for_nothing(peer: &Peer, clock: Timestamp, terms: &Terms<'_>, own: Own) -> bool {
    let limit = terms.split.limit();
    let slack = if limit.unit() == Share(1) {
        Share(limit.total().0 / HYSTERESIS_PARTS)
    } else {
        Share::ZERO
    };
    let borrows = peer.borrowed.applied.is_some() && clock < peer.borrowed.until;
    borrows && own.demand.plus(slack) <= terms.base()
}

/// Brings what is lent to one region to `wanted`: at once where somebody starves, else only if it
/// differs by more than the hysteresis; renews what stays.
fn adjust(
    transition: &mut Transition<'_>,
    peer: (RegionId, &Peer),
    wanted: Share,
    own: (&Terms<'_>, Own),
) {
    let ((to, peer), (terms, own)) = (peer, own);
    let limit = terms.split.limit();
    let grant = peer.lent.current().filter(|_| peer.lent.recalled.is_none());
    let current = grant.map_or(Share::ZERO, |grant| grant.share);
    let hysteresis = if limit.unit() == Share(1) {
        limit.total().0 / HYSTERESIS_PARTS
    } else {
        0
    };
    let far = wanted.0.abs_diff(current.0) > hysteresis;
    let fresh = grant.is_none_or(|grant| {
        peer.stamp.generation != grant.basis.generation
            || peer.stamp.clock >= grant.basis.clock.plus(RENEW_AFTER)
    });
    let recent = transition.stamp().clock.since(peer.heard) < SILENT_AFTER;
    if wanted < current {
        let own_starves = own.starving && own.demand > transition.share();
        if wanted == Share::ZERO && (far || own_starves) {
            transition.recall(to);
        } else if far || own_starves {
            transition.lend(to, wanted);
        } else if fresh && recent {
            transition.lend(to, current);
        }
        return;
    }
    let starves = peer.demand > peer.share;
    let amount = if far || starves { wanted } else { current };
    if amount > current || (fresh && amount > Share::ZERO) {
        let free = terms.base().minus(held_by_others(transition, to));
        let amount = Share(amount.min(free).0 / limit.unit().0 * limit.unit().0);
        if recent && amount > Share::ZERO && (amount > current || fresh) {
            transition.lend(to, amount);
        }
    }
}

fn held_by_others(transition: &Transition<'_>, except: RegionId) -> Share {
    let peers = transition
        .ledger()
        .peers
        .iter()
        .filter(|(region, _)| **region != except);
    peers.map(|(_, peer)| peer.lent.held()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Split;
    use crate::units::{Client, Tokens};

    fn shares(burst: u64, weights: &[u32], demands: &[u64]) -> Vec<u64> {
        let second = Duration::from_secs(1);
        let split = Split::try_new(Tokens(burst), second, Tokens(burst), weights).expect("exact");
        let terms = Terms {
            own: RegionId(0),
            client: Client(1),
            split: &split,
            id: 1,
        };
        let total = split.limit().total().0;
        let regions: Vec<Outlook> = (0_u16..)
            .zip(demands)
            .map(|(region, demand)| Outlook {
                base: split.base(RegionId(region), Client(1)),
                demand: Share(mul_div(total, *demand, burst)),
            })
            .collect();
        let targets = targets(&regions, &terms);
        assert_eq!(
            targets.iter().copied().sum::<Share>(),
            split.limit().total()
        );
        for (region, outlook) in regions.iter().enumerate() {
            let lent: Share = surplus_to(&regions, &targets, &terms, region)
                .into_iter()
                .sum();
            let surplus = outlook.base.minus(targets[region]);
            assert!(
                lent <= surplus && surplus.0 - lent.0 <= 3,
                "{lent:?} of {surplus:?}"
            );
        }
        targets
            .iter()
            .map(|target| target.0 * burst / total)
            .collect()
    }

    #[test]
    fn plan_leaves_bases_alone_when_every_demand_fits() {
        assert_eq!(
            shares(1_000, &[20, 30, 50], &[190, 300, 40]),
            [200, 300, 500]
        );
    }

    #[test]
    fn plan_gives_all_to_the_only_region_with_demand() {
        assert_eq!(shares(1_000, &[20, 30, 50], &[900, 0, 0]), [1_000, 0, 0]);
    }

    #[test]
    fn plan_is_weighted_max_min_fair_when_demand_exceeds_the_limit() {
        assert_eq!(
            shares(1_000, &[20, 30, 50], &[900, 900, 900]),
            [200, 300, 500]
        );
        assert_eq!(
            shares(1_000, &[20, 30, 50], &[900, 900, 100]),
            [360, 540, 100]
        );
    }

    #[test]
    fn plan_asks_nothing_of_a_lender_whose_demand_rose() {
        assert_eq!(
            shares(1_000, &[20, 30, 50], &[100_000, 300, 500]),
            [200, 300, 500]
        );
    }

    #[test]
    fn plan_deals_small_limits_in_whole_tokens() {
        assert_eq!(shares(3, &[20, 30, 50], &[3, 0, 0]), [3, 0, 0]);
        assert_eq!(shares(3, &[20, 30, 50], &[3, 0, 3]).iter().sum::<u64>(), 3);
    }
}
