//! Connections on request, and the information about connected peers.

use super::support::{Node, options, until};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::connecting::{AddressOrigin, ConnectError};
use p2p_bridge::counted::Via;
use p2p_bridge::peers::Direction;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};

const TCP: &str = "/ip4/127.0.0.1/tcp/0";
const QUIC: &str = "/ip4/127.0.0.1/udp/0/quic-v1";
const WEBSOCKET: &str = "/ip4/127.0.0.1/tcp/0/ws";
const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn connected_peers_are_listed_with_their_traffic() {
    for (listen, via) in [(QUIC, Via::Quic), (WEBSOCKET, Via::WebSocket), (TCP, Via::Tcp)] {
        let (asker, holder) = (Node::start(options(&[])).await, Node::start(options(&[listen])).await);
        let (asking, holding) = (asker.bridge.peer_id(), holder.bridge.peer_id());
        let (part, address) = (listen, holder.addresses[0].clone());
        let connected = asker.bridge.connect(holding, vec![address], AddressOrigin::Operator, SOON).await.expect(part);
        assert!(!connected.already && Via::of(&connected.address) == via, "{connected:?}");
        let again = asker.bridge.connect(holding, Vec::new(), AddressOrigin::Untrusted, SOON).await.expect("connected");
        assert!(again.already, "a connected peer is not dialled again");

        let big = holder.hold(format!("{part}{}", "x".repeat(300_000)).as_bytes());
        let before = asker.bridge.carried()[via as usize];
        asker.fetch(&big).await;
        let after = asker.bridge.carried()[via as usize];
        assert!(after.received - before.received > 300_000 && after.sent > before.sent, "{before:?} {after:?}");

        until("identify, ping, and an idle session", async || {
            let peers = asker.bridge.peers().await;
            peers.iter().any(|peer| peer.agent.is_some() && peer.rtt.is_some() && !peer.owes_blocks)
        })
        .await;
        let peers = asker.bridge.peers().await;
        let [peer] = &peers[..] else { panic!("one peer: {peers:?}") };
        assert_eq!((peer.peer, peer.connections.len()), (holding, 1));
        assert_eq!(peer.connections[0].direction, Direction::Outbound);
        assert!(peer.agent.as_deref().is_some_and(|agent| agent.starts_with("causeway/")), "{peer:?}");
        assert!(peer.protocols.iter().any(|protocol| protocol == "/ipfs/bitswap/1.2.0"), "{peer:?}");
        assert!(peer.bitswap.received > 300_000 && peer.bitswap.sent > 0, "{peer:?}");
        assert!(peer.useful_ago.is_some() && !peer.owes_blocks, "{peer:?}");
        let seen = holder.bridge.peers().await;
        assert!(seen[0].peer == asking && seen[0].connections[0].direction == Direction::Inbound, "{seen:?}");
        until("the sent bytes are counted", async || holder.bridge.peers().await[0].bitswap.sent > 300_000).await;

        assert!(asker.bridge.disconnect(holding).await);
        until("both have disconnected", async || {
            asker.bridge.peers().await.is_empty() && holder.bridge.peers().await.is_empty()
        })
        .await;
        assert!(!asker.bridge.disconnect(holding).await, "not connected");
        for other in asker.bridge.carried().into_iter().filter(|carried| carried.via != via) {
            assert_eq!((other.received, other.sent), (0, 0), "{other:?}, but only {via:?} was used");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_tells_its_peers() {
    for listen in [QUIC, TCP] {
        let (asker, holder) = (Node::start(options(&[])).await, Node::start(options(&[listen])).await);
        let address = holder.addresses[0].clone();
        asker
            .bridge
            .connect(holder.bridge.peer_id(), vec![address], AddressOrigin::Operator, SOON)
            .await
            .expect(listen);
        holder.bridge.shutdown().await;
        // Sooner than the idle timeout of QUIC.
        let told = until("the peer is told", async || asker.bridge.peers().await.is_empty());
        tokio::time::timeout(Duration::from_secs(8), told).await.expect(listen);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_connections_have_a_reason() {
    let (asker, holder) = (Node::start(options(&[])).await, Node::start(options(&[TCP])).await);
    // A socket that is bound and does not listen: nothing else gets its port.
    let unused = TcpSocket::new_v4().expect("a socket");
    unused.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let closed: Multiaddr =
        format!("/ip4/127.0.0.1/tcp/{}", unused.local_addr().expect("bound").port()).parse().expect("x");
    let mute = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent: Multiaddr =
        format!("/ip4/127.0.0.1/tcp/{}", mute.local_addr().expect("bound").port()).parse().expect("x");
    let mut there = holder.address("/tcp/");
    assert!(matches!(there.pop(), Some(Protocol::P2p(_))));
    let unknown = PeerId::random();
    let connect = async |peer, addresses, by| asker.bridge.connect(peer, addresses, by, SOON).await;

    let ourselves = connect(asker.bridge.peer_id(), Vec::new(), AddressOrigin::Operator).await;
    assert_eq!(ourselves, Err(ConnectError::Ourselves));
    let private = connect(holder.bridge.peer_id(), vec![there.clone()], AddressOrigin::Untrusted).await;
    assert_eq!(private, Err(ConnectError::NotAllowed));
    assert_eq!(connect(unknown, Vec::new(), AddressOrigin::Untrusted).await, Err(ConnectError::Unknown));
    let refused = connect(unknown, vec![closed.clone()], AddressOrigin::Operator).await;
    let Err(ConnectError::Unreachable(words)) = &refused else { panic!("{refused:?}") };
    assert!(words.contains(&closed.to_string()) && words.to_lowercase().contains("refused"), "{words}");
    let other = connect(unknown, vec![there], AddressOrigin::Operator).await;
    assert_eq!(other, Err(ConnectError::AnotherPeer(holder.bridge.peer_id())));
    let patience = Duration::from_millis(300);
    let late = asker.bridge.connect(unknown, vec![silent], AddressOrigin::Operator, patience).await;
    assert_eq!(late, Err(ConnectError::TimedOut(patience)));

    asker.bridge.shutdown().await;
    assert_eq!(connect(unknown, vec![closed], AddressOrigin::Operator).await, Err(ConnectError::Stopped));
    assert!(asker.bridge.peers().await.is_empty() && !asker.bridge.disconnect(unknown).await);
}
