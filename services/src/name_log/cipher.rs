//! [`NameCipher`]: encrypts the private keys of a site's IPNS names, which are in its database.
//!
//! Goals: without the key file, the database and its backups tell no private key; a ciphertext that was changed, or
//! moved to another key or another site, is rejected.
//!
//! Non-goals: hiding the names of keys, their IPNS names and what they are published as, which are in the database as
//! they are; a change of the key file.
//!
//! AES-256-GCM (NIST SP 800-38D) with random nonces, of which there is one for each creation, import and change of a
//! name: far fewer than the 2^32 after which they may repeat. The associated data are the name of the site, what is
//! encrypted, the name of the key and its IPNS name, each with its length.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use cid::multibase::Base;
use content::names::Key;
use std::fmt;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The number of bytes of a key.
const KEY_BYTES: usize = 32;
/// No encoding of a key is that long.
const FILE_BYTES_MAX: u64 = 1024;
/// How to create a key.
const ADVICE: &str = "create one with \"openssl rand -base64 32\", the same file for all gateways of the site";
/// The version of the encryption, before the nonce.
const VERSION: u8 = 1;
/// What is encrypted to recognise the key.
const CHECK: &[u8] = b"causeway: the keys of this site are encrypted with this key";

/// Encrypts and decrypts the private keys of a site.
pub struct NameCipher {
    key: LessSafeKey,
    site: String,
}

impl fmt::Debug for NameCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NameCipher").field("site", &self.site).finish_non_exhaustive()
    }
}

/// What a ciphertext is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sealed<'a> {
    /// The text that tells whether the key is the right one.
    Check,
    /// A private key.
    Key {
        /// Its name.
        name: &'a str,
        /// Its IPNS name.
        id: &'a Key,
    },
}

impl NameCipher {
    /// The cipher of a site, with the key in a file.
    ///
    /// # Errors
    /// In words, without the content of the file.
    pub fn read(path: &Path, site: &str) -> Result<Self, String> {
        let text = read_text(path).map_err(|reason| format!("{} cannot be used: {reason}", path.display()))?;
        let path = path.display();
        let key = parse(&text).ok_or_else(|| {
            format!("{path} cannot be used: it has not {KEY_BYTES} bytes in base64 or hexadecimal: {ADVICE}")
        })?;
        Self::new(&key, site).ok_or_else(|| format!("{path} cannot be used"))
    }

    fn new(key: &[u8; KEY_BYTES], site: &str) -> Option<Self> {
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).ok()?);
        Some(Self { key, site: site.to_owned() })
    }

    /// Encrypts a text; `None` without random numbers.
    pub(super) fn seal(&self, what: Sealed<'_>, text: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).ok()?;
        let mut encrypted = text.to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(unique, self.associated(what), &mut encrypted).ok()?;
        Some([&[VERSION][..], &nonce, &encrypted].concat())
    }

    /// Decrypts a text; `None` if it was not encrypted with this key as this.
    pub(super) fn open(&self, what: Sealed<'_>, sealed: &[u8]) -> Option<Vec<u8>> {
        let rest = sealed.strip_prefix(&[VERSION])?;
        let (nonce, encrypted) = rest.split_first_chunk::<NONCE_LEN>()?;
        let mut text = encrypted.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = self.key.open_in_place(nonce, self.associated(what), &mut text).ok()?.len();
        text.truncate(length);
        Some(text)
    }

    /// The text by which this key is recognised; `None` without random numbers.
    pub(super) fn seal_check(&self) -> Option<Vec<u8>> {
        self.seal(Sealed::Check, CHECK)
    }

    /// Whether a text was encrypted by [`Self::seal_check`] with this key.
    pub(super) fn is_check(&self, sealed: &[u8]) -> bool {
        self.open(Sealed::Check, sealed).as_deref() == Some(CHECK)
    }

    /// The associated data, which differ for all that is encrypted.
    fn associated(&self, what: Sealed<'_>) -> Aad<Vec<u8>> {
        let id;
        let parts: &[&[u8]] = match what {
            Sealed::Check => &[b"check"],
            Sealed::Key { name, id: key } => {
                id = key.peer_id().to_bytes();
                &[b"key", name.as_bytes(), &id]
            }
        };
        let mut data = Vec::new();
        for part in [b"causeway names 1", self.site.as_bytes()].iter().chain(parts) {
            data.extend_from_slice(&(part.len() as u64).to_be_bytes());
            data.extend_from_slice(part);
        }
        Aad::from(data)
    }
}

/// The content of a key file that only its owner and group can read.
fn read_text(path: &Path) -> Result<String, String> {
    let said = |error: std::io::Error| error.to_string();
    // Checked before opening, because opening a named pipe would block.
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("it does not exist: {ADVICE}"),
        _ => error.to_string(),
    })?;
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    if metadata.permissions().mode() & 0o007 != 0 {
        return Err("all users of the machine can read it: chmod 0600 the file".to_owned());
    }
    let mut text = String::new();
    File::open(path).map_err(said)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(said)?;
    Ok(text)
}

/// A key in base64 or hexadecimal; `None` if it is none.
fn parse(text: &str) -> Option<[u8; KEY_BYTES]> {
    let text = text.trim();
    let base = if text.len() == 2 * KEY_BYTES { Base::Base16Upper } else { Base::Base64Pad };
    let text = if base == Base::Base16Upper { text.to_ascii_uppercase() } else { text.to_owned() };
    base.decode(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::identity::Keypair;

    fn cipher(n: u8, site: &str) -> NameCipher {
        NameCipher::new(&[n; KEY_BYTES], site).expect("a cipher")
    }

    fn id(n: u8) -> Key {
        Key::from(Keypair::ed25519_from_bytes([n; 32]).expect("a key").public().to_peer_id())
    }

    #[test]
    fn what_was_changed_or_moved_is_rejected() {
        let (of_site, one, other) = (cipher(1, "a"), id(1), id(2));
        let what = Sealed::Key { name: "blog", id: &one };
        let sealed = of_site.seal(what, b"secret").expect("seals");
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        assert_eq!(of_site.open(what, &sealed).as_deref(), Some(&b"secret"[..]));
        assert_ne!(of_site.seal(what, b"secret"), Some(sealed.clone()), "each has a nonce of its own");
        for moved in [
            Sealed::Key { name: "other", id: &one },
            Sealed::Key { name: "blog", id: &other },
            Sealed::Key { name: "", id: &one },
            Sealed::Check,
        ] {
            assert_eq!(of_site.open(moved, &sealed), None, "{moved:?}");
        }
        assert_eq!(cipher(2, "a").open(what, &sealed), None, "another key");
        assert_eq!(cipher(1, "b").open(what, &sealed), None, "another site");
        for length in 0..sealed.len() {
            assert_eq!(of_site.open(what, &sealed[..length]), None, "{length} bytes");
        }
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(of_site.open(what, &changed), None, "byte {at}");
        }
        assert_eq!(of_site.open(what, &[&sealed[..], b"x"].concat()), None, "longer");
        let check = of_site.seal_check().expect("seals");
        assert!(of_site.is_check(&check) && !cipher(2, "a").is_check(&check) && !of_site.is_check(&sealed));
    }

    #[test]
    fn the_file_of_the_key_is_checked() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("key");
        let hexadecimal = "0a".repeat(32);
        let table = [
            (Base::Base64Pad.encode([7; 32]) + "\n", Ok(())),
            (format!(" {hexadecimal}\r\n"), Ok(())),
            (hexadecimal.to_uppercase(), Ok(())),
            (Base::Base64Pad.encode([7; 31]), Err("openssl rand -base64 32")),
            (Base::Base64Pad.encode([7; 33]), Err("has not 32 bytes")),
            ("hunter2".to_owned(), Err("has not 32 bytes")),
            (String::new(), Err("has not 32 bytes")),
            ("hunter2".repeat(1000), Err("has not 32 bytes")),
        ];
        for (text, expected) in table {
            fs::write(&path, &text).expect("writes");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("sets");
            match (NameCipher::read(&path, "a"), expected) {
                (Ok(_), Ok(())) => {}
                (Err(error), Err(words)) => assert!(error.contains(words) && !error.contains("hunter2"), "{error}"),
                (read, _) => panic!("{text:?}: {read:?}"),
            }
        }
        fs::write(&path, Base::Base64Pad.encode([7; 32])).expect("writes");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("sets");
        assert!(NameCipher::read(&path, "a").is_err_and(|error| error.contains("chmod 0600")));
        assert!(NameCipher::read(dir.path(), "a").is_err_and(|error| error.contains("not a regular file")));
        let missing = NameCipher::read(&dir.path().join("none"), "a");
        assert!(missing.is_err_and(|error| error.contains("does not exist") && error.contains("openssl")));
    }
}
