//! The pin service: a real Kubo as the client of remote pins, a pin that resumes after a kill, and many
//! blocks.

use crate::support::causeway::{Causeway, Launch, TOKEN};
use crate::support::kubo::Kubo;
use crate::support::noise::Noise;
use crate::support::{assert_same_bytes, eventually};
use bytes::Bytes;
use content::{Block, Cid, car, codec, hashes};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(120);

fn folder() -> TempDir {
    TempDir::new().expect("the temporary folder is writable")
}

/// A pin service without peers, which may dial loopback addresses.
fn service(dir: &TempDir) -> Launch {
    Launch::new(dir.path()).set("CAUSEWAY_P2P_DIAL_PRIVATE", true)
}

async fn ask(causeway: &Causeway, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    causeway.admin(method, &format!("/psa/pins{path}"), body.map(|body| body.to_string()).as_deref()).await
}

/// Requests a pin, and returns its ID.
async fn add(causeway: &Causeway, pin: Value) -> String {
    let (status, pin) = ask(causeway, "POST", "", Some(pin)).await;
    assert_eq!(status, 202, "{pin}");
    pin["requestid"].as_str().expect("an id").to_owned()
}

/// Waits until a pin matches a condition.
async fn until(causeway: &Causeway, id: &str, what: &str, timeout: Duration, good: impl Fn(&Value) -> bool) -> Value {
    eventually(what, timeout, async || {
        let (status, pin) = ask(causeway, "GET", &format!("/{id}"), None).await;
        if status == 200 && good(&pin) { Ok(pin) } else { Err(format!("{status} {pin}")) }
    })
    .await
}

async fn pinned(causeway: &Causeway, id: &str, timeout: Duration) -> Value {
    until(causeway, id, "it is pinned", timeout, |pin| pin["status"] == "pinned").await
}

fn blocks(pin: &Value) -> u64 {
    pin["info"]["blocks"].as_str().and_then(|blocks| blocks.parse().ok()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubo_drives_remote_pins() {
    let dir = folder();
    let causeway = service(&dir).start().await;
    let kubo = Kubo::start().await;
    let content = Noise::bytes(77, 3_000_000);
    let cid = kubo.add(&content[..], &["--cid-version=1"]);
    let other = kubo.add(&b"another"[..], &["--cid-version=0"]);
    let endpoint = format!("{}/psa", causeway.admin_url());
    let ipfs = |arguments: &[&str]| kubo.run(&[&["pin", "remote"], arguments].concat());
    ipfs(&["service", "add", "causeway", &endpoint, TOKEN]);
    let services = ipfs(&["service", "ls", "--stat"]);
    assert!(services.contains(&endpoint), "{services}");
    // It waits until the content is pinned; the two nodes only find each other by origins and delegates.
    let added = ipfs(&["add", "--service=causeway", "--name=a name", &cid]);
    assert!(added.contains(&cid) && added.contains("pinned") && added.contains("a name"), "{added}");
    assert!(kubo.is_connected_to(causeway.peer_id()).await);
    ipfs(&["add", "--service=causeway", "--background", &other]);
    eventually("both are listed", TIMEOUT, async || {
        let listed = ipfs(&["ls", "--service=causeway"]);
        if listed.contains(&cid) && listed.contains(&other) { Ok(()) } else { Err(listed) }
    })
    .await;
    let by_name = ipfs(&["ls", "--service=causeway", "--name=a name"]);
    assert!(by_name.contains(&cid) && !by_name.contains(&other), "{by_name}");
    let by_cid =
        ipfs(&["ls", "--service=causeway", &format!("--cid={other}"), "--status=queued,pinning,pinned,failed"]);
    assert!(by_cid.contains(&other) && !by_cid.contains(&cid), "{by_cid}");
    let stat = ipfs(&["service", "ls", "--stat"]);
    // Queued, pinning, pinned (the two and the welcome page, which is the operator's), failed.
    assert!(stat.contains("0/0/3/0"), "{stat}");
    kubo.stop().await;
    assert_same_bytes("the pin", &causeway.get(&format!("/ipfs/{cid}")).await.body, &content);

    let kubo = Kubo::start().await;
    let ipfs = |arguments: &[&str]| kubo.run(&[&["pin", "remote"], arguments].concat());
    ipfs(&["service", "add", "causeway", &endpoint, TOKEN]);
    ipfs(&["rm", "--service=causeway", "--name=a name"]);
    let listed = ipfs(&["ls", "--service=causeway"]);
    assert!(!listed.contains(&cid) && listed.contains(&other), "{listed}");
    ipfs(&["service", "rm", "causeway"]);
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_is_fetched_when_its_origin_connects() {
    let dir = folder();
    // It may not dial the loopback addresses that Kubo has.
    let causeway = Launch::new(dir.path()).start().await;
    let kubo = Kubo::start().await;
    let cid = kubo.add(&Noise::bytes(9, 600_000)[..], &["--cid-version=1"]);
    let id = add(&causeway, json!({ "cid": cid, "origins": [kubo.tcp()] })).await;
    until(&causeway, &id, "the first attempt has failed", TIMEOUT, |pin| {
        pin["status"] == "queued" && pin["info"]["attempts"] == "1"
    })
    .await;
    let (_, all) = causeway.admin("GET", &format!("/api/v1/pins?cid={cid}"), None).await;
    let due = all["pins"][0]["next_attempt_at"].as_u64().expect("a time");
    // As Kubo does with the delegates of a request.
    kubo.connect(causeway.tcp()).await;
    pinned(&causeway, &id, TIMEOUT).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    assert!(now < due, "it waited for its back-off");
    kubo.stop().await;
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubo_reports_a_wrong_token() {
    let dir = folder();
    let causeway = service(&dir).start().await;
    let kubo = Kubo::start().await;
    let endpoint = format!("{}/psa", causeway.admin_url());
    kubo.run(&["pin", "remote", "service", "add", "causeway", &endpoint, "wrong"]);
    let refused = kubo.try_run(&["pin", "remote", "ls", "--service=causeway"]).expect_err("the token is wrong");
    assert!(refused.contains("UNAUTHORIZED"), "{refused}");
    causeway.stop().await;
}

/// A file of raw leaves under one dag-pb root, as (root, leaves).
fn tree(leaves: usize) -> (Block, Vec<Block>) {
    let leaf = |number: usize| raw(format!("{:0>4000}", number));
    let leaves: Vec<Block> = (0..leaves).map(leaf).collect();
    (parent(&leaves), leaves)
}

fn raw(text: String) -> Block {
    Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from(text)).expect("a block")
}

/// A list of links.
fn parent(children: &[Block]) -> Block {
    let links: Vec<_> = children.iter().map(|child| json!({ "/": child.cid().to_string() })).collect();
    let text = serde_json::to_string(&links).expect("links can be written");
    Block::of(codec::DAG_JSON, hashes::SHA2_256, 32, Bytes::from(text)).expect("a block")
}

fn archive(path: &Path, root: &Cid, blocks: impl Iterator<Item = Block>) {
    let mut file = BufWriter::new(File::create(path).expect("the folder is ours"));
    file.write_all(&car::header(&[*root])).expect("writes");
    for block in blocks {
        <[Bytes; 2]>::from(car::section(&block)).iter().for_each(|part| file.write_all(part).expect("writes"));
    }
    file.flush().expect("writes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_resumes_after_a_kill() {
    const LEAVES: usize = 2_000;
    let dir = folder();
    let (root, leaves) = tree(LEAVES);
    let kubo = Kubo::start().await;
    let (most, last) = (dir.path().join("most.car"), dir.path().join("last.car"));
    archive(&most, root.cid(), [root.clone()].into_iter().chain(leaves[..LEAVES - 1].iter().cloned()));
    archive(&last, leaves[LEAVES - 1].cid(), leaves[LEAVES - 1..].iter().cloned());
    kubo.import(&most);
    let launch = service(&dir).set("CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS", 5);
    let causeway = launch.start().await;
    let pin = json!({ "cid": root.cid().to_string(), "name": "half", "origins": [kubo.tcp()] });
    let id = add(&causeway, pin.clone()).await;
    // All blocks but one are stored, and that one is wanted.
    let before = until(&causeway, &id, "most blocks are stored", TIMEOUT, |pin| {
        pin["status"] == "pinning" && blocks(pin) >= LEAVES as u64 - 20
    })
    .await;
    // SIGKILL, like a power cut without the loss of the page cache.
    drop(causeway);
    let sent = kubo.sent().await.blocks;
    let causeway = launch.start().await;
    let (status, after) = ask(&causeway, "GET", &format!("/{id}"), None).await;
    assert_eq!((status, &after["pin"], &after["created"]), (200, &pin, &before["created"]));
    assert_ne!(after["status"], "pinned");
    assert!(blocks(&after) > LEAVES as u64 / 2, "received blocks are known: {after}");
    kubo.import(&last);
    let done = pinned(&causeway, &id, TIMEOUT).await;
    assert_eq!(blocks(&done), LEAVES as u64 + 1);
    let again = kubo.sent().await.blocks - sent;
    assert!(again < LEAVES as u64 / 4, "{again} blocks were sent after the restart");
    // Another kill loses nothing.
    drop(causeway);
    let causeway = launch.start().await;
    assert_eq!(ask(&causeway, "GET", &format!("/{id}"), None).await.1["status"], "pinned");
    kubo.stop().await;
    causeway.expect(&format!("/ipfs/{}?format=raw", leaves[LEAVES - 1].cid()), leaves[LEAVES - 1].data()).await;
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_pins_stay_removed_after_a_kill() {
    let dir = folder();
    let kubo = Kubo::start().await;
    let cid = kubo.add(&Noise::bytes(5, 600_000)[..], &["--cid-version=1"]);
    let launch = service(&dir);
    let causeway = launch.start().await;
    let id = add(&causeway, json!({ "cid": cid, "origins": [kubo.tcp()] })).await;
    pinned(&causeway, &id, TIMEOUT).await;
    assert_eq!(ask(&causeway, "DELETE", &format!("/{id}"), None).await.0, 202);
    drop(causeway);
    let causeway = launch.start().await;
    assert_eq!(ask(&causeway, "GET", &format!("/{id}"), None).await.0, 404);
    let (_, page) = ask(&causeway, "GET", &format!("?cid={cid}&status=queued,pinning,pinned,failed"), None).await;
    assert_eq!(page["count"], 0, "{page}");
    let store = causeway.admin("GET", "/api/v1/store/stats", None).await.1;
    assert!(!store.to_string().contains(&cid), "{store}");
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_are_provided_until_they_are_removed() {
    let dir = folder();
    let third = Kubo::start().await;
    let causeway = service(&dir).bootstrap(third.tcp()).start().await;
    let kubo = Kubo::start().await;
    kubo.connect(third.tcp()).await;
    let cid = kubo.add(&b"to be announced"[..], &["--cid-version=1"]);
    let id = add(&causeway, json!({ "cid": cid, "origins": [kubo.tcp()] })).await;
    pinned(&causeway, &id, TIMEOUT).await;
    eventually("the DHT names Causeway as a provider", TIMEOUT, async || {
        let found = kubo.find_providers(&cid).await;
        if found.iter().any(|peer| peer == causeway.peer_id()) { Ok(()) } else { Err(format!("providers: {found:?}")) }
    })
    .await;
    let metrics = causeway.metrics().await;
    assert_eq!(metrics.sample("causeway_pins_fetched_blocks_total"), 1);
    let (_, _, network) = metrics.tiers();
    assert_eq!(network, 1, "what pins fetch comes from the network tier");
    assert_eq!(metrics.sample("causeway_tier_bytes_total{tier=\"network\"}"), "to be announced".len() as u64);
    causeway.stop().await;
}

/// One node has a DAG of so many blocks, and another pins it and is killed meanwhile.
async fn many_blocks(leaves: usize, timeout: Duration) {
    const LINKS: usize = 1_000;
    let (home, away) = (folder(), folder());
    let path = home.path().join("many.car");
    let leaf = |number: usize| raw(format!("block {number}"));
    let list = |at: usize| parent(&(at * LINKS..((at + 1) * LINKS).min(leaves)).map(leaf).collect::<Vec<_>>());
    let lists: Vec<Block> = (0..leaves.div_ceil(LINKS)).map(list).collect();
    let root = parent(&lists);
    let total = (leaves + lists.len() + 1) as u64;
    let all = (0..leaves).map(leaf);
    archive(&path, root.cid(), [root.clone()].into_iter().chain(lists.iter().cloned()).chain(all));
    let holder = Launch::new(home.path());
    holder.import(&path);
    let holder = holder.start().await;
    let launch = service(&away);
    let causeway = launch.start().await;
    let begun = Instant::now();
    let id = add(&causeway, json!({ "cid": root.cid().to_string(), "origins": [holder.tcp()] })).await;
    until(&causeway, &id, "half of the blocks are stored", timeout, |pin| blocks(pin) >= total / 2).await;
    println!("half of {total} blocks after {:?}", begun.elapsed());
    let resident = causeway.process.resident_bytes() >> 20;
    drop(causeway);
    let begun = Instant::now();
    let causeway = launch.start().await;
    println!("started again in {:?}, after {resident} MiB", begun.elapsed());
    let done = pinned(&causeway, &id, timeout).await;
    println!("{total} blocks after another {:?}, in {} MiB", begun.elapsed(), causeway.process.resident_bytes() >> 20);
    assert_eq!(blocks(&done), total);
    let begun = Instant::now();
    assert_eq!(ask(&causeway, "DELETE", &format!("/{id}"), None).await.0, 202);
    println!("unpinned in {:?}", begun.elapsed());
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_blocks_are_pinned_across_a_kill() {
    many_blocks(20_000, TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes some minutes"]
async fn a_million_blocks_are_pinned_with_a_kill_in_between() {
    many_blocks(1_000_000, Duration::from_secs(3600)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures"]
async fn ten_thousand_pins_are_listed_in_less_than_50_ms_a_page() {
    let dir = folder();
    let causeway = service(&dir).set("CAUSEWAY_LOG_LEVEL", "warn").set("CAUSEWAY_P2P_OFFLINE", true).start().await;
    let welcome = causeway.welcome().trim_end_matches('/').rsplit('/').next().expect("a CID").to_owned();
    let begun = Instant::now();
    for number in 0..10_000 {
        let meta = json!({ "app": (number % 10).to_string() });
        add(&causeway, json!({ "cid": welcome, "name": format!("Some name {number}"), "meta": meta })).await;
    }
    println!("10,000 pins were asked for in {:?}", begun.elapsed());
    let client = crate::support::client();
    for query in [
        "",
        "?limit=1000",
        "?limit=1000&status=queued,pinning,pinned,failed",
        "?name=NAME%2099&match=ipartial&limit=1000",
        "?meta=%7B%22app%22%3A%223%22%7D&limit=1000",
        "?before=2100-01-01T00:00:00Z&after=2020-01-01T00:00:00Z",
    ] {
        let url = format!("{}/psa/pins{query}", causeway.admin_url());
        let mut times = Vec::new();
        for _ in 0..21 {
            let begun = Instant::now();
            let answer = client.get(&url).bearer_auth(TOKEN).send().await.expect("answers");
            answer.bytes().await.expect("a page");
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        println!("{query:?}: {:?}, at most {:?}", times[10], times[20]);
        assert!(times[10] < Duration::from_millis(50), "{query}: {:?}", times[10]);
    }
    causeway.stop().await;
}
