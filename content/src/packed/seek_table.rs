//! [`SeekTable`]: the table of frames at the end of a seekable zstd file
//! (<https://github.com/facebook/zstd/blob/dev/contrib/seekable_format/zstd_seekable_compression_format.md>, version
//! 0.1.0).
//!
//! Goals: tables of any encoder are read, with and without checksums; memory is bounded by [`TABLE_BYTES_MAX`]; what is
//! read describes exactly the bytes before the table, or is an error.
//!
//! | bytes | contents |
//! |---|---|
//! | 4 | the magic number of a skippable frame, 0x184D2A5E |
//! | 4 | length of what follows |
//! | 8 or 12 for each frame | compressed length, plain length, and the checksum if there are checksums |
//! | 4 | the number of frames |
//! | 1 | the descriptor: bit 7 for checksums, bits 6 to 2 are zero |
//! | 4 | the magic number of the format, 0x8F92EAB1 |
//!
//! Numbers are little-endian. Non-goals: verifying the checksums, since blocks have hashes.

use bytes::{BufMut as _, Bytes, BytesMut};

const SKIPPABLE_MAGIC: u32 = 0x184d_2a5e;
const SEEKABLE_MAGIC: u32 = 0x8f92_eab1;

const HEAD_BYTES: usize = 8;
const FOOTER_BYTES: usize = 9;
const ENTRY_BYTES: usize = 8;
const CHECKSUM_BYTES: usize = 4;

const CHECKSUMS: u8 = 1 << 7;
const RESERVED: u8 = 0b0111_1100;

/// The maximum size of a table, in bytes, so that it fits in one block with a frame of a megabyte.
pub const TABLE_BYTES_MAX: usize = 1000 * 1024;

/// The maximum number of frames of a table without checksums.
pub const FRAMES_MAX: usize = (TABLE_BYTES_MAX - HEAD_BYTES - FOOTER_BYTES) / ENTRY_BYTES;

/// The lengths of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLengths {
    /// The length of the frame, in bytes.
    pub frame_bytes: u32,
    /// The length of its content, in bytes.
    pub plain_bytes: u32,
}

/// A frame's place in both files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FramePlace {
    /// The number of the frame.
    pub index: usize,
    /// The position of the frame in the compressed file, in bytes.
    pub frame_start: u64,
    /// The position of its content in the plain file, in bytes.
    pub plain_start: u64,
    /// Its lengths.
    pub lengths: FrameLengths,
}

/// Why a table cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SeekTableError {
    /// The file does not end in a table.
    #[error("the file does not end in a seek table of the zstd seekable format")]
    Missing,
    /// The table has an option that this release does not know.
    #[error("the seek table has reserved bits set")]
    Reserved,
    /// The lengths in the table disagree.
    #[error("the lengths in the seek table disagree")]
    Length,
    /// The table exceeds the maximum.
    #[error("the seek table has {frames} frames, which is more than {TABLE_BYTES_MAX} bytes")]
    TooLarge {
        /// The number of frames.
        frames: u32,
    },
}

/// The frames of a seekable zstd file, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeekTable {
    frames: Vec<FrameLengths>,
    /// The sum of the frames, in bytes.
    frame_bytes: u64,
    /// The sum of their contents, in bytes.
    plain_bytes: u64,
}

impl SeekTable {
    /// The length of [`SeekTable::bytes_by_footer`]'s input, in bytes.
    pub const FOOTER_BYTES: usize = FOOTER_BYTES;

    /// The size of the table at the end of a file in bytes, from the last [`SeekTable::FOOTER_BYTES`] of the file.
    ///
    /// # Errors
    /// [`SeekTableError`].
    pub fn bytes_by_footer(tail: &[u8]) -> Result<usize, SeekTableError> {
        Footer::read(tail).map(|footer| footer.bytes)
    }

    /// Reads the table at the end of a file from the last bytes of the file, which must have all of the table. Returns
    /// it with its length in bytes.
    ///
    /// # Errors
    /// [`SeekTableError`].
    pub fn read_tail(tail: &[u8]) -> Result<(Self, usize), SeekTableError> {
        let Footer { frames, entry_bytes, bytes } = Footer::read(tail)?;
        let table = tail.len().checked_sub(bytes).map(|start| &tail[start..]).ok_or(SeekTableError::Length)?;
        let (head, rest) = table.split_at(HEAD_BYTES);
        let expected = u32::try_from(bytes - HEAD_BYTES).map_err(|_| SeekTableError::Length)?;
        if head[..4] != SKIPPABLE_MAGIC.to_le_bytes() || head[4..] != expected.to_le_bytes() {
            return Err(SeekTableError::Length);
        }
        let mut read = Self { frames: Vec::with_capacity(frames as usize), ..Self::default() };
        for entry in rest[..rest.len() - FOOTER_BYTES].chunks_exact(entry_bytes) {
            let number = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
            read.push(FrameLengths { frame_bytes: number(0), plain_bytes: number(4) });
        }
        Ok((read, bytes))
    }

    /// Adds the next frame.
    pub fn push(&mut self, frame: FrameLengths) {
        self.frames.push(frame);
        self.frame_bytes += u64::from(frame.frame_bytes);
        self.plain_bytes += u64::from(frame.plain_bytes);
    }

    /// The table as a skippable frame, without checksums. `None` if it exceeds [`TABLE_BYTES_MAX`].
    pub fn to_frame(&self) -> Option<Bytes> {
        if self.frames.len() > FRAMES_MAX {
            return None;
        }
        let bytes = Self::bytes_of(self.frames.len());
        let mut out = BytesMut::with_capacity(bytes);
        out.put_u32_le(SKIPPABLE_MAGIC);
        out.put_u32_le(u32::try_from(bytes - HEAD_BYTES).ok()?);
        for frame in &self.frames {
            out.put_u32_le(frame.frame_bytes);
            out.put_u32_le(frame.plain_bytes);
        }
        out.put_u32_le(u32::try_from(self.frames.len()).ok()?);
        out.put_u8(0);
        out.put_u32_le(SEEKABLE_MAGIC);
        Some(out.freeze())
    }

    /// The size of a table of so many frames without checksums, in bytes.
    pub fn bytes_of(frames: usize) -> usize {
        HEAD_BYTES + frames * ENTRY_BYTES + FOOTER_BYTES
    }

    /// The frames, in order.
    pub fn frames(&self) -> &[FrameLengths] {
        &self.frames
    }

    /// The length of all frames, without the table, in bytes.
    pub fn frame_bytes(&self) -> u64 {
        self.frame_bytes
    }

    /// The length of the plain file, in bytes.
    pub fn plain_bytes(&self) -> u64 {
        self.plain_bytes
    }

    /// The frames with their places.
    pub fn places(&self) -> impl Iterator<Item = FramePlace> + '_ {
        let (mut frame_start, mut plain_start) = (0, 0);
        self.frames.iter().enumerate().map(move |(index, lengths)| {
            let place = FramePlace { index, frame_start, plain_start, lengths: *lengths };
            frame_start += u64::from(lengths.frame_bytes);
            plain_start += u64::from(lengths.plain_bytes);
            place
        })
    }

    /// The frame that has the byte at this position of the plain file.
    pub fn frame_at(&self, plain_position: u64) -> Option<FramePlace> {
        self.places().find(|place| plain_position < place.plain_start + u64::from(place.lengths.plain_bytes))
    }
}

/// The end of a table.
struct Footer {
    frames: u32,
    /// The size of an entry, in bytes.
    entry_bytes: usize,
    /// The size of the table, in bytes.
    bytes: usize,
}

impl Footer {
    fn read(tail: &[u8]) -> Result<Self, SeekTableError> {
        let footer = tail.last_chunk::<FOOTER_BYTES>().ok_or(SeekTableError::Missing)?;
        let [a, b, c, d, descriptor, magic @ ..] = footer;
        if *magic != SEEKABLE_MAGIC.to_le_bytes() {
            return Err(SeekTableError::Missing);
        }
        if descriptor & RESERVED != 0 {
            return Err(SeekTableError::Reserved);
        }
        let frames = u32::from_le_bytes([*a, *b, *c, *d]);
        let entry_bytes = ENTRY_BYTES + if descriptor & CHECKSUMS == 0 { 0 } else { CHECKSUM_BYTES };
        let bytes = usize::try_from(frames).ok().and_then(|frames| frames.checked_mul(entry_bytes));
        let bytes = bytes.and_then(|bytes| bytes.checked_add(HEAD_BYTES + FOOTER_BYTES));
        let bytes = bytes.filter(|bytes| *bytes <= TABLE_BYTES_MAX).ok_or(SeekTableError::TooLarge { frames })?;
        Ok(Self { frames, entry_bytes, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(frames: &[(u32, u32)]) -> SeekTable {
        let mut table = SeekTable::default();
        for (frame_bytes, plain_bytes) in frames {
            table.push(FrameLengths { frame_bytes: *frame_bytes, plain_bytes: *plain_bytes });
        }
        table
    }

    /// The bytes follow from the specification.
    #[test]
    fn a_table_has_the_format_of_the_specification() {
        let bytes = table(&[(7, 300), (9, 1)]).to_frame().expect("small");
        let expected: [&[u8]; 6] = [
            &[0x5e, 0x2a, 0x4d, 0x18, 25, 0, 0, 0],
            &[7, 0, 0, 0, 0x2c, 1, 0, 0],
            &[9, 0, 0, 0, 1, 0, 0, 0],
            &[2, 0, 0, 0],
            &[0],
            &[0xb1, 0xea, 0x92, 0x8f],
        ];
        assert_eq!(bytes, expected.concat());
        let with_checksums = [
            &[0x5e, 0x2a, 0x4d, 0x18, 21, 0, 0, 0][..],
            &[7, 0, 0, 0, 0x2c, 1, 0, 0, 1, 2, 3, 4],
            &[1, 0, 0, 0, 0x80, 0xb1, 0xea, 0x92, 0x8f],
        ]
        .concat();
        assert_eq!(SeekTable::read_tail(&with_checksums), Ok((table(&[(7, 300)]), 29)));
    }

    #[test]
    fn malformed_tables_are_rejected() {
        let good = table(&[(7, 300), (9, 1)]).to_frame().expect("small").to_vec();
        let end = good.len();
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        let cases: [(&str, Vec<u8>, SeekTableError); 9] = [
            ("nothing", Vec::new(), SeekTableError::Missing),
            ("another magic number at the end", changed(end - 1, 0), SeekTableError::Missing),
            ("a reserved bit", changed(end - 5, 0x40), SeekTableError::Reserved),
            ("checksums that are not there", changed(end - 5, 0x80), SeekTableError::Length),
            ("one frame more", changed(end - 9, 3), SeekTableError::Length),
            ("one frame less", changed(end - 9, 1), SeekTableError::Length),
            ("no skippable frame", changed(0, 0x5d), SeekTableError::Length),
            ("another length", changed(4, 24), SeekTableError::Length),
            (
                "as many as fit in 32 bits",
                [&good[..end - 9], &[255, 255, 255, 255, 0], &good[end - 4..]].concat(),
                SeekTableError::TooLarge { frames: u32::MAX },
            ),
        ];
        for (name, bytes, expected) in cases {
            assert_eq!(SeekTable::read_tail(&bytes), Err(expected), "{name}");
        }
        for cut in 1..end {
            assert!(SeekTable::read_tail(&good[cut..]).is_err(), "without its first {cut} bytes");
        }
    }

    #[test]
    fn the_largest_table_is_read() {
        let largest = table(&vec![(1 << 20, 1 << 20); FRAMES_MAX]);
        let bytes = largest.to_frame().expect("fits");
        assert!(bytes.len() <= TABLE_BYTES_MAX && bytes.len() + ENTRY_BYTES > TABLE_BYTES_MAX);
        assert_eq!(SeekTable::read_tail(&bytes), Ok((largest.clone(), bytes.len())));
        let mut larger = largest;
        larger.push(FrameLengths { frame_bytes: 1, plain_bytes: 1 });
        assert_eq!(larger.to_frame(), None);
    }

    proptest! {
        #[test]
        fn tables_are_read_as_they_were_written(
            frames in proptest::collection::vec((any::<u32>(), any::<u32>()), 0..50),
            before in proptest::collection::vec(any::<u8>(), 0..50), at in any::<prop::sample::Index>()
        ) {
            let table = table(&frames);
            let bytes = table.to_frame().expect("small");
            let file = [&before[..], &bytes].concat();
            prop_assert_eq!(SeekTable::read_tail(&file), Ok((table.clone(), bytes.len())));
            let places: Vec<_> = table.places().collect();
            prop_assert_eq!(places.len(), frames.len());
            if let Some(last) = places.last() {
                prop_assert_eq!(last.frame_start + u64::from(last.lengths.frame_bytes), table.frame_bytes());
                prop_assert_eq!(last.plain_start + u64::from(last.lengths.plain_bytes), table.plain_bytes());
            }
            if table.plain_bytes() > 0 {
                let position = at.index(usize::try_from(table.plain_bytes()).expect("64 bits")) as u64;
                let place = table.frame_at(position).expect("within the file");
                prop_assert!(place.plain_start <= position);
                prop_assert!(position < place.plain_start + u64::from(place.lengths.plain_bytes));
            }
            prop_assert_eq!(table.frame_at(table.plain_bytes()), None);
        }

        #[test]
        fn any_bytes_are_read_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let tail = [&bytes[..], &[0], &SEEKABLE_MAGIC.to_le_bytes()].concat();
            for tail in [bytes, tail] {
                if let Ok((table, length)) = SeekTable::read_tail(&tail) {
                    prop_assert!(length <= tail.len() && table.frames().len() * ENTRY_BYTES < length);
                }
            }
        }
    }
}
