//! The content root of a request: the CID or name that its URL has, in one form for all ways to write it.

use content::path::Root;
use content::{Cid, ContentPath, Name, cid, dnslink};
use services::access_log::record::{AccessRecord, root_of};

/// What a hash in an anonymised log begins with, in the place of a root.
pub(super) const HASHED: &str = "anon-";
/// The number of hexadecimal digits after it.
const HASH_DIGITS: usize = 16;

/// The root as `/ipfs/CID` (version 1) or `/ipns/NAME`, if the request is for content: that which the gateway recorded,
/// or that of the path or of the subdomain.
pub(super) fn of(record: &AccessRecord<'_>) -> Option<String> {
    [&*record.root, &*record.path].into_iter().find_map(of_path).or_else(|| of_host(&record.host))
}

fn of_path(path: &str) -> Option<String> {
    let root = root_of(path);
    if is_hashed(root.get("/ipfs/".len()..)?) {
        return Some(root.to_owned());
    }
    ContentPath::parse(root, 1).ok().map(|path| written(&path.root))
}

/// Whether this is the hash of a root, and not what a client wrote in its place.
pub(super) fn is_hashed(root: &str) -> bool {
    let digits = root.strip_prefix(HASHED).unwrap_or_default().as_bytes();
    digits.len() == HASH_DIGITS && digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// The root of a subdomain, such as `CID.ipfs.gateway.example.org`.
fn of_host(host: &str) -> Option<String> {
    let host = host.to_ascii_lowercase();
    if let Some((label, _)) = host.split_once(".ipfs.") {
        return cid::parse(label).ok().map(|cid| written(&Root::Cid(cid)));
    }
    let (label, _) = host.split_once(".ipns.")?;
    let name = if label.contains('.') { label.to_owned() } else { dnslink::domain_of_label(label) };
    Name::parse(label).or_else(|_| Name::parse(&name)).ok().map(|name| written(&Root::Name(name)))
}

fn written(root: &Root) -> String {
    match root {
        Root::Cid(cid) => format!("/ipfs/{}", Cid::new_v1(cid.codec(), *cid.hash())),
        Root::Name(name) => format!("/ipns/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V0: &str = "QmaCpDMGvV2BGHeYERUEnRQAwe3N8SzbUtfsmvsqQLuvuJ";
    const V1: &str = "bafybeifx7yeb55armcsxwwitkymga5xf53dxiarykms3ygqic223w5sk3m";

    #[test]
    fn one_root_has_one_form() {
        let ipfs = |cid: &str| Some(format!("/ipfs/{cid}"));
        let v1 = written(&Root::Cid(cid::parse(V0).expect("a CID")));
        let v1 = v1.trim_start_matches("/ipfs/").to_owned();
        // (recorded root, path, host, expected)
        let table = [
            ("", format!("/ipfs/{V0}/a"), "gateway.example.org", ipfs(&v1)),
            ("", format!("/ipfs/{v1}"), "", ipfs(&v1)),
            ("", "/a/b".to_owned(), &*format!("{v1}.ipfs.localhost:8080"), ipfs(&v1)),
            (&format!("/ipfs/{V0}"), "/a".to_owned(), "other.example.org", ipfs(&v1)),
            ("", "/ipns/Example.org/x".to_owned(), "", Some("/ipns/example.org".to_owned())),
            ("", "/".to_owned(), "en-wikipedia--on--ipfs-org.ipns.example.org", {
                Some("/ipns/en.wikipedia-on-ipfs.org".to_owned())
            }),
            ("", "/".to_owned(), "a.example.org.ipns.localhost", Some("/ipns/a.example.org".to_owned())),
            ("", "/ipfs/anon-0123456789abcdef/x".to_owned(), "", Some("/ipfs/anon-0123456789abcdef".to_owned())),
            ("", "/ipfs/anon-alice@example.org/x".to_owned(), "", None),
            ("", "/ipfs/anon-0123456789ABCDEF".to_owned(), "", None),
            ("", "/ipfs/nonsense".to_owned(), "", None),
            ("", "/healthz".to_owned(), "gateway.example.org", None),
            ("", "/".to_owned(), "nonsense.ipfs.localhost", None),
            ("", "/".to_owned(), "", None),
        ];
        for (root, path, host, expected) in table {
            let record = AccessRecord {
                root: root.into(),
                path: path.clone().into(),
                host: host.into(),
                ..AccessRecord::default()
            };
            assert_eq!(of(&record), expected, "{root} {path} {host}");
        }
        assert!(cid::parse(V1).is_ok());
    }
}
