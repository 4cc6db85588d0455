//! Resolution of paths, and its cache.
//!
//! | module | concern |
//! |---|---|
//! | [`paths`] | the cache of resolved paths |
//! | [`path_resolver`] | one path resolution for concurrent requests (singleflight) |
//! | [`redirects`] | the cached `_redirects` of sites |
//! | [`owner`] | the gateway of a site that owns a root, as a source of blocks |
//! | [`source`] | where blocks come from: RAM, disk, and the network with a permit |
//! | [`content_type`] | the media type of a file |

pub mod content_type;
pub mod owner;
pub mod path_resolver;
pub mod paths;
pub mod redirects;
pub mod source;

use crate::errors::Problem;
use crate::headers::header;
use crate::resolve::source::RootSource;
use bytes::Bytes;
use content::path::{PathError, Root};
use content::unixfs::{Node, dir};
use content::walk::{self, Purpose, Resolved, WalkError};
use content::{Block, Cid, ContentPath, Name, NameError, NameResolver, Policy, Verdict, ipld};
use http::HeaderValue;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use services::surrogate_keys;
use std::iter;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How long a resolution is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Forever: the path begins with a CID.
    Immutable,
    /// For the time-to-live of the names on the path.
    For(Duration),
    /// A name on the path has expired, and could not be looked up in time.
    Stale {
        /// How long it may be used nevertheless.
        ttl: Duration,
        /// The time since it was looked up.
        age: Duration,
    },
}

/// An immutable path to resolve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The root CID.
    pub root: Cid,
    /// The path segments: first those of the names' values, then those of the request.
    pub segments: Vec<String>,
    /// The number of segments from names: they lead to the root of the site.
    pub site: usize,
    /// Whether the path has a trailing slash, which requires a directory.
    pub trailing_slash: bool,
    /// How long the target is valid.
    pub freshness: Freshness,
}

impl Target {
    /// Resolves the names of a path.
    ///
    /// # Errors
    /// [`Problem::Name`] when a name cannot be resolved, or is withheld.
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

    /// The last segment: the name of a file.
    pub fn name(&self) -> Option<&str> {
        self.segments.last().map(String::as_str)
    }

    /// The path with its root as a CID: the key of caches.
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

    /// The root of the path's site.
    #[must_use]
    pub fn to_site(&self) -> Self {
        let segments = self.segments.iter().take(self.site).cloned().collect();
        Self { segments, trailing_slash: true, ..*self }
    }

    /// Another path of the same site, decoded. It may lead to a directory without a trailing slash.
    ///
    /// # Errors
    /// [`PathError`] when it leaves the site, or has too many segments.
    pub fn within_site(&self, path: &str, depth_max: usize) -> Result<Self, PathError> {
        let below = ContentPath::below(Root::Cid(self.root), path, depth_max)?;
        let segments = self.segments.iter().take(self.site).cloned().chain(below.segments).collect();
        Ok(Self { segments, trailing_slash: true, ..self.clone() })
    }
}

/// Checks a name against the policy, alone and with the path below it: segments from another name, and those of the
/// request.
fn check_name(policy: &dyn Policy, name: &Name, below: &str, asked: &str) -> Result<(), NameError> {
    let slash = if below.is_empty() || asked.is_empty() { "" } else { "/" };
    let whole = Some(format!("{below}{slash}{asked}")).filter(|whole| !whole.is_empty());
    for path in iter::once(String::new()).chain(whole) {
        match policy.check_name(name, &path) {
            Verdict::Allow => {}
            verdict => return Err(NameError::Withheld { name: name.clone(), path, verdict }),
        }
    }
    Ok(())
}

/// A file (or symlink) at the end of a path.
#[derive(Debug, Clone)]
pub struct Entity {
    /// The root of the path, whose session its other blocks are fetched with.
    pub root: Cid,
    /// The file's root block.
    pub cid: Cid,
    /// The file's length, in bytes.
    pub size: u64,
    /// The media type, once it is known.
    pub content_type: Option<HeaderValue>,
    /// The entity tag.
    pub etag: HeaderValue,
    /// `X-Ipfs-Roots`: the CID of each segment, beginning with the root.
    pub roots: HeaderValue,
    /// The surrogate key of a directory's `index.html`, whose CID is not among the roots.
    pub index_key: Option<HeaderValue>,
    /// The modification time that the file's publisher stored.
    pub modified: Option<SystemTime>,
    /// The policy's generation at the resolution.
    pub generation: u64,
}

/// The target of a path.
#[derive(Debug, Clone)]
pub enum PathTarget {
    /// A file, or the `index.html` of a directory.
    File(Arc<Entity>, Block),
    /// A symlink with its target.
    Symlink(Arc<Entity>, Bytes),
    /// A directory without `index.html`.
    Directory {
        /// `X-Ipfs-Roots`.
        roots: HeaderValue,
        /// Its root block.
        block: Block,
    },
    /// A directory that was requested without a trailing slash.
    SlashMissing(HeaderValue),
    /// A document: dag-cbor, dag-json, cbor or json.
    Document(Resolved),
}

/// The file that represents a directory.
pub const INDEX: &str = "index.html";

/// Resolves a path. Only if `shows_index` is set, a directory is represented by its `index.html`; its URL then needs a
/// trailing slash, on which the page's relative links depend.
///
/// # Errors
/// [`Problem`] when the path cannot be resolved, its target cannot be rendered, or a block cannot be fetched.
pub async fn resolve(
    source: &RootSource,
    target: &Target,
    generation: u64,
    shows_index: bool,
) -> Result<PathTarget, Problem> {
    // A request for a directory without a slash is redirected.
    let further = (shows_index && target.trailing_slash).then_some(INDEX);
    let resolved = walk_for(source, target, &Purpose { further, ..source.purpose() }).await?;
    let roots = roots_header(&resolved);
    let block = &resolved.block;
    let entity = |block: &Block, etag: &Cid, size: u64, modified: Option<SystemTime>, name: Option<&str>| Entity {
        root: target.root,
        cid: *block.cid(),
        size,
        content_type: name.and_then(content_type::by_name),
        etag: etag_of(etag, ""),
        roots: roots.clone(),
        index_key: (etag != block.cid()).then(|| header(&surrogate_keys::of_root(block.cid()))),
        modified,
        generation,
    };
    if ipld::is_document(block.cid().codec()) {
        return Ok(PathTarget::Document(resolved));
    }
    match decode(block)? {
        Node::File(file) => {
            let entity = entity(block, block.cid(), file.size(), file.modified(), target.name());
            Ok(PathTarget::File(Arc::new(entity), resolved.block))
        }
        Node::Symlink { target: pointed } => {
            let mut entity = entity(block, block.cid(), pointed.len() as u64, None, None);
            entity.content_type = Some(content_type::SYMLINK);
            Ok(PathTarget::Symlink(Arc::new(entity), pointed))
        }
        Node::Directory(_) | Node::HamtShard(_) if !shows_index => {
            Ok(PathTarget::Directory { roots, block: resolved.block })
        }
        Node::Directory(_) | Node::HamtShard(_) if !target.trailing_slash => Ok(PathTarget::SlashMissing(roots)),
        Node::Directory(_) | Node::HamtShard(_) => match index_of(source, &resolved, &target.segments).await? {
            // The entity tag is the directory's CID, so that a 304 for a root needs its CID alone.
            Some((index, size, modified)) => {
                Ok(PathTarget::File(Arc::new(entity(&index, block.cid(), size, modified, Some(INDEX))), index))
            }
            None => Ok(PathTarget::Directory { roots, block: resolved.block }),
        },
        Node::Plain(_) => Err(Problem::NoRendering { cid: *block.cid(), codec: block.cid().codec() }),
    }
}

/// Resolves a path to its last block, of any codec.
///
/// # Errors
/// [`Problem`] when the path cannot be resolved or a block cannot be fetched.
pub async fn walk(source: &RootSource, target: &Target) -> Result<Resolved, Problem> {
    walk_for(source, target, &source.purpose()).await
}

async fn walk_for(source: &RootSource, target: &Target, purpose: &Purpose) -> Result<Resolved, Problem> {
    Ok(walk::resolve_for(source, source.policy(), target.root, &target.segments, purpose).await?)
}

/// `X-Ipfs-Roots` of a resolved path.
pub fn roots_header(resolved: &Resolved) -> HeaderValue {
    header(&resolved.roots.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
}

fn decode(block: &Block) -> Result<Node, Problem> {
    Node::decode(block).map_err(|error| match WalkError::from(error) {
        WalkError::Unsupported { cid, codec } => Problem::NoRendering { cid, codec },
        other => Problem::Walk(other),
    })
}

/// The `index.html` of a directory with its size and date, if it is a file.
async fn index_of(
    source: &RootSource,
    resolved: &Resolved,
    segments: &[String],
) -> Result<Option<(Block, u64, Option<SystemTime>)>, Problem> {
    let Some(cid) = dir::lookup(source, &resolved.block, INDEX).await? else { return Ok(None) };
    resolved.check_further(source.policy(), segments, INDEX).map_err(WalkError::Source)?;
    let block = source.fetch_content(&cid).await.map_err(WalkError::Source)?;
    match Node::decode(&block) {
        Ok(Node::File(file)) => Ok(Some((block, file.size(), file.modified()))),
        _ => Ok(None),
    }
}

/// A strong entity tag: the CID, and a suffix for other dependencies of the bytes.
pub fn etag_of(cid: &Cid, suffix: &str) -> HeaderValue {
    header(&format!("\"{cid}{suffix}\""))
}
