//! Metrics of trustless gateways.

use super::client::Outcome;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

crate::label_values! {
    /// The outcome of a request.
    pub enum OutcomeKind {
        /// A block.
        Block = "block",
        /// The gateway has the block.
        Has = "has",
        /// The gateway does not have the block.
        Lacks = "lacks",
        /// An invalid block.
        InvalidBlock = "lie",
        /// No response, or a server error.
        Failed = "failed",
        /// An unusable response.
        Useless = "useless",
        /// The gateway is overloaded.
        Busy = "busy",
        /// It was cancelled: the block came from another source, or is not wanted any more.
        Cancelled = "cancelled",
    }
}

impl From<&Outcome> for OutcomeKind {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Block { .. } => Self::Block,
            Outcome::Has => Self::Has,
            Outcome::Lacks => Self::Lacks,
            Outcome::InvalidBlock { .. } => Self::InvalidBlock,
            Outcome::Failed(_) => Self::Failed,
            Outcome::Useless(_) => Self::Useless,
            Outcome::Busy(_) => Self::Busy,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: OutcomeKind,
}

crate::metrics! {
    /// Handles to the metrics of HTTP sources. Clones share them.
    #[derive(Debug, Clone)]
    pub struct Metrics {
        requests: Family<OutcomeLabel, Counter> = "causeway_http_source_requests",
            "Requests to trustless gateways, by outcome";
        pub block_bytes: Counter = "causeway_http_source_block_bytes",
            "Bytes of verified blocks from trustless gateways";
        pub body_bytes: Counter = "causeway_http_source_body_bytes",
            "Bytes of the bodies with these blocks as they were received: fewer where gateways send them as zstd";
        pub gateways: Gauge = "causeway_http_source_gateways", "Trustless gateways in use";
        pub breakers_open: Gauge = "causeway_http_source_breakers_open",
            "Origins of trustless gateways with an open circuit breaker";
    }
}

impl Metrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let m = Self::registered(registry);
        // Initialised with zero: a counter that is missing until its first event looks like a broken one.
        for kind in OutcomeKind::ALL {
            m.requests.get_or_create(&OutcomeLabel { outcome: kind }).inc_by(0);
        }
        m
    }

    /// Counts a request that ended.
    pub fn ended(&self, kind: OutcomeKind) {
        self.requests.get_or_create(&OutcomeLabel { outcome: kind }).inc();
    }

    /// The number of requests with this outcome.
    pub fn count(&self, kind: OutcomeKind) -> u64 {
        self.requests.get_or_create(&OutcomeLabel { outcome: kind }).get()
    }
}
