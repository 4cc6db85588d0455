//! `GET /api/v1/stats` and `GET /api/v1/events`: current statistics, once or every second.
//!
//! `events` sends Server-Sent Events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>), one a second,
//! each with all statistics, so that a page needs only the latest one. One task takes the snapshots for all
//! subscribers, and it runs only while there are any. A slow subscriber skips events, and always receives the latest
//! one. The events end when the token is revoked or expires.

use crate::http::answer::{Answer, ApiError, json};
use crate::http::error_responses::BadRequest;
use crate::http::extract::Authenticated;
use crate::http::long_running;
use crate::http::parameters::Parameters;
use crate::operations::Operations;
use api::access::Scope;
use api::peers::CarriedView;
use api::stats::{
    HttpView, NetworkView, ProcessView, RatesView, ResponseTierView, StatsView, StoreView, TierView, TiersView,
};
use api::text::seconds;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse as _;
use bytes::Bytes;
use cache::{StoreStats, TierFigures};
use futures::stream::{self, StreamExt as _};
use gateway::metrics::TierResponses;
use p2p_bridge::epoch;
use p2p_bridge::peers::Load;
use services::access::Principal;
use services::limiter::{Limiter, Permit};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::task::AbortOnDropHandle;

/// The maximum number of subscribers.
pub const SUBSCRIBERS_MAX: usize = 32;
/// The interval of snapshots.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(1);
/// The class of statuses that count as errors.
pub(super) const SERVER_ERRORS: &str = "5xx";

/// The maximum size of the blocks that the store may evict.
fn disk_budget(cache: &config::Cache) -> u64 {
    match cache.store {
        config::StoreKind::Memory => cache.disk_bytes_max.min(cache.memory_bytes_max),
        config::StoreKind::Rocksdb | config::StoreKind::Flat => cache.disk_bytes_max,
    }
}

pub(super) fn tier_view(figures: TierFigures) -> TierView {
    let TierFigures { hits, misses, errors, bytes } = figures;
    TierView { hits, misses, errors, bytes }
}

fn response_tier(responses: &TierResponses) -> ResponseTierView {
    let TierResponses { requests, bytes, first_byte, .. } = responses;
    let quantile = |share| first_byte.quantile(share).map(seconds);
    ResponseTierView {
        requests: *requests,
        sent_bytes: *bytes,
        first_byte_median_seconds: quantile(0.5),
        first_byte_p95_seconds: quantile(0.95),
        first_byte_p99_seconds: quantile(0.99),
    }
}

/// The current statistics.
#[utoipa::path(get, path = "/api/v1/stats", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "The statistics", body = StatsView), BadRequest))]
pub async fn stats(State(operations): State<Operations>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    Ok(json(StatusCode::OK, &operations.figures().await.view))
}

/// The statistics every second, as Server-Sent Events of the type `stats`.
#[utoipa::path(get, path = "/api/v1/events", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "Events, each with the statistics as JSON", body = StatsView,
            content_type = "text/event-stream"), BadRequest))]
pub async fn events(State(operations): State<Operations>, Authenticated(bearer): Authenticated, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let subscriber = operations.watch(&bearer)?;
    let first = stream::once(async { Ok::<Bytes, Infallible>(Bytes::from_static(b"retry: 2000\n\n")) });
    let events = stream::unfold(subscriber, |mut subscriber| async move {
        // The stream ends with the process, and with the token.
        subscriber.events.changed().await.ok()?;
        subscriber.operations.may_read(&subscriber.id).then_some(())?;
        let event = subscriber.events.borrow_and_update().clone();
        Some((Ok(event), subscriber))
    });
    let body = Body::from_stream(first.chain(events));
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, body).into_response())
}

/// The snapshots that all subscribers share.
pub(super) struct Live {
    limiter: Arc<Limiter>,
    current: Arc<Mutex<Option<SharedEvents>>>,
}

impl Default for Live {
    fn default() -> Self {
        Self { limiter: Arc::new(Limiter::shared(SUBSCRIBERS_MAX)), current: Arc::default() }
    }
}

struct SharedEvents {
    events: watch::Receiver<Bytes>,
    subscribers: usize,
    _task: AbortOnDropHandle<()>,
}

/// A subscriber. Dropping the last one stops the task that takes snapshots.
struct Subscriber {
    events: watch::Receiver<Bytes>,
    operations: Operations,
    /// The ID of the token.
    id: Arc<str>,
    _permit: Permit,
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let live = &self.operations.inner.live;
        let mut current = live.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = current.as_mut() {
            shared.subscribers -= 1;
            if shared.subscribers == 0 {
                *current = None;
            }
        }
    }
}

/// Statistics, and the counters from which the rates of the next snapshot are computed.
struct Snapshot {
    view: StatsView,
    at: Instant,
    requests: u64,
    discovery: (f64, u64),
    transfer: (f64, u64),
}

impl Operations {
    fn watch(&self, bearer: &Principal) -> Result<Subscriber, ApiError> {
        let live = &self.inner.live;
        let permit = long_running::acquire(&live.limiter, bearer, || {
            format!("{SUBSCRIBERS_MAX} clients read the events already: try again when one has disconnected")
        })?;
        let mut current = live.current.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = current.get_or_insert_with(|| {
            let (sender, events) = watch::channel(Bytes::new());
            let task = tokio::spawn(self.clone().publish_statistics(sender));
            SharedEvents { events, subscribers: 0, _task: AbortOnDropHandle::new(task) }
        });
        shared.subscribers += 1;
        let mut events = shared.events.clone();
        // A later subscriber receives the latest snapshot at once.
        if !events.borrow().is_empty() {
            events.mark_changed();
        }
        Ok(Subscriber { events, operations: self.clone(), id: Arc::clone(&bearer.id), _permit: permit })
    }

    /// Whether a token is still valid, and has the scope of the statistics.
    fn may_read(&self, token_id: &str) -> bool {
        (self.parts().principals)(token_id).is_some_and(|principal| principal.may(Scope::Read))
    }

    async fn publish_statistics(self, events: watch::Sender<Bytes>) {
        let mut ticks = tokio::time::interval(SNAPSHOT_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last: Option<Snapshot> = None;
        loop {
            ticks.tick().await;
            let mut snapshot = self.figures().await;
            snapshot.compare(last.as_ref());
            let text = serde_json::to_string(&snapshot.view).unwrap_or_default();
            events.send_replace(format!("event: stats\ndata: {text}\n\n").into());
            last = Some(snapshot);
        }
    }

    async fn figures(&self) -> Snapshot {
        let parts = self.parts();
        let http = parts.metrics.figures();
        let tiers = parts.tiers.figures();
        let store: StoreStats = self.store().stats();
        let (load, latency) = match &parts.bridge {
            Some(bridge) => (bridge.load().await, bridge.latency()),
            None => (Load::default(), Default::default()),
        };
        let ram = parts.tiers.ram();
        let system = self.system().await;
        let view = StatsView {
            taken_at: epoch::now(),
            uptime_seconds: seconds(self.inner.started.1.elapsed()),
            stage: self.stage().stage,
            recent: self.inner.history.recent(&http.tiers),
            http: HttpView {
                requests: http.requests.into_iter().map(|(class, count)| (class.to_owned(), count)).collect(),
                in_flight: http.in_flight,
                waiting: parts.gateway.running.len(),
                connections: http.connections,
                sent_bytes: http.bytes,
                aborted: http.aborted,
                tiers: http
                    .tiers
                    .iter()
                    .map(|responses| (responses.tier.to_owned(), response_tier(responses)))
                    .collect(),
            },
            tiers: TiersView {
                ram: tier_view(tiers.ram),
                disk: tier_view(tiers.disk),
                site: tiers.site.map(tier_view),
                network: tier_view(tiers.network),
            },
            store: StoreView {
                ram_bytes: ram.bytes(),
                ram_blocks: ram.entries(),
                blocks: store.blocks,
                cached_bytes: store.cached_bytes,
                pinned_bytes: store.pinned_bytes,
                evicted_blocks: store.evicted_blocks,
                degraded: store.degraded(),
                trouble: store.trouble.map(|trouble| trouble.word().to_owned()),
                disk_budget_bytes: disk_budget(&parts.loaded.config.cache),
                disk_used_bytes: store.cached_bytes + store.pinned_bytes,
                disk_free_bytes: system.space.map(|space| space.available_bytes),
                disk_size_bytes: system.space.map(|space| space.size_bytes),
                ram_budget_bytes: ram.budget_bytes(),
            },
            network: NetworkView {
                peers: load.peers,
                sessions: load.sessions,
                wanted_blocks: load.wants,
                searches: load.searches,
                transports: self.carried(),
                discovery_seconds: None,
                transfer_seconds: None,
            },
            pins: parts.pins.as_ref().map(|count| count()).unwrap_or_default(),
            rates: None,
            process: ProcessView {
                cpu_seconds: system.usage.map(|usage| usage.cpu_seconds),
                resident_bytes: system.usage.map(|usage| usage.resident_bytes),
                open_files: system.usage.and_then(|usage| usage.open_files),
                open_files_max: system.usage.and_then(|usage| usage.open_files_max),
            },
        };
        let requests = view.http.requests.values().sum();
        Snapshot { view, at: Instant::now(), requests, discovery: latency.discovery, transfer: latency.transfer }
    }
}

impl Snapshot {
    /// Adds the rates since the last snapshot.
    fn compare(&mut self, last: Option<&Self>) {
        let Some(last) = last else { return };
        let passed = self.at.saturating_duration_since(last.at).as_secs_f64();
        if passed <= 0.0 {
            return;
        }
        // Counters that are read at slightly different times may seem to run backwards.
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / passed;
        let carried = |snapshot: &Self, sum: fn(&CarriedView) -> u64| -> u64 {
            let direct = snapshot.view.network.transports.iter().filter(|carried| carried.transport != "circuit");
            direct.map(sum).sum()
        };
        let (now, then) = (&self.view, &last.view);
        let errors = |view: &StatsView| view.http.requests.get(SERVER_ERRORS).copied().unwrap_or_default();
        let by_tier = |counter: fn(&ResponseTierView) -> u64| {
            let before = |tier: &str| then.http.tiers.get(tier).map(counter).unwrap_or_default();
            now.http.tiers.iter().map(|(tier, view)| (tier.clone(), rate(counter(view), before(tier)))).collect()
        };
        let rates = RatesView {
            errors: rate(errors(now), errors(then)),
            requests_by_tier: by_tier(|view| view.requests),
            bytes_by_tier: by_tier(|view| view.sent_bytes),
            requests: rate(self.requests, last.requests),
            sent_bytes: rate(now.http.sent_bytes, then.http.sent_bytes),
            ram_hits: rate(now.tiers.ram.hits, then.tiers.ram.hits),
            disk_hits: rate(now.tiers.disk.hits, then.tiers.disk.hits),
            site_hits: now
                .tiers
                .site
                .as_ref()
                .zip(then.tiers.site.as_ref())
                .map(|(now, then)| rate(now.hits, then.hits)),
            network_hits: rate(now.tiers.network.hits, then.tiers.network.hits),
            p2p_received_bytes: rate(
                carried(self, |view| view.received_bytes),
                carried(last, |view| view.received_bytes),
            ),
            p2p_sent_bytes: rate(carried(self, |view| view.sent_bytes), carried(last, |view| view.sent_bytes)),
        };
        let mean = |now: (f64, u64), then: (f64, u64)| {
            let count = now.1.saturating_sub(then.1);
            (count > 0).then(|| ((now.0 - then.0) / count as f64).max(0.0))
        };
        self.view.rates = Some(rates);
        self.view.network.discovery_seconds = mean(self.discovery, last.discovery);
        self.view.network.transfer_seconds = mean(self.transfer, last.transfer);
    }
}
