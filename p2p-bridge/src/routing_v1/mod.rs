//! The Delegated Routing V1 HTTP API (<https://specs.ipfs.tech/routing/http-routing-v1/>): what both sides of it exchange, and the
//! routers that we ask. What answers others is in the gateway.
//!
//! Goals: every router is asked at the moment the DHT is, and its records are used as they come; one that is dead, slow or
//! lying costs next to nothing and harms nobody.
//!
//! Non-goals: believing what they say. Addresses are filtered and dialled as those of any stranger, blocks and IPNS records are
//! checked.
//!
//! | module | concern |
//! |---|---|
//! | [`types`] | records, read and written as JSON |
//! | [`ndjson`] | records out of a stream of lines |
//! | [`filters`] | which peers and addresses are wanted |
//! | [`client`] | one router: requests, bounds, errors |
//! | `health` | whether a router is worth asking |

pub mod client;
pub mod filters;
pub mod ndjson;
pub mod types;

mod health;
mod metrics;
#[cfg(test)]
mod tests;

pub use client::{NotARouter, Question, RouterError};
pub use filters::Filters;
pub use types::PeerRecord;

use crate::lookups::{self, Holder};
use bytes::Bytes;
use client::{Limits, Router};
use content::names::Key;
use health::Health;
use metrics::{Metrics, Outcome};
use prometheus_client::registry::Registry;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

/// Requests to one router at a time. Searches beyond it do without.
const REQUESTS_MAX: usize = 64;
/// Records that may wait for whoever searches, and hold the router back.
const FOUND_WAITING_MAX: usize = 16;

/// Why the routers cannot be asked as configured.
#[derive(Debug, thiserror::Error)]
pub enum RoutersError {
    /// An address is not one.
    #[error(transparent)]
    NotARouter(#[from] NotARouter),
    /// There is no HTTP client to be had.
    #[error("no HTTP client can be made: {0}")]
    Client(String),
}

/// Every router that is asked. Cloning shares them.
#[derive(Debug, Clone)]
pub struct Routers {
    routers: Arc<[Arc<Watched>]>,
    metrics: Metrics,
}

/// A router and how it has been doing.
#[derive(Debug)]
struct Watched {
    router: Router,
    health: Mutex<Health>,
    places: Arc<Semaphore>,
}

impl Watched {
    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Routers {
    /// The routers at these addresses.
    ///
    /// # Errors
    /// [`RoutersError`] names the address at fault.
    pub fn new<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        registry: &mut Registry,
    ) -> Result<Self, RoutersError> {
        Self::with(urls, Limits::default(), registry)
    }

    fn with<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        limits: Limits,
        registry: &mut Registry,
    ) -> Result<Self, RoutersError> {
        let http = client::http_client(&limits).map_err(|error| RoutersError::Client(error.to_string()))?;
        let watched = |url: U| {
            let router = Router::new(url.as_ref(), http.clone(), limits)?;
            Ok(Arc::new(Watched { router, health: Mutex::default(), places: Arc::new(Semaphore::new(REQUESTS_MAX)) }))
        };
        let routers = urls.into_iter().map(watched).collect::<Result<_, NotARouter>>()?;
        Ok(Self { routers, metrics: Metrics::register(registry) })
    }

    /// Whether there is nobody to ask.
    pub fn is_empty(&self) -> bool {
        self.routers.is_empty()
    }

    /// Asks every router that is worth it, all at once. Must be called inside a Tokio runtime.
    pub fn find(&self, question: &Question) -> Found {
        let (to, records) = mpsc::channel(FOUND_WAITING_MAX);
        let mut tasks = JoinSet::new();
        for asking in self.ask_all(question.endpoint()) {
            let (question, to) = (question.clone(), to.clone());
            tasks.spawn(async move { asking.peers(&question, &to).await });
        }
        Found { records, _tasks: tasks }
    }

    /// Asks every router that is worth it for the record of a key, and puts what each has into a search, as long as anybody
    /// listens to that. Whether a record is good nobody has checked.
    pub async fn feed(self, key: Key, search: mpsc::Sender<lookups::Found>) {
        let mut tasks = JoinSet::new();
        for asking in self.ask_all("ipns") {
            let search = search.clone();
            tasks.spawn(async move {
                let answer = asking.through(|router| async move { router.record(&key).await }, count).await;
                if let Ok(Some(bytes)) = answer {
                    // Full means that whoever searches has enough to do.
                    let _ = search.try_send(lookups::Found { holder: Holder::Router, bytes });
                }
            });
        }
        let all = async { while tasks.join_next().await.is_some() {} };
        tokio::select! {
            () = all => {}
            () = search.closed() => {}
        }
    }

    /// Gives every router that is worth it a key's record to publish. Returns how many took it.
    pub async fn publish(&self, key: Key, record: Bytes) -> usize {
        let mut tasks = JoinSet::new();
        for asking in self.ask_all("ipns_put") {
            let record = record.clone();
            let put = move |router: Router| async move { router.put_record(&key, record).await };
            tasks.spawn(async move { asking.through(put, |()| 1).await.is_ok() });
        }
        let mut taken = 0;
        while let Some(ended) = tasks.join_next().await {
            taken += usize::from(ended.unwrap_or_default());
        }
        taken
    }

    fn ask_all(&self, endpoint: &'static str) -> impl Iterator<Item = Asking> {
        self.routers.iter().filter_map(move |watched| Asking::begin(watched, endpoint, &self.metrics))
    }
}

fn count<T>(found: &Option<T>) -> usize {
    usize::from(found.is_some())
}

/// What routers find. Dropping it ends every request.
#[derive(Debug)]
pub struct Found {
    records: mpsc::Receiver<PeerRecord>,
    _tasks: JoinSet<()>,
}

impl Found {
    /// The next record, as it is found; `None` when every router has answered.
    pub async fn next(&mut self) -> Option<PeerRecord> {
        self.records.recv().await
    }
}

/// A request to one router, from its beginning to its end, whichever that is.
struct Asking {
    router: Arc<Watched>,
    endpoint: &'static str,
    metrics: Metrics,
    begun: Instant,
    outcome: Option<Outcome>,
    _place: OwnedSemaphorePermit,
}

impl Asking {
    /// Begins a request, if the router is worth it.
    fn begin(router: &Arc<Watched>, endpoint: &'static str, metrics: &Metrics) -> Option<Self> {
        let begun = Instant::now();
        let place = Arc::clone(&router.places).try_acquire_owned().ok();
        let Some(place) = place.filter(|_| router.health().may_ask(begun)) else {
            metrics.ended(endpoint, Outcome::Skipped);
            return None;
        };
        let (router, metrics) = (Arc::clone(router), metrics.clone());
        Some(Self { router, endpoint, metrics, begun, outcome: None, _place: place })
    }

    /// Asks for peers; the first of them is timed.
    async fn peers(self, question: &Question, to: &mpsc::Sender<PeerRecord>) {
        let (first, mut records) = mpsc::channel(1);
        let (metrics, endpoint, begun) = (self.metrics.clone(), self.endpoint, self.begun);
        let pass_on = async {
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
        let ask = self.through(|router| async move { router.ask(&question, &first).await }, |count| *count);
        let _ = tokio::join!(ask, pass_on);
    }

    /// Does one request and notes what came of it, by how many records there are in the answer.
    async fn through<T, F: Future<Output = Result<T, RouterError>>>(
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
            // What it does not serve at one endpoint it may at another.
            Ok(_) | Err(RouterError::Refused { .. }) => self.router.health().succeeded(),
            Err(RouterError::Busy { retry_after }) => self.router.health().busy(now, *retry_after),
            Err(_) => self.router.health().failed(now),
        }
        if let Err(error) = &answer {
            tracing::debug!(router = %self.router.router.base(), endpoint = self.endpoint, %error, "a router failed");
        }
        self.outcome = Some(outcome);
        answer
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if self.outcome.is_none() {
            self.router.health().left();
        }
        self.metrics.ended(self.endpoint, self.outcome.unwrap_or(Outcome::Left));
    }
}
