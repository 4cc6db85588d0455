//! Streaming the bytes of a file, or a range of them, for any DAG layout.
//!
//! Goals: the right bytes in the right order and number, or an error; a range fetches only the leaves that it needs,
//! and the nodes above them; prefetching hides the latency of a remote source in bounded memory; nothing is copied.
//!
//! How it works: the file from the reader's position to the end of the range is covered by *parts* (being fetched, or
//! fetched) and *tails* (the children of an inner node that are not requested yet). Both are indexed by their offset.
//! The reader takes the first part; the prefetcher requests the next child of the first tail while the window has room.
//! When an inner node arrives, wherever it is in the window, it becomes a tail.
//!
//! The window is counted in bytes: data that was fetched and not read, the expected size of the fetches in flight, and
//! the inner nodes whose children are not all requested. It starts a little above 1 MiB, so that a file of that size
//! takes one round trip below its root, and doubles, up to [`ReadLimits`], each time the reader has to wait. It never
//! exceeds its start by more than the bytes that were read, so a slow reader, which waits only until its buffers are
//! full, takes little memory, and a fast one has a window of 8 MiB after three round trips. The first part is fetched
//! even if the window is full. While every block is available at once ([`BlockSource::peek`]), nothing is prefetched.
//!
//! Inner nodes are requested three windows ahead: the leaves below one have to be requested one window ahead, and the
//! node itself queues behind a window of leaves that were requested before it. Otherwise a reader with high latency
//! would wait for a round trip at every subtree. A source is told that such a node is requested alone
//! ([`ReadAhead::block`]).
//!
//! Departure: a fetched block of which less than half is needed is copied, so that a few bytes do not keep megabytes
//! alive.

use super::{FileNode, Node, NodeError};
use crate::block::{Block, MAX_BLOCK_BYTES};
use crate::budget::{Budget, Share};
use crate::cid::Cid;
use crate::read_ahead::ReadAhead;
use crate::source::{BlockSource, SourceError, peek_or_inline};
use crate::work::Work;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, Stream, StreamExt as _};
use futures::{FutureExt as _, ready};
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The maximum nesting of inner nodes: far more than any importer makes, and a bound for malicious chains.
const DEPTH_MAX: u32 = 64;
/// The maximum size of all inner nodes in use, in bytes. Those of a file of a petabyte take a few hundred KiB.
const INNER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The maximum number of decoded bytes without content before the first byte is read: four blocks of the maximum size.
/// In regular files it is a few hundred KiB.
const DECODED_BYTES_MAX: u64 = 4 * MAX_BLOCK_BYTES as u64;
/// The increase of that maximum for each byte that is read: a link takes about 50 bytes, and the smallest leaf has one.
const DECODED_BYTES_PER_BYTE: u64 = 128;
/// The initial window, in bytes: 1 MiB of leaves and the node above them.
const WINDOW_BYTES_START: usize = (1024 + 64) * 1024;
/// The number of windows by which inner nodes are requested ahead.
const INNER_WINDOWS: u64 = 3;
/// The minimum that a fetch counts, in bytes, so that tiny blocks do not cause thousands of concurrent fetches.
const FETCH_COST_MIN: usize = 32 * 1024;
/// The overhead of a part besides its bytes, so that a million parts of one byte count against the window.
const PART_OVERHEAD_BYTES: usize = 256;
/// What a fetch of a subtree that is too large for a leaf counts, in bytes: inner nodes are small.
const INNER_COST: usize = 64 * 1024;

/// Limits for the memory of a reader's prefetching.
#[derive(Debug, Clone)]
pub struct ReadLimits {
    /// The maximum of the prefetch window, in bytes, besides what is being read: a block, and the inner nodes above it.
    pub window_bytes_max: usize,
    /// The budget that the windows of all readers share, if there is one. When it is used up, a reader has the minimum
    /// window.
    pub shared: Option<Arc<Budget>>,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self { window_bytes_max: 8 * 1024 * 1024, shared: None }
    }
}

/// A prefetch window that grows within its limits.
struct Window {
    bytes: usize,
    bytes_max: usize,
    /// The part that is reserved from the shared budget: all but the minimum window.
    share: Share,
}

impl Window {
    fn new(limits: ReadLimits) -> Self {
        let ReadLimits { window_bytes_max: bytes_max, shared } = limits;
        let mut window = Self { bytes: 0, bytes_max, share: Share::of(shared) };
        if !window.grow_to(WINDOW_BYTES_START) {
            window.bytes = FETCH_COST_MIN;
        }
        window
    }

    /// Grows to `bytes`, or the limit; `false` if the shared budget is used up.
    fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.min(self.bytes_max).saturating_sub(self.bytes);
        let granted = self.share.grow(more);
        self.bytes += if granted { more } else { 0 };
        granted
    }
}

/// Why a file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The block, or one below it, is a directory, a symlink or not UnixFS.
    #[error("{cid} is not a file")]
    NotAFile {
        /// The block.
        cid: Cid,
    },
    /// A block cannot be decoded.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The size of a block differs from the size that its parent declares.
    #[error("{cid} has {actual} bytes, but its parent declares {expected}")]
    SizeMismatch {
        /// The block.
        cid: Cid,
        /// The declared size, in bytes.
        expected: u64,
        /// The actual size, in bytes.
        actual: u64,
    },
    /// The DAG is nested too deeply, or its inner nodes are too large.
    #[error("the inner nodes above {cid} are nested too deeply, or are too large together")]
    TooDeep {
        /// The block at which reading stopped.
        cid: Cid,
    },
    /// The range is reversed or ends after the end of the file.
    #[error("bytes {start}..{end} are not inside a file of {size} bytes")]
    OutOfRange {
        /// The first byte of the range.
        start: u64,
        /// The end of the range, exclusive.
        end: u64,
        /// The size of the file, in bytes.
        size: u64,
    },
    /// A block was not received.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// The size of a file, in bytes, from its root block alone.
///
/// # Errors
/// [`ReadError::NotAFile`] and [`ReadError::Node`].
pub fn file_size(root: &Block) -> Result<u64, ReadError> {
    Ok(decode_file(root)?.size())
}

fn decode_file(block: &Block) -> Result<FileNode, ReadError> {
    match Node::decode(block)? {
        Node::File(file) => Ok(file),
        _ => Err(ReadError::NotAFile { cid: *block.cid() }),
    }
}

/// A stream of a file's bytes. Chunks are slices of blocks, so none is larger than a block, and none is empty. After an
/// error the stream ends. Dropping the reader cancels its fetches.
pub struct FileReader {
    source: Arc<dyn BlockSource>,
    work: Work,
    root: Cid,
    /// The range that is not emitted yet.
    range: Range<u64>,
    parts: BTreeMap<u64, Part>,
    tails: BTreeMap<u64, Tail>,
    fetches: FuturesUnordered<BoxFuture<'static, (u64, Result<Block, SourceError>)>>,
    /// The bytes that count against the window.
    used_bytes: usize,
    /// The part of `used_bytes` that inner nodes take.
    inner_bytes: usize,
    window: Window,
    /// The number of emitted bytes. Waiting for the first block does not widen the window.
    read_bytes: u64,
    /// The number of decoded bytes that are not content.
    decoded_bytes: u64,
    /// The offset of the last part for which the reader waited.
    last_waited_for: Option<u64>,
}

/// A requested part of the file.
enum Part {
    Fetching(Child),
    Ready {
        bytes: Bytes,
        cost_bytes: usize,
    },
    /// An error keeps its place in the order: the bytes before it are still emitted.
    Failed(ReadError),
}

/// A child of an inner node.
#[derive(Clone, Copy)]
struct Child {
    cid: Cid,
    size: u64,
    depth: u32,
}

impl Child {
    fn cost_bytes(&self) -> usize {
        fetch_cost(self.size)
    }
}

/// The expected size of the block at the top of a subtree of that size, in bytes.
fn fetch_cost(size: u64) -> usize {
    match usize::try_from(size) {
        Ok(size) if size <= MAX_BLOCK_BYTES => size.max(FETCH_COST_MIN),
        _ => INNER_COST,
    }
}

/// Whether a subtree of that size is too large for a leaf.
fn is_inner(size: u64) -> bool {
    size > MAX_BLOCK_BYTES as u64
}

/// The remaining children of an inner node. Never empty.
struct Tail {
    cid: Cid,
    file: FileNode,
    next: usize,
    depth: u32,
}

impl Tail {
    /// Moves from the child at `offset` to the first one that overlaps `range`; returns its offset, or `None` if none
    /// does.
    fn seek(&mut self, mut offset: u64, range: &Range<u64>) -> Option<u64> {
        if range.is_empty() {
            return None;
        }
        let sizes = self.file.children.as_ref().map_or(&[][..], |children| &children.sizes);
        while let Some(size) = sizes.get(self.next) {
            // Decoding checked that the sum of the sizes does not overflow, and the size of the root is an upper bound.
            let end = offset.saturating_add(*size);
            if *size > 0 && end > range.start {
                return (offset < range.end).then_some(offset);
            }
            offset = end;
            self.next += 1;
        }
        None
    }

    fn next_size(&self) -> u64 {
        self.file.children.as_ref().and_then(|children| children.sizes.get(self.next)).map_or(0, |size| *size)
    }

    fn next_child(&self) -> Result<Child, ReadError> {
        let links = self.file.children.as_ref().map(|children| &children.node);
        let cid = match links.and_then(|node| node.link(self.next)) {
            Some(link) => link.and_then(|link| link.cid()).map_err(|reason| NodeError::malformed(&self.cid, reason))?,
            None => return Err(NodeError::malformed(&self.cid, "a link is missing").into()),
        };
        Ok(Child { cid, size: self.next_size(), depth: self.depth + 1 })
    }

    fn cost_bytes(&self) -> usize {
        self.file.children.as_ref().map_or(0, |children| children.node.block_bytes())
    }
}

/// The state at the reader's position.
enum Head {
    Bytes(Bytes),
    /// It is time to yield.
    Yield,
    Waiting(u64),
}

impl FileReader {
    /// A reader of `range` (byte offsets) of the file below `root`.
    ///
    /// # Errors
    /// [`ReadError::OutOfRange`] when the range is not inside the file, [`ReadError::NotAFile`] and [`ReadError::Node`]
    /// when the root is not a file. Other errors are in the stream.
    pub fn new(
        source: Arc<dyn BlockSource>,
        root: Block,
        range: Range<u64>,
        limits: ReadLimits,
    ) -> Result<Self, ReadError> {
        let work = source.work();
        work.charge_decoding(&root);
        let file = decode_file(&root)?;
        let Range { start, end } = range;
        let size = file.size();
        if start > end || end > size {
            return Err(ReadError::OutOfRange { start, end, size });
        }
        let mut reader = Self {
            source,
            work,
            root: *root.cid(),
            range,
            parts: BTreeMap::new(),
            tails: BTreeMap::new(),
            fetches: FuturesUnordered::new(),
            used_bytes: 0,
            inner_bytes: 0,
            window: Window::new(limits),
            read_bytes: 0,
            decoded_bytes: 0,
            last_waited_for: None,
        };
        reader.insert_node(0, 0, &root, file)?;
        Ok(reader)
    }

    /// The number of bytes that are not emitted yet.
    pub fn remaining(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The current prefetch window, in bytes: between a little above 1 MiB and the limit, or less if the limit or the
    /// rest of the shared budget is smaller.
    pub fn window_bytes(&self) -> usize {
        self.window.bytes
    }

    /// Advances to the reader's position, and requests the blocks that it needs.
    fn head(&mut self) -> Result<Head, ReadError> {
        while !self.work.is_due() {
            let part = self.parts.first_key_value().map(|(offset, _)| *offset);
            let tail = self.tails.first_key_value().map(|(offset, _)| *offset);
            match (part, tail) {
                (None, None) => return Err(self.too_short()),
                (part, Some(tail)) if part.is_none_or(|part| tail < part) => self.start_child(tail),
                (Some(part), _) => return self.take_part(part),
                (None, Some(tail)) => self.start_child(tail),
            }
        }
        Ok(Head::Yield)
    }

    /// Whether the stream has ended.
    fn has_ended(&self) -> bool {
        self.range.is_empty() && self.parts.is_empty() && self.tails.is_empty()
    }

    /// The error when the content ends before the end of the range.
    fn too_short(&self) -> ReadError {
        let Range { start: actual, end: expected } = self.range;
        ReadError::SizeMismatch { cid: self.root, expected, actual }
    }

    fn take_part(&mut self, offset: u64) -> Result<Head, ReadError> {
        if let Some(Part::Fetching(_)) = self.parts.get(&offset) {
            return Ok(Head::Waiting(offset));
        }
        match self.parts.remove(&offset) {
            Some(Part::Ready { bytes, cost_bytes }) => {
                self.used_bytes -= cost_bytes;
                self.range.start += bytes.len() as u64;
                self.read_bytes += bytes.len() as u64;
                self.work.earn(bytes.len());
                Ok(Head::Bytes(bytes))
            }
            Some(Part::Failed(error)) => Err(error),
            Some(Part::Fetching(_)) | None => Ok(Head::Waiting(offset)),
        }
    }

    /// Requests the first child of the tail at `offset`, unless the child is available at once.
    fn start_child(&mut self, offset: u64) {
        let Some(mut tail) = self.tails.remove(&offset) else { return };
        self.work.charge(1);
        let child = tail.next_child();
        let after = offset.saturating_add(tail.next_size());
        tail.next += 1;
        match tail.seek(after, &self.range) {
            Some(next) => _ = self.tails.insert(next, tail),
            None => self.release_inner(tail.cost_bytes()),
        }
        match child {
            Err(error) => _ = self.parts.insert(offset, Part::Failed(error)),
            Ok(child) => match peek_or_inline(&*self.source, &child.cid) {
                Some(block) => self.insert_block(offset, child, Ok(block)),
                None => self.fetch(offset, child),
            },
        }
    }

    fn fetch(&mut self, offset: u64, child: Child) {
        self.used_bytes += child.cost_bytes();
        self.parts.insert(offset, Part::Fetching(child));
        let is_far = offset.saturating_sub(self.range.start) > self.window.bytes as u64;
        let ahead = match is_far {
            // What precedes it is requested next, so that a source must not begin with what follows it.
            true => ReadAhead::block(child.cid),
            // Its siblings up to the end of the range are requested next.
            false => ReadAhead::of_file(self.root, offset.max(self.range.start), self.range.end),
        };
        let fetch = self.source.get_ahead(&child.cid, &ahead);
        self.fetches.push(fetch.map(move |result| (offset, result)).boxed());
    }

    /// Records a completed fetch.
    fn complete_fetch(&mut self, offset: u64, result: Result<Block, SourceError>) {
        if let Some(Part::Fetching(child)) = self.parts.remove(&offset) {
            self.used_bytes -= child.cost_bytes();
            self.insert_block(offset, child, result);
            self.compact(offset.max(self.range.start));
        }
    }

    fn insert_block(&mut self, offset: u64, child: Child, result: Result<Block, SourceError>) {
        let inserted = result.map_err(ReadError::from).and_then(|block| {
            self.work.charge_decoding(&block);
            let file = decode_file(&block)?;
            let (expected, actual) = (child.size, file.size());
            if expected != actual {
                return Err(ReadError::SizeMismatch { cid: child.cid, expected, actual });
            }
            self.count_decoded(&block, &file)?;
            self.insert_node(offset, child.depth, &block, file)
        });
        if let Err(error) = inserted {
            self.parts.insert(offset, Part::Failed(error));
        }
    }

    /// Counts the bytes of a block that are not content. Without this limit, a few such blocks that are linked
    /// repeatedly would cost much work for each byte.
    fn count_decoded(&mut self, block: &Block, file: &FileNode) -> Result<(), ReadError> {
        self.decoded_bytes += (block.data().len() - file.data.len()) as u64;
        let max = DECODED_BYTES_MAX.saturating_add(self.read_bytes.saturating_mul(DECODED_BYTES_PER_BYTE));
        if self.decoded_bytes > max { Err(ReadError::TooDeep { cid: *block.cid() }) } else { Ok(()) }
    }

    /// Inserts a node: its own data becomes a part, and its children a tail.
    fn insert_node(&mut self, offset: u64, depth: u32, block: &Block, file: FileNode) -> Result<(), ReadError> {
        let data = file.data.clone();
        let children_offset = offset.saturating_add(data.len() as u64);
        let mut tail = Tail { cid: *block.cid(), file, next: 0, depth };
        match tail.seek(children_offset, &self.range) {
            None => self.insert_bytes(offset, &data, block.data().len()),
            Some(next) => {
                let cost_bytes = tail.cost_bytes();
                if depth >= DEPTH_MAX || self.inner_bytes + cost_bytes > INNER_BYTES_MAX {
                    return Err(ReadError::TooDeep { cid: *block.cid() });
                }
                self.used_bytes += cost_bytes;
                self.inner_bytes += cost_bytes;
                self.tails.insert(next, tail);
                // The tail keeps the same block alive, and longer than this part, which comes before it.
                self.insert_bytes(offset, &data, 0);
            }
        }
        Ok(())
    }

    /// Inserts the wanted bytes of `data` at `offset` as a part, which keeps `cost_bytes` of memory alive.
    fn insert_bytes(&mut self, offset: u64, data: &Bytes, cost_bytes: usize) {
        let bytes = slice_in(offset, data, &self.range);
        if bytes.is_empty() {
            return;
        }
        let cost_bytes = cost_bytes + PART_OVERHEAD_BYTES;
        self.used_bytes += cost_bytes;
        self.parts.insert(offset.max(self.range.start), Part::Ready { bytes, cost_bytes });
    }

    /// Copies a part that keeps more than twice its size alive.
    fn compact(&mut self, offset: u64) {
        let Some(Part::Ready { bytes, cost_bytes }) = self.parts.get_mut(&offset) else { return };
        let copy_cost_bytes = bytes.len() + PART_OVERHEAD_BYTES;
        if 2 * copy_cost_bytes < *cost_bytes {
            self.used_bytes -= *cost_bytes - copy_cost_bytes;
            *cost_bytes = copy_cost_bytes;
            *bytes = Bytes::copy_from_slice(bytes);
        }
    }

    fn release_inner(&mut self, cost_bytes: usize) {
        self.used_bytes -= cost_bytes;
        self.inner_bytes -= cost_bytes;
    }

    /// Requests further children, in order, while the window has room.
    fn prefetch(&mut self) {
        while let Some((&offset, tail)) = self.tails.first_key_value() {
            let distance = offset.saturating_sub(self.range.start);
            let used_bytes = self.used_bytes + fetch_cost(tail.next_size());
            if distance > self.window.bytes as u64 || used_bytes > self.window.bytes || self.work.is_due() {
                break;
            }
            self.start_child(offset);
        }
        while let Some(offset) = self.next_inner_to_prefetch() {
            self.start_child(offset);
        }
    }

    /// The offset of the next inner node that is to be requested now, if there is one. They are few, because each
    /// covers more bytes than a block can have.
    fn next_inner_to_prefetch(&self) -> Option<u64> {
        if self.fetches.is_empty() || self.work.is_due() || self.inner_bytes + INNER_COST > INNER_BYTES_MAX {
            return None;
        }
        let horizon = self.range.start.saturating_add(self.window.bytes as u64 * INNER_WINDOWS);
        let mut near = self.tails.range(..=horizon);
        near.find(|(_, tail)| is_inner(tail.next_size())).map(|(offset, _)| *offset)
    }

    /// The reader waits at `offset`: widens the window, once for each offset.
    fn widen_window(&mut self, offset: u64) {
        if self.read_bytes > 0 && self.last_waited_for != Some(offset) {
            let earned = usize::try_from(self.read_bytes).unwrap_or(usize::MAX);
            let bytes_max = WINDOW_BYTES_START.saturating_add(earned);
            self.window.grow_to(self.window.bytes.saturating_mul(2).min(bytes_max));
        }
        self.last_waited_for = Some(offset);
    }

    /// Polls all fetches, and records those that completed.
    fn poll_fetches(&mut self, cx: &mut Context<'_>) {
        while !self.work.is_due()
            && let Poll::Ready(Some((offset, result))) = self.fetches.poll_next_unpin(cx)
        {
            self.complete_fetch(offset, result);
            self.prefetch();
        }
    }

    /// Ends the stream and cancels the fetches in flight.
    fn fail(&mut self, error: ReadError) -> ReadError {
        self.range.start = self.range.end;
        self.parts.clear();
        self.tails.clear();
        self.fetches.clear();
        error
    }
}

/// The slice of the bytes at `offset` that is in `range`.
fn slice_in(offset: u64, data: &Bytes, range: &Range<u64>) -> Bytes {
    let length = data.len() as u64;
    let from = range.start.saturating_sub(offset).min(length);
    let to = range.end.saturating_sub(offset).min(length);
    // Both are at most the length of the buffer.
    if from < to { data.slice(from as usize..to as usize) } else { Bytes::new() }
}

impl Stream for FileReader {
    type Item = Result<Bytes, ReadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if this.has_ended() {
                return Poll::Ready(None);
            }
            if let Err(error) = ready!(this.work.poll_yield(cx)) {
                return Poll::Ready(Some(Err(this.fail(error.into()))));
            }
            match this.head() {
                Ok(Head::Yield) => {}
                Ok(Head::Bytes(bytes)) => {
                    // With nothing fetched or in flight, everything so far was available at once, and nothing is
                    // prefetched.
                    if !this.fetches.is_empty() || !this.parts.is_empty() {
                        this.prefetch();
                        this.poll_fetches(cx);
                    }
                    return Poll::Ready(Some(Ok(bytes)));
                }
                Ok(Head::Waiting(offset)) => {
                    this.widen_window(offset);
                    this.prefetch();
                    match ready!(this.fetches.poll_next_unpin(cx)) {
                        Some((offset, result)) => this.complete_fetch(offset, result),
                        None => return Poll::Ready(Some(Err(this.fail(SourceError::Closed.into())))),
                    }
                }
                Err(error) => return Poll::Ready(Some(Err(this.fail(error)))),
            }
        }
    }
}

impl std::fmt::Debug for FileReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { root, range, used_bytes, window: Window { bytes: window_bytes, .. }, .. } = self;
        write!(f, "FileReader({root}, {range:?} to go, {used_bytes} of {window_bytes} bytes of prefetch window)")
    }
}
