//! Several gateways with one log in memory, each with a connection of its own.

use super::*;
use crate::pinning::coordination::SingleService;
use crate::test_log::{Connection, Fault};
use cache::MetadataStore;
use content::ipns::Record;
use p2p_bridge::names::NamesOptions;
use p2p_bridge::names::key_format::{KeyFormat, KeyKind, Secret};
use p2p_bridge::names::keystore::{KeyInfo, Keystore, SELF};
use p2p_bridge::names::publish::{KnownRecords, PublishError, Published, Publisher, Target, Terms, sign};
use p2p_bridge::names::store::NameStore;
use p2p_bridge::options::PublishOptions;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};
use tempfile::TempDir;
use tokio::sync::Notify;

const VALUE: &str = "/ipfs/bafkqaddjnzzxazldoqwxizltoq";
/// The latest entries that the log keeps: all of them, or none, so that all records are read again.
const ENTRIES_BYTES_MAX: [usize; 2] = [1 << 20, 0];

/// The cipher of a site, with the key in a file.
fn cipher(n: u8, site: &str) -> NameCipher {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("key");
    std::fs::write(&path, format!("{n:02x}").repeat(32)).expect("writes");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("sets");
    NameCipher::read(&path, site).expect("a key")
}

struct Gateway {
    _dir: TempDir,
    connection: Arc<Connection>,
    log: Arc<NameLog>,
    store: Arc<NameStore>,
}

impl Gateway {
    async fn start(log: &MetadataStore) -> Self {
        Self::start_with(log, Arc::new(SingleService)).await
    }

    async fn start_with(log: &MetadataStore, claims: Arc<dyn Claims>) -> Self {
        let (dir, connection) = (TempDir::new().expect("a folder"), Connection::new(log));
        let names = NameLog::open(Arc::clone(&connection) as _, claims, cipher(1, "a")).await.expect("opens");
        let own = Keystore::open(dir.path(), Duration::ZERO).expect("opens");
        let store = NameStore::open(dir.path(), own, Some(Arc::clone(&names) as _)).expect("opens");
        Self { _dir: dir, connection, log: names, store: Arc::new(store) }
    }

    /// Runs a change on a thread that may block.
    async fn run<T: Send + 'static>(&self, change: impl FnOnce(&NameStore) -> T + Send + 'static) -> T {
        let store = Arc::clone(&self.store);
        tokio::task::spawn_blocking(move || change(&store)).await.expect("no panic")
    }

    async fn create(&self, name: &'static str) -> Result<KeyInfo, KeyError> {
        self.run(move |store| store.create(name, KeyKind::Ed25519)).await
    }

    async fn publish(&self, name: &'static str) -> Result<Published, PublishError> {
        self.run(move |store| publish(store, name)).await
    }

    async fn catch_up(&self) {
        self.log.catch_up().await.expect("catches up");
    }

    fn keys(&self) -> Vec<String> {
        self.store.list().into_iter().map(|info| info.name).filter(|name| name != SELF).collect()
    }
}

fn publish(store: &NameStore, name: &str) -> Result<Published, PublishError> {
    let key = store.get(name)?.0.key;
    let terms = Terms { lifetime: Duration::from_secs(3600), ttl: Duration::from_secs(60) };
    sign(store, &key, VALUE, terms, KnownRecords::default(), SystemTime::now())
}

fn records(log: &MetadataStore) -> Vec<(String, Vec<u8>)> {
    let mut records = Vec::new();
    let visit = &mut |key: &[u8], content: &[u8]| {
        records.push((String::from_utf8_lossy(key).into_owned(), content.to_vec()));
    };
    log.read(visit).expect("reads");
    records
}

#[tokio::test]
async fn changes_of_each_gateway_are_those_of_all() {
    for entries_bytes_max in ENTRIES_BYTES_MAX {
        let log = MetadataStore::memory().shared(entries_bytes_max);
        let (one, other) = (Gateway::start(&log).await, Gateway::start(&log).await);
        let blog = one.create("blog").await.expect("creates");
        // It has not read this, and decides on it nevertheless.
        assert!(matches!(other.create("blog").await, Err(KeyError::Exists(_))));
        other.create("wiki").await.expect("creates");
        assert_eq!(one.publish("blog").await.expect("publishes").record.sequence(), 0);
        assert_eq!(other.publish("blog").await.expect("publishes").record.sequence(), 1);
        assert_eq!(one.publish("blog").await.expect("publishes").record.sequence(), 2);
        one.run(|store| store.rename("wiki", "docs")).await.expect("renames");
        let pem = one.run(|store| store.export("docs", KeyFormat::Pem)).await.expect("exports");
        let third = Gateway::start(&log).await;
        other.catch_up().await;
        for gateway in [&one, &other, &third] {
            assert_eq!(gateway.keys(), ["blog", "docs"], "{entries_bytes_max}");
            assert_eq!(gateway.store.publication(&blog.key).expect("is published").record.sequence(), 2);
            let exported = gateway.run(|store| store.export("docs", KeyFormat::Pem)).await;
            assert_eq!(exported.expect("exports"), pem);
        }
        third.run(|store| store.remove("blog")).await.expect("removes");
        one.catch_up().await;
        assert_eq!((one.keys(), one.store.publications().len()), (vec!["docs".to_owned()], 0));
        assert_eq!(records(&log).len(), 2, "a check, and a key");
    }
}

#[tokio::test]
async fn publications_at_the_same_time_have_an_order() {
    let log = MetadataStore::memory().shared(1 << 20);
    let gateways = [Gateway::start(&log).await, Gateway::start(&log).await, Gateway::start(&log).await];
    let key = gateways[0].create("blog").await.expect("creates").key;
    // The others have not read that it was created.
    for gateway in &gateways {
        gateway.connection.interfering.store(5, Ordering::Relaxed);
    }
    let publishing = gateways.iter().map(async |gateway| {
        let mut sequences = Vec::new();
        for _ in 0..10 {
            sequences.push(gateway.publish("blog").await.expect("publishes").record.sequence());
        }
        assert!(sequences.is_sorted());
        sequences
    });
    let mut sequences = futures::future::join_all(publishing).await.concat();
    sequences.sort_unstable();
    assert_eq!(sequences, (0..30).collect::<Vec<u64>>(), "each number once");
    for gateway in &gateways {
        gateway.catch_up().await;
        assert_eq!(gateway.store.publication(&key).expect("is published").record.sequence(), 29);
    }
}

#[tokio::test]
async fn private_keys_are_encrypted_and_bound_to_their_records() {
    let log = MetadataStore::memory().shared(1 << 20);
    let one = Gateway::start(&log).await;
    one.create("blog").await.expect("creates");
    one.create("wiki").await.expect("creates");
    for name in ["blog", "wiki"] {
        let secret = one.run(move |store| store.export(name, KeyFormat::Protobuf)).await.expect("exports");
        // The message is a head of four bytes, the private key, and the public one.
        let raw: &[u8] = &secret[4..36];
        let has_raw = |bytes: &[u8]| bytes.windows(raw.len()).any(|window| window == raw);
        assert!(secret.len() == 68 && has_raw(&secret));
        for (key, content) in records(&log) {
            assert!(!has_raw(&content), "{key}");
            let Some(stored) = key.strip_prefix("key/") else { continue };
            let json: serde_json::Value = serde_json::from_slice(&content).expect("JSON");
            let sealed = json["sealed"].as_str().expect("a text");
            let sealed = cid::multibase::Base::Base64Pad.decode(sealed).expect("base64");
            assert!(sealed.len() > secret.len() && !has_raw(&sealed), "{stored}");
        }
    }
    let other_key = NameLog::open(Connection::new(&log) as _, Arc::new(SingleService), cipher(2, "a")).await;
    assert!(matches!(other_key, Err(NameLogError::WrongKey)));
    let other_site = NameLog::open(Connection::new(&log) as _, Arc::new(SingleService), cipher(1, "b")).await;
    assert!(matches!(other_site, Err(NameLogError::WrongKey)));
    // Swapped, and damaged.
    let content = |name: &str| {
        let found = records(&log).into_iter().find(|(key, _)| key == name);
        found.expect("a record").1
    };
    let (blog, wiki) = (content("key/blog"), content("key/wiki"));
    log.write_now(vec![Change::Put(b"key/blog".to_vec(), wiki), Change::Put(b"key/wiki".to_vec(), b"{".to_vec())])
        .expect("writes");
    log.write_now(vec![Change::Put(b"key/third".to_vec(), blog), Change::Put(b"new/x".to_vec(), Vec::new())])
        .expect("writes");
    let name = Key::parse("k51qzi5uqu5dgutdk6i1ynyzgkqngpha5xpgia3a5qqp4jsh0u4csozksxel2r").expect("a name");
    log.write_now(vec![Change::Put(format!("name/{name}").into_bytes(), b"{}".to_vec())]).expect("writes");
    one.catch_up().await;
    let restarted = Gateway::start(&log).await;
    for gateway in [&one, &restarted] {
        assert!(gateway.keys().is_empty() && gateway.store.publications().is_empty());
        assert!(matches!(gateway.create("blog").await, Err(KeyError::Exists(_))), "its name is taken");
    }
    one.create("fourth").await.expect("others are not affected");
}

#[tokio::test]
async fn changes_fail_and_what_is_known_is_used_while_the_log_cannot_be_reached() {
    let log = MetadataStore::memory().shared(1 << 20);
    let one = Gateway::start(&log).await;
    let key = one.create("blog").await.expect("creates").key;
    one.publish("blog").await.expect("publishes");
    one.connection.is_unreachable.store(true, Ordering::Relaxed);
    assert!(matches!(one.create("wiki").await, Err(KeyError::Unavailable { .. })));
    assert!(matches!(one.create("blog").await, Err(KeyError::Unavailable { .. })), "no error is decided without it");
    assert!(matches!(one.publish("missing").await, Err(PublishError::Key(KeyError::Unavailable { .. }))));
    assert!(matches!(one.publish("blog").await, Err(PublishError::Key(KeyError::Unavailable { .. }))));
    assert_eq!((one.keys(), one.store.publications().len()), (vec!["blog".to_owned()], 1));
    assert!(one.publish(SELF).await.is_ok());
    one.connection.is_unreachable.store(false, Ordering::Relaxed);
    // An answer is lost: it was published, and publishing it again has the next number.
    one.connection.fail(Fault::AnswerIsLost);
    assert!(one.publish("blog").await.is_err());
    one.connection.fail(Fault::Fails);
    assert!(one.publish("blog").await.is_err());
    assert_eq!(one.publish("blog").await.expect("publishes").record.sequence(), 2);
    assert_eq!(one.store.publication(&key).expect("is published").record.sequence(), 2);
}

#[tokio::test]
async fn other_gateways_learn_of_changes_by_notifications_and_without() {
    for is_silent in [false, true] {
        let log = MetadataStore::memory().shared(1 << 20);
        let (one, other) = (Gateway::start(&log).await, Gateway::start(&log).await);
        other.connection.is_silent.store(is_silent, Ordering::Relaxed);
        let _following = other.log.follow(&Supervisor::default());
        let mut known = other.log.watch();
        one.create("blog").await.expect("creates");
        let learning = known.wait_for(|known| known.get("blog").is_some());
        drop(tokio::time::timeout(Duration::from_secs(30), learning).await.expect("in time").expect("it follows"));
    }
}

/// The claims of the gateways of a site, in memory, with leases.
#[derive(Default)]
struct SiteClaims {
    held: Mutex<HashMap<Cid, (usize, u64, Instant)>>,
}

struct GatewayClaims {
    site: Arc<SiteClaims>,
    gateway: usize,
    lease: Duration,
}

impl Claims for GatewayClaims {
    fn claim(&self, root: &Cid) -> BoxFuture<'static, Result<Claimed, StoreError>> {
        let (now, mut held) = (Instant::now(), self.site.held.lock().expect("no panics"));
        let before = held.get(root).copied();
        let claimed = match before {
            Some((gateway, _, end)) if gateway != self.gateway && end > now => Claimed::Held { retry_after: end - now },
            _ => {
                let (term, end) = (before.map_or(1, |(_, term, _)| term + 1), now + self.lease);
                held.insert(*root, (self.gateway, term, end));
                Claimed::Granted(Claim { root: *root, term, lease_end: Some(end) })
            }
        };
        futures::future::ready(Ok(claimed)).boxed()
    }

    fn renew(&self, claim: &Claim) -> BoxFuture<'static, Result<Option<Claim>, StoreError>> {
        let (end, mut held) = (Instant::now() + self.lease, self.site.held.lock().expect("no panics"));
        let is_own = held.get(&claim.root).is_some_and(|held| (held.0, held.1) == (self.gateway, claim.term));
        let renewed = is_own.then(|| Claim { lease_end: Some(end), ..claim.clone() });
        if is_own {
            held.insert(claim.root, (self.gateway, claim.term, end));
        }
        futures::future::ready(Ok(renewed)).boxed()
    }

    fn release(&self, claim: Claim) -> BoxFuture<'static, ()> {
        let mut held = self.site.held.lock().expect("no panics");
        if held.get(&claim.root).is_some_and(|held| (held.0, held.1) == (self.gateway, claim.term)) {
            held.remove(&claim.root);
        }
        futures::future::ready(()).boxed()
    }
}

/// A target whose puts start and do not end.
struct Stalled;

impl Target for Stalled {
    fn name(&self) -> String {
        "wan".to_owned()
    }

    fn put(&self, _: Key, _: Record) -> BoxFuture<'static, Result<usize, String>> {
        std::future::pending().boxed()
    }

    fn is_ready(&self) -> BoxFuture<'static, bool> {
        futures::future::ready(true).boxed()
    }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_key_that_is_removed_leaves_no_claim() {
    let (log, site, dir) = (MetadataStore::memory().shared(1 << 20), Arc::new(SiteClaims::default()), TempDir::new());
    let (dir, lease) = (dir.expect("a folder"), Duration::from_secs(3600));
    let claims = Arc::new(GatewayClaims { site: Arc::clone(&site), gateway: 1, lease });
    let names = NameLog::open(Connection::new(&log) as _, claims, cipher(1, "a")).await.expect("opens");
    let own = Keystore::open(dir.path(), Duration::ZERO).expect("opens");
    let store = NameStore::open(dir.path(), own, Some(names as _)).expect("opens");
    let registry = &mut prometheus_client::registry::Registry::default();
    let options = NamesOptions { offline: true, ..NamesOptions::default() };
    let resolver = p2p_bridge::Names::new(options, None, registry).expect("good options");
    let targets: Vec<Arc<dyn Target>> = vec![Arc::new(Stalled)];
    let publisher = Publisher::start(PublishOptions::default(), store, resolver, targets, registry);
    let publisher = Arc::new(publisher);
    let creating = Arc::clone(&publisher);
    let created = tokio::task::spawn_blocking(move || creating.keys().create("blog", KeyKind::Ed25519));
    created.await.expect("no panic").expect("creates");
    publisher.publish("blog", VALUE, None, None).await.expect("publishes");
    let claims = || site.held.lock().expect("no panics").len();
    until("it is claimed", || claims() == 1).await;
    publisher.remove_key("blog").await.expect("removes");
    until("no claim is left", || claims() == 0).await;
    assert_eq!(records(&log).len(), 1, "the check");
}

#[tokio::test]
async fn the_number_of_names_that_a_gateway_works_for_is_limited() {
    let (log, site) = (MetadataStore::memory().shared(1 << 20), Arc::new(SiteClaims::default()));
    let claims = Arc::new(GatewayClaims { site: Arc::clone(&site), gateway: 1, lease: Duration::from_secs(3600) });
    let gateway = Gateway::start_with(&log, claims).await;
    let keys = (0..=WORKING_MAX).map(|_| {
        let pair = Secret::generate(KeyKind::Ed25519).and_then(|secret| secret.keypair()).expect("generates");
        Key::from(pair.public().to_peer_id())
    });
    let ending = Arc::new(Notify::new());
    let work = |key: Key| {
        let (log, ending) = (Arc::clone(&gateway.log), Arc::clone(&ending));
        tokio::spawn(async move { log.work(key, async { ending.notified().await }.boxed()).await })
    };
    let working: Vec<_> = keys.map(work).collect();
    let claims = || site.held.lock().expect("no panics").len();
    until("as many as can are claimed", || claims() == WORKING_MAX && gateway.log.working.available_permits() == 0)
        .await;
    // Requests do not wait for them.
    gateway.create("blog").await.expect("creates");
    assert_eq!((claims(), working.iter().filter(|work| work.is_finished()).count()), (WORKING_MAX, 0));
    ending.notify_one();
    until("one has ended", || working.iter().any(tokio::task::JoinHandle::is_finished)).await;
    until("the next one begins", || claims() == WORKING_MAX).await;
    until("all end", || {
        ending.notify_one();
        working.iter().all(tokio::task::JoinHandle::is_finished)
    })
    .await;
    assert_eq!(claims(), 0);
}

#[tokio::test]
async fn tasks_wait_for_their_turn_and_requests_for_a_limited_time() {
    let log = MetadataStore::memory().shared(1 << 20);
    let gateway = Gateway::start(&log).await;
    let held = gateway.log.state.lock().await;
    let mut none = |_: &KnownNames| Vec::new();
    let mut requests: Vec<_> = (0..WAITING_MAX).map(|_| Box::pin(gateway.log.state.lock_within(WAIT_MAX))).collect();
    assert!(requests.iter_mut().all(|request| request.now_or_never().is_none()));
    let refused = gateway.log.decide(ChangeFor::Request, &mut none).now_or_never();
    assert!(refused.is_some_and(|refused| refused.is_err_and(|failure| failure.is_unavailable)));
    let mut none = |_: &KnownNames| Vec::new();
    let mut task = Box::pin(gateway.log.decide(ChangeFor::Task, &mut none));
    assert!((&mut task).now_or_never().is_none(), "it waits");
    drop(requests);
    drop(held);
    assert!(task.await.is_ok());
}

#[tokio::test]
async fn one_gateway_at_a_time_works_for_a_name() {
    let (log, site) = (MetadataStore::memory().shared(1 << 20), Arc::new(SiteClaims::default()));
    let claims = |gateway, lease| Arc::new(GatewayClaims { site: Arc::clone(&site), gateway, lease });
    let lease = Duration::from_millis(200);
    let (one, other) =
        (Gateway::start_with(&log, claims(1, lease)).await, Gateway::start_with(&log, claims(2, lease)).await);
    let [key, another] =
        [one.create("blog").await.expect("creates").key, one.create("wiki").await.expect("creates").key];
    let begun = Arc::new(Notify::new());
    let work = |log: &Arc<NameLog>| {
        let (log, begun) = (Arc::clone(log), Arc::clone(&begun));
        tokio::spawn(async move {
            let endless = async {
                begun.notify_one();
                std::future::pending::<()>().await
            };
            log.work(key, endless.boxed()).await
        })
    };
    let held = work(&one.log);
    begun.notified().await;
    let refused = other.log.work(key, async { panic!("another gateway works for it") }.boxed()).await;
    assert!(refused.is_err_and(|wait| wait >= HELD_RETRY_MIN));
    assert_eq!(other.log.work(another, async {}.boxed()).await, Ok(()), "for another name");
    // It ends without a release.
    held.abort();
    let begun_again = Instant::now();
    while other.log.work(key, async {}.boxed()).await.is_err() {
        assert!(begun_again.elapsed() < Duration::from_secs(30), "its lease ends");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(one.log.work(key, async {}.boxed()).await, Ok(()), "it was released");
    // Another gateway takes it over while the work goes on, as after a pause.
    let paused = work(&one.log);
    begun.notified().await;
    site.held.lock().expect("no panics").insert(claimed(&key).expect("a CID"), (2, 99, Instant::now() + lease));
    let ended = tokio::time::timeout(Duration::from_secs(30), paused).await.expect("it is cancelled");
    assert_eq!(ended.expect("no panic"), Err(CLAIM_RETRY));
    assert!(site.held.lock().expect("no panics").values().any(|held| held.1 == 99), "it releases no other's claim");
    one.connection.is_unreachable.store(true, Ordering::Relaxed);
    let without_log = one.log.work(another, async { panic!("the log cannot be read") }.boxed()).await;
    assert_eq!(without_log, Err(CLAIM_RETRY));
}
