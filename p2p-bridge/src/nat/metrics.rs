//! What an operator sees of address translation: whether peers reach us, and by which detours.

use crate::reachability::Verdict;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::fmt::Write as _;

impl EncodeLabelValue for Verdict {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(match self {
            Self::Unknown => "unknown",
            Self::Reachable => "reachable",
            Self::Unreachable => "unreachable",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabel {
    verdict: Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

/// Handles to the metrics. Cloning shares them.
#[derive(Clone, Default)]
pub struct NatMetrics {
    /// Connections that run through a relay.
    pub relayed: Gauge,
    /// Relays that we can be reached through.
    pub reservations: Gauge,
    /// Ports that the router forwards to us.
    pub mapped_ports: Gauge,
    verdict: Family<VerdictLabel, Gauge>,
    hole_punches: Family<OutcomeLabel, Counter>,
}

impl NatMetrics {
    /// Creates the metrics and adds them to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let m = Self::default();
        registry.register(
            "causeway_p2p_reachability",
            "Whether peers can open connections to this node: 1 for the verdict that holds",
            m.verdict.clone(),
        );
        registry.register("causeway_p2p_relayed_connections", "Connections through relays", m.relayed.clone());
        registry.register(
            "causeway_p2p_relay_reservations",
            "Relays through which this node can be reached",
            m.reservations.clone(),
        );
        registry.register(
            "causeway_p2p_mapped_ports",
            "Ports that the local router forwards to this node",
            m.mapped_ports.clone(),
        );
        registry.register(
            "causeway_p2p_hole_punches",
            "Attempts to replace a relayed connection by a direct one, by outcome",
            m.hole_punches.clone(),
        );
        m.set_verdict(Verdict::Unknown);
        for outcome in ["succeeded", "failed"] {
            m.hole_punches.get_or_create(&OutcomeLabel { outcome }).inc_by(0);
        }
        m
    }

    /// Sets what is known about our reachability.
    pub fn set_verdict(&self, holds: Verdict) {
        for verdict in Verdict::ALL {
            self.verdict.get_or_create(&VerdictLabel { verdict }).set(i64::from(verdict == holds));
        }
    }

    /// Counts the end of an attempt to replace a relayed connection.
    pub fn hole_punch(&self, succeeded: bool) {
        let outcome = if succeeded { "succeeded" } else { "failed" };
        self.hole_punches.get_or_create(&OutcomeLabel { outcome }).inc();
    }
}
