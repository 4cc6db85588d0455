//! What a page loads is in the local store once a browser has navigated to the page, without having been requested.

use crate::support::causeway::{Causeway, Launch};
use crate::support::kubo::Kubo;
use crate::support::{Answer, client};
use std::fs;
use tempfile::TempDir;

/// The files of the site: how many images, and the number of all blocks: the root, the page, the style, the folder and
/// the images.
const IMAGES: usize = 40;
const BLOCKS: u64 = 4 + IMAGES as u64;

/// Imports a site with a style, a folder of images, and a file that the page links to.
fn import(kubo: &Kubo) -> String {
    let folder = TempDir::new().expect("the temporary folder is writable");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("the folder is writable");
    fs::create_dir(folder.path().join("images")).expect("the folder is writable");
    let images: String = (0..IMAGES).map(|index| format!("<img src=\"images/{index}.svg\">\n")).collect();
    let head = "<!doctype html><title>Page</title><link rel=stylesheet href=style.css>";
    write("index.html", &format!("{head}{images}<a href=linked.html>Linked</a>"));
    write("style.css", "p { color: teal }");
    write("linked.html", "<!doctype html><title>Linked</title>");
    for index in 0..IMAGES {
        write(
            &format!("images/{index}.svg"),
            &format!("<svg xmlns=\"http://www.w3.org/2000/svg\"><!-- {index} --></svg>"),
        );
    }
    kubo.add_folder(folder.path(), &["--cid-version=1"])
}

async fn send(causeway: &Causeway, path: &str, header: (&str, &str)) -> Answer {
    let response = client().get(causeway.url(path)).header(header.0, header.1).send().await.expect("a response");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Answer { status, headers, body: response.bytes().await.expect("a body") }
}

/// The statuses of the page's files, of which nothing is fetched for this.
async fn stored(causeway: &Causeway, root: &str) -> Vec<u16> {
    let mut statuses = Vec::new();
    let images = (0..IMAGES).map(|index| format!("images/{index}.svg"));
    for name in images.chain(["style.css".to_owned(), "linked.html".to_owned()]) {
        let answer = send(causeway, &format!("/ipfs/{root}/{name}"), ("cache-control", "only-if-cached")).await;
        statuses.push(answer.status);
    }
    statuses
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pages_subresources_are_stored_before_they_are_requested() {
    let kubo = Kubo::start().await;
    let root = import(&kubo);
    let page = format!("/ipfs/{root}/");
    let browser = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");

    let dir = TempDir::new().expect("the temporary folder is writable");
    let causeway = Launch::new(dir.path()).peering(kubo.tcp()).start().await;
    causeway.until_connected().await;
    assert_eq!(send(&causeway, &page, browser).await.status, 200);
    let fetched = IMAGES as u64 + 1;
    let metric = "causeway_http_prefetch_paths_total{result=\"fetched\"}";
    let metrics = causeway.metrics_when(|metrics| metrics.sample(metric) == fetched).await;
    assert_eq!(metrics.hits("network"), BLOCKS);
    let mut expected = vec![200; IMAGES + 1];
    expected.push(412);
    assert_eq!(stored(&causeway, &root).await, expected, "all but what the page only links to");
    causeway.stop().await;

    let dir = TempDir::new().expect("the temporary folder is writable");
    let off = Launch::new(dir.path()).peering(kubo.tcp()).set("CAUSEWAY_HTTP_PREFETCH_SUBRESOURCES", false);
    let causeway = off.start().await;
    causeway.until_connected().await;
    assert_eq!(send(&causeway, &page, browser).await.status, 200);
    assert_eq!(stored(&causeway, &root).await, vec![412; IMAGES + 2]);
    let metrics = causeway.metrics().await;
    assert_eq!((metrics.hits("network"), metrics.sample("causeway_http_prefetch_pages_total")), (2, 0));
    causeway.stop().await;
}
