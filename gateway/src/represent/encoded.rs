//! Files with a `Content-Encoding`: zstd, which concatenates the frames that their blocks are stored as (RFC 8878,
//! section 3), and for small files also brotli (RFC 7932) and gzip (RFC 1952).
//!
//! Goals: fewer bytes to send, without compressing while a client waits; a length that is known in advance, from the
//! index alone; a hot small file costs one look-up.
//!
//! The decision is made once for each file and cached, with the whole body if it is small: a file is sent encoded if
//! its first leaf is stored compressed, every leaf is on the disk, and the body is smaller by at least a sixteenth.
//! Other files are sent unencoded, and so are ranges, which refer to the unencoded bytes. A file that is still being
//! fetched, or is in memory only, is sent unencoded too.
//!
//! Clients without zstd get brotli or gzip of small files whose body is cached. The first request for such a file
//! starts the encoding in the background, which uses at most a quarter of a processor core; until it is done the file
//! is sent unencoded.
//!
//! Entries are valid for one generation of the policy, which was checked for every block. Leaves of a longer file may
//! since have been evicted or stored in another form, so their lengths are checked each time. A file that is not
//! completely on the disk, or cannot be read, is analysed again after a while.
//!
//! Raw blocks and CARs are for other nodes and verifying clients, which request each block once, so nothing of them is
//! cached. A raw block is sent as zstd if it is stored so ([`Encoded::block`]), without reading it first. A CAR is
//! always sent as zstd to clients that accept it: what is in it is known only when it has been sent, so a decision
//! would differ between GET, HEAD and conditional requests. Its compressed blocks are sent as they are stored, and its
//! other bytes as raw frames, which are some bytes longer ([`Encoded::section`]).

use brotli::enc::BrotliEncoderParams;
use bytes::Bytes;
use cache::Tiers;
use content::budget::Share;
use content::stored::{RAW_UP_TO_BYTES, Shape, Stored, body};
use content::unixfs::Node;
use content::{Block, BlockSource as _, Cid, SourceError, car};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::future::ready;
use futures::stream::{self, StreamExt as _};
use moka::sync::Cache;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body::Content;
use crate::errors::Problem;
use crate::invalidate::{PurgeMode, invalidate_where};
use crate::limits::ClientMemory;
use crate::request::negotiate::Coding;

/// The maximum number of leaves: 256 MiB with leaves of the usual size.
const LEAVES_MAX: usize = 1024;
/// The maximum number of inner nodes that are read. A file with `LEAVES_MAX` leaves usually has seven.
const INNER_NODES_MAX: usize = 64;
/// The maximum size of these inner nodes, in bytes.
const INNER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The maximum number of concurrent analyses. Other files are sent unencoded meanwhile.
const ANALYSES_MAX: usize = 4;
/// The lifetime and the number of negative cache entries: files that could not be analysed.
const NEGATIVE_TTL: Duration = Duration::from_secs(10);
const NEGATIVE_ENTRIES_MAX: u64 = 10_000;
/// The number of leaves whose lengths are looked up at once, so that other readers can run in between.
const SHAPES_PER_LOOK_UP: usize = 256;
/// The maximum size of cached bodies, in bytes.
const BODY_BYTES_MAX: u64 = 1024 * 1024;
/// An encoded body must save at least one part in this many.
const SAVING_MIN: u64 = 16;
/// The maximum size of files that are transcoded for clients without zstd, in bytes.
const TRANSCODED_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The pause after a transcoding, as a multiple of its duration.
const TRANSCODING_PAUSE: u32 = 3;
/// The compression levels of brotli and gzip, of 11 and 9: fast, and clearly smaller than the next lower level.
const BROTLI_QUALITY: i32 = 5;
const GZIP_LEVEL: u32 = 6;
/// The number of leaves that are read ahead.
const LEAVES_AHEAD: usize = 4;
/// The memory overhead of a cache entry, in bytes.
const ENTRY_OVERHEAD_BYTES: usize = 512;

/// The cached decision about a file.
#[derive(Debug, Clone)]
enum Encoding {
    /// The file is sent unencoded.
    Plain,
    /// The whole body.
    Body(Bytes),
    /// The leaves that make the body.
    Leaves(Arc<Leaves>),
}

/// The leaves of a file in order, each with the length of its part of the file.
#[derive(Debug)]
struct Leaves {
    leaves: Vec<(Cid, u64)>,
    /// The length of the encoded body, in bytes.
    bytes: u64,
    /// The maximum encoded length of a leaf, in bytes.
    longest: u64,
}

/// The result of reading a file's DAG.
enum LeafScan {
    /// The leaves.
    Leaves(Leaves),
    /// The file is sent unencoded.
    Unsuitable,
    /// A block is not on the disk.
    Missing,
}

/// A file, the generation of the policy at its analysis, and a coding.
type Key = (Cid, u64, Coding);

/// The cache of encoded files. Clones share it.
#[derive(Clone)]
pub struct Encoded {
    tiers: Tiers,
    cache: Cache<Key, Encoding>,
    negative: Cache<(Cid, u64), ()>,
    analyses: Arc<Semaphore>,
    /// Limits transcoding to one file at a time.
    transcoding: Arc<Semaphore>,
    body_bytes_max: u64,
}

impl Encoded {
    /// A cache of at most `memory_bytes_max` for files in these tiers.
    pub fn new(tiers: Tiers, memory_bytes_max: u64) -> Self {
        let weight = |_: &Key, known: &Encoding| u32::try_from(known.memory_bytes()).unwrap_or(u32::MAX);
        let cache = Cache::builder().name("encoded").max_capacity(memory_bytes_max).weigher(weight).build();
        let negative = Cache::builder().max_capacity(NEGATIVE_ENTRIES_MAX).time_to_live(NEGATIVE_TTL).build();
        let (analyses, body_bytes_max) =
            (Arc::new(Semaphore::new(ANALYSES_MAX)), BODY_BYTES_MAX.min(memory_bytes_max / 16));
        Self { tiers, cache, negative, analyses, transcoding: Arc::new(Semaphore::new(1)), body_bytes_max }
    }

    /// The encoded bytes of a file with their number, if it is sent encoded. `generation` is the policy's; the
    /// read-ahead of a body that is not cached counts against `memory`.
    pub async fn file(
        &self,
        cid: &Cid,
        size: u64,
        generation: u64,
        memory: ClientMemory<'_>,
    ) -> Option<(u64, Content)> {
        let key = (*cid, generation, Coding::Zstd);
        match self.zstd_encoding(cid, size, generation).await? {
            Encoding::Plain => None,
            Encoding::Body(body) => Some((body.len() as u64, Content::Bytes(body))),
            Encoding::Leaves(leaves) => {
                let content = Box::pin(self.read(&leaves, memory.share())).await;
                if content.is_none() {
                    self.cache.invalidate(&key);
                }
                Some((leaves.bytes, content?))
            }
        }
    }

    /// The length of a raw block as zstd, if it is stored compressed.
    pub async fn block_bytes(&self, cid: &Cid) -> Option<u64> {
        // An error will appear where the block is sent unencoded.
        let shape = self.tiers.shapes(&[*cid]).await.ok()?.pop()??;
        body::block_bytes(shape)
    }

    /// A raw block as zstd, if it is stored compressed.
    pub async fn block(&self, cid: &Cid) -> Option<Bytes> {
        let parts = body::block_parts(&self.tiers.stored(cid).await.ok()??)?;
        match &parts[..] {
            [frame] => Some(frame.clone()),
            parts => Some(parts.concat().into()),
        }
    }

    /// The section of a block in a CAR as zstd, in pieces: the block as it is stored, if it is stored compressed.
    ///
    /// # Errors
    /// [`SourceError::Refused`] if the policy rejects the block by now.
    pub async fn section(&self, block: &Block) -> Result<Vec<Bytes>, SourceError> {
        let (head, data) = car::section(block);
        let stored = match self.compressed(block).await {
            Err(error @ (SourceError::Refused { .. } | SourceError::RefusedPath { .. })) => return Err(error),
            // The block itself is at hand.
            stored => stored.ok().flatten(),
        };
        Ok(body::section_parts(&head, &data, stored.as_ref()))
    }

    /// The stored form of a block, if it is compressed. Others are not read.
    async fn compressed(&self, block: &Block) -> Result<Option<Stored>, SourceError> {
        if block.data().len() <= RAW_UP_TO_BYTES {
            return Ok(None);
        }
        let shape = self.tiers.shapes(&[*block.cid()]).await?.pop().flatten();
        match shape.and_then(body::block_bytes) {
            Some(_) => self.tiers.stored(block.cid()).await,
            None => Ok(None),
        }
    }

    /// A small file in a coding other than zstd, if it was transcoded before; otherwise starts the transcoding.
    pub async fn transcoded(&self, cid: &Cid, size: u64, generation: u64, coding: Coding) -> Option<(u64, Content)> {
        let key = (*cid, generation, coding);
        match self.cache.get(&key) {
            Some(Encoding::Body(body)) => return Some((body.len() as u64, Content::Bytes(body))),
            // The file is being transcoded, or transcoding saves too little.
            Some(_) => return None,
            None => {}
        }
        if let Encoding::Body(frames) = self.zstd_encoding(cid, size, generation).await?
            && size <= TRANSCODED_BYTES_MAX
            && let Ok(permit) = Arc::clone(&self.transcoding).try_acquire_owned()
        {
            self.cache.insert(key, Encoding::Plain);
            tokio::spawn(self.clone().transcode(key, frames, size, permit));
        }
        None
    }

    /// Transcodes a file, and pauses.
    async fn transcode(self, key: Key, frames: Bytes, size: u64, permit: OwnedSemaphorePermit) {
        let begun = Instant::now();
        let encode = move || encode(&frames, size, key.2).filter(|body| body.len() as u64 <= size - size / SAVING_MIN);
        if let Ok(Some(body)) = tokio::task::spawn_blocking(encode).await {
            self.cache.insert(key, Encoding::Body(body));
        }
        tokio::time::sleep(begun.elapsed() * TRANSCODING_PAUSE).await;
        drop(permit);
    }

    async fn zstd_encoding(&self, cid: &Cid, size: u64, generation: u64) -> Option<Encoding> {
        match self.cache.get(&(*cid, generation, Coding::Zstd)) {
            Some(known) => Some(known),
            None => Box::pin(self.analyse_once((*cid, generation), size)).await,
        }
    }

    /// The cached decision about a file under this generation of the policy: whether it is sent encoded, and the size
    /// of its body in memory.
    pub fn known(&self, cid: &Cid, generation: u64) -> Option<(bool, u64)> {
        let known = self.cache.get(&(*cid, generation, Coding::Zstd))?;
        let body_bytes = if let Encoding::Body(body) = &known { body.len() as u64 } else { 0 };
        Some((!matches!(known, Encoding::Plain), body_bytes))
    }

    /// Invalidates the entries of files that `concerns` selects; returns their number.
    pub fn invalidate_where(&self, concerns: impl Fn(&Cid) -> bool, mode: PurgeMode) -> u64 {
        // Negative entries are not counted.
        invalidate_where(&self.negative, |(cid, _), ()| concerns(cid), mode);
        invalidate_where(&self.cache, |(cid, ..), _| concerns(cid), mode)
    }

    /// Invalidates all entries.
    pub fn invalidate_all(&self) {
        self.cache.invalidate_all();
        self.negative.invalidate_all();
    }

    async fn analyse_once(&self, key: (Cid, u64), size: u64) -> Option<Encoding> {
        if self.negative.contains_key(&key) {
            return None;
        }
        let _permit = self.analyses.try_acquire().ok()?;
        match self.analyse(&key.0, size).await {
            Ok(Some(known)) => {
                self.cache.insert((key.0, key.1, Coding::Zstd), known.clone());
                Some(known)
            }
            // An error will appear where the file is sent unencoded.
            Ok(None) | Err(_) => {
                self.negative.insert(key, ());
                None
            }
        }
    }

    /// Analyses a file; `None` if a block is not on the disk.
    async fn analyse(&self, cid: &Cid, size: u64) -> Result<Option<Encoding>, SourceError> {
        let leaves = match self.leaves(cid, size).await? {
            LeafScan::Leaves(leaves) if leaves.bytes <= size - size / SAVING_MIN => leaves,
            LeafScan::Leaves(_) | LeafScan::Unsuitable => return Ok(Some(Encoding::Plain)),
            LeafScan::Missing => return Ok(None),
        };
        if leaves.bytes > self.body_bytes_max {
            return Ok(Some(Encoding::Leaves(Arc::new(leaves))));
        }
        let mut body = Vec::with_capacity(usize::try_from(leaves.bytes).unwrap_or_default());
        for (cid, bytes) in &leaves.leaves {
            match parts(&self.tiers, cid, *bytes).await {
                Ok(parts) => parts.iter().for_each(|part| body.extend_from_slice(part)),
                Err(_) => return Ok(None),
            }
        }
        Ok((body.len() as u64 == leaves.bytes).then(|| Encoding::Body(body.into())))
    }

    async fn leaves(&self, cid: &Cid, size: u64) -> Result<LeafScan, SourceError> {
        let mut found = Leaves { leaves: Vec::new(), bytes: 0, longest: 0 };
        let (mut inner, mut inner_bytes) = (0, 0);
        // The stack of blocks still to be read.
        let mut ahead = vec![(*cid, size, self.tiers.shapes(&[*cid]).await?.pop().flatten())];
        while let Some((cid, size, shape)) = ahead.pop() {
            let Some(shape) = shape else { return Ok(LeafScan::Missing) };
            let mut children = Vec::new();
            if may_be_inner(&cid, shape) {
                inner_bytes += shape.block_bytes();
                if inner_bytes > INNER_BYTES_MAX || inner == INNER_NODES_MAX {
                    return Ok(LeafScan::Unsuitable);
                }
                match self.children(&cid, size).await? {
                    Some(found) => children = found,
                    None => return Ok(LeafScan::Unsuitable),
                }
                inner += usize::from(!children.is_empty());
            }
            if children.is_empty() {
                let Some(encoded) = body::encoded_bytes(shape, cid.codec(), size) else {
                    return Ok(LeafScan::Unsuitable);
                };
                let compressed = !matches!(shape, Shape::Raw { .. });
                if found.leaves.len() == LEAVES_MAX || found.leaves.is_empty() && !compressed {
                    return Ok(LeafScan::Unsuitable);
                }
                found.leaves.push((cid, size));
                found.bytes += encoded;
                found.longest = found.longest.max(encoded);
                continue;
            }
            if ahead.len() + children.len() > LEAVES_MAX {
                return Ok(LeafScan::Unsuitable);
            }
            let shapes = self.shapes(&children).await?;
            ahead.extend(children.into_iter().zip(shapes).rev().map(|((cid, size), shape)| (cid, size, shape)));
        }
        found.leaves.shrink_to_fit();
        Ok(LeafScan::Leaves(found))
    }

    async fn shapes(&self, blocks: &[(Cid, u64)]) -> Result<Vec<Option<Shape>>, SourceError> {
        let mut shapes = Vec::with_capacity(blocks.len());
        for blocks in blocks.chunks(SHAPES_PER_LOOK_UP) {
            let cids: Vec<Cid> = blocks.iter().map(|(cid, _)| *cid).collect();
            shapes.extend(self.tiers.shapes(&cids).await?);
        }
        Ok(shapes)
    }

    /// The children of a node with this length, none for a leaf; `None` if the file is sent unencoded. The file reader
    /// reports inconsistent lengths.
    async fn children(&self, cid: &Cid, size: u64) -> Result<Option<Vec<(Cid, u64)>>, SourceError> {
        let block = self.tiers.local().get(cid).await?;
        match Node::decode(&block) {
            Ok(Node::File(file)) if file.size() != size || file.child_count() > LEAVES_MAX => Ok(None),
            Ok(Node::File(file)) if file.child_count() == 0 => Ok(Some(Vec::new())),
            // Nodes with children rarely have data of their own.
            Ok(Node::File(file)) if file.data().is_empty() => Ok(file.children().collect::<Result<_, _>>().ok()),
            _ => Ok(None),
        }
    }

    /// The body of a file that is not cached as a whole; `None` if its leaves have changed, or there is no memory for
    /// the read-ahead. Waits for the first leaf.
    async fn read(&self, leaves: &Arc<Leaves>, mut share: Share) -> Option<Content> {
        let shapes = self.shapes(&leaves.leaves).await.ok()?;
        let lengths = leaves.leaves.iter().zip(shapes);
        let lengths = lengths.map(|((cid, bytes), shape)| body::encoded_bytes(shape?, cid.codec(), *bytes));
        let ahead_bytes = usize::try_from(leaves.longest).ok()?.checked_mul(LEAVES_AHEAD)?;
        if lengths.sum::<Option<u64>>() != Some(leaves.bytes) || !share.grow(ahead_bytes) {
            return None;
        }
        let (tiers, remaining, leaves) = (self.tiers.clone(), leaves.bytes, Arc::clone(leaves));
        let parts = stream::iter(0..leaves.leaves.len()).map(move |index| {
            let (tiers, (cid, bytes)) = (tiers.clone(), leaves.leaves[index]);
            async move { parts(&tiers, &cid, bytes).await }
        });
        let mut parts = parts.buffered(LEAVES_AHEAD);
        let first = parts.next().await?.ok()?;
        let parts = stream::once(ready(Ok(first))).chain(parts).flat_map(move |parts| {
            let _share = &share;
            let (parts, problem) = match parts {
                Ok(parts) => (parts, None),
                Err(problem) => (Vec::new(), Some(Err(problem))),
            };
            stream::iter(parts.into_iter().map(Ok).chain(problem))
        });
        Some(Content::Stream { stream: parts.boxed(), remaining: Some(remaining) })
    }
}

/// Transcodes the zstd frames of a file of this size; `None` on failure.
fn encode(frames: &[u8], size: u64, coding: Coding) -> Option<Bytes> {
    let mut plain = Vec::with_capacity(usize::try_from(size).ok()?);
    zstd::Decoder::new(frames).ok()?.take(size + 1).read_to_end(&mut plain).ok()?;
    if plain.len() as u64 != size {
        return None;
    }
    let mut body = Vec::new();
    match coding {
        Coding::Zstd => return None,
        Coding::Brotli => {
            let parameters =
                BrotliEncoderParams { quality: BROTLI_QUALITY, size_hint: plain.len(), ..Default::default() };
            brotli::BrotliCompress(&mut &plain[..], &mut body, &parameters).ok()?;
        }
        Coding::Gzip => {
            let mut encoder = GzEncoder::new(&mut body, Compression::new(GZIP_LEVEL));
            encoder.write_all(&plain).ok()?;
            encoder.finish().ok()?;
        }
    }
    Some(body.into())
}

impl Encoding {
    fn memory_bytes(&self) -> usize {
        ENTRY_OVERHEAD_BYTES
            + match self {
                Self::Plain => 0,
                Self::Body(body) => body.len(),
                Self::Leaves(leaves) => size_of_val(&*leaves.leaves),
            }
    }
}

/// A dag-pb block that is not stored as an envelope may be an inner node, so it must be read.
fn may_be_inner(cid: &Cid, shape: Shape) -> bool {
    cid.codec() != content::codec::RAW && !matches!(shape, Shape::Envelope { .. })
}

async fn parts(tiers: &Tiers, cid: &Cid, bytes: u64) -> Result<Vec<Bytes>, Problem> {
    let missing = SourceError::NotFound { cid: *cid };
    let stored = tiers.stored(cid).await.and_then(|stored| stored.ok_or(missing));
    let stored = stored.map_err(|error| Problem::Walk(content::walk::WalkError::Source(error)))?;
    body::parts(&stored, cid, bytes).map_err(|_| Problem::Length)
}

impl std::fmt::Debug for Encoded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoded").field("files", &self.cache.entry_count()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transcoded_bodies_decode_to_the_same_bytes() {
        let plain: Vec<u8> = (0..5_000).flat_map(|line| format!("line {line} is a line\n").into_bytes()).collect();
        let size = plain.len() as u64;
        // Blocks are stored as one frame each.
        let frames: Vec<u8> =
            plain.chunks(30_000).flat_map(|leaf| zstd::encode_all(leaf, 3).expect("encodes")).collect();
        let gzip = encode(&frames, size, Coding::Gzip).expect("encodes");
        let mut decoded = Vec::new();
        flate2::read::GzDecoder::new(&gzip[..]).read_to_end(&mut decoded).expect("decodes");
        assert!(decoded == plain && gzip.len() < plain.len() / 4);
        let brotli = encode(&frames, size, Coding::Brotli).expect("encodes");
        decoded.clear();
        brotli::BrotliDecompress(&mut &brotli[..], &mut decoded).expect("decodes");
        assert!(decoded == plain && brotli.len() < gzip.len());
        for wrong in [size - 1, size + 1] {
            assert_eq!(encode(&frames, wrong, Coding::Gzip), None, "it is not as long as it is to be");
        }
        assert_eq!(encode(b"no frame", size, Coding::Gzip), None);
    }
}
