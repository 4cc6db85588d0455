//! The operator's commands with a running gateway: block, purge, warm, explain, and operating it.

use crate::support::causeway::{Causeway, Launch};
use crate::support::eventually;
use crate::support::noise::Noise;
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);
const FAILURE: i32 = 1;
const UNREACHABLE: i32 = 3;

fn folder() -> TempDir {
    TempDir::new().expect("the temporary folder is writable")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

fn run(launch: &Launch, arguments: &[&str]) -> String {
    launch.run(arguments).unwrap_or_else(|error_line| panic!("causeway {arguments:?}: {error_line}"))
}

fn json(launch: &Launch, arguments: &[&str]) -> Value {
    let printed = run(launch, &[arguments, &["--json"]].concat());
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("causeway {arguments:?}: {error}: {printed}"))
}

/// The exit code, the output and the error line of a failing command.
fn failure(launch: &Launch, arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = launch.output(arguments, b"");
    let error_output = text(&stderr);
    assert_eq!(error_output.lines().count(), 1, "causeway {arguments:?}: {error_output}");
    (status.code().expect("it was not killed"), text(&stdout), error_output)
}

async fn status(node: &Causeway, path: &str) -> u16 {
    node.get(path).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_content_is_deleted_and_can_be_unblocked() {
    let home = folder();
    let launch = Launch::new(home.path());
    fs::create_dir_all(home.path().join("site")).expect("the folder is ours");
    fs::write(home.path().join("site/a.txt"), "blocked").expect("the folder is ours");
    fs::write(home.path().join("site/b.txt"), "served").expect("the folder is ours");
    let node = launch.start().await;
    let root = run(&launch, &["add", "-Q", "--cid-version=1", "site"]);
    let (a, b) = (format!("/ipfs/{root}/a.txt"), format!("/ipfs/{root}/b.txt"));
    assert_eq!((status(&node, &a).await, status(&node, &b).await), (200, 200));
    assert!(run(&launch, &["block", "check", &a]).ends_with("is served: 200"));

    // A path, given as a URL, blocked for legal reasons; its rule in the lists.
    let address = format!("https://{root}.ipfs.gateway.example.org/a.txt");
    let added = json(&launch, &["block", "add", "--status", "451", "--reason", "court order", &address]);
    assert_eq!(added["added"], true, "{added}");
    assert_eq!((status(&node, &a).await, status(&node, &b).await), (451, 200));
    let (code, printed, error_output) = failure(&launch, &["block", "check", &format!("{root}/a.txt")]);
    assert!(code == FAILURE && printed.contains("is blocked: 451") && printed.contains("local"), "{code} {printed}");
    assert!(error_output.contains("is blocked"), "{error_output}");
    let output = launch.output(&["block", "check", "--json", &a], b"");
    let check: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&check["blocked"], &check["status"]), (&true.into(), &451.into()), "{check}");
    let rules = json(&launch, &["block", "ls", "--rules"]);
    let rule = &rules["rules"][0];
    assert!(rule["status"] == 451 && rule["reason"] == "court order" && rules["next"].is_null(), "{rules}");
    // A rule matches a multihash, so the root is written with the raw codec.
    let listed = run(&launch, &["block", "ls", "--rules"]);
    assert!(listed.contains("/a.txt") && listed.contains("reason=court%20order"), "{listed}");
    assert!(run(&launch, &["block", "ls"]).starts_with("LIST "));
    let lists = json(&launch, &["block", "reload"]);
    assert!(lists["lists"].as_array().is_some_and(|lists| lists.iter().any(|list| list["kind"] == "local")), "{lists}");
    assert_eq!(json(&launch, &["block", "rm", &address])["removed"], 1);
    assert_eq!(status(&node, &b).await, 200);
    let (code, _, error_output) = failure(&launch, &["block", "rm", &address]);
    assert!(code == FAILURE && error_output.contains("no such rule"), "{error_output}");

    // Blocking a CID with --deep also removes its pins.
    let printed = run(&launch, &["block", "add", "--deep", &root]);
    assert!(printed.contains("in force") && printed.contains(&format!("unpinned {root}")), "{printed}");
    assert_eq!((status(&node, &b).await, status(&node, &format!("/ipfs/{root}")).await), (410, 410));
    // The owner of the pin sees the reason.
    let (code, printed, error_output) = failure(&launch, &["pin", "status", &root]);
    assert!(
        code == FAILURE && printed.contains("failed") && error_output.contains("withholds"),
        "{printed} {error_output}"
    );
    for wrong in [&["block", "add", "no such thing"][..], &["block", "add", "--status", "404", &root]] {
        assert_eq!(failure(&launch, wrong).0, FAILURE, "{wrong:?}");
    }
    node.stop().await;
    assert_eq!(failure(&launch, &["block", "ls"]).0, UNREACHABLE);
}
#[tokio::test(flavor = "multi_thread")]
async fn content_is_warmed_explained_purged_and_collected() {
    let (one, other) = (folder(), folder());
    let (from, to) = (Launch::new(one.path()), Launch::new(other.path()));
    fs::create_dir_all(one.path().join("site")).expect("the folder is ours");
    fs::write(one.path().join("site/big"), Noise::bytes(51, 3_000_000)).expect("the folder is ours");
    fs::write(one.path().join("site/index.html"), "<p>Warm.").expect("the folder is ours");
    let holder = from.start().await;
    let root = run(&from, &["add", "-Q", "--cid-version=1", "site"]);
    fs::write(other.path().join("names.map"), format!("site.example.org:/ipfs/{root}\n")).expect("the folder is ours");
    let map = other.path().join("names.map");
    let node = to.clone().flag("--dnslink-map", map.display()).start().await;

    // Peers.
    assert_eq!(json(&to, &["peers"])["count"], 0);
    let connected = json(&to, &["peers", "connect", holder.tcp()]);
    assert_eq!(connected["peer_id"], holder.peer_id(), "{connected}");
    let peers = json(&to, &["peers"]);
    assert_eq!((&peers["count"], &peers["peers"][0]["peer_id"]), (&1.into(), &holder.peer_id().into()), "{peers}");
    assert!(run(&to, &["peers"]).contains(holder.peer_id()));
    let (code, _, error_output) = failure(&to, &["peers", "connect", "nonsense"]);
    assert!(code == FAILURE && error_output.contains("neither a peer ID"), "{error_output}");

    // Before and after warming the content.
    let before = json(&to, &["explain", &root]);
    assert_eq!(before["missing"], root.as_str(), "{before}");
    let shallow = json(&to, &["warm", "--depth", "0", &root]);
    assert_eq!((&shallow["blocks"], &shallow["complete"]), (&1.into(), &true.into()), "{shallow}");
    let warmed = json(&to, &["warm", "/ipns/site.example.org"]);
    assert!(warmed["complete"] == true && warmed["fetched_bytes"].as_u64() > Some(3_000_000), "{warmed}");
    assert!(run(&to, &["warm", &root]).contains("0 of them fetched"));
    let after = json(&to, &["explain", &format!("{root}/index.html")]);
    assert_eq!((&after["answer"]["status"], &after["missing"]), (&200.into(), &Value::Null), "{after}");
    let printed = run(&to, &["explain", &format!("{root}/index.html")]);
    assert!(printed.contains("answer     200") && printed.contains("policy"), "{printed}");
    let refreshed = json(&to, &["refresh", "site.example.org"]);
    assert_eq!(refreshed["new"], format!("/ipfs/{root}"), "{refreshed}");
    assert!(json(&to, &["peers", "traffic"])["received_bytes"].as_u64() > Some(3_000_000));

    // Purging and garbage collection.
    let purged = json(&to, &["purge", &format!("{root}/big")]);
    assert!(purged["disk_blocks"].as_u64() > Some(10), "{purged}");
    assert!(run(&to, &["purge", "--name", "site.example.org"]).contains("blocks from the disk"));
    run(&to, &["warm", &root]);
    assert!(run(&to, &["purge", "--dry-run", &root]).contains("would remove"));
    assert!(run(&to, &["gc", "--dry-run"]).contains("would delete"));
    let collected = json(&to, &["gc"]);
    assert!(collected["bytes"].as_u64() > Some(3_000_000) && collected["cached_bytes"] == 0, "{collected}");
    assert!(run(&to, &["gc", "--keep", "1GiB"]).starts_with("deleted 0 cached blocks"));
    assert_eq!(json(&to, &["peers", "disconnect", holder.peer_id()])["peer_id"], holder.peer_id());
    for wrong in [&["purge", "no cid"][..], &["warm", "/x/y"], &["explain", "ftp://x"], &["refresh", "a b"]] {
        assert_eq!(failure(&to, wrong).0, FAILURE, "{wrong:?}");
    }
    holder.stop().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_gateway_is_observed_and_operated() {
    let home = folder();
    let launch = Launch::new(home.path());
    assert_eq!(failure(&launch, &["health"]).0, UNREACHABLE);
    let node = launch.start().await;
    assert!(run(&launch, &["health"]).starts_with("ready"));
    let own = json(&launch, &["node"]);
    assert_eq!((&own["peer_id"], &own["stage"]), (&node.peer_id().into(), &"serving".into()), "{own}");
    assert!(run(&launch, &["node"]).contains(node.peer_id()));
    node.get("/").await;
    let stats = json(&launch, &["stats"]);
    assert_eq!(stats["stage"], "serving", "{stats}");
    assert!(run(&launch, &["stats"]).contains("in memory"));
    assert!(json(&launch, &["requests"])["count"].is_u64());
    run(&launch, &["requests"]);

    // Statistics every second, until the reader stops.
    let mut watching = launch.spawn(&["stats", "--watch", "--json"], Stdio::piped());
    let mut lines = BufReader::new(watching.stdout.take().expect("is piped")).lines();
    for _ in 0..2 {
        let line = lines.next().expect("goes on").expect("text");
        let second: Value = serde_json::from_str(&line).expect("JSON");
        assert!(second["uptime_seconds"].as_f64().is_some_and(|uptime| uptime > 0.0), "{second}");
    }
    watching.kill().expect("it runs");
    watching.wait().expect("it ends");

    // The log, the settings and the audit log.
    let level = json(&launch, &["log-level"]);
    assert_eq!((&level["level"], &level["until_at"]), (&level["configured"], &Value::Null), "{level}");
    let level = json(&launch, &["log-level", "info,access=debug", "--for", "1h"]);
    assert!(level["level"].as_str().is_some_and(|level| level.contains("access=debug")), "{level}");
    assert!(level["until_at"].is_u64(), "{level}");
    node.get("/").await;
    eventually("the access log is written", TIMEOUT, async || {
        let printed = node.process.stderr();
        if printed.contains("access") { Ok(()) } else { Err(printed) }
    })
    .await;
    assert!(run(&launch, &["log-level", "info"]).starts_with("info"));
    let settings = json(&launch, &["config", "running"]);
    assert!(!settings.to_string().contains(crate::support::causeway::TOKEN), "{settings}");
    assert!(run(&launch, &["config", "running"]).contains("http.listen"));
    let audit = json(&launch, &["audit", "--limit", "10"]);
    let paths: Vec<_> = audit["entries"].as_array().expect("a list").iter().map(|entry| &entry["path"]).collect();
    assert!(paths.contains(&&"/api/v1/log/level".into()), "{audit}");
    assert!(run(&launch, &["audit"]).contains("PUT /api/v1/log/level {\"level\":\"info\"}"));

    // Drain; undo; graceful shutdown.
    assert_eq!(json(&launch, &["drain"])["stage"], "draining");
    let (code, printed, _) = failure(&launch, &["health"]);
    assert_eq!((code, printed.split(' ').next()), (FAILURE, Some("draining")), "{printed}");
    assert_eq!(run(&launch, &["drain", "--undo"]), "serving");
    assert!(run(&launch, &["health"]).starts_with("ready"));
    assert_eq!(json(&launch, &["drain", "--stop"])["stopping"], true);
    eventually("it ends", TIMEOUT, async || {
        let (code, _, error_output) = failure(&launch, &["health"]);
        if code == UNREACHABLE { Ok(()) } else { Err(error_output) }
    })
    .await;
}
