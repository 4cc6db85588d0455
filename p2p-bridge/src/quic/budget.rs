//! The memory of all QUIC connections beyond what each of them is guaranteed.
//!
//! There are two pools of the same size: one for connections that are busy, and one for what a peer may still send
//! although its connection has become idle ([`super::flow_control`]). So idle connections leave the first pool to busy
//! ones.
//!
//! For each purpose, the connections of one address get no more of a pool than a sixteenth of what is free then. So
//! something is left for later ones, and the first peers do not keep it from them.

use super::address::network;
use super::metrics::QuicMetrics;
use prometheus_client::registry::Registry;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// By what the free bytes of a pool are divided for one address.
const SHARE_DIVISOR: u64 = 16;
/// If there is not enough, a multiple of this is granted, in bytes.
const STEP: u64 = 64 * 1024;

/// The memory of all connections beyond their minimum. Clones share it.
#[derive(Debug, Clone)]
pub struct Budget {
    busy: Pool,
    idle: Pool,
    shares: Arc<Mutex<HashMap<IpAddr, Weak<Shares>>>>,
    metrics: QuicMetrics,
}

impl Budget {
    /// Two pools of some bytes each, with registered metrics.
    pub fn register(bytes: usize, registry: &mut Registry) -> Self {
        Self::with_metrics(bytes, QuicMetrics::register(registry))
    }

    #[cfg(test)]
    pub(super) fn new(bytes: usize) -> Self {
        Self::with_metrics(bytes, QuicMetrics::default())
    }

    fn with_metrics(bytes: usize, metrics: QuicMetrics) -> Self {
        let pool = || Pool::new(bytes, metrics.clone());
        Self { busy: pool(), idle: pool(), shares: Arc::default(), metrics }
    }

    /// The metrics of all connections.
    pub(super) fn metrics(&self) -> &QuicMetrics {
        &self.metrics
    }

    /// The shares of a new connection, which it has together with others of its address. Each local connection has its
    /// own.
    pub(super) fn shares(&self, ip: IpAddr) -> Arc<Shares> {
        let new = || Arc::new(Shares::new(self));
        if ip.is_loopback() {
            return new();
        }
        // No code that holds the lock can leave the map half changed.
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        shares.retain(|_, shares| shares.strong_count() > 0);
        let entry = shares.entry(network(ip)).or_default();
        entry.upgrade().unwrap_or_else(|| {
            let new = new();
            *entry = Arc::downgrade(&new);
            new
        })
    }

    /// The free bytes for busy connections, and for idle ones.
    #[cfg(test)]
    pub(super) fn free(&self) -> (usize, usize) {
        (self.busy.free.available_permits(), self.idle.free.available_permits())
    }
}

#[derive(Debug, Clone)]
struct Pool {
    free: Arc<Semaphore>,
    metrics: QuicMetrics,
}

impl Pool {
    fn new(bytes: usize, metrics: QuicMetrics) -> Self {
        Self { free: Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))), metrics }
    }

    fn share(&self) -> Arc<Share> {
        Arc::new(Share { pool: self.clone(), reserved: AtomicU64::new(0) })
    }
}

/// What the connections of one address have of the pools, by purpose: so a large receive window does not prevent a
/// large send window.
#[derive(Debug)]
pub struct Shares {
    pub receive: Arc<Share>,
    pub send: Arc<Share>,
    /// Bytes of streams that are not read.
    pub spilled: Arc<Share>,
    /// Of the pool for idle connections.
    pub idle: Arc<Share>,
}

impl Shares {
    fn new(Budget { busy, idle, .. }: &Budget) -> Self {
        Self { receive: busy.share(), send: busy.share(), spilled: busy.share(), idle: idle.share() }
    }
}

/// What the connections of one address have of a pool.
#[derive(Debug)]
pub struct Share {
    pool: Pool,
    reserved: AtomicU64,
}

impl Share {
    /// Reserves as much as possible with which the share is at most a sixteenth of what is free now.
    pub fn reserve_up_to(self: &Arc<Self>, bytes: u64) -> Option<Reserved> {
        let free = self.pool.free.available_permits() as u64;
        let possible = (free / SHARE_DIVISOR).saturating_sub(self.reserved.load(Ordering::Relaxed));
        self.take(if bytes <= possible { bytes } else { possible / STEP * STEP })
    }

    /// Reserves all of it or nothing, within the same limit.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Option<Reserved> {
        self.reserve_up_to(bytes).filter(|reserved| reserved.bytes() == bytes)
    }

    fn take(self: &Arc<Self>, bytes: u64) -> Option<Reserved> {
        let permits = u32::try_from(bytes).ok().filter(|permits| *permits > 0)?;
        let permit = Arc::clone(&self.pool.free).try_acquire_many_owned(permits).ok()?;
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        self.pool.metrics.reserved.inc_by(i64::from(permits));
        Some(Reserved { share: self.clone(), permit })
    }

    fn count_released(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        self.pool.metrics.reserved.dec_by(bytes.cast_signed());
    }
}

/// Bytes of a pool, until they are dropped.
#[derive(Debug)]
pub struct Reserved {
    share: Arc<Share>,
    permit: OwnedSemaphorePermit,
}

impl Reserved {
    pub fn bytes(&self) -> u64 {
        self.permit.num_permits() as u64
    }

    /// Adds bytes of the same share.
    pub fn merge(&mut self, mut other: Self) {
        // Nothing is left in `other`, so that dropping it releases nothing.
        if let Some(all) = other.permit.split(other.permit.num_permits()) {
            self.permit.merge(all);
        }
    }

    /// Releases some of the bytes.
    pub fn release(&mut self, bytes: u64) {
        let released = usize::try_from(bytes).ok().and_then(|bytes| self.permit.split(bytes));
        if released.is_some() {
            self.share.count_released(bytes);
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.share.count_released(self.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn budget(mib: usize) -> Budget {
        Budget::new(mib * 1024 * 1024)
    }

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(0xC633_6400 + number).into()
    }

    #[test]
    fn a_share_is_at_most_a_sixteenth_of_what_is_left() {
        let shares = budget(100).shares(address(1));
        let reserved: Vec<_> = (0..).map_while(|_| shares.receive.reserve(MIB)).collect();
        assert_eq!(reserved.len(), 5, "one more would be more than a sixteenth of the rest");
        let rest = shares.receive.reserve_up_to(MIB).expect("a part of it");
        assert_eq!(rest.bytes(), 15 * STEP);
        assert!(shares.receive.reserve_up_to(MIB).is_none());
        assert!(shares.send.reserve(MIB).is_some(), "another purpose");
    }

    #[test]
    fn connections_of_one_address_have_one_share() {
        let budget = budget(256);
        let [one, other, far] = [address(1), address(1), address(2)].map(|ip| budget.shares(ip));
        let _reserved = one.receive.reserve(15 * MIB).expect("room");
        assert!(other.receive.reserve(MIB).is_none());
        assert!(far.receive.reserve(MIB).is_some());
        drop((one, other));
        assert_eq!(budget.shares(address(3)).receive.reserved.load(Ordering::Relaxed), 0);
        assert_eq!(budget.shares.lock().expect("not poisoned").len(), 2, "addresses without a connection are removed");
    }

    #[test]
    fn local_connections_have_shares_of_their_own() {
        let (budget, local) = (budget(256), IpAddr::from([127, 0, 0, 1]));
        let [one, other] = [local, local].map(|ip| budget.shares(ip));
        let _reserved = one.receive.reserve(15 * MIB).expect("room");
        assert!(other.receive.reserve(14 * MIB).is_some());
    }

    #[test]
    fn many_greedy_peers_leave_room_for_another() {
        let budget = budget(256);
        let mut reserved = Vec::new();
        for number in 0..20 {
            let shares = budget.shares(address(number));
            for share in [&shares.receive, &shares.send, &shares.spilled] {
                reserved.extend(std::iter::from_fn(|| share.reserve_up_to(16 * MIB)));
            }
        }
        let later = budget.shares(address(200)).receive.reserve_up_to(MIB);
        assert!(later.is_some(), "free: {:?}", budget.free());
    }

    #[test]
    fn what_is_released_or_dropped_is_free_again() {
        let budget = budget(64);
        let share = &budget.shares(address(1)).receive;
        let mut one = share.reserve(MIB).expect("room");
        one.merge(share.reserve(MIB).expect("room"));
        let counted = || (share.reserved.load(Ordering::Relaxed), budget.free().0 as u64);
        assert_eq!((one.bytes(), counted()), (2 * MIB, (2 * MIB, 62 * MIB)));
        one.release(MIB / 2);
        assert_eq!((one.bytes(), counted()), (3 * MIB / 2, (3 * MIB / 2, 125 * MIB / 2)));
        one.release(4 * MIB);
        assert_eq!(one.bytes(), 3 * MIB / 2, "more than there is");
        drop(one);
        assert_eq!((counted(), budget.metrics().reserved.get()), ((0, 64 * MIB), 0));
    }

    #[test]
    fn busy_and_idle_connections_do_not_share_a_pool() {
        let budget = budget(64);
        let shares = budget.shares(address(1));
        let _busy = shares.receive.reserve(MIB).expect("room");
        let _idle = shares.idle.reserve(2 * MIB).expect("room");
        assert_eq!(budget.free(), (63 << 20, 62 << 20));
        assert_eq!(budget.metrics().reserved.get(), 3 << 20);
    }
}
