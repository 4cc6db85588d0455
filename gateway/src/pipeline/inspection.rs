//! Inspection and invalidation of a running gateway, for the admin API.
//!
//! Queries use the same code as requests: [`Gateway::looking`] makes a second gateway from the same parts, which uses
//! local blocks only, adds nothing to caches, and has metrics of its own.

use super::{Gateway, Wiring};
use crate::errors::Problem;
use crate::invalidate::PurgeMode;
use crate::metrics::HttpMetrics;
use crate::represent::Resources;
use crate::represent::encoded::Encoded;
use crate::request::Ask;
use crate::request::client::Client;
use crate::request::route::Route;
use crate::resolve::source::{RootSource, Sources};
use crate::resolve::{Entity, Target};
use content::walk::Resolved;
use content::{BlockSource, Cid, ContentPath, MemoryBlocks, NameResolver, Policy, cid};
use http::HeaderValue;
use prometheus_client::registry::Registry;
use services::health::Health;
use services::limiter::Limiter;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// The number of cache entries that a purge invalidated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InvalidatedEntries {
    /// Resolved paths.
    pub paths: u64,
    /// Pages of listings.
    pub listings: u64,
    /// Sites' `_redirects`.
    pub sites: u64,
    /// Files with a known content encoding.
    pub encoded: u64,
}

impl Gateway {
    /// A read-only view of the gateway: with the blocks of `local` only and the names of `names`. It reads this
    /// gateway's path cache, and adds nothing to it.
    #[must_use]
    pub fn local_view(&self, http: &config::Http, local: Arc<dyn BlockSource>, names: Arc<dyn NameResolver>) -> Self {
        let wiring = Wiring {
            sources: Arc::new(Sources {
                local,
                open_session: Box::new(|_: &Cid, _| Arc::new(MemoryBlocks::new())),
                fetches: Arc::new(Limiter::new(1, 1)),
                policy: Arc::clone(&self.policy),
            }),
            encoded: None,
            names,
            policy: Arc::clone(&self.policy),
            metrics: Arc::new(HttpMetrics::register(&mut Registry::default())),
            health: Arc::<Health>::clone(&self.health),
            routing: None,
            welcome: self.welcome,
        };
        let view = Self::new(wiring, http, self.limits().clone());
        let resources = Resources { workers: self.resources.workers.clone(), ..view.resources };
        let plain_files = Arc::clone(&self.plain_files);
        Self { paths: self.paths.reader(), resources, plain_files, ..view }
    }

    /// The route of a request.
    ///
    /// # Errors
    /// [`Problem`] when the request has no route.
    pub async fn lead(&self, client: &Client, ask: &mut Ask<'_>) -> Result<Route, Problem> {
        Ok(self.router.route(client, ask).await?)
    }

    /// Parses a request's path.
    ///
    /// # Errors
    /// [`Problem::Request`] when the path is invalid.
    pub fn read_path(&self, ask: &Ask<'_>) -> Result<ContentPath, Problem> {
        self.parse(ask)
    }

    /// The cached resolution of a path, of any generation of the policy.
    pub fn cached_path(&self, key: &str) -> Option<Arc<Entity>> {
        self.paths.find(key)
    }

    /// Resolves a path with local blocks only.
    ///
    /// # Errors
    /// [`Problem`] when a block is not stored locally, or the path cannot be resolved.
    pub async fn resolve_locally(&self, target: &Target) -> Result<Resolved, Problem> {
        let nobody = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let source = RootSource::new(&self.sources, target.root, nobody, true);
        crate::resolve::walk(&source, target).await
    }

    /// The cache of encoded files.
    pub fn encoded(&self) -> Option<&Encoded> {
        self.resources.encoded.as_ref()
    }

    /// At most `max` cached paths that lead to or through a block. Scans the whole cache, so it must not run on the
    /// runtime's threads.
    pub fn paths_through(&self, cid: &Cid, max: usize) -> Vec<String> {
        let hash = cid.hash();
        let leads_through = |roots: &HeaderValue| {
            let roots = roots.to_str().unwrap_or_default().split(',');
            roots.filter_map(|root| cid::parse(root).ok()).any(|root| root.hash() == hash)
        };
        self.paths.keys_where(|_, entity| entity.cid.hash() == hash || leads_through(&entity.roots), max)
    }

    /// The policy.
    pub fn policy(&self) -> &Arc<dyn Policy> {
        &self.policy
    }

    /// Invalidates the cached paths that begin at, lead through or end in content that `concerns` selects. Scans all
    /// caches, so it must not run on the runtime's threads.
    pub fn purge(&self, concerns: &dyn Fn(&Cid) -> bool, mode: PurgeMode) -> InvalidatedEntries {
        let leads_through = |roots: &HeaderValue| {
            let roots = roots.to_str().unwrap_or_default().split(',');
            roots.filter_map(|root| cid::parse(root).ok()).any(|root| concerns(&root))
        };
        let begins_at = |path: &str| {
            let root = path.strip_prefix("/ipfs/").and_then(|below| below.split('/').next());
            root.and_then(|root| cid::parse(root).ok()).is_some_and(|root| concerns(&root))
        };
        let entity = |path: &str, entity: &Entity| {
            concerns(&entity.root) || concerns(&entity.cid) || leads_through(&entity.roots) || begins_at(path)
        };
        InvalidatedEntries {
            paths: self.paths.invalidate_where(entity, mode),
            listings: self
                .resources
                .listings
                .invalidate_where(|key, page| begins_at(&key.path) || leads_through(&page.roots), mode),
            sites: self.resources.redirects.invalidate_where(begins_at, mode),
            encoded: self.encoded().map_or(0, |encoded| encoded.invalidate_where(concerns, mode)),
        }
    }
}
