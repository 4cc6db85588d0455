//! Metrics of name resolution.

use content::{Name, NameError};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LookupLabels {
    kind: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

const KINDS: [&str; 2] = ["key", "domain"];
const RESULTS: [&str; 5] = ["found", "missing", "refused", "busy", "failed"];
const FRESH: &str = "fresh";
const STALE: &str = "stale";
const FAILURE: &str = "failure";
const MAP: &str = "map";

/// Handles to the metrics of names. Cloning shares them.
#[derive(Clone)]
pub(super) struct Metrics {
    lookups: Family<LookupLabels, Counter>,
    cached: Family<StateLabel, Counter>,
    seconds: Family<KindLabel, Histogram, fn() -> Histogram>,
}

/// The source of an answer without a look-up.
#[derive(Debug, Clone, Copy)]
pub(super) enum Hit {
    Fresh,
    Stale,
    Failure,
    Map,
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        // 1 ms to 65 s.
        let seconds: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 2.0, 17));
        let metrics = Self {
            lookups: Family::default(),
            cached: Family::default(),
            seconds: Family::new_with_constructor(seconds),
        };
        registry.register(
            "causeway_names_lookups",
            "Look-ups of names in the DHT (key) or DNS (domain), by result",
            metrics.lookups.clone(),
        );
        registry.register(
            "causeway_names_cached",
            "Names answered without a look-up, by the state of the cached answer",
            metrics.cached.clone(),
        );
        registry.register_with_unit(
            "causeway_names_lookup",
            "Time from the start of a look-up to its first answer",
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        // All counters are exported from the start: a missing counter looks like a broken one.
        for kind in KINDS {
            for result in RESULTS {
                drop(metrics.lookups.get_or_create(&LookupLabels { kind, result }));
            }
            drop(metrics.seconds.get_or_create(&KindLabel { kind }));
        }
        for state in [FRESH, STALE, FAILURE, MAP] {
            drop(metrics.cached.get_or_create(&StateLabel { state }));
        }
        metrics
    }

    /// Records the first answer of a look-up, or its failure.
    pub fn looked_up(&self, name: &Name, error: Option<&NameError>, took: Duration) {
        let kind = kind(name);
        self.lookups.get_or_create(&LookupLabels { kind, result: result(error) }).inc();
        self.seconds.get_or_create(&KindLabel { kind }).observe(took.as_secs_f64());
    }

    /// Counts a look-up that was rejected because the maximum is reached.
    pub fn busy(&self, name: &Name) {
        self.lookups.get_or_create(&LookupLabels { kind: kind(name), result: result(Some(&NameError::Busy)) }).inc();
    }

    /// Counts an answer without a look-up.
    pub fn hit(&self, hit: Hit) {
        let state = match hit {
            Hit::Fresh => FRESH,
            Hit::Stale => STALE,
            Hit::Failure => FAILURE,
            Hit::Map => MAP,
        };
        self.cached.get_or_create(&StateLabel { state }).inc();
    }
}

fn kind(name: &Name) -> &'static str {
    match name {
        Name::Key(_) => KINDS[0],
        Name::Domain(_) => KINDS[1],
    }
}

fn result(error: Option<&NameError>) -> &'static str {
    match error {
        None => "found",
        Some(NameError::NoRecord { .. } | NameError::NoDnsLink { .. }) => "missing",
        Some(NameError::Refused { .. } | NameError::Value { .. }) => "refused",
        Some(NameError::Busy) => "busy",
        Some(_) => "failed",
    }
}
