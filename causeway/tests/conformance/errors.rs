//! Error responses, and properties of all responses.

use crate::case::{Case, Text, get, has, is, page};
use crate::fixtures::*;
use crate::world::check;
use std::ops::Range;

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_accepted_media_type() {
    check("errors", errors()).await;
}

/// Each as text and as a page.
pub fn errors() -> Vec<Case> {
    let hole = format!("/ipfs/{NOBODYS}");
    let table: [(&str, String, &str, Range<u16>, Text); 9] = [
        ("what is no CID", "/ipfs/hello".to_owned(), "127.0.0.1", 400..401, Text::Present),
        ("no CID at all", "/ipfs/".to_owned(), "127.0.0.1", 400..401, Text::Present),
        ("what does not exist", format!("/ipfs/{LISTING}/nothing"), "127.0.0.1", 404..405, Text::Present),
        (
            "what does not exist at a subdomain",
            "/nothing".to_owned(),
            &format!("{LISTING}.ipfs.example.com"),
            404..405,
            Text::Present,
        ),
        ("missing content", hole, "127.0.0.1", 504..505, is("no-store")),
        (
            "an unknown name",
            "/ipns/k51qzi5uqu5dlvj2baxnqndepeb86cbk3ng7n3i46uzyxzyqj2xjonzllnv0v8".to_owned(),
            "127.0.0.1",
            504..505,
            is("no-store"),
        ),
        (
            "an unknown format",
            format!("/ipfs/{LISTING}?format=bogus"),
            "127.0.0.1",
            400..407,
            Text::Lacks("immutable".to_owned()),
        ),
        ("a page that is not there", "/nothing".to_owned(), "127.0.0.1", 404..405, Text::Lacks("immutable".to_owned())),
        (
            "inside a document",
            format!("/ipfs/{DAG_CBOR}/foo"),
            "127.0.0.1",
            501..502,
            Text::Lacks("immutable".to_owned()),
        ),
    ];
    let cases = table.into_iter().flat_map(|(name, path, host, status, cache_control)| {
        let case = get(name, path).at(host).statuses(status.clone()).header("cache-control", cache_control);
        let case = case.header("content-length", Text::Present).header("etag", Text::Absent);
        let case = if status.contains(&504) { case.header("retry-after", Text::Present) } else { case };
        let text = case.clone().header("content-type", has("text/plain"));
        let as_page =
            case.called(format!("{name}, in a browser")).with("Accept", "text/html,application/xhtml+xml,*/*;q=0.8");
        [text, as_page.header("content-type", has("text/html")).body(page(["</html>"]))]
    });
    cases.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_safe_methods_are_allowed() {
    let methods = ["POST", "PUT", "DELETE", "PATCH", "BREW"];
    let paths = [format!("/ipfs/{LISTING}"), format!("/ipns/{KEY_V2}", KEY_V2 = KEY_V2.0), "/".to_owned()];
    let cases = paths.iter().flat_map(|path| {
        methods.map(|method| {
            let case = get(format!("{method} {path}"), path).by(method).status(405);
            case.header("allow", Text::Lists(vec!["GET", "HEAD", "OPTIONS"]))
        })
    });
    check("methods", cases.collect()).await;
}
