//! A histogram of spans that takes no lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// The upper bounds of the buckets in microseconds. Envoy's own timeout, 20 ms, is one of them.
const BOUNDS_US: [u64; 15] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000,
];

/// How long something took, many times.
///
/// The crate's own histogram locks; this one only adds, because it sits on the decision path.
#[derive(Clone, Debug, Default)]
pub struct Timings(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The last one counts what exceeds every bound.
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

impl Timings {
    /// Counts one span.
    pub fn observe(&self, span: Duration) {
        let span = region::units::micros(span);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < span);
        if let Some(count) = self.0.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.0.sum_us.fetch_add(span, Ordering::Relaxed);
    }
}

impl TypedMetric for Timings {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Timings {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let seconds = |us: u64| Duration::from_micros(us).as_secs_f64();
        let bounds = BOUNDS_US.iter().map(|us| seconds(*us));
        let counts = self.0.counts.iter();
        let buckets: Vec<(f64, u64)> = bounds
            .chain([f64::INFINITY])
            .zip(counts.map(|count| count.load(Ordering::Relaxed)))
            .collect();
        let count = buckets.iter().map(|(_, count)| *count).sum();
        let sum = seconds(self.0.sum_us.load(Ordering::Relaxed));
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn timings_count_a_span_in_the_first_bucket_that_holds_it() {
        let timings = Timings::default();
        for us in [1, 50, 51, 20_000, 3_000_000] {
            timings.observe(Duration::from_micros(us));
        }
        let mut registry = Registry::default();
        registry.register("spans", "spans", timings);
        let mut text = String::new();
        encode(&mut text, &registry).expect("it writes to a string");
        for line in [
            "spans_bucket{le=\"0.00005\"} 2",
            "spans_bucket{le=\"0.0001\"} 3",
            "spans_bucket{le=\"0.02\"} 4",
            "spans_bucket{le=\"2.5\"} 4",
            "spans_bucket{le=\"+Inf\"} 5",
            "spans_count 5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
