//! Address-filtering wrappers around the transports: nothing is dialled but what was judged.
//!
//! Addresses are filtered where they come in ([`crate::scope::Borders`]). But they come in at many places, libp2p's behaviours
//! among them, and a name is not known to lead anywhere until it is resolved, deep within the transports. So there are two
//! wrappers more, which every dial passes:
//!
//! - [`Dials`], around all transports. It refuses what is of no known shape, and says how the rest may end.
//! - [`Sockets`], right above TCP and QUIC, below the DNS. It connects where the address said, if that was an IP address, and
//!   otherwise only where a name may lead: for the names that the operator gave ([`OperatorAddresses`]) anywhere, for others to
//!   public addresses.
//!
//! One tells the other in a variable of the task, for the time that the dial is polled: no transport between them takes
//! anything along but the address.

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
    /// How the dial that is being polled may end.
    static PERMIT: Permit;
}

/// Why an address is not dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is of no known shape.
    #[error("not dialled: {0}")]
    Shape(ShapeError),
    /// Nothing was permitted, or something else.
    #[error("not dialled: it leads elsewhere than it said")]
    Elsewhere,
    /// A name that is not the operator's led there.
    #[error("not dialled: its name leads to a private address, or to a port of another service")]
    NotPublic,
    /// Nobody is there.
    #[error("not dialled: no host has this address")]
    Nowhere,
}

/// What went wrong with a transport that is filtered.
#[derive(Debug, thiserror::Error)]
pub enum Error<E> {
    /// The address was refused.
    #[error(transparent)]
    Refused(Refusal),
    /// What the transport itself says.
    #[error(transparent)]
    Transport(E),
}

/// How a dial may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Permit {
    /// At this IP address, port and transport, whatever the transports in between make of it.
    At(IpAddr, u16, Kind),
    /// Wherever the name leads.
    Anywhere,
    /// Wherever the name leads, if that is public.
    Public,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tcp,
    Quic,
}

impl Permit {
    /// What an address permits. `trusted`: the operator gave it.
    fn of(address: &Multiaddr, trusted: bool) -> Result<Self, Refusal> {
        let shape = Shape::read(address).map_err(Refusal::Shape)?;
        let kind = if matches!(shape.transport, TransportKind::Quic { .. }) { Kind::Quic } else { Kind::Tcp };
        Ok(match (shape.host, shape.transport) {
            (
                Host::Ip(ip),
                TransportKind::Tcp { port } | TransportKind::WebSocket { port, .. } | TransportKind::Quic { port },
            ) => Self::At(ip, port, kind),
            _ if trusted => Self::Anywhere,
            _ => Self::Public,
        })
    }

    /// Whether a socket may connect to an address, which is as the transport is handed it.
    fn check(self, address: &Multiaddr) -> Result<(), Refusal> {
        let shape = Shape::read(address).map_err(Refusal::Shape)?;
        let (ip, port, kind) = match (shape.host, shape.transport, shape.circuit) {
            (Host::Ip(ip), TransportKind::Tcp { port }, None) => (ip, port, Kind::Tcp),
            (Host::Ip(ip), TransportKind::Quic { port }, None) => (ip, port, Kind::Quic),
            _ => return Err(Refusal::Elsewhere),
        };
        if Reach::of(ip) == Reach::Nowhere {
            return Err(Refusal::Nowhere);
        }
        match self {
            Self::At(..) if self == Self::At(ip, port, kind) => Ok(()),
            Self::At(..) => Err(Refusal::Elsewhere),
            Self::Anywhere => Ok(()),
            Self::Public if Reach::of(ip) == Reach::Public && is_free_port(port) => Ok(()),
            Self::Public => Err(Refusal::NotPublic),
        }
    }
}

/// The addresses that the operator gave, whose names may lead anywhere. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct OperatorAddresses {
    /// Whether all names may, whoever gave them.
    all: bool,
    /// First hops, and how many callers gave each.
    given: Arc<Mutex<HashMap<Multiaddr, usize>>>,
}

/// Addresses that the operator gave for one connection: they are trusted until this is dropped.
#[derive(Debug)]
pub struct Given {
    addresses: OperatorAddresses,
    first_hops: Vec<Multiaddr>,
}

impl OperatorAddresses {
    /// Those of the settings, or `all` that there are.
    pub fn new<'a>(all: bool, settings: impl IntoIterator<Item = &'a Multiaddr>) -> Self {
        let given = settings.into_iter().map(|address| (first_hop(address), 1)).collect();
        Self { all, given: Arc::new(Mutex::new(given)) }
    }

    /// Trusts addresses until what is returned is dropped.
    #[must_use]
    pub fn give(&self, addresses: &[Multiaddr]) -> Given {
        let first_hops: Vec<Multiaddr> = addresses.iter().map(first_hop).collect();
        let mut given = self.given();
        for first_hop in &first_hops {
            *given.entry(first_hop.clone()).or_default() += 1;
        }
        drop(given);
        Given { addresses: self.clone(), first_hops }
    }

    /// Whether the operator gave an address. A relay's counts as given with each circuit through it.
    pub fn has(&self, address: &Multiaddr) -> bool {
        self.all || self.given().contains_key(&first_hop(address))
    }

    fn given(&self) -> MutexGuard<'_, HashMap<Multiaddr, usize>> {
        // No code that holds the lock can leave the table half changed.
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        let mut given = self.addresses.given();
        for first_hop in &self.first_hops {
            if let Some(callers) = given.get_mut(first_hop) {
                *callers -= 1;
                if *callers == 0 {
                    given.remove(first_hop);
                }
            }
        }
    }
}

/// All transports, behind the filter of shapes.
pub struct Dials<T> {
    inner: T,
    operator: OperatorAddresses,
}

impl<T> Dials<T> {
    /// Filters what is dialled through a transport, which must have [`Sockets`] below it.
    pub fn new(inner: T, operator: OperatorAddresses) -> Self {
        Self { inner, operator }
    }
}

impl<T> Transport for Dials<T>
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
        // Transports that connect at once, without being polled, hear of it too.
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

/// A transport that opens sockets, behind the filter of where a dial may end.
pub struct Sockets<T> {
    inner: T,
}

impl<T> Sockets<T> {
    /// Filters where a transport connects, which must have [`Dials`] above it.
    pub fn new(inner: T) -> Self {
        Self { inner }
    }
}

impl<T> Transport for Sockets<T>
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
        let checked = PERMIT.try_with(|permit| permit.check(&address)).unwrap_or(Err(Refusal::Elsewhere));
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

/// An upgrade whose errors are those of a filtered transport.
type Upgrade<U, E> = MapErr<U, fn(E) -> Error<E>>;

/// An event of one.
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

    /// Dials through libp2p's WebSocket and DNS transports, and says where a socket was opened and why none was.
    async fn dial(text: &str, operator: OperatorAddresses) -> (Vec<SocketAddr>, String) {
        let recorder = Recorder::default();
        let resolving = || {
            let (config, opts) = (dns::ResolverConfig::default(), dns::ResolverOpts::default());
            dns::tokio::Transport::custom(Sockets::new(recorder.clone()), config, opts)
        };
        let opts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
        let over_websocket = websocket::Config::new(resolving()).map(|_, _| ());
        let transports = OrTransport::new(over_websocket, resolving().map(|_, _| ()));
        let why = match Dials::new(transports, operator).dial(address(text), opts) {
            Ok(dial) => dial.await.err().map(|error| crate::connecting::innermost(&error)),
            Err(TransportError::Other(error)) => Some(crate::connecting::innermost(&error)),
            Err(TransportError::MultiaddrNotSupported(_)) => Some("not supported".to_owned()),
        };
        (recorder.dialled().into_iter().map(|(socket, _)| socket).collect(), why.unwrap_or_default())
    }

    #[tokio::test]
    async fn a_socket_is_opened_where_the_address_said_or_not_at_all() {
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
    async fn what_a_name_stands_for_is_judged_when_it_is_resolved() {
        const NAMES: [&str; 3] =
            ["/dns4/localhost/tcp/5001", "/dns/localhost/tcp/5001/ws", "/dns4/localhost/udp/5001/quic-v1"];
        for text in NAMES {
            let (dialled, why) = dial(text, OperatorAddresses::default()).await;
            assert!(dialled.is_empty() && why.contains("private address"), "{text}: {dialled:?} {why}");
            let given = address(&format!("{text}/p2p/{PEER}"));
            for operator in [OperatorAddresses::new(true, []), OperatorAddresses::new(false, [&given])] {
                let (dialled, why) = dial(text, operator).await;
                let to_loopback = |socket: &SocketAddr| socket.ip().is_loopback() && socket.port() == 5001;
                assert!(!dialled.is_empty() && dialled.iter().all(to_loopback), "{text}: {dialled:?} {why}");
            }
        }
    }

    #[test]
    fn where_a_dial_may_end() {
        let check = |from: &str, trusted, to: &str| {
            Permit::of(&address(from), trusted).and_then(|permit| permit.check(&address(to)))
        };
        let (name, nested) = ("/dns4/example.org/tcp/4001", "/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/1");
        // The address, whether the operator gave it, what it was resolved to, and whether that is dialled.
        let table = [
            (name, false, "/ip4/8.8.8.8/tcp/4001", Ok(())),
            (name, false, "/ip4/10.0.0.1/tcp/4001", Err(Refusal::NotPublic)),
            (name, false, "/ip6/::ffff:127.0.0.1/tcp/4001", Err(Refusal::NotPublic)),
            (name, false, "/ip4/169.254.169.254/tcp/4001", Err(Refusal::NotPublic)),
            (name, false, "/ip6/64:ff9b::127.0.0.1/tcp/4001", Err(Refusal::Nowhere)),
            (name, false, "/ip4/8.8.8.8/tcp/25", Err(Refusal::NotPublic)),
            (name, true, "/ip4/10.0.0.1/tcp/4001", Ok(())),
            (name, true, "/ip4/0.0.0.0/tcp/4001", Err(Refusal::Nowhere)),
            (name, true, "/ip4/8.8.8.8/tcp/4001/ws", Err(Refusal::Elsewhere)),
            ("/dnsaddr/example.org", true, "/ip4/8.8.8.8/udp/4001/quic-v1", Ok(())),
            ("/ip4/8.8.8.8/tcp/1", true, "/ip4/8.8.8.8/tcp/1", Ok(())),
            ("/ip4/8.8.8.8/tcp/1", true, "/ip4/8.8.8.8/tcp/2", Err(Refusal::Elsewhere)),
            ("/ip4/8.8.8.8/tcp/1", true, "/ip4/8.8.8.8/udp/1/quic-v1", Err(Refusal::Elsewhere)),
            ("/ip4/8.8.8.8/tcp/1", true, "/ip4/127.0.0.1/tcp/1", Err(Refusal::Elsewhere)),
        ];
        for (from, trusted, to, expected) in table {
            assert_eq!(check(from, trusted, to), expected, "{from} {trusted} {to}");
        }
        for to in [nested, "/ip4/8.8.8.8/tcp/1/dns4/localhost/tcp/1"] {
            assert!(matches!(check("/dnsaddr/example.org", true, to), Err(Refusal::Shape(_))), "{to}");
        }
    }

    #[test]
    fn an_address_is_trusted_for_as_long_as_somebody_gives_it() {
        let relay = address(&format!("/dns4/relay/tcp/4001/p2p/{PEER}"));
        let through = address(&format!("/dns4/relay/tcp/4001/p2p/{PEER}/p2p-circuit/p2p/{PEER}"));
        let (settled, other) = (address("/dns4/kubo/tcp/4001"), address("/dns4/other/tcp/4001"));
        let operator = OperatorAddresses::new(false, [&settled]);
        let trusted = || [&relay, &through, &settled, &other].map(|address| operator.has(address));
        assert_eq!(trusted(), [false, false, true, false]);
        let (one, another) =
            (operator.give(std::slice::from_ref(&through)), operator.give(&[relay.clone(), settled.clone()]));
        assert_eq!(trusted(), [true, true, true, false]);
        drop(one);
        assert_eq!(trusted(), [true, true, true, false]);
        drop(another);
        assert_eq!(trusted(), [false, false, true, false]);
    }
}
