//! What a scrape says of pins.

use crate::pinning::index::Counts;
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
    incomplete: Gauge,
    losses: Counter,
    rebuilt: Gauge,
    read_only: Gauge,
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
        let help = "DAGs that were here in full, lost blocks, and are being fetched again";
        registry.register("incomplete", help, all.incomplete.clone());
        registry.register("losses", "Pins that were found to lack blocks", all.losses.clone());
        let help = "1 if the list of pins was damaged when the gateway started, and made anew of what could be read";
        registry.register("list_rebuilt", help, all.rebuilt.clone());
        let help = "1 if the list of pins is damaged and cannot be changed";
        registry.register("list_read_only", help, all.read_only.clone());
        registry.register("fetched_blocks", "Blocks that were fetched to be pinned", all.fetched_blocks.clone());
        registry.register("fetched_bytes", "Bytes that were fetched to be pinned", all.fetched_bytes.clone());
        registry.register("failures", "Attempts to fetch a DAG that failed, by reason", all.failures.clone());
        metrics.show(&Counts::default());
        metrics
    }

    /// Shows how many there are.
    pub fn show(&self, counts: &Counts) {
        let set = |gauge: &Gauge, value: u64| _ = gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        let Counts { pending, pinned, failed, withheld, .. } = *counts;
        for (status, value) in [("pending", pending), ("pinned", pinned), ("failed", failed), ("withheld", withheld)] {
            set(&self.requests.get_or_create(&StatusLabel { status }), value);
        }
        set(&self.queued, counts.queued_roots);
        set(&self.active, counts.active_roots);
        set(&self.incomplete, counts.incomplete_roots);
    }

    /// Shows that the list of pins was damaged.
    pub fn show_damage(&self, read_only: bool) {
        self.rebuilt.set(i64::from(!read_only));
        self.read_only.set(i64::from(read_only));
    }

    /// Counts a pin that was found to lack blocks.
    pub fn lost(&self) {
        self.losses.inc();
    }

    /// Counts an attempt that failed.
    pub fn failed(&self, reason: &'static str) {
        self.failures.get_or_create(&ReasonLabel { reason }).inc();
    }
}
