//! Carries out what a sweep wants: finds or makes a connection to a peer, and reports one outcome for every request.
//!
//! Connections that were made for it are closed again when there are many of them: a sweep meets every peer of the network
//! once, and none of them is of use afterwards.

use super::desk::RequestId;
use super::handler::{Command, Done, Handler, Id, Outcome};
use super::keys::Batch;
use super::message::Provider;
use super::walk::Peer;
use crate::scope::Scope;
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::behaviour::{ConnectionClosed, ConnectionEstablished, DialFailure};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{
    CloseConnection, ConnectionDenied, ConnectionId, DialError, FromSwarm, NetworkBehaviour, NotifyHandler,
    THandlerInEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::{Interval, MissedTickBehavior};

/// How long a connection may take to be made.
const DIAL_TIMEOUT: Duration = Duration::from_secs(8);
/// How often that is looked at.
const TICK: Duration = Duration::from_millis(500);
/// Connections of our own making that stay open after their use, until nobody uses them.
const KEPT_MAX: usize = 128;

struct Waiting {
    commands: Vec<Command>,
    addresses: Vec<Multiaddr>,
    /// Our own attempt to connect; none while somebody else's is under way.
    dial: Option<ConnectionId>,
    since: Instant,
}

/// The network behaviour. See the module's documentation.
pub struct Behaviour {
    connections: HashMap<PeerId, Vec<ConnectionId>>,
    waiting: HashMap<PeerId, Waiting>,
    under_way: HashMap<Id, ConnectionId>,
    /// Connections that were made for us and are done with, longest unused first.
    used: VecDeque<(PeerId, ConnectionId)>,
    made: HashSet<ConnectionId>,
    events: VecDeque<ToSwarm<Done, Command>>,
    ticker: Interval,
}

impl Default for Behaviour {
    fn default() -> Self {
        let mut ticker = tokio::time::interval(TICK);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            connections: HashMap::new(),
            waiting: HashMap::new(),
            under_way: HashMap::new(),
            used: VecDeque::new(),
            made: HashSet::new(),
            events: VecDeque::new(),
            ticker,
        }
    }
}

impl Behaviour {
    /// Asks a peer which peers are close to a target. Reported as [`Done`].
    pub fn ask(&mut self, scope: Scope, id: RequestId, peer: Peer, target: Arc<[u8]>) {
        self.submit(peer, Command::Ask { id: (scope, id), target });
    }

    /// Tells a peer that we provide some keys. Reported as [`Done`].
    pub fn announce(&mut self, scope: Scope, id: RequestId, peer: Peer, batch: Batch, provider: Arc<Provider>) {
        self.submit(peer, Command::Announce { id: (scope, id), batch, provider });
    }

    fn submit(&mut self, peer: Peer, command: Command) {
        if let Some(connection) = self.connections.get(&peer.id).and_then(|open| open.first()).copied() {
            return self.send(peer.id, connection, command);
        }
        let waiting = self.waiting.entry(peer.id).or_insert_with(|| Waiting {
            commands: Vec::new(),
            addresses: peer.addresses,
            dial: None,
            since: Instant::now(),
        });
        waiting.commands.push(command);
        if waiting.commands.len() == 1 {
            self.dial(peer.id);
        }
    }

    fn send(&mut self, peer_id: PeerId, connection: ConnectionId, command: Command) {
        self.under_way.insert(command.id(), connection);
        let handler = NotifyHandler::One(connection);
        self.events.push_back(ToSwarm::NotifyHandler { peer_id, handler, event: command });
    }

    fn dial(&mut self, peer: PeerId) {
        let Some(waiting) = self.waiting.get_mut(&peer) else { return };
        let opts = DialOpts::peer_id(peer)
            .condition(PeerCondition::DisconnectedAndNotDialing)
            .addresses(waiting.addresses.clone())
            .extend_addresses_through_behaviour()
            .build();
        waiting.dial = Some(opts.connection_id());
        self.events.push_back(ToSwarm::Dial { opts });
    }

    fn fail(&mut self, id: Id, kind: io::ErrorKind) {
        let done = Done { id, outcome: Outcome::Failed(kind.into()) };
        self.events.push_back(ToSwarm::GenerateEvent(done));
    }

    fn give_up(&mut self, peer: &PeerId, kind: io::ErrorKind) {
        let Some(waiting) = self.waiting.remove(peer) else { return };
        waiting.commands.iter().for_each(|command| self.fail(command.id(), kind));
    }

    fn connected(&mut self, peer: PeerId, connection: ConnectionId) {
        self.connections.entry(peer).or_default().push(connection);
        let Some(waiting) = self.waiting.remove(&peer) else { return };
        if waiting.dial == Some(connection) {
            self.made.insert(connection);
        }
        waiting.commands.into_iter().for_each(|command| self.send(peer, connection, command));
    }

    fn disconnected(&mut self, peer: PeerId, connection: ConnectionId) {
        if let Some(open) = self.connections.get_mut(&peer) {
            open.retain(|other| *other != connection);
            if open.is_empty() {
                self.connections.remove(&peer);
            }
        }
        self.made.remove(&connection);
        self.used.retain(|(_, other)| *other != connection);
        let lost = self.under_way.iter().filter(|(_, other)| **other == connection);
        let lost: Vec<Id> = lost.map(|(id, _)| *id).collect();
        for id in lost {
            self.under_way.remove(&id);
            self.fail(id, io::ErrorKind::ConnectionReset);
        }
    }

    fn not_connected(&mut self, peer: PeerId, connection: ConnectionId, error: &DialError) {
        let Some(waiting) = self.waiting.get_mut(&peer) else { return };
        let own = waiting.dial == Some(connection);
        match (own, error) {
            // Somebody else is at it.
            (true, DialError::DialPeerConditionFalse(_)) => waiting.dial = None,
            (true, _) => self.give_up(&peer, io::ErrorKind::NotConnected),
            // They failed: our addresses may be better.
            (false, _) if waiting.dial.is_none() => self.dial(peer),
            (false, _) => {}
        }
    }

    fn tick(&mut self, now: Instant) {
        let late = self.waiting.iter().filter(|(_, waiting)| now.duration_since(waiting.since) > DIAL_TIMEOUT);
        let late: Vec<PeerId> = late.map(|(peer, _)| *peer).collect();
        late.iter().for_each(|peer| self.give_up(peer, io::ErrorKind::TimedOut));
    }

    fn ended(&mut self, peer: PeerId, connection: ConnectionId, id: Id) {
        self.under_way.remove(&id);
        let busy = |connection: ConnectionId| self.under_way.values().any(|other| *other == connection);
        if !self.made.contains(&connection) || busy(connection) {
            return;
        }
        self.used.retain(|(_, other)| *other != connection);
        self.used.push_back((peer, connection));
        if self.used.len() > KEPT_MAX
            && let Some((peer_id, oldest)) = self.used.pop_front()
            && !busy(oldest)
        {
            let connection = CloseConnection::One(oldest);
            self.events.push_back(ToSwarm::CloseConnection { peer_id, connection });
        }
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Done;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<Handler, ConnectionDenied> {
        Ok(Handler::default())
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<Handler, ConnectionDenied> {
        Ok(Handler::default())
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished { peer_id, connection_id, .. }) => {
                self.connected(peer_id, connection_id);
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { peer_id, connection_id, .. }) => {
                self.disconnected(peer_id, connection_id);
            }
            FromSwarm::DialFailure(DialFailure { peer_id: Some(peer), error, connection_id }) => {
                self.not_connected(peer, connection_id, error);
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, connection: ConnectionId, done: Done) {
        if let Outcome::Failed(error) = &done.outcome {
            tracing::debug!(%peer, %error, "a peer of the DHT did not answer, or did not take a record");
        }
        self.ended(peer, connection, done.id);
        self.events.push_back(ToSwarm::GenerateEvent(done));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Done, THandlerInEvent<Self>>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(event);
            }
            if self.ticker.poll_tick(cx).is_pending() {
                return Poll::Pending;
            }
            self.tick(Instant::now());
        }
    }
}
