//! The configurations of nginx and Varnish (`deploy/nginx/causeway.conf`, `deploy/varnish/causeway.vcl`) in front of a
//! gateway: purge requests remove taken-down content from their caches, otherwise revalidation does; and answers that
//! would be cached for too long are not cached.

use crate::support::causeway::{Causeway, Launch};
use crate::support::nginx::{Nginx, free_address, shipped};
use crate::support::noise::Noise;
use crate::support::varnish::Varnish;
use crate::support::{client, eventually};
use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(30);
const VARNISH: &str = include_str!("../../../deploy/varnish/causeway.vcl");
const HOST: &str = "gateway.example.org";
const LARGE_BYTES: usize = 8 << 20;
/// The number of folders on the longest path, of `http.path_depth_max`.
const DEPTH: usize = 250;
/// The length of the blocks of a file with the profile unixfs-v1-2025.
const BLOCK_BYTES: usize = 1 << 20;

/// The cache in front of the gateway.
enum Front {
    Nginx,
    Varnish { with_xkey: bool },
}

/// Varnish's configuration for this machine, with bans or with xkey.
fn varnish(upstream: &str, with_xkey: bool) -> String {
    let (host, port) = upstream.split_once(':').expect("an address and a port");
    let ours = VARNISH
        .replace("\"127.0.0.1\";\n    .port", &format!("\"{host}\";\n    .port"))
        .replace("\"8080\"", &format!("\"{port}\""));
    if with_xkey { ours.replace("#xkey ", "") } else { ours }
}

/// A gateway with its own folder, behind a cache.
struct World {
    causeway: Causeway,
    listen: SocketAddr,
    root: String,
    leaf: String,
    other: String,
    /// A folder with a long path below it.
    deep: String,
    /// A file of several blocks, and the last of them.
    large: String,
    last: String,
    /// The cache, which ends when it is dropped.
    _front: Box<dyn Any>,
    _dir: TempDir,
}

impl World {
    async fn start(front: Front, set: impl FnOnce(Launch, SocketAddr) -> Launch) -> Self {
        let dir = TempDir::with_prefix("causeway-front-").expect("the temporary folder is writable");
        // Purge requests go to the clients' port of Varnish, and to a separate port of nginx.
        let (listen, refresh) = (free_address(), free_address());
        let purge_address = if matches!(front, Front::Nginx) { refresh } else { listen };
        let launch =
            Launch::new(dir.path()).set("CAUSEWAY_HTTP_HOSTS", HOST).set("CAUSEWAY_HTTP_TRUSTED_PROXIES", "127.0.0.1");
        let launch = set(launch, purge_address);
        let folder = dir.path().join("site");
        std::fs::create_dir(&folder).expect("the folder is ours");
        std::fs::write(folder.join("page.txt"), "something that is taken down later").expect("the folder is ours");
        let folder = folder.display().to_string();
        let root = launch.run(&["add", "-Q", "--cid-version=1", &folder]).expect("adds");
        let leaf = launch.run(&["add", "-Q", "--cid-version=1", &format!("{folder}/page.txt")]).expect("adds");
        let file = dir.path().join("other.txt");
        std::fs::write(&file, "something that stays").expect("the folder is ours");
        let other = launch.run(&["add", "-Q", "--cid-version=1", &file.display().to_string()]).expect("adds");
        let add = |name: &str, content: &[u8]| {
            let file = dir.path().join(name);
            std::fs::write(&file, content).expect("the folder is ours");
            launch.run(&["add", "-Q", "--profile", "unixfs-v1-2025", &file.display().to_string()]).expect("adds")
        };
        let deepest = dir.path().join("deep").join("f/".repeat(DEPTH));
        std::fs::create_dir_all(&deepest).expect("the folder is ours");
        std::fs::write(deepest.join("end.txt"), "the end").expect("the folder is ours");
        let deep = dir.path().join("deep").display().to_string();
        let deep = launch.run(&["add", "-Q", "--cid-version=1", &deep]).expect("adds");
        let content = Noise::bytes(1, LARGE_BYTES);
        let (large, last) = (add("large", &content), add("last", &content[LARGE_BYTES - BLOCK_BYTES..]));
        let causeway = launch.start().await;
        let upstream = causeway.url("").trim_start_matches("http://").trim_end_matches('/').to_owned();
        let front: Box<dyn Any> = match front {
            Front::Nginx => {
                let configuration = shipped(&upstream, (listen, false), refresh, dir.path());
                Box::new(Nginx::start(dir.path(), &configuration, listen).await)
            }
            Front::Varnish { with_xkey } => {
                Box::new(Varnish::start(dir.path(), &varnish(&upstream, with_xkey), listen).await)
            }
        };
        Self { causeway, listen, root, leaf, other, deep, large, last, _front: front, _dir: dir }
    }

    /// The status of a page through the cache, and whether it was cached there.
    async fn get(&self, host: &str, path: &str) -> (u16, String) {
        let request = client().get(format!("http://{}{path}", self.listen)).header("Host", host);
        let answer = request.send().await.expect("the cache answers");
        let cached =
            answer.headers().get("x-cache-status").map_or("", |value| value.to_str().expect("text")).to_owned();
        let status = answer.status().as_u16();
        answer.bytes().await.expect("a body");
        (status, cached)
    }

    async fn take_down(&self, what: &str, deep: bool) -> serde_json::Value {
        let rule = serde_json::json!({ "cid": what, "status": 451, "deep": deep }).to_string();
        let (status, answer) = self.causeway.admin("POST", "/api/v1/denylists/local/rules", Some(&rule)).await;
        assert_eq!(status, 201, "{answer}");
        answer
    }

    /// Requests a page until it is cached.
    async fn warm(&self, host: &str, path: &str) {
        for _ in 0..2 {
            assert_eq!(self.get(host, path).await.0, 200, "{host} {path}");
        }
        assert_eq!(self.get(host, path).await, (200, "HIT".to_owned()), "{host} {path}");
    }

    async fn until_gone(&self, host: &str, path: &str) {
        eventually("the page is gone from the cache", TIMEOUT, async || {
            let answer = self.get(host, path).await;
            if answer.0 == 451 { Ok(()) } else { Err(format!("{answer:?}")) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_down_purges_nginx() {
    leaves_at_once(Front::Nginx, "refresh").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_down_purges_varnish() {
    leaves_at_once(Front::Varnish { with_xkey: false }, "ban").await;
    leaves_at_once(Front::Varnish { with_xkey: true }, "xkey").await;
}

async fn leaves_at_once(front: Front, kind: &str) {
    let world = World::start(front, |launch, purge_address| {
        launch
            .set("CAUSEWAY_HTTP_SHARED_MAX_AGE_SECONDS", 3600)
            .set("CAUSEWAY_HTTP_SURROGATE_KEYS", true)
            .set("CAUSEWAY_POLICY_CACHES", format!("{kind}+http://{purge_address}"))
    })
    .await;
    let (site, origin) = (format!("{}.ipfs.{HOST}", world.root), format!("{}.ipfs.{HOST}", world.leaf));
    // Below the folder, with the leaf requested by a path, and by its own CID.
    for (host, path) in [(&*site, "/page.txt"), (&*origin, "/")] {
        world.warm(host, path).await;
    }
    let other = format!("{}.ipfs.{HOST}", world.other);
    world.warm(&other, "/").await;
    let added = world.take_down(&world.leaf, false).await;
    assert_eq!(added["caches_notified"], serde_json::json!(1), "{added}");
    for (host, path) in [(&*site, "/page.txt"), (&*origin, "/")] {
        world.until_gone(host, path).await;
    }
    assert_eq!(world.get(&other, "/").await, (200, "HIT".to_owned()), "what was not taken down is still there");
    eventually("the audit log says so", TIMEOUT, async || {
        let (_, log) = world.causeway.admin("GET", "/api/v1/audit", None).await;
        let is_logged =
            log["entries"].as_array().into_iter().flatten().any(|entry| entry["detail"]["result"] == "done");
        if is_logged { Ok(()) } else { Err(log) }
    })
    .await;
    world.causeway.stop().await;
}

/// The blocks below a root that is taken down leave the caches under other roots as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_deep_take_down_purges_pages_under_other_roots() {
    for (front, kind) in [
        (Front::Nginx, "refresh"),
        (Front::Varnish { with_xkey: false }, "ban"),
        (Front::Varnish { with_xkey: true }, "xkey"),
    ] {
        let world = World::start(front, |launch, purge_address| {
            launch
                .set("CAUSEWAY_HTTP_SHARED_MAX_AGE_SECONDS", 3600)
                .set("CAUSEWAY_HTTP_SURROGATE_KEYS", true)
                .set("CAUSEWAY_POLICY_CACHES", format!("{kind}+http://{purge_address}"))
        })
        .await;
        let (origin, other) = (format!("{}.ipfs.{HOST}", world.leaf), format!("{}.ipfs.{HOST}", world.other));
        world.warm(&origin, "/").await;
        world.warm(&other, "/").await;
        let added = world.take_down(&world.root, true).await;
        assert_eq!(added["deep_rules"], serde_json::json!(2), "{added}");
        world.until_gone(&origin, "/").await;
        assert_eq!(world.get(&other, "/").await, (200, "HIT".to_owned()), "what was not taken down is still there");
        world.causeway.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn taken_down_content_expires_from_caches() {
    for front in [Front::Nginx, Front::Varnish { with_xkey: false }] {
        let world = World::start(front, |launch, _| launch.set("CAUSEWAY_HTTP_SHARED_MAX_AGE_SECONDS", 2)).await;
        let site = format!("{}.ipfs.{HOST}", world.root);
        eventually("the page is cached", TIMEOUT, async || {
            let answer = world.get(&site, "/page.txt").await;
            if answer == (200, "HIT".to_owned()) { Ok(()) } else { Err(answer.1) }
        })
        .await;
        world.take_down(&world.leaf, false).await;
        world.until_gone(&site, "/page.txt").await;
        world.causeway.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_without_s_maxage_are_not_cached() {
    for front in [Front::Nginx, Front::Varnish { with_xkey: false }] {
        let world = World::start(front, |launch, _| launch).await;
        let site = format!("{}.ipfs.{HOST}", world.root);
        for _ in 0..4 {
            assert_eq!(world.get(&site, "/page.txt").await, (200, "MISS".to_owned()));
        }
        world.take_down(&world.leaf, false).await;
        assert_eq!(world.get(&site, "/page.txt").await.0, 451);
        world.causeway.stop().await;
    }
}

/// Other clients, invalid keys and other keys purge nothing.
#[tokio::test(flavor = "multi_thread")]
async fn varnish_rejects_invalid_purge_requests() {
    let front = Front::Varnish { with_xkey: false };
    let world = World::start(front, |launch, _| {
        launch.set("CAUSEWAY_HTTP_SHARED_MAX_AGE_SECONDS", 3600).set("CAUSEWAY_HTTP_SURROGATE_KEYS", true)
    })
    .await;
    let site = format!("{}.ipfs.{HOST}", world.root);
    world.warm(&site, "/page.txt").await;
    let ban = reqwest::Method::from_bytes(b"BAN").expect("a method");
    let elsewhere = reqwest::Client::builder().local_address(IpAddr::from([127, 0, 0, 2])).no_proxy().build();
    let request = elsewhere.expect("a client").request(ban.clone(), format!("http://{}/", world.listen));
    let answer = request.header("Surrogate-Key", &world.root).send().await.expect("Varnish answers");
    assert_eq!(answer.status(), 403);
    assert_eq!(world.get(&site, "/page.txt").await, (200, "HIT".to_owned()));
    let dotted = format!(".{}", &world.root[1..]);
    for (key, status) in
        [(&*dotted, 200), (". || obj.status != 0", 400), (".*", 400), (&*world.other, 200), (&world.root[1..], 200)]
    {
        let request = client().request(ban.clone(), format!("http://{}/", world.listen)).header("Surrogate-Key", key);
        assert_eq!(request.send().await.expect("Varnish answers").status(), status, "{key}");
        assert_eq!(world.get(&site, "/page.txt").await, (200, "HIT".to_owned()), "{key}");
    }
    world.causeway.stop().await;
}

/// The head of a response lists the CIDs of all folders on the path.
#[tokio::test(flavor = "multi_thread")]
async fn nginx_forwards_long_heads() {
    let world = World::start(Front::Nginx, |launch, _| launch).await;
    let request = client().get(format!("http://{}/{}end.txt", world.listen, "f/".repeat(DEPTH)));
    let answer = request.header("Host", format!("{}.ipfs.{HOST}", world.deep)).send().await.expect("nginx answers");
    let roots = answer.headers().get("x-ipfs-roots").map_or(0, |roots| roots.len());
    assert_eq!(answer.status(), 200);
    assert!(roots > DEPTH * 59, "{roots}");
    assert_eq!(answer.bytes().await.expect("a body"), "the end");
    world.causeway.stop().await;
}

/// A response that the gateway aborts, because a block is withheld, does not look complete behind the caches, and they do
/// not store what they received of it.
#[tokio::test(flavor = "multi_thread")]
async fn caches_forward_ranges_and_truncated_responses() {
    for front in [Front::Nginx, Front::Varnish { with_xkey: false }] {
        let world = World::start(front, |launch, _| launch.set("CAUSEWAY_HTTP_SHARED_MAX_AGE_SECONDS", 3600)).await;
        let request = |method| {
            let request = client().request(method, format!("http://{}/", world.listen));
            request.header("Host", format!("{}.ipfs.{HOST}", world.large))
        };
        let head = request(reqwest::Method::HEAD).send().await.expect("the cache answers");
        let header = |name: &str| head.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        assert_eq!((head.status().as_u16(), header("content-length")), (200, "8388608"));
        assert_eq!(header("cache-control"), "public, max-age=29030400, immutable, s-maxage=3600");
        assert!(header("etag").contains(&world.large), "{}", header("etag"));

        let range = request(reqwest::Method::GET).header("Range", "bytes=1048570-1048579");
        let range = range.send().await.expect("the cache answers");
        assert_eq!(range.status(), 206);
        assert_eq!(range.headers()["content-range"], "bytes 1048570-1048579/8388608");
        assert_eq!(range.bytes().await.expect("a body"), Noise::bytes(1, LARGE_BYTES)[1_048_570..1_048_580]);

        world.take_down(&world.last, false).await;
        for _ in 0..4 {
            let answer = request(reqwest::Method::GET).send().await.expect("the cache answers");
            assert_eq!((answer.status().as_u16(), &answer.headers()["x-cache-status"] == "HIT"), (200, false));
            answer.bytes().await.expect_err("the response is truncated");
        }
        world.causeway.stop().await;
    }
}
