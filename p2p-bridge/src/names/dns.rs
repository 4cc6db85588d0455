//! DNSLink over DNS (<https://dnslink.dev/>): text records of `_dnslink.DOMAIN`.
//!
//! Goals: the system's resolvers are asked, as for any other name, unless the operator routes some suffix elsewhere; no
//! service is asked that nobody configured; what is remembered is remembered in one place, so nothing is cached here.
//!
//! Non-goals: DNSSEC, which the resolvers that are asked may check.

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

/// How long one server may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How often one is asked again.
const RETRIES: usize = 1;
/// How long a look-up may take, over all servers, and with the look-up of a server's own address.
pub(super) const LOOKUP_TIMEOUT: Duration = Duration::from_secs(15);
/// The shortest time that a DNSLink is remembered: below that, a page and its images would each ask anew.
const TTL_MIN: Duration = Duration::from_secs(1);
/// The longest time that the absence of a DNSLink is remembered, which is what an owner waits who just made one.
const ABSENCE_TTL_MAX: Duration = Duration::from_secs(60);
/// How long a failure of the DNS is remembered.
const FAILURE_TTL: Duration = Duration::from_secs(10);
/// Addresses of one DNS-over-HTTPS service that are used.
const DOH_ADDRESSES_MAX: usize = 4;

/// An answer or its absence, and how long either may be remembered.
pub(super) type Looked = (Result<Answer, NameError>, Duration);

/// Whoever knows DNSLinks.
pub(super) trait Links: Send + Sync {
    /// The DNSLink of a domain.
    fn look_up(&self, domain: Domain) -> BoxFuture<'static, Looked>;
}

/// Why the routes cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DohError {
    /// The suffix is no domain, top-level domain or ".".
    #[error("\"{suffix}\" is neither a domain's suffix nor \".\"")]
    Suffix {
        /// The suffix as configured.
        suffix: String,
    },
    /// The URL is none of a DNS-over-HTTPS service.
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
        // Some services write their URL as a template; questions are posted, which needs no variable.
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

    /// A resolver that asks the service, whose own address the system looks up.
    async fn resolver(&self, questions_max: usize) -> Result<TokioResolver, String> {
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
        let addresses = found.map_err(|error| format!("cannot find {}: {error}", self.host))?;
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
        build(addresses.take(DOH_ADDRESSES_MAX).map(server).collect(), questions_max)
    }
}

/// One way to ask.
enum Asked {
    /// Fixed servers.
    Servers(TokioResolver),
    /// A service whose address is looked up when it is first needed, and again after a failure.
    Service { service: Service, questions_max: usize, resolver: Mutex<Option<TokioResolver>> },
    /// Nothing can be asked.
    Nobody(String),
}

impl Asked {
    async fn resolver(&self) -> Result<TokioResolver, String> {
        match self {
            Self::Servers(resolver) => Ok(resolver.clone()),
            Self::Nobody(reason) => Err(reason.clone()),
            Self::Service { service, questions_max, resolver } => {
                let known = resolver.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some(known) = known {
                    return Ok(known);
                }
                let made = service.resolver(*questions_max).await?;
                *resolver.lock().unwrap_or_else(PoisonError::into_inner) = Some(made.clone());
                Ok(made)
            }
        }
    }

    /// The service may have moved.
    fn failed(&self) {
        if let Self::Service { resolver, .. } = self {
            *resolver.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

/// Who is asked for which domains.
pub(super) struct Dns {
    /// By suffix, the longest first. The last is everybody's.
    routes: Vec<(String, Arc<Asked>)>,
}

impl Dns {
    /// `doh` has pairs of a suffix ("eth", "example.org" or "." for everything) and the URL of a DNS-over-HTTPS service.
    /// `servers`, if there are any, are asked instead of the system's. `questions_max` may be open at each at once.
    pub fn new(doh: &[(String, String)], servers: &[SocketAddr], questions_max: usize) -> Result<Self, DohError> {
        let mut routes = Vec::new();
        for (suffix, url) in doh {
            let service = Service::parse(url)?;
            let asked = Asked::Service { service, questions_max, resolver: Mutex::new(None) };
            routes.push((normal(suffix)?, Arc::new(asked)));
        }
        if !routes.iter().any(|(suffix, _)| suffix.is_empty()) {
            routes.push((String::new(), Arc::new(default_servers(servers, questions_max))));
        }
        routes.sort_by_key(|(suffix, _)| std::cmp::Reverse(suffix.len()));
        Ok(Self { routes })
    }

    fn route(&self, domain: &Domain) -> Option<Arc<Asked>> {
        let found = self.routes.iter().find(|(suffix, _)| is_below(domain.as_str(), suffix));
        found.map(|(_, asked)| Arc::clone(asked))
    }
}

/// A suffix without dots around it, in lower case; "." is empty.
fn normal(suffix: &str) -> Result<String, DohError> {
    let bad = || DohError::Suffix { suffix: suffix.to_owned() };
    let trimmed = suffix.trim_matches('.').to_ascii_lowercase();
    // A top-level domain alone is no domain to us; below it anything would be.
    let good = Domain::parse(&format!("x.{trimmed}")).is_some();
    if suffix == "." || (!trimmed.is_empty() && good) { Ok(trimmed) } else { Err(bad()) }
}

fn is_below(domain: &str, suffix: &str) -> bool {
    suffix.is_empty() || domain.strip_suffix(suffix).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

fn default_servers(servers: &[SocketAddr], questions_max: usize) -> Asked {
    let built = if servers.is_empty() {
        let builder = TokioResolver::builder_tokio().map_err(|error| error.to_string());
        builder.and_then(|builder| finish(builder, questions_max))
    } else {
        build(servers.iter().map(|server| plain(*server)).collect(), questions_max)
    };
    built.map_or_else(
        |error| Asked::Nobody(format!("the system's DNS configuration cannot be used: {error}")),
        Asked::Servers,
    )
}

fn plain(server: SocketAddr) -> NameServerConfig {
    let mut connections = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
    for connection in &mut connections {
        connection.port = server.port();
    }
    NameServerConfig::new(server.ip(), true, connections)
}

fn build(servers: Vec<NameServerConfig>, questions_max: usize) -> Result<TokioResolver, String> {
    let config = ResolverConfig::from_parts(None, Vec::new(), servers);
    finish(TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()), questions_max)
}

fn finish(
    mut builder: hickory_resolver::ResolverBuilder<TokioRuntimeProvider>,
    questions_max: usize,
) -> Result<TokioResolver, String> {
    let options = builder.options_mut();
    options.timeout = TIMEOUT;
    options.attempts = RETRIES;
    options.edns0 = true;
    // Whoever asks us is counted already.
    options.max_active_requests = questions_max;
    // What is remembered is remembered in one place.
    options.cache_size = 0;
    options.positive_max_ttl = Some(TTL_MAX);
    builder.build().map_err(|error| error.to_string())
}

impl Links for Dns {
    fn look_up(&self, domain: Domain) -> BoxFuture<'static, Looked> {
        let asked = self.route(&domain);
        async move {
            let answer = match &asked {
                Some(asked) => ask_in_time(asked, &domain).await,
                None => Err(Trouble::Dns("no DNS is configured for it".to_owned())),
            };
            match answer {
                Ok((Some(link), ttl)) => (Ok(Answer::Link(link)), ttl.clamp(TTL_MIN, TTL_MAX)),
                Ok((None, ttl)) => (Err(NameError::NoDnsLink { domain }), ttl.clamp(TTL_MIN, ABSENCE_TTL_MAX)),
                Err(Trouble::Busy) => (Err(NameError::Busy), Duration::ZERO),
                Err(Trouble::Dns(reason)) => (Err(NameError::Dns { domain, reason }), FAILURE_TTL),
            }
        }
        .boxed()
    }
}

/// Why there is no answer.
enum Trouble {
    /// We have too many questions.
    Busy,
    /// The DNS, or the way to it, fails.
    Dns(String),
}

/// The link, if there is one, and how long that holds.
type Heard = Result<(Option<Arc<str>>, Duration), Trouble>;

async fn ask_in_time(asked: &Asked, domain: &Domain) -> Heard {
    let answer = tokio::time::timeout(LOOKUP_TIMEOUT, ask(asked, domain)).await;
    answer.unwrap_or_else(|_| {
        asked.failed();
        Err(Trouble::Dns(format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs())))
    })
}

async fn ask(asked: &Asked, domain: &Domain) -> Heard {
    let resolver = asked.resolver().await.map_err(Trouble::Dns)?;
    // The last dot keeps the system's search list out of it.
    match resolver.lookup(format!("{}.{domain}.", dnslink::LABEL), RecordType::TXT).await {
        Ok(lookup) => {
            says_something(lookup.message().response_code)?;
            let ttl = lookup.answers().iter().map(|record| record.ttl).min().unwrap_or_default();
            let texts: Vec<String> = lookup.answers().iter().filter_map(|record| text(&record.data)).collect();
            let link = dnslink::choose(texts.iter().map(String::as_str)).map(Arc::from);
            Ok((link, Duration::from_secs(ttl.into())))
        }
        Err(NetError::Dns(DnsError::NoRecordsFound(absence))) => {
            says_something(absence.response_code)?;
            let ttl = absence.negative_ttl.map_or(ABSENCE_TTL_MAX, |seconds| Duration::from_secs(seconds.into()));
            Ok((None, ttl))
        }
        Err(NetError::Busy) => Err(Trouble::Busy),
        // The server answered, if only that it cannot.
        Err(error @ NetError::Dns(_)) => Err(Trouble::Dns(error.to_string())),
        Err(error) => {
            asked.failed();
            Err(Trouble::Dns(error.to_string()))
        }
    }
}

/// Whether a response says anything about the domain. Others are easily taken for one without records.
fn says_something(code: ResponseCode) -> Result<(), Trouble> {
    match code {
        ResponseCode::NoError | ResponseCode::NXDomain => Ok(()),
        other => Err(Trouble::Dns(format!("the server answered \"{other}\""))),
    }
}

/// A text record's strings are pieces of one text (RFC 7208, section 3.3, says so for all who use them like this).
fn text(data: &RData) -> Option<String> {
    let RData::TXT(txt) = data else { return None };
    String::from_utf8(txt.txt_data.concat()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_urls_with_https() {
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
    fn the_longest_suffix_wins_and_the_dot_is_for_the_rest() {
        let route = |suffix: &str, port: u16| (suffix.to_owned(), format!("https://127.0.0.1:{port}/"));
        let dns = Dns::new(&[route("eth", 1), route("a.Eth.", 2), route(".", 3)], &[], 1).expect("routes");
        let table = [("x.eth", 1), ("y.x.eth", 1), ("a.eth", 2), ("x.a.eth", 2), ("ba.eth", 1), ("x.teeth", 3)];
        for (domain, port) in table {
            let asked = dns.route(&Domain::parse(domain).expect("a domain")).expect("a route");
            assert!(matches!(&*asked, Asked::Service { service, .. } if service.port == port), "{domain}");
        }
        for suffix in ["", "..", "a b", "a..b"] {
            assert!(Dns::new(&[route(suffix, 1)], &[], 1).is_err(), "{suffix}");
        }
    }
}
