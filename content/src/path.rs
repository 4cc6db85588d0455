//! [`ContentPath`]: the path of a URL, as a root and the names to follow from there.
//!
//! Goals: percent-decoding happens exactly once; nothing climbs above its root; whatever cannot name content is refused
//! here, before anything is looked up. The reading of a path is Kubo's: the whole path is decoded before it is split, so
//! an encoded slash separates, empty segments and `.` vanish, and `..` goes up.

use crate::cid::{self, Cid, CidError};
use crate::names::{Name, NotAName};
use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// What a path begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Namespace {
    /// `/ipfs/`: immutable content.
    Ipfs,
    /// `/ipns/`: what a name stands for now.
    Ipns,
}

impl Namespace {
    /// The path up to and with the slash that the root comes after.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Ipfs => "/ipfs/",
            Self::Ipns => "/ipns/",
        }
    }

    /// What it is called, without slashes.
    pub fn name(self) -> &'static str {
        self.prefix().trim_matches('/')
    }

    /// The namespace of a path, and what comes after its prefix.
    pub fn split(path: &str) -> Option<(Self, &str)> {
        [Self::Ipfs, Self::Ipns]
            .into_iter()
            .find_map(|namespace| Some((namespace, path.strip_prefix(namespace.prefix())?)))
    }
}

/// Where a path begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// Immutable content.
    Cid(Cid),
    /// What a name stands for.
    Name(Name),
}

/// A path to content (<https://specs.ipfs.tech/http-gateways/path-gateway/#request-path>).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentPath {
    /// Where the walk begins.
    pub root: Root,
    /// The names to follow from there: decoded, none of them empty, `.` or `..`.
    pub segments: Vec<String>,
    /// Whether the path ended in a slash, which means a directory.
    pub trailing_slash: bool,
}

/// Why a path cannot name content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path does not begin with `/ipfs/` or `/ipns/`.
    #[error("a path to content begins with /ipfs/ or /ipns/")]
    Namespace,
    /// What follows `/ipfs/` is no CID that can be served.
    #[error(transparent)]
    Cid(#[from] CidError),
    /// What follows `/ipns/` is no name.
    #[error(transparent)]
    Name(#[from] NotAName),
    /// A percent sign is not followed by two hexadecimal digits.
    #[error("the path has a percent sign that is not followed by two hexadecimal digits")]
    Escape,
    /// The decoded path is not text.
    #[error("the path is not UTF-8 text once it is decoded")]
    NotText,
    /// The path goes above its root.
    #[error("the path goes above its root with \"..\"")]
    AboveRoot,
    /// The path has more segments than are followed.
    #[error("the path has more than {max} segments")]
    TooDeep {
        /// How many are followed.
        max: usize,
    },
}

impl ContentPath {
    /// Reads a URL's path as it was sent: percent-encoded, without its query.
    ///
    /// # Errors
    /// [`PathError`] says which rule the path breaks.
    pub fn parse(path: &str, depth_max: usize) -> Result<Self, PathError> {
        Self::read(&decode(path)?, depth_max)
    }

    /// Reads a path that is not percent-encoded, such as an IPNS record or a DNSLink has.
    ///
    /// # Errors
    /// [`PathError`] says which rule the path breaks.
    pub fn read(path: &str, depth_max: usize) -> Result<Self, PathError> {
        let (namespace, below) = Namespace::split(path).ok_or(PathError::Namespace)?;
        let (root, rest) = below.split_at(below.find('/').unwrap_or(below.len()));
        let root = match namespace {
            Namespace::Ipfs => Root::Cid(cid::parse(root)?),
            Namespace::Ipns => Root::Name(Name::parse(root)?),
        };
        Self::below(root, rest, depth_max)
    }

    /// The path `rest` (decoded) below a root that is known from elsewhere, such as a host name.
    ///
    /// # Errors
    /// [`PathError`] says which rule the path breaks.
    pub fn below(root: Root, rest: &str, depth_max: usize) -> Result<Self, PathError> {
        let trailing_slash = rest.ends_with('/');
        Ok(Self { root, segments: split(rest, depth_max)?, trailing_slash })
    }

    /// The last name, if there is one: what a file is called.
    pub fn name(&self) -> Option<&str> {
        self.segments.last().map(String::as_str)
    }
}

/// Decodes a path as it was sent.
///
/// # Errors
/// [`PathError::Escape`] and [`PathError::NotText`].
pub fn decode(path: &str) -> Result<Cow<'_, str>, PathError> {
    check_escapes(path.as_bytes())?;
    percent_decode_str(path).decode_utf8().map_err(|_| PathError::NotText)
}

fn check_escapes(raw: &[u8]) -> Result<(), PathError> {
    let mut rest = raw;
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        match rest.get(at + 1..at + 3) {
            Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => rest = &rest[at + 3..],
            _ => return Err(PathError::Escape),
        }
    }
    Ok(())
}

fn split(rest: &str, depth_max: usize) -> Result<Vec<String>, PathError> {
    let mut segments: Vec<String> = Vec::new();
    for segment in rest.split('/') {
        match segment {
            "" | "." => {}
            ".." => _ = segments.pop().ok_or(PathError::AboveRoot)?,
            _ if segments.len() == depth_max => return Err(PathError::TooDeep { max: depth_max }),
            name => segments.push(name.to_owned()),
        }
    }
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CID: &str = "bafkqac3imvwgy3zao5xxe3de";

    fn parse(rest: &str) -> Result<(Vec<String>, bool), PathError> {
        ContentPath::parse(&format!("/ipfs/{CID}{rest}"), 4).map(|path| (path.segments, path.trailing_slash))
    }

    #[test]
    fn paths_are_read_as_kubo_reads_them() {
        let table: [(&str, &[&str], bool); 14] = [
            ("", &[], false),
            ("/", &[], true),
            ("/a", &["a"], false),
            ("/a/", &["a"], true),
            ("//a///b", &["a", "b"], false),
            ("/a/./b", &["a", "b"], false),
            ("/a/../b", &["b"], false),
            ("/a/%2e%2e/b", &["b"], false),
            ("/a%2Fb", &["a", "b"], false),
            ("/a%20b/%C3%A4", &["a b", "ä"], false),
            ("/a+b", &["a+b"], false),
            ("/100%25", &["100%"], false),
            ("/%2525", &["%25"], false),
            ("/a/b/c/d", &["a", "b", "c", "d"], false),
        ];
        for (rest, segments, slash) in table {
            let expected = (segments.iter().map(ToString::to_string).collect(), slash);
            assert_eq!(parse(rest), Ok(expected), "{rest}");
        }
    }

    #[test]
    fn what_cannot_name_content_is_refused() {
        let table = [
            ("/..", PathError::AboveRoot),
            ("/a/../..", PathError::AboveRoot),
            ("/%2e%2e/%2e%2e/etc/passwd", PathError::AboveRoot),
            ("/%", PathError::Escape),
            ("/%4", PathError::Escape),
            ("/%zz", PathError::Escape),
            ("/%ff", PathError::NotText),
            ("/a/b/c/d/e", PathError::TooDeep { max: 4 }),
        ];
        for (rest, error) in table {
            assert_eq!(parse(rest), Err(error), "{rest}");
        }
        for path in ["/ipfs/", "/ipfs/hello", "/ipfs/../x", "/ipfs//", "/ipfs/Qm/a"] {
            assert!(matches!(ContentPath::parse(path, 4), Err(PathError::Cid(_))), "{path}");
        }
        for path in ["/ipns/", "/ipns/hello", "/ipns/127.0.0.1/x", "/ipns//"] {
            assert!(matches!(ContentPath::parse(path, 4), Err(PathError::Name(_))), "{path}");
        }
        for path in ["", "/", "/ipfs", "ipfs/x", "/api/v0"] {
            assert_eq!(ContentPath::parse(path, 4), Err(PathError::Namespace), "{path}");
        }
    }

    #[test]
    fn names_are_roots_too() {
        let path = ContentPath::parse("/ipns/Example.org/a%20b/", 4).expect("a path");
        assert_eq!(path.root, Root::Name(Name::parse("example.org").expect("a name")));
        assert_eq!((path.segments, path.trailing_slash), (vec!["a b".to_owned()], true));
    }

    proptest! {
        #[test]
        fn any_names_survive_encoding(names in prop::collection::vec("[^/\u{0}]{1,12}", 0..4)) {
            prop_assume!(names.iter().all(|name| name != "." && name != ".."));
            let encode = |name: &String| percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string();
            let path: String = names.iter().map(|name| format!("/{}", encode(name))).collect();
            prop_assert_eq!(parse(&path), Ok((names, false)));
        }

        #[test]
        fn nothing_panics_and_nothing_climbs(path in "(/ipfs/)?[/.%a-fA-F0-9é]{0,40}") {
            if let Ok(path) = ContentPath::parse(&path, 8) {
                prop_assert!(path.segments.len() <= 8);
                prop_assert!(path.segments.iter().all(|name| !name.is_empty() && name != "." && name != ".."));
            }
        }
    }
}
