//! The representations that content has, one file for each.
//!
//! | module | formats |
//! |---|---|
//! | [`mod@file`] | files, symlinks and raw blocks: bytes of a known length, in ranges |
//! | [`directory`] | listings, as HTML and as JSON |
//! | [`document`] | dag-json, dag-cbor, json and cbor, and the page that shows them |
//! | [`archive`] | CAR and TAR |
//! | [`whole`] | the blocks of an archive, in which nothing may be withheld |
//! | [`record`] | IPNS records |
//!
//! What they have in common:
//!
//! | module | concern |
//! |---|---|
//! | [`plan`] | status and headers, decided from the conditions and ranges of the request |
//! | [`listings`] | the cache of listings: each page is written once |
//! | [`encoded`] | files as zstd, gzip or brotli, made from their blocks as they are stored |

pub mod archive;
pub mod directory;
pub mod document;
pub mod encoded;
pub mod file;
pub mod listings;
pub mod plan;
pub mod record;
pub mod whole;

use crate::errors::Problem;
use crate::limits::Limits;
use crate::represent::encoded::Encoded;
use crate::represent::listings::Listings;
use crate::represent::plan::About;
use crate::request::Ask;
use crate::request::route::Place;
use crate::resolve::Target;
use crate::resolve::redirects::SiteRedirects;
use crate::resolve::source::RootSource;
use crate::resolve::walks::Walks;
use crate::workers::Workers;
use content::walk::Resolved;
use http::HeaderValue;
use services::limiter::{Limiter, Permit};
use std::net::IpAddr;
use std::sync::Arc;

/// What representations are made with: caches, shared walks, and limits.
pub struct Resources {
    /// The walks under way.
    pub walks: Walks,
    /// The cached `_redirects` of sites.
    pub redirects: SiteRedirects,
    /// The cached pages of listings.
    pub listings: Listings,
    /// Files as their blocks are stored, for clients that accept their coding.
    pub encoded: Option<Encoded>,
    /// Archives that are made at a time.
    pub archives: Arc<Limiter>,
    /// Where answers are made that are not just read.
    pub workers: Workers,
    /// What a request may cost.
    pub limits: Limits,
}

impl Resources {
    /// A permit for one more archive for a client.
    ///
    /// # Errors
    /// [`Problem::Busy`] when as many are being made as may be.
    pub fn begin_archive(&self, client: IpAddr) -> Result<Permit, Problem> {
        self.archives.try_acquire(client).map_err(|_| Problem::Busy)
    }
}

/// One request for content, as far as it has come: what every representation needs to know.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// What representations are made with.
    pub resources: &'a Resources,
    /// The request.
    pub ask: &'a Ask<'a>,
    /// Where the content is shown.
    pub place: &'a Place,
    /// The path that is walked.
    pub target: &'a Target,
    /// Whether that is the path that was asked for, and not another one that the site's rules put in its place.
    pub as_asked: bool,
    /// Where its blocks come from.
    pub source: &'a Arc<RootSource>,
    /// The policy's generation when the request came.
    pub generation: u64,
}

impl<'a> Context<'a> {
    /// What a head says of the request.
    pub fn about(&self, roots: &'a HeaderValue) -> About<'a> {
        About { ask: self.ask, freshness: self.target.freshness, roots, tier: self.source.tier() }
    }

    /// The last block of the path, whatever that is.
    ///
    /// # Errors
    /// [`Problem`] when the path leads nowhere or a block does not come.
    pub async fn walk(&self) -> Result<Resolved, Problem> {
        self.resources.walks.block(self.source, self.target, self.generation).await
    }
}
