//! IPNS records (<https://specs.ipfs.tech/ipns/ipns-record/>): signed by the owner of a key, they map its name to a
//! path.
//!
//! Goals: a [`Record`] exists only if its signature was verified against its name; every node selects the same of two
//! records; the memory for untrusted input is at most a few times its size.
//!
//! Only version 2 signatures are verified. Records with an additional version 1 signature are accepted even if that one
//! is invalid, as long as the fields that it covers equal those of the signed document.
//!
//! Non-goals: finding, storing and publishing records, and whether a record is expired, which takes a clock
//! ([`Record::is_valid_at`]).

mod document;
mod sign;
mod wire;

pub use sign::{Draft, SignError};

use crate::dagpb::PbError;
use crate::key::Key;
use bytes::Bytes;
use document::Document;
use libp2p_identity::PublicKey;
use std::cmp::Ordering;
use std::time::{Duration, SystemTime};
use wire::IpnsEntry;

/// The maximum size of a record, in bytes (<https://specs.ipfs.tech/ipns/ipns-record/#record-size-limit>).
pub const RECORD_BYTES_MAX: usize = 10 * 1024;

/// The TTL of a record that has none, or zero: until 2023 publishers wrote zero for "unset". It is also the TTL with
/// which Kubo publishes.
pub const TTL_DEFAULT: Duration = Duration::from_secs(300);

/// The prefix of the data that the version 2 signature covers, before the document.
const SIGNATURE_PREFIX: &[u8] = b"ipns-signature:";

/// A record whose signature was verified against its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    bytes: Bytes,
    value: String,
    sequence: u64,
    end_of_life: SystemTime,
    ttl: Duration,
}

/// Why bytes are not a record of a key. A retry with the same peer gives the same error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record exceeds [`RECORD_BYTES_MAX`].
    #[error("the record has {bytes} bytes, more than {RECORD_BYTES_MAX}")]
    TooLarge {
        /// The size of the record, in bytes.
        bytes: usize,
    },
    /// The bytes are not protobuf, or not a record.
    #[error("the record cannot be decoded: {0}")]
    Wire(#[from] PbError),
    /// The record has only a version 1 signature, which does not cover all fields.
    #[error("the record has no signature of version 2")]
    OnlyVersion1,
    /// The public key is neither in the name nor in the record, or cannot be decoded.
    #[error("the record's public key is missing or invalid")]
    NoKey,
    /// The public key in the record is not that of the name.
    #[error("the record has the public key of another name")]
    OtherKey,
    /// The signature does not match the key and the document.
    #[error("the record's signature is invalid")]
    Signature,
    /// The signed document is invalid.
    #[error("the record's document {0}")]
    Document(String),
    /// A version 1 field differs from the signed document.
    #[error("the record's field \"{field}\" differs from its signed document")]
    Differs {
        /// The field.
        field: &'static str,
    },
}

impl Record {
    /// Verifies a record of a key (<https://specs.ipfs.tech/ipns/ipns-record/#record-verification>), except for its
    /// expiration.
    ///
    /// # Errors
    /// [`RecordError`] when the record is invalid.
    pub fn verify(key: &Key, bytes: Bytes) -> Result<Self, RecordError> {
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(RecordError::TooLarge { bytes: bytes.len() });
        }
        let entry = IpnsEntry::decode(&bytes)?;
        if entry.signature_v2.is_empty() || entry.data.is_empty() {
            return Err(RecordError::OnlyVersion1);
        }
        let signed = [SIGNATURE_PREFIX, entry.data].concat();
        if !public_key(key, &entry)?.verify(&signed, entry.signature_v2) {
            return Err(RecordError::Signature);
        }
        let document = Document::decode(entry.data)?;
        if entry.has_version_1() {
            entry.compare(&document)?;
        }
        let (value, end_of_life) = (document.path(), document.end_of_life()?);
        Ok(Self { value, sequence: document.sequence, end_of_life, ttl: document.ttl(), bytes })
    }

    /// The record as it is stored and exchanged.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The value of the record: a path, which is not validated.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The sequence number: the higher one of two records is newer.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// When the record expires.
    pub fn end_of_life(&self) -> SystemTime {
        self.end_of_life
    }

    /// Whether the record is not expired at a time. The end of life is inclusive.
    pub fn is_valid_at(&self, now: SystemTime) -> bool {
        now <= self.end_of_life
    }

    /// How long resolvers may cache the record; [`TTL_DEFAULT`] if it is unset.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Whether this record replaces another one of the same key. The higher sequence number wins, then the later end of
    /// life, then the greater bytes, so that every node selects the same record.
    pub fn newer_than(&self, other: &Self) -> bool {
        let order = self.sequence.cmp(&other.sequence);
        let order = order.then_with(|| self.end_of_life.cmp(&other.end_of_life));
        order.then_with(|| self.bytes.cmp(&other.bytes)) == Ordering::Greater
    }
}

/// The key of the signature: from the record, if it has one that matches the name, or inlined in the name.
fn public_key(key: &Key, entry: &IpnsEntry<'_>) -> Result<PublicKey, RecordError> {
    /// The multihash code of the identity function.
    const IDENTITY: u64 = 0;
    let name = key.peer_id().as_ref();
    if entry.public_key.is_empty() {
        let inlined = (name.code() == IDENTITY).then(|| name.digest());
        return inlined.and_then(|bytes| PublicKey::try_decode_protobuf(bytes).ok()).ok_or(RecordError::NoKey);
    }
    let public = PublicKey::try_decode_protobuf(entry.public_key).map_err(|_| RecordError::NoKey)?;
    if public.to_peer_id() == *key.peer_id() { Ok(public) } else { Err(RecordError::OtherKey) }
}

#[cfg(test)]
mod tests;
