//! Gateway and provider are not connected, and only have a third node in common, a DHT server.

use crate::support::causeway::Launch;
use crate::support::corpus::{self, Item};
use crate::support::kubo::Kubo;
use crate::tiers::{expect, fetch_all};
use tempfile::TempDir;

#[tokio::test(flavor = "multi_thread")]
async fn content_is_found_by_its_provider_record() {
    let (third, provider) = (Kubo::start().await, Kubo::start().await);
    provider.connect(third.tcp()).await;
    let items = corpus::import(&provider);
    let roots: Vec<&str> = items.iter().map(|item| item.root.as_str()).collect();
    provider.provide(&roots).await;

    // Each of these starts a new node, which has to find the provider itself; the others share one node.
    let (alone, together): (Vec<Item>, Vec<Item>) = items.into_iter().partition(|item| is_searched_alone(&item.name));
    assert_eq!(alone.len(), 3, "renamed?");
    for item in &alone {
        let dir = TempDir::new().expect("the temporary folder is writable");
        let causeway = Launch::new(dir.path()).bootstrap(third.tcp()).start().await;
        expect(&causeway, item).await;
        causeway.stop().await;
    }

    let dir = TempDir::new().expect("the temporary folder is writable");
    let launch = Launch::new(dir.path()).bootstrap(third.tcp());
    let causeway = launch.start().await;
    let cold = fetch_all(&causeway, &together).await;
    assert!(cold.hits("network") > 0, "the network answered");
    assert!(cold.sample("causeway_dht_queries_total{dht=\"lan\"}") > 0, "the DHT was asked");
    assert!(cold.sample("causeway_dht_providers_found_total{dht=\"lan\"}") > 0, "the DHT named the provider");
    assert_eq!(third.sent().await.blocks, 0, "the third node has no content to give");

    provider.stop().await;
    third.stop().await;
    let warm = fetch_all(&causeway, &together).await;
    assert_eq!(warm.hits("network"), 0, "stored locally by now");
    causeway.stop().await;
    let restarted = fetch_all(&launch.start().await, &together).await;
    assert_eq!(restarted.hits("network"), 0, "held on disk by now");
}

fn is_searched_alone(name: &str) -> bool {
    ["1 B, CIDv0", "1048576 B, CIDv1", "hamt/page-12345.html"].contains(&name)
}
