//! [`retry_after`]: the `Retry-After` header of overloaded servers.

use reqwest::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};
use std::time::{Duration, SystemTime};

/// Parses `Retry-After`, a number of seconds or a date (RFC 9110, section 10.2.3); `None` if it is missing or invalid.
///
/// A date is relative to the `Date` of the same response, so that the server's clock may differ from the local one;
/// without `Date` it is relative to `now`. A date in the past means no wait. The result is not bounded: callers apply
/// their own limits.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
    let value = text(RETRY_AFTER)?;
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(value).ok()?;
    let said_at = text(DATE).and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
    Some(until.duration_since(said_at).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use reqwest::header::HeaderValue;

    fn read(value: &str, date: Option<&str>) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_str(value).ok()?);
        if let Some(date) = date {
            headers.insert(DATE, HeaderValue::from_str(date).ok()?);
        }
        // Wed, 21 Oct 2015 07:28:00 GMT
        retry_after(&headers, SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_480))
    }

    #[test]
    fn seconds_and_dates_are_read() {
        let table = [
            ("120", None, Some(120)),
            (" 7 ", None, Some(7)),
            ("0", None, Some(0)),
            ("18446744073709551615", None, Some(u64::MAX)),
            ("Wed, 21 Oct 2015 07:30:00 GMT", None, Some(120)),
            ("Wednesday, 21-Oct-15 07:30:00 GMT", None, Some(120)),
            ("Wed Oct 21 07:30:00 2015", None, Some(120)),
            // The server's clock is a day ahead, and two days behind.
            ("Thu, 22 Oct 2015 07:30:00 GMT", Some("Thu, 22 Oct 2015 07:28:00 GMT"), Some(120)),
            ("Mon, 19 Oct 2015 07:30:00 GMT", Some("Mon, 19 Oct 2015 07:28:00 GMT"), Some(120)),
            ("Wed, 21 Oct 2015 07:30:00 GMT", Some("yesterday"), Some(120)),
            ("Wed, 21 Oct 2015 07:00:00 GMT", None, Some(0)),
            ("-1", None, None),
            ("1.5", None, None),
            ("18446744073709551616", None, None),
            ("Wed, 32 Oct 2015 07:30:00 GMT", None, None),
            ("soon", None, None),
            ("", None, None),
        ];
        for (value, date, seconds) in table {
            assert_eq!(read(value, date), seconds.map(Duration::from_secs), "{value:?}, {date:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), SystemTime::now()), None);
    }

    proptest! {
        #[test]
        fn any_header_is_parsed_without_panic(value in "[ -~]{0,40}", date in "[ -~]{0,40}") {
            let _ = read(&value, Some(&date));
        }
    }
}
