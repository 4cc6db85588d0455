//! Origins that connect to this node: pins that wait for them are fetched at once, and not after their back-off.
//!
//! A client behind a NAT names addresses that cannot be dialled as the origins of its request, and connects to the
//! delegates of the request instead. The first attempt has failed by then.

use crate::pinning::service::Pins;
use libp2p::PeerId;
use std::sync::Weak;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio_util::sync::CancellationToken;

/// Schedules the requests whose origins connect, until the service or the network stops.
pub(super) async fn watch(pins: Weak<Pins>, stopping: CancellationToken, mut connections: broadcast::Receiver<PeerId>) {
    loop {
        let received = tokio::select! {
            () = stopping.cancelled() => return,
            received = connections.recv() => received,
        };
        let Some(pins) = pins.upgrade() else { return };
        match received {
            Ok(peer) => pins.origin_connected(&peer),
            Err(RecvError::Lagged(_)) => pins.check_origins().await,
            Err(RecvError::Closed) => return,
        }
    }
}

impl Pins {
    /// A peer has connected.
    pub(in crate::pinning) fn origin_connected(&self, peer: &PeerId) {
        if self.index().awaits(peer) {
            tracing::debug!(%peer, "an origin of pins has connected: they are fetched now");
            self.index_mut().origin_connected(peer);
            self.wake.notify_one();
        }
    }

    /// Some connections were missed: checks all connected peers.
    async fn check_origins(&self) {
        if let Some(bridge) = &self.reach.bridge {
            bridge.peers().await.iter().for_each(|connected| self.origin_connected(&connected.peer));
        }
    }
}
