//! The format of tokens, and their hashes.
//!
//! A token is `cw_ID_SECRET`: an ID of 10 characters, and a secret of 52 characters, which is 256 bits of the system's
//! randomness in base32 (RFC 4648, section 6, in lower case and without padding). Tokens need no escaping in URLs,
//! headers, shells and YAML files. The SHA-256 of the secret is stored: 256 random bits cannot be guessed, so it needs
//! neither salt nor stretching.

use cid::multibase::Base;
use sha2::{Digest as _, Sha256};
use std::fmt;
use subtle::ConstantTimeEq as _;

/// The prefix of tokens, by which people and secret scanners recognise them.
const PREFIX: &str = "cw_";
/// Bytes of randomness in an ID, enough to avoid collisions.
const ID_BYTES: usize = 6;
/// Bytes of randomness in a secret.
const SECRET_BYTES: usize = 32;

/// A token in clear text. It is shown once, to its creator.
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
    /// Generates a token.
    ///
    /// # Errors
    /// When the system's random number generator fails.
    pub fn generate() -> std::io::Result<Self> {
        Self::named(&random::<ID_BYTES>()?)
    }

    /// Generates a token with a given ID of letters and digits.
    ///
    /// # Errors
    /// As [`Token::generate`].
    pub fn named(id: &str) -> std::io::Result<Self> {
        Ok(Self { id: id.to_owned(), secret: random::<SECRET_BYTES>()? })
    }

    /// Parses the token of a request. `None` if the text does not have this format; it may be the settings' token.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        (plain(id) && plain(secret)).then(|| Self { id: id.to_owned(), secret: secret.to_owned() })
    }

    /// The ID, by which the token is found.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The token in clear text.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, self.secret)
    }

    /// The hash that is stored.
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

/// The hash of a secret.
#[derive(Clone, Copy)]
pub struct Hash([u8; 32]);

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hash")
    }
}

impl Hash {
    /// Hashes a text: a token's secret, or the settings' token.
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// Whether two hashes are equal, in constant time.
    pub fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// In hexadecimal, as it is stored.
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
    fn a_token_is_parsed_as_it_was_formatted() {
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
    fn invalid_tokens_are_not_parsed() {
        for text in ["", "cw_", "cw_a", "cw_a_", "cw__b", "cw_a_b_c", "cw_a_ü", "CW_a_b", "bearer", "cw_a b_c"] {
            assert!(Token::parse(text).is_none(), "{text:?}");
        }
        for text in ["", "00", "zz", &"0".repeat(63), &"0".repeat(66), &"g".repeat(64)] {
            assert!(Hash::from_hex(text).is_none(), "{text:?}");
        }
    }
}
