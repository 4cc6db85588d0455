//! [`KnownMembers`]: the peers that are gateways of the site.

use libp2p::PeerId;
use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

/// The gateways of the site that run, by their peer IDs. Clones share them. They are answered, and admitted beyond the
/// limits of connections.
#[derive(Debug, Clone, Default)]
pub struct KnownMembers(Arc<RwLock<HashSet<PeerId>>>);

impl KnownMembers {
    /// Replaces them.
    pub fn replace(&self, members: HashSet<PeerId>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = members;
    }

    /// Whether a peer is one.
    pub fn contains(&self, peer: &PeerId) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(peer)
    }
}
