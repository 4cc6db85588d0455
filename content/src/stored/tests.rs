//! Tests of values and bodies; with `--ignored`, their costs.

mod figures;
pub(super) mod samples;

use super::body::{BodyError, block_bytes, block_parts, encoded_bytes, parts, section_parts};
use super::*;
use crate::{Block, Cid, codec, hashes};
use proptest::prelude::*;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

pub(super) fn joined(parts: &[Bytes]) -> Bytes {
    parts.concat().into()
}

/// Decodes like a browser: concatenated frames, windows of up to 8 MiB.
pub(super) fn decompressed(body: &[u8]) -> Vec<u8> {
    let mut decoder = zstd::Decoder::new(body).expect("zstd");
    decoder.window_log_max(23).expect("zstd");
    let mut out = Vec::new();
    decoder.read_to_end(&mut out).expect("a browser decodes it");
    out
}

fn block(codec: u64, data: impl Into<Bytes>) -> Block {
    Block::of(codec, hashes::SHA2_256, 32, data.into()).expect("a block")
}

/// A protobuf field with a length.
fn field(number: u8, data: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = data.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    [&out, data].concat()
}

/// A UnixFS leaf: type File, something before the data, the data, something after it.
fn leaf(before: &[u8], data: &[u8], after: &[u8]) -> Block {
    block(codec::DAG_PB, field(1, &[&[0x08, 0x02], before, &field(2, data), after].concat()))
}

fn encoder() -> Encoder {
    Encoder::new(CompressionOptions::default()).expect("zstd")
}

fn decode(value: &[u8]) -> Result<Bytes, ValueError> {
    Stored::read(Bytes::copy_from_slice(value))?.block()
}

fn encode(block: &Block) -> Stored {
    encoder().encode(block)
}

/// A value of earlier releases: a tag, and the block or a frame of it.
fn old_value(block: &Block, compressed: bool) -> Stored {
    let body = if compressed { zstd::bulk::compress(block.data(), 3).expect("zstd") } else { block.data().to_vec() };
    let tag = if compressed { TAG_FRAME } else { TAG_RAW_UNSIZED };
    Stored::read([&[tag], &body[..]].concat().into()).expect("an old value is read")
}

fn assert_is(stored: &Stored, block: &Block) {
    assert_eq!(decode(stored.value()).as_ref(), Ok(block.data()));
    assert_eq!(Stored::read(stored.value().clone()).as_ref(), Ok(stored));
    assert_eq!(stored.block().as_ref(), Ok(block.data()));
    assert_eq!(stored.shape().block_bytes(), block.data().len());
}

/// The name of a shape.
fn kind(stored: &Stored) -> &'static str {
    match stored.shape() {
        Shape::Raw { .. } => "raw",
        Shape::Frame { .. } => "frame",
        Shape::Envelope { .. } => "envelope",
    }
}

#[test]
fn blocks_are_stored_in_the_form_that_suits_them() {
    let (text, noise) = (samples::text(1, 100_000), samples::noise(1, 100_000));
    let inner =
        [field(2, &field(1, &[1; 36])).repeat(40), field(1, &[&[0x08, 0x02][..], &[0x20, 1].repeat(40)].concat())]
            .concat();
    let table: [(&str, Block, &str); 15] = [
        ("nothing", block(codec::RAW, ""), "raw"),
        ("text", block(codec::RAW, text.clone()), "frame"),
        ("noise", block(codec::RAW, noise.clone()), "raw"),
        ("little text", block(codec::RAW, vec![0; 512]), "raw"),
        ("a little more", block(codec::RAW, vec![0; 513]), "frame"),
        ("a document", block(codec::DAG_CBOR, text.clone()), "frame"),
        ("an inner node", block(codec::DAG_PB, inner), "frame"),
        ("not a node at all", block(codec::DAG_PB, text.clone()), "frame"),
        ("an empty leaf", leaf(&[], &[], &[0x18, 0]), "raw"),
        ("a leaf of noise", leaf(&[], &noise, &[]), "raw"),
        ("a leaf of text", leaf(&[], &text, &[0x18, 0xa0, 0x8d, 0x06]), "envelope"),
        ("a leaf without its size", leaf(&[], &text, &[]), "envelope"),
        ("a leaf whose data is there twice", leaf(&field(2, b"first"), &text, &[]), "envelope"),
        ("a leaf with much before its data", leaf(&field(9, &[0; 250]), &text, &[]), "frame"),
        ("a leaf with much after its data", leaf(&[], &text, &field(9, &[0; 254])), "frame"),
    ];
    for (name, block, expected) in table {
        let stored = encode(&block);
        assert_eq!(kind(&stored), expected, "{name}");
        assert_is(&stored, &block);
    }
}

#[test]
fn the_largest_block_is_stored_whatever_is_in_it() {
    for data in [samples::noise(1, MAX_BLOCK_BYTES), samples::text(1, MAX_BLOCK_BYTES), vec![0; MAX_BLOCK_BYTES]] {
        for level in [1, 3, 19] {
            let block = block(codec::RAW, data.clone());
            let stored = Encoder::new(CompressionOptions { level }).expect("zstd").encode(&block);
            assert_is(&stored, &block);
            let body = joined(&parts(&stored, block.cid(), data.len() as u64).expect("parts"));
            assert_eq!(decompressed(&body), data);
        }
    }
}

#[test]
fn blocks_that_compress_little_are_stored_raw() {
    let share_of_zeros = |percent: usize| {
        let (runs, noise) = (samples::runs(percent, 200_000), samples::noise(5, 200_000));
        block(codec::RAW, runs.iter().zip(noise).map(|(run, noise)| if *run { 0 } else { noise }).collect::<Vec<_>>())
    };
    assert_eq!(kind(&encode(&share_of_zeros(3))), "raw");
    assert_eq!(kind(&encode(&share_of_zeros(12))), "frame");
}

#[test]
fn values_of_earlier_releases_are_read() {
    let block = block(codec::RAW, samples::text(1, 50_000));
    assert_is(&old_value(&block, false), &block);
    assert_is(&old_value(&block, true), &block);
}

#[test]
fn malformed_and_oversized_values_are_errors() {
    let zeros = |bytes: usize| zstd::bulk::compress(&vec![0; bytes], 3).expect("zstd");
    let tagged = |tag: u8, head: &[u8], rest: &[u8]| [&[tag], head, rest].concat();
    // A frame with a content size of 1,000 bytes that decompresses to 2,000.
    let mut wrong_size = zeros(2_000);
    assert_eq!(wrong_size[5..7], (2_000_u16 - 256).to_le_bytes());
    wrong_size[5..7].copy_from_slice(&(1_000_u16 - 256).to_le_bytes());
    let over = MAX_BLOCK_BYTES + 1;
    let table: [(&str, Vec<u8>, ValueError); 17] = [
        ("nothing", vec![], ValueError::Empty),
        ("an unknown tag", vec![9, 1, 2], ValueError::Tag(9)),
        ("raw without a length", vec![TAG_RAW, 0, 0], ValueError::Length),
        ("raw, cut", vec![TAG_RAW, 0, 0, 0, 2, 7], ValueError::Length),
        ("raw, too long", vec![TAG_RAW, 0, 0, 0, 0, 7], ValueError::Length),
        ("raw, over the limit", tagged(TAG_RAW, &(over as u32).to_be_bytes(), &vec![0; over]), ValueError::TooLarge),
        ("raw of old, over the limit", tagged(TAG_RAW_UNSIZED, &[], &vec![0; over]), ValueError::TooLarge),
        ("no frame", tagged(TAG_FRAME, &[], &[1, 2, 3]), ValueError::Frame),
        ("a bomb", tagged(TAG_FRAME, &[], &zeros(over)), ValueError::TooLarge),
        ("a bomb in an envelope", tagged(TAG_ENVELOPE, &[1, 0, 7], &zeros(MAX_BLOCK_BYTES)), ValueError::TooLarge),
        (
            "an envelope of more than numbers hold",
            tagged(
                TAG_ENVELOPE,
                &[1, 0, 7],
                &[0x28, 0xb5, 0x2f, 0xfd, 0xc0, 0x38, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0, 0],
            ),
            ValueError::TooLarge,
        ),
        ("a frame with more content than its header says", tagged(TAG_FRAME, &[], &wrong_size), ValueError::Frame),
        ("two frames", tagged(TAG_FRAME, &[], &zeros(1_000).repeat(2)), ValueError::Frame),
        ("an envelope without lengths", vec![TAG_ENVELOPE, 0], ValueError::Length),
        ("an envelope that is all prefix", tagged(TAG_ENVELOPE, &[255, 0], &zeros(100)), ValueError::Length),
        ("an envelope without a frame", vec![TAG_ENVELOPE, 1, 1, 7, 7], ValueError::Frame),
        ("an envelope that is cut elsewhere", tagged(TAG_ENVELOPE, &[1, 0], &zeros(100)), ValueError::Frame),
    ];
    for (name, value, error) in table {
        assert_eq!(decode(&value), Err(error), "{name}");
        let read = Stored::read(value.into()).and_then(|stored| stored.block());
        assert_eq!(read, Err(error), "{name}");
    }
}

#[test]
fn truncated_and_extended_values_are_errors() {
    let text = samples::text(1, 5_000);
    let blocks = [block(codec::RAW, ""), block(codec::RAW, samples::noise(1, 2_000)), block(codec::RAW, text.clone())];
    for block in blocks.into_iter().chain([leaf(&[], &text, &[0x18, 0x88, 0x27])]) {
        let value = encode(&block).value().clone();
        for cut in 0..value.len() {
            assert!(decode(&value[..cut]).is_err(), "{} of {} bytes", cut, value.len());
        }
        assert!(decode(&[&value[..], &[0]].concat()).is_err());
    }
}

#[test]
fn a_failed_decompression_does_not_affect_the_next_value() {
    let block = block(codec::RAW, samples::text(1, 50_000));
    let stored = encode(&block);
    let mut damaged = stored.value().to_vec();
    let middle = damaged.len() / 2;
    damaged[middle..].fill(0xff);
    assert!(decode(&damaged).is_err());
    assert_is(&stored, &block);
}

#[test]
fn parts_that_are_sent_are_the_same_value_again() {
    let (text, noise) = (samples::text(1, 100_000), samples::noise(1, 100_000));
    let table = [
        ("a frame", encode(&block(codec::RAW, text.clone()))),
        ("an envelope", encode(&leaf(&[], &text, &[0x18, 1]))),
        ("an old frame", old_value(&block(codec::RAW, text), true)),
    ];
    for (name, stored) in table {
        let parts = stored.packed_parts().expect(name);
        assert_eq!(Stored::from_packed_parts(parts.each_ref().map(|part| &part[..])), Ok(stored), "{name}");
    }
    assert_eq!(encode(&block(codec::RAW, noise)).packed_parts(), None);
}

#[test]
fn a_block_that_was_received_compressed_is_stored_as_it_was_received() {
    let text = samples::text(1, 100_000);
    let plain = block(codec::RAW, text.clone());
    let mut encoder = Encoder::new(CompressionOptions { level: 19 }).expect("an encoder");
    let received = encoder.encode(&plain);
    let block = Block::verify_stored(*plain.cid(), received.clone()).expect("matches");
    let (shape, pieces) = self::encoder().encode_in_pieces(&block);
    assert_eq!((shape, Bytes::from(pieces.concat())), (received.shape(), received.value().clone()));
    // A form that saves less than a sixteenth is not kept.
    let noise = samples::noise(1, 100_000);
    let frame = zstd::bulk::compress(&noise, 1).expect("zstd");
    let wasteful = Stored::from_packed_parts([&[], &frame, &[]]).expect("a frame");
    let block = Block::verify_stored(*self::block(codec::RAW, noise).cid(), wasteful).expect("matches");
    assert_eq!(kind(&self::encoder().encode(&block)), "raw");
    assert!(matches!(self::encoder().encode_in_pieces(&block).0, Shape::Raw { .. }));
}

#[test]
fn a_form_that_was_cut_elsewhere_is_not_kept() {
    let text = samples::text(1, 100_000);
    let file = leaf(b"", &text, b"");
    let ours = encode(&file);
    let Shape::Envelope { prefix_bytes, suffix_bytes, .. } = ours.shape() else { panic!("is an envelope") };
    let cut = |block: &Block, prefix: usize, suffix: usize| {
        let data = block.data();
        let end = data.len() - suffix;
        let frame = zstd::bulk::compress(&data[prefix..end], 1).expect("zstd");
        let stored = Stored::from_packed_parts([&data[..prefix], &frame, &data[end..]]).expect("fits");
        Block::verify_stored(*block.cid(), stored).expect("has the same hash")
    };
    let kept = |received: &Block| encoder().encode_in_pieces(received).0 == received.stored().expect("a form").shape();
    assert!(kept(&cut(&file, prefix_bytes, suffix_bytes)));
    assert!(kept(&cut(&file, 0, 0)), "a frame of the block is never sent as file data");
    for (prefix, suffix) in [
        (prefix_bytes - 1, suffix_bytes),
        (prefix_bytes + 1, suffix_bytes),
        (prefix_bytes - 1, suffix_bytes + 1),
        (prefix_bytes, suffix_bytes + 1),
    ] {
        let received = cut(&file, prefix, suffix);
        let (shape, pieces) = encoder().encode_in_pieces(&received);
        assert_eq!((shape, Bytes::from(pieces.concat())), (ours.shape(), ours.value().clone()), "{prefix} {suffix}");
    }
    // An envelope around a block that is not a leaf: it may be read as one under another codec.
    let plain = block(codec::RAW, file.data().clone());
    assert!(matches!(encoder().encode_in_pieces(&cut(&plain, prefix_bytes, suffix_bytes)).0, Shape::Frame { .. }));
}

#[test]
fn parts_that_are_no_block_are_errors() {
    let zeros = |bytes: usize| zstd::bulk::compress(&vec![0; bytes], 3).expect("zstd");
    let frame = zeros(1_000);
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 7], &*frame].concat();
    let mut dictionary = zeros(300);
    dictionary[4] |= 1;
    dictionary.insert(5, 7);
    let mut streamed = zstd::stream::Encoder::new(Vec::new(), 3).expect("zstd");
    std::io::Write::write_all(&mut streamed, &[0; 1_000]).expect("writes");
    let unsized_frame = streamed.finish().expect("zstd");
    // A window of 16 MiB, with a content of 1,000 bytes.
    let wide = [&frame[..4], &[0x40, 14 << 3], &frame[5..]].concat();
    let long = [7; 256];
    let table: [(&str, [&[u8]; 3], ValueError); 11] = [
        ("no frame", [&[], &[], &[]], ValueError::Frame),
        ("no content size", [&[], &unsized_frame, &[]], ValueError::Frame),
        ("two frames", [&[], &[&frame[..], &frame].concat(), &[]], ValueError::Frame),
        ("a skippable frame first", [&[], &skippable, &[]], ValueError::Frame),
        ("a truncated frame", [&[], &frame[..frame.len() - 1], &[]], ValueError::Frame),
        ("a dictionary", [&[], &dictionary, &[]], ValueError::Frame),
        ("a wide window", [&[], &wide, &[]], ValueError::Frame),
        ("a long prefix", [&long, &frame, &[]], ValueError::Length),
        ("a long suffix", [&[], &frame, &long], ValueError::Length),
        ("a bomb", [&[], &zeros(MAX_BLOCK_BYTES + 1), &[]], ValueError::TooLarge),
        ("a bomb with a prefix", [&[7], &zeros(MAX_BLOCK_BYTES), &[]], ValueError::TooLarge),
    ];
    for (name, parts, error) in table {
        assert_eq!(Stored::from_packed_parts(parts), Err(error), "{name}");
    }
}

#[test]
fn recompression_returns_a_value_only_if_it_is_smaller() {
    let text = samples::text(1, 256 * 1024);
    let fast = |block: &Block| Encoder::new(CompressionOptions { level: 1 }).expect("zstd").encode(block);
    let mut small = Encoder::new(CompressionOptions { level: 19 }).expect("zstd");
    for block in [block(codec::RAW, text.clone()), leaf(&[], &text, &[])] {
        let stored = fast(&block);
        let again = small.recompress(block.cid(), &stored).expect("reads").expect("pays");
        assert!(again.value().len() < stored.value().len() * 31 / 32);
        assert_eq!(kind(&again), kind(&stored));
        assert_is(&again, &block);
        assert_eq!(small.recompress(block.cid(), &again), Ok(None));
        // With another codec, it keeps its form.
        let other = Cid::new_v1(codec::RAW, *block.cid().hash());
        let again = small.recompress(&other, &stored).expect("reads").expect("pays");
        assert_eq!(kind(&again), kind(&stored));
    }
    let noise = block(codec::RAW, samples::noise(1, 256 * 1024));
    assert_eq!(small.recompress(noise.cid(), &fast(&noise)), Ok(None));
    let mut damaged = [&[TAG_FRAME], &*zstd::bulk::compress(&text, 3).expect("zstd")].concat();
    let middle = damaged.len() / 2;
    damaged[middle..middle + 50].fill(0xff);
    let again = Stored::read(damaged.into()).and_then(|damaged| small.recompress(noise.cid(), &damaged));
    assert_eq!(again, Err(ValueError::Frame));
}

#[test]
fn an_old_value_of_a_leaf_is_put_into_its_envelope() {
    let block = leaf(&[], &samples::text(1, 100_000), &[]);
    for compressed in [false, true] {
        let again = encoder().recompress(block.cid(), &old_value(&block, compressed)).expect("reads").expect("pays");
        assert_eq!(kind(&again), "envelope");
        assert_is(&again, &block);
    }
}

/// A stored leaf.
struct StoredLeaf {
    stored: Stored,
    cid: Cid,
    data: Vec<u8>,
}

/// All combinations of stored form and requested codec.
fn kept(data: &[u8], way: u8) -> StoredLeaf {
    let leaf = leaf(&[], data, &[0x18, 1]);
    // A size that does not match is no leaf; the length has one byte here only for tiny data.
    let leaf = if data.len() == 1 { leaf } else { self::leaf(&[], data, &[]) };
    let raw = block(codec::RAW, data.to_vec());
    let (stored, cid) = match way % 6 {
        0 => (encode(&raw), *raw.cid()),
        1 => (encode(&leaf), *leaf.cid()),
        2 => (old_value(&raw, true), *raw.cid()),
        3 => (old_value(&leaf, true), *leaf.cid()),
        4 => (old_value(&leaf, false), *leaf.cid()),
        // Stored as a leaf, requested with the raw codec.
        _ => {
            let cid = Cid::new_v1(codec::RAW, *leaf.cid().hash());
            return StoredLeaf { stored: encode(&leaf), cid, data: leaf.data().to_vec() };
        }
    };
    StoredLeaf { stored, cid, data: data.to_vec() }
}

#[test]
fn a_leaf_is_sent_with_as_little_work_as_its_form_allows() {
    let (text, noise) = (samples::text(1, 300_000), samples::noise(1, 300_000));
    // Name, stored leaf, number of parts; raw frames have three blocks, each with a header.
    let table = [
        ("a frame", kept(&text, 0), 1),
        ("the frame in an envelope", kept(&text, 1), 1),
        ("a raw block", kept(&noise, 0), 6),
        ("the payload of a raw block", kept(&noise, 1), 6),
        ("the payload of a whole frame", kept(&text, 3), 6),
        ("an envelope as a raw block", kept(&text, 5), 4),
    ];
    for (name, kept, count) in table {
        let parts = parts(&kept.stored, &kept.cid, kept.data.len() as u64).expect("parts");
        assert_eq!(parts.len(), count, "{name}");
        assert_eq!(decompressed(&joined(&parts)), kept.data, "{name}");
        let value = kept.stored.value().as_ptr_range();
        let shared = parts.iter().filter(|part| value.contains(&part.as_ptr())).map(Bytes::len).sum::<usize>();
        let copied = name.contains("whole frame");
        assert!(copied == (shared == 0) && (copied || shared + 64 > joined(&parts).len()), "{name}: {shared} shared");
    }
}

#[test]
fn other_blocks_than_the_expected_leaf_are_errors() {
    let text = samples::text(1, 10_000);
    let inner = [field(2, &field(1, leaf(&[], b"x", &[]).cid().to_bytes().as_slice())), field(1, &[0x08, 2, 0x20, 1])];
    let inner = block(codec::DAG_PB, inner.concat());
    let document = block(codec::DAG_CBOR, text.clone());
    for way in 0..6 {
        let kept = kept(&text, way);
        for wrong in [kept.data.len() as u64 - 1, kept.data.len() as u64 + 100, u64::MAX] {
            let announced = encoded_bytes(kept.stored.shape(), kept.cid.codec(), wrong);
            assert!(announced.is_none() || kept.cid.codec() == codec::DAG_PB && kind(&kept.stored) != "envelope");
            let sent = parts(&kept.stored, &kept.cid, wrong);
            assert_eq!(sent, Err(BodyError::Leaf { cid: kept.cid, file_bytes: wrong }), "{way}");
        }
    }
    assert!(matches!(parts(&encode(&inner), inner.cid(), 1), Err(BodyError::Leaf { .. })));
    assert!(matches!(parts(&encode(&document), document.cid(), text.len() as u64), Err(BodyError::Leaf { .. })));
    assert_eq!(encoded_bytes(encode(&document).shape(), codec::DAG_CBOR, text.len() as u64), None);
    let no_node = Block::from_verified(*inner.cid(), text.into());
    assert!(matches!(parts(&encode(&no_node), no_node.cid(), 1), Err(BodyError::Node(_))));
}

#[test]
fn the_zstd_command_decodes_a_body() {
    let kept: Vec<_> = (0..12).map(|way| kept(&samples::mixed(way.into(), 150_000), way)).collect();
    let sent = |kept: &StoredLeaf| parts(&kept.stored, &kept.cid, kept.data.len() as u64).expect("parts").concat();
    let body: Vec<u8> = kept.iter().flat_map(sent).collect();
    let command = Command::new("zstd").args(["-dc"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = command else {
        println!("skipped: there is no zstd command here");
        return;
    };
    let mut stdin = child.stdin.take().expect("stdin");
    let writer = std::thread::spawn(move || stdin.write_all(&body));
    let output = child.wait_with_output().expect("output");
    writer.join().expect("joins").expect("writes");
    assert!(output.status.success());
    assert!(output.stdout == kept.iter().flat_map(|kept| kept.data.clone()).collect::<Vec<_>>());
}

proptest! {
    // Generating and hashing the data takes most of the time.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_block_round_trips_and_grows_at_most_by_its_head(
        unit in proptest::collection::vec(any::<u8>(), 0..300), times in 1_usize..200, way in 0_u8..3
    ) {
        let data = unit.repeat(times);
        let block = match way {
            0 => block(codec::RAW, data),
            1 => block(codec::DAG_PB, data),
            _ => leaf(&[], &data, &[]),
        };
        let stored = encode(&block);
        assert_is(&stored, &block);
        prop_assert!(stored.value().len() <= block.data().len() + RAW_HEAD_BYTES);
        prop_assert_eq!(stored.shape().value_bytes(), stored.value().len());
        let (shape, pieces) = encoder().encode_in_pieces(&block);
        prop_assert_eq!((shape, &pieces.concat()[..]), (stored.shape(), &stored.value()[..]));
    }

    #[test]
    fn a_body_of_any_leaves_decodes_to_the_file_and_has_the_announced_length(
        leaves in proptest::collection::vec((any::<u8>(), 0_usize..150_000, any::<u64>()), 1..5)
    ) {
        let (mut body, mut file, mut announced) = (Vec::new(), Vec::new(), 0);
        for (way, length, seed) in leaves {
            let kept = kept(&samples::mixed(seed, length), way);
            let file_bytes = kept.data.len() as u64;
            announced += encoded_bytes(kept.stored.shape(), kept.cid.codec(), file_bytes).expect("a leaf");
            body.extend(parts(&kept.stored, &kept.cid, file_bytes).expect("parts").concat());
            file.extend(kept.data);
        }
        prop_assert_eq!(body.len() as u64, announced);
        prop_assert!(decompressed(&body) == file);
    }

    #[test]
    fn a_block_and_its_section_decode_to_themselves_whatever_is_stored(
        head in proptest::collection::vec(any::<u8>(), 0..60), way in 0_u8..6, length in 0_usize..150_000,
        seed in any::<u64>(), other in 0_u8..3
    ) {
        let stored = kept(&samples::mixed(seed, length), way).stored;
        let block = stored.block().expect("decodes");
        let sent = block_parts(&stored).map(|parts| joined(&parts));
        prop_assert_eq!(block_bytes(stored.shape()), sent.as_ref().map(|sent| sent.len() as u64));
        prop_assert_eq!(sent.is_none(), kind(&stored) == "raw");
        if let Some(sent) = sent {
            prop_assert!(decompressed(&sent) == block);
        }
        // Stored like this, not at all, and a block of another length.
        let longer = encode(&self::block(codec::RAW, vec![b' '; length + 1_000]));
        let known = [Some(&stored), None, Some(&longer)][usize::from(other)];
        let section = joined(&section_parts(&head.clone().into(), &block, known));
        prop_assert!(decompressed(&section) == [&head[..], &block].concat());
    }

    #[test]
    fn a_damaged_value_is_an_error_or_fails_its_hash(
        way in 0_u8..6, length in 0_usize..30_000, seed in any::<u64>(),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 0_u8..8), 1..4)
    ) {
        let kept = kept(&samples::mixed(seed, length), way);
        let whole = kept.stored.block().expect("decodes");
        let mut value = kept.stored.value().to_vec();
        for (at, bit) in flips {
            let at = at.index(value.len());
            value[at] ^= 1 << bit;
        }
        if let Ok(found) = decode(&value) {
            prop_assert!(found.len() == whole.len() || value[0] != kept.stored.value()[0]);
            prop_assert!(found.len() <= MAX_BLOCK_BYTES);
            let cid = Cid::new_v1(codec::RAW, *kept.cid.hash());
            prop_assert!(found == whole || Block::verify(cid, found).is_err());
        }
        if let Ok(stored) = Stored::read(value.into()) {
            // Its parts still have the announced length.
            let file_bytes = kept.data.len() as u64;
            if let Ok(parts) = parts(&stored, &kept.cid, file_bytes) {
                let announced = encoded_bytes(stored.shape(), kept.cid.codec(), file_bytes);
                prop_assert_eq!(Some(joined(&parts).len() as u64), announced);
            }
        }
    }

    #[test]
    fn no_bytes_panic_the_decoder(tag in 0_u8..5, rest in proptest::collection::vec(any::<u8>(), 0..300)) {
        _ = decode(&[&[tag], &rest[..]].concat());
    }
}
