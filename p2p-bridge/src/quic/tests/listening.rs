//! Listening, dialling, hole punching and handshakes.

use super::*;
use crate::quic::Config;
use crate::quic::handshakes::{Slot, Verdict};
use crate::quic::listener::Listener;
use futures::FutureExt as _;
use libp2p::core::transport::TransportError;
use libp2p::swarm::{self, DialError, Swarm, SwarmEvent, dial_opts, dummy};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

#[tokio::test]
async fn ipv6_is_spoken_where_the_system_has_it() {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        return;
    }
    let (mut dialer, mut listener) = (ours(), ours());
    let address = listener.listen("/ip6/::1/udp/0/quic-v1").await;
    let (dialled, mut accepted) = connect(&mut dialer, &mut listener, &address).await;
    exchange(&dialled, &mut accepted).await;
}

#[tokio::test]
async fn a_wildcard_listens_at_the_addresses_of_interfaces() {
    let mut node = ours();
    for _ in 0..2 {
        let id = ListenerId::next();
        node.transport.listen_on(id, "/ip4/0.0.0.0/udp/0/quic-v1".parse().expect("address")).expect("listens");
        match in_time(node.event()).await {
            TransportEvent::NewAddress { listener_id, listen_addr } => {
                assert_eq!(listener_id, id);
                assert_ne!(port(&listen_addr), 0);
                let Some(Protocol::Ip4(ip)) = listen_addr.iter().next() else { panic!("{listen_addr}") };
                assert!(!ip.is_unspecified());
            }
            other => panic!("{other:?}"),
        }
        assert!(node.transport.remove_listener(id));
        let closed = in_time(async {
            loop {
                if let TransportEvent::ListenerClosed { listener_id, reason } = node.event().await {
                    return (listener_id, reason.is_ok());
                }
            }
        });
        assert_eq!(closed.await, (id, true));
        assert!(!node.transport.remove_listener(id));
        assert!(node.event().now_or_never().is_none());
    }
}

#[tokio::test]
async fn dials_come_from_the_listening_port_unless_told_otherwise() {
    let (mut dialer, mut listener) = (ours(), ours());
    let address = listener.listen(LOCALHOST).await;
    let own = port(&dialer.listen(LOCALHOST).await);
    for (port_use, is_reused) in [(PortUse::Reuse, true), (PortUse::New, false)] {
        let opts = DialOpts { role: Endpoint::Dialer, port_use };
        let dial = dialer.transport.dial(address.clone(), opts).expect("dials");
        let (dialled, (_accepted, from)) = in_time(async { futures::join!(dial, listener.accept()) }).await;
        dialled.expect("a handshake");
        assert_eq!(port(&from) == own, is_reused, "{port_use:?}");
    }
}

#[tokio::test]
async fn addresses_that_are_not_quic_are_not_supported() {
    let mut node = ours();
    for text in ["/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/udp/1", "/ip4/0.0.0.0/udp/1/quic-v1", LOCALHOST] {
        let dial = node.transport.dial(text.parse().expect(text), DIALER);
        assert!(matches!(dial, Err(TransportError::MultiaddrNotSupported(_))), "{text}");
    }
}

#[tokio::test]
async fn a_hole_is_punched_as_the_listener() {
    for other in [ours(), theirs()] {
        punch_a_hole(ours(), other).await;
    }
}

async fn punch_a_hole(mut one: Node, mut other: Node) {
    let (at_one, at_other) = (one.listen(LOCALHOST).await, other.listen(LOCALHOST).await);
    let as_listener = DialOpts { role: Endpoint::Listener, port_use: PortUse::New };
    let unnamed = one.transport.dial(at_other.clone(), as_listener);
    assert!(matches!(unnamed, Err(TransportError::MultiaddrNotSupported(_))), "the peer must be known");
    let named = at_other.with(Protocol::P2p(other.id));
    let waiting = one.transport.dial(named.clone(), as_listener).expect("waits");
    assert!(one.transport.dial(named, as_listener).is_err(), "one attempt at a time");
    let (one_id, other_id) = (one.id, other.id);
    let dialled = other.transport.dial(at_one, DIALER).expect("dials");
    let no_event = async {
        let event = one.event().await;
        panic!("the connection belongs to the attempt: {event:?}");
    };
    let both = in_time(async { futures::join!(waiting, dialled) });
    let (punched, dialled) = tokio::select! {
        both = both => both,
        () = no_event => unreachable!(),
    };
    assert_eq!(punched.expect("punched").0, other_id);
    assert_eq!(dialled.expect("dialled").0, one_id);
}

/// The swarm refuses it then, as any other peer that it did not expect.
#[tokio::test]
async fn another_peer_that_comes_through_a_punched_hole_has_its_own_identity() {
    let (mut one, mut other) = (ours(), ours());
    let (at_one, at_other) = (one.listen(LOCALHOST).await, other.listen(LOCALHOST).await);
    let expected = at_other.with(Protocol::P2p(PeerId::random()));
    let as_listener = DialOpts { role: Endpoint::Listener, port_use: PortUse::New };
    let waiting = one.transport.dial(expected, as_listener).expect("waits");
    let dialled = other.transport.dial(at_one, DIALER).expect("dials");
    let other_id = other.id;
    keep(one);
    let (punched, _dialled) = in_time(async { futures::join!(waiting, dialled) }).await;
    assert_eq!(punched.expect("punched").0, other_id);
}

#[tokio::test]
async fn a_local_listener_does_not_dial_peers_elsewhere() {
    let config = Config::new(&Keypair::generate_ed25519(), Budget::new(0)).expect("a configuration");
    let at = |text: &str| text.parse().expect(text);
    let bind = |text| Listener::bind(ListenerId::next(), at(text), config.clone(), Handshakes::default());
    let (local, any) = (bind("127.0.0.1:0").expect("binds"), bind("0.0.0.0:0").expect("binds"));
    for (peer, by_local, by_any) in [("127.0.0.2", true, false), ("192.0.2.1", false, true), ("::1", false, false)] {
        let peer: IpAddr = peer.parse().expect(peer);
        // The other one does not know its addresses yet.
        assert_eq!((local.reaches(peer), any.reaches(peer)), (by_local, by_any), "{peer}");
    }
}

#[tokio::test]
async fn a_hole_cannot_be_punched_without_a_listener() {
    let (mut one, mut other) = (ours(), ours());
    let address = other.listen(LOCALHOST).await.with(Protocol::P2p(other.id));
    let as_listener = DialOpts { role: Endpoint::Listener, port_use: PortUse::New };
    assert!(matches!(one.transport.dial(address, as_listener), Err(TransportError::Other(_))));
}

#[tokio::test]
async fn a_wildcard_listener_is_reached_at_every_address_that_it_reports() {
    for (at, loopback) in [("/ip4/0.0.0.0/udp/0/quic-v1", "127.0.0.1"), ("/ip6/::/udp/0/quic-v1", "::1")] {
        let loopback: IpAddr = loopback.parse().expect(loopback);
        if std::net::UdpSocket::bind((loopback, 0)).is_err() {
            continue;
        }
        let (mut dialer, mut listener) = (ours(), ours());
        listener.transport.listen_on(ListenerId::next(), at.parse().expect(at)).expect("listens");
        let mut reported = Vec::new();
        while !reported.contains(&loopback) {
            let TransportEvent::NewAddress { listen_addr, .. } = in_time(listener.event()).await else { continue };
            let (socket, _) = crate::quic::address::parse(&listen_addr).expect("an address");
            assert_eq!(socket.is_ipv4(), loopback.is_ipv4(), "{listen_addr}");
            // The addresses of a network that is down, or of one link, cannot be dialled.
            if socket.ip() == loopback {
                let (dialled, mut accepted) = connect(&mut dialer, &mut listener, &listen_addr).await;
                exchange(&dialled, &mut accepted).await;
            }
            reported.push(socket.ip());
        }
    }
}

#[tokio::test]
async fn ipv4_and_ipv6_are_listened_at_beside_each_other() {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        return;
    }
    let (mut dialer, mut listener) = (ours(), ours());
    for at in [LOCALHOST, "/ip6/::1/udp/0/quic-v1"] {
        let address = listener.listen(at).await;
        let (dialled, mut accepted) = connect(&mut dialer, &mut listener, &address).await;
        exchange(&dialled, &mut accepted).await;
    }
}

#[tokio::test]
async fn a_swarm_refuses_another_peer_than_it_dialled() {
    let swarm =
        |node: Node| Swarm::new(node.transport, dummy::Behaviour, node.id, swarm::Config::with_tokio_executor());
    let (mut dialer, mut listener) = (swarm(ours()), swarm(ours()));
    let (server, other) = (*listener.local_peer_id(), PeerId::random());
    listener.listen_on(LOCALHOST.parse().expect("an address")).expect("listens");
    let SwarmEvent::NewListenAddr { address, .. } = listener.select_next_some().await else { panic!("no address") };
    tokio::spawn(async move { while listener.next().await.is_some() {} });
    for (expected, is_accepted) in [(other, false), (server, true)] {
        let opts = dial_opts::DialOpts::peer_id(expected).addresses(vec![address.clone()]).build();
        dialer.dial(opts).expect("dials");
        let accepted = loop {
            match in_time(dialer.select_next_some()).await {
                SwarmEvent::ConnectionEstablished { peer_id, .. } => break peer_id == expected,
                SwarmEvent::OutgoingConnectionError { error: DialError::WrongPeerId { obtained, .. }, .. } => {
                    assert_eq!(obtained, server);
                    break false;
                }
                SwarmEvent::OutgoingConnectionError { error, .. } => panic!("{error}"),
                _ => {}
            }
        };
        assert_eq!(accepted, is_accepted);
    }
}

/// Whether a packet is a Retry of QUIC version 1 (RFC 9000, section 17.2.5).
fn is_retry(packet: &[u8]) -> bool {
    matches!(packet, [first, 0, 0, 0, 1, ..] if first & 0xF0 == 0xF0)
}

#[tokio::test]
async fn a_flood_of_handshakes_is_bounded_and_keeps_no_peer_out() {
    const FLOOD: usize = 50;
    const UNVALIDATED_MAX: usize = 32;
    let (mut listener, handshakes) = ours_with(&Budget::new(64 * MIB));
    let address = listener.listen(LOCALHOST).await;
    keep(listener);
    let mut flooder = ours();
    let retries = Arc::new(AtomicUsize::new(0));
    for _ in 0..FLOOD {
        let seen = retries.clone();
        // The flooder does not receive what is sent to its addresses, as if they were forged.
        let forged = path(&address, Duration::ZERO, move |to, packet| {
            seen.fetch_add(usize::from(to == To::Client && is_retry(packet)), Ordering::Relaxed);
            to == To::Server
        });
        let dial = flooder.transport.dial(forged.await, DIALER).expect("dials");
        tokio::spawn(dial);
    }
    until(|| {
        let [unvalidated, validated] = handshakes.counts();
        assert!(unvalidated <= UNVALIDATED_MAX && validated == 0);
        unvalidated == UNVALIDATED_MAX && retries.load(Ordering::Relaxed) >= FLOOD - UNVALIDATED_MAX
    })
    .await;
    let honest = ours().transport.dial(address.clone(), DIALER).expect("dials");
    in_time(honest).await.expect("it proves its address");
}

#[tokio::test]
async fn handshakes_of_validated_addresses_are_refused_beyond_a_limit() {
    let budget = Budget::new(64 * MIB);
    let (mut listener, handshakes) = ours_with(&budget);
    let address = listener.listen(LOCALHOST).await;
    keep(listener);
    let dial = async || in_time(ours().transport.dial(address.clone(), DIALER).expect("dials")).await.is_ok();
    let begin = |is_validated| match handshakes.begin(IpAddr::from([127, 0, 0, 1]), is_validated, Instant::now()) {
        Verdict::Accept(slot) => Some(slot),
        _ => None,
    };
    let unvalidated: Vec<_> = (0..).map_while(|_| begin(false)).collect();
    assert!(dial().await, "it proves its address");
    // The listener completes the handshake later than the dialer.
    until(|| handshakes.counts()[1] == 0).await;
    let validated: Vec<_> = (0..).map_while(|_| begin(true)).collect();
    assert!(!dial().await, "there are too many");
    assert!(budget.metrics().retries.get() >= 2 && budget.metrics().refused.get() >= 1);
    unvalidated.into_iter().for_each(Slot::succeed);
    assert!(dial().await, "it is accepted without a proof");
    validated.into_iter().for_each(Slot::succeed);
    until(|| handshakes.counts() == [0, 0]).await;
}

#[tokio::test]
async fn packets_that_are_not_quic_harm_nothing() {
    let (mut dialer, mut listener) = (ours(), ours());
    let address = listener.listen(LOCALHOST).await;
    let (dialled, mut accepted) = connect(&mut dialer, &mut listener, &address).await;
    keep(listener);
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("binds");
    let noise = content(4096);
    for number in 0..3000_usize {
        let start = number % 2048;
        let mut packet = noise[start..start + number % 1500].to_vec();
        // Some begin as first packets of handshakes do (RFC 9000, section 17.2.2).
        let head = [0xC0 | (number % 16) as u8, 0, 0, 0, 1, 8];
        if number % 2 == 0 && packet.len() > head.len() {
            packet[..head.len()].copy_from_slice(&head);
        }
        let _ = socket.send_to(&packet, ("127.0.0.1", port(&address))).await;
    }
    exchange(&dialled, &mut accepted).await;
    let another = dialer.transport.dial(address, DIALER).expect("dials");
    in_time(another).await.expect("a handshake");
}
