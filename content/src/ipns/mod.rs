//! IPNS records (<https://specs.ipfs.tech/ipns/ipns-record/>): what the owner of a key says that its name stands for.
//!
//! Goals: a [`Record`] cannot exist without its signature having been checked against its name; which of two records counts
//! is decided here and the same for everybody; nothing that a stranger sends takes more than a few times its own size.
//!
//! Only the second version of the signature counts. Records that have the first one beside it are accepted whether or not
//! that is good, as long as the fields that it signs say the same as the document that the second one signs.
//!
//! Non-goals: how records are found, kept and published, and whether one still holds *now*, which takes a clock
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
use wire::Entry;

/// The largest record, in bytes (<https://specs.ipfs.tech/ipns/ipns-record/#record-size-limit>).
pub const RECORD_BYTES_MAX: usize = 10 * 1024;

/// How long a record is remembered that does not say it, or that says zero: publishers wrote zero for "not said" until
/// 2023. It is also what Kubo publishes with.
pub const TTL_DEFAULT: Duration = Duration::from_secs(300);

/// What the second signature is over, before the document.
const SIGNATURE_PREFIX: &[u8] = b"ipns-signature:";

/// A record whose signature was checked against its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    bytes: Bytes,
    value: String,
    sequence: u64,
    end_of_life: SystemTime,
    ttl: Duration,
}

/// Why bytes are no record of a key. None of these gets better by asking the same peer again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record is larger than records may be.
    #[error("the record has {bytes} bytes, more than {RECORD_BYTES_MAX}")]
    TooLarge {
        /// How large it is.
        bytes: usize,
    },
    /// The bytes are not protobuf, or not that of a record.
    #[error("the record cannot be decoded: {0}")]
    Wire(#[from] PbError),
    /// A record of the first version, whose signature does not cover all of it.
    #[error("the record has no signature of version 2")]
    OnlyVersion1,
    /// The public key is neither in the name nor in the record, or cannot be read.
    #[error("the record's public key is missing or cannot be read")]
    NoKey,
    /// The public key in the record is not the one that was asked for.
    #[error("the record is of another key")]
    OtherKey,
    /// The signature is not that of the key over this document.
    #[error("the record's signature is wrong")]
    Signature,
    /// The signed document is not one.
    #[error("the record's document {0}")]
    Document(String),
    /// The fields of version 1 say something else than the signed document.
    #[error("the record's field \"{field}\" differs from its signed document")]
    Differs {
        /// The field.
        field: &'static str,
    },
}

impl Record {
    /// Checks the record of a key (<https://specs.ipfs.tech/ipns/ipns-record/#record-verification>), all but whether it
    /// still holds.
    ///
    /// # Errors
    /// [`RecordError`] says what is wrong with it.
    pub fn verify(key: &Key, bytes: Bytes) -> Result<Self, RecordError> {
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(RecordError::TooLarge { bytes: bytes.len() });
        }
        let entry = Entry::decode(&bytes)?;
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

    /// What the name stands for: a path, which nobody has checked yet.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Which of two records is the later one.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// When the record ceases to hold.
    pub fn end_of_life(&self) -> SystemTime {
        self.end_of_life
    }

    /// Whether the record holds at a time: until its end of life, and with it.
    pub fn is_valid_at(&self, now: SystemTime) -> bool {
        now <= self.end_of_life
    }

    /// How long its owner lets others remember it without asking again; [`TTL_DEFAULT`] if it does not say.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Whether this record replaces another one of the same key: the higher sequence number does, then the longer life,
    /// then the greater bytes, so that everybody decides alike.
    pub fn newer_than(&self, other: &Self) -> bool {
        let order = self.sequence.cmp(&other.sequence);
        let order = order.then_with(|| self.end_of_life.cmp(&other.end_of_life));
        order.then_with(|| self.bytes.cmp(&other.bytes)) == Ordering::Greater
    }
}

/// The key that must have signed: from the record, if it has one and it is the name's, or from the name itself.
fn public_key(key: &Key, entry: &Entry<'_>) -> Result<PublicKey, RecordError> {
    /// The multihash "function" that leaves its input as it is.
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
