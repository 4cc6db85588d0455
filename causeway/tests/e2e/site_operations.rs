//! What an operator does with a site, by the commands.

use crate::site::{Site, folder, until_pinned, upload};
use crate::support::causeway::Launch;
use crate::support::eventually;
use crate::support::noise::Noise;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

/// The objects of blocks in a shared folder.
fn objects(storage: &Path) -> Vec<PathBuf> {
    let slots = fs::read_dir(storage.join("v1/blocks")).expect("the folder of blocks");
    let files = slots.flat_map(|slot| fs::read_dir(slot.expect("a slot").path()).expect("its objects"));
    files.map(|file| file.expect("an object").path()).collect()
}

/// `causeway site reconcile` finds objects that no row knows and rows without an object, and mends both.
#[tokio::test(flavor = "multi_thread")]
async fn the_storage_is_compared_with_the_database() {
    let (site, dirs) = (Site::new().await, [folder(), folder()]);
    let (one, other) = (site.gateway(dirs[0].path()).start().await, site.gateway(dirs[1].path()).start().await);
    let content = Noise::bytes(61, 2_000_000);
    let (cid, pin) = upload(&one, &content).await.expect("is stored");
    // So that both have it on their own disks, and either can mend the pin.
    other.expect(&format!("/ipfs/{cid}"), &content).await;
    let stored = objects(site.storage.path());
    assert!(stored.len() > 4, "{stored:?}");
    // One is lost, and one was left behind: it has the name of an object, and the index does not know it.
    let orphan = stored[1].with_extension("00000000000000aa");
    fs::copy(&stored[1], &orphan).expect("is copied");
    fs::remove_file(&stored[0]).expect("is lost");
    let launch = site.gateway(dirs[1].path());
    let run = |arguments: &[&str]| launch.run(&[&["site", "reconcile"], arguments].concat()).expect("it ends");
    let planned = run(&["--dry-run"]);
    assert!(planned.contains("would delete: 1 object that") && planned.contains("would fetch again: 1 block whose"));
    assert!(orphan.exists(), "nothing was changed");
    let done: Value = serde_json::from_str(&run(&["--json"])).expect("JSON");
    let expected = json!({ "dry_run": false, "parts": 256, "objects": stored.len(), "orphans": 1, "foreign": 0,
        "lost_blocks": 1 });
    assert_eq!(done, expected);
    assert!(!orphan.exists());
    // The pin service of either stores it again.
    eventually("all blocks have objects again", TIMEOUT, async || {
        let now = objects(site.storage.path()).len();
        if now == stored.len() { Ok(()) } else { Err(now) }
    })
    .await;
    until_pinned(&other, &pin).await;
    other.expect(&format!("/ipfs/{cid}"), &content).await;
    let (_, entries) = other.admin("GET", "/api/v1/audit?limit=10", None).await;
    assert!(entries.to_string().contains("/api/v1/site/reconcile"), "{entries}");
    for node in [one, other] {
        node.stop().await;
    }
    // A gateway that is alone says so.
    let alone_dir = folder();
    let alone = Launch::new(alone_dir.path());
    let node = alone.start().await;
    let refused = alone.run(&["site", "reconcile"]).expect_err("it has no site");
    assert!(refused.contains("does not belong to a site"), "{refused}");
    node.stop().await;
}
