//! Whether it is worth trying to compress: a few slices from all over the payload are compressed at the fastest level.
//!
//! Slices, because a head tells little: images begin with text, programs with tables, archives with names. A sample
//! sees no repetition between blocks of a file and little inside of one, so the bar is lower for it than for the frame
//! that follows; it is there to let go of what is compressed or encrypted already, at a small part of the cost of
//! finding out in full.

use super::formats::looks_compressed;
use std::io;
use zstd::zstd_safe::{CCtx, CParameter};

const LEVEL: i32 = 1;
const SLICE_BYTES: usize = 1024;
const SLICES: usize = 8;

/// Up to this size the whole is compressed without a sample, which would be a good part of it, in bytes.
const SAMPLED_FROM_BYTES: usize = 4 * SLICES * SLICE_BYTES;

/// The sample has to save one part in this many.
const SAVING_MIN: usize = 32;
/// The same if the payload begins like a compressed format. Of the images at hand, those with a thumbnail, a profile or
/// a title saved 2 to 8 % of the sample and mostly nothing of the whole, those that were compressed badly 10 % or more
/// of both.
const SAVING_MIN_IF_COMPRESSED: usize = 10;

/// Takes samples, keeping zstd's working memory between them.
pub(super) struct Estimate {
    zstd: CCtx<'static>,
    sample: Vec<u8>,
    frame: Vec<u8>,
}

impl Estimate {
    pub(super) fn new() -> io::Result<Self> {
        let zstd = context(LEVEL)?;
        Ok(Self { zstd, sample: Vec::with_capacity(SLICES * SLICE_BYTES), frame: Vec::new() })
    }

    /// Whether compressing `payload` may pay.
    pub(super) fn is_promising(&mut self, payload: &[u8]) -> bool {
        if payload.len() < SAMPLED_FROM_BYTES {
            return true;
        }
        self.sample.clear();
        for index in 0..SLICES {
            let start = (payload.len() - SLICE_BYTES) / (SLICES - 1) * index;
            self.sample.extend_from_slice(&payload[start..start + SLICE_BYTES]);
        }
        let saving_min = if looks_compressed(payload) { SAVING_MIN_IF_COMPRESSED } else { SAVING_MIN };
        // zstd stops where the room ends, so there is nothing to compare.
        self.frame.resize(self.sample.len() - self.sample.len() / saving_min, 0);
        self.zstd.compress2(&mut self.frame[..], &self.sample).is_ok()
    }
}

/// A context that writes frames as they are stored: with the size of their content, without a checksum.
pub(super) fn context(level: i32) -> io::Result<CCtx<'static>> {
    let mut zstd = CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
    for parameter in
        [CParameter::CompressionLevel(level), CParameter::ContentSizeFlag(true), CParameter::ChecksumFlag(false)]
    {
        zstd.set_parameter(parameter).map_err(|code| io::Error::other(zstd::zstd_safe::get_error_name(code)))?;
    }
    Ok(zstd)
}

#[cfg(test)]
mod tests {
    use super::super::tests::samples;
    use super::*;

    #[test]
    fn a_sample_tells_what_shrinks_wherever_it_lies() {
        let (noise, text) = (samples::noise(1, 256 * 1024), samples::text(1, 256 * 1024));
        let half = 128 * 1024;
        let jpeg = |rest: &[u8]| [b"\xff\xd8\xff\xe0", rest].concat();
        let table: [(&str, Vec<u8>, bool); 7] = [
            ("noise", noise.clone(), false),
            ("text", text.clone(), true),
            ("noise, then text", [&noise[..half], &text[..half]].concat(), true),
            ("text, then noise", [&text[..half], &noise[..half]].concat(), true),
            ("an image with a title of text", jpeg(&[&text[..10_000], &noise].concat()), false),
            ("text that begins like an image", jpeg(&text), true),
            ("short noise, not sampled", noise[..SAMPLED_FROM_BYTES - 1].to_vec(), true),
        ];
        let mut estimate = Estimate::new().expect("zstd");
        for (name, payload, promising) in table {
            assert_eq!(estimate.is_promising(&payload), promising, "{name}");
        }
    }
}
