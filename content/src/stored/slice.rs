//! [`Slice`]: the stored form of a block whose file data is one zstd frame within another block, its *base*. It is how
//! the leaves of a packed file ([`crate::packed`]) are stored without their bytes being stored twice.
//!
//! Goals: a slice is small; its value and the base are all that is needed to make its block; a slice that does not fit
//! its base is an error.
//!
//! | bytes | contents |
//! |---|---|
//! | 1 | the tag, 4 |
//! | 1 | length of the base's key |
//! | 1 | length of the prefix |
//! | 1 | length of the suffix |
//! | 4 | the position of the frame in the base, in bytes |
//! | 4 | length of the frame |
//! | 4 | length of the frame's content |
//! | … | the base's key: its binary multihash |
//! | … | prefix, suffix: the block before and after the content |
//!
//! Numbers are big-endian. Non-goals: frames that are shared by several blocks; slices of slices.

use super::{MAX_BLOCK_BYTES, Shape, Stored, TAG_SLICE, ValueError, frame};
use crate::BlockKey;
use bytes::Bytes;

/// The size of a value without keys and bytes of the block.
const HEAD_BYTES: usize = 16;

/// A block as a frame in another block, and the bytes around the frame's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// The key of the block that has the frame.
    pub base: BlockKey,
    /// The position of the frame in the base, in bytes.
    pub frame_start: usize,
    /// The length of the frame, in bytes.
    pub frame_bytes: usize,
    /// The length of the frame's content, in bytes.
    pub content_bytes: usize,
    /// The block before the content; at most 255 bytes.
    pub prefix: Bytes,
    /// The block after the content; at most 255 bytes.
    pub suffix: Bytes,
}

impl Slice {
    /// Parses a value; `None` if it is not that of a slice.
    ///
    /// # Errors
    /// [`ValueError`] if it is one and malformed.
    pub fn read(value: &Bytes) -> Result<Option<Self>, ValueError> {
        if value.first() != Some(&TAG_SLICE) {
            return Ok(None);
        }
        Self::parse(value).map(Some)
    }

    fn parse(value: &Bytes) -> Result<Self, ValueError> {
        let (head, rest) = value.split_first_chunk::<HEAD_BYTES>().ok_or(ValueError::Length)?;
        let [_, key_bytes, prefix_bytes, suffix_bytes, numbers @ ..] = head;
        let mut numbers = numbers.as_chunks::<4>().0.iter().map(|number| u32::from_be_bytes(*number) as usize);
        let [frame_start, frame_bytes, content_bytes] = [(); 3].map(|()| numbers.next().unwrap_or_default());
        let prefix_start = HEAD_BYTES + usize::from(*key_bytes);
        let suffix_start = prefix_start + usize::from(*prefix_bytes);
        if value.len() != suffix_start + usize::from(*suffix_bytes) {
            return Err(ValueError::Length);
        }
        let base = BlockKey::from_bytes(&rest[..usize::from(*key_bytes)]).ok_or(ValueError::Slice)?;
        let (prefix, suffix) = (value.slice(prefix_start..suffix_start), value.slice(suffix_start..));
        let slice = Self { base, frame_start, frame_bytes, content_bytes, prefix, suffix };
        if slice.shape().block_bytes() > MAX_BLOCK_BYTES { Err(ValueError::TooLarge) } else { Ok(slice) }
    }

    /// The bytes to store.
    ///
    /// # Errors
    /// [`ValueError::Length`] when a part is too long for the format.
    pub fn to_value(&self) -> Result<Bytes, ValueError> {
        let key = self.base.to_bytes();
        let mut value = Vec::with_capacity(self.value_bytes());
        value.push(TAG_SLICE);
        for bytes in [key.len(), self.prefix.len(), self.suffix.len()] {
            value.push(u8::try_from(bytes).map_err(|_| ValueError::Length)?);
        }
        for number in [self.frame_start, self.frame_bytes, self.content_bytes] {
            value.extend_from_slice(&u32::try_from(number).map_err(|_| ValueError::Length)?.to_be_bytes());
        }
        [&key, &*self.prefix, &*self.suffix].iter().for_each(|part| value.extend_from_slice(part));
        Ok(value.into())
    }

    /// The length of the value, in bytes.
    pub fn value_bytes(&self) -> usize {
        value_bytes(self.shape(), &self.base)
    }

    /// The form in which a reader gets the block.
    pub fn shape(&self) -> Shape {
        let (prefix_bytes, suffix_bytes) = (self.prefix.len(), self.suffix.len());
        let (payload_bytes, frame_bytes) = (self.content_bytes, self.frame_bytes);
        if prefix_bytes == 0 && suffix_bytes == 0 {
            Shape::Frame { block_bytes: payload_bytes, frame_bytes }
        } else {
            Shape::Envelope { prefix_bytes, payload_bytes, suffix_bytes, frame_bytes }
        }
    }

    /// The block in the form in which it would be stored alone. The frame is copied, and not decompressed.
    ///
    /// # Errors
    /// [`ValueError`] when the base has no such frame.
    pub fn resolve(&self, base: &[u8]) -> Result<Stored, ValueError> {
        let end = self.frame_start.checked_add(self.frame_bytes).ok_or(ValueError::Slice)?;
        let frame = base.get(self.frame_start..end).ok_or(ValueError::Slice)?;
        if frame::content_bytes(frame)? != self.content_bytes {
            return Err(ValueError::Slice);
        }
        Stored::around_frame(&self.prefix, frame, &self.suffix)
    }
}

/// The length of the value of a slice of this form and base, in bytes.
pub fn value_bytes(shape: Shape, base: &BlockKey) -> usize {
    let around = match shape {
        Shape::Envelope { prefix_bytes, suffix_bytes, .. } => prefix_bytes + suffix_bytes,
        Shape::Raw { .. } | Shape::Frame { .. } => 0,
    };
    HEAD_BYTES + base.multihash().encoded_len() + around
}

#[cfg(test)]
mod tests {
    use super::super::tests::samples;
    use super::*;
    use crate::{Cid, codec, hashes};
    use proptest::prelude::*;

    fn key(data: &[u8]) -> BlockKey {
        let hash = hashes::digest(hashes::SHA2_256, 32, data).expect("sha2-256 is accepted");
        BlockKey::of(&Cid::new_v1(codec::RAW, hash)).expect("not inline")
    }

    proptest! {
        #[test]
        fn a_slice_is_read_as_it_was_written_and_gives_its_block(
            before in proptest::collection::vec(any::<u8>(), 0..40),
            after in proptest::collection::vec(any::<u8>(), 0..40),
            prefix in proptest::collection::vec(any::<u8>(), 0..256),
            suffix in proptest::collection::vec(any::<u8>(), 0..256),
            content_bytes in 0..5_000_usize, flip in any::<prop::sample::Index>(), bit in 0..8_u32
        ) {
            let content = samples::text(1, content_bytes);
            let frame = zstd::bulk::compress(&content, 3).expect("compresses");
            let base = [&before[..], &frame, &after].concat();
            let slice = Slice {
                base: key(&base), frame_start: before.len(), frame_bytes: frame.len(), content_bytes,
                prefix: prefix.clone().into(), suffix: suffix.clone().into(),
            };
            let value = slice.to_value().expect("the parts are short");
            prop_assert_eq!(value.len(), slice.value_bytes());
            prop_assert_eq!(Slice::read(&value), Ok(Some(slice.clone())));
            let stored = slice.resolve(&base).expect("the base has the frame");
            prop_assert_eq!(stored.shape(), slice.shape());
            let block = [&prefix[..], &content, &suffix].concat();
            prop_assert_eq!(stored.block(), Ok(Bytes::from(block)));
            // A reader that does not know slices rejects the value.
            prop_assert_eq!(Stored::read(value.clone()), Err(ValueError::Tag(TAG_SLICE)));
            for wrong in [
                Slice { frame_start: slice.frame_start + 1, ..slice.clone() },
                Slice { frame_bytes: slice.frame_bytes + 1, ..slice.clone() },
                Slice { content_bytes: content_bytes + 1, ..slice.clone() },
                Slice { frame_start: usize::MAX, ..slice.clone() },
            ] {
                prop_assert!(wrong.resolve(&base).is_err(), "{wrong:?}");
            }
            let mut damaged = value.to_vec();
            damaged[flip.index(value.len())] ^= 1 << bit;
            if let Ok(Some(read)) = Slice::read(&Bytes::from(damaged)) {
                prop_assert_ne!(&read, &slice);
                _ = read.resolve(&base);
            }
            prop_assert!(Slice::read(&value.slice(..value.len() - 1)).is_err() || value.len() == 1);
        }

        #[test]
        fn any_bytes_are_read_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let tagged = [&[TAG_SLICE], &bytes[..]].concat();
            for value in [Bytes::from(bytes), Bytes::from(tagged)] {
                if let Ok(Some(slice)) = Slice::read(&value) {
                    prop_assert_eq!(slice.to_value(), Ok(value.clone()));
                    _ = slice.resolve(&value);
                }
            }
        }
    }
}
