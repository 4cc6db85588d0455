//! Host names: what is served under each, name resolution, and proxies.

use crate::dag::{directory, raw};
use crate::site::{PATIENCE, Setup, Site, header, until};
use crate::upstream::FakeNetwork;
use config::Host;
use content::ipns::Record;
use content::names::{Domain, Key};
use content::{Block, Cid, Name, NameError, NameResolver, Resolution, cid};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use reqwest::Response;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const KEY: &str = "k51qzi5uqu5dk3v4rmjber23h16xnr23bsggmqqil9z2gduiis5se8dht36dam";
const PEER: &str = "12D3KooWLQzUv2FHWGVPXTXSZpdHs7oHbXub2G5WC8Tx4NQhyd2d";
const V0: &str = "QmWvY6FaqFMS89YAQ9NAPjVP4WZKA1qbHbicc9HeSKQTgt";

/// The age of a stale name.
const OLD: Duration = Duration::from_secs(391);

/// Names that begin with `site` resolve to a site, some of them to one of its directories; the others to errors.
pub struct Names {
    pub site: Cid,
}

impl NameResolver for Names {
    fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>> {
        let stands_for = |segments: &[&str], seconds| {
            let segments = segments.iter().map(|segment| (*segment).to_owned()).collect();
            let ttl = Duration::from_secs(seconds);
            Ok(Resolution { root: self.site, segments, ttl, stale: None, hops: Vec::new() })
        };
        let (name, text) = (name.clone(), name.to_string());
        let Name::Domain(domain) = name.clone() else {
            return ready(if text == KEY { stands_for(&[], 77) } else { Err(NameError::Offline { name }) }).boxed();
        };
        let resolved = match text.as_str() {
            "site.example" => stands_for(&[], 60),
            "folder.site.example" | "en.folder-site.example" => stands_for(&["folder", "inner"], 5),
            "old.example" => stands_for(&[], 5).map(|found| Resolution { stale: Some(OLD), ..found }),
            "gw.example" | "plain.example" => Err(NameError::NoDnsLink { domain }),
            "stale.example" => Err(NameError::NoRecord { key: key(), waited: Duration::from_secs(1), peers_asked: 3 }),
            "refused.example" => Err(NameError::Refused { key: key(), reason: "it is signed by nobody".to_owned() }),
            "dns.example" => Err(NameError::Dns { domain, reason: "no answer".to_owned() }),
            "value.example" => Err(NameError::Value { name, value: "<b>".to_owned() }),
            "loop.example" => Err(NameError::ChainTooLong { name, max: 8 }),
            "busy.example" => Err(NameError::Busy),
            "silent.example" => return futures::future::pending().boxed(),
            _ => Err(NameError::NoDnsLink { domain }),
        };
        ready(resolved).boxed()
    }

    fn record(&self, key: &Key) -> BoxFuture<'static, Result<Record, NameError>> {
        ready(Err(NameError::Offline { name: Name::Key(*key) })).boxed()
    }
}

fn key() -> Key {
    Key::parse(KEY).expect("a key")
}

/// A gateway with three hosts and their content.
struct World {
    site: Site,
    root: Cid,
    other: Block,
}

async fn world() -> World {
    world_of(|_| {}).await
}

async fn world_of(change: impl FnOnce(&mut Setup)) -> World {
    let (hello, other) = (raw("hello"), raw("another's"));
    let ready = raw("of the site");
    let inner = directory(&[("hello.txt", &hello)]);
    let folder = directory(&[("inner", &inner)]);
    let missing = raw("<h1>custom</h1>");
    let rules = raw("/old /folder/inner/hello.txt 301\n/app/* /folder/inner/hello.txt 200\n/gone /missing.html 410\n\
         /place/* /folder 200\n\
         /away https://elsewhere.example/:splat 302\n/* /missing.html 404\n");
    let index = raw("<title>site</title>");
    let own = directory(&[("x", &ready)]);
    let root = directory(&[
        ("_redirects", &rules),
        ("folder", &folder),
        ("healthz", &ready),
        ("index.html", &index),
        ("ipfs", &own),
        ("missing.html", &missing),
        ("readyz", &ready),
    ]);
    let blocks = [&hello, &other, &ready, &inner, &folder, &missing, &rules, &index, &own, &root];
    let mut plain = Host::named("plain.example");
    plain.subdomains = false;
    plain.namespaces = vec!["ipfs".to_owned()];
    let mut trustless = Host::named("trustless.example");
    (trustless.subdomains, trustless.deserialized) = (false, false);
    let mut setup = Setup { names: Arc::new(Names { site: *root.cid() }), ..Setup::new(&blocks) };
    setup.http.hosts = vec![Host::named("gw.example"), plain, trustless];
    change(&mut setup);
    World { site: setup.start().await, root: *root.cid(), other }
}

impl World {
    async fn get(&self, host: &str, path: &str) -> Response {
        self.site.send("GET", path, &[("host", host)]).await
    }
}

/// A response as text: the status, then the location or the body.
async fn summary(response: Response) -> String {
    let status = response.status().as_u16();
    match header(&response, "location").to_owned() {
        location if location.is_empty() => format!("{status} {}", response.text().await.expect("text")),
        location => format!("{status} {location}"),
    }
}

#[tokio::test]
async fn each_host_serves_what_it_is_configured_for() {
    let World { site, root, other } = world().await;
    let (cid, v1) = (other.cid().to_string(), {
        let v0 = cid::parse(V0).expect("a CID");
        Cid::new_v1(v0.codec(), *v0.hash()).to_string()
    });
    let table: [(&str, String, String); 22] = [
        // Subdomains: content has its own origin.
        ("gw.example", format!("/ipfs/{cid}"), format!("301 http://{cid}.ipfs.gw.example/")),
        (
            "gw.example:8080",
            format!("/ipfs/{cid}/a%20b?c=d"),
            format!("301 http://{cid}.ipfs.gw.example:8080/a%20b?c=d"),
        ),
        ("GW.example.", format!("/ipfs/{V0}"), format!("301 http://{v1}.ipfs.GW.example./")),
        ("gw.example", format!("/ipns/{PEER}/x"), format!("301 http://{KEY}.ipns.gw.example/x")),
        (
            "gw.example",
            "/ipns/en.folder-site.example/".to_owned(),
            "301 http://en-folder--site-example.ipns.gw.example/".to_owned(),
        ),
        ("gw.example", "/ipns/not_a_name/".to_owned(), "400 ".to_owned()),
        ("gw.example", "/ipfs/hello".to_owned(), "400 ".to_owned()),
        ("gw.example", "/".to_owned(), "200 <!DOCTYPE html>".to_owned()),
        ("gw.example", "/other".to_owned(), "404 ".to_owned()),
        (&format!("{cid}.ipfs.gw.example"), "/".to_owned(), "200 another's".to_owned()),
        (&format!("{root}.ipfs.gw.example"), "/folder/inner/hello.txt".to_owned(), "200 hello".to_owned()),
        (&format!("{root}.ipfs.gw.example:81"), "/folder?x=y".to_owned(), "301 /folder/?x=y".to_owned()),
        (&format!("{KEY}.ipns.gw.example"), "/folder/inner/hello.txt".to_owned(), "200 hello".to_owned()),
        (&format!("{PEER}.ipns.gw.example"), "/".to_owned(), "400 ".to_owned()),
        ("en-folder--site-example.ipns.gw.example", "/hello.txt".to_owned(), "200 hello".to_owned()),
        ("hello.ipfs.gw.example", "/".to_owned(), "400 ".to_owned()),
        // A host with one namespace, by path.
        ("plain.example", format!("/ipfs/{cid}"), "200 another's".to_owned()),
        ("plain.example", format!("/ipns/{KEY}/"), "404 ".to_owned()),
        (&format!("{cid}.ipfs.plain.example"), "/".to_owned(), "200 <!DOCTYPE html>".to_owned()),
        // Any other name or address: by path.
        ("other.example", format!("/ipfs/{cid}"), "200 another's".to_owned()),
        ("127.0.0.1:8080", format!("/ipns/{PEER}/x?y"), format!("302 /ipns/{KEY}/x?y")),
        ("[::1]:8080", format!("/ipns/{KEY}/folder/inner/hello.txt"), "200 hello".to_owned()),
    ];
    for (host, path, expected) in table {
        let found = summary(site.send("GET", &path, &[("host", host)]).await).await;
        assert!(found.starts_with(&expected), "{host}{path}: {found}");
    }
}

#[tokio::test]
async fn a_trustless_host_serves_only_verifiable_formats() {
    let world = world().await;
    let (root, other) = (world.root, world.other.cid());
    let table = [
        (format!("/ipfs/{other}"), "*/*", 406),
        (format!("/ipfs/{root}/"), "text/html", 406),
        (format!("/ipfs/{root}/?format=json"), "*/*", 406),
        (format!("/ipfs/{root}/?format=tar"), "*/*", 406),
        (format!("/ipfs/{root}/?format=dag-json"), "*/*", 406),
        (format!("/ipfs/{other}?format=raw"), "*/*", 200),
        (format!("/ipfs/{root}?format=car"), "*/*", 200),
        (format!("/ipfs/{root}/folder/inner?format=car"), "*/*", 200),
        (format!("/ipfs/{other}"), "application/vnd.ipld.raw", 200),
        (format!("/ipns/{KEY}/"), "application/vnd.ipld.car", 200),
        (format!("/ipns/{KEY}/"), "text/html", 406),
    ];
    for method in ["GET", "HEAD"] {
        for (path, accept, expected) in &table {
            let headers = [("host", "trustless.example"), ("accept", *accept)];
            let response = world.site.send(method, path, &headers).await;
            assert_eq!(response.status(), *expected, "{method} {path} {accept}");
        }
    }
    // The same for all other host names.
    let world = world_of(|setup| setup.http.deserialized = false).await;
    for (host, expected) in [("127.0.0.1", 406), ("other.example", 406), ("site.example", 406), ("plain.example", 200)]
    {
        let path = if host == "site.example" { "/".to_owned() } else { format!("/ipfs/{other}") };
        assert_eq!(world.get(host, &path).await.status(), expected, "{host}");
    }
}

#[tokio::test]
async fn forwarded_headers_count_only_from_trusted_proxies() {
    let table = [(None, false), (Some("10.0.0.0/8"), false), (Some("127.0.0.1/32"), true)];
    for (trusted, believed) in table {
        let world = world_of(|setup| {
            setup.http.trusted_proxies = trusted.iter().map(|net| net.parse().expect("a network")).collect();
        })
        .await;
        let cid = world.other.cid();
        let forwarded = [("host", "inside:8080"), ("x-forwarded-host", "gw.example"), ("x-forwarded-proto", "https")];
        let found = summary(world.site.send("GET", &format!("/ipfs/{cid}"), &forwarded).await).await;
        let expected =
            if believed { format!("301 https://{cid}.ipfs.gw.example/") } else { "200 another's".to_owned() };
        assert_eq!(found, expected, "{trusted:?}");
        // A wildcard certificate covers one label, so a name becomes one label with TLS.
        let domain = [("host", "gw.example"), ("x-forwarded-proto", "https")];
        let found = summary(world.site.send("GET", "/ipns/site.example/", &domain).await).await;
        let scheme = if believed { "https" } else { "http" };
        assert_eq!(found, format!("301 {scheme}://site-example.ipns.gw.example/"), "{trusted:?}");
        // Of several proxies, the nearest one counts.
        let several = [("host", "inside"), ("x-forwarded-host", "evil.example, plain.example")];
        let found = world.site.send("GET", &format!("/ipns/{KEY}/"), &several).await.status();
        assert_eq!(found, if believed { 404 } else { 200 }, "{trusted:?}");
    }
}

#[tokio::test]
async fn names_determine_the_max_age() {
    let world = world().await;
    let table = [
        ("127.0.0.1", format!("/ipns/{KEY}/"), 200, 77),
        ("127.0.0.1", format!("/ipns/{KEY}/"), 200, 77),
        ("127.0.0.1", format!("/ipns/{KEY}/folder"), 301, 77),
        ("127.0.0.1", format!("/ipns/{KEY}/folder/"), 200, 77),
        ("127.0.0.1", format!("/ipns/{KEY}/folder/?format=json"), 200, 77),
        ("127.0.0.1", format!("/ipns/{KEY}/folder/inner/hello.txt"), 200, 77),
        ("127.0.0.1", format!("/ipns/{KEY}?format=car"), 200, 77),
        ("127.0.0.1", format!("/ipns/{KEY}?format=raw"), 200, 77),
        ("127.0.0.1", "/ipns/en.folder-site.example/hello.txt".to_owned(), 200, 5),
        ("site.example", "/folder/inner/hello.txt".to_owned(), 200, 60),
        ("site.example", "/old".to_owned(), 301, 60),
        ("site.example", "/app/any".to_owned(), 200, 60),
        ("site.example", "/nothing".to_owned(), 404, 60),
        ("folder.site.example", "/hello.txt".to_owned(), 200, 5),
    ];
    for (host, path, status, seconds) in table {
        let response = world.get(host, &path).await;
        assert_eq!(response.status(), status, "{host}{path}");
        assert_eq!(header(&response, "cache-control"), format!("public, max-age={seconds}"), "{host}{path}");
        let tag = header(&response, "etag").to_owned();
        if status == 200 {
            let same = world.site.send("GET", &path, &[("host", host), ("if-none-match", &tag)]).await;
            assert_eq!(same.status(), 304, "{host}{path} {tag}");
            assert_eq!(header(&same, "cache-control"), format!("public, max-age={seconds}"), "{host}{path}");
        }
    }
}

#[tokio::test]
async fn stale_names_have_an_age() {
    let world = world().await;
    let paths = ["/", "/folder", "/folder/", "/folder/inner/hello.txt", "/?format=car", "/?format=raw"];
    for path in paths.map(|path| format!("/ipns/old.example{path}")) {
        let response = world.get("127.0.0.1", &path).await;
        // A cache treats it as stale (RFC 9111, section 4.2), and one that ignores Age keeps it for a short time.
        let say = |response: &Response| [header(response, "cache-control"), header(response, "age")].map(str::to_owned);
        assert_eq!(say(&response), ["public, max-age=5", "391"], "{path}");
        let tag = header(&response, "etag").to_owned();
        if !tag.is_empty() {
            let same = world.site.send("GET", &path, &[("host", "127.0.0.1"), ("if-none-match", &tag)]).await;
            assert_eq!((same.status().as_u16(), say(&same)), (304, say(&response)), "{path}");
        }
    }
    let fresh = world.get("127.0.0.1", &format!("/ipns/{KEY}/")).await;
    assert!(fresh.headers().get("age").is_none(), "what is fresh counts from now on");
}

#[tokio::test]
async fn errors_are_not_cached_longer_than_their_name() {
    let world = world().await;
    for (path, seconds) in [("/ipns/en.folder-site.example/nothing", 5), ("/ipns/site.example/nothing", 60)] {
        let response = world.get("127.0.0.1", path).await;
        assert_eq!(response.status(), 404, "{path}");
        let kept = header(&response, "cache-control").to_owned();
        let kept = kept.split_once("max-age=").map_or(0, |(_, seconds)| seconds.parse::<u64>().expect("a number"));
        assert!(kept <= seconds, "{path}: {kept}");
        assert!(response.text().await.expect("text").contains("no link named"));
    }
}

#[tokio::test]
async fn name_errors_have_a_status_and_a_cause() {
    let world = world().await;
    // Only what is never answered has a short timeout.
    let impatient = world_of(|setup| setup.limits.request_timeout = Duration::from_millis(300)).await;
    let world_for = |name: &str| if name == "silent.example" { &impatient } else { &world };
    let table = [
        ("unlinked.example", 404, "no DNSLink", false),
        ("stale.example", 504, "3 peers asked", true),
        ("refused.example", 502, "signed by nobody", true),
        ("dns.example", 504, "no answer", true),
        ("value.example", 502, "not a content path", true),
        ("loop.example", 502, "more than 8 names", true),
        ("busy.example", 429, "too many names", true),
        ("silent.example", 504, "exceeded the timeout", true),
    ];
    for (name, status, expected, again) in table {
        let response = world_for(name).get("127.0.0.1", &format!("/ipns/{name}/x")).await;
        assert_eq!(response.status(), status, "{name}");
        assert_eq!(response.headers().contains_key("retry-after"), again, "{name}");
        assert_eq!(header(&response, "cache-control") == "no-store", again, "{name}");
        assert_eq!(header(&response, "access-control-allow-origin"), "*", "{name}");
        let text = response.text().await.expect("text");
        assert!(text.contains(expected), "{name}: {text}");
    }
    // Under the name itself: without a DNSLink the host is a path gateway; with a broken DNSLink it is not.
    let table = [("unlinked.example", 200), ("dns.example", 200), ("stale.example", 504), ("silent.example", 504)];
    for (name, status) in table {
        assert_eq!(world_for(name).get(name, "/").await.status(), status, "{name}");
    }
    // It is unknown whether this host is a site: its responses must not be cached, and missing pages may exist.
    let content = world.get("dns.example", &format!("/ipfs/{}", world.other.cid())).await;
    assert_eq!((content.status().as_u16(), header(&content, "cache-control")), (200, "public, max-age=0"));
    assert_eq!(world.get("dns.example", "/about").await.status(), 504);
}

#[tokio::test]
async fn a_site_whose_look_up_fails_shows_no_other_content() {
    let world = world().await;
    let response = world.get("busy.example", &format!("/ipfs/{}", world.other.cid())).await;
    assert_eq!(response.status(), 429);
}

#[tokio::test]
async fn a_site_has_its_own_origin() {
    let world = world().await;
    let cid = world.other.cid();
    let table: [(&str, &str, String); 16] = [
        ("site.example", "/", "200 <title>site</title>".to_owned()),
        ("SITE.example.:8080", "/", "200 <title>site</title>".to_owned()),
        ("folder.site.example", "/hello.txt", "200 hello".to_owned()),
        ("folder.site.example", "/healthz", "404 ".to_owned()),
        // The gateway's own paths belong to the site.
        ("site.example", "/healthz", "200 of the site".to_owned()),
        ("site.example", "/readyz", "200 of the site".to_owned()),
        ("site.example", "/ipfs/x", "200 of the site".to_owned()),
        ("127.0.0.1", "/healthz", "200 ok".to_owned()),
        ("gw.example", "/readyz", "200 ready".to_owned()),
        ("unlinked.example", "/healthz", "200 ok".to_owned()),
        // No other content in its origin.
        ("site.example", &format!("/ipfs/{cid}"), "404 <h1>custom</h1>".to_owned()),
        ("folder.site.example", &format!("/ipfs/{cid}"), "404 ".to_owned()),
        ("folder.site.example", &format!("/ipns/{KEY}/"), "404 ".to_owned()),
        ("folder.site.example", "/ipns/folder.site.example/hello.txt", "404 ".to_owned()),
        ("folder.site.example", &format!("/ipfs/?uri=ipfs://{cid}"), "404 ".to_owned()),
        // A site ends at its own root.
        ("folder.site.example", "/..%2f..%2findex.html", "400 ".to_owned()),
    ];
    for (host, path, expected) in table {
        let found = summary(world.get(host, path).await).await;
        assert!(found.starts_with(&expected), "{host}{path}: {found}");
        assert!(!found.contains("another's"), "{host}{path}: {found}");
    }
    let without = world_of(|setup| setup.http.dnslink_sites = false).await;
    let found = summary(without.get("site.example", &format!("/ipfs/{cid}")).await).await;
    assert_eq!(found, "200 another's", "it is a name like any other then");
}

#[tokio::test]
async fn redirects_apply_only_in_a_sites_own_origin() {
    let world = world().await;
    let own = [
        "site.example".to_owned(),
        "site-example.ipns.gw.example".to_owned(),
        format!("{}.ipfs.gw.example", world.root),
        format!("{KEY}.ipns.gw.example"),
    ];
    let table = [
        ("/old", "301 /folder/inner/hello.txt"),
        ("/old?a=b", "301 /folder/inner/hello.txt?a=b"),
        ("/app/anything/below", "200 hello"),
        ("/gone", "410 <h1>custom</h1>"),
        ("/away", "302 https://elsewhere.example/"),
        ("/no/such/page", "404 <h1>custom</h1>"),
        ("/index.html", "200 <title>site</title>"),
        ("/folder/inner/hello.txt", "200 hello"),
    ];
    for host in &own {
        for (path, expected) in table {
            let found = summary(world.get(host, path).await).await;
            assert!(found.starts_with(expected), "{host}{path}: {found}");
        }
        let missing = world.site.send("HEAD", "/no/such/page", &[("host", host)]).await;
        assert_eq!((missing.status().as_u16(), header(&missing, "content-length")), (404, "15"), "{host}");
    }
    for path in [format!("/ipfs/{}/old", world.root), "/ipns/site.example/old".to_owned()] {
        let found = summary(world.get("127.0.0.1", &path).await).await;
        assert!(found.starts_with("404 ") && !found.contains("custom"), "{path}: {found}");
    }
}

#[tokio::test]
async fn redirects_apply_to_pages_and_may_lead_to_directories() {
    let world = world().await;
    let folder = world.get("site.example", "/place/anything").await;
    assert_eq!(folder.status(), 200, "and not a redirect to itself with a slash, for ever");
    assert!(folder.text().await.expect("text").contains(">inner<"));
    // Formats that clients verify are not rewritten.
    for format in ["raw", "car", "tar", "dag-json"] {
        assert_eq!(world.get("site.example", &format!("/app/x?format={format}")).await.status(), 404, "{format}");
    }
    // An error page is not a representation: conditions and ranges do not apply.
    let missing = world.get("site.example", "/no/such/page").await;
    let etag = header(&missing, "etag").to_owned();
    for condition in [("if-none-match", etag.as_str()), ("if-none-match", "*"), ("range", "bytes=0-1")] {
        let response = world.site.send("GET", "/no/such/page", &[("host", "site.example"), condition]).await;
        assert_eq!(summary(response).await, "404 <h1>custom</h1>", "{condition:?}");
    }
}

#[tokio::test]
async fn paths_with_two_slashes_do_not_lead_to_other_hosts() {
    let world = world().await;
    let host = format!("{}.ipfs.gw.example", world.root);
    for path in ["//evil.example/..%2ffolder", "///evil.example/%2e%2e/folder"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let (answer, _) = world.site.exchange(&request).await;
        let text = String::from_utf8_lossy(&answer).to_lowercase();
        assert!(text.starts_with("http/1.1 301") && text.contains("\r\nlocation: /evil.example/"), "{path}: {text}");
    }
}

#[tokio::test]
async fn other_formats_do_not_change_cached_pages() {
    let world = world().await;
    let folder = format!("/ipfs/{}", world.root);
    for format in ["json", "cbor", "raw", "car", "tar"] {
        world.get("127.0.0.1", &format!("{folder}?format={format}")).await;
        world.get("127.0.0.1", &format!("{folder}/?format={format}")).await;
        let redirect = world.get("127.0.0.1", &folder).await;
        assert_eq!(
            (redirect.status().as_u16(), header(&redirect, "location")),
            (301, &*format!("{folder}/")),
            "{format}"
        );
        let page = summary(world.get("127.0.0.1", &format!("{folder}/")).await).await;
        assert_eq!(page, "200 <title>site</title>", "{format}");
    }
}

#[tokio::test]
async fn absolute_uris_determine_the_host() {
    let world = world().await;
    let cid = world.other.cid();
    let table = [
        (format!("http://{cid}.ipfs.gw.example/"), "127.0.0.1", "200 OK", "another's"),
        (format!("http://gw.example/ipfs/{cid}"), "site.example", "301 ", ""),
        ("http://site.example/folder/inner/hello.txt".to_owned(), "gw.example", "200 OK", "hello"),
        (format!("http://user:word@plain.example/ipfs/{cid}"), "x", "200 OK", "another's"),
        ("http://plain.example".to_owned(), "x", "200 OK", "</html>"),
    ];
    for (target, host, status, end) in table {
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let (answer, _) = world.site.exchange(&request).await;
        let text = String::from_utf8_lossy(&answer);
        assert!(text.starts_with(&format!("HTTP/1.1 {status}")) && text.trim_end().ends_with(end), "{target}: {text}");
    }
}

#[tokio::test]
async fn invalid_host_names_are_harmless() {
    let world = world().await;
    let cid = world.other.cid();
    let long = "a".repeat(5000);
    let labels = format!("{}.ipfs.gw.example", "b".repeat(300));
    let strange: [&[u8]; 16] = [
        b"",
        long.as_bytes(),
        labels.as_bytes(),
        "bücher.example".as_bytes(),
        b"\xff\xfe.ipfs.gw.example",
        b"user@gw.example",
        b"user:word@site.example",
        b"a%2eb.ipfs.gw.example",
        b"%00.example",
        b"gw.example:port",
        b"gw.example:99999999999",
        b"gw.example:80:80",
        b"[::1",
        b"<script>.ipfs.gw.example",
        b"..ipns.gw.example",
        b"a b.example",
    ];
    for host in strange {
        for path in [format!("/ipfs/{cid}"), "/".to_owned()] {
            let shown = String::from_utf8_lossy(host).chars().take(40).collect::<String>();
            let mut request =
                format!("GET {path} HTTP/1.1\r\nAccept: text/html\r\nConnection: close\r\nHost: ").into_bytes();
            request.extend_from_slice(host);
            request.extend_from_slice(b"\r\n\r\n");
            let mut stream = TcpStream::connect(world.site.address).await.expect("connects");
            stream.write_all(&request).await.expect("sends");
            let mut answer = Vec::new();
            let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
            end.expect("in time").expect("an orderly end");
            let text = String::from_utf8_lossy(&answer);
            let status = text.split(' ').nth(1).expect("a status");
            assert!(["200", "301", "400", "404"].contains(&status), "{shown}{path}: {text}");
            assert!(!text.contains("<script>"), "{shown}{path}: {text}");
            // No redirect leads to a host that is not configured.
            let location = text.lines().find_map(|line| line.strip_prefix("location: "));
            assert!(location.is_none_or(|to| to.contains(".ipfs.gw.example")), "{shown}{path}: {location:?}");
        }
    }
    assert_eq!(world.site.metric("causeway_http_panics_total"), 0);
    let (answer, _) = world.site.exchange(&format!("GET /ipfs/{cid} HTTP/1.0\r\n\r\n")).await;
    assert!(answer.starts_with(b"HTTP/1.0 200"), "HTTP/1.0 need not name a host");
}

/// Reads a response's head.
async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut byte)).await.expect("in time").expect("reads");
        assert_eq!(read, 1, "the head ends: {}", String::from_utf8_lossy(&head));
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("text")
}

async fn tunnel(site: &Site) -> TcpStream {
    let mut stream = site.connect("CONNECT site.example:80 HTTP/1.1\r\nHost: site.example:80\r\n\r\n").await;
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let lower = head.to_ascii_lowercase();
    assert!(
        !lower.contains("\r\ncontent-length:") && !lower.contains("\r\ntransfer-encoding:"),
        "RFC 9110, section 9.3.6: {head}"
    );
    stream
}

async fn through(stream: &mut TcpStream, request: &str) -> (Vec<u8>, std::io::Result<usize>) {
    stream.write_all(request.as_bytes()).await.expect("sends");
    let mut answer = Vec::new();
    let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an end in time");
    (answer, end)
}

#[tokio::test]
async fn a_tunnel_leads_only_to_this_gateway() {
    let world = world().await;
    let mut stream = tunnel(&world.site).await;
    let one = "GET /folder/inner/hello.txt HTTP/1.1\r\nHost: site.example\r\n\r\n";
    let last = "GET /healthz HTTP/1.1\r\nHost: site.example\r\nConnection: close\r\n\r\n";
    let (answer, end) = through(&mut stream, &format!("{one}{one}{last}")).await;
    end.expect("an orderly end");
    let text = String::from_utf8(answer).expect("text");
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 3, "{text}");
    assert!(text.ends_with("of the site"), "{text}");

    // A listener at the target of the inner tunnel, which is never contacted.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let there = listener.local_addr().expect("is bound");
    for inside in [false, true] {
        let mut stream = if inside { tunnel(&world.site).await } else { world.site.connect("").await };
        let connect = format!("CONNECT {there} HTTP/1.1\r\nHost: {there}\r\n\r\n");
        stream.write_all(connect.as_bytes()).await.expect("sends");
        let head = read_head(&mut stream).await;
        // Nested tunnels are rejected, and the outer one stays open.
        let expected = if inside { "HTTP/1.1 405" } else { "HTTP/1.1 200" };
        assert!(head.starts_with(expected), "{head}");
        let health = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
        let (rest, _) = through(&mut stream, health).await;
        assert!(rest.ends_with(b"ok\n"), "this gateway answers: {}", String::from_utf8_lossy(&rest));
        assert!(listener.accept().now_or_never().is_none(), "no connection was made");
    }
    world.site.until_metric("causeway_http_connections", 0).await;
}

/// `X-Forwarded-*` headers inside a tunnel come from its client, and not from the proxy that forwards it.
#[tokio::test]
async fn forwarded_headers_inside_a_tunnel_are_not_trusted() {
    let text = raw("hello");
    let mut setup = Setup::new(&[&text]);
    setup.http.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    setup.http.hosts = vec![config::Host::named("gateway.example")];
    let site = setup.start().await;
    let forwarded = "X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-Host: gateway.example\r\nX-Forwarded-Proto: https\r\n";
    let get = |host: &str| {
        format!("GET /ipfs/{} HTTP/1.1\r\nHost: {host}\r\n{forwarded}Connection: close\r\n\r\n", text.cid())
    };
    // Outside a tunnel, the proxy is trusted.
    let (answer, _) = site.exchange(&get("inner.example")).await;
    let answer = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    assert!(answer.contains(&format!("location: https://{}.ipfs.gateway.example/", text.cid())), "{answer}");

    for (host, expected) in [("inner.example", "\r\n\r\nhello"), ("gateway.example", "location: http://")] {
        let connect = "CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n";
        let mut stream = site.connect(connect).await;
        assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200"));
        let (answer, _) = through(&mut stream, &get(host)).await;
        let answer = String::from_utf8_lossy(&answer).to_ascii_lowercase();
        assert!(answer.contains(expected), "{host}: {answer}");
    }
}

/// Limits count the client that requested the tunnel, whatever address it claims inside.
#[tokio::test]
async fn limits_count_the_client_of_a_tunnel() {
    let blocks = [raw("far away"), raw("as far")];
    let network = FakeNetwork::new(&blocks, &blocks);
    let mut setup = Setup { upstream: Some(Arc::clone(&network) as _), ..Setup::new(&[]) };
    setup.http.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    setup.http.client_misses_max = 1;
    let site = setup.start().await;
    let miss = |number: usize| {
        let (cid, other) = (blocks[number].cid(), format!("X-Forwarded-For: 203.0.113.{number}"));
        format!("GET /ipfs/{cid} HTTP/1.1\r\nHost: x\r\n{other}\r\nConnection: close\r\n\r\n")
    };
    let connect = "CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n";
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = site.connect(connect).await;
        assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200"));
        streams.push(stream);
    }
    streams[0].write_all(miss(0).as_bytes()).await.expect("sends");
    until(|| network.waiting() == 1, "the first to be fetched").await;
    let (answer, _) = through(&mut streams[1], &miss(1)).await;
    assert!(answer.starts_with(b"HTTP/1.1 429"), "{}", String::from_utf8_lossy(&answer));
}

/// A proxy may send the requests of several clients over one connection.
#[tokio::test]
async fn a_tunnel_belongs_to_the_client_of_the_request_that_opened_it() {
    let (held, other) = (raw("far away"), raw("as far"));
    let network = FakeNetwork::new([&held, &other], [&held]);
    let mut setup = Setup { upstream: Some(Arc::clone(&network) as _), ..Setup::new(&[]) };
    setup.http.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    setup.http.client_misses_max = 1;
    let site = setup.start().await;
    let get = |block: &Block, client: &str| {
        let path = format!("/ipfs/{}", block.cid());
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {client}\r\nConnection: close\r\n\r\n")
    };
    // The first client has no permits left, and its request for a tunnel is rejected, because it has no host.
    let _waiting = site.connect(&get(&held, "192.0.2.1")).await;
    until(|| network.waiting() == 1, "the first to be fetched").await;
    let mut stream = site.connect("CONNECT x:80 HTTP/1.1\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n").await;
    let head = read_head(&mut stream).await.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    assert!(head.starts_with("http/1.1 400"), "{head}");
    stream.read_exact(&mut vec![0; length.expect("a length").parse().expect("a number")]).await.expect("a body");

    let connect = "CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\nX-Forwarded-For: 192.0.2.2\r\n\r\n";
    stream.write_all(connect.as_bytes()).await.expect("sends");
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200"));
    let (answer, _) = through(&mut stream, &get(&other, "192.0.2.1")).await;
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn a_drain_closes_tunnels() {
    let world = world().await;
    let mut stream = tunnel(&world.site).await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: site.example\r\n\r\n").await.expect("sends");
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200"));
    let idle = tunnel(&world.site).await;
    assert!(world.site.drain.finish(PATIENCE).await, "no tunnel is left open");
    drop((stream, idle));
}

#[tokio::test]
async fn domains_are_canonicalised() {
    // The resolver gets the canonical form, so that the name is cached once.
    assert_eq!(Domain::parse("Site.EXAMPLE.").map(|domain| domain.to_string()), Some("site.example".to_owned()));
    let world = world().await;
    for path in ["/ipns/site.example/", "/ipns/SITE.example/", "/ipns/site.example./"] {
        assert_eq!(summary(world.get("127.0.0.1", path).await).await, "200 <title>site</title>", "{path}");
    }
}
