//! Bandwidth by transport.
//!
//! Counts the bytes that protocols write and read, without the overhead of encryption, multiplexing and the system's
//! headers. Counting costs two relaxed additions for each read and write of a stream.

use futures::future::BoxFuture;
use futures::{AsyncRead, AsyncWrite, FutureExt as _, TryFutureExt as _};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, yamux};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};
use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll};

crate::label_values! {
    /// A transport. Its label is its name in API responses as well.
    pub enum Via {
        /// TCP.
        Tcp = "tcp",
        /// QUIC.
        Quic = "quic",
        /// WebSocket over TCP.
        WebSocket = "websocket",
        /// A circuit through a relay. Its bytes also count for the transport of the connection to the relay.
        Circuit = "circuit",
    }
}

impl Via {
    /// The transport of an address.
    pub fn of(address: &Multiaddr) -> Self {
        let mut via = Self::Tcp;
        for part in address {
            match part {
                Protocol::P2pCircuit => return Self::Circuit,
                Protocol::Ws(_) | Protocol::Wss(_) => via = Self::WebSocket,
                Protocol::Quic | Protocol::QuicV1 => via = Self::Quic,
                _ => {}
            }
        }
        via
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    transport: Via,
    direction: &'static str,
}

/// The counters of one transport. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Meter {
    received: Counter,
    sent: Counter,
}

/// The counters of all transports. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Bandwidth {
    meters: [Meter; Via::ALL.len()],
}

/// The bytes of one transport since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransportBytes {
    /// The transport.
    pub via: Via,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
}

impl Bandwidth {
    /// Creates the counters and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let family = Family::<Labels, Counter>::default();
        registry.register_with_unit(
            "causeway_p2p_carried",
            "Bytes that protocols read from peers and wrote to them",
            Unit::Bytes,
            family.clone(),
        );
        let counter = |transport, direction| family.get_or_create_owned(&Labels { transport, direction });
        Self { meters: Via::ALL.map(|via| Meter { received: counter(via, "in"), sent: counter(via, "out") }) }
    }

    /// The counters of a transport.
    pub fn meter(&self, via: Via) -> Meter {
        self.meters[via as usize].clone()
    }

    /// The bytes of all transports.
    pub fn carried(&self) -> [TransportBytes; Via::ALL.len()] {
        Via::ALL.map(|via| {
            let Meter { received, sent } = &self.meters[via as usize];
            TransportBytes { via, received: received.get(), sent: sent.get() }
        })
    }
}

/// A connection, or one of its streams, with byte counters.
#[derive(Debug)]
pub struct Counted<T> {
    inner: T,
    meter: Meter,
}

impl<T> Counted<T> {
    /// Counts the bytes of `inner`.
    pub fn new(inner: T, meter: Meter) -> Self {
        Self { inner, meter }
    }

    fn stream<S, E>(&self, polled: Poll<Result<S, E>>) -> Poll<Result<Counted<S>, E>> {
        polled.map_ok(|stream| Counted::new(stream, self.meter.clone()))
    }

    fn read(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = polled {
            self.meter.received.inc_by(bytes as u64);
        }
        polled
    }

    fn written(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = polled {
            self.meter.sent.inc_by(bytes as u64);
        }
        polled
    }
}

impl<M: StreamMuxer + Unpin> StreamMuxer for Counted<M>
where
    M::Substream: Unpin,
{
    type Substream = Counted<M::Substream>;
    type Error = M::Error;

    fn poll_inbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Self::Substream, M::Error>> {
        let polled = Pin::new(&mut self.inner).poll_inbound(cx);
        self.stream(polled)
    }

    fn poll_outbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Self::Substream, M::Error>> {
        let polled = Pin::new(&mut self.inner).poll_outbound(cx);
        self.stream(polled)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), M::Error>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, M::Error>> {
        Pin::new(&mut self.inner).poll(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_read(cx, buffer);
        self.read(polled)
    }

    fn poll_read_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_read_vectored(cx, buffers);
        self.read(polled)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.written(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, parts);
        self.written(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }
}

/// The yamux multiplexer with libp2p's default configuration and counted streams.
#[derive(Debug, Clone)]
pub struct Yamux {
    config: yamux::Config,
    meter: Meter,
}

impl Yamux {
    /// Creates the multiplexer of a transport.
    pub fn new(meter: Meter) -> Self {
        Self { config: yamux::Config::default(), meter }
    }
}

impl UpgradeInfo for Yamux {
    type Info = <yamux::Config as UpgradeInfo>::Info;
    type InfoIter = <yamux::Config as UpgradeInfo>::InfoIter;

    fn protocol_info(&self) -> Self::InfoIter {
        self.config.protocol_info()
    }
}

impl<C: AsyncRead + AsyncWrite + Send + Unpin + 'static> InboundConnectionUpgrade<C> for Yamux {
    type Output = Counted<yamux::Muxer<C>>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Output>>;

    fn upgrade_inbound(self, socket: C, info: Self::Info) -> Self::Future {
        let meter = self.meter;
        self.config.upgrade_inbound(socket, info).map_ok(|muxer| Counted::new(muxer, meter)).boxed()
    }
}

impl<C: AsyncRead + AsyncWrite + Send + Unpin + 'static> OutboundConnectionUpgrade<C> for Yamux {
    type Output = Counted<yamux::Muxer<C>>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Output>>;

    fn upgrade_outbound(self, socket: C, info: Self::Info) -> Self::Future {
        let meter = self.meter;
        self.config.upgrade_outbound(socket, info).map_ok(|muxer| Counted::new(muxer, meter)).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transport_is_read_from_the_address() {
        let table = [
            ("/ip4/192.0.2.1/tcp/4001", Via::Tcp),
            ("/dns4/example.org/tcp/4001/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo", Via::Tcp),
            ("/ip4/192.0.2.1/udp/4001/quic-v1", Via::Quic),
            ("/ip6/2001:db8::1/tcp/443/wss", Via::WebSocket),
            ("/dns4/example.org/tcp/443/tls/ws", Via::WebSocket),
            (
                "/ip4/192.0.2.1/udp/1/quic-v1/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo/p2p-circuit",
                Via::Circuit,
            ),
        ];
        for (address, expected) in table {
            assert_eq!(Via::of(&address.parse().expect(address)), expected, "{address}");
        }
        for via in Via::ALL {
            assert_eq!(Bandwidth::default().carried()[via as usize].via, via);
        }
    }
}
