//! [`SessionObserver`]: learns what the network does for the DAG of a request, for the request's trace.
//!
//! A session is shared by all readers of a DAG, and so is what is observed: an observer is told of all that happens in
//! the session while it is registered.
//!
//! Goals: without observers an event costs one load; there are at most [`OBSERVERS_MAX`] of them, and further requests
//! are not observed.

use crate::scope::Scope;
use content::Multihash;
use libp2p::PeerId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The maximum number of registered observers.
pub const OBSERVERS_MAX: usize = 1_024;

/// How a block is transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockTransport {
    /// From a peer, by Bitswap.
    Bitswap,
    /// From a trustless gateway, over HTTP.
    Http,
    /// From another Causeway, in a transfer of the DAG protocol.
    Dag,
}

/// A source of providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchSource {
    /// The providers that are known already, or that the caller has passed.
    Known,
    /// The DHT of a scope.
    Dht(Scope),
    /// The delegated routers.
    Routers,
}

/// An event of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEvent {
    /// A source of providers is asked.
    SearchStarted(SearchSource),
    /// A source has named a provider.
    ProviderFound(SearchSource),
    /// A source has finished, or its search was stopped.
    SearchEnded {
        /// The source.
        source: SearchSource,
        /// The number of peers that were asked, in a DHT.
        peers_asked: Option<u32>,
        /// Whether it was not stopped before its end.
        is_complete: bool,
    },
    /// A peer or a gateway is asked for blocks, or whether it has them.
    Asked(PeerId, BlockTransport),
    /// A wanted block of so many bytes was received.
    Received(BlockTransport, usize),
}

/// Learns the events of a session. It is called by tasks of the network, and must not block.
pub trait SessionObserver: Send + Sync {
    /// An event has happened.
    fn observe(&self, event: SessionEvent);
}

/// An observer, and its number.
type Numbered = (usize, Arc<dyn SessionObserver>);
type BySession = HashMap<Multihash, Vec<Numbered>>;

/// The observers of all sessions.
#[derive(Default)]
pub struct Observers {
    count: AtomicUsize,
    next_id: AtomicUsize,
    by_session: Mutex<BySession>,
}

impl Observers {
    /// Whether there are none, so that events need not be made.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Tells the observers of a session of an event.
    pub fn tell(&self, session: &Multihash, event: SessionEvent) {
        if self.is_empty() {
            return;
        }
        for (_, observer) in self.by_session().get(session).into_iter().flatten() {
            observer.observe(event);
        }
    }

    fn by_session(&self) -> MutexGuard<'_, BySession> {
        // No code that holds the lock can leave the map half changed.
        self.by_session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What owns the observers of sessions.
pub trait HasObservers: Send + Sync {
    /// The observers.
    fn observers(&self) -> &Observers;
}

/// An observer that is registered; dropping this removes it.
pub struct Observation<O: HasObservers> {
    owner: Arc<O>,
    session: Multihash,
    id: usize,
}

impl<O: HasObservers> Observation<O> {
    /// Registers an observer of a session; `None` if there are too many.
    pub fn start(owner: &Arc<O>, session: Multihash, observer: Arc<dyn SessionObserver>) -> Option<Self> {
        let observers = owner.observers();
        let mut by_session = observers.by_session();
        if observers.count.load(Ordering::Relaxed) >= OBSERVERS_MAX {
            return None;
        }
        observers.count.fetch_add(1, Ordering::Relaxed);
        let id = observers.next_id.fetch_add(1, Ordering::Relaxed);
        by_session.entry(session).or_default().push((id, observer));
        drop(by_session);
        Some(Self { owner: Arc::clone(owner), session, id })
    }
}

impl<O: HasObservers> Drop for Observation<O> {
    fn drop(&mut self) {
        let observers = self.owner.observers();
        let mut by_session = observers.by_session();
        let Some(of_session) = by_session.get_mut(&self.session) else { return };
        let ended = of_session.iter().position(|(id, _)| *id == self.id).map(|at| of_session.remove(at));
        if of_session.is_empty() {
            by_session.remove(&self.session);
        }
        observers.count.fetch_sub(usize::from(ended.is_some()), Ordering::Relaxed);
        drop(by_session);
        // Its end may record a trace, which needs no lock here.
        drop(ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::hashes;

    #[derive(Default)]
    struct Owner(Observers);

    impl HasObservers for Owner {
        fn observers(&self) -> &Observers {
            &self.0
        }
    }

    #[derive(Default)]
    struct Recorder(Mutex<Vec<SessionEvent>>);

    impl SessionObserver for Recorder {
        fn observe(&self, event: SessionEvent) {
            self.0.lock().expect("is not poisoned").push(event);
        }
    }

    fn session(n: u8) -> Multihash {
        Multihash::wrap(hashes::SHA2_256, &[n; 32]).expect("a multihash")
    }

    #[test]
    fn an_observer_is_told_of_its_session_until_it_is_removed() {
        let (owner, recorder) = (Arc::new(Owner::default()), Arc::new(Recorder::default()));
        let (first, other) =
            (SessionEvent::Received(BlockTransport::Http, 1), SessionEvent::Received(BlockTransport::Bitswap, 2));
        owner.0.tell(&session(1), first);
        let observation = Observation::start(&owner, session(1), Arc::clone(&recorder) as _).expect("has room");
        assert!(!owner.0.is_empty());
        owner.0.tell(&session(1), first);
        owner.0.tell(&session(2), other);
        drop(observation);
        owner.0.tell(&session(1), other);
        assert_eq!(*recorder.0.lock().expect("is not poisoned"), [first]);
        assert!(owner.0.is_empty() && owner.0.by_session().is_empty());
        assert_eq!(Arc::strong_count(&recorder), 1);
    }

    #[test]
    fn the_number_of_observers_is_bounded() {
        let owner = Arc::new(Owner::default());
        let start = |n| Observation::start(&owner, session(n), Arc::new(Recorder::default()));
        let held: Vec<_> = (0..OBSERVERS_MAX).map_while(|n| start(u8::try_from(n % 7).expect("is small"))).collect();
        assert_eq!(held.len(), OBSERVERS_MAX);
        assert!(start(1).is_none());
        drop(held);
        assert!(owner.0.is_empty() && start(1).is_some());
    }
}
