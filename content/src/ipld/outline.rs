//! A document as lines of text, from which a page for people can be made.
//!
//! Goal: the size of the page depends on [`OutlineLimits`], never on the document.
//!
//! Non-goals: HTML, escaping, and any way back to the document.

use super::{Ipld, MAX_DEPTH};
use crate::cid::Cid;
use std::fmt::Write as _;

/// How much of a document is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutlineLimits {
    /// Lines at most.
    pub lines: usize,
    /// Characters of a key or text, and bytes of bytes, at most.
    pub text: usize,
}

impl Default for OutlineLimits {
    fn default() -> Self {
        Self { lines: 2_000, text: 512 }
    }
}

/// A document, flattened.
#[derive(Debug, Clone, PartialEq)]
pub struct Outline {
    /// The document itself, then what is in it, depth first.
    pub lines: Vec<Line>,
    /// Whether every value has a line.
    pub complete: bool,
}

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// How many lists and maps it is inside of.
    pub depth: usize,
    /// What it is called in the list or map that it is in; `None` for the document itself.
    pub label: Option<Label>,
    /// What it is.
    pub kind: Kind,
    /// What it says: digits, the text itself, bytes in hexadecimal, the CID of a link. Empty for null, lists and maps.
    pub text: String,
    /// Whether `text` is only the beginning.
    pub cut: bool,
    /// Where it points, if it is a link.
    pub link: Option<Cid>,
}

/// What a value is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Label {
    /// By a key, which ends with an ellipsis if it was too long.
    Key(String),
    /// By an index.
    Index(usize),
}

/// The kind of a value, with its size where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Null,
    /// True or false.
    Bool,
    /// A whole number.
    Integer,
    /// A number with a fraction.
    Float,
    /// Text of so many bytes.
    String(usize),
    /// So many bytes.
    Bytes(usize),
    /// A list of so many values.
    List(usize),
    /// A map of so many keys.
    Map(usize),
    /// A link.
    Link,
}

/// Flattens a document. The lines of a list or map follow its own and have a greater depth.
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

/// The first characters of a text.
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
