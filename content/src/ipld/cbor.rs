//! CBOR (RFC 8949), in IPLD's strict form (<https://ipld.io/specs/codecs/dag-cbor/spec/>) and in the common one. What each
//! accepts is listed in [`crate::ipld`].

use super::{Budget, Dialect, EncodeError, Fault, Ipld, MAX_DEPTH, Map};
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
    /// No length; of a simple value, the end of something that has none.
    pub const INDEFINITE: u8 = 31;
}

/// Reads a document that fills `bytes`.
pub(super) fn decode(bytes: &Bytes, dialect: Dialect) -> Result<Ipld, Fault> {
    let mut reader = Reader { bytes, rest: bytes, dialect, budget: Budget::new() };
    let value = reader.value()?;
    if reader.rest.is_empty() { Ok(value) } else { Err(trailing()) }
}

/// Hands on the links of a dag-cbor document, in stored order. Only what it takes to find them is checked, in a straight
/// line: there is no tree in memory, however large or deep the document is.
pub(super) fn links(bytes: &Bytes, each: &mut dyn FnMut(Cid)) -> Result<(), Fault> {
    Reader { bytes, rest: bytes, dialect: Dialect::Dag, budget: Budget::new() }.links(each)
}

/// The links of what is CBOR, whatever rules of dag-cbor it breaks: whatever is tagged as a link and is one.
pub(super) fn links_leniently(bytes: &Bytes) -> Result<Vec<Cid>, Fault> {
    let mut reader = Reader { bytes, rest: bytes, dialect: Dialect::Plain, budget: Budget::new() };
    let mut links = Vec::new();
    // What is inside of what makes no difference to them, so one value comes after the other.
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
    budget: Budget,
}

/// What every value begins with.
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

fn truncated() -> Fault {
    Fault::malformed("it ends too early")
}

fn trailing() -> Fault {
    Fault::malformed("something follows the document")
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: u64) -> Result<&'a [u8], Fault> {
        let length = usize::try_from(length).map_err(|_| truncated())?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or_else(truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Something that only the lenient dialect has.
    fn only_plain(&self, what: &str) -> Result<(), Fault> {
        match self.dialect {
            Dialect::Plain => Ok(()),
            Dialect::Dag => Err(Fault::malformed(format!("dag-cbor has no {what}"))),
        }
    }

    fn head(&mut self) -> Result<Head, Fault> {
        let [byte] = self.array()?;
        let (major, info) = (byte >> 5, byte & 0x1f);
        // The argument, and the least that needs as many bytes.
        let (argument, least) = match info {
            0..info::ONE_BYTE => (u64::from(info), 0),
            info::ONE_BYTE => (u64::from(u8::from_be_bytes(self.array()?)), 24),
            info::TWO_BYTES => (u64::from(u16::from_be_bytes(self.array()?)), 1 << 8),
            info::FOUR_BYTES => (u64::from(u32::from_be_bytes(self.array()?)), 1 << 16),
            info::EIGHT_BYTES => (u64::from_be_bytes(self.array()?), 1 << 32),
            info::INDEFINITE => (0, 0),
            _ => return Err(Fault::malformed(format!("a value begins with the reserved byte 0x{byte:x}"))),
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
                return Err(Fault::malformed("a number has no length to be indefinite"));
            }
            _ => {}
        }
        Ok(Head { major, info, argument })
    }

    fn value(&mut self) -> Result<Ipld, Fault> {
        let head = self.head()?;
        self.value_of(head)
    }

    fn value_of(&mut self, mut head: Head) -> Result<Ipld, Fault> {
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

    /// The head of what a tag marks.
    fn untagged(&mut self, tag: u64) -> Result<Head, Fault> {
        // Without these tags the bytes of a large number would be just bytes.
        if matches!(tag, 2 | 3) {
            return Err(Fault::inexpressible("an integer has more than 64 bits"));
        }
        self.budget.take(1)?;
        self.head()
    }

    fn links(&mut self, each: &mut dyn FnMut(Cid)) -> Result<(), Fault> {
        // Values and keys that are still to come. Each takes a byte at least.
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

    fn link(&mut self, tag: u64) -> Result<Cid, Fault> {
        if tag != LINK {
            return Err(Fault::malformed(format!("dag-cbor has no tag {tag}")));
        }
        let head = self.head()?;
        if head.major != major::BYTES {
            return Err(Fault::malformed("a link is not in bytes"));
        }
        // The zero is the multibase prefix of binary.
        let bytes = self.take(head.argument)?;
        let mut binary = bytes.strip_prefix(&[0]).ok_or_else(|| Fault::malformed("a link does not begin with zero"))?;
        let cid =
            Cid::read_bytes(&mut binary).map_err(|error| Fault::malformed(format!("a link is no CID: {error}")))?;
        if !binary.is_empty() {
            return Err(Fault::malformed("something follows the CID of a link"));
        }
        Ok(cid)
    }

    fn bytes(&mut self, head: Head) -> Result<Bytes, Fault> {
        if !head.is_indefinite() {
            return Ok(self.bytes.slice_ref(self.take(head.argument)?));
        }
        let mut whole = Vec::new();
        while let Some(part) = self.head_or_break()? {
            if part.major != head.major || part.is_indefinite() {
                return Err(Fault::malformed("a part of a string is no string of its kind"));
            }
            whole.extend_from_slice(self.take(part.argument)?);
        }
        Ok(whole.into())
    }

    fn text(&mut self, head: Head) -> Result<String, Fault> {
        let bytes = self.bytes(head)?;
        let text = std::str::from_utf8(&bytes).map_err(|error| Fault::malformed(format!("a text: {error}")))?;
        Ok(text.to_owned())
    }

    /// The next head of something indefinite, or `None` at its end.
    fn head_or_break(&mut self) -> Result<Option<Head>, Fault> {
        let head = self.head()?;
        Ok((!head.is_break()).then_some(head))
    }

    /// A number of things of `each` items, all of which have to follow.
    fn count(&self, count: u64, each: usize) -> Result<usize, Fault> {
        let count = usize::try_from(count).ok().filter(|count| *count <= self.rest.len() / each);
        count.ok_or_else(truncated)
    }

    /// Pays for what has so many things of `each` items.
    fn claim(&mut self, count: u64, each: usize) -> Result<usize, Fault> {
        let count = self.count(count, each)?;
        self.budget.take(count * each)?;
        Ok(count)
    }

    fn list(&mut self, head: Head) -> Result<Ipld, Fault> {
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

    fn map(&mut self, head: Head) -> Result<Ipld, Fault> {
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
        Map::new(entries).map(Ipld::Map).ok_or_else(|| Fault::malformed("a map has a key twice"))
    }

    fn key(&mut self, head: Head) -> Result<String, Fault> {
        if head.major != major::TEXT {
            self.only_plain("keys that are not text")?;
            return Err(Fault::inexpressible("a map has a key that is not text"));
        }
        self.text(head)
    }

    fn simple(&mut self, head: Head) -> Result<Ipld, Fault> {
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
            info::INDEFINITE => Err(Fault::malformed("something ends that did not begin")),
            _ => {
                self.only_plain("simple values of other kinds")?;
                Err(Fault::inexpressible("a simple value has no meaning in the data model"))
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

/// What dag-cbor sorts keys by: shorter ones first.
fn sort_key(key: &str) -> (usize, &str) {
    (key.len(), key)
}

/// Writes a document in the strict form.
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

/// Writes a head in as few bytes as its argument needs.
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
