//! [`Admission`]: connection limits in total and for each client, and the eviction of idle connections.
//!
//! Goals: no client can exhaust the connections of others; health checks are always answered.
//!
//! A connection is *admitted* if neither limit is reached: the total, and that of its client (an IPv4 address or an
//! IPv6 network of 64 bits). Otherwise the connection that has been idle for longest is evicted: a connection of the
//! same client if the client is at its limit, else one of the client with the most connections. A connection is idle
//! while the server waits for the head of a request: none was sent, it is sent slowly, or the last request was
//! answered; a new connection counts as idle one second after it began. If no connection is idle, the new one *waits*,
//! and only its health checks are answered. The waiting list is bounded; when it is full, the connection that has
//! waited for longest is evicted.
//!
//! Non-goal: limits of admitted connections.

use config::TrustedProxy;
use services::limiter::{Full, network_of};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a request waits until its connection is admitted.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How often a waiting connection searches for an idle one to evict.
const EVICTION_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum number of waiting connections, in total and of one client.
pub const WAITING_MAX: usize = 64;
const CLIENT_WAITING_MAX: usize = 8;

/// A connection that admission control can evict.
pub trait Evictable: Send + Sync {
    /// When the connection became idle; `None` while it answers a request.
    fn idle_since(&self) -> Option<Instant>;

    /// Closes the connection.
    fn evict(&self);
}

/// The limits of connections.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The total number of connections.
    pub all: usize,
    /// The number of connections of one client.
    pub each: usize,
    /// Trusted proxies, whose connections are not counted by client.
    pub exempt: Vec<TrustedProxy>,
    /// How long a request waits until its connection is admitted.
    pub patience: Duration,
}

/// The connections of a listener.
pub struct Admission {
    bounds: Bounds,
    state: Mutex<State>,
    /// Notified when a connection closes.
    freed: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    admitted: Pool,
    waiting: Pool,
}

/// Connections, and how many each client has.
#[derive(Default)]
struct Pool {
    entries: HashMap<u64, PoolEntry>,
    clients: HashMap<IpAddr, HashSet<u64>>,
}

#[derive(Clone)]
struct PoolEntry {
    /// `None` for addresses that are not counted by client.
    client: Option<IpAddr>,
    connection: Arc<dyn Evictable>,
}

/// A counted connection; dropping it frees the slot.
pub struct Slot {
    admission: Arc<Admission>,
    id: u64,
    /// Cached without the lock, because each request checks it.
    admitted: AtomicBool,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slot({})", self.id)
    }
}

impl Pool {
    fn insert(&mut self, id: u64, entry: PoolEntry) {
        if let Some(client) = entry.client {
            self.clients.entry(client).or_default().insert(id);
        }
        self.entries.insert(id, entry);
    }

    fn remove(&mut self, id: u64) -> Option<PoolEntry> {
        let entry = self.entries.remove(&id)?;
        if let Some(client) = entry.client
            && let Some(own) = self.clients.get_mut(&client)
        {
            own.remove(&id);
            if own.is_empty() {
                self.clients.remove(&client);
            }
        }
        Some(entry)
    }

    fn count_of(&self, client: Option<IpAddr>) -> usize {
        client.and_then(|client| self.clients.get(&client)).map_or(0, HashSet::len)
    }

    /// The client's connection that has been idle for longest.
    fn longest_idle_of(&self, client: IpAddr) -> Option<u64> {
        let own = self.clients.get(&client).into_iter().flatten();
        own.filter_map(|id| Some((self.entries.get(id)?.connection.idle_since()?, *id))).min().map(|(_, id)| id)
    }

    /// The connection that has been idle for longest, of the client with the most connections among those with idle
    /// ones.
    fn longest_idle(&self) -> Option<u64> {
        let idle = self.entries.iter().filter_map(|(id, entry)| {
            let since = entry.connection.idle_since()?;
            Some((Reverse(self.count_of(entry.client)), since, *id))
        });
        idle.min().map(|(.., id)| id)
    }

    /// Removes and closes a connection.
    fn evict(&mut self, id: u64) {
        if let Some(entry) = self.remove(id) {
            entry.connection.evict();
        }
    }
}

impl State {
    /// Whether a limit prevents one more connection of the client.
    fn check_room(&self, client: Option<IpAddr>, bounds: &Bounds) -> Result<(), Full> {
        if client.is_some() && self.admitted.count_of(client) >= bounds.each {
            return Err(Full::Client);
        }
        if self.admitted.entries.len() >= bounds.all { Err(Full::All) } else { Ok(()) }
    }

    /// Ensures that one more connection of the client can be admitted, by eviction if necessary.
    fn make_room(&mut self, client: Option<IpAddr>, bounds: &Bounds) -> Result<(), Full> {
        let Err(full) = self.check_room(client, bounds) else { return Ok(()) };
        let idle = match client.filter(|_| full == Full::Client) {
            Some(client) => self.admitted.longest_idle_of(client),
            None => self.admitted.longest_idle(),
        };
        self.admitted.evict(idle.ok_or(full)?);
        Ok(())
    }

    /// Adds a connection to the waiting list; evicts the oldest if the list is full.
    fn enqueue(&mut self, id: u64, entry: PoolEntry) {
        let same = |entry: &PoolEntry, other: &PoolEntry| entry.client.is_some() && entry.client == other.client;
        if self.waiting.count_of(entry.client) >= CLIENT_WAITING_MAX {
            let own = self.waiting.entries.iter().filter(|(_, other)| same(&entry, other)).map(|(id, _)| *id).min();
            own.into_iter().for_each(|oldest| self.waiting.evict(oldest));
        }
        if self.waiting.entries.len() >= WAITING_MAX {
            let oldest = self.waiting.entries.keys().copied().min();
            oldest.into_iter().for_each(|oldest| self.waiting.evict(oldest));
        }
        self.waiting.insert(id, entry);
    }
}

impl Admission {
    /// Admission control with these limits.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, state: Mutex::default(), freed: Notify::new() }
    }

    /// The maximum number of connections.
    pub fn connections_max(&self) -> usize {
        self.bounds.all
    }

    /// Whether an address is a trusted proxy's, whose connections are not counted by client.
    pub fn is_exempt(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.bounds.exempt.iter().any(|proxy| proxy.includes(address))
    }

    /// The client that the connections of an address count for; `None` for a trusted proxy's.
    pub fn client_of(&self, address: IpAddr) -> Option<IpAddr> {
        (!self.is_exempt(address)).then(|| network_of(address))
    }

    /// Counts a connection: it is admitted or waits.
    pub fn register(self: &Arc<Self>, address: IpAddr, connection: Arc<dyn Evictable>) -> Slot {
        self.register_for(self.client_of(address), connection)
    }

    /// Counts a connection for a client; `None` to count it in total only.
    pub fn register_for(self: &Arc<Self>, client: Option<IpAddr>, connection: Arc<dyn Evictable>) -> Slot {
        let entry = PoolEntry { client, connection };
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        let admitted = state.make_room(entry.client, &self.bounds).is_ok();
        match admitted {
            true => state.admitted.insert(id, entry),
            false => state.enqueue(id, entry),
        }
        Slot { admission: Arc::clone(self), id, admitted: AtomicBool::new(admitted) }
    }

    /// Admits a waiting connection if there is a free slot, or if `may_evict` and an idle one can be evicted.
    fn try_admit(&self, id: u64, may_evict: bool) -> Result<(), Full> {
        let mut state = self.state();
        // A connection that was evicted is closed.
        let entry = state.waiting.entries.get(&id).cloned().ok_or(Full::All)?;
        match may_evict {
            true => state.make_room(entry.client, &self.bounds)?,
            false => state.check_room(entry.client, &self.bounds)?,
        }
        state.waiting.remove(id);
        state.admitted.insert(id, entry);
        Ok(())
    }

    /// Frees the slot of a connection.
    pub fn release(&self, slot: &Slot) {
        let mut state = self.state();
        let admitted = state.admitted.remove(slot.id);
        // An evicted connection is in neither pool.
        let removed = admitted.or_else(|| state.waiting.remove(slot.id));
        drop(state);
        if removed.is_some() {
            self.freed.notify_waiters();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Waits until the connection is admitted, up to [`Bounds::patience`].
    ///
    /// # Errors
    /// [`Full`]: which limit is reached.
    pub async fn admitted(&self) -> Result<(), Full> {
        if self.admitted.load(Ordering::Relaxed) {
            return Ok(());
        }
        let deadline = Instant::now() + self.admission.bounds.patience;
        // The search for an idle connection scans all of them, so it runs at an interval and not for each freed slot.
        let mut may_evict = true;
        loop {
            let freed = self.admission.freed.notified();
            let full = match self.admission.try_admit(self.id, may_evict) {
                Ok(()) => {
                    self.admitted.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                Err(full) => full,
            };
            if Instant::now() >= deadline {
                return Err(full);
            }
            let until = deadline.min(Instant::now() + EVICTION_INTERVAL);
            may_evict = tokio::time::timeout_at(until, freed).await.is_err();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.admission.release(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use proptest::prelude::*;

    /// A connection that is idle or not, and whether it was evicted.
    #[derive(Default)]
    struct Fake {
        idle: Mutex<Option<Instant>>,
        evicted: AtomicBool,
    }

    impl Fake {
        fn new(idle: bool) -> Arc<Self> {
            Arc::new(Self { idle: Mutex::new(idle.then(Instant::now)), evicted: AtomicBool::default() })
        }

        fn is_evicted(&self) -> bool {
            self.evicted.load(Ordering::SeqCst)
        }
    }

    impl Evictable for Fake {
        fn idle_since(&self) -> Option<Instant> {
            *self.idle.lock().expect("is sound")
        }

        fn evict(&self) {
            self.evicted.store(true, Ordering::SeqCst);
        }
    }

    fn admission(all: usize, each: usize) -> Arc<Admission> {
        let exempt = vec!["10.9.0.0/16".parse().expect("a network")];
        Arc::new(Admission::new(Bounds { all, each, exempt, patience: Duration::from_millis(20) }))
    }

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn a_client_at_its_limit_loses_its_own_idle_connection() {
        let admission = admission(10, 2);
        let (other, first, second, third) = (Fake::new(true), Fake::new(true), Fake::new(true), Fake::new(false));
        let _slots = [(1, &other), (2, &first), (2, &second), (2, &third)]
            .map(|(last, connection)| admission.register(address(last), Arc::clone(connection) as _));
        assert_eq!(
            [&other, &first, &second, &third].map(|connection| connection.is_evicted()),
            [false, true, false, false]
        );
    }

    #[test]
    fn at_the_total_limit_the_client_with_most_connections_loses_one() {
        let admission = admission(4, 3);
        let connections = [1, 2, 2, 2].map(|last| (last, Fake::new(true)));
        let _slots = connections
            .each_ref()
            .map(|(last, connection)| admission.register(address(*last), Arc::clone(connection) as _));
        let newcomer = Fake::new(false);
        let slot = admission.register(address(3), Arc::clone(&newcomer) as _);
        assert_eq!(connections.each_ref().map(|(_, connection)| connection.is_evicted()), [false, true, false, false]);
        assert_eq!(slot.admitted().now_or_never(), Some(Ok(())));
    }

    #[tokio::test]
    async fn a_connection_waits_while_all_are_busy_and_the_error_names_the_limit() {
        let admission = admission(2, 1);
        let busy = [1, 2].map(|last| admission.register(address(last), Fake::new(false)));
        let same = admission.register(address(1), Fake::new(false));
        let other = admission.register(address(3), Fake::new(false));
        assert_eq!(same.admitted().await, Err(Full::Client));
        assert_eq!(other.admitted().await, Err(Full::All));
        // It is admitted when another connection closes.
        let mut waits = Box::pin(other.admitted());
        assert!(waits.as_mut().now_or_never().is_none());
        drop(busy);
        assert_eq!(waits.now_or_never(), Some(Ok(())));
        assert_eq!(same.admitted().now_or_never(), Some(Ok(())));
    }

    #[test]
    fn proxies_have_no_client_limit() {
        let admission = admission(8, 1);
        let slots: Vec<_> = (0..8).map(|last| admission.register([10, 9, 0, last].into(), Fake::new(false))).collect();
        assert!(slots.iter().all(|slot| slot.admitted().now_or_never() == Some(Ok(()))));
    }

    #[test]
    fn the_oldest_waiting_connection_is_evicted() {
        let admission = admission(1, 1);
        let _busy = admission.register(address(0), Fake::new(false));
        let own: Vec<_> = (0..=CLIENT_WAITING_MAX).map(|_| Fake::new(false)).collect();
        let _own: Vec<_> =
            own.iter().map(|connection| admission.register(address(1), Arc::clone(connection) as _)).collect();
        let evicted =
            |connections: &[Arc<Fake>]| connections.iter().filter(|connection| connection.is_evicted()).count();
        assert!(own[0].is_evicted() && evicted(&own) == 1);
        let others: Vec<_> = (0..WAITING_MAX).map(|_| Fake::new(false)).collect();
        let enter = |(last, connection): (usize, &Arc<Fake>)| {
            admission.register(address(u8::try_from(last + 2).expect("few")), Arc::clone(connection) as _)
        };
        let _others: Vec<_> = others.iter().enumerate().map(enter).collect();
        assert_eq!((evicted(&own), evicted(&others)), (own.len(), 0));
    }

    proptest! {
        /// For any sequence of connections: no limit is exceeded, and all slots are freed at the end.
        #[test]
        fn limits_hold(
            steps in prop::collection::vec((0_u8..6, any::<bool>(), any::<bool>(), 0_usize..20), 1..200),
            all in 1_usize..8,
            each in 1_usize..4,
        ) {
            let admission = admission(all, each);
            let mut slots = Vec::new();
            for (last, idle, leaves, which) in steps {
                if leaves && !slots.is_empty() {
                    drop(slots.swap_remove(which % slots.len()));
                } else {
                    slots.push(admission.register(address(last), Fake::new(idle)));
                }
                let state = admission.state();
                prop_assert!(state.admitted.entries.len() <= all && state.waiting.entries.len() <= WAITING_MAX);
                prop_assert!(state.admitted.clients.values().all(|own| own.len() <= each));
                let counted: usize = state.admitted.clients.values().map(HashSet::len).sum();
                prop_assert_eq!(counted, state.admitted.entries.len());
            }
            drop(slots);
            let state = admission.state();
            prop_assert!(state.admitted.entries.is_empty() && state.waiting.entries.is_empty());
            prop_assert!(state.admitted.clients.is_empty() && state.waiting.clients.is_empty());
        }
    }
}
