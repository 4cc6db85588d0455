//! Connections, what peers say about themselves, and the table of good peers.

use super::search::EndedDial;
use super::{ADDRESSES_MAX, Task};
use crate::admission::ip_of;
use crate::admission::reputation::{Offence, Standing};
use crate::admission::trim::{self, Candidate};
use crate::peerbook;
use crate::peers::Identity;
use crate::scope::{Borders, Scope};
use libp2p::core::ConnectedPoint;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId, identify};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

/// A routing table with fewer peers than this is helped by the bootstrap hosts of its scope.
const FEW: usize = 4;
/// Peers of one announcement by multicast DNS that are dialled.
const NEIGHBOURS_DIALLED_MAX: usize = 16;

impl Task {
    pub(super) fn on_connected(&mut self, peer: PeerId, connection: ConnectionId, endpoint: &ConnectedPoint) {
        self.metrics.connections.inc();
        self.nat_connected(peer, connection, endpoint);
        self.remotes.insert(connection, endpoint.get_remote_address().clone());
        if let ConnectedPoint::Dialer { address, .. } = endpoint {
            self.dialled.insert(connection, address.clone());
        }
        // Whoever came by itself need not be dialled any more either.
        self.ended_dials.push(EndedDial::succeeded(peer));
        if self.throttled.contains(&peer) {
            self.swarm.behaviour_mut().bitswap.throttle(peer, true);
        }
        self.connected.entry(peer).or_insert_with(Instant::now);
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

    /// A peer did something wrong. Whoever is banned for it is disconnected; the doorkeeper sees to the rest.
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
                tracing::info!(%peer, ?offence, "banned for a while");
                // An error says that it has left already.
                let _ = self.swarm.disconnect_peer_id(peer);
            }
        }
    }

    /// Forgets offences that are long ago.
    pub(super) fn forgive(&mut self, now: Instant) {
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

    /// Where a connected peer comes from.
    fn address_of(&self, peer: &PeerId) -> Option<IpAddr> {
        let connections = self.swarm.behaviour().bitswap.connections(peer);
        connections.iter().filter_map(|connection| self.remotes.get(connection)).find_map(ip_of)
    }

    /// Disconnects the least useful peers if there is hardly room for another.
    pub(super) fn trim(&mut self, now: Instant) {
        let (open, limit) = self.swarm.behaviour().admission.established();
        if open <= limit - limit / 16 {
            return;
        }
        let candidates = self.candidates();
        for peer in trim::trim(candidates, open, limit, now) {
            tracing::debug!(%peer, "disconnected to make room");
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
            let (owes, useful) = behaviour.bitswap.usefulness(peer);
            let kept = owes || behaviour.admission.is_trusted(peer);
            Candidate { peer: *peer, since: *since, useful, in_table: tables.contains(peer), kept }
        };
        self.connected.iter().map(candidate).collect()
    }

    /// Whether an address that an untrusted peer named may be dialled, in whichever scope it is.
    pub(super) fn may_dial(&self, address: &Multiaddr) -> bool {
        Borders { dial_private: self.delegation.dial_private }.may_dial_in_any(address)
    }

    /// Where a peer was, as far as it may be dialled there.
    pub(super) fn remembered_addresses(&self, peer: &PeerId) -> Vec<Multiaddr> {
        let mut known = self.peerbook.addresses(peer);
        known.retain(|address| self.may_dial(address));
        known
    }

    /// A peer said which protocols it speaks and where it listens: the only way into a routing table.
    pub(super) fn on_identified(&mut self, connection: ConnectionId, peer: PeerId, info: identify::Info) {
        self.meet_relay(connection, peer, &info);
        let remote = self.remotes.get(&connection).cloned();
        if self.connected.contains_key(&peer) {
            self.identities.insert(peer, Identity::of(&info));
        }
        self.heard_of(peer, remote.as_ref(), &info.listen_addrs);
        for scope in Scope::ALL {
            let dht = self.swarm.behaviour_mut().dht(scope);
            if !info.protocols.contains(&scope.protocol()) {
                dht.note_client(peer, info.listen_addrs.iter().cloned());
                continue;
            }
            // A stranger from outside has no say about our own network, nor a neighbour about the public one.
            if !remote.as_ref().is_some_and(|remote| dht.speaks_over(remote)) {
                continue;
            }
            let good: Vec<Multiaddr> =
                info.listen_addrs.iter().filter(|address| dht.admits(address)).take(ADDRESSES_MAX).cloned().collect();
            dht.note_server(&peer, &good);
            self.peerbook.saw(peer, good, |address| dht.admits(address), SystemTime::now());
            self.look_up(scope);
            self.put(scope);
        }
    }

    pub(super) fn on_listening(&mut self, address: &Multiaddr) {
        tracing::info!(%address, "listening for peers");
        self.nat_listens(address);
    }

    /// Fills the routing tables with the peers of the last run, so that the first query can be asked at once. They are
    /// verified by being asked: who is not there leaves ([`crate::dht::behaviour`]).
    pub(super) fn remember_peers(&mut self) {
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
            // Without any peer this fails, and the first peer that turns up starts it.
            let _ = self.swarm.behaviour_mut().dht(scope).bootstrap();
        }
    }

    /// Bootstrap hosts to dial now: those with an address in a scope whose table has few peers.
    pub(super) fn bootstraps_due(&mut self, now: Instant) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let lonely = self.table_sizes().into_iter().filter(|(_, peers)| *peers < FEW);
        let lonely: Vec<Scope> = lonely.map(|(scope, _)| scope).collect();
        let behaviour = self.swarm.behaviour_mut();
        let mut helps = |address: &Multiaddr| lonely.iter().any(|scope| behaviour.dht(*scope).admits(address));
        self.bootstraps.due_if(now, |addresses| addresses.iter().any(&mut helps))
    }

    /// Peers of the local network announced themselves by multicast DNS. They are dialled, and enter the routing table as
    /// everybody does: by what they say of themselves then.
    pub(super) fn on_neighbours(&mut self, found: Vec<(PeerId, Multiaddr)>) {
        let mut neighbours: HashMap<PeerId, Vec<Multiaddr>> = HashMap::new();
        for (peer, address) in found {
            if Borders::default().may_dial(Scope::Lan, &address) && !self.swarm.is_connected(&peer) {
                neighbours.entry(peer).or_default().push(address);
            }
        }
        for (peer, mut known) in neighbours.into_iter().take(NEIGHBOURS_DIALLED_MAX) {
            known.truncate(ADDRESSES_MAX);
            self.dial(peer, known);
        }
    }

    /// Who is in the routing tables, and where.
    fn note_tables(&mut self) {
        let mut peers = Vec::new();
        for scope in Scope::ALL {
            for bucket in self.swarm.behaviour_mut().dht(scope).kbuckets() {
                let known =
                    bucket.iter().map(|entry| (*entry.node.key.preimage(), entry.node.value.clone().into_vec()));
                peers.extend(known);
            }
        }
        self.peerbook.in_tables(peers, SystemTime::now());
    }

    pub(super) fn table_sizes(&mut self) -> [(Scope, usize); 2] {
        let behaviour = self.swarm.behaviour_mut();
        Scope::ALL.map(|scope| (scope, behaviour.dht(scope).kbuckets().map(|bucket| bucket.num_entries()).sum()))
    }

    /// The files that are to be written.
    pub(super) fn take_changes(&mut self) -> Vec<(PathBuf, Vec<u8>)> {
        let now = SystemTime::now();
        self.note_tables();
        let peers = self.peerbook.take_changes(now).into_iter().chain(self.memory.take_changes(now));
        peers.chain(self.announcing.take_changes()).collect()
    }

    /// Writes everything that outlives a restart.
    pub(super) async fn save_all(&mut self) {
        let changes = self.take_changes();
        let write = move || changes.iter().for_each(|(path, bytes)| save(path, bytes));
        // It can fail only if the process is being torn down.
        let _ = tokio::task::spawn_blocking(write).await;
    }
}

/// Writes a file of what is remembered, away from the swarm task.
pub(super) fn save(path: &Path, bytes: &[u8]) {
    if let Err(error) = peerbook::save(path, bytes) {
        tracing::warn!(path = %path.display(), %error, "could not be written");
    }
}
