//! CAR archives: <https://specs.ipfs.tech/http-gateways/trustless-gateway/#car-responses-application-vnd-ipld-car>.

use crate::case::{Body, Case, Text, get, has, is};
use crate::fixtures::*;
use crate::socket::exchange;
use crate::world::{check, gateway};
use std::collections::HashMap;

const MEDIA_TYPE: &str = "application/vnd.ipld.car";

#[tokio::test(flavor = "multi_thread")]
async fn archives_have_the_blocks_of_the_path_and_the_scope() {
    check("scopes", scopes()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_hold_only_the_blocks_of_a_range() {
    check("entity-bytes", entity_bytes()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_have_the_requested_order_and_duplicates() {
    check("order and duplicates", order_and_duplicates()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_cannot_be_archived_is_rejected() {
    check("refusals", refusals()).await;
}

fn own<'a>(cids: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    cids.into_iter().map(str::to_owned).collect()
}

/// A file and its leaves.
fn multiblock() -> Vec<String> {
    own([MULTIBLOCK].into_iter().chain(LEAVES))
}

/// The shards of a directory, without its entries.
fn shards(root: &str) -> Vec<String> {
    // The link names of shards have two digits; those of entries are longer.
    let children = links(root).into_iter().filter(|(name, _)| name.len() == 2);
    own([root]).into_iter().chain(children.flat_map(|(_, child)| shards(&child))).collect()
}

/// The request with `format=car` and with `Accept`, each with the headers of every CAR.
fn both(name: &str, path: &str, query: &str, blocks: Vec<String>) -> [Case; 2] {
    let join = |query: &str, more: &str| match (query.is_empty(), more.is_empty()) {
        (true, true) => path.to_owned(),
        (false, false) => format!("{path}?{query}&{more}"),
        _ => format!("{path}?{query}{more}"),
    };
    let by_query = get(format!("{name}, by query"), join("format=car", query));
    let by_accept = get(format!("{name}, by Accept"), join("", query)).with("Accept", MEDIA_TYPE);
    [by_query, by_accept].map(|case| archive(case).body(Body::Blocks(blocks.clone())))
}

fn archive(case: Case) -> Case {
    case.status(200)
        .header("content-type", has(MEDIA_TYPE))
        .header("content-type", has("version=1"))
        .header("content-disposition", has("attachment; filename=\""))
        .header("content-disposition", has(".car\""))
        .header("x-content-type-options", is("nosniff"))
        .header("accept-ranges", is("none"))
        .header("content-range", Text::Absent)
        .header("etag", Text::Present)
        .header("x-ipfs-path", Text::Present)
        .header("x-ipfs-roots", Text::Present)
}

pub fn scopes() -> Vec<Case> {
    let (two, hamt, mixed) = (format!("/ipfs/{TWO}"), format!("/ipfs/{HAMT}"), format!("/ipfs/{MIXED}"));
    let (document, with_document) = (format!("/ipfs/{DOCUMENT}"), format!("/ipfs/{WITH_DOCUMENT}"));
    let ascii = format!("{two}/subdir/ascii.txt");
    let mixed_file = format!("{mixed}/subdir/multiblock.txt");
    let with = |start: &[&str], rest: Vec<String>| [own(start.iter().copied()), rest].concat();
    let mixed_content = with(&[ASCII, HELLO_WORLD], multiblock());
    let table: [(&str, &str, &str, Vec<String>); 18] = [
        ("a file on a path", &ascii, "", own([TWO, TWO_SUBDIR, ASCII])),
        ("a file in shards", &format!("{hamt}/685.txt"), "", with(&[HAMT, HAMT_SHARD_OF_685], multiblock())),
        ("a file behind a document", &format!("{document}/files/single"), "", own([DOCUMENT, HELLO_WORLD])),
        ("a whole directory", &two, "", own([TWO, TWO_SUBDIR, ASCII, HELLO_WORLD])),
        ("the block of a directory", &format!("{two}/subdir"), "dag-scope=block", own([TWO, TWO_SUBDIR])),
        ("the block of a file", &ascii, "dag-scope=block", own([TWO, TWO_SUBDIR, ASCII])),
        (
            "the block of a file in shards",
            &format!("{hamt}/1.txt"),
            "dag-scope=block",
            own([HAMT, HAMT_SHARD_OF_1, MULTIBLOCK]),
        ),
        ("the block of a sharded directory", &hamt, "dag-scope=block", own([HAMT])),
        ("a directory for itself", &two, "dag-scope=entity", own([TWO])),
        ("a sharded directory for itself", &hamt, "dag-scope=entity", shards(HAMT)),
        (
            "a file for itself",
            &format!("{mixed}/subdir/ascii.txt"),
            "dag-scope=entity",
            own([MIXED, MIXED_SUBDIR, ASCII]),
        ),
        ("a file of several blocks", &mixed_file, "dag-scope=entity", with(&[MIXED, MIXED_SUBDIR], multiblock())),
        (
            "a document for itself",
            &format!("{with_document}/document"),
            "dag-scope=entity",
            own([WITH_DOCUMENT, DOCUMENT]),
        ),
        (
            "a whole subdirectory",
            &format!("{mixed}/subdir"),
            "dag-scope=all",
            with(&[MIXED, MIXED_SUBDIR], mixed_content),
        ),
        ("a whole file", &mixed_file, "dag-scope=all", with(&[MIXED, MIXED_SUBDIR], multiblock())),
        (
            "a whole document",
            &format!("{with_document}/document"),
            "dag-scope=all",
            with(&[WITH_DOCUMENT, DOCUMENT, HELLO_WORLD], multiblock()),
        ),
        ("a raw block", &format!("/ipfs/{ASCII}"), "", own([ASCII])),
        ("a symlink", &format!("/ipfs/{SYMLINK}/bar"), "", vec![SYMLINK.to_owned(), links(SYMLINK)[0].1.clone()]),
    ];
    table.into_iter().flat_map(|(name, path, query, blocks)| both(name, path, query, blocks)).collect()
}

pub fn entity_bytes() -> Vec<Case> {
    let missing = format!("/ipfs/{MISSING}");
    let on_path = format!("/ipfs/{MIXED}/subdir/multiblock.txt");
    let file = format!("/ipfs/{MULTIBLOCK}");
    let leaves = |range: std::ops::Range<usize>| own([MULTIBLOCK].into_iter().chain(LEAVES[range].iter().copied()));
    let whole = [own([MIXED, MIXED_SUBDIR]), multiblock()].concat();
    let table: [(&str, &str, &str, Vec<String>); 17] = [
        ("before the missing block", &missing, "0:1000", own([MISSING, MISSING_FIRST])),
        ("after the missing block", &missing, "2200:*", own([MISSING, MISSING_THIRD])),
        ("all of a file", &on_path, "0:*", whole),
        ("a directory has no bytes", &format!("/ipfs/{HAMT}"), "0:*", shards(HAMT)),
        ("to the end", &file, "512:*", leaves(2..5)),
        ("in the middle", &file, "512:1023", leaves(2..4)),
        ("up to before the end", &file, "512:-256", leaves(2..4)),
        ("the end", &file, "-5:*", leaves(3..5)),
        ("more than all, from the end", &file, "-9999:*", leaves(0..5)),
        ("more than all, but not the end", &file, "-9999:-3", leaves(0..4)),
        ("the first byte", &file, "0:0", leaves(0..1)),
        ("the last byte of a leaf", &file, "255:255", leaves(0..1)),
        ("across leaves", &file, "255:256", leaves(0..2)),
        ("the last byte", &file, "-1:*", leaves(4..5)),
        ("to beyond the end", &file, "1000:99999", leaves(3..5)),
        ("the last leaf", &file, "1024:*", leaves(4..5)),
        ("of a raw block", &format!("/ipfs/{ASCII}"), "3:5", own([ASCII])),
    ];
    let cases = table.into_iter().flat_map(|(name, path, range, blocks)| {
        both(name, path, &format!("dag-scope=entity&entity-bytes={range}"), blocks)
    });
    let implied = both("a range implies the entity", &file, "entity-bytes=0:0", leaves(0..1));
    let needed =
        ["", "&dag-scope=entity", "&dag-scope=entity&entity-bytes=0:*", "&dag-scope=entity&entity-bytes=1000:1500"];
    let broken = needed.map(|query| {
        get(format!("a missing block is needed by {query:?}"), format!("{missing}?format=car{query}")).breaks_off()
    });
    cases.chain(implied).chain(broken).collect()
}

pub fn order_and_duplicates() -> Vec<Case> {
    let path = format!("/ipfs/{FILES}");
    let accepting = |name: &str, parameters: &str, printed: &[&str]| {
        let case = archive(get(name, &path).with("Accept", format!("{MEDIA_TYPE}{parameters}")));
        printed.iter().fold(case, |case, part| case.header("content-type", has(*part)))
    };
    let querying = |name: &str, query: &str, accept: &str, printed: &[&str]| {
        let case = archive(get(name, format!("{path}?format=car{query}")).with("Accept", accept));
        printed.iter().fold(case, |case, part| case.header("content-type", has(*part)))
    };
    let with_twice = Body::Blocks([own([FILES, ASCII, ASCII, HELLO_WORLD]), multiblock()].concat());
    let with_once = Body::Blocks([own([FILES, ASCII, HELLO_WORLD]), multiblock()].concat());
    let in_any_order = Body::BlocksUnordered([own([FILES, ASCII, HELLO_WORLD]), multiblock()].concat());
    let (y, n) = (["order=dfs", "dups=y"], ["order=dfs", "dups=n"]);
    let domain_of_label = "application/vnd.ipld.car; version=1; order=dfs; dups=y";
    let mut cases = vec![
        accepting("duplicates", "; version=1; order=dfs; dups=y", &y).body(with_twice.clone()),
        accepting("no duplicates", "; version=1; order=dfs; dups=n", &n).body(with_once.clone()),
        accepting("without spaces", ";version=1;order=dfs;dups=y", &y).body(with_twice.clone()),
        accepting("any order", "; version=1; order=unk", &["order="]).body(in_any_order),
        querying("Accept adds to the query", "", domain_of_label, &y).body(with_twice.clone()),
        querying("the query's order", "&car-order=dfs", &format!("{MEDIA_TYPE}; order=unk"), &["order=dfs"]),
        querying("the query's duplicates", "&car-dups=y", &format!("{MEDIA_TYPE}; dups=n"), &["dups=y"])
            .body(with_twice),
        querying("the query's lack of duplicates", "&car-dups=n", &format!("{MEDIA_TYPE}; dups=y"), &["dups=n"])
            .body(with_once),
        querying("the query's version", "&car-version=1", "*/*", &["version=1"]),
        querying("the query beats another format", "", "application/vnd.ipld.raw", &["version=1"]),
    ];
    // Inline content of an identity CID is not a block, also with duplicates.
    let inline = "/ipfs/bafkqaf3imvwgy3zaneqgc3janfxgy2lomvscay3jmqfa";
    let inline = get("content inside a CID", inline).with("Accept", format!("{MEDIA_TYPE}; dups=y"));
    cases.push(archive(inline).header("content-type", has("dups=y")).body(Body::Blocks(Vec::new())));
    let whole: Vec<String> = read_car(
        &std::fs::read(folder().join("trustless_gateway_car/single-layer-hamt-with-multi-block-files.car"))
            .expect("a fixture"),
    )
    .expect("a good CAR")
    .into_iter()
    .map(|(cid, _)| cid)
    .collect();
    cases.extend(both("everything in shards", &format!("/ipfs/{HAMT}"), "car-dups=n", whole));
    cases
}

pub fn refusals() -> Vec<Case> {
    let path = format!("/ipfs/{FILES}?format=car");
    let bad = |name: &str, query: &str| get(name, format!("{path}&{query}")).status(400);
    vec![
        bad("an unknown scope", "dag-scope=some"),
        bad("a range that is none", "dag-scope=entity&entity-bytes=a:b"),
        bad("half a range", "dag-scope=entity&entity-bytes=5"),
        bad("another version", "car-version=2"),
        bad("an unknown order", "car-order=bfs"),
        bad("duplicates, perhaps", "car-dups=maybe"),
        get("another version by Accept", format!("/ipfs/{FILES}"))
            .with("Accept", format!("{MEDIA_TYPE}; version=2"))
            .statuses(400..407),
        // 404 if the error is known before the first byte; a stream may also end at the last existing block.
        get("what does not exist", format!("/ipfs/{TWO}/subdir/i-do-not-exist?format=car"))
            .get_only()
            .either([|case| case.status(404), |case| archive(case).body(Body::Blocks(own([TWO, TWO_SUBDIR])))]),
        get("a range of the archive itself", &path)
            .with("Range", "bytes=0-9")
            .status(200)
            .header("accept-ranges", is("none")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn different_archives_have_different_etags() {
    let queries = [
        "",
        "&dag-scope=block",
        "&dag-scope=entity",
        "&dag-scope=entity&entity-bytes=0:100",
        "&dag-scope=entity&entity-bytes=0:600",
        "&car-dups=y",
    ];
    let paths =
        [format!("/ipfs/{MULTIBLOCK}"), format!("/ipfs/{FILES}/multiblock.txt"), format!("/ipfs/{FILES}/hello.txt")];
    let mut seen: HashMap<String, String> = HashMap::new();
    for (path, query) in paths.iter().flat_map(|path| queries.map(|query| (path, query))) {
        let target = format!("{path}?format=car{query}");
        let head = format!("HEAD {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
        let reply = exchange(gateway().await, &head).await.expect("an answer");
        let tag = reply.header("etag").unwrap_or_else(|| panic!("{target} has no tag, but {}", reply.status));
        if let Some(other) = seen.insert(tag.clone(), target.clone()) {
            panic!("{target} and {other} both have the tag {tag}");
        }
        let fresh = get("the client has it", &target).with("If-None-Match", tag).status(304).body(Body::Empty);
        check("a tag", vec![fresh]).await;
    }
}
