//! Subdomains as origins for each root: <https://specs.ipfs.tech/http-gateways/subdomain-gateway/>.

use crate::case::{Body, Case, Text, get, has, is, page};
use crate::fixtures::*;
use crate::unixfs::FOR_EVER;
use crate::world::check;

/// The configured hosts; a port is part of the origin and so stays.
const HOSTS: [&str; 3] = ["example.com", "localhost", "example.com:8080"];

#[tokio::test(flavor = "multi_thread")]
async fn content_has_its_own_origin() {
    for host in HOSTS {
        check(&format!("content at {host}"), content(host)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_have_their_own_origins() {
    for host in HOSTS {
        check(&format!("names at {host}"), names(host)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarded_headers_of_a_proxy_are_used() {
    check("forwarded requests", forwarded()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uris_of_protocol_handlers_are_redirected() {
    check("protocol handlers", protocol_handlers()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn service_workers_are_limited_to_an_origin_or_a_folder() {
    check("service workers", service_workers()).await;
}

pub fn content(host: &str) -> Vec<Case> {
    let dir = format!("{ORIGIN_DIR}.ipfs.{host}");
    let hello = format!("{HELLO}.ipfs.{host}");
    let listing = format!("{LISTING}.ipfs.{host}");
    let to = |cid: &str, path: &str| format!("http://{cid}.ipfs.{host}/{path}");
    let redirected = |name: &str, path: String, location: String| get(name, path).at(host).redirects(301, location);
    let too_long = |case: Case| case.status(400).body(page(["CID incompatible with DNS label length limit of 63"]));
    vec![
        redirected("content", format!("/ipfs/{HELLO}/"), to(HELLO, "")),
        redirected("content without a slash", format!("/ipfs/{HELLO}"), to(HELLO, "")),
        redirected("a directory", format!("/ipfs/{ORIGIN_DIR}/"), to(ORIGIN_DIR, "")),
        redirected("CIDv0", format!("/ipfs/{HELLO_V0}/"), to(HELLO_V0_AS_V1, "")),
        redirected("a path with percent signs", format!("/ipfs/{PERCENT}/{PERCENT_NAME}"), to(PERCENT, PERCENT_NAME)),
        redirected("a query", format!("/ipfs/{LISTING}/api/?a=b&c=%20"), to(LISTING, "api/?a=b&c=%20")),
        get("the content", "/").at(&hello).status(200).header("cache-control", is(FOR_EVER)).bytes(HELLO_TEXT),
        get("its path", "/").at(&hello).header("x-ipfs-path", is(format!("/ipfs/{HELLO}/"))),
        get("no paths at a subdomain", format!("/ipfs/{HELLO}/")).at(&hello).status(404),
        get("a folder called ipfs", "/ipfs/file.txt").at(&dir).status(200).body(page(["I am a txt file"])),
        get("further down", "/ipfs/ipns/bar").at(&dir).status(200).bytes("text-file-content\n"),
        get("a block", "/?format=raw").at(&hello).status(200).header("content-type", is("application/vnd.ipld.raw")),
        get("an archive", "/ipfs/file.txt?format=car").at(&dir).status(200).header("accept-ranges", is("none")),
        get("a listing", "/")
            .at(&dir)
            .status(200)
            .body(page(["<a href=\"/hello\">hello</a>", "<a href=\"/ipfs\">ipfs</a>"])),
        get("a listing further down", "/ipfs/ipns/").at(&dir).status(200).body(page([
            "Index of".to_owned(),
            "<a href=\"/ipfs/ipns/..\">..</a>".to_owned(),
            "<a href=\"/ipfs/ipns/bar\">bar</a>".to_owned(),
            format!(
                "/ipfs/<a href=\"//{host}/ipfs/{ORIGIN_DIR}\">{ORIGIN_DIR}</a>\
                 /<a href=\"//{host}/ipfs/{ORIGIN_DIR}/ipfs\">ipfs</a>\
                 /<a href=\"//{host}/ipfs/{ORIGIN_DIR}/ipfs/ipns\">ipns</a>"
            ),
        ])),
        get("a root has no parent", "/")
            .at(&listing)
            .status(200)
            .body(Body::Page(vec!["Index of".to_owned()], vec!["<a href=\"/\">..</a>".to_owned()])),
        get("a directory gets its slash", format!("/{AE}")).at(&listing).redirects(301, format!("/{AE}/")),
        get("names that are not ASCII", format!("/{AE}/")).at(&listing).header("etag", has("\"DirIndex-")).body(page(
            [
                "Index of".to_owned(),
                format!("<a href=\"/{AE}/..\">..</a>"),
                format!(
                    "/ipfs/<a href=\"//{host}/ipfs/{LISTING}\">{LISTING}</a>\
                 /<a href=\"//{host}/ipfs/{LISTING}/%C4%85\">ą</a>/<a href=\"//{host}/ipfs/{LISTING}/{AE}\">ę</a>"
                ),
                format!("<a href=\"/{AE}/file-%C5%BA%C5%82.txt\">file-źł.txt</a>"),
                format!(
                    "<a class=\"ipfs-hash\" translate=\"no\" \
                 href=\"//{host}/ipfs/{LISTING_FILE}?filename=file-%25C5%25BA%25C5%2582.txt\">"
                ),
            ],
        )),
        get("what is no CID", "/ipfs/QmInvalidCID")
            .at(host)
            .status(400)
            .body(page(["invalid path \"/ipfs/QmInvalidCID\""])),
        too_long(get("a CID that is too long for a label", format!("/ipfs/{HELLO_LONG}/")).at(host)),
        too_long(get("a label that is too long", "/").at(format!("{HELLO_LONG}.ipfs.{host}"))),
        get("a CID that is too long, by path", format!("/ipfs/{HELLO_LONG}")).status(200).bytes(HELLO_TEXT),
        get("another host is answered by path", format!("/ipfs/{HELLO}")).at("fake.domain.com").status(200),
    ]
}

pub fn names(host: &str) -> Vec<Case> {
    let to = |name: &str, path: &str| format!("http://{name}.ipns.{host}/{path}");
    let mut cases = Vec::new();
    for [peer_id, key, wrong_codec] in [KEY_RSA, KEY_ED25519] {
        cases.extend([
            get("a peer id", format!("/ipns/{peer_id}")).at(host).redirects(301, to(key, "")),
            get("a key", format!("/ipns/{key}")).at(host).redirects(301, to(key, "")),
            get("what a key stands for", "/").at(format!("{key}.ipns.{host}")).status(200).bytes(HELLO_TEXT),
            get("a key with another codec", "/").at(format!("{wrong_codec}.ipns.{host}")).redirects(301, to(key, "")),
            get("a path", format!("/ipns/{key}/a/b?c=d")).at(host).redirects(301, to(key, "a/b?c=d")),
            get("a record", "/?format=ipns-record").at(format!("{key}.ipns.{host}")).status(200),
        ]);
    }
    let wikipedia = "en.wikipedia-on-ipfs.example.org";
    let inlined = "en-wikipedia--on--ipfs-example-org";
    cases.extend([
        get("a domain becomes one label", format!("/ipns/{wikipedia}/wiki/"))
            .at(host)
            .redirects(301, to(inlined, "wiki/")),
        get("a name has no paths", format!("/ipns/{}/", KEY_RSA[1]))
            .at(format!("{}.ipns.{host}", KEY_ED25519[1]))
            .status(404),
        get("a domain without a DNSLink", "/").at(format!("nothing-example-org.ipns.{host}")).statuses(400..600),
    ]);
    let domains = ["dnslink-test", "dnslink-over-ipns", "dnslink-over-ipns-cidv1"];
    for domain in domains.map(|name| format!("{name}.example.org")) {
        let label = domain.replace('-', "--").replace('.', "-");
        let served = |name: &str, host: String| {
            let case = get(format!("{name} of {domain}"), "/").at(host).status(200).bytes(HELLO_TEXT);
            case.header("cache-control", Text::Lacks("immutable".to_owned()))
        };
        cases.push(served("the domain", format!("{domain}.ipns.{host}")));
        cases.push(served("the label", format!("{label}.ipns.{host}")));
    }
    cases
}

pub fn forwarded() -> Vec<Case> {
    let path = format!("/ipfs/{HELLO}");
    let over = |protocol: &str| format!("{protocol}://{HELLO}.ipfs.example.com/");
    let protocols = ["http", "https"].into_iter().flat_map(|protocol| {
        let by_host = get(format!("{protocol} at the host"), &path).at("example.com");
        let by_header = get(format!("{protocol} at another host"), &path).at("fake.domain.com");
        let by_header = by_header.with("X-Forwarded-Host", "example.com");
        [by_host, by_header].map(|case| case.with("X-Forwarded-Proto", protocol).redirects(301, over(protocol)))
    });
    let domain = "en.wikipedia-on-ipfs.example.org";
    let others = [
        get("the host alone", &path)
            .at("fake.domain.com")
            .with("X-Forwarded-Host", "example.com")
            .redirects(301, over("http")),
        get("another host", &path).at("fake.domain.com").status(200).bytes(HELLO_TEXT),
        get("a subdomain", "/")
            .at("fake.domain.com")
            .with("X-Forwarded-Host", format!("{HELLO}.ipfs.example.com"))
            .status(200)
            .bytes(HELLO_TEXT),
        get("a domain over TLS", format!("/ipns/{domain}/wiki/"))
            .at("example.com")
            .with("X-Forwarded-Proto", "https")
            .redirects(301, "https://en-wikipedia--on--ipfs-example-org.ipns.example.com/wiki/"),
    ];
    protocols.chain(others).collect()
}

pub fn protocol_handlers() -> Vec<Case> {
    let wikipedia = "QmXoypizjW3WknFiJnKLwHCnL72vedxjQkDDP1mXWo6uco";
    let domain = "en.wikipedia-on-ipfs.example.org";
    let mut cases = Vec::new();
    for host in ["example.com", "127.0.0.1"] {
        cases.extend([
            get("ipfs://", format!("/ipfs/?uri=ipfs%3A%2F%2F{wikipedia}%2Fwiki%2FDiego_Maradona.html"))
                .at(host)
                .redirects(301, format!("/ipfs/{wikipedia}/wiki/Diego_Maradona.html")),
            get("ipns://", format!("/ipns/?uri=ipns%3A%2F%2F{domain}"))
                .at(host)
                .redirects(301, format!("/ipns/{domain}")),
            get("another protocol", "/ipfs/?uri=http%3A%2F%2Fexample.net%2F").at(host).status(400),
            get("what is no address", "/ipfs/?uri=hello").at(host).status(400),
        ]);
    }
    cases
}

pub fn service_workers() -> Vec<Case> {
    let worker = |name: &str, path: String| get(name, path).with("Service-Worker", "script");
    vec![
        worker("for all content", format!("/ipfs/{HELLO}")).status(400),
        worker("for all names", format!("/ipns/{}", KEY_ED25519[1])).status(400),
        worker("for a folder", format!("/ipfs/{ORIGIN_DIR}/hello")).status(200),
        worker("for an origin", "/hello".to_owned()).at(format!("{ORIGIN_DIR}.ipfs.example.com")).status(200),
    ]
}
