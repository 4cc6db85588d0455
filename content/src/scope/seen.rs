//! [`Seen`]: which blocks a walk has met, in a few bytes for each.

use crate::cid::{Cid, Multihash};
use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};

/// What a walk has met, by 128-bit fingerprints of multihashes. A CID takes ten times as much, and a walk meets millions.
/// The fingerprints are keyed at random, so nobody can make two blocks that have the same; by chance, one walk in some
/// 10^25 that fill their memory of four million meets such a pair.
pub(super) struct Seen {
    keys: [RandomState; 2],
    marks: HashSet<u128>,
    max: usize,
}

/// There is no room to remember more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Seen {
    pub(super) fn new(max: usize) -> Self {
        Self { keys: [RandomState::new(), RandomState::new()], marks: HashSet::new(), max }
    }

    /// Whether the bytes were emitted, under whatever codec.
    pub(super) fn is_emitted(&self, cid: &Cid) -> bool {
        self.marks.contains(&self.mark(None, cid.hash()))
    }

    /// Whether everything below the block was or is being emitted. The codec counts, since it decides what is below.
    pub(super) fn is_walked(&self, cid: &Cid) -> bool {
        self.marks.contains(&self.mark(Some(cid.codec()), cid.hash()))
    }

    /// Remembers that the bytes are emitted; `false` if they were before.
    pub(super) fn emit(&mut self, cid: &Cid) -> Result<bool, Full> {
        self.insert(self.mark(None, cid.hash()))
    }

    /// Remembers that everything below the block is being emitted.
    pub(super) fn walk(&mut self, cid: &Cid) -> Result<bool, Full> {
        self.insert(self.mark(Some(cid.codec()), cid.hash()))
    }

    fn insert(&mut self, mark: u128) -> Result<bool, Full> {
        if self.marks.len() >= self.max && !self.marks.contains(&mark) {
            return Err(Full);
        }
        Ok(self.marks.insert(mark))
    }

    fn mark(&self, codec: Option<u64>, hash: &Multihash) -> u128 {
        let [high, low] = self.keys.each_ref().map(|key| key.hash_one((codec, hash.code(), hash.digest())));
        u128::from(high) << 64 | u128::from(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cid::codec;
    use crate::hashes;

    fn cid(codec: u64, n: u8) -> Cid {
        Cid::new_v1(codec, hashes::digest(hashes::SHA2_256, 32, &[n]).expect("hash"))
    }

    #[test]
    fn bytes_are_emitted_once_and_walked_once_under_each_codec_until_it_is_full() {
        let mut seen = Seen::new(3);
        assert_eq!(seen.emit(&cid(codec::DAG_PB, 1)), Ok(true));
        assert_eq!(seen.emit(&cid(codec::RAW, 1)), Ok(false));
        assert!(seen.is_emitted(&cid(codec::RAW, 1)) && !seen.is_walked(&cid(codec::RAW, 1)));
        assert_eq!(seen.walk(&cid(codec::DAG_PB, 1)), Ok(true));
        assert!(seen.is_walked(&cid(codec::DAG_PB, 1)) && !seen.is_walked(&cid(codec::RAW, 1)));
        assert_eq!(seen.emit(&cid(codec::RAW, 2)), Ok(true));
        assert_eq!(seen.emit(&cid(codec::RAW, 3)), Err(Full));
        assert_eq!(seen.emit(&cid(codec::RAW, 2)), Ok(false));
    }
}
