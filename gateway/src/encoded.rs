//! Files as `Content-Encoding: zstd`: the frames that their blocks are stored as, one after the other (RFC 8878, section 3).
//!
//! Goals: fewer bytes to send and none to compress; a length that is known before the first byte, from the index alone; a hot
//! small file costs one look-up.
//!
//! Whether it is worth it is decided once for a file and remembered, with all of its body if that is small: the first leaf
//! has to be stored compressed, every leaf has to be on the disk, and the body has to be smaller by a sixteenth. Anything else
//! is sent as it is, as are ranges, which are of the bytes as they are. A file that is still being fetched, or is in
//! memory only, is sent as it is too: nothing is compressed while a client waits.
//!
//! What is remembered holds as long as the policy does, which was asked about every block of it.

use bytes::Bytes;
use cache::Tiers;
use cache::stored::{Shape, body};
use content::budget::Share;
use content::unixfs::Node;
use content::{BlockSource as _, Cid, SourceError};
use futures::stream::{self, StreamExt as _};
use moka::sync::Cache;
use std::sync::Arc;

use crate::body::Content;
use crate::errors::Problem;

/// Files with more leaves are sent as they are.
const LEAVES_MAX: usize = 4096;
/// Files with more inner nodes too. Those of so many leaves have two dozen.
const INNER_MAX: usize = 256;
/// Bodies up to this size are remembered whole, in bytes.
const BODY_BYTES_MAX: u64 = 1024 * 1024;
/// A body has to be smaller than the file by one part in this many.
const SAVING_MIN: u64 = 16;
/// Leaves that are read ahead of the client.
const LEAVES_AHEAD: usize = 4;
/// What an entry counts for besides what is in it, in bytes.
const ENTRY_OVERHEAD_BYTES: usize = 400;

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
}

/// Which files are sent encoded, and how.
pub struct Encoded {
    tiers: Tiers,
    known: Cache<(Cid, u64), Known>,
    body_bytes_max: u64,
}

impl Encoded {
    /// Files of what is stored in these tiers. What is known of them takes at most `memory_bytes_max`.
    pub fn new(tiers: Tiers, memory_bytes_max: u64) -> Self {
        let weight = |_: &(Cid, u64), known: &Known| u32::try_from(known.memory_bytes()).unwrap_or(u32::MAX);
        let known = Cache::builder().name("encoded").max_capacity(memory_bytes_max).weigher(weight).build();
        Self { tiers, known, body_bytes_max: BODY_BYTES_MAX.min(memory_bytes_max / 16) }
    }

    /// The encoded bytes of a file, and their number, if it is sent so. `generation` is the policy's; `share` is what the
    /// leaves that are read ahead count against.
    pub async fn file(&self, cid: &Cid, size: u64, generation: u64, share: Share) -> Option<(u64, Content)> {
        let key = (*cid, generation);
        let known = match self.known.get(&key) {
            Some(known) => known,
            None => {
                // An error will show where the file is sent as it is.
                let known = self.look(cid, size).await.ok()?;
                self.known.insert(key, known.clone());
                known
            }
        };
        match known {
            Known::Plain => None,
            Known::Body(body) => Some((body.len() as u64, Content::Bytes(body))),
            Known::Leaves(leaves) => Some((leaves.bytes, self.read(leaves, share)?)),
        }
    }

    async fn look(&self, cid: &Cid, size: u64) -> Result<Known, SourceError> {
        let Some(leaves) = self.leaves(cid, size).await? else { return Ok(Known::Plain) };
        if leaves.bytes > size - size / SAVING_MIN {
            return Ok(Known::Plain);
        }
        if leaves.bytes > self.body_bytes_max {
            return Ok(Known::Leaves(Arc::new(leaves)));
        }
        let mut body = Vec::with_capacity(usize::try_from(leaves.bytes).unwrap_or_default());
        for (cid, bytes) in &leaves.leaves {
            match parts(&self.tiers, cid, *bytes).await {
                Ok(parts) => parts.iter().for_each(|part| body.extend_from_slice(part)),
                Err(_) => return Ok(Known::Plain),
            }
        }
        Ok(if body.len() as u64 == leaves.bytes { Known::Body(body.into()) } else { Known::Plain })
    }

    /// The leaves of a file; `None` if it is not to be sent encoded.
    async fn leaves(&self, cid: &Cid, size: u64) -> Result<Option<Leaves>, SourceError> {
        let (mut leaves, mut bytes, mut inner) = (Vec::new(), 0, 0);
        // What is still to be looked at, the first of it last.
        let mut ahead = vec![(*cid, size, self.tiers.shapes(&[*cid]).await?.pop().flatten())];
        while let Some((cid, size, shape)) = ahead.pop() {
            let Some(shape) = shape else { return Ok(None) };
            let children = if may_be_inner(&cid, shape) { self.children(&cid, size).await? } else { Some(Vec::new()) };
            let Some(children) = children else { return Ok(None) };
            if children.is_empty() {
                let Some(encoded) = body::encoded_bytes(shape, cid.codec(), size) else { return Ok(None) };
                let compressed = !matches!(shape, Shape::Raw { .. });
                if leaves.len() == LEAVES_MAX || leaves.is_empty() && !compressed {
                    return Ok(None);
                }
                leaves.push((cid, size));
                bytes += encoded;
                continue;
            }
            inner += 1;
            if inner > INNER_MAX || ahead.len() + children.len() > LEAVES_MAX {
                return Ok(None);
            }
            let cids: Vec<Cid> = children.iter().map(|(cid, _)| *cid).collect();
            let shapes = self.tiers.shapes(&cids).await?;
            ahead.extend(children.into_iter().zip(shapes).rev().map(|((cid, size), shape)| (cid, size, shape)));
        }
        Ok(Some(Leaves { leaves, bytes }))
    }

    /// The children of a node that is to be so long, none for a leaf; `None` for what is not sent encoded. Lengths that
    /// contradict each other are left to the reader of the file, who says so.
    async fn children(&self, cid: &Cid, size: u64) -> Result<Option<Vec<(Cid, u64)>>, SourceError> {
        let block = self.tiers.local().get(cid).await?;
        match Node::decode(&block) {
            Ok(Node::File(file)) if file.size() != size => Ok(None),
            Ok(Node::File(file)) if file.child_count() == 0 => Ok(Some(Vec::new())),
            // Nodes with children hardly ever have bytes of their own.
            Ok(Node::File(file)) if file.data().is_empty() => Ok(file.children().collect::<Result<_, _>>().ok()),
            _ => Ok(None),
        }
    }

    /// The body of a file that is not remembered whole; `None` if there is no memory to read it ahead.
    fn read(&self, leaves: Arc<Leaves>, mut share: Share) -> Option<Content> {
        if !share.grow(LEAVES_AHEAD * content::MAX_BLOCK_BYTES / 8) {
            return None;
        }
        let (tiers, remaining) = (self.tiers.clone(), leaves.bytes);
        let parts = stream::iter(0..leaves.leaves.len()).map(move |index| {
            let (tiers, (cid, bytes)) = (tiers.clone(), leaves.leaves[index]);
            async move { parts(&tiers, &cid, bytes).await }
        });
        let parts = parts.buffered(LEAVES_AHEAD).flat_map(move |parts| {
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
