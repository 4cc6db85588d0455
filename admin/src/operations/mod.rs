//! What an operator does with a gateway that runs: looks into it, and changes how it goes on.
//!
//! | module | requests |
//! |---|---|
//! | [`purge`] | `POST /api/v1/purge` |
//! | [`names`] | `POST /api/v1/names/refresh` |
//! | [`warm`] | `POST /api/v1/warm` |
//! | [`explain`] | `GET /api/v1/explain` |
//! | [`peers`] | `GET /api/v1/peers`, `POST /api/v1/peers/connect`, `DELETE /api/v1/peers/ID`, `GET /api/v1/bandwidth` |
//! | [`requests`] | `GET /api/v1/requests` |
//! | [`collect`] | `POST /api/v1/store/gc` |
//! | [`drain`] | `POST`, `DELETE /api/v1/drain` |
//! | [`level`] | `GET`, `PUT /api/v1/log/level` |
//! | [`settings`] | `GET /api/v1/config` |
//! | [`live`] | `GET /api/v1/stats`, `GET /api/v1/events` |
//! | [`node`] | `GET /api/v1/node` |
//! | `dag` | the blocks of a DAG, as far as they are wanted |
//!
//! Goals: whatever is told is what the parts themselves say, and whatever is decided is decided by the code that
//! requests go through; nothing here costs anything as long as nobody asks; every answer is bounded.
//!
//! Non-goals: the store's own upkeep ([`crate::store`]), and what may be served.

pub mod collect;
mod dag;
pub mod drain;
pub mod explain;
pub mod level;
pub mod live;
pub mod names;
pub mod node;
pub mod peers;
pub mod purge;
pub mod requests;
pub mod settings;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod warm;

use crate::http::answer::Refusal;
use crate::http::long;
use axum::http::StatusCode;
use cache::{BlockStore, Tiers};
use config::Loaded;
use content::Cid;
use gateway::metrics::HttpMetrics;
use gateway::pipeline::Gateway;
use gateway::resolve::source::Sources;
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::{Bridge, Names};
use services::access::Principal;
use services::front_caches::Caches;
use services::health::Health;
use services::limiter::{Limiter, Permit};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Operations that take long, at a time.
pub const OPERATIONS_MAX: usize = 8;

/// How many pins there are, by their status.
pub type PinCounts = Arc<dyn Fn() -> BTreeMap<String, u64> + Send + Sync>;

/// Says which list decides about a path below a root, or about the root's block if there is no path, and in which line.
pub type Decider = Arc<dyn Fn(&Cid, &str) -> Option<String> + Send + Sync>;

/// Where a node is to be found: what is printed when it is ready.
#[derive(Debug, Clone)]
pub struct Places {
    /// The public listeners, as bound.
    pub gateway: Vec<SocketAddr>,
    /// The admin listeners, as bound.
    pub admin: Vec<SocketAddr>,
    /// How they are spoken to: `http` or `https`.
    pub admin_scheme: &'static str,
    /// The node's name among peers.
    pub peer_id: PeerId,
    /// Where peers reach it; none in offline mode.
    pub p2p: Vec<Multiaddr>,
    /// The root of the welcome site, unless it is switched off or unpinned.
    pub welcome: Option<Cid>,
}

/// The parts of a node that are looked into.
pub struct Parts {
    /// What answers the public.
    pub gateway: Arc<Gateway>,
    /// The local tiers.
    pub tiers: Tiers,
    /// Where blocks come from that are fetched here, with places on the way to the network of their own.
    pub sources: Arc<Sources>,
    /// What names stand for.
    pub names: Arc<Names>,
    /// The network, unless the node is offline.
    pub bridge: Option<Bridge>,
    /// How far along its life the process is.
    pub health: Arc<Health>,
    /// What is counted of requests.
    pub metrics: Arc<HttpMetrics>,
    /// The settings, and who set what.
    pub loaded: Arc<Loaded>,
    /// Where the node is to be found.
    pub places: Places,
    /// Told when the process is to end.
    pub stop: CancellationToken,
    /// Counts pins.
    pub pins: Option<PinCounts>,
    /// Which list decides about content.
    pub decide: Option<Decider>,
    /// Caches in front of the gateway.
    pub caches: Caches,
}

/// What operators do. Clones are the same.
#[derive(Clone)]
pub struct Operations {
    inner: Arc<Inner>,
}

struct Inner {
    parts: Parts,
    /// The gateway for whoever only looks.
    looking: Gateway,
    /// The same, which has names looked up.
    resolving: Gateway,
    limiter: Arc<Limiter>,
    live: live::Live,
    /// When all of it began.
    since: (SystemTime, Instant),
}

impl Operations {
    /// Operations on a node of these parts.
    pub fn new(parts: Parts) -> Self {
        let Parts { gateway, tiers, names, loaded, .. } = &parts;
        let looking = gateway.looking(&loaded.config.http, Arc::new(tiers.local()), names.known_only());
        let resolving = gateway.looking(&loaded.config.http, Arc::new(tiers.local()), Arc::clone(names) as _);
        let limiter = Arc::new(Limiter::shared(OPERATIONS_MAX));
        let since = (SystemTime::now(), Instant::now());
        Self { inner: Arc::new(Inner { parts, looking, resolving, limiter, live: live::Live::default(), since }) }
    }

    fn parts(&self) -> &Parts {
        &self.inner.parts
    }

    fn store(&self) -> &Arc<dyn BlockStore> {
        self.parts().tiers.disk()
    }

    /// The network.
    fn bridge(&self) -> Result<&Bridge, Refusal> {
        let words = "the gateway is offline: it has no peers and asks nobody (p2p.offline)";
        self.parts().bridge.as_ref().ok_or_else(|| Refusal(StatusCode::CONFLICT, words.to_owned()))
    }

    /// A permit for an operation that takes long.
    fn begin(&self, bearer: &Principal) -> Result<Permit, Refusal> {
        long::place(&self.inner.limiter, bearer, || {
            format!("{OPERATIONS_MAX} operations are under way: try again when one has ended")
        })
    }
}

/// The routes whose answers are at hand.
pub fn routes(operations: Operations) -> OpenApiRouter {
    OpenApiRouter::default()
        .routes(routes!(peers::list))
        .routes(routes!(peers::disconnect))
        .routes(routes!(peers::bandwidth))
        .routes(routes!(requests::list))
        .routes(routes!(drain::begin, drain::end))
        .routes(routes!(level::read, level::write))
        .routes(routes!(settings::read))
        .routes(routes!(live::stats))
        .routes(routes!(node::read))
        .with_state(operations)
}

/// The routes that may take as long as they need.
pub fn long_routes(operations: Operations) -> OpenApiRouter {
    OpenApiRouter::default()
        .routes(routes!(purge::purge))
        .routes(routes!(names::refresh))
        .routes(routes!(warm::warm))
        .routes(routes!(explain::explain))
        .routes(routes!(peers::connect))
        .routes(routes!(collect::collect))
        .routes(routes!(live::events))
        .with_state(operations)
}
