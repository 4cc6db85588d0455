//! Causeway as the only DHT server of Kubo nodes, also after a restart.

use crate::support::causeway::{Causeway, Launch};
use crate::support::eventually;
use crate::support::kubo::Kubo;
use crate::support::noise::Noise;
use std::time::Duration;
use tempfile::TempDir;

/// Kubo takes a peer into its routing table a moment after it is connected.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Inline content: an identity CID.
const CONTENT: &str = "/ipfs/bafkqaddjnzzxazldoqwxizltoq";

/// A Kubo node that is connected only to this server.
async fn kubo_at(causeway: &Causeway) -> Kubo {
    let kubo = Kubo::start().await;
    kubo.connect(causeway.tcp()).await;
    kubo
}

/// Provides a CID, with retries, since the routing table may be empty at first.
async fn announce(kubo: &Kubo, cid: &str, causeway: &Causeway) {
    eventually("the provider record arrives", TIMEOUT, async || {
        let _ = kubo.try_provide(cid);
        let kept = causeway.metrics().await.sample("causeway_dht_records{dht=\"lan\",kind=\"provider\"}");
        if kept > 0 { Ok(()) } else { Err("no record is kept") }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dht_records_of_kubo_are_served_and_persistent() {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let launch = Launch::new(dir.path());
    let causeway = launch.start().await;
    let author = kubo_at(&causeway).await;
    let cid = author.add(&Noise::bytes(77, 1_000)[..], &["--cid-version=1", "--raw-leaves"]);
    announce(&author, &cid, &causeway).await;
    let name = eventually("the IPNS record is taken", TIMEOUT, async || author.try_publish(CONTENT)).await;
    let provider = author.peer_id().to_owned();
    eventually("the IPNS record is kept", TIMEOUT, async || {
        let kept = causeway.metrics().await.sample("causeway_dht_records{dht=\"lan\",kind=\"value\"}");
        if kept > 0 { Ok(()) } else { Err("no record is kept") }
    })
    .await;
    let metrics = causeway.metrics().await;
    assert_eq!(metrics.sample("causeway_dht_server{dht=\"lan\"}"), 1);
    author.stop().await;

    // Only Causeway has the records now; before and after its restart.
    for launched in [Some(causeway), None] {
        let causeway = match launched {
            Some(causeway) => causeway,
            None => launch.start().await,
        };
        let reader = kubo_at(&causeway).await;
        eventually("Causeway names the provider", TIMEOUT, async || {
            let found = reader.find_providers(&cid).await;
            if found.contains(&provider) { Ok(()) } else { Err(format!("providers: {found:?}")) }
        })
        .await;
        let resolved = eventually("Causeway tells the record", TIMEOUT, async || reader.try_resolve(&name)).await;
        assert_eq!(resolved.trim_end_matches('/'), CONTENT);
        reader.stop().await;
        causeway.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_uses_the_dht_without_bootstrap_peers() {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let (third, provider) = (Kubo::start().await, Kubo::start().await);
    provider.connect(third.tcp()).await;
    let content = [78, 79].map(|seed| Noise::bytes(seed, 50_000));
    let cids = content.each_ref().map(|bytes| provider.add(&bytes[..], &["--cid-version=1"]));
    provider.provide(&cids.each_ref().map(String::as_str)).await;

    let causeway = Launch::new(dir.path()).bootstrap(third.tcp()).start().await;
    causeway.expect(&format!("/ipfs/{}", cids[0]), &content[0]).await;
    causeway.stop().await;
    let causeway = Launch::new(dir.path()).start().await;
    causeway.expect(&format!("/ipfs/{}", cids[1]), &content[1]).await;
    assert!(causeway.metrics().await.sample("causeway_dht_queries_total{dht=\"lan\"}") > 0, "the DHT was asked");
    causeway.stop().await;
}
