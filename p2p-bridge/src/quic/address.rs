//! QUIC addresses, `/ip4/…/udp/…/quic-v1` and `/ip6/…/udp/…/quic-v1`, and what counts as one address.

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The socket of an address, and the peer that it may name.
pub fn parse(address: &Multiaddr) -> Option<(SocketAddr, Option<PeerId>)> {
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next()? {
        Protocol::Ip4(ip) => ip.into(),
        Protocol::Ip6(ip) => ip.into(),
        _ => return None,
    };
    let (Protocol::Udp(port), Protocol::QuicV1) = (parts.next()?, parts.next()?) else { return None };
    let peer = match (parts.next(), parts.next()) {
        (None, None) => None,
        (Some(Protocol::P2p(peer)), None) => Some(peer),
        _ => return None,
    };
    Some((SocketAddr::new(ip, port), peer))
}

/// The address of a socket.
pub fn of(socket: SocketAddr) -> Multiaddr {
    Multiaddr::empty().with(socket.ip().into()).with(Protocol::Udp(socket.port())).with(Protocol::QuicV1)
}

/// What counts as one address: a host has all addresses of an IPv6 network of 64 bits.
pub fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo";

    #[test]
    fn only_quic_v1_over_ip_is_parsed() {
        let peer: PeerId = PEER.parse().expect(PEER);
        let table = [
            ("/ip4/192.0.2.1/udp/4001/quic-v1".to_owned(), Some(("192.0.2.1:4001", None))),
            ("/ip6/2001:db8::1/udp/1/quic-v1".to_owned(), Some(("[2001:db8::1]:1", None))),
            (format!("/ip4/192.0.2.1/udp/1/quic-v1/p2p/{PEER}"), Some(("192.0.2.1:1", Some(peer)))),
            (format!("/ip4/192.0.2.1/udp/1/quic-v1/p2p/{PEER}/p2p-circuit"), None),
            ("/ip4/192.0.2.1/udp/1/quic".to_owned(), None),
            ("/ip4/192.0.2.1/udp/1".to_owned(), None),
            ("/ip4/192.0.2.1/tcp/1".to_owned(), None),
            ("/ip4/192.0.2.1/udp/1/quic-v1/webtransport".to_owned(), None),
            ("/dns4/example.org/udp/1/quic-v1".to_owned(), None),
        ];
        for (text, expected) in table {
            let address: Multiaddr = text.parse().expect(&text);
            let expected = expected.map(|(socket, peer)| (socket.parse().expect(socket), peer));
            assert_eq!(parse(&address), expected, "{text}");
            if let Some((socket, None)) = expected {
                assert_eq!(of(socket), address);
            }
        }
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let [one, other, far, mapped] = ["2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1", "::ffff:192.0.2.1"]
            .map(|text| network(text.parse().expect(text)));
        assert_eq!(one, other);
        assert_ne!(one, far);
        assert_eq!(mapped, IpAddr::from([192, 0, 2, 1]));
    }
}
