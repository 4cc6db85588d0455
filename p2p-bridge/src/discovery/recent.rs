//! A bounded map with FIFO eviction, for state that untrusted peers cause: a flood evicts entries, and never grows the
//! map.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Instant;

/// A map that evicts the oldest entry when it is full. Inserting a key again renews its position.
#[derive(Debug)]
pub struct Recent<K, V> {
    entries: HashMap<K, (Instant, V)>,
    order: VecDeque<(Instant, K)>,
    max: usize,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    /// An empty map of at most `max` entries.
    pub fn new(max: usize) -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new(), max }
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// Inserts or replaces an entry.
    pub fn insert(&mut self, key: K, value: V, now: Instant) {
        while self.order.len() >= self.max {
            let Some((at, oldest)) = self.order.pop_front() else { break };
            if self.entries.get(&oldest).is_some_and(|(latest, _)| *latest == at) {
                self.entries.remove(&oldest);
            }
        }
        self.order.push_back((now, key));
        self.entries.insert(key, (now, value));
    }

    /// Removes an entry.
    pub fn remove(&mut self, key: &K) {
        self.entries.remove(key);
    }

    /// The number of used slots, which determines the memory.
    #[cfg(test)]
    pub fn slots(&self) -> usize {
        self.entries.len().max(self.order.len())
    }
}
