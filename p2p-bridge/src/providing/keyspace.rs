//! The Kademlia key space: positions, distances and prefixes.
//!
//! A position is the SHA2-256 of a key or of a peer ID, and the distance of two positions is their XOR
//! (<https://specs.ipfs.tech/routing/kad-dht/#distance-metric>). Peers that share a prefix with a key are closer to it
//! than all others. So if all peers below a prefix are known, and there are enough of them, the closest peers of every
//! key below it are known. This lets one walk serve many keys.

use libp2p::PeerId;
use libp2p::kad::KBucketKey;
use std::ops::RangeInclusive;

/// Peers that store a record, Kademlia's *k* (<https://specs.ipfs.tech/routing/kad-dht/>).
pub const REPLICATION: usize = 20;
/// The prefix length of the schedule's slots, in bits.
pub const SLOT_BITS: u8 = 12;
/// The number of slots that the key space is divided into.
pub const SLOTS: u16 = 1 << SLOT_BITS;

/// The maximum prefix length. Peers influence how long prefixes get: an attacker that returns twenty peers close
/// together makes a network look arbitrarily dense, and every further bit doubles the hashes needed to find a key below
/// ([`Prefix::key_below`]), which block the swarm task. Sixteen bits take some ten milliseconds, and suffice for a
/// network of a million peers.
pub const PREFIX_BITS_MAX: u8 = 16;

/// Maximum attempts to find a key below a prefix. The longest prefix takes 65,536 on average, and exceeds the maximum
/// once in ten million times.
const TRIES_MAX: u32 = 1 << (PREFIX_BITS_MAX + 4);

/// A position in the key space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position([u8; 32]);

/// The distance of two positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Distance([u8; 32]);

impl Position {
    /// The position of a key: a binary multihash, or any other key of the DHT.
    pub fn of(key: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(KBucketKey::new(key).hashed_bytes());
        Self(bytes)
    }

    /// The position of a peer.
    pub fn of_peer(peer: &PeerId) -> Self {
        Self::of(&peer.to_bytes())
    }

    /// The distance to another position.
    pub fn distance(&self, other: &Self) -> Distance {
        Distance(std::array::from_fn(|i| self.0[i] ^ other.0[i]))
    }

    /// The slot of the schedule that this position belongs to.
    pub fn slot(&self) -> u16 {
        u16::from_be_bytes([self.0[0], self.0[1]]) >> (16 - SLOT_BITS)
    }

    #[cfg(test)]
    fn bit(&self, index: u8) -> bool {
        self.0[usize::from(index / 8)] & (0x80 >> (index % 8)) != 0
    }
}

impl Distance {
    /// The number of leading bits that both positions share.
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

    /// The first 64 bits.
    pub fn head(&self) -> u64 {
        let mut head = [0; 8];
        head.copy_from_slice(&self.0[..8]);
        u64::from_be_bytes(head)
    }

    /// The share of the key space that is at most this far: from 0 to 1.
    pub fn share(&self) -> f64 {
        // 53 bits suffice for an estimate.
        self.head() as f64 / 2_f64.powi(64)
    }
}

/// All positions with the same leading bits.
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

    /// The shortest prefix of a position whose positions are all within a radius, but at most [`PREFIX_BITS_MAX`] bits.
    pub fn within(position: &Position, radius: &Distance) -> Self {
        Self::of(position, radius.shared_bits().saturating_add(1).min(PREFIX_BITS_MAX))
    }

    /// The prefix of a slot of the schedule.
    pub fn of_slot(slot: u16) -> Self {
        let mut first = Position([0; 32]);
        first.0[..2].copy_from_slice(&(slot << (16 - SLOT_BITS)).to_be_bytes());
        Self { first, bits: SLOT_BITS }
    }

    /// Its length in bits.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether a position has this prefix.
    pub fn contains(&self, position: &Position) -> bool {
        self.first.distance(position).shared_bits() >= self.bits
    }

    /// Whether every position below `other` is below this one.
    pub fn covers(&self, other: &Self) -> bool {
        self.bits <= other.bits && self.contains(&other.first)
    }

    /// The prefix without its last bit; the whole key space has no parent.
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

    /// The slots of the schedule below it, or the one that contains it.
    pub fn slots(&self) -> RangeInclusive<u16> {
        let first = self.first.slot();
        let below = SLOT_BITS.saturating_sub(self.bits);
        first..=first + ((1_u16 << below) - 1)
    }

    /// Its share of the key space.
    pub fn share(&self) -> f64 {
        2_f64.powi(-i32::from(self.bits))
    }

    /// The first, largest part of this prefix that no prefix of `covered` covers.
    pub fn first_uncovered(&self, covered: &[Self]) -> Option<Self> {
        if covered.iter().any(|other| other.covers(self)) {
            return None;
        }
        if self.bits == u8::MAX || !covered.iter().any(|other| self.covers(other)) {
            return Some(*self);
        }
        self.halves().into_iter().find_map(|half| half.first_uncovered(covered))
    }

    /// A key below this prefix, as the target of requests; `None` if the prefix is longer than [`PREFIX_BITS_MAX`]. It
    /// has the form of a SHA2-256 multihash, because some peers check that.
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

    /// The first bit after this prefix in a position below it.
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
        fn prefixes_contain_positions_with_the_same_leading_bits(bytes: [u8; 32], other: [u8; 32], bits in 0..=255_u8) {
            let (position, other) = (Position(bytes), Position(other));
            let prefix = Prefix::of(&position, bits);
            prop_assert!(prefix.contains(&position));
            prop_assert_eq!(prefix.contains(&other), position.distance(&other).shared_bits() >= bits);
            if bits < 255 {
                let half = prefix.halves()[usize::from(prefix.next_bit(&position))];
                prop_assert!(half.contains(&position) && prefix.covers(&half) && !half.covers(&prefix));
                prop_assert_eq!(half.parent(), Some(prefix));
            }
            let shares_slot = bits >= SLOT_BITS && prefix.first.slot() == other.slot();
            prop_assert_eq!(prefix.slots().contains(&other.slot()), prefix.contains(&other) || shares_slot);
        }

        #[test]
        fn distances_are_symmetric_and_shares_are_below_one(a: [u8; 32], b: [u8; 32]) {
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
        fn uncovered_parts_are_found_until_all_is_covered(targets: Vec<([u8; 32], u8)>) {
            let prefix = |(target, bits): &([u8; 32], u8)| Prefix::of(&Position(*target), bits % 12);
            let mut covered: Vec<Prefix> = targets.iter().map(prefix).collect();
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
    fn a_key_is_found_only_below_short_prefixes() {
        for slot in [0, 1, 0x7ff, SLOTS - 1] {
            let prefix = Prefix::of_slot(slot);
            let key = prefix.key_below().expect("a key");
            assert_eq!(Position::of(&key).slot(), slot);
            assert_eq!(prefix.slots(), slot..=slot);
        }
        assert_eq!(Prefix::ALL.slots(), 0..=SLOTS - 1);
        let position = Position::of(b"somewhere");
        let longest = Prefix::of(&position, PREFIX_BITS_MAX);
        assert!(longest.contains(&Position::of(&longest.key_below().expect("a key"))));
        // A search below longer prefixes would take too long.
        for bits in PREFIX_BITS_MAX + 1..=u8::MAX {
            assert_eq!(Prefix::of(&position, bits).key_below(), None, "{bits}");
        }
    }
}
