//! What a scrape says of the routing API.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    endpoint: &'static str,
    result: &'static str,
}

/// The endpoint of a request that names none.
pub const UNKNOWN: &str = "unknown";

const ENDPOINTS: [&str; 5] = ["providers", "peers", "closest", "ipns", UNKNOWN];

/// What a request was answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Records.
    Found,
    /// That there are none.
    Empty,
    /// That it makes no sense.
    Invalid,
    /// That too much is being searched for.
    Busy,
    /// That something went wrong here.
    Failed,
}

const OUTCOMES: [(Outcome, &str); 5] = [
    (Outcome::Found, "found"),
    (Outcome::Empty, "empty"),
    (Outcome::Invalid, "invalid"),
    (Outcome::Busy, "busy"),
    (Outcome::Failed, "failed"),
];

/// Handles to the metrics of the API. Cloning shares them.
#[derive(Debug, Clone)]
pub struct RoutingMetrics {
    requests: Family<Labels, Counter>,
}

impl RoutingMetrics {
    /// Registers every metric under its full name. Call it once for a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self { requests: Family::default() };
        registry.register(
            "causeway_routing_v1_requests",
            "Requests to /routing/v1, by endpoint and what they were answered with",
            metrics.requests.clone(),
        );
        // A counter that is missing until its first event cannot be told from one that is broken.
        for endpoint in ENDPOINTS {
            for (_, result) in OUTCOMES {
                drop(metrics.requests.get_or_create(&Labels { endpoint, result }));
            }
        }
        metrics
    }

    /// A request was answered.
    pub fn answered(&self, endpoint: &'static str, outcome: Outcome) {
        let result = OUTCOMES.iter().find(|(other, _)| *other == outcome).map_or("", |(_, name)| name);
        self.requests.get_or_create(&Labels { endpoint, result }).inc();
    }
}
