//! Medians, percentiles, and the order in which systems take their turns.

use crate::report::seconds;
use serde::Serialize;
use std::time::Duration;

/// Latencies of requests: the median and the 99th percentile, by the nearest rank. Zero if there were no requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    #[serde(rename = "median_seconds", serialize_with = "seconds")]
    pub median: Duration,
    #[serde(rename = "p99_seconds", serialize_with = "seconds")]
    pub p99: Duration,
}

impl Latency {
    pub fn of(latencies: impl Iterator<Item = Duration>) -> Self {
        let mut sorted: Vec<Duration> = latencies.collect();
        sorted.sort_unstable();
        let percentile = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100);
            sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        Self { median: percentile(50), p99: percentile(99) }
    }
}

/// The median; of an even number of values, the upper of the two in the middle.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The same for durations; zero if there are none.
pub fn median_duration(values: impl Iterator<Item = Duration>) -> Duration {
    let mut values: Vec<Duration> = values.collect();
    values.sort();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Every system has one turn in each round, and each round begins with another system. Yields the round and the
/// system's index.
pub fn rotated(rounds: usize, systems: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| (0..systems).map(move |turn| (round, (round + turn) % systems)))
}

#[test]
fn the_median_ignores_outliers_and_order() {
    assert_eq!(median([9.0, 1.0, 2.0].into_iter()), 2.0);
    assert!(median(std::iter::empty()).is_nan());
}

#[test]
fn percentiles_are_nearest_ranks() {
    let millis = Duration::from_millis;
    assert_eq!(Latency::of((1..=200).rev().map(millis)), Latency { median: millis(100), p99: millis(198) });
    assert_eq!(Latency::of([millis(1)].into_iter()), Latency { median: millis(1), p99: millis(1) });
    assert_eq!(Latency::of(std::iter::empty()), Latency::default());
}

#[test]
fn each_round_begins_with_another_system() {
    let turns: Vec<(usize, usize)> = rotated(3, 2).collect();
    assert_eq!(turns, [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)]);
    assert_eq!(rotated(3, 0).count(), 0);
}
