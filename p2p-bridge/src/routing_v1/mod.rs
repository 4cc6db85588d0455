//! The Delegated Routing V1 HTTP API (<https://specs.ipfs.tech/routing/http-routing-v1/>): the format that client and
//! server share, and the client of delegated routers. The server is in the gateway.
//!
//! Goals: every router is queried in parallel with the DHT, and its records are used as they arrive; a dead, slow or
//! misbehaving router costs next to nothing.
//!
//! Non-goals: trusting the routers. Addresses are filtered and dialled like those of any untrusted peer; blocks and
//! IPNS records are verified.
//!
//! | module | concern |
//! |---|---|
//! | [`types`] | records, to and from JSON |
//! | [`ndjson`] | records from a stream of lines |
//! | [`filters`] | filters of peers and addresses |
//! | [`client`] | one router: requests, limits, errors |
//! | `health` | the circuit breaker of a router |

pub mod client;
pub mod filters;
pub mod ndjson;
pub mod types;

mod health;
mod metrics;
#[cfg(test)]
mod tests;

pub use client::{InvalidRouterUrl, Question, RouterError};
pub use filters::Filters;
pub use types::PeerRecord;

use crate::lookups::{self, RecordOrigin};
use bytes::Bytes;
use client::{Router, RoutingRequestLimits};
use content::names::Key;
use health::Health;
use metrics::{Metrics, Outcome};
use prometheus_client::registry::Registry;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

/// Maximum concurrent requests to one router. Searches skip the router beyond that.
const REQUESTS_MAX: usize = 64;
/// Maximum buffered records, which applies backpressure to the router.
const FOUND_WAITING_MAX: usize = 16;

/// Why the configuration of the routers is invalid.
#[derive(Debug, thiserror::Error)]
pub enum RoutersError {
    /// The address of a router is invalid.
    #[error(transparent)]
    InvalidRouterUrl(#[from] InvalidRouterUrl),
    /// The HTTP client could not be created.
    #[error("could not create the HTTP client: {0}")]
    Client(String),
}

/// All configured routers. Cloning shares them.
#[derive(Debug, Clone)]
pub struct Routers {
    routers: Arc<[Arc<MonitoredRouter>]>,
    metrics: Metrics,
}

/// A router with its circuit breaker and its request limit.
#[derive(Debug)]
struct MonitoredRouter {
    router: Router,
    health: Mutex<Health>,
    permits: Arc<Semaphore>,
}

impl MonitoredRouter {
    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Routers {
    /// The routers at these addresses.
    ///
    /// # Errors
    /// [`RoutersError`] names the invalid address.
    pub fn new<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        registry: &mut Registry,
    ) -> Result<Self, RoutersError> {
        Self::with(urls, RoutingRequestLimits::default(), registry)
    }

    fn with<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        limits: RoutingRequestLimits,
        registry: &mut Registry,
    ) -> Result<Self, RoutersError> {
        let http = client::http_client(&limits).map_err(|error| RoutersError::Client(error.to_string()))?;
        let monitored = |url: U| {
            let router = Router::new(url.as_ref(), http.clone(), limits)?;
            let permits = Arc::new(Semaphore::new(REQUESTS_MAX));
            Ok(Arc::new(MonitoredRouter { router, health: Mutex::default(), permits }))
        };
        let routers = urls.into_iter().map(monitored).collect::<Result<_, InvalidRouterUrl>>()?;
        Ok(Self { routers, metrics: Metrics::register(registry) })
    }

    /// Whether no router is configured.
    pub fn is_empty(&self) -> bool {
        self.routers.is_empty()
    }

    /// Queries all available routers in parallel. Must be called inside a Tokio runtime.
    pub fn find(&self, question: &Question) -> RouterRecords {
        let (to, records) = mpsc::channel(FOUND_WAITING_MAX);
        let mut tasks = JoinSet::new();
        for request in self.ask_all(question.endpoint()) {
            let (question, to) = (question.clone(), to.clone());
            tasks.spawn(async move { request.peers(&question, &to).await });
        }
        RouterRecords { records, _tasks: tasks }
    }

    /// Queries all available routers for the record of a key, and sends the results to a search, until its receiver is
    /// closed. The records are not verified.
    pub async fn feed(self, key: Key, search: mpsc::Sender<lookups::FoundRecord>) {
        let mut tasks = JoinSet::new();
        for request in self.ask_all("ipns") {
            let search = search.clone();
            tasks.spawn(async move {
                let answer = request.execute(|router| async move { router.record(&key).await }, count).await;
                if let Ok(Some(bytes)) = answer {
                    // If the channel is full, the search has enough records.
                    let _ = search.try_send(lookups::FoundRecord { holder: RecordOrigin::Router, bytes });
                }
            });
        }
        let all = async { while tasks.join_next().await.is_some() {} };
        tokio::select! {
            () = all => {}
            () = search.closed() => {}
        }
    }

    /// Publishes a key's record through all available routers. Returns how many accepted it.
    pub async fn publish(&self, key: Key, record: Bytes) -> usize {
        let mut tasks = JoinSet::new();
        for request in self.ask_all("ipns_put") {
            let record = record.clone();
            let put = move |router: Router| async move { router.put_record(&key, record).await };
            tasks.spawn(async move { request.execute(put, |()| 1).await.is_ok() });
        }
        let mut taken = 0;
        while let Some(ended) = tasks.join_next().await {
            taken += usize::from(ended.unwrap_or_default());
        }
        taken
    }

    fn ask_all(&self, endpoint: &'static str) -> impl Iterator<Item = RouterRequest> {
        self.routers.iter().filter_map(move |monitored| RouterRequest::begin(monitored, endpoint, &self.metrics))
    }
}

fn count<T>(found: &Option<T>) -> usize {
    usize::from(found.is_some())
}

/// The results of the routers. Dropping it cancels the requests.
#[derive(Debug)]
pub struct RouterRecords {
    records: mpsc::Receiver<PeerRecord>,
    _tasks: JoinSet<()>,
}

impl RouterRecords {
    /// The next record as it arrives; `None` when all routers have answered.
    pub async fn next(&mut self) -> Option<PeerRecord> {
        self.records.recv().await
    }
}

/// A request to one router, which records its outcome when it is dropped.
struct RouterRequest {
    router: Arc<MonitoredRouter>,
    endpoint: &'static str,
    metrics: Metrics,
    begun: Instant,
    outcome: Option<Outcome>,
    _permit: OwnedSemaphorePermit,
}

impl RouterRequest {
    /// Starts a request, if the circuit breaker and the limit allow it.
    fn begin(router: &Arc<MonitoredRouter>, endpoint: &'static str, metrics: &Metrics) -> Option<Self> {
        let begun = Instant::now();
        let permit = Arc::clone(&router.permits).try_acquire_owned().ok();
        let Some(permit) = permit.filter(|_| router.health().allows_request(begun)) else {
            metrics.ended(endpoint, Outcome::Skipped);
            return None;
        };
        let (router, metrics) = (Arc::clone(router), metrics.clone());
        Some(Self { router, endpoint, metrics, begun, outcome: None, _permit: permit })
    }

    /// Queries peers, and measures the time to the first record.
    async fn peers(self, question: &Question, to: &mpsc::Sender<PeerRecord>) {
        let (first, mut records) = mpsc::channel(1);
        let (metrics, endpoint, begun) = (self.metrics.clone(), self.endpoint, self.begun);
        let forward = async {
            let mut timed = false;
            while let Some(record) = records.recv().await {
                if !std::mem::replace(&mut timed, true) {
                    metrics.first(endpoint, begun.elapsed());
                }
                if to.send(record).await.is_err() {
                    return;
                }
            }
        };
        let question = question.clone();
        let ask = self.execute(|router| async move { router.ask(&question, &first).await }, |count| *count);
        let _ = tokio::join!(ask, forward);
    }

    /// Executes one request and records its outcome. `records` counts the records in the answer.
    async fn execute<T, F: Future<Output = Result<T, RouterError>>>(
        mut self,
        request: impl FnOnce(Router) -> F,
        records: impl FnOnce(&T) -> usize,
    ) -> Result<T, RouterError> {
        let answer = request(self.router.router.clone()).await;
        let now = Instant::now();
        let outcome = match &answer {
            Ok(answer) if records(answer) > 0 => Outcome::Found,
            Ok(_) => Outcome::Empty,
            Err(error) => Outcome::from(error),
        };
        match &answer {
            // A router may reject one endpoint and serve another.
            Ok(_) | Err(RouterError::Refused { .. }) => self.router.health().succeeded(),
            Err(RouterError::Busy { retry_after }) => self.router.health().busy(now, *retry_after),
            Err(_) => self.router.health().failed(now),
        }
        if let Err(error) = &answer {
            let router = self.router.router.base();
            tracing::debug!(%router, endpoint = self.endpoint, %error, "a request to a router failed");
        }
        self.outcome = Some(outcome);
        answer
    }
}

impl Drop for RouterRequest {
    fn drop(&mut self) {
        if self.outcome.is_none() {
            self.router.health().abandoned();
        }
        self.metrics.ended(self.endpoint, self.outcome.unwrap_or(Outcome::Abandoned));
    }
}
