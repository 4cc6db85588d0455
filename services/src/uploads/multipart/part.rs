//! [`Part`]: the headers of a part.

use crate::uploads::names::{Path, shown};
use crate::uploads::{UploadError, tree};
use crate::url::form_decoded;
use content::importer::Attributes;
use http::HeaderMap;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use percent_encoding::percent_decode;
use std::borrow::Cow;

/// The kind of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A folder; the content of the part is ignored.
    Folder,
    /// A symlink, whose target is the content of the part.
    Symlink,
}

/// The headers of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its kind.
    pub kind: Kind,
    /// Its path in the upload; a file may have none.
    pub path: Option<Path>,
    /// Its attributes.
    pub attributes: Attributes,
}

impl Part {
    /// Parses the headers. `kubo`: all names are percent-encoded, with `+` for a space, and paths may begin with a
    /// slash.
    ///
    /// # Errors
    /// [`UploadError::Invalid`].
    pub fn of(headers: &HeaderMap, kubo: bool) -> Result<Self, UploadError> {
        let disposition = headers.get(CONTENT_DISPOSITION).map(|value| value.as_bytes()).unwrap_or_default();
        let field = parameter(disposition, b"name").unwrap_or_default();
        let path = match (filename(disposition, kubo), kubo) {
            (Some(name), true) => named(name.strip_prefix(b"/").unwrap_or(&name))?,
            (Some(name), false) => named(&name)?,
            (None, true) => None,
            (None, false) => {
                let words = format!("the form's field {} is not a file: give each part a filename", shown(&field));
                return Err(UploadError::Invalid(words));
            }
        };
        Ok(Self { kind: kind(headers)?, path, attributes: attributes(&field, headers) })
    }

    /// The path, for kinds that require one.
    ///
    /// # Errors
    /// [`UploadError::Invalid`] if there is none.
    pub fn needs_path(&self) -> Result<&Path, UploadError> {
        let nameless = || UploadError::Invalid("a part that is a folder or symlink must have a filename".to_owned());
        self.path.as_ref().ok_or_else(nameless)
    }
}

fn named(name: &[u8]) -> Result<Option<Path>, UploadError> {
    Ok(Some(Path::of(name)?).filter(|path| !path.is_top()))
}

fn kind(headers: &HeaderMap) -> Result<Kind, UploadError> {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media_type.as_str() {
        "application/x-directory" => Ok(Kind::Folder),
        "application/symlink" | "application/x-symlink" => Ok(Kind::Symlink),
        nested if nested.starts_with("multipart/") => {
            Err(UploadError::Invalid("nested forms are not supported".to_owned()))
        }
        _ => Ok(Kind::File),
    }
}

/// The filename of a part, or of the `Content-Disposition` of a whole upload.
pub fn filename(disposition: &[u8], kubo: bool) -> Option<Vec<u8>> {
    // RFC 6266, section 4.3: the extended form takes precedence if it is valid.
    if let Some(name) = parameter(disposition, b"filename*").and_then(|value| extended(&value)) {
        return Some(name);
    }
    let name = parameter(disposition, b"filename")?;
    Some(if kubo || is_encoded(&name) { form_decoded(&name) } else { unescaped(name) })
}

/// Decodes an extended value (RFC 8187): `UTF-8''percent-encoded`.
fn extended(value: &[u8]) -> Option<Vec<u8>> {
    let mut pieces = value.splitn(3, |byte| *byte == b'\'');
    let (charset, _language, text) = (pieces.next()?, pieces.next()?, pieces.next()?);
    charset.eq_ignore_ascii_case(b"utf-8").then(|| percent_decode(text).collect())
}

/// Whether a name must be completely percent-encoded: it has escapes, and no characters that would be escaped. Browsers
/// escape only quotes and line ends.
fn is_encoded(name: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.!~*'()+%".contains(byte);
    let escapes = name.windows(3).filter(|piece| is_escape(piece)).count();
    escapes > 0 && escapes == name.iter().filter(|byte| **byte == b'%').count() && name.iter().all(plain)
}

fn is_escape(piece: &[u8]) -> bool {
    matches!(piece, [b'%', high, low] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

/// Decodes a name as browsers encode it (<https://html.spec.whatwg.org/#multipart-form-data>).
fn unescaped(name: Vec<u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name.as_slice();
    while let Some((byte, behind)) = rest.split_first() {
        let escaped = match rest.get(..3).map(|piece| piece.to_ascii_uppercase()).as_deref() {
            Some(b"%22") => Some(b'"'),
            Some(b"%0D") => Some(b'\r'),
            Some(b"%0A") => Some(b'\n'),
            _ => None,
        };
        out.push(escaped.unwrap_or(*byte));
        rest = if escaped.is_some() { &rest[3..] } else { behind };
    }
    out
}

/// The value of a parameter in a header such as `form-data; name="a"; filename=b` (RFC 2183), without its quotes.
pub fn parameter(header: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let mut rest = behind(header, b';')?;
    loop {
        let end = rest.iter().position(|byte| matches!(byte, b'=' | b';'))?;
        let key = rest[..end].trim_ascii();
        if rest[end] == b';' {
            rest = &rest[end + 1..];
            continue;
        }
        let (value, after) = value(rest[end + 1..].trim_ascii_start());
        if key.eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = behind(after, b';')?;
    }
}

fn behind(bytes: &[u8], mark: u8) -> Option<&[u8]> {
    bytes.iter().position(|byte| *byte == mark).map(|at| &bytes[at + 1..])
}

/// Parses a value, quoted or not, and returns the rest.
fn value(bytes: &[u8]) -> (Vec<u8>, &[u8]) {
    let Some(quoted) = bytes.strip_prefix(b"\"") else {
        let end = bytes.iter().position(|byte| *byte == b';').unwrap_or(bytes.len());
        return (bytes[..end].trim_ascii_end().to_vec(), &bytes[end..]);
    };
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(byte) = quoted.get(at) {
        match (byte, quoted.get(at + 1)) {
            (b'"', _) => return (out, &quoted[at + 1..]),
            // Browsers send other backslashes as part of names.
            (b'\\', Some(escaped @ (b'"' | b'\\'))) => {
                out.push(*escaped);
                at += 1;
            }
            _ => out.push(*byte),
        }
        at += 1;
    }
    (out, &[])
}

/// The mode and time, which Kubo's clients append to the field's name (`file?mode=0644&mtime=1700000000`), or send as
/// headers.
fn attributes(field: &[u8], headers: &HeaderMap) -> Attributes {
    let query = behind(field, b'?').map(String::from_utf8_lossy).unwrap_or_default();
    let text = |name: &str| -> Option<Cow<'_, str>> {
        crate::url::parameter(&query, name)
            .or_else(|| headers.get(name).and_then(|value| value.to_str().ok()).map(Cow::Borrowed))
    };
    let seconds = text("mtime").and_then(|text| text.parse().ok());
    let nanoseconds = text("mtime-nsecs").and_then(|text| text.parse().ok()).filter(|part| *part < 1_000_000_000);
    Attributes {
        mode: text("mode").and_then(|text| u32::from_str_radix(&text, 8).ok()),
        modified: seconds.and_then(|seconds| tree::at(seconds, nanoseconds.unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn of(disposition: &[u8], media_type: &str, kubo: bool) -> Result<Part, UploadError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_DISPOSITION, HeaderValue::from_bytes(disposition).expect("a header"));
        headers.insert(CONTENT_TYPE, media_type.parse().expect("a header"));
        Part::of(&headers, kubo)
    }

    #[test]
    fn names_are_parsed_as_browsers_and_kubo_send_them() {
        // The header, whether the client is Kubo's, and the path.
        let table: [(&str, bool, Option<&str>); 22] = [
            (r#"form-data; name="f"; filename="a.txt""#, false, Some("a.txt")),
            (r#"form-data; filename="site/a b/ü.txt"; name="f""#, false, Some("site/a b/ü.txt")),
            (r#"form-data; name="f"; filename="a%22b%0D%0A.txt""#, false, Some("a\"b\r\n.txt")),
            (r#"form-data; name="f"; filename="a\"b.txt""#, false, Some("a\"b.txt")),
            (r#"form-data; name="f"; filename="C:\dir\a.txt""#, false, Some("C:\\dir\\a.txt")),
            (r#"form-data; name="f"; filename="100%.txt""#, false, Some("100%.txt")),
            (r#"form-data; name="f"; filename="100%25 done.txt""#, false, Some("100%25 done.txt")),
            (r#"form-data; name="f"; filename="c++.txt""#, false, Some("c++.txt")),
            (r#"form-data; name="f"; filename="c++.txt""#, true, Some("c  .txt")),
            (r#"form-data; name="file"; filename="site%2Fa+b%2F%C3%BC.txt""#, false, Some("site/a b/ü.txt")),
            (r#"form-data; name="file"; filename="%2Fabsolute%2Fa""#, true, Some("absolute/a")),
            (r#"attachment; filename="a%20b""#, true, Some("a b")),
            (r#"form-data; name="f"; filename=token.txt"#, false, Some("token.txt")),
            (r#"form-data; name="f"; filename*=UTF-8''na%20me; filename="other""#, false, Some("na me")),
            (r#"form-data; name="f"; filename*=latin1''x; filename="other""#, false, Some("other")),
            (r#"form-data; name="filename=x"; filename="y""#, false, Some("y")),
            (r#"form-data; NAME="f"; FileName = "y""#, false, Some("y")),
            (r#"form-data; name="f"; filename="never ends"#, false, Some("never ends")),
            (r#"form-data; name="f"; filename="""#, false, None),
            (r#"form-data; name="f""#, true, None),
            ("", true, None),
            ("form-data;;;=;filename=\"x\"", false, Some("x")),
        ];
        for (header, kubo, expected) in table {
            let part = of(header.as_bytes(), "application/octet-stream", kubo)
                .unwrap_or_else(|error| panic!("{header}: {error}"));
            let expected = expected.map(|text| Path::of(text.as_bytes()).expect("a path"));
            assert_eq!((part.kind, part.path), (Kind::File, expected), "{header}");
        }
    }

    #[test]
    fn paths_outside_the_upload_and_fields_without_files_are_rejected() {
        let table = [
            (r#"form-data; name="f"; filename="../a""#, "text/plain", false),
            (r#"form-data; name="f"; filename="/etc/passwd""#, "text/plain", false),
            (r#"form-data; name="f"; filename="%2e%2e%2fa""#, "text/plain", false),
            (r#"form-data; name="f"; filename="%2F..%2Fa""#, "text/plain", true),
            (r#"form-data; name="f"; filename="a%00b""#, "text/plain", true),
            (r#"form-data; name="f""#, "text/plain", false),
            ("", "text/plain", false),
            (r#"form-data; name="f"; filename="a""#, "multipart/mixed; boundary=x", false),
        ];
        for (header, media_type, kubo) in table {
            assert!(of(header.as_bytes(), media_type, kubo).is_err(), "{header}");
        }
        let folder = of(b"form-data", "application/x-directory", true).expect("reads");
        assert!(folder.needs_path().is_err());
    }

    #[test]
    fn kinds_modes_and_times_are_parsed_as_kubos_clients_send_them() {
        let header = br#"form-data; name="file?mode=0755&mtime=1700000000&mtime-nsecs=5"; filename="d""#;
        let part = of(header, "Application/X-Directory; charset=x", true).expect("reads");
        let modified = tree::at(1_700_000_000, 5);
        assert_eq!((part.kind, part.attributes), (Kind::Folder, Attributes { mode: Some(0o755), modified }));
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("form-data; name=\"file-1\"; filename=\"l\""));
        for (name, value) in [("content-type", "application/symlink"), ("mode", "0644"), ("mtime", "-5")] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let part = Part::of(&headers, true).expect("reads");
        assert_eq!(part.kind, Kind::Symlink);
        assert_eq!(part.attributes, Attributes { mode: Some(0o644), modified: tree::at(-5, 0) });
        headers.insert("mtime", HeaderValue::from_static("soon"));
        headers.insert("mode", HeaderValue::from_static("99"));
        assert!(Part::of(&headers, true).expect("reads").attributes.is_empty());
    }
}
