//! Which names and symlinks are allowed in an archive, so that extracting it writes nothing outside the root, not even
//! through a symlink.
//!
//! The path of the current directory is kept as one text with the offsets of its segments ([`EntryPath`]), so that the
//! cost of an entry is linear in the length of its own name and not of its path.

/// The maximum length of a path or target, in bytes: four times `PATH_MAX` of Linux.
pub(super) const PATH_BYTES_MAX: usize = 16 * 1024;
/// The maximum number of segments in one name. Valid names have one; old importers made some with slashes.
const NAME_SEGMENTS_MAX: usize = 64;

/// Why a name or a target is not allowed.
pub(super) type RejectReason = &'static str;

/// The path of an entry, whose first segment is the root, and how to return to its parents.
#[derive(Debug, Default)]
pub(super) struct EntryPath {
    path: String,
    /// The offset of each segment.
    starts: Vec<usize>,
    undo: Vec<Undo>,
}

/// How to return from an entry to the directory that it was entered from.
#[derive(Debug)]
struct Undo {
    /// The number of segments that both paths share.
    segments: usize,
    /// The rest of the directory's path: empty, unless the name has `..`.
    removed: String,
}

/// A name resolved against a directory.
#[derive(Debug, PartialEq, Eq)]
struct ResolvedName<'a> {
    /// The number of segments of the directory's path that remain.
    segments: usize,
    /// The segments that are appended.
    added: Vec<&'a str>,
}

impl EntryPath {
    /// The root with the given name, which must be a single segment.
    pub(super) fn root(name: &str) -> Result<Self, RejectReason> {
        check(name)?;
        if name.contains('/') || name == "." || name == ".." {
            return Err("it is not a single name");
        }
        Ok(Self { path: name.to_owned(), starts: vec![0], undo: Vec::new() })
    }

    /// The path.
    pub(super) fn as_str(&self) -> &str {
        &self.path
    }

    /// The segments of the path, the root first.
    pub(super) fn segments(&self) -> impl Iterator<Item = &str> {
        (0..self.starts.len()).filter_map(|index| self.segment(index))
    }

    /// The number of directories between the root and this entry.
    fn depth(&self) -> usize {
        self.starts.len().saturating_sub(2)
    }

    /// Whether a name is allowed in this directory. Names with `..` are allowed as long as they stay below the root.
    pub(super) fn check(&self, name: &str) -> Result<(), RejectReason> {
        self.resolve(name).map(|_| ())
    }

    /// Appends the name of an entry of this directory.
    pub(super) fn enter(&mut self, name: &str) -> Result<(), RejectReason> {
        let ResolvedName { segments, added } = self.resolve(name)?;
        let removed = match self.starts.get(segments) {
            Some(start) => self.path.split_off(start - 1),
            None => String::new(),
        };
        self.starts.truncate(segments);
        for segment in added {
            self.path.push('/');
            self.starts.push(self.path.len());
            self.path.push_str(segment);
        }
        self.undo.push(Undo { segments, removed });
        Ok(())
    }

    /// Returns to the directory that this entry was entered from.
    pub(super) fn leave(&mut self) {
        let Some(Undo { segments, removed }) = self.undo.pop() else { return };
        if let Some(start) = self.starts.get(segments) {
            self.path.truncate(start - 1);
        }
        self.starts.truncate(segments);
        let slashes = removed.match_indices('/').map(|(at, _)| self.path.len() + at + 1);
        self.starts.extend(slashes);
        self.path.push_str(&removed);
    }

    fn resolve<'a>(&self, name: &'a str) -> Result<ResolvedName<'a>, RejectReason> {
        check(name)?;
        let (mut segments, mut added) = (self.starts.len(), Vec::with_capacity(1));
        for (count, segment) in name.split('/').enumerate() {
            match segment {
                _ if count == NAME_SEGMENTS_MAX => return Err("it has too many segments"),
                "" => return Err("it has an empty segment"),
                "." => return Err("it has the segment \".\""),
                ".." if added.pop().is_some() => {}
                ".." if segments == 1 => return Err("it is outside the root"),
                ".." => segments -= 1,
                segment => added.push(segment),
            }
        }
        let kept_bytes = self.starts.get(segments).map_or(self.path.len(), |start| start - 1);
        let added_bytes: usize = added.iter().map(|segment| 1 + segment.len()).sum();
        if kept_bytes + added_bytes > PATH_BYTES_MAX {
            return Err("its path is too long");
        }
        let is_above =
            added.iter().enumerate().all(|(index, segment)| self.segment(segments + index) == Some(*segment));
        if is_above {
            Err("it is the path of one of its parent directories")
        } else {
            Ok(ResolvedName { segments, added })
        }
    }

    fn segment(&self, index: usize) -> Option<&str> {
        let start = *self.starts.get(index)?;
        let end = self.starts.get(index + 1).map_or(self.path.len(), |next| next - 1);
        self.path.get(start..end)
    }

    /// The target of a symlink at this path, if it cannot point outside the root. `..` is only allowed at the
    /// beginning: after a name it would go to the parent of the target, and the name may itself be a symlink.
    pub(super) fn target<'a>(&self, target: &'a [u8]) -> Result<&'a str, RejectReason> {
        let target = std::str::from_utf8(target).map_err(|_| "it is not UTF-8")?;
        check(target)?;
        let (mut up, mut named) = (self.depth(), false);
        for segment in target.split('/') {
            match segment {
                "" | "." => {}
                ".." if named => return Err("it has \"..\" after a name"),
                ".." => up = up.checked_sub(1).ok_or("it points outside the root")?,
                _ => named = true,
            }
        }
        Ok(target)
    }
}

fn check(name: &str) -> Result<(), RejectReason> {
    match name {
        "" => Err("it is empty"),
        name if name.starts_with('/') => Err("it is absolute"),
        name if name.contains('\0') => Err("it has a zero byte"),
        name if name.len() > PATH_BYTES_MAX => Err("it is too long"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The path after entering the segments of a path one by one.
    fn at(path: &str) -> EntryPath {
        let mut segments = path.split('/');
        let mut entry_path = EntryPath::root(segments.next().unwrap_or_default()).expect("a root");
        segments.for_each(|segment| entry_path.enter(segment).expect("a part"));
        entry_path
    }

    #[test]
    fn names_stay_inside_the_root() {
        let table = [
            ("root", "a", Some("root/a")),
            ("root/d", "../a", Some("root/a")),
            ("root/d/e", "../../x/y", Some("root/x/y")),
            ("root/d", "../e/../a", Some("root/a")),
            ("root/d", "...", Some("root/d/...")),
            ("root/d", "a\\b", Some("root/d/a\\b")),
            ("root/de", "../d", Some("root/d")),
            ("root/d", "../de", Some("root/de")),
            ("root/d", "a/b", Some("root/d/a/b")),
            ("root", "", None),
            ("root", "/a", None),
            ("root", ".", None),
            ("root", "./a", None),
            ("root", "a/", None),
            ("root", "a//b", None),
            ("root", "a\0b", None),
            ("root", "..", None),
            ("root", "../a", None),
            ("root", "../root/a", None),
            ("root", "a/../../b", None),
            ("root/d", "../..", None),
            ("root/d", "..", None),
            ("root/d/e", "..", None),
            ("root/d/e", "../e", None),
            ("root/d", "a/..", None),
        ];
        for (dir, name, expected) in table {
            let mut entry_path = at(dir);
            assert_eq!(entry_path.check(name).is_ok(), expected.is_some(), "{name:?} in {dir}");
            let entered = entry_path.enter(name).is_ok().then(|| entry_path.as_str().to_owned());
            assert_eq!(entered.as_deref(), expected, "{name:?} in {dir}");
            if expected.is_some() {
                assert!(entry_path.segments().eq(entry_path.as_str().split('/')), "{entry_path:?}");
                entry_path.leave();
            }
            assert_eq!((entry_path.as_str(), entry_path.starts.len()), (dir, dir.split('/').count()), "{name:?}");
        }
        assert!(at("root").check(&"x".repeat(PATH_BYTES_MAX)).is_err());
        assert!(at("root").check(&vec!["x"; NAME_SEGMENTS_MAX].join("/")).is_ok());
        assert!(at("root").check(&vec!["x"; NAME_SEGMENTS_MAX + 1].join("/")).is_err());
        assert!(EntryPath::root("bafkqaddjnzzxazldoqwxizltoq").is_ok());
        for name in ["", ".", "..", "a/b", "/a", "a\0"] {
            assert!(EntryPath::root(name).is_err(), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn leave_undoes_enter(names in proptest::collection::vec("(\\.\\./){0,2}[ab](/[ab]){0,2}", 0..12)) {
            let mut entry_path = at("root/a/b");
            let mut paths = Vec::new();
            for name in &names {
                let (before, starts) = (entry_path.as_str().to_owned(), entry_path.starts.clone());
                if entry_path.enter(name).is_ok() {
                    let mut segments: Vec<&str> = before.split('/').collect();
                    for segment in name.split('/') {
                        if segment == ".." { segments.pop(); } else { segments.push(segment); }
                    }
                    prop_assert_eq!(entry_path.as_str(), segments.join("/"));
                    paths.push((before, starts));
                }
            }
            while let Some((path, starts)) = paths.pop() {
                entry_path.leave();
                prop_assert_eq!((entry_path.as_str(), &entry_path.starts), (&*path, &starts));
            }
        }
    }

    #[test]
    fn targets_stay_inside_the_root() {
        let table: [(&str, &[u8], bool); 18] = [
            ("root/s", b"a", true),
            ("root/s", b"a/b", true),
            ("root/s", b"./a", true),
            ("root/s", b".", true),
            ("root/s", b"..", false),
            ("root/s", b"../root/a", false),
            ("root/d/s", b"..", true),
            ("root/d/s", b"../a", true),
            ("root/d/s", b".././a//b", true),
            ("root/d/s", b"../..", false),
            ("root/d/e/s", b"a/../b", false),
            ("root/d/e/s", b"../../x", true),
            ("root/d/e/s", b"../../../x", false),
            ("root", b"x", true),
            ("root", b"../x", false),
            ("root/s", b"/etc/passwd", false),
            ("root/s", b"", false),
            ("root/s", b"\xff", false),
        ];
        for (path, text, allowed) in table {
            assert_eq!(at(path).target(text).is_ok(), allowed, "{path} to {}", String::from_utf8_lossy(text));
        }
    }
}
