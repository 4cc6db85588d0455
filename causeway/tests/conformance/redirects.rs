//! The `_redirects` files of websites: <https://specs.ipfs.tech/http-gateways/web-redirects-file/>.

use crate::case::{Body, Case, Text, get, has, is, page};
use crate::fixtures::*;
use crate::socket::exchange;
use crate::unixfs::FOR_EVER;
use crate::world::{check, gateway};

const WEBSITE: &str = "dnslink-redirects-examples.example.org";
const SPA_WEBSITE: &str = "dnslink-enabled-with-spa.example.org";

fn at(root: &str, name: &str, path: &str) -> Case {
    get(format!("{name}: {path}"), path).at(format!("{root}.ipfs.example.com"))
}

#[tokio::test(flavor = "multi_thread")]
async fn redirect_rules_are_applied() {
    check("_redirects", rules()).await;
    check("_redirects of DNSLink websites", websites()).await;
}

pub fn rules() -> Vec<Case> {
    let here = |name: &str, path: &str| at(REDIRECTS, name, path);
    let error = |name: &str, path: &str, status: u16, cid: &str, text: &str| {
        let case = here(name, path).status(status).header("cache-control", is(FOR_EVER));
        case.header("etag", is(format!("\"{cid}\""))).body(page([text]))
    };
    let mut cases = vec![
        here("301 unless it says otherwise", "/redirect-one").redirects(301, "/one.html"),
        here("301", "/301-redirect-one").redirects(301, "/one.html"),
        here("302", "/302-redirect-two").redirects(302, "/two.html"),
        here("a rewrite", "/200-index").status(200).body(page(["my index"])),
        here("placeholders", "/posts/2022/01/01/hello-world").redirects(301, "/articles/2022/01/01/hello-world"),
        here("a splat", "/splat/one.html").redirects(301, "/redirected-splat/one.html"),
        error("an own 404", "/not-found/has-no-redirects-entry", 404, PAGE_404, "my 404"),
        error("an own 410", "/gone/has-no-redirects-entry", 410, PAGE_410, "my 410"),
        error("an own 451", "/unavail/has-no-redirects-entry", 451, PAGE_451, "my 451"),
        here("a catch-all", "/catch-all").status(200).body(page(["my index"])),
        here("what exists comes before every rule", "/one.html").status(200).body(page(["my one"])),
        at(REDIRECTS_CRLF, "lines end in CR LF", "/redirect-one").redirects(301, "/one.html"),
        at(REDIRECTS_CRLF, "lines end in CR LF, a rewrite", "/200-index").status(200).body(page(["my index"])),
        at(REDIRECTS_BAD_CODES, "a bad rule is no matter to what exists", "/found.html")
            .status(200)
            .body(Body::Page(vec!["my found".to_owned()], vec!["unsupported redirect status".to_owned()])),
        at(REDIRECTS_BAD_CODES, "a status that rules may not have", "/not-found").status(500),
        at(REDIRECTS_FORCED, "a forced rule", "/not-found").status(500).body(page(["could not parse _redirects:"])),
        at(REDIRECTS_INVALID, "no rules at all", "/not-found").status(500).body(page(["could not parse _redirects:"])),
        at(REDIRECTS_TOO_LARGE, "over 64 KiB", "/not-found")
            .status(500)
            .body(page(["could not parse _redirects:", "redirects file size cannot exceed"])),
        // Without origin isolation, redirect rules of content are ignored.
        get("not under a path", format!("/ipfs/{REDIRECTS}/redirect-one")).status(404),
    ];
    for code in [301, 302, 303, 307, 308] {
        let case = at(REDIRECTS_GOOD_CODES, "a code that rules may have", &format!("/a{code}"));
        cases.push(case.redirects(code, format!("/b{code}")));
    }
    cases
}

fn websites() -> Vec<Case> {
    vec![
        get("301", "/redirect-one").at(WEBSITE).redirects(301, "/one.html"),
        get("an own 404, which is not for ever", "/not-found/has-no-redirects-entry")
            .at(WEBSITE)
            .status(404)
            .header("etag", is(format!("\"{PAGE_404}\"")))
            .header("cache-control", Text::Lacks("immutable".to_owned()))
            .header("date", Text::Present)
            .body(page(["my 404"])),
        get("a splat", "/splat/one.html").at(WEBSITE).redirects(301, "/redirected-splat/one.html"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewritten_page_is_revalidated_by_its_own_tag() {
    let inlined = SPA_WEBSITE.replace('-', "--").replace('.', "-");
    let hosts =
        [format!("{REDIRECTS_SPA}.ipfs.example.com"), format!("{inlined}.ipns.example.com"), SPA_WEBSITE.to_owned()];
    for host in hosts {
        let page = get("a page that only the script knows", "/missing-page").at(&host).with("Accept", "text/html");
        let head =
            format!("GET /missing-page HTTP/1.1\r\nHost: {host}\r\nAccept: text/html\r\nConnection: close\r\n\r\n");
        let reply = exchange(gateway().await, &head).await.expect("an answer");
        let tag = reply.header("etag").unwrap_or_default();
        let whole = page.clone().status(200).header("etag", has("\"")).bytes(block(HELLO_WORLD));
        let fresh = page.called("the same again").with("If-None-Match", tag).status(304).body(Body::Empty);
        check(&format!("a rewrite at {host}"), vec![whole, fresh]).await;
    }
}
