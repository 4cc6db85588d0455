//! [`Rule`]: one line of a list.

use crate::cid::{self, Cid, Multihash, codec};
use crate::hashes;
use crate::names::Name;
use crate::policy::Verdict;
use ::cid::multibase::{self, Base};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::fmt;
use std::sync::LazyLock;

/// The characters that are encoded in the path of a rule. A trailing asterisk is a wildcard, so asterisks are encoded.
const PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/').remove(b'+').remove(b'=');
/// The characters that are encoded in the value of a hint: white space, control characters and `%`.
const HINT: &AsciiSet = &percent_encoding::CONTROLS.add(b' ').add(b'%');

/// The maximum length of a multihash as text, in bytes: 128 bytes in base16. Decoding base58 takes quadratic time.
const HASH_TEXT_BYTES_MAX: usize = 300;

/// One rule: denies content, or is an exception from earlier rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Whether this is an exception (`!`).
    pub allows: bool,
    /// The subject of the rule.
    pub target: Target,
    /// The hints, in order: `reason=…`, `status=451`, and others, which are kept.
    pub hints: Vec<(String, String)>,
}

/// The subject of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `/ipfs/CID…`: content by the multihash of its root, whatever its codec.
    Content {
        /// The multihash.
        hash: Multihash,
        /// The paths below the root.
        path: PathPattern,
    },
    /// `/ipns/NAME…`: a key or a domain with a DNSLink.
    Name {
        /// The name.
        name: Name,
        /// The paths below the name.
        path: PathPattern,
    },
    /// `//HASH`: content or a name by the hash of its text.
    Double {
        /// The hash. A text may be valid in two encodings; then the rule is for both hashes.
        hash: Multihash,
        /// The hash in the other encoding.
        other: Option<Multihash>,
    },
}

/// Paths below a root.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PathPattern {
    /// The decoded path without leading and trailing slashes; empty for the root itself.
    pub text: String,
    /// Whether all paths with this prefix match.
    pub prefix: bool,
}

/// Why a line is not a valid rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The line has an unknown prefix.
    #[error("a rule must begin with /ipfs/, /ipns/ or //, or with ! before one of these")]
    Kind,
    /// The root after `/ipfs/` is not a CID or multihash that can be served.
    #[error("{0}")]
    Cid(String),
    /// The root after `/ipns/` is not a name.
    #[error("{0}")]
    Name(String),
    /// The path is invalid.
    #[error("the path must be percent-encoded UTF-8 text without \"..\"")]
    Path,
    /// The text after `//` is not a hash.
    #[error("a double hash must be a base58 multihash of an accepted function, or a SHA-256 in 64 hexadecimal digits")]
    Double,
    /// The line is not UTF-8.
    #[error("the line is not UTF-8 text")]
    NotText,
    /// The line is too long.
    #[error("the line is longer than {max} bytes")]
    TooLong {
        /// The maximum, in bytes.
        max: usize,
    },
    /// The rule would deny empty files and directories.
    #[error("the rule would deny an empty file or directory, which many sites have")]
    Empty,
    /// The list has double hashes of too many functions, each of which is computed for every check.
    #[error("the list has double hashes of more than {max} functions")]
    Functions {
        /// The maximum.
        max: usize,
    },
}

/// The multihashes of empty files, directories and documents. Denying them would break many sites.
static EMPTY: LazyLock<Vec<Multihash>> = LazyLock::new(|| {
    let texts = [
        "QmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn",
        "bafyaabakaieac",
        "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku",
        "bafkqaaa",
        "QmbFMke1KXqnYyBBWxB74N4c5SBnJMVAiMNRcGu6x1AwQH",
        "bafyreigbtj4x7ip5legnfznufuopl4sg4knzc2cof6duas4b3q2fy6swua",
        "baguqeeraiqjw7i2vwntyuekgvulpp2det2kpwt6cd7tx5ayqybqpmhfk76fa",
    ];
    texts.iter().filter_map(|text| cid::parse(text).ok()).map(|cid| *cid.hash()).collect()
});

impl Rule {
    /// A rule that denies content, without hints.
    pub fn deny(target: Target) -> Self {
        Self { allows: false, target, hints: Vec::new() }
    }

    /// Parses a line; `None` for empty lines and comments.
    ///
    /// # Errors
    /// [`RuleError`] when the rule is invalid.
    pub fn parse(line: &str) -> Result<Option<Self>, RuleError> {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next().filter(|first| !first.starts_with('#')) else { return Ok(None) };
        let (allows, item) = match first.strip_prefix(['!', '+', '-']) {
            Some(item) => (true, item),
            None => (false, first),
        };
        let target = Target::parse(item)?;
        if !allows && target.is_empty_content() {
            return Err(RuleError::Empty);
        }
        let hints = words.take_while(|word| !word.starts_with('#')).filter_map(hint).collect();
        Ok(Some(Self { allows, target, hints }))
    }

    /// The decoded value of a hint.
    pub fn hint(&self, name: &str) -> Option<String> {
        let (_, value) = self.hints.iter().find(|(own, _)| own == name)?;
        Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
    }

    /// Adds a hint, and encodes its value.
    pub fn with_hint(mut self, name: &str, value: &str) -> Self {
        self.hints.push((name.to_owned(), utf8_percent_encode(value, HINT).to_string()));
        self
    }

    /// How content is denied, if the rule has a status.
    pub fn status(&self) -> Option<Verdict> {
        status_of(self.hints.iter().map(|(name, value)| (name.as_str(), value.as_str())))
    }
}

/// The status in hints, if there is one: `status=410` or `status=451`, or the same under other common names.
pub(super) fn status_of<'a>(hints: impl Iterator<Item = (&'a str, &'a str)>) -> Option<Verdict> {
    let mut hints = hints.filter(|(name, _)| matches!(*name, "status" | "gateway_status" | "http_status"));
    hints.find_map(|(_, value)| match value {
        "410" => Some(Verdict::Gone),
        "451" => Some(Verdict::Legal),
        _ => None,
    })
}

/// Parses a hint: `name=value`, or `name:value` as in the prose of the specification.
fn hint(word: &str) -> Option<(String, String)> {
    let (name, value) = word.split_once(['=', ':'])?;
    (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
}

impl Target {
    /// Parses the subject of a rule.
    ///
    /// # Errors
    /// [`RuleError`] when it is invalid.
    pub fn parse(item: &str) -> Result<Self, RuleError> {
        if let Some(hash) = item.strip_prefix("//") {
            return double(hash);
        }
        if let Some(rest) = item.strip_prefix("/ipfs/").or_else(|| item.strip_prefix("/ipld/")) {
            let (root, path) = rest.split_once('/').unwrap_or((rest, ""));
            return Ok(Self::Content { hash: content_hash(root)?, path: PathPattern::parse(path)? });
        }
        let rest = item.strip_prefix("/ipns/").ok_or(RuleError::Kind)?;
        let (root, path) = rest.split_once('/').unwrap_or((rest, ""));
        Ok(Self::Name { name: parse_name(root)?, path: PathPattern::parse(path)? })
    }

    /// Whether the subject is a whole empty file, directory or document.
    fn is_empty_content(&self) -> bool {
        matches!(self, Self::Content { hash, path } if path.text.is_empty() && EMPTY.contains(hash))
    }
}

/// The multihash of a CID, or a multihash in base58. Only the latter of SHA-256 are also CIDs (version 0).
fn content_hash(text: &str) -> Result<Multihash, RuleError> {
    let error = match cid::parse(text) {
        Ok(cid) => return Ok(*cid.hash()),
        Err(error) => error,
    };
    if text.len() > HASH_TEXT_BYTES_MAX {
        return Err(RuleError::Cid(error.to_string()));
    }
    let bare = Base::Base58Btc.decode(text).ok().and_then(|bytes| Multihash::from_bytes(&bytes).ok());
    bare.filter(is_double_hash).ok_or_else(|| RuleError::Cid(error.to_string()))
}

/// Parses a key in any encoding, or a domain, which may be inlined as one label.
fn parse_name(text: &str) -> Result<Name, RuleError> {
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| RuleError::Path)?;
    let name = Name::parse(&decoded).or_else(|error| match decoded.contains('.') {
        true => Err(error),
        false => Name::parse(&crate::dnslink::domain_of_label(&decoded)),
    });
    name.map_err(|error| RuleError::Name(error.to_string()))
}

/// Whether a multihash may be a double hash.
fn is_double_hash(hash: &Multihash) -> bool {
    hash.code() != hashes::IDENTITY && hashes::check_accepted(hash).is_ok()
}

fn double(text: &str) -> Result<Target, RuleError> {
    if text.len() > HASH_TEXT_BYTES_MAX {
        return Err(RuleError::Double);
    }
    let multihash = |bytes: Vec<u8>| Multihash::from_bytes(&bytes).ok().filter(is_double_hash);
    let hex = (text.len() == 64).then(|| Base::Base16Lower.decode(text.to_ascii_lowercase()).ok()).flatten();
    let hex = hex.and_then(|digest| Multihash::wrap(hashes::SHA2_256, &digest).ok());
    let base58 = Base::Base58Btc.decode(text).ok().and_then(multihash);
    let any = || multibase::decode(text).ok().and_then(|(_, bytes)| multihash(bytes));
    match (base58, hex) {
        (Some(hash), other) => Ok(Target::Double { hash, other }),
        (None, Some(hash)) => Ok(Target::Double { hash, other: None }),
        (None, None) => Ok(Target::Double { hash: any().ok_or(RuleError::Double)?, other: None }),
    }
}

impl PathPattern {
    /// Matches exactly this decoded path.
    pub fn exact(segments: &[String]) -> Self {
        Self { text: segments.join("/"), prefix: false }
    }

    /// Parses the path of a rule. A trailing asterisk is recognised before decoding.
    fn parse(raw: &str) -> Result<Self, RuleError> {
        let (raw, prefix) = match raw.strip_suffix('*') {
            Some(raw) => (raw, true),
            None => (raw, false),
        };
        let decoded = crate::path::decode(raw).map_err(|_| RuleError::Path)?;
        let mut text = String::with_capacity(decoded.len());
        for segment in decoded.split('/').filter(|segment| !matches!(*segment, "" | ".")) {
            if segment == ".." {
                return Err(RuleError::Path);
            }
            if !text.is_empty() {
                text.push('/');
            }
            text.push_str(segment);
        }
        Ok(Self { text, prefix })
    }

    /// Whether a path matches, which is decoded and without leading and trailing slashes.
    pub fn matches(&self, path: &str) -> bool {
        if self.prefix { path.starts_with(&self.text) } else { path == self.text }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.text.is_empty() {
            write!(f, "/{}", utf8_percent_encode(&self.text, PATH))?;
        }
        match (self.prefix, self.text.is_empty()) {
            (false, _) => Ok(()),
            (true, true) => f.write_str("/*"),
            (true, false) => f.write_str("*"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Content { hash, path } => write!(f, "/ipfs/{}{path}", Cid::new_v1(codec::RAW, *hash)),
            Self::Name { name, path } => write!(f, "/ipns/{name}{path}"),
            Self::Double { hash, .. } => write!(f, "//{}", Base::Base58Btc.encode(hash.to_bytes())),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.allows {
            f.write_str("!")?;
        }
        self.target.fmt(f)?;
        self.hints.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}
