//! [`Coordination`]: what pin services that work on one list agree by. A single gateway agrees with itself.
//!
//! The log orders what they decide. [`Claims`] divide what is to be done: a service works on a root while it has
//! claimed it. A claim has a lease, so that others resume what a service that has ended leaves behind, and a term,
//! which is higher for each that takes it over.

use cache::{MetadataLog, StoreError};
use content::Cid;
use futures::future::{self, BoxFuture, FutureExt as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest interval of renewals that fail.
const RENEW_EVERY_MIN: Duration = Duration::from_millis(10);

/// The log of pin metadata, and the claims on the work for pins.
#[derive(Clone)]
pub struct Coordination {
    /// The log.
    pub log: Arc<dyn MetadataLog>,
    /// The claims.
    pub claims: Arc<dyn Claims>,
}

impl Coordination {
    /// That of a single gateway, whose log has no other writer.
    pub fn single(log: impl MetadataLog + 'static) -> Self {
        Self { log: Arc::new(log), claims: Arc::new(SingleService) }
    }
}

/// The right of one service to work on a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The root.
    pub root: Cid,
    /// Increases each time that another service takes the claim over.
    pub term: u64,
    /// When it ends unless it is renewed; `None` if it does not end. Never later, by the clock of this process, than
    /// others may take it over.
    pub lease_end: Option<Instant>,
}

impl Claim {
    /// Whether the service may still act on it.
    pub fn is_valid(&self, now: Instant) -> bool {
        self.lease_end.is_none_or(|end| now < end)
    }

    /// How long to wait before it is renewed: a third of the rest of its lease, so that some renewals may fail. `None`
    /// if it does not end.
    pub fn renew_after(&self, now: Instant) -> Option<Duration> {
        let rest = self.lease_end?.saturating_duration_since(now);
        Some((rest / 3).max(RENEW_EVERY_MIN).min(rest))
    }
}

/// The result of an attempt to claim a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The service works on it.
    Granted(Claim),
    /// Another one does. It may be asked again after this time.
    Held {
        /// The rest of the other service's lease.
        retry_after: Duration,
    },
}

/// Claims of one service. At any time, at most one service has a valid claim on a root.
pub trait Claims: Send + Sync {
    /// Claims a root.
    ///
    /// # Errors
    /// [`StoreError`]. It may have been granted nonetheless, until its lease ends.
    fn claim(&self, root: &Cid) -> BoxFuture<'static, Result<Claimed, StoreError>>;

    /// Extends the lease of a claim. `None` if another service has taken it over.
    ///
    /// # Errors
    /// [`StoreError`]; the claim is valid until its lease ends.
    fn renew(&self, claim: &Claim) -> BoxFuture<'static, Result<Option<Claim>, StoreError>>;

    /// Ends a claim, so that others need not wait for the end of its lease.
    fn release(&self, claim: Claim) -> BoxFuture<'static, ()>;
}

/// The claims of a service that is alone: all are granted, and do not end.
#[derive(Debug, Clone, Copy)]
pub struct SingleService;

impl Claims for SingleService {
    fn claim(&self, root: &Cid) -> BoxFuture<'static, Result<Claimed, StoreError>> {
        future::ready(Ok(Claimed::Granted(Claim { root: *root, term: 0, lease_end: None }))).boxed()
    }

    fn renew(&self, claim: &Claim) -> BoxFuture<'static, Result<Option<Claim>, StoreError>> {
        future::ready(Ok(Some(claim.clone()))).boxed()
    }

    fn release(&self, _: Claim) -> BoxFuture<'static, ()> {
        future::ready(()).boxed()
    }
}

/// Releases a claim, or waits until its lease ends.
pub async fn release(claims: &dyn Claims, claim: Claim) {
    let (end, released) = (claim.lease_end, claims.release(claim));
    match end {
        Some(end) => _ = tokio::time::timeout(end.saturating_duration_since(Instant::now()), released).await,
        None => released.await,
    }
}

/// Keeps a claim by renewing it. Returns when it is lost: another service has taken it over, or its lease has ended.
/// `update` is called with each renewed claim.
pub async fn keep(claims: &dyn Claims, mut claim: Claim, mut update: impl FnMut(&Claim)) {
    while let Some(end) = claim.lease_end {
        tokio::time::sleep(claim.renew_after(Instant::now()).unwrap_or_default()).await;
        let rest = end.saturating_duration_since(Instant::now());
        match tokio::time::timeout(rest, claims.renew(&claim)).await {
            Ok(Ok(Some(renewed))) => {
                claim = renewed;
                update(&claim);
            }
            Ok(Ok(None)) => return,
            Ok(Err(error)) => tracing::debug!(root = %claim.root, %error, "a claim could not be renewed"),
            Err(_) => {}
        }
        if !claim.is_valid(Instant::now()) {
            return;
        }
    }
    // It does not end.
    future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::Mutex;

    const LEASE: Duration = Duration::from_secs(30);

    fn claim(lease_end: Option<Instant>) -> Claim {
        let root = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy".parse().expect("a CID");
        Claim { root, term: 1, lease_end }
    }

    #[test]
    fn a_claim_is_renewed_early_and_repeatedly_until_its_lease_ends() {
        let begun = Instant::now();
        let claim = claim(Some(begun + LEASE));
        assert_eq!(claim.renew_after(begun), Some(LEASE / 3));
        // All renewals fail.
        let (mut now, mut renewals) = (begun, 0);
        while claim.is_valid(now) {
            now += claim.renew_after(now).expect("it ends");
            renewals += 1;
        }
        assert_eq!((now, claim.renew_after(now)), (begun + LEASE, Some(Duration::ZERO)));
        assert!((5..=30).contains(&renewals), "{renewals}");
    }

    #[test]
    fn the_claim_of_a_single_service_does_not_end() {
        let granted = SingleService.claim(&claim(None).root).now_or_never().expect("is granted at once");
        let Ok(Claimed::Granted(claim)) = granted else { panic!("{granted:?}") };
        let later = Instant::now() + Duration::from_hours(24 * 365);
        assert_eq!((claim.is_valid(later), claim.renew_after(later)), (true, None));
        assert_eq!(keep(&SingleService, claim, |_| ()).now_or_never(), None, "it is kept");
    }

    /// What a service is answered when it renews a claim: an extended lease, or that another one has taken it over.
    type Answer = Result<Option<Duration>, StoreError>;

    /// Answers in turn, and then none.
    struct Renewals(Mutex<VecDeque<Answer>>);

    impl Claims for Renewals {
        fn claim(&self, root: &Cid) -> BoxFuture<'static, Result<Claimed, StoreError>> {
            SingleService.claim(root)
        }

        fn renew(&self, claim: &Claim) -> BoxFuture<'static, Result<Option<Claim>, StoreError>> {
            let Some(answer) = self.0.lock().expect("answers").pop_front() else { return future::pending().boxed() };
            let extended = |lease| Claim { lease_end: Some(Instant::now() + lease), ..claim.clone() };
            future::ready(answer.map(|lease| lease.map(extended))).boxed()
        }

        fn release(&self, claim: Claim) -> BoxFuture<'static, ()> {
            SingleService.release(claim)
        }
    }

    #[tokio::test]
    async fn a_claim_is_kept_until_it_is_taken_over_or_its_lease_ends() {
        let short = Duration::from_millis(60);
        let (extended, fails) = (|| Ok(Some(short)), || Err(StoreError::Closed));
        // Answers, and how many of them extend the lease. Without further answers it ends.
        let table: [(Vec<Answer>, usize); 5] = [
            (vec![Ok(None)], 0),
            (vec![], 0),
            (vec![extended(), extended(), Ok(None)], 2),
            (vec![extended(), extended()], 2),
            ((0..1_000).map(|_| fails()).collect(), 0),
        ];
        for (answers, extended) in table {
            let is_taken_over = answers.last().is_some_and(|last| matches!(last, Ok(None)));
            let (what, claims) = (format!("{answers:?}"), Renewals(Mutex::new(answers.into())));
            let (mut latest, mut count) = (claim(Some(Instant::now() + short)), 0);
            keep(&claims, latest.clone(), |renewed| (latest, count) = (renewed.clone(), count + 1)).await;
            let has_ended = !latest.is_valid(Instant::now());
            // On a slow machine it may end before it is renewed.
            assert!(has_ended || is_taken_over, "{what}");
            assert!(count == extended || has_ended && count < extended, "{what}: {count}");
        }
    }
}
