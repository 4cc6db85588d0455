//! Tests with real nodes over TCP and QUIC on loopback.

use super::client::{FoundBlock, LookupError};
use super::metrics::LookupResult;
use super::server::Answering;
use super::{Lookup, MemberAddress};
use crate::connecting::AddressOrigin;
use crate::{Bridge, BridgeOptions};
use bytes::Bytes;
use content::source_error::Stall;
use content::{Block, BlockSource, Cid, MemoryBlocks, ReadAhead, SourceError, codec, hashes};
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all, ready};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use prometheus_client::registry::Registry;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

const PATIENCE: Duration = Duration::from_secs(60);
const LISTENERS: [&str; 2] = ["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"];

fn block(data: impl Into<Bytes>) -> Block {
    Block::of(codec::RAW, hashes::SHA2_256, 32, data.into()).expect("a block")
}

fn lookup(block: &Block, may_fetch: bool) -> Lookup {
    Lookup { root: *block.cid(), cid: *block.cid(), may_fetch, ahead: None }
}

/// A gateway of a site.
struct Gateway {
    bridge: Bridge,
    dir: TempDir,
}

impl Gateway {
    async fn start(listener: &str) -> Self {
        Self::start_in(tempfile::tempdir().expect("a folder"), listener).await
    }

    async fn start_in(dir: TempDir, listener: &str) -> Self {
        let mut options = BridgeOptions::new(dir.path());
        options.listen = vec![listener.parse().expect("an address")];
        options.nat.upnp = false;
        options.member_lookups = true;
        let started = Bridge::start(options, Arc::new(MemoryBlocks::new()), &mut Registry::default()).await;
        Self { bridge: started.expect("starts"), dir }
    }

    /// Starts one that answers.
    async fn answering(listener: &str, stored: Arc<dyn BlockSource>, network: Arc<dyn BlockSource>) -> Self {
        let gateway = Self::start(listener).await;
        gateway.answer(stored, network);
        gateway
    }

    fn answer(&self, stored: Arc<dyn BlockSource>, network: Arc<dyn BlockSource>) {
        let open_session = Box::new(move |_: &Cid, has_fetched: Arc<AtomicBool>| {
            Arc::new(Used { source: Arc::clone(&network), has_fetched }) as Arc<dyn BlockSource>
        });
        self.bridge.answer_members(Answering { stored, open_session });
    }

    /// Makes another one a gateway of the site.
    fn know(&self, other: &Self) {
        self.bridge.set_members([other.bridge.peer_id()].into());
    }

    async fn address(&self) -> MemberAddress {
        MemberAddress { peer: self.bridge.peer_id(), addresses: self.bridge.addresses().await }
    }

    async fn ask(&self, other: &MemberAddress, lookup: Lookup) -> Result<Option<FoundBlock>, LookupError> {
        timeout(PATIENCE, self.bridge.look_up_at(other.clone(), lookup)).await.expect("in time")
    }

    fn asked(&self, result: LookupResult) -> u64 {
        self.bridge.member_metrics().count_asked(result)
    }
}

fn stored(block: &Block) -> Result<Option<FoundBlock>, LookupError> {
    Ok(Some(FoundBlock { block: block.clone(), fetched: false }))
}

fn is_unavailable(answer: &Result<Option<FoundBlock>, LookupError>) -> bool {
    matches!(answer, Err(LookupError::Unavailable { .. }))
}

fn blocks(blocks: &[&Block]) -> Arc<MemoryBlocks> {
    Arc::new(blocks.iter().map(|block| (*block).clone()).collect())
}

/// What the network of a gateway has: an answer for all blocks, with what was requested.
struct Network {
    answer: Mutex<Result<Block, SourceError>>,
    ahead: Mutex<Vec<Option<ReadAhead>>>,
}

impl Network {
    fn new(answer: Result<Block, SourceError>) -> Arc<Self> {
        Arc::new(Self { answer: Mutex::new(answer), ahead: Mutex::default() })
    }

    fn get(&self, ahead: Option<ReadAhead>) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.ahead.lock().expect("no panic").push(ahead);
        ready(self.answer.lock().expect("no panic").clone()).boxed()
    }
}

impl BlockSource for Network {
    fn get(&self, _: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.get(None)
    }

    fn get_ahead(&self, _: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.get(Some(ahead.clone()))
    }

    fn has(&self, _: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        ready(Ok(false)).boxed()
    }
}

/// A network that says when it is used.
struct Used {
    source: Arc<dyn BlockSource>,
    has_fetched: Arc<AtomicBool>,
}

impl BlockSource for Used {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.has_fetched.store(true, Ordering::SeqCst);
        self.source.get(cid)
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.has_fetched.store(true, Ordering::SeqCst);
        self.source.get_ahead(cid, ahead)
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.source.has(cid)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_returns_what_it_stores_and_what_its_network_has() {
    for listener in LISTENERS {
        let [held, large, remote] = [block("held"), block(vec![7; content::MAX_BLOCK_BYTES]), block("remote")];
        let network = Network::new(Ok(remote.clone()));
        let owner = Gateway::answering(listener, blocks(&[&held, &large]), network.clone()).await;
        let asker = Gateway::start(listener).await;
        owner.know(&asker);
        let address = owner.address().await;
        for held in [&held, &large, &held] {
            assert_eq!(asker.ask(&address, lookup(held, false)).await, stored(held));
        }
        assert_eq!(asker.ask(&address, lookup(&remote, false)).await, Ok(None));
        assert!(network.ahead.lock().expect("no panic").is_empty(), "nothing was fetched");
        let ahead = Some(ReadAhead::of_file(*remote.cid(), 5, 10));
        let asked = asker.ask(&address, Lookup { ahead: ahead.clone(), ..lookup(&remote, true) }).await;
        assert_eq!(asked, Ok(Some(FoundBlock { block: remote.clone(), fetched: true })));
        assert_eq!(*network.ahead.lock().expect("no panic"), [ahead]);
        assert_eq!(asker.ask(&address, lookup(&held, true)).await, stored(&held), "it is in memory");
        let counted =
            [LookupResult::Stored, LookupResult::NotStored, LookupResult::Fetched].map(|result| asker.asked(result));
        assert_eq!(counted, [4, 1, 1]);
        assert_eq!(owner.bridge.member_metrics().count_served(LookupResult::Stored), 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_owner_cannot_return_has_a_reason() {
    let (wanted, waited) = (block("wanted"), Duration::from_millis(1_500));
    let stall = Stall { waited, providers_found: 2, peers_asked: 1, ..Stall::default() };
    let network = Network::new(Err(SourceError::Closed));
    let owner = Gateway::answering(LISTENERS[0], blocks(&[]), network.clone()).await;
    let (asker, address) = (Gateway::start(LISTENERS[0]).await, owner.address().await);
    owner.know(&asker);
    let cid = *wanted.cid();
    let alone = Stall { no_peers: true, ..stall };
    let busy = SourceError::Busy { retry_after: Duration::ZERO };
    for (error, result) in [
        (SourceError::Stalled { cid, stall }, LookupResult::NotFound),
        (SourceError::Stalled { cid, stall: alone }, LookupResult::Failed),
        (busy, LookupResult::Busy),
        (SourceError::Store("full".into()), LookupResult::Failed),
    ] {
        *network.answer.lock().expect("no panic") = Err(error.clone());
        let before = asker.asked(result);
        let answer = asker.ask(&address, lookup(&wanted, true)).await;
        match result {
            LookupResult::NotFound => assert_eq!(answer, Err(LookupError::NotFound(stall))),
            _ => assert!(is_unavailable(&answer), "{error}: {answer:?}"),
        }
        assert_eq!(asker.asked(result), before + 1, "{error}");
    }
    // None of these is a reason not to ask again.
    *network.answer.lock().expect("no panic") = Ok(wanted.clone());
    assert!(asker.ask(&address, lookup(&wanted, true)).await.is_ok_and(|found| found.is_some()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_is_not_of_the_site_gets_no_answer() {
    let held = block("held");
    let owner = Gateway::start(LISTENERS[0]).await;
    let network = Network::new(Ok(held.clone()));
    owner.answer(blocks(&[&held]), network.clone());
    let (asker, address) = (Gateway::start(LISTENERS[0]).await, owner.address().await);
    assert!(is_unavailable(&asker.ask(&address, lookup(&held, true)).await));
    assert!(network.ahead.lock().expect("no panic").is_empty());
    let served: u64 = LookupResult::ALL.map(|result| owner.bridge.member_metrics().count_served(result)).iter().sum();
    assert_eq!(served, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_hangs_is_waited_for_once() {
    let held = block("held");
    // It accepts streams, and does not read them.
    let owner = Gateway::start(LISTENERS[0]).await;
    let (asker, address) = (Gateway::start(LISTENERS[0]).await, owner.address().await);
    owner.know(&asker);
    // More than there are slots.
    let all = (0..200).map(|_| asker.ask(&address, lookup(&held, false)));
    assert!(join_all(all).await.iter().all(is_unavailable));
    let since = Instant::now();
    for _ in 0..100 {
        assert!(is_unavailable(&asker.ask(&address, lookup(&held, false)).await));
    }
    assert!(since.elapsed() < Duration::from_secs(20), "a hundred waits for it would take 200 s at least");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_was_started_again_is_asked_again() {
    let held = block("held");
    for listener in LISTENERS {
        let owner = Gateway::answering(listener, blocks(&[&held]), Network::new(Ok(held.clone()))).await;
        let (asker, address) = (Gateway::start(listener).await, owner.address().await);
        owner.know(&asker);
        let many = join_all((0..20).map(|_| asker.ask(&address, lookup(&held, false)))).await;
        assert!(many.iter().all(|answer| *answer == stored(&held)), "{many:?}");
        owner.bridge.shutdown().await;
        // The same key, at another port.
        let again = Gateway::start_in(owner.dir, listener).await;
        again.know(&asker);
        again.answer(blocks(&[&held]), Network::new(Ok(held.clone())));
        let address = again.address().await;
        let until_stored = async {
            while asker.ask(&address, lookup(&held, false)).await != stored(&held) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(PATIENCE, until_stored).await.expect("it is asked again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_is_not_there_is_dialled_once() {
    let owner = Gateway::start(LISTENERS[0]).await;
    let (address, asker) = (owner.address().await, Gateway::start(LISTENERS[0]).await);
    owner.bridge.shutdown().await;
    let since = Instant::now();
    for _ in 0..100 {
        assert!(is_unavailable(&asker.ask(&address, lookup(&block("held"), false)).await));
    }
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    assert_eq!(asker.asked(LookupResult::Unavailable), 100);
}

/// The address of a gateway's listener as that of another peer.
async fn listener_as(gateway: &Gateway, peer: PeerId) -> Multiaddr {
    let mut address = gateway.address().await.addresses[0].clone();
    address.pop();
    address.with(Protocol::P2p(peer))
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_that_are_those_of_others_here_do_not_hide_an_owner() {
    // 127.0.0.1:4001 of an owner on another machine is an address of the asking gateway, or of a third peer.
    let held = block("held");
    for listener in LISTENERS {
        let owner = Gateway::answering(listener, blocks(&[&held]), Network::new(Ok(held.clone()))).await;
        let (asker, third) = (Gateway::start(listener).await, Gateway::start(listener).await);
        owner.know(&asker);
        let mut address = owner.address().await;
        for other in [&asker, &third] {
            address.addresses.insert(0, listener_as(other, address.peer).await);
        }
        assert_eq!(asker.ask(&address, lookup(&held, false)).await, stored(&held), "{listener}");
        // Another one has none of the owner's.
        address.addresses.pop();
        let other = Gateway::start(listener).await;
        owner.know(&other);
        assert!(is_unavailable(&other.ask(&address, lookup(&held, false)).await), "{listener}");
    }
}

/// A TCP proxy in front of a gateway, which does this with the two sides of each connection.
async fn proxy<F: Future<Output = ()> + Send + 'static>(
    to: &Multiaddr,
    delay: Duration,
    carry: impl Fn(TcpStream, TcpStream) -> F + Send + Sync + 'static,
) -> Multiaddr {
    let port = to.iter().find_map(|part| if let Protocol::Tcp(port) = part { Some(port) } else { None }).expect("TCP");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("/ip4/127.0.0.1/tcp/{}", listener.local_addr().expect("bound").port());
    let carry = Arc::new(carry);
    tokio::spawn(async move {
        while let Ok((here, _)) = listener.accept().await {
            let carry = Arc::clone(&carry);
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let there = TcpStream::connect(("127.0.0.1", port)).await.expect("connects");
                carry(here, there).await;
            });
        }
    });
    address.parse().expect("an address")
}

/// One that waits before it connects. Counts the bytes that the gateway sends.
async fn slow_proxy(to: &Multiaddr) -> (Multiaddr, Arc<AtomicUsize>) {
    let sent = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&sent);
    let address = proxy(to, Duration::from_secs(1), move |mut here, mut there| {
        let sent = Arc::clone(&counted);
        async move {
            let ((mut from_here, mut to_here), (mut from_there, mut to_there)) = (here.split(), there.split());
            let back = async {
                let mut buffer = vec![0; 65_536];
                while let Ok(read @ 1..) = from_there.read(&mut buffer).await {
                    sent.fetch_add(read, Ordering::Relaxed);
                    if to_here.write_all(&buffer[..read]).await.is_err() {
                        break;
                    }
                }
            };
            tokio::join!(back, tokio::io::copy(&mut from_here, &mut to_there).map(drop));
        }
    });
    (address.await, sent)
}

/// One that passes on nothing, and keeps its connections open, once the token is cancelled.
async fn cuttable_proxy(to: &Multiaddr) -> (Multiaddr, CancellationToken) {
    let cut = CancellationToken::new();
    let of_proxy = cut.clone();
    let address = proxy(to, Duration::ZERO, move |mut here, mut there| {
        let cut = of_proxy.clone();
        async move {
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut here, &mut there) => return,
                () = cut.cancelled() => {}
            }
            // The sockets stay open.
            std::future::pending::<()>().await;
            drop((here, there));
        }
    });
    (address.await, cut)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_is_asked_at_the_nearest_of_its_addresses() {
    let held = block(vec![1; 1_000_000]);
    let owner = Gateway::answering(LISTENERS[0], blocks(&[&held]), Network::new(Ok(held.clone()))).await;
    let asker = Gateway::start(LISTENERS[0]).await;
    owner.know(&asker);
    let mut address = owner.address().await;
    // As gateways are connected that have found each other in the DHT.
    let (announced, sent) = slow_proxy(&address.addresses[0]).await;
    let announced = announced.with(Protocol::P2p(address.peer));
    let by = AddressOrigin::Operator;
    asker.bridge.connect(address.peer, vec![announced.clone()], by, PATIENCE).await.expect("connects");
    address.addresses.insert(0, announced);
    // That connection is used until there is a better one.
    let until_direct = async {
        loop {
            let before = sent.load(Ordering::Relaxed);
            assert_eq!(asker.ask(&address, lookup(&held, false)).await, stored(&held));
            if sent.load(Ordering::Relaxed) - before < 100_000 {
                break;
            }
        }
    };
    timeout(PATIENCE, until_direct).await.expect("another connection is used");
    // Of the others that were dialled, none remains.
    let until_one = async {
        while asker.bridge.peers().await.iter().any(|peer| peer.connections.len() > 2) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, until_one).await.expect("they are closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_broken_is_replaced() {
    let held = block("held");
    let owner = Gateway::answering(LISTENERS[0], blocks(&[&held]), Network::new(Ok(held.clone()))).await;
    let asker = Gateway::start(LISTENERS[0]).await;
    owner.know(&asker);
    let direct = owner.address().await;
    let (proxy, cut) = cuttable_proxy(&direct.addresses[0]).await;
    let by_proxy = MemberAddress { peer: direct.peer, addresses: vec![proxy] };
    assert_eq!(asker.ask(&by_proxy, lookup(&held, false)).await, stored(&held));
    // As when the machine of the owner has lost its power, and was started at another address.
    cut.cancel();
    let until_stored = async {
        while asker.ask(&direct, lookup(&held, false)).await != stored(&held) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, until_stored).await.expect("it is asked over another connection");
    let since = Instant::now();
    assert_eq!(asker.ask(&direct, lookup(&held, false)).await, stored(&held));
    assert!(since.elapsed() < Duration::from_secs(2), "the broken one is not used any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_cannot_be_dialled_is_asked_over_another_connection() {
    let held = block("held");
    let owner = Gateway::answering(LISTENERS[0], blocks(&[&held]), Network::new(Ok(held.clone()))).await;
    let asker = Gateway::start(LISTENERS[0]).await;
    owner.know(&asker);
    let (peer, at) = (asker.bridge.peer_id(), asker.address().await.addresses);
    owner.bridge.connect(peer, at, AddressOrigin::Operator, PATIENCE).await.expect("connects");
    let until_connected = async {
        while asker.bridge.peers().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, until_connected).await.expect("the other one notices");
    // A port that is bound and does not listen: another process cannot have it.
    let unused = TcpSocket::new_v4().expect("a socket");
    unused.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let closed = format!("/ip4/127.0.0.1/tcp/{}", unused.local_addr().expect("bound").port());
    let address = MemberAddress { peer: owner.bridge.peer_id(), addresses: vec![closed.parse().expect("an address")] };
    for _ in 0..3 {
        assert_eq!(asker.ask(&address, lookup(&held, false)).await, stored(&held));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_tcp_does_not_reach_is_asked_by_quic() {
    let held = block("held");
    let owner = Gateway::answering(LISTENERS[1], blocks(&[&held]), Network::new(Ok(held.clone()))).await;
    let asker = Gateway::start(LISTENERS[1]).await;
    owner.know(&asker);
    let mut address = owner.address().await;
    // It accepts connections, and sends nothing.
    let mute = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent = format!("/ip4/127.0.0.1/tcp/{}", mute.local_addr().expect("bound").port());
    address.addresses.insert(0, silent.parse().expect("an address"));
    assert_eq!(asker.ask(&address, lookup(&held, false)).await, stored(&held));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_block_is_not_returned() {
    let wanted = block("wanted");
    let forged = Block::from_verified(*wanted.cid(), Bytes::from_static(b"something else"));
    let owner = Gateway::answering(LISTENERS[0], blocks(&[]), Network::new(Ok(forged))).await;
    let (asker, address) = (Gateway::start(LISTENERS[0]).await, owner.address().await);
    owner.know(&asker);
    assert!(is_unavailable(&asker.ask(&address, lookup(&wanted, true)).await));
    assert_eq!(asker.asked(LookupResult::Invalid), 1);
}

/// A source whose reads do not end. Counts those that are in progress.
#[derive(Default)]
struct Endless {
    reads: Arc<AtomicUsize>,
    began: Arc<AtomicBool>,
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl BlockSource for Endless {
    fn get(&self, _: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (counter, began) = (Arc::clone(&self.reads), Arc::clone(&self.began));
        async move {
            began.store(true, Ordering::SeqCst);
            counter.fetch_add(1, Ordering::SeqCst);
            let _counted = Counted(counter);
            futures::future::pending().await
        }
        .boxed()
    }

    fn has(&self, _: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        ready(Ok(false)).boxed()
    }
}

async fn until(count: &AtomicUsize, expected: usize) {
    let reached = async {
        while count.load(Ordering::SeqCst) != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, reached).await.expect("in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_ends_when_its_client_leaves_and_is_waited_for_while_it_is_at_work() {
    let wanted = block("wanted");
    for listener in LISTENERS {
        let endless = Endless::default();
        let (fetches, began) = (Arc::clone(&endless.reads), Arc::clone(&endless.began));
        let owner = Gateway::answering(listener, blocks(&[]), Arc::new(endless)).await;
        let (asker, address) = (Gateway::start(listener).await, owner.address().await);
        owner.know(&asker);
        let asking = asker.bridge.look_up_at(address, lookup(&wanted, true));
        // Longer than a gateway that does not say that it is at work is waited for.
        assert!(timeout(Duration::from_secs(5), asking).await.is_err());
        assert!(began.load(Ordering::SeqCst));
        until(&fetches, 0).await;
        assert_eq!(asker.asked(LookupResult::Unavailable), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_lookups_share_the_streams_of_a_connection() {
    for listener in LISTENERS {
        let held = (0..400_u32).map(|n| block(n.to_be_bytes().repeat(5_000))).collect::<Vec<_>>();
        let source = blocks(&held.iter().collect::<Vec<_>>());
        let owner = Gateway::answering(listener, source, Network::new(Err(SourceError::Closed))).await;
        let (asker, address) = (Gateway::start(listener).await, owner.address().await);
        owner.know(&asker);
        // On a busy machine, some wait for too long, and are asked again.
        let until_answered = async {
            let mut unanswered = held.iter().collect::<Vec<_>>();
            while !unanswered.is_empty() {
                let asked = unanswered.iter().map(|held| asker.ask(&address, lookup(held, false)));
                let answers = join_all(asked).await.into_iter().zip(unanswered);
                let is_late = |(answer, held): (Result<Option<FoundBlock>, LookupError>, _)| match answer.is_err() {
                    true => Some(held),
                    false => {
                        assert_eq!(answer, stored(held));
                        None
                    }
                };
                unanswered = answers.filter_map(is_late).collect();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, until_answered).await.expect("in time");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fetches_that_do_not_end_do_not_hold_up_what_is_stored() {
    let held = block("held");
    let endless = Endless::default();
    let reads = Arc::clone(&endless.reads);
    let owner = Gateway::answering(LISTENERS[0], blocks(&[&held]), Arc::new(endless)).await;
    let (asker, address) = (Gateway::start(LISTENERS[0]).await, owner.address().await);
    owner.know(&asker);
    let fetching = (0..300_u32).map(|n| {
        let lookup = lookup(&block(n.to_be_bytes().to_vec()), true);
        AbortOnDropHandle::new(tokio::spawn(asker.bridge.look_up_at(address.clone(), lookup)))
    });
    let fetching = fetching.collect::<Vec<_>>();
    // The others have not waited for long.
    let until_refused = async {
        while asker.asked(LookupResult::Unavailable) < 300 - 64 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, until_refused).await.expect("in time");
    until(&reads, 64).await;
    let all = (0..200).map(|_| asker.ask(&address, lookup(&held, false)));
    assert!(join_all(all).await.iter().all(|answer| *answer == stored(&held)));
    drop(fetching);
    until(&reads, 0).await;
}
