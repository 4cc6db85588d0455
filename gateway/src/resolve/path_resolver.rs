//! [`PathResolver`]: path resolution with singleflight: concurrent requests for a path share one call.
//!
//! The waiting rule is that of [`cache::singleflight`]: a call lives as long as a request waits for it. Each request
//! has its own source with its client's permit for the network; a call uses the leader's source, and followers need no
//! permit. After a leader-only error, such as a missing permit, a follower begins a new call.
//!
//! The key has everything that the result depends on: the path below its root CID, since errors name it; the purpose;
//! the policy's generation; and whether blocks may be fetched.
//!
//! The `_redirects` of sites are read in the same way, by the path to the site's root.
//!
//! Non-goals: caching, which [`crate::resolve::paths::Paths`] and [`SiteRedirects`] do.

use crate::errors::Problem;
use crate::resolve::redirects::SiteRedirects;
use crate::resolve::source::{RootSource, Tier};
use crate::resolve::{self, PathTarget, Target};
use cache::singleflight::{Singleflight, aside};
use content::BlockSource as _;
use content::redirects::{Match, Rules};
use content::walk::{Resolved, WalkError};
use futures::FutureExt as _;
use prometheus_client::metrics::counter::Counter;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

/// The result of a call, with the farthest tier that it read.
type SharedResult<T> = Result<(T, Tier), Problem>;

/// The key of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    path: Arc<str>,
    shows_index: bool,
    /// Requests with `only-if-cached` have calls of their own: they do not wait for the network, and their errors are
    /// not shared with other requests.
    local_only: bool,
    generation: u64,
}

/// The calls in progress.
pub struct PathResolver {
    targets: Singleflight<Key, SharedResult<PathTarget>>,
    blocks: Singleflight<Key, SharedResult<Resolved>>,
    rules: Singleflight<Key, SharedResult<Arc<Rules>>>,
    joined: Counter,
}

impl PathResolver {
    /// No calls. `joined` counts the followers.
    pub fn new(joined: Counter) -> Self {
        Self {
            targets: Singleflight::default(),
            blocks: Singleflight::default(),
            rules: Singleflight::default(),
            joined,
        }
    }

    /// Resolves a path: [`resolve::resolve`].
    ///
    /// # Errors
    /// The same.
    pub async fn resolve(
        &self,
        source: &Arc<RootSource>,
        target: &Target,
        generation: u64,
        shows_index: bool,
    ) -> Result<PathTarget, Problem> {
        let key = Key { shows_index, ..Key::of(source, target, generation) };
        let walk = |source: Arc<RootSource>| {
            let target = target.clone();
            async move { resolve::resolve(&source, &target, generation, shows_index).await }
        };
        self.singleflight(&self.targets, key, source, walk).await
    }

    /// The last block of a path, of any codec: [`resolve::walk()`].
    ///
    /// # Errors
    /// The same.
    pub async fn block(&self, source: &Arc<RootSource>, target: &Target, generation: u64) -> Result<Resolved, Problem> {
        let walk = |source: Arc<RootSource>| {
            let target = target.clone();
            async move { resolve::walk(&source, &target).await }
        };
        self.singleflight(&self.blocks, Key::of(source, target, generation), source, walk).await
    }

    /// The rules of the site at a path: [`SiteRedirects::rules`].
    ///
    /// # Errors
    /// The same.
    async fn rules(
        &self,
        redirects: &SiteRedirects,
        source: &Arc<RootSource>,
        site: &Target,
        generation: u64,
    ) -> Result<Arc<Rules>, Problem> {
        let walk = |source: Arc<RootSource>| {
            let (redirects, site) = (redirects.clone(), site.clone());
            async move { redirects.rules(&source, &site, generation).await }
        };
        self.singleflight(&self.rules, Key::of(source, site, generation), source, walk).await
    }

    /// The site's rule for a missing path, if it has one.
    ///
    /// # Errors
    /// Those of [`SiteRedirects::rules`].
    pub async fn rule(
        &self,
        redirects: &SiteRedirects,
        source: &Arc<RootSource>,
        target: &Target,
        generation: u64,
    ) -> Result<Option<Match>, Problem> {
        let site = target.to_site();
        let rules = match redirects.cached(&site, generation) {
            Some(rules) => rules.map_err(Problem::Redirects)?,
            None => self.rules(redirects, source, &site, generation).await?,
        };
        let asked = target.segments.iter().skip(target.site);
        let path: String = asked.flat_map(|segment| ["/", segment]).collect();
        let work = source.work();
        let found = rules.find(if path.is_empty() { "/" } else { &path }, &work);
        work.turn().await.map_err(WalkError::Source)?;
        Ok(found)
    }

    /// The number of calls in progress.
    pub fn under_way(&self) -> usize {
        self.targets.under_way() + self.blocks.under_way() + self.rules.under_way()
    }

    async fn singleflight<T, F>(
        &self,
        flights: &Singleflight<Key, SharedResult<T>>,
        key: Key,
        source: &Arc<RootSource>,
        walk: impl Fn(Arc<RootSource>) -> F,
    ) -> Result<T, Problem>
    where
        T: Clone + Send + Sync + 'static,
        F: Future<Output = Result<T, Problem>> + Send + 'static,
    {
        let joined_at = Instant::now();
        let begin = || {
            let (source, walk) = (Arc::clone(source), walk(Arc::clone(source)));
            aside(async move { walk.await.map(|found| (found, source.tier())) })
                .map(|result| result.unwrap_or_else(|| Err(Problem::closed())))
        };
        let call = flights.join(key.clone(), begin);
        if call.1 {
            self.joined.inc();
            source.trace().into_iter().for_each(|trace| trace.follows_call());
        }
        let retries = |result: &SharedResult<T>| {
            result.as_ref().is_err_and(|problem| problem.is_leader_only(joined_at.elapsed()))
        };
        let (found, tier) = flights.land(key, call, begin, retries).await.0?;
        source.record_tier(tier);
        Ok(found)
    }
}

impl Key {
    fn of(source: &RootSource, target: &Target, generation: u64) -> Self {
        Self { path: target.key().into(), shows_index: false, local_only: source.is_local_only(), generation }
    }
}

impl std::fmt::Debug for PathResolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PathResolver").field("under_way", &self.under_way()).finish_non_exhaustive()
    }
}
