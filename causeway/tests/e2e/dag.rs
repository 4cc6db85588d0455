//! DAG transfers between two nodes: what is fetched comes in them and is stored as it was sent; without the protocol,
//! and with Kubo, everything is fetched by Bitswap; misbehaving peers are survived.

use crate::support::causeway::{Causeway, Launch};
use crate::support::hostile::{DagMalice, Hostile};
use crate::support::kubo::Kubo;
use crate::support::metrics::Metrics;
use crate::support::noise::Noise;
use crate::support::{assert_same_bytes, client, eventually};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a misbehaving peer may delay a request, on a busy machine.
const SLACK: Duration = Duration::from_secs(20);

/// Text of so many bytes.
fn text(seed: u64, bytes: usize) -> Vec<u8> {
    let lines = (0_u64..).map(|line| format!("{seed}, line {line}: {} bottles of {:x}\n", line % 99, line * line));
    lines.flat_map(String::into_bytes).take(bytes).collect()
}

/// A folder of a site in the node's own folder, added with a high compression level: its root.
fn add_site(launch: &Launch, dir: &Path, files: &[(&str, &[u8])]) -> String {
    for (path, content) in files {
        let file = dir.join("site").join(path);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("the folder is ours");
        std::fs::write(file, content).expect("the folder is ours");
    }
    launch.run(&["add", "--recursive", "--quieter", "site"]).expect("is added")
}

/// A node that speaks the protocol.
fn launch(dir: &Path) -> Launch {
    Launch::new(dir).set("CAUSEWAY_P2P_DAG_PROTOCOL", true)
}

/// A node that asks a peer, once it knows its protocols.
async fn asker(launch: Launch, peer: &str) -> Causeway {
    let node = launch.peering(peer).start().await;
    eventually("the peer is identified", TIMEOUT, async || {
        let (_, peers) = node.admin("GET", "/api/v1/peers", None).await;
        let is_identified =
            peers["peers"].as_array().is_some_and(|peers| peers.iter().any(|peer| peer["agent"].is_string()));
        if is_identified { Ok(()) } else { Err(peers.to_string()) }
    })
    .await;
    node
}

fn transferred(metrics: &Metrics) -> (u64, u64) {
    let of = |form: &str| metrics.sample(&format!("causeway_dag_received_blocks_total{{form=\"{form}\"}}"));
    (of("plain"), of("packed"))
}

/// The body in its stored encoding.
async fn encoded(node: &Causeway, path: &str) -> Vec<u8> {
    let response = client().get(node.url(path)).header("accept-encoding", "zstd").send().await.expect("is answered");
    assert_eq!(response.headers().get("content-encoding").map(|coding| coding.as_bytes()), Some(&b"zstd"[..]));
    response.bytes().await.expect("is whole").to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_comes_in_transfers_and_is_stored_as_it_was_sent() {
    let (dir, other) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let (page, book, noise) = (text(1, 40_000), text(2, 3_000_000), Noise::bytes(901, 2_000_000));
    let holding = launch(dir.path()).set("CAUSEWAY_CACHE_ZSTD_LEVEL", 12);
    let files: [(&str, &[u8]); 4] =
        [("index.html", b"<p>hello"), ("a/b/c/page.html", &page), ("book.txt", &book), ("media/noise.bin", &noise)];
    let root = add_site(&holding, dir.path(), &files);
    let holder = holding.start().await;
    let node = asker(launch(other.path()).set("CAUSEWAY_CACHE_ZSTD_LEVEL", 1), holder.tcp()).await;

    let before = node.metrics().await;
    for (path, content) in files {
        node.expect(&format!("/ipfs/{root}/{path}"), content).await;
    }
    node.expect(&format!("/ipfs/{root}/"), files[0].1).await;
    let after = node
        .metrics_when(|metrics| metrics.since(&before).sample("causeway_dag_transfers_total{end=\"complete\"}") >= 4)
        .await;
    let metrics = after.since(&before);
    let (plain, packed) = transferred(&metrics);
    // The noise has eight leaves, the book twelve.
    assert!(plain >= 8 && packed >= 12, "{plain} plain, {packed} packed");
    let sent = holder.metrics().await;
    assert!(metrics.received("wanted") <= 2, "by Bitswap: {}", metrics.received("wanted"));
    assert_eq!((metrics.received("duplicate"), metrics.received("unsolicited")), (0, 0));
    let bytes = |kind: &str| metrics.sample(&format!("causeway_dag_received_{kind}_bytes_total{{form=\"packed\"}}"));
    assert!(bytes("wire") < bytes("block") / 2, "{} of {}", bytes("wire"), bytes("block"));
    assert_eq!(sent.sample("causeway_p2p_offences_total{offence=\"protocol\"}"), 0);
    assert_eq!(after.sample("causeway_p2p_offences_total{offence=\"protocol\"}"), 0);

    // With its own level, the node would have made other frames.
    node.stop().await;
    let node = launch(other.path()).set("CAUSEWAY_CACHE_ZSTD_LEVEL", 1).start().await;
    let path = format!("/ipfs/{root}/book.txt");
    assert_same_bytes("stored frames", &encoded(&node, &path).await, &encoded(&holder, &path).await);
    node.stop().await;
    holder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_archives_and_pins_come_in_transfers() {
    let (dir, other) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let (large, file, pinned) =
        (Noise::bytes(902, 8_000_000), Noise::bytes(903, 1_500_000), Noise::bytes(904, 1_500_000));
    let holding = launch(dir.path());
    let root = add_site(&holding, dir.path(), &[("large", &large), ("file", &file)]);
    std::fs::write(dir.path().join("pinned"), &pinned).expect("the folder is ours");
    let pin = holding.run(&["add", "-Q", "pinned"]).expect("is added");
    let holder = holding.start().await;
    let node = asker(launch(other.path()), holder.tcp()).await;

    let before = node.metrics().await;
    let range = client().get(node.url(&format!("/ipfs/{root}/large"))).header("range", "bytes=4000000-4999999");
    let answer = range.send().await.expect("is answered");
    assert_eq!(answer.status(), 206);
    assert_same_bytes("a range", &answer.bytes().await.expect("is whole"), &large[4_000_000..5_000_000]);
    let (plain, packed) = transferred(&node.metrics().await.since(&before));
    // The range needs five leaves of 31, the first leaf tells the media type.
    assert!((5..14).contains(&(plain + packed)), "{plain} plain, {packed} packed");

    let before = node.metrics().await;
    let car = node.get(&format!("/ipfs/{root}/file?format=car")).await;
    assert_eq!(car.status, 200);
    assert!(car.body.len() > file.len());
    assert!(transferred(&node.metrics().await.since(&before)).0 >= 6);

    let before = node.metrics().await;
    let body = format!("{{\"cid\": \"{pin}\"}}");
    let (status, answer) = node.admin("POST", "/psa/pins", Some(&body)).await;
    assert_eq!(status, 202, "{answer}");
    let id = answer["requestid"].as_str().expect("an id").to_owned();
    eventually("it is pinned", TIMEOUT, async || {
        let (_, pin) = node.admin("GET", &format!("/psa/pins/{id}"), None).await;
        if pin["status"] == "pinned" { Ok(()) } else { Err(pin.to_string()) }
    })
    .await;
    let metrics = node.metrics().await.since(&before);
    assert!(transferred(&metrics).0 >= 6, "{:?}", transferred(&metrics));
    assert_eq!(metrics.received("duplicate"), 0);
    node.stop().await;
    holder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_protocol_on_either_side_blocks_come_by_bitswap() {
    for off_at_the_holder in [false, true] {
        let (dir, other) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
        let content = Noise::bytes(905, 1_000_000);
        std::fs::write(dir.path().join("file"), &content).expect("the folder is ours");
        let (holding, asking) = (launch(dir.path()), launch(other.path()));
        let (holding, asking) = match off_at_the_holder {
            true => (holding.set("CAUSEWAY_P2P_DAG_PROTOCOL", false), asking),
            false => (holding, asking.set("CAUSEWAY_P2P_DAG_PROTOCOL", false)),
        };
        let cid = holding.run(&["add", "-Q", "file"]).expect("is added");
        let holder = holding.start().await;
        let node = asker(asking, holder.tcp()).await;
        node.expect(&format!("/ipfs/{cid}"), &content).await;
        let metrics = node.metrics_when(|metrics| metrics.received("wanted") >= 5).await;
        assert_eq!((transferred(&metrics), metrics.received("wanted")), ((0, 0), 5), "{off_at_the_holder}");
        node.stop().await;
        holder.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubo_is_asked_and_served_as_before() {
    let dir = TempDir::new().expect("a folder");
    let (theirs, ours) = (Noise::bytes(906, 1_000_000), Noise::bytes(907, 1_000_000));
    let kubo = Kubo::start().await;
    let cid = kubo.add(&theirs[..], &["--cid-version=1", "--raw-leaves"]);
    let launch = launch(dir.path());
    std::fs::write(dir.path().join("file"), &ours).expect("the folder is ours");
    let own = launch.run(&["add", "-Q", "file"]).expect("is added");
    let node = asker(launch, kubo.tcp()).await;
    node.expect(&format!("/ipfs/{cid}"), &theirs).await;
    assert_same_bytes("read by Kubo", &kubo.cat(&format!("/ipfs/{own}")).await, &ours);
    let metrics = node.metrics_when(|metrics| metrics.received("wanted") >= 5).await;
    assert_eq!((transferred(&metrics), metrics.received("wanted")), ((0, 0), 5));
    node.stop().await;
    kubo.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_sends_wrong_blocks() {
    survive(DagMalice::WrongBytes, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_sends_other_blocks() {
    survive(DagMalice::OtherBlocks, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_sends_more_than_the_budget() {
    survive(DagMalice::TooMuch, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_sends_bombs() {
    survive(DagMalice::Bombs, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_sends_garbage_in_a_transfer() {
    survive(DagMalice::Garbage, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_sends_nothing_in_a_transfer() {
    survive(DagMalice::Silence, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_ends_every_transfer() {
    survive(DagMalice::EndsAtOnce, false).await;
}

/// A misbehaving peer is asked first. The content comes from an honest one nevertheless, in time and in bounded memory.
async fn survive(malice: DagMalice, is_offence: bool) {
    let (dir, other) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let contents = [Noise::bytes(910, 1_000_000), text(911, 1_000_000)];
    let holding = launch(dir.path());
    let cids = [0, 1].map(|n| {
        std::fs::write(dir.path().join("file"), &contents[n]).expect("the folder is ours");
        holding.run(&["add", "-Q", "file"]).expect("is added")
    });
    let hostile = Hostile::start_dag(malice).await;
    let launch = launch(other.path()).set("CAUSEWAY_LOG_LEVEL", "info,p2p_bridge=debug");
    // Peerings are asked first. The honest peer is not one.
    let node = asker(launch, &hostile.multiaddr()).await;
    let holder = holding.peering(node.tcp()).start().await;
    eventually("both peers are connected", TIMEOUT, async || {
        let connections = node.metrics().await.sample("causeway_p2p_connections");
        if connections >= 2 { Ok(()) } else { Err(format!("{connections} connections")) }
    })
    .await;
    let before = node.process.resident_bytes();
    let begun = Instant::now();
    for (cid, content) in cids.iter().zip(&contents) {
        node.expect(&format!("/ipfs/{cid}"), content).await;
    }
    let took = begun.elapsed();
    assert!(hostile.wants() > 0, "{malice:?}: the peer was never asked, so this proves nothing");
    assert!(took < SLACK, "{malice:?}: {took:?}");
    // The peer may still be sending when the content has come from the other.
    eventually("the offence is counted", SLACK, async || {
        let metrics = node.metrics().await;
        let offences = |kind: &str| metrics.sample(&format!("causeway_p2p_offences_total{{offence=\"{kind}\"}}"));
        let offences: u64 = ["lie", "protocol", "stall", "flood"].into_iter().map(offences).sum();
        if (offences > 0) == is_offence { Ok(()) } else { Err(format!("{malice:?}: {offences} offences")) }
    })
    .await;
    node.assert_healthy().await;
    let grown = node.process.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{malice:?}: memory grew by {grown} bytes");
    node.stop().await;
    holder.stop().await;
}
