//! [`ContentPath`]: the path of a URL, parsed into a root and segments.
//!
//! Goals: percent-decoding happens exactly once; no path leaves its root; a path that cannot name content is rejected
//! before any look-up. Paths are parsed as in Kubo: the whole path is decoded before it is split, so an encoded slash
//! is a separator, empty segments and `.` are dropped, and `..` removes the segment before it.

use crate::cid::{self, Cid, CidError};
use crate::names::{InvalidName, Name};
use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// The namespace of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Namespace {
    /// `/ipfs/`: immutable content.
    Ipfs,
    /// `/ipns/`: mutable names.
    Ipns,
}

impl Namespace {
    /// The path up to the root, with the trailing slash.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Ipfs => "/ipfs/",
            Self::Ipns => "/ipns/",
        }
    }

    /// The name of the namespace, without slashes.
    pub fn name(self) -> &'static str {
        self.prefix().trim_matches('/')
    }

    /// The namespace of a path, and the rest of the path.
    pub fn split(path: &str) -> Option<(Self, &str)> {
        [Self::Ipfs, Self::Ipns]
            .into_iter()
            .find_map(|namespace| Some((namespace, path.strip_prefix(namespace.prefix())?)))
    }
}

/// The root of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// Immutable content.
    Cid(Cid),
    /// A mutable name.
    Name(Name),
}

/// A path to content (<https://specs.ipfs.tech/http-gateways/path-gateway/#request-path>).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentPath {
    /// The root.
    pub root: Root,
    /// The segments after the root: decoded, none of them empty, `.` or `..`.
    pub segments: Vec<String>,
    /// Whether the path ends in a slash, which means a directory.
    pub trailing_slash: bool,
}

/// Why a path cannot name content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path does not begin with `/ipfs/` or `/ipns/`.
    #[error("a path to content begins with /ipfs/ or /ipns/")]
    Namespace,
    /// The root after `/ipfs/` is not a CID, or one that cannot be served.
    #[error(transparent)]
    Cid(#[from] CidError),
    /// The root after `/ipns/` is not a name.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// A percent sign is not followed by two hexadecimal digits.
    #[error("the path has a percent sign that is not followed by two hexadecimal digits")]
    Escape,
    /// The decoded path is not UTF-8.
    #[error("the path is not UTF-8 text once it is decoded")]
    NotText,
    /// The path goes above its root.
    #[error("the path goes above its root with \"..\"")]
    AboveRoot,
    /// The path has too many segments.
    #[error("the path has more than {max} segments")]
    TooDeep {
        /// The maximum.
        max: usize,
    },
}

impl ContentPath {
    /// Parses the path of a URL: percent-encoded, without its query.
    ///
    /// # Errors
    /// [`PathError`] when the path is invalid.
    pub fn parse(path: &str, depth_max: usize) -> Result<Self, PathError> {
        Self::read(&decode(path)?, depth_max)
    }

    /// Parses a path that is not percent-encoded, such as that of an IPNS record or a DNSLink.
    ///
    /// # Errors
    /// [`PathError`] when the path is invalid.
    pub fn read(path: &str, depth_max: usize) -> Result<Self, PathError> {
        let (namespace, below) = Namespace::split(path).ok_or(PathError::Namespace)?;
        let (root, rest) = below.split_at(below.find('/').unwrap_or(below.len()));
        let root = match namespace {
            Namespace::Ipfs => Root::Cid(cid::parse(root)?),
            Namespace::Ipns => Root::Name(Name::parse(root)?),
        };
        Self::below(root, rest, depth_max)
    }

    /// The decoded path `rest` below a root that is given elsewhere, such as in the host name.
    ///
    /// # Errors
    /// [`PathError`] when the path is invalid.
    pub fn below(root: Root, rest: &str, depth_max: usize) -> Result<Self, PathError> {
        let trailing_slash = rest.ends_with('/');
        Ok(Self { root, segments: split(rest, depth_max)?, trailing_slash })
    }

    /// The last segment, if there is one: the name of the file.
    pub fn name(&self) -> Option<&str> {
        self.segments.last().map(String::as_str)
    }
}

/// Percent-decodes a path.
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
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use proptest::prelude::*;

    const CID: &str = "bafkqac3imvwgy3zao5xxe3de";

    fn parse(rest: &str) -> Result<(Vec<String>, bool), PathError> {
        ContentPath::parse(&format!("/ipfs/{CID}{rest}"), 4).map(|path| (path.segments, path.trailing_slash))
    }

    #[test]
    fn paths_are_parsed_as_in_kubo() {
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
    fn invalid_paths_are_rejected() {
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
    fn names_are_roots() {
        let path = ContentPath::parse("/ipns/Example.org/a%20b/", 4).expect("a path");
        assert_eq!(path.root, Root::Name(Name::parse("example.org").expect("a name")));
        assert_eq!((path.segments, path.trailing_slash), (vec!["a b".to_owned()], true));
    }

    proptest! {
        #[test]
        fn encoded_names_are_decoded(names in prop::collection::vec("[^/\u{0}]{1,12}", 0..4)) {
            prop_assume!(names.iter().all(|name| name != "." && name != ".."));
            let encode = |name: &String| utf8_percent_encode(name, NON_ALPHANUMERIC).to_string();
            let path: String = names.iter().map(|name| format!("/{}", encode(name))).collect();
            prop_assert_eq!(parse(&path), Ok((names, false)));
        }

        #[test]
        fn no_path_panics_or_leaves_its_root(path in "(/ipfs/)?[/.%a-fA-F0-9é]{0,40}") {
            if let Ok(path) = ContentPath::parse(&path, 8) {
                prop_assert!(path.segments.len() <= 8);
                prop_assert!(path.segments.iter().all(|name| !name.is_empty() && name != "." && name != ".."));
            }
        }
    }
}
