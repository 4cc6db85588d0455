//! The metrics of transfers.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

crate::label_values! {
    /// The form in which a block was received.
    pub enum BlockForm {
        /// Its bytes.
        Plain = "plain",
        /// Compressed, as the peer stores it.
        Packed = "packed",
    }
}

crate::label_values! {
    /// How a transfer has ended.
    pub enum EndKind {
        /// All that the peer has was received.
        Complete = "complete",
        /// The peer refused it, or has too many transfers.
        Refused = "refused",
        /// No reader took what was received in time.
        Budget = "budget",
        /// The readers have left.
        Cancelled = "cancelled",
        /// The peer or the connection failed.
        Failed = "failed",
        /// The peer stalled.
        Stalled = "stalled",
        /// The peer violated the protocol, or sent an invalid block.
        Fault = "fault",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FormLabel {
    form: BlockForm,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabel {
    end: EndKind,
}

crate::metrics! {
    /// Handles to the metrics of transfers. Clones share them.
    #[derive(Clone)]
    pub struct Metrics {
        pub running: Gauge = "causeway_dag_transfers_running", "DAG transfers from other peers that are running";
        ends: Family<EndLabel, Counter> = "causeway_dag_transfers", "DAG transfers from other peers that have ended, by how";
        blocks: Family<FormLabel, Counter> = "causeway_dag_received_blocks",
            "Blocks received in DAG transfers, by form (plain, or packed as the peer stores them)";
        block_bytes: Family<FormLabel, Counter> = "causeway_dag_received_block_bytes",
            "Bytes of blocks received in DAG transfers, once they are unpacked, by form";
        wire_bytes: Family<FormLabel, Counter> = "causeway_dag_received_wire_bytes",
            "Bytes of blocks received in DAG transfers, as they were received, by form";
        pub dropped_blocks: Counter = "causeway_dag_dropped_blocks",
            "Blocks of DAG transfers that were dropped: for lack of memory, or because no reader took them";
    }
}

impl Metrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::registered(registry);
        // Initialised with zero: a counter that is missing until its first event looks like a broken one.
        for end in EndKind::ALL {
            metrics.ends.get_or_create(&EndLabel { end }).inc_by(0);
        }
        for form in BlockForm::ALL {
            for family in [&metrics.blocks, &metrics.block_bytes, &metrics.wire_bytes] {
                family.get_or_create(&FormLabel { form }).inc_by(0);
            }
        }
        metrics
    }

    /// Counts a received block.
    pub fn received(&self, form: BlockForm, block_bytes: usize, wire_bytes: usize) {
        let label = FormLabel { form };
        self.blocks.get_or_create(&label).inc();
        self.block_bytes.get_or_create(&label).inc_by(block_bytes as u64);
        self.wire_bytes.get_or_create(&label).inc_by(wire_bytes as u64);
    }

    /// Counts a transfer that has ended.
    pub fn ended(&self, end: EndKind) {
        self.ends.get_or_create(&EndLabel { end }).inc();
    }

    /// The blocks received so far in a form.
    pub fn received_blocks(&self, form: BlockForm) -> u64 {
        self.blocks.get_or_create(&FormLabel { form }).get()
    }
}
