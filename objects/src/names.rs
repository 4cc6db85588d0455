//! Which names objects have: relative paths of components of `A-Z a-z 0-9 . _ -`, of which none is empty or begins
//! with `.`. They need no encoding in a URL or a file system, they cannot lead out of a folder, and names that begin
//! with `.` remain for the folder's own files.

use crate::error::ObjectError;

/// The greatest length of a name, in bytes.
pub const NAME_BYTES_MAX: usize = 512;
/// The greatest length of a component of a name, in bytes: that of file systems.
pub const COMPONENT_BYTES_MAX: usize = 255;

/// Checks the name of an object.
///
/// # Errors
/// [`ObjectError::Name`].
pub(crate) fn check(name: &str) -> Result<(), ObjectError> {
    error_of(name, name.split('/')).map_or(Ok(()), |reason| Err(invalid(name, reason)))
}

/// Checks the beginning of names: nothing, a path that ends in `/`, or a name, of which the last component may be a
/// part.
///
/// # Errors
/// [`ObjectError::Name`].
pub(crate) fn check_prefix(prefix: &str) -> Result<(), ObjectError> {
    let whole = prefix.strip_suffix('/').unwrap_or(prefix);
    if prefix.is_empty() {
        return Ok(());
    }
    error_of(prefix, whole.split('/')).map_or(Ok(()), |reason| Err(invalid(prefix, reason)))
}

fn error_of<'a>(name: &str, mut components: impl Iterator<Item = &'a str>) -> Option<&'static str> {
    if name.len() > NAME_BYTES_MAX {
        return Some("it is longer than 512 bytes");
    }
    components.find_map(|component| match component {
        "" => Some("it has an empty component"),
        dotted if dotted.starts_with('.') => Some("a component begins with a dot"),
        long if long.len() > COMPONENT_BYTES_MAX => Some("a component is longer than 255 bytes"),
        other => (!other.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)))
            .then_some("it has characters other than letters, digits, '.', '_', '-' and '/'"),
    })
}

fn invalid(name: &str, reason: &'static str) -> ObjectError {
    let shown: String = name.chars().take(80).collect();
    ObjectError::Name { name: shown.into(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_relative_paths_of_plain_characters() {
        let component = "c".repeat(COMPONENT_BYTES_MAX);
        let longest = format!("{component}/{}/d", &component[1..]);
        assert_eq!(longest.len(), NAME_BYTES_MAX);
        let too_long = "a/".repeat(NAME_BYTES_MAX / 2) + "b";
        let table: [(&str, bool, bool); 24] = [
            // As a name, and as the beginning of names.
            ("a", true, true),
            ("v1/blocks/ab/1220-_.9", true, true),
            (&longest, true, true),
            ("", false, true),
            ("a/", false, true),
            ("a/b/", false, true),
            ("/", false, false),
            ("/a", false, false),
            ("a//b", false, false),
            ("a//", false, false),
            (".", false, false),
            ("..", false, false),
            ("a/../b", false, false),
            ("a/.b", false, false),
            (".tmp/x", false, false),
            ("a/./b", false, false),
            ("a b", false, false),
            ("a%2Fb", false, false),
            ("a\\b", false, false),
            ("a\0b", false, false),
            ("a\n", false, false),
            ("ä", false, false),
            (&too_long, false, false),
            ("c/dddd", true, true),
        ];
        for (name, is_name, is_prefix) in table {
            assert_eq!(check(name).is_ok(), is_name, "{name:?}");
            assert_eq!(check_prefix(name).is_ok(), is_prefix, "{name:?}");
        }
        assert!(check(&format!("{component}x")).is_err());
    }

    #[test]
    fn the_error_of_a_name_is_short() {
        let error = check(&"ä".repeat(1 << 20)).expect_err("is invalid");
        assert!(error.to_string().len() < 400, "{error}");
    }
}
