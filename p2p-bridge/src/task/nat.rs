//! NAT traversal: reachability as reported by peers, relays and hole punching ([`crate::nat`]).

use super::Task;
use crate::admission::ip_of;
use crate::announced::Announced;
use crate::dht::Network;
use crate::nat::metrics::NatMetrics;
use crate::nat::relays::Relays;
use crate::nat::{Rules, is_circuit};
use crate::options::{BridgeOptions, DhtMode};
use crate::reachability::{Reachability, Verdict, Witness};
use crate::scope::Scope;
use libp2p::core::ConnectedPoint;
use libp2p::core::transport::ListenerId;
use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId, autonat, dcutr, identify, kad, relay, upnp};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Addresses are tested again after this time, which doubles each time: soon after the start each has one witness and
/// needs another. [`crate::reachability::LIFETIME`] is several times the maximum.
const TEST_AGAIN_MIN: Duration = Duration::from_secs(60);
const TEST_AGAIN_MAX: Duration = Duration::from_secs(3600);

/// The task's state of NAT traversal.
pub struct Nat {
    reachability: Reachability,
    relays: Relays,
    metrics: NatMetrics,
    rules: Rules,
    announced: Announced,
    /// Whether the mode of the public DHT follows reachability.
    serves_when_reachable: bool,
    /// On a private network, other nodes can reach private listeners, unless relays are configured.
    confirms_listen_addresses: bool,
    /// When addresses are tested again, and the interval after that.
    next_test: (Instant, Duration),
    verdict: Option<Verdict>,
    /// The external addresses of the swarm that are based on peers' reports.
    external: Vec<Multiaddr>,
    relayed: HashMap<ConnectionId, PeerId>,
    /// Relayed connections that a direct one replaces, to be closed in the next round.
    replaced: HashSet<ConnectionId>,
}

impl Nat {
    /// The initial state.
    pub fn new(options: &BridgeOptions, metrics: NatMetrics) -> Self {
        let announced = Announced::new(options);
        let announces = announced.named().next().is_some();
        Self {
            reachability: Reachability::new(announces),
            relays: Relays::new(options.nat.relay_client, &options.nat.relays),
            metrics,
            rules: Rules { private: options.dial_private },
            announced,
            serves_when_reachable: options.dht.mode == DhtMode::Auto,
            confirms_listen_addresses: options.dial_private && options.nat.relays.is_empty(),
            next_test: (Instant::now() + TEST_AGAIN_MIN, 2 * TEST_AGAIN_MIN),
            verdict: None,
            external: Vec::new(),
            relayed: HashMap::new(),
            replaced: HashSet::new(),
        }
    }

    fn is_own(&self, address: &Multiaddr) -> bool {
        !is_circuit(address)
            && (Scope::Wan.admits(address) || self.confirms_listen_addresses && self.rules.admit(address))
    }
}

impl Task {
    /// Whether peers can open connections to the node, and the addresses at which they do: announced ones, confirmed
    /// ones, and those at relays.
    pub(super) fn reachability(&self) -> (Verdict, Vec<Multiaddr>) {
        (self.nat.reachability.verdict(), self.swarm.external_addresses().cloned().collect())
    }

    /// The node listens on an address. A public address of an interface needs no confirmation.
    pub(super) fn nat_listens(&mut self, address: &Multiaddr) {
        if self.nat.is_own(address) {
            self.nat.reachability.listens(address.clone());
            self.settle_reachability();
        }
    }

    /// An address is no longer the node's: an interface went down, or a port mapping ended.
    pub(super) fn nat_lost(&mut self, address: &Multiaddr) {
        self.nat.reachability.lost(address);
        self.swarm.behaviour_mut().stop_testing(address);
        self.settle_reachability();
    }

    /// The trust in a peer's report about an address, or about a failed dial-back.
    fn witness(&self, peer: &PeerId, address: Option<&Multiaddr>) -> Witness {
        let behaviour = self.swarm.behaviour();
        // Private addresses may be dialled on public nodes too, for example behind a load balancer; peers are untrusted
        // there.
        let own_network = self.nat.rules.private && address.is_some_and(|address| Scope::Lan.admits(address));
        if own_network || behaviour.admission.is_trusted(peer) {
            return Witness::Trusted;
        }
        let remotes = behaviour.bitswap.connections(peer).iter().filter_map(|connection| self.remotes.get(connection));
        // Disconnected and relayed peers all count as one network.
        Witness::Untrusted(remotes.filter(|remote| ip_of(remote).is_some()).map(Network::of).next().unwrap_or_default())
    }

    /// Removes expired reports, and tests addresses again in time.
    pub(super) fn maintain_reachability(&mut self, now: Instant) {
        self.nat.reachability.expire(now);
        self.settle_reachability();
        let (due, wait) = self.nat.next_test;
        if now >= due {
            self.nat.next_test = (now + wait, (2 * wait).min(TEST_AGAIN_MAX));
            self.swarm.behaviour_mut().test_addresses_again();
        }
    }

    pub(super) fn on_autonat(&mut self, event: autonat::v2::client::Event) {
        // A failed test of one address means little: candidates are guesses.
        if event.result.is_ok() {
            let (address, server) = (&event.tested_addr, &event.server);
            tracing::debug!(%address, %server, "a peer confirmed an address of this node");
            let witness = self.witness(&event.server, Some(&event.tested_addr));
            self.nat.reachability.proved(event.server, witness, event.tested_addr, Instant::now());
            self.settle_reachability();
        }
    }

    pub(super) fn on_autonat_v1(&mut self, event: autonat::v1::Event) {
        use autonat::v1::{Event, OutboundProbeError, OutboundProbeEvent, ResponseError};
        let Event::OutboundProbe(probe) = event else { return };
        match probe {
            OutboundProbeEvent::Response { peer, address, .. } if self.nat.rules.admit(&address) => {
                let witness = self.witness(&peer, Some(&address));
                self.nat.reachability.dialled_back(peer, witness, without_peer(address), Instant::now());
            }
            OutboundProbeEvent::Error {
                peer: Some(peer),
                error: OutboundProbeError::Response(ResponseError::DialError),
                ..
            } => {
                let witness = self.witness(&peer, None);
                self.nat.reachability.not_dialled_back(peer, witness, Instant::now());
            }
            _ => return,
        }
        self.settle_reachability();
    }

    pub(super) fn on_upnp(&mut self, event: upnp::Event) {
        match event {
            upnp::Event::NewExternalAddr { external_addr, .. } => {
                tracing::info!(address = %external_addr, "the router maps a port");
            }
            upnp::Event::ExpiredExternalAddr { external_addr, .. } => {
                tracing::debug!(address = %external_addr, "a port mapping ended");
            }
            upnp::Event::GatewayNotFound | upnp::Event::NonRoutableGateway => {
                tracing::debug!(?event, "no router supports port mapping");
            }
        }
        self.nat.metrics.mapped_ports.set(len(self.swarm.behaviour().mapped_addresses()));
    }

    pub(super) fn on_relay(&mut self, event: relay::client::Event) {
        if let relay::client::Event::ReservationReqAccepted { relay_peer_id, renewal, limit } = event {
            if !renewal {
                tracing::info!(relay = %relay_peer_id, ?limit, "this node is reachable through a relay");
            }
            self.nat.relays.accepted(&relay_peer_id);
            self.nat.metrics.reservations.set(len(self.nat.relays.reservations()));
        }
    }

    pub(super) fn on_hole_punch(&mut self, event: dcutr::Event) {
        match &event.result {
            Ok(_) => tracing::debug!(peer = %event.remote_peer_id, "hole punching succeeded"),
            Err(error) => tracing::debug!(peer = %event.remote_peer_id, %error, "hole punching failed"),
        }
        self.nat.metrics.hole_punch(event.result.is_ok());
    }

    pub(super) fn nat_connected(&mut self, peer: PeerId, connection: ConnectionId, endpoint: &ConnectedPoint) {
        if endpoint.is_relayed() {
            self.nat.relayed.insert(connection, peer);
            self.nat.metrics.relayed.set(len(self.nat.relayed.len()));
        }
    }

    pub(super) fn nat_disconnected(&mut self, peer: &PeerId, connection: ConnectionId, was_last: bool) {
        if self.nat.relayed.remove(&connection).is_some() {
            self.nat.replaced.remove(&connection);
            self.nat.metrics.relayed.set(len(self.nat.relayed.len()));
        }
        if was_last {
            self.nat.relays.left(peer);
        }
    }

    /// Records a peer as a possible relay: one that reports listening addresses and is directly connected.
    pub(super) fn discover_relay(&mut self, connection: ConnectionId, peer: PeerId, info: &identify::Info) {
        if self.nat.relayed.contains_key(&connection) || !info.protocols.contains(&relay::HOP_PROTOCOL_NAME) {
            return;
        }
        if let Some(address) = info.listen_addrs.iter().find(|address| self.nat.rules.admit_dial(address)) {
            self.nat.relays.discovered(peer, address.clone());
        }
    }

    pub(super) fn on_listener_closed(&mut self, listener: ListenerId) {
        self.nat.relays.closed(listener, Instant::now());
        self.nat.metrics.reservations.set(len(self.nat.relays.reservations()));
    }

    /// Requests and releases reservations, and closes relayed connections that a direct one replaces.
    pub(super) fn maintain_relays(&mut self, now: Instant) {
        let verdict = self.nat.reachability.verdict();
        for (relay, address) in self.nat.relays.due(verdict, now) {
            match self.swarm.listen_on(address) {
                Ok(listener) => self.nat.relays.asked(relay, listener),
                Err(error) => {
                    tracing::debug!(%relay, %error, "cannot request a reservation at a relay");
                    self.nat.relays.refused(relay, now);
                }
            }
        }
        for relay in self.nat.relays.surplus(verdict) {
            tracing::debug!(%relay, "the node is reachable: releasing the reservation at a relay");
            // An error means that it has disconnected already.
            let _ = self.swarm.disconnect_peer_id(relay);
        }
        self.close_replaced();
    }

    /// Relayed connections are limited in bytes and time, and are in the way: Bitswap uses a peer's first connection.
    /// They are kept for one more round, in which the other side completes the change.
    fn close_replaced(&mut self) {
        let bitswap = &self.swarm.behaviour().bitswap;
        let relayed = &self.nat.relayed;
        let direct = |peer: &PeerId| bitswap.connections(peer).iter().any(|id| !relayed.contains_key(id));
        let now: HashSet<ConnectionId> =
            relayed.iter().filter(|(_, peer)| direct(peer)).map(|(connection, _)| *connection).collect();
        for connection in now.intersection(&self.nat.replaced) {
            self.swarm.close_connection(*connection);
        }
        self.nat.replaced = now;
    }

    /// Follows the verdict: updates the external addresses, and the mode of the public DHT.
    pub(super) fn settle_reachability(&mut self) {
        let nat = &mut self.nat;
        let verdict = nat.reachability.verdict();
        let mut ours = nat.reachability.addresses();
        ours.retain(|address| nat.announced.depends_on_peers(address));
        let before = std::mem::replace(&mut nat.external, ours.clone());
        let lost: Vec<&Multiaddr> = before.iter().filter(|address| !ours.contains(address)).collect();
        let gained: Vec<&Multiaddr> = ours.iter().filter(|address| !before.contains(address)).collect();
        lost.iter().for_each(|address| self.swarm.remove_external_address(address));
        gained.iter().for_each(|address| self.swarm.add_external_address(Multiaddr::clone(address)));
        if !lost.is_empty() || !gained.is_empty() {
            let peers: Vec<PeerId> = self.swarm.connected_peers().copied().collect();
            self.swarm.behaviour_mut().identify.push(peers);
        }
        if self.nat.verdict.replace(verdict) == Some(verdict) {
            return;
        }
        self.nat.metrics.set_verdict(verdict);
        match verdict {
            Verdict::Unknown => tracing::debug!("it is not known yet whether peers can open connections to this node"),
            Verdict::Reachable => tracing::info!("peers can open connections to this node"),
            Verdict::Unreachable => tracing::info!("peers cannot open connections to this node"),
        }
        if self.nat.serves_when_reachable {
            let mode = if verdict == Verdict::Reachable { kad::Mode::Server } else { kad::Mode::Client };
            self.swarm.behaviour_mut().dht(Scope::Wan).set_mode(Some(mode));
        }
    }
}

/// Peers report an address with or without the node's ID at its end.
fn without_peer(mut address: Multiaddr) -> Multiaddr {
    if crate::redial::peer_of(&address).is_some() {
        address.pop();
    }
    address
}

/// A count as a gauge value.
fn len(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
