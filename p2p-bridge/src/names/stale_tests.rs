//! How stale an answer may be: with the scripted DHT and DNS, and the clock that tests set forward.

use super::cache::{AGREED, Answer, Cache, Entry, Standing};
use super::dns::{self, Links};
use super::tests::{
    CLOCK, Dht, HOUR, MINUTE, Zone, advance, domain, key, name, names_with, signed, signed_until, to, until,
};
use super::*;
use content::names::Domain;
use prometheus_client::registry::Registry;

/// An answer that waits for nobody takes no longer than this.
const AT_ONCE: Duration = Duration::from_secs(2);

/// The last segment that a name leads to, and how old that is if it is stale.
async fn says(names: &Names, name: &Name) -> (String, Option<Duration>) {
    let resolution = names.resolve(name).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    (resolution.segments.join("/"), resolution.stale)
}

/// Options under which nothing but the refresh's own end is waited for.
fn patient() -> NamesOptions {
    NamesOptions { refresh_wait: HOUR, ..NamesOptions::default() }
}

async fn idle(names: &Names) {
    until("no look-up is under way", || names.inner.flights.under_way() == 0).await;
}

/// A name whose cached record is so stale that a visit waits for a refresh, and a DHT that answers as tests tell it to.
async fn stale_for_long() -> (Arc<Dht>, Arc<Names>) {
    let dht = Dht::open();
    dht.has(1, [signed(1, 1, &to("old"))]);
    let names = names_with(patient(), &dht, Zone::default());
    says(&names, &name(1)).await;
    dht.end_searches();
    idle(&names).await;
    advance(3 * MINUTE);
    (dht, names)
}

#[tokio::test]
async fn a_visit_long_after_the_time_to_live_waits_for_what_is_published_now() {
    let dht = Arc::new(Dht::default());
    dht.has(1, [signed(1, 1, &to("old"))]);
    let names = names_with(patient(), &dht, Zone::default());
    assert_eq!(says(&names, &name(1)).await, ("old".to_owned(), None));
    idle(&names).await;
    dht.has(1, [signed(1, 2, &to("new"))]);
    advance(MINUTE + MINUTE / 2);
    let (value, age) = says(&names, &name(1)).await;
    assert!(value == "old" && age >= Some(MINUTE), "shortly after its time it is told at once: {value} {age:?}");
    idle(&names).await;
    dht.has(1, [signed(1, 3, &to("newer"))]);
    advance(MINUTE + MINUTE);
    assert_eq!(says(&names, &name(1)).await, ("newer".to_owned(), None), "later the refresh is waited for");
}

#[tokio::test]
async fn a_refresh_that_is_waited_for_hears_more_than_the_first_peer() {
    let (dht, names) = stale_for_long().await;
    // The first that answers has not heard of the new record yet.
    let visit = tokio::spawn(names.resolve(&name(1)));
    until("it is searched for", || dht.searches() == 2).await;
    dht.finds(signed(1, 2, &to("new")));
    assert_eq!(visit.await.expect("no panics").expect("found").segments, ["new"]);
    dht.end_searches();
    idle(&names).await;
    // Enough peers agree: the search need not end.
    advance(3 * MINUTE);
    dht.has(1, []);
    let visit = tokio::spawn(names.resolve(&name(1)));
    until("it is searched for", || dht.searches() == 3).await;
    (0..AGREED).for_each(|_| dht.finds(signed(1, 2, &to("new"))));
    let resolution = visit.await.expect("no panics").expect("found");
    assert_eq!((resolution.segments.join("/").as_str(), resolution.stale), ("new", None));
    assert!(!dht.is_left(), "the search goes on behind");
    dht.end_searches();
    idle(&names).await;
    // One peer says that nothing is new, and no other says anything: a moment is waited for others.
    advance(3 * MINUTE);
    let visit = tokio::spawn(names.resolve(&name(1)));
    until("it is searched for", || dht.searches() == 4).await;
    dht.finds(signed(1, 2, &to("new")));
    let resolution = visit.await.expect("no panics").expect("found");
    assert_eq!((resolution.segments.join("/").as_str(), resolution.stale), ("new", None));
    assert!(!dht.is_left(), "the search goes on behind");
}

#[tokio::test]
async fn one_peer_that_has_heard_nothing_makes_a_stale_answer_fresh_to_nobody() {
    let (dht, names) = stale_for_long().await;
    // Its first answer is the old record.
    let visits = [0; 2].map(|_| tokio::spawn(names.resolve(&name(1))));
    let heard = || names.inner.cache.get(&name(1)).is_some_and(|entry| entry.agreed == 1);
    until("the first peer has answered", || dht.searches() == 2 && heard()).await;
    let later = tokio::spawn(names.resolve(&name(1)));
    let entry = names.inner.cache.get(&name(1)).expect("is known");
    assert!(matches!(names.inner.standing(&entry), Standing::Stale { wait: true, .. }));
    dht.finds(signed(1, 2, &to("new")));
    for visit in visits.into_iter().chain([later]) {
        assert_eq!(visit.await.expect("no panics").expect("found").segments, ["new"]);
    }
    dht.end_searches();
    idle(&names).await;
    // A search that ends with one answer has asked everybody.
    advance(3 * MINUTE);
    let visit = tokio::spawn(names.resolve(&name(1)));
    until("it is searched for", || dht.searches() == 3).await;
    dht.finds(signed(1, 1, &to("old")));
    dht.end_searches();
    let resolution = visit.await.expect("no panics").expect("found");
    assert_eq!((resolution.segments.join("/").as_str(), resolution.stale), ("new", None));
}

#[tokio::test]
async fn a_refresh_that_does_not_come_is_waited_for_up_to_a_bound_and_the_answer_tells_its_age() {
    let dht = Dht::open();
    let wait = Duration::from_millis(100);
    let staleness = Staleness { while_revalidate: MINUTE, if_error: 20 * MINUTE };
    let options = NamesOptions { refresh_wait: wait, staleness, ..NamesOptions::default() };
    let names = names_with(options, &dht, Zone::default());
    dht.has(1, [signed(1, 1, &to("old"))]);
    says(&names, &name(1)).await;
    dht.end_searches();
    idle(&names).await;
    dht.has(1, []);
    advance(10 * MINUTE);
    let begun = Instant::now();
    let (value, age) = says(&names, &name(1)).await;
    assert!(value == "old" && age >= Some(10 * MINUTE), "{value} {age:?}");
    assert!(begun.elapsed() >= wait, "it was waited for");
    assert_eq!((dht.searches(), dht.is_left()), (2, false), "the search goes on behind");
    // Whoever comes while that search goes on waits no longer, for it has been given its time.
    let begun = Instant::now();
    assert_eq!(says(&names, &name(1)).await.0, "old");
    assert!(begun.elapsed() < AT_ONCE && dht.searches() == 2);
    dht.end_searches();
    idle(&names).await;
    assert_eq!(says(&names, &name(1)).await.0, "old");
    assert_eq!(dht.searches(), 2, "after a search in vain it is left in peace for a while");
    advance(MINUTE);
    let visit = tokio::spawn(names.resolve(&name(1)));
    until("it is searched for again", || dht.searches() == 3).await;
    dht.finds(signed(1, 2, &to("new")));
    visit.await.expect("no panics").expect("an answer");
    let is_fresh = || names.explain(&name(1)).first().is_some_and(|step| step.fresh_for.is_some());
    until("what comes late counts", is_fresh).await;
    assert_eq!(says(&names, &name(1)).await, ("new".to_owned(), None));
    dht.end_searches();
    idle(&names).await;
    advance(22 * MINUTE);
    let visit = tokio::spawn(names.resolve(&name(1)));
    until("it is searched for again", || dht.searches() == 4).await;
    dht.end_searches();
    let gone = visit.await.expect("no panics");
    assert!(matches!(gone, Err(NameError::NoRecord { .. })), "too old to be told, though it is valid: {gone:?}");
}

#[tokio::test]
async fn a_copy_that_this_node_keeps_for_the_dht_makes_nothing_fresh() {
    let dht = Arc::new(Dht::default());
    dht.keeps(signed(1, 1, &to("old")));
    let names = names_with(patient(), &dht, Zone::default());
    assert_eq!(says(&names, &name(1)).await, ("old".to_owned(), None), "it is good for a name that nobody knew");
    idle(&names).await;
    advance(10 * MINUTE);
    let (value, age) = says(&names, &name(1)).await;
    assert!(value == "old" && age >= Some(10 * MINUTE), "{value} {age:?}");
    idle(&names).await;
    dht.keeps(signed(1, 2, &to("new")));
    advance(MINUTE);
    assert_eq!(says(&names, &name(1)).await, ("new".to_owned(), None), "unless it is newer");
}

/// A DNS whose answers change.
#[derive(Clone, Default)]
struct Registrar(Arc<std::sync::Mutex<Option<Result<String, String>>>>);

impl Registrar {
    fn says(&self, what: Option<Result<&str, &str>>) {
        *self.0.lock().expect("no panics") = what.map(|what| what.map(str::to_owned).map_err(str::to_owned));
    }
}

impl Links for Registrar {
    fn look_up(&self, domain: Domain) -> BoxFuture<'static, dns::Looked> {
        let outcome = match self.0.lock().expect("no panics").clone() {
            Some(Ok(link)) => Ok(Answer::Link(link.into())),
            Some(Err(reason)) => Err(NameError::Dns { domain, reason }),
            None => Err(NameError::NoDnsLink { domain }),
        };
        async move { (outcome, MINUTE) }.boxed()
    }
}

#[tokio::test]
async fn dnslinks_are_stale_within_the_same_bounds() {
    let zone = Registrar::default();
    let names = Names::with(patient(), None, Some(Arc::new(zone.clone())), CLOCK, &mut Registry::default());
    let site = domain("a.example.org");
    zone.says(Some(Ok(&to("a"))));
    assert_eq!(says(&names, &site).await, ("a".to_owned(), None));
    zone.says(Some(Ok(&to("b"))));
    idle(&names).await;
    advance(MINUTE + MINUTE / 2);
    let (value, age) = says(&names, &site).await;
    assert!(value == "a" && age >= Some(MINUTE), "at once: {value} {age:?}");
    idle(&names).await;
    assert_eq!(says(&names, &site).await, ("b".to_owned(), None), "it was refreshed behind");
    zone.says(Some(Ok(&to("c"))));
    advance(3 * MINUTE);
    assert_eq!(says(&names, &site).await, ("c".to_owned(), None), "later it is waited for");
    // The DNS fails: what it said last is told, with its age.
    zone.says(Some(Err("no server answers")));
    idle(&names).await;
    advance(10 * MINUTE);
    let (value, age) = says(&names, &site).await;
    assert!(value == "c" && age >= Some(10 * MINUTE), "{value} {age:?}");
    // It works again, and says that there is no link any more.
    zone.says(None);
    idle(&names).await;
    advance(MINUTE);
    assert!(matches!(names.resolve(&site).await, Err(NameError::NoDnsLink { .. })), "that is no failure");
    idle(&names).await;
    zone.says(Some(Err("no server answers")));
    advance(2 * MINUTE);
    assert!(matches!(names.resolve(&site).await, Err(NameError::Dns { .. })), "what ended is not brought back");
}

#[test]
fn how_good_an_answer_is_follows_from_its_age_alone() {
    let (start, wall, seconds) = (Instant::now(), SystemTime::now(), Duration::from_secs);
    let staleness = Staleness { while_revalidate: seconds(60), if_error: seconds(600) };
    let record = |lives: u64| {
        let bytes = signed_until(1, 1, &to("a"), wall + seconds(lives));
        Ok(Answer::Record(Record::verify(&key(1), bytes).expect("a record")))
    };
    let link = || Ok(Answer::Link(to("a").into()));
    let stale = |ttl, wait| Standing::Stale { ttl: seconds(ttl), refresh: true, wait };
    // What was learnt for a minute, how long ago that is, and how good it is now.
    let table: [(Result<Answer, NameError>, u64, Standing); 16] = [
        (record(3_600), 0, Standing::Fresh(seconds(60))),
        (record(3_600), 59, Standing::Fresh(seconds(1))),
        (record(3_600), 60, stale(5, false)),
        (record(3_600), 119, stale(5, false)),
        (record(3_600), 120, stale(5, true)),
        (record(3_600), 659, stale(5, true)),
        (record(3_600), 660, Standing::Gone),
        (record(122), 120, stale(2, true)),
        (record(30), 10, Standing::Fresh(seconds(20))),
        (record(100), 101, Standing::Gone),
        (link(), 59, Standing::Fresh(seconds(1))),
        (link(), 60, stale(5, false)),
        (link(), 120, stale(5, true)),
        (link(), 660, Standing::Gone),
        (Err(NameError::Busy), 59, Standing::Fresh(seconds(1))),
        (Err(NameError::Busy), 60, Standing::Gone),
    ];
    let whole = |ttl: Duration| seconds(ttl.as_secs_f64().round() as u64);
    let cache = Cache::new(16, staleness);
    for (outcome, age, expected) in table {
        let entry = Entry::new(outcome.clone(), MINUTE, start);
        let standing = cache.standing(&entry, start + seconds(age), wall + seconds(age));
        // A record's end of life has other digits than a clock.
        let rounded = match standing {
            Standing::Fresh(ttl) => Standing::Fresh(whole(ttl)),
            Standing::Stale { ttl, refresh, wait } => Standing::Stale { ttl: whole(ttl), refresh, wait },
            Standing::Gone => Standing::Gone,
        };
        assert_eq!(rounded, expected, "{outcome:?} after {age} s");
        if let Ok(Answer::Record(record)) = outcome {
            let kept = Entry::kept(record, seconds(age), start);
            assert_eq!(cache.standing(&kept, start, wall + seconds(age)), standing, "a restart makes no difference");
        }
    }
    let never = Cache::new(16, Staleness { while_revalidate: Duration::ZERO, if_error: Duration::ZERO });
    let entry = Entry::new(link(), MINUTE, start);
    assert_eq!(never.standing(&entry, start + MINUTE, wall), Standing::Gone, "nothing stale is wanted");
}
