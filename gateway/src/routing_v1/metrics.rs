//! Metrics of the routing API.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    endpoint: &'static str,
    result: &'static str,
}

/// The endpoint label of invalid requests.
pub const UNKNOWN: &str = "unknown";

const ENDPOINTS: [&str; 5] = ["providers", "peers", "closest", "ipns", UNKNOWN];

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestResult {
    /// Records were found.
    Found,
    /// No records were found.
    Empty,
    /// The request is invalid.
    Invalid,
    /// The limit of searches is reached.
    Busy,
    /// An internal error, or a withheld subject.
    Failed,
}

const RESULTS: [(RequestResult, &str); 5] = [
    (RequestResult::Found, "found"),
    (RequestResult::Empty, "empty"),
    (RequestResult::Invalid, "invalid"),
    (RequestResult::Busy, "busy"),
    (RequestResult::Failed, "failed"),
];

/// Handles to the metrics of the API. Clones share them.
#[derive(Debug, Clone)]
pub struct RoutingMetrics {
    requests: Family<Labels, Counter>,
}

impl RoutingMetrics {
    /// Registers all metrics under their full names. Call it once for a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self { requests: Family::default() };
        registry.register(
            "causeway_routing_v1_requests",
            "Requests to /routing/v1, by endpoint and result",
            metrics.requests.clone(),
        );
        // All label values are exported from the start, so that a missing counter is a sign of an error.
        for endpoint in ENDPOINTS {
            for (_, result) in RESULTS {
                drop(metrics.requests.get_or_create(&Labels { endpoint, result }));
            }
        }
        metrics
    }

    /// Counts a request.
    pub fn answered(&self, endpoint: &'static str, result: RequestResult) {
        let result = RESULTS.iter().find(|(other, _)| *other == result).map_or("", |(_, name)| name);
        self.requests.get_or_create(&Labels { endpoint, result }).inc();
    }
}
