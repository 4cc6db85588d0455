//! Address-filtering wrappers around the transports: the last check of every dial.
//!
//! Addresses are filtered where they are received ([`crate::scope::AddressPolicy`]). But there are many such places, libp2p's
//! behaviours among them, and the IP address of a host name is known only when the DNS transport resolves it. So every
//! dial passes two more wrappers:
//!
//! - [`DialFilter`], around all transports. It rejects unsupported shapes, and decides to which sockets the dial may
//!   connect.
//! - [`SocketFilter`], directly above TCP and QUIC, below DNS. It connects to the IP address in the multiaddr, or to
//!   one that a name was resolved to: for the operator's names ([`OperatorAddresses`]) to any address, for others only
//!   to public ones.
//!
//! The outer wrapper passes its decision to the inner one in a task-local variable while the dial is polled, because
//! the transports between them pass on nothing but the address.

use crate::dialable::{Host, Shape, ShapeError, TransportKind, first_hop, is_free_port};
use crate::scope::Reach;
use futures::future::{BoxFuture, FutureExt as _, MapErr, TryFuture, TryFutureExt as _};
use libp2p::Multiaddr;
use libp2p::core::transport::{DialOpts, ListenerId, Transport, TransportError, TransportEvent};
use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

tokio::task_local! {
    /// Where the dial that is being polled may connect.
    static PERMIT: Permit;
}

/// Why an address is not dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its shape is not supported.
    #[error("not dialled: {0}")]
    Shape(ShapeError),
    /// The socket's address differs from the multiaddr.
    #[error("not dialled: the resolved address differs from the given one")]
    Mismatch,
    /// An untrusted name was resolved to an address that is not public.
    #[error("not dialled: the name was resolved to a private address, or the port belongs to another service")]
    NotPublic,
    /// The IP address is not assigned to any host.
    #[error("not dialled: no host can have this IP address")]
    Nowhere,
}

/// The error of a filtered transport.
#[derive(Debug, thiserror::Error)]
pub enum Error<E> {
    /// The address was refused.
    #[error(transparent)]
    Refused(Refusal),
    /// The error of the inner transport.
    #[error(transparent)]
    Transport(E),
}

/// Where a dial may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Permit {
    /// Only to this IP address and port, by this transport.
    At(IpAddr, u16, SocketKind),
    /// To any address that the name is resolved to.
    Anywhere,
    /// To any public address that the name is resolved to.
    Public,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketKind {
    Tcp,
    Quic,
}

impl Permit {
    /// The permit of an address. `trusted`: the operator gave it.
    fn of(address: &Multiaddr, trusted: bool) -> Result<Self, Refusal> {
        let shape = Shape::read(address).map_err(Refusal::Shape)?;
        let kind =
            if matches!(shape.transport, TransportKind::Quic { .. }) { SocketKind::Quic } else { SocketKind::Tcp };
        Ok(match (shape.host, shape.transport) {
            (
                Host::Ip(ip),
                TransportKind::Tcp { port } | TransportKind::WebSocket { port, .. } | TransportKind::Quic { port },
            ) => Self::At(ip, port, kind),
            _ if trusted => Self::Anywhere,
            _ => Self::Public,
        })
    }

    /// Whether a socket may connect to an address, as passed to the socket's transport.
    fn check(self, address: &Multiaddr) -> Result<(), Refusal> {
        let shape = Shape::read(address).map_err(Refusal::Shape)?;
        let (ip, port, kind) = match (shape.host, shape.transport, shape.circuit) {
            (Host::Ip(ip), TransportKind::Tcp { port }, None) => (ip, port, SocketKind::Tcp),
            (Host::Ip(ip), TransportKind::Quic { port }, None) => (ip, port, SocketKind::Quic),
            _ => return Err(Refusal::Mismatch),
        };
        if Reach::of(ip) == Reach::Nowhere {
            return Err(Refusal::Nowhere);
        }
        match self {
            Self::At(..) if self == Self::At(ip, port, kind) => Ok(()),
            Self::At(..) => Err(Refusal::Mismatch),
            Self::Anywhere => Ok(()),
            Self::Public if Reach::of(ip) == Reach::Public && is_free_port(port) => Ok(()),
            Self::Public => Err(Refusal::NotPublic),
        }
    }
}

/// The addresses that the operator gave, whose names may be resolved to any IP address. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct OperatorAddresses {
    /// Whether all addresses are trusted.
    all: bool,
    /// First hops, with reference counts.
    trusted: Arc<Mutex<HashMap<Multiaddr, usize>>>,
}

/// Keeps the operator's addresses for one connection trusted until it is dropped.
#[derive(Debug)]
pub struct TrustGuard {
    addresses: OperatorAddresses,
    first_hops: Vec<Multiaddr>,
}

impl OperatorAddresses {
    /// Trusts the addresses of the settings, or `all` addresses.
    pub fn new<'a>(all: bool, settings: impl IntoIterator<Item = &'a Multiaddr>) -> Self {
        let trusted = settings.into_iter().map(|address| (first_hop(address), 1)).collect();
        Self { all, trusted: Arc::new(Mutex::new(trusted)) }
    }

    /// Trusts addresses until the returned guard is dropped.
    #[must_use]
    pub fn trust(&self, addresses: &[Multiaddr]) -> TrustGuard {
        let first_hops: Vec<Multiaddr> = addresses.iter().map(first_hop).collect();
        let mut trusted = self.trusted();
        for first_hop in &first_hops {
            *trusted.entry(first_hop.clone()).or_default() += 1;
        }
        drop(trusted);
        TrustGuard { addresses: self.clone(), first_hops }
    }

    /// Whether the operator gave an address. The address of a relay covers all circuits through it.
    pub fn has(&self, address: &Multiaddr) -> bool {
        self.all || self.trusted().contains_key(&first_hop(address))
    }

    fn trusted(&self) -> MutexGuard<'_, HashMap<Multiaddr, usize>> {
        // No code that holds the lock can leave the table half changed.
        self.trusted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TrustGuard {
    fn drop(&mut self) {
        let mut trusted = self.addresses.trusted();
        for first_hop in &self.first_hops {
            if let Some(callers) = trusted.get_mut(first_hop) {
                *callers -= 1;
                if *callers == 0 {
                    trusted.remove(first_hop);
                }
            }
        }
    }
}

/// All transports, with a filter of address shapes.
pub struct DialFilter<T> {
    inner: T,
    operator: OperatorAddresses,
}

impl<T> DialFilter<T> {
    /// Wraps a transport, which must have [`SocketFilter`] below it.
    pub fn new(inner: T, operator: OperatorAddresses) -> Self {
        Self { inner, operator }
    }
}

impl<T> Transport for DialFilter<T>
where
    T: Transport + Unpin,
    T::Dial: Send + 'static,
    T::Error: Send + 'static,
{
    type Output = T::Output;
    type Error = Error<T::Error>;
    type ListenerUpgrade = Upgrade<T::ListenerUpgrade, T::Error>;
    type Dial = BoxFuture<'static, Result<T::Output, Self::Error>>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<Self::Error>> {
        self.inner.listen_on(id, address).map_err(|error| error.map(Error::Transport))
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, opts: DialOpts) -> Result<Self::Dial, TransportError<Self::Error>> {
        let permit = Permit::of(&address, self.operator.has(&address));
        let permit = permit.map_err(|refusal| TransportError::Other(Error::Refused(refusal)))?;
        // The scope also covers transports that connect immediately, without being polled.
        let dial = PERMIT.sync_scope(permit, || self.inner.dial(address, opts));
        let dial = dial.map_err(|error| error.map(Error::Transport))?;
        Ok(PERMIT.scope(permit, dial).map_err(Error::Transport).boxed())
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, Self::Error>> {
        Pin::new(&mut self.inner).poll(cx).map(filtered)
    }
}

/// A transport that opens sockets, with a filter of their destinations.
pub struct SocketFilter<T> {
    inner: T,
}

impl<T> SocketFilter<T> {
    /// Wraps a transport, which must have [`DialFilter`] above it.
    pub fn new(inner: T) -> Self {
        Self { inner }
    }
}

impl<T> Transport for SocketFilter<T>
where
    T: Transport + Unpin,
{
    type Output = T::Output;
    type Error = Error<T::Error>;
    type ListenerUpgrade = Upgrade<T::ListenerUpgrade, T::Error>;
    type Dial = Upgrade<T::Dial, T::Error>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<Self::Error>> {
        self.inner.listen_on(id, address).map_err(|error| error.map(Error::Transport))
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, opts: DialOpts) -> Result<Self::Dial, TransportError<Self::Error>> {
        let checked = PERMIT.try_with(|permit| permit.check(&address)).unwrap_or(Err(Refusal::Mismatch));
        checked.map_err(|refusal| TransportError::Other(Error::Refused(refusal)))?;
        let dial = self.inner.dial(address, opts).map_err(|error| error.map(Error::Transport))?;
        Ok(dial.map_err(Error::Transport as fn(T::Error) -> Self::Error))
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, Self::Error>> {
        Pin::new(&mut self.inner).poll(cx).map(filtered)
    }
}

/// An upgrade that maps the inner transport's errors.
type Upgrade<U, E> = MapErr<U, fn(E) -> Error<E>>;

/// An event of the inner transport with mapped errors.
fn filtered<U, E>(event: TransportEvent<U, E>) -> TransportEvent<Upgrade<U, E>, Error<E>>
where
    U: TryFuture<Error = E>,
{
    let wrap: fn(E) -> Error<E> = Error::Transport;
    event.map_upgrade(|upgrade| upgrade.map_err(wrap)).map_err(wrap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialable::tests::Recorder;
    use libp2p::core::Endpoint;
    use libp2p::core::transport::{OrTransport, PortUse};
    use libp2p::{dns, websocket};
    use std::net::SocketAddr;

    const PEER: &str = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo";

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Dials through libp2p's WebSocket and DNS transports; returns the sockets that were opened, and the error.
    async fn dial(text: &str, operator: OperatorAddresses) -> (Vec<SocketAddr>, String) {
        let recorder = Recorder::default();
        let resolving = || {
            let (config, opts) = (dns::ResolverConfig::default(), dns::ResolverOpts::default());
            dns::tokio::Transport::custom(SocketFilter::new(recorder.clone()), config, opts)
        };
        let opts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
        let over_websocket = websocket::Config::new(resolving()).map(|_, _| ());
        let transports = OrTransport::new(over_websocket, resolving().map(|_, _| ()));
        let why = match DialFilter::new(transports, operator).dial(address(text), opts) {
            Ok(dial) => dial.await.err().map(|error| crate::errors::innermost(&error)),
            Err(TransportError::Other(error)) => Some(crate::errors::innermost(&error)),
            Err(TransportError::MultiaddrNotSupported(_)) => Some("not supported".to_owned()),
        };
        (recorder.dialled().into_iter().map(|(socket, _)| socket).collect(), why.unwrap_or_default())
    }

    #[tokio::test]
    async fn sockets_connect_only_to_the_address_given() {
        let at = |text: &str| vec![text.parse::<SocketAddr>().expect(text)];
        let table = [
            ("/ip4/8.8.8.8/tcp/4001", at("8.8.8.8:4001")),
            ("/ip4/127.0.0.1/tcp/4001", at("127.0.0.1:4001")),
            ("/ip4/127.0.0.1/tcp/4001/ws", at("127.0.0.1:4001")),
            ("/ip6/2606:4700::1/udp/4001/quic-v1", at("[2606:4700::1]:4001")),
            ("/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/5001", vec![]),
            ("/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/5001/ws", vec![]),
            ("/ip4/8.8.8.8/tcp/1/dns4/localhost/tcp/5001", vec![]),
            ("/ip4/8.8.8.8/tcp/5001/x-parity-ws/%2F%0D%0AHost:%20a", vec![]),
            ("/ip4/0.0.0.0/tcp/5001", vec![]),
            ("/ip4/255.255.255.255/udp/5001/quic-v1", vec![]),
            ("/ip4/224.0.0.251/udp/5353/quic-v1", vec![]),
            ("/ip4/8.8.8.8/tcp/0", vec![]),
        ];
        for (text, expected) in table {
            for operator in [OperatorAddresses::default(), OperatorAddresses::new(true, [])] {
                let (dialled, why) = dial(text, operator).await;
                assert_eq!(dialled, expected, "{text}");
                assert_eq!(why.starts_with("not dialled: "), expected.is_empty(), "{text}: {why}");
            }
        }
    }

    #[tokio::test]
    async fn names_are_checked_when_they_are_resolved() {
        const NAMES: [&str; 3] =
            ["/dns4/localhost/tcp/5001", "/dns/localhost/tcp/5001/ws", "/dns4/localhost/udp/5001/quic-v1"];
        for text in NAMES {
            let (dialled, why) = dial(text, OperatorAddresses::default()).await;
            assert!(dialled.is_empty() && why.contains("private address"), "{text}: {dialled:?} {why}");
            let trusted = address(&format!("{text}/p2p/{PEER}"));
            for operator in [OperatorAddresses::new(true, []), OperatorAddresses::new(false, [&trusted])] {
                let (dialled, why) = dial(text, operator).await;
                let to_loopback = |socket: &SocketAddr| socket.ip().is_loopback() && socket.port() == 5001;
                assert!(!dialled.is_empty() && dialled.iter().all(to_loopback), "{text}: {dialled:?} {why}");
            }
        }
    }

    #[test]
    fn permits_decide_where_a_dial_may_connect() {
        let check = |from: &str, trusted, to: &str| {
            Permit::of(&address(from), trusted).and_then(|permit| permit.check(&address(to)))
        };
        let (name, nested) = ("/dns4/example.org/tcp/4001", "/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/1");
        // The address, whether the operator gave it, the resolved address, and whether it is dialled.
        let table = [
            (name, false, "/ip4/8.8.8.8/tcp/4001", Ok(())),
            (name, false, "/ip4/10.0.0.1/tcp/4001", Err(Refusal::NotPublic)),
            (name, false, "/ip6/::ffff:127.0.0.1/tcp/4001", Err(Refusal::NotPublic)),
            (name, false, "/ip4/169.254.169.254/tcp/4001", Err(Refusal::NotPublic)),
            (name, false, "/ip6/64:ff9b::127.0.0.1/tcp/4001", Err(Refusal::Nowhere)),
            (name, false, "/ip4/8.8.8.8/tcp/25", Err(Refusal::NotPublic)),
            (name, true, "/ip4/10.0.0.1/tcp/4001", Ok(())),
            (name, true, "/ip4/0.0.0.0/tcp/4001", Err(Refusal::Nowhere)),
            (name, true, "/ip4/8.8.8.8/tcp/4001/ws", Err(Refusal::Mismatch)),
            ("/dnsaddr/example.org", true, "/ip4/8.8.8.8/udp/4001/quic-v1", Ok(())),
            ("/ip4/8.8.8.8/tcp/1", true, "/ip4/8.8.8.8/tcp/1", Ok(())),
            ("/ip4/8.8.8.8/tcp/1", true, "/ip4/8.8.8.8/tcp/2", Err(Refusal::Mismatch)),
            ("/ip4/8.8.8.8/tcp/1", true, "/ip4/8.8.8.8/udp/1/quic-v1", Err(Refusal::Mismatch)),
            ("/ip4/8.8.8.8/tcp/1", true, "/ip4/127.0.0.1/tcp/1", Err(Refusal::Mismatch)),
        ];
        for (from, trusted, to, expected) in table {
            assert_eq!(check(from, trusted, to), expected, "{from} {trusted} {to}");
        }
        for to in [nested, "/ip4/8.8.8.8/tcp/1/dns4/localhost/tcp/1"] {
            assert!(matches!(check("/dnsaddr/example.org", true, to), Err(Refusal::Shape(_))), "{to}");
        }
    }

    #[test]
    fn an_address_is_trusted_until_the_last_guard_is_dropped() {
        let relay = address(&format!("/dns4/relay/tcp/4001/p2p/{PEER}"));
        let through = address(&format!("/dns4/relay/tcp/4001/p2p/{PEER}/p2p-circuit/p2p/{PEER}"));
        let (settled, other) = (address("/dns4/kubo/tcp/4001"), address("/dns4/other/tcp/4001"));
        let operator = OperatorAddresses::new(false, [&settled]);
        let trusted = || [&relay, &through, &settled, &other].map(|address| operator.has(address));
        assert_eq!(trusted(), [false, false, true, false]);
        let (one, another) =
            (operator.trust(std::slice::from_ref(&through)), operator.trust(&[relay.clone(), settled.clone()]));
        assert_eq!(trusted(), [true, true, true, false]);
        drop(one);
        assert_eq!(trusted(), [true, true, true, false]);
        drop(another);
        assert_eq!(trusted(), [false, false, true, false]);
    }
}
