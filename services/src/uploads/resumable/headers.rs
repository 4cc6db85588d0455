//! The headers of tus.

use crate::uploads::UploadError;
use crate::uploads::limits::METADATA_BYTES_MAX;
use cid::multibase::Base;
use http::HeaderMap;
use std::collections::HashMap;

/// The supported protocol version.
pub const VERSION: &str = "1.0.0";
/// The supported extensions.
pub const EXTENSIONS: &str = "creation,termination,expiration";
/// The media type of a piece of an upload.
pub const PIECE: &str = "application/offset+octet-stream";

/// Whether the client uses the supported version. A missing header is accepted, so that curl can be used.
pub fn speaks_ours(headers: &HeaderMap) -> bool {
    headers.get("tus-resumable").is_none_or(|version| version.as_bytes() == VERSION.as_bytes())
}

/// Parses a header with a number of bytes.
///
/// # Errors
/// [`UploadError::Invalid`] if it is missing or invalid.
pub fn number(headers: &HeaderMap, name: &str) -> Result<u64, UploadError> {
    let mut values = headers.get_all(name).iter();
    let text = values.next().filter(|_| values.next().is_none()).and_then(|value| value.to_str().ok());
    let digits = text.filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits.and_then(|text| text.parse().ok());
    number.ok_or_else(|| UploadError::Invalid(format!("the header {name} is missing or not a number of bytes")))
}

/// Parses `Upload-Metadata`: keys, and values in base64.
///
/// # Errors
/// [`UploadError::Invalid`] if it is invalid, or a value is not text.
pub fn metadata(headers: &HeaderMap) -> Result<HashMap<String, String>, UploadError> {
    let invalid = |words: &str| UploadError::Invalid(format!("the header Upload-Metadata {words}"));
    let Some(value) = headers.get("upload-metadata") else { return Ok(HashMap::new()) };
    let text = value.to_str().map_err(|_| invalid("is not text"))?;
    if text.len() > METADATA_BYTES_MAX {
        return Err(invalid("is too long"));
    }
    let mut pairs = HashMap::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once(' ').unwrap_or((pair, ""));
        let value = decoded(value.trim()).ok_or_else(|| invalid("has a value that is not in base64"))?;
        let value = String::from_utf8(value).map_err(|_| invalid("has a value that is not UTF-8 text"))?;
        if pairs.insert(key.to_owned(), value).is_some() {
            return Err(invalid("has a repeated key"));
        }
    }
    Ok(pairs)
}

/// Decodes base64 (RFC 4648, section 4), with or without padding.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if text.len() - digits.len() > 2 {
        return None;
    }
    Base::Base64.decode(digits).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().expect("a value"));
        headers
    }

    #[test]
    fn numbers_have_only_digits() {
        let table = [("0", Some(0)), ("18446744073709551615", Some(u64::MAX)), ("18446744073709551616", None)];
        let refused = ["", "-1", "+1", "1 ", "0x1", "1e3", "１"].map(|text| (text, None));
        for (text, expected) in table.into_iter().chain(refused) {
            let mut headers = HeaderMap::new();
            headers.insert("upload-offset", http::HeaderValue::from_bytes(text.as_bytes()).expect("a value"));
            assert_eq!(number(&headers, "upload-offset").ok(), expected, "{text:?}");
        }
        assert!(number(&HeaderMap::new(), "upload-length").is_err());
        let mut twice = with("upload-offset", "1");
        twice.append("upload-offset", "2".parse().expect("a value"));
        assert!(number(&twice, "upload-offset").is_err());
    }

    #[test]
    fn metadata_is_pairs_of_a_key_and_base64() {
        let table = [
            ("filename d29ybGQucGRm,is_confidential", vec![("filename", "world.pdf"), ("is_confidential", "")]),
            ("a Zg==, b Zm8=,c Zm9v", vec![("a", "f"), ("b", "fo"), ("c", "foo")]),
            ("a Zg", vec![("a", "f")]),
            ("a w7w=", vec![("a", "ü")]),
        ];
        for (text, expected) in table {
            let pairs = metadata(&with("upload-metadata", text)).unwrap_or_else(|error| panic!("{text}: {error}"));
            let expected: HashMap<_, _> =
                expected.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            assert_eq!(pairs, expected, "{text}");
        }
        assert!(metadata(&HeaderMap::new()).expect("none").is_empty());
        for text in ["a Zg===", "a Z", "a Z*==", "a Zh==", "a /w==", "a Zg==,a Zg=="] {
            assert!(metadata(&with("upload-metadata", text)).is_err(), "{text}");
        }
    }

    #[test]
    fn other_versions_are_not_supported() {
        assert!(speaks_ours(&HeaderMap::new()) && speaks_ours(&with("tus-resumable", "1.0.0")));
        assert!(!speaks_ours(&with("tus-resumable", "0.2.2")));
    }
}
