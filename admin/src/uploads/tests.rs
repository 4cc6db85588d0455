//! Uploads through the routes, into real stores.

use ::api::access::{OPERATOR, Quota};
use ::api::uploads::UploadLine;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request};
use bytes::Bytes;
use cache::memory::{self, MemoryOptions};
use cache::store::BlockStore;
use content::Cid;
use content::importer::Profile;
use content::importer::{Attributes, Importer};
use content::policy::Policy;
use content::stored::coding::BodyEncoder;
use content::{AllowAll, Block, BlockKey, DenyList, Verdict, car, codec, hashes};
use futures::stream::{self, StreamExt as _};
use http_body_util::BodyExt as _;
use serde_json::Value;
use services::access::Principal;
use services::access::authenticator::PrincipalLookup;
use services::pinning::service::Pins;
use services::uploads::request_body::boxed;
use services::uploads::resumable::ResumableUploads;
use services::uploads::*;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tower::ServiceExt as _;

/// The routes for uploads, the components behind them, and the data folder.
pub struct Site {
    pub router: Router,
    pub store: Arc<dyn BlockStore>,
    pub pins: Arc<Pins>,
    pub parts: Arc<ResumableUploads>,
    pub uploads: Uploads,
    pub dir: tempfile::TempDir,
    /// The valid tokens: every token that a test has used, until the test revokes it.
    pub tokens: Tokens,
}

/// The clients, by the IDs of their tokens.
pub type Tokens = Arc<std::sync::Mutex<std::collections::HashMap<String, Principal>>>;

/// The parameters of a test.
pub struct Setup {
    pub policy: Arc<dyn Policy>,
    pub settings: config::Uploads,
}

impl Default for Setup {
    fn default() -> Self {
        Self { policy: Arc::new(AllowAll), settings: config::Uploads::default() }
    }
}

pub fn site(setup: Setup) -> Site {
    let store = memory::open(&MemoryOptions::default()).expect("opens");
    site_at(tempfile::tempdir().expect("a folder"), &store, setup)
}

pub fn site_at(dir: tempfile::TempDir, store: &Arc<dyn BlockStore>, setup: Setup) -> Site {
    let Setup { policy, settings } = setup;
    let pins = Pins::idle(store);
    let limits = UploadLimits::new(&settings, &config::Cache::default());
    let uploads = Uploads::new(store, policy, Arc::clone(&pins), limits, dir.path()).expect("opens");
    let tokens = Tokens::default();
    let known = Arc::clone(&tokens);
    let holders: PrincipalLookup = Arc::new(move |id| match id {
        OPERATOR => Some(Principal::operator()),
        id => known.lock().expect("is sound").get(id).cloned(),
    });
    let parts =
        ResumableUploads::open(uploads.clone(), &dir.path().join("parts"), (&settings).into(), holders).expect("opens");
    let routes = crate::uploads::long_running_routes(uploads.clone())
        .merge(crate::uploads::resumable::long_running_routes(Arc::clone(&parts)));
    let router = routes.split_for_parts().0;
    Site { router, store: Arc::clone(store), pins, parts, uploads, dir, tokens }
}

/// An answer with its body.
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_default().to_owned()
    }

    /// The only root's CID.
    pub fn cid(&self) -> String {
        let json = self.json();
        let roots = json["roots"].as_array().unwrap_or_else(|| panic!("{} {json}", self.status));
        assert_eq!(roots.len(), 1, "{json}");
        roots[0]["cid"].as_str().expect("a CID").to_owned()
    }
}

pub fn bearer(id: &str, bytes_max: Option<u64>) -> Principal {
    Principal { id: id.into(), name: id.into(), quota: Quota { pins_max: None, bytes_max }, ..Principal::operator() }
}

impl Site {
    pub async fn ask(&self, bearer: &Principal, request: axum::http::request::Builder, body: Body) -> Answer {
        self.tokens.lock().expect("is sound").insert(bearer.id.to_string(), bearer.clone());
        let request = request.extension(bearer.clone()).body(body).expect("a request");
        let (head, body) = self.router.clone().oneshot(request).await.expect("answers").into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        Answer { status: head.status.as_u16(), headers: head.headers, body }
    }

    async fn upload(&self, query: &str, media_type: &str, body: impl Into<Body>) -> Answer {
        let request = Request::builder().method(Method::POST).uri(format!("/upload?{query}"));
        let request = if media_type.is_empty() { request } else { request.header("content-type", media_type) };
        self.ask(&Principal::operator(), request, body.into()).await
    }

    async fn pins(&self) -> Vec<String> {
        let pins = self.store.pins().await.expect("lists");
        let mut roots: Vec<_> = pins.iter().map(|pin| pin.root.to_string()).collect();
        roots.sort();
        roots
    }

    async fn has(&self, cid: &str) -> bool {
        let cid = content::cid::parse(cid).expect("a CID");
        self.store.find(&BlockKey::of(&cid).expect("a key")).await.expect("reads").is_some()
    }
}

/// The CID of a directory of files, made in memory.
fn cid_of(profile: &Profile, files: &[(&str, &[u8])]) -> String {
    let importer = Importer::new(profile.clone()).expect("a profile");
    let sink = &mut |_| Ok(());
    let mut tree = importer.tree(Attributes::default());
    let mut files = files.to_vec();
    files.sort();
    for (path, content) in files {
        let mut file = importer.file(Attributes::default());
        file.write(content, sink).expect("writes");
        let part = file.finish(sink).expect("finishes");
        tree.add(path.as_bytes(), &part, sink).expect("adds");
    }
    tree.finish(sink).expect("finishes").cid.to_string()
}

fn file_cid(profile: &Profile, content: &[u8]) -> String {
    let importer = Importer::new(profile.clone()).expect("a profile");
    let mut file = importer.file(Attributes::default());
    file.write(content, &mut |_| Ok(())).expect("writes");
    file.finish(&mut |_| Ok(())).expect("finishes").cid.to_string()
}

pub fn noise(bytes: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// A body in chunks of `piece` bytes, without a known length.
fn in_pieces(bytes: Vec<u8>, piece: usize) -> Body {
    let pieces: Vec<_> = bytes.chunks(piece).map(|piece| Ok::<_, io::Error>(Bytes::copy_from_slice(piece))).collect();
    Body::from_stream(stream::iter(pieces))
}

const BOUNDARY: &str = "multipart/form-data; boundary=XX";

/// A form of parts: the rest of each head after `form-data; name="file"`, and the data.
fn form(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (head, content) in parts {
        body.extend_from_slice(b"--XX\r\nContent-Disposition: form-data; name=\"file\"; ");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(b"\r\n\r\n");
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--XX--\r\n");
    body
}

#[tokio::test]
async fn a_file_has_the_cid_of_ipfs_add() {
    let site = site(Setup::default());
    // What "ipfs add" of Kubo 0.41 prints for these bytes.
    let table = [
        ("", "hello world\n", "QmT78zSuBmuS4z925WZfrqQ1qHaJ56DQaTfyMUF7F8ff5o"),
        ("cid-version=1", "hello world\n", "bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4"),
        ("raw-leaves=true", "hello world\n", "bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4"),
        ("", "", "QmbFMke1KXqnYyBBWxB74N4c5SBnJMVAiMNRcGu6x1AwQH"),
    ];
    for (query, content, expected) in table {
        let answer = site.upload(query, "text/plain", content).await;
        assert_eq!((answer.status, answer.cid().as_str()), (200, expected), "{query} {content:?}");
        let json = answer.json();
        assert_eq!(json["roots"][0]["path"], format!("/ipfs/{expected}"));
        assert_eq!((&json["bytes"], &json["roots"][0]["bytes"]), (&content.len().into(), &content.len().into()));
        assert!(site.has(expected).await && site.pins().await.contains(&expected.to_owned()));
    }
}

#[tokio::test]
async fn large_files_are_imported_from_chunks_of_any_size() {
    let site = site(Setup::default());
    let content = noise(3_000_000, 1);
    for (query, profile, piece) in [
        ("", Profile::default(), 100_000),
        ("profile=unixfs-v1-2025", Profile::UNIXFS_V1_2025, 1 << 20),
        (
            "cid-version=1&chunker=size-1000",
            query::chosen(Profile::default(), Some(content::importer::Version::V1), None, "size-1000".parse().ok()),
            777,
        ),
        ("chunker=rabin", Profile { chunking: "rabin".parse().expect("a chunker"), ..Profile::default() }, 65_536),
        ("chunker=buzhash", Profile { chunking: "buzhash".parse().expect("a chunker"), ..Profile::default() }, 65_536),
    ] {
        let answer = site.upload(query, "", in_pieces(content.clone(), piece)).await;
        assert_eq!(answer.cid(), file_cid(&profile, &content), "{query}");
        assert_eq!(answer.json()["bytes"], 3_000_000);
    }
    let wrapped = site.upload("name=n.bin&wrap=true", "", in_pieces(content.clone(), 10_000)).await;
    assert_eq!(wrapped.cid(), cid_of(&Profile::default(), &[("n.bin", &content)]));
}

#[tokio::test]
async fn a_form_becomes_the_folder_that_a_browser_sends() {
    let site = site(Setup::default());
    let large = noise(600_000, 2);
    let files: [(&str, &[u8]); 4] =
        [("site/index.html", b"<h1>"), ("site/img/a b.png", &large), ("site/img/\u{fc}.txt", b"x"), ("site/z", b"")];
    let heads: Vec<String> = files.iter().map(|(path, _)| format!("filename=\"{path}\"")).collect();
    let parts: Vec<(&str, &[u8])> =
        heads.iter().zip(files).map(|(head, (_, content))| (head.as_str(), content)).collect();
    let within = files.map(|(path, content)| (path.strip_prefix("site/").expect("below"), content));
    let expected = cid_of(&Profile::default(), &within);
    for piece in [1_000, 65_536, 10_000_000] {
        let answer = site.upload("", BOUNDARY, in_pieces(form(&parts), piece)).await;
        assert_eq!((answer.status, answer.cid()), (200, expected.clone()), "{piece}");
        assert_eq!(answer.json()["roots"][0]["name"], "site");
    }
    let mut turned = parts.clone();
    turned.reverse();
    assert_eq!(site.upload("", BOUNDARY, form(&turned)).await.cid(), expected);
    let wrapped = site.upload("wrap=true", BOUNDARY, form(&parts)).await;
    assert_eq!(wrapped.cid(), cid_of(&Profile::default(), &files));
    assert_eq!(wrapped.json()["roots"][0]["name"], Value::Null);
    let several = site.upload("", BOUNDARY, form(&[("filename=b", b"2"), ("filename=a", b"1")])).await.json();
    let names: Vec<_> = several["roots"].as_array().expect("roots").iter().map(|root| root["name"].clone()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[tokio::test]
async fn thousands_of_parts_take_no_more_memory_than_few() {
    let site = site(Setup::default());
    let heads: Vec<String> = (0..5_000).map(|number| format!("filename=\"d/{number}\"")).collect();
    let parts: Vec<(&str, &[u8])> = heads.iter().map(|head| (head.as_str(), head.as_bytes())).collect();
    let answer = site.upload("", BOUNDARY, form(&parts)).await;
    let paths: Vec<String> = (0..5_000).map(|number| number.to_string()).collect();
    let files: Vec<_> = paths.iter().zip(&heads).map(|(path, head)| (path.as_str(), head.as_bytes())).collect();
    assert_eq!(answer.cid(), cid_of(&Profile::default(), &files));
    let few =
        Setup { settings: config::Uploads { entries_max: 100, ..config::Uploads::default() }, ..Setup::default() };
    let answer = self::site(few).upload("", BOUNDARY, form(&parts)).await;
    assert!(answer.status == 400 && answer.error().contains("100 files"), "{}", answer.error());
}

#[tokio::test]
async fn invalid_forms_are_rejected_with_a_message() {
    let site = site(Setup::default());
    let good = form(&[("filename=a", b"content")]);
    let huge = format!("filename=a\r\nX-Filler: {}", "x".repeat(200_000));
    let many = format!("filename=a{}", "\r\nX-Filler: y".repeat(50));
    let preamble = [vec![b'-'; 300_000], good.clone()].concat();
    let table: Vec<(Vec<u8>, &str)> = vec![
        (good[..good.len() - 8].to_vec(), "form"),
        (good[..20].to_vec(), "form"),
        (Vec::new(), "form"),
        (b"--XX--\r\n".to_vec(), "the upload is empty"),
        (form(&[(&huge, b"x")]), "headers"),
        (form(&[(&many, b"x")]), "form"),
        (preamble, "headers"),
        (form(&[("filename=\"../../etc/passwd\"", b"x")]), "leads upwards"),
        (form(&[("filename=\"/etc/passwd\"", b"x")]), "absolute"),
        (form(&[("filename=\"a\0b\"", b"x")]), "form"),
        (form(&[("filename=a", b"1"), ("filename=a", b"2")]), "\"a\""),
        (form(&[("filename=a", b"1"), ("filename=a/b", b"2")]), "\"a\""),
        (form(&[("", b"1")]), "filename"),
        (form(&[("filename=l\r\nContent-Type: application/symlink", b"")]), "has no target"),
        (form(&[("filename=l\r\nContent-Type: application/symlink", &[b'x'; 5_000])]), "4096"),
    ];
    for (body, message) in table {
        for piece in [100, 1_000_000] {
            let shown = String::from_utf8_lossy(&body[..body.len().min(100)]).into_owned();
            let answer = site.upload("", BOUNDARY, in_pieces(body.clone(), piece)).await;
            assert!(
                answer.status == 400 && answer.error().contains(message),
                "{shown}: {} {}",
                answer.status,
                answer.error()
            );
        }
    }
    assert!(site.pins().await.is_empty(), "nothing of them is pinned");
}

#[tokio::test]
async fn parts_of_kubos_clients_are_folders_links_modes_and_times() {
    let site = site(Setup::default());
    let body = form(&[
        ("filename=\"d\"\r\nContent-Type: application/x-directory", b""),
        ("filename=\"d%2Fe+f\"\r\nContent-Type: application/octet-stream", b"x"),
        ("filename=\"d%2Fl\"\r\nContent-Type: application/symlink", b"e f"),
    ]);
    let importer = Importer::new(Profile::default()).expect("a profile");
    let sink = &mut |_| Ok(());
    let mut directory = importer.directory(Attributes::default());
    let mut file = importer.file(Attributes::default());
    file.write(b"x", sink).expect("writes");
    directory.add(b"e f", &file.finish(sink).expect("finishes")).expect("adds");
    directory.add(b"l", &importer.symlink(b"e f", Attributes::default(), sink).expect("short")).expect("adds");
    let expected = directory.finish(sink).expect("finishes").cid.to_string();
    assert_eq!(site.upload("", BOUNDARY, body).await.cid(), expected);

    let timed = b"--XX\r\nContent-Disposition: form-data; name=\"file?mode=0640&mtime=1700000000\"; filename=\"f\"\r\n\r\nx\r\n--XX--";
    let attributes = Attributes { mode: Some(0o640), modified: tree::at(1_700_000_000, 0) };
    let kept = |attributes: Attributes| {
        let mut file = importer.file(attributes);
        file.write(b"x", &mut |_| Ok(())).expect("writes");
        file.finish(&mut |_| Ok(())).expect("finishes").cid.to_string()
    };
    let table = [
        ("", Attributes::default()),
        ("preserve-mode", Attributes { modified: None, ..attributes }),
        ("preserve-mtime", Attributes { mode: None, ..attributes }),
        ("preserve-mode&preserve-mtime", attributes),
    ];
    for (query, attributes) in table {
        assert_eq!(site.upload(query, BOUNDARY, &timed[..]).await.cid(), kept(attributes), "{query}");
    }
}

/// A member of an archive: its path, type, what it links to, its content.
type Member<'a> = (&'a str, tar::EntryType, &'a str, &'a [u8]);

fn tarball(members: &[Member<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, kind, target, content) in members {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(1_700_000_000);
        // Bypasses the checks of the builder.
        let name = &mut header.as_old_mut().name;
        let long = path.len() > name.len();
        if !long {
            name[..path.len()].copy_from_slice(path.as_bytes());
        }
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        if long {
            let mut described = tar::Header::new_gnu();
            described.set_entry_type(tar::EntryType::GNULongName);
            described.as_old_mut().name[..13].copy_from_slice(b"././@LongLink");
            described.set_size(path.len() as u64 + 1);
            described.set_cksum();
            builder.append(&described, [path.as_bytes(), b"\0"].concat().as_slice()).expect("appends");
        }
        header.set_cksum();
        builder.append(&header, *content).expect("appends");
    }
    builder.into_inner().expect("finishes")
}

const FILE: tar::EntryType = tar::EntryType::Regular;
const DIRECTORY: tar::EntryType = tar::EntryType::Directory;
const SYMLINK: tar::EntryType = tar::EntryType::Symlink;
const LINK: tar::EntryType = tar::EntryType::Link;

#[tokio::test]
async fn an_archive_becomes_the_folder_that_it_unpacks_to() {
    let site = site(Setup::default());
    let long = format!("site/{}/{}", "n".repeat(120), "m".repeat(140));
    let within = long.strip_prefix("site/").expect("below").to_owned();
    let large = noise(700_000, 3);
    let archive = tarball(&[
        ("site/", DIRECTORY, "", b""),
        ("site/a", FILE, "", b"old"),
        (&long, FILE, "", &large),
        ("site/b", LINK, "site/a", b""),
        ("site/a", FILE, "", b"new"),
    ]);
    let files: [(&str, &[u8]); 3] = [("a", b"new"), (&within, &large), ("b", b"new")];
    for piece in [512, 1_000, 1 << 20] {
        let answer = site.upload("", "application/x-tar", in_pieces(archive.clone(), piece)).await;
        assert_eq!(answer.cid(), cid_of(&Profile::default(), &files), "{piece}");
        assert_eq!(answer.json()["roots"][0]["name"], "site");
    }
    let dotted = tarball(&[("./", DIRECTORY, "", b""), ("./a", FILE, "", b"1"), ("./d/b", FILE, "", b"2")]);
    let answer = site.upload("", "application/x-tar", dotted).await;
    assert_eq!(answer.cid(), cid_of(&Profile::default(), &[("a", b"1"), ("d/b", b"2")]));
    let linked = tarball(&[("d/l", SYMLINK, "../../etc/passwd", b""), ("d/a", FILE, "", b"1")]);
    assert_eq!(
        site.upload("", "application/x-tar", linked).await.status,
        200,
        "a link may lead anywhere: nobody follows it"
    );
}

#[tokio::test]
async fn invalid_archives_are_rejected_with_a_message() {
    let site = site(Setup::default());
    let good = tarball(&[("a", FILE, "", &[b'x'; 2_000]), ("b", FILE, "", b"y")]);
    let lying = |size: &str| {
        let mut archive = good.clone();
        archive[124..136].copy_from_slice(format!("{size:0>11}\0").as_bytes());
        let sum: u32 = archive[..512]
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
            .sum();
        archive[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive
    };
    let described = |kind: tar::EntryType, bytes: usize| {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(bytes as u64);
        header.set_cksum();
        builder.append(&header, io::Read::take(io::repeat(b'n'), bytes as u64)).expect("appends");
        [builder.into_inner().expect("finishes"), good.clone()].concat()
    };
    let sparse = {
        let mut builder = tar::Builder::new(Vec::new());
        builder
            .append_pax_extensions([("GNU.sparse.major", &b"1"[..]), ("GNU.sparse.realsize", b"1099511627776")])
            .expect("appends");
        let mut header = tar::Header::new_ustar();
        header.set_size(1);
        header.set_path("s").expect("short");
        header.set_cksum();
        builder.append(&header, &b"x"[..]).expect("appends");
        builder.into_inner().expect("finishes")
    };
    let table: Vec<(&str, Vec<u8>, u16, &str)> = vec![
        ("cut in a file", good[..1_000].to_vec(), 400, "truncated inside a file"),
        ("cut in a head", good[..3_000].to_vec(), 400, "TAR"),
        ("cut between members", good[..512 + 2_048].to_vec(), 400, "end mark"),
        ("nothing", Vec::new(), 400, "end mark"),
        ("no members", vec![0; 1_024], 400, "the upload is empty"),
        ("no archive", vec![b'x'; 2_000], 400, "TAR"),
        ("more than there is", lying("77777777777"), 400, "truncated inside a file"),
        ("less than there is", lying("10"), 400, "TAR"),
        ("a name of ten megabytes", described(tar::EntryType::GNULongName, 10_000_000), 400, "description of an entry"),
        ("records of ten megabytes", described(tar::EntryType::XHeader, 10_000_000), 400, "description of an entry"),
        ("holes", sparse, 400, "sparse"),
        ("gzip", vec![0x1f, 0x8b, 8, 0], 415, "gzip"),
        ("upwards", tarball(&[("../a", FILE, "", b"x")]), 400, "upwards"),
        ("upwards within", tarball(&[("a/../../b", FILE, "", b"x")]), 400, "upwards"),
        ("absolute", tarball(&[("/etc/passwd", FILE, "", b"x")]), 400, "absolute"),
        ("a device", tarball(&[("d", tar::EntryType::Char, "", b"")]), 400, "device"),
        ("a pipe", tarball(&[("d", tar::EntryType::Fifo, "", b"")]), 400, "pipe"),
        ("a link to nothing", tarball(&[("l", LINK, "nothing", b"")]), 400, "not a file in the archive"),
        ("a link upwards", tarball(&[("l", LINK, "../a", b"")]), 400, "upwards"),
        ("a symlink to nothing", tarball(&[("l", SYMLINK, "", b"")]), 400, "has no target"),
        ("both", tarball(&[("a", FILE, "", b"x"), ("a/b", FILE, "", b"x")]), 400, "\"a\""),
        ("deep", tarball(&[(&"d/".repeat(300), DIRECTORY, "", b"")]), 400, "deeper"),
    ];
    for (what, archive, status, message) in table {
        for piece in [500, 10_000_000] {
            let answer = site.upload("", "application/x-tar", in_pieces(archive.clone(), piece)).await;
            let told = answer.error();
            assert!(answer.status == status && told.contains(message), "{what}: {} {told}", answer.status);
        }
    }
    assert!(site.pins().await.is_empty(), "nothing of them is pinned");
}

fn block(data: &[u8]) -> Block {
    Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::copy_from_slice(data)).expect("a block")
}

pub fn archive(roots: &[&Block], blocks: &[&Block]) -> Vec<u8> {
    let roots: Vec<_> = roots.iter().map(|block| *block.cid()).collect();
    let sections = blocks.iter().flat_map(|block| <[Bytes; 2]>::from(car::section(block)));
    std::iter::once(car::header(&roots)).chain(sections).collect::<Vec<_>>().concat()
}

#[tokio::test]
async fn a_car_is_pinned_root_by_root() {
    let site = site(Setup::default());
    let [one, two, other] = [&b"one"[..], b"two", b"other"].map(block);
    let car = "application/vnd.ipld.car";
    let answer = site.upload("", car, archive(&[&one, &two, &one], &[&one, &two, &other])).await;
    let json = answer.json();
    let cids: Vec<_> = json["roots"].as_array().expect("roots").iter().map(|root| root["cid"].clone()).collect();
    assert_eq!(cids, [one.cid().to_string(), two.cid().to_string()]);
    assert_eq!((&json["blocks"], &json["bytes"], &json["roots"][0]["bytes"]), (&3.into(), &11.into(), &3.into()));
    assert_eq!(site.pins().await.len(), 2);
    let list = car::roots_block(&[*other.cid()]).expect("a short list");
    let last = site.upload("roots=last&name=n", car, archive(&[], &[&other, &list])).await;
    assert_eq!(last.cid(), other.cid().to_string());
    let absent = block(b"absent");
    let whole = archive(&[&one], &[&one]);
    let table = [
        (archive(&[&absent], &[&one]), "incomplete"),
        (archive(&[], &[&one]), "no roots"),
        (whole[..whole.len() - 1].to_vec(), "middle of a section"),
        (b"no archive".to_vec(), "header"),
    ];
    for (body, message) in table {
        let answer = site.upload("", car, body).await;
        assert!(answer.status == 400 && answer.error().contains(message), "{} {}", answer.status, answer.error());
    }
    assert_eq!(site.pins().await.len(), 3, "earlier pins stay, and no new pin is made");
}

#[tokio::test]
async fn denied_content_is_not_imported() {
    let content = noise(600_000, 4);
    let importer = Importer::new(Profile::default()).expect("a profile");
    let mut cids = Vec::new();
    let mut file = importer.file(Attributes::default());
    let mut sink = |block: Block| {
        cids.push(*block.cid());
        Ok(())
    };
    file.write(&content, &mut sink).expect("writes");
    file.finish(&mut sink).expect("finishes");
    assert_eq!(cids.len(), 4, "three leaves and a root");
    struct Legal(Cid);
    impl Policy for Legal {
        fn generation(&self) -> u64 {
            0
        }
        fn check(&self, cid: &Cid) -> Verdict {
            if cid.hash() == self.0.hash() { Verdict::Legal } else { Verdict::Allow }
        }
    }
    for denied in cids {
        let policies: [(Arc<dyn Policy>, u16); 2] =
            [(Arc::new(DenyList::new([denied])), 410), (Arc::new(Legal(denied)), 451)];
        for (policy, status) in policies {
            let site = site(Setup { policy, ..Setup::default() });
            let answer = site.upload("", "", content.clone()).await;
            assert!(answer.status == status && answer.error().contains(&denied.to_string()), "{}", answer.error());
            assert!(site.pins().await.is_empty() && !site.has(&denied.to_string()).await);
            assert_eq!(site.upload("", "", "something else").await.status, 200);
        }
    }
    let one = block(b"one");
    let policy = Arc::new(DenyList::new([*one.cid()]));
    let site = site(Setup { policy, ..Setup::default() });
    let answer = site.upload("", "application/vnd.ipld.car", archive(&[&one], &[&one])).await;
    assert_eq!(answer.status, 410);
}

#[tokio::test]
async fn the_size_of_uploads_is_limited() {
    let settings = config::Uploads { bytes_max: 100_000, ..config::Uploads::default() };
    let site = site(Setup { settings, ..Setup::default() });
    let bytes = |count: usize| noise(count, 5);
    let ask = async |bearer: &Principal, body: Body| {
        let request = Request::builder().method(Method::POST).uri("/api/v1/upload");
        site.ask(bearer, request, body).await
    };
    let table = [
        (None, 100_000, 200),
        (None, 100_001, 413),
        (Some(1_100), 1_000, 200),
        // Their blocks have some bytes more than the content.
        (Some(1_000), 1_000, 507),
        (Some(1_000), 1_001, 507),
    ];
    for (row, (quota, count, status)) in table.into_iter().enumerate() {
        for (way, body) in [Body::from(bytes(count)), in_pieces(bytes(count), 300)].into_iter().enumerate() {
            let owner = bearer(&format!("{row}-{way}"), quota);
            let answer = ask(&owner, body).await;
            assert_eq!(answer.status, status, "{count} bytes for {}: {}", owner.id, answer.error());
            let used = site.pins.used(&owner.id);
            assert_eq!(used.pins, u64::from(status == 200), "{}", owner.id);
            let again = ask(&owner, Body::from(bytes(1_000))).await;
            assert_eq!(
                again.status,
                if quota.is_some() { 507 } else { 200 },
                "what is there counts: {}",
                again.error()
            );
        }
    }
    let stored = site.pins().await.len();
    assert_eq!(stored, 2, "rejected content is not pinned");
    let poor = bearer("poor", Some(1_000));
    let answer = ask(&bearer("none", Some(0)), Body::empty()).await;
    assert_eq!(answer.status, 507);
    // A body whose Content-Length exceeds the limit is not read.
    let never =
        Body::new(http_body_util::StreamBody::new(stream::pending::<Result<http_body::Frame<Bytes>, io::Error>>()));
    let announced = Body::new(Announced { inner: never, bytes: 1_001 });
    let answer = tokio::time::timeout(Duration::from_secs(20), ask(&poor, announced)).await;
    assert_eq!(answer.expect("is not waited for").status, 507);
}

/// A body with a known length.
struct Announced {
    inner: Body,
    bytes: u64,
}

impl http_body::Body for Announced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        std::pin::Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.bytes)
    }
}

/// A body as zstd.
pub fn zstd(content: &[u8]) -> Vec<u8> {
    let mut encoder = BodyEncoder::new().expect("memory");
    let chunks = content.chunks(1 << 20).map(Bytes::copy_from_slice);
    let mut parts: Vec<Bytes> = chunks.flat_map(|chunk| encoder.encode(&chunk).expect("memory")).collect();
    parts.extend(encoder.finish().expect("memory"));
    parts.concat()
}

impl Site {
    async fn upload_coded(&self, query: &str, headers: &[(&str, &str)], body: Body) -> Answer {
        let mut request = Request::builder().method(Method::POST).uri(format!("/upload?{query}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.ask(&Principal::operator(), request, body).await
    }
}

const ZSTD: (&str, &str) = ("content-encoding", "zstd");

#[tokio::test]
async fn an_encoded_upload_is_what_it_decodes_to() {
    let site = site(Setup::default());
    let text = b"a line of text that is repeated\n".repeat(40_000);
    let (large, one) = ([&noise(600_000, 8)[..], &text].concat(), block(&text[..100_000]));
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in [("d/large", &large), ("d/text", &text)] {
        let mut header = tar::Header::new_gnu();
        header.set_path(name).expect("short");
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        tar.append(&header, &content[..]).expect("appends");
    }
    let bodies: [(&str, &str, Vec<u8>); 4] = [
        ("", "text/plain", text.clone()),
        ("wrap=true&name=f", "application/octet-stream", large.clone()),
        ("", BOUNDARY, form(&[("filename=\"site/a\"", &text), ("filename=\"site/b\"", &large)])),
        ("", "application/x-tar", tar.into_inner().expect("is whole")),
    ];
    let bodies = bodies.into_iter().chain([("", "application/vnd.ipld.car", archive(&[&one], &[&one]))]);
    for (query, media_type, body) in bodies {
        let plain = site.upload(query, media_type, body.clone()).await;
        assert_eq!(plain.status, 200, "{media_type}: {}", plain.error());
        let sent = zstd(&body);
        assert!(sent.len() < body.len() - body.len() / 8, "{media_type}");
        for piece in [1 << 20, 1_000] {
            let headers = [ZSTD, ("content-type", media_type)];
            let coded = site.upload_coded(query, &headers, in_pieces(sent.clone(), piece)).await;
            assert_eq!(
                (coded.status, coded.json()["roots"][0]["cid"].clone()),
                (200, plain.json()["roots"][0]["cid"].clone()),
                "{media_type}: {}",
                coded.error()
            );
            assert_eq!(coded.json()["bytes"], plain.json()["bytes"], "{media_type}: decoded bytes count");
        }
    }
    let lines = [ZSTD, ("accept", "application/x-ndjson")];
    let answer = site.upload_coded("", &lines, Body::from(zstd(&text))).await;
    let last = String::from_utf8(answer.body.to_vec()).expect("text");
    assert!(last.lines().last().expect("a line").contains(&file_cid(&Profile::default(), &text)), "{last}");
    let budget = site.uploads.limits().memory_bytes_max;
    assert_eq!(site.uploads.memory().left(), budget, "all memory is released");
}

#[tokio::test]
async fn invalid_encoded_uploads_leave_nothing() {
    let settings = config::Uploads { bytes_max: 3_000_000, ..config::Uploads::default() };
    let site = site(Setup { settings, ..Setup::default() });
    let text = b"a line of text that is repeated\n".repeat(10_000);
    let (whole, one) = (zstd(&text), block(&text[..100_000]));
    let car = zstd(&archive(&[&one], &[&one]));
    let (file, form_of, car_of) = ("text/plain", BOUNDARY, "application/vnd.ipld.car");
    let form = zstd(&form(&[("filename=a", &text)]));
    let tar = "application/x-tar";
    // A frame without content whose window has 16 MiB.
    let window = [&[0x28, 0xb5, 0x2f, 0xfd, 0, 14 << 3][..], &[1, 0, 0]].concat();
    let behind = |body: &[u8]| [body, b"garbage"].concat();
    let cut = |body: &[u8]| body[..body.len() - 1].to_vec();
    let table: [(&str, &str, Vec<u8>, u16, &str); 18] = [
        ("a file, cut", file, cut(&whole), 400, "truncated"),
        ("a form, cut", form_of, cut(&form), 400, "truncated"),
        ("a CAR, cut", car_of, cut(&car), 400, "truncated"),
        ("half a CAR", car_of, car[..car.len() / 2].to_vec(), 400, "truncated"),
        ("a file and garbage", file, behind(&whole), 400, "something else follows"),
        ("a form and garbage", form_of, behind(&form), 400, "something else follows"),
        ("a CAR and garbage", car_of, behind(&car), 400, "something else follows"),
        ("not zstd", file, text.clone(), 400, "not zstd"),
        ("a TAR that is not zstd", tar, vec![0; 10_240], 400, "not zstd"),
        ("gzip", file, b"\x1f\x8b\x08\x00\x00\x00\x00\x00".to_vec(), 400, "not zstd"),
        ("nothing", file, Vec::new(), 400, "truncated"),
        ("nothing as a CAR", car_of, Vec::new(), 400, "truncated"),
        ("a large window", file, window.clone(), 400, "8 MiB"),
        ("a large window in a second frame", file, [whole.clone(), window].concat(), 400, "8 MiB"),
        ("frames without end", file, zstd(b"").repeat(200_000), 400, "twice as long"),
        ("one byte more than may be", file, zstd(&vec![0; 3_000_001]), 413, "uploads.bytes_max"),
        ("a bomb", file, zstd(&vec![0; 64 << 20]), 413, "uploads.bytes_max"),
        ("a bomb in a CAR", car_of, zstd(&archive(&[&one], &[&one; 40])), 413, "uploads.bytes_max"),
    ];
    for (name, media_type, body, status, words) in table {
        for piece in [100, 1 << 20] {
            let headers = [ZSTD, ("content-type", media_type)];
            let answer = site.upload_coded("", &headers, in_pieces(body.clone(), piece)).await;
            assert_eq!(answer.status, status, "{name}: {}", answer.error());
            assert!(answer.error().contains(words), "{name}: {}", answer.error());
            assert_eq!(site.pins().await, [""; 0], "{name}");
        }
    }
    let exactly = site.upload_coded("", &[ZSTD], Body::from(zstd(&vec![0; 3_000_000]))).await;
    assert_eq!(exactly.status, 200, "{}", exactly.error());
    // A quota counts decoded bytes, too.
    let poor = bearer("poor", Some(100_000));
    let request = Request::builder().method(Method::POST).uri("/upload").header(ZSTD.0, ZSTD.1);
    let answer = site.ask(&poor, request, Body::from(zstd(&vec![7; 100_001]))).await;
    assert!(answer.status == 507 && answer.error().contains("quota"), "{} {}", answer.status, answer.error());
    assert_eq!(site.pins.used(&poor.id).pins, 0);
    assert_eq!(site.uploads.memory().left(), site.uploads.limits().memory_bytes_max, "all memory is released");
}

#[tokio::test]
async fn other_codings_are_rejected_and_zstd_is_named() {
    let site = site(Setup::default());
    for coding in ["gzip", "br", "deflate", "zstd, gzip", "gzip, zstd", "x-zstd"] {
        let answer = site.upload_coded("", &[("content-encoding", coding)], Body::from("content")).await;
        assert_eq!((answer.status, answer.headers["accept-encoding"].to_str().ok()), (415, Some("zstd")), "{coding}");
        assert!(answer.error().contains(coding) && answer.error().contains("zstd"), "{}", answer.error());
    }
    let identity = site.upload_coded("", &[("content-encoding", "identity")], Body::from("content")).await;
    assert_eq!(identity.status, 200);
    // A media type that is not supported is another reason.
    let archive = site.upload("", "application/x-tgz", "content").await;
    assert!(archive.status == 415 && !archive.headers.contains_key("accept-encoding"));
}

#[tokio::test]
async fn decoding_counts_against_the_memory_of_uploads() {
    let settings = config::Uploads { memory_bytes_max: 4 << 20, ..config::Uploads::default() };
    let site = site(Setup { settings, ..Setup::default() });
    let plain = site.upload("", "", "content").await;
    assert_eq!(plain.status, 200, "{}", plain.error());
    let coded = site.upload_coded("", &[ZSTD], Body::from(zstd(b"content"))).await;
    assert!(coded.status == 503 && coded.error().contains("uploads.memory_bytes_max"), "{}", coded.error());
}

#[tokio::test]
async fn an_incomplete_upload_leaves_nothing_pinned() {
    let site = site(Setup::default());
    let content = noise(1_000_000, 6);
    let pieces: Vec<_> = content.chunks(50_000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    let broken = stream::iter(pieces).chain(stream::iter([Err(io::Error::other("the sender is gone"))]));
    let answer = site.upload("", "", Body::from_stream(broken)).await;
    assert!(answer.status == 400 && answer.error().contains("gone"), "{}", answer.error());
    assert!(site.pins().await.is_empty());
    site.store.flush().await.expect("flushes");
    assert_eq!(site.store.stats().pinned_bytes, 0, "the received blocks are released");
}

#[tokio::test]
async fn a_failed_upload_leaves_existing_pins() {
    let site = site(Setup::default());
    let one = block(b"one");
    assert_eq!(site.upload("", "application/vnd.ipld.car", archive(&[&one], &[&one])).await.status, 200);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let absent = block(b"absent");
    let answer = site.upload("", "application/vnd.ipld.car", archive(&[&one, &absent], &[&one])).await;
    assert_eq!(answer.status, 400);
    assert_eq!(site.pins().await, [one.cid().to_string()]);
}

/// An upload that runs until its sender is dropped.
struct Begun {
    sender: mpsc::Sender<io::Result<Bytes>>,
    upload: tokio::task::JoinHandle<Answer>,
}

impl Begun {
    async fn begin(site: &Arc<Site>, bearer: Principal) -> Self {
        let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(1);
        let body =
            Body::from_stream(stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver))));
        let site = Arc::clone(site);
        let upload = tokio::spawn(async move { site.upload_as(&bearer, "", body).await });
        // The second chunk is accepted once the first is being read, or the upload has been rejected.
        _ = sender.send(Ok(Bytes::from_static(b"x"))).await;
        _ = sender.send(Ok(Bytes::from_static(b"y"))).await;
        Self { sender, upload }
    }

    async fn end(self) -> Answer {
        drop(self.sender);
        self.upload.await.expect("ends")
    }
}

impl Site {
    async fn upload_as(&self, bearer: &Principal, query: &str, body: impl Into<Body>) -> Answer {
        let request = Request::builder().method(Method::POST).uri(format!("/upload?{query}"));
        self.ask(bearer, request, body.into()).await
    }
}

#[tokio::test]
async fn the_number_of_concurrent_uploads_is_limited_in_all_and_for_each_token() {
    let settings = config::Uploads { at_once_max: 4, ..config::Uploads::default() };
    let site = Arc::new(site(Setup { settings, ..Setup::default() }));
    let (alice, bob) = (bearer("alice", None), bearer("bob", None));
    let mut running = Vec::new();
    for _ in 0..3 {
        running.push(Begun::begin(&site, alice.clone()).await);
    }
    let answer = site.upload_as(&alice, "", "z").await;
    assert!(answer.status == 429 && answer.headers.contains_key("retry-after"), "{}", answer.status);
    assert!(answer.error().contains("the token has reached"), "{}", answer.error());
    assert_eq!(site.upload_as(&bob, "", "z").await.status, 200);
    running.push(Begun::begin(&site, bob.clone()).await);
    let answer = site.upload_as(&bob, "", "z").await;
    assert!(
        answer.status == 429 && answer.error().contains("4 concurrent uploads"),
        "{} {}",
        answer.status,
        answer.error()
    );
    for upload in running {
        assert_eq!(upload.end().await.status, 200);
    }
    assert_eq!(site.upload_as(&alice, "", "z").await.status, 200);
}

#[tokio::test]
async fn uploads_share_a_memory_budget_and_reserve_by_their_length() {
    let settings = config::Uploads { memory_bytes_max: 64 << 20, ..config::Uploads::default() };
    let site = Arc::new(site(Setup { settings, ..Setup::default() }));
    let me = bearer("me", None);
    // The length of the body is unknown.
    let unknown = || Body::from_stream(stream::iter([Ok::<_, io::Error>("z")]));
    let greedy = "chunker=size-2096896&name=f";
    let first = Begun::begin(&site, me.clone()).await;
    let answer = site.upload_as(&me, greedy, unknown()).await;
    assert!(answer.status == 503 && answer.headers.contains_key("retry-after"), "{}", answer.status);
    assert!(answer.error().contains("uploads.memory_bytes_max"), "{}", answer.error());
    assert_eq!(site.upload_as(&me, "name=f", "short").await.status, 200);
    assert_eq!(first.end().await.status, 200);
    assert_eq!(site.upload_as(&me, greedy, unknown()).await.status, 200);
    assert_eq!(site.uploads.memory().left(), 64 << 20, "all of it is released");
}

#[tokio::test]
async fn only_hash_has_the_same_limits_as_other_uploads() {
    let site = site(Setup::default());
    let me = bearer("me", Some(5));
    assert_eq!(site.upload_as(&me, "only-hash", "12345").await.status, 200);
    let known = site.upload_as(&me, "only-hash", "123456").await;
    let streamed = Body::from_stream(stream::iter([Ok::<_, io::Error>("123"), Ok("456")]));
    for answer in [known, site.upload_as(&me, "only-hash", streamed).await] {
        assert!(answer.status == 507 && answer.error().contains("quota"), "{} {}", answer.status, answer.error());
    }
}

#[tokio::test]
async fn only_hash_answers_with_the_cid_and_stores_nothing() {
    let site = site(Setup::default());
    let answer = site.upload("only-hash=true", "", "hello world\n").await;
    assert_eq!(answer.cid(), "QmT78zSuBmuS4z925WZfrqQ1qHaJ56DQaTfyMUF7F8ff5o");
    assert_eq!(answer.json()["roots"][0]["pin"], Value::Null);
    assert!(site.pins().await.is_empty() && !site.has(&answer.cid()).await);
}

#[tokio::test]
async fn progress_is_sent_as_json_lines_on_request() {
    let site = site(Setup::default());
    let lines = async |body: Body| {
        let request = Request::builder()
            .method(Method::POST)
            .uri("/upload?name=f")
            .header("accept", "text/html, application/x-ndjson;q=0.9");
        let answer = site.ask(&Principal::operator(), request, body).await;
        assert_eq!((answer.status, answer.headers["content-type"].to_str().ok()), (200, Some("application/x-ndjson")));
        let text = String::from_utf8(answer.body.to_vec()).expect("text");
        text.lines().map(|line| serde_json::from_str(line).expect("a line")).collect::<Vec<UploadLine>>()
    };
    let slow = stream::iter(0..4).then(async |_| {
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok::<_, io::Error>(Bytes::from_static(&[7; 100]))
    });
    let told = lines(Body::from_stream(slow)).await;
    let (last, before) = told.split_last().expect("lines");
    assert!(matches!(last, UploadLine::Done(view) if view.bytes == 400), "{last:?}");
    let is_glance =
        |line: &UploadLine| matches!(line, UploadLine::Progress(glance) if glance.path == "f" && glance.bytes > 0);
    assert!(!before.is_empty() && before.iter().any(is_glance), "{before:?}");
    let broken = Body::from_stream(stream::iter([Err::<Bytes, _>(io::Error::other("gone"))]));
    let told = lines(broken).await;
    assert!(matches!(told.last(), Some(UploadLine::Error(failure)) if failure.status == 400), "{told:?}");
}

/// Uploads into a store of their own, with a cache of the given size.
fn uploads_with_cache(cache_bytes_max: u64) -> (Arc<dyn BlockStore>, Uploads, tempfile::TempDir) {
    let options = MemoryOptions { cache_bytes_max, ..MemoryOptions::default() };
    let store: Arc<dyn BlockStore> = memory::open(&options).expect("opens");
    let dir = tempfile::tempdir().expect("a folder");
    let cache = config::Cache { disk_bytes_max: cache_bytes_max, ..config::Cache::default() };
    let limits = UploadLimits::new(&config::Uploads::default(), &cache);
    let uploads = Uploads::new(&store, Arc::new(AllowAll), Pins::idle(&store), limits, dir.path());
    (Arc::clone(&store), uploads.expect("opens"), dir)
}

#[tokio::test]
async fn events_have_the_order_of_kubo() {
    let (store, uploads, _dir) = uploads_with_cache(1 << 20);
    let (sender, mut receiver) = mpsc::channel(4);
    let body = Body::from(form(&[("filename=\"d/b\"", b"1"), ("filename=\"d/a\"", b"22"), ("", b"nameless")]));
    let format = FileFormat::Multipart { boundary: "XX".to_owned(), kubo: true };
    let options = UploadOptions::Files(FileOptions { format, wrap: true, ..file_options(Destination::Cached) });
    let watchers = ProgressReceivers { events: Some(sender), ..ProgressReceivers::default() };
    let upload = UploadRequest { owner: Principal::operator(), options, watchers, import: None };
    let taking = tokio::spawn(async move { uploads.take(upload, boxed(body)).await.ok() });
    let mut added = Vec::new();
    while let Some(event) = receiver.recv().await {
        if let Event::Added { path, part } = event {
            added.push((path, part.file_bytes));
        }
    }
    let taken = taking.await.expect("ends").expect("is taken in");
    let nameless = file_cid(&Profile::default(), b"nameless");
    let expected = [("d/b", 1), ("d/a", 2), (&nameless, 8), ("d", 3), ("", 11)];
    assert_eq!(added, expected.map(|(path, bytes)| (path.to_owned(), bytes)));
    assert_eq!(taken.roots.len(), 1);
    assert!(store.pins().await.expect("lists").is_empty(), "nothing is pinned");
}

/// Uploads a file for an owner.
async fn take(
    uploads: &Uploads,
    owner: &Principal,
    content: &[u8],
    options: FileOptions,
) -> Result<UploadResult, UploadError> {
    let options = UploadOptions::Files(options);
    let upload = UploadRequest { owner: owner.clone(), options, watchers: ProgressReceivers::default(), import: None };
    uploads.take(upload, boxed(Body::from(content.to_vec()))).await.map_err(|failed| failed.error)
}

/// The options of a file.
fn file_options(destination: Destination) -> FileOptions {
    let (format, profile) = (FileFormat::File { name: None }, Profile::default());
    FileOptions { format, profile, wrap: false, destination, modes: false, times: false, packed: false }
}

fn pinned() -> Destination {
    Destination::Pinned(PinDetails::default())
}

#[tokio::test]
async fn cached_uploads_are_stored_completely_or_rejected() {
    let (store, uploads, _dir) = uploads_with_cache(4 << 20);
    // A token without a quota for pins may still cache content.
    let owner = bearer("poor", Some(0));
    let small = noise(1_000_000, 3);
    let refused = take(&uploads, &owner, &small, file_options(pinned())).await;
    assert!(matches!(refused, Err(UploadError::Quota { .. })));
    let taken = take(&uploads, &owner, &small, file_options(Destination::Cached)).await.expect("has room");
    assert_eq!((taken.roots[0].cid.to_string(), &taken.roots[0].pin), (file_cid(&Profile::default(), &small), &None));
    let blocks = content::dag::walk_links(Arc::clone(&store) as _, taken.roots[0].cid, 1, None).count().await as u64;
    assert_eq!((blocks, store.stats().blocks), (taken.blocks, taken.blocks), "every block is stored, and nothing else");
    // Content that exceeds the cache evicts nothing.
    let error =
        take(&uploads, &owner, &noise(8_000_000, 4), file_options(Destination::Cached)).await.expect_err("has no room");
    assert!(matches!(error, UploadError::LargerThanCache { .. }) && error.status() == 507, "{error}");
    store.flush().await.expect("writes");
    assert_eq!(store.stats().blocks, taken.blocks);
    // Without a Content-Length, the limit applies while the body is read.
    let options = UploadOptions::Files(file_options(Destination::Cached));
    let upload = UploadRequest { owner, options, watchers: ProgressReceivers::default(), import: None };
    let endless = Body::from_stream(stream::repeat_with(|| Ok::<_, io::Error>(Bytes::from(noise(100_000, 5)))));
    let refused = uploads.take(upload, boxed(endless)).await.map_err(|failed| failed.error).expect_err("it has no end");
    assert!(matches!(refused, UploadError::LargerThanCache { .. }), "{refused}");
    assert!(store.pins().await.expect("lists").is_empty() && store.stats().pinned_bytes == 0);
}

#[tokio::test]
async fn recently_unpinned_content_is_cached_again() {
    let (store, uploads, _dir) = uploads_with_cache(64 << 20);
    let chunking = "size-1000".parse().expect("a chunker");
    let options =
        |destination| FileOptions { profile: Profile { chunking, ..Profile::default() }, ..file_options(destination) };
    for seed in 10..15 {
        let content = noise(3_000_000, seed);
        let pinned = take(&uploads, &Principal::operator(), &content, options(pinned())).await.expect("is pinned");
        assert!(store.remove_pin(&pinned.roots[0].cid).await.expect("removes"));
        // Until the blocks are released they are still stored, and about to be deleted.
        store.flush().await.expect("flushes");
        take(&uploads, &Principal::operator(), &content, options(Destination::Cached)).await.expect("is cached");
    }
}
