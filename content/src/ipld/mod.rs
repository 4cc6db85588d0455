//! IPLD documents (<https://ipld.io/docs/data-model/>): blocks as values with keys, indices and links, for all
//! supported codecs.
//!
//! Goals: one value type for all codecs; conversions fail rather than lose data; a document has at most [`MAX_ITEMS`]
//! values and [`MAX_DEPTH`] levels, and the decoders check both before they allocate.
//!
//! Why not the `serde` codecs: here links have room for 128-byte digests, integers range from -2⁶⁴ to 2⁶⁴ - 1 in JSON
//! as well, plain CBOR and plain JSON have rules of their own, and the decoder has to enforce the limit on values.
//! Tests compare the decoders with the `serde` codecs.
//!
//! | module | concern |
//! |---|---|
//! | `cbor` | strict dag-cbor, and lenient plain CBOR |
//! | `json` | dag-json and plain JSON |
//! | `pb` | the logical form of dag-pb nodes |
//! | [`outline`](mod@outline) | a document as lines for display |
//!
//! The rules of each codec:
//!
//! - dag-cbor (<https://ipld.io/specs/codecs/dag-cbor/spec/>): strict: shortest heads, sorted and unique keys, finite
//!   floats of 64 bits, and no tags but that of links. Negative zero is kept, as in Kubo.
//! - CBOR (RFC 8949): also indefinite lengths, floats of every width, heads and key orders of any form, and
//!   `undefined`, which becomes null. Tags are ignored, except those of big integers, which are errors. It has no
//!   links.
//! - dag-json (<https://ipld.io/specs/codecs/dag-json/spec/>): white space and any order of keys are accepted, as in
//!   Kubo. Links and bytes must have exactly their reserved forms.
//! - JSON (RFC 8259): has neither links nor bytes. Integers beyond 64 bits become floats, as in browsers.
//! - dag-pb and raw: every valid node, and all bytes.
//!
//! Duplicate keys and text that is not UTF-8 are errors in all codecs.
//!
//! Non-goals: schemas, selectors, and writing dag-pb.

mod cbor;
mod json;
pub mod outline;
mod pb;

pub use outline::{Kind, Label, Line, Outline, OutlineLimits, outline};

use crate::block::Block;
use crate::cid::{Cid, codec};
use bytes::Bytes;

/// The maximum number of values and keys in a document. Besides the text and bytes of the block, they take at most some
/// 60 MiB of memory (for links of eight bytes each).
pub const MAX_ITEMS: usize = 256 * 1024;

/// The maximum nesting of lists and maps.
pub const MAX_DEPTH: usize = 128;

/// A value of the IPLD data model (<https://ipld.io/docs/data-model/kinds/>).
#[derive(Debug, Clone, PartialEq)]
pub enum Ipld {
    /// Null.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer. Documents have those from -2⁶⁴ to 2⁶⁴ - 1.
    Integer(i128),
    /// A float. Not-a-number and infinities come from plain CBOR only, and cannot be encoded.
    Float(f64),
    /// Text.
    String(String),
    /// Bytes, shared with the block if its codec has them verbatim.
    Bytes(Bytes),
    /// Values by index.
    List(Vec<Self>),
    /// Values by key.
    Map(Map),
    /// A link to another block. Boxed, because CIDs are several times as large as the other variants.
    Link(Box<Cid>),
}

/// Values by key. Keys are unique and sorted by their bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Map(Vec<(String, Ipld)>);

/// Why a block cannot be decoded or converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IpldError {
    /// The block is valid, but cannot be expressed in the requested format. Another format may work; the raw block
    /// always does.
    #[error("{cid} cannot be converted: {reason}")]
    NotConvertible {
        /// The block.
        cid: Cid,
        /// What cannot be expressed.
        reason: String,
    },
    /// The bytes violate the rules of their codec.
    #[error("{cid} is malformed: {reason}")]
    Malformed {
        /// The block.
        cid: Cid,
        /// The violation.
        reason: String,
    },
    /// The document exceeds [`MAX_ITEMS`] or [`MAX_DEPTH`].
    #[error("{cid} has more than {MAX_ITEMS} values or {MAX_DEPTH} levels")]
    TooComplex {
        /// The block.
        cid: Cid,
    },
}

/// Why a value cannot be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Encoding to this codec is not supported.
    #[error("encoding to the codec 0x{0:x} is not supported")]
    Codec(u64),
    /// The data model allows only finite floats.
    #[error("a float is not a finite number")]
    Float,
    /// The integer has more than 64 bits.
    #[error("an integer has more than 64 bits")]
    Integer,
    /// The map would be decoded as a link or as bytes.
    #[error("a map has the key \"/\" in a form that dag-json reserves")]
    Reserved,
    /// The value has more than [`MAX_DEPTH`] levels.
    #[error("it has more than {MAX_DEPTH} levels")]
    TooDeep,
}

/// Decodes a block by the codec of its CID.
///
/// # Errors
/// [`IpldError`]; for an unsupported codec [`IpldError::NotConvertible`].
pub fn decode(block: &Block) -> Result<Ipld, IpldError> {
    let (cid, data) = (block.cid(), block.data());
    let document = match cid.codec() {
        codec::DAG_CBOR => cbor::decode(data, Dialect::Dag),
        codec::CBOR => cbor::decode(data, Dialect::Plain),
        codec::DAG_JSON => json::decode(data, Dialect::Dag),
        codec::JSON => json::decode(data, Dialect::Plain),
        codec::DAG_PB => pb::decode(data),
        codec::RAW => Ok(Ipld::Bytes(data.clone())),
        codec => Err(CodecError::inexpressible(format!("the codec 0x{codec:x} is not supported"))),
    };
    document.map_err(|error| error.of(cid))
}

/// Calls `each` for the links of a dag-cbor block, in stored order and without limits, because listing links is cheap
/// compared with fetching them.
pub(crate) fn links_cbor(block: &Block, each: &mut dyn FnMut(Cid)) -> Result<(), IpldError> {
    cbor::links(block.data(), each).map_err(|error| error.of(block.cid()))
}

/// The links of a block with the codec dag-cbor, even if it is only plain CBOR; none if it is not CBOR.
pub(crate) fn links_cbor_leniently(block: &Block) -> Vec<Cid> {
    let mut links = Vec::new();
    match cbor::links(block.data(), &mut |cid| links.push(cid)) {
        Ok(()) => links,
        Err(_) => cbor::links_leniently(block.data()).unwrap_or_default(),
    }
}

/// Calls `each` for the links of a dag-json block, sorted by the keys above them. In canonical documents that is the
/// stored order.
pub(crate) fn links_json(block: &Block, each: &mut dyn FnMut(Cid)) -> Result<(), IpldError> {
    each_link(decode(block)?, each);
    Ok(())
}

/// Recursive: the decoder bounds the depth.
fn each_link(value: Ipld, each: &mut dyn FnMut(Cid)) {
    match value {
        Ipld::Link(cid) => each(*cid),
        Ipld::List(list) => list.into_iter().for_each(|value| each_link(value, each)),
        Ipld::Map(map) => map.0.into_iter().for_each(|(_, value)| each_link(value, each)),
        _ => {}
    }
}

/// Encodes a value as dag-cbor or dag-json. The result is also valid plain CBOR or JSON, of which the two are subsets.
///
/// # Errors
/// [`EncodeError`] for another codec, or when the codec cannot express the value.
pub fn encode(value: &Ipld, codec: u64) -> Result<Bytes, EncodeError> {
    match codec {
        codec::DAG_CBOR | codec::CBOR => cbor::encode(value),
        codec::DAG_JSON | codec::JSON => json::encode(value),
        codec => Err(EncodeError::Codec(codec)),
    }
}

/// Converts a block to another codec. A block that has this codec already is returned as it is, and so is dag-cbor as
/// CBOR and dag-json as JSON. Other results are at most six times as large as the block, when all characters of a text
/// are escaped.
///
/// # Errors
/// [`IpldError`].
pub fn convert(block: &Block, to: u64) -> Result<Bytes, IpldError> {
    match (block.cid().codec(), to) {
        (from, to) if from == to => return Ok(block.data().clone()),
        (codec::DAG_CBOR, codec::CBOR) | (codec::DAG_JSON, codec::JSON) => return Ok(block.data().clone()),
        _ => {}
    }
    let document = decode(block)?;
    encode(&document, to).map_err(|reason| IpldError::NotConvertible { cid: *block.cid(), reason: reason.to_string() })
}

/// Whether path segments are keys and indices in blocks of a codec. In dag-pb blocks they are names of links.
pub fn is_document(codec: u64) -> bool {
    matches!(codec, codec::DAG_CBOR | codec::CBOR | codec::DAG_JSON | codec::JSON)
}

impl Ipld {
    /// The value at a path segment: the key of a map, or the index of a list in decimal digits without leading zeros.
    /// Links are not followed.
    pub fn get(&self, segment: &str) -> Option<&Self> {
        match self {
            Self::Map(map) => map.get(segment),
            Self::List(list) => list.get(index(segment)?),
            _ => None,
        }
    }
}

/// Parses an index. Each index has one valid form, so that each value has one path.
fn index(segment: &str) -> Option<usize> {
    let canonical = segment == "0" || !segment.starts_with(['0', '+']);
    segment.parse().ok().filter(|_| canonical)
}

impl Map {
    /// A map of entries in any order; `None` when a key is duplicate.
    pub fn new(mut entries: Vec<(String, Ipld)>) -> Option<Self> {
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        entries.shrink_to_fit();
        entries.is_sorted_by(|(a, _), (b, _)| a < b).then_some(Self(entries))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Ipld> {
        let offset = self.0.binary_search_by(|(found, _)| found.as_str().cmp(key)).ok()?;
        self.0.get(offset).map(|(_, value)| value)
    }

    /// All keys and values, sorted by the bytes of the keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Ipld)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whether a codec is an IPLD codec or the plain format that it is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Dag,
    Plain,
}

/// An [`IpldError`] without the CID, which decoders do not know.
#[derive(Debug, PartialEq)]
enum CodecError {
    Malformed(String),
    /// The bytes are valid, but have values outside the data model.
    Inexpressible(String),
    TooComplex,
}

impl CodecError {
    fn malformed(reason: impl Into<String>) -> Self {
        Self::Malformed(reason.into())
    }

    fn inexpressible(reason: impl Into<String>) -> Self {
        Self::Inexpressible(reason.into())
    }

    fn of(self, cid: &Cid) -> IpldError {
        let cid = *cid;
        match self {
            Self::Malformed(reason) => IpldError::Malformed { cid, reason },
            Self::Inexpressible(reason) => IpldError::NotConvertible { cid, reason },
            Self::TooComplex => IpldError::TooComplex { cid },
        }
    }
}

/// The limits that are left for a document.
struct ItemBudget {
    items: usize,
    levels: usize,
}

impl ItemBudget {
    /// The limits of a document, less its outermost value.
    fn new() -> Self {
        Self { items: MAX_ITEMS - 1, levels: MAX_DEPTH }
    }

    /// Counts values or keys. The values of a list of known length are counted before memory is allocated for them, so
    /// that nested lists cannot allocate for more than [`MAX_ITEMS`] together.
    fn take(&mut self, items: usize) -> Result<(), CodecError> {
        self.items = self.items.checked_sub(items).ok_or(CodecError::TooComplex)?;
        Ok(())
    }

    /// Enters a list or map. All recursion of the decoders passes here, so this also bounds the stack.
    fn enter(&mut self) -> Result<(), CodecError> {
        self.levels = self.levels.checked_sub(1).ok_or(CodecError::TooComplex)?;
        Ok(())
    }

    fn leave(&mut self) {
        self.levels += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_has_one_form() {
        let list = Ipld::List(vec![Ipld::Null, Ipld::Bool(true)]);
        let table = [("0", true), ("1", true), ("2", false), ("01", false), ("00", false), ("+1", false)];
        let more = [("-1", false), ("", false), ("1 ", false), ("a", false), ("99999999999999999999999", false)];
        for (segment, found) in table.into_iter().chain(more) {
            assert_eq!(list.get(segment).is_some(), found, "{segment}");
        }
        assert_eq!(Ipld::Null.get("0"), None);
    }

    #[test]
    fn maps_have_unique_keys_and_find_values() {
        let entry = |key: &str, value| (key.to_owned(), Ipld::Integer(value));
        let map = Map::new(vec![entry("b", 1), entry("aa", 2), entry("", 3)]).expect("distinct keys");
        assert_eq!(map.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["", "aa", "b"]);
        let table = [("b", Some(1)), ("aa", Some(2)), ("", Some(3)), ("a", None), ("0", None)];
        for (key, value) in table {
            assert_eq!(map.get(key), value.map(Ipld::Integer).as_ref(), "{key}");
        }
        assert_eq!(Map::new(vec![entry("a", 1), entry("b", 1), entry("a", 2)]), None);
    }
}
