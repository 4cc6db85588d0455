//! A trace: the objects, and the requests for them in the order of their time.
//!
//! Goals: one seed, one trace, on every machine; a stretch of the day has as many requests, and repeats itself as
//! often, as that stretch of the whole day, however short it is; bounded memory.

use super::paper;
use super::shape::{Day, Popularity, Sizes, Spread};
use crate::random::SplitMix;
use anyhow::{Result, ensure};
use std::ops::Range;
use std::time::Duration;

/// Limit for the requests of a trace: the paper's day, and a little more. With their records (`replay`), they take less
/// than a gigabyte.
pub const REQUESTS_MAX: usize = 8_000_000;

/// An hour in seconds.
const HOUR: f64 = 3600.0;

/// Parameters of a trace.
#[derive(Debug, Clone)]
pub struct Draw {
    pub seed: u64,
    /// CIDs that the whole day's requests are for.
    pub cids: u32,
    /// The hours of the gateway's clock that are taken out of the day.
    pub hours: Range<f64>,
    /// Limit for the factor of all sizes: 1 for the paper's.
    pub scale_max: f64,
    /// Limit for the bytes of all objects of the trace. If it is exceeded, all sizes shrink alike.
    pub bytes_max: u64,
}

/// Some content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    pub bytes: u64,
    /// Of its bytes: [`crate::sample::bytes`].
    pub seed: u64,
    /// In the gateway's store from the beginning.
    pub pinned: bool,
}

/// A request for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Since the trace began, at the pace of the real day.
    pub at: Duration,
    /// Index of the object.
    pub object: u32,
}

/// A trace.
#[derive(Debug, Clone)]
pub struct Trace {
    /// Those with requests.
    pub objects: Vec<Object>,
    /// By time.
    pub requests: Vec<Request>,
    /// The factor of all sizes.
    pub scale: f64,
    /// Bytes of all objects of the whole day: what a cache's size is a share of.
    pub day_bytes: u64,
}

impl Draw {
    /// Draws the trace.
    ///
    /// # Errors
    /// The hours are not within a day, there would be no or too many requests, or the limit is too small for the
    /// objects.
    pub fn draw(&self) -> Result<Trace> {
        let Range { start, end } = self.hours;
        ensure!(0.0 <= start && start < end && end <= 24.0, "from {start} to {end} is no stretch of a day of 24 hours");
        ensure!(self.scale_max.is_finite() && self.scale_max > 0.0, "sizes cannot be multiplied by {}", self.scale_max);
        let expected = self.expected_requests();
        ensure!(
            expected < 0.95 * REQUESTS_MAX as f64,
            "{expected:.0} requests are too many; take fewer CIDs or minutes"
        );
        let mut random = SplitMix::new(self.seed);
        let (sizes, pins) = (Spread::of_sizes(random.unit()), Spread::of_pins(random.unit()));
        let (ranks, requests) = self.requests(&mut random);
        ensure!(!requests.is_empty(), "there are no requests in {} minutes", (end - start) * 60.0);
        let (count, fitted) = (ranks.len(), Sizes::fitted());
        let bytes = |rank: u32, scale| fitted.bytes(sizes.at(rank), scale);
        let unscaled: u64 = ranks.iter().map(|rank| bytes(*rank, 1.0)).sum();
        ensure!(self.bytes_max > count as u64, "{count} objects do not fit into {} bytes", self.bytes_max);
        let scale = self.scale_max.min(self.bytes_max as f64 / unscaled as f64);
        let object = |rank: &u32| Object {
            bytes: bytes(*rank, scale),
            seed: SplitMix::new(self.seed ^ (u64::from(*rank) << 32)).word(),
            pinned: pins.at(*rank) < paper::PINNED_SHARE,
        };
        let day_bytes = (0..self.cids).map(|rank| bytes(rank, scale)).sum();
        Ok(Trace { objects: ranks.iter().map(object).collect(), requests, scale, day_bytes })
    }

    /// About how many requests there will be.
    fn expected_requests(&self) -> f64 {
        let day = Day::new();
        (day.before(self.hours.end) - day.before(self.hours.start))
            * f64::from(self.cids)
            * Popularity::fitted().of_most_popular(1.0)
    }

    /// The ranks with requests, and the requests for them by their index among those.
    fn requests(&self, random: &mut SplitMix) -> (Vec<u32>, Vec<Request>) {
        let (day, start) = (Day::new(), self.hours.start * HOUR);
        let wanted = day.before(self.hours.start)..day.before(self.hours.end);
        let (mut ranks, mut requests) = (Vec::new(), Vec::new());
        for (rank, count) in (0..self.cids).zip(Popularity::fitted().counts(self.cids)) {
            let before = requests.len();
            // The whole day is drawn, so that a part of it is a part of the same day.
            let shares = (0..count).map(|_| random.unit()).filter(|share| wanted.contains(share));
            let seconds = shares.map(|share| (day.hour(share) * HOUR - start).max(0.0));
            let object = ranks.len() as u32;
            requests.extend(seconds.map(|seconds| Request { at: Duration::from_secs_f64(seconds), object }));
            if requests.len() > before {
                ranks.push(rank);
            }
        }
        requests.sort_by_key(|request| (request.at, request.object));
        (ranks, requests)
    }
}

impl Trace {
    /// The object that a request is for.
    pub fn object_of(&self, request: &Request) -> &Object {
        &self.objects[request.object as usize]
    }

    /// Bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.bytes).sum()
    }

    /// Index of the first request at `time` or later.
    pub fn first_at(&self, time: Duration) -> usize {
        self.requests.partition_point(|request| request.at < time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn draw(seed: u64, cids: u32, hours: Range<f64>) -> Draw {
        Draw { seed, cids, hours, scale_max: 1.0, bytes_max: u64::MAX }
    }

    #[test]
    fn a_day_has_the_paper_s_figures_by_request_and_by_object() {
        for seed in 0..3 {
            let trace = draw(seed, 20_000, 0.0..24.0).draw().expect("it is a day");
            assert_eq!(trace.objects.len(), 20_000, "every CID has requests");
            assert_eq!(trace.day_bytes, trace.bytes());
            let mean = trace.requests.len() as f64 / 20_000.0;
            assert!((mean - 25.912).abs() < 0.001, "{mean}");
            let by_request = trace.requests.iter().map(|request| *trace.object_of(request)).collect();
            // By request, the sizes of a few weigh more.
            for (mut objects, tolerance) in [(trace.objects.clone(), 0.01), (by_request, 0.05)] {
                objects.sort_by_key(|object| object.bytes);
                let count = objects.len() as f64;
                let share =
                    |of: &dyn Fn(&Object) -> bool| objects.iter().filter(|object| of(object)).count() as f64 / count;
                let median = objects[objects.len() / 2].bytes as f64 / paper::MEDIAN_BYTES;
                assert!((median - 1.0).abs() < tolerance, "{median} of the median");
                let large = share(&|object| object.bytes as f64 > paper::LARGE_BYTES);
                assert!((large - paper::LARGE_SHARE).abs() < 0.01, "{large} are large");
                let pinned = share(&|object| object.pinned);
                assert!((pinned - paper::PINNED_SHARE).abs() < 0.02, "{pinned} are pinned");
                let mean = objects.iter().map(|object| object.bytes as f64).sum::<f64>() / count;
                assert!((mean / (paper::BYTES / paper::REQUESTS) - 1.0).abs() < tolerance, "{mean} bytes each");
            }
        }
    }

    #[test]
    fn a_seed_is_a_trace() {
        let drawn = |seed| draw(seed, 500, 12.0..13.0).draw().expect("there are requests");
        let (one, same, other) = (drawn(1), drawn(1), drawn(2));
        assert_eq!((&one.objects, &one.requests), (&same.objects, &same.requests));
        assert_ne!(one.requests, other.requests);
        assert_ne!(one.objects[0].seed, other.objects[0].seed);
    }

    /// Twenty minutes are as busy as those of the day, and have what the day has at that time.
    #[test]
    fn a_stretch_is_a_piece_of_its_day() {
        let (from, to) = (18.0, 18.0 + 1.0 / 3.0);
        let (day, piece) = (draw(7, 5_000, 0.0..24.0), draw(7, 5_000, from..to));
        let (day, piece) = (day.draw().expect("it is a day"), piece.draw().expect("there are requests"));
        let begin = Duration::from_secs_f64(from * HOUR);
        let (first, end) = (day.first_at(begin), day.first_at(Duration::from_secs_f64(to * HOUR)));
        assert_eq!(piece.requests.len(), end - first);
        for (whole, part) in day.requests[first..end].iter().zip(&piece.requests) {
            assert_eq!(day.object_of(whole).seed, piece.object_of(part).seed);
            assert!((whole.at - begin).abs_diff(part.at) < Duration::from_micros(1));
        }
        assert_eq!(piece.day_bytes, day.day_bytes);
    }

    proptest! {
        #[test]
        fn all_that_is_drawn_is_in_order_in_bounds_and_used(
            seed: u64,
            cids in 1_u32..2_000,
            start in 0.0..23.0,
            bytes_max in 10_000_u64..1_000_000_000,
        ) {
            let drawn = Draw { scale_max: 0.5, bytes_max, ..draw(seed, cids, start..start + 1.0) }.draw();
            // An hour may have hardly any requests, or the limit may be too small for the objects.
            prop_assume!(drawn.is_ok());
            let trace = drawn.expect("it is");
            prop_assert!(trace.requests.is_sorted_by_key(|request| request.at));
            prop_assert!(trace.requests.iter().all(|request| request.at <= Duration::from_millis(3_600_001)));
            let mut used = vec![false; trace.objects.len()];
            trace.requests.iter().for_each(|request| used[request.object as usize] = true);
            prop_assert!(used.iter().all(|used| *used), "an object without requests");
            prop_assert!(trace.scale <= 0.5);
            // Rounding, and a byte for what would be nothing.
            prop_assert!(trace.bytes() <= bytes_max + trace.objects.len() as u64, "{} bytes", trace.bytes());
        }
    }

    #[test]
    fn invalid_parameters_are_rejected() {
        let good = draw(1, 100, 0.0..24.0);
        let table = [
            Draw { hours: 23.0..25.0, ..good.clone() },
            Draw { hours: Range { start: 5.0, end: 4.0 }, ..good.clone() },
            Draw { hours: f64::NAN..1.0, ..good.clone() },
            Draw { cids: u32::MAX, ..good.clone() },
            Draw { cids: 0, ..good.clone() },
            Draw { bytes_max: 50, ..good.clone() },
            Draw { scale_max: 0.0, ..good.clone() },
        ];
        assert!(good.draw().is_ok());
        for refused in table {
            assert!(refused.draw().is_err(), "{refused:?}");
        }
    }
}
