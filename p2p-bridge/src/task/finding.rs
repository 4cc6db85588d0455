//! Searches for providers, peers and the closest peers of a key on behalf of clients ([`crate::finders`]).
//!
//! The DHT's behaviour returns providers without addresses. The addresses are in the running query, which adds them to
//! dials; in the stored records; and, for known peers, in the peer table and in what connected peers report. All of
//! these are collected, each filtered by its scope.

use super::{ADDRESSES_MAX, Task};
use crate::finders::SearchTarget;
use crate::routing_v1::PeerRecord;
use crate::scope::Scope;
use libp2p::kad::store::RecordStore;
use libp2p::kad::{GetClosestPeersError, GetProvidersOk, PeerInfo, QueryId, QueryResult, RecordKey};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use tokio::sync::mpsc;

/// The maximum number of addresses of one peer in a result.
const ADDRESSES_PER_RESULT_MAX: usize = 16;

impl Task {
    pub(super) fn find(&mut self, sought: SearchTarget, sink: mpsc::Sender<PeerRecord>) {
        let id = self.finders.add(sought.clone(), sink);
        match &sought {
            SearchTarget::Providers(key) => self.send_stored_providers(id, key),
            SearchTarget::Peer(peer) => {
                if self.send_known_addresses(*peer) {
                    return;
                }
            }
            SearchTarget::Closest(_) => {}
        }
        for scope in Scope::ALL {
            let dht = self.swarm.behaviour_mut().dht(scope);
            if dht.kbuckets().all(|bucket| bucket.is_empty()) {
                continue;
            }
            let query = match &sought {
                SearchTarget::Providers(key) => dht.get_providers(key.clone()),
                SearchTarget::Peer(peer) => dht.get_closest_peers(peer.to_bytes()),
                SearchTarget::Closest(key) => dht.get_closest_peers(key.clone()),
            };
            self.metrics.query_started(scope);
            self.finders.started(id, scope, query);
        }
        self.finders.settle(id);
    }

    /// Processes the progress of a query, if it belongs to one of these searches.
    pub(super) fn on_found(&mut self, scope: Scope, query: QueryId, result: &QueryResult) {
        let Some((id, sought)) = self.finders.owner(scope, query) else { return };
        let sought = sought.clone();
        match (sought, result) {
            (
                SearchTarget::Providers(key),
                QueryResult::GetProviders(Ok(GetProvidersOk::FoundProviders { providers, .. })),
            ) => {
                for peer in providers {
                    let addresses = self.known_addresses(scope, *peer, Some(&key));
                    self.send_found(id, PeerRecord::new(*peer, addresses));
                }
            }
            (SearchTarget::Closest(_), QueryResult::GetClosestPeers(result)) => {
                for PeerInfo { peer_id, addrs } in closest(result) {
                    let mut addresses = self.known_addresses(scope, *peer_id, None);
                    let dht = self.swarm.behaviour_mut().dht(scope);
                    addresses.extend(addrs.iter().filter(|address| dht.admits(address)).cloned());
                    self.send_found(id, PeerRecord::new(*peer_id, tidy(addresses, peer_id)));
                }
            }
            (SearchTarget::Peer(peer), QueryResult::GetClosestPeers(result)) => {
                let found = closest(result).iter().find(|info| info.peer_id == peer);
                let dht = self.swarm.behaviour_mut().dht(scope);
                let admitted = |info: &PeerInfo| {
                    info.addrs.iter().filter(|address| dht.admits(address)).cloned().collect::<Vec<_>>()
                };
                let addresses = tidy(found.map(admitted).unwrap_or_default(), &peer);
                if !addresses.is_empty() {
                    self.send_found(id, PeerRecord::new(peer, addresses));
                }
            }
            _ => {}
        }
    }

    /// Ends abandoned searches, and checks whether peers that are searched for were in a query's responses, for which
    /// there are no events.
    pub(super) fn tend_finders(&mut self) {
        for id in self.finders.abandoned() {
            self.end_finder(id);
        }
        for peer in self.finders.sought_peers() {
            self.send_known_addresses(peer);
        }
    }

    /// A peer is being dialled, maybe by a query that just found its addresses.
    pub(super) fn on_dialling(&mut self, peer: PeerId) {
        if !self.finders.seeking(&peer).is_empty() {
            self.send_known_addresses(peer);
        }
    }

    /// A connected peer reported its listening addresses. Peers of the public network cannot report local addresses.
    pub(super) fn on_listening_addresses(&mut self, peer: PeerId, remote: Option<&Multiaddr>, listens: &[Multiaddr]) {
        let is_local = remote.is_some_and(|remote| Scope::Lan.admits(remote));
        let believed = |address: &&Multiaddr| Scope::Wan.admits(address) || is_local && Scope::Lan.admits(address);
        let listens: Vec<Multiaddr> = listens.iter().filter(believed).take(ADDRESSES_MAX).cloned().collect();
        if self.connected.contains_key(&peer) {
            self.listening.insert(peer, listens);
        }
    }

    /// Sends a peer's known addresses to the searches for it; returns whether they are current.
    fn send_known_addresses(&mut self, peer: PeerId) -> bool {
        let mut addresses = Vec::new();
        if peer == *self.swarm.local_peer_id() {
            addresses = self.own_addresses();
        } else {
            for scope in Scope::ALL {
                addresses.extend(self.known_addresses(scope, peer, None));
            }
        }
        if addresses.is_empty() {
            return false;
        }
        // Known addresses may be outdated; those of connected peers and of the node itself are current.
        let is_sure = peer == *self.swarm.local_peer_id() || self.listening.contains_key(&peer);
        for id in self.finders.seeking(&peer) {
            self.send_found(id, PeerRecord::new(peer, tidy(addresses.clone(), &peer)));
            if is_sure {
                self.end_finder(id);
            }
        }
        is_sure
    }

    /// Sends the providers in the node's own record store.
    fn send_stored_providers(&mut self, id: u64, key: &RecordKey) {
        for scope in Scope::ALL {
            let stored = self.swarm.behaviour_mut().dht(scope).store_mut().providers(key);
            let now = std::time::Instant::now();
            for record in stored.into_iter().filter(|record| !record.is_expired(now)) {
                let addresses = self.known_addresses(scope, record.provider, Some(key));
                self.send_found(id, PeerRecord::new(record.provider, addresses));
            }
        }
    }

    fn send_found(&mut self, id: u64, record: PeerRecord) {
        if !self.finders.send(id, record) {
            self.end_finder(id);
        }
    }

    fn end_finder(&mut self, id: u64) {
        for (scope, query) in self.finders.end(id) {
            if let Some(mut query) = self.swarm.behaviour_mut().dht(scope).query_mut(&query) {
                query.finish();
            }
        }
    }

    /// The known addresses of a peer in a scope.
    fn known_addresses(&mut self, scope: Scope, peer: PeerId, key: Option<&RecordKey>) -> Vec<Multiaddr> {
        let mut known = Vec::new();
        if peer == *self.swarm.local_peer_id() {
            known = self.own_addresses();
        } else {
            let dht = self.swarm.behaviour_mut().dht(scope);
            if let Some(key) = key {
                let records = dht.store_mut().providers(key).into_iter().filter(|record| record.provider == peer);
                known.extend(records.flat_map(|record| record.addresses));
            }
            known.extend(dht.addresses_of(peer));
            known.extend(self.peerbook.addresses(&peer));
            known.extend(self.listening.get(&peer).into_iter().flatten().cloned());
        }
        let dht = self.swarm.behaviour_mut().dht(scope);
        known.retain(|address| dht.admits(address));
        tidy(known, &peer)
    }

    fn own_addresses(&self) -> Vec<Multiaddr> {
        super::addresses(&self.swarm)
    }
}

/// The peers in a response; a query that timed out has some too.
fn closest(result: &libp2p::kad::GetClosestPeersResult) -> &[PeerInfo] {
    match result {
        Ok(found) => &found.peers,
        Err(GetClosestPeersError::Timeout { peers, .. }) => peers,
    }
}

/// Deduplicates addresses, removes the peer's own ID from their ends, and limits their number.
fn tidy(addresses: Vec<Multiaddr>, peer: &PeerId) -> Vec<Multiaddr> {
    let mut tidied: Vec<Multiaddr> = Vec::new();
    for mut address in addresses {
        if address.iter().last() == Some(Protocol::P2p(*peer)) {
            address.pop();
        }
        if tidied.len() < ADDRESSES_PER_RESULT_MAX && !address.is_empty() && !tidied.contains(&address) {
            tidied.push(address);
        }
    }
    tidied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_deduplicated_and_without_the_peer_id() {
        let peer = PeerId::random();
        let address = |text: &str| text.parse::<Multiaddr>().expect("an address");
        let own = address("/ip4/1.2.3.4/tcp/1").with(Protocol::P2p(peer));
        let relayed = address("/ip4/1.2.3.4/tcp/1").with(Protocol::P2p(PeerId::random())).with(Protocol::P2pCircuit);
        let bare = Multiaddr::empty().with(Protocol::P2p(peer));
        let tidied = tidy(vec![own, address("/ip4/1.2.3.4/tcp/1"), bare, relayed.clone()], &peer);
        assert_eq!(tidied, [address("/ip4/1.2.3.4/tcp/1"), relayed]);
        let many = (0..100).map(|port| address(&format!("/ip4/1.2.3.4/tcp/{port}"))).collect();
        assert_eq!(tidy(many, &peer).len(), ADDRESSES_PER_RESULT_MAX);
    }
}
