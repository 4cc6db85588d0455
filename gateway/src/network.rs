//! The one place that knows the peer-to-peer network: started, or left out in offline mode.

use crate::lanes::Lanes;
use crate::source::{Gated, OpenSession, Sources};
use anyhow::Context as _;
use cache::Tiers;
use config::{Config, Loaded};
use content::{BlockSource, Cid, MemoryBlocks};
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::{Bridge, BridgeOptions, StartError, identity};
use prometheus_client::registry::Registry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

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
