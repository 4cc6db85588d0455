//! [`Subject`]: what an operator refers to: a CID, a path, a name or the URL of a page.

use crate::url::PATH_SEGMENT;
use ::cid::multibase::Base;
use content::denylist::{PathPattern, Target};
use content::path::{Namespace, Root};
use content::subdomain;
use content::{Cid, ContentPath, Name, cid, codec, hashes};
use percent_encoding::utf8_percent_encode;
use std::fmt;

/// The maximum number of path segments.
const DEPTH_MAX: usize = 256;

/// Content, or a name for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The root of the path.
    pub root: Root,
    /// The decoded path segments.
    pub segments: Vec<String>,
}

/// Why a text is not a reference to content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not a reference to content: {reason}")]
pub struct NotASubject {
    text: String,
    reason: String,
}

impl NotASubject {
    fn new(text: &str, reason: impl fmt::Display) -> Self {
        Self { text: text.chars().take(120).collect(), reason: reason.to_string() }
    }
}

impl Subject {
    /// A CID.
    ///
    /// # Errors
    /// [`NotASubject`].
    pub fn of_cid(text: &str) -> Result<Self, NotASubject> {
        let cid =
            cid::parse(text.trim()).map_err(|error| NotASubject::new(text, format!("it is not a CID: {error}")))?;
        Ok(Self { root: Root::Cid(cid), segments: Vec::new() })
    }

    /// A path that begins with `/ipfs/` or `/ipns/`, percent-encoded as in a URL.
    ///
    /// # Errors
    /// [`NotASubject`].
    pub fn of_path(text: &str) -> Result<Self, NotASubject> {
        let path = ContentPath::parse(text.trim(), DEPTH_MAX);
        let path = path.map_err(|error| NotASubject::new(text, format!("it is not a content path: {error}")))?;
        Ok(Self { root: path.root, segments: path.segments })
    }

    /// A key or a domain.
    ///
    /// # Errors
    /// [`NotASubject`].
    pub fn of_name(text: &str) -> Result<Self, NotASubject> {
        let name = Name::parse(text.trim()).map_err(|error| NotASubject::new(text, error))?;
        Ok(Self { root: Root::Name(name), segments: Vec::new() })
    }

    /// The URL of a page at any gateway: by path, by subdomain, of a domain with a DNSLink, or `ipfs://` and `ipns://`.
    ///
    /// # Errors
    /// [`NotASubject`].
    pub fn of_url(text: &str) -> Result<Self, NotASubject> {
        let none = |reason: &str| NotASubject::new(text, reason);
        let (scheme, rest) =
            text.trim().split_once("://").ok_or_else(|| none("it is not a URL, because it has no scheme"))?;
        let rest = rest.split(['?', '#']).next().unwrap_or(rest);
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        match scheme.to_ascii_lowercase().as_str() {
            scheme @ ("ipfs" | "ipns") => return Self::of_path(&format!("/{scheme}/{rest}")),
            "http" | "https" => {}
            _ => return Err(none("its scheme is not http, https, ipfs or ipns")),
        }
        if Namespace::split(path).is_some() {
            return Self::of_path(path);
        }
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let host = host.split(':').next().unwrap_or(host).trim_end_matches('.').to_ascii_lowercase();
        for namespace in [Namespace::Ipfs, Namespace::Ipns] {
            let Some((label, _)) = host.split_once(&format!(".{}.", namespace.name())) else { continue };
            let subdomain = subdomain::root_of_label(namespace, label);
            let root = subdomain.map_err(|error| NotASubject::new(text, error))?;
            return Self::below(root, path).map_err(|error| NotASubject::new(text, error));
        }
        let name = Name::parse(&host).map_err(|error| NotASubject::new(text, error))?;
        Self::below(Root::Name(name), path).map_err(|error| NotASubject::new(text, error))
    }

    fn below(root: Root, path: &str) -> Result<Self, content::path::PathError> {
        let path = ContentPath::below(root, &content::path::decode(path)?, DEPTH_MAX)?;
        Ok(Self { root: path.root, segments: path.segments })
    }

    /// Parses any of these.
    ///
    /// # Errors
    /// [`NotASubject`].
    pub fn of_anything(text: &str) -> Result<Self, NotASubject> {
        let text = text.trim();
        if Namespace::split(text).is_some() {
            return Self::of_path(text);
        }
        if text.contains("://") {
            return Self::of_url(text);
        }
        let key = |cid: &Cid| cid.codec() == codec::LIBP2P_KEY;
        match cid::parse(text) {
            Ok(cid) if !key(&cid) => Self::of_cid(text),
            _ => Self::of_name(text).map_err(|_| NotASubject::new(text, "it is neither a CID nor a path, name or URL")),
        }
    }

    /// The path below the root, as policies use it.
    pub fn path(&self) -> String {
        self.segments.join("/")
    }

    /// The path of a request for the subject, percent-encoded.
    pub fn request_path(&self) -> String {
        let root = match &self.root {
            Root::Cid(cid) => format!("/ipfs/{cid}"),
            Root::Name(name) => format!("/ipns/{name}"),
        };
        let segments = self.segments.iter().map(|name| format!("/{}", utf8_percent_encode(name, PATH_SEGMENT)));
        std::iter::once(root).chain(segments).collect()
    }

    /// The target of a rule about the subject; `below` includes everything below its path.
    pub fn target(&self, below: bool) -> Target {
        let path = PathPattern { text: self.path(), prefix: below };
        match &self.root {
            Root::Cid(cid) => Target::Content { hash: *cid.hash(), path },
            Root::Name(name) => Target::Name { name: name.clone(), path },
        }
    }

    /// The text of a rule about the subject, with the CID as it was given.
    pub fn rule_text(&self, below: bool) -> String {
        let target = self.target(below).to_string();
        match (&self.root, target.strip_prefix("/ipfs/")) {
            (Root::Cid(cid), Some(rest)) => {
                let path = rest.find('/').map_or("", |slash| &rest[slash..]);
                format!("/ipfs/{cid}{path}")
            }
            _ => target,
        }
    }

    /// The rule as a double hash, which does not reveal the subject: the SHA2-256 of the text in the specification
    /// (<https://specs.ipfs.tech/compact-denylist-format/#double-hash>).
    pub fn double_hash(&self) -> String {
        let slash = if self.segments.is_empty() { "" } else { "/" };
        let path = self.path();
        let base58 = |cid: &Cid| Base::Base58Btc.encode(cid.hash().to_bytes());
        let text = match &self.root {
            Root::Cid(cid) => format!("{}{slash}{path}", base58(cid)),
            Root::Name(Name::Key(key)) => format!("{}{slash}{path}", base58(&key.to_cid())),
            Root::Name(Name::Domain(domain)) => format!("/ipns/{domain}{slash}{path}"),
        };
        let hash = hashes::digest(hashes::SHA2_256, 32, text.as_bytes());
        format!("//{}", Base::Base58Btc.encode(hash.map(|hash| hash.to_bytes()).unwrap_or_default()))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rule_text(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::Policy as _;
    use content::denylist::{List, Matcher, Rule, Source};

    const CID: &str = "bafybeihrw75yfhdx5qsqgesdnxejtjybscwuclpusvxkuttep6h7pkgmze";
    const KEY: &str = "k51qzi5uqu5dhmzyv3zac033i7rl9hkgczxyl81lwoukda2htteop7d3x0y1mf";

    #[test]
    fn references_of_every_kind_are_parsed() {
        let table = [
            (CID.to_owned(), format!("/ipfs/{CID}")),
            (format!("/ipfs/{CID}/a%20b/"), format!("/ipfs/{CID}/a%20b")),
            (format!("/ipns/{KEY}/x"), format!("/ipns/{KEY}/x")),
            (KEY.to_owned(), format!("/ipns/{KEY}")),
            ("Example.org".to_owned(), "/ipns/example.org".to_owned()),
            (format!("https://some.host:8080/ipfs/{CID}/a?b=c#d"), format!("/ipfs/{CID}/a")),
            (format!("https://{CID}.ipfs.some.host/a/b%2Ac"), format!("/ipfs/{CID}/a/b%2Ac")),
            (format!("http://{KEY}.ipns.localhost:1234"), format!("/ipns/{KEY}")),
            ("https://my--site-example-org.ipns.some.host/x".to_owned(), "/ipns/my-site.example.org/x".to_owned()),
            ("https://user@docs.example.org/guide/".to_owned(), "/ipns/docs.example.org/guide".to_owned()),
            (format!("ipfs://{CID}/a"), format!("/ipfs/{CID}/a")),
            ("ipns://example.org".to_owned(), "/ipns/example.org".to_owned()),
        ];
        for (text, expected) in table {
            let subject = Subject::of_anything(&text).expect(&text);
            assert_eq!(subject.to_string(), expected, "{text}");
            let rule = Rule::parse(&subject.rule_text(false)).expect("parses").expect("a rule");
            assert_eq!(rule.target, subject.target(false), "{text}");
        }
        for text in
            ["", "hello", "/ipfs/x", "ftp://a.b/c", "https://localhost/x", "https://x.ipfs.host/", "://", "https://"]
        {
            assert!(Subject::of_anything(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_double_hash_matches_its_subject() {
        for text in [CID, &format!("/ipfs/{CID}/a/b"), KEY, &format!("/ipns/{KEY}/x"), "a.example", "/ipns/a.example/x"]
        {
            let subject = Subject::of_anything(text).expect(text);
            let list = List::parse(format!("{}\n", subject.double_hash()).as_bytes()).expect("a list");
            assert_eq!(list.rules(), 1, "{text}");
            let matcher = Matcher::new([Source { id: "x".into(), list, status: content::Verdict::Legal }]);
            let verdict = match &subject.root {
                Root::Cid(cid) => matcher.check_path(cid, &subject.path()),
                Root::Name(name) => matcher.check_name(name, &subject.path()),
            };
            assert_eq!(verdict, content::Verdict::Legal, "{text}");
        }
    }
}
