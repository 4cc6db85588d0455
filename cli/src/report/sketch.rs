//! Counts, quantiles and numbers of distinct values, in memory that does not depend on the length of a log.
//!
//! | sketch | memory | error |
//! |---|---|---|
//! | [`FrequentItems`] | a fixed number of counters | none while they suffice; then counts are too low, by at most the |
//! | | | number of all items * 2 / counters, of which [`FrequentItems::error_max`] knows more |
//! | [`Quantiles`] | 18 KB | 1 % of the value |
//! | [`Distinct`] | 64 KB | none up to 4,096 values, then a standard error of 0.8 % |

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, Hash, RandomState};

/// Counts of the most frequent items: the algorithm of Misra and Gries, with the purge of Apache DataSketches, which
/// subtracts the median of all counters when there are too many.
pub(super) struct FrequentItems {
    counts: HashMap<Box<str>, u64>,
    counters: usize,
    total: u64,
    error_max: u64,
}

/// The maximum length of an item, in bytes.
const ITEM_BYTES_MAX: usize = 256;

impl FrequentItems {
    /// With so many counters.
    pub fn new(counters: usize) -> Self {
        Self { counts: HashMap::new(), counters: counters.max(2), total: 0, error_max: 0 }
    }

    /// Counts an item. A long one is truncated.
    pub fn add(&mut self, item: &str) {
        let item = &item[..item.floor_char_boundary(ITEM_BYTES_MAX)];
        self.total += 1;
        if let Some(count) = self.counts.get_mut(item) {
            *count += 1;
            return;
        }
        if self.counts.len() >= self.counters {
            self.purge();
        }
        self.counts.insert(item.into(), 1);
    }

    /// Removes at least half of the counters.
    fn purge(&mut self) {
        let mut counts: Vec<u64> = self.counts.values().copied().collect();
        let middle = counts.len() / 2;
        let median = *counts.select_nth_unstable(middle).1;
        self.counts.retain(|_, count| {
            *count = count.saturating_sub(median);
            *count > 0
        });
        self.error_max += median;
    }

    /// By how much a count may be too low.
    pub fn error_max(&self) -> u64 {
        self.error_max
    }

    /// The number of all items that were counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The number of items that have counters: all, as long as there is no error.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// The most frequent items with their counts; equal counts in the order of the items.
    pub fn top(&self, max: usize) -> Vec<(&str, u64)> {
        let mut all: Vec<(&str, u64)> = self.counts.iter().map(|(item, count)| (&**item, *count)).collect();
        all.sort_unstable_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(other.0)));
        all.truncate(max);
        all
    }

    /// All counts, the highest first.
    pub fn counts(&self) -> Vec<u64> {
        let mut counts: Vec<u64> = self.counts.values().copied().collect();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        counts
    }
}

/// Quantiles of whole numbers: DDSketch (Masson, Rim and Lee, 2019), whose buckets grow by a factor.
#[derive(Default)]
pub(super) struct Quantiles {
    zeros: u64,
    buckets: Vec<u64>,
    count: u64,
}

/// The relative error.
const ACCURACY: f64 = 0.01;
const GROWTH: f64 = (1.0 + ACCURACY) / (1.0 - ACCURACY);

impl Quantiles {
    /// Adds a number.
    pub fn add(&mut self, number: u64) {
        self.count += 1;
        if number == 0 {
            self.zeros += 1;
            return;
        }
        let bucket = ((number as f64).ln() / GROWTH.ln()).ceil().max(0.0) as usize;
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
    }

    /// The number that a share of all do not exceed.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let rank = (share.clamp(0.0, 1.0) * (self.count.checked_sub(1)?) as f64).floor() as u64;
        let mut below = 0;
        self.points().find_map(|(value, count)| {
            below += count;
            (below > rank).then_some(value)
        })
    }

    /// The share of numbers that are not above one.
    pub fn share_up_to(&self, number: f64) -> Option<f64> {
        let below: u64 = self.points().take_while(|(value, _)| *value <= number).map(|(_, count)| count).sum();
        (self.count > 0).then(|| below as f64 / self.count as f64)
    }

    /// The cumulative distribution: values, and the share of numbers up to each, at most `max` points.
    pub fn distribution(&self, max: usize) -> Vec<(f64, f64)> {
        let mut below = 0;
        let all = self.points().map(|(value, count)| {
            below += count;
            (value, below as f64 / self.count as f64)
        });
        let all: Vec<(f64, f64)> = all.collect();
        let step = all.len().div_ceil(max.max(1)).max(1);
        let last = all.len().saturating_sub(1);
        let is_kept = |index: &usize| (last - index).is_multiple_of(step);
        all.into_iter().enumerate().filter(|(index, _)| is_kept(index)).map(|(_, point)| point).collect()
    }

    /// The values of buckets that are not empty, in order, with their counts.
    fn points(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let value = |bucket: usize| 2.0 * GROWTH.powi(i32::try_from(bucket).unwrap_or(i32::MAX)) / (GROWTH + 1.0);
        let buckets = self.buckets.iter().enumerate().map(move |(bucket, count)| (value(bucket), *count));
        std::iter::once((0.0, self.zeros)).chain(buckets).filter(|(_, count)| *count > 0)
    }
}

/// The number of distinct values: exact for few, HyperLogLog (Flajolet and others, 2007) for many.
pub(super) struct Distinct {
    hasher: RandomState,
    few: HashSet<u64>,
    registers: Vec<u8>,
}

const FEW_MAX: usize = 4096;
const REGISTER_BITS: u32 = 14;

impl Default for Distinct {
    fn default() -> Self {
        Self { hasher: RandomState::new(), few: HashSet::new(), registers: Vec::new() }
    }
}

impl Distinct {
    /// Adds a value.
    pub fn add(&mut self, value: impl Hash) {
        let hash = self.hasher.hash_one(value);
        if self.registers.is_empty() {
            self.few.insert(hash);
            if self.few.len() > FEW_MAX {
                self.registers = vec![0; 1 << REGISTER_BITS];
                let few = std::mem::take(&mut self.few);
                few.into_iter().for_each(|hash| self.register(hash));
            }
        } else {
            self.register(hash);
        }
    }

    fn register(&mut self, hash: u64) {
        let register = (hash >> (u64::BITS - REGISTER_BITS)) as usize;
        let rest = hash << REGISTER_BITS;
        let rank = (rest.leading_zeros() + 1).min(u64::BITS - REGISTER_BITS + 1) as u8;
        self.registers[register] = self.registers[register].max(rank);
    }

    /// The number of values, and whether it is exact.
    pub fn estimate(&self) -> (u64, bool) {
        if self.registers.is_empty() {
            return (self.few.len() as u64, true);
        }
        let registers = self.registers.len() as f64;
        let sum: f64 = self.registers.iter().map(|rank| 0.5_f64.powi(i32::from(*rank))).sum();
        let raw = 0.7213 / (1.0 + 1.079 / registers) * registers * registers / sum;
        let empty = self.registers.iter().filter(|rank| **rank == 0).count();
        // Linear counting, which is more accurate for few values.
        let estimate =
            if raw <= 2.5 * registers && empty > 0 { registers * (registers / empty as f64).ln() } else { raw };
        (estimate.round() as u64, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers without an order.
    fn shuffled(count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(|index| index.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    #[test]
    fn counts_are_exact_while_counters_suffice() {
        let mut items = FrequentItems::new(4);
        ["a", "b", "a", "c", "a", "b"].into_iter().for_each(|item| items.add(item));
        assert_eq!((items.top(2), items.error_max(), items.total()), (vec![("a", 3), ("b", 2)], 0, 6));
        assert_eq!((items.counts(), items.len()), (vec![3, 2, 1], 3));
        items.add(&"é".repeat(ITEM_BYTES_MAX));
        assert!(items.top(9).iter().all(|(item, _)| item.len() <= ITEM_BYTES_MAX));
    }

    #[test]
    fn with_more_items_than_counters_the_error_is_bounded_and_known() {
        const COUNTERS: usize = 100;
        let mut items = FrequentItems::new(COUNTERS);
        let mut exact = HashMap::<String, u64>::new();
        for number in shuffled(200_000) {
            // Item n is as frequent as 1/n, as in a Zipf distribution, with 50,000 rare ones.
            let share = (number >> 11) as f64 / (1_u64 << 53) as f64;
            let item = format!("{}", (50_000_f64.powf(share)) as u64);
            items.add(&item);
            *exact.entry(item).or_default() += 1;
        }
        assert!(items.len() <= COUNTERS);
        assert!(items.error_max() > 0 && items.error_max() <= 2 * items.total() / COUNTERS as u64);
        for (item, count) in items.top(COUNTERS) {
            let true_count = exact[item];
            assert!(count <= true_count && true_count <= count + items.error_max(), "{item}: {count} {true_count}");
        }
        let frequent = exact.iter().filter(|(_, count)| **count > items.error_max());
        let found: HashSet<&str> = items.top(COUNTERS).into_iter().map(|(item, _)| item).collect();
        frequent.for_each(|(item, count)| assert!(found.contains(&**item), "{item}, {count} times, is missing"));
    }

    #[test]
    fn quantiles_are_within_one_percent() {
        let mut quantiles = Quantiles::default();
        assert_eq!((quantiles.quantile(0.5), quantiles.share_up_to(1.0)), (None, None));
        let mut numbers: Vec<u64> = shuffled(10_001).map(|number| number >> (number % 50)).collect();
        numbers.iter().for_each(|number| quantiles.add(*number));
        numbers.sort_unstable();
        for share in [0.0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.999, 1.0] {
            let exact = numbers[(share * 10_000.0) as usize] as f64;
            let found = quantiles.quantile(share).expect("has numbers");
            assert!((found - exact).abs() <= exact * (ACCURACY + 1e-9), "{share}: {found} is not {exact}");
        }
        let distribution = quantiles.distribution(50);
        assert!(distribution.len() <= 50 && distribution.last().is_some_and(|(_, share)| *share == 1.0));
        assert!(distribution.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
        assert!((quantiles.share_up_to(numbers[5_000] as f64 * 1.03).expect("has") - 0.5).abs() < 0.05);
    }

    #[test]
    fn zeros_and_the_largest_numbers_are_counted() {
        let mut quantiles = Quantiles::default();
        [0, 0, 0, 1, u64::MAX].into_iter().for_each(|number| quantiles.add(number));
        assert_eq!((quantiles.quantile(0.5), quantiles.count), (Some(0.0), 5));
        assert!(quantiles.quantile(1.0).is_some_and(|most| (most / u64::MAX as f64 - 1.0).abs() < 0.02));
        assert!(quantiles.buckets.len() < 2300);
    }

    #[test]
    fn distinct_values_are_counted_exactly_or_within_a_few_percent() {
        for (count, exact) in [(0, true), (1, true), (4096, true), (4097, false), (30_000, false), (400_000, false)] {
            let mut distinct = Distinct::default();
            (0..2).for_each(|_| (0..count).for_each(|value: u64| distinct.add(value)));
            let (estimate, is_exact) = distinct.estimate();
            assert_eq!(is_exact, exact);
            // Seven standard errors.
            let error = (estimate as f64 - count as f64).abs();
            assert!(if exact { error == 0.0 } else { error < 0.057 * count as f64 }, "{estimate} of {count}");
        }
    }
}
