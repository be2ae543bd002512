//! A node as its users see it: the binary, or the same code in this process on a clock of the test.

mod admin;
mod config;
mod drain;
mod hygiene;
mod in_process;
mod overrun_bound;
mod rls;
mod scenario;
mod store_failure;
mod support;
