//! What one region knows and decides: limits, ledgers, stores and the decision path.

pub mod audit;
pub mod bound;
pub mod bucket;
pub mod decision;
pub mod ledger;
pub mod limit;
pub mod limiter;
pub mod mutant;
pub mod plan;
pub mod policy;
pub mod reader;
pub mod store;
pub mod units;
