//! Several services that append to one log, over one block store.

use crate::pinning::coordination::{Coordination, SingleService};
use crate::pinning::fetch::FetchError;
use crate::pinning::index::{Index, PinOutcome, RETRIED_MAX, RemovalEnd, StoredRequest};
use crate::pinning::record::{self, PinChange};
use crate::pinning::tests::late_store::{LateStore, Removal};
use crate::pinning::tests::*;
use crate::pinning::workers::Attempted;
use crate::pinning::{Meta, QuotaUsage};
use crate::test_log::Connection;
pub use crate::test_log::Fault;
use cache::metadata_store::Change;
use cache::{BlockStore, PinError, PinState, PinSummary, StoreError};
use futures::future::join_all;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The latest entries that the log keeps: all of them, some, none.
const ENTRIES_BYTES_MAX: [usize; 3] = [1 << 20, 600, 0];

impl Connection {
    pub(super) async fn start(self: &Arc<Self>, world: &World) -> Result<Arc<Pins>, StoreError> {
        let coordination = Coordination { log: Arc::clone(self) as _, claims: Arc::new(SingleService) };
        Pins::alone_with(world.options.clone(), coordination, &world.store).await
    }
}

/// Services that do not fetch, and learn of each other when they append or catch up.
pub struct Site {
    pub world: World,
    /// The faults of the block store.
    pub late: LateStore,
    pub connections: Vec<Arc<Connection>>,
    pub services: Vec<Arc<Pins>>,
}

impl Site {
    pub async fn new(count: usize, entries_bytes_max: usize) -> Self {
        Self::taking_over(count, entries_bytes_max, Duration::from_hours(1)).await
    }

    /// Services that take over removals which others have not completed for so long.
    async fn taking_over(count: usize, entries_bytes_max: usize, removals_taken_over_after: Duration) -> Self {
        let mut world = World::new();
        world.register = world.register.shared(entries_bytes_max);
        world.options.removals_taken_over_after = removals_taken_over_after;
        Self::of(world, count).await
    }

    /// A single gateway, whose log has no other writer.
    pub async fn single(world: World) -> Self {
        Self::of(world, 1).await
    }

    async fn of(mut world: World, count: usize) -> Self {
        let late = LateStore::new(Arc::clone(&world.store));
        world.store = Arc::new(late.clone());
        let (mut connections, mut services) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let connection = Connection::new(&world.register);
            services.push(connection.start(&world).await.expect("starts"));
            connections.push(connection);
        }
        Self { world, late, connections, services }
    }

    /// Starts a service that does not know anything.
    async fn start(&self) -> Arc<Pins> {
        Connection::new(&self.world.register).start(&self.world).await.expect("starts")
    }

    pub async fn store(&self, blocks: &[Block]) -> PinSummary {
        store(&self.world.store, blocks).await
    }

    /// Ends an attempt of a service to fetch a DAG, successfully.
    pub async fn complete(&self, at: usize, blocks: &[Block]) -> Result<(), PinsError> {
        let summary = self.store(blocks).await;
        self.end(at, summary).await
    }

    /// Ends an attempt that has stored a DAG. Another service may have removed it since.
    async fn end(&self, at: usize, summary: PinSummary) -> Result<(), PinsError> {
        self.end_as(at, summary.root, Some(Ok(summary))).await
    }

    async fn end_as(&self, at: usize, root: Cid, attempted: Attempted) -> Result<(), PinsError> {
        let pins = Arc::clone(&self.services[at]);
        let change = async move { pins.end(&root, attempted, true).await };
        self.services[at].spawn_worker_change(change).await
    }

    async fn give_up(&self, at: usize, root: Cid) -> Result<(), PinsError> {
        let pins = Arc::clone(&self.services[at]);
        let outcome = PinOutcome::Failed("no peer has it".into());
        let change = async move { pins.settle_pending(&root, &outcome).await };
        self.services[at].spawn_change(change).await
    }

    /// Waits until all services have applied everything, and have carried out what follows.
    pub async fn settles(&self) {
        self.connections.iter().for_each(|connection| connection.repair());
        self.late.repair();
        let all_are_current = async || {
            for pins in &self.services {
                pins.catch_up().await.expect("catches up");
            }
            let records = record::load(&self.world.register).expect("reads");
            let is_current = |pins: &Arc<Pins>| {
                let index = pins.index();
                let removes = |root: &Cid| index.is_removing(root) || index.is_removal_decided(root);
                let is_removing = index.roots().any(|(root, _)| removes(root)) || !index.unlogged_removals().is_empty();
                index.position == records.position && !is_removing && !pins.follows_up()
            };
            let stored = self.world.pinned().await;
            let is_needed = |root: &Cid| self.services[0].index().is_needed(root);
            let is_clean = records.orphans.is_empty() && stored.iter().all(is_needed);
            (is_clean && self.services.iter().all(is_current)).then_some(())
        };
        until("all are current, no root waits for a removal, and no pin is left over", all_are_current).await;
    }

    /// Checks that all services have the same state, which is that of the records, and that the block store has the
    /// pins that are acknowledged.
    pub async fn agrees(&self) -> Vec<StoredRequest> {
        self.settles().await;
        let mut entries = record::load(&self.world.register).expect("reads").entries;
        entries.sort_unstable_by_key(|entry| entry.created_ms);
        let times: BTreeSet<u64> = entries.iter().map(|entry| entry.created_ms).collect();
        assert_eq!(times.len(), entries.len(), "times are unique");
        for pins in &self.services {
            let mut known: Vec<StoredRequest> = pins.index().all().cloned().collect();
            known.sort_unstable_by_key(|entry| entry.created_ms);
            assert_eq!(known, entries);
            assert_eq!(pins.counts(), self.services[0].counts());
        }
        let stored = self.world.store.pins().await.expect("reads");
        let complete = stored.iter().filter(|pin| pin.state == PinState::Complete);
        let complete: BTreeMap<Cid, u64> = complete.map(|pin| (pin.root, pin.bytes)).collect();
        for entry in entries.iter().filter(|entry| entry.outcome == PinOutcome::Pinned) {
            let bytes = complete.get(&entry.root).expect("an acknowledged pin is stored");
            for pins in &self.services {
                assert_eq!(pins.index().root(&entry.root).map(|root| root.progress.bytes), Some(*bytes));
            }
        }
        entries
    }
}

async fn store(store: &Arc<dyn BlockStore>, blocks: &[Block]) -> PinSummary {
    loop {
        let supply = futures::stream::iter(blocks.iter().cloned().map(Ok::<_, SourceError>));
        match store.pin_recursive(*blocks[0].cid(), None, supply).await {
            Ok(summary) => return summary,
            // By a service whose removal has begun before.
            Err(PinError::Removed { .. }) => {}
            Err(error) => panic!("pins: {error}"),
        }
    }
}

/// A change of a service that waits before it commits, and after it. Other changes of the service wait for it.
pub struct HeldChange {
    begun: Option<oneshot::Receiver<()>>,
    commit: Option<oneshot::Sender<()>>,
    committed: Option<oneshot::Receiver<()>>,
    end: oneshot::Sender<()>,
    task: JoinHandle<Result<(), PinsError>>,
}

impl HeldChange {
    /// Applies what others have changed, and removes a request if one is given.
    pub fn queue(pins: &Arc<Pins>, removed: Option<Arc<str>>) -> Self {
        let (begins, begun) = oneshot::channel();
        let (commit, commits) = oneshot::channel::<()>();
        let (commits_now, committed) = oneshot::channel();
        let (end, ends) = oneshot::channel::<()>();
        let service = Arc::clone(pins);
        let change = async move {
            _ = begins.send(());
            _ = commits.await;
            let decide = |index: &Index| {
                let removed = removed.iter().filter(|id| index.entry(id).is_some());
                Ok((removed.map(|id| PinChange::RemoveRequest(Arc::clone(id))).collect(), ()))
            };
            let changed = service.commit(decide).await;
            _ = commits_now.send(());
            _ = ends.await;
            changed
        };
        let pins = Arc::clone(pins);
        let task = tokio::spawn(async move { pins.spawn_worker_change(change).await });
        Self { begun: Some(begun), commit: Some(commit), committed: Some(committed), end, task }
    }

    /// Waits until it has the lock of changes.
    pub async fn begin(&mut self) {
        if let Some(begun) = self.begun.take() {
            begun.await.expect("begins");
        }
    }

    pub async fn commit(&mut self) {
        self.begin().await;
        if let (Some(commit), Some(committed)) = (self.commit.take(), self.committed.take()) {
            commit.send(()).expect("it waits");
            committed.await.expect("commits");
        }
    }

    pub async fn end(mut self) -> Result<(), PinsError> {
        self.commit().await;
        self.end.send(()).expect("it waits");
        self.task.await.expect("ends")
    }
}

fn dags() -> Vec<Vec<Block>> {
    (0..4).map(|number| dag(&format!("dag {number}"), number * 10..number * 10 + 2)).collect()
}

#[tokio::test]
async fn a_decision_on_a_former_state_is_made_again() {
    for bytes_max in ENTRIES_BYTES_MAX {
        let site = Site::new(2, bytes_max).await;
        let (dags, poor) = (dags(), Owner { pins_max: Some(1), ..owner("poor") });
        let [one, other] = [&site.services[0], &site.services[1]];
        let first = one.request(&poor, wanted(&dags[0])).await.expect("is asked for");
        assert!(other.get("poor", &first.id).is_none(), "it has not been told");
        let second = other.request(&poor, wanted(&dags[1])).await;
        assert!(matches!(second, Err(PinsError::Quota(_))), "{second:?}");
        assert_eq!(other.get("poor", &first.id).as_ref(), Some(&first), "now it has");
        let next = one.replace(&poor, &first.id, wanted(&dags[2])).await.expect("replaces");
        assert!(matches!(other.remove("poor", &first.id).await, Err(PinsError::NotFound)));
        // A request that it has not been told of.
        let last = one.replace(&poor, &next.id, wanted(&dags[1])).await.expect("replaces");
        other.remove("poor", &last.id).await.expect("removes");
        assert!(matches!(one.remove("poor", &last.id).await, Err(PinsError::NotFound)));
        one.request(&poor, wanted(&dags[3])).await.expect("is asked for");
        assert_eq!(other.take_down(dags[3][0].cid(), "taken down").await.expect("fails it"), 1);
        let entries = site.agrees().await;
        assert!(matches!(&entries[..], [entry] if entry.outcome == PinOutcome::Failed("taken down".into())));
    }
}

#[tokio::test]
async fn outcomes_and_removals_of_others_are_applied() {
    for bytes_max in ENTRIES_BYTES_MAX {
        let site = Site::new(2, bytes_max).await;
        let (dags, alice) = (dags(), owner("alice"));
        let [one, other] = [&site.services[0], &site.services[1]];
        let request = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
        site.complete(0, &dags[0]).await.expect("is pinned");
        other.catch_up().await.expect("catches up");
        let shown = other.get("alice", &request.id).expect("is known");
        assert_eq!((shown.status, shown.progress.bytes), (Status::Pinned, bytes_of(&dags[0])));
        assert_eq!(other.used("alice"), QuotaUsage { pins: 1, bytes: bytes_of(&dags[0]) });
        // Its own attempt comes to nothing.
        site.give_up(1, shown.root).await.expect("there is nothing to settle");
        let again = other.request(&owner("bob"), wanted(&dags[0])).await.expect("is asked for");
        assert_eq!(again.status, Status::Pinned);
        one.remove("alice", &request.id).await.expect("removes");
        assert_eq!(site.world.pinned().await, [shown.root], "the other service's request needs it");
        other.remove("bob", &again.id).await.expect("removes");
        assert_eq!(site.world.pinned().await, []);
        assert_eq!(site.agrees().await, []);
        assert_eq!(one.counts(), Default::default());
    }
}

#[tokio::test]
async fn two_dags_that_exceed_a_quota_together_are_not_both_pinned() {
    let site = Site::new(2, 1 << 20).await;
    let (dags, bytes_max) = (dags(), bytes_of(&dags()[0]) + bytes_of(&dags()[1]) - 1);
    let poor = Owner { bytes_max: Some(bytes_max), ..owner("poor") };
    for (at, blocks) in dags[..2].iter().enumerate() {
        site.services[at].request(&poor, wanted(blocks)).await.expect("is asked for");
    }
    // Both have been fetched, and neither service knows of the other's outcome.
    site.services[0].catch_up().await.expect("catches up");
    for (at, blocks) in dags[..2].iter().enumerate() {
        site.complete(at, blocks).await.expect("is settled");
    }
    let outcomes: Vec<_> = site.agrees().await.into_iter().map(|entry| entry.outcome).collect();
    assert!(matches!(outcomes[..], [PinOutcome::Pinned, PinOutcome::Failed(_)]), "{outcomes:?}");
}

#[tokio::test]
async fn removals_that_fail_are_repeated_some_at_a_time() {
    let site = Site::new(1, 1 << 20).await;
    let (pins, alice, count) = (&site.services[0], owner("alice"), RETRIED_MAX + 40);
    for number in 0..count as u64 {
        let blocks = dag(&format!("dag {number}"), number..number + 1);
        let request = pins.request(&alice, wanted(&blocks)).await.expect("is asked for");
        site.complete(0, &blocks).await.expect("is pinned");
        site.late.next(Removal::Fails);
        pins.remove("alice", &request.id).await.expect("is removed from the list");
    }
    assert_eq!((site.late.faults(), site.world.pinned().await.len()), (0, count), "all have failed once");
    let mut tried = Vec::new();
    for _ in 0..3 {
        (0..count).for_each(|_| site.late.next(Removal::Fails));
        let before = site.late.faults();
        pins.catch_up().await.expect("catches up");
        until("they have ended", async || (!pins.follows_up()).then_some(())).await;
        tried.push(before - site.late.faults());
    }
    assert_eq!(tried, [RETRIED_MAX; 3]);
    assert_eq!(site.agrees().await, [], "in the end they succeed");
    assert_eq!(site.world.pinned().await, []);
}

#[tokio::test]
async fn a_root_waits_while_another_service_removes_its_pin() {
    let site = Site::new(2, 1 << 20).await;
    let (dags, alice) = (dags(), owner("alice"));
    let [one, other] = [&site.services[0], &site.services[1]];
    let request = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    site.complete(0, &dags[0]).await.expect("is pinned");
    other.catch_up().await.expect("catches up");
    // The removal is decided. It is not carried out, because the answer is lost.
    let removing = Arc::clone(one);
    let (id, root) = (Arc::clone(&request.id), request.root);
    site.connections[0].fail(Fault::AnswerIsLost);
    let removed = removing.remove("alice", &id).await;
    assert!(matches!(removed, Err(PinsError::Store(_))), "{removed:?}");
    let again = other.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    assert_eq!(again.status, Status::Queued, "its pin is being removed, as far as this service knows");
    let now_ms = other.index().clock.now_ms();
    assert_eq!(other.index_mut().take_next(now_ms, 4), None, "it waits");
    // The service learns that it has decided the removal, and carries it out.
    one.catch_up().await.expect("catches up");
    site.settles().await;
    assert_eq!(site.world.pinned().await, []);
    let now_ms = other.index().clock.now_ms();
    assert_eq!(other.index_mut().take_next(now_ms, 4), Some(root), "it waits no longer");
}

#[tokio::test]
async fn an_upload_whose_pin_another_service_removes_is_not_recorded() {
    let site = Site::new(2, 1 << 20).await;
    let (dags, alice) = (dags(), owner("alice"));
    let [one, other] = [&site.services[0], &site.services[1]];
    let request = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    site.complete(0, &dags[0]).await.expect("is pinned");
    other.catch_up().await.expect("catches up");
    let protection = other.protect(request.root).await;
    site.store(&dags[0]).await;
    site.connections[0].fail(Fault::AnswerIsLost);
    assert!(one.remove("alice", &request.id).await.is_err(), "the removal is decided, and not carried out");
    let recorded = other.record(&owner("bob"), request.root, None, Meta::new()).await;
    assert!(matches!(recorded, Err(PinsError::NotPinned { .. })), "{recorded:?}");
    drop(protection);
    other.remove_unneeded(request.root).await.expect("it goes");
    assert_eq!(site.agrees().await, []);
}

/// A worker stored a DAG after another service had removed it, and before it learned of that.
#[tokio::test]
async fn what_is_stored_after_a_removal_is_removed_as_well() {
    let site = Site::new(2, 1 << 20).await;
    let (dags, alice) = (dags(), owner("alice"));
    let [one, other] = [&site.services[0], &site.services[1]];
    let request = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    other.catch_up().await.expect("catches up");
    one.remove("alice", &request.id).await.expect("removes");
    site.complete(1, &dags[0]).await.expect("there is nothing to settle");
    assert_eq!(site.agrees().await, []);
    assert_eq!(site.world.pinned().await, []);
}

/// A worker stored a DAG while another service was to remove it, which then removed that as well.
#[tokio::test]
async fn what_is_stored_during_a_removal_is_not_taken_for_complete_after_it() {
    let site = Site::new(2, 1 << 20).await;
    let (dags, alice) = (dags(), owner("alice"));
    let [one, other] = [&site.services[0], &site.services[1]];
    let request = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    other.catch_up().await.expect("catches up");
    site.connections[0].fail(Fault::AnswerIsLost);
    assert!(one.remove("alice", &request.id).await.is_err(), "the removal is decided, and not carried out");
    other.catch_up().await.expect("learns that it is decided");
    site.complete(1, &dags[0]).await.expect("there is nothing to settle");
    one.request(&alice, wanted(&dags[0])).await.expect("is asked for, after the removal");
    assert_eq!(site.world.pinned().await, []);
    let again = other.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    assert_eq!(again.status, Status::Queued, "nothing of it is stored");
    site.complete(1, &dags[0]).await.expect("is pinned");
    let entries = site.agrees().await;
    assert!(entries.iter().all(|entry| entry.outcome == PinOutcome::Pinned), "{entries:?}");
}

/// A service has fetched a DAG that another one is about to remove, and that a third one has requested again since.
#[tokio::test]
async fn a_dag_whose_removal_is_not_complete_is_not_settled_as_pinned() {
    let site = Site::new(3, 1 << 20).await;
    let (dags, alice) = (dags(), owner("alice"));
    let [one, other, third] = [&site.services[0], &site.services[1], &site.services[2]];
    let request = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    other.catch_up().await.expect("catches up");
    site.connections[0].fail(Fault::AnswerIsLost);
    assert!(one.remove("alice", &request.id).await.is_err(), "the removal is decided, and not carried out");
    let again = third.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    site.complete(1, &dags[0]).await.expect("ends");
    let shown = other.get("alice", &again.id).expect("is known by now");
    assert_eq!(shown.status, Status::Queued, "it is about to be removed");
    site.settles().await;
    assert_eq!(site.world.pinned().await, [], "the removal is carried out");
    site.complete(1, &dags[0]).await.expect("is settled");
    assert!(matches!(&site.agrees().await[..], [entry] if entry.outcome == PinOutcome::Pinned));
}

/// A service has stored a DAG, which another one removes before it is settled, and requests again.
#[tokio::test]
async fn a_dag_that_was_removed_before_it_is_settled_stays_pending() {
    for learns_before in [false, true] {
        let site = Site::new(2, 1 << 20).await;
        let (dags, alice) = (dags(), owner("alice"));
        let [one, other] = [&site.services[0], &site.services[1]];
        let request = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
        other.catch_up().await.expect("catches up");
        let stored = site.store(&dags[0]).await;
        one.remove("alice", &request.id).await.expect("removes");
        let again = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
        if learns_before {
            other.catch_up().await.expect("catches up");
        }
        site.end(1, stored).await.expect("ends");
        assert_eq!(site.world.pinned().await, []);
        let shown = other.get("alice", &again.id).map(|request| request.status);
        assert!(shown.is_none_or(|status| status == Status::Queued), "{shown:?}");
        site.agrees().await;
        site.complete(1, &dags[0]).await.expect("is settled");
        assert!(matches!(&site.agrees().await[..], [entry] if entry.outcome == PinOutcome::Pinned));
    }
}

/// A service completes a DAG, and learns then that it was removed and requested again before.
#[tokio::test]
async fn a_dag_that_was_requested_again_counts_when_it_is_complete() {
    let site = Site::new(2, 1 << 20).await;
    let dags = dags();
    for (bytes_max, expected) in [(None, Status::Pinned), (Some(1), Status::Failed)] {
        let alice = Owner { bytes_max, ..owner("alice") };
        let first = site.services[0].request(&alice, wanted(&dags[0])).await.expect("is asked for");
        site.services[1].catch_up().await.expect("catches up");
        site.services[0].remove("alice", &first.id).await.expect("removes");
        let again = site.services[0].request(&alice, wanted(&dags[0])).await.expect("is asked for");
        site.complete(1, &dags[0]).await.expect("is settled");
        assert_eq!(site.services[1].get("alice", &again.id).map(|request| request.status), Some(expected));
        let entries = site.agrees().await;
        let bytes = if expected == Status::Pinned { bytes_of(&dags[0]) } else { 0 };
        assert_eq!((entries.len(), site.services[1].used("alice").bytes), (1, bytes));
        site.services[0].remove("alice", &again.id).await.expect("removes");
    }
}

/// A service removes a pin, and learns later that it has begun to remove the next one: the answer was lost.
#[tokio::test]
async fn a_removal_that_has_begun_again_is_not_recorded_as_complete() {
    for bytes_max in ENTRIES_BYTES_MAX {
        let site = Site::new(2, bytes_max).await;
        let (dags, alice) = (dags(), owner("alice"));
        let [one, other] = [&site.services[0], &site.services[1]];
        let request = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
        site.complete(0, &dags[0]).await.expect("is pinned");
        // The pin is removed. That it is complete cannot be appended.
        site.connections[0].fail(Fault::None);
        site.connections[0].fail(Fault::Fails);
        one.remove("alice", &request.id).await.expect("removes");
        assert_eq!(site.world.pinned().await, []);
        // A rejected upload, whose pin is removed as well.
        site.store(&dags[0]).await;
        site.connections[0].fail(Fault::AnswerIsLost);
        assert!(one.remove_unneeded(request.root).await.is_err(), "the removal is decided, and not carried out");
        let mut learning = HeldChange::queue(one, None);
        learning.commit().await;
        let again = other.request(&owner("bob"), wanted(&dags[0])).await.expect("is asked for");
        site.complete(1, &dags[0]).await.expect("ends");
        let shown = other.get("bob", &again.id).expect("is known");
        assert_eq!(shown.status, Status::Queued, "the pin is about to be removed");
        learning.end().await.expect("ends");
        site.agrees().await;
        site.complete(1, &dags[0]).await.expect("is settled");
        assert!(matches!(&site.agrees().await[..], [entry] if entry.outcome == PinOutcome::Pinned));
    }
}

/// A service decides to remove the pin of a root that its worker fetches. Another one has the root requested again.
#[tokio::test]
async fn a_removal_that_is_withdrawn_ends_for_all() {
    for (bytes_max, learns_before) in ENTRIES_BYTES_MAX.into_iter().flat_map(|max| [(max, false), (max, true)]) {
        let site = Site::new(2, bytes_max).await;
        let (dags, alice) = (dags(), owner("alice"));
        let [one, other] = [&site.services[0], &site.services[1]];
        let request = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
        let (root, worker) = one.take_next(4).expect("is due");
        one.remove("alice", &request.id).await.expect("removes");
        assert!(worker.is_cancelled());
        let again = other.request(&owner("bob"), wanted(&dags[0])).await.expect("is asked for");
        if learns_before {
            one.catch_up().await.expect("catches up");
        }
        site.end_as(0, root, None).await.expect("ends");
        site.agrees().await;
        let protecting = tokio::time::timeout(PATIENCE, other.protect(root));
        drop(protecting.await.expect("the root waits no longer"));
        site.complete(1, &dags[0]).await.expect("is settled");
        for pins in &site.services {
            becomes_known(pins, &again, Status::Pinned).await;
        }
    }
}

async fn becomes_known(pins: &Arc<Pins>, request: &PinRequest, status: Status) {
    pins.catch_up().await.expect("catches up");
    becomes(pins, request, status).await;
}

/// The service has requested the root again itself, and does not know, because the answer was lost.
#[tokio::test]
async fn a_removal_that_its_service_has_withdrawn_does_not_begin() {
    let site = Site::new(2, 1 << 20).await;
    let (dags, alice) = (dags(), owner("alice"));
    let [one, other] = [&site.services[0], &site.services[1]];
    let request = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    let (root, _) = one.take_next(4).expect("is due");
    one.remove("alice", &request.id).await.expect("removes");
    site.connections[0].fail(Fault::AnswerIsLost);
    assert!(one.request(&alice, wanted(&dags[0])).await.is_err(), "it does not know");
    other.catch_up().await.expect("catches up");
    site.complete(1, &dags[0]).await.expect("is settled");
    site.end_as(0, root, None).await.expect("ends");
    assert!(matches!(&site.agrees().await[..], [entry] if entry.outcome == PinOutcome::Pinned));
}

/// The same, of a root whose pin an upload protects.
#[tokio::test]
async fn a_removal_that_an_upload_delays_is_withdrawn() {
    let site = Site::new(2, 1 << 20).await;
    let (dags, alice) = (dags(), owner("alice"));
    let [one, other] = [&site.services[0], &site.services[1]];
    let request = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    site.connections[0].fail(Fault::AnswerIsLost);
    assert!(one.remove("alice", &request.id).await.is_err(), "the removal is decided, and not carried out");
    let protection = one.protect(request.root).await;
    one.catch_up().await.expect("catches up");
    assert!(one.index().is_removal_decided(&request.root), "the upload delays it");
    other.request(&owner("bob"), wanted(&dags[0])).await.expect("is asked for");
    one.catch_up().await.expect("catches up");
    drop(protection);
    site.agrees().await;
    site.complete(1, &dags[0]).await.expect("is settled");
    assert!(matches!(&site.agrees().await[..], [entry] if entry.outcome == PinOutcome::Pinned));
}

/// The last request is removed when an attempt has just failed.
#[tokio::test]
async fn a_failed_attempt_without_requests_leaves_no_work() {
    for site in [Site::single(World::new()).await, Site::new(2, 1 << 20).await] {
        let pins = &site.services[0];
        let request = pins.request(&owner("alice"), wanted(&dags()[0])).await.expect("is asked for");
        let (root, _) = pins.take_next(4).expect("is due");
        pins.remove("alice", &request.id).await.expect("removes");
        site.end_as(0, root, Some(Err(FetchError::Internal))).await.expect("ends");
        site.agrees().await;
        assert_eq!(record::load(&site.world.register).expect("reads").works, []);
    }
}

/// A service has removed a pin. Before it has recorded that, another one pins the root and begins to remove it.
#[tokio::test]
async fn a_removal_elsewhere_is_noticed_while_an_own_one_ends() {
    let site = Site::new(2, 1 << 20).await;
    let (dags, alice) = (dags(), owner("alice"));
    let [one, other] = [&site.services[0], &site.services[1]];
    let request = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    site.complete(0, &dags[0]).await.expect("is pinned");
    let removing = HeldChange::queue(one, Some(Arc::clone(&request.id)));
    // It has the lock before what follows from the removal.
    let mut first = HeldChange::queue(one, None);
    removing.end().await.expect("removes");
    first.begin().await;
    // What follows waits for the lock, and the next change after it.
    tokio::time::sleep(Duration::from_millis(10)).await;
    let mut next = HeldChange::queue(one, None);
    first.end().await.expect("ends");
    next.begin().await;
    let is_removed = async || (!one.index().unlogged_removals().is_empty()).then_some(());
    until("the pin is removed", is_removed).await;
    next.commit().await;
    let again = other.request(&owner("bob"), wanted(&dags[0])).await.expect("is asked for");
    site.complete(1, &dags[0]).await.expect("is settled");
    site.connections[1].fail(Fault::AnswerIsLost);
    assert!(other.remove("bob", &again.id).await.is_err(), "the removal is decided, and not carried out");
    next.end().await.expect("ends");
    one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    assert!(one.index().is_removing(&request.root), "the root waits");
    assert_eq!(record::load(&site.world.register).expect("reads").orphans.len(), 1, "the removal goes on");
    site.agrees().await;
    site.complete(0, &dags[0]).await.expect("is settled");
    assert!(matches!(&site.agrees().await[..], [entry] if entry.outcome == PinOutcome::Pinned));
}

/// A service decides to remove a pin, and is paused. Another one removes it, and pins the root again.
#[tokio::test]
async fn a_removal_that_was_delayed_does_not_remove_a_later_pin() {
    for (bytes_max, at_start) in ENTRIES_BYTES_MAX.into_iter().flat_map(|max| [(max, false), (max, true)]) {
        let site = Site::taking_over(2, bytes_max, Duration::ZERO).await;
        let (dags, alice) = (dags(), owner("alice"));
        let request = site.services[0].request(&alice, wanted(&dags[0])).await.expect("is asked for");
        site.complete(0, &dags[0]).await.expect("is pinned");
        site.connections[0].fail(Fault::AnswerIsLost);
        assert!(site.services[0].remove("alice", &request.id).await.is_err(), "the removal is decided");
        let other = if at_start { &site.start().await } else { &site.services[1] };
        let again = other.request(&alice, wanted(&dags[0])).await.expect("is asked for");
        assert_eq!(again.status, Status::Queued);
        let removed = async || {
            other.catch_up().await.expect("catches up");
            (site.world.pinned().await.is_empty() && !other.follows_up()).then_some(())
        };
        until("the removal is taken over", removed).await;
        other.record(&alice, again.root, None, Meta::new()).await.expect_err("nothing is stored");
        site.store(&dags[0]).await;
        other.record(&alice, again.root, None, Meta::new()).await.expect("is pinned again");
        // It learns all that at once.
        site.services[0].catch_up().await.expect("catches up");
        assert_eq!(site.agrees().await.len(), 2);
        assert_eq!(site.world.pinned().await, [again.root]);
    }
}

/// The store fails to answer whether it has removed a pin. The root is requested again meanwhile.
#[tokio::test]
async fn a_removal_whose_outcome_is_unknown_is_repeated_before_the_root_is_used() {
    let site = Site::new(2, 1 << 20).await;
    let (dags, alice) = (dags(), owner("alice"));
    let [one, other] = [&site.services[0], &site.services[1]];
    let request = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    site.complete(0, &dags[0]).await.expect("is pinned");
    site.connections[0].fail(Fault::AnswerIsLost);
    assert!(one.remove("alice", &request.id).await.is_err(), "the removal is decided");
    let protection = one.protect(request.root).await;
    one.catch_up().await.expect("catches up, and waits for the protected pin");
    drop(protection);
    let number = one.index_mut().begin_removal(&request.root).expect("may begin");
    one.index_mut().end_removal(&request.root, number, RemovalEnd::Unknown);
    for pins in [one, other] {
        let again = pins.request(&alice, wanted(&dags[0])).await.expect("is asked for");
        assert_eq!(again.status, Status::Queued, "its pin may be removed at any time");
        let now_ms = pins.index().clock.now_ms();
        assert_eq!(pins.index_mut().take_next(now_ms, 4), None, "it waits");
    }
    site.settles().await;
    assert_eq!(site.world.pinned().await, [], "it was removed first");
    site.complete(1, &dags[0]).await.expect("is pinned");
    let entries = site.agrees().await;
    assert!(entries.len() == 2 && entries.iter().all(|entry| entry.outcome == PinOutcome::Pinned), "{entries:?}");
}

/// Nothing changes until others take over, or the service starts again under its name.
#[tokio::test]
async fn a_start_leaves_removals_to_those_that_make_them() {
    let mut site = Site::new(1, 1 << 20).await;
    let (dags, alice) = (dags(), owner("alice"));
    let one = Arc::clone(&site.services[0]);
    let request = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    site.complete(0, &dags[0]).await.expect("is pinned");
    site.connections[0].fail(Fault::AnswerIsLost);
    assert!(one.remove("alice", &request.id).await.is_err(), "the removal is decided");
    let again = site.start().await;
    again.catch_up().await.expect("catches up");
    let request = again.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    assert_eq!((request.status, site.world.pinned().await), (Status::Queued, vec![request.root]));
    site.world.options.removals_taken_over_after = Duration::ZERO;
    site.services.push(site.start().await);
    site.settles().await;
    assert_eq!(site.world.pinned().await, []);
}

/// A later release changes records in a way that this one does not know.
#[tokio::test]
async fn a_service_stops_if_it_cannot_apply_a_change() {
    let put = |key: &str, value: &str| vec![Change::Put(key.into(), value.into())];
    for bytes_max in ENTRIES_BYTES_MAX {
        for (key, value) in [("request/1", "{}"), ("orphan/1", "{}"), ("work/1", "{}"), ("format", "2")] {
            let site = Site::new(2, bytes_max).await;
            let (dags, alice, pins) = (dags(), owner("alice"), &site.services[0]);
            let request = pins.request(&alice, wanted(&dags[0])).await.expect("is asked for");
            site.world.register.write(put("later/1", "?")).await.expect("writes");
            pins.catch_up().await.expect("records of others are ignored");
            site.world.register.write(put(key, value)).await.expect("writes");
            for _ in 0..2 {
                let removed = pins.remove("alice", &request.id).await;
                let is_clear = |error: &StoreError| {
                    let is_format = matches!(error, StoreError::NewerSchema { found: 2, .. });
                    is_format || matches!(error, StoreError::UnknownRecord { key: found } if **found == *key)
                };
                assert!(matches!(&removed, Err(PinsError::Store(error)) if is_clear(error)), "{key}: {removed:?}");
            }
            tokio::time::timeout(PATIENCE, pins.ended()).await.expect("it has stopped");
            assert!(pins.get("alice", &request.id).is_some(), "nothing was decided");
            let started = Connection::new(&site.world.register).start(&site.world).await;
            assert!(started.is_err(), "{key}: none starts either");
            assert_eq!(site.world.register.get(key.as_bytes()).expect("reads").as_deref(), Some(value.as_bytes()));
        }
    }
}

/// Another service appends before each append.
#[tokio::test]
async fn attempts_to_append_are_bounded_and_a_start_reads_the_records_once() {
    let site = Site::new(1, 1 << 20).await;
    let (dags, alice, connection) = (dags(), owner("alice"), &site.connections[0]);
    connection.interfering.store(5, Ordering::Relaxed);
    site.services[0].request(&alice, wanted(&dags[0])).await.expect("is asked for");
    connection.interfering.store(usize::MAX, Ordering::Relaxed);
    let requested = site.services[0].request(&alice, wanted(&dags[1])).await;
    assert!(matches!(requested, Err(PinsError::Store(StoreError::Busy))), "{requested:?}");
    connection.interfering.store(0, Ordering::Relaxed);
    site.services[0].request(&alice, wanted(&dags[1])).await.expect("it can be retried");
    // A start that has something to write.
    site.store(&dags[2]).await;
    let starting = Connection::new(&site.world.register);
    starting.interfering.store(usize::MAX, Ordering::Relaxed);
    let started = starting.start(&site.world).await;
    assert!(matches!(started, Err(StoreError::Busy)));
    let starting = Connection::new(&site.world.register);
    starting.interfering.store(5, Ordering::Relaxed);
    let started = starting.start(&site.world).await.expect("starts");
    assert_eq!((started.counts().pinned, started.counts().pending), (1, 2));
    assert_eq!(starting.reads.load(Ordering::Relaxed), 1);
    assert_eq!(starting.interfering.load(Ordering::Relaxed), 0);
}

/// Services with workers, which learn of each other by hints.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_at_any_service_are_obeyed_by_all() {
    let mut world = World::new();
    world.register = world.register.shared(1 << 20);
    let services = [world.start().await, world.start().await, world.start().await];
    let alice = owner("alice");
    for blocks in dags() {
        world.upstream.has(&blocks);
        let request = services[0].request(&alice, wanted(&blocks)).await.expect("is asked for");
        for pins in &services {
            let shown = becomes(pins, &request, Status::Pinned).await;
            assert_eq!(shown.progress.bytes, bytes_of(&blocks));
        }
        services[1].remove("alice", &request.id).await.expect("removes");
        let is_gone = |pins: &Arc<Pins>| pins.get("alice", &request.id).is_none();
        until("all know", async || services.iter().all(is_gone).then_some(())).await;
        until("nothing is stored", async || world.pinned().await.is_empty().then_some(())).await;
    }
    for pins in &services {
        pins.stop().await;
    }
}

/// The hints of a log end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_service_without_hints_polls() {
    let mut world = World::new();
    world.register = world.register.shared(1 << 20);
    let connection = Connection::new(&world.register);
    connection.is_silent.store(true, Ordering::Relaxed);
    let claims = Arc::new(SingleService);
    let silent = world.start_with(Coordination { log: connection, claims }).await;
    let other = world.start().await;
    for blocks in &dags()[..2] {
        world.upstream.has(blocks);
        let request = other.request(&owner("alice"), wanted(blocks)).await.expect("is asked for");
        becomes(&silent, &request, Status::Pinned).await;
    }
    silent.stop().await;
    other.stop().await;
}

/// Services that decide at the same time lose nothing that they have acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_changes_of_several_services_are_all_kept() {
    const EACH: usize = 40;
    for bytes_max in ENTRIES_BYTES_MAX {
        let site = Site::new(3, bytes_max).await;
        let dags = dags();
        let changing = site
            .services
            .iter()
            .enumerate()
            .flat_map(|(at, pins)| (0..3).map(move |task| (Arc::clone(pins), at * 3 + task)).collect::<Vec<_>>());
        let changing = changing.map(|(pins, seed)| {
            let dags = dags.clone();
            tokio::spawn(async move {
                let (alice, mut kept) = (owner(&format!("owner {}", seed % 2)), Vec::new());
                for number in 0..EACH {
                    let blocks = &dags[(seed + number) % dags.len()];
                    kept.push(pins.request(&alice, wanted(blocks)).await.expect("is asked for").id);
                    if number % 3 == 2 {
                        pins.remove(&alice.id, &kept.remove(0)).await.expect("removes");
                    }
                }
                kept
            })
        });
        let kept = join_all(changing).await.into_iter().flat_map(|kept| kept.expect("ends"));
        let kept: BTreeSet<Arc<str>> = kept.collect();
        let entries = site.agrees().await;
        assert_eq!(entries.into_iter().map(|entry| entry.id).collect::<BTreeSet<_>>(), kept);
    }
}

/// A step of a random history, by one of the services.
#[derive(Debug, Clone)]
enum Step {
    Request {
        owner: usize,
        root: usize,
        replaces: Option<usize>,
    },
    Upload {
        owner: usize,
        root: usize,
    },
    /// An upload whose pin is to be removed, because it was rejected.
    RejectedUpload(usize),
    Remove(usize),
    TakeDown(usize),
    /// A worker begins.
    Take,
    /// The attempt of a worker succeeds, or one that the service was about to begin.
    Complete(usize),
    /// A worker ends: it was cancelled, or is to try again.
    Abandon(usize),
    GiveUp(usize),
    Retry(usize),
    CatchUp,
    /// A change begins that may remove a request. It delays other changes, and what follows from the one before it.
    Hold(Option<usize>),
    /// That change commits.
    Commit,
    /// What follows from earlier changes is done, except what waits for a change.
    Settle,
    /// Another service takes the place of one that is killed, or is paused until the end. What it has begun may still
    /// have its effects. Where none takes over its removals, that is left out.
    Replace {
        is_killed: bool,
    },
    /// What becomes of the next removal of a pin from the block store.
    Remover(Removal),
    /// Late removals take effect.
    FlushLate,
    Fault(Fault),
}

/// The number of roots: few, so that the steps concern the same ones.
const ROOTS: usize = 2;

fn step() -> impl Strategy<Value = Step> {
    let request = (0..2_usize, 0..ROOTS, proptest::option::weighted(0.2, 0..8_usize))
        .prop_map(|(owner, root, replaces)| Step::Request { owner, root, replaces });
    prop_oneof![
        6 => request,
        2 => (0..2_usize, 0..ROOTS).prop_map(|(owner, root)| Step::Upload { owner, root }),
        1 => (0..ROOTS).prop_map(Step::RejectedUpload),
        4 => (0..8_usize).prop_map(Step::Remove),
        1 => (0..ROOTS).prop_map(Step::TakeDown),
        3 => Just(Step::Take),
        4 => (0..ROOTS).prop_map(Step::Complete),
        2 => (0..ROOTS).prop_map(Step::Abandon),
        1 => (0..ROOTS).prop_map(Step::GiveUp),
        1 => (0..8_usize).prop_map(Step::Retry),
        2 => Just(Step::CatchUp),
        3 => proptest::option::weighted(0.6, 0..8_usize).prop_map(Step::Hold),
        3 => Just(Step::Commit),
        1 => any::<bool>().prop_map(|is_killed| Step::Replace { is_killed }),
        1 => removals().prop_map(Step::Remover),
        1 => Just(Step::FlushLate),
        1 => Just(Step::Fault(Fault::None)),
        1 => Just(Step::Fault(Fault::Fails)),
        2 => Just(Step::Fault(Fault::AnswerIsLost)),
    ]
}

fn removals() -> impl Strategy<Value = Removal> {
    prop_oneof![Just(Removal::Succeeds), Just(Removal::Fails), Just(Removal::AnswerIsLost), Just(Removal::IsLate)]
}

/// Steps of one service: one, or some that concern the same removal.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let faults = |faults: &[Fault], then: Step| faults.iter().copied().map(Step::Fault).chain([then]).collect();
    prop_oneof![
        12 => step().prop_map(|step| vec![step]),
        // The pin is removed, and that it is complete is not recorded.
        1 => (0..4_usize).prop_map(move |which| faults(&[Fault::None, Fault::Fails], Step::Remove(which))),
        // A removal is decided, and the service does not know.
        1 => (0..4_usize).prop_map(move |which| faults(&[Fault::AnswerIsLost], Step::Remove(which))),
        1 => (0..ROOTS).prop_map(move |root| faults(&[Fault::AnswerIsLost], Step::RejectedUpload(root))),
        // What becomes of the removal of the pin is unknown.
        1 => (0..4_usize, removals()).prop_map(|(which, next)| vec![Step::Remover(next), Step::Remove(which)]),
        // What follows from a change waits.
        1 => proptest::option::of(0..4_usize).prop_map(|removed| vec![Step::Hold(removed), Step::Commit]),
        // What follows from a removal waits for the lock of changes, and then another change.
        1 => (0..4_usize).prop_map(|which| vec![Step::Hold(Some(which)), Step::Hold(None), Step::Settle, Step::Commit]),
        1 => (0..2_usize, 0..ROOTS).prop_map(|(owner, root)| {
            vec![Step::Request { owner, root, replaces: None }, Step::Complete(root)]
        }),
    ]
}

/// What clients were told.
#[derive(Default)]
struct Told {
    /// Requests that were acknowledged, with their owners, in order. Those whose removal failed may be gone.
    requested: Vec<(Arc<str>, usize)>,
    removed: BTreeSet<Arc<str>>,
    maybe_removed: BTreeSet<Arc<str>>,
}

impl Told {
    /// One of the requests that may exist, with its owner.
    fn pick(&self, which: usize) -> Option<(Arc<str>, usize)> {
        let mut open = self.requested.iter().filter(|(id, _)| !self.removed.contains(id));
        open.nth(which).cloned()
    }

    fn remove(&mut self, id: Arc<str>, result: &Result<(), PinsError>) {
        match result {
            Ok(()) => _ = self.removed.insert(id),
            Err(PinsError::Store(_)) => _ = self.maybe_removed.insert(id),
            Err(_) => {}
        }
    }
}

const PINS_MAX: u64 = 5;

/// After how long removals are taken over: never, or as soon as a service looks.
const TAKEN_OVER_AFTER: [Duration; 2] = [Duration::from_hours(1), Duration::ZERO];

/// How long a step may take, on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// How long an upload waits before the changes end that are delayed.
const UPLOAD_WAITS: Duration = Duration::from_millis(50);

/// A service in whose place there is another one, with what it does.
struct Replaced {
    service: Arc<Pins>,
    connection: Arc<Connection>,
    workers: BTreeMap<Cid, CancellationToken>,
    held: Option<(HeldChange, Option<Arc<str>>)>,
}

/// A run of a random history.
struct Run<'a> {
    site: &'a mut Site,
    dags: Vec<Vec<Block>>,
    owners: [Owner; 2],
    told: Told,
    /// The roots that each service fetches, and the tokens that cancel its workers.
    workers: Vec<BTreeMap<Cid, CancellationToken>>,
    /// The change that each service delays, and the request that it removes.
    held: Vec<Option<(HeldChange, Option<Arc<str>>)>>,
    /// Roots of uploads whose pins could not be removed.
    rejected: Vec<(usize, Cid)>,
    paused: Vec<Replaced>,
    has_killed: bool,
}

impl<'a> Run<'a> {
    fn new(site: &'a mut Site) -> Self {
        let owners = ["alice", "bob"].map(|name| Owner { pins_max: Some(PINS_MAX), ..owner(name) });
        let workers = site.services.iter().map(|_| BTreeMap::new()).collect();
        let held = site.services.iter().map(|_| None).collect();
        let (told, rejected, paused) = Default::default();
        Self { site, dags: dags(), owners, told, workers, held, rejected, paused, has_killed: false }
    }

    fn root(&self, number: usize) -> Cid {
        *self.dags[number][0].cid()
    }

    /// Takes a step. One that does not end is a failure that names it.
    async fn step(&mut self, at: usize, step: Step) {
        let name = format!("{step:?}");
        let taken = tokio::time::timeout(STEP_TIMEOUT, self.take(at, step)).await;
        assert!(taken.is_ok(), "{name} at service {at} does not end");
    }

    async fn take(&mut self, at: usize, step: Step) {
        let pins = Arc::clone(&self.site.services[at]);
        match step {
            Step::Hold(removed) => return self.hold(at, removed).await,
            Step::Commit => {
                if let Some((held, _)) = &mut self.held[at] {
                    held.commit().await;
                }
                return;
            }
            Step::Settle => return tokio::time::sleep(Duration::from_millis(1)).await,
            Step::Fault(fault) => return self.site.connections[at].fail(fault),
            Step::Remover(next) => return self.site.late.next(next),
            Step::FlushLate => return self.site.late.flush_late().await,
            Step::Replace { is_killed } => return self.replace(at, is_killed).await,
            _ => self.end_held(at).await,
        }
        match step {
            Step::Request { owner, root, replaces } => self.request(at, owner, root, replaces).await,
            // It would wait for the service that removes the pin.
            Step::Upload { root, .. } | Step::RejectedUpload(root) if pins.index().is_removing(&self.root(root)) => {}
            Step::Upload { owner, root } => self.upload(at, Some(owner), root).await,
            Step::RejectedUpload(root) => self.upload(at, None, root).await,
            Step::Remove(which) => {
                let Some((id, owner)) = self.told.pick(which) else { return };
                let removed = pins.remove(&self.owners[owner].id, &id).await;
                self.told.remove(id, &removed);
            }
            Step::TakeDown(root) => _ = pins.take_down(&self.root(root), "taken down").await,
            Step::Take => self.workers[at].extend(pins.take_next(4)),
            Step::Complete(root) => {
                let cid = self.root(root);
                let is_due = pins.index().is_pending(&cid) && !pins.index().is_removing(&cid);
                if self.workers[at].remove(&cid).is_some() || is_due {
                    _ = self.site.complete(at, &self.dags[root]).await;
                }
            }
            Step::Abandon(root) => {
                let cid = self.root(root);
                if self.workers[at].remove(&cid).is_some() {
                    _ = self.site.end_as(at, cid, None).await;
                }
            }
            Step::GiveUp(root) => _ = self.site.give_up(at, self.root(root)).await,
            Step::Retry(which) => {
                let Some((id, _)) = self.told.pick(which) else { return };
                _ = pins.retry(&id).await;
            }
            // It may have something to append.
            Step::CatchUp => _ = pins.catch_up().await,
            Step::Hold(_) | Step::Commit | Step::Settle | Step::Fault(_) => {}
            Step::Remover(_) | Step::FlushLate | Step::Replace { .. } => {}
        }
    }

    async fn replace(&mut self, at: usize, is_killed: bool) {
        if !self.site.world.options.removals_taken_over_after.is_zero() {
            return;
        }
        let connection = Connection::new(&self.site.world.register);
        let service = connection.start(&self.site.world).await.expect("starts");
        let former = Replaced {
            service: std::mem::replace(&mut self.site.services[at], service),
            connection: std::mem::replace(&mut self.site.connections[at], connection),
            workers: std::mem::take(&mut self.workers[at]),
            held: self.held[at].take(),
        };
        match is_killed {
            true => {
                self.has_killed = true;
                // The change that it delayed may still be made.
                self.told.maybe_removed.extend(former.held.and_then(|(_, removed)| removed));
            }
            false => self.paused.push(former),
        }
    }

    /// Services that were paused go on.
    async fn resume_paused(&mut self) {
        for Replaced { service, connection, workers, held } in std::mem::take(&mut self.paused) {
            self.site.services.push(service);
            self.site.connections.push(connection);
            self.workers.push(workers);
            self.held.push(held);
        }
    }

    async fn request(&mut self, at: usize, owner: usize, root: usize, replaces: Option<usize>) {
        let (pins, wanted) = (&self.site.services[at], wanted(&self.dags[root]));
        let former = replaces.and_then(|which| self.told.pick(which)).filter(|(_, of)| *of == owner);
        let asked = match &former {
            Some((id, _)) => pins.replace(&self.owners[owner], id, wanted).await,
            None => pins.request(&self.owners[owner], wanted).await,
        };
        if let Some((id, _)) = former {
            self.told.remove(id, &asked.as_ref().map(|_| ()).map_err(Clone::clone));
        }
        self.told.requested.extend(asked.ok().map(|request| (request.id, owner)));
    }

    /// An upload, which is recorded for an owner if it is not rejected. If it waits for a removal by another service,
    /// which waits for a change that is delayed, that change ends.
    async fn upload(&mut self, at: usize, owner: Option<usize>, root: usize) {
        let owned = owner.map(|owner| self.owners[owner].clone());
        let uploading = upload(Arc::clone(&self.site.services[at]), owned, self.dags[root].clone());
        let mut uploading = pin!(uploading);
        let uploaded = match tokio::time::timeout(UPLOAD_WAITS, &mut uploading).await {
            Ok(uploaded) => uploaded,
            Err(_) => {
                for other in 0..self.site.services.len() {
                    self.end_held(other).await;
                }
                uploading.await
            }
        };
        match uploaded {
            Uploaded::Recorded(id) => self.told.requested.extend(owner.map(|owner| (id, owner))),
            Uploaded::Removed => {}
            // The caller repeats it later. It may have been appended.
            Uploaded::NotRemoved => self.rejected.push((at, self.root(root))),
        }
    }

    /// Begins a change that delays others. The one before it ends, and what follows from it waits for the new one.
    async fn hold(&mut self, at: usize, removed: Option<usize>) {
        let removed = removed.and_then(|which| self.told.pick(which)).map(|(id, _)| id);
        let mut next = HeldChange::queue(&self.site.services[at], removed.clone());
        // It waits for the lock from now on.
        tokio::task::yield_now().await;
        self.end_held(at).await;
        next.begin().await;
        self.held[at] = Some((next, removed));
    }

    async fn end_held(&mut self, at: usize) {
        let Some((held, removed)) = self.held[at].take() else { return };
        let ended = held.end().await;
        if let Some(id) = removed {
            self.told.remove(id, &ended);
        }
    }

    /// Also returns whether a service was killed.
    async fn end(mut self) -> (Told, bool) {
        self.resume_paused().await;
        for at in 0..self.site.services.len() {
            self.end_held(at).await;
            for root in std::mem::take(&mut self.workers[at]).into_keys() {
                _ = self.site.end_as(at, root, None).await;
            }
        }
        for (at, root) in self.rejected {
            self.site.connections[at].repair();
            self.site.services[at].remove_unneeded(root).await.expect("removes it");
        }
        (self.told, self.has_killed)
    }
}

/// What became of an upload.
enum Uploaded {
    Recorded(Arc<str>),
    /// It was rejected, and its pin is removed.
    Removed,
    /// It was rejected, and its pin could not be removed.
    NotRemoved,
}

async fn upload(pins: Arc<Pins>, owner: Option<Owner>, blocks: Vec<Block>) -> Uploaded {
    let root = *blocks[0].cid();
    let protection = pins.protect(root).await;
    store(&pins.store, &blocks).await;
    if let Some(owner) = owner
        && let Ok(request) = pins.record(&owner, root, None, Meta::new()).await
    {
        return Uploaded::Recorded(request.id);
    }
    drop(protection);
    match pins.remove_unneeded(root).await {
        Ok(()) => Uploaded::Removed,
        Err(_) => Uploaded::NotRemoved,
    }
}

/// Checks that what clients were told holds.
fn check_told(told: &Told, entries: &[StoredRequest]) {
    let known: BTreeSet<&Arc<str>> = entries.iter().map(|entry| &entry.id).collect();
    for (id, _) in &told.requested {
        let may_be_gone = told.removed.contains(id) || told.maybe_removed.contains(id);
        assert!(known.contains(id) || may_be_gone, "an acknowledged request is kept");
        assert!(!(known.contains(id) && told.removed.contains(id)), "an acknowledged removal is kept");
    }
    for name in ["alice", "bob"] {
        let count = entries.iter().filter(|entry| &*entry.owner == name).count() as u64;
        assert!(count <= PINS_MAX, "the quota holds for all services together");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

proptest! {
    #[test]
    fn services_agree_and_keep_what_they_have_acknowledged(
        count in 2..4_usize,
        bytes_max in proptest::sample::select(&ENTRIES_BYTES_MAX[..]),
        steps in proptest::collection::vec((0..2_usize, steps()), 0..40),
        third in proptest::collection::vec(any::<bool>(), 40),
        taken_over_after in proptest::sample::select(&TAKEN_OVER_AFTER[..]),
    ) {
        runtime().block_on(async {
            let mut site = Site::taking_over(count, bytes_max, taken_over_after).await;
            site.world.options.adopted_after = Duration::from_hours(1);
            let mut run = Run::new(&mut site);
            for ((at, steps), third) in steps.into_iter().zip(third) {
                for step in steps {
                    // The third service, if there is one, takes some of the steps.
                    run.step(if third { count - 1 } else { at }, step).await;
                }
            }
            let (told, has_killed) = run.end().await;
            if has_killed {
                // What a service has stored that was killed is the operator's, as in time it will be.
                site.world.options.adopted_after = Duration::ZERO;
                site.start().await;
            }
            check_told(&told, &site.agrees().await);
            site.late.flush_late().await;
            check_told(&told, &site.agrees().await);
        });
    }

    #[test]
    fn a_single_service_keeps_what_it_has_acknowledged_if_appends_fail(
        steps in proptest::collection::vec(steps(), 0..40),
    ) {
        runtime().block_on(async {
            let mut site = Site::single(World::new()).await;
            let mut run = Run::new(&mut site);
            for step in steps.into_iter().flatten() {
                // What it has not written, it does not find in the log.
                let step = match step {
                    Step::Fault(Fault::AnswerIsLost) => Step::Fault(Fault::Fails),
                    // A disk has an answer.
                    Step::Remover(_) => continue,
                    step => step,
                };
                run.step(0, step).await;
            }
            let (told, _) = run.end().await;
            let entries = site.agrees().await;
            check_told(&told, &entries);
            // The next start finds the same, and settles what is stored.
            site.services[0] = site.connections[0].start(&site.world).await.expect("starts");
            let started = site.agrees().await;
            assert_eq!(started.len(), entries.len());
            for (before, after) in entries.into_iter().zip(started) {
                let is_settled = before.is_pending() && after.outcome == PinOutcome::Pinned;
                let expected = match is_settled {
                    true => StoredRequest { outcome: PinOutcome::Pinned, keeps: None, ..before },
                    false => before,
                };
                assert_eq!(after, expected);
            }
        });
    }
}

/// One that starts does not take a pin for an abandoned one that another service is making.
#[tokio::test]
async fn a_start_leaves_pins_alone_that_others_make() {
    let mut site = Site::new(1, 1 << 20).await;
    let dags = dags();
    site.world.options.adopted_after = Duration::from_secs(3600);
    site.store(&dags[0]).await;
    let started = Connection::new(&site.world.register).start(&site.world).await.expect("starts");
    assert_eq!((started.counts().pinned, started.counts().pending), (0, 0));
    site.world.options.adopted_after = Duration::ZERO;
    let started = Connection::new(&site.world.register).start(&site.world).await.expect("starts");
    assert_eq!((started.counts().pinned, started.counts().pending), (1, 0));
}
