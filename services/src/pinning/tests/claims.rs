//! Services that share the work for pins by claims: the contract of [`Claims`], and its use by workers.

use crate::pinning::coordination::{Claim, Claimed, Claims, Coordination};
use crate::pinning::tests::*;
use cache::StoreError;
use futures::FutureExt as _;
use futures::future::{self, BoxFuture};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The claims of several services: pure, with the time passed in.
#[derive(Debug, Default)]
struct Leases(HashMap<Cid, Lease>);

#[derive(Debug, Clone, Copy)]
struct Lease {
    holder: usize,
    term: u64,
    /// `None` if it was released.
    end: Option<Instant>,
}

impl Leases {
    fn claim(&mut self, root: Cid, by: usize, now: Instant, lease: Duration) -> Claimed {
        let former = self.0.get(&root).copied();
        if let Some(Lease { holder, end: Some(end), .. }) = former
            && end > now
            && holder != by
        {
            return Claimed::Held { retry_after: end - now };
        }
        let term = former.map_or(1, |former| former.term + u64::from(former.holder != by));
        self.0.insert(root, Lease { holder: by, term, end: Some(now + lease) });
        Claimed::Granted(Claim { root, term, lease_end: Some(now + lease) })
    }

    fn renew(&mut self, claim: &Claim, by: usize, now: Instant, lease: Duration) -> Option<Claim> {
        let held = self.0.get_mut(&claim.root).filter(|held| (held.holder, held.term) == (by, claim.term))?;
        held.end = Some(now + lease);
        Some(Claim { lease_end: held.end, ..claim.clone() })
    }

    fn release(&mut self, claim: &Claim, by: usize) {
        if let Some(held) = self.0.get_mut(&claim.root).filter(|held| (held.holder, held.term) == (by, claim.term)) {
            held.end = None;
        }
    }
}

/// One of several services in this process.
struct SharedClaims {
    leases: Arc<Mutex<Leases>>,
    by: usize,
    lease: Duration,
    /// Nothing is answered, as when the connection is lost or the process has stopped.
    is_cut_off: AtomicBool,
    /// How often it has asked for a claim.
    asked: AtomicUsize,
}

impl SharedClaims {
    fn of_services(count: usize, lease: Duration) -> Vec<Arc<Self>> {
        let leases = Arc::<Mutex<Leases>>::default();
        let one = |by| Self {
            leases: Arc::clone(&leases),
            by,
            lease,
            is_cut_off: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
        };
        (0..count).map(|by| Arc::new(one(by))).collect()
    }

    fn holds(&self, root: &Cid) -> bool {
        let leases = self.leases.lock().expect("leases");
        leases.0.get(root).is_some_and(|held| held.holder == self.by && held.end > Some(Instant::now()))
    }

    fn answer<T: Send + 'static>(&self, answer: impl FnOnce(&mut Leases) -> T) -> BoxFuture<'static, T> {
        match self.is_cut_off.load(Ordering::Relaxed) {
            true => future::pending().boxed(),
            false => future::ready(answer(&mut self.leases.lock().expect("leases"))).boxed(),
        }
    }
}

impl Claims for SharedClaims {
    fn claim(&self, root: &Cid) -> BoxFuture<'static, Result<Claimed, StoreError>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.answer(|leases| Ok(leases.claim(*root, self.by, Instant::now(), self.lease)))
    }

    fn renew(&self, claim: &Claim) -> BoxFuture<'static, Result<Option<Claim>, StoreError>> {
        self.answer(|leases| Ok(leases.renew(claim, self.by, Instant::now(), self.lease)))
    }

    fn release(&self, claim: Claim) -> BoxFuture<'static, ()> {
        self.answer(|leases| leases.release(&claim, self.by))
    }
}

/// Checks the contract with the claims of two services, whose leases have this duration.
async fn check_contract([one, other]: [Arc<dyn Claims>; 2], lease: Duration) {
    let roots: Vec<Cid> = (0..3).map(|number| *leaf(number).cid()).collect();
    let granted = async |claims: &Arc<dyn Claims>, root| match claims.claim(root).await.expect("is answered") {
        Claimed::Granted(claim) => Some(claim),
        Claimed::Held { retry_after } => {
            assert!(retry_after <= lease);
            None
        }
    };
    // Each root is claimed by one service.
    let first = granted(&one, &roots[0]).await.expect("it is free");
    assert!(first.root == roots[0] && first.is_valid(Instant::now()));
    assert_eq!(granted(&other, &roots[0]).await, None, "it is held");
    let others = granted(&other, &roots[1]).await.expect("another root is free");
    assert_eq!(granted(&one, &roots[1]).await, None);
    // A released one is free at once, with a higher term.
    one.release(first.clone()).await;
    let second = granted(&other, &roots[0]).await.expect("it was released");
    assert!(second.term > first.term, "{second:?}");
    assert_eq!(one.renew(&first).await.expect("is answered"), None, "it was taken over");
    one.release(first).await;
    assert_eq!(granted(&one, &roots[0]).await, None, "a former claim releases nothing");
    // A renewed one is held on.
    let renewed = other.renew(&others).await.expect("is answered").expect("is still held");
    assert!(renewed.term == others.term && renewed.lease_end >= others.lease_end);
    // A lease that ends is taken over.
    let lost = granted(&one, &roots[2]).await.expect("it is free");
    let taken = until("its lease ends", async || granted(&other, &roots[2]).await).await;
    assert!(taken.term > lost.term && !lost.is_valid(Instant::now()));
    assert_eq!(one.renew(&lost).await.expect("is answered"), None);
}

#[tokio::test]
async fn claims_are_granted_to_one_service_at_a_time() {
    let lease = Duration::from_secs(5);
    let claims = SharedClaims::of_services(2, lease);
    check_contract([Arc::clone(&claims[0]) as _, Arc::clone(&claims[1]) as _], lease).await;
}

/// Services that share a log, a block store and claims.
struct Sharing {
    world: World,
    claims: Vec<Arc<SharedClaims>>,
    services: Vec<Arc<Pins>>,
}

impl Sharing {
    async fn new(mut world: World, count: usize, lease: Duration) -> Self {
        world.register = world.register.shared(1 << 20);
        let claims = SharedClaims::of_services(count, lease);
        let mut services = Vec::new();
        for claims in &claims {
            let log = Arc::new(world.register.clone());
            services.push(world.start_with(Coordination { log, claims: Arc::clone(claims) as _ }).await);
        }
        Self { world, claims, services }
    }

    async fn stop(&self) {
        for pins in &self.services {
            pins.stop().await;
        }
    }
}

/// The services of which each fetches some root.
fn fetching(sharing: &Sharing) -> Vec<usize> {
    let is_active = |pins: &Arc<Pins>| pins.counts().active_roots > 0;
    sharing.services.iter().enumerate().filter(|(_, pins)| is_active(pins)).map(|(at, _)| at).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_dag_is_fetched_by_one_service() {
    let sharing = Sharing::new(World::new(), 3, PATIENCE).await;
    let (alice, mut blocks_total) = (owner("alice"), 0);
    let mut requests = Vec::new();
    for number in 0..12 {
        let blocks = dag(&format!("dag {number}"), number * 10..number * 10 + 5);
        sharing.world.upstream.has(&blocks);
        blocks_total += blocks.len();
        let at = requests.len() % 3;
        requests.push(sharing.services[at].request(&alice, wanted(&blocks)).await.expect("is asked for"));
    }
    for pins in &sharing.services {
        for request in &requests {
            becomes(pins, request, Status::Pinned).await;
        }
    }
    assert_eq!(sharing.world.upstream.asked(), blocks_total);
    sharing.stop().await;
}

/// A service that has claimed a root, and then neither fetches it nor renews its claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_work_of_a_service_that_is_cut_off_is_resumed_by_another() {
    let mut world = World::new();
    // Some blocks are fetched, and the rest when the other service asks.
    world.upstream = Upstream::new(5);
    let blocks = dag("one", 0..20);
    world.upstream.has(&blocks);
    let sharing = Sharing::new(world, 2, Duration::from_secs(1)).await;
    let request = sharing.services[0].request(&owner("alice"), wanted(&blocks)).await.expect("is asked for");
    let some_are_fetched = async || (sharing.world.upstream.asked() == 5).then(|| fetching(&sharing));
    let first = match until("some are fetched", some_are_fetched).await[..] {
        [at] => at,
        // The other one asks for its claim.
        _ => {
            until("one has the claim", async || match fetching(&sharing)[..] {
                [at] => Some(at),
                _ => None,
            })
            .await
        }
    };
    for pins in &sharing.services {
        becomes(pins, &request, Status::Pinning).await;
    }
    let claims = &sharing.claims[first];
    let asked_before = claims.asked.load(Ordering::Relaxed);
    claims.is_cut_off.store(true, Ordering::Relaxed);
    // Its lease ends: it stops its worker, and asks again.
    let asks = async || (claims.asked.load(Ordering::Relaxed) > asked_before).then_some(());
    until("the first one has lost its claim", asks).await;
    let other = &sharing.claims[1 - first];
    let has_taken_over = async || other.holds(&request.root).then_some(());
    until("the other one takes over", has_taken_over).await;
    sharing.world.upstream.permits.add_permits(1_000);
    for pins in &sharing.services {
        becomes(pins, &request, Status::Pinned).await;
    }
    claims.is_cut_off.store(false, Ordering::Relaxed);
    sharing.stop().await;
}
