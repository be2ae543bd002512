//! Chaos scenarios, the simulator that runs them, and their reports: to come.
