//! Which hash functions are accepted, and how digests are computed.
//!
//! Goal: the same allowlist as Kubo (boxo's `verifcid` defaults), so that a CID that works there works here, and no
//! weak or truncated hash is accepted.

use sha2::Digest as _;
use sha3::digest::{ExtendableOutput as _, Update as _, XofReader as _};

/// The maximum length of an accepted digest, in bytes (Kubo's limit for identity and extendable-output functions).
pub const MAX_DIGEST_BYTES: usize = 128;

/// A self-describing digest (<https://github.com/multiformats/multihash>).
pub type Multihash = multihash::Multihash<MAX_DIGEST_BYTES>;

/// Multihash code of inline data.
pub const IDENTITY: u64 = 0x00;
/// Multihash code of SHA2-256, the default of IPFS.
pub const SHA2_256: u64 = 0x12;

const SHA1: u64 = 0x11;
const SHA2_512: u64 = 0x13;
const SHA3_512: u64 = 0x14;
const SHA3_384: u64 = 0x15;
const SHA3_256: u64 = 0x16;
const SHA3_224: u64 = 0x17;
const SHAKE_256: u64 = 0x19;
const KECCAK_224: u64 = 0x1a;
const KECCAK_256: u64 = 0x1b;
const KECCAK_384: u64 = 0x1c;
const KECCAK_512: u64 = 0x1d;
const BLAKE3: u64 = 0x1e;
const DBL_SHA2_256: u64 = 0x56;
/// BLAKE2b with a digest of one byte; each further code adds one byte, to 64.
const BLAKE2B_8: u64 = 0xb201;
const BLAKE2B_512: u64 = 0xb240;
/// BLAKE2s with a digest of one byte; each further code adds one byte, to 32.
const BLAKE2S_8: u64 = 0xb241;
const BLAKE2S_256: u64 = 0xb260;

/// The minimum length of a digest that is collision-resistant, in bytes (Kubo's limit). Identity is exempt.
const MIN_DIGEST_BYTES: usize = 20;

/// Why a multihash is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HashError {
    /// The function is unknown or considered insecure.
    #[error("hash function 0x{code:x} is not accepted: it is unknown or considered insecure")]
    Function {
        /// The multihash code.
        code: u64,
    },
    /// The digest is too short to be safe, or longer than the output of the function.
    #[error("a digest of {bytes} bytes is not accepted for hash function 0x{code:x}")]
    Length {
        /// The multihash code.
        code: u64,
        /// The length of the digest, in bytes.
        bytes: usize,
    },
}

/// The maximum length of a function's digest, in bytes; `None` when the function is not accepted.
fn longest_digest(code: u64) -> Option<usize> {
    Some(match code {
        IDENTITY | SHAKE_256 | BLAKE3 => MAX_DIGEST_BYTES,
        SHA1 => 20,
        SHA3_224 | KECCAK_224 => 28,
        SHA2_256 | DBL_SHA2_256 | SHA3_256 | KECCAK_256 => 32,
        SHA3_384 | KECCAK_384 => 48,
        SHA2_512 | SHA3_512 | KECCAK_512 => 64,
        BLAKE2B_8..=BLAKE2B_512 => usize::try_from(code - BLAKE2B_8 + 1).ok()?,
        BLAKE2S_8..=BLAKE2S_256 => usize::try_from(code - BLAKE2S_8 + 1).ok()?,
        _ => return None,
    })
}

/// A function by its name in the multicodec table (<https://github.com/multiformats/multicodec/blob/master/table.csv>),
/// as in `ipfs add --hash`: its code, and the length of its digest in bytes. `None` for functions that are not
/// accepted, and for identity.
pub fn named(name: &str) -> Option<(u64, usize)> {
    let code = match name {
        "sha1" => SHA1,
        "sha2-256" => SHA2_256,
        "sha2-512" => SHA2_512,
        "dbl-sha2-256" => DBL_SHA2_256,
        "sha3-224" => SHA3_224,
        "sha3-256" => SHA3_256,
        "sha3-384" => SHA3_384,
        "sha3-512" => SHA3_512,
        "keccak-224" => KECCAK_224,
        "keccak-256" => KECCAK_256,
        "keccak-384" => KECCAK_384,
        "keccak-512" => KECCAK_512,
        // The defaults of these extendable-output functions:
        "shake-256" => return Some((SHAKE_256, 64)),
        "blake3" => return Some((BLAKE3, 32)),
        _ => blake2_named(name)?,
    };
    longest_digest(code).filter(|bytes| *bytes >= MIN_DIGEST_BYTES).map(|bytes| (code, bytes))
}

/// The code of a BLAKE2 function such as `blake2b-256`, whose name ends with the bits of the digest.
fn blake2_named(name: &str) -> Option<u64> {
    let (family, bits) = name.rsplit_once('-')?;
    let bytes = bits.parse::<u64>().ok().filter(|bits| bits % 8 == 0)?.checked_div(8)?;
    match (family, bytes) {
        ("blake2b", 1..=64) => Some(BLAKE2B_8 + bytes - 1),
        ("blake2s", 1..=32) => Some(BLAKE2S_8 + bytes - 1),
        _ => None,
    }
}

/// Checks that a multihash has an accepted function and a safe digest length.
///
/// # Errors
/// [`HashError`] for the function or the length.
pub fn check_accepted(hash: &Multihash) -> Result<(), HashError> {
    let (code, bytes) = (hash.code(), hash.digest().len());
    let longest = longest_digest(code).ok_or(HashError::Function { code })?;
    let shortest = if code == IDENTITY { 0 } else { MIN_DIGEST_BYTES };
    if longest < shortest {
        return Err(HashError::Function { code });
    }
    if (shortest..=longest).contains(&bytes) { Ok(()) } else { Err(HashError::Length { code, bytes }) }
}

/// The multihash of `data`, with the digest truncated to `digest_bytes` as the multihash specification allows.
///
/// # Errors
/// [`HashError`] when the function or the length is not accepted, or when an identity digest does not have the length
/// of the data.
pub fn digest(code: u64, digest_bytes: usize, data: &[u8]) -> Result<Multihash, HashError> {
    let length = HashError::Length { code, bytes: digest_bytes };
    let mut out = [0_u8; MAX_DIGEST_BYTES];
    let truncated = out.get_mut(..digest_bytes).ok_or(length.clone())?;
    let shortest = if code == IDENTITY { 0 } else { MIN_DIGEST_BYTES };
    if longest_digest(code).ok_or(HashError::Function { code })? < digest_bytes || digest_bytes < shortest {
        return Err(length);
    }
    match code {
        IDENTITY if data.len() != digest_bytes => return Err(length),
        IDENTITY => truncated.copy_from_slice(data),
        SHA2_256 => truncate_into(truncated, &sha2::Sha256::digest(data)),
        SHA1 => truncate_into(truncated, &sha1::Sha1::digest(data)),
        SHA2_512 => truncate_into(truncated, &sha2::Sha512::digest(data)),
        DBL_SHA2_256 => truncate_into(truncated, &sha2::Sha256::digest(sha2::Sha256::digest(data))),
        SHA3_224 => truncate_into(truncated, &sha3::Sha3_224::digest(data)),
        SHA3_256 => truncate_into(truncated, &sha3::Sha3_256::digest(data)),
        SHA3_384 => truncate_into(truncated, &sha3::Sha3_384::digest(data)),
        SHA3_512 => truncate_into(truncated, &sha3::Sha3_512::digest(data)),
        KECCAK_224 => truncate_into(truncated, &sha3::Keccak224::digest(data)),
        KECCAK_256 => truncate_into(truncated, &sha3::Keccak256::digest(data)),
        KECCAK_384 => truncate_into(truncated, &sha3::Keccak384::digest(data)),
        KECCAK_512 => truncate_into(truncated, &sha3::Keccak512::digest(data)),
        SHAKE_256 => shake_256(truncated, data),
        BLAKE3 => blake3::Hasher::new().update(data).finalize_xof().fill(truncated),
        BLAKE2B_8..=BLAKE2B_512 => {
            let bytes = usize::try_from(code - BLAKE2B_8 + 1).map_err(|_| length)?;
            truncate_into(truncated, blake2b_simd::Params::new().hash_length(bytes).hash(data).as_bytes());
        }
        BLAKE2S_8..=BLAKE2S_256 => {
            let bytes = usize::try_from(code - BLAKE2S_8 + 1).map_err(|_| length)?;
            truncate_into(truncated, blake2s_simd::Params::new().hash_length(bytes).hash(data).as_bytes());
        }
        _ => return Err(HashError::Function { code }),
    }
    Multihash::wrap(code, truncated).map_err(|_| HashError::Length { code, bytes: digest_bytes })
}

fn truncate_into(truncated: &mut [u8], digest: &[u8]) {
    truncated.copy_from_slice(&digest[..truncated.len()]);
}

fn shake_256(truncated: &mut [u8], data: &[u8]) {
    let mut hasher = sha3::Shake256::default();
    hasher.update(data);
    hasher.finalize_xof().read(truncated);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn digests_match_published_vectors_of_the_empty_string_and_abc() {
        let table: [(u64, usize, &[u8], &str); 9] = [
            (SHA2_256, 32, b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (SHA2_256, 20, b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a3"),
            (SHA1, 20, b"abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (DBL_SHA2_256, 32, b"abc", "4f8b42c22dd3729b519ba6f68d2da7cc5b2d606d05daed5ad5128cc03e6c6358"),
            (SHA3_256, 32, b"abc", "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532"),
            (KECCAK_256, 32, b"", "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"),
            (BLAKE3, 32, b"", "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
            (BLAKE2B_8 + 31, 32, b"abc", "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"),
            (BLAKE2S_256, 32, b"abc", "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982"),
        ];
        for (code, bytes, data, expected) in table {
            let hash = digest(code, bytes, data).expect("accepted");
            assert_eq!(hex(hash.digest()), expected, "0x{code:x}");
            assert_eq!(check_accepted(&hash), Ok(()));
        }
    }

    #[test]
    fn functions_are_found_by_name() {
        let table = [
            ("sha2-256", Some((SHA2_256, 32))),
            ("sha2-512", Some((SHA2_512, 64))),
            ("blake3", Some((BLAKE3, 32))),
            ("shake-256", Some((SHAKE_256, 64))),
            ("blake2b-256", Some((BLAKE2B_8 + 31, 32))),
            ("blake2s-160", Some((BLAKE2S_8 + 19, 20))),
            ("blake2b-64", None),
            ("blake2b-257", None),
            ("blake2s-512", None),
            ("blake2b-", None),
            ("identity", None),
            ("md5", None),
        ];
        for (name, expected) in table {
            assert_eq!(named(name), expected, "{name}");
        }
    }

    #[test]
    fn weak_unknown_and_wrongly_sized_hashes_are_rejected() {
        let md5 = Multihash::wrap(0xd5, &[0; 16]).expect("wraps");
        assert_eq!(check_accepted(&md5), Err(HashError::Function { code: 0xd5 }));
        let short = Multihash::wrap(SHA2_256, &[0; 19]).expect("wraps");
        assert_eq!(check_accepted(&short), Err(HashError::Length { code: SHA2_256, bytes: 19 }));
        let long = Multihash::wrap(SHA2_256, &[0; 33]).expect("wraps");
        assert!(check_accepted(&long).is_err());
        let blake2b_64 = Multihash::wrap(BLAKE2B_8 + 7, &[0; 8]).expect("wraps");
        assert!(check_accepted(&blake2b_64).is_err());
        for bytes in [0, 19, 33, 200] {
            assert!(digest(SHA2_256, bytes, b"abc").is_err(), "{bytes}");
        }
    }
}
