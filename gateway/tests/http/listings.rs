//! Listings: pages, formats, and names of every kind.

use crate::dag::{directory, directory_of_bytes, raw, sharded};
use crate::site::{PATIENCE, Setup, Site, header};
use crate::upstream::FakeNetwork;
use content::scope::DagScope;
use content::{Block, Cid};
use futures::StreamExt as _;
use serde_json::Value;
use std::collections::HashSet;
use std::sync::Arc;

fn names(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("n{number:06}").into_bytes()).collect()
}

fn plain(names: &[Vec<u8>], entry: &Block) -> Block {
    directory_of_bytes(&names.iter().map(|name| (name.as_slice(), entry)).collect::<Vec<_>>())
}

/// A site whose pages have `entries_max` entries.
async fn site_of(blocks: &[Block], entries_max: usize) -> Site {
    let mut setup = Setup::new(&blocks.iter().collect::<Vec<_>>());
    setup.limits.listing_entries_max = entries_max;
    setup.start().await
}

/// A site with two directories of the same names, a plain one and a sharded one, and their CIDs.
async fn site_of_both(names: &[Vec<u8>], entry: &Block, entries_max: usize) -> (Site, [Cid; 2]) {
    let plain = plain(names, entry);
    let mut blocks = sharded(names, entry);
    let roots = [*plain.cid(), *blocks[blocks.len() - 1].cid()];
    blocks.extend([plain, entry.clone()]);
    (site_of(&blocks, entries_max).await, roots)
}

/// The names on an HTML page, as written there, and the URL of the next page.
fn read_html(path: &str, html: &str) -> (Vec<String>, Option<String>) {
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"), "{html}");
    let entries = html.split("<li>").skip(1).map(|row| {
        let name = row.split_once("<a href=\"").and_then(|(_, link)| link.split_once('>')).expect("a link").1;
        name.split_once("</a>").expect("an end").0.to_owned()
    });
    let next = html.split_once("rel=\"next\" href=\"").map(|(_, rest)| rest.split_once('"').expect("an end").0);
    (entries.collect(), next.map(|query| format!("{path}{query}")))
}

/// The same for a JSON page.
fn read_json(json: &str) -> (Vec<String>, Option<String>) {
    let page: Value = serde_json::from_str(json).expect("JSON");
    let names = page["entries"].as_array().expect("a list").iter().map(|entry| entry["name"].as_str().expect("text"));
    (names.map(str::to_owned).collect(), page.get("next").map(|next| next.as_str().expect("text").to_owned()))
}

/// All pages of a listing.
async fn pages(site: &Site, path: &str, json: bool) -> Vec<Vec<String>> {
    let mut pages = Vec::new();
    let mut next = Some(if json { format!("{path}?format=json") } else { path.to_owned() });
    while let Some(address) = next {
        let response = site.get(&address).await;
        assert_eq!(response.status(), 200, "{address}");
        let text = response.text().await.expect("text");
        let (entries, following) = if json { read_json(&text) } else { read_html(path, &text) };
        pages.push(entries);
        next = following;
        assert!(pages.len() < 1000, "the pages end: {address}");
    }
    pages
}

#[tokio::test]
async fn pages_have_each_entry_once() {
    let leaf = raw("x");
    // A few entries, exactly one page, a chunk of rows and exactly one page, and a partial page.
    for (count, entries_max) in [(5, 7), (7, 7), (14, 7), (1000, 7), (1000, 300), (256, 128), (256, 256), (0, 7)] {
        let names = names(count);
        let plain = plain(&names, &leaf);
        let mut blocks = sharded(&names, &leaf);
        let sharded = blocks[blocks.len() - 1].clone();
        blocks.extend([plain.clone(), leaf.clone()]);
        let site = site_of(&blocks, entries_max).await;
        let expected: Vec<String> = names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        for (root, is_plain) in [(plain.cid(), true), (sharded.cid(), false)] {
            for json in [false, true] {
                let pages = pages(&site, &format!("/ipfs/{root}/"), json).await;
                assert_eq!(pages.len(), count.div_ceil(entries_max).max(1), "{count} {entries_max} {is_plain} {json}");
                let found = pages.concat();
                assert!(!is_plain || found == expected, "{count} {entries_max}: in stored order");
                let once: HashSet<_> = found.iter().collect();
                assert_eq!((found.len(), once.len()), (count, count), "{count} {entries_max} {is_plain} {json}");
            }
        }
    }
}

#[tokio::test]
async fn a_page_begins_after_an_existing_entry() {
    let leaf = raw("x");
    let names = names(300);
    let (site, roots) = site_of_both(&names, &leaf, 100).await;
    for root in roots {
        for query in ["after=missing", "after=", "format=json&after=n", "format=json&after=%ff"] {
            let response = site.get(&format!("/ipfs/{root}/?{query}")).await;
            assert_eq!(response.status(), 404, "{query}");
            assert!(response.text().await.expect("text").contains("no entry"));
        }
    }
    let last = site.get(&format!("/ipfs/{}/?after=n000299&format=json", roots[0])).await;
    let (entries, next) = read_json(&last.text().await.expect("text"));
    assert_eq!((entries.len(), next), (0, None), "after the last one there is nothing");
}

#[tokio::test]
async fn duplicate_names_do_not_make_endless_pages() {
    let leaf = raw("x");
    let names: Vec<Vec<u8>> =
        (0..10).map(|number| if number < 8 { b"same".to_vec() } else { b"then".to_vec() }).collect();
    let plain = plain(&names, &leaf);
    let site = site_of(&[plain.clone(), leaf], 3).await;
    let pages = pages(&site, &format!("/ipfs/{}/", plain.cid()), true).await;
    assert!(pages.len() < 5 && pages.concat().contains(&"then".to_owned()), "{pages:?}");
}

const STRANGE: [&[u8]; 8] = [b"\"", b"'", b"<script>", b"\n", b"&amp;", b"%41?#", b"\xff\xfe", b"\xf0\x9f\x90\x8b"];

#[tokio::test]
async fn unusual_names_are_escaped_and_link_to_their_entries() {
    let leaf = raw("behind a strange name");
    let names: Vec<Vec<u8>> = STRANGE.iter().map(|name| name.to_vec()).collect();
    let (site, roots) = site_of_both(&names, &leaf, 100).await;
    for root in roots {
        let path = format!("/ipfs/{root}/");
        let html = site.get(&path).await.text().await.expect("text");
        assert!(!html.contains("<script>") && html.contains("&lt;script&gt;"), "{html}");
        let links: Vec<&str> = html.split("<li>").skip(1).map(|row| row.split('"').nth(3).expect("a link")).collect();
        assert_eq!(links.len(), STRANGE.len());
        for link in links {
            assert!(link.starts_with(&path) && !link.contains(['<', '\n', '?', '#', '\'']), "{link}");
            // Names that are not UTF-8 cannot be requested.
            let expected = if link.contains("%EF%BF%BD") { 404 } else { 200 };
            assert_eq!(site.get(&link.replace("&amp;", "&")).await.status(), expected, "{link}");
        }
        let json = site.get(&format!("{path}?format=json")).await.text().await.expect("text");
        let (found, _) = read_json(&json);
        let found: HashSet<String> = found.into_iter().collect();
        let expected = STRANGE.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn pages_may_end_at_unusual_names() {
    let leaf = raw("x");
    let names: Vec<Vec<u8>> = STRANGE.iter().map(|name| name.to_vec()).collect();
    let (site, roots) = site_of_both(&names, &leaf, 1).await;
    for root in roots {
        for json in [false, true] {
            let pages = pages(&site, &format!("/ipfs/{root}/"), json).await;
            assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [1; STRANGE.len()], "{pages:?}");
            assert_eq!(pages.concat().iter().collect::<HashSet<_>>().len(), STRANGE.len());
        }
    }
}

#[tokio::test]
async fn a_page_begins_before_the_last_shard_is_fetched() {
    let leaf = raw("x");
    let blocks = sharded(&names(20_000), &leaf);
    // Shards are written depth first, so the block before the root is the last of the listing.
    let [.., last, root] = &blocks[..] else { panic!("a root and shards") };
    for query in ["", "?format=json"] {
        let network = FakeNetwork::new(&blocks, [last]);
        let mut setup = Setup { upstream: Some(Arc::clone(&network) as _), ..Setup::new(&[root]) };
        setup.limits.listing_entries_max = 100_000;
        let site = setup.start().await;
        let response = site.get(&format!("/ipfs/{}/{query}", root.cid())).await;
        assert_eq!(response.status(), 200);
        let mut body = response.bytes_stream();
        let mut text = Vec::new();
        while text.len() < 10_000 {
            text.extend(body.next().await.expect("more").expect("so far so good"));
        }
        assert!(text.windows(3).any(|three| three == b"n00"), "entries are among the first bytes");
        network.gate.add_permits(1);
        let rest = tokio::time::timeout(PATIENCE, async {
            while let Some(chunk) = body.next().await {
                text.extend(chunk.expect("so far so good"));
            }
        });
        rest.await.expect("in time");
        assert!(text.ends_with(b"</html>\n") || text.ends_with(b"]}\n"));
    }
}

#[tokio::test]
async fn a_page_in_the_middle_of_a_large_directory_reads_few_blocks() {
    let leaf = raw("x");
    let names = names(50_000);
    let blocks = sharded(&names, &leaf);
    let root = &blocks[blocks.len() - 1];
    assert!(blocks.len() > 5000);
    let network = FakeNetwork::new(&blocks, []);
    let mut setup = Setup { upstream: Some(Arc::clone(&network) as _), ..Setup::new(&[]) };
    setup.limits.listing_entries_max = 100;
    let site = setup.start().await;
    for number in [25_000, 1, 49_999] {
        let before = network.asked();
        let path = format!("/ipfs/{}/?format=json&after=n{number:06}", root.cid());
        let response = site.get(&path).await;
        assert_eq!(response.status(), 200);
        let (entries, next) = read_json(&response.text().await.expect("text"));
        assert!(entries.len() == 100 && next.is_some(), "{number}: {}", entries.len());
        let asked = network.asked() - before;
        assert!(asked < 150, "{number}: {asked} of {} blocks", blocks.len());
    }
}

#[tokio::test]
async fn json_listings_have_the_known_fields() {
    let (leaf, folder) = (raw("x"), directory(&[]));
    let root = directory(&[("file \"a\"\n", &leaf), ("folder", &folder)]);
    let site = site_of(&[leaf.clone(), folder.clone(), root.clone()], 100).await;
    // The trailing slash does not matter, nor how the format is requested.
    for (end, accept) in [("/?format=json", "text/html"), ("?format=json", "*/*"), ("/", "application/json")] {
        let response = site.send("GET", &format!("/ipfs/{}{end}", root.cid()), &[("accept", accept)]).await;
        assert_eq!((response.status().as_u16(), header(&response, "content-type")), (200, "application/json"), "{end}");
        assert_eq!(header(&response, "x-content-type-options"), "nosniff");
        assert_eq!(header(&response, "cache-control"), "public, max-age=604800, stale-while-revalidate=2678400");
        assert_eq!(header(&response, "x-ipfs-roots"), root.cid().to_string());
        let page: Value = serde_json::from_str(&response.text().await.expect("text")).expect("JSON");
        let path = format!("/ipfs/{}{}", root.cid(), if end.starts_with('/') { "/" } else { "" });
        let expected = serde_json::json!({
            "cid": root.cid().to_string(),
            "path": path,
            "entries": [
                { "name": "file \"a\"\n", "cid": leaf.cid().to_string(), "size": 1, "type": "file" },
                { "name": "folder", "cid": folder.cid().to_string(), "size": folder.data().len() },
            ],
        });
        assert_eq!(page, expected);
    }
}

#[tokio::test]
async fn listings_have_tags_and_heads() {
    let leaf = raw("x");
    let names = names(300);
    let (site, roots) = site_of_both(&names, &leaf, 100).await;
    for root in roots {
        let mut tags = HashSet::new();
        for query in ["", "?format=json", "?after=n000007", "?format=json&after=n000007"] {
            let path = format!("/ipfs/{root}/{query}");
            let get = site.get(&path).await;
            let head = site.send("HEAD", &path, &[]).await;
            for name in
                ["content-type", "etag", "cache-control", "x-ipfs-roots", "x-ipfs-path", "vary", "accept-ranges"]
            {
                assert!(!header(&get, name).is_empty(), "{name}");
                assert_eq!(header(&get, name), header(&head, name), "{path} {name}");
            }
            assert_eq!((get.status(), head.status()), (200.try_into().expect("ok"), 200.try_into().expect("ok")));
            let tag = header(&get, "etag").to_owned();
            assert!(head.bytes().await.expect("no body").is_empty());
            for (method, condition) in [("GET", tag.clone()), ("HEAD", format!("\"x\", W/{tag}"))] {
                let same = site.send(method, &path, &[("if-none-match", &condition)]).await;
                assert_eq!(same.status(), 304, "{method} {path}");
                assert_eq!(header(&same, "etag"), tag);
                assert!(!header(&same, "cache-control").is_empty());
            }
            let other = site.send("GET", &path, &[("if-none-match", "\"another\"")]).await;
            assert_eq!(other.status(), 200);
            tags.insert((path.contains("json"), tag));
        }
        assert_eq!(tags.len(), 2, "each format has its own: {tags:?}");
    }
}

#[tokio::test]
async fn names_too_long_for_a_url_are_shortened_and_not_linked() {
    let leaf = raw("x");
    let long = vec![b'"'; 100_000];
    let root = directory_of_bytes(&[(long.as_slice(), &leaf), (b"short", &leaf)]);
    let site = site_of(&[root.clone(), leaf], 100).await;
    let path = format!("/ipfs/{}/", root.cid());
    let html = site.get(&path).await.text().await.expect("text");
    assert!(html.len() < 60_000 && html.contains("…") && html.contains(">short<"), "{} bytes", html.len());
    assert_eq!(html.matches("class=\"ipfs-hash\"").count(), 1);
    let (names, next) = read_json(&site.get(&format!("{path}?format=json")).await.text().await.expect("text"));
    assert_eq!((names.len(), next), (2, None));
    assert!(names[0].len() < 5000 && names[1] == "short");
}

#[tokio::test]
async fn entries_are_searched_and_sorted_without_a_script() {
    let leaf = raw("x");
    let names = ["b.txt", "a.txt", "c.png"].map(|name| name.as_bytes().to_vec());
    let (site, roots) = site_of_both(&names, &leaf, 2).await;
    for root in roots {
        let json = async |query: &str| {
            let response = site.get(&format!("/ipfs/{root}/?format=json&{query}")).await;
            read_json(&response.text().await.expect("text"))
        };
        let (mut found, next) = json("search=.TXT").await;
        found.sort();
        assert_eq!((found, next), (vec!["a.txt".to_owned(), "b.txt".to_owned()], None));
        assert_eq!(json("search=.txt&sort=name").await.0, ["a.txt", "b.txt"]);
        assert_eq!(json("search=nothing").await, (Vec::new(), None));
        let (first, next) = json("search=.").await;
        let next = next.expect("two of three fit on a page");
        assert!(next.contains("search=%2E&after="), "{next}");
        let rest = read_json(&site.get(&next).await.text().await.expect("text"));
        assert_eq!((first.len(), rest.0.len(), rest.1), (2, 1, None));
        let html = site.get(&format!("/ipfs/{root}/?sort=size")).await.text().await.expect("text");
        assert!(html.contains("too many to sort") && html.contains("role=\"search\""), "{html}");
    }
}

#[tokio::test]
async fn an_empty_directory_has_a_page() {
    let empty = directory(&[]);
    let site = site_of(std::slice::from_ref(&empty), 10).await;
    let html = site.get(&format!("/ipfs/{}/", empty.cid())).await.text().await.expect("text");
    assert!(html.contains("This folder is empty."), "{html}");
}

#[tokio::test]
async fn the_shards_of_a_directory_are_announced_only_if_it_is_listed() {
    let entry = raw("an entry");
    let shards = sharded(&names(3_000), &entry);
    let many = shards.last().expect("a root");
    let root = directory(&[("many", many)]);
    let network = FakeNetwork::new(shards.iter().chain([&root, &entry]), []);
    let site = Setup { upstream: Some(Arc::clone(&network) as _), ..Setup::new(&[]) }.start().await;
    let path = format!("/ipfs/{}/many", root.cid());
    assert_eq!(site.get(&path).await.status(), 301);
    let said: Vec<DagScope> = network.take_hints().iter().map(|ahead| ahead.scope.scope).collect();
    assert_eq!((said, network.asked()), (vec![DagScope::File; 2], 2), "the directory is no file");
    let listing = site.get(&format!("{path}/?format=json")).await;
    assert_eq!(listing.status(), 200);
    assert!(listing.text().await.is_ok());
    let said = network.take_hints();
    assert!(said.len() > 10, "{said:?}");
    assert!(said.iter().all(|ahead| ahead.root == *many.cid() && ahead.scope.scope == DagScope::Entity));
}
