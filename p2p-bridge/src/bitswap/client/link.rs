//! What is measured of the way to one peer, and what follows from it: how much it may owe us at once, how long an answer
//! takes, and when silence is suspicious. Arithmetic only; the clock is handed in.
//!
//! The *response* is the shortest time from a question that found the peer idle to its answer. The *rate* is the best of
//! the last few rounds, in bytes a second; a round is at least one response long, begins with an arrival and counts only if
//! the peer had enough to do at its end, or if it is a new best: forty small files say nothing about a link. The *window* is what the peer may owe: twice the bytes that fit the link,
//! and a margin. While the window is what limits the rate, twice what fits is more than the window, so that it doubles
//! with every round; once the link is full, it stays. The margin is what a Kubo hands to its network at a time (1 MiB), so
//! that there is always something in its queue.

use std::time::{Duration, Instant};

const MIB: usize = 1024 * 1024;
/// What a peer may owe before it was measured, in bytes.
const WINDOW_BYTES_START: usize = 2 * MIB;
/// What any peer may owe, in bytes: 160 MB/s over 50 ms, twice.
const WINDOW_BYTES_MAX: usize = 32 * MIB;
/// What comes on top of twice the bytes that fit the link.
const MARGIN_BYTES: f64 = MIB as f64;
/// The shortest round, so that a burst is not taken for a rate.
const ROUND_MIN: Duration = Duration::from_millis(50);
/// A peer that owes less than this part of its window may be idle part of the time.
const BUSY_PART: usize = 4;
/// Rounds of which the best counts.
const ROUNDS: usize = 8;
/// The rate assumed of a peer that was never measured, in bytes a second: enough to be tried early.
const UNKNOWN_RATE: f64 = 50_000_000.0;
/// The response assumed of such a peer.
const UNKNOWN_RESPONSE: Duration = Duration::from_millis(100);
/// Bounds of the silence that is suspicious.
const PATIENCE: std::ops::RangeInclusive<Duration> = Duration::from_millis(250)..=Duration::from_secs(5);
/// The same for a peer that never answered anything yet.
const UNKNOWN_PATIENCE: Duration = Duration::from_millis(400);

/// The way to one peer.
#[derive(Debug, Default)]
pub(super) struct Link {
    response: Option<Duration>,
    /// The last rounds, newest last, in bytes a second.
    rounds: [f64; ROUNDS],
    round: Option<Round>,
    /// Time between arrivals while it owes something, smoothed.
    gap: Option<Duration>,
    /// When it last sent anything that we asked for, or was first asked after it owed nothing.
    heard: Option<Instant>,
}

#[derive(Debug)]
struct Round {
    began: Instant,
    bytes: usize,
}

impl Link {
    /// A question goes to a peer that owes us nothing: its silence begins now.
    pub fn begin(&mut self, now: Instant) {
        self.heard = Some(now);
        self.round = None;
    }

    /// It owes us nothing any more.
    pub fn end(&mut self, now: Instant) {
        if let Some(round) = self.round.take()
            && let Some(rate) = round.rate(now, self.round_min())
        {
            self.keep(rate, false);
        }
    }

    /// An answer came. `asked_at` is given if the question found the peer idle.
    pub fn answered(&mut self, asked_at: Option<Instant>, now: Instant) {
        self.heard = Some(now);
        let Some(took) = asked_at.map(|at| now.saturating_duration_since(at)) else { return };
        self.response = Some(match self.response {
            Some(old) if took > old => (old * 7 + took) / 8,
            _ => took,
        });
    }

    /// A block of that many bytes came, while the peer owed that many in all.
    pub fn delivered(&mut self, bytes: usize, owed_bytes: usize, asked_at: Option<Instant>, now: Instant) {
        let before = self.heard;
        let busy = owed_bytes >= self.window_bytes() / BUSY_PART;
        self.answered(asked_at, now);
        let Some(round) = &mut self.round else {
            // What it sent until now it had time for before we looked.
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

    /// Bytes of something that is not complete yet came.
    pub fn progressed(&mut self, at: Instant) {
        self.heard = self.heard.map(|heard| heard.max(at));
    }

    fn round_min(&self) -> Duration {
        self.response.unwrap_or(UNKNOWN_RESPONSE).max(ROUND_MIN)
    }

    /// What a peer manages that had little to do says only that it can do as much.
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
        if best > 0.0 { best.max(1.0) } else { UNKNOWN_RATE }
    }

    /// What it may owe at once, in bytes.
    pub fn window_bytes(&self) -> usize {
        if self.best() <= 0.0 {
            return WINDOW_BYTES_START;
        }
        let fits = self.best() * self.response.unwrap_or(UNKNOWN_RESPONSE).as_secs_f64();
        // A float beyond the range becomes its end.
        ((2.0 * fits + MARGIN_BYTES) as usize).min(WINDOW_BYTES_MAX)
    }

    /// How long it should take until `queued_bytes` have come, asked for now.
    pub fn time_for(&self, queued_bytes: usize) -> Duration {
        let queue = queued_bytes as f64 / self.rate();
        self.response.unwrap_or(UNKNOWN_RESPONSE) + Duration::try_from_secs_f64(queue).unwrap_or(Duration::MAX / 4)
    }

    /// The silence after which something is wrong.
    pub fn patience(&self) -> Duration {
        let Some(response) = self.response else { return UNKNOWN_PATIENCE };
        (response * 2 + self.gap.unwrap_or_default() * 4).clamp(*PATIENCE.start(), *PATIENCE.end())
    }

    /// Whether it has been silent for too long, if it owes us something.
    pub fn is_silent(&self, now: Instant) -> bool {
        self.heard.is_some_and(|heard| now.saturating_duration_since(heard) > self.patience())
    }

    /// How long an answer takes, once that was measured.
    pub fn response(&self) -> Option<Duration> {
        self.response
    }

    /// What it sends at best, in bytes a second, once that was measured.
    pub fn measured_rate(&self) -> Option<u64> {
        // A float beyond the range becomes its end.
        (self.best() > 0.0).then(|| self.best() as u64)
    }

    /// When it last sent something that we asked for, or began to owe us.
    pub fn heard(&self) -> Option<Instant> {
        self.heard
    }
}

impl Round {
    /// Bytes a second, once it was long enough.
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

    /// Keeps a link of `rate` bytes a second and `latency` as busy as its window allows, for `time`.
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
    fn the_window_grows_until_the_link_is_full_and_no_further() {
        // Megabytes a second, latency, and what the window should settle at in MiB: twice what fits, and one.
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
    fn patience_follows_the_link_within_bounds() {
        let start = Instant::now();
        let mut link = Link::default();
        assert!(!link.is_silent(start + Duration::from_secs(9)), "it was asked nothing");
        link.begin(start);
        assert!(!link.is_silent(start + 400 * MS) && link.is_silent(start + 401 * MS));
        link.progressed(start + 300 * MS);
        assert!(!link.is_silent(start + 700 * MS), "bytes are coming");
        link.answered(Some(start), start + 20 * MS);
        assert_eq!(link.patience(), 250 * MS);
        // One block in two seconds is slow, not silent.
        for n in 1..20 {
            link.delivered(BLOCK, BLOCK, None, start + n * 2_000 * MS);
        }
        assert_eq!(link.patience(), Duration::from_secs(5));
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
    fn what_is_measured_while_it_runs_dry_lowers_nothing() {
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
