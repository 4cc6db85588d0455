//! Estimates whether compression is worthwhile: a few slices from the whole payload are compressed at the fastest
//! level.
//!
//! A head alone says little: images begin with text, programs with tables, archives with names. A sample contains no
//! repetitions across blocks of a file and few within one, so its threshold is lower than that of the frame; it only
//! excludes data that is already compressed or encrypted, at a small part of the cost of compressing it.

use super::formats::looks_compressed;
use std::io;
use zstd::zstd_safe::{CCtx, CParameter};

const LEVEL: i32 = 1;
const SLICE_BYTES: usize = 1024;
const SLICES: usize = 8;

/// Smaller payloads are compressed without sampling, since the sample would be a large part of them.
const SAMPLED_FROM_BYTES: usize = 4 * SLICES * SLICE_BYTES;

/// The sample must save one part in this many.
const SAVING_MIN: usize = 32;
/// The same if the payload begins like a compressed format. Of the images at hand, those with a thumbnail, a profile or
/// a title saved 2 to 8 % of the sample and mostly nothing of the whole; badly compressed ones saved 10 % or more of
/// both.
const SAVING_MIN_IF_COMPRESSED: usize = 10;

/// Compresses samples, and reuses zstd's working memory.
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

    /// Whether compressing `payload` may be worthwhile.
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
        // zstd fails if the result exceeds the buffer.
        self.frame.resize(self.sample.len() - self.sample.len() / saving_min, 0);
        self.zstd.compress2(&mut self.frame[..], &self.sample).is_ok()
    }
}

/// A context for stored frames: with the content size, without a checksum.
pub(crate) fn context(level: i32) -> io::Result<CCtx<'static>> {
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
    fn a_sample_detects_compressible_data_wherever_it_is() {
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
