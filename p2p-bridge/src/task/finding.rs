//! Finding providers, peers and neighbours of a key for others ([`crate::finders`]).
//!
//! The DHT's behaviour names providers without their addresses. Those are in the running query, which gives them to whoever
//! is about to dial; in the records that we store; and, for peers that we know, in the table of good peers and in what they
//! say of themselves while connected. All of them are collected, each through the wall of its scope.

use super::{ADDRESSES_MAX, Task};
use crate::finders::SearchTarget;
use crate::routing_v1::PeerRecord;
use crate::scope::Scope;
use libp2p::kad::store::RecordStore;
use libp2p::kad::{GetClosestPeersError, GetProvidersOk, PeerInfo, QueryId, QueryResult, RecordKey};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use tokio::sync::mpsc;

/// Addresses told of one peer.
const TOLD_MAX: usize = 16;

impl Task {
    pub(super) fn find(&mut self, sought: SearchTarget, sink: mpsc::Sender<PeerRecord>) {
        let id = self.finders.add(sought.clone(), sink);
        match &sought {
            SearchTarget::Providers(key) => self.tell_stored(id, key),
            SearchTarget::Peer(peer) => {
                if self.tell_if_known(*peer) {
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

    /// A query made progress. Whether it is one of these searches' is found out here.
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

    /// Ends what nobody listens to, and looks whether peers that are searched for have turned up in a query's answers, of
    /// which there are no events.
    pub(super) fn tend_finders(&mut self) {
        for id in self.finders.abandoned() {
            self.end_finder(id);
        }
        for peer in self.finders.sought_peers() {
            self.tell_if_known(peer);
        }
    }

    /// A peer is being dialled, perhaps by a query that just learnt where it is.
    pub(super) fn on_dialling(&mut self, peer: PeerId) {
        if !self.finders.seeking(&peer).is_empty() {
            self.tell_if_known(peer);
        }
    }

    /// A connected peer said where it listens. Whoever comes from outside has no say about our own network.
    pub(super) fn heard_of(&mut self, peer: PeerId, remote: Option<&Multiaddr>, listens: &[Multiaddr]) {
        let is_local = remote.is_some_and(|remote| Scope::Lan.admits(remote));
        let believed = |address: &&Multiaddr| Scope::Wan.admits(address) || is_local && Scope::Lan.admits(address);
        let listens: Vec<Multiaddr> = listens.iter().filter(believed).take(ADDRESSES_MAX).cloned().collect();
        if self.connected.contains_key(&peer) {
            self.listening.insert(peer, listens);
        }
    }

    /// Tells whoever searches for a peer where it is, as far as that is known; whether it is sure.
    fn tell_if_known(&mut self, peer: PeerId) -> bool {
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
        // What was remembered may be long ago: whoever is connected, or is ourselves, says where it is now.
        let is_sure = peer == *self.swarm.local_peer_id() || self.listening.contains_key(&peer);
        for id in self.finders.seeking(&peer) {
            self.send_found(id, PeerRecord::new(peer, tidy(addresses.clone(), &peer)));
            if is_sure {
                self.end_finder(id);
            }
        }
        is_sure
    }

    /// The providers that others, or we, told our own store of.
    fn tell_stored(&mut self, id: u64, key: &RecordKey) {
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

    /// Where a peer is, as far as a scope is concerned.
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

/// The peers of an answer; a query that ran out of time has some as well.
fn closest(result: &libp2p::kad::GetClosestPeersResult) -> &[PeerInfo] {
    match result {
        Ok(found) => &found.peers,
        Err(GetClosestPeersError::Timeout { peers, .. }) => peers,
    }
}

/// Each address once, without the peer's own id at its end, and not too many.
fn tidy(addresses: Vec<Multiaddr>, peer: &PeerId) -> Vec<Multiaddr> {
    let mut tidied: Vec<Multiaddr> = Vec::new();
    for mut address in addresses {
        if address.iter().last() == Some(Protocol::P2p(*peer)) {
            address.pop();
        }
        if tidied.len() < TOLD_MAX && !address.is_empty() && !tidied.contains(&address) {
            tidied.push(address);
        }
    }
    tidied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_once_and_without_the_peer() {
        let peer = PeerId::random();
        let address = |text: &str| text.parse::<Multiaddr>().expect("an address");
        let own = address("/ip4/1.2.3.4/tcp/1").with(Protocol::P2p(peer));
        let relayed = address("/ip4/1.2.3.4/tcp/1").with(Protocol::P2p(PeerId::random())).with(Protocol::P2pCircuit);
        let bare = Multiaddr::empty().with(Protocol::P2p(peer));
        let tidied = tidy(vec![own, address("/ip4/1.2.3.4/tcp/1"), bare, relayed.clone()], &peer);
        assert_eq!(tidied, [address("/ip4/1.2.3.4/tcp/1"), relayed]);
        let many = (0..100).map(|port| address(&format!("/ip4/1.2.3.4/tcp/{port}"))).collect();
        assert_eq!(tidy(many, &peer).len(), TOLD_MAX);
    }
}
