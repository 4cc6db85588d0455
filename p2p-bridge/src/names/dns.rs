//! DNSLink over DNS (<https://dnslink.dev/>): TXT records of `_dnslink.DOMAIN`.
//!
//! Goals: DNSLinks are looked up with the resolvers of the system, unless the operator configured others for a suffix;
//! no other service is used. There is no cache here, because the names have one.
//!
//! Non-goals: DNSSEC, which the used resolvers may validate.

use super::cache::{Answer, TTL_MAX};
use content::NameError;
use content::dnslink;
use content::names::Domain;
use futures::FutureExt;
use futures::future::BoxFuture;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{RData, RecordType};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The timeout per server.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Retries per server.
const RETRIES: usize = 1;
/// The timeout of a look-up over all servers, including that of a DoH server's own address.
pub(super) const LOOKUP_TIMEOUT: Duration = Duration::from_secs(15);
/// The minimum time to live of a DNSLink: with less, a page and its images would each cause a look-up.
const TTL_MIN: Duration = Duration::from_secs(1);
/// The maximum time that the absence of a DNSLink is cached, which delays the first use of a new one.
const ABSENCE_TTL_MAX: Duration = Duration::from_secs(60);
/// How long a DNS failure is cached.
const FAILURE_TTL: Duration = Duration::from_secs(10);
/// Maximum addresses of one DNS-over-HTTPS service.
const DOH_ADDRESSES_MAX: usize = 4;

/// An answer or error, with the time to cache it.
pub(super) type DnsAnswer = (Result<Answer, NameError>, Duration);

/// A source of DNSLinks.
pub(super) trait DnsLinkSource: Send + Sync {
    /// The DNSLink of a domain.
    fn look_up(&self, domain: Domain) -> BoxFuture<'static, DnsAnswer>;
}

/// Why a route is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DohError {
    /// The suffix is not a domain, a top-level domain or ".".
    #[error("\"{suffix}\" is neither a domain suffix nor \".\"")]
    Suffix {
        /// The suffix as configured.
        suffix: String,
    },
    /// The URL is not that of a DNS-over-HTTPS service.
    #[error("\"{url}\" is not the URL of a DNS-over-HTTPS service, such as https://dns.example.org/dns-query")]
    Url {
        /// The URL as configured.
        url: String,
    },
}

/// A DNS-over-HTTPS service (RFC 8484).
#[derive(Debug, Clone, PartialEq, Eq)]
struct Service {
    host: String,
    port: u16,
    path: String,
}

impl Service {
    fn parse(url: &str) -> Result<Self, DohError> {
        let bad = || DohError::Url { url: url.to_owned() };
        let rest = url.strip_prefix("https://").ok_or_else(bad)?;
        // Some services publish their URL as a template; queries use POST, which needs no variable.
        let rest = rest.strip_suffix("{?dns}").unwrap_or(rest);
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| bad())?),
            _ => (authority, 443),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_address = host.parse::<std::net::IpAddr>().is_ok();
        let is_name = host.split('.').all(|label| {
            !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        });
        let path_is_good = path.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'{'));
        if !(is_address || is_name) || !path_is_good || port == 0 {
            return Err(bad());
        }
        let path = if path.is_empty() || path == "/" { "/dns-query" } else { path };
        Ok(Self { host: host.to_owned(), port, path: path.to_owned() })
    }

    /// A resolver for the service, whose own address is looked up with the system's resolver.
    async fn resolver(&self, queries_max: usize) -> Result<TokioResolver, String> {
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
        let addresses = found.map_err(|error| format!("could not resolve the address of {}: {error}", self.host))?;
        let server = |address: SocketAddr| {
            let mut server = NameServerConfig::https(
                address.ip(),
                Arc::from(self.host.as_str()),
                Some(Arc::from(self.path.as_str())),
            );
            for connection in &mut server.connections {
                connection.port = self.port;
            }
            server
        };
        build(addresses.take(DOH_ADDRESSES_MAX).map(server).collect(), queries_max)
    }
}

/// An upstream of DNS queries.
enum Upstream {
    /// Fixed servers.
    Servers(TokioResolver),
    /// A service whose address is looked up on first use, and again after a failure.
    Service { service: Service, queries_max: usize, resolver: Mutex<Option<TokioResolver>> },
    /// Unavailable, with the reason.
    Unavailable(String),
}

impl Upstream {
    async fn resolver(&self) -> Result<TokioResolver, String> {
        match self {
            Self::Servers(resolver) => Ok(resolver.clone()),
            Self::Unavailable(reason) => Err(reason.clone()),
            Self::Service { service, queries_max, resolver } => {
                let known = resolver.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some(known) = known {
                    return Ok(known);
                }
                let created = service.resolver(*queries_max).await?;
                *resolver.lock().unwrap_or_else(PoisonError::into_inner) = Some(created.clone());
                Ok(created)
            }
        }
    }

    /// Discards the resolver, because the service may have a new address.
    fn failed(&self) {
        if let Self::Service { resolver, .. } = self {
            *resolver.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

/// The upstreams by domain suffix.
pub(super) struct Dns {
    /// Sorted by suffix, the longest first. The last is the default.
    routes: Vec<(String, Arc<Upstream>)>,
}

impl Dns {
    /// `doh` has pairs of a suffix ("eth", "example.org" or "." for everything) and the URL of a DNS-over-HTTPS
    /// service. `servers` replace the system's servers unless empty. `queries_max` limits the concurrent queries to
    /// each upstream.
    pub fn new(doh: &[(String, String)], servers: &[SocketAddr], queries_max: usize) -> Result<Self, DohError> {
        let mut routes = Vec::new();
        for (suffix, url) in doh {
            let service = Service::parse(url)?;
            let upstream = Upstream::Service { service, queries_max, resolver: Mutex::new(None) };
            routes.push((normalise(suffix)?, Arc::new(upstream)));
        }
        if !routes.iter().any(|(suffix, _)| suffix.is_empty()) {
            routes.push((String::new(), Arc::new(default_servers(servers, queries_max))));
        }
        routes.sort_by_key(|(suffix, _)| std::cmp::Reverse(suffix.len()));
        Ok(Self { routes })
    }

    fn route(&self, domain: &Domain) -> Option<Arc<Upstream>> {
        let found = self.routes.iter().find(|(suffix, _)| is_below(domain.as_str(), suffix));
        found.map(|(_, upstream)| Arc::clone(upstream))
    }
}

/// Normalises a suffix: lower case without leading and trailing dots; "." becomes empty.
fn normalise(suffix: &str) -> Result<String, DohError> {
    let bad = || DohError::Suffix { suffix: suffix.to_owned() };
    let trimmed = suffix.trim_matches('.').to_ascii_lowercase();
    // `Domain` does not accept a top-level domain alone, so a label is prepended.
    let good = Domain::parse(&format!("x.{trimmed}")).is_some();
    if suffix == "." || (!trimmed.is_empty() && good) { Ok(trimmed) } else { Err(bad()) }
}

fn is_below(domain: &str, suffix: &str) -> bool {
    suffix.is_empty() || domain.strip_suffix(suffix).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

fn default_servers(servers: &[SocketAddr], queries_max: usize) -> Upstream {
    let built = if servers.is_empty() {
        let builder = TokioResolver::builder_tokio().map_err(|error| error.to_string());
        builder.and_then(|builder| finish(builder, queries_max))
    } else {
        build(servers.iter().map(|server| plain(*server)).collect(), queries_max)
    };
    built.map_or_else(
        |error| Upstream::Unavailable(format!("the DNS configuration of the system is invalid: {error}")),
        Upstream::Servers,
    )
}

fn plain(server: SocketAddr) -> NameServerConfig {
    let mut connections = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
    for connection in &mut connections {
        connection.port = server.port();
    }
    NameServerConfig::new(server.ip(), true, connections)
}

fn build(servers: Vec<NameServerConfig>, queries_max: usize) -> Result<TokioResolver, String> {
    let config = ResolverConfig::from_parts(None, Vec::new(), servers);
    finish(TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()), queries_max)
}

fn finish(
    mut builder: hickory_resolver::ResolverBuilder<TokioRuntimeProvider>,
    queries_max: usize,
) -> Result<TokioResolver, String> {
    let options = builder.options_mut();
    options.timeout = TIMEOUT;
    options.attempts = RETRIES;
    options.edns0 = true;
    // The singleflight already bounds the concurrent look-ups.
    options.max_active_requests = queries_max;
    // The names have their own cache.
    options.cache_size = 0;
    options.positive_max_ttl = Some(TTL_MAX);
    builder.build().map_err(|error| error.to_string())
}

impl DnsLinkSource for Dns {
    fn look_up(&self, domain: Domain) -> BoxFuture<'static, DnsAnswer> {
        let upstream = self.route(&domain);
        async move {
            let answer = match &upstream {
                Some(upstream) => query_with_timeout(upstream, &domain).await,
                None => Err(QueryError::Dns("no DNS server is configured for the domain".to_owned())),
            };
            match answer {
                Ok((Some(link), ttl)) => (Ok(Answer::Link(link)), ttl.clamp(TTL_MIN, TTL_MAX)),
                Ok((None, ttl)) => (Err(NameError::NoDnsLink { domain }), ttl.clamp(TTL_MIN, ABSENCE_TTL_MAX)),
                Err(QueryError::Busy) => (Err(NameError::Busy), Duration::ZERO),
                Err(QueryError::Dns(reason)) => (Err(NameError::Dns { domain, reason }), FAILURE_TTL),
            }
        }
        .boxed()
    }
}

/// Why a query failed.
enum QueryError {
    /// The maximum of concurrent queries is reached.
    Busy,
    /// The DNS server or the connection to it failed.
    Dns(String),
}

/// The DNSLink, if there is one, with its time to live.
type QueryResult = Result<(Option<Arc<str>>, Duration), QueryError>;

async fn query_with_timeout(upstream: &Upstream, domain: &Domain) -> QueryResult {
    let answer = tokio::time::timeout(LOOKUP_TIMEOUT, query(upstream, domain)).await;
    answer.unwrap_or_else(|_| {
        upstream.failed();
        Err(QueryError::Dns(format!("the query timed out after {} s", LOOKUP_TIMEOUT.as_secs())))
    })
}

async fn query(upstream: &Upstream, domain: &Domain) -> QueryResult {
    let resolver = upstream.resolver().await.map_err(QueryError::Dns)?;
    // The trailing dot prevents the use of the system's search list.
    match resolver.lookup(format!("{}.{domain}.", dnslink::LABEL), RecordType::TXT).await {
        Ok(lookup) => {
            check_response_code(lookup.message().response_code)?;
            let ttl = lookup.answers().iter().map(|record| record.ttl).min().unwrap_or_default();
            let texts: Vec<String> = lookup.answers().iter().filter_map(|record| text(&record.data)).collect();
            let link = dnslink::choose(texts.iter().map(String::as_str)).map(Arc::from);
            Ok((link, Duration::from_secs(ttl.into())))
        }
        Err(NetError::Dns(DnsError::NoRecordsFound(absence))) => {
            check_response_code(absence.response_code)?;
            let ttl = absence.negative_ttl.map_or(ABSENCE_TTL_MAX, |seconds| Duration::from_secs(seconds.into()));
            Ok((None, ttl))
        }
        Err(NetError::Busy) => Err(QueryError::Busy),
        // The server answered with an error.
        Err(error @ NetError::Dns(_)) => Err(QueryError::Dns(error.to_string())),
        Err(error) => {
            upstream.failed();
            Err(QueryError::Dns(error.to_string()))
        }
    }
}

/// Whether a response code is an answer about the domain. Errors must not be taken for the absence of records.
fn check_response_code(code: ResponseCode) -> Result<(), QueryError> {
    match code {
        ResponseCode::NoError | ResponseCode::NXDomain => Ok(()),
        other => Err(QueryError::Dns(format!("the server returned the error \"{other}\""))),
    }
}

/// The strings of a TXT record are concatenated (as RFC 7208, section 3.3, specifies for SPF).
fn text(data: &RData) -> Option<String> {
    let RData::TXT(txt) = data else { return None };
    String::from_utf8(txt.txt_data.concat()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_https_urls() {
        let table = [
            ("https://dns.example.org/dns-query", Some(("dns.example.org", 443, "/dns-query"))),
            ("https://dns.example.org", Some(("dns.example.org", 443, "/dns-query"))),
            ("https://dns.example.org/", Some(("dns.example.org", 443, "/dns-query"))),
            ("https://dns.example.org/q{?dns}", Some(("dns.example.org", 443, "/q"))),
            ("https://localhost:8443/q", Some(("localhost", 8443, "/q"))),
            ("https://127.0.0.1:8443/q", Some(("127.0.0.1", 8443, "/q"))),
            ("https://[::1]/q", Some(("::1", 443, "/q"))),
            ("https://[::1]:8443/q", Some(("::1", 8443, "/q"))),
            ("http://dns.example.org/dns-query", None),
            ("https://", None),
            ("https:///dns-query", None),
            ("https://user@dns.example.org/", None),
            ("https://dns.example.org:99999/", None),
            ("https://dns.example.org:0/", None),
            ("https://dns.example.org/q?a=b", None),
            ("dns.example.org", None),
        ];
        for (url, expected) in table {
            let expected = expected.map(|(host, port, path): (&str, _, &str)| Service {
                host: host.to_owned(),
                port,
                path: path.to_owned(),
            });
            assert_eq!(Service::parse(url).ok(), expected, "{url}");
        }
    }

    #[test]
    fn the_longest_suffix_wins_and_the_dot_is_the_default() {
        let route = |suffix: &str, port: u16| (suffix.to_owned(), format!("https://127.0.0.1:{port}/"));
        let dns = Dns::new(&[route("eth", 1), route("a.Eth.", 2), route(".", 3)], &[], 1).expect("routes");
        let table = [("x.eth", 1), ("y.x.eth", 1), ("a.eth", 2), ("x.a.eth", 2), ("ba.eth", 1), ("x.teeth", 3)];
        for (domain, port) in table {
            let upstream = dns.route(&Domain::parse(domain).expect("a domain")).expect("a route");
            assert!(matches!(&*upstream, Upstream::Service { service, .. } if service.port == port), "{domain}");
        }
        for suffix in ["", "..", "a b", "a..b"] {
            assert!(Dns::new(&[route(suffix, 1)], &[], 1).is_err(), "{suffix}");
        }
    }
}
