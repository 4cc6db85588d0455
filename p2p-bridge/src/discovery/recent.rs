//! A map of what happened lately, bounded in entries. What strangers cause is remembered in these: a flood makes it forget, and
//! never grow.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Instant;

/// A map that forgets the oldest entry when it is full. A later entry of the same key has a later place.
#[derive(Debug)]
pub struct Recent<K, V> {
    entries: HashMap<K, (Instant, V)>,
    order: VecDeque<(Instant, K)>,
    max: usize,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    /// An empty one, for so many entries.
    pub fn new(max: usize) -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new(), max }
    }

    /// What is known.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// Notes something as of now.
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

    /// Forgets something.
    pub fn remove(&mut self, key: &K) {
        self.entries.remove(key);
    }

    /// Places that are taken, which is what the memory is.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.entries.len().max(self.order.len())
    }
}
