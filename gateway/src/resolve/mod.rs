//! From a path to what stands at its end, and the memory of it.
//!
//! | module | concern |
//! |---|---|
//! | [`paths`] | the cache of resolved paths |
//! | [`walks`] | one walk for all requests that need it at the same time |
//! | [`redirects`] | the cached `_redirects` of sites |
//! | [`source`] | where blocks come from: RAM, disk, and the network with a permit |
//! | [`content_type`] | the media type of a file |

pub mod content_type;
pub mod paths;
pub mod redirects;
pub mod source;
pub mod walks;

use crate::errors::Problem;
use crate::headers::header;
use crate::resolve::source::RootSource;
use bytes::Bytes;
use content::path::{PathError, Root};
use content::unixfs::{Node, dir};
use content::walk::{self, Resolved, WalkError};
use content::{Block, Cid, ContentPath, Name, NameError, NameResolver, Policy, Verdict, ipld};
use http::HeaderValue;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How long what a path leads to may be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// For ever: the path begins with a CID.
    Immutable,
    /// As long as the names on the way hold.
    For(Duration),
    /// A name on the way may stand for something newer, and nobody could be asked in time.
    Stale {
        /// How long to believe it all the same.
        ttl: Duration,
        /// How long ago it was learnt.
        age: Duration,
    },
}

/// An immutable path that is to be walked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Where the walk begins.
    pub root: Cid,
    /// The names to follow from there: first those that a name stood for, then those that were asked for.
    pub segments: Vec<String>,
    /// How many of the segments a name stood for: they lead to the root of the site.
    pub site: usize,
    /// Whether the path ended in a slash, which means a directory.
    pub trailing_slash: bool,
    /// How long all this holds.
    pub freshness: Freshness,
}

impl Target {
    /// What a path means now.
    ///
    /// # Errors
    /// [`Problem::Name`] when its name cannot be resolved, or one on the way is withheld.
    pub async fn of(path: ContentPath, names: &dyn NameResolver, policy: &dyn Policy) -> Result<Self, Problem> {
        let ContentPath { root, segments, trailing_slash } = path;
        let asked = segments.join("/");
        let name = match root {
            Root::Cid(root) => {
                return Ok(Self { root, segments, site: 0, trailing_slash, freshness: Freshness::Immutable });
            }
            Root::Name(name) => name,
        };
        check_name(policy, &name, "", &asked)?;
        let found = names.resolve(&name).await?;
        found.hops.iter().try_for_each(|(name, below)| check_name(policy, name, below, &asked))?;
        let site = found.segments.len();
        let segments = found.segments.into_iter().chain(segments).collect();
        let freshness = match found.stale {
            None => Freshness::For(found.ttl),
            Some(age) => Freshness::Stale { ttl: found.ttl, age },
        };
        Ok(Self { root: found.root, segments, site, trailing_slash, freshness })
    }

    /// The last name, if there is one: what a file is called.
    pub fn name(&self) -> Option<&str> {
        self.segments.last().map(String::as_str)
    }

    /// The same path with its root written as a CID: what a remembered path is found by.
    pub fn key(&self) -> String {
        let mut key = format!("/ipfs/{}", self.root);
        for segment in &self.segments {
            key.push('/');
            key.extend(utf8_percent_encode(segment, NON_ALPHANUMERIC));
        }
        if self.trailing_slash {
            key.push('/');
        }
        key
    }

    /// The root of the site that the path belongs to.
    #[must_use]
    pub fn to_site(&self) -> Self {
        let segments = self.segments.iter().take(self.site).cloned().collect();
        Self { segments, trailing_slash: true, ..*self }
    }

    /// Another path of the same site, decoded. It may lead to a directory, whatever it ends in.
    ///
    /// # Errors
    /// [`PathError`] when it leads nowhere in the site, or too deep.
    pub fn within_site(&self, path: &str, depth_max: usize) -> Result<Self, PathError> {
        let below = ContentPath::below(Root::Cid(self.root), path, depth_max)?;
        let segments = self.segments.iter().take(self.site).cloned().chain(below.segments).collect();
        Ok(Self { segments, trailing_slash: true, ..self.clone() })
    }
}

/// Asks a policy about a name, and about a path below what it stands for: what another name added, and what is asked for.
fn check_name(policy: &dyn Policy, name: &Name, below: &str, asked: &str) -> Result<(), NameError> {
    let slash = if below.is_empty() || asked.is_empty() { "" } else { "/" };
    let paths = [String::new(), format!("{below}{slash}{asked}")];
    match paths.iter().map(|path| policy.check_name(name, path)).find(|verdict| *verdict != Verdict::Allow) {
        None => Ok(()),
        Some(verdict) => Err(NameError::Withheld { name: name.clone(), verdict }),
    }
}

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
    /// `X-Ipfs-Roots`: the CID of each segment, the root's first.
    pub roots: HeaderValue,
    /// When the file's writer says that it was changed last.
    pub modified: Option<SystemTime>,
    /// The policy's generation when the path was walked.
    pub generation: u64,
}

/// What a path leads to.
#[derive(Debug, Clone)]
pub enum Found {
    /// A file: its own, or the `index.html` of a directory.
    File(Arc<Entity>, Block),
    /// A symlink, and its target.
    Symlink(Arc<Entity>, Bytes),
    /// A directory without `index.html`.
    Directory {
        /// `X-Ipfs-Roots`.
        roots: HeaderValue,
        /// Its root block.
        block: Block,
    },
    /// A directory that was asked for without a slash at the end.
    SlashMissing(HeaderValue),
    /// A document: dag-cbor, dag-json, cbor or json.
    Document(Resolved),
}

/// What a directory is shown as, if it has it.
const INDEX: &str = "index.html";

/// Walks a path. A directory is shown by its `index.html` only if `shows_index` is set, and only then its address has to
/// end in a slash, which the page's own links rely on.
///
/// # Errors
/// [`Problem`] when the path leads nowhere, to nothing that can be shown, or a block does not come.
pub async fn resolve(
    source: &RootSource,
    target: &Target,
    generation: u64,
    shows_index: bool,
) -> Result<Found, Problem> {
    let resolved = walk(source, target).await?;
    let roots = roots_header(&resolved);
    let block = &resolved.block;
    let entity = |block: &Block, etag: &Cid, size: u64, modified: Option<SystemTime>, name: Option<&str>| Entity {
        root: target.root,
        cid: *block.cid(),
        size,
        content_type: name.and_then(content_type::by_name),
        etag: etag_of(etag, ""),
        roots: roots.clone(),
        modified,
        generation,
    };
    if ipld::is_document(block.cid().codec()) {
        return Ok(Found::Document(resolved));
    }
    match decode(block)? {
        Node::File(file) => {
            let entity = entity(block, block.cid(), file.size(), file.modified(), target.name());
            Ok(Found::File(Arc::new(entity), resolved.block))
        }
        Node::Symlink { target: pointed } => {
            let mut entity = entity(block, block.cid(), pointed.len() as u64, None, None);
            entity.content_type = Some(content_type::SYMLINK);
            Ok(Found::Symlink(Arc::new(entity), pointed))
        }
        Node::Directory(_) | Node::HamtShard(_) if !shows_index => {
            Ok(Found::Directory { roots, block: resolved.block })
        }
        Node::Directory(_) | Node::HamtShard(_) if !target.trailing_slash => Ok(Found::SlashMissing(roots)),
        Node::Directory(_) | Node::HamtShard(_) => match index_of(source, &resolved, &target.segments).await? {
            // The directory's own CID is the entity tag, so that a root is answered with 304 from its CID alone.
            Some((index, size, modified)) => {
                Ok(Found::File(Arc::new(entity(&index, block.cid(), size, modified, Some(INDEX))), index))
            }
            None => Ok(Found::Directory { roots, block: resolved.block }),
        },
        Node::Plain(_) => Err(Problem::NoRendering { cid: *block.cid(), codec: block.cid().codec() }),
    }
}

/// Walks a path to its last block, whatever that is.
///
/// # Errors
/// [`Problem`] when the path leads nowhere or a block does not come.
pub async fn walk(source: &RootSource, target: &Target) -> Result<Resolved, Problem> {
    Ok(walk::resolve_under(source, source.policy(), target.root, &target.segments).await?)
}

/// `X-Ipfs-Roots` of a path that was walked.
pub fn roots_header(resolved: &Resolved) -> HeaderValue {
    header(&resolved.roots.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
}

fn decode(block: &Block) -> Result<Node, Problem> {
    Node::decode(block).map_err(|error| match WalkError::from(error) {
        WalkError::Unsupported { cid, codec } => Problem::NoRendering { cid, codec },
        other => Problem::Walk(other),
    })
}

/// The `index.html` of a directory, its size and date, if there is one and it is a file.
async fn index_of(
    source: &RootSource,
    resolved: &Resolved,
    segments: &[String],
) -> Result<Option<(Block, u64, Option<SystemTime>)>, Problem> {
    let Some(cid) = dir::lookup(source, &resolved.block, INDEX).await? else { return Ok(None) };
    resolved.check_further(source.policy(), segments, INDEX).map_err(WalkError::Source)?;
    let block = source.fetch(&cid).await.map_err(WalkError::Source)?;
    match Node::decode(&block) {
        Ok(Node::File(file)) => Ok(Some((block, file.size(), file.modified()))),
        _ => Ok(None),
    }
}

/// A strong entity tag: the CID, and what else the bytes depend on.
pub fn etag_of(cid: &Cid, suffix: &str) -> HeaderValue {
    header(&format!("\"{cid}{suffix}\""))
}
