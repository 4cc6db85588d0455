//! The index compared with a simple model of the same requests.

use crate::pinning::index::{Batch, Counts, Index, PinOutcome, RemovalEnd, StoredRequest};
use crate::pinning::record::{PinChange, Work};
use crate::pinning::{PinParameters, Progress};
use content::{Block, Cid};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

const OWNERS: [&str; 3] = ["a", "b", "c"];

fn roots() -> Vec<Cid> {
    (0..4).map(|number| *crate::pinning::tests::leaf(number).cid()).collect()
}

#[derive(Debug, Clone)]
enum Step {
    Insert { owner: usize, root: usize, outcome: u8, keeps: Option<usize> },
    Remove(usize),
    Settle(usize, u8),
    Progress(usize, u64),
    Take,
    End(usize),
    BeginRemoval(usize),
    EndRemoval(usize, bool),
}

fn outcome(number: u8) -> PinOutcome {
    match number {
        0 => PinOutcome::Pending,
        1 => PinOutcome::Pinned,
        2 => PinOutcome::Withheld("a rule".into()),
        _ => PinOutcome::Failed("why".into()),
    }
}

fn step() -> impl Strategy<Value = Step> {
    let insert = (0..3_usize, 0..4_usize, 0..4_u8, proptest::option::of(0..4_usize))
        .prop_map(|(owner, root, outcome, keeps)| Step::Insert { owner, root, outcome, keeps });
    prop_oneof![
        4 => insert,
        2 => (0..32_usize).prop_map(Step::Remove),
        3 => (0..32_usize, 0..4_u8).prop_map(|(which, outcome)| Step::Settle(which, outcome)),
        2 => (0..4_usize, 0..100_u64).prop_map(|(root, bytes)| Step::Progress(root, bytes)),
        2 => Just(Step::Take),
        1 => (0..4_usize).prop_map(Step::End),
        1 => (0..4_usize).prop_map(Step::BeginRemoval),
        1 => (0..4_usize, any::<bool>()).prop_map(|(root, is_removed)| Step::EndRemoval(root, is_removed)),
    ]
}

pub fn entry(number: u64, owner: &str, root: Cid, outcome: PinOutcome, keeps: Option<Cid>) -> StoredRequest {
    StoredRequest {
        id: number.to_string().into(),
        owner: owner.into(),
        wanted: Arc::new(PinParameters::new(root)),
        created_ms: number,
        keeps: keeps.filter(|_| outcome == PinOutcome::Pending),
        outcome,
        bytes_max: None,
        taken_in: false,
    }
}

/// Compares the index with what the list of requests says.
fn compare(
    index: &Index,
    entries: &[StoredRequest],
    progress: &[u64; 4],
    active: &BTreeSet<Cid>,
    removing: &BTreeSet<Cid>,
) {
    let roots = roots();
    let is_pending = |entry: &&StoredRequest| entry.outcome == PinOutcome::Pending;
    let is_live = |entry: &&StoredRequest| !matches!(entry.outcome, PinOutcome::Failed(_));
    let count = |wanted: fn(&PinOutcome) -> bool| entries.iter().filter(|entry| wanted(&entry.outcome)).count() as u64;
    let waiting: BTreeSet<Cid> = entries.iter().filter(is_pending).map(|entry| entry.root).collect();
    let expected = Counts {
        pending: count(|outcome| *outcome == PinOutcome::Pending),
        pinned: count(|outcome| *outcome == PinOutcome::Pinned),
        failed: count(|outcome| matches!(outcome, PinOutcome::Failed(_))),
        withheld: count(|outcome| matches!(outcome, PinOutcome::Withheld(_))),
        incomplete_roots: 0,
        queued_roots: waiting.iter().filter(|root| !active.contains(root) && !removing.contains(root)).count() as u64,
        active_roots: active.len() as u64,
    };
    assert_eq!(index.counts(), expected);
    assert_eq!(index.count_of_all(), entries.len());
    for (root, bytes) in roots.iter().zip(progress) {
        let live = entries.iter().filter(is_live).any(|entry| entry.root == *root);
        let kept = entries.iter().filter(is_pending).any(|entry| entry.keeps == Some(*root));
        assert_eq!(index.is_needed(root), live || kept);
        assert_eq!(index.is_pending(root), waiting.contains(root));
        assert_eq!(index.is_removing(root), removing.contains(root));
        if let Some(known) = index.root(root) {
            assert_eq!(known.progress.bytes, *bytes);
        }
    }
    for owner in OWNERS {
        let own: Vec<_> = entries.iter().filter(|entry| &*entry.owner == owner).collect();
        let live = own.iter().copied().filter(is_live);
        let has: BTreeSet<Cid> = live.map(|entry| entry.root).collect();
        let bytes = roots.iter().zip(progress).filter(|(root, _)| has.contains(root)).map(|(_, bytes)| bytes).sum();
        assert_eq!(index.used(owner), (own.len() as u64, bytes), "{owner}");
        let mut newest: Vec<_> = own.iter().map(|entry| entry.created_ms).collect();
        newest.reverse();
        let times = |batch: Batch<'_>| batch.entries.iter().map(|entry| entry.created_ms).collect::<Vec<_>>();
        assert_eq!(times(index.newest_of(owner, u64::MAX, usize::MAX)), newest);
    }
}

proptest! {
    #[test]
    fn the_index_agrees_with_the_model(steps in proptest::collection::vec(step(), 0..80)) {
        let roots = roots();
        let (mut index, mut entries) = (Index::default(), Vec::<StoredRequest>::new());
        let (mut progress, mut active, mut removing, mut number) = ([0; 4], BTreeSet::new(), BTreeSet::new(), 0);
        let mut numbers = [0; 4];
        for step in steps {
            match step {
                Step::Insert { owner, root, outcome: becomes, keeps } => {
                    number += 1;
                    let keeps = keeps.map(|keeps| roots[keeps]);
                    let entry = entry(number, OWNERS[owner], roots[root], outcome(becomes), keeps);
                    index.insert(entry.clone());
                    entries.push(entry);
                }
                Step::Remove(which) if which < entries.len() => {
                    let entry = entries.remove(which);
                    let released = index.released_by([(Some(&entry), None)]);
                    let to_remove = index.released(&[PinChange::RemoveRequest(Arc::clone(&entry.id))]);
                    let expected = released.iter().filter(|root| !removing.contains(*root));
                    prop_assert_eq!(&to_remove, &expected.copied().collect::<Vec<_>>());
                    let needed: Vec<bool> = roots.iter().map(|root| index.is_needed(root)).collect();
                    prop_assert_eq!(index.remove(&entry.id), Some(entry));
                    let lost = |(root, needed): &(&Cid, bool)| *needed && !index.is_needed(root);
                    let expected = roots.iter().zip(needed).filter(lost).map(|(root, _)| *root);
                    prop_assert_eq!(released.into_iter().collect::<BTreeSet<_>>(), expected.collect::<BTreeSet<Cid>>());
                }
                Step::Settle(which, becomes) if which < entries.len() => {
                    let former = entries[which].clone();
                    let next = outcome(becomes);
                    let keeps = former.keeps.filter(|_| next == PinOutcome::Pending);
                    let next = StoredRequest { outcome: next, keeps, ..former.clone() };
                    let released = index.released_by([(Some(&former), Some(&next))]);
                    let needed: Vec<bool> = roots.iter().map(|root| index.is_needed(root)).collect();
                    prop_assert_eq!(index.settle(&former.id, next.outcome.clone()), Some(next.clone()));
                    let lost = |(root, needed): &(&Cid, bool)| *needed && !index.is_needed(root);
                    let expected = roots.iter().zip(needed).filter(lost).map(|(root, _)| *root);
                    prop_assert_eq!(released.into_iter().collect::<BTreeSet<_>>(), expected.collect::<BTreeSet<Cid>>());
                    entries[which] = next;
                }
                Step::Progress(root, bytes) => {
                    index.set_progress(&roots[root], Progress { blocks: 1, bytes }, false);
                    if index.root(&roots[root]).is_some() && !removing.contains(&roots[root]) {
                        progress[root] = bytes;
                    }
                }
                Step::Take => {
                    if let Some(root) = index.take_next(0, 4) {
                        prop_assert!(active.insert(root), "no worker fetches it yet");
                    }
                }
                Step::BeginRemoval(root) => {
                    let cid = roots[root];
                    let begins = !index.is_needed(&cid) && !active.contains(&cid) && !removing.contains(&cid);
                    let number = index.begin_removal(&cid);
                    prop_assert_eq!(number.is_some(), begins);
                    numbers[root] = number.unwrap_or(numbers[root]);
                    if begins {
                        removing.insert(cid);
                        progress[root] = 0;
                    }
                }
                Step::EndRemoval(root, is_removed) if removing.remove(&roots[root]) => {
                    let end = if is_removed { RemovalEnd::Removed } else { RemovalEnd::Failed };
                    index.end_removal(&roots[root], numbers[root], end);
                }
                Step::End(root) if active.remove(&roots[root]) => index.end_work(&roots[root]),
                _ => {}
            }
            // A root without requests is removed, with its progress.
            for (at, root) in roots.iter().enumerate() {
                if index.root(root).is_none() {
                    progress[at] = 0;
                }
            }
            compare(&index, &entries, &progress, &active, &removing);
        }
    }
}

#[test]
fn owners_take_turns_and_share_the_workers() {
    let blocks: Vec<Block> = (0..12).map(crate::pinning::tests::leaf).collect();
    let mut index = Index::default();
    for (number, block) in blocks.iter().enumerate() {
        let owner = if number < 9 { "busy" } else { "modest" };
        index.insert(entry(number as u64, owner, *block.cid(), PinOutcome::Pending, None));
    }
    let at = |cid: Cid| blocks.iter().position(|block| *block.cid() == cid).expect("one of ours");
    let taken: Vec<_> = (0..6).map(|_| at(index.take_next(0, 3).expect("alice waits"))).collect();
    assert_eq!(taken, [0, 9, 1, 10, 2, 11], "in turns, each in the order of asking");
    assert_eq!(index.take_next(0, 3), None, "three each");
    assert_eq!(index.take_next(0, 4).map(at), Some(3));
    index.end_work(blocks[0].cid());
    assert!(index.counts().active_roots == 6 && index.counts().queued_roots == 6);
}

#[test]
fn roots_that_are_not_due_wait() {
    let block = crate::pinning::tests::leaf(0);
    let mut index = Index::default();
    index.insert(entry(1, "a", *block.cid(), PinOutcome::Pending, None));
    index.set_work(block.cid(), Work { due_ms: 500, ..Work::default() });
    assert_eq!((index.take_next(499, 4), index.next_due_ms(4)), (None, Some(500)));
    index.schedule_now(block.cid(), 400);
    assert_eq!(index.next_due_ms(4), Some(400));
    assert_eq!(index.take_next(400, 4), Some(*block.cid()));
    assert_eq!(index.next_due_ms(4), None);
    // After an attempt, it waits until its work is due.
    index.set_work(block.cid(), Work { due_ms: 900, attempts: 1, ..Work::default() });
    index.end_work(block.cid());
    assert_eq!(index.next_due_ms(4), Some(900));
}

#[test]
fn a_request_that_retains_its_own_root_leaves_nothing_behind() {
    let root = *crate::pinning::tests::leaf(0).cid();
    let mut index = Index::default();
    index.insert(entry(1, "a", root, PinOutcome::Pending, Some(root)));
    assert!(index.remove("1").is_some());
    assert_eq!((index.counts(), index.root(&root).is_none()), (Counts::default(), true));
    assert_eq!((index.take_next(0, 4), index.next_due_ms(4)), (None, None));
}
