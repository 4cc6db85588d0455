//! What an operator does with a site, by the commands.

use crate::engines::support::{Postgres, program};
use crate::site::{
    NAME, Site, create_token, folder, pin, token_status, until_pinned, until_status, until_stored, upload,
};
use crate::support::causeway::{Causeway, Launch, TOKEN};
use crate::support::noise::Noise;
use crate::support::{client, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
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
    let (cid, id) = upload(&one, &content).await.expect("is stored");
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
    // The pin service of either stores it again; after a failed attempt another one follows.
    eventually("all blocks have objects again", 3 * TIMEOUT, async || {
        let (now, view) = (objects(site.storage.path()).len(), pin(&other, &id).await.unwrap_or_default());
        if now == stored.len() && view["status"] == "pinned" { Ok(()) } else { Err(format!("{now}: {view}")) }
    })
    .await;
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

/// A block that no one has.
const ABSENT: &str = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy";

/// A pin as its owner sees it: its CID, name, metadata and owner, and whether it is complete.
type SeenPin = (String, String, String, String, bool);

/// The pins of all owners that have not failed.
async fn seen_pins(node: &Causeway) -> BTreeSet<SeenPin> {
    let (status, listed) = node.admin("GET", "/api/v1/pins?limit=1000&status=queued,pinning,pinned", None).await;
    assert_eq!(status, 200, "{listed}");
    let text = |pin: &Value, key: &str| pin[key].as_str().unwrap_or_default().to_owned();
    let seen = |pin: &Value| {
        let is_pinned = pin["status"] == "pinned";
        (text(pin, "cid"), text(pin, "name"), pin["meta"].to_string(), text(pin, "owner_name"), is_pinned)
    };
    listed["pins"].as_array().expect("a list").iter().map(seen).collect()
}

/// Waits until a gateway of the site has these pins and no others.
async fn until_seen(node: &Causeway, expected: &BTreeSet<SeenPin>) {
    eventually("it has all pins", TIMEOUT, async || {
        let seen = seen_pins(node).await;
        if seen == *expected { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

/// Sends a request with a token: the status, and the answer.
async fn send(node: &Causeway, token: &str, path: &str, body: Vec<u8>) -> (u16, Value) {
    let request = client().post(format!("{}{path}", node.admin_url())).bearer_auth(token).body(body);
    let response = request.send().await.expect("is answered");
    let status = response.status().as_u16();
    (status, serde_json::from_slice(&response.bytes().await.expect("a body")).unwrap_or_default())
}

/// Runs `causeway site import` from one gateway into another: its lines of JSON, of which the last one has the numbers.
fn import(into: &Launch, from: &Causeway, token_file: &Path, more: &[&str]) -> Result<Vec<Value>, String> {
    let file = token_file.to_str().expect("a path");
    let arguments = ["site", "import", "--json", "--from", from.admin_url(), "--from-token-file", file];
    let printed = into.run(&[&arguments, more].concat())?;
    Ok(printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
}

/// A gateway with pins of two owners moves into a site while it serves, and another one leaves the site with them.
#[tokio::test(flavor = "multi_thread")]
async fn pins_move_into_a_site_and_out_of_it() {
    let (site, dirs) = (Site::new().await, [folder(), folder(), folder(), folder()]);
    let token_file = dirs[3].path().join("token");
    fs::write(&token_file, TOKEN).expect("the folder is ours");
    let old = Launch::new(dirs[0].path()).start().await;
    let [large, small, denied] =
        [(62, 3_000_000), (63, 1_000), (64, 2_000)].map(|(seed, bytes)| Noise::bytes(seed, bytes));
    let (large_cid, _) = upload(&old, &large).await.expect("is stored");
    let (denied_cid, _) = upload(&old, &denied).await.expect("is stored");
    let terms = json!({ "name": "app", "scopes": ["pin"] });
    let (_, app) = create_token(&old, terms.clone()).await;
    let (status, stored) = send(&old, &app, "/upload?pin-name=own", small.clone()).await;
    assert_eq!(status, 200, "{stored}");
    let small_cid = stored["roots"][0]["cid"].as_str().expect("a CID").to_owned();
    for (token, pin) in [
        (app.as_str(), json!({ "cid": large_cid, "name": "shared", "meta": { "build": "7" } })),
        (TOKEN, json!({ "cid": ABSENT, "name": "later" })),
    ] {
        let (status, answer) = send(&old, token, "/psa/pins", pin.to_string().into_bytes()).await;
        assert_eq!(status, 202, "{answer}");
    }
    let there = eventually("the pin of stored blocks is complete", TIMEOUT, async || {
        let seen = seen_pins(&old).await;
        let incomplete = seen.iter().filter(|pin| !pin.4).count();
        if incomplete == 1 { Ok(seen) } else { Err(format!("{seen:?}")) }
    })
    .await;
    let complete = there.len() - 1;

    let launches = [site.gateway(dirs[1].path()), site.gateway(dirs[2].path())];
    let [one, other] = [launches[0].start().await, launches[1].start().await];
    let refused = import(&launches[0], &one, &token_file, &[]).expect_err("it is the same gateway");
    assert!(refused.contains("is this gateway"), "{refused}");
    let refused = import(&launches[0], &other, &token_file, &[]).expect_err("they have the same pins");
    assert!(refused.contains("both are gateways of the site"), "{refused}");
    let refused = import(&launches[0], &old, &token_file, &[]).expect_err("an owner is unknown");
    assert!(refused.contains("no token") && refused.contains("\"app\""), "{refused}");
    assert_eq!(seen_pins(&one).await, BTreeSet::new(), "nothing was begun");
    assert_eq!(create_token(&one, terms.clone()).await.0, 201);
    let planned = import(&launches[0], &old, &token_file, &["--dry-run"]).expect("is counted");
    let numbers = planned.last().expect("numbers");
    assert_eq!((&numbers["copied"], &numbers["requested"]), (&json!(complete), &json!(1)), "{planned:?}");
    assert_eq!(seen_pins(&one).await, BTreeSet::new(), "nothing was begun");

    // A run before this one has ended after it had requested a pin, and a pin cannot be imported.
    let begun = json!({ "cid": small_cid, "name": "own", "owner": "app" }).to_string();
    assert_eq!(send(&one, TOKEN, "/api/v1/pins", begun.into_bytes()).await.0, 202);
    let rule = json!({ "cid": denied_cid }).to_string();
    assert_eq!(send(&one, TOKEN, "/api/v1/denylists/local/rules", rule.into_bytes()).await.0, 201);
    let failed = import(&launches[0], &old, &token_file, &[]).expect_err("one is withheld");
    assert!(failed.contains("1 pin could not be imported"), "{failed}");
    let but_one: BTreeSet<SeenPin> = there.iter().filter(|pin| pin.0 != denied_cid).cloned().collect();
    until_seen(&other, &but_one).await;
    let (status, answer) =
        one.admin("DELETE", &format!("/api/v1/denylists/local/rules?rule=/ipfs/{denied_cid}"), None).await;
    assert_eq!(status, 200, "{answer}");
    // A second run continues, and the old gateway serves meanwhile.
    let again = import(&launches[0], &old, &token_file, &[]).expect("is imported");
    let numbers = again.last().expect("numbers");
    assert_eq!((&numbers["failed"], numbers["copied"].as_u64() <= Some(1)), (&json!(0), true), "{again:?}");
    old.expect(&format!("/ipfs/{large_cid}"), &large).await;
    let third = import(&launches[0], &old, &token_file, &[]).expect("nothing is left to do");
    assert_eq!(third.last().expect("numbers")["present"], json!(there.len()), "{third:?}");
    old.stop().await;
    until_seen(&other, &there).await;
    until_status(&other, &denied_cid, 200).await;
    for (cid, content) in [(&large_cid, &large), (&small_cid, &small), (&denied_cid, &denied)] {
        other.expect(&format!("/ipfs/{cid}"), content).await;
    }

    // The other one leaves: it is started without the lines of the site, and gets the pins from one that stays.
    other.stop().await;
    let alone = Launch::new(dirs[2].path());
    let left = alone.start().await;
    let refused = import(&alone, &one, &token_file, &["--owner", "unknown"]).expect_err("there is no such owner");
    assert!(refused.contains("has no token \"unknown\""), "{refused}");
    let taken = import(&alone, &one, &token_file, &["--owner", "operator"]).expect("is imported");
    assert!(taken.last().expect("numbers")["copied_bytes"].as_u64() > Some(3_000_000), "{taken:?}");
    assert!(seen_pins(&left).await.iter().all(|pin| pin.3 == "operator"));
    // Each to its owner: the blocks are there already.
    assert_eq!(create_token(&left, terms).await.0, 201);
    let taken = import(&alone, &one, &token_file, &[]).expect("is imported");
    let numbers = taken.last().expect("numbers");
    assert_eq!((&numbers["failed"], &numbers["copied_bytes"]), (&json!(0), &json!(0)), "{taken:?}");
    one.stop().await;
    drop(site);
    let seen = seen_pins(&left).await;
    assert!(seen.is_superset(&there), "{seen:?}");
    for (cid, content) in [(&large_cid, &large), (&small_cid, &small), (&denied_cid, &denied)] {
        left.expect(&format!("/ipfs/{cid}"), content).await;
    }
    left.stop().await;
    let left = alone.start().await;
    left.expect(&format!("/ipfs/{large_cid}"), &large).await;
    let checked = alone.run(&["store", "check"]).expect("nothing is damaged");
    assert!(checked.contains("0 damaged"), "{checked}");
    left.stop().await;
}

/// A program of PostgreSQL that connects to a server.
fn run_client(name: &str, arguments: &[&str]) {
    let output = Command::new(program(name)).args(arguments).output().expect("PostgreSQL is installed");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The backup of `docs/howto/backup-and-restore.md` is restored into another database and another folder.
#[tokio::test(flavor = "multi_thread")]
async fn a_site_is_restored_from_a_dump_and_a_copy_of_its_storage() {
    let (site, dirs) = (Site::new().await, [folder(), folder(), folder()]);
    let one = site.gateway(dirs[0].path()).start().await;
    let [kept, between, later] = [65, 66, 67].map(|seed| Noise::bytes(seed, 600_000));
    let (kept_cid, kept_pin) = upload(&one, &kept).await.expect("is stored");
    let (_, token) = create_token(&one, json!({ "name": "app", "scopes": ["pin"] })).await;
    let dump = dirs[1].path().join("site.dump");
    let dump = dump.to_str().expect("a path");
    // While the gateway runs, the database first.
    run_client("pg_dump", &["--format=custom", "--file", dump, "--dbname", &site.database.options(NAME).url]);
    let (between_cid, between_pin) = upload(&one, &between).await.expect("is stored");
    let copy = folder();
    let from = format!("{}/.", site.storage.path().display());
    let copied = Command::new("cp").args(["-a", &from]).arg(copy.path()).status().expect("cp runs");
    assert!(copied.success(), "{copied}");
    let (_, later_pin) = upload(&one, &later).await.expect("is stored");
    // Everything is lost.
    drop((one, site));

    let restored = Site { database: Postgres::start().await, storage: copy };
    run_client("pg_restore", &["--no-owner", "--dbname", &restored.database.options(NAME).url, dump]);
    let launch = restored.gateway(dirs[2].path());
    let node = launch.start().await;
    until_pinned(&node, &kept_pin).await;
    node.expect(&format!("/ipfs/{kept_cid}"), &kept).await;
    assert_eq!(token_status(&node, &token).await, 200);
    for gone in [&between_pin, &later_pin] {
        assert_eq!(pin(&node, gone).await, None);
    }
    let before = objects(restored.storage.path()).len();
    let reconciled = launch.run(&["site", "reconcile", "--json"]).expect("is compared");
    let found: Value = serde_json::from_str(&reconciled).expect("JSON");
    let orphans = found["orphans"].as_u64().expect("a number");
    assert!(orphans > 0 && found["lost_blocks"] == 0, "{found}");
    assert_eq!(objects(restored.storage.path()).len() as u64, before as u64 - orphans);
    until_stored(&node, &between_cid, 412).await;
    // It is a site as before.
    let (again_cid, again_pin) = upload(&node, &between).await.expect("is stored");
    assert_eq!(again_cid, between_cid);
    until_pinned(&node, &again_pin).await;
    node.stop().await;
    let node = launch.start().await;
    for (cid, content) in [(&kept_cid, &kept), (&between_cid, &between)] {
        node.expect(&format!("/ipfs/{cid}"), content).await;
    }
    node.stop().await;
}
