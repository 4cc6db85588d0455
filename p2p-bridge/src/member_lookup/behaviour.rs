//! The network behaviour: passes on streams that peers open, and opens streams on request.

use super::handler::{Handler, StreamWaiter};
use crate::dag::server::streams::InboundStream;
use crate::known_members::KnownMembers;
use libp2p::PeerId;
use libp2p::swarm::behaviour::ConnectionEstablished;
use libp2p::swarm::{
    ConnectionClosed, ConnectionId, FromSwarm, NetworkBehaviour, NotifyHandler, Stream, THandlerInEvent, ToSwarm,
};
use std::collections::HashMap;
use std::convert::Infallible;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// The maximum number of streams that are to be opened. Further callers wait.
const OPENING_MAX: usize = 1024;
/// The maximum number of streams of the gateways of the site that the server has not taken. Further ones are reset.
const INBOUND_MAX: usize = 1024;

/// A stream that a peer has opened.
pub type FromPeer = (PeerId, InboundStream<Stream>);

/// The network behaviour. See the module's documentation.
pub struct Behaviour {
    enabled: bool,
    opening: mpsc::Receiver<(PeerId, StreamWaiter)>,
    inbound: mpsc::Sender<FromPeer>,
    members: KnownMembers,
    /// The connections to each peer, oldest first, and whether each is relayed.
    connections: HashMap<PeerId, Vec<(ConnectionId, bool)>>,
}

/// The other ends of a behaviour.
#[derive(Debug)]
pub struct Ends {
    /// Opens streams on an open connection. Without one, the waiter is dropped.
    pub opening: mpsc::Sender<(PeerId, StreamWaiter)>,
    /// The streams that peers open.
    pub inbound: mpsc::Receiver<FromPeer>,
}

impl Behaviour {
    /// A behaviour, and its other ends. If it is not enabled, the protocol is neither accepted nor announced.
    pub fn new(enabled: bool, members: KnownMembers) -> (Self, Ends) {
        let (opening, to_open) = mpsc::channel(OPENING_MAX);
        let (to_server, inbound) = mpsc::channel(INBOUND_MAX);
        let behaviour = Self { enabled, opening: to_open, inbound: to_server, members, connections: HashMap::new() };
        (behaviour, Ends { opening, inbound })
    }

    /// The connection for a new stream: the latest direct one, since an earlier one may be broken.
    fn connection(&self, peer: &PeerId) -> Option<ConnectionId> {
        let connections = self.connections.get(peer)?;
        let direct = connections.iter().rev().find(|(_, is_relayed)| !is_relayed);
        direct.or(connections.last()).map(|(id, _)| *id)
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Infallible;

    crate::handler_of_each_connection!(|behaviour, _peer| Handler::new(behaviour.enabled));

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(established) if self.enabled => {
                let ConnectionEstablished { peer_id, connection_id, endpoint, .. } = established;
                self.connections.entry(peer_id).or_default().push((connection_id, endpoint.is_relayed()));
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { peer_id, connection_id, .. }) => {
                if let Some(connections) = self.connections.get_mut(&peer_id) {
                    connections.retain(|(id, _)| *id != connection_id);
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
        while let Poll::Ready(Some((peer_id, event))) = self.opening.poll_recv(cx) {
            if let Some(id) = self.connection(&peer_id) {
                return Poll::Ready(ToSwarm::NotifyHandler { peer_id, handler: NotifyHandler::One(id), event });
            }
        }
        Poll::Pending
    }
}
