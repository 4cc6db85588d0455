//! The parts of the zstd format (<https://www.rfc-editor.org/rfc/rfc8878>) that the library does not cover: which
//! frames may be sent to a browser, and frames of raw blocks, which need no compression.
//!
//! Goals: windows of 8 MiB at most, the limit of the `zstd` content coding (<https://www.rfc-editor.org/rfc/rfc9659>);
//! the content size in every header, so that decoders can allocate; no copies.
//!
//! Frames have no checksum. The bytes are covered by the block's hash, and connections have checksums of their own. For
//! a raw frame, a checksum would also need reading all of the bytes, which is most of the work that is saved.

use super::ValueError;
use crate::MAX_BLOCK_BYTES;
use bytes::{BufMut as _, Bytes, BytesMut};
use zstd::zstd_safe::find_frame_compressed_size;

/// The beginning of a zstd frame.
pub(crate) const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The magic numbers of skippable frames, without the lowest four bits.
const SKIPPABLE_MAGIC: [u8; 4] = [0x50, 0x2a, 0x4d, 0x18];
/// The maximum length of a header without a dictionary, in bytes.
pub(super) const START_BYTES_MAX: usize = 14;
/// The maximum size of a zstd block, in bytes.
const BLOCK_BYTES_MAX: usize = 128 * 1024;
const BLOCK_HEAD_BYTES: usize = 3;
/// The maximum window size, in bytes.
pub const WINDOW_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Bit of the frame header descriptor: the window is the content itself.
const SINGLE_SEGMENT: u8 = 1 << 5;
/// The bits for a dictionary ID, and the reserved bit.
const UNSUPPORTED: u8 = 0b1011;
/// Window descriptor of 128 KiB: two to the power of 10 + 7.
const WINDOW_OF_ONE_BLOCK: u8 = 7 << 3;

/// The content size of a frame, in bytes, if `bytes` are one complete frame that may be sent unchanged; never larger
/// than a block. Follows the lengths of its zstd blocks without decompressing.
pub(super) fn content_bytes(bytes: &[u8]) -> Result<usize, ValueError> {
    let content = head(bytes).ok_or(ValueError::Frame)?;
    if find_frame_compressed_size(bytes) != Ok(bytes.len()) {
        return Err(ValueError::Frame);
    }
    usize::try_from(content).ok().filter(|bytes| *bytes <= MAX_BLOCK_BYTES).ok_or(ValueError::TooLarge)
}

/// The content size in a frame's header, in bytes.
pub(super) fn announced_bytes(beginning: &[u8]) -> Option<usize> {
    usize::try_from(head(beginning)?).ok()
}

/// The content size in the header. `None` if it is missing, or the window is too large.
fn head(frame: &[u8]) -> Option<u64> {
    let (FrameStart::Frame { content_bytes, window_bytes }, _) = read_start(frame).ok()?? else { return None };
    content_bytes.filter(|_| window_bytes <= WINDOW_BYTES_MAX)
}

/// What a frame begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameStart {
    /// The header of a zstd frame.
    Frame {
        /// The size of the content, in bytes, if the header has it.
        content_bytes: Option<u64>,
        /// The size of the window, in bytes.
        window_bytes: u64,
    },
    /// The header of a skippable frame, which has no content.
    Skippable {
        /// The number of bytes that follow the header.
        bytes: u32,
    },
}

/// Why bytes do not begin with a frame that can be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartError {
    /// They are no frame of the current format. The library reads formats of before RFC 8878 as well, without bounds.
    NotAFrame,
    /// The frame needs a dictionary, or sets a reserved bit.
    Unsupported,
}

/// Reads the header of a frame: what it says and its length, or `None` if it is longer than `bytes`, which
/// [`START_BYTES_MAX`] never are.
pub(super) fn read_start(bytes: &[u8]) -> Result<Option<(FrameStart, usize)>, StartError> {
    let Some((magic, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    if magic[0] & 0xf0 == SKIPPABLE_MAGIC[0] && magic[1..] == SKIPPABLE_MAGIC[1..] {
        let start = |length: &[u8; 4]| (FrameStart::Skippable { bytes: u32::from_le_bytes(*length) }, 8);
        return Ok(rest.first_chunk().map(start));
    }
    if *magic != MAGIC {
        return Err(StartError::NotAFrame);
    }
    let Some((descriptor, fields)) = rest.split_first() else { return Ok(None) };
    if descriptor & UNSUPPORTED != 0 {
        return Err(StartError::Unsupported);
    }
    let single = descriptor & SINGLE_SEGMENT != 0;
    let size_bytes = match descriptor >> 6 {
        0 => usize::from(single),
        code => 1 << code,
    };
    let (window_field, size_field) = fields.split_at(usize::from(!single).min(fields.len()));
    let (Some(size_field), true) = (size_field.get(..size_bytes), single || !window_field.is_empty()) else {
        return Ok(None);
    };
    let content_bytes = content_field(size_field);
    let window_bytes = match window_field {
        [at, ..] => window_bytes(*at),
        [] => content_bytes.unwrap_or_default(),
    };
    let start_bytes = MAGIC.len() + 1 + window_field.len() + size_bytes;
    Ok(Some((FrameStart::Frame { content_bytes, window_bytes }, start_bytes)))
}

/// The value of the content size field, by its width.
fn content_field(field: &[u8]) -> Option<u64> {
    Some(match *field {
        [size] => u64::from(size),
        [a, b] => u64::from(u16::from_le_bytes([a, b])) + 256,
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        _ => u64::from_le_bytes(*field.first_chunk()?),
    })
}

fn window_bytes(descriptor: u8) -> u64 {
    let base = 1_u64 << (10 + (descriptor >> 3));
    base + base / 8 * u64::from(descriptor & 7)
}

/// The length of the frame from [`raw`] for `content_bytes`.
pub fn raw_bytes(content_bytes: u64) -> u64 {
    let blocks = content_bytes.div_ceil(BLOCK_BYTES_MAX as u64).max(1);
    raw_head_bytes(content_bytes) as u64 + blocks * BLOCK_HEAD_BYTES as u64 + content_bytes
}

/// Bytes as a frame of raw blocks: small headers, and between them slices of the bytes, which are not copied.
///
/// A frame of several blocks has a window of one block, since it has no back-references: a decoder needs no more
/// memory.
pub fn raw(content: &Bytes) -> Vec<Bytes> {
    let blocks = content.len().div_ceil(BLOCK_BYTES_MAX).max(1);
    // All headers are slices of one allocation.
    let mut heads = BytesMut::with_capacity(raw_head_bytes(content.len() as u64) + blocks * BLOCK_HEAD_BYTES);
    put_raw_head(&mut heads, content.len() as u64);
    let mut parts = Vec::with_capacity(2 * blocks);
    for index in 0..blocks {
        let start = index * BLOCK_BYTES_MAX;
        let end = content.len().min(start + BLOCK_BYTES_MAX);
        put_raw_block_head(&mut heads, end - start, index + 1 == blocks);
        parts.push(heads.split().freeze());
        if start < end {
            parts.push(content.slice(start..end));
        }
    }
    parts
}

/// The width of the content size field: its code, and its bytes.
fn size_field(content_bytes: u64) -> (u8, usize) {
    match content_bytes {
        0..256 => (0, 1),
        256..65_792 => (1, 2),
        65_792..0x1_0000_0000 => (2, 4),
        _ => (3, 8),
    }
}

fn is_single_segment(content_bytes: u64) -> bool {
    content_bytes <= BLOCK_BYTES_MAX as u64
}

fn raw_head_bytes(content_bytes: u64) -> usize {
    let window = usize::from(!is_single_segment(content_bytes));
    MAGIC.len() + 1 + window + size_field(content_bytes).1
}

fn put_raw_head(out: &mut BytesMut, content_bytes: u64) {
    let (code, _) = size_field(content_bytes);
    out.put_slice(&MAGIC);
    if is_single_segment(content_bytes) {
        out.put_u8(code << 6 | SINGLE_SEGMENT);
    } else {
        out.put_u8(code << 6);
        out.put_u8(WINDOW_OF_ONE_BLOCK);
    }
    match code {
        0 => out.put_uint_le(content_bytes, 1),
        1 => out.put_uint_le(content_bytes - 256, 2),
        2 => out.put_uint_le(content_bytes, 4),
        _ => out.put_u64_le(content_bytes),
    }
}

/// One bit for the last block, two for the type (0 is raw), and 21 for the size.
fn put_raw_block_head(out: &mut BytesMut, block_bytes: usize, last: bool) {
    out.put_uint_le((block_bytes as u64) << 3 | u64::from(last), BLOCK_HEAD_BYTES);
}

#[cfg(test)]
mod tests {
    use super::super::tests::{decompressed, joined};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_raw_frame_has_the_header_for_its_length() {
        let table: [(usize, &[u8]); 6] = [
            (0, &[0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 0x01, 0, 0]),
            (1, &[0x28, 0xb5, 0x2f, 0xfd, 0x20, 1, 0x09, 0, 0, 7]),
            (255, &[0x28, 0xb5, 0x2f, 0xfd, 0x20, 255, 0xf9, 0x07, 0, 7]),
            (256, &[0x28, 0xb5, 0x2f, 0xfd, 0x60, 0, 0, 0x01, 0x08, 0, 7]),
            (BLOCK_BYTES_MAX, &[0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 2, 0, 0x01, 0, 0x10, 7]),
            (BLOCK_BYTES_MAX + 1, &[0x28, 0xb5, 0x2f, 0xfd, 0x80, 0x38, 1, 0, 2, 0, 0, 0, 0x10, 7]),
        ];
        for (length, head) in table {
            let frame = joined(&raw(&Bytes::from(vec![7; length])));
            assert!(frame.starts_with(head), "{length}: {:02x?}", &frame[..frame.len().min(20)]);
        }
    }

    #[test]
    fn raw_frames_around_every_bound_decode_and_have_the_announced_length() {
        let bounds = [0, 1, 255, 256, 65_791, 65_792, BLOCK_BYTES_MAX, 2 * BLOCK_BYTES_MAX];
        for length in bounds.into_iter().flat_map(|bound| bound.saturating_sub(1)..=bound + 1) {
            let content = Bytes::from(vec![7; length]);
            let parts = raw(&content);
            let frame = joined(&parts);
            assert_eq!(frame.len() as u64, raw_bytes(length as u64));
            assert_eq!(content_bytes(&frame), Ok(length));
            assert_eq!(decompressed(&frame), content);
            let inside = |part: &&Bytes| content.as_ptr_range().contains(&part.as_ptr());
            assert_eq!(parts.iter().filter(inside).map(Bytes::len).sum::<usize>(), length, "copied");
        }
    }

    #[test]
    fn frames_that_must_not_be_sent_are_rejected() {
        let frame = |descriptor: u8, rest: &[u8]| [&MAGIC[..], &[descriptor], rest, &[1, 0, 0]].concat();
        let table: [(&str, Vec<u8>, Result<usize, ValueError>); 11] = [
            ("single segment", frame(0x20, &[0]), Ok(0)),
            ("a window of 8 MiB", frame(0x80, &[13 << 3, 0, 0, 0, 0]), Ok(0)),
            ("a larger window", frame(0x80, &[13 << 3 | 1, 0, 0, 0, 0]), Err(ValueError::Frame)),
            ("a content of more than 8 MiB as its own window", frame(0xa0, &[1, 0, 128, 0]), Err(ValueError::Frame)),
            ("a content of 2^64 - 1", frame(0xc0, &[&[0x38][..], &[255; 8]].concat()), Err(ValueError::TooLarge)),
            ("no content size", frame(0x00, &[0]), Err(ValueError::Frame)),
            ("a dictionary", frame(0x21, &[5, 0]), Err(ValueError::Frame)),
            ("the reserved bit", frame(0x28, &[0]), Err(ValueError::Frame)),
            ("something after it", frame(0x20, &[0, 1, 0, 0]), Err(ValueError::Frame)),
            ("two frames", frame(0x20, &[0]).repeat(2), Err(ValueError::Frame)),
            ("a skippable frame", vec![0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0], Err(ValueError::Frame)),
        ];
        for (name, bytes, expected) in table {
            assert_eq!(content_bytes(&bytes), expected, "{name}");
            let cut = bytes.len() - 1;
            assert_eq!(content_bytes(&bytes[..cut]), Err(ValueError::Frame), "{name}, cut");
        }
    }

    proptest! {
        #[test]
        fn headers_are_read_as_the_library_reads_them(
            descriptor in any::<u8>(), rest in proptest::collection::vec(any::<u8>(), 0..24)
        ) {
            let frame = [&MAGIC[..], &[descriptor], &rest].concat();
            if let Some(content) = head(&frame) {
                prop_assert_eq!(zstd::zstd_safe::get_frame_content_size(&frame).ok().flatten(), Some(content));
            }
        }
    }
}
