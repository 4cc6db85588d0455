//! Cross-origin requests of scripts: <https://specs.ipfs.tech/http-gateways/path-gateway/#cors-access-control-headers>.

use crate::case::{Body, Case, Text, get, has, is};
use crate::fixtures::*;
use crate::world::check;

#[tokio::test(flavor = "multi_thread")]
async fn cors_allows_reading_everything() {
    check("CORS", cases()).await;
}

pub fn cases() -> Vec<Case> {
    let hello = "/ipfs/bafkqabtimvwgy3yk/";
    let paths = [
        hello.to_owned(),
        format!("/ipfs/{LISTING}/"),
        format!("/ipfs/{LISTING}/nothing"),
        format!("/ipfs/{FILES}/ascii.txt"),
        format!("/ipfs/{FILES}?format=raw"),
        format!("/ipfs/{FILES}?format=car"),
        format!("/ipfs/{FILES}?format=tar"),
        format!("/ipfs/{DAG_CBOR}"),
        format!("/ipns/{KEY_NESTED}/"),
        format!("/ipns/{}?format=ipns-record", KEY_V2.0),
    ];
    let answers = paths.iter().map(|path| allowed(get(format!("GET {path}"), path)));
    let preflights = paths.iter().map(|path| {
        let preflight = get(format!("preflight of {path}"), path).by("OPTIONS").with("Origin", "https://example.net");
        allowed(preflight.with("Access-Control-Request-Method", "GET")).statuses(200..205).body(Body::Empty)
    });
    let hosts = [format!("{HELLO}.ipfs.example.com"), "dnslink-test.example.org".to_owned(), "example.com".to_owned()];
    let origins = hosts.iter().map(|host| {
        let preflight =
            get(format!("preflight at {host}"), "/").at(host).by("OPTIONS").with("Origin", "https://example.net");
        allowed(preflight).statuses(200..205)
    });
    let at_origins = [
        allowed(get("GET at a subdomain", "/").at(&hosts[0])).status(200),
        allowed(get("GET at a DNSLink website", "/").at(&hosts[1])).status(200),
        allowed(get("a redirect to a subdomain", format!("/ipfs/{HELLO}")).at("example.com")).status(301),
        get("writing is not possible", hello).by("POST").status(405).header("allow", has("GET")),
        get("deleting neither", hello).by("DELETE").status(405).header("access-control-allow-origin", is("*")),
    ];
    answers.chain(preflights).chain(origins).chain(at_origins).collect()
}

fn allowed(case: Case) -> Case {
    let exposed =
        ["Content-Range", "Content-Length", "X-Ipfs-Path", "X-Ipfs-Roots", "X-Chunked-Output", "X-Stream-Output"];
    case.header("access-control-allow-origin", is("*"))
        .header("access-control-allow-methods", Text::Lists(vec!["GET", "HEAD", "OPTIONS"]))
        .header(
            "access-control-allow-headers",
            Text::Lists(vec!["Content-Type", "Range", "User-Agent", "X-Requested-With"]),
        )
        .header("access-control-expose-headers", Text::Lists(exposed.to_vec()))
}
