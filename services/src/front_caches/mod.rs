//! Caches in front of the gateway (`policy.caches`), which are purged when content is taken down or purged here: a
//! reverse proxy, Varnish, a content delivery network.
//!
//! | module | concern |
//! |---|---|
//! | [`message`] | the requests for each kind of cache, and the interpretation of responses; without I/O |
//! | [`queue`] | the queue of purge requests, on the disk |
//! | `sender` | sends the requests, with retries and back-off |
//!
//! Goals: purge requests are on the disk before the take-down is answered, and are sent until the cache confirms them,
//! also after restarts; an unresponsive cache does not delay others; results are in the audit log and in metrics.
//!
//! Limits: at most [`queue::ITEMS_MAX`] queued requests, beyond which the oldest are dropped, those for blocks first;
//! [`PURGED_BLOCKS_MAX`] blocks of a deep take-down. A cache finds content by its URLs or surrogate keys, and keeps what
//! it has under others; [`config::Http::shared_max_age_seconds`] bounds that.

pub mod message;
pub mod queue;
mod sender;

use self::queue::{Item, Queue};
use crate::audit::AuditLog;
use crate::subject::Subject;
use crate::supervision::Supervisor;
use config::{CacheKind, Config, ConfigError, FrontCache, Host, Loaded};
use content::Cid;
use p2p_bridge::durable;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

/// The maximum number of blocks of one deep take-down that a cache is sent purge requests for, if it finds them by
/// surrogate keys.
pub const PURGED_BLOCKS_MAX: usize = 32_768;
/// The same for a cache that finds them by URLs: a block has a dozen, and nginx stores the answer for each.
const BLOCKS_BY_URL_MAX: usize = 1024;
/// The number of blocks in an item of the queue.
const BLOCKS_PER_ITEM: usize = 128;

/// The caches in front of the gateway. Clones share them. Without caches it does nothing.
#[derive(Clone, Default)]
pub struct Caches {
    inner: Option<Arc<Inner>>,
}

struct Inner {
    caches: Vec<FrontCache>,
    hosts: Vec<Host>,
    queue: Mutex<Queue>,
    /// Serialises writing the queue to the disk.
    writing: Mutex<()>,
    /// Wakes the senders.
    changed: Notify,
    audit: Arc<AuditLog>,
    metrics: CacheMetrics,
}

/// The sender tasks. Dropping it aborts them; unsent requests stay on the disk.
#[derive(Default)]
pub struct Senders {
    _tasks: Vec<AbortOnDropHandle<()>>,
}

/// Checks that the tokens of all caches can be read.
///
/// # Errors
/// [`ConfigError`] about the first one that cannot.
pub fn check(loaded: &Loaded) -> Result<(), ConfigError> {
    let mut tokens = loaded.config.policy.caches.iter().map(message::token);
    tokens.try_for_each(|token| token.map(drop)).map_err(|error| loaded.error("policy.caches", error.to_string()))
}

impl Caches {
    /// Starts the senders of the caches in the settings. Requests that were queued before a restart are sent.
    ///
    /// # Errors
    /// When a token or the queue cannot be read.
    pub fn start(
        config: &Config,
        audit: &Arc<AuditLog>,
        registry: &mut Registry,
        supervisor: &Supervisor,
    ) -> anyhow::Result<(Self, Senders)> {
        let caches = config.policy.caches.clone();
        if caches.is_empty() {
            return Ok(Self::default()).map(|caches| (caches, Senders::default()));
        }
        let tokens = caches.iter().map(message::token).collect::<Result<Vec<_>, _>>()?;
        let queue = Queue::open(&config.data_dir, &caches)?;
        let inner = Arc::new(Inner {
            caches: caches.clone(),
            hosts: config.http.hosts.clone(),
            queue: Mutex::new(queue),
            writing: Mutex::default(),
            changed: Notify::new(),
            audit: Arc::clone(audit),
            metrics: CacheMetrics::registered(registry),
        });
        inner.update_metrics();
        inner.caches.iter().for_each(|cache| inner.metrics.expose(cache));
        let send = |(cache, token)| {
            let sender = sender::start(Arc::clone(&inner), cache, token)?;
            Ok(supervisor.spawn("the sender of purge requests to caches", sender))
        };
        let tasks = caches.into_iter().zip(tokens).map(send).collect::<anyhow::Result<Vec<_>>>()?;
        Ok((Self { inner: Some(inner) }, Senders { _tasks: tasks }))
    }

    /// Whether no caches are configured.
    pub fn is_empty(&self) -> bool {
        self.inner.is_none()
    }

    /// The number of caches.
    pub fn count(&self) -> u64 {
        self.caches().len() as u64
    }

    fn caches(&self) -> &[FrontCache] {
        self.inner.as_ref().map_or(&[], |inner| &inner.caches)
    }

    /// Queues purge requests for all caches, and returns the number of caches. Returns when the queue is on the disk.
    /// `shown` replaces the content in logs and the audit log, if it must not be revealed there.
    pub async fn invalidate(&self, subjects: &[Subject], shown: Option<&str>) -> u64 {
        let shown = |path: &String| shown.map_or_else(|| path.clone(), str::to_owned);
        let item = |cache: &FrontCache, path: String| Item {
            cache: cache.to_string(),
            shown: shown(&path),
            path,
            blocks: Vec::new(),
            refusals: 0,
        };
        let items =
            self.caches().iter().flat_map(|cache| subjects.iter().map(|subject| item(cache, subject.request_path())));
        self.enqueue(items.collect()).await
    }

    /// Queues purge requests for blocks that are withheld with a subject, whatever paths they were requested under, and
    /// returns the number of blocks, the first ones, that every cache is sent purge requests for. The rest as
    /// [`Caches::invalidate`].
    ///
    /// A cache of the kind `refresh` stores new responses of the gateway, which has none for a block whose own CID it
    /// does not serve (`is_served`): it is sent no requests for these, which would fail always.
    pub async fn invalidate_blocks(
        &self,
        subject: &Subject,
        blocks: &[Cid],
        is_served: impl Fn(&Cid) -> bool,
        shown: Option<&str>,
    ) -> usize {
        let path = subject.request_path();
        let item = |cache: &FrontCache, blocks: &[Cid]| Item {
            cache: cache.to_string(),
            path: path.clone(),
            blocks: blocks.iter().map(Cid::to_string).collect(),
            shown: shown.unwrap_or(&path).to_owned(),
            refusals: 0,
        };
        let first = |cache: &FrontCache| blocks.get(..blocks_max(cache.kind)).unwrap_or(blocks);
        let is_sent = |cache: &FrontCache, block: &Cid| cache.kind != CacheKind::Refresh || is_served(block);
        let mut items = Vec::new();
        for cache in self.caches() {
            let blocks: Vec<Cid> = first(cache).iter().filter(|block| is_sent(cache, block)).copied().collect();
            items.extend(blocks.chunks(BLOCKS_PER_ITEM).map(|blocks| item(cache, blocks)));
        }
        self.enqueue(items).await;
        self.caches().iter().map(|cache| first(cache).len()).min().unwrap_or_default()
    }

    /// Queues items for the caches, and returns the number of caches.
    async fn enqueue(&self, items: Vec<Item>) -> u64 {
        let Some(inner) = self.inner.clone().filter(|_| !items.is_empty()) else { return 0 };
        let caches = inner.caches.len() as u64;
        // If writing fails, the requests are sent anyway, unless the process ends first.
        let adding = tokio::task::spawn_blocking(move || {
            inner.queue().add(items);
            inner.save();
            inner.update_metrics();
            inner.changed.notify_waiters();
        });
        _ = adding.await;
        caches
    }
}

impl Inner {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the queue. Blocks the thread, but not other users of the queue.
    fn save(&self) {
        // Serialised, so that an older state is not written last.
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let written = self.queue().written();
        if let Err(error) = written.and_then(|(file, text)| durable::write(&file, &text)) {
            tracing::error!(%error, "writing the queue of purge requests failed: a restart would lose them");
        }
    }

    fn update_metrics(&self) {
        let queue = self.queue();
        for cache in &self.caches {
            let waiting = queue.waiting(&cache.to_string());
            self.metrics.waiting(cache).set(i64::try_from(waiting).unwrap_or(i64::MAX));
        }
        self.metrics.dropped.inc_by(queue.dropped().saturating_sub(self.metrics.dropped.get()));
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheLabel {
    cache: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    cache: String,
    result: &'static str,
}

p2p_bridge::metrics! {
    /// Metrics of caches in front.
    #[derive(Debug, Clone)]
    struct CacheMetrics {
        waiting: Family<CacheLabel, Gauge> = "causeway_cache_invalidations_waiting", "Queued purge requests, by cache";
        sent: Family<ResultLabel, Counter> = "causeway_cache_invalidations_sent",
            "Purge requests sent, by cache and result";
        dropped: Counter = "causeway_cache_invalidations_dropped",
            "Purge requests dropped because the queue was full";
    }
}

impl CacheMetrics {
    fn waiting(&self, cache: &FrontCache) -> Gauge {
        self.waiting.get_or_create(&CacheLabel { cache: cache.to_string() }).clone()
    }

    /// Exports the counters of a cache before its first request.
    fn expose(&self, cache: &FrontCache) {
        for result in sender::RESULTS {
            drop(self.sent.get_or_create(&ResultLabel { cache: cache.to_string(), result }));
        }
    }

    fn count(&self, cache: &FrontCache, result: &'static str) {
        self.sent.get_or_create(&ResultLabel { cache: cache.to_string(), result }).inc();
    }
}

/// The maximum number of blocks of one deep take-down that a cache is sent purge requests for.
fn blocks_max(kind: CacheKind) -> usize {
    match kind {
        CacheKind::Purge | CacheKind::Refresh => BLOCKS_BY_URL_MAX,
        CacheKind::Ban | CacheKind::Xkey | CacheKind::Fastly | CacheKind::Cloudflare => PURGED_BLOCKS_MAX,
    }
}

/// The path of the queue in the data directory.
fn file(data_dir: &Path) -> std::path::PathBuf {
    data_dir.join("front-caches.json")
}

#[cfg(test)]
mod tests;
