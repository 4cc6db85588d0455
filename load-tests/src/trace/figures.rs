//! Records of a replay summed up: each tier's share and latencies, and how well the generator kept its schedule.

use super::replay::{Outcome, Record};
use super::simulate::{Counts, Share};
use super::tier::ByTier;
use crate::report::seconds;
use crate::stats::Latency;
use serde::Serialize;
use std::time::Duration;

/// A request that was sent later than this after it was due was late.
const LATE: Duration = Duration::from_millis(10);

/// One tier's responses. Latencies count from when requests were due.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Responses {
    pub count: usize,
    pub share: Share,
    pub first_byte: Latency,
    pub last_byte: Latency,
}

/// A replay without its warm-up.
#[derive(Debug, Clone, Serialize)]
pub struct Replayed {
    /// Shares are of those responses whose tier is known.
    pub tiers: ByTier<Responses>,
    /// Complete responses, of whatever tier.
    pub all: Responses,
    /// Complete responses without a tier.
    #[serde(rename = "untold")]
    pub without_tier: usize,
    /// Requests that were due.
    pub due: usize,
    /// Requests and bytes a second: as they were due, and as responses were complete, until the last of them.
    pub due_per_second: f64,
    pub answered_per_second: f64,
    pub bytes_per_second: f64,
    /// Sent more than 10 ms late, because all connections were busy or the generator was.
    pub late: usize,
    #[serde(rename = "latest_seconds", serialize_with = "seconds")]
    pub latest: Duration,
    pub statuses: usize,
    pub wrong: usize,
    pub failed: usize,
    pub unsent: usize,
}

impl Replayed {
    /// Sums up records, in the order of their requests.
    pub fn of(records: &[Record]) -> Self {
        let from = records.first().map_or(Duration::ZERO, |record| record.due);
        let complete: Vec<&Record> = records.iter().filter(|record| record.outcome == Outcome::Complete).collect();
        let mut counts = Counts::default();
        complete.iter().for_each(|record| record.tier.into_iter().for_each(|tier| counts.add(tier, record.bytes)));
        let shares = counts.shares();
        let tiers = ByTier::from_fn(|tier| {
            let of_tier: Vec<&Record> = complete.iter().copied().filter(|record| record.tier == Some(tier)).collect();
            Responses::of(&of_tier, *shares.of(tier))
        });
        let count = |of: &dyn Fn(Outcome) -> bool| records.iter().filter(|record| of(record.outcome)).count();
        let lateness = |record: &Record| record.sent.saturating_sub(record.due);
        let span = |until: Option<Duration>| until.unwrap_or(from).saturating_sub(from).as_secs_f64().max(1e-3);
        let (last_due, last_byte) =
            (records.last().map(|record| record.due), complete.iter().map(|r| r.last_byte).max());
        let bytes: u64 = complete.iter().map(|record| record.bytes).sum();
        Self {
            tiers,
            all: Responses::of(&complete, Share { requests: 1.0, bytes: 1.0 }),
            without_tier: complete.iter().filter(|record| record.tier.is_none()).count(),
            due: records.len(),
            due_per_second: records.len() as f64 / span(last_due),
            answered_per_second: complete.len() as f64 / span(last_byte),
            bytes_per_second: bytes as f64 / span(last_byte),
            late: records.iter().filter(|record| lateness(record) > LATE).count(),
            latest: records.iter().map(lateness).max().unwrap_or_default(),
            statuses: count(&|outcome| matches!(outcome, Outcome::Status(_))),
            wrong: count(&|outcome| outcome == Outcome::Wrong),
            failed: count(&|outcome| outcome == Outcome::Failed),
            unsent: count(&|outcome| outcome == Outcome::Unsent),
        }
    }

    /// Requests without a complete response.
    pub fn unanswered(&self) -> usize {
        self.statuses + self.wrong + self.failed + self.unsent
    }
}

impl Responses {
    fn of(records: &[&Record], share: Share) -> Self {
        let latency = |time: fn(&Record) -> Duration| {
            Latency::of(records.iter().map(|record| time(record).saturating_sub(record.due)))
        };
        let (first_byte, last_byte) = (latency(|record| record.first_byte), latency(|record| record.last_byte));
        Self { count: records.len(), share, first_byte, last_byte }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tier::Tier;
    use super::*;

    fn record(index: usize, tier: Option<Tier>, outcome: Outcome) -> Record {
        let due = Duration::from_secs(index as u64);
        let after = |millis| due + Duration::from_millis(millis);
        let (sent, first_byte, last_byte) = (after(index as u64 * 5), after(20), after(30));
        Record { index, due, sent, first_byte, last_byte, bytes: 100, outcome, tier }
    }

    #[test]
    fn only_complete_responses_have_tiers_and_latencies() {
        use Outcome::{Complete, Failed, Status, Unsent, Wrong};
        let (ram, disk) = (Some(Tier::Ram), Some(Tier::Disk));
        let records = [
            record(0, Some(Tier::Network), Complete),
            record(1, ram, Complete),
            record(2, ram, Complete),
            record(3, disk, Complete),
            record(4, None, Complete),
            record(5, disk, Status(504)),
            record(6, ram, Wrong),
            record(7, None, Failed),
            record(8, None, Unsent),
        ];
        let replayed = Replayed::of(&records[1..]);
        assert_eq!(ByTier::from_fn(|tier| replayed.tiers.of(tier).count), ByTier { ram: 2, disk: 1, network: 0 });
        assert_eq!((replayed.all.count, replayed.without_tier, replayed.due), (4, 1, 8));
        assert!((replayed.tiers.ram.share.requests - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!(replayed.tiers.disk.last_byte.p99, Duration::from_millis(30));
        assert_eq!(replayed.tiers.disk.first_byte.median, Duration::from_millis(20));
        let Replayed { statuses, wrong, failed, unsent, late, latest, .. } = replayed;
        assert_eq!((statuses, wrong, failed, unsent), (1, 1, 1, 1));
        assert_eq!(replayed.unanswered(), 4);
        assert_eq!((late, latest), (6, Duration::from_millis(40)), "5 ms for each second; 10 ms are not late");
        assert!((replayed.due_per_second - 8.0 / 7.0).abs() < 1e-9);
    }

    #[test]
    fn no_records_have_no_figures() {
        let replayed = Replayed::of(&[]);
        assert_eq!((replayed.due, replayed.all.count, replayed.all.last_byte), (0, 0, Latency::default()));
    }
}
