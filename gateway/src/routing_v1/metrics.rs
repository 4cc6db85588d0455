//! Metrics of the routing API.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    endpoint: &'static str,
    result: RequestResult,
}

/// The endpoint label of invalid requests.
pub const UNKNOWN: &str = "unknown";

const ENDPOINTS: [&str; 5] = ["providers", "peers", "closest", "ipns", UNKNOWN];

p2p_bridge::label_values! {
    /// The result of a request.
    pub enum RequestResult {
        /// Records were found.
        Found = "found",
        /// No records were found.
        Empty = "empty",
        /// The request is invalid.
        Invalid = "invalid",
        /// The limit of searches is reached.
        Busy = "busy",
        /// An internal error, or a withheld subject.
        Failed = "failed",
    }
}

p2p_bridge::metrics! {
    /// Handles to the metrics of the API. Clones share them.
    #[derive(Debug, Clone)]
    pub struct RoutingMetrics {
        requests: Family<Labels, Counter> = "causeway_routing_v1_requests",
            "Requests to /routing/v1, by endpoint and result";
    }
}

impl RoutingMetrics {
    /// Registers all metrics under their full names. Call it once for a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::registered(registry);
        // All label values are exported from the start, so that a missing counter is a sign of an error.
        for endpoint in ENDPOINTS {
            for result in RequestResult::ALL {
                drop(metrics.requests.get_or_create(&Labels { endpoint, result }));
            }
        }
        metrics
    }

    /// Counts a request.
    pub fn answered(&self, endpoint: &'static str, result: RequestResult) {
        self.requests.get_or_create(&Labels { endpoint, result }).inc();
    }
}
