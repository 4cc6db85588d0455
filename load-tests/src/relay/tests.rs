//! Bytes through a relay arrive complete, in order and counted. Their delay is arithmetic (`shape`), except that they
//! are never early.

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

const LOOPBACK: ([u8; 4], u16) = ([127, 0, 0, 1], 0);
const LINK: Link = Link { delay: Duration::from_millis(5), bits_per_second: None, lose_one_in: None };

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 % 251) as u8).collect()
}

/// A server that echoes a stream once its sender has closed it.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind(SocketAddr::from(LOOPBACK)).await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut all = Vec::new();
                stream.read_to_end(&mut all).await?;
                stream.write_all(&all).await
            });
        }
    });
    address
}

async fn exchange(relay: SocketAddr, content: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(relay).await.expect("the relay accepts");
    stream.write_all(content).await.expect("it reads");
    stream.shutdown().await.expect("it is told of the end");
    let mut back = Vec::new();
    stream.read_to_end(&mut back).await.expect("it answers");
    back
}

#[tokio::test]
async fn a_stream_arrives_complete_delayed_and_counted() {
    for link in [LINK, Link { bits_per_second: Some(400_000_000), ..LINK }] {
        let relay = Relay::bind(Protocol::Tcp, LOOPBACK.into(), link).await.expect("it starts");
        relay.forward_to(echo().await);
        let content = pattern(3_000_000);
        let begun = Instant::now();
        assert!(exchange(relay.address(), &content).await == content, "the same bytes in the same order");
        // The handshake and one exchange, and the time that the line takes.
        let on_line = link.bits_per_second.map_or(Duration::ZERO, |_| Duration::from_millis(2 * (60 - 2)));
        assert!(begun.elapsed() >= 4 * link.delay + on_line, "{:?} over {link:?}", begun.elapsed());
        assert_eq!(relay.passed(), Passed { up: 3_000_000, down: 3_000_000, dropped: 0 });
    }
}

#[tokio::test]
async fn connections_that_come_before_the_target_wait_and_do_not_mix() {
    let relay = Relay::bind(Protocol::Tcp, LOOPBACK.into(), LINK).await.expect("it starts");
    let address = relay.address();
    let clients = (1..20).map(|n| tokio::spawn(async move { exchange(address, &pattern(n * 1000)).await.len() }));
    let clients: Vec<_> = clients.collect();
    relay.forward_to(echo().await);
    for (n, client) in (1..20).zip(clients) {
        assert_eq!(client.await.expect("no panic"), n * 1000);
    }
}

#[tokio::test]
async fn a_refusing_target_ends_the_client_s_connection() {
    let relay = Relay::bind(Protocol::Tcp, LOOPBACK.into(), LINK).await.expect("it starts");
    let unused = TcpListener::bind(SocketAddr::from(LOOPBACK)).await.expect("a free port");
    relay.forward_to(unused.local_addr().expect("it is bound"));
    drop(unused);
    let mut stream = TcpStream::connect(relay.address()).await.expect("the relay accepts");
    let mut back = Vec::new();
    assert!(matches!(stream.read_to_end(&mut back).await, Ok(0) | Err(_)), "{back:?}");
}

#[tokio::test]
async fn datagrams_find_their_way_back() {
    let relay = Relay::bind(Protocol::Udp, LOOPBACK.into(), LINK).await.expect("it starts");
    let server = UdpSocket::bind(SocketAddr::from(LOOPBACK)).await.expect("a free port");
    relay.forward_to(server.local_addr().expect("it is bound"));
    tokio::spawn(async move {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = server.recv_from(&mut buffer).await {
            let _ = server.send_to(&buffer[..len], from).await;
        }
    });
    let begun = Instant::now();
    let mut clients = Vec::new();
    for n in 1..=3 {
        let client = UdpSocket::bind(SocketAddr::from(LOOPBACK)).await.expect("a free port");
        client.connect(relay.address()).await.expect("UDP always connects");
        for piece in 0..10 {
            client.send(&pattern(n * 100 + piece)).await.expect("it is sent");
        }
        clients.push((n, client));
    }
    for (n, client) in clients {
        for piece in 0..10 {
            let mut buffer = [0; 2048];
            let len = client.recv(&mut buffer).await.expect("it comes back");
            assert!(buffer[..len] == pattern(n * 100 + piece), "datagram {piece} of client {n}, in order");
        }
    }
    assert!(begun.elapsed() >= LINK.round_trip());
    let bytes = (1..=3).map(|n| n * 1000 + 45).sum();
    assert_eq!(relay.passed(), Passed { up: bytes, down: bytes, dropped: 0 });
}

#[tokio::test]
async fn a_full_line_drops_datagrams() {
    let link = Link { delay: Duration::ZERO, bits_per_second: Some(8_000), lose_one_in: None };
    let relay = Relay::bind(Protocol::Udp, LOOPBACK.into(), link).await.expect("it starts");
    let server = UdpSocket::bind(SocketAddr::from(LOOPBACK)).await.expect("a free port");
    relay.forward_to(server.local_addr().expect("it is bound"));
    let client = UdpSocket::bind(SocketAddr::from(LOOPBACK)).await.expect("a free port");
    // Far more than the line holds at a kilobyte a second.
    while relay.passed().dropped == 0 {
        client.send_to(&[7; 1400], relay.address()).await.expect("it is sent");
        tokio::task::yield_now().await;
    }
    assert!(relay.passed().up <= 256 << 10, "{:?}", relay.passed());
}

#[tokio::test]
async fn a_lossy_line_loses_one_datagram_of_so_many() {
    let link = Link { lose_one_in: Some(10), ..LINK };
    let relay = Relay::bind(Protocol::Udp, LOOPBACK.into(), link).await.expect("it starts");
    let server = UdpSocket::bind(SocketAddr::from(LOOPBACK)).await.expect("a free port");
    relay.forward_to(server.local_addr().expect("it is bound"));
    let client = UdpSocket::bind(SocketAddr::from(LOOPBACK)).await.expect("a free port");
    for n in 0..100 {
        client.send_to(&[n], relay.address()).await.expect("it is sent");
    }
    let mut arrived = Vec::new();
    for _ in 0..90 {
        let mut buffer = [0; 8];
        server.recv_from(&mut buffer).await.expect("it arrives");
        arrived.push(buffer[0]);
    }
    let lost: Vec<u8> = (0..100).filter(|n| !arrived.contains(n)).collect();
    assert_eq!(lost, [5, 15, 25, 35, 45, 55, 65, 75, 85, 95]);
    assert_eq!(relay.passed().dropped, 10);
}
