//! Pins that lose blocks: their requests, and how they become complete again.

use crate::pinning::index::Counts;
use crate::pinning::tests::*;
use crate::pinning::{Filter, OPERATOR, Progress};
use cache::{Addition, BlockStore, Evict, PinState};
use content::Verdict;
use content::importer::{Attributes, BlockSink, Chunking, File, Importer, Packer, Packing, Profile, SinkError};
use content::stored::{CompressionOptions, Slice};
use futures::StreamExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, mpsc};

/// A world whose upstream answers so many requests, until it gets more permits.
fn world(answers: usize) -> World {
    World { upstream: Upstream::new(answers), ..World::new() }
}

async fn lose(world: &World, block: &Block) {
    let key = BlockKey::of(block.cid()).expect("a block");
    let evicted = world.store.evict(vec![key], Evict::Everything).await.expect("evicts");
    assert_eq!(evicted.blocks, 1);
}

async fn state(world: &World, blocks: &[Block]) -> PinState {
    world.store.pin(blocks[0].cid()).await.expect("reads").expect("there is a pin").state
}

/// Waits until a request waits for lost blocks.
async fn waits(pins: &Pins, request: &PinRequest) -> PinRequest {
    until("it is no longer pinned", async || {
        let waiting = |now: &PinRequest| matches!(now.status, Status::Queued | Status::Pinning);
        pins.get(&request.owner, &request.id).filter(waiting)
    })
    .await
}

#[tokio::test]
async fn a_pin_that_loses_a_block_fetches_it_again() {
    let dir = tempfile::tempdir().expect("a directory");
    for mut world in [World::new(), World::on_disk(dir.path())] {
        let blocks = dag("one", 0..5);
        world.upstream = Upstream::new(6);
        world.upstream.has(&blocks);
        let pins = world.start().await;
        let request = pin(&pins, &owner("alice"), wanted(&blocks)).await;
        lose(&world, &blocks[3]).await;
        let waiting = waits(&pins, &request).await;
        let details = waiting.details.as_deref().unwrap_or_default();
        assert!(details.contains("blocks of it were lost"), "{details}");
        stores(&pins, &request, without(&blocks, &[3])).await;
        assert_eq!(pins.metrics.losses.get(), 1);
        assert_eq!(pins.used("alice").bytes, bytes_of(&blocks), "its usage is unchanged");
        assert_eq!(pins.counts(), Counts { pending: 1, incomplete_roots: 1, ..pins.counts() });
        let poor = Owner { bytes_max: Some(bytes_of(&blocks) - 1), ..owner("poor") };
        let refused = pins.request(&poor, wanted(&blocks)).await;
        assert!(matches!(refused, Err(PinsError::Quota(_))), "its size is unchanged: {refused:?}");
        // A new request for it is not pinned immediately.
        let other = pins.request(&owner("other"), wanted(&blocks)).await.expect("is asked for");
        assert_ne!(other.status, Status::Pinned);
        world.upstream.permits.add_permits(1);
        becomes(&pins, &request, Status::Pinned).await;
        becomes(&pins, &other, Status::Pinned).await;
        assert_eq!(world.upstream.asked(), 7, "only the lost block is fetched again");
        assert_eq!((state(&world, &blocks).await, pins.counts().incomplete_roots), (PinState::Complete, 0));
        assert_eq!(pins.get("alice", &request.id).expect("it is there").progress, without(&blocks, &[]));
        pins.stop().await;
    }
}

/// Waits until the missing blocks of a request's root are counted, so that these ones are shown as stored.
async fn stores(pins: &Pins, request: &PinRequest, stored: Progress) {
    let is_shown = async || pins.get(&request.owner, &request.id).filter(|now| now.progress == stored);
    until("its missing blocks are counted", is_shown).await;
}

/// A predicate for withheld blocks, of which a store is asked for each missing block while it counts them.
struct Checks {
    count: Arc<AtomicUsize>,
    /// Dropped, it lets the checks proceed.
    closed: mpsc::Sender<()>,
}

impl Checks {
    /// Nothing is withheld, and checks wait.
    fn of(store: &dyn BlockStore) -> Self {
        let count = Arc::<AtomicUsize>::default();
        let (closed, opened) = mpsc::channel();
        let (counter, opened) = (Arc::clone(&count), std::sync::Mutex::new(opened));
        store.set_is_withheld(Box::new(move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            opened.lock().unwrap_or_else(PoisonError::into_inner).recv().is_ok()
        }));
        Self { count, closed }
    }

    async fn begin(&self) {
        until("a missing block is checked", async || (self.count.load(Ordering::SeqCst) > 0).then_some(())).await;
    }
}

#[tokio::test]
async fn losses_and_requests_do_not_wait_until_the_missing_blocks_of_another_pin_are_counted() {
    let world = World::new();
    let checks = Checks::of(&*world.store);
    let [first, second, new] = [("first", 0..3), ("second", 3..6), ("new", 6..9)].map(|(name, at)| dag(name, at));
    for blocks in [&first, &second, &new] {
        world.upstream.has(blocks);
    }
    let pins = world.start().await;
    let alice = owner("alice");
    let (one, two) = (pin(&pins, &alice, wanted(&first)).await, pin(&pins, &alice, wanted(&second)).await);
    lose(&world, &first[2]).await;
    waits(&pins, &one).await;
    checks.begin().await;
    lose(&world, &second[2]).await;
    waits(&pins, &two).await;
    // Requests for the root itself and for another one.
    let again = pins.request(&owner("bob"), wanted(&first)).await.expect("is asked for");
    assert_ne!(again.status, Status::Pinned);
    let new = pins.request(&alice, wanted(&new)).await.expect("is asked for");
    drop(checks.closed);
    for request in [&one, &two, &again, &new] {
        becomes(&pins, request, Status::Pinned).await;
    }
    assert_eq!(pins.metrics.losses.get(), 2);
    pins.stop().await;
}

#[tokio::test]
async fn a_count_of_missing_blocks_does_not_replace_the_figures_of_a_worker() {
    let world = World::new();
    let checks = Checks::of(&*world.store);
    let blocks = dag("one", 0..3);
    let supply = futures::stream::iter(blocks.iter().cloned().map(Ok::<_, SourceError>));
    world.store.pin_recursive(*blocks[0].cid(), None, supply).await.expect("pins");
    lose(&world, &blocks[2]).await;
    let pins = Pins::idle(&world.store);
    let request = pins.request(&owner("alice"), wanted(&blocks)).await.expect("is asked for");
    let root = request.root;
    pins.index_mut().set_progress(&root, Progress { blocks: 4, bytes: bytes_of(&blocks) }, false);
    let count = Arc::clone(&checks.count);
    let began = async {
        checks.begin().await;
        let now_ms = pins.index().clock.now_ms();
        assert_eq!(pins.index_mut().take_next(now_ms, 1), Some(root));
        drop(checks.closed);
    };
    tokio::join!(pins.measure_inactive(&root), began);
    assert_eq!(pins.get("alice", &request.id).expect("it is there").progress, without(&blocks, &[]));
    let counted = count.load(Ordering::SeqCst);
    pins.measure_inactive(&root).await;
    assert_eq!(count.load(Ordering::SeqCst), counted, "a worker counts them");
    pins.index_mut().end_work(&root);
    pins.measure_inactive(&root).await;
    stores(&pins, &request, without(&blocks, &[2])).await;
}

/// The stored blocks of a DAG without some of its blocks.
fn without(blocks: &[Block], missing: &[usize]) -> Progress {
    let stored = blocks.iter().enumerate().filter(|(at, _)| !missing.contains(at));
    let stored: Vec<Block> = stored.map(|(_, block)| block.clone()).collect();
    Progress { blocks: stored.len() as u64, bytes: bytes_of(&stored) }
}

#[tokio::test]
async fn the_stored_blocks_of_incomplete_pins_are_counted_at_the_start() {
    // One worker, which waits for the network: one of the pins stays in the queue.
    let mut world = world(0);
    world.options.workers_max = 1;
    let (lost, unfinished) = (dag("lost", 0..4), dag("unfinished", 4..8));
    let supply = |blocks: &[Block]| {
        let blocks = blocks.to_vec();
        futures::stream::iter(blocks.into_iter().map(Ok::<_, SourceError>))
    };
    world.store.pin_recursive(*lost[0].cid(), None, supply(&lost)).await.expect("pins");
    let ends_early = supply(&unfinished[..3]).chain(futures::stream::iter([Err(SourceError::Closed)]));
    world.store.pin_recursive(*unfinished[0].cid(), None, ends_early).await.expect_err("it ended early");
    lose(&world, &lost[2]).await;
    lose(&world, &unfinished[1]).await;
    let pins = world.start().await;
    let expected = [(&lost, without(&lost, &[2])), (&unfinished, without(&unfinished, &[1, 3, 4]))];
    for (blocks, expected) in expected {
        until("it is counted", async || {
            let found = pins.of_root(OPERATOR, blocks[0].cid());
            found.first().filter(|now| now.progress == expected).cloned()
        })
        .await;
    }
    pins.stop().await;
}

#[tokio::test]
async fn lost_blocks_are_fetched_after_a_restart() {
    let world = world(6);
    let (mine, operators) = (dag("mine", 0..2), dag("operators", 2..4));
    world.upstream.has(&mine);
    world.upstream.has(&operators);
    let supply = futures::stream::iter(operators.iter().cloned().map(Ok::<_, SourceError>));
    world.store.pin_recursive(*operators[0].cid(), None, supply).await.expect("pins");
    let pins = world.start().await;
    let request = pin(&pins, &owner("alice"), wanted(&mine)).await;
    let taken_in = pins.list(OPERATOR, &Filter { limit: 1, ..Filter::default() }).await.requests.remove(0);
    pins.stop().await;
    // While no service runs, as by a check; and while one runs that is killed before it is notified.
    lose(&world, &mine[1]).await;
    lose(&world, &operators[2]).await;
    world.upstream.permits.forget_permits(100);
    let pins = world.start().await;
    for request in [&request, &taken_in] {
        let now = pins.get(&request.owner, &request.id).expect("it is there");
        assert_ne!(now.status, Status::Pinned, "{}", now.owner);
    }
    assert_eq!(pins.counts().incomplete_roots, 2);
    world.upstream.permits.add_permits(100);
    becomes(&pins, &request, Status::Pinned).await;
    becomes(&pins, &taken_in, Status::Pinned).await;
    pins.stop().await;
}

#[tokio::test]
async fn a_pin_that_was_complete_never_fails() {
    let mut world = World::new();
    world.options.give_up = Duration::ZERO;
    world.options.retry_max = Duration::from_millis(20);
    let blocks = dag("one", 0..3);
    let supply = futures::stream::iter(blocks.iter().cloned().map(Ok::<_, SourceError>));
    world.store.pin_recursive(*blocks[0].cid(), None, supply).await.expect("pins");
    let pins = world.start().await;
    let request = pins.list(OPERATOR, &Filter { limit: 1, ..Filter::default() }).await.requests.remove(0);
    lose(&world, &blocks[2]).await;
    until("it was tried again and again", async || {
        pins.get(OPERATOR, &request.id).filter(|now| now.attempts >= 4 && now.status == Status::Queued)
    })
    .await;
    assert!(world.holds(&blocks[1]).await, "the rest is kept");
    world.upstream.has(&blocks);
    becomes(&pins, &request, Status::Pinned).await;
    pins.stop().await;
}

#[tokio::test]
async fn a_pin_that_loses_a_block_during_an_attempt_is_tried_again_soon() {
    let mut world = world(5);
    world.options.retry_first = Duration::from_hours(1);
    let blocks = dag("one", 0..4);
    world.upstream.has(&blocks);
    let pins = world.start().await;
    let request = pin(&pins, &owner("alice"), wanted(&blocks)).await;
    // An attempt that has fetched one of two blocks.
    let keys = blocks[2..4].iter().map(|block| BlockKey::of(block.cid()).expect("a block")).collect();
    let evicted = world.store.evict(keys, Evict::Everything).await.expect("evicts");
    assert_eq!(evicted.blocks, 2);
    world.upstream.permits.add_permits(1);
    until("it has fetched one", async || (world.upstream.asked() == 6).then_some(())).await;
    lose(&world, &blocks[1]).await;
    world.upstream.permits.add_permits(100);
    becomes(&pins, &request, Status::Pinned).await;
    assert_eq!((state(&world, &blocks).await, pins.counts().incomplete_roots), (PinState::Complete, 0));
    pins.stop().await;
}

#[tokio::test]
async fn a_lost_block_that_is_stored_in_another_way_completes_the_pin_soon() {
    let mut world = World::new();
    world.options.retry_first = Duration::from_hours(1);
    let blocks = dag("one", 0..3);
    world.upstream.has(&blocks);
    let pins = world.start().await;
    let request = pin(&pins, &owner("alice"), wanted(&blocks)).await;
    world.upstream = Upstream::new(0);
    let pins = {
        pins.stop().await;
        // A block that no peer has any more.
        world.upstream = Upstream::new(Semaphore::MAX_PERMITS);
        world.start().await
    };
    lose(&world, &blocks[2]).await;
    until("the next attempt is an hour away", async || {
        pins.get("alice", &request.id).filter(|now| now.next_attempt.is_some())
    })
    .await;
    world.store.put_cached(blocks[2].clone()).await;
    becomes(&pins, &request, Status::Pinned).await;
    pins.stop().await;
}

/// A policy that changes.
#[derive(Default)]
struct Rules(RwLock<DenyList>);

impl Rules {
    fn set(&self, denied: Vec<Cid>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = DenyList::new(denied);
    }
}

impl Policy for Rules {
    fn generation(&self) -> u64 {
        0
    }

    fn check(&self, cid: &Cid) -> Verdict {
        self.0.read().unwrap_or_else(PoisonError::into_inner).check(cid)
    }
}

#[tokio::test]
async fn withheld_blocks_are_not_fetched_until_the_rules_change() {
    let rules = Arc::new(Rules::default());
    let world = World { policy: Arc::clone(&rules) as _, ..World::new() };
    let checks = Arc::<AtomicUsize>::default();
    let (counter, is_withheld) = (Arc::clone(&checks), cache::withheld_by(&world.policy));
    world.store.set_is_withheld(Box::new(move |key| {
        counter.fetch_add(1, Ordering::SeqCst);
        is_withheld(key)
    }));
    let blocks = dag("one", 0..5);
    world.upstream.has(&blocks);
    let pins = world.start().await;
    let request = pin(&pins, &owner("alice"), wanted(&blocks)).await;
    // One block is withheld and stored; another is withheld and was deleted, as by a take-down.
    rules.set(vec![*blocks[2].cid(), *blocks[3].cid()]);
    lose(&world, &blocks[3]).await;
    let asked = world.upstream.asked();
    let told = becomes(&pins, &request, Status::Failed).await;
    let details = told.details.as_deref().unwrap_or_default();
    assert!(details.contains("1 block is withheld") && details.contains(&blocks[3].cid().to_string()), "{details}");
    assert_eq!(told.progress, without(&blocks, &[3]), "what is withheld and gone is not stored");
    assert_eq!(pins.metrics.losses.get(), 0, "nothing is lost");
    assert_eq!((pins.counts().withheld, pins.counts().incomplete_roots, pins.counts().failed), (1, 0, 0));
    assert_eq!(world.upstream.asked(), asked, "it is not fetched");
    assert!(world.holds(&blocks[1]).await && world.holds(&blocks[2]).await, "the rest is kept");
    assert_eq!(pins.used("alice").bytes, bytes_of(&blocks));
    // Another request for it costs neither an attempt nor a count of its blocks.
    let checked = checks.load(Ordering::SeqCst);
    let other = pins.request(&owner("bob"), wanted(&blocks)).await.expect("is asked for");
    assert_eq!((other.status, &other.details), (Status::Failed, &told.details));
    let replaced = pins.replace(&owner("bob"), &other.id, named(&blocks, "another")).await.expect("is replaced");
    assert_eq!((replaced.status, replaced.progress), (Status::Failed, told.progress));
    assert_eq!((pins.counts().pending, checks.load(Ordering::SeqCst)), (0, checked));
    // A corrupt block of the same DAG is fetched again.
    lose(&world, &blocks[4]).await;
    until("it was fetched", async || (world.upstream.asked() == asked + 1).then_some(())).await;
    becomes(&pins, &request, Status::Failed).await;
    assert_eq!(pins.metrics.losses.get(), 1, "the corrupt block was lost");
    // The next process loads the state, and is notified of changes of the rules.
    pins.stop().await;
    let pins = world.start().await;
    becomes(&pins, &request, Status::Failed).await;
    rules.set(Vec::new());
    pins.recheck_withheld();
    becomes(&pins, &request, Status::Pinned).await;
    becomes(&pins, &replaced, Status::Pinned).await;
    assert_eq!(pins.metrics.losses.get(), 0, "a block that is fetched because its rule was removed was not lost");
    assert!(world.holds(&blocks[3]).await);
    assert_eq!((state(&world, &blocks).await, pins.counts().withheld), (PinState::Complete, 0));
    pins.stop().await;
}

#[tokio::test]
async fn an_import_that_completes_a_pin_settles_its_requests() {
    let world = World::new();
    let blocks = dag("one", 0..3);
    let supply = || futures::stream::iter(blocks.iter().cloned().map(Ok::<_, SourceError>));
    let root = *blocks[0].cid();
    world.store.pin_recursive(root, None, supply()).await.expect("pins");
    let pins = world.start().await;
    let request = pins.list(OPERATOR, &Filter { limit: 1, ..Filter::default() }).await.requests.remove(0);
    lose(&world, &blocks[2]).await;
    waits(&pins, &request).await;
    world.store.pin_recursive(root, None, supply()).await.expect("pins");
    let recorded = pins.record_once(&Owner::operator(), root, None).await.expect("records");
    assert_eq!((&recorded.id, recorded.status), (&request.id, Status::Pinned));
    pins.stop().await;
}

/// The import is faster than the worker, which waits for a block of the network.
#[tokio::test]
async fn an_import_settles_the_request_of_a_dag_that_is_being_fetched() {
    let mut world = World::new();
    world.upstream = Upstream::new(0);
    let blocks = dag("one", 0..3);
    let pins = world.start().await;
    let request = pins.request(&Owner::operator(), wanted(&blocks)).await.expect("is accepted");
    until("it is being fetched", async || (pins.index().counts().active_roots == 1).then_some(())).await;
    let supply = futures::stream::iter(blocks.iter().cloned().map(Ok::<_, SourceError>));
    world.store.pin_recursive(*blocks[0].cid(), None, supply).await.expect("pins");
    let recorded = pins.record_once(&Owner::operator(), *blocks[0].cid(), None).await.expect("records");
    assert_eq!((&recorded.id, recorded.status), (&request.id, Status::Pinned));
    assert_eq!(pins.of_root(OPERATOR, blocks[0].cid()).len(), 1);
    pins.stop().await;
}

/// What a store is given of a packed file, in order.
#[derive(Default)]
struct PackedItems {
    blocks: Vec<Block>,
    /// Each slice with the number of blocks before it.
    slices: Vec<(usize, Cid, Slice)>,
}

impl BlockSink for PackedItems {
    fn put(&mut self, block: Block) -> Result<(), SinkError> {
        self.blocks.push(block);
        Ok(())
    }

    fn put_slice(&mut self, leaf: &Cid, slice: Slice) -> Result<(), SinkError> {
        self.slices.push((self.blocks.len(), *leaf, slice));
        Ok(())
    }
}

/// The plain leaves of a packed file exist at no other node, but their frames do.
#[tokio::test]
async fn a_packed_file_is_restored_from_its_zstd_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let world = World::on_disk(dir.path());
    let profile = Profile { chunking: Chunking::size(4_000).expect("a size"), ..Profile::UNIXFS_V1_2025 };
    let packing = Packing::new(&profile, CompressionOptions::default()).expect("small chunks");
    let importer = Importer::new(profile).expect("a profile");
    let File { mut chunker, leaves, mut layout } = importer.file(Attributes::default());
    let text: Vec<u8> = (0..4_000_u32).flat_map(|line| format!("line {line}\n").into_bytes()).collect();
    let (mut items, mut packer, mut rest) = (PackedItems::default(), Packer::new().expect("a packer"), &text[..]);
    while let Some(chunk) = chunker.push(&mut rest) {
        let (part, leaf) = leaves.leaf(chunk).expect("small");
        packer.push(packing.pack(leaf, part.file_bytes).expect("compresses"), &mut items).expect("is taken");
        layout.push(part, &mut items).expect("is taken");
    }
    let packed = packer.finish(&mut items).expect("is taken").expect("text shrinks");
    let root = layout.finish(&mut items).expect("is taken").cid;
    let mut addition = Addition::begin(&*world.store).await.expect("begins");
    for (number, block) in items.blocks.iter().enumerate() {
        addition.put(block).await.expect("is taken");
        for (_, leaf, slice) in items.slices.iter().filter(|(before, ..)| *before == number + 1) {
            addition.put_slice(leaf, slice.clone()).await.expect("is taken");
        }
    }
    addition.set_packed(root, packed.zstd_file.cid);
    addition.pin(&[root], None).await.expect("pins");
    world.upstream.has(&items.blocks);

    let pins = world.start().await;
    let request = pins.list(OPERATOR, &Filter { limit: 10, ..Filter::default() }).await.requests.remove(0);
    assert_eq!(pins.zstd_file(&root), Some(packed.zstd_file.cid));
    let (_, leaf, slice) = items.slices[2].clone();
    let evicted = world.store.evict(vec![slice.base], Evict::Everything).await.expect("evicts");
    assert_eq!(evicted.blocks, 1);
    until("it is complete again", async || {
        let pin = world.store.pin(&root).await.expect("reads").expect("there is a pin");
        Some(()).filter(|()| pin.state == PinState::Complete && pin.packed == Some(packed.zstd_file.cid))
    })
    .await;
    becomes(&pins, &request, Status::Pinned).await;
    assert_eq!(world.upstream.asked(), 1, "only the frame is fetched");
    assert!(world.store.get(&leaf).await.is_ok());
    pins.stop().await;
}
