//! The peer-to-peer network: started, or left out in offline mode. No other module distinguishes the two.

use cache::{BlockStore, Held, Tiers};
use config::{ConfigError, Loaded};
use content::{Block, BlockSource, Cid, MemoryBlocks, NameResolver, Policy, ReadAhead, SourceError};
use futures::future::BoxFuture;
use gateway::resolve::owner::{AskOwner, OwnerSource};
use gateway::resolve::source::{OpenSession, PermitSource, Sources};
use gateway::routing_v1::finder::NetworkFinder;
use gateway::routing_v1::metrics::RoutingMetrics;
use gateway::routing_v1::{self, Routing};
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::member_lookup::MemberAddress;
use p2p_bridge::member_lookup::server::{Answering, OpenSession as OpenMemberSession};
use p2p_bridge::names::publish::{self, Publisher};
use p2p_bridge::names::store::NameStore;
use p2p_bridge::names::{Names, NamesOptions};
use p2p_bridge::network_policy::NetworkPolicy;
use p2p_bridge::options::ServeTo;
use p2p_bridge::{Bridge, BridgeOptions, KeySource, SessionObserver, StartError};
use prometheus_client::registry::Registry;
use services::limiter::Limiter;
use services::p2p;
use services::pinning::PinNetwork;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Creates a source of blocks that peers have below a root, with an observer if a request is traced.
type Upstream = dyn Fn(&Cid, Option<Arc<dyn SessionObserver>>) -> Arc<dyn BlockSource> + Send + Sync;

/// The other gateway of the site that owns a root.
pub type Owners = Arc<dyn Fn(&Cid) -> Option<MemberAddress> + Send + Sync>;

/// How the owner of a root is asked, if it is another gateway.
type OwnerOf = dyn Fn(&Cid) -> Option<Arc<AskOwner>> + Send + Sync;

/// The network, or offline mode.
pub enum Network {
    /// Offline mode: no peers are contacted. The node has an identity all the same.
    Offline(PeerId),
    /// Connected to the network.
    Online(Bridge),
}

impl Network {
    /// Joins the network, unless `p2p.offline` is set. `local` has the blocks that are served to peers.
    ///
    /// # Errors
    /// When the identity cannot be read, the node cannot listen on an address, or the swarm key cannot be used.
    pub async fn start(
        loaded: &Loaded,
        local: Arc<dyn BlockSource>,
        policy: &Arc<dyn Policy>,
        registry: &mut Registry,
    ) -> anyhow::Result<Self> {
        if loaded.config.p2p.offline {
            return Ok(Self::Offline(p2p::peer_id(&loaded.config.data_dir)?));
        }
        let options =
            BridgeOptions { policy: NetworkPolicy(Arc::clone(policy)), ..p2p::options(loaded, p2p::forced())? };
        let bridge = Bridge::start(options, local, registry).await;
        Ok(Self::Online(bridge.map_err(|error| setting_error(loaded, &error))?))
    }

    /// The sources of blocks for requests: the tiers, and behind them the network. In a site, the owner of a root is
    /// asked for its blocks.
    pub fn sources(&self, tiers: &Tiers, fetches: Limiter, owners: Option<Owners>) -> Sources {
        let (upstream, ask_owner) = (self.upstream(), self.ask_owner(owners));
        let (local, tiers, policy) = (Arc::new(tiers.held()), tiers.clone(), Arc::clone(tiers.policy()));
        let open_session: Box<OpenSession> = Box::new(move |root, gate| {
            let (lookups, session) = (gate.lookup_observer(), gate.session_observer());
            let owner = ask_owner(root).map(|ask| Arc::new(OwnerSource::new(*root, ask, gate.clone())) as _);
            let network = Arc::new(PermitSource::new(upstream(root, session), gate));
            Arc::new(tiers.observed(network, lookups).with_owner(owner))
        });
        Sources { local, open_session, fetches: Arc::new(fetches), policy }
    }

    /// How owners are asked. In offline mode they are not.
    fn ask_owner(&self, owners: Option<Owners>) -> Box<OwnerOf> {
        let (Self::Online(bridge), Some(owners)) = (self, owners) else { return Box::new(|_| None) };
        let bridge = bridge.clone();
        Box::new(move |root| {
            let (bridge, owner) = (bridge.clone(), owners(root)?);
            Some(Arc::new(move |lookup| bridge.look_up_at(owner.clone(), lookup)) as _)
        })
    }

    /// Answers the other gateways of the site with what they ask for: what is stored, and what the network has.
    pub fn answer_members(&self, tiers: &Tiers) {
        let Self::Online(bridge) = self else { return };
        let (stored, tiers, network) = (Arc::new(tiers.held()), tiers.clone(), bridge.clone());
        let open_session: Box<OpenMemberSession> = Box::new(move |root, has_fetched| {
            let upstream = Arc::new(Noticed { source: network.session(root), used: has_fetched });
            Arc::new(tiers.through(upstream))
        });
        bridge.answer_members(Answering { stored, open_session });
    }

    /// The blocks of peers, in a session for each root.
    fn upstream(&self) -> Box<Upstream> {
        match self {
            Self::Offline(_) => {
                let empty = Arc::new(MemoryBlocks::new());
                Box::new(move |_, _| Arc::clone(&empty) as _)
            }
            Self::Online(bridge) => {
                let bridge = bridge.clone();
                Box::new(move |root, observer| bridge.observed_session(root, observer))
            }
        }
    }

    /// The pin service's access to the store and the network.
    pub fn reach(&self, loaded: &Loaded, tiers: &Tiers, policy: Arc<dyn Policy>) -> PinNetwork {
        let (bridge, upstream, counting) = (self.bridge(), self.upstream(), tiers.clone());
        PinNetwork {
            local: Arc::new(tiers.local()),
            session: Box::new(move |root| Arc::new(counting.counted(upstream(root, None)))),
            policy,
            bridge,
            peer_id: self.peer_id(),
            provide: loaded.config.p2p.provide,
        }
    }

    /// The Delegated Routing API, if it is enabled and the node is online.
    pub fn routing(
        &self,
        loaded: &Loaded,
        tiers: &Tiers,
        names: Arc<dyn NameResolver>,
        registry: &mut Registry,
    ) -> Option<Routing> {
        let (Self::Online(bridge), true) = (self, loaded.config.http.routing_v1) else { return None };
        let serves_everyone = p2p::serve_to(&loaded.config.p2p) == ServeTo::Everyone;
        let finder = Arc::new(NetworkFinder::new(bridge.clone(), serves_everyone));
        let searches = routing_v1::limiter(&loaded.config.http);
        let metrics = RoutingMetrics::register(registry);
        let (local, policy) = (Arc::new(tiers.local()), Arc::clone(tiers.policy()));
        Some(Routing::new(
            finder,
            names,
            local,
            policy,
            searches,
            routing_v1::RoutingResponseLimits::default(),
            metrics,
        ))
    }

    /// The name resolver: the operator's static map, the DHT, DNS, and the cache that the last run has saved.
    ///
    /// # Errors
    /// [`ConfigError`] with the setting that cannot be used.
    pub fn names(
        &self,
        loaded: &Loaded,
        policy: &Arc<dyn Policy>,
        registry: &mut Registry,
    ) -> Result<Arc<Names>, ConfigError> {
        let config = &loaded.config;
        let options = NamesOptions {
            static_map: p2p::static_map(loaded)?,
            doh: config.names.doh.iter().map(|route| (route.suffix.clone(), route.url.clone())).collect(),
            staleness: p2p_bridge::names::Staleness {
                while_revalidate: Duration::from_secs(config.names.stale_while_revalidate_seconds),
                if_error: Duration::from_secs(config.names.stale_if_error_seconds),
            },
            refresh_wait: Duration::from_secs(config.names.refresh_wait_seconds),
            cache_entries_max: config.names.cache_entries_max,
            lookups_max: usize::try_from(config.names.lookups_max).unwrap_or(usize::MAX),
            timeout: Duration::from_secs(config.names.timeout_seconds),
            offline: config.p2p.offline,
            state_dir: Some(p2p::state_dir(&config.data_dir)),
            policy: NetworkPolicy(Arc::clone(policy)),
            ..NamesOptions::default()
        };
        let bridge = match self {
            Self::Offline(_) => None,
            Self::Online(bridge) => Some(bridge.clone()),
        };
        Names::new(options, bridge, registry).map_err(|error| loaded.error("names.doh", error.to_string()))
    }

    /// The publisher of names, which continues to republish earlier ones.
    pub fn publisher(
        &self,
        loaded: &Loaded,
        keys: NameStore,
        names: &Arc<Names>,
        registry: &mut Registry,
    ) -> Arc<Publisher> {
        let targets = match self {
            Self::Offline(_) => Vec::new(),
            Self::Online(bridge) => publish::targets(bridge),
        };
        let options = p2p::publish_options(loaded);
        Arc::new(Publisher::start(options, keys, Arc::clone(names), targets, registry))
    }

    /// The network, unless the node is offline.
    pub fn bridge(&self) -> Option<Bridge> {
        match self {
            Self::Offline(_) => None,
            Self::Online(bridge) => Some(bridge.clone()),
        }
    }

    /// The node's peer ID.
    pub fn peer_id(&self) -> PeerId {
        match self {
            Self::Offline(peer_id) => *peer_id,
            Self::Online(bridge) => bridge.peer_id(),
        }
    }

    /// The addresses at which peers reach the node, each with its peer ID.
    pub async fn addresses(&self) -> Vec<Multiaddr> {
        match self {
            Self::Offline(_) => Vec::new(),
            Self::Online(bridge) => bridge.addresses().await,
        }
    }

    /// Provides the stored blocks that `p2p.provide` selects in the DHT, and reprovides them periodically.
    pub async fn provide(&self, store: &dyn BlockStore, what: config::Provide) {
        let held = match what {
            config::Provide::Roots => Held::Roots,
            config::Provide::Pinned => Held::Pinned,
            config::Provide::All => Held::All,
            config::Provide::Nothing => return,
        };
        if let Self::Online(bridge) = self {
            bridge.provide_from(Arc::new(Provided { store: store.handle(), held })).await;
        }
    }

    /// Leaves the network.
    pub async fn shutdown(&self) {
        if let Self::Online(bridge) = self {
            bridge.shutdown().await;
        }
    }
}

/// A source that sets a flag when it is used.
struct Noticed {
    source: Arc<dyn BlockSource>,
    used: Arc<AtomicBool>,
}

impl BlockSource for Noticed {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.used.store(true, Ordering::Relaxed);
        self.source.get(cid)
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.used.store(true, Ordering::Relaxed);
        self.source.get_ahead(cid, ahead)
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.source.has(cid)
    }
}

/// The keys that are provided.
struct Provided {
    store: Arc<dyn BlockStore>,
    held: Held,
}

impl KeySource for Provided {
    fn visit(&self, visit: &mut dyn FnMut(&[u8])) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.store.visit_keys(self.held, visit)?)
    }
}

/// An error of the start as an error of its setting.
fn setting_error(loaded: &Loaded, error: &StartError) -> anyhow::Error {
    match error {
        StartError::Listen { address, reason } => {
            loaded.error("p2p.listen", format!("cannot listen on {address}: {reason}")).into()
        }
        StartError::Private { path, error } => {
            loaded.error("p2p.swarm_key", format!("{}: {error}", path.display())).into()
        }
        StartError::Identity(_) => loaded.error("data_dir", error.to_string()).into(),
        StartError::Routers(_) => loaded.error("p2p.routers", error.to_string()).into(),
        StartError::Gateways(_) => loaded.error("p2p.gateways", error.to_string()).into(),
        StartError::Transport(_) | StartError::Threads(_) => anyhow::anyhow!("{error}"),
    }
}
