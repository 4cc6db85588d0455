//! The network behaviour that executes the requests of a sweep: reuses or opens a connection to the peer, and reports
//! one result per request.
//!
//! It closes most connections that it opened: a sweep contacts every peer of the network once, and does not need them
//! afterwards.

use super::desk::RequestId;
use super::handler::{Command, CommandOutcome, Done, Handler, Id};
use super::keys::Batch;
use super::message::Provider;
use super::walk::Peer;
use crate::scope::Scope;
use libp2p::swarm::behaviour::{ConnectionClosed, ConnectionEstablished, DialFailure};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{
    CloseConnection, ConnectionId, DialError, FromSwarm, NetworkBehaviour, NotifyHandler, THandlerInEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::{Interval, MissedTickBehavior};

/// The timeout of a dial.
const DIAL_TIMEOUT: Duration = Duration::from_secs(8);
/// How often the timeouts are checked.
const TICK: Duration = Duration::from_millis(500);
/// Maximum idle connections that this behaviour opened and keeps.
const IDLE_MAX: usize = 128;

struct Waiting {
    commands: Vec<Command>,
    addresses: Vec<Multiaddr>,
    /// The dial of this behaviour; `None` while another behaviour dials the peer.
    dial: Option<ConnectionId>,
    since: Instant,
}

/// The network behaviour. See the module's documentation.
pub struct Behaviour {
    connections: HashMap<PeerId, Vec<ConnectionId>>,
    waiting: HashMap<PeerId, Waiting>,
    in_flight: HashMap<Id, ConnectionId>,
    /// Idle connections that this behaviour opened, the longest idle first.
    idle: VecDeque<(PeerId, ConnectionId)>,
    own_dials: HashSet<ConnectionId>,
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
            in_flight: HashMap::new(),
            idle: VecDeque::new(),
            own_dials: HashSet::new(),
            events: VecDeque::new(),
            ticker,
        }
    }
}

impl Behaviour {
    /// Sends a FIND_NODE request. The result is reported as [`Done`].
    pub fn ask(&mut self, scope: Scope, id: RequestId, peer: Peer, target: Arc<[u8]>) {
        self.submit(peer, Command::Ask { id: (scope, id), target });
    }

    /// Announces keys to a peer. The result is reported as [`Done`].
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
        self.in_flight.insert(command.id(), connection);
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
        let done = Done { id, outcome: CommandOutcome::Failed(kind.into()) };
        self.events.push_back(ToSwarm::GenerateEvent(done));
    }

    fn fail_all(&mut self, peer: &PeerId, kind: io::ErrorKind) {
        let Some(waiting) = self.waiting.remove(peer) else { return };
        waiting.commands.iter().for_each(|command| self.fail(command.id(), kind));
    }

    fn connected(&mut self, peer: PeerId, connection: ConnectionId) {
        self.connections.entry(peer).or_default().push(connection);
        let Some(waiting) = self.waiting.remove(&peer) else { return };
        if waiting.dial == Some(connection) {
            self.own_dials.insert(connection);
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
        self.own_dials.remove(&connection);
        self.idle.retain(|(_, other)| *other != connection);
        let lost = self.in_flight.iter().filter(|(_, other)| **other == connection);
        let lost: Vec<Id> = lost.map(|(id, _)| *id).collect();
        for id in lost {
            self.in_flight.remove(&id);
            self.fail(id, io::ErrorKind::ConnectionReset);
        }
    }

    fn not_connected(&mut self, peer: PeerId, connection: ConnectionId, error: &DialError) {
        let Some(waiting) = self.waiting.get_mut(&peer) else { return };
        let own = waiting.dial == Some(connection);
        match (own, error) {
            // Another behaviour dials the peer.
            (true, DialError::DialPeerConditionFalse(_)) => waiting.dial = None,
            (true, _) => self.fail_all(&peer, io::ErrorKind::NotConnected),
            // The other dial failed: the addresses of this request may be better.
            (false, _) if waiting.dial.is_none() => self.dial(peer),
            (false, _) => {}
        }
    }

    fn tick(&mut self, now: Instant) {
        let late = self.waiting.iter().filter(|(_, waiting)| now.duration_since(waiting.since) > DIAL_TIMEOUT);
        let late: Vec<PeerId> = late.map(|(peer, _)| *peer).collect();
        late.iter().for_each(|peer| self.fail_all(peer, io::ErrorKind::TimedOut));
    }

    fn ended(&mut self, peer: PeerId, connection: ConnectionId, id: Id) {
        self.in_flight.remove(&id);
        let busy = |connection: ConnectionId| self.in_flight.values().any(|other| *other == connection);
        if !self.own_dials.contains(&connection) || busy(connection) {
            return;
        }
        self.idle.retain(|(_, other)| *other != connection);
        self.idle.push_back((peer, connection));
        if self.idle.len() > IDLE_MAX
            && let Some((peer_id, oldest)) = self.idle.pop_front()
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

    crate::handler_of_each_connection!(|_, _| Handler::default());

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
        if let CommandOutcome::Failed(error) = &done.outcome {
            tracing::debug!(%peer, %error, "a DHT peer did not respond, or did not accept a record");
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
