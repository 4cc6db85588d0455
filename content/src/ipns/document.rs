//! The signed document of a record: DAG-CBOR (<https://specs.ipfs.tech/ipns/ipns-record/#record-data>).

use super::{RecordError, TTL_DEFAULT};
use crate::cid::Cid;
use ipld_core::ipld::Ipld;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The keys of the document.
pub(super) mod key {
    pub const VALUE: &str = "Value";
    pub const VALIDITY: &str = "Validity";
    pub const VALIDITY_TYPE: &str = "ValidityType";
    pub const SEQUENCE: &str = "Sequence";
    pub const TTL: &str = "TTL";
}

/// The path of an empty value, an empty file. Records with an empty value have application data beside it.
const NOTHING: &str = "/ipfs/bafkqaaa";
/// The only validity type (EOL).
pub(super) const UNTIL_END_OF_LIFE: u64 = 0;

/// The required fields. Further fields are allowed and ignored.
#[derive(Debug)]
pub(super) struct Document {
    pub value: Vec<u8>,
    pub validity: Vec<u8>,
    pub validity_type: u64,
    pub sequence: u64,
    /// Zero if absent.
    pub ttl_nanos: u64,
}

impl Document {
    /// Decodes a document. The decoder bounds its nesting, and the size of the record its size.
    pub fn decode(data: &[u8]) -> Result<Self, RecordError> {
        let fields: BTreeMap<String, Ipld> = serde_ipld_dagcbor::from_slice(data)
            .map_err(|error| RecordError::Document(format!("is not DAG-CBOR: {error}")))?;
        let ttl_nanos = fields.contains_key(key::TTL).then(|| number(&fields, key::TTL)).transpose()?;
        Ok(Self {
            value: bytes(&fields, key::VALUE)?,
            validity: bytes(&fields, key::VALIDITY)?,
            validity_type: number(&fields, key::VALIDITY_TYPE)?,
            sequence: number(&fields, key::SEQUENCE)?,
            ttl_nanos: ttl_nanos.unwrap_or_default(),
        })
    }

    /// The value as a path. A binary CID is accepted as well, as in old records. Any other value is returned as text;
    /// it is not a content path, and resolving it fails.
    pub fn path(&self) -> String {
        let binary = || Cid::try_from(&self.value[..]).ok().map(|cid| format!("/ipfs/{cid}"));
        match self.value.first() {
            None => NOTHING.to_owned(),
            Some(b'/') => String::from_utf8_lossy(&self.value).into_owned(),
            Some(_) => binary().unwrap_or_else(|| String::from_utf8_lossy(&self.value).into_owned()),
        }
    }

    /// When the record expires.
    pub fn end_of_life(&self) -> Result<SystemTime, RecordError> {
        if self.validity_type != UNTIL_END_OF_LIFE {
            return Err(RecordError::Document(format!("has the unknown validity type {}", self.validity_type)));
        }
        let text = std::str::from_utf8(&self.validity).ok();
        let time = text.and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok());
        time.map(SystemTime::from).ok_or_else(|| RecordError::Document("has no end of life in RFC 3339".to_owned()))
    }

    /// How long the record may be cached.
    pub fn ttl(&self) -> Duration {
        if self.ttl_nanos == 0 { TTL_DEFAULT } else { Duration::from_nanos(self.ttl_nanos) }
    }
}

fn bytes(fields: &BTreeMap<String, Ipld>, key: &str) -> Result<Vec<u8>, RecordError> {
    match fields.get(key) {
        Some(Ipld::Bytes(bytes)) => Ok(bytes.clone()),
        _ => Err(RecordError::Document(format!("has no bytes \"{key}\""))),
    }
}

fn number(fields: &BTreeMap<String, Ipld>, key: &str) -> Result<u64, RecordError> {
    let found = match fields.get(key) {
        Some(Ipld::Integer(number)) => u64::try_from(*number).ok(),
        _ => None,
    };
    found.ok_or_else(|| RecordError::Document(format!("has no number \"{key}\"")))
}
