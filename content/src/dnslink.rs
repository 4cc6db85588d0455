//! DNSLink (<https://dnslink.dev/>): what the text records of a domain, or a list of the operator's, say that a name stands
//! for. Pure parsing; who asks the DNS is elsewhere.
//!
//! Goals: one definition of what counts, whoever looks it up; errors of the list quote the entry at fault.

use crate::names::{Name, NotAName};
use crate::path::{self, ContentPath, Namespace, PathError};
use std::collections::HashMap;

/// The label before a domain that its DNSLink stands under.
pub const LABEL: &str = "_dnslink";
/// What the value of a DNSLink begins with.
const PREFIX: &str = "dnslink=";

/// Segments that a path in a link may have.
const DEPTH_MAX: usize = 256;

/// The path that the text records of `_dnslink.DOMAIN` name. Records that are no DNSLinks, or none to IPFS or IPNS, are
/// ignored; of several the lexicographically first that can be read counts, so that everybody takes the same.
pub fn choose<'a>(records: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let links = records.into_iter().filter_map(|record| record.trim().strip_prefix(PREFIX)).map(str::trim);
    let links = links.filter(|link| Namespace::split(link).is_some_and(|(_, rest)| !rest.is_empty()));
    links.min_by_key(|link| (read(link).is_err(), *link))
}

/// The domain that a label stands for, in which dots are hyphens and hyphens doubled
/// (<https://specs.ipfs.tech/http-gateways/subdomain-gateway/#host-request-header>).
pub fn spelt_out(label: &str) -> String {
    // Doubled hyphens first: what is left of them are dots.
    label.split("--").map(|part| part.replace('-', ".")).collect::<Vec<_>>().join("-")
}

/// Reads what a DNSLink stands for. Its author may have percent-encoded it, which DNS tools sometimes ask for: what
/// decodes is decoded, anything else is taken as it is.
///
/// # Errors
/// [`PathError`] says which rule of paths it breaks.
pub fn read(link: &str) -> Result<ContentPath, PathError> {
    match path::decode(link) {
        Ok(decoded) => ContentPath::read(&decoded, DEPTH_MAX),
        Err(_) => ContentPath::read(link, DEPTH_MAX),
    }
}

/// Names that the operator decided about: `NAME:PATH` entries, separated by commas or line ends, as Kubo's variable
/// `IPFS_NS_MAP` has them. Lines that begin with `#` are remarks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StaticMap(HashMap<Name, ContentPath>);

/// Why a list of names cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// An entry has no colon.
    #[error("\"{entry}\" is not NAME:PATH, such as example.org:/ipfs/bafkqaaa")]
    Form {
        /// The entry.
        entry: String,
    },
    /// What stands before the colon is no name.
    #[error("\"{entry}\": {error}")]
    Name {
        /// The entry.
        entry: String,
        /// What is wrong with it.
        error: NotAName,
    },
    /// What stands after the colon is no path.
    #[error("\"{entry}\": {error}")]
    Path {
        /// The entry.
        entry: String,
        /// What is wrong with it.
        error: PathError,
    },
    /// Two entries are about one name.
    #[error("\"{entry}\": the name has an entry already")]
    Twice {
        /// The second entry.
        entry: String,
    },
}

impl StaticMap {
    /// Reads a list.
    ///
    /// # Errors
    /// [`MapError`] quotes the first entry that is none.
    pub fn parse(text: &str) -> Result<Self, MapError> {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let entries = lines.flat_map(|line| line.split(',')).map(str::trim).filter(|entry| !entry.is_empty());
        let mut map = HashMap::new();
        for entry in entries {
            let (name, path) = Self::entry(entry)?;
            if map.insert(name, path).is_some() {
                return Err(MapError::Twice { entry: shown(entry) });
            }
        }
        Ok(Self(map))
    }

    fn entry(entry: &str) -> Result<(Name, ContentPath), MapError> {
        let (name, path) = entry.split_once(':').ok_or_else(|| MapError::Form { entry: shown(entry) })?;
        let name = Name::parse(name.trim()).map_err(|error| MapError::Name { entry: shown(entry), error })?;
        let path = read(path.trim()).map_err(|error| MapError::Path { entry: shown(entry), error })?;
        Ok((name, path))
    }

    /// What a name stands for.
    pub fn get(&self, name: &Name) -> Option<&ContentPath> {
        self.0.get(name)
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An entry, short enough for one line.
fn shown(entry: &str) -> String {
    entry.chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Root;
    use proptest::prelude::*;

    const CID: &str = "bafkqaddjnzzxazldoqwxizltoq";

    #[test]
    fn of_several_links_the_first_in_order_counts() {
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
    fn a_list_has_names_and_paths() {
        let text = format!(
            "# remark\na.example.org:/ipfs/{CID},B.example.org:/ipns/a.example.org/x\n\n12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK:/ipfs/{CID}/y/,"
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
    fn errors_of_a_list_quote_the_entry() {
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
