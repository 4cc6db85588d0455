//! [`QuicTransport`]: which socket a dial uses, and the events of all listeners.

use super::connection::{Connection, handshake};
use super::handshakes::Handshakes;
use super::hole_punching::{HolePunches, punch};
use super::listener::{Handshake, Listener};
use super::socket::endpoint;
use super::{Budget, Config, Error, QuicConfigError, address};
use crate::udp;
use futures::future::FutureExt as _;
use libp2p::core::Endpoint as Role;
use libp2p::core::transport::{DialOpts, ListenerId, PortUse, Transport, TransportError, TransportEvent};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId};
use quinn::Endpoint;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// The server name of dials, which is not sent because it is an IP address ([`crate::peer_tls`]).
const NO_SERVER_NAME: &str = "0.0.0.0";

/// QUIC. See the module's documentation.
pub struct QuicTransport {
    config: Config,
    listeners: Vec<Listener>,
    /// Sockets for dials while nothing listens, for IPv4 and IPv6.
    dialers: [Option<Endpoint>; 2],
    pub(super) handshakes: Handshakes,
    hole_punches: HolePunches,
    waker: Option<Waker>,
}

impl QuicTransport {
    /// Creates the transport.
    ///
    /// # Errors
    /// If the certificate cannot be generated.
    pub fn new(keypair: &Keypair, budget: Budget) -> Result<Self, QuicConfigError> {
        Ok(Self {
            config: Config::new(keypair, budget)?,
            listeners: Vec::new(),
            dialers: [None, None],
            handshakes: Handshakes::default(),
            hole_punches: HolePunches::default(),
            waker: None,
        })
    }

    /// The listener that dials to an address use. If there are several, they share the addresses.
    fn listener_for(&self, peer: SocketAddr) -> Option<&Listener> {
        let eligible: Vec<_> = self.listeners.iter().filter(|listener| listener.reaches(peer.ip())).collect();
        let mut hasher = DefaultHasher::new();
        peer.hash(&mut hasher);
        let choice = hasher.finish().checked_rem(eligible.len() as u64)?;
        eligible.get(usize::try_from(choice).ok()?).copied()
    }

    /// A socket that does not listen.
    fn dialer(&self, peer: SocketAddr) -> Result<Endpoint, Error> {
        let any = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = udp::bind(SocketAddr::new(any, 0))?;
        Ok(endpoint(self.config.endpoint.clone(), None, socket)?)
    }

    fn endpoint_for(&mut self, peer: SocketAddr, port_use: PortUse) -> Result<Endpoint, Error> {
        if port_use == PortUse::New {
            return self.dialer(peer);
        }
        if let Some(listener) = self.listener_for(peer) {
            return Ok(listener.endpoint().clone());
        }
        let family = usize::from(peer.is_ipv6());
        if let Some(endpoint) = &self.dialers[family] {
            return Ok(endpoint.clone());
        }
        let endpoint = self.dialer(peer)?;
        self.dialers[family] = Some(endpoint.clone());
        Ok(endpoint)
    }

    fn dial_as_dialer(&mut self, peer: SocketAddr, port_use: PortUse) -> Result<Handshake, Error> {
        let endpoint = self.endpoint_for(peer, port_use)?;
        let (client, budget) = (self.config.client.clone(), self.config.budget.clone());
        let dial = async move {
            let connecting = endpoint.connect_with(client, peer, NO_SERVER_NAME)?;
            handshake(connecting, budget).await
        };
        Ok(dial.boxed())
    }

    /// Waits for the peer's dial while packets open the NAT for it.
    fn dial_as_listener(&mut self, socket: SocketAddr, peer: PeerId) -> Result<Handshake, Error> {
        let from = self.listener_for(socket).ok_or(Error::NoListener)?.socket()?;
        let arrived = self.hole_punches.begin(socket)?;
        let dial = async move {
            let (id, connection) = punch(from, socket, arrived).await?.await?;
            if id != peer {
                tracing::debug!(expected = %peer, %id, %socket, "another peer came through the punched hole");
            }
            Ok((id, connection))
        };
        Ok(dial.boxed())
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Transport for QuicTransport {
    type Output = (PeerId, Connection);
    type Error = Error;
    type ListenerUpgrade = Handshake;
    type Dial = Handshake;

    fn listen_on(&mut self, id: ListenerId, at: Multiaddr) -> Result<(), TransportError<Error>> {
        let Some((socket, _)) = address::parse(&at) else { return Err(TransportError::MultiaddrNotSupported(at)) };
        let listener = Listener::bind(id, socket, self.config.clone(), self.handshakes.clone());
        self.listeners.push(listener.map_err(TransportError::Other)?);
        // Dials use the listener from now on. The other socket is closed when its last connection has ended.
        self.dialers[usize::from(socket.is_ipv6())] = None;
        self.wake();
        Ok(())
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        let Some(listener) = self.listeners.iter_mut().find(|listener| listener.id() == id) else { return false };
        listener.close();
        self.wake();
        true
    }

    fn dial(&mut self, to: Multiaddr, opts: DialOpts) -> Result<Handshake, TransportError<Error>> {
        let parsed = address::parse(&to).filter(|(socket, _)| socket.port() != 0 && !socket.ip().is_unspecified());
        let Some((socket, peer)) = parsed else { return Err(TransportError::MultiaddrNotSupported(to)) };
        let dial = match (opts.role, opts.port_use, peer) {
            (Role::Dialer, port_use, _) | (Role::Listener, port_use @ PortUse::Reuse, _) => {
                self.dial_as_dialer(socket, port_use)
            }
            (Role::Listener, PortUse::New, Some(peer)) => self.dial_as_listener(socket, peer),
            (Role::Listener, PortUse::New, None) => return Err(TransportError::MultiaddrNotSupported(to)),
        };
        dial.map_err(TransportError::Other)
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TransportEvent<Handshake, Error>> {
        let this = &mut *self;
        let mut index = 0;
        while let Some(listener) = this.listeners.get_mut(index) {
            match listener.poll(cx) {
                Poll::Pending => index += 1,
                Poll::Ready(TransportEvent::Incoming { listener_id, upgrade, local_addr, send_back_addr }) => {
                    let upgrade = match address::parse(&send_back_addr) {
                        Some((socket, _)) => this.hole_punches.deliver(socket, upgrade),
                        None => Some(upgrade),
                    };
                    if let Some(upgrade) = upgrade {
                        // The next listener has its turn.
                        this.listeners.rotate_left(index + 1);
                        return Poll::Ready(TransportEvent::Incoming {
                            listener_id,
                            upgrade,
                            local_addr,
                            send_back_addr,
                        });
                    }
                }
                Poll::Ready(event) => {
                    if matches!(event, TransportEvent::ListenerClosed { .. }) {
                        this.listeners.remove(index);
                    }
                    return Poll::Ready(event);
                }
            }
        }
        this.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
