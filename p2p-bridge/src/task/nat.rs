//! Address translation: what peers find out about our reachability, and the detours that are taken for it ([`crate::nat`]).

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

/// Addresses are tested again after so long, which doubles each time: soon after the start there is one witness of each, and
/// another is wanted. [`crate::reachability::LIFETIME`] is several times the longest.
const TEST_AGAIN_MIN: Duration = Duration::from_secs(60);
const TEST_AGAIN_MAX: Duration = Duration::from_secs(3600);

/// The task's state about address translation.
pub struct Nat {
    reachability: Reachability,
    relays: Relays,
    metrics: NatMetrics,
    rules: Rules,
    announced: Announced,
    /// The public DHT is served while peers can reach us.
    serves_when_reachable: bool,
    /// On a network of one's own, private listeners are where the others reach us, unless relays are named: then they are not.
    trusts_listeners: bool,
    /// When addresses are tested again, and how long after that they are the next time.
    next_test: (Instant, Duration),
    verdict: Option<Verdict>,
    /// The addresses that were told to the swarm as ours, because of what peers found out.
    told: Vec<Multiaddr>,
    relayed: HashMap<ConnectionId, PeerId>,
    /// Relayed connections to close in the next round: there is a direct one.
    replaced: HashSet<ConnectionId>,
}

impl Nat {
    /// Nothing is known yet but the options.
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
            trusts_listeners: options.dial_private && options.nat.relays.is_empty(),
            next_test: (Instant::now() + TEST_AGAIN_MIN, 2 * TEST_AGAIN_MIN),
            verdict: None,
            told: Vec::new(),
            relayed: HashMap::new(),
            replaced: HashSet::new(),
        }
    }

    fn is_own(&self, address: &Multiaddr) -> bool {
        !is_circuit(address) && (Scope::Wan.admits(address) || self.trusts_listeners && self.rules.admit(address))
    }
}

impl Task {
    /// We listen on an address: an interface with a public one of its own needs nobody's confirmation.
    pub(super) fn nat_listens(&mut self, address: &Multiaddr) {
        if self.nat.is_own(address) {
            self.nat.reachability.listens(address.clone());
            self.settle_reachability();
        }
    }

    /// An address is not ours any more: an interface went down, or a router stopped forwarding.
    pub(super) fn nat_lost(&mut self, address: &Multiaddr) {
        self.nat.reachability.lost(address);
        self.swarm.behaviour_mut().stop_testing(address);
        self.settle_reachability();
    }

    /// What a peer's word is worth, on an address of ours or on its having found none.
    fn witness(&self, peer: &PeerId, address: Option<&Multiaddr>) -> Witness {
        let behaviour = self.swarm.behaviour();
        // Private addresses may be dialled on public nodes too, behind a balancer, say: there, strangers stay strangers.
        let own_network = self.nat.rules.private && address.is_some_and(|address| Scope::Lan.admits(address));
        if own_network || behaviour.admission.is_trusted(peer) {
            return Witness::Trusted;
        }
        let remotes = behaviour.bitswap.connections(peer).iter().filter_map(|connection| self.remotes.get(connection));
        // Whoever has left, or speaks through a relay, shares one network with all who do.
        Witness::Untrusted(remotes.filter(|remote| ip_of(remote).is_some()).map(Network::of).next().unwrap_or_default())
    }

    /// Forgets what was said long ago, and has it said anew in time.
    pub(super) fn tend_reachability(&mut self, now: Instant) {
        self.nat.reachability.expire(now);
        self.settle_reachability();
        let (due, wait) = self.nat.next_test;
        if now >= due {
            self.nat.next_test = (now + wait, (2 * wait).min(TEST_AGAIN_MAX));
            self.swarm.behaviour_mut().test_addresses_again();
        }
    }

    pub(super) fn on_autonat(&mut self, event: autonat::v2::client::Event) {
        // That one address cannot be reached says little: candidates are guesses.
        if event.result.is_ok() {
            tracing::debug!(address = %event.tested_addr, server = %event.server, "a peer proved that it reaches us");
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
                tracing::info!(address = %external_addr, "the router forwards a port");
            }
            upnp::Event::ExpiredExternalAddr { external_addr, .. } => {
                tracing::debug!(address = %external_addr, "the router forwards a port no more");
            }
            upnp::Event::GatewayNotFound | upnp::Event::NonRoutableGateway => {
                tracing::debug!(?event, "no router forwards ports");
            }
        }
        self.nat.metrics.mapped_ports.set(len(self.swarm.behaviour().mapped_addresses()));
    }

    pub(super) fn on_relay(&mut self, event: relay::client::Event) {
        if let relay::client::Event::ReservationReqAccepted { relay_peer_id, renewal, limit } = event {
            if !renewal {
                tracing::info!(relay = %relay_peer_id, ?limit, "peers can reach us through a relay");
            }
            self.nat.relays.accepted(&relay_peer_id);
            self.nat.metrics.reservations.set(len(self.nat.relays.reservations()));
        }
    }

    pub(super) fn on_hole_punch(&mut self, event: dcutr::Event) {
        match &event.result {
            Ok(_) => tracing::debug!(peer = %event.remote_peer_id, "a direct connection replaces a relayed one"),
            Err(error) => tracing::debug!(peer = %event.remote_peer_id, %error, "no direct connection"),
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

    /// A peer may be a relay: one that says where it listens, and is connected without a relay itself.
    pub(super) fn meet_relay(&mut self, connection: ConnectionId, peer: PeerId, info: &identify::Info) {
        if self.nat.relayed.contains_key(&connection) || !info.protocols.contains(&relay::HOP_PROTOCOL_NAME) {
            return;
        }
        if let Some(address) = info.listen_addrs.iter().find(|address| self.nat.rules.admit_dial(address)) {
            self.nat.relays.met(peer, address.clone());
        }
    }

    pub(super) fn on_listener_closed(&mut self, listener: ListenerId) {
        self.nat.relays.closed(listener, Instant::now());
        self.nat.metrics.reservations.set(len(self.nat.relays.reservations()));
    }

    /// Asks relays for reservations, gives them back, and closes relayed connections that a direct one replaces.
    pub(super) fn tend_relays(&mut self, now: Instant) {
        let verdict = self.nat.reachability.verdict();
        for (relay, address) in self.nat.relays.due(verdict, now) {
            match self.swarm.listen_on(address) {
                Ok(listener) => self.nat.relays.asked(relay, listener),
                Err(error) => {
                    tracing::debug!(%relay, %error, "cannot listen through a relay");
                    self.nat.relays.refused(relay, now);
                }
            }
        }
        for relay in self.nat.relays.surplus(verdict) {
            tracing::debug!(%relay, "peers reach us without this relay");
            // An error says that it has left already.
            let _ = self.swarm.disconnect_peer_id(relay);
        }
        self.close_replaced();
    }

    /// Relayed connections are limited in bytes and time, and are in the way: Bitswap uses a peer's first connection. They
    /// get a round's grace, in which the other side finishes its part of the change.
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

    /// Follows the verdict: which addresses are ours, and whether the public DHT is served.
    pub(super) fn settle_reachability(&mut self) {
        let nat = &mut self.nat;
        let verdict = nat.reachability.verdict();
        let mut ours = nat.reachability.addresses();
        ours.retain(|address| nat.announced.depends_on_peers(address));
        let before = std::mem::replace(&mut nat.told, ours.clone());
        let lost: Vec<&Multiaddr> = before.iter().filter(|address| !ours.contains(address)).collect();
        let gained: Vec<&Multiaddr> = ours.iter().filter(|address| !before.contains(address)).collect();
        lost.iter().for_each(|address| self.swarm.remove_external_address(address));
        gained.iter().for_each(|address| self.swarm.add_external_address(Multiaddr::clone(address)));
        if !lost.is_empty() || !gained.is_empty() {
            let everybody: Vec<PeerId> = self.swarm.connected_peers().copied().collect();
            self.swarm.behaviour_mut().identify.push(everybody);
        }
        if self.nat.verdict.replace(verdict) == Some(verdict) {
            return;
        }
        self.nat.metrics.set_verdict(verdict);
        match verdict {
            Verdict::Unknown => tracing::debug!("not known yet whether peers can open connections to this node"),
            Verdict::Reachable => tracing::info!("peers can open connections to this node"),
            Verdict::Unreachable => tracing::info!("peers cannot open connections to this node"),
        }
        if self.nat.serves_when_reachable {
            let mode = if verdict == Verdict::Reachable { kad::Mode::Server } else { kad::Mode::Client };
            self.swarm.behaviour_mut().dht(Scope::Wan).set_mode(Some(mode));
        }
    }
}

/// Peers name an address with our id at its end, or without.
fn without_peer(mut address: Multiaddr) -> Multiaddr {
    if crate::redial::peer_of(&address).is_some() {
        address.pop();
    }
    address
}

/// A count as gauges take it.
fn len(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
