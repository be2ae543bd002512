//! Load generation over the wire, micro-benchmarks, comparison reports.
