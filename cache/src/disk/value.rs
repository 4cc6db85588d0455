//! How a block's bytes lie on disk: one tag byte, then the bytes as they are or one zstd frame.
//!
//! Goals: spend no time on bytes that do not shrink (most of the web's are images, video and archives, compressed long
//! before) and never hand out more than a block can be.

use bytes::Bytes;
use content::MAX_BLOCK_BYTES;
use std::io;
use zstd::bulk::Compressor;
use zstd::zstd_safe::get_frame_content_size;

const RAW: u8 = 0;
const ZSTD: u8 = 1;

/// zstd's default: several hundred MB/s and most of the gain.
const LEVEL: i32 = 3;

/// Blocks up to this size are stored raw: there is little to save, and headers take some of it.
const RAW_UP_TO_BYTES: usize = 512;

/// How much of a block is tried before the whole of it is compressed.
const SAMPLE_BYTES: usize = 4 * 1024;

/// Compression has to save one part in this many, or the time spent unpacking is not worth it.
const SAVING_MIN: usize = 8;

/// Why a stored value cannot be read back. Whatever it is, the block has to be fetched again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueError {
    #[error("the value is empty")]
    Empty,
    #[error("tag {0} is unknown")]
    Tag(u8),
    #[error("the zstd frame does not decode to a block")]
    Frame,
}

/// Encodes blocks, keeping zstd's working memory between them.
pub(crate) struct Encoder {
    zstd: Compressor<'static>,
}

impl Encoder {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { zstd: Compressor::new(LEVEL)? })
    }

    /// The value to store for `data`.
    pub(crate) fn encode(&mut self, data: &[u8]) -> Vec<u8> {
        self.compressed(data).unwrap_or_else(|| tagged(RAW, data))
    }

    fn compressed(&mut self, data: &[u8]) -> Option<Vec<u8>> {
        if data.len() <= RAW_UP_TO_BYTES {
            return None;
        }
        if let Some(sample) = data.get(..SAMPLE_BYTES) {
            self.shrunk(sample)?;
        }
        Some(tagged(ZSTD, &self.shrunk(data)?))
    }

    /// The frame, if it saves enough. A failure to compress is no reason not to store the block.
    fn shrunk(&mut self, data: &[u8]) -> Option<Vec<u8>> {
        let frame = self.zstd.compress(data).ok()?;
        (frame.len() <= data.len() - data.len() / SAVING_MIN).then_some(frame)
    }
}

fn tagged(tag: u8, payload: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(1 + payload.len());
    value.push(tag);
    value.extend_from_slice(payload);
    value
}

/// The block that [`Encoder::encode`] stored.
///
/// # Errors
/// [`ValueError`] when the value is not one that was stored.
pub(crate) fn decode(value: &[u8]) -> Result<Bytes, ValueError> {
    match value.split_first() {
        None => Err(ValueError::Empty),
        Some((&RAW, data)) => Ok(Bytes::copy_from_slice(data)),
        Some((&ZSTD, frame)) => inflate(frame),
        Some((&tag, _)) => Err(ValueError::Tag(tag)),
    }
}

/// The size is read from the frame first, so that memory is asked for once and never beyond a block's limit.
fn inflate(frame: &[u8]) -> Result<Bytes, ValueError> {
    let size = get_frame_content_size(frame).ok().flatten().and_then(|size| usize::try_from(size).ok());
    let size = size.filter(|size| *size <= MAX_BLOCK_BYTES).ok_or(ValueError::Frame)?;
    let data = zstd::bulk::decompress(frame, size).map_err(|_| ValueError::Frame)?;
    if data.len() == size { Ok(Bytes::from(data)) } else { Err(ValueError::Frame) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(data: &[u8]) -> Vec<u8> {
        let value = Encoder::new().expect("zstd").encode(data);
        assert_eq!(decode(&value).expect("decodes"), data);
        value
    }

    /// Bytes that do not compress, the same for the same seed.
    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed | 1;
        let step = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        };
        std::iter::repeat_with(step).take(len).collect()
    }

    #[test]
    fn text_is_compressed_and_noise_and_small_blocks_are_not() {
        let text = b"the quick brown fox jumps over the lazy dog. ".repeat(2_000);
        let stored = round_trip(&text);
        assert_eq!(stored[0], ZSTD);
        assert!(stored.len() < text.len() / 10);
        assert_eq!(round_trip(&noise(7, 100_000))[0], RAW);
        assert_eq!(round_trip(&vec![0; RAW_UP_TO_BYTES])[0], RAW);
        assert_eq!(round_trip(&vec![0; RAW_UP_TO_BYTES + 1])[0], ZSTD);
        assert_eq!(round_trip(b""), [RAW]);
    }

    #[test]
    fn a_block_that_only_begins_compressible_is_stored_raw() {
        let mut data = vec![0; SAMPLE_BYTES];
        data.extend(noise(3, 200_000));
        assert_eq!(round_trip(&data)[0], RAW);
    }

    #[test]
    fn damaged_and_oversized_values_are_errors() {
        assert_eq!(decode(b""), Err(ValueError::Empty));
        assert_eq!(decode(&[9, 1, 2]), Err(ValueError::Tag(9)));
        assert_eq!(decode(&[ZSTD, 1, 2, 3]), Err(ValueError::Frame));
        let bomb = zstd::bulk::compress(&vec![0; MAX_BLOCK_BYTES + 1], LEVEL).expect("compresses");
        assert_eq!(decode(&tagged(ZSTD, &bomb)), Err(ValueError::Frame));
        let mut cut = round_trip(&vec![0; 10_000]);
        cut.pop();
        assert_eq!(decode(&cut), Err(ValueError::Frame));
    }

    proptest! {
        #[test]
        fn every_block_comes_back_and_never_grows_by_more_than_its_tag(
            unit in proptest::collection::vec(any::<u8>(), 0..300), times in 1_usize..200
        ) {
            let data = unit.repeat(times);
            prop_assert!(round_trip(&data).len() <= data.len() + 1);
        }

        #[test]
        fn no_value_panics_the_decoder(value in proptest::collection::vec(any::<u8>(), 0..200)) {
            _ = decode(&value);
        }
    }
}
