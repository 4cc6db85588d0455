//! Measurements of one peer, and the values derived from them: how much may be outstanding, how long an answer takes,
//! and when the peer counts as stalled. Arithmetic only; the caller passes the time in.
//!
//! The *response time* is the shortest time from a request to an idle peer to its answer. The *rate* is the best of the
//! last few rounds, in bytes per second; a round lasts at least one response time, begins when a block is received, and
//! counts only if the peer had enough outstanding bytes at its end, or if it is a new best: forty small files say
//! nothing about a link. The *window* is the maximum of outstanding bytes: twice the bandwidth-delay product, and a
//! margin. While the window limits the rate, this exceeds the window, so that it doubles with every round; once the
//! link is full, it is stable. The margin is the amount that Kubo passes to its network at a time (1 MiB), so that its
//! queue never runs empty.

use std::time::{Duration, Instant};

const MIB: usize = 1024 * 1024;
/// The window before any measurement, in bytes.
const WINDOW_BYTES_START: usize = 2 * MIB;
/// The maximum window, in bytes: twice 160 MB/s over 50 ms.
const WINDOW_BYTES_MAX: usize = 32 * MIB;
/// Added to twice the bandwidth-delay product.
const MARGIN_BYTES: f64 = MIB as f64;
/// The minimum length of a round, so that a burst does not count as a rate.
const ROUND_MIN: Duration = Duration::from_millis(50);
/// A peer with less than this part of its window outstanding may be idle at times.
const BUSY_PART: usize = 4;
/// The number of rounds of which the best counts.
const ROUNDS: usize = 8;
/// The rate of a peer without measurements, in bytes per second: high enough to be tried early.
const DEFAULT_RATE: f64 = 50_000_000.0;
/// The response time of a peer without measurements.
const DEFAULT_RESPONSE: Duration = Duration::from_millis(100);
/// Bounds of the time without data after which a peer counts as stalled.
const STALL_THRESHOLD: std::ops::RangeInclusive<Duration> = Duration::from_millis(250)..=Duration::from_secs(5);
/// The same for a peer that never answered.
const DEFAULT_STALL_THRESHOLD: Duration = Duration::from_millis(400);

/// The link to one peer.
#[derive(Debug, Default)]
pub(super) struct Link {
    response: Option<Duration>,
    /// The last rounds, newest last, in bytes per second.
    rounds: [f64; ROUNDS],
    round: Option<Round>,
    /// The smoothed gap between received blocks while blocks are outstanding.
    gap: Option<Duration>,
    /// When it last sent requested data, or was first asked when idle.
    last_received: Option<Instant>,
}

#[derive(Debug)]
struct Round {
    began: Instant,
    bytes: usize,
}

impl Link {
    /// An idle peer is asked: its time without data starts.
    pub fn begin(&mut self, now: Instant) {
        self.last_received = Some(now);
        self.round = None;
    }

    /// No requests are outstanding any more.
    pub fn end(&mut self, now: Instant) {
        if let Some(round) = self.round.take()
            && let Some(rate) = round.rate(now, self.round_min())
        {
            self.keep(rate, false);
        }
    }

    /// An answer was received. `asked_at` is given if the peer was idle when asked.
    pub fn answered(&mut self, asked_at: Option<Instant>, now: Instant) {
        self.last_received = Some(now);
        let Some(took) = asked_at.map(|at| now.saturating_duration_since(at)) else { return };
        self.response = Some(match self.response {
            Some(old) if took > old => (old * 7 + took) / 8,
            _ => took,
        });
    }

    /// A block was received, with `outstanding_bytes` pending in all.
    pub fn delivered(&mut self, bytes: usize, outstanding_bytes: usize, asked_at: Option<Instant>, now: Instant) {
        let before = self.last_received;
        let busy = outstanding_bytes >= self.window_bytes() / BUSY_PART;
        self.answered(asked_at, now);
        let Some(round) = &mut self.round else {
            // The peer may have prepared it before the round started.
            self.round = Some(Round { began: now, bytes: 0 });
            return;
        };
        round.bytes = round.bytes.saturating_add(bytes);
        if let Some(before) = before {
            let gap = now.saturating_duration_since(before);
            self.gap = Some(self.gap.map_or(gap, |old| (old * 7 + gap) / 8));
        }
        if let Some(rate) = self.round.as_ref().and_then(|round| round.rate(now, self.round_min())) {
            self.keep(rate, busy);
            self.round = Some(Round { began: now, bytes: 0 });
        }
    }

    /// Bytes of an incomplete message were received.
    pub fn progressed(&mut self, at: Instant) {
        self.last_received = self.last_received.map(|last_received| last_received.max(at));
    }

    fn round_min(&self) -> Duration {
        self.response.unwrap_or(DEFAULT_RESPONSE).max(ROUND_MIN)
    }

    /// The rate of a peer with few outstanding bytes is only a lower bound.
    fn keep(&mut self, rate: f64, busy: bool) {
        let news = self.best() > 0.0 && rate > self.best();
        if !busy && !news {
            return;
        }
        self.rounds.rotate_left(1);
        self.rounds[ROUNDS - 1] = rate;
    }

    fn best(&self) -> f64 {
        self.rounds.iter().copied().fold(0.0, f64::max)
    }

    fn rate(&self) -> f64 {
        let best = self.best();
        if best > 0.0 { best.max(1.0) } else { DEFAULT_RATE }
    }

    /// The maximum of outstanding bytes.
    pub fn window_bytes(&self) -> usize {
        if self.best() <= 0.0 {
            return WINDOW_BYTES_START;
        }
        let fits = self.best() * self.response.unwrap_or(DEFAULT_RESPONSE).as_secs_f64();
        // A float outside the range saturates.
        ((2.0 * fits + MARGIN_BYTES) as usize).min(WINDOW_BYTES_MAX)
    }

    /// The expected time until `queued_bytes` are received, if requested now.
    pub fn time_for(&self, queued_bytes: usize) -> Duration {
        let queue = queued_bytes as f64 / self.rate();
        self.response.unwrap_or(DEFAULT_RESPONSE) + Duration::try_from_secs_f64(queue).unwrap_or(Duration::MAX / 4)
    }

    /// The time without data after which the peer counts as stalled.
    pub fn stall_threshold(&self) -> Duration {
        let Some(response) = self.response else { return DEFAULT_STALL_THRESHOLD };
        (response * 2 + self.gap.unwrap_or_default() * 4).clamp(*STALL_THRESHOLD.start(), *STALL_THRESHOLD.end())
    }

    /// Whether it has sent nothing for too long, if blocks are outstanding.
    pub fn is_stalled(&self, now: Instant) -> bool {
        self.last_received
            .is_some_and(|last_received| now.saturating_duration_since(last_received) > self.stall_threshold())
    }

    /// The response time, once measured.
    pub fn response(&self) -> Option<Duration> {
        self.response
    }

    /// The best rate in bytes per second, once measured.
    pub fn measured_rate(&self) -> Option<u64> {
        // A float outside the range saturates.
        (self.best() > 0.0).then(|| self.best() as u64)
    }

    /// When it last sent requested data, or was first asked when idle.
    pub fn last_received(&self) -> Option<Instant> {
        self.last_received
    }
}

impl Round {
    /// The rate in bytes per second, if the round was long enough.
    fn rate(&self, now: Instant, round_min: Duration) -> Option<f64> {
        let took = now.saturating_duration_since(self.began);
        (took >= round_min).then(|| self.bytes as f64 / took.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const BLOCK: usize = 256 * 1024;

    /// Keeps a link with a rate and latency as busy as its window allows, for some time.
    fn saturate(link: &mut Link, rate: f64, latency: Duration, time: Duration) {
        let start = Instant::now();
        let (mut now, mut free) = (start, start);
        let mut under_way = std::collections::VecDeque::new();
        link.begin(now);
        while now < start + time {
            while under_way.len() * BLOCK < link.window_bytes() {
                free = free.max(now + latency / 2) + Duration::from_secs_f64(BLOCK as f64 / rate);
                under_way.push_back((under_way.is_empty().then_some(now), free + latency / 2));
            }
            let (asked_at, arrives) = under_way.pop_front().expect("the window holds a block");
            now = now.max(arrives);
            link.delivered(BLOCK, (under_way.len() + 1) * BLOCK, asked_at, now);
        }
    }

    #[test]
    fn the_window_grows_until_the_link_is_full() {
        // Megabytes per second, latency, and the final window in MiB: twice the bandwidth-delay product plus one.
        let table = [(6.25, 50, 1.0..3.0), (50.0, 50, 5.0..10.0), (160.0, 50, 15.0..25.0), (300.0, 1, 1.0..3.0)];
        for (rate, latency, expected) in table {
            let mut link = Link::default();
            saturate(&mut link, rate * 1e6, latency * MS, Duration::from_secs(3));
            let measured = link.best() / 1e6;
            assert!((0.8 * rate..1.2 * rate).contains(&measured), "{rate} MB/s, {latency} ms: {measured}");
            let window = link.window_bytes() as f64 / MIB as f64;
            assert!(expected.contains(&window), "{rate} MB/s, {latency} ms: {window} MiB");
        }
    }

    #[test]
    fn the_stall_threshold_follows_the_link_within_bounds() {
        let start = Instant::now();
        let mut link = Link::default();
        assert!(!link.is_stalled(start + Duration::from_secs(9)), "it was asked nothing");
        link.begin(start);
        assert!(!link.is_stalled(start + 400 * MS) && link.is_stalled(start + 401 * MS));
        link.progressed(start + 300 * MS);
        assert!(!link.is_stalled(start + 700 * MS), "bytes are being received");
        link.answered(Some(start), start + 20 * MS);
        assert_eq!(link.stall_threshold(), 250 * MS);
        // One block in two seconds is slow, not stalled.
        for n in 1..20 {
            link.delivered(BLOCK, BLOCK, None, start + n * 2_000 * MS);
        }
        assert_eq!(link.stall_threshold(), Duration::from_secs(5));
    }

    #[test]
    fn small_blocks_say_nothing_about_a_link() {
        let mut link = Link::default();
        let (mut now, before) = (Instant::now(), link.window_bytes());
        link.begin(now);
        for n in 0..200 {
            now += 20 * MS;
            link.delivered(500, 4_000, (n == 0).then_some(now - 50 * MS), now);
        }
        assert_eq!(link.window_bytes(), before);
    }

    #[test]
    fn an_idle_link_does_not_lower_the_rate() {
        let mut link = Link::default();
        saturate(&mut link, 50e6, 50 * MS, Duration::from_secs(2));
        let before = link.best();
        let mut now = Instant::now();
        for _ in 0..100 {
            link.begin(now);
            link.delivered(BLOCK, BLOCK, Some(now), now + 60 * MS);
            now += 60 * MS;
            link.end(now);
        }
        assert_eq!(link.best(), before);
        assert!(link.time_for(BLOCK) < 100 * MS);
    }
}
