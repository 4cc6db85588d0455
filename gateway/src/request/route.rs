//! Routing of a request by its host and path.
//!
//! ```text
//! host ─┬ configured ───────── / ........................ landing page
//!       │                      /ipfs/…, /ipns/… ......... redirect to the origin, or served by path
//!       ├ LABEL.ipfs.HOST ──── any path ................. the site of LABEL, in an origin of its own
//!       ├ domain with DNSLink  any path ................. the site of the domain, in its own origin
//!       └ anything else ────── / and /ipfs/…, /ipns/… ... by path (not cached if DNS failed)
//! ```

use crate::headers::header;
use crate::request::Ask;
use crate::request::RequestError;
use crate::request::client::Client;
use crate::request::hosts::{self, Hosts, Site, Subdomain};
use crate::trace::resolver_for;
use config::Host;
use content::names::{Domain, NameError};
use content::path::{Namespace, Root};
use content::{ContentPath, Name, NameResolver, codec, subdomain};
use http::{HeaderValue, StatusCode};
use moka::sync::Cache;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use std::borrow::Cow;
use std::sync::Arc;

/// The route of a request.
#[derive(Debug)]
pub enum Route {
    /// The landing page.
    Landing,
    /// A redirect.
    Redirect(StatusCode, HeaderValue),
    /// Content.
    Content(Place),
}

/// The origin in which content is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The form of links to other content.
    pub links: Links,
    /// Whether the content does not share the origin, so that its `_redirects` apply.
    pub isolated: bool,
    /// Whether the content is certain to belong to this origin. If not, the response must not be cached.
    pub certain: bool,
    /// Whether formats are served that the client cannot verify.
    pub deserialized: bool,
}

/// The form of links to other content.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Links {
    /// By path, in this origin.
    Path,
    /// In origins below this authority (host and port).
    Subdomain(String),
    /// In the origin of a DNSLink site at this authority, which serves no other content.
    DnsLink(String),
}

/// Routes requests.
pub struct Router {
    hosts: Hosts,
    names: Arc<dyn NameResolver>,
    depth_max: usize,
    /// Domains that are known to have a DNSLink.
    sites: Cache<Domain, ()>,
}

/// The maximum number of domains in the cache.
const SITES_MAX: u64 = 10_000;

/// Whether a domain has a DNSLink.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DnsLinkStatus {
    Yes,
    No,
    /// The DNS look-up failed, and the domain is not in the cache.
    Unknown,
}

impl Router {
    /// A router for the configured hosts, and for other domains with a DNSLink.
    pub fn new(hosts: Hosts, names: Arc<dyn NameResolver>, depth_max: usize) -> Self {
        Self { hosts, names, depth_max, sites: Cache::new(SITES_MAX) }
    }

    /// Whether a host is known to be a site, without look-ups.
    pub fn is_site(&self, client: &Client) -> bool {
        match self.hosts.site(&client.host()) {
            Site::Subdomain(_) => true,
            Site::Domain(domain) => self.sites.contains_key(&domain),
            Site::Configured(_) | Site::Other => false,
        }
    }

    /// Routes a request, and rewrites its path to the content path.
    ///
    /// # Errors
    /// [`RequestError`] when the host or the path has no route.
    pub async fn route(&self, client: &Client, ask: &mut Ask<'_>) -> Result<Route, RequestError> {
        let by_path =
            |host: Option<&Host>, deserialized, ask: &Ask<'_>| by_path(host, deserialized, client, ask, self.depth_max);
        match self.hosts.site(&client.host()) {
            Site::Subdomain(subdomain) => subdomain_site(&subdomain, client, ask),
            Site::Domain(domain) => match Box::pin(self.dnslink_status(&domain, client)).await? {
                DnsLinkStatus::Yes => Ok(dnslink_site(&domain, client, ask, true, self.hosts.deserialized)),
                DnsLinkStatus::No => by_path(None, self.hosts.deserialized, ask),
                DnsLinkStatus::Unknown => match by_path(None, self.hosts.deserialized, ask) {
                    // The site that cannot be looked up may have this page.
                    Err(RequestError::NoSuchPage) => Err(RequestError::SiteUnknown { domain }),
                    route => route.map(uncertain),
                },
            },
            Site::Configured(host) if self.hosts.dnslink_sites && Namespace::split(ask.sent).is_none() => {
                match Domain::parse(&host.name) {
                    // Without subdomains, other content is served by path in this origin.
                    Some(domain) if Box::pin(self.dnslink_status(&domain, client)).await? == DnsLinkStatus::Yes => {
                        Ok(dnslink_site(&domain, client, ask, host.subdomains, host.deserialized))
                    }
                    _ => by_path(Some(host), host.deserialized, ask),
                }
            }
            Site::Configured(host) => by_path(Some(host), host.deserialized, ask),
            Site::Other => by_path(None, self.hosts.deserialized, ask),
        }
    }

    /// Whether a domain has a DNSLink, even one to a name that cannot be resolved. After a DNS failure, a known site
    /// keeps its origin: otherwise other content could run in it.
    ///
    /// # Errors
    /// [`RequestError::Name`] when a known site cannot be looked up, or the limit of look-ups is reached.
    async fn dnslink_status(&self, domain: &Domain, client: &Client) -> Result<DnsLinkStatus, RequestError> {
        let names = resolver_for(&self.names, client.trace.as_ref());
        let error = names.resolve(&Name::Domain(domain.clone())).await.err();
        match error {
            Some(NameError::NoDnsLink { domain: without }) if without == *domain => {
                self.sites.invalidate(domain);
                Ok(DnsLinkStatus::No)
            }
            Some(error @ NameError::Busy) => Err(error.into()),
            Some(NameError::Dns { domain: failed, .. }) if failed == *domain && !self.sites.contains_key(domain) => {
                Ok(DnsLinkStatus::Unknown)
            }
            Some(NameError::Offline { name: Name::Domain(unknown) }) if unknown == *domain => Ok(DnsLinkStatus::No),
            _ => {
                self.sites.insert(domain.clone(), ());
                Ok(DnsLinkStatus::Yes)
            }
        }
    }
}

fn uncertain(route: Route) -> Route {
    match route {
        Route::Content(place) => Route::Content(Place { certain: false, ..place }),
        other => other,
    }
}

/// The site of a domain, in its own origin.
fn dnslink_site(domain: &Domain, client: &Client, ask: &mut Ask<'_>, isolated: bool, deserialized: bool) -> Route {
    ask.path = Cow::Owned(format!("/ipns/{domain}{}", ask.sent));
    Route::Content(Place { links: Links::DnsLink(client.authority.clone()), isolated, certain: true, deserialized })
}

/// The site of a label, in its own origin.
fn subdomain_site(subdomain: &Subdomain<'_>, client: &Client, ask: &mut Ask<'_>) -> Result<Route, RequestError> {
    let Subdomain { host, namespace, label } = subdomain;
    if !hosts::serves(host, *namespace) {
        return Err(RequestError::NoSuchPage);
    }
    let base = base_authority(&client.authority, &host.name);
    let root = subdomain.root()?;
    if let Some(label) = subdomain.canonical_label(&root)? {
        return Ok(redirect_to_label(&label, *namespace, &base, &with_query(ask.sent, ask.query), client));
    }
    let root = match &root {
        Root::Cid(_) => Cow::Borrowed(label.as_str()),
        Root::Name(name) => Cow::Owned(name.to_string()),
    };
    ask.path = Cow::Owned(format!("{}{root}{}", namespace.prefix(), ask.sent));
    let links = Links::Subdomain(base);
    Ok(Route::Content(Place { links, isolated: true, certain: true, deserialized: host.deserialized }))
}

/// The host of an origin, with the requested port.
fn base_authority(authority: &str, host: &str) -> String {
    match authority.rsplit_once(':') {
        Some((_, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{host}:{port}")
        }
        _ => host.to_owned(),
    }
}

fn by_path(
    host: Option<&Host>,
    deserialized: bool,
    client: &Client,
    ask: &Ask<'_>,
    depth_max: usize,
) -> Result<Route, RequestError> {
    let Some((namespace, below)) = Namespace::split(ask.sent) else {
        return if ask.sent == "/" { Ok(Route::Landing) } else { Err(RequestError::NoSuchPage) };
    };
    if host.is_some_and(|host| !hosts::serves(host, namespace)) {
        return Err(RequestError::NoSuchPage);
    }
    if below.is_empty()
        && let Some(uri) = ask.parameter("uri")
    {
        return protocol_handler(&uri);
    }
    let root = || match ContentPath::parse(ask.sent, depth_max) {
        Ok(path) => Ok(path.root),
        Err(error) => Err(RequestError::Path { path: ask.sent.to_owned(), error }),
    };
    if let Some(host) = host.filter(|host| host.subdomains) {
        return redirect_to_origin(host, namespace, &root()?, below, client, ask);
    }
    if namespace == Namespace::Ipns
        && let Root::Name(Name::Key(key)) = root()?
        && let (spelt, rest) = split_first(below)
        && spelt != key.to_string()
    {
        let location = with_query(&format!("/ipns/{key}{rest}"), ask.query);
        return Ok(Route::Redirect(StatusCode::FOUND, header(&location)));
    }
    Ok(Route::Content(Place { links: Links::Path, isolated: false, certain: true, deserialized }))
}

/// A redirect to the content's own origin.
fn redirect_to_origin(
    host: &Host,
    namespace: Namespace,
    root: &Root,
    below: &str,
    client: &Client,
    ask: &Ask<'_>,
) -> Result<Route, RequestError> {
    // A wildcard certificate covers only one label.
    let label = subdomain::label(root, host.inline_dnslink || client.https)?;
    let (_, rest) = split_first(below);
    let rest = if rest.is_empty() { "/" } else { rest };
    Ok(redirect_to_label(&label, namespace, &client.authority, &with_query(rest, ask.query), client))
}

/// A redirect to the origin of a label below `authority`.
fn redirect_to_label(label: &str, namespace: Namespace, authority: &str, address: &str, client: &Client) -> Route {
    let location = format!("{}://{label}.{}.{authority}{address}", client.scheme(), namespace.name());
    Route::Redirect(StatusCode::MOVED_PERMANENTLY, header(&location))
}

fn split_first(below: &str) -> (&str, &str) {
    below.split_at(below.find('/').unwrap_or(below.len()))
}

/// Characters that are not valid in a URL, but may have been received.
const NOT_IN_URL: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'`');

/// A received path and query, escaped for a header.
pub fn with_query(path: &str, query: Option<&str>) -> String {
    let path = utf8_percent_encode(path, NOT_IN_URL);
    match query {
        Some(query) => format!("{path}?{}", utf8_percent_encode(query, NOT_IN_URL)),
        None => path.to_string(),
    }
}

/// Redirects `ipfs://…` and `ipns://…` URIs, which browsers send here as a registered protocol handler
/// (<https://specs.ipfs.tech/http-gateways/path-gateway/#uri-request-query-parameter>), and the input of the landing
/// page: a URI, a path, a CID or a name.
fn protocol_handler(uri: &str) -> Result<Route, RequestError> {
    let uri = uri.trim();
    let by_scheme = ["ipfs", "ipns"].iter().find_map(|scheme| {
        let below = uri.strip_prefix(scheme)?.strip_prefix("://")?;
        Some(format!("/{scheme}/{below}"))
    });
    let path = by_scheme.or_else(|| Namespace::split(uri).map(|_| uri.to_owned())).or_else(|| in_namespace(uri));
    let path = path.filter(|path| path.len() > "/ipfs/".len()).ok_or(RequestError::Uri)?;
    let location = utf8_percent_encode(&path, NOT_IN_URL).to_string();
    Ok(Route::Redirect(StatusCode::MOVED_PERMANENTLY, header(&location)))
}

/// The path of a text that begins with a CID or a name.
fn in_namespace(text: &str) -> Option<String> {
    let (root, _) = split_first(text);
    if content::cid::parse(root).is_ok_and(|cid| cid.codec() != codec::LIBP2P_KEY) {
        return Some(format!("/ipfs/{text}"));
    }
    Name::parse(root).is_ok().then(|| format!("/ipns/{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::Problem;
    use content::Resolution;
    use content::ipns::Record;
    use content::names::Key;
    use futures::FutureExt as _;
    use futures::future::{BoxFuture, ready};
    use http::Request;
    use std::time::Duration;

    /// Only `linked.example` has a DNSLink.
    struct Names;

    impl NameResolver for Names {
        fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>> {
            let Name::Domain(domain) = name.clone() else { panic!("a domain") };
            let root = content::cid::parse("bafkqac3imvwgy3zao5xxe3de").expect("a CID");
            let found =
                Resolution { root, segments: Vec::new(), ttl: Duration::from_secs(60), stale: None, hops: Vec::new() };
            ready(match domain.as_str() {
                "linked.example" => Ok(found),
                "failing.example" => Err(NameError::Dns { domain, reason: "no answer".to_owned() }),
                "busy.example" => Err(NameError::Busy),
                _ => Err(NameError::NoDnsLink { domain }),
            })
            .boxed()
        }

        fn record(&self, _key: &Key) -> BoxFuture<'static, Result<Record, NameError>> {
            unreachable!("routing asks for no record")
        }
    }

    fn hosts() -> Hosts {
        let mut plain = Host::named("plain.example");
        plain.subdomains = false;
        plain.namespaces = vec!["ipfs".to_owned()];
        plain.deserialized = false;
        let hosts = vec![Host::named("gw.example"), plain];
        Hosts::of(&config::Http { hosts, ..config::Http::default() })
    }

    fn route_of(host: &str, target: &str, https: bool) -> String {
        let head = Request::builder().uri(target).body(()).expect("a request").into_parts().0;
        let client = Client::new([127, 0, 0, 1].into(), host.to_owned(), https);
        let mut ask = Ask::read(&head).expect("reads");
        let router = Router::new(hosts(), Arc::new(Names), 8);
        let routed = router.route(&client, &mut ask).now_or_never().expect("waits for nothing");
        match routed {
            Ok(Route::Landing) => "landing".to_owned(),
            Ok(Route::Redirect(status, location)) => {
                format!("{} {}", status.as_u16(), location.to_str().expect("ASCII"))
            }
            Ok(Route::Content(place)) => {
                let doubt = if place.certain { "" } else { " uncertain" };
                format!("{} {:?} {}{doubt}", ask.path, place.links, place.deserialized)
            }
            Err(error) => format!("{} {error}", Problem::from(error.clone()).status().as_u16()),
        }
    }

    const V0: &str = "QmWvY6FaqFMS89YAQ9NAPjVP4WZKA1qbHbicc9HeSKQTgt";
    const B32: &str = "bafkreicysg23kiwv34eg2d7qweipxwosdo2py4ldv42nbauguluen5v6am";
    const PEER: &str = "12D3KooWLQzUv2FHWGVPXTXSZpdHs7oHbXub2G5WC8Tx4NQhyd2d";
    const KEY: &str = "k51qzi5uqu5dk3v4rmjber23h16xnr23bsggmqqil9z2gduiis5se8dht36dam";

    #[test]
    fn requests_are_routed_by_host_and_path() {
        let table = [
            ("127.0.0.1:8080", "/".to_owned(), "landing".to_owned()),
            ("127.0.0.1:8080", format!("/ipfs/{B32}/a?b"), format!("/ipfs/{B32}/a Path true")),
            ("gw.example", "/".to_owned(), "landing".to_owned()),
            ("gw.example:81", format!("/ipfs/{B32}"), format!("301 http://{B32}.ipfs.gw.example:81/")),
            ("gw.example", format!("/ipfs/{B32}/a%20b/?x=y"), format!("301 http://{B32}.ipfs.gw.example/a%20b/?x=y")),
            ("gw.example", format!("/ipns/{PEER}/x"), format!("301 http://{KEY}.ipns.gw.example/x")),
            ("gw.example", "/ipns/a-b.org/".to_owned(), "301 http://a--b-org.ipns.gw.example/".to_owned()),
            ("plain.example", format!("/ipfs/{B32}"), format!("/ipfs/{B32} Path false")),
            ("plain.example", format!("/ipns/{KEY}"), "404".to_owned()),
            ("other.example", format!("/ipns/{PEER}/x?y"), format!("302 /ipns/{KEY}/x?y")),
            ("other.example", format!("/ipns/{KEY}/x"), format!("/ipns/{KEY}/x Path true")),
            ("other.example", "/nothing".to_owned(), "404".to_owned()),
            (
                "linked.example:82",
                "/ipfs/x".to_owned(),
                "/ipns/linked.example/ipfs/x DnsLink(\"linked.example:82\") true".to_owned(),
            ),
            ("busy.example", format!("/ipfs/{B32}"), "429 ".to_owned()),
            ("failing.example", "/about".to_owned(), "504 ".to_owned()),
            ("failing.example", format!("/ipfs/{B32}"), format!("/ipfs/{B32} Path true uncertain")),
            ("127.0.0.1", "/ipfs/?uri=ipfs%3A%2F%2Fbafy%2Fa%20b".to_owned(), "301 /ipfs/bafy/a%20b".to_owned()),
            ("127.0.0.1", "/ipns/?uri=ipns://a.org".to_owned(), "301 /ipns/a.org".to_owned()),
            ("127.0.0.1", format!("/ipfs/?uri=+{B32}/a+"), format!("301 /ipfs/{B32}/a")),
            ("127.0.0.1", format!("/ipfs/?uri=/ipfs/{B32}"), format!("301 /ipfs/{B32}")),
            ("127.0.0.1", "/ipfs/?uri=a.org/b".to_owned(), "301 /ipns/a.org/b".to_owned()),
            ("127.0.0.1", format!("/ipfs/?uri={KEY}"), format!("301 /ipns/{KEY}")),
            ("127.0.0.1", "/ipfs/?uri=https://a.org".to_owned(), "400".to_owned()),
            ("127.0.0.1", "/ipfs/?uri=hello".to_owned(), "400".to_owned()),
            ("gw.example", "/ipfs/QmInvalid".to_owned(), "400 invalid path \"/ipfs/QmInvalid\"".to_owned()),
        ];
        for (host, target, expected) in table {
            let routed = route_of(host, &target, false);
            assert!(
                routed == expected || (expected.len() < 45 && routed.starts_with(&expected)),
                "{host}{target}: {routed}"
            );
        }
        let label = |host: &str| route_of(&format!("{host}.gw.example:83"), "/ipfs/a?b", false);
        assert_eq!(label(&format!("{B32}.ipfs")), format!("/ipfs/{B32}/ipfs/a Subdomain(\"gw.example:83\") true"));
        assert_eq!(label("a--b-org.ipns"), "/ipns/a-b.org/ipfs/a Subdomain(\"gw.example:83\") true");
        assert!(label("hello.ipfs").starts_with("400 "));
        let v1 = route_of("gw.example", &format!("/ipfs/{V0}/"), true);
        assert!(v1.starts_with("301 https://bafybei"), "{v1}");
    }
}
