//! Names of the objects with bytes of uploads, and what is in them. No I/O.
//!
//! An object's name is `v1/uploads/SLOT/ID.GENERATION`: the first two characters of the ID of the upload, the ID, and a
//! random number of 16 hexadecimal digits.
//!
//! | bytes | contents of an object |
//! |---|---|
//! | 4 | [`MAGIC`] |
//! | … | bytes of the upload |
//! | 16 | the first half of the BLAKE3 hash of all of the above |
//!
//! The checksum detects accidents. Who can write to the storage can write a valid object.

use super::is_id;
use bytes::Bytes;
use content::hashes;

/// The maximum number of bytes of a part.
pub const PART_BYTES_MAX: usize = 4 << 20;
/// A part with fewer bytes is replaced when more are received.
pub const PART_BYTES_MIN: usize = 1 << 20;
/// The folder of all parts.
pub(super) const FOLDER: &str = "v1/uploads/";

/// The format, and its version.
const MAGIC: [u8; 4] = *b"CWU1";
const CHECKSUM_BYTES: usize = 16;
const BLAKE3: u64 = 0x1e;
/// The digits of a generation.
const GENERATION_DIGITS: usize = 16;
/// The characters of an ID that name the folder of its objects.
const SLOT_CHARACTERS: usize = 2;

/// The name of an object.
pub(super) fn name(id: &str, generation: u64) -> String {
    let slot = id.get(..SLOT_CHARACTERS).unwrap_or(id);
    format!("{FOLDER}{slot}/{id}.{generation:016x}")
}

/// Parses a name into the generation and the ID of the upload; `None` if it is not one of a part.
pub(super) fn of_name(object: &str) -> Option<(u64, String)> {
    let (_, file) = object.rsplit_once('/')?;
    let (id, generation) = file.split_once('.')?;
    let digits = (generation.len() == GENERATION_DIGITS).then_some(generation)?;
    let generation = u64::from_str_radix(digits, 16).ok()?;
    // One object has one name.
    (is_id(id) && name(id, generation) == object).then(|| (generation, id.to_owned()))
}

/// The content of an object; `None` if it cannot be hashed.
pub(super) fn encode(bytes: &[u8]) -> Option<Bytes> {
    let mut object = Vec::with_capacity(MAGIC.len() + bytes.len() + CHECKSUM_BYTES);
    object.extend_from_slice(&MAGIC);
    object.extend_from_slice(bytes);
    let sum = checksum(&object)?;
    object.extend_from_slice(&sum);
    Some(object.into())
}

/// The bytes of the upload in an object; `None` if it is damaged. Copies nothing.
pub(super) fn decode(object: &Bytes) -> Option<Bytes> {
    let (content, sum) = object.split_last_chunk::<CHECKSUM_BYTES>()?;
    let is_intact = content.starts_with(&MAGIC) && checksum(content)? == *sum;
    is_intact.then(|| object.slice(MAGIC.len()..content.len()))
}

fn checksum(content: &[u8]) -> Option<[u8; CHECKSUM_BYTES]> {
    let hash = hashes::digest(BLAKE3, 32, content).ok()?;
    hash.digest().first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_round_trip(id in "[0-9a-f]{32}|[a-z0-9-]{1,20}", generation: u64, noise in "\\PC{0,80}") {
            let object = name(&id, generation);
            prop_assert_eq!(of_name(&object), Some((generation, id)));
            prop_assert!(object.starts_with(FOLDER));
            prop_assert_eq!(of_name(&object.replacen("uploads", "blocks", 1)), None);
            prop_assert_eq!(of_name(&object[..object.len() - 1]), None);
            prop_assert_eq!(of_name(&noise), None);
        }

        #[test]
        fn an_object_has_its_bytes_or_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2000),
                                                 at: prop::sample::Index, bit in 0..8_u8, cut: prop::sample::Index) {
            let object = encode(&bytes).expect("is hashed");
            prop_assert_eq!(decode(&object), Some(Bytes::from(bytes)));
            let mut damaged = object.to_vec();
            let at = at.index(object.len());
            damaged[at] ^= 1 << bit;
            prop_assert_eq!(decode(&damaged.into()), None, "bit {} of byte {}", bit, at);
            prop_assert_eq!(decode(&object.slice(..cut.index(object.len()))), None);
        }
    }

    #[test]
    fn an_object_is_within_the_limit_of_objects() {
        let object = encode(&vec![1; PART_BYTES_MAX]).expect("is hashed");
        assert!(object.len() as u64 <= objects::StoreOptions::default().bytes_max);
    }

    #[test]
    fn ids_of_clients_are_checked() {
        let table = [("0123456789abcdef0123456789abcdef", true), ("a-1", true), ("", false), ("a.b", false)];
        let refused = ["../x", "a\0", "a/b", "ä", &"a".repeat(65)].map(|id| (id.to_owned(), false));
        for (id, expected) in table.map(|(id, expected)| (id.to_owned(), expected)).into_iter().chain(refused) {
            assert_eq!(is_id(&id), expected, "{id:?}");
        }
    }
}
