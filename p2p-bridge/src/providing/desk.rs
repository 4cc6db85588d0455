//! What a sweep wants of the network: questions and announcements, at most so many at a time, and who waits for each.

use super::keys::Batch;
use super::walk::Peer;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Questions and announcements under way at once, in one scope.
const REQUESTS_MAX: usize = 64;

/// Names a question or an announcement.
pub type RequestId = u64;

/// What is to be done for a sweep.
#[derive(Debug)]
pub enum Action {
    /// Read the keys of the slots from this one on ([`super::keys::Window::load`]), and hand them to
    /// [`super::sweep::Sweep::loaded`].
    Load {
        /// The first slot.
        first: u16,
    },
    /// Ask a peer which peers are close to a target (FIND_NODE).
    Ask {
        /// To be named when it is answered.
        id: RequestId,
        /// Whom.
        peer: Peer,
        /// What about.
        target: Arc<[u8]>,
    },
    /// Tell a peer that we provide some keys (ADD_PROVIDER).
    Announce {
        /// To be named when it is done.
        id: RequestId,
        /// Whom.
        peer: Peer,
        /// Which.
        batch: Batch,
    },
    /// We are among the closest to this key ourselves, so that others may ask us about it.
    Keep(Vec<u8>),
}

/// Who waits for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A region that is being swept.
    Job(u64),
    /// A single key.
    Single(u64),
}

/// A request under way.
#[derive(Debug)]
pub struct Request {
    /// Who waits for it.
    pub owner: Owner,
    /// Whom it went to.
    pub peer: Peer,
    /// What was announced; nothing if it is a question.
    pub batch: Option<Batch>,
}

/// Hands out requests and remembers them.
#[derive(Debug, Default)]
pub struct Desk {
    next: RequestId,
    requests: HashMap<RequestId, Request>,
    actions: VecDeque<Action>,
}

impl Desk {
    /// Whether another request may go out.
    pub fn has_room(&self) -> bool {
        self.requests.len() < REQUESTS_MAX
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.actions.is_empty()
    }

    /// Asks a peer about a target.
    pub fn ask(&mut self, owner: Owner, peer: Peer, target: Arc<[u8]>) {
        let id = self.remember(Request { owner, peer: peer.clone(), batch: None });
        self.actions.push_back(Action::Ask { id, peer, target });
    }

    /// Announces keys to a peer.
    pub fn announce(&mut self, owner: Owner, peer: Peer, batch: Batch) {
        let id = self.remember(Request { owner, peer: peer.clone(), batch: Some(batch.clone()) });
        self.actions.push_back(Action::Announce { id, peer, batch });
    }

    /// Anything else.
    pub fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// The next thing to be done.
    pub fn pop(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether a request under way is a question.
    pub fn is_question(&self, id: RequestId) -> bool {
        self.requests.get(&id).is_some_and(|request| request.batch.is_none())
    }

    /// A request has ended.
    pub fn take(&mut self, id: RequestId) -> Option<Request> {
        self.requests.remove(&id)
    }

    fn remember(&mut self, request: Request) -> RequestId {
        self.next += 1;
        self.requests.insert(self.next, request);
        self.next
    }
}
