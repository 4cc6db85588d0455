//! Tests of the messages: every message round-trips, every limit is kept, and no bytes panic or grow.

use super::*;
use content::stored::{CompressionOptions, Encoder};
use content::{codec, hashes};
use proptest::prelude::*;

fn block(codec: u64, data: &[u8]) -> Block {
    Block::of(codec, hashes::SHA2_256, 32, Bytes::copy_from_slice(data)).expect("a block")
}

fn cid(n: u64) -> Cid {
    *block(codec::RAW, &n.to_be_bytes()).cid()
}

/// The stored form of text, which is compressed.
fn stored(lines: usize) -> Stored {
    let text = "the same line again\n".repeat(lines);
    Encoder::new(CompressionOptions::default()).expect("zstd").encode(&block(codec::RAW, text.as_bytes()))
}

fn request() -> Request {
    Request {
        transfer: TransferId(7),
        root: cid(0),
        path: vec!["a".to_owned(), "ä b".to_owned()],
        scope: ScopeOptions { scope: DagScope::Entity, entity_bytes: None, duplicates: false },
        held: vec![cid(1)],
        budget_bytes: 1 << 20,
        packed: true,
        fragments: true,
    }
}

fn fragment(message: u64, length: usize, offset: usize, bytes: usize) -> Fragment {
    Fragment { message, length, offset, data: Bytes::from(vec![7; bytes]) }
}

/// Strips the length.
fn unframe(parts: &[Bytes]) -> Bytes {
    let mut frame = Bytes::from(parts.concat());
    let length = encoding::decode_varint(&mut frame).expect("a length");
    assert_eq!(length, frame.len() as u64);
    frame
}

/// A field with a value, without the length of the message.
fn field(tag: u32, value: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    put_field(tag, value, &mut out);
    out.to_vec()
}

fn varint_field(tag: u32, value: u64) -> Vec<u8> {
    let mut out = BytesMut::new();
    encoding::uint64::encode(tag, &value, &mut out);
    out.to_vec()
}

#[test]
fn every_message_round_trips() {
    let openings = [Opening::Request(request()), Opening::Join(TransferId(u64::MAX))];
    for opening in openings {
        assert_eq!(Opening::decode(unframe(&opening.encode())), Ok(opening));
    }
    for control in [Control::Credit(0), Control::Credit(u64::MAX), Control::Skip(cid(3))] {
        assert_eq!(Control::decode(unframe(&control.encode())), Ok(control));
    }
    let largest = block(codec::RAW, &vec![7; MAX_BLOCK_BYTES]);
    let packed = Answer::Packed(Packed::new(cid(1), stored(10_000)).expect("compressed"));
    let fragment = Answer::Fragment(fragment(3, FRAGMENT_BYTES + 7, FRAGMENT_BYTES, 7));
    let answers =
        [Answer::plain(&block(codec::DAG_PB, b"")), Answer::plain(&largest), packed, Answer::Absent(cid(2)), fragment];
    for answer in answers.into_iter().chain(EndStatus::ALL.map(Answer::End)) {
        let frame = unframe(&answer.encode());
        assert!(frame.len() <= ANSWER_BYTES_MAX);
        assert_eq!(Answer::decode(frame), Ok(answer));
    }
}

#[test]
fn every_range_and_scope_round_trips() {
    for scope in [DagScope::Block, DagScope::Entity, DagScope::File, DagScope::All] {
        for range in [None, Some((0, None)), Some((-1, None)), Some((5, Some(-1))), Some((i64::MIN, Some(i64::MIN)))] {
            let entity_bytes = range.map(|(from, to)| EntityBytes::new(from, to).expect("a range"));
            let scope = ScopeOptions { scope, entity_bytes, duplicates: false };
            let opening = Opening::Request(Request { scope, ..request() });
            assert_eq!(Opening::decode(unframe(&opening.encode())), Ok(opening));
        }
    }
}

#[test]
fn blocks_and_frames_are_not_copied_when_they_are_sent() {
    let plain = block(codec::RAW, &[7; 10_000]);
    let parts = Answer::plain(&plain).encode();
    assert_eq!(parts.last().map(|part| part.as_ptr()), Some(plain.data().as_ptr()));
    let packed = Packed::new(cid(1), stored(10_000)).expect("compressed");
    let [_, frame, _] = packed.stored.packed_parts().expect("compressed");
    let parts = Answer::Packed(packed).encode();
    assert_eq!(parts.last().map(|part| part.as_ptr()), Some(frame.as_ptr()));
}

#[test]
fn a_received_block_is_a_slice_of_its_frame() {
    let frame = unframe(&Answer::plain(&block(codec::RAW, &[7; 10_000])).encode());
    let range = frame.as_ptr_range();
    let Ok(Answer::Block { data, .. }) = Answer::decode(frame.clone()) else { panic!("a block") };
    assert!(range.contains(&data.as_ptr()));
}

#[test]
fn held_subtrees_beyond_the_limits_are_left_out() {
    let long = |n: u64| {
        let digest = hashes::digest(0x13, 64, &n.to_be_bytes()).expect("SHA2-512");
        Cid::new_v1(codec::DAG_PB, digest)
    };
    for of in [cid, long] {
        let held: Vec<Cid> = (0..1_000).map(of).collect();
        let path = vec!["n".repeat(PATH_BYTES_MAX / PATH_NAMES_MAX); PATH_NAMES_MAX];
        let request = Request { held: held.clone(), path, ..request() };
        assert!(request.has_valid_path());
        let frame = unframe(&Opening::Request(request).encode());
        assert!(frame.len() <= OPENING_BYTES_MAX);
        let Ok(Opening::Request(decoded)) = Opening::decode(frame) else { panic!("a request") };
        assert!(decoded.held.len() > 200 && held.starts_with(&decoded.held), "{}", decoded.held.len());
    }
}

#[test]
fn malformed_requests_are_errors() {
    let root = field(2, &cid(0).to_bytes());
    let name = |bytes: &[u8]| field(3, bytes);
    let held = field(7, &cid(0).to_bytes()).repeat(HELD_MAX + 1);
    let long_cid = field(2, &[&cid(0).to_bytes()[..], &[0]].concat());
    let table: [(&str, Vec<u8>, DagMessageError); 14] = [
        ("no root", name(b"a"), DagMessageError::Cid),
        ("no CID", field(2, b"hello"), DagMessageError::Cid),
        ("bytes after a CID", long_cid, DagMessageError::Cid),
        ("an oversized CID", field(2, &[1; CID_BYTES_MAX + 1]), DagMessageError::Cid),
        ("an empty name", [&root[..], &name(b"")].concat(), DagMessageError::Path),
        ("a name that is not UTF-8", [&root[..], &name(&[0xff])].concat(), DagMessageError::Path),
        ("too many names", [&root[..], &name(b"a").repeat(PATH_NAMES_MAX + 1)].concat(), DagMessageError::Path),
        ("a long path", [&root[..], &name(&[b'a'; PATH_BYTES_MAX + 1])].concat(), DagMessageError::Path),
        ("many held subtrees", [&root[..], &held].concat(), DagMessageError::TooMany),
        ("a held subtree without a CID", [&root[..], &field(7, b"")].concat(), DagMessageError::Cid),
        ("an unknown scope", [&root[..], &varint_field(4, 4)].concat(), DagMessageError::UnknownScope),
        ("an end without a start", [&root[..], &varint_field(6, 8)].concat(), DagMessageError::Range),
        ("a reversed range", [&root[..], &varint_field(5, 10), &varint_field(6, 8)].concat(), DagMessageError::Range),
        (
            "a reversed range from the end",
            [&root[..], &varint_field(5, 1), &varint_field(6, 3)].concat(),
            DagMessageError::Range,
        ),
    ];
    for (name, body, error) in table {
        assert_eq!(Opening::decode(field(1, &body).into()), Err(error), "{name}");
    }
}

#[test]
fn messages_without_content_or_with_two_are_errors() {
    let join = field(2, &varint_field(1, 7));
    let request = field(1, &field(2, &cid(0).to_bytes()));
    for bytes in [vec![], field(9, b"unknown"), varint_field(1, 7), [&join[..], &request].concat(), join.repeat(2)] {
        assert_eq!(Opening::decode(bytes.clone().into()), Err(DagMessageError::Content), "{bytes:?}");
    }
    for bytes in [vec![], varint_field(2, 1), field(3, b"")] {
        assert_eq!(Control::decode(bytes.into()), Err(DagMessageError::Content));
    }
    assert_eq!(Answer::decode(field(6, b"").into()), Err(DagMessageError::Content));
    assert!(Opening::decode(Bytes::from_static(b"GET / HTTP/1.1\r\n")).is_err());
    assert_eq!(Answer::decode(field(3, b"").into()), Err(DagMessageError::Cid));
    assert_eq!(Control::decode(field(2, b"").into()), Err(DagMessageError::Cid));
}

#[test]
fn unknown_fields_are_skipped() {
    let unknown = [field(99, b"later"), varint_field(98, 1)].concat();
    let body = [&unknown[..], &varint_field(1, 9), &unknown].concat();
    let join = [&unknown[..], &field(2, &body), &unknown].concat();
    assert_eq!(Opening::decode(join.into()), Ok(Opening::Join(TransferId(9))));
    let block = [&field(1, &cid(0).to_bytes())[..], &unknown, &field(2, b"data")].concat();
    let expected = Answer::Block { cid: cid(0), data: Bytes::from_static(b"data") };
    assert_eq!(Answer::decode(field(1, &block).into()), Ok(expected));
    for status in [0, 6, u64::MAX] {
        assert_eq!(Answer::decode(field(4, &varint_field(1, status)).into()), Ok(Answer::End(EndStatus::Failed)));
    }
}

/// A packed block with these parts and this announced size.
fn packed(block_bytes: u64, [prefix, frame, suffix]: [&[u8]; 3]) -> Bytes {
    let fields = [
        field(1, &cid(0).to_bytes()),
        varint_field(2, block_bytes),
        field(3, prefix),
        field(4, frame),
        field(5, suffix),
    ];
    field(2, &fields.concat()).into()
}

#[test]
fn malformed_packed_blocks_are_errors() {
    let [_, frame, _] = stored(1_000).packed_parts().expect("compressed");
    let size = 20_000;
    let frame = &frame[..];
    assert!(Answer::decode(packed(size, [b"", frame, b""])).is_ok());
    assert!(Answer::decode(packed(size + 3, [b"a", frame, b"bc"])).is_ok());
    let size_error = |expected, found| DagMessageError::BlockBytes { expected, found };
    let damaged = DagMessageError::Packed(ValueError::Frame);
    let table: [(&str, Bytes, DagMessageError); 8] = [
        ("no frame", packed(0, [b"", b"", b""]), damaged.clone()),
        ("two frames", packed(2 * size, [b"", &frame.repeat(2), b""]), damaged.clone()),
        ("a truncated frame", packed(size, [b"", &frame[..frame.len() - 1], b""]), damaged),
        ("a size that is too small", packed(size - 1, [b"", frame, b""]), size_error(size - 1, 20_000)),
        ("a size that is too large", packed(size + 1, [b"", frame, b""]), size_error(size + 1, 20_000)),
        ("a size without its prefix", packed(size, [b"a", frame, b""]), size_error(size, 20_001)),
        ("a size of no block", packed(u64::MAX, [b"", frame, b""]), size_error(u64::MAX, 20_000)),
        ("a long prefix", packed(size + 256, [&[7; 256], frame, b""]), DagMessageError::Packed(ValueError::Length)),
    ];
    for (name, frame, error) in table {
        assert_eq!(Answer::decode(frame), Err(error), "{name}");
    }
    let no_cid = field(2, &field(4, frame));
    assert_eq!(Answer::decode(no_cid.into()), Err(DagMessageError::Cid));
}

#[test]
fn oversized_blocks_are_errors() {
    let body = |bytes: usize| [field(1, &cid(0).to_bytes()), field(2, &vec![0; bytes])].concat();
    assert!(Answer::decode(field(1, &body(MAX_BLOCK_BYTES)).into()).is_ok());
    assert_eq!(Answer::decode(field(1, &body(MAX_BLOCK_BYTES + 1)).into()), Err(DagMessageError::TooLarge));
}

#[test]
fn a_packed_block_counts_with_its_unpacked_size() {
    let packed = Packed::new(cid(0), stored(10_000)).expect("compressed");
    assert!(packed.wire_bytes() < 2_000);
    assert_eq!(Answer::Packed(packed).budget_bytes(), 200_000 + ANSWER_OVERHEAD_BYTES);
    assert_eq!(Answer::Absent(cid(0)).budget_bytes(), ANSWER_OVERHEAD_BYTES);
    let raw = Stored::read(Bytes::from_static(&[2, 0, 0, 0, 1, 7])).expect("a value");
    assert_eq!(Packed::new(cid(0), raw), None);
}

fn requests() -> impl Strategy<Value = Request> {
    let names = prop::collection::vec("[^\u{0}/]{1,12}", 0..8);
    let range = prop::option::of((any::<i64>(), prop::option::of(any::<i64>())));
    let held = prop::collection::vec(any::<u64>().prop_map(cid), 0..20);
    (any::<[u64; 3]>(), names, 0..3_u64, range, held, any::<[bool; 2]>()).prop_map(
        |([transfer, root, budget_bytes], path, scope, range, held, [packed, fragments])| {
            let entity_bytes = range.and_then(|(from, to)| EntityBytes::new(from, to).ok());
            let scope = ScopeOptions { scope: scope_of(scope).expect("known"), entity_bytes, duplicates: false };
            let (transfer, root) = (TransferId(transfer), cid(root));
            Request { transfer, root, path, scope, held, budget_bytes, packed, fragments }
        },
    )
}

fn answers() -> impl Strategy<Value = Answer> {
    let data = prop::collection::vec(any::<u8>(), 0..2_000);
    let plain = data.prop_map(|data| Answer::plain(&block(codec::RAW, &data)));
    let packed = (40..400_usize).prop_map(|lines| Packed::new(cid(1), stored(lines)).map(Answer::Packed));
    let packed = packed.prop_map(|packed| packed.expect("compressed"));
    let status = prop::sample::select(&EndStatus::ALL[..]).prop_map(Answer::End);
    prop_oneof![plain, packed, any::<u64>().prop_map(|n| Answer::Absent(cid(n))), status]
}

/// Bytes that a decoded answer keeps.
fn kept_bytes(answer: &Answer) -> usize {
    match answer {
        Answer::Block { data, .. } => data.len(),
        Answer::Packed(packed) => packed.stored.value().len(),
        Answer::Fragment(fragment) => fragment.data.len(),
        Answer::Absent(_) | Answer::End(_) => 0,
    }
}

#[test]
fn fragments_that_no_message_has_are_errors() {
    const F: usize = FRAGMENT_BYTES;
    let good = [(F + 1, 0, F), (F + 1, F, 1), (ANSWER_BYTES_MAX, 0, F), (3 * F, 2 * F, F)];
    let bad = [
        (F, 0, F),
        (F + 1, 0, F - 1),
        (F + 1, F, 0),
        (F + 1, F, 2),
        (F + 1, 1, F),
        (2 * F, 2 * F, 0),
        (3 * F, 4 * F, F),
        (ANSWER_BYTES_MAX + 1, 0, F),
        (usize::MAX, 0, F),
        (0, 0, 0),
    ];
    let decode = |(length, offset, bytes)| {
        Answer::decode(unframe(&Answer::Fragment(fragment(1, length, offset, bytes)).encode()))
    };
    good.into_iter().for_each(|case| assert!(decode(case).is_ok(), "{case:?}"));
    bad.into_iter().for_each(|case| assert_eq!(decode(case), Err(DagMessageError::Fragment), "{case:?}"));
}

proptest! {
    #[test]
    fn requests_round_trip(request in requests()) {
        let opening = Opening::Request(request);
        prop_assert_eq!(Opening::decode(unframe(&opening.encode())), Ok(opening));
    }

    #[test]
    fn answers_round_trip(answer in answers()) {
        prop_assert_eq!(Answer::decode(unframe(&answer.encode())), Ok(answer));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = Opening::decode(bytes.clone().into());
        let _ = Control::decode(bytes.clone().into());
        let _ = Answer::decode(bytes.into());
    }

    #[test]
    fn damaged_answers_keep_no_more_than_was_sent(
        answer in answers(),
        cut in any::<prop::sample::Index>(),
        changed in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = unframe(&answer.encode()).to_vec();
        for (at, to) in changed {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        let sent = bytes.len();
        if let Ok(answer) = Answer::decode(bytes.into()) {
            // The head of an envelope.
            prop_assert!(kept_bytes(&answer) <= sent + 3);
            prop_assert!(answer.budget_bytes() <= MAX_BLOCK_BYTES as u64 + ANSWER_OVERHEAD_BYTES);
        }
    }

    #[test]
    fn damaged_requests_stay_within_the_limits(
        request in requests(),
        changed in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = unframe(&Opening::Request(request).encode()).to_vec();
        for (at, to) in changed {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        if let Ok(Opening::Request(request)) = Opening::decode(bytes.into()) {
            prop_assert!(request.has_valid_path() && request.held.len() <= HELD_MAX);
        }
    }
}
