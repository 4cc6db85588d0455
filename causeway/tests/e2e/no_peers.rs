//! A gateway without peers reports that in the log, on error pages, and to the operator's commands.

use crate::support::causeway::Launch;
use crate::support::eventually;
use serde_json::Value;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Content that no peer has.
const ABSENT: &str = "/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy";

#[tokio::test(flavor = "multi_thread")]
async fn missing_peers_are_reported() {
    let home = TempDir::new().expect("the temporary folder is writable");
    let launch = Launch::new(home.path());
    let node = launch.start().await;
    let begun = Instant::now();
    let answer = node.get(ABSENT).await;
    assert_eq!(answer.status, 504, "{}", answer.text());
    assert!(answer.text().contains("no peers"), "{}", answer.text());
    // A continued search takes half a minute.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    eventually("the log says it", TIMEOUT, async || {
        let printed = node.process.stderr();
        if printed.contains("no peers") && printed.contains("p2p.bootstrap") { Ok(()) } else { Err(printed) }
    })
    .await;
    for command in ["health", "node"] {
        let printed = launch.run(&[command]).expect("it runs");
        assert!(
            printed.to_lowercase().contains("this node has no peers") && printed.contains("p2p.bootstrap"),
            "{command}: {printed}"
        );
        let printed = launch.run(&[command, "--json"]).expect("it runs");
        let view: Value = serde_json::from_str(&printed).expect("JSON");
        assert!(view["peers"] == 0 && view["advice"].is_string(), "{command}: {view}");
    }

    // With a peer, the report is gone.
    let other_home = TempDir::new().expect("the temporary folder is writable");
    let other = Launch::new(other_home.path()).start().await;
    launch.run(&["peers", "connect", other.tcp()]).expect("it listens");
    let printed = launch.run(&["health"]).expect("it runs");
    assert!(printed.starts_with("ready") && !printed.contains("no peers"), "{printed}");
    other.stop().await;
    node.stop().await;
}
