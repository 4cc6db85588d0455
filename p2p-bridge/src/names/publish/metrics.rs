//! Metrics of published names.

use super::entry::Published;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::time::UNIX_EPOCH;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PutLabels {
    target: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

crate::metrics! {
    /// Handles to the metrics.
    pub(super) struct Metrics {
        keys: Gauge = "causeway_names_keys", "Keys in the keystore, including the node's own key";
        published: Gauge = "causeway_names_published", "Names published by this node";
        nowhere: Gauge = "causeway_names_unput", "Published names whose current record is on no target yet";
        oldest_put: Gauge = "causeway_names_oldest_put_timestamp_seconds",
            "Oldest time of the last put over all published names; zero without published names";
        puts: Family<PutLabels, Counter> = "causeway_names_puts", "Puts of published names, by target and result";
        renewals: Family<ResultLabel, Counter> = "causeway_names_renewals",
            "Renewals of records of published names, by result";
    }
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::registered(registry);
        for result in [OK, FAILED] {
            drop(metrics.renewals.get_or_create(&ResultLabel { result }));
        }
        metrics
    }

    /// Sets the gauges.
    pub fn set(&self, keys: usize, published: &[Published]) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.keys.set(count(keys));
        self.published.set(count(published.len()));
        self.nowhere.set(count(published.iter().filter(|entry| entry.puts.is_empty()).count()));
        let oldest = published.iter().map(|entry| entry.last_put.unwrap_or(entry.published)).min();
        let oldest = oldest.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        self.oldest_put.set(i64::try_from(oldest.as_secs()).unwrap_or(i64::MAX));
    }

    /// Counts a put.
    pub fn put(&self, target: &str, succeeded: bool) {
        let labels = PutLabels { target: target.to_owned(), result: result(succeeded) };
        self.puts.get_or_create(&labels).inc();
    }

    /// Counts a renewal.
    pub fn renewed(&self, succeeded: bool) {
        self.renewals.get_or_create(&ResultLabel { result: result(succeeded) }).inc();
    }
}

const OK: &str = "ok";
const FAILED: &str = "failed";

fn result(succeeded: bool) -> &'static str {
    if succeeded { OK } else { FAILED }
}
