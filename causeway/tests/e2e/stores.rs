//! The flat store and the memory store. Causeway on both sides.

use crate::support::causeway::{Causeway, Launch};
use crate::support::metrics::Metrics;
use crate::support::noise::Noise;
use crate::support::{assert_same_bytes, client};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const STORE: &str = "CAUSEWAY_CACHE_STORE";
/// So small that a file of noise is not cached in memory.
const RAM: (&str, u64) = ("CAUSEWAY_CACHE_RAM_BYTES_MAX", 1 << 20);

fn folder() -> TempDir {
    TempDir::new().expect("the temporary folder is writable")
}

/// An incompressible file, and a compressible one.
fn fill(dir: &Path) -> (Vec<u8>, Vec<u8>) {
    let (noise, text) = (Noise::bytes(7, 3_000_000), b"a line of many\n".repeat(100_000));
    fs::create_dir(dir.join("site")).expect("the folder is ours");
    fs::write(dir.join("site/noise"), &noise).expect("the folder is ours");
    fs::write(dir.join("site/text.txt"), &text).expect("the folder is ours");
    (noise, text)
}

fn run(launch: &Launch, dir: &Path, arguments: &[&str]) -> String {
    let done = launch.pipe(dir, arguments, b"");
    let done = done.unwrap_or_else(|error_line| panic!("causeway {arguments:?}: {error_line}"));
    String::from_utf8(done).expect("text").trim().to_owned()
}

async fn during(node: &Causeway, path: &str, expected: &[u8]) -> Metrics {
    let before = node.metrics().await;
    node.expect(path, expected).await;
    node.metrics().await.since(&before)
}

/// Fetches a file with the content encoding of its stored blocks.
async fn expect_encoded(node: &Causeway, path: &str, expected: &[u8]) {
    let request = client().get(node.url(path)).header("accept-encoding", "zstd");
    let response = request.send().await.expect("is answered");
    assert_eq!(response.headers().get("content-encoding").map(|value| value.as_bytes()), Some(&b"zstd"[..]));
    let body = response.bytes().await.expect("a whole body");
    assert!(body.len() < expected.len() / 2);
    let dir = folder();
    fs::write(dir.path().join("body.zst"), &body).expect("writes");
    let decoded = std::process::Command::new("zstd").args(["-dc", "body.zst"]).current_dir(dir.path()).output();
    assert_same_bytes(path, &decoded.expect("zstd is installed").stdout, expected);
}

fn block_files(data: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(data.join("flat/blocks")).expect("there is a store");
    let files = folders.flat_map(|folder| fs::read_dir(folder.expect("lists").path()).expect("lists"));
    files.map(|file| file.expect("lists").path()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_flat_store_serves_and_persists() {
    let home = folder();
    let dir = home.path();
    let (noise, text) = fill(dir);
    let launch = Launch::new(dir).set(STORE, "flat").set(RAM.0, RAM.1).set("CAUSEWAY_CACHE_DISK_BYTES_MAX", 1 << 20);
    let site = run(&launch, dir, &["add", "-Q", "--cid-version=1", "--name", "mine", "site"]);
    assert!(run(&launch, dir, &["ls", &site]).contains("3000000 noise"));
    run(&launch, dir, &["get", &format!("{site}/noise"), "-o", "back"]);
    assert_same_bytes("get", &fs::read(dir.join("back")).expect("reads"), &noise);
    assert!(dir.join("data/flat/schema").exists() && !dir.join("data/store").exists());

    let node = launch.start().await;
    for _ in 0..2 {
        let done = during(&node, &format!("/ipfs/{site}/noise"), &noise).await;
        assert!(done.hits("disk") >= 8 && done.hits("network") == 0, "{:?}", done.tiers());
    }
    expect_encoded(&node, &format!("/ipfs/{site}/text.txt"), &text).await;
    assert!(run(&launch, dir, &["ls", &site]).contains("3000000 noise"), "over the admin API");
    assert!(run(&launch, dir, &["store", "check"]).contains("0 damaged"));
    // SIGKILL, like a power cut.
    drop(node);

    let stats: Value = serde_json::from_str(&run(&launch, dir, &["store", "stats", "--json"])).expect("JSON");
    assert_eq!((&stats["pins"], &stats["partial_pins"]), (&Value::from(2), &Value::from(0)), "{stats}");
    assert!(!run(&launch, dir, &["store", "stats"]).contains("segments"));
    assert!(run(&launch, dir, &["store", "check"]).contains("0 damaged"));
    run(&launch, dir, &["store", "compact"]);
    run(&launch, dir, &["store", "export", &site, "site.car"]);

    // Damaged blocks are reported and deleted, and an import restores them.
    let leaf = &noise[..64];
    let hit = block_files(&dir.join("data")).into_iter().find(|path| {
        let mut bytes = fs::read(path).expect("reads");
        let Some(at) = bytes.windows(64).position(|window| window == leaf) else { return false };
        bytes[at + 1_000] ^= 1;
        fs::write(path, bytes).is_ok()
    });
    assert!(hit.is_some(), "the leaf is in its own file");
    let output = launch.output(&["store", "check"], &[]);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && printed.starts_with("damaged "), "{printed}");
    assert!(printed.contains("(\"mine\") lacks 1 of "), "{printed}");
    assert!(run(&launch, dir, &["store", "repair"]).contains("deleted damaged blocks"));
    run(&launch, dir, &["store", "import", "site.car"]);
    assert!(run(&launch, dir, &["store", "check"]).contains("0 damaged"));
    let node = launch.start().await;
    node.expect(&format!("/ipfs/{site}/noise"), &noise).await;
    node.stop().await;

    // Another kind of store begins empty, and reports the existing one.
    let other = Launch::new(dir);
    let node = other.start().await;
    assert!(node.process.stderr().contains("there is a store of another kind"), "{}", node.process.stderr());
    node.stop().await;
    assert!(other.run(&["ls", &site]).expect_err("another store").contains("is not stored locally"));
    assert!(run(&launch, dir, &["ls", &site]).contains("noise"), "the former store is intact");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_store_serves_and_writes_no_files() {
    let (source, home) = (folder(), folder());
    let (noise, text) = fill(source.path());
    let origin = Launch::new(source.path());
    let site = run(&origin, source.path(), &["add", "-Q", "--cid-version=1", "site"]);
    let origin = origin.start().await;

    let launch = Launch::new(home.path()).set(STORE, "memory").set(RAM.0, RAM.1).peering(origin.tcp());
    let node = launch.start().await;
    let cold = during(&node, &format!("/ipfs/{site}/noise"), &noise).await;
    assert!(cold.hits("network") >= 8, "{:?}", cold.tiers());
    node.expect(&format!("/ipfs/{site}/text.txt"), &text).await;
    let warm = during(&node, &format!("/ipfs/{site}/noise"), &noise).await;
    assert!(warm.hits("disk") >= 4 && warm.hits("network") == 0, "the store had it: {:?}", warm.tiers());
    assert!(run(&launch, home.path(), &["ls", &site]).contains("3000000 noise"), "over the admin API");
    let added = run(&launch, source.path(), &["add", "-Q", "site/text.txt"]);
    assert_same_bytes("get", &launch.pipe(home.path(), &["get", &added, "-o", "-"], b"").expect("is read"), &text);
    expect_encoded(&node, &format!("/ipfs/{site}/text.txt"), &text).await;
    node.assert_healthy().await;
    node.stop().await;
    assert!(!home.path().join("data/store").exists() && !home.path().join("data/flat").exists());
    for arguments in [&["ls", &site][..], &["store", "stats"], &["add", "site"], &["store", "repair"]] {
        let error_line = launch.pipe(source.path(), arguments, b"").expect_err("there is nothing to work on");
        assert!(error_line.contains("in the running gateway only"), "{arguments:?}: {error_line}");
    }
    let node = launch.start().await;
    let again = during(&node, &format!("/ipfs/{site}/noise"), &noise).await;
    assert!(again.hits("network") >= 8, "it began empty: {:?}", again.tiers());
    node.stop().await;
    origin.stop().await;
}
