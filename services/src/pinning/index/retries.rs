//! [`Retries`]: when each of many roots is tried again. Pure, with the time passed in.
//!
//! Goals: a root that fails again and again is tried ever more seldom; however many wait, few are tried at a time; the
//! first that succeeds, as after an outage, has others tried without waiting for the end of their back-off.

use crate::pinning::clock::whole_millis;
use content::Cid;
use p2p_bridge::back_off;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The first back-off, which doubles with each further one.
const WAIT_FIRST: Duration = Duration::from_secs(1);

/// Roots that are to be tried again, or are being tried.
#[derive(Debug, Default)]
pub struct Retries {
    roots: BTreeMap<Cid, Retry>,
    /// Those that wait, by the time at which they are due.
    waiting: BTreeSet<(u64, Cid)>,
}

#[derive(Debug, Default)]
struct Retry {
    /// How often it was due and taken.
    tries: u32,
    /// `None` while it is being tried.
    due_ms: Option<u64>,
}

impl Retries {
    /// Adds a root, which is due now; or, if it was being tried, after its back-off of at most `wait_max`.
    pub fn insert(&mut self, cid: Cid, now_ms: u64, wait_max: Duration) {
        let due_ms = match self.roots.get(&cid) {
            None => now_ms,
            Some(Retry { due_ms: None, tries }) => now_ms.saturating_add(wait_ms(*tries, wait_max)),
            Some(_) => return,
        };
        self.roots.entry(cid).or_default().due_ms = Some(due_ms);
        self.waiting.insert((due_ms, cid));
    }

    /// A root is being tried.
    pub fn begin(&mut self, cid: &Cid) {
        if let Some(due_ms) = self.roots.entry(*cid).or_default().due_ms.take() {
            self.waiting.remove(&(due_ms, *cid));
        }
    }

    /// A root is not to be tried any more.
    pub fn remove(&mut self, cid: &Cid) {
        if let Some(Retry { due_ms: Some(due_ms), .. }) = self.roots.remove(cid) {
            self.waiting.remove(&(due_ms, *cid));
        }
    }

    /// Takes roots that are due, those that have waited longest first: at most so many that no more than `most` are
    /// being tried. If they cannot be begun, they are due again after their back-off.
    pub fn take_due(&mut self, now_ms: u64, wait_max: Duration, most: usize) -> Vec<Cid> {
        let room = most.saturating_sub(self.roots.len() - self.waiting.len());
        let due = self.waiting.iter().take_while(|(due_ms, _)| *due_ms <= now_ms).take(room);
        let due: Vec<Cid> = due.map(|(_, cid)| *cid).collect();
        for cid in &due {
            let Some(retry) = self.roots.get_mut(cid) else { continue };
            retry.tries = retry.tries.saturating_add(1);
            let next_ms = now_ms.saturating_add(wait_ms(retry.tries, wait_max));
            self.set_due(*cid, next_ms);
        }
        due
    }

    /// One has succeeded, and others may: up to `most` are due now, and have another first back-off.
    pub fn wake(&mut self, now_ms: u64, most: usize) {
        let waiting = self.waiting.iter().take(most).filter(|(due_ms, _)| *due_ms > now_ms);
        for cid in waiting.map(|(_, cid)| *cid).collect::<Vec<_>>() {
            if let Some(retry) = self.roots.get_mut(&cid) {
                retry.tries = 0;
            }
            self.set_due(cid, now_ms);
        }
    }

    /// Whether there are none, neither waiting nor being tried.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }

    fn set_due(&mut self, cid: Cid, due_ms: u64) {
        let Some(retry) = self.roots.get_mut(&cid) else { return };
        if let Some(former_ms) = retry.due_ms.replace(due_ms) {
            self.waiting.remove(&(former_ms, cid));
        }
        self.waiting.insert((due_ms, cid));
    }
}

/// The back-off after so many tries, in milliseconds.
fn wait_ms(tries: u32, wait_max: Duration) -> u64 {
    whole_millis(back_off::exponential(WAIT_FIRST, wait_max, tries.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::{codec, hashes};

    const MAX: Duration = Duration::from_secs(30);

    fn root(number: u64) -> Cid {
        let hash = hashes::digest(hashes::SHA2_256, 32, &number.to_be_bytes()).expect("a digest");
        Cid::new_v1(codec::RAW, hash)
    }

    #[test]
    fn the_back_off_of_a_root_that_fails_doubles_to_its_maximum() {
        let (mut retries, mut now_ms, mut waits) = (Retries::default(), 1_000, Vec::new());
        retries.insert(root(1), now_ms, MAX);
        for _ in 0..8 {
            let begun_ms = now_ms;
            while retries.take_due(now_ms, MAX, 256).is_empty() {
                now_ms += 500;
            }
            waits.push(now_ms - begun_ms);
            retries.begin(&root(1));
            assert_eq!(retries.take_due(now_ms + 3_600_000, MAX, 256), [], "it is being tried");
            retries.insert(root(1), now_ms, MAX);
        }
        assert_eq!(waits, [0, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        retries.remove(&root(1));
        assert!(retries.is_empty());
        retries.insert(root(1), now_ms, MAX);
        assert_eq!(retries.take_due(now_ms, MAX, 256), [root(1)], "as a new one");
    }

    #[test]
    fn few_are_tried_at_a_time_and_all_have_their_turn() {
        let (mut retries, roots) = (Retries::default(), 1_000_u64);
        (0..roots).for_each(|number| retries.insert(root(number), 0, MAX));
        let mut tried = BTreeSet::new();
        for second in 0..4 {
            let due = retries.take_due(second * 1_000, MAX, 256);
            assert!(due.len() <= 256, "{}", due.len());
            // Half of them fail at once. The others cannot be begun, because they are in use.
            for cid in due.iter().step_by(2) {
                retries.begin(cid);
                retries.insert(*cid, second * 1_000, MAX);
            }
            tried.extend(due);
        }
        assert_eq!(tried.len() as u64, roots, "none waits for those that fail again and again");
        // Attempts that do not end take the place of others.
        tried.iter().take(200).for_each(|cid| retries.begin(cid));
        assert_eq!(retries.take_due(60_000, MAX, 256).len(), 56);
    }

    #[test]
    fn a_success_has_others_tried_without_their_back_off() {
        let mut retries = Retries::default();
        (0..600).for_each(|number| retries.insert(root(number), 0, MAX));
        let mut now_ms = 0;
        for _ in 0..40 {
            retries.take_due(now_ms, MAX, usize::MAX);
            now_ms += 1_000;
        }
        retries.take_due(now_ms, MAX, usize::MAX);
        assert_eq!(retries.take_due(now_ms, MAX, 256), [], "all of them wait");
        for expected in [256, 256, 88] {
            retries.wake(now_ms, 256);
            retries.wake(now_ms, 256);
            let due = retries.take_due(now_ms, MAX, 256);
            assert_eq!(due.len(), expected);
            due.iter().for_each(|cid| retries.remove(cid));
        }
        assert!(retries.is_empty());
    }
}
