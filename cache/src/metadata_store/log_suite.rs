//! The contract of [`MetadataLog`], as a suite of checks for the tests of every implementation, in whichever crate.
//!
//! A check opens logs with a function of the caller: a new, empty log each time, as so many members that share it. It
//! panics if the contract is violated.

use super::Change;
use super::log::{Appended, LogPosition, MetadataLog};
use futures::future::{FutureExt as _, join_all};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Opens a new, empty log, and returns so many members that share it.
pub type OpenLog<'a> = &'a (dyn Fn(usize) -> Vec<Arc<dyn MetadataLog>> + Sync);

/// How long a hint may take.
const HINT_TIMEOUT: Duration = Duration::from_secs(30);

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// A member, and what it knows of the records.
#[derive(Debug, Clone)]
struct Member {
    log: Arc<dyn MetadataLog>,
    position: LogPosition,
    records: Records,
}

impl Member {
    fn new(log: Arc<dyn MetadataLog>) -> Self {
        let (position, records) = read(&log);
        Self { log, position, records }
    }

    /// Appends what is decided on the records, as often as others have appended first. Returns how often that was.
    async fn append(&mut self, mut decide: impl FnMut(&Records) -> Vec<Change>) -> usize {
        for behind in 0.. {
            let changes = decide(&self.records);
            if self.try_append(changes).await {
                return behind;
            }
        }
        unreachable!("it appends in the end")
    }

    /// Appends, or learns what others have appended.
    async fn try_append(&mut self, changes: Vec<Change>) -> bool {
        let is_empty = changes.is_empty();
        match self.log.append(self.position, changes.clone()).await.expect("appends") {
            Appended::At(position) => {
                assert_eq!(position > self.position, !is_empty, "only changes move the log");
                apply(&mut self.records, &changes);
                self.position = position;
                return true;
            }
            Appended::Behind(entries) => {
                assert!(!entries.is_empty(), "a member that is behind is told by what");
                for entry in entries {
                    assert!(entry.position > self.position, "entries are in order, after the position of the member");
                    assert!(!entry.changes.is_empty());
                    apply(&mut self.records, &entry.changes);
                    self.position = entry.position;
                }
            }
            Appended::Truncated => (self.position, self.records) = read(&self.log),
        }
        false
    }

    async fn catch_up(&mut self) {
        while !self.try_append(Vec::new()).await {}
    }
}

fn read(log: &Arc<dyn MetadataLog>) -> (LogPosition, Records) {
    let mut records = Vec::new();
    let position = log.read(&mut |key, value| records.push((key.to_vec(), value.to_vec()))).expect("reads");
    assert!(records.is_sorted_by(|one, other| one.0 < other.0), "records are read in the order of keys");
    (position, records.into_iter().collect())
}

fn apply(records: &mut Records, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Put(key, value) => _ = records.insert(key.clone(), value.clone()),
            Change::Delete(key) => _ = records.remove(key),
        }
    }
}

fn put(key: &str, value: impl ToString) -> Change {
    Change::Put(key.into(), value.to_string().into())
}

fn delete(key: &str) -> Change {
    Change::Delete(key.into())
}

/// Runs every check except [`an_error_hides_no_entry`], which needs logs that fail.
pub async fn check_all(open: OpenLog<'_>) {
    an_entry_is_applied_in_order_and_read(open).await;
    nothing_is_written_behind_others(open).await;
    an_append_of_nothing_tells_what_others_appended(open).await;
    concurrent_decisions_lose_no_change(open).await;
    random_histories_end_in_the_same_records(open).await;
    a_dropped_append_is_not_overlooked(open).await;
    a_read_is_of_one_position(open).await;
    a_hint_follows_every_append(open).await;
}

/// Changes of an entry are applied in their order.
pub async fn an_entry_is_applied_in_order_and_read(open: OpenLog<'_>) {
    let log = open(1).remove(0);
    let mut member = Member::new(Arc::clone(&log));
    assert_eq!(member.records, Records::new(), "it is empty");
    let changes =
        vec![put("a/1", "one"), put("b", 1), put("a/2", "two"), put("a/1", "uno"), delete("b"), delete("never there")];
    assert_eq!(member.append(|_| changes.clone()).await, 0, "the only member is never behind");
    let expected = [("a/1", "uno"), ("a/2", "two")].map(|(key, value)| (key.into(), value.into()));
    assert_eq!(read(&log), (member.position, expected.into()));
    assert_eq!(member.append(|_| vec![put("\u{0}\u{7f}", ""), delete("a/1")]).await, 0);
    assert_eq!(read(&log), (member.position, member.records.clone()));
}

/// An append after a former position changes no record.
pub async fn nothing_is_written_behind_others(open: OpenLog<'_>) {
    let mut members: Vec<Member> = open(2).into_iter().map(Member::new).collect();
    members[0].append(|_| vec![put("a", 1), put("b", 1)]).await;
    assert!(!members[1].try_append(vec![put("a", 2), delete("b")]).await, "it is behind");
    assert_eq!((members[1].position, &members[1].records), (members[0].position, &members[0].records));
    assert_eq!(read(&members[0].log).1, members[0].records);
    assert!(members[1].try_append(vec![put("a", 2), delete("b")]).await, "it no longer is");
    assert!(!members[0].try_append(vec![put("a", 3)]).await);
    assert_eq!(members[0].records, Records::from([("a".into(), "2".into())]));
}

/// An append without changes is a poll.
pub async fn an_append_of_nothing_tells_what_others_appended(open: OpenLog<'_>) {
    let mut members: Vec<Member> = open(3).into_iter().map(Member::new).collect();
    for number in 0..20 {
        let (at, position) = (number % 2, members[2].position);
        members[at].append(|_| vec![put(&number.to_string(), number)]).await;
        assert_eq!(members[at].records.len(), number + 1);
        assert!(members[2].position == position, "it is not told");
    }
    let position = read(&members[0].log).0;
    members[2].catch_up().await;
    assert_eq!((members[2].position, members[2].records.len()), (position, 20));
    members[2].catch_up().await;
    assert_eq!(read(&members[0].log).0, position, "nothing was appended");
}

/// Members that count together lose no count.
pub async fn concurrent_decisions_lose_no_change(open: OpenLog<'_>) {
    const MEMBERS: usize = 4;
    const EACH: usize = 25;
    let logs = open(MEMBERS);
    let counting = logs.iter().map(|log| {
        let mut member = Member::new(Arc::clone(log));
        tokio::spawn(async move {
            for _ in 0..EACH {
                let next = |records: &Records| {
                    let count = records.get("count".as_bytes()).map_or(0, |text| parse(text));
                    vec![put("count", count + 1)]
                };
                member.append(next).await;
            }
        })
    });
    join_all(counting).await.into_iter().for_each(|counted| counted.expect("counts"));
    let (position, records) = read(&logs[0]);
    assert_eq!(parse(&records["count".as_bytes()]), MEMBERS * EACH);
    assert_eq!(Member::new(Arc::clone(&logs[MEMBERS - 1])).position, position);
}

fn parse(text: &[u8]) -> usize {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).expect("a number")
}

/// Whatever members append in whatever order, they all know the same records in the end, which are those that are read.
pub async fn random_histories_end_in_the_same_records(open: OpenLog<'_>) {
    for seed in 0..20 {
        let mut random = Random(seed);
        let mut members: Vec<Member> = open(3).into_iter().map(Member::new).collect();
        let mut model = Records::new();
        for _ in 0..60 {
            let at = random.below(3);
            if random.below(4) == 0 {
                members[at].catch_up().await;
                assert_eq!(members[at].records, model, "seed {seed}");
                continue;
            }
            let one = |random: &mut Random| match (random.below(8).to_string(), random.below(3)) {
                (key, 0) => delete(&key),
                (key, _) => put(&key, random.below(1000)),
            };
            let changes: Vec<Change> = (0..=random.below(3)).map(|_| one(&mut random)).collect();
            if members[at].try_append(changes.clone()).await {
                apply(&mut model, &changes);
            }
        }
        for member in &mut members {
            member.catch_up().await;
            assert_eq!((&member.records, read(&member.log).1), (&model, model.clone()), "seed {seed}");
        }
    }
}

/// A caller that does not wait for the result of an append learns it with its next one.
pub async fn a_dropped_append_is_not_overlooked(open: OpenLog<'_>) {
    let mut member = Member::new(open(1).remove(0));
    for number in 0..50 {
        let append = member.log.append(member.position, vec![put(&number.to_string(), number)]);
        // Begun, and dropped before it ends.
        _ = append.now_or_never();
        member.append(|records| vec![put("seen", records.len())]).await;
        assert_eq!(read(&member.log), (member.position, member.records.clone()));
    }
}

/// What is read while another member appends is the state at the position that is returned.
pub async fn a_read_is_of_one_position(open: OpenLog<'_>) {
    const ENTRIES: usize = 50;
    // The first and the last key are far apart.
    const KEYS: usize = 40;
    let (mut logs, is_over) = (open(2), Arc::new(AtomicBool::new(false)));
    let (reading, ends) = (logs.remove(1), Arc::clone(&is_over));
    let reads = tokio::task::spawn_blocking(move || {
        let mut found = BTreeSet::new();
        while !ends.load(Ordering::Relaxed) {
            let (position, records) = read(&reading);
            let numbers: BTreeSet<usize> = records.values().map(|number| parse(number)).collect();
            assert!(numbers.len() <= 1 && [0, KEYS].contains(&records.len()), "a read is of one state: {numbers:?}");
            found.insert((position, numbers.first().copied()));
            std::thread::yield_now();
        }
        found
    });
    let mut member = Member::new(logs.remove(0));
    let mut appended = BTreeSet::from([(member.position, None)]);
    for number in 0..ENTRIES {
        member.append(|_| (0..KEYS).map(|key| put(&format!("{key:03}"), number)).collect()).await;
        appended.insert((member.position, Some(number)));
    }
    is_over.store(true, Ordering::Relaxed);
    let found = reads.await.expect("reads");
    assert!(found.is_subset(&appended), "{:?}", found.difference(&appended).collect::<Vec<_>>());
}

/// A member whose append has failed learns with its next one whether the changes were appended. `open` opens logs that
/// fail some appends of changes: before the changes are appended, and afterwards.
pub async fn an_error_hides_no_entry(open: OpenLog<'_>) {
    let mut member = Member::new(open(1).remove(0));
    let (mut lost, mut appended) = (0, 0);
    for number in 0..100 {
        let changes = vec![put(&(number % 7).to_string(), number)];
        match member.log.append(member.position, changes.clone()).await {
            Ok(Appended::At(position)) => {
                apply(&mut member.records, &changes);
                member.position = position;
            }
            Ok(other) => panic!("the only member is behind: {other:?}"),
            Err(_) => {
                let (before, mut expected) = (member.records.clone(), member.records.clone());
                apply(&mut expected, &changes);
                member.catch_up().await;
                assert!([&before, &expected].contains(&&member.records), "all of the changes, or none");
                *(if member.records == expected { &mut appended } else { &mut lost }) += 1;
            }
        }
        assert_eq!(read(&member.log), (member.position, member.records.clone()));
    }
    assert!(lost > 0 && appended > 0, "{lost} and {appended}");
}

/// Where others can append, a member that waits is woken.
pub async fn a_hint_follows_every_append(open: OpenLog<'_>) {
    let mut members: Vec<Member> = open(2).into_iter().map(Member::new).collect();
    let mut latest = members[1].log.watch().expect("a log of two members has hints");
    for number in 0..3 {
        members[0].append(|_| vec![put("a", number)]).await;
        let position = members[0].position;
        let hint = latest.wait_for(|latest| *latest >= position);
        drop(tokio::time::timeout(HINT_TIMEOUT, hint).await.expect("a hint").expect("the log is open"));
        members[1].catch_up().await;
        assert_eq!(members[1].position, position);
    }
}

/// Pseudo-random numbers by SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end).unwrap_or_default()
    }
}
