//! [`Seen`]: the deduplication state of a traversal.

use super::Child;
use crate::cid::{Cid, Multihash};
use crate::fingerprints::Fingerprints;

/// The blocks that a traversal has emitted or traversed.
#[derive(Debug)]
pub struct Seen {
    recorded: Fingerprints,
    max: usize,
}

/// The maximum number of blocks is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl Seen {
    /// An empty record of at most `max` blocks. Blocks that can have links count twice.
    pub fn new(max: usize) -> Self {
        Self { recorded: Fingerprints::default(), max }
    }

    /// The memory of the record, in bytes. While it grows, it takes three times as much.
    pub fn bytes(&self) -> usize {
        self.recorded.bytes()
    }

    /// Whether the block of a child, and everything below it, was emitted before, and need not be again.
    pub fn is_repeat(&self, child: &Child) -> bool {
        self.is_emitted(&child.cid) && (child.is_leaf() || child.has_same_children() && self.is_walked(&child.cid))
    }

    /// Records that the block of a child is emitted, and what is below it after it; returns whether the block is emitted
    /// for the first time.
    ///
    /// # Errors
    /// [`Full`].
    pub fn visit(&mut self, child: &Child) -> Result<bool, Full> {
        let first = self.emit(&child.cid)?;
        if !child.is_leaf() && child.has_same_children() {
            self.walk(&child.cid)?;
        }
        Ok(first)
    }

    /// Whether the block was emitted, under any codec.
    fn is_emitted(&self, cid: &Cid) -> bool {
        self.recorded.contains(dedup_key(None, cid.hash()))
    }

    /// Whether everything below the block was or is being emitted. The codec counts, because it determines the links.
    fn is_walked(&self, cid: &Cid) -> bool {
        self.recorded.contains(dedup_key(Some(cid.codec()), cid.hash()))
    }

    /// Records that the block is emitted; `false` if it was before.
    pub(super) fn emit(&mut self, cid: &Cid) -> Result<bool, Full> {
        self.insert(dedup_key(None, cid.hash()))
    }

    /// Records that everything below the block is being emitted.
    pub(super) fn walk(&mut self, cid: &Cid) -> Result<bool, Full> {
        self.insert(dedup_key(Some(cid.codec()), cid.hash()))
    }

    fn insert(&mut self, dedup_key: (Option<u64>, u64, &[u8])) -> Result<bool, Full> {
        if self.recorded.len() >= self.max && !self.recorded.contains(dedup_key) {
            return Err(Full);
        }
        Ok(self.recorded.insert(dedup_key))
    }
}

/// The codec, if it counts, and the multihash without its unused capacity.
fn dedup_key(codec: Option<u64>, hash: &Multihash) -> (Option<u64>, u64, &[u8]) {
    (codec, hash.code(), hash.digest())
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
    fn blocks_are_recorded_once_as_emitted_and_once_per_codec_as_walked() {
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
