//! Which names and symlinks an archive may hold: whoever extracts it gets nothing outside the root, and reaches nothing
//! outside it through what is inside.

/// The longest path or target, in bytes: four times what Linux opens.
pub(super) const PATH_BYTES_MAX: usize = 16 * 1024;

/// Why a name or a target is refused.
pub(super) type Refusal = &'static str;

/// The path of `name` in the directory at the path `dir`, whose first part is the root. Names with `..` are allowed as
/// long as they stay inside.
pub(super) fn join(dir: &str, name: &str) -> Result<String, Refusal> {
    check(name)?;
    let mut parts: Vec<&str> = dir.split('/').collect();
    for part in name.split('/') {
        match part {
            "" => return Err("a part of it is empty"),
            "." => return Err("a part of it is a dot"),
            ".." if parts.len() == 1 => return Err("it climbs out of the root"),
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    if path.len() > PATH_BYTES_MAX {
        return Err("its path is too long");
    }
    if dir.strip_prefix(&*path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
        return Err("it names a directory that it is in");
    }
    Ok(path)
}

/// The root's own name: one part, since nothing is above it.
pub(super) fn check_root(name: &str) -> Result<(), Refusal> {
    check(name)?;
    if name.contains('/') || name == "." || name == ".." { Err("it is not a single name") } else { Ok(()) }
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

/// The target of a symlink at `path`, if it cannot lead out of the root. `..` may only come first: after a name it would
/// go up from wherever that name leads, which may be another symlink.
pub(super) fn target<'a>(path: &str, target: &'a [u8]) -> Result<&'a str, Refusal> {
    let target = std::str::from_utf8(target).map_err(|_| "it is not UTF-8")?;
    check(target)?;
    // The directories between the root and the symlink.
    let mut up = path.split('/').count().saturating_sub(2);
    let mut named = false;
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

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(join(dir, name).ok().as_deref(), expected, "{name:?} in {dir}");
        }
        assert!(join("root", &"x".repeat(PATH_BYTES_MAX)).is_err());
        assert!(check_root("bafkqaddjnzzxazldoqwxizltoq").is_ok());
        for name in ["", ".", "..", "a/b", "/a", "a\0"] {
            assert!(check_root(name).is_err(), "{name:?}");
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
            assert_eq!(target(path, text).is_ok(), allowed, "{path} to {}", String::from_utf8_lossy(text));
        }
    }
}
