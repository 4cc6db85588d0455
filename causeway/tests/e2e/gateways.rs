//! Content from trustless gateways without any peers: from Causeway, from Kubo, and from a misbehaving one.

use super::tiers::fetch_all;
use crate::support::causeway::{Causeway, Launch};
use crate::support::corpus::{self, Item};
use crate::support::eventually;
use crate::support::kubo::Kubo;
use crate::support::noise::Noise;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;

const GATEWAYS: &str = "CAUSEWAY_P2P_GATEWAYS";

#[tokio::test(flavor = "multi_thread")]
async fn causeway_reads_from_causeway_over_http() {
    let (first, second) = (folder(), folder());
    let kubo = Kubo::start().await;
    let items = items(&kubo);
    let holder = Launch::new(first.path());
    for item in &items {
        let car = first.path().join(format!("{}.car", item.root));
        if !car.exists() {
            kubo.export(&item.root, &car);
            holder.import(&car);
        }
    }
    kubo.stop().await;
    let holder = holder.start().await;
    read_over_http(second, &holder.url(""), &items).await;
    holder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn text_travels_between_causeways_as_it_is_stored() {
    let (first, second) = (folder(), folder());
    let launch = Launch::new(first.path());
    let text: Vec<u8> = (0..100_000).flat_map(|line| format!("line {line} of a file\n").into_bytes()).collect();
    std::fs::write(first.path().join("text"), &text).expect("the folder is ours");
    let add = |flags: &[&str]| launch.run(&[&["add", "-Q"], flags, &["text"]].concat()).expect("is added");
    let roots = [add(&["--cid-version=1"]), add(&["--cid-version=0"])];
    let holder = launch.start().await;
    let reader = Launch::new(second.path()).set(GATEWAYS, holder.url("")).start().await;
    for root in &roots {
        reader.expect(&format!("/ipfs/{root}"), &text).await;
    }
    // A block is counted after it was delivered.
    eventually("all blocks are counted", Duration::from_secs(30), async || {
        let blocks = reader.metrics().await.sample("causeway_http_source_block_bytes_total");
        if blocks > 2 * text.len() as u64 { Ok(()) } else { Err(format!("{blocks} bytes of blocks")) }
    })
    .await;
    let metrics = reader.metrics().await;
    let blocks = metrics.sample("causeway_http_source_block_bytes_total");
    let bodies = metrics.sample("causeway_http_source_body_bytes_total");
    assert!(bodies < blocks / 3, "{bodies} of {blocks} bytes were received");
    assert_eq!(metrics.sample("causeway_http_source_requests_total{outcome=\"useless\"}"), 0);
    reader.stop().await;
    holder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn causeway_reads_from_kubo_over_http() {
    let kubo = Kubo::start().await;
    let items = items(&kubo);
    read_over_http(folder(), &kubo.gateway(), &items).await;
    assert_eq!(kubo.sent().await.blocks, 0, "nothing went over Bitswap");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_blocks_of_a_gateway_are_rejected() {
    let content = Noise::bytes(300, 1_000_000);
    let kubo = Kubo::start().await;
    let cid = kubo.add(&content[..], &["--cid-version=1", "--raw-leaves"]);
    let misbehaving = MisbehavingGateway::start();
    let dir = folder();
    let launch = Launch::new(dir.path()).set(GATEWAYS, &misbehaving.url).set("CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS", 2);

    let causeway = launch.start().await;
    let answer = causeway.get(&format!("/ipfs/{cid}")).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    let metrics = causeway.metrics().await;
    assert_eq!(metrics.sample("causeway_http_source_requests_total{outcome=\"lie\"}"), 1);
    assert_eq!(metrics.sample("causeway_http_source_breakers_open"), 1);
    assert_eq!(metrics.sample("causeway_http_source_block_bytes_total"), 0);
    assert_eq!(misbehaving.asked(), 1, "once was enough");
    causeway.stop().await;

    // With an honest peer, the content is fetched and correct.
    let causeway = launch.peering(kubo.tcp()).start().await;
    causeway.expect(&format!("/ipfs/{cid}"), &content).await;
    causeway.stop().await;
}

/// Reads everything through one gateway without other sources, and again without it.
async fn read_over_http(dir: TempDir, gateway: &str, items: &[Item]) {
    let causeway = Launch::new(dir.path()).set(GATEWAYS, gateway).start().await;
    let cold = fetch_all(&causeway, items).await;
    let (_, _, network) = cold.tiers();
    assert!(network > 0, "the network answered");
    each_came_over_http_once(&causeway, network).await;
    assert_eq!(cold.received("duplicate"), 0, "duplicates");
    for outcome in ["lie", "failed", "useless", "busy"] {
        let requests = cold.sample(&format!("causeway_http_source_requests_total{{outcome=\"{outcome}\"}}"));
        assert_eq!(requests, 0, "{outcome}");
    }
    assert_eq!(cold.sample("causeway_p2p_connections"), 0, "no peers were connected");
    let warm = fetch_all(&causeway, items).await;
    assert_eq!(warm.hits("network"), 0, "it was kept");
    causeway.stop().await;
}

/// A block is counted after it was delivered, so that the last ones may not be yet.
async fn each_came_over_http_once(causeway: &Causeway, network: u64) {
    let requests = "causeway_http_source_requests_total{outcome=\"block\"}";
    eventually("all blocks are counted", Duration::from_secs(30), async || {
        let blocks = causeway.metrics().await.sample(requests);
        if blocks >= network { Ok(()) } else { Err(format!("{blocks} of {network} blocks")) }
    })
    .await;
    assert_eq!(causeway.metrics().await.sample(requests), network, "each block came over HTTP once");
}

fn items(kubo: &Kubo) -> Vec<Item> {
    let mut items = Vec::from(corpus::files(kubo, 3_000_000));
    items.extend(corpus::site(kubo));
    items
}

fn folder() -> TempDir {
    TempDir::new().expect("the temporary folder is writable")
}

/// A gateway that answers each request with the same block. It ends with the process.
struct MisbehavingGateway {
    url: String,
    asked: Arc<AtomicUsize>,
}

impl MisbehavingGateway {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counter.fetch_add(1, Ordering::SeqCst);
                answer_with_something_else(stream);
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn answer_with_something_else(mut stream: TcpStream) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        head.push(byte[0]);
    }
    // The client may close the connection at any time.
    let _ = stream.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.ipld.raw\r\nContent-Length: 5\r\nConnection: close\r\n\r\nwrong",
    );
}
