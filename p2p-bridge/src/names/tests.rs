//! Names with a scripted DHT and DNS and a clock that tests advance, and with a real DNS server on loopback.

use super::*;
use crate::lookups::{FoundRecord, RecordOrigin, Search, Sink};
use bytes::Bytes;
use cid::multibase::{self, Base};
use content::ipns::Draft;
use content::names::Domain;
use libp2p::PeerId;
use libp2p::identity::Keypair;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;
use tokio::net::UdpSocket;

const CID: &str = "bafkqaddjnzzxazldoqwxizltoq";
pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const HOUR: Duration = Duration::from_secs(3600);

thread_local! {
    /// How far the tests' clock is ahead of the system's; per thread, and each test has its own.
    static AHEAD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

fn now() -> Instant {
    Instant::now() + AHEAD.get()
}

fn wall() -> SystemTime {
    SystemTime::now() + AHEAD.get()
}

pub(super) const CLOCK: Clock = Clock { now, wall };

/// Advances the clock.
pub(super) fn advance(by: Duration) {
    AHEAD.set(AHEAD.get() + by);
}

/// Waits for a condition that other tasks bring about.
pub(super) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(20), "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Approximately, because the system's clock advances as well.
fn is_about(ttl: Duration, expected: Duration) -> bool {
    ttl <= expected && ttl + Duration::from_secs(10) > expected
}

fn pair(n: u8) -> Keypair {
    Keypair::ed25519_from_bytes([n; 32]).expect("any 32 bytes will do")
}

pub(super) fn key(n: u8) -> Key {
    Key::from(pair(n).public().to_peer_id())
}

pub(super) fn name(n: u8) -> Name {
    Name::Key(key(n))
}

pub(super) fn domain(text: &str) -> Name {
    Name::parse(text).expect("a domain")
}

/// A record with a time to live of a minute and a lifetime of an hour.
pub(super) fn signed(n: u8, sequence: u64, value: &str) -> Bytes {
    signed_until(n, sequence, value, wall() + HOUR)
}

pub(super) fn signed_until(n: u8, sequence: u64, value: &str, end_of_life: SystemTime) -> Bytes {
    let draft = Draft { value: value.to_owned(), sequence, end_of_life, ttl: MINUTE };
    Record::sign(&pair(n), &draft).expect("signs").bytes().clone()
}

/// A DHT whose records arrive at once, and whose searches end then, or stay open until the test ends them.
#[derive(Default)]
pub(super) struct Dht {
    records: std::sync::Mutex<HashMap<Key, Vec<Bytes>>>,
    /// Records that the node itself stores, for any key.
    kept: std::sync::Mutex<Vec<Bytes>>,
    open: bool,
    sinks: std::sync::Mutex<Vec<Sink>>,
    searches: AtomicUsize,
}

impl Dht {
    pub fn open() -> Arc<Self> {
        Arc::new(Self { open: true, ..Self::default() })
    }

    pub fn has(&self, n: u8, records: impl IntoIterator<Item = Bytes>) {
        self.records.lock().expect("no panics").insert(key(n), records.into_iter().collect());
    }

    pub fn has_for(&self, key: Key, records: impl IntoIterator<Item = Bytes>) {
        self.records.lock().expect("no panics").insert(key, records.into_iter().collect());
    }

    pub fn keeps(&self, bytes: Bytes) {
        self.kept.lock().expect("no panics").push(bytes);
    }

    /// Adds a record to every open search.
    pub fn finds(&self, bytes: Bytes) {
        for sink in self.sinks.lock().expect("no panics").iter() {
            sink.put(FoundRecord { holder: RecordOrigin::Peer(PeerId::random()), bytes: bytes.clone() });
        }
    }

    pub fn end_searches(&self) {
        self.sinks.lock().expect("no panics").clear();
    }

    /// Whether the callers have dropped all searches.
    pub fn all_dropped(&self) -> bool {
        self.sinks.lock().expect("no panics").iter().all(Sink::is_closed)
    }

    pub fn searches(&self) -> usize {
        self.searches.load(Ordering::Relaxed)
    }
}

impl RecordSource for Dht {
    fn find(&self, key: Key) -> BoxFuture<'static, Search> {
        let (search, sink) = Search::new(None);
        for bytes in self.kept.lock().expect("no panics").iter() {
            sink.put(FoundRecord { holder: RecordOrigin::LocalNode, bytes: bytes.clone() });
        }
        for bytes in self.records.lock().expect("no panics").get(&key).into_iter().flatten() {
            sink.put(FoundRecord { holder: RecordOrigin::Peer(PeerId::random()), bytes: bytes.clone() });
        }
        if self.open {
            self.sinks.lock().expect("no panics").push(sink);
        }
        self.searches.fetch_add(1, Ordering::Relaxed);
        async move { search }.boxed()
    }
}

/// A DNS with some links, each with a time to live of a minute.
#[derive(Default)]
pub(super) struct Zone(HashMap<&'static str, String>);

impl DnsLinkSource for Zone {
    fn look_up(&self, domain: Domain) -> BoxFuture<'static, dns::DnsAnswer> {
        let link = self.0.get(domain.as_str()).cloned();
        let outcome = link.map(|link| Answer::Link(link.into())).ok_or(NameError::NoDnsLink { domain });
        async move { (outcome, MINUTE) }.boxed()
    }
}

pub(super) fn names_with(options: NamesOptions, dht: &Arc<Dht>, zone: Zone) -> Arc<Names> {
    Names::with(options, Some(Arc::clone(dht) as _), Some(Arc::new(zone)), CLOCK, &mut Registry::default())
}

pub(super) fn names_with_records(options: NamesOptions, records: Option<Arc<dyn RecordSource>>) -> Arc<Names> {
    Names::with(options, records, None, CLOCK, &mut Registry::default())
}

fn names(dht: &Arc<Dht>) -> Arc<Names> {
    names_with(NamesOptions::default(), dht, Zone::default())
}

pub(super) fn to(segment: &str) -> String {
    format!("/ipfs/{CID}/{segment}")
}

/// The last segment of a name's resolution, and its time to live.
async fn leads(names: &Names, name: &Name) -> (String, Duration) {
    let resolution = names.resolve(name).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(resolution.root.to_string(), CID);
    (resolution.segments.join("/"), resolution.ttl)
}

#[tokio::test]
async fn the_first_valid_record_is_the_answer_until_a_newer_one_arrives() {
    let dht = Dht::open();
    dht.has(1, [signed(1, 1, &to("old"))]);
    let names = names(&dht);
    assert_eq!(leads(&names, &name(1)).await, ("old".to_owned(), MINUTE));
    assert!(!dht.all_dropped(), "the search continues in the background");
    let sequence = || match names.inner.cache.get(&name(1)).map(|entry| entry.outcome.clone()) {
        Some(Ok(Answer::Record(record))) => record.sequence(),
        other => panic!("{other:?}"),
    };
    dht.finds(signed(1, 2, &to("new")));
    until("the newer record is used", || sequence() == 2).await;
    assert_eq!(leads(&names, &name(1)).await.0, "new");
    dht.finds(signed(1, 1, &to("old")));
    dht.finds(signed(1, 3, &to("newest")));
    until("the newest record is used", || sequence() == 3).await;
    assert_eq!((leads(&names, &name(1)).await.0.as_str(), dht.searches()), ("newest", 1));
    for _ in 0..20 {
        dht.finds(signed(1, 1, &to("old")));
    }
    until("enough peers have answered", || dht.all_dropped() && names.inner.look_ups.running_count() == 0).await;
    assert_eq!((leads(&names, &name(1)).await.0.as_str(), dht.searches()), ("newest", 1));
}

#[tokio::test]
async fn records_are_fresh_then_stale_and_refreshed_then_expired() {
    let dht = Arc::new(Dht::default());
    dht.has(1, [signed(1, 1, &to("a"))]);
    let names = names(&dht);
    let idle = || names.inner.look_ups.running_count() == 0;
    assert_eq!(leads(&names, &name(1)).await, ("a".to_owned(), MINUTE));
    until("the search has ended", idle).await;
    advance(MINUTE / 2);
    let (value, ttl) = leads(&names, &name(1)).await;
    assert!(value == "a" && is_about(ttl, MINUTE / 2), "{value} for {ttl:?}");
    assert_eq!(dht.searches(), 1);

    dht.has(1, [signed(1, 2, &to("b"))]);
    advance(MINUTE);
    assert_eq!(leads(&names, &name(1)).await, ("a".to_owned(), cache::STALE_TTL), "without waiting");
    until("the refresh has ended", idle).await;
    assert_eq!((leads(&names, &name(1)).await.0.as_str(), dht.searches()), ("b", 2));

    // From here on no peer has the record: the cached one is used until its end of life, with occasional searches.
    dht.has(1, []);
    advance(2 * MINUTE);
    for searches in [3, 3, 3] {
        assert_eq!(leads(&names, &name(1)).await, ("b".to_owned(), cache::STALE_TTL));
        until("the refresh has ended", idle).await;
        assert_eq!(dht.searches(), searches, "there is a back-off");
    }
    advance(MINUTE);
    assert_eq!(leads(&names, &name(1)).await.0, "b");
    until("the refresh has ended", idle).await;
    assert_eq!(dht.searches(), 4);
    advance(HOUR);
    assert!(matches!(names.resolve(&name(1)).await, Err(NameError::NoRecord { .. })), "past its end of life");
}

#[tokio::test]
async fn the_time_to_live_is_limited_by_the_end_of_life() {
    let dht = Arc::new(Dht::default());
    let life = Duration::from_secs(50);
    dht.has(1, [signed_until(1, 1, &to("a"), wall() + life)]);
    let names = names(&dht);
    for passed in [0, 20, 20] {
        advance(Duration::from_secs(passed));
        let (_, ttl) = leads(&names, &name(1)).await;
        assert!(ttl <= life - AHEAD.get() && is_about(ttl, life - AHEAD.get()), "{ttl:?}");
    }
}

#[tokio::test]
async fn many_requests_share_one_search() {
    let dht = Dht::open();
    let names = names(&dht);
    let readers: Vec<_> = (0..100).map(|_| tokio::spawn(names.resolve(&name(1)))).collect();
    until("they search", || dht.searches() == 1).await;
    dht.finds(signed(1, 1, &to("a")));
    for reader in readers {
        reader.await.expect("no panics").expect("found");
    }
    let record = names.record(&key(1)).await.expect("cached");
    assert_eq!((record.value(), dht.searches()), (to("a").as_str(), 1));
}

/// What an observer was told, as text.
#[derive(Default)]
struct Recorder(std::sync::Mutex<Vec<String>>);

impl Recorder {
    fn add(&self, event: String) {
        self.0.lock().expect("no panics").push(event);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("no panics"))
    }
}

impl NameObserver for Recorder {
    fn look_up_began(&self, name: &Name, is_shared: bool) {
        self.add(format!("{name}, shared: {is_shared}"));
    }

    fn look_up_ended(&self, result: Option<Result<(), &NameError>>) {
        self.add(match result {
            Some(Ok(())) => "found".to_owned(),
            Some(Err(NameError::NoRecord { .. })) => "not found".to_owned(),
            Some(Err(error)) => error.to_string(),
            None => "not awaited".to_owned(),
        });
    }
}

#[tokio::test]
async fn an_observer_is_told_of_the_look_ups_that_are_waited_for() {
    let dht = Dht::open();
    let zone = Zone([("a.example.org", format!("/ipns/{}", name(1)))].into());
    let names = names_with(NamesOptions::default(), &dht, zone);
    let recorder = Arc::new(Recorder::default());
    let observed = names.observed(Arc::clone(&recorder) as _).expect("it does look-ups");
    let other = tokio::spawn(names.resolve(&name(1)));
    until("a search begins", || dht.searches() == 1).await;
    let reader = tokio::spawn(observed.resolve(&domain("a.example.org")));
    let waits = || recorder.0.lock().expect("no panics").len() == 3;
    until("it waits for the search of the other", waits).await;
    dht.finds(signed(1, 1, &to("a")));
    assert!(other.await.expect("no panics").is_ok() && reader.await.expect("no panics").is_ok());
    let (by_dns, by_key) = ("a.example.org, shared: false".to_owned(), format!("{}, shared: true", name(1)));
    assert_eq!(recorder.take(), [by_dns, "found".to_owned(), by_key, "found".to_owned()]);

    assert!(observed.resolve(&domain("a.example.org")).await.is_ok() && observed.record(&key(1)).await.is_ok());
    assert!(recorder.take().is_empty(), "they are cached");

    let (searched, left) = (format!("{}, shared: false", name(2)), format!("{}, shared: false", name(3)));
    let reader = tokio::spawn(observed.record(&key(2)));
    until("a search begins", || dht.searches() == 2).await;
    dht.end_searches();
    assert!(reader.await.expect("no panics").is_err());
    let reader = tokio::spawn(observed.resolve(&name(3)));
    until("a search begins", || dht.searches() == 3).await;
    reader.abort();
    assert!(reader.await.expect_err("is aborted").is_cancelled());
    assert_eq!(recorder.take(), [searched, "not found".to_owned(), left, "not awaited".to_owned()]);
}

#[tokio::test]
async fn failures_are_cached_for_a_short_time() {
    let dht = Dht::open();
    let timeout = Duration::from_millis(20);
    let names = names_with(NamesOptions { timeout, ..NamesOptions::default() }, &dht, Zone::default());
    for _ in 0..3 {
        let error = names.resolve(&name(1)).await.expect_err("no record");
        assert!(matches!(error, NameError::NoRecord { waited, .. } if waited >= timeout), "{error:?}");
    }
    assert_eq!(dht.searches(), 1);
    until("the search has ended", || dht.all_dropped() && names.inner.look_ups.running_count() == 0).await;
    dht.has(1, [signed(1, 1, &to("a"))]);
    advance(FAILURE_TTL);
    assert_eq!(leads(&names, &name(1)).await.0, "a");
    assert_eq!(dht.searches(), 2);
}

#[tokio::test]
async fn an_expired_record_of_a_running_search_is_not_returned() {
    let dht = Dht::open();
    dht.has(1, [signed_until(1, 1, &to("old"), wall() + MINUTE)]);
    let names = names(&dht);
    assert_eq!(leads(&names, &name(1)).await.0, "old");
    advance(2 * MINUTE);
    let reader = tokio::spawn(names.resolve(&name(1)));
    tokio::task::yield_now().await;
    dht.finds(signed_until(1, 2, &to("new"), wall() + MINUTE));
    let resolution = reader.await.expect("no panics").expect("the search continues");
    assert_eq!((resolution.segments.join("/").as_str(), dht.searches()), ("new", 1));

    advance(2 * MINUTE);
    dht.has(1, []);
    let reader = tokio::spawn(names.resolve(&name(1)));
    tokio::task::yield_now().await;
    dht.end_searches();
    until("another search starts", || dht.searches() == 2).await;
    dht.end_searches();
    assert!(matches!(reader.await.expect("no panics"), Err(NameError::NoRecord { .. })));
}

#[tokio::test]
async fn steps_that_expire_during_the_resolution_are_repeated() {
    let dht = Dht::open();
    let names =
        names_with(NamesOptions::default(), &dht, Zone([("a.example.org", format!("/ipns/{}", name(1)))].into()));
    for (waited, record_ttl) in [(MINUTE / 2, MINUTE / 2), (2 * MINUTE, MINUTE)] {
        let reader = tokio::spawn(names.resolve(&domain("a.example.org")));
        until("a search of the key starts", || {
            names.inner.cache.get(&domain("a.example.org")).is_some() && !dht.all_dropped()
        })
        .await;
        advance(waited);
        dht.finds(signed(1, 1, &to("a")));
        let ttl = reader.await.expect("no panics").expect("found").ttl;
        assert!(is_about(ttl, record_ttl), "{ttl:?} after {waited:?}");
        dht.end_searches();
        until("the search has ended", || names.inner.look_ups.running_count() == 0).await;
        names.inner.cache.clear();
    }
}

#[test]
fn the_remaining_time_to_live() {
    let second = Duration::from_secs(1);
    let now = Instant::now();
    let validity = |ttl, from| Validity::new(second * ttl, now + second * from);
    let table =
        [(60, 0, Some(60)), (60, 20, Some(40)), (60, 60, Some(0)), (60, 61, None), (0, 0, Some(0)), (0, 2, None)];
    for (ttl, passed, left) in table {
        assert_eq!(
            validity(ttl, 0).remaining(now + second * passed),
            left.map(|left| second * left),
            "{ttl} after {passed}"
        );
    }
    assert_eq!(validity(60, 0).remaining(now + second / 2), Some(second * 60), "the first second does not count");
    for (one, other, first) in [((60, 0), (30, 40), 60), ((60, 0), (30, 10), 30)] {
        let (one, other) = (validity(one.0, one.1), validity(other.0, other.1));
        for shorter in [one.or_shorter(Some(other)), other.or_shorter(Some(one))] {
            assert_eq!(shorter.ttl, second * first);
        }
    }
}

#[tokio::test]
async fn invalid_records_are_an_error_only_without_a_valid_one() {
    let dht = Arc::new(Dht::default());
    let expired = |n| signed_until(n, 9, &to("past"), wall() - Duration::from_secs(1));
    let garbage = Bytes::from_static(b"garbage");
    dht.has(1, [garbage.clone(), signed(2, 9, &to("evil")), expired(1), signed(1, 1, &to("a"))]);
    dht.has(2, [expired(2), signed(1, 1, &to("another's"))]);
    dht.has(3, [garbage, expired(3)]);
    let names = names(&dht);
    assert_eq!(leads(&names, &name(1)).await.0, "a");
    for (n, reason) in [(2, "the record's signature is invalid"), (3, "the record is past its end of life")] {
        let expected = NameError::Refused { key: key(n), reason: reason.to_owned() };
        assert_eq!(names.resolve(&name(n)).await, Err(expected));
    }
}

#[tokio::test]
async fn look_ups_are_bounded_and_refreshes_leave_slots() {
    let dht = Dht::open();
    let names = names_with(NamesOptions { lookups_max: 4, ..NamesOptions::default() }, &dht, Zone::default());
    let waiting: Vec<_> = (1..=4).map(|n| tokio::spawn(names.resolve(&name(n)))).collect();
    until("they search", || dht.searches() == 4).await;
    assert_eq!(names.resolve(&name(5)).await, Err(NameError::Busy));
    dht.end_searches();
    for waiting in waiting {
        assert!(matches!(waiting.await.expect("no panics"), Err(NameError::NoRecord { .. })));
    }
    for n in 6..=9 {
        dht.has(n, [signed(n, 1, &to("a"))]);
        leads(&names, &name(n)).await;
        dht.end_searches();
        until("the search has ended", || names.inner.look_ups.running_count() == 0).await;
    }
    advance(MINUTE + MINUTE / 2);
    for n in 6..=9 {
        assert_eq!(leads(&names, &name(n)).await.1, cache::STALE_TTL);
    }
    assert_eq!(names.inner.look_ups.running_count(), 2, "half of the slots are for waiting requests");
}

#[tokio::test]
async fn searches_with_an_answer_leave_slots_for_waiting_requests() {
    let dht = Dht::open();
    let options = NamesOptions { lookups_max: 4, ..NamesOptions::default() };
    let names = names_with(options, &dht, Zone([("a.example.org", to("a"))].into()));
    let running_count = || names.inner.look_ups.running_count();
    for n in 1..=8 {
        dht.has(n, [signed(n, 1, &to("a"))]);
        leads(&names, &name(n)).await;
    }
    until("the excess background searches have ended", || running_count() == 2).await;
    let waiting: Vec<_> = (11..=12).map(|n| tokio::spawn(names.resolve(&name(n)))).collect();
    until("the searches run", || running_count() == 4 && dht.searches() == 10).await;
    assert_eq!(names.resolve(&name(13)).await, Err(NameError::Busy));
    leads(&names, &domain("a.example.org")).await;
    for waiting in waiting {
        waiting.abort();
        assert!(waiting.await.is_err_and(|error| error.is_cancelled()));
    }
    until("searches without callers have ended", || running_count() == 2).await;
    assert_eq!(names.inner.cache.get(&name(11)).map(|entry| entry.outcome.clone()), None, "no answer was cached");
    let reader = tokio::spawn(names.resolve(&name(11)));
    until("it searches", || dht.searches() == 11).await;
    dht.finds(signed(11, 1, &to("a")));
    reader.await.expect("no panics").expect("found");
}

#[test]
fn a_stopped_runtime_ends_look_ups() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let dht = Dht::open();
    let names = names(&dht);
    let handle = runtime.handle().clone();
    drop(runtime);
    let _inside = handle.enter();
    names.inner.look_ups.refresh(&names.inner, &name(1));
    assert_eq!((names.inner.look_ups.running_count(), dht.searches()), (0, 0));
}

#[test]
fn the_cache_is_lru_and_failures_evict_no_records() {
    let cache = Cache::new(4, Staleness::default());
    let put = |n: u8| {
        let record = Record::verify(&key(n), signed(n, 1, &to("a"))).expect("good");
        cache.insert_newer(&name(n), record, 1, now(), wall());
        cache.run_pending_tasks();
    };
    let known = |n: u8| cache.get(&name(n)).is_some_and(|entry| entry.outcome.is_ok());
    for n in 1..=4 {
        put(n);
    }
    for _ in 0..20 {
        assert!((1..=4).all(known), "popular");
    }
    put(5);
    assert_eq!((1..=5).map(known).collect::<Vec<_>>(), [false, true, true, true, true]);
    for n in 6..=60 {
        cache.insert_failure(&name(n), NameError::Busy, MINUTE, now(), wall());
        cache.run_pending_tasks();
    }
    assert!((2..=5).all(known) && cache.get(&name(60)).is_some_and(|entry| entry.outcome.is_err()));
    put(60);
    assert!(known(60), "a record replaces the failure");
    cache.insert_failure(&name(60), NameError::Busy, MINUTE, now(), wall());
    assert!(known(60), "a failure does not replace a valid record");
    cache.insert_failure(&name(60), NameError::Busy, MINUTE, now(), wall() + 2 * HOUR);
    assert!(!known(60) && cache.get(&name(60)).is_some());
}

#[tokio::test]
async fn names_point_to_names_and_their_paths_are_joined() {
    let dht = Arc::new(Dht::default());
    dht.has(1, [signed(1, 1, "/ipns/b.example.org/one/")]);
    dht.has(2, [signed(2, 1, &to("root2"))]);
    dht.has(3, [signed(3, 1, &format!("/ipns/{}", name(3)))]);
    dht.has(4, [signed(4, 1, "hello")]);
    dht.has(5, [signed(5, 1, "/ipfs/hello")]);
    let links = [
        ("a.example.org", format!("/ipns/{}/t%77o", name(1))),
        ("b.example.org", format!("/ipns/{}/a/../b", name(2))),
        ("c.example.org", "/ipns/d.example.org".to_owned()),
        ("d.example.org", "/ipns/c.example.org/x".to_owned()),
    ];
    let static_map =
        StaticMap::parse(&format!("map.example.org:/ipns/a.example.org/three,{}:/ipfs/{CID}/mine", name(6)));
    let options = NamesOptions { static_map: static_map.expect("a list"), ..NamesOptions::default() };
    let names = names_with(options, &dht, Zone(links.into()));
    let table = [
        (domain("a.example.org"), "root2/b/one/two"),
        (domain("map.example.org"), "root2/b/one/two/three"),
        (name(2), "root2"),
        (name(6), "mine"),
    ];
    for (name, expected) in table {
        let (below, ttl) = leads(&names, &name).await;
        assert!(below == expected && is_about(ttl, MINUTE), "{name}: {below} for {ttl:?}");
    }
    for name in [domain("c.example.org"), name(3)] {
        assert_eq!(names.resolve(&name).await, Err(NameError::ChainTooLong { name, max: STEPS_MAX }));
    }
    for (n, value) in [(4, "hello"), (5, "/ipfs/hello")] {
        assert_eq!(names.resolve(&name(n)).await, Err(NameError::Value { name: name(n), value: value.to_owned() }));
        assert!(names.record(&key(n)).await.is_ok(), "the record itself is valid");
    }
    let missing = domain("e.example.org");
    assert!(matches!(names.resolve(&missing).await, Err(NameError::NoDnsLink { .. })));
}

#[tokio::test]
async fn records_survive_a_restart_and_are_used_offline() {
    let state = TempDir::new().expect("the temporary folder is writable");
    let kept = || NamesOptions { state_dir: Some(state.path().to_owned()), ..NamesOptions::default() };
    let dht = Arc::new(Dht::default());
    dht.has(1, [signed(1, 1, &to("a"))]);
    dht.has(2, [signed_until(2, 1, &to("b"), wall() + MINUTE)]);
    let names = names_with(kept(), &dht, Zone::default());
    leads(&names, &name(1)).await;
    leads(&names, &name(2)).await;
    names.save().await;
    drop(names);

    advance(MINUTE + MINUTE / 2);
    let offline_names = || Names::with(kept(), None, None, CLOCK, &mut Registry::default());
    let offline = offline_names();
    assert_eq!(leads(&offline, &name(1)).await, ("a".to_owned(), cache::STALE_TTL));
    for unknown in [name(2), domain("a.example.org")] {
        let error = NameError::Offline { name: unknown.clone() };
        assert_eq!(offline.resolve(&unknown).await, Err(error), "one expired, one never cached");
    }
    dht.has(1, [signed(1, 2, &to("newer"))]);
    let online = names_with(kept(), &dht, Zone::default());
    assert_eq!(leads(&online, &name(1)).await.0, "a", "at once");
    until("the refresh has ended", || online.inner.look_ups.running_count() == 0).await;
    assert_eq!(leads(&online, &name(1)).await.0, "newer");

    let file = state.path().join("names.json");
    let text = std::fs::read_to_string(&file).expect("saved");
    let stored: HashMap<String, String> = serde_json::from_str(&text).expect("it is JSON");
    let (record, confirmed) = stored[&key(1).to_string()].split_once(' ').expect("a record and a time");
    let (_, bytes) = multibase::decode(record).expect("base64");
    let other_base = HashMap::from([(key(1).to_string(), multibase::encode(Base::Base58Btc, bytes))]);
    std::fs::write(&file, text.replace(&format!(" {confirmed}"), "")).expect("writes");
    let old = offline_names().resolve(&name(1)).await.expect("a record without a time is valid");
    assert!(old.stale >= Some(2 * MINUTE), "its age requires a refresh: {:?}", old.stale);
    let corrupt_files = [
        text.replace(&key(1).to_string(), &key(2).to_string()),
        text.replace(confirmed, "yesterday"),
        serde_json::to_string(&other_base).expect("it is JSON"),
        "{".to_owned(),
        String::new(),
    ];
    for corrupt in corrupt_files {
        std::fs::write(&file, corrupt).expect("writes");
        assert!(
            matches!(offline_names().resolve(&name(1)).await, Err(NameError::Offline { .. })),
            "an invalid record is ignored"
        );
    }
}

// --- DNS over loopback ----------------------------------------------------------------------------------------------

/// Text records, or an error: the response of a server about a name.
#[derive(Clone)]
enum DnsReply {
    Texts(u32, Vec<Vec<&'static str>>),
    /// NXDOMAIN, with a SOA of this minimum.
    Missing(u32),
    /// Only a response code.
    Code(u8),
}

/// A DNS server with a fixed zone. Returns its address and the number of received queries.
async fn server(zone: HashMap<&'static str, DnsReply>) -> (SocketAddr, Arc<AtomicUsize>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
    let address = socket.local_addr().expect("an address");
    let queries = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&queries);
    tokio::spawn(async move {
        let mut buffer = [0; 1500];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
            count.fetch_add(1, Ordering::Relaxed);
            let reply = reply(&zone, &buffer[..length]);
            let _ = socket.send_to(&reply, peer).await;
        }
    });
    (address, queries)
}

/// The reply to a query, RFC 1035, section 4.
fn reply(zone: &HashMap<&str, DnsReply>, question: &[u8]) -> Vec<u8> {
    let (mut labels, mut at) = (Vec::new(), 12);
    while question[at] != 0 {
        let length = usize::from(question[at]);
        labels.push(String::from_utf8_lossy(&question[at + 1..=at + length]).to_lowercase());
        at += 1 + length;
    }
    let asked = labels.join(".");
    let reply = zone.get(asked.as_str()).cloned().unwrap_or(DnsReply::Missing(3600));
    let (code, answers, authorities, records) = match &reply {
        DnsReply::Texts(ttl, texts) => {
            let records: Vec<u8> = texts.iter().flat_map(|strings| record(16, *ttl, &text(strings))).collect();
            (0, texts.len() as u8, 0, records)
        }
        // A SOA record: the root as the responsible person, four irrelevant numbers, and the minimum.
        DnsReply::Missing(minimum) => {
            let soa = [&[0, 0][..], &[0; 16], &minimum.to_be_bytes()].concat();
            (3, 0, 1, record(6, 3600, &soa))
        }
        DnsReply::Code(code) => (*code, 0, 0, Vec::new()),
    };
    let head = [question[0], question[1], 0x85, 0x80 | code, 0, 1, 0, answers, 0, authorities, 0, 0];
    [&head, &question[12..at + 5], &records].concat()
}

/// A record with the name of the query.
fn record(kind: u8, ttl: u32, data: &[u8]) -> Vec<u8> {
    [&[0xc0, 12, 0, kind, 0, 1][..], &ttl.to_be_bytes(), &(data.len() as u16).to_be_bytes(), data].concat()
}

fn text(strings: &[&str]) -> Vec<u8> {
    strings.iter().flat_map(|text| [&[text.len() as u8], text.as_bytes()].concat()).collect()
}

#[tokio::test]
async fn dnslinks_have_the_time_to_live_of_their_records() {
    const LINK: &str = "dnslink=/ipfs/bafkqaddjnzzxazldoqwxizltoq/a";
    const OTHER: &str = "dnslink=/ipfs/bafkqaddjnzzxazldoqwxizltoq/b";
    let zone = HashMap::from([
        ("_dnslink.one.example.org", DnsReply::Texts(120, vec![vec![LINK]])),
        (
            "_dnslink.two.example.org",
            DnsReply::Texts(300, vec![vec![OTHER], vec!["v=spf1"], vec!["dnslink=x"], vec![LINK]]),
        ),
        (
            "_dnslink.split.example.org",
            DnsReply::Texts(0, vec![vec!["dnslink=/ipfs/bafkqaddjnz", "zxazldoqwxizltoq/a"]]),
        ),
        ("_dnslink.long.example.org", DnsReply::Texts(u32::MAX >> 1, vec![vec![LINK]])),
        ("_dnslink.none.example.org", DnsReply::Texts(10, vec![vec!["v=spf1"]])),
        ("_dnslink.gone.example.org", DnsReply::Missing(20)),
        ("_dnslink.far.example.org", DnsReply::Missing(36_000)),
        ("_dnslink.broken.example.org", DnsReply::Code(2)),
        ("_dnslink.refused.example.org", DnsReply::Code(5)),
        ("_dnslink.strange.example.org", DnsReply::Code(12)),
    ]);
    let (address, queries) = server(zone).await;
    let dns = Dns::new(&[], &[address], 16).expect("no routes");
    let seconds = Duration::from_secs;
    let looked = async |name: &str| dns.look_up(Domain::parse(name).expect("a domain")).await;
    let found = [
        ("one.example.org", seconds(120)),
        ("two.example.org", seconds(300)),
        ("split.example.org", seconds(1)),
        ("long.example.org", cache::TTL_MAX),
    ];
    for (name, ttl) in found {
        let link = LINK.strip_prefix("dnslink=").expect("a link");
        assert_eq!(looked(name).await, (Ok(Answer::Link(link.into())), ttl), "{name}");
    }
    for (name, ttl) in [("none.example.org", 10), ("gone.example.org", 20), ("far.example.org", 60)] {
        let error = NameError::NoDnsLink { domain: Domain::parse(name).expect("a domain") };
        assert_eq!(looked(name).await, (Err(error), seconds(ttl)), "{name}");
    }
    for name in ["broken.example.org", "refused.example.org", "strange.example.org"] {
        let (failure, ttl) = looked(name).await;
        assert!(matches!(failure, Err(NameError::Dns { .. })), "{name}: {failure:?}");
        assert_eq!(ttl, seconds(10), "{name}");
    }

    let options = NamesOptions { dns_servers: vec![address], ..NamesOptions::default() };
    let names = Names::new(options, None, &mut Registry::default()).expect("good options");
    let before = queries.load(Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(leads(&names, &domain("one.example.org")).await.0, "a");
        assert!(matches!(names.resolve(&domain("gone.example.org")).await, Err(NameError::NoDnsLink { .. })));
    }
    assert_eq!(queries.load(Ordering::Relaxed) - before, 2, "both answers are cached");
    let offline = NamesOptions { dns_servers: vec![address], offline: true, ..NamesOptions::default() };
    let offline = Names::new(offline, None, &mut Registry::default()).expect("good options");
    assert!(matches!(offline.resolve(&domain("one.example.org")).await, Err(NameError::Offline { .. })));
    assert_eq!(queries.load(Ordering::Relaxed) - before, 2, "offline, no server is contacted");
}

#[tokio::test]
async fn an_unavailable_service_affects_only_its_suffix() {
    const LINK: &str = "dnslink=/ipfs/bafkqaddjnzzxazldoqwxizltoq/a";
    let zone = HashMap::from([("_dnslink.one.example.org", DnsReply::Texts(120, vec![vec![LINK]]))]);
    let (address, _) = server(zone).await;
    let refusing = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let url = format!("https://{}/dns-query", refusing.expect("a free port"));
    let options =
        NamesOptions { doh: vec![("eth".to_owned(), url)], dns_servers: vec![address], ..NamesOptions::default() };
    let names = Names::new(options, None, &mut Registry::default()).expect("good options");
    let error = names.resolve(&domain("one.eth")).await.expect_err("no listener");
    assert!(matches!(error, NameError::Dns { .. }), "{error}");
    assert_eq!(leads(&names, &domain("one.example.org")).await.0, "a");
    let bad = NamesOptions { doh: vec![("eth".to_owned(), "https://".to_owned())], ..NamesOptions::default() };
    let error = Names::new(bad, None, &mut Registry::default()).err().map(|error| error.to_string());
    assert!(error.is_some_and(|error| error.starts_with("\"https://\" is not the URL")));
}

#[tokio::test]
async fn withheld_names_are_neither_resolved_nor_followed() {
    use crate::network_policy::NetworkPolicy;
    use content::Verdict;
    use content::denylist::{List, Matcher, Source};
    let dht = Arc::new(Dht::default());
    dht.has(1, [signed(1, 1, &format!("/ipns/{}/inner", name(2)))]);
    dht.has(2, [signed(2, 1, &to("root2"))]);
    let links = [("a.example.org", format!("/ipns/{}/below", name(1))), ("b.example.org", to("root2"))];
    for (rule, withheld) in [
        ("/ipns/a.example.org".to_owned(), domain("a.example.org")),
        (format!("/ipns/{}", name(1)), name(1)),
        (format!("/ipns/{}", name(2)), name(2)),
        (format!("/ipns/{}/inner/below", name(2)), name(2)),
    ] {
        let list = List::parse(format!("{rule} status=451\n").as_bytes()).expect("a list");
        let matcher = Matcher::new([Source { id: "list".into(), list, status: Verdict::Gone }]);
        let options = NamesOptions { policy: NetworkPolicy(Arc::new(matcher)), ..NamesOptions::default() };
        let names = names_with(options, &dht, Zone(links.clone().into()));
        let path = if rule.ends_with("/inner/below") { "inner/below" } else { "" }.to_owned();
        let expected = NameError::Withheld { name: withheld.clone(), path, verdict: Verdict::Legal };
        assert_eq!(names.resolve(&domain("a.example.org")).await, Err(expected), "{rule}");
        assert!(names.resolve(&domain("b.example.org")).await.is_ok(), "{rule}");
        for n in [1, 2] {
            let resolved = names.record(&key(n)).await.is_ok();
            assert_eq!(resolved, rule != format!("/ipns/{}", name(n)), "{rule}: the record of {n}");
        }
    }
    let names = names_with(NamesOptions::default(), &dht, Zone(links.into()));
    let resolved = names.resolve(&domain("a.example.org")).await.expect("resolves");
    let hops: Vec<_> = resolved.hops.iter().map(|(name, below)| (name.clone(), below.as_str())).collect();
    assert_eq!(hops, [(domain("a.example.org"), ""), (name(1), "below"), (name(2), "inner/below")]);
}

#[tokio::test]
async fn a_refresh_looks_up_a_cached_name() {
    let dht = Arc::new(Dht::default());
    dht.has(1, [signed(1, 1, &to("old"))]);
    let names = names(&dht);
    let nothing = names.explain(&name(1));
    assert!(nothing.len() == 1 && nothing[0].source == StepSource::Unknown, "{nothing:?}");
    assert!(matches!(names.cache_only().resolve(&name(1)).await, Err(NameError::Offline { .. })));
    assert_eq!(dht.searches(), 0, "no look-up");

    assert_eq!(leads(&names, &name(1)).await.0, "old");
    until("the search has ended", || names.inner.look_ups.running_count() == 0).await;
    dht.has(1, [signed(1, 1, &to("old")), signed(1, 2, &to("new"))]);
    let refreshed = names.refresh(&name(1)).await;
    let leads_to = |resolution: &Resolution| resolution.segments.join("/");
    assert_eq!(refreshed.old.as_ref().map(leads_to).as_deref(), Some("old"));
    assert_eq!(refreshed.new.as_ref().map(leads_to).as_deref(), Ok("new"));
    assert_eq!((refreshed.before[0].sequence, refreshed.after[0].sequence), (Some(1), Some(2)));
    assert_eq!(leads(&names, &name(1)).await.0, "new", "requests get it at once");
    assert_eq!(dht.searches(), 2);

    advance(2 * MINUTE);
    let [step] = &names.explain(&name(1))[..] else { panic!("one step") };
    assert!(step.source == StepSource::Network && step.fresh_for.is_none() && step.age >= Some(2 * MINUTE), "{step:?}");
    assert_eq!(step.value.as_deref(), Some(&*to("new")));
    let known = names.cache_only().resolve(&name(1)).await;
    assert_eq!(known.map(|known| known.ttl), Ok(cache::STALE_TTL));
    assert_eq!(dht.searches(), 2, "inspecting a stale name does not refresh it");

    // A failed refresh does not remove a valid answer.
    dht.has(1, []);
    let failed = names.refresh(&name(1)).await;
    assert_eq!((failed.new.as_ref().map(leads_to).as_deref(), dht.searches()), (Ok("new"), 3));
    assert!(names.invalidate(&name(1)) && !names.invalidate(&name(1)), "no longer cached");
    assert!(matches!(names.resolve(&name(1)).await, Err(NameError::NoRecord { .. })));
}

#[tokio::test]
async fn a_refresh_looks_up_all_names_on_the_way() {
    let dht = Arc::new(Dht::default());
    dht.has(1, [signed(1, 1, &to("a"))]);
    let zone = Zone([("example.org", format!("/ipns/{}/sub", key(1)))].into());
    let options = NamesOptions {
        static_map: StaticMap::parse("list.example:/ipns/example.org/deep").expect("a list"),
        ..NamesOptions::default()
    };
    let names = names_with(options, &dht, zone);
    let first = domain("list.example");
    let refreshed = names.refresh(&first).await;
    assert!(refreshed.old.is_none() && refreshed.before.len() == 2, "{refreshed:?}");
    let new = refreshed.new.expect("resolved");
    assert_eq!((new.root.to_string().as_str(), new.segments.join("/").as_str()), (CID, "a/sub/deep"));
    let sources: Vec<StepSource> = refreshed.after.iter().map(|step| step.source).collect();
    assert_eq!(sources, [StepSource::List, StepSource::Dns, StepSource::Network]);
    let values: Vec<&str> = refreshed.after.iter().filter_map(|step| step.value.as_deref()).collect();
    assert_eq!(values, ["/ipns/example.org/deep", &*format!("/ipns/{}/sub", key(1)), &*to("a")]);
    let missing = names.refresh(&domain("nothing.example")).await;
    assert!(matches!(missing.new, Err(NameError::NoDnsLink { .. })) && missing.after[0].error.is_some(), "{missing:?}");
}
