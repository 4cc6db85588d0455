//! [`Reach`]: the network as the pin service uses it.

use cache::{BlockStore, Tiers};
use content::{BlockKey, BlockSource, Cid, Policy};
use futures::stream::{FuturesUnordered, StreamExt as _};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::Bridge;
use p2p_bridge::connecting::{ADDRESSES_MAX, NamedBy};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The most addresses that a client is told (schema "Delegates" of the pinning service API).
const DELEGATES_MAX: usize = 20;
/// How long providers that a request names are dialled before its DAG is searched for without them. Dials go on
/// meanwhile.
const DIAL_PATIENCE: Duration = Duration::from_secs(5);

/// Makes the source of what is not here, for one root.
pub type OpenSession = dyn Fn(&Cid) -> Arc<dyn BlockSource> + Send + Sync;

/// The way to blocks, and to peers.
pub struct Reach {
    /// What is held here, as far as the policy lets it out.
    pub local: Arc<dyn BlockSource>,
    /// What others have.
    pub session: Box<OpenSession>,
    /// What may be kept.
    pub policy: Arc<dyn Policy>,
    /// The network, if there is one.
    pub bridge: Option<Bridge>,
    /// Who we are.
    pub peer_id: PeerId,
    /// What is announced.
    pub provide: config::Provide,
}

impl Reach {
    /// The tiers, and nobody behind them.
    pub fn nobody(tiers: &Tiers, policy: Arc<dyn Policy>) -> Self {
        let nothing = Arc::new(content::MemoryBlocks::new());
        Self {
            local: Arc::new(tiers.local()),
            session: Box::new(move |_| Arc::clone(&nothing) as _),
            policy,
            bridge: None,
            peer_id: PeerId::random(),
            provide: config::Provide::Nothing,
        }
    }

    /// Where clients that have what they want pinned may connect to.
    pub async fn delegates(&self) -> Vec<Multiaddr> {
        let mut addresses = match &self.bridge {
            Some(bridge) => bridge.addresses().await,
            None => Vec::new(),
        };
        addresses.truncate(DELEGATES_MAX);
        if addresses.is_empty() {
            // There has to be one; who we are is all that can be said.
            addresses.push(Multiaddr::empty().with(Protocol::P2p(self.peer_id)));
        }
        addresses
    }

    /// Has those who are said to have a DAG dialled; returns when the first of them is connected, or it is no use to
    /// wait. Whether any of that succeeds makes no difference to what follows.
    pub async fn dial(&self, root: &Cid, origins: Vec<Multiaddr>) {
        let Some(bridge) = &self.bridge else { return };
        let mut peers: BTreeMap<PeerId, Vec<Multiaddr>> = BTreeMap::new();
        for origin in origins {
            if let Some(Protocol::P2p(peer)) = origin.iter().last() {
                peers.entry(peer).or_default().push(origin);
            }
        }
        let dial = async |(peer, mut addresses): (PeerId, Vec<Multiaddr>)| {
            addresses.truncate(ADDRESSES_MAX);
            // So that it counts as a provider of this DAG.
            bridge.suggest(root, peer, addresses.clone(), NamedBy::Stranger).await?;
            bridge.connect(peer, addresses, NamedBy::Stranger, DIAL_PATIENCE).await
        };
        let mut dials: FuturesUnordered<_> = peers.into_iter().map(dial).collect();
        while let Some(outcome) = dials.next().await {
            match outcome {
                Ok(connected) => {
                    tracing::debug!(peer = %connected.peer, "connected with an origin of a pin");
                    return;
                }
                Err(error) => tracing::debug!(%error, "an origin of a pin was not reached"),
            }
        }
    }

    /// Tells the DHT that a root is here.
    pub async fn announce(&self, root: &Cid) {
        if let (Some(bridge), true) = (&self.bridge, self.provide != config::Provide::Nothing) {
            bridge.provide(root).await;
        }
    }

    /// Tells nobody any more that a root is here, if that is no longer so: its blocks are let go soon after its pin,
    /// and may be those of another pin.
    pub async fn withdraw(&self, root: &Cid, store: &dyn BlockStore) {
        let (Some(bridge), Some(key)) = (&self.bridge, BlockKey::of(root)) else { return };
        let stays = match self.provide {
            config::Provide::Nothing => return,
            config::Provide::Roots => Ok(false),
            config::Provide::Pinned if store.flush().await.is_ok() => store.is_pinned(&key).await,
            config::Provide::All if store.flush().await.is_ok() => store.has(root).await.or(Ok(true)),
            _ => Ok(true),
        };
        if let Ok(false) = stays {
            bridge.withdraw(root).await;
        }
    }
}
