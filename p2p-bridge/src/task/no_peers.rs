//! Searches without peers to ask, and nodes without peers ([`crate::no_peers`]).

use super::Task;
use crate::no_peers::{ADVICE, Available, Change};
use std::time::Instant;

impl Task {
    /// Logs changes, and ends searches that have no peers to ask.
    pub(super) fn tend_no_peers(&mut self, now: Instant) {
        self.fail_if_no_peers(now);
        match self.no_peers.change_to_log(now) {
            Some(Change::NoPeers) => tracing::warn!("this node has no peers, so it fetches nothing: {ADVICE}"),
            Some(Change::HasPeers) => tracing::info!(peers = self.connected.len(), "this node has peers again"),
            None => {}
        }
    }

    /// Fails everything that waits for peers, if there are none and none are expected.
    pub(super) fn fail_if_no_peers(&mut self, now: Instant) {
        let available = self.available(now);
        self.no_peers.note(available, now);
        if self.no_peers.is_settled(now) {
            self.swarm.behaviour_mut().bitswap.fail_without_peers();
            self.lookups.fail_without_peers();
        }
    }

    fn available(&mut self, now: Instant) -> Available {
        let peers = self.connected.len();
        if peers > 0 {
            return Available { peers, others: true, tables: true, dials: true };
        }
        let tables: usize = self.table_sizes().into_iter().map(|(_, peers)| peers).sum();
        let dialling = self.swarm.network_info().connection_counters().num_pending_outgoing() > 0;
        Available {
            peers,
            others: self.delegation.has_routers()
                || self.swarm.behaviour().bitswap.has_sources()
                || self.dialer.has_dials_in_time(now),
            tables: tables > 0,
            dials: dialling || !self.bootstraps.is_empty() || !self.peerings.is_empty(),
        }
    }
}
