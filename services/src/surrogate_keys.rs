//! Surrogate keys, by which content delivery networks and this gateway purge responses.
//!
//! A response has the root CID of its path as a key, as CIDv1 in base32, so that the requested CID version makes no
//! difference; and, if it was requested by a name, the canonical name. [`SurrogateKey::parse`] parses keys.

use content::Name;
use content::cid::{self, Cid, codec};
use content::path::Namespace;
use percent_encoding::percent_decode_str;

/// A surrogate key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SurrogateKey {
    /// All responses below a root.
    Root(Cid),
    /// All responses that were requested by a name.
    Name(Name),
}

impl SurrogateKey {
    /// Parses a key.
    pub fn parse(text: &str) -> Option<Self> {
        // An IPNS key is a CID as well.
        match cid::parse(text) {
            Ok(cid) if cid.codec() != codec::LIBP2P_KEY => Some(Self::Root(cid)),
            _ => Name::parse(text).ok().map(Self::Name),
        }
    }
}

/// The key of a root.
pub fn of_root(root: &Cid) -> String {
    Cid::new_v1(root.codec(), *root.hash()).to_string()
}

/// The key of the name that a path begins with, if any.
pub fn of_path(path: &str) -> Option<String> {
    let (Namespace::Ipns, below) = Namespace::split(path)? else { return None };
    let label = percent_decode_str(below.split('/').next()?).decode_utf8().ok()?;
    Name::parse(&label).ok().map(|name| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const V0: &str = "QmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn";
    const V1: &str = "bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354";
    const KEY: &str = "k51qzi5uqu5dlvj2baxnqndepeb86cbk3ng7n3i46uzyxzyqj2xjonzllnv0v8";

    #[test]
    fn keys_are_written_in_one_spelling_and_read_in_all() {
        for root in [V0, V1] {
            assert_eq!(of_root(&cid::parse(root).expect("a CID")), V1);
            assert!(matches!(SurrogateKey::parse(root), Some(SurrogateKey::Root(_))), "{root}");
        }
        let names = [
            ("/ipns/Example.org/a", Some("example.org")),
            ("/ipns/example.org", Some("example.org")),
            ("/ipns/12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK/", Some(KEY)),
            ("/ipns/", None),
            ("/ipns/%ff/", None),
            ("/ipfs/example.org", None),
            ("/", None),
        ];
        for (path, expected) in names {
            assert_eq!(of_path(path).as_deref(), expected, "{path}");
            if let Some(key) = expected {
                let Some(SurrogateKey::Name(name)) = SurrogateKey::parse(key) else { panic!("{key}") };
                assert_eq!(name.to_string(), key);
            }
        }
        assert_eq!(SurrogateKey::parse("no key"), None);
    }
}
