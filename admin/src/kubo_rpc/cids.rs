//! [`CidText`]: the text format of CIDs in answers, by Kubo's option `--cid-base`.

use crate::kubo_rpc::problem::RpcError;
use cid::Version;
use cid::multibase::Base;
use content::Cid;
use content::names::Key;

/// The text format of CIDs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CidText {
    /// The multibase of CIDs of version 1; the default base if none.
    base: Option<Base>,
    /// Whether CIDs of version 0 are converted to version 1.
    upgrades: bool,
}

/// The names of the bases (<https://github.com/multiformats/multibase/blob/master/multibase.csv>), and their prefixes.
const BASES: [(&str, char); 21] = [
    ("base2", '0'),
    ("base8", '7'),
    ("base10", '9'),
    ("base16", 'f'),
    ("base16upper", 'F'),
    ("base32hex", 'v'),
    ("base32hexupper", 'V'),
    ("base32hexpad", 't'),
    ("base32hexpadupper", 'T'),
    ("base32", 'b'),
    ("base32upper", 'B'),
    ("base32pad", 'c'),
    ("base32padupper", 'C'),
    ("base32z", 'h'),
    ("base36", 'k'),
    ("base36upper", 'K'),
    ("base58btc", 'z'),
    ("base58flickr", 'Z'),
    ("base64", 'm'),
    ("base64url", 'u'),
    ("base64urlpad", 'U'),
];

/// The base with a name or prefix.
fn base(name: &str) -> Result<Base, RpcError> {
    let by_name = BASES.into_iter().find(|(known, _)| *known == name).map(|(_, letter)| letter);
    let mut letters = name.chars();
    let letter = by_name.or_else(|| letters.next().filter(|_| letters.next().is_none()));
    let base = letter.filter(|letter| *letter != '\0').and_then(|letter| Base::from_code(letter).ok());
    base.ok_or_else(|| {
        RpcError::bad_request(format!("\"{name}\" is not a multibase, such as \"base32\" or \"base58btc\""))
    })
}

impl CidText {
    /// The format with a base, if one is named. Unless `upgrades` is given, every base except base58btc converts CIDs
    /// to version 1.
    ///
    /// # Errors
    /// There is no such base.
    pub fn new(name: Option<&str>, upgrades: Option<bool>) -> Result<Self, RpcError> {
        let base = name.map(base).transpose()?;
        let must = base.is_some_and(|base| base != Base::Base58Btc);
        Ok(Self { base, upgrades: upgrades.unwrap_or(must) })
    }

    /// A CID as text.
    pub fn show(&self, cid: &Cid) -> String {
        let upgraded = Cid::new_v1(cid.codec(), *cid.hash());
        let cid = if self.upgrades { &upgraded } else { cid };
        match self.base {
            Some(base) if cid.version() == Version::V1 => {
                cid.to_string_of_base(base).unwrap_or_else(|_| cid.to_string())
            }
            _ => cid.to_string(),
        }
    }
}

/// A key as text, by Kubo's option `--ipns-base`: base36 by default, and `b58mh` for the old format of peer IDs.
///
/// # Errors
/// There is no such base.
pub fn show_key(key: &Key, name: Option<&str>) -> Result<String, RpcError> {
    match name {
        None | Some("base36" | "k") => Ok(key.to_string()),
        Some("b58mh" | "v0") => Ok(key.peer_id().to_base58()),
        Some(name) => {
            let base = base(name)?;
            Ok(key.to_cid().to_string_of_base(base).unwrap_or_else(|_| key.to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V0: &str = "QmWvY6FaqFMS89YAQ9NAPjVP4WZKA1qbHbicc9HeSKQTgt";

    #[test]
    fn bases_are_those_of_the_option() {
        let cid = content::cid::parse(V0).expect("a CID");
        let one = Cid::new_v1(cid.codec(), *cid.hash());
        let show = |cid: &Cid, base, upgrades| CidText::new(base, upgrades).expect("a base").show(cid);
        assert_eq!(show(&cid, None, None), V0);
        assert_eq!(show(&cid, Some("base58btc"), None), V0);
        assert_eq!(show(&cid, Some("base32"), None), one.to_string());
        assert_eq!(show(&cid, Some("b"), None), one.to_string());
        assert_eq!(show(&cid, Some("base32"), Some(false)), V0);
        assert_eq!(show(&cid, None, Some(true)), one.to_string());
        assert!(show(&one, Some("base58btc"), None).starts_with('z'));
        assert!(show(&one, Some("f"), None).starts_with("f01701220"));
        for (name, letter) in BASES {
            assert!(show(&one, Some(name), None).starts_with(letter), "{name}");
        }
        for name in ["base1", "", "bb", "é", "\0"] {
            assert!(CidText::new(Some(name), None).is_err(), "{name}");
        }
    }
}
