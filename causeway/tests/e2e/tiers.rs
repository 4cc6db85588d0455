//! Content that only Kubo has: cold through `--peering`, again with Kubo gone, and again after a restart.

use crate::support::causeway::{Causeway, Launch};
use crate::support::corpus::{self, Item};
use crate::support::eventually;
use crate::support::kubo::Kubo;
use crate::support::metrics::Metrics;
use std::time::Duration;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn network_then_ram_then_disk_over_tcp() {
    let kubo = Kubo::start().await;
    let items = corpus::import(&kubo);
    journey(kubo, items, |kubo| kubo.tcp().to_owned()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn network_then_ram_then_disk_over_quic() {
    let kubo = Kubo::start().await;
    let mut items = Vec::from(corpus::files(&kubo, 3_000_000));
    items.extend(corpus::site(&kubo));
    journey(kubo, items, |kubo| kubo.quic().to_owned()).await;
}

async fn journey(kubo: Kubo, items: Vec<Item>, address: impl Fn(&Kubo) -> String) {
    let dir = TempDir::new().expect("the temporary folder is writable");
    // Small blocks of many files stay in RAM together with the two of 100 MiB.
    let launch = Launch::new(dir.path()).peering(&address(&kubo)).set("CAUSEWAY_CACHE_RAM_BYTES_MAX", 400 << 20);

    let causeway = launch.start().await;
    // A dial that takes longer than a request waits for it would fail the first request.
    eventually("the gateway connects to Kubo", TIMEOUT, async || {
        if kubo.is_connected_to(causeway.peer_id()).await { Ok(()) } else { Err("it is not connected") }
    })
    .await;
    let cold = fetch_all(&causeway, &items).await;
    let (_, disk, network) = cold.tiers();
    assert_eq!(disk, 0, "nothing was on disk");
    let sent = kubo.sent().await;
    assert!(network > 0, "the network answered");
    assert_eq!(network, sent.blocks, "every block came over the network once");
    assert_eq!(cold.received("duplicate"), 0, "duplicates");

    kubo.stop().await;
    let warm = fetch_all(&causeway, &items).await;
    let (ram, disk, network) = warm.tiers();
    assert_eq!((disk, network), (0, 0), "RAM had everything");
    assert!(ram > 0, "RAM answered");

    causeway.stop().await;
    let causeway = launch.start().await;
    let restarted = fetch_all(&causeway, &items).await;
    let (_, disk, network) = restarted.tiers();
    assert_eq!(network, 0, "disk had everything");
    assert!(disk >= sent.blocks, "disk answered: {disk} hits for {} blocks", sent.blocks);
    causeway.stop().await;
}

/// Fetches and compares all items, and returns the differences of the metrics.
pub async fn fetch_all(causeway: &Causeway, items: &[Item]) -> Metrics {
    let before = causeway.metrics().await;
    for item in items {
        expect(causeway, item).await;
    }
    causeway.metrics().await.since(&before)
}

/// Fetches one item and compares it.
pub async fn expect(causeway: &Causeway, item: &Item) {
    let answer = causeway.get(&item.path).await;
    let name = &item.name;
    assert_eq!(answer.status, 200, "{name}: {}", answer.text());
    crate::support::assert_same_bytes(name, &answer.body, &item.body);
    assert_eq!(answer.header("content-length"), item.body.len().to_string(), "{name}");
    let content_type = answer.header("content-type");
    assert!(content_type.starts_with(item.content_type), "{name} is {content_type:?}");
    assert_eq!(answer.header("cache-control"), "public, max-age=29030400, immutable", "{name}");
    assert_eq!(answer.header("x-ipfs-path"), item.path, "{name}");
    assert_eq!(answer.header("x-ipfs-roots").split(',').next(), Some(item.root.as_str()), "{name}");
}
