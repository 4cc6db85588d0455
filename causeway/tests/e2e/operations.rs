//! Operations of a running node, between real Kubo nodes: peers, explanations, warming, purging, and the
//! life cycle of the process.

use crate::support::causeway::{Causeway, Launch, TOKEN};
use crate::support::kubo::Kubo;
use crate::support::noise::Noise;
use crate::support::{client, eventually};
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);
const FLAGS: [&str; 2] = ["--cid-version=1", "--raw-leaves"];

async fn ask(causeway: &Causeway, method: &str, path: &str, body: Value) -> (u16, Value) {
    let body = (!body.is_null()).then(|| body.to_string());
    causeway.admin(method, &format!("/api/v1/{path}"), body.as_deref()).await
}

async fn explain(causeway: &Causeway, query: &str) -> Value {
    let (status, view) = ask(causeway, "GET", &format!("explain?{query}"), Value::Null).await;
    assert_eq!(status, 200, "{query}: {view}");
    view
}

/// The last line of an answer in JSON lines.
async fn last_line(causeway: &Causeway, path: &str, body: Value) -> Value {
    let url = format!("{}/api/v1/{path}", causeway.admin_url());
    let response = client().post(url).bearer_auth(TOKEN).body(body.to_string()).send().await.expect("is answered");
    assert_eq!(response.status(), 200, "{path}");
    let text = response.text().await.expect("all lines");
    serde_json::from_str(text.lines().last().expect("a line")).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_is_connected_and_its_content_is_explained_warmed_and_purged() {
    let kubo = Kubo::start().await;
    let dir = TempDir::new().expect("the temporary folder is writable");
    let causeway = Launch::new(dir.path()).set("CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS", 3).start().await;
    let unreachable = json!({"address": format!("/ip4/127.0.0.1/tcp/1/p2p/{}", kubo.peer_id()), "timeout_seconds": 10});
    let (status, refused) = ask(&causeway, "POST", "peers/connect", unreachable).await;
    let words = refused["error"].as_str().unwrap_or_default().to_lowercase();
    assert!(status == 422 && words.contains("refused"), "{status} {refused}");
    for already in [false, true] {
        let (status, connected) = ask(&causeway, "POST", "peers/connect", json!({"address": kubo.tcp()})).await;
        assert_eq!((status, &connected["peer_id"]), (200, &json!(kubo.peer_id())), "{connected}");
        assert_eq!(connected["already"], json!(already), "{connected}");
    }
    eventually("Kubo is identified", TIMEOUT, async || {
        let (_, peers) = ask(&causeway, "GET", "peers", Value::Null).await;
        let peer = &peers["peers"][0];
        let agent = peer["agent"].as_str().unwrap_or_default();
        let known = agent.starts_with("kubo/") && peer["rtt_seconds"].is_number();
        if known && peer["connections"][0]["direction"] == json!("out") { Ok(()) } else { Err(peers.to_string()) }
    })
    .await;

    let bytes = Noise::bytes(31, 3_000_000);
    let cid = kubo.add(&bytes[..], &FLAGS);
    let path = format!("/ipfs/{cid}");
    let cold = explain(&causeway, &format!("path={path}")).await;
    assert!(cold["answer"].is_null() && cold["missing"] == json!(cid), "nothing is stored: {cold}");
    assert!(
        cold["network"]["session"].is_null() && cold["network"]["peers"] == json!(1),
        "no requests were sent: {cold}"
    );

    let fetched = explain(&causeway, &format!("path={path}&fetch=true")).await;
    assert_eq!(
        (&fetched["answer"]["status"], &fetched["answer"]["bytes"]),
        (&json!(200), &json!(3_000_000)),
        "{fetched}"
    );
    assert!(
        fetched["fetched"]["in_time"] == json!(true) && fetched["fetched"]["seconds"].as_f64() > Some(0.0),
        "{fetched}"
    );
    // A block is delivered before the session's statistics are updated.
    eventually("Kubo is listed as the provider", TIMEOUT, async || {
        let view = explain(&causeway, &format!("path={path}")).await;
        let member = &view["network"]["session"]["members"][0];
        let gave = member["peer_id"] == json!(kubo.peer_id()) && member["gave"] == json!(true);
        let proved = |view: &Value| view["peer_id"] == json!(kubo.peer_id()) && view["proved_seconds"].is_number();
        let found = view["network"]["search"]["providers"].as_array().is_some_and(|all| all.iter().any(proved));
        if gave && found { Ok(()) } else { Err(view.to_string()) }
    })
    .await;
    assert_eq!(
        (&fetched["content"]["kind"], &fetched["content"]["bytes"]),
        (&json!("file"), &json!(3_000_000)),
        "{fetched}"
    );

    let warmed = last_line(&causeway, "warm", json!({"cid": cid})).await;
    let report = &warmed["report"];
    assert_eq!((&report["complete"], &report["blocks"]), (&json!(true), &json!(13)), "{warmed}");
    let warm = explain(&causeway, &format!("path={path}")).await;
    assert_eq!(
        (&warm["content"]["missing_blocks"], &warm["content"]["blocks_here"]),
        (&json!(0), &json!(13)),
        "{warm}"
    );
    let before = causeway.metrics().await;
    causeway.expect(&path, &bytes).await;
    let (_, _, network) = causeway.metrics().await.since(&before).tiers();
    assert_eq!(network, 0, "all blocks were stored");

    let (status, purged) = ask(&causeway, "POST", "purge", json!({"surrogate_key": cid})).await;
    assert_eq!((status, &purged["disk_blocks"], &purged["missing_blocks"]), (200, &json!(13), &json!(0)), "{purged}");
    let before = causeway.metrics().await;
    causeway.expect(&path, &bytes).await;
    let (_, disk, network) = causeway.metrics().await.since(&before).tiers();
    assert_eq!((disk, network), (0, 13), "all blocks were purged");

    // A block is counted after it was delivered.
    eventually("all blocks are counted", TIMEOUT, async || {
        let (_, bandwidth) = ask(&causeway, "GET", "bandwidth", Value::Null).await;
        let counts = [&bandwidth["received_bytes"], &bandwidth["bitswap"]["received_bytes"]];
        if counts.iter().all(|bytes| bytes.as_u64() > Some(6_000_000)) { Ok(()) } else { Err(bandwidth.to_string()) }
    })
    .await;
    let (status, _) = ask(&causeway, "DELETE", &format!("peers/{}", kubo.peer_id()), Value::Null).await;
    assert_eq!(status, 200);
    eventually("the connection is closed", TIMEOUT, async || {
        let (_, peers) = ask(&causeway, "GET", "peers", Value::Null).await;
        if peers["count"] == json!(0) {
            return Ok(());
        }
        // A query of the DHT may have reconnected.
        ask(&causeway, "DELETE", &format!("peers/{}", kubo.peer_id()), Value::Null).await;
        Err(peers.to_string())
    })
    .await;
    kubo.stop().await;
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_how_a_provider_was_found() {
    // A holder that is a DHT server could be connected before its record is found.
    let is_client = |settings: &mut Value| settings["Routing"]["Type"] = json!("dhtclient");
    let (server, holder) = (Kubo::start().await, Kubo::start_with(is_client).await);
    holder.connect(server.tcp()).await;
    let bytes = Noise::bytes(32, 100_000);
    let cid = holder.add(&bytes[..], &FLAGS);
    eventually("the provider record is kept", TIMEOUT, async || holder.try_provide(&cid)).await;
    let dir = TempDir::new().expect("the temporary folder is writable");
    let causeway = Launch::new(dir.path()).bootstrap(server.tcp()).start().await;
    let path = format!("/ipfs/{cid}");
    eventually("it is found by its record", TIMEOUT, async || {
        let answer = causeway.get(&path).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    let provider_of = |view: &Value| {
        let providers = view["network"]["search"]["providers"].as_array().expect("a search");
        providers.iter().find(|view| view["peer_id"] == json!(holder.peer_id())).expect("it is a provider").clone()
    };
    // The network's task may record it after the block was delivered.
    eventually("the provider is recorded as proved", TIMEOUT, async || {
        let found = provider_of(&explain(&causeway, &format!("path={path}")).await);
        if found["proved_seconds"].is_number() { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
    let view = explain(&causeway, &format!("path={path}")).await;
    let found = provider_of(&view);
    let by_dht = |view: &Value| view["whom"].as_str().is_some_and(|router| router.starts_with("dht-"));
    assert!(found["named_by"].as_array().expect("a list").iter().any(by_dht), "{found}");
    assert!(found["dial"]["seconds"].is_number() && found["dial"]["error"].is_null(), "{found}");
    let cached_provider = &view["network"]["remembered_providers"][0];
    assert_eq!(cached_provider["peer_id"], json!(holder.peer_id()), "{view}");
    server.stop().await;
    holder.stop().await;
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_refreshed_before_it_expires() {
    let (publisher, third) = (Kubo::start().await, Kubo::start().await);
    publisher.connect(third.tcp()).await;
    let [old, new] = [33, 34].map(|seed| publisher.add(&Noise::bytes(seed, 1_000)[..], &FLAGS));
    let name = publisher.publish(&format!("/ipfs/{old}"));
    let dir = TempDir::new().expect("the temporary folder is writable");
    let causeway = Launch::new(dir.path()).bootstrap(third.tcp()).peering(publisher.tcp()).start().await;
    let path = format!("/ipns/{name}");
    eventually("the name is resolved", TIMEOUT, async || {
        let answer = causeway.get(&path).await;
        if answer.body == Noise::bytes(33, 1_000) { Ok(()) } else { Err(answer.text()) }
    })
    .await;
    publisher.publish(&format!("/ipfs/{new}"));
    assert_eq!(causeway.get(&path).await.body, Noise::bytes(33, 1_000), "the old record is fresh");
    let refreshed = eventually("the new record is found", TIMEOUT, async || {
        let (status, refreshed) = ask(&causeway, "POST", "names/refresh", json!({"name": name})).await;
        assert_eq!(status, 200, "{refreshed}");
        if refreshed["changed"] == json!(true) { Ok(refreshed) } else { Err(refreshed.to_string()) }
    })
    .await;
    assert_eq!(refreshed["old"], json!(format!("/ipfs/{old}")), "{refreshed}");
    assert_eq!(refreshed["new"], json!(format!("/ipfs/{new}")), "{refreshed}");
    causeway.expect(&path, &Noise::bytes(34, 1_000)).await;
    let view = explain(&causeway, &format!("path={path}")).await;
    assert_eq!((&view["names"][0]["source"], &view["root"]), (&json!("network"), &json!(new)), "{view}");
    publisher.stop().await;
    third.stop().await;
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_is_observed_configured_drained_and_stopped() {
    let (dir, of_peer) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    // Without a peer, requests would not wait.
    let peer = Launch::new(of_peer.path()).start().await;
    let launch = Launch::new(dir.path()).set("CAUSEWAY_HTTP_CONNECTIONS_MAX", 500).peering(peer.tcp());
    let mut causeway = launch.start().await;
    let (status, level) = ask(&causeway, "GET", "log/level", Value::Null).await;
    assert_eq!((status, &level["level"]), (200, &json!("info,libp2p=warn")), "{level}");
    assert_eq!(ask(&causeway, "PUT", "log/level", json!({"level": "loud"})).await.0, 400);
    let says = |causeway: &Causeway, word: &str| causeway.process.stderr().contains(word);
    assert_eq!(causeway.get("/before").await.status, 404);
    let change = json!({"level": "info,access=debug", "duration_seconds": 2});
    let (status, level) = ask(&causeway, "PUT", "log/level", change).await;
    assert!(
        status == 200 && level["until_at"].is_number() && level["configured"] == json!("info,libp2p=warn"),
        "{level}"
    );
    assert_eq!(causeway.get("/during").await.status, 404);
    eventually("the access log is written", TIMEOUT, async || {
        if says(&causeway, "/during") { Ok(()) } else { Err(causeway.process.stderr()) }
    })
    .await;
    assert!(!says(&causeway, "/before"), "{}", causeway.process.stderr());
    eventually("the level is reset after its time", TIMEOUT, async || {
        let (_, level) = ask(&causeway, "GET", "log/level", Value::Null).await;
        if level["until_at"].is_null() && level["level"] == level["configured"] {
            Ok(())
        } else {
            Err(level.to_string())
        }
    })
    .await;
    assert_eq!(causeway.get("/after").await.status, 404);
    assert!(
        says(&causeway, "the temporary log level has ended") && !says(&causeway, "/after"),
        "{}",
        causeway.process.stderr()
    );

    let (_, config) = ask(&causeway, "GET", "config", Value::Null).await;
    let connections = &config["settings"]["http.connections_max"];
    assert_eq!(connections["value"], json!(500), "{connections}");
    assert_eq!(connections["origin"], json!("environment variable CAUSEWAY_HTTP_CONNECTIONS_MAX"));
    assert!(!config.to_string().contains(TOKEN), "the token is hidden");
    let (_, node) = ask(&causeway, "GET", "node", Value::Null).await;
    assert_eq!((&node["peer_id"], &node["stage"]), (&json!(causeway.peer_id()), &json!("serving")), "{node}");

    let url = format!("{}/api/v1/events", causeway.admin_url());
    let mut events = client().get(url).bearer_auth(TOKEN).send().await.expect("is answered");
    assert_eq!(events.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    while text.matches("event: stats").count() < 3 {
        let chunk = tokio::time::timeout(TIMEOUT, events.chunk()).await.expect("in time").expect("bytes");
        text.push_str(&String::from_utf8_lossy(&chunk.expect("it goes on")));
    }
    let stats = text.split("data: ").nth(2).and_then(|data| data.split("\n\n").next()).expect("a second event");
    let stats: Value = serde_json::from_str(stats).expect("JSON");
    assert!(stats["rates"].is_object() && stats["http"]["requests"]["4xx"].as_u64() >= Some(3), "{stats}");
    drop(events);

    // No peer has this content, so the request is listed as waiting.
    let absent = "/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy";
    let waiting = tokio::spawn(client().get(causeway.url(absent)).send());
    eventually("the request is listed", TIMEOUT, async || {
        let (_, requests) = ask(&causeway, "GET", "requests", Value::Null).await;
        let one = &requests["requests"][0];
        let is_it =
            one["path"] == json!(absent) && one["waits_for"] == json!("content") && one["client"] == json!("127.0.0.1");
        if is_it { Ok(()) } else { Err(requests.to_string()) }
    })
    .await;
    waiting.abort();
    eventually("the request is no longer listed", TIMEOUT, async || {
        let (_, requests) = ask(&causeway, "GET", "requests", Value::Null).await;
        if requests["count"] == json!(0) { Ok(()) } else { Err(requests.to_string()) }
    })
    .await;

    assert_eq!(ask(&causeway, "POST", "drain", Value::Null).await.0, 202);
    assert_eq!(causeway.get("/readyz").await.status, 503);
    assert_eq!(crate::support::get(causeway.welcome()).await.status, 200, "a draining gateway answers requests");
    assert_eq!(ask(&causeway, "DELETE", "drain", Value::Null).await.0, 200);
    causeway.assert_healthy().await;
    assert_eq!(ask(&causeway, "POST", "drain", json!({"stop": true})).await.0, 202);
    let status = causeway.process.ended(TIMEOUT).await;
    assert!(status.success(), "it ended with {status}: {}", causeway.process.stderr());
    peer.stop().await;
}
