//! What a scrape says of pins.

use super::index::Counts;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabel {
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Metrics of the pin service.
#[derive(Debug, Clone, Default)]
pub struct PinMetrics {
    requests: Family<StatusLabel, Gauge>,
    queued: Gauge,
    active: Gauge,
    /// Blocks that were fetched to be pinned.
    pub fetched_blocks: Counter,
    /// Their bytes.
    pub fetched_bytes: Counter,
    failures: Family<ReasonLabel, Counter>,
}

impl PinMetrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("causeway_pins");
        let all = &metrics;
        registry.register("requests", "Requests for pins, by what has become of them", all.requests.clone());
        registry.register("queued_roots", "DAGs that wait to be fetched", all.queued.clone());
        registry.register("active_roots", "DAGs that are being fetched", all.active.clone());
        registry.register("fetched_blocks", "Blocks that were fetched to be pinned", all.fetched_blocks.clone());
        registry.register("fetched_bytes", "Bytes that were fetched to be pinned", all.fetched_bytes.clone());
        registry.register("failures", "Attempts to fetch a DAG that failed, by reason", all.failures.clone());
        metrics.show(&Counts::default());
        metrics
    }

    /// Shows how many there are.
    pub fn show(&self, counts: &Counts) {
        let set = |gauge: &Gauge, value: u64| _ = gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        for (status, value) in [("pending", counts.pending), ("pinned", counts.pinned), ("failed", counts.failed)] {
            set(&self.requests.get_or_create(&StatusLabel { status }), value);
        }
        set(&self.queued, counts.queued_roots);
        set(&self.active, counts.active_roots);
    }

    /// Counts an attempt that failed.
    pub fn failed(&self, reason: &'static str) {
        self.failures.get_or_create(&ReasonLabel { reason }).inc();
    }
}
