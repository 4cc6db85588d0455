//! `GET /api/v1/stats` and `GET /api/v1/events`: the figures of this moment, once and each second.
//!
//! Events are sent as Server-Sent Events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>), one a
//! second, each with all figures, so that a page needs no other. One task takes the figures for all who read along, and
//! there is none while nobody does. Whoever reads too slowly misses figures, and not the last ones.

use super::Operations;
use super::peers::CarriedView;
use crate::admin::access::Bearer;
use crate::admin::answer::{Answer, Refusal, json, seconds};
use crate::admin::long;
use crate::admin::parameters::Parameters;
use crate::admin::refusals::WrongRequest;
use crate::limiter::{Limiter, Permit};
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
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::task::AbortOnDropHandle;
use utoipa::ToSchema;

/// Who may read along at a time.
pub const WATCHERS_MAX: usize = 32;
/// How often figures are taken.
const EVERY: Duration = Duration::from_secs(1);

/// What a tier was asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TierView {
    /// Blocks that it had, since the start.
    pub hits: u64,
    /// Blocks that it did not have.
    pub misses: u64,
    /// Questions that it failed to answer.
    pub errors: u64,
    /// Bytes of the blocks that it had.
    pub bytes: u64,
}

impl From<TierFigures> for TierView {
    fn from(figures: TierFigures) -> Self {
        let TierFigures { hits, misses, errors, bytes } = figures;
        Self { hits, misses, errors, bytes }
    }
}

/// The local tiers and the network behind them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TiersView {
    /// Memory.
    pub ram: TierView,
    /// The store.
    pub disk: TierView,
    /// Whoever is asked for what is not here.
    pub network: TierView,
}

/// What the public listener did since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HttpView {
    /// Requests that were answered, by the class of the status: `2xx` to `5xx`.
    pub requests: BTreeMap<String, u64>,
    /// Requests that are being answered.
    pub in_flight: i64,
    /// Those of them that were not answered at once.
    pub waiting: usize,
    /// Open connections, the operator's included.
    pub connections: i64,
    /// Bytes of response bodies.
    pub sent_bytes: u64,
    /// Responses that broke off.
    pub aborted: u64,
}

/// What is stored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoreView {
    /// Bytes in memory.
    pub ram_bytes: u64,
    /// Blocks in memory.
    pub ram_blocks: u64,
    /// Blocks on the disk.
    pub blocks: u64,
    /// What those take that may be evicted.
    pub cached_bytes: u64,
    /// What those take that are pinned.
    pub pinned_bytes: u64,
    /// Blocks evicted since the start.
    pub evicted_blocks: u64,
    /// Whether nothing is stored at the moment.
    pub degraded: bool,
    /// Why: `full`, `no_inodes`, `failing` or `broken`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// The network.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkView {
    /// Connected peers.
    pub peers: usize,
    /// DAGs that are being read from the network, or were a moment ago.
    pub sessions: usize,
    /// Blocks that somebody waits for.
    pub wanted_blocks: usize,
    /// Searches for providers under way.
    pub searches: usize,
    /// What each transport carried since the start.
    pub transports: Vec<CarriedView>,
    /// How long it took on average until the first peer proved to hold a DAG, of those that were found in the last
    /// interval.
    pub discovery_seconds: Option<f64>,
    /// How long it took on average until a block came that a peer was asked for, in the last interval.
    pub transfer_seconds: Option<f64>,
}

/// What happened each second, on average since the last figures; none of it in the first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RatesView {
    /// Requests that were answered.
    pub requests: f64,
    /// Bytes of response bodies.
    pub sent_bytes: f64,
    /// Blocks from memory.
    pub ram_hits: f64,
    /// Blocks from the disk.
    pub disk_hits: f64,
    /// Blocks from the network.
    pub network_hits: f64,
    /// Bytes from peers.
    pub p2p_received_bytes: f64,
    /// Bytes to peers.
    pub p2p_sent_bytes: f64,
}

/// The figures of a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatsView {
    /// When.
    pub taken_at: u64,
    /// For how long the node has run.
    pub uptime_seconds: f64,
    /// `starting`, `serving` or `draining`.
    pub stage: String,
    /// The public listener.
    pub http: HttpView,
    /// The tiers.
    pub tiers: TiersView,
    /// The store.
    pub store: StoreView,
    /// The network.
    pub network: NetworkView,
    /// Pins: `pinned`, `pending` and `failed` ones, and how many roots are being fetched (`active_roots`) or wait for that
    /// (`queued_roots`).
    pub pins: BTreeMap<String, u64>,
    /// What happened each second.
    pub rates: Option<RatesView>,
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
pub async fn events(State(operations): State<Operations>, bearer: Bearer, uri: Uri) -> Answer {
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
    fn watch(&self, bearer: &Bearer) -> Result<Watcher, Refusal> {
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
            tiers: TiersView { ram: tiers.ram.into(), disk: tiers.disk.into(), network: tiers.network.into() },
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
