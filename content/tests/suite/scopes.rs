//! Which blocks a CAR response has, in which order and within which limits; and the archives made of them.

use crate::dags::{directory, walk};
use crate::support::*;
use bytes::Bytes;
use content::car::{CarReader, header, section};
use content::scope::{self, Child, DagScope, EntityBytes, ScopeError, ScopeLimits, ScopeOptions, Seen, blocks};
use content::unixfs::NodeError;
use content::unixfs::file::{FileReader, ReadLimits, file_size};
use content::{Block, BlockSource, Cid, MemoryBlocks, SourceError, cid, codec};
use futures::stream::{StreamExt as _, TryStreamExt as _};
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;

const LIMITS: ScopeLimits =
    ScopeLimits { depth_max: 1024, seen_max: 100_000, repeated_bytes_max: 1 << 20, look_ahead_bytes_max: 4 << 20 };

fn options(scope: DagScope, duplicates: bool) -> ScopeOptions {
    ScopeOptions { scope, entity_bytes: None, duplicates }
}

fn entity(bytes: &str) -> ScopeOptions {
    let entity_bytes = (!bytes.is_empty()).then(|| bytes.parse::<EntityBytes>().expect(bytes));
    ScopeOptions { scope: DagScope::Entity, entity_bytes, duplicates: false }
}

/// The emitted blocks, and the error that ended the stream.
fn emit(
    source: Arc<dyn BlockSource>,
    path: &[Cid],
    terminal: &Block,
    options: ScopeOptions,
    limits: ScopeLimits,
) -> (Vec<Block>, Option<ScopeError>) {
    block_on(async {
        let mut stream = blocks(source, path.to_vec(), terminal.clone(), options, limits);
        let mut found = Vec::new();
        while let Some(block) = stream.next().await {
            match block {
                Ok(block) => found.push(block),
                Err(error) => {
                    assert!(stream.next().await.is_none(), "nothing follows an error");
                    return (found, Some(error));
                }
            }
        }
        (found, None)
    })
}

fn cids(blocks: &[Block]) -> Vec<Cid> {
    blocks.iter().map(|block| *block.cid()).collect()
}

fn parse(texts: &[&str]) -> Vec<Cid> {
    texts.iter().map(|text| cid::parse(text).expect(text)).collect()
}

/// The blocks of a response for a path of a fixture, from a local and from a remote source.
fn of_fixture(name: &str, path: &str, options: ScopeOptions) -> Vec<Cid> {
    let (root, blocks) = fixture_car(&format!("conformance/{name}.car"));
    let mut resolved = walk(&*blocks, root, path).expect(path);
    resolved.roots.pop();
    let (near, error) = emit(blocks.clone(), &resolved.roots, &resolved.block, options, LIMITS);
    assert_eq!(error, None, "{name}/{path}");
    let remote = Arc::new(RemoteSource::new(blocks, 3, 9));
    let (far, error) = emit(remote, &resolved.roots, &resolved.block, options, LIMITS);
    assert_eq!((near.clone(), None), (far, error), "{name}/{path}");
    cids(&near)
}

/// The chunks of `multiblock.txt`: four of 256 bytes and one of two.
const CHUNKS: [&str; 5] = [
    "bafkreie5noke3mb7hqxukzcy73nl23k6lxszxi5w3dtmuwz62wnvkpsscm",
    "bafkreih4ephajybraj6wnxsbwjwa77fukurtpl7oj7t7pfq545duhot7cq",
    "bafkreigu7buvm3cfunb35766dn7tmqyh2um62zcio63en2btvxuybgcpue",
    "bafkreicll3huefkc3qnrzeony7zcfo7cr3nbx64hnxrqzsixpceg332fhe",
    "bafkreifst3pqztuvj57lycamoi7z34b4emf7gawxs74nwrc2c7jncmpaqm",
];

#[test]
fn ranges_of_the_conformance_suite_have_the_expected_blocks() {
    let table = [
        ("", 0..5),
        ("0:*", 0..5),
        ("512:*", 2..5),
        ("512:1023", 2..4),
        ("512:-256", 2..4),
        ("-5:*", 3..5),
        ("-9999:*", 0..5),
        ("-9999:-3", 0..4),
        ("0:0", 0..1),
        ("255:256", 0..2),
        ("1025:99999", 4..5),
        ("1026:*", 0..0),
    ];
    for (bytes, expected) in table {
        let found = of_fixture("subdir-with-mixed-block-files", "subdir/multiblock.txt", entity(bytes));
        assert_eq!(found[3..], parse(&CHUNKS)[expected], "{bytes}");
    }
    // The middle block of three is missing.
    let missing = "file-3k-and-3-blocks-missing-block";
    for (bytes, leaf) in [
        ("0:1000", "QmPKt7ptM2ZYSGPUc8PmPT2VBkLDK3iqpG9TBJY7PCE9rF"),
        ("2200:*", "QmWXY482zQdwecnfBsj78poUUuPXvyw2JAFAEMw4tzTavV"),
    ] {
        assert_eq!(of_fixture(missing, "", entity(bytes))[1..], parse(&[leaf]));
    }
    let (root, blocks) = fixture_car(&format!("conformance/{missing}.car"));
    let (found, error) = emit(blocks.clone(), &[], &blocks.peek(&root).expect("there"), entity(""), LIMITS);
    assert!(found.len() == 2 && matches!(error, Some(ScopeError::Source(SourceError::NotFound { .. }))), "{error:?}");
}

#[test]
fn scopes_of_the_conformance_suite_have_the_expected_blocks() {
    let (block, entity, all) = (DagScope::Block, DagScope::Entity, DagScope::All);
    let two = "subdir-with-two-single-block-files";
    let mixed = "subdir-with-mixed-block-files";
    let cbor = "dir-with-dag-cbor-with-links";
    let table = [
        (two, "subdir", block, 2),
        (two, "subdir/ascii.txt", block, 3),
        (two, "subdir/ascii.txt", all, 3),
        (two, "", entity, 1),
        (two, "subdir", entity, 2),
        (two, "", all, 4),
        (mixed, "subdir/ascii.txt", entity, 3),
        (mixed, "subdir/multiblock.txt", block, 3),
        (mixed, "subdir/multiblock.txt", entity, 8),
        (mixed, "subdir/multiblock.txt", DagScope::File, 8),
        (two, "subdir", DagScope::File, 2),
        (cbor, "document", DagScope::File, 2),
        (mixed, "subdir/multiblock.txt", all, 8),
        (cbor, "document", entity, 2),
        (cbor, "document", block, 2),
    ];
    for (name, path, scope, count) in table {
        for duplicates in [false, true] {
            let found = of_fixture(name, path, options(scope, duplicates));
            assert_eq!(found.len(), count, "{name}/{path} {scope:?}");
            let (root, blocks) = fixture_car(&format!("conformance/{name}.car"));
            let walked = walk(&*blocks, root, path).expect(path);
            assert_eq!(found[..walked.roots.len()], walked.roots, "the path comes first");
        }
    }
    // The links of a document are followed with the scope "all".
    assert!(of_fixture(cbor, "document", options(all, false)).len() > 2);
    assert!(of_fixture("dag-json-traversal", "", options(all, false)).len() > 1);
}

/// The blocks of a request by following [`scope::expand`] from its root, depth first.
fn expanded(blocks: &MemoryBlocks, root: Cid, path: &[String], options: ScopeOptions) -> Vec<Cid> {
    let (mut seen, mut out) = (Seen::new(100_000), Vec::new());
    let mut stack = vec![Child::root(root, path.to_vec(), options)];
    while let Some(child) = stack.pop() {
        if seen.is_repeat(&child) {
            continue;
        }
        let Some(block) = Block::inline(&child.cid).or_else(|| blocks.peek(&child.cid)) else { continue };
        if content::BlockKey::of(&child.cid).is_some() && seen.visit(&child).expect("has room") {
            out.push(child.cid);
        }
        let mut children = Vec::new();
        if let Some(mut iter) = scope::expand(&block, &child.role).expect("decodes") {
            while let Some(child) = iter.next_child().expect("decodes") {
                children.push(child);
            }
        }
        stack.extend(children.into_iter().rev());
    }
    out
}

#[test]
fn the_pure_expansion_from_a_root_finds_the_path_and_the_scope() {
    let paths = [
        ("conformance/subdir-with-mixed-block-files", "subdir/multiblock.txt"),
        ("conformance/subdir-with-mixed-block-files", "subdir"),
        ("conformance/subdir-with-mixed-block-files", ""),
        ("conformance/dir-with-files", ""),
        ("conformance/dir-with-dag-cbor-with-links", "document"),
        ("conformance/dag-json-traversal", ""),
        ("kubo/hamt-8", ""),
    ];
    let ranges = ["", "0:*", "512:1023", "-5:*", "1026:*", "255:256"];
    let scopes = [DagScope::Block, DagScope::All].map(|scope| options(scope, false));
    for (name, path) in paths {
        let (root, stored) = fixture_car(&format!("{name}.car"));
        let segments: Vec<String> = path.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let resolved = block_on(content::walk::resolve(&*stored, root, &segments)).expect(path);
        for options in scopes.into_iter().chain(ranges.map(entity)) {
            let (expected, error) = emit(stored.clone(), &resolved.passed, &resolved.block, options, LIMITS);
            assert_eq!(error, None, "{name}/{path}");
            assert_eq!(expanded(&stored, root, &segments, options), cids(&expected), "{name}/{path} {options:?}");
        }
        let missing = [&segments[..], &["missing".to_owned()]].concat();
        let way = expanded(&stored, root, &missing, options(DagScope::All, false));
        assert!(way.starts_with(&resolved.passed) && way.len() > resolved.passed.len(), "{name}/{path}");
    }
    // Every name of a deep HAMT, whose shards prove it.
    let (root, stored) = fixture_car("kubo/hamt-8.car");
    let terminal = stored.peek(&root).expect("there");
    for entry in crate::directories::list_all(stored.clone(), &terminal).expect("lists").into_iter().take(50) {
        let segments = [entry.name];
        let resolved = block_on(content::walk::resolve(&*stored, root, &segments)).expect("resolves");
        let (expected, _) = emit(stored.clone(), &resolved.passed, &resolved.block, entity(""), LIMITS);
        assert_eq!(expanded(&stored, root, &segments, entity("")), cids(&expected), "{segments:?}");
    }
}

#[test]
fn a_repeated_file_is_emitted_again_with_duplicates() {
    let name = "dir-with-files";
    let of =
        |path| *walk(&*fixture_car(&format!("conformance/{name}.car")).1, root(name), path).expect(path).block.cid();
    let tail = [vec![of("hello.txt"), of("multiblock.txt")], parse(&CHUNKS)].concat();
    let once = [vec![root(name), of("ascii.txt")], tail.clone()].concat();
    let again = [vec![root(name), of("ascii-copy.txt"), of("ascii.txt")], tail].concat();
    assert_eq!(of_fixture(name, "", options(DagScope::All, false)), once);
    assert_eq!(of_fixture(name, "", options(DagScope::All, true)), again);
}

fn root(name: &str) -> Cid {
    fixture_car(&format!("conformance/{name}.car")).0
}

#[test]
fn a_sharded_directory_has_all_its_shards_and_no_files() {
    for fanout in [8, 16, 64, 256, 1024] {
        let (root, blocks) = fixture_car(&format!("kubo/hamt-{fanout}.car"));
        let terminal = blocks.peek(&root).expect("there");
        let (all, error) = emit(blocks.clone(), &[], &terminal, options(DagScope::All, false), LIMITS);
        assert_eq!((all.len(), error), (blocks.len(), None), "its files are inline");
        let remote = Arc::new(RemoteSource::new(blocks.clone(), 3, 9));
        let (shards, error) = emit(remote, &[], &terminal, entity("0:5"), LIMITS);
        assert_eq!((shards, error), (all, None), "{fanout}");
        let (alone, error) = emit(blocks, &[], &terminal, options(DagScope::File, false), LIMITS);
        assert_eq!((cids(&alone), error), (vec![root], None), "{fanout}: it is no file");
    }
    let (root, blocks) = fixture_car("conformance/single-layer-hamt-with-multi-block-files.car");
    let terminal = blocks.peek(&root).expect("there");
    let (shards, error) = emit(blocks.clone(), &[], &terminal, entity(""), LIMITS);
    assert!(error.is_none() && shards.len() > 1 && shards.len() < blocks.len());
    // They are enough to list the directory.
    let shards: Arc<MemoryBlocks> = Arc::new(shards.into_iter().collect());
    assert_eq!(crate::directories::list_all(shards, &terminal), crate::directories::list_all(blocks, &terminal));
}

/// The expected blocks with [`DagScope::All`], by the simplest implementation.
fn naive(blocks: &MemoryBlocks, block: &Block, duplicates: bool, seen: &mut HashSet<Vec<u8>>, out: &mut Vec<Cid>) {
    let first = seen.insert(block.cid().hash().to_bytes());
    if block.key().is_some() && (first || duplicates) {
        out.push(*block.cid());
    }
    for link in content::dag::links(block).unwrap_or_default() {
        let child = Block::inline(&link).or_else(|| blocks.peek(&link)).expect("there");
        naive(blocks, &child, duplicates, seen, out);
    }
}

/// A dag-cbor list of links.
pub fn cbor_links(links: &[Cid]) -> Vec<u8> {
    let mut out = vec![0x98, u8::try_from(links.len()).expect("few")];
    if links.len() < 24 {
        out = vec![0x80 | links.len() as u8];
    }
    for link in links {
        let bytes = link.to_bytes();
        let length = u8::try_from(bytes.len() + 1).expect("short");
        out.extend_from_slice(if length < 24 { &[0xd8, 42] } else { &[0xd8, 42, 0x58] });
        out.push(if length < 24 { 0x40 | length } else { length });
        out.push(0);
        out.extend_from_slice(&bytes);
    }
    out
}

/// The root of a DAG with one node for each element of `nodes`, which has a kind and links to some of the nodes before.
fn random_dag(blocks: &MemoryBlocks, nodes: &[(u8, Vec<usize>)]) -> Block {
    let mut made: Vec<Block> = vec![leaf(blocks, LeafKind::RawCodec, b"leaf")];
    for (index, (kind, links)) in nodes.iter().enumerate() {
        let links: Vec<Cid> = links.iter().map(|link| *made[link % made.len()].cid()).collect();
        let pb: Vec<Link> = links.iter().map(|cid| Link::to(*cid, "x")).collect();
        let block = match kind {
            0 => add(blocks, codec::DAG_PB, pb_node(&pb, None, false)),
            1 => add(blocks, codec::DAG_CBOR, cbor_links(&links)),
            // The serde codec supports no longer digests.
            2 if links.iter().all(|cid| cid.hash().digest().len() <= 64) => {
                let list: Vec<String> = links.iter().map(|cid| format!(r#"{{"/": "{cid}"}}"#)).collect();
                add(blocks, codec::DAG_JSON, format!("[{}]", list.join(",")).into_bytes())
            }
            3 if pb.len() < 3 && pb.iter().all(|link| link.cid.to_bytes().len() < 40) => {
                inline(codec::DAG_PB, &pb_node(&pb, None, false))
            }
            4 => made[index].under(&Cid::new_v1(codec::RAW, *made[index].cid().hash())).expect("same hash"),
            5 => add(blocks, 0x78, links.iter().flat_map(Cid::to_bytes).collect()),
            _ => leaf(blocks, LeafKind::PbFile, &content(index as u64, 50)),
        };
        made.push(block);
    }
    made.pop().expect("a root")
}

/// The roots and blocks of an archive made of the emitted blocks.
fn through_a_car(roots: &[Cid], blocks: &[Block]) -> (Vec<Cid>, Vec<Block>) {
    let mut car = header(roots).to_vec();
    for block in blocks {
        let (head, data) = section(block);
        assert!(data.is_empty() || data.as_ptr() == block.data().as_ptr(), "not copied");
        car.extend_from_slice(&head);
        car.extend_from_slice(&data);
    }
    block_on(async {
        let reader = CarReader::new(&car[..]).await.expect("a CAR");
        let roots = reader.roots().to_vec();
        (roots, reader.into_blocks().try_collect().await.expect("every section is good"))
    })
}

#[test]
fn headers_with_any_number_of_roots_are_read_back() {
    for count in [0, 1, 23, 24, 300] {
        let roots: Vec<Cid> = (0..count).map(|n: u32| *inline(codec::RAW, &n.to_be_bytes()).cid()).collect();
        assert_eq!(through_a_car(&roots, &[]), (roots.clone(), vec![]));
        if count <= 23 {
            assert_eq!(header(&roots), write_car(&car_header(&roots), []), "byte for byte");
        }
    }
    let long = *inline(codec::RAW, &[7; 128]).cid();
    assert_eq!(through_a_car(&[long], &[]).0, [long]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn blocks_are_emitted_depth_first_when_they_arrive_out_of_order(
        nodes in prop::collection::vec((0_u8..8, prop::collection::vec(0_usize..100, 0..4)), 1..14),
        seed: u64,
        duplicates: bool,
        look_ahead_bytes_max in 0_usize..600_000,
    ) {
        let blocks = Arc::new(MemoryBlocks::new());
        let root = random_dag(&blocks, &nodes);
        let mut expected = Vec::new();
        naive(&blocks, &root, duplicates, &mut HashSet::new(), &mut expected);
        let limits = ScopeLimits { look_ahead_bytes_max, repeated_bytes_max: u64::MAX, ..LIMITS };
        let remote = Arc::new(RemoteSource::new(blocks.clone(), seed, 9));
        let sources: [Arc<dyn BlockSource>; 2] = [blocks, remote.clone()];
        for source in sources {
            let (found, error) = emit(source, &[], &root, options(DagScope::All, duplicates), limits);
            prop_assert_eq!(error, None);
            prop_assert_eq!(cids(&found), expected.clone());
            prop_assert_eq!(through_a_car(&[*root.cid()], &found), (vec![*root.cid()], found.clone()));
            let distinct: HashSet<_> = found.iter().filter_map(Block::key).collect();
            prop_assert!(duplicates || distinct.len() == found.len(), "a set");
        }
        prop_assert_eq!(Counts::get(&remote.counts.in_flight), 0, "nothing stays in flight");
    }

    #[test]
    fn a_range_has_exactly_the_blocks_that_reading_it_takes(
        size in 1_usize..3_000,
        chunk in 20_usize..200,
        width in 2_usize..5,
        shape in 0_usize..3,
        (from, to) in (-3_500_i64..3_500, prop::option::of(-3_500_i64..3_500)),
        duplicates: bool,
        seed: u64,
    ) {
        let Ok(bytes) = EntityBytes::new(from, to) else { return Ok(()) };
        let blocks = Arc::new(MemoryBlocks::new());
        // The third shape has duplicate leaves and sub-trees.
        let data = if shape == 2 { Bytes::from(vec![7; size]) } else { content(seed, size) };
        let root = if shape == 1 {
            trickle(&blocks, &data, chunk, width, LeafKind::PbFile)
        } else {
            balanced(&blocks, &data, chunk, width, LeafKind::RawCodec)
        };
        let requested = ScopeOptions { scope: DagScope::Entity, entity_bytes: Some(bytes), duplicates };
        let remote = Arc::new(RemoteSource::new(blocks.clone(), seed, 9));
        let (found, error) = emit(remote, &[], &root, requested, LIMITS);
        prop_assert_eq!(error, None);
        let range = bytes.resolve(size as u64);
        let is_leaf = |block: &&Block| content::dag::links(block).is_ok_and(|links| links.is_empty());
        let leaves = found.iter().filter(is_leaf).count();
        let wanted = range.clone().map_or(0, |range| range.end.div_ceil(chunk as u64) - range.start / chunk as u64);
        if root.cid() == found[0].cid() && size > chunk && (shape != 2 || duplicates) {
            prop_assert_eq!(leaves as u64, wanted);
        }
        let held: Arc<MemoryBlocks> = Arc::new(found.into_iter().collect());
        let range = range.unwrap_or(0..0);
        let reader = FileReader::new(held, root, range.clone(), ReadLimits::default()).expect("a file");
        let read: Vec<Bytes> = block_on(reader.try_collect()).expect("every block is there");
        prop_assert_eq!(read.concat(), &data[range.start as usize..range.end as usize]);
    }
}

/// A chain of nodes with two links to the next one: `2^levels` leaves in `levels + 1` blocks.
fn doubling(blocks: &MemoryBlocks, levels: usize) -> Block {
    let mut block = leaf(blocks, LeafKind::PbFile, b"leaf");
    for _ in 0..levels {
        let cid = *block.cid();
        block = add(blocks, codec::DAG_PB, pb_node(&[Link::to(cid, "a"), Link::to(cid, "b")], None, false));
    }
    block
}

#[test]
fn a_few_blocks_do_not_make_an_endless_response() {
    let blocks = Arc::new(MemoryBlocks::new());
    let root = doubling(&blocks, 40);
    let sources: [Arc<dyn BlockSource>; 2] = [blocks.clone(), Arc::new(RemoteSource::new(blocks, 1, 5))];
    for source in sources {
        let (found, error) = emit(source.clone(), &[], &root, options(DagScope::All, false), LIMITS);
        assert_eq!((found.len(), error), (41, None));
        let (found, error) = emit(source, &[], &root, options(DagScope::All, true), LIMITS);
        assert_eq!(error, Some(ScopeError::TooManyRepeats { max_bytes: LIMITS.repeated_bytes_max }));
        let bytes: usize = found.iter().map(|block| block.data().len()).sum();
        assert!(bytes > 1 << 19 && bytes < (1 << 20) + 10_000, "{bytes}");
    }
    // The same as a file, with a range that begins and ends in the middle of duplicate nodes.
    let blocks = Arc::new(MemoryBlocks::new());
    let (mut block, mut size) = (leaf(&blocks, LeafKind::RawCodec, b"leaf"), 4);
    for _ in 0..40 {
        let cid = *block.cid();
        block = add(&blocks, codec::DAG_PB, file_node(&[], &[(cid, size), (cid, size)], false, false));
        size *= 2;
    }
    for bytes in ["", "0:*", "1000000000:-7000000", "5:5"] {
        let (found, error) = emit(blocks.clone(), &[], &block, entity(bytes), LIMITS);
        assert_eq!((found.len(), error), (41, None), "{bytes}");
    }
}

#[test]
fn levels_and_recorded_blocks_are_bounded() {
    let blocks = Arc::new(MemoryBlocks::new());
    let root = doubling(&blocks, 10);
    let all = |limits| emit(blocks.clone(), &[], &root, options(DagScope::All, false), limits);
    assert_eq!(all(ScopeLimits { depth_max: 10, ..LIMITS }).1, None);
    let (found, error) = all(ScopeLimits { depth_max: 9, ..LIMITS });
    assert!(found.len() == 10 && matches!(error, Some(ScopeError::TooDeep { .. })), "{error:?}");
    let (found, error) = all(ScopeLimits { seen_max: 11, ..LIMITS });
    assert_eq!((found.len(), error), (5, Some(ScopeError::TooManyBlocks { max: 11 })));
}

#[test]
fn inline_blocks_are_traversed_and_not_emitted() {
    let blocks = Arc::new(MemoryBlocks::new());
    let file = leaf(&blocks, LeafKind::RawCodec, b"file");
    let inlined = inline(codec::DAG_PB, &pb_node(&[Link::to(*file.cid(), "f")], None, false));
    let root = directory(&blocks, &[("in", &inlined)]);
    for duplicates in [false, true] {
        for scope in [DagScope::Block, DagScope::Entity, DagScope::All] {
            let (found, _) = emit(blocks.clone(), &[], &inline(codec::RAW, b"x"), options(scope, duplicates), LIMITS);
            assert_eq!(found, []);
        }
        let (found, _) = emit(blocks.clone(), &[], &root, options(DagScope::All, duplicates), LIMITS);
        assert_eq!(found, [root.clone(), file.clone()]);
        let path = [*root.cid(), *inlined.cid()];
        let (found, _) = emit(blocks.clone(), &path, &file, options(DagScope::All, duplicates), LIMITS);
        assert_eq!(found, [root.clone(), file.clone()]);
    }
}

#[test]
fn errors_are_at_their_place() {
    let blocks = Arc::new(MemoryBlocks::new());
    let (a, z) = (leaf(&blocks, LeafKind::RawCodec, b"a"), leaf(&blocks, LeafKind::RawCodec, b"z"));
    let lost = Block::of(codec::RAW, content::hashes::SHA2_256, 32, "lost".into()).expect("block");
    let broken = add(&blocks, codec::DAG_PB, b"garbage".to_vec());
    let unknown = add(&blocks, 0x78, b"tree".to_vec());
    let all = options(DagScope::All, false);
    for (middle, emitted) in [(&lost, 2), (&broken, 3)] {
        let root = directory(&blocks, &[("a", &a), ("m", middle), ("z", &z)]);
        for polls_max in [0, 9] {
            let remote = Arc::new(RemoteSource::new(blocks.clone(), 5, polls_max));
            let (found, error) = emit(remote, &[], &root, all, LIMITS);
            assert_eq!(found.len(), emitted, "{error:?}");
            match error.expect("an error") {
                ScopeError::Source(error) => assert_eq!(error, SourceError::NotFound { cid: *lost.cid() }),
                error => {
                    assert!(matches!(error, ScopeError::Node(NodeError::Malformed { cid, .. }) if cid == *broken.cid()))
                }
            }
        }
    }
    let root = directory(&blocks, &[("u", &unknown), ("z", &z)]);
    assert_eq!(emit(blocks.clone(), &[], &root, all, LIMITS), (vec![root, unknown, z.clone()], None));
    // A malformed document is emitted, and its links are followed as far as they can be found.
    let linked = [0xd8, 42, 0x58, 37, 0].into_iter().chain(a.cid().to_bytes()).collect::<Vec<u8>>();
    let list = |head: &[u8], tail: &[u8]| add(&blocks, codec::DAG_CBOR, [head, &linked, tail].concat());
    let (trailing, endless, cut) = (list(&[0x81], &[0]), list(&[0x9f], &[0xff]), list(&[0x81], &[0x18]));
    let (no_json, no_cbor) =
        (add(&blocks, codec::DAG_JSON, b"{".to_vec()), add(&blocks, codec::DAG_CBOR, vec![0xff, 0x1c]));
    for (broken, follows) in [(trailing, true), (endless, true), (cut, false), (no_json, false), (no_cbor, false)] {
        let root = directory(&blocks, &[("b", &broken), ("z", &z)]);
        let below = follows.then(|| a.clone());
        let expected = [root.clone(), broken].into_iter().chain(below).chain([z.clone()]).collect();
        assert_eq!(emit(blocks.clone(), &[], &root, all, LIMITS), (expected, None));
    }
    let lying = add(&blocks, codec::DAG_PB, file_node(&[], &[(*a.cid(), 7)], false, false));
    let (found, error) = emit(blocks.clone(), &[], &lying, entity(""), LIMITS);
    assert!(found.len() == 2 && matches!(error, Some(ScopeError::Node(NodeError::Malformed { .. }))), "{error:?}");
    let nested = add(&blocks, codec::DAG_PB, file_node(&[], &[(*lying.cid(), 8)], false, false));
    assert!(emit(blocks, &[], &nested, entity(""), LIMITS).1.is_some());
}

#[test]
fn blocks_are_prefetched_within_the_window_and_dropping_cancels() {
    let blocks = Arc::new(MemoryBlocks::new());
    let leaves: Vec<Block> = (0..400).map(|n| leaf(&blocks, LeafKind::RawCodec, &content(n, 100_000))).collect();
    let dirs: Vec<Block> =
        leaves.chunks(4).map(|four| directory(&blocks, &[("x", &four[0]), ("y", &four[1])])).collect();
    let entries: Vec<(&str, &Block)> = dirs.iter().map(|dir| ("d", dir)).collect();
    let root = directory(&blocks, &entries);
    let remote = Arc::new(RemoteSource::new(blocks.clone(), 7, 40));
    let all = options(DagScope::All, false);
    block_on(async {
        let mut stream = content::scope::blocks(remote.clone(), vec![], root.clone(), all, LIMITS);
        let mut count = 0;
        while let Some(block) = stream.next().await {
            remote
                .counts
                .consumed_bytes
                .fetch_add(block.expect("there").data().len(), std::sync::atomic::Ordering::Relaxed);
            count += 1;
        }
        assert_eq!(count, 301);
    });
    let counts = &remote.counts;
    assert!(Counts::get(&counts.in_flight_max) > 8, "{}", Counts::get(&counts.in_flight_max));
    assert!(
        Counts::get(&counts.prefetched_bytes_max) < (4 << 20) + (1 << 19),
        "{}",
        Counts::get(&counts.prefetched_bytes_max)
    );
    assert_eq!(Counts::get(&counts.gets), 300, "each once");

    let stalled = Arc::new(RemoteSource::stalled(blocks));
    let mut stream = content::scope::blocks(stalled.clone(), vec![], root, all, LIMITS);
    block_on(stream.next()).expect("the root").expect("an available block");
    assert!(futures::FutureExt::now_or_never(stream.next()).is_none());
    assert!(Counts::get(&stalled.counts.in_flight) > 0);
    drop(stream);
    assert_eq!(Counts::get(&stalled.counts.in_flight), 0);
}

#[test]
fn entities_other_than_files_and_directories_are_one_block() {
    let blocks = Arc::new(MemoryBlocks::new());
    let file = leaf(&blocks, LeafKind::RawCodec, b"file");
    let symlink = pb_node(&[], Some(&Message::default().varint(1, SYMLINK).bytes(2, b"a/file").0), false);
    let metadata = pb_node(&[], Some(&Message::default().varint(1, 3).0), false);
    let alone = [
        add(&blocks, codec::DAG_PB, symlink),
        add(&blocks, codec::DAG_PB, metadata),
        add(&blocks, codec::DAG_PB, pb_node(&[Link::to(*file.cid(), "f")], Some(b"hello"), false)),
        add(&blocks, codec::DAG_PB, pb_node(&[Link::to(*file.cid(), "f")], None, false)),
        add(&blocks, codec::DAG_CBOR, cbor_links(&[*file.cid()])),
        add(&blocks, codec::JSON, b"{}".to_vec()),
        directory(&blocks, &[("f", &file)]),
        file,
    ];
    for block in alone {
        assert_eq!(emit(blocks.clone(), &[], &block, entity("1:*"), LIMITS), (vec![block], None));
    }
    assert_eq!(file_size(&leaf(&blocks, LeafKind::RawCodec, b"file")), Ok(4));
}
