//! Header values made of text.

use http::HeaderValue;

/// A header value of text. Text with control characters gives an empty value.
pub fn header(text: &str) -> HeaderValue {
    HeaderValue::from_bytes(text.as_bytes()).unwrap_or(HeaderValue::from_static(""))
}
