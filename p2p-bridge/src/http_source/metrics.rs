//! Metrics of trustless gateways.

use super::client::Outcome;
use crate::dag::client::active::{Decline, TransferEnd};
use crate::dag::message::EndStatus;
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

crate::label_values! {
    /// The outcome of a request for a CAR.
    pub enum CarOutcome {
        /// All blocks.
        Complete = "complete",
        /// A part of the blocks.
        Incomplete = "incomplete",
        /// The gateway does not have the DAG, or does not serve it.
        Lacks = "lacks",
        /// The gateway does not send CARs, or not this one.
        Refused = "refused",
        /// The gateway is overloaded, as many requests as are allowed are running, or memory is short here.
        Busy = "busy",
        /// No response, a server error, or a response that broke off or stalled.
        Failed = "failed",
        /// A block with others below it was dropped or refused here, so that what followed could not be verified.
        NamesLost = "names_lost",
        /// A malformed response, or one with other blocks.
        Fault = "fault",
        /// An invalid block.
        InvalidBlock = "lie",
        /// It was ended here: its readers have left, or did not take what was received, or others send the rest.
        Cancelled = "cancelled",
    }
}

impl From<&TransferEnd> for CarOutcome {
    fn from(end: &TransferEnd) -> Self {
        match end {
            TransferEnd::Status(EndStatus::Complete) => Self::Complete,
            TransferEnd::Status(EndStatus::Busy) | TransferEnd::Declined(Decline::Busy(_)) => Self::Busy,
            TransferEnd::Status(EndStatus::Budget) | TransferEnd::Cancelled | TransferEnd::TooManyBlocks => {
                Self::Cancelled
            }
            TransferEnd::Declined(Decline::Incomplete) => Self::Incomplete,
            TransferEnd::Declined(Decline::Lacks) => Self::Lacks,
            TransferEnd::Status(EndStatus::Refused)
            | TransferEnd::Declined(Decline::Unsupported | Decline::Refused) => Self::Refused,
            TransferEnd::Status(EndStatus::Failed)
            | TransferEnd::Declined(Decline::Failed)
            | TransferEnd::Lost
            | TransferEnd::Stalled
            | TransferEnd::GivenUp => Self::Failed,
            TransferEnd::NamesLost => Self::NamesLost,
            TransferEnd::Fault(_) => Self::Fault,
            TransferEnd::InvalidBlock => Self::InvalidBlock,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CarOutcomeLabel {
    outcome: CarOutcome,
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
            "Requests for single blocks, or their presence, to trustless gateways, by outcome";
        cars: Family<CarOutcomeLabel, Counter> = "causeway_http_source_cars",
            "Requests for whole DAGs, or parts of files, as CARs to trustless gateways, by outcome";
        pub car_blocks: Counter = "causeway_http_source_car_blocks",
            "Verified blocks of CARs from trustless gateways";
        pub cars_resumed: Counter = "causeway_http_source_cars_resumed",
            "CARs from trustless gateways that broke off in the middle of a file, of which the rest was requested";
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
        for outcome in CarOutcome::ALL {
            m.cars.get_or_create(&CarOutcomeLabel { outcome }).inc_by(0);
        }
        m
    }

    /// Counts a request for a CAR that ended.
    pub fn car_ended(&self, outcome: CarOutcome) {
        self.cars.get_or_create(&CarOutcomeLabel { outcome }).inc();
    }

    /// The number of requests for CARs with this outcome.
    pub fn cars(&self, outcome: CarOutcome) -> u64 {
        self.cars.get_or_create(&CarOutcomeLabel { outcome }).get()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_gateway_has_done_is_its_fault() {
        let table = [
            (TransferEnd::Status(EndStatus::Complete), CarOutcome::Complete),
            (TransferEnd::Status(EndStatus::Busy), CarOutcome::Busy),
            (TransferEnd::Status(EndStatus::Budget), CarOutcome::Cancelled),
            (TransferEnd::TooManyBlocks, CarOutcome::Cancelled),
            (TransferEnd::NamesLost, CarOutcome::NamesLost),
            (TransferEnd::Declined(Decline::Incomplete), CarOutcome::Incomplete),
            (TransferEnd::Stalled, CarOutcome::Failed),
            (TransferEnd::InvalidBlock, CarOutcome::InvalidBlock),
            (TransferEnd::Fault("junk".to_owned()), CarOutcome::Fault),
        ];
        for (end, outcome) in table {
            assert_eq!(CarOutcome::from(&end), outcome, "{end:?}");
        }
    }
}
