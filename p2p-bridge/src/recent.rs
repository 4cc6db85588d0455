//! Bounded maps for state that untrusted peers cause: a flood evicts entries, and never grows the map.

use hashlink::LruCache;
use std::hash::RandomState;

/// A map that evicts the oldest entry when it is full. Inserting a key again renews its position, and so does
/// `LruCache::get`, but not `LruCache::peek`. The hashes are keyed, so that peers cannot construct collisions.
pub type Recent<K, V> = LruCache<K, V, RandomState>;

/// An empty map of at most `max` entries.
pub fn recent<K, V>(max: usize) -> Recent<K, V> {
    LruCache::with_hasher(max, RandomState::new())
}
