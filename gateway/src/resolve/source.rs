//! Where a request's blocks come from: the local tiers at once, the network only when they do not suffice, and only if
//! the request gets a permit ([`services::limiter`]).
//!
//! A session with the network costs something to set up, and a request that is answered from memory needs none. So
//! [`RootSource`] opens its root's session at the first block that is not at hand.

use content::cid::is_identity;
use content::{Block, BlockSource, Cid, Policy, SourceError, Work};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue};
use services::limiter::{Limiter, Permit};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use tokio::sync::Mutex;

/// Makes the source for all blocks below a root: the local tiers, and last the network behind its gate.
pub type OpenSession = dyn Fn(&Cid, Gate) -> Arc<dyn BlockSource> + Send + Sync;

/// What requests take blocks from.
pub struct Sources {
    /// Memory and disk.
    pub local: Arc<dyn BlockSource>,
    /// Everything, for one root.
    pub open_session: Box<OpenSession>,
    /// Who may fetch from the network.
    pub fetches: Arc<Limiter>,
    /// What may be served: of paths, for blocks are checked where they come from.
    pub policy: Arc<dyn Policy>,
}

/// How far the search for a request's blocks had to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Tier {
    /// Everything was in memory.
    Ram,
    /// The disk was asked.
    Disk,
    /// The network was asked.
    Network,
}

/// The header that names the tier (<https://www.w3.org/TR/server-timing/>).
pub const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// What each tier is called, in `Server-Timing` and in the access log.
const TIERS: [(Tier, &str, &str); 3] = [
    (Tier::Ram, "ram", "tier;desc=\"ram\""),
    (Tier::Disk, "disk", "tier;desc=\"disk\""),
    (Tier::Network, "network", "tier;desc=\"network\""),
];

impl Tier {
    /// The value of [`SERVER_TIMING`].
    pub fn server_timing(self) -> HeaderValue {
        let timing = TIERS.iter().find(|(known, ..)| *known == self).map_or("", |(.., timing)| timing);
        HeaderValue::from_static(timing)
    }

    /// The name of the tier that a response's content came from, if it is content.
    pub fn named_in(headers: &HeaderMap) -> Option<&'static str> {
        let mut timings = headers.get_all(SERVER_TIMING).iter();
        timings.find_map(|value| TIERS.iter().find(|(.., timing)| value == timing).map(|(_, name, _)| *name))
    }
}

/// The farthest tier that was asked.
#[derive(Debug, Default)]
struct Farthest(AtomicU8);

impl Farthest {
    fn reach(&self, tier: Tier) {
        self.0.fetch_max(tier as u8, Ordering::Relaxed);
    }

    fn get(&self) -> Tier {
        match self.0.load(Ordering::Relaxed) {
            0 => Tier::Ram,
            1 => Tier::Disk,
            _ => Tier::Network,
        }
    }
}

/// The blocks below one root, for one request.
pub struct RootSource {
    sources: Arc<Sources>,
    root: Cid,
    client: IpAddr,
    /// Nobody is asked.
    local_only: bool,
    farthest: Arc<Farthest>,
    session: OnceLock<Arc<dyn BlockSource>>,
    /// What is done with these blocks.
    work: Work,
}

impl RootSource {
    /// The source for `root`; nothing is opened yet. What is done with its blocks has no limit but is counted.
    pub fn new(sources: &Arc<Sources>, root: Cid, client: IpAddr, local_only: bool) -> Arc<Self> {
        Self::within(sources, root, client, local_only, Work::unlimited())
    }

    /// The same for a request with a processor budget.
    pub fn within(sources: &Arc<Sources>, root: Cid, client: IpAddr, local_only: bool, work: Work) -> Arc<Self> {
        let (sources, farthest) = (Arc::clone(sources), Arc::default());
        Arc::new(Self { sources, root, client, local_only, farthest, session: OnceLock::new(), work })
    }

    /// The root that the blocks are asked for by.
    pub fn root(&self) -> &Cid {
        &self.root
    }

    /// Whom it is for.
    pub fn client(&self) -> IpAddr {
        self.client
    }

    /// How far the search had to go until now.
    pub fn tier(&self) -> Tier {
        self.farthest.get()
    }

    /// Somebody else's search for the same, of which this request has the outcome, had to go as far as that.
    pub fn reach(&self, tier: Tier) {
        self.farthest.reach(tier);
    }

    /// Whether nobody is asked for what is not held here.
    pub fn is_local_only(&self) -> bool {
        self.local_only
    }

    /// Which paths may be served.
    pub fn policy(&self) -> &dyn Policy {
        &*self.sources.policy
    }

    /// The same, to be kept.
    pub fn policy_handle(&self) -> &Arc<dyn Policy> {
        &self.sources.policy
    }

    fn session(&self) -> &Arc<dyn BlockSource> {
        let gate = || Gate {
            fetches: Arc::clone(&self.sources.fetches),
            client: self.client,
            farthest: Arc::clone(&self.farthest),
            place: Arc::default(),
        };
        self.session.get_or_init(|| (self.sources.open_session)(&self.root, gate()))
    }

    /// A block: without waiting, if it is at hand.
    ///
    /// # Errors
    /// Those of [`BlockSource::get`].
    pub async fn fetch(&self, cid: &Cid) -> Result<Block, SourceError> {
        match self.peek(cid) {
            Some(block) => Ok(block),
            None => self.get(cid).await,
        }
    }
}

impl BlockSource for RootSource {
    /// What the disk can give at once is at hand as well: a reader takes it when it gets there, and holds nothing ahead.
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.sources.local.peek(cid).or_else(|| {
            let block = self.sources.local.read_now(cid)?;
            self.farthest.reach(Tier::Disk);
            Some(block)
        })
    }

    fn inline(&self, cid: &Cid) -> Option<Block> {
        self.sources.local.inline(cid)
    }

    fn work(&self) -> Work {
        self.work.clone()
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.farthest.reach(Tier::Disk);
        // Nobody else has more of what a CID carries.
        if self.local_only || is_identity(cid) { self.sources.local.get(cid) } else { self.session().get(cid) }
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.sources.local.has(cid)
    }
}

/// What a request has to pass on its way to the network.
#[derive(Clone)]
pub struct Gate {
    fetches: Arc<Limiter>,
    client: IpAddr,
    farthest: Arc<Farthest>,
    /// The request's place, as long as anything is being fetched for it.
    place: Arc<Mutex<Weak<Permit>>>,
}

impl Gate {
    async fn pass(&self) -> Result<Arc<Permit>, SourceError> {
        let mut held = self.place.lock().await;
        if let Some(place) = held.upgrade() {
            return Ok(place);
        }
        let place = self.fetches.acquire_soon(self.client).await.map_err(|_| SourceError::Busy)?;
        let place = Arc::new(place);
        *held = Arc::downgrade(&place);
        Ok(place)
    }
}

/// The network behind a gate.
pub struct Gated {
    upstream: Arc<dyn BlockSource>,
    gate: Gate,
}

impl Gated {
    /// Puts `upstream` behind a gate.
    pub fn new(upstream: Arc<dyn BlockSource>, gate: Gate) -> Self {
        Self { upstream, gate }
    }
}

impl BlockSource for Gated {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        let (gate, upstream, cid) = (self.gate.clone(), Arc::clone(&self.upstream), *cid);
        async move {
            let place = gate.pass().await?;
            gate.farthest.reach(Tier::Network);
            let fetched = upstream.get(&cid).await;
            drop(place);
            fetched
        }
        .boxed()
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.upstream.has(cid)
    }
}
