//! Metrics of name resolution.

use crate::metrics::seconds;
use content::{Name, NameError};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LookupLabels {
    kind: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: Hit,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

const KINDS: [&str; 2] = ["key", "domain"];
const RESULTS: [&str; 5] = ["found", "missing", "refused", "busy", "failed"];

crate::metrics! {
    /// Handles to the metrics of names. Cloning shares them.
    #[derive(Clone)]
    pub(super) struct Metrics {
        lookups: Family<LookupLabels, Counter> = "causeway_names_lookups",
            "Look-ups of names in the DHT (key) or DNS (domain), by result";
        cached: Family<StateLabel, Counter> = "causeway_names_cached",
            "Names answered without a look-up, by the state of the cached answer";
        seconds: Family<KindLabel, Histogram, fn() -> Histogram> = "causeway_names_lookup" in Seconds,
            "Time from the start of a look-up to its first answer", Family::new_with_constructor(seconds);
    }
}

crate::label_values! {
    /// The source of an answer without a look-up.
    pub(super) enum Hit {
        Fresh = "fresh",
        Stale = "stale",
        Failure = "failure",
        Map = "map",
    }
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::registered(registry);
        // All counters are exported from the start: a missing counter looks like a broken one.
        for kind in KINDS {
            for result in RESULTS {
                drop(metrics.lookups.get_or_create(&LookupLabels { kind, result }));
            }
            drop(metrics.seconds.get_or_create(&KindLabel { kind }));
        }
        for state in Hit::ALL {
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
    pub fn hit(&self, state: Hit) {
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
