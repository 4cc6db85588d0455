//! Metrics of the pin service.

use crate::pinning::fetch::FAILURE_REASONS;
use crate::pinning::index::Counts;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The reason of a pin that fails because it exceeds the quota of its token.
pub const OVER_QUOTA: &str = "quota";

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
    /// Pins that lost blocks.
    pub losses: Counter,
    rebuilt: Gauge,
    read_only: Gauge,
    /// Blocks fetched for pins.
    pub fetched_blocks: Counter,
    /// Their bytes.
    pub fetched_bytes: Counter,
    failures: Family<ReasonLabel, Counter>,
}

impl PinMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("causeway_pins");
        let all = &metrics;
        registry.register("requests", "Pin requests, by status", all.requests.clone());
        registry.register("queued_roots", "DAGs queued to be fetched", all.queued.clone());
        registry.register("active_roots", "DAGs being fetched", all.active.clone());
        let help = "Complete pins that lost blocks, which are being fetched again; without withheld blocks";
        registry.register("incomplete", help, all.incomplete.clone());
        let help = "Pins that were found to have lost blocks; withheld blocks do not count";
        registry.register("losses", help, all.losses.clone());
        let help = "1 if the pin metadata store was damaged at the start and was rebuilt from what could be read";
        registry.register("list_rebuilt", help, all.rebuilt.clone());
        let help = "1 if the pin metadata store is damaged and read-only";
        registry.register("list_read_only", help, all.read_only.clone());
        registry.register("fetched_blocks", "Blocks fetched for pins", all.fetched_blocks.clone());
        registry.register("fetched_bytes", "Bytes of blocks fetched for pins", all.fetched_bytes.clone());
        registry.register("failures", "Failed attempts to fetch a DAG, by reason", all.failures.clone());
        metrics.show(&Counts::default());
        // Exported from the start: a counter that is missing until its first event looks like a broken one.
        for reason in FAILURE_REASONS.into_iter().chain([OVER_QUOTA]) {
            drop(metrics.failures.get_or_create(&ReasonLabel { reason }));
        }
        metrics
    }

    /// Sets the gauges.
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

    /// Reports that the pin metadata store was damaged.
    pub fn show_damage(&self, read_only: bool) {
        self.rebuilt.set(i64::from(!read_only));
        self.read_only.set(i64::from(read_only));
    }

    /// Counts a failed attempt.
    pub fn failed(&self, reason: &'static str) {
        self.failures.get_or_create(&ReasonLabel { reason }).inc();
    }
}
