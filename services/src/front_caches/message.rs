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
pub enum Meaning {
    /// The cache has purged the content, or did not have it.
    Done,
    /// The request is to be retried.
    Later,
    /// The cache rejected the request.
    Refused,
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

/// The requests that purge a subject from a cache.
pub fn messages(cache: &FrontCache, hosts: &[Host], subject: &Subject, token: Option<&str>) -> Vec<Message> {
    let url = &cache.url;
    let bearer = token.and_then(|token| secret(&format!("Bearer {token}")));
    let key = key_of(subject);
    let keyed = |method: &str| {
        let mut headers = headers([(AUTHORIZATION, bearer.clone())]);
        let key = HeaderValue::from_str(&key).ok();
        headers.extend(
            [SURROGATE_KEY, XKEY].into_iter().zip([key.clone(), key]).filter_map(|(name, key)| Some((name, key?))),
        );
        vec![message(method, format!("{url}/"), headers, None)]
    };
    match cache.kind {
        CacheKind::Ban => keyed("BAN"),
        CacheKind::Xkey => keyed("PURGE"),
        CacheKind::Fastly => {
            let headers = headers([
                (FASTLY_KEY, token.and_then(secret)),
                (ACCEPT, Some(HeaderValue::from_static("application/json"))),
            ]);
            vec![message("POST", format!("{url}/purge/{key}"), headers, None)]
        }
        CacheKind::Cloudflare => {
            let json = Some(HeaderValue::from_static("application/json"));
            let body = serde_json::json!({ "tags": [key] }).to_string();
            vec![message(
                "POST",
                format!("{url}/purge_cache"),
                headers([(AUTHORIZATION, bearer), (CONTENT_TYPE, json)]),
                Some(body),
            )]
        }
        CacheKind::Purge => {
            let purge = |(host, target): (String, String)| {
                let headers = headers([(HOST, HeaderValue::from_str(&host).ok()), (AUTHORIZATION, bearer.clone())]);
                message("PURGE", format!("{url}{target}"), headers, None)
            };
            urls(cache, hosts, subject).into_iter().map(purge).collect()
        }
        CacheKind::Refresh => {
            let refresh = token.map_or(Some(HeaderValue::from_static("1")), secret);
            let ask = |(method, (host, target)): (&str, (String, String))| {
                let headers = headers([(HOST, HeaderValue::from_str(&host).ok()), (REFRESH, refresh.clone())]);
                message(method, format!("{url}{target}"), headers, None)
            };
            // nginx caches responses to HEAD separately.
            let both = |address: (String, String)| [("GET", address.clone()), ("HEAD", address)];
            urls(cache, hosts, subject).into_iter().flat_map(both).map(ask).collect()
        }
    }
}

/// Interprets the response of a cache.
pub fn meaning(kind: CacheKind, status: StatusCode) -> Meaning {
    let code = status.as_u16();
    match kind {
        // The cache stores any other response of Causeway.
        CacheKind::Refresh if !matches!(code, 401 | 403 | 429 | 500..) => Meaning::Done,
        // The cache did not have the content.
        CacheKind::Purge if matches!(code, 404 | 412) => Meaning::Done,
        _ if status.is_success() => Meaning::Done,
        // Errors that the operator can fix at the cache, and temporary ones.
        _ if matches!(code, 401 | 403 | 408 | 425 | 429 | 500..) => Meaning::Later,
        _ => Meaning::Refused,
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
        let show = |message: Message| {
            let headers =
                message.headers.iter().map(|(name, value)| format!(" {name}:{}", value.to_str().expect("text")));
            let headers: String = headers.collect();
            format!("{} {}{headers} {}", message.method, message.url, message.body.unwrap_or_default())
                .trim_end()
                .to_owned()
        };
        messages(&cache(kind, hosts), &[], &subject, token).into_iter().map(show).collect()
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
            (CacheKind::Refresh, 200, Meaning::Done),
            (CacheKind::Refresh, 410, Meaning::Done),
            (CacheKind::Refresh, 451, Meaning::Done),
            (CacheKind::Refresh, 403, Meaning::Later),
            (CacheKind::Refresh, 502, Meaning::Later),
            (CacheKind::Purge, 200, Meaning::Done),
            (CacheKind::Purge, 404, Meaning::Done),
            (CacheKind::Purge, 412, Meaning::Done),
            (CacheKind::Purge, 405, Meaning::Refused),
            (CacheKind::Ban, 200, Meaning::Done),
            (CacheKind::Ban, 404, Meaning::Refused),
            (CacheKind::Ban, 503, Meaning::Later),
            (CacheKind::Fastly, 401, Meaning::Later),
            (CacheKind::Cloudflare, 429, Meaning::Later),
            (CacheKind::Cloudflare, 400, Meaning::Refused),
        ];
        for (kind, status, expected) in table {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(meaning(kind, status), expected, "{kind:?} {status}");
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
