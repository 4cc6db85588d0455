//! Prefetch of what a page loads: which requests start one, what it fetches, its bounds, and that no other request
//! notices it.

use crate::connections::connect_from;
use crate::control::matcher;
use crate::dag::{directory, file, raw};
use crate::hosts::Names;
use crate::site::{PATIENCE, Setup, Site, until};
use crate::upstream::FakeNetwork;
use content::ipns::Record;
use content::names::Key;
use content::{Block, Cid, Name, NameError, NameResolver, Policy, Resolution, SourceError};
use futures::FutureExt as _;
use futures::future::{BoxFuture, pending, ready};
use gateway::prefetch::{BYTES_MAX, CLIENT_PAGES_MAX, IN_FLIGHT_MAX, PAGES_MAX, PATHS_MAX};
use services::denylists::Running;
use services::denylists::running::Rules;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinHandle;

const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8");
const ONLY_IF_CACHED: (&str, &str) = ("cache-control", "only-if-cached");

/// A site with a page on the network.
struct World {
    site: Arc<Site>,
    network: Arc<FakeNetwork>,
    root: Block,
}

impl World {
    /// `files` are beside the page `index.html`; those in `held_back` arrive when the network's gate opens.
    async fn with(page: &str, files: &[(&str, &Block)], held_back: &[&Block], set: impl FnOnce(&mut Setup)) -> Self {
        let index = raw(page.to_owned());
        let mut entries = files.to_vec();
        entries.push(("index.html", &index));
        entries.sort_by_key(|(name, _)| *name);
        let root = directory(&entries);
        let blocks = entries.iter().map(|(_, block)| *block).chain([&root]);
        Self::of(&root.clone(), FakeNetwork::new(blocks, held_back.iter().copied()), set).await
    }

    async fn of(root: &Block, network: Arc<FakeNetwork>, set: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup { upstream: Some(Arc::clone(&network) as _), ..Setup::new(&[]) };
        set(&mut setup);
        Self { site: Arc::new(setup.start().await), network, root: root.clone() }
    }

    async fn new(page: &str, files: &[(&str, &Block)]) -> Self {
        Self::with(page, files, &[], |_| ()).await
    }

    fn path(&self, name: &str) -> String {
        format!("/ipfs/{}/{name}", self.root.cid())
    }

    async fn status(&self, path: &str, headers: &[(&str, &str)]) -> u16 {
        let response = self.site.send("GET", path, headers).await;
        let status = response.status().as_u16();
        response.bytes().await.expect("a whole response");
        status
    }

    /// Navigates to the page.
    async fn open(&self) {
        assert_eq!(self.status(&self.path(""), &[BROWSER]).await, 200);
    }

    /// Requests a file as a browser does for a page that it has read.
    fn load(&self, name: &str) -> JoinHandle<u16> {
        let (site, path) = (Arc::clone(&self.site), self.path(name));
        tokio::spawn(async move { site.get(&path).await.status().as_u16() })
    }

    async fn is_stored(&self, name: &str) -> bool {
        self.status(&self.path(name), &[ONLY_IF_CACHED]).await == 200
    }

    fn paths(&self, result: &str) -> u64 {
        self.site.metric(&format!("causeway_http_prefetch_paths_total{{result=\"{result}\"}}"))
    }

    fn pages(&self) -> u64 {
        self.site.metric("causeway_http_prefetch_pages_total")
    }

    fn bytes(&self) -> u64 {
        self.site.metric("causeway_http_prefetch_bytes_total")
    }

    /// Waits until no prefetch runs.
    async fn until_ended(&self) {
        until(|| self.site.gateway.prefetcher().running() == 0, "the prefetch to end").await;
    }

    /// Waits until the paths that were found have ended so.
    async fn until_paths(&self, fetched: u64, failed: u64, given_up: u64) {
        let paths = || (self.paths("fetched"), self.paths("failed"), self.paths("given_up"));
        until(|| paths() == (fetched, failed, given_up), &format!("{fetched}, {failed}, {given_up} paths")).await;
    }
}

async fn answer(asking: JoinHandle<u16>) -> u16 {
    tokio::time::timeout(PATIENCE, asking).await.expect("in time").expect("no panic")
}

#[tokio::test]
async fn what_a_page_loads_is_fetched() {
    let (style, script, image, other) = (raw("style"), raw("script"), raw("image"), raw("other"));
    let frame = raw("frame");
    let folder = directory(&[("image.png", &image), ("index.html", &frame)]);
    let page = "<link rel=stylesheet href=style.css?v=1><script src='./script.js'></script><img src=folder/image.png>\
                <iframe src=folder/></iframe><img src=style.css><img src=missing.png>\
                <img src=https://example.org/x.png><a href=other.html>other</a>";
    let index = raw(page);
    let root = directory(&[
        ("folder", &folder),
        ("index.html", &index),
        ("other.html", &other),
        ("script.js", &script),
        ("style.css", &style),
    ]);
    let network = FakeNetwork::new([&root, &index, &folder, &frame, &style, &script, &image, &other], []);
    let world = World::of(&root, network, |_| ()).await;
    world.open().await;
    world.until_paths(4, 1, 0).await;
    assert_eq!(world.network.asked(), 2 + 5);
    // Of what the page loads, the network is asked for single blocks.
    let hints = world.network.take_hints();
    assert!(hints.iter().all(|ahead| [root.cid(), index.cid()].contains(&&ahead.root)), "{hints:?}");
    for name in ["style.css", "script.js", "folder/image.png", "folder/"] {
        assert!(world.is_stored(name).await, "{name}");
    }
    assert!(!world.is_stored("other.html").await);
    // A page that is stored locally starts nothing.
    world.open().await;
    assert_eq!(world.pages(), 1);
    // The root was in memory; all other blocks count, the directory's too.
    let bytes: usize = [&style, &script, &image, &frame, &folder].iter().map(|block| block.data().len()).sum();
    until(|| world.bytes() == bytes as u64, "the bytes").await;
}

#[tokio::test]
async fn only_navigations_to_pages_from_the_network_start_one() {
    let image = raw("image");
    type Headers = [(&'static str, &'static str)];
    let table: [(&str, &str, &Headers, u64); 9] = [
        ("GET", "", &[BROWSER], 1),
        ("GET", "index.html", &[BROWSER], 1),
        ("GET", "", &[("accept", "*/*")], 0),
        ("HEAD", "", &[BROWSER], 0),
        ("GET", "", &[BROWSER, ("range", "bytes=0-10")], 0),
        ("GET", "index.html?format=raw", &[BROWSER], 0),
        ("GET", "?format=car", &[BROWSER], 0),
        ("GET", "index.html?download=true", &[BROWSER], 0),
        ("GET", "index.txt", &[BROWSER], 0),
    ];
    for (method, name, headers, pages) in table {
        let text = raw("<img src=image.png> as text");
        let world = World::new("<img src=image.png>", &[("image.png", &image), ("index.txt", &text)]).await;
        let response = world.site.send(method, &world.path(name), headers).await;
        response.bytes().await.expect("a whole response");
        assert_eq!(world.pages(), pages, "{method} {name} {headers:?}");
        world.until_paths(pages, 0, 0).await;
    }
    let off = |setup: &mut Setup| setup.http.prefetch_subresources = false;
    let world = World::with("<img src=image.png>", &[("image.png", &image)], &[], off).await;
    world.open().await;
    assert_eq!((world.pages(), world.network.asked()), (0, 2));
    assert!(!world.is_stored("image.png").await);
}

#[tokio::test]
async fn each_form_of_gateway_resolves_urls_as_browsers_do() {
    let (image, root_image) = (raw("image"), raw("at the root"));
    let page = |root: &str| {
        let own = "<base href=folder/><img src=image.png><img src=/image.png>";
        format!("{own}<img src={root}/image.png><img src=//x.example/y>")
    };
    // The page cannot name its own root; so it names another one, which counts nowhere but in an origin of its own.
    let index = raw(page("/ipfs/bafkqaaa"));
    let folder = directory(&[("image.png", &image)]);
    let root = directory(&[("folder", &folder), ("image.png", &root_image), ("index.html", &index)]);
    let blocks = [&root, &folder, &image, &root_image, &index];
    let subdomain = format!("{}.ipfs.localhost", root.cid());
    let table = [
        // The path, the host, and how many paths are fetched and not found.
        (format!("/ipfs/{}/", root.cid()), "127.0.0.1".to_owned(), (1, 0)),
        ("/".to_owned(), subdomain, (2, 1)),
        ("/".to_owned(), "site.example".to_owned(), (2, 1)),
        ("/ipns/site.example/".to_owned(), "127.0.0.1".to_owned(), (1, 0)),
    ];
    for (path, host, (fetched, failed)) in table {
        let names = |setup: &mut Setup| setup.names = Arc::new(Names { site: *root.cid() });
        let world = World::of(&root, FakeNetwork::new(blocks, []), names).await;
        let response = world.site.send("GET", &path, &[BROWSER, ("host", &host)]).await;
        assert_eq!(response.status(), 200, "{host}{path}");
        response.bytes().await.expect("a whole response");
        world.until_paths(fetched, failed, 0).await;
        assert!(world.is_stored("folder/image.png").await, "{host}{path}");
    }
}

#[tokio::test]
async fn a_page_in_a_content_coding_is_read_as_well() {
    let image = raw("image");
    let page = format!("<img src=image.png>{}", "<p>compressible</p>".repeat(2000));
    let world = World::new(&page, &[("image.png", &image)]).await;
    let headers = [BROWSER, ("accept-encoding", "zstd, br, gzip")];
    assert_eq!(world.status(&world.path(""), &headers).await, 200);
    world.until_paths(1, 0, 0).await;
}

#[tokio::test]
async fn urls_at_the_end_of_a_long_page_are_found_once() {
    let images: Vec<Block> = (0..6).map(|index| raw(format!("image {index}"))).collect();
    let leaf = |index: usize| {
        let filler = "<p>text".repeat(4000);
        raw(format!("<img src={index}.png>{filler}<img src={}.png>", index + 1))
    };
    let leaves: Vec<Block> = (0..5).map(leaf).collect();
    let index = file(&leaves);
    let names: Vec<String> = (0..6).map(|index| format!("{index}.png")).collect();
    let mut entries: Vec<(&str, &Block)> = names.iter().map(String::as_str).zip(&images).collect();
    entries.push(("index.html", &index));
    let root = directory(&entries);
    let network = FakeNetwork::new(leaves.iter().chain(&images).chain([&index, &root]), []);
    let world = World::of(&root, network, |_| ()).await;
    world.open().await;
    world.until_paths(6, 0, 0).await;
}

#[tokio::test]
async fn a_request_that_waits_for_a_prefetch_does_not_get_its_errors() {
    let image = raw("image");
    let busy = SourceError::Busy { retry_after: Duration::ZERO };
    // The prefetch gets no permit; it is stopped.
    for stops in [false, true] {
        let world = World::with("<img src=image.png>", &[("image.png", &image)], &[&image], |_| ()).await;
        if !stops {
            world.network.fail_with([busy.clone()]);
        }
        world.open().await;
        until(|| world.network.waiting() == 1, "the prefetch to wait").await;
        let loading = world.load("image.png");
        world.site.until_metric("causeway_flight_joined_total", 1).await;
        if stops {
            world.site.gateway.prefetcher().stop();
            world.until_paths(0, 0, 1).await;
            assert_eq!(world.network.waiting(), 1, "the fetch continues for the request");
            world.network.gate.add_permits(1);
        } else {
            world.network.gate.add_permits(1);
            world.until_paths(0, 0, 1).await;
            until(|| world.network.waiting() == 1, "the request to fetch the block itself").await;
            world.network.gate.add_permits(1);
        }
        assert_eq!(answer(loading).await, 200, "{stops}");
    }
}

#[tokio::test]
async fn a_denied_path_is_not_fetched_and_others_to_the_same_file_are_served() {
    let style = raw("style");
    let policy = Arc::<Running>::default();
    let page = "<link rel=stylesheet href=secret.css><link rel=stylesheet href=open.css>";
    let shared = Arc::clone(&policy) as Arc<dyn Policy>;
    let set = move |setup: &mut Setup| setup.policy = shared;
    let world = World::with(page, &[("open.css", &style), ("secret.css", &style)], &[&style], set).await;
    policy.swap(Rules { deny: matcher(&format!("/ipfs/{}/secret.css", world.root.cid())), allow: None });
    world.open().await;
    world.until_paths(0, 1, 0).await;
    until(|| world.network.waiting() == 1, "the prefetch to wait").await;
    let (open, secret) = (world.load("open.css"), world.load("secret.css"));
    world.site.until_metric("causeway_flight_joined_total", 1).await;
    assert_eq!(answer(secret).await, 410);
    world.network.gate.add_permits(1);
    assert_eq!(answer(open).await, 200);
    world.until_paths(1, 1, 0).await;
}

#[tokio::test]
async fn denied_blocks_are_not_asked_for() {
    let image = raw("image");
    let policy = Arc::<Running>::default();
    policy.swap(Rules { deny: matcher(&format!("/ipfs/{}", image.cid())), allow: None });
    let set = move |setup: &mut Setup| setup.policy = policy;
    let world = World::with("<img src=image.png>", &[("image.png", &image)], &[], set).await;
    world.open().await;
    world.until_paths(0, 1, 0).await;
    assert_eq!(world.network.asked(), 2);
}

#[tokio::test]
async fn half_of_a_clients_permits_are_left_for_its_requests() {
    let (first, second, image, further) = (raw("first"), raw("second"), raw("image"), raw("further"));
    let files = [("a", &first), ("b", &second), ("c.png", &image), ("d.png", &further)];
    let four = |setup: &mut Setup| setup.http.client_misses_max = 4;
    let world = World::with("<img src=c.png><img src=d.png>", &files, &[&first, &second], four).await;
    let loading = [world.load("a"), world.load("b")];
    until(|| world.network.waiting() == 2, "two requests to wait").await;
    world.open().await;
    world.until_paths(0, 0, 2).await;
    assert!(!world.is_stored("c.png").await);
    assert_eq!(answer(world.load("c.png")).await, 200, "a request has a permit");
    world.network.gate.add_permits(2);
    for loading in loading {
        assert_eq!(answer(loading).await, 200);
    }

    // A client that can have a single one has no prefetch.
    let one = |setup: &mut Setup| setup.http.client_misses_max = 1;
    let world = World::with("<img src=c.png>", &files, &[], one).await;
    world.open().await;
    assert_eq!(world.pages(), 0);
}

#[tokio::test]
async fn requests_have_all_of_their_permits_beside_a_prefetch() {
    let (images, files) = ([raw("first"), raw("second")], [0, 1, 2, 3].map(|index| raw(format!("file {index}"))));
    let (names, image_names) = (["0", "1", "2", "3"], ["a.png", "b.png"]);
    let entries: Vec<(&str, &Block)> =
        names.into_iter().zip(&files).chain(image_names.into_iter().zip(&images)).collect();
    let held_back: Vec<&Block> = files.iter().chain(&images).collect();
    let four = |setup: &mut Setup| (setup.http.misses_max, setup.http.client_misses_max) = (4, 4);
    let world = World::with("<img src=a.png><img src=b.png>", &entries, &held_back, four).await;
    world.open().await;
    until(|| world.network.waiting() == 2, "the prefetch to wait").await;
    let loading = names.map(|name| world.load(name));
    until(|| world.network.waiting() == 2 + 4, "all requests to wait").await;
    world.network.gate.add_permits(2 + 4);
    for loading in loading {
        assert_eq!(answer(loading).await, 200);
    }
    world.until_paths(2, 0, 0).await;
}

#[tokio::test]
async fn a_clients_rate_is_charged_for_each_path_and_half_of_it_is_left() {
    let images: Vec<Block> = (0..5).map(|index| raw(format!("image {index}"))).collect();
    let names: Vec<String> = (0..5).map(|index| format!("{index}.png")).collect();
    let files: Vec<(&str, &Block)> = names.iter().map(String::as_str).zip(&images).collect();
    let page: String = names.iter().map(|name| format!("<img src={name}>")).collect();
    let set = |setup: &mut Setup| (setup.limits.client_misses_per_second, setup.limits.client_misses_burst) = (1, 6);
    // Three tokens of six are left for requests, and the page takes one. Another one comes within a second, and is not
    // waited for.
    let world = World::with(&page, &files, &[], set).await;
    world.open().await;
    until(|| world.paths("fetched") + world.paths("given_up") == 5, "all paths").await;
    assert!(world.paths("fetched") >= 1 && world.paths("given_up") >= 1, "{}", world.paths("fetched"));
}

/// A name whose answer is cached, until it expires.
struct ExpiringName {
    root: Cid,
    is_expired: AtomicBool,
    asked: AtomicU64,
}

impl NameResolver for ExpiringName {
    fn resolve(&self, _: &Name) -> BoxFuture<'static, Result<Resolution, NameError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.is_expired.load(Ordering::SeqCst) {
            return pending().boxed();
        }
        let (root, ttl) = (self.root, Duration::from_secs(60));
        ready(Ok(Resolution { root, segments: Vec::new(), ttl, stale: None, hops: Vec::new() })).boxed()
    }

    fn record(&self, key: &Key) -> BoxFuture<'static, Result<Record, NameError>> {
        ready(Err(NameError::Offline { name: Name::Key(*key) })).boxed()
    }
}

#[tokio::test]
async fn the_name_of_a_page_is_resolved_once_and_not_waited_for() {
    for is_expired in [false, true] {
        let images = [raw("first"), raw("second")];
        let index = raw("<img src=a.png><img src=b.png>");
        let root = directory(&[("a.png", &images[0]), ("b.png", &images[1]), ("index.html", &index)]);
        let (is_cached, asked) = (AtomicBool::new(false), AtomicU64::new(0));
        let name = Arc::new(ExpiringName { root: *root.cid(), is_expired: is_cached, asked });
        let names = Arc::clone(&name) as Arc<dyn NameResolver>;
        let network = FakeNetwork::new(images.iter().chain([&index, &root]), [&index]);
        let world = World::of(&root, network, |setup: &mut Setup| setup.names = names).await;
        let site = Arc::clone(&world.site);
        let opening = tokio::spawn(async move {
            let response = site.send("GET", "/ipns/site.example/", &[BROWSER]).await;
            let status = response.status().as_u16();
            response.bytes().await.expect("a whole response");
            status
        });
        until(|| world.network.waiting() == 1, "the page to wait").await;
        let asked = name.asked.load(Ordering::SeqCst);
        name.is_expired.store(is_expired, Ordering::SeqCst);
        world.network.gate.add_permits(1);
        assert_eq!(answer(opening).await, 200);
        let (pages, fetched) = if is_expired { (0, 0) } else { (1, 2) };
        assert_eq!(world.pages(), pages, "{is_expired}");
        world.until_paths(fetched, 0, 0).await;
        assert_eq!(name.asked.load(Ordering::SeqCst), asked + 1, "{is_expired}");
    }
}

/// Navigates to the page of a root from an address of this machine.
async fn open_from(address: [u8; 4], world: &World, root: &Block) {
    let head = format!("GET /ipfs/{}/ HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\nConnection: close", root.cid());
    let mut stream = connect_from(address, &world.site, &format!("{head}\r\n\r\n")).await;
    let mut response = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut response)).await.expect("in time");
    read.expect("a whole response");
    assert!(response.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&response));
}

#[tokio::test]
async fn the_number_of_pages_at_a_time_is_bounded() {
    // One client more than can have all of their pages, and each of them opens one page more than it can have.
    let clients = PAGES_MAX / CLIENT_PAGES_MAX + 1;
    let image = raw("image");
    let page = |number: usize| raw(format!("<img src=image.png>{number}"));
    let pages: Vec<Block> = (0..=clients * (CLIENT_PAGES_MAX + 1)).map(page).collect();
    let root = |index: &Block| directory(&[("image.png", &image), ("index.html", index)]);
    let roots: Vec<Block> = pages.iter().map(root).collect();
    let network = FakeNetwork::new(pages.iter().chain(&roots).chain([&image]), [&image]);
    let long = |setup: &mut Setup| setup.limits.prefetch_time_max = Duration::from_secs(3600);
    let world = World::of(&roots[0], network, long).await;
    let mut unopened = roots.iter();
    for client in 1..=clients {
        let address = [127, 0, 1, u8::try_from(client).expect("few clients")];
        for root in unopened.by_ref().take(CLIENT_PAGES_MAX + 1) {
            open_from(address, &world, root).await;
        }
        assert_eq!(world.pages(), PAGES_MAX.min(client * CLIENT_PAGES_MAX) as u64, "{client}");
    }
    world.network.gate.add_permits(1);
    world.until_paths(PAGES_MAX as u64, 0, 0).await;
    world.until_ended().await;
    open_from([127, 0, 1, 1], &world, unopened.next().expect("a last page")).await;
    world.until_paths(PAGES_MAX as u64 + 1, 0, 0).await;
}

#[tokio::test]
async fn the_number_of_paths_and_their_bytes_are_bounded() {
    let many: String = (0..PATHS_MAX + 50).map(|index| format!("<img src=missing-{index}.png>")).collect();
    let world = World::new(&many, &[]).await;
    world.open().await;
    world.until_paths(0, PATHS_MAX as u64, 0).await;

    let images: Vec<Block> = (0..40_u8).map(|index| raw(vec![index; 1 << 20])).collect();
    let names: Vec<String> = (0..40).map(|index| format!("{index:02}.png")).collect();
    let files: Vec<(&str, &Block)> = names.iter().map(String::as_str).zip(&images).collect();
    let page: String = names.iter().map(|name| format!("<img src={name}>")).collect();
    let world = World::with(&page, &files, &[], |_| ()).await;
    world.open().await;
    until(|| world.paths("fetched") + world.paths("given_up") == 40, "all paths").await;
    until(|| world.bytes() > 0, "the bytes").await;
    let (bytes, in_flight) = (world.bytes(), (IN_FLIGHT_MAX as u64) << 20);
    assert!(bytes <= BYTES_MAX + in_flight, "{bytes}");
    assert!(world.network.asked() <= 2 + 8 + IN_FLIGHT_MAX as u64, "{}", world.network.asked());
    // Requests get what was left out.
    for name in &names {
        assert_eq!(answer(world.load(name)).await, 200, "{name}");
    }
}

#[tokio::test]
async fn of_a_long_file_the_beginning_is_fetched() {
    let leaves: Vec<Block> = (0..16_u8).map(|index| raw(vec![index; 256 << 10])).collect();
    let video = file(&leaves);
    let index = raw("<video src=video.mp4></video>");
    let root = directory(&[("index.html", &index), ("video.mp4", &video)]);
    let network = FakeNetwork::new(leaves.iter().chain([&video, &index, &root]), []);
    let world = World::of(&root, network, |_| ()).await;
    world.open().await;
    world.until_paths(1, 0, 0).await;
    assert_eq!(world.network.asked(), 2 + 1 + 4, "the root of the file, and a MiB of it");
}

/// A page of two leaves, of which the second arrives when the gate opens, and an image that does too.
async fn half_a_page() -> World {
    let (image, rest) = (raw("image"), raw("the rest"));
    let leaves = [raw(format!("<img src=image.png>{}", "x".repeat(100_000))), rest];
    let index = file(&leaves);
    let root = directory(&[("image.png", &image), ("index.html", &index)]);
    let network = FakeNetwork::new(leaves.iter().chain([&image, &index, &root]), [&leaves[1], &image]);
    World::of(&root, network, |_| ()).await
}

fn request(world: &World) -> String {
    format!("GET {} HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\n\r\n", world.path(""))
}

#[tokio::test]
async fn it_ends_when_the_client_leaves_before_it_has_the_page() {
    let world = half_a_page().await;
    let client = world.site.connect(&request(&world)).await;
    until(|| world.network.waiting() == 2, "the page and the image to wait").await;
    drop(client);
    world.until_paths(0, 0, 1).await;
    until(|| world.network.waiting() == 0, "nothing to wait").await;
}

#[tokio::test]
async fn it_continues_when_the_page_was_sent_until_shutdown() {
    let image = raw("image");
    let world = World::with("<img src=image.png>", &[("image.png", &image)], &[&image], |_| ()).await;
    let close = format!("GET {} HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\nConnection: close\r\n\r\n", world.path(""));
    let (response, end) = world.site.exchange(&close).await;
    assert!(end.is_ok() && response.ends_with(b"<img src=image.png>"));
    until(|| world.network.waiting() == 1, "the image to wait").await;
    world.site.until_metric("causeway_http_connections", 0).await;
    assert_eq!(world.network.waiting(), 1);
    world.site.gateway.prefetcher().stop();
    world.until_paths(0, 0, 1).await;
    until(|| world.network.waiting() == 0, "nothing to wait").await;
}

#[tokio::test]
async fn it_ends_some_time_after_the_page_was_sent() {
    let image = raw("image");
    let brief = |setup: &mut Setup| setup.limits.prefetch_time_max = Duration::from_secs(1);
    let world = World::with("<img src=image.png>", &[("image.png", &image)], &[&image], brief).await;
    world.open().await;
    world.until_paths(0, 0, 1).await;
    until(|| world.network.waiting() == 0, "nothing to wait").await;
}

#[tokio::test]
async fn it_begins_while_the_page_is_sent() {
    let world = half_a_page().await;
    let (site, path) = (Arc::clone(&world.site), world.path(""));
    let opening = tokio::spawn(async move { site.send("GET", &path, &[BROWSER]).await.bytes().await.expect("a page") });
    until(|| world.network.waiting() >= 2, "the image to be asked for before the page is complete").await;
    world.network.gate.add_permits(10);
    assert!(opening.await.expect("no panic").ends_with(b"the rest"));
    world.until_paths(1, 0, 0).await;
}

#[tokio::test]
async fn hostile_pages_are_sent_and_start_nothing() {
    for page in [
        format!("<img src={}", "a".repeat(2 << 20)),
        format!("<img {}", "a=b ".repeat(300_000)),
        "<".repeat(1 << 20),
        "<template><img src=x>".repeat(50_000),
    ] {
        let leaves: Vec<Block> = page.as_bytes().chunks(256 << 10).map(|chunk| raw(chunk.to_vec())).collect();
        let index = file(&leaves);
        let root = directory(&[("index.html", &index)]);
        let world = World::of(&root, FakeNetwork::new(leaves.iter().chain([&index, &root]), []), |_| ()).await;
        let body = world.site.send("GET", &world.path(""), &[BROWSER]).await.bytes().await.expect("a page");
        assert_eq!(body, page.as_bytes());
        assert_eq!(world.pages(), 1);
        world.until_ended().await;
        let paths = ["fetched", "failed", "given_up"].map(|result| world.paths(result));
        assert_eq!((paths, world.bytes()), ([0; 3], 0));
    }
}
