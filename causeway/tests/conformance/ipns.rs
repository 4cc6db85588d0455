//! IPNS names and records: <https://specs.ipfs.tech/http-gateways/path-gateway/> below `/ipns/`, and
//! <https://specs.ipfs.tech/http-gateways/trustless-gateway/#ipns-record-responses-application-vnd-ipfs-ipns-record>.

use crate::case::{Body, Case, Text, get, has, is, page};
use crate::fixtures::*;
use crate::unixfs::nested_cases;
use crate::world::check;

const MEDIA_TYPE: &str = "application/vnd.ipfs.ipns-record";

#[tokio::test(flavor = "multi_thread")]
async fn names_are_resolved() {
    check("names", paths()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_records_are_rejected() {
    check("bad records", bad()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signed_records_are_sent_unchanged() {
    check("records", sent_records()).await;
}

/// Names are mutable: no answer under them is immutable.
fn for_a_while(case: Case) -> Case {
    case.header("cache-control", Text::Lacks("immutable".to_owned())).either([
        |case| case.header("cache-control", Text::Absent),
        |case| case.header("cache-control", has("public, max-age=")),
    ])
}

pub fn paths() -> Vec<Case> {
    let nested_root = format!("/ipns/{KEY_NESTED}");
    let (file, page_path) =
        (format!("{nested_root}/root2/root3/root4/index.html"), format!("{nested_root}/root2/root3/root4/"));
    let mut cases: Vec<Case> = nested_cases(&nested_root).into_iter().map(|(_, case)| for_a_while(case)).collect();
    cases.extend([
        for_a_while(get("a directory's block", format!("{page_path}?format=raw"))).status(200).bytes(block(NESTED[3])),
        get("the client has it", &file)
            .with("If-None-Match", format!("\"{}\"", NESTED[4]))
            .status(304)
            .body(Body::Empty),
        get("a value with a path", format!("/ipns/{KEY_NESTED_SUB}/root3/root4/index.html"))
            .status(200)
            .bytes("hello\n"),
        get("a directory gets its slash", format!("{nested_root}/root2"))
            .redirects(301, format!("{nested_root}/root2/")),
        get("what does not exist", format!("{nested_root}/nothing")).status(404),
    ]);
    for (key, value) in [KEY_V1_V2, KEY_V2, KEY_BROKEN_V1] {
        let case = get(format!("to {value}"), format!("/ipns/{key}")).status(200);
        cases.push(for_a_while(case.header("x-ipfs-path", is(format!("/ipns/{key}"))).bytes(inline(value))));
    }
    cases.extend(canonical());
    for (key, cid, format) in [(KEY_DAG_JSON, DAG_JSON, "json"), (KEY_DAG_CBOR, DAG_CBOR, "cbor")] {
        let path = format!("/ipns/{key}");
        let media_type = format!("application/vnd.ipld.dag-{format}");
        cases.extend([
            for_a_while(get(format!("{format} without a format"), &path)).status(200).bytes(block(cid)),
            for_a_while(get(format!("{format} by query"), format!("{path}?format=dag-{format}"))).bytes(block(cid)),
            for_a_while(get(format!("{format} by Accept"), &path).with("Accept", &media_type))
                .status(200)
                .header("content-type", is(&media_type))
                .header("etag", is(format!("\"{cid}.dag-{format}\"")))
                .header("x-ipfs-path", is(&path))
                .header("x-ipfs-roots", is(cid))
                .bytes(block(cid)),
            for_a_while(get(format!("{format} as a page"), format!("{path}/")).with("Accept", "text/html"))
                .status(200)
                .header("etag", has("DagIndex-"))
                .header("content-type", has("text/html"))
                .header("content-disposition", Text::Absent)
                .body(page(["</html>"])),
        ]);
    }
    cases
}

/// Keys are encoded in base36, so that they fit into a DNS label.
fn canonical() -> [Case; 5] {
    let ed25519 = "/ipns/12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK/root2/";
    let rsa = "/ipns/QmcJM7PRfkSbcM5cf1QugM5R37TLRKyJGgBEhXjLTB8uA2/root2/";
    [
        get("an Ed25519 peer id", ed25519)
            .redirects(302, "/ipns/k51qzi5uqu5dlvj2baxnqndepeb86cbk3ng7n3i46uzyxzyqj2xjonzllnv0v8/root2/"),
        get("an RSA peer id", rsa)
            .redirects(302, "/ipns/k2k4r8ol4m8kkcqz509c1rcjwunebj02gcnm5excpx842u736nja8ger/root2/"),
        get("a peer id that is known", format!("/ipns/{}", KEY_RSA[0])).redirects(302, format!("/ipns/{}", KEY_RSA[1])),
        get("an RSA key", format!("/ipns/{}", KEY_RSA[1])).status(200).bytes(HELLO_TEXT),
        get("an Ed25519 key", format!("/ipns/{}", KEY_ED25519[1])).status(200).bytes(HELLO_TEXT),
    ]
}

fn bad() -> Vec<Case> {
    let bad = KEYS_BAD.iter().flat_map(|key| {
        let page = get(format!("what {key} says"), format!("/ipns/{key}"));
        let record = get(format!("the record of {key}"), format!("/ipns/{key}?format=ipns-record"));
        [page, record].map(|case| case.statuses(500..600).header("cache-control", is("no-store")))
    });
    let no_name = get("what is no name", "/ipns/not_a_name").statuses(400..600);
    let no_domain = get("a domain without a DNSLink", "/ipns/nothing.example.org/").statuses(400..600);
    bad.chain([no_name, no_domain]).collect()
}

pub fn sent_records() -> Vec<Case> {
    let good = [KEY_V1_V2, KEY_V2, KEY_BROKEN_V1].into_iter();
    let nested = [(KEY_NESTED, format!("/ipfs/{}", NESTED[0])), (KEY_NESTED_SUB, format!("/ipfs/{}/root2", NESTED[0]))];
    let good = good
        .map(|(key, value)| (key, value.to_owned()))
        .chain(nested)
        .chain([(KEY_RSA[1], format!("/ipfs/{HELLO}")), (KEY_ED25519[1], format!("/ipfs/{HELLO}"))]);
    let mut cases: Vec<Case> = good.flat_map(|(key, value)| signed(key, &value)).collect();
    let v1_v2 = KEY_V1_V2.0;
    cases.extend([
        get("another name", format!("/ipns/{v1_v2}?format=ipns-record&filename=test%D1%82%D0%B5%D1%81%D1%82.ipns-record"))
            .status(200)
            .header(
                "content-disposition",
                has("attachment; filename=\"test____.ipns-record\"; filename*=UTF-8''test%D1%82%D0%B5%D1%81%D1%82.ipns-record"),
            ),
        get("content has no record", format!("/ipfs/{HELLO}?format=ipns-record")).status(400),
        get("a path has no record", format!("/ipns/{KEY_NESTED}/root2?format=ipns-record")).status(400),
        get("a domain has no record", "/ipns/dnslink-test.example.org?format=ipns-record").statuses(400..500),
    ]);
    cases
}

/// A record, requested with `format` and with `Accept`.
fn signed(key: &str, value: &str) -> [Case; 2] {
    let path = format!("/ipns/{key}");
    let by_query = get(format!("{key} by query"), format!("{path}?format=ipns-record"));
    let by_accept = get(format!("{key} by Accept"), &path).with("Accept", MEDIA_TYPE);
    [by_query, by_accept].map(|case| {
        let file = records().into_iter().find(|(name, _)| [key].contains(&name.as_str())).map(|(_, file)| file);
        let case = match file {
            Some(file) => case.bytes(std::fs::read(file).expect("a fixture")),
            None => case,
        };
        case.status(200)
            .header("content-type", has(MEDIA_TYPE))
            .header("content-disposition", has("attachment;"))
            .header("content-disposition", has(".ipns-record\""))
            .header("cache-control", has("public, max-age="))
            .header("x-content-type-options", is("nosniff"))
            .header("etag", Text::Present)
            .body(Body::Record(key.to_owned(), value.to_owned()))
    })
}
