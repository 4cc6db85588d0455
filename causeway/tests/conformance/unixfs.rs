//! Files and directories: <https://specs.ipfs.tech/http-gateways/path-gateway/>.

use crate::case::{Body, Case, Text, get, has, is, page};
use crate::fixtures::*;
use crate::world::{check, gateway};

pub const FOR_EVER: &str = "public, max-age=29030400, immutable";
pub const FOR_A_WEEK: &str = "public, max-age=604800, stale-while-revalidate=2678400";

#[tokio::test(flavor = "multi_thread")]
async fn directory_listings_have_links() {
    check("listings", listings()).await;
}

pub fn listings() -> Vec<Case> {
    let root = format!("/ipfs/{LISTING}/");
    let sub = format!("{root}{AE}/");
    vec![
        get("a root has no parent", &root)
            .status(200)
            .header("content-type", has("text/html"))
            .header("etag", has("\"DirIndex-"))
            .body(Body::Page(vec!["Index of".to_owned()], vec![format!("<a href=\"{root}\">..</a>")])),
        get("a directory redirects to its slash", format!("{root}{AE}")).redirects(301, &sub),
        get("and keeps the query", format!("{root}{AE}?a=b&c")).redirects(301, format!("{sub}?a=b&c")),
        get("a directory further down", &sub).status(200).header("etag", has("\"DirIndex-")).body(page([
            "Index of".to_owned(),
            format!(
                "/ipfs/<a href=\"/ipfs/{LISTING}\">{LISTING}</a>/<a href=\"/ipfs/{LISTING}/%C4%85\">ą</a>\
                 /<a href=\"/ipfs/{LISTING}/{AE}\">ę</a>"
            ),
            format!("<a href=\"/ipfs/{LISTING}/{AE}/..\">..</a>"),
            format!("<a href=\"/ipfs/{LISTING}/{AE}/file-%C5%BA%C5%82.txt\">file-źł.txt</a>"),
            format!(
                "<a class=\"ipfs-hash\" translate=\"no\" \
                 href=\"/ipfs/{LISTING_FILE}?filename=file-%25C5%25BA%25C5%2582.txt\">"
            ),
        ])),
        get("a file in it", format!("{sub}file-%C5%BA%C5%82.txt")).status(200).bytes(LISTING_TEXT),
        get("folders called like namespaces", format!("{root}ipfs/file.txt"))
            .status(200)
            .bytes(block("bafkreihh2x76z2ibucdyk2aspqb6chtazpcs2okfg2c74xgm7i2u2gyniy")),
        get("what does not exist", format!("{root}i-do-not-exist")).status(404),
        get("what is below a file", format!("{sub}file-%C5%BA%C5%82.txt/more")).status(404),
        get("the same without a slash, for what exists", format!("/ipfs/{LISTING}")).redirects(301, &root),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn immutable_content_is_cacheable_and_listings_are_not() {
    check("caching", caching()).await;
    check("revalidation", revalidation()).await;
}

/// The path to, and the roots down to, the `depth`th directory or file of [`NESTED`] under a root.
pub fn nested(namespace_and_root: &str, depth: usize) -> (String, String) {
    let names = ["root2", "root3", "root4", "index.html"];
    let path = names[..depth].iter().map(|name| format!("/{name}")).collect::<String>();
    let slash = if depth < 4 { "/" } else { "" };
    (format!("{namespace_and_root}{path}{slash}"), NESTED[..=depth].join(","))
}

/// The nested directory, its index page and the file itself under an `/ipfs/` or `/ipns/` root, with all headers that
/// are the same in both.
pub fn nested_cases(root: &str) -> Vec<(usize, Case)> {
    let of = |name: &str, depth| {
        let (path, roots) = nested(root, depth);
        let case = get(format!("{name} of {root}"), &path).status(200);
        (depth, case.header("x-ipfs-path", is(path)).header("x-ipfs-roots", is(roots)))
    };
    let (listing, index, file) = (of("a listing", 2), of("an index page", 3), of("a file", 4));
    let tag = |depth: usize| is(format!("\"{}\"", NESTED[depth]));
    let listing_tag = Text::Like("\"DirIndex-".to_owned(), format!("_CID-{}\"", NESTED[2]));
    vec![
        (2, listing.1.header("etag", listing_tag)),
        (3, index.1.header("etag", tag(3)).bytes("hello\n")),
        (4, file.1.header("etag", tag(4)).header("content-length", is("6")).bytes("hello\n")),
    ]
}

pub fn caching() -> Vec<Case> {
    let root = format!("/ipfs/{}", NESTED[0]);
    let nested = nested_cases(&root).into_iter().map(|(depth, case)| match depth {
        2 => case.either([
            |case| case.header("cache-control", Text::Absent),
            |case| case.header("cache-control", is(FOR_A_WEEK)),
        ]),
        _ => case.header("cache-control", is(FOR_EVER)),
    });
    let raw = get("a directory's block", format!("{root}/root2/root3/root4/?format=raw"));
    let raw = raw.status(200).header("cache-control", is(FOR_EVER)).bytes(block(NESTED[3]));
    nested.chain([raw]).collect()
}

/// With content that is cached, and content that is not.
pub fn revalidation() -> Vec<Case> {
    let (file, page) = (nested(&format!("/ipfs/{}", NESTED[0]), 4).0, nested(&format!("/ipfs/{}", NESTED[0]), 3).0);
    let (file_tag, page_tag) = (format!("\"{}\"", NESTED[4]), format!("\"{}\"", NESTED[3]));
    let fresh =
        |name: &str, path: &str, tag: String| get(name, path).with("If-None-Match", tag).status(304).body(Body::Empty);
    let cached = |name: &str, path: &str| get(name, path).with("Cache-Control", "only-if-cached");
    let held = format!("{page}?format=raw");
    vec![
        fresh("a file's tag", &file, file_tag.clone())
            .header("etag", is(&file_tag))
            .header("cache-control", is(FOR_EVER)),
        fresh("an index page's tag", &page, page_tag),
        fresh("the third of a list", &file, format!("\"one\", \"two\", {file_tag}")),
        fresh("a weak tag", &file, format!("W/{file_tag}")),
        fresh("any tag", &file, "*".to_owned()),
        get("another tag", &file).with("If-None-Match", "\"other\"").status(200).bytes("hello\n"),
        cached("only from the cache, which has it", &held).status(200),
        cached("only from the cache, which has it, among other directives", &held)
            .with("Cache-Control", "max-age=0, only-if-cached")
            .status(200),
        cached("only from the cache, which has not", &format!("/ipfs/{NOBODYS}")).status(412),
        cached("only from the cache, a block that it has not", &format!("/ipfs/{NOBODYS_RAW}?format=raw")).status(412),
        cached("only from the cache, a CAR that it has not", &format!("/ipfs/{NOBODYS}?format=car")).status(412),
        cached("only from the cache, by HEAD", &held).by("HEAD").status(200),
        cached("only from the cache, by HEAD, which has not", &format!("/ipfs/{NOBODYS}")).by("HEAD").status(412),
        cached("content inside a CID is always at hand", "/ipfs/bafkqabtimvwgy3yk").status(200).bytes("hello\n"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_etag_of_a_listing_is_revalidated() {
    let path = nested(&format!("/ipfs/{}", NESTED[0]), 2).0;
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let reply = crate::socket::exchange(gateway().await, &head).await.expect("an answer");
    let tag = reply.header("etag").expect("a listing has a tag");
    let strong = tag.trim_start_matches("W/").to_owned();
    let fresh =
        |tag: String| get(format!("the tag {tag}"), &path).with("If-None-Match", tag).status(304).body(Body::Empty);
    check("a listing's tags", vec![fresh(strong.clone()), fresh(format!("W/{strong}"))]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn range_requests_are_answered() {
    check("ranges", ranges()).await;
}

pub fn ranges() -> Vec<Case> {
    let ascii = block(ASCII);
    let path = format!("/ipfs/{FILES}/ascii.txt");
    let part = |name: &str, range: &str| get(name, &path).with("Range", range);
    let one = |name: &str, range: &str, first: usize, last: usize| {
        part(name, range)
            .status(206)
            .header("content-range", is(format!("bytes {first}-{last}/31")))
            .header("content-length", is((last - first + 1).to_string()))
            .bytes(ascii.slice(first..=last))
    };
    let of_missing = |name: &str, range: &str, shown: &str| {
        let case = get(name, format!("/ipfs/{MISSING}")).with("Range", range).status(206);
        case.header("content-range", is(format!("bytes {shown}/3072")))
    };
    vec![
        get("a file says that it has parts", &path)
            .status(200)
            .header("accept-ranges", is("bytes"))
            .bytes(ascii.clone()),
        one("a part", "bytes=6-16", 6, 16),
        one("the end", "bytes=-3", 28, 30),
        one("from somewhere on", "bytes=25-", 25, 30),
        one("more than there is", "bytes=25-1000", 25, 30),
        one("a suffix longer than the file", "bytes=-1000", 0, 30),
        part("what is beyond the end", "bytes=31-").status(416).header("content-range", is("bytes */31")),
        part("what is no range", "bytes=9-3").status(200).bytes(ascii.clone()),
        part("another unit", "lines=1-2").status(200).bytes(ascii.clone()),
        one("if it is still this", "bytes=6-16", 6, 16).with("If-Range", format!("\"{ASCII}\"")),
        part("if it is still that, which it is not", "bytes=6-16").with("If-Range", "\"other\"").status(200),
        part("several parts", "bytes=6-16,0-4").either([
            |case| case.status(200).bytes(block(ASCII)),
            |case| case.status(206).header("content-range", is("bytes 6-16/31")).bytes(block(ASCII).slice(6..17)),
            |case| {
                let parts = ["Content-Range: bytes 6-16/31", "application", "Content-Range: bytes 0-4/31", "hello"];
                case.status(206).header("content-type", has("multipart/byteranges")).body(page(parts))
            },
        ]),
        of_missing("a range before the missing block", "bytes=997-1000", "997-1000"),
        of_missing("a range after the missing block", "bytes=2200-2201", "2200-2201"),
        get("a part across leaves", format!("/ipfs/{FILES}/multiblock.txt"))
            .with("Range", "bytes=250-1025")
            .status(206)
            .bytes(file(MULTIBLOCK).slice(250..)),
        get("a file of several blocks", format!("/ipfs/{FILES}/multiblock.txt")).status(200).bytes(file(MULTIBLOCK)),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_blocks_never_yield_complete_answers() {
    // The head is sent before the missing block is detected, and a HEAD only needs the first block.
    check("a missing block", vec![get("a file with a hole", format!("/ipfs/{MISSING}")).breaks_off()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_links_and_downloads() {
    check("names", names()).await;
}

pub fn names() -> Vec<Case> {
    let ascii = format!("/ipfs/{FILES}/ascii.txt");
    vec![
        get("a name with percent signs", format!("/ipfs/{PERCENT}/{PERCENT_NAME}"))
            .status(200)
            .bytes("hello from a percent encoded filename\n"),
        get("a listing with a symlink", format!("/ipfs/{SYMLINK}/")).status(200).body(page([">foo<", ">bar<"])),
        get("its block", format!("/ipfs/{SYMLINK}?format=raw")).status(200).bytes(block(SYMLINK)),
        get("a symlink", format!("/ipfs/{SYMLINK}/bar")).status(200).bytes("foo"),
        get("its target", format!("/ipfs/{SYMLINK}/foo")).status(200).bytes("content\n"),
        get("content inside its CID", "/ipfs/bafkqabtimvwgy3yk").status(200).bytes("hello\n"),
        get("a download", format!("{ascii}?download=true"))
            .status(200)
            .header("content-disposition", has("attachment; filename=\"ascii.txt\"")),
        get("another name", format!("{ascii}?filename=t%C3%A9st.txt"))
            .status(200)
            .header("content-disposition", has("inline; filename=\"t_st.txt\"; filename*=UTF-8''t%C3%A9st.txt")),
        get("the type of a file with a name", &ascii)
            .status(200)
            .header("content-type", is("text/plain; charset=utf-8")),
        get("sniffing is forbidden nowhere and needed nowhere", &ascii).header("x-ipfs-path", is(ascii.clone())),
    ]
}
