//! All commands over a real store and a real pin service, sent by the operator and by other tokens.

use crate::kubo_rpc::*;
use crate::uploads::tests::{noise, zstd};
use api::access::Quota;
use api::error::KuboError;
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use bytes::Bytes;
use cache::memory::{self, MemoryOptions};
use cache::{MetadataStore, Ram, TierMetrics, Tiers};
use content::importer::{Attributes, BlockSink, Importer, Profile};
use content::{Block, BlockSource, Cid, DenyList, MemoryBlocks, car, codec, hashes};
use futures::stream;
use http_body_util::BodyExt as _;
use p2p_bridge::names::NamesOptions;
use p2p_bridge::names::keystore::Keystore;
use p2p_bridge::names::store::NameStore;
use p2p_bridge::options::PublishOptions;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use services::access::Principal;
use services::limiter::Limiter;
use services::pinning::{Coordination, PinMetrics, PinNetwork, PinOptions};
use std::io;
use tower::ServiceExt as _;

/// A node without a network, but with a simulated provider of blocks.
struct World {
    router: Router,
    rpc: Rpc,
    store: Arc<dyn BlockStore>,
    elsewhere: Arc<MemoryBlocks>,
    _dir: tempfile::TempDir,
}

/// An answer.
#[derive(Debug)]
struct Reply {
    status: u16,
    body: Bytes,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn lines(&self) -> Vec<Value> {
        let lines = self.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).expect("JSON")).collect()
    }

    /// The message of an error with this status.
    fn refused(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{self:?}");
        let error: KuboError = serde_json::from_slice(&self.body).expect("an error");
        assert_eq!(error.kind, "error");
        error.message
    }
}

impl World {
    async fn new() -> Self {
        Self::denying([]).await
    }

    async fn denying(denied: impl IntoIterator<Item = Cid>) -> Self {
        Self::with(denied, &MemoryOptions::default()).await
    }

    async fn with(denied: impl IntoIterator<Item = Cid>, options: &MemoryOptions) -> Self {
        Self::taking_in(denied, options, config::Uploads::default()).await
    }

    async fn taking_in(
        denied: impl IntoIterator<Item = Cid>,
        options: &MemoryOptions,
        uploads: config::Uploads,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let registry = &mut Registry::default();
        let store = memory::open(options).expect("opens");
        let policy: Arc<dyn Policy> = Arc::new(DenyList::new(denied));
        let tiers = TierMetrics::register(registry);
        let tiers = Tiers::new(Ram::new(1 << 20), Arc::clone(&store), Arc::clone(&policy), tiers);
        let elsewhere = Arc::new(MemoryBlocks::new());
        let upstream = Arc::clone(&elsewhere);
        let through = tiers.clone();
        let open_session =
            move |_: &Cid, _| Arc::new(through.through(Arc::clone(&upstream) as _)) as Arc<dyn BlockSource>;
        let local: Arc<dyn BlockSource> = Arc::new(tiers.held());
        let fetches = Arc::new(Limiter::new(8, 8));
        let sources = Sources { local, open_session: Box::new(open_session), fetches, policy: Arc::clone(&policy) };
        let sources = Arc::new(sources);
        let upstream = Arc::clone(&elsewhere);
        let reach = PinNetwork {
            session: Box::new(move |_| Arc::clone(&upstream) as _),
            ..PinNetwork::local_only(&tiers, Arc::clone(&policy))
        };
        let metrics = PinMetrics::register(registry);
        let pins = Pins::start(
            PinOptions::default(),
            Coordination::single(MetadataStore::memory()),
            Arc::clone(&store),
            reach,
            metrics,
        );
        let keys = Keystore::open(dir.path(), std::time::Duration::ZERO).expect("opens");
        let keys = NameStore::open(dir.path(), keys, None).expect("opens");
        let names = NamesOptions { offline: true, ..NamesOptions::default() };
        let names = p2p_bridge::Names::new(names, None, registry).expect("good options");
        let publishing = PublishOptions::default();
        let publisher = Publisher::start(publishing, keys, Arc::clone(&names), Vec::new(), registry);
        let publisher = Arc::new(publisher);
        let pins = pins.await.expect("starts");
        let cache_bytes_max = options.cache_bytes_max.min(options.bytes_max);
        let cache = config::Cache { disk_bytes_max: cache_bytes_max, ..config::Cache::default() };
        let uploads = services::uploads::UploadLimits::new(&uploads, &cache);
        let uploads = Uploads::new(&store, Arc::clone(&policy), Arc::clone(&pins), uploads, dir.path()).expect("opens");
        let rpc = Rpc::new(Dependencies {
            sources,
            names,
            policy: Arc::clone(&policy),
            store: Arc::clone(&store),
            peer_id: *publisher.keys().get("self").expect("a key").0.key.peer_id(),
            publisher,
            bridge: None,
            pins,
            uploads,
            limits: RequestLimits::default(),
        });
        let router = long_running_routes(rpc.clone()).split_for_parts().0;
        Self { router, rpc, store, elsewhere, _dir: dir }
    }

    /// Stores blocks.
    async fn hold(&self, blocks: &[Block]) {
        for block in blocks {
            self.store.put_cached(block.clone()).await;
        }
        self.store.flush().await.expect("writes");
    }

    async fn ask_as(&self, bearer: Principal, request: axum::http::request::Builder, body: Body) -> Reply {
        let request = request.method("POST").extension(bearer).body(body).expect("a request");
        let response = self.router.clone().oneshot(request).await.expect("answers");
        let status = response.status().as_u16();
        Reply { status, body: response.into_body().collect().await.expect("ends well").to_bytes() }
    }

    /// Sends a command as the operator.
    async fn ask(&self, command: &str) -> Reply {
        self.ask_as(Principal::operator(), Request::builder().uri(format!("/api/v0/{command}")), Body::empty()).await
    }

    /// Sends a command with files.
    async fn send(&self, command: &str, files: &[&[u8]]) -> Reply {
        self.send_as(Principal::operator(), command, files).await
    }

    async fn send_as(&self, bearer: Principal, command: &str, files: &[&[u8]]) -> Reply {
        let request = Request::builder().uri(format!("/api/v0/{command}"));
        let request = request.header(CONTENT_TYPE, "multipart/form-data; boundary=between");
        self.ask_as(bearer, request, Body::from(form(files))).await
    }
}

impl World {
    /// Sends a command with a body in a content coding.
    async fn send_coded(&self, command: &str, coding: &str, body: Vec<u8>) -> Reply {
        let request = Request::builder().uri(format!("/api/v0/{command}")).header("content-encoding", coding);
        let request = request.header(CONTENT_TYPE, "multipart/form-data; boundary=between");
        self.ask_as(Principal::operator(), request, Body::from(body)).await
    }
}

#[tokio::test]
async fn encoded_files_are_what_they_decode_to() {
    let text = b"a line of text\n".repeat(50_000);
    let (blocks, root) = folder();
    let whole = archive(&[root], &blocks);
    let files: [(&str, &[u8]); 4] =
        [("add", &text), ("dag/import?stats=true", &whole), ("block/put", &text[..10_000]), ("dag/put", b"{\"a\":1}")];
    for (command, file) in files {
        let (world, other) = (World::new().await, World::new().await);
        let plain = other.send(command, &[file]).await;
        assert_eq!(plain.status, 200, "{command}: {plain:?}");
        let body = zstd(&form(&[file]));
        for (name, body, words) in [
            ("cut", body[..body.len() - 1].to_vec(), "truncated"),
            ("half", body[..body.len() / 2].to_vec(), "truncated"),
            ("garbage behind it", [&body[..], b"garbage"].concat(), "something else follows"),
            ("not zstd", form(&[file]), "not zstd"),
        ] {
            // The lines of "add" begin with the first complete file, and are cut short by a later error.
            if command == "add" && matches!(name, "cut" | "garbage behind it") {
                continue;
            }
            let message = world.send_coded(command, "zstd", body).await.refused(400);
            assert!(message.contains(words), "{command} {name}: {message}");
            assert!(world.store.pins().await.expect("lists").is_empty(), "{command} {name}");
        }
        for coding in ["gzip", "zstd, zstd"] {
            assert!(world.send_coded(command, coding, body.clone()).await.refused(415).contains("zstd"), "{command}");
        }
        assert_eq!(world.send_coded(command, "ZSTD", body).await.body, plain.body, "{command}");
    }
}

#[tokio::test]
async fn limits_count_the_decoded_bytes_of_an_import() {
    let uploads = config::Uploads { bytes_max: 100_000, ..config::Uploads::default() };
    let world = World::taking_in([], &MemoryOptions::default(), uploads).await;
    let block = raw(vec![7; 100_001]);
    let body = zstd(&form(&[&archive(&[*block.cid()], std::slice::from_ref(&block))]));
    assert!(body.len() < 1000);
    world.send_coded("dag/import", "zstd", body).await.refused(413);
    world.send_coded("add", "zstd", zstd(&form(&[&vec![7; 100_001]]))).await.refused(413);
    assert!(world.store.pins().await.expect("lists").is_empty());
}

fn form(files: &[&[u8]]) -> Vec<u8> {
    let mut form = Vec::new();
    for file in files {
        form.extend_from_slice(b"--between\r\nContent-Disposition: form-data; name=\"file\"; filename=\"\"\r\n");
        form.extend_from_slice(b"Content-Type: application/octet-stream\r\n\r\n");
        form.extend_from_slice(file);
        form.extend_from_slice(b"\r\n");
    }
    form.extend_from_slice(b"--between--\r\n");
    form
}

fn token_of(id: &str, pins_max: Option<u64>) -> Principal {
    Principal { id: id.into(), name: id.into(), quota: Quota { pins_max, bytes_max: None }, ..Principal::operator() }
}

fn raw(data: impl AsRef<[u8]>) -> Block {
    Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::copy_from_slice(data.as_ref())).expect("a block")
}

/// A block as a section of an archive.
fn section(block: &Block) -> Vec<u8> {
    <[Bytes; 2]>::from(car::section(block)).concat()
}

fn archive(roots: &[Cid], blocks: &[Block]) -> Vec<u8> {
    [car::header(roots).to_vec(), blocks.iter().flat_map(section).collect()].concat()
}

/// A folder with a long file and a short one, root last.
fn folder() -> (Vec<Block>, Cid) {
    let mut blocks: Vec<Block> = Vec::new();
    let mut sink = |block: Block| -> Result<(), content::importer::SinkError> {
        blocks.push(block);
        Ok(())
    };
    let importer = Importer::new(Profile::default().with_cid_v1()).expect("a profile");
    let file = |content: &[u8], sink: &mut dyn BlockSink| {
        let mut file = importer.file(Attributes::default());
        file.write(content, sink).expect("takes");
        file.finish(sink).expect("a file")
    };
    let long = file(&vec![7; 600_000], &mut sink);
    let short = file(b"hello", &mut sink);
    let mut folder = importer.directory(Attributes::default());
    folder.add(b"long", &long).expect("adds");
    folder.add(b"short.txt", &short).expect("adds");
    let root = folder.finish(&mut sink).expect("a folder").cid;
    (blocks, root)
}

#[tokio::test]
async fn files_are_read_by_path_and_range_and_misses_are_fetched() {
    let world = World::new().await;
    let (blocks, root) = folder();
    blocks.iter().for_each(|block| world.elsewhere.insert(block));
    let miss = world.ask(&format!("cat?arg={root}/short.txt&offline=true")).await;
    assert!(miss.refused(422).contains(&root.to_string()));
    assert_eq!(world.ask(&format!("cat?arg={root}/short.txt")).await.body, "hello");
    assert_eq!(world.ask(&format!("cat?arg=/ipfs/{root}/short.txt&offset=1&length=3")).await.body, "ell");
    let both = world.ask(&format!("cat?arg={root}/short.txt&arg={root}/long&offset=3&length=4")).await;
    assert_eq!(both.body, [b'l', b'o', 7, 7][..]);
    assert_eq!(world.ask(&format!("cat?arg={root}/long")).await.body.len(), 600_000);
    assert!(world.ask(&format!("cat?arg={root}/short.txt&length=0")).await.body.is_empty());
    // The fetched blocks were cached.
    world.store.flush().await.expect("writes");
    assert_eq!(world.ask(&format!("cat?arg={root}/short.txt&offline=true")).await.body, "hello");
    assert!(world.ask(&format!("cat?arg={root}")).await.refused(422).contains("is a directory"));
    assert!(world.ask(&format!("cat?arg={root}/nothing")).await.refused(422).contains("nothing"));
    assert!(world.ask("cat?arg=nothing").await.refused(400).contains("CID"));
    assert!(world.ask(&format!("cat?arg={root}&offset=-1")).await.refused(400).contains("negative"));
}

#[tokio::test]
async fn denied_content_is_neither_read_nor_stored() {
    let (blocks, root) = folder();
    let world = World::denying([root]).await;
    world.hold(&blocks).await;
    for command in ["cat", "ls", "dag/export", "dag/stat", "block/get", "block/stat", "get", "dag/get"] {
        world.ask(&format!("{command}?arg={root}")).await.refused(410);
    }
    let block = raw("denied");
    let world = World::denying([*block.cid()]).await;
    world.send("block/put", &[b"denied"]).await.refused(410);
    world.send("dag/import", &[&archive(&[*block.cid()], &[block])]).await.refused(410);
}

#[tokio::test]
async fn folders_are_listed() {
    let world = World::new().await;
    let (blocks, root) = folder();
    world.hold(&blocks).await;
    let listed = world.ask(&format!("ls?arg={root}")).await.json();
    let links = listed["Objects"][0]["Links"].as_array().expect("links").clone();
    let shown: Vec<_> =
        links.iter().map(|link| (link["Name"].as_str(), link["Size"].as_u64(), link["Type"].as_u64())).collect();
    assert_eq!(shown, [(Some("long"), Some(600_000), Some(2)), (Some("short.txt"), Some(5), Some(2))]);
    assert_eq!(listed["Objects"][0]["Hash"], root.to_string());
    let streamed = world.ask(&format!("ls?arg={root}&stream=true")).await.lines();
    assert_eq!(streamed.len(), 2);
    assert_eq!(streamed[1]["Objects"][0]["Links"][0], links[1]);
    let parts = world.ask(&format!("ls?arg={root}/long")).await.json();
    assert_eq!(parts["Objects"][0]["Links"].as_array().expect("links").len(), 3);
    let leaf = world.ask(&format!("ls?arg={root}/short.txt")).await.json();
    assert_eq!(leaf["Objects"][0]["Links"], json!([]));
    let text = world.ask(&format!("ls?arg={root}&encoding=text")).await.body;
    assert!(text.ends_with(b" 5 short.txt\n"), "{text:?}");
}

/// The flag and the name of each entry of an archive whose names are short.
fn entries(archive: &[u8]) -> Vec<(char, String)> {
    let (mut rest, mut found) = (archive, Vec::new());
    while let Some((header, after)) = rest.split_first_chunk::<512>().filter(|(header, _)| header[0] != 0) {
        let name = header[..100].split(|byte| *byte == 0).next().unwrap_or_default();
        found.push((header[156].into(), String::from_utf8_lossy(name).into_owned()));
        let size = std::str::from_utf8(&header[124..135]).expect("digits");
        rest = &after[usize::from_str_radix(size, 8).expect("a size").next_multiple_of(512)..];
    }
    found
}

#[tokio::test]
async fn archives_have_the_names_that_kubos_reader_expects() {
    let world = World::new().await;
    let (blocks, root) = folder();
    world.hold(&blocks).await;
    // The archive's root has the last segment of the path, without a trailing slash.
    let got = world.ask(&format!("get?arg=/ipfs/{root}/&archive=true")).await.body;
    let expected = [('5', String::new()), ('0', "/long".to_owned()), ('0', "/short.txt".to_owned())];
    assert_eq!(entries(&got), expected.map(|(flag, below)| (flag, format!("{root}{below}"))));
    let got = world.ask(&format!("get?arg={root}/short.txt")).await.body;
    assert_eq!(entries(&got), [('0', "short.txt".to_owned())]);
    assert!(world.ask(&format!("get?arg={root}&compress=true")).await.refused(400).contains("compress"));
}

#[tokio::test]
async fn dags_are_counted_exported_and_imported_again() {
    let world = World::new().await;
    let (blocks, root) = folder();
    world.hold(&blocks).await;
    let bytes: usize = blocks.iter().map(|block| block.data().len()).sum();
    // Two of the long file's three leaves are the same.
    let distinct: std::collections::HashSet<_> = blocks.iter().map(|block| *block.cid()).collect();
    let distinct_bytes = bytes - 262_144;
    let stats = world.ask(&format!("dag/stat?arg={root}")).await.lines();
    let last = stats.last().expect("a line");
    assert_eq!(last["UniqueBlocks"], distinct.len());
    assert_eq!(last["TotalSize"], distinct_bytes);
    assert_eq!(last["Ratio"], 1.0);
    let twice = world.ask(&format!("dag/stat?arg={root}&arg={root}/short.txt&progress=false")).await.lines();
    assert_eq!((twice.len(), &twice[0]["SharedSize"]), (1, &json!(5)));
    assert_eq!(twice[0]["DagStats"][1]["NumBlocks"], 1);

    let exported = world.ask(&format!("dag/export?arg={root}")).await.body;
    let other = World::new().await;
    let imported = other.send("dag/import?stats=true", &[&exported]).await.lines();
    assert_eq!(imported[0]["Root"], json!({ "Cid": { "/": root.to_string() }, "PinErrorMsg": "" }));
    assert_eq!(imported[1]["Stats"]["BlockCount"], distinct.len());
    assert_eq!(other.ask(&format!("cat?arg={root}/short.txt&offline=true")).await.body, "hello");
    let pinned = other.ask("pin/ls?type=recursive").await.json();
    assert_eq!(pinned["Keys"][root.to_string()]["Type"], "recursive");

    // A truncated archive is rejected, and a root with a missing block is not pinned.
    other.send("dag/import", &[&exported[..exported.len() - 5]]).await.refused(400);
    let lacking = car::header(&[root]);
    let third = World::new().await;
    let imported = third.send("dag/import", &[&lacking]).await.lines();
    assert!(
        imported[0]["Root"]["PinErrorMsg"].as_str().expect("message").contains("is not stored locally"),
        "{imported:?}"
    );
    assert!(third.ask("pin/ls").await.json()["Keys"].as_object().expect("keys").is_empty());
    assert!(third.store.pins().await.expect("reads").is_empty(), "nor in part");
    // A DAG may be split over two archives.
    let half = blocks.len() / 2;
    let parts = [archive(&[root], &blocks[..half]), archive(&[root], &blocks[half..])];
    let imported = third.send("dag/import", &[&parts[0], &parts[1]]).await.lines();
    assert_eq!((imported.len(), &imported[0]["Root"]["PinErrorMsg"]), (1, &json!("")));
}

#[tokio::test]
async fn unpinned_content_is_cached_and_counts_towards_no_quota() {
    let world = World::new().await;
    // A token whose quota is used up.
    let poor = || token_of("poor", Some(0));
    let content = noise(600_000, 5);
    let added = world.send_as(poor(), "add?pin=false", &[&content]).await.lines();
    let cid = added.last().expect("a line")["Hash"].as_str().expect("a CID").to_owned();
    assert_eq!(world.ask(&format!("cat?arg={cid}&offline=true")).await.body, content);
    world.send_as(poor(), "block/put", &[b"hello"]).await.lines();
    world.send_as(poor(), "block/put?pin=true", &[b"hello"]).await.refused(507);

    // Without pinning, an incomplete DAG is accepted and the roots are not checked.
    let (blocks, root) = folder();
    let part = archive(&[root], &blocks[..1]);
    let imported = world.send_as(poor(), "dag/import?pin-roots=false&stats=true", &[&part]).await.lines();
    assert_eq!((imported.len(), &imported[0]["Stats"]["BlockCount"]), (1, &json!(1)));
    let held = world.ask(&format!("block/get?arg={}&offline=true", blocks[0].cid())).await;
    assert_eq!(held.body, blocks[0].data());
    assert!(world.ask("pin/ls").await.json()["Keys"].as_object().expect("keys").is_empty());
    world.store.flush().await.expect("writes");
    let stats = world.store.stats();
    assert!(stats.pinned_bytes == 0 && stats.cached_bytes > 0, "{stats:?}");
}

#[tokio::test]
async fn content_that_exceeds_the_cache_is_rejected_with_a_message() {
    let options = MemoryOptions { cache_bytes_max: 64 * 1024, ..MemoryOptions::default() };
    let world = World::with([], &options).await;
    let content = noise(100_000, 6);
    let message = world.send("block/put", &[&content]).await.refused(507);
    assert!(message.contains("cache") && message.contains("pin it"), "{message}");
    let block = raw(&content);
    let whole = archive(&[*block.cid()], std::slice::from_ref(&block));
    world.send("dag/import?pin-roots=false", &[&whole]).await.refused(507);
    // Repeated blocks count towards the limit as well, and cached content stays.
    world.send("block/put", &[b"hello"]).await.lines();
    let repeated = archive(&[], &vec![[raw("hello"), raw("world")]; 1_001].concat());
    let refused = world.send("dag/import?pin-roots=false", &[&repeated]).await.refused(507);
    assert!(refused.contains("disk_bytes_max"), "{refused}");
    assert_eq!(world.ask(&format!("block/get?arg={}&offline=true", raw("hello").cid())).await.body, "hello");
    // Pins do not need space in the cache.
    world.send("block/put?pin=true", &[&content]).await.lines();
    assert_eq!(world.ask(&format!("block/get?arg={}&offline=true", block.cid())).await.body, content);
}

#[tokio::test]
async fn write_errors_are_not_reported_as_missing_blocks() {
    let options = MemoryOptions { bytes_max: 64 * 1024, ..MemoryOptions::default() };
    let world = World::with([], &options).await;
    let content = noise(100_000, 7);
    let block = raw(&content);
    let whole = archive(&[*block.cid()], &[block]);
    for (command, sent) in [("block/put?pin=true", &content), ("dag/import", &whole)] {
        let message = world.send(command, &[sent]).await.refused(507);
        assert!(!message.contains("is not stored locally"), "{command}: {message}");
    }
    assert!(world.store.pins().await.expect("reads").is_empty());
}

#[tokio::test]
async fn concurrent_puts_and_the_size_of_imports_are_limited() {
    let uploads = config::Uploads { bytes_max: 1_000, ..config::Uploads::default() };
    let world = World::taking_in([], &MemoryOptions::default(), uploads).await;
    let bearer = |number: usize| Principal { id: number.to_string().into(), ..Principal::operator() };
    let permits: Vec<_> = (0..PUTS_MAX).map(|number| world.rpc.begin_put(&bearer(number)).expect("a permit")).collect();
    world.send("block/put", &[b"hello"]).await.refused(429);
    world.send("dag/put", &[b"{}"]).await.refused(429);
    drop(permits);
    let many: Vec<&[u8]> = vec![b""; 10_001];
    assert!(world.send("block/put", &many).await.refused(413).contains("10000"));
    world.send("block/put", &many[1..]).await.lines();
    let long = noise(1_001, 8);
    let block = raw(&long);
    let whole = archive(&[*block.cid()], &[block]);
    for command in ["dag/import", "dag/import?pin-roots=false"] {
        assert!(world.send(command, &[&whole]).await.refused(413).contains("uploads.bytes_max"), "{command}");
    }
}

#[tokio::test]
async fn an_export_with_a_missing_block_is_aborted() {
    let world = World::new().await;
    let (blocks, root) = folder();
    // All blocks except the last leaf of the long file.
    let lacking = blocks.iter().position(|block| block.data().len() == 600_000 - 2 * 262_144).expect("is there");
    let held: Vec<_> =
        blocks.iter().enumerate().filter(|(at, _)| *at != lacking).map(|(_, block)| block.clone()).collect();
    world.hold(&held).await;
    let request = Request::post(format!("/api/v0/dag/export?arg={root}")).extension(Principal::operator());
    let response =
        world.router.clone().oneshot(request.body(Body::empty()).expect("a request")).await.expect("answers");
    assert_eq!(response.status(), 200);
    assert!(response.into_body().collect().await.is_err(), "the body is aborted");
    let request = Request::post(format!("/api/v0/dag/export?arg={root}")).extension(Principal::operator());
    let request = request.header("te", "trailers").body(Body::empty()).expect("a request");
    let response = world.router.clone().oneshot(request).await.expect("answers");
    let body = response.into_body().collect().await.expect("ends");
    let message = body.trailers().expect("trailers")["x-stream-error"].to_str().expect("text").to_owned();
    assert!(message.contains(&blocks[lacking].cid().to_string()), "{message}");
}

#[tokio::test]
async fn blocks_are_put_and_got() {
    let world = World::new().await;
    let put = world.send("block/put", &[b"hello", b"world"]).await.lines();
    assert_eq!(put[0], json!({ "Key": raw("hello").cid().to_string(), "Size": 5 }));
    assert_eq!(put.len(), 2);
    let cid = raw("hello").cid().to_string();
    assert_eq!(world.ask(&format!("block/get?arg={cid}&offline=true")).await.body, "hello");
    assert_eq!(world.ask(&format!("block/stat?arg={cid}&cid-base=base16")).await.json()["Size"], 5);
    assert!(world.ask("pin/ls").await.json()["Keys"].as_object().expect("keys").is_empty());
    world.send("block/put?pin=true", &[b"hello"]).await;
    assert_eq!(world.ask("pin/ls").await.json()["Keys"][&cid]["Type"], "recursive");
    assert!(world.send("block/put", &[]).await.refused(400).contains("'data'"));
    world.send("block/put", &[&vec![0; 2 * 1024 * 1024 + 1]]).await.refused(413);
    world.ask("block/put").await.refused(400);
}

#[tokio::test]
async fn documents_are_put_and_resolved() {
    let world = World::new().await;
    let link = raw("hello").cid().to_string();
    let document = format!(r#"{{"list":[{{"/":"{link}"}},5],"text":"ä"}}"#);
    let put = world.send("dag/put", &[document.as_bytes()]).await.lines();
    let cid = put[0]["Cid"]["/"].as_str().expect("a CID").to_owned();
    assert!(cid.starts_with("bafyrei"), "{cid}");
    let got = world.ask(&format!("dag/get?arg={cid}")).await.body;
    assert_eq!(got, document);
    assert_eq!(world.ask(&format!("dag/get?arg={cid}/list/1")).await.body, "5");
    let resolved = world.ask(&format!("dag/resolve?arg={cid}/list/1")).await.json();
    assert_eq!(resolved, json!({ "Cid": { "/": cid }, "RemPath": "list/1" }));
    assert_eq!(world.ask(&format!("resolve?arg=/ipfs/{cid}/text")).await.json()["Path"], format!("/ipfs/{cid}/text"));
    // The same document in the stored codec.
    let cbor = world.ask(&format!("block/get?arg={cid}")).await.body;
    let again = world.send("dag/put?input-codec=dag-cbor", &[&cbor]).await.lines();
    assert_eq!(again[0]["Cid"]["/"], cid);
    world.send("dag/put", &[b"{"]).await.refused(400);
    world.send("dag/put?store-codec=dag-pb", &[b"{}"]).await.refused(400);
}

#[tokio::test]
async fn pins_belong_to_the_token_that_creates_them() {
    let world = World::new().await;
    let (blocks, root) = folder();
    blocks.iter().for_each(|block| world.elsewhere.insert(block));
    let as_one = |command: String| {
        world.ask_as(token_of("one", None), Request::builder().uri(format!("/api/v0/{command}")), Body::empty())
    };
    let as_two = |command: String| {
        world.ask_as(token_of("two", Some(1)), Request::builder().uri(format!("/api/v0/{command}")), Body::empty())
    };
    let added = as_one(format!("pin/add?arg={root}&name=mine&progress=true")).await.lines();
    assert_eq!(added.last().expect("a line")["Pins"], json!([root.to_string()]));
    // Pinning again does not add a pin, and another name replaces the first.
    as_one(format!("pin/add?arg={root}&name=ours")).await;
    let listed = as_one("pin/ls?names=true&type=recursive".to_owned()).await.json();
    assert_eq!(listed["Keys"], json!({ root.to_string(): { "Type": "recursive", "Name": "ours" } }));
    assert_eq!(as_one("pin/ls?type=recursive".to_owned()).await.json()["Keys"][root.to_string()]["Name"], "");
    let streamed = as_one("pin/ls?stream=true&name=our".to_owned()).await.lines();
    assert_eq!(streamed, [json!({ "Cid": root.to_string(), "Name": "ours", "Type": "recursive" })]);
    // All blocks below the root.
    let all = as_one("pin/ls".to_owned()).await.json();
    let distinct: std::collections::HashSet<_> = blocks.iter().map(|block| *block.cid()).collect();
    assert_eq!(all["Keys"].as_object().expect("keys").len(), distinct.len());
    let short = raw("hello").cid().to_string();
    let below = as_one(format!("pin/ls?arg={short}&stream=true")).await.lines();
    assert_eq!(below[0]["Type"], format!("indirect through {root}"));
    assert!(as_one(format!("pin/ls?arg={short}&type=recursive")).await.refused(422).contains("is not pinned"));
    // Only the owner and the operator see the pin.
    assert!(as_two("pin/ls".to_owned()).await.json()["Keys"].as_object().expect("keys").is_empty());
    assert!(as_two(format!("pin/rm?arg={root}")).await.refused(422).contains("not pinned"));
    assert_eq!(world.ask("pin/ls?type=recursive").await.json()["Keys"].as_object().expect("keys").len(), 1);
    // Quotas apply.
    as_two(format!("pin/add?arg={short}")).await;
    assert!(as_two(format!("pin/add?arg={root}")).await.refused(507).contains("pins"));
    let updated = as_one(format!("pin/update?arg={root}&arg={short}")).await.json();
    assert_eq!(updated["Pins"], json!([root.to_string(), short]));
    assert_eq!(
        as_one("pin/ls?names=true".to_owned()).await.json()["Keys"],
        json!({ short.clone(): { "Type": "recursive", "Name": "ours" } })
    );
    assert_eq!(as_one(format!("pin/rm?arg={short}")).await.json()["Pins"], json!([short]));
    assert!(as_one("pin/ls".to_owned()).await.json()["Keys"].as_object().expect("keys").is_empty());
    assert!(as_one(format!("pin/add?arg={root}&recursive=false")).await.refused(400).contains("recursive"));
    assert!(as_one("pin/ls?type=odd".to_owned()).await.refused(400).contains("invalid type"));
}

#[tokio::test]
async fn a_pin_whose_client_times_out_is_withdrawn() {
    let world = World::new().await;
    let nowhere = raw("nobody has this");
    let late = world.ask(&format!("pin/add?arg={}&timeout=200ms", nowhere.cid())).await;
    assert!(late.refused(408).contains("context deadline exceeded"));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let pins = world.store.pins().await.expect("reads");
        let listed = world.ask("pin/ls").await.json();
        if pins.is_empty() && listed["Keys"].as_object().expect("keys").is_empty() {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{pins:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn keys_and_names() {
    let world = World::new().await;
    let made = world.ask("key/gen?arg=site").await.json();
    let listed = world.ask("key/list").await.json();
    assert_eq!(listed["Keys"].as_array().expect("keys").len(), 2);
    assert!(listed["Keys"].as_array().expect("keys").contains(&made));
    assert_eq!(world.ask("key/ls").await.json(), listed);
    let path = "/ipfs/bafkqac3imvwgy3zao5xxe3de";
    let publish = format!("name/publish?arg={path}&key=site&lifetime=48h0m0s&ttl=5m0s&resolve=true");
    assert!(world.ask(&publish).await.refused(422).contains("allow-offline"));
    let published = world.ask(&format!("{publish}&allow-offline=true")).await.json();
    assert_eq!(published, json!({ "Name": made["Id"], "Value": path }));
    let name = made["Id"].as_str().expect("a name");
    assert_eq!(world.ask(&format!("name/resolve?arg={name}")).await.json()["Path"], path);
    assert_eq!(
        world.ask(&format!("name/resolve?arg=/ipns/{name}&r=false&stream=true")).await.lines(),
        [json!({ "Path": path })]
    );
    assert_eq!(world.ask(&format!("cat?arg=/ipns/{name}")).await.body, "hello world");
    assert_eq!(world.ask(&format!("resolve?arg=/ipns/{name}")).await.json()["Path"], path);
    world.ask("name/resolve?arg=example.org").await.refused(422);
    world.ask("name/resolve?arg=nonsense").await.refused(400);
    world.ask("key/gen?arg=site").await.refused(409);
    world.ask("key/gen?arg=a%2Fb").await.refused(400);
}

#[tokio::test]
async fn identity_and_version() {
    let world = World::new().await;
    let id = world.ask("id").await.json();
    assert!(id["ID"].as_str().expect("an id").starts_with("12D3KooW"));
    assert!(id["AgentVersion"].as_str().expect("message").starts_with("causeway/"));
    assert_eq!(world.ask(&format!("id?arg={}", id["ID"].as_str().expect("an id"))).await.json(), id);
    world.ask("id?arg=12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK").await.refused(422);
    world.ask("id?arg=hello").await.refused(400);
    assert_eq!(world.ask("version").await.json()["Version"], "0.41.0");
    assert_eq!(world.ask("swarm/peers").await.json(), json!({ "Peers": [] }));
    world
        .ask("swarm/connect?arg=/ip4/127.0.0.1/tcp/1/p2p/12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK")
        .await
        .refused(422);
    world.ask("swarm/connect?arg=/ip4/127.0.0.1/tcp/1").await.refused(400);
    assert_eq!(world.ask("repo/stat").await.json()["NumObjects"], 0);
}

#[tokio::test]
async fn an_incomplete_body_leaves_no_pin() {
    let world = World::new().await;
    let (blocks, root) = folder();
    let mut begun = form(&[&archive(&[root], &blocks[..1])]);
    begun.truncate(begun.len() - 20);
    let pieces = [Ok(Bytes::from(begun)), Err(io::Error::other("the other end is gone"))];
    let request = Request::builder().uri("/api/v0/dag/import");
    let request = request.header(CONTENT_TYPE, "multipart/form-data; boundary=between");
    let said = world.ask_as(Principal::operator(), request, Body::from_stream(stream::iter(pieces))).await;
    said.refused(400);
    assert!(world.store.pins().await.expect("reads").is_empty());
}

#[test]
fn commands_are_in_order_and_their_options_have_names_of_their_own() {
    let described = COMMANDS.map(|command| command.path).to_vec();
    let mut sorted = described.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted, described, "in order, and each once");
    for command in COMMANDS {
        let mut names: Vec<_> = command
            .options
            .iter()
            .chain(command::GLOBAL)
            .flat_map(|o| std::iter::once(o.name).chain(o.short))
            .collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "two options of {} have one name", command.path);
    }
}
