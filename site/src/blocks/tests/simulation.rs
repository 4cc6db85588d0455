//! Gateways that store, pin, read, unpin, evict, collect and reconcile blocks at the same time, in thousands of orders.
//!
//! A schedule is a sequence of choices by a random number: which of the requests that were sent is carried out next,
//! whether its answer is lost or it is refused, and when a gateway stops. A request whose sender has stopped may be
//! carried out at any time later. After each request the state is checked, and in the end what is left behind.

use super::memory::{Fate, Row, Services, SimulatedIndex, SimulatedObjects, State};
use crate::blocks::{ObjectId, SharedBlock, SharedBlocks};
use bytes::Bytes;
use cache::{PinError, PinState};
use content::stored::{CompressionOptions, Encoder, Stored};
use content::{Block, BlockKey, Cid, codec, hashes};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Waker};
use std::time::Duration;

/// Gateways that work at the same time.
const GATEWAYS: usize = 4;
/// Blocks that there are. DAGs have three each, of which neighbours share two.
const BLOCKS: u64 = 7;
const DAG_BLOCKS: u64 = 3;
/// Requests of a schedule.
const REQUESTS: usize = 400;
/// Schedules of a test. There is an environment variable for more.
const SCHEDULES: u64 = 1500;
const SCHEDULES_VARIABLE: &str = "SITE_SCHEDULES";

/// SplitMix64 (<https://prng.di.unimi.it/splitmix64.c>).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("fits")
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The blocks that there are, with their CIDs.
static STORED: LazyLock<Vec<(Cid, SharedBlock)>> = LazyLock::new(|| (0..BLOCKS).map(encode).collect());

fn encode(number: u64) -> (Cid, SharedBlock) {
    let block = Block::of(codec::RAW, hashes::SHA2_256, 32, content_of(number)).expect("a block");
    let stored = Encoder::new(CompressionOptions::default()).expect("an encoder").encode(&block);
    (*block.cid(), SharedBlock { key: BlockKey::of(block.cid()).expect("has a key"), stored })
}

fn nth(number: u64) -> &'static (Cid, SharedBlock) {
    &STORED[usize::try_from(number).expect("fits")]
}

fn block(number: u64) -> SharedBlock {
    nth(number).1.clone()
}

fn key(number: u64) -> BlockKey {
    nth(number).1.key
}

fn root(number: u64) -> Cid {
    nth(number).0
}

fn content_of(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

fn is_block(stored: &Stored, number: u64) -> bool {
    stored.block().is_ok_and(|content| content == content_of(number))
}

/// The blocks of a DAG, with its root first.
fn dag(root: u64) -> Vec<u64> {
    (root..root + DAG_BLOCKS).map(|number| number % BLOCKS).collect()
}

/// What a gateway does, until it has done it, fails, or stops.
fn work(shared: SharedBlocks, random: &mut Random, pinned: Arc<AtomicUsize>) -> BoxFuture<'static, ()> {
    let (number, what) = (random.below(BLOCKS), random.below(100));
    let (by_one, ahead) = (random.chance(50), random.chance(30));
    let slot = ObjectId { key: key(number), generation: 0 }.slot();
    let cached_bytes_max = random.below(400);
    async move {
        match what {
            0..40 => {
                if pin(&shared, number, by_one, ahead).await.is_ok() {
                    pinned.fetch_add(1, Ordering::Relaxed);
                }
            }
            40..55 => _ = shared.remove_pin(root(number), None).await,
            55..65 => while let Ok(true) = shared.release_members().await {},
            65..70 => _ = shared.put(vec![block(number)], None).await,
            70..72 => {
                if let Ok(written) = shared.write_pending(vec![block(number)]).await {
                    shared.discard(written.iter().map(|written| written.object).collect()).await;
                }
            }
            72..80 => _ = read(&shared, number).await,
            80..85 => _ = shared.evict(cached_bytes_max, usize::MAX).await,
            85..87 => _ = shared.evict_unpinned(&[key(number), key((number + 1) % BLOCKS)]).await,
            87..88 => _ = shared.evict_all(&[key(number), key((number + 1) % BLOCKS)]).await,
            88..94 => _ = shared.sweep().await,
            _ => _ = shared.reconcile(slot, u64::MAX).await,
        }
    }
    .boxed()
}

/// `ahead`: blocks are written before the pin has begun, as those of an upload are, and may not be needed.
async fn pin(shared: &SharedBlocks, number: u64, by_one: bool, ahead: bool) -> Result<(), PinError> {
    let blocks: Vec<SharedBlock> = dag(number).into_iter().map(block).collect();
    let written = if ahead { shared.write_pending(blocks.clone()).await? } else { Vec::new() };
    let attempt = shared.begin_pin(root(number), None).await?;
    if !written.is_empty() {
        shared.commit(written, Some(&attempt)).await?;
    }
    let puts = if by_one { blocks.into_iter().map(|block| vec![block]).collect() } else { vec![blocks] };
    for blocks in puts {
        shared.put(blocks, Some(&attempt)).await?;
    }
    shared.finish_pin(attempt).await?;
    Ok(())
}

/// Reads a DAG. Whether all of its blocks were read.
async fn read(shared: &SharedBlocks, number: u64) -> bool {
    let numbers = dag(number);
    let keys: Vec<BlockKey> = numbers.iter().copied().map(key).collect();
    let blocks = shared.get(&keys).await;
    assert_eq!(blocks.len(), keys.len());
    for (stored, number) in blocks.iter().zip(numbers) {
        let is_right = |stored: &Option<Stored>| stored.as_ref().is_none_or(|stored| is_block(stored, number));
        assert!(stored.as_ref().is_ok_and(is_right) || stored.is_err(), "a wrong block");
    }
    blocks.iter().all(|stored| matches!(stored, Ok(Some(_))))
}

/// A schedule.
struct Simulation {
    random: Random,
    services: Services,
    shared: SharedBlocks,
    gateways: Vec<Option<BoxFuture<'static, ()>>>,
    /// Objects that the storage has lost or damaged.
    damaged: BTreeSet<String>,
    /// Whether it does so.
    damages: bool,
    /// Pins that were completed.
    pinned: Arc<AtomicUsize>,
}

impl Simulation {
    fn new(seed: u64, damages: bool) -> Self {
        let services = Services::deferred();
        let (index, objects) = (SimulatedIndex(services.clone()), SimulatedObjects(services.clone()));
        let opening = SharedBlocks::open(Arc::new(index), Arc::new(objects), "simulated");
        let mut random = Random(seed);
        let generations = std::sync::Mutex::new(Random(seed ^ 1));
        let generate = move || Ok(generations.lock().expect("no test panics with it").next());
        let shared = Self::complete(&services, opening).expect("opens");
        let shared = shared.with_pending_age(Duration::ZERO).with_generations(generate);
        random.next();
        let gateways = (0..GATEWAYS).map(|_| None).collect();
        Self { random, services, shared, gateways, damaged: BTreeSet::new(), damages, pinned: Arc::default() }
    }

    /// Runs one task alone, with every request carried out.
    fn complete<T>(services: &Services, task: impl Future<Output = T>) -> T {
        let mut task = std::pin::pin!(task);
        loop {
            if let std::task::Poll::Ready(result) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return result;
            }
            assert!(services.waiting() > 0, "it waits for nothing");
            services.carry_out(0, Fate::Answered);
        }
    }

    fn run(&mut self) {
        for _ in 0..REQUESTS {
            self.poll_gateways();
            if self.random.chance(3) {
                let stopped = self.random.index(GATEWAYS);
                self.gateways[stopped] = None;
                continue;
            }
            if self.damages && self.random.chance(2) {
                self.damage();
            }
            // All may have ended without a request.
            let Some(waiting) = Some(self.services.waiting()).filter(|waiting| *waiting > 0) else { continue };
            let index = self.random.index(waiting);
            let fate = match self.random.below(100) {
                0..4 => Fate::Refused,
                4..8 => Fate::AnswerLost,
                _ => Fate::Answered,
            };
            self.services.carry_out(index, fate);
            self.services.with(|state| check(state, &self.damaged));
        }
        self.gateways.iter_mut().for_each(|gateway| *gateway = None);
    }

    fn poll_gateways(&mut self) {
        for gateway in &mut self.gateways {
            let task =
                gateway.get_or_insert_with(|| work(self.shared.clone(), &mut self.random, Arc::clone(&self.pinned)));
            if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                *gateway = None;
            }
        }
    }

    /// Loses or damages an object of a block.
    fn damage(&mut self) {
        let random = &mut self.random;
        let name = self.services.with(|state| {
            let names: Vec<String> = state.objects.keys().filter(|name| name.contains("blocks")).cloned().collect();
            let name = names.get(random.index(names.len().max(1)))?.clone();
            match random.chance(50) {
                true => _ = state.objects.remove(&name),
                false => _ = state.objects.insert(name.clone(), Bytes::from_static(b"damaged")),
            }
            Some(name)
        });
        self.damaged.extend(name);
    }

    /// After all gateways have stopped, one puts everything in order.
    fn put_in_order(&mut self) {
        while self.services.waiting() > 0 {
            let index = self.random.index(self.services.waiting());
            self.services.carry_out(index, Fate::Answered);
            self.services.with(|state| check(state, &self.damaged));
        }
        let shared = self.shared.clone();
        Self::complete(&self.services, async {
            while shared.release_members().await.expect("releases") {}
            while shared.sweep().await.expect("sweeps") > 0 {}
            for slot in 0..=u8::MAX {
                shared.reconcile(slot, u64::MAX).await.expect("reconciles");
            }
            // Damaged objects are listed, and found by reading.
            for number in 0..BLOCKS {
                read(&shared, number).await;
            }
            while shared.sweep().await.expect("sweeps") > 0 {}
            for number in 0..BLOCKS {
                let pin = shared.pin(root(number)).await.expect("is read");
                if pin.is_some_and(|pin| pin.state == PinState::Complete) {
                    assert!(read(&shared, number).await, "a block of a complete pin");
                }
            }
        });
        // Every object is that of a block.
        self.services.with(|state| {
            check(state, &BTreeSet::new());
            let expected: BTreeSet<String> = objects(state).map(|object| object.name()).collect();
            let found: BTreeSet<String> =
                state.objects.keys().filter(|name| name.contains("blocks")).cloned().collect();
            assert_eq!(found, expected, "objects that are no block's, or the other way round");
            assert!(state.pending.is_empty() && state.pins.values().all(|pin| !pin.removed));
        });
        // Without pins nothing is left.
        Self::complete(&self.services, async {
            for number in 0..BLOCKS {
                shared.remove_pin(root(number), None).await.expect("is removed");
            }
            while shared.release_members().await.expect("releases") {}
            shared.evict(0, usize::MAX).await.expect("evicts");
        });
        self.services.with(|state| {
            assert!(state.blocks.is_empty() && state.members.is_empty() && state.pending.is_empty());
            assert_eq!(state.objects.len(), 1, "all but the marker: {:?}", state.objects.keys());
        });
    }
}

fn objects(state: &State) -> impl Iterator<Item = ObjectId> {
    let object = |(key, row): (&BlockKey, &Row)| Some(ObjectId { key: *key, generation: row.generation? });
    state.blocks.iter().filter_map(object)
}

/// Every block has its object, and every complete pin all of its blocks, except for what the storage has damaged.
fn check(state: &State, damaged: &BTreeSet<String>) {
    for object in objects(state) {
        let name = object.name();
        assert!(state.objects.contains_key(&name) || damaged.contains(&name), "{name} is missing");
        assert!(!state.pending.contains_key(&object.generation), "{name} is pending");
    }
    for (id, key) in &state.members {
        assert!(state.blocks.get(key).is_some_and(|row| row.pinned), "{key:?} of {id} can be evicted");
    }
    for (key, row) in &state.blocks {
        let is_member = state.members.iter().any(|(_, member)| member == key);
        assert_eq!(row.pinned, is_member, "{key:?} could never be evicted");
    }
    for (id, pin) in state.pins.iter().filter(|(_, pin)| pin.complete && !pin.removed) {
        let number = (0..BLOCKS).find(|number| root(*number) == pin.root).expect("is one of them");
        for key in dag(number).into_iter().map(key) {
            let is_stored = state.blocks.get(&key).is_some_and(|row| row.generation.is_some());
            assert!(state.members.contains(&(*id, key)) && is_stored, "{key:?} is missing");
        }
    }
}

fn run_schedules(damages: bool) {
    let schedules = std::env::var(SCHEDULES_VARIABLE).map_or(SCHEDULES, |count| count.parse().expect("a number"));
    let mut pinned = 0;
    for seed in 0..schedules {
        let result = std::panic::catch_unwind(|| {
            let mut simulation = Simulation::new(seed, damages);
            simulation.run();
            simulation.put_in_order();
            simulation.pinned.load(Ordering::Relaxed)
        });
        pinned += result.unwrap_or_else(|_| panic!("schedule {seed} has failed"));
    }
    // Otherwise nothing was tested.
    assert!(pinned as u64 > schedules, "pins are completed: {pinned}");
}

#[test]
fn no_order_of_steps_loses_a_pinned_block_or_leaves_an_object_behind() {
    run_schedules(false);
}

#[test]
fn what_the_storage_loses_is_found_and_is_no_more_part_of_a_complete_pin() {
    run_schedules(true);
}

/// Deletions that fail leave their own objects only, and few are tried when all of them fail.
#[test]
fn discarding_goes_on_after_a_failure() {
    let Simulation { services, shared, .. } = Simulation::new(1, false);
    let all: Vec<SharedBlock> = (0..BLOCKS).map(block).collect();
    let write = || Simulation::complete(&services, shared.write_pending(all.clone())).expect("are written");
    let written: Vec<ObjectId> = (0..40).flat_map(|_| write()).map(|written| written.object).collect();
    // With the mark of the storage.
    let left = || services.with(|state| (state.pending.len(), state.objects.len() - 1));
    assert_eq!(left(), (280, 280));
    let poll = |task: std::pin::Pin<&mut dyn Future<Output = ()>>| {
        task.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    let mut refused = std::pin::pin!(shared.discard(written.clone()));
    let mut requests = 0;
    while !poll(refused.as_mut()) {
        services.carry_out(0, Fate::Refused);
        requests += 1;
    }
    assert!(requests < 40 && left() == (280, 280), "{requests}");
    while services.waiting() > 0 {
        services.carry_out(0, Fate::Refused);
    }
    let mut discarding = std::pin::pin!(shared.discard(written));
    assert!(!poll(discarding.as_mut()));
    services.carry_out(0, Fate::Refused);
    Simulation::complete(&services, discarding);
    assert_eq!(left(), (1, 1));
}
