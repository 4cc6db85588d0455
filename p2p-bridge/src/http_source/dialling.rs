//! HTTP clients that connect only to permitted addresses.
//!
//! Goals: the resolver decides whether a name's addresses may be dialled, and the connection is made to those
//! addresses, so that a second lookup cannot give another result (DNS rebinding); no request waits for the reader of
//! another's response; the system's certificates, no cookies, proxies, redirects or decompression.
//!
//! There are clients for each trust level, because a client has one resolver: configured gateways may be anywhere,
//! untrusted ones not in private networks. IP addresses in URLs bypass the resolver and are checked before
//! ([`super::address`]). For each there is one for single blocks, which are read at once, and one for CARs, which are
//! read as fast as readers take their blocks: what is not read of a response takes the HTTP/2 window of its connection.
//!
//! Redirects are not followed: trustless gateways need none
//! (<https://specs.ipfs.tech/http-gateways/trustless-gateway/>), and each would be another address to check.

use super::source::{CARS_PART, ORIGIN_STREAMS_MAX};
use crate::errors::innermost;
use crate::scope::is_public;
use crate::tls;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, ClientBuilder, redirect};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The timeout for DNS, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an unused connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum header size of an HTTP/2 response, in bytes (hyper has its own limit for HTTP/1.1).
const HEADERS_BYTES_MAX: u32 = 16 * 1024;
/// HTTP/2 windows of a connection and of a stream, in bytes.
const WINDOW_BYTES: u32 = 8 * 1024 * 1024;
const RESPONSE_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
/// The window of a connection for CARs, in bytes: the windows of all CARs of an origin, so that those that are not read
/// leave room for the others. Their requests have no connection in common with those for single blocks, because then
/// the windows of these would have to be added as well. A smaller window of each CAR would do, but it limits the rate of a
/// CAR over a long link; the memory is bounded by the number of CARs either way.
const CARS_WINDOW_BYTES: u32 = RESPONSE_WINDOW_BYTES * (ORIGIN_STREAMS_MAX / CARS_PART) as u32;
/// The maximum number of addresses of a name.
const ADDRESSES_MAX: usize = 8;

/// The source of a gateway's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trust {
    /// The operator's configuration.
    Configured,
    /// A provider record, which any peer can publish.
    Untrusted,
}

/// Why a name is not dialled.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("the name has no address")]
    Nowhere,
    #[error("the name was resolved to the private address {0}")]
    Private(SocketAddr),
}

/// The addresses of a name that may be dialled: all, or none if one of them is private and not allowed.
fn admit(found: Vec<SocketAddr>, private_too: bool) -> Result<Vec<SocketAddr>, Refusal> {
    if let Some(private) = found.iter().find(|address| !private_too && !is_public(address.ip())) {
        return Err(Refusal::Private(*private));
    }
    if found.is_empty() { Err(Refusal::Nowhere) } else { Ok(found.into_iter().take(ADDRESSES_MAX).collect()) }
}

/// The system's resolver with a check of its results.
struct CheckedResolver {
    private_too: bool,
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let private_too = self.private_too;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let addresses: Addrs = Box::new(admit(found, private_too)?.into_iter());
            Ok(addresses)
        })
    }
}

/// The clients of one trust level, which share no connections.
#[derive(Debug, Clone)]
struct ClientsOfTrust {
    blocks: Client,
    cars: Client,
}

/// The clients of both trust levels.
#[derive(Debug, Clone)]
pub struct Clients {
    configured: ClientsOfTrust,
    untrusted: ClientsOfTrust,
}

impl Clients {
    /// Creates the clients; with `dial_private`, untrusted gateways may be in private networks. Without `cars`, no CARs
    /// are requested, so that there are no clients for them alone.
    ///
    /// # Errors
    /// If the HTTP client cannot be built.
    pub fn new(dial_private: bool, cars: bool) -> Result<Self, reqwest::Error> {
        let configured = ClientsOfTrust::build(true, cars)?;
        let untrusted = if dial_private { configured.clone() } else { ClientsOfTrust::build(false, cars)? };
        Ok(Self { configured, untrusted })
    }

    /// Clients without address restrictions that trust this certificate.
    #[cfg(test)]
    pub(crate) fn with_root_certificate(root: reqwest::Certificate) -> Self {
        tls::use_ring();
        let [blocks, cars] = [builder(true), for_cars(builder(true))]
            .map(|builder| builder.tls_certs_merge([root.clone()]).build().expect("a client"));
        let clients = ClientsOfTrust { blocks, cars };
        Self { configured: clients.clone(), untrusted: clients }
    }

    /// The client for single blocks from gateways of a trust level.
    pub fn of(&self, trust: Trust) -> &Client {
        &self.of_trust(trust).blocks
    }

    /// The client for CARs from gateways of a trust level.
    pub fn for_cars(&self, trust: Trust) -> &Client {
        &self.of_trust(trust).cars
    }

    fn of_trust(&self, trust: Trust) -> &ClientsOfTrust {
        match trust {
            Trust::Configured => &self.configured,
            Trust::Untrusted => &self.untrusted,
        }
    }
}

impl ClientsOfTrust {
    /// Clients that trust the system's certificates; without any, only plain HTTP works.
    fn build(private_too: bool, cars: bool) -> Result<Self, reqwest::Error> {
        tls::use_ring();
        let build = |finish: fn(ClientBuilder) -> ClientBuilder| {
            finish(builder(private_too)).build().or_else(|error| {
                tracing::warn!(error = innermost(&error), "gateways cannot be reached over HTTPS");
                finish(builder(private_too)).tls_certs_only(std::iter::empty()).build()
            })
        };
        let blocks = build(std::convert::identity)?;
        let cars = if cars { build(for_cars)? } else { blocks.clone() };
        Ok(Self { blocks, cars })
    }
}

/// A client for CARs: as many as are requested from an origin may be paused at a time.
fn for_cars(builder: ClientBuilder) -> ClientBuilder {
    builder.http2_initial_connection_window_size(CARS_WINDOW_BYTES)
}

/// A builder for clients of URLs from untrusted sources: connections are made to checked addresses only, and redirects
/// are not followed. With `private_too`, for URLs from the operator, private addresses are allowed.
pub fn builder(private_too: bool) -> ClientBuilder {
    tls::use_ring();
    Client::builder()
        .user_agent(concat!("causeway/", env!("CARGO_PKG_VERSION")))
        .dns_resolver(Arc::new(CheckedResolver { private_too }))
        .redirect(redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .http2_initial_connection_window_size(WINDOW_BYTES)
        .http2_initial_stream_window_size(RESPONSE_WINDOW_BYTES)
        .http2_max_header_list_size(HEADERS_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_private_address_is_rejected() {
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
    async fn the_resolver_returns_checked_addresses() {
        let localhost = || "localhost".parse::<Name>().expect("name");
        let mut found = CheckedResolver { private_too: true }.resolve(localhost()).await.expect("resolves");
        assert!(found.all(|address| address.ip().is_loopback()));
        let refused = CheckedResolver { private_too: false }.resolve(localhost()).await.err().expect("refuses");
        assert!(refused.to_string().contains("private address"), "{refused}");
    }
}
