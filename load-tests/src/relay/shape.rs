//! When a piece of data leaves a link: the delay, and the time on a line of limited rate.
//!
//! A token bucket in the form of a schedule: the line is busy until some instant, and every piece keeps it busy for as
//! long as its bits take. The burst is the time by which the line may run ahead of that schedule.
//!
//! Goals: no clock of its own, so that its arithmetic is tested exactly. Non-goals: queueing (`line`).

use super::Link;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// The burst of an idle line.
const BURST: Duration = Duration::from_millis(2);
/// The queue of a limited line before it applies backpressure or drops, beyond bytes in flight: a router's buffer.
const QUEUE: Duration = Duration::from_millis(100);
/// The queue of an unlimited line for one connection carries 670 MB/s: 16 MiB at 25 ms.
const UNLIMITED_BYTES_PER_SECOND: u64 = 640 << 20;
/// The bounds of that queue, however short or long the line is.
const UNLIMITED_BYTES: RangeInclusive<usize> = 16 << 20..=128 << 20;
/// Space for a piece of the largest size, whatever the rate.
const LEAST_BYTES: usize = 256 << 10;

/// The schedule of one direction.
#[derive(Debug)]
pub struct Shaper {
    link: Link,
    /// When the line has sent all bytes so far.
    busy_until: Option<Instant>,
}

impl Shaper {
    /// An idle line.
    pub fn new(link: Link) -> Self {
        Self { link, busy_until: None }
    }

    /// When `bytes` that arrive `now` leave the line: never before bytes that arrived earlier.
    pub fn due(&mut self, now: Instant, bytes: usize) -> Instant {
        let Some(rate) = self.link.bits_per_second else { return now + self.link.delay };
        let rested = now.checked_sub(BURST).unwrap_or(now);
        let begin = self.busy_until.map_or(rested, |busy| busy.max(rested));
        let end = begin + time_on_line(bytes, rate);
        self.busy_until = Some(end);
        end.max(now) + self.link.delay
    }
}

/// How long `bytes` occupy a line.
fn time_on_line(bytes: usize, bits_per_second: u64) -> Duration {
    let nanoseconds = bytes as u128 * 8 * 1_000_000_000 / u128::from(bits_per_second.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

/// How many bytes one connection may have in one direction of a link.
pub fn capacity_bytes(link: Link) -> usize {
    let bytes = |bits_per_second: u64, time: Duration| {
        let bits = u128::from(bits_per_second) * time.as_micros() / 1_000_000;
        usize::try_from(bits / 8).unwrap_or(usize::MAX)
    };
    match link.bits_per_second {
        None => {
            bytes(UNLIMITED_BYTES_PER_SECOND * 8, link.delay).clamp(*UNLIMITED_BYTES.start(), *UNLIMITED_BYTES.end())
        }
        Some(rate) => bytes(rate, QUEUE + link.delay).clamp(LEAST_BYTES, *UNLIMITED_BYTES.start()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DELAY: Duration = Duration::from_millis(25);

    fn link(bits_per_second: Option<u64>) -> Link {
        Link { delay: DELAY, bits_per_second, lose_one_in: None }
    }

    #[test]
    fn without_a_rate_everything_is_late_by_the_delay() {
        let (start, mut shaper) = (Instant::now(), Shaper::new(link(None)));
        for bytes in [1, 1 << 20, 1] {
            assert_eq!(shaper.due(start, bytes), start + DELAY);
        }
    }

    #[test]
    fn a_busy_line_keeps_its_rate_and_a_rested_one_may_burst() {
        // 8 Mbit/s: a byte takes a microsecond.
        let (start, mut shaper) = (Instant::now() + Duration::from_secs(1), Shaper::new(link(Some(8_000_000))));
        let after = |micros| start + DELAY + Duration::from_micros(micros);
        let table = [
            // At, bytes, due: the first two milliseconds are the burst.
            (0, 2_000, 0),
            (0, 1_000, 1_000),
            (500, 1_000, 2_000),
            (10_000, 2_000, 10_000),
            (10_000, 1_000, 11_000),
        ];
        for (at, bytes, due) in table {
            assert_eq!(shaper.due(start + Duration::from_micros(at), bytes), after(due), "{bytes} bytes at {at} µs");
        }
    }

    #[test]
    fn a_limited_line_queues_bytes_in_flight_and_a_router_s_buffer() {
        let table =
            [(None, 16 << 20), (Some(50_000_000), 781_250), (Some(1_000), LEAST_BYTES), (Some(u64::MAX), 16 << 20)];
        for (rate, bytes) in table {
            assert_eq!(capacity_bytes(link(rate)), bytes, "{rate:?}");
        }
        let unlimited = |millis| capacity_bytes(Link::delay(Duration::from_millis(millis)));
        assert_eq!([0, 100, 10_000].map(unlimited), [16 << 20, 64 << 20, 128 << 20]);
    }

    proptest! {
        #[test]
        fn order_is_kept_and_the_rate_never_exceeded(
            pieces in proptest::collection::vec((0_u64..5_000, 1_usize..70_000), 1..100),
            rate in 1_000_000_u64..10_000_000_000,
        ) {
            let start = Instant::now() + Duration::from_secs(1);
            let mut shaper = Shaper::new(link(Some(rate)));
            let (mut now, mut last, mut sum) = (start, start, 0);
            for (wait, bytes) in pieces {
                now += Duration::from_micros(wait);
                sum += bytes;
                let due = shaper.due(now, bytes);
                prop_assert!(due >= last, "order");
                prop_assert!(due >= now + DELAY, "delay");
                // From the first piece on, no more than the rate and one burst. Rounding loses less than 1 ns a piece.
                let least = time_on_line(sum, rate).saturating_sub(BURST + Duration::from_nanos(200));
                prop_assert!(due >= start + DELAY + least, "rate");
                last = due;
            }
        }
    }
}
