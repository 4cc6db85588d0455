//! The middle of a few figures.

use std::time::Duration;

/// The middle one; of an even number, the upper of the two in the middle.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The same for durations; zero of none.
pub fn median_duration(values: impl Iterator<Item = Duration>) -> Duration {
    let mut values: Vec<Duration> = values.collect();
    values.sort();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[test]
fn the_median_ignores_outliers_and_order() {
    assert_eq!(median([9.0, 1.0, 2.0].into_iter()), 2.0);
    assert!(median(std::iter::empty()).is_nan());
}
