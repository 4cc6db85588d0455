//! [`PinNetwork`]: the network, as the pin service uses it.

use crate::pinning::request::origin_peer;
use cache::{BlockStore, Tiers};
use content::{BlockKey, BlockSource, Cid, Policy};
use futures::stream::{FuturesUnordered, StreamExt as _};
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::Bridge;
use p2p_bridge::connecting::{ADDRESSES_MAX, AddressOrigin};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of delegates (schema "Delegates" of the Pinning Service API).
const DELEGATES_MAX: usize = 20;
/// How long an attempt waits for the origins of a request to be dialled before the DAG is fetched without them. Dials
/// continue meanwhile.
const DIAL_WAIT: Duration = Duration::from_secs(5);

/// Creates the network source of the blocks of one root.
pub type OpenSession = dyn Fn(&Cid) -> Arc<dyn BlockSource> + Send + Sync;

/// Access to blocks and peers.
pub struct PinNetwork {
    /// The locally stored blocks, as far as the policy allows.
    pub local: Arc<dyn BlockSource>,
    /// The network.
    pub session: Box<OpenSession>,
    /// The content policy.
    pub policy: Arc<dyn Policy>,
    /// The peer-to-peer network, unless the node is offline.
    pub bridge: Option<Bridge>,
    /// The peer ID of this node.
    pub peer_id: PeerId,
    /// What is announced in the DHT.
    pub provide: config::Provide,
}

impl PinNetwork {
    /// The tiers only, without a network.
    pub fn local_only(tiers: &Tiers, policy: Arc<dyn Policy>) -> Self {
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

    /// The addresses to which pinning clients may connect to provide the content.
    pub async fn delegates(&self) -> Vec<Multiaddr> {
        let mut addresses = match &self.bridge {
            Some(bridge) => bridge.addresses().await,
            None => Vec::new(),
        };
        addresses.truncate(DELEGATES_MAX);
        if addresses.is_empty() {
            // The specification requires one; the peer ID is all that is known.
            addresses.push(Multiaddr::empty().with(Protocol::P2p(self.peer_id)));
        }
        addresses
    }

    /// Dials the origins of a DAG; returns when the first is connected, all have failed, or a timeout expires. Failures
    /// have no consequences.
    pub async fn dial(&self, root: &Cid, origins: Vec<Multiaddr>) {
        let Some(bridge) = &self.bridge else { return };
        let mut peers: BTreeMap<PeerId, Vec<Multiaddr>> = BTreeMap::new();
        for origin in origins {
            if let Some(peer) = origin_peer(&origin) {
                peers.entry(peer).or_default().push(origin);
            }
        }
        let dial = async |(peer, mut addresses): (PeerId, Vec<Multiaddr>)| {
            addresses.truncate(ADDRESSES_MAX);
            // So that the peer counts as a provider of this DAG.
            bridge.suggest(root, peer, addresses.clone(), AddressOrigin::Untrusted).await?;
            bridge.connect(peer, addresses, AddressOrigin::Untrusted, DIAL_WAIT).await
        };
        let mut dials: FuturesUnordered<_> = peers.into_iter().map(dial).collect();
        while let Some(outcome) = dials.next().await {
            match outcome {
                Ok(connected) => {
                    tracing::debug!(peer = %connected.peer, "connected to an origin of a pin");
                    return;
                }
                Err(error) => tracing::debug!(%error, "dialling an origin of a pin failed"),
            }
        }
    }

    /// Announces a root in the DHT.
    pub async fn announce(&self, root: &Cid) {
        if let (Some(bridge), true) = (&self.bridge, self.provide != config::Provide::Nothing) {
            bridge.provide(root).await;
        }
    }

    /// Stops announcing a root, unless its blocks are still to be announced: they are evicted some time after its pin
    /// was removed, and may belong to another pin.
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
