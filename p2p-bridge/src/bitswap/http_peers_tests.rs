//! Gateways over real sockets on loopback.

use super::*;
use crate::http_source::source::{ORIGIN_CONNECTIONS_MAX, ORIGIN_STREAMS_MAX, UNPROVEN_REQUESTS_MAX};
use crate::http_source::test_server::{ServerMode, TestServer, block, zstd};
use crate::wants::SessionId;
use content::{Block, SourceError};
use libp2p::multiaddr::Protocol;
use std::future::poll_fn;
use tokio::sync::oneshot::Receiver;

const PATIENCE: Duration = Duration::from_secs(20);

/// The gateways and the waiters for blocks.
struct World {
    peers: HttpPeers,
    wants: Arc<Wants>,
}

impl World {
    fn new(gateways: &[&TestServer], dial_private: bool) -> Self {
        let gateways = gateways.iter().map(|server| server.url()).collect();
        let options = HttpPeersOptions { gateways, from_records: true, dial_private, cars: true };
        let wants = Arc::new(Wants::default());
        let peers = HttpPeers::new(&options, wants.clone(), Metrics::default(), Instant::now()).expect("sets up");
        Self { peers, wants }
    }

    /// A world with one configured gateway, and its peer ID.
    async fn with(server: &TestServer) -> (Self, PeerId) {
        let mut world = Self::new(&[server], false);
        match world.next().await {
            Event::Connected { peer, favoured: true } => (world, peer),
            other => panic!("{other:?}"),
        }
    }

    async fn next(&mut self) -> Event {
        let event = poll_fn(|cx| self.peers.poll(cx, Instant::now()));
        tokio::time::timeout(PATIENCE, event).await.expect("an event in time")
    }

    /// The next response; skips other events.
    async fn answer(&mut self) -> Received {
        loop {
            if let Event::Received(_, received) = self.next().await {
                return received;
            }
        }
    }

    fn wait_for(&self, block: &Block) -> Receiver<Result<Block, SourceError>> {
        let session: SessionId = *block.cid().hash();
        self.wants.register(block.key().expect("key"), *block.cid(), session).1
    }

    fn ask(&mut self, peer: PeerId, block: &Block, ask: Ask) {
        let entry = WantEntry { cid: *block.cid(), ask, send_dont_have: true };
        assert!(self.peers.send(peer, &[entry], Instant::now()));
    }

    /// Checks that there are no events for a moment, and no running requests.
    async fn is_quiet(&mut self) {
        while !self.peers.requests.is_empty() {
            let event = poll_fn(|cx| self.peers.poll(cx, Instant::now()));
            // Aborted requests cause no event when they end.
            if let Ok(event) = tokio::time::timeout(Duration::from_millis(10), event).await {
                panic!("{event:?}");
            }
        }
    }
}

fn sized(seed: u8, bytes: usize) -> Block {
    block(vec![seed; bytes])
}

#[tokio::test]
async fn blocks_are_delivered_and_reported() {
    let blocks = [sized(1, 1 << 20), sized(2, 0), sized(3, content::MAX_BLOCK_BYTES)];
    let server = TestServer::start(ServerMode::Honest, &blocks).await;
    let (mut world, peer) = World::with(&server).await;
    for block in &blocks {
        let waiter = world.wait_for(block);
        world.ask(peer, block, Ask::Block);
        let received = world.answer().await;
        assert_eq!(received.blocks, vec![(block.key().expect("key"), block.data().len())]);
        assert_eq!(waiter.await.expect("delivered").as_ref(), Ok(block));
    }
    let first = &server.asked()[0];
    assert_eq!((first.method.as_str(), &first.path), ("GET", &format!("/ipfs/{}?format=raw", blocks[0].cid())));
    let agent = format!("user-agent: causeway/{}", env!("CARGO_PKG_VERSION"));
    for header in ["accept: application/vnd.ipld.raw", "accept-encoding: zstd", &agent] {
        assert!(first.headers.contains(header), "{header} is not in {}", first.headers);
    }
    for header in ["cookie", "referer", "cache-control"] {
        assert!(!first.headers.contains(header), "{header} is in {}", first.headers);
    }
    assert_eq!(world.peers.metrics.count(OutcomeKind::Block), 3);
    assert_eq!(world.peers.metrics.block_bytes.get(), 3 << 20);
    assert_eq!(world.peers.metrics.body_bytes.get(), 3 << 20);
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

#[tokio::test]
async fn encoded_blocks_are_decoded_delivered_and_counted_by_their_own_size() {
    let (noise, short) = (block(noise(content::MAX_BLOCK_BYTES)), block("short"));
    let blocks = [sized(1, 1 << 20), sized(2, 0), sized(3, content::MAX_BLOCK_BYTES), noise, short];
    let server = TestServer::start(ServerMode::Zstd, &blocks).await;
    let (mut world, peer) = World::with(&server).await;
    for block in &blocks {
        let waiter = world.wait_for(block);
        world.ask(peer, block, Ask::Block);
        assert_eq!(world.answer().await.blocks, vec![(block.key().expect("key"), block.data().len())]);
        assert_eq!(waiter.await.expect("delivered").as_ref(), Ok(block));
    }
    let bodies: usize = blocks.iter().map(|block| zstd(block.data()).len()).sum();
    assert_eq!(world.peers.metrics.block_bytes.get(), (5 << 20) + 5);
    assert_eq!(world.peers.metrics.body_bytes.get(), bodies as u64);
    assert!(bodies < (2 << 20) + 10_000, "only noise does not shrink");
}

#[tokio::test]
async fn encoded_bodies_that_are_not_the_block_are_rejected() {
    let held = block("a block of text. ".repeat(10_000));
    let whole = zstd(held.data());
    let mut other = held.data().to_vec();
    other[9] ^= 1;
    // A frame without content whose window has 16 MiB, and one that needs a dictionary.
    let window = [&[0x28, 0xb5, 0x2f, 0xfd, 0, 14 << 3][..], &[1, 0, 0]].concat();
    let dictionary = [&[0x28, 0xb5, 0x2f, 0xfd, 0x21, 5, 0][..], &[1, 0, 0]].concat();
    let table = [
        ("other bytes", "zstd", zstd(&other), OutcomeKind::InvalidBlock),
        ("the block twice", "zstd", whole.repeat(2), OutcomeKind::InvalidBlock),
        ("the plain block", "zstd", held.data().to_vec(), OutcomeKind::Useless),
        ("nothing", "zstd", Vec::new(), OutcomeKind::Useless),
        ("half of it", "zstd", whole[..whole.len() / 2].to_vec(), OutcomeKind::Useless),
        ("something behind it", "zstd", [&whole[..], b"more"].concat(), OutcomeKind::Useless),
        ("a bomb", "zstd", zstd(&vec![0; 64 << 20]), OutcomeKind::Useless),
        ("frames without end", "zstd", zstd(b"").repeat(1 << 18), OutcomeKind::Useless),
        ("a large window", "zstd", window, OutcomeKind::Useless),
        ("a dictionary", "zstd", dictionary, OutcomeKind::Useless),
        ("another coding", "gzip", whole.clone(), OutcomeKind::Useless),
        ("two codings", "zstd, zstd", zstd(&whole), OutcomeKind::Useless),
    ];
    for (name, coding, body, kind) in table {
        let server = TestServer::start(ServerMode::Coded(coding, body), std::slice::from_ref(&held)).await;
        let (mut world, peer) = World::with(&server).await;
        let mut waiter = world.wait_for(&held);
        world.ask(peer, &held, Ask::Block);
        world.answer().await;
        assert_eq!(world.peers.metrics.count(kind), 1, "{name}");
        assert!(waiter.try_recv().is_err(), "{name}: it was not delivered");
        assert_eq!(server.asked().len(), 1, "{name}: it is not repeated");
    }
    // One frame or more, identity or none, and any case.
    let halves = [zstd(&held.data()[..999]), zstd(&held.data()[999..])].concat();
    for (coding, body) in [("ZSTD", halves), ("identity", held.data().to_vec())] {
        let server = TestServer::start(ServerMode::Coded(coding, body), std::slice::from_ref(&held)).await;
        let (mut world, peer) = World::with(&server).await;
        world.ask(peer, &held, Ask::Block);
        assert_eq!(world.answer().await.blocks, vec![(held.key().expect("key"), held.data().len())], "{coding}");
    }
}

#[tokio::test]
async fn concurrent_requests_are_limited() {
    let blocks: Vec<Block> = (0..100).map(|seed| sized(seed, 10_000)).collect();
    let server = TestServer::start(ServerMode::Honest, &blocks).await;
    let (mut world, peer) = World::with(&server).await;
    for block in &blocks {
        world.ask(peer, block, Ask::Block);
    }
    assert_eq!(world.peers.requests.len(), ORIGIN_CONNECTIONS_MAX);
    for _ in 0..blocks.len() {
        assert_eq!(world.answer().await.blocks.len(), 1);
        assert!(world.peers.requests.len() <= ORIGIN_CONNECTIONS_MAX);
    }
    world.is_quiet().await;
}

#[tokio::test]
async fn slow_untrusted_gateways_do_not_delay_configured_ones() {
    let held = block("held");
    let server = TestServer::start(ServerMode::Honest, std::slice::from_ref(&held)).await;
    let mut world = World::new(&[&server], true);
    let configured = *world.peers.sources.keys().next().expect("it is configured");
    let blocks: Vec<Block> = (0..UNPROVEN_REQUESTS_MAX).map(|number| block(number.to_string())).collect();
    for _ in 0..=REQUESTS_MAX / UNPROVEN_REQUESTS_MAX {
        let slow = TestServer::start(ServerMode::Silent, &blocks).await;
        let untrusted = world.peers.found(&[slow.multiaddr()], Instant::now())[0];
        blocks.iter().for_each(|block| world.ask(untrusted, block, Ask::Block));
    }
    assert_eq!(world.peers.requests.len(), REQUESTS_MAX, "the limit of untrusted gateways is used up");
    world.ask(configured, &held, Ask::Block);
    assert_eq!(world.peers.requests.len(), REQUESTS_MAX + 1, "it is asked at once");
    assert_eq!(world.answer().await.blocks, vec![(held.key().expect("key"), held.data().len())]);
}

#[tokio::test]
async fn presence_requests_transfer_no_block_and_cause_no_search_at_untrusted_gateways() {
    let (held, other) = (block("held"), block("other"));
    let server = TestServer::start(ServerMode::Honest, std::slice::from_ref(&held)).await;
    let (mut world, configured) = World::with(&server).await;
    let untrusted_server = TestServer::start(ServerMode::Honest, std::slice::from_ref(&held)).await;
    world.peers.dial_private = true;
    world.peers.gateway_client = World::new(&[], true).peers.gateway_client;
    let untrusted = world.peers.found(&[untrusted_server.multiaddr()], Instant::now())[0];
    for (peer, server, careful) in [(configured, &server, false), (untrusted, &untrusted_server, true)] {
        for (block, has) in [(&held, true), (&other, false)] {
            world.ask(peer, block, Ask::Have);
            assert_eq!(world.answer().await.presences, vec![(*block.cid(), has)]);
        }
        for asked in server.asked() {
            assert_eq!(asked.method, "HEAD");
            assert!(!asked.headers.contains("accept-encoding"), "{}", asked.headers);
            assert_eq!(asked.headers.contains("cache-control: only-if-cached"), careful, "{}", asked.headers);
        }
    }
}

#[tokio::test]
async fn responses_are_classified() {
    let held = sized(1, 100_000);
    let lacks = ["404 Not Found", "410 Gone", "412 Precondition Failed", "451 No", "504 Gateway Timeout"];
    let useless = [
        "400 Bad Request",
        "401 Unauthorized",
        "301 Moved Permanently\r\nLocation: http://127.0.0.1:1/",
        "302 Found\r\nLocation: /elsewhere",
        "200 OK",
        "200 OK\r\nContent-Type: text/html; charset=utf-8",
        "206 Partial Content\r\nContent-Type: application/vnd.ipld.raw",
    ];
    let table = lacks
        .map(|head| (head, OutcomeKind::Lacks))
        .into_iter()
        .chain(useless.map(|head| (head, OutcomeKind::Useless)));
    for (head, kind) in table {
        let server = TestServer::start(ServerMode::Says(head.to_owned()), std::slice::from_ref(&held)).await;
        let (mut world, peer) = World::with(&server).await;
        world.ask(peer, &held, Ask::Block);
        let received = world.answer().await;
        assert_eq!((received.presences, received.blocks), (vec![(*held.cid(), false)], vec![]), "{head}");
        assert_eq!(world.peers.metrics.count(kind), 1, "{head}");
        assert_eq!(server.asked().len(), 1, "{head}: neither repeated nor followed");
    }
}

#[tokio::test]
async fn a_block_that_is_too_large_is_not_read() {
    let held = sized(1, 10);
    for announced in [true, false] {
        let server = TestServer::start(ServerMode::Huge { announced }, std::slice::from_ref(&held)).await;
        let (mut world, peer) = World::with(&server).await;
        world.ask(peer, &held, Ask::Block);
        assert_eq!(world.answer().await.presences, vec![(*held.cid(), false)]);
        assert_eq!(world.peers.metrics.count(OutcomeKind::Useless), 1);
    }
}

#[tokio::test]
async fn a_gateway_with_invalid_blocks_is_reported_and_its_breaker_opens() {
    let held = sized(1, 1_000);
    let server = TestServer::start(ServerMode::InvalidBlock, std::slice::from_ref(&held)).await;
    let (mut world, peer) = World::with(&server).await;
    let mut waiter = world.wait_for(&held);
    world.ask(peer, &held, Ask::Block);
    let received = world.answer().await;
    assert_ne!(received.blocks[0].0, held.key().expect("key"), "the event has the key of the received block");
    assert!(matches!(world.next().await, Event::Disconnected(gone) if gone == peer));
    assert!(waiter.try_recv().is_err(), "it was not delivered");
    let later = Instant::now() + Duration::from_secs(800);
    world.peers.tick(later);
    assert!(world.peers.events.is_empty(), "the breaker stays open for long");
    assert_eq!(world.peers.metrics.breakers_open.get(), 1);
}

#[tokio::test]
async fn failures_are_retried_until_the_breaker_opens() {
    let held = sized(1, 100_000);
    let failures = [
        ServerMode::Hanging,
        ServerMode::Breaking,
        ServerMode::Says("500 Internal Server Error".to_owned()),
        ServerMode::Says("502 Bad Gateway".to_owned()),
    ];
    for mode in failures {
        let server = TestServer::start(mode.clone(), std::slice::from_ref(&held)).await;
        let (mut world, peer) = World::with(&server).await;
        world.ask(peer, &held, Ask::Block);
        assert!(matches!(world.next().await, Event::Disconnected(gone) if gone == peer), "{mode:?}");
        assert_eq!(world.peers.metrics.count(OutcomeKind::Failed), u64::from(FAILURES_MAX), "{mode:?}");
        world.peers.tick(Instant::now());
        assert!(world.peers.events.is_empty(), "{mode:?}: the breaker is open");
        let later = Instant::now() + Duration::from_secs(2);
        world.peers.tick(later);
        assert!(matches!(world.peers.events.pop_front(), Some(Event::Connected { .. })), "{mode:?}");
        server.set_mode(ServerMode::Honest);
        let others = [sized(2, 10), sized(3, 10)];
        for block in [&held, &others[0], &others[1]] {
            let entry = WantEntry { cid: *block.cid(), ask: Ask::Block, send_dont_have: true };
            world.peers.send(peer, &[entry], later);
        }
        assert_eq!(world.peers.requests.len(), 1, "{mode:?}: one trial request first");
        assert_eq!(world.answer().await.blocks.len(), 1, "{mode:?}");
        assert_eq!(world.peers.requests.len(), 2, "{mode:?}: then without a limit");
        assert_eq!(world.peers.metrics.breakers_open.get(), 0, "{mode:?}");
    }
}

#[tokio::test]
async fn what_was_received_before_the_breaker_opened_does_not_close_it() {
    let server = TestServer::start(ServerMode::Honest, &[]).await;
    let (mut world, peer) = World::with(&server).await;
    let now = Instant::now();
    world.peers.car_ended(&peer, &TransferEnd::InvalidBlock, now);
    assert!(matches!(world.next().await, Event::Disconnected(gone) if gone == peer));
    // The report of a block of the same CAR, and of another one that the gateway lacks.
    world.peers.car_received(&peer, 1_000);
    world.peers.car_ended(&peer, &TransferEnd::Declined(Decline::Lacks), now);
    assert_eq!(world.peers.metrics.breakers_open.get(), 1);
    world.peers.tick(now + Duration::from_secs(800));
    assert!(world.peers.events.is_empty(), "it stays open for long");
    // Then the first success closes it.
    let later = now + Duration::from_secs(901);
    world.peers.tick(later);
    assert!(matches!(world.next().await, Event::Connected { .. }));
    world.peers.car_received(&peer, 1_000);
    world.peers.count_open_breakers();
    assert_eq!(world.peers.metrics.breakers_open.get(), 0);
}

#[tokio::test]
async fn a_single_failure_is_retried() {
    let (bad, good) = (sized(1, 1_000), sized(2, 1_000));
    let server = TestServer::start(ServerMode::Says("500 Oh".to_owned()), &[bad.clone(), good.clone()]).await;
    let (mut world, peer) = World::with(&server).await;
    world.ask(peer, &bad, Ask::Block);
    let asked_once = async {
        while server.asked().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asked_once).await.expect("asks");
    server.set_mode(ServerMode::Honest);
    assert_eq!(world.answer().await.blocks, vec![(bad.key().expect("key"), 1_000)]);
}

#[tokio::test]
async fn retry_after_is_respected() {
    let held = block("held");
    let on_a_date = "503 Later\r\nDate: Wed, 21 Oct 2015 07:28:00 GMT\r\nRetry-After: Wed, 21 Oct 2015 07:28:09 GMT";
    let table =
        [("429 Too Many\r\nRetry-After: 30", 30), ("503 Later\r\nRetry-After: 5", 5), (on_a_date, 9), ("429 No", 1)];
    for (head, rest) in table {
        let server = TestServer::start(ServerMode::Says(head.to_owned()), std::slice::from_ref(&held)).await;
        let (mut world, peer) = World::with(&server).await;
        let asked = Instant::now();
        world.ask(peer, &held, Ask::Block);
        assert_eq!(world.answer().await.presences, vec![(*held.cid(), false)], "{head}");
        assert!(matches!(world.next().await, Event::Disconnected(_)), "{head}");
        // The time counts from the response, which is between these instants.
        for (since, seconds, back) in [(asked, rest - 1, false), (Instant::now(), rest + 1, true)] {
            world.peers.tick(since + Duration::from_secs(seconds));
            assert_eq!(!world.peers.events.is_empty(), back, "{head}: after {seconds} s");
        }
        assert_eq!(server.asked().len(), 1, "{head}");
    }
}

#[tokio::test]
async fn cancelled_requests_are_aborted() {
    let blocks: Vec<Block> = (0..40).map(|seed| sized(seed, 10_000)).collect();
    for mode in [ServerMode::Silent, ServerMode::Stalling] {
        let server = TestServer::start(mode, &blocks).await;
        let (mut world, peer) = World::with(&server).await;
        for block in &blocks {
            world.ask(peer, block, Ask::Block);
        }
        for block in blocks.iter().rev() {
            world.ask(peer, block, Ask::Cancel);
        }
        world.is_quiet().await;
        assert_eq!(world.peers.metrics.count(OutcomeKind::Cancelled), ORIGIN_CONNECTIONS_MAX as u64);
        let source = &world.peers.sources[&peer];
        assert!(source.wants.is_empty() && source.queue.is_empty() && world.peers.running.is_empty());
    }
}

#[tokio::test]
async fn a_block_request_replaces_a_presence_request() {
    let held = block("held");
    let server = TestServer::start(ServerMode::Silent, std::slice::from_ref(&held)).await;
    let (mut world, peer) = World::with(&server).await;
    world.ask(peer, &held, Ask::Have);
    server.set_mode(ServerMode::Honest);
    world.ask(peer, &held, Ask::Block);
    world.ask(peer, &held, Ask::Have);
    assert_eq!(world.answer().await.blocks.len(), 1);
    world.is_quiet().await;
}

#[tokio::test]
async fn provider_records_cannot_refer_to_private_addresses() {
    let held = block("held");
    let server = TestServer::start(ServerMode::Honest, std::slice::from_ref(&held)).await;
    let mut world = World::new(&[], false);
    assert!(world.peers.found(&[server.multiaddr()], Instant::now()).is_empty(), "an IP address is checked directly");
    // A name is checked when it is resolved.
    let mut by_name = server.multiaddr();
    by_name = by_name.replace(0, |_| Some(Protocol::Dns("localhost".into()))).expect("has a first part");
    let ids = world.peers.found(&[by_name], Instant::now());
    assert!(matches!(world.next().await, Event::Connected { favoured: false, .. }));
    world.ask(ids[0], &held, Ask::Block);
    assert!(matches!(world.next().await, Event::Disconnected(_)));
    assert!(server.asked().is_empty(), "there was no connection");
    // With `dial_private`, both work.
    let mut world = World::new(&[], true);
    let ids = world.peers.found(&[server.multiaddr()], Instant::now());
    assert_eq!(world.peers.address(&ids[0]), Some(&server.multiaddr()), "it is known");
    world.ask(ids[0], &held, Ask::Block);
    assert_eq!(world.answer().await.blocks.len(), 1);
}

#[tokio::test]
async fn untrusted_gateways_are_bounded_and_evicted_by_use() {
    let mut world = World::new(&[], false);
    let start = Instant::now();
    let address = |n: usize| format!("/dns/gateway-{n}.example/https").parse::<Multiaddr>().expect("address");
    assert_eq!(world.peers.found(&(0..10).map(address).collect::<Vec<_>>(), start).len(), PER_RECORD_MAX);
    for n in 0..UNTRUSTED_MAX {
        let now = start + Duration::from_millis(n as u64);
        assert_eq!(world.peers.found(&[address(n)], now).len(), 1);
    }
    assert_eq!(world.peers.sources.len(), UNTRUSTED_MAX);
    let first = Base::from_multiaddr(&address(0)).expect("base").id();
    assert_eq!(world.peers.found(&[address(UNTRUSTED_MAX)], start).len(), 1);
    assert!(!world.peers.sources.contains_key(&first));
    assert_eq!(world.peers.sources.len(), UNTRUSTED_MAX);
    world.peers.tick(start + UNTRUSTED_IDLE * 2);
    assert!(world.peers.sources.is_empty());
    assert_eq!(world.peers.metrics.gateways.get(), 0);
}

#[tokio::test]
async fn disabled_and_invalid_gateways_are_not_used() {
    let mut none = HttpPeers::none(Metrics::default());
    let address: Multiaddr = "/dns/example.org/https".parse().expect("address");
    assert!(none.found(&[address], Instant::now()).is_empty());
    assert!(!none.send(PeerId::random(), &[], Instant::now()));
    let bad = HttpPeersOptions { gateways: vec!["example.org".to_owned()], ..HttpPeersOptions::default() };
    let refused = HttpPeers::new(&bad, Arc::default(), Metrics::default(), Instant::now()).err().expect("refused");
    assert!(refused.to_string().starts_with("example.org: it is not the base URL"), "{refused}");
}

/// A world with one configured gateway over TLS, and a root certificate to trust.
async fn world_with_tls(server: &TestServer, root: Option<&reqwest::Certificate>) -> (World, PeerId) {
    let (mut world, peer) = World::with(server).await;
    if let Some(root) = root {
        let clients = Clients::with_root_certificate(root.clone());
        world.peers.gateway_client = Some(Arc::new(GatewayClient::new(clients, world.wants.clone())));
    }
    (world, peer)
}

#[tokio::test]
async fn gateways_are_asked_over_tls_with_http_1_and_2() {
    let blocks: Vec<Block> = (0..100).map(|seed| sized(seed, 50_000)).collect();
    for (version, requests_max) in [("h2", ORIGIN_STREAMS_MAX), ("http/1.1", ORIGIN_CONNECTIONS_MAX)] {
        let (server, root) = TestServer::start_tls("localhost", version, &blocks).await;
        let (mut world, peer) = world_with_tls(&server, Some(&root)).await;
        world.ask(peer, &sized(200, 10), Ask::Block);
        assert_eq!(world.answer().await.presences, vec![(*sized(200, 10).cid(), false)], "{version}");
        for block in &blocks {
            world.ask(peer, block, Ask::Block);
        }
        assert_eq!(world.peers.requests.len(), requests_max, "{version}");
        for _ in &blocks {
            assert_eq!(world.answer().await.blocks.len(), 1, "{version}");
        }
        assert_eq!(world.peers.metrics.count(OutcomeKind::Block), 100, "{version}");
        assert_eq!(server.asked().len(), 101, "{version}: each once");
        assert!(version != "h2" || server.connections() == 1, "requests share a connection");
    }
}

#[tokio::test]
async fn a_gateway_with_an_invalid_certificate_is_not_asked() {
    let held = block("held");
    let blocks = std::slice::from_ref(&held);
    let (_, others_root) = TestServer::start_tls("localhost", "h2", &[]).await;
    // The name in the certificate, and its issuer.
    let table = [("localhost", "no issuer"), ("localhost", "another issuer"), ("gateway.example", "its issuer")];
    for (name, voucher) in table {
        let (server, root) = TestServer::start_tls(name, "h2", blocks).await;
        let root = match voucher {
            "no issuer" => None,
            "another issuer" => Some(&others_root),
            _ => Some(&root),
        };
        let (mut world, peer) = world_with_tls(&server, root).await;
        world.ask(peer, &held, Ask::Block);
        assert!(matches!(world.next().await, Event::Disconnected(gone) if gone == peer), "{name}, {voucher}");
        assert_eq!(world.peers.metrics.count(OutcomeKind::Failed), u64::from(FAILURES_MAX), "{name}, {voucher}");
        assert_eq!(world.peers.metrics.breakers_open.get(), 1, "{name}, {voucher}");
        assert!(server.connections() > 0 && server.asked().is_empty(), "{name}, {voucher}");
    }
}
