//! What a scrape says of the routers that are asked.

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

/// Every endpoint that routers are asked at.
pub(super) const ENDPOINTS: [&str; 5] = ["providers", "peers", "closest", "ipns", "ipns_put"];

/// What can come of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// There were records.
    Found,
    /// There were none.
    Empty,
    /// The router could not be reached, or stalled.
    Unreachable,
    /// It was busy.
    Busy,
    /// It does not serve this.
    Refused,
    /// Its answer made no sense.
    Broken,
    /// Nobody waited for the answer any more.
    Left,
    /// It was not asked, because it rests or has enough to do.
    Skipped,
}

const OUTCOMES: [(Outcome, &str); 8] = [
    (Outcome::Found, "found"),
    (Outcome::Empty, "empty"),
    (Outcome::Unreachable, "unreachable"),
    (Outcome::Busy, "busy"),
    (Outcome::Refused, "refused"),
    (Outcome::Broken, "broken"),
    (Outcome::Left, "left"),
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
            "Requests to delegated routers, by endpoint and what came of them",
            metrics.requests.clone(),
        );
        registry.register_with_unit(
            "causeway_router_first_record",
            "From asking a delegated router to its first record",
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        // A counter that is missing until its first event cannot be told from one that is broken.
        for endpoint in ENDPOINTS {
            for (_, result) in OUTCOMES {
                drop(metrics.requests.get_or_create(&RequestLabels { endpoint, result }));
            }
            drop(metrics.seconds.get_or_create(&EndpointLabel { endpoint }));
        }
        metrics
    }

    /// A request is over.
    pub fn ended(&self, endpoint: &'static str, outcome: Outcome) {
        let result = OUTCOMES.iter().find(|(other, _)| *other == outcome).map_or("", |(_, name)| name);
        self.requests.get_or_create(&RequestLabels { endpoint, result }).inc();
    }

    /// The first record of an answer came.
    pub fn first(&self, endpoint: &'static str, took: Duration) {
        self.seconds.get_or_create(&EndpointLabel { endpoint }).observe(took.as_secs_f64());
    }
}
