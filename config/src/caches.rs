//! [`FrontCache`]: a cache in front of the gateway, and how it is purged.
//!
//! FrontCacheSetting as a string, `KIND+URL`, or as a table with more fields.

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

/// A cache in front of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontCache {
    /// The purge protocol.
    pub kind: CacheKind,
    /// The base URL: http or https, without user information, query or trailing slash.
    pub url: String,
    /// The public host names of the cached pages; if empty, those of `http.hosts`.
    pub hosts: Vec<String>,
    /// The file with the API token.
    pub token_file: Option<PathBuf>,
    /// The environment variable with the API token.
    pub token_env: Option<String>,
}

/// The purge protocol of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheKind {
    /// Requests each URL of the content, bypassing the cache, which stores the new response: nginx.
    Refresh,
    /// `PURGE` of each URL of the content.
    Purge,
    /// `BAN` by the surrogate keys of the content: Varnish.
    Ban,
    /// `PURGE` by the surrogate keys of the content: Varnish with xkey.
    Xkey,
    /// Fastly's API.
    Fastly,
    /// Cloudflare's API.
    Cloudflare,
}

impl CacheKind {
    /// All kinds.
    pub const ALL: [Self; 6] = [Self::Refresh, Self::Purge, Self::Ban, Self::Xkey, Self::Fastly, Self::Cloudflare];

    /// The name in the settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refresh => "refresh",
            Self::Purge => "purge",
            Self::Ban => "ban",
            Self::Xkey => "xkey",
            Self::Fastly => "fastly",
            Self::Cloudflare => "cloudflare",
        }
    }

    /// Whether the cache is purged by surrogate key instead of by URL.
    pub fn purges_by_surrogate_key(self) -> bool {
        !matches!(self, Self::Refresh | Self::Purge)
    }

    /// Whether the API requires a token.
    pub fn needs_token(self) -> bool {
        matches!(self, Self::Fastly | Self::Cloudflare)
    }
}

impl fmt::Display for FrontCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.kind.as_str(), self.url)
    }
}

/// A cache in the configuration file.
#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a cache is KIND+URL, such as \"refresh+http://127.0.0.1\", or a table with kind and url"
)]
enum FrontCacheSetting {
    Text(String),
    Table(FrontCacheTable),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FrontCacheTable {
    kind: String,
    url: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    hosts: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_env: Option<String>,
}

impl Serialize for FrontCache {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { kind, url, hosts, token_file, token_env } = self.clone();
        if hosts.is_empty() && token_file.is_none() && token_env.is_none() {
            return FrontCacheSetting::Text(self.to_string()).serialize(serializer);
        }
        FrontCacheSetting::Table(FrontCacheTable { kind: kind.as_str().to_owned(), url, hosts, token_file, token_env })
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for FrontCache {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = match FrontCacheSetting::deserialize(deserializer)? {
            FrontCacheSetting::Table(table) => table,
            FrontCacheSetting::Text(text) => {
                let Some((kind, url)) = text.trim().split_once('+') else {
                    return Err(D::Error::custom(format!(
                        "\"{text}\" is not a cache: write KIND+URL, such as refresh+http://127.0.0.1"
                    )));
                };
                let (kind, url) = (kind.to_owned(), url.to_owned());
                FrontCacheTable { kind, url, hosts: Vec::new(), token_file: None, token_env: None }
            }
        };
        read(table).map_err(D::Error::custom)
    }
}

fn read(table: FrontCacheTable) -> Result<FrontCache, String> {
    let FrontCacheTable { kind: named, url, hosts, token_file, token_env } = table;
    let known = || CacheKind::ALL.map(CacheKind::as_str).join(", ");
    let kind = CacheKind::ALL.into_iter().find(|kind| kind.as_str() == named);
    let kind = kind.ok_or_else(|| format!("\"{named}\" is not a kind of cache; the kinds are {}", known()))?;
    let url = url.trim().trim_end_matches('/').to_owned();
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).unwrap_or_default();
    if rest.is_empty() || rest.starts_with('/') || rest.contains(['@', '?', '#']) || rest.contains(char::is_whitespace)
    {
        return Err(
            "the URL of a cache must begin with http:// or https://, without user, query or fragment".to_owned()
        );
    }
    if token_file.is_some() && token_env.is_some() {
        return Err("a cache must have token_file or token_env, not both".to_owned());
    }
    if kind.needs_token() && token_file.is_none() && token_env.is_none() {
        return Err(format!("a {named} cache needs a token_file or a token_env"));
    }
    Ok(FrontCache { kind, url, hosts, token_file, token_env })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Caches {
        caches: Vec<FrontCache>,
    }

    fn parse(text: &str) -> Result<FrontCache, String> {
        let read = toml::from_str::<Caches>(&format!("caches = [{text}]")).map_err(|error| error.to_string())?;
        let again: Caches = toml::from_str(&toml::to_string(&read).expect("writes")).expect("reads");
        assert_eq!(again, read, "{text}");
        read.caches.into_iter().next().ok_or_else(|| "none".to_owned())
    }

    #[test]
    fn caches_are_texts_or_tables() {
        for kind in CacheKind::ALL.into_iter().filter(|kind| !kind.needs_token()) {
            let cache = parse(&format!("\"{}+http://127.0.0.1:80/\"", kind.as_str())).expect("a cache");
            assert_eq!((cache.kind, cache.url.as_str()), (kind, "http://127.0.0.1:80"));
        }
        let table =
            "{ kind = \"fastly\", url = \"https://api.fastly.com/service/x\", token_env = \"T\", hosts = [\"a.b\"] }";
        let cache = parse(table).expect("a cache");
        assert_eq!(
            (cache.kind, cache.token_env.as_deref(), cache.hosts),
            (CacheKind::Fastly, Some("T"), vec!["a.b".into()])
        );
        let wrong = [
            ("\"http://127.0.0.1\"", "KIND+URL"),
            ("\"flush+http://127.0.0.1\"", "not a kind of cache"),
            ("\"purge+ftp://127.0.0.1\"", "begin with http"),
            ("\"purge+http://a:b@127.0.0.1\"", "without user"),
            ("\"purge+http:///x\"", "begin with http"),
            ("\"cloudflare+https://api.cloudflare.com\"", "token"),
            ("{ kind = \"purge\", url = \"http://a\", token_env = \"T\", token_file = \"f\" }", "not both"),
            ("{ kind = \"purge\", url = \"http://a\", port = 1 }", ""),
        ];
        for (text, words) in wrong {
            let error = parse(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
