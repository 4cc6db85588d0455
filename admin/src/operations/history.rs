//! `GET /api/v1/history`: the statistics of the last hour, and the latencies of the last minute for
//! [`super::live`].
//!
//! One task takes a sample every five seconds, from the start of the node on. It reads counters, so that a sample
//! costs some microseconds; the samples are a ring of fixed size in memory (ARCHITECTURE, "Budgets").
//!
//! Non-goals: statistics beyond an hour and across restarts, for which Prometheus is.

use super::live::SERVER_ERRORS;
use crate::http::answer::{Answer, json};
use crate::http::error_responses::BadRequest;
use crate::http::parameters::Parameters;
use crate::operations::{Inner, Operations};
use api::history::{HistorySampleView, HistoryView};
use api::peers::CarriedView;
use api::stats::RecentTierView;
use api::text::seconds;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use cache::TierFigures;
use gateway::latency::LatencySnapshot;
use gateway::metrics::{HttpFigures, TierResponses};
use p2p_bridge::epoch;
use services::process::resident_bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

/// The interval of samples.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// The number of samples that are kept: those of an hour.
const SAMPLES_MAX: usize = 3600 / SAMPLE_EVERY.as_secs() as usize;
/// The time of which [`History::recent`] has the latencies.
const RECENT: Duration = Duration::from_secs(60);
/// The counts of responses that are kept for that.
const RECENT_MAX: usize = (RECENT.as_secs() / SAMPLE_EVERY.as_secs()) as usize + 1;

/// The samples of the last hour.
#[derive(Debug, Default)]
pub(super) struct History {
    rings: Mutex<Rings>,
}

#[derive(Debug, Default)]
struct Rings {
    /// Oldest first.
    samples: VecDeque<HistorySampleView>,
    /// The counts of responses since the start, when each of the last samples was taken, oldest first.
    responses: VecDeque<Vec<TierResponses>>,
}

/// The counters of which samples have the rates.
struct Counters {
    at: Instant,
    http: HttpFigures,
    hits: [u64; 3],
    /// Of a gateway of a site.
    site_hits: Option<u64>,
    received_bytes: u64,
    sent_bytes: u64,
}

/// Appends to a ring, from which the oldest element is removed if it is full.
fn append<T>(ring: &mut VecDeque<T>, element: T, max: usize) {
    if ring.len() >= max {
        ring.pop_front();
    }
    ring.push_back(element);
}

/// The first bytes of responses with content and without.
fn first_bytes(http: &HttpFigures) -> LatencySnapshot {
    http.tiers.iter().fold(LatencySnapshot::default(), |all, tier| all.with(&tier.first_byte))
}

fn errors(http: &HttpFigures) -> u64 {
    http.requests.iter().filter(|(class, _)| *class == SERVER_ERRORS).map(|(_, count)| count).sum()
}

impl History {
    fn rings(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The responses of the last minute by tier, if these are the counts since the start.
    pub(super) fn recent(&self, now: &[TierResponses]) -> BTreeMap<String, RecentTierView> {
        let before = self.rings().responses.front().cloned().unwrap_or_default();
        let view = |responses: &TierResponses| {
            let earlier = before.iter().find(|earlier| earlier.tier == responses.tier);
            let latencies = earlier.map_or_else(
                || responses.first_byte.clone(),
                |earlier| responses.first_byte.since(&earlier.first_byte),
            );
            let quantile = |share| latencies.quantile(share).map(seconds);
            let view = RecentTierView {
                requests: latencies.count(),
                p50_seconds: quantile(0.5),
                p95_seconds: quantile(0.95),
                p99_seconds: quantile(0.99),
            };
            (responses.tier.to_owned(), view)
        };
        now.iter().map(view).collect()
    }
}

impl Operations {
    /// Takes samples until the node ends. Call it once.
    pub fn sample_statistics(&self) {
        tokio::spawn(sample(Arc::downgrade(&self.inner)));
    }

    fn counters(&self) -> Counters {
        let parts = self.parts();
        let tiers = parts.tiers.figures();
        let transports = self.carried();
        let direct = || transports.iter().filter(|carried: &&CarriedView| carried.transport != "circuit");
        Counters {
            at: Instant::now(),
            http: parts.metrics.figures(),
            hits: [tiers.ram, tiers.disk, tiers.network].map(|tier: TierFigures| tier.hits),
            site_hits: tiers.site.map(|tier| tier.hits),
            received_bytes: direct().map(|carried| carried.received_bytes).sum(),
            sent_bytes: direct().map(|carried| carried.sent_bytes).sum(),
        }
    }

    /// Takes a sample, if these are the counters at the last one.
    async fn sample(&self, last: Option<&Counters>) -> Counters {
        let parts = self.parts();
        let peers = match &parts.bridge {
            Some(bridge) => bridge.load().await.peers,
            None => 0,
        };
        let now = self.counters();
        let store = self.store().stats();
        let sample = last.and_then(|last| now.since(last)).map(|rates| HistorySampleView {
            at: epoch::now(),
            peers,
            waiting: parts.gateway.running.len(),
            disk_used_bytes: store.cached_bytes + store.pinned_bytes,
            ram_bytes: parts.tiers.ram().bytes(),
            resident_bytes: resident_bytes(),
            ..rates
        });
        let mut rings = self.inner.history.rings();
        sample.into_iter().for_each(|sample| append(&mut rings.samples, sample, SAMPLES_MAX));
        append(&mut rings.responses, now.http.tiers.clone(), RECENT_MAX);
        drop(rings);
        now
    }
}

impl Counters {
    /// The rates since an earlier reading, without the figures of the moment; `None` if no time has passed.
    fn since(&self, last: &Self) -> Option<HistorySampleView> {
        let passed = self.at.saturating_duration_since(last.at).as_secs_f64();
        if passed <= 0.0 {
            return None;
        }
        // Counters that are read at slightly different times may seem to run backwards.
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / passed;
        let requests = |counters: &Self| -> u64 { counters.http.requests.iter().map(|(_, count)| count).sum() };
        let hits = |tier: usize| rate(self.hits[tier], last.hits[tier]);
        let latencies = first_bytes(&self.http).since(&first_bytes(&last.http));
        let quantile = |share| latencies.quantile(share).map(seconds);
        Some(HistorySampleView {
            requests: rate(requests(self), requests(last)),
            errors: rate(errors(&self.http), errors(&last.http)),
            sent_bytes: rate(self.http.bytes, last.http.bytes),
            ram_hits: hits(0),
            disk_hits: hits(1),
            site_hits: self.site_hits.zip(last.site_hits).map(|(now, then)| rate(now, then)),
            network_hits: hits(2),
            p50_seconds: quantile(0.5),
            p95_seconds: quantile(0.95),
            p99_seconds: quantile(0.99),
            in_flight: self.http.in_flight,
            p2p_received_bytes: rate(self.received_bytes, last.received_bytes),
            p2p_sent_bytes: rate(self.sent_bytes, last.sent_bytes),
            ..HistorySampleView::default()
        })
    }
}

/// Takes samples for as long as the operations are in use.
async fn sample(inner: Weak<Inner>) {
    let mut ticks = tokio::time::interval(SAMPLE_EVERY);
    // After a pause, such as a suspended machine, the next sample is that of the whole time.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        ticks.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        last = Some(Operations { inner }.sample(last.as_ref()).await);
    }
}

/// The statistics of the last hour, a sample every five seconds.
#[utoipa::path(get, path = "/api/v1/history", tag = "operations", security(("bearer" = ["read"])),
    responses((status = 200, description = "The samples", body = HistoryView), BadRequest))]
pub async fn read(State(operations): State<Operations>, uri: Uri) -> Answer {
    Parameters::of(&uri, &[])?;
    let samples = operations.inner.history.rings().samples.iter().cloned().collect();
    Ok(json(StatusCode::OK, &HistoryView { interval_seconds: SAMPLE_EVERY.as_secs(), samples }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::testing;
    use gateway::listen::connection::Connection;
    use gateway::metrics::{Exchange, HttpMetrics};
    use http::{HeaderMap, Method, Version};
    use p2p_bridge::names::NamesOptions;
    use prometheus_client::registry::Registry;
    use services::access_log::record::ContentTier;

    fn answered(metrics: &Arc<HttpMetrics>, status: StatusCode, tier: Option<ContentTier>, bytes: usize) {
        let mut exchange = Exchange::begin(metrics, &Method::GET, Version::HTTP_11);
        exchange.head(status, &HeaderMap::new(), tier);
        exchange.sent(bytes);
        exchange.complete();
    }

    #[test]
    fn a_sample_has_the_rates_of_its_interval() {
        let metrics = Arc::new(HttpMetrics::register(&mut Registry::default()));
        let start = Instant::now();
        let counters = |after, hits, received_bytes| Counters {
            at: start + Duration::from_secs(after),
            http: metrics.figures(),
            hits,
            site_hits: None,
            received_bytes,
            sent_bytes: 0,
        };
        answered(&metrics, StatusCode::OK, Some(ContentTier::Ram), 7);
        let first = counters(0, [100, 10, 1], 5000);
        (0..8).for_each(|_| answered(&metrics, StatusCode::OK, Some(ContentTier::Disk), 100));
        (0..2).for_each(|_| answered(&metrics, StatusCode::BAD_GATEWAY, None, 10));
        let _running = Exchange::begin(&metrics, &Method::GET, Version::HTTP_11);
        let second = counters(4, [104, 10, 3], 4000);
        let sample = second.since(&first).expect("time has passed");
        assert_eq!((sample.requests, sample.errors, sample.sent_bytes), (2.5, 0.5, 205.0));
        assert_eq!([sample.ram_hits, sample.disk_hits, sample.network_hits], [1.0, 0.0, 0.5]);
        assert_eq!((sample.in_flight, sample.p2p_received_bytes), (1, 0.0), "nothing runs backwards");
        let quantiles = [sample.p50_seconds, sample.p95_seconds, sample.p99_seconds];
        assert!(quantiles.iter().flatten().count() == 3 && quantiles.is_sorted(), "{quantiles:?}");
        let idle = counters(8, [104, 10, 3], 4000).since(&second).expect("time has passed");
        assert_eq!((idle.requests, idle.p50_seconds, idle.p99_seconds), (0.0, None, None));
        assert_eq!((first.since(&first), idle.site_hits), (None, None));
        let of_site = |after, hits| Counters { site_hits: Some(hits), ..counters(after, [0; 3], 0) };
        let sample = of_site(4, 10).since(&of_site(0, 2)).expect("time has passed");
        assert_eq!(sample.site_hits, Some(2.0));
    }

    #[tokio::test]
    async fn samples_are_those_of_the_components() {
        let world = testing::world(testing::settings(|_| ()), &[], NamesOptions::default());
        let (root, blocks) = testing::site().await;
        let first = world.operations.sample(None).await;
        assert_eq!(world.operations.inner.history.rings().samples.len(), 0, "a rate needs two readings");
        for block in &blocks {
            world.store.put_cached(block.clone()).await;
        }
        world.store.flush().await.expect("writes");
        let request = axum::http::Request::builder().uri(format!("/ipfs/{root}/")).header("host", "x");
        let connection = Arc::new(Connection::new(([192, 0, 2, 7], 9).into()));
        let response = world.gateway.handle(request.body(()).expect("a request"), connection).await;
        assert_eq!(response.status(), StatusCode::OK);
        world.operations.sample(Some(&first)).await;
        let samples = world.operations.inner.history.rings().samples.clone();
        let sample = &samples[0];
        assert!(samples.len() == 1 && sample.requests > 0.0 && sample.disk_hits > 0.0, "{sample:?}");
        assert!(sample.p50_seconds.is_some() && sample.errors == 0.0 && sample.peers == 0, "{sample:?}");
        assert_eq!(sample.disk_used_bytes, world.store.stats().cached_bytes);
        assert!(sample.at > 1_700_000_000 && sample.resident_bytes.is_some() == cfg!(target_os = "linux"));
    }

    /// `cargo test -- --ignored --nocapture a_sample_costs` prints the duration.
    #[tokio::test]
    #[ignore = "prints a measurement"]
    async fn a_sample_costs_microseconds() {
        const SAMPLES: u32 = 2000;
        let world = testing::world(testing::settings(|_| ()), &[], NamesOptions::default());
        let begun = Instant::now();
        let mut last = None;
        for _ in 0..SAMPLES {
            last = Some(world.operations.sample(last.as_ref()).await);
        }
        println!("a sample took {:?}", begun.elapsed() / SAMPLES);
        assert_eq!(world.operations.inner.history.rings().samples.len(), SAMPLES_MAX);
    }

    #[test]
    fn recent_latencies_are_those_since_the_oldest_of_a_minute() {
        let metrics = Arc::new(HttpMetrics::register(&mut Registry::default()));
        let history = History::default();
        let requests = || {
            let recent = history.recent(&metrics.figures().tiers);
            assert!(recent.values().all(|tier| (tier.requests == 0) == tier.p50_seconds.is_none()));
            ["ram", "disk", "network", "none"].map(|tier| recent[tier].requests)
        };
        answered(&metrics, StatusCode::OK, Some(ContentTier::Ram), 1);
        assert_eq!(requests(), [1, 0, 0, 0], "before the first sample, those since the start");
        for sample in 0..2 * RECENT_MAX as u64 {
            append(&mut history.rings().responses, metrics.figures().tiers, RECENT_MAX);
            answered(&metrics, StatusCode::OK, Some(ContentTier::Disk), 1);
            assert_eq!(requests(), [0, (sample + 1).min(RECENT_MAX as u64), 0, 0], "{sample}");
        }
    }

    #[test]
    fn a_ring_has_the_latest_of_a_fixed_number() {
        let mut ring = VecDeque::new();
        (0..10).for_each(|element| append(&mut ring, element, 4));
        assert_eq!(ring, [6, 7, 8, 9]);
        // The rings are budgeted (docs/internals/budgets.md).
        assert!(SAMPLES_MAX == 720 && SAMPLES_MAX * size_of::<HistorySampleView>() <= 160 << 10);
    }
}
