//! Gateways of one site, with a real PostgreSQL server, and blocks in a folder or in a real S3 server. What one gateway
//! has acknowledged the others have, whatever becomes of it.

use crate::engines::server::{BUCKET, KEY_ID, SECRET, Server};
use crate::engines::support::Postgres;
use crate::support::causeway::{Causeway, Launch, TOKEN};
use crate::support::haproxy::{HaProxy, shipped};
use crate::support::metrics::Metrics;
use crate::support::nginx::{Nginx, free_address, shipped_site};
use crate::support::noise::Noise;
use crate::support::{assert_same_bytes, client, eventually};
use crate::uploads::{PIECE, tus, tus_at};
use bytes::Bytes;
use futures::future::join_all;
use nix::sys::signal::Signal;
use reqwest::Method;
use serde_json::{Value, json};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(60);
pub const NAME: &str = "e2e";

pub fn folder() -> TempDir {
    TempDir::new().expect("the temporary folder is writable")
}

/// The engines of a site whose blocks are in a folder.
pub struct Site {
    pub database: Postgres,
    pub storage: TempDir,
}

impl Site {
    pub async fn new() -> Self {
        Self { database: Postgres::start().await, storage: folder() }
    }

    /// A gateway with a data folder.
    pub fn gateway(&self, dir: &Path) -> Launch {
        of_site(dir, &self.database, &format!("file://{}", self.storage.path().display()))
    }
}

pub fn of_site(dir: &Path, database: &Postgres, store: &str) -> Launch {
    Launch::new(dir)
        .set("CAUSEWAY_SITE_NAME", NAME)
        .set("CAUSEWAY_SITE_DATABASE", database.options(NAME).url)
        .set("CAUSEWAY_SITE_STORE", store)
        .set("CAUSEWAY_P2P_DIAL_PRIVATE", true)
}

/// A gateway of a site whose blocks are in a bucket.
fn with_bucket(dir: &Path, database: &Postgres, s3: &Server) -> Launch {
    of_site(dir, database, &format!("s3://{BUCKET}/a/prefix"))
        .set("CAUSEWAY_SITE_S3_ENDPOINT", format!("http://127.0.0.1:{}", s3.port))
        .set("AWS_ACCESS_KEY_ID", KEY_ID)
        .set("AWS_SECRET_ACCESS_KEY", SECRET)
}

/// Uploads a file: its CID and the number of its pin, or the status and `Retry-After` of a refusal.
pub async fn upload(node: &Causeway, content: &[u8]) -> Result<(String, String), (u16, Option<String>)> {
    let request = client().post(format!("{}/upload?pin-name=kept", node.admin_url())).bearer_auth(TOKEN);
    let response = request.body(content.to_vec()).send().await.expect("is answered");
    let retry_after = response.headers().get("retry-after").map(|value| value.to_str().expect("is text").to_owned());
    let status = response.status().as_u16();
    let body = response.bytes().await.expect("an answer");
    let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = |key: &str| answer["roots"][0][key].as_str().map(str::to_owned);
    text("cid").zip(text("pin")).filter(|_| status == 200).ok_or((status, retry_after))
}

pub async fn pin(node: &Causeway, id: &str) -> Option<Value> {
    let (status, pin) = node.admin("GET", &format!("/psa/pins/{id}"), None).await;
    (status == 200).then_some(pin)
}

pub async fn until_pinned(node: &Causeway, id: &str) {
    eventually("it is pinned", TIMEOUT, async || match pin(node, id).await {
        Some(pin) if pin["status"] == "pinned" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

async fn until_unknown(node: &Causeway, id: &str) {
    let is_unknown = async || pin(node, id).await.map_or(Ok(()), |pin| Err(pin.to_string()));
    eventually("the pin is removed", TIMEOUT, is_unknown).await;
}

/// A change through the admin API: the status, and whether there is a `Retry-After`.
pub async fn change(node: &Causeway, method: Method, path: &str, body: Option<Value>) -> (u16, bool) {
    let request = client().request(method, format!("{}{path}", node.admin_url())).bearer_auth(TOKEN);
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let response = request.body(body).send().await.expect("is answered");
    (response.status().as_u16(), response.headers().contains_key("retry-after"))
}

/// Takes a block down: the status, and whether there is a `Retry-After`.
async fn take_down(node: &Causeway, cid: &str) -> (u16, bool) {
    change(node, Method::POST, "/api/v1/denylists/local/rules", Some(json!({ "cid": cid }))).await
}

async fn remove_rule(node: &Causeway, cid: &str) -> (u16, Value) {
    node.admin("DELETE", &format!("/api/v1/denylists/local/rules?rule=/ipfs/{cid}"), None).await
}

pub async fn until_status(node: &Causeway, cid: &str, expected: u16) {
    eventually("the rule is in force", TIMEOUT, async || {
        let status = node.get(&format!("/ipfs/{cid}")).await.status;
        if status == expected { Ok(()) } else { Err(status) }
    })
    .await;
}

/// Waits for the status of a request that is answered with stored blocks only: 200, or 412 without.
pub async fn until_stored(node: &Causeway, cid: &str, expected: u16) {
    eventually("it is stored, or is not", TIMEOUT, async || {
        let request = client().get(node.url(&format!("/ipfs/{cid}"))).header("cache-control", "only-if-cached");
        let status = request.send().await.expect("is answered").status().as_u16();
        if status == expected { Ok(()) } else { Err(status) }
    })
    .await;
}

/// Creates a token: the status, and the token.
pub async fn create_token(node: &Causeway, terms: Value) -> (u16, String) {
    let (status, created) = node.admin("POST", "/api/v1/tokens", Some(&terms.to_string())).await;
    (status, created["token"].as_str().unwrap_or_default().to_owned())
}

/// The status of a request with a token.
pub async fn token_status(node: &Causeway, token: &str) -> u16 {
    let request = client().get(format!("{}/api/v1/token", node.admin_url())).bearer_auth(token);
    request.send().await.expect("is answered").status().as_u16()
}

/// Waits until a gateway has received a token, or its revocation. Wrong tokens are rate limited, so that it is sent
/// once.
async fn until_token(node: &Causeway, token: &str, expected: u16) {
    let id = token.split('_').nth(1).expect("an ID");
    eventually("the token is known, or is revoked", TIMEOUT, async || {
        let (_, listed) = node.admin("GET", "/api/v1/tokens", None).await;
        let is_listed = listed["tokens"].as_array().is_some_and(|tokens| tokens.iter().any(|token| token["id"] == id));
        if is_listed == (expected == 200) { Ok(()) } else { Err(listed.to_string()) }
    })
    .await;
    assert_eq!(token_status(node, token).await, expected);
}

/// Waits until health and metrics say that an engine can be used, or cannot.
async fn until_engine(node: &Causeway, engine: &str, is_up: bool) {
    let sample = format!("causeway_site_engine_up{{engine=\"{engine}\"}} {}", u8::from(is_up));
    let is_about = |finding: &Value| {
        let text = finding["text"].as_str().unwrap_or_default();
        finding["subject"] == "site" && text.starts_with(&format!("The {engine} "))
    };
    eventually("health says whether it can be used", TIMEOUT, async || {
        let (_, health) = node.admin("GET", "/api/v1/health", None).await;
        let is_reported = health["findings"].as_array().is_some_and(|findings| findings.iter().any(is_about));
        let is_shown = node.exposition().await.contains(&sample);
        if is_reported != is_up && is_shown { Ok(()) } else { Err(health.to_string()) }
    })
    .await;
}

/// One gateway stores, is killed, and loses its disk; others read, list and remove.
async fn check_that_gateways_are_one(gateway: impl Fn(&Path) -> Launch) {
    let dirs = [folder(), folder(), folder()];
    let [one, other] = [gateway(dirs[0].path()).start().await, gateway(dirs[1].path()).start().await];
    let (noise, text) = (Noise::bytes(51, 3_000_000), b"a line of many\n".repeat(100_000));
    let (noise_cid, noise_pin) = upload(&one, &noise).await.expect("is stored");
    let (text_cid, text_pin) = upload(&one, &text).await.expect("is stored");
    for (cid, content) in [(&noise_cid, &noise), (&text_cid, &text)] {
        other.expect(&format!("/ipfs/{cid}"), content).await;
    }
    assert_read_from_storage(&other.metrics().await);
    // SIGKILL, and its disk is lost.
    drop(one);
    std::fs::remove_dir_all(dirs[0].path().join("data")).expect("is removed");
    until_pinned(&other, &noise_pin).await;
    let third = gateway(dirs[2].path()).start().await;
    until_pinned(&third, &text_pin).await;
    third.expect(&format!("/ipfs/{text_cid}"), &text).await;
    let again = third.get(&format!("/ipfs/{noise_cid}?format=car")).await;
    assert!(again.status == 200 && again.body.len() > noise.len());
    let (status, answer) = third.admin("DELETE", &format!("/psa/pins/{noise_pin}"), None).await;
    assert_eq!(status, 202, "{answer}");
    until_unknown(&other, &noise_pin).await;
    let (status, listed) = other.admin("GET", "/psa/pins?name=kept", None).await;
    assert_eq!((status, &listed["count"]), (200, &json!(1)), "{listed}");
    let (_, state) = third.admin("GET", "/api/v1/site", None).await;
    let listed = state["gateways"].as_array().map(Vec::len);
    assert_eq!((&state["name"], listed), (&json!(NAME), Some(3)), "{state}");
    let printed = gateway(dirs[2].path()).run(&["site", "status", "--admin", third.admin_url()]);
    let printed = printed.expect("is printed");
    assert!(printed.contains(other.peer_id()) && printed.contains("(this one)"), "{printed}");
    let returned = gateway(dirs[0].path()).start().await;
    until_pinned(&returned, &text_pin).await;
    returned.expect(&format!("/ipfs/{text_cid}"), &text).await;
    for node in [other, third, returned] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_with_a_shared_folder_are_one() {
    let site = Site::new().await;
    check_that_gateways_are_one(|dir| site.gateway(dir)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_with_a_bucket_are_one() {
    let (database, s3) = (Postgres::start().await, Server::start().await);
    check_that_gateways_are_one(|dir| with_bucket(dir, &database, &s3)).await;
}

/// What one has fetched from the network, the others read from the shared storage.
#[tokio::test(flavor = "multi_thread")]
async fn content_is_fetched_once_for_the_site() {
    let (site, dirs) = (Site::new().await, [folder(), folder(), folder()]);
    let content = Noise::bytes(52, 3_000_000);
    let (source, cid) = Causeway::with_file(dirs[0].path(), &content).await;
    let one = site.gateway(dirs[1].path()).peering(source.tcp()).start().await;
    let other = site.gateway(dirs[2].path()).start().await;
    one.until_connected().await;
    one.expect(&format!("/ipfs/{cid}"), &content).await;
    // It is put there in the background.
    let blocks = content.len().div_ceil(262_144) as u64 + 1;
    eventually("it is in the storage", TIMEOUT, async || {
        let (_, state) = one.admin("GET", "/api/v1/site", None).await;
        if state["cached_blocks"].as_u64() >= Some(blocks) { Ok(()) } else { Err(state["cached_blocks"].clone()) }
    })
    .await;
    source.stop().await;
    eventually("the other one has it", TIMEOUT, async || {
        let answer = other.get(&format!("/ipfs/{cid}")).await;
        if answer.status == 200 && answer.body == content { Ok(()) } else { Err(answer.status) }
    })
    .await;
    assert_read_from_storage(&other.metrics().await);
    // A pin of it is requested at the one that was not asked for it before.
    let wanted = json!({ "cid": cid, "name": "a name" }).to_string();
    let (status, pin) = other.admin("POST", "/psa/pins", Some(&wanted)).await;
    assert_eq!(status, 202, "{pin}");
    let id = pin["requestid"].as_str().expect("an id");
    for node in [&one, &other] {
        until_pinned(node, id).await;
    }
    for node in [one, other] {
        node.stop().await;
    }
}

/// What a gateway has served was read from the shared storage. On a busy machine reading may take too long: then the
/// network is asked, where another gateway has it.
fn assert_read_from_storage(metrics: &Metrics) {
    let (fetched, failed) = (metrics.hits("network"), metrics.sample("causeway_tier_errors_total{tier=\"site\"}"));
    assert!(metrics.hits("site") > 0 || failed > 0, "nothing was read from the storage");
    assert!(fetched <= failed, "{fetched} blocks are from the network, and the storage has failed for {failed}");
}

/// The block bytes that a node has sent to peers.
fn sent_bytes(metrics: &Metrics) -> u64 {
    let transfers = ["plain", "packed"].map(|form| format!("causeway_dag_sent_bytes_total{{form=\"{form}\"}}"));
    transfers.iter().map(|name| metrics.sample(name)).sum::<u64>() + metrics.sample("causeway_bitswap_sent_bytes_total")
}

/// Shown if a test fails.
const LOG: &str = "info,p2p_bridge::member_lookup=debug";

/// What becomes of look-ups.
const LOOKUP_RESULTS: [&str; 8] =
    ["stored", "fetched", "not_stored", "not_found", "busy", "failed", "unavailable", "invalid"];

fn lookups(metrics: &Metrics, result: &str) -> u64 {
    metrics.sample(&format!("causeway_site_lookups_total{{result=\"{result}\"}}"))
}

/// Gateways that know each other and are connected to a peer.
async fn gateways_with_peer(site: &Site, dirs: &[TempDir], peer: &Causeway) -> Vec<Causeway> {
    let launch = |dir: &TempDir| site.gateway(dir.path()).peering(peer.tcp()).set("CAUSEWAY_LOG_LEVEL", LOG);
    let launches = dirs.iter().map(launch).collect::<Vec<_>>();
    let gateways = join_all(launches.iter().map(Launch::start)).await;
    for gateway in &gateways {
        gateway.until_connected().await;
        gateway.metrics_when(|metrics| metrics.sample("causeway_site_gateways") == dirs.len() as u64).await;
    }
    gateways
}

/// Asks all gateways for a file at the same time, each so many times.
async fn expect_at_all(gateways: &[Causeway], times: usize, cid: &str, content: &[u8]) {
    let path = format!("/ipfs/{cid}");
    let asking = gateways.iter().flat_map(|gateway| (0..times).map(|_| expect_streamed(gateway.url(&path), content)));
    join_all(asking.collect::<Vec<_>>()).await;
}

/// Compares a body with what is expected as it is received: there may be too many to keep.
async fn expect_streamed(url: String, content: &[u8]) {
    let mut response = client().get(&url).timeout(10 * TIMEOUT).send().await.expect("is answered");
    assert_eq!(response.status(), 200, "{url}");
    let mut received = 0;
    while let Some(chunk) = response.chunk().await.expect("is whole") {
        assert!(
            content[received..].starts_with(&chunk),
            "{url}: another content in the {} bytes from {received}",
            chunk.len()
        );
        received += chunk.len();
    }
    assert_eq!(received, content.len(), "{url}");
}

/// The gateway that owns the root of a file asks the network for it, and the others ask the owner.
async fn check_that_a_cold_file_is_fetched_once(bytes: usize, clients_of_each: usize) {
    let (site, dirs, source_dir) = (Site::new().await, [folder(), folder(), folder(), folder()], folder());
    let content = Noise::bytes(56, bytes);
    let (source, cid) = Causeway::with_file(source_dir.path(), &content).await;
    let gateways = gateways_with_peer(&site, &dirs, &source).await;
    let (before, since) = (source.metrics().await, Instant::now());
    expect_at_all(&gateways, clients_of_each, &cid, &content).await;
    let took = since.elapsed();
    let sent = sent_bytes(&source.metrics().await.since(&before));
    println!(
        "{clients_of_each} clients at each of 4 gateways, {bytes} bytes: {sent} bytes from the source, {took:.1?}"
    );
    let metrics = join_all(gateways.iter().map(Causeway::metrics)).await;
    let results = LOOKUP_RESULTS.map(|result| (result, metrics.iter().map(|of| lookups(of, result)).sum::<u64>()));
    let from_network = metrics.iter().map(|of| of.hits("network")).collect::<Vec<_>>();
    let shown = format!("look-ups: {results:?}, blocks from the network: {from_network:?}");
    println!("{shown}");
    assert!(sent >= bytes as u64 && sent * 100 <= bytes as u64 * 105, "{sent} of {bytes}; {shown}");
    let answered = |result: &str| matches!(result, "stored" | "fetched");
    assert!(results.iter().any(|(result, count)| answered(result) && *count > 20), "{shown}");
    // The owner and the network are not needed for it any more.
    source.stop().await;
    expect_at_all(&gateways, 1, &cid, &content).await;
    for gateway in gateways {
        gateway.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cold_file_is_fetched_once_however_many_gateways_are_asked() {
    check_that_a_cold_file_is_fetched_once(12 << 20, 8).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "20 GB over loopback; make test-long runs it"]
async fn a_large_cold_file_is_fetched_once_by_four_gateways_with_fifty_clients_each() {
    check_that_a_cold_file_is_fetched_once(100 << 20, 50).await;
}

/// An owner that is killed, or hangs, is replaced by the gateways that are asked.
#[tokio::test(flavor = "multi_thread")]
async fn files_whose_owner_has_ended_or_hangs_are_fetched_without_it() {
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        let (site, dirs, source_dir) = (Site::new().await, [folder(), folder()], folder());
        let contents = (0..8).map(|number| Noise::bytes(600 + number, 300_000)).collect::<Vec<_>>();
        let launch = Launch::new(source_dir.path());
        let cids = contents.iter().map(|content| {
            std::fs::write(source_dir.path().join("file"), content).expect("the folder is ours");
            launch.run(&["add", "-Q", "file"]).expect("is added")
        });
        let cids = cids.collect::<Vec<_>>();
        let source = launch.start().await;
        let mut gateways = gateways_with_peer(&site, &dirs, &source).await;
        let (other, mut owner) = (gateways.remove(0), gateways.remove(0));
        owner.process.signal(signal);
        for (cid, content) in cids.iter().zip(&contents) {
            let answer = timeout(TIMEOUT, other.expect(&format!("/ipfs/{cid}"), content)).await;
            answer.unwrap_or_else(|_| panic!("{signal}: {cid} is not served in time"));
        }
        // One of eight files is the owner's in all runs but one of 256.
        assert!(other.metrics().await.hits("network") >= 8);
        if signal == Signal::SIGSTOP {
            owner.process.signal(Signal::SIGKILL);
        }
        owner.process.ended(TIMEOUT).await;
        other.stop().await;
        source.stop().await;
    }
}

/// A gateway of another site takes this one for an owner, and gets no answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_answers_gateways_of_its_own_site_only() {
    let (site, another, dirs) = (Site::new().await, Site::new().await, [folder(), folder()]);
    let one = site.gateway(dirs[0].path()).start().await;
    let other = another.gateway(dirs[1].path()).peering(one.tcp()).start().await;
    other.until_connected().await;
    let (peer_id, address) = (one.peer_id(), one.tcp());
    let row = format!(
        "INSERT INTO \"causeway_{NAME}\".gateway (peer_id, process, host, version, lease_end, addresses)
         VALUES ('{peer_id}', 1, 'host', '1', clock_timestamp() + interval '1 hour', ARRAY['{address}'])"
    );
    another.database.sql(&row).await.expect("is added");
    other.metrics_when(|metrics| metrics.sample("causeway_site_gateways") == 2).await;
    let mut number = 700;
    let metrics = loop {
        let content = Noise::bytes(number, 3_000);
        let (cid, _) = upload(&one, &content).await.expect("is stored");
        // As any peer it is sent what is stored.
        other.expect(&format!("/ipfs/{cid}"), &content).await;
        let metrics = other.metrics().await;
        // Half of the roots are those of the other one.
        if lookups(&metrics, "unavailable") > 0 {
            break metrics;
        }
        number += 1;
        assert!(number < 800, "it is never asked");
    };
    assert_eq!(lookups(&metrics, "stored") + lookups(&metrics, "fetched"), 0);
    let served = one.exposition().await;
    let counted = |line: &&str| line.starts_with("causeway_site_lookups_served_total") && !line.ends_with(" 0");
    assert_eq!(served.lines().find(counted), None);
    for node in [one, other] {
        node.stop().await;
    }
}

/// Reads go on; changes are refused, and can be repeated later.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_content_is_served_and_nothing_is_acknowledged() {
    let (mut site, dirs) = (Site::new().await, [folder(), folder()]);
    // Tokens of a time when the gateway was alone.
    for name in ["own-1", "own-2"] {
        let created = Launch::new(dirs[0].path()).run(&["token", "create", "--scope", "read", "--name", name]);
        created.expect("is created");
    }
    let one = site.gateway(dirs[0].path()).start().await;
    let other = site.gateway(dirs[1].path()).start().await;
    let content = Noise::bytes(53, 600_000);
    let (cid, id) = upload(&one, &content).await.expect("is stored");
    until_pinned(&other, &id).await;
    let (withheld, _) = upload(&one, b"was taken down").await.expect("is stored");
    assert_eq!(take_down(&one, &withheld).await, (201, false));
    until_status(&other, &withheld, 410).await;
    let (kept, _) = upload(&one, b"to be taken down").await.expect("is stored");
    let (_, token) = create_token(&other, json!({ "name": "early", "scopes": ["read"] })).await;
    until_token(&one, &token, 200).await;
    site.database.stop();
    one.expect(&format!("/ipfs/{cid}"), &content).await;
    other.expect(&format!("/ipfs/{cid}"), &content).await;
    for node in [&one, &other] {
        assert_eq!(node.get("/readyz").await.status, 200, "it serves");
        until_pinned(node, &id).await;
    }
    // What is in force stays so, and changes are refused.
    for node in [&one, &other] {
        let rule = format!("/api/v1/denylists/local/rules?rule=/ipfs/{withheld}");
        let terms = json!({ "name": "late", "scopes": ["read"] });
        assert_eq!(take_down(node, &kept).await, (503, true));
        assert_eq!(change(node, Method::DELETE, &rule, None).await, (503, true));
        assert_eq!(change(node, Method::POST, "/api/v1/tokens", Some(terms)).await, (503, true));
        assert_eq!(change(node, Method::DELETE, "/api/v1/tokens/early", None).await, (503, true));
        assert_eq!(node.get(&format!("/ipfs/{withheld}")).await.status, 410);
        assert_eq!(token_status(node, &token).await, 200);
        node.expect(&format!("/ipfs/{kept}"), b"to be taken down").await;
    }
    let failed = site.gateway(dirs[0].path()).run(&["token", "rm", "early"]).expect_err("it cannot be revoked");
    assert!(failed.contains("site.database"), "{failed}");
    site.gateway(dirs[0].path()).run(&["token", "rm", "own-1"]).expect("it is not one of the site");
    assert_eq!(change(&one, Method::DELETE, "/api/v1/tokens/own-2", None).await.0, 200);
    let refused = upload(&one, b"another file").await.expect_err("it cannot be pinned");
    assert!(refused.0 == 503 && refused.1.is_some(), "{refused:?}");
    until_engine(&one, "database", false).await;
    until_engine(&one, "storage", true).await;
    site.database.restart().await;
    until_engine(&one, "database", true).await;
    let stored = async || upload(&one, b"another file").await.map_err(|refused| format!("{refused:?}"));
    let (cid, _) = eventually("uploads are accepted again", TIMEOUT, stored).await;
    other.expect(&format!("/ipfs/{cid}"), b"another file").await;
    eventually("take-downs are accepted again", TIMEOUT, async || match take_down(&one, &kept).await {
        (200 | 201, _) => Ok(()),
        refused => Err(format!("{refused:?}")),
    })
    .await;
    until_status(&other, &kept, 410).await;
    for node in [one, other] {
        node.stop().await;
    }
}

/// A gateway that may not know of take-downs serves no content if its settings say so, and says why.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_refuses_content_while_it_is_cut_off_from_its_site() {
    let (mut site, dirs) = (Site::new().await, [folder(), folder()]);
    let one = site.gateway(dirs[0].path()).set("CAUSEWAY_SITE_ISOLATED", "refuse");
    let one = one.set("CAUSEWAY_SITE_ISOLATED_AFTER_SECONDS", 5).start().await;
    let other = site.gateway(dirs[1].path()).start().await;
    let content = Noise::bytes(58, 600_000);
    let (cid, _) = upload(&one, &content).await.expect("is stored");
    for node in [&one, &other] {
        node.expect(&format!("/ipfs/{cid}"), &content).await;
    }
    site.database.stop();
    eventually("it is not ready", TIMEOUT, async || match one.get("/readyz").await {
        answer if answer.status == 503 && answer.text().contains("site: the rules of the site") => Ok(()),
        answer => Err(format!("{}: {}", answer.status, answer.text())),
    })
    .await;
    for path in [format!("/ipfs/{cid}"), format!("/ipfs/{cid}?format=car")] {
        let answer = client().get(one.url(&path)).send().await.expect("is answered");
        assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].as_bytes()), (503, &b"10"[..]), "{path}");
    }
    for path in ["/healthz", "/"] {
        assert_eq!(one.get(path).await.status, 200, "{path}");
    }
    until_engine(&one, "database", false).await;
    let (_, health) = one.admin("GET", "/api/v1/health", None).await;
    let is_explained = |finding: &Value| {
        let text = finding["text"].as_str().unwrap_or_default();
        finding["subject"] == "site" && text.contains("content is answered with 503 (site.isolated")
    };
    assert!(health["findings"].as_array().is_some_and(|findings| findings.iter().any(is_explained)), "{health}");
    assert!(!health.to_string().contains("what is stored is served"), "{health}");
    assert!(one.exposition().await.contains("causeway_ready 0"));
    // The other one has the default.
    other.expect(&format!("/ipfs/{cid}"), &content).await;
    assert_eq!(other.get("/readyz").await.status, 200);
    site.database.restart().await;
    eventually("it is ready again", TIMEOUT, async || match one.get("/readyz").await.status {
        200 => Ok(()),
        status => Err(status),
    })
    .await;
    one.expect(&format!("/ipfs/{cid}"), &content).await;
    for node in [one, other] {
        node.stop().await;
    }
}

/// What one gateway takes down is withheld and deleted by all, also by one that was down.
#[tokio::test(flavor = "multi_thread")]
async fn take_downs_are_in_force_at_all_gateways() {
    let (site, dirs) = (Site::new().await, [folder(), folder(), folder()]);
    let [one, other, third] = [0, 1, 2].map(|n: usize| site.gateway(dirs[n].path()));
    let (one, other, down) = (one.start().await, other.start().await, third.start().await);
    let (content, marker) = (b"what is taken down", b"what is taken down later");
    let (cid, _) = upload(&one, content).await.expect("is stored");
    let (later, _) = upload(&one, marker).await.expect("is stored");
    for node in [&one, &other, &down] {
        node.expect(&format!("/ipfs/{cid}"), content).await;
    }
    down.stop().await;
    assert_eq!(take_down(&one, &cid).await, (201, false));
    assert_eq!(one.get(&format!("/ipfs/{cid}")).await.status, 410);
    until_status(&other, &cid, 410).await;
    let (_, listed) = other.admin("GET", "/api/v1/denylists/local/rules", None).await;
    assert!(listed["rules"][0]["rule"].as_str().is_some_and(|rule| rule.contains(&cid)), "{listed}");
    let (_, lists) = other.admin("GET", "/api/v1/denylists", None).await;
    let shown: Vec<_> = lists["lists"].as_array().expect("lists").iter().map(|list| &list["id"]).collect();
    assert_eq!(shown, ["local", "site"]);
    // The rules are applied one after the other, so that the block of the first one has been deleted then.
    assert_eq!(take_down(&one, &later).await, (201, false));
    until_status(&other, &later, 410).await;
    // One that starts has the rules from its first answer on.
    let third = third.start().await;
    for cid in [&cid, &later] {
        assert_eq!(third.get(&format!("/ipfs/{cid}")).await.status, 410);
    }
    // Nothing has it any more: neither the disks nor the shared storage.
    assert_eq!(remove_rule(&other, &cid).await, (200, json!({ "removed": 1 })));
    for node in [&one, &other] {
        until_stored(node, &cid, 412).await;
    }
    assert_eq!(remove_rule(&other, &cid).await.0, 404);
    let (again, _) = upload(&other, content).await.expect("it may be stored again");
    assert_eq!(again, cid);
    for node in [&one, &other, &third] {
        until_stored(node, &cid, 200).await;
    }
    for node in [one, other, third] {
        node.stop().await;
    }
}

/// A token is one of the site, whichever gateway or command creates and revokes it, and so is its quota.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_valid_at_all_gateways() {
    let (site, dirs) = (Site::new().await, [folder(), folder()]);
    let one = site.gateway(dirs[0].path()).start().await;
    let other = site.gateway(dirs[1].path()).start().await;
    let terms = json!({ "name": "ci", "scopes": ["read", "pin"], "quota": { "pins_max": 1 } });
    let (status, token) = create_token(&one, terms.clone()).await;
    assert_eq!(status, 201);
    until_token(&other, &token, 200).await;
    assert_eq!(create_token(&other, terms).await.0, 409, "names are unique");
    let pinned = async |node: &Causeway, content: &[u8]| {
        let request = client().post(format!("{}/upload", node.admin_url())).bearer_auth(&token);
        request.body(content.to_vec()).send().await.expect("is answered").status().as_u16()
    };
    assert_eq!((pinned(&one, b"the first").await, pinned(&other, b"the second").await), (200, 507));
    // A command on the machine of one, and a gateway that is down while the other revokes the token.
    let printed = site.gateway(dirs[0].path()).run(&["token", "create", "--scope", "read", "--name", "machine"]);
    let machine = printed.expect("is created");
    until_token(&other, machine.trim(), 200).await;
    one.stop().await;
    assert_eq!(other.admin("DELETE", "/api/v1/tokens/ci", None).await.0, 200);
    assert_eq!(token_status(&other, &token).await, 401);
    let one = site.gateway(dirs[0].path()).start().await;
    assert_eq!((token_status(&one, &token).await, token_status(&one, machine.trim()).await), (401, 200));
    let listed = site.gateway(dirs[1].path()).run(&["token", "ls"]).expect("is printed");
    assert!(listed.contains("machine") && !listed.contains("ci"), "{listed}");
    site.gateway(dirs[1].path()).run(&["token", "rm", "machine"]).expect("is revoked");
    for node in [&one, &other] {
        until_token(node, machine.trim(), 401).await;
    }
    for node in [one, other] {
        node.stop().await;
    }
}

/// What its own disk has is served, and nothing is pinned.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_storage_a_gateway_says_so_and_nothing_is_acknowledged() {
    let (site, dirs, elsewhere) = (Site::new().await, [folder(), folder()], folder());
    let content = Noise::bytes(54, 300_000);
    let (source, cid) = Causeway::with_file(dirs[1].path(), &content).await;
    let node = site.gateway(dirs[0].path()).peering(source.tcp()).start().await;
    node.until_connected().await;
    node.expect(&format!("/ipfs/{cid}"), &content).await;
    source.stop().await;
    let (mounted, unmounted) = (site.storage.path(), elsewhere.path().join("storage"));
    std::fs::rename(mounted, &unmounted).expect("is moved");
    std::fs::create_dir(mounted).expect("a mount point");
    until_engine(&node, "storage", false).await;
    until_engine(&node, "database", true).await;
    node.expect(&format!("/ipfs/{cid}"), &content).await;
    upload(&node, b"a file").await.expect_err("it cannot be pinned");
    std::fs::remove_dir(mounted).expect("is empty");
    std::fs::rename(&unmounted, mounted).expect("is moved back");
    until_engine(&node, "storage", true).await;
    upload(&node, b"a file").await.expect("is stored");
    node.stop().await;
}

/// The host and the port of a URL.
fn authority(url: &str) -> String {
    url.trim_start_matches("http://").trim_end_matches('/').to_owned()
}

/// A gateway that trusts a proxy on this machine.
fn behind_proxy(site: &Site, dir: &TempDir) -> Launch {
    site.gateway(dir.path()).set("CAUSEWAY_HTTP_TRUSTED_PROXIES", "127.0.0.1")
}

/// Two gateways that have the same files, for a proxy in front of them.
struct Balanced {
    one: Causeway,
    other: Causeway,
    files: Vec<(String, Vec<u8>)>,
    _site: Site,
    _dirs: [TempDir; 2],
}

impl Balanced {
    async fn start() -> Self {
        let (site, dirs) = (Site::new().await, [folder(), folder()]);
        let (one, other) = (behind_proxy(&site, &dirs[0]).start().await, behind_proxy(&site, &dirs[1]).start().await);
        let mut files = Vec::new();
        for number in 0..16 {
            let content = Noise::bytes(100 + number, 4_000);
            let (cid, _) = upload(&one, &content).await.expect("is stored");
            other.expect(&format!("/ipfs/{cid}"), &content).await;
            files.push((cid, content));
        }
        Self { one, other, files, _site: site, _dirs: dirs }
    }

    /// Asks the proxy at an address for a file.
    async fn ask(&self, client: &reqwest::Client, proxy: SocketAddr, number: usize) -> Result<(), String> {
        let (cid, content) = &self.files[number % self.files.len()];
        let answer = client.get(format!("http://{proxy}/ipfs/{cid}")).send().await;
        let answer = answer.map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        let body = answer.bytes().await.map_err(|error| error.to_string())?;
        if status == 200 && body == *content { Ok(()) } else { Err(format!("{status}, {} bytes", body.len())) }
    }

    /// Kills a gateway while the proxy at an address is asked for files: all of them are served.
    async fn check_that_a_kill_costs_no_request(&mut self, proxy: SocketAddr) {
        let shared = client();
        eventually("the proxy finds the gateways", TIMEOUT, async || self.ask(&shared, proxy, 0).await).await;
        let served = async |node: &Causeway| node.metrics().await.hits("ram") + node.metrics().await.hits("disk");
        let before = served(&self.one).await;
        let (answers, killed) = (AtomicU64::new(0), AtomicBool::new(false));
        let asking = async |worker: usize| {
            // Some are asked after its end.
            let (mut number, mut asked_after) = (0, 0);
            while asked_after < 200 {
                asked_after += usize::from(killed.load(Ordering::Relaxed));
                number += 1;
                let answer = self.ask(&shared, proxy, worker + number).await;
                answer.unwrap_or_else(|error| panic!("request {number}: {error}"));
                answers.fetch_add(1, Ordering::Relaxed);
            }
        };
        let killing = async {
            eventually("many are answered", TIMEOUT, async || {
                let count = answers.load(Ordering::Relaxed);
                if count >= 100 && served(&self.one).await > before { Ok(()) } else { Err(count) }
            })
            .await;
            self.one.process.signal(Signal::SIGKILL);
            killed.store(true, Ordering::Relaxed);
        };
        tokio::join!(killing, asking(0), asking(5), asking(11), asking(13));
        self.one.process.ended(TIMEOUT).await;
    }
}

/// Requests go to the gateways that are left, behind the shipped configuration of HAProxy.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_killed_behind_haproxy_costs_no_request() {
    let (mut gateways, proxy_dir, listens) = (Balanced::start().await, folder(), free_address());
    let [first, second] = [&gateways.one, &gateways.other].map(|node| authority(&node.url("")));
    let _haproxy = HaProxy::start(proxy_dir.path(), &shipped(listens, &[&first, &second]), listens).await;
    gateways.check_that_a_kill_costs_no_request(listens).await;
    gateways.other.stop().await;
}

/// The same behind the shipped configuration of nginx, which answers 503 when no gateway is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_killed_behind_nginx_costs_no_request() {
    let (mut gateways, proxy_dir, listens) = (Balanced::start().await, folder(), free_address());
    let addresses =
        [&gateways.one, &gateways.other].map(|node| (authority(&node.url("")), authority(node.admin_url())));
    let addresses = addresses.each_ref().map(|(public, admin)| (&**public, &**admin));
    let _nginx = Nginx::start(proxy_dir.path(), &shipped_site(listens, free_address(), addresses), listens).await;
    gateways.check_that_a_kill_costs_no_request(listens).await;
    let url = format!("http://{listens}/ipfs/{}", gateways.files[0].0);
    gateways.other.stop().await;
    let answer = client().get(url).send().await.expect("is answered");
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["retry-after"], "5");
}

/// A gateway is killed while it receives an upload through nginx, which does not repeat the request. The client
/// continues at another gateway.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_behind_nginx_continues_at_another_gateway() {
    const SENT: usize = 6_000_000;
    let (site, dirs, proxy_dir) = (Site::new().await, [folder(), folder()], folder());
    let [public, admin, other_public, other_admin] = [(); 4].map(|()| free_address());
    let mut one = behind_proxy(&site, &dirs[0]).start().await;
    // It is started later, so that the first one has the upload.
    let other = behind_proxy(&site, &dirs[1]).http_listen(other_public).admin_listen(other_admin);
    let (first, first_admin) = (authority(&one.url("")), authority(one.admin_url()));
    let (second, second_admin) = (other_public.to_string(), other_admin.to_string());
    let configuration = shipped_site(public, admin, [(&first, &first_admin), (&second, &second_admin)]);
    let _nginx = Nginx::start(proxy_dir.path(), &configuration, admin).await;
    let url = format!("http://{admin}");
    let content = Noise::bytes(58, 12_000_000);
    let length = content.len().to_string();
    let headers = [("upload-length", &*length)];
    let created = tus_at(&url, "POST", "/api/v1/uploads?pin-name=balanced", &headers, "").await.expect("is answered");
    assert_eq!(created.0, 201, "{created:?}");
    let path = created.2;

    let (sender, receiver) = tokio::sync::mpsc::channel::<io::Result<Bytes>>(1);
    let body = futures::stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    let headers = [("upload-offset", "0"), PIECE];
    let sending = tus_at(&url, "PATCH", &path, &headers, reqwest::Body::wrap_stream(body));
    let killing = async {
        sender.send(Ok(Bytes::copy_from_slice(&content[..SENT]))).await.expect("is sent");
        let received = format!("SELECT received::text FROM \"causeway_{NAME}\".upload");
        eventually("a part is stored while the rest is sent", TIMEOUT, async || {
            match site.database.sql(&received).await {
                Ok(rows) if rows.iter().any(|bytes| bytes != "0") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        let other = other.start().await;
        one.process.signal(Signal::SIGKILL);
        other
    };
    let (interrupted, other) = tokio::join!(sending, killing);
    assert_eq!(interrupted.expect("nginx answers").0, 502, "it is not repeated");
    drop(sender);
    one.process.ended(TIMEOUT).await;

    let offset = eventually("another gateway has the upload", TIMEOUT, async || {
        match tus_at(&url, "HEAD", &path, &[], "").await {
            Ok((200, Some(offset), _)) => Ok(offset),
            other => Err(format!("{other:?}")),
        }
    });
    let offset = usize::try_from(offset.await).expect("fits");
    assert!((1..=SENT).contains(&offset), "{offset}");
    let (text, rest) = (offset.to_string(), content[offset..].to_vec());
    let last = tus_at(&url, "PATCH", &path, &[("upload-offset", &text), PIECE], rest).await.expect("is answered");
    assert_eq!((last.0, last.1), (204, Some(content.len() as u64)));
    expect_streamed(format!("http://{public}{}", last.2), &content).await;
    until_no_upload_parts(&site.database).await;
    other.stop().await;
}

/// Creates a resumable upload: its path on the admin listener of any gateway.
async fn begin_upload(node: &Causeway, length: usize) -> String {
    let headers = [("upload-length", &*length.to_string())];
    let created = tus(node, "POST", "/api/v1/uploads?pin-name=resumed", &headers, "").await;
    let (status, _, path) = created.expect("is answered");
    assert_eq!(status, 201);
    path
}

/// Sends a piece: the status, the offset, and the path of the content.
async fn send_piece(
    node: &Causeway,
    path: &str,
    offset: usize,
    piece: impl Into<reqwest::Body>,
) -> (u16, Option<u64>, String) {
    let headers = [("upload-offset", &*offset.to_string()), PIECE];
    tus(node, "PATCH", path, &headers, piece).await.expect("is answered")
}

/// The offset of an upload; 0 for an error.
async fn upload_offset(node: &Causeway, path: &str) -> (u16, usize) {
    let (status, offset, _) = tus(node, "HEAD", path, &[], "").await.expect("is answered");
    (status, usize::try_from(offset.unwrap_or(0)).expect("fits"))
}

/// Waits until no bytes of uploads are left. The row of an object is removed after the object.
async fn until_no_upload_parts(database: &Postgres) {
    let rows = format!("SELECT generation::text FROM \"causeway_{NAME}\".upload_part");
    eventually("the bytes of uploads are deleted", TIMEOUT, async || match database.sql(&rows).await {
        Ok(rows) if rows.is_empty() => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

/// One gateway begins an upload, is killed and loses its disk; the second one continues, and the third one finishes.
async fn check_that_an_upload_continues(gateway: impl Fn(&Path) -> Launch, database: &Postgres) {
    let dirs = [folder(), folder(), folder()];
    let [one, other, third] = [0, 1, 2].map(|n: usize| gateway(dirs[n].path()));
    let (one, other, third) = (one.start().await, other.start().await, third.start().await);
    let content = Noise::bytes(55, 12_000_000);
    let path = begin_upload(&one, content.len()).await;
    let first = send_piece(&one, &path, 0, content[..5_000_000].to_vec()).await;
    assert_eq!((first.0, first.1), (204, Some(5_000_000)));
    // SIGKILL, and its disk is lost.
    drop(one);
    std::fs::remove_dir_all(dirs[0].path().join("data")).expect("is removed");
    for node in [&other, &third] {
        assert_eq!(upload_offset(node, &path).await, (200, 5_000_000));
        assert_eq!(send_piece(node, &path, 4_999_999, "x").await.0, 409);
    }
    // A connection that breaks off.
    let half = futures::stream::iter([
        Ok(Bytes::copy_from_slice(&content[5_000_000..5_600_000])),
        Err(io::Error::other("the sender is gone")),
    ]);
    let headers = [("upload-offset", "5000000"), PIECE];
    _ = tus(&other, "PATCH", &path, &headers, reqwest::Body::wrap_stream(half)).await;
    let reached = eventually("what was received is kept", TIMEOUT, async || {
        let (_, view) = third.admin("GET", &path, None).await;
        view["offset"].as_u64().filter(|offset| *offset > 5_000_000).ok_or(view)
    });
    let reached = usize::try_from(reached.await).expect("fits");
    assert!(reached <= 5_600_000, "{reached}");
    let second = send_piece(&other, &path, reached, content[reached..9_000_000].to_vec()).await;
    assert_eq!((second.0, second.1), (204, Some(9_000_000)));
    let last = send_piece(&third, &path, 9_000_000, content[9_000_000..].to_vec()).await;
    assert_eq!((last.0, last.1), (204, Some(content.len() as u64)));
    // What became of it is the same everywhere, and no bytes of the upload are left.
    let mut views = Vec::new();
    for node in [&other, &third] {
        let (status, offset, shown) = tus(node, "HEAD", &path, &[], "").await.expect("is answered");
        assert_eq!((status, offset, &shown), (200, Some(content.len() as u64), &last.2));
        views.push(node.admin("GET", &path, None).await);
        let got = node.get(&last.2).await;
        assert_same_bytes(&last.2, &got.body, &content);
        let (_, pins) = node.admin("GET", "/psa/pins?name=resumed", None).await;
        assert_eq!(pins["count"], 1, "{pins}");
        until_pinned(node, pins["results"][0]["requestid"].as_str().expect("an id")).await;
    }
    assert_eq!((views[0].0, &views[0].1["state"]), (200, &json!("done")), "{}", views[0].1);
    assert_eq!(views[0].1["result"], views[1].1["result"]);
    let (cid, _) = upload(&other, &content).await.expect("is stored");
    assert_eq!(last.2, format!("/ipfs/{cid}"));
    until_no_upload_parts(database).await;
    for node in [other, third] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_continues_at_any_gateway_with_a_shared_folder() {
    let site = Site::new().await;
    check_that_an_upload_continues(|dir| site.gateway(dir), &site.database).await;
    let left: Vec<_> = std::fs::read_dir(site.storage.path().join("v1/uploads"))
        .expect("is read")
        .flat_map(|slot| std::fs::read_dir(slot.expect("an entry").path()).expect("is read"))
        .map(|file| file.expect("an entry").path())
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_continues_at_any_gateway_with_a_bucket() {
    let (database, s3) = (Postgres::start().await, Server::start().await);
    check_that_an_upload_continues(|dir| with_bucket(dir, &database, &s3), &database).await;
}

async fn remove_only_pin(node: &Causeway, name: &str) {
    let (_, pins) = node.admin("GET", &format!("/psa/pins?name={name}"), None).await;
    assert_eq!(pins["count"], 1, "{pins}");
    let id = pins["results"][0]["requestid"].as_str().expect("an id");
    assert_eq!(node.admin("DELETE", &format!("/psa/pins/{id}"), None).await.0, 202);
}

/// A gateway is paused while it imports an upload, for longer than its lease. Another one imports it meanwhile, and its
/// pin stays the only one, or does not return if the client has removed it.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_gateway_is_paused_is_pinned_once() {
    let (site, dirs) = (Site::new().await, [folder(), folder()]);
    let (one, other) = (site.gateway(dirs[0].path()).start().await, site.gateway(dirs[1].path()).start().await);
    for is_removed in [false, true] {
        let content = Noise::bytes(57 + u64::from(is_removed), 24_000_000);
        // With metadata, a request equals no other one.
        let headers = [("upload-length", &*content.len().to_string())];
        let query = "/api/v1/uploads?pin-name=paused&meta=%7B%22a%22%3A%22b%22%7D";
        let path = tus(&one, "POST", query, &headers, "").await.expect("is answered").2;
        let importing = send_piece(&one, &path, 0, content.clone());
        let meanwhile = async {
            let is_complete = async || {
                let (_, view) = other.admin("GET", &path, None).await;
                if view["offset"] == content.len() { Ok(()) } else { Err(view.to_string()) }
            };
            eventually("the upload is complete", TIMEOUT, is_complete).await;
            one.process.signal(Signal::SIGSTOP);
            let is_imported = async || {
                let sent = send_piece(&other, &path, content.len(), "").await;
                if sent.0 == 204 { Ok(sent.2) } else { Err(format!("{sent:?}")) }
            };
            let pinned = eventually("another gateway imports it", TIMEOUT * 3 / 2, is_imported).await;
            assert_same_bytes(&pinned, &other.get(&pinned).await.body, &content);
            if is_removed {
                remove_only_pin(&other, "paused").await;
            }
            one.process.signal(Signal::SIGCONT);
        };
        let (paused, ()) = tokio::join!(importing, meanwhile);
        // It may have imported the upload before it was paused, or found that its session of the database has ended.
        assert!([204, 423, 503].contains(&paused.0), "{paused:?}");
        for node in [&one, &other] {
            let is_known = async || {
                let (_, pins) = node.admin("GET", "/psa/pins?name=paused", None).await;
                if pins["count"] == i32::from(!is_removed) { Ok(()) } else { Err(pins.to_string()) }
            };
            eventually("its pins are known", TIMEOUT, is_known).await;
        }
        if !is_removed {
            remove_only_pin(&other, "paused").await;
        }
    }
    for node in [one, other] {
        node.stop().await;
    }
}

/// Of two requests for one upload at two gateways, one appends. Limits are those of the site.
#[tokio::test(flavor = "multi_thread")]
async fn requests_for_one_upload_at_two_gateways_do_not_mix() {
    let (site, dirs) = (Site::new().await, [folder(), folder()]);
    let launch = |dir: &TempDir| site.gateway(dir.path()).set("CAUSEWAY_UPLOADS_PARTS_TOKEN_MAX", 2);
    let (one, other) = (launch(&dirs[0]).start().await, launch(&dirs[1]).start().await);
    let content = Noise::bytes(56, 300_000);
    let path = begin_upload(&one, content.len()).await;
    let (sender, receiver) = tokio::sync::mpsc::channel::<io::Result<Bytes>>(1);
    let slow = futures::stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    let slow = reqwest::Body::wrap_stream(slow);
    let sending = async {
        let sent = send_piece(&one, &path, 0, slow).await;
        (sent.0, sent.1)
    };
    let overtaking = async {
        sender.send(Ok(Bytes::from(vec![0; 100_000]))).await.expect("is sent");
        let term = format!("SELECT term::text FROM \"causeway_{NAME}\".upload");
        eventually("it has the upload", TIMEOUT, async || match site.database.sql(&term).await {
            Ok(term) if term == ["1"] => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        let second = send_piece(&other, &path, 0, content[..200_000].to_vec()).await;
        assert_eq!((second.0, second.1), (204, Some(200_000)));
        // It may have been refused by now.
        _ = sender.send(Ok(Bytes::from(vec![0; 100_000]))).await;
        drop(sender);
    };
    let (refused, ()) = tokio::join!(sending, overtaking);
    // The offset has moved when it notices, or not yet.
    assert!(matches!(refused.0, 409 | 423), "{refused:?}");
    for node in [&one, &other] {
        assert_eq!(upload_offset(node, &path).await, (200, 200_000));
    }
    let last = send_piece(&one, &path, 200_000, content[200_000..].to_vec()).await;
    assert_eq!(last.0, 204);
    other.expect(&last.2, &content).await;
    until_no_upload_parts(&site.database).await;

    let open = [begin_upload(&one, 1000).await, begin_upload(&other, 1000).await];
    let create = async |node: &Causeway| {
        tus(node, "POST", "/api/v1/uploads", &[("upload-length", "1000")], "").await.expect("is answered").0
    };
    assert_eq!((create(&one).await, create(&other).await), (507, 507));
    let listed = async |node: &Causeway| {
        let (_, listed) = node.admin("GET", "/api/v1/uploads", None).await;
        listed["uploads"].as_array().map(Vec::len)
    };
    assert_eq!((listed(&one).await, listed(&other).await), (Some(3), Some(3)));
    assert_eq!(tus(&other, "DELETE", &open[0], &[], "").await.expect("is answered").0, 204);
    assert_eq!(upload_offset(&one, &open[0]).await.0, 404);
    assert_eq!(create(&one).await, 201);
    for node in [one, other] {
        node.stop().await;
    }
}

/// The status of a request for an upload, and whether there is a `Retry-After`.
async fn upload_status(node: &Causeway, method: &str, path: &str) -> (u16, bool) {
    let url = format!("{}{path}", node.admin_url());
    let body = if method == "PATCH" { "12345" } else { "" };
    let request = client().request(method.parse().expect("a method"), url).bearer_auth(TOKEN).body(body);
    let request = request.header("upload-length", 10).header("upload-offset", 0).header(PIECE.0, PIECE.1);
    let response = request.send().await.expect("is answered");
    (response.status().as_u16(), response.headers().contains_key("retry-after"))
}

/// Nothing of an upload is acknowledged while the database or the storage is away.
#[tokio::test(flavor = "multi_thread")]
async fn uploads_wait_for_the_database_and_the_storage() {
    let (mut site, dir, elsewhere) = (Site::new().await, folder(), folder());
    let node = site.gateway(dir.path()).start().await;
    let path = begin_upload(&node, 10).await;
    let (mounted, unmounted) = (site.storage.path().to_owned(), elsewhere.path().join("storage"));
    std::fs::rename(&mounted, &unmounted).expect("is moved");
    std::fs::create_dir(&mounted).expect("a mount point");
    assert_eq!(upload_status(&node, "PATCH", &path).await, (503, true));
    assert_eq!(upload_offset(&node, &path).await, (200, 0));
    std::fs::remove_dir(&mounted).expect("is empty");
    std::fs::rename(&unmounted, &mounted).expect("is moved back");
    site.database.stop();
    let of_upload = ["HEAD", "GET", "PATCH", "DELETE"].map(|method| (method, &*path));
    for (method, path) in of_upload.into_iter().chain([("GET", "/api/v1/uploads"), ("POST", "/api/v1/uploads")]) {
        assert_eq!(upload_status(&node, method, path).await, (503, true), "{method} {path}");
    }
    site.database.restart().await;
    // What needs the database to pin it may find it later than the upload.
    let sent = eventually("the upload goes on, and is imported", TIMEOUT, async || {
        let (_, offset) = upload_offset(&node, &path).await;
        let rest = b"1234567890"[offset..].to_vec();
        match send_piece(&node, &path, offset, rest).await {
            (204, _, shown) if !shown.is_empty() => Ok(shown),
            other => Err(format!("{offset}: {other:?}")),
        }
    })
    .await;
    node.expect(&sent, b"1234567890").await;
    node.stop().await;
}

/// A gateway that has all bytes of an upload is killed before it is pinned: another one imports it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute; make test-long runs it"]
async fn an_import_is_continued_by_another_gateway() {
    let (site, dirs) = (Site::new().await, [folder(), folder()]);
    let one = site.gateway(dirs[0].path()).set("CAUSEWAY_UPLOADS_AT_ONCE_MAX", 1).start().await;
    let other = site.gateway(dirs[1].path()).start().await;
    let content = Noise::bytes(57, 3_000_000);
    let path = begin_upload(&one, content.len()).await;
    // The import waits for an upload that does not end.
    let endless = futures::stream::StreamExt::chain(
        futures::stream::iter([Ok::<_, io::Error>(Bytes::from_static(b"x"))]),
        futures::stream::pending(),
    );
    let request = client().post(format!("{}/upload", one.admin_url())).bearer_auth(TOKEN);
    let stalled = tokio::spawn(request.body(reqwest::Body::wrap_stream(endless)).send());
    eventually("the other upload runs", TIMEOUT, async || match upload(&one, b"one more").await {
        Err((429, _)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let sending = {
        let url = format!("{}{path}", one.admin_url());
        let request = client().patch(url).bearer_auth(TOKEN).header("upload-offset", 0).header(PIECE.0, PIECE.1);
        tokio::spawn(request.body(content.clone()).send())
    };
    eventually("all bytes are received", TIMEOUT, async || {
        let (_, view) = other.admin("GET", &path, None).await;
        if view["state"] == "complete" { Ok(()) } else { Err(view) }
    })
    .await;
    drop(one);
    assert!(sending.await.expect("ends").is_err() && stalled.await.expect("ends").is_err(), "the gateway was killed");
    let done = eventually("the other one imports it", 3 * TIMEOUT, async || {
        let (_, view) = other.admin("GET", &path, None).await;
        if view["state"] == "done" { Ok(view) } else { Err(view) }
    });
    let shown = done.await["result"]["roots"][0]["path"].as_str().expect("a path").to_owned();
    other.expect(&shown, &content).await;
    assert_eq!(send_piece(&other, &path, content.len(), "").await, (204, Some(content.len() as u64), shown));
    other.stop().await;
}

/// Wrong lines end the start with a sentence, and commands do not use the own disk of a gateway of a site.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_lines_end_the_start() {
    let (site, dir) = (Site::new().await, folder());
    site.gateway(dir.path()).start().await.stop().await;
    let store = format!("file://{}", site.storage.path().display());
    let serve = ["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--bootstrap", "none"];
    let table = [
        ("CAUSEWAY_SITE_NAME", "another".to_owned(), "is that of the site"),
        ("CAUSEWAY_SITE_STORE", format!("{store}/missing"), "site.store"),
        ("CAUSEWAY_SITE_STORE", "ftp://host/x".to_owned(), "site.store"),
        ("CAUSEWAY_SITE_DATABASE", "postgresql://u:hunter2@127.0.0.1:1/d".to_owned(), "site.database"),
    ];
    for (setting, value, words) in table {
        let other = folder();
        let printed = site.gateway(other.path()).set(setting, &value).run(&serve).expect_err("it does not start");
        assert!(printed.contains(words) && !printed.contains("hunter2"), "{setting} = {value}: {printed}");
    }
    let node = site.gateway(dir.path()).start().await;
    let pins = site.gateway(dir.path()).run(&["pin", "ls"]).expect("the running gateway answers");
    assert!(pins.contains("no pins"), "{pins}");
    node.stop().await;
    let refused = site.gateway(dir.path()).run(&["pin", "ls"]).expect_err("no gateway runs");
    assert!(refused.contains("one of the site"), "{refused}");
}
