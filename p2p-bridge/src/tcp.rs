//! [`TcpTransport`]: libp2p's TCP transport, with a dial that does not fail because its local port is taken.
//!
//! A node dials from the port that it listens on, so that NATs map both to one address. libp2p binds such a socket to
//! that port of *all* local addresses, which fails with `EADDRINUSE` if another socket has the port at any of them: a
//! program that listens at another address, or a connection in TIME_WAIT that had the port by chance. libp2p tries another port
//! if the connection exists already, and not in this case, so that a node whose listening port is of the ephemeral range
//! could sometimes dial no peer at all for a minute.
//!
//! Goal: such a dial is repeated once, from a port that the system chooses. Non-goal: which dials reuse the port.

use futures::future::{BoxFuture, FutureExt as _};
use libp2p::core::transport::{DialOpts, ListenerId, PortUse, Transport, TransportError, TransportEvent};
use libp2p::{Multiaddr, tcp};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// TCP sockets with `TCP_NODELAY`. See the module's documentation.
pub struct TcpTransport {
    inner: tcp::tokio::Transport,
}

impl Default for TcpTransport {
    fn default() -> Self {
        Self { inner: sockets() }
    }
}

fn sockets() -> tcp::tokio::Transport {
    tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
}

type Inner = tcp::tokio::Transport;

impl Transport for TcpTransport {
    type Output = <Inner as Transport>::Output;
    type Error = io::Error;
    type ListenerUpgrade = <Inner as Transport>::ListenerUpgrade;
    type Dial = BoxFuture<'static, io::Result<Self::Output>>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, opts: DialOpts) -> Result<Self::Dial, TransportError<io::Error>> {
        let dialled = self.inner.dial(address.clone(), opts)?;
        let dial = async move {
            match dialled.await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => dial_from_any_port(address, opts).await,
                other => other,
            }
        };
        Ok(dial.boxed())
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        Pin::new(&mut self.inner).poll(cx)
    }
}

async fn dial_from_any_port(address: Multiaddr, opts: DialOpts) -> io::Result<<Inner as Transport>::Output> {
    tracing::debug!(%address, "the listening port is in use by another socket, dialling from another port");
    let dialled = sockets().dial(address, DialOpts { port_use: PortUse::New, ..opts });
    dialled.map_err(io::Error::other)?.await
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::core::Endpoint;
    use libp2p::multiaddr::Protocol;
    use std::future::poll_fn;
    use std::net::TcpListener;

    fn port_of(address: &Multiaddr) -> u16 {
        let mut ports =
            address.iter().filter_map(|part| if let Protocol::Tcp(port) = part { Some(port) } else { None });
        ports.next().expect("a TCP address")
    }

    /// Listens at a free port of 127.0.0.1.
    async fn listen() -> (TcpTransport, u16) {
        let mut transport = TcpTransport::default();
        transport.listen_on(ListenerId::next(), "/ip4/127.0.0.1/tcp/0".parse().expect("address")).expect("listens");
        loop {
            let event = poll_fn(|cx| Pin::new(&mut transport).poll(cx)).await;
            if let TransportEvent::NewAddress { listen_addr, .. } = event {
                return (transport, port_of(&listen_addr));
            }
        }
    }

    /// The port that the peer sees of a dial.
    async fn port_of_dial(transport: &mut TcpTransport, peer: &TcpListener) -> u16 {
        let address = format!("/ip4/127.0.0.1/tcp/{}", peer.local_addr().expect("bound").port());
        let opts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::Reuse };
        let dialled = transport.dial(address.parse().expect("address"), opts).expect("dials");
        let _connection = dialled.await.expect("connects");
        peer.accept().expect("accepts").1.port()
    }

    #[tokio::test]
    async fn a_dial_uses_another_port_if_the_listening_port_is_taken_at_another_address() {
        let peer = TcpListener::bind("127.0.0.1:0").expect("binds");
        // Any socket of the machine may have a port of the ephemeral range, so that a listener whose port nobody has is
        // looked for.
        for _ in 0..20 {
            let (mut transport, listening) = listen().await;
            if port_of_dial(&mut transport, &peer).await != listening {
                continue;
            }
            let Ok(_other) = TcpListener::bind(("127.0.0.2", listening)) else { continue };
            assert_ne!(port_of_dial(&mut transport, &peer).await, listening);
            return;
        }
        panic!("no dial came from the listening port");
    }
}
