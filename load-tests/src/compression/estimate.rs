//! Compressible blocks that the store's encoder misses, because it compresses a sample first; and what the sample
//! saves.
//!
//! No command reports that, so the encoder itself is called.

use super::corpora::Corpus;
use crate::report::seconds;
use crate::stores::data::BLOCK_BYTES;
use crate::timed;
use anyhow::Result;
use bytes::Bytes;
use content::hashes::SHA2_256;
use content::stored::{self, Encoder, Shape};
use content::{Block, codec};
use serde::Serialize;
use std::time::Duration;

/// The encoder's rule: a block is stored as a frame if that saves one part in so many; shorter blocks are not tried.
const SAVING_MIN: usize = 16;
const BYTES_MIN: usize = 512;

/// Blocks of one kind of data, at the level that is the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Estimated {
    pub blocks: usize,
    /// Stored as frames.
    pub framed: usize,
    /// Stored raw although a frame would have paid.
    pub missed: usize,
    /// Bytes that these would have saved.
    pub missed_bytes: u64,
    /// CPU time with the sample, and of compressing every block.
    #[serde(rename = "cpu_seconds", serialize_with = "seconds")]
    pub encoding: Duration,
    #[serde(rename = "cpu_seconds_of_every_block", serialize_with = "seconds")]
    pub compressing: Duration,
}

/// Encodes every block.
pub fn measure(corpus: &Corpus) -> Result<Estimated> {
    let options = stored::CompressionOptions::default();
    let mut encoder = Encoder::new(options)?;
    let mut zstd = zstd::bulk::Compressor::new(options.level)?;
    let mut all = Estimated::default();
    for bytes in corpus.files.iter().flat_map(|file| file.bytes.chunks(BLOCK_BYTES)) {
        let block = Block::of(codec::RAW, SHA2_256, 32, Bytes::copy_from_slice(bytes))?;
        let (shape, encoding) = on_cpu(|| encoder.encode(&block).shape())?;
        let (frame, compressing) = on_cpu(|| zstd.compress(bytes))?;
        all.encoding += encoding;
        all.compressing += compressing;
        all.count(shape, bytes.len(), frame?.len());
    }
    Ok(all)
}

fn on_cpu<T>(work: impl FnOnce() -> T) -> Result<(T, Duration)> {
    let before = timed::own_cpu()?;
    let done = work();
    Ok((done, timed::own_cpu()?.saturating_sub(before)))
}

impl Estimated {
    fn count(&mut self, shape: Shape, block_bytes: usize, frame_bytes: usize) {
        self.blocks += 1;
        let pays = block_bytes > BYTES_MIN && frame_bytes + block_bytes / SAVING_MIN <= block_bytes;
        match shape {
            Shape::Raw { .. } if pays => {
                self.missed += 1;
                self.missed_bytes += (block_bytes - frame_bytes) as u64;
            }
            Shape::Raw { .. } => {}
            Shape::Frame { .. } | Shape::Envelope { .. } => self.framed += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::corpora::File;
    use crate::sample;

    #[test]
    fn only_compressible_blocks_are_missed() {
        let mut all = Estimated::default();
        let raw = |block_bytes| Shape::Raw { block_bytes };
        all.count(Shape::Frame { block_bytes: 1600, frame_bytes: 100 }, 1600, 100);
        all.count(raw(1600), 1600, 1500);
        all.count(raw(1600), 1600, 1501);
        all.count(raw(512), 512, 100);
        assert_eq!((all.blocks, all.framed, all.missed, all.missed_bytes), (4, 1, 1, 100));
    }

    #[test]
    fn the_encoder_compresses_text_and_not_noise() {
        let files = [sample::text(600_000, 1), sample::bytes(300_000, 1)];
        let files = files.map(|bytes| File { name: String::new(), bytes }).into();
        let estimated = measure(&Corpus { name: "some", about: String::new(), files }).expect("memory does not fail");
        assert_eq!((estimated.blocks, estimated.framed, estimated.missed), (5, 3, 0));
    }
}
