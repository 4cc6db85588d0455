//! Which blocks answer a request for part of a DAG, in which order
//! (<https://specs.ipfs.tech/http-gateways/trustless-gateway/#dag-scope-request-query-parameter>).
//!
//! Goals: depth first, each block before those below it, exactly the blocks that the scope asks for, as verified bytes;
//! memory and work that hostile DAGs cannot blow up; blocks are fetched ahead so that a distant source keeps up.
//!
//! Non-goals: paths, which [`crate::walk`] resolves; the archive around the blocks, which [`crate::car`] writes.
//!
//! How it works. What is still to come is a line: of blocks that were asked for, each followed by what is below it, and
//! of [`Below`]s, the children that nobody has asked for yet. The walk takes from the head of the line. Looking ahead
//! asks for the first child of the first `Below`, over and over, while the window has room; a block that arrives, wherever
//! it stands in the line, puts what is below it behind itself. Whether a block is a repeat is decided when it comes to the
//! head, since only then is it known what precedes it.
//!
//! The window is counted in bytes: of blocks that arrived and of those in flight, at the size that their links promise
//! (a stranger's promise, so up to a few dozen blocks may be larger than they were counted). It starts at 1 MiB and
//! doubles, up to [`ScopeLimits::look_ahead_bytes_max`], each time the walk has to wait. While every block is at hand
//! nothing is asked for ahead of its turn.
//!
//! A document that breaks the rules of its codec is carried as it is: its readers can tell as well as anybody. Of
//! dag-cbor the links are found as long as it is CBOR at all; what is not even that, or no JSON, has none that anybody
//! could follow.
//!
//! Inline blocks (identity CIDs) are walked through and never emitted: whoever has a link to one has the block.

mod below;
mod entity_bytes;
mod seen;

pub use self::entity_bytes::{EntityBytes, EntityBytesError};

pub(crate) use self::below::expected_bytes;

use self::below::{Below, Child, Role};
use self::seen::{Full, Seen};
use crate::block::Block;
use crate::cid::{Cid, codec, is_identity};
use crate::source::{BlockSource, SourceError, at_hand};
use crate::unixfs::NodeError;
use crate::work::Work;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, FuturesUnordered, StreamExt as _};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;

/// The window before the walk ever waited, in bytes.
const WINDOW_BYTES_START: usize = 1024 * 1024;
/// What every block in the line counts for besides its bytes, so that the line stays short.
const BLOCK_OVERHEAD_BYTES: usize = 4 * 1024;
/// What the nodes may take together whose children are not all asked for, in bytes: far more than any honest DAG needs.
const INNER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Places of the line that are looked at in a step.
const PLACES_PER_STEP: u64 = 64;
/// What a section of an archive has besides the bytes of its block, in bytes, about.
const SECTION_OVERHEAD_BYTES: u64 = 40;

/// How much of the DAG below the end of a path is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DagScope {
    /// The block there, and nothing below it.
    Block,
    /// What it takes to read the file or to list the directory that is there; a block that is neither is enough by itself.
    Entity,
    /// Everything below.
    #[default]
    All,
}

impl DagScope {
    /// Reads the value of the `dag-scope` parameter.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "block" => Some(Self::Block),
            "entity" => Some(Self::Entity),
            "all" => Some(Self::All),
            _ => None,
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScopeOptions {
    /// How much of the DAG.
    pub scope: DagScope,
    /// Which bytes, if the entity is a file: [`DagScope::Entity`] alone heeds it. If the file has none of these bytes,
    /// its first block is all there is.
    pub entity_bytes: Option<EntityBytes>,
    /// Whether a block that occurs again is emitted again.
    pub duplicates: bool,
}

/// How much work and memory one answer may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScopeLimits {
    /// How many levels of blocks may be below the end of the path.
    pub depth_max: usize,
    /// How many blocks are remembered, to know one that occurs again. Blocks that can have links count twice. They take
    /// 17 to 40 bytes each.
    pub seen_max: usize,
    /// How many bytes of blocks that occurred before are emitted with [`ScopeOptions::duplicates`]. Without this, a few
    /// dozen small blocks would make an endless answer.
    pub repeated_bytes_max: u64,
    /// How much is fetched ahead, in bytes. At least one block is always being fetched.
    pub look_ahead_bytes_max: usize,
}

impl Default for ScopeLimits {
    /// 1024 levels, 4 Mi remembered blocks (a terabyte in chunks of 256 KiB), 1 GiB of repeats, 4 MiB of look-ahead.
    fn default() -> Self {
        Self {
            depth_max: 1024,
            seen_max: 4 * 1024 * 1024,
            repeated_bytes_max: 1024 * 1024 * 1024,
            look_ahead_bytes_max: 4 * 1024 * 1024,
        }
    }
}

/// Why an answer ends early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// A block cannot be understood, so what is below it is not known.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The DAG is nested more deeply, or its inner nodes are larger, than is allowed.
    #[error("the blocks above {cid} are too many levels, or too large")]
    TooDeep {
        /// The block whose children are not followed.
        cid: Cid,
    },
    /// The DAG has more blocks than can be remembered.
    #[error("there are more blocks than the {max} that are remembered")]
    TooManyBlocks {
        /// How many are remembered.
        max: usize,
    },
    /// So much of the answer was repeats that there may be no end to it. Asking without duplicates helps.
    #[error("more than {max_bytes} bytes are blocks that occurred before")]
    TooManyRepeats {
        /// How many bytes of repeats are allowed.
        max_bytes: u64,
    },
    /// A block did not come.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// The blocks that answer a request: those of `path` (what was passed on the way to `terminal`, root first, the shards of
/// large directories included), then `terminal`, then what `options.scope` asks for below it, depth first, in the order
/// of the links. Of repeated blocks only the first is emitted, unless `options.duplicates` says otherwise. Two CIDs of
/// the same multihash are the same block.
///
/// What has codecs without known links is emitted and counts as having none. After an error the stream ends; what was
/// emitted before it was in order and complete up to there. Dropping the stream cancels what is in flight.
///
/// # Errors
/// In the stream, at its place: [`ScopeError`].
pub fn blocks(
    source: Arc<dyn BlockSource>,
    path: Vec<Cid>,
    terminal: Block,
    options: ScopeOptions,
    limits: ScopeLimits,
) -> BoxStream<'static, Result<Block, ScopeError>> {
    Walk::new(source, path, terminal, options, limits).into_stream()
}

/// What is asked about blocks that are not read.
pub type Ask = dyn Fn(&Cid) -> Result<(), SourceError> + Send + Sync;

/// What [`blocks`] would emit but the raw blocks, which are not read: `ask` is asked about each of them.
///
/// # Errors
/// In the stream: [`ScopeError`], of `ask` or of the walk.
pub fn survey(
    source: Arc<dyn BlockSource>,
    path: Vec<Cid>,
    terminal: Block,
    options: ScopeOptions,
    limits: ScopeLimits,
    ask: Box<Ask>,
) -> BoxStream<'static, Result<Block, ScopeError>> {
    Walk { ask: Some(ask), ..Walk::new(source, path, terminal, options, limits) }.into_stream()
}

/// A walk under way.
struct Walk {
    source: Arc<dyn BlockSource>,
    work: Work,
    /// What is asked about leaves in the place of reading them.
    ask: Option<Box<Ask>>,
    duplicates: bool,
    limits: ScopeLimits,
    line: VecDeque<Place>,
    fetches: FuturesUnordered<BoxFuture<'static, Arrival>>,
    /// The number of the next fetch.
    fetch_next: u64,
    seen: Seen,
    repeated_bytes: u64,
    /// What counts against the window now, in bytes.
    used_bytes: usize,
    window_bytes: usize,
    /// What all `Below`s of the line take, in bytes.
    inner_bytes: usize,
    /// Whether anything was emitted: waiting for the first block says nothing about the reader's speed.
    began: bool,
    /// The last fetch that the walk waited for.
    stalled_at: Option<u64>,
}

/// A place in the line. What is below a block follows it, at greater depths.
struct Place {
    depth: usize,
    what: What,
}

/// Boxed, so that places are cheap to move.
enum What {
    Block(Box<Child>, State),
    Below(Box<Below>),
    Error(Box<ScopeError>),
}

enum State {
    /// The number of the fetch.
    Fetching(u64),
    Failed(Box<SourceError>),
    Arrived {
        block: Box<Block>,
        /// Whether what is below it is in the line.
        opened: bool,
    },
}

/// A fetch that ended, and what it counted for.
struct Arrival {
    number: u64,
    cost_bytes: usize,
    result: Result<Block, SourceError>,
}

impl Walk {
    fn new(
        source: Arc<dyn BlockSource>,
        path: Vec<Cid>,
        terminal: Block,
        options: ScopeOptions,
        limits: ScopeLimits,
    ) -> Self {
        let mut walk = Self {
            work: source.work(),
            source,
            ask: None,
            duplicates: options.duplicates,
            limits,
            line: VecDeque::new(),
            fetches: FuturesUnordered::new(),
            fetch_next: 0,
            seen: Seen::new(limits.seen_max),
            repeated_bytes: 0,
            used_bytes: 0,
            window_bytes: WINDOW_BYTES_START.min(limits.look_ahead_bytes_max),
            inner_bytes: 0,
            began: false,
            stalled_at: None,
        };
        let cid = *terminal.cid();
        walk.insert(0, 0, What::Below(Box::new(Below::path(path, cid))));
        let child = Child::new(cid, Role::of_terminal(&options), None);
        walk.insert(1, 0, What::Block(Box::new(child), State::arrived(terminal)));
        walk
    }

    fn into_stream(self) -> BoxStream<'static, Result<Block, ScopeError>> {
        stream::try_unfold(self, |mut walk| async move { Ok(walk.next().await?.map(|block| (block, walk))) }).boxed()
    }

    async fn next(&mut self) -> Result<Option<Block>, ScopeError> {
        loop {
            self.work.turn().await?;
            let Some(Place { depth, what }) = self.line.front() else { return Ok(None) };
            match what {
                What::Below(_) => self.ask_at(0),
                What::Block(child, _) if self.is_repeat(child) => self.drop_subtree(*depth),
                What::Block(_, State::Fetching(number)) => self.wait(*number).await?,
                What::Block(_, State::Arrived { .. } | State::Failed(_)) | What::Error(_) => {
                    if let Some(block) = self.take()? {
                        self.keep_ahead().await;
                        self.began = true;
                        self.work.earn(block.data().len() + SECTION_OVERHEAD_BYTES as usize);
                        return Ok(Some(block));
                    }
                }
            }
        }
    }

    /// Whether neither the block nor anything below it is to be emitted, because it was.
    fn is_repeat(&self, child: &Child) -> bool {
        !self.duplicates
            && self.seen.is_emitted(&child.cid)
            && (child.is_leaf() || child.is_whole() && self.seen.is_walked(&child.cid))
    }

    /// Asks for the next child of the `Below` at `index`: takes it if it is at hand, fetches it if not. Its place is in
    /// front of the `Below`, which is removed when it has no more.
    fn ask_at(&mut self, index: usize) {
        let Some(Place { depth, what: What::Below(below) }) = self.line.get_mut(index) else { return };
        let depth = *depth;
        let child = match below.next() {
            Ok(Some(child)) => child,
            Ok(None) => {
                self.remove(index);
                return;
            }
            Err(error) => {
                self.remove(index);
                return self.insert(index, depth, What::Error(Box::new(error.into())));
            }
        };
        self.work.charge(1);
        if self.is_repeat(&child) {
            return;
        }
        if let Some(ask) = self.ask.as_ref().filter(|_| child.cid.codec() == codec::RAW) {
            if let Err(error) = ask(&child.cid) {
                self.insert(index, depth, What::Error(Box::new(error.into())));
            }
            return;
        }
        let state = match at_hand(&*self.source, &child.cid) {
            Some(block) => State::arrived(block),
            None => self.fetch(&child),
        };
        self.insert(index, depth, What::Block(Box::new(child), state));
        self.open(index);
    }

    fn fetch(&mut self, child: &Child) -> State {
        let (number, cost_bytes) = (self.fetch_next, child.expected_bytes);
        self.fetch_next += 1;
        self.used_bytes += cost_bytes;
        let fetch = self.source.get(&child.cid);
        self.fetches.push(fetch.map(move |result| Arrival { number, cost_bytes, result }).boxed());
        State::Fetching(number)
    }

    /// Takes a fetch that ended out of the flight and puts what it brought in its place, if it still has one.
    fn arrive(&mut self, arrival: Arrival) {
        self.used_bytes -= arrival.cost_bytes;
        let is_it = |place: &Place| matches!(&place.what, What::Block(_, State::Fetching(n)) if *n == arrival.number);
        let Some(index) = self.line.iter().position(is_it) else { return };
        let Some(Place { depth, what: What::Block(child, _) }) = self.remove(index) else { return };
        let state = match arrival.result {
            Ok(block) => State::arrived(block),
            Err(error) => State::Failed(Box::new(error)),
        };
        self.insert(index, depth, What::Block(child, state));
        self.open(index);
    }

    /// Puts what is below an arrived block behind it. What does not work now is tried again when the block is taken, so
    /// that an error has its place in the order.
    fn open(&mut self, index: usize) {
        let Some(Place { depth, what: What::Block(child, State::Arrived { block, .. }) }) = self.line.get(index) else {
            return;
        };
        let depth = *depth;
        if self.is_repeat(child) {
            return;
        }
        let Ok(below) = self.below(depth, child, block) else { return };
        if let Some(Place { what: What::Block(_, State::Arrived { opened, .. }), .. }) = self.line.get_mut(index) {
            *opened = true;
        }
        if let Some(below) = below {
            self.insert(index + 1, depth + 1, What::Below(Box::new(below)));
        }
    }

    fn below(&self, depth: usize, child: &Child, block: &Block) -> Result<Option<Below>, ScopeError> {
        if !child.is_leaf() {
            self.work.charge_decoding(block);
        }
        let below = child.below(block)?;
        let fits = |below: &Below| {
            depth < self.limits.depth_max && self.inner_bytes.saturating_add(below.bytes) <= INNER_BYTES_MAX
        };
        match below {
            Some(below) if !fits(&below) => Err(ScopeError::TooDeep { cid: child.cid }),
            below => Ok(below),
        }
    }

    /// Takes the head of the line, a block that arrived or an error; the block, if it is to be emitted.
    fn take(&mut self) -> Result<Option<Block>, ScopeError> {
        let Some(Place { depth, what }) = self.remove(0) else { return Ok(None) };
        let (child, block, opened) = match what {
            What::Block(child, State::Arrived { block, opened }) => (child, block, opened),
            What::Block(_, State::Failed(error)) => return Err((*error).into()),
            What::Error(error) => return Err(*error),
            What::Block(_, State::Fetching(_)) | What::Below(_) => return Ok(None),
        };
        let emit = self.count(&child, &block)?;
        if !opened {
            match self.below(depth, &child, &block) {
                Ok(None) => {}
                Ok(Some(below)) => self.insert(0, depth + 1, What::Below(Box::new(below))),
                Err(error) => self.insert(0, depth + 1, What::Error(Box::new(error))),
            }
        }
        Ok(emit.then_some(*block))
    }

    /// Remembers a block whose turn it is; whether it is to be emitted.
    fn count(&mut self, child: &Child, block: &Block) -> Result<bool, ScopeError> {
        if is_identity(&child.cid) {
            return Ok(false);
        }
        let full = |Full| ScopeError::TooManyBlocks { max: self.limits.seen_max };
        let first = self.seen.emit(&child.cid).map_err(full)?;
        if !self.duplicates && !child.is_leaf() && child.is_whole() {
            self.seen.walk(&child.cid).map_err(full)?;
        }
        if !first && self.duplicates {
            let section_bytes = block.data().len() as u64 + SECTION_OVERHEAD_BYTES;
            self.repeated_bytes = self.repeated_bytes.saturating_add(section_bytes);
            if self.repeated_bytes > self.limits.repeated_bytes_max {
                return Err(ScopeError::TooManyRepeats { max_bytes: self.limits.repeated_bytes_max });
            }
        }
        Ok(first || self.duplicates)
    }

    /// Takes a repeated block and what is below it out of the line. What is in flight for it arrives nowhere.
    fn drop_subtree(&mut self, depth: usize) {
        self.remove(0);
        while self.line.front().is_some_and(|place| place.depth > depth) {
            self.remove(0);
        }
    }

    /// Asks for blocks ahead of their turn, in order, while the window has room.
    fn look_ahead(&mut self) {
        while !self.work.is_due() && self.used_bytes < self.window_bytes {
            let first_below = self.line.iter().position(|place| matches!(place.what, What::Below(_)));
            let Some(index) = first_below else { return };
            // Finding it takes a moment, too.
            self.work.charge(index as u64 / PLACES_PER_STEP);
            self.ask_at(index);
        }
    }

    /// Waits for whatever arrives next, looking further ahead from now on, once for each block that is waited for.
    async fn wait(&mut self, number: u64) -> Result<(), ScopeError> {
        if self.began && self.stalled_at != Some(number) {
            self.window_bytes = self.window_bytes.saturating_mul(2).min(self.limits.look_ahead_bytes_max);
        }
        self.stalled_at = Some(number);
        self.look_ahead();
        let arrival = self.fetches.next().await.ok_or(SourceError::Closed)?;
        self.arrive(arrival);
        Ok(())
    }

    /// Lets every fetch make progress without waiting, and takes in those that ended. With nothing in flight, everything
    /// so far was at hand: no need to look ahead.
    async fn keep_ahead(&mut self) {
        if self.fetches.is_empty() {
            return;
        }
        self.look_ahead();
        while !self.work.is_due()
            && let Poll::Ready(Some(arrival)) = futures::poll!(self.fetches.next())
        {
            self.arrive(arrival);
            self.look_ahead();
        }
    }

    fn insert(&mut self, index: usize, depth: usize, what: What) {
        self.used_bytes += what.used_bytes();
        self.inner_bytes += what.inner_bytes();
        self.line.insert(index, Place { depth, what });
    }

    fn remove(&mut self, index: usize) -> Option<Place> {
        let place = self.line.remove(index)?;
        self.used_bytes -= place.what.used_bytes();
        self.inner_bytes -= place.what.inner_bytes();
        Some(place)
    }
}

impl State {
    fn arrived(block: Block) -> Self {
        Self::Arrived { block: Box::new(block), opened: false }
    }
}

impl What {
    /// What it counts for against the window. A fetch counts by itself, since it may outlive its place.
    fn used_bytes(&self) -> usize {
        match self {
            Self::Block(_, State::Arrived { block, .. }) => block.data().len() + BLOCK_OVERHEAD_BYTES,
            _ => 0,
        }
    }

    fn inner_bytes(&self) -> usize {
        match self {
            Self::Below(below) => below.bytes,
            _ => 0,
        }
    }
}
