//! Metrics of delegated routers.

use super::client::RouterError;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    endpoint: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabel {
    endpoint: &'static str,
}

/// The labels of all endpoints.
pub(super) const ENDPOINTS: [&str; 5] = ["providers", "peers", "closest", "ipns", "ipns_put"];

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The answer had records.
    Found,
    /// The answer had no records.
    Empty,
    /// The router could not be reached, or timed out.
    Unreachable,
    /// The router answered 429 or 503.
    Busy,
    /// The router rejected the request with another status.
    Refused,
    /// The answer was invalid.
    Broken,
    /// The request was cancelled before the answer.
    Abandoned,
    /// The request was not sent, because of the circuit breaker or the request limit.
    Skipped,
}

const OUTCOMES: [(Outcome, &str); 8] = [
    (Outcome::Found, "found"),
    (Outcome::Empty, "empty"),
    (Outcome::Unreachable, "unreachable"),
    (Outcome::Busy, "busy"),
    (Outcome::Refused, "refused"),
    (Outcome::Broken, "broken"),
    (Outcome::Abandoned, "left"),
    (Outcome::Skipped, "skipped"),
];

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

/// Handles to the metrics of routers. Cloning shares them.
#[derive(Debug, Clone)]
pub(super) struct Metrics {
    requests: Family<RequestLabels, Counter>,
    seconds: Family<EndpointLabel, Histogram, fn() -> Histogram>,
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        // 1 ms to 65 s.
        let seconds: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 2.0, 17));
        let metrics = Self { requests: Family::default(), seconds: Family::new_with_constructor(seconds) };
        registry.register(
            "causeway_router_requests",
            "Requests to delegated routers, by endpoint and result",
            metrics.requests.clone(),
        );
        registry.register_with_unit(
            "causeway_router_first_record",
            "Time from a request to a delegated router to its first record",
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        // All counters are exported from the start: a missing counter looks like a broken one.
        for endpoint in ENDPOINTS {
            for (_, result) in OUTCOMES {
                drop(metrics.requests.get_or_create(&RequestLabels { endpoint, result }));
            }
            drop(metrics.seconds.get_or_create(&EndpointLabel { endpoint }));
        }
        metrics
    }

    /// Counts a request that has ended.
    pub fn ended(&self, endpoint: &'static str, outcome: Outcome) {
        let result = OUTCOMES.iter().find(|(other, _)| *other == outcome).map_or("", |(_, name)| name);
        self.requests.get_or_create(&RequestLabels { endpoint, result }).inc();
    }

    /// Records the time to the first record of an answer.
    pub fn first(&self, endpoint: &'static str, took: Duration) {
        self.seconds.get_or_create(&EndpointLabel { endpoint }).observe(took.as_secs_f64());
    }
}
