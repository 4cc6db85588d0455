//! Packed files: `causeway add --packed` and `POST /upload?packed=true`, read over HTTP, by a stock Kubo and by `zstd`
//! (`scripts/install-missing test` installs both).

use crate::support::causeway::{Causeway, Launch, TOKEN};
use crate::support::kubo::Kubo;
use crate::support::noise::Noise;
use crate::support::{assert_same_bytes, client, eventually};
use content::packed::SeekTable;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);

fn folder() -> TempDir {
    TempDir::new().expect("the temporary folder is writable")
}

/// Lines of text; those of different seeds differ.
fn text(seed: u64, bytes: usize) -> Vec<u8> {
    let line = |line: u64| format!("{seed};{line};{:x};a line of a table\n", (line + seed).wrapping_mul(0x9e37_79b9));
    let mut text: Vec<u8> = Vec::with_capacity(bytes + 100);
    for number in 0.. {
        if text.len() >= bytes {
            break;
        }
        text.extend_from_slice(line(number).as_bytes());
    }
    text.truncate(bytes);
    text
}

/// What `zstd --decompress` makes of bytes.
fn unpacked(dir: &Path, bytes: &[u8]) -> Vec<u8> {
    let file = dir.join("packed.zst");
    fs::write(&file, bytes).expect("the folder is ours");
    let output = Command::new("zstd").args(["--decompress", "--stdout"]).arg(&file).stderr(Stdio::piped()).output();
    let output = output.unwrap_or_else(|error| panic!("zstd: {error}: scripts/install-missing test"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The three CIDs of a packed file.
struct Cids {
    plain: String,
    zstd: String,
    packed: String,
}

impl Cids {
    fn of(line: &str) -> Self {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let cid = |key: &str| line[key].as_str().unwrap_or_else(|| panic!("no {key} in {line}")).to_owned();
        Self { plain: cid("cid"), zstd: cid("zstd"), packed: cid("packed") }
    }
}

fn file(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, bytes).expect("the folder is ours");
    path
}

/// GETs a path with these headers: the status, the headers and the body as it was sent.
async fn get(node: &Causeway, path: &str, headers: &[(&str, &str)]) -> (u16, reqwest::header::HeaderMap, bytes::Bytes) {
    let request = client().get(node.url(path)).timeout(TIMEOUT);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let response = request.send().await.expect("is answered");
    (response.status().as_u16(), response.headers().clone(), response.bytes().await.expect("is complete"))
}

/// Checks every way to read a packed file over HTTP.
async fn expect(node: &Causeway, dir: &Path, cids: &Cids, text: &[u8]) -> bytes::Bytes {
    let zst = node.get(&format!("/ipfs/{}", cids.zstd)).await;
    assert_eq!(zst.status, 200, "{}", zst.text());
    assert_same_bytes("zstd -d", &unpacked(dir, &zst.body), text);
    let (table, table_bytes) = SeekTable::read_tail(&zst.body).expect("a seek table");
    assert_eq!(table.plain_bytes(), text.len() as u64);
    let frames = &zst.body[..zst.body.len() - table_bytes];
    for cid in [&cids.plain, &cids.packed] {
        let path = format!("/ipfs/{cid}");
        let answer = node.expect(&path, text).await;
        // Files that differ only in their envelopes share a zstd file.
        let etag = answer.header("etag").to_owned();
        assert!(etag == format!("\"{}\"", cids.plain) || *cid == cids.packed, "{etag}");
        for (start, end) in [(0, 0), (300_000, 800_000), (text.len() - 70_000, text.len() - 1)] {
            let (status, _, part) = get(node, &path, &[("range", &format!("bytes={start}-{end}"))]).await;
            assert_eq!(status, 206);
            assert_same_bytes(&path, &part, &text[start..=end]);
        }
        let (status, headers, body) = get(node, &path, &[("accept-encoding", "zstd")]).await;
        assert_eq!((status, &headers["content-encoding"]), (200, &"zstd".parse().expect("a header")));
        assert_same_bytes("the frames of the zstd file", &body, frames);
        assert_eq!(get(node, &path, &[("if-none-match", &etag)]).await.0, 304);
    }
    zst.body
}

#[tokio::test(flavor = "multi_thread")]
async fn kubo_reads_both_files_of_a_packed_file() {
    let (content, data) = (folder(), folder());
    let kubo = Kubo::start().await;
    let launch = Launch::new(data.path()).peering(kubo.tcp());
    let text = text(1, 3_000_000);
    let path = file(content.path(), "table.csv", &text);
    let path = path.to_str().expect("text");
    let variants: [&[&str]; 3] =
        [&[], &["--cid-version=1"], &["--cid-version=1", "--raw-leaves=false", "--chunker=rabin"]];
    let mut added = Vec::new();
    for flags in variants {
        let line = launch.run(&[&["add", "--packed", "--json"], flags, &[path]].concat()).expect("adds");
        let cids = Cids::of(&line);
        let hashed = launch.run(&[&["add", "--packed", "--json", "-n"], flags, &[path]].concat()).expect("hashes");
        assert_eq!(hashed, line);
        // Without --pin, Kubo does not keep what it has added.
        assert_eq!(kubo.add(&text[..], &[&["--only-hash"], flags].concat()), cids.plain, "{flags:?}");
        added.push(cids);
    }
    let listed = launch.run(&["pin", "ls", "--json"]).expect("lists");
    let causeway = launch.start().await;
    eventually("the gateway connects to Kubo", TIMEOUT, async || {
        if kubo.is_connected_to(causeway.peer_id()).await { Ok(()) } else { Err("it is not connected") }
    })
    .await;
    for cids in &added {
        assert!(listed.contains(&cids.zstd) && listed.contains(&cids.packed), "{listed}");
        let zst = expect(&causeway, content.path(), cids, &text).await;
        // Kubo verifies each block that it receives.
        assert_same_bytes("the zstd file in Kubo", &kubo.cat(&cids.zstd).await, &zst);
        assert_same_bytes("the plain file in Kubo", &kubo.cat(&cids.plain).await, &text);
        let (status, _, car) = get(&causeway, &format!("/ipfs/{}?format=car", cids.plain), &[]).await;
        assert_eq!(status, 200);
        let car = file(content.path(), "plain.car", &car);
        kubo.import(&car);
    }
    causeway.assert_healthy().await;
    causeway.stop().await;
    kubo.stop().await;
}

/// A gateway that has not pinned the file reads it from the zstd file, which it fetches from another node.
#[tokio::test(flavor = "multi_thread")]
async fn the_packed_cid_is_read_from_another_node() {
    let (content, data, other) = (folder(), folder(), folder());
    let text = text(3, 3_000_000);
    let path = file(content.path(), "table.csv", &text);
    let launch = Launch::new(data.path());
    let line = launch.run(&["add", "--packed", "--json", path.to_str().expect("text")]).expect("adds");
    let cids = Cids::of(&line);
    let source = launch.start().await;
    let reader = Launch::new(other.path()).peering(source.tcp()).start().await;
    reader.until_connected().await;
    let path = format!("/ipfs/{}", cids.packed);
    for _ in 0..2 {
        let (status, _, part) = get(&reader, &path, &[("range", "bytes=1500000-1565535")]).await;
        assert_eq!(status, 206, "{}", String::from_utf8_lossy(&part));
        assert_same_bytes("a range", &part, &text[1_500_000..=1_565_535]);
    }
    let answer = reader.expect(&path, &text).await;
    assert_eq!(answer.header("etag"), format!("\"{}\"", cids.packed));
    assert!(answer.header("content-type").starts_with("text/plain"), "{}", answer.header("content-type"));
    let (status, headers, parts) = get(&reader, &path, &[("range", "bytes=0-9,2000000-2000009")]).await;
    assert_eq!(status, 206);
    assert!(headers["content-type"].to_str().is_ok_and(|kind| kind.starts_with("multipart/byteranges")));
    assert!(parts.windows(10).any(|window| window == &text[2_000_000..=2_000_009]));
    // A zstd file without a table is no packed file, and is served as what it is.
    let no_table = zstd_of(content.path(), &text);
    let other = file(content.path(), "other.zst", &no_table);
    let cid = launch.run(&["add", "-Q", "--cid-version=1", other.to_str().expect("text")]).expect("adds");
    let packed = content::packed::packed_cid(&cid.parse().expect("a CID"));
    let (status, _, answer) = get(&source, &format!("/ipfs/{packed}"), &[]).await;
    assert_eq!(status, 502);
    assert!(String::from_utf8_lossy(&answer).contains("zstd -d"), "it says what to do");
    source.expect(&format!("/ipfs/{cid}"), &no_table).await;
    reader.stop().await;
    source.stop().await;
}

/// What `zstd` makes of bytes.
fn zstd_of(dir: &Path, bytes: &[u8]) -> Vec<u8> {
    let path = file(dir, "to-pack", bytes);
    let output = Command::new("zstd").args(["--stdout"]).arg(path).stderr(Stdio::piped()).output();
    let output = output.unwrap_or_else(|error| panic!("zstd: {error}: scripts/install-missing test"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

async fn upload(node: &Causeway, query: &str, media_type: &str, body: Vec<u8>) -> (u16, Value) {
    let url = format!("{}/upload?{query}", node.admin_url());
    let request = client().post(url).timeout(TIMEOUT).bearer_auth(TOKEN);
    let response = request.header("content-type", media_type).body(body).send().await.expect("is answered");
    let status = response.status().as_u16();
    (status, serde_json::from_slice(&response.bytes().await.expect("an answer")).unwrap_or_default())
}

/// A running gateway packs what its commands and clients send; one pin has both files.
#[tokio::test(flavor = "multi_thread")]
async fn uploads_are_packed_and_unpinned_as_one() {
    let (content, data) = (folder(), folder());
    let launch = Launch::new(data.path());
    let causeway = launch.start().await;
    let texts = [text(1, 2_000_000), text(2, 1_000_000)];
    let path = file(content.path(), "table.csv", &texts[0]);
    let line = launch.run(&["add", "--packed", "--json", "--name", "a table", path.to_str().expect("text")]);
    let by_command = Cids::of(&line.expect("adds"));
    expect(&causeway, content.path(), &by_command, &texts[0]).await;
    let (status, answer) = upload(&causeway, "packed=true&name=t.csv", "text/csv", texts[1].clone()).await;
    assert_eq!(status, 200, "{answer}");
    let root = &answer["roots"][0];
    let cid = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    let by_upload =
        Cids { plain: cid(&root["cid"]), zstd: cid(&root["packed"]["zstd"]), packed: cid(&root["packed"]["cid"]) };
    let zst = expect(&causeway, content.path(), &by_upload, &texts[1]).await;
    assert_eq!(root["packed"]["bytes"], zst.len());

    let (_, pins) = causeway.admin("GET", "/psa/pins?name=a%20table", None).await;
    assert_eq!(pins["results"][0]["info"]["zstd"], by_command.zstd.as_str(), "{pins}");
    assert_eq!(pins["results"][0]["info"]["packed"], by_command.packed.as_str(), "{pins}");
    assert!(launch.run(&["pin", "ls"]).expect("lists").contains(", packed"));
    for cid in [&by_command.plain, &by_command.zstd, &by_command.packed] {
        let explained = launch.run(&["explain", "--json", cid]).expect("explains");
        let explained: Value = serde_json::from_str(&explained).expect("JSON");
        assert_eq!(explained["packed"]["plain"], by_command.plain.as_str(), "{explained}");
        assert_eq!(explained["packed"]["zstd"], by_command.zstd.as_str(), "{explained}");
        assert_eq!(explained["answer"]["status"], 200, "{explained}");
        assert!(launch.run(&["explain", cid]).expect("explains").contains(&by_command.packed));
    }

    // The mapping goes with the pin. Blocks that are in memory may stay in the cache for a while.
    launch.run(&["pin", "rm", &by_command.plain]).expect("unpins");
    let explain = format!("/api/v1/explain?path=/ipfs/{}", by_command.packed);
    eventually("the packed file is unpinned", TIMEOUT, async || {
        let (status, answer) = causeway.admin("GET", &explain, None).await;
        assert_eq!(status, 200, "{answer}");
        if answer["packed"].is_null() { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
    expect(&causeway, content.path(), &by_upload, &texts[1]).await;
    causeway.stop().await;
    let figures = launch.run(&["store", "check"]).expect("is clean");
    assert!(!figures.is_empty());
    let causeway = launch.start().await;
    let (status, answer) = causeway.admin("GET", &explain, None).await;
    assert_eq!((status, answer["packed"].is_null()), (200, true), "{answer}");
    expect(&causeway, content.path(), &by_upload, &texts[1]).await;
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_packed_is_said() {
    let (content, data) = (folder(), folder());
    let launch = Launch::new(data.path());
    let noise = Noise::bytes(7, 1_000_000);
    let path = file(content.path(), "noise.bin", &noise);
    let path = path.to_str().expect("text");
    let line = launch.run(&["add", "--packed", "--json", path]).expect("is added");
    let line: Value = serde_json::from_str(&line).expect("JSON");
    assert!(line["packed"].is_null() && line["note"].as_str().is_some_and(|note| note.contains("plain")), "{line}");
    let folder_error = launch.run(&["add", "--packed", content.path().to_str().expect("text")]).expect_err("a folder");
    assert!(folder_error.contains("is not a file"), "{folder_error}");
    let chunks = launch.run(&["add", "--packed", "-s", "size-2000000", path]).expect_err("large chunks");
    assert!(chunks.contains("size-1048576"), "{chunks}");
    let causeway = launch.start().await;
    causeway.expect(&format!("/ipfs/{}", line["cid"].as_str().expect("a CID")), &noise).await;
    let (status, answer) = upload(&causeway, "packed=true", "application/octet-stream", noise.clone()).await;
    assert_eq!((status, &answer["roots"][0]["packed"]), (200, &Value::Null), "{answer}");
    assert!(answer["roots"][0]["note"].is_string(), "{answer}");
    let table = [
        ("packed=true&wrap=true", "text/plain", "single file"),
        ("packed=true", "application/x-tar", "single file"),
        ("packed=true", "application/vnd.ipld.car", "single file"),
        ("packed=true&chunker=size-2000000", "text/plain", "size-1048576"),
    ];
    for (query, media_type, words) in table {
        let (status, answer) = upload(&causeway, query, media_type, b"text".to_vec()).await;
        assert_eq!(status, 400, "{query}: {answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(words)), "{query}: {answer}");
    }
    causeway.stop().await;
    let data = folder();
    let causeway = Launch::new(data.path()).set("CAUSEWAY_CACHE_STORE", "memory").start().await;
    let (status, answer) = upload(&causeway, "packed=true", "text/plain", text(1, 100_000)).await;
    assert!(status == 400 && answer["error"].as_str().is_some_and(|error| error.contains("rocksdb")), "{answer}");
    causeway.stop().await;
}
