//! Archives of files and trees, extracted with the system's `tar`, and content that cannot be archived.

use crate::dags::directory;
use crate::support::*;
use bytes::Bytes;
use content::tar::{TarError, TarLimits, stream};
use content::unixfs::NodeError;
use content::{Block, BlockSource, MemoryBlocks, SourceError, codec};
use futures::stream::StreamExt as _;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const LIMITS: TarLimits =
    TarLimits { depth_max: 64, entries_max: 2_000, bytes_max: 1 << 30, window_bytes_max: 8 << 20 };

/// The archive as far as it was emitted, and the error that ended it.
fn archive_of(
    source: Arc<dyn BlockSource>,
    name: &str,
    root: &Block,
    limits: TarLimits,
) -> (Vec<u8>, Option<TarError>) {
    block_on(async {
        let mut stream = stream(source, name.to_owned(), root.clone(), limits);
        let mut out = Vec::new();
        while let Some(chunk) = stream.next().await {
            match chunk {
                Ok(chunk) => {
                    assert!(!chunk.is_empty());
                    out.extend_from_slice(&chunk);
                }
                Err(error) => {
                    assert!(stream.next().await.is_none(), "nothing follows an error");
                    return (out, Some(error));
                }
            }
        }
        (out, None)
    })
}

/// A complete archive, which is the same from a remote source.
fn whole(blocks: &Arc<MemoryBlocks>, name: &str, root: &Block) -> Vec<u8> {
    let (near, error) = archive_of(blocks.clone(), name, root, LIMITS);
    assert_eq!(error, None, "{name}");
    let far = archive_of(Arc::new(RemoteSource::new(blocks.clone(), 3, 9)), name, root, LIMITS);
    assert!((&near, None) == (&far.0, far.1), "{name}");
    assert!(near.len() % 512 == 0 && near.ends_with(&[0; 1024]));
    near
}

/// An entry of a folder: a file with its content, a folder, or a symlink with its target.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    File(Vec<u8>),
    Folder,
    Symlink(PathBuf),
}

/// The entries that the system's `tar` extracts into a new folder, by path.
fn extract(test: &str, archive: &[u8]) -> BTreeMap<String, Found> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tar-{test}-{}", std::process::id()));
    let inside = folder.join("inside");
    std::fs::create_dir_all(&inside).expect("a folder");
    std::fs::write(folder.join("archive.tar"), archive).expect("written");
    let out = Command::new("tar").arg("-xf").arg("../archive.tar").current_dir(&inside).output().expect("tar runs");
    assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut found = BTreeMap::new();
    collect(&inside, &inside, &mut found);
    std::fs::remove_dir_all(&folder).expect("removed");
    found
}

fn collect(base: &Path, folder: &Path, found: &mut BTreeMap<String, Found>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.strip_prefix(base).expect("below").to_str().expect("UTF-8").to_owned();
        let metadata = path.symlink_metadata().expect("there");
        let what = if metadata.is_symlink() {
            Found::Symlink(path.read_link().expect("a target"))
        } else if metadata.is_dir() {
            collect(base, &path, found);
            Found::Folder
        } else {
            Found::File(std::fs::read(&path).expect("readable"))
        };
        found.insert(name, what);
    }
}

fn file(bytes: &[u8]) -> Found {
    Found::File(bytes.to_vec())
}

fn root_of(blocks: &Arc<MemoryBlocks>, root: content::Cid) -> Block {
    blocks.peek(&root).expect("the root")
}

fn symlink(blocks: &MemoryBlocks, target: &[u8]) -> Block {
    let node = pb_node(&[], Some(&Message::default().varint(1, SYMLINK).bytes(2, target).0), false);
    add(blocks, codec::DAG_PB, node)
}

#[test]
fn trees_of_the_conformance_suite_are_extracted() {
    let (root, blocks) = fixture_car("conformance/dir_listing.car");
    let name = root.to_string();
    let found = extract("listing", &whole(&blocks, &name, &root_of(&blocks, root)));
    assert_eq!(found[&format!("{name}/ą/ę/file-źł.txt")], file(b"I am a txt file on path with utf8\n"));
    assert_eq!(found[&name], Found::Folder);
    assert!(found.len() > 9, "{found:?}");

    let (root, blocks) = fixture_car("conformance/inside-root.car");
    let name = root.to_string();
    let found = extract("inside", &whole(&blocks, &name, &root_of(&blocks, root)));
    assert_eq!(found[&format!("{name}/foobar/file")], file(b"Hello, world!\n"));

    let (root, blocks) = fixture_car("conformance/outside-root.car");
    let (bytes, error) = archive_of(blocks.clone(), "root", &root_of(&blocks, root), LIMITS);
    assert!(bytes.is_empty(), "nothing is emitted before the error");
    let reason = "it is outside the root";
    assert_eq!(error, Some(TarError::Name { parent: root, name: "../foo".to_owned(), reason }));

    let (root, blocks) = fixture_car("conformance/symlink.car");
    let found = extract("symlink", &whole(&blocks, "root", &root_of(&blocks, root)));
    assert_eq!(found["root/foo"], file(b"content\n"));
    assert_eq!(found["root/bar"], Found::Symlink("foo".into()));
}

#[test]
fn sharded_directories_and_files_of_many_blocks_are_extracted() {
    let (root, blocks) = fixture_car("kubo/hamt-16.car");
    let found = extract("hamt", &whole(&blocks, "root", &root_of(&blocks, root)));
    let listed = crate::directories::list_all(blocks.clone(), &root_of(&blocks, root)).expect("listed");
    assert_eq!(found.len(), listed.len() + 1);

    let blocks = Arc::new(MemoryBlocks::new());
    for size in [0, 1, 511, 512, 513, 10_000] {
        let data = content(5, size);
        let root = balanced(&blocks, &data, 300, 3, LeafKind::RawCodec);
        let found = extract(&format!("file-{size}"), &whole(&blocks, "one", &root));
        assert_eq!(found, BTreeMap::from([("one".to_owned(), file(&data))]));
    }
}

#[test]
fn names_of_every_length_and_script_are_extracted() {
    let blocks = Arc::new(MemoryBlocks::new());
    let leaf = leaf(&blocks, LeafKind::RawCodec, b"leaf");
    let odd = ["ż".repeat(120), "new\nline".to_owned(), "tab\t\"'\\*?".to_owned(), " ".to_owned(), "日本語".to_owned()];
    let names: Vec<String> = (1..=255).map(|length| "x".repeat(length)).chain(odd).collect();
    let entries: Vec<(&str, &Block)> = names.iter().map(|name| (&**name, &leaf)).collect();
    let target = "t".repeat(150);
    let (far, utf8) = (symlink(&blocks, target.as_bytes()), symlink(&blocks, "ścieżka".as_bytes()));
    let empty = directory(&blocks, &[]);
    let inner = directory(&blocks, &[&entries[..], &[("@far", &far), ("@utf8", &utf8), ("@empty", &empty)]].concat());
    let deep = directory(&blocks, &[(&"d".repeat(100), &inner)]);
    let root = directory(&blocks, &[(&"e".repeat(90), &deep)]);
    let found = extract("names", &whole(&blocks, "root", &root));
    let base = format!("root/{}/{}", "e".repeat(90), "d".repeat(100));
    for name in &names {
        assert_eq!(found.get(&format!("{base}/{name}")), Some(&file(b"leaf")), "{name}");
    }
    assert_eq!(found[&format!("{base}/@far")], Found::Symlink(target.into()));
    assert_eq!(found[&format!("{base}/@utf8")], Found::Symlink("ścieżka".into()));
    assert_eq!(found[&format!("{base}/@empty")], Found::Folder);
    assert_eq!(found.len(), names.len() + 3 + 3);
}

#[test]
fn duplicate_names_are_rejected() {
    let blocks = Arc::new(MemoryBlocks::new());
    let (a, b) = (leaf(&blocks, LeafKind::RawCodec, b"a"), leaf(&blocks, LeafKind::RawCodec, b"b"));
    let unixfs = Message::default().varint(1, DIRECTORY).0;
    let twice = pb_node(&[Link::to(*a.cid(), "same"), Link::to(*b.cid(), "same")], Some(&unixfs), false);
    let root = add(&blocks, codec::DAG_PB, twice);
    let (bytes, error) = archive_of(blocks, "root", &root, LIMITS);
    assert!(bytes.is_empty() && matches!(error, Some(TarError::Name { .. })), "{error:?}");
}

#[test]
fn names_outside_the_root_are_rejected_and_such_symlinks_are_skipped() {
    let blocks = Arc::new(MemoryBlocks::new());
    let leaf = leaf(&blocks, LeafKind::RawCodec, b"leaf");
    for name in ["", ".", "..", "/x", "../x", "a/../../x", "a\0b", "a//b"] {
        let root = directory(&blocks, &[("fine", &leaf), (name, &leaf)]);
        let (bytes, error) = archive_of(blocks.clone(), "root", &root, LIMITS);
        assert!(bytes.is_empty() && matches!(error, Some(TarError::Name { .. })), "{name:?}: {error:?}");
    }
    for target in [&b".."[..], b"/etc/passwd", b"../../x", b"a/../b", b"", b"\xff"] {
        let link = symlink(&blocks, target);
        let root = directory(&blocks, &[("link", &link), ("x", &leaf)]);
        assert_eq!(whole(&blocks, "root", &root), whole(&blocks, "root", &directory(&blocks, &[("x", &leaf)])));
        let (bytes, error) = archive_of(blocks.clone(), "root", &link, LIMITS);
        assert!(bytes.is_empty() && matches!(error, Some(TarError::Symlink { .. })), "{target:?}: {error:?}");
    }
    // Entries through a symlink: by the same name, by a name with a slash, and by one with dots.
    let dir = directory(&blocks, &[("x", &leaf)]);
    let link = symlink(&blocks, b"y");
    let dots = directory(&blocks, &[("../link/x", &leaf)]);
    for next in [("link", &dir), ("link", &leaf), ("link/x", &leaf), ("m", &dots)] {
        let root = directory(&blocks, &[("link", &link), next]);
        let (bytes, error) = archive_of(blocks.clone(), "root", &root, LIMITS);
        assert!(matches!(error, Some(TarError::Name { .. })), "{next:?}: {error:?}");
        assert!(!bytes.ends_with(&[0; 1024]), "no end mark");
    }
    let beside = directory(&blocks, &[("link", &link), ("link2", &leaf), ("lin", &leaf)]);
    assert_eq!(archive_of(blocks.clone(), "root", &beside, LIMITS).1, None);
    for name in ["", "..", "a/b"] {
        assert!(matches!(archive_of(blocks.clone(), name, &beside, LIMITS).1, Some(TarError::Name { .. })));
    }
}

#[test]
fn entries_that_cannot_be_archived_are_errors_at_their_place() {
    let blocks = Arc::new(MemoryBlocks::new());
    let good = leaf(&blocks, LeafKind::RawCodec, b"good");
    let lost = Block::of(codec::RAW, content::hashes::SHA2_256, 32, "lost".into()).expect("block");
    let plain = add(&blocks, codec::DAG_PB, pb_node(&[], None, false));
    let cbor = add(&blocks, codec::DAG_CBOR, vec![0xa0]);
    let half = add(&blocks, codec::DAG_PB, file_node(b"own", &[(*lost.cid(), 4)], false, false));
    type Check = fn(&TarError) -> bool;
    let table: [(&Block, Check); 4] = [
        (&lost, |error| matches!(error, TarError::Source(SourceError::NotFound { .. }))),
        (&plain, |error| matches!(error, TarError::NotUnixFs { .. })),
        (&cbor, |error| matches!(error, TarError::Node(NodeError::Unsupported { .. }))),
        (&half, |error| matches!(error, TarError::Source(SourceError::NotFound { .. }))),
    ];
    for (bad, expected) in table {
        let root = directory(&blocks, &[("a", &good), ("bad", bad), ("z", &good)]);
        for source in [blocks.clone() as Arc<dyn BlockSource>, Arc::new(RemoteSource::new(blocks.clone(), 3, 9))] {
            let (bytes, error) = archive_of(source, "root", &root, LIMITS);
            assert!(error.as_ref().is_some_and(expected), "{error:?}");
            assert!(bytes.windows(4).any(|window| window == b"good") && !bytes.ends_with(&[0; 1024]));
        }
    }
}

#[test]
fn a_few_blocks_do_not_make_an_endless_archive() {
    let blocks = Arc::new(MemoryBlocks::new());
    let data = leaf(&blocks, LeafKind::RawCodec, &[7; 1_000]);
    let nest =
        |levels: usize| (0..levels).fold(data.clone(), |below, _| directory(&blocks, &[("a", &below), ("b", &below)]));
    let (bytes, error) = archive_of(blocks.clone(), "root", &nest(40), LIMITS);
    assert_eq!(error, Some(TarError::TooManyEntries { max: LIMITS.entries_max }));
    assert!(bytes.len() < 2_000 * 2_048);
    let (_, error) = archive_of(blocks.clone(), "root", &nest(65), LIMITS);
    assert!(matches!(error, Some(TarError::TooDeep { .. })), "{error:?}");
    let exactly = TarLimits { depth_max: 5, entries_max: 63, bytes_max: 32_000, ..LIMITS };
    assert_eq!(archive_of(blocks.clone(), "root", &nest(5), exactly).1, None);
    let (_, error) = archive_of(blocks.clone(), "root", &nest(5), TarLimits { bytes_max: 31_999, ..exactly });
    assert_eq!(error, Some(TarError::TooManyBytes { max_bytes: 31_999 }));
}

#[test]
fn entries_are_prefetched_within_the_window_and_dropping_cancels() {
    let blocks = Arc::new(MemoryBlocks::new());
    let files: Vec<Block> = (0..200).map(|n| leaf(&blocks, LeafKind::RawCodec, &content(n, 100))).collect();
    let entries: Vec<(String, &Block)> = files.iter().enumerate().map(|(n, file)| (n.to_string(), file)).collect();
    let entries: Vec<(&str, &Block)> = entries.iter().map(|(name, file)| (&**name, *file)).collect();
    let inner = directory(&blocks, &entries);
    let root = directory(&blocks, &[("d", &inner), ("e", &inner)]);
    let remote = Arc::new(RemoteSource::new(blocks.clone(), 3, 9));
    let (bytes, error) = archive_of(remote.clone(), "root", &root, LIMITS);
    assert_eq!((bytes.len(), error), ((3 + 400) * 512 + 400 * 512 + 1024, None));
    let in_flight_max = Counts::get(&remote.counts.in_flight_max);
    // Their sizes are unknown, so they count as 256 KiB each.
    assert!((5..=8 * 4).contains(&in_flight_max), "{in_flight_max}");

    let stalled = Arc::new(RemoteSource::stalled(blocks));
    let mut archive = stream(stalled.clone(), "root".to_owned(), root, LIMITS);
    let header: Bytes = block_on(archive.next()).expect("a header").expect("an available block");
    assert_eq!(header.len(), 512);
    assert!(futures::FutureExt::now_or_never(archive.next()).is_none());
    assert!(Counts::get(&stalled.counts.in_flight) > 0);
    drop(archive);
    assert_eq!(Counts::get(&stalled.counts.in_flight), 0);
}
