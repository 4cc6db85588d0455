//! The operator's commands with a gateway that runs: what is blocked, purged, warmed and explained, and how it goes on.

use crate::support::causeway::{Causeway, Launch};
use serde_json::Value;
use std::fs;
use std::process::Output;
use tempfile::TempDir;

const FAILURE: i32 = 1;
const UNREACHABLE: i32 = 3;

fn folder() -> TempDir {
    TempDir::new().expect("the temporary folder is writable")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

fn run(launch: &Launch, arguments: &[&str]) -> String {
    launch.run(arguments).unwrap_or_else(|complaint| panic!("causeway {arguments:?}: {complaint}"))
}

fn json(launch: &Launch, arguments: &[&str]) -> Value {
    let said = run(launch, &[arguments, &["--json"]].concat());
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("causeway {arguments:?}: {error}: {said}"))
}

/// What a command that fails printed, what it complained of in one line, and what it exited with.
fn failure(launch: &Launch, arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = launch.output(arguments, b"");
    let complained = text(&stderr);
    assert_eq!(complained.lines().count(), 1, "causeway {arguments:?}: {complained}");
    (status.code().expect("it was not killed"), text(&stdout), complained)
}

async fn status(node: &Causeway, path: &str) -> u16 {
    node.get(path).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_blocked_is_gone_and_can_be_let_out_again() {
    let home = folder();
    let launch = Launch::new(home.path());
    fs::create_dir_all(home.path().join("site")).expect("the folder is ours");
    fs::write(home.path().join("site/a.txt"), "blocked").expect("the folder is ours");
    fs::write(home.path().join("site/b.txt"), "served").expect("the folder is ours");
    let node = launch.start().await;
    let root = run(&launch, &["add", "-Q", "--cid-version=1", "site"]);
    let (a, b) = (format!("/ipfs/{root}/a.txt"), format!("/ipfs/{root}/b.txt"));
    assert_eq!((status(&node, &a).await, status(&node, &b).await), (200, 200));
    assert!(run(&launch, &["block", "check", &a]).ends_with("is served"));

    // A path, as an address, for legal reasons; its rule, and where it is found again.
    let address = format!("https://{root}.ipfs.gateway.example.org/a.txt");
    let added = json(&launch, &["block", "add", "--status", "451", "--reason", "court order", &address]);
    assert_eq!(added["added"], true, "{added}");
    assert_eq!((status(&node, &a).await, status(&node, &b).await), (451, 200));
    let (code, said, complained) = failure(&launch, &["block", "check", &format!("{root}/a.txt")]);
    assert!(code == FAILURE && said.contains("is blocked: 451") && said.contains("local"), "{code} {said}");
    assert!(complained.contains("is blocked"), "{complained}");
    let output = launch.output(&["block", "check", "--json", &a], b"");
    let check: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&check["blocked"], &check["status"]), (&true.into(), &451.into()), "{check}");
    let rules = json(&launch, &["block", "ls", "--rules"]);
    let rule = &rules["rules"][0];
    assert!(rule["status"] == 451 && rule["reason"] == "court order" && rules["next"].is_null(), "{rules}");
    // A rule is about a hash, so the root is written with the codec of raw blocks.
    let listed = run(&launch, &["block", "ls", "--rules"]);
    assert!(listed.contains("/a.txt") && listed.contains("reason=court%20order"), "{listed}");
    assert!(run(&launch, &["block", "ls"]).starts_with("LIST "));
    let lists = json(&launch, &["block", "reload"]);
    assert!(lists["lists"].as_array().is_some_and(|lists| lists.iter().any(|list| list["kind"] == "local")), "{lists}");
    assert_eq!(json(&launch, &["block", "rm", &address])["removed"], 1);
    assert_eq!(status(&node, &b).await, 200);
    let (code, _, complained) = failure(&launch, &["block", "rm", &address]);
    assert!(code == FAILURE && complained.contains("no such rule"), "{complained}");

    // A CID takes everything with it, pins included.
    let said = run(&launch, &["block", "add", "--deep", &root]);
    assert!(said.contains("in force") && said.contains(&format!("unpinned {root}")), "{said}");
    assert_eq!((status(&node, &b).await, status(&node, &format!("/ipfs/{root}")).await), (410, 410));
    for wrong in [&["block", "add", "no such thing"][..], &["block", "add", "--status", "404", &root]] {
        assert_eq!(failure(&launch, wrong).0, FAILURE, "{wrong:?}");
    }
    node.stop().await;
    assert_eq!(failure(&launch, &["block", "ls"]).0, UNREACHABLE);
}
