//! DNSLink (<https://dnslink.dev/>): the value of a name, from the TXT records of a domain or from the operator's table
//! of names. Pure parsing, without DNS queries.
//!
//! Goals: one definition of valid links for every resolver; errors of the table quote the invalid entry.

use crate::names::{InvalidName, Name};
use crate::path::{self, ContentPath, Namespace, PathError};
use std::collections::HashMap;

/// The label that is put before a domain to query its DNSLink.
pub const LABEL: &str = "_dnslink";
/// The prefix of a TXT record with a DNSLink.
const PREFIX: &str = "dnslink=";

/// The maximum number of segments in the path of a link.
const DEPTH_MAX: usize = 256;

/// The DNSLink among the TXT records of `_dnslink.DOMAIN`. Records that are not DNSLinks to IPFS or IPNS are ignored;
/// of several, the lexicographically first valid one is selected, so that every resolver selects the same.
pub fn choose<'a>(records: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let links = records.into_iter().filter_map(|record| record.trim().strip_prefix(PREFIX)).map(str::trim);
    let links = links.filter(|link| Namespace::split(link).is_some_and(|(_, rest)| !rest.is_empty()));
    links.min_by_key(|link| (read(link).is_err(), *link))
}

/// The domain that a subdomain label encodes: `--` becomes `-`, and `-` becomes `.`
/// (<https://specs.ipfs.tech/http-gateways/subdomain-gateway/#host-request-header>).
pub fn domain_of_label(label: &str) -> String {
    // Split at `--` first; the hyphens that are left are dots.
    label.split("--").map(|part| part.replace('-', ".")).collect::<Vec<_>>().join("-")
}

/// Parses the value of a DNSLink. It may be percent-encoded, which some DNS tools require: if it cannot be decoded, it
/// is parsed as it is.
///
/// # Errors
/// [`PathError`] when the path is invalid.
pub fn read(link: &str) -> Result<ContentPath, PathError> {
    match path::decode(link) {
        Ok(decoded) => ContentPath::read(&decoded, DEPTH_MAX),
        Err(_) => ContentPath::read(link, DEPTH_MAX),
    }
}

/// A static table of names: `NAME:PATH` entries, separated by commas or line ends, as in Kubo's variable `IPFS_NS_MAP`.
/// Lines that begin with `#` are comments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StaticMap(HashMap<Name, ContentPath>);

/// Why a table of names is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// An entry has no colon.
    #[error("\"{entry}\" is not NAME:PATH, such as example.org:/ipfs/bafkqaaa")]
    Syntax {
        /// The entry.
        entry: String,
    },
    /// The text before the colon is not a name.
    #[error("\"{entry}\": {error}")]
    Name {
        /// The entry.
        entry: String,
        /// What is wrong with the name.
        error: InvalidName,
    },
    /// The text after the colon is not a path.
    #[error("\"{entry}\": {error}")]
    Path {
        /// The entry.
        entry: String,
        /// What is wrong with the path.
        error: PathError,
    },
    /// Two entries have the same name.
    #[error("\"{entry}\": the name has an entry already")]
    Duplicate {
        /// The second entry.
        entry: String,
    },
}

impl StaticMap {
    /// Parses a table.
    ///
    /// # Errors
    /// [`MapError`] for the first invalid entry.
    pub fn parse(text: &str) -> Result<Self, MapError> {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let entries = lines.flat_map(|line| line.split(',')).map(str::trim).filter(|entry| !entry.is_empty());
        let mut map = HashMap::new();
        for entry in entries {
            let (name, path) = Self::entry(entry)?;
            if map.insert(name, path).is_some() {
                return Err(MapError::Duplicate { entry: truncated(entry) });
            }
        }
        Ok(Self(map))
    }

    fn entry(entry: &str) -> Result<(Name, ContentPath), MapError> {
        let (name, path) = entry.split_once(':').ok_or_else(|| MapError::Syntax { entry: truncated(entry) })?;
        let name = Name::parse(name.trim()).map_err(|error| MapError::Name { entry: truncated(entry), error })?;
        let path = read(path.trim()).map_err(|error| MapError::Path { entry: truncated(entry), error })?;
        Ok((name, path))
    }

    /// The path of a name.
    pub fn get(&self, name: &Name) -> Option<&ContentPath> {
        self.0.get(name)
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An entry, truncated for an error message.
fn truncated(entry: &str) -> String {
    entry.chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Root;
    use proptest::prelude::*;

    const CID: &str = "bafkqaddjnzzxazldoqwxizltoq";

    #[test]
    fn the_lexicographically_first_link_is_selected() {
        let table: [(&[&str], Option<&str>); 8] = [
            (&[], None),
            (&["v=spf1 -all", "dnslink=", "dnslink=/", "dnslink=/ipfs/", "dnslink=/swarm/x"], None),
            (&["dnslink=/ipfs/b"], Some("/ipfs/b")),
            (&["dnslink=/ipns/a", "dnslink=/ipns/a.b"], Some("/ipns/a.b")),
            (&["dnslink=/ipns/c.d", "x", "dnslink=/ipns/a.b"], Some("/ipns/a.b")),
            (&[" dnslink=/ipns/a.b/a b "], Some("/ipns/a.b/a b")),
            (&["DNSLINK=/ipfs/b"], None),
            (&["/ipfs/b"], None),
        ];
        for (records, chosen) in table {
            assert_eq!(choose(records.iter().copied()), chosen, "{records:?}");
        }
    }

    #[test]
    fn links_may_be_encoded_or_not() {
        let table = [("a%20b", "a b"), ("a b", "a b"), ("100%", "100%"), ("%ff", "%ff")];
        for (segment, expected) in table {
            let path = read(&format!("/ipfs/{CID}/{segment}")).expect(segment);
            assert_eq!(path.segments, [expected], "{segment}");
        }
    }

    #[test]
    fn a_table_has_names_and_paths() {
        let text = format!(
            "# remark\na.example.org:/ipfs/{CID},B.example.org:/ipns/a.example.org/x\n\n\
             12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK:/ipfs/{CID}/y/,"
        );
        let map = StaticMap::parse(&text).expect("a list");
        assert_eq!(map.len(), 3);
        let get = |name: &str| map.get(&Name::parse(name).expect("a name")).cloned().expect("an entry");
        assert_eq!(get("a.example.org").root, Root::Cid(CID.parse().expect("a CID")));
        assert_eq!(get("b.example.org").root, Root::Name(Name::parse("a.example.org").expect("a name")));
        assert_eq!(get("k51qzi5uqu5dlvj2baxnqndepeb86cbk3ng7n3i46uzyxzyqj2xjonzllnv0v8").segments, ["y"]);
        assert_eq!(map.get(&Name::parse("c.example.org").expect("a name")), None);
        assert!(StaticMap::parse(" \n#x\n").expect("an empty list").is_empty());
    }

    #[test]
    fn errors_of_a_table_quote_the_entry() {
        let table = [
            ("example.org", "\"example.org\" is not NAME:PATH, such as example.org:/ipfs/bafkqaaa".to_owned()),
            ("hello:/ipfs/x", "\"hello:/ipfs/x\": \"hello\" is neither an IPNS key nor a domain name".to_owned()),
            ("a.b:ipfs/x", "\"a.b:ipfs/x\": a path to content begins with /ipfs/ or /ipns/".to_owned()),
            (
                &format!("a.b:/ipfs/{CID},A.b:/ipfs/{CID}"),
                format!("\"A.b:/ipfs/{CID}\": the name has an entry already"),
            ),
        ];
        for (text, message) in table {
            assert_eq!(StaticMap::parse(text).expect_err(text).to_string(), message);
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = StaticMap::parse(&text);
            let _ = choose([text.as_str()]);
            let _ = read(&text);
        }
    }
}
