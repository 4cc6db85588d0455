//! [`invalidate_where`]: removes the selected entries of a cache, or only counts them.
//!
//! Goals: all caches above the block store are purged and counted by the same code, so that a dry run reports the real
//! counts.
//!
//! Non-goals: the blocks, which the store counts ([`cache::BlockStore::evictable`]).

use moka::sync::Cache;
use std::hash::Hash;

/// Whether a purge removes entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeMode {
    /// Remove and count them.
    Remove,
    /// Only count them.
    DryRun,
}

/// Invalidates the entries that `concerns` selects, or counts them; returns their number. Scans the whole cache.
pub fn invalidate_where<K, V>(memory: &Cache<K, V>, concerns: impl Fn(&K, &V) -> bool, mode: PurgeMode) -> u64
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let concerned = memory.iter().filter(|(key, value)| concerns(key, value));
    let met = |(key, _)| {
        let key: std::sync::Arc<K> = key;
        if mode == PurgeMode::Remove {
            memory.invalidate(&*key);
        }
    };
    concerned.map(met).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_counts_what_a_purge_removes() {
        let memory = Cache::new(100);
        (0..10_u32).for_each(|number| memory.insert(number, ()));
        let is_even = |number: &u32, (): &()| number.is_multiple_of(2);
        assert_eq!(invalidate_where(&memory, is_even, PurgeMode::DryRun), 5);
        assert_eq!(memory.iter().count(), 10);
        assert_eq!(invalidate_where(&memory, is_even, PurgeMode::Remove), 5);
        assert_eq!(memory.iter().count(), 5);
    }
}
