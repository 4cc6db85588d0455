//! Memory of QUIC connections: what peers have sent and nobody has read, and what is sent and not acknowledged.
//!
//! Flow control of QUIC has a limit for each stream and one for each connection. A limit is a promise to the peer,
//! which cannot be withdrawn, so that the limits of all connections bound the memory, and not its average use. Goals:
//! the sum is bounded, a connection that is fast gets large limits, no peer can starve others, and no connection stops
//! for ever.
//!
//! 1. Every connection has a minimum, which nobody can take ([`RECEIVE_MIN`], [`SEND_MIN`]).
//! 2. What exceeds the minimum comes from one [`Budget`]. A connection gets no more than a sixteenth of what is free
//!    then, so that something is always left, and the first connections do not keep it from later ones.
//! 3. The receive limit doubles when a reader takes half of it within a round trip, so idle connections do not grow. It
//!    is kept until the connection ends. The send limit grows to twice the congestion window when a writer waits, and
//!    shrinks to the minimum when everything is acknowledged and nothing was written for a while.
//! 4. A stream that is not read counts against the limit of its whole connection. Within a second, its bytes are moved
//!    out of QUIC into memory of the same budget, which frees the limit for the other streams. If the budget has no
//!    room for them, the stream is stopped after a few more seconds. So streams that wait for each other go on.

use super::congestion::HyStartCubic;
use quinn::{Connection, VarInt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The receive limit of a new connection, in bytes: as in quic-go.
pub const RECEIVE_MIN: u32 = 768 * 1024;
/// The maximum receive limit of a connection, in bytes: a round trip of 100 ms at 1.3 Gbit/s.
const RECEIVE_MAX: u32 = 16 * 1024 * 1024;
/// The receive limit of a stream, in bytes.
pub const STREAM_RECEIVE_MAX: u32 = 10 * 1024 * 1024;
/// The send limit of a new connection, in bytes.
pub const SEND_MIN: u64 = 256 * 1024;
/// The maximum send limit of a connection, in bytes. With 16 MiB, slow start exceeded the socket buffer of a path's
/// next hop.
const SEND_MAX: u64 = 10 * 1024 * 1024;
/// By what the free bytes of the budget are divided for one connection.
const SHARE_DIVISOR: u64 = 16;
/// How long nothing was written before the send limit shrinks.
const SEND_IDLE: Duration = Duration::from_secs(5);

/// The memory of all connections beyond their minimum, in bytes. Clones share it.
#[derive(Debug, Clone)]
pub struct Budget {
    free: Arc<Semaphore>,
}

impl Budget {
    /// A budget of some bytes.
    pub fn new(bytes: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))) }
    }

    fn share(&self) -> Share {
        Share { budget: self.clone(), held: AtomicU64::new(0) }
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.free.available_permits()
    }
}

/// What one connection has of the budget.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    held: AtomicU64,
}

/// Bytes of the budget, until they are dropped.
#[derive(Debug)]
pub struct Reserved {
    share: Arc<Share>,
    permit: OwnedSemaphorePermit,
}

impl Share {
    /// Reserves bytes, if the connection then has at most a sixteenth of what is free.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reserved> {
        let free = self.budget.free.available_permits() as u64;
        if self.held.load(Ordering::Relaxed).saturating_add(bytes) > free / SHARE_DIVISOR {
            return None;
        }
        let permits = u32::try_from(bytes).ok()?;
        let permit = Arc::clone(&self.budget.free).try_acquire_many_owned(permits).ok()?;
        self.held.fetch_add(bytes, Ordering::Relaxed);
        Some(Reserved { share: self.clone(), permit })
    }
}

impl Reserved {
    /// Adds bytes of the same connection.
    pub fn merge(&mut self, mut other: Self) {
        if let Some(all) = other.permit.split(other.permit.num_permits()) {
            self.permit.merge(all);
            // Each counts what it had itself when it is dropped.
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.share.held.fetch_sub(self.permit.num_permits() as u64, Ordering::Relaxed);
    }
}

/// The limits of one connection.
pub struct Limits {
    connection: Connection,
    share: Arc<Share>,
    read: AtomicU64,
    /// How many bytes must have been read before the receive limit is considered again.
    considered_at: AtomicU64,
    written: AtomicU64,
    state: Mutex<State>,
}

struct State {
    receive: u32,
    read_at_mark: u64,
    mark: Instant,
    send: u64,
    written_at_tick: u64,
    idle_since: Instant,
    reserved: Reservations,
}

#[derive(Default)]
struct Reservations {
    receive: Option<Reserved>,
    send: Option<Reserved>,
}

/// Adds to what is reserved.
fn add(reserved: &mut Option<Reserved>, more: Reserved) {
    match reserved {
        Some(reserved) => reserved.merge(more),
        None => *reserved = Some(more),
    }
}

impl Limits {
    /// The limits of a new connection, which it was configured with: the minimum.
    pub fn new(connection: Connection, budget: &Budget) -> Arc<Self> {
        let now = Instant::now();
        let state = State {
            receive: RECEIVE_MIN,
            read_at_mark: 0,
            mark: now,
            send: SEND_MIN,
            written_at_tick: 0,
            idle_since: now,
            reserved: Reservations::default(),
        };
        Arc::new(Self {
            connection,
            share: Arc::new(budget.share()),
            read: AtomicU64::new(0),
            considered_at: AtomicU64::new(u64::from(RECEIVE_MIN / 4)),
            written: AtomicU64::new(0),
            state: Mutex::new(state),
        })
    }

    /// What the connection has of the budget.
    pub fn share(&self) -> &Arc<Share> {
        &self.share
    }

    /// Bytes were read. The limit doubles if half of it is read within a round trip; a quarter is measured.
    pub fn count_read(&self, bytes: usize) {
        let read = self.read.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if read < self.considered_at.load(Ordering::Relaxed) {
            return;
        }
        let round_trip = self.connection.rtt();
        let mut state = self.state();
        let is_fast = state.mark.elapsed() <= round_trip / 2 && read > state.read_at_mark;
        if is_fast && let Some(limit) = self.larger_receive_limit(&mut state) {
            self.connection.set_receive_window(VarInt::from_u32(limit));
        }
        state.mark = Instant::now();
        state.read_at_mark = read;
        self.considered_at.store(read + u64::from(state.receive / 4), Ordering::Relaxed);
    }

    fn larger_receive_limit(&self, state: &mut State) -> Option<u32> {
        let limit = state.receive.saturating_mul(2).min(RECEIVE_MAX);
        let more = limit.checked_sub(state.receive).filter(|more| *more > 0)?;
        add(&mut state.reserved.receive, self.share.reserve(u64::from(more))?);
        state.receive = limit;
        Some(limit)
    }

    /// Bytes were written.
    pub fn count_written(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A writer waits. Returns whether it may write more now.
    pub fn raise_send_limit(&self) -> bool {
        let window = self.connection.stats().path.cwnd;
        let limit = window.saturating_mul(2).min(SEND_MAX);
        let mut state = self.state();
        let Some(more) = limit.checked_sub(state.send).filter(|more| *more > 0) else { return false };
        let Some(reserved) = self.share.reserve(more) else { return false };
        add(&mut state.reserved.send, reserved);
        state.send = limit;
        self.connection.set_send_window(limit);
        true
    }

    /// Lowers the send limit of an idle connection. Called twice a second or so.
    pub fn tick(&self) {
        let written = self.written.load(Ordering::Relaxed);
        let mut state = self.state();
        if written != state.written_at_tick {
            state.written_at_tick = written;
            state.idle_since = Instant::now();
        }
        if state.reserved.send.is_none() || state.idle_since.elapsed() < SEND_IDLE || !self.is_acknowledged() {
            return;
        }
        // In this order, because writers of other threads use the limit as soon as it is set.
        self.connection.set_send_window(SEND_MIN);
        state.send = SEND_MIN;
        state.reserved.send = None;
    }

    /// Whether everything that was sent is acknowledged. QUIC accepts no more from writers than the peer allows, so
    /// that nothing is unsent then either.
    fn is_acknowledged(&self) -> bool {
        let controller = self.connection.congestion_state().into_any();
        controller.downcast_ref::<HyStartCubic>().is_some_and(HyStartCubic::is_idle)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can leave the limits half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn a_connection_gets_at_most_a_sixteenth_of_what_is_left() {
        let budget = Budget::new(100 * 1024 * 1024);
        let share = Arc::new(budget.share());
        let mut reserved = Vec::new();
        while let Some(more) = share.reserve(MIB) {
            reserved.push(more);
        }
        assert_eq!(reserved.len(), 5, "one more would be more than a sixteenth of the rest");
    }

    #[test]
    fn many_greedy_connections_leave_room_for_another() {
        let budget = Budget::new(256 * 1024 * 1024);
        let mut reserved = Vec::new();
        for _ in 0..50 {
            let share = Arc::new(budget.share());
            while let Some(more) = share.reserve(MIB / 4) {
                reserved.push(more);
            }
        }
        let later = Arc::new(budget.share());
        assert!(later.reserve(MIB / 2).is_some(), "free: {}", budget.free());
    }

    #[test]
    fn what_is_dropped_is_free_again() {
        let budget = Budget::new(64 * 1024 * 1024);
        let share = Arc::new(budget.share());
        let mut one = share.reserve(MIB).expect("room");
        one.merge(share.reserve(MIB).expect("room"));
        assert_eq!(share.held.load(Ordering::Relaxed), 2 * MIB);
        assert_eq!(budget.free() as u64, 62 * MIB);
        drop(one);
        assert_eq!(share.held.load(Ordering::Relaxed), 0);
        assert_eq!(budget.free() as u64, 64 * MIB);
    }
}
