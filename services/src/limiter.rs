//! [`Limiter`]: a limited number of permits, with a limit for each client.
//!
//! Goals: no client can use all permits. Clients are identified by what they cannot change at will: an IPv4 address, an
//! IPv6 /64 network, a token. A request waits briefly for a permit, and is then rejected and may retry.
//!
//! Used by: requests that fetch from the network (`gateway::resolve::source`; locally stored content needs no permit),
//! lookups of the routing API, requests behind trusted proxies, archives, name lookups, uploads, imports, exports and
//! other long-running operations. Connections are limited by `gateway::listen::admission`, which replaces the oldest
//! idle one.

use crate::access::Principal;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// How long a request waits for a permit.
pub(crate) const PERMIT_WAIT: Duration = Duration::from_secs(2);

/// The mean time for which permits are held, in milliseconds, before any has been released.
const HELD_MS: u64 = 5000;

/// The identity by which a client is limited.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ClientKey {
    /// An IPv4 address, or an IPv6 /64 network, all of whose addresses one client may have.
    Network(IpAddr),
    /// A bearer token, by its ID.
    Token(Arc<str>),
}

impl From<IpAddr> for ClientKey {
    fn from(address: IpAddr) -> Self {
        Self::Network(network_of(address))
    }
}

/// The network by which a client is limited: an IPv4 address, or an IPv6 /64 network.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

impl From<&Principal> for ClientKey {
    fn from(principal: &Principal) -> Self {
        Self::Token(Arc::clone(&principal.id))
    }
}

/// Why no permit is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The client is at its limit.
    Client,
    /// All permits are taken.
    All,
}

/// A limiter of concurrent work.
#[derive(Debug)]
pub struct Limiter {
    all: Arc<Semaphore>,
    /// The number of permits.
    all_max: usize,
    each: usize,
    /// The permits of work in the background, half as many. They are not among those of requests: no request lacks one
    /// because of it.
    background: Arc<Semaphore>,
    wait: Duration,
    clients: Mutex<HashMap<ClientKey, ClientCounts>>,
    /// Notified when a client's count decreases.
    freed: Notify,
    /// The mean time for which permits are held, in milliseconds, weighted towards the latest ones.
    held_ms: AtomicU64,
}

/// The permits of a client.
#[derive(Debug, Default, PartialEq, Eq)]
struct ClientCounts {
    /// Those of its requests.
    requests: usize,
    /// Those of work in the background.
    background: usize,
}

/// A permit, which is released when it is dropped.
#[derive(Debug)]
pub struct Permit {
    since: Instant,
    // Dropped in this order: when the permit is released, the client's count is already decreased.
    counted: Counted,
    _permit: OwnedSemaphorePermit,
}

impl Limiter {
    /// A limiter with `all` permits, and `each` for a single client.
    pub fn new(all: usize, each: usize) -> Self {
        let all_max = all.min(Semaphore::MAX_PERMITS);
        Self {
            all: Arc::new(Semaphore::new(all_max)),
            all_max,
            each: each.max(1),
            background: Arc::new(Semaphore::new(all_max / 2)),
            wait: PERMIT_WAIT,
            clients: Mutex::default(),
            freed: Notify::new(),
            held_ms: AtomicU64::new(HELD_MS),
        }
    }

    /// A limiter with `all` permits, of which one client can use at most three quarters, and at least one is left.
    pub fn shared(all: usize) -> Self {
        Self::new(all, all - all.div_ceil(4).min(all.saturating_sub(1)))
    }

    /// Acquires a permit without waiting.
    ///
    /// # Errors
    /// [`Full`].
    pub fn try_acquire(self: &Arc<Self>, client: impl Into<ClientKey>) -> Result<Permit, Full> {
        let counted = self.count(client.into()).ok_or(Full::Client)?;
        let permit = Arc::clone(&self.all).try_acquire_owned().map_err(|_| Full::All)?;
        Ok(Permit::new(counted, permit))
    }

    /// Acquires a permit for work in the background without waiting, if the client uses less than half of its permits,
    /// and all clients less than half of all. Requests have as many permits as without it.
    ///
    /// # Errors
    /// [`Full`].
    pub fn try_acquire_spare(self: &Arc<Self>, client: impl Into<ClientKey>) -> Result<Permit, Full> {
        let counted = self.count_in_background(client.into()).ok_or(Full::Client)?;
        let permit = Arc::clone(&self.background).try_acquire_owned().map_err(|_| Full::All)?;
        // This one is already among those in the background.
        let in_background = self.all_max / 2 - self.background.available_permits();
        if self.held() + in_background > self.all_max / 2 {
            return Err(Full::All);
        }
        Ok(Permit::new(counted, permit))
    }

    /// The number of permits that are held, without those of work in the background.
    pub fn held(&self) -> usize {
        self.all_max - self.all.available_permits()
    }

    /// The number of permits that one client can have for work in the background.
    pub fn spare_of_client(&self) -> usize {
        self.each.min(self.all_max) / 2
    }

    /// Acquires a permit, waiting for up to two seconds.
    ///
    /// # Errors
    /// [`Full`]; immediately for a client at its limit.
    pub async fn acquire_soon(self: &Arc<Self>, client: impl Into<ClientKey>) -> Result<Permit, Full> {
        let counted = self.count(client.into()).ok_or(Full::Client)?;
        let permit = tokio::time::timeout(self.wait, Arc::clone(&self.all).acquire_owned()).await;
        let permit = permit.ok().and_then(Result::ok).ok_or(Full::All)?;
        Ok(Permit::new(counted, permit))
    }

    /// Acquires a permit, waiting without limit.
    ///
    /// # Errors
    /// [`Full::All`], never in practice: the semaphore is not closed.
    pub async fn acquire(self: &Arc<Self>, client: impl Into<ClientKey>) -> Result<Permit, Full> {
        let client = client.into();
        let counted = loop {
            let freed = self.freed.notified();
            match self.count(client.clone()) {
                Some(counted) => break counted,
                None => freed.await,
            }
        };
        let permit = Arc::clone(&self.all).acquire_owned().await.map_err(|_| Full::All)?;
        Ok(Permit::new(counted, permit))
    }

    /// When a client that got no permit should ask again: after the time for which permits are held of late.
    pub fn retry_after(&self) -> Duration {
        Duration::from_millis(self.held_ms.load(Ordering::Relaxed))
    }

    /// Includes the time for which a permit was held in the mean, with a weight of an eighth.
    fn record_held(&self, held: Duration) {
        let held_ms = u64::try_from(held.as_millis()).unwrap_or(u64::MAX);
        let mean_ms = self.held_ms.load(Ordering::Relaxed);
        // Concurrent updates may be lost: it is an estimate.
        self.held_ms.store(mean_ms - mean_ms / 8 + held_ms / 8, Ordering::Relaxed);
    }

    fn count(self: &Arc<Self>, client: ClientKey) -> Option<Counted> {
        let mut clients = self.clients();
        let held = clients.entry(client.clone()).or_default();
        if held.requests >= self.each {
            return None;
        }
        held.requests += 1;
        drop(clients);
        Some(Counted { limiter: Arc::clone(self), client, in_background: false })
    }

    /// The same for work in the background.
    fn count_in_background(self: &Arc<Self>, client: ClientKey) -> Option<Counted> {
        let spare = self.spare_of_client();
        // No entry is made for a client that can have none.
        if spare == 0 {
            return None;
        }
        let mut clients = self.clients();
        let held = clients.entry(client.clone()).or_default();
        if held.requests + held.background >= spare {
            return None;
        }
        held.background += 1;
        drop(clients);
        Some(Counted { limiter: Arc::clone(self), client, in_background: true })
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<ClientKey, ClientCounts>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    fn new(counted: Counted, permit: OwnedSemaphorePermit) -> Self {
        Self { since: Instant::now(), counted, _permit: permit }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // When a request should be sent again depends on requests only.
        if !self.counted.in_background {
            self.counted.limiter.record_held(self.since.elapsed());
        }
    }
}

/// A client's count, until this is dropped: a request may be cancelled while it waits.
#[derive(Debug)]
struct Counted {
    limiter: Arc<Limiter>,
    client: ClientKey,
    in_background: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut clients = self.limiter.clients();
        if let Some(held) = clients.get_mut(&self.client) {
            match self.in_background {
                true => held.background -= 1,
                false => held.requests -= 1,
            }
            if *held == ClientCounts::default() {
                clients.remove(&self.client);
            }
        }
        drop(clients);
        self.limiter.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn client(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[tokio::test]
    async fn clients_and_all_together_are_limited() {
        let limiter = Arc::new(Limiter { wait: Duration::from_millis(1), ..Limiter::new(3, 2) });
        let first = limiter.acquire_soon(client(1)).await;
        let second = limiter.try_acquire(client(1));
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(limiter.acquire_soon(client(1)).await.err(), Some(Full::Client));
        assert_eq!(limiter.try_acquire(client(1)).err(), Some(Full::Client));
        let third = limiter.acquire_soon(client(2)).await;
        assert!(third.is_ok());
        assert_eq!(limiter.acquire_soon(client(3)).await.err(), Some(Full::All));
        assert_eq!(limiter.try_acquire(client(3)).err(), Some(Full::All));
        drop(first);
        assert!(limiter.try_acquire(client(3)).is_ok());
        drop((second, third));
        assert!(limiter.clients().is_empty());
    }

    #[test]
    fn work_in_the_background_takes_half_of_the_permits_and_none_of_requests() {
        let limiter = Arc::new(Limiter::new(6, 4));
        assert_eq!(limiter.spare_of_client(), 2);
        let first = limiter.try_acquire_spare(client(1));
        let second = limiter.try_acquire_spare(client(1));
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(limiter.try_acquire_spare(client(1)).err(), Some(Full::Client));
        let third = limiter.try_acquire_spare(client(2));
        assert!(third.is_ok());
        assert_eq!(limiter.try_acquire_spare(client(2)).err(), Some(Full::All));
        // Requests have all of theirs.
        let requests = [1, 1, 1, 1, 3, 3].map(|last| limiter.try_acquire(client(last)).ok());
        assert!(requests.iter().all(Option::is_some));
        assert_eq!(limiter.held(), 6);
        assert_eq!(limiter.try_acquire(client(1)).err(), Some(Full::Client));
        assert_eq!(limiter.try_acquire(client(4)).err(), Some(Full::All));
        // Work in the background counts requests.
        drop((first, second, third));
        assert_eq!(limiter.try_acquire_spare(client(1)).err(), Some(Full::Client));
        assert_eq!(limiter.try_acquire_spare(client(4)).err(), Some(Full::All));
        drop(requests);
        assert!(limiter.try_acquire_spare(client(4)).is_ok());
        assert!(limiter.clients().is_empty() && limiter.held() == 0);
        assert_eq!(Arc::new(Limiter::new(1, 1)).try_acquire_spare(client(1)).err(), Some(Full::Client));
    }

    #[tokio::test]
    async fn a_permit_that_is_released_in_time_is_acquired_and_cancelled_waits_do_not_count() {
        let limiter = Arc::new(Limiter::new(1, 1));
        let first = limiter.try_acquire(client(1));
        let waits = |last| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move { limiter.acquire_soon(client(last)).await })
        };
        let (waiting, leaving) = (waits(2), waits(3));
        while limiter.clients().len() < 3 {
            tokio::task::yield_now().await;
        }
        leaving.abort();
        assert!(leaving.await.is_err());
        drop(first);
        assert!(waiting.await.expect("runs").is_ok());
        assert!(limiter.clients().is_empty());
    }

    #[tokio::test]
    async fn a_wait_at_the_clients_limit_ends() {
        let limiter = Arc::new(Limiter::new(4, 1));
        let key = || ClientKey::Token("token".into());
        let first = limiter.try_acquire(key()).expect("is free");
        let mut second = Box::pin(limiter.acquire(key()));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(second.now_or_never().expect("is free").is_ok());
    }

    #[test]
    fn the_time_for_which_permits_are_held_is_followed() {
        let limiter = Limiter::new(4, 4);
        assert_eq!(limiter.retry_after(), Duration::from_secs(5));
        for (seconds, expected) in [(8, 7.0..8.0), (1, 1.0..2.0), (3600, 3000.0..3600.0)] {
            for _ in 0..20 {
                limiter.record_held(Duration::from_secs(seconds));
            }
            assert!(expected.contains(&limiter.retry_after().as_secs_f64()), "{:?}", limiter.retry_after());
        }
        limiter.record_held(Duration::MAX);
    }

    #[test]
    fn one_client_never_has_all_permits_unless_there_is_only_one() {
        for (all, each) in [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (64, 48)] {
            assert_eq!(Limiter::shared(all).each, each, "{all}");
        }
    }

    #[test]
    fn a_client_is_an_address_or_a_network() {
        let table =
            [("192.0.2.1", "192.0.2.1"), ("::ffff:192.0.2.1", "192.0.2.1"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::")];
        for (address, key) in table {
            let parse = |text: &str| text.parse::<IpAddr>().expect("an address");
            assert_eq!(ClientKey::from(parse(address)), ClientKey::Network(parse(key)), "{address}");
        }
    }
}
