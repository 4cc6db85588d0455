//! Accepted and rejected shapes, and that dials go exactly to the parsed address.

use super::*;
use libp2p::core::Endpoint;
use libp2p::core::transport::{DialOpts, ListenerId, PortUse, Transport, TransportError, TransportEvent};
use libp2p::{dns, websocket};
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

const ID: &str = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo";

fn address(text: &str) -> Multiaddr {
    text.replace("ID", ID).parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn all_supported_shapes_are_parsed() {
    let texts = [
        "/ip4/1.2.3.4/tcp/4001",
        "/ip4/1.2.3.4/tcp/4001/p2p/ID",
        "/ip6/2606:4700::1/udp/4001/quic-v1/p2p/ID",
        "/dns/example.org/tcp/4001",
        "/dns4/my-host/tcp/4001/ws",
        "/dns4/service_1/tcp/4001",
        "/dns6/example.org./tcp/443/wss/p2p/ID",
        "/dns4/example.org/tcp/443/tls/ws",
        "/ip4/1.2.3.4/tcp/443/tls/sni/example.org/ws",
        "/ip4/1.2.3.4/tcp/443/x-parity-wss/%2Fpath%2Fbelow",
        "/dnsaddr/bootstrap.libp2p.io/p2p/ID",
        "/ip4/1.2.3.4/tcp/4001/p2p/ID/p2p-circuit",
        "/ip4/1.2.3.4/udp/4001/quic-v1/p2p/ID/p2p-circuit/p2p/ID",
        "/dns4/relay.example.org/tcp/443/wss/p2p/ID/p2p-circuit/p2p/ID",
        "/dnsaddr/relay.example.org/p2p/ID/p2p-circuit/p2p/ID",
        "/ip4/1.2.3.4/udp/4001/quic-v1/webtransport/certhash/uEiDDq4_xNyDorZBH3TlGazyJdOWSwvo4PUo5YHFMrvDE8g/p2p/ID",
        "/ip4/1.2.3.4/udp/4001/webrtc-direct/certhash/uEiDDq4_xNyDorZBH3TlGazyJdOWSwvo4PUo5YHFMrvDE8g",
        "/dns/example.org/https",
        "/dns/example.org/tcp/8080/http/http-path/a%2Fb/p2p/ID",
        "/ip4/1.2.3.4/tcp/443/tls/sni/example.org/http",
        "/memory/7",
        "/memory/7/p2p/ID",
    ];
    for text in texts {
        let address = address(text);
        let shape = Shape::read(&address).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(shape.is_circuit(), text.contains("p2p-circuit"), "{text}");
        assert_eq!(shape.is_literal(), !text.starts_with("/dns"), "{text}");
        assert_eq!(shape.is_dialled(), !(text.contains("web") || text.contains("http")), "{text}");
        assert_eq!(shape.peer.is_some(), text.contains("p2p/ID"), "{text}");
    }
    let relayed = address("/ip4/1.2.3.4/udp/4001/quic-v1/p2p/ID/p2p-circuit/p2p/ID");
    assert_eq!(first_hop(&relayed), address("/ip4/1.2.3.4/udp/4001/quic-v1"));
}

#[test]
fn all_other_shapes_are_rejected() {
    let texts = [
        "/ip4/8.8.8.8",
        "/ip4/8.8.8.8/tcp/0",
        "/ip4/8.8.8.8/udp/0/quic-v1",
        "/ip4/8.8.8.8/udp/4001",
        "/ip4/8.8.8.8/udp/4001/quic",
        "/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/5001",
        "/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/5001/ws",
        "/ip4/8.8.8.8/tcp/1/dns4/localhost/tcp/5001",
        "/ip4/8.8.8.8/tcp/1/p2p/ID/ip4/127.0.0.1/tcp/5001",
        "/ip4/8.8.8.8/tcp/1/p2p/ID/p2p/ID",
        "/ip4/8.8.8.8/tcp/1/ws/ws",
        "/ip4/8.8.8.8/tcp/1/ws/wss",
        "/ip4/8.8.8.8/tcp/1/tls",
        "/ip4/8.8.8.8/tcp/1/tls/wss",
        "/ip4/8.8.8.8/tcp/1/tls/tls/ws",
        "/ip4/8.8.8.8/tcp/1/sni/example.org/ws",
        "/ip4/8.8.8.8/ws",
        "/ip4/8.8.8.8/tcp/1/udp/2/quic-v1",
        "/ip4/8.8.8.8/ip4/127.0.0.1/tcp/1",
        "/ip4/8.8.8.8/tcp/1/p2p-circuit",
        "/ip4/8.8.8.8/tcp/1/p2p/ID/p2p-circuit/p2p-circuit",
        "/ip4/8.8.8.8/tcp/1/p2p/ID/p2p-circuit/p2p/ID/p2p-circuit",
        "/ip4/8.8.8.8/tcp/1/p2p/ID/p2p-circuit/ip4/127.0.0.1/tcp/1",
        "/ip4/8.8.8.8/tcp/1/p2p/ID/p2p-circuit/p2p/ID/ip4/127.0.0.1/tcp/1",
        "/ip4/8.8.8.8/tcp/80/http/p2p/ID/p2p-circuit",
        "/p2p/ID/p2p-circuit/p2p/ID",
        "/p2p/ID",
        "/p2p-circuit",
        "/dnsaddr/example.org/tcp/4001",
        "/dns4/127.0.0.1/tcp/1",
        "/dns4/2130706433/tcp/1",
        "/dns4/0x7f.0x1/tcp/1",
        "/dns4/-a.example/tcp/1",
        "/dns4/a..example/tcp/1",
        "/ip6/fe80::1/ip6zone/eth0/tcp/1",
        "/ip6zone/eth0/ip6/fe80::1/tcp/1",
        "/unix/run%2Fdocker.sock",
        "/memory/7/tcp/1",
        "/memory/7/p2p/ID/p2p-circuit",
        "/sctp/1",
        "/ip4/8.8.8.8/tcp/443/x-parity-ws/%2F%0D%0AHost:%20a",
        "/ip4/8.8.8.8/tcp/443/x-parity-ws/%2F%20HTTP%2F1.1",
        "/ip4/8.8.8.8/tcp/443/x-parity-ws/%2F%C3%A9",
        "/ip4/8.8.8.8/tcp/443/x-parity-ws/%2F%7F",
        "/ip4/8.8.8.8/tcp/443/x-parity-ws/%2Fa%3Fb",
        "/ip4/8.8.8.8/tcp/443/x-parity-ws/http:%2F%2Fhost%2F",
        "/ip4/8.8.8.8/tcp/443/x-parity-ws/",
        "/dns/example.org/https/http-path/a%0D%0A",
    ];
    for text in texts {
        // Some of these are invalid as multiaddrs already, which is fine.
        if let Ok(address) = text.replace("ID", ID).parse::<Multiaddr>() {
            assert!(Shape::read(&address).is_err(), "{text}");
        }
    }
    assert!(Shape::read(&Multiaddr::empty()).is_err());
    for name in ["a\r\nb", "a b", "a/b", "a:1", "a@b", "é.example", "a\0", "", ".", &"a".repeat(64), &"a.".repeat(150)]
    {
        for host in [Protocol::Dns(name.into()), Protocol::Dns4(name.into()), Protocol::Dns6(name.into())] {
            let address = Multiaddr::empty().with(host).with(Protocol::Tcp(1));
            assert!(Shape::read(&address).is_err(), "{name:?}");
        }
        assert!(Shape::read(&Multiaddr::empty().with(Protocol::Dnsaddr(name.into()))).is_err(), "{name:?}");
        let tls = address("/ip4/8.8.8.8/tcp/443/tls").with(Protocol::Sni(name.into())).with(Protocol::Ws("/".into()));
        assert!(Shape::read(&tls).is_err(), "{name:?}");
    }
    let long = (0..200).fold(Multiaddr::empty(), |address, _| address.with(Protocol::Ip6(Ipv6Addr::LOCALHOST)));
    assert!(Shape::read(&long).is_err());
}

/// A transport that records dials without connecting. It reads addresses as libp2p's TCP and QUIC transports do.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Vec<(SocketAddr, bool)>>>);

impl Recorder {
    /// The destinations of dials, and whether they were QUIC.
    pub(crate) fn dialled(&self) -> Vec<(SocketAddr, bool)> {
        self.0.lock().expect("no panic before").clone()
    }
}

/// Reads from the end, skipping the peer ID (libp2p-tcp, `multiaddr_to_socketaddr`).
fn as_tcp_reads(address: &Multiaddr) -> Option<SocketAddr> {
    let (mut address, mut port) = (address.clone(), None);
    while let Some(part) = address.pop() {
        match (part, port) {
            (Protocol::Ip4(ip), Some(port)) => return Some((ip, port).into()),
            (Protocol::Ip6(ip), Some(port)) => return Some((ip, port).into()),
            (Protocol::Tcp(found), None) => port = Some(found),
            (Protocol::P2p(_), _) => {}
            _ => return None,
        }
    }
    None
}

/// Reads from the beginning (libp2p-quic, `multiaddr_to_socketaddr`).
fn as_quic_reads(address: &Multiaddr) -> Option<SocketAddr> {
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next()? {
        Protocol::Ip4(ip) => ip.into(),
        Protocol::Ip6(ip) => ip.into(),
        _ => return None,
    };
    let Protocol::Udp(port) = parts.next()? else { return None };
    let is_quic = parts.next()? == Protocol::QuicV1 && parts.all(|part| matches!(part, Protocol::P2p(_)));
    is_quic.then_some((ip, port).into())
}

impl Transport for Recorder {
    type Output = futures::io::Cursor<Vec<u8>>;
    type Error = std::io::Error;
    type ListenerUpgrade = futures::future::Pending<Result<Self::Output, Self::Error>>;
    type Dial = futures::future::Ready<Result<Self::Output, Self::Error>>;

    fn listen_on(&mut self, _: ListenerId, address: Multiaddr) -> Result<(), TransportError<Self::Error>> {
        Err(TransportError::MultiaddrNotSupported(address))
    }

    fn remove_listener(&mut self, _: ListenerId) -> bool {
        false
    }

    fn dial(&mut self, address: Multiaddr, _: DialOpts) -> Result<Self::Dial, TransportError<Self::Error>> {
        let found = as_quic_reads(&address).map(|socket| (socket, true));
        match found.or_else(|| as_tcp_reads(&address).map(|socket| (socket, false))) {
            Some(found) => {
                self.0.lock().expect("no panic before").push(found);
                Ok(futures::future::ready(Err(std::io::ErrorKind::ConnectionRefused.into())))
            }
            None => Err(TransportError::MultiaddrNotSupported(address)),
        }
    }

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<TransportEvent<Self::ListenerUpgrade, Self::Error>> {
        Poll::Pending
    }
}

/// Where libp2p's WebSocket and DNS transports would connect for an address without names.
fn dialled(address: &Multiaddr) -> Vec<(SocketAddr, bool)> {
    let sockets = Recorder::default();
    let config = || (dns::ResolverConfig::default(), dns::ResolverOpts::default());
    let resolving = || dns::tokio::Transport::custom(sockets.clone(), config().0, config().1);
    let opts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        match websocket::Config::new(resolving()).dial(address.clone(), opts) {
            Ok(dial) => drop(dial.await),
            Err(_) => drop(resolving().dial(address.clone(), opts).expect("it begins").await),
        }
    });
    sockets.dialled()
}

fn component() -> impl Strategy<Value = Protocol<'static>> {
    let ip4 = prop_oneof![any::<[u8; 4]>(), Just([127, 0, 0, 1]), Just([8, 8, 8, 8])];
    let name = prop_oneof!["[a-z0-9.-]{1,12}", "\\PC{0,6}", Just("localhost".to_owned())];
    let path = prop_oneof![Just("/".to_owned()), "/[a-z%/]{0,8}", "[\\x00-\\x7f]{0,8}"];
    let peer = Just(ID.parse::<PeerId>().expect("a peer id"));
    prop_oneof![
        6 => ip4.prop_map(|ip| Protocol::Ip4(Ipv4Addr::from(ip))),
        2 => any::<u128>().prop_map(|ip| Protocol::Ip6(ip.into())),
        8 => any::<u16>().prop_map(Protocol::Tcp),
        4 => any::<u16>().prop_map(Protocol::Udp),
        4 => Just(Protocol::QuicV1),
        1 => Just(Protocol::Quic),
        3 => name.clone().prop_map(|name| Protocol::Dns(name.into())),
        1 => name.clone().prop_map(|name| Protocol::Dns4(name.into())),
        1 => name.clone().prop_map(|name| Protocol::Dnsaddr(name.into())),
        4 => path.clone().prop_map(|path| Protocol::Ws(path.into())),
        1 => path.prop_map(|path| Protocol::Wss(path.into())),
        2 => Just(Protocol::Tls),
        1 => name.prop_map(|name| Protocol::Sni(name.into())),
        4 => peer.prop_map(Protocol::P2p),
        2 => Just(Protocol::P2pCircuit),
        1 => Just(Protocol::WebTransport),
        1 => Just(Protocol::Http),
        1 => Just(Protocol::Https),
        1 => any::<u64>().prop_map(Protocol::Memory),
    ]
}

/// Any components in any order, and supported shapes with components inserted.
fn any_address() -> impl Strategy<Value = Multiaddr> {
    let known = prop::sample::select(vec![
        "/ip4/8.8.8.8/tcp/4001",
        "/ip4/8.8.8.8/tcp/443/tls/ws",
        "/ip6/2606:4700::1/udp/4001/quic-v1",
        "/dns4/example.org/tcp/443/wss",
        "/ip4/8.8.8.8/tcp/4001/p2p/ID/p2p-circuit/p2p/ID",
    ]);
    let spliced = (known, any::<prop::sample::Index>(), prop::collection::vec(component(), 0..3)).prop_map(
        |(text, place, inserted)| {
            let mut parts: Vec<_> = address(text).iter().map(Protocol::acquire).collect();
            let place = place.index(parts.len() + 1);
            parts.splice(place..place, inserted);
            parts.into_iter().collect()
        },
    );
    prop_oneof![prop::collection::vec(component(), 0..7).prop_map(|parts| parts.into_iter().collect()), spliced]
}

/// Rebuilds the address from its parsed shape.
fn rebuilt(shape: &Shape<'_>, original: &Multiaddr) -> Multiaddr {
    let mut parts: Vec<Protocol<'_>> = Vec::new();
    match (&shape.host, original.iter().next()) {
        (Host::Ip(ip), _) => parts.push((*ip).into()),
        (Host::Name(name), Some(Protocol::Dns4(_))) => parts.push(Protocol::Dns4(name.clone())),
        (Host::Name(name), Some(Protocol::Dns6(_))) => parts.push(Protocol::Dns6(name.clone())),
        (Host::Name(name), Some(Protocol::Dnsaddr(_))) => parts.push(Protocol::Dnsaddr(name.clone())),
        (Host::Name(name), _) => parts.push(Protocol::Dns(name.clone())),
        (Host::Memory, first) => parts.extend(first),
    }
    match &shape.transport {
        TransportKind::Tcp { port } => parts.push(Protocol::Tcp(*port)),
        TransportKind::Quic { port } => parts.extend([Protocol::Udp(*port), Protocol::QuicV1]),
        TransportKind::WebSocket { port, tls, sni, path } => {
            parts.push(Protocol::Tcp(*port));
            let is_wss = original.iter().any(|part| matches!(part, Protocol::Wss(_)));
            if *tls && !is_wss {
                parts.push(Protocol::Tls);
            }
            parts.extend(sni.clone().map(Protocol::Sni));
            parts.push(if is_wss { Protocol::Wss(path.clone()) } else { Protocol::Ws(path.clone()) });
        }
        TransportKind::Browser { .. } | TransportKind::Http { .. } | TransportKind::Records | TransportKind::Memory => {
        }
    }
    parts.extend(shape.peer.map(Protocol::P2p));
    if let Some(behind) = shape.circuit {
        parts.push(Protocol::P2pCircuit);
        parts.extend(behind.map(Protocol::P2p));
    }
    parts.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_parsed_shape_covers_the_whole_address(address in any_address()) {
        let Ok(shape) = Shape::read(&address) else { return Ok(()) };
        if shape.is_dialled() {
            prop_assert_eq!(rebuilt(&shape, &address), address);
        }
    }

    #[test]
    fn dials_go_to_the_parsed_address(address in any_address()) {
        let Ok(shape) = Shape::read(&address) else { return Ok(()) };
        let Host::Ip(ip) = shape.host else { return Ok(()) };
        if shape.is_circuit() || !shape.is_dialled() {
            return Ok(());
        }
        let port = shape.port().expect("every address of IP has one");
        let expected = (SocketAddr::new(ip, port), matches!(shape.transport, TransportKind::Quic { .. }));
        prop_assert_eq!(dialled(&address), vec![expected], "{}", address);
    }
}

/// Shows that the model dials the last address, so that the property can detect wrong shapes.
#[test]
fn the_transports_dial_the_last_address() {
    let both = address("/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/5001");
    assert_eq!(dialled(&both), [(SocketAddr::from(([127, 0, 0, 1], 5001)), false)]);
    let over_websocket = address("/ip4/8.8.8.8/tcp/1/ip4/127.0.0.1/tcp/5001/ws");
    assert_eq!(dialled(&over_websocket), [(SocketAddr::from(([127, 0, 0, 1], 5001)), false)]);
}
