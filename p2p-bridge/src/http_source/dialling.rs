//! HTTP clients that reach only where they may.
//!
//! Goals: whoever resolves a name also decides whether its addresses may be dialled, and the connection is made to those
//! very addresses, so that no second look-up can give another answer (DNS rebinding); one pool of connections for each
//! trust; the system's certificates, no cookies, no proxies, no redirects, nothing unpacked.
//!
//! Two clients, because a client has one resolver: what the operator configured may be anywhere, what strangers name may
//! not be in a private network. Addresses that are written out as such never reach a resolver; they are checked before
//! ([`super::address`]).
//!
//! Redirects are followed nowhere. A trustless gateway needs none
//! (<https://specs.ipfs.tech/http-gateways/trustless-gateway/>), and each would be one more way to be sent somewhere.

use crate::scope::is_public;
use crate::tls;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, ClientBuilder, redirect};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long the look-up of a name, the connection and its TLS handshake may take together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an unused connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Header bytes of a response over HTTP/2 (over HTTP/1.1 hyper has a bound of its own).
const HEADERS_BYTES_MAX: u32 = 16 * 1024;
/// Bytes under way to us on one connection over HTTP/2, and for one response.
const WINDOW_BYTES: u32 = 8 * 1024 * 1024;
const RESPONSE_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

/// Who named a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trust {
    /// The operator.
    Configured,
    /// A provider record, which anybody can write.
    Stranger,
}

/// Why a name is not dialled.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("the name stands for no address")]
    Nowhere,
    #[error("the name stands for {0}, an address of a private network")]
    Private(SocketAddr),
}

/// The addresses of a name that may be dialled: all, or none if any of them is private and may not be.
fn admit(found: Vec<SocketAddr>, private_too: bool) -> Result<Vec<SocketAddr>, Refusal> {
    if let Some(private) = found.iter().find(|address| !private_too && !is_public(address.ip())) {
        return Err(Refusal::Private(*private));
    }
    if found.is_empty() { Err(Refusal::Nowhere) } else { Ok(found.into_iter().take(ADDRESSES_MAX).collect()) }
}

/// The system's resolver behind a check of all that it says.
struct Guard {
    private_too: bool,
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let private_too = self.private_too;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let addresses: Addrs = Box::new(admit(found, private_too)?.into_iter());
            Ok(addresses)
        })
    }
}

/// The clients for each trust.
#[derive(Debug, Clone)]
pub struct Clients {
    configured: Client,
    strangers: Client,
}

impl Clients {
    /// Clients for both; with `dial_private`, strangers may lead into private networks too.
    ///
    /// # Errors
    /// When the machine cannot have any client at all.
    pub fn new(dial_private: bool) -> Result<Self, reqwest::Error> {
        let configured = build(true)?;
        let strangers = if dial_private { configured.clone() } else { build(false)? };
        Ok(Self { configured, strangers })
    }

    /// Clients that reach everywhere, of a system that believes this certificate too.
    #[cfg(test)]
    pub(crate) fn believing(root: reqwest::Certificate) -> Self {
        tls::use_ring();
        let client = builder(true).tls_certs_merge([root]).build().expect("a client");
        Self { configured: client.clone(), strangers: client }
    }

    /// The client for a gateway that somebody named.
    pub fn of(&self, trust: Trust) -> &Client {
        match trust {
            Trust::Configured => &self.configured,
            Trust::Stranger => &self.strangers,
        }
    }
}

/// A client that believes the certificates that the system does; if it has none, only HTTP without TLS works.
fn build(private_too: bool) -> Result<Client, reqwest::Error> {
    tls::use_ring();
    builder(private_too).build().or_else(|error| {
        tracing::warn!(error = innermost(&error), "no gateway is reached over HTTPS");
        builder(private_too).tls_certs_only(std::iter::empty()).build()
    })
}

/// What a client of another kind is made of that untrusted parties may name addresses to: as above, with the connection
/// made to addresses that were checked. With `private_too`, the operator has named the address. Redirects are not
/// followed.
pub fn builder(private_too: bool) -> ClientBuilder {
    tls::use_ring();
    Client::builder()
        .user_agent(concat!("causeway/", env!("CARGO_PKG_VERSION")))
        .dns_resolver(Arc::new(Guard { private_too }))
        .redirect(redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .http2_initial_connection_window_size(WINDOW_BYTES)
        .http2_initial_stream_window_size(RESPONSE_WINDOW_BYTES)
        .http2_max_header_list_size(HEADERS_BYTES_MAX)
}

/// The last of an error's causes: the layers around it say nothing of their own, and its URL is long.
pub(super) fn innermost(mut error: &(dyn std::error::Error + 'static)) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_private_address_condemns_a_name() {
        let public: SocketAddr = "8.8.8.8:0".parse().expect("address");
        let table: [(&[&str], bool, bool); 7] = [
            (&["8.8.8.8:0"], false, true),
            (&["8.8.8.8:0", "[2606:4700::1111]:0"], false, true),
            (&["8.8.8.8:0", "127.0.0.1:0"], false, false),
            (&["[::1]:0"], false, false),
            (&["[::ffff:10.0.0.1]:0"], false, false),
            (&["169.254.169.254:0"], true, true),
            (&[], true, false),
        ];
        for (found, private_too, admitted) in table {
            let addresses = found.iter().map(|text| text.parse().expect("address")).collect();
            assert_eq!(admit(addresses, private_too).is_ok(), admitted, "{found:?} {private_too}");
        }
        let many = admit(vec![public; 100], false).expect("public");
        assert_eq!(many.len(), ADDRESSES_MAX);
    }

    #[tokio::test]
    async fn the_resolver_hands_out_what_it_has_checked() {
        let localhost = || "localhost".parse::<Name>().expect("name");
        let mut found = Guard { private_too: true }.resolve(localhost()).await.expect("resolves");
        assert!(found.all(|address| address.ip().is_loopback()));
        let refused = Guard { private_too: false }.resolve(localhost()).await.err().expect("refuses");
        assert!(refused.to_string().contains("private network"), "{refused}");
    }
}
