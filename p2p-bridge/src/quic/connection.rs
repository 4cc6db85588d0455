//! One connection as a multiplexer of streams, and its handshake.

use super::Error;
use super::budget::Budget;
use super::flow_control::FlowControl;
use super::stream::{ReceiveHalf, Stream};
use crate::peer_tls::peer_of;
use futures::future::{BoxFuture, FutureExt as _};
use libp2p::PeerId;
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use quinn::{ConnectionError, RecvStream, SendStream, VarInt};
use rustls::pki_types::CertificateDer;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How long a handshake may take.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often windows and unread streams are looked at.
const TICK: Duration = Duration::from_millis(500);

type Opening = BoxFuture<'static, Result<(SendStream, RecvStream), ConnectionError>>;

/// A connection.
pub struct Connection {
    connection: quinn::Connection,
    flow_control: Arc<FlowControl>,
    inbound: Opening,
    outbound: Option<Opening>,
    closing: Option<BoxFuture<'static, ConnectionError>>,
    streams: Vec<Weak<ReceiveHalf>>,
    ticks: Interval,
}

impl Connection {
    fn new(connection: quinn::Connection, budget: &Budget) -> Self {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            flow_control: FlowControl::new(connection.clone(), budget),
            inbound: accept(connection.clone()),
            outbound: None,
            closing: None,
            streams: Vec::new(),
            ticks,
            connection,
        }
    }

    fn stream(&mut self, (send, receive): (SendStream, RecvStream), cx: &mut Context<'_>) -> Stream {
        if self.streams.is_empty() {
            // The ticks begin.
            cx.waker().wake_by_ref();
        }
        let stream = Stream::new(send, receive, self.flow_control.clone());
        self.streams.push(Arc::downgrade(stream.receive_half()));
        stream
    }

    /// Looks at the windows and unread streams, and removes streams that were dropped.
    fn tick(&mut self) {
        self.flow_control.tick();
        let flow_control = &self.flow_control;
        self.streams.retain(|stream| match stream.upgrade() {
            Some(stream) => {
                stream.tick(flow_control);
                true
            }
            None => false,
        });
    }
}

#[cfg(test)]
impl Connection {
    /// The connection of quinn.
    pub(super) fn quinn(&self) -> &quinn::Connection {
        &self.connection
    }

    /// As [`Self::tick`], of which a test does not wait for the time.
    pub(super) fn tick_now(&mut self) {
        self.tick();
    }
}

fn accept(connection: quinn::Connection) -> Opening {
    async move { connection.accept_bi().await }.boxed()
}

fn open(connection: quinn::Connection) -> Opening {
    async move { connection.open_bi().await }.boxed()
}

impl StreamMuxer for Connection {
    type Substream = Stream;
    type Error = Error;

    fn poll_inbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Stream, Error>> {
        let opened = ready!(self.inbound.poll_unpin(cx));
        self.inbound = accept(self.connection.clone());
        Poll::Ready(Ok(self.stream(opened?, cx)))
    }

    fn poll_outbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Stream, Error>> {
        let this = &mut *self;
        let opening = this.outbound.get_or_insert_with(|| open(this.connection.clone()));
        let opened = ready!(opening.poll_unpin(cx));
        self.outbound = None;
        Poll::Ready(Ok(self.stream(opened?, cx)))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let this = &mut *self;
        let closing = this.closing.get_or_insert_with(|| {
            let connection = this.connection.clone();
            connection.close(VarInt::from_u32(0), &[]);
            async move { connection.closed().await }.boxed()
        });
        let closed = ready!(closing.poll_unpin(cx));
        this.closing = None;
        match closed {
            ConnectionError::LocallyClosed => Poll::Ready(Ok(())),
            error => Poll::Ready(Err(error.into())),
        }
    }

    /// Peers cannot change their address, so there are no events. This keeps the windows up to date.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, Error>> {
        // A connection without streams and with the minimum wakes nothing.
        while (!self.streams.is_empty() || self.flow_control.is_raised()) && self.ticks.poll_tick(cx).is_ready() {
            self.tick();
        }
        Poll::Pending
    }
}

/// Completes a handshake.
pub(super) async fn handshake(connecting: quinn::Connecting, budget: Budget) -> Result<(PeerId, Connection), Error> {
    let connected = tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting).await;
    let connection = connected.map_err(|_| Error::HandshakeTimedOut)??;
    let peer = authenticated_peer(&connection)?;
    Ok((peer, Connection::new(connection, &budget)))
}

/// The peer that has proved its identity in the handshake.
fn authenticated_peer(connection: &quinn::Connection) -> Result<PeerId, Error> {
    let identity = connection.peer_identity().and_then(|identity| identity.downcast::<Vec<CertificateDer>>().ok());
    peer_of(&identity.unwrap_or_default()).map_err(Error::Identity)
}
