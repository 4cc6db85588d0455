//! Withheld content is not served: every kind of rule with every format, over HTTP.

use crate::dag::{cbor_of, directory, raw, sharded};
use crate::site::{Setup, Site};
use content::denylist::{List, Matcher, Source};
use content::ipns::Record;
use content::names::Key;
use content::{Block, Cid, Name, NameError, NameResolver, Resolution, Verdict, hashes};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use futures::stream::{BoxStream, StreamExt as _};
use gateway::routing_v1::RoutingResponseLimits;
use gateway::routing_v1::finder::PeerFinder;
use libp2p::PeerId;
use p2p_bridge::routing_v1::PeerRecord;
use services::denylists::Running;
use services::denylists::running::Rules;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const KEY: &str = "k51qzi5uqu5dk3v4rmjber23h16xnr23bsggmqqil9z2gduiis5se8dht36dam";
const SITE: [(&str, &str); 1] = [("host", "site.example")];

/// A domain that resolves to a key, which resolves to a site in a subdirectory.
struct Names {
    site: Cid,
}

impl NameResolver for Names {
    fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>> {
        let (name, key) = (name.clone(), Name::parse(KEY).expect("a name"));
        let hops = match name.to_string().as_str() {
            "site.example" => vec![(name, String::new()), (key, String::new())],
            "folder.example" => vec![(name, String::new()), (key, "dir".to_owned())],
            KEY => vec![(name, String::new())],
            _ => {
                let Name::Domain(domain) = name else { panic!("another key") };
                return ready(Err(NameError::NoDnsLink { domain })).boxed();
            }
        };
        let segments = hops.last().filter(|(_, below)| !below.is_empty()).map(|(_, below)| below.clone());
        let segments = segments.into_iter().collect();
        ready(Ok(Resolution { root: self.site, segments, ttl: Duration::from_secs(60), stale: None, hops })).boxed()
    }

    fn record(&self, key: &Key) -> BoxFuture<'static, Result<Record, NameError>> {
        ready(Err(NameError::Offline { name: Name::Key(*key) })).boxed()
    }
}

/// Counts the searches.
#[derive(Default)]
struct Searches(AtomicU64);

impl PeerFinder for Searches {
    fn providers(&self, _: &Cid) -> BoxStream<'static, PeerRecord> {
        self.0.fetch_add(1, Ordering::SeqCst);
        futures::stream::empty().boxed()
    }

    fn peer(&self, _: PeerId) -> BoxStream<'static, PeerRecord> {
        futures::stream::empty().boxed()
    }

    fn closest(&self, _: Vec<u8>) -> BoxStream<'static, PeerRecord> {
        futures::stream::empty().boxed()
    }

    fn own_record(&self) -> BoxFuture<'static, Option<PeerRecord>> {
        ready(None).boxed()
    }
}

struct World {
    site: Site,
    policy: Arc<Running>,
    searches: Arc<Searches>,
    root: Block,
    dir: Block,
    secret: Block,
    open: Block,
    document: Block,
}

impl World {
    async fn new() -> Self {
        let (secret, open, index) = (raw("the secret"), raw("open to all"), raw("<p>index"));
        // {"a": {"b": "inside"}}
        let document = cbor_of(vec![0xa1, 0x61, b'a', 0xa1, 0x61, b'b', 0x66, b'i', b'n', b's', b'i', b'd', b'e']);
        let dir = directory(&[("index.html", &open), ("open.txt", &open), ("secret.txt", &secret)]);
        let rules = raw("/old /dir/secret.txt 200\n/moved /dir/open.txt 200\n");
        let entries = [("_redirects", &rules), ("dir", &dir), ("doc", &document), ("index.html", &index)];
        let root = directory(&entries);
        let blocks = [&root, &dir, &secret, &open, &index, &document, &rules];
        let (policy, searches) = (Arc::<Running>::default(), Arc::<Searches>::default());
        let setup = Setup {
            policy: Arc::clone(&policy) as _,
            names: Arc::new(Names { site: *root.cid() }),
            limits: gateway::limits::RequestLimits {
                convert_codecs: true,
                ..gateway::limits::RequestLimits::default()
            },
            routing: Some((
                Arc::clone(&searches) as _,
                RoutingResponseLimits { time: Duration::from_secs(5), ..RoutingResponseLimits::default() },
            )),
            ..Setup::new(&blocks)
        };
        Self { site: setup.start().await, policy, searches, root, dir, secret, open, document }
    }

    /// Replaces the rules.
    fn withhold(&self, lines: &str) {
        self.policy.swap(Rules { deny: matcher(lines), allow: None });
    }

    /// The status of a response, whether it was complete, and its body. The status is 0 if there was no response.
    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> (u16, bool, Vec<u8>) {
        let Ok(response) = self.site.try_send("GET", path, headers).await else { return (0, false, Vec::new()) };
        let status = response.status().as_u16();
        match response.bytes().await {
            Ok(body) => (status, true, body.to_vec()),
            Err(_) => (status, false, Vec::new()),
        }
    }

    async fn status(&self, path: &str, headers: &[(&str, &str)]) -> u16 {
        self.get(path, headers).await.0
    }
}

pub fn matcher(lines: &str) -> Matcher {
    let list = List::parse(lines.as_bytes()).expect("a list");
    assert_eq!(list.malformed(), 0, "{lines}: {:?}", list.reported());
    Matcher::new([Source { id: "test".into(), list, status: Verdict::Gone }])
}

pub fn double(text: &str) -> String {
    let hash = hashes::digest(hashes::SHA2_256, 32, text.as_bytes()).expect("accepted");
    format!("//{}", hash.digest().iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn modern(cid: &Cid, path: &str) -> String {
    let v0 = Cid::new_v0(*cid.hash()).expect("SHA2-256");
    double(&format!("{v0}{path}"))
}

/// The ways to request a file.
const FILE_WAYS: [&str; 6] =
    ["", "?format=raw", "?format=car", "?format=car&dag-scope=block", "?format=tar", "?download=true"];

#[tokio::test]
async fn a_withheld_file_is_served_in_no_format_by_any_path() {
    let world = World::new().await;
    let (root, dir, secret) = (world.root.cid(), world.dir.cid(), world.secret.cid());
    let path = format!("/ipfs/{root}/dir/secret.txt");
    let below = format!("/ipfs/{dir}/secret.txt");
    let own = format!("/ipfs/{secret}");
    // A rule; and whether it withholds the file by its path from the root, by its path from its directory, and by its
    // CID.
    let table = [
        (format!("/ipfs/{secret}"), [true, true, true]),
        (modern(secret, ""), [true, true, true]),
        (double(&format!("{secret}/")), [true, true, true]),
        (format!("/ipfs/{root}/dir/secret.txt"), [true, false, false]),
        (format!("/ipfs/{root}/dir/secret%2Etxt"), [true, false, false]),
        (format!("/ipfs/{root}/dir/sec*"), [true, false, false]),
        (format!("/ipfs/{root}/dir/*"), [true, false, false]),
        (double(&format!("{root}/dir/secret.txt")), [true, false, false]),
        (modern(root, "/dir/secret.txt"), [true, false, false]),
        (format!("/ipfs/{dir}/secret.txt"), [true, true, false]),
        (format!("/ipfs/{dir}/s*"), [true, true, false]),
        (modern(dir, "/secret.txt"), [true, true, false]),
        (format!("/ipfs/{dir}"), [true, true, false]),
        (format!("/ipfs/{dir}/*"), [true, true, false]),
        (format!("/ipfs/{root}"), [true, false, false]),
    ];
    for (rule, expected) in table {
        for status in [410, 451] {
            // The responses are cached by now.
            world.withhold("");
            for way in FILE_WAYS {
                for path in [&path, &below, &own] {
                    let (got, whole, _) = world.get(&format!("{path}{way}"), &[]).await;
                    assert!(got == 200 && whole, "{path}{way}: {got}");
                }
            }
            world.withhold(&format!("{rule} status={status}\n"));
            for (path, withheld) in [&path, &below, &own].into_iter().zip(expected) {
                let expected = if withheld { status } else { 200 };
                for way in FILE_WAYS {
                    let (got, _, body) = world.get(&format!("{path}{way}"), &[]).await;
                    assert_eq!(got, expected, "{rule}: {path}{way}");
                    let leaks = body.windows(10).any(|bytes| bytes == b"the secret");
                    assert!(!(withheld && leaks), "{rule}: {path}{way}");
                }
                for headers in [
                    [("range", "bytes=0-3")],
                    [("accept", "application/vnd.ipld.raw")],
                    [("accept", "application/vnd.ipld.car")],
                    [("accept-encoding", "zstd")],
                    [("cache-control", "only-if-cached")],
                ] {
                    let expected = if headers[0].0 == "range" && !withheld { 206 } else { expected };
                    assert_eq!(world.status(path, &headers).await, expected, "{rule}: {path} {headers:?}");
                }
                let head = world.site.send("HEAD", path, &[]).await.status().as_u16();
                assert_eq!(head, expected, "{rule}: HEAD {path}");
                let known = [("if-none-match", &*format!("\"{secret}\""))];
                let expected = if withheld { status } else { 304 };
                assert_eq!(world.status(path, &known).await, expected, "{rule}: {path} that the client has");
            }
        }
    }
}

#[tokio::test]
async fn an_archive_with_withheld_content_is_never_complete() {
    let world = World::new().await;
    let (root, dir, secret) = (world.root.cid(), world.dir.cid(), world.secret.cid());
    let rules = [
        format!("/ipfs/{secret}"),
        modern(secret, ""),
        format!("/ipfs/{root}/dir/secret.txt"),
        format!("/ipfs/{root}/dir/s*"),
        format!("/ipfs/{dir}/secret.txt"),
        modern(root, "/dir/secret.txt"),
        modern(dir, "/secret.txt"),
        double(&format!("{dir}/secret.txt")),
    ];
    for rule in rules {
        for way in [
            "?format=car",
            "?format=car&dag-scope=all&dups=y",
            "?format=tar",
            "?format=car&entity-bytes=0:*&dag-scope=all",
        ] {
            for path in [format!("/ipfs/{root}"), format!("/ipfs/{root}/dir")] {
                world.withhold("");
                // A TAR cannot contain the document in the root.
                if way != "?format=tar" || path.ends_with("dir") {
                    let (got, whole, _) = world.get(&format!("{path}{way}"), &[]).await;
                    assert!(got == 200 && whole, "{path}{way}: {got}");
                }
                world.withhold(&format!("{rule} status=451\n"));
                let (got, whole, body) = world.get(&format!("{path}{way}"), &[]).await;
                assert!(got != 200 || !whole, "{rule}: {path}{way}: {got}");
                assert!(!body.windows(10).any(|bytes| bytes == b"the secret"), "{rule}: {path}{way}");
                if rule.starts_with(&format!("/ipfs/{root}/")) {
                    assert_eq!(got, 451, "{rule}: {path}{way} is rejected before it begins");
                }
            }
        }
        // Names alone, and proofs of other paths, are still served.
        for path in [
            format!("/ipfs/{root}/dir/open.txt"),
            format!("/ipfs/{root}/dir/open.txt?format=car"),
            format!("/ipfs/{root}/dir/open.txt?format=tar"),
            format!("/ipfs/{root}?format=car&dag-scope=block"),
            format!("/ipfs/{root}?format=car&dag-scope=entity"),
            format!("/ipfs/{root}/dir/?format=json"),
            format!("/ipfs/{root}/dir?format=dag-json"),
            format!("/ipfs/{root}/dir?format=raw"),
        ] {
            let (got, whole, _) = world.get(&path, &[]).await;
            assert!(got == 200 && whole, "{rule}: {path}: {got}");
        }
    }
    // The content of a directory with many blocks is not known before it is fetched.
    let leaf = raw("the secret");
    let names: Vec<Vec<u8>> = (0..300).map(|n| format!("e-{n:04}").into_bytes()).collect();
    let shards = sharded(&names, &leaf);
    let folder = shards.last().expect("a root").clone();
    let top = directory(&[("folder", &folder)]);
    let policy = Arc::<Running>::default();
    let blocks: Vec<&Block> = shards.iter().chain([&leaf, &top]).collect();
    let site = Setup { policy: Arc::clone(&policy) as _, ..Setup::new(&blocks) }.start().await;
    for (rule, whole) in [
        (modern(top.cid(), "/folder/e-0200"), false),
        (modern(folder.cid(), "/e-0200"), false),
        (format!("/ipfs/{}/e-0200", folder.cid()), false),
        (modern(top.cid(), "/folder/another"), true),
    ] {
        policy.swap(Rules { deny: matcher(&format!("{rule}\n")), allow: None });
        for way in ["?format=car", "?format=tar"] {
            let came = match site.try_send("GET", &format!("/ipfs/{}{way}", top.cid()), &[]).await {
                Ok(response) => response.status() == 200 && response.bytes().await.is_ok(),
                Err(_) => false,
            };
            assert_eq!(came, whole, "{rule} {way}");
        }
    }
}

#[tokio::test]
async fn index_pages_and_rewrite_targets_are_withheld_too() {
    let world = World::new().await;
    let (root, dir) = (world.root.cid(), world.dir.cid());
    let folder = format!("/ipfs/{root}/dir/");
    world.withhold("");
    assert_eq!(world.status(&folder, &[]).await, 200);
    world.withhold(&format!("/ipfs/{root}/dir/index.html\n"));
    assert_eq!(world.status(&folder, &[]).await, 410, "its index");
    assert_eq!(world.status(&format!("{folder}?format=json"), &[]).await, 200, "its names");
    world.withhold(&format!("/ipfs/{dir}/index.html\n"));
    assert_eq!(world.status(&folder, &[]).await, 410, "its index, by the folder's own CID");
    world.withhold(&format!("/ipfs/{root}/dir\n"));
    for way in ["", "?format=json", "?format=dag-json", "?format=car", "?format=raw", "?format=tar"] {
        assert_eq!(world.status(&format!("{folder}{way}"), &[]).await, 410, "{way}");
    }
    assert_eq!(world.status(&format!("/ipfs/{root}/dir/open.txt"), &[]).await, 200, "an exact path is that alone");
    // Values inside a document have paths.
    let document = format!("/ipfs/{}", world.document.cid());
    for (rule, expected) in [("/a/b", 410), ("/a", 410), ("/c", 410), ("", 410)] {
        world.withhold(&format!("{document}{rule}\n"));
        for path in [document.clone(), format!("{document}?format=dag-json"), format!("/ipfs/{root}/doc")] {
            assert_eq!(world.status(&path, &[]).await, expected, "{rule}: {path}");
        }
    }
    // The target of a site's rewrite rule.
    world.withhold("");
    assert_eq!((world.status("/old", &SITE).await, world.status("/moved", &SITE).await), (200, 200));
    world.withhold(&format!("/ipfs/{root}/dir/secret.txt\n"));
    assert_eq!((world.status("/old", &SITE).await, world.status("/moved", &SITE).await), (410, 200));
    world.withhold(&format!("/ipfs/{}\n", world.secret.cid()));
    assert_eq!((world.status("/old", &SITE).await, world.status("/moved", &SITE).await), (410, 200));
    world.withhold(&format!("/ipfs/{root}/_redirects\n"));
    assert_eq!((world.status("/old", &SITE).await, world.status("/dir/open.txt", &SITE).await), (410, 200));
}

#[tokio::test]
async fn names_are_withheld_at_every_hop_and_with_their_paths() {
    let world = World::new().await;
    let paths =
        ["/ipns/site.example/dir/open.txt", &format!("/ipns/{KEY}/dir/open.txt"), "/ipns/folder.example/open.txt"];
    let double_domain = double("site.example/");
    let table = [
        ("/ipns/site.example".to_owned(), [true, false, false]),
        ("/ipns/SITE-example".to_owned(), [true, false, false]),
        ("/ipns/site.example/*".to_owned(), [true, false, false]),
        ("/ipns/site.example/dir/open.txt".to_owned(), [true, false, false]),
        ("/ipns/site.example/dir/o*".to_owned(), [true, false, false]),
        ("/ipns/site.example/dir/other".to_owned(), [false, false, false]),
        (double_domain, [true, false, false]),
        (double("/ipns/site.example"), [true, false, false]),
        (double("/ipns/site.example/dir/open.txt"), [true, false, false]),
        (format!("/ipns/{KEY}"), [true, true, true]),
        (format!("/ipns/{}", Key::parse(KEY).expect("a key").peer_id()), [true, true, true]),
        (format!("/ipns/{KEY}/dir/open.txt"), [true, true, true]),
        (double(&format!("{}", Key::parse(KEY).expect("a key").peer_id())), [true, true, true]),
        ("/ipns/folder.example/open.txt".to_owned(), [false, false, true]),
        (format!("/ipfs/{}/dir/open.txt", world.root.cid()), [true, true, true]),
        (format!("/ipfs/{}/open.txt", world.dir.cid()), [true, true, true]),
        (format!("/ipfs/{}", world.open.cid()), [true, true, true]),
    ];
    for (rule, expected) in table {
        world.withhold("");
        for path in paths {
            assert_eq!(world.status(path, &[]).await, 200, "{path}");
        }
        assert_eq!(world.status("/dir/open.txt", &SITE).await, 200);
        world.withhold(&format!("{rule} status=451\n"));
        for (path, withheld) in paths.into_iter().zip(expected) {
            let expected = if withheld { 451 } else { 200 };
            for way in ["", "?format=raw", "?format=car"] {
                assert_eq!(world.status(&format!("{path}{way}"), &[]).await, expected, "{rule}: {path}{way}");
            }
        }
        let expected = if expected[0] { 451 } else { 200 };
        assert_eq!(world.status("/dir/open.txt", &SITE).await, expected, "{rule}: at its own domain");
    }
    let record = format!("/ipns/{KEY}?format=ipns-record");
    world.withhold("");
    assert_eq!(world.status(&record, &[]).await, 404, "there is no record");
    world.withhold(&format!("/ipns/{KEY} status=451\n"));
    assert_eq!(world.status(&record, &[]).await, 451);
}

#[tokio::test]
async fn providers_of_withheld_content_are_not_returned() {
    let world = World::new().await;
    let providers = format!("/routing/v1/providers/{}", world.secret.cid());
    let record = format!("/routing/v1/ipns/{KEY}");
    world.withhold("");
    assert_eq!(world.status(&providers, &[]).await, 200);
    assert_eq!(world.searches.0.load(Ordering::SeqCst), 1);
    world.withhold(&format!("/ipfs/{} status=451\n/ipns/{KEY}\n", world.secret.cid()));
    for headers in [vec![], vec![("accept", "application/x-ndjson")]] {
        assert_eq!(world.status(&providers, &headers).await, 451);
    }
    assert_eq!(world.status(&record, &[]).await, 410);
    assert_eq!(world.searches.0.load(Ordering::SeqCst), 1, "no search was made");
}

#[tokio::test]
async fn in_allowlist_mode_only_listed_content_is_served() {
    let world = World::new().await;
    let (root, dir, open) = (world.root.cid(), world.dir.cid(), world.open.cid());
    let page = format!("/ipfs/{root}/dir/open.txt");
    // The allowlist; then paths, and whether they are served.
    let table = [
        (format!("/ipfs/{root}\n"), [true, true, false, false, false]),
        (format!("/ipfs/{root}/*\n"), [true, true, false, false, false]),
        (format!("/ipfs/{root}/dir/open.txt\n"), [true, false, false, false, false]),
        (format!("/ipfs/{root}/dir/*\n"), [true, false, false, false, false]),
        (format!("/ipfs/{dir}\n"), [false, false, true, false, false]),
        (format!("/ipfs/{open}\n"), [false, false, false, true, false]),
        ("/ipns/site.example\n".to_owned(), [false, false, false, false, true]),
        (format!("/ipfs/{root}\n!/ipfs/{root}/dir/open.txt\n"), [false, true, false, false, false]),
        (double(&format!("{root}/")), [true, true, false, false, false]),
        (String::new(), [false; 5]),
    ];
    for (lines, expected) in table {
        world.withhold("");
        assert_eq!(world.status(&page, &[]).await, 200);
        world.policy.swap(Rules { deny: Matcher::default(), allow: Some(matcher(&lines)) });
        let paths = [
            page.clone(),
            format!("/ipfs/{root}/index.html"),
            format!("/ipfs/{dir}/open.txt"),
            format!("/ipfs/{open}"),
            "/ipns/site.example/dir/open.txt".to_owned(),
        ];
        for (path, served) in paths.iter().zip(expected) {
            for way in ["", "?format=raw", "?format=car"] {
                let (got, whole, _) = world.get(&format!("{path}{way}"), &[]).await;
                assert_eq!((got, whole), (if served { 200 } else { 403 }, true), "{lines}: {path}{way}");
            }
        }
    }
    // Denylists apply as well.
    let allow = Some(matcher(&format!("/ipfs/{root}\n")));
    world.policy.swap(Rules { deny: matcher(&format!("/ipfs/{open}\n")), allow });
    assert_eq!(world.status(&page, &[]).await, 410);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rules_change_while_requests_run() {
    let world = Arc::new(World::new().await);
    let path = format!("/ipfs/{}/dir/secret.txt", world.root.cid());
    let rule = format!("/ipfs/{}\n", world.secret.cid());
    let asking = (0..4).map(|_| {
        let (world, path) = (Arc::clone(&world), path.clone());
        tokio::spawn(async move {
            let mut seen = [0, 0];
            for _ in 0..100 {
                match world.get(&path, &[]).await {
                    (200, true, body) if body == b"the secret" => seen[0] += 1,
                    (410, true, _) => seen[1] += 1,
                    other => panic!("{other:?}"),
                }
            }
            seen
        })
    });
    let asking: Vec<_> = asking.collect();
    while asking.iter().any(|task| !task.is_finished()) {
        world.withhold(&rule);
        // New requests use the new rules.
        assert_eq!(world.status(&path, &[]).await, 410);
        world.withhold("");
        assert_eq!(world.status(&path, &[]).await, 200);
    }
    for task in asking {
        let [given, refused] = task.await.expect("does not panic");
        assert_eq!(given + refused, 100);
    }
}
