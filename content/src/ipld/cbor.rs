//! CBOR (RFC 8949), strict as dag-cbor (<https://ipld.io/specs/codecs/dag-cbor/spec/>) and lenient as plain CBOR. For
//! the rules of each see [`crate::ipld`].

use super::{CodecError, Dialect, EncodeError, Ipld, ItemBudget, MAX_DEPTH, Map};
use crate::cid::Cid;
use bytes::Bytes;

/// The tag of links.
const LINK: u64 = 42;

/// Major types, the first three bits of a head.
mod major {
    pub const UNSIGNED: u8 = 0;
    pub const NEGATIVE: u8 = 1;
    pub const BYTES: u8 = 2;
    pub const TEXT: u8 = 3;
    pub const LIST: u8 = 4;
    pub const MAP: u8 = 5;
    pub const TAG: u8 = 6;
    pub const SIMPLE: u8 = 7;
}

/// Values of the last five bits of a head.
mod info {
    pub const FALSE: u8 = 20;
    pub const TRUE: u8 = 21;
    pub const NULL: u8 = 22;
    pub const UNDEFINED: u8 = 23;
    pub const ONE_BYTE: u8 = 24;
    pub const TWO_BYTES: u8 = 25;
    pub const FOUR_BYTES: u8 = 26;
    pub const EIGHT_BYTES: u8 = 27;
    /// An indefinite length; as a simple value, a break.
    pub const INDEFINITE: u8 = 31;
}

/// Decodes a document, without trailing bytes.
pub(super) fn decode(bytes: &Bytes, dialect: Dialect) -> Result<Ipld, CodecError> {
    let mut reader = Reader { bytes, rest: bytes, dialect, budget: ItemBudget::new() };
    let value = reader.value()?;
    if reader.rest.is_empty() { Ok(value) } else { Err(trailing()) }
}

/// Calls `each` for the links of a dag-cbor document, in stored order. Checks only what is needed to find them, in a
/// single pass without a tree, so the size and the depth of the document are unlimited.
pub(super) fn links(bytes: &Bytes, each: &mut dyn FnMut(Cid)) -> Result<(), CodecError> {
    Reader { bytes, rest: bytes, dialect: Dialect::Dag, budget: ItemBudget::new() }.links(each)
}

/// The links of a document that is CBOR but not valid dag-cbor: all values with the link tag that are links.
pub(super) fn links_leniently(bytes: &Bytes) -> Result<Vec<Cid>, CodecError> {
    let mut reader = Reader { bytes, rest: bytes, dialect: Dialect::Plain, budget: ItemBudget::new() };
    let mut links = Vec::new();
    // Nesting does not matter for links, so all values are read in sequence.
    while !reader.rest.is_empty() {
        let head = reader.head()?;
        match head.major {
            major::BYTES | major::TEXT if !head.is_indefinite() => _ = reader.take(head.argument)?,
            major::TAG if head.argument == LINK => {
                let before = reader.rest;
                match reader.link(LINK) {
                    Ok(link) => links.push(link),
                    Err(_) => reader.rest = before,
                }
            }
            _ => {}
        }
    }
    Ok(links)
}

struct Reader<'a> {
    bytes: &'a Bytes,
    rest: &'a [u8],
    dialect: Dialect,
    budget: ItemBudget,
}

/// The head of a data item.
#[derive(Clone, Copy)]
struct Head {
    major: u8,
    info: u8,
    argument: u64,
}

impl Head {
    fn is_indefinite(self) -> bool {
        self.info == info::INDEFINITE
    }

    fn is_break(self) -> bool {
        self.major == major::SIMPLE && self.is_indefinite()
    }
}

fn truncated() -> CodecError {
    CodecError::malformed("it is truncated")
}

fn trailing() -> CodecError {
    CodecError::malformed("there are bytes after the document")
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: u64) -> Result<&'a [u8], CodecError> {
        let length = usize::try_from(length).map_err(|_| truncated())?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or_else(truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// An error in the strict dialect, for features of plain CBOR.
    fn only_plain(&self, what: &str) -> Result<(), CodecError> {
        match self.dialect {
            Dialect::Plain => Ok(()),
            Dialect::Dag => Err(CodecError::malformed(format!("dag-cbor has no {what}"))),
        }
    }

    fn head(&mut self) -> Result<Head, CodecError> {
        let [byte] = self.array()?;
        let (major, info) = (byte >> 5, byte & 0x1f);
        // The argument, and the smallest one that needs as many bytes.
        let (argument, least) = match info {
            0..info::ONE_BYTE => (u64::from(info), 0),
            info::ONE_BYTE => (u64::from(u8::from_be_bytes(self.array()?)), 24),
            info::TWO_BYTES => (u64::from(u16::from_be_bytes(self.array()?)), 1 << 8),
            info::FOUR_BYTES => (u64::from(u32::from_be_bytes(self.array()?)), 1 << 16),
            info::EIGHT_BYTES => (u64::from_be_bytes(self.array()?), 1 << 32),
            info::INDEFINITE => (0, 0),
            _ => return Err(CodecError::malformed(format!("a value begins with the reserved byte 0x{byte:x}"))),
        };
        // The argument of a float is its bits, which have no shorter form.
        if major != major::SIMPLE && argument < least {
            self.only_plain("heads that could be shorter")?;
        }
        match (major, info) {
            (major::BYTES | major::TEXT | major::LIST | major::MAP, info::INDEFINITE) => {
                self.only_plain("indefinite lengths")?;
            }
            (major::UNSIGNED | major::NEGATIVE | major::TAG, info::INDEFINITE) => {
                return Err(CodecError::malformed("a number cannot have an indefinite length"));
            }
            _ => {}
        }
        Ok(Head { major, info, argument })
    }

    fn value(&mut self) -> Result<Ipld, CodecError> {
        let head = self.head()?;
        self.value_of(head)
    }

    fn value_of(&mut self, mut head: Head) -> Result<Ipld, CodecError> {
        while head.major == major::TAG {
            if self.dialect == Dialect::Dag {
                return self.link(head.argument).map(|cid| Ipld::Link(Box::new(cid)));
            }
            head = self.untagged(head.argument)?;
        }
        match head.major {
            major::UNSIGNED => Ok(Ipld::Integer(i128::from(head.argument))),
            major::NEGATIVE => Ok(Ipld::Integer(-1 - i128::from(head.argument))),
            major::BYTES => self.bytes(head).map(Ipld::Bytes),
            major::TEXT => self.text(head).map(Ipld::String),
            major::LIST => self.list(head),
            major::MAP => self.map(head),
            _ => self.simple(head),
        }
    }

    /// The head of the value after a tag.
    fn untagged(&mut self, tag: u64) -> Result<Head, CodecError> {
        // These are the tags of big integers, which without them would be byte strings.
        if matches!(tag, 2 | 3) {
            return Err(CodecError::inexpressible("an integer has more than 64 bits"));
        }
        self.budget.take(1)?;
        self.head()
    }

    fn links(&mut self, each: &mut dyn FnMut(Cid)) -> Result<(), CodecError> {
        // Values and keys that are to follow. Each takes at least one byte.
        let mut left = 1_usize;
        while left > 0 {
            let head = self.head()?;
            let inside = match head.major {
                major::LIST => self.count(head.argument, 1)?,
                major::MAP => 2 * self.count(head.argument, 2)?,
                major::BYTES | major::TEXT => self.take(head.argument).map(|_| 0)?,
                major::TAG => {
                    each(self.link(head.argument)?);
                    0
                }
                major::SIMPLE => self.simple(head).map(|_| 0)?,
                _ => 0,
            };
            left = left - 1 + inside;
            if left > self.rest.len() {
                return Err(truncated());
            }
        }
        if self.rest.is_empty() { Ok(()) } else { Err(trailing()) }
    }

    fn link(&mut self, tag: u64) -> Result<Cid, CodecError> {
        if tag != LINK {
            return Err(CodecError::malformed(format!("dag-cbor has no tag {tag}")));
        }
        let head = self.head()?;
        if head.major != major::BYTES {
            return Err(CodecError::malformed("a link is not a byte string"));
        }
        // The multibase prefix of binary data is zero.
        let bytes = self.take(head.argument)?;
        let mut binary =
            bytes.strip_prefix(&[0]).ok_or_else(|| CodecError::malformed("a link does not begin with zero"))?;
        let cid = Cid::read_bytes(&mut binary)
            .map_err(|error| CodecError::malformed(format!("a link is not a CID: {error}")))?;
        if !binary.is_empty() {
            return Err(CodecError::malformed("there are bytes after the CID of a link"));
        }
        Ok(cid)
    }

    fn bytes(&mut self, head: Head) -> Result<Bytes, CodecError> {
        if !head.is_indefinite() {
            return Ok(self.bytes.slice_ref(self.take(head.argument)?));
        }
        let mut whole = Vec::new();
        while let Some(part) = self.head_or_break()? {
            if part.major != head.major || part.is_indefinite() {
                return Err(CodecError::malformed("a chunk of an indefinite-length string has another type"));
            }
            whole.extend_from_slice(self.take(part.argument)?);
        }
        Ok(whole.into())
    }

    fn text(&mut self, head: Head) -> Result<String, CodecError> {
        let bytes = self.bytes(head)?;
        let text = std::str::from_utf8(&bytes)
            .map_err(|error| CodecError::malformed(format!("a text is not UTF-8: {error}")))?;
        Ok(text.to_owned())
    }

    /// The next head in an indefinite-length value, or `None` at its break.
    fn head_or_break(&mut self) -> Result<Option<Head>, CodecError> {
        let head = self.head()?;
        Ok((!head.is_break()).then_some(head))
    }

    /// Checks that `count` elements of `each` items can follow in the bytes that are left.
    fn count(&self, count: u64, each: usize) -> Result<usize, CodecError> {
        let count = usize::try_from(count).ok().filter(|count| *count <= self.rest.len() / each);
        count.ok_or_else(truncated)
    }

    /// The same, and counts the items against the limits.
    fn claim(&mut self, count: u64, each: usize) -> Result<usize, CodecError> {
        let count = self.count(count, each)?;
        self.budget.take(count * each)?;
        Ok(count)
    }

    fn list(&mut self, head: Head) -> Result<Ipld, CodecError> {
        self.budget.enter()?;
        let mut list = Vec::new();
        if head.is_indefinite() {
            while let Some(head) = self.head_or_break()? {
                self.budget.take(1)?;
                list.push(self.value_of(head)?);
            }
        } else {
            let count = self.claim(head.argument, 1)?;
            list.reserve_exact(count);
            for _ in 0..count {
                list.push(self.value()?);
            }
        }
        self.budget.leave();
        Ok(Ipld::List(list))
    }

    fn map(&mut self, head: Head) -> Result<Ipld, CodecError> {
        self.budget.enter()?;
        let mut entries = Vec::new();
        if head.is_indefinite() {
            while let Some(head) = self.head_or_break()? {
                self.budget.take(2)?;
                entries.push((self.key(head)?, self.value()?));
            }
        } else {
            let count = self.claim(head.argument, 2)?;
            entries.reserve_exact(count);
            for _ in 0..count {
                let head = self.head()?;
                entries.push((self.key(head)?, self.value()?));
            }
        }
        self.budget.leave();
        if !entries.is_sorted_by(|(a, _), (b, _)| sort_key(a) < sort_key(b)) {
            self.only_plain("maps whose keys are not sorted")?;
        }
        Map::new(entries).map(Ipld::Map).ok_or_else(|| CodecError::malformed("a map has a duplicate key"))
    }

    fn key(&mut self, head: Head) -> Result<String, CodecError> {
        if head.major != major::TEXT {
            self.only_plain("keys that are not text")?;
            return Err(CodecError::inexpressible("a map has a key that is not text"));
        }
        self.text(head)
    }

    fn simple(&mut self, head: Head) -> Result<Ipld, CodecError> {
        match head.info {
            info::FALSE => Ok(Ipld::Bool(false)),
            info::TRUE => Ok(Ipld::Bool(true)),
            info::NULL => Ok(Ipld::Null),
            info::UNDEFINED => self.only_plain("undefined value").map(|()| Ipld::Null),
            info::TWO_BYTES => self.only_plain("short floats").map(|()| Ipld::Float(half(head.argument as u16))),
            info::FOUR_BYTES => {
                self.only_plain("short floats")?;
                Ok(Ipld::Float(f64::from(f32::from_bits(head.argument as u32))))
            }
            info::EIGHT_BYTES => {
                let float = f64::from_bits(head.argument);
                if !float.is_finite() {
                    self.only_plain("floats that are not finite numbers")?;
                }
                Ok(Ipld::Float(float))
            }
            info::INDEFINITE => Err(CodecError::malformed("a break is outside an indefinite-length value")),
            _ => {
                self.only_plain("simple values of other kinds")?;
                Err(CodecError::inexpressible("a simple value is not part of the data model"))
            }
        }
    }
}

/// A float of 16 bits (IEEE 754 binary16).
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2_f64.powi(-24),
        0x1f if fraction == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        _ => (1_024.0 + fraction) * 2_f64.powi(exponent - 25),
    };
    if bits >> 15 == 0 { magnitude } else { -magnitude }
}

/// The sort order of keys in dag-cbor: by length, then by bytes.
fn sort_key(key: &str) -> (usize, &str) {
    (key.len(), key)
}

/// Encodes a document as dag-cbor.
pub(super) fn encode(value: &Ipld) -> Result<Bytes, EncodeError> {
    let mut out = Vec::new();
    write(value, MAX_DEPTH, &mut out)?;
    Ok(out.into())
}

fn write(value: &Ipld, levels: usize, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    match value {
        Ipld::Null => write_head(major::SIMPLE, u64::from(info::NULL), out),
        Ipld::Bool(false) => write_head(major::SIMPLE, u64::from(info::FALSE), out),
        Ipld::Bool(true) => write_head(major::SIMPLE, u64::from(info::TRUE), out),
        Ipld::Integer(integer) => write_integer(*integer, out)?,
        Ipld::Float(float) if float.is_finite() => {
            out.push(major::SIMPLE << 5 | info::EIGHT_BYTES);
            out.extend_from_slice(&float.to_bits().to_be_bytes());
        }
        Ipld::Float(_) => return Err(EncodeError::Float),
        Ipld::String(text) => write_string(major::TEXT, text.as_bytes(), out),
        Ipld::Bytes(bytes) => write_string(major::BYTES, bytes, out),
        Ipld::Link(cid) => {
            write_head(major::TAG, LINK, out);
            write_string(major::BYTES, &[&[0], &cid.to_bytes()[..]].concat(), out);
        }
        Ipld::List(list) => {
            let levels = levels.checked_sub(1).ok_or(EncodeError::TooDeep)?;
            write_head(major::LIST, list.len() as u64, out);
            list.iter().try_for_each(|value| write(value, levels, out))?;
        }
        Ipld::Map(map) => {
            let levels = levels.checked_sub(1).ok_or(EncodeError::TooDeep)?;
            write_head(major::MAP, map.len() as u64, out);
            let mut entries: Vec<(&str, &Ipld)> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| sort_key(key));
            for (key, value) in entries {
                write_string(major::TEXT, key.as_bytes(), out);
                write(value, levels, out)?;
            }
        }
    }
    Ok(())
}

fn write_integer(integer: i128, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let (major, argument) = if integer < 0 { (major::NEGATIVE, -1 - integer) } else { (major::UNSIGNED, integer) };
    write_head(major, u64::try_from(argument).map_err(|_| EncodeError::Integer)?, out);
    Ok(())
}

fn write_string(major: u8, bytes: &[u8], out: &mut Vec<u8>) {
    write_head(major, bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Writes a head in the shortest form.
fn write_head(major: u8, argument: u64, out: &mut Vec<u8>) {
    let bytes = argument.to_be_bytes();
    let (info, width) = match argument {
        0..24 => (argument as u8, 0),
        24..0x100 => (info::ONE_BYTE, 1),
        0x100..0x1_0000 => (info::TWO_BYTES, 2),
        0x1_0000..0x1_0000_0000 => (info::FOUR_BYTES, 4),
        _ => (info::EIGHT_BYTES, 8),
    };
    out.push(major << 5 | info);
    out.extend_from_slice(&bytes[bytes.len() - width..]);
}
