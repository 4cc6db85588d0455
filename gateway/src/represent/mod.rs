//! Representations of content: one module each.
//!
//! | module | formats |
//! |---|---|
//! | [`mod@file`] | files, symlinks and raw blocks: bytes of a known length, in ranges |
//! | [`directory`] | listings, as HTML and as JSON |
//! | [`document`] | dag-json, dag-cbor, json and cbor, and the page that shows them |
//! | [`archive`] | CAR and TAR |
//! | [`whole`] | the blocks of an archive, checked against the policy |
//! | [`record`] | IPNS records |
//!
//! Shared by them:
//!
//! | module | concern |
//! |---|---|
//! | [`plan`] | status and headers, decided from the conditions and ranges of the request |
//! | [`listings`] | the cache of listings: each page is generated once |
//! | [`encoded`] | files, raw blocks and CARs as zstd, made from blocks as they are stored; files as gzip or brotli |

pub mod archive;
pub mod directory;
pub mod document;
pub mod encoded;
pub mod file;
pub mod listings;
pub mod plan;
pub mod record;
pub mod whole;

use crate::body::Content;
use crate::errors::Problem;
use crate::headers::header;
use crate::limits::{ClientMemory, RequestLimits};
use crate::represent::archive::CarOptions;
use crate::represent::encoded::Encoded;
use crate::represent::listings::Listings;
use crate::represent::plan::About;
use crate::request::Ask;
use crate::request::client::Client;
use crate::request::negotiate::{Coding, Format, accepts_zstd};
use crate::request::range;
use crate::request::route::Place;
use crate::resolve::path_resolver::PathResolver;
use crate::resolve::redirects::SiteRedirects;
use crate::resolve::source::{RootSource, Tier};
use crate::resolve::{Target, etag_of};
use crate::respond::Draft;
use crate::running::{Phase, Step};
use crate::workers::Workers;
use content::scope::{DagScope, ScopeOptions};
use content::walk::{Purpose, Resolved};
use http::HeaderValue;
use http::header::{IF_NONE_MATCH, RANGE};
use services::limiter::{Limiter, Permit};
use std::net::IpAddr;
use std::sync::Arc;

/// The resources of representations: caches, shared path resolutions, and limits.
pub struct Resources {
    /// Path resolutions in progress.
    pub path_resolver: PathResolver,
    /// The cached `_redirects` of sites.
    pub redirects: SiteRedirects,
    /// The cached pages of listings.
    pub listings: Listings,
    /// The cache of encoded files, for clients that accept a coding.
    pub encoded: Option<Encoded>,
    /// Limits concurrent archives.
    pub archives: Arc<Limiter>,
    /// Threads for CPU-bound responses.
    pub workers: Workers,
    /// The limits of a request.
    pub limits: RequestLimits,
}

impl Resources {
    /// A permit for an archive of a client.
    ///
    /// # Errors
    /// [`Problem::Busy`] when the limit of concurrent archives is reached.
    pub fn begin_archive(&self, client: IpAddr) -> Result<Permit, Problem> {
        self.archives.try_acquire(client).map_err(|_| Problem::Busy { retry_after: self.archives.retry_after() })
    }
}

/// The state of a request for content.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The resources of representations.
    pub resources: &'a Resources,
    /// The request.
    pub ask: &'a Ask<'a>,
    /// The origin in which the content is shown.
    pub place: &'a Place,
    /// The client.
    pub client: &'a Client,
    /// The path to resolve.
    pub target: &'a Target,
    /// Whether this is the requested path, and not the target of a site's rewrite rule.
    pub is_requested_path: bool,
    /// The source of its blocks.
    pub source: &'a Arc<RootSource>,
    /// The policy's generation at the start of the request.
    pub generation: u64,
    /// The state of the request, whose steps may be timed.
    pub phase: &'a Phase,
}

impl<'a> Context<'a> {
    /// The common data of response heads.
    pub fn about(&self, roots: &'a HeaderValue) -> About<'a> {
        About { ask: self.ask, freshness: self.target.freshness, roots, tier: self.source.tier() }
    }

    /// The memory of the client for response bodies.
    pub fn memory(&self) -> ClientMemory<'a> {
        self.source.memory(&self.resources.limits)
    }

    /// The last block of the path, of any codec.
    ///
    /// # Errors
    /// [`Problem`] when the path cannot be resolved or a block cannot be fetched.
    pub async fn walk(&self) -> Result<Resolved, Problem> {
        let resolved = self.resources.path_resolver.block(self.source, self.target, self.generation).await?;
        self.phase.ended(Step::Path);
        Ok(resolved)
    }
}

/// What the response to a request needs at the end of its path, as far as that is known before the path is resolved.
pub fn purpose(ask: &Ask<'_>) -> Purpose {
    let of_scope = |scope, entity_bytes| ScopeOptions { scope, entity_bytes, duplicates: false };
    let scope = match ask.wanted.format {
        // A directory is answered with a redirect, or its `index.html` is looked up first. Its listing requests the
        // shards itself.
        Format::Native | Format::Cbor if !ask.head_only => {
            of_scope(DagScope::File, range::single(ask.headers.get(RANGE)))
        }
        Format::Json if !ask.head_only => of_scope(DagScope::Entity, range::single(ask.headers.get(RANGE))),
        Format::Car if !ask.head_only => {
            CarOptions::of(ask).map_or_else(|_| of_scope(DagScope::Block, None), |options| options.scope_options())
        }
        Format::Tar if !ask.head_only => of_scope(DagScope::All, None),
        _ => of_scope(DagScope::Block, None),
    };
    Purpose { scope, further: None }
}

/// The content at a bare CID has this CID as its entity tag, so 304 needs no block. The root must be stored locally: a
/// condition applies to the response that would be sent (RFC 9110, section 13.1.2), and without the content that would
/// be an error.
pub fn not_modified_by_cid(ask: &Ask<'_>, target: &Target) -> Option<Draft> {
    if !target.segments.is_empty() || !ask.headers.contains_key(IF_NONE_MATCH) {
        return None;
    }
    let cid = &target.root;
    let tags = match ask.wanted.format {
        Format::Native => match document::native_format(cid) {
            Some(_) if document::shows_preview(ask) => vec![(document::preview_etag(cid), true)],
            Some(native) => vec![(document::etag(cid, native), false)],
            None => vec![(etag_of(cid, ""), false), (directory::etag(cid), true)],
        },
        Format::Raw => {
            let plain = file::raw_etag(cid);
            let encoded = plan::encoded_etag(&plain, Coding::Zstd);
            let accepted = accepts_zstd(ask.headers) && plan::may_be_encoded(ask);
            [Some((plain, false)), accepted.then_some((encoded, false))].into_iter().flatten().collect()
        }
        _ => return None,
    };
    let roots = header(&cid.to_string());
    let about = About { ask, freshness: target.freshness, roots: &roots, tier: Tier::Ram };
    let head = tags.into_iter().find_map(|(etag, generated)| plan::not_modified_unseen(&about, &etag, generated))?;
    Some(head.map(|()| Content::Empty))
}
