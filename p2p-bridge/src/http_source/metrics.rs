//! Metrics of trustless gateways.

use super::client::Outcome;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::fmt::Write as _;

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutcomeKind {
    /// A block.
    Block,
    /// The gateway has the block.
    Has,
    /// The gateway does not have the block.
    Lacks,
    /// An invalid block.
    InvalidBlock,
    /// No response, or a server error.
    Failed,
    /// An unusable response.
    Useless,
    /// The gateway is overloaded.
    Busy,
    /// It was cancelled: the block came from another source, or is not wanted any more.
    Cancelled,
}

impl OutcomeKind {
    const ALL: [Self; 8] = [
        Self::Block,
        Self::Has,
        Self::Lacks,
        Self::InvalidBlock,
        Self::Failed,
        Self::Useless,
        Self::Busy,
        Self::Cancelled,
    ];
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

impl EncodeLabelValue for OutcomeKind {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(match self {
            Self::Block => "block",
            Self::Has => "has",
            Self::Lacks => "lacks",
            Self::InvalidBlock => "lie",
            Self::Failed => "failed",
            Self::Useless => "useless",
            Self::Busy => "busy",
            Self::Cancelled => "cancelled",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: OutcomeKind,
}

/// Handles to the metrics of HTTP sources. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Bytes of verified blocks.
    pub block_bytes: Counter,
    /// Gateways that can be asked.
    pub gateways: Gauge,
    /// Origins whose circuit breaker is open or half open.
    pub breakers_open: Gauge,
    requests: Family<OutcomeLabel, Counter>,
}

impl Metrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let m = Self::default();
        let add = registry;
        add.register("causeway_http_source_requests", "Requests to trustless gateways, by outcome", m.requests.clone());
        add.register(
            "causeway_http_source_block_bytes",
            "Bytes of verified blocks from trustless gateways",
            m.block_bytes.clone(),
        );
        add.register("causeway_http_source_gateways", "Trustless gateways in use", m.gateways.clone());
        add.register(
            "causeway_http_source_breakers_open",
            "Origins of trustless gateways with an open circuit breaker",
            m.breakers_open.clone(),
        );
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
