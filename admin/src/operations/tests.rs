//! The operations on real components: a store, tiers, a gateway and names, without a network.

use crate::operations::testing::{World, settings, site, world};
use crate::operations::{long_running_routes, routes};
use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use content::importer::{Attributes, Chunking, Importer, Profile};
use content::names::Domain;
use content::{BlockKey, BlockSource as _, Cid, Name, codec, hashes};
use futures::StreamExt as _;
use gateway::listen::connection::Connection;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use p2p_bridge::names::NamesOptions;
use serde_json::{Value, json};
use services::access::Principal;
use services::subject::Subject;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tower::ServiceExt as _;

const EVENT_TIMEOUT: Duration = Duration::from_secs(20);

fn plain() -> World {
    world(settings(|_| ()), &[], NamesOptions::default())
}

fn router(world: &World) -> Router {
    let router: Router = routes(world.operations.clone()).merge(long_running_routes(world.operations.clone())).into();
    router.layer(axum::Extension(Principal::operator()))
}

async fn send(world: &World, method: &str, path: &str, body: Body) -> Response<Body> {
    let request = Request::builder().method(method).uri(path).body(body).expect("a request");
    router(world).oneshot(request).await.expect("answers")
}

async fn ask(world: &World, method: &str, path: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    let response = send(world, method, path, body).await;
    let status = response.status().as_u16();
    let text = response.into_body().collect().await.expect("a body").to_bytes();
    (status, serde_json::from_slice(&text).unwrap_or_default())
}

/// The complete answer to a public request.
async fn get(world: &World, path: &str) -> (StatusCode, http::HeaderMap, Bytes) {
    let connection = Arc::new(Connection::new(([127, 0, 0, 1], 9).into()));
    let request = Request::builder().uri(path).header("host", "x").body(()).expect("a request");
    let response = world.gateway.handle(request, connection).await;
    let (head, body) = response.into_parts();
    (head.status, head.headers, body.collect().await.expect("all of it").to_bytes())
}

/// A node that has a site in its cache.
async fn with_site(world: World) -> (World, Cid, usize) {
    let (root, blocks) = site().await;
    for block in &blocks {
        world.store.put_cached(block.clone()).await;
    }
    world.store.flush().await.expect("writes");
    (world, root, blocks.len())
}

#[tokio::test]
async fn a_purge_takes_everything_below_a_root_out_of_every_tier() {
    let (world, root, blocks) = with_site(plain()).await;
    assert_eq!(get(&world, &format!("/ipfs/{root}/")).await.0, 200);
    let (_, before) = ask(&world, "GET", &format!("/api/v1/explain?path=/ipfs/{root}/"), Value::Null).await;
    assert_eq!(before["remembered"]["key"], json!(format!("/ipfs/{root}/")), "{before}");
    world.tiers.ram().tidy();
    let in_ram = world.tiers.ram().entries();
    assert!(in_ram > 0 && world.store.stats().blocks == blocks as u64);

    let (_, would) = ask(&world, "POST", "/api/v1/purge", json!({"cid": root.to_string(), "dry_run": true})).await;
    assert!(world.store.stats().blocks == blocks as u64 && world.tiers.ram().entries() == in_ram, "nothing is deleted");
    let (status, purged) = ask(&world, "POST", "/api/v1/purge", json!({"surrogate_key": root.to_string()})).await;
    assert_eq!(status, 200, "{purged}");
    assert_eq!(would, purged, "the dry run predicts the result");
    assert_eq!(purged["disk_blocks"], json!(blocks), "{purged}");
    assert!(purged["ram_blocks"].as_u64() > Some(0) && purged["paths"] == json!(1), "{purged}");
    assert_eq!((purged["pinned_blocks"].as_u64(), purged["missing_blocks"].as_u64()), (Some(0), Some(0)), "{purged}");
    assert!(!world.tiers.ram().holds(&BlockKey::of(&root).expect("a key")) && world.store.stats().blocks == 0);
    let before = world.tiers.figures();
    assert_ne!(get(&world, &format!("/ipfs/{root}/")).await.0, 200, "no provider has it");
    let after = world.tiers.figures();
    assert_eq!((after.ram.hits - before.ram.hits, after.disk.hits - before.disk.hits), (0, 0));

    let (_, again) = ask(&world, "POST", "/api/v1/purge", json!({"cid": root.to_string()})).await;
    assert_eq!((again["disk_blocks"].as_u64(), again["missing_blocks"].as_u64()), (Some(0), Some(1)), "{again}");
}

/// A list that links to a block as raw bytes, to many others, and to the same block as a document.
#[tokio::test]
async fn a_purge_follows_a_block_long_after_it_was_found_without_links() {
    let world = plain();
    let made =
        |codec: u64, data: Vec<u8>| content::Block::of(codec, hashes::SHA2_256, 32, data.into()).expect("a block");
    let list = |links: &[Cid]| {
        let links = links.iter().map(|cid| content::ipld::Ipld::Link(Box::new(*cid))).collect();
        let data = content::ipld::encode(&content::ipld::Ipld::List(links), codec::DAG_CBOR).expect("a list");
        made(codec::DAG_CBOR, data.to_vec())
    };
    let below = made(codec::RAW, b"below".to_vec());
    let inner = list(&[*below.cid()]);
    let leaves: Vec<_> = (0..1_500_u32).map(|n| made(codec::RAW, n.to_be_bytes().to_vec())).collect();
    let as_raw = Cid::new_v1(codec::RAW, *inner.cid().hash());
    let links: Vec<Cid> =
        std::iter::once(as_raw).chain(leaves.iter().map(|leaf| *leaf.cid())).chain([*inner.cid()]).collect();
    let root = list(&links);
    for block in leaves.iter().chain([&below, &inner, &root]) {
        world.store.put_cached(block.clone()).await;
    }
    world.store.flush().await.expect("writes");
    let (_, purged) = ask(&world, "POST", "/api/v1/purge", json!({"cid": root.cid().to_string()})).await;
    assert_eq!((&purged["disk_blocks"], &purged["missing_blocks"]), (&json!(1_503), &json!(0)), "{purged}");
    assert_eq!(world.store.stats().blocks, 0);
}

#[tokio::test]
async fn pinned_blocks_are_evicted_from_memory_and_stay_on_the_disk() {
    let world = plain();
    let root = services::welcome::offer(&*world.store, None).await.expect("pins").expect("is not unpinned");
    assert_eq!(get(&world, &format!("/ipfs/{root}/")).await.0, 200);
    assert!(world.tiers.ram().holds(&BlockKey::of(&root).expect("a key")));
    let pinned = world.store.stats().blocks;
    let path = format!("/ipfs/{root}/index.html");
    let (_, one) = ask(&world, "POST", "/api/v1/purge", json!({"path": path, "below": false})).await;
    assert_eq!((one["pinned_blocks"].as_u64(), one["disk_blocks"].as_u64()), (Some(1), Some(0)), "{one}");
    let (_, all) = ask(&world, "POST", "/api/v1/purge", json!({"path": format!("/ipfs/{root}")})).await;
    assert_eq!((all["pinned_blocks"].as_u64(), all["disk_blocks"].as_u64()), (Some(pinned), Some(0)), "{all}");
    assert!(!world.tiers.ram().holds(&BlockKey::of(&root).expect("a key")) && world.store.stats().blocks == pinned);
    assert_eq!(get(&world, &format!("/ipfs/{root}/")).await.0, 200, "from the disk");
}

fn listed(root: Cid) -> NamesOptions {
    let map = content::dnslink::StaticMap::parse(&format!("site.example:/ipfs/{root}")).expect("a list");
    NamesOptions { static_map: map, ..NamesOptions::default() }
}

#[tokio::test]
async fn names_are_purged_refreshed_and_carried_as_surrogate_keys() {
    let (root, _) = site().await;
    let loaded = settings(|config| config.http.surrogate_keys = true);
    let (world, root, blocks) = with_site(world(loaded, &[], listed(root))).await;
    let v1 = Cid::new_v1(root.codec(), *root.hash());
    let (_, headers, _) = get(&world, &format!("/ipfs/{root}/index.html")).await;
    let page = headers["x-ipfs-roots"].to_str().expect("text").rsplit(',').next().expect("a CID");
    let page = content::cid::parse(page).expect("a CID");
    let index = Cid::new_v1(page.codec(), *page.hash()).to_string();
    for (path, keys) in [
        (format!("/ipfs/{root}/index.html"), vec![v1.to_string(), index.clone()]),
        // A directory's page can be purged by its own CID, which is not on the path.
        (format!("/ipfs/{root}/"), vec![v1.to_string(), index.clone()]),
        ("/ipns/Site.example/".to_owned(), vec![v1.to_string(), index.clone(), "site.example".to_owned()]),
    ] {
        let (status, headers, _) = get(&world, &path).await;
        assert_eq!(status, 200, "{path}");
        assert_eq!(headers["surrogate-key"], keys.join(" ").as_str(), "{path}");
        assert_eq!(headers["cache-tag"], keys.join(",").as_str(), "{path}");
    }
    assert!(!get(&world, "/nothing").await.1.contains_key("surrogate-key"));
    let (plain, root, _) = with_site(plain()).await;
    assert!(
        !get(&plain, &format!("/ipfs/{root}/")).await.1.contains_key("surrogate-key"),
        "not unless it is asked for"
    );

    let (status, refreshed) = ask(&world, "POST", "/api/v1/names/refresh", json!({"name": "/ipns/site.example"})).await;
    assert_eq!(status, 200, "{refreshed}");
    assert_eq!(
        (&refreshed["old"], &refreshed["new"]),
        (&json!(format!("/ipfs/{root}")), &json!(format!("/ipfs/{root}")))
    );
    assert_eq!((&refreshed["changed"], &refreshed["steps"][0]["source"]), (&json!(false), &json!("list")));
    let (_, unknown) = ask(&world, "POST", "/api/v1/names/refresh", json!({"name": "other.example"})).await;
    assert!(
        unknown["new"].is_null() && unknown["error"].as_str().is_some_and(|message| message.contains("offline")),
        "{unknown}"
    );

    let (_, purged) = ask(&world, "POST", "/api/v1/purge", json!({"surrogate_key": "site.example"})).await;
    assert_eq!(purged["disk_blocks"], json!(blocks), "the content of the name is deleted: {purged}");
    assert_eq!(purged["names"], json!([]), "the static entry stays");
    let name = Name::Domain(Domain::parse("site.example").expect("a domain"));
    assert_eq!(world.operations.parts().names.explain(&name).len(), 1);
}

#[tokio::test]
async fn invalid_requests_are_rejected_with_a_message() {
    let world = plain();
    let (root, _) = site().await;
    let path = |path: &str| path.to_owned();
    // Method, path, body, status, and a word of the answer.
    let table = [
        ("POST", path("/api/v1/purge"), "{}", 400, "exactly one of"),
        ("POST", path("/api/v1/purge"), "{\"cid\": \"x\", \"name\": \"y\"}", 400, "exactly one of"),
        ("POST", path("/api/v1/purge"), "{\"cids\": []}", 400, "unknown field"),
        ("POST", path("/api/v1/purge"), "{\"cid\": \"x\"}", 400, "CID"),
        ("POST", path("/api/v1/purge"), "{\"path\": \"x\"}", 400, "begins with"),
        ("POST", path("/api/v1/purge"), "{\"surrogate_key\": \"a b\"}", 400, "surrogate key"),
        ("POST", path("/api/v1/names/refresh"), "{}", 400, "missing field"),
        ("POST", path("/api/v1/names/refresh"), "{\"name\": \"no name\"}", 400, "name"),
        ("POST", path("/api/v1/warm"), "{}", 400, "exactly one of"),
        ("POST", path("/api/v1/warm"), "{\"path\": \"/ipfs/\"}", 400, ""),
        ("POST", path("/api/v1/warm"), "{\"cid\": \"bafkqaaa\", \"depth\": -1}", 400, "JSON"),
        ("GET", path("/api/v1/explain"), "", 400, "exactly one of"),
        ("GET", path("/api/v1/explain?path=x"), "", 400, "slash"),
        ("GET", path("/api/v1/explain?url=/ipfs/x"), "", 400, "host"),
        ("GET", format!("/api/v1/explain?path=/ipfs/{root}&fetch=yes"), "", 400, "fetch must be"),
        ("GET", format!("/api/v1/explain?path=/{}", "a".repeat(9000)), "", 400, "8192"),
        ("GET", path("/api/v1/peers?limit=0"), "", 400, "limit"),
        ("GET", path("/api/v1/peers?limits=1"), "", 400, "no parameter"),
        ("POST", path("/api/v1/peers/connect"), "{\"address\": \"/ip4/127.0.0.1/tcp/1\"}", 400, "/p2p/ID"),
        (
            "POST",
            path("/api/v1/peers/connect"),
            "{\"address\": \"12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo\", \"timeout_seconds\": 0}",
            400,
            "timeout_seconds",
        ),
        (
            "POST",
            path("/api/v1/peers/connect"),
            "{\"address\": \"12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo\"}",
            409,
            "offline",
        ),
        ("DELETE", path("/api/v1/peers/nobody"), "", 400, "peer ID"),
        ("GET", path("/api/v1/requests?limit=x"), "", 400, "limit"),
        ("POST", path("/api/v1/store/gc"), "{\"cached_bytes_max\": -1}", 400, "JSON"),
        ("POST", path("/api/v1/drain"), "{\"stop\": 1}", 400, "JSON"),
        ("PUT", path("/api/v1/log/level"), "{\"level\": \"loud\"}", 400, "loud"),
        ("PUT", path("/api/v1/log/level"), "{\"level\": \"info\", \"duration_seconds\": 0}", 400, "duration_seconds"),
        ("PUT", path("/api/v1/log/level"), "{\"level\": \"info\"}", 409, "log"),
        ("GET", path("/api/v1/config?key=x"), "", 400, "no parameter"),
        ("GET", path("/api/v1/stats?x"), "", 400, "no parameter"),
        ("GET", path("/api/v1/history?resolution=60"), "", 400, "no parameter"),
        ("GET", path("/api/v1/health?x"), "", 400, "no parameter"),
        ("GET", path("/api/v1/requests/errors?limit=1"), "", 400, "no parameter"),
    ];
    for (method, path, body, expected, message) in table {
        let response = send(&world, method, &path, Body::from(body.to_owned())).await;
        let status = response.status().as_u16();
        let text = response.into_body().collect().await.expect("a body").to_bytes();
        let said: Value = serde_json::from_slice(&text).unwrap_or_default();
        let error = said["error"].as_str().unwrap_or_default();
        assert!(
            status == expected && !error.is_empty() && error.contains(message),
            "{method} {path} {body}: {status} {said}"
        );
    }
}

#[tokio::test]
async fn a_request_is_explained_as_it_would_be_answered() {
    let (root, _) = site().await;
    let (world, root, blocks) = with_site(world(settings(|_| ()), &[], listed(root))).await;
    let explain = async |query: &str| {
        let (status, view) = ask(&world, "GET", &format!("/api/v1/explain?{query}"), Value::Null).await;
        assert_eq!(status, 200, "{query}: {view}");
        view
    };
    // The explained answer equals the real answer.
    let index = format!("/ipfs/{root}/");
    let told = explain(&format!("path={index}")).await;
    assert!(told["remembered"].is_null(), "{told}");
    assert_eq!(explain(&format!("path={index}")).await["remembered"], Value::Null, "explain caches nothing");
    world.tiers.ram().tidy();
    assert_eq!(world.tiers.ram().entries(), 0);
    let (status, headers, body) = get(&world, &index).await;
    assert_eq!(told["answer"]["status"], json!(status.as_u16()), "{told}");
    assert_eq!(told["answer"]["bytes"], json!(body.len()));
    for name in ["etag", "content-type", "cache-control", "x-ipfs-path", "x-ipfs-roots"] {
        assert_eq!(told["answer"]["headers"][name].as_str(), headers[name].to_str().ok(), "{name}");
    }
    assert_eq!((&told["route"]["kind"], &told["route"]["links"]), (&json!("content"), &json!("path")));
    assert_eq!((&told["policy"]["verdict"], &told["format"]), (&json!("allow"), &json!("native")), "{told}");
    let content = &told["content"];
    assert_eq!((&content["kind"], &content["blocks_here"]), (&json!("directory"), &json!(blocks)), "{content}");
    assert_eq!((&content["missing_blocks"], &content["disk_blocks"]), (&json!(0), &json!(blocks)));
    assert_eq!((&told["blocks"][0]["disk"], &told["blocks"][0]["ram"]), (&json!(true), &json!(false)), "{told}");
    assert!(told["network"].is_null(), "it is offline");
    let told = explain(&format!("path={index}")).await;
    assert_eq!((&told["blocks"][0]["ram"], &told["remembered"]["is_current"]), (&json!(true), &json!(true)), "{told}");

    let by_name = explain("path=/ipns/site.example/nothing").await;
    assert_eq!(by_name["resolved"], json!(format!("/ipfs/{root}/nothing")), "{by_name}");
    assert_eq!((&by_name["names"][0]["source"], &by_name["answer"]["status"]), (&json!("list"), &json!(404)));
    assert!(by_name["notes"][0].as_str().is_some_and(|message| message.contains("nothing")), "{by_name}");

    let host = explain(&format!("url=http://localhost:8080/ipfs/{root}/")).await;
    let v1 = Cid::new_v1(root.codec(), *root.hash());
    assert_eq!((&host["route"]["kind"], &host["answer"]["status"]), (&json!("redirect"), &json!(301)), "{host}");
    assert_eq!(host["answer"]["location"], json!(format!("http://{v1}.ipfs.localhost:8080/")), "{host}");
    assert_eq!((&host["then"]["answer"]["status"], &host["then"]["path"]), (&json!(200), &json!("/")), "{host}");
    let origin = explain(&format!("url=http://{v1}.ipfs.localhost:8080/index.html")).await;
    assert_eq!(
        (&origin["route"]["links"], &origin["route"]["isolated"]),
        (&json!("subdomain"), &json!(true)),
        "{origin}"
    );
    assert_eq!((&origin["answer"]["status"], &origin["content"]["kind"]), (&json!(200), &json!("raw")), "{origin}");
    assert_eq!(explain("path=/").await["route"]["kind"], json!("landing"));

    let missing = Cid::new_v1(codec::RAW, hashes::digest(hashes::SHA2_256, 32, b"nobody has this").expect("a hash"));
    let absent = explain(&format!("path=/ipfs/{missing}")).await;
    assert!(absent["answer"].is_null() && absent["missing"] == json!(missing.to_string()), "{absent}");
    let name = explain("path=/ipns/k51qzi5uqu5dlvj2baxnqndepeb86cbk3ng7n3i46uzyxyzqj2xjonzllnv0v8").await;
    assert_eq!(name["names"][0]["source"], json!("unknown"), "{name}");
    let wrong = explain("path=/ipfs/nonsense").await;
    assert_eq!(wrong["answer"]["status"], json!(400), "{wrong}");
    let format = explain(&format!("path=/ipfs/{root}%3Fformat=bogus")).await;
    assert_ne!(format["answer"]["status"], json!(200), "{format}");
}

#[tokio::test]
async fn counting_stops_at_the_time_limit_and_reports_whether_it_is_complete() {
    let (world, root, blocks) = with_site(plain()).await;
    let (_, site) = site().await;
    let block = site.iter().find(|block| *block.cid() == root).expect("the root");
    let counted = async |blocks_max: usize| {
        let looks = AtomicUsize::new(0);
        let is_late = || looks.fetch_add(1, Ordering::Relaxed) >= blocks_max;
        let view = world.operations.count(block, 0, is_late).await;
        (view.blocks_here, view.counted_all)
    };
    // The time is checked before each block.
    for some in [0, 1, 2, blocks - 1] {
        assert_eq!(counted(some).await, (some as u64, false));
    }
    assert_eq!(counted(blocks).await, (blocks as u64, true), "the limit is reached after all were counted");
}

#[tokio::test]
async fn withheld_content_is_explained_by_the_policy() {
    let (root, blocks) = site().await;
    let denied = blocks.iter().map(content::Block::cid).find(|cid| **cid != root).copied().expect("another");
    let (world, root, _) = with_site(world(settings(|_| ()), &[root], NamesOptions::default())).await;
    let (_, told) = ask(&world, "GET", &format!("/api/v1/explain?path=/ipfs/{root}/"), Value::Null).await;
    assert_eq!(
        (&told["policy"]["verdict"], &told["policy"]["refused"]),
        (&json!("gone"), &json!(root.to_string())),
        "{told}"
    );
    assert_eq!(told["answer"]["status"], json!(410), "{told}");
    let (_, other) = ask(&world, "GET", &format!("/api/v1/explain?path=/ipfs/{denied}"), Value::Null).await;
    assert_eq!(other["policy"]["verdict"], json!("allow"), "{other}");
    let (_, purged) = ask(&world, "POST", "/api/v1/purge", json!({"cid": root.to_string()})).await;
    assert_eq!(purged["disk_blocks"], json!(blocks.len()), "withheld content is purged as well: {purged}");
}

/// A folder with a file of two leaves, of which the second is denied and deleted, as after a take-down. An IPNS name
/// resolves to the folder.
async fn with_denied_leaf() -> (World, Cid, Cid) {
    let mut made = Vec::new();
    let mut sink = |block: content::Block| {
        made.push(block);
        Ok(())
    };
    let profile = Profile { chunking: Chunking::size(1000).expect("a size"), ..Profile::UNIXFS_V1_2025 };
    let importer = Importer::new(profile).expect("a profile");
    let mut file = importer.file(Attributes::default());
    file.write(&[1; 1000], &mut sink).expect("taken");
    file.write(&[2; 1000], &mut sink).expect("taken");
    let file = file.finish(&mut sink).expect("taken");
    let mut leaf = importer.file(Attributes::default());
    leaf.write(&[2; 1000], &mut sink).expect("taken");
    let leaf = leaf.finish(&mut sink).expect("taken");
    let mut folder = importer.directory(Attributes::default());
    folder.add(b"two", &file).expect("a name");
    folder.add(b"leaf", &leaf).expect("a name");
    let root = folder.finish(&mut sink).expect("taken").cid;
    let world = world(settings(|_| ()), &[leaf.cid], listed(root));
    for block in made.into_iter().filter(|block| *block.cid() != leaf.cid) {
        world.store.put_cached(block).await;
    }
    world.store.flush().await.expect("writes");
    (world, root, leaf.cid)
}

#[tokio::test]
async fn the_answer_explain_and_checks_agree_about_withheld_content() {
    let (world, root, leaf) = with_denied_leaf().await;
    // The path; the status; whether the answer is aborted; whether it is reported as withheld.
    let table = [
        (format!("/ipfs/{leaf}"), 410, false, true),
        (format!("/ipfs/{root}/leaf"), 410, false, true),
        ("/ipns/site.example/leaf".to_owned(), 410, false, true),
        (format!("/ipfs/{root}/"), 200, false, false),
        (format!("/ipfs/{root}"), 301, false, false),
        (format!("/ipfs/{root}/two"), 200, true, true),
        (format!("/ipfs/{root}/nothing"), 404, false, false),
    ];
    for (path, status, breaks_off, refused) in table {
        let (_, told) = ask(&world, "GET", &format!("/api/v1/explain?path={path}"), Value::Null).await;
        assert_eq!(told["answer"]["status"], json!(status), "{path}: {told}");
        assert_eq!(told["answer"]["breaks_off"].is_string(), breaks_off, "{path}: {told}");
        let verdict = if refused { "gone" } else { "allow" };
        assert_eq!(told["policy"]["verdict"], json!(verdict), "{path}: {told}");
        let predicted = world.operations.predict(&Subject::of_path(&path).expect("a path")).await;
        assert_eq!(predicted.refused.is_some(), refused, "{path}: {predicted:?}");
        let end = if status == 301 { 200 } else { status };
        assert_eq!(predicted.status, Some(end), "{path}: {predicted:?}");
    }
    // Archives, which are either refused at once or aborted.
    for format in ["tar", "car"] {
        let path = format!("/ipfs/{root}%3Fformat={format}");
        let (_, told) = ask(&world, "GET", &format!("/api/v1/explain?path={path}"), Value::Null).await;
        let answer = &told["answer"];
        assert!(answer["status"] == json!(410) || answer["breaks_off"].is_string(), "{told}");
        assert_eq!(told["policy"]["verdict"], json!("gone"), "{told}");
    }
}

/// The lines of an answer, as JSON.
async fn lines(response: Response<Body>) -> Vec<Value> {
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let text = response.into_body().collect().await.expect("all of it").to_bytes();
    text.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("JSON"))
        .collect()
}

#[tokio::test]
async fn warming_fetches_a_dag_to_the_requested_depth() {
    let world = plain();
    let (root, blocks) = site().await;
    blocks.iter().for_each(|block| world.network.insert(block));
    let warm = async |body: Value| {
        let lines = lines(send(&world, "POST", "/api/v1/warm", Body::from(body.to_string())).await).await;
        assert!(lines.len() >= 2 || lines[0].get("error").is_some(), "{lines:?}");
        lines.last().expect("a line").clone()
    };
    let top = warm(json!({"cid": root.to_string(), "depth": 0})).await;
    assert_eq!((&top["report"]["blocks"], &top["report"]["fetched_blocks"]), (&json!(1), &json!(1)), "{top}");
    let all = warm(json!({"path": format!("/ipfs/{root}")})).await;
    let report = &all["report"];
    assert_eq!((&report["complete"], &report["blocks"]), (&json!(true), &json!(blocks.len())), "{all}");
    assert_eq!(report["fetched_blocks"], json!(blocks.len() - 1), "locally stored blocks are not fetched again: {all}");
    world.store.flush().await.expect("writes");
    for block in &blocks {
        assert_eq!(world.store.has(block.cid()).await, Ok(true));
    }
    let bounded = warm(json!({"cid": root.to_string(), "bytes_max": 1})).await;
    assert_eq!(
        (&bounded["report"]["complete"], &bounded["report"]["stopped_by"]),
        (&json!(false), &json!("bytes_max"))
    );
    let index = warm(json!({"path": format!("/ipfs/{root}/index.html")})).await;
    assert_ne!(index["report"]["root"], json!(root.to_string()), "{index}");
    let absent = warm(json!({"cid": "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"})).await;
    assert_eq!(
        (&absent["report"]["complete"], &absent["report"]["failed_blocks"]),
        (&json!(false), &json!(1)),
        "{absent}"
    );
    let nowhere = warm(json!({"path": format!("/ipfs/{root}/nothing/there")})).await;
    assert!(nowhere["error"].as_str().is_some_and(|message| message.contains("nothing")), "{nowhere}");
    let unknown = warm(json!({"path": "/ipns/unknown.example"})).await;
    assert!(unknown["error"].as_str().is_some_and(|message| message.contains("offline")), "{unknown}");
}

#[tokio::test]
async fn cached_blocks_are_evicted_on_request_and_pinned_ones_stay() {
    let (world, _, blocks) = with_site(plain()).await;
    let before = world.store.stats();
    let gc = async |request: Value| ask(&world, "POST", "/api/v1/store/gc", request).await.1;
    let would = gc(json!({"dry_run": true})).await;
    assert_eq!((&would["blocks"], &would["bytes"]), (&json!(blocks), &json!(before.cached_bytes)), "{would}");
    let most = gc(json!({"dry_run": true, "cached_bytes_max": 1})).await;
    assert_eq!((&most["bytes"], &most["blocks"]), (&json!(before.cached_bytes - 1), &Value::Null), "{most}");
    assert_eq!(world.store.stats().blocks, before.blocks, "nothing is deleted");
    let (status, nothing) =
        ask(&world, "POST", "/api/v1/store/gc", json!({"cached_bytes_max": before.cached_bytes})).await;
    assert_eq!((status, &nothing["blocks"]), (200, &json!(0)), "{nothing}");
    let (_, some) = ask(&world, "POST", "/api/v1/store/gc", json!({"cached_bytes_max": before.cached_bytes / 2})).await;
    assert!(
        some["blocks"].as_u64() > Some(0) && some["cached_bytes"].as_u64() <= Some(before.cached_bytes / 2),
        "{some}"
    );
    let root = services::welcome::offer(&*world.store, None).await.expect("pins").expect("is not unpinned");
    let (_, rest) = ask(&world, "POST", "/api/v1/store/gc", Value::Null).await;
    assert_eq!((&rest["cached_bytes"], world.store.stats().cached_bytes), (&json!(0), 0), "{rest}");
    assert!(world.store.stats().blocks == blocks as u64 && world.store.has(&root).await == Ok(true));
}

#[tokio::test]
async fn draining_is_shown_by_readyz_and_may_stop_the_process() {
    let world = plain();
    let ready = || world.health.ready(&http::HeaderMap::new()).status().as_u16();
    let (status, draining) = ask(&world, "POST", "/api/v1/drain", Value::Null).await;
    assert_eq!(
        (status, &draining["stage"], &draining["stopping"], ready()),
        (202, &json!("draining"), &json!(false), 503)
    );
    assert!(!world.stop.is_cancelled());
    let (status, serving) = ask(&world, "DELETE", "/api/v1/drain", Value::Null).await;
    assert_eq!((status, &serving["stage"], ready()), (200, &json!("serving"), 200));
    let (status, ending) = ask(&world, "POST", "/api/v1/drain", json!({"stop": true})).await;
    assert!(status == 202 && ending["stopping"] == json!(true) && world.stop.is_cancelled(), "{ending}");
    assert_eq!(ask(&world, "DELETE", "/api/v1/drain", Value::Null).await.0, 409, "stopping cannot be undone");
    let (_, node) = ask(&world, "GET", "/api/v1/node", Value::Null).await;
    assert_eq!(
        (&node["stage"], &node["offline"], &node["stopping"]),
        (&json!("draining"), &json!(true), &json!(true)),
        "{node}"
    );
    assert_eq!(node["gateway_listeners"], json!(["127.0.0.1:8080"]), "{node}");
}

#[tokio::test]
async fn an_offline_node_has_no_peers_and_no_traffic() {
    let world = plain();
    let (status, peers) = ask(&world, "GET", "/api/v1/peers?limit=5", Value::Null).await;
    assert_eq!((status, &peers), (200, &json!({"count": 0, "peers": []})));
    let (status, bandwidth) = ask(&world, "GET", "/api/v1/bandwidth", Value::Null).await;
    assert_eq!((status, &bandwidth["received_bytes"], &bandwidth["transports"]), (200, &json!(0), &json!([])));
}

#[tokio::test]
async fn running_requests_are_listed() {
    let (world, root, _) = with_site(plain()).await;
    let requests = async || ask(&world, "GET", "/api/v1/requests", Value::Null).await.1;
    assert_eq!(requests().await, json!({"count": 0, "requests": []}));
    // An archive is streamed, and the client has not read anything yet.
    let connection = Arc::new(Connection::new(([192, 0, 2, 7], 9).into()));
    let request = Request::builder().uri(format!("/ipfs/{root}?format=car")).header("host", "gateway.example");
    let response = world.gateway.handle(request.body(()).expect("a request"), connection).await;
    let listed = requests().await;
    let one = &listed["requests"][0];
    assert_eq!((&listed["count"], &one["method"], &one["status"]), (&json!(1), &json!("GET"), &json!(200)), "{listed}");
    assert_eq!((&one["path"], &one["client"]), (&json!(format!("/ipfs/{root}?format=car")), &json!("192.0.2.7")));
    assert_eq!((&one["host"], &one["sent_bytes"]), (&json!("gateway.example"), &json!(0)), "{listed}");
    let mut body = response.into_body();
    let first = body.frame().await.expect("a frame").expect("bytes").into_data().expect("bytes");
    let one = requests().await["requests"][0].clone();
    assert_eq!((&one["sent_bytes"], &one["waits_for"]), (&json!(first.len()), &json!("client")), "{one}");
    drop(body);
    assert_eq!(requests().await["count"], json!(0));
    // A file of one block whose path is cached is answered at once, and is never listed.
    assert_eq!(get(&world, &format!("/ipfs/{root}/")).await.0, 200);
    let response = world.gateway.handle(
        Request::builder().uri(format!("/ipfs/{root}/")).header("host", "x").body(()).expect("a request"),
        Arc::new(Connection::new(([192, 0, 2, 7], 9).into())),
    );
    let response = response.await;
    assert_eq!((response.status(), world.gateway.running.len()), (StatusCode::OK, 0));
}

/// The statistics of the next event.
async fn next_event(body: &mut (impl futures::Stream<Item = Result<Bytes, axum::Error>> + Unpin)) -> Value {
    loop {
        let chunk =
            tokio::time::timeout(EVENT_TIMEOUT, body.next()).await.expect("in time").expect("goes on").expect("bytes");
        let text = String::from_utf8(chunk.to_vec()).expect("text");
        if let Some(data) = text.strip_prefix("event: stats\ndata: ") {
            return serde_json::from_str(data.trim_end()).expect("JSON");
        }
        assert_eq!(text, "retry: 2000\n\n");
    }
}

#[tokio::test]
async fn statistics_are_sent_once_or_every_second() {
    let (world, root, blocks) = with_site(plain()).await;
    let (status, once) = ask(&world, "GET", "/api/v1/stats", Value::Null).await;
    assert_eq!((status, &once["store"]["blocks"], &once["rates"]), (200, &json!(blocks), &Value::Null), "{once}");
    let events = async || send(&world, "GET", "/api/v1/events", Body::empty()).await;
    let response = events().await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut reader = response.into_body().into_data_stream();
    let first = next_event(&mut reader).await;
    assert!(first["rates"].is_null() && first["http"]["requests"]["2xx"] == json!(0), "{first}");
    assert_eq!(get(&world, &format!("/ipfs/{root}/")).await.0, 200);
    let second = next_event(&mut reader).await;
    assert_eq!(second["http"]["requests"]["2xx"], json!(1), "{second}");
    assert!(
        second["rates"]["requests"].as_f64() > Some(0.0) && second["tiers"]["disk"]["hits"].as_u64() > Some(0),
        "{second}"
    );

    // A new subscriber receives the latest snapshot at once; the number of subscribers of one token is limited.
    let mut others = Vec::new();
    for _ in 1..crate::operations::live::SUBSCRIBERS_MAX / 4 * 3 {
        others.push(events().await);
    }
    assert_eq!(events().await.status(), 429);
    let mut joined = others.pop().expect("many").into_body().into_data_stream();
    let at_once = next_event(&mut joined).await;
    assert!(at_once["taken_at"].as_u64() >= second["taken_at"].as_u64(), "{at_once}");
    drop((others, reader, joined));
    let after = events().await.into_body().into_data_stream();
    let fresh = next_event(&mut Box::pin(after)).await;
    assert!(fresh["rates"].is_null(), "no snapshots are taken without subscribers: {fresh}");
}

#[tokio::test]
async fn statistics_end_when_the_token_is_revoked() {
    let (world, ..) = with_site(plain()).await;
    let response = send(&world, "GET", "/api/v1/events", Body::empty()).await;
    let mut events = response.into_body().into_data_stream();
    next_event(&mut events).await;
    world.is_revoked.store(true, Ordering::Relaxed);
    assert!(tokio::time::timeout(EVENT_TIMEOUT, events.next()).await.expect("in time").is_none());
}

/// The path of a block that is no valid dag-pb node, which is stored.
async fn with_invalid_block(world: &World) -> String {
    let block = content::Block::of(codec::DAG_PB, hashes::SHA2_256, 32, Bytes::from_static(b"\xff\xff\xff"));
    let block = block.expect("a block");
    world.store.put_cached(block.clone()).await;
    world.store.flush().await.expect("writes");
    format!("/ipfs/{}", block.cid())
}

#[tokio::test]
async fn statistics_have_budgets_errors_and_latencies_by_tier() {
    let settings = settings(|config| config.cache.disk_bytes_max = 5 << 30);
    let (world, root, _) = with_site(world(settings, &[], NamesOptions::default())).await;
    let events = send(&world, "GET", "/api/v1/events", Body::empty()).await;
    let mut events = events.into_body().into_data_stream();
    next_event(&mut events).await;
    let invalid = with_invalid_block(&world).await;
    assert_eq!(get(&world, &format!("/ipfs/{root}/")).await.0, 200);
    assert_eq!(get(&world, &invalid).await.0, 502);
    let stats = next_event(&mut events).await;
    let rates = &stats["rates"];
    assert!(rates["errors"].as_f64() > Some(0.0), "{stats}");
    assert!(rates["requests_by_tier"]["disk"].as_f64() > Some(0.0), "{stats}");
    assert!(rates["bytes_by_tier"]["disk"].as_f64() > Some(0.0), "{stats}");
    assert_eq!((&rates["requests_by_tier"]["ram"], &stats["recent"]["ram"]["requests"]), (&json!(0.0), &json!(0)));
    assert_eq!(
        (&stats["recent"]["ram"]["p50_seconds"], &stats["recent"]["disk"]["requests"]),
        (&Value::Null, &json!(1))
    );
    assert!(stats["recent"]["disk"]["p99_seconds"].is_f64(), "{stats}");
    assert!(stats["http"]["tiers"]["disk"]["first_byte_p99_seconds"].is_f64(), "{stats}");
    let store = &stats["store"];
    assert_eq!((&store["disk_budget_bytes"], &store["ram_budget_bytes"]), (&json!(5_u64 << 30), &json!(64 << 20)));
    assert_eq!(store["disk_used_bytes"], store["cached_bytes"]);
    if cfg!(target_os = "linux") {
        let process = &stats["process"];
        assert!(process["resident_bytes"].as_u64() > Some(1 << 20) && process["cpu_seconds"].is_f64(), "{stats}");
        assert!(process["open_files"].as_u64() < process["open_files_max"].as_u64(), "{stats}");
    }
}

#[tokio::test]
async fn failed_responses_are_listed_with_their_reason() {
    let (root, blocks) = site().await;
    let world = plain();
    let errors = async || ask(&world, "GET", "/api/v1/requests/errors", Value::Null).await.1;
    assert_eq!(errors().await, json!({"errors": []}));
    // The last block is missing, so an archive breaks off.
    for block in &blocks[..blocks.len() - 1] {
        world.store.put_cached(block.clone()).await;
    }
    world.store.flush().await.expect("writes");
    let path = with_invalid_block(&world).await;
    assert_eq!(get(&world, &format!("{path}?download=true")).await.0, 502);
    let request = Request::builder().uri(format!("/ipfs/{root}?format=car")).header("host", "gateway.example");
    let connection = Arc::new(Connection::new(([192, 0, 2, 7], 9).into()));
    let response = world.gateway.handle(request.body(()).expect("a request"), connection).await;
    assert_eq!(response.status(), 200);
    response.into_body().collect().await.expect_err("it is aborted");
    assert_eq!(get(&world, "/ipfs/nothing").await.0, 400, "not an error of the gateway");
    let listed = errors().await;
    let [aborted, answered] = &listed["errors"].as_array().expect("a list")[..] else { panic!("{listed}") };
    assert_eq!((&answered["path"], &answered["status"]), (&json!(path), &json!(502)), "{listed}");
    assert!(answered["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{listed}");
    assert_eq!((&aborted["path"], &aborted["status"]), (&json!(format!("/ipfs/{root}")), &json!(200)), "{listed}");
    assert!(aborted["reason"].as_str().is_some_and(|reason| reason.starts_with("aborted: ")), "{listed}");
    assert_eq!((&aborted["host"], &aborted["client"]), (&json!("gateway.example"), &json!("192.0.2.7")));
    assert!(aborted["at"].as_u64() >= answered["at"].as_u64() && aborted["seconds"].is_f64(), "{listed}");
}

#[tokio::test]
async fn health_is_told_in_words() {
    let world = plain();
    let health = async || ask(&world, "GET", "/api/v1/health", Value::Null).await;
    let (status, view) = health().await;
    assert_eq!((status, &view["ready"], &view["stage"]), (200, &json!(true), &json!("serving")), "{view}");
    // Offline, without a data folder.
    assert_eq!((&view["findings"], &view["reachability"]["state"]), (&json!([]), &json!("unknown")), "{view}");
    assert_eq!(ask(&world, "POST", "/api/v1/drain", Value::Null).await.0, 202);
    let (_, view) = health().await;
    let finding = &view["findings"][0];
    assert_eq!(
        (&view["ready"], &view["stage"], &finding["level"]),
        (&json!(false), &json!("draining"), &json!("warning"))
    );
    assert!(finding["advice"].as_str().is_some_and(|advice| advice.contains("drain --undo")), "{view}");
    world.health.fail("the store's writer");
    let (_, view) = health().await;
    let levels: Vec<_> = view["findings"].as_array().expect("a list").iter().map(|finding| &finding["level"]).collect();
    assert_eq!(levels, ["error", "warning"], "{view}");
}

#[tokio::test]
async fn the_settings_are_shown() {
    let world = world(settings(|config| config.http.connections_max = 77), &[], NamesOptions::default());
    let (status, view) = ask(&world, "GET", "/api/v1/config", Value::Null).await;
    assert_eq!((status, &view["settings"]["http.connections_max"]["value"]), (200, &json!(77)));
    assert_eq!(view["settings"]["http.connections_max"]["origin"], json!("the default"));
}
