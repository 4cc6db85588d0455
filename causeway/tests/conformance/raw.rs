//! Single blocks: <https://specs.ipfs.tech/http-gateways/trustless-gateway/#block-responses-application-vnd-ipld-raw>.

use crate::case::{Body, Case, Text, get, has, is, page};
use crate::fixtures::*;
use crate::unixfs::FOR_EVER;
use crate::world::check;

const MEDIA_TYPE: &str = "application/vnd.ipld.raw";

#[tokio::test(flavor = "multi_thread")]
async fn raw_blocks_are_sent() {
    check("blocks", blocks()).await;
}

/// Every block is requested by path and by its own CID, with `format` and with `Accept`.
pub fn blocks() -> Vec<Case> {
    let places = [
        (format!("/ipfs/{}/dir", RAW[0]), RAW[1], RAW[..2].join(",")),
        (format!("/ipfs/{}/dir/ascii.txt", RAW[0]), RAW[2], RAW.join(",")),
        (format!("/ipfs/{}", RAW[1]), RAW[1], RAW[1].to_owned()),
        (format!("/ipfs/{}", RAW[2]), RAW[2], RAW[2].to_owned()),
        (format!("/ipfs/{}", HELLO_V0), HELLO_V0, HELLO_V0.to_owned()),
    ];
    let by_both = places.into_iter().flat_map(|(path, cid, roots)| {
        let by_query = get(format!("{path} by query"), format!("{path}?format=raw"));
        let by_accept = get(format!("{path} by Accept"), &path).with("Accept", MEDIA_TYPE);
        [by_query, by_accept]
            .map(|case| whole(case, cid).header("x-ipfs-path", is(&path)).header("x-ipfs-roots", is(&roots)))
    });
    by_both.chain(others()).collect()
}

fn whole(case: Case, cid: &str) -> Case {
    let bytes = block(cid);
    case.status(200)
        .header("content-type", is(MEDIA_TYPE))
        .header("content-length", is(bytes.len().to_string()))
        .header("content-disposition", has(format!("attachment; filename=\"{cid}.bin\"")))
        .header("x-content-type-options", is("nosniff"))
        .header("etag", is(format!("\"{cid}.raw\"")))
        .header("cache-control", is(FOR_EVER))
        .bytes(bytes)
}

fn others() -> Vec<Case> {
    let dir = format!("/ipfs/{}?format=raw", RAW[1]);
    let file = format!("/ipfs/{}", RAW[2]);
    let part = |range: &str| get(format!("the part {range}"), &dir).with("Range", range);
    vec![
        part("bytes=6-16")
            .status(206)
            .header("content-type", is(MEDIA_TYPE))
            .header("content-range", is("bytes 6-16/57"))
            .bytes(block(RAW[1]).slice(6..17)),
        part("bytes=-7").status(206).header("content-range", is("bytes 50-56/57")).bytes(block(RAW[1]).slice(50..)),
        part("bytes=57-").status(416).header("content-range", is("bytes */57")),
        part("bytes=0-5,10-15").either([
            |case| case.status(200).header("content-type", is(MEDIA_TYPE)).bytes(block(RAW[1])),
            |case| case.status(206).header("content-range", is("bytes 0-5/57")).bytes(block(RAW[1]).slice(..6)),
            |case| case.status(206).header("content-type", has("multipart/byteranges")).body(page([MEDIA_TYPE])),
        ]),
        get("another name", format!("{file}?filename=foobar.bin"))
            .with("Accept", MEDIA_TYPE)
            .status(200)
            .header("content-disposition", has("attachment; filename=\"foobar.bin\"")),
        get("the query beats Accept", format!("{file}?format=raw"))
            .with("Accept", "application/vnd.ipld.car")
            .status(200)
            .header("content-type", is(MEDIA_TYPE)),
        get("the client has it", format!("{file}?format=raw"))
            .with("If-None-Match", format!("\"{}.raw\"", RAW[2]))
            .status(304)
            .body(Body::Empty),
        get("the file's tag is not the block's", format!("{file}?format=raw"))
            .with("If-None-Match", format!("\"{}\"", RAW[2]))
            .status(200),
        get("a block of a codec that nothing is known of", "/ipfs/bafkqabtimvwgy3yk?format=raw")
            .status(200)
            .bytes("hello\n"),
        get("a web worker may read it", &dir).status(200).header("access-control-allow-origin", is("*")),
        get("what asks for anything gets the file", &file)
            .with("Accept", "*/*")
            .status(200)
            .header("content-type", Text::Lacks(MEDIA_TYPE.to_owned())),
    ]
}
