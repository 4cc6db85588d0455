//! [`LatencyHistogram`]: a histogram of durations without a lock, whose quantiles can be read.
//!
//! Goals: an observation is two relaxed atomic additions; the statistics of the admin API have the same figures as the
//! metrics. The histogram of `prometheus-client` takes a mutex, and its values cannot be read.
//!
//! Non-goals: native histograms, which `prometheus-client` encodes in the protobuf format only.

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of buckets, in microseconds: from an answer from memory to a fetch that times out.
const BOUNDS_US: [u64; 20] = [
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
];

/// A histogram of durations. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct LatencyHistogram {
    inner: Arc<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    /// The last one is that of all above the bounds.
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

/// The counts of a histogram at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LatencySnapshot {
    counts: [u64; BOUNDS_US.len() + 1],
}

impl LatencyHistogram {
    /// Counts a duration.
    pub fn observe(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        self.inner.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.inner.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// The current counts.
    pub fn snapshot(&self) -> LatencySnapshot {
        LatencySnapshot { counts: self.inner.counts.each_ref().map(|count| count.load(Ordering::Relaxed)) }
    }
}

impl LatencySnapshot {
    /// The observations since an earlier snapshot of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut counts = self.counts;
        counts.iter_mut().zip(earlier.counts).for_each(|(count, before)| *count = count.saturating_sub(before));
        Self { counts }
    }

    /// The observations of this histogram and of another one.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let mut counts = self.counts;
        counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count = count.saturating_add(more));
        Self { counts }
    }

    /// The number of observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The duration that a share of all observations do not exceed, interpolated within its bucket like
    /// `histogram_quantile` of Prometheus; `None` without observations.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = share.clamp(0.0, 1.0) * self.count() as f64;
        let mut below = 0;
        for (bucket, count) in self.counts.into_iter().enumerate() {
            let upto = below + count;
            if count > 0 && upto as f64 >= rank {
                let lower = bucket.checked_sub(1).and_then(|before| BOUNDS_US.get(before)).copied().unwrap_or_default();
                // Of the last bucket, only the lower bound is known.
                let upper = BOUNDS_US.get(bucket).copied().unwrap_or(lower);
                let part = (rank - below as f64) / count as f64;
                let us = lower as f64 + (upper - lower) as f64 * part.clamp(0.0, 1.0);
                return Some(Duration::from_secs_f64(us / 1e6));
            }
            below = upto;
        }
        None
    }
}

impl EncodeMetric for LatencyHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let snapshot = self.snapshot();
        let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(snapshot.counts).collect();
        let sum = self.inner.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(sum, snapshot.count(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for LatencyHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::registry::Registry;

    #[test]
    fn quantiles_are_interpolated_within_their_bucket() {
        let histogram = LatencyHistogram::default();
        assert_eq!(histogram.snapshot().quantile(0.5), None);
        // 90 between 5 and 10 ms, 10 between 2.5 and 5 s.
        (0..90).for_each(|_| histogram.observe(Duration::from_millis(8)));
        (0..10).for_each(|_| histogram.observe(Duration::from_secs(4)));
        let snapshot = histogram.snapshot();
        let table = [(0.0, 0.005), (0.45, 0.0075), (0.9, 0.01), (0.95, 3.75), (1.0, 5.0)];
        for (share, expected) in table {
            let found = snapshot.quantile(share).expect("has observations").as_secs_f64();
            assert!((found - expected).abs() < 1e-6, "{share}: {found}");
        }
        let long = LatencyHistogram::default();
        long.observe(Duration::from_secs(3600));
        assert_eq!(long.snapshot().quantile(0.5), Some(Duration::from_secs(120)));
    }

    #[test]
    fn snapshots_are_compared_and_added() {
        let (one, other) = (LatencyHistogram::default(), LatencyHistogram::default());
        one.observe(Duration::from_millis(8));
        let before = one.snapshot();
        (0..3).for_each(|_| one.observe(Duration::from_secs(4)));
        other.observe(Duration::from_micros(10));
        let recent = one.snapshot().since(&before);
        assert_eq!((recent.count(), recent.quantile(0.0)), (3, Some(Duration::from_millis(2500))));
        assert_eq!(before.since(&one.snapshot()).count(), 0);
        let both = recent.with(&other.snapshot());
        assert_eq!((both.count(), both.quantile(0.0)), (4, Some(Duration::ZERO)));
    }

    #[test]
    fn a_duration_at_a_bound_is_within_it() {
        let histogram = LatencyHistogram::default();
        histogram.observe(Duration::ZERO);
        histogram.observe(Duration::from_micros(50));
        histogram.observe(Duration::from_micros(51));
        histogram.observe(Duration::MAX);
        let counts = histogram.snapshot().counts;
        assert_eq!((counts[0], counts[1], counts[BOUNDS_US.len()], histogram.snapshot().count()), (2, 1, 1, 4));
    }

    #[test]
    fn it_is_exposed_as_a_histogram() {
        let (mut registry, histogram) = (Registry::default(), LatencyHistogram::default());
        registry.register("latency_seconds", "Latency", histogram.clone());
        histogram.observe(Duration::from_millis(8));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
        for line in [
            "# TYPE latency_seconds histogram",
            "latency_seconds_sum 0.008",
            "latency_seconds_count 1",
            "latency_seconds_bucket{le=\"0.005\"} 0",
            "latency_seconds_bucket{le=\"0.01\"} 1",
            "latency_seconds_bucket{le=\"+Inf\"} 1",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} is not in\n{text}");
        }
    }
}
