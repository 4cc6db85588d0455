//! Singleflight: concurrent requests for a path or a listing share one call, also when the leader disconnects.

use crate::dag::{directory, directory_of_bytes, raw, sharded};
use crate::hosts::Names;
use crate::site::{FailingNetwork, PATIENCE, Setup, Site, header, until};
use crate::upstream::FakeNetwork;
use config::Host;
use content::{Block, Cid, Policy, SourceError, Stall, Verdict};
use futures::future::join_all;
use futures::stream::{BoxStream, StreamExt as _};
use reqwest::Response;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinHandle;

const MANY: u64 = 20;

type Answer = (u16, String);

async fn answer(response: Response) -> Answer {
    (response.status().as_u16(), response.text().await.expect("an end"))
}

/// Sends a request, and reads the whole response.
fn ask(site: &Arc<Site>, path: &str, headers: &[(&'static str, &'static str)]) -> JoinHandle<Answer> {
    let (site, path, headers) = (Arc::clone(site), path.to_owned(), headers.to_vec());
    tokio::spawn(async move { answer(site.send("GET", &path, &headers).await).await })
}

async fn all(asking: Vec<JoinHandle<Answer>>) -> Vec<Answer> {
    let answers = tokio::time::timeout(PATIENCE, join_all(asking)).await.expect("in time");
    answers.into_iter().map(|answer| answer.expect("does not panic")).collect()
}

async fn until_calls_joined(site: &Site, count: u64) {
    site.until_metric("causeway_http_walks_joined_total", count).await;
}

async fn until_listings(site: &Site, result: &str, count: u64) {
    site.until_metric(&format!("causeway_http_listings_total{{result=\"{result}\"}}"), count).await;
}

/// A file in a nested directory, whose block the network holds back until it is released.
struct Deep {
    site: Arc<Site>,
    network: Arc<FakeNetwork>,
    path: String,
    root: Block,
    held_back: Block,
}

async fn deep() -> Deep {
    let file = raw("at the end");
    let below = directory(&[("index.html", &file)]);
    let held_back = directory(&[("below", &below)]);
    let root = directory(&[("held-back", &held_back)]);
    let network = FakeNetwork::new([&root, &held_back, &below, &file], [&held_back]);
    let setup = Setup { upstream: Some(Arc::clone(&network) as _), ..Setup::new(&[]) };
    let path = format!("/ipfs/{}/held-back/below/", root.cid());
    Deep { site: Arc::new(setup.start().await), network, path, root, held_back }
}

impl Deep {
    fn ask(&self) -> JoinHandle<Answer> {
        ask(&self.site, &self.path, &[])
    }

    async fn until_waiting(&self) {
        until(|| self.network.waiting() == 1, "the call to wait").await;
    }

    /// A leader, and `count` followers.
    async fn many(&self, count: u64) -> Vec<JoinHandle<Answer>> {
        let mut asking = vec![self.ask()];
        self.until_waiting().await;
        asking.extend((1..count).map(|_| self.ask()));
        until_calls_joined(&self.site, count - 1).await;
        asking
    }

    async fn until_quiet(&self) {
        self.site.until_metric("causeway_http_requests_in_flight", 0).await;
        until(|| self.network.waiting() == 0, "no call to wait").await;
        assert_eq!(self.site.gateway.resources.path_resolver.under_way(), 0);
    }
}

#[tokio::test]
async fn concurrent_requests_for_a_path_resolve_it_once() {
    let deep = deep().await;
    let asking = deep.many(MANY).await;
    assert_eq!(deep.site.gateway.resources.path_resolver.under_way(), 1);
    deep.network.gate.add_permits(1);
    for answer in all(asking).await {
        assert_eq!(answer, (200, "at the end".to_owned()));
    }
    assert_eq!((deep.site.look_ups(&deep.root), deep.site.look_ups(&deep.held_back)), (1, 1), "one resolution");
    assert_eq!(deep.network.asked(), 4);
    deep.until_quiet().await;
}

#[tokio::test]
async fn other_representations_and_other_paths_have_calls_of_their_own() {
    let deep = deep().await;
    let mut asking = deep.many(2).await;
    // The path ends at the same block in every representation.
    for format in ["raw", "car", "tar", "raw"] {
        asking.push(ask(&deep.site, &format!("{}?format={format}", deep.path), &[]));
    }
    until_calls_joined(&deep.site, 1 + 3).await;
    asking.push(ask(&deep.site, deep.path.trim_end_matches('/'), &[]));
    asking.push(ask(&deep.site, &format!("{}?format=json", deep.path), &[]));
    until(|| deep.site.gateway.resources.path_resolver.under_way() == 4, "four calls").await;
    deep.network.gate.add_permits(1);
    let statuses: Vec<u16> = all(asking).await.into_iter().map(|(status, _)| status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 301, 200]);
}

#[tokio::test]
async fn a_call_continues_for_followers_when_the_leader_disconnects() {
    let deep = deep().await;
    let request = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", deep.path);
    let first = deep.site.connect(&request).await;
    deep.until_waiting().await;
    let others: Vec<_> = (0..3).map(|_| deep.ask()).collect();
    until_calls_joined(&deep.site, 3).await;
    drop(first);
    deep.site.until_metric("causeway_http_requests_cancelled_total", 1).await;
    assert_eq!((deep.network.waiting(), deep.site.gateway.resources.path_resolver.under_way()), (1, 1), "it continues");
    deep.network.gate.add_permits(1);
    for answer in all(others).await {
        assert_eq!(answer, (200, "at the end".to_owned()));
    }
    assert_eq!((deep.site.look_ups(&deep.root), deep.network.asked()), (1, 4), "it is the same one");
}

#[tokio::test]
async fn a_call_ends_when_all_clients_have_disconnected() {
    let deep = deep().await;
    let request = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", deep.path);
    let first = deep.site.connect(&request).await;
    deep.until_waiting().await;
    let second = deep.site.connect(&request).await;
    until_calls_joined(&deep.site, 1).await;
    drop(first);
    deep.site.until_metric("causeway_http_requests_cancelled_total", 1).await;
    assert_eq!(deep.network.waiting(), 1);
    drop(second);
    deep.until_quiet().await;
    // A later request begins a new call.
    let asking = deep.ask();
    deep.until_waiting().await;
    deep.network.gate.add_permits(1);
    assert_eq!(asking.await.expect("does not panic").0, 200);
}

#[tokio::test]
async fn an_error_is_shared_by_all_waiting_requests() {
    let deep = deep().await;
    deep.network.fail_with([SourceError::Corrupt { cid: *deep.held_back.cid() }]);
    let asking = deep.many(MANY).await;
    deep.network.gate.add_permits(1);
    for (status, text) in all(asking).await {
        assert!(status == 502 && text.contains(&deep.held_back.cid().to_string()), "{status} {text}");
    }
    assert_eq!((deep.site.look_ups(&deep.root), deep.network.asked()), (1, 2));
    deep.until_quiet().await;
}

#[tokio::test]
async fn a_follower_begins_a_new_call_after_a_leader_only_error() {
    let patient = |cid| SourceError::Stalled { cid, stall: Stall { waited: PATIENCE * 10, ..Stall::default() } };
    for (failure, status) in
        [(SourceError::Busy { retry_after: std::time::Duration::ZERO }, 429), (patient(*raw("x").cid()), 504)]
    {
        let deep = deep().await;
        deep.network.fail_with([failure]);
        let mut asking = deep.many(MANY).await;
        let first = asking.remove(0);
        deep.network.gate.add_permits(1);
        assert_eq!(first.await.expect("does not panic").0, status);
        deep.until_waiting().await;
        // When this one has joined, the others have too.
        asking.push(deep.ask());
        until_calls_joined(&deep.site, MANY).await;
        deep.network.gate.add_permits(1);
        for answer in all(asking).await {
            assert_eq!(answer, (200, "at the end".to_owned()));
        }
        assert_eq!(deep.site.look_ups(&deep.held_back), 2, "one call of the leader, and one of all followers");
    }
}

#[tokio::test]
async fn only_if_cached_requests_have_calls_of_their_own() {
    let deep = deep().await;
    let asking = deep.many(3).await;
    for _ in 0..2 {
        let answer = ask(&deep.site, &deep.path, &[("cache-control", "only-if-cached")]).await;
        let (status, text) = answer.expect("does not panic");
        assert!(status == 412 && text.contains(&deep.held_back.cid().to_string()), "{status} {text}");
    }
    assert_eq!(deep.network.waiting(), 1, "the others still wait");
    deep.network.gate.add_permits(1);
    for answer in all(asking).await {
        assert_eq!(answer, (200, "at the end".to_owned()));
    }
    let answer = ask(&deep.site, &deep.path, &[("cache-control", "only-if-cached")]).await;
    assert_eq!(answer.expect("does not panic").0, 200, "now it is stored locally");
}

/// A policy that can be changed.
#[derive(Default)]
struct Switch {
    denied: Mutex<HashSet<Cid>>,
    generation: AtomicU64,
}

impl Switch {
    fn deny(&self, cids: &[Cid]) {
        *self.denied.lock().expect("is sound") = cids.iter().copied().collect();
        self.generation.fetch_add(1, Ordering::SeqCst);
    }
}

impl Policy for Switch {
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    fn check(&self, cid: &Cid) -> Verdict {
        let denied = self.denied.lock().expect("is sound");
        if denied.iter().any(|other| other.hash() == cid.hash()) { Verdict::Gone } else { Verdict::Allow }
    }
}

#[tokio::test]
async fn content_that_is_withheld_during_a_call_is_not_served() {
    let file = raw("at the end");
    let below = directory(&[("index.html", &file)]);
    let root = directory(&[("below", &below)]);
    let network = FakeNetwork::new([&root, &below, &file], [&below]);
    let policy = Arc::<Switch>::default();
    let upstream = Some(Arc::clone(&network) as _);
    let setup = Setup { upstream, policy: Arc::clone(&policy) as _, ..Setup::new(&[]) };
    let site = Arc::new(setup.start().await);
    let path = format!("/ipfs/{}/below/", root.cid());
    let mut asking: Vec<_> = (0..3).map(|_| ask(&site, &path, &[])).collect();
    until_calls_joined(&site, 2).await;
    policy.deny(&[*below.cid()]);
    // Later requests use another policy, and do not join a call under the old one.
    assert_eq!(ask(&site, &path, &[]).await.expect("does not panic").0, 410);
    network.gate.add_permits(1);
    asking.push(ask(&site, &path, &[]));
    for (status, _) in all(asking).await {
        assert_eq!(status, 410);
    }
    policy.deny(&[]);
    network.gate.add_permits(1);
    assert_eq!(ask(&site, &path, &[]).await.expect("does not panic"), (200, "at the end".to_owned()));
}

const SITE: [(&str, &str); 1] = [("host", "site.example")];

/// A domain's site whose `_redirects` file the network holds back until it is released.
struct Ruled {
    site: Arc<Site>,
    network: Arc<FakeNetwork>,
    rules: Block,
}

async fn ruled(rules: &str, policy: Arc<dyn Policy>) -> Ruled {
    let (rules, page) = (raw(rules.to_owned()), raw("instead"));
    let root = directory(&[("_redirects", &rules), ("page.html", &page)]);
    let network = FakeNetwork::new([&root, &rules, &page], [&rules]);
    let upstream = Some(Arc::clone(&network) as _);
    let setup = Setup { upstream, policy, names: Arc::new(Names { site: *root.cid() }), ..Setup::new(&[]) };
    Ruled { site: Arc::new(setup.start().await), network, rules }
}

impl Ruled {
    fn ask(&self, path: &str) -> JoinHandle<Answer> {
        ask(&self.site, path, &SITE)
    }

    /// Requests for many missing paths, which wait for the rules.
    async fn many(&self) -> Vec<JoinHandle<Answer>> {
        let asking = (0..MANY).map(|number| self.ask(&format!("/missing/{number}"))).collect();
        until_calls_joined(&self.site, MANY - 1).await;
        until(|| self.network.waiting() == 1, "the rules to be waited for").await;
        asking
    }
}

#[tokio::test]
async fn the_redirects_of_a_site_are_read_once_and_cached() {
    let table = [
        ("/* /page.html 200\n", 200, "instead"),
        ("/elsewhere /page.html 200\n", 404, "missing"),
        ("/* nowhere\n", 500, "_redirects"),
    ];
    for (rules, status, text) in table {
        let ruled = ruled(rules, Arc::new(content::AllowAll)).await;
        let mut asking = ruled.many().await;
        ruled.network.gate.add_permits(1);
        asking.push(ruled.ask("/missing/0"));
        for (found, body) in all(asking).await {
            assert!(found == status && body.contains(text), "{found} {body}");
        }
        for path in ["/missing/0", "/another"] {
            assert_eq!(ruled.ask(path).await.expect("does not panic").0, status, "{rules} {path}");
        }
        assert_eq!((ruled.site.look_ups(&ruled.rules), ruled.network.waiting()), (1, 0), "{rules}");
        assert_eq!(ruled.site.gateway.resources.path_resolver.under_way(), 0);
    }
}

#[tokio::test]
async fn redirects_that_failed_or_were_withheld_are_read_again() {
    let policy = Arc::<Switch>::default();
    let ruled = ruled("/* /page.html 200\n", Arc::clone(&policy) as _).await;
    ruled.network.fail_with([SourceError::Corrupt { cid: *ruled.rules.cid() }]);
    let asking = ruled.many().await;
    ruled.network.gate.add_permits(1);
    for (status, text) in all(asking).await {
        assert!(status == 502 && text.contains(&ruled.rules.cid().to_string()), "{status} {text}");
    }
    let asking = ruled.ask("/missing");
    until(|| ruled.network.waiting() == 1, "the rules to be waited for").await;
    ruled.network.gate.add_permits(1);
    assert_eq!(asking.await.expect("does not panic"), (200, "instead".to_owned()));
    policy.deny(&[*ruled.rules.cid()]);
    assert_eq!(ruled.ask("/missing").await.expect("does not panic").0, 410);
    policy.deny(&[]);
    assert_eq!(ruled.ask("/missing").await.expect("does not panic"), (200, "instead".to_owned()));
}

fn names(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("n{number:06}").into_bytes()).collect()
}

/// A sharded directory whose last shard the network holds back until it is released.
struct Sharded {
    site: Arc<Site>,
    network: Arc<FakeNetwork>,
    path: String,
    root: Block,
    last: Block,
    names: Vec<Vec<u8>>,
}

async fn sharded_directory() -> Sharded {
    let names = names(600);
    let blocks = sharded(&names, &raw("x"));
    let [held @ .., last, root] = &blocks[..] else { panic!("a root and shards") };
    let network = FakeNetwork::new(&blocks, [last]);
    let held: Vec<&Block> = held.iter().chain([root]).collect();
    let setup = Setup { upstream: Some(Arc::clone(&network) as _), ..Setup::new(&held) };
    let path = format!("/ipfs/{}/", root.cid());
    let site = Arc::new(setup.start().await);
    Sharded { site, network, path, root: root.clone(), last: last.clone(), names }
}

impl Sharded {
    /// A reader that has received the first chunk, and waits for the rest.
    async fn begin(&self) -> Reading {
        let response = self.site.get(&self.path).await;
        assert_eq!((response.status().as_u16(), header(&response, "transfer-encoding")), (200, "chunked"));
        let mut reading = Reading { text: Vec::new(), rest: response.bytes_stream().boxed() };
        while reading.text.len() < 20_000 {
            let chunk = reading.rest.next().await.expect("more").expect("so far so good");
            reading.text.extend(chunk);
        }
        reading
    }

    async fn begin_many(&self, count: u64) -> Vec<Reading> {
        let reading = join_all((0..count).map(|_| self.begin())).await;
        until(|| self.network.waiting() == 1, "the listing to wait").await;
        assert_eq!(self.site.gateway.resources.listings.under_way(), 1);
        reading
    }

    fn assert_is_whole(&self, text: &str) {
        assert!(text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>\n"));
        for name in &self.names {
            let name = String::from_utf8_lossy(name);
            assert_eq!(text.matches(&format!(">{name}<")).count(), 1, "{name}");
        }
    }
}

/// A page that is being read.
struct Reading {
    text: Vec<u8>,
    rest: BoxStream<'static, reqwest::Result<bytes::Bytes>>,
}

impl Reading {
    /// The whole page, or the error that aborted it.
    async fn finish(mut self) -> reqwest::Result<String> {
        let rest = async {
            while let Some(chunk) = self.rest.next().await {
                self.text.extend(chunk?);
            }
            Ok::<_, reqwest::Error>(String::from_utf8(self.text).expect("text"))
        };
        tokio::time::timeout(PATIENCE, rest).await.expect("in time")
    }
}

#[tokio::test]
async fn concurrent_requests_for_a_listing_generate_it_once_and_later_ones_get_it_from_the_cache() {
    let listing = sharded_directory().await;
    let reading = listing.begin_many(MANY).await;
    until_listings(&listing.site, "joined", MANY - 1).await;
    listing.network.gate.add_permits(1);
    let mut pages = HashSet::new();
    for reading in reading {
        pages.insert(reading.finish().await.expect("an end"));
    }
    assert_eq!(pages.len(), 1);
    let page = pages.into_iter().next().expect("one");
    listing.assert_is_whole(&page);
    assert_eq!((listing.site.look_ups(&listing.last), listing.network.asked()), (1, 1), "it was generated once");

    let look_ups = listing.site.look_ups(&listing.root);
    let again = listing.site.get(&listing.path).await;
    assert_eq!(header(&again, "content-length"), page.len().to_string());
    assert!(header(&again, "server-timing").starts_with("tier;desc=\"ram\""), "{:?}", again.headers());
    assert_eq!(again.text().await.expect("text"), page);
    until_listings(&listing.site, "hit", 1).await;
    assert_eq!(listing.site.look_ups(&listing.root), look_ups, "nothing was resolved or read for it");
    until_listings(&listing.site, "miss", 1).await;
}

#[tokio::test]
async fn a_listing_continues_for_followers_when_the_leader_disconnects_and_ends_with_the_last() {
    let listing = sharded_directory().await;
    let first = listing.begin().await;
    let mut others = vec![listing.begin().await, listing.begin().await];
    until(|| listing.network.waiting() == 1, "the listing to wait").await;
    drop(first);
    let left = "causeway_http_responses_aborted_total{reason=\"client\"}";
    listing.site.until_metric(left, 1).await;
    assert_eq!((listing.site.gateway.resources.listings.under_way(), listing.network.waiting()), (1, 1));
    others.pop();
    listing.site.until_metric(left, 2).await;
    assert_eq!((listing.site.gateway.resources.listings.under_way(), listing.network.waiting()), (1, 1));
    let last = others.pop().expect("one is left");
    let asked = listing.network.asked();
    listing.network.gate.add_permits(1);
    listing.assert_is_whole(&last.finish().await.expect("an end"));
    assert_eq!((listing.network.asked(), listing.site.look_ups(&listing.last)), (asked, 1), "no new call was begun");
}

#[tokio::test]
async fn a_listing_ends_when_all_clients_have_disconnected_and_is_not_cached() {
    let listing = sharded_directory().await;
    drop(listing.begin_many(3).await);
    listing.site.until_metric("causeway_http_requests_in_flight", 0).await;
    until(|| listing.network.waiting() == 0, "nothing to be fetched").await;
    assert_eq!(listing.site.gateway.resources.listings.under_way(), 0);
    let asking = ask(&listing.site, &listing.path, &[]);
    until(|| listing.network.waiting() == 1, "the listing to wait").await;
    listing.network.gate.add_permits(1);
    listing.assert_is_whole(&asking.await.expect("does not panic").1);
    assert_eq!(listing.site.metric("causeway_http_listings_total{result=\"hit\"}"), 0);
}

#[tokio::test]
async fn an_aborted_listing_is_aborted_for_all_and_is_not_cached() {
    let listing = sharded_directory().await;
    listing.network.fail_with([SourceError::Corrupt { cid: *listing.last.cid() }]);
    let reading = listing.begin_many(5).await;
    listing.network.gate.add_permits(1);
    for reading in reading {
        assert!(reading.finish().await.is_err(), "there is no end of it");
    }
    listing.site.until_metric("causeway_http_responses_aborted_total{reason=\"corrupt\"}", 5).await;
    assert_eq!(listing.site.gateway.resources.listings.under_way(), 0);
    listing.network.gate.add_permits(1);
    listing.assert_is_whole(&listing.begin().await.finish().await.expect("an end"));
    assert_eq!(listing.site.metric("causeway_http_listings_total{result=\"hit\"}"), 0);
    listing.assert_is_whole(&listing.site.get(&listing.path).await.text().await.expect("text"));
    until_listings(&listing.site, "hit", 1).await;
}

#[tokio::test]
async fn followers_continue_after_a_leader_only_error_of_a_listing() {
    let listing = sharded_directory().await;
    listing.network.fail_with([SourceError::Busy { retry_after: std::time::Duration::ZERO }]);
    let first = listing.begin().await;
    let others = join_all((0..4).map(|_| listing.begin())).await;
    listing.network.gate.add_permits(2);
    assert!(first.finish().await.is_err(), "it had no permit");
    for reading in others {
        listing.assert_is_whole(&reading.finish().await.expect("an end"));
    }
}

#[tokio::test]
async fn a_listing_that_is_too_long_to_share_is_complete_for_all_readers() {
    let leaf = raw("x");
    let names = names(6000);
    let blocks = sharded(&names, &leaf);
    for total_bytes_max in [256 << 20, 100_000, 0] {
        let network = FakeNetwork::new(&blocks, [&blocks[0]]);
        let mut setup = Setup { upstream: Some(Arc::clone(&network) as _), ..Setup::new(&[]) };
        setup.http.listing_entries_max = 10_000;
        setup.http.read_ahead_total_bytes_max = total_bytes_max;
        setup.limits = gateway::limits::RequestLimits::of(&setup.http, &config::Cache::default());
        let site = Arc::new(setup.start().await);
        let path = format!("/ipfs/{}/", blocks[blocks.len() - 1].cid());
        let asking: Vec<_> = (0..4).map(|_| ask(&site, &path, &[])).collect();
        until_listings(&site, "joined", 3).await;
        until(|| network.waiting() == 1, "the listing to wait").await;
        network.gate.add_permits(100);
        let answers = all(asking).await;
        for (status, text) in &answers {
            assert_eq!((*status, text.matches("<li>").count()), (200, names.len()), "{total_bytes_max}");
            assert!(text == &answers[0].1 && text.len() > 1 << 20 && text.ends_with("</html>\n"));
        }
        let again = site.get(&path).await;
        assert_eq!(header(&again, "transfer-encoding"), "chunked", "it is not cached");
        assert_eq!(again.text().await.expect("text"), answers[0].1);
        assert_eq!(site.metric("causeway_http_listings_total{result=\"hit\"}"), 0);
    }
}

/// A gateway with the same directory under several hosts and paths.
struct Hosts {
    blocks: Vec<Block>,
    /// The root of a site.
    root: Cid,
    requests: Vec<(String, String, &'static str)>,
}

fn hosts() -> Hosts {
    let leaf = raw("x");
    let inner = directory(&[("a", &leaf), ("b & c", &leaf), ("d", &leaf)]);
    let folder = directory(&[("inner", &inner), ("other", &inner)]);
    let root = directory(&[("a", &leaf), ("d", &leaf), ("folder", &folder), ("x", &leaf)]);
    let label = root.cid();
    let mut requests = Vec::new();
    let path = format!("/ipfs/{}/folder/inner/", root.cid());
    for (host, path) in [
        ("plain.example", path.clone()),
        ("plain.example", path.replace("inner", "other")),
        ("plain.example", path.replace("inner", "i%6Ener")),
        ("plain.example", format!("/ipfs/{}/", inner.cid())),
        ("plain.example", format!("/ipfs/{}/", root.cid())),
        ("plain.example", "/ipns/site.example/folder/inner/".to_owned()),
        (&*format!("{label}.ipfs.gw.example"), "/folder/inner/".to_owned()),
        (&*format!("{label}.ipfs.gw.example:8080"), "/folder/inner/".to_owned()),
        (&*format!("{label}.ipfs.gw.example"), "/".to_owned()),
        ("site.example", "/folder/inner/".to_owned()),
        ("site.example:8080", "/folder/inner/".to_owned()),
        ("folder.site.example", "/".to_owned()),
    ] {
        for query in ["", "?after=a", "?format=json", "?format=json&after=a", "?after=d"] {
            requests.push((host.to_owned(), format!("{path}{query}"), "text/html"));
        }
        requests.push((host.to_owned(), path, "application/json"));
    }
    Hosts { blocks: vec![leaf, inner, folder, root.clone()], root: *root.cid(), requests }
}

impl Hosts {
    async fn start(&self, listings_bytes_max: u64) -> Site {
        let mut setup = Setup::new(&self.blocks.iter().collect::<Vec<_>>());
        setup.names = Arc::new(Names { site: self.root });
        setup.http.hosts = vec![Host::named("gw.example")];
        setup.limits.listing_entries_max = 2;
        setup.limits.listings_bytes_max = listings_bytes_max;
        setup.start().await
    }
}

/// The parts of a response that must not depend on whether the page is cached.
fn comparable(response: &Response) -> Vec<(String, String)> {
    let own = ["date", "server-timing", "content-length", "transfer-encoding"];
    let headers = response.headers().iter().filter(|(name, _)| !own.contains(&name.as_str()));
    let mut headers: Vec<_> =
        headers.map(|(name, value)| (name.to_string(), value.to_str().expect("text").to_owned())).collect();
    headers.sort();
    headers
}

#[tokio::test]
async fn a_cached_page_equals_a_generated_one() {
    let hosts = hosts();
    let (caching, uncached) = (hosts.start(1 << 20).await, hosts.start(0).await);
    let mut pages = HashSet::new();
    for turn in 0..3 {
        for (host, path, accept) in &hosts.requests {
            let headers = [("host", host.as_str()), ("accept", *accept)];
            let known = caching.send("GET", path, &headers).await;
            let fresh = uncached.send("GET", path, &headers).await;
            assert_eq!((known.status().as_u16(), fresh.status().as_u16()), (200, 200), "{host} {path}");
            assert_eq!(comparable(&known), comparable(&fresh), "{turn} {host} {path}");
            let etag = header(&known, "etag").to_owned();
            let length = header(&known, "content-length").to_owned();
            let known = known.text().await.expect("text");
            assert_eq!(known, fresh.text().await.expect("text"), "{turn} {host} {path}");
            pages.insert(known.clone());
            if turn == 0 {
                continue;
            }
            assert_eq!(length, known.len().to_string(), "{host} {path}");
            let head = caching.send("HEAD", path, &headers).await;
            assert_eq!((head.status().as_u16(), header(&head, "content-length")), (200, &*length), "{host} {path}");
            let condition = [headers[0], headers[1], ("if-none-match", etag.as_str())];
            let (known, fresh) =
                (caching.send("GET", path, &condition).await, uncached.send("GET", path, &condition).await);
            assert_eq!((known.status().as_u16(), fresh.status().as_u16()), (304, 304), "{host} {path}");
            assert_eq!(comparable(&known), comparable(&fresh), "{host} {path}");
            let range = [headers[0], headers[1], ("range", "bytes=0-9")];
            assert_eq!(caching.send("GET", path, &range).await.status(), 200, "listings have no ranges");
        }
    }
    assert!(pages.len() > hosts.requests.len() / 2, "{} pages", pages.len());
    let hits = |site: &Site| site.metric("causeway_http_listings_total{result=\"hit\"}");
    assert_eq!(hits(&uncached), 0);
    // Later requests: the page, its HEAD, its revalidation and its range.
    assert!(hits(&caching) >= 2 * 4 * hosts.requests.len() as u64, "{}", hits(&caching));
}

#[tokio::test]
async fn a_cached_page_has_a_length_for_http_10() {
    let names = names(300);
    let leaf = raw("x");
    let root = directory_of_bytes(&names.iter().map(|name| (name.as_slice(), &leaf)).collect::<Vec<_>>());
    let site = Setup::new(&[&root, &leaf]).start().await;
    let path = format!("/ipfs/{}/", root.cid());
    let page = site.get(&path).await.text().await.expect("text");
    for hits in 1..3 {
        let (answer, end) = site.exchange(&format!("GET {path} HTTP/1.0\r\n\r\n")).await;
        end.expect("an orderly end");
        let text = String::from_utf8(answer).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.to_lowercase().contains(&format!("content-length: {}\r\n", page.len())), "{head}");
        assert_eq!(body, page);
        until_listings(&site, "hit", hits).await;
    }
}

#[tokio::test]
async fn a_cached_page_of_withheld_content_is_not_sent() {
    let leaf = raw("x");
    let inner = directory(&[("a", &leaf)]);
    let root = directory(&[("inner", &inner)]);
    let policy = Arc::<Switch>::default();
    let setup = Setup { policy: Arc::clone(&policy) as _, ..Setup::new(&[&leaf, &inner, &root]) };
    let site = setup.start().await;
    let paths = [format!("/ipfs/{}/inner/", root.cid()), format!("/ipfs/{}/inner/?format=json", root.cid())];
    let statuses = async || {
        let mut statuses = Vec::new();
        for path in &paths {
            statuses.push(site.get(path).await.status().as_u16());
        }
        statuses
    };
    assert_eq!(statuses().await, [200, 200]);
    assert_eq!(statuses().await, [200, 200]);
    until_listings(&site, "hit", 2).await;
    for denied in [inner.cid(), root.cid()] {
        policy.deny(&[*denied]);
        assert_eq!(statuses().await, [410, 410]);
    }
    policy.deny(&[*leaf.cid()]);
    assert_eq!(statuses().await, [200, 200], "a listing has names only");
    until_listings(&site, "hit", 2).await;
}

#[tokio::test]
async fn only_if_cached_listings_have_calls_of_their_own() {
    let listing = sharded_directory().await;
    let reading = listing.begin_many(2).await;
    let only_if_cached = [("cache-control", "only-if-cached")];
    let response = listing.site.send("GET", &listing.path, &only_if_cached).await;
    // The page begins with local blocks, and is then aborted without waiting.
    assert!(response.status() == 412 || response.text().await.is_err());
    listing.network.gate.add_permits(1);
    for reading in reading {
        listing.assert_is_whole(&reading.finish().await.expect("an end"));
    }
    let response = listing.site.send("GET", &listing.path, &only_if_cached).await;
    assert_eq!(response.status(), 200);
    listing.assert_is_whole(&response.text().await.expect("text"));
}

/// An HTTP/1.1 client that does not read does not delay other readers.
#[tokio::test]
async fn a_stalled_reader_does_not_delay_others() {
    let listing = sharded_directory().await;
    let mut idle = listing.site.connect(&format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", listing.path)).await;
    until(|| listing.network.waiting() == 1, "the listing to wait").await;
    let reading = listing.begin().await;
    listing.network.gate.add_permits(1);
    listing.assert_is_whole(&reading.finish().await.expect("an end"));
    let mut first = [0; 15];
    idle.read_exact(&mut first).await.expect("it began well");
    assert_eq!(&first, b"HTTP/1.1 200 OK");
}

#[tokio::test]
async fn directory_errors_have_a_status_for_all_readers() {
    let (upstream, gate) = FailingNetwork::gated(|cid| SourceError::Stalled { cid, stall: Stall::default() });
    let blocks = sharded(&names(3000), &raw("x"));
    let root = &blocks[blocks.len() - 1];
    let setup = Setup { upstream: Some(upstream), ..Setup::new(&[root]) };
    let site = Arc::new(setup.start().await);
    let path = format!("/ipfs/{}/?format=json", root.cid());
    let asking: Vec<_> = (0..5).map(|_| ask(&site, &path, &[])).collect();
    until_listings(&site, "joined", 4).await;
    gate.add_permits(1);
    for (status, text) in all(asking).await {
        assert!(status == 504 && text.contains("providers found"), "{status} {text}");
    }
}
