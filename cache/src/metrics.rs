//! Metrics of the tiers.
//!
//! Goals: a hit costs a few relaxed atomic additions and no lock. Handles are resolved once, at registration; values
//! that a tier counts itself (its size, its evictions) are read at scrape time.
//!
//! The tier `site` has series only if the gateway belongs to a site.
//!
//! A Prometheus histogram takes a mutex, so the latency of RAM is sampled for about one hit in 64.

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

/// Upper bounds of the latency buckets, in seconds: from a copy in memory to a fetch that times out.
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

/// Requests of a tier since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierFigures {
    /// Requests for blocks that it had.
    pub hits: u64,
    /// Requests for blocks that it did not have.
    pub misses: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Bytes of the blocks that it returned.
    pub bytes: u64,
}

/// Requests of all tiers since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TiersFigures {
    /// The RAM cache.
    pub ram: TierFigures,
    /// The block store.
    pub disk: TierFigures,
    /// The shared storage of the site, if the gateway belongs to one.
    pub site: Option<TierFigures>,
    /// The upstream.
    pub network: TierFigures,
}

/// Metrics of the tiers. Clones share them.
#[derive(Debug, Clone)]
pub struct TierMetrics {
    pub(crate) ram: Tier,
    pub(crate) disk: Tier,
    pub(crate) network: Tier,
    pub(crate) followers: Counter,
    families: Families,
    site: Arc<OnceLock<Tier>>,
    stores: Arc<OnceLock<Stores>>,
}

/// The counters of all tiers.
#[derive(Debug, Clone)]
struct Families {
    hits: Family<TierLabel, Counter>,
    misses: Family<TierLabel, Counter>,
    errors: Family<TierLabel, Counter>,
    bytes: Family<TierLabel, Counter>,
    latency: Family<TierLabel, Histogram>,
}

impl Families {
    /// The counters of a tier, which have series from now on.
    fn tier(&self, tier: &'static str) -> Tier {
        let label = TierLabel { tier };
        Tier {
            hits: self.hits.get_or_create_owned(&label),
            misses: self.misses.get_or_create_owned(&label),
            errors: self.errors.get_or_create_owned(&label),
            bytes: self.bytes.get_or_create_owned(&label),
            latency: self.latency.get_or_create_owned(&label),
        }
    }
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
        let hits = counters(registry, "causeway_tier_hits", "Blocks that the tier returned");
        let misses = counters(registry, "causeway_tier_misses", "Blocks that the tier did not have");
        let errors = counters(registry, "causeway_tier_errors", "Requests that failed in the tier");
        let bytes = counters(registry, "causeway_tier_bytes", "Bytes of the blocks that the tier returned");
        let latency = Family::<TierLabel, Histogram>::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS_SECONDS));
        registry.register(
            "causeway_tier_latency_seconds",
            "Response time of the tier, in seconds; RAM is sampled, about one hit in 64",
            latency.clone(),
        );
        let followers = Counter::default();
        registry.register(
            "causeway_flight_joined",
            "Requests that shared a fetch started by another request (singleflight followers)",
            followers.clone(),
        );
        let families = Families { hits, misses, errors, bytes, latency };
        let [ram, disk, network] = ["ram", "disk", "network"].map(|tier| families.tier(tier));
        let (site, stores) = (Arc::default(), Arc::default());
        let metrics = Self { ram, disk, network, followers, families, site, stores };
        registry.register_collector(Box::new(AtScrape(metrics.clone())));
        metrics
    }

    /// The figures of all tiers.
    pub(crate) fn figures(&self) -> TiersFigures {
        let site = self.site.get().map(Tier::figures);
        TiersFigures { ram: self.ram.figures(), disk: self.disk.figures(), site, network: self.network.figures() }
    }

    /// The counters of the shared storage of a site, which has series from now on.
    pub(crate) fn add_site(&self) -> Tier {
        self.site.get_or_init(|| self.families.tier("site")).clone()
    }

    /// Sets the tiers whose sizes are read at each scrape. Only the first call has an effect.
    pub(crate) fn attach(&self, ram: &Ram, disk: &dyn BlockStore) {
        _ = self.stores.set(Stores { ram: ram.clone(), disk: disk.live_stats() });
    }
}

/// Reads the tiers' own figures at scrape time.
#[derive(Debug)]
struct AtScrape(TierMetrics);

impl Collector for AtScrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let metrics = &self.0;
        let (local, network) = ([("ram", &metrics.ram), ("disk", &metrics.disk)], ("network", &metrics.network));
        let site = metrics.site.get().map(|site| ("site", site));
        let tiers = local.into_iter().chain(site).chain([network]);
        let help = "Blocks requested from the tier";
        let mut family = encoder.encode_descriptor("causeway_tier_requests", help, None, MetricType::Counter)?;
        for (tier, counters) in tiers {
            let requests = ConstCounter::new(counters.requests());
            requests.encode(family.encode_family(&TierLabel { tier })?)?;
        }
        let Some(Stores { ram, disk }) = self.0.stores.get() else { return Ok(()) };
        let mut out = Out(encoder);
        out.gauge("causeway_ram_bytes", "Bytes in the RAM cache, with the overhead of each entry", ram.bytes())?;
        out.gauge("causeway_ram_entries", "Blocks in the RAM cache", ram.entries())?;
        let stats = disk.now();
        let cached = "Bytes on disk of blocks that may be evicted, with the overhead of each in the index";
        out.gauge("causeway_disk_cached_bytes", cached, stats.cached_bytes)?;
        let pinned = "Bytes on disk of pinned blocks, with the overhead of each in the index";
        out.gauge("causeway_disk_pinned_bytes", pinned, stats.pinned_bytes)?;
        out.gauge("causeway_disk_blocks", "Blocks on disk", stats.blocks)?;
        out.counter("causeway_disk_evicted_blocks", "Blocks evicted to stay within the budget", stats.evicted_blocks)?;
        out.counter("causeway_disk_evicted_bytes", "Bytes evicted to stay within the budget", stats.evicted_bytes)?;
        let dropped = "Blocks that were not cached because the disk was too slow, failed or was closing";
        out.counter("causeway_disk_dropped_writes", dropped, stats.dropped_writes)?;
        out.counter("causeway_disk_write_errors", "Write batches that failed", stats.write_errors)?;
        let corrupt = "Blocks found corrupt on disk and deleted, so that they are fetched again";
        out.counter("causeway_disk_corrupt_blocks", corrupt, stats.corrupt_blocks)?;
        let scrubbed = "Blocks that scrubs checked";
        out.counter("causeway_disk_scrubbed_blocks", scrubbed, stats.scrubbed_blocks)?;
        let scrubbed = "Bytes on disk that scrubs checked";
        out.counter("causeway_disk_scrubbed_bytes", scrubbed, stats.scrubbed_bytes)?;
        out.counter("causeway_disk_scrub_passes", "Completed scrubs", stats.scrub_passes)?;
        let saved = "Bytes on disk saved by recompressing pinned blocks";
        out.counter("causeway_disk_recompressed_saved_bytes", saved, stats.recompressed_saved_bytes)?;
        let lacking = "Pins that the last scrub found to lack blocks that are not withheld; they are fetched on demand";
        out.gauge("causeway_disk_lacking_pins", lacking, stats.lacking_pins)?;
        let rebuilds = "1 if the index was damaged when the store was opened, and was rebuilt, else 0";
        out.gauge("causeway_disk_index_rebuilt", rebuilds, stats.index_rebuilds)?;
        let damaged = "1 if the index is damaged: restart the gateway, which rebuilds it; else 0";
        out.gauge("causeway_disk_index_damaged", damaged, u64::from(stats.index_damaged))?;
        let degraded = "1 while writes to the disk fail and nothing is stored, else 0";
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
