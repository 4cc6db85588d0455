//! The queue of a sweep's requests to the network: a bounded number in flight, each with its owner.

use super::keys::Batch;
use super::walk::Peer;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Maximum requests in flight, per scope.
const REQUESTS_MAX: usize = 64;

/// The ID of a request.
pub type RequestId = u64;

/// An action that a sweep requests.
#[derive(Debug)]
pub enum Action {
    /// Load the keys of the slots from `first` on ([`super::keys::Window::load`]), and pass them to
    /// [`super::sweep::Sweep::loaded`].
    Load {
        /// The first slot.
        first: u16,
    },
    /// Ask a peer for the closest peers to a target (FIND_NODE).
    Ask {
        /// The ID of the request.
        id: RequestId,
        /// The peer to ask.
        peer: Peer,
        /// The target key.
        target: Arc<[u8]>,
    },
    /// Announce keys to a peer (ADD_PROVIDER).
    Announce {
        /// The ID of the request.
        id: RequestId,
        /// The peer to announce to.
        peer: Peer,
        /// The keys.
        batch: Batch,
    },
    /// The node itself is among the closest peers to this key: store its own provider record.
    Keep(Vec<u8>),
}

/// The owner of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The sweep of a region.
    Job(u64),
    /// The announcement of a single key.
    Single(u64),
}

/// A request in flight.
#[derive(Debug)]
pub struct RequestInFlight {
    /// The owner.
    pub owner: Owner,
    /// The peer that it was sent to.
    pub peer: Peer,
    /// The announced keys; `None` for FIND_NODE.
    pub batch: Option<Batch>,
}

/// Queues actions and tracks the requests in flight.
#[derive(Debug, Default)]
pub struct RequestQueue {
    next: RequestId,
    requests: HashMap<RequestId, RequestInFlight>,
    actions: VecDeque<Action>,
}

impl RequestQueue {
    /// Whether another request may be sent.
    pub fn has_capacity(&self) -> bool {
        self.requests.len() < REQUESTS_MAX
    }

    /// Whether no request is in flight.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.actions.is_empty()
    }

    /// Queues a FIND_NODE request.
    pub fn ask(&mut self, owner: Owner, peer: Peer, target: Arc<[u8]>) {
        let id = self.track(RequestInFlight { owner, peer: peer.clone(), batch: None });
        self.actions.push_back(Action::Ask { id, peer, target });
    }

    /// Queues an announcement of keys to a peer.
    pub fn announce(&mut self, owner: Owner, peer: Peer, batch: Batch) {
        let id = self.track(RequestInFlight { owner, peer: peer.clone(), batch: Some(batch.clone()) });
        self.actions.push_back(Action::Announce { id, peer, batch });
    }

    /// Queues any other action.
    pub fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// The next action.
    pub fn pop(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether a request in flight is FIND_NODE.
    pub fn is_find_node(&self, id: RequestId) -> bool {
        self.requests.get(&id).is_some_and(|request| request.batch.is_none())
    }

    /// Removes a request that has ended.
    pub fn take(&mut self, id: RequestId) -> Option<RequestInFlight> {
        self.requests.remove(&id)
    }

    fn track(&mut self, request: RequestInFlight) -> RequestId {
        self.next += 1;
        self.requests.insert(self.next, request);
        self.next
    }
}
