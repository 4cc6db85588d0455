//! Tests with real swarms over TCP and QUIC on loopback: an asker that opens streams and speaks the protocol by itself.

use super::super::client::active::TransferEnd;
use super::super::client::fixture::Start;
use super::super::fragments::Reassembly;
use super::super::framing::read_frame;
use super::super::message::{
    ANSWER_BYTES_MAX, ANSWER_OVERHEAD_BYTES, Answer, BUDGET_BYTES_MAX, BUDGET_BYTES_MIN, Control, EndStatus, Opening,
    PROTOCOL, Request, TransferId,
};
use super::super::server::inbound::STREAMS_PER_CONNECTION;
use super::super::server::metrics::ServedEnd;
use super::super::test_support::{Import, PATHS, TestSource, expected, names, noise, profile, raw, scopes, site, text};
use super::*;
use crate::bitswap::{self, client};
use crate::fairness::ALLOWANCE_MIN;
use crate::framing;
use crate::wants::Wants;
use content::importer::Profile;
use content::scope::{DagScope, ScopeOptions};
use content::{Block, BlockKey, Cid, MemoryBlocks};
use futures::future::join_all;
use futures::task::noop_waker;
use futures::{AsyncWriteExt, StreamExt};
use libp2p::core::upgrade::{DeniedUpgrade, ReadyUpgrade};
use libp2p::swarm::handler::{ConnectionEvent, DialUpgradeError, FullyNegotiatedOutbound};
use libp2p::swarm::{ConnectionHandler, ConnectionHandlerEvent, NotifyHandler, SubstreamProtocol, SwarmEvent};
use libp2p::{Multiaddr, StreamProtocol, Swarm, SwarmBuilder, noise, yamux};
use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// A limit against hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// The transport of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Tcp,
    Quic,
}

impl Link {
    fn listen(self) -> Multiaddr {
        let address = match self {
            Self::Tcp => "/ip4/127.0.0.1/tcp/0",
            Self::Quic => "/ip4/127.0.0.1/udp/0/quic-v1",
        };
        address.parse().expect("an address")
    }
}

fn swarm<B: NetworkBehaviour>(behaviour: B) -> Swarm<B> {
    crate::tls::use_ring();
    SwarmBuilder::with_new_identity()
        .with_tokio()
        .with_tcp(Default::default(), noise::Config::new, yamux::Config::default)
        .expect("noise")
        .with_quic()
        .with_behaviour(|_| behaviour)
        .expect("a behaviour")
        .with_swarm_config(|config| config.with_idle_connection_timeout(PATIENCE))
        .build()
}

#[derive(NetworkBehaviour)]
struct Protocols {
    bitswap: bitswap::behaviour::Behaviour,
    dag: Behaviour,
}

fn bitswap(local: Arc<dyn BlockSource>, favoured: &[PeerId]) -> (bitswap::behaviour::Behaviour, BitswapClient) {
    let wants = Arc::new(Wants::default());
    let (commands, inbox) = mpsc::unbounded_channel();
    let behaviour = bitswap::behaviour::Behaviour::new(
        client::Config::default(),
        crate::metrics::Metrics::default(),
        Arc::clone(&wants),
        inbox,
        local,
        framing::Memory::new(64 << 20),
        bitswap::behaviour::PeerSettings { favoured: favoured.iter().copied().collect(), serve_to: ServeTo::Everyone },
    );
    (behaviour, BitswapClient { wants, commands })
}

/// Requests blocks by Bitswap.
struct BitswapClient {
    wants: Arc<Wants>,
    commands: mpsc::UnboundedSender<bitswap::behaviour::SessionCommand>,
}

impl BitswapClient {
    async fn get(&self, cid: &Cid) -> Block {
        let (key, session) = (BlockKey::of(cid).expect("a key"), *cid.hash());
        let (_, reply) = self.wants.register(key, *cid, session);
        let want = bitswap::behaviour::SessionCommand::Want { session, cid: *cid, ahead: None };
        self.commands.send(want).map_err(|_| "the behaviour has ended").expect("sends");
        timeout(PATIENCE, reply).await.expect("in time").expect("is answered").expect("a block")
    }
}

/// A node that serves.
struct Node {
    peer: PeerId,
    address: Multiaddr,
    source: Arc<TestSource>,
    metrics: Metrics,
    ledger: SharedLedger,
    offences: Arc<Mutex<Vec<(PeerId, Offence)>>>,
    _task: AbortOnDropHandle<()>,
}

impl Node {
    async fn start(source: Arc<TestSource>, link: Link) -> Self {
        Self::with(source, link, Settings { enabled: true, serve_to: ServeTo::Everyone }).await
    }

    async fn with(source: Arc<TestSource>, link: Link, settings: Settings) -> Self {
        let (ledger, metrics) = (SharedLedger::default(), Metrics::register(&mut Default::default()));
        let local: Arc<dyn BlockSource> = Arc::<TestSource>::clone(&source);
        let (bitswap, _) = bitswap(Arc::clone(&local), &[]);
        let dag = Behaviour::new(settings, local, ledger.clone(), metrics.clone());
        let mut swarm = swarm(Protocols { bitswap: bitswap.with_ledger(ledger.clone()), dag });
        let peer = *swarm.local_peer_id();
        swarm.listen_on(link.listen()).expect("listens");
        let address = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
                break address;
            }
        };
        let offences = Arc::<Mutex<Vec<_>>>::default();
        let found = Arc::clone(&offences);
        let task = tokio::spawn(async move {
            loop {
                let event = swarm.select_next_some().await;
                if let SwarmEvent::Behaviour(ProtocolsEvent::Dag(Event::Offence(peer, offence))) = event {
                    found.lock().expect("no panic").push((peer, offence));
                }
            }
        });
        let _task = AbortOnDropHandle::new(task);
        Self { peer, address, source, metrics, ledger, offences, _task }
    }

    fn offences(&self) -> Vec<(PeerId, Offence)> {
        self.offences.lock().expect("no panic").clone()
    }

    async fn until(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        let waiting = async {
            while !condition(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{what}"));
    }

    /// Waits until no transfer is left, and checks that none holds anything.
    async fn until_idle(&self) {
        self.until("a transfer is left", |node| node.metrics.active.get() == 0).await;
        self.until("bytes are left", |node| node.ledger.get().in_flight_bytes() == 0).await;
    }
}

/// Opens streams of the protocol.
struct Opener {
    commands: mpsc::UnboundedReceiver<oneshot::Sender<Option<Stream>>>,
    peer: Option<PeerId>,
    events: VecDeque<ToSwarm<Infallible, OpenCommand>>,
}

type Infallible = std::convert::Infallible;

#[derive(Debug)]
struct OpenCommand(oneshot::Sender<Option<Stream>>);

struct OpenerHandler {
    commands: VecDeque<OpenCommand>,
}

impl ConnectionHandler for OpenerHandler {
    type FromBehaviour = OpenCommand;
    type ToBehaviour = Infallible;
    type InboundProtocol = DeniedUpgrade;
    type OutboundProtocol = ReadyUpgrade<StreamProtocol>;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = OpenCommand;

    fn listen_protocol(&self) -> SubstreamProtocol<DeniedUpgrade> {
        SubstreamProtocol::new(DeniedUpgrade, ())
    }

    fn on_behaviour_event(&mut self, command: OpenCommand) {
        self.commands.push_back(command);
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<'_, DeniedUpgrade, ReadyUpgrade<StreamProtocol>, (), OpenCommand>,
    ) {
        match event {
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, info }) => {
                let _ = info.0.send(Some(protocol));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, .. }) => _ = info.0.send(None),
            _ => {}
        }
    }

    fn poll(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<ReadyUpgrade<StreamProtocol>, OpenCommand, Infallible>> {
        match self.commands.pop_front() {
            Some(command) => Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest {
                protocol: SubstreamProtocol::new(ReadyUpgrade::new(PROTOCOL), command),
            }),
            None => Poll::Pending,
        }
    }
}

impl NetworkBehaviour for Opener {
    type ConnectionHandler = OpenerHandler;
    type ToSwarm = Infallible;

    crate::handler_of_each_connection!(|_behaviour, _peer| OpenerHandler { commands: VecDeque::new() });

    fn on_swarm_event(&mut self, event: FromSwarm) {
        if let FromSwarm::ConnectionEstablished(established) = event {
            self.peer = Some(established.peer_id);
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: Infallible) {
        match event {}
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Infallible, OpenCommand>> {
        while let (Some(peer_id), Poll::Ready(Some(reply))) = (self.peer, self.commands.poll_recv(cx)) {
            let event = OpenCommand(reply);
            self.events.push_back(ToSwarm::NotifyHandler { peer_id, handler: NotifyHandler::Any, event });
        }
        self.events.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

/// A peer that asks.
struct Asking {
    peer: PeerId,
    opener: mpsc::UnboundedSender<oneshot::Sender<Option<Stream>>>,
    _task: AbortOnDropHandle<()>,
}

impl Asking {
    async fn connect(node: &Node) -> Self {
        let (opener, commands) = mpsc::unbounded_channel();
        let mut swarm = swarm(Opener { commands, peer: None, events: VecDeque::new() });
        let peer = *swarm.local_peer_id();
        swarm.dial(node.address.clone()).expect("dials");
        while !matches!(swarm.select_next_some().await, SwarmEvent::ConnectionEstablished { .. }) {}
        let task = tokio::spawn(async move {
            loop {
                swarm.select_next_some().await;
            }
        });
        Self { peer, opener, _task: AbortOnDropHandle::new(task) }
    }

    async fn try_open(&self) -> Option<Stream> {
        let (reply, stream) = oneshot::channel();
        self.opener.send(reply).expect("the swarm runs");
        timeout(PATIENCE, stream).await.expect("in time").expect("is answered")
    }

    async fn open(&self) -> Stream {
        self.try_open().await.expect("opens")
    }

    /// Opens a stream with a message.
    async fn send(&self, opening: &Opening) -> Stream {
        let mut stream = self.open().await;
        write(&mut stream, opening.encode()).await.expect("writes");
        stream
    }

    async fn request(&self, request: Request) -> Stream {
        self.send(&Opening::Request(request)).await
    }

    /// The whole answer to a request on one stream.
    async fn ask(&self, request: Request) -> (Vec<Answer>, Option<EndStatus>) {
        let mut stream = self.request(request).await;
        read_to_end(&mut stream).await
    }
}

async fn write(stream: &mut Stream, parts: Vec<bytes::Bytes>) -> std::io::Result<()> {
    for part in parts {
        stream.write_all(&part).await?;
    }
    stream.flush().await
}

/// The next answer; `None` at the end of the stream, or if it was reset.
async fn read(stream: &mut Stream) -> Option<Answer> {
    let frame = timeout(PATIENCE, read_frame(stream, ANSWER_BYTES_MAX, PATIENCE)).await.expect("in time");
    frame.ok().flatten().map(|frame| Answer::decode(frame).expect("an answer"))
}

async fn read_to_end(stream: &mut Stream) -> (Vec<Answer>, Option<EndStatus>) {
    let mut answers = Vec::new();
    while let Some(answer) = read(stream).await {
        if let Answer::End(status) = answer {
            return (answers, Some(status));
        }
        answers.push(answer);
    }
    (answers, None)
}

fn request(id: u64, root: Cid) -> Request {
    Request {
        transfer: TransferId(id),
        root,
        path: Vec::new(),
        scope: ScopeOptions { scope: DagScope::All, entity_bytes: None, duplicates: false },
        held: Vec::new(),
        budget_bytes: BUDGET_BYTES_MAX,
        packed: false,
        fragments: false,
    }
}

/// The verified CIDs of the answers, sorted.
fn verified(answers: &[Answer]) -> Vec<Cid> {
    let block = |answer: &Answer| match answer {
        Answer::Block { cid, data } => Some(Block::verify(*cid, data.clone()).expect("matches")),
        Answer::Packed(packed) => Some(Block::verify_stored(packed.cid, packed.stored.clone()).expect("matches")),
        Answer::Absent(_) | Answer::End(_) | Answer::Fragment(_) => None,
    };
    let mut cids: Vec<Cid> = answers.iter().filter_map(block).map(|block| *block.cid()).collect();
    cids.sort();
    cids
}

/// A task that reads a stream to its end.
struct Reading(tokio::task::JoinHandle<(AnswersAndEnd, Stream)>);

type AnswersAndEnd = (Vec<Answer>, Option<EndStatus>);

/// The answers, after their fragments were put together.
fn assembled(answers: Vec<Answer>) -> Vec<Answer> {
    let mut reassembly = Reassembly::default();
    let whole = answers.into_iter().filter_map(|answer| match answer {
        Answer::Fragment(fragment) => {
            let whole = reassembly.push(fragment, ()).expect("is honest")?;
            Some(Answer::decode(whole.0).expect("an answer"))
        }
        answer => Some(answer),
    });
    let whole = whole.collect();
    assert_eq!(reassembly.bytes(), 0, "nothing is incomplete");
    whole
}

/// A file of noise in 256 KiB leaves.
fn file(megabytes: usize) -> (Arc<TestSource>, Cid) {
    let source = TestSource::default();
    let profile = Profile { chunking: "size-262144".parse().expect("a chunking"), ..Profile::UNIXFS_V1_2025 };
    let root = Import::new(&source, profile).file(&noise(1, megabytes << 20)).cid;
    (Arc::new(source), root)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_with_the_blocks_of_an_archive() {
    for link in [Link::Tcp, Link::Quic] {
        let (source, root) = site(false);
        let node = Node::start(source, link).await;
        let asking = Asking::connect(&node).await;
        let mut id = 0;
        for path in PATHS {
            for scope in scopes() {
                id += 1;
                let request = Request { path: names(path), scope, packed: id % 2 == 0, ..request(id, root) };
                let (answers, status) = asking.ask(request).await;
                let mut wanted: Vec<Cid> =
                    expected(&node.source, root, path, scope).await.iter().map(|block| *block.cid()).collect();
                wanted.sort();
                assert_eq!((verified(&answers), status), (wanted, Some(EndStatus::Complete)), "{path} {scope:?}");
            }
        }
        node.until_idle().await;
        assert_eq!((node.metrics.count(ServedEnd::Complete), node.offences()), (id, vec![]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_striped_over_the_streams_that_join() {
    for (link, fragments) in [(Link::Tcp, false), (Link::Tcp, true), (Link::Quic, true)] {
        let (source, root) = file(12);
        let node = Node::start(source, link).await;
        let asking = Asking::connect(&node).await;
        let join = || async {
            let mut stream = asking.send(&Opening::Join(TransferId(1))).await;
            let reading = async move {
                let found = read_to_end(&mut stream).await;
                (found, stream)
            };
            Reading(tokio::spawn(reading))
        };
        // Some are there before the request, some after it.
        let mut joined = vec![join().await, join().await];
        let mut first = asking.request(Request { fragments, ..request(1, root) }).await;
        joined.extend([join().await, join().await]);
        let (mut answers, status) = read_to_end(&mut first).await;
        assert_eq!(status, Some(EndStatus::Complete));
        let mut carrying = usize::from(!answers.is_empty());
        for task in joined {
            let ((found, status), _stream) = task.0.await.expect("no panic");
            assert_eq!(status, None, "the end is on the first stream");
            carrying += usize::from(!found.is_empty());
            answers.extend(found);
        }
        assert!(carrying >= 2, "{carrying} of five streams carried blocks");
        let is_cut = answers.iter().any(|answer| matches!(answer, Answer::Fragment(_)));
        assert_eq!(is_cut, fragments);
        let answers = assembled(answers);
        let wanted = expected(&node.source, root, "", ScopeOptions::default()).await;
        let mut wanted: Vec<Cid> = wanted.iter().map(|block| *block.cid()).collect();
        wanted.sort();
        assert_eq!(verified(&answers), wanted);
        node.until_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_joins_an_ended_transfer_ends() {
    let (source, root) = site(false);
    let node = Node::start(source, Link::Tcp).await;
    let asking = Asking::connect(&node).await;
    let (_, status) = asking.ask(request(1, root)).await;
    assert_eq!(status, Some(EndStatus::Complete));
    node.until_idle().await;
    let mut late = asking.send(&Opening::Join(TransferId(1))).await;
    assert_eq!(read_to_end(&mut late).await, (vec![], None));
    assert_eq!(node.offences(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_budget_is_never_exceeded_and_credit_continues() {
    let (source, root) = file(8);
    let node = Node::start(source, Link::Tcp).await;
    let asking = Asking::connect(&node).await;
    let budget = 1 << 20;
    let mut stream = asking.request(Request { budget_bytes: BUDGET_BYTES_MIN, ..request(1, root) }).await;
    let (mut answers, mut left, mut waits) = (Vec::new(), BUDGET_BYTES_MIN, 0);
    let status = loop {
        // A leaf and its overhead.
        if left < (256 << 10) + ANSWER_OVERHEAD_BYTES {
            waits += 1;
            let (reads, sent) = (node.source.reads(), answers.len());
            // Another transfer is served meanwhile, after which nothing more of this one has been read.
            let small = raw(noise(1_000 + waits, 100));
            node.source.insert(&small);
            let (other, _) = asking.ask(request(1_000 + waits, *small.cid())).await;
            assert_eq!(other.len(), 1);
            assert!(node.source.reads() <= reads + 3, "{sent}");
            write(&mut stream, Control::Credit(budget).encode()).await.expect("writes");
            left += budget;
        }
        match read(&mut stream).await.expect("an answer") {
            Answer::End(status) => break status,
            answer => {
                left = left.checked_sub(answer.budget_bytes()).expect("no more than the budget");
                answers.push(answer);
            }
        }
    };
    assert_eq!((status, waits), (EndStatus::Complete, 7));
    assert_eq!(verified(&answers).len(), 33);
}

#[tokio::test(flavor = "multi_thread")]
async fn absent_blocks_and_skipped_subtrees_are_left_out() {
    let (source, root) = site(false);
    let all = ScopeOptions { scope: DagScope::All, entity_bytes: None, duplicates: false };
    let page = *expected(&source, root, "a/b/c/page.html", all).await.last().expect("blocks").cid();
    let many = expected(&source, root, "many", all).await;
    source.withhold(&page);
    let node = Node::start(source, Link::Tcp).await;
    let asking = Asking::connect(&node).await;
    let (answers, status) = asking.ask(Request { held: vec![*many[1].cid()], ..request(1, root) }).await;
    assert_eq!(status, Some(EndStatus::Complete));
    assert!(answers.contains(&Answer::Absent(page)));
    let found: HashSet<Cid> = verified(&answers).into_iter().collect();
    assert!(!found.contains(&page) && many[1..].iter().all(|block| !found.contains(block.cid())));
    assert!(found.len() > 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_transfer_ends_at_once() {
    for link in [Link::Tcp, Link::Quic] {
        for half_closed in [false, true] {
            let (source, root) = file(64);
            let node = Node::start(source, link).await;
            let asking = Asking::connect(&node).await;
            let mut first = asking.request(request(1, root)).await;
            let mut joined = asking.send(&Opening::Join(TransferId(1))).await;
            let mut received = 0;
            while received < 2 << 20 {
                received += read(&mut first).await.expect("a block").budget_bytes();
            }
            // Two ways to cancel. The further stream is left open.
            if half_closed {
                first.close().await.expect("closes");
            } else {
                drop(first);
            }
            node.until_idle().await;
            assert_eq!(node.metrics.count(ServedEnd::Cancelled), 1, "{link:?}");
            let (found, status) = read_to_end(&mut joined).await;
            assert_eq!(status, None);
            let reads = node.source.reads();
            // At most what the budget allowed, although no credit was given.
            assert!(reads as u64 <= BUDGET_BYTES_MAX / (256 << 10) + 8, "{reads} blocks were read");
            let small = raw(noise(9, 100));
            node.source.insert(&small);
            let (other, status) = asking.ask(request(2, *small.cid())).await;
            assert_eq!((other.len(), status), (1, Some(EndStatus::Complete)));
            assert_eq!(node.source.reads(), reads + 1, "nothing more was read");
            drop(found);
            assert_eq!(node.offences(), []);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnected_peer_leaves_nothing() {
    let (source, root) = file(32);
    let node = Node::start(source, Link::Tcp).await;
    let asking = Asking::connect(&node).await;
    let mut streams = Vec::new();
    for id in 0..4 {
        streams.push(asking.request(request(id, root)).await);
    }
    for stream in &mut streams {
        read(stream).await.expect("a block");
    }
    drop(asking);
    node.until_idle().await;
    node.until("an account is left", |node| node.ledger.get().len() == 0).await;
    // The connection is not read while it closes, so that a stream may stall before.
    let ends = [ServedEnd::Cancelled, ServedEnd::Stalled].map(|end| node.metrics.count(end));
    assert_eq!(ends.iter().sum::<u64>(), 4, "{ends:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_read_delays_nobody_and_is_reported() {
    let (source, root) = file(12);
    let node = Node::start(source, Link::Tcp).await;
    let silent = Asking::connect(&node).await;
    let mut kept = Vec::new();
    for id in 0..4 {
        kept.push(silent.request(request(id, root)).await);
    }
    // Others are served meanwhile, by either protocol.
    let reading = Asking::connect(&node).await;
    let (answers, status) = reading.ask(request(1, root)).await;
    assert_eq!((answers.len(), status), (49, Some(EndStatus::Complete)));
    let (behaviour, bitswap) = bitswap(Arc::new(MemoryBlocks::new()), &[node.peer]);
    let mut swarm = swarm(behaviour);
    swarm.dial(node.address.clone()).expect("dials");
    let _task = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            swarm.select_next_some().await;
        }
    }));
    let cids: Vec<Cid> = verified(&answers);
    let blocks = join_all(cids.iter().map(|cid| bitswap.get(cid))).await;
    assert_eq!(blocks.len(), 49);
    let in_flight = node.ledger.get().in_flight_to(&silent.peer);
    assert!(in_flight <= ALLOWANCE_MIN + (2 << 20), "{in_flight}");
    // It is reported once, its transfers are dropped, and it may still ask.
    node.until("it has not stalled", |node| node.metrics.active.get() == 0).await;
    assert_eq!(node.metrics.count(ServedEnd::Stalled), 4);
    node.until_idle().await;
    node.until("it is not reported", |node| !node.offences().is_empty()).await;
    assert_eq!(node.offences(), [(silent.peer, Offence::Stall)]);
    assert_eq!(node.ledger.get().allowance(&silent.peer), ALLOWANCE_MIN);
}

#[tokio::test]
async fn a_transfer_that_no_connection_takes_is_lost_at_once() {
    let mut start = Start::of_random_peer();
    let (transfers, receiver) = mpsc::unbounded_channel();
    let settings = Settings { enabled: true, serve_to: ServeTo::Everyone };
    let local: Arc<dyn BlockSource> = Arc::new(MemoryBlocks::new());
    let behaviour =
        Behaviour::new(settings, local, SharedLedger::default(), Metrics::register(&mut Default::default()));
    let asking = super::Asking { context: Arc::clone(&start.context), transfers: receiver };
    let mut behaviour = behaviour.asking(asking);
    let poll = |behaviour: &mut Behaviour| behaviour.poll(&mut Context::from_waker(&noop_waker()));
    // Its peer is not connected.
    transfers.send(Arc::clone(&start.active)).expect("is received");
    assert!(poll(&mut behaviour).is_pending());
    assert_eq!(start.end(), Some(TransferEnd::Lost));
    // Its connection is gone before the event reaches it.
    let mut start = Start::of_random_peer();
    let connection = ConnectionId::new_unchecked(1);
    behaviour.connections.insert(start.active.peer, vec![connection]);
    transfers.send(Arc::clone(&start.active)).expect("is received");
    let event = poll(&mut behaviour);
    assert!(
        matches!(event, Poll::Ready(ToSwarm::NotifyHandler { handler: NotifyHandler::One(id), .. }) if id == connection)
    );
    drop(event);
    assert_eq!(start.end(), Some(TransferEnd::Lost));
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_are_not_served_are_refused() {
    let (source, root) = site(false);
    let serve_to = ServeTo::Only(HashSet::new());
    let node = Node::with(source, Link::Tcp, Settings { enabled: true, serve_to }).await;
    let asking = Asking::connect(&node).await;
    let mut early = asking.send(&Opening::Join(TransferId(1))).await;
    assert_eq!(asking.ask(request(1, root)).await, (vec![], Some(EndStatus::Refused)));
    // Streams that join it end as well.
    let mut late = asking.send(&Opening::Join(TransferId(1))).await;
    for stream in [&mut early, &mut late] {
        let ended = timeout(PATIENCE / 10, read_to_end(stream)).await;
        assert_eq!(ended, Ok((vec![], None)), "without the timeout of a join");
    }
    assert_eq!((node.source.reads(), node.offences()), (0, vec![]));
    assert_eq!(node.metrics.count(ServedEnd::Refused), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_the_protocol_declines_streams() {
    let (source, _) = site(false);
    let settings = Settings { enabled: false, serve_to: ServeTo::Everyone };
    let node = Node::with(source, Link::Tcp, settings).await;
    let asking = Asking::connect(&node).await;
    assert!(asking.try_open().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_peer_is_served_more_slowly() {
    let (source, root) = file(4);
    let node = Node::start(source, Link::Tcp).await;
    let asking = Asking::connect(&node).await;
    node.ledger.get().throttle(asking.peer, true);
    let (answers, status) = asking.ask(request(1, root)).await;
    assert_eq!((answers.len(), status), (17, Some(EndStatus::Complete)));
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_messages_are_offences() {
    let (source, root) = file(4);
    let node = Node::start(source, Link::Tcp).await;
    let good = Asking::connect(&node).await;
    let openings: [&[u8]; 4] = [b"\x05hello", b"\x00", &[0xff; 16], &[0x80, 0x80, 0x80, 0x01]];
    for (count, bytes) in openings.into_iter().enumerate() {
        let asking = Asking::connect(&node).await;
        let mut stream = asking.open().await;
        write(&mut stream, vec![bytes::Bytes::from_static(bytes)]).await.expect("writes");
        assert_eq!(read_to_end(&mut stream).await, (vec![], None));
        node.until("no offence", |node| node.offences().len() == count + 1).await;
        assert_eq!(node.offences().last(), Some(&(asking.peer, Offence::Protocol)));
    }
    // A control message, and a request that is there already: the transfer is cancelled.
    let asking = Asking::connect(&node).await;
    let mut stream = asking.request(Request { budget_bytes: BUDGET_BYTES_MIN, ..request(1, root) }).await;
    assert!(read(&mut stream).await.is_some(), "the root fits");
    write(&mut stream, vec![bytes::Bytes::from_static(b"\x05hello")]).await.expect("writes");
    node.until("no offence", |node| node.offences().len() == 5).await;
    node.until_idle().await;
    let waiting = Request { budget_bytes: BUDGET_BYTES_MIN, ..request(2, root) };
    let mut first = asking.request(waiting.clone()).await;
    // Streams are read by tasks of their own: the second one must not be faster.
    assert!(read(&mut first).await.is_some(), "the root fits");
    let mut second = asking.request(waiting).await;
    assert_eq!(read_to_end(&mut second).await, (vec![], None));
    node.until("no offence", |node| node.offences().len() == 6).await;
    assert!(node.offences()[4..].iter().all(|offence| *offence == (asking.peer, Offence::Protocol)));
    let (answers, _) = good.ask(request(1, root)).await;
    assert_eq!(answers.len(), 17);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_of_a_later_release_is_refused_and_no_offence() {
    let (source, root) = file(4);
    let node = Node::start(source, Link::Tcp).await;
    let asking = Asking::connect(&node).await;
    let mut stream = asking.open().await;
    let cid = root.to_bytes();
    let body = [&[0x12, u8::try_from(cid.len()).expect("is short")][..], &cid, &[0x20, 9]].concat();
    let message = [&[0x0a, u8::try_from(body.len()).expect("is short")][..], &body].concat();
    let frame = [&[u8::try_from(message.len()).expect("is short")][..], &message].concat();
    write(&mut stream, vec![frame.into()]).await.expect("writes");
    assert_eq!(read_to_end(&mut stream).await, (vec![], Some(EndStatus::Refused)));
    // It is served as before.
    let (answers, _) = asking.ask(request(1, root)).await;
    assert_eq!((answers.len(), node.offences()), (17, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_requests_is_answered_with_busy_and_delays_nobody() {
    let (source, root) = site(false);
    // More than the budget of the flooding peer's requests, which wait for credit.
    let (leaves, large) = file(3);
    expected(&leaves, large, "", ScopeOptions::default()).await.iter().for_each(|block| source.insert(block));
    let node = Node::start(source, Link::Tcp).await;
    let (flooding, good) = (Asking::connect(&node).await, Asking::connect(&node).await);
    let mut statuses = Vec::new();
    for batch in 0..8_u64 {
        // More than the transfers of a connection.
        let asks = (0..100).map(|n| {
            let request = Request { budget_bytes: BUDGET_BYTES_MIN, ..request(batch * 100 + n, large) };
            async {
                let mut stream = flooding.request(request).await;
                let first = timeout(Duration::from_millis(200), read_to_end(&mut stream)).await;
                first.ok().and_then(|(_, status)| status)
            }
        });
        statuses.extend(join_all(asks).await);
        let (answers, status) = good.ask(request(batch, root)).await;
        assert_eq!(status, Some(EndStatus::Complete));
        assert!(answers.len() > 100);
    }
    assert!(statuses.contains(&Some(EndStatus::Busy)));
    node.until_idle().await;
    let offences = node.offences();
    assert!(offences.iter().all(|offence| *offence == (flooding.peer, Offence::Flood)), "{offences:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_streams_and_joins_without_a_request_are_limited() {
    let (source, root) = site(false);
    let node = Node::start(source, Link::Tcp).await;
    let (flooding, good) = (Asking::connect(&node).await, Asking::connect(&node).await);
    let mut kept = Vec::new();
    for n in 0..STREAMS_PER_CONNECTION {
        let stream =
            if n % 2 == 0 { flooding.open().await } else { flooding.send(&Opening::Join(TransferId(n as u64))).await };
        kept.push(stream);
    }
    let mut refused = flooding.open().await;
    let opening = Opening::Request(request(1, root)).encode();
    let _ = write(&mut refused, opening).await;
    assert_eq!(read_to_end(&mut refused).await, (vec![], None), "it is reset");
    let (answers, _) = good.ask(request(1, root)).await;
    assert!(answers.len() > 100);
    // When they end, others are accepted.
    drop(kept);
    let accepted = async {
        loop {
            if let (_, Some(status)) = flooding.ask(request(1, root)).await {
                break status;
            }
        }
    };
    assert_eq!(timeout(PATIENCE, accepted).await, Ok(EndStatus::Complete));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_credit_delays_nobody() {
    let (source, root) = site(false);
    let (leaves, large) = file(3);
    expected(&leaves, large, "", ScopeOptions::default()).await.iter().for_each(|block| source.insert(block));
    let node = Node::start(source, Link::Tcp).await;
    let (flooding, good) = (Asking::connect(&node).await, Asking::connect(&node).await);
    let mut stream = flooding.request(Request { budget_bytes: BUDGET_BYTES_MIN, ..request(1, large) }).await;
    let flood = tokio::spawn(async move {
        let credit = Control::Credit(1).encode().concat().repeat(1_000);
        while stream.write_all(&credit).await.is_ok() {}
    });
    for id in 0..20 {
        let (answers, status) = good.ask(request(id, root)).await;
        assert_eq!(status, Some(EndStatus::Complete));
        assert!(answers.len() > 100);
    }
    flood.abort();
    assert!(flood.await.expect_err("is aborted").is_cancelled(), "the flood went on meanwhile");
    node.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_small_blocks_are_sent_together() {
    let source = TestSource::default();
    let profile = Profile { chunking: "size-1024".parse().expect("a chunking"), ..profile(true) };
    let root = Import::new(&source, Profile { file_links_max: 174, ..profile }).file(&text(1, 4 << 20)).cid;
    let node = Node::start(Arc::new(source), Link::Tcp).await;
    let asking = Asking::connect(&node).await;
    let (answers, status) = asking.ask(Request { packed: true, ..request(1, root) }).await;
    assert_eq!(status, Some(EndStatus::Complete));
    assert!(answers.len() > 4_096, "{}", answers.len());
    assert_eq!(verified(&answers).len(), answers.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_transfers_of_many_peers_all_end() {
    let (source, root) = site(true);
    let node = Node::start(source, Link::Tcp).await;
    let peers = join_all((0..6).map(|_| Asking::connect(&node))).await;
    let asks = peers.iter().flat_map(|asking| {
        (0..20).map(move |id| async move {
            let (answers, status) = asking.ask(Request { packed: id % 2 == 0, ..request(id, root) }).await;
            (verified(&answers).len(), status)
        })
    });
    let ends = join_all(asks).await;
    assert!(ends.iter().all(|end| *end == ends[0] && end.1 == Some(EndStatus::Complete)), "{ends:?}");
    node.until_idle().await;
    assert_eq!((ends.len(), node.offences()), (120, vec![]));
}
