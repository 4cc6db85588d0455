//! Signing records, with version 2 signatures only.

use super::document::{UNTIL_END_OF_LIFE, key};
use super::wire::tag;
use super::{Record, RecordError, SIGNATURE_PREFIX};
use crate::key::Key;
use bytes::Bytes;
use ipld_core::ipld::Ipld;
use libp2p_identity::{Keypair, SigningError};
use prost::encoding::{WireType, encode_key, encode_varint};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The content of a record that is to be signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// The value of the name: a path.
    pub value: String,
    /// The sequence number: higher than that of every record of the key so far.
    pub sequence: u64,
    /// When the record expires.
    pub end_of_life: SystemTime,
    /// How long resolvers may cache the record. Zero means unset.
    pub ttl: Duration,
}

/// Why a record cannot be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The end of life is before 1970 or after the year 9999.
    #[error("the end of life must be between the years 1970 and 9999")]
    EndOfLife,
    /// The key cannot sign.
    #[error(transparent)]
    Key(#[from] SigningError),
    /// The record would not pass verification, for example because it is too large.
    #[error(transparent)]
    Refused(#[from] RecordError),
}

impl Record {
    /// Signs a record (<https://specs.ipfs.tech/ipns/ipns-record/#record-creation>). The record has the public key,
    /// unless the name has it inlined.
    ///
    /// # Errors
    /// [`SignError`] when the record cannot be signed or would be invalid.
    pub fn sign(keypair: &Keypair, draft: &Draft) -> Result<Self, SignError> {
        let public = keypair.public();
        let name = Key::from(public.to_peer_id());
        let data = document(draft)?;
        let signature = keypair.sign(&[SIGNATURE_PREFIX, &data].concat())?;
        let encoded = public.encode_protobuf();
        let mut bytes = Vec::new();
        if name.peer_id().as_ref().digest() != encoded {
            put(&mut bytes, tag::PUBLIC_KEY, &encoded);
        }
        put(&mut bytes, tag::SIGNATURE_V2, &signature);
        put(&mut bytes, tag::DATA, &data);
        Ok(Self::verify(&name, Bytes::from(bytes))?)
    }
}

fn document(draft: &Draft) -> Result<Vec<u8>, SignError> {
    let life = draft.end_of_life.duration_since(UNIX_EPOCH).map_err(|_| SignError::EndOfLife)?;
    let life = time::Duration::try_from(life).map_err(|_| SignError::EndOfLife)?;
    let end = OffsetDateTime::UNIX_EPOCH.checked_add(life).and_then(|end| end.format(&Rfc3339).ok());
    let end = end.ok_or(SignError::EndOfLife)?;
    let ttl = u64::try_from(draft.ttl.as_nanos()).unwrap_or(u64::MAX);
    let fields = [
        (key::VALUE, Ipld::Bytes(draft.value.clone().into_bytes())),
        (key::VALIDITY, Ipld::Bytes(end.into_bytes())),
        (key::VALIDITY_TYPE, Ipld::Integer(UNTIL_END_OF_LIFE.into())),
        (key::SEQUENCE, Ipld::Integer(draft.sequence.into())),
        (key::TTL, Ipld::Integer(ttl.into())),
    ];
    let fields: BTreeMap<String, Ipld> = fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let encoded = serde_ipld_dagcbor::to_vec(&Ipld::Map(fields));
    encoded.map_err(|error| RecordError::Document(format!("cannot be encoded: {error}")).into())
}

fn put(record: &mut Vec<u8>, tag: u32, field: &[u8]) {
    encode_key(tag, WireType::LengthDelimited, record);
    encode_varint(field.len() as u64, record);
    record.extend_from_slice(field);
}
