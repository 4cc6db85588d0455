//! [`Address`]: where an admin listener is; and what is asked for there.

use http::Uri;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::net::IpAddr;

/// Where an admin listener is: a URL that has nothing but a scheme, a host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Whether it speaks TLS.
    pub is_tls: bool,
    /// Its name or address, as it stands in the URL.
    pub host: String,
    port: u16,
}

impl Address {
    /// Reads a URL.
    pub fn parse(url: &str) -> Option<Self> {
        let url: Uri = url.trim().parse().ok()?;
        let authority = url.authority().filter(|authority| !authority.as_str().contains('@'))?;
        let is_tls = match url.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return None,
        };
        if !matches!(url.path(), "" | "/") || url.query().is_some() {
            return None;
        }
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Some(Self { is_tls, host: authority.host().to_owned(), port })
    }

    /// Host and port.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The URL, with its port.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.is_tls { "https" } else { "http" }, self.authority())
    }

    /// Whether what is sent there stays on this machine.
    pub fn is_loopback(&self) -> bool {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        bare.eq_ignore_ascii_case("localhost") || bare.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }
}

/// A query, with its question mark; nothing if there are no parameters.
pub fn query(parameters: &[(&str, String)]) -> String {
    let pairs = parameters.iter().map(|(name, value)| format!("{name}={}", segment(value)));
    let pairs: Vec<String> = pairs.collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

/// A text as one segment of a path, or as a value of a query.
pub fn segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_listener_is_a_host_and_a_port() {
        let table = [
            ("http://127.0.0.1:8081", Some(("http://127.0.0.1:8081", true))),
            ("http://127.0.0.1:8081/", Some(("http://127.0.0.1:8081", true))),
            ("http://localhost:8081/", Some(("http://localhost:8081", true))),
            ("http://[::1]:8081", Some(("http://[::1]:8081", true))),
            ("http://10.0.0.1:8081", Some(("http://10.0.0.1:8081", false))),
            ("http://gateway.example.org", Some(("http://gateway.example.org:80", false))),
            ("https://gateway.example.org", Some(("https://gateway.example.org:443", false))),
            ("https://127.0.0.1:8081", Some(("https://127.0.0.1:8081", true))),
            ("ftp://127.0.0.1:8081", None),
            ("127.0.0.1:8081", None),
            ("http://127.0.0.1:8081/api", None),
            ("http://127.0.0.1:8081?x", None),
            ("http://user@127.0.0.1:8081", None),
            ("http://", None),
            ("", None),
        ];
        for (url, expected) in table {
            let address = Address::parse(url).map(|address| (address.url(), address.is_loopback()));
            let expected = expected.map(|(url, is_loopback)| (url.to_owned(), is_loopback));
            assert_eq!(address, expected, "{url}");
        }
    }

    #[test]
    fn what_is_asked_for_is_encoded() {
        assert_eq!(query(&[]), "");
        assert_eq!(query(&[("a", "1&2".to_owned()), ("b", "ä /".to_owned())]), "?a=1%262&b=%C3%A4%20%2F");
        assert_eq!(segment("../x"), "%2E%2E%2Fx");
    }
}
