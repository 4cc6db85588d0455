//! JSON (RFC 8259), plain and as dag-json, with its forms for links and bytes
//! (<https://ipld.io/specs/codecs/dag-json/spec/>). For the rules of each see [`crate::ipld`].

use super::{CodecError, Dialect, EncodeError, Ipld, ItemBudget, MAX_DEPTH, Map};
use crate::cid::Cid;
use ::cid::multibase::Base;
use bytes::Bytes;
use std::fmt::Write as _;

/// The maximum length of a link as text, in bytes: any CID in base 8 or more. Decoding some bases takes quadratic time
/// in the length.
const MAX_LINK_BYTES: usize = 420;

/// The integers that all codecs can express.
const INTEGERS: std::ops::RangeInclusive<i128> = -(1 << 64)..=(1 << 64) - 1;

/// The key that dag-json reserves, and the key for bytes in it.
const SLASH: &str = "/";
const BYTES: &str = "bytes";

/// Decodes a document, without trailing bytes.
pub(super) fn decode(bytes: &Bytes, dialect: Dialect) -> Result<Ipld, CodecError> {
    let text = std::str::from_utf8(bytes).map_err(|error| CodecError::malformed(error.to_string()))?;
    let mut reader = Reader { text, offset: 0, dialect, budget: ItemBudget::new() };
    let value = reader.value()?;
    match reader.peek() {
        None => Ok(value),
        Some(_) => Err(reader.unexpected()),
    }
}

struct Reader<'a> {
    text: &'a str,
    /// The offset of the next character.
    offset: usize,
    dialect: Dialect,
    budget: ItemBudget,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.offset..).unwrap_or_default()
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        let space = self.rest().bytes().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
        self.offset += space;
        self.rest().bytes().next()
    }

    /// Takes a byte if it is the next one after white space.
    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.offset += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), CodecError> {
        if self.take(byte) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn unexpected(&self) -> CodecError {
        match self.rest().chars().next() {
            Some(found) => CodecError::malformed(format!("{found:?} is not allowed at byte {}", self.offset)),
            None => CodecError::malformed("it is truncated"),
        }
    }

    fn value(&mut self) -> Result<Ipld, CodecError> {
        match self.peek() {
            Some(b'{') => self.object(),
            Some(b'[') => self.list(),
            Some(b'"') => self.string().map(Ipld::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'n') => self.literal("null", Ipld::Null),
            Some(b't') => self.literal("true", Ipld::Bool(true)),
            Some(b'f') => self.literal("false", Ipld::Bool(false)),
            _ => Err(self.unexpected()),
        }
    }

    fn literal(&mut self, word: &str, value: Ipld) -> Result<Ipld, CodecError> {
        if !self.rest().starts_with(word) {
            return Err(self.unexpected());
        }
        self.offset += word.len();
        Ok(value)
    }

    fn list(&mut self) -> Result<Ipld, CodecError> {
        self.budget.enter()?;
        self.expect(b'[')?;
        let mut list = Vec::new();
        while !self.take(b']') {
            if !list.is_empty() {
                self.expect(b',')?;
            }
            self.budget.take(1)?;
            list.push(self.value()?);
        }
        self.budget.leave();
        list.shrink_to_fit();
        Ok(Ipld::List(list))
    }

    fn object(&mut self) -> Result<Ipld, CodecError> {
        self.budget.enter()?;
        self.expect(b'{')?;
        let mut entries = Vec::new();
        while !self.take(b'}') {
            if !entries.is_empty() {
                self.expect(b',')?;
            }
            self.budget.take(2)?;
            let key = self.key()?;
            self.expect(b':')?;
            entries.push((key, self.value()?));
        }
        self.budget.leave();
        let map = Map::new(entries).ok_or_else(|| CodecError::malformed("an object has a duplicate key"))?;
        match self.dialect {
            Dialect::Plain => Ok(Ipld::Map(map)),
            Dialect::Dag => reserved_value(map),
        }
    }

    fn key(&mut self) -> Result<String, CodecError> {
        if self.peek() != Some(b'"') {
            return Err(self.unexpected());
        }
        self.string()
    }

    /// Parses a string from its opening quote.
    fn string(&mut self) -> Result<String, CodecError> {
        self.offset += 1;
        let mut out = String::new();
        loop {
            let rest = self.rest();
            let plain = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)).unwrap_or(rest.len());
            out.push_str(rest.get(..plain).unwrap_or_default());
            self.offset += plain;
            match rest.as_bytes().get(plain) {
                Some(b'"') => {
                    self.offset += 1;
                    return Ok(out);
                }
                Some(b'\\') => out.push(self.escaped()?),
                _ => return Err(self.unexpected()),
            }
        }
    }

    /// Parses an escape from its backslash.
    fn escaped(&mut self) -> Result<char, CodecError> {
        let Some(letter) = self.rest().as_bytes().get(1) else { return Err(CodecError::malformed("it is truncated")) };
        let plain = match letter {
            b'"' | b'\\' | b'/' => char::from(*letter),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode(),
            _ => return Err(self.unexpected()),
        };
        self.offset += 2;
        Ok(plain)
    }

    /// Parses an escape by code: one, or two for a surrogate pair.
    fn unicode(&mut self) -> Result<char, CodecError> {
        let first = self.unit()?;
        let second = if (0xd800..0xdc00).contains(&first) { Some(self.unit()?) } else { None };
        let mut decoded = char::decode_utf16(std::iter::once(first).chain(second));
        match decoded.next() {
            Some(Ok(character)) => Ok(character),
            _ => Err(CodecError::malformed("a surrogate pair is incomplete")),
        }
    }

    /// Parses `\u` and four hexadecimal digits.
    fn unit(&mut self) -> Result<u16, CodecError> {
        let digits = self.rest().strip_prefix("\\u").and_then(|rest| rest.get(..4));
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok()).ok_or_else(|| self.unexpected())?;
        self.offset += 6;
        Ok(unit)
    }

    fn number(&mut self) -> Result<Ipld, CodecError> {
        let rest = self.rest();
        let length =
            rest.bytes().take_while(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')).count();
        let token = rest.get(..length).unwrap_or_default();
        let is_integer = is_number(token).ok_or_else(|| self.unexpected())?;
        self.offset += length;
        if is_integer {
            if let Some(integer) = token.parse().ok().filter(|integer| INTEGERS.contains(integer)) {
                return Ok(Ipld::Integer(integer));
            }
            if self.dialect == Dialect::Dag {
                return Err(CodecError::inexpressible("an integer has more than 64 bits"));
            }
        }
        match token.parse::<f64>() {
            Ok(float) if float.is_finite() => Ok(Ipld::Float(float)),
            _ => Err(CodecError::inexpressible("a number is out of the range of floats")),
        }
    }
}

/// Whether a token is an integer, or a number with a fraction or exponent; `None` if it is not a number.
fn is_number(token: &str) -> Option<bool> {
    let (whole, tail) = split_digits(token.strip_prefix('-').unwrap_or(token))?;
    if whole.len() > 1 && whole.starts_with('0') {
        return None;
    }
    let exponent = match tail.strip_prefix('.') {
        Some(fraction) => split_digits(fraction)?.1,
        None => tail,
    };
    let Some(exponent_digits) = exponent.strip_prefix(['e', 'E']) else {
        return exponent.is_empty().then_some(tail.is_empty());
    };
    let unsigned = exponent_digits.strip_prefix(['+', '-']).unwrap_or(exponent_digits);
    split_digits(unsigned)?.1.is_empty().then_some(false)
}

/// Splits digits, at least one, off the front.
fn split_digits(text: &str) -> Option<(&str, &str)> {
    let count = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at_checked(count).filter(|_| count > 0)
}

/// A map in a form that dag-json reserves.
enum Reserved<'a> {
    Link(&'a str),
    Bytes(&'a str),
}

/// Whether a map has a reserved form: under "/" a text, or a map with a text under "bytes".
fn reserved(map: &Map) -> Option<Reserved<'_>> {
    match map.get(SLASH)? {
        Ipld::String(text) => Some(Reserved::Link(text)),
        Ipld::Map(inner) => match inner.get(BYTES)? {
            Ipld::String(text) => Some(Reserved::Bytes(text)),
            _ => None,
        },
        _ => None,
    }
}

/// The value of a map: the map, a link or bytes. Links and bytes have no other keys.
fn reserved_value(map: Map) -> Result<Ipld, CodecError> {
    let only = |map: &Map| map.len() == 1;
    let value = match reserved(&map) {
        None => return Ok(Ipld::Map(map)),
        Some(Reserved::Link(text)) if only(&map) => link(text),
        Some(Reserved::Bytes(text))
            if only(&map) && matches!(map.get(SLASH), Some(Ipld::Map(inner)) if only(inner)) =>
        {
            Base::Base64.decode(text).map(|bytes| Ipld::Bytes(bytes.into())).map_err(|error| error.to_string())
        }
        Some(_) => Err("a link or bytes have further keys".to_owned()),
    };
    value.map_err(CodecError::Malformed)
}

fn link(text: &str) -> Result<Ipld, String> {
    if text.len() > MAX_LINK_BYTES {
        return Err(format!("a link is longer than {MAX_LINK_BYTES} bytes"));
    }
    let cid = Cid::try_from(text).map_err(|error| format!("a link is not a CID: {}", crate::cid::why(&error)))?;
    Ok(Ipld::Link(Box::new(cid)))
}

/// Encodes a document as dag-json: keys sorted by their bytes, no white space.
pub(super) fn encode(value: &Ipld) -> Result<Bytes, EncodeError> {
    let mut out = String::new();
    write(value, MAX_DEPTH, &mut out)?;
    Ok(out.into())
}

fn write(value: &Ipld, levels: usize, out: &mut String) -> Result<(), EncodeError> {
    match value {
        Ipld::Null => out.push_str("null"),
        Ipld::Bool(bool) => push(out, format_args!("{bool}")),
        Ipld::Integer(integer) if INTEGERS.contains(integer) => push(out, format_args!("{integer}")),
        Ipld::Integer(_) => return Err(EncodeError::Integer),
        Ipld::Float(float) if float.is_finite() => write_float(*float, out),
        Ipld::Float(_) => return Err(EncodeError::Float),
        Ipld::String(text) => write_string(text, out),
        Ipld::Bytes(bytes) => push(out, format_args!("{{\"/\":{{\"bytes\":\"{}\"}}}}", Base::Base64.encode(bytes))),
        Ipld::Link(cid) => push(out, format_args!("{{\"/\":\"{cid}\"}}")),
        Ipld::List(list) => {
            let levels = levels.checked_sub(1).ok_or(EncodeError::TooDeep)?;
            let mut separator = '[';
            for value in list {
                out.push(std::mem::replace(&mut separator, ','));
                write(value, levels, out)?;
            }
            out.push_str(if list.is_empty() { "[]" } else { "]" });
        }
        Ipld::Map(map) if reserved(map).is_some() => return Err(EncodeError::Reserved),
        Ipld::Map(map) => {
            let levels = levels.checked_sub(1).ok_or(EncodeError::TooDeep)?;
            let mut separator = '{';
            for (key, value) in map.iter() {
                out.push(std::mem::replace(&mut separator, ','));
                write_string(key, out);
                out.push(':');
                write(value, levels, out)?;
            }
            out.push_str(if map.is_empty() { "{}" } else { "}" });
        }
    }
    Ok(())
}

/// Writing to a string does not fail.
fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

/// Writes a float with the fewest digits that identify it, and a decimal point to distinguish it from an integer.
fn write_float(float: f64, out: &mut String) {
    let text = format!("{float:?}");
    match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => push(out, format_args!("{digits}.0e{exponent}")),
        _ => out.push_str(&text),
    }
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\u{1f}' => push(out, format_args!("\\u{:04x}", u32::from(character))),
            _ => out.push(character),
        }
    }
    out.push('"');
}
