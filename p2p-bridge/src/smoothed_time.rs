//! [`SmoothedTime`]: the smoothed mean of durations and their mean deviation, as TCP measures round trips for its
//! retransmission timer (RFC 6298, section 2).
//!
//! Goals: one type for all of them; no panics, whatever is measured. Non-goals: bounds of samples, and of what is
//! derived from the estimate, which are the caller's.

use std::time::Duration;

/// Mean and mean deviation, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SmoothedTime {
    mean: f64,
    deviation: f64,
}

impl SmoothedTime {
    /// An estimate without deviation.
    pub fn exactly(time: Duration) -> Self {
        Self { mean: time.as_secs_f64(), deviation: 0.0 }
    }

    /// The estimate after a sample; `None` is that before the first one.
    pub fn after(estimate: Option<Self>, sample: Duration) -> Self {
        let sample = sample.as_secs_f64();
        match estimate {
            None => Self { mean: sample, deviation: sample / 2.0 },
            // (2.3): the deviation is from the mean before this sample.
            Some(Self { mean, deviation }) => {
                Self { mean: 0.875 * mean + 0.125 * sample, deviation: 0.75 * deviation + 0.25 * (mean - sample).abs() }
            }
        }
    }

    /// The duration from which on a further sample is late: so many times the mean, and four deviations.
    pub fn limit(self, means: f64) -> Duration {
        Duration::try_from_secs_f64(means * self.mean + 4.0 * self.deviation).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn estimates_are_those_of_the_rfc() {
        let first = SmoothedTime::after(None, 100 * MS);
        assert_eq!((first.limit(1.0), first.limit(2.0)), (300 * MS, 400 * MS));
        // 7/8 * 100 + 1/8 * 180 = 110; 3/4 * 50 + 1/4 * 80 = 57.5.
        let second = SmoothedTime::after(Some(first), 180 * MS).limit(1.0);
        assert!(second.abs_diff(340 * MS) < Duration::from_micros(1), "{second:?}");
        let steady = (0..100).fold(first, |estimate, _| SmoothedTime::after(Some(estimate), 100 * MS)).limit(1.0);
        assert!(steady.abs_diff(100 * MS) < MS, "{steady:?}");
        assert_eq!(SmoothedTime::exactly(7 * MS).limit(2.0), 14 * MS);
        let longest = SmoothedTime::after(None, Duration::MAX);
        assert_eq!(SmoothedTime::after(Some(longest), Duration::ZERO).limit(2.0), Duration::MAX);
    }
}
