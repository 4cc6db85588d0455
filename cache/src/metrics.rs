//! What a scrape says of the tiers.
//!
//! Goals: a hit costs a few relaxed atomic additions and no lock. Handles are resolved once, at registration; what a tier
//! can count by itself (its size, its evictions) is read from it at scrape time.
//!
//! A Prometheus histogram is a mutex, so the latency of RAM is observed for about one hit in 64.

use crate::ram::Ram;
use crate::store::{BlockStore, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Upper bounds of the latency buckets, in seconds: from a copy within memory to a search that runs out of patience.
const LATENCY_BUCKETS_SECONDS: [f64; 20] = [
    10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0, 30.0, 60.0,
];

/// One RAM hit in this many is timed.
const RAM_SAMPLE: u64 = 64;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TierLabel {
    tier: &'static str,
}

/// The counters of one tier.
#[derive(Debug, Clone)]
pub(crate) struct Tier {
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) errors: Counter,
    pub(crate) bytes: Counter,
    latency: Histogram,
}

impl Tier {
    pub(crate) fn hit(&self, bytes: usize) {
        self.hits.inc();
        self.bytes.inc_by(u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    pub(crate) fn observe_since(&self, start: Instant) {
        self.latency.observe(start.elapsed().as_secs_f64());
    }

    /// The start of a measurement for about one hit in [`RAM_SAMPLE`].
    pub(crate) fn sample(&self) -> Option<Instant> {
        self.hits.get().is_multiple_of(RAM_SAMPLE).then(Instant::now)
    }

    fn figures(&self) -> TierFigures {
        let Self { hits, misses, errors, bytes, .. } = self;
        TierFigures { hits: hits.get(), misses: misses.get(), errors: errors.get(), bytes: bytes.get() }
    }

    fn requests(&self) -> u64 {
        self.hits.get() + self.misses.get() + self.errors.get()
    }
}

/// What a tier was asked since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierFigures {
    /// Blocks that it had.
    pub hits: u64,
    /// Blocks that it did not have.
    pub misses: u64,
    /// Requests that it failed to answer.
    pub errors: u64,
    /// Bytes of the blocks that it had.
    pub bytes: u64,
}

/// What all tiers were asked since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TiersFigures {
    /// Memory.
    pub ram: TierFigures,
    /// The store.
    pub disk: TierFigures,
    /// Whoever is asked for what is not here.
    pub network: TierFigures,
}

/// Metrics of the tiers. Clones are the same metrics.
#[derive(Debug, Clone)]
pub struct TierMetrics {
    pub(crate) ram: Tier,
    pub(crate) disk: Tier,
    pub(crate) network: Tier,
    pub(crate) joined: Counter,
    stores: Arc<OnceLock<Stores>>,
}

#[derive(Debug)]
struct Stores {
    ram: Ram,
    disk: Arc<Stats>,
}

impl TierMetrics {
    /// Registers every metric of this crate under its full name. Call it once for a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let counters = |registry: &mut Registry, name: &str, help: &str| {
            let family = Family::<TierLabel, Counter>::default();
            registry.register(name, help, family.clone());
            family
        };
        let hits = counters(registry, "causeway_tier_hits", "Blocks that the tier had");
        let misses = counters(registry, "causeway_tier_misses", "Blocks that the tier did not have");
        let errors = counters(registry, "causeway_tier_errors", "Requests that the tier failed to answer");
        let bytes = counters(registry, "causeway_tier_bytes", "Bytes of the blocks that the tier gave");
        let latency = Family::<TierLabel, Histogram>::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS_SECONDS));
        registry.register(
            "causeway_tier_latency_seconds",
            "Time that the tier took to answer, in seconds; RAM is sampled, about one hit in 64",
            latency.clone(),
        );
        let joined = Counter::default();
        registry.register(
            "causeway_flight_joined",
            "Requests that waited for a fetch which another request had begun",
            joined.clone(),
        );
        let tier = |tier| {
            let label = TierLabel { tier };
            Tier {
                hits: hits.get_or_create_owned(&label),
                misses: misses.get_or_create_owned(&label),
                errors: errors.get_or_create_owned(&label),
                bytes: bytes.get_or_create_owned(&label),
                latency: latency.get_or_create_owned(&label),
            }
        };
        let stores = Arc::default();
        let metrics = Self { ram: tier("ram"), disk: tier("disk"), network: tier("network"), joined, stores };
        registry.register_collector(Box::new(AtScrape(metrics.clone())));
        metrics
    }

    /// What all tiers were asked.
    pub(crate) fn figures(&self) -> TiersFigures {
        TiersFigures { ram: self.ram.figures(), disk: self.disk.figures(), network: self.network.figures() }
    }

    /// Names the tiers whose sizes are read at each scrape. The first call counts.
    pub(crate) fn attach(&self, ram: &Ram, disk: &dyn BlockStore) {
        _ = self.stores.set(Stores { ram: ram.clone(), disk: disk.live_stats() });
    }
}

/// Reads what the tiers know about themselves when it is asked for.
#[derive(Debug)]
struct AtScrape(TierMetrics);

impl Collector for AtScrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let metrics = &self.0;
        let tiers = [("ram", &metrics.ram), ("disk", &metrics.disk), ("network", &metrics.network)];
        let help = "Blocks that the tier was asked for";
        let mut family = encoder.encode_descriptor("causeway_tier_requests", help, None, MetricType::Counter)?;
        for (tier, counters) in tiers {
            let requests = ConstCounter::new(counters.requests());
            requests.encode(family.encode_family(&TierLabel { tier })?)?;
        }
        let Some(Stores { ram, disk }) = self.0.stores.get() else { return Ok(()) };
        let mut out = Out(encoder);
        out.gauge("causeway_ram_bytes", "Bytes in memory, with the overhead of each entry", ram.bytes())?;
        out.gauge("causeway_ram_entries", "Blocks in memory", ram.entries())?;
        let stats = disk.now();
        let cached = "Bytes on disk of blocks that may be evicted, with the overhead of each in the index";
        out.gauge("causeway_disk_cached_bytes", cached, stats.cached_bytes)?;
        let pinned = "Bytes on disk of pinned blocks, with the overhead of each in the index";
        out.gauge("causeway_disk_pinned_bytes", pinned, stats.pinned_bytes)?;
        out.gauge("causeway_disk_blocks", "Blocks on disk", stats.blocks)?;
        out.counter("causeway_disk_evicted_blocks", "Blocks removed to stay within the budget", stats.evicted_blocks)?;
        out.counter("causeway_disk_evicted_bytes", "Bytes removed to stay within the budget", stats.evicted_bytes)?;
        let dropped = "Blocks that were not cached: the disk was too slow, failed or was closing";
        out.counter("causeway_disk_dropped_writes", dropped, stats.dropped_writes)?;
        out.counter("causeway_disk_write_errors", "Write batches that the disk refused", stats.write_errors)?;
        let corrupt = "Blocks found damaged on disk, forgotten and to be fetched again";
        out.counter("causeway_disk_corrupt_blocks", corrupt, stats.corrupt_blocks)?;
        let scrubbed = "Blocks that a scrub checked";
        out.counter("causeway_disk_scrubbed_blocks", scrubbed, stats.scrubbed_blocks)?;
        let scrubbed = "Bytes on disk that a scrub checked";
        out.counter("causeway_disk_scrubbed_bytes", scrubbed, stats.scrubbed_bytes)?;
        out.counter("causeway_disk_scrub_passes", "Scrubs that reached the end", stats.scrub_passes)?;
        let saved = "Bytes on disk that compressing pinned blocks anew saved";
        out.counter("causeway_disk_recompressed_saved_bytes", saved, stats.recompressed_saved_bytes)?;
        let lacking = "Pins of which the last scrub missed blocks; they come back when they are asked for";
        out.gauge("causeway_disk_lacking_pins", lacking, stats.lacking_pins)?;
        let rebuilds = "1 if the index was damaged when the store was opened, and was rebuilt, else 0";
        out.gauge("causeway_disk_index_rebuilt", rebuilds, stats.index_rebuilds)?;
        let damaged = "1 if the index turned out damaged since: restart the gateway, which rebuilds it; else 0";
        out.gauge("causeway_disk_index_damaged", damaged, u64::from(stats.index_damaged))?;
        let degraded = "1 while the disk refuses writes and nothing is stored, else 0";
        out.gauge("causeway_disk_degraded", degraded, u64::from(stats.degraded()))
    }
}

struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> Result<(), fmt::Error> {
        let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        gauge.encode(self.0.encode_descriptor(name, help, None, gauge.metric_type())?)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> Result<(), fmt::Error> {
        let counter = ConstCounter::new(value);
        counter.encode(self.0.encode_descriptor(name, help, None, counter.metric_type())?)
    }
}
