//! What an operator reads to see whether gateways answer, and which part of the misses they carry.

use super::client::Outcome;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::fmt::Write as _;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// With a block.
    Block,
    /// With the news that it is there.
    Has,
    /// With the news that it is not.
    Lacks,
    /// With wrong bytes.
    Lie,
    /// Without an answer, or with a server's error.
    Failed,
    /// With an answer of no use.
    Useless,
    /// With the wish to be left alone.
    Busy,
    /// It was given up: the block came from elsewhere, or nobody wants it any more.
    Cancelled,
}

impl Ending {
    const ALL: [Self; 8] =
        [Self::Block, Self::Has, Self::Lacks, Self::Lie, Self::Failed, Self::Useless, Self::Busy, Self::Cancelled];
}

impl From<&Outcome> for Ending {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Block { .. } => Self::Block,
            Outcome::Has => Self::Has,
            Outcome::Lacks => Self::Lacks,
            Outcome::Lie { .. } => Self::Lie,
            Outcome::Failed(_) => Self::Failed,
            Outcome::Useless(_) => Self::Useless,
            Outcome::Busy(_) => Self::Busy,
        }
    }
}

impl EncodeLabelValue for Ending {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(match self {
            Self::Block => "block",
            Self::Has => "has",
            Self::Lacks => "lacks",
            Self::Lie => "lie",
            Self::Failed => "failed",
            Self::Useless => "useless",
            Self::Busy => "busy",
            Self::Cancelled => "cancelled",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndingLabel {
    outcome: Ending,
}

/// Handles to the metrics of HTTP sources. Cloning shares them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Bytes of blocks that passed their check.
    pub block_bytes: Counter,
    /// Gateways that are asked at the moment.
    pub gateways: Gauge,
    /// Origins that are left alone, or tried again with one request.
    pub breakers_open: Gauge,
    requests: Family<EndingLabel, Counter>,
}

impl Metrics {
    /// Creates the metrics and adds them to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let m = Self::default();
        let add = registry;
        add.register("causeway_http_source_requests", "Requests to trustless gateways, by outcome", m.requests.clone());
        add.register(
            "causeway_http_source_block_bytes",
            "Bytes of blocks that trustless gateways sent and that passed their check",
            m.block_bytes.clone(),
        );
        add.register("causeway_http_source_gateways", "Trustless gateways in use", m.gateways.clone());
        add.register(
            "causeway_http_source_breakers_open",
            "Origins that are left alone for a while because they failed",
            m.breakers_open.clone(),
        );
        // A counter that is missing until its first event cannot be told from one that is broken.
        for ending in Ending::ALL {
            m.requests.get_or_create(&EndingLabel { outcome: ending }).inc_by(0);
        }
        m
    }

    /// Counts a request that ended.
    pub fn ended(&self, ending: Ending) {
        self.requests.get_or_create(&EndingLabel { outcome: ending }).inc();
    }

    /// Requests that ended so.
    pub fn endings(&self, ending: Ending) -> u64 {
        self.requests.get_or_create(&EndingLabel { outcome: ending }).get()
    }
}
