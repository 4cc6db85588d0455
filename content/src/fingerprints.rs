//! [`Fingerprints`]: a compact set of hashes; [`FingerprintHasher`]: the keyed hash function that makes them.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, Hash, RandomState};

/// Makes 128-bit fingerprints with a random key, so that attackers cannot craft two items with the same fingerprint.
#[derive(Debug, Default)]
pub struct FingerprintHasher([RandomState; 2]);

impl FingerprintHasher {
    /// The fingerprint of an item. Each marker has a key of its own.
    pub fn mark(&self, item: impl Hash) -> u128 {
        let [high, low] = self.0.each_ref().map(|key| key.hash_one(&item));
        u128::from(high) << 64 | u128::from(low)
    }
}

/// A set of 128-bit fingerprints: the visited set of traversals of millions of CIDs or names. With four million items,
/// a collision has a probability of some 10^-25. Each item takes 17 to 40 bytes.
#[derive(Debug, Default)]
pub struct Fingerprints {
    marker: FingerprintHasher,
    set: HashSet<u128>,
}

impl Fingerprints {
    /// The number of items.
    pub fn len(&self) -> usize {
        self.set.len()
    }

    /// The size of the set in memory, in bytes. While it grows, it takes three times as much.
    pub fn bytes(&self) -> usize {
        // The table has a power of two of slots, each with one control byte, and a load factor of at most 7/8.
        match self.set.capacity() {
            0 => 0,
            capacity => (capacity + capacity / 8).next_power_of_two() * (size_of::<u128>() + 1),
        }
    }

    /// Whether the next new item makes the set grow.
    pub fn is_full(&self) -> bool {
        self.set.len() == self.set.capacity()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// Whether the set contains an item.
    pub fn contains(&self, item: impl Hash) -> bool {
        !self.is_empty() && self.set.contains(&self.marker.mark(item))
    }

    /// Adds an item; `false` if the set contains it already.
    pub fn insert(&mut self, item: impl Hash) -> bool {
        self.set.insert(self.marker.mark(item))
    }
}
