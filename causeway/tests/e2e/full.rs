//! A node with a full disk: the data folder is a small tmpfs in the node's own mount namespace, and another file
//! takes the rest of its space.

use crate::support::causeway::{Causeway, Launch};
use crate::support::noise::Noise;
use crate::support::{client, eventually, get as get_url};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);
const SMALL_BYTES: u64 = 64 << 20;

/// Content that only another node has.
struct Holder {
    dir: TempDir,
    files: Vec<(String, Vec<u8>)>,
}

impl Holder {
    fn new(files: u64) -> Self {
        let dir = TempDir::new().expect("the temporary folder is writable");
        let launch = Launch::new(dir.path());
        let file = |seed: u64| {
            let (content, path) = (Noise::bytes(700 + seed, 1_500_000), dir.path().join("file"));
            fs::write(&path, &content).expect("the folder is ours");
            let cid = launch.run(&["add", "-Q", &path.display().to_string()]).expect("is added");
            (format!("/ipfs/{cid}"), content)
        };
        let files = (0..files).map(file).collect();
        Self { dir, files }
    }
}

/// Writes to a file until the disk is full.
fn fill(path: &Path) {
    let mut file = File::create(path).expect("the folder is there");
    for piece in [1 << 20, 4096, 1] {
        while file.write_all(&vec![1; piece]).is_ok() {}
    }
}

/// Asserts that the node runs and serves, and that both listeners report it as degraded, with the reason.
async fn assert_is_degraded(node: &Causeway, reason: &str) {
    for base in [node.url(""), node.admin_url().trim_end_matches('/').to_owned()] {
        assert_eq!(get_url(&format!("{base}/healthz")).await.status, 200);
        let ready = get_url(&format!("{base}/readyz")).await;
        assert_eq!(ready.status, 503, "{}", ready.text());
        assert!(ready.text().starts_with("degraded\nstore: the disk is full"), "{}", ready.text());
        let json = client().get(format!("{base}/readyz")).header("accept", "application/json");
        let json = json.send().await.expect("answers").text().await.expect("a body");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["degraded"][0]["reason"], reason, "{json}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_starts_with_less_free_space_than_the_minimum() {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let launch = Launch::new(dir.path()).in_small_file_system(SMALL_BYTES);
    if !launch.small_file_systems_can_be_mounted() {
        return;
    }
    // One gigabyte has to stay free, but the disk has 64 megabytes.
    let node = launch.start().await;
    assert_eq!(node.welcome(), "not pinned");
    assert_is_degraded(&node, "full").await;
    assert_eq!(node.get("/").await.status, 200);
    node.stop().await;
}

async fn is_degraded(node: &Causeway) -> bool {
    node.metrics().await.sample("causeway_disk_degraded") == 1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_degrades_the_node_until_there_is_space() {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let launch = Launch::new(dir.path()).in_small_file_system(SMALL_BYTES);
    if !launch.small_file_systems_can_be_mounted() {
        let printed = "WARNING: skipped the test of a full disk: this system does not allow unshare --mount";
        writeln!(std::io::stderr(), "{printed}").expect("standard error is writable");
        return;
    }
    let holder = Holder::new(40);
    let upstream = Launch::new(holder.dir.path()).start().await;
    let node = launch
        .set("CAUSEWAY_P2P_GATEWAYS", upstream.url(""))
        .set("CAUSEWAY_CACHE_DISK_FREE_BYTES_MIN", 0)
        .set("CAUSEWAY_CACHE_RAM_BYTES_MAX", 1 << 20)
        .start()
        .await;
    let get = async |number: usize| {
        let (path, content) = &holder.files[number];
        node.expect(path, content).await;
    };
    get(0).await;
    assert!(!is_degraded(&node).await);

    // The node's own view of its folder.
    let ballast = PathBuf::from(format!("/proc/{}/root", node.process.id()))
        .join(dir.path().strip_prefix("/").expect("it is absolute"))
        .join("data/ballast");
    let mut fetched = 1;
    let mut dropped = 0;
    // Eviction of cached blocks frees space for a while.
    while !is_degraded(&node).await || dropped == 0 {
        assert!(fetched < 35, "a full disk refuses something");
        fill(&ballast);
        get(fetched).await;
        fetched += 1;
        dropped = node.metrics().await.sample("causeway_disk_dropped_writes_total");
    }
    assert_is_degraded(&node, "full").await;
    assert!(node.metrics().await.sample("causeway_disk_write_errors_total") > 0);
    let printed = node.process.stdout() + &node.process.stderr();
    assert!(printed.contains("writes to the disk fail"), "{printed}");
    get(0).await;

    fs::remove_file(&ballast).expect("deletes");
    // Load balancers send no traffic meanwhile, so that the store is idle.
    eventually("the node is ready again by itself", TIMEOUT, async || {
        let ready = get_url(&node.url("/readyz")).await;
        if ready.status == 200 { Ok(()) } else { Err(ready.text()) }
    })
    .await;
    node.assert_healthy().await;
    eventually("the node stores again", TIMEOUT, async || {
        get(fetched).await;
        // Blocks in memory or on the disk are not written again, so each request is for another file.
        fetched = if fetched + 1 < holder.files.len() { fetched + 1 } else { 1 };
        if is_degraded(&node).await { Err("is degraded") } else { Ok(()) }
    })
    .await;
    let printed = node.process.stdout() + &node.process.stderr();
    assert!(printed.contains("writes to the disk succeed again"), "{printed}");
    get(0).await;
    node.stop().await;
    upstream.stop().await;
}
