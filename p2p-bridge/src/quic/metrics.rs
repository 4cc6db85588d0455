//! Metrics of QUIC between peers.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

crate::metrics! {
    /// Handles to the metrics. Clones share them.
    #[derive(Debug, Clone)]
    pub struct QuicMetrics {
        pub reserved: Gauge = "causeway_p2p_quic_reserved" in Bytes,
            "Memory that peers' connections over QUIC have beyond their minimum, used or promised";
        pub retries: Counter = "causeway_p2p_quic_retries",
            "Connections of peers over QUIC whose address had to be proved first (Retry), since many were pending";
        pub refused: Counter = "causeway_p2p_quic_refused",
            "Connections of peers over QUIC that were refused, since too many were pending";
        pub stopped_streams: Counter = "causeway_p2p_quic_stopped_streams",
            "Streams of peers over QUIC that were stopped, since they were not read and there was no memory for them";
        pub closed: Counter = "causeway_p2p_quic_closed",
            "Connections over QUIC that were closed, since the peer sent too many small frames";
    }
}

impl QuicMetrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        Self::registered(registry)
    }
}
