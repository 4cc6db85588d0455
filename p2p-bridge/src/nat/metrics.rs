//! Metrics of NAT traversal: reachability, relays, port mappings and hole punching.

use crate::reachability::Verdict;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabel {
    verdict: Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

crate::metrics! {
    /// Handles to the metrics. Clones share them.
    #[derive(Clone)]
    pub struct NatMetrics {
        verdict: Family<VerdictLabel, Gauge> = "causeway_p2p_reachability",
            "Whether peers can open connections to this node: 1 for the current verdict";
        pub relayed: Gauge = "causeway_p2p_relayed_connections", "Relayed connections";
        pub reservations: Gauge = "causeway_p2p_relay_reservations", "Relays with a reservation of this node";
        pub mapped_ports: Gauge = "causeway_p2p_mapped_ports", "Ports that the local router maps to this node (UPnP)";
        hole_punches: Family<OutcomeLabel, Counter> = "causeway_p2p_hole_punches",
            "Hole punching attempts (DCUtR), by outcome";
    }
}

impl NatMetrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let m = Self::registered(registry);
        m.set_verdict(Verdict::Unknown);
        for outcome in ["succeeded", "failed"] {
            m.hole_punches.get_or_create(&OutcomeLabel { outcome }).inc_by(0);
        }
        m
    }

    /// Sets the verdict on the node's reachability.
    pub fn set_verdict(&self, holds: Verdict) {
        for verdict in Verdict::ALL {
            self.verdict.get_or_create(&VerdictLabel { verdict }).set(i64::from(verdict == holds));
        }
    }

    /// Counts a finished hole punching attempt.
    pub fn hole_punch(&self, succeeded: bool) {
        let outcome = if succeeded { "succeeded" } else { "failed" };
        self.hole_punches.get_or_create(&OutcomeLabel { outcome }).inc();
    }
}
