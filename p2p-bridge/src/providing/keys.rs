//! The keys to announce: where they come from, and how many of them are in memory.
//!
//! Nothing here holds every key. The store knows them ([`KeySource`]), and a sweep reads those of the slots whose turn it is
//! into a [`Window`] of at most [`WINDOW_KEYS_MAX`] keys: some 9 MB, whatever the number of keys is. A window is read
//! anew after a while, and so a key that is no longer held is no longer announced.

use super::keyspace::{Position, SLOTS};
use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

/// Keys that a window holds, unless a single slot has more.
pub const WINDOW_KEYS_MAX: usize = 262_144;
/// The longest key, in bytes: what peers of the Go implementation accept.
pub const KEY_BYTES_MAX: usize = 80;

/// Who knows what is to be announced.
pub trait KeySource: Send + Sync {
    /// Shows every key, a binary multihash, in any order. Called from a thread that may block.
    ///
    /// # Errors
    /// Whatever keeps the source from telling all of them. What was shown before is announced all the same.
    fn visit(&self, visit: &mut dyn FnMut(&[u8])) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// Keys one after the other, each behind its length: 35 bytes for one of SHA2-256.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys {
    bytes: Vec<u8>,
    count: usize,
}

impl Keys {
    /// Adds a key. One that is empty or too long to be announced is left out.
    pub fn push(&mut self, key: &[u8]) {
        if let Ok(length @ 1..=KEY_BYTES_MAX) = u8::try_from(key.len()).map(usize::from) {
            self.bytes.push(length as u8);
            self.bytes.extend_from_slice(key);
            self.count += 1;
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Each key, and where it is ([`Keys::at`]).
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let key = self.at(u32::try_from(at).ok()?)?;
            let here = at;
            at += 1 + key.len();
            Some((here as u32, key))
        })
    }

    /// The key at a place that [`Keys::iter`] named.
    pub fn at(&self, place: u32) -> Option<&[u8]> {
        let place = place as usize;
        let length = usize::from(*self.bytes.get(place)?);
        self.bytes.get(place + 1..place + 1 + length)
    }
}

impl<'a> FromIterator<&'a [u8]> for Keys {
    fn from_iter<T: IntoIterator<Item = &'a [u8]>>(keys: T) -> Self {
        let mut all = Self::default();
        keys.into_iter().for_each(|key| all.push(key));
        all
    }
}

/// The keys of some slots in a row.
#[derive(Debug, Clone, Default)]
pub struct Window {
    /// What it covers; may go beyond the last slot, and then goes on with the first.
    pub slots: Range<u32>,
    keys: BTreeMap<u16, Keys>,
    /// Keys over all slots.
    pub total: u64,
}

impl Window {
    /// Reads the keys of as many slots as there is room for, beginning with `first`. Blocks the thread.
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
            tracing::warn!(%error, "not every key that is to be announced could be read");
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

    /// Leaves a key out.
    pub fn remove(&mut self, key: &[u8]) {
        if let Some(keys) = self.keys.get_mut(&Position::of(key).slot()) {
            *keys = keys.iter().map(|(_, other)| other).filter(|other| *other != key).collect();
        }
    }
}

/// Some of the keys of a list, for one peer: the list is shared between all.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The list.
    pub keys: Arc<Keys>,
    /// Where in it.
    pub places: Vec<u32>,
}

impl Batch {
    /// A batch of one.
    pub fn single(key: &[u8]) -> Self {
        Self { keys: Arc::new(std::iter::once(key).collect()), places: vec![0] }
    }

    /// Its keys.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.places.iter().filter_map(|place| self.keys.at(*place))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
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
    fn keys_are_kept_in_a_row_and_found_again() {
        let mut keys = Keys::default();
        for n in 0..100 {
            keys.push(&key(n));
        }
        keys.push(b"");
        keys.push(&[1; KEY_BYTES_MAX + 1]);
        assert_eq!((keys.len(), keys.bytes.len()), (100, 3_500));
        for (n, (place, found)) in keys.iter().enumerate() {
            assert_eq!((found, keys.at(place)), (&key(n as u32)[..], Some(found)));
        }
        assert_eq!(Keys::default().iter().count(), 0);
    }

    #[test]
    fn windows_follow_one_another_and_cover_every_key_once() {
        let source = Fixed((0..5_000).map(key).collect());
        let mut seen = Vec::new();
        let (mut first, mut covered) = (4_000, 0);
        while covered < u32::from(SLOTS) {
            let mut window = Window::load(&source, first, 700);
            assert_eq!(window.total, 5_000);
            // The last may go over what was covered already.
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
    fn a_slot_that_is_too_large_is_read_all_the_same() {
        let source = Fixed((0..60_000).map(key).collect());
        let window = Window::load(&source, 9, 1);
        assert!(window.covers(9) && !window.covers(10));
        assert!(window.keys(9).is_some_and(|keys| keys.len() > 1));
    }
}
