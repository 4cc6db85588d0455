//! JSON and CBOR, plain and with links:
//! <https://specs.ipfs.tech/http-gateways/path-gateway/#format-request-query-parameter>.

use crate::case::{Body, Case, Text, get, has, is, page};
use crate::fixtures::*;
use crate::unixfs::{FOR_A_WEEK, FOR_EVER};
use crate::world::check;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn json_and_cbor_are_sent_unchanged() {
    check("codecs", codecs()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn codecs_are_not_converted_unless_configured() {
    check("conversions", conversions()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_traverse_links() {
    check("traversal", traversal()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_have_html_pages() {
    check("previews", previews()).await;
}

/// A requested block, and its representations.
struct Document {
    cid: &'static str,
    /// "json" or "cbor".
    format: &'static str,
    /// Whether its codec is dag-json or dag-cbor.
    has_links: bool,
}

const DOCUMENTS: [Document; 6] = [
    Document { cid: PLAIN_JSON, format: "json", has_links: false },
    Document { cid: PLAIN_CBOR, format: "cbor", has_links: false },
    Document { cid: STRICT_JSON, format: "json", has_links: false },
    Document { cid: STRICT_CBOR, format: "cbor", has_links: false },
    Document { cid: DAG_JSON, format: "json", has_links: true },
    Document { cid: DAG_CBOR, format: "cbor", has_links: true },
];

impl Document {
    fn path(&self) -> String {
        format!("/ipfs/{}", self.cid)
    }

    fn plain_type(&self) -> String {
        format!("application/{}", self.format)
    }

    fn dag_type(&self) -> String {
        format!("application/vnd.ipld.dag-{}", self.format)
    }

    /// Browsers can display JSON, but not CBOR.
    fn disposition(&self) -> &'static str {
        if self.format == "json" { "inline" } else { "attachment" }
    }

    /// All requests for it without a conversion, with the Content-Type of the answer and the suffix of its ETag.
    fn ways(&self) -> Vec<(Case, String, String)> {
        let (path, format) = (self.path(), self.format);
        let (plain, dag) = (self.plain_type(), self.dag_type());
        let own = if self.has_links { dag.clone() } else { plain.clone() };
        let own_end = if self.has_links { format!(".dag-{format}") } else { format!(".{format}") };
        let case = |way: &str, query: &str| get(format!("{way} of {}", self.cid), format!("{path}{query}"));
        let mut ways = vec![
            (case("no format", ""), own.clone(), own_end.clone()),
            (case("any type", "").with("Accept", "*/*"), own, own_end),
            (case("the plain format", &format!("?format={format}")), plain.clone(), format!(".{format}")),
            (case("the plain type", "").with("Accept", plain.clone()), plain, format!(".{format}")),
        ];
        if self.has_links {
            let end = format!(".dag-{format}");
            ways.push((case("the format with links", &format!("?format=dag-{format}")), dag.clone(), end.clone()));
            ways.push((case("the type with links", "").with("Accept", dag.clone()), dag, end));
        }
        ways
    }

    fn cases(&self) -> Vec<Case> {
        self.ways()
            .into_iter()
            .flat_map(|(case, media_type, end)| self.whole_and_parts(&case, &media_type, &end))
            .collect()
    }

    fn whole_and_parts(&self, case: &Case, media_type: &str, end: &str) -> Vec<Case> {
        let bytes = block(self.cid);
        let (format, disposition) = (self.format, self.disposition());
        let name = format!("{disposition}; filename=\"{}.{format}\"", self.cid);
        let whole = case
            .clone()
            .status(200)
            .header("content-type", is(media_type))
            .header("content-length", is(bytes.len().to_string()))
            .header("content-disposition", has(name))
            .header("x-content-type-options", is("nosniff"))
            .header("cache-control", is(FOR_EVER))
            .header("etag", has(format!("{}{end}\"", self.cid)))
            .header("x-ipfs-path", is(self.path()))
            .header("x-ipfs-roots", is(self.cid))
            .bytes(bytes.clone());
        let part = case
            .clone()
            .with("Range", "bytes=3-12")
            .status(206)
            .header("content-type", is(media_type))
            .header("content-range", is(format!("bytes 3-12/{}", bytes.len())))
            .bytes(bytes.slice(3..13));
        let parts = case.clone().with("Range", "bytes=3-5,7-9").either([
            |case| case.status(200).header("content-range", Text::Absent),
            |case| case.status(206).header("content-range", has("bytes 3-5/")),
            |case| case.status(206).header("content-type", has("multipart/byteranges")),
        ]);
        vec![whole, part, parts]
    }
}

pub fn codecs() -> Vec<Case> {
    let mut cases: Vec<Case> = DOCUMENTS.iter().flat_map(Document::cases).collect();
    for document in DOCUMENTS.iter().filter(|document| document.has_links) {
        let (path, format, disposition) = (document.path(), document.format, document.disposition());
        let by_type = |name: &str, query: &str| {
            get(format!("{name}, {format}"), format!("{path}?{query}")).with("Accept", document.dag_type())
        };
        cases.push(
            by_type("another name", &format!("filename=foobar.{format}"))
                .header("content-disposition", has(format!("{disposition}; filename=\"foobar.{format}\""))),
        );
        cases.push(
            by_type("a download", &format!("filename=foobar.{format}&download=true"))
                .header("content-disposition", has(format!("attachment; filename=\"foobar.{format}\""))),
        );
        let slashed = get(format!("with a slash, {format}"), format!("{path}/"));
        cases.push(slashed.status(200).header("content-type", is(document.dag_type())).bytes(block(document.cid)));
        let absent = get("only if cached", format!("/ipfs/{NOBODYS_RAW}?format=dag-{format}"));
        cases.push(absent.with("Cache-Control", "only-if-cached").status(412));
    }
    cases.extend(json_files());
    cases
}

/// JSON text in a UnixFS file is a file, with any requested format.
fn json_files() -> Vec<Case> {
    let path = format!("/ipfs/{JSON_FILE}");
    let file = |case: Case| case.status(200).header("content-type", is("application/json")).bytes(block(JSON_FILE));
    vec![
        file(get("a JSON file", &path)),
        file(get("a JSON file as JSON", &path).with("Accept", "application/json")),
        file(
            get("a JSON file by query, whatever is accepted", format!("{path}?format=json"))
                .with("Accept", "application/vnd.ipld.raw"),
        ),
    ]
}

pub fn conversions() -> Vec<Case> {
    let pairs = [
        (LISTING_FILE, "dag-json"),
        (LISTING_FILE, "dag-cbor"),
        (DAG_PB, "dag-json"),
        (DAG_PB, "dag-cbor"),
        (MULTIBLOCK, "dag-json"),
        (DAG_JSON, "dag-cbor"),
        (DAG_JSON, "cbor"),
        (DAG_CBOR, "dag-json"),
        (DAG_CBOR, "json"),
        (PLAIN_JSON, "dag-cbor"),
        (PLAIN_CBOR, "dag-json"),
    ];
    let refused = pairs.into_iter().flat_map(|(cid, format)| {
        let path = format!("/ipfs/{cid}");
        let media_type = match format {
            "json" | "cbor" => format!("application/{format}"),
            dag => format!("application/vnd.ipld.{dag}"),
        };
        let by_query = get(format!("{cid} as {format} by query"), format!("{path}?format={format}"));
        let by_accept = get(format!("{cid} as {format} by Accept"), path).with("Accept", media_type);
        [by_query, by_accept].map(|case| case.status(406).header("cache-control", Text::Lacks("immutable".to_owned())))
    });
    let raw = DOCUMENTS.iter().map(|document| {
        let case = get(format!("the block of {}", document.cid), format!("{}?format=raw", document.path()));
        case.status(200).header("content-type", is("application/vnd.ipld.raw")).bytes(block(document.cid))
    });
    refused.chain(raw).collect()
}

pub fn traversal() -> Vec<Case> {
    let mut cases = Vec::new();
    for (root, end, format) in [(DAG_JSON, DAG_JSON_END, "dag-json"), (DAG_CBOR, DAG_CBOR_END, "dag-cbor")] {
        let at =
            |path: &str, query: &str| get(format!("{format} {path}{query}"), format!("/ipfs/{root}/{path}{query}"));
        let query = format!("?format={format}");
        cases.extend([
            // Within a document, only linked content can be requested.
            at("foo", &query).status(501),
            at("foo", "").status(501),
            at("foo/object/banana", &query).status(501),
            at("foo/link/bar", &query).status(200).bytes(block(end)),
            at("foo/link/bar", "?format=raw").status(200).bytes(block(end)),
            at("foo/link/bar", "").status(200).header("etag", has(end)).bytes(block(end)),
            at("foo/i-do-not-exist", "").status(404),
            at("foo/i-do-not-exist", &query).status(404),
            at("foo/object/banana/more", "").status(404),
        ]);
    }
    let text = json!({ "hello": "this is not a link" });
    cases.push(get("what is there", format!("/ipfs/{DAG_JSON}/foo/link/bar?format=json")).body(Body::Json(text)));
    cases.extend([
        get("a file behind a document", format!("/ipfs/{DOCUMENT}/files/single")).status(200).bytes("hello world\n"),
        get("a file behind a document in a directory", format!("/ipfs/{WITH_DOCUMENT}/document/files/multiblock"))
            .status(200)
            .bytes(file(MULTIBLOCK)),
    ]);
    cases
}

pub fn previews() -> Vec<Case> {
    let html = "text/html,application/xhtml+xml,*/*;q=0.8";
    let documents = DOCUMENTS.iter().filter(|document| document.has_links);
    let pages = documents.flat_map(|document| {
        let path = document.path();
        let shown = get(format!("a page of {}", document.cid), format!("{path}/")).with("Accept", "text/html");
        let shown = shown
            .status(200)
            .header("etag", has("DagIndex-"))
            .header("content-type", has("text/html"))
            .header("content-disposition", Text::Absent)
            .either([
                |case| case.header("cache-control", Text::Absent),
                |case| case.header("cache-control", is(FOR_A_WEEK)),
            ])
            .body(page(["</html>", document.cid]));
        let by_browser = get("a page for a browser", format!("{path}/")).with("Accept", html).body(page(["</html>"]));
        // The relative links of a page may need the trailing slash, or be absolute.
        let bare = get("a page without a slash", &path).with("Accept", html).either([
            |case| case.statuses(301..303).header("location", Text::Like("/ipfs/".to_owned(), "/".to_owned())),
            |case| case.status(200).header("etag", has("DagIndex-")).body(page(["</html>"])),
        ]);
        let downloaded = get("a download is no page", format!("{path}/?download=true")).with("Accept", html);
        let asked = get("a format is no page", format!("{path}?format=dag-{}", document.format)).with("Accept", html);
        [
            shown,
            by_browser,
            bare,
            downloaded.status(200).bytes(block(document.cid)),
            asked.status(200).bytes(block(document.cid)),
        ]
    });
    pages.collect()
}
