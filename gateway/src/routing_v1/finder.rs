//! [`PeerFinder`]: the searches of the routing API, and [`NetworkFinder`], its implementation.

use content::{BlockKey, Cid};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt as _};
use libp2p::PeerId;
use p2p_bridge::Bridge;
use p2p_bridge::finders::PeerSearch;
use p2p_bridge::routing_v1::PeerRecord;
use p2p_bridge::routing_v1::types::BITSWAP;
use std::future::Future;

/// Searches the network.
pub trait PeerFinder: Send + Sync {
    /// The providers of a block.
    fn providers(&self, cid: &Cid) -> BoxStream<'static, PeerRecord>;

    /// The addresses of a peer.
    fn peer(&self, peer: PeerId) -> BoxStream<'static, PeerRecord>;

    /// The DHT servers closest to a key.
    fn closest(&self, key: Vec<u8>) -> BoxStream<'static, PeerRecord>;

    /// This node's own record, if untrusted peers may fetch blocks from it.
    fn own_record(&self) -> BoxFuture<'static, Option<PeerRecord>>;
}

/// Searches of the node's network, for clients of the routing API.
pub struct NetworkFinder {
    bridge: Bridge,
    serves_everyone: bool,
}

impl NetworkFinder {
    /// Searches with `bridge`. `serves_everyone`: whether untrusted peers may fetch blocks from this node.
    pub fn new(bridge: Bridge, serves_everyone: bool) -> Self {
        Self { bridge, serves_everyone }
    }
}

fn found(searching: impl Future<Output = PeerSearch> + Send + 'static) -> BoxStream<'static, PeerRecord> {
    let next = |mut search: PeerSearch| async move { search.next().await.map(|record| (record, search)) };
    stream::once(searching).flat_map(move |search| stream::unfold(search, next)).boxed()
}

impl PeerFinder for NetworkFinder {
    fn providers(&self, cid: &Cid) -> BoxStream<'static, PeerRecord> {
        let bridge = self.bridge.clone();
        match BlockKey::of(cid) {
            Some(key) => found(async move { bridge.find_providers(&key).await }),
            // The data of an identity CID are in the CID itself.
            None => stream::empty().boxed(),
        }
    }

    fn peer(&self, peer: PeerId) -> BoxStream<'static, PeerRecord> {
        let bridge = self.bridge.clone();
        found(async move { bridge.find_peer(peer).await })
    }

    fn closest(&self, key: Vec<u8>) -> BoxStream<'static, PeerRecord> {
        let bridge = self.bridge.clone();
        found(async move { bridge.closest_peers(key).await })
    }

    fn own_record(&self) -> BoxFuture<'static, Option<PeerRecord>> {
        let (bridge, serves_everyone) = (self.bridge.clone(), self.serves_everyone);
        async move {
            let id = bridge.peer_id();
            let mut addresses = bridge.addresses().await;
            addresses.iter_mut().for_each(|address| _ = address.pop());
            let protocols = vec![BITSWAP.to_owned()];
            serves_everyone.then_some(PeerRecord { id, addresses, protocols })
        }
        .boxed()
    }
}
