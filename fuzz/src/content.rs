//! The fuzz targets of `content`: files, archives, records and paths from untrusted sources.

use bytes::Bytes;
use content::car::{self, CarReader};
use content::dagpb::PbNode;
use content::denylist::{List, ListBuilder, Matcher, Rule, Source};
use content::ipld::{self, Ipld, OutlineLimits};
use content::ipns::{Draft, Record};
use content::names::{Key, Name};
use content::packed::SeekTable;
use content::path::{self, ContentPath, Namespace, Root};
use content::redirects::{self, Match, Rules, Target};
use content::scope::{self, DagScope, EntityBytes, ScopeLimits, ScopeOptions};
use content::stored::Slice;
use content::stored::coding::{self, BodyDecoder};
use content::tar::{self, TarLimits};
use content::unixfs::file::{FileReader, ReadLimits};
use content::unixfs::{Node, dir};
use content::{Block, BlockSource, Cid, MemoryBlocks, Policy, Verdict, Work, codec, dag, dnslink, hashes};
use futures::StreamExt as _;
use futures::executor::block_on;
use libp2p_identity::Keypair;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use prost::encoding::{WireType, encode_key, encode_varint};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// A fuzz target.
pub type Function = fn(&[u8]);

/// All targets, by the name of their fuzzer and corpus.
pub const TARGETS: [(&str, Function); 13] = [
    ("url_path", url_path),
    ("redirects", redirects),
    ("denylist", denylist),
    ("car", car),
    ("dag_pb", dag_pb),
    ("unixfs", unixfs),
    ("archives", archives),
    ("dag_cbor", dag_cbor),
    ("dag_json", dag_json),
    ("ipns_record", ipns_record),
    ("dnslink", dnslink),
    ("zstd_body", zstd_body),
    ("packed", packed),
];

/// The maximum number of segments in a path.
const DEPTH_MAX: usize = 8;
/// The root of paths.
const ROOT: &str = "bafkqaddjnzzxazldoqwxizltoq";

/// The maximum number of bytes to which a body is decoded.
const BODY_BYTES_MAX: usize = 1 << 20;

/// A body in the content coding zstd. What is decoded in pieces is what is decoded at once, and no more than asked for.
pub fn zstd_body(data: &[u8]) {
    let whole = coding::decode_body(data, BODY_BYTES_MAX);
    if let Ok(whole) = &whole {
        assert!(whole.len() <= BODY_BYTES_MAX);
    }
    let Ok(mut decoder) = BodyDecoder::new() else { return };
    let mut pieces = Vec::new();
    for piece in data.chunks(100) {
        let mut input = Bytes::copy_from_slice(piece);
        loop {
            let mut out = Vec::with_capacity(1000);
            if decoder.decode(&mut input, &mut out).is_err() {
                return;
            }
            assert!(out.capacity() == 1000 && out.len() <= 1000, "the space for it does not grow");
            pieces.extend_from_slice(&out);
            if out.len() < 1000 {
                break;
            }
            if pieces.len() > BODY_BYTES_MAX {
                assert!(whole.is_err(), "it is too long");
                return;
            }
        }
        assert!(input.is_empty());
    }
    assert_eq!(decoder.bytes(), (data.len() as u64, pieces.len() as u64));
    if let (Ok(()), Ok(whole)) = (decoder.finish(), whole) {
        assert!(whole == pieces);
    }
}

/// The path of a URL. Paths never leave their root, and survive encoding and parsing.
pub fn url_path(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let parsed = ContentPath::parse(text, DEPTH_MAX);
    if let Ok(decoded) = path::decode(text) {
        assert_eq!(parsed, ContentPath::read(&decoded, DEPTH_MAX), "parsing is decoding and reading");
    }
    parsed.iter().for_each(check_path);
    let root = Root::Cid(ROOT.parse().expect("a CID"));
    ContentPath::below(root, text, DEPTH_MAX).iter().for_each(check_path);
    if let Some((_, rest)) = Namespace::split(text) {
        check_name(rest);
    }
    check_name(text);
}

fn check_path(path: &ContentPath) {
    assert!(path.segments.len() <= DEPTH_MAX);
    let is_name = |segment: &String| !matches!(segment.as_str(), "" | "." | "..") && !segment.contains('/');
    assert!(path.segments.iter().all(is_name), "{path:?}");
    assert_eq!(path.name(), path.segments.last().map(String::as_str));
    let mut text = match &path.root {
        Root::Cid(cid) => format!("{}{cid}", Namespace::Ipfs.prefix()),
        Root::Name(name) => format!("{}{name}", Namespace::Ipns.prefix()),
    };
    for segment in &path.segments {
        text.extend(["/"].into_iter().chain(utf8_percent_encode(segment, NON_ALPHANUMERIC)));
    }
    if path.trailing_slash {
        text.push('/');
    }
    assert_eq!(ContentPath::parse(&text, DEPTH_MAX).as_ref(), Ok(path), "{text}");
}

fn check_name(text: &str) {
    if let Ok(name) = Name::parse(text) {
        assert_eq!(Name::parse(&name.to_string()), Ok(name));
    }
}

/// A path, a line end, and a `_redirects` file.
pub fn redirects(data: &[u8]) {
    let Some(at) = data.iter().position(|byte| *byte == b'\n') else { return };
    let (path, file) = (&data[..at], &data[at + 1..]);
    let (Ok(path), Ok(rules)) = (str::from_utf8(path), Rules::parse(file)) else { return };
    let found = rules.find(path, &Work::unlimited());
    if !path.ends_with('/') {
        assert_eq!(rules.find(&format!("{path}/"), &Work::unlimited()), found, "a trailing slash is ignored");
    }
    let of_line = |line: &[u8]| Rules::parse(line).expect("a line of a good file").find(path, &Work::unlimited());
    assert_eq!(file.split(|byte| *byte == b'\n').find_map(of_line), found, "the first matching line is used");
    if let Some(found) = found {
        check_match(&found);
    }
}

/// A denylist. Incremental parsing gives the same list, and a rule survives being displayed and parsed.
pub fn denylist(data: &[u8]) {
    let whole = List::parse(data);
    let mut builder = ListBuilder::default();
    let pieces = data.chunks(7).try_for_each(|piece| {
        builder.push(piece)?;
        _ = builder.list();
        Ok::<_, content::denylist::HeaderError>(())
    });
    assert_eq!(whole.is_err(), pieces.is_err());
    if let Ok(whole) = &whole {
        let list = builder.list();
        assert_eq!((whole.rules(), whole.malformed()), (list.rules(), list.malformed()));
        assert!(whole.rules() + whole.malformed() <= 1 + data.iter().filter(|byte| **byte == b'\n').count() as u64);
    }
    let root = ROOT.parse().expect("a CID");
    let lists = whole.into_iter().map(|list| Source { id: "list".into(), list, status: Verdict::Gone });
    let matcher = Matcher::new(lists);
    for path in ["", "a", "a/b"] {
        assert_eq!(matcher.check_path(&root, path), matcher.check_path(&root, path));
        _ = matcher.check_below(&root, path);
    }
    for rule in data.split(|byte| *byte == b'\n').filter_map(|line| Rule::parse(str::from_utf8(line).ok()?).ok()?) {
        if matches!(rule.target, content::denylist::Target::Double { other: Some(_), .. }) {
            // Only one of its two hashes is displayed.
            continue;
        }
        let printed = rule.to_string();
        let read = Rule::parse(&printed).expect("a displayed rule is valid").expect("not a comment");
        assert_eq!((&read.target, read.allows), (&rule.target, rule.allows), "{printed}");
    }
}

fn check_match(found: &Match) {
    let is_redirect = [301, 302, 303, 307, 308].contains(&found.status);
    assert!(is_redirect || [200, 404, 410, 451].contains(&found.status));
    match &found.to {
        Target::Location(to) => {
            assert!(is_redirect && to.bytes().all(|byte| byte.is_ascii_graphic()), "{to:?}");
            assert!(to.len() <= redirects::TARGET_BYTES_MAX);
            let joined = redirects::with_query(to, "a=b");
            assert!(joined.contains("?a=b") || joined.contains("&a=b"));
            assert_eq!(redirects::with_query(to, ""), *to);
        }
        Target::Path(to) => assert!(!is_redirect && to.starts_with('/') && to.len() <= redirects::TARGET_BYTES_MAX),
        Target::Elsewhere => assert!(!is_redirect),
        Target::TooLong => {}
    }
}

/// A CAR. Its blocks match their CIDs, have no more bytes than the archive, and do not depend on how it is received.
pub fn car(data: &[u8]) {
    let (blocks, failed) = read_car(data);
    assert!(blocks.iter().map(|block| block.data().len()).sum::<usize>() <= data.len());
    for block in &blocks {
        assert_eq!(Block::verify(*block.cid(), block.data().clone()).as_ref(), Ok(block));
    }
    let header = car::header(&blocks.iter().map(|block| *block.cid()).collect::<Vec<_>>());
    let sections = blocks.iter().map(car::section).flat_map(|(head, data)| [head, data]);
    let written = [header].into_iter().chain(sections).collect::<Vec<_>>().concat();
    assert_eq!(read_car(&written[..]), (blocks.clone(), false), "what is encoded is decoded");
    let at = usize::from(data.last().copied().unwrap_or_default()).min(data.len());
    assert_eq!(read_car(data[..at].chain(&data[at..])), (blocks, failed), "split at {at}");
}

/// The blocks of an archive, and whether it ends in an error.
fn read_car(archive: impl AsyncRead + Unpin) -> (Vec<Block>, bool) {
    block_on(async {
        let Ok(mut car) = CarReader::new(archive).await else { return (Vec::new(), true) };
        let mut blocks = Vec::new();
        while let Some(block) = car.next_block().await {
            match block {
                Ok(block) => blocks.push(block),
                Err(_) => return (blocks, true),
            }
        }
        (blocks, false)
    })
}

/// A dag-pb block: as a node, and as UnixFS.
pub fn dag_pb(data: &[u8]) {
    let block = block(codec::DAG_PB, data);
    let source: Arc<dyn BlockSource> = Arc::new(MemoryBlocks::from_iter([block.clone()]));
    read_unixfs(&source, &block);
    let Ok(node) = PbNode::decode(block.data().clone()) else {
        assert!(Node::decode(&block).is_err() && dag::links(&block).is_err());
        return;
    };
    assert!(2 * node.link_count() <= data.len());
    let links: Result<Vec<_>, _> = node.links().map(|link| link.and_then(|link| Ok((link, link.cid()?)))).collect();
    let cids = links.as_ref().map(|links| links.iter().map(|(_, cid)| *cid).collect::<Vec<_>>());
    assert_eq!(dag::links(&block).ok(), cids.ok());
    if let Ok(links) = links {
        let mut message = Message::default();
        for (link, cid) in &links {
            let link_message = Message::default().bytes(1, &cid.to_bytes()).bytes(2, link.name);
            message = message.bytes(2, &link.tsize.into_iter().fold(link_message, |link, size| link.varint(3, size)).0);
        }
        let message = node.data().into_iter().fold(message, |message, data| message.bytes(1, data));
        let again = PbNode::decode(message.0.into()).expect("what was encoded is decoded");
        let read: Vec<_> = again.links().map(|link| link.expect("a link")).collect();
        assert_eq!(read.len(), links.len());
        assert!(read.iter().zip(&links).all(|(read, (link, cid))| {
            (read.name, read.tsize, read.cid().as_ref()) == (link.name, link.tsize, Ok(cid))
        }));
        assert_eq!(again.data(), node.data());
    }
}

/// A recipe for a DAG, which is read as UnixFS.
pub fn unixfs(data: &[u8]) {
    let (source, blocks) = Recipe(data).cook();
    if let Some(root) = blocks.last() {
        read_unixfs(&source, root);
        let reached = dag::walk_all(Arc::clone(&source), *root.cid(), 4);
        assert!(block_on(reached.count()) <= blocks.len() + 1, "each block once, and possibly an error");
    }
}

/// A recipe for a DAG, from which a CAR of each scope and a TAR archive are made. All of them end.
pub fn archives(data: &[u8]) {
    let (source, blocks) = Recipe(data).cook();
    let Some(root) = blocks.last() else { return };
    let bytes = data.last().map(|byte| (i64::from(*byte) - 128, Some(i64::from(data[0]) - 128)));
    let entity_bytes = bytes.and_then(|(from, to)| EntityBytes::new(from, to).ok());
    for (scope, entity_bytes, duplicates) in [
        (DagScope::Block, None, false),
        (DagScope::Entity, None, false),
        (DagScope::Entity, entity_bytes, false),
        (DagScope::File, entity_bytes, false),
        (DagScope::All, None, false),
        (DagScope::All, None, true),
    ] {
        let options = ScopeOptions { scope, entity_bytes, duplicates };
        let limits = ScopeLimits { repeated_bytes_max: READ_BYTES_MAX as u64, ..ScopeLimits::default() };
        let sent = scope::blocks(Arc::clone(&source), vec![*root.cid()], root.clone(), options, limits);
        let sent: Vec<_> = block_on(sent.collect());
        assert!(scope != DagScope::Block || sent.len() == 1);
        let mut cids: Vec<_> = sent.iter().flatten().map(|block| *block.cid().hash()).collect();
        let all = cids.len();
        cids.sort_unstable();
        cids.dedup();
        assert!(duplicates || cids.len() == all, "a block was emitted twice");
        assert!(cids.len() <= blocks.len());
    }
    let limits =
        TarLimits { depth_max: 16, entries_max: 100, bytes_max: READ_BYTES_MAX as u64, window_bytes_max: 64 * 1024 };
    let archive: Vec<_> = block_on(tar::stream(source, "root".to_owned(), root.clone(), limits).collect());
    if let Ok(archive) = archive.into_iter().collect::<Result<Vec<_>, _>>() {
        check_tar(&archive.concat());
    }
}

/// A complete archive has a valid end, and every path in it is below its root.
fn check_tar(archive: &[u8]) {
    let (mut rest, end) = archive.split_at(archive.len() - 1024);
    assert!(rest.len().is_multiple_of(512) && end.iter().all(|byte| *byte == 0));
    let text =
        |field: &[u8]| String::from_utf8_lossy(field.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
    let mut extended = None;
    while let Some((header, after)) = rest.split_first_chunk::<512>() {
        let size = usize::from_str_radix(text(&header[124..136]).trim(), 8).expect("a size");
        let (content, after) = after.split_at(size.next_multiple_of(512));
        rest = after;
        if header[156] == b'x' {
            extended = pax_path(&content[..size]);
            continue;
        }
        let short = [text(&header[345..500]), text(&header[..100])].join("/");
        let path = extended.take().unwrap_or_else(|| short.trim_start_matches('/').to_owned());
        let mut names = path.split('/');
        assert_eq!(names.next(), Some("root"), "{path:?}");
        assert!(names.all(|name| !matches!(name, "" | "." | "..")), "{path:?}");
    }
}

/// The path in PAX records, each of which begins with its own length: "LENGTH KEY=VALUE\n".
fn pax_path(mut records: &[u8]) -> Option<String> {
    let mut path = None;
    while !records.is_empty() {
        let digits = records.iter().position(|byte| *byte == b' ').expect("a length");
        let length: usize = str::from_utf8(&records[..digits]).expect("digits").parse().expect("a number");
        let (record, rest) = records.split_at(length);
        assert_eq!(record.last(), Some(&b'\n'));
        if let Some(value) = record[digits + 1..length - 1].strip_prefix(b"path=") {
            path = Some(String::from_utf8_lossy(value).into_owned());
        }
        records = rest;
    }
    path
}

/// Bytes that describe a DAG, whose nodes link to earlier nodes.
struct Recipe<'a>(&'a [u8]);

impl<'a> Recipe<'a> {
    /// The blocks in the order of the recipe; the root is the last one.
    fn cook(mut self) -> (Arc<dyn BlockSource>, Vec<Block>) {
        let mut made: Vec<(Block, u64)> = Vec::new();
        while !self.0.is_empty() && made.len() < 64 {
            made.push(self.node(&made));
        }
        let blocks: Vec<Block> = made.into_iter().map(|(block, _)| block).collect();
        (Arc::new(blocks.iter().cloned().collect::<MemoryBlocks>()), blocks)
    }

    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or_default()
    }

    fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte()).min(self.0.len());
        self.0.split_off(..length).unwrap_or_default()
    }

    /// A node, and its size as a file. Sometimes its declared sizes are wrong.
    fn node(&mut self, made: &[(Block, u64)]) -> (Block, u64) {
        let kind = self.byte();
        if kind % 8 == 7 {
            let data = self.bytes();
            return (block(codec::RAW, data), data.len() as u64);
        }
        let (own, lie) = (self.bytes(), self.byte());
        let mut size = own.len() as u64;
        let (mut links, mut sizes) = (Vec::new(), Vec::new());
        for _ in 0..self.byte() % 17 {
            let at = usize::from(self.byte());
            let name = self.bytes();
            let Some((child, child_size)) = made.len().checked_sub(1 + at % made.len().max(1)).map(|at| &made[at])
            else {
                break;
            };
            links.push(Message::default().bytes(1, &child.cid().to_bytes()).bytes(2, name));
            let child_size = if lie & 1 == 1 { u64::from(self.byte()) << (lie & 0x3e) } else { *child_size };
            sizes.push(child_size);
            size = size.saturating_add(child_size);
        }
        let message = Message::default().varint(1, u64::from(kind % 8)).bytes(2, own);
        let message = match kind % 8 {
            HAMT_SHARD => message.varint(5, 0x22).varint(6, 8 << (kind >> 5)),
            FILE if lie & 0x40 == 0 => message.varint(3, size),
            _ => message,
        };
        let message = match kind % 8 {
            FILE => sizes.iter().fold(message, |message, size| message.varint(4, *size)),
            _ => message,
        };
        let node = links.iter().fold(Message::default(), |node, link| node.bytes(2, &link.0));
        (block(codec::DAG_PB, &node.bytes(1, &message.0).0), size)
    }
}

/// The maximum size of files that are read. Those of many single bytes are the slowest.
const READ_BYTES_MAX: usize = 4 * 1024;
const FILE: u8 = 2;
const HAMT_SHARD: u8 = 5;

/// Lists and reads a block, up to a limit, because small DAGs can have very many paths.
fn read_unixfs(source: &Arc<dyn BlockSource>, root: &Block) {
    let entries: Vec<_> = block_on(dir::list(Arc::clone(source), root.clone()).take(100).collect());
    let plain = matches!(Node::decode(root), Ok(Node::Directory(_)));
    for entry in entries.iter().flatten().take(20) {
        let found = block_on(dir::lookup(&**source, root, &entry.name));
        // A name that is not UTF-8 is displayed differently, and in a sharded directory it may be in a wrong slot.
        assert!(!plain || entry.name.contains('\u{fffd}') || matches!(found, Ok(Some(_))), "{entry:?}: {found:?}");
    }
    let _ = block_on(dir::lookup(&**source, root, "name"));
    let Ok(Node::File(file)) = Node::decode(root) else { return };
    let size = file.size();
    let whole = read_file(source, root, 0..size);
    for range in [0..size / 3, size / 3..size, size / 2..size / 2] {
        let part = read_file(source, root, range.clone());
        if let (Some(whole), Some(part)) = (&whole, part) {
            let (start, end) = (range.start as usize, range.end as usize);
            assert_eq!(part, whole[start..end], "{range:?} of {size}");
        }
    }
    assert!(
        FileReader::new(Arc::clone(source), root.clone(), 0..size.saturating_add(1), ReadLimits::default()).is_err()
            || size == u64::MAX
    );
}

/// The bytes of a range; `None` if it ends in an error, or is too long.
fn read_file(source: &Arc<dyn BlockSource>, root: &Block, range: std::ops::Range<u64>) -> Option<Vec<u8>> {
    let length = range.end - range.start;
    let mut reader = FileReader::new(Arc::clone(source), root.clone(), range, ReadLimits::default()).ok()?;
    let mut bytes = Vec::new();
    while let Some(chunk) = block_on(reader.next()) {
        bytes.extend_from_slice(&chunk.ok()?);
        assert!(bytes.len() as u64 <= length);
        if bytes.len() > READ_BYTES_MAX {
            return None;
        }
    }
    assert_eq!(bytes.len() as u64, length, "a file has its declared size");
    Some(bytes)
}

/// A dag-cbor block, which is the only encoding of its value; and the same bytes as plain CBOR.
pub fn dag_cbor(data: &[u8]) {
    let strict = block(codec::DAG_CBOR, data);
    if let Ok(document) = ipld::decode(&strict) {
        assert_eq!(ipld::encode(&document, codec::DAG_CBOR).as_deref(), Ok(data), "{document:?}");
        check_document(&document);
        check_links(&document, dag::links(&strict).expect("a good document"));
        let lenient = ipld::decode(&block(codec::CBOR, data));
        assert!(lenient.is_ok(), "valid dag-cbor is valid CBOR: {lenient:?}");
    }
    if let Ok(document) = ipld::decode(&block(codec::CBOR, data)) {
        check_document(&document);
    }
}

/// A dag-json block, and the same bytes as plain JSON.
pub fn dag_json(data: &[u8]) {
    for codec in [codec::DAG_JSON, codec::JSON] {
        let block = block(codec, data);
        let Ok(document) = ipld::decode(&block) else { continue };
        check_document(&document);
        // The search for links in dag-json has lower limits.
        if let Ok(found) = dag::links(&block) {
            check_links(&document, found);
        }
    }
}

/// The size of a document is bounded, and it survives encoding in either codec if it can be encoded.
fn check_document(document: &Ipld) {
    let (items, levels) = measure(document);
    assert!(items <= ipld::MAX_ITEMS && levels <= ipld::MAX_DEPTH);
    let limits = OutlineLimits { lines: 50, text: 10 };
    assert!(ipld::outline(document, limits).lines.len() <= limits.lines);
    for codec in [codec::DAG_CBOR, codec::DAG_JSON] {
        let Ok(written) = ipld::encode(document, codec) else { continue };
        let written = block(codec, &written);
        let read = ipld::decode(&written);
        // In dag-json links and bytes are maps, which count against the limits.
        if matches!(read, Err(ipld::IpldError::TooComplex { .. })) {
            assert!(codec == codec::DAG_JSON && (levels + 2 > ipld::MAX_DEPTH || 5 * items > ipld::MAX_ITEMS));
            continue;
        }
        assert_eq!(read.as_ref(), Ok(document), "{:?}", written.data());
        let read = read.expect("compared");
        assert_eq!(ipld::encode(&read, codec).as_ref(), Ok(written.data()), "one encoding");
    }
}

/// The number of values and keys of a document, and its depth.
fn measure(document: &Ipld) -> (usize, usize) {
    let add = |(items, levels): (usize, usize), value: &Ipld| {
        let (more, below) = measure(value);
        (items + more, levels.max(1 + below))
    };
    match document {
        Ipld::List(list) => list.iter().fold((1, 1), add),
        Ipld::Map(map) => map.iter().fold((1 + map.len(), 1), |sum, (_, value)| add(sum, value)),
        _ => (1, 0),
    }
}

/// The links that are found are exactly those of the document, in any order.
fn check_links(document: &Ipld, mut found: Vec<Cid>) {
    let mut links = Vec::new();
    collect_links(document, &mut links);
    links.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, links);
}

fn collect_links(document: &Ipld, links: &mut Vec<Cid>) {
    match document {
        Ipld::Link(cid) => links.push(**cid),
        Ipld::List(list) => list.iter().for_each(|value| collect_links(value, links)),
        Ipld::Map(map) => map.iter().for_each(|(_, value)| collect_links(value, links)),
        _ => {}
    }
}

/// An IPNS record of a fixed key, and a document that is signed with this key. The first byte selects what is done with
/// the rest, because a fuzzer cannot guess a signature.
pub fn ipns_record(data: &[u8]) {
    let Some((mode, data)) = data.split_first() else { return };
    let Ok(keypair) = Keypair::ed25519_from_bytes([7; 32]) else { return };
    let key = Key::from(keypair.public().to_peer_id());
    let record = match mode % 3 {
        0 => Bytes::copy_from_slice(data),
        1 => {
            let signed = [b"ipns-signature:", data].concat();
            let signature = keypair.sign(&signed).expect("the key signs");
            Message::default().bytes(8, &signature).bytes(9, data).0.into()
        }
        _ => return check_draft(&keypair, data),
    };
    check_record(&key, record);
}

fn check_record(key: &Key, bytes: Bytes) {
    let Ok(record) = Record::verify(key, bytes.clone()) else { return };
    assert_eq!(record.bytes(), &bytes);
    assert!(record.is_valid_at(record.end_of_life()) && !record.newer_than(&record));
    assert!(bytes.len() <= content::ipns::RECORD_BYTES_MAX);
    let _ = ContentPath::read(record.value(), DEPTH_MAX);
    let other = Keypair::ed25519_from_bytes([8; 32]).expect("any 32 bytes will do");
    let other = Key::from(other.public().to_peer_id());
    assert!(Record::verify(&other, bytes.clone()).is_err(), "a record is valid for one key");
    let more = [&bytes[..], &Message::default().bytes(9, b"\xa0").0].concat();
    assert!(Record::verify(key, more.into()).is_err(), "a record has one document");
}

/// Signs a draft described by the bytes, and verifies the record.
fn check_draft(keypair: &Keypair, data: &[u8]) {
    let Some((numbers, value)) = data.split_first_chunk::<24>() else { return };
    let number = |at: usize| numbers[at..at + 8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let value = String::from_utf8_lossy(value).into_owned();
    let Some(end_of_life) = UNIX_EPOCH.checked_add(Duration::from_secs(number(0))) else { return };
    let draft = Draft { value, sequence: number(8), end_of_life, ttl: Duration::from_nanos(number(16)) };
    let Ok(record) = Record::sign(keypair, &draft) else { return };
    assert_eq!((record.sequence(), record.end_of_life()), (draft.sequence, draft.end_of_life));
    assert!(record.ttl() == draft.ttl || draft.ttl.is_zero());
    assert!(record.value() == draft.value || !draft.value.starts_with('/'));
    check_record(&Key::from(keypair.public().to_peer_id()), record.bytes().clone());
}

/// TXT records of a domain, one for each line, and the same text as a table of names.
pub fn dnslink(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let records: Vec<&str> = text.lines().collect();
    let chosen = dnslink::choose(records.iter().copied());
    assert_eq!(dnslink::choose(records.iter().rev().copied()), chosen, "the order of the records does not matter");
    if let Some(chosen) = chosen {
        assert!(records.iter().any(|record| record.contains(chosen)));
        let readable = |record: &&str| {
            record.trim().strip_prefix("dnslink=").is_some_and(|link| dnslink::read(link.trim()).is_ok())
        };
        assert_eq!(dnslink::read(chosen).is_ok(), records.iter().any(readable));
    }
    for record in &records {
        if let Ok(path) = dnslink::read(record) {
            assert!(path.segments.iter().all(|segment| !matches!(segment.as_str(), "" | "." | "..")));
        }
    }
    if let Ok(map) = dnslink::StaticMap::parse(text) {
        assert!(map.len() <= text.matches(':').count());
    }
}

/// A block with any bytes.
fn block(codec: u64, data: &[u8]) -> Block {
    Block::of(codec, hashes::SHA2_256, 32, Bytes::copy_from_slice(data)).expect("small enough for a block")
}

/// A protobuf message that is being encoded.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(mut self, tag: u32, value: u64) -> Self {
        encode_key(tag, WireType::Varint, &mut self.0);
        encode_varint(value, &mut self.0);
        self
    }

    fn bytes(mut self, tag: u32, value: &[u8]) -> Self {
        encode_key(tag, WireType::LengthDelimited, &mut self.0);
        encode_varint(value.len() as u64, &mut self.0);
        self.0.extend_from_slice(value);
        self
    }
}

/// The end of a seekable zstd file, and the value of a slice with its base.
pub fn packed(data: &[u8]) {
    if let Ok((table, table_bytes)) = SeekTable::read_tail(data) {
        assert!(table_bytes <= data.len());
        let (mut frame_bytes, mut plain_bytes) = (0, 0);
        for place in table.places() {
            assert_eq!((place.frame_start, place.plain_start), (frame_bytes, plain_bytes));
            frame_bytes += u64::from(place.lengths.frame_bytes);
            plain_bytes += u64::from(place.lengths.plain_bytes);
        }
        assert_eq!((table.frame_bytes(), table.plain_bytes()), (frame_bytes, plain_bytes));
        let written = table.to_frame().expect("without checksums it is not larger");
        assert_eq!(SeekTable::read_tail(&written), Ok((table, written.len())));
    }
    let value = Bytes::copy_from_slice(data);
    if let Ok(Some(slice)) = Slice::read(&value) {
        assert_eq!(slice.to_value().as_ref(), Ok(&value));
        if let Ok(stored) = slice.resolve(data) {
            assert_eq!(stored.shape(), slice.shape());
            if let Ok(block) = stored.block() {
                assert_eq!(block.len(), slice.shape().block_bytes());
            }
        }
    }
}
