//! [`Fingerprints`]: a set of things that were met, in a few bytes for each; [`Marker`]: what stands for a thing there.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, Hash, RandomState};

/// Makes 128-bit fingerprints that are keyed at random: nobody can make two things that have the same.
#[derive(Debug, Default)]
pub struct Marker([RandomState; 2]);

impl Marker {
    /// What stands for a thing. Another marker says something else.
    pub fn mark(&self, thing: impl Hash) -> u128 {
        let [high, low] = self.0.each_ref().map(|key| key.hash_one(&thing));
        u128::from(high) << 64 | u128::from(low)
    }
}

/// A set of 128-bit fingerprints: for walks that meet millions of CIDs or names and have to know them again. By chance,
/// one set in some 10^25 of four million holds a pair of things with the same. Each takes 17 to 40 bytes.
#[derive(Debug, Default)]
pub struct Fingerprints {
    marker: Marker,
    marks: HashSet<u128>,
}

impl Fingerprints {
    /// How many things were met.
    pub fn len(&self) -> usize {
        self.marks.len()
    }

    /// What the set takes, in bytes. While it grows, it takes three times as much.
    pub fn bytes(&self) -> usize {
        // The table has a power of two of slots, of which seven eighths are used, and a byte more for each.
        match self.marks.capacity() {
            0 => 0,
            capacity => (capacity + capacity / 8).next_power_of_two() * (size_of::<u128>() + 1),
        }
    }

    /// Whether the set grows with the next thing that is new.
    pub fn is_full(&self) -> bool {
        self.marks.len() == self.marks.capacity()
    }

    /// Whether nothing was.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Whether a thing was met.
    pub fn contains(&self, thing: impl Hash) -> bool {
        !self.is_empty() && self.marks.contains(&self.marker.mark(thing))
    }

    /// Remembers something; `false` if it was known.
    pub fn insert(&mut self, thing: impl Hash) -> bool {
        self.marks.insert(self.marker.mark(thing))
    }
}
