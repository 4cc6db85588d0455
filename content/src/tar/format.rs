//! The format of an archive: ustar headers, and PAX records for values that do not fit into them
//! (<https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html>).

/// The block size of TAR, in bytes.
pub(super) const BLOCK_BYTES: usize = 512;
/// The maximum size in an octal field of eleven digits, in bytes: 8 GiB less one.
const SIZE_MAX: u64 = (1 << 33) - 1;
const NAME_BYTES: usize = 100;
const PREFIX_BYTES: usize = 155;
/// The name of the entries with PAX records, for readers that do not support them.
const PAX_NAME: &str = "././@PaxHeader";

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    File { size: u64 },
    Directory,
    Symlink { target: &'a str },
}

/// The header of an entry, after its PAX records if it needs any. Times are zero and the owner is unset, so that the
/// same content always gives the same archive. A directory is marked by its type flag and has no slash at its end,
/// because Kubo's reader takes the slash for an empty path segment.
pub(super) fn header(path: &str, kind: Kind<'_>) -> Vec<u8> {
    let (size, target) = match kind {
        Kind::File { size } => (size, ""),
        Kind::Directory => (0, ""),
        Kind::Symlink { target } => (0, target),
    };
    let mut records = Vec::new();
    let (prefix, name) = split(path).unwrap_or_else(|| {
        put_record(&mut records, "path", path);
        ("", path)
    });
    if !target.is_ascii() || target.len() > NAME_BYTES {
        put_record(&mut records, "linkpath", target);
    }
    if size > SIZE_MAX {
        put_record(&mut records, "size", &size.to_string());
    }
    let (flag, mode) = match kind {
        Kind::File { .. } => (b'0', 0o644),
        Kind::Directory => (b'5', 0o755),
        Kind::Symlink { .. } => (b'2', 0o777),
    };
    let mut out = Vec::new();
    if !records.is_empty() {
        out.extend_from_slice(&block(b'x', 0o644, PAX_NAME, "", "", records.len() as u64));
        out.extend_from_slice(&records);
        out.resize(out.len() + padding(records.len() as u64), 0);
    }
    out.extend_from_slice(&block(flag, mode, name, prefix, target, if size > SIZE_MAX { 0 } else { size }));
    out
}

/// The number of zeros after so many bytes of content.
pub(super) fn padding(size: u64) -> usize {
    // Less than a block, so it fits.
    (size.wrapping_neg() % BLOCK_BYTES as u64) as usize
}

/// Splits a path into the prefix and the name of a header, which a reader joins with a slash; `None` if it does not
/// fit.
fn split(path: &str) -> Option<(&str, &str)> {
    if !path.is_ascii() {
        return None;
    }
    if path.len() <= NAME_BYTES {
        return Some(("", path));
    }
    let from = path.len().saturating_sub(NAME_BYTES + 1);
    let slash = from + path[from..].find('/')?;
    (slash <= PREFIX_BYTES).then(|| (&path[..slash], &path[slash + 1..]))
}

/// Adds a PAX record: its length in decimal, which counts itself, then the key and the value.
fn put_record(out: &mut Vec<u8>, key: &str, value: &str) {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len();
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    out.extend_from_slice(length.to_string().as_bytes());
    out.extend_from_slice(rest.as_bytes());
}

/// One header block. Values that are too long for their field are truncated; a PAX record has the full value.
fn block(flag: u8, mode: u32, name: &str, prefix: &str, target: &str, size: u64) -> [u8; BLOCK_BYTES] {
    let mut out = [0; BLOCK_BYTES];
    put(&mut out[0..NAME_BYTES], name);
    put(&mut out[100..108], &format!("{mode:07o}\0"));
    put(&mut out[108..116], "0000000\0");
    put(&mut out[116..124], "0000000\0");
    put(&mut out[124..136], &format!("{size:011o}\0"));
    put(&mut out[136..148], "00000000000\0");
    put(&mut out[148..156], "        ");
    out[156] = flag;
    put(&mut out[157..157 + NAME_BYTES], target);
    put(&mut out[257..265], "ustar\x0000");
    put(&mut out[329..345], "0000000\x000000000\0");
    put(&mut out[345..345 + PREFIX_BYTES], prefix);
    let sum: u32 = out.iter().map(|byte| u32::from(*byte)).sum();
    put(&mut out[148..156], &format!("{sum:06o}\0 "));
    out
}

/// Writes a text into a field, with an underscore for each byte that is not ASCII.
fn put(field: &mut [u8], text: &str) {
    let ascii = text.bytes().map(|byte| if byte.is_ascii() { byte } else { b'_' });
    field.iter_mut().zip(ascii).for_each(|(to, from)| *to = from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_records_length_counts_its_own_digits() {
        for (value_bytes, expected) in
            [(1, "5 "), (3, "7 "), (5, "9 "), (6, "11 "), (91, "96 "), (94, "99 "), (95, "101 ")]
        {
            let mut record = Vec::new();
            put_record(&mut record, "", &"v".repeat(value_bytes));
            assert!(record.starts_with(expected.as_bytes()), "{}", String::from_utf8_lossy(&record));
            assert_eq!(record.len().to_string(), expected.trim());
        }
    }

    #[test]
    fn paths_are_split_where_both_parts_fit() {
        let long = |head: usize, tail: usize| format!("{}/{}", "h".repeat(head), "t".repeat(tail));
        let table = [
            ("short".to_owned(), Some((0, 5))),
            ("x".repeat(100), Some((0, 100))),
            ("x".repeat(101), None),
            (long(1, 98), Some((0, 100))),
            (long(1, 100), Some((1, 100))),
            (long(155, 100), Some((155, 100))),
            (long(156, 50), None),
            (long(50, 101), None),
            ("ą".to_owned(), None),
        ];
        for (path, expected) in table {
            let found = split(&path);
            assert_eq!(found.map(|(prefix, name)| (prefix.len(), name.len())), expected, "{path}");
            if let Some((prefix, name)) = found.filter(|(prefix, _)| !prefix.is_empty()) {
                assert_eq!(format!("{prefix}/{name}"), path);
            }
        }
    }

    #[test]
    fn directories_are_marked_by_the_type_flag_alone() {
        let long = format!("root/{}", "d".repeat(200));
        for (path, header_blocks) in [("root", 1), ("root/d", 1), (long.as_str(), 3)] {
            let bytes = header(path, Kind::Directory);
            assert_eq!((bytes.len(), bytes[bytes.len() - 512 + 156]), (header_blocks * 512, b'5'), "{path}");
            let text = String::from_utf8_lossy(&bytes);
            assert!(text.contains(path) && !text.contains(&format!("{path}/")), "{path}");
        }
    }

    #[test]
    fn content_is_padded_to_whole_blocks() {
        for (size, expected) in [(0, 0), (1, 511), (511, 1), (512, 0), (513, 511), (u64::MAX, 1)] {
            assert_eq!(padding(size), expected, "{size}");
        }
    }

    #[test]
    fn sizes_beyond_the_octal_field_are_pax_records() {
        let text = |size| String::from_utf8_lossy(&header("f", Kind::File { size })).into_owned();
        assert!(text(SIZE_MAX).len() == 512 && text(SIZE_MAX).contains("77777777777"));
        assert!(text(SIZE_MAX + 1).len() == 3 * 512 && text(SIZE_MAX + 1).contains("19 size=8589934592\n"));
    }
}
