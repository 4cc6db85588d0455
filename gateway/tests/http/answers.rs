//! Complete responses.

use crate::dag::{cbor, directory, file, noise, raw, symlink};
use crate::site::{Setup, Site, header};
use content::{Block, Cid};
use services::isolation::Isolation;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A site with three files, a page, a nested directory and a symlink; and its parts.
struct Tree {
    site: Site,
    root: Cid,
    text: Block,
    large: Block,
    large_bytes: Vec<u8>,
    sub: Block,
    link: Block,
    cbor: Block,
}

async fn tree() -> Tree {
    let text = raw("hello, world\n");
    let leaves: Vec<Block> = (0..5).map(|seed| raw(noise(seed, 100_000))).collect();
    let large_bytes = leaves.iter().flat_map(|leaf| leaf.data().to_vec()).collect();
    let large = file(&leaves);
    let index = raw("<!doctype html><title>welcome</title>");
    let page = directory(&[("index.html", &index)]);
    let sub = directory(&[("hello.txt", &text), ("nameless", &text)]);
    let link = symlink("sub/hello.txt");
    let cbor = cbor();
    let root = directory(&[
        ("a b&ü.txt", &text),
        ("data.cbor", &cbor),
        ("large.bin", &large),
        ("link", &link),
        ("page", &page),
        ("sub", &sub),
    ]);
    let mut blocks = vec![&text, &large, &index, &page, &sub, &link, &cbor, &root];
    blocks.extend(&leaves);
    let site = Setup { welcome: Some(*page.cid()), ..Setup::new(&blocks) }.start().await;
    Tree { site, root: *root.cid(), text, large, large_bytes, sub, link, cbor }
}

#[tokio::test]
async fn a_file_has_every_header_that_caches_and_browsers_need() {
    let tree = tree().await;
    let path = format!("/ipfs/{}/sub/hello.txt", tree.root);
    for method in ["GET", "GET", "HEAD"] {
        let response = tree.site.send(method, &path, &[]).await;
        assert_eq!(response.status(), 200);
        let expected = [
            ("content-type", "text/plain; charset=utf-8".to_owned()),
            ("content-length", "13".to_owned()),
            ("etag", format!("\"{}\"", tree.text.cid())),
            ("cache-control", "public, max-age=29030400, immutable".to_owned()),
            ("accept-ranges", "bytes".to_owned()),
            ("x-ipfs-path", path.clone()),
            ("x-ipfs-roots", format!("{},{},{}", tree.root, tree.sub.cid(), tree.text.cid())),
            ("x-content-type-options", "nosniff".to_owned()),
            ("vary", "Accept, Accept-Encoding".to_owned()),
            ("access-control-allow-origin", "*".to_owned()),
        ];
        for (name, value) in expected {
            assert_eq!(header(&response, name), value, "{method} {name}");
        }
        assert!(response.headers().contains_key("date"));
        let body = response.bytes().await.expect("a body");
        assert_eq!(body, if method == "GET" { &b"hello, world\n"[..] } else { b"" });
    }
}

#[tokio::test]
async fn a_cached_file_is_answered_from_memory() {
    let tree = tree().await;
    let path = format!("/ipfs/{}/sub/hello.txt", tree.root);
    let counts = || {
        let names = ["causeway_http_path_lookups_total{result=\"hit\"}", "causeway_tier_hits_total{tier=\"disk\"}"];
        names.map(|name| tree.site.metric(name))
    };
    tree.site.get(&path).await;
    let [from_cache, from_disk] = counts();
    assert_eq!((from_cache, from_disk), (0, 3), "the root, the directory and the file");
    tree.site.get(&path).await;
    assert_eq!(counts(), [1, 3], "no resolution, and nothing from the disk");
}

#[tokio::test]
async fn large_files_arrive_whole_and_in_parts() {
    let tree = tree().await;
    let (path, all) = (format!("/ipfs/{}/large.bin", tree.root), &tree.large_bytes);
    let whole = tree.site.get(&path).await;
    assert_eq!(header(&whole, "content-type"), "application/octet-stream");
    assert!(whole.bytes().await.expect("a body") == all[..]);
    let table = [
        ("bytes=0-0", 0..1),
        ("bytes=99999-100000", 99_999..100_001),
        ("bytes=250000-", 250_000..500_000),
        ("bytes=-7", 499_993..500_000),
        ("bytes=0-499999", 0..500_000),
    ];
    for (range, part) in table {
        let response = tree.site.send("GET", &path, &[("range", range)]).await;
        assert_eq!(response.status(), 206, "{range}");
        let expected = format!("bytes {}-{}/500000", part.start, part.end - 1);
        assert_eq!(header(&response, "content-range"), expected);
        assert_eq!(header(&response, "content-length"), part.len().to_string());
        assert!(response.bytes().await.expect("a body") == all[part], "{range}");
    }
    let response = tree.site.send("GET", &path, &[("range", "bytes=500000-")]).await;
    assert_eq!((response.status().as_u16(), header(&response, "content-range")), (416, "bytes */500000"));
    assert_eq!(header(&response, "cache-control"), "no-store");
    several_ranges_are_parts_of_one_body(&tree, &path, all).await;
    let other = [("range", "bytes=0-1"), ("if-range", "\"other\"")];
    assert_eq!(tree.site.send("GET", &path, &other).await.status(), 200);
    let response = tree.site.send("HEAD", &path, &[("range", "bytes=5-9")]).await;
    assert_eq!((response.status().as_u16(), header(&response, "content-length")), (200, "500000"));
}

#[tokio::test]
async fn a_service_worker_cannot_be_registered_at_the_root() {
    let tree = tree().await;
    let worker = [("service-worker", "script")];
    let root = format!("/ipfs/{}", tree.large.cid());
    let response = tree.site.send("GET", &format!("{root}?filename=sw.js"), &worker).await;
    assert_eq!((response.status().as_u16(), header(&response, "cache-control")), (400, "no-store"));
    let inside = format!("/ipfs/{}/large.bin", tree.root);
    assert_eq!(tree.site.send("GET", &inside, &worker).await.status(), 200);
}

/// Across the chunks of the file, and out of order.
async fn several_ranges_are_parts_of_one_body(tree: &Tree, path: &str, all: &[u8]) {
    let asked = "bytes=400000-400009, 0-1, 99990-100020";
    let response = tree.site.send("GET", path, &[("range", asked)]).await;
    assert_eq!(response.status(), 206);
    let content_type = header(&response, "content-type").to_owned();
    let boundary = content_type.strip_prefix("multipart/byteranges; boundary=").expect("a boundary").to_owned();
    let length = response.content_length();
    let body = response.bytes().await.expect("a body");
    assert_eq!(length, Some(body.len() as u64));
    let mut expected = Vec::new();
    for (index, range) in [400_000..400_010, 0..2, 99_990..100_021].into_iter().enumerate() {
        let break_before = if index == 0 { "" } else { "\r\n" };
        let head = format!(
            "{break_before}--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes {}-{}/500000\r\n\r\n",
            range.start,
            range.end - 1
        );
        expected.extend_from_slice(head.as_bytes());
        expected.extend_from_slice(&all[range]);
    }
    expected.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    assert!(body == expected, "{}", String::from_utf8_lossy(&body));
}

#[tokio::test]
async fn conditional_requests_get_304() {
    let tree = tree().await;
    let file = format!("/ipfs/{}/large.bin", tree.root);
    let tag = format!("W/\"x\", \"{}\"", tree.large.cid());
    for tag in [&tag, "*"] {
        let response = tree.site.send("GET", &file, &[("if-none-match", tag), ("range", "bytes=0-1")]).await;
        assert_eq!(response.status(), 304);
        assert_eq!(header(&response, "etag"), format!("\"{}\"", tree.large.cid()));
        assert_eq!(header(&response, "cache-control"), "public, max-age=29030400, immutable");
        assert_eq!(response.content_length().unwrap_or_default(), 0);
    }
    let listing = format!("/ipfs/{}/", tree.root);
    let tag = header(&tree.site.get(&listing).await, "etag").to_owned();
    assert_eq!(tag, format!("\"DirIndex-3_CID-{}\"", tree.root));
    assert_eq!(tree.site.send("GET", &listing, &[("if-none-match", &tag)]).await.status(), 304);
    // The root block of this CID is stored locally, and is not read.
    let (path, tag) = (format!("/ipfs/{}", tree.text.cid()), format!("\"{}\"", tree.text.cid()));
    let look_ups = tree.site.look_ups(&tree.text);
    let response = tree.site.send("GET", &path, &[("if-none-match", &tag)]).await;
    assert_eq!(response.status(), 304);
    assert_eq!(header(&response, "x-ipfs-path"), path);
    assert_eq!(header(&response, "x-ipfs-roots"), tree.text.cid().to_string());
    let raw_tag = format!("\"{}.raw\"", tree.text.cid());
    let raw_path = format!("{path}?format=raw");
    assert_eq!(tree.site.send("GET", &raw_path, &[("if-none-match", &raw_tag)]).await.status(), 304);
    assert_eq!(tree.site.look_ups(&tree.text), look_ups);
    assert_eq!(tree.site.send("GET", &path, &[("if-none-match", &raw_tag)]).await.status(), 200);
    // The content of this CID is not available, so the client cannot have it.
    let unknown = raw("nobody has this");
    let path = format!("/ipfs/{}", unknown.cid());
    for tag in [format!("\"{}\"", unknown.cid()), format!("\"{}.raw\"", unknown.cid()), "*".to_owned()] {
        assert_eq!(tree.site.send("GET", &path, &[("if-none-match", &tag)]).await.status(), 404, "{tag}");
    }
}

#[tokio::test]
async fn false_preconditions_get_412() {
    let tree = tree().await;
    let file = format!("/ipfs/{}/large.bin", tree.root);
    let (own, listing) = (format!("\"{}\"", tree.large.cid()), format!("/ipfs/{}/", tree.root));
    let other = "\"other\"";
    type Row<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], u16);
    let table: [Row<'_>; 10] = [
        ("GET", &file, &[("if-match", &own)], 200),
        ("GET", &file, &[("if-match", "*"), ("range", "bytes=0-1")], 206),
        ("GET", &file, &[("if-match", other)], 412),
        ("HEAD", &file, &[("if-match", other)], 412),
        ("GET", &file, &[("if-match", other), ("range", "bytes=0-1")], 412),
        ("GET", &file, &[("if-match", other), ("range", "bytes=500000-")], 412),
        ("GET", &file, &[("if-match", other), ("if-none-match", &own)], 412),
        ("GET", &file, &[("if-match", &own), ("if-none-match", &own)], 304),
        ("GET", &listing, &[("if-match", other)], 412),
        // Without content there is no match.
        ("GET", "/ipfs/bafkqaaa/none", &[("if-match", other)], 404),
    ];
    for (method, path, headers, expected) in table {
        // Again from the cache.
        for _ in 0..2 {
            let response = tree.site.send(method, path, headers).await;
            assert_eq!(response.status(), expected, "{method} {path} {headers:?}");
        }
    }
}

#[tokio::test]
async fn a_file_has_its_own_format_whatever_is_accepted() {
    let tree = tree().await;
    let path = format!("/ipfs/{}/sub/hello.txt", tree.root);
    for query in ["", "?format=json", "?format=cbor", "?format=html"] {
        for accept in ["application/json, text/plain, */*", "application/json", "application/cbor", "text/html"] {
            let response = tree.site.send("GET", &format!("{path}{query}"), &[("accept", accept)]).await;
            assert_eq!(response.status(), 200, "{query} {accept}");
            assert_eq!(header(&response, "content-type"), "text/plain; charset=utf-8", "{query} {accept}");
            assert_eq!(response.text().await.expect("text"), "hello, world\n");
        }
    }
    // A document has an HTML preview.
    let page = tree.site.get(&format!("/ipfs/{}?format=html", tree.cbor.cid())).await;
    assert_eq!((page.status().as_u16(), header(&page, "content-type")), (200, "text/html; charset=utf-8"));
}

#[tokio::test]
async fn directories_redirect_to_a_slash_and_have_an_index_or_a_listing() {
    let tree = tree().await;
    let page = format!("/ipfs/{}/page", tree.root);
    let response = tree.site.get(&format!("{page}?a=b&c")).await;
    assert_eq!((response.status().as_u16(), header(&response, "location")), (301, format!("{page}/?a=b&c").as_str()));

    let response = tree.site.get(&format!("{page}/")).await;
    assert_eq!((response.status().as_u16(), header(&response, "content-type")), (200, "text/html"));
    assert!(response.text().await.expect("text").contains("welcome"));

    let listing = format!("/ipfs/{}/", tree.root);
    let response = tree.site.get(&listing).await;
    assert_eq!((response.status().as_u16(), header(&response, "content-type")), (200, "text/html; charset=utf-8"));
    assert_eq!(header(&response, "cache-control"), "public, max-age=604800, stale-while-revalidate=2678400");
    assert_eq!(header(&response, "x-ipfs-roots"), tree.root.to_string());
    let html = response.text().await.expect("text");
    let href = format!("href=\"{listing}a%20b&amp;%C3%BC.txt\"");
    for part in [&href, "a b&amp;ü.txt", ">large.bin<", ">sub<", "</html>"] {
        assert!(html.contains(part), "{part} is not in {html}");
    }
    assert!(!html.contains(">..<"), "a root has none above it");
    let named = tree.site.get(&format!("/ipfs/{}/a%20b&%C3%BC.txt", tree.root)).await;
    assert_eq!(named.text().await.expect("text"), "hello, world\n");

    let sub = tree.site.get(&format!("/ipfs/{}/sub/", tree.root)).await.text().await.expect("text");
    assert!(sub.contains(&format!("href=\"/ipfs/{}/sub/..\">..<", tree.root)), "{sub}");
    let head = tree.site.send("HEAD", &listing, &[]).await;
    assert_eq!((head.status().as_u16(), header(&head, "content-type")), (200, "text/html; charset=utf-8"));
}

#[tokio::test]
async fn filename_and_download_are_honoured() {
    let tree = tree().await;
    let path = format!("/ipfs/{}", tree.text.cid());
    let response = tree.site.get(&path).await;
    assert_eq!(
        (header(&response, "content-type"), header(&response, "content-disposition")),
        ("text/plain; charset=utf-8", "")
    );
    let response = tree.site.get(&format!("{path}?filename=style.css")).await;
    assert_eq!(header(&response, "content-type"), "text/css; charset=utf-8");
    assert_eq!(header(&response, "content-disposition"), "inline; filename=\"style.css\"");
    let response = tree.site.get(&format!("{path}?filename=p%C3%A9.png&download=true")).await;
    assert_eq!(header(&response, "content-type"), "image/png");
    let expected = "attachment; filename=\"p_.png\"; filename*=UTF-8''p%C3%A9.png";
    assert_eq!(header(&response, "content-disposition"), expected);
    let response = tree.site.get(&format!("/ipfs/{}/sub/hello.txt?download=true", tree.root)).await;
    assert_eq!(header(&response, "content-disposition"), "attachment; filename=\"hello.txt\"");
}

#[tokio::test]
async fn a_sniffed_media_type_does_not_depend_on_the_range() {
    let requests: [(&str, &[(&str, &str)]); 4] =
        [("HEAD", &[]), ("GET", &[("range", "bytes=7-9")]), ("GET", &[("range", "bytes=0-0")]), ("GET", &[])];
    for (method, headers) in requests {
        // A new gateway each time, so that nothing is cached.
        let page = raw("<!DOCTYPE html>\n<p>Hello");
        let large = file(&[page.clone(), raw(noise(1, 5000))]);
        let site = Setup::new(&[&page, &large, &raw(noise(1, 5000))]).start().await;
        for cid in [page.cid(), large.cid()] {
            let response = site.send(method, &format!("/ipfs/{cid}"), headers).await;
            assert_eq!(header(&response, "content-type"), "text/html", "{method} {headers:?}");
        }
    }
}

#[tokio::test]
async fn raw_blocks_are_sent_unchanged() {
    let tree = tree().await;
    let table: [(String, &[(&str, &str)]); 3] = [
        (format!("/ipfs/{}/large.bin?format=raw", tree.root), &[]),
        (format!("/ipfs/{}", tree.large.cid()), &[("accept", "application/vnd.ipld.raw")]),
        (format!("/ipfs/{}?format=raw", tree.large.cid()), &[("accept", "text/html")]),
    ];
    for (path, headers) in table {
        let response = tree.site.send("GET", &path, headers).await;
        assert_eq!((response.status().as_u16(), header(&response, "content-type")), (200, "application/vnd.ipld.raw"));
        assert_eq!(header(&response, "etag"), format!("\"{}.raw\"", tree.large.cid()));
        let expected = format!("attachment; filename=\"{}.bin\"", tree.large.cid());
        assert_eq!(header(&response, "content-disposition"), expected);
        assert_eq!(response.bytes().await.expect("a body"), *tree.large.data());
    }
    let path = format!("/ipfs/{}?format=raw", tree.cbor.cid());
    assert_eq!(tree.site.get(&path).await.bytes().await.expect("a body"), *tree.cbor.data());
    let path = format!("/ipfs/{}/?format=raw", tree.root);
    assert_eq!(tree.site.get(&path).await.status(), 200, "of a directory as well");
    let path = format!("/ipfs/{}?format=raw", tree.text.cid());
    let part = tree.site.send("GET", &path, &[("range", "bytes=0-4")]).await;
    assert_eq!((part.status().as_u16(), part.text().await.expect("text").as_str()), (206, "hello"));
}

#[tokio::test]
async fn a_symlink_is_served_as_its_target() {
    let tree = tree().await;
    for path in [format!("/ipfs/{}/link", tree.root), format!("/ipfs/{}", tree.link.cid())] {
        let response = tree.site.get(&path).await;
        assert_eq!((response.status().as_u16(), header(&response, "content-type")), (200, "inode/symlink"));
        assert_eq!(response.text().await.expect("text"), "sub/hello.txt");
    }
}

#[tokio::test]
async fn identity_cids_need_no_block() {
    let tree = tree().await;
    let response = tree.site.get("/ipfs/bafkqac3imvwgy3zao5xxe3de").await;
    assert_eq!(response.text().await.expect("text"), "hello world");
}

#[tokio::test]
async fn errors_name_their_cause() {
    let tree = tree().await;
    let root = tree.root;
    let table = [
        ("GET", "/ipfs/hello".to_owned(), 400, "is not a CID"),
        ("GET", "/ipfs/".to_owned(), 400, "is not a CID"),
        ("GET", format!("/ipfs/{root}/%ff"), 400, "UTF-8"),
        ("GET", format!("/ipfs/{root}/%2e%2e%2f%2e%2e%2fetc"), 400, "above its root"),
        ("GET", format!("/ipfs/{root}/nothing"), 404, "no link named \"nothing\""),
        ("GET", format!("/ipfs/{root}/sub/hello.txt/more"), 404, "is not a directory"),
        ("GET", format!("/ipfs/{}", raw("absent").cid()), 404, "is not stored locally"),
        ("GET", format!("/ipfs/{root}/data.cbor?format=dag-json"), 406, "?format=raw"),
        ("GET", format!("/ipfs/{root}/data.cbor/more"), 404, "no link named \"more\""),
        ("GET", format!("/ipfs/{root}?format=zip"), 406, "the format \"zip\" is not supported"),
        ("GET", format!("/ipfs/{root}?format=car&dag-scope=some"), 400, "block, entity and all"),
        ("GET", format!("/ipfs/{root}/?after=nobody"), 404, "no entry"),
        ("GET", format!("/ipfs/{root}?format=ipns-record"), 400, "/ipns/KEY"),
        ("GET", "/ipns/example.org/".to_owned(), 404, "no DNSLink"),
        ("GET", "/ipns/hello".to_owned(), 400, "neither an IPNS key nor a domain"),
        ("GET", "/favicon.ico".to_owned(), 404, "/ipfs/"),
        ("POST", format!("/ipfs/{root}"), 405, "GET, HEAD"),
        ("DELETE", "/".to_owned(), 405, "GET, HEAD"),
        ("GET", format!("/ipfs/{root}?{}", "x".repeat(9000)), 414, "8192 bytes"),
        ("GET", format!("/ipfs/{root}/{}", "a/".repeat(300)), 400, "256 segments"),
    ];
    for (method, path, status, expected_text) in table {
        let response = tree.site.send(method, &path, &[]).await;
        assert_eq!(response.status().as_u16(), status, "{method} {path}");
        assert_eq!(header(&response, "access-control-allow-origin"), "*", "{path}");
        assert_eq!(header(&response, "content-type"), "text/plain; charset=utf-8", "{path}");
        assert!(!header(&response, "cache-control").is_empty(), "{path}");
        let text = response.text().await.expect("text");
        assert!(text.contains(expected_text) && text.len() < 700, "{path}: {text}");
    }
    let response = tree.site.send("GET", "/ipfs/hello", &[("accept", "text/html,*/*;q=0.8")]).await;
    assert_eq!(header(&response, "content-type"), "text/html; charset=utf-8");
    assert!(response.text().await.expect("text").starts_with("<!DOCTYPE html>"));
    let response = tree.site.send("HEAD", "/ipfs/hello", &[]).await;
    assert_eq!(response.status(), 400);
    assert_ne!(header(&response, "content-length"), "0", "HEAD tells the length that GET would have");
    assert_eq!(tree.site.metric("causeway_http_requests_total{method=\"HEAD\",code=\"4xx\"}"), 1);
}

#[tokio::test]
async fn paths_do_not_leave_the_root() {
    // Sent unchanged, since HTTP clients normalise such paths.
    let tree = tree().await;
    for (path, status) in [("../../etc/passwd", "400"), ("%2e%2e/x", "400"), ("sub/../sub/hello.txt", "200")] {
        let request = format!("GET /ipfs/{}/{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", tree.root);
        let (answer, _) = tree.site.exchange(&request).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
}

#[tokio::test]
async fn preflights_health_and_the_landing_page_are_answered() {
    let tree = tree().await;
    let response = tree.site.send("OPTIONS", "/ipfs/anything", &[("origin", "https://example.org")]).await;
    assert_eq!(response.status(), 204);
    for (name, value) in [
        ("access-control-allow-origin", "*"),
        ("access-control-allow-methods", "GET, HEAD, OPTIONS"),
        ("access-control-allow-headers", "Content-Type, If-None-Match, If-Range, Range, User-Agent, X-Requested-With"),
    ] {
        assert_eq!(header(&response, name), value);
    }
    assert!(header(&response, "access-control-expose-headers").contains("X-Ipfs-Roots"));
    for path in ["/healthz", "/readyz"] {
        assert_eq!(tree.site.get(path).await.status(), 200);
    }
    tree.site.health.enter(services::health::Stage::Draining);
    assert_eq!(tree.site.get("/readyz").await.status(), 503);
    let landing = tree.site.get("/").await;
    assert_eq!((landing.status().as_u16(), header(&landing, "content-type")), (200, "text/html; charset=utf-8"));
    let html = landing.text().await.expect("text");
    assert!(html.contains("name=\"uri\"") && html.contains("href=\"/ipfs/"), "{html}");
}

/// A gateway that is cut off from its site refuses content, and answers everything else.
#[tokio::test]
async fn content_is_refused_while_the_gateway_is_cut_off_from_its_site() {
    let file = raw("a file");
    let age = Arc::new(AtomicU64::new(0));
    let shown = Arc::clone(&age);
    let mut setup = Setup::new(&[&file]);
    setup.isolation = Some(Arc::new(Isolation::new(Duration::from_secs(60), move || {
        Duration::from_secs(shown.load(Ordering::SeqCst))
    })));
    let site = setup.start().await;
    let path = format!("/ipfs/{}", file.cid());
    let first = site.get(&path).await;
    let etag = header(&first, "etag").to_owned();
    assert_eq!(first.bytes().await.expect("a body"), "a file");
    for seconds in [60, 61, 0] {
        age.store(seconds, Ordering::SeqCst);
        let status = |answered: u16| if seconds > 60 { 503 } else { answered };
        for (method, path) in [("GET", path.clone()), ("HEAD", path.clone()), ("GET", format!("{path}?format=car"))] {
            let answer = site.send(method, &path, &[]).await;
            assert_eq!(answer.status().as_u16(), status(200), "{method} {path} after {seconds} s");
            let is_refused = answer.headers().get("retry-after").is_some_and(|seconds| seconds == "10");
            assert_eq!(is_refused, seconds > 60);
            assert!(!is_refused || header(&answer, "cache-control") == "no-store");
        }
        let known = site.send("GET", &path, &[("if-none-match", &etag)]).await;
        assert_eq!(known.status().as_u16(), status(304), "what a cache has is not confirmed");
        for path in ["/", "/healthz", "/readyz"] {
            assert_eq!(site.get(path).await.status().as_u16(), 200, "{path}");
        }
    }
}

#[tokio::test]
async fn http_10_responses_have_a_length() {
    let tree = tree().await;
    let listing = format!("GET /ipfs/{}/ HTTP/1.0\r\n\r\n", tree.root);
    let (answer, end) = tree.site.exchange(&listing).await;
    end.expect("an orderly end");
    let text = String::from_utf8(answer).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.0 200") && !head.contains("chunked"), "{head}");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
    assert!(body.ends_with("</html>\n"));

    let (answer, _) = tree.site.exchange(&format!("GET /ipfs/{} HTTP/1.0\r\n\r\n", tree.large.cid())).await;
    assert!(answer.ends_with(&tree.large_bytes[400_000..]));
}

#[tokio::test]
async fn a_page_that_exceeds_the_http_10_buffer_is_rejected() {
    let names: Vec<String> = (0..2000).map(|number| format!("name-{number:04}")).collect();
    let leaf = raw("x");
    let entries: Vec<(&str, &Block)> = names.iter().map(|name| (name.as_str(), &leaf)).collect();
    let root = directory(&entries);
    let mut setup = Setup::new(&[&root, &leaf]);
    setup.limits.http10_buffer_bytes_max = 50_000;
    let site = setup.start().await;
    let (answer, _) = site.exchange(&format!("GET /ipfs/{}/ HTTP/1.0\r\n\r\n", root.cid())).await;
    let text = String::from_utf8_lossy(&answer);
    assert!(text.starts_with("HTTP/1.0 505") && text.contains("HTTP/1.1"), "{text}");
    let html = site.get(&format!("/ipfs/{}/", root.cid())).await.text().await.expect("text");
    assert!(html.contains("name-0000") && html.contains("name-1999") && html.ends_with("</html>\n"));
}
