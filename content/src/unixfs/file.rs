//! Streaming the bytes of a file, or a range of them, from whatever shape of DAG it is stored in.
//!
//! Goals: order and length that hold or an error, never a silent difference; a range goes straight to the leaves that it
//! needs; blocks are fetched ahead of the reader so that a distant source keeps up, in bounded memory; nothing is copied.
//!
//! How it works. The file is a line of bytes that is covered, from the reader's position to the end of the range, by
//! *parts* (being fetched, or fetched) and *tails* (the children of an inner node that nobody has asked for yet). Both are
//! kept by their offset. Reading takes the part at the head; looking ahead starts the first child of the first tail, over
//! and over, while the window has room. When an inner node arrives, wherever it is in the window, it becomes a tail.
//!
//! The window is counted in bytes: what has been fetched and not read, what is expected of the fetches in flight, and the
//! inner nodes whose children are not all asked for. It starts a little above 1 MiB, so that a file of that size takes one
//! round trip below its root, and doubles, up to [`ReadLimits`], each time the reader has to wait. A slow reader waits only
//! until the buffers behind it are full, and the window never exceeds its start by more than what was read: such a
//! reader costs little memory, and a fast one has a window of 8 MiB after three round trips. The head is fetched whatever
//! the window says, and while every block is at hand ([`BlockSource::peek`]) nothing is read ahead at all.
//!
//! Inner nodes are asked for from three windows away: the leaves below one have to be asked for one window ahead, and the
//! node itself queues behind a window of leaves that were asked for before it. Without this a distant reader pauses for a
//! round trip at every subtree.
//!
//! Departure: a fetched block of which less than half is wanted is copied, so that a few bytes do not hold on to megabytes.

use super::{FileNode, Node, NodeError};
use crate::block::{Block, MAX_BLOCK_BYTES};
use crate::budget::{Budget, Share};
use crate::cid::Cid;
use crate::source::{BlockSource, SourceError, at_hand};
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

/// Inner nodes below inner nodes: far more than any writer makes, few enough that a hostile chain ends.
const DEPTH_MAX: u32 = 64;
/// What the inner nodes that are in use may take together, in bytes. Those of a petabyte take a few hundred KiB.
const INNER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How many bytes that are no content may be decoded before the first byte is read: four of the largest blocks. On the
/// way to a byte of an honest file are a few hundred KiB.
const DECODED_BYTES_MAX: u64 = 4 * MAX_BLOCK_BYTES as u64;
/// How many more of them for each byte that is read: a link takes about 50, and the smallest leaf has one byte.
const DECODED_BYTES_PER_BYTE: u64 = 128;
/// The window before the reader ever waited, in bytes: 1 MiB of leaves and the node above them.
const WINDOW_BYTES_START: usize = (1024 + 64) * 1024;
/// How many windows ahead of the reader inner nodes are asked for.
const INNER_WINDOWS: u64 = 3;
/// What a fetch counts for at least, in bytes, so that tiny blocks do not mean thousands of fetches at a time.
const FETCH_COST_MIN: usize = 32 * 1024;
/// What every part counts for besides its bytes, for the book-keeping: so that a million parts of one byte are not cheap.
const PART_OVERHEAD_BYTES: usize = 256;
/// What a fetch of a subtree counts for, in bytes, when it is too large to be a leaf: inner nodes are small.
const INNER_COST: usize = 64 * 1024;

/// How much memory a reader may use to hide the latency of its source.
#[derive(Debug, Clone)]
pub struct ReadLimits {
    /// The most that is fetched ahead of the reader, in bytes. What is being read right now comes on top: a block, and
    /// the inner nodes above it.
    pub window_bytes_max: usize,
    /// What the windows of all readers share, if there is a limit to it. When nothing is left of it, a reader has the
    /// smallest window there is.
    pub shared: Option<Arc<Budget>>,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self { window_bytes_max: 8 * 1024 * 1024, shared: None }
    }
}

/// A look-ahead window that grows as far as its limits allow.
struct Window {
    bytes: usize,
    bytes_max: usize,
    /// What of it was taken from the shared budget: all but the smallest window.
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

    /// Takes what is missing up to `bytes`, or the limit; whether that could be had.
    fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.min(self.bytes_max).saturating_sub(self.bytes);
        let granted = self.share.grow(more);
        self.bytes += if granted { more } else { 0 };
        granted
    }
}

/// Why a file cannot be read, or cannot be read on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The block, or one below it, is a directory, a symlink or not UnixFS.
    #[error("{cid} is not a file")]
    NotAFile {
        /// The offending block.
        cid: Cid,
    },
    /// A block cannot be understood.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A block does not have the length that its parent says.
    #[error("{cid} has {actual} bytes where its parent says {expected}")]
    SizeMismatch {
        /// The block.
        cid: Cid,
        /// The length that the parent says, in bytes.
        expected: u64,
        /// The length found, in bytes.
        actual: u64,
    },
    /// The DAG is nested more deeply, or has more bulky inner nodes, than any honest file.
    #[error("the inner nodes above {cid} are too many or too large")]
    TooDeep {
        /// Where reading stopped.
        cid: Cid,
    },
    /// The range is reversed or ends beyond the file.
    #[error("bytes {start}..{end} are not inside a file of {size} bytes")]
    OutOfRange {
        /// First byte of the range.
        start: u64,
        /// One after its last byte.
        end: u64,
        /// Size of the file, in bytes.
        size: u64,
    },
    /// A block did not come.
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

/// A stream of a file's bytes in order. Chunks are slices of the blocks that they came in, so none is larger than a block
/// and none is empty. After an error the stream ends. Dropping the reader cancels what it is fetching.
pub struct FileReader {
    source: Arc<dyn BlockSource>,
    work: Work,
    root: Cid,
    /// What is still to be emitted.
    range: Range<u64>,
    parts: BTreeMap<u64, Part>,
    tails: BTreeMap<u64, Tail>,
    fetches: FuturesUnordered<BoxFuture<'static, (u64, Result<Block, SourceError>)>>,
    /// What counts against the window now, in bytes.
    used_bytes: usize,
    /// The share of `used_bytes` that inner nodes take.
    inner_bytes: usize,
    window: Window,
    /// Bytes emitted so far. Before the first, waiting says nothing about the reader's speed.
    read_bytes: u64,
    /// What was decoded until now and is no content, in bytes.
    decoded_bytes: u64,
    /// The offset of the last part that the reader waited for.
    stalled_at: Option<u64>,
}

/// A stretch of the file that somebody asked for.
enum Part {
    Fetching(Child),
    Ready {
        bytes: Bytes,
        cost_bytes: usize,
    },
    /// An error keeps its place in the order: what comes before it is still emitted.
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

/// What a fetch of a subtree of that size is expected to take, in bytes.
fn fetch_cost(size: u64) -> usize {
    match usize::try_from(size) {
        Ok(size) if size <= MAX_BLOCK_BYTES => size.max(FETCH_COST_MIN),
        _ => INNER_COST,
    }
}

/// Whether a subtree of that size is too large to be one leaf.
fn is_inner(size: u64) -> bool {
    size > MAX_BLOCK_BYTES as u64
}

/// The children of an inner node from one of them on. Never empty.
struct Tail {
    cid: Cid,
    file: FileNode,
    next: usize,
    depth: u32,
}

impl Tail {
    /// Moves from the child at `offset` to the first one that has bytes in `range`; its offset, or `None` if none has.
    fn seek(&mut self, mut offset: u64, range: &Range<u64>) -> Option<u64> {
        if range.is_empty() {
            return None;
        }
        let sizes = self.file.children.as_ref().map_or(&[][..], |children| &children.sizes);
        while let Some(size) = sizes.get(self.next) {
            // The sum of all sizes was found to fit when the node was decoded, and the root's to hold them all.
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

/// What the reader finds at its position.
enum Head {
    Bytes(Bytes),
    /// Others run first.
    Due,
    Waiting(u64),
}

impl FileReader {
    /// A reader of `range` (byte offsets) of the file below `root`.
    ///
    /// # Errors
    /// [`ReadError::OutOfRange`] when the range is not inside the file, [`ReadError::NotAFile`] and [`ReadError::Node`]
    /// when the root is no file. Everything else appears in the stream, at its place.
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
            stalled_at: None,
        };
        reader.place(0, 0, &root, file)?;
        Ok(reader)
    }

    /// How many bytes are still to be emitted.
    pub fn remaining(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The look-ahead window now, in bytes: between a little above 1 MiB and the limit, or less if the limit or what is left of the shared
    /// budget is smaller.
    pub fn window_bytes(&self) -> usize {
        self.window.bytes
    }

    /// Goes to the reader's position, asking for what is needed there on the way.
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
        Ok(Head::Due)
    }

    /// Whether all was emitted that will be.
    fn is_over(&self) -> bool {
        self.range.is_empty() && self.parts.is_empty() && self.tails.is_empty()
    }

    /// Nothing is left to read before the end of the range.
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

    /// Asks for the first child of the tail at `offset`: takes it if it is at hand, fetches it if not.
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
            Ok(child) => match at_hand(&*self.source, &child.cid) {
                Some(block) => self.settle(offset, child, Ok(block)),
                None => self.fetch(offset, child),
            },
        }
    }

    fn fetch(&mut self, offset: u64, child: Child) {
        self.used_bytes += child.cost_bytes();
        self.parts.insert(offset, Part::Fetching(child));
        self.fetches.push(self.source.get(&child.cid).map(move |result| (offset, result)).boxed());
    }

    /// Takes a fetch that ended out of the flight and puts what it brought in its place.
    fn arrive(&mut self, offset: u64, result: Result<Block, SourceError>) {
        if let Some(Part::Fetching(child)) = self.parts.remove(&offset) {
            self.used_bytes -= child.cost_bytes();
            self.settle(offset, child, result);
            self.compact(offset.max(self.range.start));
        }
    }

    fn settle(&mut self, offset: u64, child: Child, result: Result<Block, SourceError>) {
        let placed = result.map_err(ReadError::from).and_then(|block| {
            self.work.charge_decoding(&block);
            let file = decode_file(&block)?;
            let (expected, actual) = (child.size, file.size());
            if expected != actual {
                return Err(ReadError::SizeMismatch { cid: child.cid, expected, actual });
            }
            self.count_decoded(&block, &file)?;
            self.place(offset, child.depth, &block, file)
        });
        if let Err(error) = placed {
            self.parts.insert(offset, Part::Failed(error));
        }
    }

    /// Counts what of a block is no content. A few blocks that are mostly that, linked to over and over, would cost
    /// much for each byte.
    fn count_decoded(&mut self, block: &Block, file: &FileNode) -> Result<(), ReadError> {
        self.decoded_bytes += (block.data().len() - file.data.len()) as u64;
        let max = DECODED_BYTES_MAX.saturating_add(self.read_bytes.saturating_mul(DECODED_BYTES_PER_BYTE));
        if self.decoded_bytes > max { Err(ReadError::TooDeep { cid: *block.cid() }) } else { Ok(()) }
    }

    /// Puts a node in its place: its own bytes become a part, its children a tail.
    fn place(&mut self, offset: u64, depth: u32, block: &Block, file: FileNode) -> Result<(), ReadError> {
        let data = file.data.clone();
        let children_offset = offset.saturating_add(data.len() as u64);
        let mut tail = Tail { cid: *block.cid(), file, next: 0, depth };
        match tail.seek(children_offset, &self.range) {
            None => self.place_bytes(offset, &data, block.data().len()),
            Some(next) => {
                let cost_bytes = tail.cost_bytes();
                if depth >= DEPTH_MAX || self.inner_bytes + cost_bytes > INNER_BYTES_MAX {
                    return Err(ReadError::TooDeep { cid: *block.cid() });
                }
                self.used_bytes += cost_bytes;
                self.inner_bytes += cost_bytes;
                self.tails.insert(next, tail);
                // The tail holds the same block, and outlives these bytes, which come before its children.
                self.place_bytes(offset, &data, 0);
            }
        }
        Ok(())
    }

    /// Makes a part of those of the bytes at `offset` that are wanted. They keep `cost_bytes` of memory alive.
    fn place_bytes(&mut self, offset: u64, data: &Bytes, cost_bytes: usize) {
        let bytes = wanted_of(offset, data, &self.range);
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

    /// Starts children ahead of the reader, in order, while the window has room.
    fn look_ahead(&mut self) {
        while let Some((&offset, tail)) = self.tails.first_key_value() {
            let distance = offset.saturating_sub(self.range.start);
            let used_bytes = self.used_bytes + fetch_cost(tail.next_size());
            if distance > self.window.bytes as u64 || used_bytes > self.window.bytes || self.work.is_due() {
                break;
            }
            self.start_child(offset);
        }
        while let Some(offset) = self.inner_ahead() {
            self.start_child(offset);
        }
    }

    /// Where the next inner node is that should be asked for by now, if there is one. They are few: each stands for more
    /// bytes than any block has.
    fn inner_ahead(&self) -> Option<u64> {
        if self.fetches.is_empty() || self.work.is_due() || self.inner_bytes + INNER_COST > INNER_BYTES_MAX {
            return None;
        }
        let horizon = self.range.start.saturating_add(self.window.bytes as u64 * INNER_WINDOWS);
        let mut near = self.tails.range(..=horizon);
        near.find(|(_, tail)| is_inner(tail.next_size())).map(|(offset, _)| *offset)
    }

    /// The reader waits at `offset`: look further ahead from now on, once for each such wait.
    fn stalled(&mut self, offset: u64) {
        if self.read_bytes > 0 && self.stalled_at != Some(offset) {
            let earned = usize::try_from(self.read_bytes).unwrap_or(usize::MAX);
            let bytes_max = WINDOW_BYTES_START.saturating_add(earned);
            self.window.grow_to(self.window.bytes.saturating_mul(2).min(bytes_max));
        }
        self.stalled_at = Some(offset);
    }

    /// Lets every fetch make progress, and takes in those that ended.
    fn poll_fetches(&mut self, cx: &mut Context<'_>) {
        while !self.work.is_due()
            && let Poll::Ready(Some((offset, result))) = self.fetches.poll_next_unpin(cx)
        {
            self.arrive(offset, result);
            self.look_ahead();
        }
    }

    /// Gives everything up, cancelling what is in flight: nothing follows an error.
    fn fail(&mut self, error: ReadError) -> ReadError {
        self.range.start = self.range.end;
        self.parts.clear();
        self.tails.clear();
        self.fetches.clear();
        error
    }
}

/// The part of the bytes at `offset` that lies in `range`.
fn wanted_of(offset: u64, data: &Bytes, range: &Range<u64>) -> Bytes {
    let length = data.len() as u64;
    let from = range.start.saturating_sub(offset).min(length);
    let to = range.end.saturating_sub(offset).min(length);
    // Both are at most the length of a buffer, so they fit.
    if from < to { data.slice(from as usize..to as usize) } else { Bytes::new() }
}

impl Stream for FileReader {
    type Item = Result<Bytes, ReadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if this.is_over() {
                return Poll::Ready(None);
            }
            if let Err(error) = ready!(this.work.poll_turn(cx)) {
                return Poll::Ready(Some(Err(this.fail(error.into()))));
            }
            match this.head() {
                Ok(Head::Due) => {}
                Ok(Head::Bytes(bytes)) => {
                    // With nothing else fetched or in flight, everything so far was at hand: no need to look ahead.
                    if !this.fetches.is_empty() || !this.parts.is_empty() {
                        this.look_ahead();
                        this.poll_fetches(cx);
                    }
                    return Poll::Ready(Some(Ok(bytes)));
                }
                Ok(Head::Waiting(offset)) => {
                    this.stalled(offset);
                    this.look_ahead();
                    match ready!(this.fetches.poll_next_unpin(cx)) {
                        Some((offset, result)) => this.arrive(offset, result),
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
        write!(f, "FileReader({root}, {range:?} to go, {used_bytes} of {window_bytes} bytes of look-ahead)")
    }
}
