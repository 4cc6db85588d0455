//! Metrics of the transfers that are served.

use super::outbox::Written;
use crate::dag::message::EndStatus;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

crate::label_values! {
    /// How a transfer ended.
    pub enum ServedEnd {
        /// Everything was sent, or reported as absent.
        Complete = "complete",
        /// The peer is not served.
        Refused = "refused",
        /// A limit of transfers or requests was exceeded.
        Busy = "busy",
        /// The peer gave no further credit.
        Budget = "budget",
        /// A block could not be decoded, or a limit of the traversal was exceeded.
        Failed = "failed",
        /// The peer cancelled it, or disconnected.
        Cancelled = "cancelled",
        /// The peer stopped reading.
        Stalled = "stalled",
    }
}

impl From<EndStatus> for ServedEnd {
    fn from(status: EndStatus) -> Self {
        match status {
            EndStatus::Complete => Self::Complete,
            EndStatus::Refused => Self::Refused,
            EndStatus::Busy => Self::Busy,
            EndStatus::Budget => Self::Budget,
            EndStatus::Failed => Self::Failed,
        }
    }
}

crate::label_values! {
    /// The form in which a block is sent.
    pub enum BlockForm {
        /// Its bytes.
        Plain = "plain",
        /// Compressed, as it is stored.
        Packed = "packed",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabel {
    end: ServedEnd,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FormLabel {
    form: BlockForm,
}

crate::metrics! {
    /// Handles to the metrics. Clones share them.
    #[derive(Clone)]
    pub struct Metrics {
        pub active: Gauge = "causeway_dag_served_active", "Transfers of DAGs to peers in progress";
        pub faults: Counter = "causeway_dag_faults", "Messages of peers that violated the DAG protocol";
        ended: Family<EndLabel, Counter> = "causeway_dag_served",
            "Transfers of DAGs that peers requested, by how they ended";
        blocks: Family<FormLabel, Counter> = "causeway_dag_sent_blocks",
            "Blocks sent to peers in transfers, by form (plain, or packed: compressed as they are stored)";
        bytes: Family<FormLabel, Counter> = "causeway_dag_sent_bytes",
            "Bytes of blocks sent to peers in transfers, as they were sent, by form (plain or packed)";
    }
}

impl Metrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::registered(registry);
        // Initialised with zero: a counter that is missing until its first event looks like a broken one.
        ServedEnd::ALL.into_iter().for_each(|end| _ = metrics.ended.get_or_create(&EndLabel { end }).inc_by(0));
        metrics.sent(&Written::default());
        metrics
    }

    /// Counts a transfer that has ended.
    pub fn ended(&self, end: ServedEnd) {
        self.ended.get_or_create(&EndLabel { end }).inc();
    }

    /// Counts blocks that were written.
    pub fn sent(&self, written: &Written) {
        for (form, blocks) in [(BlockForm::Plain, written.plain), (BlockForm::Packed, written.packed)] {
            self.blocks.get_or_create(&FormLabel { form }).inc_by(blocks.count);
            self.bytes.get_or_create(&FormLabel { form }).inc_by(blocks.bytes);
        }
    }

    /// The number of transfers that have ended so.
    #[cfg(test)]
    pub fn count(&self, end: ServedEnd) -> u64 {
        self.ended.get_or_create(&EndLabel { end }).get()
    }
}
