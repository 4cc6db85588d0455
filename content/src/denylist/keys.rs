//! [`Key`]: the 128-bit keys by which rules are indexed, and the texts of double hashes.
//!
//! A key is a truncated digest, combined with the hash function and a constant for the kind of the item, so that names
//! and blocks have different keys. To be mistaken for an item on an allowlist, content would need a digest that has the
//! same 128 bits.

use crate::cid::{Cid, Multihash, codec};
use crate::hashes;
use crate::names::Name;
use sha2::{Digest as _, Sha256};

/// The key of a rule; see the module.
pub(super) type Key = u128;

/// The minimum length of a digest whose first 128 bits are used directly. Shorter digests are hashed.
const STRONG_BYTES: usize = 20;

const BLOCK: u128 = 0x243f_6a88_85a3_08d3_1319_8a2e_0370_7344;
const NAME: u128 = 0xa409_3822_299f_31d0_082e_fa98_ec4e_6c89;
const DOUBLE: u128 = 0x4528_21e6_38d0_1377_be54_66cf_34e9_0c6c;

/// The key of a block.
pub(super) fn of_block(hash: &Multihash) -> Key {
    BLOCK ^ of_hash(hash)
}

/// The key of a double hash.
pub(super) fn of_double(hash: &Multihash) -> Key {
    DOUBLE ^ of_hash(hash)
}

/// The key of a double hash with SHA2-256.
fn of_sha256(digest: &[u8]) -> Key {
    DOUBLE ^ first(digest) ^ spread(hashes::SHA2_256)
}

/// The key of a name.
pub(super) fn of_name(name: &Name) -> Key {
    let digest = match name {
        Name::Key(key) => Sha256::new().chain_update(b"k").chain_update(key.peer_id().to_bytes()).finalize(),
        Name::Domain(domain) => Sha256::new().chain_update(b"d").chain_update(domain.as_str()).finalize(),
    };
    NAME ^ first(&digest)
}

fn of_hash(hash: &Multihash) -> Key {
    let digest = hash.digest();
    if hash.code() != hashes::IDENTITY && digest.len() >= STRONG_BYTES {
        return first(digest) ^ spread(hash.code());
    }
    let digest = Sha256::new().chain_update(hash.code().to_be_bytes()).chain_update(digest).finalize();
    first(&digest)
}

fn first(digest: &[u8]) -> u128 {
    digest.first_chunk().map_or(0, |first| u128::from_be_bytes(*first))
}

/// Spreads a number over all bits.
fn spread(code: u64) -> u128 {
    u128::from(code).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

/// The common codecs. A legacy double hash covers a CID with its codec, but a block can be requested with any.
const LEGACY_CODECS: [u64; 4] = [codec::DAG_PB, codec::RAW, codec::DAG_CBOR, codec::DAG_JSON];

/// A hash function of double hashes: its code, and the length of its digest in bytes.
pub(super) type Function = (u64, usize);

/// Calls `each` with the keys of all double hashes that a rule for this content can have
/// (<https://specs.ipfs.tech/compact-denylist-format/#double-hash>); `path` is decoded. Allocates nothing if `path` is
/// empty and SHA2-256 is the only function.
pub(super) fn doubles_of_content(cid: &Cid, path: &str, functions: &[Function], each: &mut dyn FnMut(Key)) {
    current_form(cid.hash(), path, functions, each);
    if !functions.contains(&(hashes::SHA2_256, 32)) {
        return;
    }
    let own = Some(cid.codec()).filter(|own| !LEGACY_CODECS.contains(own));
    for codec in LEGACY_CODECS.into_iter().chain(own) {
        each(legacy_form(codec, cid.hash(), path));
    }
}

/// The same for a name.
pub(super) fn doubles_of_name(name: &Name, path: &str, functions: &[Function], each: &mut dyn FnMut(Key)) {
    match name {
        Name::Key(key) => {
            let cid = key.to_cid();
            current_form(cid.hash(), path, functions, each);
            // Old names have the codec dag-pb.
            [codec::LIBP2P_KEY, codec::DAG_PB].iter().for_each(|codec| each(legacy_form(*codec, cid.hash(), path)));
        }
        Name::Domain(domain) => {
            let slash = if path.is_empty() { "" } else { "/" };
            hash_all(format!("/ipns/{domain}{slash}{path}").as_bytes(), functions, each);
            let digest = Sha256::new().chain_update(domain.as_str()).chain_update(b"/").chain_update(path).finalize();
            each(of_sha256(&digest));
        }
    }
}

/// The current form: the hash of `MULTIHASH` or `MULTIHASH/PATH`, the multihash in base58.
fn current_form(hash: &Multihash, path: &str, functions: &[Function], each: &mut dyn FnMut(Key)) {
    let mut text = Text::default();
    text.put_base58(hash);
    if path.is_empty() {
        return hash_all(text.bytes(), functions, each);
    }
    let text = [text.bytes(), b"/", path.as_bytes()].concat();
    hash_all(&text, functions, each);
}

fn hash_all(text: &[u8], functions: &[Function], each: &mut dyn FnMut(Key)) {
    for (code, bytes) in functions {
        if (*code, *bytes) == (hashes::SHA2_256, 32) {
            each(of_sha256(&Sha256::digest(text)));
        } else if let Ok(hash) = hashes::digest(*code, *bytes, text) {
            each(of_double(&hash));
        }
    }
}

/// The legacy form: the SHA2-256 hash of `CID/PATH`, the CID of version 1 in base32.
fn legacy_form(codec: u64, hash: &Multihash, path: &str) -> Key {
    let mut text = Text::default();
    text.put_base32(codec, hash);
    of_sha256(&Sha256::new().chain_update(text.bytes()).chain_update(b"/").chain_update(path).finalize())
}

/// The maximum length of a binary CID: version, codec, function and length, and a digest of 128 bytes.
const BINARY_BYTES_MAX: usize = 1 + 10 + 10 + 10 + crate::cid::MAX_DIGEST_BYTES;

/// A CID or multihash as text, without heap allocation.
struct Text {
    bytes: [u8; BINARY_BYTES_MAX * 2],
    len: usize,
}

impl Default for Text {
    fn default() -> Self {
        Self { bytes: [0; BINARY_BYTES_MAX * 2], len: 0 }
    }
}

impl Text {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn put(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    /// Appends a multihash in base58btc.
    fn put_base58(&mut self, hash: &Multihash) {
        const ALPHABET: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
        /// 58⁵ fits into 32 bits, with room for the carry of the digit before.
        const CHUNK: u64 = 58 * 58 * 58 * 58 * 58;
        let (mut binary, mut len) = ([0; BINARY_BYTES_MAX], 0);
        put_multihash(&mut binary, &mut len, hash);
        let binary = &binary[..len];
        let zeros = binary.iter().take_while(|byte| **byte == 0).count();
        // Chunks of five digits, the least significant first.
        let (mut chunks, mut used) = ([0_u64; BINARY_BYTES_MAX / 3], 0);
        let words = binary[zeros..]
            .rchunks(4)
            .rev()
            .map(|word| (word.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte)), 8 * word.len()));
        for (word, bits) in words {
            let mut carry = word;
            for chunk in &mut chunks[..used] {
                carry += *chunk << bits;
                *chunk = carry % CHUNK;
                carry /= CHUNK;
            }
            while carry > 0 {
                chunks[used] = carry % CHUNK;
                carry /= CHUNK;
                used += 1;
            }
        }
        (0..zeros).for_each(|_| self.put(b'1'));
        let mut begun = false;
        for chunk in chunks[..used].iter().rev() {
            let mut power = CHUNK / 58;
            while power > 0 {
                let digit = usize::try_from(chunk / power % 58).unwrap_or_default();
                begun |= digit > 0;
                if begun {
                    self.put(ALPHABET[digit]);
                }
                power /= 58;
            }
        }
    }

    /// Appends a CIDv1 in base32, with its multibase prefix.
    fn put_base32(&mut self, codec: u64, hash: &Multihash) {
        const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        let (mut binary, mut len) = ([0; BINARY_BYTES_MAX], 0);
        put_varint(&mut binary, &mut len, 1);
        put_varint(&mut binary, &mut len, codec);
        put_multihash(&mut binary, &mut len, hash);
        self.put(b'b');
        let (mut waiting, mut bits) = (0_u32, 0);
        for byte in &binary[..len] {
            waiting = waiting << 8 | u32::from(*byte);
            bits += 8;
            while bits >= 5 {
                bits -= 5;
                self.put(ALPHABET[(waiting >> bits & 31) as usize]);
            }
            waiting &= (1 << bits) - 1;
        }
        if bits > 0 {
            self.put(ALPHABET[(waiting << (5 - bits) & 31) as usize]);
        }
    }
}

fn put_multihash(binary: &mut [u8], len: &mut usize, hash: &Multihash) {
    let digest = hash.digest();
    put_varint(binary, len, hash.code());
    put_varint(binary, len, digest.len() as u64);
    binary[*len..*len + digest.len()].copy_from_slice(digest);
    *len += digest.len();
}

fn put_varint(binary: &mut [u8], len: &mut usize, mut number: u64) {
    loop {
        let low = u8::try_from(number & 0x7f).unwrap_or_default();
        number >>= 7;
        binary[*len] = if number > 0 { low | 0x80 } else { low };
        *len += 1;
        if number == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::cid::multibase::Base;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn texts_are_the_same_as_those_of_the_cid_crate(
            digest in prop_oneof![prop::collection::vec(any::<u8>(), 0..129), prop::collection::vec(0_u8..2, 0..40)],
            code in prop_oneof![Just(0_u64), Just(0x12), any::<u64>()],
            codec in prop_oneof![Just(0x70_u64), any::<u64>()],
        ) {
            let hash = Multihash::wrap(code, &digest).expect("fits");
            let mut text = Text::default();
            text.put_base58(&hash);
            prop_assert_eq!(str::from_utf8(text.bytes()).expect("text"), Base::Base58Btc.encode(hash.to_bytes()));
            let mut text = Text::default();
            text.put_base32(codec, &hash);
            prop_assert_eq!(str::from_utf8(text.bytes()).expect("text"), Cid::new_v1(codec, hash).to_string());
        }
    }
}
