//! The network's metrics, which show among others whether cache misses are slow in discovery or in transfer.

use crate::admission::reputation::Offence;
use crate::scope::Scope;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::time::Duration;

crate::label_values! {
    /// How a received block relates to the client's wants.
    pub enum BlockKind {
        /// The first copy of a wanted block.
        Wanted = "wanted",
        /// A further copy.
        Duplicate = "duplicate",
        /// A block that was not requested.
        Unsolicited = "unsolicited",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BlockKindLabel {
    kind: BlockKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DhtLabel {
    pub(crate) dht: Scope,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OffenceLabel {
    offence: Offence,
}

/// A histogram of seconds, with buckets from 1 ms to 65 s.
pub(crate) fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

/// A histogram of seconds whose sum can be read. Clones share it.
#[derive(Debug, Clone)]
pub struct Timing {
    histogram: Histogram,
    microseconds: Counter,
    count: Counter,
}

impl Default for Timing {
    fn default() -> Self {
        Self { histogram: seconds(), microseconds: Counter::default(), count: Counter::default() }
    }
}

impl EncodeMetric for Timing {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.histogram.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        self.histogram.metric_type()
    }
}

impl Timing {
    /// Records a duration in seconds.
    pub fn observe(&self, seconds: f64) {
        self.histogram.observe(seconds);
        // A float outside the range saturates.
        self.microseconds.inc_by((seconds * 1e6) as u64);
        self.count.inc();
    }

    /// The sum in seconds, and the number of observations.
    pub fn total(&self) -> (f64, u64) {
        (self.microseconds.get() as f64 / 1e6, self.count.get())
    }
}

crate::metrics! {
    /// Handles to the bridge's metrics. Clones share them.
    #[derive(Clone)]
    pub struct Metrics {
        pub discovery_seconds: Timing = "causeway_upstream_discovery" in Seconds,
            "Time from the first request for a DAG to the first peer that has blocks of it";
        pub transfer_seconds: Timing = "causeway_upstream_transfer" in Seconds,
            "Time from requesting a block from a peer to receiving it";
        pub walk_seconds: Histogram = "causeway_dht_walk" in Seconds, "Duration of DHT queries", seconds();
        pub walk_requests: Histogram = "causeway_dht_walk_requests", "Peers asked per DHT query",
            Histogram::new(exponential_buckets(1.0, 2.0, 10));
        pub hedges: Counter = "causeway_bitswap_hedges",
            "Hedged requests: a second peer was asked because the first did not answer in time";
        pub stalls: Counter = "causeway_bitswap_stalls", "Wanted blocks that timed out";
        pub sent_bytes: Counter = "causeway_bitswap_sent_bytes", "Block bytes sent to peers";
        pub sent_blocks: Counter = "causeway_bitswap_sent_blocks", "Blocks sent to peers";
        pub faults: Counter = "causeway_bitswap_faults", "Messages that violated the Bitswap protocol";
        blocks: Family<BlockKindLabel, Counter> = "causeway_bitswap_blocks",
            "Blocks received, by kind (wanted, duplicate or unsolicited)";
        block_bytes: Family<BlockKindLabel, Counter> = "causeway_bitswap_block_bytes",
            "Block bytes received, by kind (wanted, duplicate or unsolicited)";
        pub overdue_dials: Counter = "causeway_p2p_dials_overdue",
            "Dials of providers that took longer than usual, so that further providers were dialled";
        pub displaced_dials: Counter = "causeway_p2p_dials_displaced",
            "Overdue dials of providers that were aborted because other dials needed their slots";
        pub connections: Gauge = "causeway_p2p_connections", "Established libp2p connections";
        pub trimmed: Counter = "causeway_p2p_trimmed", "Peers disconnected because there were too many connections";
        pub banned: Gauge = "causeway_p2p_banned", "Banned peers";
        offences: Family<OffenceLabel, Counter> = "causeway_p2p_offences", "Misbehaviour of peers, by kind";
        queries: Family<DhtLabel, Counter> = "causeway_dht_queries", "DHT queries started";
        providers: Family<DhtLabel, Counter> = "causeway_dht_providers_found", "Providers found in the DHT";
        table: Family<DhtLabel, Gauge> = "causeway_dht_routing_table_peers", "Peers in the DHT's routing tables";
    }
}

impl Metrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let m = Self::registered(registry);
        // Initialised with zero: a counter that is missing until its first event looks like a broken one.
        for kind in BlockKind::ALL {
            m.block_received(kind, 0, 0);
        }
        for offence in Offence::ALL {
            m.offences.get_or_create(&OffenceLabel { offence }).inc_by(0);
        }
        for dht in Scope::ALL {
            m.queries.get_or_create(&DhtLabel { dht }).inc_by(0);
            m.providers_found(dht, 0);
            m.set_table_size(dht, 0);
        }
        m
    }

    /// Counts received blocks.
    pub fn block_received(&self, kind: BlockKind, blocks: u64, bytes: u64) {
        self.blocks.get_or_create(&BlockKindLabel { kind }).inc_by(blocks);
        self.block_bytes.get_or_create(&BlockKindLabel { kind }).inc_by(bytes);
    }

    /// Counts an offence of a peer.
    pub fn offence(&self, offence: Offence) {
        self.offences.get_or_create(&OffenceLabel { offence }).inc();
    }

    /// Counts a started DHT query.
    pub fn query_started(&self, dht: Scope) {
        self.queries.get_or_create(&DhtLabel { dht }).inc();
    }

    /// Records the result of a DHT query.
    pub fn query_ended(&self, requests: u32, took: Option<Duration>) {
        self.walk_requests.observe(f64::from(requests));
        self.walk_seconds.observe(took.unwrap_or_default().as_secs_f64());
    }

    /// Counts providers found in the DHT.
    pub fn providers_found(&self, dht: Scope, count: usize) {
        self.providers.get_or_create(&DhtLabel { dht }).inc_by(count as u64);
    }

    /// Sets the size of a routing table.
    pub fn set_table_size(&self, dht: Scope, peers: usize) {
        self.table.get_or_create(&DhtLabel { dht }).set(i64::try_from(peers).unwrap_or(i64::MAX));
    }
}
