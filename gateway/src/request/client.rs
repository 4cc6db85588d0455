//! [`Client`]: the client's address, and the host and scheme of its request.
//!
//! A reverse proxy hides the client's address, the host name and the scheme, and reports them in `X-Forwarded-*`
//! headers. Any client can send these, so they are trusted only from the configured proxies.

use crate::trace::RequestTrace;
use config::{TrustedProxy, UNIX_PEER};
use content::budget::Budget;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use services::limiter::network_of;
use std::net::IpAddr;
use std::sync::Arc;

/// A client, as seen through trusted proxies.
#[derive(Debug, Clone)]
pub struct Client {
    /// The client's address; [`UNIX_PEER`] if it has none.
    pub address: IpAddr,
    /// The requested host and port, as sent; empty if there was none.
    pub authority: String,
    /// Whether the client uses HTTPS.
    pub https: bool,
    /// The memory that its requests on this connection share, if they run at the same time (HTTP/2).
    pub connection_memory: Option<Arc<Budget>>,
    /// Whether a trusted proxy has sent its request.
    pub via_trusted_proxy: bool,
    /// The trace of its request, if it is traced.
    pub trace: Option<Arc<RequestTrace>>,
}

impl Client {
    /// A client whose requests share no memory.
    pub fn new(address: IpAddr, authority: String, https: bool) -> Self {
        Self { address, authority, https, connection_memory: None, via_trusted_proxy: false, trace: None }
    }

    /// Reads a request's head from the connection with `peer`, which uses TLS or not.
    pub fn of(head: &Parts, (peer, encrypted): (IpAddr, bool), trusted: &[TrustedProxy]) -> Self {
        let https = encrypted && !asks_for_http(head);
        let direct = Self::new(peer.to_canonical(), asked_authority(head), https);
        if trusted.is_empty() || !is_trusted(direct.address, trusted) {
            return direct;
        }
        let forwarded = |name| last_of(&head.headers, name);
        let client = Self::new(
            original(&head.headers, direct.address, trusted),
            forwarded("x-forwarded-host").map_or(direct.authority, str::to_owned),
            forwarded("x-forwarded-proto").map_or(direct.https, |scheme| scheme.eq_ignore_ascii_case("https")),
        );
        Self { via_trusted_proxy: true, ..client }
    }

    /// Reads a request's head from a tunnel of the client at `address`. Proxies that forward the tunnel do not see its
    /// requests. A tunnel through TLS carries plain requests, whose URLs are those of HTTP.
    pub fn in_tunnel(head: &Parts, address: IpAddr) -> Self {
        Self::new(address, asked_authority(head), false)
    }

    /// The host without its port, in lower case and without a trailing dot.
    pub fn host(&self) -> String {
        let authority = self.authority.as_str();
        let host = match authority.rsplit_once(':') {
            // The colons of an IPv6 address are inside brackets.
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => authority,
        };
        host.trim_end_matches('.').to_ascii_lowercase()
    }

    /// The scheme of the client's URL.
    pub fn scheme(&self) -> &'static str {
        if self.https { "https" } else { "http" }
    }

    /// The key of per-client limits: the address, or for IPv6 its network of 64 bits, which one client may own.
    pub fn group(&self) -> IpAddr {
        network_of(self.address)
    }
}

/// The host of a request: that of an absolute URI takes precedence over the header (RFC 9112, section 3.2.2).
fn asked_authority(head: &Parts) -> String {
    let in_url = head.uri.authority().map(|authority| authority.as_str().rsplit('@').next().unwrap_or_default());
    let in_header = || head.headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
    in_url.or_else(in_header).unwrap_or_default().to_owned()
}

/// Whether an absolute URI has the scheme `http`: a client that uses the gateway as a proxy over TLS asks so for the URL
/// that it shows.
fn asks_for_http(head: &Parts) -> bool {
    head.uri.scheme() == Some(&http::uri::Scheme::HTTP)
}

fn is_trusted(address: IpAddr, trusted: &[TrustedProxy]) -> bool {
    trusted.iter().any(|proxy| proxy.includes(address))
}

/// The last value of a header to which each proxy may append: that of the nearest proxy.
fn last_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let last = headers.get_all(name).iter().next_back()?.to_str().ok()?;
    last.rsplit(',').next().map(str::trim).filter(|value| !value.is_empty())
}

/// The client's own address: the last forwarded address that does not belong to a trusted proxy.
fn original(headers: &HeaderMap, peer: IpAddr, trusted: &[TrustedProxy]) -> IpAddr {
    let mut nearest = peer;
    // The client may have sent any bytes before the entry of the proxy.
    let lists = headers.get_all("x-forwarded-for").iter().rev().map(HeaderValue::as_bytes);
    for part in lists.flat_map(|list| list.rsplit(|byte| *byte == b',')) {
        let Some(address) = std::str::from_utf8(part).ok().and_then(|text| address(text.trim())) else { break };
        nearest = address.to_canonical();
        if !is_trusted(nearest, trusted) {
            break;
        }
    }
    nearest
}

/// An address with an optional port; `unix:` is how nginx forwards the peer of a Unix socket.
fn address(text: &str) -> Option<IpAddr> {
    if text == "unix:" {
        return Some(UNIX_PEER);
    }
    let bare = text.trim_start_matches('[');
    let with_port = || text.parse::<std::net::SocketAddr>().ok().map(|socket| socket.ip());
    bare.trim_end_matches(']').parse().ok().or_else(with_port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn client(peer: &str, target: &str, headers: &[(&str, &str)]) -> Client {
        let mut builder = Request::builder().uri(target);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        let head = builder.body(()).expect("a request").into_parts().0;
        let trusted = ["127.0.0.0/8", "10.0.0.0/8"].map(|net| net.parse().expect("a network"));
        Client::of(&head, (peer.parse().expect("an address"), false), &trusted)
    }

    #[test]
    fn bytes_of_the_client_do_not_hide_the_entry_of_the_proxy() {
        let table: [(&[u8], &str); 4] = [
            (b"\xe9, 1.2.3.4", "1.2.3.4"),
            (b"5.6.7.8, \xc3\xa9, 1.2.3.4, 10.0.0.7", "1.2.3.4"),
            (b"1.2.3.4, \xe9", "127.0.0.1"),
            (b"\xe9", "127.0.0.1"),
        ];
        let trusted = ["127.0.0.0/8", "10.0.0.0/8"].map(|net| net.parse().expect("a network"));
        for (forwarded, expected) in table {
            let value = HeaderValue::from_bytes(forwarded).expect("a value");
            let headers = HeaderMap::from_iter([(http::HeaderName::from_static("x-forwarded-for"), value)]);
            let found = original(&headers, [127, 0, 0, 1].into(), &trusted);
            assert_eq!(found.to_string(), expected, "{forwarded:?}");
        }
    }

    #[test]
    fn the_scheme_is_that_of_the_connection_unless_a_proxy_or_the_url_says_otherwise() {
        let table = [
            ("9.9.9.9", "/", None, (false, true)),
            ("9.9.9.9", "http://a.example/", None, (false, false)),
            ("9.9.9.9", "https://a.example/", None, (false, true)),
            ("9.9.9.9", "/", Some("http"), (false, true)),
            ("127.0.0.1", "/", None, (false, true)),
            ("127.0.0.1", "/", Some("http"), (false, false)),
            ("127.0.0.1", "/", Some("https"), (true, true)),
        ];
        for (peer, target, forwarded, expected) in table {
            let mut builder = Request::builder().uri(target).header("host", "a.example");
            builder =
                forwarded.into_iter().fold(builder, |builder, scheme| builder.header("x-forwarded-proto", scheme));
            let head = builder.body(()).expect("a request").into_parts().0;
            let (peer, trusted) = (peer.parse().expect("an address"), ["127.0.0.0/8".parse().expect("a network")]);
            let https = [false, true].map(|encrypted| Client::of(&head, (peer, encrypted), &trusted).https);
            assert_eq!((https[0], https[1]), expected, "{peer} {target} {forwarded:?}");
        }
    }

    #[test]
    fn forwarded_headers_count_from_trusted_proxies_only() {
        let headers = [
            ("host", "proxy.internal:8080"),
            ("x-forwarded-host", "example.com"),
            ("x-forwarded-proto", "HTTPS"),
            ("x-forwarded-for", "6.6.6.6, 8.8.8.8, 10.0.0.9"),
        ];
        let trusted = client("127.0.0.1", "/", &headers);
        assert_eq!(
            (trusted.host().as_str(), trusted.https, trusted.address.to_string()),
            ("example.com", true, "8.8.8.8".to_owned())
        );
        assert!(trusted.via_trusted_proxy);
        let untrusted = client("9.9.9.9", "/", &headers);
        assert_eq!(
            (untrusted.host().as_str(), untrusted.https, untrusted.address.to_string()),
            ("proxy.internal", false, "9.9.9.9".to_owned())
        );
        assert!(!untrusted.via_trusted_proxy);
    }

    #[test]
    fn of_several_addresses_the_last_untrusted_one_is_the_client() {
        let table: [(&[&str], &str); 7] = [
            (&[], "127.0.0.1"),
            (&["1.2.3.4"], "1.2.3.4"),
            (&["1.2.3.4:5678"], "1.2.3.4"),
            (&["6.6.6.6", "1.2.3.4, 10.1.1.1"], "1.2.3.4"),
            (&["10.1.1.1"], "10.1.1.1"),
            (&["1.2.3.4, unknown"], "127.0.0.1"),
            (&["[2001:db8::1]:443"], "2001:db8::1"),
        ];
        for (lists, expected) in table {
            let headers: Vec<_> = lists.iter().map(|list| ("x-forwarded-for", *list)).collect();
            assert_eq!(client("127.0.0.1", "/", &headers).address.to_string(), expected, "{lists:?}");
        }
    }

    #[test]
    fn the_peer_of_a_unix_socket_is_a_proxy_if_it_is_trusted_by_name() {
        let table: [(&[&str], &str, &str); 4] = [
            (&["127.0.0.0/8"], "1.2.3.4", "0.0.0.0"),
            (&["unix:"], "1.2.3.4", "1.2.3.4"),
            (&["unix:"], "1.2.3.4, unix:", "1.2.3.4"),
            (&["127.0.0.0/8"], "1.2.3.4, unix:", "0.0.0.0"),
        ];
        for (trusted, forwarded, expected) in table {
            let trusted: Vec<TrustedProxy> = trusted.iter().map(|text| text.parse().expect("is valid")).collect();
            let request = Request::builder().uri("/").header("x-forwarded-for", forwarded);
            let head = request.body(()).expect("a request").into_parts().0;
            let client = Client::of(&head, (UNIX_PEER, false), &trusted);
            assert_eq!(client.address.to_string(), expected, "{trusted:?} {forwarded}");
        }
    }

    #[test]
    fn hosts_lose_their_port_case_and_last_dot() {
        let table = [
            ("Example.COM:8080", "example.com"),
            ("example.com.", "example.com"),
            ("[::1]:8080", "[::1]"),
            ("[::1]", "[::1]"),
            ("", ""),
        ];
        for (host, expected) in table {
            assert_eq!(client("9.9.9.9", "/", &[("host", host)]).host(), expected, "{host}");
        }
        assert_eq!(client("9.9.9.9", "http://a.example:80/x", &[("host", "b.example")]).host(), "a.example");
    }

    #[test]
    fn an_ipv6_client_is_its_network() {
        assert_eq!(client("2001:db8:1:2:3:4:5:6", "/", &[]).group().to_string(), "2001:db8:1:2::");
        assert_eq!(client("::ffff:1.2.3.4", "/", &[]).group().to_string(), "1.2.3.4");
    }
}
