//! Several services that append to one log, over one block store.

use crate::pinning::coordination::{Coordination, SingleService};
use crate::pinning::index::{PinOutcome, StoredRequest};
use crate::pinning::record;
use crate::pinning::tests::*;
use crate::pinning::{Meta, QuotaUsage};
use cache::metadata_store::{Appended, Change, LogPosition, MetadataLog};
use cache::{PinState, PinSummary, StoreError};
use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use tokio::sync::watch;

/// The latest entries that the log keeps: all of them, some, none.
const ENTRIES_BYTES_MAX: [usize; 3] = [1 << 20, 600, 0];

/// What becomes of an append.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// It fails.
    Fails,
    /// It succeeds, and the answer is lost.
    AnswerIsLost,
}

/// A service's connection to the log. It has the faults that it is given, one for each append of changes.
#[derive(Debug)]
struct Connection {
    log: MetadataStore,
    faults: Mutex<VecDeque<Fault>>,
}

impl Connection {
    fn new(log: &MetadataStore) -> Arc<Self> {
        Arc::new(Self { log: log.clone(), faults: Mutex::default() })
    }

    fn fail(&self, fault: Fault) {
        self.faults.lock().expect("a list").push_back(fault);
    }

    fn repair(&self) {
        self.faults.lock().expect("a list").clear();
    }
}

impl MetadataLog for Connection {
    fn read(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<LogPosition, StoreError> {
        self.log.read(visit)
    }

    fn append(&self, after: LogPosition, changes: Vec<Change>) -> BoxFuture<'static, Result<Appended, StoreError>> {
        let fault = if changes.is_empty() { None } else { self.faults.lock().expect("a list").pop_front() };
        let append = self.log.append(after, changes);
        async move {
            let lost = Err(StoreError::Io("the connection was lost".into()));
            match fault {
                Some(Fault::Fails) => lost,
                Some(Fault::AnswerIsLost) => append.await.and(lost),
                None => append.await,
            }
        }
        .boxed()
    }

    fn watch(&self) -> Option<watch::Receiver<LogPosition>> {
        self.log.watch()
    }
}

/// Services that do not fetch, and learn of each other when they append or catch up.
struct Site {
    world: World,
    connections: Vec<Arc<Connection>>,
    services: Vec<Arc<Pins>>,
}

impl Site {
    async fn new(count: usize, entries_bytes_max: usize) -> Self {
        let mut world = World::new();
        world.register = world.register.shared(entries_bytes_max);
        let (mut connections, mut services) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let connection = Connection::new(&world.register);
            let coordination = Coordination { log: Arc::clone(&connection) as _, claims: Arc::new(SingleService) };
            services.push(Pins::alone(coordination, &world.store).await.expect("starts"));
            connections.push(connection);
        }
        Self { world, connections, services }
    }

    async fn store(&self, blocks: &[Block]) -> PinSummary {
        let supply = futures::stream::iter(blocks.iter().cloned().map(Ok::<_, SourceError>));
        self.world.store.pin_recursive(*blocks[0].cid(), None, supply).await.expect("pins")
    }

    /// Ends an attempt of a service to fetch a DAG, successfully.
    async fn complete(&self, at: usize, blocks: &[Block]) -> Result<(), PinsError> {
        // By the time that it is settled, another service may have removed it.
        let (root, summary) = (*blocks[0].cid(), self.store(blocks).await);
        let pins = Arc::clone(&self.services[at]);
        let change = async move { pins.end(&root, Some(Ok(summary)), true).await };
        self.services[at].spawn_worker_change(change).await
    }

    async fn give_up(&self, at: usize, root: Cid) -> Result<(), PinsError> {
        let pins = Arc::clone(&self.services[at]);
        let outcome = PinOutcome::Failed("no peer has it".into());
        let change = async move { pins.settle_pending(&root, &outcome).await };
        self.services[at].spawn_change(change).await
    }

    /// Waits until all services have applied everything, and have carried out what follows.
    async fn settles(&self) {
        self.connections.iter().for_each(|connection| connection.repair());
        let all_are_current = async || {
            for pins in &self.services {
                pins.catch_up().await.expect("catches up");
            }
            let records = record::load(&self.world.register).expect("reads");
            let is_current = |pins: &Arc<Pins>| pins.index().position == records.position && !pins.follows_up();
            let stored = self.world.pinned().await;
            let is_needed = |root: &Cid| self.services[0].index().is_needed(root);
            let is_clean = records.orphans.is_empty() && stored.iter().all(is_needed);
            (is_clean && self.services.iter().all(is_current)).then_some(())
        };
        until("all are current, and no pin is left over", all_are_current).await;
    }

    /// Checks that all services have the same state, which is that of the records, and that the block store has the
    /// pins that are acknowledged.
    async fn agrees(&self) -> Vec<StoredRequest> {
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
async fn a_root_waits_while_another_service_removes_its_pin() {
    let site = Site::new(2, 1 << 20).await;
    let (dags, alice) = (dags(), owner("alice"));
    let [one, other] = [&site.services[0], &site.services[1]];
    let request = one.request(&alice, wanted(&dags[0])).await.expect("is asked for");
    site.complete(0, &dags[0]).await.expect("is pinned");
    other.catch_up().await.expect("catches up");
    // The removal is decided and carried out. That it is complete cannot be appended.
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
    other.let_go(request.root).await.expect("it goes");
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
    Request { owner: usize, root: usize, replaces: Option<usize> },
    Upload { owner: usize, root: usize },
    Remove(usize),
    TakeDown(usize),
    Complete(usize),
    GiveUp(usize),
    Retry(usize),
    CatchUp,
    Fault(Fault),
}

fn step() -> impl Strategy<Value = Step> {
    let request = (0..2_usize, 0..4_usize, proptest::option::weighted(0.2, 0..8_usize))
        .prop_map(|(owner, root, replaces)| Step::Request { owner, root, replaces });
    prop_oneof![
        6 => request,
        2 => (0..2_usize, 0..4_usize).prop_map(|(owner, root)| Step::Upload { owner, root }),
        4 => (0..8_usize).prop_map(Step::Remove),
        1 => (0..4_usize).prop_map(Step::TakeDown),
        4 => (0..4_usize).prop_map(Step::Complete),
        1 => (0..4_usize).prop_map(Step::GiveUp),
        1 => (0..8_usize).prop_map(Step::Retry),
        2 => Just(Step::CatchUp),
        1 => Just(Step::Fault(Fault::Fails)),
        2 => Just(Step::Fault(Fault::AnswerIsLost)),
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
        let open = self.requested.iter().filter(|(id, _)| !self.removed.contains(id));
        open.cloned().nth(which)
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

async fn run(site: &Site, steps: Vec<(usize, Step)>) -> Told {
    let (dags, mut told) = (dags(), Told::default());
    let owners = ["alice", "bob"].map(|name| Owner { pins_max: Some(PINS_MAX), ..owner(name) });
    for (at, step) in steps {
        let pins = &site.services[at];
        match step {
            Step::Request { owner, root, replaces } => {
                let former = replaces.and_then(|which| told.pick(which)).filter(|(_, of)| *of == owner);
                let asked = match &former {
                    Some((id, _)) => pins.replace(&owners[owner], id, wanted(&dags[root])).await,
                    None => pins.request(&owners[owner], wanted(&dags[root])).await,
                };
                if let Some((id, _)) = former {
                    told.remove(id, &asked.as_ref().map(|_| ()).map_err(Clone::clone));
                }
                told.requested.extend(asked.ok().map(|request| (request.id, owner)));
            }
            // It would wait for the service that removes the pin.
            Step::Upload { root, .. } if pins.index().is_removing(dags[root][0].cid()) => {}
            Step::Upload { owner, root } => {
                let root_cid = *dags[root][0].cid();
                let protection = pins.protect(root_cid).await;
                site.store(&dags[root]).await;
                let recorded = pins.record(&owners[owner], root_cid, None, Meta::new()).await;
                drop(protection);
                if recorded.is_err() {
                    site.connections[at].repair();
                    pins.let_go(root_cid).await.expect("it goes");
                }
                told.requested.extend(recorded.ok().map(|request| (request.id, owner)));
            }
            Step::Remove(which) => {
                let Some((id, owner)) = told.pick(which) else { continue };
                let removed = pins.remove(&owners[owner].id, &id).await;
                told.remove(id, &removed);
            }
            Step::TakeDown(root) => _ = pins.take_down(dags[root][0].cid(), "taken down").await,
            Step::Complete(root) => {
                let cid = *dags[root][0].cid();
                if pins.index().is_pending(&cid) && !pins.index().is_removing(&cid) {
                    _ = site.complete(at, &dags[root]).await;
                }
            }
            Step::GiveUp(root) => _ = site.give_up(at, *dags[root][0].cid()).await,
            Step::Retry(which) => {
                let Some((id, _)) = told.pick(which) else { continue };
                _ = pins.retry(&id).await;
            }
            // It may have something to append.
            Step::CatchUp => _ = pins.catch_up().await,
            Step::Fault(fault) => site.connections[at].fail(fault),
        }
    }
    told
}

proptest! {
    #[test]
    fn services_agree_and_keep_what_they_have_acknowledged(
        count in 2..4_usize,
        bytes_max in proptest::sample::select(&ENTRIES_BYTES_MAX[..]),
        steps in proptest::collection::vec((0..2_usize, step()), 0..40),
        third in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let site = Site::new(count, bytes_max).await;
            // The third service, if there is one, takes some of the steps.
            let steps = steps.into_iter().zip(third).map(|((at, step), third)| (if third { count - 1 } else { at }, step));
            let told = run(&site, steps.collect()).await;
            let entries = site.agrees().await;
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
        });
    }
}
