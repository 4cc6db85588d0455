//! Connections on request, and the state of connected peers ([`crate::connecting`], [`crate::peers`]).

use super::Task;
use super::search::EndedDial;
use crate::connecting::{self, ConnectError, Connected, Reply};
use crate::discovery::history::ProviderSource;
use crate::discovery::plan::Provider;
use crate::peers::{ConnectedPeer, Direction, Load, PeerConnection, RootState};
use crate::wants::SessionId;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError};
use libp2p::{Multiaddr, PeerId};
use std::time::Instant;

/// The maximum number of DAGs with suggested providers, and of suggested providers of one.
pub(super) const SUGGESTED_ROOTS_MAX: usize = 1_024;
const SUGGESTED_MAX: usize = 16;

impl Task {
    /// Connects to a peer, by the given addresses and the known ones.
    pub(super) fn connect(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, reply: Reply) {
        if peer == *self.swarm.local_peer_id() {
            let _ = reply.send(Err(ConnectError::Ourselves));
            return;
        }
        if self.swarm.is_connected(&peer) {
            let address = self.connections_of(&peer).into_iter().next().map(|connection| connection.address);
            let _ =
                reply.send(Ok(Connected { peer, address: address.unwrap_or_else(Multiaddr::empty), already: true }));
            return;
        }
        let known = self.known_peer_addresses(&peer);
        let opts = DialOpts::peer_id(peer)
            // A pending dial of another caller may have other addresses.
            .condition(PeerCondition::Disconnected)
            .addresses(addresses.into_iter().chain(known).collect())
            .extend_addresses_through_behaviour()
            .build();
        let dial = opts.connection_id();
        match self.swarm.dial(opts) {
            Ok(()) => self.connects.wait(peer, Some(dial), reply),
            Err(DialError::NoAddresses) => {
                self.connects.wait(peer, None, reply);
                self.look_up_peer(peer);
            }
            Err(error) => _ = reply.send(Err(connecting::reason(&error))),
        }
    }

    /// A dial failed.
    pub(super) fn on_dial_failed(&mut self, peer: Option<PeerId>, dial: ConnectionId, error: &DialError) {
        let Some(peer) = peer else { return };
        if !self.connects.is_empty() {
            self.connects.failed(&peer, dial, &connecting::reason(error));
        }
        if let Some(untried) = self.record_failure(&peer, dial, error) {
            let why = || Some(connecting::reason(error).to_string());
            self.history.dial_ended(&peer, Instant::now(), why);
            self.ended_dials.push(EndedDial::of(peer, error, untried));
        }
    }

    /// Suggests a provider of a DAG, which is asked when the DAG is searched for.
    pub(super) fn suggest(&mut self, root: SessionId, provider: Provider) {
        let mut known = self.suggestions.remove(&root).unwrap_or_default();
        known.retain(|known| known.peer != provider.peer);
        known.insert(0, provider.clone());
        known.truncate(SUGGESTED_MAX);
        self.suggestions.insert(root, known);
        self.provider_named(root, provider, ProviderSource::Caller);
    }

    /// The state of a DAG and its providers.
    pub(super) fn inspect(&self, root: &SessionId) -> RootState {
        let bitswap = &self.swarm.behaviour().bitswap;
        let remembered = self.memory.providers(root).into_iter();
        RootState {
            session: bitswap.inspect(root),
            search: self.history.last(root).cloned(),
            remembered: remembered.map(|provider| (provider.peer, provider.addresses)).collect(),
        }
    }

    /// The load of the network.
    pub(super) fn load(&self) -> Load {
        let (sessions, wants) = self.swarm.behaviour().bitswap.load();
        Load { peers: self.connected.len(), sessions, wants, searches: self.searches.len() }
    }

    /// Closes all connections to a peer; returns whether there was any.
    pub(super) fn disconnect(&mut self, peer: PeerId) -> bool {
        self.swarm.disconnect_peer_id(peer).is_ok()
    }

    fn connections_of(&self, peer: &PeerId) -> Vec<PeerConnection> {
        let connections = self.swarm.behaviour().bitswap.connections(peer).iter();
        let connection = |id: &ConnectionId| {
            let direction = if self.dialled.contains_key(id) { Direction::Outbound } else { Direction::Inbound };
            Some(PeerConnection { address: self.remotes.get(id)?.clone(), direction })
        };
        connections.filter_map(connection).collect()
    }

    /// The connected peers, longest connected first.
    pub(super) fn peers(&self, max: usize) -> Vec<ConnectedPeer> {
        let now = Instant::now();
        let mut since: Vec<(&PeerId, &Instant)> = self.connected.iter().collect();
        since.sort_by_key(|(_, since)| **since);
        since.into_iter().take(max).map(|(peer, since)| self.describe(peer, *since, now)).collect()
    }

    fn describe(&self, peer: &PeerId, since: Instant, now: Instant) -> ConnectedPeer {
        let behaviour = self.swarm.behaviour();
        let (owes_blocks, useful) = behaviour.bitswap.usefulness(peer);
        let identity = self.identities.get(peer);
        let protocols = identity.map(|identity| identity.protocols.iter().map(ToString::to_string).collect());
        ConnectedPeer {
            peer: *peer,
            connections: self.connections_of(peer),
            connected_for: now.saturating_duration_since(since),
            agent: identity.map(|identity| identity.agent.clone()),
            protocols: protocols.unwrap_or_default(),
            rtt: self.round_trips.get(peer).copied(),
            bitswap: behaviour.bitswap.bytes(peer),
            owes_blocks,
            useful_ago: useful.map(|useful| now.saturating_duration_since(useful)),
            is_trusted: behaviour.admission.is_trusted(peer),
            is_throttled: self.throttled.contains(peer),
        }
    }
}
