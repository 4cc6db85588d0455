//! Gateways of every kind over real sockets on loopback.

use super::*;
use crate::http_source::source::{ORIGIN_CONNECTIONS_MAX, ORIGIN_STREAMS_MAX, UNPROVEN_MAX};
use crate::http_source::test_server::{Manner, TestServer, block};
use crate::wants::SessionId;
use content::{Block, SourceError};
use libp2p::multiaddr::Protocol;
use std::future::poll_fn;
use tokio::sync::oneshot::Receiver;

const PATIENCE: Duration = Duration::from_secs(20);

/// Peers and the waiters that they deliver to.
struct World {
    peers: HttpPeers,
    wants: Arc<Wants>,
}

impl World {
    fn new(gateways: &[&TestServer], dial_private: bool) -> Self {
        let gateways = gateways.iter().map(|server| server.url()).collect();
        let options = Options { gateways, from_records: true, dial_private };
        let wants = Arc::new(Wants::default());
        let peers = HttpPeers::new(&options, wants.clone(), Metrics::default(), Instant::now()).expect("sets up");
        Self { peers, wants }
    }

    /// A world with one configured gateway, and its name.
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

    /// The next answer; other events are left out.
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

    /// Nothing happens for a moment, and nothing runs.
    async fn is_quiet(&mut self) {
        while !self.peers.requests.is_empty() {
            let event = poll_fn(|cx| self.peers.poll(cx, Instant::now()));
            // Given up requests make no event when they have ended.
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
async fn a_block_goes_to_its_waiter_and_the_machine_hears_of_it() {
    let blocks = [sized(1, 1 << 20), sized(2, 0), sized(3, content::MAX_BLOCK_BYTES)];
    let server = TestServer::start(Manner::Honest, &blocks).await;
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
    for header in ["accept: application/vnd.ipld.raw", &format!("user-agent: causeway/{}", env!("CARGO_PKG_VERSION"))] {
        assert!(first.headers.contains(header), "{header} is not in {}", first.headers);
    }
    for header in ["cookie", "referer", "cache-control", "accept-encoding"] {
        assert!(!first.headers.contains(header), "{header} is in {}", first.headers);
    }
    assert_eq!(world.peers.metrics.endings(Ending::Block), 3);
    assert_eq!(world.peers.metrics.block_bytes.get(), 3 << 20);
}

#[tokio::test]
async fn many_blocks_are_asked_for_at_once_but_not_too_many() {
    let blocks: Vec<Block> = (0..100).map(|seed| sized(seed, 10_000)).collect();
    let server = TestServer::start(Manner::Honest, &blocks).await;
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
async fn slow_gateways_of_strangers_keep_no_configured_one_waiting() {
    let held = block("held");
    let server = TestServer::start(Manner::Honest, std::slice::from_ref(&held)).await;
    let mut world = World::new(&[&server], true);
    let configured = *world.peers.sources.keys().next().expect("it is configured");
    let blocks: Vec<Block> = (0..UNPROVEN_MAX).map(|number| block(number.to_string())).collect();
    for _ in 0..=REQUESTS_MAX / UNPROVEN_MAX {
        let slow = TestServer::start(Manner::Silent, &blocks).await;
        let stranger = world.peers.found(&[slow.multiaddr()], Instant::now())[0];
        blocks.iter().for_each(|block| world.ask(stranger, block, Ask::Block));
    }
    assert_eq!(world.peers.requests.len(), REQUESTS_MAX, "strangers have all that they may");
    world.ask(configured, &held, Ask::Block);
    assert_eq!(world.peers.requests.len(), REQUESTS_MAX + 1, "it is asked at once");
    assert_eq!(world.answer().await.blocks, vec![(held.key().expect("key"), held.data().len())]);
}

#[tokio::test]
async fn presence_costs_no_block_and_sends_no_strangers_gateway_searching() {
    let (held, other) = (block("held"), block("other"));
    let server = TestServer::start(Manner::Honest, std::slice::from_ref(&held)).await;
    let (mut world, configured) = World::with(&server).await;
    let strange = TestServer::start(Manner::Honest, std::slice::from_ref(&held)).await;
    world.peers.dial_private = true;
    world.peers.asker = World::new(&[], true).peers.asker;
    let stranger = world.peers.found(&[strange.multiaddr()], Instant::now())[0];
    for (peer, server, careful) in [(configured, &server, false), (stranger, &strange, true)] {
        for (block, has) in [(&held, true), (&other, false)] {
            world.ask(peer, block, Ask::Have);
            assert_eq!(world.answer().await.presences, vec![(*block.cid(), has)]);
        }
        for asked in server.asked() {
            assert_eq!(asked.method, "HEAD");
            assert_eq!(asked.headers.contains("cache-control: only-if-cached"), careful, "{}", asked.headers);
        }
    }
}

#[tokio::test]
async fn answers_are_told_apart() {
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
    let table = lacks.map(|head| (head, Ending::Lacks)).into_iter().chain(useless.map(|head| (head, Ending::Useless)));
    for (head, ending) in table {
        let server = TestServer::start(Manner::Says(head.to_owned()), std::slice::from_ref(&held)).await;
        let (mut world, peer) = World::with(&server).await;
        world.ask(peer, &held, Ask::Block);
        let received = world.answer().await;
        assert_eq!((received.presences, received.blocks), (vec![(*held.cid(), false)], vec![]), "{head}");
        assert_eq!(world.peers.metrics.endings(ending), 1, "{head}");
        assert_eq!(server.asked().len(), 1, "{head}: neither repeated nor followed");
    }
}

#[tokio::test]
async fn a_block_that_is_too_large_is_not_read() {
    let held = sized(1, 10);
    for announced in [true, false] {
        let server = TestServer::start(Manner::Huge { announced }, std::slice::from_ref(&held)).await;
        let (mut world, peer) = World::with(&server).await;
        world.ask(peer, &held, Ask::Block);
        assert_eq!(world.answer().await.presences, vec![(*held.cid(), false)]);
        assert_eq!(world.peers.metrics.endings(Ending::Useless), 1);
    }
}

#[tokio::test]
async fn a_liar_is_named_as_one_and_left_alone() {
    let held = sized(1, 1_000);
    let server = TestServer::start(Manner::Lying, std::slice::from_ref(&held)).await;
    let (mut world, peer) = World::with(&server).await;
    let mut waiter = world.wait_for(&held);
    world.ask(peer, &held, Ask::Block);
    let received = world.answer().await;
    assert_ne!(received.blocks[0].0, held.key().expect("key"), "the machine hears which block really came");
    assert!(matches!(world.next().await, Event::Disconnected(gone) if gone == peer));
    assert!(waiter.try_recv().is_err(), "nobody was given it");
    let later = Instant::now() + Duration::from_secs(800);
    world.peers.tick(later);
    assert!(world.peers.events.is_empty(), "it is left alone for long");
    assert_eq!(world.peers.metrics.breakers_open.get(), 1);
}

#[tokio::test]
async fn failures_are_repeated_until_the_breaker_opens_and_it_comes_back_rested() {
    let held = sized(1, 100_000);
    let failures = [
        Manner::Hanging,
        Manner::Breaking,
        Manner::Says("500 Internal Server Error".to_owned()),
        Manner::Says("502 Bad Gateway".to_owned()),
    ];
    for manner in failures {
        let server = TestServer::start(manner.clone(), std::slice::from_ref(&held)).await;
        let (mut world, peer) = World::with(&server).await;
        world.ask(peer, &held, Ask::Block);
        assert!(matches!(world.next().await, Event::Disconnected(gone) if gone == peer), "{manner:?}");
        assert_eq!(world.peers.metrics.endings(Ending::Failed), u64::from(FAILURES_MAX), "{manner:?}");
        world.peers.tick(Instant::now());
        assert!(world.peers.events.is_empty(), "{manner:?}: it rests");
        let rested = Instant::now() + Duration::from_secs(2);
        world.peers.tick(rested);
        assert!(matches!(world.peers.events.pop_front(), Some(Event::Connected { .. })), "{manner:?}");
        server.behave(Manner::Honest);
        let others = [sized(2, 10), sized(3, 10)];
        for block in [&held, &others[0], &others[1]] {
            let entry = WantEntry { cid: *block.cid(), ask: Ask::Block, send_dont_have: true };
            world.peers.send(peer, &[entry], rested);
        }
        assert_eq!(world.peers.requests.len(), 1, "{manner:?}: one attempt first");
        assert_eq!(world.answer().await.blocks.len(), 1, "{manner:?}");
        assert_eq!(world.peers.requests.len(), 2, "{manner:?}: and then as before");
        assert_eq!(world.peers.metrics.breakers_open.get(), 0, "{manner:?}");
    }
}

#[tokio::test]
async fn one_failure_in_between_is_made_up_for() {
    let (bad, good) = (sized(1, 1_000), sized(2, 1_000));
    let server = TestServer::start(Manner::Says("500 Oh".to_owned()), &[bad.clone(), good.clone()]).await;
    let (mut world, peer) = World::with(&server).await;
    world.ask(peer, &bad, Ask::Block);
    let asked_once = async {
        while server.asked().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asked_once).await.expect("asks");
    server.behave(Manner::Honest);
    assert_eq!(world.answer().await.blocks, vec![(bad.key().expect("key"), 1_000)]);
}

#[tokio::test]
async fn a_busy_gateway_gets_the_rest_that_it_asks_for() {
    let held = block("held");
    let on_a_date = "503 Later\r\nDate: Wed, 21 Oct 2015 07:28:00 GMT\r\nRetry-After: Wed, 21 Oct 2015 07:28:09 GMT";
    let table =
        [("429 Too Many\r\nRetry-After: 30", 30), ("503 Later\r\nRetry-After: 5", 5), (on_a_date, 9), ("429 No", 1)];
    for (head, rest) in table {
        let server = TestServer::start(Manner::Says(head.to_owned()), std::slice::from_ref(&held)).await;
        let (mut world, peer) = World::with(&server).await;
        world.ask(peer, &held, Ask::Block);
        assert_eq!(world.answer().await.presences, vec![(*held.cid(), false)], "{head}");
        assert!(matches!(world.next().await, Event::Disconnected(_)), "{head}");
        for (seconds, back) in [(rest - 1, false), (rest + 1, true)] {
            world.peers.tick(Instant::now() + Duration::from_secs(seconds));
            assert_eq!(!world.peers.events.is_empty(), back, "{head}: after {seconds} s");
        }
        assert_eq!(server.asked().len(), 1, "{head}");
    }
}

#[tokio::test]
async fn what_is_withdrawn_is_not_waited_for() {
    let blocks: Vec<Block> = (0..40).map(|seed| sized(seed, 10_000)).collect();
    for manner in [Manner::Silent, Manner::Stalling] {
        let server = TestServer::start(manner, &blocks).await;
        let (mut world, peer) = World::with(&server).await;
        for block in &blocks {
            world.ask(peer, block, Ask::Block);
        }
        for block in blocks.iter().rev() {
            world.ask(peer, block, Ask::Cancel);
        }
        world.is_quiet().await;
        assert_eq!(world.peers.metrics.endings(Ending::Cancelled), ORIGIN_CONNECTIONS_MAX as u64);
        let source = &world.peers.sources[&peer];
        assert!(source.wants.is_empty() && source.queue.is_empty() && world.peers.running.is_empty());
    }
}

#[tokio::test]
async fn a_question_for_presence_gives_way_to_one_for_the_block() {
    let held = block("held");
    let server = TestServer::start(Manner::Silent, std::slice::from_ref(&held)).await;
    let (mut world, peer) = World::with(&server).await;
    world.ask(peer, &held, Ask::Have);
    server.behave(Manner::Honest);
    world.ask(peer, &held, Ask::Block);
    world.ask(peer, &held, Ask::Have);
    assert_eq!(world.answer().await.blocks.len(), 1);
    world.is_quiet().await;
}

#[tokio::test]
async fn strangers_lead_nowhere_private() {
    let held = block("held");
    let server = TestServer::start(Manner::Honest, std::slice::from_ref(&held)).await;
    let mut world = World::new(&[], false);
    assert!(world.peers.found(&[server.multiaddr()], Instant::now()).is_empty(), "an address says what it is");
    // A name does not, until it is looked up.
    let mut by_name = server.multiaddr();
    by_name = by_name.replace(0, |_| Some(Protocol::Dns("localhost".into()))).expect("has a first part");
    let names = world.peers.found(&[by_name], Instant::now());
    assert!(matches!(world.next().await, Event::Connected { favoured: false, .. }));
    world.ask(names[0], &held, Ask::Block);
    assert!(matches!(world.next().await, Event::Disconnected(_)));
    assert!(server.asked().is_empty(), "nobody connected");
    // With the override both work.
    let mut world = World::new(&[], true);
    let names = world.peers.found(&[server.multiaddr()], Instant::now());
    assert_eq!(world.peers.address(&names[0]), Some(&server.multiaddr()), "it can be remembered");
    world.ask(names[0], &held, Ask::Block);
    assert_eq!(world.answer().await.blocks.len(), 1);
}

#[tokio::test]
async fn strangers_gateways_are_few_and_the_longest_unused_goes() {
    let mut world = World::new(&[], false);
    let start = Instant::now();
    let address = |n: usize| format!("/dns/gateway-{n}.example/https").parse::<Multiaddr>().expect("address");
    assert_eq!(world.peers.found(&(0..10).map(address).collect::<Vec<_>>(), start).len(), PER_RECORD_MAX);
    for n in 0..STRANGERS_MAX {
        let now = start + Duration::from_millis(n as u64);
        assert_eq!(world.peers.found(&[address(n)], now).len(), 1);
    }
    assert_eq!(world.peers.sources.len(), STRANGERS_MAX);
    let first = Base::from_multiaddr(&address(0)).expect("base").id();
    assert_eq!(world.peers.found(&[address(STRANGERS_MAX)], start).len(), 1);
    assert!(!world.peers.sources.contains_key(&first));
    assert_eq!(world.peers.sources.len(), STRANGERS_MAX);
    world.peers.tick(start + STRANGER_IDLE * 2);
    assert!(world.peers.sources.is_empty());
    assert_eq!(world.peers.metrics.gateways.get(), 0);
}

#[tokio::test]
async fn without_permission_nothing_is_used() {
    let mut none = HttpPeers::none(Metrics::default());
    let address: Multiaddr = "/dns/example.org/https".parse().expect("address");
    assert!(none.found(&[address], Instant::now()).is_empty());
    assert!(!none.send(PeerId::random(), &[], Instant::now()));
    let bad = Options { gateways: vec!["example.org".to_owned()], ..Options::default() };
    let refused = HttpPeers::new(&bad, Arc::default(), Metrics::default(), Instant::now()).err().expect("refused");
    assert!(refused.to_string().starts_with("example.org: it is not the base URL"), "{refused}");
}

/// A world with one configured gateway over TLS, for which this certificate vouches if there is any.
async fn world_with_tls(server: &TestServer, root: Option<&reqwest::Certificate>) -> (World, PeerId) {
    let (mut world, peer) = World::with(server).await;
    if let Some(root) = root {
        let clients = Clients::believing(root.clone());
        world.peers.asker = Some(Arc::new(Asker::new(clients, world.wants.clone())));
    }
    (world, peer)
}

#[tokio::test]
async fn gateways_are_asked_over_tls_in_either_version_of_http() {
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
        assert_eq!(world.peers.metrics.endings(Ending::Block), 100, "{version}");
        assert_eq!(server.asked().len(), 101, "{version}: each once");
        assert!(version != "h2" || server.connections() == 1, "requests share a connection");
    }
}

#[tokio::test]
async fn a_gateway_that_cannot_prove_its_name_is_asked_nothing() {
    let held = block("held");
    let blocks = std::slice::from_ref(&held);
    let (_, others_root) = TestServer::start_tls("localhost", "h2", &[]).await;
    // Whom the certificate names, and who vouches for it: nobody, somebody else, the right one.
    let table = [("localhost", "nobody"), ("localhost", "somebody else"), ("gateway.example", "the right one")];
    for (name, voucher) in table {
        let (server, root) = TestServer::start_tls(name, "h2", blocks).await;
        let root = match voucher {
            "nobody" => None,
            "somebody else" => Some(&others_root),
            _ => Some(&root),
        };
        let (mut world, peer) = world_with_tls(&server, root).await;
        world.ask(peer, &held, Ask::Block);
        assert!(matches!(world.next().await, Event::Disconnected(gone) if gone == peer), "{name}, {voucher}");
        assert_eq!(world.peers.metrics.endings(Ending::Failed), u64::from(FAILURES_MAX), "{name}, {voucher}");
        assert_eq!(world.peers.metrics.breakers_open.get(), 1, "{name}, {voucher}");
        assert!(server.connections() > 0 && server.asked().is_empty(), "{name}, {voucher}");
    }
}
