//! Publishing to scripted targets, with a scripted DHT and a clock that tests advance.

use super::super::NamesOptions;
use super::super::key_format::{KeyFormat, KeyKind};
use super::super::keystore::{Keystore, SELF};
use super::super::store_tests::{self, MemorySite};
use super::super::tests::{CLOCK, Dht, HOUR, MINUTE, advance, names_with_records, to, until};
use super::*;
use bytes::Bytes;
use content::ipns::Draft;
use content::{NameError, NameResolver};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;
use tempfile::TempDir;

/// A scripted target, which may have no peers, or reject records.
#[derive(Default)]
struct FakeTarget {
    name: &'static str,
    records: Mutex<Vec<Record>>,
    refuses: AtomicBool,
    asked: AtomicUsize,
    /// How often it was asked whether a put would start.
    asked_if_ready: AtomicUsize,
    /// Puts wait until this is true.
    has_peers: watch::Sender<bool>,
    /// Puts start nevertheless, and do not end before.
    stalls: bool,
}

impl FakeTarget {
    fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self { name, has_peers: watch::Sender::new(true), ..Self::default() })
    }

    fn without_peers(name: &'static str) -> Arc<Self> {
        Arc::new(Self { name, ..Self::default() })
    }

    fn stalled(name: &'static str) -> Arc<Self> {
        Arc::new(Self { name, stalls: true, ..Self::default() })
    }

    fn has(&self) -> Vec<(u64, String)> {
        let records = self.records.lock().expect("no panics");
        let last = |value: &str| value.rsplit('/').next().unwrap_or_default().to_owned();
        records.iter().map(|record| (record.sequence(), last(record.value()))).collect()
    }
}

struct Shared(Arc<FakeTarget>);

impl Target for Shared {
    fn name(&self) -> String {
        self.0.name.to_owned()
    }

    fn put(&self, _key: Key, record: Record) -> BoxFuture<'static, Result<usize, String>> {
        let fake = Arc::clone(&self.0);
        async move {
            let mut has_peers = fake.has_peers.subscribe();
            has_peers.wait_for(|has_peers| *has_peers).await.map_err(|error| error.to_string())?;
            fake.asked.fetch_add(1, Ordering::Relaxed);
            if fake.refuses.load(Ordering::Relaxed) {
                return Err("rejected".to_owned());
            }
            fake.records.lock().expect("no panics").push(record);
            Ok(7)
        }
        .boxed()
    }

    fn is_ready(&self) -> BoxFuture<'static, bool> {
        self.0.asked_if_ready.fetch_add(1, Ordering::Relaxed);
        futures::future::ready(self.0.stalls || *self.0.has_peers.borrow()).boxed()
    }
}

struct Node {
    publisher: Publisher,
    names: Arc<Names>,
}

impl Node {
    /// A previous node that was dropped keeps the keystore open until its tasks have ended.
    async fn start(dir: &TempDir, dht: Option<&Arc<Dht>>, fakes: &[&Arc<FakeTarget>]) -> Self {
        Self::start_with(PublishOptions::default(), dir, dht, fakes).await
    }

    async fn start_with(
        options: PublishOptions,
        dir: &TempDir,
        dht: Option<&Arc<Dht>>,
        fakes: &[&Arc<FakeTarget>],
    ) -> Self {
        let mut keys = None;
        until("the keystore is unlocked", || {
            keys = Keystore::open(dir.path(), Duration::ZERO).ok();
            keys.is_some()
        })
        .await;
        let store = NameStore::open(dir.path(), keys.expect("open"), None).expect("opens");
        let records = dht.map(|dht| Arc::clone(dht) as Arc<dyn RecordSource>);
        let names = names_with_records(NamesOptions::default(), records.clone());
        let targets = fakes.iter().map(|fake| Arc::new(Shared(Arc::clone(fake))) as Arc<dyn Target>).collect();
        let registry = &mut Registry::default();
        let publisher = Publisher::with(options, store, Arc::clone(&names), records, targets, CLOCK, registry);
        Self { publisher, names }
    }

    /// A gateway of a site that shares names.
    fn of_site(dir: &TempDir, site: &Arc<MemorySite>, fakes: &[&Arc<FakeTarget>]) -> Self {
        let (store, names) =
            (store_tests::open(dir.path(), Some(site)), names_with_records(NamesOptions::default(), None));
        let targets = fakes.iter().map(|fake| Arc::new(Shared(Arc::clone(fake))) as Arc<dyn Target>).collect();
        let registry = &mut Registry::default();
        let publisher =
            Publisher::with(PublishOptions::default(), store, Arc::clone(&names), None, targets, CLOCK, registry);
        Self { publisher, names }
    }

    async fn publish_blog(&self, segment: &str) -> Result<Published, PublishError> {
        self.publisher.publish("blog", &to(segment), None, None).await
    }

    async fn publish(&self, segment: &str) -> Published {
        self.publisher.publish(SELF, &to(segment), None, None).await.expect("publishes")
    }

    fn entry(&self) -> Published {
        self.publisher.list().into_iter().next().expect("is published").1
    }

    /// Wakes the tasks of all names.
    fn wake(&self) {
        self.publisher.list().iter().for_each(|(_, entry)| self.publisher.inner.wake_or_start(entry.key));
    }

    /// The value of the published record of a name.
    fn published_value(&self, key: &Key) -> Option<String> {
        self.names.inner.published_record(&Name::Key(*key)).map(|record| record.value().to_owned())
    }

    async fn leads(&self, key: Key) -> String {
        self.names.resolve(&Name::Key(key)).await.expect("is known").segments.join("/")
    }
}

fn dir() -> TempDir {
    tempfile::tempdir().expect("folder")
}

#[tokio::test]
async fn a_value_is_resolved_at_once_and_put_in_the_background() {
    let (dir, lan, wan) = (dir(), FakeTarget::new("lan"), FakeTarget::without_peers("wan"));
    let node = Node::start(&dir, None, &[&lan, &wan]).await;
    let first = node.publish("a").await;
    assert_eq!((first.record.sequence(), node.leads(first.key).await.as_str()), (0, "a"));
    let settled = node.publisher.settled(first, Duration::from_secs(20)).await;
    assert_eq!(settled.puts["lan"].peers, 7);
    assert!(!settled.puts.contains_key("wan"));
    let second = node.publish("b").await;
    assert_eq!((second.record.sequence(), node.leads(second.key).await.as_str()), (1, "b"));
    until("the record is put", || lan.has().len() == 2).await;
    wan.has_peers.send_replace(true);
    until("the peers are available", || node.entry().puts.len() == 2).await;
    assert_eq!(wan.has(), [(1, "b".to_owned())], "a replaced record is not put");
}

#[tokio::test]
async fn publications_survive_a_restart_and_are_put_and_renewed_on_schedule() {
    let (dir, wan) = (dir(), FakeTarget::without_peers("wan"));
    let node = Node::start(&dir, None, &[&wan]).await;
    let published = node.publish("a").await;
    let waited = node.publisher.settled(published.clone(), Duration::from_millis(10)).await;
    assert_eq!(waited, published, "no peers");
    drop(node);

    wan.has_peers.send_replace(true);
    let node = Node::start(&dir, None, &[&wan]).await;
    assert_eq!(node.leads(published.key).await, "a");
    until("the record is put", || wan.has().len() == 1 && !node.entry().puts.is_empty()).await;
    drop(node);
    let node = Node::start(&dir, None, &[&wan]).await;
    node.wake();
    tokio::task::yield_now().await;
    assert_eq!(wan.has().len(), 1, "the record is not put again");

    let before = node.entry();
    advance(4 * HOUR + MINUTE);
    node.wake();
    until("the record is renewed", || wan.has().len() == 2 && !node.entry().puts.is_empty()).await;
    let after = node.entry();
    assert_eq!(after.record.sequence(), before.record.sequence());
    assert!(after.record.end_of_life() >= before.record.end_of_life() + 4 * HOUR);
    drop(node);

    advance(100 * HOUR);
    let node = Node::start(&dir, None, &[&wan]).await;
    until("a record that expired while no node ran is renewed", || wan.has().len() == 3).await;
    assert_eq!(node.leads(published.key).await, "a");
}

#[tokio::test]
async fn a_newer_record_of_another_node_is_superseded_once() {
    let (dir, wan, dht) = (dir(), FakeTarget::new("wan"), Arc::new(Dht::default()));
    let own = own_pair(&dir);
    let key = Key::from(own.public().to_peer_id());
    let others = |sequence, end_of_life| signed(&own, sequence, end_of_life);
    // Another node publishes after this one. An expired record counts as well.
    let offline = Node::start(&dir, None, &[]).await;
    assert_eq!(offline.publish("mine").await.record.sequence(), 0);
    drop(offline);
    dht.has_for(key, [others(3, SystemTime::now() + HOUR), others(5, SystemTime::now() - HOUR)]);
    let node = Node::start(&dir, Some(&dht), &[&wan]).await;
    until("the record is put", || wan.has() == [(6, "mine".to_owned())]).await;
    assert_eq!(node.leads(key).await, "mine");

    // Another node with the same key publishes: its record wins until this node publishes again.
    node.names.inner.insert_newer(
        &Name::Key(key),
        Record::verify(&key, others(9, SystemTime::now() + 100 * HOUR)).expect("good"),
        1,
    );
    assert_eq!(node.leads(key).await, "other");
    until("the pending put is recorded", || !node.entry().puts.is_empty()).await;
    advance(5 * HOUR);
    node.wake();
    tokio::task::yield_now().await;
    assert_eq!(wan.has().len(), 1, "a superseded record is not renewed");
    node.publish("mine again").await;
    until("the record is put", || wan.has().last() == Some(&(10, "mine again".to_owned()))).await;
    assert_eq!(node.leads(key).await, "mine again");
}

/// The key pair of the node in a folder.
fn own_pair(dir: &TempDir) -> Keypair {
    Keystore::open(dir.path(), Duration::ZERO).expect("opens").get(SELF).expect("self").1
}

fn signed(pair: &Keypair, sequence: u64, end_of_life: SystemTime) -> Bytes {
    let draft = Draft { value: to("other"), sequence, end_of_life, ttl: MINUTE };
    Record::sign(pair, &draft).expect("signs").bytes().clone()
}

#[tokio::test]
async fn the_first_publication_with_a_key_continues_the_sequence_of_the_network() {
    let (dir, wan, dht) = (dir(), FakeTarget::new("wan"), Arc::new(Dht::default()));
    let own = own_pair(&dir);
    let soon = SystemTime::now() + HOUR;
    // An expired record counts as well; one with another key, and what is no record, do not.
    let found = [
        signed(&own, 3, soon),
        signed(&own, 5, SystemTime::now() - HOUR),
        signed(&Keypair::generate_ed25519(), 9, soon),
        Bytes::from_static(b"no record"),
    ];
    dht.has_for(Key::from(own.public().to_peer_id()), found);
    let node = Node::start(&dir, Some(&dht), &[&wan]).await;
    let first = node.publish("mine").await;
    assert_eq!((first.record.sequence(), first.compared), (6, true));
    until("the record is put", || wan.has() == [(6, "mine".to_owned())]).await;
    assert_eq!(dht.searches(), 1, "it is not compared again");
    assert_eq!(node.publish("next").await.record.sequence(), 7);
    until("the next record is put", || wan.has().last() == Some(&(7, "next".to_owned()))).await;
    assert_eq!(node.leads(first.key).await, "next");
}

#[tokio::test]
async fn only_the_first_publication_waits_for_the_network_and_not_for_long() {
    let (dir, dht) = (dir(), Dht::open());
    let own = own_pair(&dir);
    dht.has_for(Key::from(own.public().to_peer_id()), [signed(&own, 3, SystemTime::now() + HOUR)]);
    let timeout = Duration::from_millis(50);
    let node = Node::start_with(
        PublishOptions { comparison_timeout: timeout, ..PublishOptions::default() },
        &dir,
        Some(&dht),
        &[],
    )
    .await;
    let first = node.publish("mine").await;
    assert_eq!(first.record.sequence(), 4, "what was found in time counts");
    drop(node);

    // The searches of this node do not end.
    let node = Node::start_with(
        PublishOptions { comparison_timeout: HOUR, ..PublishOptions::default() },
        &dir,
        Some(&dht),
        &[],
    )
    .await;
    let next = tokio::time::timeout(Duration::from_secs(20), node.publish("next")).await.expect("does not wait");
    assert_eq!(next.record.sequence(), 5);
}

#[tokio::test]
async fn an_invalid_publication_asks_no_other_node() {
    let (dir, dht) = (dir(), Arc::new(Dht::default()));
    let node = Node::start(&dir, Some(&dht), &[]).await;
    let missing = node.publisher.publish("site", &to("a"), None, None).await;
    let invalid = node.publisher.publish(SELF, "nonsense", None, None).await;
    assert!(missing.is_err() && invalid.is_err() && dht.searches() == 0);
}

#[tokio::test]
async fn records_that_this_node_stores_are_no_comparison() {
    let (dir, wan, dht) = (dir(), FakeTarget::new("wan"), Arc::new(Dht::default()));
    let node = Node::start(&dir, Some(&dht), &[&wan]).await;
    let own = node.publisher.keys().get(SELF).expect("self").1;
    let draft = Draft { value: to("kept"), sequence: 0, end_of_life: SystemTime::now() + MINUTE, ttl: MINUTE };
    dht.keeps(Record::sign(&own, &draft).expect("signs").bytes().clone());
    node.publish("mine").await;
    until("the record is put", || !node.entry().puts.is_empty()).await;
    assert!(!node.entry().compared, "no other node was asked");
    dht.has_for(
        node.entry().key,
        [Record::sign(&own, &Draft { sequence: 7, ..draft }).expect("signs").bytes().clone()],
    );
    advance(MINUTE);
    node.wake();
    until("the other record is superseded", || node.entry().record.sequence() == 8 && node.entry().compared).await;
}

#[tokio::test]
async fn rejected_records_are_retried() {
    let (dir, wan) = (dir(), FakeTarget::new("wan"));
    wan.refuses.store(true, Ordering::Relaxed);
    let node = Node::start(&dir, None, &[&wan]).await;
    node.publish("a").await;
    until("the record is rejected", || wan.asked.load(Ordering::Relaxed) == 1).await;
    advance(MINUTE);
    node.wake();
    until("and again", || wan.asked.load(Ordering::Relaxed) == 2).await;
    wan.refuses.store(false, Ordering::Relaxed);
    advance(MINUTE);
    node.wake();
    until("the record is put", || !node.entry().puts.is_empty()).await;
}

#[tokio::test]
async fn an_invalid_publication_changes_nothing() {
    let dir = dir();
    let node = Node::start(&dir, None, &[]).await;
    let own = node.publisher.keys().get(SELF).expect("self").0.key;
    let publish = async |key: &str, path: String, lifetime: Option<Duration>| {
        node.publisher.publish(key, &path, lifetime, None).await
    };
    assert!(matches!(publish("nobody", to("a"), None).await, Err(PublishError::Key(KeyError::Missing(_)))));
    for path in ["", "/", "nonsense", "/ipfs/", "/ipfs/nonsense", "/ipld/x", "/ipns/", "https://example.org"] {
        let refused = publish(SELF, path.to_owned(), None).await;
        assert!(matches!(refused, Err(PublishError::Path { .. })), "{path}");
    }
    let itself = format!("/ipns/{}/below", own.peer_id());
    assert!(matches!(publish(SELF, itself, None).await, Err(PublishError::Loop)));
    for lifetime in [Duration::ZERO, LIFETIME_MIN / 2, LIFETIME_MAX * 2] {
        assert!(matches!(publish(SELF, to("a"), Some(lifetime)).await, Err(PublishError::Terms)), "{lifetime:?}");
    }
    let long = to(&"a".repeat(20_000));
    assert!(matches!(publish(SELF, long, None).await, Err(PublishError::Entry(_))));
    assert!(node.publisher.list().is_empty());
    let same = ["/ipns/example.org", "/ipfs/bafkqaddjnzzxazldoqwxizltoq", "/ipfs/bafkqaddjnzzxazldoqwxizltoq/a b"];
    for path in same {
        assert_eq!(publish(SELF, path.to_owned(), None).await.expect("a path").record.value(), path);
    }
    let short = publish(SELF, "bafkqaddjnzzxazldoqwxizltoq".to_owned(), None).await.expect("a CID is valid");
    assert_eq!(short.record.value(), "/ipfs/bafkqaddjnzzxazldoqwxizltoq");
    let settled = node.publisher.settled(short.clone(), Duration::from_secs(3600)).await;
    assert_eq!(settled, short, "without targets it does not wait");
}

#[tokio::test]
async fn removing_a_key_removes_its_publication_and_renaming_keeps_it() {
    let (dir, wan) = (dir(), FakeTarget::new("wan"));
    let node = Node::start(&dir, None, &[&wan]).await;
    let keys = node.publisher.keys();
    let info = keys.create("site", KeyKind::Ed25519).expect("makes");
    node.publisher.publish("site", &to("a"), None, None).await.expect("publishes");
    keys.rename("site", "page").expect("renames");
    let named = node.publisher.list().remove(0).0.expect("the key exists");
    assert_eq!((named.name.as_str(), named.key), ("page", info.key));
    until("the record is put", || !node.entry().puts.is_empty()).await;
    assert!(matches!(node.publisher.remove_key(SELF).await, Err(PublishError::Key(KeyError::Reserved))));
    node.publisher.remove_key("page").await.expect("removes");
    assert!(node.publisher.list().is_empty() && node.publisher.inner.tasks().is_empty());
    node.names.inner.cache.clear();
    let unknown = node.names.resolve(&Name::Key(info.key)).await;
    assert!(matches!(unknown, Err(NameError::Offline { .. })), "{unknown:?}");
}

#[tokio::test]
async fn nothing_is_published_with_a_concurrently_removed_key() {
    let dir = dir();
    let node = Node::start(&dir, None, &[]).await;
    let keys = node.publisher.keys();
    for round in 0..50 {
        let info = keys.create("site", KeyKind::Ed25519).expect("makes");
        if round % 2 == 0 {
            node.publisher.publish("site", &to("a"), None, None).await.expect("publishes");
        }
        let value = to("b");
        let publish = node.publisher.publish("site", &value, None, None);
        let (published, removed) = futures::join!(publish, node.publisher.remove_key("site"));
        removed.expect("removes");
        let missing = matches!(published, Err(PublishError::Key(KeyError::Missing(_))));
        assert!(published.is_ok() || missing, "{published:?}");
        assert!(node.publisher.list().is_empty(), "round {round}");
        assert!(node.names.inner.published_record(&Name::Key(info.key)).is_none(), "round {round}");
        assert!(!node.publisher.inner.tasks().contains_key(&info.key), "round {round}");
    }
}

#[tokio::test]
async fn an_earlier_record_does_not_replace_a_later_one() {
    let dir = dir();
    let node = Node::start(&dir, None, &[]).await;
    let (first, second) = (node.publish("a").await, node.publish("b").await);
    node.names.inner.cache.clear();
    node.names.add_published(first.key, first.record);
    assert_eq!(node.names.known(&second.key), Some(second.record));
}

/// What one gateway publishes every other one resolves at once, and one of them puts it.
#[tokio::test]
async fn names_of_a_site_are_published_by_any_gateway_and_put_by_one() {
    let (site, dirs, wan) = (MemorySite::new(), [dir(), dir()], FakeTarget::new("wan"));
    let [one, other] = [Node::of_site(&dirs[0], &site, &[&wan]), Node::of_site(&dirs[1], &site, &[&wan])];
    let key = one.publisher.keys().create("blog", KeyKind::Ed25519).expect("creates").key;
    let first = one.publish_blog("a").await.expect("publishes");
    assert_eq!((first.record.sequence(), one.leads(key).await.as_str()), (0, "a"));
    until("the other gateway has it", || other.published_value(&key).is_some()).await;
    assert_eq!(other.leads(key).await, "a");
    let settled = other.publisher.settled(first, Duration::from_secs(20)).await;
    assert_eq!(settled.puts["wan"].peers, 7);
    let second = other.publish_blog("b").await.expect("publishes");
    assert_eq!((second.record.sequence(), other.leads(key).await.as_str()), (1, "b"));
    until("the first gateway has it", || one.published_value(&key).as_deref() == Some(&*to("b"))).await;
    assert_eq!(one.leads(key).await, "b");
    until("it is put", || !one.entry().puts.is_empty() && !other.entry().puts.is_empty()).await;
    until("no gateway works for it", || !site.is_claimed(&key)).await;
    assert_eq!(wan.has(), [(0, "a".to_owned()), (1, "b".to_owned())], "each once");

    advance(5 * HOUR);
    [&one, &other].iter().for_each(|node| node.wake());
    until("it is renewed and put", || wan.has().len() == 3 && !one.entry().puts.is_empty()).await;
    until("no gateway works for it", || !site.is_claimed(&key)).await;
    assert_eq!(wan.has().last(), Some(&(1, "b".to_owned())));
    other.publisher.remove_key("blog").await.expect("removes");
    until("it is withdrawn", || one.published_value(&key).is_none()).await;
    assert!(one.publisher.list().is_empty() && other.publisher.list().is_empty());
    until("the tasks end", || [&one, &other].iter().all(|node| node.publisher.inner.tasks().is_empty())).await;
    assert_eq!(wan.has().len(), 3);
}

#[tokio::test]
async fn another_gateway_continues_what_one_has_not_put() {
    let (site, dirs) = (MemorySite::new(), [dir(), dir()]);
    let (stalled, wan) = (FakeTarget::stalled("wan"), FakeTarget::new("wan"));
    let one = Node::of_site(&dirs[0], &site, &[&stalled]);
    let key = one.publisher.keys().create("blog", KeyKind::Ed25519).expect("creates").key;
    one.publish_blog("a").await.expect("publishes");
    until("it works for the name", || site.is_claimed(&key)).await;
    let other = Node::of_site(&dirs[1], &site, &[&wan]);
    assert_eq!(other.leads(key).await, "a");
    other.wake();
    assert!(wan.has().is_empty(), "one gateway works for it");
    drop(one);
    until("the other one puts it", || wan.has() == [(0, "a".to_owned())]).await;
    until("that is recorded", || !other.entry().puts.is_empty()).await;
    let before = other.entry();
    advance(5 * HOUR);
    other.wake();
    until("the other one renews it", || wan.has().len() == 2 && !other.entry().puts.is_empty()).await;
    assert!(other.entry().record.end_of_life() >= before.record.end_of_life() + 4 * HOUR);
}

/// A put for which there are no peers is left to other gateways, and tried later.
#[tokio::test]
async fn no_gateway_holds_a_name_of_the_site_while_a_target_has_no_peers() {
    let (site, dir) = (MemorySite::new(), dir());
    let (lan, wan) = (FakeTarget::without_peers("lan"), FakeTarget::new("wan"));
    let node = Node::of_site(&dir, &site, &[&lan, &wan]);
    let key = node.publisher.keys().create("blog", KeyKind::Ed25519).expect("creates").key;
    node.publish_blog("a").await.expect("publishes");
    until("it is put to the target with peers", || node.entry().puts.contains_key("wan")).await;
    until("the claim is released", || !site.is_claimed(&key)).await;
    let (claims, asked) = (site.claims(&key), lan.asked_if_ready.load(Ordering::Relaxed));
    advance(MINUTE);
    node.wake();
    until("it is asked for peers", || lan.asked_if_ready.load(Ordering::Relaxed) > asked).await;
    tokio::task::yield_now().await;
    lan.has_peers.send_replace(true);
    assert_eq!((site.claims(&key), lan.has().len()), (claims, 0), "nothing is claimed without peers");
    advance(HOUR);
    node.wake();
    until("it is put", || lan.has() == [(0, "a".to_owned())]).await;
    until("the claim is released", || !site.is_claimed(&key)).await;
}

/// A key that is removed while its name is worked for ends the work, and not the task that releases the claim.
#[tokio::test]
async fn the_task_of_a_removed_name_ends_its_work_first() {
    let (site, dir, wan) = (MemorySite::new(), dir(), FakeTarget::stalled("wan"));
    let node = Node::of_site(&dir, &site, &[&wan]);
    for round in 0..5 {
        let key = node.publisher.keys().create("blog", KeyKind::Ed25519).expect("creates").key;
        node.publish_blog("a").await.expect("publishes");
        until("it works for the name", || site.is_claimed(&key)).await;
        node.publisher.remove_key("blog").await.expect("removes");
        until("the task ends", || node.publisher.inner.tasks().is_empty()).await;
        assert_eq!((site.is_claimed(&key), site.cancelled(), round), (false, 0, round));
    }
    // The same key again, while the task of before may not have ended.
    let pem = {
        node.publisher.keys().create("page", KeyKind::Ed25519).expect("creates");
        node.publisher.keys().export("page", KeyFormat::Pem).expect("exports")
    };
    for round in 0..20 {
        let published = node.publisher.publish("page", &to("a"), None, None).await.expect("publishes");
        let put = || site.is_claimed(&published.key);
        until("it works for the name", put).await;
        assert_eq!(node.publisher.inner.tasks().len(), 1, "round {round}");
        node.publisher.remove_key("page").await.expect("removes");
        node.publisher.keys().import("page", None, &pem).expect("imports");
    }
    assert_eq!(site.cancelled(), 0);
}

#[tokio::test]
async fn names_are_resolved_and_not_published_while_the_site_cannot_be_reached() {
    let (site, dir, wan) = (MemorySite::new(), dir(), FakeTarget::new("wan"));
    let node = Node::of_site(&dir, &site, &[&wan]);
    let key = node.publisher.keys().create("blog", KeyKind::Ed25519).expect("creates").key;
    node.publish_blog("a").await.expect("publishes");
    until("it is put", || !node.entry().puts.is_empty()).await;
    site.is_away.store(true, Ordering::Relaxed);
    let refused = node.publish_blog("b").await;
    assert!(matches!(refused, Err(PublishError::Key(KeyError::Unavailable { .. }))), "{refused:?}");
    assert_eq!((node.leads(key).await.as_str(), node.entry().record.sequence()), ("a", 0));
    assert_eq!(node.publish("own").await.record.sequence(), 0, "the node's own name does not need it");
    site.is_away.store(false, Ordering::Relaxed);
    assert_eq!(node.publish_blog("c").await.expect("publishes").record.sequence(), 1);
}

/// Two gateways that publish at the same time use different sequence numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publications_at_the_same_time_have_an_order() {
    let (site, dirs) = (MemorySite::new(), [dir(), dir()]);
    let nodes = [Node::of_site(&dirs[0], &site, &[]), Node::of_site(&dirs[1], &site, &[])];
    let key = nodes[0].publisher.keys().create("blog", KeyKind::Ed25519).expect("creates").key;
    for round in 0..10 {
        let both = nodes.iter().map(|node| node.publish_blog("a"));
        let published = futures::future::try_join_all(both).await.expect("publish");
        let mut sequences: Vec<u64> = published.iter().map(|entry| entry.record.sequence()).collect();
        sequences.sort_unstable();
        assert_eq!(sequences, [2 * round, 2 * round + 1]);
    }
    for node in &nodes {
        until("it has the latest", || node.names.known(&key).map(|record| record.sequence()) == Some(19)).await;
    }
}
