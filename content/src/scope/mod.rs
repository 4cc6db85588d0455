//! Which blocks a CAR response has, and in which order
//! (<https://specs.ipfs.tech/http-gateways/trustless-gateway/#dag-scope-request-query-parameter>).
//!
//! Goals: depth first, each block before its children, exactly the blocks of the scope, verified; memory and work
//! bounded for malicious DAGs; prefetching, so that the latency of a remote source does not add up.
//!
//! Non-goals: paths, which [`crate::walk`] resolves; the archive format, which [`crate::car`] writes.
//!
//! How it works: a queue has the blocks that were requested, each followed by the blocks below it, and [`ChildIter`]s
//! with the children that were not requested yet. The traversal takes blocks from the front of the queue. The
//! prefetcher requests the next child of the first `ChildIter` while the window has room. When a block arrives,
//! wherever it is in the queue, its children are inserted after it. Whether a block is a duplicate is decided at the
//! front of the queue, because only then all blocks before it are known. A node that more than a window precedes is
//! requested alone ([`ReadAhead::block`]): what is below it is read much later.
//!
//! The window is counted in bytes: of blocks that arrived, and of those in flight at the size that their links declare
//! (which is not trustworthy, so up to a few dozen blocks may be larger). It starts at 1 MiB and doubles, up to
//! [`ScopeLimits::look_ahead_bytes_max`], each time the traversal has to wait. While every block is available at once,
//! nothing is prefetched.
//!
//! A document that violates the rules of its codec is emitted as it is, since its reader can detect that. The links of
//! malformed dag-cbor are found as long as it is CBOR; a block that is neither CBOR nor JSON has no links.
//!
//! Inline blocks (identity CIDs) are traversed and never emitted, because the links to them have their bytes.

mod children;
mod seen;

pub use self::children::{Child, ChildIter, Role, expand};
pub use self::seen::{Full, Seen};
pub use crate::dag_scope::{DagScope, EntityBytes, EntityBytesError, ScopeOptions};

pub(crate) use self::children::expected_bytes;

use self::children::RoleKind;
use crate::block::Block;
use crate::cid::{Cid, codec, is_identity};
use crate::read_ahead::{ReadAhead, has_links};
use crate::source::{BlockSource, SourceError, peek_or_inline};
use crate::unixfs::NodeError;
use crate::work::Work;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, FuturesUnordered, StreamExt as _};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;

/// The initial window, in bytes.
const WINDOW_BYTES_START: usize = 1024 * 1024;
/// The overhead of every block in the queue besides its bytes, which bounds the length of the queue.
const BLOCK_OVERHEAD_BYTES: usize = 4 * 1024;
/// The maximum size of the nodes whose children are not all requested, in bytes: far more than any real DAG needs.
const INNER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Queue entries that are searched in one step of work.
const ENTRIES_PER_STEP: u64 = 64;
/// The overhead of a section in an archive besides the bytes of its block, in bytes, approximately.
const SECTION_OVERHEAD_BYTES: u64 = 40;

/// Limits for the work and the memory of one response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScopeLimits {
    /// The maximum depth of the DAG below the end of the path.
    pub depth_max: usize,
    /// The maximum number of blocks recorded for deduplication. Blocks that can have links count twice. Each takes 17
    /// to 40 bytes.
    pub seen_max: usize,
    /// The maximum size of the duplicates that are emitted with [`ScopeOptions::duplicates`], in bytes. Without it, a
    /// few dozen small blocks could make an endless response.
    pub repeated_bytes_max: u64,
    /// The maximum of the prefetch window, in bytes. At least one block is always fetched.
    pub look_ahead_bytes_max: usize,
}

impl Default for ScopeLimits {
    /// 1024 levels, 4 Mi recorded blocks (a terabyte in chunks of 256 KiB), 1 GiB of duplicates, 4 MiB of prefetch
    /// window.
    fn default() -> Self {
        Self {
            depth_max: 1024,
            seen_max: 4 * 1024 * 1024,
            repeated_bytes_max: 1024 * 1024 * 1024,
            look_ahead_bytes_max: 4 * 1024 * 1024,
        }
    }
}

/// Why a response ends early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// A block cannot be decoded, so its children are unknown.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The DAG is nested too deeply, or its inner nodes are too large.
    #[error("the blocks above {cid} are nested too deeply, or are too large together")]
    TooDeep {
        /// The block whose children are not followed.
        cid: Cid,
    },
    /// The DAG has too many blocks for deduplication.
    #[error("the DAG has more than {max} blocks")]
    TooManyBlocks {
        /// The maximum.
        max: usize,
    },
    /// The response has too many duplicates, and may be endless. A request without duplicates can succeed.
    #[error("more than {max_bytes} bytes of the response are duplicate blocks; request it without duplicates")]
    TooManyRepeats {
        /// The maximum, in bytes.
        max_bytes: u64,
    },
    /// A block was not received.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// The blocks of a response: those of `path` (the blocks before `terminal`, root first, HAMT shards included), then
/// `terminal`, then those of `options.scope` below it, depth first, in the order of the links. Duplicates are only
/// emitted with `options.duplicates`. Two CIDs with the same multihash are the same block.
///
/// Blocks with unsupported codecs are emitted without their links. After an error the stream ends; the blocks before it
/// are in order and complete. Dropping the stream cancels the fetches in flight.
///
/// # Errors
/// The stream ends with a [`ScopeError`].
pub fn blocks(
    source: Arc<dyn BlockSource>,
    path: Vec<Cid>,
    terminal: Block,
    options: ScopeOptions,
    limits: ScopeLimits,
) -> BoxStream<'static, Result<Block, ScopeError>> {
    ScopeTraversal::new(source, path, terminal, options, limits).into_stream()
}

/// Checks a block that is not read.
pub type Ask = dyn Fn(&Cid) -> Result<(), SourceError> + Send + Sync;

/// The stream of [`blocks`] without raw blocks, which are not read: `ask` is called for each of them.
///
/// # Errors
/// The stream ends with a [`ScopeError`], of `ask` or of the traversal.
pub fn survey(
    source: Arc<dyn BlockSource>,
    path: Vec<Cid>,
    terminal: Block,
    options: ScopeOptions,
    limits: ScopeLimits,
    ask: Box<Ask>,
) -> BoxStream<'static, Result<Block, ScopeError>> {
    ScopeTraversal { ask: Some(ask), ..ScopeTraversal::new(source, path, terminal, options, limits) }.into_stream()
}

/// A traversal in progress of the blocks of a scope, in the order of the archive. It needs more than
/// [`crate::frontier`] has: the part of each entity that is requested, and blocks that are prefetched in order.
struct ScopeTraversal {
    source: Arc<dyn BlockSource>,
    work: Work,
    /// Called for raw blocks instead of reading them.
    ask: Option<Box<Ask>>,
    duplicates: bool,
    limits: ScopeLimits,
    queue: VecDeque<QueueEntry>,
    fetches: FuturesUnordered<BoxFuture<'static, CompletedFetch>>,
    /// The number of the next fetch.
    fetch_next: u64,
    seen: Seen,
    repeated_bytes: u64,
    /// The file or directory of the response, unless the whole DAG is requested.
    entity: Option<ReadAhead>,
    /// The bytes that count against the window.
    used_bytes: usize,
    window_bytes: usize,
    /// The size of all nodes whose children are in the queue, in bytes.
    child_iter_bytes: usize,
    /// Whether a block was emitted. Waiting for the first block does not widen the window.
    has_emitted: bool,
    /// The last fetch for which the traversal waited.
    last_waited_for: Option<u64>,
}

/// An entry of the queue. The blocks below a block follow it, with a greater depth.
struct QueueEntry {
    depth: usize,
    item: Item,
}

/// Boxed, so that entries are cheap to move.
enum Item {
    Block(Box<Child>, State),
    ChildIter(Box<ChildIter>),
    Error(Box<ScopeError>),
}

enum State {
    /// The number of the fetch.
    Fetching(u64),
    Failed(Box<SourceError>),
    Arrived {
        block: Box<Block>,
        /// Whether its children are in the queue.
        expanded: bool,
    },
}

/// A completed fetch, and the bytes that it counted against the window.
struct CompletedFetch {
    number: u64,
    cost_bytes: usize,
    result: Result<Block, SourceError>,
}

impl ScopeTraversal {
    fn new(
        source: Arc<dyn BlockSource>,
        path: Vec<Cid>,
        terminal: Block,
        options: ScopeOptions,
        limits: ScopeLimits,
    ) -> Self {
        let mut traversal = Self {
            work: source.work(),
            source,
            ask: None,
            duplicates: options.duplicates,
            limits,
            queue: VecDeque::new(),
            fetches: FuturesUnordered::new(),
            fetch_next: 0,
            seen: Seen::new(limits.seen_max),
            repeated_bytes: 0,
            entity: options.scope.is_entity().then(|| ReadAhead::below(*terminal.cid(), options)),
            used_bytes: 0,
            window_bytes: WINDOW_BYTES_START.min(limits.look_ahead_bytes_max),
            child_iter_bytes: 0,
            has_emitted: false,
            last_waited_for: None,
        };
        let cid = *terminal.cid();
        traversal.insert(0, 0, Item::ChildIter(Box::new(ChildIter::path(path, cid))));
        let child = Child::new(cid, Role::of_terminal(&options), None);
        traversal.insert(1, 0, Item::Block(Box::new(child), State::arrived(terminal)));
        traversal
    }

    fn into_stream(self) -> BoxStream<'static, Result<Block, ScopeError>> {
        stream::try_unfold(
            self,
            |mut traversal| async move { Ok(traversal.next().await?.map(|block| (block, traversal))) },
        )
        .boxed()
    }

    async fn next(&mut self) -> Result<Option<Block>, ScopeError> {
        loop {
            self.work.turn().await?;
            let Some(QueueEntry { depth, item }) = self.queue.front() else { return Ok(None) };
            match item {
                Item::ChildIter(_) => self.request_next_child(0),
                Item::Block(child, _) if self.is_repeat(child) => self.remove_subtree(*depth),
                Item::Block(_, State::Fetching(number)) => self.wait(*number).await?,
                Item::Block(_, State::Arrived { .. } | State::Failed(_)) | Item::Error(_) => {
                    if let Some(block) = self.take()? {
                        self.poll_fetches().await;
                        self.has_emitted = true;
                        self.work.earn(block.data().len() + SECTION_OVERHEAD_BYTES as usize);
                        return Ok(Some(block));
                    }
                }
            }
        }
    }

    /// Whether the block and everything below it were emitted before.
    fn is_repeat(&self, child: &Child) -> bool {
        !self.duplicates && self.seen.is_repeat(child)
    }

    /// Requests the next child of the `ChildIter` at `index`, and inserts it before the `ChildIter`, which is removed
    /// when it is exhausted. The child is fetched only if it is not available at once.
    fn request_next_child(&mut self, index: usize) {
        let Some(QueueEntry { depth, item: Item::ChildIter(children) }) = self.queue.get_mut(index) else { return };
        let depth = *depth;
        let child = match children.next_child() {
            Ok(Some(child)) => child,
            Ok(None) => {
                self.remove(index);
                return;
            }
            Err(error) => {
                self.remove(index);
                return self.insert(index, depth, Item::Error(Box::new(error.into())));
            }
        };
        self.work.charge(1);
        if self.is_repeat(&child) {
            return;
        }
        if let Some(ask) = self.ask.as_ref().filter(|_| child.cid.codec() == codec::RAW) {
            if let Err(error) = ask(&child.cid) {
                self.insert(index, depth, Item::Error(Box::new(error.into())));
            }
            return;
        }
        let state = match peek_or_inline(&*self.source, &child.cid) {
            Some(block) => State::arrived(block),
            None => self.fetch(index, &child),
        };
        self.insert(index, depth, Item::Block(Box::new(child), state));
        self.expand(index);
    }

    /// Requests a child that is to be inserted at `index`.
    fn fetch(&mut self, index: usize, child: &Child) -> State {
        let is_far = self.bytes_before(index) > self.window_bytes as u64;
        let (number, cost_bytes) = (self.fetch_next, child.expected_bytes());
        self.fetch_next += 1;
        self.used_bytes += cost_bytes;
        let fetch = match ahead_of(child, self.entity.as_ref()) {
            // What precedes it is requested next, so that a source must not begin with what is below it.
            Some(_) if is_far => self.source.get_ahead(&child.cid, &ReadAhead::block(child.cid)),
            Some(ahead) => self.source.get_ahead(&child.cid, &ahead),
            None => self.source.get(&child.cid),
        };
        self.fetches.push(fetch.map(move |result| CompletedFetch { number, cost_bytes, result }).boxed());
        State::Fetching(number)
    }

    /// About how many bytes are emitted before the block at `index`, by what links declare: those of blocks that have
    /// arrived, and of what is below others.
    fn bytes_before(&self, index: usize) -> u64 {
        self.work.charge(index as u64 / ENTRIES_PER_STEP);
        let bytes = self.queue.range(..index.min(self.queue.len())).map(|entry| match &entry.item {
            Item::Block(child, State::Fetching(_)) => child.declared_bytes.unwrap_or(child.expected_bytes() as u64),
            Item::Block(_, State::Arrived { block, .. }) => block.data().len() as u64,
            Item::Block(_, State::Failed(_)) | Item::ChildIter(_) | Item::Error(_) => 0,
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// Records a completed fetch in its queue entry, if that still exists.
    fn complete_fetch(&mut self, completed: CompletedFetch) {
        self.used_bytes -= completed.cost_bytes;
        let is_fetch_of_entry =
            |entry: &QueueEntry| matches!(&entry.item, Item::Block(_, State::Fetching(n)) if *n == completed.number);
        let Some(index) = self.queue.iter().position(is_fetch_of_entry) else { return };
        let Some(QueueEntry { depth, item: Item::Block(child, _) }) = self.remove(index) else { return };
        let state = match completed.result {
            Ok(block) => State::arrived(block),
            Err(error) => State::Failed(Box::new(error)),
        };
        self.insert(index, depth, Item::Block(child, state));
        self.expand(index);
    }

    /// Inserts the children of a block after it. On an error nothing is inserted: it recurs when the block reaches the
    /// front of the queue, so that the error keeps its place in the order.
    fn expand(&mut self, index: usize) {
        let Some(QueueEntry { depth, item: Item::Block(child, State::Arrived { block, .. }) }) = self.queue.get(index)
        else {
            return;
        };
        let depth = *depth;
        if self.is_repeat(child) {
            return;
        }
        let Ok(children) = self.children(depth, child, block) else { return };
        if let Some(QueueEntry { item: Item::Block(_, State::Arrived { expanded, .. }), .. }) =
            self.queue.get_mut(index)
        {
            *expanded = true;
        }
        if let Some(children) = children {
            self.insert(index + 1, depth + 1, Item::ChildIter(Box::new(children)));
        }
    }

    fn children(&self, depth: usize, child: &Child, block: &Block) -> Result<Option<ChildIter>, ScopeError> {
        if !child.is_leaf() {
            self.work.charge_decoding(block);
        }
        let children = expand(block, &child.role)?;
        let fits = |children: &ChildIter| {
            depth < self.limits.depth_max && self.child_iter_bytes.saturating_add(children.bytes) <= INNER_BYTES_MAX
        };
        match children {
            Some(children) if !fits(&children) => Err(ScopeError::TooDeep { cid: child.cid }),
            children => Ok(children),
        }
    }

    /// Takes a block or an error from the front of the queue; returns the block if it is to be emitted.
    fn take(&mut self) -> Result<Option<Block>, ScopeError> {
        let Some(QueueEntry { depth, item }) = self.remove(0) else { return Ok(None) };
        let (child, block, expanded) = match item {
            Item::Block(child, State::Arrived { block, expanded }) => (child, block, expanded),
            Item::Block(_, State::Failed(error)) => return Err((*error).into()),
            Item::Error(error) => return Err(*error),
            Item::Block(_, State::Fetching(_)) | Item::ChildIter(_) => return Ok(None),
        };
        let emit = self.record_visit(&child, &block)?;
        if !expanded {
            match self.children(depth, &child, &block) {
                Ok(None) => {}
                Ok(Some(children)) => self.insert(0, depth + 1, Item::ChildIter(Box::new(children))),
                Err(error) => self.insert(0, depth + 1, Item::Error(Box::new(error))),
            }
        }
        Ok(emit.then_some(*block))
    }

    /// Records a block at the front of the queue; returns whether it is to be emitted.
    fn record_visit(&mut self, child: &Child, block: &Block) -> Result<bool, ScopeError> {
        if is_identity(&child.cid) {
            return Ok(false);
        }
        let full = |Full| ScopeError::TooManyBlocks { max: self.limits.seen_max };
        let first = if self.duplicates { self.seen.emit(&child.cid) } else { self.seen.visit(child) };
        let first = first.map_err(full)?;
        if !first && self.duplicates {
            let section_bytes = block.data().len() as u64 + SECTION_OVERHEAD_BYTES;
            self.repeated_bytes = self.repeated_bytes.saturating_add(section_bytes);
            if self.repeated_bytes > self.limits.repeated_bytes_max {
                return Err(ScopeError::TooManyRepeats { max_bytes: self.limits.repeated_bytes_max });
            }
        }
        Ok(first || self.duplicates)
    }

    /// Removes a duplicate and everything below it from the queue. Fetches in flight for it are ignored when they
    /// complete.
    fn remove_subtree(&mut self, depth: usize) {
        self.remove(0);
        while self.queue.front().is_some_and(|entry| entry.depth > depth) {
            self.remove(0);
        }
    }

    /// Requests further blocks, in order, while the window has room.
    fn prefetch(&mut self) {
        while !self.work.is_due() && self.used_bytes < self.window_bytes {
            let first_iter = self.queue.iter().position(|entry| matches!(entry.item, Item::ChildIter(_)));
            let Some(index) = first_iter else { return };
            // The search for it costs work, too.
            self.work.charge(index as u64 / ENTRIES_PER_STEP);
            self.request_next_child(index);
        }
    }

    /// Waits until a fetch completes, and widens the window, once for each block that is waited for.
    async fn wait(&mut self, number: u64) -> Result<(), ScopeError> {
        if self.has_emitted && self.last_waited_for != Some(number) {
            self.window_bytes = self.window_bytes.saturating_mul(2).min(self.limits.look_ahead_bytes_max);
        }
        self.last_waited_for = Some(number);
        self.prefetch();
        let completed = self.fetches.next().await.ok_or(SourceError::Closed)?;
        self.complete_fetch(completed);
        Ok(())
    }

    /// Polls all fetches without waiting, and records those that completed. Without fetches in flight, everything so
    /// far was available at once, and nothing is prefetched.
    async fn poll_fetches(&mut self) {
        if self.fetches.is_empty() {
            return;
        }
        self.prefetch();
        while !self.work.is_due()
            && let Poll::Ready(Some(completed)) = futures::poll!(self.fetches.next())
        {
            self.complete_fetch(completed);
            self.prefetch();
        }
    }

    fn insert(&mut self, index: usize, depth: usize, item: Item) {
        self.used_bytes += item.used_bytes();
        self.child_iter_bytes += item.child_iter_bytes();
        self.queue.insert(index, QueueEntry { depth, item });
    }

    fn remove(&mut self, index: usize) -> Option<QueueEntry> {
        let entry = self.queue.remove(index)?;
        self.used_bytes -= entry.item.used_bytes();
        self.child_iter_bytes -= entry.item.child_iter_bytes();
        Some(entry)
    }
}

/// What is requested after the block of a child: the rest of the entity, or everything below the block.
fn ahead_of(child: &Child, entity: Option<&ReadAhead>) -> Option<ReadAhead> {
    match &child.role.0 {
        RoleKind::All => has_links(&child.cid).then(|| ReadAhead::all(child.cid)),
        RoleKind::Part { range, wanted } => {
            let end = wanted.as_ref().map_or(u64::MAX, |wanted| wanted.end);
            entity.map(|entity| ReadAhead::of_file(entity.root, range.start, end))
        }
        RoleKind::Entity(_) | RoleKind::File(_) | RoleKind::Shard { .. } => entity.cloned(),
        RoleKind::BlockOnly | RoleKind::Path(_) => None,
    }
}

impl State {
    fn arrived(block: Block) -> Self {
        Self::Arrived { block: Box::new(block), expanded: false }
    }
}

impl Item {
    /// The bytes that count against the window. Fetches are counted separately, because they may outlive their entry.
    fn used_bytes(&self) -> usize {
        match self {
            Self::Block(_, State::Arrived { block, .. }) => block.data().len() + BLOCK_OVERHEAD_BYTES,
            _ => 0,
        }
    }

    fn child_iter_bytes(&self) -> usize {
        match self {
            Self::ChildIter(children) => children.bytes,
            _ => 0,
        }
    }
}
