//! [`Anonymiser`]: an access log that can be published. The help of `causeway report` says what remains in it.
//!
//! Goals: what is not named there is not written: each record is built from values that were reduced, and never from
//! a text of the log but its root; the key of the hashes is in memory only.

use super::agents;
use super::content_root::{HASHED, is_hashed};
use super::summary::{SAME_SITE, is_same_site};
use anyhow::Context as _;
use services::access_log::addresses::KeyedHash;
use services::access_log::record::{AccessRecord, LineFormat};
use std::borrow::Cow;
use std::io::{BufWriter, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

const MINUTE_US: i64 = 60_000_000;
const DAY_US: i64 = 24 * 60 * MINUTE_US;
/// Digits of sizes and durations that are kept.
const DIGITS: u32 = 2;
const METHODS: [&str; 8] = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH", "CONNECT"];
const PROTOCOLS: [&str; 5] = ["HTTP/1.0", "HTTP/1.1", "HTTP/2.0", "HTTP/2", "HTTP/3.0"];
/// Paths that are the same on every gateway.
const KNOWN_PATHS: [&str; 5] = ["/", "/healthz", "/readyz", "/favicon.ico", "/robots.txt"];
/// The path of requests to the routing API, whose paths have keys that the client asks for.
const ROUTING: &str = "/routing/v1/";

/// Writes anonymised records to a file.
pub(super) struct Anonymiser {
    out: BufWriter<NamedTempFile>,
    target: PathBuf,
    hash: KeyedHash,
    hash_roots: bool,
    line: String,
}

impl Anonymiser {
    /// Begins a file, which gets its name when it is whole.
    ///
    /// # Errors
    /// When it cannot be written, or exists.
    pub fn create(target: &Path, hash_roots: bool) -> anyhow::Result<Self> {
        anyhow::ensure!(!target.exists(), "{} exists: choose another name, or remove it", target.display());
        let unwritten = || format!("{} cannot be written", target.display());
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new().prefix(".anonymised-").tempfile_in(folder).with_context(unwritten)?;
        let hash = KeyedHash::random().context("the system has no randomness")?;
        Ok(Self { out: BufWriter::new(file), target: target.to_owned(), hash, hash_roots, line: String::new() })
    }

    /// Writes a record; `root` is that of its content.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, record: &AccessRecord<'_>, root: Option<&str>) -> anyhow::Result<()> {
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        self.anonymised(record, root).append_to(&mut line, LineFormat::Json);
        let written = self.out.write_all(line.as_bytes());
        self.line = line;
        written.with_context(|| format!("{} cannot be written", self.target.display()))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(self) -> anyhow::Result<()> {
        let unwritten = || format!("{} cannot be written", self.target.display());
        let file = self.out.into_inner().map_err(std::io::IntoInnerError::into_error).with_context(unwritten)?;
        // Others may read it: it is to be published.
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644)).with_context(unwritten)?;
        file.persist_noclobber(&self.target).with_context(unwritten)?;
        Ok(())
    }

    fn anonymised(&self, record: &AccessRecord<'_>, root: Option<&str>) -> AccessRecord<'static> {
        let root = root.map(|root| self.root(root));
        AccessRecord {
            received_us: record.received_us - record.received_us.rem_euclid(MINUTE_US),
            client: self.client(record).into(),
            method: known(&METHODS, &record.method, "OTHER"),
            host: Cow::Borrowed(""),
            path: self.path(record, root.as_deref()).into(),
            protocol: known(&PROTOCOLS, &record.protocol, ""),
            status: record.status,
            bytes: rounded(record.bytes),
            duration_us: record.duration_us.map(rounded),
            first_byte_us: record.first_byte_us.map(rounded),
            tier: record.tier,
            root: root.unwrap_or_default().into(),
            referer: self.referer(record).into(),
            user_agent: Cow::Borrowed(agents::family(&record.user_agent)),
            complete: record.complete,
            trace_id: Cow::Borrowed(""),
        }
    }

    /// The hash of an address and the day, so that requests of one client can be counted for a day.
    fn client(&self, record: &AccessRecord<'_>) -> String {
        if record.client.is_empty() {
            return String::new();
        }
        let address = match record.client.parse::<IpAddr>().map(|address| address.to_canonical()) {
            // A client may have any address of its network.
            Ok(IpAddr::V6(v6)) => v6.octets()[..8].to_vec(),
            Ok(IpAddr::V4(v4)) => v4.octets().to_vec(),
            Err(_) => record.client.as_bytes().to_vec(),
        };
        let day = record.received_us.div_euclid(DAY_US).to_be_bytes();
        self.hash.pseudonym("client", &[&day[..], &address].concat())
    }

    fn root(&self, root: &str) -> String {
        let namespace = if root.starts_with("/ipns/") { "/ipns/" } else { "/ipfs/" };
        if self.hash_roots && !is_hashed(&root[namespace.len()..]) {
            return format!("{namespace}{HASHED}{}", self.hash.pseudonym("root", root.as_bytes()));
        }
        root.to_owned()
    }

    /// The root, and a hash of what is below it.
    fn path(&self, record: &AccessRecord<'_>, root: Option<&str>) -> String {
        let path = &*record.path;
        let Some(root) = root else {
            return match KNOWN_PATHS.into_iter().find(|known| *known == path) {
                Some(known) => known.to_owned(),
                None if path.starts_with(ROUTING) => ROUTING.to_owned(),
                None if path.is_empty() => String::new(),
                None => format!("/{}", self.hash.pseudonym("path", path.as_bytes())),
            };
        };
        // Of a site's own origin, the whole path is below the root.
        let within = services::access_log::record::root_of(path);
        let below = path[within.len()..].trim_matches('/');
        match below {
            "" => root.to_owned(),
            _ => format!("{root}/{}", self.hash.pseudonym("path", below.as_bytes())),
        }
    }

    fn referer(&self, record: &AccessRecord<'_>) -> String {
        let site = record.referer.split_once("://").map_or(&*record.referer, |(_, site)| site);
        match site {
            "" => String::new(),
            _ if is_same_site(site, &record.host) => SAME_SITE.to_owned(),
            _ => format!("site-{}", self.hash.pseudonym("site", site.as_bytes())),
        }
    }
}

/// A value if it is one of those that are known, so that nothing else of a client is kept.
fn known(values: &[&'static str], value: &str, other: &'static str) -> Cow<'static, str> {
    Cow::Borrowed(values.iter().find(|known| **known == value).copied().unwrap_or(other))
}

/// A number with its first digits only.
fn rounded(number: u64) -> u64 {
    let unit = 10_u64.pow(number.checked_ilog10().unwrap_or_default().saturating_sub(DIGITS - 1));
    number.saturating_add(unit / 2) / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use services::access_log::record::ContentTier;

    const CID: &str = "bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e";

    fn record() -> AccessRecord<'static> {
        AccessRecord {
            received_us: 1_795_680_059_999_999,
            client: "203.0.113.7".into(),
            method: "GET".into(),
            host: "private.example.org".into(),
            path: format!("/ipfs/{CID}/secret/name.pdf").into(),
            protocol: "HTTP/1.1".into(),
            status: 200,
            bytes: 123_456,
            duration_us: Some(98_765),
            first_byte_us: Some(7),
            tier: Some(ContentTier::Disk),
            root: format!("/ipfs/{CID}").into(),
            referer: "https://mail.example.com".into(),
            user_agent: "Mozilla/5.0 (serial 4711) Firefox/145.0".into(),
            complete: Some(true),
            trace_id: "4bf92f3577b34da6a3ce929d0e0e4736".into(),
        }
    }

    fn anonymiser(hash_roots: bool) -> (tempfile::TempDir, Anonymiser) {
        let dir = tempfile::tempdir().expect("a folder");
        let anonymiser = Anonymiser::create(&dir.path().join("out.jsonl"), hash_roots).expect("creates");
        (dir, anonymiser)
    }

    #[test]
    fn nothing_private_remains() {
        let (_dir, anonymiser) = anonymiser(false);
        let root = format!("/ipfs/{CID}");
        let made = anonymiser.anonymised(&record(), Some(&root));
        let mut line = String::new();
        made.append_to(&mut line, LineFormat::Json);
        for private in ["203.0.113", "example", "secret", "name.pdf", "serial", "145.0", "98.765"] {
            assert!(!line.contains(private), "{private} is in {line}");
        }
        assert_eq!((made.received_us, made.bytes), (1_795_680_000_000_000, 120_000));
        assert_eq!((made.duration_us, made.first_byte_us), (Some(99_000), Some(7)));
        assert_eq!((&*made.root, &*made.user_agent, &*made.method), (&*root, "Firefox", "GET"));
        assert!(made.path.starts_with(&format!("{root}/")) && made.path.len() == root.len() + 17);
        assert!(made.referer.starts_with("site-") && made.client.len() == 16);
    }

    #[test]
    fn hashes_tell_clients_and_paths_apart_within_a_day_and_a_file() {
        let (_dir, first) = anonymiser(false);
        let client = |of: &Anonymiser, address: &str, day: i64| {
            let received_us = record().received_us + day * DAY_US;
            let record = AccessRecord { client: address.to_owned().into(), received_us, ..record() };
            of.anonymised(&record, None).client.into_owned()
        };
        assert_eq!(client(&first, "203.0.113.7", 0), client(&first, "203.0.113.7", 0));
        assert_ne!(client(&first, "203.0.113.7", 0), client(&first, "203.0.113.8", 0));
        assert_ne!(client(&first, "203.0.113.7", 0), client(&first, "203.0.113.7", 1));
        assert_eq!(client(&first, "2001:db8::1", 0), client(&first, "2001:db8::2", 0), "one network");
        assert_ne!(client(&first, "2001:db8::1", 0), client(&first, "2001:db8:0:1::1", 0));
        assert_eq!(client(&first, "", 0), "");
        let (_dir, second) = anonymiser(false);
        assert_ne!(client(&first, "203.0.113.7", 0), client(&second, "203.0.113.7", 0), "each file has a key");
    }

    #[test]
    fn roots_are_kept_or_hashed() {
        let root = format!("/ipfs/{CID}");
        let (_dir, hashing) = anonymiser(true);
        let made = hashing.anonymised(&record(), Some(&root));
        assert!(made.root.starts_with("/ipfs/anon-") && made.path.starts_with(&format!("{}/", made.root)), "{made:?}");
        assert_eq!(hashing.root(&made.root), made.root, "a log that is anonymised again");
        assert!(hashing.root("/ipns/example.org").starts_with("/ipns/anon-"));
        // (path, root, expected beginning)
        let (_dir, keeping) = anonymiser(false);
        let table = [
            ("/".to_owned(), None, "/"),
            ("/healthz".to_owned(), None, "/healthz"),
            (format!("/routing/v1/providers/{CID}"), None, "/routing/v1/"),
            (format!("/ipfs/{CID}/"), Some(&*root), &*root),
            ("/index.html".to_owned(), Some("/ipns/example.org"), "/ipns/example.org/"),
        ];
        for (path, root, expected) in table {
            let record = AccessRecord { path: path.clone().into(), ..record() };
            let made = keeping.path(&record, root);
            let is_hashed = expected == "/ipns/example.org/" && made.starts_with(expected) && !made.contains("index");
            assert!(made == expected || is_hashed, "{path}: {made}");
        }
        let made = keeping.path(&AccessRecord { path: "/wp-login.php".into(), ..record() }, None);
        assert!(made.len() == 17 && !made.contains("wp"), "{made}");
    }

    #[test]
    fn numbers_keep_two_digits() {
        let table = [
            (0, 0),
            (7, 7),
            (99, 99),
            (100, 100),
            (104, 100),
            (105, 110),
            (123_456, 120_000),
            (999, 1000),
            (u64::MAX, 18_000_000_000_000_000_000),
        ];
        for (number, expected) in table {
            assert_eq!(rounded(number), expected, "{number}");
        }
    }

    #[test]
    fn a_file_is_never_replaced() {
        let (dir, mut first) = anonymiser(false);
        let target = dir.path().join("out.jsonl");
        first.write(&record(), None).expect("writes");
        std::fs::write(&target, "mine").expect("writes");
        assert!(Anonymiser::create(&target, false).is_err());
        assert!(first.finish().is_err(), "it was created meanwhile");
        assert_eq!(std::fs::read_to_string(&target).expect("reads"), "mine");
        assert_eq!(std::fs::read_dir(dir.path()).expect("lists").count(), 1, "nothing is left behind");
    }
}
