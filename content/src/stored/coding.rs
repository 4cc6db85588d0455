//! The content coding `zstd` of HTTP messages (<https://www.rfc-editor.org/rfc/rfc8878>, section 3, and
//! <https://www.rfc-editor.org/rfc/rfc9659>): bodies are decoded as they are received, and encoded as they are sent.
//!
//! Goals: decoding untrusted bodies takes the memory of one window ([`DECODER_BYTES_MAX`]), and the caller decides how
//! much it decodes at a time, so that a small body that decodes to gigabytes costs no more than those that are read; a
//! truncated body is always an error; a body that is sent is never longer than its bytes by more than the headers of
//! frames, since a sample of each chunk decides whether it is compressed ([`super::encoder`]).
//!
//! A body is one or more frames, skippable ones included. The library decodes frames of formats before RFC 8878 too,
//! whose decoders have no bound on memory; so the header of each frame is read here first, and nothing else reaches the
//! library.
//!
//! | body | outcome |
//! |---|---|
//! | empty, or ends within a frame | [`CodingError::Truncated`] |
//! | something that is no frame, also behind one | [`CodingError::NotZstd`] |
//! | a window of more than 8 MiB | [`CodingError::Window`] |
//! | a dictionary, or a damaged frame | [`CodingError::Malformed`] |
//! | frames that take more than twice their content and half a MiB | [`CodingError::Wasteful`] |
//!
//! Non-goals: other codings; parsing headers of HTTP.

use super::estimate::{Estimate, context};
use super::frame::{FrameStart, START_BYTES_MAX, StartError, WINDOW_BYTES_MAX, raw, read_start};
use super::{ValueError, inflate_onto};
use bytes::{Buf as _, Bytes};
use std::io;
use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd::zstd_safe::{CCtx, DCtx, DParameter, InBuffer, OutBuffer, find_frame_compressed_size, get_error_name};

/// The name of the coding in HTTP headers.
pub const ZSTD: &str = "zstd";
/// The maximum memory of a [`BodyDecoder`], in bytes: a window, the block that is being decoded, and tables.
pub const DECODER_BYTES_MAX: usize = WINDOW_BYTES_MAX as usize + 512 * 1024;
/// The maximum window of a frame as a power of two.
const WINDOW_LOG_MAX: u32 = WINDOW_BYTES_MAX.ilog2();
/// The bytes that frames may take beyond twice their content. More than one compressed block, whose content is known
/// only when it is complete.
const OVERHEAD_BYTES_MAX: u64 = 512 * 1024;
/// The level at which bodies are compressed: that of stored blocks.
const LEVEL: i32 = 3;
/// The space that the encoder adds to its output at a time, in bytes.
const OUTPUT_BYTES: usize = 64 * 1024;

/// Why a body cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodingError {
    /// The body ends within a frame, or has none.
    #[error("the zstd body is truncated")]
    Truncated,
    /// The body is not zstd, or something follows its frames.
    #[error("the body is not zstd, or something else follows its frames")]
    NotZstd,
    /// The window of a frame is too large.
    #[error(
        "a zstd frame has a window of more than {} MiB, the limit of the content coding (RFC 9659): compress it \
         without --long and --ultra",
        WINDOW_BYTES_MAX >> 20
    )]
    Window,
    /// A frame is malformed, or needs a dictionary.
    #[error("a zstd frame is malformed: {0}")]
    Malformed(&'static str),
    /// The frames take much more space than what they contain.
    #[error("the zstd frames are more than twice as long as their content")]
    Wasteful,
    /// The body would be longer than allowed.
    #[error("the zstd body decodes to more than {bytes_max} bytes")]
    TooLong {
        /// The maximum, in bytes.
        bytes_max: usize,
    },
    /// Memory could not be allocated.
    #[error("there is not enough memory to decode a zstd body")]
    Memory,
}

impl From<StartError> for CodingError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::NotAFrame => Self::NotZstd,
            StartError::Unsupported => Self::Malformed("it needs a dictionary, or sets a reserved bit"),
        }
    }
}

/// Decodes a body chunk by chunk.
pub struct BodyDecoder {
    zstd: DCtx<'static>,
    state: DecoderState,
    /// The beginning of the current frame, until its header is complete.
    start: Vec<u8>,
    has_frames: bool,
    encoded_bytes: u64,
    decoded_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DecoderState {
    /// Between two frames, or in the header of a frame.
    Start,
    /// In a zstd frame.
    Frame {
        /// Whether zstd may have decoded bytes that there was no space for.
        has_output: bool,
    },
    /// In a skippable frame, of which so many bytes are left.
    Skipped(u32),
}

impl BodyDecoder {
    /// A decoder for one body.
    ///
    /// # Errors
    /// [`CodingError::Memory`].
    pub fn new() -> Result<Self, CodingError> {
        let mut zstd = DCtx::try_create().ok_or(CodingError::Memory)?;
        zstd.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(malformed)?;
        let start = Vec::with_capacity(START_BYTES_MAX);
        Ok(Self { zstd, state: DecoderState::Start, start, has_frames: false, encoded_bytes: 0, decoded_bytes: 0 })
    }

    /// Decodes `input` to the end of `out`, until the input is used up or the capacity of `out` is: `input` is what was
    /// not decoded.
    ///
    /// # Errors
    /// [`CodingError`]; then the body cannot be decoded further.
    pub fn decode(&mut self, input: &mut Bytes, out: &mut Vec<u8>) -> Result<(), CodingError> {
        loop {
            match self.state {
                DecoderState::Start if input.is_empty() => return Ok(()),
                DecoderState::Start => self.read_start(input)?,
                DecoderState::Frame { has_output } => {
                    if out.len() == out.capacity() || input.is_empty() && !has_output {
                        return Ok(());
                    }
                    self.decode_frame(input, out)?;
                }
                DecoderState::Skipped(0) => self.end_frame(),
                DecoderState::Skipped(_) if input.is_empty() => return Ok(()),
                DecoderState::Skipped(left) => {
                    let skipped = left.min(u32::try_from(input.len()).unwrap_or(u32::MAX));
                    input.advance(skipped as usize);
                    self.encoded_bytes += u64::from(skipped);
                    self.state = DecoderState::Skipped(left - skipped);
                }
            }
            if self.encoded_bytes > 2 * self.decoded_bytes + OVERHEAD_BYTES_MAX {
                return Err(CodingError::Wasteful);
            }
        }
    }

    /// Checks that the body is complete.
    ///
    /// # Errors
    /// [`CodingError::Truncated`].
    pub fn finish(&self) -> Result<(), CodingError> {
        let is_complete = self.has_frames && self.state == DecoderState::Start && self.start.is_empty();
        if is_complete { Ok(()) } else { Err(CodingError::Truncated) }
    }

    /// The number of bytes that were decoded, and into how many.
    pub fn bytes(&self) -> (u64, u64) {
        (self.encoded_bytes, self.decoded_bytes)
    }

    /// Reads the header of a frame byte by byte, and passes it to zstd once it is complete and allowed.
    fn read_start(&mut self, input: &mut Bytes) -> Result<(), CodingError> {
        while !input.is_empty() {
            self.start.push(input.get_u8());
            self.encoded_bytes += 1;
            let Some((start, _)) = read_start(&self.start)? else { continue };
            let header = Bytes::copy_from_slice(&self.start);
            self.start.clear();
            match start {
                FrameStart::Skippable { bytes } => self.state = DecoderState::Skipped(bytes),
                FrameStart::Frame { window_bytes, .. } if window_bytes > WINDOW_BYTES_MAX => {
                    return Err(CodingError::Window);
                }
                FrameStart::Frame { .. } => {
                    self.state = DecoderState::Frame { has_output: false };
                    self.pass_to_zstd(&header, &mut Vec::new())?;
                }
            }
            return Ok(());
        }
        Ok(())
    }

    fn decode_frame(&mut self, input: &mut Bytes, out: &mut Vec<u8>) -> Result<(), CodingError> {
        let before = out.len();
        let (used, is_end) = self.pass_to_zstd(input, out)?;
        input.advance(used);
        self.encoded_bytes += used as u64;
        self.decoded_bytes += (out.len() - before) as u64;
        match is_end {
            true => self.end_frame(),
            false => self.state = DecoderState::Frame { has_output: out.len() == out.capacity() },
        }
        Ok(())
    }

    fn end_frame(&mut self) {
        self.state = DecoderState::Start;
        self.has_frames = true;
    }

    /// Decodes a part of a frame; returns how much of it was used, and whether the frame has ended.
    fn pass_to_zstd(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, bool), CodingError> {
        let end = out.len();
        let (mut input, mut out) = (InBuffer::around(input), OutBuffer::around_pos(out, end));
        let hint = self.zstd.decompress_stream(&mut out, &mut input).map_err(malformed)?;
        Ok((input.pos, hint == 0))
    }
}

impl std::fmt::Debug for BodyDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BodyDecoder").field("state", &self.state).field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

fn malformed(code: usize) -> CodingError {
    CodingError::Malformed(get_error_name(code))
}

/// The error of a frame whose length cannot be determined.
fn cut_or_malformed(code: usize) -> CodingError {
    // The name of `ZSTD_error_srcSize_wrong`: error codes themselves are private to the library.
    if get_error_name(code) == "Src size is incorrect" { CodingError::Truncated } else { malformed(code) }
}

/// Decodes a whole body of at most `bytes_max` bytes. Allocates them once, and no window.
///
/// # Errors
/// [`CodingError`].
pub fn decode_body(body: &[u8], bytes_max: usize) -> Result<Vec<u8>, CodingError> {
    let too_long = CodingError::TooLong { bytes_max };
    // The sum of the sizes in the headers; unknown if one of them has none.
    let (mut announced, mut rest) = (Some(0_u64), body);
    loop {
        let start = match read_start(rest)?.ok_or(CodingError::Truncated)?.0 {
            FrameStart::Frame { window_bytes, .. } if window_bytes > WINDOW_BYTES_MAX => {
                return Err(CodingError::Window);
            }
            FrameStart::Frame { content_bytes, .. } => content_bytes,
            FrameStart::Skippable { .. } => Some(0),
        };
        announced = announced.zip(start).map(|(sum, bytes)| sum.saturating_add(bytes));
        let frame_bytes = find_frame_compressed_size(rest).map_err(cut_or_malformed)?;
        rest = rest.get(frame_bytes..).ok_or(CodingError::Truncated)?;
        if rest.is_empty() {
            break;
        }
    }
    let capacity = match announced {
        Some(bytes) => usize::try_from(bytes).ok().filter(|bytes| *bytes <= bytes_max).ok_or(too_long)?,
        None => bytes_max,
    };
    let mut out = Vec::with_capacity(capacity);
    inflate_onto(&mut out, body).map_err(|error| match (error, announced) {
        (ValueError::Memory, _) => CodingError::Memory,
        (_, Some(_)) => CodingError::Malformed("its content is damaged"),
        (_, None) => CodingError::Malformed("its content is damaged or too long"),
    })?;
    // Without an announced size there was space for the longest body.
    out.shrink_to_fit();
    Ok(out)
}

/// Encodes a body chunk by chunk. What was encoded so far can always be decoded completely.
///
/// A chunk that a sample finds compressible continues the current zstd frame, whose window extends over earlier chunks;
/// others are sent as frames of raw blocks, without a copy.
pub struct BodyEncoder {
    zstd: CCtx<'static>,
    estimate: Estimate,
    in_frame: bool,
    has_frames: bool,
}

impl BodyEncoder {
    /// An encoder for one body.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn new() -> io::Result<Self> {
        Ok(Self { zstd: context(LEVEL)?, estimate: Estimate::new()?, in_frame: false, has_frames: false })
    }

    /// Encodes the next chunk.
    ///
    /// # Errors
    /// If zstd runs out of memory.
    pub fn encode(&mut self, chunk: &Bytes) -> io::Result<Vec<Bytes>> {
        if chunk.is_empty() {
            return Ok(Vec::new());
        }
        self.has_frames = true;
        if self.estimate.is_promising(chunk) {
            self.in_frame = true;
            return Ok(vec![self.compress(chunk, ZSTD_EndDirective::ZSTD_e_flush)?]);
        }
        let mut parts = Vec::new();
        parts.extend(self.end_frame()?);
        parts.extend(raw(chunk));
        Ok(parts)
    }

    /// The end of the body, if anything is left. A body of no bytes is an empty frame.
    ///
    /// # Errors
    /// As [`BodyEncoder::encode`].
    pub fn finish(&mut self) -> io::Result<Vec<Bytes>> {
        if !self.has_frames {
            self.has_frames = true;
            return Ok(raw(&Bytes::new()));
        }
        Ok(self.end_frame()?.into_iter().collect())
    }

    fn end_frame(&mut self) -> io::Result<Option<Bytes>> {
        if !std::mem::take(&mut self.in_frame) {
            return Ok(None);
        }
        self.compress(&[], ZSTD_EndDirective::ZSTD_e_end).map(Some)
    }

    fn compress(&mut self, input: &[u8], directive: ZSTD_EndDirective) -> io::Result<Bytes> {
        let (mut input, mut output) = (InBuffer::around(input), Vec::new());
        loop {
            output.reserve(OUTPUT_BYTES);
            let end = output.len();
            let mut buffer = OutBuffer::around_pos(&mut output, end);
            let left = self.zstd.compress_stream2(&mut buffer, &mut input, directive);
            let left = left.map_err(|code| io::Error::other(get_error_name(code)))?;
            if left == 0 && input.pos == input.src.len() {
                return Ok(output.into());
            }
        }
    }
}

impl std::fmt::Debug for BodyEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BodyEncoder").field("in_frame", &self.in_frame).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{joined, samples};
    use super::*;
    use proptest::prelude::*;

    /// A body that is decoded in pieces: of `chunk_bytes` each, into at most `out_bytes`.
    fn decoded(body: &[u8], chunk_bytes: usize, out_bytes: usize) -> Result<Vec<u8>, CodingError> {
        let (mut decoder, mut all) = (BodyDecoder::new()?, Vec::new());
        for chunk in body.chunks(chunk_bytes.max(1)) {
            let mut input = Bytes::copy_from_slice(chunk);
            loop {
                let mut out = Vec::with_capacity(out_bytes.max(1));
                decoder.decode(&mut input, &mut out)?;
                let is_full = out.len() == out.capacity();
                all.append(&mut out);
                if !is_full {
                    assert!(input.is_empty(), "what fits is decoded");
                    break;
                }
            }
        }
        decoder.finish()?;
        assert_eq!(decoder.bytes(), (body.len() as u64, all.len() as u64));
        Ok(all)
    }

    fn encoded(chunks: &[Vec<u8>]) -> Vec<u8> {
        let mut encoder = BodyEncoder::new().expect("memory");
        let parts = chunks.iter().flat_map(|chunk| encoder.encode(&Bytes::from(chunk.clone())).expect("memory"));
        let mut body = joined(&parts.collect::<Vec<_>>()).to_vec();
        body.extend_from_slice(&joined(&encoder.finish().expect("memory")));
        body
    }

    fn skippable(bytes: u32) -> Vec<u8> {
        [&[0x5a, 0x2a, 0x4d, 0x18][..], &bytes.to_le_bytes(), &vec![7; bytes as usize]].concat()
    }

    /// A frame without a content size, as a stream has it.
    fn streamed(content: &[u8], window_log: u32) -> Vec<u8> {
        use std::io::Write as _;
        let mut encoder = zstd::Encoder::new(Vec::new(), 3).expect("memory");
        encoder.window_log(window_log).expect("a window");
        encoder.write_all(content).expect("memory");
        encoder.flush().expect("memory");
        encoder.finish().expect("memory")
    }

    #[test]
    fn one_or_more_frames_are_decoded() {
        let text = samples::text(1, 300_000);
        let frame = |content: &[u8]| zstd::encode_all(content, 3).expect("encodes");
        let raw_frame = |content: &[u8]| joined(&raw(&Bytes::copy_from_slice(content))).to_vec();
        let table: [(&str, Vec<u8>, &[u8]); 8] = [
            ("one frame", frame(&text), &text),
            ("no content size", streamed(&text, 17), &text),
            ("the largest window", streamed(&text, 23), &text),
            ("two frames", [frame(&text[..10]), raw_frame(&text[10..])].concat(), &text),
            ("skippable frames", [skippable(3), frame(&text), skippable(0), skippable(70_000)].concat(), &text),
            ("empty frames", [frame(b""), raw_frame(b""), frame(&text)].concat(), &text),
            ("an empty frame", raw_frame(b""), b""),
            ("only a skippable frame", skippable(5), b""),
        ];
        for (name, body, content) in table {
            for (chunk_bytes, out_bytes) in [(1, 1 << 20), (7, 13), (1 << 16, 1 << 16), (body.len(), 1)] {
                let decoded = decoded(&body, chunk_bytes, out_bytes);
                assert!(decoded.as_deref() == Ok(content), "{name}, {chunk_bytes} {out_bytes}: {:?}", decoded.err());
            }
            let whole = decode_body(&body, content.len().max(1));
            assert!(whole.as_deref() == Ok(content), "{name}, whole: {:?}", whole.err());
            assert_eq!(whole.map(|whole| whole.capacity()).ok(), Some(content.len()), "{name}");
        }
    }

    #[test]
    fn bodies_that_must_not_be_decoded_are_errors() {
        let text = samples::text(1, 50_000);
        let frame = zstd::encode_all(&text[..], 3).expect("encodes");
        let dictionary = [&frame[..4], &[0x21, 5, 0, 1, 0, 0]].concat();
        // Behind the header of six bytes, a block of the reserved type.
        let mut damaged = frame.clone();
        damaged[6] |= 0b110;
        // The magic number of version 0.7.
        let legacy = [&[0x27, 0xb5, 0x2f, 0xfd][..], &frame[4..]].concat();
        let table: [(&str, Vec<u8>, CodingError); 12] = [
            ("nothing", Vec::new(), CodingError::Truncated),
            ("a part of the magic number", frame[..3].to_vec(), CodingError::Truncated),
            ("a header", frame[..9].to_vec(), CodingError::Truncated),
            ("all but a byte", frame[..frame.len() - 1].to_vec(), CodingError::Truncated),
            ("a second frame that is cut", [&frame[..], &frame[..99]].concat(), CodingError::Truncated),
            ("a skippable frame that is cut", skippable(9)[..12].to_vec(), CodingError::Truncated),
            ("text", text.clone(), CodingError::NotZstd),
            ("gzip", b"\x1f\x8b\x08\x00\x00\x00\x00\x00".to_vec(), CodingError::NotZstd),
            ("an old format", legacy, CodingError::NotZstd),
            ("text behind a frame", [&frame[..], &b"text"[..]].concat(), CodingError::NotZstd),
            ("a larger window", streamed(&text, 24), CodingError::Window),
            ("the largest of all windows", streamed(&text, 27), CodingError::Window),
        ];
        for (name, body, expected) in table {
            for chunk_bytes in [1, 1 << 20] {
                assert_eq!(decoded(&body, chunk_bytes, 1 << 16), Err(expected), "{name} {chunk_bytes}");
            }
            assert_eq!(decode_body(&body, 1 << 20), Err(expected), "{name}");
        }
        for (name, body) in [("a dictionary", dictionary), ("damage", damaged)] {
            for found in [decoded(&body, 1 << 20, 1 << 16), decode_body(&body, 1 << 20)] {
                assert!(matches!(found, Err(CodingError::Malformed(_))), "{name}: {:?}", found.err());
            }
        }
    }

    #[test]
    fn a_bomb_is_decoded_only_as_far_as_it_is_read() {
        let bomb = streamed(&vec![0; 256 << 20], 23);
        assert!(bomb.len() < 32 * 1024, "{}", bomb.len());
        let (mut decoder, mut input) = (BodyDecoder::new().expect("memory"), Bytes::from(bomb.clone()));
        let mut out = Vec::with_capacity(100_000);
        decoder.decode(&mut input, &mut out).expect("decodes");
        assert_eq!((out.len(), out.capacity(), decoder.bytes().1), (100_000, 100_000, 100_000));
        assert!(decoder.zstd.sizeof() <= DECODER_BYTES_MAX, "{}", decoder.zstd.sizeof());
        assert_eq!(decoder.finish(), Err(CodingError::Truncated));
        // Its header has no size: the space for the longest body is used up.
        assert!(matches!(decode_body(&bomb, 1 << 20), Err(CodingError::Malformed(_))));
        let announced = zstd::bulk::compress(&vec![0; 3 << 20], 3).expect("encodes");
        assert_eq!(decode_body(&announced, 2 << 20), Err(CodingError::TooLong { bytes_max: 2 << 20 }));
    }

    #[test]
    fn frames_without_content_do_not_go_on_forever() {
        let empty = joined(&raw(&Bytes::new())).repeat(100_000);
        assert_eq!(decoded(&empty, 4096, 4096), Err(CodingError::Wasteful));
        assert_eq!(decoded(&skippable(2 << 20), 4096, 4096), Err(CodingError::Wasteful));
        // The heads and the short blocks of an archive are longer as frames, and allowed.
        let short: Vec<u8> =
            (0..100_000).flat_map(|_| joined(&raw(&Bytes::from_static(b"ten bytes."))).to_vec()).collect();
        assert_eq!(decoded(&short, 1 << 16, 1 << 16).map(|all| all.len()), Ok(1_000_000));
    }

    #[test]
    fn only_chunks_that_shrink_are_compressed() {
        let (text, noise) = (samples::text(1, 256 * 1024), samples::noise(1, 256 * 1024));
        let body = encoded(&[noise.clone(), text.clone(), text.clone(), noise.clone()]);
        assert_eq!(decoded(&body, 10_000, 1 << 16).expect("decodes"), [&noise[..], &text, &text, &noise].concat());
        // The second of two equal texts is in the window of the first.
        let alone = encoded(std::slice::from_ref(&text)).len();
        let both = encoded(&[text.clone(), text.clone()]).len();
        assert!(alone < text.len() / 2 && both < alone + alone / 8, "{alone} {both}");
        let chunks = vec![noise.clone(); 40];
        assert!(encoded(&chunks).len() < 40 * noise.len() + 40 * 32, "noise hardly grows");
        let mut encoder = BodyEncoder::new().expect("memory");
        let (chunk, parts) = (Bytes::from(noise), encoder.encode(&Bytes::from(text)).expect("memory"));
        assert_eq!(decoded(&joined(&parts), 1 << 20, 1 << 20), Err(CodingError::Truncated), "the frame goes on");
        let parts = encoder.encode(&chunk).expect("memory");
        assert!(parts.iter().any(|part| part.as_ptr() == chunk.as_ptr()), "it is not copied");
        assert_eq!(decoded(&encoded(&[]), 1, 1), Ok(Vec::new()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_was_encoded_can_be_decoded_at_any_time(
            chunks in proptest::collection::vec((0_usize..100_000, 0_u8..4), 0..6), chunk_bytes in 1_usize..50_000,
            out_bytes in 1_usize..50_000
        ) {
            let chunks: Vec<Vec<u8>> = chunks.into_iter().map(|(bytes, kind)| match kind {
                0 => samples::noise(bytes as u64, bytes),
                1 => vec![0; bytes],
                _ => samples::text(u64::from(kind), bytes),
            }).collect();
            let mut encoder = BodyEncoder::new().expect("memory");
            let (mut decoder, mut all) = (BodyDecoder::new().expect("memory"), Vec::new());
            let mut body = Vec::new();
            for chunk in &chunks {
                for part in encoder.encode(&Bytes::from(chunk.clone())).expect("memory") {
                    body.extend_from_slice(&part);
                    let mut out = Vec::with_capacity(1 << 20);
                    decoder.decode(&mut part.clone(), &mut out).expect("decodes");
                    all.extend_from_slice(&out);
                }
            }
            prop_assert!(all == chunks.concat());
            body.extend_from_slice(&joined(&encoder.finish().expect("memory")));
            prop_assert!(decoded(&body, chunk_bytes, out_bytes) == Ok(chunks.concat()));
            prop_assert!(decode_body(&body, 1 << 20) == Ok(chunks.concat()));
        }

        #[test]
        fn any_bytes_are_decoded_or_an_error(
            body in proptest::collection::vec(any::<u8>(), 0..300),
            flips in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..4)
        ) {
            _ = decoded(&body, 17, 64);
            let mut frame = encoded(&[body]);
            for (at, byte) in flips {
                let at = usize::from(at) % frame.len();
                frame[at] ^= byte;
            }
            if let (Ok(streamed), Ok(whole)) = (decoded(&frame, 17, 64), decode_body(&frame, 1 << 16)) {
                prop_assert_eq!(streamed, whole);
            }
        }
    }
}
