//! The format of a block's record in a segment file: a head with its key, then its value ([`content::stored`]).
//!
//! | bytes | contents |
//! |---|---|
//! | 1 | the format, [`FORMAT`] |
//! | 1 | length of the key |
//! | 4 | length of the value, big-endian |
//! | 4 | CRC-32 of all of the above, the key and the value, big-endian |
//! | … | the key: the block's binary multihash |
//! | … | the value |
//!
//! Goals: reading through a stale or damaged index, and corruption, are detected; a segment can be read without an
//! index.

use bytes::Bytes;
use content::stored::SHAPE_HEAD_BYTES;
use content::{BlockKey, MAX_BLOCK_BYTES};

const FORMAT: u8 = 1;

/// The size of a head without its key.
const HEAD_BYTES: usize = 10;

/// The size of a record, in bytes.
pub(crate) fn record_bytes(key: &[u8], value_bytes: usize) -> usize {
    HEAD_BYTES + key.len() + value_bytes
}

/// The head of a record, including its key; the value, in pieces, follows. `None` if a length exceeds the format: a key
/// of 256 bytes or a value of 4 GiB.
pub(crate) fn head(key: &[u8], value: &[Bytes]) -> Option<Vec<u8>> {
    let value_bytes = u32::try_from(value.iter().map(Bytes::len).sum::<usize>()).ok()?;
    let mut head = Vec::with_capacity(HEAD_BYTES + key.len());
    head.extend_from_slice(&[FORMAT, u8::try_from(key.len()).ok()?]);
    head.extend_from_slice(&value_bytes.to_be_bytes());
    let checksum = checksum(&head, key, value.iter().map(|piece| &**piece));
    head.extend_from_slice(&checksum.to_be_bytes());
    head.extend_from_slice(key);
    Some(head)
}

/// The value of a record, if the record is valid and has this key.
pub(crate) fn value(record: Bytes, key: &[u8]) -> Option<Bytes> {
    let (head, rest) = record.split_first_chunk::<HEAD_BYTES>()?;
    let (lengths, sum) = head.split_at(6);
    let found = rest.strip_prefix(key)?;
    let valid = lengths[0] == FORMAT
        && usize::from(lengths[1]) == key.len()
        && lengths[2..] == u32::try_from(found.len()).ok()?.to_be_bytes()
        && sum == checksum(lengths, key, [found].into_iter()).to_be_bytes();
    valid.then(|| record.slice(HEAD_BYTES + key.len()..))
}

/// The beginning of a value and its full length, from the beginning of a record with this key. Nothing is verified.
pub(crate) fn unchecked_value<'a>(record: &'a [u8], key: &[u8]) -> Option<(&'a [u8], usize)> {
    let (head, rest) = record.split_first_chunk::<HEAD_BYTES>()?;
    let value = rest.strip_prefix(key)?;
    let bytes = u32::from_be_bytes(*head[2..].first_chunk()?);
    let matches = head[0] == FORMAT && usize::from(head[1]) == key.len();
    matches.then_some((value, usize::try_from(bytes).ok()?))
}

/// The maximum size of a record, in bytes.
pub(crate) const RECORD_BYTES_MAX: usize = HEAD_BYTES + u8::MAX as usize + SHAPE_HEAD_BYTES + MAX_BLOCK_BYTES;

/// The result of parsing a record without the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ParsedRecord {
    /// A valid record.
    Record {
        /// The block's key.
        key: BlockKey,
        /// The value.
        value: Bytes,
        /// The length of the record.
        bytes: usize,
    },
    /// No valid record.
    Invalid,
}

/// Whether a record may begin with this byte.
pub(crate) fn may_begin(byte: u8) -> bool {
    byte == FORMAT
}

/// Parses the record at the beginning of `bytes`.
pub(crate) fn read_first(bytes: &Bytes) -> ParsedRecord {
    let Some((key, len)) = read_head(bytes).filter(|(_, len)| *len <= bytes.len()) else {
        return ParsedRecord::Invalid;
    };
    match value(bytes.slice(..len), &key.to_bytes()) {
        Some(value) => ParsedRecord::Record { key, value, bytes: len },
        None => ParsedRecord::Invalid,
    }
}

/// The key in a head, and the size of its record, if they are plausible.
fn read_head(bytes: &[u8]) -> Option<(BlockKey, usize)> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let value_bytes = usize::try_from(u32::from_be_bytes(*head[2..].first_chunk()?)).ok()?;
    if head[0] != FORMAT || value_bytes > SHAPE_HEAD_BYTES + MAX_BLOCK_BYTES {
        return None;
    }
    let key = rest.get(..usize::from(head[1]))?;
    Some((BlockKey::from_bytes(key)?, record_bytes(key, value_bytes)))
}

fn checksum<'a>(lengths: &[u8], key: &[u8], value: impl Iterator<Item = &'a [u8]>) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(lengths);
    sum.update(key);
    value.for_each(|piece| sum.update(piece));
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(key: &[u8], value: &[Bytes]) -> Vec<u8> {
        [head(key, value).expect("lengths are small"), value.concat()].concat()
    }

    proptest! {
        #[test]
        fn a_record_returns_only_its_own_value(
            key in proptest::collection::vec(any::<u8>(), 0..140),
            other in proptest::collection::vec(any::<u8>(), 0..140),
            value in proptest::collection::vec(any::<u8>(), 0..2_000), cut in any::<prop::sample::Index>(),
            flip in any::<prop::sample::Index>(), bit in 0..8_u32
        ) {
            let mut pieces = [Bytes::from(value.clone()), Bytes::new()];
            pieces[1] = pieces[0].split_off(cut.index(value.len() + 1));
            let mut bytes = record(&key, &pieces);
            prop_assert_eq!(bytes.len(), record_bytes(&key, value.len()));
            prop_assert_eq!(super::value(bytes.clone().into(), &key), Some(Bytes::from(value.clone())));
            prop_assert_eq!(unchecked_value(&bytes, &key), Some((&*value, value.len())));
            if other != key {
                prop_assert_eq!(super::value(bytes.clone().into(), &other), None);
            }
            prop_assert_eq!(super::value(Bytes::from(bytes[..bytes.len() - 1].to_vec()), &key), None);
            let at = flip.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(super::value(bytes.into(), &key), None, "one bit is wrong");
        }
    }

    #[test]
    fn keys_that_are_too_long_have_no_head() {
        assert!(head(&[0; 255], &[]).is_some());
        assert!(head(&[0; 256], &[]).is_none());
    }
}
