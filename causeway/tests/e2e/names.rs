//! IPNS names that real Kubo nodes published, resolved over the DHT.

use crate::support::eventually;
use crate::support::kubo::Kubo;
use content::names::Key;
use content::{MemoryBlocks, Name, NameError, NameResolver};
use p2p_bridge::names::Staleness;
use p2p_bridge::{Bridge, BridgeOptions, Names, NamesOptions};
use prometheus_client::registry::Registry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Inline content: an identity CID.
const CONTENT: &str = "/ipfs/bafkqaddjnzzxazldoqwxizltoq";
/// Longer than a search with connected peers takes.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A node without HTTP, with the given peers.
async fn node(dir: &Path, bootstrap: &[&str]) -> (Bridge, Arc<Names>) {
    node_with(dir, bootstrap, NamesOptions::default()).await
}

/// [`node`] with other options of the resolver.
async fn node_with(dir: &Path, bootstrap: &[&str], options: NamesOptions) -> (Bridge, Arc<Names>) {
    let about_names = NamesOptions { state_dir: Some(dir.to_owned()), ..options };
    let address = |text: &str| text.parse().expect("a multiaddr");
    let options = BridgeOptions {
        listen: vec![address("/ip4/127.0.0.1/tcp/0"), address("/ip4/127.0.0.1/udp/0/quic-v1")],
        bootstrap: bootstrap.iter().map(|text| address(text)).collect(),
        ..BridgeOptions::new(dir)
    };
    let mut registry = Registry::default();
    let bridge = Bridge::start(options, Arc::new(MemoryBlocks::new()), &mut registry).await.expect("starts");
    let names = Names::new(about_names, Some(bridge.clone()), &mut registry).expect("good options");
    (bridge, names)
}

/// The conformance suite's record with this prefix of the file name.
fn fixture(start: &str) -> (Name, PathBuf) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../content/tests/fixtures/ipns");
    let mut paths = std::fs::read_dir(folder).expect("the fixtures").map(|entry| entry.expect("an entry").path());
    let path = paths.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start)));
    let path = path.expect("the fixture");
    let name = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.split('_').next());
    (Name::parse(name.expect("a name")).expect("a name"), path)
}

/// The resolution of a name, and its duration.
async fn resolve(names: &Names, name: &Name) -> (String, Duration) {
    let begun = Instant::now();
    let found = names.resolve(name).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(found.ttl > Duration::ZERO, "{name}");
    (format!("/ipfs/{}/{}", found.root, found.segments.join("/")), begun.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_kubo_are_resolved_and_cached_across_a_restart() {
    let (publisher, third) = (Kubo::start().await, Kubo::start().await);
    publisher.connect(third.tcp()).await;
    let published = [
        ("k51qzi5uqu5dit2ku9", "/ipfs/bafkqadtwgiww63tmpeqhezldn5zgi/"),
        ("QmVujd5Vb7moysJj8i", "/ipfs/bafkreicysg23kiwv34eg2d7qweipxwosdo2py4ldv42nbauguluen5v6am/"),
        ("k51qzi5uqu5djokp3m", "/ipfs/bafybeib3ffl2teiqdncv3mkz4r23b5ctrwkzrrhctdbne6iboayxuxk5ui/root2"),
    ];
    let mut expected: Vec<(Name, &str)> = Vec::new();
    for (start, path) in published {
        let (name, record) = fixture(start);
        publisher.put_record(&name.to_string(), &record);
        expected.push((name, path));
    }
    let own = Name::parse(&publisher.publish(CONTENT)).expect("a name");
    expected.push((own.clone(), "/ipfs/bafkqaddjnzzxazldoqwxizltoq/"));
    // Both peers of Kubo store the records; the node under test did not create them.
    publisher.stop().await;

    let dir = TempDir::new().expect("the temporary folder is writable");
    let (bridge, names) = node(dir.path(), &[third.tcp()]).await;
    for (name, path) in &expected {
        let (found, took) = resolve(&names, name).await;
        assert_eq!(found, *path, "{name}");
        assert!(took < TIMEOUT, "{name} took {took:?}, with a peer that has it");
    }
    let Name::Key(key) = &own else { panic!("{own} is a key") };
    assert!(names.record(key).await.expect("it is known by now").value().starts_with(CONTENT));

    let nobodys = Key::parse("12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK").expect("a key");
    match names.resolve(&Name::Key(nobodys)).await {
        Err(NameError::NoRecord { peers_asked, waited, .. }) => {
            assert!(peers_asked > 0 && waited < TIMEOUT, "{peers_asked} peers asked in {waited:?}");
        }
        other => panic!("{other:?}"),
    }
    third.stop().await;
    eventually("what was learnt is written", TIMEOUT, async || {
        let text = std::fs::read_to_string(dir.path().join("names.json")).unwrap_or_default();
        let missing = expected.iter().find(|(name, _)| !text.contains(&name.to_string()));
        missing.map_or(Ok(()), |(name, _)| Err(format!("{name} is missing")))
    })
    .await;
    bridge.shutdown().await;
    drop(names);

    let (bridge, names) = node(dir.path(), &[]).await;
    for (name, path) in &expected {
        let (found, took) = resolve(&names, name).await;
        assert_eq!(found, *path, "{name}");
        assert!(took < Duration::from_secs(5), "{name} took {took:?} although it is known");
    }
    bridge.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_stale_record_is_refreshed_before_the_answer() {
    const TTL: Duration = Duration::from_secs(1);
    let (publisher, third) = (Kubo::start().await, Kubo::start().await);
    publisher.connect(third.tcp()).await;
    let name = Name::parse(&publisher.publish_for("1s", &format!("{CONTENT}/first"))).expect("a name");
    let dir = TempDir::new().expect("the temporary folder is writable");
    let staleness = Staleness { while_revalidate: Duration::ZERO, ..Staleness::default() };
    let wait = Duration::from_secs(2);
    let options = NamesOptions { staleness, refresh_wait: TIMEOUT, ..NamesOptions::default() };
    let (bridge, names) = node_with(dir.path(), &[third.tcp()], options).await;
    assert!(resolve(&names, &name).await.0.ends_with("/first"));
    for value in ["second", "third"] {
        publisher.publish_for("1s", &format!("{CONTENT}/{value}"));
        tokio::time::sleep(TTL + Duration::from_millis(200)).await;
        let (found, took) = resolve(&names, &name).await;
        assert!(found.ends_with(value) && took < TIMEOUT, "{found} after {took:?}, and not {value}");
    }
    names.save().await;
    bridge.shutdown().await;
    drop(names);

    // No peers are left: a restarted node waits for its timeout, and reports the age of its answer.
    for kubo in [publisher, third] {
        kubo.stop().await;
    }
    tokio::time::sleep(TTL).await;
    let options = NamesOptions { staleness, refresh_wait: wait, ..NamesOptions::default() };
    let (bridge, names) = node_with(dir.path(), &[], options).await;
    let begun = Instant::now();
    let found = names.resolve(&name).await.expect("the last record is valid for a day");
    assert!(found.stale.is_some_and(|age| age >= TTL), "{:?}", found.stale);
    assert_eq!(found.segments, ["third"]);
    assert!(begun.elapsed() >= wait, "a refresh was waited for");
    bridge.shutdown().await;
}
