//! [`ObjectId`]: names of objects; and what is in an object. No I/O.
//!
//! An object's name is `v1/blocks/SLOT/KEY.GENERATION`: the last byte of the block's multihash in hexadecimal, which is
//! distributed evenly; the binary multihash in base32 (RFC 4648, lower case, no padding); and 16 hexadecimal digits.
//!
//! | bytes | contents of an object |
//! |---|---|
//! | 4 | [`MAGIC`] |
//! | 1 | length of the key |
//! | 4 | length of the value, big-endian |
//! | … | the key: the block's binary multihash |
//! | … | the value: the block in its stored form ([`content::stored`]) |
//! | 16 | the first half of the BLAKE3 hash of all of the above |
//!
//! The checksum vouches for the block, as that of a record in a gateway's own store does: blocks are verified by their
//! hash before they are stored. It detects accidents. Who can write to the storage can write a valid object.

use bytes::{BufMut as _, Bytes, BytesMut};
use cid::multibase::Base;
use content::stored::{Shape, Stored, ValueError};
use content::{BlockKey, hashes};

/// The format, and its version, a digit.
const FORMAT: [u8; 3] = *b"CWB";
const VERSION: u8 = b'1';
const MAGIC: [u8; 4] = [FORMAT[0], FORMAT[1], FORMAT[2], VERSION];
const HEAD_BYTES: usize = MAGIC.len() + 1 + 4;
const CHECKSUM_BYTES: usize = 16;
const BLAKE3: u64 = 0x1e;
/// The folder of all blocks.
const FOLDER: &str = "v1/blocks";
/// The digits of a generation.
const GENERATION_DIGITS: usize = 16;

/// The object of a block. It is written once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// The block.
    pub key: BlockKey,
    /// A random number, which no other attempt to write the block has.
    pub generation: u64,
}

impl ObjectId {
    /// The name in the storage.
    pub fn name(&self) -> String {
        format!("{}{:016x}", name_prefix(&self.key), self.generation)
    }

    /// Parses a name; `None` if it is not that of a block's object.
    pub fn of_name(name: &str) -> Option<Self> {
        let (_, file) = name.rsplit_once('/')?;
        let (key, generation) = file.split_once('.')?;
        let key = BlockKey::from_bytes(&Base::Base32Lower.decode(key).ok()?)?;
        let digits = (generation.len() == GENERATION_DIGITS).then_some(generation)?;
        let object = Self { key, generation: u64::from_str_radix(digits, 16).ok()? };
        // One object has one name.
        (object.name() == name).then_some(object)
    }

    /// The slot of the block, by which objects are listed: the last byte of its multihash.
    pub fn slot(&self) -> u8 {
        slot(&self.key)
    }
}

fn slot(key: &BlockKey) -> u8 {
    key.to_bytes().last().copied().unwrap_or_default()
}

/// What the names of all objects of a slot begin with.
pub(super) fn slot_prefix(slot: u8) -> String {
    format!("{FOLDER}/{slot:02x}/")
}

/// What the names of all objects of a block begin with.
pub(super) fn name_prefix(key: &BlockKey) -> String {
    format!("{}{}.", slot_prefix(slot(key)), Base::Base32Lower.encode(key.to_bytes()))
}

/// The numbers that stand for the form of a block in the index, beside the size of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Uncompressed (0), one frame (1), or an envelope (2) with the lengths of its prefix and suffix in the next two
    /// bytes.
    pub number: u32,
    /// The size of the block, in bytes.
    pub block_bytes: u32,
}

impl Form {
    /// The form of a block.
    pub fn of(shape: Shape) -> Self {
        let number = match shape {
            Shape::Raw { .. } => 0,
            Shape::Frame { .. } => 1,
            // Both are one byte in a stored form.
            Shape::Envelope { prefix_bytes, suffix_bytes, .. } => {
                2 | u32::try_from(prefix_bytes << 8 | suffix_bytes << 16).unwrap_or(0)
            }
        };
        Self { number, block_bytes: u32::try_from(shape.block_bytes()).unwrap_or(u32::MAX) }
    }

    /// The form of a block whose object has this size. `None` if it is none of this release.
    pub fn shape(self, key: &BlockKey, object_bytes: u32) -> Option<Shape> {
        let value_bytes = usize::try_from(object_bytes).ok()?.checked_sub(bytes_beside_value(key))?;
        let block_bytes = usize::try_from(self.block_bytes).ok()?;
        let [kind, prefix, suffix, rest] = self.number.to_le_bytes();
        let (prefix_bytes, suffix_bytes) = (usize::from(prefix), usize::from(suffix));
        let around = prefix_bytes + suffix_bytes;
        let shape = match (kind, rest) {
            (0, 0) if around == 0 => return Some(Shape::Raw { block_bytes }),
            (1, 0) if around == 0 => {
                let head = Shape::Frame { block_bytes, frame_bytes: 0 }.value_bytes();
                Shape::Frame { block_bytes, frame_bytes: value_bytes.checked_sub(head)? }
            }
            (2, 0) => {
                let payload_bytes = block_bytes.checked_sub(around)?;
                let envelope = |frame_bytes| Shape::Envelope { prefix_bytes, payload_bytes, suffix_bytes, frame_bytes };
                envelope(value_bytes.checked_sub(envelope(0).value_bytes())?)
            }
            _ => return None,
        };
        Some(shape)
    }
}

/// The size of an object without its value.
fn bytes_beside_value(key: &BlockKey) -> usize {
    HEAD_BYTES + key.to_bytes().len() + CHECKSUM_BYTES
}

/// The content of a block's object. `None` if a length exceeds the format.
pub(super) fn encode(key: &BlockKey, value: &[u8]) -> Option<Bytes> {
    let key = key.to_bytes();
    let mut object = BytesMut::with_capacity(HEAD_BYTES + key.len() + value.len() + CHECKSUM_BYTES);
    object.put_slice(&MAGIC);
    object.put_u8(u8::try_from(key.len()).ok()?);
    object.put_u32(u32::try_from(value.len()).ok()?);
    object.put_slice(&key);
    object.put_slice(value);
    let checksum = checksum(&object)?;
    object.put_slice(&checksum);
    Some(object.freeze())
}

/// What is in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// The block, in its stored form.
    Block(Stored),
    /// Not the block, or a part of it.
    Damaged,
    /// It was written by a later release.
    Newer,
}

/// Reads the object of a block. Copies nothing.
pub(super) fn decode(key: &BlockKey, object: &Bytes) -> Content {
    let is_newer = |magic: &[u8; 4]| magic.starts_with(&FORMAT) && magic[3].is_ascii_digit() && magic[3] > VERSION;
    if object.first_chunk().is_some_and(is_newer) {
        return Content::Newer;
    }
    match value(&key.to_bytes(), object).map(Stored::read) {
        Some(Ok(stored)) => Content::Block(stored),
        // The checksum is right.
        Some(Err(ValueError::Tag(_))) => Content::Newer,
        Some(Err(_)) | None => Content::Damaged,
    }
}

/// The value in an intact object.
fn value(key: &[u8], object: &Bytes) -> Option<Bytes> {
    let (content, sum) = object.split_last_chunk::<CHECKSUM_BYTES>()?;
    let rest = content.strip_prefix(&MAGIC)?;
    let (key_bytes, rest) = rest.split_first()?;
    let (value_bytes, rest) = rest.split_first_chunk::<4>()?;
    let value = rest.strip_prefix(key)?;
    let is_intact = usize::from(*key_bytes) == key.len()
        && u32::try_from(value.len()).is_ok_and(|bytes| bytes.to_be_bytes() == *value_bytes)
        && checksum(content)? == *sum;
    is_intact.then(|| object.slice(HEAD_BYTES + key.len()..content.len()))
}

fn checksum(content: &[u8]) -> Option<[u8; CHECKSUM_BYTES]> {
    let hash = hashes::digest(BLAKE3, 32, content).ok()?;
    hash.digest().first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::Block;
    use content::codec;
    use content::stored::{CompressionOptions, Encoder};
    use proptest::prelude::*;

    fn stored(content: Vec<u8>) -> (BlockKey, Bytes) {
        let block = Block::of(codec::RAW, hashes::SHA2_256, 32, content.into()).expect("a block");
        let stored = Encoder::new(CompressionOptions::default()).expect("an encoder").encode(&block);
        (BlockKey::of(block.cid()).expect("has a key"), stored.value().clone())
    }

    proptest! {
        #[test]
        fn names_round_trip(seed: u64, generation: u64, noise in "\\PC{0,80}") {
            let (key, _) = stored(seed.to_be_bytes().to_vec());
            let object = ObjectId { key, generation };
            let name = object.name();
            prop_assert_eq!(ObjectId::of_name(&name), Some(object));
            prop_assert!(name.starts_with(&slot_prefix(object.slot())) && name.starts_with(&name_prefix(&key)));
            prop_assert_eq!(ObjectId::of_name(&name.to_uppercase()), None);
            prop_assert_eq!(ObjectId::of_name(&name.replacen("/b", "/c", 1)), None, "another folder");
            prop_assert_eq!(ObjectId::of_name(&noise), None);
            prop_assert_eq!(ObjectId::of_name(&format!("{}+{}", name_prefix(&key), &name[name.len() - 15..])), None);
        }

        #[test]
        fn forms_round_trip(prefix in 0..=255_usize, suffix in 0..=255_usize, payload in 0..2_000_000_usize,
                            frame in 0..2_000_000_usize, noise: u32) {
            let (key, _) = stored(b"content".to_vec());
            let shapes = [
                Shape::Raw { block_bytes: payload },
                Shape::Frame { block_bytes: payload, frame_bytes: frame },
                Shape::Envelope { prefix_bytes: prefix, payload_bytes: payload, suffix_bytes: suffix, frame_bytes: frame },
            ];
            for shape in shapes {
                let object_bytes = u32::try_from(bytes_beside_value(&key) + shape.value_bytes()).expect("fits");
                prop_assert_eq!(Form::of(shape).shape(&key, object_bytes), Some(shape));
                // Anything may be in a table.
                _ = Form { number: noise, ..Form::of(shape) }.shape(&key, object_bytes);
                prop_assert_eq!(Form { number: 3, ..Form::of(shape) }.shape(&key, object_bytes), None);
            }
        }

        #[test]
        fn an_object_has_its_block_or_is_refused(content in proptest::collection::vec(any::<u8>(), 0..2000),
                                                 at: prop::sample::Index, bit in 0..8_u8, cut: prop::sample::Index) {
            let (key, value) = stored(content.clone());
            let object = encode(&key, &value).expect("fits");
            prop_assert_eq!(object.len(), bytes_beside_value(&key) + value.len());
            let Content::Block(decoded) = decode(&key, &object) else { panic!("is intact") };
            prop_assert_eq!(decoded.block().expect("decodes"), Bytes::from(content));
            let mut damaged = object.to_vec();
            let at = at.index(object.len());
            damaged[at] ^= 1 << bit;
            let is_read = matches!(decode(&key, &damaged.into()), Content::Block(_));
            prop_assert!(!is_read, "bit {} of byte {}", bit, at);
            prop_assert_eq!(decode(&key, &object.slice(..cut.index(object.len()))), Content::Damaged);
            let (other, _) = stored(b"other".to_vec());
            prop_assert_eq!(decode(&other, &object), Content::Damaged, "the object of another block");
        }
    }

    #[test]
    fn objects_of_later_releases_are_not_damaged() {
        let (key, value) = stored(b"content".to_vec());
        let object = encode(&key, &value).expect("fits");
        let with_magic = |magic: &[u8]| Bytes::from([magic, &object[4..]].concat());
        let another_tag = encode(&key, &[&[99], &value[1..]].concat()).expect("fits");
        let table = [
            (with_magic(b"CWB2"), Content::Newer),
            (another_tag, Content::Newer),
            (with_magic(b"CWB0"), Content::Damaged),
            (with_magic(b"CWC2"), Content::Damaged),
            (encode(&key, b"").expect("fits"), Content::Damaged),
            (Bytes::new(), Content::Damaged),
        ];
        for (object, expected) in table {
            assert_eq!(decode(&key, &object), expected, "{object:?}");
        }
    }
}
