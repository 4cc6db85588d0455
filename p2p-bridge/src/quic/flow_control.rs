//! Flow control: what a peer may send before it is read, and what is sent and not acknowledged.
//!
//! QUIC has a receive window for each stream and one for each connection. It is a promise to the peer that cannot be
//! withdrawn, so that the windows of all connections bound the memory, and not its average use. Goals: the sum is
//! bounded, a connection that is fast gets large windows, no peer can starve others, and no connection stops for ever.
//!
//! 1. Every connection has a minimum, which cannot be taken from it ([`RECEIVE_MIN`], [`SEND_MIN`]).
//! 2. What exceeds the minimum is reserved from the [`Budget`] before it is promised. If the budget has not enough for
//!    a step, the step is smaller.
//! 3. The receive window doubles when a reader takes a quarter of it within half a round trip, so idle connections do
//!    not grow. The send window grows to twice the congestion window when a writer waits.
//! 4. A connection that needs no more than the minimum for a while ([`IDLE`]) gets the minimum again. What its peer may
//!    still send beyond that moves to the pool for idle connections, where it becomes less as the peer sends it. If
//!    that pool has no room, the window stays.
//! 5. A stream that is not read counts against the window of its whole connection. Within a second, its bytes are
//!    spilled from QUIC into memory of the same budget ([`super::stream`]), which frees the window for the other
//!    streams. If the budget has no room for them, the stream is stopped after a few more seconds. So streams that wait
//!    for each other go on.
//! 6. Windows count bytes of streams. What quinn keeps beside them, for each frame and each packet with a gap before
//!    it, is limited by the number of frames ([`FrameAllowance`]) and of streams.

use super::budget::{Budget, Reserved, Share, Shares};
use super::congestion::HyStartCubic;
use super::metrics::QuicMetrics;
use quinn::{Connection, VarInt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The receive window of a new connection, in bytes: as in quic-go.
pub const RECEIVE_MIN: u32 = 768 * 1024;
/// The maximum receive window of a connection, in bytes: a round trip of 100 ms at 1.3 Gbit/s.
const RECEIVE_MAX: u32 = 16 * 1024 * 1024;
/// The receive window of a stream, in bytes.
pub const STREAM_RECEIVE_MAX: u32 = 10 * 1024 * 1024;
/// The send window of a new connection, in bytes.
pub const SEND_MIN: u64 = 256 * 1024;
/// The maximum send window of a connection, in bytes: a round trip of 100 ms at 800 Mbit/s.
const SEND_MAX: u64 = 10 * 1024 * 1024;
/// The send window grows by no less than this part of itself.
const SEND_STEP_DIVISOR: u64 = 8;
/// How long a connection transfers less than the minimum before its window is reduced.
const IDLE: Duration = Duration::from_secs(5);
/// A peer that delays its acknowledgements does not count as fast for that.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(500);

/// Flow control of one connection.
pub struct FlowControl {
    connection: Connection,
    shares: Arc<Shares>,
    /// Bytes that have left QUIC.
    read: AtomicU64,
    /// How many bytes must have been read before the receive window is considered again.
    considered_at: AtomicU64,
    written: AtomicU64,
    windows: Mutex<Windows>,
    metrics: QuicMetrics,
}

struct Windows {
    receive: ReceiveWindow,
    send: SendWindow,
    frames: FrameAllowance,
}

impl FlowControl {
    /// The windows of a new connection, which it was configured with: the minimum.
    pub fn new(connection: Connection, budget: &Budget) -> Arc<Self> {
        let now = Instant::now();
        let windows =
            Windows { receive: ReceiveWindow::new(now), send: SendWindow::new(now), frames: FrameAllowance::new(now) };
        Arc::new(Self {
            shares: budget.shares(connection.remote_address().ip()),
            connection,
            read: AtomicU64::new(0),
            considered_at: AtomicU64::new(u64::from(RECEIVE_MIN / 4)),
            written: AtomicU64::new(0),
            windows: Mutex::new(windows),
            metrics: budget.metrics().clone(),
        })
    }

    /// Memory for bytes that are spilled from QUIC.
    pub fn reserve_spilled(&self, bytes: usize) -> Option<Reserved> {
        self.shares.spilled.reserve(bytes as u64)
    }

    /// A stream is stopped because there is no memory for its bytes.
    pub fn count_stopped(&self) {
        self.metrics.stopped_streams.inc();
    }

    /// Bytes were spilled from QUIC, which does not show that a reader is fast.
    pub fn count_spilled(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes were read from QUIC. The window is considered after each quarter of it.
    pub fn count_read(&self, bytes: usize) {
        let read = self.read.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if read < self.considered_at.load(Ordering::Relaxed) {
            return;
        }
        let round_trip = self.connection.rtt();
        let receive = &mut self.windows().receive;
        if read < self.considered_at.load(Ordering::Relaxed) {
            // The reader of another stream was faster.
            return;
        }
        if let Some(bytes) = receive.grow_if_fast(read, Instant::now(), round_trip, &self.shares.receive) {
            self.connection.set_receive_window(VarInt::from_u32(bytes));
        }
        self.considered_at.store(read + u64::from(receive.bytes / 4), Ordering::Relaxed);
    }

    /// Bytes were written.
    pub fn count_written(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A writer waits. Returns whether it may write more now.
    pub fn grow_send_window(&self) -> bool {
        let congestion_window = self.connection.stats().path.cwnd;
        let send = &mut self.windows().send;
        let Some(bytes) = send.grow(congestion_window, &self.shares.send) else { return false };
        self.connection.set_send_window(bytes);
        true
    }

    /// Whether a window exceeds its minimum, so that [`Self::tick`] may have something to do.
    pub fn is_raised(&self) -> bool {
        let windows = self.windows();
        windows.receive.reserved.is_some() || windows.send.reserved.is_some()
    }

    /// Reduces the windows of an idle connection, and ends one whose peer wastes memory. Called twice a second or so.
    pub fn tick(&self) {
        let (read, written) = (self.read.load(Ordering::Relaxed), self.written.load(Ordering::Relaxed));
        let frames = self.connection.stats().frame_rx.stream;
        let now = Instant::now();
        let windows = &mut *self.windows();
        if !windows.frames.allows(frames, read, now) {
            tracing::debug!(peer = %self.connection.remote_address(), frames, read, "too many small QUIC frames");
            self.metrics.closed.inc();
            self.connection.close(VarInt::from_u32(0), b"too many small frames");
        }
        // Memory is released after the window has been reduced.
        if let Some(_released) = windows.receive.reduce_if_idle(read, now, &self.shares.idle) {
            self.connection.set_receive_window(VarInt::from_u32(RECEIVE_MIN));
        }
        if let Some(_released) = windows.send.reduce_if_idle(written, now, || self.acknowledged_at()) {
            self.connection.set_send_window(SEND_MIN);
        }
    }

    /// When everything that had been sent was acknowledged, the last time.
    fn acknowledged_at(&self) -> Option<Instant> {
        let controller = self.connection.congestion_state().into_any();
        controller.downcast_ref::<HyStartCubic>()?.acknowledged_at()
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        // No code that holds the lock can leave the windows half changed.
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A moment, and how many bytes had been transferred then.
#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Instant,
    bytes: u64,
}

impl Mark {
    fn new(at: Instant, bytes: u64) -> Self {
        Self { at, bytes }
    }

    /// Whether fewer bytes than `minimum` were transferred for [`IDLE`]; then they have been since the mark.
    fn is_idle(&mut self, now: Instant, bytes: u64, minimum: u64) -> bool {
        if bytes.saturating_sub(self.bytes) >= minimum {
            *self = Self::new(now, bytes);
        }
        now.saturating_duration_since(self.at) >= IDLE
    }
}

/// What the peer may send before it is read: the window, and the surplus.
#[derive(Debug)]
struct ReceiveWindow {
    bytes: u32,
    /// What exceeds the minimum.
    reserved: Option<Reserved>,
    /// What the peer may send beyond the window because it was larger. The peer gets no credit until it has sent that.
    surplus: Option<Reserved>,
    /// How many bytes had been read when the surplus was last reduced.
    read: u64,
    /// When the window was last considered.
    considered: Mark,
    idle: Mark,
}

impl ReceiveWindow {
    fn new(now: Instant) -> Self {
        let mark = Mark::new(now, 0);
        Self { bytes: RECEIVE_MIN, reserved: None, surplus: None, read: 0, considered: mark, idle: mark }
    }

    /// Doubles the window if half of it is read within a round trip, of which the last quarter was measured.
    fn grow_if_fast(&mut self, read: u64, now: Instant, round_trip: Duration, share: &Arc<Share>) -> Option<u32> {
        self.reduce_surplus(read);
        let last = std::mem::replace(&mut self.considered, Mark::new(now, read));
        if now.saturating_duration_since(last.at) > round_trip.min(ROUND_TRIP_MAX) / 2 {
            return None;
        }
        let more = share.reserve_up_to(u64::from(self.bytes.min(RECEIVE_MAX - self.bytes)))?;
        self.bytes += u32::try_from(more.bytes()).ok()?;
        add(&mut self.reserved, more);
        Some(self.bytes)
    }

    /// Reduces the window of an idle connection. Returns what it had reserved.
    fn reduce_if_idle(&mut self, read: u64, now: Instant, idle_share: &Arc<Share>) -> Option<Reserved> {
        self.reduce_surplus(read);
        if !self.idle.is_idle(now, read, u64::from(RECEIVE_MIN)) || self.reserved.is_none() {
            return None;
        }
        add(&mut self.surplus, idle_share.reserve(u64::from(self.bytes - RECEIVE_MIN))?);
        self.bytes = RECEIVE_MIN;
        self.reserved.take()
    }

    fn reduce_surplus(&mut self, read: u64) {
        let newly_read = read.saturating_sub(self.read);
        self.read = self.read.max(read);
        if let Some(surplus) = &mut self.surplus {
            if surplus.bytes() <= newly_read {
                self.surplus = None;
            } else {
                surplus.release(newly_read);
            }
        }
    }
}

/// What may be sent and not acknowledged.
#[derive(Debug)]
struct SendWindow {
    bytes: u64,
    /// What exceeds the minimum.
    reserved: Option<Reserved>,
    idle: Mark,
}

impl SendWindow {
    fn new(now: Instant) -> Self {
        Self { bytes: SEND_MIN, reserved: None, idle: Mark::new(now, 0) }
    }

    /// Grows to twice the congestion window.
    fn grow(&mut self, congestion_window: u64, share: &Arc<Share>) -> Option<u64> {
        let wanted = congestion_window.saturating_mul(2).min(SEND_MAX);
        let more = wanted.checked_sub(self.bytes).filter(|more| *more >= self.bytes / SEND_STEP_DIVISOR)?;
        let more = share.reserve_up_to(more)?;
        self.bytes += more.bytes();
        add(&mut self.reserved, more);
        Some(self.bytes)
    }

    /// Reduces the window of an idle connection. Returns what it had reserved. If everything was acknowledged at a time
    /// since which less than the minimum was written, no more than that is not acknowledged now.
    fn reduce_if_idle(
        &mut self,
        written: u64,
        now: Instant,
        acknowledged_at: impl FnOnce() -> Option<Instant>,
    ) -> Option<Reserved> {
        if !self.idle.is_idle(now, written, SEND_MIN) || self.reserved.is_none() {
            return None;
        }
        acknowledged_at().filter(|at| *at > self.idle.at)?;
        self.bytes = SEND_MIN;
        self.reserved.take()
    }
}

/// Adds to what is reserved.
fn add(reserved: &mut Option<Reserved>, more: Reserved) {
    match reserved {
        Some(reserved) => reserved.merge(more),
        None => *reserved = Some(more),
    }
}

/// How many stream frames a peer may send. quinn keeps some 60 bytes for each that waits for a gap to be filled, sorts
/// them, and keeps a whole packet for small ones, all of which windows do not count. Peers with content to send fill
/// their packets, and messages are a frame or two.
#[derive(Debug)]
struct FrameAllowance {
    credit: u64,
    frames: u64,
    read: u64,
    at: Instant,
}

impl FrameAllowance {
    /// How many frames are allowed at once.
    const BURST: u64 = 50_000;
    /// How many are allowed in a millisecond.
    const PER_MS: u64 = 1;
    /// For how many bytes that are read a frame is allowed.
    const BYTES: u64 = 16;

    fn new(now: Instant) -> Self {
        Self { credit: Self::BURST, frames: 0, read: 0, at: now }
    }

    /// Whether a peer may have sent so many frames until now.
    fn allows(&mut self, frames: u64, read: u64, now: Instant) -> bool {
        let elapsed = u64::try_from(now.saturating_duration_since(self.at).as_millis()).unwrap_or(u64::MAX);
        let earned = elapsed.saturating_mul(Self::PER_MS) + read.saturating_sub(self.read) / Self::BYTES;
        let spent = frames.saturating_sub(self.frames);
        (self.frames, self.read, self.at) = (frames, read, now);
        let left = self.credit.saturating_add(earned).checked_sub(spent);
        self.credit = left.unwrap_or_default().min(Self::BURST);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    const RTT: Duration = Duration::from_millis(50);
    const MIN: u64 = RECEIVE_MIN as u64;

    fn shares(budget: &Budget) -> Arc<Shares> {
        budget.shares(IpAddr::from([192, 0, 2, 1]))
    }

    /// A receive window, and what is read.
    struct Receiver {
        window: ReceiveWindow,
        budget: Budget,
        total: u64,
        shares: Arc<Shares>,
        now: Instant,
        read: u64,
    }

    impl Receiver {
        fn new(budget_mib: usize) -> Self {
            let (total, now) = (budget_mib << 20, Instant::now());
            let budget = Budget::new(total);
            let (window, shares) = (ReceiveWindow::new(now), shares(&budget));
            Self { window, budget, total: total as u64, shares, now, read: 0 }
        }

        /// Reads a quarter of the window in some time.
        fn read_quarter(&mut self, in_time: Duration) -> Option<u32> {
            self.now += in_time;
            self.read += u64::from(self.window.bytes / 4);
            self.window.grow_if_fast(self.read, self.now, RTT, &self.shares.receive)
        }

        /// Reads some bytes in a while. Returns whether the window was reduced.
        fn read_slowly(&mut self, bytes: u64) -> bool {
            self.now += IDLE;
            self.read += bytes;
            self.window.reduce_if_idle(self.read, self.now, &self.shares.idle).is_some()
        }

        /// What is reserved of both pools.
        fn used(&self) -> (u64, u64) {
            let (busy, idle) = self.budget.free();
            (self.total - busy as u64, self.total - idle as u64)
        }
    }

    #[test]
    fn the_receive_window_of_a_fast_connection_doubles() {
        let mut receiver = Receiver::new(1024);
        assert_eq!(receiver.read_quarter(RTT), None, "that is slow");
        let mut window = RECEIVE_MIN;
        while window < RECEIVE_MAX {
            window = (window * 2).min(RECEIVE_MAX);
            assert_eq!(receiver.read_quarter(RTT / 2), Some(window));
        }
        assert_eq!(receiver.read_quarter(RTT / 2), None, "it has the maximum");
        assert_eq!(receiver.used(), ((RECEIVE_MAX - RECEIVE_MIN).into(), 0));
    }

    #[test]
    fn a_peer_that_delays_its_acknowledgements_is_not_fast() {
        let mut receiver = Receiver::new(1024);
        receiver.read = MIN;
        receiver.now += Duration::from_secs(1);
        let hour = Duration::from_secs(3600);
        assert_eq!(receiver.window.grow_if_fast(receiver.read, receiver.now, hour, &receiver.shares.receive), None);
    }

    #[test]
    fn with_little_memory_the_receive_window_grows_a_little_or_stays() {
        let mut receiver = Receiver::new(8);
        assert_eq!(receiver.read_quarter(RTT / 2), Some(RECEIVE_MIN + 512 * 1024), "a sixteenth");
        assert_eq!(receiver.read_quarter(RTT / 2), None);
        assert_eq!(Receiver::new(0).read_quarter(RTT / 2), None);
    }

    #[test]
    fn an_idle_connection_has_the_minimum_and_a_surplus_until_that_is_read() {
        let mut receiver = Receiver::new(256);
        for _ in 0..3 {
            receiver.read_quarter(RTT / 2).expect("it grows");
        }
        assert_eq!(receiver.used(), (7 * MIN, 0));
        assert!(!receiver.read_slowly(MIN), "it is busy");
        assert!(receiver.read_slowly(1000));
        assert_eq!(receiver.window.bytes, RECEIVE_MIN);
        assert_eq!(receiver.used(), (0, 7 * MIN));
        assert!(!receiver.read_slowly(1000), "it has the minimum already");
        assert_eq!(receiver.used(), (0, 7 * MIN - 1000));
        // Busy again: the window grows while the peer uses up the surplus.
        assert_eq!(receiver.read_quarter(RTT / 2), None, "nothing was measured before");
        receiver.read_quarter(RTT / 2).expect("it grows");
        assert_eq!(receiver.used(), (MIN, 7 * MIN - 1000 - MIN / 2));
        receiver.read_slowly(7 * MIN);
        assert_eq!(receiver.used(), (MIN, 0));
    }

    #[test]
    fn without_memory_for_idle_connections_the_receive_window_stays() {
        let mut receiver = Receiver::new(256);
        receiver.read_quarter(RTT / 2).expect("it grows");
        let reserve = |host| {
            let shares = receiver.budget.shares(IpAddr::from([198, 51, 100, host]));
            std::iter::from_fn(move || shares.idle.reserve(MIN))
        };
        let others: Vec<_> = (0..=255).flat_map(reserve).collect();
        assert!(!receiver.read_slowly(0));
        assert_eq!(receiver.window.bytes, 2 * RECEIVE_MIN);
        drop(others);
        assert!(receiver.read_slowly(0));
        assert_eq!(receiver.used(), (0, MIN));
    }

    #[test]
    fn the_send_window_follows_the_congestion_window() {
        let (budget, now) = (Budget::new(1 << 30), Instant::now());
        let (shares, mut window) = (shares(&budget), SendWindow::new(now));
        let table = [
            (SEND_MIN / 2, None),
            (SEND_MIN, Some(2 * SEND_MIN)),
            (SEND_MIN + 1000, None),
            (SEND_MIN / 2, None),
            (u64::MAX, Some(SEND_MAX)),
            (u64::MAX, None),
        ];
        for (congestion_window, expected) in table {
            assert_eq!(window.grow(congestion_window, &shares.send), expected, "{congestion_window}");
        }
        assert_eq!(budget.free().0 as u64, (1 << 30) - (SEND_MAX - SEND_MIN));
    }

    #[test]
    fn the_send_window_grows_as_far_as_there_is_memory() {
        let budget = Budget::new(8 << 20);
        let mut window = SendWindow::new(Instant::now());
        assert_eq!(window.grow(u64::MAX, &shares(&budget).send), Some(SEND_MIN + 512 * 1024));
    }

    #[test]
    fn the_send_window_is_reduced_when_little_is_written_and_all_is_acknowledged() {
        let (budget, start) = (Budget::new(1 << 30), Instant::now());
        let (shares, mut window) = (shares(&budget), SendWindow::new(start));
        window.grow(SEND_MAX, &shares.send).expect("room");
        let at = |seconds| start + Duration::from_secs(seconds);
        // The time, what is written in all, when it was acknowledged, and whether the window is reduced.
        let table = [
            (5, SEND_MIN, Some(5), false),
            (9, SEND_MIN + 1, Some(9), false),
            (10, SEND_MIN + 1, Some(5), false),
            (11, SEND_MIN + 1, None, false),
            (11, SEND_MIN + 1, Some(6), true),
        ];
        for (seconds, written, acknowledged, is_reduced) in table {
            let released = window.reduce_if_idle(written, at(seconds), || acknowledged.map(at));
            assert_eq!(released.is_some(), is_reduced, "{seconds} s");
        }
        assert_eq!((window.bytes, budget.free().0), (SEND_MIN, 1 << 30));
    }

    #[test]
    fn frames_are_allowed_by_time_and_by_what_they_carry() {
        const BURST: u64 = FrameAllowance::BURST;
        let start = Instant::now();
        // The time, frames and bytes in all, and whether so many frames are allowed.
        let tables: [&[(u64, u64, u64, bool)]; 4] = [
            &[(0, BURST, 0, true), (0, BURST + 1, 0, false)],
            &[(1, BURST + 1_001, 0, false)],
            &[(1, BURST + 1_000, 0, true), (100, BURST + 100_000, 0, true)],
            // Idle time allows no larger burst, and content in full packets is never too much.
            &[
                (1_000, 0, 0, true),
                (1_001, 10_000_000, 12_000_000_000, true),
                (1_001, 10_050_001, 12_000_000_000, false),
            ],
        ];
        for table in tables {
            let mut allowance = FrameAllowance::new(start);
            for (seconds, frames, read, is_allowed) in table {
                let now = start + Duration::from_secs(*seconds);
                assert_eq!(allowance.allows(*frames, *read, now), *is_allowed, "{seconds} s, {frames} frames");
            }
        }
    }
}
