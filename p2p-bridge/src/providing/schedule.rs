//! When each part of the key space is announced again.
//!
//! The key space is cut into [`SLOTS`] parts of the same size, and every part has its moment in the interval, in the order
//! of the ring. The moments follow from the wall clock alone, so they are the same after a restart; what is kept over it is
//! when each part is due next. A part that was never announced, or that came due while the node was down, is due at once,
//! and so the first cycle takes as long as the announcing does, and every later one the whole interval.
//!
//! A state machine that is handed the clock: seconds since the Unix epoch.

use super::keyspace::{Prefix, SLOTS};
use std::path::Path;
use std::{fs, io};

/// What a file begins with: the name of the format and its version.
const MAGIC: &[u8; 8] = b"cwprov01";
/// Stands in a file for a part that was not announced.
const UNANNOUNCED: u64 = 0;
/// Parts that are announced with their neighbours are so by at most this share of the interval too early.
const EARLY_MAX: f64 = 0.125;

/// What is due when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    interval: u64,
    /// When each slot is due next.
    due: Vec<u64>,
}

impl Schedule {
    /// A schedule by which everything is due since `now`. The interval is in seconds.
    pub fn new(interval: u64, now: u64) -> Self {
        Self { interval: interval.max(60), due: vec![now; usize::from(SLOTS)] }
    }

    /// The schedule of a file. A missing or damaged one is a new schedule: everything is announced once more.
    pub fn load(path: &Path, interval: u64, now: u64) -> Self {
        match fs::read(path).and_then(|bytes| Self::decode(&bytes, interval, now)) {
            Ok(schedule) => schedule,
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "everything is to be announced");
                Self::new(interval, now)
            }
        }
    }

    fn decode(bytes: &[u8], interval: u64, now: u64) -> io::Result<Self> {
        let damaged = || io::Error::from(io::ErrorKind::InvalidData);
        let times =
            bytes.strip_prefix(MAGIC).filter(|rest| rest.len() == 8 * usize::from(SLOTS)).ok_or_else(damaged)?;
        let mut new = Self::new(interval, now);
        for (due, time) in new.due.iter_mut().zip(times.chunks_exact(8)) {
            let kept = u64::from_be_bytes(time.try_into().map_err(|_| damaged())?);
            // A shorter interval counts at once. What was due while we were down is due now: the records that it stands
            // for may be gone, but nobody was behind with anything.
            *due = match kept {
                UNANNOUNCED => now,
                kept => kept.clamp(now.saturating_sub(new.interval), now + new.interval),
            };
        }
        Ok(new)
    }

    /// What to write, with the slots that hold keys which have not been announced yet as due.
    pub fn encode(&self, unannounced: impl IntoIterator<Item = u16>) -> Vec<u8> {
        let mut due = self.due.clone();
        for slot in unannounced {
            due[usize::from(slot % SLOTS)] = UNANNOUNCED;
        }
        let mut bytes = MAGIC.to_vec();
        due.iter().for_each(|time| bytes.extend_from_slice(&time.to_be_bytes()));
        bytes
    }

    /// The first slot that is due and that `free` lets through, searched for round the ring from `from` on.
    pub fn next(&self, from: u16, now: u64, free: impl Fn(u16) -> bool) -> Option<u16> {
        (0..SLOTS).map(|step| (from + step) % SLOTS).find(|slot| self.is_due(*slot, now) && free(*slot))
    }

    /// Whether a slot is due.
    pub fn is_due(&self, slot: u16, now: u64) -> bool {
        self.due[usize::from(slot % SLOTS)] <= now
    }

    /// Whether a slot may be announced along with others of a region: its own turn comes while the clock crosses it.
    pub fn may_join(&self, slot: u16, region: &Prefix, now: u64) -> bool {
        self.is_due(slot, now + self.early(region))
    }

    /// A slot was announced, with the others of a region.
    pub fn done(&mut self, slot: u16, region: &Prefix, now: u64) {
        let next = self.moment_after(slot, now + self.early(region));
        self.due[usize::from(slot % SLOTS)] = next;
    }

    /// A slot holds something new.
    pub fn hurry(&mut self, slot: u16, now: u64) {
        let due = &mut self.due[usize::from(slot % SLOTS)];
        *due = (*due).min(now);
    }

    /// How many slots are due.
    pub fn count_due(&self, now: u64) -> usize {
        self.due.iter().filter(|due| **due <= now).count()
    }

    /// For how long the longest waiting slot has been due, in seconds.
    pub fn lag(&self, now: u64) -> u64 {
        self.due.iter().map(|due| now.saturating_sub(*due)).max().unwrap_or_default()
    }

    fn early(&self, region: &Prefix) -> u64 {
        (region.share().min(EARLY_MAX) * self.interval as f64) as u64
    }

    /// The first moment of a slot after a time.
    fn moment_after(&self, slot: u16, time: u64) -> u64 {
        let phase = self.interval * u64::from(slot) / u64::from(SLOTS);
        let cycle = time - time % self.interval;
        let moment = cycle + phase;
        if moment > time { moment } else { moment + self.interval }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INTERVAL: u64 = 22 * 3600;
    const NOW: u64 = 1_800_000_000;

    proptest! {
        #[test]
        fn a_slot_comes_again_within_an_interval_and_a_little(slot in 0..SLOTS, at in NOW..NOW + 3 * INTERVAL, bits in 0..=12_u8) {
            let region = Prefix::of(&super::super::keyspace::Position::of(b"key"), bits);
            let mut schedule = Schedule::new(INTERVAL, NOW);
            schedule.done(slot, &region, at);
            let due = schedule.due[usize::from(slot)];
            prop_assert!(due > at && due <= at + INTERVAL + INTERVAL / 8 + 1);
            prop_assert!(!schedule.is_due(slot, at) && schedule.is_due(slot, due));
            schedule.done(slot, &Prefix::of_slot(slot), due);
            prop_assert_eq!(schedule.due[usize::from(slot)], due + INTERVAL, "from then on by the clock");
        }
    }

    #[test]
    fn all_is_due_at_first_and_spread_evenly_afterwards() {
        let mut schedule = Schedule::new(INTERVAL, NOW);
        assert_eq!(schedule.count_due(NOW), usize::from(SLOTS));
        assert_eq!(schedule.next(7, NOW, |_| true), Some(7));
        assert_eq!(schedule.next(7, NOW, |slot| slot == 3), Some(3), "round the ring");
        for slot in 0..SLOTS {
            schedule.done(slot, &Prefix::of_slot(slot), NOW + 60);
        }
        assert_eq!(schedule.next(0, NOW + 60, |_| true), None);
        // Every eleventh part of the interval brings an eleventh of the slots.
        let mut before = 0;
        for part in 1..=11 {
            let due = schedule.count_due(NOW + 60 + part * INTERVAL / 11);
            let new = due - before;
            assert!((350..=395).contains(&new), "{new} slots in part {part}");
            before = due;
        }
    }

    #[test]
    fn a_restart_goes_on_where_it_stopped() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("schedule");
        let mut schedule = Schedule::new(INTERVAL, NOW);
        for slot in 0..2_000 {
            schedule.done(slot, &Prefix::of_slot(slot), NOW + 60);
        }
        fs::write(&path, schedule.encode([5])).expect("writes");
        let resumed = Schedule::load(&path, INTERVAL, NOW + 61);
        assert_eq!(resumed.count_due(NOW + 61), usize::from(SLOTS) - 2_000 + 1, "the rest, and what was new");
        assert!(resumed.is_due(5, NOW + 61) && !resumed.is_due(6, NOW + 61));
        assert_eq!(Schedule::load(&path, 3600, NOW + 36_000).lag(NOW + 36_000), 3600, "no more than one interval");
        fs::write(&path, b"cwprov01").expect("damages");
        assert_eq!(Schedule::load(&path, INTERVAL, NOW), Schedule::new(INTERVAL, NOW));
    }

    #[test]
    fn what_is_behind_shows_as_lag() {
        let mut schedule = Schedule::new(INTERVAL, NOW);
        assert_eq!(schedule.lag(NOW + 50), 50);
        (0..SLOTS).for_each(|slot| schedule.done(slot, &Prefix::ALL, NOW + 50));
        assert_eq!(schedule.lag(NOW + 50), 0);
        schedule.hurry(9, NOW + 60);
        assert_eq!((schedule.lag(NOW + 61), schedule.next(0, NOW + 61, |_| true)), (1, Some(9)));
    }
}
