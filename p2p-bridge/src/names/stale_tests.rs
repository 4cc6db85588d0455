//! Staleness of answers, with a scripted DHT and DNS, and a clock that tests advance.

use super::cache::{Answer, Cache, CacheEntry, Freshness, QUORUM};
use super::dns::{self, DnsLinkSource};
use super::tests::{
    CLOCK, Dht, HOUR, MINUTE, Zone, advance, domain, key, name, names_with, signed, signed_until, to, until,
};
use super::*;
use content::names::Domain;
use prometheus_client::registry::Registry;

/// The maximum time of an answer that waits for no look-up.
const AT_ONCE: Duration = Duration::from_secs(2);

/// The last segment of a name's resolution, and its age if it is stale.
async fn resolved(names: &Names, name: &Name) -> (String, Option<Duration>) {
    let resolution = names.resolve(name).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    (resolution.segments.join("/"), resolution.stale)
}

/// Options that wait for a refresh until its end.
fn patient() -> NamesOptions {
    NamesOptions { refresh_wait: HOUR, ..NamesOptions::default() }
}

async fn idle(names: &Names) {
    until("no look-up is running", || names.inner.look_ups.running_count() == 0).await;
}

/// A name whose cached record is so stale that a request waits for a refresh, and its scripted DHT.
async fn stale_for_long() -> (Arc<Dht>, Arc<Names>) {
    let dht = Dht::open();
    dht.has(1, [signed(1, 1, &to("old"))]);
    let names = names_with(patient(), &dht, Zone::default());
    resolved(&names, &name(1)).await;
    dht.end_searches();
    idle(&names).await;
    advance(3 * MINUTE);
    (dht, names)
}

#[tokio::test]
async fn a_request_long_after_the_time_to_live_waits_for_a_refresh() {
    let dht = Arc::new(Dht::default());
    dht.has(1, [signed(1, 1, &to("old"))]);
    let names = names_with(patient(), &dht, Zone::default());
    assert_eq!(resolved(&names, &name(1)).await, ("old".to_owned(), None));
    idle(&names).await;
    dht.has(1, [signed(1, 2, &to("new"))]);
    advance(MINUTE + MINUTE / 2);
    let (value, age) = resolved(&names, &name(1)).await;
    assert!(
        value == "old" && age >= Some(MINUTE),
        "shortly after the time to live the stale answer is returned at once: {value} {age:?}"
    );
    idle(&names).await;
    dht.has(1, [signed(1, 3, &to("newer"))]);
    advance(MINUTE + MINUTE);
    assert_eq!(resolved(&names, &name(1)).await, ("newer".to_owned(), None), "later the request waits for the refresh");
}

#[tokio::test]
async fn an_awaited_refresh_asks_more_than_the_first_peer() {
    let (dht, names) = stale_for_long().await;
    // The first peer that answers does not have the new record yet.
    let visit = tokio::spawn(names.resolve(&name(1)));
    until("a search starts", || dht.searches() == 2).await;
    dht.finds(signed(1, 2, &to("new")));
    assert_eq!(visit.await.expect("no panics").expect("found").segments, ["new"]);
    dht.end_searches();
    idle(&names).await;
    // A quorum of peers agrees: the search need not end.
    advance(3 * MINUTE);
    dht.has(1, []);
    let visit = tokio::spawn(names.resolve(&name(1)));
    until("a search starts", || dht.searches() == 3).await;
    (0..QUORUM).for_each(|_| dht.finds(signed(1, 2, &to("new"))));
    let resolution = visit.await.expect("no panics").expect("found");
    assert_eq!((resolution.segments.join("/").as_str(), resolution.stale), ("new", None));
    assert!(!dht.all_dropped(), "the search continues in the background");
    dht.end_searches();
    idle(&names).await;
    // One peer has nothing newer, and no other peer answers within the wait for a quorum.
    advance(3 * MINUTE);
    let visit = tokio::spawn(names.resolve(&name(1)));
    until("a search starts", || dht.searches() == 4).await;
    dht.finds(signed(1, 2, &to("new")));
    let resolution = visit.await.expect("no panics").expect("found");
    assert_eq!((resolution.segments.join("/").as_str(), resolution.stale), ("new", None));
    assert!(!dht.all_dropped(), "the search continues in the background");
}

#[tokio::test]
async fn one_peer_without_a_newer_record_does_not_make_a_stale_answer_fresh() {
    let (dht, names) = stale_for_long().await;
    // The first answer is the old record.
    let visits = [0; 2].map(|_| tokio::spawn(names.resolve(&name(1))));
    let has_answer = || names.inner.cache.get(&name(1)).is_some_and(|entry| entry.confirmations == 1);
    until("the first peer has answered", || dht.searches() == 2 && has_answer()).await;
    let later = tokio::spawn(names.resolve(&name(1)));
    let entry = names.inner.cache.get(&name(1)).expect("is known");
    assert!(matches!(names.inner.freshness(&entry), Freshness::Stale { wait: true, .. }));
    dht.finds(signed(1, 2, &to("new")));
    for visit in visits.into_iter().chain([later]) {
        assert_eq!(visit.await.expect("no panics").expect("found").segments, ["new"]);
    }
    dht.end_searches();
    idle(&names).await;
    // A search that ends with one answer has asked all peers.
    advance(3 * MINUTE);
    let visit = tokio::spawn(names.resolve(&name(1)));
    until("a search starts", || dht.searches() == 3).await;
    dht.finds(signed(1, 1, &to("old")));
    dht.end_searches();
    let resolution = visit.await.expect("no panics").expect("found");
    assert_eq!((resolution.segments.join("/").as_str(), resolution.stale), ("new", None));
}

#[tokio::test]
async fn the_wait_for_a_refresh_is_bounded_and_the_stale_answer_has_its_age() {
    let dht = Dht::open();
    let wait = Duration::from_millis(100);
    let staleness = Staleness { while_revalidate: MINUTE, if_error: 20 * MINUTE };
    let options = NamesOptions { refresh_wait: wait, staleness, ..NamesOptions::default() };
    let names = names_with(options, &dht, Zone::default());
    dht.has(1, [signed(1, 1, &to("old"))]);
    resolved(&names, &name(1)).await;
    dht.end_searches();
    idle(&names).await;
    dht.has(1, []);
    advance(10 * MINUTE);
    let begun = Instant::now();
    let (value, age) = resolved(&names, &name(1)).await;
    assert!(value == "old" && age >= Some(10 * MINUTE), "{value} {age:?}");
    assert!(begun.elapsed() >= wait, "the request waited");
    assert_eq!((dht.searches(), dht.all_dropped()), (2, false), "the search continues in the background");
    // Requests during the same search wait no longer, because the bound counts from the start of the search.
    let begun = Instant::now();
    assert_eq!(resolved(&names, &name(1)).await.0, "old");
    assert!(begun.elapsed() < AT_ONCE && dht.searches() == 2);
    dht.end_searches();
    idle(&names).await;
    assert_eq!(resolved(&names, &name(1)).await.0, "old");
    assert_eq!(dht.searches(), 2, "after a failed search there is a back-off");
    advance(MINUTE);
    let visit = tokio::spawn(names.resolve(&name(1)));
    until("another search starts", || dht.searches() == 3).await;
    dht.finds(signed(1, 2, &to("new")));
    visit.await.expect("no panics").expect("an answer");
    let is_fresh = || names.explain(&name(1)).first().is_some_and(|step| step.fresh_for.is_some());
    until("a late record is used", is_fresh).await;
    assert_eq!(resolved(&names, &name(1)).await, ("new".to_owned(), None));
    dht.end_searches();
    idle(&names).await;
    advance(22 * MINUTE);
    let visit = tokio::spawn(names.resolve(&name(1)));
    until("another search starts", || dht.searches() == 4).await;
    dht.end_searches();
    let gone = visit.await.expect("no panics");
    assert!(matches!(gone, Err(NameError::NoRecord { .. })), "too stale, although it is valid: {gone:?}");
}

#[tokio::test]
async fn a_record_that_this_node_stores_for_the_dht_makes_nothing_fresh() {
    let dht = Arc::new(Dht::default());
    dht.keeps(signed(1, 1, &to("old")));
    let names = names_with(patient(), &dht, Zone::default());
    assert_eq!(resolved(&names, &name(1)).await, ("old".to_owned(), None), "it is an answer for an uncached name");
    idle(&names).await;
    advance(10 * MINUTE);
    let (value, age) = resolved(&names, &name(1)).await;
    assert!(value == "old" && age >= Some(10 * MINUTE), "{value} {age:?}");
    idle(&names).await;
    dht.keeps(signed(1, 2, &to("new")));
    advance(MINUTE);
    assert_eq!(resolved(&names, &name(1)).await, ("new".to_owned(), None), "unless it is newer");
}

/// A DNS whose answers change.
#[derive(Clone, Default)]
struct ChangingZone(Arc<std::sync::Mutex<Option<Result<String, String>>>>);

impl ChangingZone {
    fn set(&self, what: Option<Result<&str, &str>>) {
        *self.0.lock().expect("no panics") = what.map(|what| what.map(str::to_owned).map_err(str::to_owned));
    }
}

impl DnsLinkSource for ChangingZone {
    fn look_up(&self, domain: Domain) -> BoxFuture<'static, dns::DnsAnswer> {
        let outcome = match self.0.lock().expect("no panics").clone() {
            Some(Ok(link)) => Ok(Answer::Link(link.into())),
            Some(Err(reason)) => Err(NameError::Dns { domain, reason }),
            None => Err(NameError::NoDnsLink { domain }),
        };
        async move { (outcome, MINUTE) }.boxed()
    }
}

#[tokio::test]
async fn dnslinks_have_the_same_staleness_limits() {
    let zone = ChangingZone::default();
    let names = Names::with(patient(), None, Some(Arc::new(zone.clone())), CLOCK, &mut Registry::default());
    let site = domain("a.example.org");
    zone.set(Some(Ok(&to("a"))));
    assert_eq!(resolved(&names, &site).await, ("a".to_owned(), None));
    zone.set(Some(Ok(&to("b"))));
    idle(&names).await;
    advance(MINUTE + MINUTE / 2);
    let (value, age) = resolved(&names, &site).await;
    assert!(value == "a" && age >= Some(MINUTE), "returned at once: {value} {age:?}");
    idle(&names).await;
    assert_eq!(resolved(&names, &site).await, ("b".to_owned(), None), "refreshed in the background");
    zone.set(Some(Ok(&to("c"))));
    advance(3 * MINUTE);
    assert_eq!(resolved(&names, &site).await, ("c".to_owned(), None), "later the request waits");
    // The DNS fails: the last answer is returned with its age.
    zone.set(Some(Err("no server answers")));
    idle(&names).await;
    advance(10 * MINUTE);
    let (value, age) = resolved(&names, &site).await;
    assert!(value == "c" && age >= Some(10 * MINUTE), "{value} {age:?}");
    // The DNS works again, and has no DNSLink any more.
    zone.set(None);
    idle(&names).await;
    advance(MINUTE);
    assert!(matches!(names.resolve(&site).await, Err(NameError::NoDnsLink { .. })), "not a DNS failure");
    idle(&names).await;
    zone.set(Some(Err("no server answers")));
    advance(2 * MINUTE);
    assert!(matches!(names.resolve(&site).await, Err(NameError::Dns { .. })), "a removed link is not returned");
}

#[test]
fn freshness_depends_on_the_age_alone() {
    let (start, wall, seconds) = (Instant::now(), SystemTime::now(), Duration::from_secs);
    let staleness = Staleness { while_revalidate: seconds(60), if_error: seconds(600) };
    let record = |lives: u64| {
        let bytes = signed_until(1, 1, &to("a"), wall + seconds(lives));
        Ok(Answer::Record(Record::verify(&key(1), bytes).expect("a record")))
    };
    let link = || Ok(Answer::Link(to("a").into()));
    let stale = |ttl, wait| Freshness::Stale { ttl: seconds(ttl), refresh: true, wait };
    // An answer with a time to live of a minute, its age, and its freshness.
    let table: [(Result<Answer, NameError>, u64, Freshness); 16] = [
        (record(3_600), 0, Freshness::Fresh(seconds(60))),
        (record(3_600), 59, Freshness::Fresh(seconds(1))),
        (record(3_600), 60, stale(5, false)),
        (record(3_600), 119, stale(5, false)),
        (record(3_600), 120, stale(5, true)),
        (record(3_600), 659, stale(5, true)),
        (record(3_600), 660, Freshness::Expired),
        (record(122), 120, stale(2, true)),
        (record(30), 10, Freshness::Fresh(seconds(20))),
        (record(100), 101, Freshness::Expired),
        (link(), 59, Freshness::Fresh(seconds(1))),
        (link(), 60, stale(5, false)),
        (link(), 120, stale(5, true)),
        (link(), 660, Freshness::Expired),
        (Err(NameError::Busy), 59, Freshness::Fresh(seconds(1))),
        (Err(NameError::Busy), 60, Freshness::Expired),
    ];
    let whole = |ttl: Duration| seconds(ttl.as_secs_f64().round() as u64);
    let cache = Cache::new(16, staleness);
    for (outcome, age, expected) in table {
        let entry = CacheEntry::new(outcome.clone(), MINUTE, start);
        let freshness = cache.freshness(&entry, start + seconds(age), wall + seconds(age));
        // The end of life of a record has another precision than the clock.
        let rounded = match freshness {
            Freshness::Fresh(ttl) => Freshness::Fresh(whole(ttl)),
            Freshness::Stale { ttl, refresh, wait } => Freshness::Stale { ttl: whole(ttl), refresh, wait },
            Freshness::Expired => Freshness::Expired,
        };
        assert_eq!(rounded, expected, "{outcome:?} after {age} s");
        if let Ok(Answer::Record(record)) = outcome {
            let kept = CacheEntry::saved(record, seconds(age), start);
            assert_eq!(cache.freshness(&kept, start, wall + seconds(age)), freshness, "a restart makes no difference");
        }
    }
    let never = Cache::new(16, Staleness { while_revalidate: Duration::ZERO, if_error: Duration::ZERO });
    let entry = CacheEntry::new(link(), MINUTE, start);
    assert_eq!(never.freshness(&entry, start + MINUTE, wall), Freshness::Expired, "staleness is disabled");
}
