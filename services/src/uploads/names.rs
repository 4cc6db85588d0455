//! Validation of names and paths in uploads.
//!
//! Paths come from untrusted clients, and into folders that others show, copy and extract. Nothing is corrected: a path
//! that is absolute or leaves the upload is rejected.

use crate::uploads::UploadError;
use crate::uploads::limits::{DEPTH_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX};

/// The maximum length of a name in messages, in bytes.
const SHOWN_BYTES: usize = 120;

/// A path relative to the top of an upload: names with slashes between them. The path of the top is empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(Vec<u8>);

impl Path {
    /// Validates a path. `./`, and repeated and trailing slashes, are ignored.
    ///
    /// # Errors
    /// [`UploadError::Invalid`] for a path that is absolute, leads upwards, is too long or too deep, or has a zero
    /// byte.
    pub fn of(path: &[u8]) -> Result<Self, UploadError> {
        if path.starts_with(b"/") {
            return Err(invalid(path, "it is absolute: paths must be relative to the top of the upload"));
        }
        if path.len() > PATH_BYTES_MAX {
            return Err(invalid(path, &format!("it is longer than {PATH_BYTES_MAX} bytes")));
        }
        let mut names = Vec::new();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            match name {
                b".." => return Err(invalid(path, "it leads upwards")),
                name if name.contains(&0) => return Err(invalid(path, "it has a zero byte")),
                name if name.len() > NAME_BYTES_MAX => {
                    return Err(invalid(path, &format!("a name in it is longer than {NAME_BYTES_MAX} bytes")));
                }
                name => names.push(name),
            }
        }
        if names.len() > DEPTH_MAX {
            return Err(invalid(path, &format!("it is deeper than {DEPTH_MAX} folders")));
        }
        Ok(Self(names.join(&b'/')))
    }

    /// Validates a single name.
    ///
    /// # Errors
    /// As [`Path::of`], and for a name that is empty or has a slash.
    pub fn of_name(name: &[u8]) -> Result<Self, UploadError> {
        if name.contains(&b'/') {
            return Err(invalid(name, "a name must not have a slash"));
        }
        match Self::of(name)? {
            path if path.is_top() => Err(invalid(name, "it is empty")),
            path => Ok(path),
        }
    }

    /// Whether it is the path of the top.
    pub fn is_top(&self) -> bool {
        self.0.is_empty()
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The sort key, by which the entries of a folder directly follow the folder.
    pub fn to_key(&self) -> Vec<u8> {
        self.0.iter().map(|byte| if *byte == b'/' { 0 } else { *byte }).collect()
    }
}

/// The path of a sort key.
pub fn path_of_key(key: &[u8]) -> Vec<u8> {
    key.iter().map(|byte| if *byte == 0 { b'/' } else { *byte }).collect()
}

/// A name in messages: truncated, and without control characters.
pub fn shown(name: &[u8]) -> String {
    let cut = &name[..name.len().min(SHOWN_BYTES)];
    let text = String::from_utf8_lossy(cut);
    let dots = if cut.len() < name.len() { "…" } else { "" };
    format!("{text:?}{dots}")
}

fn invalid(path: &[u8], reason: &str) -> UploadError {
    UploadError::Invalid(format!("the path {} is invalid: {reason}", shown(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside_the_upload() {
        let deep = |depth: usize| vec!["d"; depth].join("/");
        let table: Vec<(String, Option<&str>)> = vec![
            ("a".into(), Some("a")),
            ("a/b".into(), Some("a/b")),
            ("./a//b/".into(), Some("a/b")),
            ("a/./b".into(), Some("a/b")),
            ("./".into(), Some("")),
            (".".into(), Some("")),
            (String::new(), Some("")),
            ("...".into(), Some("...")),
            ("a\\..\\b".into(), Some("a\\..\\b")),
            ("/a".into(), None),
            ("//a".into(), None),
            ("..".into(), None),
            ("a/../b".into(), None),
            ("a/..".into(), None),
            ("a\0b".into(), None),
            ("n".repeat(NAME_BYTES_MAX), Some("")),
            ("n".repeat(NAME_BYTES_MAX + 1), None),
            (deep(DEPTH_MAX), Some("")),
            (deep(DEPTH_MAX + 1), None),
            (format!("{0}/{0}/{0}/{0}/{0}", "n".repeat(1000)), None),
        ];
        for (path, expected) in table {
            let found = Path::of(path.as_bytes());
            match expected {
                None => assert!(found.is_err(), "{path}"),
                Some(text) => {
                    let found = found.unwrap_or_else(|error| panic!("{path}: {error}"));
                    assert!(text.is_empty() || found.as_bytes() == text.as_bytes(), "{path}");
                }
            }
        }
        for name in ["", ".", "..", "a/b", "/"] {
            assert!(Path::of_name(name.as_bytes()).is_err(), "{name}");
        }
        assert!(Path::of_name(b"a b").is_ok());
    }

    #[test]
    fn folders_are_followed_by_their_entries() {
        let mut keys: Vec<_> = ["a!", "a/b", "a", "a/b/c", "a.b", "a/z"]
            .map(|path| Path::of(path.as_bytes()).expect("a path").to_key())
            .to_vec();
        keys.sort_unstable();
        let paths: Vec<_> = keys.iter().map(|key| String::from_utf8(path_of_key(key)).expect("text")).collect();
        assert_eq!(paths, ["a", "a/b", "a/b/c", "a/z", "a!", "a.b"]);
    }

    #[test]
    fn names_in_messages_are_short_and_harmless() {
        assert_eq!(shown(b"a\x1b[2J\xff"), "\"a\\u{1b}[2J\u{fffd}\"");
        assert!(shown(&[b'n'; 5000]).len() < 200);
    }
}
