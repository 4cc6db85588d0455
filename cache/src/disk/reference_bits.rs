//! [`ReferenceBits`]: which cached values were read since they were written, so that eviction gives them a second
//! chance (CLOCK).
//!
//! The most frequently read blocks are in the RAM cache and never read from here, so the RAM cache is queried too.
//!
//! Exact recency would need a write for every read. A bit for every [`GRAIN_BYTES`] of a segment costs no write and 8
//! KiB for 256 MiB; small values that share a grain are spared together. The bits are in memory only, and are lost at a
//! restart.

use content::BlockKey;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

const GRAIN_BYTES: u32 = 4096;

type IsHot = Box<dyn Fn(&BlockKey) -> bool + Send + Sync>;

/// The bits of all segments of cached values, and the predicate for blocks in the RAM cache.
#[derive(Default)]
pub(crate) struct ReferenceBits {
    segments: RwLock<HashMap<u32, Box<[AtomicU64]>>>,
    is_hot: OnceLock<IsHot>,
}

impl fmt::Debug for ReferenceBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReferenceBits").field("segments", &self.segments).finish_non_exhaustive()
    }
}

impl ReferenceBits {
    /// Starts tracking reads of a segment of at most `bytes`.
    pub(crate) fn watch(&self, segment: u32, bytes: u32) {
        let words = usize::try_from(bytes / GRAIN_BYTES / u64::BITS).unwrap_or_default() + 1;
        let bits = std::iter::repeat_with(AtomicU64::default).take(words).collect();
        self.segments.write().unwrap_or_else(PoisonError::into_inner).insert(segment, bits);
    }

    /// Stops tracking a segment.
    pub(crate) fn unwatch(&self, segment: u32) {
        self.segments.write().unwrap_or_else(PoisonError::into_inner).remove(&segment);
    }

    /// Sets the bit of the value at this place. Other segments are ignored.
    pub(crate) fn touch(&self, segment: u32, offset: u32) {
        self.with(segment, offset, |word, bit| word.fetch_or(bit, Ordering::Relaxed));
    }

    /// Whether the bit of the value at this place is set.
    pub(crate) fn is_referenced(&self, segment: u32, offset: u32) -> bool {
        self.with(segment, offset, |word, bit| word.load(Ordering::Relaxed) & bit != 0).unwrap_or(false)
    }

    /// Sets the predicate for blocks in the RAM cache. Only the first call has an effect.
    pub(crate) fn set_is_hot(&self, is_hot: impl Fn(&BlockKey) -> bool + Send + Sync + 'static) {
        _ = self.is_hot.set(Box::new(is_hot));
    }

    /// Whether the block is in the RAM cache.
    pub(crate) fn is_hot(&self, key: &BlockKey) -> bool {
        self.is_hot.get().is_some_and(|is_hot| is_hot(key))
    }

    fn with<T>(&self, segment: u32, offset: u32, on: impl FnOnce(&AtomicU64, u64) -> T) -> Option<T> {
        let grain = offset / GRAIN_BYTES;
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let word = segments.get(&segment)?.get(usize::try_from(grain / u64::BITS).ok()?)?;
        Some(on(word, 1 << (grain % u64::BITS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_kept_for_as_long_as_the_segment_is_watched() {
        let bits = ReferenceBits::default();
        bits.touch(1, 0);
        assert!(!bits.is_referenced(1, 0), "it is not watched");
        bits.watch(1, 10 * GRAIN_BYTES * u64::BITS);
        for offset in [0, 4095, 4096, 9 * GRAIN_BYTES * u64::BITS] {
            assert_eq!(bits.is_referenced(1, offset), offset == 4095, "{offset}: it shares a grain with 0 alone");
            bits.touch(1, offset);
            assert!(bits.is_referenced(1, offset));
        }
        assert!(!bits.is_referenced(1, 8192) && !bits.is_referenced(2, 0));
        bits.touch(1, u32::MAX);
        assert!(!bits.is_referenced(1, u32::MAX), "beyond its end");
        bits.unwatch(1);
        assert!(!bits.is_referenced(1, 0));
    }
}
