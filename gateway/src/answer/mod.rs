//! The representations that content has, one file for each.
//!
//! | module | formats |
//! |---|---|
//! | [`file`] | files, symlinks and raw blocks: bytes of a known length, in ranges |
//! | [`directory`] | listings, as HTML and as JSON |
//! | [`selection`] | which entries of a directory a listing shows, and in which order |
//! | [`document`] | dag-json, dag-cbor, json and cbor, and the page that shows them |
//! | [`archive`] | CAR and TAR |
//! | [`whole`] | the blocks of an archive, in which nothing may be withheld |
//! | [`record`] | IPNS records |
//! | [`site`] | what `_redirects` says of a path that is not there |

pub mod archive;
pub mod directory;
pub mod document;
pub mod file;
pub mod record;
pub mod selection;
pub mod site;
pub mod whole;

use crate::errors::Problem;
use crate::pipeline::Gateway;
use crate::plan::About;
use crate::request::Ask;
use crate::resolve::Target;
use crate::route::Place;
use crate::source::RootSource;
use content::walk::Resolved;
use http::HeaderValue;
use std::sync::Arc;

/// One request for content, as far as it has come: what every representation needs to know.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// What answers.
    pub gateway: &'a Gateway,
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
        self.gateway.walks.block(self.source, self.target, self.generation).await
    }
}
