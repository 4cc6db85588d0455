//! Where keys and peers lie: positions, distances and prefixes of the Kademlia key space.
//!
//! A position is the SHA2-256 of a key or of a peer id, and the distance of two positions is their exclusive or
//! (<https://specs.ipfs.tech/routing/kad-dht/#distance-metric>). Peers that share a prefix with a key are closer to it
//! than all that do not, so whoever knows every peer below a prefix, and there are enough of them, knows the closest
//! peers of every key below it. That is what lets one walk serve many keys.

use libp2p::PeerId;
use libp2p::kad::KBucketKey;
use std::ops::RangeInclusive;

/// Peers that a record is placed at, Kademlia's *k* (<https://specs.ipfs.tech/routing/kad-dht/>).
pub const REPLICATION: usize = 20;
/// Bits that the key space is cut by for the schedule.
pub const SLOT_BITS: u8 = 12;
/// Parts of the key space that are announced in turn.
pub const SLOTS: u16 = 1 << SLOT_BITS;

/// The longest prefix that is told from its neighbours. How long prefixes get is up to what peers say: whoever names twenty that
/// are close together makes a network look as dense as it likes, and every further bit doubles the hashes that a key below
/// takes ([`Prefix::key_below`]), on the task that everything else waits for. Sixteen take some ten milliseconds, and a
/// network has a million peers before they are too few for it.
pub const PREFIX_BITS_MAX: u8 = 16;

/// Tries until a key below a prefix is given up. The longest take 65,536 on average, and this is not enough for one of them
/// in ten million.
const TRIES_MAX: u32 = 1 << (PREFIX_BITS_MAX + 4);

/// A place in the key space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position([u8; 32]);

/// How far two positions are from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Distance([u8; 32]);

impl Position {
    /// The position of a key: of a binary multihash, or of anything else that peers are asked about.
    pub fn of(key: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(KBucketKey::new(key).hashed_bytes());
        Self(bytes)
    }

    /// The position of a peer.
    pub fn of_peer(peer: &PeerId) -> Self {
        Self::of(&peer.to_bytes())
    }

    /// How far another position is.
    pub fn distance(&self, other: &Self) -> Distance {
        Distance(std::array::from_fn(|i| self.0[i] ^ other.0[i]))
    }

    /// The part of the schedule that this position belongs to.
    pub fn slot(&self) -> u16 {
        u16::from_be_bytes([self.0[0], self.0[1]]) >> (16 - SLOT_BITS)
    }

    #[cfg(test)]
    fn bit(&self, index: u8) -> bool {
        self.0[usize::from(index / 8)] & (0x80 >> (index % 8)) != 0
    }
}

impl Distance {
    /// Bits that both positions begin with.
    pub fn shared_bits(&self) -> u8 {
        let mut bits = 0_u32;
        for byte in self.0 {
            bits += byte.leading_zeros();
            if byte != 0 {
                break;
            }
        }
        u8::try_from(bits).unwrap_or(u8::MAX)
    }

    /// Its first 64 bits.
    pub fn head(&self) -> u64 {
        let mut head = [0; 8];
        head.copy_from_slice(&self.0[..8]);
        u64::from_be_bytes(head)
    }

    /// The share of the key space that is at most this far: from 0 to 1.
    pub fn share(&self) -> f64 {
        // 53 bits are plenty for an estimate.
        self.head() as f64 / 2_f64.powi(64)
    }
}

/// All positions that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// The first position below it: bits beyond the length are zero.
    first: Position,
    bits: u8,
}

impl Prefix {
    /// The whole key space.
    pub const ALL: Self = Self { first: Position([0; 32]), bits: 0 };

    /// The first `bits` bits of a position.
    pub fn of(position: &Position, bits: u8) -> Self {
        let mut first = Position([0; 32]);
        let whole = usize::from(bits / 8);
        first.0[..whole].copy_from_slice(&position.0[..whole]);
        if whole < 32 && !bits.is_multiple_of(8) {
            first.0[whole] = position.0[whole] & !(0xff >> (bits % 8));
        }
        Self { first, bits }
    }

    /// The widest prefix around a position that is within a radius, or the longest that is told from its neighbours if the
    /// radius is less than that.
    pub fn within(position: &Position, radius: &Distance) -> Self {
        Self::of(position, radius.shared_bits().saturating_add(1).min(PREFIX_BITS_MAX))
    }

    /// The prefix that stands for one part of the schedule.
    pub fn of_slot(slot: u16) -> Self {
        let mut first = Position([0; 32]);
        first.0[..2].copy_from_slice(&(slot << (16 - SLOT_BITS)).to_be_bytes());
        Self { first, bits: SLOT_BITS }
    }

    /// How many bits it has.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether a position begins with it.
    pub fn contains(&self, position: &Position) -> bool {
        self.first.distance(position).shared_bits() >= self.bits
    }

    /// Whether every position below `other` is below this one.
    pub fn covers(&self, other: &Self) -> bool {
        self.bits <= other.bits && self.contains(&other.first)
    }

    /// One bit shorter; the whole key space has no parent.
    pub fn parent(&self) -> Option<Self> {
        self.bits.checked_sub(1).map(|bits| Self::of(&self.first, bits))
    }

    /// The two halves.
    pub fn halves(&self) -> [Self; 2] {
        let mut upper = self.first;
        upper.0[usize::from(self.bits / 8)] |= 0x80 >> (self.bits % 8);
        let bits = self.bits + 1;
        [Self { first: self.first, bits }, Self { first: upper, bits }]
    }

    /// The parts of the schedule that lie below it, or the one that it lies in.
    pub fn slots(&self) -> RangeInclusive<u16> {
        let first = self.first.slot();
        let below = SLOT_BITS.saturating_sub(self.bits);
        first..=first + ((1_u16 << below) - 1)
    }

    /// The share of the key space that it is.
    pub fn share(&self) -> f64 {
        2_f64.powi(-i32::from(self.bits))
    }

    /// The largest part of this prefix, in order, that none of `covered` covers.
    pub fn first_uncovered(&self, covered: &[Self]) -> Option<Self> {
        if covered.iter().any(|other| other.covers(self)) {
            return None;
        }
        if self.bits == u8::MAX || !covered.iter().any(|other| self.covers(other)) {
            return Some(*self);
        }
        self.halves().into_iter().find_map(|half| half.first_uncovered(covered))
    }

    /// A key below this prefix that peers can be asked about, unless it is longer than [`PREFIX_BITS_MAX`]. It has the form of a
    /// SHA2-256 multihash, as some peers look at what they are asked for.
    pub fn key_below(&self) -> Option<Vec<u8>> {
        if self.bits > PREFIX_BITS_MAX {
            return None;
        }
        let mut key = vec![0; 34];
        key[..2].copy_from_slice(&[0x12, 0x20]);
        (0..TRIES_MAX).find_map(|number| {
            key[30..].copy_from_slice(&number.to_be_bytes());
            self.contains(&Position::of(&key)).then(|| key.clone())
        })
    }

    /// The first position below it.
    #[cfg(test)]
    pub fn first(&self) -> Position {
        self.first
    }

    /// The first bit after it, of a position below it.
    #[cfg(test)]
    fn next_bit(&self, position: &Position) -> bool {
        position.bit(self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prefixes_hold_what_begins_like_them(bytes: [u8; 32], other: [u8; 32], bits in 0..=255_u8) {
            let (position, other) = (Position(bytes), Position(other));
            let prefix = Prefix::of(&position, bits);
            prop_assert!(prefix.contains(&position));
            prop_assert_eq!(prefix.contains(&other), position.distance(&other).shared_bits() >= bits);
            if bits < 255 {
                let half = prefix.halves()[usize::from(prefix.next_bit(&position))];
                prop_assert!(half.contains(&position) && prefix.covers(&half) && !half.covers(&prefix));
                prop_assert_eq!(half.parent(), Some(prefix));
            }
            prop_assert_eq!(prefix.slots().contains(&other.slot()), prefix.contains(&other) || bits >= SLOT_BITS && prefix.first.slot() == other.slot());
        }

        #[test]
        fn distance_orders_like_the_number_and_shares_add_up(a: [u8; 32], b: [u8; 32]) {
            let (a, b) = (Position(a), Position(b));
            prop_assert_eq!(a.distance(&b), b.distance(&a));
            prop_assert!((0.0..1.0).contains(&a.distance(&b).share()));
            prop_assert_eq!(a.distance(&a).shared_bits(), 255);
        }

        #[test]
        fn a_prefix_is_within_its_radius_and_never_too_long(at: [u8; 32], other: [u8; 32], shared in 0..=32_usize) {
            let position = Position(at);
            let near = Position(std::array::from_fn(|i| if i < shared { at[i] } else { other[i] }));
            let radius = position.distance(&near);
            let prefix = Prefix::within(&position, &radius);
            prop_assert!(prefix.bits() <= PREFIX_BITS_MAX && prefix.contains(&position));
            prop_assert!(prefix.bits() == PREFIX_BITS_MAX || !prefix.contains(&near));
        }

        #[test]
        fn what_is_uncovered_is_found_until_all_is_covered(targets: Vec<([u8; 32], u8)>) {
            let mut covered: Vec<Prefix> = targets.iter().map(|(t, bits)| Prefix::of(&Position(*t), bits % 12)).collect();
            let mut steps = 0;
            while let Some(next) = Prefix::ALL.first_uncovered(&covered) {
                prop_assert!(!covered.iter().any(|other| other.covers(&next) || next.covers(other)));
                covered.push(next);
                steps += 1;
                prop_assert!(steps <= 12 * (targets.len() + 1));
            }
        }
    }

    #[test]
    fn a_key_is_found_below_any_short_prefix_and_not_searched_for_below_a_long_one() {
        for slot in [0, 1, 0x7ff, SLOTS - 1] {
            let prefix = Prefix::of_slot(slot);
            let key = prefix.key_below().expect("there is one");
            assert_eq!(Position::of(&key).slot(), slot);
            assert_eq!(prefix.slots(), slot..=slot);
        }
        assert_eq!(Prefix::ALL.slots(), 0..=SLOTS - 1);
        let position = Position::of(b"somewhere");
        let longest = Prefix::of(&position, PREFIX_BITS_MAX);
        assert!(longest.contains(&Position::of(&longest.key_below().expect("there is one"))));
        // Nobody could wait for the end of a search below the others.
        for bits in PREFIX_BITS_MAX + 1..=u8::MAX {
            assert_eq!(Prefix::of(&position, bits).key_below(), None, "{bits}");
        }
    }
}
