//! A site whose gateways share IPNS keys and the names that are published with them (`site.names = "shared"`).

use crate::site::{Site, change, folder};
use crate::support::causeway::{Causeway, Launch};
use crate::support::eventually;
use reqwest::Method;
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Inline content: identity CIDs.
const ONE: &str = "/ipfs/bafkqaddjnzzxazldoqwxizltoq";
const OTHER: &str = "/ipfs/bafkqadtwgiww63tmpeqhezldn5zgi";

/// Writes a key file that only its owner can read.
fn key_file(dir: &Path, digits: &str) -> PathBuf {
    let path = dir.join("names.key");
    fs::write(&path, format!("{}\n", digits.repeat(32))).expect("the folder is ours");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("it is ours");
    path
}

/// A gateway that shares names.
fn gateway(site: &Site, dir: &Path, key_file: &Path) -> Launch {
    site.gateway(dir).set("CAUSEWAY_SITE_NAMES", "shared").set("CAUSEWAY_SITE_NAMES_KEY_FILE", key_file.display())
}

/// A request of the admin API for names, and its answer.
async fn names(node: &Causeway, method: &str, path: &str, body: Value) -> (u16, Value) {
    let body = (!body.is_null()).then(|| body.to_string());
    node.admin(method, &format!("/api/v1/names/{path}"), body.as_deref()).await
}

async fn create_key(node: &Causeway, name: &str) -> String {
    let (status, key) = names(node, "POST", "keys", json!({ "name": name })).await;
    assert_eq!((status, &key["of_site"]), (201, &json!(true)), "{key}");
    key["id"].as_str().expect("an ID").to_owned()
}

/// Publishes a path: the sequence number.
async fn publish(node: &Causeway, key: &str, path: &str, lifetime_seconds: u64) -> u64 {
    let body = json!({ "path": path, "key": key, "lifetime_seconds": lifetime_seconds });
    let (status, published) = names(node, "POST", "publish", body).await;
    assert_eq!(status, 200, "{published}");
    published["sequence"].as_u64().expect("a number")
}

/// The publication of a key, as a gateway knows it.
async fn published(node: &Causeway, key: &str) -> Option<Value> {
    let (_, all) = names(node, "GET", "publish", Value::Null).await;
    all["published"].as_array()?.iter().find(|entry| entry["key"] == key).cloned()
}

/// The names of the keys that a gateway lists, without its own.
async fn keys(node: &Causeway) -> Vec<String> {
    let (_, all) = names(node, "GET", "keys", Value::Null).await;
    let names = all["keys"].as_array().expect("keys").iter().map(|key| key["name"].as_str().expect("a name"));
    names.filter(|name| *name != "self").map(str::to_owned).collect()
}

async fn until_keys(node: &Causeway, expected: &[&str]) {
    eventually("the keys are known", TIMEOUT, async || match keys(node).await {
        found if found == expected => Ok(()),
        found => Err(format!("{found:?}")),
    })
    .await;
}

async fn until_body(node: &Causeway, path: &str, expected: &[u8]) {
    eventually("the name is resolved", TIMEOUT, async || match node.get(path).await {
        answer if answer.status == 200 && answer.body == expected => Ok(()),
        answer => Err(format!("{}: {}", answer.status, answer.text())),
    })
    .await;
}

/// What one gateway creates and publishes is that of all, and goes on without it.
#[tokio::test(flavor = "multi_thread")]
async fn names_are_published_by_any_gateway_and_outlive_it() {
    let (site, dirs) = (Site::new().await, [folder(), folder(), folder()]);
    let key_file = key_file(dirs[2].path(), "0a");
    let launches = [0, 1].map(|n: usize| gateway(&site, dirs[n].path(), &key_file));
    let (one, other) = (launches[0].start().await, launches[1].start().await);
    let name = create_key(&one, "blog").await;
    until_keys(&other, &["blog"]).await;
    assert_eq!(publish(&one, "blog", ONE, 3600).await, 0);
    let path = format!("/ipns/{name}");
    one.expect(&path, b"inspect-test").await;
    until_body(&other, &path, b"inspect-test").await;
    assert_eq!(publish(&other, "blog", OTHER, 3600).await, 1);
    other.expect(&path, b"v2-only record").await;
    until_body(&one, &path, b"v2-only record").await;
    let (status, refused) = names(&other, "POST", "keys", json!({ "name": "blog" })).await;
    assert_eq!(status, 409, "{refused}");
    // The key of a gateway itself is not shared.
    publish(&one, "self", ONE, 3600).await;
    let (_, of_other) = names(&other, "GET", "publish", Value::Null).await;
    assert_eq!(of_other["published"].as_array().map(Vec::len), Some(1), "{of_other}");

    let body = json!({ "path": ONE, "key": "blog", "lifetime_seconds": 299 });
    let (status, refused) = names(&one, "POST", "publish", body).await;
    assert!(status == 400 && refused.to_string().contains("300 seconds"), "{refused}");

    // One is killed; the other one continues.
    assert_eq!(publish(&one, "blog", ONE, 300).await, 2);
    drop(one);
    until_body(&other, &path, b"inspect-test").await;
    assert_eq!(publish(&other, "blog", OTHER, 300).await, 3);
    assert_eq!(publish(&other, "blog", ONE, 300).await, 4);
    other.expect(&path, b"inspect-test").await;
    let third = launches[0].start().await;
    assert_eq!(keys(&third).await, ["blog"]);
    third.expect(&path, b"inspect-test").await;
    let (status, removed) = names(&third, "DELETE", "keys/blog", Value::Null).await;
    assert_eq!(status, 200, "{removed}");
    until_keys(&other, &[]).await;
    assert_eq!(published(&other, "blog").await, None);
    for node in [other, third] {
        node.stop().await;
    }
}

/// Names are resolved, and keys and publications are not changed.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_names_are_resolved_and_not_published() {
    let (mut site, dirs) = (Site::new().await, [folder(), folder()]);
    let node = gateway(&site, dirs[0].path(), &key_file(dirs[1].path(), "0a")).start().await;
    let name = create_key(&node, "blog").await;
    publish(&node, "blog", ONE, 3600).await;
    site.database.stop();
    let requests = [
        (Method::POST, "keys", Some(json!({ "name": "other" }))),
        (Method::POST, "keys/blog/rename", Some(json!({ "to": "page" }))),
        (Method::DELETE, "keys/blog", None),
        (Method::POST, "publish", Some(json!({ "path": OTHER, "key": "blog" }))),
    ];
    for (method, path, body) in requests {
        let answer = change(&node, method, &format!("/api/v1/names/{path}"), body).await;
        assert_eq!(answer, (503, true), "{path}");
    }
    let rpc = format!("/api/v0/name/publish?arg={OTHER}&key=blog&allow-offline=true");
    assert_eq!(change(&node, Method::POST, &rpc, None).await, (503, true));
    node.expect(&format!("/ipns/{name}"), b"inspect-test").await;
    assert_eq!(keys(&node).await, ["blog"]);
    assert_eq!(publish(&node, "self", OTHER, 3600).await, 0);
    site.database.restart().await;
    eventually("names are published again", TIMEOUT, async || {
        let body = json!({ "path": OTHER, "key": "blog" });
        let (status, answer) = names(&node, "POST", "publish", body).await;
        if status == 200 { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
    until_body(&node, &format!("/ipns/{name}"), b"v2-only record").await;
    node.stop().await;
}

/// Commands use the database when no gateway runs, and a gateway keeps the keys that it had before.
#[tokio::test(flavor = "multi_thread")]
async fn commands_change_the_keys_of_the_site_and_own_ones_stay() {
    let (mut site, dirs) = (Site::new().await, [folder(), folder(), folder()]);
    let key_file = key_file(dirs[2].path(), "0a");
    let [first, second] = [0, 1].map(|n: usize| gateway(&site, dirs[n].path(), &key_file));
    // Two keys of a time when the gateway was alone.
    let alone = Launch::new(dirs[0].path());
    for name in ["own", "blog"] {
        alone.run(&["key", "create", name]).expect("is created");
    }
    alone.run(&["name", "publish", "--key", "blog", ONE]).expect("is published");
    // No gateway runs: the database is changed.
    let created = first.run(&["key", "create", "wiki"]).expect("is created");
    assert!(created.contains("site"), "{created}");
    let refused = first.run(&["key", "create", "own"]).expect_err("the name would be ambiguous");
    assert!(refused.contains("of its own"), "{refused}");
    let listed = second.run(&["key", "list"]).expect("is listed");
    assert!(listed.contains("wiki") && !listed.contains("own "), "{listed}");
    let printed = second.run(&["name", "publish", "--key", "wiki", OTHER]).expect("is published");
    assert!(printed.contains("sequence number 0"), "{printed}");
    let exported = dirs[2].path().join("blog.pem");
    let file = exported.to_str().expect("a path");
    first.run(&["key", "export", "blog", "--format", "pem-pkcs8-cleartext", "-o", file]).expect("is exported");

    let (one, other) = (first.start().await, second.start().await);
    assert_eq!(keys(&one).await, ["blog", "own", "wiki"]);
    assert_eq!(keys(&other).await, ["wiki"]);
    // One of them becomes a key of the site, after it was removed as an own one.
    let refused = first.run(&["key", "import", "blog", file]).expect_err("it is an own key");
    assert!(refused.contains("causeway key rm blog"), "{refused}");
    first.run(&["key", "rm", "blog"]).expect("is removed");
    first.run(&["key", "import", "blog", file]).expect("is imported");
    until_keys(&other, &["blog", "wiki"]).await;
    assert_eq!(published(&other, "blog").await, None, "it is published again");
    publish(&other, "blog", OTHER, 3600).await;
    let entry = published(&other, "blog").await.expect("is published");
    assert_eq!(entry["value"], json!(OTHER));
    assert_eq!(keys(&one).await, ["blog", "own", "wiki"]);
    let copy = dirs[2].path().join("copy.pem");
    let copy_path = copy.to_str().expect("a path");
    second.run(&["key", "export", "blog", "-f", "pem-pkcs8-cleartext", "-o", copy_path]).expect("is exported");
    assert_eq!(fs::read(&copy).expect("is there"), fs::read(&exported).expect("is there"));
    for node in [one, other] {
        node.stop().await;
    }
    // Own keys and `self` need no database while the gateway is stopped.
    site.database.stop();
    let own = dirs[2].path().join("own.key");
    first.run(&["key", "export", "own", "-o", own.to_str().expect("a path")]).expect("is exported");
    for key in ["self", "own"] {
        first.run(&["name", "publish", "--key", key, ONE]).expect("is published");
    }
    assert!(first.run(&["name", "publish", "--key", "wiki", ONE]).is_err(), "it is of the site");
    // Without shared names each has its own again.
    assert!(alone.run(&["key", "list"]).expect("is listed").contains("own"));
}

/// A key file that cannot be used ends the start with a sentence.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_file_ends_the_start() {
    let (site, dirs) = (Site::new().await, [folder(), folder(), folder()]);
    let right = key_file(dirs[0].path(), "0a");
    let node = gateway(&site, dirs[0].path(), &right).start().await;
    create_key(&node, "blog").await;
    node.stop().await;
    let readable = dirs[2].path().join("readable.key");
    fs::copy(&right, &readable).expect("is copied");
    fs::set_permissions(&readable, Permissions::from_mode(0o644)).expect("it is ours");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--bootstrap", "none"];
    let table = [
        (key_file(dirs[1].path(), "0b"), "is not the one that the keys of the site are encrypted with"),
        (readable, "chmod 0600"),
        (dirs[2].path().join("missing"), "openssl rand -base64 32"),
        (dirs[2].path().to_owned(), "not a regular file"),
    ];
    for (file, words) in table {
        let launch = gateway(&site, dirs[1].path(), &file);
        for command in [&serve[..], &["key", "list"]] {
            let printed = launch.run(command).expect_err("it does not start");
            assert!(
                printed.contains(words) && printed.contains("site.names_key_file"),
                "{}: {printed}",
                file.display()
            );
        }
    }
    let without = site.gateway(dirs[1].path()).set("CAUSEWAY_SITE_NAMES", "shared").run(&serve);
    assert!(without.is_err_and(|printed| printed.contains("site.names_key_file as well")));
    // Gateways with names of their own are no hindrance.
    site.gateway(dirs[1].path()).start().await.stop().await;
}
