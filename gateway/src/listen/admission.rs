//! [`Admission`]: how many connections a listener has, how many of them one client has, and whose gives way.
//!
//! Goals: no client shuts others out, with however many connections; whoever looks after the process can always ask for its health.
//!
//! A connection is *admitted* if there is room for it, in all and for its client (an IPv4 address or an IPv6 network of 64 bits). When
//! there is none, an idle connection gives way, of the same client if it has its share, and otherwise of the client that has most: the
//! one that has been idle for longest. Idle is a connection whose client owes the head of a request, be it that it never sent one, that it
//! sends it slowly, or that it was answered; a new one counts as idle from a second after it began. A connection for which nobody gives
//! way *waits*, for whatever it asks but health: that is answered at once. So many may wait, and the one that waits for longest gives way
//! to the next.
//!
//! Non-goal: what a connection may do once it is admitted.

use ipnet::IpNet;
use services::limiter::{Full, network_of};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a request waits for its connection to be admitted.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How often a connection that waits looks for one that is idle.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Connections that wait at a time, and those of one client.
const WAITING_MAX: usize = 64;
const CLIENT_WAITING_MAX: usize = 8;

/// A connection, as far as it concerns admission.
pub trait Member: Send + Sync {
    /// Since when its client has owed the head of a request; `None` while a request is being answered.
    fn idle_since(&self) -> Option<Instant>;

    /// Ends it.
    fn give_way(&self);
}

/// How many connections there may be.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// In all.
    pub all: usize,
    /// Of one client.
    pub each: usize,
    /// Whose connections are those of many clients.
    pub exempt: Vec<IpNet>,
    /// How long a request on a connection that was not admitted waits for that.
    pub patience: Duration,
}

/// The connections of a listener.
pub struct Admission {
    bounds: Bounds,
    state: Mutex<State>,
    /// Somebody left.
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
    members: HashMap<u64, Entry>,
    clients: HashMap<IpAddr, HashSet<u64>>,
}

#[derive(Clone)]
struct Entry {
    /// `None` for those that are not counted by client.
    client: Option<IpAddr>,
    member: Arc<dyn Member>,
}

/// A connection that was counted, until this is dropped.
pub struct Ticket {
    admission: Arc<Admission>,
    id: u64,
    /// Asked at each request, without a lock.
    admitted: AtomicBool,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ticket({})", self.id)
    }
}

impl Pool {
    fn insert(&mut self, id: u64, entry: Entry) {
        if let Some(client) = entry.client {
            self.clients.entry(client).or_default().insert(id);
        }
        self.members.insert(id, entry);
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.members.remove(&id)?;
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

    /// The connection of a client that has been idle for longest.
    fn most_idle_of(&self, client: IpAddr) -> Option<u64> {
        let own = self.clients.get(&client).into_iter().flatten();
        own.filter_map(|id| Some((self.members.get(id)?.member.idle_since()?, *id))).min().map(|(_, id)| id)
    }

    /// The idle connection of the client that has most, and of that the one that has been idle for longest.
    fn most_idle(&self) -> Option<u64> {
        let idle = self.members.iter().filter_map(|(id, entry)| {
            let since = entry.member.idle_since()?;
            Some((Reverse(self.count_of(entry.client)), since, *id))
        });
        idle.min().map(|(.., id)| id)
    }

    /// Has a connection leave.
    fn dismiss(&mut self, id: u64) {
        if let Some(entry) = self.remove(id) {
            entry.member.give_way();
        }
    }
}

impl State {
    /// What is in the way of one more connection of a client.
    fn check_room(&self, client: Option<IpAddr>, bounds: &Bounds) -> Result<(), Full> {
        if client.is_some() && self.admitted.count_of(client) >= bounds.each {
            return Err(Full::Client);
        }
        if self.admitted.members.len() >= bounds.all { Err(Full::All) } else { Ok(()) }
    }

    /// Makes room among the admitted for one more of a client.
    fn make_room(&mut self, client: Option<IpAddr>, bounds: &Bounds) -> Result<(), Full> {
        let Err(full) = self.check_room(client, bounds) else { return Ok(()) };
        let idle = match client.filter(|_| full == Full::Client) {
            Some(client) => self.admitted.most_idle_of(client),
            None => self.admitted.most_idle(),
        };
        self.admitted.dismiss(idle.ok_or(full)?);
        Ok(())
    }

    /// Has one more wait; those that wait for longest give way.
    fn let_wait(&mut self, id: u64, entry: Entry) {
        let same = |entry: &Entry, other: &Entry| entry.client.is_some() && entry.client == other.client;
        if self.waiting.count_of(entry.client) >= CLIENT_WAITING_MAX {
            let own = self.waiting.members.iter().filter(|(_, other)| same(&entry, other)).map(|(id, _)| *id).min();
            own.into_iter().for_each(|oldest| self.waiting.dismiss(oldest));
        }
        if self.waiting.members.len() >= WAITING_MAX {
            let oldest = self.waiting.members.keys().copied().min();
            oldest.into_iter().for_each(|oldest| self.waiting.dismiss(oldest));
        }
        self.waiting.insert(id, entry);
    }
}

impl Admission {
    /// Connections within bounds.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, state: Mutex::default(), freed: Notify::new() }
    }

    /// Counts a connection from an address: it is admitted, or waits.
    pub fn enter(self: &Arc<Self>, address: IpAddr, member: Arc<dyn Member>) -> Ticket {
        let address = address.to_canonical();
        let exempt = self.bounds.exempt.iter().any(|network| network.contains(&address));
        let entry = Entry { client: (!exempt).then(|| network_of(address)), member };
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        let admitted = state.make_room(entry.client, &self.bounds).is_ok();
        match admitted {
            true => state.admitted.insert(id, entry),
            false => state.let_wait(id, entry),
        }
        Ticket { admission: Arc::clone(self), id, admitted: AtomicBool::new(admitted) }
    }

    /// Admits a connection that waits, if there is room now, or if another one may give way and is idle.
    fn try_admit(&self, id: u64, may_dismiss: bool) -> Result<(), Full> {
        let mut state = self.state();
        // One that had to give way is over.
        let entry = state.waiting.members.get(&id).cloned().ok_or(Full::All)?;
        match may_dismiss {
            true => state.make_room(entry.client, &self.bounds)?,
            false => state.check_room(entry.client, &self.bounds)?,
        }
        state.waiting.remove(id);
        state.admitted.insert(id, entry);
        Ok(())
    }

    /// A connection is over.
    pub fn leave(&self, ticket: &Ticket) {
        let mut state = self.state();
        let left = state.admitted.remove(ticket.id);
        // One that gave way is in neither.
        let gone = left.or_else(|| state.waiting.remove(ticket.id));
        drop(state);
        if gone.is_some() {
            self.freed.notify_waiters();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// Waits until the connection is admitted, for a while.
    ///
    /// # Errors
    /// [`Full`]: what is full.
    pub async fn admitted(&self) -> Result<(), Full> {
        if self.admitted.load(Ordering::Relaxed) {
            return Ok(());
        }
        let deadline = Instant::now() + self.admission.bounds.patience;
        // To look for an idle connection takes a look at all of them: now and then, and not each time that one leaves.
        let mut may_dismiss = true;
        loop {
            let freed = self.admission.freed.notified();
            let full = match self.admission.try_admit(self.id, may_dismiss) {
                Ok(()) => {
                    self.admitted.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                Err(full) => full,
            };
            if Instant::now() >= deadline {
                return Err(full);
            }
            let until = deadline.min(Instant::now() + LOOK_EVERY);
            may_dismiss = tokio::time::timeout_at(until, freed).await.is_err();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.admission.leave(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use proptest::prelude::*;

    /// A connection that is idle or not, and may have been told to give way.
    #[derive(Default)]
    struct Fake {
        idle: Mutex<Option<Instant>>,
        gone: AtomicBool,
    }

    impl Fake {
        fn new(idle: bool) -> Arc<Self> {
            Arc::new(Self { idle: Mutex::new(idle.then(Instant::now)), gone: AtomicBool::default() })
        }

        fn is_gone(&self) -> bool {
            self.gone.load(Ordering::SeqCst)
        }
    }

    impl Member for Fake {
        fn idle_since(&self) -> Option<Instant> {
            *self.idle.lock().expect("is sound")
        }

        fn give_way(&self) {
            self.gone.store(true, Ordering::SeqCst);
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
    fn the_clients_own_idle_connection_gives_way_when_it_has_its_share() {
        let admission = admission(10, 2);
        let (other, first, second, third) = (Fake::new(true), Fake::new(true), Fake::new(true), Fake::new(false));
        let _tickets = [(1, &other), (2, &first), (2, &second), (2, &third)]
            .map(|(last, member)| admission.enter(address(last), Arc::clone(member) as _));
        assert_eq!([&other, &first, &second, &third].map(|member| member.is_gone()), [false, true, false, false]);
    }

    #[test]
    fn when_all_are_taken_the_client_that_has_most_gives_way() {
        let admission = admission(4, 3);
        let members = [1, 2, 2, 2].map(|last| (last, Fake::new(true)));
        let _tickets =
            members.each_ref().map(|(last, member)| admission.enter(address(*last), Arc::clone(member) as _));
        let newcomer = Fake::new(false);
        let ticket = admission.enter(address(3), Arc::clone(&newcomer) as _);
        assert_eq!(members.each_ref().map(|(_, member)| member.is_gone()), [false, true, false, false]);
        assert_eq!(ticket.admitted().now_or_never(), Some(Ok(())));
    }

    #[tokio::test]
    async fn who_finds_everybody_busy_waits_and_is_told_what_is_full() {
        let admission = admission(2, 1);
        let busy = [1, 2].map(|last| admission.enter(address(last), Fake::new(false)));
        let same = admission.enter(address(1), Fake::new(false));
        let other = admission.enter(address(3), Fake::new(false));
        assert_eq!(same.admitted().await, Err(Full::Client));
        assert_eq!(other.admitted().await, Err(Full::All));
        // It is admitted as soon as somebody leaves.
        let mut waits = Box::pin(other.admitted());
        assert!(waits.as_mut().now_or_never().is_none());
        drop(busy);
        assert_eq!(waits.now_or_never(), Some(Ok(())));
        assert_eq!(same.admitted().now_or_never(), Some(Ok(())));
    }

    #[test]
    fn proxies_have_no_share() {
        let admission = admission(8, 1);
        let tickets: Vec<_> = (0..8).map(|last| admission.enter([10, 9, 0, last].into(), Fake::new(false))).collect();
        assert!(tickets.iter().all(|ticket| ticket.admitted().now_or_never() == Some(Ok(()))));
    }

    #[test]
    fn the_one_that_waits_for_longest_gives_way() {
        let admission = admission(1, 1);
        let _busy = admission.enter(address(0), Fake::new(false));
        let own: Vec<_> = (0..=CLIENT_WAITING_MAX).map(|_| Fake::new(false)).collect();
        let _own: Vec<_> = own.iter().map(|member| admission.enter(address(1), Arc::clone(member) as _)).collect();
        let gone = |members: &[Arc<Fake>]| members.iter().filter(|member| member.is_gone()).count();
        assert!(own[0].is_gone() && gone(&own) == 1);
        let others: Vec<_> = (0..WAITING_MAX).map(|_| Fake::new(false)).collect();
        let enter = |(last, member): (usize, &Arc<Fake>)| {
            admission.enter(address(u8::try_from(last + 2).expect("few")), Arc::clone(member) as _)
        };
        let _others: Vec<_> = others.iter().enumerate().map(enter).collect();
        assert_eq!((gone(&own), gone(&others)), (own.len(), 0));
    }

    proptest! {
        /// Whoever comes and goes, however idle: no bound is exceeded, and nothing is left behind.
        #[test]
        fn bounds_hold(
            steps in prop::collection::vec((0_u8..6, any::<bool>(), any::<bool>(), 0_usize..20), 1..200),
            all in 1_usize..8,
            each in 1_usize..4,
        ) {
            let admission = admission(all, each);
            let mut tickets = Vec::new();
            for (last, idle, leaves, which) in steps {
                if leaves && !tickets.is_empty() {
                    drop(tickets.swap_remove(which % tickets.len()));
                } else {
                    tickets.push(admission.enter(address(last), Fake::new(idle)));
                }
                let state = admission.state();
                prop_assert!(state.admitted.members.len() <= all && state.waiting.members.len() <= WAITING_MAX);
                prop_assert!(state.admitted.clients.values().all(|own| own.len() <= each));
                let counted: usize = state.admitted.clients.values().map(HashSet::len).sum();
                prop_assert_eq!(counted, state.admitted.members.len());
            }
            drop(tickets);
            let state = admission.state();
            prop_assert!(state.admitted.members.is_empty() && state.waiting.members.is_empty());
            prop_assert!(state.admitted.clients.is_empty() && state.waiting.clients.is_empty());
        }
    }
}
