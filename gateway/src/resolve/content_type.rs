//! The media type of a file: by the extension of its name if known, else by sniffing.
//!
//! Goal: the result does not depend on the requested range, so that responses can be cached. Browsers are told not to
//! sniff (`X-Content-Type-Options: nosniff`).
//!
//! `text/html` has no charset, so that a page's `<meta charset>` applies; other text is UTF-8.

use http::HeaderValue;

/// The number of bytes that [`by_content`] examines.
pub const SNIFF_BYTES: u64 = 3072;

const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const HTML: HeaderValue = HeaderValue::from_static("text/html");
/// The media type of a symlink's target, as in Kubo.
pub const SYMLINK: HeaderValue = HeaderValue::from_static("inode/symlink");

/// The media type of a file name's extension, if known.
pub fn by_name(name: &str) -> Option<HeaderValue> {
    let guess = mime_guess::from_path(name).first_raw()?;
    if guess == "text/html" {
        return Some(HTML);
    }
    let textual = guess.starts_with("text/") || guess == "application/javascript" || guess == "application/json";
    if textual && guess != "application/json" {
        return HeaderValue::from_str(&format!("{guess}; charset=utf-8")).ok();
    }
    Some(HeaderValue::from_static(guess))
}

/// The media type of a file with these first bytes.
pub fn by_content(first: &[u8]) -> HeaderValue {
    let first = &first[..first.len().min(SNIFF_BYTES as usize)];
    if looks_like_html(first) {
        return HTML;
    }
    if let Some(kind) = infer::get(first)
        && kind.mime_type() != "text/html"
    {
        return HeaderValue::from_static(kind.mime_type());
    }
    match first {
        json if is_json(json) => JSON,
        text if is_text(text) => TEXT,
        _ => OCTETS,
    }
}

/// A JSON array or object, or the beginning of a long one. (A single number or word is taken for text.)
fn is_json(bytes: &[u8]) -> bool {
    let begins = matches!(bytes.trim_ascii_start().first(), Some(b'{' | b'['));
    let is_cut = bytes.len() as u64 == SNIFF_BYTES;
    begins
        && match serde_json::from_slice::<serde::de::IgnoredAny>(bytes) {
            Ok(_) => true,
            Err(error) => is_cut && error.is_eof(),
        }
}

/// Whether the text begins with HTML, after white space and a byte order mark.
fn looks_like_html(bytes: &[u8]) -> bool {
    const OPENINGS: [&[u8]; 9] =
        [b"<!doctype html", b"<html", b"<head", b"<body", b"<title", b"<script", b"<style", b"<h1", b"<!--"];
    let start = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    OPENINGS.iter().any(|opening| start.get(..opening.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(opening)))
}

/// UTF-8 without control characters that text does not have. The last character may be incomplete.
fn is_text(bytes: &[u8]) -> bool {
    let whole = match std::str::from_utf8(bytes) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none() && error.valid_up_to() + 4 > bytes.len(),
    };
    let control = |byte: &u8| *byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b);
    whole && !bytes.iter().any(control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_determine_the_media_type() {
        let table = [
            ("index.html", Some("text/html")),
            ("a.HTML", Some("text/html")),
            ("style.css", Some("text/css; charset=utf-8")),
            ("app.js", Some("text/javascript; charset=utf-8")),
            ("readme.txt", Some("text/plain; charset=utf-8")),
            ("data.json", Some("application/json")),
            ("pic.svg", Some("image/svg+xml")),
            ("pic.jpg", Some("image/jpeg")),
            ("mod.wasm", Some("application/wasm")),
            ("film.mp4", Some("video/mp4")),
            ("archive.tar.gz", Some("application/gzip")),
            ("README", None),
            ("what.unknownext", None),
            ("", None),
        ];
        for (name, expected) in table {
            assert_eq!(by_name(name).as_ref().map(|value| value.to_str().expect("ASCII")), expected, "{name}");
        }
    }

    #[test]
    fn other_files_are_sniffed() {
        let long = [b"[\"".to_vec(), vec![b'a'; 4000]].concat();
        let table: [(&[u8], &str); 17] = [
            (b"", "text/plain; charset=utf-8"),
            (b"hello\n", "text/plain; charset=utf-8"),
            ("Grüße".as_bytes(), "text/plain; charset=utf-8"),
            (b"caf\xc3", "text/plain; charset=utf-8"),
            (b"\xc3caf\xc3", "application/octet-stream"),
            (b"a\x00b", "application/octet-stream"),
            (b"  \n<!DOCTYPE HTML><p>", "text/html"),
            (b"\xef\xbb\xbf<html>", "text/html"),
            (b"<htm", "text/plain; charset=utf-8"),
            (b"\x89PNG\r\n\x1a\n0000", "image/png"),
            (b"%PDF-1.7", "application/pdf"),
            (b" {\"a\": [1, 2]}\n", "application/json"),
            (&long, "application/json"),
            (b"[1, 2", "text/plain; charset=utf-8"),
            (b"{not json}", "text/plain; charset=utf-8"),
            (b"42", "text/plain; charset=utf-8"),
            (b"\xff\xd8\xff\xe0", "image/jpeg"),
        ];
        for (bytes, expected) in table {
            assert_eq!(by_content(bytes).to_str().expect("ASCII"), expected, "{bytes:?}");
        }
    }
}
