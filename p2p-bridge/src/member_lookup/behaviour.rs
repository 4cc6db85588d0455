//! The network behaviour: passes on streams that peers open, and opens connections and streams on request.

use super::dialling::Request;
use super::handler::{Handler, StreamWaiter};
use crate::dag::server::streams::InboundStream;
use crate::dialable::is_same;
use crate::known_members::KnownMembers;
use crate::{connecting, dialable};
use libp2p::swarm::behaviour::ConnectionEstablished;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{
    CloseConnection, ConnectionClosed, ConnectionId, DialFailure, FromSwarm, ListenAddresses, NetworkBehaviour,
    NotifyHandler, Stream, THandlerInEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::task::{Context, Poll};
use tokio::sync::{mpsc, oneshot};

/// The maximum number of streams that are to be opened. Further callers wait.
const OPENING_MAX: usize = 1024;
/// The maximum number of streams of the gateways of the site that the server has not taken. Further ones are reset.
const INBOUND_MAX: usize = 1024;

/// A stream that a peer has opened.
pub type FromPeer = (PeerId, InboundStream<Stream>);

/// The maximum number of requests that wait. Further callers wait.
const REQUESTS_MAX: usize = 64;

/// Which connections a stream may be opened on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The one that was opened on request, over the address at which the peer answered first.
    Requested,
    /// The latest direct one, else the latest one. It may have been opened over a public address.
    Any,
}

/// A stream to be opened.
#[derive(Debug)]
pub struct Opening {
    /// The peer.
    pub peer: PeerId,
    /// On which connections.
    pub choice: Choice,
    /// The caller.
    pub waiter: StreamWaiter,
}

/// A connection.
#[derive(Debug, Clone, Copy)]
struct Connection {
    id: ConnectionId,
    is_requested: bool,
    is_relayed: bool,
}

/// A request for a connection, whose addresses are dialled.
#[derive(Debug)]
struct Dialling {
    reply: Option<oneshot::Sender<Result<(), String>>>,
    /// How many dials have not ended.
    pending: usize,
}

/// The network behaviour. See the module's documentation.
pub struct Behaviour {
    enabled: bool,
    opening: mpsc::Receiver<Opening>,
    requests: mpsc::Receiver<Request>,
    inbound: mpsc::Sender<FromPeer>,
    members: KnownMembers,
    /// The addresses that this node listens at. Other machines have some of them as well, such as 127.0.0.1, where this
    /// node would find itself.
    listening: ListenAddresses,
    /// The requests for connections, by number, and the dials of each.
    dialling: HashMap<u64, Dialling>,
    dials: HashMap<ConnectionId, u64>,
    last_number: u64,
    /// What the swarm is to do.
    events: VecDeque<ToSwarm<Infallible, StreamWaiter>>,
    /// The connections to each peer, oldest first.
    connections: HashMap<PeerId, Vec<Connection>>,
}

/// The other ends of a behaviour.
#[derive(Debug)]
pub struct Ends {
    /// Opens streams on an open connection. Without one, the waiter is dropped.
    pub opening: mpsc::Sender<Opening>,
    /// Requests connections.
    pub requests: mpsc::Sender<Request>,
    /// The streams that peers open.
    pub inbound: mpsc::Receiver<FromPeer>,
}

impl Behaviour {
    /// A behaviour, and its other ends. If it is not enabled, the protocol is neither accepted nor announced.
    pub fn new(enabled: bool, members: KnownMembers) -> (Self, Ends) {
        let (opening, to_open) = mpsc::channel(OPENING_MAX);
        let (requests, requested) = mpsc::channel(REQUESTS_MAX);
        let (to_server, inbound) = mpsc::channel(INBOUND_MAX);
        let behaviour = Self {
            enabled,
            opening: to_open,
            requests: requested,
            inbound: to_server,
            members,
            listening: ListenAddresses::default(),
            dialling: HashMap::new(),
            dials: HashMap::new(),
            last_number: 0,
            events: VecDeque::new(),
            connections: HashMap::new(),
        };
        (behaviour, Ends { opening, requests, inbound })
    }

    /// The connection for a new stream. The latest one, since an earlier one may be broken.
    fn connection(&self, peer: &PeerId, choice: Choice) -> Option<ConnectionId> {
        let mut latest_first = self.connections.get(peer)?.iter().rev();
        let chosen = match choice {
            Choice::Requested => latest_first.find(|connection| connection.is_requested),
            Choice::Any => latest_first.min_by_key(|connection| connection.is_relayed),
        };
        chosen.map(|connection| connection.id)
    }

    fn on_request(&mut self, request: Request) {
        match request {
            // The caller may have stopped waiting.
            Request::Dial { peer, addresses, reply } if !reply.is_closed() => self.dial(peer, addresses, reply),
            Request::Dial { .. } => {}
            Request::Distrust(peer) => {
                let connections = self.connections.get_mut(&peer).into_iter().flatten();
                connections.for_each(|connection| connection.is_requested = false);
            }
        }
    }

    /// Dials all addresses of a peer at once, but for this node's own. Each dial is one of its own: in a dial of several
    /// addresses, the swarm begins with some of them later, and the dial fails when another peer answers at one.
    fn dial(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, reply: oneshot::Sender<Result<(), String>>) {
        if self.connection(&peer, Choice::Requested).is_some() {
            let _ = reply.send(Ok(()));
            return;
        }
        let is_own = |address: &Multiaddr| self.listening.iter().any(|own| is_same(own, address));
        let others: Vec<Multiaddr> = addresses.into_iter().filter(|address| self.enabled && !is_own(address)).collect();
        if others.is_empty() {
            let _ = reply.send(Err("it has no address that can be dialled from here".to_owned()));
            return;
        }
        self.last_number += 1;
        self.dialling.insert(self.last_number, Dialling { reply: Some(reply), pending: others.len() });
        for address in others {
            let opts = dial_opts(peer, address);
            self.dials.insert(opts.connection_id(), self.last_number);
            self.events.push_back(ToSwarm::Dial { opts });
        }
    }

    fn on_established(&mut self, established: ConnectionEstablished<'_>) {
        let ConnectionEstablished { peer_id, connection_id: id, endpoint, .. } = established;
        let request = self.dials.remove(&id);
        let is_first = request.is_some() && self.connection(&peer_id, Choice::Requested).is_none();
        let is_requested = is_first && !endpoint.is_relayed();
        let connection = Connection { id, is_requested, is_relayed: endpoint.is_relayed() };
        self.connections.entry(peer_id).or_default().push(connection);
        let Some(number) = request else { return };
        // Of the connections of all dials, the first one is used.
        if !is_requested {
            self.events.push_back(ToSwarm::CloseConnection { peer_id, connection: CloseConnection::One(id) });
        }
        self.dial_ended(number, Ok(()));
    }

    /// A dial of a request has ended.
    fn dial_ended(&mut self, number: u64, result: Result<(), String>) {
        let Some(dialling) = self.dialling.get_mut(&number) else { return };
        dialling.pending -= 1;
        let is_last = dialling.pending == 0;
        if (result.is_ok() || is_last)
            && let Some(reply) = dialling.reply.take()
        {
            let _ = reply.send(result);
        }
        if is_last {
            self.dialling.remove(&number);
        }
    }

    fn on_dial_failed(&mut self, failed: DialFailure<'_>) {
        if let Some(number) = self.dials.remove(&failed.connection_id) {
            self.dial_ended(number, Err(connecting::reason(failed.error).to_string()));
        }
    }
}

/// A dial of one address, beside the connections that there are.
fn dial_opts(peer: PeerId, address: Multiaddr) -> DialOpts {
    let is_tcp = dialable::is_tcp(&address);
    let opts = DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(vec![address]);
    match is_tcp {
        // From the port of the listener, two gateways that dial each other at the same time would have one connection,
        // of which each would be the dialler.
        true => opts.allocate_new_port().build(),
        false => opts.build(),
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Infallible;

    crate::handler_of_each_connection!(|behaviour, _peer| Handler::new(behaviour.enabled));

    fn on_swarm_event(&mut self, event: FromSwarm) {
        self.listening.on_swarm_event(&event);
        match event {
            FromSwarm::ConnectionEstablished(established) if self.enabled => self.on_established(established),
            FromSwarm::DialFailure(failed) => self.on_dial_failed(failed),
            FromSwarm::ConnectionClosed(ConnectionClosed { peer_id, connection_id, .. }) => {
                if let Some(connections) = self.connections.get_mut(&peer_id) {
                    connections.retain(|connection| connection.id != connection_id);
                    if connections.is_empty() {
                        self.connections.remove(&peer_id);
                    }
                }
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, _: ConnectionId, stream: InboundStream<Stream>) {
        // A stream for which there is no room is reset, and so is one of a peer that is no gateway of the site.
        if self.members.contains(&peer) {
            let _ = self.inbound.try_send((peer, stream));
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        while let Poll::Ready(Some(request)) = self.requests.poll_recv(cx) {
            self.on_request(request);
        }
        if let Some(event) = self.events.pop_front() {
            return Poll::Ready(event);
        }
        while let Poll::Ready(Some(Opening { peer: peer_id, choice, waiter: event })) = self.opening.poll_recv(cx) {
            if let Some(id) = self.connection(&peer_id, choice) {
                return Poll::Ready(ToSwarm::NotifyHandler { peer_id, handler: NotifyHandler::One(id), event });
            }
        }
        Poll::Pending
    }
}
