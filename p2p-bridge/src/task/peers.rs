//! Connections, identify, and the peer table.

use super::search::EndedDial;
use super::{ADDRESSES_MAX, Task};
use crate::admission::ip_of;
use crate::admission::reputation::{Offence, Standing};
use crate::admission::trim::{self, Candidate};
use crate::peerbook;
use crate::peers::Identity;
use crate::scope::{AddressPolicy, Scope};
use libp2p::core::ConnectedPoint;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId, identify};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

/// A routing table with fewer peers is filled from the bootstrap peers of its scope.
const FEW_PEERS_MAX: usize = 4;
/// The maximum number of peers of one multicast DNS response that are dialled.
const LOCAL_PEERS_DIALLED_MAX: usize = 16;

impl Task {
    pub(super) fn on_connected(&mut self, peer: PeerId, connection: ConnectionId, endpoint: &ConnectedPoint) {
        self.metrics.connections.inc();
        self.nat_connected(peer, connection, endpoint);
        self.remotes.insert(connection, endpoint.get_remote_address().clone());
        if let ConnectedPoint::Dialer { address, .. } = endpoint {
            self.dialled.insert(connection, address.clone());
        }
        // A peer that connected by itself need not be dialled either.
        self.ended_dials.push(EndedDial::succeeded(peer));
        if self.throttled.contains(&peer) {
            self.swarm.behaviour_mut().bitswap.throttle(peer, true);
        }
        if let Entry::Vacant(vacant) = self.connected.entry(peer) {
            vacant.insert(Instant::now());
            if endpoint.is_listener() {
                // An error means that there is no receiver.
                let _ = self.inbound.send(peer);
            }
        }
        self.connects.connected(&peer, endpoint.get_remote_address());
        self.history.dial_ended(&peer, Instant::now(), || None);
        let now = Instant::now();
        self.peerings.connected(&peer, now);
        self.bootstraps.connected(&peer, now);
        self.trim(Instant::now());
    }

    pub(super) fn on_disconnected(&mut self, peer: PeerId, connection: ConnectionId, was_last: bool) {
        self.metrics.connections.dec();
        self.remotes.remove(&connection);
        self.nat_disconnected(&peer, connection, was_last);
        self.dialled.remove(&connection);
        if was_last {
            let now = Instant::now();
            self.dialer.disconnected(peer, now);
            self.connected.remove(&peer);
            self.listening.remove(&peer);
            self.identities.remove(&peer);
            self.round_trips.remove(&peer);
            self.peerings.disconnected(&peer, now);
            self.bootstraps.disconnected(&peer, now);
        }
    }

    /// A peer misbehaved. If it is banned, it is disconnected; admission control denies further connections.
    pub(super) fn on_offence(&mut self, peer: PeerId, offence: Offence) {
        self.metrics.offence(offence);
        let now = Instant::now();
        let ip = self.address_of(&peer);
        match self.swarm.behaviour_mut().admission.offended(peer, ip, offence, now) {
            Standing::Good => {}
            Standing::Throttled => {
                self.throttled.insert(peer);
                self.swarm.behaviour_mut().bitswap.throttle(peer, true);
            }
            Standing::Banned => {
                tracing::info!(%peer, ?offence, "the peer is banned for a while");
                // An error means that it has disconnected already.
                let _ = self.swarm.disconnect_peer_id(peer);
            }
        }
    }

    /// Removes expired offences.
    pub(super) fn sweep_offences(&mut self, now: Instant) {
        let behaviour = self.swarm.behaviour_mut();
        behaviour.admission.sweep(now);
        self.metrics.banned.set(i64::try_from(behaviour.admission.banned()).unwrap_or(i64::MAX));
        self.throttled.retain(|peer| {
            let still =
                behaviour.admission.standing(peer, now) == Standing::Throttled && self.connected.contains_key(peer);
            if !still {
                behaviour.bitswap.throttle(*peer, false);
            }
            still
        });
    }

    /// The IP address of a connected peer.
    fn address_of(&self, peer: &PeerId) -> Option<IpAddr> {
        let connections = self.swarm.behaviour().bitswap.connections(peer);
        connections.iter().filter_map(|connection| self.remotes.get(connection)).find_map(ip_of)
    }

    /// Trims the least useful peers if the limit of connections is nearly reached.
    pub(super) fn trim(&mut self, now: Instant) {
        let (open, limit) = self.swarm.behaviour().admission.established();
        if open <= limit - limit / 16 {
            return;
        }
        let candidates = self.candidates();
        for peer in trim::trim(candidates, open, limit, now) {
            tracing::debug!(%peer, "the peer is disconnected: there are too many connections");
            self.metrics.trimmed.inc();
            let _ = self.swarm.disconnect_peer_id(peer);
        }
    }

    fn candidates(&mut self) -> Vec<Candidate> {
        let behaviour = self.swarm.behaviour_mut();
        let mut tables = HashSet::new();
        for scope in Scope::ALL {
            let buckets = behaviour.dht(scope).kbuckets();
            tables.extend(buckets.flat_map(|bucket| bucket.iter().map(|e| *e.node.key.preimage()).collect::<Vec<_>>()));
        }
        let candidate = |(peer, since): (&PeerId, &Instant)| {
            let (has_outstanding, useful) = behaviour.bitswap.usefulness(peer);
            let kept = has_outstanding || behaviour.admission.is_trusted(peer);
            Candidate { peer: *peer, since: *since, useful, in_table: tables.contains(peer), kept }
        };
        self.connected.iter().map(candidate).collect()
    }

    /// Whether an address from an untrusted peer may be dialled, in either scope.
    pub(super) fn may_dial(&self, address: &Multiaddr) -> bool {
        AddressPolicy { dial_private: self.delegation.dial_private }.may_dial_in_any(address)
    }

    /// The known addresses of a peer that may be dialled.
    pub(super) fn known_peer_addresses(&self, peer: &PeerId) -> Vec<Multiaddr> {
        let mut known = self.peerbook.addresses(peer);
        known.retain(|address| self.may_dial(address));
        known
    }

    /// Identify has received a peer's protocols and addresses: the only way into a routing table.
    pub(super) fn on_identified(&mut self, connection: ConnectionId, peer: PeerId, info: identify::Info) {
        self.discover_relay(connection, peer, &info);
        let remote = self.remotes.get(&connection).cloned();
        if self.connected.contains_key(&peer) {
            self.identities.insert(peer, Identity::of(&info));
        }
        self.on_listening_addresses(peer, remote.as_ref(), &info.listen_addrs);
        for scope in Scope::ALL {
            let dht = self.swarm.behaviour_mut().dht(scope);
            if !info.protocols.contains(&scope.protocol()) {
                dht.set_client_addresses(peer, info.listen_addrs.iter().cloned());
                continue;
            }
            // Public peers cannot supply addresses of the local network, nor local peers addresses of the public one.
            if !remote.as_ref().is_some_and(|remote| dht.speaks_over(remote)) {
                continue;
            }
            let good: Vec<Multiaddr> =
                info.listen_addrs.iter().filter(|address| dht.admits(address)).take(ADDRESSES_MAX).cloned().collect();
            dht.set_server_addresses(&peer, &good);
            self.peerbook.update(peer, good, |address| dht.admits(address), SystemTime::now());
            self.look_up(scope);
            self.put(scope);
        }
    }

    pub(super) fn on_listening(&mut self, address: &Multiaddr) {
        tracing::info!(%address, "listening for peers");
        self.nat_listens(address);
    }

    /// Fills the routing tables with the peers of the last run, so that the first query can start immediately. Queries
    /// verify them: unreachable peers are removed ([`crate::dht::behaviour`]).
    pub(super) fn load_known_peers(&mut self) {
        for (peer, known) in self.peerbook.peers() {
            for address in known {
                for scope in Scope::ALL {
                    let dht = self.swarm.behaviour_mut().dht(scope);
                    if dht.admits(&address) {
                        dht.add_address(&peer, address.clone());
                    }
                }
            }
        }
        for scope in Scope::ALL {
            // Without any peer this fails, and the first connected peer starts it.
            let _ = self.swarm.behaviour_mut().dht(scope).bootstrap();
        }
    }

    /// Bootstrap peers to dial now: those with an address in a scope whose table has few peers.
    pub(super) fn bootstraps_due(&mut self, now: Instant) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let sparse = self.table_sizes().into_iter().filter(|(_, peers)| *peers < FEW_PEERS_MAX);
        let sparse: Vec<Scope> = sparse.map(|(scope, _)| scope).collect();
        let behaviour = self.swarm.behaviour_mut();
        let mut helps = |address: &Multiaddr| sparse.iter().any(|scope| behaviour.dht(*scope).admits(address));
        self.bootstraps.due_if(now, |addresses| addresses.iter().any(&mut helps))
    }

    /// Multicast DNS discovered local peers. They are dialled, and enter the routing table by identify, as all peers
    /// do.
    pub(super) fn on_mdns_discovered(&mut self, found: Vec<(PeerId, Multiaddr)>) {
        let mut local_peers: HashMap<PeerId, Vec<Multiaddr>> = HashMap::new();
        for (peer, address) in found {
            if AddressPolicy::default().may_dial(Scope::Lan, &address) && !self.swarm.is_connected(&peer) {
                local_peers.entry(peer).or_default().push(address);
            }
        }
        for (peer, mut known) in local_peers.into_iter().take(LOCAL_PEERS_DIALLED_MAX) {
            known.truncate(ADDRESSES_MAX);
            self.dial(peer, known);
        }
    }

    /// Updates the peer table from the routing tables.
    fn note_tables(&mut self) {
        let mut peers = Vec::new();
        for scope in Scope::ALL {
            for bucket in self.swarm.behaviour_mut().dht(scope).kbuckets() {
                let known =
                    bucket.iter().map(|entry| (*entry.node.key.preimage(), entry.node.value.clone().into_vec()));
                peers.extend(known);
            }
        }
        self.peerbook.set_tables(peers, SystemTime::now());
    }

    pub(super) fn table_sizes(&mut self) -> [(Scope, usize); 2] {
        let behaviour = self.swarm.behaviour_mut();
        Scope::ALL.map(|scope| (scope, behaviour.dht(scope).kbuckets().map(|bucket| bucket.num_entries()).sum()))
    }

    /// The changed files to write.
    pub(super) fn take_changes(&mut self) -> Vec<(PathBuf, Vec<u8>)> {
        let now = SystemTime::now();
        self.note_tables();
        let peers = self.peerbook.take_changes(now).into_iter().chain(self.memory.take_changes(now));
        peers.chain(self.announcing.take_changes()).collect()
    }

    /// Writes all persistent state.
    pub(super) async fn save_all(&mut self) {
        let changes = self.take_changes();
        let write = move || changes.iter().for_each(|(path, bytes)| save(path, bytes));
        // It can only fail while the process is being torn down.
        let _ = tokio::task::spawn_blocking(write).await;
    }
}

/// Writes a state file on a blocking thread.
pub(super) fn save(path: &Path, bytes: &[u8]) {
    if let Err(error) = peerbook::save(path, bytes) {
        tracing::warn!(path = %path.display(), %error, "cannot write a state file");
    }
}
