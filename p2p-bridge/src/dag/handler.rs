//! The connection handler of the DAG protocol: streams in either direction. What is said on them is up to the tasks of
//! [`super::server`] and [`super::client`].

use super::client::active::LostWhenDropped;
use super::client::outbound::{Outbound, StreamPurpose};
use super::message::PROTOCOL;
use super::server::inbound::Inbound;
use super::server::streams::InboundStream;
use crate::stream_upgrade::StreamUpgrade;
use libp2p::StreamProtocol;
use libp2p::swarm::handler::{ConnectionEvent, FullyNegotiatedInbound, FullyNegotiatedOutbound, ProtocolsChange};
use libp2p::swarm::{ConnectionHandler, ConnectionHandlerEvent, Stream, SubstreamProtocol};
use std::task::{Context, Poll};

/// An event of a connection for the behaviour.
#[derive(Debug)]
pub enum Event {
    /// The peer opened a stream.
    Inbound(InboundStream<Stream>),
}

/// Whether this protocol is among those that a peer has announced.
fn names_protocol<'a>(mut protocols: impl Iterator<Item = &'a StreamProtocol>) -> bool {
    protocols.any(|protocol| *protocol == PROTOCOL)
}

/// The connection handler. See the module's documentation.
pub struct Handler {
    upgrade: StreamUpgrade,
    inbound: Inbound,
    /// `None`: peers are not asked.
    outbound: Option<Outbound>,
}

impl Handler {
    /// The handler of a connection. Without `outbound`, the peer is not asked.
    pub fn new(enabled: bool, outbound: Option<Outbound>) -> Self {
        Self { upgrade: StreamUpgrade::new(PROTOCOL, enabled), inbound: Inbound::default(), outbound }
    }
}

impl ConnectionHandler for Handler {
    /// A transfer to start.
    type FromBehaviour = LostWhenDropped;
    type ToBehaviour = Event;
    type InboundProtocol = StreamUpgrade;
    type OutboundProtocol = StreamUpgrade;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = StreamPurpose;

    fn listen_protocol(&self) -> SubstreamProtocol<StreamUpgrade> {
        SubstreamProtocol::new(self.upgrade.clone(), ())
    }

    fn connection_keep_alive(&self) -> bool {
        self.inbound.is_busy() || self.outbound.as_ref().is_some_and(Outbound::is_busy)
    }

    fn on_behaviour_event(&mut self, transfer: LostWhenDropped) {
        if let Some(outbound) = &mut self.outbound {
            outbound.start(transfer);
        }
    }

    fn on_connection_event(&mut self, event: ConnectionEvent<'_, StreamUpgrade, StreamUpgrade, (), StreamPurpose>) {
        match (event, &mut self.outbound) {
            (ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. }), _) => {
                self.inbound.opened(protocol);
            }
            (ConnectionEvent::FullyNegotiatedOutbound(opened), Some(outbound)) => {
                let FullyNegotiatedOutbound { protocol, info } = opened;
                outbound.opened(protocol, info);
            }
            (ConnectionEvent::RemoteProtocolsChange(change), Some(outbound)) => {
                let (names_it, speaks) = match change {
                    ProtocolsChange::Added(protocols) => (names_protocol(protocols), true),
                    ProtocolsChange::Removed(protocols) => (names_protocol(protocols), false),
                };
                if names_it {
                    outbound.announced(speaks);
                }
            }
            // The purpose of a stream that cannot be opened is dropped, which reports the loss.
            _ => {}
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionHandlerEvent<StreamUpgrade, StreamPurpose, Event>> {
        if let Some(stream) = self.inbound.accept() {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(Event::Inbound(stream)));
        }
        match self.outbound.as_mut().and_then(|outbound| outbound.poll(cx)) {
            Some(purpose) => {
                let protocol = SubstreamProtocol::new(self.upgrade.clone(), purpose);
                Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol })
            }
            None => Poll::Pending,
        }
    }
}
