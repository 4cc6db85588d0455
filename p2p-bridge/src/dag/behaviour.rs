//! The network behaviour of the DAG protocol: connects the server, the Bitswap client, which decides what is asked of
//! which peer, and the connection handlers.

use super::client::active::{ActiveTransfer, Context as ClientContext, LostWhenDropped};
use super::client::outbound::Outbound;
use super::handler::{Event as HandlerEvent, Handler};
use super::server::Server;
use super::server::metrics::Metrics;
use super::server::streams::Asker;
use crate::admission::reputation::Offence;
use crate::fairness::SharedLedger;
use crate::framing::Budgets;
use crate::options::ServeTo;
use content::BlockSource;
use libp2p::PeerId;
use libp2p::swarm::behaviour::ConnectionEstablished;
use libp2p::swarm::{
    ConnectionClosed, ConnectionId, FromSwarm, NetworkBehaviour, NotifyHandler, Stream, THandlerInEvent, ToSwarm,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// An event for the swarm task.
#[derive(Debug)]
pub enum Event {
    /// A peer misbehaved.
    Offence(PeerId, Offence),
}

/// The operator's settings of the protocol.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether the protocol is spoken, in either direction.
    pub enabled: bool,
    /// Which peers are served blocks.
    pub serve_to: ServeTo,
}

/// The network behaviour. See the module's documentation.
pub struct Behaviour {
    enabled: bool,
    server: Server<Stream>,
    client: Option<Asking>,
    /// The connections to each peer, oldest first.
    connections: HashMap<PeerId, Vec<ConnectionId>>,
}

/// The asking side.
pub struct Asking {
    /// What transfers share.
    pub context: Arc<ClientContext>,
    /// Transfers to start.
    pub transfers: mpsc::UnboundedReceiver<Arc<ActiveTransfer>>,
}

impl Behaviour {
    /// Serves blocks of `local`, which must not fetch from the network. The ledger is shared with Bitswap.
    pub fn new(settings: Settings, local: Arc<dyn BlockSource>, ledger: SharedLedger, metrics: Metrics) -> Self {
        Self {
            enabled: settings.enabled,
            server: Server::new(local, settings.serve_to, ledger, metrics),
            client: None,
            connections: HashMap::new(),
        }
    }

    /// Asks peers as well.
    pub fn asking(mut self, client: Asking) -> Self {
        self.client = Some(client).filter(|_| self.enabled);
        self
    }

    fn handler(&self, peer: PeerId) -> Handler {
        let outbound = self.client.as_ref().map(|Asking { context, .. }| {
            let budgets = Budgets::new(context.memory.clone(), Arc::default());
            Outbound::new(peer, Arc::clone(context), budgets)
        });
        Handler::new(self.enabled, outbound)
    }

    /// The next transfer to start, and the connection for it. The swarm drops the event if the connection is gone.
    fn next_transfer(&mut self, cx: &mut Context<'_>) -> Option<ToSwarm<Event, LostWhenDropped>> {
        loop {
            let Poll::Ready(Some(transfer)) = self.client.as_mut()?.transfers.poll_recv(cx) else { return None };
            let (peer_id, event) = (transfer.peer, LostWhenDropped(transfer));
            if let Some(id) = self.connections.get(&peer_id).and_then(|ids| ids.first()) {
                return Some(ToSwarm::NotifyHandler { peer_id, handler: NotifyHandler::One(*id), event });
            }
        }
    }

    /// The number of transfers that are being served.
    pub fn served(&self) -> usize {
        self.server.active()
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Event;

    crate::handler_of_each_connection!(|behaviour, peer| behaviour.handler(peer));

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished { peer_id, connection_id, .. }) => {
                self.connections.entry(peer_id).or_default().push(connection_id);
                self.server.connected(Asker { peer: peer_id, connection: connection_id });
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { peer_id, connection_id, .. }) => {
                if let Some(connections) = self.connections.get_mut(&peer_id) {
                    connections.retain(|id| *id != connection_id);
                    if connections.is_empty() {
                        self.connections.remove(&peer_id);
                    }
                }
                self.server.disconnected(Asker { peer: peer_id, connection: connection_id });
            }
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, connection: ConnectionId, event: HandlerEvent) {
        match event {
            HandlerEvent::Inbound(stream) => self.server.opened(Asker { peer, connection }, stream),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Event, THandlerInEvent<Self>>> {
        if let Some(start) = self.next_transfer(cx) {
            return Poll::Ready(start);
        }
        self.server.poll(cx).map(|(peer, offence)| ToSwarm::GenerateEvent(Event::Offence(peer, offence)))
    }
}

#[cfg(test)]
#[path = "behaviour_tests.rs"]
mod tests;
