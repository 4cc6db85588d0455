//! A document as lines of text, for display on a page.
//!
//! Goal: [`OutlineLimits`] bound the size of the page, whatever the size of the document.
//!
//! Non-goals: HTML, escaping, and parsing the lines.

use super::{Ipld, MAX_DEPTH};
use crate::cid::Cid;
use std::fmt::Write as _;

/// Limits for the display of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutlineLimits {
    /// The maximum number of lines.
    pub lines: usize,
    /// The maximum length of a key or text in characters, and of bytes in bytes.
    pub text: usize,
}

impl Default for OutlineLimits {
    fn default() -> Self {
        Self { lines: 2_000, text: 512 }
    }
}

/// A document as lines.
#[derive(Debug, Clone, PartialEq)]
pub struct Outline {
    /// The document, then its values, depth first.
    pub lines: Vec<Line>,
    /// Whether every value has a line.
    pub complete: bool,
}

/// The line of one value.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The number of lists and maps around the value.
    pub depth: usize,
    /// The key or index of the value; `None` for the document.
    pub label: Option<Label>,
    /// The kind of the value.
    pub kind: Kind,
    /// The value as text: a number, a text, bytes in hexadecimal, or the CID of a link. Empty for null, lists and maps.
    pub text: String,
    /// Whether `text` is truncated.
    pub cut: bool,
    /// The target, if the value is a link.
    pub link: Option<Cid>,
}

/// The label of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Label {
    /// A key, truncated with an ellipsis if it is too long.
    Key(String),
    /// An index.
    Index(usize),
}

/// The kind of a value, with its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Null.
    Null,
    /// A boolean.
    Bool,
    /// An integer.
    Integer,
    /// A float.
    Float,
    /// A text of so many bytes.
    String(usize),
    /// Bytes, so many.
    Bytes(usize),
    /// A list with so many values.
    List(usize),
    /// A map with so many keys.
    Map(usize),
    /// A link.
    Link,
}

/// Makes the lines of a document. The values of a list or map follow its line, with a greater depth.
pub fn outline(document: &Ipld, limits: OutlineLimits) -> Outline {
    let mut outline = Outline { lines: Vec::new(), complete: true };
    outline.push(document, None, 0, limits);
    outline
}

impl Outline {
    fn push(&mut self, value: &Ipld, label: Option<Label>, depth: usize, limits: OutlineLimits) {
        if self.lines.len() >= limits.lines || depth > MAX_DEPTH {
            self.complete = false;
            return;
        }
        self.lines.push(line(value, label, depth, limits.text));
        match value {
            Ipld::List(list) => {
                for (index, value) in list.iter().enumerate() {
                    self.push(value, Some(Label::Index(index)), depth + 1, limits);
                    if !self.complete {
                        return;
                    }
                }
            }
            Ipld::Map(map) => {
                for (key, value) in map.iter() {
                    self.push(value, Some(Label::Key(shortened(key, limits.text))), depth + 1, limits);
                    if !self.complete {
                        return;
                    }
                }
            }
            _ => {}
        }
    }
}

fn line(value: &Ipld, label: Option<Label>, depth: usize, limit: usize) -> Line {
    let (kind, text, cut) = match value {
        Ipld::Null => (Kind::Null, String::new(), false),
        Ipld::Bool(bool) => (Kind::Bool, bool.to_string(), false),
        Ipld::Integer(integer) => (Kind::Integer, integer.to_string(), false),
        Ipld::Float(float) => (Kind::Float, format!("{float:?}"), false),
        Ipld::String(text) => {
            let start = beginning(text, limit);
            (Kind::String(text.len()), start.to_owned(), start.len() < text.len())
        }
        Ipld::Bytes(bytes) => (Kind::Bytes(bytes.len()), hexadecimal(bytes, limit), bytes.len() > limit),
        Ipld::List(list) => (Kind::List(list.len()), String::new(), false),
        Ipld::Map(map) => (Kind::Map(map.len()), String::new(), false),
        Ipld::Link(cid) => (Kind::Link, cid.to_string(), false),
    };
    let link = match value {
        Ipld::Link(cid) => Some(**cid),
        _ => None,
    };
    Line { depth, label, kind, text, cut, link }
}

/// The first `limit` characters of a text.
fn beginning(text: &str, limit: usize) -> &str {
    let end = text.char_indices().nth(limit).map_or(text.len(), |(end, _)| end);
    text.get(..end).unwrap_or_default()
}

fn shortened(text: &str, limit: usize) -> String {
    let start = beginning(text, limit);
    if start.len() < text.len() { format!("{start}…") } else { start.to_owned() }
}

fn hexadecimal(bytes: &[u8], limit: usize) -> String {
    bytes.iter().take(limit).fold(String::new(), |mut out, byte| {
        // Writing to a string does not fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}
