//! Tests of lists and take-downs with real files, a real store and a real HTTP server.
//!
//! | module | tests |
//! |---|---|
//! | `site` | gateways of a site, at each of which the rules of all are in force |

mod site;

use crate::audit::AuditLog;
use crate::denylists::lists::{ListState, Lists};
use crate::denylists::served::PeerSource;
use crate::denylists::subscription::Fetched;
use crate::denylists::takedown::{Control, FrontCaches, NewRule, PathsThrough, hints, subject_of};
use crate::front_caches::Caches;
use crate::isolation::Isolation;
use crate::subject::Subject;
use crate::supervision::Supervisor;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State as Shared};
use axum::http::header::{CONTENT_RANGE, ETAG, IF_NONE_MATCH, RANGE};
use axum::http::{Response, StatusCode};
use cache::memory::{self, MemoryOptions};
use cache::{BlockStore, Ram, TierMetrics, Tiers};
use config::{CacheKind, Config, FrontCache, ListSetting, ListSource, PolicyMode, PolicySettings};
use content::denylist::Rule;
use content::{Block, BlockSource as _, Cid, Policy as _, Verdict, codec, hashes};
use prometheus_client::registry::Registry;
use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(20);

fn block(text: &str) -> Block {
    Block::of(codec::RAW, hashes::SHA2_256, 32, text.as_bytes().to_vec().into()).expect("a block")
}

fn rule_of(block: &Block) -> String {
    format!("/ipfs/{}\n", block.cid())
}

fn list(from: ListSource) -> ListSetting {
    ListSetting { from, status: 410 }
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A server of a list, and the requests that it received.
#[derive(Default)]
struct Source {
    text: Mutex<Vec<u8>>,
    /// Error responses to answer with instead of the list.
    fails: Mutex<Option<(StatusCode, String)>>,
    /// Whether it supports range requests.
    whole_only: Mutex<bool>,
    asked: Mutex<Vec<String>>,
}

impl Source {
    fn set(&self, text: &str) {
        *self.text.lock().expect("is sound") = text.as_bytes().to_vec();
    }

    fn append(&self, text: &str) {
        self.text.lock().expect("is sound").extend(text.as_bytes());
    }

    fn fail(&self, with: Option<(StatusCode, &str)>) {
        *self.fails.lock().expect("is sound") = with.map(|(status, text)| (status, text.to_owned()));
    }

    /// The answers since the last call: status and range.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().expect("is sound"))
    }

    fn answer(&self, request: &Request) -> Response<Body> {
        if let Some((status, text)) = self.fails.lock().expect("is sound").clone() {
            return Response::builder().status(status).body(Body::from(text)).expect("a response");
        }
        let text = self.text.lock().expect("is sound").clone();
        let digest = hashes::digest(hashes::SHA2_256, 32, &text).expect("accepted");
        let etag = format!("\"{:02x?}\"", &digest.digest()[..4]);
        let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
        let response = Response::builder().header(ETAG, &etag);
        if header(IF_NONE_MATCH) == Some(&etag) {
            return response.status(304).body(Body::empty()).expect("a response");
        }
        let from =
            header(RANGE).and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
        match from.filter(|_| !*self.whole_only.lock().expect("is sound")) {
            Some(from) if from >= text.len() => response.status(416).body(Body::empty()).expect("a response"),
            Some(from) => {
                let range = format!("bytes {from}-{}/{}", text.len() - 1, text.len());
                let response = response.status(206).header(CONTENT_RANGE, range);
                response.body(Body::from(text[from..].to_vec())).expect("a response")
            }
            None => response.body(Body::from(text)).expect("a response"),
        }
    }
}

/// Serves a list on a free port.
async fn serve(source: &Arc<Source>) -> SocketAddr {
    let handler = async |Shared(source): Shared<Arc<Source>>, request: Request| {
        let response = source.answer(&request);
        let range = request.headers().get(RANGE).map_or("-", |range| range.to_str().unwrap_or("?"));
        source.asked.lock().expect("is sound").push(format!("{} {range}", response.status().as_u16()));
        response
    };
    let router = Router::new().fallback(handler).with_state(Arc::clone(source));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("is bound");
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn subscribed(address: SocketAddr) -> PolicySettings {
    let url = format!("http://user:password@{address}/bad.deny");
    PolicySettings { denylists: vec![list(ListSource::Url(url))], ..PolicySettings::default() }
}

fn state(lists: &Lists) -> ListState {
    lists.entries()[0].state()
}

#[tokio::test]
async fn a_subscription_is_fetched_incrementally_and_kept_when_its_source_fails() {
    let (dir, source) = (TempDir::new().expect("a folder"), Arc::<Source>::default());
    let settings = subscribed(serve(&source).await);
    let (a, b, c) = (block("a"), block("b"), block("c"));
    let lists = Lists::open(&settings, dir.path()).await.expect("opens");
    let running = Arc::clone(lists.running());
    let verdicts = || [&a, &b, &c].map(|block| running.check(block.cid()) == Verdict::Gone);
    assert_eq!(verdicts(), [false; 3], "nothing was fetched yet");
    let entry = &lists.entries()[0];
    assert!(!entry.id.contains("password"), "{}", entry.id);
    let look = async || lists.look(entry).await;

    source.fail(Some((StatusCode::INTERNAL_SERVER_ERROR, "sorry")));
    assert!(look().await.expect_err("fails").contains("500"));
    assert_eq!((state(&lists).failures, source.asked()), (1, vec!["500 -".to_owned()]));
    source.fail(None);
    let long = "# a remark that makes the list longer than what is fetched twice\n".repeat(100);
    source.set(&format!("version: 1\nname: Bad\n---\n{long}{}", rule_of(&a)));
    look().await.expect("fetches");
    assert_eq!((verdicts(), source.asked()), ([true, false, false], vec!["200 -".to_owned()]));
    let generation = running.generation();
    look().await.expect("fetches");
    assert_eq!((running.generation(), state(&lists).failures), (generation, 0), "nothing has changed");
    let bytes = source.text.lock().expect("is sound").len();
    assert_eq!(source.asked(), [format!("304 bytes={}-", bytes - 4096)]);

    source.append(&rule_of(&b));
    look().await.expect("fetches");
    assert_eq!((verdicts(), source.asked()), ([true, true, false], vec![format!("206 bytes={}-", bytes - 4096)]));
    assert_eq!(state(&lists).fetched, Some(Fetched::Appended(rule_of(&b).len() as u64)));

    // Any failure of the source leaves the list unchanged.
    let wrong = [(404, "no"), (200, "<html>\n<p>This domain is for sale\n"), (200, "version: 9\n---\n"), (403, "")];
    for ((status, text), failures) in wrong.into_iter().zip(1..) {
        source.fail(Some((StatusCode::from_u16(status).expect("a status"), text)));
        look().await.expect_err("fails");
        assert_eq!(verdicts(), [true, true, false], "{status} {text}");
        assert!(state(&lists).error.is_some());
        assert_eq!(state(&lists).failures, failures, "a readable file does not clear the failure of the source");
    }
    source.fail(None);
    source.asked();

    // The list was replaced: it is shorter, or changed before the overlap.
    source.set(&format!("---\n{}", rule_of(&c)));
    look().await.expect("fetches");
    assert_eq!(
        (verdicts(), state(&lists).fetched),
        ([false, false, true], Some(Fetched::Whole(4 + rule_of(&c).len() as u64)))
    );
    let asked = source.asked();
    assert!(asked.len() == 2 && asked[0].starts_with("416") && asked[1] == "200 -", "{asked:?}");
    source.set(&format!("---\n{}{}", rule_of(&a), rule_of(&b)));
    look().await.expect("fetches");
    assert_eq!(verdicts(), [true, true, false]);
    assert!(source.asked()[0].starts_with("206 "), "the overlap differs");
    // A server without range requests.
    *source.whole_only.lock().expect("is sound") = true;
    source.append(&rule_of(&c));
    look().await.expect("fetches");
    assert_eq!((verdicts(), source.asked().len()), ([true; 3], 1));
    assert!(matches!(state(&lists).fetched, Some(Fetched::Whole(_))));

    // The stored list is in force from the start, without a network.
    drop(lists);
    source.fail(Some((StatusCode::BAD_GATEWAY, "")));
    let lists = Lists::open(&settings, dir.path()).await.expect("opens");
    let verdicts = [&a, &b, &c].map(|block| lists.running().check(block.cid()));
    assert_eq!(verdicts, [Verdict::Gone; 3]);
    lists.look(&lists.entries()[0]).await.expect_err("fails");
    assert_eq!(lists.running().check(a.cid()), Verdict::Gone);
}

#[tokio::test]
async fn a_list_that_exceeds_the_maximum_size_is_rejected() {
    let (dir, source) = (TempDir::new().expect("a folder"), Arc::<Source>::default());
    let settings = PolicySettings { list_bytes_max: 1 << 20, ..subscribed(serve(&source).await) };
    let lists = Lists::open(&settings, dir.path()).await.expect("opens");
    let (a, b) = (block("a"), block("b"));
    source.set(&rule_of(&a));
    lists.look(&lists.entries()[0]).await.expect("fetches");
    source.append(&"#\n".repeat(1 << 19));
    source.append(&rule_of(&b));
    assert!(lists.look(&lists.entries()[0]).await.expect_err("fails").contains("list_bytes_max"));
    assert_eq!((lists.running().check(a.cid()), lists.running().check(b.cid())), (Verdict::Gone, Verdict::Allow));
    source.set(&format!("{}{}", "#\n".repeat(1 << 19), rule_of(&b)));
    assert!(lists.look(&lists.entries()[0]).await.is_err());
    assert_eq!(lists.running().check(a.cid()), Verdict::Gone);
}

#[tokio::test]
async fn tasks_update_files_and_subscriptions() {
    let (dir, source) = (TempDir::new().expect("a folder"), Arc::<Source>::default());
    let file = dir.path().join("own.deny");
    let (a, b, c) = (block("a"), block("b"), block("c"));
    fs::write(&file, rule_of(&a)).expect("writes");
    source.set(&rule_of(&c));
    let mut settings = PolicySettings { refresh_seconds: 1, ..subscribed(serve(&source).await) };
    settings.denylists.insert(0, ListSetting { from: ListSource::File(file.clone()), status: 451 });
    settings.deny = vec![*block("d").cid()];
    let lists = Lists::open(&settings, dir.path()).await.expect("opens");
    let running = Arc::clone(lists.running());
    let changes = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = Arc::clone(&changes);
    lists.on_change(move || _ = counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst));
    assert_eq!((running.check(a.cid()), running.check(block("d").cid())), (Verdict::Legal, Verdict::Gone));
    let keeper = lists.keep(&Supervisor::default());
    until("the subscription", || running.check(c.cid()) == Verdict::Gone).await;
    fs::OpenOptions::new().append(true).open(&file).expect("opens").write_all(rule_of(&b).as_bytes()).expect("writes");
    until("the file", || running.check(b.cid()) == Verdict::Legal).await;
    assert!(changes.load(std::sync::atomic::Ordering::SeqCst) >= 2);
    // The rules of a deleted file stay in force.
    fs::remove_file(&file).expect("removes");
    until("the error", || lists.entries()[0].state().error.is_some()).await;
    assert_eq!(running.check(a.cid()), Verdict::Legal);
    fs::write(&file, rule_of(&b)).expect("writes");
    until("the file again", || running.check(a.cid()) == Verdict::Allow).await;
    assert_eq!(lists.entries()[0].state().error, None);
    drop(keeper);
}

/// A gateway acknowledges no local rule that it would not read.
#[tokio::test]
async fn a_local_list_does_not_become_too_large() {
    let dir = TempDir::new().expect("a folder");
    let settings = PolicySettings { list_bytes_max: 400, ..PolicySettings::default() };
    let lists = Lists::open(&settings, dir.path()).await.expect("opens");
    let add = async |n: usize| lists.add(vec![format!("/ipns/n{n}.example reason={}", "x".repeat(40))]).await;
    let mut count = 0;
    let refused = loop {
        assert!(count < 99, "the list grows without limit");
        match add(count).await {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(refused.to_string().contains("policy.list_bytes_max"), "{refused}");
    let state = lists.local().expect("a list").state();
    assert!(count > 0 && state.list.rules() == count as u64 && !state.cut_off, "{state:?}");
    assert_eq!(lists.local_rules(0, 99).await.expect("reads").len(), count);
    let first = Rule::parse("/ipns/n0.example").expect("parses").expect("a rule");
    assert_eq!(lists.remove(first).await.expect("removes"), 1);
    add(count).await.expect("there is space");
}

#[tokio::test]
async fn a_missing_list_prevents_the_start() {
    let dir = TempDir::new().expect("a folder");
    let file = dir.path().join("own.deny");
    let settings =
        PolicySettings { denylists: vec![list(ListSource::File(file.clone()))], ..PolicySettings::default() };
    let error = Lists::open(&settings, dir.path()).await.expect_err("there is none");
    assert_eq!(error.setting, "policy.denylists");
    assert!(error.to_string().contains("own.deny"), "{error}");
    fs::write(&file, "<html>\n").expect("writes");
    Lists::open(&settings, dir.path()).await.expect_err("it is none");
    fs::write(&file, "# nothing yet\n").expect("writes");
    Lists::open(&settings, dir.path()).await.expect("opens");
}

#[tokio::test]
async fn modes_and_precedence_of_lists() {
    let dir = TempDir::new().expect("a folder");
    let write = |name: &str, text: String| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("writes");
        list(ListSource::File(path))
    };
    let (a, b, c) = (block("a"), block("b"), block("c"));
    let settings = PolicySettings {
        deny: vec![*c.cid()],
        denylists: vec![
            write("1.deny", format!("{}{}{}", rule_of(&a), rule_of(&b), rule_of(&c))),
            write("2.deny", format!("!{}!{}", rule_of(&b), rule_of(&c))),
        ],
        mode: PolicyMode::Allow,
        allowlists: vec![write("3.allow", format!("{}/ipns/good.example\n", rule_of(&b)))],
        ..PolicySettings::default()
    };
    let lists = Lists::open(&settings, dir.path()).await.expect("opens");
    let running = lists.running();
    let verdicts = [&a, &b, &c].map(|block| running.check(block.cid()));
    assert_eq!(verdicts, [Verdict::Gone, Verdict::Allow, Verdict::Gone], "policy.deny cannot be overridden");
    assert!(running.serves_only_listed() && running.lists_block(b.cid()) && !running.lists_block(a.cid()));
    let entry = |text: &str| {
        let subject = Subject::of_anything(text).expect(text);
        running.check_entry(&subject.root, &subject.path())
    };
    assert_eq!((entry("good.example"), entry("/ipns/good.example/x")), (Verdict::Allow, Verdict::Allow));
    assert_eq!((entry("bad.example"), entry(&a.cid().to_string())), (Verdict::Unlisted, Verdict::Unlisted));
    // Rules of the local list override all lists.
    lists.add(vec![format!("!{}", rule_of(&a).trim())]).await.expect("adds");
    lists.add(vec![rule_of(&b).trim().to_owned()]).await.expect("adds");
    let verdicts = [&a, &b, &c].map(|block| running.check(block.cid()));
    assert_eq!(verdicts, [Verdict::Allow, Verdict::Gone, Verdict::Gone]);
}

/// A store in memory with a data directory, and control over it.
struct World {
    control: Control,
    store: Arc<dyn BlockStore>,
    tiers: Tiers,
    root: Cid,
    leaves: Vec<Cid>,
}

async fn world(dir: &Path) -> World {
    world_of(Lists::open(&PolicySettings::default(), dir).await.expect("opens")).await
}

async fn world_of(lists: Arc<Lists>) -> World {
    let store = memory::open(&MemoryOptions::default()).expect("opens");
    let metrics = TierMetrics::register(&mut Registry::default());
    let tiers = Tiers::new(Ram::new(1 << 20), Arc::clone(&store), Arc::clone(lists.running()) as _, metrics);
    let leaves: Vec<Block> = (0..3).map(|n| block(&format!("leaf {n}"))).collect();
    let entries: Vec<(String, Block)> =
        leaves.iter().enumerate().map(|(n, leaf)| (format!("{n}.txt"), leaf.clone())).collect();
    let root = folder(&entries);
    for block in leaves.iter().chain([&root]) {
        store.put_cached(block.clone()).await;
        tiers.ram().insert(block.key().expect("a key"), block.data());
    }
    store.flush().await.expect("flushes");
    let leaves = leaves.iter().map(|leaf| *leaf.cid()).collect();
    World { control: Control::new(lists, tiers.clone()), store, tiers, root: *root.cid(), leaves }
}

/// A dag-cbor document of links, which paths traverse like a folder.
fn folder(entries: &[(String, Block)]) -> Block {
    let mut data = vec![0xa0 | u8::try_from(entries.len()).expect("few")];
    for (name, block) in entries {
        let cid = block.cid().to_bytes();
        data.push(0x60 | u8::try_from(name.len()).expect("short"));
        data.extend(name.bytes());
        data.extend([0xd8, 0x2a, 0x58, u8::try_from(cid.len() + 1).expect("short"), 0]);
        data.extend(cid);
    }
    Block::of(codec::DAG_CBOR, hashes::SHA2_256, 32, data.into()).expect("a block")
}

fn order(text: &str, deep: bool, double_hash: bool) -> NewRule {
    let subject = Subject::of_anything(text).expect(text);
    let item = if double_hash { subject.double_hash() } else { subject.rule_text(false) };
    let rule = Rule::parse(&item).expect("parses").expect("a rule");
    let rule = hints(rule, Some(451), Some("some reason"));
    let hints: String = rule.hints.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    NewRule { line: format!("{item}{hints}"), rule, subject: Some(subject), deep, double_hash }
}

impl World {
    fn verdict(&self, cid: &Cid) -> Verdict {
        self.control.lists.running().check(cid)
    }

    /// Whether a block is in any tier.
    async fn holds(&self, cid: &Cid) -> bool {
        let key = content::BlockKey::of(cid).expect("a key");
        self.tiers.ram().holds(&key) || self.store.has(cid).await.expect("answers")
    }

    async fn pin(&self, root: &Cid, members: &[Cid]) {
        let mut blocks = Vec::new();
        for cid in members {
            blocks.push(Ok::<_, std::io::Error>(self.store.get(cid).await.expect("is held")));
        }
        self.store.pin_recursive(*root, None, futures::stream::iter(blocks)).await.expect("pins");
    }
}

/// Peers get stored forms on the same terms as blocks.
#[tokio::test]
async fn stored_forms_are_withheld_from_peers_as_their_blocks_are() {
    let dir = TempDir::new().expect("a folder");
    let world = world(dir.path()).await;
    let peers = PeerSource::of(&world.tiers);
    let inlined = Block::of(codec::RAW, hashes::IDENTITY, 40, b"evil".repeat(10).into()).expect("a block");
    let parent = folder(&[("leaf".to_owned(), block("leaf 1")), ("inlined".to_owned(), inlined.clone())]);
    world.store.put_cached(parent.clone()).await;
    world.store.flush().await.expect("flushes");
    let blocks = [world.root, world.leaves[0], world.leaves[1], *parent.cid()];
    let given = || async {
        let mut given = Vec::new();
        for cid in &blocks {
            let (block, stored) = (peers.get(cid).await, peers.get_stored(cid).await);
            assert_eq!(block.is_ok(), stored.is_ok(), "{cid}");
            given.push(stored.is_ok_and(|stored| stored.is_some()));
        }
        given
    };
    assert_eq!(given().await, [true; 4]);
    let lists = &world.control.lists;
    lists.add(vec![format!("/ipfs/{}", world.leaves[0])]).await.expect("adds");
    assert_eq!(given().await, [true, false, true, true]);
    lists.add(vec![format!("/ipfs/{}", inlined.cid())]).await.expect("adds");
    assert_eq!(given().await, [true, false, true, false], "what is inlined in a block is served with it");
}

/// What a gateway does not serve to clients, because it may have been taken down, it does not serve to peers either.
#[tokio::test]
async fn peers_get_nothing_while_the_gateway_is_cut_off_from_its_site() {
    let dir = TempDir::new().expect("a folder");
    let world = world(dir.path()).await;
    let age = Arc::new(AtomicU64::new(61));
    let shown = Arc::clone(&age);
    let isolation = Isolation::new(Duration::from_secs(60), move || Duration::from_secs(shown.load(Ordering::SeqCst)));
    let peers = PeerSource::of(&world.tiers).refusing_while(Some(Arc::new(isolation)));
    let cid = &world.root;
    for (seconds, is_served) in [(61, false), (60, true), (3600, false)] {
        age.store(seconds, Ordering::SeqCst);
        assert_eq!(peers.get(cid).await.is_ok(), is_served, "{seconds}");
        assert_eq!(peers.get_stored(cid).await.is_ok_and(|stored| stored.is_some()), is_served, "{seconds}");
        assert_eq!(peers.has(cid).await.unwrap_or(false), is_served, "{seconds}");
        if !is_served {
            assert!(peers.peek(cid).is_none() && peers.read_now(cid).is_none() && peers.inline(cid).is_none());
        }
    }
    // Without the setting it is served.
    assert!(PeerSource::of(&world.tiers).get(cid).await.is_ok());
}

#[tokio::test]
async fn taken_down_content_is_withheld_and_deleted_and_stays_so() {
    for double_hash in [false, true] {
        let dir = TempDir::new().expect("a folder");
        let world = world(dir.path()).await;
        let (leaf, other) = (world.leaves[0], world.leaves[1]);
        world.pin(&world.root, &[world.root, leaf, other]).await;
        world.pin(&leaf, &[leaf]).await;
        let done = world.control.add(order(&leaf.to_string(), false, double_hash)).await.expect("adds");
        assert!(done.added && done.complete && done.deep_rules == 0 && done.unpinned == [leaf], "{done:?}");
        assert_eq!((world.verdict(&leaf), world.verdict(&other)), (Verdict::Legal, Verdict::Allow));
        assert!(!world.holds(&leaf).await && world.holds(&other).await && world.holds(&world.root).await);
        assert_eq!(world.store.pins().await.expect("lists").len(), 1, "other pins with the block keep the rest");
        // Idempotent.
        let again = world.control.add(order(&leaf.to_string(), false, double_hash)).await.expect("adds");
        assert!(!again.added && again.unpinned.is_empty());
        assert_eq!(world.control.lists.local_rules(0, 10).await.expect("reads").len(), 1);
        // Also after a restart.
        let lists = Lists::open(&PolicySettings::default(), dir.path()).await.expect("opens");
        assert_eq!(lists.running().check(&leaf), Verdict::Legal);
        let rule = order(&leaf.to_string(), false, double_hash).rule;
        assert_eq!(world.control.remove(rule.clone()).await.expect("removes"), 1);
        assert_eq!(world.control.remove(rule).await.expect("removes"), 0);
        assert_eq!(world.verdict(&leaf), Verdict::Allow);
        assert_eq!(
            Lists::open(&PolicySettings::default(), dir.path()).await.expect("opens").running().check(&leaf),
            Verdict::Allow
        );
    }
}

#[tokio::test]
async fn a_deep_take_down_withholds_every_block_by_its_own_hash() {
    for double_hash in [false, true] {
        let dir = TempDir::new().expect("a folder");
        let world = world(dir.path()).await;
        world.pin(&world.root, &[world.root, world.leaves[0], world.leaves[1], world.leaves[2]]).await;
        let done = world.control.add(order(&world.root.to_string(), true, double_hash)).await.expect("adds");
        assert!(done.added && done.complete && done.deep_rules == 4 && done.unpinned == [world.root], "{done:?}");
        world.store.flush().await.expect("flushes");
        for cid in world.leaves.iter().chain([&world.root]) {
            assert_eq!(world.verdict(cid), Verdict::Legal);
            assert!(!world.holds(cid).await);
        }
        let text = fs::read_to_string(dir.path().join("denylists/local.deny")).expect("reads");
        assert_eq!(text.contains("/ipfs/"), !double_hash, "{text}");
        assert_eq!(text.matches("reason=some%20reason").count(), 5, "{text}");
    }
    // Removing a rule also removes the deep rules of its take-down, but not those of others.
    for double_hash in [false, true] {
        let dir = TempDir::new().expect("a folder");
        let world = world(dir.path()).await;
        let own = order(&world.leaves[1].to_string(), false, false);
        world.control.add(own).await.expect("adds");
        let all = order(&world.root.to_string(), true, double_hash);
        assert_eq!(world.control.add(all.clone()).await.expect("adds").deep_rules, 3, "one leaf is already deleted");
        assert_eq!(world.control.remove(all.rule).await.expect("removes"), 4);
        let verdicts: Vec<_> = world.leaves.iter().chain([&world.root]).map(|cid| world.verdict(cid)).collect();
        assert_eq!(verdicts, [Verdict::Allow, Verdict::Legal, Verdict::Allow, Verdict::Allow]);
        let left = world.control.lists.local_rules(0, 10).await.expect("reads");
        assert_eq!(left.len(), 1, "{left:?}");
    }
    // A path is withheld as such; its blocks only with `deep`.
    let dir = TempDir::new().expect("a folder");
    let world = world(dir.path()).await;
    let path = format!("/ipfs/{}/0.txt", world.root);
    world.control.add(order(&path, false, false)).await.expect("adds");
    assert!(world.holds(&world.leaves[0]).await && world.verdict(&world.leaves[0]) == Verdict::Allow);
    assert_eq!(world.control.lists.running().check_path(&world.root, "0.txt"), Verdict::Legal);
    let done = world.control.add(order(&path, true, false)).await.expect("adds");
    assert_eq!((done.added, done.deep_rules), (false, 1));
    assert!(
        !world.holds(&world.leaves[0]).await && world.holds(&world.leaves[1]).await && world.holds(&world.root).await
    );
}

#[tokio::test]
async fn a_deep_take_down_follows_a_block_under_every_codec() {
    let dir = TempDir::new().expect("a folder");
    let world = world(dir.path()).await;
    let below = block("below");
    let inner = folder(&[("x".to_owned(), below.clone())]);
    let as_raw = inner.clone().under(&Cid::new_v1(codec::RAW, *inner.cid().hash())).expect("the same bytes");
    let root = folder(&[("a".to_owned(), inner.clone()), ("b".to_owned(), as_raw)]);
    for block in [&below, &inner, &root] {
        world.store.put_cached(block.clone()).await;
    }
    world.store.flush().await.expect("flushes");
    let done = world.control.add(order(&root.cid().to_string(), true, false)).await.expect("adds");
    assert!(done.complete, "{done:?}");
    for block in [&below, &inner, &root] {
        assert_eq!(world.verdict(block.cid()), Verdict::Legal, "{}", block.cid());
        assert!(!world.holds(block.cid()).await, "{}", block.cid());
    }
}

/// The second visit of a block is more than a batch of rules after the first.
#[tokio::test]
async fn a_deep_take_down_follows_a_block_long_after_it_was_withheld() {
    let dir = TempDir::new().expect("a folder");
    let world = world(dir.path()).await;
    let below = block("below");
    let inner = folder(&[("x".to_owned(), below.clone())]);
    let as_raw = inner.clone().under(&Cid::new_v1(codec::RAW, *inner.cid().hash())).expect("the same bytes");
    let leaves: Vec<Block> = (0..4_500).map(|n| block(&format!("many {n}"))).collect();
    let links = std::iter::once(&as_raw).chain(&leaves).chain([&inner]);
    let links = links.map(|block| content::ipld::Ipld::Link(Box::new(*block.cid()))).collect();
    let data = content::ipld::encode(&content::ipld::Ipld::List(links), codec::DAG_CBOR).expect("a list");
    let root = Block::of(codec::DAG_CBOR, hashes::SHA2_256, 32, data.to_vec().into()).expect("a block");
    for block in leaves.iter().chain([&below, &inner, &root]) {
        world.store.put_cached(block.clone()).await;
    }
    world.store.flush().await.expect("flushes");
    let done = world.control.add(order(&root.cid().to_string(), true, false)).await.expect("adds");
    assert!(done.complete && done.unread == 0, "{done:?}");
    for block in [&below, &inner, &root, &leaves[4_499]] {
        assert_eq!(world.verdict(block.cid()), Verdict::Legal, "{}", block.cid());
        assert!(!world.holds(block.cid()).await, "{}", block.cid());
    }
}

/// The disk is full, or the process is killed, after the rules of some blocks were written.
#[tokio::test]
async fn a_deep_take_down_that_failed_can_be_repeated() {
    let dir = TempDir::new().expect("a folder");
    let world = world(dir.path()).await;
    world.pin(&world.root, &[world.root, world.leaves[0], world.leaves[1], world.leaves[2]]).await;
    let order = order(&world.root.to_string(), true, false);
    // The rules that were written before: those of the root and a leaf.
    let first = vec![order.line.clone(), format!("/ipfs/{} status=451", world.leaves[0])];
    world.control.lists.add(first).await.expect("adds");
    assert_eq!(world.verdict(&world.root), Verdict::Legal);
    let done = world.control.add(order).await.expect("adds");
    assert_eq!((done.added, done.deep_rules, done.unread), (false, 4, 0), "{done:?}");
    assert_eq!(done.unpinned, [world.root]);
    for cid in world.leaves.iter().chain([&world.root]) {
        assert!(world.verdict(cid) == Verdict::Legal && !world.holds(cid).await);
    }
    assert!(world.store.pins().await.expect("lists").is_empty());
}

#[tokio::test]
async fn decisions_name_the_list_and_the_line() {
    let dir = TempDir::new().expect("a folder");
    let world = world(dir.path()).await;
    let path = format!("/ipfs/{}/0.txt", world.root);
    let subject = Subject::of_anything(&path).expect("a path");
    assert!(world.control.decide(&subject).await.iter().all(|decision| decision.hit.is_none()));
    world.control.add(order(&world.leaves[0].to_string(), false, false)).await.expect("adds");
    // The leaf is deleted, so the path does not resolve to it.
    let own = Subject::of_anything(&world.leaves[0].to_string()).expect("a CID");
    let decisions = world.control.decide(&own).await;
    let hit = decisions[0].hit.clone().expect("a rule");
    assert_eq!((&*hit.list, hit.line, hit.verdict), ("local", 5, Verdict::Legal));
    let line = world.control.list_of(&hit).expect("a list").line(hit.line).await.expect("a line");
    assert!(line.starts_with(&format!("/ipfs/{} status=451 reason=some%20reason added=", world.leaves[0])), "{line}");
    world.control.add(order(&path, false, false)).await.expect("adds");
    world.store.put_cached(block("leaf 0")).await;
    world.store.flush().await.expect("flushes");
    let decisions = world.control.decide(&subject).await;
    let shown: Vec<_> = decisions.iter().map(|it| (it.of.as_str(), it.hit.as_ref().map(|hit| hit.line))).collect();
    let (root, leaf) = (format!("/ipfs/{}", world.root), format!("/ipfs/{}", world.leaves[0]));
    assert_eq!(shown, [(root.as_str(), None), (path.as_str(), Some(6)), (leaf.as_str(), Some(5))]);
}

/// A server as a cache in front, and the surrogate keys and paths that it was asked to purge.
async fn front_cache() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let recorded = Arc::clone(&asked);
    let handler = move |request: Request| {
        let key = request.headers().get("surrogate-key").map(|key| key.to_str().expect("text").to_owned());
        let line = key.unwrap_or_else(|| format!("{} {}", request.method(), request.uri().path()));
        recorded.lock().expect("is sound").push(line);
        async { StatusCode::OK }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("is bound");
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(handler)).await });
    (address, asked)
}

#[tokio::test]
async fn caches_in_front_are_sent_purge_requests_for_every_block_that_a_deep_take_down_withholds() {
    for kind in [CacheKind::Ban, CacheKind::Purge] {
        let dir = TempDir::new().expect("a folder");
        let world = world(dir.path()).await;
        let (address, asked) = front_cache().await;
        let mut config = Config { data_dir: dir.path().to_owned(), ..Config::default() };
        config.policy.caches = vec![FrontCache {
            kind,
            url: format!("http://{address}"),
            hosts: vec!["a.example".to_owned()],
            token_file: None,
            token_env: None,
        }];
        let audit = Arc::new(AuditLog::open(dir.path()).expect("opens"));
        let (caches, _senders) =
            Caches::start(&config, &audit, &mut Registry::default(), &Supervisor::default()).expect("starts");
        let paths_through: PathsThrough = Arc::new(|_| Vec::new());
        world.control.with_front_caches(FrontCaches { caches, paths_through });
        let done = world.control.add(order(&world.root.to_string(), true, false)).await.expect("adds");
        assert_eq!((done.deep_rules, done.caches_notified, done.unpurged), (4, 1, 0));
        for cid in world.leaves.iter().chain([&world.root]) {
            let line = if kind == CacheKind::Ban { cid.to_string() } else { format!("PURGE /ipfs/{cid}") };
            until("the purge request", || asked.lock().expect("is sound").contains(&line)).await;
        }
    }
}

#[tokio::test]
async fn a_deep_take_down_finds_the_blocks_below_one_that_was_taken_down_before() {
    // The root itself, and a folder inside.
    for outer in [false, true] {
        let dir = TempDir::new().expect("a folder");
        let world = world(dir.path()).await;
        let inner = world.store.get(&world.root).await.expect("is held");
        let above = folder(&[("inner".to_owned(), inner)]);
        world.store.put_cached(above.clone()).await;
        world.store.flush().await.expect("flushes");
        world.control.add(order(&world.root.to_string(), false, false)).await.expect("adds");
        assert!(!world.holds(&world.root).await && world.holds(&world.leaves[0]).await);
        let root = if outer { *above.cid() } else { world.root };
        let done = world.control.add(order(&root.to_string(), true, false)).await.expect("adds");
        assert_eq!((done.deep_rules, done.unread), (3 + u64::from(outer), 0), "{done:?}");
        for leaf in &world.leaves {
            assert!(world.verdict(leaf) == Verdict::Legal && !world.holds(leaf).await);
        }
    }
    // A withheld block that is stored is read.
    let dir = TempDir::new().expect("a folder");
    let world = world(dir.path()).await;
    world.control.lists.add(vec![format!("/ipfs/{}", world.root)]).await.expect("adds");
    let done = world.control.add(order(&world.root.to_string(), true, false)).await.expect("adds");
    assert_eq!((done.deep_rules, done.unread), (4, 0), "{done:?}");
    // Of a block that was never stored nothing is known, also not what a path leads to.
    let missing = folder(&[("x".to_owned(), block("x"))]);
    for of in [missing.cid().to_string(), format!("/ipfs/{}/x", missing.cid()), format!("/ipfs/{}/none", world.root)] {
        let done = world.control.add(order(&of, true, false)).await.expect("adds");
        assert_eq!((done.deep_rules, done.unread), (0, 1), "{of}: {done:?}");
    }
}

#[test]
fn the_subject_of_a_rule_has_the_cid_of_its_text() {
    let v0 = "QmecDgNqCRirkc3Cjz9eoRBNwXGckJ9WvTdmY16HP88768";
    let raw = block("x").cid().to_string();
    for (line, expected) in [
        (format!("/ipfs/{raw}/a%20b* reason=x"), format!("/ipfs/{raw}/a%20b")),
        (format!("!/ipfs/{raw}"), format!("/ipfs/{raw}")),
        (format!("/ipld/{v0}"), format!("/ipfs/{v0}")),
        ("/ipns/a.example/x".to_owned(), "/ipns/a.example/x".to_owned()),
    ] {
        let rule = Rule::parse(&line).expect("parses").expect("a rule");
        assert_eq!(subject_of(&rule.target, &line).map(|subject| subject.to_string()), Some(expected), "{line}");
    }
}
