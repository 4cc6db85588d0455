//! The requests that a cache in front is sent, by its kind, and the interpretation of its responses. Without I/O,
//! except for tokens in files.

use crate::subject::Subject;
use crate::surrogate_keys;
use anyhow::{Context as _, bail};
use config::{CacheKind, FrontCache, Host, Secret};
use content::path::{Namespace, Root};
use content::subdomain::label;
use content::{Cid, Name, codec, hashes};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

/// The header by which nginx recognises a refresh request (`deploy/nginx/causeway.conf`): the token, or "1".
pub const REFRESH: HeaderName = HeaderName::from_static("x-causeway-refresh");
const SURROGATE_KEY: HeaderName = HeaderName::from_static("surrogate-key");
const XKEY: HeaderName = HeaderName::from_static("xkey");
const FASTLY_KEY: HeaderName = HeaderName::from_static("fastly-key");
/// The maximum number of keys in one request of Fastly, and of tags in one of Cloudflare.
const FASTLY_KEYS_MAX: usize = 256;
const CLOUDFLARE_TAGS_MAX: usize = 30;
/// The maximum length of a token, in bytes.
const TOKEN_BYTES_MAX: usize = 4096;

/// A request to a cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Its method.
    pub method: Method,
    /// Its URL.
    pub url: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Option<String>,
}

/// The interpretation of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeResult {
    /// The cache has purged the content, or did not have it.
    Done,
    /// The request is to be retried.
    Retry,
    /// The cache rejected the request.
    Rejected,
}

/// Reads the token of a cache, if it has one.
///
/// # Errors
/// Why the token cannot be read, with the name of the setting.
pub fn token(cache: &FrontCache) -> anyhow::Result<Option<Secret>> {
    let text = match (&cache.token_file, &cache.token_env) {
        (Some(file), _) => {
            let read = p2p_bridge::durable::read(file, TOKEN_BYTES_MAX);
            let file = file.display();
            let read =
                read.with_context(|| format!("policy.caches: reading the token of {cache} from {file} failed"))?;
            String::from_utf8(read).with_context(|| format!("policy.caches: the token of {cache} is not text"))?
        }
        (None, Some(variable)) => std::env::var(variable)
            .with_context(|| format!("policy.caches: the variable {variable} with the token of {cache} is not set"))?,
        (None, None) => return Ok(None),
    };
    let text = text.trim();
    if text.is_empty() || HeaderValue::from_str(text).is_err() {
        bail!("policy.caches: the token of {cache} is empty, or has characters that are invalid in a header");
    }
    Ok(Some(Secret::from(text)))
}

/// The requests that purge subjects from a cache.
pub fn messages(cache: &FrontCache, hosts: &[Host], subjects: &[Subject], token: Option<&str>) -> Vec<Message> {
    match cache.kind {
        CacheKind::Purge | CacheKind::Refresh => {
            subjects.iter().flat_map(|subject| messages_by_url(cache, hosts, subject, token)).collect()
        }
        _ => messages_by_key(cache, &subjects.iter().map(key_of).collect::<Vec<_>>(), token),
    }
}

/// The maximum number of subjects in one request to a cache.
pub fn subjects_max(kind: CacheKind) -> usize {
    match kind {
        CacheKind::Fastly => FASTLY_KEYS_MAX,
        CacheKind::Cloudflare => CLOUDFLARE_TAGS_MAX,
        CacheKind::Ban | CacheKind::Xkey | CacheKind::Purge | CacheKind::Refresh => 1,
    }
}

/// The requests that purge surrogate keys.
fn messages_by_key(cache: &FrontCache, keys: &[String], token: Option<&str>) -> Vec<Message> {
    let url = &cache.url;
    let bearer = bearer(token);
    // One key for each request: the configurations of Varnish reject a value that is not a single key.
    let keyed = |method: &str| {
        let message = |key: &String| {
            let mut headers = headers([(AUTHORIZATION, bearer.clone())]);
            let key = HeaderValue::from_str(key).ok();
            headers.extend(
                [SURROGATE_KEY, XKEY].into_iter().zip([key.clone(), key]).filter_map(|(name, key)| Some((name, key?))),
            );
            message(method, format!("{url}/"), headers, None)
        };
        keys.iter().map(message).collect()
    };
    let json = HeaderValue::from_static("application/json");
    match (cache.kind, keys) {
        (CacheKind::Ban, _) => keyed("BAN"),
        (CacheKind::Fastly, [key]) => {
            let headers = headers([(FASTLY_KEY, token.and_then(secret)), (ACCEPT, Some(json))]);
            vec![message("POST", format!("{url}/purge/{key}"), headers, None)]
        }
        (CacheKind::Fastly, keys) => {
            let message = |keys: &[String]| {
                let keys = HeaderValue::from_str(&keys.join(" ")).ok();
                let own = [(FASTLY_KEY, token.and_then(secret)), (ACCEPT, Some(json.clone())), (SURROGATE_KEY, keys)];
                message("POST", format!("{url}/purge"), headers(own), None)
            };
            keys.chunks(FASTLY_KEYS_MAX).map(message).collect()
        }
        (CacheKind::Cloudflare, keys) => {
            let message = |keys: &[String]| {
                let body = serde_json::json!({ "tags": keys }).to_string();
                let own = [(AUTHORIZATION, bearer.clone()), (CONTENT_TYPE, Some(json.clone()))];
                message("POST", format!("{url}/purge_cache"), headers(own), Some(body))
            };
            keys.chunks(CLOUDFLARE_TAGS_MAX).map(message).collect()
        }
        _ => keyed("PURGE"),
    }
}

/// The requests that purge, or refresh, each URL of a subject.
fn messages_by_url(cache: &FrontCache, hosts: &[Host], subject: &Subject, token: Option<&str>) -> Vec<Message> {
    let url = &cache.url;
    let message = |method: &str, (host, target): (String, String), own: (HeaderName, Option<HeaderValue>)| {
        let headers = headers([(HOST, HeaderValue::from_str(&host).ok()), own]);
        message(method, format!("{url}{target}"), headers, None)
    };
    let addresses = urls(cache, hosts, subject).into_iter();
    if cache.kind == CacheKind::Purge {
        return addresses.map(|address| message("PURGE", address, (AUTHORIZATION, bearer(token)))).collect();
    }
    let refresh = token.map_or(Some(HeaderValue::from_static("1")), secret);
    // nginx caches responses to HEAD separately.
    let both = |address: (String, String)| [("GET", address.clone()), ("HEAD", address)];
    addresses.flat_map(both).map(|(method, address)| message(method, address, (REFRESH, refresh.clone()))).collect()
}

fn bearer(token: Option<&str>) -> Option<HeaderValue> {
    token.and_then(|token| secret(&format!("Bearer {token}")))
}

/// Interprets the response of a cache.
pub fn purge_result(kind: CacheKind, status: StatusCode) -> PurgeResult {
    let code = status.as_u16();
    match kind {
        // The cache stores any other response of Causeway.
        CacheKind::Refresh if !matches!(code, 401 | 403 | 429 | 500..) => PurgeResult::Done,
        // The cache did not have the content.
        CacheKind::Purge if matches!(code, 404 | 412) => PurgeResult::Done,
        _ if status.is_success() => PurgeResult::Done,
        // Errors that the operator can fix at the cache, and temporary ones.
        _ if matches!(code, 401 | 403 | 408 | 425 | 429 | 500..) => PurgeResult::Retry,
        _ => PurgeResult::Rejected,
    }
}

fn headers<const N: usize>(all: [(HeaderName, Option<HeaderValue>); N]) -> HeaderMap {
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// A header value that is not logged.
fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn message(method: &str, url: String, headers: HeaderMap, body: Option<String>) -> Message {
    // All methods here are valid.
    let method = Method::from_bytes(method.as_bytes()).unwrap_or(Method::GET);
    Message { method, url, headers, body }
}

/// The surrogate key of the subject's root.
fn key_of(subject: &Subject) -> String {
    match &subject.root {
        Root::Cid(cid) => surrogate_keys::of_root(cid),
        Root::Name(name) => name.to_string(),
    }
}

/// The hosts and targets under which content is cached: paths with and without a trailing slash.
fn urls(cache: &FrontCache, hosts: &[Host], subject: &Subject) -> Vec<(String, String)> {
    let named: Vec<Host> = cache.hosts.iter().map(|name| Host::named(name)).collect();
    let hosts = if named.is_empty() { hosts } else { &named };
    let path = subject.request_path();
    let rest = path.splitn(4, '/').nth(3).map(|rest| format!("/{rest}")).unwrap_or_default();
    let namespace = match &subject.root {
        Root::Cid(_) => Namespace::Ipfs,
        Root::Name(_) => Namespace::Ipns,
    };
    let mut found = Vec::new();
    let mut add = |host: &str, path: String| {
        let without = path.trim_end_matches('/').to_owned();
        for target in [format!("{without}/"), without] {
            let address = (host.to_owned(), target);
            if !address.1.is_empty() && !found.contains(&address) {
                found.push(address);
            }
        }
    };
    for host in hosts {
        for spelling in spellings(&subject.root) {
            add(&host.name, format!("{}{spelling}{rest}", namespace.prefix()));
        }
        if !host.subdomains {
            continue;
        }
        let (name, port) = host.name.split_once(':').map_or((&*host.name, None), |(name, port)| (name, Some(port)));
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let labels = [label(&subject.root, true), label(&subject.root, false)];
        for label in labels.into_iter().flatten() {
            add(&format!("{label}.{}.{name}{port}", namespace.name()), format!("{rest}/"));
        }
    }
    if let Root::Name(Name::Domain(domain)) = &subject.root {
        add(domain.as_str(), format!("{rest}/"));
    }
    found
}

/// The spellings of a root in paths.
fn spellings(root: &Root) -> Vec<String> {
    let cid = match root {
        Root::Name(name) => return vec![name.to_string()],
        Root::Cid(cid) => cid,
    };
    let mut spellings = vec![Cid::new_v1(cid.codec(), *cid.hash()).to_string()];
    let is_v0 = cid.codec() == codec::DAG_PB && cid.hash().code() == hashes::SHA2_256 && cid.hash().size() == 32;
    spellings.extend(is_v0.then(|| Cid::new_v0(*cid.hash()).ok()).flatten().map(|cid| cid.to_string()));
    spellings
}

#[cfg(test)]
mod tests {
    use super::*;

    const V0: &str = "QmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn";
    const V1: &str = "bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354";

    fn cache(kind: CacheKind, hosts: &[&str]) -> FrontCache {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        FrontCache { kind, url: "http://cache:81".to_owned(), hosts, token_file: None, token_env: None }
    }

    fn sent(kind: CacheKind, hosts: &[&str], subject: &str, token: Option<&str>) -> Vec<String> {
        let subject = Subject::of_anything(subject).expect("a subject");
        show_all(messages(&cache(kind, hosts), &[], &[subject], token))
    }

    fn show_all(messages: Vec<Message>) -> Vec<String> {
        let show = |message: Message| {
            let headers =
                message.headers.iter().map(|(name, value)| format!(" {name}:{}", value.to_str().expect("text")));
            let headers: String = headers.collect();
            format!("{} {}{headers} {}", message.method, message.url, message.body.unwrap_or_default())
                .trim_end()
                .to_owned()
        };
        messages.into_iter().map(show).collect()
    }

    #[test]
    fn several_blocks_are_purged_with_few_requests() {
        let block = |n: u64| {
            let hash = hashes::digest(hashes::SHA2_256, 32, &n.to_be_bytes()).expect("accepted");
            Subject { root: Root::Cid(Cid::new_v1(codec::RAW, hash)), segments: Vec::new() }
        };
        let blocks: Vec<Subject> = (0..300).map(block).collect();
        let sent = |kind| show_all(messages(&cache(kind, &["a.example"]), &[], &blocks, Some("t")));
        let key = |n: usize| key_of(&blocks[n]);
        let banned = sent(CacheKind::Ban);
        assert_eq!(banned.len(), 300, "one key for each");
        assert!(banned[299].ends_with(&format!("surrogate-key:{} xkey:{0}", key(299))), "{}", banned[299]);
        let fastly = sent(CacheKind::Fastly);
        assert_eq!(fastly.len(), 2);
        let last: Vec<String> = (256..300).map(key).collect();
        let expected = "POST http://cache:81/purge fastly-key:t accept:application/json surrogate-key:";
        assert_eq!(fastly[1], format!("{expected}{}", last.join(" ")));
        let cloudflare = sent(CacheKind::Cloudflare);
        assert_eq!(cloudflare.len(), 10);
        assert!(cloudflare[9].ends_with(&format!(",\"{}\"]}}", key(299))), "{}", cloudflare[9]);
        let purged = sent(CacheKind::Purge);
        assert!(purged.iter().any(|sent| sent.contains(&format!("/ipfs/{} host:a.example", key(7)))), "{purged:?}");
    }

    #[test]
    fn each_kind_has_its_own_requests() {
        let path = format!("/ipfs/{V0}/a%20b");
        let keys = [
            (CacheKind::Ban, None, format!("BAN http://cache:81/ surrogate-key:{V1} xkey:{V1}")),
            (
                CacheKind::Xkey,
                Some("t"),
                format!("PURGE http://cache:81/ authorization:Bearer t surrogate-key:{V1} xkey:{V1}"),
            ),
            (
                CacheKind::Fastly,
                Some("t"),
                format!("POST http://cache:81/purge/{V1} fastly-key:t accept:application/json"),
            ),
            (
                CacheKind::Cloudflare,
                Some("t"),
                format!(
                    "POST http://cache:81/purge_cache authorization:Bearer t content-type:application/json {{\"tags\":[\"{V1}\"]}}"
                ),
            ),
        ];
        for (kind, token, expected) in keys {
            assert_eq!(sent(kind, &["a.example"], &path, token), [expected], "{kind:?}");
        }
        let purged = sent(CacheKind::Purge, &["a.example:81"], &path, None);
        for expected in [
            format!("PURGE http://cache:81/ipfs/{V1}/a%20b host:a.example:81"),
            format!("PURGE http://cache:81/ipfs/{V0}/a%20b/ host:a.example:81"),
            format!("PURGE http://cache:81/a%20b host:{V1}.ipfs.a.example:81"),
        ] {
            assert!(purged.contains(&expected), "{expected} {purged:?}");
        }
        let refreshed = sent(CacheKind::Refresh, &["a.example"], "docs.example.org", Some("t"));
        for expected in [
            "GET http://cache:81/ipns/docs.example.org host:a.example x-causeway-refresh:t",
            "HEAD http://cache:81/ipns/docs.example.org/ host:a.example x-causeway-refresh:t",
            "GET http://cache:81/ host:docs-example-org.ipns.a.example x-causeway-refresh:t",
            "GET http://cache:81/ host:docs.example.org x-causeway-refresh:t",
        ] {
            assert!(refreshed.iter().any(|sent| sent == expected), "{expected} {refreshed:?}");
        }
        let distinct: std::collections::HashSet<_> = refreshed.iter().collect();
        assert_eq!(distinct.len(), refreshed.len());
    }

    #[test]
    fn responses_are_interpreted_by_kind() {
        let table = [
            (CacheKind::Refresh, 200, PurgeResult::Done),
            (CacheKind::Refresh, 410, PurgeResult::Done),
            (CacheKind::Refresh, 451, PurgeResult::Done),
            (CacheKind::Refresh, 403, PurgeResult::Retry),
            (CacheKind::Refresh, 502, PurgeResult::Retry),
            (CacheKind::Purge, 200, PurgeResult::Done),
            (CacheKind::Purge, 404, PurgeResult::Done),
            (CacheKind::Purge, 412, PurgeResult::Done),
            (CacheKind::Purge, 405, PurgeResult::Rejected),
            (CacheKind::Ban, 200, PurgeResult::Done),
            (CacheKind::Ban, 404, PurgeResult::Rejected),
            (CacheKind::Ban, 503, PurgeResult::Retry),
            (CacheKind::Fastly, 401, PurgeResult::Retry),
            (CacheKind::Cloudflare, 429, PurgeResult::Retry),
            (CacheKind::Cloudflare, 400, PurgeResult::Rejected),
        ];
        for (kind, status, expected) in table {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(purge_result(kind, status), expected, "{kind:?} {status}");
        }
    }

    #[test]
    fn tokens_come_from_files_and_are_headers() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("token");
        let cache = FrontCache { token_file: Some(file.clone()), ..cache(CacheKind::Fastly, &[]) };
        let words = token(&cache).expect_err("there is none").to_string();
        assert!(words.contains("policy.caches") && words.contains("token"), "{words}");
        for (text, good) in [("secret\n", true), ("", false), ("a\nb", false)] {
            std::fs::write(&file, text).expect("writes");
            let token = token(&cache);
            assert_eq!(
                token.as_ref().is_ok_and(|token| token.as_ref().and_then(Secret::reveal) == Some("secret")),
                good,
                "{text:?}"
            );
        }
    }
}
