//! Which names and symlinks an archive may hold: whoever extracts it gets nothing outside the root, and reaches nothing
//! outside it through what is inside.
//!
//! The path of the directory that is being listed is kept as one text with the offsets of its parts ([`Place`]), so
//! that an entry costs what its own name is long and not what all of its path is.

/// The longest path or target, in bytes: four times what Linux opens.
pub(super) const PATH_BYTES_MAX: usize = 16 * 1024;
/// How many parts one name may have. Honest names have one; old writers made a few with slashes.
const NAME_PARTS_MAX: usize = 64;

/// Why a name or a target is refused.
pub(super) type Refusal = &'static str;

/// The path of a directory, whose first part is the root, and the way back to those above it.
#[derive(Debug, Default)]
pub(super) struct Place {
    path: String,
    /// Where each part begins.
    starts: Vec<usize>,
    left: Vec<Left>,
}

/// How a directory's path differs from that of the one it was entered from.
#[derive(Debug)]
struct Left {
    /// Parts that the two have in common.
    parts: usize,
    /// What followed these in the other one: nothing, unless the name climbed.
    removed: String,
}

/// What a name is to a directory.
#[derive(Debug, PartialEq, Eq)]
struct Steps<'a> {
    /// Parts of the directory's path that remain.
    parts: usize,
    /// What follows them.
    added: Vec<&'a str>,
}

impl Place {
    /// The root, by its own name: one part, since nothing is above it.
    pub(super) fn root(name: &str) -> Result<Self, Refusal> {
        check(name)?;
        if name.contains('/') || name == "." || name == ".." {
            return Err("it is not a single name");
        }
        Ok(Self { path: name.to_owned(), starts: vec![0], left: Vec::new() })
    }

    /// The path here.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The names on the way here, the root's first.
    pub(super) fn parts(&self) -> impl Iterator<Item = &str> {
        (0..self.starts.len()).filter_map(|index| self.part(index))
    }

    /// How many directories are between the root and what is here.
    fn depth(&self) -> usize {
        self.starts.len().saturating_sub(2)
    }

    /// Whether a name may be in the directory here. Names with `..` are allowed as long as they stay inside.
    pub(super) fn check(&self, name: &str) -> Result<(), Refusal> {
        self.steps(name).map(|_| ())
    }

    /// Goes to an entry of the directory here.
    pub(super) fn enter(&mut self, name: &str) -> Result<(), Refusal> {
        let Steps { parts, added } = self.steps(name)?;
        let removed = match self.starts.get(parts) {
            Some(start) => self.path.split_off(start - 1),
            None => String::new(),
        };
        self.starts.truncate(parts);
        for part in added {
            self.path.push('/');
            self.starts.push(self.path.len());
            self.path.push_str(part);
        }
        self.left.push(Left { parts, removed });
        Ok(())
    }

    /// Goes back to the directory whose entry this is.
    pub(super) fn leave(&mut self) {
        let Some(Left { parts, removed }) = self.left.pop() else { return };
        if let Some(start) = self.starts.get(parts) {
            self.path.truncate(start - 1);
        }
        self.starts.truncate(parts);
        let slashes = removed.match_indices('/').map(|(at, _)| self.path.len() + at + 1);
        self.starts.extend(slashes);
        self.path.push_str(&removed);
    }

    fn steps<'a>(&self, name: &'a str) -> Result<Steps<'a>, Refusal> {
        check(name)?;
        let (mut parts, mut added) = (self.starts.len(), Vec::with_capacity(1));
        for (count, part) in name.split('/').enumerate() {
            match part {
                _ if count == NAME_PARTS_MAX => return Err("it has too many parts"),
                "" => return Err("a part of it is empty"),
                "." => return Err("a part of it is a dot"),
                ".." if added.pop().is_some() => {}
                ".." if parts == 1 => return Err("it climbs out of the root"),
                ".." => parts -= 1,
                part => added.push(part),
            }
        }
        let kept_bytes = self.starts.get(parts).map_or(self.path.len(), |start| start - 1);
        let added_bytes: usize = added.iter().map(|part| 1 + part.len()).sum();
        if kept_bytes + added_bytes > PATH_BYTES_MAX {
            return Err("its path is too long");
        }
        let is_above = added.iter().enumerate().all(|(index, part)| self.part(parts + index) == Some(*part));
        if is_above { Err("it names a directory that it is in") } else { Ok(Steps { parts, added }) }
    }

    fn part(&self, index: usize) -> Option<&str> {
        let start = *self.starts.get(index)?;
        let end = self.starts.get(index + 1).map_or(self.path.len(), |next| next - 1);
        self.path.get(start..end)
    }

    /// The target of a symlink here, if it cannot lead out of the root. `..` may only come first: after a name it would
    /// go up from wherever that name leads, which may be another symlink.
    pub(super) fn target<'a>(&self, target: &'a [u8]) -> Result<&'a str, Refusal> {
        let target = std::str::from_utf8(target).map_err(|_| "it is not UTF-8")?;
        check(target)?;
        let (mut up, mut named) = (self.depth(), false);
        for part in target.split('/') {
            match part {
                "" | "." => {}
                ".." if named => return Err("it goes up after it went down"),
                ".." => up = up.checked_sub(1).ok_or("it leads out of the root")?,
                _ => named = true,
            }
        }
        Ok(target)
    }
}

fn check(name: &str) -> Result<(), Refusal> {
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

    /// The place of a path whose parts were entered one by one.
    fn at(path: &str) -> Place {
        let mut parts = path.split('/');
        let mut place = Place::root(parts.next().unwrap_or_default()).expect("a root");
        parts.for_each(|part| place.enter(part).expect("a part"));
        place
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
            let mut place = at(dir);
            assert_eq!(place.check(name).is_ok(), expected.is_some(), "{name:?} in {dir}");
            let entered = place.enter(name).is_ok().then(|| place.path().to_owned());
            assert_eq!(entered.as_deref(), expected, "{name:?} in {dir}");
            if expected.is_some() {
                assert!(place.parts().eq(place.path().split('/')), "{place:?}");
                place.leave();
            }
            assert_eq!((place.path(), place.starts.len()), (dir, dir.split('/').count()), "{name:?}");
        }
        assert!(at("root").check(&"x".repeat(PATH_BYTES_MAX)).is_err());
        assert!(at("root").check(&vec!["x"; NAME_PARTS_MAX].join("/")).is_ok());
        assert!(at("root").check(&vec!["x"; NAME_PARTS_MAX + 1].join("/")).is_err());
        assert!(Place::root("bafkqaddjnzzxazldoqwxizltoq").is_ok());
        for name in ["", ".", "..", "a/b", "/a", "a\0"] {
            assert!(Place::root(name).is_err(), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_entered_is_left_again(names in proptest::collection::vec("(\\.\\./){0,2}[ab](/[ab]){0,2}", 0..12)) {
            let mut place = at("root/a/b");
            let mut paths = Vec::new();
            for name in &names {
                let (before, starts) = (place.path().to_owned(), place.starts.clone());
                if place.enter(name).is_ok() {
                    let mut parts: Vec<&str> = before.split('/').collect();
                    for part in name.split('/') {
                        if part == ".." { parts.pop(); } else { parts.push(part); }
                    }
                    prop_assert_eq!(place.path(), parts.join("/"));
                    paths.push((before, starts));
                }
            }
            while let Some((path, starts)) = paths.pop() {
                place.leave();
                prop_assert_eq!((place.path(), &place.starts), (&*path, &starts));
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
