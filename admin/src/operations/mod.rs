//! Operating a running gateway: inspecting its state, and changing it.
//!
//! | module | requests |
//! |---|---|
//! | [`purge`] | `POST /api/v1/purge` |
//! | [`names`] | `POST /api/v1/names/refresh` |
//! | [`warm`] | `POST /api/v1/warm` |
//! | [`explain`] | `GET /api/v1/explain` |
//! | [`peers`] | `GET /api/v1/peers`, `POST …/connect`, `DELETE …/ID`, `GET /api/v1/bandwidth` |
//! | [`requests`] | `GET /api/v1/requests`, `GET …/errors` |
//! | [`collect`] | `POST /api/v1/store/gc` |
//! | [`drain`] | `POST`, `DELETE /api/v1/drain` |
//! | [`level`] | `GET`, `PUT /api/v1/log/level` |
//! | [`settings`] | `GET /api/v1/config` |
//! | [`site`] | `GET /api/v1/site`, `POST …/reconcile` |
//! | [`live`] | `GET /api/v1/stats`, `GET /api/v1/events` |
//! | [`health`] | `GET /api/v1/health` |
//! | [`history`] | `GET /api/v1/history` |
//! | `system` | the resource usage of the process, and the space of its disk |
//! | [`node`] | `GET /api/v1/node` |
//!
//! Goals: every answer comes from the components themselves, and every decision from the code that serves requests;
//! nothing but a sample of counters every five seconds costs anything while no client asks; every answer is bounded.
//!
//! Non-goals: maintenance of the store ([`crate::store`]), and denylists ([`crate::denylists`]).

pub mod collect;
pub mod drain;
pub mod explain;
pub mod health;
pub mod history;
pub mod level;
pub mod live;
pub mod names;
pub mod node;
pub mod peers;
pub mod purge;
pub mod requests;
pub mod settings;
pub mod site;
mod system;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod warm;

use crate::http::answer::ApiError;
use crate::http::long_running;
use axum::http::StatusCode;
use cache::{BlockStore, Tiers};
use config::{ListenAddress, Loaded};
use content::Cid;
use gateway::metrics::HttpMetrics;
use gateway::pipeline::Gateway;
use gateway::resolve::source::Sources;
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::{Bridge, Names};
use services::access::Principal;
use services::access::authenticator::PrincipalLookup;
use services::front_caches::Caches;
use services::health::Health;
use services::limiter::{Limiter, Permit};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The maximum number of concurrent long-running operations.
pub const OPERATIONS_MAX: usize = 8;

/// Counts the pins by status.
pub type PinCounts = Arc<dyn Fn() -> BTreeMap<String, u64> + Send + Sync>;

/// Finds the denylist and line that decide about a path below a root, or about the root's block if the path is empty.
pub type RuleLookup = Arc<dyn Fn(&Cid, &str) -> Option<String> + Send + Sync>;

/// The addresses of a node, which it prints when it is ready.
#[derive(Debug, Clone)]
pub struct NodeAddresses {
    /// The public listeners, as bound.
    pub gateway: Vec<ListenAddress>,
    /// The public listeners with TLS, as bound.
    pub gateway_tls: Vec<ListenAddress>,
    /// The admin listeners, as bound.
    pub admin: Vec<ListenAddress>,
    /// The scheme of the admin listeners on TCP: `http` or `https`.
    pub admin_scheme: &'static str,
    /// Whether the admin listeners have the console.
    pub console: bool,
    /// The node's peer ID.
    pub peer_id: PeerId,
    /// The multiaddrs on which peers reach the node; none in offline mode.
    pub p2p: Vec<Multiaddr>,
    /// The names that had no certificate by ACME when the node started.
    pub missing_certificates: Vec<String>,
    /// The root of the welcome site, unless it is switched off or unpinned.
    pub welcome: Option<Cid>,
}

/// The components of a node that operations read and change.
pub struct Dependencies {
    /// The public gateway.
    pub gateway: Arc<Gateway>,
    /// The local tiers.
    pub tiers: Tiers,
    /// The sources of blocks that operations fetch, with a fetch limiter of their own.
    pub sources: Arc<Sources>,
    /// The name resolver.
    pub names: Arc<Names>,
    /// The network, unless the node is offline.
    pub bridge: Option<Bridge>,
    /// The health of the process.
    pub health: Arc<Health>,
    /// The request metrics.
    pub metrics: Arc<HttpMetrics>,
    /// The settings, with the origin of each.
    pub loaded: Arc<Loaded>,
    /// The addresses of the node.
    pub addresses: NodeAddresses,
    /// Cancelled to stop the process.
    pub stop: CancellationToken,
    /// Counts pins.
    pub pins: Option<PinCounts>,
    /// The site, if the gateway belongs to one.
    pub site: Option<site::SiteOperations>,
    /// Finds the denylist that decides about content.
    pub decide: Option<RuleLookup>,
    /// Caches in front of the gateway.
    pub caches: Caches,
    /// Finds the current principals of tokens, for answers that last.
    pub principals: PrincipalLookup,
    /// The components that only the health of the node reads.
    pub health_sources: health::HealthSources,
}

/// The state of the operations. Clones share it.
#[derive(Clone)]
pub struct Operations {
    inner: Arc<Inner>,
}

struct Inner {
    parts: Dependencies,
    /// A gateway that reads only locally stored blocks and cached names.
    local_gateway: Gateway,
    /// A gateway that reads only locally stored blocks, and resolves names.
    resolving_gateway: Gateway,
    limiter: Arc<Limiter>,
    live: live::Live,
    history: history::History,
    system: system::SystemProbe,
    /// The start of the process.
    started: (SystemTime, Instant),
}

impl Operations {
    /// Operations on a node with these components.
    pub fn new(parts: Dependencies) -> Self {
        let Dependencies { gateway, tiers, names, loaded, .. } = &parts;
        let local_gateway = gateway.local_view(&loaded.config.http, Arc::new(tiers.local()), names.cache_only());
        let resolving_gateway =
            gateway.local_view(&loaded.config.http, Arc::new(tiers.local()), Arc::clone(names) as _);
        let limiter = Arc::new(Limiter::shared(OPERATIONS_MAX));
        let started = (SystemTime::now(), Instant::now());
        Self {
            inner: Arc::new(Inner {
                parts,
                local_gateway,
                resolving_gateway,
                limiter,
                live: live::Live::default(),
                history: history::History::default(),
                system: system::SystemProbe::default(),
                started,
            }),
        }
    }

    fn parts(&self) -> &Dependencies {
        &self.inner.parts
    }

    fn store(&self) -> &Arc<dyn BlockStore> {
        self.parts().tiers.store()
    }

    /// The maximum number of blocks that a traversal visits.
    fn dag_blocks_max(&self) -> usize {
        usize::try_from(self.parts().loaded.config.http.dag_blocks_max).unwrap_or(usize::MAX)
    }

    /// The network.
    fn bridge(&self) -> Result<&Bridge, ApiError> {
        let message = "the gateway is offline: it has no peers and sends no requests to the network (p2p.offline)";
        self.parts().bridge.as_ref().ok_or_else(|| ApiError(StatusCode::CONFLICT, message.to_owned()))
    }

    /// A permit for a long-running operation.
    fn begin(&self, bearer: &Principal) -> Result<Permit, ApiError> {
        long_running::acquire(&self.inner.limiter, bearer, || {
            format!("{OPERATIONS_MAX} operations are running: try again when one has ended")
        })
    }
}

/// The routes that have a timeout.
pub fn routes(operations: Operations) -> OpenApiRouter {
    OpenApiRouter::default()
        .routes(routes!(peers::list))
        .routes(routes!(peers::disconnect))
        .routes(routes!(peers::bandwidth))
        .routes(routes!(requests::list))
        .routes(routes!(requests::errors))
        .routes(routes!(drain::begin, drain::end))
        .routes(routes!(level::read, level::write))
        .routes(routes!(settings::read))
        .routes(routes!(live::stats))
        .routes(routes!(history::read))
        .routes(routes!(health::read))
        .routes(routes!(node::read))
        .routes(routes!(site::read))
        .with_state(operations)
}

/// The long-running routes, which have no timeout.
pub fn long_running_routes(operations: Operations) -> OpenApiRouter {
    OpenApiRouter::default()
        .routes(routes!(purge::purge))
        .routes(routes!(names::refresh))
        .routes(routes!(warm::warm))
        .routes(routes!(explain::explain))
        .routes(routes!(peers::connect))
        .routes(routes!(collect::collect))
        .routes(routes!(site::reconcile))
        .routes(routes!(live::events))
        .with_state(operations)
}
