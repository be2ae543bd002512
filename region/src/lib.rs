//! What one region knows and decides: limits, ledgers, stores and the decision path.

pub mod bucket;
pub mod ledger;
pub mod limit;
pub mod store;
pub mod units;
