//! Filters, pages and times; the duration of listing 10,000 requests.

use crate::pinning::record::PinChange;
use crate::pinning::tests::*;
use crate::pinning::{Filter, Meta, NameMatch, StatusCounts};
use std::time::SystemTime;

fn all() -> Filter {
    Filter { limit: 1000, ..Filter::default() }
}

async fn names(pins: &Pins, filter: &Filter) -> (usize, Vec<String>) {
    let page = pins.list("alice", filter).await;
    let name = |request: &PinRequest| request.name.as_deref().unwrap_or("-").to_owned();
    (page.count, page.requests.iter().map(name).collect())
}

fn meta(pairs: &[(&str, &str)]) -> Meta {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn filters_select_requests() {
    let world = World::new();
    let pins = world.start().await;
    let alice = owner("alice");
    let (here, there) = (dag("here", 0..1), dag("there", 0..1));
    world.upstream.has(&here);
    let ask = async |blocks: &[Block], name: Option<&str>, pairs: &[(&str, &str)]| {
        let wanted = PinParameters { name: name.map(str::to_owned), meta: meta(pairs), ..wanted(blocks) };
        pins.request(&alice, wanted).await.expect("is asked for")
    };
    let a = ask(&here, Some("Alpha"), &[("app", "1"), ("kind", "x")]).await;
    let b = ask(&there, Some("alphabet"), &[("app", "1")]).await;
    let c = ask(&here, Some("ÄRGER"), &[("app", "2")]).await;
    let d = ask(&there, None, &[]).await;
    pins.request(&owner("other"), named(&here, "Alpha")).await.expect("is asked for");
    becomes(&pins, &a, Status::Pinned).await;
    let all_names = || vec!["-".to_owned(), "ÄRGER".to_owned(), "alphabet".to_owned(), "Alpha".to_owned()];
    let called = |name: &str, how| Filter { name: Some((name.to_owned(), how)), ..all() };
    let pick = |which: &[usize]| which.iter().map(|at| all_names()[*at].clone()).collect::<Vec<_>>();
    let v0: Cid = "QmbWqxBEKC3P8tqsKc98xmWNzrzDtRLMiMPL8wBuTGsMnR".parse().expect("a CID");
    let instant = Duration::from_nanos(1);
    let table = [
        ("all", all(), vec![0, 1, 2, 3]),
        ("exact", called("Alpha", NameMatch::Exact), vec![3]),
        ("iexact", called("ALPHA", NameMatch::IgnoringCase), vec![3]),
        ("iexact beyond ASCII", called("ärger", NameMatch::IgnoringCase), vec![1]),
        ("partial", called("lpha", NameMatch::Partial), vec![2, 3]),
        ("partial by case", called("alpha", NameMatch::Partial), vec![2]),
        ("ipartial", called("ALPHA", NameMatch::PartialIgnoringCase), vec![2, 3]),
        ("no such name", called("beta", NameMatch::PartialIgnoringCase), vec![]),
        ("the empty name", called("", NameMatch::Exact), vec![]),
        ("pinned", Filter { statuses: vec![Status::Pinned], ..all() }, vec![1, 3]),
        ("not pinned", Filter { statuses: vec![Status::Queued, Status::Pinning], ..all() }, vec![0, 2]),
        ("failed", Filter { statuses: vec![Status::Failed], ..all() }, vec![]),
        ("a root", Filter { roots: vec![*there[0].cid()], ..all() }, vec![0, 2]),
        ("roots", Filter { roots: vec![*there[0].cid(), *here[0].cid(), v0], ..all() }, vec![0, 1, 2, 3]),
        ("no such root", Filter { roots: vec![v0], ..all() }, vec![]),
        ("meta", Filter { meta: meta(&[("app", "1")]), ..all() }, vec![2, 3]),
        ("all of meta", Filter { meta: meta(&[("app", "1"), ("kind", "x")]), ..all() }, vec![3]),
        ("no such meta", Filter { meta: meta(&[("app", "3")]), ..all() }, vec![]),
        ("before", Filter { before: Some(c.created), ..all() }, vec![2, 3]),
        ("just before", Filter { before: Some(c.created + instant), ..all() }, vec![1, 2, 3]),
        ("after", Filter { after: Some(b.created), ..all() }, vec![0, 1]),
        ("just after", Filter { after: Some(b.created - instant), ..all() }, vec![0, 1, 2]),
        ("between", Filter { after: Some(a.created), before: Some(d.created), ..all() }, vec![1, 2]),
        ("long ago", Filter { before: Some(SystemTime::UNIX_EPOCH), ..all() }, vec![]),
        ("before the epoch", Filter { after: Some(SystemTime::UNIX_EPOCH - instant), ..all() }, vec![0, 1, 2, 3]),
        ("together", Filter { statuses: vec![Status::Pinned], ..called("alpha", NameMatch::IgnoringCase) }, vec![3]),
    ];
    for (what, filter, expected) in table {
        assert_eq!(names(&pins, &filter).await, (expected.len(), pick(&expected)), "{what}");
    }
    let first = Filter { limit: 1, ..all() };
    assert_eq!(names(&pins, &first).await, (4, pick(&[0])), "a page has the number of all matches");
    assert_eq!(pins.list_all(&all()).await.count, 5);
    assert!(pins.list("nobody", &all()).await.requests.is_empty());
}

#[tokio::test]
async fn pages_have_every_request_once() {
    let world = World::new();
    let pins = world.start().await;
    let alice = owner("alice");
    let mut ids = Vec::new();
    for number in 0..60 {
        let request = pins.request(&alice, wanted(&dag(&format!("dag {}", number % 7), 0..1))).await;
        ids.push(request.expect("is asked for").id);
    }
    ids.reverse();
    let walk = async |limit: usize| {
        let mut seen = Vec::new();
        let mut filter = Filter { limit, ..Filter::default() };
        loop {
            let page = pins.list("alice", &filter).await;
            let Some(last) = page.requests.last() else { return seen };
            filter.before = Some(last.created);
            seen.extend(page.requests.into_iter().map(|request| request.id));
        }
    };
    for limit in [1, 7, 10, 60, 1000] {
        assert_eq!(walk(limit).await, ids, "{limit}");
    }
}

/// Counts how often a future yields until it is done.
async fn turns<T>(work: impl Future<Output = T>) -> (T, usize) {
    let (mut work, mut turns) = (std::pin::pin!(work), 0);
    let done = std::future::poll_fn(|context| {
        turns += 1;
        work.as_mut().poll(context)
    });
    let done = done.await;
    (done, turns)
}

#[tokio::test]
async fn long_listings_yield() {
    const COUNT: u64 = 5_000;
    let world = World::new();
    let outcome = crate::pinning::index::PinOutcome::Failed("no peer has it".into());
    let entry =
        |at| model::entry(at, if at % 2 == 0 { "even" } else { "odd" }, *leaf(at % 3).cid(), outcome.clone(), None);
    let changes = (1..=COUNT).map(|at| PinChange::Request(entry(at)).encode().expect("can be written")).collect();
    world.register.write(changes).await.expect("writes");
    let pins = world.start().await;
    let none = Filter { name: Some(("none".to_owned(), NameMatch::PartialIgnoringCase)), ..all() };
    for (filter, count) in [(all(), COUNT), (none, 0)] {
        let (page, turns) = self::turns(pins.list_all(&filter)).await;
        assert_eq!((page.count as u64, page.requests.len() as u64), (count, count.min(1000)));
        assert_eq!(page.by_status, StatusCounts { failed: page.count, ..StatusCounts::default() });
        assert!(turns as u64 >= COUNT / 600, "{turns}");
        assert!(page.requests.windows(2).all(|pair| pair[0].created > pair[1].created), "the newest first");
    }
    // The counts by status are those of the filter apart from its status.
    let pinned = Filter { statuses: vec![Status::Pinned], ..all() };
    let page = pins.list_all(&pinned).await;
    assert_eq!((page.count, page.by_status.failed as u64, page.by_status.pinned), (0, COUNT, 0));
    let (page, turns) = self::turns(pins.list("odd", &all())).await;
    assert!(page.count as u64 == COUNT / 2 && turns as u64 >= COUNT / 2 / 600, "{turns}");
    // By root, requests of other owners are skipped.
    let of_root = Filter { roots: vec![*leaf(1).cid()], ..all() };
    let (page, _) = self::turns(pins.list("odd", &of_root)).await;
    let expected = (1..=COUNT).filter(|at| at % 2 == 1 && at % 3 == 1).count();
    assert_eq!(page.count, expected);
    assert_eq!(pins.list_all(&of_root).await.count, (1..=COUNT).filter(|at| at % 3 == 1).count());
}

/// `cargo test -- --ignored --nocapture ten_thousand` prints the durations.
#[tokio::test]
#[ignore = "prints measurements"]
async fn ten_thousand_are_listed_and_filtered_in_milliseconds() {
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::on_disk(dir.path());
    let blocks = dag("one", 0..1);
    world.upstream.has(&blocks);
    let pins = world.start().await;
    let alice = owner("alice");
    pin(&pins, &alice, wanted(&blocks)).await;
    let begun = Instant::now();
    for number in 0..10_000 {
        let meta = meta(&[("app", &(number % 10).to_string()), ("text", &"x".repeat(100))]);
        let wanted = PinParameters { meta, ..named(&blocks, &format!("Some name {number}")) };
        pins.request(&alice, wanted).await.expect("is asked for");
    }
    println!("10,000 requests were written in {:?}", begun.elapsed());
    let name = |how| Some(("NAME 99".to_owned(), how));
    let table = [
        ("the newest ten", Filter { limit: 10, ..Filter::default() }),
        ("a page of a thousand", all()),
        ("by status", Filter { statuses: vec![Status::Pinned], limit: 10, ..Filter::default() }),
        ("by name, whatever the case", Filter { name: name(NameMatch::PartialIgnoringCase), ..all() }),
        ("by metadata", Filter { meta: meta(&[("app", "3")]), ..all() }),
        ("by root", Filter { roots: vec![*blocks[0].cid()], limit: 10, ..Filter::default() }),
    ];
    for (what, filter) in table {
        let begun = Instant::now();
        let page = pins.list("alice", &filter).await;
        println!("{what}: {} of {} in {:?}", page.requests.len(), page.count, begun.elapsed());
    }
}
