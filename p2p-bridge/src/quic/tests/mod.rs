//! Connections over real sockets: with libp2p's QUIC transport and with each other.

mod connections;
mod listening;
mod memory;

use super::handshakes::Handshakes;
use super::{Budget, Connection, QuicTransport};
use crate::udp;
use futures::channel::{mpsc, oneshot};
use futures::{AsyncReadExt as _, AsyncWriteExt as _, StreamExt as _};
use libp2p::core::Endpoint;
use libp2p::core::muxing::{StreamMuxer as _, StreamMuxerBox, StreamMuxerExt as _, SubstreamBox};
use libp2p::core::transport::{Boxed, DialOpts, ListenerId, PortUse, Transport as _, TransportEvent};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId, quic};
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::Instant;

type Muxers = Boxed<(PeerId, StreamMuxerBox)>;

const MIB: usize = 1024 * 1024;
const LOCALHOST: &str = "/ip4/127.0.0.1/udp/0/quic-v1";
const DIALER: DialOpts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::Reuse };
/// Only a test that fails waits for so long.
const PATIENCE: Duration = Duration::from_secs(120);
/// Less than QUIC's idle timeout.
const BEFORE_IDLE_TIMEOUT: Duration = Duration::from_secs(8);

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
    driver: JoinHandle<()>,
}

impl Peer {
    fn new((id, muxer): (PeerId, StreamMuxerBox)) -> Self {
        let (open, requests) = mpsc::unbounded();
        let (accepted, inbound) = mpsc::unbounded();
        let driver = tokio::spawn(drive(muxer, requests, accepted));
        Self { id, open, inbound, driver }
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

/// Both ends of a connection that nothing drives, and their transports.
struct Undriven {
    dialled: Connection,
    accepted: Connection,
    _transports: [QuicTransport; 2],
}

impl Undriven {
    async fn new(budget: &Budget) -> Self {
        let transport = || QuicTransport::new(&Keypair::generate_ed25519(), budget.clone()).expect("a configuration");
        let (mut dialer, mut listener) = (transport(), transport());
        listener.listen_on(ListenerId::next(), LOCALHOST.parse().expect("an address")).expect("listens");
        let event = poll_fn(|cx| Pin::new(&mut listener).poll(cx)).await;
        let TransportEvent::NewAddress { listen_addr, .. } = event else { panic!("not listening") };
        let dial = dialer.dial(listen_addr, DIALER).expect("dials");
        let accept = async {
            match poll_fn(|cx| Pin::new(&mut listener).poll(cx)).await {
                TransportEvent::Incoming { upgrade, .. } => upgrade.await,
                other => panic!("no connection: {other:?}"),
            }
        };
        let (dialled, accepted) = in_time(async { futures::join!(dial, accept) }).await;
        let (dialled, accepted) = (dialled.expect("dialled").1, accepted.expect("accepted").1);
        Self { dialled, accepted, _transports: [dialer, listener] }
    }

    /// A stream that the dialler has opened with some bytes: quinn's half, and the listener's end.
    async fn stream(&mut self, bytes: &[u8]) -> (quinn::SendStream, super::Stream) {
        let (mut sending, _) = in_time(self.dialled.quinn().open_bi()).await.expect("opened");
        sending.write_all(bytes).await.expect("written");
        let accepting = poll_fn(|cx| Pin::new(&mut self.accepted).poll_inbound(cx));
        (sending, in_time(accepting).await.expect("accepted"))
    }

    /// The listener's ticks, some time after the other.
    fn ticks(&mut self, count: usize) {
        for _ in 0..count {
            self.accepted.tick_now();
        }
    }

    fn frames(&self) -> quinn::FrameStats {
        self.accepted.quinn().stats().frame_rx
    }
}

fn port(address: &Multiaddr) -> u16 {
    let port = address.iter().find_map(|part| if let Protocol::Udp(port) = part { Some(port) } else { None });
    port.expect("a UDP address")
}

/// Waits until a condition holds.
async fn until(mut holds: impl FnMut() -> bool) {
    in_time(async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Which way a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Client,
    Server,
}

/// Forwards packets between a listener on IPv4's loopback and one client. `forward` may change a packet, and returns
/// whether it arrives. Returns the address for the client.
async fn path(
    listener: &Multiaddr,
    delay: Duration,
    mut forward: impl FnMut(To, &mut Vec<u8>) -> bool + Send + 'static,
) -> Multiaddr {
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port(listener)));
    let socket = udp::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("binds");
    let socket = Arc::new(UdpSocket::from_std(socket).expect("a socket"));
    let address = super::address::of(socket.local_addr().expect("bound"));
    let (on_the_way, mut arriving) = tokio::sync::mpsc::unbounded_channel();
    let receiver = socket.clone();
    tokio::spawn(async move {
        let (mut client, mut buffer) = (None, [0; 2048]);
        while let Ok((length, from)) = receiver.recv_from(&mut buffer).await {
            let mut packet = buffer[..length].to_vec();
            let (direction, to) = if from == server { (To::Client, client) } else { (To::Server, Some(server)) };
            if direction == To::Server {
                client = Some(from);
            }
            if let Some(to) = to.filter(|_| forward(direction, &mut packet)) {
                let _ = on_the_way.send((Instant::now() + delay, packet, to));
            }
        }
    });
    tokio::spawn(async move {
        while let Some((at, packet, to)) = arriving.recv().await {
            tokio::time::sleep_until(at).await;
            let _ = socket.send_to(&packet, to).await;
        }
    });
    address
}
