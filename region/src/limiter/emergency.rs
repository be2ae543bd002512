//! The limiter in node memory that stands in for a shard that does not answer.
