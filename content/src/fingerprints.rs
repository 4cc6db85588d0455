//! [`Fingerprints`]: a set of things that were met, in a few bytes for each.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, Hash, RandomState};

/// A set of 128-bit fingerprints: for walks that meet millions of CIDs or names and have to know them again. They are
/// keyed at random, so nobody can make two things that have the same; by chance, one set in some 10^25 of four million
/// holds such a pair. Each takes 17 to 40 bytes.
pub(crate) struct Fingerprints {
    keys: [RandomState; 2],
    marks: HashSet<u128>,
}

impl Fingerprints {
    pub(crate) fn new() -> Self {
        Self { keys: [RandomState::new(), RandomState::new()], marks: HashSet::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.marks.len()
    }

    pub(crate) fn contains(&self, thing: impl Hash) -> bool {
        !self.marks.is_empty() && self.marks.contains(&self.mark(thing))
    }

    /// Remembers something; `false` if it was known.
    pub(crate) fn insert(&mut self, thing: impl Hash) -> bool {
        self.marks.insert(self.mark(thing))
    }

    fn mark(&self, thing: impl Hash) -> u128 {
        let [high, low] = self.keys.each_ref().map(|key| key.hash_one(&thing));
        u128::from(high) << 64 | u128::from(low)
    }
}
