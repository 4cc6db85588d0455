//! The contract of [`BlockIndex`], as a suite of checks for the tests of every implementation.
//!
//! A check uses an index that is empty. It panics if the contract is violated.

use super::index::{
    BlockIndex, Committed, EvictedObject, FinishedPin, IndexFigures, IndexIdentity, Listed, LostBlock, PinAttempt,
    PinId, WrittenObject,
};
use super::object::ObjectId;
use cache::{PinState, PinSummary};
use content::stored::Shape;
use content::{Block, BlockKey, Cid, codec, hashes};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Opens a new, empty index.
pub type OpenIndex<'a> = &'a (dyn Fn() -> Arc<dyn BlockIndex> + Sync);

/// Longer than a test lasts.
const LONG: Duration = Duration::from_secs(86_400);
/// The size of each object and block of a check, in bytes. The objects have what this form has, and 59 bytes.
const OBJECT_BYTES: u32 = 150;
const BLOCK_BYTES: u32 = 100;
const SHAPE: Shape = Shape::Envelope { prefix_bytes: 3, payload_bytes: 95, suffix_bytes: 2, frame_bytes: 83 };

/// Runs all checks.
pub async fn check_all(open: OpenIndex<'_>) {
    only_pending_objects_become_those_of_blocks(&*open()).await;
    a_block_has_one_object(&*open()).await;
    old_pending_objects_are_marked_and_can_be_committed_no_more(&*open()).await;
    unknown_objects_are_registered_to_be_deleted(&*open()).await;
    an_index_has_an_identity(&*open(), &*open()).await;
    members_are_evicted_after_their_last_pin_only(&*open()).await;
    a_pin_is_complete_unless_blocks_were_lost(&*open()).await;
    a_lost_block_makes_its_pins_partial(&*open()).await;
    a_lost_block_ends_with_its_last_pin(&*open()).await;
    a_removed_pin_accepts_nothing(&*open()).await;
    blocks_that_are_used_are_evicted_last(&*open()).await;
    no_more_is_evicted_than_is_too_much(&*open()).await;
    given_blocks_are_evicted_unless_a_pin_has_them(&*open()).await;
    amounts_follow_every_change(&*open()).await;
    slots_and_pins_are_read_in_pages(&*open()).await;
}

/// A CID, of the same block for the same number.
pub fn cid(number: u64) -> Cid {
    let content = bytes::Bytes::copy_from_slice(&number.to_be_bytes());
    *Block::of(codec::RAW, hashes::SHA2_256, 32, content).expect("a block").cid()
}

/// The block of a number.
pub fn key(number: u64) -> BlockKey {
    BlockKey::of(&cid(number)).expect("has a key")
}

fn object(number: u64, generation: u64) -> ObjectId {
    ObjectId { key: key(number), generation }
}

fn written(object: ObjectId) -> WrittenObject {
    WrittenObject { object, bytes: OBJECT_BYTES, shape: SHAPE }
}

async fn register(index: &dyn BlockIndex, objects: &[ObjectId]) {
    index.register(objects.to_vec()).await.expect("registers");
}

/// The blocks that have these objects after a commit, or others.
async fn commit(index: &dyn BlockIndex, objects: &[ObjectId], pin: Option<PinId>) -> BTreeSet<ObjectId> {
    blocks(index.commit(objects.iter().copied().map(written).collect(), pin).await.expect("commits"))
}

fn blocks(committed: Committed) -> BTreeSet<ObjectId> {
    match committed {
        Committed::Blocks(objects) => objects.into_iter().collect(),
        Committed::PinRemoved => panic!("the pin exists"),
    }
}

async fn store(index: &dyn BlockIndex, objects: &[ObjectId], pin: Option<PinId>) {
    register(index, objects).await;
    assert_eq!(commit(index, objects, pin).await, objects.iter().copied().collect());
}

async fn located(index: &dyn BlockIndex, numbers: &[u64]) -> BTreeSet<ObjectId> {
    let rows = index.locate(numbers.iter().copied().map(key).collect()).await.expect("locates");
    assert!(rows.iter().all(|row| (row.bytes, row.shape) == (OBJECT_BYTES, Some(SHAPE))), "{rows:?}");
    rows.iter().map(|row| row.object).collect()
}

async fn evicted(index: &dyn BlockIndex, max: u32) -> BTreeSet<ObjectId> {
    objects_of(index.evict(0, max).await.expect("evicts"))
}

fn objects_of(evicted: Vec<EvictedObject>) -> BTreeSet<ObjectId> {
    assert!(evicted.iter().all(|evicted| evicted.bytes == OBJECT_BYTES));
    evicted.iter().map(|evicted| evicted.object).collect()
}

async fn swept(index: &dyn BlockIndex, age: Duration) -> BTreeSet<ObjectId> {
    index.sweep(age, 100).await.expect("sweeps").into_iter().collect()
}

async fn begin(index: &dyn BlockIndex, root: u64) -> PinAttempt {
    index.begin_pin(cid(root), None).await.expect("begins")
}

async fn finish(index: &dyn BlockIndex, attempt: PinAttempt) -> FinishedPin {
    index.finish_pin(attempt).await.expect("is asked")
}

async fn pin(index: &dyn BlockIndex, root: u64) -> Option<PinSummary> {
    index.pin(cid(root)).await.expect("is read")
}

async fn release_all(index: &dyn BlockIndex) {
    while index.release_members(2).await.expect("releases") {}
}

async fn pinned(index: &dyn BlockIndex, numbers: &[u64]) -> BTreeSet<BlockKey> {
    index.pinned(numbers.iter().copied().map(key).collect()).await.expect("is read").into_iter().collect()
}

/// Amounts without pins.
fn cached(blocks: u64) -> IndexFigures {
    let bytes = blocks * u64::from(OBJECT_BYTES);
    IndexFigures { cached_blocks: blocks, cached_bytes: bytes, ..IndexFigures::default() }
}

async fn figures(index: &dyn BlockIndex) -> IndexFigures {
    index.figures().await.expect("counts")
}

/// An object is registered before it is written.
pub async fn only_pending_objects_become_those_of_blocks(index: &dyn BlockIndex) {
    let (registered, other) = (object(1, u64::MAX), object(2, 0));
    register(index, &[registered]).await;
    assert_eq!(located(index, &[1, 2]).await, BTreeSet::new(), "nothing is written yet");
    assert_eq!(commit(index, &[registered, other], None).await, [registered].into());
    assert_eq!(located(index, &[1, 2, 1]).await, [registered].into());
    assert_eq!(figures(index).await, cached(1));
    assert_eq!(commit(index, &[registered], None).await, BTreeSet::new(), "it is not pending any more");
    assert_eq!(commit(index, &[], None).await, BTreeSet::new());
    assert_eq!(located(index, &[]).await, BTreeSet::new());
    // A generation is that of one block.
    register(index, &[object(3, 7)]).await;
    assert_eq!(commit(index, &[object(4, 7)], None).await, BTreeSet::new());
    assert_eq!(commit(index, &[object(3, 7)], None).await, [object(3, 7)].into());
}

/// Of gateways that write a block at the same time.
pub async fn a_block_has_one_object(index: &dyn BlockIndex) {
    let (first, second) = (object(1, 5), object(1, 3));
    register(index, &[first]).await;
    register(index, &[second]).await;
    assert_eq!(commit(index, &[first], None).await, [first].into());
    let attempt = begin(index, 1).await;
    assert_eq!(commit(index, &[second], Some(attempt.id)).await, [first].into(), "the second one is not needed");
    assert_eq!(figures(index).await.pending_objects, 1);
    assert_eq!(figures(index).await.pinned_blocks, 1, "but the block is a member of its pin");
    assert_eq!(commit(index, &[second], None).await, [first].into(), "and it does not replace the first later");
    index.remove_pending(vec![second]).await.expect("is removed");
    assert_eq!(figures(index).await.pending_objects, 0);
    assert_eq!(located(index, &[1]).await, [first].into());
}

/// So that the objects of a gateway that has stopped can be deleted, and one that was paused does not use them.
pub async fn old_pending_objects_are_marked_and_can_be_committed_no_more(index: &dyn BlockIndex) {
    let (paused, stored) = (object(1, 1), object(2, 2));
    store(index, &[stored], None).await;
    register(index, &[paused]).await;
    assert_eq!(swept(index, LONG).await, BTreeSet::new(), "it may still be written");
    assert_eq!(swept(index, Duration::ZERO).await, [paused].into());
    assert_eq!(commit(index, &[paused], None).await, BTreeSet::new());
    assert_eq!(located(index, &[1, 2]).await, [stored].into());
    // Until it has been deleted.
    assert_eq!(swept(index, LONG).await, BTreeSet::new());
    assert_eq!(swept(index, Duration::ZERO).await, [paused].into());
    index.remove_pending(vec![paused]).await.expect("is removed");
    assert_eq!(swept(index, Duration::ZERO).await, BTreeSet::new());
    assert_eq!(commit(index, &[paused], None).await, BTreeSet::new());
}

/// An object that is unknown was left behind.
pub async fn unknown_objects_are_registered_to_be_deleted(index: &dyn BlockIndex) {
    let [pending, stored, evicted_one, orphan] = [object(1, 1), object(2, 2), object(3, 3), object(2, 4)];
    store(index, &[evicted_one], None).await;
    assert_eq!(evicted(index, 10).await, [evicted_one].into());
    store(index, &[stored], None).await;
    register(index, &[pending]).await;
    let all = vec![pending, stored, evicted_one, orphan];
    let found = async || index.orphans(all.clone()).await.expect("reads").into_iter().collect::<BTreeSet<_>>();
    let orphans = async || {
        let found = found().await;
        let registered: BTreeSet<_> =
            index.register_orphans(all.clone()).await.expect("registers").into_iter().collect();
        assert_eq!(found, registered, "what is found without a change");
        registered
    };
    assert_eq!(found().await, [orphan].into());
    assert_eq!(orphans().await, [orphan].into());
    assert_eq!(orphans().await, BTreeSet::new(), "it is pending now");
    assert_eq!(commit(index, &[orphan], None).await, BTreeSet::new(), "it cannot become that of a block");
    assert_eq!(swept(index, Duration::ZERO).await, [orphan, evicted_one, pending].into());
    index.remove_pending(vec![evicted_one, pending, orphan]).await.expect("are removed");
    index.remove_pending(vec![stored]).await.expect("is not pending");
    assert_eq!(orphans().await, [orphan, evicted_one, pending].into(), "the other one is that of a block");
    assert_eq!(index.register_orphans(Vec::new()).await.expect("registers"), Vec::new());
}

/// An index is distinguished from another one of the same name.
pub async fn an_index_has_an_identity(index: &dyn BlockIndex, other: &dyn BlockIndex) {
    let identity = index.identity().await.expect("is read");
    assert!(!identity.is_marked);
    assert_ne!(other.identity().await.expect("is read").id, identity.id);
    for _ in 0..2 {
        index.set_marked().await.expect("is set");
        let expected = IndexIdentity { is_marked: true, ..identity };
        assert_eq!(index.identity().await.expect("is read"), expected);
    }
}

/// Eviction spares members, also of several pins.
pub async fn members_are_evicted_after_their_last_pin_only(index: &dyn BlockIndex) {
    let objects = [object(1, 1), object(2, 2), object(3, 3)];
    let [root, shared, cached] = objects;
    store(index, &[shared, cached], None).await;
    let (one, other) = (begin(index, 1).await, begin(index, 9).await);
    let held = index.add_members(vec![key(2), key(1)], one.id).await.expect("are added");
    assert_eq!(blocks(held), [shared].into(), "the other one is not stored");
    store(index, &[root], Some(one.id)).await;
    assert_eq!(blocks(index.add_members(vec![key(2)], other.id).await.expect("is added")), [shared].into());
    assert_eq!(blocks(index.add_members(vec![key(2)], other.id).await.expect("again")), [shared].into());
    assert_eq!(evicted(index, 10).await, [cached].into());
    let amounts = figures(index).await;
    assert_eq!((amounts.pinned_blocks, amounts.pinned_bytes), (2, 2 * u64::from(OBJECT_BYTES)));
    assert!(index.remove_pin(cid(1), None).await.expect("is removed"));
    release_all(index).await;
    assert_eq!(evicted(index, 10).await, [root].into());
    assert!(!index.remove_pin(cid(9), Some(u64::MAX)).await.expect("is asked"), "it has another ID");
    assert!(!index.remove_pin(cid(9), Some(one.id)).await.expect("is asked"), "that is the ID of another root's pin");
    assert!(index.remove_pin(cid(9), Some(other.id)).await.expect("is removed"));
    assert!(!index.remove_pin(cid(9), None).await.expect("is asked"));
    release_all(index).await;
    assert_eq!(evicted(index, 10).await, [shared].into());
    assert_eq!(located(index, &[1, 2, 3]).await, BTreeSet::new());
    assert_eq!(figures(index).await, IndexFigures { pending_objects: 3, ..IndexFigures::default() });
}

/// What a pin counts, and what is missing for it to be complete.
pub async fn a_pin_is_complete_unless_blocks_were_lost(index: &dyn BlockIndex) {
    assert_eq!(pin(index, 1).await, None);
    let name = |name: &str| Some(name.to_owned());
    let attempt = index.begin_pin(cid(1), name("first")).await.expect("begins");
    store(index, &[object(2, 2), object(3, 3)], Some(attempt.id)).await;
    assert_eq!(finish(index, attempt).await, FinishedPin::RootMissing);
    let partial = pin(index, 1).await.expect("exists");
    assert_eq!((partial.state, partial.blocks, partial.root), (PinState::Partial, 2, cid(1)));
    store(index, &[object(1, 1)], Some(attempt.id)).await;
    // It is resumed elsewhere, with another name, and counts nothing twice.
    let again = index.begin_pin(cid(1), name("second")).await.expect("is resumed");
    assert_eq!(again, attempt);
    index.add_members(vec![key(1), key(2), key(3)], again.id).await.expect("are members");
    let FinishedPin::Complete(summary) = finish(index, again).await else { panic!("it has all blocks") };
    assert_eq!((summary.state, summary.id, summary.name.as_deref()), (PinState::Complete, again.id, Some("second")));
    assert_eq!((summary.blocks, summary.bytes), (3, 3 * u64::from(BLOCK_BYTES)));
    assert_eq!(pin(index, 1).await.as_ref(), Some(&*summary));
    assert_eq!(finish(index, attempt).await, FinishedPin::Complete(summary.clone()), "the answer may have been lost");
    index.begin_pin(cid(1), None).await.expect("is resumed");
    assert_eq!(pin(index, 1).await, Some(*summary), "it stays complete, and keeps its name");
}

/// A block that is missing in the storage is lost to all pins that have it, also to those in progress.
pub async fn a_lost_block_makes_its_pins_partial(index: &dyn BlockIndex) {
    let (first, second) = (object(1, 1), object(1, 2));
    let (complete, in_progress, other) = (begin(index, 1).await, begin(index, 9).await, begin(index, 3).await);
    store(index, &[first], Some(complete.id)).await;
    assert!(matches!(finish(index, complete).await, FinishedPin::Complete(_)));
    index.add_members(vec![key(1)], in_progress.id).await.expect("is added");
    store(index, &[object(3, 3)], Some(other.id)).await;
    assert!(matches!(finish(index, other).await, FinishedPin::Complete(_)));
    assert_eq!(index.lose(second).await.expect("is asked"), None, "the block has another object");
    let roots = index.lose(first).await.expect("is asked").expect("is lost");
    let roots: BTreeSet<Cid> = roots.into_iter().collect();
    assert_eq!(roots, [cid(1), cid(9)].into());
    assert_eq!(located(index, &[1]).await, BTreeSet::new());
    assert_eq!(swept(index, Duration::ZERO).await, [first].into(), "its object is to be deleted");
    assert_eq!(index.lose(first).await.expect("is asked"), None, "it is lost once");
    let added = index.add_members(vec![key(1)], in_progress.id).await.expect("is asked");
    assert_eq!(blocks(added), BTreeSet::new(), "it is not stored");
    assert_eq!(figures(index).await.pinned_blocks, 1);
    let lost = async |root| index.lost(cid(root), None, 10).await.expect("is read");
    let expected = LostBlock { key: key(1), block_bytes: BLOCK_BYTES };
    assert_eq!((lost(1).await, lost(9).await, lost(3).await), (vec![expected], vec![expected], vec![]));
    assert_eq!(index.lost(cid(1), Some(key(1)), 10).await.expect("is read"), vec![]);
    let having_lost = async |within| index.pins_with_losses(within).await.expect("is read");
    assert_eq!(having_lost(LONG).await.into_iter().collect::<BTreeSet<_>>(), roots);
    assert_eq!(having_lost(Duration::ZERO).await, Vec::new());
    assert_eq!(pinned(index, &[1, 3, 5]).await, [key(1), key(3)].into(), "also those that were lost");
    assert_eq!(pin(index, 1).await.expect("exists").state, PinState::Partial);
    assert_eq!(pin(index, 3).await.expect("exists").state, PinState::Complete);
    assert_eq!(finish(index, in_progress).await, FinishedPin::Lost);
    // It is stored again without a pin, and its pins still have it.
    store(index, &[second], None).await;
    assert_eq!(evicted(index, 10).await, BTreeSet::new());
    assert_eq!(finish(index, complete).await, FinishedPin::Lost);
    let resumed = begin(index, 1).await;
    assert_eq!(blocks(index.add_members(vec![key(1)], resumed.id).await.expect("is a member")), [second].into());
    let FinishedPin::Complete(summary) = finish(index, resumed).await else { panic!("it has all blocks") };
    assert_eq!((summary.blocks, summary.bytes), (1, BLOCK_BYTES.into()));
}

/// A lost block that no pin has leaves nothing behind.
pub async fn a_lost_block_ends_with_its_last_pin(index: &dyn BlockIndex) {
    let (cached, pinned) = (object(1, 1), object(2, 2));
    store(index, &[cached], None).await;
    assert_eq!(index.lose(cached).await.expect("is asked"), Some(Vec::new()));
    let attempt = begin(index, 2).await;
    store(index, &[pinned], Some(attempt.id)).await;
    assert_eq!(index.lose(pinned).await.expect("is asked"), Some(vec![cid(2)]));
    assert!(index.remove_pin(cid(2), None).await.expect("is removed"));
    release_all(index).await;
    // Stored again, it is like any other.
    store(index, &[object(1, 3), object(2, 4)], None).await;
    assert_eq!(figures(index).await.cached_blocks, 2);
    assert_eq!(evicted(index, 10).await, [object(1, 3), object(2, 4)].into());
}

/// A gateway that works on a pin learns that it was removed, also if it was requested again meanwhile.
pub async fn a_removed_pin_accepts_nothing(index: &dyn BlockIndex) {
    let attempt = begin(index, 1).await;
    store(index, &[object(1, 1)], Some(attempt.id)).await;
    assert!(index.remove_pin(cid(1), None).await.expect("is removed"));
    let another = begin(index, 1).await;
    assert_ne!(another.id, attempt.id);
    assert_eq!(index.add_members(vec![key(1)], attempt.id).await.expect("is asked"), Committed::PinRemoved);
    register(index, &[object(2, 2)]).await;
    let refused = index.commit(vec![written(object(2, 2))], Some(attempt.id)).await.expect("is asked");
    assert_eq!(refused, Committed::PinRemoved);
    assert_eq!(located(index, &[2]).await, BTreeSet::new());
    assert_eq!(finish(index, attempt).await, FinishedPin::Removed);
    assert_eq!(finish(index, another).await, FinishedPin::RootMissing, "the members are those of the former pin");
    let unknown = PinAttempt { id: attempt.id ^ 1, ..attempt };
    assert_eq!(finish(index, unknown).await, FinishedPin::Removed);
    assert_eq!(index.add_members(vec![key(1)], unknown.id).await.expect("is asked"), Committed::PinRemoved);
    // The new pin has the block before the former one has released it.
    index.add_members(vec![key(1)], another.id).await.expect("is added");
    release_all(index).await;
    assert_eq!(evicted(index, 10).await, BTreeSet::new());
    assert!(matches!(finish(index, another).await, FinishedPin::Complete(_)));
    assert_eq!(index.pins(None, 10).await.expect("are read").len(), 1);
}

/// Least recently used first. The index counts each use.
pub async fn blocks_that_are_used_are_evicted_last(index: &dyn BlockIndex) {
    for number in 1..=4 {
        store(index, &[object(number, number)], None).await;
    }
    index.mark_used(vec![key(1), key(3), key(7)]).await.expect("is marked");
    assert_eq!(evicted(index, 1).await, [object(2, 2)].into());
    assert_eq!(evicted(index, 1).await, [object(4, 4)].into());
    assert_eq!(evicted(index, 9).await, [object(1, 1), object(3, 3)].into());
}

/// What all other blocks have, and at most one more.
pub async fn no_more_is_evicted_than_is_too_much(index: &dyn BlockIndex) {
    for number in 1..=6 {
        store(index, &[object(number, number)], None).await;
    }
    let bytes = |objects: u64| objects * u64::from(OBJECT_BYTES);
    for (bytes_max, max, expected) in [
        (u64::MAX, 9, vec![]),
        (bytes(6), 9, vec![]),
        (bytes(6) - 1, 9, vec![1]),
        (bytes(3), 1, vec![2]),
        (bytes(3), 9, vec![3]),
        (bytes(1) + 1, 9, vec![4, 5]),
        (0, 0, vec![]),
    ] {
        let evicted = objects_of(index.evict(bytes_max, max).await.expect("evicts"));
        let expected = expected.into_iter().map(|number| object(number, number)).collect();
        assert_eq!(evicted, expected, "more than {bytes_max} bytes, at most {max}");
    }
    assert_eq!(figures(index).await.cached_blocks, 1);
}

/// Whatever their age.
pub async fn given_blocks_are_evicted_unless_a_pin_has_them(index: &dyn BlockIndex) {
    let (cached_one, other, pinned_one) = (object(1, 1), object(2, 2), object(3, 3));
    store(index, &[cached_one, other], None).await;
    let attempt = begin(index, 3).await;
    store(index, &[pinned_one], Some(attempt.id)).await;
    let keys = || vec![key(3), key(1), key(1), key(7)];
    assert_eq!(objects_of(index.evict_blocks(keys()).await.expect("evicts")), [cached_one].into());
    assert_eq!(objects_of(index.evict_blocks(keys()).await.expect("evicts")), BTreeSet::new());
    assert_eq!(located(index, &[1, 2, 3]).await, [other, pinned_one].into());
    assert_eq!(swept(index, Duration::ZERO).await, [cached_one].into(), "its object is to be deleted");
    assert_eq!(index.evict_blocks(Vec::new()).await.expect("evicts"), Vec::new());
}

/// What was counted is what is there.
pub async fn amounts_follow_every_change(index: &dyn BlockIndex) {
    let amounts = async |cached_blocks: u64, pinned_blocks: u64| {
        let found = IndexFigures { pending_objects: 0, pins: 0, partial_pins: 0, ..figures(index).await };
        let pinned = IndexFigures {
            pinned_blocks,
            pinned_bytes: pinned_blocks * u64::from(OBJECT_BYTES),
            pinned_block_bytes: pinned_blocks * u64::from(BLOCK_BYTES),
            ..cached(cached_blocks)
        };
        assert_eq!(found, pinned);
    };
    amounts(0, 0).await;
    store(index, &[object(1, 1), object(2, 2), object(3, 3)], None).await;
    amounts(3, 0).await;
    let attempt = begin(index, 1).await;
    index.add_members(vec![key(1), key(2)], attempt.id).await.expect("are added");
    amounts(1, 2).await;
    // Another gateway was as fast: the block gets a pin, and no second object.
    register(index, &[object(3, 30), object(4, 4)]).await;
    commit(index, &[object(3, 30), object(4, 4)], Some(attempt.id)).await;
    amounts(0, 4).await;
    let of_pins = async || (figures(index).await.pins, figures(index).await.partial_pins);
    assert_eq!(of_pins().await, (0, 1));
    assert!(matches!(finish(index, attempt).await, FinishedPin::Complete(_)));
    assert_eq!(of_pins().await, (1, 0));
    index.mark_used(vec![key(1)]).await.expect("is marked");
    index.lose(object(2, 2)).await.expect("is lost");
    amounts(0, 3).await;
    assert_eq!(of_pins().await, (0, 1));
    store(index, &[object(2, 20), object(5, 5)], None).await;
    amounts(1, 4).await;
    index.lose(object(5, 5)).await.expect("is lost");
    index.lose(object(4, 4)).await.expect("is lost");
    amounts(0, 3).await;
    assert!(index.remove_pin(cid(1), None).await.expect("is removed"));
    assert_eq!(of_pins().await, (0, 0));
    amounts(0, 3).await;
    release_all(index).await;
    amounts(3, 0).await;
    assert_eq!(evicted(index, 2).await.len(), 2);
    amounts(1, 0).await;
    assert_eq!(evicted(index, 2).await.len(), 1);
    amounts(0, 0).await;
}

/// Pages are complete and have nothing twice.
pub async fn slots_and_pins_are_read_in_pages(index: &dyn BlockIndex) {
    let objects: Vec<ObjectId> = (0..600).map(|number| object(number, number)).collect();
    store(index, &objects, None).await;
    let mut found = Vec::new();
    for slot in 0..=u8::MAX {
        let mut after = None;
        loop {
            let page = index.objects_of_slot(slot, Listed::Stored, after, 2).await.expect("is read");
            assert!(page.len() <= 2 && page.iter().all(|object| object.slot() == slot));
            let Some(last) = page.last() else { break };
            assert!(page.is_sorted() && after.is_none_or(|after| page[0].key > after));
            after = Some(last.key);
            found.extend(page);
        }
    }
    assert_eq!(found.len(), objects.len());
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), objects.into_iter().collect());
    let attempt = begin(index, 0).await;
    index.add_members((0..600).step_by(3).map(key).collect(), attempt.id).await.expect("are added");
    let mut listed = BTreeSet::new();
    for slot in 0..=u8::MAX {
        listed.extend(index.objects_of_slot(slot, Listed::Pinned, None, 600).await.expect("is read"));
    }
    assert_eq!(listed, (0..600).step_by(3).map(|number| object(number, number)).collect());
    let mut lost = BTreeSet::new();
    for number in (0..600).step_by(60) {
        index.lose(object(number, number)).await.expect("is lost");
        lost.insert(key(number).to_bytes());
    }
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = index.lost(cid(0), after, 3).await.expect("is read");
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 3);
        after = Some(last.key);
        found.extend(page.iter().map(|lost| lost.key.to_bytes()));
    }
    assert_eq!(found, Vec::from_iter(lost));
    for root in 1..5 {
        begin(index, root).await;
    }
    let (mut roots, mut after) = (Vec::new(), None);
    loop {
        let page = index.pins(after, 2).await.expect("is read");
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 2);
        after = Some(last.id);
        roots.extend(page.iter().map(|pin| pin.root));
    }
    assert_eq!(roots.len(), 5);
    assert_eq!(roots.into_iter().collect::<BTreeSet<_>>(), (0..5).map(cid).collect());
}
