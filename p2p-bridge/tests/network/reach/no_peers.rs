//! Nodes without peers, and the end of the swarm task.

use super::support::{Node, PATIENCE, block, options, until};
use content::names::Key;
use content::{BlockKey, BlockSource, Cid, Policy, SourceError, Verdict};
use p2p_bridge::network_policy::NetworkPolicy;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout};

const TCP: &[&str] = &["/ip4/127.0.0.1/tcp/0"];
/// Far less than the timeout of a search without answers, and more than it takes to detect that there are no peers.
const SOON: Duration = Duration::from_secs(20);
/// How long the first search waits for peers after the start, if none are dialled.
const WAITED_FOR: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_search_with_no_peers_fails_soon_and_the_next_one_at_once() {
    let mut started = options(TCP);
    started.0.mdns = false;
    let node = Node::start(started).await;
    let wanted = block(b"a block without providers");
    let mut took = Duration::ZERO;
    for _ in 0..2 {
        let begun = Instant::now();
        let fetched = timeout(SOON, node.bridge.session(wanted.cid()).get(wanted.cid())).await;
        let Ok(Err(SourceError::Stalled { stall, .. })) = fetched else { panic!("{fetched:?}") };
        assert!(stall.no_peers, "{stall}");
        took = begun.elapsed();
    }
    assert!(took < WAITED_FOR, "the second one took {took:?}");
    let key = Key::from(node.bridge.peer_id());
    let mut search = node.bridge.find_records(&key).await;
    assert_eq!(timeout(SOON, search.next()).await, Ok(None));
    // A new peer is asked at once.
    let holder = Node::start(options(TCP)).await;
    holder.hold(b"a block without providers");
    let address = holder.address("/tcp/");
    let by = p2p_bridge::connecting::AddressOrigin::Operator;
    node.bridge.connect(holder.bridge.peer_id(), vec![address], by, PATIENCE).await.expect("it listens");
    node.fetch(&wanted).await;
}

#[tokio::test]
async fn a_search_waits_for_the_peers_of_the_start() {
    let (mut reader, dir) = options(TCP);
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = silent.local_addr().expect("bound").port();
    let peer = libp2p::PeerId::random();
    reader.peering = vec![format!("/ip4/127.0.0.1/tcp/{port}/p2p/{peer}").parse().expect("a multiaddr")];
    reader.mdns = false;
    let node = Node::start((reader, dir)).await;
    let wanted = block(b"a block that a peer may have");
    let early = timeout(Duration::from_secs(4), node.bridge.session(wanted.cid()).get(wanted.cid())).await;
    assert!(early.is_err(), "{early:?}");
}

/// A policy that panics once it is enabled.
#[derive(Default)]
struct PanickingPolicy(AtomicBool);

impl Policy for PanickingPolicy {
    fn generation(&self) -> u64 {
        0
    }

    fn check(&self, _: &Cid) -> Verdict {
        assert!(!self.0.load(Ordering::Relaxed), "a panic");
        Verdict::Allow
    }
}

#[tokio::test]
async fn a_panic_of_the_swarm_task_is_reported() {
    let (mut faulty, dir) = options(TCP);
    let policy = Arc::<PanickingPolicy>::default();
    faulty.policy = NetworkPolicy(Arc::clone(&policy) as _);
    let node = Node::start((faulty, dir)).await;
    let ended = tokio::spawn(node.bridge.ended());
    let key = BlockKey::of(block(b"anything").cid()).expect("it has a key");
    node.bridge.find_providers(&key).await;
    until("the node listens", async || !node.bridge.addresses().await.is_empty()).await;
    assert!(!ended.is_finished());
    policy.0.store(true, Ordering::Relaxed);
    node.bridge.find_providers(&key).await;
    timeout(PATIENCE, ended).await.expect("in time").expect("it was not aborted");
    assert!(node.bridge.addresses().await.is_empty(), "the swarm task has ended");
}
