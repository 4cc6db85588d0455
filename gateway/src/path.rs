//! [`ContentPath`]: a URL path below `/ipfs/`, as a CID and names.
//!
//! Goals: percent-decoding happens exactly once; nothing climbs above its CID; whatever cannot name content is refused
//! here, before anything is looked up. The reading of a path is Kubo's: the whole path is decoded before it is split, so
//! an encoded slash separates, empty segments and `.` vanish, and `..` goes up.

use content::{Cid, CidError, cid};
use percent_encoding::percent_decode_str;

/// What comes before the CID.
pub const PREFIX: &str = "/ipfs/";

/// A path to content (<https://specs.ipfs.tech/http-gateways/path-gateway/#request-path>).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentPath {
    /// Where the walk begins.
    pub root: Cid,
    /// The names to follow from there: decoded, none of them empty, `.` or `..`.
    pub segments: Vec<String>,
    /// Whether the path ended in a slash, which means a directory.
    pub trailing_slash: bool,
}

/// Why a path cannot name content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// What follows `/ipfs/` is no CID that can be served.
    #[error(transparent)]
    Cid(#[from] CidError),
    /// A percent sign is not followed by two hexadecimal digits.
    #[error("the path has a percent sign that is not followed by two hexadecimal digits")]
    Escape,
    /// The decoded path is not text.
    #[error("the path is not UTF-8 text once it is decoded")]
    NotText,
    /// The path goes above its CID.
    #[error("the path goes above its CID with \"..\"")]
    AboveRoot,
    /// The path has more segments than are followed.
    #[error("the path has more than {max} segments")]
    TooDeep {
        /// How many are followed.
        max: usize,
    },
}

impl ContentPath {
    /// Reads a raw URL path, without its query, that begins with [`PREFIX`].
    ///
    /// # Errors
    /// [`PathError`] says which rule the path breaks.
    pub fn parse(path: &str, depth_max: usize) -> Result<Self, PathError> {
        let raw = path.strip_prefix(PREFIX).unwrap_or(path);
        check_escapes(raw.as_bytes())?;
        let decoded = percent_decode_str(raw).decode_utf8().map_err(|_| PathError::NotText)?;
        let (root, rest) = decoded.split_once('/').unwrap_or((&decoded, ""));
        let root = cid::parse(root)?;
        let trailing_slash = decoded.ends_with('/');
        Ok(Self { root, segments: split(rest, depth_max)?, trailing_slash })
    }

    /// The last name, if there is one: what a file is called.
    pub fn name(&self) -> Option<&str> {
        self.segments.last().map(String::as_str)
    }
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
