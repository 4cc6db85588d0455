//! The one place that knows the peer-to-peer network: started, or left out in offline mode.

use crate::lanes::Lanes;
use crate::source::{Gated, OpenSession, Sources};
use anyhow::Context as _;
use cache::Tiers;
use config::{Config, ConfigError, Loaded};
use content::dnslink::StaticMap;
use content::{BlockSource, Cid, MemoryBlocks};
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::names::{Names, NamesOptions};
use p2p_bridge::{Bridge, BridgeOptions, StartError, identity};
use prometheus_client::registry::Registry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What Bitswap messages under way to us may take in memory, in bytes.
const NETWORK_MEMORY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The network, or its absence.
pub enum Network {
    /// Nobody is asked; the node has an identity all the same.
    Offline(PeerId),
    /// Part of the network.
    Online(Bridge),
}

impl Network {
    /// Joins the network, unless the node is to be offline. `local` is what peers may be given.
    ///
    /// # Errors
    /// When the identity cannot be read or an address cannot be listened on.
    pub async fn start(loaded: &Loaded, local: Arc<dyn BlockSource>, registry: &mut Registry) -> anyhow::Result<Self> {
        if loaded.config.p2p.offline {
            return Ok(Self::Offline(peer_id(&loaded.config.data_dir)?));
        }
        let bridge = Bridge::start(options(&loaded.config), local, registry).await;
        Ok(Self::Online(bridge.map_err(|error| named(loaded, &error))?))
    }

    /// Where requests take blocks from: the tiers, and behind them the network.
    pub fn sources(&self, tiers: &Tiers, lanes: Lanes) -> Sources {
        type Upstream = dyn Fn(&Cid) -> Arc<dyn BlockSource> + Send + Sync;
        let upstream: Box<Upstream> = match self {
            Self::Offline(_) => {
                let nobody = Arc::new(MemoryBlocks::new());
                Box::new(move |_| Arc::clone(&nobody) as _)
            }
            Self::Online(bridge) => {
                let bridge = bridge.clone();
                Box::new(move |root| bridge.session(root))
            }
        };
        let (local, tiers) = (Arc::new(tiers.local()), tiers.clone());
        let open_session: Box<OpenSession> =
            Box::new(move |root, gate| Arc::new(tiers.through(Arc::new(Gated::new(upstream(root), gate)))));
        Sources { local, open_session, lanes: Arc::new(lanes) }
    }

    /// What names stand for: as the operator says, as the DHT and DNS say, and as was known when the node ran last.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting that cannot be followed.
    pub fn names(&self, loaded: &Loaded, registry: &mut Registry) -> Result<Arc<Names>, ConfigError> {
        let config = &loaded.config;
        let options = NamesOptions {
            static_map: static_map(loaded)?,
            doh: config.names.doh.iter().map(|route| (route.suffix.clone(), route.url.clone())).collect(),
            cache_entries_max: config.names.cache_entries_max,
            lookups_max: usize::try_from(config.names.lookups_max).unwrap_or(usize::MAX),
            timeout: Duration::from_secs(config.names.timeout_seconds),
            offline: config.p2p.offline,
            state_dir: Some(state_dir(&config.data_dir)),
            ..NamesOptions::default()
        };
        let bridge = match self {
            Self::Offline(_) => None,
            Self::Online(bridge) => Some(bridge.clone()),
        };
        Names::new(options, bridge, registry).map_err(|error| loaded.error("names.doh", error.to_string()))
    }

    /// The node's name among peers.
    pub fn peer_id(&self) -> PeerId {
        match self {
            Self::Offline(peer_id) => *peer_id,
            Self::Online(bridge) => bridge.peer_id(),
        }
    }

    /// Where peers reach the node, each address ending in its peer id.
    pub async fn addresses(&self) -> Vec<Multiaddr> {
        match self {
            Self::Offline(_) => Vec::new(),
            Self::Online(bridge) => bridge.addresses().await,
        }
    }

    /// Announces in the DHT what is pinned, as soon as there is anybody to hear it.
    pub async fn provide(&self, roots: impl IntoIterator<Item = Cid>) {
        let Self::Online(bridge) = self else { return };
        for root in roots {
            bridge.provide(&root).await;
        }
    }

    /// Leaves the network.
    pub async fn shutdown(&self) {
        if let Self::Online(bridge) = self {
            bridge.shutdown().await;
        }
    }
}

/// The names that the operator decided about.
fn static_map(loaded: &Loaded) -> Result<StaticMap, ConfigError> {
    let path = &loaded.config.names.dnslink_map;
    if path.as_os_str().is_empty() {
        return Ok(StaticMap::default());
    }
    let wrong = |reason: String| loaded.error("names.dnslink_map", format!("{}: {reason}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    StaticMap::parse(&text).map_err(|error| wrong(error.to_string()))
}

/// An error of the start, as one about the setting that is behind it.
fn named(loaded: &Loaded, error: &StartError) -> anyhow::Error {
    match error {
        StartError::Listen { address, reason } => {
            loaded.error("p2p.listen", format!("{address} cannot be listened on: {reason}")).into()
        }
        StartError::Identity(_) => loaded.error("data_dir", error.to_string()).into(),
        StartError::Transport(_) => anyhow::anyhow!("{error}"),
    }
}

fn state_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("p2p")
}

fn options(config: &Config) -> BridgeOptions {
    BridgeOptions {
        data_dir: state_dir(&config.data_dir),
        listen: config.p2p.listen.clone(),
        announce: config.p2p.announce.clone(),
        bootstrap: config.p2p.bootstrap.clone(),
        peering: config.p2p.peering.clone(),
        stall_timeout: Duration::from_secs(config.http.stall_timeout_seconds),
        network_memory_bytes_max: NETWORK_MEMORY_BYTES_MAX,
    }
}

/// The node's name among peers, which is made up when it is first asked for.
///
/// # Errors
/// When the key cannot be read or written.
pub fn peer_id(data_dir: &Path) -> anyhow::Result<PeerId> {
    let key = identity::load_or_create(&state_dir(data_dir)).context("the peer's identity cannot be read or made")?;
    Ok(key.public().to_peer_id())
}
