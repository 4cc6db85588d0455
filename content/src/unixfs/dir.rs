//! Looking up a name in a directory, and listing it.
//!
//! Goals: a look-up in a sharded directory (HAMT, <https://specs.ipfs.tech/unixfs/#dag-pb-hamtdirectory>) follows the
//! hash of the name and fetches at most one shard for each level; a listing is lazy, in stored order, and takes memory
//! that does not depend on the number of entries.
//!
//! Non-goal: sorting. A plain directory is stored in the order of names, and a HAMT in the order of hashes.

use super::{Node, NodeError, ShardNode};
use crate::block::{Block, MAX_BLOCK_BYTES};
use crate::budget::{Budget, Share};
use crate::cid::Cid;
use crate::dag_scope::{DagScope, ScopeOptions};
use crate::dagpb::{PbLink, PbNode};
use crate::read_ahead::ReadAhead;
use crate::source::{BlockSource, SourceError, fetch, fetch_ahead, peek_or_inline};
use crate::work::Work;
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use futures::stream::{self, BoxStream, FuturesOrdered, StreamExt as _};
use std::sync::Arc;

/// The number of hash bits of a HAMT, which bounds its depth.
pub(crate) const HASH_BITS: u32 = u64::BITS;

/// The maximum number of shards that a listing prefetches, over all levels.
const PREFETCHED_SHARDS_MAX: usize = 8;
/// A listing with a shared budget prefetches only while this many blocks of the maximum size are left in it.
const BUDGET_FACTOR: usize = 16;

/// Why a directory cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DirError {
    /// The block is a file, a symlink or not UnixFS.
    #[error("{cid} is not a directory")]
    NotADirectory {
        /// The block.
        cid: Cid,
    },
    /// A block cannot be decoded.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A block was not received.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name. Bytes that are not UTF-8 are replaced by U+FFFD; such an entry can be displayed, but not looked up.
    pub name: String,
    /// The bytes of the name, if they are not UTF-8.
    pub not_text: Option<Box<[u8]>>,
    /// The CID of the entry.
    pub cid: Cid,
    /// The cumulative size of the entry's DAG as declared by the writer, in bytes. Not trustworthy.
    pub tsize: Option<u64>,
}

impl DirEntry {
    /// The name as it is stored, for [`list_after`].
    pub fn name_bytes(&self) -> &[u8] {
        self.not_text.as_deref().unwrap_or(self.name.as_bytes())
    }
}

/// Looks up a name in a directory; `None` if there is no such entry. Of duplicate names the first is returned.
///
/// # Errors
/// [`DirError`] when `dir` is not a directory, or a shard on the way is malformed or not received.
pub async fn lookup(source: &dyn BlockSource, dir: &Block, name: &str) -> Result<Option<Cid>, DirError> {
    lookup_through(source, dir, name, &mut Vec::new()).await
}

/// The same as [`lookup`]; adds the inner shards that it fetched to `passed`, from the top down.
///
/// # Errors
/// As for [`lookup`].
pub(crate) async fn lookup_through(
    source: &dyn BlockSource,
    dir: &Block,
    name: &str,
    passed: &mut Vec<Cid>,
) -> Result<Option<Cid>, DirError> {
    lookup_ahead(source, dir, name, passed, &|| ReadAhead {
        path: vec![name.to_owned()],
        ..ReadAhead::below(*dir.cid(), ScopeOptions { scope: DagScope::Block, ..ScopeOptions::default() })
    })
    .await
}

/// The same as [`lookup_through`]. `ahead` says what is requested from the directory on, if a shard has to be fetched.
pub(crate) async fn lookup_ahead(
    source: &dyn BlockSource,
    dir: &Block,
    name: &str,
    passed: &mut Vec<Cid>,
    ahead: &(dyn Fn() -> ReadAhead + Sync),
) -> Result<Option<Cid>, DirError> {
    let work = source.work();
    let (mut block, mut bits_above) = (dir.clone(), 0);
    loop {
        work.charge_decoding(&block);
        work.turn().await?;
        match lookup_step(&block, name, bits_above)? {
            LookupStep::Found(cid) => return Ok(Some(cid)),
            LookupStep::Missing => return Ok(None),
            LookupStep::Shard { cid, bits } => {
                block = fetch_ahead(source, &cid, ahead).await?;
                passed.push(cid);
                bits_above = bits;
            }
        }
    }
}

/// What one block says of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupStep {
    /// The CID of the entry.
    Found(Cid),
    /// The look-up continues in a child shard, where the shards above it have used so many bits of the hash.
    Shard {
        /// The child shard.
        cid: Cid,
        /// The number of bits, at least one.
        bits: u32,
    },
    /// There is no such entry.
    Missing,
}

/// Looks up a name in one block: a directory or the root of a HAMT, or a shard below others that have used `bits_above`
/// bits of the hash.
///
/// # Errors
/// [`DirError`], except for blocks that were not received.
pub(crate) fn lookup_step(block: &Block, name: &str, bits_above: u32) -> Result<LookupStep, DirError> {
    if bits_above > 0 {
        return lookup_in_shard(block.cid(), &decode_shard(block)?, name, bits_above);
    }
    match Node::decode(block)? {
        Node::Directory(node) => {
            Ok(lookup_link(block.cid(), &node, name)?.map_or(LookupStep::Missing, LookupStep::Found))
        }
        Node::HamtShard(shard) => lookup_in_shard(block.cid(), &shard, name, bits_above),
        _ => Err(DirError::NotADirectory { cid: *block.cid() }),
    }
}

/// Looks up a link by its name.
pub(crate) fn lookup_link(cid: &Cid, node: &PbNode, name: &str) -> Result<Option<Cid>, DirError> {
    for link in node.links() {
        let link = link.map_err(|reason| NodeError::malformed(cid, reason))?;
        if link.name == name.as_bytes() {
            return Ok(Some(link.cid().map_err(|reason| NodeError::malformed(cid, reason))?));
        }
    }
    Ok(None)
}

fn lookup_in_shard(cid: &Cid, shard: &ShardNode, name: &str, bits_above: u32) -> Result<LookupStep, DirError> {
    let mut hash = NameHash::below(name.as_bytes(), bits_above);
    let bits = bits_above + shard.slot_bits();
    let slot = hash.take(shard.slot_bits()).ok_or_else(|| too_deep(cid))?;
    let Some(index) = shard.link_index(slot) else { return Ok(LookupStep::Missing) };
    Ok(match shard_link(cid, shard, index, Some(slot))? {
        ShardLink::Entry(link) if link.name != name.as_bytes() => LookupStep::Missing,
        ShardLink::Entry(link) => LookupStep::Found(link.cid().map_err(|reason| NodeError::malformed(cid, reason))?),
        ShardLink::Shard(cid) => LookupStep::Shard { cid, bits },
    })
}

fn too_deep(cid: &Cid) -> NodeError {
    NodeError::malformed(cid, "it is a HAMT shard at a greater depth than the hash has bits for")
}

/// The hash of a name, which is consumed from its first bit on.
struct NameHash {
    bits: u64,
    left: u32,
}

/// MurmurHash3-x64-64 of a name: the first half of the 128-bit variant, read as big-endian.
pub(crate) fn name_hash(mut name: &[u8]) -> u64 {
    // Reading from memory does not fail.
    murmur3::murmur3_x64_128(&mut name, 0).unwrap_or_default() as u64
}

impl NameHash {
    fn of(name: &[u8]) -> Self {
        Self::below(name, 0)
    }

    /// The hash of a name, of which so many bits are consumed already.
    fn below(name: &[u8], bits: u32) -> Self {
        Self { bits: name_hash(name), left: HASH_BITS.saturating_sub(bits) }
    }

    /// The next `count` bits (at most 10), or `None` when fewer are left.
    fn take(&mut self, count: u32) -> Option<usize> {
        self.left = self.left.checked_sub(count)?;
        Some((self.bits >> self.left) as usize & ((1 << count) - 1))
    }
}

/// The content of a slot.
enum ShardLink<'a> {
    /// An entry, whose name is without the prefix.
    Entry(PbLink<'a>),
    /// A child shard.
    Shard(Cid),
}

/// Decodes the link at `index`, whose name begins with its slot in hexadecimal. A look-up passes the slot for
/// validation.
fn shard_link<'a>(
    cid: &Cid,
    shard: &'a ShardNode,
    index: usize,
    slot: Option<usize>,
) -> Result<ShardLink<'a>, NodeError> {
    let malformed = |reason: &str| NodeError::malformed(cid, reason);
    let link = shard.node.link(index).ok_or_else(|| malformed("a link is missing"))?;
    let link = link.map_err(|reason| NodeError::malformed(cid, reason))?;
    let digits = shard.prefix_len();
    let (prefix, name) = link.name.split_at_checked(digits).ok_or_else(|| malformed("a name has no HAMT prefix"))?;
    if slot.is_some_and(|slot| !prefix.eq_ignore_ascii_case(format!("{slot:0digits$X}").as_bytes())) {
        return Err(malformed("a HAMT prefix differs from its slot"));
    }
    if name.is_empty() {
        let child = link.cid().map_err(|reason| NodeError::malformed(cid, reason))?;
        return Ok(ShardLink::Shard(child));
    }
    Ok(ShardLink::Entry(PbLink { name, ..link }))
}

/// The links of a block with their names, if it is a directory, a HAMT shard or a plain dag-pb node. Child shards have
/// empty names. Malformed links are skipped, since reading the block reports them.
pub fn named_links(block: &Block) -> NamedLinks {
    let links = match Node::decode(block) {
        Ok(Node::Directory(node) | Node::Plain(node)) => Links::Of(node),
        Ok(Node::HamtShard(shard)) => Links::OfShard(shard),
        _ => Links::None,
    };
    NamedLinks { cid: *block.cid(), links, next: 0 }
}

/// The iterator of [`named_links`]. Links are decoded on access.
pub struct NamedLinks {
    cid: Cid,
    links: Links,
    next: usize,
}

enum Links {
    Of(PbNode),
    OfShard(ShardNode),
    None,
}

impl NamedLinks {
    /// The number of links that are left, malformed ones included.
    pub fn left(&self) -> usize {
        let count = match &self.links {
            Links::Of(node) | Links::OfShard(ShardNode { node, .. }) => node.link_count(),
            Links::None => 0,
        };
        count.saturating_sub(self.next)
    }

    fn link(&self, at: usize) -> Option<(String, Cid)> {
        let named = |link: PbLink<'_>| Some((String::from_utf8_lossy(link.name).into_owned(), link.cid().ok()?));
        match &self.links {
            Links::Of(node) => named(node.link(at)?.ok()?),
            Links::OfShard(shard) => match shard_link(&self.cid, shard, at, None).ok()? {
                ShardLink::Entry(link) => named(link),
                ShardLink::Shard(child) => Some((String::new(), child)),
            },
            Links::None => None,
        }
    }
}

impl Iterator for NamedLinks {
    type Item = (String, Cid);

    fn next(&mut self) -> Option<Self::Item> {
        while self.left() > 0 {
            self.next += 1;
            if let Some(link) = self.link(self.next - 1) {
                return Some(link);
            }
        }
        None
    }
}

/// The next child shard from the link at `next` on, with the index after its link; entries are skipped.
pub(crate) fn next_child_shard(cid: &Cid, shard: &ShardNode, next: usize) -> Result<Option<(usize, Cid)>, NodeError> {
    for index in next..shard.node.link_count() {
        if let ShardLink::Shard(child) = shard_link(cid, shard, index, None)? {
            return Ok(Some((index + 1, child)));
        }
    }
    Ok(None)
}

/// Decodes a child shard. `bits_above` is the number of hash bits that the shards above it use; returns the shard, and
/// that number including its own.
pub(crate) fn decode_child_shard(block: &Block, bits_above: u32) -> Result<(ShardNode, u32), NodeError> {
    let shard = decode_shard(block)?;
    // No importer makes one. A few malicious blocks with links to one would keep a traversal busy without any entry.
    if shard.node.link_count() == 0 {
        return Err(NodeError::malformed(block.cid(), "it is an empty HAMT shard below another"));
    }
    let bits = bits_above + shard.slot_bits();
    if bits > HASH_BITS {
        return Err(too_deep(block.cid()));
    }
    Ok((shard, bits))
}

fn decode_shard(block: &Block) -> Result<ShardNode, NodeError> {
    match Node::decode(block)? {
        Node::HamtShard(shard) => Ok(shard),
        _ => Err(NodeError::malformed(block.cid(), "it is not a HAMT shard, but a slot of one points to it")),
    }
}

/// All entries of a directory, in stored order, read lazily. For a sharded directory the stream keeps the shards from
/// the root to the current one in memory, and a few prefetched ones. After an error the stream ends.
///
/// # Errors
/// The stream ends with a [`DirError`], as for [`lookup`].
pub fn list(source: Arc<dyn BlockSource>, dir: Block) -> BoxStream<'static, Result<DirEntry, DirError>> {
    list_with_budget(source, dir, None)
}

/// The same with a budget for the shards in memory. When it is used up, only the current shard is kept: nothing is
/// prefetched, and its parents are read again when the listing returns to them.
///
/// # Errors
/// The same.
pub fn list_with_budget(
    source: Arc<dyn BlockSource>,
    dir: Block,
    memory: Option<Arc<Budget>>,
) -> BoxStream<'static, Result<DirEntry, DirError>> {
    let (cid, work) = (*dir.cid(), source.work());
    work.charge_decoding(&dir);
    match Node::decode(&dir) {
        Ok(Node::Directory(node)) => list_links(work, cid, node, 0),
        Ok(Node::HamtShard(shard)) => Listing::of(source, work, Level::new(cid, shard), memory).into_entries(),
        Ok(_) => stream::once(ready(Err(DirError::NotADirectory { cid }))).boxed(),
        Err(error) => stream::once(ready(Err(error.into()))).boxed(),
    }
}

/// The entries after the entry `name` (as in [`DirEntry::name_bytes`]), for pagination; `None` if there is no such
/// entry. A sharded directory is searched by the hash of the name, so that the last page costs no more than the first.
/// Of duplicate names the last is used, so that pagination ends. `memory` is a budget as in [`list_with_budget`].
///
/// # Errors
/// As for [`lookup`]; the stream ends with an error as for [`list`].
pub async fn list_after(
    source: Arc<dyn BlockSource>,
    dir: Block,
    name: &[u8],
    memory: Option<Arc<Budget>>,
) -> Result<Option<BoxStream<'static, Result<DirEntry, DirError>>>, DirError> {
    let (cid, work) = (*dir.cid(), source.work());
    work.charge_decoding(&dir);
    work.turn().await?;
    match Node::decode(&dir)? {
        Node::Directory(node) => {
            let links = node.links().enumerate();
            let last = links.filter(|(_, link)| link.as_ref().is_ok_and(|link| link.name == name)).last();
            let after = last.map(|(position, _)| position + 1);
            Ok(after.map(|after| list_links(work, cid, node, after)))
        }
        Node::HamtShard(shard) => {
            let mut listing = Listing::of(source, work, Level::new(cid, shard), memory);
            Ok(listing.seek_after(name).await?.then(|| listing.into_entries()))
        }
        _ => Err(DirError::NotADirectory { cid }),
    }
}

fn list_links(work: Work, cid: Cid, node: PbNode, first: usize) -> BoxStream<'static, Result<DirEntry, DirError>> {
    let entries = stream::try_unfold((work, node, first), move |(work, node, index)| async move {
        let Some(link) = node.link(index) else { return Ok(None) };
        let entry = link.and_then(|link| entry_of(&link)).map_err(|reason| NodeError::malformed(&cid, reason))?;
        work.charge_text(entry.name.len());
        work.turn().await?;
        Ok(Some((entry, (work, node, index + 1))))
    });
    entries.boxed()
}

fn entry_of(link: &PbLink<'_>) -> Result<DirEntry, crate::dagpb::PbError> {
    let name = String::from_utf8_lossy(link.name);
    let not_text = (name.as_bytes() != link.name).then(|| link.name.into());
    Ok(DirEntry { name: name.into_owned(), not_text, cid: link.cid()?, tsize: link.tsize })
}

/// A depth-first traversal of the shards of a directory.
struct Listing {
    source: Arc<dyn BlockSource>,
    work: Work,
    levels: Vec<Level>,
    /// The number of shards, over all levels, that are being fetched or are prefetched.
    prefetched: usize,
    budget: Option<Arc<Budget>>,
    /// The reserved memory for the shards.
    share: Share,
}

/// A shard that is being traversed.
struct Level {
    cid: Cid,
    /// `None` if it was released for lack of memory while a child is traversed.
    shard: Option<ShardNode>,
    /// The number of hash bits that the shards down to this one use.
    bits: u32,
    /// The index of the next link.
    next: usize,
    /// The index of the first link that was not searched for child shards to request.
    requested: usize,
    fetches: FuturesOrdered<BoxFuture<'static, Result<Block, SourceError>>>,
}

impl Level {
    /// The root of a directory.
    fn new(cid: Cid, shard: ShardNode) -> Self {
        let bits = shard.slot_bits();
        Self::with_bits(cid, (shard, bits))
    }

    fn with_bits(cid: Cid, (shard, bits): (ShardNode, u32)) -> Self {
        Self { cid, shard: Some(shard), bits, next: 0, requested: 0, fetches: FuturesOrdered::new() }
    }

    fn bytes(&self) -> usize {
        self.shard.as_ref().map_or(0, |shard| shard.node.block_bytes())
    }

    /// The next child shard to request, if there is one.
    fn next_to_request(&mut self) -> Result<Option<Cid>, NodeError> {
        let Some(shard) = &self.shard else { return Ok(None) };
        let found = next_child_shard(&self.cid, shard, self.requested)?;
        self.requested = found.map_or(shard.node.link_count(), |(after, _)| after);
        Ok(found.map(|(_, child)| child))
    }
}

impl Listing {
    fn of(source: Arc<dyn BlockSource>, work: Work, root: Level, budget: Option<Arc<Budget>>) -> Self {
        let share = Share::of(budget.clone());
        let mut listing = Self { source, work, levels: vec![root], prefetched: 0, budget, share };
        listing.update_share();
        listing
    }

    /// Adjusts the reserved memory. If the budget is used up, the parents of the current shard are released.
    fn update_share(&mut self) {
        let bytes = |levels: &[Level]| levels.iter().map(Level::bytes).sum::<usize>();
        // A shard that is being fetched may have the maximum size.
        let prefetched = self.prefetched * MAX_BLOCK_BYTES;
        if self.share.resize(bytes(&self.levels) + prefetched) {
            return;
        }
        let above = self.levels.len().saturating_sub(1);
        self.levels[..above].iter_mut().for_each(|level| level.shard = None);
        // The current shard is kept even if the budget is used up.
        if !self.share.resize(bytes(&self.levels) + prefetched) {
            self.share.resize(0);
        }
    }

    /// Whether one more shard may be prefetched, with memory left for other listings.
    fn may_prefetch(&self) -> bool {
        let has_room = |budget: &Arc<Budget>| budget.left() / BUDGET_FACTOR >= MAX_BLOCK_BYTES;
        self.prefetched < PREFETCHED_SHARDS_MAX && self.budget.as_ref().is_none_or(has_room)
    }

    /// The current shard, read again if it was released; `None` at the end.
    async fn current(&mut self) -> Result<Option<&mut Level>, DirError> {
        let Some(level) = self.levels.last() else { return Ok(None) };
        if level.shard.is_none() {
            let block = fetch(&*self.source, &level.cid).await?;
            self.work.charge_decoding(&block);
            let shard = decode_shard(&block)?;
            if let Some(level) = self.levels.last_mut() {
                level.shard = Some(shard);
            }
            self.update_share();
        }
        Ok(self.levels.last_mut())
    }

    fn into_entries(self) -> BoxStream<'static, Result<DirEntry, DirError>> {
        let entries = stream::try_unfold(self, |mut listing| async move {
            let entry = listing.next().await?;
            Ok(entry.map(|entry| (entry, listing)))
        });
        entries.boxed()
    }

    /// Moves from the root shard to the position after an entry; `false` if there is no such entry.
    async fn seek_after(&mut self, name: &[u8]) -> Result<bool, DirError> {
        let mut hash = NameHash::of(name);
        while let Some(level) = self.levels.last_mut() {
            let Some(shard) = &level.shard else { return Ok(false) };
            let slot = hash.take(shard.slot_bits()).ok_or_else(|| too_deep(&level.cid))?;
            let Some(index) = shard.link_index(slot) else { return Ok(false) };
            (level.next, level.requested) = (index + 1, index + 1);
            match shard_link(&level.cid, shard, index, Some(slot))? {
                ShardLink::Entry(link) => return Ok(link.name == name),
                ShardLink::Shard(child) => {
                    let above = level.bits;
                    let block = fetch(&*self.source, &child).await?;
                    self.work.charge_decoding(&block);
                    self.work.turn().await?;
                    let shard = decode_child_shard(&block, above)?;
                    self.levels.push(Level::with_bits(child, shard));
                    self.update_share();
                }
            }
        }
        Ok(false)
    }

    async fn next(&mut self) -> Result<Option<DirEntry>, DirError> {
        let work = self.work.clone();
        loop {
            work.turn().await?;
            let Some(level) = self.current().await? else { return Ok(None) };
            let Some(shard) = &level.shard else { return Ok(None) };
            if level.next == shard.node.link_count() {
                self.levels.pop();
                self.update_share();
                continue;
            }
            level.next += 1;
            match shard_link(&level.cid, shard, level.next - 1, None)? {
                ShardLink::Entry(link) => {
                    work.charge_text(link.name.len());
                    return Ok(Some(entry_of(&link).map_err(|reason| NodeError::malformed(&level.cid, reason))?));
                }
                ShardLink::Shard(child) => self.descend(child).await?,
            }
        }
    }

    /// Enters the next child shard, and prefetches those after it.
    async fn descend(&mut self, child: Cid) -> Result<(), DirError> {
        while self.levels.last().is_some_and(|level| level.fetches.is_empty()) || self.may_prefetch() {
            let root = self.levels.first().map(|level| level.cid);
            let Some(level) = self.levels.last_mut() else { return Ok(()) };
            let Some(cid) = level.next_to_request()? else { break };
            level.fetches.push_back(match peek_or_inline(&*self.source, &cid) {
                Some(block) => ready(Ok(block)).boxed(),
                None => self.source.get_ahead(&cid, &ReadAhead::of_directory(root.unwrap_or(cid))),
            });
            self.prefetched += 1;
            self.update_share();
        }
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let above = level.bits;
        // Every child is requested before its turn.
        let block = level.fetches.next().await.unwrap_or(Err(SourceError::Closed));
        self.prefetched -= 1;
        let block = block?;
        self.work.charge_decoding(&block);
        let shard = decode_child_shard(&block, above)?;
        self.levels.push(Level::with_bits(child, shard));
        self.update_share();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::importer::{Attributes, Estimate, Importer, Profile, Sharding, SinkError};
    use crate::source::MemoryBlocks;
    use futures::executor::block_on;

    #[test]
    fn hash_bits_are_consumed_from_the_first_to_the_last() {
        let table: [(u32, usize, &[usize]); 5] = [
            (8, 8, &[0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0]),
            (4, 16, &[1, 2, 3, 4]),
            (10, 6, &[0b00_0100_1000, 0b11_0100_0101, 0b01_1001_1110]),
            (3, 21, &[0b000, 0b100, 0b100, 0b011, 0b010]),
            (9, 7, &[0b0_0010_0100, 0b0_1101_0001]),
        ];
        for (width, count, expected) in table {
            let mut hash = NameHash { bits: 0x1234_5678_9abc_def0, left: HASH_BITS };
            let found: Vec<usize> = std::iter::from_fn(|| hash.take(width)).collect();
            assert_eq!((found.len(), &found[..expected.len()]), (count, expected), "{width}");
        }
    }

    /// A directory of `entries` entries in shards with eight slots, which makes it deep.
    fn deep(entries: usize) -> (Arc<MemoryBlocks>, Block) {
        let profile = Profile {
            sharding: Sharding { estimate: Estimate::Off, threshold_bytes: 0, links_max: Some(0), fanout: 8 },
            ..Profile::UNIXFS_V1_2025
        };
        let (importer, blocks) = (Importer::new(profile).expect("a profile"), Arc::new(MemoryBlocks::new()));
        let mut sink = |block: Block| {
            blocks.insert(&block);
            Ok::<(), SinkError>(())
        };
        let mut directory = importer.directory(Attributes::default());
        for number in 0..entries {
            let name = format!("entry-{number}");
            let part = importer.symlink(name.as_bytes(), Attributes::default(), &mut sink).expect("short");
            directory.add(name.as_bytes(), &part).expect("a name");
        }
        let root = directory.finish(&mut sink).expect("finishes").cid;
        let block = blocks.peek(&root).expect("it was stored");
        (blocks, block)
    }

    fn names(entries: BoxStream<'static, Result<DirEntry, DirError>>) -> Vec<String> {
        block_on(entries.map(|entry| entry.expect("an entry").name).collect())
    }

    #[test]
    fn a_listing_is_the_same_for_every_budget_and_releases_its_memory() {
        let (blocks, root) = deep(2_000);
        let whole = names(list(Arc::clone(&blocks) as _, root.clone()));
        assert_eq!(whole.len(), 2_000);
        for bytes in [0, 1_000, 3_000, 64 * MAX_BLOCK_BYTES] {
            let budget = Arc::new(Budget::new(bytes));
            let memory = || Some(Arc::clone(&budget));
            assert_eq!(names(list_with_budget(Arc::clone(&blocks) as _, root.clone(), memory())), whole, "{bytes}");
            for at in [0, 7, 1_500] {
                let name = whole[at].as_bytes();
                let rest = list_after(Arc::clone(&blocks) as _, root.clone(), name, memory());
                let rest = block_on(rest).expect("reads").expect("there is such an entry");
                assert_eq!(names(rest), whole[at + 1..], "{bytes}");
            }
            assert_eq!(budget.left(), bytes);
        }
    }

    #[test]
    fn the_memory_of_a_listing_is_counted() {
        let (blocks, root) = deep(2_000);
        let budget = Arc::new(Budget::new(64 * MAX_BLOCK_BYTES));
        let mut entries = list_with_budget(blocks as _, root.clone(), Some(Arc::clone(&budget)));
        block_on(entries.next()).expect("one").expect("an entry");
        let held = 64 * MAX_BLOCK_BYTES - budget.left();
        // The shards on the way, and the prefetched ones.
        assert!(held > root.data().len() && held <= PREFETCHED_SHARDS_MAX * MAX_BLOCK_BYTES + 64 * 1024, "{held}");
        let others = budget.left();
        assert!(budget.try_reserve(others));
        let rest = block_on(entries.collect::<Vec<_>>());
        assert!(
            rest.len() == 1_999 && rest.iter().all(Result::is_ok),
            "the listing continues with the current shard only"
        );
    }
}
