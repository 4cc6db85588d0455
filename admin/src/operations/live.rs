//! `GET /api/v1/stats` and `GET /api/v1/events`: the figures of this moment, once and each second.
//!
//! Events are sent as Server-Sent Events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>), one a
//! second, each with all figures, so that a page needs no other. One task takes the figures for all who read along, and
//! there is none while nobody does. Whoever reads too slowly misses figures, and not the last ones.

use crate::http::answer::{Answer, Refusal, json};
use crate::http::extract::Authenticated;
use crate::http::long;
use crate::http::parameters::Parameters;
use crate::http::refusals::WrongRequest;
use crate::operations::Operations;
use api::peers::CarriedView;
use api::stats::{HttpView, NetworkView, RatesView, StatsView, StoreView, TierView, TiersView};
use api::text::seconds;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse as _;
use bytes::Bytes;
use cache::{StoreStats, TierFigures};
use futures::stream::{self, StreamExt as _};
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

/// Who may read along at a time.
pub const WATCHERS_MAX: usize = 32;
/// How often figures are taken.
const EVERY: Duration = Duration::from_secs(1);

pub(super) fn tier_view(figures: TierFigures) -> TierView {
    let TierFigures { hits, misses, errors, bytes } = figures;
    TierView { hits, misses, errors, bytes }
}

/// The figures of this moment.
#[utoipa::path(get, path = "/api/v1/stats", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "The figures", body = StatsView), WrongRequest))]
pub async fn stats(State(operations): State<Operations>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    Ok(json(StatusCode::OK, &operations.figures().await.view))
}

/// The figures of each second, as Server-Sent Events of the type `stats`, for as long as somebody reads.
#[utoipa::path(get, path = "/api/v1/events", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "Events, each with the figures as JSON", body = StatsView,
            content_type = "text/event-stream"), WrongRequest))]
pub async fn events(State(operations): State<Operations>, Authenticated(bearer): Authenticated, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let watcher = operations.watch(&bearer)?;
    let first = stream::once(async { Ok::<Bytes, Infallible>(Bytes::from_static(b"retry: 2000\n\n")) });
    let events = stream::unfold(watcher, |mut watcher| async move {
        // It ends with the process.
        watcher.events.changed().await.ok()?;
        let event = watcher.events.borrow_and_update().clone();
        Some((Ok(event), watcher))
    });
    let body = Body::from_stream(first.chain(events));
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((headers, body).into_response())
}

/// The figures that are taken for all who read along.
#[derive(Clone)]
pub(super) struct Live {
    limiter: Arc<Limiter>,
    current: Arc<Mutex<Option<Current>>>,
}

impl Default for Live {
    fn default() -> Self {
        Self { limiter: Arc::new(Limiter::shared(WATCHERS_MAX)), current: Arc::default() }
    }
}

struct Current {
    events: watch::Receiver<Bytes>,
    watchers: usize,
    _task: AbortOnDropHandle<()>,
}

/// Somebody who reads along. The last one to leave ends the taking of figures.
struct Watcher {
    events: watch::Receiver<Bytes>,
    live: Live,
    _permit: Permit,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut current = self.live.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = current.as_mut() {
            shared.watchers -= 1;
            if shared.watchers == 0 {
                *current = None;
            }
        }
    }
}

/// Figures, and what rates are reckoned from.
struct Taken {
    view: StatsView,
    at: Instant,
    requests: u64,
    discovery: (f64, u64),
    transfer: (f64, u64),
}

impl Operations {
    fn watch(&self, bearer: &Principal) -> Result<Watcher, Refusal> {
        let live = &self.inner.live;
        let permit = long::place(&live.limiter, bearer, || {
            format!("{WATCHERS_MAX} readers have the events already: try again when one has left")
        })?;
        let mut current = live.current.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = current.get_or_insert_with(|| {
            let (sender, events) = watch::channel(Bytes::new());
            let task = tokio::spawn(self.clone().take_figures(sender));
            Current { events, watchers: 0, _task: AbortOnDropHandle::new(task) }
        });
        shared.watchers += 1;
        let mut events = shared.events.clone();
        // Whoever joins later need not wait for the next second.
        if !events.borrow().is_empty() {
            events.mark_changed();
        }
        Ok(Watcher { events, live: live.clone(), _permit: permit })
    }

    async fn take_figures(self, events: watch::Sender<Bytes>) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last: Option<Taken> = None;
        loop {
            ticks.tick().await;
            let mut taken = self.figures().await;
            taken.compare(last.as_ref());
            let text = serde_json::to_string(&taken.view).unwrap_or_default();
            events.send_replace(format!("event: stats\ndata: {text}\n\n").into());
            last = Some(taken);
        }
    }

    async fn figures(&self) -> Taken {
        let parts = self.parts();
        let http = parts.metrics.figures();
        let tiers = parts.tiers.figures();
        let store: StoreStats = self.store().stats();
        let (load, latency) = match &parts.bridge {
            Some(bridge) => (bridge.load().await, bridge.latency()),
            None => (Load::default(), Default::default()),
        };
        let ram = parts.tiers.ram();
        let view = StatsView {
            taken_at: epoch::now(),
            uptime_seconds: seconds(self.inner.since.1.elapsed()),
            stage: self.stage().stage,
            http: HttpView {
                requests: http.requests.into_iter().map(|(class, count)| (class.to_owned(), count)).collect(),
                in_flight: http.in_flight,
                waiting: parts.gateway.running.len(),
                connections: http.connections,
                sent_bytes: http.bytes,
                aborted: http.aborted,
            },
            tiers: TiersView {
                ram: tier_view(tiers.ram),
                disk: tier_view(tiers.disk),
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
        };
        let requests = view.http.requests.values().sum();
        Taken { view, at: Instant::now(), requests, discovery: latency.discovery, transfer: latency.transfer }
    }
}

impl Taken {
    /// Adds what happened since the last figures.
    fn compare(&mut self, last: Option<&Self>) {
        let Some(last) = last else { return };
        let passed = self.at.saturating_duration_since(last.at).as_secs_f64();
        if passed <= 0.0 {
            return;
        }
        // Counters that are taken a moment apart may seem to run backwards.
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / passed;
        let carried = |taken: &Self, sum: fn(&CarriedView) -> u64| -> u64 {
            let direct = taken.view.network.transports.iter().filter(|carried| carried.transport != "circuit");
            direct.map(sum).sum()
        };
        let (now, then) = (&self.view, &last.view);
        let rates = RatesView {
            requests: rate(self.requests, last.requests),
            sent_bytes: rate(now.http.sent_bytes, then.http.sent_bytes),
            ram_hits: rate(now.tiers.ram.hits, then.tiers.ram.hits),
            disk_hits: rate(now.tiers.disk.hits, then.tiers.disk.hits),
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
