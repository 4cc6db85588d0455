//! [`Connection`]: the state that the parts of one connection share: its slot, its tunnel, whether it is idle.
//!
//! Non-goals: reading and writing ([`crate::listen::http1`], [`crate::listen::monitored`]).

use crate::limits::RequestLimits;
use crate::listen::admission::{self, Admission, Slot};
use crate::listen::drain::{FIRST_REQUEST_GRACE, IDLE_GRACE};
use crate::request::client::Client;
use content::budget::Budget;
use http::Request;
use hyper::upgrade::OnUpgrade;
use services::limiter::Full;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The time for a new connection's first head, before the connection counts as idle.
const FIRST_HEAD_GRACE: Duration = Duration::from_secs(1);

/// The state that the parts of one connection share.
#[derive(Debug)]
pub struct Connection {
    peer: SocketAddr,
    /// Whether the client uses TLS.
    encrypted: AtomicBool,
    /// Whether its requests run at the same time.
    multiplexed: AtomicBool,
    /// The memory that its requests share, if they run at the same time.
    memory: OnceLock<Arc<Budget>>,
    reset: AtomicBool,
    /// Whether the end of the connection waits for that of its client.
    lingers: AtomicBool,
    /// The tunnel of the last request for one, and the address of its client, before the connection is upgraded.
    upgrade: Mutex<Option<(OnUpgrade, IpAddr)>>,
    /// The address of the client that requested the tunnel, once the connection is upgraded to one.
    tunnel_client: OnceLock<IpAddr>,
    /// Its slot in the admission control.
    slot: OnceLock<Slot>,
    /// Cancelled when the connection is evicted.
    evicted: CancellationToken,
    /// Requests in progress: from the head of each to the end of its response's body.
    exchanges: AtomicUsize,
    /// Whether there was one.
    requested: AtomicBool,
    since: Instant,
    /// The time of the last write, over HTTP/2 and HTTP/3 the end of the last exchange, in milliseconds after `since`;
    /// 0 before the first.
    sent: AtomicU64,
    /// Whether a write is pending.
    sending: AtomicBool,
    /// Whether small writes are held back, because more follows at once.
    holds_writes: AtomicBool,
}

impl Connection {
    /// A connection with the address `peer`.
    pub fn new(peer: SocketAddr) -> Self {
        Self {
            peer,
            encrypted: AtomicBool::default(),
            multiplexed: AtomicBool::default(),
            memory: OnceLock::new(),
            reset: AtomicBool::default(),
            lingers: AtomicBool::default(),
            upgrade: Mutex::default(),
            tunnel_client: OnceLock::new(),
            slot: OnceLock::new(),
            evicted: CancellationToken::new(),
            exchanges: AtomicUsize::default(),
            requested: AtomicBool::default(),
            since: Instant::now(),
            sent: AtomicU64::default(),
            sending: AtomicBool::default(),
            holds_writes: AtomicBool::default(),
        }
    }

    /// The address of the other end, a client or a proxy: for Unix sockets [`config::UNIX_PEER`], and after a header of
    /// the PROXY protocol the address in it.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether the client uses TLS.
    pub fn is_encrypted(&self) -> bool {
        self.encrypted.load(Ordering::Relaxed)
    }

    /// Records a completed TLS handshake.
    pub(super) fn encrypt(&self) {
        self.encrypted.store(true, Ordering::Relaxed);
    }

    /// Whether the requests of this connection run at the same time (HTTP/2, HTTP/3).
    pub fn is_multiplexed(&self) -> bool {
        self.multiplexed.load(Ordering::Relaxed)
    }

    /// Lets requests run at the same time.
    pub(super) fn multiplex(&self) {
        self.multiplexed.store(true, Ordering::Relaxed);
    }

    /// The memory that the requests of its client share, if they run at the same time: what one has alone, as a part of
    /// the client's. The requests of a proxy are those of several clients, each of which has its own.
    pub fn memory(&self, limits: &RequestLimits, client: &Client) -> Option<Arc<Budget>> {
        let shares = self.is_multiplexed() && client.address == self.peer.ip().to_canonical();
        let memory = || Arc::new(limits.memory_of(client.group()).for_connection());
        shares.then(|| Arc::clone(self.memory.get_or_init(memory)))
    }

    /// Whether a tunnel can be requested; nested tunnels, and tunnels beside other requests, are not supported.
    pub fn may_become_tunnel(&self) -> bool {
        self.tunnel_client.get().is_none() && !self.is_multiplexed()
    }

    /// The address of the client that requested this tunnel. A proxy that forwards the tunnel does not see its
    /// requests, so `X-Forwarded-*` headers in it come from the client and are not trusted.
    pub fn tunnel_client(&self) -> Option<IpAddr> {
        self.tunnel_client.get().copied()
    }

    /// Waits until the connection is admitted, for a limited time. Until then only health checks are answered.
    ///
    /// # Errors
    /// [`Full`]: which limit is reached.
    pub async fn admitted(&self) -> Result<(), Full> {
        let Some(slot) = self.slot.get() else { return Ok(()) };
        tokio::select! {
            biased;
            admitted = slot.admitted() => admitted,
            // The connection was evicted.
            () = self.evicted.cancelled() => Err(Full::All),
        }
    }

    /// Accepts the tunnel that a client requests. Requests in it are served by this gateway; it leads nowhere else. If
    /// the request is rejected, the connection is not upgraded, and another client of a proxy may request a tunnel.
    pub fn become_tunnel<B>(&self, request: &mut Request<B>, client: IpAddr) {
        // The upgrade holds a reference to this connection, so it must be taken out again: that happens at the end of
        // the exchange that requested it.
        if self.may_become_tunnel() {
            let requested = (hyper::upgrade::on(request), client);
            *self.upgrade.lock().unwrap_or_else(PoisonError::into_inner) = Some(requested);
        }
    }

    pub(super) fn take_tunnel(&self) -> Option<OnUpgrade> {
        let (upgrade, client) = self.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        _ = self.tunnel_client.set(client);
        Some(upgrade)
    }

    /// Records that a response was aborted: the connection is closed with a reset (RST) instead of a FIN. If it has
    /// other requests, only the stream of this response is reset.
    pub fn response_aborted(&self) {
        if !self.is_multiplexed() {
            self.reset_on_close();
        }
    }

    /// Closes the connection with a reset (RST) instead of a FIN.
    pub(super) fn reset_on_close(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }

    /// Whether the connection is closed with a reset.
    pub(super) fn is_reset(&self) -> bool {
        self.reset.load(Ordering::Relaxed)
    }

    /// Reads what arrives after the end of the connection, until the client has ended it as well.
    pub(super) fn linger_on_close(&self) {
        self.lingers.store(true, Ordering::Relaxed);
    }

    /// Whether the end of the connection waits for that of its client.
    pub(super) fn lingers(&self) -> bool {
        self.lingers.load(Ordering::Relaxed)
    }

    /// Waits until the connection is evicted.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    /// Records a write that waits for the client; returns whether it waited already.
    pub(super) fn begin_send(&self) -> bool {
        self.sending.swap(true, Ordering::Relaxed)
    }

    /// Records a completed write.
    pub(super) fn sent(&self) {
        self.sending.store(false, Ordering::Relaxed);
        // Over HTTP/2 not only requests are answered: a client could keep a connection open with pings.
        if !self.is_multiplexed() {
            self.record_activity();
        }
    }

    /// Whether a write waits for the client.
    pub(super) fn is_sending(&self) -> bool {
        self.sending.load(Ordering::Relaxed)
    }

    /// Holds small writes back, or no longer.
    pub(super) fn hold_writes(&self, holds: bool) {
        self.holds_writes.store(holds, Ordering::Relaxed);
    }

    /// Whether small writes are held back.
    pub(super) fn holds_writes(&self) -> bool {
        self.holds_writes.load(Ordering::Relaxed)
    }

    fn record_activity(&self) {
        let after = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.sent.store(after.max(1), Ordering::Relaxed);
    }

    /// Since when the server waits for the head of a request; `None` while a request or a write is in progress.
    pub(super) fn awaiting_head_since(&self) -> Option<Instant> {
        let awaits_head = self.exchanges.load(Ordering::Relaxed) == 0 && !self.sending.load(Ordering::Relaxed);
        awaits_head.then(|| self.since + Duration::from_millis(self.sent.load(Ordering::Relaxed)))
    }

    /// Waits until no request is expected any more in a drain, which has begun.
    pub(super) async fn unused_in_drain(&self) {
        if !self.requested.load(Ordering::Relaxed) {
            tokio::time::sleep_until(self.since + (FIRST_REQUEST_GRACE - IDLE_GRACE)).await;
        }
        self.head_overdue(IDLE_GRACE).await;
    }

    /// Waits until the timeout for the head of a request has passed.
    ///
    /// hyper creates a timer for each head. This uses one timer for the whole connection, which is reset only when it
    /// fires too early: once each timeout instead of once each request.
    pub(super) async fn head_overdue(&self, timeout: Duration) {
        let mut wait = pin!(tokio::time::sleep(timeout));
        loop {
            wait.as_mut().await;
            let due = self.awaiting_head_since().unwrap_or_else(Instant::now) + timeout;
            if due <= Instant::now() {
                return;
            }
            wait.as_mut().reset(due);
        }
    }
}

impl admission::Evictable for Connection {
    fn idle_since(&self) -> Option<Instant> {
        // The first head of a new connection is expected soon. Answered connections are evicted first: clients expect
        // keep-alive connections to close, and retry.
        let is_new = self.sent.load(Ordering::Relaxed) == 0;
        self.awaiting_head_since().map(|since| if is_new { since + FIRST_HEAD_GRACE } else { since })
    }

    fn evict(&self) {
        self.evicted.cancel();
    }
}

/// A request in progress; dropped with the body of its response.
pub(super) struct ActiveExchange(Arc<Connection>);

impl ActiveExchange {
    pub(super) fn begin(connection: &Arc<Connection>) -> Self {
        connection.exchanges.fetch_add(1, Ordering::Relaxed);
        connection.requested.store(true, Ordering::Relaxed);
        Self(Arc::clone(connection))
    }

    /// Its connection.
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.0
    }
}

impl Drop for ActiveExchange {
    fn drop(&mut self) {
        if self.0.is_multiplexed() {
            self.0.record_activity();
        }
        self.0.exchanges.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that is counted until this is dropped.
pub(super) struct CountedConnection {
    admission: Arc<Admission>,
    pub state: Arc<Connection>,
}

impl CountedConnection {
    pub fn register(admission: &Arc<Admission>, peer: SocketAddr) -> Self {
        Self::register_state(admission, Arc::new(Connection::new(peer)))
    }

    /// Counts a connection that was not counted yet.
    pub fn register_state(admission: &Arc<Admission>, state: Arc<Connection>) -> Self {
        let peer = state.peer;
        _ = state.slot.set(admission.register(peer.ip(), Arc::clone(&state) as _));
        Self { admission: Arc::clone(admission), state }
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        // The connection list refers to this connection, which owns its slot: this breaks the cycle.
        if let Some(slot) = self.state.slot.get() {
            self.admission.release(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::admission::Evictable as _;
    use services::client_budgets::ClientBudgets;

    /// A connection that began `ago`.
    fn connection_since(ago: Duration) -> Connection {
        let mut connection = Connection::new(([127, 0, 0, 1], 1).into());
        connection.since -= ago;
        connection
    }

    #[test]
    fn requests_that_run_at_the_same_time_share_a_part_of_their_clients_memory() {
        let memory = Arc::new(ClientBudgets::new(1000));
        let limits = RequestLimits { window_bytes_max: 600, memory, ..RequestLimits::default() };
        let client = |address: [u8; 4]| Client::new(address.into(), String::new(), true);
        let (direct, forwarded) = (client([127, 0, 0, 1]), client([192, 0, 2, 1]));
        let connections = [Duration::ZERO; 2].map(connection_since);
        assert!(connections[0].memory(&limits, &direct).is_none(), "one after the other");
        connections.iter().for_each(Connection::multiplex);
        let [one, other] =
            connections.each_ref().map(|connection| connection.memory(&limits, &direct).expect("memory"));
        assert!(Arc::ptr_eq(&one, &connections[0].memory(&limits, &direct).expect("memory")));
        assert!(!one.try_reserve(601) && one.try_reserve(600));
        assert_eq!((other.left(), limits.memory.all().left()), (150, 400));
        assert!(connections[0].memory(&limits, &forwarded).is_none(), "a proxy sends requests of several clients");
    }

    #[test]
    fn an_answered_connection_is_evicted_before_a_new_one() {
        let answered = connection_since(FIRST_HEAD_GRACE * 2);
        answered.sent();
        assert!(answered.idle_since() < connection_since(FIRST_HEAD_GRACE / 2).idle_since());
        // Only for a limited time.
        assert!(connection_since(FIRST_HEAD_GRACE * 2).idle_since() < answered.idle_since());
        // A connection that answers a request is not evicted.
        answered.exchanges.fetch_add(1, Ordering::Relaxed);
        assert_eq!(answered.idle_since(), None);
    }
}
