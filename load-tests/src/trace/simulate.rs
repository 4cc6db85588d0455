//! Caches of a given size, simulated over a trace: what a gateway's hit share is measured against.
//!
//! Whole objects are held, as nginx holds whole answers. Goals: least recently used, exactly; TinyLFU's admission as moka does
//! it (a newcomer must be asked for more often than all that would make room for it together), with exact counts where it has
//! a sketch. Non-goals: the overhead of entries; answers that take time, during which others ask for the same.

use super::tier::Tier;
use super::workload::Trace;
use std::collections::{BTreeMap, HashMap};

/// Who may stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    Lru,
    TinyLfu,
}

/// A tier's part in some answers, as shares of all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Share {
    pub requests: f64,
    pub bytes: f64,
}

/// Whether the cache had what was asked for, for each request of a trace. It begins empty and holds `capacity_bytes`.
pub fn hits(trace: &Trace, policy: Policy, capacity_bytes: u64) -> Vec<bool> {
    let mut cache = Cache::new(policy, capacity_bytes);
    trace.requests.iter().map(|request| cache.ask(request.object, trace.object_of(request).bytes)).collect()
}

/// What the disk holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// What is pinned: the paper's node store.
    Pins,
    /// That, and all that was fetched before.
    PinsAndFetched,
}

/// What each tier would answer of the requests from index `from` on, in [`Tier::ALL`]'s order: a hit comes from memory, else
/// it is on disk, else the network has it.
pub fn shares(trace: &Trace, hits: &[bool], store: Store, from: usize) -> [Share; 3] {
    let mut on_disk: Vec<bool> = trace.objects.iter().map(|object| object.pinned).collect();
    let mut counts = Counts::default();
    for (index, (request, hit)) in trace.requests.iter().zip(hits).enumerate() {
        let held = &mut on_disk[request.object as usize];
        let tier = match (hit, *held) {
            (true, _) => Tier::Ram,
            (false, true) => Tier::Disk,
            (false, false) => Tier::Network,
        };
        *held |= store == Store::PinsAndFetched;
        if index >= from {
            counts.add(tier, trace.object_of(request).bytes);
        }
    }
    counts.shares()
}

/// Requests and bytes of each tier.
#[derive(Debug, Default)]
pub struct Counts {
    of: [(u64, u64); 3],
}

impl Counts {
    pub fn add(&mut self, tier: Tier, bytes: u64) {
        let (requests, sum) = &mut self.of[tier as usize];
        *requests += 1;
        *sum += bytes;
    }

    /// As shares of all; nothing of nothing.
    pub fn shares(&self) -> [Share; 3] {
        let (all, sum) = self.of.iter().fold((0, 0), |(all, sum), (requests, bytes)| (all + requests, sum + bytes));
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        self.of.map(|(requests, bytes)| Share { requests: share(requests, all), bytes: share(bytes, sum) })
    }
}

/// Objects that are held, by when they were last asked for.
struct Cache {
    capacity: u64,
    used: u64,
    clock: u64,
    by_age: BTreeMap<u64, u32>,
    held: HashMap<u32, Held>,
    popularity: Option<Counters>,
}

struct Held {
    asked_at: u64,
    bytes: u64,
}

impl Cache {
    fn new(policy: Policy, capacity: u64) -> Self {
        let popularity = (policy == Policy::TinyLfu).then(Counters::default);
        Self { capacity, used: 0, clock: 0, by_age: BTreeMap::new(), held: HashMap::new(), popularity }
    }

    /// Whether it is held. If not, it is offered to the cache.
    fn ask(&mut self, object: u32, bytes: u64) -> bool {
        self.clock += 1;
        if let Some(counters) = &mut self.popularity {
            counters.count(object, self.held.len());
        }
        if let Some(held) = self.held.get_mut(&object) {
            self.by_age.remove(&held.asked_at);
            held.asked_at = self.clock;
            self.by_age.insert(self.clock, object);
            return true;
        }
        if let Some(victims) = self.room_for(object, bytes) {
            victims.into_iter().for_each(|age| self.evict(age));
            self.used += bytes;
            self.by_age.insert(self.clock, object);
            self.held.insert(object, Held { asked_at: self.clock, bytes });
        }
        false
    }

    /// The ages of those that go for it, or `None` if it does not come in.
    fn room_for(&self, object: u32, bytes: u64) -> Option<Vec<u64>> {
        let mut missing = (bytes <= self.capacity).then(|| (self.used + bytes).saturating_sub(self.capacity))?;
        let (mut victims, mut their_requests) = (Vec::new(), 0);
        for (age, victim) in &self.by_age {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(self.held.get(victim)?.bytes);
            their_requests += self.popularity.as_ref().map_or(0, |counters| counters.of(*victim));
            victims.push(*age);
        }
        let wins = |counters: &Counters| victims.is_empty() || counters.of(object) > their_requests;
        self.popularity.as_ref().is_none_or(wins).then_some(victims)
    }

    fn evict(&mut self, age: u64) {
        let victim = self.by_age.remove(&age).and_then(|object| self.held.remove(&object));
        self.used -= victim.map_or(0, |held| held.bytes);
    }
}

/// How often objects were asked for lately: counts up to 15 that are halved now and then.
#[derive(Default)]
struct Counters {
    of: HashMap<u32, u8>,
    counted: usize,
}

impl Counters {
    const MOST: u8 = 15;
    /// Counts are halved after this many requests for each entry of the cache.
    const SAMPLE: usize = 10;
    /// A cache that fills is not made to forget all the time.
    const SAMPLE_MIN: usize = 1_000;

    fn count(&mut self, object: u32, entries: usize) {
        let count = self.of.entry(object).or_default();
        *count = (*count + 1).min(Self::MOST);
        self.counted += 1;
        if self.counted >= (Self::SAMPLE * entries).max(Self::SAMPLE_MIN) {
            self.of.retain(|_, count| {
                *count /= 2;
                *count > 0
            });
            self.counted /= 2;
        }
    }

    fn of(&self, object: u32) -> u32 {
        self.of.get(&object).copied().map_or(0, u32::from)
    }
}

#[cfg(test)]
mod tests {
    use super::super::paper;
    use super::super::workload::Draw;
    use super::*;
    use proptest::prelude::*;

    fn asked(policy: Policy, capacity: u64, asks: &[(u32, u64)]) -> Vec<bool> {
        let mut cache = Cache::new(policy, capacity);
        asks.iter().map(|(object, bytes)| cache.ask(*object, *bytes)).collect()
    }

    #[test]
    fn the_least_recently_used_goes_and_what_is_too_large_does_not_come() {
        // Room for two of 10: 1 is used again, so that 3 takes the place of 2.
        let asks = [(1, 10), (2, 10), (1, 10), (3, 10), (1, 10), (2, 10), (4, 21), (2, 10), (1, 10)];
        let hits = [false, false, true, false, true, false, false, true, true];
        assert_eq!(asked(Policy::Lru, 20, &asks), hits);
        // A large one takes the place of two.
        let hits = asked(Policy::Lru, 20, &[(1, 10), (2, 10), (3, 15), (1, 10), (2, 10)]);
        assert_eq!(hits, [false; 5]);
    }

    #[test]
    fn tiny_lfu_admits_only_what_is_asked_for_more_often_than_its_victims() {
        let asks = [(1, 10), (1, 10), (2, 10), (2, 10), (1, 10), (2, 10)];
        assert_eq!(asked(Policy::TinyLfu, 10, &asks), [false, true, false, false, true, false]);
        // With the third request for it, 2 is ahead of 1's two.
        let asks = [(1, 10), (1, 10), (2, 10), (2, 10), (2, 10), (2, 10)];
        assert_eq!(asked(Policy::TinyLfu, 10, &asks), [false, true, false, false, false, true]);
    }

    /// Every request for something else, once, flushes an LRU and leaves TinyLFU alone.
    #[test]
    fn a_scan_flushes_only_the_lru() {
        let popular = (0..20).flat_map(|_| 0..10).map(|object| (object, 1));
        let asks: Vec<_> = popular.chain((100..200).map(|object| (object, 1))).chain((0..10).map(|o| (o, 1))).collect();
        let after_scan = |policy| asked(policy, 10, &asks)[300..].iter().filter(|hit| **hit).count();
        assert_eq!((after_scan(Policy::Lru), after_scan(Policy::TinyLfu)), (0, 10));
    }

    proptest! {
        /// Against the definition: an LRU hits if what was asked for since, itself included, fits.
        #[test]
        fn the_lru_is_exact_for_objects_of_one_size(objects in prop::collection::vec(0_u32..30, 1..300), room in 1_usize..20) {
            let asks: Vec<(u32, u64)> = objects.iter().map(|object| (*object, 5)).collect();
            let hits = asked(Policy::Lru, room as u64 * 5, &asks);
            for (index, object) in objects.iter().enumerate() {
                let last = objects[..index].iter().rposition(|earlier| earlier == object);
                let distinct = last.map(|last| objects[last..index].iter().collect::<std::collections::HashSet<_>>().len());
                prop_assert_eq!(hits[index], distinct.is_some_and(|distinct| distinct <= room), "at {}", index);
            }
        }

        #[test]
        fn a_cache_never_holds_more_than_it_may(objects in prop::collection::vec(0_u32..150, 1..300), lru: bool) {
            let mut cache = Cache::new(if lru { Policy::Lru } else { Policy::TinyLfu }, 100);
            for object in objects {
                cache.ask(object, u64::from(object) + 1);
                prop_assert!(cache.used <= 100);
                prop_assert_eq!(cache.used, cache.held.values().map(|held| held.bytes).sum::<u64>());
                prop_assert_eq!(cache.by_age.len(), cache.held.len());
            }
        }
    }

    /// The fit of popularity and pins, checked where it matters: with the cache that it was fitted with, a day's answers
    /// come from where the paper's came from.
    #[test]
    fn a_cache_for_the_fitted_share_of_a_day_leads_to_table_5() {
        for (seed, cids) in [(1, 10_000), (2, 30_000)] {
            let draw = Draw { seed, cids, hours: 0.0..24.0, scale_max: 1.0, bytes_max: u64::MAX };
            let trace = draw.draw().expect("it is a day");
            let capacity = (trace.day_bytes as f64 * super::super::CACHE_SHARE) as u64;
            let hits = hits(&trace, Policy::Lru, capacity);
            let as_printed = shares(&trace, &hits, Store::Pins, 0);
            for (share, column) in as_printed.iter().zip(paper::TABLE_5) {
                assert!((share.requests - column.requests).abs() < 0.02, "{}: {share:?}", column.name);
                assert!((share.bytes - column.bytes).abs() < 0.04, "{}: {share:?}", column.name);
            }
            let kept = shares(&trace, &hits, Store::PinsAndFetched, 0);
            assert_eq!(kept[0], as_printed[0]);
            // A quarter of the CIDs, once each, of 25.9 requests for each CID.
            assert!((kept[2].requests - 0.256 / 25.9).abs() < 0.001, "{kept:?}");
        }
    }
}
