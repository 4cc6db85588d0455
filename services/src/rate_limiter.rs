//! [`RateLimiter`]: a token bucket for each client, from which it pays for what its requests cost on the network, or
//! for certificates that are ordered for it.
//!
//! Goals: the mean rate of a client is limited, whatever its requests cost. A cost that is known before the work is
//! paid before; one that is known afterwards, such as the bytes that were fetched, is charged then, and the client's
//! next work waits. After a pause a client may spend a burst at once. Memory is bounded: when the
//! state has the maximum number of clients, the least recently charged one is evicted.
//!
//! Non-goals: limits of concurrent work ([`crate::limiter`]); content that is stored locally costs nothing.
//!
//! The algorithm is the generic cell rate algorithm (ITU-T I.371): the state of a bucket is the time at which it will be
//! full. The crate `governor` implements it too, but cannot charge for work that is done.

use crate::limiter::{ClientKey, PERMIT_WAIT};
use hashlink::LruCache;
use std::hash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The maximum number of clients whose buckets are kept.
const CLIENTS_MAX: usize = 16_384;
/// The number of fetched bytes that cost as much as a request.
const BYTES_PER_TOKEN: f64 = (1 << 20) as f64;

/// When the bucket of each client will be full. The hashes are keyed, so that clients cannot construct collisions.
type Buckets = LruCache<ClientKey, Instant, RandomState>;

/// A token bucket for each client.
#[derive(Debug)]
pub struct RateLimiter {
    /// The time in which a token is added.
    per_token: Duration,
    /// The time in which an empty bucket fills.
    capacity: Duration,
    /// When each bucket will be full.
    full_at: Mutex<Buckets>,
}

impl RateLimiter {
    /// Buckets of `burst` tokens, at least one, to which `rate` tokens are added per second. `None` if the rate is
    /// zero, which means no limit.
    pub fn new(rate: u32, burst: u32) -> Option<Self> {
        let per_token = Duration::from_secs(1).checked_div(rate)?;
        let capacity = per_token.saturating_mul(burst.max(1));
        Some(Self { per_token, capacity, full_at: Mutex::new(LruCache::with_hasher(CLIENTS_MAX, RandomState::new())) })
    }

    /// Buckets of `burst` tokens, at least one, of which an empty one is full again after `period`.
    pub fn filled_in(period: Duration, burst: u64) -> Self {
        let burst = u32::try_from(burst.max(1)).unwrap_or(u32::MAX);
        let per_token = period / burst;
        let full_at = Mutex::new(LruCache::with_hasher(CLIENTS_MAX, RandomState::new()));
        Self { per_token, capacity: per_token.saturating_mul(burst), full_at }
    }

    /// Whether the client has a token.
    pub fn has_token(&self, client: &ClientKey, now: Instant) -> bool {
        full_in(&mut self.buckets(), client, now) + self.per_token <= self.capacity
    }

    /// Takes a token, also one that the client does not have yet.
    pub fn take(&self, client: ClientKey, now: Instant) {
        let mut buckets = self.buckets();
        let full_in = full_in(&mut buckets, &client, now) + self.per_token;
        buckets.insert(client, now + full_in);
    }

    /// Takes a token, waiting for up to two seconds.
    ///
    /// # Errors
    /// The time after which the client has a token.
    pub async fn acquire_soon(&self, client: impl Into<ClientKey>) -> Result<(), Duration> {
        let wait = self.reserve(client.into(), Instant::now())?;
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }

    /// Takes a token for work in the background, if half of the burst is left after it for the client's requests.
    ///
    /// # Errors
    /// The time after which there is such a token.
    pub fn try_acquire_spare(&self, client: impl Into<ClientKey>) -> Result<(), Duration> {
        self.take_spare(client.into(), self.per_token, Instant::now())
    }

    /// Checks that half of the burst is left, without which work in the background does not go on.
    ///
    /// # Errors
    /// The time after which it is left.
    pub fn check_spare(&self, client: impl Into<ClientKey>) -> Result<(), Duration> {
        self.take_spare(client.into(), Duration::ZERO, Instant::now())
    }

    /// Charges a client for bytes that were fetched: a token for each MiB.
    pub fn charge(&self, client: impl Into<ClientKey>, bytes: usize) {
        self.charge_at(client.into(), bytes, Instant::now());
    }

    /// The time until the client's bucket is no longer overdrawn.
    pub fn overdraft(&self, client: impl Into<ClientKey>) -> Duration {
        self.overdraft_at(client.into(), Instant::now())
    }

    /// Takes the next token that the client has within [`PERMIT_WAIT`]. Returns the time until then.
    fn reserve(&self, client: ClientKey, now: Instant) -> Result<Duration, Duration> {
        let mut buckets = self.buckets();
        let full_in = full_in(&mut buckets, &client, now) + self.per_token;
        let wait = full_in.saturating_sub(self.capacity);
        if wait > PERMIT_WAIT {
            return Err(wait);
        }
        buckets.insert(client, now + full_in);
        Ok(wait)
    }

    /// Takes what costs so much, if half of the burst is left after it.
    fn take_spare(&self, client: ClientKey, cost: Duration, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.buckets();
        let full_in = full_in(&mut buckets, &client, now) + cost;
        let wait = full_in.saturating_sub(self.capacity / 2);
        if !wait.is_zero() {
            return Err(wait);
        }
        buckets.insert(client, now + full_in);
        Ok(())
    }

    fn charge_at(&self, client: ClientKey, bytes: usize, now: Instant) {
        #[allow(clippy::cast_precision_loss, reason = "a block has some MiB at most")]
        let cost = self.per_token.mul_f64(bytes as f64 / BYTES_PER_TOKEN);
        let mut buckets = self.buckets();
        let full_in = full_in(&mut buckets, &client, now) + cost;
        buckets.insert(client, now + full_in);
    }

    fn overdraft_at(&self, client: ClientKey, now: Instant) -> Duration {
        full_in(&mut self.buckets(), &client, now).saturating_sub(self.capacity)
    }

    fn buckets(&self) -> MutexGuard<'_, Buckets> {
        self.full_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time until the client's bucket is full.
fn full_in(buckets: &mut Buckets, client: &ClientKey, now: Instant) -> Duration {
    buckets.get(client).map_or(Duration::ZERO, |full_at| full_at.saturating_duration_since(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::IpAddr;

    const MIB: usize = 1 << 20;

    fn client(last: u8) -> ClientKey {
        IpAddr::from([10, 0, 0, last]).into()
    }

    fn limiter(rate: u32, burst: u32) -> (RateLimiter, Instant) {
        (RateLimiter::new(rate, burst).expect("a limit"), Instant::now())
    }

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_rate_of_zero_is_no_limit() {
        assert!(RateLimiter::new(0, 10).is_none());
        assert_eq!(limiter(1, 0).0.capacity, Duration::from_secs(1));
    }

    #[test]
    fn a_client_has_its_burst_and_then_its_rate() {
        let (limiter, start) = limiter(2, 3);
        for wait in [0, 0, 0, 500, 1000, 1500, 2000] {
            assert_eq!(limiter.reserve(client(1), start), Ok(ms(wait)));
        }
        // What would take longer is refused, and takes no token.
        for _ in 0..3 {
            assert_eq!(limiter.reserve(client(1), start), Err(ms(2500)));
        }
        assert_eq!(limiter.reserve(client(1), start + ms(600)), Ok(ms(1900)));
        // Another client has a bucket of its own.
        assert_eq!(limiter.reserve(client(2), start), Ok(ms(0)));
        // After a pause there is a burst again, and no more.
        let later = start + Duration::from_secs(100);
        for wait in [0, 0, 0, 500] {
            assert_eq!(limiter.reserve(client(1), later), Ok(ms(wait)));
        }
    }

    #[test]
    fn work_in_the_background_leaves_half_of_the_burst() {
        let (limiter, start) = limiter(2, 6);
        let take = |now| limiter.take_spare(client(1), limiter.per_token, now);
        for _ in 0..3 {
            assert_eq!(take(start), Ok(()));
        }
        assert_eq!(take(start), Err(ms(500)));
        let check = |now| limiter.take_spare(client(1), Duration::ZERO, now);
        assert_eq!(check(start), Ok(()));
        // Requests have the rest.
        for wait in [0, 0, 0, 500] {
            assert_eq!(limiter.reserve(client(1), start), Ok(ms(wait)));
        }
        assert_eq!((check(start), check(start + ms(2000))), (Err(ms(2000)), Ok(())));
        assert_eq!((take(start + ms(2000)), take(start + ms(2500))), (Err(ms(500)), Ok(())));
        // A single token is left to requests.
        let (limiter, start) = self::limiter(1, 1);
        assert!(limiter.take_spare(client(1), limiter.per_token, start).is_err());
    }

    #[test]
    fn a_bucket_fills_in_its_period() {
        let (limiter, start) = (RateLimiter::filled_in(Duration::from_secs(60), 3), Instant::now());
        let taken = |after: u64| {
            let now = start + Duration::from_secs(after);
            (0..100)
                .take_while(|_| limiter.has_token(&client(1), now))
                .inspect(|_| limiter.take(client(1), now))
                .count()
        };
        // The time in seconds, and the number of tokens.
        for (after, expected) in [(0, 3), (19, 0), (20, 1), (59, 1), (60, 1), (1_000_000, 3)] {
            assert_eq!(taken(after), expected, "{after}");
        }
        assert!(limiter.has_token(&client(2), start));
    }

    #[test]
    fn fetched_bytes_overdraw_the_bucket() {
        let (limiter, start) = limiter(4, 8);
        assert_eq!(limiter.overdraft_at(client(1), start), ms(0));
        for (mib, overdraft) in [(8, 0), (1, 250), (20, 5250)] {
            limiter.charge_at(client(1), mib * MIB, start);
            assert_eq!(limiter.overdraft_at(client(1), start), ms(overdraft), "{mib}");
        }
        assert_eq!(limiter.reserve(client(1), start), Err(ms(5500)));
        assert_eq!(limiter.overdraft_at(client(1), start + ms(5200)), ms(50));
        assert_eq!(limiter.overdraft_at(client(2), start), ms(0));
    }

    #[tokio::test]
    async fn a_token_is_acquired_when_there_is_one() {
        let (limiter, start) = limiter(20, 1);
        let address = IpAddr::from([10, 0, 0, 1]);
        for _ in 0..3 {
            assert_eq!(limiter.acquire_soon(address).await, Ok(()));
        }
        assert!(start.elapsed() >= ms(100));
        limiter.charge(address, 100 * MIB);
        assert!(limiter.overdraft(address) > Duration::from_secs(4));
        assert!(limiter.acquire_soon(address).await.is_err_and(|wait| wait > Duration::from_secs(4)));
    }

    #[test]
    fn a_flood_of_clients_does_not_grow_the_state() {
        let (limiter, start) = limiter(1, 1);
        for number in 0..50_000_u32 {
            limiter.charge_at(IpAddr::from(number.to_be_bytes()).into(), MIB, start);
        }
        assert_eq!(limiter.buckets().len(), CLIENTS_MAX);
    }

    proptest! {
        /// In every interval a client takes at most its burst and what is added meanwhile.
        #[test]
        fn no_interval_exceeds_the_rate(
            (rate, burst) in (1_u32..50, 1_u32..20),
            pauses in proptest::collection::vec(0_u64..400, 1..200),
        ) {
            let (limiter, start) = limiter(rate, burst);
            let mut now = start;
            let mut taken: Vec<Duration> = Vec::new();
            for pause in pauses {
                now += ms(pause);
                taken.extend(limiter.reserve(client(1), now).map(|wait| now + wait - start));
            }
            prop_assert!(taken.is_sorted(), "tokens are given in the order of requests");
            for (first, begin) in taken.iter().enumerate() {
                for (tokens, end) in taken[first..].iter().enumerate().map(|(more, end)| (more + 1, end)) {
                    let allowed = f64::from(burst) + (*end - *begin).as_secs_f64() * f64::from(rate);
                    prop_assert!(tokens as f64 <= allowed + 1e-3, "{tokens} tokens in {:?}", *end - *begin);
                }
            }
        }
    }
}
