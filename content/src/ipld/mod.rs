//! IPLD documents (<https://ipld.io/docs/data-model/>): blocks as values that have keys, indices and links, whatever codec
//! they are written in.
//!
//! Goals: one value type for every codec; conversions that lose nothing silently; no document costs more than
//! [`MAX_ITEMS`] values and [`MAX_DEPTH`] levels, however it was written, and both are checked while it is read, before
//! memory is claimed for it.
//!
//! Why a reader of our own and not the `serde` codecs: links here have room for 128-byte digests, integers reach from
//! -2⁶⁴ to 2⁶⁴ - 1 in JSON as well, plain CBOR and plain JSON have rules of their own, and a limit on items has to hold
//! inside the reader. The `serde` codecs are what the tests compare with.
//!
//! | module | concern |
//! |---|---|
//! | `cbor` | dag-cbor, strictly, and plain CBOR, leniently |
//! | `json` | dag-json and plain JSON |
//! | `pb` | the logical form of dag-pb nodes |
//! | [`outline`](mod@outline) | a document as lines for a page |
//!
//! What is accepted of each codec:
//!
//! - dag-cbor (<https://ipld.io/specs/codecs/dag-cbor/spec/>): exactly what its specification allows to be written:
//!   shortest heads, sorted and unique keys, floats of 64 bits that are numbers, and no tag but that of links. A negative
//!   zero is kept, which Kubo writes as well.
//! - CBOR (RFC 8949): also indefinite lengths, floats of every width, heads and key orders of any kind, and `undefined`,
//!   which becomes null. Tags are dropped from what they mark, since they are advice to applications. It has no links.
//! - dag-json (<https://ipld.io/specs/codecs/dag-json/spec/>): white space and keys of any order are accepted, like Kubo
//!   does. Links and bytes have to be in their reserved forms exactly.
//! - JSON (RFC 8259): has neither links nor bytes. Integers beyond 64 bits become floats, as browsers read them.
//! - dag-pb and raw: every node and every string of bytes.
//!
//! Repeated keys and text that is not UTF-8 are errors everywhere.
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

/// How many values and keys a document may have. The most that they take in memory, besides the text and bytes that are
/// in the block anyway, is some 60 MiB (nothing but links of eight bytes).
pub const MAX_ITEMS: usize = 256 * 1024;

/// How many lists and maps may be inside each other.
pub const MAX_DEPTH: usize = 128;

/// A value of the IPLD data model (<https://ipld.io/docs/data-model/kinds/>).
#[derive(Debug, Clone, PartialEq)]
pub enum Ipld {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number. Documents have those from -2⁶⁴ to 2⁶⁴ - 1.
    Integer(i128),
    /// A number with a fraction. Not-a-number and infinities come from plain CBOR only, and cannot be written.
    Float(f64),
    /// Text.
    String(String),
    /// Bytes, shared with the block where its codec has them as they are.
    Bytes(Bytes),
    /// Values by index.
    List(Vec<Self>),
    /// Values by key.
    Map(Map),
    /// A link to another block. Boxed, since CIDs are several times as large as anything else here.
    Link(Box<Cid>),
}

/// Values by key, each key once, sorted by the bytes of the keys.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Map(Vec<(String, Ipld)>);

/// Why a block cannot be read or written as an IPLD document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IpldError {
    /// The block is what it says, but it has no counterpart in what was asked for. Another format may do, the raw block
    /// always does.
    #[error("{cid} cannot be converted: {reason}")]
    NotConvertible {
        /// The block.
        cid: Cid,
        /// What has no counterpart.
        reason: String,
    },
    /// The bytes break the rules of their codec.
    #[error("{cid} is malformed: {reason}")]
    Malformed {
        /// The block.
        cid: Cid,
        /// Which rule.
        reason: String,
    },
    /// The document is beyond [`MAX_ITEMS`] or [`MAX_DEPTH`].
    #[error("{cid} has more than {MAX_ITEMS} values or {MAX_DEPTH} levels")]
    TooComplex {
        /// The block.
        cid: Cid,
    },
}

/// Why a value cannot be written in a codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Nothing is written in this codec here.
    #[error("documents are not written in the codec 0x{0:x}")]
    Codec(u64),
    /// The data model has no such float.
    #[error("a float is not a finite number")]
    Float,
    /// The integer is beyond what the codecs agree on.
    #[error("an integer has more than 64 bits")]
    Integer,
    /// The map would be read back as a link or as bytes.
    #[error("a map has the key \"/\" in a way that dag-json reserves")]
    Reserved,
    /// There are more than [`MAX_DEPTH`] levels.
    #[error("it has more than {MAX_DEPTH} levels")]
    TooDeep,
}

/// Reads a document, by the codec of its CID.
///
/// # Errors
/// [`IpldError`]; a codec that is not read here is [`IpldError::NotConvertible`].
pub fn decode(block: &Block) -> Result<Ipld, IpldError> {
    let (cid, data) = (block.cid(), block.data());
    let document = match cid.codec() {
        codec::DAG_CBOR => cbor::decode(data, Dialect::Dag),
        codec::CBOR => cbor::decode(data, Dialect::Plain),
        codec::DAG_JSON => json::decode(data, Dialect::Dag),
        codec::JSON => json::decode(data, Dialect::Plain),
        codec::DAG_PB => pb::decode(data),
        codec::RAW => Ok(Ipld::Bytes(data.clone())),
        codec => Err(Fault::inexpressible(format!("the codec 0x{codec:x} is not read here"))),
    };
    document.map_err(|fault| fault.of(cid))
}

/// Hands on the links of a dag-cbor block, in stored order and without limits: a list of links is no work beside fetching
/// them.
pub(crate) fn links_cbor(block: &Block, each: &mut dyn FnMut(Cid)) -> Result<(), IpldError> {
    cbor::links(block.data(), each).map_err(|fault| fault.of(block.cid()))
}

/// The links of a block that is to be dag-cbor, even if it breaks the rules of that; none if it is no CBOR at all.
pub(crate) fn links_cbor_leniently(block: &Block) -> Vec<Cid> {
    let mut links = Vec::new();
    match cbor::links(block.data(), &mut |cid| links.push(cid)) {
        Ok(()) => links,
        Err(_) => cbor::links_leniently(block.data()).unwrap_or_default(),
    }
}

/// Hands on the links of a dag-json block, by the keys that they are below: in stored order, if the document is as the
/// codec wants it.
pub(crate) fn links_json(block: &Block, each: &mut dyn FnMut(Cid)) -> Result<(), IpldError> {
    each_link(decode(block)?, each);
    Ok(())
}

/// As deep as documents are, which is bounded.
fn each_link(value: Ipld, each: &mut dyn FnMut(Cid)) {
    match value {
        Ipld::Link(cid) => each(*cid),
        Ipld::List(list) => list.into_iter().for_each(|value| each_link(value, each)),
        Ipld::Map(map) => map.0.into_iter().for_each(|(_, value)| each_link(value, each)),
        _ => {}
    }
}

/// Writes a value as dag-cbor or dag-json, which are also what it is as plain CBOR and plain JSON: those have no rules of
/// their own that the stricter codecs break.
///
/// # Errors
/// [`EncodeError`] when the codec is another, or cannot express the value.
pub fn encode(value: &Ipld, codec: u64) -> Result<Bytes, EncodeError> {
    match codec {
        codec::DAG_CBOR | codec::CBOR => cbor::encode(value),
        codec::DAG_JSON | codec::JSON => json::encode(value),
        codec => Err(EncodeError::Codec(codec)),
    }
}

/// A block in another codec. A block that is in it already is not touched, and one in dag-cbor or dag-json *is* plain CBOR
/// or JSON: their bytes are returned as they are, whatever they hold. Other results are at most some six times as large
/// as the block, which is when every character of a text has to be escaped.
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

/// Whether blocks of a codec are documents that paths lead through by keys and indices. Those of dag-pb are not: their
/// paths are names of links.
pub fn is_document(codec: u64) -> bool {
    matches!(codec, codec::DAG_CBOR | codec::CBOR | codec::DAG_JSON | codec::JSON)
}

impl Ipld {
    /// What a path segment names in this value: the key of a map, or the index of a list in decimal digits without
    /// leading zeros. Anything else has nothing below it; a link is for the caller to follow.
    pub fn get(&self, segment: &str) -> Option<&Self> {
        match self {
            Self::Map(map) => map.get(segment),
            Self::List(list) => list.get(index(segment)?),
            _ => None,
        }
    }
}

/// Reads an index. One index has one spelling, so that one value has one path.
fn index(segment: &str) -> Option<usize> {
    let canonical = segment == "0" || !segment.starts_with(['0', '+']);
    segment.parse().ok().filter(|_| canonical)
}

impl Map {
    /// A map of entries in any order, or `None` when a key occurs twice.
    pub fn new(mut entries: Vec<(String, Ipld)>) -> Option<Self> {
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        entries.shrink_to_fit();
        entries.is_sorted_by(|(a, _), (b, _)| a < b).then_some(Self(entries))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Ipld> {
        let at = self.0.binary_search_by(|(found, _)| found.as_str().cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    /// Every key and value, by the bytes of the keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Ipld)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whether a codec is one of IPLD's, or the common one that it was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Dag,
    Plain,
}

/// An [`IpldError`] without the CID, which readers do not know.
#[derive(Debug, PartialEq)]
enum Fault {
    Malformed(String),
    /// The bytes follow their rules, but say what the data model cannot.
    Inexpressible(String),
    TooComplex,
}

impl Fault {
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

/// What a document may still cost.
struct Budget {
    items: usize,
    levels: usize,
}

impl Budget {
    /// The budget of a document, of which its outermost value is paid.
    fn new() -> Self {
        Self { items: MAX_ITEMS - 1, levels: MAX_DEPTH }
    }

    /// Pays for values, or keys. A list whose length is known pays for all of its values before memory is claimed for
    /// them, so lists inside each other cannot claim more than all of them may have.
    fn take(&mut self, items: usize) -> Result<(), Fault> {
        self.items = self.items.checked_sub(items).ok_or(Fault::TooComplex)?;
        Ok(())
    }

    /// Goes into a list or map. Every reader recurses here only, so this also bounds its stack.
    fn enter(&mut self) -> Result<(), Fault> {
        self.levels = self.levels.checked_sub(1).ok_or(Fault::TooComplex)?;
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
    fn an_index_has_one_spelling() {
        let list = Ipld::List(vec![Ipld::Null, Ipld::Bool(true)]);
        let table = [("0", true), ("1", true), ("2", false), ("01", false), ("00", false), ("+1", false)];
        let more = [("-1", false), ("", false), ("1 ", false), ("a", false), ("99999999999999999999999", false)];
        for (segment, found) in table.into_iter().chain(more) {
            assert_eq!(list.get(segment).is_some(), found, "{segment}");
        }
        assert_eq!(Ipld::Null.get("0"), None);
    }

    #[test]
    fn a_map_has_each_key_once_and_is_found_in() {
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
