//! Connections over real sockets: with libp2p's QUIC transport and with each other.

use super::handshakes::{Handshakes, Verdict};
use super::{Budget, QuicTransport};
use futures::channel::{mpsc, oneshot};
use futures::{AsyncReadExt as _, AsyncWriteExt as _, FutureExt as _, StreamExt as _};
use libp2p::core::Endpoint;
use libp2p::core::muxing::{StreamMuxerBox, StreamMuxerExt as _, SubstreamBox};
use libp2p::core::transport::{Boxed, DialOpts, ListenerId, PortUse, Transport as _, TransportError, TransportEvent};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, quic};
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;
use tokio::net::UdpSocket;

type Muxers = Boxed<(PeerId, StreamMuxerBox)>;

const MIB: usize = 1024 * 1024;
const LOCALHOST: &str = "/ip4/127.0.0.1/udp/0/quic-v1";
const DIALER: DialOpts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::Reuse };
/// Only a test that fails waits for so long.
const PATIENCE: Duration = Duration::from_secs(120);

/// A transport and its identity.
struct Node {
    id: PeerId,
    transport: Muxers,
}

fn ours_with(budget: &Budget) -> (Node, Handshakes) {
    let keypair = Keypair::generate_ed25519();
    let transport = QuicTransport::new(&keypair, budget.clone()).expect("a configuration");
    let handshakes = transport.handshakes.clone();
    let transport = transport.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer))).boxed();
    (Node { id: keypair.public().to_peer_id(), transport }, handshakes)
}

fn ours() -> Node {
    ours_with(&Budget::new(256 * MIB)).0
}

fn theirs() -> Node {
    let keypair = Keypair::generate_ed25519();
    let transport = quic::tokio::Transport::new(quic::Config::new(&keypair));
    let transport = transport.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer))).boxed();
    Node { id: keypair.public().to_peer_id(), transport }
}

impl Node {
    async fn event(&mut self) -> TransportEvent<<Muxers as libp2p::Transport>::ListenerUpgrade, std::io::Error> {
        poll_fn(|cx| Pin::new(&mut self.transport).poll(cx)).await
    }

    async fn listen(&mut self, at: &str) -> Multiaddr {
        self.transport.listen_on(ListenerId::next(), at.parse().expect(at)).expect("listens");
        match self.event().await {
            TransportEvent::NewAddress { listen_addr, .. } => listen_addr,
            other => panic!("not listening: {other:?}"),
        }
    }

    /// The next inbound connection, and the address that it came from.
    async fn accept(&mut self) -> (Peer, Multiaddr) {
        loop {
            if let TransportEvent::Incoming { upgrade, send_back_addr, .. } = self.event().await {
                return (Peer::new(upgrade.await.expect("a handshake")), send_back_addr);
            }
        }
    }

    async fn dial(&mut self, address: &Multiaddr) -> Peer {
        let dial = self.transport.dial(address.clone(), DIALER).expect("dials");
        Peer::new(dial.await.expect("a handshake"))
    }
}

/// A connection, whose multiplexer is driven by a task. Dropping `open` closes it.
struct Peer {
    id: PeerId,
    open: mpsc::UnboundedSender<oneshot::Sender<SubstreamBox>>,
    inbound: mpsc::UnboundedReceiver<SubstreamBox>,
}

impl Peer {
    fn new((id, muxer): (PeerId, StreamMuxerBox)) -> Self {
        let (open, requests) = mpsc::unbounded();
        let (accepted, inbound) = mpsc::unbounded();
        tokio::spawn(drive(muxer, requests, accepted));
        Self { id, open, inbound }
    }

    fn opening(&self) -> oneshot::Receiver<SubstreamBox> {
        let (opened, opening) = oneshot::channel();
        self.open.unbounded_send(opened).expect("connected");
        opening
    }

    async fn open(&self) -> SubstreamBox {
        self.opening().await.expect("opened")
    }

    async fn accept(&mut self) -> SubstreamBox {
        self.inbound.next().await.expect("a stream")
    }
}

async fn drive(
    mut muxer: StreamMuxerBox,
    mut requests: mpsc::UnboundedReceiver<oneshot::Sender<SubstreamBox>>,
    accepted: mpsc::UnboundedSender<SubstreamBox>,
) {
    let mut request: Option<oneshot::Sender<SubstreamBox>> = None;
    poll_fn(|cx| {
        let _ = muxer.poll_unpin(cx);
        while let Poll::Ready(stream) = muxer.poll_inbound_unpin(cx) {
            let Ok(stream) = stream else { return Poll::Ready(()) };
            let _ = accepted.unbounded_send(stream);
        }
        loop {
            if request.is_none() {
                match requests.poll_next_unpin(cx) {
                    Poll::Ready(Some(next)) => request = Some(next),
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
            let Ok(stream) = ready!(muxer.poll_outbound_unpin(cx)) else { return Poll::Ready(()) };
            let _ = request.take().map(|request| request.send(stream));
        }
    })
    .await;
    let _ = muxer.close().await;
}

/// Connects the first node to the second. Returns their ends.
async fn connect(dialer: &mut Node, listener: &mut Node, address: &Multiaddr) -> (Peer, Peer) {
    let (dialled, (accepted, _)) = futures::join!(dialer.dial(address), listener.accept());
    (dialled, accepted)
}

async fn pair() -> (Peer, Peer) {
    let (mut dialer, mut listener) = (ours(), ours());
    let address = listener.listen(LOCALHOST).await;
    let ends = connect(&mut dialer, &mut listener, &address).await;
    keep(dialer);
    keep(listener);
    ends
}

/// Polls a transport until the test ends, and keeps the connections that it accepts.
fn keep(mut node: Node) {
    tokio::spawn(async move {
        loop {
            if let TransportEvent::Incoming { upgrade, .. } = node.event().await {
                tokio::spawn(async move {
                    let _kept = upgrade.await;
                    std::future::pending::<()>().await;
                });
            }
        }
    });
}

/// Bytes that differ from place to place.
fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()[0]).collect()
}

async fn send(mut stream: SubstreamBox, bytes: Vec<u8>) -> SubstreamBox {
    stream.write_all(&bytes).await.expect("written");
    stream.close().await.expect("closed");
    stream
}

async fn read_all(stream: &mut SubstreamBox) -> Vec<u8> {
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.expect("read");
    read
}

async fn in_time<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

/// A request and a response, each ended by closing its half.
async fn exchange(client: &Peer, server: &mut Peer) {
    let asking = async {
        let mut stream = send(client.open().await, b"request".to_vec()).await;
        assert_eq!(read_all(&mut stream).await, b"response");
    };
    let answering = async {
        let mut stream = server.accept().await;
        assert_eq!(read_all(&mut stream).await, b"request");
        send(stream, b"response".to_vec()).await;
    };
    in_time(async { futures::join!(asking, answering) }).await;
}

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
async fn a_peer_may_open_512_streams_and_further_ones_when_some_are_closed() {
    let (client, mut server) = pair().await;
    let mut ours = Vec::new();
    for _ in 0..512 {
        let mut stream = in_time(client.open()).await;
        stream.write_all(b"x").await.expect("written");
        ours.push(stream);
    }
    let mut theirs = Vec::new();
    for _ in 0..512 {
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
    ours.truncate(256);
    theirs.truncate(256);
    in_time(opening).await.expect("opened");
}

#[tokio::test]
async fn an_unread_stream_does_not_stop_the_others() {
    let (client, mut server) = pair().await;
    let bytes = content(4 * MIB);
    let unread = tokio::spawn(send(client.open().await, bytes.clone()));
    let mut kept = in_time(server.accept()).await;
    let sending = tokio::spawn(send(client.open().await, bytes.clone()));
    let mut read = in_time(server.accept()).await;
    assert!(in_time(read_all(&mut read)).await == bytes);
    // What was moved out of QUIC is still there, in order.
    assert!(in_time(read_all(&mut kept)).await == bytes);
    let _ = (unread.await.expect("sent"), sending.await.expect("sent"));
}

#[tokio::test]
async fn an_unread_stream_is_stopped_if_there_is_no_memory_for_it() {
    let budget = Budget::new(64 * 1024);
    let (mut dialer, mut listener) = (ours_with(&budget).0, ours_with(&budget).0);
    let address = listener.listen(LOCALHOST).await;
    let (client, mut server) = connect(&mut dialer, &mut listener, &address).await;
    let bytes = content(2 * MIB);
    let mut stream = client.open().await;
    let unread = tokio::spawn(async move { stream.write_all(&content(2 * MIB)).await });
    let mut kept = in_time(server.accept()).await;
    let sending = tokio::spawn(send(client.open().await, bytes.clone()));
    let mut read = in_time(server.accept()).await;
    assert!(in_time(read_all(&mut read)).await == bytes);
    assert!(kept.read_to_end(&mut Vec::new()).await.is_err(), "the stream was given up");
    assert!(unread.await.expect("ended").is_err(), "the writer learns of it");
    sending.await.expect("sent");
}

#[tokio::test]
async fn what_a_connection_had_of_the_budget_is_free_after_its_end() {
    let budget = Budget::new(64 * MIB);
    let (mut dialer, mut listener) = (ours_with(&budget).0, ours_with(&budget).0);
    let address = listener.listen(LOCALHOST).await;
    let (client, mut server) = connect(&mut dialer, &mut listener, &address).await;
    // A stream that is not read takes memory of the budget for certain.
    let mut stream = client.open().await;
    let writing = tokio::spawn(async move {
        let _ = stream.write_all(&content(4 * MIB)).await;
    });
    let unread = in_time(server.accept()).await;
    let until = |condition: fn(usize) -> bool| {
        let budget = budget.clone();
        in_time(async move {
            while !condition(budget.free()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    };
    until(|free| free < 64 * MIB).await;
    writing.abort();
    drop((unread, client, server));
    until(|free| free == 64 * MIB).await;
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

fn port(address: &Multiaddr) -> u16 {
    let port = address.iter().find_map(|part| if let Protocol::Udp(port) = part { Some(port) } else { None });
    port.expect("a UDP address")
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
    let (mut one, mut other) = (ours(), ours());
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

#[tokio::test]
async fn a_hole_cannot_be_punched_without_a_listener() {
    let (mut one, mut other) = (ours(), ours());
    let address = other.listen(LOCALHOST).await.with(Protocol::P2p(other.id));
    let as_listener = DialOpts { role: Endpoint::Listener, port_use: PortUse::New };
    assert!(matches!(one.transport.dial(address, as_listener), Err(TransportError::Other(_))));
}

#[tokio::test]
async fn handshakes_over_the_limit_are_refused_and_unproved_addresses_are_validated() {
    let budget = Budget::new(64 * MIB);
    let (mut listener, handshakes) = ours_with(&budget);
    let address = listener.listen(LOCALHOST).await;
    keep(listener);
    let pending = |ip: [u8; 4], count: usize| -> Vec<_> {
        let begin = |_| match handshakes.begin(IpAddr::from(ip), true) {
            Verdict::Accept(slot) => slot,
            other => panic!("{other:?}"),
        };
        (0..count).map(begin).collect()
    };
    let dial = async || ours().transport.dial(address.clone(), DIALER).expect("dials").await.is_ok();
    let own = pending([127, 0, 0, 1], 16);
    assert!(!in_time(dial()).await, "the address has too many");
    drop(own);
    let others: Vec<_> = (0..8).map(|host| pending([192, 0, 2, host], 16)).collect();
    assert!(in_time(dial()).await, "it proves its address (Retry)");
    drop(others);
    assert!(in_time(dial()).await);
}

/// Forwards packets between a server and one client, with a delay, and drops one in `loss`.
async fn relay(server: SocketAddr, delay: Duration, loss: usize) -> SocketAddr {
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.expect("binds"));
    let address = socket.local_addr().expect("bound");
    tokio::spawn(async move {
        let (mut client, mut buffer) = (None, [0; 2048]);
        for number in 1_usize.. {
            let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
            let to = if from == server { client } else { Some(server) };
            if from != server {
                client = Some(from);
            }
            let Some(to) = to.filter(|_| number % loss != 0) else { continue };
            let (socket, packet) = (socket.clone(), buffer[..length].to_vec());
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = socket.send_to(&packet, to).await;
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_arrives_whole_over_a_path_with_delay_and_loss() {
    let (mut dialer, mut listener) = (ours(), ours());
    let address = listener.listen(LOCALHOST).await;
    let server = SocketAddr::from(([127, 0, 0, 1], port(&address)));
    let through = relay(server, Duration::from_millis(5), 100).await;
    let through = format!("/ip4/127.0.0.1/udp/{}/quic-v1", through.port()).parse().expect("an address");
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
