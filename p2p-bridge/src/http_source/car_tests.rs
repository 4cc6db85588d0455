//! CARs from gateways over real sockets on loopback: single transfers, and a node whose only sources are gateways.

use super::*;
use crate::bitswap::behaviour::{Behaviour, PeerSettings, SessionCommand, Transfers};
use crate::bitswap::client;
use crate::bitswap::http_peers::{HttpPeers, HttpPeersOptions};
use crate::dag::client::active::{Context as DagContext, TransferEvent, names_budget};
use crate::dag::client::pushed::{Pushed, Readers};
use crate::dag::message::{BUDGET_BYTES_MAX, Request, TransferId};
use crate::dag::test_support::{Import, PATHS, TestSource, expected, names, noise, profile, scopes, site, text};
use crate::http_source::client::{Outcome, RequestKind};
use crate::http_source::dialling::Clients;
use crate::http_source::metrics::{CarOutcome, OutcomeKind};
use crate::http_source::test_server::{CarRequest, CarResponse, ServerMode, TestServer, Then, zstd};
use crate::network_policy::NetworkPolicy;
use crate::observers::BlockTransport;
use crate::session::{Session, Shared as SharedState};
use crate::wants::Wants;
use content::denylist::{List, Matcher};
use content::scope::{DagScope, EntityBytes, ScopeLimits};
use content::walk::Purpose;
use content::{Block, BlockSource, MemoryBlocks, ReadAhead, SourceError, Verdict, car};
use futures::future::{BoxFuture, FutureExt as _, Shared};
use futures::stream::TryStreamExt as _;
use libp2p::PeerId;
use libp2p::swarm::NetworkBehaviour as _;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::sync::Mutex;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(30);
const KIB: usize = 1024;
/// The network's memory.
const MEMORY: usize = 256 << 20;

/// An archive of blocks.
fn archive(blocks: &[Block]) -> Vec<u8> {
    let mut out = car::header(&[*blocks.first().expect("a root").cid()]).to_vec();
    blocks.iter().for_each(|block| out.extend(section(block)));
    out
}

fn section(block: &Block) -> Vec<u8> {
    let (head, data) = car::section(block);
    [head, data].concat()
}

/// How a server changes the archives that it sends.
type Change = dyn Fn(&CarRequest, Vec<Block>) -> CarResponse + Send + Sync;

/// A server with a DAG.
async fn serve(
    source: &Arc<TestSource>,
    change: impl Fn(&CarRequest, Vec<Block>) -> CarResponse + Send + Sync + 'static,
) -> TestServer {
    let server = TestServer::start(ServerMode::Honest, &source.all()).await;
    let (source, change): (_, Arc<Change>) = (Arc::clone(source), Arc::new(change));
    server.answer_cars(move |request| {
        let (source, change) = (Arc::clone(&source), Arc::clone(&change));
        async move {
            let path = request.path.join("/");
            let blocks = expected(&source, request.root, &path, request.scope).await;
            change(&request, blocks)
        }
        .boxed()
    });
    server
}

async fn honest(source: &Arc<TestSource>) -> TestServer {
    serve(source, |_, blocks| CarResponse::of(archive(&blocks))).await
}

/// A source with a file of so many bytes, and its root.
fn file(data: &[u8]) -> (Arc<TestSource>, Cid) {
    let source = Arc::new(TestSource::default());
    let root = Import::new(&source, profile(false)).file(data).cid;
    (source, root)
}

// --- one transfer ---------------------------------------------------------------------------------------------------

/// A transfer from a server.
struct Bench {
    client: GatewayClient,
    base: Base,
    active: Arc<ActiveTransfer>,
    context: Arc<DagContext>,
    events: mpsc::UnboundedReceiver<TransferEvent>,
    metrics: Metrics,
}

impl Bench {
    fn new(server: &TestServer, root: Cid, path: &str, scope: ScopeOptions, budget_bytes: u64) -> Self {
        Self::with_memory(server, root, path, scope, (budget_bytes, Memory::new(MEMORY)))
    }

    fn with_memory(
        server: &TestServer,
        root: Cid,
        path: &str,
        scope: ScopeOptions,
        (budget_bytes, memory): (u64, Memory),
    ) -> Self {
        Self::with_policy(server, root, path, scope, (budget_bytes, memory), NetworkPolicy::default())
    }

    fn with_policy(
        server: &TestServer,
        root: Cid,
        path: &str,
        scope: ScopeOptions,
        (budget_bytes, memory): (u64, Memory),
        policy: NetworkPolicy,
    ) -> Self {
        let (reports, events) = mpsc::unbounded_channel();
        let wants = Arc::<Wants>::default();
        let context = Arc::new(DagContext {
            wants: Arc::clone(&wants),
            pushed: Arc::default(),
            readers: Arc::default(),
            policy,
            names: names_budget(&memory),
            memory,
            events: reports,
            metrics: Default::default(),
            over: BlockTransport::Http,
        });
        let request = Request {
            transfer: TransferId(1),
            root,
            path: names(path),
            scope,
            held: Vec::new(),
            budget_bytes,
            packed: true,
            fragments: true,
        };
        let active = ActiveTransfer::new(Arc::clone(&context), PeerId::random(), *root.hash(), request);
        let base = Base::from_url(&server.url()).expect("a URL");
        let client = GatewayClient::new(Clients::new(false, true).expect("clients"), wants);
        Self { client, base, active, context, events, metrics: Metrics::default() }
    }

    fn of_file(server: &TestServer, root: Cid) -> Self {
        let scope = ScopeOptions { scope: DagScope::Entity, ..ScopeOptions::default() };
        Self::new(server, root, "", scope, BUDGET_BYTES_MAX)
    }

    /// Short timeouts.
    fn impatient(mut self) -> Self {
        let short = Duration::from_millis(300);
        (self.client.timeouts.stall, self.client.timeouts.body, self.client.timeouts.pause) = (short, 2 * short, short);
        self
    }

    async fn run(&mut self) -> (TransferEnd, usize) {
        let running = self.client.transfer(&self.base, Trust::Configured, Arc::clone(&self.active), &self.metrics);
        tokio::time::timeout(PATIENCE, running).await.expect("ends in time");
        self.ended()
    }

    /// How it has ended, and the number of blocks that were received.
    fn ended(&mut self) -> (TransferEnd, usize) {
        let mut received = 0;
        loop {
            match self.events.try_recv().expect("an end was reported") {
                TransferEvent::Received { .. } => received += 1,
                TransferEvent::Ended { end, .. } => return (end, received),
                _ => {}
            }
        }
    }

    fn is_buffered(&self, block: &Block) -> bool {
        self.context.pushed.holds_of(&block.key().expect("a key"), &self.active)
    }
}

#[tokio::test]
async fn each_scope_of_each_path_arrives_as_it_is_in_the_archive() {
    for v0 in [false, true] {
        let (source, root) = site(v0);
        let plain = honest(&source).await;
        let coded = serve(&source, |_, blocks| CarResponse::zstd(&archive(&blocks))).await;
        for (index, path) in PATHS.into_iter().enumerate() {
            for (number, scope) in scopes().into_iter().enumerate() {
                let server = if (index + number) % 2 == 0 { &plain } else { &coded };
                let mut bench = Bench::new(server, root, path, scope, BUDGET_BYTES_MAX);
                let blocks = expected(&source, root, path, scope).await;
                let outcome = bench.run().await;
                assert_eq!(outcome, (TransferEnd::Status(EndStatus::Complete), blocks.len()), "{path} {scope:?}");
                assert!(blocks.iter().all(|block| bench.is_buffered(block)), "{path} {scope:?}");
                let request = server.car_requests().pop().expect("is asked");
                // What a file does not need of a directory is not read.
                let scope = ScopeOptions { scope: DagScope::parse(scope.scope.name()).expect("a scope"), ..scope };
                assert_eq!((request.root, request.path, request.scope), (root, names(path), scope));
            }
        }
        let headers = &plain.asked()[0].headers;
        for header in ["accept: application/vnd.ipld.car; version=1; order=dfs; dups=n", "accept-encoding: zstd"] {
            assert!(headers.contains(header), "{header} is not in {headers}");
        }
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_resumed_where_the_file_breaks_off() {
    let (source, root) = file(&noise(1, 400 * KIB));
    // The first two responses break off, and the third has no end of its own.
    let server = serve(&source, |request, blocks| {
        let response = CarResponse::of(archive(&blocks));
        match request.number {
            0 => response.broken_after(100 * KIB),
            1 => response.broken_after(150 * KIB),
            2 => {
                let sections = archive(&blocks[..blocks.len() / 2]);
                CarResponse { announced: None, then: Then::Close, ..CarResponse::of(sections) }
            }
            _ => response,
        }
    })
    .await;
    let scope = ScopeOptions { scope: DagScope::Entity, ..ScopeOptions::default() };
    let blocks = expected(&source, root, "", scope).await;
    let mut bench = Bench::of_file(&server, root);
    assert_eq!(bench.run().await, (TransferEnd::Status(EndStatus::Complete), blocks.len()));
    assert_eq!(bench.metrics.cars_resumed.get(), 3);
    let from: Vec<i64> = server
        .car_requests()
        .iter()
        .map(|request| request.scope.entity_bytes.map_or(0, |bytes| bytes.bounds().0))
        .collect();
    assert!(from.is_sorted() && from[0] == 0 && from[1] > 80 * KIB as i64, "{from:?}");
    assert!(from.iter().all(|from| from % 4096 == 0), "they begin with a leaf: {from:?}");
    assert!(server.car_requests().iter().all(|request| request.scope.scope == DagScope::Entity));

    // A range stays a range.
    let server = serve(&source, |request, blocks| {
        let response = CarResponse::of(archive(&blocks));
        if request.number == 0 { response.broken_after(60 * KIB) } else { response }
    })
    .await;
    for (range, to) in [("100000:300000", Some(300_000)), ("-200000:*", Some(409_599)), ("5000:-1000", Some(408_600))] {
        let entity_bytes = Some(range.parse::<EntityBytes>().expect("a range"));
        let scope = ScopeOptions { entity_bytes, ..scope };
        let mut bench = Bench::new(&server, root, "", scope, BUDGET_BYTES_MAX);
        let before = server.car_requests().len();
        let broken = serve(&source, |request, blocks| {
            let response = CarResponse::of(archive(&blocks));
            if request.number == 0 { response.broken_after(60 * KIB) } else { response }
        })
        .await;
        bench.base = Base::from_url(&broken.url()).expect("a URL");
        let blocks = expected(&source, root, "", scope).await;
        assert_eq!(bench.run().await, (TransferEnd::Status(EndStatus::Complete), blocks.len()), "{range}");
        let resumed = broken.car_requests()[1].scope.entity_bytes.expect("a range").bounds();
        assert_eq!(resumed.1, to, "{range}");
        assert_eq!((before, broken.car_requests().len()), (0, 2), "{range}");
    }
}

#[tokio::test]
async fn a_transfer_is_resumed_a_few_times_and_only_after_progress() {
    let (source, root) = file(&noise(2, 400 * KIB));
    // One new leaf in each response.
    let server = serve(&source, |_, blocks| {
        let leaf = blocks.iter().position(|block| block.cid().codec() == content::codec::RAW).expect("a leaf");
        let bytes = archive(&blocks[..=leaf]).len() + 10;
        CarResponse::of(archive(&blocks)).broken_after(bytes)
    })
    .await;
    let mut bench = Bench::of_file(&server, root);
    let (end, received) = bench.run().await;
    assert_eq!(end, TransferEnd::Lost);
    assert_eq!(server.car_requests().len(), 1 + RESUMPTIONS_MAX);
    assert!(received > RESUMPTIONS_MAX, "{received}");

    let server = serve(&source, |_, blocks| CarResponse::of(archive(&blocks)).broken_after(100 * KIB)).await;
    let mut bench = Bench::of_file(&server, root);
    bench.active.state().cap();
    assert!(bench.run().await.1 > 20);
    let stuck =
        serve(&source, |_, blocks| CarResponse::of(archive(&blocks)).broken_after(archive(&blocks[..1]).len() + 9));
    let stuck = stuck.await;
    let mut bench = Bench::of_file(&stuck, root);
    assert_eq!(bench.run().await, (TransferEnd::Lost, 1));
    assert_eq!(stuck.car_requests().len(), 2, "the second one has brought nothing");
}

#[tokio::test]
async fn a_body_that_ends_too_early_is_not_complete() {
    let (source, root) = file(&noise(3, 100 * KIB));
    // HTTP says that the body is complete.
    let server = serve(&source, |_, blocks| CarResponse::of(archive(&blocks[..blocks.len() / 2]))).await;
    let mut bench = Bench::of_file(&server, root);
    let (end, received) = bench.run().await;
    assert_eq!(end, TransferEnd::Declined(Decline::Incomplete));
    assert!(received > 10);
    assert_eq!(server.car_requests().len(), 1, "it has sent what it has");
    // Encoded, and cut.
    let server = serve(&source, |_, blocks| {
        let coded = CarResponse::zstd(&archive(&blocks));
        let half = coded.body.len() / 2;
        CarResponse { announced: Some(half), body: coded.body[..half].to_vec(), ..coded }
    })
    .await;
    let mut bench = Bench::of_file(&server, root);
    let (end, _) = bench.run().await;
    assert!(end != TransferEnd::Status(EndStatus::Complete), "{end:?}");
}

#[tokio::test]
async fn a_body_is_read_as_readers_take_what_it_brings() {
    let (source, root) = file(&noise(4, 400 * KIB));
    let server = honest(&source).await;
    let scope = ScopeOptions { scope: DagScope::Entity, ..ScopeOptions::default() };
    let blocks = expected(&source, root, "", scope).await;
    let window = 64 * KIB as u64;
    let mut bench = Bench::new(&server, root, "", scope, window);
    let pushed = Arc::clone(&bench.context.pushed);
    let reader = tokio::spawn(async move {
        let mut most = 0;
        for block in &blocks {
            // It takes its time.
            tokio::time::sleep(Duration::from_millis(1)).await;
            while pushed.take(block.cid()).is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            most = most.max(pushed.len());
        }
        most
    });
    assert_eq!(bench.run().await.0, TransferEnd::Status(EndStatus::Complete));
    let most = tokio::time::timeout(PATIENCE, reader).await.expect("all were brought").expect("no panic");
    // Leaves of 4 KiB, and some nodes above them.
    assert!(most <= 20, "{most} blocks were buffered");
    assert_eq!(bench.context.memory.try_take(MEMORY).map(|_| ()), Some(()), "all memory is released");

    // Nobody takes anything.
    let mut bench = Bench::new(&server, root, "", scope, window).impatient();
    assert_eq!(bench.run().await.0, TransferEnd::Status(EndStatus::Budget));
    assert!(bench.context.pushed.len() <= 20);
    drop(bench.active);
    assert!(bench.context.pushed.is_empty(), "what is buffered is dropped with the transfer");
}

#[tokio::test]
async fn a_car_ends_where_another_one_begins() {
    let (source, root) = file(&noise(18, 400 * KIB));
    let server = honest(&source).await;
    let mut bench = Bench::of_file(&server, root);
    bench.active.state().end_at(200 * KIB as u64, false);
    let (end, received) = bench.run().await;
    assert_eq!(end, TransferEnd::Status(EndStatus::Complete));
    // Leaves of 4 KiB, and some nodes above them.
    assert!((50..70).contains(&received), "{received}");
    assert!(bench.active.state().has_ended());
}

#[tokio::test]
async fn a_car_that_would_bring_only_what_others_have_sent_is_complete() {
    let (source, root) = file(&noise(17, 400 * KIB));
    let blocks = expected(&source, root, "", ENTITY).await;
    let kept = blocks.len() - 3;
    // It stops before the last leaves.
    let server = serve(&source, move |_, blocks| {
        let (announced, body) = (Some(archive(&blocks).len()), archive(&blocks[..kept]));
        CarResponse { announced, then: Then::Hang, ..CarResponse::of(body) }
    })
    .await;
    let mut bench = Bench::of_file(&server, root);
    let (active, pushed) = (Arc::clone(&bench.active), Arc::clone(&bench.context.pushed));
    let skipped: Vec<Cid> = blocks[kept..].iter().map(|block| *block.cid()).collect();
    tokio::spawn(async move {
        while pushed.len() < kept {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        skipped.iter().for_each(|cid| active.skip(*cid));
    });
    assert_eq!(bench.run().await, (TransferEnd::Status(EndStatus::Complete), kept));
    assert_eq!(server.car_requests().len(), 1);
}

/// Over HTTP/2, what a client does not read of one response takes the window of the connection.
#[tokio::test]
async fn cars_that_are_not_read_delay_no_other_request() {
    const PAUSED: usize = 5;
    const STREAM_WINDOW_BYTES: usize = 2 << 20;
    let (source, root) = file(&noise(12, 6 << 20));
    let (small, large) = (crate::dag::test_support::raw(noise(13, 1 << 20)), source.all());
    let (server, certificate) = TestServer::start_tls("localhost", "h2", &[large, vec![small.clone()]].concat()).await;
    let answering = Arc::clone(&source);
    server.answer_cars(move |request| {
        let source = Arc::clone(&answering);
        async move {
            let blocks = expected(&source, request.root, &request.path.join("/"), request.scope).await;
            CarResponse::of(archive(&blocks))
        }
        .boxed()
    });
    let mut client = GatewayClient::new(Clients::with_root_certificate(certificate), Arc::default());
    client.timeouts.pause = PATIENCE * 4;
    let client = Arc::new(client);
    let transfer = |bench: &Bench| {
        let (client, base) = (Arc::clone(&client), Base::from_url(&server.url()).expect("a URL"));
        let (active, metrics) = (Arc::clone(&bench.active), bench.metrics.clone());
        async move { client.transfer(&base, Trust::Configured, active, &metrics).await }
    };
    // Nobody takes what they bring.
    let paused: Vec<Bench> = (0..PAUSED).map(|_| Bench::new(&server, root, "", ENTITY, 64 * KIB as u64)).collect();
    let tasks: Vec<_> = paused.iter().map(|bench| tokio::spawn(transfer(bench))).collect();
    let deadline = Instant::now() + PATIENCE;
    // Whatever the window of the connection, it is used up, or those of the responses are.
    while server.car_bytes() < 4 * STREAM_WINDOW_BYTES - 128 * KIB {
        assert!(Instant::now() < deadline, "{} bytes were sent", server.car_bytes());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let base = Base::from_url(&server.url()).expect("a URL");
    let answer = client.ask(&base, Trust::Configured, small.cid(), RequestKind::Block).await;
    let bytes = 1 << 20;
    assert_eq!(answer.outcome, Outcome::Block { key: small.key().expect("a key"), bytes, body_bytes: bytes });
    let mut other = Bench::of_file(&server, root);
    assert!(tokio::time::timeout(PATIENCE, transfer(&other)).await.expect("in time"), "over HTTP/2");
    assert_eq!(other.ended().0, TransferEnd::Status(EndStatus::Complete));
    assert!(tasks.iter().all(|task| !task.is_finished()), "the others are paused");
    tasks.into_iter().for_each(|task| task.abort());
}

#[tokio::test]
async fn a_car_is_requested_plain_without_memory_to_decode_it() {
    let (source, root) = file(&noise(10, 100 * KIB));
    let server = honest(&source).await;
    for (memory, coding) in [(32 << 20, "identity"), (70 << 20, "zstd"), (MEMORY, "zstd")] {
        let mut bench = Bench::with_memory(&server, root, "", ENTITY, (BUDGET_BYTES_MAX, Memory::new(memory)));
        assert_eq!(bench.run().await.0, TransferEnd::Status(EndStatus::Complete));
        let headers = server.asked().pop().expect("is asked").headers;
        assert!(headers.contains(&format!("accept-encoding: {coding}\r\n")), "{memory}: {headers}");
    }
    // A body that is encoded nevertheless is not read.
    let coded = serve(&source, |_, blocks| CarResponse::zstd(&archive(&blocks))).await;
    let mut bench = Bench::with_memory(&coded, root, "", ENTITY, (BUDGET_BYTES_MAX, Memory::new(32 << 20)));
    assert_eq!(bench.run().await, (TransferEnd::Declined(Decline::Refused), 0));
}

#[tokio::test]
async fn archives_in_another_order_and_with_duplicates_are_taken() {
    let (source, root) = site(false);
    let all = ScopeOptions::default();
    let blocks = expected(&source, root, "a", all).await;
    let reversed = serve(&source, |_, mut blocks| {
        let root = blocks.remove(0);
        blocks.reverse();
        CarResponse::of(archive(&[vec![root], blocks].concat()))
    });
    let twice = serve(&source, |_, blocks| {
        let all: Vec<Block> = blocks.iter().flat_map(|block| [block.clone(), block.clone()]).collect();
        CarResponse::of(archive(&all))
    });
    for server in [reversed.await, twice.await] {
        let mut bench = Bench::new(&server, root, "a", all, BUDGET_BYTES_MAX);
        assert_eq!(bench.run().await, (TransferEnd::Status(EndStatus::Complete), blocks.len()));
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// What hostile gateways send costs bounded memory and time, and ends the transfer.
#[tokio::test]
async fn hostile_bodies_end_the_transfer() {
    let (source, root) = file(&noise(5, 100 * KIB));
    let blocks = expected(&source, root, "", ScopeOptions::default()).await;
    let header = car::header(&[root]).to_vec();
    let others: Vec<Block> = (100..1_200).map(|seed| crate::dag::test_support::raw(noise(seed, 2 * KIB))).collect();
    let zeros: Vec<Block> = (1..60_u8).map(|seed| crate::dag::test_support::raw(vec![seed; 1 << 20])).collect();
    let sections = |blocks: &[Block]| -> Vec<u8> { blocks.iter().flat_map(section).collect() };
    let wrong = {
        let mut wrong = section(&blocks[0]);
        *wrong.last_mut().expect("not empty") ^= 1;
        [header.clone(), wrong].concat()
    };
    let repeated = [header.clone(), section(&blocks[0]).repeat(5_000)].concat();
    let unnamed = [header.clone(), section(&blocks[0]), sections(&others)].concat();
    let bomb = zstd(&[header.clone(), section(&blocks[0]), sections(&zeros)].concat());
    let coded = |body: Vec<u8>| CarResponse {
        head: "200 OK\r\nContent-Type: application/vnd.ipld.car\r\nContent-Encoding: zstd".to_owned(),
        ..CarResponse::of(body)
    };
    let whole = archive(&blocks);
    let fault = |end: &TransferEnd| matches!(end, TransferEnd::Fault(_));
    let failed = |end: &TransferEnd| *end == TransferEnd::Declined(Decline::Failed);
    let refused = |end: &TransferEnd| *end == TransferEnd::Declined(Decline::Refused);
    let stalled = |end: &TransferEnd| *end == TransferEnd::Stalled;
    let lie = |end: &TransferEnd| *end == TransferEnd::InvalidBlock;
    let of = CarResponse::of;
    let hanging = |body: Vec<u8>| CarResponse { announced: Some(1 << 30), then: Then::Hang, ..CarResponse::of(body) };
    let endless = |body: Vec<u8>| CarResponse { announced: None, then: Then::Repeat, ..CarResponse::of(body) };
    type Check<'a> = &'a dyn Fn(&TransferEnd) -> bool;
    let table: Vec<(&str, CarResponse, Check<'_>)> = vec![
        ("nothing", of(Vec::new()), &failed),
        ("no header", of(vec![0; 100]), &fault),
        ("a length without an end", of(vec![0xff; 100]), &fault),
        ("a long header", of([varint(1 << 20), vec![0; 1 << 20]].concat()), &fault),
        ("a header that is not CBOR", of([varint(4), vec![0xff; 4]].concat()), &fault),
        ("CARv2", of(b"\x0a\xa1gversion\x02".repeat(10)), &fault),
        ("a header cut", of(header[..header.len() - 1].to_vec()), &failed),
        ("no root", of(header.clone()), &refused),
        ("a long section", of([header.clone(), varint(3 << 20), vec![0; 1000]].concat()), &fault),
        ("a length of 64 bits", of([header.clone(), varint(u64::MAX)].concat()), &fault),
        ("an empty section", of([header.clone(), vec![0; 10]].concat()), &fault),
        ("a section without a CID", of([header.clone(), varint(40), vec![0xaa; 40]].concat()), &fault),
        ("a wrong root", of(wrong), &lie),
        ("blocks that nothing has named", of(unnamed), &fault),
        ("the root again and again", of(repeated), &fault),
        ("a bomb", coded(bomb.clone()), &fault),
        ("no zstd", coded(whole.clone()), &fault),
        ("frames without content", coded([&[0x50, 0x2a, 0x4d, 0x18][..], &[0; 4]].concat().repeat(1 << 18)), &fault),
        ("a header without an end", endless(vec![0x80]), &fault),
        ("the root without an end", endless(section(&blocks[0])), &fault),
        ("a gateway that stops in the header", hanging(header[..5].to_vec()), &failed),
        ("a gateway that stops after the root", hanging([header.clone(), section(&blocks[0])].concat()), &stalled),
    ];
    assert!(bomb.len() < 100_000, "{}", bomb.len());
    for (what, response, is_expected) in table {
        let server = serve(&source, move |_, _| response.clone()).await;
        let mut bench = Bench::of_file(&server, root).impatient();
        let (end, received) = bench.run().await;
        assert!(is_expected(&end), "{what}: {end:?}");
        assert!(received <= 1, "{what}");
        assert!(server.car_requests().len() <= 2, "{what}");
        drop(bench.active);
        assert!(bench.context.pushed.is_empty(), "{what}");
        assert_eq!(bench.context.memory.try_take(MEMORY).map(|_| ()), Some(()), "{what}: all memory is released");
    }
}

#[tokio::test]
async fn cars_that_wait_for_memory_hold_none() {
    let source = Arc::new(TestSource::default());
    let large = [15, 16].map(|seed| crate::dag::test_support::raw(noise(seed, 3 << 19)));
    large.iter().for_each(|block| source.insert(block));
    let server = honest(&source).await;
    // Enough for one of them twice, and not for both twice.
    const BYTES: usize = 4 << 20;
    let memory = Memory::new(BYTES);
    let benches = large.each_ref().map(|block| {
        let limits = (BUDGET_BYTES_MAX, memory.clone());
        Bench::with_memory(&server, *block.cid(), "", ScopeOptions::default(), limits)
    });
    let used = memory.try_take(BYTES).expect("is free");
    let tasks = benches.map(|mut bench| tokio::spawn(async move { bench.run().await.0 }));
    let deadline = Instant::now() + PATIENCE;
    while server.car_requests().len() < tasks.len() {
        assert!(Instant::now() < deadline, "both are requested");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Until both wait: one that comes later shows nothing.
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(used);
    for task in tasks {
        // What one has brought is dropped with it.
        assert_eq!(task.await.expect("no panic"), TransferEnd::Status(EndStatus::Complete));
    }
}

/// Too little of the network's memory for a decoder.
const WITHOUT_DECODER: usize = 32 << 20;

/// A gateway that declares a large section and sends so many bytes of it, and no more.
async fn trickling(bytes: usize) -> (TestServer, Cid) {
    let large = crate::dag::test_support::raw(noise(20, 3 << 19));
    let root = *large.cid();
    let body = archive(&[large]);
    let sent = car::header(&[root]).len() + 4 + bytes;
    let server = TestServer::start(ServerMode::Honest, &[]).await;
    server.answer_cars(move |_| {
        let (announced, body) = (Some(body.len()), body[..sent].to_vec());
        std::future::ready(CarResponse { announced, then: Then::Hang, ..CarResponse::of(body) }).boxed()
    });
    (server, root)
}

#[tokio::test]
async fn a_section_that_does_not_arrive_takes_no_memory() {
    let (server, root) = trickling(1_000).await;
    let limits = (BUDGET_BYTES_MAX, Memory::new(WITHOUT_DECODER));
    let mut bench = Bench::with_memory(&server, root, "", ScopeOptions::default(), limits);
    let (active, memory) = (Arc::clone(&bench.active), bench.context.memory.clone());
    let task = tokio::spawn(async move { bench.run().await.0 });
    let deadline = Instant::now() + PATIENCE;
    while memory.try_take(WITHOUT_DECODER).is_some() {
        assert!(Instant::now() < deadline, "the section is awaited");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(memory.try_take(WITHOUT_DECODER - 2 * SECTION_BEGIN_BYTES).is_some());
    active.cancel();
    assert_eq!(task.await.expect("no panic"), TransferEnd::Cancelled);
}

#[tokio::test]
async fn a_section_that_stops_keeps_its_memory_for_a_short_time() {
    let (server, root) = trickling(100 * KIB).await;
    let limits = (BUDGET_BYTES_MAX, Memory::with_short_timeouts(WITHOUT_DECODER));
    let mut bench = Bench::with_memory(&server, root, "", ScopeOptions::default(), limits);
    (bench.client.timeouts.stall, bench.client.timeouts.body) = (2 * PATIENCE, 2 * PATIENCE);
    assert_eq!(bench.run().await.0, TransferEnd::Declined(Decline::Failed));
    assert!(bench.context.memory.try_take(WITHOUT_DECODER).is_some());
}

#[tokio::test]
async fn a_section_that_is_late_because_memory_is_short_is_no_failure_of_the_gateway() {
    let (server, root) = trickling(100 * KIB).await;
    // Whether the gateway counts as having stopped.
    let cases = [
        (Duration::from_secs(600), TransferEnd::Status(EndStatus::Busy)),
        (Duration::ZERO, TransferEnd::Declined(Decline::Failed)),
    ];
    for (quiet, end) in cases {
        let memory = Memory::hasty_under_pressure(WITHOUT_DECODER, quiet);
        let others = memory.try_take(WITHOUT_DECODER / 8 * 7).expect("is free");
        let limits = (BUDGET_BYTES_MAX, memory.clone());
        let mut bench = Bench::with_memory(&server, root, "", ScopeOptions::default(), limits);
        (bench.client.timeouts.stall, bench.client.timeouts.body) = (2 * PATIENCE, 2 * PATIENCE);
        assert_eq!(bench.run().await.0, end, "{quiet:?}");
        drop(others);
        assert!(memory.try_take(WITHOUT_DECODER).is_some());
    }
}

#[tokio::test]
async fn a_gateway_does_not_stall_while_its_body_waits_for_memory() {
    let (source, root) = file(&noise(21, 2 * KIB));
    let server = honest(&source).await;
    let memory = Memory::new(WITHOUT_DECODER);
    let limits = (BUDGET_BYTES_MAX, memory.clone());
    let mut bench = Bench::with_memory(&server, root, "", ScopeOptions::default(), limits);
    let active = Arc::clone(&bench.active);
    let others = memory.try_take(WITHOUT_DECODER).expect("is free");
    let task = tokio::spawn(async move { bench.run().await.0 });
    let deadline = Instant::now() + PATIENCE;
    let mut noted = HashSet::new();
    while noted.len() < 3 {
        assert!(Instant::now() < deadline, "it counts as sending");
        noted.extend(active.received_at());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(others);
    assert_eq!(task.await.expect("no panic"), TransferEnd::Status(EndStatus::Complete));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_leaves_out_the_blocks_of_a_path_is_asked_for_single_blocks() {
    let (source, root) = site(false);
    let (path, other) = ("a/b/noise.bin", "text.txt");
    // All of them, and all but the root, of which no more is named than the first name.
    for kept in [0, 1] {
        let server = serve(&source, move |request, mut blocks| {
            blocks.drain(kept.min(request.path.len())..request.path.len());
            CarResponse::of(archive(&blocks))
        })
        .await;
        let (declined, budgets): (_, &[u64]) = match kept {
            0 => (Decline::Refused, &[BUDGET_BYTES_MAX, 64 * 1024]),
            _ => (Decline::Incomplete, &[BUDGET_BYTES_MAX]),
        };
        for budget_bytes in budgets {
            let mut bench = Bench::new(&server, root, path, ENTITY, *budget_bytes);
            assert_eq!(bench.run().await, (TransferEnd::Declined(declined), kept), "{kept} {budget_bytes}");
        }
        attempts(async || {
            let node = Node::new(&[&server]);
            let before = server.car_requests().len();
            for path in [path, other] {
                let blocks = node.read(root, path, ENTITY).await.expect("is read");
                assert_eq!(blocks, expected(&source, root, path, ENTITY).await, "{kept} {path}");
            }
            assert_eq!(server.car_requests().len() - before, 1, "{kept}: not for this DAG");
            assert_eq!((node.metrics.cars(CarOutcome::Fault), node.metrics.breakers_open.get()), (0, 0), "{kept}");
            // It sends a DAG without a path.
            let dag = below(&source, root)[0];
            let blocks = node.read(dag, "", ENTITY).await.expect("is read");
            assert_eq!(blocks, expected(&source, dag, "", ENTITY).await, "{kept}");
            let cars = server.car_requests().len() - before;
            if cars == 2 { Vec::new() } else { vec![format!("{kept}: {cars} CARs")] }
        })
        .await;
    }
}

/// The nodes below the root of a file.
fn below(source: &TestSource, root: Cid) -> Vec<Cid> {
    content::dag::links(&source.blocks.peek(&root).expect("is stored")).expect("links")
}

/// A gateway that sends more than was requested, or in another order, may be honest.
#[tokio::test]
async fn what_does_not_prove_misbehaviour_is_no_fault() {
    let (source, root) = file(&noise(14, 400 * KIB));
    let whole = expected(&source, root, "", ENTITY).await;
    let range = |range: &str| ScopeOptions { entity_bytes: range.parse().ok(), ..ENTITY };
    let complete = TransferEnd::Status(EndStatus::Complete);
    // More than the range, and bytes that are no section.
    let more = whole.clone();
    let server = serve(&source, move |_, _| CarResponse::of([archive(&more), vec![0xff; 100]].concat())).await;
    for (scope, budget_bytes, end) in [
        (range("0:20000"), BUDGET_BYTES_MAX, complete.clone()),
        (ENTITY, BUDGET_BYTES_MAX, complete.clone()),
        // Much comes before the range.
        (range("300000:310000"), BUDGET_BYTES_MAX, complete),
        (range("300000:310000"), 64 * KIB as u64, TransferEnd::Declined(Decline::Refused)),
    ] {
        let mut bench = Bench::new(&server, root, "", scope, budget_bytes);
        assert_eq!(bench.run().await.0, end, "{scope:?} {budget_bytes}");
    }
    // What is refused here names nothing.
    let refused = below(&source, root)[1];
    let subtree = expected(&source, refused, "", ScopeOptions::default()).await;
    let first = whole[..1].to_vec();
    let server = serve(&source, move |_, _| CarResponse::of(archive(&[first.clone(), subtree.clone()].concat()))).await;
    let list = List::parse(format!("/ipfs/{refused}\n").as_bytes()).expect("a list");
    let list = content::denylist::Source { id: "test".into(), list, status: Verdict::Legal };
    let policy = NetworkPolicy(Arc::new(Matcher::new([list])));
    let limits = (64 * KIB as u64, Memory::new(MEMORY));
    let mut bench = Bench::with_policy(&server, root, "", ENTITY, limits, policy);
    assert_eq!(bench.run().await.0, TransferEnd::NamesLost);
    // A block waits for its parent while readers are slow.
    let server = serve(&source, move |_, mut blocks| {
        let early = blocks.pop().expect("a leaf");
        blocks.insert(1, early);
        CarResponse::of(archive(&blocks))
    })
    .await;
    let mut bench = Bench::new(&server, root, "", ENTITY, 64 * KIB as u64).impatient();
    assert_eq!(bench.run().await.0, TransferEnd::Status(EndStatus::Budget));
}

#[tokio::test]
async fn junk_in_place_of_what_was_requested_is_a_fault_of_the_gateway() {
    let (source, root) = file(&noise(19, 400 * KIB));
    let junk: Vec<Block> = (200..300).map(|seed| crate::dag::test_support::raw(noise(seed, 2 * KIB))).collect();
    let entity_bytes = "300000:310000".parse().ok();
    for scope in [ENTITY, ScopeOptions { entity_bytes, ..ENTITY }] {
        // Little of it, so that the body ends, and more than the window has room for.
        for count in [1, 4, junk.len()] {
            let header = car::header(&[root]).to_vec();
            let body = [header, junk[..count].iter().flat_map(section).collect()].concat();
            let server = serve(&source, move |_, _| CarResponse::of(body.clone())).await;
            let mut bench = Bench::new(&server, root, "", scope, 64 * KIB as u64);
            let (end, received) = bench.run().await;
            assert!(matches!(end, TransferEnd::Fault(_)) && received == 0, "{count} {scope:?}: {end:?}");
        }
    }
    // The gateway's circuit breaker counts it, and the block is requested alone.
    let body = [car::header(&[root]).to_vec(), junk.iter().flat_map(section).collect()].concat();
    let server = serve(&source, move |_, _| CarResponse::of(body.clone())).await;
    let node = Node::new(&[&server]);
    let session = node.session(root);
    assert!(session.get_ahead(&root, &ReadAhead::of_file(root, 300_000, 310_000)).await.is_ok());
    node.has_counted(CarOutcome::Fault, 1).await;
}

#[tokio::test]
async fn responses_without_a_car_say_whether_another_may_be_asked_for() {
    let (source, root) = file(&noise(6, 100 * KIB));
    let car = "Content-Type: application/vnd.ipld.car";
    let table = [
        ("404 Not Found".to_owned(), Decline::Lacks),
        ("410 Gone".to_owned(), Decline::Lacks),
        ("451 Unavailable For Legal Reasons".to_owned(), Decline::Lacks),
        ("504 Gateway Timeout".to_owned(), Decline::Lacks),
        ("429 Too Many Requests\r\nRetry-After: 7".to_owned(), Decline::Busy(Some(Duration::from_secs(7)))),
        ("503 Service Unavailable".to_owned(), Decline::Busy(None)),
        ("500 Internal Server Error".to_owned(), Decline::Failed),
        ("400 Bad Request".to_owned(), Decline::Refused),
        ("403 Forbidden".to_owned(), Decline::Refused),
        (format!("301 Moved Permanently\r\n{car}\r\nLocation: http://127.0.0.1:1/"), Decline::Refused),
        (format!("206 Partial Content\r\n{car}"), Decline::Refused),
        ("406 Not Acceptable".to_owned(), Decline::Unsupported),
        ("415 Unsupported Media Type".to_owned(), Decline::Unsupported),
        ("501 Not Implemented".to_owned(), Decline::Unsupported),
        ("200 OK\r\nContent-Type: application/vnd.ipld.raw".to_owned(), Decline::Unsupported),
        ("200 OK\r\nContent-Type: text/html".to_owned(), Decline::Unsupported),
        ("200 OK".to_owned(), Decline::Unsupported),
        (format!("200 OK\r\n{car}\r\nContent-Encoding: gzip"), Decline::Unsupported),
    ];
    for (head, decline) in table {
        let answer = head.clone();
        let server = serve(&source, move |_, _| CarResponse::says(&answer)).await;
        let mut bench = Bench::of_file(&server, root);
        assert_eq!(bench.run().await, (TransferEnd::Declined(decline), 0), "{head}");
        assert_eq!(server.car_requests().len(), 1, "{head}");
    }
    let gone = TestServer::start(ServerMode::Hanging, &source.all()).await;
    assert_eq!(Bench::of_file(&gone, root).run().await.0, TransferEnd::Declined(Decline::Failed));
}

#[test]
fn names_are_encoded_in_urls_and_those_that_cannot_be_are_not_requested() {
    let base = Base::from_url("https://example.org/a%20b/").expect("a URL");
    let root = content::cid::parse("bafybeihrw75yfhdx5qsqgesdnxejtjybscwuclpusvxkuttep6h7pkgmze").expect("a CID");
    let url = |path: &[&str], scope: ScopeOptions| {
        let path: Vec<String> = path.iter().map(|name| (*name).to_owned()).collect();
        base.car_url(&root, &path, &scope).map(String::from)
    };
    let all = ScopeOptions::default();
    let table = [
        (vec![], ""),
        (vec!["a", "b.html"], "/a/b.html"),
        (vec!["ä ?#%2F\\\t"], "/%C3%A4%20%3F%23%252F%5C%09"),
        (vec!["...", "~"], "/.../~"),
    ];
    for (path, encoded) in table {
        let expected = format!("https://example.org/a%20b/ipfs/{root}{encoded}?format=car&dag-scope=all");
        assert_eq!(url(&path, all), Some(expected), "{path:?}");
    }
    let range = ScopeOptions { scope: DagScope::Entity, entity_bytes: "5:*".parse().ok(), duplicates: false };
    assert!(url(&[], range).expect("a URL").ends_with("?format=car&dag-scope=entity&entity-bytes=5:*"));
    for name in [".", "..", "", "a/b", &"x".repeat(PATH_BYTES_TESTED)] {
        assert_eq!(url(&["a", name], all), None, "{name:?}");
    }
}

const PATH_BYTES_TESTED: usize = 5_000;

// --- a node ---------------------------------------------------------------------------------------------------------

/// A node without peers, whose sources are gateways.
struct Node {
    shared: Arc<SharedState>,
    metrics: Metrics,
    memory: Memory,
    pushed: Arc<Pushed>,
    task: JoinHandle<()>,
}

impl Node {
    fn new(servers: &[&TestServer]) -> Self {
        let (wants, metrics, memory) = (Arc::<Wants>::default(), Metrics::default(), Memory::new(MEMORY));
        let (pushed, readers) = (Arc::<Pushed>::default(), Arc::<Readers>::default());
        let (commands, inbox) = mpsc::unbounded_channel::<SessionCommand>();
        let (reports, events) = mpsc::unbounded_channel();
        let context = DagContext {
            wants: Arc::clone(&wants),
            pushed: Arc::clone(&pushed),
            readers: Arc::clone(&readers),
            policy: NetworkPolicy::default(),
            memory: memory.clone(),
            names: names_budget(&memory),
            events: reports,
            metrics: Default::default(),
            over: BlockTransport::Http,
        };
        let gateways = servers.iter().map(|server| server.url()).collect();
        let options = HttpPeersOptions { gateways, from_records: false, dial_private: true, cars: true };
        let http = HttpPeers::new(&options, Arc::clone(&wants), metrics.clone(), Instant::now()).expect("sets up");
        let config = client::Config { stall_timeout: Duration::from_secs(5), ..client::Config::default() };
        let mut behaviour = Behaviour::new(
            config,
            crate::metrics::Metrics::default(),
            Arc::clone(&wants),
            inbox,
            Arc::new(MemoryBlocks::new()),
            memory.clone(),
            PeerSettings::default(),
        )
        .with_http(http)
        .with_transfers(Transfers { from_peers: None, from_gateways: Some(Arc::new(context)), events });
        let policy = NetworkPolicy::default();
        let shared = Arc::new(SharedState::new(wants, commands, policy, (Arc::clone(&pushed), readers)));
        let task = tokio::spawn(async move {
            loop {
                // Searches for providers find none.
                poll_fn(|cx| behaviour.poll(cx).map(|_| ())).await;
            }
        });
        Self { shared, metrics, memory, pushed, task }
    }

    fn session(&self, root: Cid) -> Arc<Cached> {
        let session = Session::new(Arc::clone(&self.shared), &root, None);
        Arc::new(Cached { session, blocks: Arc::new(MemoryBlocks::new()), running: Mutex::default() })
    }

    /// The blocks of a scope at the end of a path, as an archive has them.
    async fn read(&self, root: Cid, path: &str, scope: ScopeOptions) -> Result<Vec<Block>, String> {
        let session = self.session(root);
        let reading = async {
            let purpose = Purpose { scope, further: None };
            let resolved =
                content::walk::resolve_for(&*session, &content::AllowAll, root, &names(path), &purpose).await;
            let resolved = resolved.map_err(|error| error.to_string())?;
            let limits = ScopeLimits::default();
            let blocks = content::scope::blocks(session.clone(), resolved.passed, resolved.block, scope, limits);
            blocks.try_collect().await.map_err(|error: content::scope::ScopeError| error.to_string())
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("in time")
    }

    /// Waits until nothing of a transfer is left.
    async fn is_released(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.pushed.is_empty() || self.memory.try_take(MEMORY).is_none() {
            assert!(Instant::now() < deadline, "{} blocks are buffered", self.pushed.len());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until this number of transfers has ended so. A transfer is counted after its memory was released.
    async fn has_counted(&self, outcome: CarOutcome, expected: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.metrics.cars(outcome) < expected {
            assert!(Instant::now() < deadline, "{} instead of {expected} {outcome:?}", self.metrics.cars(outcome));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(self.metrics.cars(outcome), expected, "{outcome:?}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Fetch = BoxFuture<'static, Result<Block, SourceError>>;

/// A session whose blocks are fetched once and kept, as the local tiers do.
struct Cached {
    session: Session,
    blocks: Arc<MemoryBlocks>,
    running: Mutex<HashMap<Cid, Shared<Fetch>>>,
}

impl Cached {
    fn once(&self, cid: &Cid, get: impl FnOnce() -> Fetch) -> Fetch {
        let blocks = Arc::clone(&self.blocks);
        let mut running = self.running.lock().expect("no panic");
        let fetch = running.entry(*cid).or_insert_with(|| {
            let get = get();
            let keep = async move {
                let block = get.await?;
                blocks.insert(&block);
                Ok(block)
            };
            keep.boxed().shared()
        });
        fetch.clone().boxed()
    }
}

impl BlockSource for Cached {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.blocks.peek(cid)
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        match self.peek(cid) {
            Some(block) => std::future::ready(Ok(block)).boxed(),
            None => self.once(cid, || self.session.get(cid)),
        }
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.once(cid, || self.session.get_ahead(cid, ahead))
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        std::future::ready(Ok(self.peek(cid).is_some())).boxed()
    }
}

const ENTITY: ScopeOptions = ScopeOptions { scope: DagScope::Entity, entity_bytes: None, duplicates: false };

#[tokio::test(flavor = "multi_thread")]
async fn a_dag_is_one_request() {
    attempts(dag_requests).await;
}

/// Repeats an attempt that returns what was requested because it was late: this machine may be busy.
async fn attempts(mut attempt: impl AsyncFnMut() -> Vec<String>) {
    let mut late = Vec::new();
    for _ in 0..5 {
        late = attempt().await;
        if late.is_empty() {
            return;
        }
    }
    panic!("{late:?}");
}

/// Reads a file, a page and a whole DAG with one request each; returns what was requested besides.
async fn dag_requests() -> Vec<String> {
    let (source, root) = site(false);
    let server = honest(&source).await;
    let node = Node::new(&[&server]);
    for (path, scope) in [("text.txt", ENTITY), ("a/b/c/page.html", ENTITY), ("", ScopeOptions::default())] {
        let before = server.car_requests().len();
        let blocks = node.read(root, path, scope).await.expect("is read");
        assert_eq!(blocks, expected(&source, root, path, scope).await, "{path}");
        let asked = server.asked().into_iter().map(|request| request.path);
        let single: Vec<String> = asked.filter(|path| path.contains("format=raw")).collect();
        let cars = &server.car_requests()[before..];
        assert!(!cars.is_empty(), "{path}");
        if cars.len() > 1 || !single.is_empty() {
            return vec![format!("{path}: {cars:?} {single:?}")];
        }
        node.is_released().await;
    }
    node.has_counted(CarOutcome::Complete, 3).await;
    assert!(node.metrics.block_bytes.get() > 400_000);
    Vec::new()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_sends_no_cars_is_asked_once_and_then_for_blocks() {
    let (source, root) = site(false);
    // It answers as if only blocks could be requested.
    let server = TestServer::start(ServerMode::Honest, &source.all()).await;
    let node = Node::new(&[&server]);
    for path in ["text.txt", "a/b/noise.bin"] {
        let blocks = node.read(root, path, ENTITY).await.expect("is read");
        assert_eq!(blocks, expected(&source, root, path, ENTITY).await);
    }
    let part =
        source.all().into_iter().find(|block| block.cid().codec() != content::codec::RAW && *block.cid() != root);
    let part = *part.expect("another node").cid();
    node.read(part, "", ScopeOptions::default()).await.expect("another DAG");
    assert_eq!(server.car_requests().len(), 1, "it is remembered");
    node.has_counted(CarOutcome::Refused, 1).await;
    // A block is counted after it was delivered.
    let deadline = Instant::now() + PATIENCE;
    while node.metrics.count(OutcomeKind::Block) as usize != server.block_requests() {
        assert!(Instant::now() < deadline, "{} of {}", node.metrics.count(OutcomeKind::Block), server.block_requests());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(node.metrics.breakers_open.get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_gateway_answers_instead_of_a_car_its_blocks_are_used() {
    let (source, root) = site(false);
    let heads = [
        "400 Bad Request",
        "404 Not Found",
        "500 Internal Server Error",
        "302 Found\r\nLocation: http://127.0.0.1:1/",
        "200 OK\r\nContent-Type: text/html",
    ];
    for head in heads {
        let server = serve(&source, move |_, _| CarResponse::says(head)).await;
        let node = Node::new(&[&server]);
        let blocks = node.read(root, "text.txt", ENTITY).await.expect(head);
        assert_eq!(blocks, expected(&source, root, "text.txt", ENTITY).await, "{head}");
        assert_eq!(server.car_requests().len(), 1, "{head}: one round trip");
    }
    // The same for bodies: what they have brought is not requested again.
    let bodies: [(&str, Arc<Change>); 4] = [
        ("garbage", Arc::new(|_, _| CarResponse::of(vec![7; 100_000]))),
        ("no root", Arc::new(|request, _| CarResponse::of(car::header(&[request.root]).to_vec()))),
        ("half", Arc::new(|_, blocks| CarResponse::of(archive(&blocks[..blocks.len() / 2])))),
        (
            "half, then garbage",
            Arc::new(|_, blocks| CarResponse::of([archive(&blocks[..blocks.len() / 2]), vec![0; 100]].concat())),
        ),
    ];
    for (what, change) in bodies {
        attempts(async || requested_besides(&source, root, what, &change).await).await;
    }
}

/// Reads a file whose CAR has such a body; returns the requests if there are more than for what is missing.
async fn requested_besides(source: &Arc<TestSource>, root: Cid, what: &str, change: &Arc<Change>) -> Vec<String> {
    let change = Arc::clone(change);
    let server = serve(source, move |request, blocks| change(request, blocks)).await;
    let node = Node::new(&[&server]);
    let blocks = node.read(root, "text.txt", ENTITY).await.expect(what);
    assert_eq!(blocks, expected(source, root, "text.txt", ENTITY).await, "{what}");
    let (cars, single) = (server.car_requests(), server.block_requests());
    // What the reader requests after the end of a half is requested as a CAR once more.
    let (cars_max, single_max) = if what.starts_with("half") { (2, blocks.len() / 2 + 2) } else { (1, blocks.len()) };
    assert!(!cars.is_empty(), "{what}");
    if cars.len() > cars_max || single > single_max {
        return vec![format!("{what}: {cars:?}, and {single} blocks one by one")];
    }
    Vec::new()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_without_the_root_is_not_asked_for_it_twice() {
    let (source, root) = file(&noise(7, 200 * KIB));
    let without = TestServer::start(ServerMode::Honest, &[]).await;
    without.answer_cars(|_| std::future::ready(CarResponse::says("404 Not Found")).boxed());
    let with = honest(&source).await;
    let node = Node::new(&[&without, &with]);
    let blocks = node.read(root, "", ENTITY).await.expect("is read");
    assert_eq!(blocks, expected(&source, root, "", ENTITY).await);
    assert!(without.car_requests().len() <= 1);
    assert_eq!(without.block_requests(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_block_in_a_car_opens_the_breaker() {
    let (source, root) = file(&noise(8, 200 * KIB));
    attempts(async || {
        let server = serve(&source, |_, blocks| {
            let mut body = archive(&blocks[..1]);
            *body.last_mut().expect("not empty") ^= 1;
            CarResponse::of(body)
        })
        .await;
        let node = Node::new(&[&server]);
        let read = node.read(root, "", ENTITY).await;
        // Once was enough.
        if server.block_requests() > 0 {
            return vec![format!("{} blocks were requested", server.block_requests())];
        }
        let error = read.expect_err("no other source");
        node.has_counted(CarOutcome::InvalidBlock, 1).await;
        assert_eq!((node.metrics.breakers_open.get(), server.car_requests().len()), (1, 1), "{error}");
        Vec::new()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_ends_with_its_readers() {
    let (source, root) = file(&noise(9, 400 * KIB));
    let server = serve(&source, |_, blocks| {
        let all = archive(&blocks);
        CarResponse { announced: Some(all.len()), then: Then::Hang, ..CarResponse::of(all[..50 * KIB].to_vec()) }
    })
    .await;
    let node = Node::new(&[&server]);
    let session = node.session(root);
    let first = session.get_ahead(&root, &ReadAhead::below(root, ENTITY)).await.expect("is received");
    assert_eq!(first.cid(), &root);
    // What was sent is read, and then memory is held for the section that does not come.
    let deadline = Instant::now() + PATIENCE;
    while (node.metrics.body_bytes.get() as usize) < 50 * KIB || node.memory.try_take(MEMORY).is_some() {
        assert!(Instant::now() < deadline, "{} bytes are read", node.metrics.body_bytes.get());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop((first, session));
    node.is_released().await;
    node.has_counted(CarOutcome::Cancelled, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_cars_as_are_allowed_run_at_a_time_and_the_rest_is_requested_by_blocks() {
    let source = Arc::new(TestSource::default());
    let import = Import::new(&source, profile(false));
    let roots: Vec<Cid> = (0..40).map(|seed| import.file(&text(seed, 20_000)).cid).collect();
    attempts(async || cars_over_the_limit(&source, &roots).await).await;
}

/// Reads all files at once; returns the number of CARs if there are more than run at a time. Those that are requested
/// after others have ended are late.
async fn cars_over_the_limit(source: &Arc<TestSource>, roots: &[Cid]) -> Vec<String> {
    let server = TestServer::start(ServerMode::Honest, &source.all()).await;
    let answering = Arc::clone(source);
    server.answer_cars(move |request| {
        let source = Arc::clone(&answering);
        async move {
            tokio::time::sleep(Duration::from_millis(500)).await;
            CarResponse::of(archive(&expected(&source, request.root, "", request.scope).await))
        }
        .boxed()
    });
    let node = Arc::new(Node::new(&[&server]));
    let reads = roots.iter().map(|root| {
        let (node, source, root) = (Arc::clone(&node), Arc::clone(source), *root);
        tokio::spawn(async move {
            let blocks = node.read(root, "", ENTITY).await.expect("is read");
            assert_eq!(blocks, expected(&source, root, "", ENTITY).await);
        })
    });
    for read in reads.collect::<Vec<_>>() {
        read.await.expect("no panic");
    }
    let cars = server.car_requests().len();
    assert!(cars > 0 && server.block_requests() > 0, "{cars} CARs");
    node.is_released().await;
    if cars <= 8 { Vec::new() } else { vec![format!("{cars} CARs at a time")] }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_slow_with_a_car_is_asked_for_blocks() {
    let (source, root) = file(&noise(11, 60 * KIB));
    let server = TestServer::start(ServerMode::Honest, &source.all()).await;
    // It looks for all blocks of the DAG before it begins.
    server.answer_cars(|_| std::future::pending().boxed());
    let node = Node::new(&[&server]);
    let blocks = node.read(root, "", ENTITY).await.expect("is read");
    assert_eq!(blocks, expected(&source, root, "", ENTITY).await);
    assert_eq!((server.car_requests().len(), server.block_requests()), (1, blocks.len()));
    node.is_released().await;
}

// --- properties -----------------------------------------------------------------------------------------------------

/// How a server sends archives.
#[derive(Debug, Clone, Copy)]
enum Manner {
    Plain,
    Zstd,
    Twice,
    Reversed,
    /// Each response breaks off after this part of 256.
    Breaking(u8),
    /// Some blocks are left out.
    LeavingOut(u8),
}

fn manner() -> impl Strategy<Value = Manner> {
    prop_oneof![
        Just(Manner::Plain),
        Just(Manner::Zstd),
        Just(Manner::Twice),
        Just(Manner::Reversed),
        any::<u8>().prop_map(Manner::Breaking),
        (1..10_u8).prop_map(Manner::LeavingOut),
    ]
}

fn sent(manner: Manner, mut blocks: Vec<Block>) -> CarResponse {
    match manner {
        Manner::Plain => CarResponse::of(archive(&blocks)),
        Manner::Zstd => CarResponse::zstd(&archive(&blocks)),
        Manner::Twice => CarResponse::of(archive(
            &blocks.iter().flat_map(|block| [block.clone(), block.clone()]).collect::<Vec<_>>(),
        )),
        Manner::Reversed => {
            blocks[1..].reverse();
            CarResponse::of(archive(&blocks))
        }
        Manner::Breaking(part) => {
            let body = archive(&blocks);
            let bytes = body.len() * usize::from(part) / 256;
            CarResponse::of(body).broken_after(bytes)
        }
        Manner::LeavingOut(every) => {
            let mut number = 0;
            blocks.retain(|_| {
                number += 1;
                number % (usize::from(every) + 1) != 0
            });
            CarResponse::of(archive(&blocks))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// What a gateway's CARs do not bring, and whatever they repeat, a reader gets the same blocks as one by one.
    #[test]
    fn any_dag_arrives_by_cars_as_by_blocks(
        sizes in prop::collection::vec(0_usize..60_000, 1..8),
        v0: bool,
        at in any::<prop::sample::Index>(),
        deep: bool,
        range in prop::option::of((0_i64..70_000, 0_i64..70_000)),
        is_all: bool,
        manner in manner(),
    ) {
        let source = Arc::new(TestSource::default());
        let import = Import::new(&source, profile(v0));
        let sizes = sizes.iter().enumerate();
        let files: Vec<_> = sizes.map(|(n, size)| import.file(&noise(n as u64 / 2, *size))).collect();
        let paths: Vec<String> = (0..files.len()).map(|n| format!("dir {}/file{n}", n / 4)).collect();
        let entries: Vec<_> = paths.iter().map(String::as_str).zip(files).collect();
        let root = import.tree(&entries).cid;
        let path = if deep { paths[at.index(paths.len())].as_str() } else { "dir 0" };
        let entity_bytes = range.and_then(|(from, more)| EntityBytes::new(from, Some(from + more)).ok());
        let scope = match is_all {
            true => ScopeOptions::default(),
            false => ScopeOptions { entity_bytes: entity_bytes.filter(|_| deep), ..ENTITY },
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (read, expected_blocks, cars) = runtime.block_on(async {
            let server = serve(&source, move |_, blocks| sent(manner, blocks)).await;
            let node = Node::new(&[&server]);
            let read = node.read(root, path, scope).await;
            node.is_released().await;
            (read, expected(&source, root, path, scope).await, server.car_requests().len())
        });
        let unique: HashSet<Cid> = expected_blocks.iter().map(|block| *block.cid()).collect();
        prop_assert_eq!(read, Ok(expected_blocks));
        prop_assert!(cars <= RESUMPTIONS_MAX + 2 + unique.len(), "{} CARs", cars);
    }
}
