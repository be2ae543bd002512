//! Load generation over the wire, micro-benchmarks and comparison reports: to come.
