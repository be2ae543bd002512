//! Requests that wait for what other regions lend: the clock they wait by, and what is counted.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use region::limiter::{Limiter, Pause, Timer, WaitEnd};
use region::store::Store;

/// The runtime's timers.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuntimeTimer;

impl Timer for RuntimeTimer {
    fn after(&self, span: Duration) -> Pause {
        Box::pin(tokio::time::sleep(span))
    }
}

/// The metrics of waits.
pub struct WaitMetrics<S>(pub Arc<Limiter<S>>);

impl<S> fmt::Debug for WaitMetrics<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WaitMetrics").field(&self.0).finish()
    }
}

impl<S: Store + 'static> Collector for WaitMetrics<S> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let waits = self.0.waits();
        let (name, help) = ("borrow_waiting", "Requests that wait for a grant");
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let waiting = i64::try_from(waits.waiting()).unwrap_or(i64::MAX);
        ConstGauge::new(waiting).encode(metric)?;
        let (name, help) = (
            "borrow_waits",
            "Denied requests that waited for a grant, by their end",
        );
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for end in WaitEnd::ALL {
            let labels = [("outcome", end.name())];
            ConstCounter::new(waits.ended(end)).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
