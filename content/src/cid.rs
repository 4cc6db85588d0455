//! CIDs, and the key under which blocks are stored.
//!
//! Goals: accept what Kubo accepts (CIDv0, CIDv1, any multibase, identity CIDs up to 128 bytes) and reject the rest
//! with a clear message.
//!
//! Departure from the `cid` crate's default type: its digests have at most 64 bytes, but identity CIDs and
//! extendable-output functions have up to 128, so every CID here has room for 128.

use crate::hashes;
pub use crate::hashes::{MAX_DIGEST_BYTES, Multihash};
use std::fmt;

/// The maximum length of a CID as text, in bytes: a CIDv1 with a 128-byte digest in base2, with some margin.
const MAX_CID_TEXT_BYTES: usize = 1_200;

/// A content identifier (<https://github.com/multiformats/cid>).
pub type Cid = ::cid::CidGeneric<MAX_DIGEST_BYTES>;

/// Multicodec codes of the block formats in use
/// (<https://github.com/multiformats/multicodec/blob/master/table.csv>).
pub mod codec {
    /// Plain CBOR (RFC 8949), without links.
    pub const CBOR: u64 = 0x51;
    /// Raw bytes.
    pub const RAW: u64 = 0x55;
    /// MerkleDAG protobuf: the envelope of UnixFS.
    pub const DAG_PB: u64 = 0x70;
    /// IPLD data as deterministic CBOR.
    pub const DAG_CBOR: u64 = 0x71;
    /// IPLD data as deterministic JSON.
    pub const DAG_JSON: u64 = 0x0129;
    /// Plain JSON (RFC 8259), without links.
    pub const JSON: u64 = 0x0200;
    /// A public key, the codec of an IPNS name.
    pub const LIBP2P_KEY: u64 = 0x72;
    /// A packed file ([`crate::packed`]): the multihash is that of the root of its seekable zstd file, and the content
    /// is what that file decompresses to. Of multicodec's range for private use (0x300000 to 0x3fffff).
    pub const PACKED_FILE: u64 = 0x30_5a53;
}

/// Why a string is not a CID that can be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CidError {
    /// The text is not a CID.
    #[error("\"{text}\" is not a CID: {reason}")]
    Malformed {
        /// The text, truncated.
        text: String,
        /// The error of the decoder.
        reason: String,
    },
    /// The CID is well formed, but its hash function or digest length is not accepted.
    #[error(transparent)]
    Hash(#[from] hashes::HashError),
}

/// Parses a CID in any multibase, or a CIDv0 in base58, and checks that its hash function is accepted.
///
/// # Errors
/// [`CidError::Malformed`] when the text is not a CID, [`CidError::Hash`] when its hash function is not accepted.
pub fn parse(text: &str) -> Result<Cid, CidError> {
    let malformed = |reason: String| CidError::Malformed { text: shorten(text), reason };
    if text.len() > MAX_CID_TEXT_BYTES {
        return Err(malformed(format!("it is longer than {MAX_CID_TEXT_BYTES} characters")));
    }
    let cid = Cid::try_from(text).map_err(|error| malformed(error_message(&error).to_owned()))?;
    hashes::check_accepted(cid.hash())?;
    Ok(cid)
}

/// The message for an error of the CID decoder.
pub fn error_message(error: &::cid::Error) -> &'static str {
    use ::cid::Error;
    match error {
        Error::InputTooShort => "it is too short",
        Error::InvalidCidVersion => "its version is unknown",
        Error::InvalidCidV0Codec
        | Error::InvalidCidV0Multihash
        | Error::InvalidCidV0Base
        | Error::InvalidExplicitCidV0 => "it begins like a CIDv0, but is not a SHA2-256 multihash in base58",
        Error::UnknownCodec | Error::ParsingError | Error::VarIntDecodeError | Error::Io(_) => {
            "it is truncated or has invalid characters"
        }
    }
}

/// Whether the CID has its content inlined (<https://github.com/multiformats/cid>, identity multihash).
pub fn is_identity(cid: &Cid) -> bool {
    cid.hash().code() == hashes::IDENTITY
}

fn shorten(text: &str) -> String {
    const SHOWN: usize = 80;
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// The key of blocks in every tier and in singleflight fetches: the multihash alone, since the same bytes may be
/// requested with several codecs and both CID versions. Identity CIDs have no key, because their blocks are not stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey(Multihash);

impl BlockKey {
    /// The key of a CID, or `None` for an identity CID, whose bytes are inline.
    pub fn of(cid: &Cid) -> Option<Self> {
        (!is_identity(cid)).then(|| Self(*cid.hash()))
    }

    /// The multihash.
    pub fn multihash(&self) -> &Multihash {
        &self.0
    }

    /// The binary multihash, as in Kademlia and the disk tier.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.to_bytes()
    }

    /// Parses the output of [`BlockKey::to_bytes`]; `None` if the bytes are invalid.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let hash = Multihash::from_bytes(bytes).ok()?;
        // The parser drops what a varint has beyond 64 bits, so that other bytes would be the same key.
        let mut written = [0; HASH_BYTES_MAX];
        let is_canonical = hash.write(&mut written[..]).is_ok_and(|len| written[..len] == *bytes);
        (is_canonical && hash.code() != hashes::IDENTITY).then_some(Self(hash))
    }
}

/// The maximum length of a binary multihash: two varints, and a digest.
const HASH_BYTES_MAX: usize = 10 + 10 + 64;

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockKey({})", Cid::new_v1(codec::RAW, self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_every_form_of_a_cid_and_rejects_the_rest() {
        let good = [
            "QmWvY6FaqFMS89YAQ9NAPjVP4WZKA1qbHbicc9HeSKQTgt",
            "bafybeig6ka5mlwkl4subqhaiatalkcleo4jgnr3hqwvpmsqfca27cijp3i",
            "BAFYBEIG6KA5MLWKL4SUBQHAIATALKCLEO4JGNR3HQWVPMSQFCA27CIJP3I",
            "bafkqaddjnzzxazldoqwxizltoq", // identity
        ];
        for text in good {
            assert!(parse(text).is_ok(), "{text}");
        }
        let bad = ["", "hello", "Qm", "bafy", "../etc/passwd", &"b".repeat(5_000)];
        for text in bad {
            let Err(CidError::Malformed { reason, .. }) = parse(text) else { panic!("{text} is a CID") };
            assert!(reason.starts_with("it "), "{text}: {reason}");
        }
    }

    #[test]
    fn a_key_ignores_codec_and_version_and_an_identity_cid_has_none() {
        let v0 = parse("QmWvY6FaqFMS89YAQ9NAPjVP4WZKA1qbHbicc9HeSKQTgt").expect("cid");
        let raw = Cid::new_v1(codec::RAW, *v0.hash());
        assert_eq!(BlockKey::of(&v0), BlockKey::of(&raw));
        let key = BlockKey::of(&v0).expect("key");
        assert_eq!(BlockKey::from_bytes(&key.to_bytes()), Some(key));
        assert_eq!(BlockKey::of(&parse("bafkqaddjnzzxazldoqwxizltoq").expect("cid")), None);
    }

    #[test]
    fn a_key_has_one_encoding() {
        // A code of ten bytes whose last one has more than the 64th bit, and no digest.
        let overlong = [0xdf, 0xcf, 0xe7, 0xff, 0xff, 0xb0, 0x97, 0x9a, 0x98, 0x6c, 0];
        assert!(Multihash::from_bytes(&overlong).is_ok(), "the parser has changed");
        assert_eq!(BlockKey::from_bytes(&overlong), None);
    }
}
