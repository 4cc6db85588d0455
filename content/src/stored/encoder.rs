//! [`Encoder`]: encodes a block into its stored form.
//!
//! Costs and savings, on two shared virtual cores with other load, at level 3 and in blocks of 256 KiB. The first five
//! kinds are generated, the others are files of a Debian system. *missed* is the share of blocks that would have saved
//! enough but were not compressed; *zstd* is the speed of compressing everything, without sampling first. The test
//! `figures` prints these tables.
//!
//! | data | framed | missed | stored | at level 19 | sample MB/s | encode MB/s | zstd MB/s | decode MB/s |
//! |---|---|---|---|---|---|---|---|---|
//! | random | 0 % | 0 % | 100.0 % | 100.0 % | 23113 | 13345 | 4088 | 32040 |
//! | text | 100 % | 0 % | 38.3 % | 35.7 % | 9663 | 146 | 152 | 974 |
//! | JSON | 100 % | 0 % | 28.0 % | 23.8 % | 7307 | 202 | 206 | 1005 |
//! | CSV | 100 % | 0 % | 45.4 % | 35.1 % | 5052 | 71 | 83 | 336 |
//! | HTML | 100 % | 0 % | 31.2 % | 28.9 % | 10426 | 160 | 177 | 1051 |
//! | .gz | 0 % | 0 % | 100.0 % | 100.0 % | 14044 | 9548 | 3713 | 29616 |
//! | .html | 100 % | 0 % | 17.3 % | 14.5 % | 2898 | 213 | 233 | 888 |
//! | .js | 100 % | 0 % | 26.1 % | 22.4 % | 3206 | 225 | 256 | 1148 |
//! | .json | 100 % | 0 % | 13.0 % | 9.6 % | 6578 | 394 | 430 | 1106 |
//! | .pdf | 25 % | 0 % | 96.1 % | 96.1 % | 15232 | 1746 | 623 | 18978 |
//! | .png | 16 % | 8 % | 97.7 % | 97.0 % | 8310 | 1207 | 339 | 9909 |
//! | .so | 100 % | 0 % | 43.8 % | 37.7 % | 4507 | 107 | 111 | 461 |
//! | .ttf | 100 % | 0 % | 53.0 % | 46.4 % | 3343 | 108 | 110 | 443 |
//! | .zip | 43 % | 0 % | 90.9 % | 90.8 % | 11002 | 591 | 402 | 8700 |
//!
//! So an incompressible block costs little more than the copy that stores it. Of 259 blocks of these files, 71 saved up
//! to 6 %, 3 from 6 to 12 %, and 185 more: the threshold, one part in 16, is where it matters least.

use super::estimate::Estimate;
pub(crate) use super::estimate::context;
use super::{Layout, RAW_HEAD_BYTES, Shape, Stored, TAG_ENVELOPE, TAG_FRAME, ValueError, at_end, raw_head};
use crate::{Block, Cid, Node};
use bytes::Bytes;
use std::io;
use std::ops::Range;
use zstd::zstd_safe::CCtx;

/// Payloads up to this size are stored raw, since compression saves little.
pub const RAW_UP_TO_BYTES: usize = 512;

/// A compressed value must be smaller than the raw one by one part in this many, to be worth decompressing.
pub(super) const SAVING_MIN: usize = 16;

/// A recompressed value must be smaller than the old one by one part in this many, to be worth writing.
const REWRITE_SAVING_MIN: usize = 32;

/// How blocks are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressionOptions {
    /// zstd's compression level, from 1 (fast) to 22 (small); values beyond zstd's range are clamped, and 0 is zstd's
    /// default.
    pub level: i32,
}

impl Default for CompressionOptions {
    fn default() -> Self {
        Self { level: 3 }
    }
}

/// Encodes stored values, and reuses zstd's working memory.
///
/// For blocks of 256 KiB that is 1 MiB at level 3 and 5 MiB at level 19, for the largest blocks 1.3 and 33 MiB; the
/// samples take 0.6 MiB more. So a thread that stores blocks keeps one encoder, and recompression creates another one
/// with a higher level and drops it when it is done.
pub struct Encoder {
    zstd: CCtx<'static>,
    estimate: Estimate,
}

impl Encoder {
    /// An encoder for one thread.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn new(options: CompressionOptions) -> io::Result<Self> {
        Ok(Self { zstd: context(options.level)?, estimate: Estimate::new()? })
    }

    /// The value to store for `block`. The codec of its CID determines whether it is a leaf with an envelope.
    ///
    /// A block may later be read with another codec; only a body made of it is longer then ([`super::body`]).
    pub fn encode(&mut self, block: &Block) -> Stored {
        self.compressed(block.data(), payload(block)).unwrap_or_else(|| Stored::raw(block.data()))
    }

    /// The same in two pieces, so that raw blocks are not copied. A block that was received compressed is not
    /// compressed again, if the form in which it was received saves enough, and is one that an encoder writes.
    pub fn encode_in_pieces(&mut self, block: &Block) -> (Shape, [Bytes; 2]) {
        if let Some(received) =
            block.stored().filter(|received| saves_enough(received) && is_cut_as_here(received, block))
        {
            return (**received).clone().into_pieces();
        }
        match self.compressed(block.data(), payload(block)) {
            Some(stored) => (stored.shape(), [Bytes::new(), stored.value().clone()]),
            None => {
                let head = Bytes::copy_from_slice(&raw_head(block.data().len()));
                (Shape::Raw { block_bytes: block.data().len() }, [head, block.data().clone()])
            }
        }
    }

    /// A smaller value for a stored block, for an encoder with a higher level; `None` if it is not worth writing.
    /// Converting a frame of a whole leaf to an envelope is also worth it, since its frame can then be sent unchanged.
    ///
    /// # Errors
    /// [`ValueError`] if the value cannot be decompressed.
    pub fn recompress(&mut self, cid: &Cid, stored: &Stored) -> Result<Option<Stored>, ValueError> {
        let block = Block::from_verified(*cid, stored.block()?);
        let payload = match stored.shape() {
            // It was stored as a leaf, whatever codec is requested now.
            Shape::Envelope { prefix_bytes, payload_bytes, .. } => prefix_bytes..prefix_bytes + payload_bytes,
            Shape::Raw { .. } | Shape::Frame { .. } => payload(&block),
        };
        let Some(found) = self.compressed(block.data(), payload) else { return Ok(None) };
        let bytes = stored.value().len();
        let enveloped = matches!((stored.shape(), found.shape()), (Shape::Frame { .. }, Shape::Envelope { .. }));
        let bytes_max = if enveloped { bytes } else { bytes - bytes / REWRITE_SAVING_MIN };
        Ok((found.value().len() <= bytes_max).then_some(found))
    }

    /// The block with its payload compressed, if that saves enough. `None` also if compression fails.
    fn compressed(&mut self, block: &[u8], payload: Range<usize>) -> Option<Stored> {
        let (prefix, suffix) = (&block[..payload.start], &block[payload.end..]);
        let payload = &block[payload];
        if payload.len() <= RAW_UP_TO_BYTES || !self.estimate.is_promising(payload) {
            return None;
        }
        // zstd fails if the result exceeds the capacity, so that a value that saves too little is an error.
        let bytes_max = RAW_HEAD_BYTES + block.len() - block.len() / SAVING_MIN;
        let mut value = Vec::with_capacity(bytes_max);
        put_head(&mut value, prefix, suffix)?;
        let body_start = value.len();
        let frame_bytes = self.zstd.compress2(&mut at_end(&mut value), payload).ok()?;
        if value.len() > bytes_max {
            return None;
        }
        let (prefix_bytes, payload_bytes, suffix_bytes) = (prefix.len(), payload.len(), suffix.len());
        let shape = if value.starts_with(&[TAG_FRAME]) {
            Shape::Frame { block_bytes: payload_bytes, frame_bytes }
        } else {
            Shape::Envelope { prefix_bytes, payload_bytes, suffix_bytes, frame_bytes }
        };
        Some(Stored { value: value.into(), layout: Layout { shape, body_start } })
    }
}

/// Whether a stored form is small enough to be worth decompressing.
fn saves_enough(stored: &Stored) -> bool {
    let block_bytes = stored.shape().block_bytes();
    let is_compressed = !matches!(stored.shape(), Shape::Raw { .. });
    is_compressed && stored.value().len() <= RAW_HEAD_BYTES + block_bytes - block_bytes / SAVING_MIN
}

/// Whether a form that was received has the file data of the block in its frame, which is sent to browsers unchanged. The
/// hash of the block says nothing about where a peer has cut it.
fn is_cut_as_here(received: &Stored, block: &Block) -> bool {
    match received.shape() {
        Shape::Envelope { prefix_bytes, payload_bytes, .. } => {
            payload(block) == (prefix_bytes..prefix_bytes + payload_bytes)
        }
        Shape::Frame { .. } => true,
        Shape::Raw { .. } => false,
    }
}

/// Writes everything before the frame. `None` if the prefix or the suffix is too long, which [`payload`] prevents.
pub(super) fn put_head(value: &mut Vec<u8>, prefix: &[u8], suffix: &[u8]) -> Option<()> {
    if prefix.is_empty() && suffix.is_empty() {
        value.push(TAG_FRAME);
        return Some(());
    }
    value.extend_from_slice(&[TAG_ENVELOPE, u8::try_from(prefix.len()).ok()?, u8::try_from(suffix.len()).ok()?]);
    value.extend_from_slice(prefix);
    value.extend_from_slice(suffix);
    Some(())
}

/// The range of the file data in a leaf; the whole range for other blocks, and for leaves with an unusually long
/// envelope.
pub(crate) fn payload(block: &Block) -> Range<usize> {
    let whole = 0..block.data().len();
    match Node::decode(block) {
        Ok(Node::File(file)) if file.child_count() == 0 => {
            let found = range_in(block.data(), file.data());
            let around = |range: &Range<usize>| range.start.max(whole.end - range.end);
            found.filter(|range| around(range) <= usize::from(u8::MAX)).unwrap_or(whole)
        }
        _ => whole,
    }
}

/// The range of `inner` in `outer`, of which it is a slice. `None` for an empty slice.
fn range_in(outer: &[u8], inner: &[u8]) -> Option<Range<usize>> {
    let start = (inner.as_ptr() as usize).checked_sub(outer.as_ptr() as usize)?;
    let range = start..start + inner.len();
    (!inner.is_empty() && range.end <= outer.len()).then_some(range)
}
