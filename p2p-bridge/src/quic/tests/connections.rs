//! Connections: with libp2p's transport, with each other, over bad paths, and their end.

use super::*;
use crate::quic::Config;
use quinn::{Endpoint, ValidationTokenConfig};
#[tokio::test]
async fn libp2p_s_own_transport_is_understood_in_both_directions() {
    for (mut dialer, mut listener) in [(ours(), theirs()), (theirs(), ours()), (ours(), ours())] {
        let address = listener.listen(LOCALHOST).await;
        let ids = (listener.id, dialer.id);
        let (mut dialled, mut accepted) = connect(&mut dialer, &mut listener, &address).await;
        keep(dialer);
        keep(listener);
        assert_eq!((dialled.id, accepted.id), ids);
        exchange(&dialled, &mut accepted).await;
        exchange(&accepted, &mut dialled).await;
        let bytes = content(4 * MIB);
        let sending = send(dialled.open().await, bytes.clone());
        let reading = async { read_all(&mut accepted.accept().await).await };
        let (_, read) = in_time(async { futures::join!(sending, reading) }).await;
        assert!(read == bytes);
    }
}

#[tokio::test]
async fn a_dropped_stream_stops_the_writer_and_not_the_connection() {
    let (client, mut server) = pair().await;
    let mut stream = client.open().await;
    stream.write_all(b"first").await.expect("written");
    drop(in_time(server.accept()).await);
    let failed = async { while stream.write_all(&[0; 1024]).await.is_ok() {} };
    in_time(failed).await;
    exchange(&client, &mut server).await;
}

#[tokio::test]
async fn a_closed_half_stays_closed() {
    let (client, _server) = pair().await;
    let mut stream = client.open().await;
    stream.write_all(b"all").await.expect("written");
    stream.close().await.expect("closed");
    stream.close().await.expect("closed already");
    assert!(stream.write_all(b"more").await.is_err());
}

#[tokio::test]
async fn a_peer_may_open_256_streams_and_further_ones_when_some_are_closed() {
    let (client, mut server) = pair().await;
    let mut ours = Vec::new();
    for _ in 0..256 {
        let mut stream = in_time(client.open()).await;
        stream.write_all(b"x").await.expect("written");
        ours.push(stream);
    }
    let mut theirs = Vec::new();
    for _ in 0..256 {
        theirs.push(in_time(server.accept()).await);
    }
    let mut opening = client.opening();
    // All of them work at once.
    for (one, other) in ours.iter_mut().zip(&mut theirs) {
        one.write_all(b"y").await.expect("written");
        let mut read = [0; 2];
        in_time(other.read_exact(&mut read)).await.expect("read");
        assert_eq!(&read, b"xy");
    }
    assert!(opening.try_recv().expect("connected").is_none());
    // QUIC does not announce each single one.
    ours.truncate(128);
    theirs.truncate(128);
    in_time(opening).await.expect("opened");
}

#[tokio::test]
async fn the_peer_s_identity_is_the_one_it_has_proved() {
    let (mut dialer, mut listener) = (ours(), ours());
    let address = listener.listen(LOCALHOST).await.with(Protocol::P2p(PeerId::random()));
    let id = listener.id;
    let (dialled, _accepted) = connect(&mut dialer, &mut listener, &address).await;
    assert_eq!(dialled.id, id, "the swarm compares it with the one that it dialled");
}

#[tokio::test]
async fn closing_ends_the_streams_of_both_ends() {
    let (client, mut server) = pair().await;
    let mut stream = client.open().await;
    stream.write_all(b"x").await.expect("written");
    let mut accepted = in_time(server.accept()).await;
    drop(client);
    in_time(async { assert!(accepted.read_to_end(&mut Vec::new()).await.is_err()) }).await;
    in_time(async { while stream.write_all(b"y").await.is_ok() {} }).await;
    assert!(in_time(server.inbound.next()).await.is_none(), "the connection has ended");
}

#[tokio::test]
async fn an_end_of_the_transport_ends_its_connections() {
    for is_listener in [true, false] {
        let (mut dialer, mut listener) = (ours(), ours());
        let address = listener.listen(LOCALHOST).await;
        let (dialled, accepted) = connect(&mut dialer, &mut listener, &address).await;
        let (ended, mut informed, stopped, kept) =
            if is_listener { (accepted, dialled, listener, dialer) } else { (dialled, accepted, dialer, listener) };
        keep(kept);
        // As a swarm ends: its connections are dropped, and its transport.
        ended.driver.abort();
        drop(stopped);
        let end = tokio::time::timeout(BEFORE_IDLE_TIMEOUT, informed.inbound.next()).await;
        assert!(end.expect("the peer is told").is_none());
    }
}

#[tokio::test]
async fn a_listener_that_is_removed_ends_its_connections() {
    let (mut dialer, mut listener) = (ours(), ours());
    let id = ListenerId::next();
    listener.transport.listen_on(id, LOCALHOST.parse().expect("an address")).expect("listens");
    let TransportEvent::NewAddress { listen_addr, .. } = listener.event().await else { panic!("not listening") };
    let (mut dialled, mut accepted) = connect(&mut dialer, &mut listener, &listen_addr).await;
    keep(dialer);
    assert!(listener.transport.remove_listener(id));
    keep(listener);
    for peer in [&mut dialled, &mut accepted] {
        let end = tokio::time::timeout(BEFORE_IDLE_TIMEOUT, peer.inbound.next()).await;
        assert!(end.expect("it ends").is_none());
    }
}

/// Delays packets, loses one in a hundred, and damages another.
fn bad_path() -> impl FnMut(To, &mut Vec<u8>) -> bool + Send + 'static {
    let mut number = 0;
    move |_, packet| {
        number += 1;
        if number % 100 == 50 {
            let at = number % packet.len();
            packet[at] ^= 1 << (number % 8);
        }
        number % 100 != 0
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_arrives_whole_over_a_path_with_delay_loss_and_damage() {
    let (mut dialer, mut listener) = (ours(), ours());
    let address = listener.listen(LOCALHOST).await;
    let through = path(&address, Duration::from_millis(5), bad_path()).await;
    let (mut client, server) = connect(&mut dialer, &mut listener, &through).await;
    keep(dialer);
    keep(listener);
    let bytes = content(MIB);
    let sending: Vec<_> = (0..4)
        .map(|_| {
            let (opening, bytes) = (server.opening(), bytes.clone());
            tokio::spawn(async move { send(opening.await.expect("opened"), bytes).await })
        })
        .collect();
    for _ in 0..sending.len() {
        let mut stream = in_time(client.accept()).await;
        assert!(in_time(read_all(&mut stream)).await == bytes);
    }
    for sent in sending {
        sent.await.expect("sent");
    }
}

/// They would let a peer link this node's connections to others, and spoil its dials.
#[tokio::test]
async fn tokens_of_a_peer_are_not_presented_later() {
    let config = Config::new(&Keypair::generate_ed25519(), Budget::new(0)).expect("a configuration");
    let mut server = config.server;
    server.validation_token_config(ValidationTokenConfig::default());
    let endpoint = Endpoint::server(server, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("listens");
    let address = crate::quic::address::of(endpoint.local_addr().expect("bound"));
    let mut dialer = ours();
    for _ in 0..3 {
        let accept = async {
            let incoming = endpoint.accept().await.expect("a dial");
            assert!(!incoming.remote_address_validated(), "the dial has a token");
            incoming.accept().expect("accepted").await.expect("a handshake")
        };
        let (mut dialled, accepted) = in_time(async { futures::join!(dialer.dial(&address), accept) }).await;
        // The tokens precede the bytes.
        let (mut sending, _reading) = accepted.open_bi().await.expect("opened");
        sending.write_all(b"x").await.expect("written");
        sending.finish().expect("finished");
        assert_eq!(in_time(read_all(&mut in_time(dialled.accept()).await)).await, b"x");
        assert!(accepted.stats().frame_tx.new_token > 0);
    }
}
