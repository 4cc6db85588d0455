//! [`Tiers`]: RAM, disk and an upstream as one source.
//!
//! The way of a request, top to bottom: the policy is asked; an identity CID is its own answer; a hash that nobody should
//! trust is refused; RAM answers without waiting, and so does the disk for what the system has in its memory; then one flight for all who want the block asks the disk and the
//! upstream, and leaves what it found in the faster tiers.
//!
//! Goals: what the policy refuses leaves by no way out; a hit in RAM takes no lock, future or allocation; one fetch for
//! one block; a failing disk costs speed and nothing else.
//!
//! [`Tiers::local`] asks nobody else. It neither joins nor begins a flight, so that serving a stranger can never start a
//! fetch or wait for one, and it brings nothing into RAM, so that strangers cannot flush what our own readers use.

use crate::disk::StoreError;
use crate::flight::{Flights, Outcome};
use crate::metrics::{TierMetrics, TiersFigures};
use crate::ram::Ram;
use crate::store::{BlockStore, Evict, Evicted};
use crate::stored::{Shape, Stored};
use bytes::Bytes;
use content::{Block, BlockError, BlockKey, BlockSource, Cid, Policy, SourceError, Verdict, hashes};
use futures::future::{BoxFuture, FutureExt as _, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

/// How long a fetched block waits for room in the disk's queue. Waiting slows readers down to what the disk takes in, which
/// is what keeps memory bounded; a disk that takes nothing for this long is stuck, and nobody waits for it again until it
/// has room.
const DISK_ROOM_WAIT_MAX: Duration = Duration::from_secs(5);

/// Blocks that are evicted at once, so that others can read and write in between.
const EVICTED_AT_ONCE: usize = 1024;

/// The local tiers. Clones are handles to the same ones.
#[derive(Clone)]
pub struct Tiers {
    inner: Arc<Inner>,
}

struct Inner {
    ram: Ram,
    disk: Arc<dyn BlockStore>,
    policy: Arc<dyn Policy>,
    metrics: TierMetrics,
    flights: Flights<BlockKey, Outcome>,
    /// Whether the disk took nothing for [`DISK_ROOM_WAIT_MAX`] when it was last asked to.
    disk_is_stuck: AtomicBool,
}

impl std::fmt::Debug for Tiers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { ram, disk, flights, .. } = &*self.inner;
        f.debug_struct("Tiers").field("ram", ram).field("disk", disk).field("flights", flights).finish_non_exhaustive()
    }
}

impl Tiers {
    /// Puts the tiers together. The store is the disk tier, whatever it is made of.
    pub fn new(ram: Ram, disk: Arc<dyn BlockStore>, policy: Arc<dyn Policy>, metrics: TierMetrics) -> Self {
        metrics.attach(&ram, &*disk);
        let hot = ram.clone();
        disk.favour(Box::new(move |key| hot.holds(key)));
        let flights = Flights::default();
        let disk_is_stuck = AtomicBool::new(false);
        Self { inner: Arc::new(Inner { ram, disk, policy, metrics, flights, disk_is_stuck }) }
    }

    /// What is held here, and nothing else: for the Bitswap server and for `Cache-Control: only-if-cached`. A block that is
    /// in RAM is answered from there and counts as used; one that is not stays out.
    pub fn local(&self) -> Local {
        Local { inner: Arc::clone(&self.inner), fills_ram: false }
    }

    /// The same for readers of our own: what they read goes to RAM.
    pub fn held(&self) -> Local {
        Local { inner: Arc::clone(&self.inner), fills_ram: true }
    }

    /// What is held here or can be had from `upstream`.
    ///
    /// Everyone who wants a block shares one flight, whatever their upstreams: the flight asks the upstream of whoever
    /// began it, and what that one fails with is the outcome for all who wait, except for those who joined late: they ask
    /// their own upstream then.
    pub fn through(&self, upstream: Arc<dyn BlockSource>) -> Through {
        Through { inner: Arc::clone(&self.inner), upstream }
    }

    /// The forms that blocks have on the disk, without reading them: in the order of the CIDs, `None` for what is not there.
    ///
    /// # Errors
    /// [`SourceError::Refused`] if the policy refuses any of them, or what the disk said.
    pub async fn shapes(&self, cids: &[Cid]) -> Result<Vec<Option<Shape>>, SourceError> {
        let mut keys = Vec::with_capacity(cids.len());
        for cid in cids {
            match self.inner.admit(cid)? {
                Admitted::Stored(key) => keys.push(key),
                Admitted::Inline(_) => return Ok(vec![None; cids.len()]),
            }
        }
        Ok(self.inner.disk.shapes(keys).await?)
    }

    /// A block as it is on the disk, if it is there.
    ///
    /// # Errors
    /// The same.
    pub async fn stored(&self, cid: &Cid) -> Result<Option<Stored>, SourceError> {
        let Admitted::Stored(key) = self.inner.admit(cid)? else { return Ok(None) };
        let (tier, start) = (&self.inner.metrics.disk, Instant::now());
        let found = self.inner.disk.stored(&key).await;
        tier.observe_since(start);
        match &found {
            Ok(Some(stored)) => tier.hit(stored.value().len()),
            Ok(None) => _ = tier.misses.inc(),
            Err(_) => _ = tier.errors.inc(),
        }
        Ok(found?)
    }

    /// Takes blocks out of every tier, for somebody who wants them gone. A fetch that is under way may bring one back, unless
    /// the policy refuses it by then.
    ///
    /// # Errors
    /// What the store said; some may be gone then.
    pub async fn evict(&self, keys: &[BlockKey], which: Evict) -> Result<Evicted, StoreError> {
        let mut evicted = Evicted::default();
        for keys in keys.chunks(EVICTED_AT_ONCE) {
            keys.iter().for_each(|key| self.inner.ram.remove(key));
            evicted += self.inner.disk.evict(keys.to_vec(), which).await?;
            // Somebody may have read one from the disk meanwhile.
            keys.iter().for_each(|key| self.inner.ram.remove(key));
        }
        Ok(evicted)
    }

    /// What the tiers were asked since the start.
    pub fn figures(&self) -> TiersFigures {
        self.inner.metrics.figures()
    }

    /// What decides which blocks leave.
    pub fn policy(&self) -> &Arc<dyn Policy> {
        &self.inner.policy
    }

    /// The store below.
    pub fn disk(&self) -> &Arc<dyn BlockStore> {
        &self.inner.disk
    }

    /// The memory tier.
    pub fn ram(&self) -> &Ram {
        &self.inner.ram
    }
}

/// Where an admitted request goes on.
enum Admitted {
    /// The CID carries its content.
    Inline(Block),
    /// The tiers have to look.
    Stored(BlockKey),
}

impl Inner {
    /// The checks that come before any look-up.
    fn admit(&self, cid: &Cid) -> Result<Admitted, SourceError> {
        self.check_policy(cid)?;
        let Some(key) = BlockKey::of(cid) else {
            return Block::inline(cid).map(Admitted::Inline).ok_or(SourceError::NotFound { cid: *cid });
        };
        hashes::check_accepted(cid.hash()).map_err(BlockError::from)?;
        Ok(Admitted::Stored(key))
    }

    fn check_policy(&self, cid: &Cid) -> Result<(), SourceError> {
        match self.policy.check(cid) {
            Verdict::Allow => Ok(()),
            verdict => Err(SourceError::Refused { cid: *cid, verdict }),
        }
    }

    /// The block of an identity CID, unless the policy refuses it.
    fn inline(&self, cid: &Cid) -> Option<Block> {
        Block::inline(cid).filter(|_| self.check_policy(cid).is_ok())
    }

    /// The answer that takes no waiting. A refusal is no answer here: `get` gives its reason.
    fn peek(&self, cid: &Cid) -> Option<Block> {
        match self.admit(cid).ok()? {
            Admitted::Inline(block) => Some(block),
            Admitted::Stored(key) => self.peek_ram(cid, &key),
        }
    }

    fn peek_ram(&self, cid: &Cid, key: &BlockKey) -> Option<Block> {
        let start = self.metrics.ram.sample();
        let data = self.ram.find(key)?;
        self.metrics.ram.hit(data.len());
        if let Some(start) = start {
            self.metrics.ram.observe_since(start);
        }
        Some(Block::from_checked(*cid, data))
    }

    /// The answer from the disk that takes no waiting.
    fn read_now(&self, cid: &Cid, fills_ram: bool) -> Option<Block> {
        let Admitted::Stored(key) = self.admit(cid).ok()? else { return None };
        let start = Instant::now();
        let block = self.disk.read_now(cid)?;
        self.metrics.disk.hit(block.data().len());
        self.metrics.disk.observe_since(start);
        if fills_ram {
            self.fill_ram(cid, key, block.data());
        }
        Some(block)
    }

    /// Counts a miss in RAM for what was found below it. One who found nothing asks again, and is counted then.
    fn missed(&self, below: Option<Block>) -> Option<Block> {
        below.inspect(|_| _ = self.metrics.ram.misses.inc())
    }

    async fn find_on_disk(&self, key: &BlockKey) -> Result<Option<Bytes>, SourceError> {
        let (tier, start) = (&self.metrics.disk, Instant::now());
        let found = self.disk.find(key).await;
        tier.observe_since(start);
        match &found {
            Ok(Some(data)) => tier.hit(data.len()),
            Ok(None) => _ = tier.misses.inc(),
            Err(_) => _ = tier.errors.inc(),
        }
        Ok(found?)
    }

    async fn ask(&self, upstream: &dyn BlockSource, cid: &Cid) -> Outcome {
        let (tier, start) = (&self.metrics.network, Instant::now());
        let outcome = upstream.get(cid).await;
        tier.observe_since(start);
        match &outcome {
            Ok(block) => tier.hit(block.data().len()),
            Err(SourceError::NotFound { .. } | SourceError::Stalled { .. }) => _ = tier.misses.inc(),
            Err(_) => _ = tier.errors.inc(),
        }
        outcome?.under(cid).ok_or(SourceError::Corrupt { cid: *cid })
    }

    /// A flight in a task of its own, which ends with whoever waits. A reader who does not read does not poll what it
    /// waits for either; it must not hold a place in a queue meanwhile that others stand in.
    async fn take_off(self: Arc<Self>, upstream: Arc<dyn BlockSource>, cid: Cid, key: BlockKey) -> Outcome {
        let task = tokio::spawn(self.fly(upstream, cid, key));
        AbortOnDropHandle::new(task).await.unwrap_or(Err(SourceError::Closed))
    }

    /// The work of a flight.
    async fn fly(self: Arc<Self>, upstream: Arc<dyn BlockSource>, cid: Cid, key: BlockKey) -> Outcome {
        // An earlier flight may have landed between this caller's look at RAM and the start of this one.
        if let Some(data) = self.ram.find_again(&key) {
            return Ok(Block::from_checked(cid, data));
        }
        let failed = match self.find_on_disk(&key).await {
            Ok(Some(data)) => {
                self.fill_ram(&cid, key, &data);
                return Ok(Block::from_checked(cid, data));
            }
            Ok(None) => None,
            Err(error) => {
                debug!(%cid, %error, "the disk failed to answer: asking upstream");
                Some(error)
            }
        };
        if let Some(block) = Block::empty(&cid) {
            self.fill_ram(&cid, key, block.data());
            return Ok(block);
        }
        let block = match (self.ask(&*upstream, &cid).await, failed) {
            // That others do not have it says nothing while the disk may.
            (Err(SourceError::NotFound { .. }), Some(failed)) => return Err(failed),
            (asked, _) => asked?,
        };
        self.check_policy(&cid)?;
        self.fill_ram(&cid, key, block.data());
        self.cache_on_disk(block.clone()).await;
        if self.check_policy(&cid).is_err() {
            _ = self.disk.evict(vec![key], Evict::Unpinned).await;
        }
        Ok(block)
    }

    /// Keeps a block in memory, unless it was refused meanwhile. Whoever takes content down evicts it after the policy knows, so
    /// that either they see what was put here or this sees what they decided.
    fn fill_ram(&self, cid: &Cid, key: BlockKey, data: &Bytes) {
        self.ram.insert(key, data);
        if self.policy.check(cid) != Verdict::Allow {
            self.ram.remove(&key);
        }
    }

    async fn cache_on_disk(&self, block: Block) {
        let stuck = self.disk_is_stuck.load(Ordering::Relaxed);
        let patience = if stuck { Duration::ZERO } else { DISK_ROOM_WAIT_MAX };
        let taken = tokio::time::timeout(patience, self.disk.put_cached(block)).await.is_ok();
        if !taken {
            self.disk.count_dropped_write();
        }
        self.disk_is_stuck.store(!taken, Ordering::Relaxed);
    }

    async fn join(self: Arc<Self>, upstream: Arc<dyn BlockSource>, cid: Cid, key: BlockKey) -> Outcome {
        let begun = Instant::now();
        let fly = || Arc::clone(&self).take_off(Arc::clone(&upstream), cid, key);
        let seat = self.flights.join(key, fly);
        if seat.1 {
            self.metrics.joined.inc();
        }
        // Whoever began it had no place on the way there, which says nothing about others.
        let busy = |outcome: &Outcome| matches!(outcome, Err(SourceError::Busy));
        let (outcome, joined) = self.flights.land(key, seat, fly, busy).await;
        let outcome = match outcome {
            // Whoever began it may have asked in another place. One who joined late has patience left for a search of
            // its own.
            Err(SourceError::Stalled { stall, .. }) if joined && begun.elapsed() < stall.waited / 2 => {
                Arc::clone(&self).take_off(upstream, cid, key).await
            }
            outcome => outcome,
        };
        let block = outcome.map_err(|error| rename(error, &cid))?;
        // A fetch may take long enough for the policy to change.
        self.check_policy(&cid)?;
        block.under(&cid).ok_or(SourceError::Corrupt { cid })
    }

    async fn get_local(self: Arc<Self>, cid: Cid, key: BlockKey, fills_ram: bool) -> Outcome {
        // A peer does not peek before it asks.
        if let Some(block) = self.read_now(&cid, fills_ram) {
            return Ok(block);
        }
        let data = self.find_on_disk(&key).await?.ok_or(SourceError::NotFound { cid })?;
        self.check_policy(&cid)?;
        if fills_ram {
            self.fill_ram(&cid, key, &data);
        }
        Ok(Block::from_checked(cid, data))
    }

    fn has(self: &Arc<Self>, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        match self.admit(cid) {
            Err(error) => ready(Err(error)).boxed(),
            Ok(Admitted::Inline(_)) => ready(Ok(true)).boxed(),
            Ok(Admitted::Stored(key)) if self.ram.holds(&key) => ready(Ok(true)).boxed(),
            Ok(Admitted::Stored(_)) => self.disk.has(cid),
        }
    }

    /// Answers from RAM, or goes on with `further` when it has nothing.
    fn get(
        self: &Arc<Self>,
        cid: &Cid,
        further: impl FnOnce(Arc<Self>, BlockKey) -> BoxFuture<'static, Outcome>,
    ) -> BoxFuture<'static, Outcome> {
        let key = match self.admit(cid) {
            Err(error) => return ready(Err(error)).boxed(),
            Ok(Admitted::Inline(block)) => return ready(Ok(block)).boxed(),
            Ok(Admitted::Stored(key)) => key,
        };
        // Who peeked before is not counted twice.
        if self.ram.holds(&key)
            && let Some(block) = self.peek_ram(cid, &key)
        {
            return ready(Ok(block)).boxed();
        }
        self.metrics.ram.misses.inc();
        further(Arc::clone(self), key)
    }
}

/// The flight was begun by whoever came first, perhaps under another codec: an error names what this caller asked for.
fn rename(error: SourceError, cid: &Cid) -> SourceError {
    let cid = *cid;
    match error {
        SourceError::NotFound { .. } => SourceError::NotFound { cid },
        SourceError::Stalled { stall, .. } => SourceError::Stalled { cid, stall },
        SourceError::Corrupt { .. } => SourceError::Corrupt { cid },
        SourceError::Refused { verdict, .. } => SourceError::Refused { cid, verdict },
        other => other,
    }
}

/// The tiers without an upstream: see [`Tiers::local`] and [`Tiers::held`].
#[derive(Clone)]
pub struct Local {
    inner: Arc<Inner>,
    fills_ram: bool,
}

impl BlockSource for Local {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.inner.peek(cid)
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        self.inner.inline(cid)
    }

    fn read_now(&self, cid: &Cid) -> Option<Block> {
        self.inner.missed(self.inner.read_now(cid, self.fills_ram))
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (wanted, fills_ram) = (*cid, self.fills_ram);
        self.inner.get(cid, move |inner, key| inner.get_local(wanted, key, fills_ram).boxed())
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.inner.has(cid)
    }
}

/// The tiers with an upstream: see [`Tiers::through`].
#[derive(Clone)]
pub struct Through {
    inner: Arc<Inner>,
    upstream: Arc<dyn BlockSource>,
}

impl BlockSource for Through {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.inner.peek(cid)
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        self.inner.inline(cid)
    }

    fn read_now(&self, cid: &Cid) -> Option<Block> {
        self.inner.missed(self.inner.read_now(cid, true))
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (wanted, upstream) = (*cid, Arc::clone(&self.upstream));
        self.inner.get(cid, move |inner, key| inner.join(upstream, wanted, key).boxed())
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.inner.has(cid)
    }
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Through {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Through").finish_non_exhaustive()
    }
}
