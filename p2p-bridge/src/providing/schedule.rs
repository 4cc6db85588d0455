//! When each slot of the key space is announced again.
//!
//! The key space is divided into [`SLOTS`] slots of the same size, and every slot has its time within the interval, in
//! the order of the key space. The times follow from the wall clock alone, so they are the same after a restart; only
//! the next due time of each slot is saved. A slot that was never announced, or became due while the node was down, is
//! due at once. So the first cycle takes as long as the announcements need, and every later one the whole interval.
//!
//! A state machine that is passed the clock: seconds since the Unix epoch.

use super::keyspace::{Prefix, SLOTS};
use std::path::Path;
use std::{fs, io};

/// Magic bytes of the file: format and version.
const MAGIC: &[u8; 8] = b"cwprov01";
/// The time in the file for a slot that was not announced.
const UNANNOUNCED: u64 = 0;
/// Slots that are announced together with their region are early by at most this fraction of the interval.
const EARLY_MAX: f64 = 0.125;

/// When each slot is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    interval: u64,
    /// The next due time of each slot.
    due: Vec<u64>,
}

impl Schedule {
    /// A schedule in which all slots are due since `now`. The interval is in seconds.
    pub fn new(interval: u64, now: u64) -> Self {
        Self { interval: interval.max(60), due: vec![now; usize::from(SLOTS)] }
    }

    /// Loads the schedule from a file. If it is missing or corrupt, all slots are due.
    pub fn load(path: &Path, interval: u64, now: u64) -> Self {
        match fs::read(path).and_then(|bytes| Self::decode(&bytes, interval, now)) {
            Ok(schedule) => schedule,
            Err(error) => {
                let path = path.display();
                tracing::debug!(%path, %error, "could not load the schedule: all keys are announced again");
                Self::new(interval, now)
            }
        }
    }

    fn decode(bytes: &[u8], interval: u64, now: u64) -> io::Result<Self> {
        let corrupt = || io::Error::from(io::ErrorKind::InvalidData);
        let times =
            bytes.strip_prefix(MAGIC).filter(|rest| rest.len() == 8 * usize::from(SLOTS)).ok_or_else(corrupt)?;
        let mut new = Self::new(interval, now);
        for (due, time) in new.due.iter_mut().zip(times.chunks_exact(8)) {
            let kept = u64::from_be_bytes(time.try_into().map_err(|_| corrupt())?);
            // A shorter interval applies at once. Slots that became due while the node was down are due now: their
            // records may have expired, but the lag starts at zero.
            *due = match kept {
                UNANNOUNCED => now,
                kept => kept.clamp(now.saturating_sub(new.interval), now + new.interval),
            };
        }
        Ok(new)
    }

    /// Serialises the schedule. The slots of `unannounced` keys are saved as due.
    pub fn encode(&self, unannounced: impl IntoIterator<Item = u16>) -> Vec<u8> {
        let mut due = self.due.clone();
        for slot in unannounced {
            due[usize::from(slot % SLOTS)] = UNANNOUNCED;
        }
        let mut bytes = MAGIC.to_vec();
        due.iter().for_each(|time| bytes.extend_from_slice(&time.to_be_bytes()));
        bytes
    }

    /// The first due slot that `free` accepts, in cyclic order starting at `from`.
    pub fn next(&self, from: u16, now: u64, free: impl Fn(u16) -> bool) -> Option<u16> {
        (0..SLOTS).map(|step| (from + step) % SLOTS).find(|slot| self.is_due(*slot, now) && free(*slot))
    }

    /// Whether a slot is due.
    pub fn is_due(&self, slot: u16, now: u64) -> bool {
        self.due[usize::from(slot % SLOTS)] <= now
    }

    /// Whether a slot may be announced along with its region: it becomes due while the clock crosses the region.
    pub fn may_join(&self, slot: u16, region: &Prefix, now: u64) -> bool {
        self.is_due(slot, now + self.early_max(region))
    }

    /// Records that a slot was announced along with its region.
    pub fn done(&mut self, slot: u16, region: &Prefix, now: u64) {
        let next = self.time_after(slot, now + self.early_max(region));
        self.due[usize::from(slot % SLOTS)] = next;
    }

    /// Makes a slot due, because it has a new key.
    pub fn make_due(&mut self, slot: u16, now: u64) {
        let due = &mut self.due[usize::from(slot % SLOTS)];
        *due = (*due).min(now);
    }

    /// The number of due slots.
    pub fn count_due(&self, now: u64) -> usize {
        self.due.iter().filter(|due| **due <= now).count()
    }

    /// How long the most overdue slot has been due, in seconds.
    pub fn lag(&self, now: u64) -> u64 {
        self.due.iter().map(|due| now.saturating_sub(*due)).max().unwrap_or_default()
    }

    fn early_max(&self, region: &Prefix) -> u64 {
        (region.share().min(EARLY_MAX) * self.interval as f64) as u64
    }

    /// The first time of a slot after `time`.
    fn time_after(&self, slot: u16, time: u64) -> u64 {
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
        fn a_slot_is_due_again_after_about_one_interval(
            slot in 0..SLOTS, at in NOW..NOW + 3 * INTERVAL, bits in 0..=12_u8,
        ) {
            let region = Prefix::of(&super::super::keyspace::Position::of(b"key"), bits);
            let mut schedule = Schedule::new(INTERVAL, NOW);
            schedule.done(slot, &region, at);
            let due = schedule.due[usize::from(slot)];
            prop_assert!(due > at && due <= at + INTERVAL + INTERVAL / 8 + 1);
            prop_assert!(!schedule.is_due(slot, at) && schedule.is_due(slot, due));
            schedule.done(slot, &Prefix::of_slot(slot), due);
            prop_assert_eq!(schedule.due[usize::from(slot)], due + INTERVAL, "after that by the clock");
        }
    }

    #[test]
    fn all_slots_are_due_at_first_and_evenly_distributed_afterwards() {
        let mut schedule = Schedule::new(INTERVAL, NOW);
        assert_eq!(schedule.count_due(NOW), usize::from(SLOTS));
        assert_eq!(schedule.next(7, NOW, |_| true), Some(7));
        assert_eq!(schedule.next(7, NOW, |slot| slot == 3), Some(3), "in cyclic order");
        for slot in 0..SLOTS {
            schedule.done(slot, &Prefix::of_slot(slot), NOW + 60);
        }
        assert_eq!(schedule.next(0, NOW + 60, |_| true), None);
        // Each eleventh of the interval makes an eleventh of the slots due.
        let mut before = 0;
        for part in 1..=11 {
            let due = schedule.count_due(NOW + 60 + part * INTERVAL / 11);
            let new = due - before;
            assert!((350..=395).contains(&new), "{new} slots in part {part}");
            before = due;
        }
    }

    #[test]
    fn a_restart_continues_the_schedule() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("schedule");
        let mut schedule = Schedule::new(INTERVAL, NOW);
        for slot in 0..2_000 {
            schedule.done(slot, &Prefix::of_slot(slot), NOW + 60);
        }
        fs::write(&path, schedule.encode([5])).expect("writes");
        let resumed = Schedule::load(&path, INTERVAL, NOW + 61);
        assert_eq!(
            resumed.count_due(NOW + 61),
            usize::from(SLOTS) - 2_000 + 1,
            "the remaining slots, and the one with a new key"
        );
        assert!(resumed.is_due(5, NOW + 61) && !resumed.is_due(6, NOW + 61));
        assert_eq!(Schedule::load(&path, 3600, NOW + 36_000).lag(NOW + 36_000), 3600, "at most one interval");
        fs::write(&path, b"cwprov01").expect("writes");
        assert_eq!(Schedule::load(&path, INTERVAL, NOW), Schedule::new(INTERVAL, NOW));
    }

    #[test]
    fn overdue_slots_cause_lag() {
        let mut schedule = Schedule::new(INTERVAL, NOW);
        assert_eq!(schedule.lag(NOW + 50), 50);
        (0..SLOTS).for_each(|slot| schedule.done(slot, &Prefix::ALL, NOW + 50));
        assert_eq!(schedule.lag(NOW + 50), 0);
        schedule.make_due(9, NOW + 60);
        assert_eq!((schedule.lag(NOW + 61), schedule.next(0, NOW + 61, |_| true)), (1, Some(9)));
    }
}
