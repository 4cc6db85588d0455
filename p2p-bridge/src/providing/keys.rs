//! The keys to announce: their source, and how many of them are in memory.
//!
//! The full set of keys is never in memory. A sweep loads the keys of the next slots from the [`KeySource`] into a
//! [`Window`] of at most [`WINDOW_KEYS_MAX`] keys: some 9 MB, independent of the number of keys. A window expires and
//! is loaded again, so that deleted keys are no longer announced.

use super::keyspace::{Position, SLOTS};
use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

/// Maximum keys of a window, unless a single slot has more.
pub const WINDOW_KEYS_MAX: usize = 262_144;
/// The maximum length of a key, in bytes, that Go peers accept.
pub const KEY_BYTES_MAX: usize = 80;

/// The source of the keys to announce.
pub trait KeySource: Send + Sync {
    /// Calls `visit` with every key, a binary multihash, in any order. Called from a blocking thread.
    ///
    /// # Errors
    /// An error of the source. Keys visited before are announced anyway.
    fn visit(&self, visit: &mut dyn FnMut(&[u8])) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// A list of keys, each prefixed with its length: 35 bytes for a SHA2-256 key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys {
    bytes: Vec<u8>,
    count: usize,
}

impl Keys {
    /// Adds a key. Empty and too long keys are skipped.
    pub fn push(&mut self, key: &[u8]) {
        if let Ok(length @ 1..=KEY_BYTES_MAX) = u8::try_from(key.len()).map(usize::from) {
            self.bytes.push(length as u8);
            self.bytes.extend_from_slice(key);
            self.count += 1;
        }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All keys with their offsets ([`Keys::at`]).
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let key = self.at(u32::try_from(at).ok()?)?;
            let here = at;
            at += 1 + key.len();
            Some((here as u32, key))
        })
    }

    /// The key at an offset from [`Keys::iter`].
    pub fn at(&self, offset: u32) -> Option<&[u8]> {
        let offset = offset as usize;
        let length = usize::from(*self.bytes.get(offset)?);
        self.bytes.get(offset + 1..offset + 1 + length)
    }
}

impl<'a> FromIterator<&'a [u8]> for Keys {
    fn from_iter<T: IntoIterator<Item = &'a [u8]>>(keys: T) -> Self {
        let mut all = Self::default();
        keys.into_iter().for_each(|key| all.push(key));
        all
    }
}

/// The keys of a range of slots.
#[derive(Debug, Clone, Default)]
pub struct Window {
    /// The covered slots. The range may extend beyond the last slot and wraps around.
    pub slots: Range<u32>,
    keys: BTreeMap<u16, Keys>,
    /// The number of keys over all slots.
    pub total: u64,
}

impl Window {
    /// Loads the keys of as many slots as the limit allows, starting with `first`. Blocks the thread.
    pub fn load(source: &dyn KeySource, first: u16, keys_max: usize) -> Self {
        let mut keys: BTreeMap<u32, Keys> = BTreeMap::new();
        let (mut held, mut total, mut end) = (0, 0, u32::from(first) + u32::from(SLOTS));
        let read = source.visit(&mut |key| {
            total += 1;
            let slot = u32::from(Position::of(key).slot());
            let slot = if slot < u32::from(first) { slot + u32::from(SLOTS) } else { slot };
            if slot >= end {
                return;
            }
            let of_slot = keys.entry(slot).or_default();
            held -= of_slot.len();
            of_slot.push(key);
            held += of_slot.len();
            while held > keys_max && keys.len() > 1 {
                let Some((last, dropped)) = keys.pop_last() else { break };
                held -= dropped.len();
                end = last;
            }
        });
        if let Err(error) = read {
            tracing::warn!(%error, "could not read all keys to announce");
        }
        let keys = keys.into_iter().map(|(slot, keys)| ((slot % u32::from(SLOTS)) as u16, keys)).collect();
        Self { slots: u32::from(first)..end, keys, total }
    }

    /// Whether it covers a slot.
    pub fn covers(&self, slot: u16) -> bool {
        let slot = u32::from(slot);
        self.slots.contains(&slot) || self.slots.contains(&(slot + u32::from(SLOTS)))
    }

    /// The keys of a slot.
    pub fn keys(&self, slot: u16) -> Option<&Keys> {
        self.keys.get(&slot)
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &[u8]) {
        if let Some(keys) = self.keys.get_mut(&Position::of(key).slot()) {
            *keys = keys.iter().map(|(_, other)| other).filter(|other| *other != key).collect();
        }
    }
}

/// Keys for one peer, as offsets into a list that all peers share.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The list.
    pub keys: Arc<Keys>,
    /// The offsets in the list.
    pub offsets: Vec<u32>,
}

impl Batch {
    /// A batch of one key.
    pub fn single(key: &[u8]) -> Self {
        Self { keys: Arc::new(std::iter::once(key).collect()), offsets: vec![0] }
    }

    /// The keys of the batch.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.offsets.iter().filter_map(|offset| self.keys.at(*offset))
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(Vec<Vec<u8>>);

    impl KeySource for Fixed {
        fn visit(&self, visit: &mut dyn FnMut(&[u8])) -> Result<(), Box<dyn Error + Send + Sync>> {
            self.0.iter().for_each(|key| visit(key));
            Ok(())
        }
    }

    fn key(n: u32) -> Vec<u8> {
        let mut key = vec![0x12, 0x20];
        key.resize(34, 0);
        key[2..6].copy_from_slice(&n.to_be_bytes());
        key
    }

    #[test]
    fn keys_are_found_at_their_offsets() {
        let mut keys = Keys::default();
        for n in 0..100 {
            keys.push(&key(n));
        }
        keys.push(b"");
        keys.push(&[1; KEY_BYTES_MAX + 1]);
        assert_eq!((keys.len(), keys.bytes.len()), (100, 3_500));
        for (n, (offset, found)) in keys.iter().enumerate() {
            assert_eq!((found, keys.at(offset)), (&key(n as u32)[..], Some(found)));
        }
        assert_eq!(Keys::default().iter().count(), 0);
    }

    #[test]
    fn consecutive_windows_cover_every_key_once() {
        let source = Fixed((0..5_000).map(key).collect());
        let mut seen = Vec::new();
        let (mut first, mut covered) = (4_000, 0);
        while covered < u32::from(SLOTS) {
            let mut window = Window::load(&source, first, 700);
            assert_eq!(window.total, 5_000);
            // The last window may overlap with the first.
            for slot in window.slots.clone().take((u32::from(SLOTS) - covered) as usize) {
                let slot = (slot % u32::from(SLOTS)) as u16;
                assert!(window.covers(slot));
                seen.extend(window.keys(slot).into_iter().flat_map(|keys| keys.iter().map(|(_, key)| key.to_vec())));
            }
            assert!(window.keys.values().map(Keys::len).sum::<usize>() <= 700);
            if let Some((slot, keys)) = window.keys.iter().next().map(|(slot, keys)| (*slot, keys.clone())) {
                let gone = keys.at(0).expect("there is one").to_vec();
                window.remove(&gone);
                assert!(window.keys(slot).is_some_and(|keys| keys.iter().all(|(_, key)| key != gone)));
            }
            covered += window.slots.end - window.slots.start;
            first = (window.slots.end % u32::from(SLOTS)) as u16;
        }
        seen.sort();
        assert_eq!(seen, source.0);
    }

    #[test]
    fn a_slot_that_exceeds_the_limit_is_loaded() {
        let source = Fixed((0..60_000).map(key).collect());
        let window = Window::load(&source, 9, 1);
        assert!(window.covers(9) && !window.covers(10));
        assert!(window.keys(9).is_some_and(|keys| keys.len() > 1));
    }
}
