//! The content of most scenarios: files of different sizes, a site and a huge directory.

use super::kubo::Kubo;
use super::noise::Noise;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Empty, one byte, exactly one default chunk, a few chunks, and two levels of links.
const SIZES: [usize; 5] = [0, 1, 256 * KIB, MIB, 100 * MIB];
const HAMT_ENTRIES: usize = 20_000;
/// Different pages in the huge directory: enough to notice a wrong one, few enough to import fast.
const HAMT_PAGES: usize = 64;

/// An item to GET.
pub struct Item {
    pub name: String,
    /// The root CID, which has to be provided in the DHT.
    pub root: String,
    /// The path on the gateway.
    pub path: String,
    pub body: Vec<u8>,
    /// The required prefix of the Content-Type; empty for any.
    pub content_type: &'static str,
}

/// Imports everything.
pub fn import(kubo: &Kubo) -> Vec<Item> {
    let mut items: Vec<Item> = SIZES.iter().flat_map(|len| files(kubo, *len)).collect();
    items.extend(site(kubo));
    items.extend(hamt(kubo));
    items
}

/// A file of one size, as CIDv0 (leaves wrapped in dag-pb) and as CIDv1 (raw leaves), with different content.
pub fn files(kubo: &Kubo, len: usize) -> [Item; 2] {
    let versions: [(u64, &[&str]); 2] = [(0, &["--cid-version=0"]), (1, &["--cid-version=1", "--raw-leaves"])];
    versions.map(|(version, flags)| {
        let body = Noise::bytes(len as u64 * 2 + version, len);
        let root = kubo.add(&body[..], flags);
        assert_eq!(root.starts_with("Qm"), version == 0, "{root} is to be a CIDv{version}");
        Item { name: format!("{len} B, CIDv{version}"), path: format!("/ipfs/{root}"), root, body, content_type: "" }
    })
}

/// A directory with an index page, an asset and a page further down.
pub fn site(kubo: &Kubo) -> Vec<Item> {
    let index = "<!doctype html><title>Index</title><link rel=stylesheet href=style.css><p>Hello.";
    let pages: [(&str, &str, &str); 3] = [
        ("index.html", index, "text/html"),
        ("style.css", "p { color: teal }\n", "text/css"),
        ("deep/down/page.html", "<!doctype html><title>Deep</title><p>Far down.", "text/html"),
    ];
    let folder = folder();
    for (path, text, _) in pages {
        write(&folder.path().join(path), text);
    }
    let root = kubo.add_folder(folder.path(), &["--cid-version=1"]);
    let item = |path: &str, text: &str, content_type| Item {
        name: format!("site/{path}"),
        root: root.clone(),
        path: format!("/ipfs/{root}/{path}"),
        body: text.into(),
        content_type,
    };
    let mut items = vec![item("", index, "text/html")];
    items.extend(pages.map(|(path, text, content_type)| item(path, text, content_type)));
    items
}

/// Pages in a directory that is too big for one block.
pub fn hamt(kubo: &Kubo) -> Vec<Item> {
    let folder = folder();
    for index in 0..HAMT_ENTRIES {
        write(&folder.path().join(hamt_name(index)), &hamt_page(index));
    }
    let root = kubo.add_folder(folder.path(), &["--cid-version=1"]);
    let item = |index| Item {
        name: format!("hamt/{}", hamt_name(index)),
        root: root.clone(),
        path: format!("/ipfs/{root}/{}", hamt_name(index)),
        body: hamt_page(index).into(),
        content_type: "text/html",
    };
    vec![item(12_345), item(HAMT_ENTRIES - 1)]
}

fn hamt_name(index: usize) -> String {
    format!("page-{index:05}.html")
}

fn hamt_page(index: usize) -> String {
    format!("<!doctype html><title>Page</title><p>One of {HAMT_PAGES}: {}.", index % HAMT_PAGES)
}

fn folder() -> TempDir {
    TempDir::with_prefix("causeway-corpus-").expect("the temporary folder is writable")
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("it lies in the folder")).expect("the folder is writable");
    fs::write(path, text).expect("the folder is writable");
}
