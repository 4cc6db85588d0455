//! Files with a `Content-Encoding`: as zstd, which is the frames that their blocks are stored as, one after the other (RFC 8878, section
//! 3), and small ones as brotli (RFC 7932) or gzip (RFC 1952).
//!
//! Goals: fewer bytes to send and none to compress; a length that is known before the first byte, from the index alone; a hot
//! small file costs one look-up.
//!
//! Whether it is worth it is decided once for a file and remembered, with all of its body if that is small: the first leaf
//! has to be stored compressed, every leaf has to be on the disk, and the body has to be smaller by a sixteenth. Anything else
//! is sent as it is, as are ranges, which are of the bytes as they are. A file that is still being fetched, or is in
//! memory only, is sent as it is too: nothing is compressed while a client waits.
//!
//! Clients that do not know zstd get brotli or gzip of the small files whose body is remembered. That is made once, behind the first
//! request for it, from what is remembered, by at most a quarter of a processor core; until it is there the file is sent as it is.
//!
//! What is remembered holds as long as the policy does, which was asked about every block of it. The leaves of a longer file may
//! have left the disk since, or come back in another form: their lengths are added up anew each time. What is not all on the
//! disk, or cannot be read, is looked at again after a while.

use brotli::enc::BrotliEncoderParams;
use bytes::Bytes;
use cache::Tiers;
use cache::stored::{Shape, body};
use content::budget::Share;
use content::unixfs::Node;
use content::{BlockSource as _, Cid, SourceError};
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
use crate::request::negotiate::Coding;

/// Files with more leaves are sent as they are: 256 MiB, if they are of the usual size.
const LEAVES_MAX: usize = 1024;
/// Files of which more inner nodes have to be read than this are too. Usual ones have seven above as many leaves.
const INNER_MAX: usize = 64;
/// The same, in bytes.
const INNER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Files that are looked at for the first time at once. Further ones are sent as they are meanwhile.
const LOOKS_MAX: usize = 4;
/// How long a file that could not be judged is not looked at again, and for how many that is remembered.
const NOT_YET: Duration = Duration::from_secs(10);
const NOT_YET_MAX: u64 = 10_000;
/// Leaves whose lengths are looked up at once, so that others can read in between.
const SHAPES_AT_ONCE: usize = 256;
/// Bodies up to this size are remembered whole, in bytes.
const BODY_BYTES_MAX: u64 = 1024 * 1024;
/// A body has to be smaller than the file by one part in this many.
const SAVING_MIN: u64 = 16;
/// Files up to this size are encoded anew for clients who do not know zstd, in bytes.
const RECODED_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// How long nothing is encoded anew after something was, in times of what that took.
const REST: u32 = 3;
/// How hard brotli and gzip compress, of 11 and 9: what is still quick, and clearly smaller than the next lower.
const BROTLI_QUALITY: i32 = 5;
const GZIP_LEVEL: u32 = 6;
/// Leaves that are read ahead of the client.
const LEAVES_AHEAD: usize = 4;
/// What an entry counts for besides what is in it, in bytes.
const ENTRY_OVERHEAD_BYTES: usize = 512;

/// What is known of a file.
#[derive(Debug, Clone)]
enum Known {
    /// It is sent as it is.
    Plain,
    /// This is the whole body.
    Body(Bytes),
    /// These are the leaves.
    Leaves(Arc<Leaves>),
}

/// The leaves of a file in order, and how much of the file each is.
#[derive(Debug)]
struct Leaves {
    leaves: Vec<(Cid, u64)>,
    /// The length of the body that they make.
    bytes: u64,
    /// The longest part of it.
    longest: u64,
}

/// What was found of a file.
enum Found {
    /// These leaves.
    Leaves(Leaves),
    /// It is better sent as it is.
    Unfit,
    /// Some of it is not on the disk.
    Missing,
}

/// A file, the generation of the policy that it was looked at under, and a coding.
type Key = (Cid, u64, Coding);

/// Which files are sent encoded, and how. Clones share what is known.
#[derive(Clone)]
pub struct Encoded {
    tiers: Tiers,
    known: Cache<Key, Known>,
    not_yet: Cache<(Cid, u64), ()>,
    looks: Arc<Semaphore>,
    /// One file at a time is encoded anew.
    recoding: Arc<Semaphore>,
    body_bytes_max: u64,
}

impl Encoded {
    /// Files of what is stored in these tiers. What is known of them takes at most `memory_bytes_max`.
    pub fn new(tiers: Tiers, memory_bytes_max: u64) -> Self {
        let weight = |_: &Key, known: &Known| u32::try_from(known.memory_bytes()).unwrap_or(u32::MAX);
        let known = Cache::builder().name("encoded").max_capacity(memory_bytes_max).weigher(weight).build();
        let not_yet = Cache::builder().max_capacity(NOT_YET_MAX).time_to_live(NOT_YET).build();
        let (looks, body_bytes_max) = (Arc::new(Semaphore::new(LOOKS_MAX)), BODY_BYTES_MAX.min(memory_bytes_max / 16));
        Self { tiers, known, not_yet, looks, recoding: Arc::new(Semaphore::new(1)), body_bytes_max }
    }

    /// The encoded bytes of a file, and their number, if it is sent so. `generation` is the policy's; `share` is what the
    /// leaves that are read ahead count against.
    pub async fn file(&self, cid: &Cid, size: u64, generation: u64, share: Share) -> Option<(u64, Content)> {
        let key = (*cid, generation, Coding::Zstd);
        match self.as_zstd(cid, size, generation).await? {
            Known::Plain => None,
            Known::Body(body) => Some((body.len() as u64, Content::Bytes(body))),
            Known::Leaves(leaves) => {
                let content = Box::pin(self.read(&leaves, share)).await;
                if content.is_none() {
                    self.known.invalidate(&key);
                }
                Some((leaves.bytes, content?))
            }
        }
    }

    /// The same in another coding than zstd, if the file was asked for in it before, and is small.
    pub async fn recoded(&self, cid: &Cid, size: u64, generation: u64, coding: Coding) -> Option<(u64, Content)> {
        let key = (*cid, generation, coding);
        match self.known.get(&key) {
            Some(Known::Body(body)) => return Some((body.len() as u64, Content::Bytes(body))),
            // It is being encoded, or becomes no smaller.
            Some(_) => return None,
            None => {}
        }
        if let Known::Body(frames) = self.as_zstd(cid, size, generation).await?
            && size <= RECODED_BYTES_MAX
            && let Ok(place) = Arc::clone(&self.recoding).try_acquire_owned()
        {
            self.known.insert(key, Known::Plain);
            tokio::spawn(self.clone().recode(key, frames, size, place));
        }
        None
    }

    /// Encodes a file anew, and rests.
    async fn recode(self, key: Key, frames: Bytes, size: u64, place: OwnedSemaphorePermit) {
        let begun = Instant::now();
        let encode = move || encode(&frames, size, key.2).filter(|body| body.len() as u64 <= size - size / SAVING_MIN);
        if let Ok(Some(body)) = tokio::task::spawn_blocking(encode).await {
            self.known.insert(key, Known::Body(body));
        }
        tokio::time::sleep(begun.elapsed() * REST).await;
        drop(place);
    }

    async fn as_zstd(&self, cid: &Cid, size: u64, generation: u64) -> Option<Known> {
        match self.known.get(&(*cid, generation, Coding::Zstd)) {
            Some(known) => Some(known),
            None => Box::pin(self.look_once((*cid, generation), size)).await,
        }
    }

    /// What is known of a file, if it was looked at under this generation of the policy: whether it is sent encoded, and the
    /// bytes of it that are in memory.
    pub fn known(&self, cid: &Cid, generation: u64) -> Option<(bool, u64)> {
        let known = self.known.get(&(*cid, generation, Coding::Zstd))?;
        let held = if let Known::Body(body) = &known { body.len() as u64 } else { 0 };
        Some((!matches!(known, Known::Plain), held))
    }

    /// Forgets what is known of files that are concerned; how many these were.
    pub fn invalidate_where(&self, concerns: impl Fn(&Cid) -> bool, mode: PurgeMode) -> u64 {
        // Those that are still looked at are known to nobody.
        invalidate_where(&self.not_yet, |(cid, _), ()| concerns(cid), mode);
        invalidate_where(&self.known, |(cid, ..), _| concerns(cid), mode)
    }

    /// Forgets what is known of all files.
    pub fn forget(&self) {
        self.known.invalidate_all();
        self.not_yet.invalidate_all();
    }

    async fn look_once(&self, key: (Cid, u64), size: u64) -> Option<Known> {
        if self.not_yet.contains_key(&key) {
            return None;
        }
        let _place = self.looks.try_acquire().ok()?;
        match self.look(&key.0, size).await {
            Ok(Some(known)) => {
                self.known.insert((key.0, key.1, Coding::Zstd), known.clone());
                Some(known)
            }
            // An error will show where the file is sent as it is.
            Ok(None) | Err(_) => {
                self.not_yet.insert(key, ());
                None
            }
        }
    }

    /// How a file is sent; `None` as long as not all of it is on the disk.
    async fn look(&self, cid: &Cid, size: u64) -> Result<Option<Known>, SourceError> {
        let leaves = match self.leaves(cid, size).await? {
            Found::Leaves(leaves) if leaves.bytes <= size - size / SAVING_MIN => leaves,
            Found::Leaves(_) | Found::Unfit => return Ok(Some(Known::Plain)),
            Found::Missing => return Ok(None),
        };
        if leaves.bytes > self.body_bytes_max {
            return Ok(Some(Known::Leaves(Arc::new(leaves))));
        }
        let mut body = Vec::with_capacity(usize::try_from(leaves.bytes).unwrap_or_default());
        for (cid, bytes) in &leaves.leaves {
            match parts(&self.tiers, cid, *bytes).await {
                Ok(parts) => parts.iter().for_each(|part| body.extend_from_slice(part)),
                Err(_) => return Ok(None),
            }
        }
        Ok((body.len() as u64 == leaves.bytes).then(|| Known::Body(body.into())))
    }

    async fn leaves(&self, cid: &Cid, size: u64) -> Result<Found, SourceError> {
        let mut found = Leaves { leaves: Vec::new(), bytes: 0, longest: 0 };
        let (mut inner, mut inner_bytes) = (0, 0);
        // What is still to be looked at, the first of it last.
        let mut ahead = vec![(*cid, size, self.tiers.shapes(&[*cid]).await?.pop().flatten())];
        while let Some((cid, size, shape)) = ahead.pop() {
            let Some(shape) = shape else { return Ok(Found::Missing) };
            let mut children = Vec::new();
            if may_be_inner(&cid, shape) {
                inner_bytes += shape.block_bytes();
                if inner_bytes > INNER_BYTES_MAX || inner == INNER_MAX {
                    return Ok(Found::Unfit);
                }
                match self.children(&cid, size).await? {
                    Some(found) => children = found,
                    None => return Ok(Found::Unfit),
                }
                inner += usize::from(!children.is_empty());
            }
            if children.is_empty() {
                let Some(encoded) = body::encoded_bytes(shape, cid.codec(), size) else { return Ok(Found::Unfit) };
                let compressed = !matches!(shape, Shape::Raw { .. });
                if found.leaves.len() == LEAVES_MAX || found.leaves.is_empty() && !compressed {
                    return Ok(Found::Unfit);
                }
                found.leaves.push((cid, size));
                found.bytes += encoded;
                found.longest = found.longest.max(encoded);
                continue;
            }
            if ahead.len() + children.len() > LEAVES_MAX {
                return Ok(Found::Unfit);
            }
            let shapes = self.shapes(&children).await?;
            ahead.extend(children.into_iter().zip(shapes).rev().map(|((cid, size), shape)| (cid, size, shape)));
        }
        found.leaves.shrink_to_fit();
        Ok(Found::Leaves(found))
    }

    async fn shapes(&self, blocks: &[(Cid, u64)]) -> Result<Vec<Option<Shape>>, SourceError> {
        let mut shapes = Vec::with_capacity(blocks.len());
        for blocks in blocks.chunks(SHAPES_AT_ONCE) {
            let cids: Vec<Cid> = blocks.iter().map(|(cid, _)| *cid).collect();
            shapes.extend(self.tiers.shapes(&cids).await?);
        }
        Ok(shapes)
    }

    /// The children of a node that is to be so long, none for a leaf; `None` for what is not sent encoded. Lengths that
    /// contradict each other are left to the reader of the file, who says so.
    async fn children(&self, cid: &Cid, size: u64) -> Result<Option<Vec<(Cid, u64)>>, SourceError> {
        let block = self.tiers.local().get(cid).await?;
        match Node::decode(&block) {
            Ok(Node::File(file)) if file.size() != size || file.child_count() > LEAVES_MAX => Ok(None),
            Ok(Node::File(file)) if file.child_count() == 0 => Ok(Some(Vec::new())),
            // Nodes with children hardly ever have bytes of their own.
            Ok(Node::File(file)) if file.data().is_empty() => Ok(file.children().collect::<Result<_, _>>().ok()),
            _ => Ok(None),
        }
    }

    /// The body of a file that is not remembered whole; `None` if it is not as it was, or there is no memory to read it ahead.
    /// Waits for the first of it.
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
            let _held = &share;
            let (parts, problem) = match parts {
                Ok(parts) => (parts, None),
                Err(problem) => (Vec::new(), Some(Err(problem))),
            };
            stream::iter(parts.into_iter().map(Ok).chain(problem))
        });
        Some(Content::Stream { stream: parts.boxed(), remaining: Some(remaining) })
    }
}

/// The bytes of a file of so many, which are given as zstd, in another coding; `None` if that fails.
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

impl Known {
    fn memory_bytes(&self) -> usize {
        ENTRY_OVERHEAD_BYTES
            + match self {
                Self::Plain => 0,
                Self::Body(body) => body.len(),
                Self::Leaves(leaves) => size_of_val(&*leaves.leaves),
            }
    }
}

/// A dag-pb block that is not stored as an envelope may be anything: it has to be read.
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
        f.debug_struct("Encoded").field("files", &self.known.entry_count()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_anew_decodes_to_the_same() {
        let plain: Vec<u8> = (0..5_000).flat_map(|line| format!("line {line} is a line\n").into_bytes()).collect();
        let size = plain.len() as u64;
        // As blocks are stored: a frame each.
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
