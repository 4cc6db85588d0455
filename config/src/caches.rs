//! [`FrontCache`]: a cache in front of the gateway, and how it is told that content is not served any more.
//!
//! Written as a text, `KIND+URL`, or as a table, for what a text has no room for.

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

/// A cache in front of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontCache {
    /// What it understands.
    pub kind: CacheKind,
    /// Where it is asked: http or https, without a user, a query or a slash at the end.
    pub url: String,
    /// The hosts whose pages it has; those of `http.hosts` if there are none.
    pub hosts: Vec<String>,
    /// The file with the token that it asks for.
    pub token_file: Option<PathBuf>,
    /// The environment variable with the token.
    pub token_env: Option<String>,
}

/// How a cache is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheKind {
    /// The addresses of the content are asked for past the cache, which keeps the new answer: nginx.
    Refresh,
    /// `PURGE` of the addresses of the content.
    Purge,
    /// `BAN` with the surrogate keys of the content: Varnish.
    Ban,
    /// `PURGE` with the surrogate keys of the content: Varnish with xkey.
    Xkey,
    /// Fastly's API.
    Fastly,
    /// Cloudflare's API.
    Cloudflare,
}

impl CacheKind {
    /// All there are.
    pub const ALL: [Self; 6] = [Self::Refresh, Self::Purge, Self::Ban, Self::Xkey, Self::Fastly, Self::Cloudflare];

    /// As settings have it.
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

    /// Whether it goes by surrogate keys, and not by addresses.
    pub fn goes_by_keys(self) -> bool {
        !matches!(self, Self::Refresh | Self::Purge)
    }

    /// Whether it does nothing without a token.
    pub fn needs_token(self) -> bool {
        matches!(self, Self::Fastly | Self::Cloudflare)
    }
}

impl fmt::Display for FrontCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.kind.as_str(), self.url)
    }
}

/// A cache as it is written.
#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a cache is KIND+URL, such as \"refresh+http://127.0.0.1\", or a table with kind and url"
)]
enum Written {
    Text(String),
    Table(Table),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
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
            return Written::Text(self.to_string()).serialize(serializer);
        }
        Written::Table(Table { kind: kind.as_str().to_owned(), url, hosts, token_file, token_env })
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for FrontCache {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = match Written::deserialize(deserializer)? {
            Written::Table(table) => table,
            Written::Text(text) => {
                let Some((kind, url)) = text.trim().split_once('+') else {
                    return Err(D::Error::custom(format!(
                        "\"{text}\" is no cache: write KIND+URL, such as refresh+http://127.0.0.1"
                    )));
                };
                let (kind, url) = (kind.to_owned(), url.to_owned());
                Table { kind, url, hosts: Vec::new(), token_file: None, token_env: None }
            }
        };
        read(table).map_err(D::Error::custom)
    }
}

fn read(table: Table) -> Result<FrontCache, String> {
    let Table { kind: named, url, hosts, token_file, token_env } = table;
    let known = || CacheKind::ALL.map(CacheKind::as_str).join(", ");
    let kind = CacheKind::ALL.into_iter().find(|kind| kind.as_str() == named);
    let kind = kind.ok_or_else(|| format!("\"{named}\" is no kind of cache; there are {}", known()))?;
    let url = url.trim().trim_end_matches('/').to_owned();
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).unwrap_or_default();
    if rest.is_empty() || rest.starts_with('/') || rest.contains(['@', '?', '#']) || rest.contains(char::is_whitespace)
    {
        return Err(
            "the address of a cache begins with http:// or https://, and has no user, query or fragment".to_owned()
        );
    }
    if token_file.is_some() && token_env.is_some() {
        return Err("a cache has a token_file or a token_env, and not both".to_owned());
    }
    if kind.needs_token() && token_file.is_none() && token_env.is_none() {
        return Err(format!("a cache of the kind {named} needs a token_file or a token_env"));
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
            ("\"flush+http://127.0.0.1\"", "no kind of cache"),
            ("\"purge+ftp://127.0.0.1\"", "begins with http"),
            ("\"purge+http://a:b@127.0.0.1\"", "no user"),
            ("\"purge+http:///x\"", "begins with http"),
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
