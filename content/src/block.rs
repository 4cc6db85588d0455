//! [`Block`]: bytes that are verified to match their CID.
//!
//! The type guarantees this: bytes from the network, a CAR or a shared tier become a `Block` only by [`Block::verify`].
//! A store that verified bytes when it stored them, and protects them with checksums, uses [`Block::from_verified`].

use crate::cid::{BlockKey, Cid, is_identity};
use crate::hashes::{self, HashError};
use crate::stored::{Stored, ValueError};
use bytes::Bytes;
use std::sync::Arc;

/// The maximum size of an accepted block, in bytes: the limit of Bitswap
/// (<https://specs.ipfs.tech/bitswap-protocol/#block-sizes>).
pub const MAX_BLOCK_BYTES: usize = 2 * 1024 * 1024;

/// Why bytes are not the block that a CID names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The hash of the bytes differs from that of the CID.
    #[error("the bytes do not match {cid}")]
    Mismatch {
        /// The CID that was claimed.
        cid: Cid,
    },
    /// The hash function is not accepted.
    #[error(transparent)]
    Hash(#[from] HashError),
    /// The block exceeds [`MAX_BLOCK_BYTES`].
    #[error("a block of {bytes} bytes is over the limit of {MAX_BLOCK_BYTES}")]
    TooLarge {
        /// The size of the block, in bytes.
        bytes: usize,
    },
}

/// Why a stored form is not the block that a CID names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    /// It cannot be unpacked.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// What was unpacked is not the block.
    #[error(transparent)]
    Block(#[from] BlockError),
}

/// Immutable bytes and the CID that they were checked against. Cloning shares the bytes.
#[derive(Debug, Clone)]
pub struct Block {
    cid: Cid,
    data: Bytes,
    /// The compressed form in which the block was received, which unpacks to `data`.
    stored: Option<Arc<Stored>>,
}

/// The form in which blocks were received does not distinguish them.
impl PartialEq for Block {
    fn eq(&self, other: &Self) -> bool {
        self.cid == other.cid && self.data == other.data
    }
}

impl Eq for Block {}

impl Block {
    /// Hashes `data` and compares it with `cid`.
    ///
    /// # Errors
    /// [`BlockError`] when the bytes do not match, are too large, or the hash function is not accepted.
    pub fn verify(cid: Cid, data: Bytes) -> Result<Self, BlockError> {
        if data.len() > MAX_BLOCK_BYTES {
            return Err(BlockError::TooLarge { bytes: data.len() });
        }
        let hash = cid.hash();
        if is_identity(&cid) && hash.digest() != data {
            return Err(BlockError::Mismatch { cid });
        }
        let actual = hashes::digest(hash.code(), hash.digest().len(), &data)?;
        if actual == *hash { Ok(Self::new(cid, data)) } else { Err(BlockError::Mismatch { cid }) }
    }

    /// Unpacks a stored form, and hashes what it contains. The block keeps the stored form, so that a store can write
    /// it as it is.
    ///
    /// # Errors
    /// [`UnpackError`] when it cannot be unpacked, or does not match `cid`.
    pub fn verify_stored(cid: Cid, stored: Stored) -> Result<Self, UnpackError> {
        let block = Self::verify(cid, stored.block()?)?;
        Ok(Self { stored: Some(Arc::new(stored)), ..block })
    }

    fn new(cid: Cid, data: Bytes) -> Self {
        Self { cid, data, stored: None }
    }

    /// Hashes `data` and returns it with its CID: a CIDv1 of the given codec, hash function and digest length. Bitswap
    /// messages carry such a CID prefix instead of a CID.
    ///
    /// # Errors
    /// [`BlockError`] when the data is too large, or the hash function or digest length is not accepted.
    pub fn of(codec: u64, hash_code: u64, digest_bytes: usize, data: Bytes) -> Result<Self, BlockError> {
        if data.len() > MAX_BLOCK_BYTES {
            return Err(BlockError::TooLarge { bytes: data.len() });
        }
        let hash = hashes::digest(hash_code, digest_bytes, &data)?;
        Ok(Self::new(Cid::new_v1(codec, hash), data))
    }

    /// The block that an identity CID carries inline; `None` for every other CID.
    pub fn inline(cid: &Cid) -> Option<Self> {
        is_identity(cid).then(|| Self::new(*cid, Bytes::copy_from_slice(cid.hash().digest())))
    }

    /// The empty block, if `cid` is the CID of an empty block. Kubo never sends an empty block: its Bitswap server
    /// takes a size of zero for "not stored".
    pub fn empty(cid: &Cid) -> Option<Self> {
        Self::verify(*cid, Bytes::new()).ok()
    }

    /// Wraps bytes that were verified when they were stored, and have been protected by checksums since. Only a store
    /// may call this; other callers use [`Block::verify`].
    pub fn from_verified(cid: Cid, data: Bytes) -> Self {
        Self::new(cid, data)
    }

    /// The same bytes under another CID of the same multihash (another codec or version); `None` if the hashes differ.
    pub fn under(&self, cid: &Cid) -> Option<Self> {
        (cid.hash() == self.cid.hash()).then(|| Self { cid: *cid, ..self.clone() })
    }

    /// The CID under which the block was requested.
    pub fn cid(&self) -> &Cid {
        &self.cid
    }

    /// The key under which the tiers store this block; `None` for an inline block.
    pub fn key(&self) -> Option<BlockKey> {
        BlockKey::of(&self.cid)
    }

    /// The stored form in which the block was received, if it was compressed.
    pub fn stored(&self) -> Option<&Arc<Stored>> {
        self.stored.as_ref()
    }

    /// The same block without the form in which it was received, for readers, which need the bytes only.
    pub fn without_stored(self) -> Self {
        Self { stored: None, ..self }
    }

    /// The memory that the block keeps alive, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.data.len() + self.stored.as_ref().map_or(0, |stored| stored.value().len())
    }

    /// The bytes, shared with every clone.
    pub fn data(&self) -> &Bytes {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cid::{Multihash, codec, parse};

    #[test]
    fn only_matching_bytes_become_a_block() {
        let data = Bytes::from_static(b"hello");
        let cid = Cid::new_v1(codec::RAW, hashes::digest(hashes::SHA2_256, 32, &data).expect("hash"));
        let block = Block::verify(cid, data.clone()).expect("matches");
        assert_eq!(block.data(), &data);
        assert_eq!(Block::verify(cid, Bytes::from_static(b"hell0")), Err(BlockError::Mismatch { cid }));
        let large = Bytes::from(vec![0; MAX_BLOCK_BYTES + 1]);
        assert_eq!(Block::verify(cid, large), Err(BlockError::TooLarge { bytes: MAX_BLOCK_BYTES + 1 }));
    }

    #[test]
    fn a_block_keeps_the_form_in_which_it_was_received() {
        let data = Bytes::from(b"some text. ".repeat(1_000));
        let block = Block::of(codec::RAW, hashes::SHA2_256, 32, data.clone()).expect("a block");
        let stored = crate::stored::Encoder::new(Default::default()).expect("an encoder").encode(&block);
        let received = Block::verify_stored(*block.cid(), stored.clone()).expect("matches");
        assert_eq!((received.data(), received.stored().map(|stored| &**stored)), (&data, Some(&stored)));
        assert_eq!(received, block);
        assert!(received.memory_bytes() > block.memory_bytes());
        assert_eq!(received.clone().without_stored().memory_bytes(), block.memory_bytes());
        let pb = Cid::new_v1(codec::DAG_PB, *block.cid().hash());
        assert!(received.under(&pb).expect("has the same hash").stored().is_some());
        let other = Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from_static(b"x")).expect("a block");
        let error = Block::verify_stored(*other.cid(), stored);
        assert_eq!(error, Err(UnpackError::Block(BlockError::Mismatch { cid: *other.cid() })));
    }

    #[test]
    fn an_identity_cid_is_its_own_block() {
        let cid = parse("bafkqaddjnzzxazldoqwxizltoq").expect("cid");
        let block = Block::inline(&cid).expect("inline");
        assert_eq!(Block::verify(cid, block.data().clone()), Ok(block));
        assert!(Block::verify(cid, Bytes::from_static(b"something else")).is_err());
    }

    #[test]
    fn the_empty_block_is_known_by_its_hash_alone() {
        for (code, digest_bytes) in [(hashes::SHA2_256, 32), (0x1e, 32), (0xb220, 32)] {
            let hash = hashes::digest(code, digest_bytes, b"").expect("hash");
            assert!(Block::empty(&Cid::new_v1(codec::RAW, hash)).is_some_and(|block| block.data().is_empty()));
            let other = hashes::digest(code, digest_bytes, b"x").expect("hash");
            assert_eq!(Block::empty(&Cid::new_v1(codec::RAW, other)), None);
        }
    }

    #[test]
    fn a_block_changes_codec_but_never_hash() {
        let data = Bytes::from_static(b"hello");
        let hash = hashes::digest(hashes::SHA2_256, 32, &data).expect("hash");
        let block = Block::verify(Cid::new_v1(codec::RAW, hash), data).expect("matches");
        assert!(block.under(&Cid::new_v1(codec::DAG_PB, hash)).is_some());
        let other = Multihash::wrap(hashes::SHA2_256, &[0; 32]).expect("wraps");
        assert!(block.under(&Cid::new_v1(codec::RAW, other)).is_none());
    }
}
