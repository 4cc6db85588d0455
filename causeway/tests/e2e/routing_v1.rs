//! Delegated routing in both directions: a Kubo that only uses Causeway's `/routing/v1`, and a Causeway that only uses
//! Kubo's.

use crate::support::causeway::Launch;
use crate::support::kubo::Kubo;
use serde_json::json;
use tempfile::TempDir;

/// Inline content: an identity CID.
const CONTENT: &str = "/ipfs/bafkqaddjnzzxazldoqwxizltoq";

/// A DHT server without content, a node that provides content there, the content's CID, and a name that was
/// published there.
async fn network() -> (Kubo, Kubo, String, String) {
    let (third, provider) = (Kubo::start().await, Kubo::start().await);
    provider.connect(third.tcp()).await;
    let cid = provider.add(&b"only the provider has this"[..], &["--raw-leaves"]);
    provider.provide(&[&cid]).await;
    let name = provider.publish(CONTENT);
    (third, provider, cid, name)
}

#[tokio::test(flavor = "multi_thread")]
async fn kubo_without_a_dht_routes_through_causeway() {
    let (third, provider, cid, name) = network().await;
    let dir = TempDir::new().expect("the temporary folder is writable");
    let launch = Launch::new(dir.path()).bootstrap(third.tcp()).set("CAUSEWAY_HTTP_ROUTING_V1", true);
    let causeway = launch.start().await;
    let router = causeway.url("");
    let light = Kubo::start_with(|settings| {
        settings["Routing"]["Type"] = json!("delegated");
        settings["Routing"]["DelegatedRouters"] = json!([router]);
        // Without a DHT, nothing is provided.
        settings["Provide"] = json!({ "Enabled": false });
    })
    .await;

    assert_eq!(light.find_providers(&cid).await, [provider.peer_id()]);
    assert_eq!(&light.cat(&cid).await[..], b"only the provider has this");
    let addresses = light.find_peer(provider.peer_id()).await;
    assert!(addresses.iter().any(|address| provider.tcp().starts_with(address.as_str())), "{addresses:?}");
    assert_eq!(light.resolve(&name).await, CONTENT);

    let own = causeway.get(&format!("/routing/v1/peers/{}", causeway.peer_id())).await;
    assert!(own.status == 200 && own.text().contains(causeway.peer_id()), "{}", own.text());
    let closest = causeway.get(&format!("/routing/v1/dht/closest/peers/{cid}")).await;
    assert!(closest.text().contains(third.peer_id()), "{}", closest.text());
    // Content that was fetched through this node's gateway is stored locally from then on.
    causeway.expect(&format!("/ipfs/{cid}"), b"only the provider has this").await;
    let providers = causeway.get(&format!("/routing/v1/providers/{cid}")).await;
    assert!(providers.text().contains(causeway.peer_id()), "{}", providers.text());

    let metrics = causeway.metrics().await;
    for endpoint in ["providers", "peers", "ipns", "closest"] {
        let found = format!("causeway_routing_v1_requests_total{{endpoint=\"{endpoint}\",result=\"found\"}}");
        assert!(metrics.sample(&found) > 0, "{endpoint}");
    }
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn causeway_routes_through_kubo() {
    let (third, provider, cid, name) = network().await;
    let dir = TempDir::new().expect("the temporary folder is writable");
    let launch = Launch::new(dir.path()).flag("--router", third.gateway()).set("CAUSEWAY_P2P_DIAL_PRIVATE", true);
    let causeway = launch.start().await;
    causeway.expect(&format!("/ipfs/{cid}"), b"only the provider has this").await;
    let named = causeway.expect(&format!("/ipns/{name}"), b"inspect-test").await;
    assert!(named.header("cache-control").starts_with("public, max-age="), "{}", named.header("cache-control"));

    for endpoint in ["providers", "ipns"] {
        let found = format!("causeway_router_requests_total{{endpoint=\"{endpoint}\",result=\"found\"}}");
        let metrics = causeway.metrics_when(|metrics| metrics.sample(&found) > 0).await;
        assert_eq!(metrics.sample(&found), 1, "{endpoint}");
    }
    assert_eq!(third.sent().await.blocks, 0, "the router has no content to give");
    assert!(provider.sent().await.blocks > 0);
    causeway.stop().await;
}
