//! DNSLink websites under their own domain: <https://specs.ipfs.tech/http-gateways/dnslink-gateway/>.

use crate::case::{Body, Case, Text, get, has, is, page};
use crate::fixtures::*;
use crate::world::check;

const LISTING_SITE: &str = "dnslink-dir-listing.example.org";

#[tokio::test(flavor = "multi_thread")]
async fn dnslink_domains_serve_websites() {
    check("DNSLink", cases()).await;
}

pub fn cases() -> Vec<Case> {
    let site = LISTING_SITE;
    let hello = |domain: &str| get(format!("the website {domain}"), "/").at(domain).status(200).bytes(HELLO_TEXT);
    let mut cases = vec![
        get("a root has no parent", "/")
            .at(site)
            .status(200)
            .body(Body::Page(vec!["Index of".to_owned()], vec!["<a href=\"/\">..</a>".to_owned()])),
        get("a directory gets its slash", format!("/{AE}")).at(site).redirects(301, format!("/{AE}/")),
        get("a listing", format!("/{AE}/")).at(site).status(200).header("etag", has("\"DirIndex-")).body(page([
            "Index of".to_owned(),
            format!("<a href=\"/{AE}/..\">..</a>"),
            format!(
                "/ipns/<a href=\"//{site}/\">{site}</a>/<a href=\"//{site}/%C4%85\">ą</a>/<a href=\"//{site}/{AE}\">ę</a>"
            ),
            format!("<a href=\"/{AE}/file-%C5%BA%C5%82.txt\">file-źł.txt</a>"),
            format!(
                "<a class=\"ipfs-hash\" translate=\"no\" href=\"https://cid.ipfs.tech/#{LISTING_FILE}\" \
                 target=\"_blank\" rel=\"noreferrer noopener\">"
            ),
        ])),
        get("a file", format!("/{AE}/file-%C5%BA%C5%82.txt")).at(site).status(200).bytes(LISTING_TEXT),
        get("a path that looks like a namespace", "/ipfs/file.txt").at(site).status(200).body(page(["/ipfs dir"])),
        get("a folder below the root", "/root3/root4/index.html").at("dnslink-subpath.example.org").status(200).bytes("hello\n"),
        get("its path", "/root3/root4/index.html")
            .at("dnslink-subpath.example.org")
            .header("x-ipfs-path", is("/ipns/dnslink-subpath.example.org/root3/root4/index.html"))
            .header("cache-control", Text::Lacks("immutable".to_owned())),
        get("what does not exist", "/nothing").at(site).status(404),
        get("a port is no matter", format!("/{AE}/file-%C5%BA%C5%82.txt")).at(format!("{site}:8080")).status(200),
        get("nor is the case", "/api/file.txt").at(site.to_uppercase()).status(200),
    ];
    let sites = ["dnslink-test.example.org", "dnslink-over-ipns.example.org", "dnslink-over-ipns-cidv1.example.org"];
    cases.extend(sites.map(hello));
    cases.extend(sites.map(|domain| {
        get(format!("by path, {domain}"), format!("/ipns/{domain}"))
            .status(200)
            .header("x-ipfs-path", is(format!("/ipns/{domain}")))
            .bytes(HELLO_TEXT)
    }));
    cases
}
