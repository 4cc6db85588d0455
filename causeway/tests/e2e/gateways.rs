//! Content from trustless gateways without any peers: from Causeway, from Kubo, and from a misbehaving one.

use super::tiers::fetch_all;
use crate::support::causeway::{Causeway, Launch};
use crate::support::corpus::{self, Item};
use crate::support::kubo::Kubo;
use crate::support::noise::Noise;
use crate::support::{assert_same_bytes, client, eventually};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What is late because this machine is busy is requested again, outside of its CAR: such a read is repeated.
const ATTEMPTS_MAX: usize = 5;
/// How long the last requests may take to be counted.
const COUNTED_WITHIN: Duration = Duration::from_secs(30);
const GATEWAYS: &str = "CAUSEWAY_P2P_GATEWAYS";
const CARS: &str = "CAUSEWAY_P2P_HTTP_CARS";
const SINGLE_BLOCKS: &str = "causeway_http_source_requests_total{outcome=\"block\"}";
const CAR_BLOCKS: &str = "causeway_http_source_car_blocks_total";

#[tokio::test(flavor = "multi_thread")]
async fn causeway_reads_from_causeway_over_http() {
    let dir = folder();
    let kubo = Kubo::start().await;
    let items = items(&kubo);
    let holder = Launch::new(dir.path());
    for item in &items {
        let car = dir.path().join(format!("{}.car", item.root));
        if !car.exists() {
            kubo.export(&item.root, &car);
            holder.import(&car);
        }
    }
    kubo.stop().await;
    let holder = holder.start().await;
    for cars in [false, true] {
        read_over_http(cars, &holder.url(""), &items).await;
    }
    holder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn text_travels_between_causeways_as_it_is_stored() {
    let dir = folder();
    let launch = Launch::new(dir.path());
    let text: Vec<u8> = (0..100_000).flat_map(|line| format!("line {line} of a file\n").into_bytes()).collect();
    std::fs::write(dir.path().join("text"), &text).expect("the folder is ours");
    let add = |flags: &[&str]| launch.run(&[&["add", "-Q"], flags, &["text"]].concat()).expect("is added");
    let roots = [add(&["--cid-version=1"]), add(&["--cid-version=0"])];
    let holder = launch.start().await;
    for cars in [false, true] {
        text_is_read_as_it_is_stored(cars, &holder.url(""), &roots, &text).await;
    }
    holder.stop().await;
}

async fn text_is_read_as_it_is_stored(cars: bool, gateway: &str, roots: &[String], text: &[u8]) {
    let dir = folder();
    let reader = Launch::new(dir.path()).set(GATEWAYS, gateway).set(CARS, cars).start().await;
    for root in roots {
        reader.expect(&format!("/ipfs/{root}"), text).await;
    }
    // A block is counted after it was delivered.
    eventually("all blocks are counted", COUNTED_WITHIN, async || {
        let blocks = reader.metrics().await.sample("causeway_http_source_block_bytes_total");
        if blocks > 2 * text.len() as u64 { Ok(()) } else { Err(format!("{blocks} bytes of blocks")) }
    })
    .await;
    let metrics = reader.metrics().await;
    let blocks = metrics.sample("causeway_http_source_block_bytes_total");
    let bodies = metrics.sample("causeway_http_source_body_bytes_total");
    assert!(bodies < blocks / 3, "{bodies} of {blocks} bytes were received");
    assert_eq!(metrics.sample("causeway_http_source_requests_total{outcome=\"useless\"}"), 0);
    assert_eq!(metrics.sample(CAR_BLOCKS) > 0, cars);
    reader.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn causeway_reads_from_kubo_over_http() {
    let kubo = Kubo::start().await;
    let items = items(&kubo);
    for cars in [false, true] {
        read_over_http(cars, &kubo.gateway(), &items).await;
    }
    assert_eq!(kubo.sent().await.blocks, 0, "nothing went over Bitswap");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_from_kubo_is_one_request() {
    let content = Noise::bytes(301, 20_000_000);
    let kubo = Kubo::start().await;
    let roots =
        [&["--cid-version=1", "--raw-leaves"][..], &["--cid-version=0"]].map(|flags| kubo.add(&content[..], flags));
    expect_one_request_each(&kubo.gateway(), &roots, &content).await;
    assert_eq!(kubo.sent().await.blocks, 0, "nothing went over Bitswap");
    kubo.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_from_another_causeway_is_one_request() {
    let (content, dir) = (Noise::bytes(302, 20_000_000), folder());
    let launch = Launch::new(dir.path());
    std::fs::write(dir.path().join("noise"), &content).expect("the folder is ours");
    let add = |flags: &[&str]| launch.run(&[&["add", "-Q"], flags, &["noise"]].concat()).expect("is added");
    let roots = [add(&["--cid-version=1"]), add(&["--cid-version=0"])];
    let holder = launch.start().await;
    expect_one_request_each(&holder.url(""), &roots, &content).await;
    holder.stop().await;
}

/// Reads a file by each of its roots from a gateway: as a whole, and again a part of it.
async fn expect_one_request_each(gateway: &str, roots: &[String], content: &[u8]) {
    until_on_time(async || further_requests(gateway, roots, content).await).await;
}

/// The same once, with new nodes; returns what was requested besides.
async fn further_requests(gateway: &str, roots: &[String], content: &[u8]) -> Vec<String> {
    let dirs = [folder(), folder()];
    let [whole, part] = dirs.each_ref().map(|dir| Launch::new(dir.path()).set(GATEWAYS, gateway).set(CARS, true));
    let (whole, part) = (whole.start().await, part.start().await);
    for root in roots {
        whole.expect(&format!("/ipfs/{root}"), content).await;
        let request = client().get(part.url(&format!("/ipfs/{root}"))).header("range", "bytes=9000000-9999999");
        let answer = request.send().await.expect("the gateway answers");
        assert_eq!(answer.status(), 206);
        let body = answer.bytes().await.expect("a body");
        assert_eq!(body.len(), 1_000_000);
        assert_same_bytes("a part", &body, &content[9_000_000..10_000_000]);
    }
    let expected = roots.len() as u64;
    let mut late = Vec::new();
    for causeway in [whole, part] {
        let complete = "causeway_http_source_cars_total{outcome=\"complete\"}";
        let begun = Instant::now();
        let mut metrics = causeway.metrics().await;
        while metrics.sample(complete) < expected && begun.elapsed() < COUNTED_WITHIN {
            tokio::time::sleep(Duration::from_millis(20)).await;
            metrics = causeway.metrics().await;
        }
        let (cars, single) = (metrics.sample(complete), metrics.sample(SINGLE_BLOCKS));
        // Of a part, the beginning of the file is read as well, for its type.
        if !(expected..=2 * expected).contains(&cars) || single > 2 {
            late.push(format!("{cars} CARs are complete, and {single} blocks were requested one by one"));
        }
        causeway.stop().await;
    }
    late
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_blocks_of_a_gateway_are_rejected() {
    let content = Noise::bytes(300, 1_000_000);
    let kubo = Kubo::start().await;
    let cid = kubo.add(&content[..], &["--cid-version=1", "--raw-leaves"]);
    for cars in [false, true] {
        let misbehaving = MisbehavingGateway::start();
        let dir = folder();
        let launch = Launch::new(dir.path()).set(GATEWAYS, &misbehaving.url).set(CARS, cars);
        let launch = launch.set("CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS", 2);

        let causeway = launch.start().await;
        let answer = causeway.get(&format!("/ipfs/{cid}")).await;
        assert_eq!(answer.status, 502, "{}", answer.text());
        let metrics = causeway.metrics().await;
        assert_eq!(metrics.sample("causeway_http_source_requests_total{outcome=\"lie\"}"), 1);
        assert_eq!(metrics.sample("causeway_http_source_breakers_open"), 1);
        assert_eq!(metrics.sample("causeway_http_source_block_bytes_total"), 0);
        assert_eq!(metrics.sample("causeway_http_source_cars_total{outcome=\"refused\"}"), u64::from(cars));
        assert_eq!(misbehaving.asked(), 1 + usize::from(cars), "for a block, and for a CAR before: once was enough");
        causeway.stop().await;

        // With an honest peer, the content is fetched and correct.
        let causeway = launch.peering(kubo.tcp()).start().await;
        causeway.expect(&format!("/ipfs/{cid}"), &content).await;
        causeway.stop().await;
    }
}

/// Reads everything through one gateway without other sources, and again without it.
async fn read_over_http(cars: bool, gateway: &str, items: &[Item]) {
    until_on_time(async || requested_one_by_one(cars, gateway, items).await).await;
}

/// Repeats an attempt, which returns what was late, until nothing was.
async fn until_on_time(attempt: impl AsyncFn() -> Vec<String>) {
    let mut late = Vec::new();
    for _ in 0..ATTEMPTS_MAX {
        late = attempt().await;
        if late.is_empty() {
            return;
        }
    }
    panic!("{late:?}");
}

/// The same once, with a new node; returns what was requested outside of CARs, if it should have been in one.
async fn requested_one_by_one(cars: bool, gateway: &str, items: &[Item]) -> Vec<String> {
    let dir = folder();
    let causeway = Launch::new(dir.path()).set(GATEWAYS, gateway).set(CARS, cars).start().await;
    let cold = fetch_all(&causeway, items).await;
    let (_, _, network) = cold.tiers();
    assert!(network > 0, "the network answered");
    let mut late = Vec::new();
    if cars {
        let (single, of_cars) = blocks_by_request(&causeway, network).await;
        if of_cars <= 10 * single {
            late.push(format!("{single} blocks were requested one by one, and {of_cars} were in CARs"));
        }
        // A late block is received alone and in the CAR.
        if cold.received("duplicate") > 0 {
            late.push(format!("{} duplicates", cold.received("duplicate")));
        }
    } else {
        each_came_by_itself_once(&causeway, network).await;
        assert_eq!(cold.received("duplicate"), 0, "duplicates");
    }
    for outcome in ["lie", "failed", "useless", "busy"] {
        let requests = cold.sample(&format!("causeway_http_source_requests_total{{outcome=\"{outcome}\"}}"));
        assert_eq!(requests, 0, "{outcome}");
    }
    for outcome in ["incomplete", "refused", "busy", "failed", "fault", "lie"] {
        let cars = cold.sample(&format!("causeway_http_source_cars_total{{outcome=\"{outcome}\"}}"));
        assert_eq!(cars, 0, "CARs: {outcome}");
    }
    assert_eq!(cold.sample("causeway_p2p_connections"), 0, "no peers were connected");
    let warm = fetch_all(&causeway, items).await;
    assert_eq!(warm.hits("network"), 0, "it was kept");
    causeway.stop().await;
    late
}

/// A block is counted after it was delivered, so that the last ones may not be yet.
async fn each_came_by_itself_once(causeway: &Causeway, network: u64) {
    eventually("all blocks are counted", COUNTED_WITHIN, async || {
        let blocks = causeway.metrics().await.sample(SINGLE_BLOCKS);
        if blocks >= network { Ok(()) } else { Err(format!("{blocks} of {network} blocks")) }
    })
    .await;
    assert_eq!(causeway.metrics().await.sample(SINGLE_BLOCKS), network, "each block came over HTTP once");
}

/// The numbers of blocks that were requested one by one, and that were in CARs, once all are counted.
async fn blocks_by_request(causeway: &Causeway, network: u64) -> (u64, u64) {
    eventually("all blocks are counted", COUNTED_WITHIN, async || {
        let metrics = causeway.metrics().await;
        let (single, of_cars) = (metrics.sample(SINGLE_BLOCKS), metrics.sample(CAR_BLOCKS));
        let counted = single + of_cars >= network;
        if counted { Ok((single, of_cars)) } else { Err(format!("{single} and {of_cars} of {network} blocks")) }
    })
    .await
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
