//! Names that Causeway publishes, resolved by real Kubo nodes over the DHT, also after a kill; and exchange of keys.

use crate::support::causeway::{Causeway, Launch};
use crate::support::eventually;
use crate::support::kubo::Kubo;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// Inline content: identity CIDs.
const ONE: &str = "/ipfs/bafkqaddjnzzxazldoqwxizltoq";
const OTHER: &str = "/ipfs/bafkqadtwgiww63tmpeqhezldn5zgi";
const TIMEOUT: Duration = Duration::from_secs(60);

fn folder() -> TempDir {
    TempDir::new().expect("the temporary folder is writable")
}

/// A command that succeeds.
fn run(launch: &Launch, arguments: &[&str]) -> String {
    launch.run(arguments).unwrap_or_else(|error_line| panic!("causeway {arguments:?}: {error_line}"))
}

/// The IPNS name in a line of `key list`, such as "site  k51…  ed25519".
fn id(line: &str) -> String {
    let id = line.split_whitespace().nth(1).unwrap_or_else(|| panic!("no name in {line:?}"));
    id.to_owned()
}

/// Waits until Kubo resolves a name to a value over the DHT.
async fn resolves(kubo: &Kubo, name: &str, value: &str) {
    eventually(&format!("Kubo resolves {name} to {value}"), TIMEOUT, async || match kubo.try_resolve(name) {
        Ok(found) if found == value => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

/// Two Kubo nodes, of which the second is connected only to the first.
async fn network() -> (Kubo, Kubo) {
    let (first, second) = (Kubo::start().await, Kubo::start().await);
    second.connect(first.tcp()).await;
    (first, second)
}

/// The status of the node's only published name.
async fn published(node: &Causeway) -> serde_json::Value {
    let (status, answer) = node.admin("GET", "/api/v1/names/publish", None).await;
    assert_eq!(status, 200, "{answer}");
    answer["published"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubo_resolves_names_that_causeway_publishes() {
    let (first, second) = network().await;
    let dir = folder();
    let launch = Launch::new(dir.path()).bootstrap(first.tcp());
    let node = launch.start().await;
    let name = id(&run(&launch, &["key", "create", "site"]));
    let printed = run(&launch, &["name", "publish", "--key", "site", ONE]);
    assert!(
        printed.starts_with(&format!("/ipns/{name} -> {ONE}\n  key site, sequence number 0, valid until ")),
        "{printed}"
    );
    resolves(&second, &name, ONE).await;
    run(&launch, &["name", "publish", "--key", "site", OTHER]);
    resolves(&second, &name, OTHER).await;
    run(&launch, &["key", "rename", "site", "page"]);
    let printed = run(&launch, &["name", "list"]);
    assert!(printed.contains("key page, sequence number 1") && printed.contains("published to"), "{printed}");
    node.expect(&format!("/ipns/{name}"), b"v2-only record").await;

    // The node's own key, through the API.
    let body = format!("{{\"path\": \"{ONE}\", \"lifetime_seconds\": 3600, \"ttl_seconds\": 60}}");
    let (status, answer) = node.admin("POST", "/api/v1/names/publish", Some(&body)).await;
    assert_eq!((status, &answer["key"], &answer["ttl_seconds"]), (200, &"self".into(), &60.into()), "{answer}");
    resolves(&second, node.peer_id(), ONE).await;
    let metrics = node.metrics().await;
    assert_eq!(metrics.sample("causeway_names_published"), 2);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_record_survives_a_kill_and_is_published_when_a_peer_connects() {
    let dir = folder();
    let alone = Launch::new(dir.path());
    let node = alone.start().await;
    let name = id(&run(&alone, &["key", "create", "site"]));
    let printed = run(&alone, &["name", "publish", "--key", "site", ONE]);
    assert!(printed.contains("as soon as a peer accepts it"), "{printed}");
    // SIGKILL, like a power cut.
    drop(node);

    // Without a running node, a command works on the files.
    let printed = run(&alone, &["name", "publish", "--key", "site", OTHER]);
    assert!(printed.contains("sequence number 1") && printed.contains("once a node is online"), "{printed}");
    assert_eq!(
        id(&run(&alone, &["key", "list"])),
        run(&alone, &["key", "list"]).split_whitespace().nth(1).unwrap_or("")
    );

    let (first, second) = network().await;
    let node = Launch::new(dir.path()).bootstrap(first.tcp()).start().await;
    resolves(&second, &name, OTHER).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_republished_also_after_a_restart() {
    let (first, second) = network().await;
    let dir = folder();
    let launch = Launch::new(dir.path()).bootstrap(first.tcp());
    let node = launch.start().await;
    let body = format!("{{\"path\": \"{ONE}\", \"lifetime_seconds\": 10}}");
    let (_, answer) = node.admin("POST", "/api/v1/names/publish", Some(&body)).await;
    let before = answer["valid_until_at"].as_u64().expect("a time");
    drop(node);

    let node = launch.start().await;
    eventually("the record was renewed and put", TIMEOUT, async || {
        let now = published(&node).await;
        let renewed = now["valid_until_at"].as_u64() > Some(before) && now["puts"]["lan"].as_u64() > Some(0);
        if renewed && now["sequence"] == answer["sequence"] { Ok(()) } else { Err(now) }
    })
    .await;
    resolves(&second, node.peer_id(), ONE).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_imported_key_continues_the_sequence_of_the_network() {
    let (first, second) = network().await;
    let (former, dir) = (folder(), folder());
    let file = dir.path().join("site.key").display().to_string();
    let launch = Launch::new(former.path()).bootstrap(first.tcp());
    let node = launch.start().await;
    let name = id(&run(&launch, &["key", "create", "site"]));
    run(&launch, &["name", "publish", "--key", "site", ONE]);
    run(&launch, &["name", "publish", "--key", "site", OTHER]);
    // The next node may ask either of them first.
    for peer in [&first, &second] {
        resolves(peer, &name, OTHER).await;
    }
    run(&launch, &["key", "export", "-o", &file, "site"]);
    node.stop().await;

    // A node that knows nothing but the key.
    let launch = Launch::new(dir.path()).bootstrap(first.tcp());
    let node = launch.start().await;
    assert_eq!(id(&run(&launch, &["key", "import", "site", &file])), name);
    let printed = run(&launch, &["name", "publish", "--key", "site", ONE]);
    assert!(printed.contains("sequence number 2"), "{printed}");
    resolves(&second, &name, ONE).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_exchanged_with_kubo() {
    let (first, second) = network().await;
    let dir = folder();
    let file = |name: &str| dir.path().join(name);
    let text = |path: &Path| path.display().to_string();
    let launch = Launch::new(dir.path()).bootstrap(first.tcp());
    let formats = ["libp2p-protobuf-cleartext", "pem-pkcs8-cleartext"];
    for (kind, format) in [("ed25519", formats[0]), ("ed25519", formats[1]), ("secp256k1", formats[0])] {
        let (name, path) = (format!("ours-{kind}-{format}"), file(&format!("ours-{kind}-{format}")));
        let ours = id(&run(&launch, &["key", "create", "--type", kind, &name]));
        run(&launch, &["key", "export", "--format", format, "-o", &text(&path), &name]);
        assert_eq!(first.import_key(&name, format, &path), ours, "{kind} in {format}");
    }
    let node = launch.start().await;
    for kind in ["ed25519", "rsa"] {
        for format in formats {
            let (name, path) = (format!("theirs-{kind}-{format}"), file(&format!("theirs-{kind}-{format}")));
            let theirs = first.make_key(&name, kind);
            first.export_key(&name, format, &path);
            assert_eq!(id(&run(&launch, &["key", "import", &name, &text(&path)])), theirs, "{kind} in {format}");
            let back = file("back");
            run(&launch, &["key", "export", "--format", format, "-o", &text(&back), &name]);
            assert_eq!(
                std::fs::read(&back).expect("written"),
                std::fs::read(&path).expect("written"),
                "{kind}, {format}"
            );
            std::fs::remove_file(back).expect("is there");
            run(&launch, &["name", "publish", "--key", &name, ONE]);
            resolves(&second, &theirs, ONE).await;
        }
    }
    node.stop().await;
}
