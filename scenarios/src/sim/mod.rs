//! A discrete-event simulator: whole deployments in virtual time, from a seed.
//!
//! It drives the very code of production: the limiter over the memory store, membership, exchange
//! and replica, and the wire format between them. Only clocks, links and stores are played. Events
//! happen in the order of their time and, at the same time, in the order in which they were posted;
//! so the same scenario runs the same way, byte for byte.

mod books;
mod costs;
mod dice;
mod fault;
mod node;
mod run;
mod scenario;
mod store;
mod trace;
mod traffic;
mod world;

pub use self::dice::Dice;
pub use self::fault::{Fault, ShardFault};
pub use self::run::{Broken, Gossip, Run, ShareChange, Tally};
pub use self::scenario::{Detail, LimitSpec, Link, Load, RegionSpec, Replica, Scenario};

/// Runs a scenario to its end, or to the first thing that breaks.
///
/// # Panics
/// If the scenario's policies are none that production would take, or there are too many regions.
#[must_use]
pub fn run(scenario: &Scenario) -> Run {
    world::World::new(scenario).run()
}
