//! The network's metrics, which show among others whether cache misses are slow in discovery or in transfer.

use crate::admission::reputation::Offence;
use crate::scope::Scope;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::fmt::Write as _;
use std::time::Duration;

/// How a received block relates to the client's wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The first copy of a wanted block.
    Wanted,
    /// A further copy.
    Duplicate,
    /// A block that was not requested.
    Unsolicited,
}

impl EncodeLabelValue for Kind {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(match self {
            Self::Wanted => "wanted",
            Self::Duplicate => "duplicate",
            Self::Unsolicited => "unsolicited",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: Kind,
}

impl EncodeLabelValue for Scope {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(match self {
            Self::Wan => "wan",
            Self::Lan => "lan",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DhtLabel {
    pub(crate) dht: Scope,
}

impl EncodeLabelValue for Offence {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(match self {
            Self::InvalidBlock => "lie",
            Self::Protocol => "protocol",
            Self::Flood => "flood",
            Self::Stall => "stall",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OffenceLabel {
    offence: Offence,
}

/// A histogram of seconds whose sum can be read. Clones share it.
#[derive(Debug, Clone)]
pub struct Timing {
    histogram: Histogram,
    microseconds: Counter,
    count: Counter,
}

impl Timing {
    fn new(histogram: Histogram) -> Self {
        Self { histogram, microseconds: Counter::default(), count: Counter::default() }
    }

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

/// Handles to the bridge's metrics. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    /// From a session's first request to the first peer that is known to have blocks of its DAG.
    pub discovery_seconds: Timing,
    /// From requesting a block from a peer to receiving it.
    pub transfer_seconds: Timing,
    /// The duration of DHT queries.
    pub walk_seconds: Histogram,
    /// The number of peers that DHT queries asked.
    pub walk_requests: Histogram,
    /// Hedged requests: a second peer was asked because the first did not answer in time.
    pub hedges: Counter,
    /// Wants that timed out.
    pub stalls: Counter,
    /// Block bytes sent to peers.
    pub sent_bytes: Counter,
    /// Blocks sent to peers.
    pub sent_blocks: Counter,
    /// Messages that could not be decoded, or violated the protocol.
    pub faults: Counter,
    /// Dials of providers that took longer than usual.
    pub overdue_dials: Counter,
    /// Overdue dials that were aborted because other dials needed their slots.
    pub displaced_dials: Counter,
    /// Established connections.
    pub connections: Gauge,
    /// Peers disconnected by trimming.
    pub trimmed: Counter,
    /// Peers that are banned.
    pub banned: Gauge,
    offences: Family<OffenceLabel, Counter>,
    blocks: Family<KindLabel, Counter>,
    block_bytes: Family<KindLabel, Counter>,
    queries: Family<DhtLabel, Counter>,
    providers: Family<DhtLabel, Counter>,
    table: Family<DhtLabel, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        // 1 ms to 65 s.
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.0, 17));
        Self {
            discovery_seconds: Timing::new(seconds()),
            transfer_seconds: Timing::new(seconds()),
            walk_seconds: seconds(),
            walk_requests: Histogram::new(exponential_buckets(1.0, 2.0, 10)),
            hedges: Counter::default(),
            stalls: Counter::default(),
            sent_bytes: Counter::default(),
            sent_blocks: Counter::default(),
            faults: Counter::default(),
            overdue_dials: Counter::default(),
            displaced_dials: Counter::default(),
            connections: Gauge::default(),
            trimmed: Counter::default(),
            banned: Gauge::default(),
            offences: Family::default(),
            blocks: Family::default(),
            block_bytes: Family::default(),
            queries: Family::default(),
            providers: Family::default(),
            table: Family::default(),
        }
    }
}

impl Metrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let m = Self::default();
        let add = registry;
        add.register_with_unit(
            "causeway_upstream_discovery",
            "Time from the first request for a DAG to the first peer that has blocks of it",
            Unit::Seconds,
            m.discovery_seconds.histogram.clone(),
        );
        add.register_with_unit(
            "causeway_upstream_transfer",
            "Time from requesting a block from a peer to receiving it",
            Unit::Seconds,
            m.transfer_seconds.histogram.clone(),
        );
        add.register_with_unit("causeway_dht_walk", "Duration of DHT queries", Unit::Seconds, m.walk_seconds.clone());
        add.register("causeway_dht_walk_requests", "Peers asked per DHT query", m.walk_requests.clone());
        add.register(
            "causeway_bitswap_hedges",
            "Hedged requests: a second peer was asked because the first did not answer in time",
            m.hedges.clone(),
        );
        add.register("causeway_bitswap_stalls", "Wanted blocks that timed out", m.stalls.clone());
        add.register("causeway_bitswap_sent_bytes", "Block bytes sent to peers", m.sent_bytes.clone());
        add.register("causeway_bitswap_sent_blocks", "Blocks sent to peers", m.sent_blocks.clone());
        add.register("causeway_bitswap_faults", "Messages that violated the Bitswap protocol", m.faults.clone());
        add.register(
            "causeway_bitswap_blocks",
            "Blocks received, by kind (wanted, duplicate or unsolicited)",
            m.blocks.clone(),
        );
        add.register(
            "causeway_bitswap_block_bytes",
            "Block bytes received, by kind (wanted, duplicate or unsolicited)",
            m.block_bytes.clone(),
        );
        add.register(
            "causeway_p2p_dials_overdue",
            "Dials of providers that took longer than usual, so that further providers were dialled",
            m.overdue_dials.clone(),
        );
        add.register(
            "causeway_p2p_dials_displaced",
            "Overdue dials of providers that were aborted because other dials needed their slots",
            m.displaced_dials.clone(),
        );
        add.register("causeway_p2p_connections", "Established libp2p connections", m.connections.clone());
        add.register(
            "causeway_p2p_trimmed",
            "Peers disconnected because there were too many connections",
            m.trimmed.clone(),
        );
        add.register("causeway_p2p_banned", "Banned peers", m.banned.clone());
        add.register("causeway_p2p_offences", "Misbehaviour of peers, by kind", m.offences.clone());
        add.register("causeway_dht_queries", "DHT queries started", m.queries.clone());
        add.register("causeway_dht_providers_found", "Providers found in the DHT", m.providers.clone());
        add.register("causeway_dht_routing_table_peers", "Peers in the DHT's routing tables", m.table.clone());
        // Initialised with zero: a counter that is missing until its first event looks like a broken one.
        for kind in [Kind::Wanted, Kind::Duplicate, Kind::Unsolicited] {
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
    pub fn block_received(&self, kind: Kind, blocks: u64, bytes: u64) {
        self.blocks.get_or_create(&KindLabel { kind }).inc_by(blocks);
        self.block_bytes.get_or_create(&KindLabel { kind }).inc_by(bytes);
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
