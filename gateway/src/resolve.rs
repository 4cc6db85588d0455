//! From a path to what stands at its end, and the memory of it.
//!
//! What a path below a CID leads to never changes, so [`Entity`] is remembered under the path as it was sent: a hot file
//! costs one look-up instead of a parse and a walk. An entity carries its headers ready to be sent. The memory is bounded
//! in bytes, and each entry remembers the generation of the policy that it was made under.

use crate::content_type;
use crate::errors::Problem;
use crate::source::RootSource;
use bytes::Bytes;
use content::path::Root;
use content::unixfs::{Node, dir};
use content::walk::{self, WalkError};
use content::{Block, Cid, ContentPath};
use http::HeaderValue;
use moka::sync::Cache;
use std::sync::Arc;

/// A file (or symlink) that a path leads to.
#[derive(Debug, Clone)]
pub struct Entity {
    /// Where the path began: what the file's other blocks are asked for by.
    pub root: Cid,
    /// The file's root block.
    pub cid: Cid,
    /// The file's length, in bytes.
    pub size: u64,
    /// The media type, once it is known.
    pub content_type: Option<HeaderValue>,
    /// What tells this file's bytes from any other's.
    pub etag: HeaderValue,
    /// `X-Ipfs-Path` and `X-Ipfs-Roots`.
    pub trail: Trail,
    /// The policy's generation when the path was walked.
    pub generation: u64,
}

/// What a response says about the path that led to it.
#[derive(Debug, Clone)]
pub struct Trail {
    /// `X-Ipfs-Path`: the path as it was sent.
    pub path: HeaderValue,
    /// `X-Ipfs-Roots`: the CID of each segment, the root's first.
    pub roots: HeaderValue,
}

/// What a path leads to.
#[derive(Debug)]
pub enum Found {
    /// A file: its own, or the `index.html` of a directory.
    File(Entity, Block),
    /// A symlink, and its target.
    Symlink(Entity, Bytes),
    /// A directory without `index.html`.
    Directory(Trail, Block),
    /// A directory that was asked for without a slash at the end.
    SlashMissing(Trail),
}

/// What a directory is shown as, if it has it.
const INDEX: &str = "index.html";

/// Walks a path; `sent` is the path as it was sent.
///
/// # Errors
/// [`Problem`] when the path leads nowhere, to nothing that can be shown, or a block does not come.
pub async fn resolve(source: &RootSource, path: &ContentPath, sent: &str, generation: u64) -> Result<Found, Problem> {
    let (trail, block) = walk(source, path, sent).await?;
    let entity = |block: &Block, etag: &Cid, size: u64, name: Option<&str>| Entity {
        root: *source.root(),
        cid: *block.cid(),
        size,
        content_type: name.and_then(content_type::by_name),
        etag: etag_of(etag, ""),
        trail: trail.clone(),
        generation,
    };
    match decode(&block)? {
        Node::File(file) => Ok(Found::File(entity(&block, block.cid(), file.size(), path.name()), block)),
        Node::Symlink { target } => {
            let mut entity = entity(&block, block.cid(), target.len() as u64, None);
            entity.content_type = Some(content_type::SYMLINK);
            Ok(Found::Symlink(entity, target))
        }
        Node::Directory(_) | Node::HamtShard(_) if !path.trailing_slash => Ok(Found::SlashMissing(trail)),
        Node::Directory(_) | Node::HamtShard(_) => match index_of(source, &block).await? {
            // The directory's own CID is the entity tag, so that a root is answered with 304 from its CID alone.
            Some((index, size)) => Ok(Found::File(entity(&index, block.cid(), size, Some(INDEX)), index)),
            None => Ok(Found::Directory(trail, block)),
        },
        Node::Plain(_) => Err(Problem::NoRendering { cid: *block.cid(), codec: block.cid().codec() }),
    }
}

/// Walks a path to its last block, whatever that is.
///
/// # Errors
/// [`Problem`] when the path leads nowhere or a block does not come.
pub async fn walk(source: &RootSource, path: &ContentPath, sent: &str) -> Result<(Trail, Block), Problem> {
    let resolved = walk::resolve(source, root(path)?, &path.segments).await?;
    let roots = resolved.roots.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let trail = Trail { path: header(sent), roots: header(&roots) };
    Ok((trail, resolved.block))
}

/// The CID that a path begins with.
///
/// # Errors
/// [`Problem::Ipns`] when it begins with a name.
pub fn root(path: &ContentPath) -> Result<Cid, Problem> {
    match path.root {
        Root::Cid(cid) => Ok(cid),
        Root::Name(_) => Err(Problem::Ipns),
    }
}

fn decode(block: &Block) -> Result<Node, Problem> {
    Node::decode(block).map_err(|error| match WalkError::from(error) {
        WalkError::Unsupported { cid, codec } => Problem::NoRendering { cid, codec },
        other => Problem::Walk(other),
    })
}

/// The `index.html` of a directory and its size, if there is one and it is a file.
async fn index_of(source: &RootSource, directory: &Block) -> Result<Option<(Block, u64)>, Problem> {
    let Some(cid) = dir::lookup(source, directory, INDEX).await? else { return Ok(None) };
    let block = source.fetch(&cid).await.map_err(WalkError::Source)?;
    match Node::decode(&block) {
        Ok(Node::File(file)) => Ok(Some((block, file.size()))),
        _ => Ok(None),
    }
}

/// A strong entity tag: the CID, and what else the bytes depend on.
pub fn etag_of(cid: &Cid, suffix: &str) -> HeaderValue {
    header(&format!("\"{cid}{suffix}\""))
}

/// A header value of text that has no control characters; anything else is left out.
pub fn header(text: &str) -> HeaderValue {
    HeaderValue::from_bytes(text.as_bytes()).unwrap_or(HeaderValue::from_static(""))
}

/// What an entry takes beside its texts, in bytes: the entity, its small headers, and the cache's own book-keeping.
const ENTRY_BYTES: usize = 1024;

#[expect(clippy::borrowed_box, reason = "the cache hands its keys over as they are")]
fn weight(path: &Box<str>, entity: &Arc<Entity>) -> u32 {
    let texts = path.len() + entity.trail.path.len() + entity.trail.roots.len();
    u32::try_from(texts + ENTRY_BYTES).unwrap_or(u32::MAX)
}

/// The memory of resolved paths.
pub struct Paths {
    cache: Cache<Box<str>, Arc<Entity>>,
}

impl Paths {
    /// A memory of at most `bytes_max`.
    pub fn new(bytes_max: u64) -> Self {
        Self { cache: Cache::builder().name("paths").max_capacity(bytes_max).weigher(weight).build() }
    }

    /// What a path leads to, if that was found out under this generation of the policy.
    pub fn get(&self, path: &str, generation: u64) -> Option<Arc<Entity>> {
        self.cache.get(path).filter(|entity| entity.generation == generation)
    }

    /// Remembers a file whose media type is known.
    pub fn remember(&self, path: &str, entity: &Arc<Entity>) {
        if entity.content_type.is_some() {
            self.cache.insert(path.into(), Arc::clone(entity));
        }
    }
}
