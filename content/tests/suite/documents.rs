//! IPLD documents: what each codec accepts, conversions, and paths through documents.

use crate::dags::walk;
use crate::support::*;
use bytes::Bytes;
use content::ipld::{
    EncodeError, Ipld, IpldError, Kind, Label, MAX_DEPTH, MAX_ITEMS, Map, OutlineLimits, convert, decode, encode,
    outline,
};
use content::walk::WalkError;
use content::{Block, BlockSource, Cid, MAX_BLOCK_BYTES, MemoryBlocks, Multihash, cid, codec, hashes};
use proptest::prelude::*;
use std::sync::Arc;

fn block(codec: u64, data: impl AsRef<[u8]>) -> Block {
    Block::of(codec, hashes::SHA2_256, 32, Bytes::copy_from_slice(data.as_ref())).expect("a block")
}

fn conformance(name: &str) -> (Cid, Arc<MemoryBlocks>) {
    fixture_car(&format!("conformance/{name}.car"))
}

fn root_of(name: &str) -> Block {
    let (root, blocks) = conformance(name);
    blocks.peek(&root).expect("the root")
}

fn map<const N: usize>(entries: [(&str, Ipld); N]) -> Ipld {
    Ipld::Map(Map::new(entries.map(|(key, value)| (key.to_owned(), value)).into()).expect("distinct keys"))
}

fn text(text: &str) -> Ipld {
    Ipld::String(text.to_owned())
}

fn link(cid: Cid) -> Ipld {
    Ipld::Link(Box::new(cid))
}

/// The result of decoding a block: its value, or the kind of error.
#[derive(Debug, PartialEq)]
enum Read {
    Value(Ipld),
    Malformed,
    NotConvertible,
    TooComplex,
}

fn read(codec: u64, data: impl AsRef<[u8]>) -> Read {
    match decode(&block(codec, data)) {
        Ok(value) => Read::Value(value),
        Err(IpldError::Malformed { .. }) => Read::Malformed,
        Err(IpldError::NotConvertible { .. }) => Read::NotConvertible,
        Err(IpldError::TooComplex { .. }) => Read::TooComplex,
    }
}

#[test]
fn documents_of_the_conformance_suite_are_decoded() {
    let dag_pb = decode(&root_of("dag-pb")).expect("a node");
    assert_eq!(Ok(dag_pb), decode(&block(codec::DAG_JSON, fixture("conformance/dag-pb.json"))));
    let table = [
        ("plain-json", map([("test", text("plain json"))])),
        ("plain-cbor", map([("test", text("plain json"))])),
        ("plain-cbor-that-can-be-dag-cbor", map([("test", text("plain-json-that-can-also-be-dag-json"))])),
        ("plain-cbor-that-can-be-dag-json", map([("test", text("plain-json-that-can-also-be-dag-json"))])),
    ];
    for (name, expected) in table {
        let root = root_of(name);
        assert_eq!(decode(&root), Ok(expected.clone()), "{name}");
        for to in [codec::DAG_JSON, codec::DAG_CBOR] {
            let converted = convert(&root, to).expect(name);
            assert_eq!(decode(&block(to, converted)), Ok(expected.clone()), "{name} as {to:x}");
        }
    }
    let (as_cbor, as_json) = (root_of("dag-cbor-traversal"), root_of("dag-json-traversal"));
    for (root, other) in [(&as_cbor, codec::DAG_JSON), (&as_json, codec::DAG_CBOR)] {
        let converted = block(other, convert(root, other).expect("convertible"));
        assert_eq!(convert(&converted, root.cid().codec()).as_ref(), Ok(root.data()), "there and back");
    }
}

#[test]
fn conversions_give_these_bytes_or_errors() {
    let cid = cid::parse("bafkqaddjnzzxazldoqwxizltoq").expect("a CID");
    let linked = [&b"\xa1\x61l\xd8\x2a\x51\0"[..], &cid.to_bytes()].concat();
    let same: [(u64, &[u8], u64); 6] = [
        (codec::DAG_CBOR, b"\xff not cbor", codec::DAG_CBOR),
        (codec::DAG_CBOR, b"\xff not cbor", codec::CBOR),
        (codec::DAG_JSON, b" not json", codec::JSON),
        (codec::DAG_JSON, b" {} ", codec::DAG_JSON),
        (codec::DAG_PB, b"not a node", codec::DAG_PB),
        (codec::RAW, b"bytes", codec::RAW),
    ];
    for (from, data, to) in same {
        assert_eq!(convert(&block(from, data), to), Ok(Bytes::copy_from_slice(data)), "{from:x} to {to:x}");
    }
    let table: [(u64, &[u8], u64, &[u8]); 12] = [
        (codec::DAG_CBOR, &linked, codec::DAG_JSON, br#"{"l":{"/":"bafkqaddjnzzxazldoqwxizltoq"}}"#),
        (codec::DAG_CBOR, &linked, codec::JSON, br#"{"l":{"/":"bafkqaddjnzzxazldoqwxizltoq"}}"#),
        (codec::DAG_JSON, br#"{ "l": {"/": "bafkqaddjnzzxazldoqwxizltoq"} }"#, codec::CBOR, &linked),
        (codec::DAG_CBOR, b"\x43abc", codec::DAG_JSON, br#"{"/":{"bytes":"YWJj"}}"#),
        (codec::RAW, b"a", codec::DAG_JSON, br#"{"/":{"bytes":"YQ"}}"#),
        (codec::RAW, b"a", codec::DAG_CBOR, b"\x41a"),
        (
            codec::JSON,
            b"[1, 1.0, -1e2, 1e30, \"\\u00e9\\n\\u0001\"]",
            codec::DAG_JSON,
            "[1,1.0,-100.0,1.0e30,\"é\\n\\u0001\"]".as_bytes(),
        ),
        (codec::JSON, br#"{"bb":1,"c":2,"a":[]}"#, codec::DAG_CBOR, b"\xa3\x61a\x80\x61c\x02\x62bb\x01"),
        (codec::JSON, br#"{"bb":1,"c":2,"a":{}}"#, codec::DAG_JSON, br#"{"a":{},"bb":1,"c":2}"#),
        (
            codec::CBOR,
            b"\xbf\x61b\xf9\x3e\x00\x61a\x9f\x18\x01\xff\xff",
            codec::DAG_CBOR,
            b"\xa2\x61a\x81\x01\x61b\xfb\x3f\xf8\0\0\0\0\0\0",
        ),
        (codec::CBOR, b"\x82\xc0\x61t\xf7", codec::DAG_JSON, br#"["t",null]"#),
        (codec::DAG_PB, b"", codec::DAG_JSON, br#"{"Links":[]}"#),
    ];
    for (from, data, to, expected) in table {
        let converted = convert(&block(from, data), to).expect("convertible");
        assert_eq!(converted, expected, "{from:x} to {to:x}: {:?}", converted.escape_ascii().to_string());
    }
    let refused: [(u64, &[u8], u64); 7] = [
        (codec::CBOR, b"\xf9\x7e\x00", codec::DAG_CBOR), // not a number
        (codec::CBOR, b"\xf9\xfc\x00", codec::DAG_JSON), // minus infinity
        (codec::DAG_CBOR, b"\xa1\x61/\x61x", codec::DAG_JSON),
        (codec::JSON, br#"{"/":{"bytes":"YQ"}}"#, codec::DAG_JSON),
        (codec::DAG_CBOR, b"\xa0", codec::DAG_PB),
        (codec::DAG_CBOR, b"\xa0", codec::RAW),
        (0x78, b"blob 0\0", codec::DAG_JSON),
    ];
    for (from, data, to) in refused {
        let found = convert(&block(from, data), to);
        assert!(matches!(found, Err(IpldError::NotConvertible { .. })), "{from:x} to {to:x}: {found:?}");
    }
}

#[test]
fn dag_cbor_is_decoded_strictly_and_plain_cbor_leniently() {
    use Read::{Malformed, NotConvertible, Value};
    let int = |n: i128| Value(Ipld::Integer(n));
    let float = |n| Value(Ipld::Float(n));
    let (max, min) = ((1 << 64) - 1, -(1 << 64));
    let both: [(&[u8], Read); 27] = [
        (b"\x00", int(0)),
        (b"\x17", int(23)),
        (b"\x18\x18", int(24)),
        (b"\x1b\xff\xff\xff\xff\xff\xff\xff\xff", int(max)),
        (b"\x20", int(-1)),
        (b"\x3b\xff\xff\xff\xff\xff\xff\xff\xff", int(min)),
        (b"\xfb\xbf\xf8\0\0\0\0\0\0", float(-1.5)),
        (b"\xf4", Value(Ipld::Bool(false))),
        (b"\xf6", Value(Ipld::Null)),
        (b"\x40", Value(Ipld::Bytes(Bytes::new()))),
        (b"\x62\xc3\xa9", Value(text("é"))),
        (b"\xa2\x61b\x00\x62aa\x80", Value(map([("b", Ipld::Integer(0)), ("aa", Ipld::List(vec![]))]))),
        (b"", Malformed),
        (b"\x00\x00", Malformed),
        (b"\x18", Malformed),
        (b"\x42a", Malformed),
        (b"\x62\xff\xff", Malformed),
        (b"\x81", Malformed),
        (b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff", Malformed),
        (b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff", Malformed),
        (b"\xbb\x80\0\0\0\0\0\0\0", Malformed),
        (b"\xa1\x61a", Malformed),
        (b"\xa2\x61a\x00\x61a\x01", Malformed),
        (b"\xff", Malformed),
        (b"\x1c", Malformed),
        (b"\x1f", Malformed),
        (b"\xdf\x00", Malformed),
    ];
    for (data, expected) in &both {
        for codec in [codec::DAG_CBOR, codec::CBOR] {
            assert_eq!(&read(codec, data), expected, "{codec:x} {}", data.escape_ascii());
        }
    }
    let lenient: [(&[u8], Read); 22] = [
        (b"\x18\x17", int(23)),
        (b"\x19\x00\xff", int(255)),
        (b"\x1b\0\0\0\0\0\0\0\x01", int(1)),
        (b"\x78\x01a", Value(text("a"))),
        (b"\xf9\x3c\x00", float(1.0)),
        (b"\xf9\x00\x01", float(2_f64.powi(-24))),
        (b"\xf9\x7b\xff", float(65_504.0)),
        (b"\xf9\xfc\x00", float(f64::NEG_INFINITY)),
        (b"\xfa\x3f\x80\0\0", float(1.0)),
        (b"\xf7", Value(Ipld::Null)),
        (b"\x5f\x41a\x40\x42bc\xff", Value(Ipld::Bytes("abc".into()))),
        (b"\x7f\x61a\x61b\xff", Value(text("ab"))),
        (b"\x9f\x00\xff", Value(Ipld::List(vec![Ipld::Integer(0)]))),
        (b"\xbf\x61a\x00\xff", Value(map([("a", Ipld::Integer(0))]))),
        (b"\xa2\x62aa\x00\x61b\x01", Value(map([("aa", Ipld::Integer(0)), ("b", Ipld::Integer(1))]))),
        (b"\xc1\xd9\xd9\xf7\x05", int(5)),
        (b"\xd8\x2a\x45\0\x01\x55\0\0", Value(Ipld::Bytes(Bytes::from_static(b"\0\x01\x55\0\0")))),
        (b"\xc2\x41\x05", NotConvertible),
        (b"\xa1\x01\x02", NotConvertible),
        (b"\xe0", NotConvertible),
        (b"\x5f\x61a\xff", Malformed),
        (b"\xbf\x61a\xff", Malformed),
    ];
    for (data, expected) in &lenient {
        assert_eq!(&read(codec::CBOR, data), expected, "{}", data.escape_ascii());
        if !data.starts_with(b"\xd8\x2a") {
            assert_eq!(read(codec::DAG_CBOR, data), Malformed, "{}", data.escape_ascii());
        }
    }
    let identity = Cid::new_v1(codec::RAW, Multihash::wrap(hashes::IDENTITY, b"").expect("wraps"));
    assert_eq!(read(codec::DAG_CBOR, b"\xd8\x2a\x45\0\x01\x55\0\0"), Value(link(identity)));
    let bad_links: [&[u8]; 6] = [
        b"\xd8\x2a\x46\0\x01\x55\0\0\0",
        b"\xd8\x2a\x44\x01\x55\0\0",
        b"\xd8\x2a\x41\0",
        b"\xd8\x2a\x65\0\x01\x55\0\0",
        b"\xd8\x2b\x45\0\x01\x55\0\0",
        b"\xd9\0\x2a\x45\0\x01\x55\0\0",
    ];
    for data in bad_links {
        assert_eq!(read(codec::DAG_CBOR, data), Malformed, "{}", data.escape_ascii());
    }
}

#[test]
fn json_is_decoded_with_and_without_reserved_forms() {
    use Read::{Malformed, NotConvertible, Value};
    let int = |n: i128| Value(Ipld::Integer(n));
    let both = [
        (" null\n", Value(Ipld::Null)),
        ("-0", int(0)),
        ("18446744073709551615", int((1 << 64) - 1)),
        ("-18446744073709551616", int(-(1 << 64))),
        ("0.5e-1", Value(Ipld::Float(0.05))),
        ("1E2", Value(Ipld::Float(100.0))),
        (r#""\ud83d\ude00\/\b\f\r\t\"\\""#, Value(text("😀/\u{8}\u{c}\r\t\"\\"))),
        (r#"[ ]"#, Value(Ipld::List(vec![]))),
        (
            r#"{"b" : [1,{}] , "a":true}"#,
            Value(map([("a", Ipld::Bool(true)), ("b", Ipld::List(vec![Ipld::Integer(1), map([])]))])),
        ),
        ("1e999", NotConvertible),
        ("", Malformed),
        ("nul", Malformed),
        ("01", Malformed),
        ("1.", Malformed),
        (".5", Malformed),
        ("-", Malformed),
        ("1e", Malformed),
        ("1e+", Malformed),
        ("1-2", Malformed),
        ("+1", Malformed),
        ("NaN", Malformed),
        ("1 2", Malformed),
        ("[1,]", Malformed),
        ("[,1]", Malformed),
        ("[1", Malformed),
        (r#"{"a":1,}"#, Malformed),
        (r#"{"a"}"#, Malformed),
        (r#"{1:2}"#, Malformed),
        (r#"{"a":1,"a":1}"#, Malformed),
        ("\"a\nb\"", Malformed),
        (r#""a"#, Malformed),
        (r#""\x""#, Malformed),
        (r#""\"#, Malformed),
        (r#""\u12"#, Malformed),
        (r#""\u+123""#, Malformed),
        (r#""\ud800""#, Malformed),
        (r#""\ud800\u0041""#, Malformed),
        (r#""\udc00""#, Malformed),
    ];
    for (data, expected) in &both {
        for codec in [codec::DAG_JSON, codec::JSON] {
            assert_eq!(&read(codec, data), expected, "{codec:x} {data}");
        }
    }
    assert_eq!(read(codec::JSON, b"\"\xff\""), Malformed);
    assert_eq!(read(codec::JSON, "18446744073709551616"), Value(Ipld::Float(2_f64.powi(64))));
    assert_eq!(read(codec::DAG_JSON, "18446744073709551616"), NotConvertible);

    let cid = cid::parse("bafkqaddjnzzxazldoqwxizltoq").expect("a CID");
    let plain = |inner: Ipld| Value(map([("/", inner)]));
    let reserved = [
        (r#"{"/":"bafkqaddjnzzxazldoqwxizltoq"}"#.to_owned(), Value(link(cid))),
        (r#"{"/":{"bytes":"YQ"}}"#.to_owned(), Value(Ipld::Bytes("a".into()))),
        (r#"{"/":{"/":{"bytes":""}}}"#.to_owned(), plain(Ipld::Bytes(Bytes::new()))),
        (r#"{"/":1}"#.to_owned(), plain(Ipld::Integer(1))),
        (r#"{"/":{"bytes":1}}"#.to_owned(), plain(map([("bytes", Ipld::Integer(1))]))),
        (r#"{"/":"x"}"#.to_owned(), Malformed),
        (format!(r#"{{"/":"b{}"}}"#, "a".repeat(1_000)), Malformed),
        (r#"{"/":"bafkqaddjnzzxazldoqwxizltoq","a":1}"#.to_owned(), Malformed),
        (r#"{"/":{"bytes":"YQ=="}}"#.to_owned(), Malformed),
        (r#"{"/":{"bytes":"YQ","a":1}}"#.to_owned(), Malformed),
    ];
    for (data, expected) in &reserved {
        assert_eq!(&read(codec::DAG_JSON, data), expected, "{data}");
        assert!(matches!(read(codec::JSON, data), Value(Ipld::Map(_))), "{data}");
    }
    // A digest of 128 bytes, which is longer than most libraries support.
    let long = link(*inline(codec::RAW, &[7; 128]).cid());
    for codec in [codec::DAG_JSON, codec::DAG_CBOR] {
        assert_eq!(read(codec, encode(&long, codec).expect("written")), Value(long.clone()));
    }
}

#[test]
fn names_and_sizes_of_dag_pb_links_are_present_if_encoded() {
    let cid = *inline(codec::RAW, b"x").cid();
    let link_of = |message: Message| Message::default().bytes(2, &message.0).0;
    let hash = || Message::default().bytes(1, &cid.to_bytes());
    let with = |entries: Ipld| Read::Value(map([("Links", Ipld::List(vec![entries]))]));
    let table = [
        (hash(), with(map([("Hash", link(cid))]))),
        (hash().bytes(2, b""), with(map([("Hash", link(cid)), ("Name", text(""))]))),
        (hash().varint(3, 0), with(map([("Hash", link(cid)), ("Tsize", Ipld::Integer(0))]))),
        (hash().bytes(2, b"\xff"), Read::NotConvertible),
        (Message::default(), Read::Malformed),
    ];
    for (message, expected) in table {
        assert_eq!(read(codec::DAG_PB, link_of(message)), expected);
    }
}

#[test]
fn documents_over_the_limits_are_rejected_before_they_take_memory() {
    const SIZE: usize = MAX_BLOCK_BYTES;
    let list_of = |count: usize, head: &[u8]| [head, &(count as u32).to_be_bytes(), &vec![0; count]].concat();
    let nested = |open: &[u8], levels: usize, inner: &[u8], close: &[u8]| {
        [open.repeat(levels), inner.to_vec(), close.repeat(levels)].concat()
    };
    let refused: [(u64, Vec<u8>); 13] = [
        (codec::DAG_CBOR, list_of(MAX_ITEMS, b"\x9a")),
        (codec::CBOR, list_of(SIZE - 5, b"\x9a")),
        // Nested lists, each of which claims many values.
        (codec::CBOR, [b"\x9a\x00\x02\x00\x00".repeat(100), vec![0; 1_000_000]].concat()),
        (codec::CBOR, [&b"\x9f"[..], &vec![0; SIZE - 2], b"\xff"].concat()),
        (codec::CBOR, vec![0xc1; SIZE]),
        (codec::CBOR, vec![0x9f; SIZE]),
        (codec::DAG_CBOR, vec![0x81; SIZE]),
        (codec::DAG_CBOR, nested(b"\x81", MAX_DEPTH + 1, b"\x00", b"")),
        (codec::DAG_CBOR, b"\xa1\x60".repeat(SIZE / 2)),
        (codec::DAG_JSON, vec![b'['; SIZE]),
        (codec::JSON, nested(b"[", MAX_DEPTH + 1, b"", b"]")),
        (codec::DAG_JSON, b"{\"\":".repeat(SIZE / 4)),
        (codec::JSON, [&b"[0"[..], &b",0".repeat(SIZE / 2 - 2), b"]"].concat()),
    ];
    for (codec, data) in refused {
        let shown = data[..8].escape_ascii().to_string();
        assert_eq!(read(codec, data), Read::TooComplex, "{codec:x} {shown}");
    }
    let links = Message::default().bytes(2, &Message::default().bytes(1, b"\x01\x55\0\0").0).0;
    assert_eq!(
        read(codec::DAG_PB, links.repeat(MAX_ITEMS / 8)),
        Read::Value(map([(
            "Links",
            Ipld::List(vec![map([("Hash", link(*inline(codec::RAW, b"").cid()))]); MAX_ITEMS / 8])
        )]))
    );
    assert_eq!(read(codec::DAG_PB, links.repeat(SIZE / links.len())), Read::TooComplex);

    let accepted = [
        (codec::DAG_CBOR, list_of(MAX_ITEMS - 1, b"\x9a")),
        (codec::DAG_CBOR, nested(b"\x81", MAX_DEPTH, b"\x00", b"")),
        (codec::JSON, nested(b"[", MAX_DEPTH, b"", b"]")),
        (codec::DAG_JSON, nested(b"{\"\":", MAX_DEPTH, b"0", b"}")),
    ];
    for (codec, data) in accepted {
        assert!(matches!(read(codec, data), Read::Value(_)), "{codec:x}");
    }
    let deep = (0..=MAX_DEPTH).fold(Ipld::Null, |inner, _| Ipld::List(vec![inner]));
    for codec in [codec::DAG_CBOR, codec::DAG_JSON] {
        assert_eq!(encode(&deep, codec), Err(EncodeError::TooDeep));
        assert_eq!(encode(&Ipld::Integer(1 << 64), codec), Err(EncodeError::Integer));
    }
    assert!(!outline(&deep, OutlineLimits::default()).complete);
}

#[test]
fn an_outline_is_flat_and_within_its_limits() {
    let cid = *inline(codec::RAW, b"x").cid();
    let bytes = Ipld::Bytes(Bytes::from_static(b"\x00\xff\x10"));
    let document = map([("a", Ipld::List(vec![link(cid), bytes])), ("long key", text("ééé")), ("z", Ipld::Null)]);
    let found = outline(&document, OutlineLimits { lines: 5, text: 2 });
    let lines: Vec<_> = found
        .lines
        .iter()
        .map(|line| (line.depth, line.label.clone(), line.kind, line.text.as_str(), line.cut, line.link))
        .collect();
    let (key, shown) = (|key: &str| Some(Label::Key(key.to_owned())), cid.to_string());
    let expected = [
        (0, None, Kind::Map(3), "", false, None),
        (1, key("a"), Kind::List(2), "", false, None),
        (2, Some(Label::Index(0)), Kind::Link, &shown, false, Some(cid)),
        (2, Some(Label::Index(1)), Kind::Bytes(3), "00ff", true, None),
        (1, key("lo…"), Kind::String(6), "éé", true, None),
    ];
    assert_eq!(lines, expected);
    assert!(!found.complete);
    let whole = outline(&document, OutlineLimits { lines: 6, text: 8 });
    assert!(whole.complete && whole.lines.iter().all(|line| !line.cut));
    assert_eq!(whole.lines.len(), 6);
}

#[test]
fn paths_resolve_through_documents_of_the_conformance_suite() {
    // The path, the number of segments inside the last block, and the number of blocks before it.
    let table = [
        ("", 0, 0),
        ("foo", 1, 0),
        ("foo/object", 2, 0),
        ("foo/object/banana", 3, 0),
        ("foo/link", 0, 1),
        ("foo/link/bar", 0, 2),
        ("foo/link/bar/hello", 1, 2),
    ];
    for name in ["dag-cbor-traversal", "dag-json-traversal"] {
        let (root, blocks) = conformance(name);
        for (path, inside, before) in table {
            let found = walk(&*blocks, root, path).expect(path);
            let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
            assert_eq!(found.remainder, &segments[segments.len() - inside..], "{name}/{path}");
            assert_eq!(found.passed.len(), before, "{name}/{path}");
            assert_eq!(found.roots.len(), segments.len() + 1, "{name}/{path}: one for the root and each segment");
            assert_eq!((found.roots[0], found.roots.last()), (root, Some(found.block.cid())));
            let mut distinct = found.roots.clone();
            distinct.dedup();
            assert_eq!(distinct[..before], found.passed, "{name}/{path}");
        }
        let no_link = [
            ("i-do-not-exist", 0, "i-do-not-exist"),
            ("foo/i-do-not-exist", 0, "i-do-not-exist"),
            ("foo/link/x", 1, "x"),
            ("foo/object/banana/x", 0, "x"),
            ("foo/link/bar/hello/0", 2, "0"),
        ];
        for (path, in_block, missing) in no_link {
            let parents = walk(&*blocks, root, "foo/link/bar").expect("there");
            let parents = [&parents.passed[..], &[*parents.block.cid()]].concat();
            let error = WalkError::NoLink { parent: parents[in_block], name: missing.to_owned() };
            assert_eq!(walk(&*blocks, root, path), Err(error), "{name}/{path}");
        }
    }
    for name in ["plain-json", "plain-cbor"] {
        let (root, blocks) = conformance(name);
        assert_eq!(walk(&*blocks, root, "test").expect("there").remainder, ["test"]);
        assert!(matches!(walk(&*blocks, root, "test/x"), Err(WalkError::NoLink { .. })));
    }
}

#[test]
fn paths_resolve_through_directories_and_documents() {
    let blocks = MemoryBlocks::new();
    let file = leaf(&blocks, LeafKind::RawCodec, b"file");
    let data = Message::default().varint(1, DIRECTORY).0;
    let below = add(&blocks, codec::DAG_PB, pb_node(&[Link::to(*file.cid(), "file")], Some(&data), false));
    let inlined = encode(&Ipld::List(vec![link(*below.cid())]), codec::DAG_CBOR).expect("written");
    let inlined = inline(codec::DAG_CBOR, &inlined);
    let document = map([("list", Ipld::List(vec![Ipld::Null, map([("to", link(*inlined.cid()))])]))]);
    let document = add(&blocks, codec::DAG_JSON, encode(&document, codec::DAG_JSON).expect("written").to_vec());
    let bare = add(&blocks, codec::DAG_CBOR, encode(&link(*file.cid()), codec::DAG_CBOR).expect("written").to_vec());
    let broken = add(&blocks, codec::DAG_JSON, b"{".to_vec());
    let bomb = add(&blocks, codec::DAG_CBOR, vec![0x81; 1_000]);
    let numbered = add(&blocks, codec::CBOR, b"\xa1\x01\x02".to_vec());
    let entries = [("doc", &document), ("bare", &bare), ("broken", &broken), ("bomb", &bomb), ("cbor", &numbered)];
    let entries: Vec<Link> = entries.iter().map(|(name, block)| Link::to(*block.cid(), name)).collect();
    let root = add(&blocks, codec::DAG_PB, pb_node(&entries, Some(&data), false));
    let source = RemoteSource::new(blocks, 3, 4);

    let found = walk(&source, *root.cid(), "doc/list/1/to/0/file").expect("there");
    let [root_cid, doc, inl, dir] = [&root, &document, &inlined, &below].map(|block| *block.cid());
    assert_eq!(found.block, file);
    assert_eq!(found.roots, [root_cid, doc, doc, doc, inl, dir, *file.cid()]);
    assert_eq!(found.passed, [root_cid, doc, inl, dir]);
    assert!(found.remainder.is_empty());
    let inside = walk(&source, root_cid, "doc/list/0").expect("there");
    assert_eq!((inside.block.cid(), &inside.remainder[..]), (&doc, &["list".to_owned(), "0".to_owned()][..]));
    assert_eq!((inside.roots, inside.passed), (vec![root_cid, doc, doc, doc], vec![root_cid]));

    let no_link = |parent: Cid, name: &str| WalkError::NoLink { parent, name: name.to_owned() };
    let failing = [
        ("doc/list/01/to", no_link(doc, "01")),
        ("doc/list/2", no_link(doc, "2")),
        ("doc/list/-1", no_link(doc, "-1")),
        ("doc/0", no_link(doc, "0")),
        ("doc/list/1/to/1", no_link(inl, "1")),
        ("doc/list/1/to/0/x", no_link(dir, "x")),
        ("doc/list/1/to/0/file/x", WalkError::NotADirectory { cid: *file.cid(), name: "x".to_owned() }),
        ("bare/x", no_link(*bare.cid(), "x")),
        ("bomb/0", WalkError::TooComplex { cid: *bomb.cid() }),
        ("cbor/1", WalkError::Unsupported { cid: *numbered.cid(), codec: codec::CBOR }),
    ];
    for (path, error) in failing {
        assert_eq!(walk(&source, root_cid, path), Err(error), "{path}");
    }
    assert!(
        matches!(walk(&source, root_cid, "broken/x"), Err(WalkError::Malformed { cid, .. }) if cid == *broken.cid())
    );
    for path in ["broken", "bomb", "cbor", "bare"] {
        assert!(walk(&source, root_cid, path).is_ok(), "{path}: only the blocks before the last one are decoded");
    }
}

/// Any document, with integers of `bits` bits, digests of up to `digest` bytes, and the key `slash` more often than by
/// chance.
fn any_document(bits: u32, digest: usize, slash: &'static str) -> impl Strategy<Value = Ipld> {
    let limit = 1_i128 << bits;
    let scalar = prop_oneof![
        Just(Ipld::Null),
        any::<bool>().prop_map(Ipld::Bool),
        prop_oneof![-1_000..1_000_i128, -limit..limit].prop_map(Ipld::Integer),
        any::<f64>().prop_filter_map("finite", |float| float.is_finite().then_some(Ipld::Float(float))),
        ".*".prop_map(Ipld::String),
        prop::collection::vec(any::<u8>(), 0..50).prop_map(|bytes| Ipld::Bytes(bytes.into())),
        (
            prop::sample::select(vec![codec::RAW, codec::DAG_CBOR, 0x0129]),
            prop::collection::vec(any::<u8>(), 0..digest)
        )
            .prop_map(|(codec, bytes)| link(*inline(codec, &bytes).cid())),
    ];
    scalar.prop_recursive(6, 60, 8, |inner| {
        let key = prop_oneof!["[a-z]{0,3}", ".{2,9}", Just(slash.to_owned()), Just("bytes".to_owned())];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Ipld::List),
            prop::collection::btree_map(key, inner, 0..8)
                .prop_map(|entries| Ipld::Map(Map::new(entries.into_iter().collect()).expect("distinct keys"))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn documents_survive_encoding_and_conversion(document in any_document(64, 128, "/")) {
        let cbor = block(codec::DAG_CBOR, encode(&document, codec::DAG_CBOR).expect("finite"));
        prop_assert_eq!(decode(&cbor), Ok(document.clone()));
        prop_assert_eq!(decode(&block(codec::CBOR, cbor.data())).is_ok(), true, "the strict form is a common one");
        match convert(&cbor, codec::DAG_JSON) {
            Ok(json) => {
                let json = block(codec::DAG_JSON, json);
                prop_assert_eq!(decode(&json), Ok(document));
                prop_assert_eq!(convert(&json, codec::DAG_CBOR), Ok(cbor.data().clone()));
            }
            Err(error) => prop_assert!(error.to_string().contains("reserves"), "{}", error),
        }
    }

    /// Except for the widest integers, long digests, and the key "/", for which they accept fewer maps than the
    /// specification.
    #[test]
    fn the_serde_codecs_agree(document in any_document(63, 64, "//")) {
        use ipld_core::ipld::Ipld as Other;
        let cbor = encode(&document, codec::DAG_CBOR).expect("finite");
        // The serde codecs reject negative zero.
        if let Ok(other) = serde_ipld_dagcbor::from_slice::<Other>(&cbor) {
            prop_assert_eq!(&serde_ipld_dagcbor::to_vec(&other).expect("written"), &cbor);
            if let Ok(json) = encode(&document, codec::DAG_JSON) {
                prop_assert_eq!(serde_ipld_dagjson::from_slice::<Other>(&json).ok(), Some(other.clone()));
                let theirs = serde_ipld_dagjson::to_vec(&other).expect("written");
                prop_assert_eq!(decode(&block(codec::DAG_JSON, theirs)), Ok(document));
            }
        } else {
            let has_negative_zero = format!("{document:?}").contains("-0.0");
            prop_assert!(has_negative_zero);
        }
    }

    #[test]
    fn strict_documents_have_one_encoding(data in prop::collection::vec(any::<u8>(), 0..40)) {
        let block = block(codec::DAG_CBOR, &data);
        if let Ok(document) = decode(&block) {
            prop_assert_eq!(encode(&document, codec::DAG_CBOR), Ok(block.data().clone()));
        }
    }
}
