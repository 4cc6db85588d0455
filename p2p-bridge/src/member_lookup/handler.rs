//! The connection handler: streams in either direction. What is sent on them is up to [`super::server`] and
//! [`super::client`].

use super::PROTOCOL;
use crate::dag::server::inbound::Inbound;
use crate::dag::server::streams::InboundStream;
use crate::stream_upgrade::StreamUpgrade;
use futures::{AsyncRead, AsyncWrite};
use libp2p::swarm::handler::{ConnectionEvent, FullyNegotiatedInbound, FullyNegotiatedOutbound};
use libp2p::swarm::{ConnectionHandler, ConnectionHandlerEvent, Stream, SubstreamProtocol};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The maximum number of streams that a connection opens for look-ups: as many as there are look-ups in progress.
pub const OUTBOUND_MAX: usize = 128;
/// The maximum number that it accepts. Those that the peer has just ended may not have been noticed.
const INBOUND_MAX: usize = 2 * OUTBOUND_MAX;

/// A stream on which look-ups are sent. The connection stays open meanwhile.
#[derive(Debug)]
pub struct OutboundStream {
    stream: Stream,
    _permit: OwnedSemaphorePermit,
}

impl AsyncRead for OutboundStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_read(cx, out)
    }
}

impl AsyncWrite for OutboundStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

/// Who waits for a stream. Dropped when none can be opened.
pub type StreamWaiter = oneshot::Sender<OutboundStream>;

/// The connection handler. See the module's documentation.
pub struct Handler {
    upgrade: StreamUpgrade,
    inbound: Inbound,
    /// Streams to be opened.
    opening: VecDeque<StreamWaiter>,
    outbound: Arc<Semaphore>,
}

impl Handler {
    /// The handler of a connection.
    pub fn new(enabled: bool) -> Self {
        let outbound = Arc::new(Semaphore::new(OUTBOUND_MAX));
        Self {
            upgrade: StreamUpgrade::new(PROTOCOL, enabled),
            inbound: Inbound::with_limit(INBOUND_MAX),
            opening: VecDeque::new(),
            outbound,
        }
    }
}

impl ConnectionHandler for Handler {
    /// A stream to be opened.
    type FromBehaviour = StreamWaiter;
    /// A stream that the peer has opened.
    type ToBehaviour = InboundStream<Stream>;
    type InboundProtocol = StreamUpgrade;
    type OutboundProtocol = StreamUpgrade;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = (StreamWaiter, OwnedSemaphorePermit);

    fn listen_protocol(&self) -> SubstreamProtocol<StreamUpgrade> {
        SubstreamProtocol::new(self.upgrade.clone(), ())
    }

    fn connection_keep_alive(&self) -> bool {
        self.inbound.is_busy() || !self.opening.is_empty() || self.outbound.available_permits() < OUTBOUND_MAX
    }

    fn on_behaviour_event(&mut self, waiter: StreamWaiter) {
        self.opening.push_back(waiter);
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<'_, StreamUpgrade, StreamUpgrade, (), Self::OutboundOpenInfo>,
    ) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. }) => {
                self.inbound.opened(protocol);
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, info: (waiter, permit) }) => {
                // Who waited may have left.
                let _ = waiter.send(OutboundStream { stream: protocol, _permit: permit });
            }
            // The waiter of a stream that cannot be opened is dropped, which reports the failure.
            _ => {}
        }
    }

    fn poll(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<StreamUpgrade, Self::OutboundOpenInfo, InboundStream<Stream>>> {
        if let Some(stream) = self.inbound.accept() {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(stream));
        }
        while let Some(waiter) = self.opening.pop_front() {
            // Without a permit the waiter is dropped: there are as many streams as look-ups may be in progress.
            if let (false, Ok(permit)) = (waiter.is_closed(), Arc::clone(&self.outbound).try_acquire_owned()) {
                let protocol = SubstreamProtocol::new(self.upgrade.clone(), (waiter, permit));
                return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
            }
        }
        Poll::Pending
    }
}
