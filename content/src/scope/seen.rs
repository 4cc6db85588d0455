//! [`Seen`]: which blocks a walk has met, in a few bytes for each.

use crate::cid::{Cid, Multihash};
use crate::fingerprints::Fingerprints;

/// What a walk has met.
pub(super) struct Seen {
    marks: Fingerprints,
    max: usize,
}

/// There is no room to remember more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Seen {
    pub(super) fn new(max: usize) -> Self {
        Self { marks: Fingerprints::default(), max }
    }

    /// Whether the bytes were emitted, under whatever codec.
    pub(super) fn is_emitted(&self, cid: &Cid) -> bool {
        self.marks.contains(mark(None, cid.hash()))
    }

    /// Whether everything below the block was or is being emitted. The codec counts, since it decides what is below.
    pub(super) fn is_walked(&self, cid: &Cid) -> bool {
        self.marks.contains(mark(Some(cid.codec()), cid.hash()))
    }

    /// Remembers that the bytes are emitted; `false` if they were before.
    pub(super) fn emit(&mut self, cid: &Cid) -> Result<bool, Full> {
        self.insert(mark(None, cid.hash()))
    }

    /// Remembers that everything below the block is being emitted.
    pub(super) fn walk(&mut self, cid: &Cid) -> Result<bool, Full> {
        self.insert(mark(Some(cid.codec()), cid.hash()))
    }

    fn insert(&mut self, mark: (Option<u64>, u64, &[u8])) -> Result<bool, Full> {
        if self.marks.len() >= self.max && !self.marks.contains(mark) {
            return Err(Full);
        }
        Ok(self.marks.insert(mark))
    }
}

/// A codec, if it counts, and a multihash without the unused room in it.
fn mark(codec: Option<u64>, hash: &Multihash) -> (Option<u64>, u64, &[u8]) {
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
