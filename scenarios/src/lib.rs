//! Chaos scenarios: the catalogue, the simulator, the runner and the reports.
