//! [`Walks`]: one walk for one path, however many ask for it at the same time.
//!
//! The waiting rule is that of [`cache::flight`]: a walk lives for as long as anybody waits for it, whoever began it. Each
//! request has a source of its own, with its client's places on the way to the network; a walk goes by that of whoever began
//! it, and the others need no place. That it had none is no answer for them: one of them begins anew.
//!
//! What tells walks apart is all that their outcome depends on: the path below its root CID, so that an error names what
//! everybody asked for; what it is walked for; the policy's generation; and whether anything may be fetched for it.
//!
//! What a site says of paths that are not there is read in the same way, by the path to the site's root.
//!
//! Non-goals: remembering what was found, which [`crate::resolve::paths::Paths`] and [`SiteRedirects`] do.

use crate::errors::Problem;
use crate::resolve::redirects::SiteRedirects;
use crate::resolve::source::{RootSource, Tier};
use crate::resolve::{self, Found, Target};
use cache::flight::{Flights, aside};
use content::BlockSource as _;
use content::redirects::{Match, Rules};
use content::walk::{Resolved, WalkError};
use futures::FutureExt as _;
use prometheus_client::metrics::counter::Counter;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

/// What a walk ends with, and how far it had to go for that.
type Walked<T> = Result<(T, Tier), Problem>;

/// What tells one walk from another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    path: Arc<str>,
    shows_index: bool,
    /// Those who want nothing fetched have walks of their own: they wait for no network, and nobody else hears from them
    /// that something is not held here.
    local_only: bool,
    generation: u64,
}

/// The walks under way.
pub struct Walks {
    found: Flights<Key, Walked<Found>>,
    blocks: Flights<Key, Walked<Resolved>>,
    rules: Flights<Key, Walked<Arc<Rules>>>,
    joined: Counter,
}

impl Walks {
    /// None yet. `joined` counts the requests that waited for a walk which another one had begun.
    pub fn new(joined: Counter) -> Self {
        Self { found: Flights::default(), blocks: Flights::default(), rules: Flights::default(), joined }
    }

    /// What a path leads to: [`resolve::resolve`].
    ///
    /// # Errors
    /// The same.
    pub async fn find(
        &self,
        source: &Arc<RootSource>,
        target: &Target,
        generation: u64,
        shows_index: bool,
    ) -> Result<Found, Problem> {
        let key = Key { shows_index, ..Key::of(source, target, generation) };
        let walk = |source: Arc<RootSource>| {
            let target = target.clone();
            async move { resolve::resolve(&source, &target, generation, shows_index).await }
        };
        self.together(&self.found, key, source, walk).await
    }

    /// The last block of a path, whatever that is: [`resolve::walk`].
    ///
    /// # Errors
    /// The same.
    pub async fn block(&self, source: &Arc<RootSource>, target: &Target, generation: u64) -> Result<Resolved, Problem> {
        let walk = |source: Arc<RootSource>| {
            let target = target.clone();
            async move { resolve::walk(&source, &target).await }
        };
        self.together(&self.blocks, Key::of(source, target, generation), source, walk).await
    }

    /// What the site at a path says of paths that are not there: [`SiteRedirects::rules`].
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
        self.together(&self.rules, Key::of(source, site, generation), source, walk).await
    }

    /// The rule of the site's `_redirects` for the path, if it has one.
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
        let rules = match redirects.known(&site, generation) {
            Some(said) => said.map_err(Problem::Redirects)?,
            None => self.rules(redirects, source, &site, generation).await?,
        };
        let asked = target.segments.iter().skip(target.site);
        let path: String = asked.flat_map(|segment| ["/", segment]).collect();
        let work = source.work();
        let found = rules.find(if path.is_empty() { "/" } else { &path }, &work);
        work.turn().await.map_err(WalkError::Source)?;
        Ok(found)
    }

    /// How many walks are under way.
    pub fn under_way(&self) -> usize {
        self.found.under_way() + self.blocks.under_way() + self.rules.under_way()
    }

    async fn together<T, F>(
        &self,
        flights: &Flights<Key, Walked<T>>,
        key: Key,
        source: &Arc<RootSource>,
        walk: impl Fn(Arc<RootSource>) -> F,
    ) -> Result<T, Problem>
    where
        T: Clone + Send + Sync + 'static,
        F: Future<Output = Result<T, Problem>> + Send + 'static,
    {
        let begun = Instant::now();
        let fly = || {
            let (source, walk) = (Arc::clone(source), walk(Arc::clone(source)));
            aside(async move { walk.await.map(|found| (found, source.tier())) })
                .map(|walked| walked.unwrap_or_else(|| Err(Problem::closed())))
        };
        let seat = flights.join(key.clone(), fly);
        if seat.1 {
            self.joined.inc();
        }
        let again = |walked: &Walked<T>| walked.as_ref().is_err_and(|problem| problem.is_leader_only(begun.elapsed()));
        let (found, tier) = flights.land(key, seat, fly, again).await.0?;
        source.reach(tier);
        Ok(found)
    }
}

impl Key {
    fn of(source: &RootSource, target: &Target, generation: u64) -> Self {
        Self { path: target.key().into(), shows_index: false, local_only: source.is_local_only(), generation }
    }
}

impl std::fmt::Debug for Walks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Walks").field("under_way", &self.under_way()).finish_non_exhaustive()
    }
}
