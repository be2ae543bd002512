//! By how much a limit can be exceeded: the figures, and executions that come near them.

mod chance;
mod executions;
mod figures;
mod world;
