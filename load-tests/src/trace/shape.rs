//! The distributions that a trace is drawn from, fitted to the paper ([`super::paper`]).
//!
//! Goals: every figure that the paper prints is met, and what it does not print is named here as an assumption; the
//! shape does not depend on the number of CIDs, so that a small trace is the whole day at a smaller scale.
//!
//! Non-goals: bursts, and popularity that wanders during the day. Each request is drawn by itself, so that a cache's
//! hit share is the same at every hour, while the paper's wanders between 32 % and 66 %.

use super::paper;
use std::f64::consts::{SQRT_2, TAU};

/// The largest object in bytes: above everything that [`Sizes`] draws in practice, and a limit for its readers.
pub const OBJECT_BYTES_MAX: u64 = 256 << 20;

/// Requests for each CID: Zipf–Mandelbrot. The CID behind a share `x` of more popular ones is requested
/// `((1 + knee) / (x + knee)) ^ exponent` times a day.
///
/// The paper prints two figures. The mean (7.1 M requests for 274 k CIDs: 25.9) and that the least popular of the CIDs
/// that were seen was requested once leave one number free. With a knee of 0 (plain Zipf) a single CID would have an
/// eighth of all requests and sixty objects would fill a cache that answers 46 %. The knee is *assumed* to be a
/// thousandth of the CIDs: the most popular one has 0.13 % of the requests, and a cache for 1.1 % of the day's bytes
/// answers nginx's 46.0 %. How large nginx's cache was is not printed.
#[derive(Debug, Clone, Copy)]
pub struct Popularity {
    knee: f64,
    exponent: f64,
}

impl Popularity {
    const KNEE: f64 = 1e-3;

    /// Fitted to the paper's figures.
    pub fn fitted() -> Self {
        let mean = paper::REQUESTS / f64::from(paper::CIDS);
        let with = |exponent| Self { knee: Self::KNEE, exponent };
        // The mean grows with the exponent.
        let exponent = bisect(1.01, 3.0, |exponent| with(exponent).of_most_popular(1.0) < mean);
        with(exponent)
    }

    pub fn knee(&self) -> f64 {
        self.knee
    }

    pub fn exponent(&self) -> f64 {
        self.exponent
    }

    /// Requests a day of the CID behind a share of more popular ones.
    pub fn at(&self, share: f64) -> f64 {
        ((1.0 + self.knee) / (share + self.knee)).powf(self.exponent)
    }

    /// Requests a day of that share of the CIDs that is the most popular, for each CID of all: the integral of
    /// [`Self::at`].
    pub fn of_most_popular(&self, share: f64) -> f64 {
        let (knee, power) = (self.knee, self.exponent - 1.0);
        (1.0 + knee).powf(self.exponent) * (knee.powf(-power) - (share + knee).powf(-power)) / power
    }

    /// Requests a day of each of `cids` CIDs, the most popular first. None is left without one.
    pub fn counts(self, cids: u32) -> impl Iterator<Item = u64> {
        let total = f64::from(cids);
        let until = move |rank: u32| (total * self.of_most_popular(f64::from(rank) / total)).round() as u64;
        // Rounding the sums instead of each count keeps the total.
        (0..cids).map(move |rank| until(rank + 1) - until(rank))
    }
}

/// Sizes of objects: log-normal, with one deviation below the median and another above it.
///
/// A plain log-normal distribution with the paper's median and its share over 100 KB would have a mean of 10.2 MB,
/// where 6.57 TB for 7.1 M requests are 0.93 MB. So the share sets the deviation below the median, and the mean the one
/// above it. Sizes do not depend on popularity.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    below: f64,
    above: f64,
}

impl Sizes {
    /// Equal shares that a mean is taken of.
    const STRATA: u32 = 4096;

    /// Fitted to the paper's figures.
    pub fn fitted() -> Self {
        let below = (paper::MEDIAN_BYTES / paper::LARGE_BYTES).ln() / normal_quantile(paper::LARGE_SHARE);
        let mean = paper::BYTES / paper::REQUESTS;
        let above = bisect(0.1, 3.0, |above| Self { below, above }.mean() < mean);
        Self { below, above }
    }

    /// The deviations of the logarithm, below and above the median.
    pub fn deviations(&self) -> (f64, f64) {
        (self.below, self.above)
    }

    fn mean(&self) -> f64 {
        let middle = |stratum| (f64::from(stratum) + 0.5) / f64::from(Self::STRATA);
        (0..Self::STRATA).map(|stratum| self.quantile(middle(stratum))).sum::<f64>() / f64::from(Self::STRATA)
    }

    /// The size in bytes that a share of all objects is below. The share is above 0 and below 1.
    pub fn quantile(&self, share: f64) -> f64 {
        let normal = normal_quantile(share);
        let deviation = if normal < 0.0 { self.below } else { self.above };
        paper::MEDIAN_BYTES * (deviation * normal).exp()
    }

    /// A size in whole bytes, with all sizes multiplied by `scale`.
    pub fn bytes(&self, share: f64, scale: f64) -> u64 {
        ((self.quantile(share) * scale).round() as u64).clamp(1, OBJECT_BYTES_MAX)
    }
}

/// Shares that spread evenly over any run of ranks, however short: multiples of an irrational number, without their
/// whole part. With independent draws, the few objects that have most of the requests would move every figure by their
/// luck.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    start: f64,
    step: f64,
}

impl Spread {
    /// For sizes: the golden ratio's fraction, which spreads best.
    pub fn of_sizes(start: f64) -> Self {
        Self { start, step: (5_f64.sqrt() - 1.0) / 2.0 }
    }

    /// For pins: another irrational, so that pinned content has the same sizes as the rest.
    pub fn of_pins(start: f64) -> Self {
        Self { start, step: SQRT_2 - 1.0 }
    }

    /// The share of one rank: above 0 and below 1.
    pub fn at(self, rank: u32) -> f64 {
        (self.start + f64::from(rank) * self.step).fract().clamp(1e-9, 1.0 - 1e-9)
    }
}

/// The times of a day's requests.
///
/// Figure 4b shows the curve without printing figures, so it is composed from the countries of the clients. Each
/// country's requests are *assumed* to follow a sine with its peak at 20:00 of the local clock and half as many
/// requests more, or fewer, than on average; those of the countries that are not named are spread evenly.
#[derive(Debug, Clone)]
pub struct Day {
    /// The share of the day's requests that come before each bin of five minutes, and 1 at the end.
    bins: Vec<f64>,
}

impl Day {
    const AMPLITUDE: f64 = 0.5;
    const PEAK_HOUR: f64 = 20.0;
    /// As in figure 4b.
    const BINS: usize = 288;

    pub fn new() -> Self {
        let hour = |bin: usize| bin as f64 * 24.0 / Self::BINS as f64;
        Self { bins: (0..=Self::BINS).map(|bin| Self::integral(hour(bin))).collect() }
    }

    /// The share of the day's requests that come before an hour (0 to 24).
    pub fn before(&self, hour: f64) -> f64 {
        let position = hour * Self::BINS as f64 / 24.0;
        let bin = (position as usize).min(Self::BINS - 1);
        let (from, to) = (self.bins[bin], self.bins[bin + 1]);
        from + (position - bin as f64) * (to - from)
    }

    /// The hour of the gateway's clock (0 to 24) before which a share of the day's requests come.
    pub fn hour(&self, share: f64) -> f64 {
        let bin = self.bins.partition_point(|before| *before <= share).clamp(1, Self::BINS) - 1;
        let (from, to) = (self.bins[bin], self.bins[bin + 1]);
        (bin as f64 + (share - from) / (to - from)) * 24.0 / Self::BINS as f64
    }

    /// The curve's integral, of which the bins are taken.
    fn integral(hour: f64) -> f64 {
        let phase = |hour: f64, ahead: f64| TAU * (hour + ahead - Self::PEAK_HOUR) / 24.0;
        let waves = paper::COUNTRIES.map(|(share, ahead)| share * (phase(hour, ahead).sin() - phase(0.0, ahead).sin()));
        hour / 24.0 + Self::AMPLITUDE / TAU * waves.iter().sum::<f64>()
    }
}

/// The normal distribution's quantile, to within 0.0005: Abramowitz and Stegun, Handbook of Mathematical Functions,
/// 26.2.23.
fn normal_quantile(share: f64) -> f64 {
    let tail = share.min(1.0 - share);
    let t = (-2.0 * tail.ln()).sqrt();
    let numerator = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let denominator = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    let distance = t - numerator / denominator;
    if share < 0.5 { -distance } else { distance }
}

/// Where `below` ceases to hold between two numbers.
fn bisect(mut low: f64, mut high: f64, below: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if below(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(actual: f64, expected: f64, tolerance: f64) {
        assert!((actual / expected - 1.0).abs() < tolerance, "{actual} is not {expected}");
    }

    #[test]
    fn requests_per_cid_have_the_paper_s_sums_and_the_fit_s_quantiles() {
        let popularity = Popularity::fitted();
        close(popularity.exponent(), 1.324, 0.001);
        let counts: Vec<u64> = popularity.counts(paper::CIDS).collect();
        assert_eq!(counts.len(), 274_000);
        close(counts.iter().sum::<u64>() as f64, paper::REQUESTS, 1e-6);
        assert_eq!(counts.last(), Some(&1), "the least popular one was requested once");
        // Quantiles of requests by CID: a regression test of the fit.
        let table = [(0.5, 2.5), (0.1, 20.8), (0.01, 393.0), (0.001, 3_755.0)];
        for (share, expected) in table {
            close(popularity.at(share), expected, 0.01);
            let drawn = counts[(share * 274_000.0) as usize] as f64;
            assert!((drawn - expected).abs() <= 1.0 + expected * 0.01, "{share}: {drawn}");
        }
        let first = counts[0] as f64 / paper::REQUESTS;
        assert!((0.0012..0.0014).contains(&first), "{first}");
    }

    proptest! {
        #[test]
        fn every_cid_is_requested_and_the_mean_does_not_depend_on_their_number(cids in 1_u32..20_000) {
            let counts: Vec<u64> = Popularity::fitted().counts(cids).collect();
            prop_assert!(counts.iter().all(|count| *count >= 1));
            prop_assert!(counts.windows(2).all(|pair| pair[0] + 1 >= pair[1]), "only rounding breaks the order");
            let mean = counts.iter().sum::<u64>() as f64 / f64::from(cids);
            prop_assert!((mean - 25.912).abs() <= 1.0 / f64::from(cids) + 0.001, "{}", mean);
        }

        /// Any run of ranks, such as the few most popular ones, has the sizes of the whole.
        #[test]
        fn sizes_have_the_paper_s_median_share_and_mean(start in 0.0..1.0, first in 0_u32..300_000) {
            let (fitted, spread) = (Sizes::fitted(), Spread::of_sizes(start));
            let mut sizes: Vec<f64> = (first..first + 2_000).map(|rank| fitted.quantile(spread.at(rank))).collect();
            sizes.sort_by(f64::total_cmp);
            prop_assert!((sizes[1_000] / paper::MEDIAN_BYTES - 1.0).abs() < 0.01, "median {}", sizes[1_000]);
            let large = sizes.iter().filter(|size| **size > paper::LARGE_BYTES).count() as f64 / 2_000.0;
            prop_assert!((large - paper::LARGE_SHARE).abs() < 0.002, "over 100 KB {}", large);
            // Without the largest, which has no bound.
            let mean = sizes[..1_999].iter().sum::<f64>() / 1_999.0;
            prop_assert!((mean / (paper::BYTES / paper::REQUESTS) - 1.0).abs() < 0.04, "mean {}", mean);
        }

        #[test]
        fn pins_spread_over_ranks_and_over_sizes(start in 0.0..1.0, first in 0_u32..300_000) {
            let (pins, sizes) = (Spread::of_pins(start), Spread::of_sizes(1.0 - start));
            let pinned = |rank: &u32| pins.at(*rank) < paper::PINNED_SHARE;
            let share = (first..first + 2_000).filter(pinned).count() as f64 / 2_000.0;
            prop_assert!((share - 0.744).abs() < 0.005, "{}", share);
            let small: Vec<u32> = (first..first + 4_000).filter(|rank| sizes.at(*rank) < 0.5).collect();
            let share = small.iter().filter(|rank| pinned(rank)).count() as f64 / small.len() as f64;
            prop_assert!((share - 0.744).abs() < 0.02, "{} of small ones", share);
        }

        #[test]
        fn the_day_s_curve_is_inverted(share in 0.0..1.0) {
            let day = Day::new();
            let hour = day.hour(share);
            prop_assert!((0.0..=24.0).contains(&hour));
            prop_assert!((day.before(hour) - share).abs() < 1e-9, "{} {}", share, hour);
            prop_assert!((Day::integral(hour) - share).abs() < 1e-5, "{} {}", share, hour);
        }
    }

    #[test]
    fn scaled_sizes_keep_their_shape_and_are_never_nothing() {
        let sizes = Sizes::fitted();
        close(sizes.deviations().0, 2.339, 0.001);
        close(sizes.deviations().1, 0.913, 0.003);
        close(sizes.bytes(0.5, 0.1) as f64, paper::MEDIAN_BYTES / 10.0, 0.001);
        assert_eq!(sizes.bytes(1e-9, 1e-6), 1);
        assert_eq!(sizes.bytes(0.5, 1e9), OBJECT_BYTES_MAX);
    }

    #[test]
    fn there_are_more_requests_in_the_evening_of_most_users_than_at_their_dawn() {
        let day = Day::new();
        let rate = |hour| (day.before(hour + 0.5) - day.before(hour - 0.5)) * 24.0;
        let (evening, dawn) = (rate(18.0), rate(8.0));
        assert!(evening > 1.05 && dawn < 0.95, "{evening} {dawn}");
        let mean = (0..24).map(|hour| rate(f64::from(hour) + 0.5)).sum::<f64>() / 24.0;
        assert!((mean - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_normal_quantile_is_known_at_a_few_places() {
        for (share, expected) in [(0.5, 0.0), (0.841_34, 1.0), (0.158_66, -1.0), (0.977_25, 2.0), (0.998_65, 3.0)] {
            assert!((normal_quantile(share) - expected).abs() < 0.001, "{share}");
        }
    }
}
