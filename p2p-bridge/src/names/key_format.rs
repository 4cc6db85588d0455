//! The formats of private keys: libp2p's protobuf message
//! (<https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md#keys>) and PEM with PKCS #8 (RFC 7468, section
//! 10; RFC 5958). Kubo imports and exports keys in these two formats.
//!
//! Goals: conversions are lossless; input is validated completely at bounded cost. libp2p's key pairs cannot be encoded
//! if they are RSA, so a [`Secret`] holds the encoded message and creates a key pair from it.
//!
//! Non-goals: encrypted keys, and PKCS #8 for the algorithms that Kubo does not export in PEM (secp256k1 and ECDSA).

use bytes::Buf;
use cid::multibase::Base;
use libp2p::identity::Keypair;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field};
use std::fmt;
use std::str::FromStr;

/// The maximum length of an encoded key, in bytes: twice that of an RSA key with 8192 bits in PEM.
pub const KEY_BYTES_MAX: usize = 16 * 1024;

/// The algorithm of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// RSA with 2048 to 4096 bits. Can be imported, but not created.
    Rsa,
    /// Ed25519, the default: its names contain the whole public key.
    Ed25519,
    /// ECDSA over secp256k1.
    Secp256k1,
    /// ECDSA over P-256.
    Ecdsa,
}

impl KeyKind {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Rsa, "rsa"), (Self::Ed25519, "ed25519"), (Self::Secp256k1, "secp256k1"), (Self::Ecdsa, "ecdsa")];

    /// The algorithm with this number in the protobuf message, which is its index in the list.
    fn from_number(number: u64) -> Option<Self> {
        usize::try_from(number).ok().and_then(|number| Self::ALL.get(number)).map(|(kind, _)| *kind)
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for KeyKind {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let found = Self::ALL.iter().find(|(_, name)| name.eq_ignore_ascii_case(text));
        found.map(|(kind, _)| *kind).ok_or_else(|| FormatError::UnknownKind(text.chars().take(40).collect()))
    }
}

/// The encoding of a private key, with Kubo's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyFormat {
    /// `libp2p-protobuf-cleartext`: binary.
    #[default]
    Protobuf,
    /// `pem-pkcs8-cleartext`: text, which OpenSSL reads and writes.
    Pem,
}

impl KeyFormat {
    /// Detects the format of an encoded key.
    pub fn guess(bytes: &[u8]) -> Self {
        let is_pem = bytes.windows(BEGIN.len()).any(|window| window == BEGIN.as_bytes());
        if is_pem { Self::Pem } else { Self::Protobuf }
    }
}

impl fmt::Display for KeyFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Protobuf => "libp2p-protobuf-cleartext",
            Self::Pem => "pem-pkcs8-cleartext",
        })
    }
}

impl FromStr for KeyFormat {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let found = [Self::Protobuf, Self::Pem].into_iter().find(|format| format.to_string() == text);
        found.ok_or_else(|| FormatError::UnknownFormat(text.chars().take(40).collect()))
    }
}

/// Why a key cannot be decoded, encoded or created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The encoded key is too long.
    #[error("the key exceeds {KEY_BYTES_MAX} bytes")]
    TooLarge,
    /// The protobuf message is invalid.
    #[error(
        "the key is not a libp2p private key (libp2p-protobuf-cleartext); a PEM file starts with \
         \"-----BEGIN PRIVATE KEY-----\""
    )]
    Protobuf,
    /// The PEM text is invalid, or has other content.
    #[error("the key is not PEM with PKCS #8 in clear text; \"openssl pkcs8 -topk8 -nocrypt -in FILE\" writes one")]
    Pem,
    /// PEM does not support the algorithm.
    #[error("PEM supports only Ed25519 and RSA keys: use the format libp2p-protobuf-cleartext")]
    NotInPem,
    /// The key material is invalid.
    #[error("the {kind} key is invalid: {reason}")]
    Unusable {
        /// The algorithm.
        kind: KeyKind,
        /// The cause.
        reason: String,
    },
    /// Keys of this algorithm can only be imported.
    #[error("{0} keys can only be imported, not created: use ed25519")]
    CannotMake(KeyKind),
    /// The algorithm is unknown.
    #[error("\"{0}\" is not a kind of key: use ed25519, secp256k1, ecdsa, or rsa (import only)")]
    UnknownKind(String),
    /// The format is unknown.
    #[error("\"{0}\" is not a key format: use libp2p-protobuf-cleartext or pem-pkcs8-cleartext")]
    UnknownFormat(String),
}

/// A private key: the fields of libp2p's message.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    kind: KeyKind,
    data: Vec<u8>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({}, ***)", self.kind)
    }
}

impl Secret {
    /// Creates a key.
    ///
    /// # Errors
    /// [`FormatError::CannotMake`] for RSA.
    pub fn generate(kind: KeyKind) -> Result<Self, FormatError> {
        let keypair = match kind {
            KeyKind::Ed25519 => Keypair::generate_ed25519(),
            KeyKind::Secp256k1 => Keypair::generate_secp256k1(),
            KeyKind::Ecdsa => Keypair::generate_ecdsa(),
            KeyKind::Rsa => return Err(FormatError::CannotMake(kind)),
        };
        let bytes = keypair.to_protobuf_encoding().map_err(|_| FormatError::CannotMake(kind))?;
        Self::read(KeyFormat::Protobuf, &bytes)
    }

    /// Decodes a key. [`Secret::keypair`] validates the key material.
    ///
    /// # Errors
    /// [`FormatError`] if the encoding is invalid.
    pub fn read(format: KeyFormat, bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.len() > KEY_BYTES_MAX {
            return Err(FormatError::TooLarge);
        }
        match format {
            KeyFormat::Protobuf => read_message(bytes).ok_or(FormatError::Protobuf),
            KeyFormat::Pem => read_pkcs8(&read_pem(bytes).ok_or(FormatError::Pem)?),
        }
    }

    /// Encodes the key.
    ///
    /// # Errors
    /// [`FormatError::NotInPem`] if PEM does not support the algorithm.
    pub fn write(&self, format: KeyFormat) -> Result<Vec<u8>, FormatError> {
        match format {
            KeyFormat::Protobuf => Ok(self.message()),
            KeyFormat::Pem => Ok(write_pem(&self.pkcs8()?).into_bytes()),
        }
    }

    /// The key pair. It is tested with a signature, because only that shows whether the numbers of an RSA key are
    /// consistent.
    ///
    /// # Errors
    /// [`FormatError::Unusable`] if the key material is invalid.
    pub fn keypair(&self) -> Result<Keypair, FormatError> {
        let unusable = |reason: String| FormatError::Unusable { kind: self.kind, reason };
        let keypair = Keypair::from_protobuf_encoding(&self.message()).map_err(|error| unusable(error.to_string()))?;
        keypair.sign(&[]).map_err(|_| unusable("signing with it failed".to_owned()))?;
        Ok(keypair)
    }

    /// The algorithm.
    pub fn kind(&self) -> KeyKind {
        self.kind
    }

    fn message(&self) -> Vec<u8> {
        let mut message = Vec::with_capacity(self.data.len() + 8);
        encode_key(TYPE, WireType::Varint, &mut message);
        let number = KeyKind::ALL.iter().position(|(kind, _)| *kind == self.kind).unwrap_or_default();
        encode_varint(number as u64, &mut message);
        encode_key(DATA, WireType::LengthDelimited, &mut message);
        encode_varint(self.data.len() as u64, &mut message);
        message.extend_from_slice(&self.data);
        message
    }

    /// `PrivateKeyInfo` (RFC 5208, section 5), which equals version 1 of `OneAsymmetricKey` (RFC 5958).
    fn pkcs8(&self) -> Result<Vec<u8>, FormatError> {
        let (algorithm, key) = match self.kind {
            KeyKind::Ed25519 => {
                let seed = self.data.get(..SEED_BYTES).ok_or(FormatError::NotInPem)?;
                (ED25519, der::write(der::OCTET_STRING, seed))
            }
            KeyKind::Rsa => (RSA, self.data.clone()),
            KeyKind::Secp256k1 | KeyKind::Ecdsa => return Err(FormatError::NotInPem),
        };
        let version = der::write(der::INTEGER, &[0]);
        let key = der::write(der::OCTET_STRING, &key);
        Ok(der::write(der::SEQUENCE, &[&version, algorithm, &key[..]].concat()))
    }
}

// --- protobuf -------------------------------------------------------------------------------------------------------

const TYPE: u32 = 1;
const DATA: u32 = 2;
/// An Ed25519 key in the message: the seed and the public key, which old versions repeated.
const SEED_BYTES: usize = 32;
const ED25519_BYTES: usize = 64;
const ED25519_BYTES_OLD: usize = 96;

fn read_message(bytes: &[u8]) -> Option<Secret> {
    let (mut kind, mut data, mut rest) = (None, None, bytes);
    while rest.has_remaining() {
        match decode_key(&mut rest).ok()? {
            (TYPE, WireType::Varint) => kind = Some(KeyKind::from_number(decode_varint(&mut rest).ok()?)?),
            (DATA, WireType::LengthDelimited) => {
                let len = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
                let (taken, after) = rest.split_at_checked(len)?;
                (data, rest) = (Some(taken), after);
            }
            (number, wire_type) => skip_field(wire_type, number, &mut rest, DecodeContext::default()).ok()?,
        }
    }
    let (kind, mut data) = (kind?, data?);
    if kind == KeyKind::Ed25519 && data.len() == ED25519_BYTES_OLD {
        let (key, public) = data.split_at_checked(ED25519_BYTES)?;
        data = key.ends_with(public).then_some(key)?;
    }
    Some(Secret { kind, data: data.to_vec() })
}

// --- PEM and PKCS #8 ------------------------------------------------------------------------------------------------

const BEGIN: &str = "-----BEGIN ";
const FIRST_LINE: &str = "-----BEGIN PRIVATE KEY-----";
const LAST_LINE: &str = "-----END PRIVATE KEY-----";
const LINE_CHARS: usize = 64;

/// `AlgorithmIdentifier` of Ed25519 (RFC 8410, section 3): the object 1.3.101.112, without parameters.
const ED25519: &[u8] = &[0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70];
/// `AlgorithmIdentifier` of RSA (RFC 8017, appendix A.1): the object 1.2.840.113549.1.1.1, with the parameters NULL.
const RSA: &[u8] = &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];

fn read_pem(bytes: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (_, rest) = text.split_once(FIRST_LINE)?;
    let (inside, _) = rest.split_once(LAST_LINE)?;
    let digits: String = inside.chars().filter(|char| !char.is_ascii_whitespace()).collect();
    Base::Base64Pad.decode(digits).ok()
}

fn write_pem(bytes: &[u8]) -> String {
    let digits = Base::Base64Pad.encode(bytes);
    let mut text = format!("{FIRST_LINE}\n");
    let mut rest = digits.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(LINE_CHARS));
        text.extend([line, "\n"]);
        rest = after;
    }
    text.extend([LAST_LINE, "\n"]);
    text
}

fn read_pkcs8(bytes: &[u8]) -> Result<Secret, FormatError> {
    let (algorithm, key) = split_pkcs8(bytes).ok_or(FormatError::Pem)?;
    if algorithm == RSA {
        return Ok(Secret { kind: KeyKind::Rsa, data: key.to_vec() });
    }
    if algorithm != ED25519 {
        return Err(FormatError::NotInPem);
    }
    let mut key = key;
    let seed = der::take(&mut key, der::OCTET_STRING).filter(|_| key.is_empty()).ok_or(FormatError::Pem)?;
    // The public key is optional in the file; it is derived from the seed.
    let keypair = Keypair::ed25519_from_bytes(seed.to_vec()).map_err(|_| FormatError::Pem)?;
    let message = keypair.to_protobuf_encoding().map_err(|_| FormatError::Pem)?;
    read_message(&message).ok_or(FormatError::Pem)
}

/// The complete algorithm identifier, and the key octets. Optional attributes and the public key after them are
/// ignored.
fn split_pkcs8(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut outer = bytes;
    let mut info = der::take(&mut outer, der::SEQUENCE).filter(|_| outer.is_empty())?;
    der::take(&mut info, der::INTEGER)?;
    let before = info;
    der::take(&mut info, der::SEQUENCE)?;
    let algorithm = before.get(..before.len() - info.len())?;
    Some((algorithm, der::take(&mut info, der::OCTET_STRING)?))
}

/// The subset of DER (X.690, section 10) that PKCS #8 needs.
mod der {
    pub const INTEGER: u8 = 0x02;
    pub const OCTET_STRING: u8 = 0x04;
    pub const SEQUENCE: u8 = 0x30;

    /// Takes the contents of the first value.
    pub fn take<'a>(bytes: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
        let (&found, rest) = bytes.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let mut len = usize::from(first);
        if first >= 0x80 {
            // More than four bytes of length exceed any key, and an empty length is not DER.
            let (digits, after) = rest.split_at_checked(usize::from(first & 0x7f)).filter(|(d, _)| d.len() <= 4)?;
            len =
                digits.iter().try_fold(0_usize, |len, digit| len.checked_mul(256)?.checked_add(usize::from(*digit)))?;
            rest = after;
            if digits.first().is_none_or(|digit| *digit == 0) || len < 0x80 {
                return None;
            }
        }
        let (contents, after) = rest.split_at_checked(len)?;
        *bytes = after;
        (found == tag).then_some(contents)
    }

    pub fn write(tag: u8, contents: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        let len = contents.len();
        if len < 0x80 {
            bytes.push(len as u8);
        } else {
            let digits = len.to_be_bytes();
            let digits = &digits[digits.iter().take_while(|digit| **digit == 0).count()..];
            bytes.push(0x80 | digits.len() as u8);
            bytes.extend_from_slice(digits);
        }
        bytes.extend_from_slice(contents);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 8410, section 10.3: without and with the public key.
    const RFC_ED25519: [&str; 2] = [
        "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----\n",
        "-----BEGIN PRIVATE KEY-----\nMHICAQEwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\noB8wHQYKKoZIhvcNAQkJFDEPDA1DdXJkbGUgQ2hhaXJzgSEAGb9ECWmEzf6FQbrB\nZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PRIVATE KEY-----\n",
    ];

    fn rsa() -> Vec<u8> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../content/tests/fixtures/ipns");
        std::fs::read(folder.join("test-only-rsa-2048.pkcs8")).expect("the key")
    }

    #[test]
    fn the_keys_of_the_rfc_are_decoded_and_encoded() {
        let [short, long] = RFC_ED25519.map(|text| Secret::read(KeyFormat::Pem, text.as_bytes()).expect("a key"));
        assert_eq!(short, long);
        assert_eq!(short.write(KeyFormat::Pem).expect("writes"), RFC_ED25519[0].as_bytes());
        let public = short.keypair().expect("usable").public().try_into_ed25519().expect("its kind");
        assert_eq!(public.to_bytes()[..4], [0x19, 0xbf, 0x44, 0x09]);
    }

    #[test]
    fn every_kind_is_encoded_and_decoded_in_its_formats() {
        let mut secrets = [KeyKind::Ed25519, KeyKind::Secp256k1, KeyKind::Ecdsa].map(Secret::generate).to_vec();
        secrets.push(Secret::read(KeyFormat::Pem, write_pem(&rsa()).as_bytes()));
        for secret in secrets {
            let secret = secret.expect("a key");
            let public = secret.keypair().expect("usable").public();
            for format in [KeyFormat::Protobuf, KeyFormat::Pem] {
                let written = match secret.write(format) {
                    Ok(written) => written,
                    Err(error) => {
                        assert_eq!((error, format), (FormatError::NotInPem, KeyFormat::Pem));
                        assert!(matches!(secret.kind(), KeyKind::Secp256k1 | KeyKind::Ecdsa));
                        continue;
                    }
                };
                assert_eq!(KeyFormat::guess(&written), format);
                let read = Secret::read(format, &written).expect("reads");
                assert_eq!((&read, read.keypair().expect("usable").public()), (&secret, public.clone()));
            }
        }
        let secret = Secret::read(KeyFormat::Pem, write_pem(&rsa()).as_bytes()).expect("a key");
        assert_eq!(read_pem(&secret.write(KeyFormat::Pem).expect("writes")), Some(rsa()));
        assert_eq!(Secret::generate(KeyKind::Rsa), Err(FormatError::CannotMake(KeyKind::Rsa)));
    }

    #[test]
    fn a_corrupt_key_is_not_usable() {
        let mut corrupt = rsa();
        // A digit of the first factor's exponent, which only a signature uses.
        corrupt[859] ^= 1;
        let secret = Secret::read(KeyFormat::Pem, write_pem(&corrupt).as_bytes()).expect("reads");
        let error = secret.keypair().map(|keypair| keypair.public());
        assert!(matches!(error, Err(FormatError::Unusable { kind: KeyKind::Rsa, .. })), "{error:?}");
    }

    #[test]
    fn old_keys_with_a_repeated_public_key_are_decoded() {
        let secret = Secret::generate(KeyKind::Ed25519).expect("makes");
        let twice = |public: &[u8]| Secret { data: [&secret.data, public].concat(), ..secret.clone() }.message();
        assert_eq!(Secret::read(KeyFormat::Protobuf, &twice(&secret.data[32..])), Ok(secret.clone()));
        assert_eq!(Secret::read(KeyFormat::Protobuf, &twice(&[0; 32])), Err(FormatError::Protobuf));
    }

    #[test]
    fn invalid_keys_are_rejected_with_advice() {
        let pem = |text: &str| text.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
        let cut = &RFC_ED25519[0][..80];
        let table: [(KeyFormat, &[u8], FormatError); 6] = [
            (KeyFormat::Protobuf, b"nonsense", FormatError::Protobuf),
            (KeyFormat::Protobuf, b"", FormatError::Protobuf),
            (KeyFormat::Protobuf, RFC_ED25519[0].as_bytes(), FormatError::Protobuf),
            (KeyFormat::Pem, &pem(RFC_ED25519[0]).into_bytes(), FormatError::Pem),
            (KeyFormat::Pem, cut.as_bytes(), FormatError::Pem),
            (KeyFormat::Pem, &[b'a'; KEY_BYTES_MAX + 1], FormatError::TooLarge),
        ];
        for (format, bytes, expected) in table {
            assert_eq!(Secret::read(format, bytes), Err(expected), "{format}");
        }
        for (text, expected) in [("RSA", Some(KeyKind::Rsa)), ("ed25519", Some(KeyKind::Ed25519)), ("dsa", None)] {
            assert_eq!(text.parse().ok(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(secret) = Secret::read(KeyFormat::Protobuf, &bytes) {
                let _ = (secret.keypair(), secret.write(KeyFormat::Pem));
            }
            let _ = Secret::read(KeyFormat::Pem, write_pem(&bytes).as_bytes());
        }
    }

    #[test]
    fn der_is_decoded_as_it_was_encoded() {
        for len in [0, 1, 127, 128, 255, 256, 65_535, 65_536, 70_000] {
            let contents = vec![7; len];
            let written = der::write(der::SEQUENCE, &contents);
            let mut rest = &written[..];
            assert_eq!(der::take(&mut rest, der::SEQUENCE), Some(&contents[..]), "{len}");
            assert!(rest.is_empty());
        }
    }
}
