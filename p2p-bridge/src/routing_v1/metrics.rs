//! Metrics of delegated routers.

use super::client::RouterError;
use crate::metrics::seconds;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    endpoint: &'static str,
    result: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabel {
    endpoint: &'static str,
}

/// The labels of all endpoints.
pub(super) const ENDPOINTS: [&str; 5] = ["providers", "peers", "closest", "ipns", "ipns_put"];

crate::label_values! {
    /// The outcome of a request.
    pub(super) enum Outcome {
        /// The answer had records.
        Found = "found",
        /// The answer had no records.
        Empty = "empty",
        /// The router could not be reached, or timed out.
        Unreachable = "unreachable",
        /// The router answered 429 or 503.
        Busy = "busy",
        /// The router rejected the request with another status.
        Refused = "refused",
        /// The answer was invalid.
        Broken = "broken",
        /// The request was cancelled before the answer.
        Abandoned = "left",
        /// The request was not sent, because of the circuit breaker or the request limit.
        Skipped = "skipped",
    }
}

impl From<&RouterError> for Outcome {
    fn from(error: &RouterError) -> Self {
        match error {
            RouterError::Unreachable { .. } => Self::Unreachable,
            RouterError::Busy { .. } => Self::Busy,
            RouterError::Refused { .. } => Self::Refused,
            RouterError::Broken { .. } => Self::Broken,
        }
    }
}

crate::metrics! {
    /// Handles to the metrics of routers. Cloning shares them.
    #[derive(Debug, Clone)]
    pub(super) struct Metrics {
        requests: Family<RequestLabels, Counter> = "causeway_router_requests",
            "Requests to delegated routers, by endpoint and result";
        seconds: Family<EndpointLabel, Histogram, fn() -> Histogram> = "causeway_router_first_record" in Seconds,
            "Time from a request to a delegated router to its first record", Family::new_with_constructor(seconds);
    }
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::registered(registry);
        // All counters are exported from the start: a missing counter looks like a broken one.
        for endpoint in ENDPOINTS {
            for result in Outcome::ALL {
                drop(metrics.requests.get_or_create(&RequestLabels { endpoint, result }));
            }
            drop(metrics.seconds.get_or_create(&EndpointLabel { endpoint }));
        }
        metrics
    }

    /// Counts a request that has ended.
    pub fn ended(&self, endpoint: &'static str, result: Outcome) {
        self.requests.get_or_create(&RequestLabels { endpoint, result }).inc();
    }

    /// Records the time to the first record of an answer.
    pub fn first(&self, endpoint: &'static str, took: Duration) {
        self.seconds.get_or_create(&EndpointLabel { endpoint }).observe(took.as_secs_f64());
    }
}
