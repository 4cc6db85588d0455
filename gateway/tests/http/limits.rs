//! Limits of requests.

use crate::dag::{cbor_of, directory, doubled_directory, doubled_file, file, file_in_one_block, noise, raw};
use crate::site::{FailingNetwork, PATIENCE, Setup, Site, header, until};
use crate::upstream::FakeNetwork;
use content::budget::{Budget, Share};
use content::{Block, BlockSource, Cid, SourceError, Stall};
use futures::StreamExt as _;
use gateway::body::Content;
use gateway::request::client::Client;
use reqwest::Response;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

fn stalled(cid: Cid) -> SourceError {
    SourceError::Stalled { cid, stall: Stall::default() }
}

/// Status and text of a complete response.
async fn text_of(response: Response) -> (u16, String) {
    (response.status().as_u16(), response.text().await.expect("an end"))
}

/// A site with these blocks and the network `upstream`.
fn setup(blocks: &[&Block], upstream: Arc<dyn BlockSource>) -> Setup {
    Setup { upstream: Some(upstream), ..Setup::new(blocks) }
}

async fn until_aborted(site: &Site, reason: &str, times: u64) {
    site.until_metric(&format!("causeway_http_responses_aborted_total{{reason=\"{reason}\"}}"), times).await;
}

/// The bytes of a raw response after its head.
fn body_of(answer: &[u8]) -> &[u8] {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    &answer[end + 4..]
}

/// A gateway with a network that does not answer, and these limits of fetches; the semaphore releases the network.
async fn busy_site(all: u64, per_client: u64, held: &Block) -> (Site, Arc<FailingNetwork>, Arc<Semaphore>) {
    let (upstream, gate) = FailingNetwork::gated(stalled);
    let mut setup = setup(&[held], Arc::clone(&upstream) as _);
    (setup.http.misses_max, setup.http.client_misses_max) = (all, per_client);
    setup.http.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    (setup.start().await, upstream, gate)
}

/// A request of a client, identified by its address, for a missing block.
async fn miss(site: &Site, client: &str, number: u64) -> TcpStream {
    let cid = *raw(format!("nobody has number {number}")).cid();
    site.connect(&format!("GET /ipfs/{cid} HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {client}\r\n\r\n")).await
}

async fn one_more_miss(site: &Site, client: &str) -> (Response, Duration) {
    let begun = Instant::now();
    let path = format!("/ipfs/{}", raw(format!("nor has anybody this, {client}")).cid());
    (site.send("GET", &path, &[("x-forwarded-for", client)]).await, begun.elapsed())
}

fn assert_is_busy(response: &Response) {
    assert_eq!(response.status(), 429);
    let seconds: u64 = header(response, "retry-after").parse().expect("a number of seconds");
    assert!((1..=60).contains(&seconds), "{seconds}");
    assert_eq!(header(response, "cache-control"), "no-store");
    assert_eq!(header(response, "access-control-allow-origin"), "*");
}

#[tokio::test]
async fn misses_over_the_fetch_limit_are_rejected_and_hits_are_not() {
    let held = raw("held");
    let (site, network, _gate) = busy_site(3, 10, &held).await;
    let mut waiting = Vec::new();
    for number in 0..3 {
        waiting.push(miss(&site, &format!("10.0.0.{number}"), number).await);
    }
    until(|| network.asked() == 3, "each to have a permit").await;

    let (answer, took) = one_more_miss(&site, "10.0.1.1").await;
    assert_is_busy(&answer);
    assert!((Duration::from_secs(1)..Duration::from_secs(10)).contains(&took), "{took:?}");
    let hit = site.send("GET", &format!("/ipfs/{}", held.cid()), &[("x-forwarded-for", "10.0.0.1")]).await;
    assert_eq!(text_of(hit).await, (200, "held".to_owned()), "local blocks are served meanwhile");
    assert_eq!(site.metric("causeway_http_requests_rejected_total{limit=\"fetches\"}"), 1);

    // When a client disconnects, a waiting request gets its permit.
    let next = miss(&site, "10.0.2.1", 100).await;
    site.until_metric("causeway_http_requests_in_flight", 4).await;
    drop(waiting.pop());
    until(|| network.asked() == 4, "the waiting request to have the permit").await;
    site.until_metric("causeway_http_requests_in_flight", 3).await;
    let (answer, _) = one_more_miss(&site, "10.0.1.2").await;
    assert_is_busy(&answer);
    assert_eq!(site.metric("causeway_http_requests_in_flight"), 3, "no waiting request was rejected");
    drop((next, waiting));
    site.until_metric("causeway_http_requests_in_flight", 0).await;
}

/// A gateway before a network with these blocks, whose clients may send a request a second after `burst`.
async fn rate_limited_site(burst: u64, held: &Block, blocks: &[&Block]) -> Site {
    let mut setup = setup(&[held], FakeNetwork::new(blocks.iter().copied(), []));
    (setup.http.client_misses_per_second, setup.http.client_misses_burst) = (1, burst);
    setup.http.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    setup.limits = gateway::limits::RequestLimits::of(&setup.http, &config::Cache::default());
    setup.start().await
}

#[tokio::test]
async fn a_client_over_its_rate_is_rejected_and_its_hits_and_other_clients_are_not() {
    let held = raw("held");
    let blocks: Vec<Block> = (0..40).map(|number| raw(format!("far away {number}"))).collect();
    let site = rate_limited_site(10, &held, &blocks.iter().collect::<Vec<_>>()).await;
    let get = async |block: &Block, client: &str| {
        site.send("GET", &format!("/ipfs/{}", block.cid()), &[("x-forwarded-for", client)]).await
    };
    // Requests wait for up to two seconds, so some over the burst are answered, and the others rejected.
    let flood = futures::future::join_all(blocks[..20].iter().map(|block| get(block, "10.0.0.1"))).await;
    let (answered, rejected): (Vec<_>, Vec<_>) = flood.into_iter().partition(|response| response.status() == 200);
    assert!(answered.len() >= 12, "{}", answered.len());
    assert!(!rejected.is_empty());
    rejected.iter().for_each(assert_is_busy);
    assert_eq!(site.metric("causeway_http_requests_rejected_total{limit=\"rate\"}"), rejected.len() as u64);
    assert_eq!(get(&held, "10.0.0.1").await.status(), 200, "what is stored locally costs nothing");
    assert_eq!(get(&blocks[30], "10.0.0.2").await.status(), 200, "each client has a rate of its own");
}

#[tokio::test]
async fn a_download_is_slowed_to_the_clients_rate_and_is_complete() {
    let leaves: Vec<Block> = (0..12).map(|number| raw(noise(number, 256 << 10))).collect();
    let large = file(&leaves);
    let blocks: Vec<&Block> = leaves.iter().chain([&large]).collect();
    let site = rate_limited_site(1, &raw("held"), &blocks).await;
    let begun = Instant::now();
    let response = site.get(&format!("/ipfs/{}", large.cid())).await;
    assert_eq!(response.status(), 200);
    let body = response.bytes().await.expect("an end");
    assert_eq!(body, leaves.iter().flat_map(|leaf| leaf.data().to_vec()).collect::<Vec<u8>>());
    // Three MiB cost three tokens; one is in the bucket, and up to one MiB is requested at once.
    assert!(begun.elapsed() >= Duration::from_millis(900), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_client_has_its_own_fetch_limit() {
    let held = raw("held");
    let (site, network, gate) = busy_site(100, 2, &held).await;
    let waiting = [miss(&site, "10.0.0.1", 0).await, miss(&site, "10.0.0.1", 1).await];
    until(|| network.asked() == 2, "both to have permits").await;
    let (answer, took) = one_more_miss(&site, "10.0.0.1").await;
    assert_is_busy(&answer);
    assert!(took < Duration::from_secs(1), "it does not wait for a permit: {took:?}");
    let hit = site.send("GET", &format!("/ipfs/{}", held.cid()), &[("x-forwarded-for", "10.0.0.1")]).await;
    assert_eq!(hit.status(), 200);
    // An IPv6 client is a whole network.
    let others =
        [miss(&site, "10.0.0.2", 2).await, miss(&site, "2001:db8::1", 3).await, miss(&site, "2001:db8::2", 4).await];
    until(|| network.asked() == 5, "all to have permits").await;
    let (answer, _) = one_more_miss(&site, "2001:db8::3").await;
    assert_is_busy(&answer);

    // When its requests have ended, the client gets permits again.
    gate.add_permits(1000);
    site.until_metric("causeway_http_requests_in_flight", 0).await;
    let (answer, _) = one_more_miss(&site, "10.0.0.1").await;
    assert_eq!(answer.status(), 504);
    drop((waiting, others));
}

#[tokio::test]
async fn a_file_over_the_response_limit_is_rejected_and_readable_in_ranges() {
    let leaves: Vec<Block> = (0..5).map(|seed| raw(noise(seed, 100_000))).collect();
    let large = file(&leaves);
    let root = directory(&[("large.bin", &large)]);
    let mut blocks = vec![&large, &root];
    blocks.extend(&leaves);
    let mut setup = Setup::new(&blocks);
    setup.limits.response_bytes_max = 300_000;
    let site = setup.start().await;
    let path = format!("/ipfs/{}/large.bin", root.cid());
    // The second time the path is cached.
    for method in ["GET", "HEAD", "GET", "HEAD"] {
        let response = site.send(method, &path, &[]).await;
        assert_eq!((response.status().as_u16(), header(&response, "cache-control")), (403, "no-store"), "{method}");
        let text = response.text().await.expect("text");
        assert!(method == "HEAD" || text.contains("500000 bytes") && text.contains("a range of a file"), "{text}");
    }
    let table = [
        ("bytes=0-299999", 206, 300_000),
        ("bytes=499999-", 206, 1),
        ("bytes=0-300000", 403, 0),
        ("bytes=0-199999,300000-499999", 403, 0),
    ];
    for (range, status, length) in table {
        let response = site.send("GET", &path, &[("range", range)]).await;
        assert_eq!(response.status().as_u16(), status, "{range}");
        let body = response.bytes().await.expect("a body");
        assert!(status == 403 || body.len() == length, "{range}: {}", body.len());
    }
}

#[tokio::test]
async fn a_response_that_exceeds_the_limit_is_reset() {
    let leaves: Vec<Block> = (0..5).map(|seed| raw(noise(seed, 100_000))).collect();
    let large = file(&leaves);
    let names: Vec<String> = (0..4000).map(|number| format!("name-{number:04}")).collect();
    let entries: Vec<(&str, &Block)> = names.iter().map(|name| (name.as_str(), &large)).collect();
    let root = directory(&entries);
    let mut blocks = vec![&large, &root];
    blocks.extend(&leaves);
    let mut setup = Setup::new(&blocks);
    setup.limits.response_bytes_max = 300_000;
    setup.limits.tar.bytes_max = 10_000_000;
    setup.limits.listing_entries_max = 10_000;
    let site = setup.start().await;
    let table = [
        format!("/ipfs/{}?format=car", large.cid()),
        format!("/ipfs/{}?format=tar", large.cid()),
        format!("/ipfs/{}/", root.cid()),
        format!("/ipfs/{}/?format=json", root.cid()),
    ];
    for (times, path) in (1..).zip(table) {
        let (answer, end) = site.exchange(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
        assert_is_reset(&path, &answer, end);
        until_aborted(&site, "limit", times).await;
    }
}

/// A response that was aborted by a reset: it must not look complete.
fn assert_is_reset(what: &str, answer: &[u8], end: std::io::Result<()>) {
    let error = end.expect_err(what);
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{what}");
    // A reset may discard what was sent before it, the head included.
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{what}");
    assert!(!answer.ends_with(b"\r\n0\r\n\r\n"), "{what}: there is no end of the body");
}

#[tokio::test]
async fn a_request_timeout_has_a_status_or_a_reset() {
    let leaves = [raw(noise(1, 200_000)), raw(noise(2, 200_000))];
    let large = file(&leaves);
    let network = FakeNetwork::new(&leaves, [&leaves[1]]);
    // The head is sent within it, however busy this machine is.
    let limit = Duration::from_secs(2);
    let mut setup = setup(&[&large, &leaves[0]], Arc::clone(&network) as _);
    setup.limits.request_timeout = limit;
    let site = setup.start().await;

    let response = site.send("GET", &format!("/ipfs/{}", leaves[1].cid()), &[]).await;
    assert_eq!((response.status().as_u16(), header(&response, "cache-control")), (504, "no-store"));
    assert!(!header(&response, "retry-after").is_empty());
    let (status, text) = text_of(response).await;
    assert!(status == 504 && text.contains("exceeded the timeout"), "{text}");

    let begun = Instant::now();
    let mut stream = site.connect(&format!("GET /ipfs/{} HTTP/1.1\r\nHost: x\r\n\r\n", large.cid())).await;
    let mut first = vec![0; 1000];
    stream.read_exact(&mut first).await.expect("a head");
    tokio::time::sleep_until((begun + 2 * limit).into()).await;
    network.gate.add_permits(1);
    let mut rest = Vec::new();
    let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("in time");
    assert_eq!(end.expect_err("no orderly end").kind(), std::io::ErrorKind::ConnectionReset);
    assert!(first.len() + rest.len() < 250_000);
    until_aborted(&site, "stalled", 1).await;
}

#[tokio::test]
async fn an_http_10_archive_has_the_request_timeout() {
    let leaves = [raw(noise(1, 20_000)), raw(noise(2, 20_000))];
    let large = file(&leaves);
    let network = FakeNetwork::new(&leaves, [&leaves[1]]);
    let mut setup = setup(&[&large, &leaves[0]], network);
    setup.limits.request_timeout = Duration::from_millis(300);
    let site = setup.start().await;
    let (answer, end) = site.exchange(&format!("GET /ipfs/{}?format=car HTTP/1.0\r\n\r\n", large.cid())).await;
    end.expect("an orderly end");
    let text = String::from_utf8_lossy(&answer);
    assert!(text.starts_with("HTTP/1.0 504"), "{text}");
}

/// A few blocks that repeat a leaf 2^30 times.
const TIMES: u32 = 30;

#[tokio::test]
async fn a_car_of_a_repeated_block_is_short_or_reset() {
    let leaf = raw(noise(1, 1000));
    let blocks = doubled_file(&leaf, TIMES);
    let root = &blocks[blocks.len() - 1];
    let mut setup = Setup::new(&blocks.iter().collect::<Vec<_>>());
    setup.limits.scope.repeated_bytes_max = 1 << 20;
    let site = setup.start().await;
    for scope in ["all", "entity"] {
        let path = format!("/ipfs/{}?format=car&dag-scope={scope}", root.cid());
        let short = site.get(&path).await;
        assert_eq!(short.status(), 200, "{scope}");
        let short = short.bytes().await.expect("a complete body");
        let expected: usize = blocks.iter().map(|block| block.data().len()).sum();
        assert!(short.len() > expected && short.len() < expected + 60 * blocks.len() + 100, "{scope}: {}", short.len());

        let request = format!("GET {path}&car-dups=y HTTP/1.1\r\nHost: x\r\n\r\n");
        let (answer, end) = site.exchange(&request).await;
        assert_is_reset(scope, &answer, end);
        assert!(answer.len() < 3 << 20, "{scope}: {}", answer.len());
    }
    until_aborted(&site, "limit", 2).await;

    // The file has a terabyte, and any range of it can be requested.
    let path = format!("/ipfs/{}", root.cid());
    let whole = site.get(&path).await;
    assert_eq!(whole.status(), 403);
    let end = site.send("GET", &path, &[("range", "bytes=-1500")]).await;
    assert_eq!(end.status(), 206);
    assert_eq!(end.bytes().await.expect("a body"), [&leaf.data()[500..], &leaf.data()[..]].concat());
    assert_eq!(site.get(&format!("{path}?format=tar")).await.status(), 403);
}

#[tokio::test]
async fn a_tar_of_a_huge_tree_is_rejected_or_reset() {
    let blocks = doubled_directory(TIMES);
    let root = &blocks[blocks.len() - 1];
    let chain = {
        let mut chain = vec![raw("deep down")];
        for _ in 0..20 {
            let parent = directory(&[("d", &chain[chain.len() - 1])]);
            chain.push(parent);
        }
        chain
    };
    let table: [(&str, &[Block], u64, usize); 2] = [("entries", &blocks, 500, 100), ("depth", &chain, 500, 10)];
    for (what, blocks, entries_max, depth_max) in table {
        let mut setup = Setup::new(&blocks.iter().collect::<Vec<_>>());
        setup.limits.tar.entries_max = entries_max;
        setup.limits.tar.depth_max = depth_max;
        let site = setup.start().await;
        let path = format!("/ipfs/{}?format=tar", blocks[blocks.len() - 1].cid());
        let (answer, end) = site.exchange(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
        assert_is_reset(what, &answer, end);
        until_aborted(&site, "limit", 1).await;
    }
    // The same tree as a CAR has a few blocks.
    let site = Setup::new(&blocks.iter().collect::<Vec<_>>()).start().await;
    let car = site.get(&format!("/ipfs/{}?format=car", root.cid())).await;
    assert!(car.bytes().await.expect("a complete body").len() < 10_000);
}

#[tokio::test]
async fn a_car_that_is_too_deep_is_reset() {
    let blocks = doubled_directory(TIMES);
    let mut setup = Setup::new(&blocks.iter().collect::<Vec<_>>());
    setup.limits.scope.depth_max = 10;
    let site = setup.start().await;
    let path = format!("/ipfs/{}?format=car", blocks[blocks.len() - 1].cid());
    let (answer, end) = site.exchange(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
    assert_is_reset("depth", &answer, end);
    until_aborted(&site, "limit", 1).await;
}

#[tokio::test]
async fn paths_have_a_maximum_depth() {
    let mut chain = vec![raw("deep down")];
    for _ in 0..40 {
        let parent = directory(&[("d", &chain[chain.len() - 1])]);
        chain.push(parent);
    }
    let mut setup = Setup::new(&chain.iter().collect::<Vec<_>>());
    setup.limits.path_depth_max = 32;
    let site = setup.start().await;
    for (depth, segments, expected) in [(32, 32, 200), (33, 33, 400), (32, 300, 400), (40, 40, 400)] {
        let path = format!("/ipfs/{}{}", chain[depth].cid(), "/d".repeat(segments));
        let (status, text) = text_of(site.get(&path).await).await;
        assert_eq!(status, expected, "{segments}: {text}");
        assert!(status == 200 || text.contains("more than 32 segments"), "{text}");
    }
    // Parent segments in between do not count, since the path is invalid.
    let request = format!(
        "GET /ipfs/{}{} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        chain[1].cid(),
        "/x/..".repeat(200) + "/d"
    );
    let (answer, _) = site.exchange(&request).await;
    assert!(answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"deep down"));
}

#[tokio::test]
async fn documents_that_are_too_complex_have_no_preview() {
    let nested = cbor_of([vec![0x81; 200], vec![0x80]].concat());
    let wide = cbor_of([vec![0x9a, 0, 4, 0x93, 0xe0], vec![0xf6; 300_000]].concat());
    let mut setup = Setup::new(&[&nested, &wide]);
    setup.limits.convert_codecs = true;
    let site = setup.start().await;
    for block in [&nested, &wide] {
        let path = format!("/ipfs/{}", block.cid());
        let page = site.send("GET", &path, &[("accept", "text/html")]).await;
        let (status, text) = text_of(page).await;
        assert!(status == 406 && text.contains("?format=raw"), "{status} {text}");
        let (status, text) = text_of(site.get(&format!("{path}?format=dag-json")).await).await;
        assert!(status == 406 && text.contains("?format=raw"), "{status} {text}");
        for path in [path.clone(), format!("{path}?format=raw"), format!("{path}?format=dag-cbor")] {
            let response = site.get(&path).await;
            assert_eq!(response.status(), 200, "{path}");
            assert_eq!(response.bytes().await.expect("a body"), *block.data());
        }
        assert_eq!(text_of(site.get(&format!("{path}/0/0")).await).await.0, 501);
    }
}

/// The read-ahead of twenty slow clients in bytes, once it is at least this, with leaves of 64 KiB. Each client gets as
/// many leaves as the network releases, and has read them all.
async fn read_ahead(format: &str, total_bytes_max: u64, least: u64) -> u64 {
    const LEAF: usize = 64 << 10;
    const GIVEN: usize = 8;
    let leaf = |number: u32| {
        let mut bytes = noise(number as u8, LEAF);
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        raw(bytes)
    };
    let files: Vec<Vec<Block>> = (0..20).map(|file| (0..40).map(|at| leaf(file * 40 + at)).collect()).collect();
    let network = FakeNetwork::new(files.iter().flatten(), files.iter().flat_map(|leaves| &leaves[GIVEN..]));
    let roots: Vec<Block> = files.iter().map(|leaves| file(leaves)).collect();
    let mut setup = setup(&roots.iter().collect::<Vec<_>>(), Arc::clone(&network) as _);
    setup.http.read_ahead_bytes_max = 1 << 20;
    setup.http.read_ahead_total_bytes_max = total_bytes_max;
    setup.limits = gateway::limits::RequestLimits::of(&setup.http, &config::Cache::default());
    let site = setup.start().await;
    let mut clients = Vec::new();
    for root in &roots {
        let request = format!("GET /ipfs/{}?{format} HTTP/1.1\r\nHost: x\r\n\r\n", root.cid());
        clients.push(site.connect(&request).await);
    }
    let mut given = vec![0; LEAF * GIVEN];
    for client in &mut clients {
        tokio::time::timeout(PATIENCE, client.read_exact(&mut given))
            .await
            .expect("in time")
            .expect("the first leaves");
    }
    // Every response waits for a leaf by now, and when this number is stable, has requested its whole read-ahead.
    until(|| network.waiting() >= clients.len() as u64, "every reader to wait").await;
    until(|| network.waiting() * LEAF as u64 >= least, "as much to be read ahead").await;
    let mut waiting = 0;
    while waiting != network.waiting() {
        waiting = network.waiting();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    waiting * LEAF as u64
}

#[tokio::test]
async fn all_readers_together_stay_within_the_read_ahead_budget() {
    const TOTAL: u64 = 4 << 20;
    for format in ["", "format=car", "format=tar"] {
        let alone = read_ahead(format, 1 << 30, 2 * TOTAL + 1).await;
        assert!(alone > 2 * TOTAL, "{format}: {alone} bytes are read ahead where nothing limits that");
        let together = read_ahead(format, TOTAL, 0).await;
        // Every reader fetches one leaf, whatever the budget is.
        let least = 20 * (64 << 10);
        assert!(together <= TOTAL + 2 * least, "{format}: {together} bytes are read ahead");
    }
}

#[tokio::test]
async fn http_10_archives_are_complete_or_rejected() {
    let leaves = [raw(noise(1, 20_000)), raw(noise(2, 20_000))];
    let large = file(&leaves);
    let mut setup = Setup::new(&[&large, &leaves[0], &leaves[1]]);
    setup.limits.http10_buffer_bytes_max = 45_000;
    let site = setup.start().await;
    for format in ["car", "tar"] {
        let path = format!("/ipfs/{}?format={format}", large.cid());
        let whole = site.get(&path).await;
        assert!(!whole.headers().contains_key("content-length"), "it is not known in advance");
        let whole = whole.bytes().await.expect("a body");
        let (answer, end) = site.exchange(&format!("GET {path} HTTP/1.0\r\n\r\n")).await;
        end.expect("an orderly end");
        let head = String::from_utf8_lossy(&answer[..answer.len() - body_of(&answer).len()]).to_ascii_lowercase();
        assert!(head.starts_with("http/1.0 200") && !head.contains("transfer-encoding"), "{head}");
        assert!(head.contains(&format!("content-length: {}\r\n", whole.len())), "{head}");
        assert_eq!(body_of(&answer), whole, "{format}");
    }
    // Twice the file exceeds the buffer.
    let both = directory(&[("a", &leaves[0]), ("b", &large)]);
    let mut setup = Setup::new(&[&both, &large, &leaves[0], &leaves[1]]);
    setup.limits.http10_buffer_bytes_max = 30_000;
    let site = setup.start().await;
    for format in ["car", "tar"] {
        let (answer, end) = site.exchange(&format!("GET /ipfs/{}?format={format} HTTP/1.0\r\n\r\n", both.cid())).await;
        end.expect("an orderly end");
        let text = String::from_utf8_lossy(&answer);
        assert!(text.starts_with("HTTP/1.0 505") && text.contains("HTTP/1.1"), "{format}: {text}");
    }
}

#[tokio::test]
async fn http_10_buffers_share_the_read_ahead_budget() {
    let leaves = [raw(noise(1, 20_000)), raw(noise(2, 20_000))];
    let large = file(&leaves);
    let mut setup = Setup::new(&[&large, &leaves[0], &leaves[1]]);
    setup.http.read_ahead_total_bytes_max = 30_000;
    setup.limits = gateway::limits::RequestLimits::of(&setup.http, &config::Cache::default());
    let site = setup.start().await;
    for _ in 0..3 {
        let (answer, end) = site.exchange(&format!("GET /ipfs/{}?format=car HTTP/1.0\r\n\r\n", large.cid())).await;
        end.expect("an orderly end");
        let text = String::from_utf8_lossy(&answer).to_ascii_lowercase();
        assert!(text.starts_with("http/1.0 429") && text.contains("retry-after: 5"), "{text}");
        // The budget was released.
        let (answer, _) = site.exchange(&format!("GET /ipfs/{}?format=car HTTP/1.0\r\n\r\n", leaves[0].cid())).await;
        assert!(answer.starts_with(b"HTTP/1.0 200") && answer.ends_with(leaves[0].data()));
    }
    // HTTP/1.1 needs no buffer.
    let whole = site.get(&format!("/ipfs/{}?format=car", large.cid())).await;
    assert!(whole.bytes().await.expect("a complete body").len() > 40_000);
}

#[tokio::test]
async fn an_aborted_archive_never_looks_complete() {
    let leaves = [raw(noise(1, 20_000)), raw(noise(2, 20_000))];
    let large = file(&leaves);
    for (format, version) in [("car", "1.1"), ("car", "1.0"), ("tar", "1.1"), ("tar", "1.0")] {
        let (upstream, gate) = FailingNetwork::gated(stalled);
        let site = setup(&[&large, &leaves[0]], upstream).start().await;
        let request = format!("GET /ipfs/{}?format={format} HTTP/{version}\r\nHost: x\r\n\r\n", large.cid());
        let mut stream = site.connect(&request).await;
        let mut answer = Vec::new();
        if version == "1.1" {
            let mut first = vec![0; 1000];
            stream.read_exact(&mut first).await.expect("a head");
            answer = first;
        }
        gate.add_permits(10);
        let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("in time").map(|_| ());
        match version {
            "1.1" => {
                assert_is_reset(format, &answer, end);
                until_aborted(&site, "stalled", 1).await;
            }
            _ => {
                end.expect("an orderly end");
                let text = String::from_utf8_lossy(&answer);
                assert!(text.starts_with("HTTP/1.0 504") && text.to_lowercase().contains("content-length"), "{text}");
            }
        }
    }
}

/// The memory budget of all response bodies.
fn memory(site: &Site) -> Arc<Budget> {
    Arc::clone(site.gateway.limits().memory.all())
}

/// The head of a GET request.
fn get(path: &str) -> http::request::Parts {
    http::Request::get(path).body(()).expect("a request").into_parts().0
}

fn client(address: &str) -> Client {
    Client::new(address.parse().expect("an address"), "x".to_owned(), false)
}

/// The bytes of a body.
async fn read(mut content: Content) -> Vec<u8> {
    let mut read = Vec::new();
    while let Some(bytes) = content.next().await {
        read.extend_from_slice(&bytes.expect("is complete"));
    }
    read
}

#[tokio::test]
async fn blocks_count_against_the_memory_budget_and_are_read_in_pieces_when_it_is_used_up() {
    const TOTAL: usize = 6 << 20;
    let data = noise(1, (2 << 20) - 100);
    let (large, file) = (raw(data.clone()), file_in_one_block(&data));
    let mut setup = Setup::new(&[&large, &file]);
    (setup.http.read_ahead_total_bytes_max, setup.http.zstd) = (TOTAL as u64, false);
    setup.limits = gateway::limits::RequestLimits::of(&setup.http, &config::Cache::default());
    let site = setup.start().await;
    let (budget, client) = (memory(&site), client("192.0.2.1"));
    let table = [
        (format!("/ipfs/{}", large.cid()), large.data().len()),
        (format!("/ipfs/{}?format=raw", large.cid()), large.data().len()),
        (format!("/ipfs/{}", file.cid()), file.data().len()),
    ];
    for (path, kept) in table {
        let head = get(&path);
        // Responses that are not read yet, of which the client's share, three quarters, has room for two.
        let mut answers = Vec::new();
        for number in 1..=4 {
            answers.push(site.gateway.preview(&head, &client).await.expect("an answer"));
            let held = TOTAL - budget.left();
            assert_eq!(held, number.min(2) * kept, "{path}: held for {number}");
        }
        for answer in answers {
            let content = answer.into_body();
            assert_eq!(content.length(), Some(data.len() as u64));
            assert!(read(content).await == data, "{path}");
        }
        assert_eq!(budget.left(), TOTAL, "{path}: everything is released");
        let part = site.send("GET", &path, &[("range", "bytes=1000000-1999999")]).await;
        assert_eq!(part.bytes().await.expect("a complete body"), data[1_000_000..2_000_000], "{path}");
        until(|| budget.left() == TOTAL, "the part to be released").await;
    }
}

#[tokio::test]
async fn a_file_in_one_block_is_sniffed_and_read_in_pieces_when_no_memory_is_left() {
    const TOTAL: usize = 1 << 20;
    let image = |seed: u8| [b"\x89PNG\r\n\x1a\n", &noise(seed, 600_000)[..]].concat();
    let (whole, part) = (image(1), image(2));
    let (file, other) = (file_in_one_block(&whole), file_in_one_block(&part));
    let mut setup = Setup::new(&[&file, &other]);
    (setup.http.read_ahead_total_bytes_max, setup.http.zstd) = (TOTAL as u64, false);
    setup.limits = gateway::limits::RequestLimits::of(&setup.http, &config::Cache::default());
    let site = setup.start().await;
    let client = client("192.0.2.1");
    let mut held = Share::of(Some(site.gateway.limits().memory.of(client.address)));
    assert!(held.grow(TOTAL / 4 * 3));
    let table = [(&file, None, &whole[..]), (&other, Some("bytes=300000-599999"), &part[300_000..600_000])];
    for (block, range, expected) in table {
        let mut head = get(&format!("/ipfs/{}", block.cid()));
        head.headers.extend(range.map(|range| (http::header::RANGE, http::HeaderValue::from_static(range))));
        let answer = site.gateway.preview(&head, &client).await.expect("an answer");
        assert_eq!(answer.headers()["content-type"], "image/png", "{range:?}");
        let content = answer.into_body();
        assert!(matches!(content, Content::Stream { .. }), "{range:?}: {content:?}");
        assert!(read(content).await == expected, "{range:?}");
    }
}

#[tokio::test]
async fn documents_and_ranges_count_against_the_memory_budget_too() {
    const SHARE: usize = 1 << 20;
    const TOTAL: usize = SHARE / 3 * 4;
    // A byte string of 768 KiB, which dag-json encodes as base64.
    let document = cbor_of([&[0x5a, 0, 0x0c, 0, 0][..], &noise(1, 0x0c_0000)].concat());
    let shorter = cbor_of([&[0x5a, 0, 0x05, 0, 0][..], &noise(3, 0x05_0000)].concat());
    let block = raw(noise(2, 2 << 20));
    let mut setup = Setup::new(&[&document, &shorter, &block]);
    (setup.http.read_ahead_total_bytes_max, setup.http.zstd) = (TOTAL as u64, false);
    setup.limits = gateway::limits::RequestLimits::of(&setup.http, &config::Cache::default());
    setup.limits.convert_codecs = true;
    let site = setup.start().await;
    let (budget, client) = (memory(&site), client("192.0.2.1"));
    let part = ("range", "bytes=100-900099");
    let parts = ("range", "bytes=0-399999,1000000-1399999");
    let raw = format!("/ipfs/{}?format=raw", block.cid());
    // The path, how many bytes a response holds, and how many it has.
    let base64 = 0x05_0000 / 3 * 4;
    let table = [
        (format!("/ipfs/{}", document.cid()), None, 0x0c_0005, 0x0c_0005),
        (format!("/ipfs/{}?format=dag-json", shorter.cid()), None, base64, base64),
        (raw.clone(), Some(part), 900_000, 900_000),
        // These are not assembled, but read again one by one.
        (raw, Some(parts), 0, 800_000),
    ];
    for (path, header, least, length) in table {
        let mut head = get(&path);
        if let Some((name, value)) = header {
            head.headers.insert(name, http::HeaderValue::from_static(value));
        }
        let held = || TOTAL - budget.left();
        let mut answers = Vec::new();
        let refused = loop {
            match site.gateway.preview(&head, &client).await {
                Ok(answer) if answers.len() < 5 => answers.push(answer),
                Ok(_) => break None,
                Err(problem) => break Some(problem),
            }
        };
        let fit = SHARE.checked_div(least).unwrap_or_default();
        assert!((least * fit..(least + 1_000) * fit + 1).contains(&held()), "{path}: {} bytes are held", held());
        match refused {
            Some(problem) => {
                assert!(path.contains("dag-json") && answers.len() == fit, "{path}: {} of {fit}", answers.len());
                assert!(problem.to_string().contains("memory for response bodies"), "{problem}");
            }
            None => assert!(!path.contains("dag-json"), "what was made cannot be read again"),
        }
        for answer in answers {
            let read = read(answer.into_body()).await.len();
            assert!((length..length + 1_000).contains(&read), "{path}: {read} bytes");
        }
        assert_eq!(budget.left(), TOTAL, "{path}: everything is released");
    }
    let too_long = format!("/ipfs/{}?format=dag-json", document.cid());
    assert_is_busy(&site.get(&too_long).await);
}

#[tokio::test]
async fn one_clients_slow_readers_leave_read_ahead_to_others() {
    const TOTAL: usize = 8 << 20;
    let held = raw(noise(99, 1 << 20));
    let leaves: Vec<Block> = (0..40).map(|seed| raw(noise(seed, 64 << 10))).collect();
    let large = file(&leaves);
    let network = FakeNetwork::new(&leaves, &leaves[1..]);
    let mut setup = setup(&[&held, &large], Arc::clone(&network) as _);
    (setup.http.read_ahead_total_bytes_max, setup.http.zstd) = (TOTAL as u64, false);
    setup.limits = gateway::limits::RequestLimits::of(&setup.http, &config::Cache::default());
    let site = setup.start().await;
    let budget = memory(&site);
    let path = |block: &Block| get(&format!("/ipfs/{}", block.cid()));

    // The addresses of an IPv6 network are one client.
    let mut unread = Vec::new();
    for number in 1..=12 {
        let slow = client(&format!("2001:db8::{number}"));
        unread.push(site.gateway.preview(&path(&held), &slow).await.expect("an answer"));
    }
    let other = site.gateway.preview(&path(&large), &client("192.0.2.1")).await.expect("an answer").into_body();
    until(|| network.waiting() >= 12, "the read-ahead of the other client").await;
    assert!(budget.left() < TOTAL / 4, "both have a part: {} bytes are left", budget.left());

    network.gate.add_permits(leaves.len());
    assert!(read(other).await == leaves.iter().flat_map(|leaf| leaf.data().to_vec()).collect::<Vec<_>>());
    for answer in unread {
        assert!(read(answer.into_body()).await == *held.data(), "beyond the share it is read in pieces");
    }
    assert_eq!(budget.left(), TOTAL, "everything is released");
}

#[tokio::test]
async fn a_client_holds_at_most_its_share_of_the_memory_for_bodies() {
    const TOTAL: usize = 4 << 20;
    let block = raw(noise(1, 512 << 10));
    let document = cbor_of([&[0x5a, 0, 0x05, 0, 0][..], &noise(2, 0x05_0000)].concat());
    let leaves: Vec<Block> = (3..6).map(|seed| raw(noise(seed, 200 << 10))).collect();
    let large = file(&leaves);
    let mut setup = Setup::new(&[&block, &document, &large, &leaves[0], &leaves[1], &leaves[2]]);
    (setup.http.read_ahead_total_bytes_max, setup.http.zstd) = (TOTAL as u64, false);
    setup.limits = gateway::limits::RequestLimits::of(&setup.http, &config::Cache::default());
    setup.limits.convert_codecs = true;
    let site = setup.start().await;
    let budget = memory(&site);
    let table = [
        ("a block", http::Version::HTTP_11, format!("/ipfs/{}?format=raw", block.cid())),
        ("a file", http::Version::HTTP_11, format!("/ipfs/{}", large.cid())),
        ("an archive", http::Version::HTTP_11, format!("/ipfs/{}?format=car", large.cid())),
        ("a conversion", http::Version::HTTP_11, format!("/ipfs/{}?format=dag-json", document.cid())),
        ("an HTTP/1.0 buffer", http::Version::HTTP_10, format!("/ipfs/{}?format=tar", large.cid())),
    ];
    for (what, version, path) in table {
        let head = {
            let mut head = get(&path);
            head.version = version;
            head
        };
        let mut unread = Vec::new();
        while unread.len() < 40
            && let Ok(answer) = site.gateway.preview(&head, &client("192.0.2.1")).await
        {
            unread.push(answer);
        }
        let left = budget.left();
        assert!((TOTAL / 4..TOTAL / 2).contains(&left), "{what}: {left} bytes are left by {}", unread.len());
        drop(unread);
        until(|| budget.left() == TOTAL, "everything to be released").await;
    }
}

#[tokio::test]
async fn one_clients_slow_archives_leave_permits_to_others() {
    let leaves: Vec<Block> = (0..16).map(|seed| raw(noise(seed, 1 << 20))).collect();
    let large = file(&leaves);
    let mut setup = Setup::new(&leaves.iter().chain([&large]).collect::<Vec<_>>());
    (setup.http.archives_max, setup.http.client_archives_max) = (3, 2);
    setup.http.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    setup.limits = gateway::limits::RequestLimits::of(&setup.http, &config::Cache::default());
    let site = setup.start().await;
    let path = format!("/ipfs/{}?format=car", large.cid());
    let mut slow = Vec::new();
    for _ in 0..2 {
        let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n");
        let mut stream = site.connect(&head).await;
        stream.read_exact(&mut [0; 1000]).await.expect("a head");
        slow.push(stream);
    }
    assert_is_busy(&site.send("GET", &path, &[("x-forwarded-for", "192.0.2.1")]).await);
    let other = site.send("GET", &path, &[("x-forwarded-for", "192.0.2.2")]).await;
    assert_eq!(other.status(), 200);
    assert_is_busy(&site.send("GET", &path, &[("x-forwarded-for", "192.0.2.3")]).await);
}

#[tokio::test]
async fn slow_dns_look_ups_use_one_clients_limit_only() {
    // A DNS server that does not answer.
    let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
    let options = p2p_bridge::names::NamesOptions {
        dns_servers: vec![silent.local_addr().expect("is bound")],
        lookups_max: 8,
        ..Default::default()
    };
    let mut registry = prometheus_client::registry::Registry::default();
    let names = p2p_bridge::Names::new(options, None, &mut registry).expect("good options");
    let mut setup = Setup { names: names as _, ..Setup::new(&[]) };
    setup.limits.client_lookups_max = 3;
    setup.http.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    let site = setup.start().await;
    let mut waiting = Vec::new();
    let ask = |client: &str, number: usize| {
        format!("GET /ipns/name-{number}.example/ HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {client}\r\n\r\n")
    };
    for number in 0..3 {
        waiting.push(site.connect(&ask("192.0.2.1", number)).await);
    }
    until(|| site.gateway.running.len() == 3, "three look-ups").await;
    for number in 3..20 {
        let path = format!("/ipns/name-{number}.example/");
        assert_is_busy(&site.send("GET", &path, &[("x-forwarded-for", "192.0.2.1")]).await);
    }
    // Another client's name is resolved.
    waiting.push(site.connect(&ask("192.0.2.2", 30)).await);
    until(|| site.gateway.running.len() == 4, "one more look-up").await;
    drop(waiting);
    until(|| site.gateway.running.is_empty(), "all to end").await;
}
