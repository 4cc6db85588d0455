//! [`ReferenceBits`]: which cached values were read since they were written, so that eviction gives them a second chance.
//!
//! What is read most is in memory and never read from here at all: whoever keeps it there is asked too.
//!
//! Exact recency would write on every read. A bit for every [`GRAIN_BYTES`] of a segment costs a read nothing and 8 KiB
//! for 256 MiB; small values that share a grain are kept together. The bits are in memory only: after a restart
//! everything has to be read anew to be kept.

use content::BlockKey;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

const GRAIN_BYTES: u32 = 4096;

type IsHot = Box<dyn Fn(&BlockKey) -> bool + Send + Sync>;

/// The bits of all segments of cached values, and whom to ask besides.
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
    /// ParsedRecord to note reads of a segment of at most so many bytes.
    pub(crate) fn watch(&self, segment: u32, bytes: u32) {
        let words = usize::try_from(bytes / GRAIN_BYTES / u64::BITS).unwrap_or_default() + 1;
        let bits = std::iter::repeat_with(AtomicU64::default).take(words).collect();
        self.segments.write().unwrap_or_else(PoisonError::into_inner).insert(segment, bits);
    }

    /// Ends it.
    pub(crate) fn forget(&self, segment: u32) {
        self.segments.write().unwrap_or_else(PoisonError::into_inner).remove(&segment);
    }

    /// Notes that the value at this place was read. Segments that nobody watches are passed over.
    pub(crate) fn touch(&self, segment: u32, offset: u32) {
        self.with(segment, offset, |word, bit| word.fetch_or(bit, Ordering::Relaxed));
    }

    /// Whether it was.
    pub(crate) fn is_referenced(&self, segment: u32, offset: u32) -> bool {
        self.with(segment, offset, |word, bit| word.load(Ordering::Relaxed) & bit != 0).unwrap_or(false)
    }

    /// Asks this from now on, for every block that is to be evicted. Only the first who wants to be asked is.
    pub(crate) fn set_is_hot(&self, is_hot: impl Fn(&BlockKey) -> bool + Send + Sync + 'static) {
        _ = self.is_hot.set(Box::new(is_hot));
    }

    /// Whether somebody has the block at hand for its readers.
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
    fn what_was_read_is_remembered_for_as_long_as_the_segment_is_watched() {
        let touched = ReferenceBits::default();
        touched.touch(1, 0);
        assert!(!touched.is_referenced(1, 0), "nobody watches it");
        touched.watch(1, 10 * GRAIN_BYTES * u64::BITS);
        for offset in [0, 4095, 4096, 9 * GRAIN_BYTES * u64::BITS] {
            assert_eq!(touched.is_referenced(1, offset), offset == 4095, "{offset}: it shares a grain with 0 alone");
            touched.touch(1, offset);
            assert!(touched.is_referenced(1, offset));
        }
        assert!(!touched.is_referenced(1, 8192) && !touched.is_referenced(2, 0));
        touched.touch(1, u32::MAX);
        assert!(!touched.is_referenced(1, u32::MAX), "beyond its end");
        touched.forget(1);
        assert!(!touched.is_referenced(1, 0));
    }
}
