//! The protobuf message of a record (<https://specs.ipfs.tech/ipns/ipns-record/#record-serialization-format>), decoded
//! in place.

use super::RecordError;
use super::document::Document;
use crate::dagpb::{PbError, take_delimited as take};
use bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The fields of a record. Absent fields are empty or zero; the format does not distinguish the two.
#[derive(Debug, Default)]
pub(super) struct IpnsEntry<'a> {
    pub value: &'a [u8],
    pub signature_v1: &'a [u8],
    pub validity_type: u64,
    pub validity: &'a [u8],
    pub sequence: u64,
    pub ttl: u64,
    pub public_key: &'a [u8],
    pub signature_v2: &'a [u8],
    pub data: &'a [u8],
}

/// The field numbers.
pub(super) mod tag {
    pub const VALUE: u32 = 1;
    pub const SIGNATURE_V1: u32 = 2;
    pub const VALIDITY_TYPE: u32 = 3;
    pub const VALIDITY: u32 = 4;
    pub const SEQUENCE: u32 = 5;
    pub const TTL: u32 = 6;
    pub const PUBLIC_KEY: u32 = 7;
    pub const SIGNATURE_V2: u32 = 8;
    pub const DATA: u32 = 9;
}

impl<'a> IpnsEntry<'a> {
    /// Decodes the fields. As protobuf requires, the last of a repeated field counts, and unknown fields are skipped.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, PbError> {
        let mut entry = Self::default();
        let mut rest = bytes;
        while rest.has_remaining() {
            let (number, wire_type) = decode_key(&mut rest)?;
            match (number, wire_type) {
                (tag::VALUE, WireType::LengthDelimited) => entry.value = take(&mut rest)?,
                (tag::SIGNATURE_V1, WireType::LengthDelimited) => entry.signature_v1 = take(&mut rest)?,
                (tag::VALIDITY_TYPE, WireType::Varint) => entry.validity_type = decode_varint(&mut rest)?,
                (tag::VALIDITY, WireType::LengthDelimited) => entry.validity = take(&mut rest)?,
                (tag::SEQUENCE, WireType::Varint) => entry.sequence = decode_varint(&mut rest)?,
                (tag::TTL, WireType::Varint) => entry.ttl = decode_varint(&mut rest)?,
                (tag::PUBLIC_KEY, WireType::LengthDelimited) => entry.public_key = take(&mut rest)?,
                (tag::SIGNATURE_V2, WireType::LengthDelimited) => entry.signature_v2 = take(&mut rest)?,
                (tag::DATA, WireType::LengthDelimited) => entry.data = take(&mut rest)?,
                _ => skip_field(wire_type, number, &mut rest, DecodeContext::default())?,
            }
        }
        Ok(entry)
    }

    /// Whether the record has version 1 fields.
    pub fn has_version_1(&self) -> bool {
        !self.signature_v1.is_empty() || !self.value.is_empty()
    }

    /// Checks that the version 1 fields equal the document that the version 2 signature covers.
    pub fn compare(&self, document: &Document) -> Result<(), RecordError> {
        let same = [
            ("value", self.value == document.value),
            ("validityType", self.validity_type == document.validity_type),
            ("validity", self.validity == document.validity),
            ("sequence", self.sequence == document.sequence),
            ("ttl", self.ttl == document.ttl_nanos),
        ];
        same.into_iter().find(|(_, same)| !same).map_or(Ok(()), |(field, _)| Err(RecordError::Differs { field }))
    }
}
