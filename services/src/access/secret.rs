//! What a token looks like, and what is kept of it.
//!
//! A token is `cw_ID_SECRET`: an id of 10 characters, by which it is found, and a secret of 52, which is 256 bits of the system's
//! randomness in base32 (RFC 4648, section 6, in lower case and without padding). All of it survives being typed into a URL, a
//! header, a shell or a YAML file. What is kept is the SHA-256 of the secret: nobody can try out 2²⁵⁶ of them, so it needs neither
//! salt nor stretching.

use cid::multibase::Base;
use sha2::{Digest as _, Sha256};
use std::fmt;
use subtle::ConstantTimeEq as _;

/// What tokens begin with, so that people and scanners for leaked secrets know them.
const PREFIX: &str = "cw_";
/// Bytes of randomness in an id: enough that no two are alike.
const ID_BYTES: usize = 6;
/// Bytes of randomness in a secret.
const SECRET_BYTES: usize = 32;

/// A token, in the clear. It is shown once, to whoever made it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    id: String,
    secret: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id)
    }
}

impl Token {
    /// A new one.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    pub fn generate() -> std::io::Result<Self> {
        Self::named(&random::<ID_BYTES>()?)
    }

    /// A new one with an id of one's own choice, of letters and digits.
    ///
    /// # Errors
    /// The same.
    pub fn named(id: &str) -> std::io::Result<Self> {
        Ok(Self { id: id.to_owned(), secret: random::<SECRET_BYTES>()? })
    }

    /// Reads what a request bears. `None` is a text that is no token of this form, which may be the settings'.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        (plain(id) && plain(secret)).then(|| Self { id: id.to_owned(), secret: secret.to_owned() })
    }

    /// By what it is found.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// As it is given to whoever is to use it.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, self.secret)
    }

    /// What is kept of it.
    pub fn hash(&self) -> Hash {
        Hash::of(&self.secret)
    }
}

/// Random bytes in base32.
fn random<const N: usize>() -> std::io::Result<String> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(Base::Base32Lower.encode(bytes))
}

/// What is kept of a secret.
#[derive(Clone, Copy)]
pub struct Hash([u8; 32]);

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hash")
    }
}

impl Hash {
    /// Of any text, a token's secret or the settings'.
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// Whether two are the same, in a time that does not tell where they differ.
    pub fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// In hexadecimal, as it is kept.
    pub fn to_hex(self) -> String {
        Base::Base16Lower.encode(self.0)
    }

    /// From hexadecimal.
    pub fn from_hex(text: &str) -> Option<Self> {
        Base::Base16Lower.decode(text).ok()?.try_into().ok().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let (one, other) = (Token::generate().expect("random"), Token::generate().expect("random"));
        assert_ne!(one.id(), other.id());
        assert!(!one.hash().is(&other.hash()));
        let text = one.reveal();
        assert_eq!(text.len(), 3 + 10 + 1 + 52);
        let read = Token::parse(&text).expect("a token");
        assert!(read == one && read.hash().is(&one.hash()));
        let kept = Hash::from_hex(&one.hash().to_hex()).expect("a hash");
        assert!(kept.is(&one.hash()) && !kept.is(&other.hash()));
        assert!(!format!("{one:?}").contains(&one.secret));
    }

    #[test]
    fn what_is_no_token_is_not_read_as_one() {
        for text in ["", "cw_", "cw_a", "cw_a_", "cw__b", "cw_a_b_c", "cw_a_ü", "CW_a_b", "bearer", "cw_a b_c"] {
            assert!(Token::parse(text).is_none(), "{text:?}");
        }
        for text in ["", "00", "zz", &"0".repeat(63), &"0".repeat(66), &"g".repeat(64)] {
            assert!(Hash::from_hex(text).is_none(), "{text:?}");
        }
    }
}
