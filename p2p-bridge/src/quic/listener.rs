//! A listening socket: its addresses, and inbound connections.

use super::budget::Budget;
use super::connection::{Connection, handshake};
use super::handshakes::{Handshakes, Verdict};
use super::socket::endpoint;
use super::{Config, Error, address};
use crate::udp;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{self, BoxStream, StreamExt as _};
use if_watch::IfEvent;
use if_watch::tokio::IfWatcher;
use libp2p::PeerId;
use libp2p::core::transport::{ListenerId, TransportEvent};
use quinn::{Endpoint, Incoming, VarInt};
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::task::{Context, Poll};
use std::time::Instant;

/// How many handshakes are refused before the swarm's task does something else.
const REFUSALS_MAX: usize = 64;

/// A handshake under way.
pub type Handshake = BoxFuture<'static, Result<(PeerId, Connection), Error>>;
type Event = TransportEvent<Handshake, Error>;

/// A listening socket.
pub(super) struct Listener {
    id: ListenerId,
    endpoint: Endpoint,
    /// The same socket, to send packets that are not QUIC's.
    socket: UdpSocket,
    bound: SocketAddr,
    incoming: BoxStream<'static, Incoming>,
    handshakes: Handshakes,
    budget: Budget,
    addresses: Addresses,
    /// Whether its end must still be reported.
    is_closed: bool,
}

/// The addresses that a socket listens at.
enum Addresses {
    /// The one that it is bound to, and whether that was reported.
    One { is_reported: bool },
    /// Those of all interfaces, as they come and go.
    Interfaces { watcher: Box<IfWatcher>, known: HashSet<IpAddr> },
}

impl Listener {
    /// Binds a socket. Dials may use it as well.
    pub fn bind(id: ListenerId, at: SocketAddr, config: Config, handshakes: Handshakes) -> Result<Self, Error> {
        let socket = udp::bind(at)?;
        let bound = socket.local_addr()?;
        let addresses = if bound.ip().is_unspecified() {
            Addresses::Interfaces { watcher: Box::new(IfWatcher::new()?), known: HashSet::new() }
        } else {
            Addresses::One { is_reported: false }
        };
        let for_quic = socket.try_clone()?;
        let endpoint = endpoint(config.endpoint, Some(config.server), for_quic)?;
        let accepting = |endpoint: Endpoint| async move {
            let incoming = endpoint.accept().await?;
            Some((incoming, endpoint))
        };
        let incoming = stream::unfold(endpoint.clone(), accepting).boxed();
        let (budget, is_closed) = (config.budget, false);
        Ok(Self { id, endpoint, socket, bound, incoming, handshakes, budget, addresses, is_closed })
    }

    pub fn id(&self) -> ListenerId {
        self.id
    }

    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Another handle of the socket.
    pub fn socket(&self) -> io::Result<UdpSocket> {
        self.socket.try_clone()
    }

    /// Whether packets to an address can be sent from this socket.
    pub fn reaches(&self, peer: IpAddr) -> bool {
        let is_of_interfaces = match &self.addresses {
            Addresses::One { .. } => self.bound.ip().is_loopback() == peer.is_loopback(),
            Addresses::Interfaces { known, .. } => !peer.is_loopback() || known.iter().any(IpAddr::is_loopback),
        };
        !self.is_closed && self.bound.is_ipv4() == peer.is_ipv4() && is_of_interfaces
    }

    /// Ends the listener and all connections of its socket.
    pub fn close(&mut self) {
        self.endpoint.close(VarInt::from_u32(0), &[]);
        self.is_closed = true;
    }

    /// The next event. After [`TransportEvent::ListenerClosed`], the listener must be dropped.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if self.is_closed {
            return Poll::Ready(TransportEvent::ListenerClosed { listener_id: self.id, reason: Ok(()) });
        }
        if let Poll::Ready(event) = self.poll_addresses(cx) {
            return Poll::Ready(event);
        }
        for _ in 0..REFUSALS_MAX {
            match std::task::ready!(self.incoming.poll_next_unpin(cx)) {
                Some(incoming) => {
                    if let Some(event) = self.accept(incoming) {
                        return Poll::Ready(event);
                    }
                }
                None => return Poll::Ready(TransportEvent::ListenerClosed { listener_id: self.id, reason: Ok(()) }),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_addresses(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        let (listener_id, bound) = (self.id, self.bound);
        let listening = |ip| address::of(SocketAddr::new(ip, bound.port()));
        match &mut self.addresses {
            Addresses::One { is_reported: true } => Poll::Pending,
            Addresses::One { is_reported } => {
                *is_reported = true;
                Poll::Ready(TransportEvent::NewAddress { listener_id, listen_addr: listening(bound.ip()) })
            }
            Addresses::Interfaces { watcher, known } => loop {
                match std::task::ready!(watcher.poll_if_event(cx)) {
                    Ok(IfEvent::Up(network)) if network.addr().is_ipv4() == bound.is_ipv4() => {
                        known.insert(network.addr());
                        let listen_addr = listening(network.addr());
                        return Poll::Ready(TransportEvent::NewAddress { listener_id, listen_addr });
                    }
                    Ok(IfEvent::Down(network)) if network.addr().is_ipv4() == bound.is_ipv4() => {
                        known.remove(&network.addr());
                        let listen_addr = listening(network.addr());
                        return Poll::Ready(TransportEvent::AddressExpired { listener_id, listen_addr });
                    }
                    Ok(_) => {}
                    Err(error) => {
                        return Poll::Ready(TransportEvent::ListenerError { listener_id, error: error.into() });
                    }
                }
            },
        }
    }

    /// Begins an inbound handshake, unless there are too many.
    fn accept(&self, incoming: Incoming) -> Option<Event> {
        let peer = incoming.remote_address();
        let slot = match self.handshakes.begin(peer.ip(), incoming.remote_address_validated(), Instant::now()) {
            Verdict::Accept(slot) => slot,
            Verdict::Validate => {
                self.budget.metrics().retries.inc();
                // An error means that the peer has proved its address already, or cannot be asked to.
                if let Err(error) = incoming.retry() {
                    error.into_incoming().refuse();
                }
                return None;
            }
            Verdict::Refuse => {
                self.budget.metrics().refused.inc();
                incoming.refuse();
                return None;
            }
        };
        // A packet that is not a handshake. Any host can send one, so it is no event.
        let connecting =
            incoming.accept().inspect_err(|error| tracing::debug!(%peer, %error, "not a handshake")).ok()?;
        let budget = self.budget.clone();
        let upgrade = async move {
            let connected = handshake(connecting, budget).await?;
            slot.succeed();
            Ok(connected)
        };
        Some(TransportEvent::Incoming {
            listener_id: self.id,
            upgrade: upgrade.boxed(),
            local_addr: address::of(self.bound),
            send_back_addr: address::of(peer),
        })
    }
}
