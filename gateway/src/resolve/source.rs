//! The source of a request's blocks: the local tiers, then the network, for which the request needs a permit
//! ([`services::limiter`]).
//!
//! Opening a network session has a cost, which a request that is answered from memory should not pay. So [`RootSource`]
//! opens its root's session at the first block that is not stored locally.

use crate::limits::{ClientMemory, RequestLimits};
use crate::trace::RequestTrace;
use cache::LookupObserver;
use content::budget::Budget;
use content::cid::is_identity;
use content::walk::Purpose;
use content::{Block, BlockSource, Cid, Policy, ReadAhead, SourceError, Work};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue};
use p2p_bridge::SessionObserver;
use services::access_log::record::ContentTier;
use services::limiter::{Limiter, Permit};
use services::rate_limiter::RateLimiter;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// Opens the session of a root: the local tiers, then the network behind the gate.
pub type OpenSession = dyn Fn(&Cid, FetchPermits) -> Arc<dyn BlockSource> + Send + Sync;

/// The sources of blocks.
pub struct Sources {
    /// The local tiers: memory and disk, and the shared storage of a site.
    pub local: Arc<dyn BlockSource>,
    /// Opens a session, which includes the network.
    pub open_session: Box<OpenSession>,
    /// Limits fetches from the network.
    pub fetches: Arc<Limiter>,
    /// The policy for paths; the tiers check blocks themselves.
    pub policy: Arc<dyn Policy>,
}

/// The farthest tier that a request has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Tier {
    /// All blocks were in memory.
    Ram,
    /// The disk was read.
    Disk,
    /// The shared storage of the site was read.
    Site,
    /// The network was used.
    Network,
}

/// The header with the tier (<https://www.w3.org/TR/server-timing/>).
pub const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// The tiers in logs and metrics, and their values of `Server-Timing`.
const TIERS: [(Tier, ContentTier, &str); 4] = [
    (Tier::Ram, ContentTier::Ram, "tier;desc=\"ram\""),
    (Tier::Disk, ContentTier::Disk, "tier;desc=\"disk\""),
    (Tier::Site, ContentTier::Site, "tier;desc=\"site\""),
    (Tier::Network, ContentTier::Network, "tier;desc=\"network\""),
];

impl Tier {
    /// The tier as a value of [`SERVER_TIMING`].
    pub fn server_timing(self) -> HeaderValue {
        let timing = TIERS.iter().find(|(known, ..)| *known == self).map_or("", |(.., timing)| timing);
        HeaderValue::from_static(timing)
    }

    /// The tier in a response's headers, if it has content.
    pub fn named_in(headers: &HeaderMap) -> Option<ContentTier> {
        let mut timings = headers.get_all(SERVER_TIMING).iter();
        timings.find_map(|value| TIERS.iter().find(|(.., timing)| value == timing).map(|(_, tier, _)| *tier))
    }
}

/// The farthest tier that was read.
#[derive(Debug, Default)]
struct Farthest(AtomicU8);

impl Farthest {
    fn record_tier(&self, tier: Tier) {
        self.0.fetch_max(tier as u8, Ordering::Relaxed);
    }

    fn get(&self) -> Tier {
        match self.0.load(Ordering::Relaxed) {
            0 => Tier::Ram,
            1 => Tier::Disk,
            2 => Tier::Site,
            _ => Tier::Network,
        }
    }
}

/// The client of a request, and its limits.
#[derive(Debug, Clone)]
pub struct LimitedClient {
    /// The address, as limits count it.
    pub address: IpAddr,
    /// The memory that the requests of its connection share, if they do.
    pub connection_memory: Option<Arc<Budget>>,
    /// The limiter of its rate, if it is limited.
    pub rates: Option<Arc<RateLimiter>>,
    /// The trace of the request, if it is traced.
    pub trace: Option<Arc<RequestTrace>>,
    /// Whether the work is done in the background: then it takes only permits and tokens that are free at once, and of
    /// which half is left for requests.
    pub is_background: bool,
}

impl From<IpAddr> for LimitedClient {
    /// A client without a limit of its rate, or of its connection's memory, whose request is not traced.
    fn from(address: IpAddr) -> Self {
        Self { address, connection_memory: None, rates: None, trace: None, is_background: false }
    }
}

/// The blocks below a root, for one request.
pub struct RootSource {
    sources: Arc<Sources>,
    root: Cid,
    client: LimitedClient,
    /// Whether the network is not used.
    local_only: bool,
    farthest: Arc<Farthest>,
    session: OnceLock<Arc<dyn BlockSource>>,
    /// The processor budget.
    work: Work,
    /// What the response needs at the end of its path.
    purpose: Purpose,
}

impl RootSource {
    /// The source for `root`, without an open session. Work is counted but not limited.
    pub fn new(sources: &Arc<Sources>, root: Cid, client: IpAddr, local_only: bool) -> Arc<Self> {
        Self::within(sources, root, client.into(), local_only, Work::unlimited())
    }

    /// The same with the limits of the client, and a processor budget.
    pub fn within(sources: &Arc<Sources>, root: Cid, client: LimitedClient, local_only: bool, work: Work) -> Arc<Self> {
        Self::with_purpose(sources, root, client, local_only, work, Purpose::default())
    }

    /// The same for a response that needs a part of the DAG at the end of its path.
    pub fn with_purpose(
        sources: &Arc<Sources>,
        root: Cid,
        client: LimitedClient,
        local_only: bool,
        work: Work,
        purpose: Purpose,
    ) -> Arc<Self> {
        let (sources, farthest, session) = (Arc::clone(sources), Arc::default(), OnceLock::new());
        Arc::new(Self { sources, root, client, local_only, farthest, session, work, purpose })
    }

    /// What the response needs at the end of its path.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The root.
    pub fn root(&self) -> &Cid {
        &self.root
    }

    /// The client's address, as limits count it.
    pub fn client(&self) -> IpAddr {
        self.client.address
    }

    /// The memory for the response's body.
    pub fn memory<'a>(&'a self, limits: &'a RequestLimits) -> ClientMemory<'a> {
        limits.memory_of(self.client.address).of_connection(self.client.connection_memory.as_ref())
    }

    /// The farthest tier that was read so far.
    pub fn tier(&self) -> Tier {
        self.farthest.get()
    }

    /// Records the tier of a singleflight call whose result this request shares.
    pub fn record_tier(&self, tier: Tier) {
        self.farthest.record_tier(tier);
    }

    /// Whether blocks that are not stored locally are not fetched.
    pub fn is_local_only(&self) -> bool {
        self.local_only
    }

    /// The policy for paths.
    pub fn policy(&self) -> &dyn Policy {
        &*self.sources.policy
    }

    /// The trace of the request, if it is traced.
    pub fn trace(&self) -> Option<&Arc<RequestTrace>> {
        self.client.trace.as_ref()
    }

    fn count(&self, tier: ContentTier) {
        if let Some(trace) = &self.client.trace {
            trace.count(tier);
        }
    }

    /// A clone of the policy's handle.
    pub fn policy_handle(&self) -> &Arc<dyn Policy> {
        &self.sources.policy
    }

    fn session(&self) -> &Arc<dyn BlockSource> {
        let gate = || FetchPermits {
            fetches: Arc::clone(&self.sources.fetches),
            client: self.client.clone(),
            farthest: Arc::clone(&self.farthest),
            permit: Arc::default(),
            has_token: Arc::default(),
        };
        self.session.get_or_init(|| (self.sources.open_session)(&self.root, gate()))
    }

    /// The blocks of a response's body, which is slowed to the client's rate. Work that other requests share must not
    /// be.
    pub fn paced(self: &Arc<Self>) -> Arc<dyn BlockSource> {
        match &self.client.rates {
            None => Arc::clone(self) as _,
            Some(rates) => Arc::new(PacedSource { source: Arc::clone(self), rates: Arc::clone(rates) }),
        }
    }

    /// A block, without waiting if it is available.
    ///
    /// # Errors
    /// Those of [`BlockSource::get`].
    pub async fn fetch(&self, cid: &Cid) -> Result<Block, SourceError> {
        match self.peek(cid) {
            Some(block) => Ok(block),
            None => self.get(cid).await,
        }
    }

    /// The same for a block at the end of a path, whose content the response needs.
    ///
    /// # Errors
    /// The same.
    pub async fn fetch_content(&self, cid: &Cid) -> Result<Block, SourceError> {
        match self.peek(cid) {
            Some(block) => Ok(block),
            None => self.get_ahead(cid, &ReadAhead::below(*cid, self.purpose.scope)).await,
        }
    }

    /// Fetches a block with `fetch`, which is given the session.
    fn get_with(
        &self,
        cid: &Cid,
        fetch: impl FnOnce(&dyn BlockSource) -> BoxFuture<'static, Result<Block, SourceError>>,
    ) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.farthest.record_tier(Tier::Disk);
        // The data of an identity CID are in the CID itself.
        if is_identity(cid) {
            return self.sources.local.get(cid);
        }
        let span = self.client.trace.as_ref().and_then(|trace| trace.block(cid));
        let get = if self.local_only { self.sources.local.get(cid) } else { fetch(&**self.session()) };
        let (Some(span), knows_tier) = (span, !self.local_only) else { return get };
        async move {
            let found = get.await;
            let size = found.as_ref().map(|block| block.data().len());
            span.end(size.map_err(ToString::to_string), knows_tier);
            found
        }
        .boxed()
    }
}

impl BlockSource for RootSource {
    /// Includes blocks that the disk can read at once: a reader takes them when it needs them, without read-ahead.
    fn peek(&self, cid: &Cid) -> Option<Block> {
        if let Some(block) = self.sources.local.peek(cid) {
            self.count(ContentTier::Ram);
            return Some(block);
        }
        let block = self.sources.local.read_now(cid)?;
        self.farthest.record_tier(Tier::Disk);
        self.count(ContentTier::Disk);
        Some(block)
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        self.sources.local.inline(cid)
    }

    fn work(&self) -> Work {
        self.work.clone()
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.get_with(cid, |session| session.get(cid))
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.get_with(cid, |session| session.get_ahead(cid, ahead))
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.sources.local.has(cid)
    }
}

/// The blocks of a request whose client waits while the blocks that were fetched for it exceed its rate.
struct PacedSource {
    source: Arc<RootSource>,
    rates: Arc<RateLimiter>,
}

impl PacedSource {
    /// How long the next block must wait. A request that has fetched nothing does not wait.
    fn delay(&self) -> Duration {
        match self.source.tier() {
            Tier::Network => self.rates.overdraft(self.source.client()),
            Tier::Ram | Tier::Disk | Tier::Site => Duration::ZERO,
        }
    }
}

impl BlockSource for PacedSource {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.source.peek(cid)
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        self.source.inline(cid)
    }

    fn work(&self) -> Work {
        self.source.work()
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let delay = self.delay();
        if delay.is_zero() {
            return self.source.get(cid);
        }
        let (source, cid) = (Arc::clone(&self.source), *cid);
        async move {
            tokio::time::sleep(delay).await;
            source.get(&cid).await
        }
        .boxed()
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        let delay = self.delay();
        if delay.is_zero() {
            return self.source.get_ahead(cid, ahead);
        }
        let (source, cid, ahead) = (Arc::clone(&self.source), *cid, ahead.clone());
        async move {
            tokio::time::sleep(delay).await;
            source.get_ahead(&cid, &ahead).await
        }
        .boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.source.has(cid)
    }
}

/// Admission of a request's fetches to the network: a permit, and a token of the client's rate.
#[derive(Clone)]
pub struct FetchPermits {
    fetches: Arc<Limiter>,
    client: LimitedClient,
    farthest: Arc<Farthest>,
    /// The request's permit, held while anything is fetched for it.
    permit: Arc<Mutex<Weak<Permit>>>,
    /// Whether the request has taken its token.
    has_token: Arc<AtomicBool>,
}

impl FetchPermits {
    /// The permit of the request, which is taken if it has none.
    ///
    /// # Errors
    /// [`SourceError::Busy`] or [`SourceError::RateLimited`].
    pub(super) async fn acquire(&self) -> Result<Arc<Permit>, SourceError> {
        let mut held = self.permit.lock().await;
        if let Some(permit) = held.upgrade() {
            if self.client.is_background {
                self.take_spare_token()?;
            }
            return Ok(permit);
        }
        let permit = match self.client.is_background {
            // Other requests may wait for this fetch: it must not wait itself. Without a permit it takes no token.
            true => {
                let permit = self.fetches.try_acquire_spare(self.client.address);
                let permit = permit.map_err(|_| self.busy())?;
                self.take_spare_token()?;
                permit
            }
            false => {
                self.take_token().await?;
                self.fetches.acquire_soon(self.client.address).await.map_err(|_| self.busy())?
            }
        };
        let permit = Arc::new(permit);
        *held = Arc::downgrade(&permit);
        Ok(permit)
    }

    fn busy(&self) -> SourceError {
        SourceError::Busy { retry_after: self.fetches.retry_after() }
    }

    /// Takes a token of the client's rate, once for the request.
    async fn take_token(&self) -> Result<(), SourceError> {
        if let Some(rates) = self.client.rates.as_ref().filter(|_| !self.has_token.load(Ordering::Relaxed)) {
            let taken = rates.acquire_soon(self.client.address).await;
            taken.map_err(|retry_after| SourceError::RateLimited { retry_after })?;
            self.has_token.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The same for work in the background. For each further block, half of the burst must still be left: what was
    /// fetched has been charged.
    fn take_spare_token(&self) -> Result<(), SourceError> {
        let Some(rates) = &self.client.rates else { return Ok(()) };
        let taken = match self.has_token.load(Ordering::Relaxed) {
            true => rates.check_spare(self.client.address),
            false => rates.try_acquire_spare(self.client.address),
        };
        taken.map_err(|retry_after| SourceError::RateLimited { retry_after })?;
        self.has_token.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The observer of look-ups in the local tiers.
    pub fn lookup_observer(&self) -> Option<Arc<dyn LookupObserver>> {
        Some(Arc::new(RequestLookups { farthest: Arc::clone(&self.farthest), trace: self.client.trace.clone() }))
    }

    /// The observer of what the network does, if the request is traced.
    pub fn session_observer(&self) -> Option<Arc<dyn SessionObserver>> {
        self.client.trace.clone().map(|trace| trace as _)
    }

    /// Records that a tier was read for the request.
    pub(super) fn record_tier(&self, tier: Tier) {
        self.farthest.record_tier(tier);
    }

    /// Charges the client for a block that was fetched.
    pub(super) fn charge_for(&self, block: &Block) {
        if let Some(rates) = &self.client.rates {
            rates.charge(self.client.address, block.data().len());
        }
    }
}

/// Records the tiers that are read for a request, and tells its trace if it is traced.
struct RequestLookups {
    farthest: Arc<Farthest>,
    trace: Option<Arc<RequestTrace>>,
}

impl LookupObserver for RequestLookups {
    /// The disk was recorded when the block was requested.
    fn disk_read(&self, cid: &Cid, since: Instant, hit: bool) {
        if let Some(trace) = &self.trace {
            trace.disk_read(cid, since, hit);
        }
    }

    fn site_read(&self, cid: &Cid, since: Instant, hit: bool) {
        self.farthest.record_tier(Tier::Site);
        if let Some(trace) = &self.trace {
            trace.site_read(cid, since, hit);
        }
    }

    fn owner_asked(&self, cid: &Cid, since: Instant, hit: bool) {
        if let Some(trace) = &self.trace {
            trace.owner_asked(cid, since, hit);
        }
    }

    fn follows(&self, cid: &Cid) {
        if let Some(trace) = &self.trace {
            trace.follows(cid);
        }
    }
}

/// The network behind a gate.
pub struct PermitSource {
    upstream: Arc<dyn BlockSource>,
    gate: FetchPermits,
}

impl PermitSource {
    /// Wraps `upstream` with a gate.
    pub fn new(upstream: Arc<dyn BlockSource>, gate: FetchPermits) -> Self {
        Self { upstream, gate }
    }
}

impl PermitSource {
    /// Fetches a block behind the gate.
    fn fetch(&self, cid: &Cid, ahead: Option<&ReadAhead>) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (gate, upstream, cid, ahead) = (self.gate.clone(), Arc::clone(&self.upstream), *cid, ahead.cloned());
        async move {
            let permit = gate.acquire().await?;
            gate.farthest.record_tier(Tier::Network);
            let span = gate.client.trace.as_ref().and_then(|trace| trace.network_fetch(&cid));
            let fetching = match &ahead {
                Some(ahead) => upstream.get_ahead(&cid, ahead),
                None => upstream.get(&cid),
            };
            let fetched = fetching.await;
            span.into_iter().for_each(|span| span.end(fetched.as_ref().err()));
            if let (Some(trace), Ok(_)) = (&gate.client.trace, &fetched) {
                trace.count(ContentTier::Network);
            }
            drop(permit);
            fetched.iter().for_each(|block| gate.charge_for(block));
            fetched
        }
        .boxed()
    }
}

impl BlockSource for PermitSource {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.fetch(cid, None)
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.fetch(cid, Some(ahead))
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.upstream.has(cid)
    }
}
