//! Metrics of the DHT server: its mode, and the records that it stores and rejects for other peers.

use crate::metrics::DhtLabel;
use crate::scope::Scope;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// All reasons to reject a record, so that every counter is exported from the start.
pub(super) const REASONS: [&str; 7] = ["key", "other_peer", "no_address", "busy", "invalid", "expired", "older"];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RecordLabel {
    dht: Scope,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectionLabel {
    dht: Scope,
    reason: &'static str,
}

crate::metrics! {
    /// Handles to the metrics of both DHTs. Cloning shares them.
    #[derive(Debug, Clone)]
    pub struct DhtMetrics {
        server: Family<DhtLabel, Gauge> = "causeway_dht_server",
            "1 while the node is a DHT server, 0 while it is a client";
        records: Family<RecordLabel, Gauge> = "causeway_dht_records", "Records stored for other peers";
        bytes: Family<DhtLabel, Gauge> = "causeway_dht_record_bytes",
            "Estimated memory of records stored for other peers";
        received: Family<DhtLabel, Counter> = "causeway_dht_records_received",
            "Records received and stored or renewed";
        refused: Family<RejectionLabel, Counter> = "causeway_dht_records_refused", "Records received and rejected";
    }
}

impl DhtMetrics {
    /// Creates the metrics and adds them to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let m = Self::registered(registry);
        for dht in Scope::ALL {
            m.set_server(dht, false);
            m.set_records(dht, 0, 0, 0);
            m.received.get_or_create(&DhtLabel { dht }).inc_by(0);
            for reason in REASONS {
                m.refused.get_or_create(&RejectionLabel { dht, reason }).inc_by(0);
            }
        }
        m
    }

    /// Sets whether the node is a server of a DHT.
    pub(super) fn set_server(&self, dht: Scope, server: bool) {
        self.server.get_or_create(&DhtLabel { dht }).set(server.into());
    }

    /// Sets the number of stored records, and their size in bytes.
    pub(super) fn set_records(&self, dht: Scope, providers: usize, values: usize, bytes: usize) {
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        for (kind, number) in [("provider", providers), ("value", values)] {
            self.records.get_or_create(&RecordLabel { dht, kind }).set(gauge(number));
        }
        self.bytes.get_or_create(&DhtLabel { dht }).set(gauge(bytes));
    }

    /// Counts a stored record of another peer.
    pub(super) fn stored(&self, dht: Scope) {
        self.received.get_or_create(&DhtLabel { dht }).inc();
    }

    /// Counts a rejected record.
    pub(super) fn rejected(&self, dht: Scope, reason: &'static str) {
        self.refused.get_or_create(&RejectionLabel { dht, reason }).inc();
    }
}
