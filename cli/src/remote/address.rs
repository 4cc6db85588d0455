//! [`Address`]: the address of an admin listener; and encoding of queries and path segments.

use config::ListenAddress;
use http::Uri;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::net::IpAddr;
use std::path::PathBuf;

/// The address of an admin listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A URL with only a scheme, a host and a port.
    Tcp {
        /// Whether the scheme is `https`.
        is_tls: bool,
        /// The host of the URL; IPv6 addresses are in brackets.
        host: String,
        /// The port, that of the scheme if the URL has none.
        port: u16,
    },
    /// The path of a Unix socket, which speaks HTTP without TLS.
    Unix(PathBuf),
}

impl Address {
    /// Parses a URL, or `unix:/PATH`, also as nginx writes it: `http://unix:/PATH`.
    pub fn parse(url: &str) -> Option<Self> {
        let url = url.trim();
        if let Ok(ListenAddress::Unix(path)) = url.strip_prefix("http://").unwrap_or(url).parse() {
            return Some(Self::Unix(path));
        }
        let url: Uri = url.parse().ok()?;
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
        Some(Self::Tcp { is_tls, host: authority.host().to_owned(), port })
    }

    /// Whether TLS is spoken.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tcp { is_tls: true, .. })
    }

    /// Host and port, for the header `Host`.
    pub fn authority(&self) -> String {
        match self {
            Self::Tcp { host, port, .. } => format!("{host}:{port}"),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }

    /// The URL, with its port.
    pub fn url(&self) -> String {
        match self {
            Self::Tcp { is_tls, .. } => format!("{}://{}", if *is_tls { "https" } else { "http" }, self.authority()),
            Self::Unix(path) => ListenAddress::Unix(path.clone()).to_string(),
        }
    }

    /// Whether it is on this machine: a Unix socket, or the host `localhost` or a loopback address.
    pub fn is_loopback(&self) -> bool {
        let Self::Tcp { host, .. } = self else { return true };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare.eq_ignore_ascii_case("localhost") || bare.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }
}

/// A query with its question mark; empty without parameters.
pub fn query(parameters: &[(&str, String)]) -> String {
    let pairs = parameters.iter().map(|(name, value)| format!("{name}={}", segment(value)));
    let pairs: Vec<String> = pairs.collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

/// Percent-encodes a text as a path segment or a query value.
pub fn segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_listener_is_a_host_and_a_port_or_a_unix_socket() {
        let table = [
            ("http://127.0.0.1:8081", Some(("http://127.0.0.1:8081", true))),
            ("http://127.0.0.1:8081/", Some(("http://127.0.0.1:8081", true))),
            ("http://localhost:8081/", Some(("http://localhost:8081", true))),
            ("http://[::1]:8081", Some(("http://[::1]:8081", true))),
            ("http://10.0.0.1:8081", Some(("http://10.0.0.1:8081", false))),
            ("http://gateway.example.org", Some(("http://gateway.example.org:80", false))),
            ("https://gateway.example.org", Some(("https://gateway.example.org:443", false))),
            ("https://127.0.0.1:8081", Some(("https://127.0.0.1:8081", true))),
            ("unix:/run/causeway/admin.sock", Some(("unix:/run/causeway/admin.sock", true))),
            ("http://unix:/run/causeway/admin.sock", Some(("unix:/run/causeway/admin.sock", true))),
            ("https://unix:/run/causeway/admin.sock", None),
            ("unix:admin.sock", None),
            ("unix:", None),
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
    fn queries_and_segments_are_percent_encoded() {
        assert_eq!(query(&[]), "");
        assert_eq!(query(&[("a", "1&2".to_owned()), ("b", "ä /".to_owned())]), "?a=1%262&b=%C3%A4%20%2F");
        assert_eq!(segment("../x"), "%2E%2E%2Fx");
    }
}
