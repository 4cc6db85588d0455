//! Peer records (<https://specs.ipfs.tech/routing/http-routing-v1/#known-schemas>): parsed from untrusted input with
//! limits, and written for light clients.
//!
//! Unknown content is skipped, as the specification requires: records of other schemas, unknown fields, and addresses
//! with unknown protocols.

use content::names::Key;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeStruct;
use serde::{Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::fmt;

/// Maximum addresses of one record; further ones are dropped.
pub const ADDRESSES_MAX: usize = 32;
/// Maximum transfer protocols of one record; further ones are dropped.
pub const PROTOCOLS_MAX: usize = 16;
/// The maximum length of a protocol name, in bytes.
const PROTOCOL_BYTES_MAX: usize = 128;
/// The maximum length of an address, in bytes of text.
pub const ADDRESS_BYTES_MAX: usize = 1024;

/// The only supported schema.
const SCHEMA: &str = "peer";
/// The JSON name of a list of providers.
pub const PROVIDERS: &str = "Providers";
/// The JSON name of a list of peers.
pub const PEERS: &str = "Peers";

/// The protocol name of Bitswap (<https://specs.ipfs.tech/routing/http-routing-v1/#known-transfer-protocols>).
pub const BITSWAP: &str = "transport-bitswap";
/// The protocol name of trustless gateways.
pub const HTTP_GATEWAY: &str = "transport-ipfs-gateway-http";

/// An unverified record: a peer with its addresses and transfer protocols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRecord {
    /// The peer ID.
    pub id: PeerId,
    /// The addresses; may be empty.
    pub addresses: Vec<Multiaddr>,
    /// The transfer protocols; empty if unknown.
    pub protocols: Vec<String>,
}

impl PeerRecord {
    /// A record without protocols.
    pub fn new(id: PeerId, addresses: Vec<Multiaddr>) -> Self {
        Self { id, addresses, protocols: Vec::new() }
    }

    /// Parses a record from a JSON value; `None` if it is invalid or has another schema.
    pub fn from_json(value: &Value) -> Option<Self> {
        if value.get("Schema")?.as_str()? != SCHEMA {
            return None;
        }
        // Specified as the text of a peer ID; some servers write it as a CID.
        let id = *Key::parse(value.get("ID")?.as_str()?)?.peer_id();
        let addresses = texts(value, "Addrs", ADDRESS_BYTES_MAX).filter_map(|text| text.parse().ok());
        let addresses = addresses.filter_map(|address| without_peer(address, &id)).take(ADDRESSES_MAX).collect();
        let protocols = texts(value, "Protocols", PROTOCOL_BYTES_MAX).take(PROTOCOLS_MAX).map(str::to_owned).collect();
        Some(Self { id, addresses, protocols })
    }

    /// The record as JSON on one line.
    pub fn to_json(&self) -> String {
        // Its serialisation cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The strings of a list in a record that are not too long.
fn texts<'a>(record: &'a Value, field: &str, bytes_max: usize) -> impl Iterator<Item = &'a str> {
    let list = record.get(field).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).filter(move |text| text.len() <= bytes_max)
}

/// An address without the peer ID at its end, which the record has already; `None` if it is the ID of another peer.
fn without_peer(mut address: Multiaddr, id: &PeerId) -> Option<Multiaddr> {
    while let Some(Protocol::P2p(peer)) = address.iter().last() {
        if peer != *id {
            return None;
        }
        address.pop();
    }
    (!address.is_empty()).then_some(address)
}

impl Serialize for PeerRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut record = serializer.serialize_struct("PeerRecord", 4)?;
        record.serialize_field("Schema", SCHEMA)?;
        record.serialize_field("ID", &Text(&self.id))?;
        record.serialize_field("Addrs", &self.addresses.iter().map(Text).collect::<Vec<_>>())?;
        record.serialize_field("Protocols", &self.protocols)?;
        record.end()
    }
}

/// Serialises a value as its text.
struct Text<'a, T>(&'a T);

impl<T: fmt::Display> Serialize for Text<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self.0)
    }
}

/// A complete JSON response: `{"Providers": […]}` or `{"Peers": […]}`.
pub fn to_json_list(name: &str, records: &[PeerRecord]) -> String {
    let list = serde_json::to_string(records).unwrap_or_default();
    format!("{{\"{name}\":{list}}}")
}

/// Why a response cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// It is not JSON, or has another structure.
    #[error("the response is invalid: {0}")]
    NotJson(String),
    /// A line is too long.
    #[error("a line of the response exceeds {max} bytes")]
    LineTooLong {
        /// The limit, in bytes.
        max: usize,
    },
    /// The response is too long.
    #[error("the response exceeds {max} bytes")]
    TooLong {
        /// The limit, in bytes.
        max: usize,
    },
}

/// Parses a complete JSON response with a list of either name, up to `records_max` records.
///
/// # Errors
/// [`FormatError::NotJson`] if the response is invalid.
pub fn from_json_list(bytes: &[u8], records_max: usize) -> Result<Vec<PeerRecord>, FormatError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let records = List { records_max }.deserialize(&mut json).and_then(|records| json.end().map(|()| records));
    records.map_err(|error| FormatError::NotJson(error.to_string()))
}

/// Parses the object with the list. Records are parsed one by one, so that only one is in memory as a JSON tree.
struct List {
    records_max: usize,
}

impl<'de> DeserializeSeed<'de> for List {
    type Value = Vec<PeerRecord>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for List {
    type Value = Vec<PeerRecord>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a list of providers or peers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                PROVIDERS | PEERS => found = Some(map.next_value_seed(Records { max: self.records_max })?),
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        found.ok_or_else(|| A::Error::custom("it has neither Providers nor Peers"))
    }
}

struct Records {
    max: usize,
}

impl<'de> DeserializeSeed<'de> for Records {
    type Value = Vec<PeerRecord>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Records {
    type Value = Vec<PeerRecord>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of records, or null")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut records = Vec::new();
        while records.len() < self.max {
            let Some(value) = list.next_element::<Value>()? else { return Ok(records) };
            records.extend(PeerRecord::from_json(&value));
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK";

    fn record(addresses: &[&str], protocols: &[&str]) -> PeerRecord {
        PeerRecord {
            id: PEER.parse().expect("a peer id"),
            addresses: addresses.iter().map(|text| text.parse().expect("an address")).collect(),
            protocols: protocols.iter().map(|text| (*text).to_owned()).collect(),
        }
    }

    fn read(text: &str) -> Option<PeerRecord> {
        PeerRecord::from_json(&serde_json::from_str(text).expect("JSON"))
    }

    #[test]
    fn records_are_parsed_and_unknown_content_is_skipped() {
        let whole = |rest: &str| format!("{{\"Schema\":\"peer\",\"ID\":\"{PEER}\"{rest}}}");
        let table = [
            (whole(""), Some(record(&[], &[]))),
            (whole(",\"Addrs\":null,\"Protocols\":null"), Some(record(&[], &[]))),
            (whole(",\"Addrs\":[\"/ip4/1.2.3.4/tcp/1\"]"), Some(record(&["/ip4/1.2.3.4/tcp/1"], &[]))),
            (
                whole(",\"Addrs\":[\"/dns4/a.example/tcp/443/tls/http\",\"/unheard/of\",7,\"\"],\"Extra\":{\"a\":[1]}"),
                Some(record(&["/dns4/a.example/tcp/443/tls/http"], &[])),
            ),
            (whole(",\"Protocols\":[\"transport-bitswap\",{},\"\"]"), Some(record(&[], &["transport-bitswap", ""]))),
            (whole(",\"Addrs\":\"none\",\"Protocols\":{}"), Some(record(&[], &[]))),
            (
                whole(&format!(",\"Addrs\":[\"/ip4/1.2.3.4/tcp/1/p2p/{PEER}\",\"/p2p/{PEER}/p2p/{PEER}\"]")),
                Some(record(&["/ip4/1.2.3.4/tcp/1"], &[])),
            ),
            (
                whole(",\"Addrs\":[\"/ip4/1.2.3.4/tcp/1/p2p/QmcJM7PRfkSbcM5cf1QugM5R37TLRKyJGgBEhXjLTB8uA2\"]"),
                Some(record(&[], &[])),
            ),
            ("{\"Schema\":\"bitswap\",\"ID\":7}".to_owned(), None),
            (format!("{{\"ID\":\"{PEER}\"}}"), None),
            ("{\"Schema\":\"peer\",\"ID\":\"invalid\"}".to_owned(), None),
            ("{\"Schema\":\"peer\"}".to_owned(), None),
            ("[1,2]".to_owned(), None),
            ("null".to_owned(), None),
        ];
        for (text, expected) in table {
            assert_eq!(read(&text), expected, "{text}");
        }
        let as_cid = Key::parse(PEER).expect("a key").to_string();
        assert_eq!(read(&format!("{{\"Schema\":\"peer\",\"ID\":\"{as_cid}\"}}")), Some(record(&[], &[])));
    }

    #[test]
    fn written_records_are_parsed_as_the_same() {
        for record in [record(&[], &[]), record(&["/ip4/1.2.3.4/udp/1/quic-v1", "/ip6/::1/tcp/2"], &[BITSWAP])] {
            assert_eq!(read(&record.to_json()).as_ref(), Some(&record));
            assert!(!record.to_json().contains('\n'));
            for name in [PROVIDERS, PEERS] {
                let list = to_json_list(name, &[record.clone(), record.clone()]);
                assert_eq!(from_json_list(list.as_bytes(), 9), Ok(vec![record.clone(); 2]));
            }
        }
        assert_eq!(to_json_list(PROVIDERS, &[]), "{\"Providers\":[]}");
        let written = record(&["/ip4/1.2.3.4/tcp/1"], &[BITSWAP]).to_json();
        assert_eq!(
            written,
            format!(
                "{{\"Schema\":\"peer\",\"ID\":\"{PEER}\",\"Addrs\":[\"/ip4/1.2.3.4/tcp/1\"],\
                 \"Protocols\":[\"transport-bitswap\"]}}"
            )
        );
    }

    #[test]
    fn records_and_lists_are_bounded() {
        let many = vec!["/ip4/1.2.3.4/tcp/1"; 10 * ADDRESSES_MAX];
        let long = "x".repeat(PROTOCOL_BYTES_MAX + 1);
        let mut protocols = vec!["short"; 10 * PROTOCOLS_MAX];
        protocols[0] = &long;
        let read = read(&record(&many, &protocols).to_json()).expect("a record");
        assert_eq!((read.addresses.len(), read.protocols.len()), (ADDRESSES_MAX, PROTOCOLS_MAX));
        assert!(read.protocols.iter().all(|protocol| protocol == "short"));
        let list = to_json_list(PEERS, &vec![record(&[], &[]); 100]);
        assert_eq!(from_json_list(list.as_bytes(), 7).map(|records| records.len()), Ok(7));
    }

    #[test]
    fn lists_of_other_types_are_rejected_and_other_fields_are_ignored() {
        let good = ["{\"Providers\":null}", "{\"a\":{\"b\":[1]},\"Peers\":[],\"c\":0}", "{\"Providers\":[1,{},null]}"];
        for text in good {
            assert_eq!(from_json_list(text.as_bytes(), 9), Ok(Vec::new()), "{text}");
        }
        let deep = format!("{{\"Peers\":[{}", "[".repeat(100_000));
        let bad = ["", "{}", "[]", "null", "{\"Providers\":7}", "{\"Peers\":[]", "{\"Peers\":[]}x", "<html>", &deep];
        for text in bad {
            assert!(matches!(from_json_list(text.as_bytes(), 9), Err(FormatError::NotJson(_))), "{text:.40}");
        }
    }
}
